//! Refusals of unproven nodes, summed: ten thousand made-up keys must not buy ten thousand signed
//! records. The first of a kind is written at once, the others of that minute in one line.

use std::collections::BTreeMap;

use crate::identity::UnixMillis;
use crate::limits;
use crate::reason::Reason;
use crate::record::RefusalSummary;

struct Sum {
    since: UnixMillis,
    count: u64,
    last: Option<(Reason, String)>,
}

/// All sums, and totals per code for the metrics.
#[derive(Default)]
pub(super) struct Refusals {
    sums: BTreeMap<(String, String), Sum>,
    totals: BTreeMap<String, u64>,
    /// Refusals written in full since, per proven machine.
    proven: BTreeMap<String, (UnixMillis, u32)>,
}

impl Refusals {
    /// Counts one refusal for the metrics only; it has a record of its own.
    pub fn count(&mut self, reason: &Reason) {
        *self.totals.entry(reason.code.to_string()).or_default() += 1;
    }

    /// Whether the refusal of a proven machine still gets a record of its own in this period. As
    /// many entries as there are bound machines, at most.
    pub fn in_full(&mut self, now: UnixMillis, machine: &str) -> bool {
        let (since, count) = self.proven.entry(machine.to_owned()).or_insert((now, 0));
        if now.0 >= since.0 + limits::REFUSAL_SUMMARY_MS {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= limits::VERDICTS_REFUSED_MAX
    }

    /// Counts one refusal of an unproven node; returns the record to write now, if any.
    pub fn unproven(
        &mut self,
        now: UnixMillis,
        ingress: &str,
        reason: &Reason,
        correlation: &str,
    ) -> Option<RefusalSummary> {
        self.count(reason);
        let mut key = (reason.code.to_string(), ingress.to_owned());
        if !self.sums.contains_key(&key) && self.sums.len() >= limits::REFUSAL_KINDS_MAX {
            key.1 = "other".to_owned();
        }
        if let Some(sum) = self.sums.get_mut(&key) {
            sum.count += 1;
            sum.last = Some((reason.clone(), correlation.to_owned()));
            return None;
        }
        let ingress = key.1.clone();
        self.sums.insert(
            key,
            Sum {
                since: now,
                count: 0,
                last: None,
            },
        );
        Some(RefusalSummary {
            ingress,
            count: 1,
            last: reason.clone(),
            correlation: correlation.to_owned(),
        })
    }

    /// When the next summary is due.
    pub fn deadline(&self) -> Option<UnixMillis> {
        self.sums
            .values()
            .map(|s| UnixMillis(s.since.0 + limits::REFUSAL_SUMMARY_MS))
            .min()
    }

    /// Summaries whose minute is over.
    pub fn due(&mut self, now: UnixMillis) -> Vec<RefusalSummary> {
        let mut due = Vec::new();
        self.sums.retain(|(_, ingress), sum| {
            if now.0 < sum.since.0 + limits::REFUSAL_SUMMARY_MS {
                return true;
            }
            if let Some((last, correlation)) = sum.last.take() {
                due.push(RefusalSummary {
                    ingress: ingress.clone(),
                    count: sum.count,
                    last,
                    correlation,
                });
            }
            false
        });
        due
    }

    /// Refusals since start, per code.
    pub fn totals(&self) -> &BTreeMap<String, u64> {
        &self.totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason() -> Reason {
        Reason::new("ek.template", "a", "b", "c", "d")
    }

    #[test]
    fn ten_thousand_refusals_buy_two_records() {
        let mut refusals = Refusals::default();
        let written = (0..10_000u64)
            .filter_map(|n| refusals.unproven(UnixMillis(n), "prov", &reason(), &n.to_string()))
            .count();
        assert_eq!(written, 1);
        assert!(refusals.due(UnixMillis(59_999)).is_empty());
        let due = refusals.due(UnixMillis(60_000));
        assert_eq!(due.len(), 1);
        assert_eq!((due[0].count, due[0].correlation.as_str()), (9_999, "9999"));
        assert_eq!(refusals.totals()["ek.template"], 10_000);
        assert_eq!(refusals.deadline(), None);
    }

    #[test]
    fn a_single_refusal_is_written_once() {
        let mut refusals = Refusals::default();
        assert!(
            refusals
                .unproven(UnixMillis(0), "prov", &reason(), "a")
                .is_some()
        );
        assert!(refusals.due(UnixMillis(60_000)).is_empty());
    }

    #[test]
    fn kinds_beyond_the_bound_share_a_line() {
        let mut refusals = Refusals::default();
        for n in 0..limits::REFUSAL_KINDS_MAX + 10 {
            let ingress = format!("port{n}");
            let written = refusals.unproven(UnixMillis(0), &ingress, &reason(), "x");
            match n.cmp(&limits::REFUSAL_KINDS_MAX) {
                std::cmp::Ordering::Less => assert_eq!(written.map(|w| w.ingress), Some(ingress)),
                std::cmp::Ordering::Equal => {
                    assert_eq!(written.map(|w| w.ingress).as_deref(), Some("other"));
                }
                std::cmp::Ordering::Greater => assert!(written.is_none()),
            }
        }
    }
}
