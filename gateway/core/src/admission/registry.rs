//! All machines, as the ledger proves them.
//!
//! `apply` folds one ledger record into memory; it is the only way a binding changes, at start
//! (replay) and while running alike, so what a restart sees is what was there before.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use attest_wire::v1::handover::InstallStep;

use super::ek_certs::EkOnRecord;
use super::event::Event;
use super::machine::{State, Unfit};
use crate::appraisal::{Binding, EkDirectory};
use crate::identity::{EkName, MacAddr, MachineId, UnixMillis};
use crate::inventory::Inventory;
use crate::limits;
use crate::reason::Reason;
use crate::record::{Act, Claim, EkKey, GateAct, Mark, OperatorAct, Record, RunOutcome};
use crate::spire;
use crate::view::{MachineView, TimelineEntry};
use crate::walk::Step;

/// One machine.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its name.
    pub id: MachineId,
    /// Where it stands.
    pub state: State,
    /// Since when.
    pub since: UnixMillis,
    /// What its keys must match; none while pending.
    pub binding: Option<Binding>,
    /// What it claimed before it was bound.
    pub claim: Option<Claim>,
    /// When that claim was written down.
    pub claimed_at: UnixMillis,
    /// Hardware addresses it was seen with.
    pub macs: BTreeSet<MacAddr>,
    /// System UUID of its last admission.
    pub node_uuid: Option<String>,
    /// `vendor-chain` or `bare-ek`.
    pub assurance: Option<String>,
    /// The EK certificates it has shown, once it had proven its keys.
    pub ek: Option<EkOnRecord>,
    /// Reasons of the last verdict.
    pub reasons: Vec<Reason>,
    /// Ledger sequence of its last record.
    pub last_seq: Option<u64>,
    /// When its last certificates were issued, oldest first.
    issued: VecDeque<UnixMillis>,
    /// SHA-1 of its newest LDevID, hex, if it ever had one and that is on record.
    leaf_sha1: Option<String>,
    /// Its EKs by the SHA-256 of their `SubjectPublicKeyInfo`, hex: as last admitted, and before.
    ek_keys: BTreeSet<String>,
    ek_keys_before: BTreeSet<String>,
    /// Whether it was ever admitted: only then are its hardware addresses its own.
    pub(crate) admitted: bool,
    timeline: VecDeque<TimelineEntry>,
}

/// Which machine an EK is bound to. Shared with the appraisal workers, copied on write.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    by_ek: BTreeMap<EkName, Arc<Binding>>,
    by_mac: BTreeMap<MacAddr, MachineId>,
}

impl EkDirectory for Directory {
    fn owner(&self, ek: &EkName) -> Option<&Binding> {
        self.by_ek.get(ek).map(Arc::as_ref)
    }

    fn mac_owner(&self, mac: MacAddr) -> Option<MachineId> {
        self.by_mac.get(&mac).cloned()
    }
}

/// All machines.
#[derive(Debug, Default)]
pub struct Registry {
    pub(super) machines: BTreeMap<MachineId, Machine>,
    directory: Arc<Directory>,
    by_mac: HashMap<MacAddr, MachineId>,
    /// EKs that two machines are bound to: neither may use them.
    shared: BTreeSet<EkName>,
    /// EKs of claims that an owner rejected.
    rejected: BTreeSet<EkName>,
    walkers: HashMap<MacAddr, BTreeMap<Step, Mark>>,
    /// The same addresses by their newest mark: a fleet larger than the bound forgets one for each
    /// that it meets.
    walkers_by_age: BTreeSet<(UnixMillis, MacAddr)>,
    /// Machines whose EK certificates have no chain, in the order they were met.
    pub(super) ek_unmatched: VecDeque<MachineId>,
    pub(super) ek_unmatched_dropped: u64,
    unfit: VecDeque<(UnixMillis, MachineId, Unfit)>,
    unfit_total: u64,
    newest: UnixMillis,
}

impl Registry {
    /// The latest time that a ledger record has: it is not earlier now, whatever the clock says.
    pub fn newest(&self) -> UnixMillis {
        self.newest
    }

    /// Machines declared by the inventory, before the ledger is replayed: a verdict or withdrawal of
    /// a declared machine needs the machine. A binding that the ledger approves wins over the
    /// inventory's.
    pub fn declare<'r>(
        &mut self,
        inventory: &Inventory,
        ledger: impl Iterator<Item = &'r Record>,
        now: UnixMillis,
    ) {
        let approved: BTreeSet<&MachineId> = ledger
            .filter_map(|record| match record {
                Record::Operator(OperatorAct {
                    act: Act::Approve { machine, .. },
                    ..
                }) => Some(machine),
                _ => None,
            })
            .collect();
        for declared in &inventory.machines {
            if declared.ek_names.is_empty() || approved.contains(&declared.id) {
                continue;
            }
            let binding = Binding {
                machine: declared.id.clone(),
                may_attest: Ok(()),
                serial: Some(declared.serial.clone()),
                disk_serial: declared.disk_serial.clone(),
                port: declared.port.clone(),
                class: declared.class.clone(),
                ek_names: declared.ek_names.clone(),
                counters: None,
                boot_mark: None,
            };
            let mut machine = Machine::new(declared.id.clone(), State::Declared, now);
            machine.binding = Some(binding);
            self.machines.insert(declared.id.clone(), machine);
            self.bind(&declared.id);
        }
    }

    /// The EK directory as it is now.
    pub fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.directory)
    }

    /// One machine.
    pub fn get(&self, id: &MachineId) -> Option<&Machine> {
        self.machines.get(id)
    }

    /// All machines, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values()
    }

    /// The machine last admitted (or claimed) with this hardware address.
    pub fn by_mac(&self, mac: MacAddr) -> Option<&Machine> {
        self.by_mac.get(&mac).and_then(|id| self.machines.get(id))
    }

    /// Whether a claim with these keys may have the name: nobody has it, the same TPM waits under it
    /// (all keys of a claim are proven, so one in common is enough), or the claim that had it was
    /// rejected.
    pub fn may_claim(&self, id: &MachineId, keys: &[EkName]) -> bool {
        self.machines.get(id).is_none_or(|machine| {
            machine.binding.is_none()
                && match &machine.claim {
                    Some(old) if machine.state == State::Pending => {
                        old.ek_names.iter().any(|ek| keys.contains(ek))
                    }
                    _ => matches!(machine.state, State::Withdrawn { .. }),
                }
        })
    }

    /// Whether an owner has rejected a claim with one of these keys.
    pub fn was_rejected(&self, keys: &[EkName]) -> bool {
        keys.iter().any(|ek| self.rejected.contains(ek))
    }

    /// Another pending claim for the same serial, by other keys.
    pub fn rival_claim(&self, claim: &Claim) -> Option<&Machine> {
        self.pending().find(|machine| {
            machine.id != claim.machine
                && machine
                    .claim
                    .as_ref()
                    .is_some_and(|other| other.serial.eq_ignore_ascii_case(&claim.serial))
        })
    }

    /// What SPIRE is to know of the machines that were ever issued an LDevID.
    pub fn spire_machines(&self) -> Vec<spire::Machine> {
        let issued = self.machines.values().filter(|m| !m.issued.is_empty());
        issued
            .map(|machine| spire::Machine {
                id: machine.id.clone(),
                class: (machine.binding.as_ref()).map_or_else(String::new, |b| b.class.clone()),
                left: machine.state.has_left(),
                leaf_sha1: machine.leaf_sha1.clone(),
            })
            .collect()
    }

    /// The EKs of the machines that were ever admitted.
    pub fn ek_hashes(&self) -> Vec<spire::EkHashes> {
        let admitted = self.machines.values().filter(|m| m.admitted);
        admitted
            .map(|machine| spire::EkHashes {
                id: machine.id.clone(),
                left: machine.state.has_left(),
                now: machine.ek_keys.clone(),
                before: machine.ek_keys_before.clone(),
            })
            .collect()
    }

    /// Pending claims.
    pub fn pending(&self) -> impl Iterator<Item = &Machine> {
        self.machines.values().filter(|m| m.state == State::Pending)
    }

    /// Events that did not fit, newest last, and how many there were in all.
    pub fn unfit(&self) -> (&VecDeque<(UnixMillis, MachineId, Unfit)>, u64) {
        (&self.unfit, self.unfit_total)
    }

    /// Moves one machine. An event that does not fit changes nothing, is counted and kept.
    ///
    /// # Errors
    /// [`Unfit`], also when there is no such machine (state `unknown`).
    pub fn event(&mut self, at: UnixMillis, id: &MachineId, event: &Event) -> Result<(), Unfit> {
        let Some(machine) = self.machines.get_mut(id) else {
            return Err(Unfit {
                state: "unknown",
                event: event.name(),
            });
        };
        match machine.state.next(event) {
            Ok(state) => {
                if state.name() != machine.state.name() {
                    machine.since = at;
                }
                let allowed = machine.state.may_attest();
                machine.state = state;
                if machine.state.may_attest() != allowed {
                    self.bind(id);
                }
                Ok(())
            }
            Err(unfit) => {
                self.unfit_total += 1;
                if self.unfit.len() == limits::UNFIT_MAX {
                    self.unfit.pop_front();
                }
                self.unfit.push_back((at, id.clone(), unfit.clone()));
                Err(unfit)
            }
        }
    }

    /// Folds one ledger record in. Records that name no machine change nothing here.
    pub fn apply(&mut self, seq: u64, at: UnixMillis, record: &Record) {
        self.newest = self.newest.max(at);
        match record {
            Record::Claim(claim) => self.apply_claim(seq, at, claim),
            Record::Operator(act) => self.apply_act(seq, at, &act.act, &act.by),
            Record::Verdict(verdict) => {
                let Some(id) = &verdict.machine else { return };
                let Some(machine) = self.machines.get_mut(id) else {
                    return;
                };
                machine.reasons = verdict.reasons.clone();
                let text = if verdict.admitted {
                    format!("admitted, {} reported", verdict.reasons.len())
                } else {
                    format!("refused, {} reasons", verdict.reasons.len())
                };
                if verdict.admitted {
                    machine.assurance = Some(verdict.assurance.clone());
                    machine.admitted = true;
                    machine.proved_keys(&verdict.ek_keys);
                    machine.node_uuid.clone_from(&verdict.node_uuid);
                    machine.macs = verdict.macs.iter().copied().collect();
                    if let Some(binding) = &mut machine.binding {
                        binding.counters = verdict.counters;
                        binding.boot_mark.clone_from(&verdict.boot_mark);
                    }
                    // An address of another admitted machine stays with it.
                    for mac in &verdict.macs {
                        let owner = self.directory.by_mac.get(mac);
                        if owner.is_none_or(|owner| owner == id) {
                            self.by_mac.insert(*mac, id.clone());
                        }
                    }
                }
                self.note(
                    id,
                    seq,
                    at,
                    Some(Step::Appraise),
                    text,
                    verdict.reasons.clone(),
                );
                if verdict.admitted {
                    self.replayed(at, id, &Event::Admitted);
                    self.bind(id);
                } else {
                    self.replayed(at, id, &Event::AttemptEnded);
                }
            }
            Record::Certificate(certificate) => {
                let Some(id) = &certificate.machine else {
                    return;
                };
                let text = format!(
                    "{} certificate {} issued",
                    certificate.profile, certificate.serial
                );
                self.note(id, seq, at, Some(Step::Issue), text, Vec::new());
                if let Some(machine) = self.machines.get_mut(id) {
                    if machine.issued.len() == limits::ISSUES_PER_HOUR_MAX {
                        machine.issued.pop_front();
                    }
                    machine.issued.push_back(at);
                    machine.leaf_sha1.clone_from(&certificate.sha1);
                }
                self.replayed(
                    at,
                    id,
                    &Event::Issued {
                        not_after: certificate.not_after,
                    },
                );
            }
            Record::EkCertificates(record) => self.apply_ek(seq, at, record),
            Record::Gate(gate) => {
                let (word, cause) = match gate.change {
                    GateAct::Opened => ("opened", gate.cause.name()),
                    GateAct::Closed => ("closed", gate.cause.name()),
                };
                let text = format!("gate {word}, {} elements: {cause}", gate.elements);
                self.note(&gate.machine, seq, at, None, text, Vec::new());
            }

            Record::Bridge(bridge) => {
                if let Some(id) = &bridge.machine {
                    let (what, ids) = (bridge.what.name(), bridge.ids.join(", "));
                    let text = format!("SPIRE: {what} {ids}");
                    self.note(id, seq, at, None, text.trim_end().to_owned(), Vec::new());
                }
            }

            Record::Delivery(delivery) => {
                let kinds: Vec<&str> = delivery.items.iter().map(|i| i.kind.as_str()).collect();
                let text = format!("payloads sealed: {}", kinds.join(", "));
                let id = &delivery.machine;
                self.note(id, seq, at, Some(Step::Issue), text, Vec::new());
            }

            Record::Run(_) | Record::Grant(_) | Record::Progress(_) | Record::RunEnd(_) => {
                self.apply_install(seq, at, record);
            }

            Record::Talos(record) => {
                let text = record.event.text();
                self.note(&record.machine, seq, at, None, text, Vec::new());
            }
            Record::Genesis(_)
            | Record::RefusalSummary(_)
            | Record::Anchor(_)
            | Record::Policy(_)
            | Record::Pruned(_) => {}
        }
    }

    /// What an installation means for the machine; how far it is stands in [`crate::install`].
    fn apply_install(&mut self, seq: u64, at: UnixMillis, record: &Record) {
        let (id, event, text, reasons) = match record {
            Record::Run(run) => {
                let by = run.by.as_deref().unwrap_or("its class");
                let text = format!(
                    "run {} by {by}: {} {} to disk {}",
                    run.run, run.image, run.version, run.disk_serial
                );
                (&run.machine, Some(Event::RunBegun), text, Vec::new())
            }
            Record::Grant(grant) => {
                let text = format!("grant {} for boot {}", grant.grant, grant.attempt);
                (&grant.machine, None, text, Vec::new())
            }
            Record::Progress(progress) => {
                let event =
                    (progress.step == InstallStep::Checked).then_some(Event::InstallStarted);
                let text = format!("{}: {}", progress.step.as_str(), progress.detail);
                (&progress.machine, event, text, Vec::new())
            }
            Record::RunEnd(end) => {
                let event = match end.outcome {
                    RunOutcome::Verified => Event::Installed,
                    RunOutcome::Failed | RunOutcome::Cancelled | RunOutcome::TimedOut => {
                        Event::InstallEnded
                    }
                };
                let text = format!("run {} {}", end.run, end.outcome.as_str());
                let reasons = end.reason.iter().cloned().collect();
                (&end.machine, Some(event), text, reasons)
            }
            _ => return,
        };
        self.note(id, seq, at, Some(Step::Install), text, reasons);
        if let Some(event) = event {
            self.replayed(at, id, &event);
        }
    }

    fn apply_claim(&mut self, seq: u64, at: UnixMillis, claim: &Claim) {
        let known = self.machines.get(&claim.machine);
        if known.is_some_and(|machine| machine.binding.is_some()) {
            // The inventory has bound the name since; the claim is history.
            return;
        }
        if known.is_some_and(|machine| machine.state != State::Pending) {
            // A rejected claim had the name.
            self.machines.remove(&claim.machine);
            self.queue_unmatched(&claim.machine);
        }
        let machine = self
            .machines
            .entry(claim.machine.clone())
            .or_insert_with(|| Machine::new(claim.machine.clone(), State::Pending, at));
        machine.claim = Some(claim.clone());
        machine.claimed_at = at;
        if let Some(ek) = &mut machine.ek {
            ek.shown_at = None;
        }
        machine.assurance = Some(claim.assurance.clone());
        machine.reasons = claim.would_refuse.clone();
        machine.macs = claim.macs.iter().copied().collect();
        for mac in &claim.macs {
            self.by_mac
                .entry(*mac)
                .or_insert_with(|| claim.machine.clone());
        }
        let text = format!("claim, possession proven, report {}", claim.report_sha256);
        self.note(
            &claim.machine,
            seq,
            at,
            Some(Step::Appraise),
            text,
            claim.would_refuse.clone(),
        );
        self.replayed(at, &claim.machine, &Event::Claimed);
    }

    fn apply_act(&mut self, seq: u64, at: UnixMillis, act: &Act, by: &str) {
        let (id, event, text) = match act {
            Act::Approve {
                machine: id,
                ek_names,
                serial,
                disk_serial,
                port,
                class,
                compared,
            } => {
                if let Some(machine) = self.machines.get_mut(id) {
                    machine.binding = Some(Binding {
                        machine: id.clone(),
                        may_attest: Ok(()),
                        serial: Some(serial.clone()),
                        disk_serial: disk_serial.clone(),
                        port: port.clone(),
                        class: class.clone(),
                        ek_names: ek_names.clone(),
                        counters: None,
                        boot_mark: None,
                    });
                }
                (
                    id,
                    Event::Approved,
                    format!("approved by {by}, report compared: {compared}"),
                )
            }
            Act::Cordon { machine } => (machine, Event::Cordoned, format!("cordoned by {by}")),
            Act::Uncordon { machine } => {
                (machine, Event::Uncordoned, format!("uncordoned by {by}"))
            }
            Act::MarkInstalled { machine } => (
                machine,
                Event::Installed,
                format!("marked installed by {by}"),
            ),
            Act::Withdraw { machine, why } => (
                machine,
                Event::Withdrawn { why: why.clone() },
                format!("withdrawn by {by}: {why}"),
            ),
            Act::Retire { machine } => (machine, Event::Retired, format!("retired by {by}")),
            // What follows for the machines rests on the store: `ek_store::apply`.
            Act::ClaimAppliance
            | Act::EkCaImport { .. }
            | Act::EkCaRemove { .. }
            | Act::AdoptLedger { .. }
            | Act::ImageAdd { .. }
            | Act::ImageFloor { .. }
            | Act::ImageWithdraw { .. } => return,
            Act::SealSecret {
                machine,
                payload,
                pcrs,
                ..
            } => {
                let bound = if *pcrs { ", bound to its PCRs" } else { "" };
                let text = format!("{payload} sealed to its EK by {by}{bound}");
                self.note(machine, seq, at, None, text, Vec::new());
                return;
            }
        };
        self.note(id, seq, at, None, text, Vec::new());
        self.replayed(at, id, &event);
        self.bind(id);
        if matches!(act, Act::Withdraw { .. }) {
            self.reject(id);
        }
        if matches!(act, Act::Retire { .. }) {
            self.by_mac.retain(|_, owner| owner != id);
        }
        self.queue_unmatched(id);
    }

    /// A claim that was rejected gives back what it only said was its own: the addresses, and the
    /// name (see [`Registry::may_claim`]). Its keys, which it proved, are remembered.
    fn reject(&mut self, id: &MachineId) {
        let Some(machine) = self.machines.get(id) else {
            return;
        };
        if !machine.admitted {
            self.by_mac.retain(|_, owner| owner != id);
        }
        if let (None, Some(claim)) = (&machine.binding, &machine.claim) {
            self.rejected.extend(claim.ek_names.iter().cloned());
        }
    }

    /// A record was only written because its event fitted; in a replay the challenge before it is
    /// missing, which the table allows. Anything else is kept among the unfit.
    fn replayed(&mut self, at: UnixMillis, id: &MachineId, event: &Event) {
        if self.event(at, id, event).is_err() {
            // Counted and kept by `event`; an unknown machine has nothing to move.
        }
    }

    pub(super) fn note(
        &mut self,
        id: &MachineId,
        seq: u64,
        at: UnixMillis,
        step: Option<Step>,
        text: String,
        reasons: Vec<Reason>,
    ) {
        let Some(machine) = self.machines.get_mut(id) else {
            return;
        };
        machine.last_seq = Some(seq);
        if machine.timeline.len() == limits::TIMELINE_MAX {
            machine.timeline.pop_front();
        }
        let source = "ledger".to_owned();
        machine.timeline.push_back(TimelineEntry {
            at,
            step,
            source,
            seq: Some(seq),
            text,
            reasons,
        });
    }

    /// Brings the directory in line with one machine.
    fn bind(&mut self, id: &MachineId) {
        let Some(machine) = self.machines.get(id) else {
            return;
        };
        let Some(mut binding) = machine.binding.clone() else {
            return;
        };
        binding.may_attest = if machine.state.may_attest() {
            Ok(())
        } else {
            Err(Reason::new(
                "machine.state",
                "a machine that may attest",
                format!("machine {id} is {}", machine.state.name()),
                "docs/PROTOCOL.md section 9",
                "uncordon it, or enrol the board anew if it was withdrawn in error",
            ))
        };
        let binding = Arc::new(binding);
        let directory = Arc::make_mut(&mut self.directory);
        for ek in &binding.ek_names {
            let owner = directory.by_ek.get(ek);
            if owner.is_some_and(|owner| owner.machine != *id) {
                self.shared.insert(ek.clone());
            }
            let bound = if self.shared.contains(ek) {
                Arc::new(Binding {
                    may_attest: Err(ambiguous(ek)),
                    ..binding.as_ref().clone()
                })
            } else {
                Arc::clone(&binding)
            };
            directory.by_ek.insert(ek.clone(), bound);
        }
        // The addresses of a machine that left are free for others; its keys stay refused.
        directory.by_mac.retain(|_, owner| owner != id);
        if machine.admitted && !machine.state.has_left() {
            for mac in &machine.macs {
                let owner = directory.by_mac.entry(*mac);
                owner.or_insert_with(|| id.clone());
            }
        }
    }

    /// Remembers that an address reached a step; `true` when it should be written down.
    pub fn mark(&mut self, mark: &Mark) -> bool {
        if self.walkers.len() >= limits::WALKERS_MAX && !self.walkers.contains_key(&mark.mac) {
            self.forget_oldest_walker();
        }
        let steps = self.walkers.entry(mark.mac).or_default();
        let fresh = steps.get(&mark.step).is_none_or(|old| {
            mark.at.0.saturating_sub(old.at.0) >= limits::MARK_REPEAT_MS
                || old.detail != mark.detail
                || old.machine != mark.machine
        });
        if fresh {
            if let Some(newest) = newest(steps) {
                self.walkers_by_age.remove(&(newest, mark.mac));
            }
            steps.insert(mark.step, mark.clone());
            if let Some(newest) = newest(steps) {
                self.walkers_by_age.insert((newest, mark.mac));
            }
        }
        fresh
    }

    /// Made-up addresses must not keep real ones out for ever.
    fn forget_oldest_walker(&mut self) {
        if let Some((_, mac)) = self.walkers_by_age.pop_first() {
            self.walkers.remove(&mac);
        }
    }

    /// Whether another replay has built the same. Left out is what only tells of the past: timelines,
    /// events that did not fit, walk marks.
    ///
    /// # Errors
    /// What is not the same, in words.
    pub fn same_as(&self, other: &Self) -> Result<(), String> {
        let plain = |machine: &Machine| {
            let machine = Machine {
                timeline: VecDeque::new(),
                ..machine.clone()
            };
            format!("{machine:?}")
        };
        if !self.machines.keys().eq(other.machines.keys()) {
            return Err("the machines differ".to_owned());
        }
        let mut pairs = self.machines.values().zip(other.machines.values());
        if let Some((one, _)) = pairs.find(|(one, other)| plain(one) != plain(other)) {
            return Err(format!("machine {} differs", one.id));
        }
        let same = [
            (
                "bindings",
                format!("{:?}", self.directory) == format!("{:?}", other.directory),
            ),
            ("hardware addresses", self.by_mac == other.by_mac),
            ("shared EKs", self.shared == other.shared),
            ("rejected EKs", self.rejected == other.rejected),
            (
                "EK certificates without a chain",
                self.ek_unmatched == other.ek_unmatched
                    && self.ek_unmatched_dropped == other.ek_unmatched_dropped,
            ),
            ("the newest time", self.newest == other.newest),
        ];
        match same.into_iter().find(|(_, same)| !same) {
            Some((what, _)) => Err(format!("{what}: not the same")),
            None => Ok(()),
        }
    }

    /// One machine's timeline, oldest first.
    pub fn timeline(&self, id: &MachineId) -> Option<Vec<TimelineEntry>> {
        let machine = self.machines.get(id)?;
        let marks = machine
            .macs
            .iter()
            .filter_map(|mac| self.walkers.get(mac))
            .flat_map(BTreeMap::values)
            .map(|mark| TimelineEntry {
                at: mark.at,
                step: Some(mark.step),
                source: "journal".to_owned(),
                seq: None,
                text: mark.detail.clone(),
                reasons: Vec::new(),
            });
        let mut all: Vec<TimelineEntry> = machine.timeline.iter().cloned().chain(marks).collect();
        all.sort_by_key(|entry| (entry.at, entry.step));
        Some(all)
    }
}

/// When an address was last seen at any step.
fn newest(steps: &BTreeMap<Step, Mark>) -> Option<UnixMillis> {
    steps.values().map(|mark| mark.at).max()
}

fn ambiguous(ek: &EkName) -> Reason {
    Reason::new(
        "ek.ambiguous",
        "an EK bound to one machine",
        format!("EK {ek} is bound to two"),
        "docs/PROTOCOL.md section 3 row 3",
        "one TPM is declared for two machines: correct the inventory",
    )
}

impl Machine {
    fn new(id: MachineId, state: State, since: UnixMillis) -> Self {
        Self {
            id,
            state,
            since,
            binding: None,
            claim: None,
            claimed_at: UnixMillis(0),
            macs: BTreeSet::new(),
            node_uuid: None,
            assurance: None,
            ek: None,
            reasons: Vec::new(),
            last_seq: None,
            issued: VecDeque::new(),
            leaf_sha1: None,
            ek_keys: BTreeSet::new(),
            ek_keys_before: BTreeSet::new(),
            admitted: false,
            timeline: VecDeque::new(),
        }
    }

    fn proved_keys(&mut self, keys: &[EkKey]) {
        let keys: BTreeSet<String> = keys.iter().map(|k| k.ek_cert_key_sha256.clone()).collect();
        // A verdict of an earlier version names none.
        if !keys.is_empty() {
            let before = std::mem::replace(&mut self.ek_keys, keys);
            self.ek_keys_before.extend(before);
        }
    }

    /// Whether another certificate fits its hourly budget.
    ///
    /// # Errors
    /// `issue.budget`.
    pub fn may_be_issued(&self, now: UnixMillis) -> Result<(), Reason> {
        let since = now.0.saturating_sub(limits::ISSUE_BUDGET_MS);
        let recent = self.issued.iter().filter(|at| at.0 > since).count();
        if recent < limits::ISSUES_PER_HOUR_MAX {
            return Ok(());
        }
        Err(Reason::new(
            "issue.budget",
            format!(
                "fewer than {} certificates an hour",
                limits::ISSUES_PER_HOUR_MAX
            ),
            format!("{recent} for machine {} in the last hour", self.id),
            "gateway/core/src/limits.rs",
            "look at its console: a machine that boots in a loop; cordon it meanwhile",
        ))
    }

    /// What an administrator is shown; `boot` is the caller's to fill in.
    pub fn view(&self, boot: String) -> MachineView {
        let claim = self.claim.as_ref().filter(|_| self.state == State::Pending);
        let binding = self.binding.as_ref();
        MachineView {
            machine: self.id.clone(),
            state: self.state.name().to_owned(),
            since: self.since,
            ek_names: binding
                .map(|b| b.ek_names.clone())
                .or_else(|| claim.map(|c| c.ek_names.clone()))
                .unwrap_or_default(),
            serial: binding
                .and_then(|b| b.serial.clone())
                .or_else(|| claim.map(|c| c.serial.clone())),
            disk_serial: binding.and_then(|b| b.disk_serial.clone()),
            port: binding
                .and_then(|b| b.port.clone())
                .or_else(|| claim.and_then(|c| c.port.clone())),
            class: binding.map(|b| b.class.clone()),
            macs: self.macs.iter().copied().collect(),
            boot,
            assurance: self.assurance.clone(),
            ek_certificates: self.ek.iter().flat_map(EkOnRecord::view).collect(),
            reasons: self.reasons.clone(),
            ldevid_not_after: self.state.ldevid_not_after(),
            last_seq: self.last_seq,
            report_sha256: claim.map(|c| c.report_sha256.clone()),
            gate: None,
            install: None,
        }
    }
}
