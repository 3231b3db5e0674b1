//! What an administrator is shown: plain data, no secret, same words as the ledger.

use serde::{Deserialize, Serialize};

use crate::identity::{EkName, MacAddr, MachineId, UnixMillis};
use crate::reason::Reason;
use crate::walk::Step;

/// One machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineView {
    /// Its name.
    pub machine: MachineId,
    /// State of docs/PROTOCOL.md section 9.
    pub state: String,
    /// Since when.
    pub since: UnixMillis,
    /// EK Names bound to it, or claimed while pending.
    pub ek_names: Vec<EkName>,
    /// Serial the binding requires.
    pub serial: Option<String>,
    /// Disk serial the binding requires.
    pub disk_serial: Option<String>,
    /// Declared switch port.
    pub port: Option<String>,
    /// Class.
    pub class: Option<String>,
    /// Hardware addresses seen; never an identity.
    pub macs: Vec<MacAddr>,
    /// What it is told to boot.
    pub boot: String,
    /// `vendor-chain` or `bare-ek`.
    pub assurance: Option<String>,
    /// The EK certificates it has shown.
    #[serde(default)]
    pub ek_certificates: Vec<EkCertificateView>,
    /// Last verdict's reasons, enforced or reported.
    pub reasons: Vec<Reason>,
    /// End of the last LDevID.
    pub ldevid_not_after: Option<UnixMillis>,
    /// Ledger sequence of its last record.
    pub last_seq: Option<u64>,
    /// For a pending machine: what an owner compares, hex.
    pub report_sha256: Option<String>,
    /// Its way out, where the appliance has a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<MachineGateView>,
    /// Its last installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install: Option<InstallView>,
}

/// The gate, for one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineGateView {
    /// End of its grant; none when it has none.
    pub until: Option<UnixMillis>,
    /// What is open: addresses, destination, ports; or the switch port.
    pub open: Vec<String>,
}

/// The last run of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstallView {
    /// Its id.
    pub run: String,
    /// Name of the disk image.
    pub image: String,
    /// Its version.
    pub version: u64,
    /// Serial number of the disk.
    pub disk_serial: String,
    /// Who asked for it; none when the class allows it.
    pub by: Option<String>,
    /// When it was authorised.
    pub since: UnixMillis,
    /// When it last moved.
    pub moved: UnixMillis,
    /// Boots that got a grant.
    pub boots: u32,
    /// Last step that was reported in the last of them.
    pub step: Option<String>,
    /// The installer's words with it.
    pub detail: Option<String>,
    /// While it lasts: what is waited for, `boot` or a step.
    pub waits_for: Option<String>,
    /// When it is over: `verified`, `failed`, `cancelled` or `timed_out`.
    pub outcome: Option<String>,
    /// Why, unless it is verified.
    pub reason: Option<Reason>,
}

/// One disk image of the catalogue with its rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskView {
    /// The image.
    pub image: boot::catalog::DiskImage,
    /// Lowest version that may be installed.
    pub floor: u64,
    /// Refused from now on.
    pub withdrawn: bool,
}

/// One EK certificate of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EkCertificateView {
    /// SHA-256 of its DER, hex.
    pub sha256: String,
    /// Its issuer; without a chain the issuer that is missing.
    pub issuer: String,
    /// Whether its chain ends in a trusted CA.
    pub chain: bool,
    /// Whether possession of its EK was proven.
    pub proven: bool,
    /// Without a chain: whether it is judged again as soon as the CA arrives; else at its next
    /// attestation.
    pub kept: bool,
}

/// One line of a machine's timeline, from the lease journal or the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEntry {
    /// Wall clock.
    pub at: UnixMillis,
    /// Step of the walk, none for an operator's act.
    pub step: Option<Step>,
    /// `journal` or `ledger`.
    pub source: String,
    /// Ledger sequence.
    pub seq: Option<u64>,
    /// One line.
    pub text: String,
    /// Refusals, if any.
    pub reasons: Vec<Reason>,
}

/// One ledger entry, for reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerView {
    /// Sequence, from 0.
    pub seq: u64,
    /// Wall clock.
    pub at: UnixMillis,
    /// The record.
    pub record: crate::record::Record,
}

/// One artefact of the catalogue with its rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageView {
    /// The artefact.
    pub artefact: boot::catalog::Artefact,
    /// Lowest version that passes.
    pub floor: u64,
    /// Refused from now on.
    pub withdrawn: bool,
}

/// The appliance itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusView {
    /// Name of the appliance.
    pub appliance: String,
    /// `measured` or `development`.
    pub seal: String,
    /// Entries in the ledger.
    pub ledger_entries: u64,
    /// Live sessions.
    pub sessions: u64,
    /// Leases bound now.
    pub leases: u64,
    /// Machines per state.
    pub machines: std::collections::BTreeMap<String, u64>,
    /// Refusals since start, per code.
    pub refusals: std::collections::BTreeMap<String, u64>,
    /// Digest of the policy in force.
    pub policy_sha256: String,
    /// The DHCP server.
    #[serde(default)]
    pub dhcp: DhcpView,
    /// Machines with an EK certificate whose issuer is unknown.
    #[serde(default)]
    pub ek_unmatched: u64,
}

/// The DHCP server in figures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DhcpView {
    /// `server` or `proxy`.
    pub mode: String,
    /// Other DHCP servers heard lately on the segment.
    pub foreign_servers: Vec<ForeignServerView>,
    /// Addresses found in use by somebody before they were offered, since start.
    pub conflicts: u64,
    /// Refused messages since start, per code.
    pub refused: std::collections::BTreeMap<String, u64>,
}

/// Another DHCP server on the segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignServerView {
    /// Its server identifier, option 54.
    pub server: std::net::Ipv4Addr,
    /// Hardware address of its last reply: its own, or the last router's.
    pub mac: MacAddr,
    /// It tells what to boot and gives no address.
    pub proxy: bool,
    /// Address it last gave, if any.
    pub gave: Option<std::net::Ipv4Addr>,
    /// First heard.
    pub first: UnixMillis,
    /// Last heard.
    pub last: UnixMillis,
    /// Replies heard.
    pub replies: u64,
    /// What is wrong about it, in server mode.
    pub reason: Option<Reason>,
}

/// The CAs that EK certificates may chain to, and their revocation lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EkCaList {
    /// Roots first.
    pub certificates: Vec<EkCaView>,
    /// Of the folder of revocation lists.
    pub crls: Vec<EkCrlView>,
}

/// One CA certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EkCaView {
    /// SHA-256 of its DER, hex.
    pub sha256: String,
    /// Its subject.
    pub subject: String,
    /// Its issuer.
    pub issuer: String,
    /// End of its validity.
    pub not_after: String,
    /// The same against the clock.
    pub expiry: Expiry,
    /// `root` or `intermediate`.
    pub role: String,
    /// Whether a chain may end in it.
    pub anchor: bool,
    /// The file it was read from, when it was not imported.
    pub file: Option<String>,
    /// Who imported it, when, where it is said to be from.
    pub imported: Option<String>,
    /// What the owner should know of it.
    pub notes: Vec<String>,
}

/// A validity against the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expiry {
    /// For more than 90 days.
    Valid,
    /// For at most 90 days more.
    Soon,
    /// Over.
    Expired,
}

/// One revocation list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EkCrlView {
    /// Its issuer.
    pub issuer: String,
    /// When it was made.
    pub this_update: String,
    /// When the next one is due.
    pub next_update: Option<String>,
    /// Whether that is over.
    pub stale: bool,
    /// How many certificates it names.
    pub revoked: usize,
    /// Whether a root of the list above signed it.
    pub signer_loaded: bool,
    /// The file.
    pub file: String,
}

/// What came of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EkCaImported {
    /// One for each certificate, in their order.
    pub results: Vec<EkCaResult>,
    /// Machines whose EK certificates are judged again now.
    pub judged_again: usize,
}

/// What came of one certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EkCaResult {
    /// SHA-256 of its DER, hex.
    pub sha256: String,
    /// Its subject, if it could be read.
    pub subject: String,
    /// What was done.
    pub outcome: EkCaOutcome,
    /// `root` or `intermediate`, when it is in the store now.
    pub role: Option<String>,
    /// What the owner should know of it.
    pub notes: Vec<String>,
    /// Why it was refused.
    pub reason: Option<Reason>,
}

/// Taken or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EkCaOutcome {
    /// It is in the ledger.
    Imported,
    /// It was there already; nothing was done.
    Known,
    /// It was not taken.
    Refused,
}

/// EK certificates whose issuer is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EkUnmatchedList {
    /// By issuer.
    pub unmatched: Vec<EkUnmatched>,
    /// Machines that lost their place in the list to newer ones.
    pub dropped: u64,
}

/// An issuer that is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EkUnmatched {
    /// Its name, as the certificates below it say.
    pub issuer: String,
    /// Its key identifier, hex.
    pub issuer_key: Option<String>,
    /// Where its certificate is said to be: to be fetched elsewhere.
    pub ca_issuers: Vec<String>,
    /// Who waits for it.
    pub machines: Vec<EkUnmatchedMachine>,
}

/// A machine whose EK certificate has no chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EkUnmatchedMachine {
    /// The machine or claim.
    pub machine: MachineId,
    /// Its state.
    pub state: String,
    /// Whose certificate it is.
    pub ek_name: EkName,
    /// Whether possession of that EK was proven.
    pub proven: bool,
    /// Serial number of the certificate, hex.
    pub serial: String,
    /// Since when.
    pub since: UnixMillis,
    /// Whether it is judged again as soon as the CA arrives; else at its next attestation.
    pub kept: bool,
    /// Why there is no chain.
    pub reason: Option<Reason>,
}

/// What a verifier of EK certificates, such as SPIRE's `tpm_devid`, is to trust.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EkCaExport {
    /// In order of their SHA-256.
    pub certificates: Vec<EkExportedCa>,
    /// Admitted machines that none of them is for.
    pub without: Vec<WithoutIssuer>,
    /// Of all that are known: those that row 4 takes in no chain, so they are left out.
    pub skipped: Vec<EkSkippedCa>,
}

/// A known CA that an export of all leaves out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EkSkippedCa {
    /// SHA-256 of its DER, hex.
    pub sha256: String,
    /// Its subject.
    pub subject: String,
    /// Why.
    pub why: String,
}

/// One certificate of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EkExportedCa {
    /// SHA-256 of its DER, hex.
    pub sha256: String,
    /// Its subject.
    pub subject: String,
    /// DER in base64.
    pub der: String,
    /// What is odd about its encoding, by the ids of the quirks: a strict reader may refuse it.
    pub quirks: Vec<String>,
    /// Admitted machines whose EK certificate it signed.
    pub machines: Vec<MachineId>,
}

/// An admitted machine whose EK certificate no exported CA signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithoutIssuer {
    /// The machine.
    pub machine: MachineId,
    /// Why.
    pub why: String,
}
