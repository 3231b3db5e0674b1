//! Rows 9 to 11 over a boot that somebody recorded: what a policy would say of it, at a desk.
//!
//! The functions are those of the daemon. Nothing is proven here: no quote vouches for the log or for
//! the register values, so the result is text for an operator and holds no `Verified` that could be
//! admitted. What is not in an event log (keys, binding, disks, port, counters) is not judged and
//! says so.

use std::collections::BTreeMap;

use super::eventlog::Log;
use super::facts::{CatalogEntry, CheckResult, Facts, Judge};
use super::{Check, TimeTrust, Verified, all_or_none, boot_policy, replay};
use crate::policy::{Mode, Policy};
use crate::reason::Reason;

/// What was recorded of a boot.
#[derive(Debug, Clone, Copy)]
pub struct RecordedBoot<'a> {
    /// The event log, as the kernel exports it.
    pub log: &'a [u8],
    /// Register values of the SHA-256 bank that were read beside it. Without them those stand in
    /// that the log leads to.
    pub pcrs: Option<&'a BTreeMap<u8, [u8; 32]>>,
}

/// What it is judged by.
#[derive(Debug, Clone, Copy)]
pub struct RecordedContext<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// Class of the machine; none as for one that is not enrolled, but enforced as for one that is.
    pub class: Option<&'a str>,
    /// Every image that may run.
    pub catalog: &'a [CatalogEntry],
    /// The time it is judged at.
    pub time: TimeTrust,
}

/// What came out.
#[derive(Debug, Clone)]
pub struct RecordedVerdict {
    /// Rows 9 to 14.
    pub checks: Vec<CheckResult>,
    /// Failures that refuse; the policy passes the boot when there are none.
    pub refused: Vec<Reason>,
    /// Failures that are written down, and what passes only for a while.
    pub reported: Vec<Reason>,
    /// SHA-256 of the file of the UKI that booted, hex.
    pub image_sha256: Option<String>,
    /// Oddities, by id.
    pub quirks: Vec<&'static str>,
}

/// Judges a recorded boot.
pub fn appraise_recorded(boot: &RecordedBoot<'_>, ctx: &RecordedContext<'_>) -> RecordedVerdict {
    let mut judge = Judge::default();
    let mut facts = Facts::default();
    let mode = |check| ctx.policy.mode(check, ctx.class);
    match boot.pcrs {
        Some(pcrs) => {
            let covered = selection(ctx.policy.pcrs(ctx.class), pcrs);
            judge.row(Check::Quote, Mode::Enforce, covered);
        }
        None => judge.skip(
            Check::Quote,
            Mode::Enforce,
            "no register values were given: those that the log leads to stand in",
        ),
    }
    let mut quirks = Vec::new();
    let log = replay::parsed(boot.log, &mut quirks).and_then(|log| {
        let differences = boot
            .pcrs
            .map(|pcrs| replay::differences(&log, &wanted(ctx, pcrs), "read"))
            .unwrap_or_default();
        all_or_none(differences).map(|()| Verified(log))
    });
    facts.note(&quirks);
    match judge.row(Check::EventLog, mode(Check::EventLog), log) {
        Some(log) => {
            let pcrs = boot.pcrs.cloned().unwrap_or_else(|| fixed(&log));
            let rules = ctx.policy.boot(ctx.class);
            let (told, reasons) =
                boot_policy::appraise_boot(&log, &pcrs, ctx.catalog, rules, ctx.time);
            facts.note(&told.quirks);
            facts.image_sha256 = told.image_sha256;
            judge.row(Check::Boot, mode(Check::Boot), all_or_none(reasons));
            judge.report(told.graced);
        }
        None => judge.skip(
            Check::Boot,
            mode(Check::Boot),
            "the event log does not match the register values",
        ),
    }
    for check in [Check::Platform, Check::Port, Check::Freshness] {
        judge.skip(check, mode(check), "an event log does not tell");
    }
    RecordedVerdict {
        checks: judge.checks,
        refused: judge.enforced,
        reported: judge.reported,
        image_sha256: facts.image_sha256,
        quirks: facts.quirks,
    }
}

/// The values that the policy wants quoted; others may change after the log was read (PCR 10).
fn wanted(ctx: &RecordedContext<'_>, pcrs: &BTreeMap<u8, [u8; 32]>) -> BTreeMap<u8, [u8; 32]> {
    let wanted = ctx.policy.pcrs(ctx.class);
    pcrs.iter()
        .filter(|(pcr, _)| wanted.contains(pcr))
        .map(|(pcr, value)| (*pcr, *value))
        .collect()
}

/// Register 15 is the session's: a machine at rest has nothing in it that a log could tell.
fn selection(wanted: &[u8], pcrs: &BTreeMap<u8, [u8; 32]>) -> Result<(), Vec<Reason>> {
    let missing: Vec<u8> = wanted
        .iter()
        .copied()
        .filter(|pcr| *pcr != 15 && !pcrs.contains_key(pcr))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(vec![Reason::new(
        "quote.selection",
        format!("values of PCRs {wanted:?}, SHA-256 bank"),
        format!("none of {missing:?}"),
        "policy quote.pcrs",
        "read all of them on the machine: tpm2_pcrread sha256",
    )])
}

fn fixed(log: &Log<'_>) -> BTreeMap<u8, [u8; 32]> {
    let values = replay::values(log).into_iter();
    values
        .filter_map(|(pcr, value)| Some((pcr, value.try_into().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_log_refuses_where_the_boot_is_enforced() {
        let refused = |policy: &Policy| {
            let boot = RecordedBoot {
                log: b"no log",
                pcrs: None,
            };
            let context = RecordedContext {
                policy,
                class: None,
                catalog: &[],
                time: TimeTrust::None,
            };
            appraise_recorded(&boot, &context).refused
        };
        let reasons = refused(&Policy::boot_without_its_log());
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert_eq!(reasons[0].code, "eventlog.malformed");
        let observe = Policy::preset(crate::policy::Preset::Observe);
        assert!(refused(&observe).is_empty());
    }
}
