//! When the ledger is anchored to the counter of the appliance's TPM (docs/PROTOCOL.md section 5).
//!
//! An anchor is a record with the value that the counter gets after the record is on disk and before
//! anything in its batch is seen. A ledger whose last anchor is not the counter's value was
//! cut or is an older copy. Decides what must be anchored at once and what within the hour: a counter
//! wears out. Knows no TPM.

use crate::identity::UnixMillis;
use crate::record::{Anchor, Record};

/// Records that need no anchor of their own get one after this long, ms: what a thief of the disk could
/// take back, and 24 increments a day of a memory made for some 100,000.
pub const ANCHOR_WITHIN_MS: u64 = 3_600_000;

/// Which records wait for an anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// None.
    Nothing,
    /// Some, since then.
    Since(UnixMillis),
    /// One that must not be taken back.
    Urgent,
}

/// The anchors of one ledger.
#[derive(Debug, Clone)]
pub struct Anchors {
    counter: u64,
    waiting: Waiting,
}

impl Anchors {
    /// The counter stands at `counter`, and so does the ledger.
    pub fn new(counter: u64) -> Self {
        Self {
            counter,
            waiting: Waiting::Nothing,
        }
    }

    /// A record was queued.
    pub fn saw(&mut self, at: UnixMillis, record: &Record) {
        if urgent(record) {
            self.waiting = Waiting::Urgent;
        } else if self.waiting == Waiting::Nothing {
            self.waiting = Waiting::Since(at);
        }
    }

    /// The anchor that is due; `stopping` anchors whatever waits.
    pub fn due(&mut self, now: UnixMillis, stopping: bool) -> Option<Anchor> {
        let due = match self.waiting {
            Waiting::Nothing => false,
            Waiting::Since(at) => stopping || now.0.saturating_sub(at.0) >= ANCHOR_WITHIN_MS,
            Waiting::Urgent => true,
        };
        due.then(|| {
            self.waiting = Waiting::Nothing;
            self.counter += 1;
            Anchor {
                counter: self.counter,
            }
        })
    }
}

/// Withdrawals, floors, trust, claims and the appliance's own certificates: what an attacker would gain
/// by taking it back. Verdicts and what follows from them cost him nothing to repeat.
fn urgent(record: &Record) -> bool {
    match record {
        Record::Genesis(_)
        | Record::Operator(_)
        | Record::Policy(_)
        | Record::Pruned(_)
        | Record::Run(_) => true,
        Record::Certificate(certificate) => certificate.machine.is_none(),
        Record::Claim(_)
        | Record::Verdict(_)
        | Record::EkCertificates(_)
        | Record::Bridge(_)
        | Record::Delivery(_)
        | Record::RefusalSummary(_)
        | Record::Gate(_)
        | Record::Anchor(_)
        | Record::Grant(_)
        | Record::Progress(_)
        | Record::Talos(_)
        | Record::RunEnd(_) => false,
    }
}

/// The counter's value that a ledger was last anchored to.
pub fn last<'a>(records: impl DoubleEndedIterator<Item = &'a Record>) -> Option<u64> {
    records.rev().find_map(|record| match record {
        Record::Anchor(anchor) => Some(anchor.counter),
        _ => None,
    })
}

/// How the counter and the last anchor stand to each other at a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Equal.
    Anchored,
    /// The anchor was written and the power went before the counter moved: move it now.
    Interrupted,
    /// The counter is beyond the ledger: records are missing, or it is an older copy.
    RolledBack,
    /// The ledger is beyond the counter: it belongs to another counter.
    Foreign,
}

/// Compares them.
pub fn standing(anchored: u64, counter: u64) -> Standing {
    if counter == anchored {
        Standing::Anchored
    } else if counter > anchored {
        Standing::RolledBack
    } else if counter + 1 == anchored {
        Standing::Interrupted
    } else {
        Standing::Foreign
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::Reason;
    use crate::record::{Act, OperatorAct, RefusalSummary};

    const START: UnixMillis = UnixMillis(1_800_000_000_000);

    fn operator() -> Record {
        Record::Operator(OperatorAct {
            by: "owner".to_owned(),
            role: "owner".to_owned(),
            act: Act::ClaimAppliance,
        })
    }

    fn refusals() -> Record {
        Record::RefusalSummary(RefusalSummary {
            ingress: "eth0".to_owned(),
            count: 1,
            last: Reason::new(
                "ek.unknown",
                "a known EK",
                "another",
                "PROTOCOL 3",
                "approve it",
            ),
            correlation: "c".to_owned(),
        })
    }

    fn after(ms: u64) -> UnixMillis {
        UnixMillis(START.0 + ms)
    }

    #[test]
    fn an_operators_act_is_anchored_at_once_and_a_refusal_within_the_hour() {
        let mut anchors = Anchors::new(7);
        assert_eq!(anchors.due(START, false), None);
        anchors.saw(START, &refusals());
        anchors.saw(after(1_000), &refusals());
        assert_eq!(anchors.due(after(ANCHOR_WITHIN_MS - 1), false), None);
        let due = anchors.due(after(ANCHOR_WITHIN_MS), false);
        assert_eq!(due, Some(Anchor { counter: 8 }));
        assert_eq!(anchors.due(after(2 * ANCHOR_WITHIN_MS), false), None);
        anchors.saw(START, &operator());
        anchors.saw(START, &refusals());
        assert_eq!(anchors.due(START, false), Some(Anchor { counter: 9 }));
    }

    #[test]
    fn a_stop_anchors_what_waits_and_nothing_else() {
        let mut anchors = Anchors::new(0);
        assert_eq!(anchors.due(START, true), None);
        anchors.saw(START, &refusals());
        assert_eq!(anchors.due(START, true), Some(Anchor { counter: 1 }));
        assert_eq!(anchors.due(START, true), None);
    }

    #[test]
    fn only_the_same_value_and_one_cut_short_are_good() {
        assert_eq!(standing(7, 7), Standing::Anchored);
        assert_eq!(standing(8, 7), Standing::Interrupted);
        assert_eq!(standing(9, 7), Standing::Foreign);
        assert_eq!(standing(6, 7), Standing::RolledBack);
        assert_eq!(standing(u64::MAX, 0), Standing::Foreign);
        assert_eq!(standing(0, u64::MAX), Standing::RolledBack);
    }

    #[test]
    fn the_last_anchor_counts() {
        let anchor = |counter| Record::Anchor(Anchor { counter });
        let records = [refusals(), anchor(3), operator(), anchor(4), refusals()];
        assert_eq!(last(records.iter()), Some(4));
        assert_eq!(last(records[..1].iter()), None);
    }
}
