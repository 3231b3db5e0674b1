//! `store check` and `store rebuild`: is the state directory sound, and what can be had back.
//!
//! A rebuild drops the views and replays them from the journals. It cannot make again what only the
//! database held: sealed blobs, encrypted secrets and certificates are carried over while the old
//! database still opens, and named as lost otherwise: then only a backup has them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::journal::{self, Recovered};
use crate::kept::Kept;
use crate::ledger::{Depth, OnTornTail, Report, scan_dir};
use crate::views::Views;
use crate::{DATABASE_DIR, INFRA_CA, JOURNAL_FILE, LEDGER_DIR, file, lock};

/// What `store check` found. Sound when `problems` is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// The ledger, when it verifies.
    pub ledger: Option<Report>,
    /// Leases in the journal, of both families.
    pub leases: usize,
    /// Walk marks in the journal.
    pub marks: usize,
    /// Names of sealed blobs.
    pub seals: Vec<String>,
    /// Names of encrypted secrets.
    pub secrets: Vec<String>,
    /// Names of public documents.
    pub documents: Vec<String>,
    /// Interrupted writes that the next start will cut, in bytes.
    pub torn_bytes: u64,
    /// What is wrong, one line each.
    pub problems: Vec<String>,
}

/// What `store rebuild` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildReport {
    /// Ledger entries that hold; the daemon derives the machines from them at its next start.
    pub entries: u64,
    /// Leases replayed into the view.
    pub leases: usize,
    /// Where the old database was put.
    pub old_database: Option<PathBuf>,
    /// Sealed blobs, secrets and documents carried over.
    pub carried: usize,
    /// What could not be restored and where to get it, one line each.
    pub lost: Vec<String>,
}

fn infra_ca(views: Option<&Views>, given: Option<&[u8]>) -> Result<Option<Vec<u8>>, StoreError> {
    match (given, views) {
        (Some(given), _) => Ok(Some(given.to_vec())),
        (None, Some(views)) => views.get(Kept::Public, INFRA_CA),
        (None, None) => Ok(None),
    }
}

fn ledger_report(dir: &Path, infra_ca_der: &[u8]) -> Result<Option<Report>, StoreError> {
    let dir = dir.join(LEDGER_DIR);
    if !dir.is_dir() {
        return Ok(None);
    }
    let scanned = scan_dir(
        &dir,
        infra_ca_der,
        Depth::Every,
        OnTornTail::Cut,
        &mut |_| {},
    )?;
    Ok(Some(scanned.report))
}

/// The error with its causes, in one line.
fn line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text.push_str(": ");
        text.push_str(&e.to_string());
        cause = e.source();
    }
    text
}

/// Checks a state directory that no daemon is using. Changes nothing but sled's own files.
///
/// `infra_ca_der` stands in for the certificate kept in the store.
///
/// # Errors
/// Only when the check cannot be done at all: the directory is in use or cannot be read.
pub fn check(dir: &Path, infra_ca_der: Option<&[u8]>) -> Result<CheckReport, StoreError> {
    let _lock = lock(dir)?;
    let mut problems = Vec::new();
    let views = Views::open(&dir.join(DATABASE_DIR))
        .inspect_err(|e| problems.push(line(e)))
        .ok();
    let journal = journal::inspect(&dir.join(JOURNAL_FILE))
        .inspect_err(|e| problems.push(line(e)))
        .ok();
    let ledger = match infra_ca(views.as_ref(), infra_ca_der)? {
        Some(ca) => ledger_report(dir, &ca).unwrap_or_else(|e| {
            problems.push(line(&e));
            None
        }),
        None => {
            problems
                .push("the infra CA certificate is not in the store: give it by --anchor".into());
            None
        }
    };
    let mut names = [const { Vec::new() }; 3];
    if let Some(views) = &views {
        if let Err(e) = views.require_kept() {
            problems.push(line(&e));
        }
        let (applied_ledger, applied_journal) = views.applied()?;
        let ledger_seq = ledger.as_ref().map(|l| l.last_seq);
        let journal_seq = journal.as_ref().map(|(_, next)| next - 1);
        for (what, applied, found) in [
            (LEDGER_DIR, applied_ledger, ledger_seq),
            (JOURNAL_FILE, applied_journal, journal_seq),
        ] {
            if let Some(found) = found
                && applied > found
            {
                let file = dir.join(what);
                problems.push(line(&StoreError::RolledBack {
                    file,
                    applied,
                    found,
                }));
            }
        }
        for (names, tree) in names.iter_mut().zip(Kept::ALL) {
            *names = views.names(tree)?;
        }
    }
    let recovered = journal.map_or_else(Recovered::default, |(recovered, _)| recovered);
    let [seals, secrets, documents] = names;
    Ok(CheckReport {
        torn_bytes: recovered.cut_bytes + ledger.as_ref().map_or(0, |l| l.torn_bytes),
        ledger,
        leases: recovered.leases.len() + recovered.leases6.len(),
        marks: recovered.marks.len(),
        seals,
        secrets,
        documents,
        problems,
    })
}

/// Drops the database and makes a new one from the journals, carrying over what only the old one
/// held when it still opens.
///
/// The old database is kept beside the new one. Accepts a ledger that is shorter than what had been
/// acknowledged: the operator was told by [`StoreError::RolledBack`].
///
/// # Errors
/// The directory is in use or not writable, or a journal is damaged: views are never rebuilt from
/// records that do not hold.
pub fn rebuild(dir: &Path, infra_ca_der: Option<&[u8]>) -> Result<RebuildReport, StoreError> {
    let _lock = lock(dir)?;
    let database = dir.join(DATABASE_DIR);
    let (recovered, next_seq) = journal::inspect(&dir.join(JOURNAL_FILE))?;
    let mut lost = Vec::new();
    let old = if database.is_dir() {
        Views::open(&database)
            .inspect_err(|e| lost.push(format!("the old database does not open: {}", line(e))))
            .ok()
    } else {
        None
    };
    if let Some(Err(e)) = old.as_ref().map(Views::require_kept) {
        lost.push(line(&e));
    }
    let mut carried = Vec::new();
    for tree in Kept::ALL {
        match old.as_ref().map(|old| carry(old, tree)) {
            Some(Ok(values)) => carried.extend(values),
            Some(Err(e)) => lost.push(format!("{}: {}", lost_text(tree), line(&e))),
            None => lost.push(lost_text(tree).into()),
        }
    }
    let entries = match infra_ca(old.as_ref(), infra_ca_der)? {
        Some(ca) => ledger_report(dir, &ca)?.map_or(0, |report| report.last_seq),
        None => {
            lost.push(
                "the ledger was not verified: give the infra CA certificate by --anchor".into(),
            );
            0
        }
    };
    drop(old);
    let old_database = put_aside(&database)?;
    let new = Views::open(&database)?;
    let values: Vec<_> = carried
        .iter()
        .map(|(tree, name, value)| (*tree, name.as_str(), value.as_slice()))
        .collect();
    new.apply(
        &recovered.all_leases(),
        std::iter::empty(),
        entries,
        next_seq - 1,
    )?;
    new.put(&values)?;
    new.forget_missing()?;
    Ok(RebuildReport {
        entries,
        leases: recovered.leases.len() + recovered.leases6.len(),
        old_database,
        carried: values.len(),
        lost,
    })
}

fn carry(old: &Views, tree: Kept) -> Result<Vec<(Kept, String, Vec<u8>)>, StoreError> {
    let mut values = Vec::new();
    for name in old.names(tree)? {
        if let Some(value) = old.get(tree, &name)? {
            values.push((tree, name, value));
        }
    }
    Ok(values)
}

fn lost_text(tree: Kept) -> &'static str {
    match tree {
        Kept::Seal => "sealed blobs are lost: only a backup of the state folder has them",
        Kept::Secret => {
            "encrypted secrets (the CA keys) are lost: only a backup of the state folder has them"
        }
        Kept::Public => {
            "certificates are lost: restore them from a backup, or from what `vestibule ca export` wrote"
        }
    }
}

/// Renames the database folder to the first free `db.old-N`.
fn put_aside(database: &Path) -> Result<Option<PathBuf>, StoreError> {
    if !database.exists() {
        return Ok(None);
    }
    let free = (1u32..)
        .map(|n| database.with_extension(format!("old-{n}")))
        .find(|path| !path.exists())
        .expect("a directory has fewer than 2^32 entries");
    fs::rename(database, &free)
        .and_then(|()| file::sync_parent(database))
        .map_err(|e| StoreError::io("put aside", database, e))?;
    Ok(Some(free))
}
