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
    /// Last verdict's reasons, enforced or reported.
    pub reasons: Vec<Reason>,
    /// End of the last LDevID.
    pub ldevid_not_after: Option<UnixMillis>,
    /// Ledger sequence of its last record.
    pub last_seq: Option<u64>,
    /// For a pending machine: what an owner compares, hex.
    pub report_sha256: Option<String>,
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
