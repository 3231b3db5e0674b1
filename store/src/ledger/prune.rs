//! Takes the oldest segments off the ledger, once a base stands for them.
//!
//! The order is the caller's: the base is written (durable when [`Store::write_base`] returns), the
//! removal is recorded and anchored, then the files are removed. A power cut between leaves the whole
//! ledger, or the base and what is still there of the old segments; both replay to the same state.

use std::collections::BTreeSet;
use std::path::PathBuf;

use gateway_core::identity::UnixMillis;

use super::base::{self, Base, Start};
use super::entry::{Entry, Hash, Line};
use super::page::first_seq;
use super::segment::Frame;
use super::verify::{VerifyError, read_file};
use crate::error::StoreError;
use crate::frame::Frames;
use crate::{LEDGER_DIR, LedgerSigner, Store};

/// Where a ledger may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// First segment that is kept.
    pub first_segment: u64,
    /// Its first sequence.
    pub first_seq: u64,
    /// Segments before it.
    pub segments: u64,
}

impl Store {
    /// The last place before which every entry is older than `before`. The newest segment is always
    /// kept. `entries` are those of [`crate::OpenedLedger`].
    ///
    /// # Errors
    /// The ledger's folder cannot be read.
    pub fn ledger_cut(
        &self,
        entries: &[Entry],
        before: UnixMillis,
    ) -> Result<Option<Cut>, StoreError> {
        let Start { base, files, .. } = base::start(&self.ledger_dir())?;
        let begins = base.map_or(1, |base| base.manifest.first_seq);
        let young = entries
            .iter()
            .find(|entry| entry.seq >= begins && entry.time >= before);
        let end = young.map_or(u64::MAX, |entry| entry.seq);
        let mut cut = None;
        for (index, (number, path)) in files.iter().enumerate().skip(1) {
            let Some(first_seq) = first_seq(path)? else {
                break;
            };
            if first_seq > end {
                break;
            }
            if first_seq > begins {
                cut = Some(Cut {
                    first_segment: *number,
                    first_seq,
                    segments: index as u64,
                });
            }
        }
        Ok(cut)
    }

    /// Writes the base for a cut, with the entries of these sequences; durable when this returns. The
    /// last entry before the cut is always carried. Returns the digest of what was signed.
    ///
    /// # Errors
    /// One of the entries is not there, or the file cannot be written.
    pub fn write_base(
        &self,
        cut: Cut,
        carried: &BTreeSet<u64>,
        signer: &dyn LedgerSigner,
    ) -> Result<Hash, StoreError> {
        let dir = self.ledger_dir();
        let mut wanted = carried.clone();
        wanted.insert(cut.first_seq - 1);
        let lines = lines(base::start(&dir)?, cut.first_seq, &wanted)?;
        if lines.len() != wanted.len() {
            return Err(VerifyError::Missing {
                file: dir,
                expected: cut.first_seq - 1,
                found: format!("{} of {} entries to carry", lines.len(), wanted.len()),
            }
            .into());
        }
        base::write(&dir, signer, (cut.first_segment, cut.first_seq), &lines)
    }

    /// Removes what the base of `first_segment` stands for; how many segments went. Does nothing when
    /// nothing is left. The base must be the one that is on record: `sha256`, hex, is that of
    /// [`Store::write_base`].
    ///
    /// # Errors
    /// The base is not that one, or a file cannot be removed; the next start goes on.
    pub fn remove_before(&self, first_segment: u64, sha256: &str) -> Result<u64, StoreError> {
        let dir = self.ledger_dir();
        let files = super::verify::segments(&dir)?.into_iter();
        let files = files.chain(base::bases(&dir)?);
        if files.into_iter().all(|(number, _)| number >= first_segment) {
            return Ok(0);
        }
        let base = Base::read(&dir.join(base::file_name(first_segment)))?;
        if hex::encode(base.digest()?) != sha256 {
            return Err(VerifyError::Edited {
                file: base.path,
                seq: base.manifest.first_seq,
                why: format!("expected the base that is on record, {sha256}"),
            }
            .into());
        }
        base::remove_before(&dir, first_segment)
    }

    fn ledger_dir(&self) -> PathBuf {
        self.dir().join(LEDGER_DIR)
    }
}

/// The lines of the wanted entries before `first_seq`, in order.
fn lines(start: Start, first_seq: u64, wanted: &BTreeSet<u64>) -> Result<Vec<String>, StoreError> {
    let mut out = Vec::new();
    let mut take = |file: &PathBuf, text: &str| -> Result<(), VerifyError> {
        let line = Line::parse(text).map_err(|why| VerifyError::Edited {
            file: file.clone(),
            seq: 0,
            why: why.into(),
        })?;
        if line.seq < first_seq && wanted.contains(&line.seq) {
            out.push(text.to_owned());
        }
        Ok(())
    };
    if let Some(base) = &start.base {
        for line in &base.lines {
            take(&base.path, line)?;
        }
    }
    for (_, path) in &start.files {
        let bytes = read_file(path)?;
        for (_, payload) in Frames::new(&bytes) {
            let Ok(Frame::Commit { lines, .. }) = Frame::decode(payload) else {
                continue;
            };
            for text in lines.split('\n') {
                take(path, text)?;
            }
        }
    }
    Ok(out)
}
