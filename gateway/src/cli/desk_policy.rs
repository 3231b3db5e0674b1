//! `vestibule policy test` and `policy learn`: a policy at a desk, with a recorded boot.
//!
//! Judging and drafting are the core's (`appraisal::recorded`, `appraisal::draft`); this file reads, prints
//! and chooses the exit code. Nothing here changes what is in force.

use std::fmt::Write as _;
use std::path::Path;

use gateway_core::appraisal::draft::{DraftContext, draft};
use gateway_core::appraisal::recorded::{
    RecordedBoot, RecordedContext, RecordedVerdict, appraise_recorded,
};
use gateway_core::appraisal::{CheckResult, Outcome};
use gateway_core::reason::Reason;
use serde::Serialize;

use super::machine::plain;
use super::recorded::{CatalogArgs, RecordedArgs, manifest};
use super::{Exit, Failure, Output};
use crate::config::PolicySource;
use crate::inventory::load_policy;

#[derive(Serialize)]
struct Report<'a> {
    /// Whether the policy passes the boot.
    passes: bool,
    class: Option<&'a str>,
    /// The time it was judged at.
    at: &'a str,
    policy_sha256: String,
    image_sha256: Option<&'a str>,
    quirks: &'a [&'static str],
    checks: &'a [CheckResult],
    /// What passes for now and is written down.
    reported: &'a [Reason],
}

/// `vestibule policy test`
///
/// Exit code 0 when the policy passes the boot, 1 when it refuses, 2 when a file cannot be read, the policy
/// has mistakes or has classes and not this one.
pub(super) fn test(
    out: &Output,
    policy: &Path,
    recorded: &RecordedArgs,
    class: Option<&str>,
    catalog: &CatalogArgs,
) -> Result<Exit, Failure> {
    let policy = load_policy(&PolicySource::File(policy.to_owned()))?;
    if let Some(class) = class.filter(|class| policy.lacks(class)) {
        let text = format!(
            "--class: expected a class of the policy ({}), found {class:?}",
            policy.classes_text()
        );
        return Err(Failure::told(Exit::Usage, text));
    }
    let catalog = catalog.entries()?;
    let boot = recorded.read()?;
    let verdict = appraise_recorded(
        &RecordedBoot {
            log: &boot.log,
            pcrs: boot.pcrs.as_ref(),
        },
        &RecordedContext {
            policy: &policy,
            class,
            catalog: &catalog,
            time: boot.time,
        },
    );
    let report = Report {
        passes: verdict.refused.is_empty(),
        class,
        at: &boot.at,
        policy_sha256: hex::encode(policy.sha256()),
        image_sha256: verdict.image_sha256.as_deref(),
        quirks: &verdict.quirks,
        checks: &verdict.checks,
        reported: &verdict.reported,
    };
    out.print(&report, || text(&verdict));
    Ok(match verdict.refused.is_empty() {
        true => Exit::Done,
        false => Exit::Refused,
    })
}

fn text(verdict: &RecordedVerdict) -> String {
    let mut text = String::new();
    for check in &verdict.checks {
        let (word, reasons): (String, &[Reason]) = match &check.outcome {
            Outcome::Passed => ("passed".into(), &[]),
            Outcome::Failed { reasons } => (format!("failed, {}", check.mode), reasons),
            Outcome::NotJudged { why } => (format!("not judged: {why}"), &[]),
        };
        let _ = writeln!(text, "row {:>2}  {:<10} {word}", check.row, check.check);
        for reason in reasons {
            let _ = writeln!(text, "        {}", plain(&reason.to_string()));
        }
        if let Some(tolerated) = &check.tolerated {
            let _ = writeln!(text, "        passes with: {}", plain(tolerated));
        }
    }
    let _ = match verdict.refused.len() {
        0 => writeln!(
            text,
            "the policy passes this boot; no quote vouches for its log"
        ),
        count => writeln!(text, "the policy refuses this boot, for {count} reason(s)"),
    };
    text
}

/// `vestibule policy learn`
///
/// Exit code 0 when the draft passes its own boot, 1 when it does not (the draft says why) or the log cannot be
/// read, 2 when a file cannot be opened.
pub(super) fn learn(
    out: &Output,
    recorded: &RecordedArgs,
    catalog: Option<&Path>,
    dbx_entries: bool,
) -> Result<Exit, Failure> {
    let artefacts = catalog.map(manifest).transpose()?;
    let entries = artefacts.unwrap_or_default().into_iter();
    let catalog: Vec<_> = entries
        .map(gateway_core::catalog::CatalogEntry::new)
        .collect();
    let boot = recorded.read()?;
    let drafted = draft(
        &RecordedBoot {
            log: &boot.log,
            pcrs: boot.pcrs.as_ref(),
        },
        &DraftContext {
            catalog: &catalog,
            dbx_entries,
            time: boot.time,
        },
    )
    .map_err(|reasons| {
        let lines: Vec<String> = reasons.iter().map(|r| plain(&r.to_string())).collect();
        Failure::told(
            Exit::Refused,
            format!("{}: {}", recorded.evidence.display(), lines.join("; ")),
        )
    })?;
    let value = serde_json::json!({ "policy": drafted.text, "refused": drafted.refused });
    out.print(&value, || drafted.text.clone());
    Ok(match drafted.refused.is_empty() {
        true => Exit::Done,
        false => Exit::Refused,
    })
}
