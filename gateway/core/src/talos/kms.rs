//! Disk keys of Talos nodes (`sidero.kms.KMSService`): sealed here, kept on the disk, unsealed at each boot
//! as long as the machine is in service. So withdrawing a machine withdraws its disks.
//!
//! The gate is the machine's lifecycle ([`super::node`]), and that is what it is called. It is not
//! attestation: Talos shows a UUID and nothing else, no certificate and no quote. What it gives is that a
//! disk or a whole machine that left the segment, or that was withdrawn, does not open.
//!
//! Sealed form: 12-byte nonce, ciphertext, 16-byte tag, AES-256-GCM. UUID and machine are
//! authenticated: what was sealed for one machine is never unsealed for another. A refusal is a gRPC error
//! and never random bytes, which a node would try on its disk, and whose failure would send the
//! operator looking there. All refusals of the gate look alike to the node, so nobody learns which UUIDs
//! are known.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

use super::node::{self, Caller};
use crate::admission::registry::Registry;
use crate::identity::{MachineId, UnixMillis};
use crate::reason::Reason;
use crate::record::{Record, TalosEvent, TalosRecord};

/// Length of a disk key: Talos draws 32 bytes.
pub const KEY_BYTES: usize = 32;
/// Length of a sealed disk key.
pub const SEALED_BYTES: usize = NONCE_LEN + KEY_BYTES + 16;
/// Calls of one machine in a minute: a boot makes one for each volume, and Talos retries.
const CALLS_MAX: u32 = 60;
/// Calls in a second of everybody who is at no machine's lease: each costs a look through all machines, and
/// none can succeed, so they share a budget of their own and take nothing from the machines.
const STRANGERS_MAX: u32 = 100;
const AAD_LABEL: &[u8] = b"vestibule/talos-disk-key/v1\0";

/// The key that disk keys are sealed under; the shell derives it from the sealed store key.
pub struct Key(Zeroizing<[u8; 32]>);

impl Key {
    /// A key.
    pub fn new(key: [u8; 32]) -> Self {
        Self(Zeroizing::new(key))
    }

    fn cipher(&self) -> Option<LessSafeKey> {
        UnboundKey::new(&AES_256_GCM, &*self.0)
            .map(LessSafeKey::new)
            .ok()
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Seal a new disk key.
    Seal,
    /// Unseal one.
    Unseal,
}

/// One call.
pub struct Call {
    /// What is asked.
    pub operation: Operation,
    /// UUID that the node shows.
    pub node_uuid: String,
    /// Disk key or sealed disk key.
    pub data: Zeroizing<Vec<u8>>,
    /// Address of the node.
    pub peer: IpAddr,
    /// Random.
    pub nonce: [u8; NONCE_LEN],
    /// Finds the call in the log.
    pub correlation: String,
}

/// Status of a refusal, by its name in gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The bytes are not what Talos sends, or were not sealed for this machine.
    InvalidArgument,
    /// The gate.
    PermissionDenied,
    /// Too many calls.
    ResourceExhausted,
}

/// A refusal: the code for the node, the reason for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// For the node.
    pub code: Code,
    /// For the log and the ledger.
    pub reason: Box<Reason>,
}

/// Answer of a call.
pub type Answer = Result<Zeroizing<Vec<u8>>, Refused>;

/// The service's memory; what matters of it is in the ledger.
pub(crate) struct Kms {
    key: Key,
    /// Machines that have sealed a disk key.
    sealed: BTreeSet<MachineId>,
    /// State in which a machine was last refused on record.
    told: BTreeMap<MachineId, String>,
    calls: BTreeMap<MachineId, (UnixMillis, u32)>,
    strangers: (UnixMillis, u32),
}

impl Kms {
    pub fn new(key: Key) -> Self {
        Self {
            key,
            sealed: BTreeSet::new(),
            told: BTreeMap::new(),
            calls: BTreeMap::new(),
            strangers: (UnixMillis(0), 0),
        }
    }

    /// Folds one ledger record in.
    pub fn apply(&mut self, record: &Record) {
        let Record::Talos(record) = record else {
            return;
        };
        match &record.event {
            TalosEvent::DiskKeySealed => {
                self.sealed.insert(record.machine.clone());
            }
            TalosEvent::DiskKeyRefused { state } => {
                self.told.insert(record.machine.clone(), state.clone());
            }
            TalosEvent::CodeIssued { .. }
            | TalosEvent::ConfigApproved
            | TalosEvent::ConfigDelivered
            | TalosEvent::CodeMisused { .. } => {}
        }
    }

    /// Decides one call. The record, if any, is on disk before the answer leaves.
    pub fn handle(
        &mut self,
        now: UnixMillis,
        registry: &Registry,
        caller: &Caller,
        call: &Call,
    ) -> (Answer, Option<TalosRecord>) {
        if let Err(refused) = self.budget(now, registry, caller) {
            return (Err(refused), None);
        }
        let wanted = match call.operation {
            Operation::Seal => KEY_BYTES,
            Operation::Unseal => SEALED_BYTES,
        };
        if call.data.len() != wanted {
            return (Err(wrong_length(wanted, call.data.len())), None);
        }
        let machine = match node::known(registry, &call.node_uuid) {
            Ok(machine) => machine,
            Err(reason) => return (Err(denied(reason)), None),
        };
        // The place before the state: from elsewhere nobody moves the ledger.
        if let Err(reason) = node::at_home(registry, machine, caller)
            && !(machine.state.has_left() && reason.code == "node.address")
        {
            return (Err(denied(reason)), None);
        }
        let record = |event| TalosRecord {
            machine: machine.id.clone(),
            peer: Some(caller.peer),
            event,
        };
        if let Err(reason) = node::in_service(machine) {
            let state = machine.state.name();
            let first = self.sealed.contains(&machine.id)
                && self.told.get(&machine.id).map(String::as_str) != Some(state);
            let state = state.to_owned();
            let event = first.then(|| record(TalosEvent::DiskKeyRefused { state }));
            return (Err(denied(reason)), event);
        }
        self.told.remove(&machine.id);
        let uuid = call.node_uuid.to_ascii_lowercase();
        let aad = [AAD_LABEL, uuid.as_bytes(), b"\0", machine.id.0.as_bytes()].concat();
        match call.operation {
            Operation::Seal => {
                let sealed = self.seal(&aad, &call.data, call.nonce);
                let first = sealed.is_ok() && !self.sealed.contains(&machine.id);
                (sealed, first.then(|| record(TalosEvent::DiskKeySealed)))
            }
            Operation::Unseal => (self.unseal(&aad, &call.data, &machine.id), None),
        }
    }

    /// Counts by where a call comes from, which costs nothing to find: whoever is at a machine's lease has
    /// that machine's budget.
    fn budget(
        &mut self,
        now: UnixMillis,
        registry: &Registry,
        caller: &Caller,
    ) -> Result<(), Refused> {
        let resident = caller.mac.and_then(|mac| registry.by_mac(mac));
        let Some(machine) = resident else {
            let fits = within(&mut self.strangers, now, 1_000, STRANGERS_MAX);
            let refused = || too_many(STRANGERS_MAX, "second", "addresses of no machine");
            return fits.then_some(()).ok_or_else(refused);
        };
        let calls = self.calls.entry(machine.id.clone()).or_insert((now, 0));
        let fits = within(calls, now, 60_000, CALLS_MAX);
        let refused = || too_many(CALLS_MAX, "minute", &machine.id.0);
        fits.then_some(()).ok_or_else(refused)
    }

    fn seal(&self, aad: &[u8], key: &[u8], nonce: [u8; NONCE_LEN]) -> Answer {
        let mut body = Zeroizing::new(Vec::with_capacity(SEALED_BYTES));
        body.extend_from_slice(key);
        let cipher = self.key.cipher().ok_or_else(|| not_ours("seal", None))?;
        let tag = cipher
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(aad),
                &mut body,
            )
            .map_err(|_| not_ours("seal", None))?;
        Ok(Zeroizing::new([&nonce[..], &body, tag.as_ref()].concat()))
    }

    fn unseal(&self, aad: &[u8], sealed: &[u8], machine: &MachineId) -> Answer {
        let wrong = || not_ours("unseal", Some(machine));
        let (nonce, body) = sealed.split_at_checked(NONCE_LEN).ok_or_else(wrong)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| wrong())?;
        let mut body = Zeroizing::new(body.to_vec());
        let cipher = self.key.cipher().ok_or_else(wrong)?;
        let len = cipher
            .open_in_place(nonce, Aad::from(aad), &mut body)
            .map_err(|_| wrong())?
            .len();
        body.truncate(len);
        Ok(body)
    }
}

/// Whether another call fits the window.
fn within(
    (since, count): &mut (UnixMillis, u32),
    now: UnixMillis,
    window_ms: u64,
    max: u32,
) -> bool {
    if now.0.saturating_sub(since.0) >= window_ms {
        (*since, *count) = (now, 0);
    }
    *count = count.saturating_add(1);
    *count <= max
}

fn denied(reason: Reason) -> Refused {
    Refused {
        code: Code::PermissionDenied,
        reason: Box::new(reason),
    }
}

fn too_many(max: u32, unit: &str, of: &str) -> Refused {
    Refused {
        code: Code::ResourceExhausted,
        reason: Box::new(Reason::new(
            "kms.rate",
            format!("at most {max} calls a {unit}"),
            format!("more of {of}"),
            "gateway/core/src/talos/kms.rs",
            "the node tries again by itself; look at one that does not stop",
        )),
    }
}

fn wrong_length(wanted: usize, found: usize) -> Refused {
    Refused {
        code: Code::InvalidArgument,
        reason: Box::new(Reason::new(
            "kms.length",
            format!("{wanted} bytes"),
            format!("{found} bytes"),
            "docs/PROTOCOL.md section 6",
            "the disk was sealed by another KMS, or its token is damaged",
        )),
    }
}

fn not_ours(what: &str, machine: Option<&MachineId>) -> Refused {
    let of = machine.map_or_else(String::new, |machine| format!(" of machine {machine}"));
    Refused {
        code: Code::InvalidArgument,
        reason: Box::new(Reason::new(
            "kms.sealed_elsewhere",
            format!("a disk key{of} that this appliance sealed"),
            format!("the tag does not fit ({what})"),
            "docs/OPERATIONS.md, Talos",
            "the disk is another machine's or another appliance's: open it with its other key slot",
        )),
    }
}
