//! What goes into an appraisal and what comes out: contexts, facts, verdicts.

use std::collections::BTreeMap;

use attest_wire::templates::Template;
use attest_wire::tpm::{Name, Public};
use attest_wire::v1::{self, Hello};
use serde::Serialize;
use zeroize::Zeroizing;

use super::ek::{Assurance, CertId, EkRoots, TimeTrust};
use super::quirks::Quirk;
use super::relay::RelayWord;
use super::table::Check;
use super::{Verified, shown};
use crate::identity::{EkName, MacAddr, MachineId};
use crate::limits;
use crate::policy::{Mode, Policy};
use crate::reason::Reason;
use crate::record;

/// Everything the owner bound to one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The machine.
    pub machine: MachineId,
    /// Whether its state lets it attest now; if not, the `machine.state` reason.
    pub may_attest: Result<(), Reason>,
    /// Serial the SMBIOS must show.
    pub serial: Option<String>,
    /// Serial of the disk it may be installed on.
    pub disk_serial: Option<String>,
    /// Declared switch port, `chassis/port`; several for a LAG, separated by commas.
    pub port: Option<String>,
    /// Class, for the policy.
    pub class: String,
    /// All EK Names bound to it.
    pub ek_names: Vec<EkName>,
    /// TPM counters (reset, restart) of its last accepted quote.
    pub counters: Option<(u32, u32)>,
    /// SHA-256 of what that attempt extended into PCR 15, hex.
    pub boot_mark: Option<String>,
}

/// Who owns which key. The machine registry implements it.
pub trait EkDirectory {
    /// The machine an EK Name is bound to.
    fn owner(&self, ek: &EkName) -> Option<&Binding>;

    /// The machine a hardware address was recorded for at its last admission. Never a proof of
    /// identity: used to refuse a machine that shows another one's address.
    fn mac_owner(&self, mac: MacAddr) -> Option<MachineId> {
        let _ = mac;
        None
    }
}

/// What rows 1 to 6 compare with.
pub struct HelloContext<'a> {
    /// The policy in force.
    pub policy: &'a Policy,
    /// The machine registry.
    pub bindings: &'a dyn EkDirectory,
    /// Trusted certificates for EK chains.
    pub ek_roots: &'a EkRoots,
    /// How far the clock may be believed.
    pub time: TimeTrust,
    /// Which DevID keys the owner takes.
    pub devid: DevIdRules,
}

/// Which DevID keys the owner takes (configuration `devid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DevIdRules {
    /// Only this template; none takes both.
    pub template: Option<Template>,
    /// Whether the authValue must be secret.
    pub secret_auth: bool,
}

/// One artefact of the catalogue and what the owner decided about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogEntry {
    /// The artefact.
    pub artefact: boot::catalog::Artefact,
    /// Lowest version of its name that passes.
    pub floor: u64,
    /// Refused whatever its version.
    pub withdrawn: bool,
}

/// What rows 7 to 14 compare with.
pub struct EvidenceContext<'a> {
    /// The policy in force.
    pub policy: &'a Policy,
    /// The machine registry, for hardware addresses.
    pub bindings: &'a dyn EkDirectory,
    /// Every image that may run on the way to the attester.
    pub catalog: &'a [CatalogEntry],
    /// How far the clock may be believed: a grace of the policy ends.
    pub time: TimeTrust,
    /// Option 82 of the lease that the machine speaks from.
    pub relay: Option<&'a RelayWord>,
}

/// Row 3: whose keys these are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Bound to one machine that may attest now.
    Bound(Box<Binding>),
    /// Unknown; may become a claim, never a certificate.
    Enrolling,
}

/// One endorsement key of a hello that has a known template.
#[derive(Debug, Clone)]
pub struct Ek {
    /// Decoded public area.
    pub public: Public,
    /// Its Name, computed by us.
    pub name: EkName,
    /// The template it follows.
    pub template: Template,
    /// What its certificate is worth.
    pub assurance: Assurance,
}

/// What is known after rows 1 to 6. Still only a claim: nothing is proven yet.
#[derive(Debug, Clone)]
pub struct HelloFacts {
    /// The message.
    pub hello: Hello,
    /// SHA-256 of the body as received.
    pub hello_sha256: [u8; 32],
    /// Its EKs, in the order of the message.
    pub eks: Vec<Ek>,
    /// Indices of the EKs that must be activated.
    pub challenged: Vec<u8>,
    /// Whose they are.
    pub standing: Standing,
    /// The attestation key.
    pub ak: Public,
    /// The DevID.
    pub devid: Public,
    /// Qualified name the DevID must have under the SRK shown.
    pub devid_qualified_name: Name,
    /// PCRs that the policy wants quoted, ascending.
    pub pcrs: Vec<u8>,
    /// Everything to be written down so far.
    pub(super) facts: Facts,
    /// Rows judged so far.
    pub(super) judge: Judge,
}

impl HelloFacts {
    /// The machine, when the EKs are bound.
    pub fn machine(&self) -> Option<&MachineId> {
        match &self.standing {
            Standing::Bound(binding) => Some(&binding.machine),
            Standing::Enrolling => None,
        }
    }

    /// What will be written down.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Rows judged so far.
    pub fn checks(&self) -> &[CheckResult] {
        &self.judge.checks
    }
}

/// A challenge as sent, with what the evidence must match. Secret; never stored.
pub struct Issued {
    /// Session id.
    pub session: [u8; 16],
    /// Nonce.
    pub nonce: [u8; 32],
    /// One secret per challenged EK, in order.
    pub secrets: Vec<Zeroizing<[u8; 32]>>,
    /// The body as sent.
    pub body: Vec<u8>,
    /// What every signature of the session is bound to.
    pub binding: v1::Binding,
}

/// What an appraisal writes down: shown by the node, or computed by us where it says so.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// EK Names; proven once activation has passed.
    pub ek_names: Vec<EkName>,
    /// The same EKs by the SHA-256 of their `SubjectPublicKeyInfo`, hex; only once proven.
    pub ek_keys: Vec<String>,
    /// Name of the AK, hex.
    pub ak_name: String,
    /// Serial the SMBIOS shows.
    pub serial: String,
    /// System UUID shown, in its usual form, if it can name a machine.
    pub node_uuid: Option<String>,
    /// Hardware addresses shown.
    pub macs: Vec<MacAddr>,
    /// Serials of the disks shown.
    pub disks: Vec<String>,
    /// (reset, restart) of the signed clockInfo.
    pub counters: Option<(u32, u32)>,
    /// SHA-256 of what this attempt extended into PCR 15, hex; proven by row 10.
    pub boot_mark: Option<String>,
    /// Quoted PCR values, SHA-256 bank.
    pub pcrs: BTreeMap<u8, [u8; 32]>,
    /// SHA-256 of the catalogued UKI that the boot was matched to, hex.
    pub image_sha256: Option<String>,
    /// Its role.
    pub image_role: Option<boot::catalog::Role>,
    /// Switch port heard of, `chassis/port`; unauthenticated.
    pub port: Option<String>,
    /// What of the writing was overlooked to take it for the declared port.
    pub port_tolerated: Option<String>,
    /// What option 82 of the lease says to it; unauthenticated as well.
    pub port_witness: Option<String>,
    /// `vendor-chain` or `bare-ek`.
    pub assurance: &'static str,
    /// `none` or `secret`, as the measured image said.
    pub devid_auth: &'static str,
    /// Oddities met, by id.
    pub quirks: Vec<&'static str>,
    /// EK certificates that fit their EK, and what their chains are.
    pub ek_certs: Vec<record::EkCertificate>,
    /// CA certificates that came with them and are in no other place.
    pub ek_chain: Vec<record::CarriedCertificate>,
    /// CA certificates of their chains that the store held.
    pub ek_cas: Vec<CertId>,
    /// [`Hello::report_sha256`], hex; what an owner compares.
    pub report_sha256: String,
    /// Digest of the policy in force, hex.
    pub policy_sha256: String,
}

impl Facts {
    /// The port with what was overlooked and what option 82 says, for the receipt.
    fn port_text(&self) -> Option<String> {
        let mut text = self.port.clone()?;
        for more in [&self.port_tolerated, &self.port_witness]
            .into_iter()
            .flatten()
        {
            text = format!("{text}; {more}");
        }
        Some(text)
    }

    pub(super) fn note(&mut self, quirks: &[Quirk]) {
        for quirk in quirks {
            if !self.quirks.contains(&quirk.id()) {
                self.quirks.push(quirk.id());
            }
        }
    }
}

/// Outcome of one row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Passed.
    Passed,
    /// Failed, for these reasons.
    Failed {
        /// At least one.
        reasons: Vec<Reason>,
    },
    /// Nothing to compare with, or a row before it failed.
    NotJudged {
        /// Why.
        why: &'static str,
    },
}

/// One judged row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckResult {
    /// Row number.
    pub row: u8,
    /// Name of the check.
    pub check: &'static str,
    /// `enforce` or `report`.
    pub mode: &'static str,
    /// What came out.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// What was overlooked on the way, such as another way to write the same port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerated: Option<String>,
}

/// Collects the rows of one appraisal.
#[derive(Debug, Clone, Default)]
pub(super) struct Judge {
    pub checks: Vec<CheckResult>,
    /// Failures of enforced rows.
    pub enforced: Vec<Reason>,
    /// Failures of reported rows.
    pub reported: Vec<Reason>,
}

impl Judge {
    /// Writes one row down; the value goes on if the row passed.
    pub fn row<T>(
        &mut self,
        check: Check,
        mode: Mode,
        result: Result<T, Vec<Reason>>,
    ) -> Option<T> {
        let (outcome, value) = match result {
            Ok(value) => (Outcome::Passed, Some(value)),
            Err(mut reasons) => {
                bound(&mut reasons);
                let list = match mode {
                    Mode::Enforce => &mut self.enforced,
                    Mode::Report => &mut self.reported,
                };
                list.extend(reasons.iter().cloned());
                (Outcome::Failed { reasons }, None)
            }
        };
        self.push(check, mode, outcome);
        value
    }

    pub fn skip(&mut self, check: Check, mode: Mode, why: &'static str) {
        self.push(check, mode, Outcome::NotJudged { why });
    }

    fn push(&mut self, check: Check, mode: Mode, outcome: Outcome) {
        self.checks.push(CheckResult {
            row: check.row().number,
            check: check.name(),
            mode: mode.name(),
            outcome,
            tolerated: None,
        });
    }

    /// Adds to the row just written what it passes in spite of.
    pub fn report(&mut self, mut reasons: Vec<Reason>) {
        if reasons.is_empty() {
            return;
        }
        bound(&mut reasons);
        let codes: Vec<String> = reasons
            .iter()
            .map(|reason| format!("{}: {}", reason.code, reason.found))
            .collect();
        self.note(Some(super::shown(&codes.join("; "))));
        self.reported.extend(reasons);
    }

    /// Adds to the row just written what was overlooked.
    pub fn note(&mut self, tolerated: Option<String>) {
        if let Some(row) = self.checks.last_mut() {
            row.tolerated = tolerated;
        }
    }
}

/// A row with many reasons keeps the first of each code and how many more there are: no code is lost,
/// and a record that a node can make larger than the ledger takes would stop the gateway.
fn bound(reasons: &mut Vec<Reason>) {
    if reasons.len() <= limits::REASONS_PER_ROW_MAX {
        return;
    }
    let mut kept: Vec<(Reason, usize)> = Vec::new();
    for reason in reasons.drain(..) {
        match kept.iter_mut().find(|(first, _)| first.code == reason.code) {
            Some((_, more)) => *more += 1,
            None => kept.push((reason, 0)),
        }
    }
    reasons.extend(kept.into_iter().map(|(mut reason, more)| {
        if more > 0 {
            reason.found = format!("{}; {more} more of this code", reason.found);
        }
        reason
    }));
}

/// Everything passed for a bound machine: the only thing a certificate is issued for, and only as
/// [`Verified`].
#[derive(Debug, Clone)]
pub struct Admission {
    /// The machine and what was bound to it.
    pub binding: Binding,
    /// An EK that it proved: the first that was activated.
    pub ek_name: Option<EkName>,
    /// What its attester can take beyond an LDevID.
    pub can: Vec<v1::handover::Ability>,
    /// TPM clock of the quote, in milliseconds.
    pub clock_ms: u64,
    /// The DevID public area that was certified.
    pub devid: Public,
    /// The EKs that were activated, each with its index in the hello.
    pub proven: Vec<(u8, Public)>,
    /// What is written down.
    pub facts: Facts,
    /// Failures of rows in report mode.
    pub reported: Vec<Reason>,
    /// Every row.
    pub checks: Vec<CheckResult>,
    pub(super) _only_here: OnlyHere,
}

/// An unknown machine proved that it holds its keys. Cannot issue; may become a claim.
#[derive(Debug, Clone)]
pub struct PossessionProven {
    /// What is written down.
    pub facts: Facts,
    /// The EKs that were activated, with their public areas.
    pub eks: Vec<Ek>,
    /// What would refuse it, were it enrolled.
    pub would_refuse: Vec<Reason>,
    /// Every row.
    pub checks: Vec<CheckResult>,
    pub(super) _only_here: OnlyHere,
}

/// Keeps a type from being made outside the appraisal.
#[derive(Debug, Clone, Copy)]
pub(super) struct OnlyHere;

/// Not admitted, and why.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// At least one; the first decides the code.
    pub reasons: Vec<Reason>,
    /// Whether possession was proven: until then the wire tells nothing.
    pub activated: bool,
    /// The machine the EKs are bound to, if any.
    pub machine: Option<MachineId>,
    /// What is known; mostly empty when the message was malformed.
    pub facts: Facts,
    /// Every row judged.
    pub checks: Vec<CheckResult>,
}

impl Refusal {
    /// The code for ledger, metrics and, after activation, the node.
    pub fn code(&self) -> &str {
        self.reasons
            .first()
            .map_or("internal", |reason| &reason.code)
    }

    /// What the wire may tell: code and one line for an 80x25 console.
    pub fn told(&self) -> (String, String) {
        match self.reasons.first() {
            Some(reason) if self.activated => (
                reason.code.to_string(),
                shown(&format!(
                    "expected {}, found {}",
                    reason.expected, reason.found
                ))
                .chars()
                .take(78)
                .collect(),
            ),
            _ => (
                "not_admitted".into(),
                "not admitted; see the gateway".into(),
            ),
        }
    }

    /// The ledger record of a refusal after activation.
    pub fn record(&self, seal: &str, correlation: &str) -> record::Verdict {
        verdict(
            self.machine.clone(),
            false,
            &self.facts,
            self.reasons.clone(),
            seal,
            correlation,
        )
    }
}

impl Admission {
    /// The ledger record of an admission.
    pub fn record(&self, seal: &str, correlation: &str) -> record::Verdict {
        verdict(
            Some(self.binding.machine.clone()),
            true,
            &self.facts,
            self.reported.clone(),
            seal,
            correlation,
        )
    }
}

impl PossessionProven {
    /// The ledger record of a claim.
    pub fn record(&self, machine: MachineId, correlation: &str) -> record::Claim {
        record::Claim {
            machine,
            ek_names: self.facts.ek_names.clone(),
            serial: self.facts.serial.clone(),
            macs: self.facts.macs.clone(),
            disks: self.facts.disks.clone(),
            port: self.facts.port.clone(),
            assurance: self.facts.assurance.into(),
            report_sha256: self.facts.report_sha256.clone(),
            would_refuse: self.would_refuse.clone(),
            correlation: correlation.into(),
        }
    }
}

fn verdict(
    machine: Option<MachineId>,
    admitted: bool,
    facts: &Facts,
    reasons: Vec<Reason>,
    seal: &str,
    correlation: &str,
) -> record::Verdict {
    record::Verdict {
        machine,
        admitted,
        ek_names: facts.ek_names.clone(),
        ak_name: facts.ak_name.clone(),
        macs: facts.macs.clone(),
        node_uuid: facts.node_uuid.clone(),
        counters: facts.counters,
        boot_mark: facts.boot_mark.clone(),
        image_sha256: facts.image_sha256.clone(),
        port: facts.port_text(),
        assurance: facts.assurance.into(),
        devid_auth: facts.devid_auth.into(),
        seal: seal.into(),
        reasons,
        policy_sha256: facts.policy_sha256.clone(),
        correlation: correlation.into(),
        ek_keys: facts
            .ek_keys
            .iter()
            .map(|sha256| record::EkKey {
                ek_cert_key_sha256: sha256.clone(),
            })
            .collect(),
    }
}

/// What came out of rows 7 to 14.
#[derive(Debug, Clone)]
pub enum Appraisal {
    /// A bound machine passed.
    Admitted(Box<Verified<Admission>>),
    /// An unknown machine proved possession.
    Possession(Box<PossessionProven>),
    /// Refused.
    Refused(Box<Refusal>),
}

impl Appraisal {
    /// What is written down, whatever came out.
    pub fn facts(&self) -> &Facts {
        match self {
            Self::Admitted(admission) => &admission.facts,
            Self::Possession(proven) => &proven.facts,
            Self::Refused(refusal) => &refusal.facts,
        }
    }
}
