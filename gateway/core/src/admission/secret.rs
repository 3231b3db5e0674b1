//! A secret of the owner, sealed to the EK of a machine for the tools of its own system.
//!
//! Decides who may ask for it and for which machine: an owner, a machine that may attest and has proven its
//! EK since the start, and nothing that lets into a cluster. The form is `attest_wire::ekseal`.

use attest_wire::credential::{CredentialError, SEALED_MAX_BYTES};
use attest_wire::ekseal;
use attest_wire::sealed::is_kind;
use attest_wire::tpm::Public;
use rand_core::SeedableRng as _;
use zeroize::Zeroizing;

use super::Admission;
use super::command::{Caller, Role, demand};
use crate::appraisal::{Admission as Proof, Verified};
use crate::handover::{CLUSTER_CREDENTIALS, proven_ek};
use crate::identity::{EkName, MachineId, UnixMillis};
use crate::outbox::Outbox;
use crate::reason::Reason;
use crate::record::Act;

/// PCRs that the bound form names: what booted, without the session.
pub const SECRET_PCRS: [u8; 3] = [4, 7, 11];
const SOURCE: &str = "docs/OPERATIONS.md, secrets for other systems";

/// What a machine has proven in its last admission.
pub(super) struct Proven {
    ek: Public,
    pcrs: Vec<(u8, [u8; 32])>,
}

/// What an owner asks for.
pub struct SecretRequest {
    /// The machine.
    pub machine: MachineId,
    /// What the owner calls it; see [`is_kind`].
    pub kind: String,
    /// The secret.
    pub secret: Zeroizing<Vec<u8>>,
    /// Bound to the PCRs of the machine's last admission.
    pub pcrs: bool,
}

impl Admission {
    pub(super) fn keep_proven(&mut self, proof: &Verified<Proof>) {
        let Ok((_, ek)) = proven_ek(proof) else {
            return;
        };
        let quoted = &proof.facts.pcrs;
        let value = |pcr: u8| Some((pcr, *quoted.get(&pcr)?));
        let proven = Proven {
            ek: ek.clone(),
            pcrs: SECRET_PCRS.into_iter().filter_map(value).collect(),
        };
        self.proven.insert(proof.binding.machine.clone(), proven);
    }

    /// Seals a secret and puts the act on record; the line is handed out when that is on disk.
    ///
    /// # Errors
    /// `admin.role`, `machine.unknown`, `machine.state`, `secret.kind`, `secret.size`, `secret.ek`,
    /// `secret.pcrs`.
    pub fn seal_secret(
        &mut self,
        now: UnixMillis,
        caller: &Caller,
        request: &SecretRequest,
        seed: &[u8; 32],
        out: &mut Outbox,
    ) -> Result<String, Reason> {
        demand(caller, Role::Owner)?;
        usable_kind(&request.kind)?;
        let id = &request.machine;
        if self.registry.get(id).is_none() {
            return Err(Reason::new(
                "machine.unknown",
                "a machine of this appliance",
                crate::appraisal::shown(&id.0),
                SOURCE,
                "see vestibule machine list",
            ));
        }
        self.may_attest(id)?;
        if request.secret.is_empty() {
            return Err(size(SECRET_MAX_BYTES, 0));
        }
        let (ek_name, bundle) = self.wrap(request, seed)?;
        let act = Act::SealSecret {
            machine: id.clone(),
            payload: request.kind.clone(),
            pcrs: request.pcrs,
            ek_name,
            object_name: bundle.object_name.clone(),
        };
        self.write_act(now, caller, act, out);
        Ok(bundle.line())
    }

    fn wrap(
        &self,
        request: &SecretRequest,
        seed: &[u8; 32],
    ) -> Result<(EkName, ekseal::Bundle), Reason> {
        let bound = self
            .registry
            .get(&request.machine)
            .and_then(|machine| machine.binding.as_ref());
        let proven = self.proven.get(&request.machine).filter(|proven| {
            let name = proven.ek.name().to_hex();
            bound.is_some_and(|binding| binding.ek_names.iter().any(|ek| ek.0 == name))
        });
        let proven = proven.ok_or_else(|| {
            Reason::new(
                "secret.ek",
                "an admission of the machine since the gateway's start",
                format!("none of {}", request.machine),
                SOURCE,
                "boot the machine with the gateway's image and ask again",
            )
        })?;
        let mut rng = rand_chacha::ChaCha20Rng::from_seed(*seed);
        let sealed = if request.pcrs {
            if proven.pcrs.len() != SECRET_PCRS.len() {
                return Err(Reason::new(
                    "secret.pcrs",
                    "PCR 4, 7 and 11 in the last quote",
                    format!("{} of them", proven.pcrs.len()),
                    SOURCE,
                    "add them to the registers of the policy",
                ));
            }
            ekseal::seal_to_pcrs(&proven.ek, &proven.pcrs, &request.secret, &mut rng)
        } else {
            ekseal::seal(&proven.ek, &request.secret, &mut rng)
        };
        let sealed = sealed.map_err(|error| match error {
            CredentialError::SecretTooLong { max, found } => size(max, found),
            CredentialError::Key(why) => Reason::new(
                "secret.ek",
                "an EK that a secret can be wrapped for",
                why,
                "TPM 2.0 Part 1 section 23",
                "report this EK: its template passed",
            ),
        })?;
        Ok((EkName(proven.ek.name().to_hex()), sealed))
    }
}

fn size(max: usize, found: usize) -> Reason {
    Reason::new(
        "secret.size",
        format!("1 to {max} bytes"),
        format!("{found} bytes"),
        "TPM 2.0 Part 2, TPM2B_SENSITIVE_DATA",
        "encrypt what is larger, and seal the key",
    )
}

fn usable_kind(kind: &str) -> Result<(), Reason> {
    let cluster = CLUSTER_CREDENTIALS.contains(&kind);
    if is_kind(kind) && !cluster {
        return Ok(());
    }
    let (expected, next) = if cluster {
        (
            "a secret that lets nobody into a cluster: any system on the machine opens this form",
            "declare it as a payload in [handover], which opens in the attested boot alone",
        )
    } else {
        ("a kind of 1 to 32 of a-z 0-9 -", "choose another name")
    };
    Err(Reason::new(
        "secret.kind",
        expected,
        crate::appraisal::shown(kind),
        SOURCE,
        next,
    ))
}

/// Largest secret, bytes.
pub const SECRET_MAX_BYTES: usize = SEALED_MAX_BYTES;
