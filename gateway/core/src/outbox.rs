//! The queue of effects, and the one place that numbers ledger records.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use crate::admission::effect::Effect;
use crate::anchor::Anchors;
use crate::identity::{MacAddr, MachineId, UnixMillis};
use crate::reason::Reason;
use crate::record::{JournalRecord, Record};

/// Something that the gate may have to follow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Admitted, from this hardware address.
    Admitted(MachineId, MacAddr),
    /// Refused with proven keys.
    Refused(MachineId),
    /// An administrator acted on it.
    Acted(MachineId),
    /// Its certificate has an end.
    Issued(MachineId),
    /// A lease changed.
    Lease(Ipv4Addr, MacAddr),
}

/// Effects in the order they were decided.
pub struct Outbox {
    queue: VecDeque<Effect>,
    seen: Vec<Seen>,
    /// Whether there is a gate that asks for them.
    watched: bool,
    next_seq: u64,
    anchors: Anchors,
}

impl Outbox {
    /// The next record gets `next_seq`; the ledger before it is anchored at `counter`.
    pub fn new(next_seq: u64, counter: u64) -> Self {
        Self {
            queue: VecDeque::new(),
            seen: Vec::new(),
            watched: false,
            next_seq,
            anchors: Anchors::new(counter),
        }
    }

    /// Queues an effect.
    pub fn push(&mut self, effect: Effect) {
        self.queue.push_back(effect);
    }

    /// From here on, keeps what a gate follows.
    pub(crate) fn watch(&mut self) {
        self.watched = true;
    }

    /// Keeps one such thing.
    pub(crate) fn saw(&mut self, seen: Seen) {
        if self.watched {
            self.seen.push(seen);
        }
    }

    /// What was kept since the last call.
    pub(crate) fn take_seen(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.seen)
    }

    fn saw_record(&mut self, record: &Record) {
        match record {
            Record::Verdict(verdict) if !verdict.admitted => {
                if let Some(machine) = &verdict.machine {
                    self.saw(Seen::Refused(machine.clone()));
                }
            }
            Record::Certificate(certificate) => {
                if let Some(machine) = &certificate.machine {
                    self.saw(Seen::Issued(machine.clone()));
                }
            }
            Record::Operator(act) => {
                if let Some(machine) = act.act.machine() {
                    self.saw(Seen::Acted(machine.clone()));
                }
            }
            Record::Verdict(_)
            | Record::Genesis(_)
            | Record::Claim(_)
            | Record::RefusalSummary(_)
            | Record::EkCertificates(_)
            | Record::Anchor(_)
            | Record::Policy(_)
            | Record::Pruned(_)
            | Record::Bridge(_)
            | Record::Delivery(_)
            | Record::Run(_)
            | Record::Grant(_)
            | Record::Progress(_)
            | Record::RunEnd(_)
            | Record::Talos(_)
            | Record::Gate(_) => {}
        }
    }

    /// Queues a journal record.
    pub fn journal(&mut self, record: JournalRecord) {
        if let JournalRecord::Lease(lease) = &record {
            self.saw(Seen::Lease(lease.addr, lease.mac));
        }
        self.push(Effect::Journal(record));
    }

    /// Queues a ledger record and returns its sequence.
    pub fn record(&mut self, at: UnixMillis, record: Record) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.anchors.saw(at, &record);
        if self.watched {
            self.saw_record(&record);
        }
        self.push(Effect::Record { seq, at, record });
        seq
    }

    /// Queues the anchor that is due, behind what it anchors, and returns the value that the counter
    /// must get.
    pub fn anchor(&mut self, now: UnixMillis, stopping: bool) -> Option<u64> {
        let anchor = self.anchors.due(now, stopping)?;
        let counter = anchor.counter;
        let seq = self.next_seq;
        self.next_seq += 1;
        let record = Record::Anchor(anchor);
        self.push(Effect::Record {
            seq,
            at: now,
            record,
        });
        Some(counter)
    }

    /// Queues a line for the log and the counters.
    pub fn refused(&mut self, subject: impl Into<String>, reasons: Vec<Reason>) {
        self.push(Effect::Refused {
            subject: subject.into(),
            reasons,
        });
    }

    /// The next effect.
    pub fn poll(&mut self) -> Option<Effect> {
        self.queue.pop_front()
    }

    /// Ledger records so far, this process and before it.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }
}
