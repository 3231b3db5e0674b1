//! The queue of effects, and the one place that numbers ledger records.

use std::collections::VecDeque;

use crate::admission::effect::Effect;
use crate::anchor::Anchors;
use crate::identity::UnixMillis;
use crate::reason::Reason;
use crate::record::{JournalRecord, Record};

/// Effects in the order they were decided.
pub struct Outbox {
    queue: VecDeque<Effect>,
    next_seq: u64,
    anchors: Anchors,
}

impl Outbox {
    /// The next record gets `next_seq`; the ledger before it is anchored at `counter`.
    pub fn new(next_seq: u64, counter: u64) -> Self {
        Self {
            queue: VecDeque::new(),
            next_seq,
            anchors: Anchors::new(counter),
        }
    }

    /// Queues an effect.
    pub fn push(&mut self, effect: Effect) {
        self.queue.push_back(effect);
    }

    /// Queues a journal record.
    pub fn journal(&mut self, record: JournalRecord) {
        self.push(Effect::Journal(record));
    }

    /// Queues a ledger record and returns its sequence.
    pub fn record(&mut self, at: UnixMillis, record: Record) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.anchors.saw(at, &record);
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
