//! What is handed to a machine after it was admitted: payloads, sealed to the TPM that it proved.
//!
//! Decides which payloads are whose, what is written into their templates, and that only the admission of
//! a `provision` image of an attester that can open them gets any (docs/PROTOCOL.md section 6). Knows no
//! file and holds no key of ours: the shell reads the files, and signs the statement.

mod template;

use std::net::IpAddr;

use attest_wire::sealed::{self, Item, SealError, Target, Unsigned, is_kind};
use attest_wire::tpm::Public;
use attest_wire::v1::handover::{Ability, ItemDigest, SEALED_PCRS};
use attest_wire::v1::{SEALED_ITEM_MAX_BYTES, SEALED_ITEMS_MAX};
use boot::catalog::Role;
use rand_core::CryptoRngCore;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::appraisal::{Admission, Outcome, Verified};
use crate::identity::{EkName, MachineId};
use crate::reason::Reason;
use crate::record::Delivery;

pub use template::{Template, TemplateError, VARIABLES, Values};

/// Kind of the package for SPIRE's agent, which is composed and not read from a file.
pub const SPIRE_PACKAGE: &str = "spire-package";
/// Kinds that let their holder into a cluster. They are never sealed in a form that any system on the
/// machine opens.
pub const CLUSTER_CREDENTIALS: [&str; 2] = ["talos-config", SPIRE_PACKAGE];
/// Most payloads of a configuration.
pub const PAYLOADS_MAX: usize = 4_096;
/// Largest file of a payload, in bytes: one payload with its tag.
pub const FILE_MAX_BYTES: usize = SEALED_ITEM_MAX_BYTES - sealed::TAG_BYTES;

/// Whose a payload is. The nearest one of a kind counts: machine, then class, then all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Every machine.
    All,
    /// Machines of a class.
    Class(String),
    /// One machine.
    Machine(MachineId),
}

/// What a payload says.
pub enum Content {
    /// As it is.
    Bytes(Zeroizing<Vec<u8>>),
    /// With the machine's facts written in.
    Template(Template),
}

/// One declared payload.
pub struct Payload {
    /// What it is.
    pub kind: String,
    /// Whose.
    pub scope: Scope,
    /// Its content; contents are secret.
    pub content: Content,
}

/// Where SPIRE is, for the package of its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spire {
    /// Trust domain, without `spiffe://`.
    pub trust_domain: String,
    /// Name or address of the server.
    pub server_address: String,
    /// Its port.
    pub server_port: u16,
    /// The bundle that the agent starts with, PEM.
    pub bundle: String,
}

/// The package of SPIRE's agent, as JSON. LDevID chain and key blobs are on the node already.
#[derive(Serialize)]
struct SpirePackage<'a> {
    version: u32,
    trust_domain: &'a str,
    server_address: &'a str,
    server_port: u16,
    trust_bundle: &'a str,
}

/// Everything that may be handed over.
#[derive(Default)]
pub struct Handover {
    payloads: Vec<Payload>,
    spire: Option<Spire>,
}

/// Payloads of one machine, before the statement is signed.
pub struct Prepared {
    /// Sealed; the statement waits for its signature.
    pub unsigned: Unsigned,
    /// What goes on record before they leave.
    pub record: Delivery,
}

/// Who gets payloads, and in which attempt.
pub struct Recipient<'a> {
    /// The proof.
    pub admission: &'a Verified<Admission>,
    /// Body of the receipt that goes with them.
    pub receipt: &'a [u8],
    /// The address it speaks from.
    pub peer: IpAddr,
    /// Finds the attempt.
    pub correlation: &'a str,
}

impl Handover {
    /// Takes checked payloads: kinds have a usable name, and none is declared twice for the same scope.
    ///
    /// # Errors
    /// One line for each that is wrong.
    pub fn new(payloads: Vec<Payload>, spire: Option<Spire>) -> Result<Self, Vec<String>> {
        let mut wrong = Vec::new();
        for (index, payload) in payloads.iter().enumerate() {
            let kind = &payload.kind;
            if !is_kind(kind) {
                wrong.push(format!(
                    "kind {kind:?}: expected 1 to {} of a-z 0-9 -",
                    sealed::KIND_MAX_BYTES
                ));
            }
            if kind == SPIRE_PACKAGE {
                wrong.push(format!(
                    "kind {kind:?}: expected a kind other than this one, which handover.spire makes"
                ));
            }
            let same = |other: &&Payload| other.kind == *kind && other.scope == payload.scope;
            if payloads[..index].iter().any(|other| same(&other)) {
                wrong.push(format!(
                    "kind {kind:?}: declared twice for {:?}",
                    payload.scope
                ));
            }
        }
        match wrong.is_empty() {
            true => Ok(Self { payloads, spire }),
            false => Err(wrong),
        }
    }

    /// Whether nobody gets anything.
    pub fn is_empty(&self) -> bool {
        self.payloads.is_empty() && self.spire.is_none()
    }

    /// Seals what this machine gets; none when there is nothing for it, or it cannot open it.
    ///
    /// # Errors
    /// `handover.image`, `handover.pcrs`, `handover.ek`, `handover.template`, `handover.size`: the machine
    /// is admitted, and its payloads are withheld.
    pub fn prepare(
        &self,
        recipient: &Recipient<'_>,
        rng: &mut impl CryptoRngCore,
    ) -> Result<Option<Prepared>, Reason> {
        let admission = recipient.admission;
        if !admission.can.contains(&Ability::Payloads) {
            return Ok(None);
        }
        let values = values(recipient);
        let chosen = self.chosen(&values);
        if chosen.is_empty() && self.spire.is_none() {
            return Ok(None);
        }
        provision_image(admission)?;
        let pcrs = quoted(admission)?;
        let (index, ek) = proven_ek(admission)?;
        let items = self.items(&chosen, &values)?;
        let target = Target {
            machine: &values.machine,
            receipt_sha256: Sha256::digest(recipient.receipt).into(),
            index,
            ek,
            pcrs,
        };
        let unsigned = sealed::seal(&target, &items, rng).map_err(|error| refused(&error))?;
        let statement = unsigned.statement();
        let record = Delivery {
            machine: admission.binding.machine.clone(),
            correlation: recipient.correlation.to_owned(),
            items: items.iter().map(digest).collect(),
            ek_name: EkName(statement.ek_name.clone()),
            object_name: statement.object_name.clone(),
        };
        Ok(Some(Prepared { unsigned, record }))
    }

    /// One payload of each kind, the nearest.
    fn chosen(&self, values: &Values) -> Vec<&Payload> {
        let mut chosen: Vec<&Payload> = Vec::new();
        for payload in &self.payloads {
            let applies = match &payload.scope {
                Scope::All => true,
                Scope::Class(class) => *class == values.class,
                Scope::Machine(machine) => machine.0 == values.machine,
            };
            if !applies {
                continue;
            }
            match chosen.iter_mut().find(|other| other.kind == payload.kind) {
                // `Scope` ascends with how near it is.
                Some(other) if other.scope < payload.scope => *other = payload,
                Some(_) => {}
                None => chosen.push(payload),
            }
        }
        chosen
    }

    fn items(&self, chosen: &[&Payload], values: &Values) -> Result<Vec<Item>, Reason> {
        let mut items = Vec::with_capacity(chosen.len() + 1);
        for payload in chosen {
            let bytes = match &payload.content {
                Content::Bytes(bytes) => bytes.clone(),
                Content::Template(template) => template.render(values).map_err(|error| {
                    Reason::new(
                        "handover.template",
                        error.expected,
                        format!("payload {}: {}", payload.kind, error.found),
                        "docs/OPERATIONS.md, payloads",
                        "declare what is missing for the machine, or take the variable out",
                    )
                })?,
            };
            items.push(Item {
                kind: payload.kind.clone(),
                bytes,
            });
        }
        if let Some(spire) = &self.spire {
            items.push(spire_item(spire));
        }
        if items.len() > SEALED_ITEMS_MAX {
            return Err(refused(&SealError::Count(items.len())));
        }
        Ok(items)
    }
}

fn spire_item(spire: &Spire) -> Item {
    let package = SpirePackage {
        version: 1,
        trust_domain: &spire.trust_domain,
        server_address: &spire.server_address,
        server_port: spire.server_port,
        trust_bundle: &spire.bundle,
    };
    let bytes = serde_json::to_vec(&package).expect("a package is made of strings and numbers");
    Item {
        kind: SPIRE_PACKAGE.to_owned(),
        bytes: Zeroizing::new(bytes),
    }
}

fn digest(item: &Item) -> ItemDigest {
    ItemDigest {
        kind: item.kind.clone(),
        sha256: hex::encode(Sha256::digest(&item.bytes)),
    }
}

fn values(recipient: &Recipient<'_>) -> Values {
    let binding = &recipient.admission.binding;
    Values {
        machine: binding.machine.0.clone(),
        class: binding.class.clone(),
        address: recipient.peer.to_canonical().to_string(),
        serial: binding.serial.clone(),
        disk_serial: binding.disk_serial.clone(),
        port: binding.port.clone(),
    }
}

/// PROTOCOL section 4: a `provision` image alone obtains payloads. A policy that only reports what booted
/// admits others, and those get none.
pub(crate) fn provision_image(admission: &Admission) -> Result<(), Reason> {
    let role = admission.facts.image_role;
    let passed = |row: u8| {
        let mut checks = admission.checks.iter();
        checks.any(|check| check.row == row && check.outcome == Outcome::Passed)
    };
    let (log, boot) = (passed(10), passed(11));
    if role == Some(Role::Provision) && log && boot {
        return Ok(());
    }
    let found = match role {
        None => "no catalogued image".to_owned(),
        Some(role) => format!("role {role:?}, row 10 passed {log}, row 11 passed {boot}"),
    };
    Err(Reason::new(
        "handover.image",
        "a boot that passed rows 10 and 11 with a catalogued image of role provision",
        found.to_ascii_lowercase(),
        "docs/PROTOCOL.md section 4",
        "boot the machine with the gateway's own image",
    ))
}

fn quoted(admission: &Admission) -> Result<[[u8; 32]; 4], Reason> {
    let mut values = [[0; 32]; 4];
    for (slot, pcr) in values.iter_mut().zip(SEALED_PCRS) {
        *slot = *admission.facts.pcrs.get(&pcr).ok_or_else(|| {
            Reason::new(
                "handover.pcrs",
                "PCR 4, 7, 11 and 15 in the quote",
                format!("no PCR {pcr}"),
                "docs/PROTOCOL.md section 6",
                "add it to the registers of the policy",
            )
        })?;
    }
    Ok(values)
}

/// The first EK whose possession this session has proven.
pub fn proven_ek(admission: &Admission) -> Result<(u8, &Public), Reason> {
    let first = admission.proven.first();
    first.map(|(index, ek)| (*index, ek)).ok_or_else(|| {
        Reason::new(
            "handover.ek",
            "an EK whose possession was proven",
            "none",
            "docs/PROTOCOL.md section 6",
            "report this: an admission without activation is a defect",
        )
    })
}

fn refused(error: &SealError) -> Reason {
    let (code, expected, next) = match error {
        SealError::Ek(_) | SealError::Cipher(_) => (
            "handover.ek",
            "an EK that a secret can be wrapped for",
            "report this EK: its template passed",
        ),
        SealError::Count(_) | SealError::Kind(_) | SealError::TooLarge { .. } => (
            "handover.size",
            "payloads within the bounds of one result",
            "make them smaller, or declare fewer for this machine",
        ),
    };
    let source = "docs/PROTOCOL.md section 6";
    Reason::new(code, expected, error.to_string(), source, next)
}

#[cfg(test)]
mod tests;
