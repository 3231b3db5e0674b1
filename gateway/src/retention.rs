//! `[ledger] keep_days`: takes old segments off the ledger at a start (docs/PROTOCOL.md section 5).
//!
//! Order: the base that stands for them is on disk; the removal is recorded and anchored; then the files
//! go, oldest first. A power cut between leaves all of them, or the base and some; the next start goes on.
//! Nothing goes when the carried records do not lead to the very state that all of them led to.

use gateway_core::appraisal::EkRoots;
use gateway_core::catalog::CatalogEntry;
use gateway_core::identity::UnixMillis;
use gateway_core::inventory::Inventory;
use gateway_core::record::{Pruned, Record};
use gateway_core::retention::{self, Numbered};
use store::{Cut, Entry, StoreError};

use crate::appliance::{Appliance, ApplianceError};

const DAY_MS: u64 = 86_400_000;

/// What the records are folded into.
pub(crate) type Declared<'a> = (&'a Inventory, &'a [CatalogEntry], &'a EkRoots);

/// Applies the rule to the entries that this start found. What cannot be removed is logged and stays;
/// the start goes on.
///
/// # Errors
/// The record of a removal is not on disk, or its anchor did not move the counter.
pub(crate) fn apply(
    appliance: &mut Appliance,
    keep_days: u32,
    declared: Declared<'_>,
    now: UnixMillis,
) -> Result<(), ApplianceError> {
    go_on(appliance);
    let before = before(&appliance.ledger.entries, keep_days, now);
    let cut = match appliance
        .store
        .ledger_cut(&appliance.ledger.entries, before)
    {
        Ok(Some(cut)) => cut,
        Ok(None) => return Ok(()),
        Err(error) => {
            stays(&error);
            return Ok(());
        }
    };
    let Some(pruned) = write_base(appliance, cut, keep_days, declared, now)? else {
        return Ok(());
    };
    appliance.commit_anchored(now, vec![Record::Pruned(pruned.clone())])?;
    remove(appliance, &pruned);
    Ok(())
}

/// Entries from here on are kept. The age is counted from the newest entry of an earlier run, if the clock
/// is ahead of it: a clock that was set wrong removes nothing before a second start under it.
fn before(entries: &[Entry], keep_days: u32, now: UnixMillis) -> UnixMillis {
    let newest = entries.iter().map(|entry| entry.time).max();
    let from = newest.unwrap_or_default().min(now);
    UnixMillis(from.0.saturating_sub(u64::from(keep_days) * DAY_MS))
}

/// A removal that is on record may have been interrupted.
fn go_on(appliance: &Appliance) {
    let entries = appliance.ledger.entries.iter().rev();
    let last = entries
        .map(|entry| &entry.record)
        .find_map(|record| match record {
            Record::Pruned(pruned) => Some(pruned),
            _ => None,
        });
    if let Some(pruned) = last {
        remove(appliance, pruned);
    }
}

fn remove(appliance: &Appliance, pruned: &Pruned) {
    let removed = appliance
        .store
        .remove_before(pruned.first_segment, &pruned.base_sha256);
    match removed {
        Ok(0) => {}
        Ok(segments) => tracing::warn!(
            segments,
            first_segment = pruned.first_segment,
            first_seq = pruned.first_seq,
            carried = pruned.carried,
            keep_days = pruned.keep_days,
            "old ledger segments removed"
        ),
        Err(error) => stays(&error),
    }
}

fn stays(error: &StoreError) {
    let error: &dyn std::error::Error = error;
    tracing::error!(error, "old ledger segments were not removed, they stay");
}

/// The base on disk, or none with the reason in the log.
fn write_base(
    appliance: &Appliance,
    cut: Cut,
    keep_days: u32,
    declared: Declared<'_>,
    now: UnixMillis,
) -> Result<Option<Pruned>, ApplianceError> {
    let entries = appliance.ledger.entries.iter();
    let removed: Vec<Numbered<'_>> = entries
        .filter(|entry| entry.seq < cut.first_seq)
        .map(|entry| (entry.seq, entry.time, &entry.record))
        .collect();
    let carried = retention::carried(&removed, now);
    if let Err(why) = retention::check(declared, &removed, &carried, now) {
        tracing::error!(
            why,
            "old ledger segments would not be carried as a whole, they stay: tell the makers"
        );
        return Ok(None);
    }
    let signer = appliance.ca.receipt_signer().map_err(ApplianceError::Ca)?;
    match appliance.store.write_base(cut, &carried, &signer) {
        Ok(digest) => Ok(Some(Pruned {
            first_segment: cut.first_segment,
            first_seq: cut.first_seq,
            segments: cut.segments,
            carried: carried.len() as u64,
            base_sha256: hex::encode(digest),
            keep_days,
        })),
        Err(error) => {
            stays(&error);
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gateway_core::record::Anchor;

    #[test]
    fn age_is_counted_from_the_older_of_clock_and_newest_entry() {
        let entry = |time| Entry {
            seq: 1,
            time: UnixMillis(time),
            prev: [0; 32],
            hash: [0; 32],
            record: Record::Anchor(Anchor { counter: 1 }),
        };
        let entries = [entry(40 * DAY_MS), entry(39 * DAY_MS)];
        let at = |now| before(&entries, 30, UnixMillis(now)).0 / DAY_MS;
        assert_eq!(at(40 * DAY_MS), 10);
        assert_eq!(at(400 * DAY_MS), 10, "a clock that is ahead");
        assert_eq!(at(35 * DAY_MS), 5, "a clock that was set back");
        assert_eq!(at(DAY_MS), 0);
        assert_eq!(before(&[], 30, UnixMillis(40 * DAY_MS)).0, 0);
    }
}
