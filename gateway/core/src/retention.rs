//! Which records of old ledger segments must stay when the segments go (docs/PROTOCOL.md section 5).
//!
//! A replay folds records in, over an inventory and a catalogue that may be other ones at the next start.
//! So not a state is kept but the records that it rests on: what is left out here changes no state for
//! any inventory. Left out are refusals before activation, anchors but the last, and of the
//! verdicts and certificates of a machine those that a later one has made void. What an
//! administrator or the owner did is always kept.
//!
//! Decides this and compares the two replays. Knows no file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::admission::ek_store;
use crate::admission::registry::Registry;
use crate::anchor;
use crate::appraisal::EkRoots;
use crate::catalog::{self, CatalogEntry};
use crate::identity::{MacAddr, MachineId, UnixMillis};
use crate::inventory::Inventory;
use crate::limits;
use crate::record::{Act, Certificate, Record, Verdict};

/// One record of the ledger: sequence, time, record.
pub type Numbered<'r> = (u64, UnixMillis, &'r Record);

/// What a ledger says, folded into what is declared.
#[derive(Debug)]
pub struct Replayed {
    /// All machines.
    pub registry: Registry,
    /// The catalogue with the owner's rules on it.
    pub catalog: Vec<CatalogEntry>,
    /// CAs for EK chains, files and imported ones.
    pub ek_roots: EkRoots,
    /// Sequence of the next record.
    pub next_seq: u64,
}

/// Declares what the inventory holds, then folds every record in.
pub fn replay<'r>(
    inventory: &Inventory,
    catalog: &[CatalogEntry],
    ek_roots: &EkRoots,
    ledger: impl Iterator<Item = Numbered<'r>> + Clone,
    now: UnixMillis,
) -> Replayed {
    let mut registry = Registry::default();
    registry.declare(inventory, ledger.clone().map(|(_, _, record)| record), now);
    let mut replayed = Replayed {
        registry,
        catalog: catalog.to_vec(),
        ek_roots: ek_roots.clone(),
        next_seq: 1,
    };
    for (seq, at, record) in ledger {
        replayed.registry.apply(seq, at, record);
        if let Record::Operator(act) = record {
            catalog::apply(&mut replayed.catalog, &act.act);
            let (roots, registry) = (&mut replayed.ek_roots, &mut replayed.registry);
            ek_store::apply(roots, registry, seq, at, act);
        }
        replayed.next_seq = seq + 1;
    }
    replayed
}

/// Whether the carried records alone lead to where all of them lead.
///
/// # Errors
/// What is not the same, in words.
pub fn check(
    declared: (&Inventory, &[CatalogEntry], &EkRoots),
    removed: &[Numbered<'_>],
    carried: &BTreeSet<u64>,
    now: UnixMillis,
) -> Result<(), String> {
    let (inventory, catalog, roots) = declared;
    let kept = || {
        let records = removed.iter().copied();
        records.filter(|(seq, _, _)| carried.contains(seq))
    };
    let all = replay(inventory, catalog, roots, removed.iter().copied(), now);
    let few = replay(inventory, catalog, roots, kept(), now);
    all.registry.same_as(&few.registry)?;
    if all.catalog != few.catalog {
        return Err("the catalogue's rules differ".to_owned());
    }
    if format!("{:?}", all.ek_roots) != format!("{:?}", few.ek_roots) {
        return Err("the CAs for EK chains differ".to_owned());
    }
    if all.next_seq != few.next_seq {
        return Err("the last record is not carried".to_owned());
    }
    let all: Vec<&Record> = removed.iter().map(|(_, _, record)| *record).collect();
    let few: Vec<&Record> = kept().map(|(_, _, record)| record).collect();
    if anchor::last(all.into_iter()) != anchor::last(few.into_iter()) {
        return Err("the last anchor is not carried".to_owned());
    }
    Ok(())
}

/// Sequences of the records that must be carried when all of these are removed.
pub fn carried(removed: &[Numbered<'_>], now: UnixMillis) -> BTreeSet<u64> {
    let mut carry = Carry::default();
    let shared = with_shared_addresses(removed);
    let (mut anchor, mut newest) = (None, None::<(UnixMillis, u64)>);
    for (seq, at, record) in removed.iter().copied() {
        if newest.is_none_or(|(time, _)| at >= time) {
            newest = Some((at, seq));
        }
        match record {
            Record::Genesis(_) | Record::Policy(_) | Record::Pruned(_) | Record::Talos(_) => {
                carry.keep.insert(seq);
            }
            // What SPIRE was told is compared with the server, not with the ledger.
            Record::RefusalSummary(_) | Record::Bridge(_) | Record::Delivery(_) => {}
            Record::Anchor(_) => anchor = Some(seq),
            Record::Gate(change) => carry.gate(seq, &change.machine),
            Record::Claim(claim) => carry.settles(seq, &claim.machine),
            Record::EkCertificates(record) => carry.settles(seq, &record.machine),
            Record::Run(run) => carry.settles(seq, &run.machine),
            Record::Grant(grant) => carry.settles(seq, &grant.machine),
            Record::Progress(progress) => carry.settles(seq, &progress.machine),
            Record::RunEnd(end) => carry.settles(seq, &end.machine),
            Record::Operator(act) => match machine_of(&act.act) {
                Subject::Machine(machine) => carry.settles(seq, machine),
                Subject::AllMachines => carry.settles_all(seq),
                Subject::NoMachine => {
                    carry.keep.insert(seq);
                }
            },
            Record::Verdict(verdict) => {
                let Some(machine) = &verdict.machine else {
                    continue;
                };
                if shared.contains(machine) {
                    carry.keep.insert(seq);
                }
                carry.verdict(seq, machine, verdict);
            }
            Record::Certificate(certificate) => {
                let valid = certificate.not_after > now;
                let machine = certificate.machine.as_ref();
                if valid || machine.is_some_and(|machine| shared.contains(machine)) {
                    carry.keep.insert(seq);
                }
                carry.certificate(seq, certificate);
            }
        }
    }
    let last = removed.last().map(|(seq, _, _)| *seq);
    let newest = newest.map(|(_, seq)| seq);
    carry.end([last, anchor, newest])
}

/// What an act is about.
enum Subject<'r> {
    Machine(&'r MachineId),
    /// Chains of any machine's EK certificate may end.
    AllMachines,
    NoMachine,
}

fn machine_of(act: &Act) -> Subject<'_> {
    match act {
        Act::Approve { machine, .. }
        | Act::Cordon { machine }
        | Act::Uncordon { machine }
        | Act::MarkInstalled { machine }
        | Act::Withdraw { machine, .. }
        | Act::SealSecret { machine, .. }
        | Act::Retire { machine } => Subject::Machine(machine),
        Act::EkCaRemove { .. } | Act::EkCaImport { .. } => Subject::AllMachines,
        Act::ClaimAppliance
        | Act::AdoptLedger { .. }
        | Act::ImageAdd { .. }
        | Act::ImageFloor { .. }
        | Act::ImageWithdraw { .. } => Subject::NoMachine,
    }
}

/// Machines that showed a hardware address which another one showed too: whose it is rests on the order
/// of all their records.
fn with_shared_addresses<'r>(removed: &[Numbered<'r>]) -> BTreeSet<&'r MachineId> {
    let mut shown: BTreeMap<MacAddr, BTreeSet<&MachineId>> = BTreeMap::new();
    for (_, _, record) in removed {
        let (machine, macs) = match record {
            Record::Claim(claim) => (Some(&claim.machine), &claim.macs),
            Record::Verdict(verdict) => (verdict.machine.as_ref(), &verdict.macs),
            _ => continue,
        };
        let Some(machine) = machine else { continue };
        for mac in macs {
            shown.entry(*mac).or_default().insert(machine);
        }
    }
    let shared = shown.into_values().filter(|machines| machines.len() > 1);
    shared.flatten().collect()
}

/// Verdicts and certificates of one machine since something else was settled about it.
#[derive(Default)]
struct Run<'r> {
    /// Addresses of the first admitted verdict, which is kept.
    macs: Option<&'r [MacAddr]>,
    last_admitted: Option<u64>,
    last_verdict: Option<u64>,
    /// Since the last admitted verdict.
    last_certificate: Option<u64>,
}

#[derive(Default)]
struct Carry<'r> {
    keep: BTreeSet<u64>,
    runs: BTreeMap<&'r MachineId, Run<'r>>,
    /// Those that count for the hourly budget.
    issued: BTreeMap<&'r MachineId, VecDeque<u64>>,
    /// The last change of a machine's way out, and a refusal after it, which closes it too.
    gates: BTreeMap<&'r MachineId, (u64, Option<u64>)>,
}

impl<'r> Carry<'r> {
    fn flush(&mut self, run: &Run<'_>) {
        let ends = [run.last_admitted, run.last_verdict, run.last_certificate];
        self.keep.extend(ends.into_iter().flatten());
    }

    /// A record that is kept, and that verdicts before and after it must keep their place to.
    fn settles(&mut self, seq: u64, machine: &MachineId) {
        self.keep.insert(seq);
        if let Some(run) = self.runs.remove(machine) {
            self.flush(&run);
        }
    }

    fn settles_all(&mut self, seq: u64) {
        self.keep.insert(seq);
        for run in std::mem::take(&mut self.runs).values() {
            self.flush(run);
        }
    }

    fn verdict(&mut self, seq: u64, machine: &'r MachineId, verdict: &'r Verdict) {
        if !verdict.admitted
            && let Some((_, refused)) = self.gates.get_mut(machine)
        {
            refused.get_or_insert(seq);
        }
        let macs = verdict.macs.as_slice();
        let other = |run: &&mut Run<'_>| verdict.admitted && run.macs != Some(macs);
        if self.runs.get_mut(machine).as_ref().is_none_or(other) {
            let first = verdict.admitted;
            if let Some(run) = self.runs.remove(machine) {
                self.flush(&run);
            }
            if first {
                self.keep.insert(seq);
            }
            let macs = first.then_some(macs);
            self.runs.insert(
                machine,
                Run {
                    macs,
                    ..Run::default()
                },
            );
        }
        let run = self.runs.entry(machine).or_default();
        run.last_verdict = Some(seq);
        if verdict.admitted {
            run.last_admitted = Some(seq);
            run.last_certificate = None;
        }
    }

    fn gate(&mut self, seq: u64, machine: &'r MachineId) {
        self.gates.insert(machine, (seq, None));
    }

    fn certificate(&mut self, seq: u64, certificate: &'r Certificate) {
        let Some(machine) = &certificate.machine else {
            return;
        };
        let run = self.runs.entry(machine).or_default();
        run.last_certificate = Some(seq);
        let issued = self.issued.entry(machine).or_default();
        if issued.len() == limits::ISSUES_PER_HOUR_MAX {
            issued.pop_front();
        }
        issued.push_back(seq);
    }

    fn end(mut self, also: [Option<u64>; 3]) -> BTreeSet<u64> {
        for run in std::mem::take(&mut self.runs).values() {
            self.flush(run);
        }
        let issued = self.issued.into_values().flatten();
        let gates = self.gates.into_values();
        let gates = gates.flat_map(|(change, refused)| [Some(change), refused]);
        let gates = gates.flatten();
        self.keep
            .extend(issued.chain(gates).chain(also.into_iter().flatten()));
        self.keep
    }
}
