//! What is written down: the records of the signed ledger and of the lease journal.
//!
//! A ledger record is one decision. Its canonical bytes are the JSON that `serde_json` writes for
//! these structs (field order as declared). A journal record is working state: leases and walk
//! marks, unsigned and compacted. Neither holds a secret.

use attest_wire::v1::handover::ItemDigest;
use serde::{Deserialize, Serialize};

use crate::identity::{EkName, MacAddr, MachineId, UnixMillis};
use crate::reason::Reason;
use crate::walk::Step;

/// One decision, kept for ever in the signed ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Record {
    /// The ledger begins: which appliance, which seal.
    Genesis(Genesis),
    /// An unknown machine proved possession of its keys and waits for an owner.
    Claim(Claim),
    /// An owner or operator acted.
    Operator(OperatorAct),
    /// A complete appraisal, admitted or refused after activation.
    Verdict(Verdict),
    /// Refusals before activation, summed per code and ingress port.
    RefusalSummary(RefusalSummary),
    /// A certificate was issued.
    Certificate(Certificate),
    /// What is known of a machine's EK certificates has changed.
    EkCertificates(EkCertificates),
    /// The counter of the appliance's TPM moves on: everything up to here is there for good.
    Anchor(Anchor),
    /// Payloads were sealed for a machine.
    Delivery(Delivery),
    /// Another appraisal policy than before is in force from here on.
    Policy(PolicyInForce),
    /// The oldest segments of the ledger are removed; a signed base stands for them.
    Pruned(Pruned),
    /// The gate to the uplink opened or closed for a machine.
    Gate(GateChange),
    /// SPIRE is about to be told something; written before the call, so a crash between the two leaves
    /// the record and the next round the deed.
    Bridge(Bridge),
    /// An installation was authorised.
    Run(Run),
    /// A boot got leave to install.
    Grant(Grant),
    /// An installer reported, signed by its DevID.
    Progress(InstallProgress),
    /// An installation is over.
    RunEnd(RunEnd),
    /// A node that runs Talos got or was refused something.
    Talos(TalosRecord),
}

/// What another system is told of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bridge {
    /// The machine; none for what belongs to a machine that nobody knows any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
    /// What is done.
    pub what: BridgeAct,
    /// Ids of entries, or paths of agents. EKs are not named here: their hashes stand in the verdict.
    pub ids: Vec<String>,
}

/// What is done at the other system, in the order in which it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BridgeAct {
    /// A registration entry is deleted.
    EntryDelete,
    /// An agent is banned.
    AgentBan,
    /// A registration entry is made.
    EntryCreate,
    /// A registration entry is changed.
    EntryUpdate,
    /// An agent that attested with an older LDevID is deleted.
    AgentDelete,
    /// The files of the machine's EKs are laid into the folder of EK hashes.
    EkHashAdd,
    /// The files of the machine's EKs are removed from it.
    EkHashRemove,
}

impl BridgeAct {
    /// Name in the ledger, the log and the timeline.
    pub fn name(self) -> &'static str {
        match self {
            Self::EntryCreate => "entry_create",
            Self::EntryUpdate => "entry_update",
            Self::EntryDelete => "entry_delete",
            Self::AgentBan => "agent_ban",
            Self::AgentDelete => "agent_delete",
            Self::EkHashAdd => "ek_hash_add",
            Self::EkHashRemove => "ek_hash_remove",
        }
    }
}

/// What may be written to which disk of which machine, until it is verified or given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// 16 bytes in hex.
    pub run: String,
    /// The machine.
    pub machine: MachineId,
    /// Its class when the run began.
    pub class: String,
    /// Name of the disk image.
    pub image: String,
    /// Its version.
    pub version: u64,
    /// SHA-256 of its file, hex.
    pub image_sha256: String,
    /// Size of that file, in bytes.
    pub image_bytes: u64,
    /// `none` or `zstd`.
    pub compression: String,
    /// SHA-256 of what is written, hex.
    pub raw_sha256: String,
    /// Size of that in bytes.
    pub raw_bytes: u64,
    /// Serial number of the disk.
    pub disk_serial: String,
    /// The owner who asked for it; none when the class allows it by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Leave to install in one boot of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// 16 random bytes in hex.
    pub grant: String,
    /// The run.
    pub run: String,
    /// The machine.
    pub machine: MachineId,
    /// Which boot of the run it is, from 1.
    pub attempt: u32,
    /// Name of an EK that it proved.
    pub ek_name: EkName,
    /// `resetCount` of its quote.
    pub reset: u32,
    /// `restartCount` of its quote.
    pub restart: u32,
    /// TPM clock after which nothing may be begun, in milliseconds.
    pub clock_max_ms: u64,
    /// The same by our clock.
    pub expires: UnixMillis,
    /// Address it attested from and may fetch the image from.
    pub addr: std::net::IpAddr,
    /// `TPMT_PUBLIC` of the DevID that signs its reports, hex.
    pub devid_pub: String,
    /// 32 random bytes in hex.
    pub nonce: String,
    /// An earlier boot may have written everything: the disk is read before it is written.
    pub reread: bool,
    /// The verdict's correlation id.
    pub correlation: String,
}

/// One report of an installer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstallProgress {
    /// The run.
    pub run: String,
    /// The grant.
    pub grant: String,
    /// The machine.
    pub machine: MachineId,
    /// Its number within the grant.
    pub seq: u32,
    /// What has ended.
    pub step: attest_wire::v1::handover::InstallStep,
    /// Digest that belongs to it, hex; may be empty.
    pub sha256: String,
    /// The installer's words.
    pub detail: String,
    /// SHA-256 of the body that was signed, hex.
    pub body_sha256: String,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunEnd {
    /// The run.
    pub run: String,
    /// The machine.
    pub machine: MachineId,
    /// How.
    pub outcome: RunOutcome,
    /// Why, unless it is verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The administrator whose act ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// The ends of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// The disk was read back and is what was granted.
    Verified,
    /// It stopped, and waits for an owner.
    Failed,
    /// An administrator ended it.
    Cancelled,
    /// Nothing was heard for too long.
    TimedOut,
}

impl RunOutcome {
    /// Name for API and page.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
        }
    }
}

/// Longest policy whose text is kept with its digest, in bytes: far above what a person writes, and far
/// below what a record may have.
pub const POLICY_TEXT_MAX_BYTES: usize = 64 * 1024;

/// The policy that verdicts name by its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyInForce {
    /// SHA-256 of its text, hex.
    pub sha256: String,
    /// The text; none above [`POLICY_TEXT_MAX_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// What is left of segments that are older than the retention rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pruned {
    /// First segment that is kept.
    pub first_segment: u64,
    /// Sequence of its first entry.
    pub first_seq: u64,
    /// Segments that were removed.
    pub segments: u64,
    /// Entries of them that the base carries.
    pub carried: u64,
    /// SHA-256 of the base's manifest, hex.
    pub base_sha256: String,
    /// The rule: entries younger than this many days are kept.
    pub keep_days: u32,
}

/// The way out of one machine: granted by an admission, or taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateChange {
    /// The machine.
    pub machine: MachineId,
    /// Which of both.
    pub change: GateAct,
    /// Why.
    pub cause: GateCause,
    /// The hardware address that it attested by, where the gate goes by addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// End of the grant; none when it is taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMillis>,
    /// How many elements that opened or closed. Leases change it later without a record.
    pub elements: u64,
}

/// What became of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateAct {
    /// Granted, or granted anew.
    Opened,
    /// Taken back.
    Closed,
}

/// Why it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateCause {
    /// The machine was admitted.
    Admitted,
    /// It was admitted from a hardware address that is not known to be its own.
    Moved,
    /// It proved its keys and was refused.
    Refused,
    /// Its state does not pass any more: cordoned, withdrawn, retired, replaced.
    State,
    /// Its time or its LDevID's ran out.
    Expired,
}

impl GateCause {
    /// As in the ledger.
    pub fn name(self) -> &'static str {
        match self {
            GateCause::Admitted => "admitted",
            GateCause::Moved => "moved",
            GateCause::Refused => "refused",
            GateCause::State => "state",
            GateCause::Expired => "expired",
        }
    }
}

/// What a node that runs Talos got or was refused. Never a key or a code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TalosRecord {
    /// The machine.
    pub machine: MachineId,
    /// Where the request came from; none when an administrator asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<std::net::IpAddr>,
    /// What happened.
    pub event: TalosEvent,
}

/// See [`TalosRecord`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case", deny_unknown_fields)]
pub enum TalosEvent {
    /// Its first disk key was sealed; from here on the KMS is needed at each boot.
    DiskKeySealed,
    /// A disk key was not unsealed because of the machine's state; once for each state.
    DiskKeyRefused {
        /// The state.
        state: String,
    },
    /// A one-time code for the device flow was made.
    CodeIssued {
        /// End of its window.
        until: UnixMillis,
    },
    /// The device flow was approved by that code.
    ConfigApproved,
    /// The machine config was handed out.
    ConfigDelivered,
    /// The code was shown a second time, or from another place; the machine is withdrawn.
    CodeMisused {
        /// Which of them.
        how: String,
    },
}

impl TalosEvent {
    /// For timelines.
    pub fn text(&self) -> String {
        match self {
            TalosEvent::DiskKeySealed => "first disk key sealed".to_owned(),
            TalosEvent::DiskKeyRefused { state } => format!("disk key refused: {state}"),
            TalosEvent::CodeIssued { .. } => "one-time code for the machine config made".to_owned(),
            TalosEvent::ConfigApproved => "device flow approved".to_owned(),
            TalosEvent::ConfigDelivered => "machine config delivered".to_owned(),
            TalosEvent::CodeMisused { how } => format!("one-time code misused: {how}"),
        }
    }
}

/// Payloads on their way to an admitted machine; written before they leave. Digests, never contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivery {
    /// The machine.
    pub machine: MachineId,
    /// The verdict's correlation id.
    pub correlation: String,
    /// Kind and SHA-256 of each plaintext.
    pub items: Vec<ItemDigest>,
    /// The EK that they are wrapped for.
    pub ek_name: EkName,
    /// Name of the wrapped secret, hex: it covers the PCR policy.
    pub object_name: String,
}

/// A value of the counter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchor {
    /// What the counter says once this record is on disk.
    pub counter: u64,
}

/// First record of a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Genesis {
    /// Name of this appliance.
    pub appliance: String,
    /// `measured` or `development`.
    pub seal: String,
    /// SHA-256 of the infra CA certificate (DER), hex.
    pub infra_ca_sha256: String,
}

/// A machine that proved possession and is bound to nothing yet. Never called attested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The name it would get.
    pub machine: MachineId,
    /// All EK Names it proved.
    pub ek_names: Vec<EkName>,
    /// SMBIOS serial it claims.
    pub serial: String,
    /// Hardware addresses it claims.
    pub macs: Vec<MacAddr>,
    /// Serials of the disks it claims.
    pub disks: Vec<String>,
    /// Switch port it was heard on, if any: `chassis/port`.
    pub port: Option<String>,
    /// `vendor-chain` or `bare-ek`.
    pub assurance: String,
    /// SHA-256 over hello and evidence bodies, hex; what an owner compares.
    pub report_sha256: String,
    /// Checks that would have refused an enrolled machine.
    pub would_refuse: Vec<Reason>,
    /// Finds the attempt in the log.
    pub correlation: String,
}

/// What an authenticated administrator did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorAct {
    /// Subject CN of the client certificate.
    pub by: String,
    /// Role of that certificate.
    pub role: String,
    /// What was done.
    pub act: Act,
}

/// The acts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum Act {
    /// The owner's certificate was handed out.
    ClaimAppliance,
    /// The owner takes this ledger for the right one although the counter says that records are
    /// missing: a restored backup.
    AdoptLedger {
        /// Value of the last anchor in it.
        anchored: u64,
        /// Value of the counter.
        counter: u64,
        /// Why, in the owner's words.
        why: String,
    },
    /// A pending claim became a machine.
    Approve {
        /// The machine.
        machine: MachineId,
        /// EK Names now bound to it.
        ek_names: Vec<EkName>,
        /// Serial the binding requires.
        serial: String,
        /// Disk serial the binding requires, if declared.
        disk_serial: Option<String>,
        /// Switch port declared for it.
        port: Option<String>,
        /// Class.
        class: String,
        /// How the report digest was compared (`console`, `exported-report`, `none`).
        compared: String,
    },
    /// The machine may not be admitted until uncordoned.
    Cordon {
        /// The machine.
        machine: MachineId,
    },
    /// Undo of cordon.
    Uncordon {
        /// The machine.
        machine: MachineId,
    },
    /// The owner states that the machine is installed: its local disk boots.
    MarkInstalled {
        /// The machine.
        machine: MachineId,
    },
    /// The machine's access ends.
    Withdraw {
        /// The machine.
        machine: MachineId,
        /// Why, in the operator's words.
        why: String,
    },
    /// The machine leaves the fleet.
    Retire {
        /// The machine.
        machine: MachineId,
    },
    /// An image entered the catalogue.
    ImageAdd {
        /// SHA-256 of the artefact, hex.
        sha256: String,
        /// Its name.
        name: String,
        /// Its version.
        version: u64,
    },
    /// The oldest acceptable version of an image was raised.
    ImageFloor {
        /// Image name.
        name: String,
        /// Lowest version that passes from now on.
        floor: u64,
    },
    /// An image is refused from now on.
    ImageWithdraw {
        /// SHA-256 of the artefact, hex.
        sha256: String,
    },
    /// A CA certificate was taken for EK chains.
    EkCaImport {
        /// SHA-256 of its DER, hex.
        sha256: String,
        /// Its subject.
        subject: String,
        /// `root`: a chain may end in it; `intermediate`: a chain may go through it.
        role: String,
        /// Where the owner has it from, in the owner's words.
        source: String,
        /// The certificate, DER in base64: a restart and an auditor need no other file.
        der: String,
    },
    /// A secret of the owner was sealed to a machine's EK, for tools of its own system.
    SealSecret {
        /// The machine.
        machine: MachineId,
        /// What the owner calls it.
        payload: String,
        /// Whether it is bound to the PCR values of the last admission.
        pcrs: bool,
        /// The EK.
        ek_name: EkName,
        /// Name of the wrapped secret, hex.
        object_name: String,
    },
    /// An imported CA certificate was taken out.
    EkCaRemove {
        /// SHA-256 of its DER, hex.
        sha256: String,
        /// Its subject.
        subject: String,
        /// Why, in the owner's words.
        why: String,
    },
}

impl Act {
    /// The machine that it is about, if it is about one.
    pub fn machine(&self) -> Option<&MachineId> {
        match self {
            Act::Approve { machine, .. }
            | Act::Cordon { machine }
            | Act::Uncordon { machine }
            | Act::MarkInstalled { machine }
            | Act::Withdraw { machine, .. }
            | Act::SealSecret { machine, .. }
            | Act::Retire { machine } => Some(machine),
            Act::ClaimAppliance
            | Act::AdoptLedger { .. }
            | Act::ImageAdd { .. }
            | Act::ImageFloor { .. }
            | Act::ImageWithdraw { .. }
            | Act::EkCaImport { .. }
            | Act::EkCaRemove { .. } => None,
        }
    }
}

/// The EK certificates of a machine that proved possession of its keys, and what their chains are.
/// Written when that differs from what is on record, so not with every attestation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EkCertificates {
    /// The machine or claim.
    pub machine: MachineId,
    /// What led to it.
    pub cause: EkCause,
    /// `vendor-chain` or `bare-ek`, after it.
    pub assurance: String,
    /// All that fit their EK, in the order they were shown.
    pub certs: Vec<EkCertificate>,
    /// Certificates that came with them and are in no other place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<CarriedCertificate>,
    /// What is not known of the revocation of a chain that was found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Reason>,
}

/// Why EK certificates were judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EkCause {
    /// The machine attested.
    Attestation,
    /// A CA arrived, by import or at a start.
    CaArrived,
}

/// One EK certificate. What singles out a TPM has keys that begin with `ek_cert_`: an export of the
/// ledger hides their values, as it hides TPM Names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EkCertificate {
    /// Whose it is.
    pub ek_name: EkName,
    /// Whether possession of that EK was proven; the others of the same TPM were only shown.
    pub proven: bool,
    /// SHA-256 of its DER, hex.
    pub ek_cert_sha256: String,
    /// Its serial number, hex.
    pub ek_cert_serial: String,
    /// SHA-256 of the CA certificates above it, direct issuer first, anchor last; empty without a
    /// chain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<String>,
    /// Its issuer; without a chain the issuer that is missing.
    pub issuer: String,
    /// Key identifier of that issuer, hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer_key: Option<String>,
    /// Where the certificate of that issuer is said to be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ca_issuers: Vec<String>,
    /// Why there is no chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The certificate, DER in base64, while it has no chain. Absent when it is on record already,
    /// or too large to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ek_cert_der: Option<String>,
}

/// A CA certificate that a machine brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CarriedCertificate {
    /// DER in base64. Some vendors make a CA for each die, so it is hidden like the EK's own.
    pub ek_cert_der: String,
}

/// A whole appraisal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// The machine the EKs are bound to, if any.
    pub machine: Option<MachineId>,
    /// Passed or not.
    pub admitted: bool,
    /// EK Names shown.
    pub ek_names: Vec<EkName>,
    /// Name of the AK, hex.
    pub ak_name: String,
    /// Hardware addresses shown; recorded, never trusted.
    pub macs: Vec<MacAddr>,
    /// System UUID shown, where it is one: what a Talos node calls itself by. Recorded, never trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_uuid: Option<String>,
    /// TPM counters of the quote: reset, restart.
    pub counters: Option<(u32, u32)>,
    /// SHA-256 of what this attempt left in PCR 15, hex, where the quote proves it: the next attempt of
    /// the same boot has it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_mark: Option<String>,
    /// Catalogue entry that the boot was matched to, hex digest.
    pub image_sha256: Option<String>,
    /// Switch port and how strong that evidence is.
    pub port: Option<String>,
    /// `vendor-chain` or `bare-ek`.
    pub assurance: String,
    /// `none` or `secret`: how the DevID's authValue was made.
    pub devid_auth: String,
    /// `measured` or `development`: how the appliance's own key is sealed.
    pub seal: String,
    /// Everything that failed, enforced or only reported.
    pub reasons: Vec<Reason>,
    /// Digest of the policy in force, hex.
    pub policy_sha256: String,
    /// Finds the attempt in the log.
    pub correlation: String,
    /// The EKs that the attempt proved possession of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ek_keys: Vec<EkKey>,
}

/// An EK by the hash that SPIRE's plugin `tpm` knows it by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EkKey {
    /// SHA-256 of its `SubjectPublicKeyInfo` (DER), hex. It singles out a TPM, so the key begins with
    /// `ek_cert_`: see [`EkCertificate`].
    pub ek_cert_key_sha256: String,
}

/// Refusals of unproven nodes, in sum: made-up keys must not buy signed records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusalSummary {
    /// Ingress, `interface` or `relay/circuit`.
    pub ingress: String,
    /// How many in this minute.
    pub count: u64,
    /// The last one, in full.
    pub last: Reason,
    /// Its correlation id.
    pub correlation: String,
}

/// One issued certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// For whom; none for the appliance's own.
    pub machine: Option<MachineId>,
    /// `ldevid`, `attest`, `receipt`, `admin`, `boot`.
    pub profile: String,
    /// Serial number, hex.
    pub serial: String,
    /// SHA-256 of the DER, hex.
    pub sha256: String,
    /// SHA-1 of the DER of an LDevID, hex: SPIRE names its agent by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha1: Option<String>,
    /// Subject CN.
    pub subject_cn: String,
    /// End of validity.
    pub not_after: UnixMillis,
    /// The verdict's correlation id, for an LDevID.
    pub correlation: Option<String>,
}

/// One entry of the lease journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum JournalRecord {
    /// A lease was granted, renewed, released or declined.
    Lease(LeaseRecord),
    /// The same of a DHCPv6 lease. Since journal version 2.
    Lease6(Lease6Record),
    /// A machine reached a step of the walk.
    Mark(Mark),
}

/// One DHCPv4 lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseRecord {
    /// The address.
    pub addr: std::net::Ipv4Addr,
    /// Client key: hex of option 61, or of htype and chaddr (RFC 2131 section 4.2).
    pub client: String,
    /// Hardware address.
    pub mac: MacAddr,
    /// `bound`, `released` or `declined`.
    pub state: String,
    /// End of the lease.
    pub expires: UnixMillis,
    /// The switch port that option 82 named, `GIADDR/CIRCUIT/REMOTE` with the ids in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

/// One DHCPv6 lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease6Record {
    /// The address.
    pub addr: std::net::Ipv6Addr,
    /// DUID, hex (RFC 8415 section 11).
    pub duid: String,
    /// Identity association.
    pub iaid: u32,
    /// Hardware address the client was seen with, if any.
    pub mac: Option<MacAddr>,
    /// `bound`, `released` or `declined`.
    pub state: String,
    /// End of the lease.
    pub expires: UnixMillis,
}

/// A machine reached a step. The last mark per MAC and step is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Hardware address the step was seen from, all zero when none applies.
    pub mac: MacAddr,
    /// The machine, once known.
    pub machine: Option<MachineId>,
    /// The step.
    pub step: Step,
    /// Wall clock.
    pub at: UnixMillis,
    /// For the operator: file name, address, correlation id.
    pub detail: String,
}
