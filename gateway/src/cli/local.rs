//! Commands on this machine's own files: configuration and state directory.

use std::path::Path;

use serde_json::json;

use super::{Exit, Failure, Output};
use crate::config::Config;
use crate::images::Images;
use crate::inventory::{Declared, unmatched};

/// `vestibule config check`: the file itself was checked when it was loaded; here come the files
/// it names, every one that fails.
pub(super) fn check_config(
    out: &Output,
    config: &Config,
    without_images: bool,
) -> Result<Exit, Failure> {
    let mut problems: Vec<Failure> = Vec::new();
    let mut warnings: Vec<String> = Vec::new();
    let declared = match Declared::load(config) {
        Ok(declared) => Some(declared),
        Err(error) => {
            problems.push(error.into());
            None
        }
    };
    if !without_images {
        match (Images::load(&config.boot), &declared) {
            (Ok((catalog, _)), Some(declared)) => {
                let (policy, artefacts) = (&declared.policy, catalog.artefacts());
                let unknown = unmatched::images(policy, artefacts);
                if !unknown.is_empty() {
                    let text = format!(
                        "policy: expected names of images of the catalogue, found {}",
                        unknown.join(", ")
                    );
                    problems.push(Failure::told(Exit::Usage, text));
                }
                warnings.extend(unmatched::withdrawals(policy, artefacts));
            }
            (Ok(_), None) => {}
            (Err(error), _) => problems.push(error.into()),
        }
    }
    if let Err(error) = crate::talos::Templates::load(&config.talos) {
        problems.push(Failure::new(Exit::Usage, &error));
    }
    if let Some(declared) = &declared {
        warnings.extend(unmatched::classes(&declared.policy, &declared.inventory));
        warnings.extend(unmatched::deltas(&declared.ek_roots));
    }
    if let Some(first) = problems.first() {
        let lines: Vec<&str> = problems.iter().map(|f| f.text.as_str()).collect();
        return Err(Failure::told(first.exit, lines.join("\n")));
    }
    let machines = declared.as_ref().map_or(0, |d| d.inventory.machines.len());
    let roots = declared.as_ref().map_or(0, |d| d.ek_roots.len());
    let crls = declared.as_ref().map_or(0, |d| d.ek_roots.crl_count());
    let value = json!({
        "ok": true,
        "machines": machines,
        "ek_roots": roots,
        "ek_crls": crls,
        "warnings": warnings,
    });
    out.print(&value, || {
        let mut text: String = warnings
            .iter()
            .map(|warning| format!("warning: {warning}\n"))
            .collect();
        text.push_str(&format!(
            "ok: {machines} declared machines, {roots} EK roots, {crls} revocation lists"
        ));
        text
    });
    Ok(Exit::Done)
}

/// `vestibule store check`
pub(super) fn check_store(
    out: &Output,
    config: &Config,
    anchor: Option<&Path>,
) -> Result<Exit, Failure> {
    let anchor = anchor.map(super::read_certificate).transpose()?;
    let report = store::check(&config.appliance.state_dir, anchor.as_deref())?;
    let entries = report.ledger.as_ref().map(|ledger| ledger.entries);
    let value = json!({
        "ledger_entries": entries,
        "leases": report.leases,
        "marks": report.marks,
        "seals": report.seals,
        "secrets": report.secrets,
        "documents": report.documents,
        "torn_bytes": report.torn_bytes,
        "problems": report.problems,
    });
    out.print(&value, || {
        let mut text = format!(
            "ledger entries  {}\nleases          {}\nwalk marks      {}\nsealed blobs    {}\nsecrets         {}\ndocuments       {}\ntorn bytes      {}\n",
            entries.map_or_else(|| "none".to_owned(), |n| n.to_string()),
            report.leases,
            report.marks,
            report.seals.join(" "),
            report.secrets.join(" "),
            report.documents.join(" "),
            report.torn_bytes,
        );
        for problem in &report.problems {
            text.push_str(&format!("problem         {problem}\n"));
        }
        text
    });
    Ok(if report.problems.is_empty() {
        Exit::Done
    } else {
        Exit::Refused
    })
}

/// `vestibule store rebuild`
pub(super) fn rebuild_store(
    out: &Output,
    config: &Config,
    anchor: Option<&Path>,
) -> Result<Exit, Failure> {
    let anchor = anchor.map(super::read_certificate).transpose()?;
    let report = store::rebuild(&config.appliance.state_dir, anchor.as_deref())?;
    let value = json!({
        "ledger_entries": report.entries,
        "leases": report.leases,
        "carried": report.carried,
        "old_database": report.old_database,
        "lost": report.lost,
    });
    out.print(&value, || {
        let mut text = format!(
            "ledger entries  {}\nleases          {}\ncarried over    {}\n",
            report.entries, report.leases, report.carried
        );
        if let Some(old) = &report.old_database {
            text.push_str(&format!("old database    {}\n", old.display()));
        }
        for lost in &report.lost {
            text.push_str(&format!("not restored    {lost}\n"));
        }
        text
    });
    Ok(Exit::Done)
}
