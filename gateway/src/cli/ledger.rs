//! `vestibule ledger`: verify and export on files, show on a running appliance.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde_json::json;

use super::client::Client;
use super::{Exit, Failure, LedgerCommand, Output};
use crate::admin::types::LedgerPage;

/// `vestibule ledger ...`
pub(super) fn run(out: &Output, command: LedgerCommand) -> Result<Exit, Failure> {
    match command {
        LedgerCommand::Verify { path, ca } => verify(out, &path, &ca),
        LedgerCommand::Export {
            path,
            out: file,
            show_names,
        } => export(out, &path, &file, show_names),
        LedgerCommand::Adopt {
            config,
            update_key,
            why,
        } => super::appliance::adopt(out, &config.load()?, &update_key, &why),
        LedgerCommand::Show { from, max, desk } => {
            let page: LedgerPage =
                Client::open(&desk)?.get(&format!("/v1/ledger?from={from}&max={max}"))?;
            out.print(&page, || {
                page.entries
                    .iter()
                    .filter_map(|entry| serde_json::to_string(entry).ok())
                    .map(|line| line + "\n")
                    .collect()
            });
            Ok(Exit::Done)
        }
    }
}

fn verify(out: &Output, path: &Path, ca: &Path) -> Result<Exit, Failure> {
    let anchor = super::read_certificate(ca)?;
    let report = store::verify(path, &anchor).map_err(|error| failure(&error))?;
    let head = hex::encode(report.head);
    let value = json!({
        "entries": report.entries,
        "segments": report.segments,
        "signatures": report.signatures,
        "first_seq": report.base.as_ref().map_or(1, |base| base.first_seq),
        "last_seq": report.last_seq,
        "head": head,
        "base": report.base.as_ref().map(|base| json!({
            "file": base.file,
            "first_segment": base.first_segment,
            "carried": base.carried,
            "leftover": base.leftover,
        })),
    });
    out.print(&value, || {
        let begins = report.base.as_ref().map(|base| {
            format!(
                "\nbegins at entry {} (segment {}): what was before was removed by the retention rule; the \
                 signed base in {} vouches for it and carries {} entries",
                base.first_seq,
                base.first_segment,
                base.file.display(),
                base.carried
            )
        });
        format!(
            "verified: {} entries, {} segments, {} signatures, head {head}{}",
            report.entries,
            report.segments,
            report.signatures,
            begins.unwrap_or_default()
        )
    });
    Ok(Exit::Done)
}

fn export(out: &Output, path: &Path, file: &Path, show_names: bool) -> Result<Exit, Failure> {
    let unwritable = |error: std::io::Error| {
        Failure::told(
            Exit::Storage,
            format!("cannot write {}: {error}", file.display()),
        )
    };
    let target = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .map_err(unwritable)?;
    let mut writer = BufWriter::new(target);
    let report = store::export(path, &mut writer, show_names).map_err(|error| failure(&error))?;
    writer.flush().map_err(unwritable)?;
    writer.get_ref().sync_all().map_err(unwritable)?;
    let head = hex::encode(report.head);
    let value = json!({ "entries": report.entries, "head": head });
    out.print(&value, || {
        format!("exported: {} entries, head {head}", report.entries)
    });
    Ok(Exit::Done)
}

/// A ledger that cannot be read is the storage's fault; one that does not hold is a failed check.
fn failure(error: &store::VerifyError) -> Failure {
    let exit = match error {
        store::VerifyError::Read { .. } | store::VerifyError::Write(_) => Exit::Storage,
        store::VerifyError::NotALedger { .. }
        | store::VerifyError::Edited { .. }
        | store::VerifyError::Missing { .. }
        | store::VerifyError::FrontCut { .. }
        | store::VerifyError::BadSignature { .. }
        | store::VerifyError::Untrusted { .. } => Exit::Refused,
    };
    let failure = Failure::new(exit, error);
    match exit {
        Exit::Refused => Failure::told(exit, format!("{}. {NEXT}", failure.text)),
        _ => failure,
    }
}

/// What to do about a ledger that does not hold.
const NEXT: &str = "Keep the folder as it is for the investigation and restore the newest copy that \
                    verifies (docs/OPERATIONS.md, ledger rolled back)";
