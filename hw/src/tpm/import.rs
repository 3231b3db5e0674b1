//! Opens what was sealed to an endorsement key of this TPM: Import, Load, Unseal under PolicyPCR.
//!
//! Decides how often it is tried while a PCR changes, and that nothing stays loaded on any path. What the
//! secret is for and whether it may be opened is the attester's business.

use attest_wire::tpm::HashAlg;
use tss_esapi::handles::{KeyHandle, ObjectHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::structures::{Digest, EncryptedSecret, Private, Public, SymmetricDefinitionObject};
use zeroize::Zeroizing;

use super::TpmError;
use super::device::{
    Device, NO_SESSION, command_error, malformed, own_name, public_from, selection,
};
use super::node::{NodeDevice, ek_hash, satisfy_ek_policy};
use super::template::{self, EkKind};

/// TPM_RC_PCR_CHANGED (TPM 2.0 Part 2, 6.6.3): a PCR was extended between PolicyPCR and Unseal, be it one
/// that the policy does not name (IMA extends PCR 10 at any moment).
const PCR_CHANGED: u32 = 0x128;
/// How often a changing PCR is answered by a new session.
const UNSEAL_TRIES: u32 = 5;

/// A wrapped secret as it came, decoded for ESYS.
struct Wrapped {
    public: Public,
    name: Vec<u8>,
    private: Private,
    secret: EncryptedSecret,
}

impl Wrapped {
    fn decode(public: &[u8], private: &[u8], secret: &[u8]) -> Result<Self, TpmError> {
        // ESYS takes trailing bytes; our decoder does not.
        let decoded = attest_wire::tpm::Public::decode(public)
            .map_err(|e| malformed("wrapped TPMT_PUBLIC", &e.to_string()))?;
        if decoded.name_alg != HashAlg::Sha256 {
            return Err(malformed("wrapped TPMT_PUBLIC", "nameAlg is not SHA-256"));
        }
        Ok(Self {
            public: public_from(public)?,
            name: own_name(public),
            private: Private::try_from(private.to_vec()).map_err(|e| command_error("Import", e))?,
            secret: EncryptedSecret::try_from(secret).map_err(|e| command_error("Import", e))?,
        })
    }
}

impl NodeDevice {
    /// The work of [`super::NodeTpm::unseal_import`].
    pub(super) fn unseal_wrapped(
        &mut self,
        ek_public: &[u8],
        [public, private, secret]: [&[u8]; 3],
        pcrs: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, TpmError> {
        let wrapped = Wrapped::decode(public, private, secret)?;
        // Without a resource manager there is room for three objects: DevID, EK and the secret.
        self.with_ak_parked(|node| {
            let (ek, kind) = node.load_ek(ek_public)?;
            node.device.with_object(ek.into(), |device| {
                let name = template::name(kind.hash(), ek_public);
                device.require_name("endorsement key", ek, &name)?;
                let object = import_and_load(device, (ek, kind), &wrapped)?;
                device.with_object(object, |device| {
                    device.require_name(
                        "wrapped secret",
                        KeyHandle::from(object),
                        &wrapped.name,
                    )?;
                    unseal(device, ek, object, pcrs)
                })
            })
        })
    }
}

/// Each use of the EK takes a policy session of its own: PolicySecret is good for one command.
fn import_and_load(
    device: &mut Device,
    (ek, kind): (KeyHandle, EkKind),
    wrapped: &Wrapped,
) -> Result<ObjectHandle, TpmError> {
    let private = device.with_policy(ek_hash(kind), |device, policy, session| {
        satisfy_ek_policy(device, kind, policy)?;
        device.run("Import", (Some(session), None, None), |ctx| {
            ctx.import(
                ek.into(),
                None,
                wrapped.public.clone(),
                wrapped.private.clone(),
                wrapped.secret.clone(),
                SymmetricDefinitionObject::Null,
            )
        })
    })?;
    device.with_policy(ek_hash(kind), |device, policy, session| {
        satisfy_ek_policy(device, kind, policy)?;
        let loaded = device.run("Load", (Some(session), None, None), |ctx| {
            ctx.load(ek, private.clone(), wrapped.public.clone())
        })?;
        Ok(loaded.into())
    })
}

/// The secret leaves the TPM under a session salted to the EK, whose Name the caller has compared.
fn unseal(
    device: &mut Device,
    ek: KeyHandle,
    object: ObjectHandle,
    pcrs: &[u8],
) -> Result<Zeroizing<Vec<u8>>, TpmError> {
    let pcrs = selection(pcrs)?;
    let mut tries = 1;
    loop {
        // After an error ESYS drops the flags of a session: each try has new ones.
        let opened = device.with_salted(ek, |device, salted| {
            device.with_policy(HashingAlgorithm::Sha256, |device, policy, session| {
                device.run("PolicyPCR", NO_SESSION, |ctx| {
                    ctx.policy_pcr(policy, Digest::default(), pcrs.clone())
                })?;
                let slots = (Some(session), Some(salted), None);
                let data =
                    device.run_protected("Unseal", slots, salted, |ctx| ctx.unseal(object))?;
                Ok(Zeroizing::new(data.value().to_vec()))
            })
        });
        match opened {
            Err(TpmError::Command {
                code: PCR_CHANGED, ..
            }) if tries < UNSEAL_TRIES => tries += 1,
            other => return other,
        }
    }
}
