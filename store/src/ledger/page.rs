//! Reads a range of the ledger while the committer appends to it: for the admin page and API.
//!
//! Reads what the daemon itself wrote and had verified at its start; checks no signature.

use std::fs;
use std::path::{Path, PathBuf};

use super::base;
use super::entry::{Entry, Line};
use super::segment::{Frame, Header};
use crate::error::StoreError;
use crate::frame::Frames;

/// Reads ranges of entries. Cheap to clone, usable from any thread; blocks on the disk.
#[derive(Debug, Clone)]
pub struct LedgerReader {
    dir: PathBuf,
}

impl LedgerReader {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Up to `limit` durable entries from sequence `from` on, carried ones of a base first. A commit that is being written is not
    /// there yet.
    ///
    /// # Errors
    /// A segment cannot be read, or was damaged while the daemon ran.
    pub fn page(&self, from: u64, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let mut out = Vec::new();
        if !self.dir.exists() {
            return Ok(out);
        }
        let base::Start { base, files, .. } = base::start(&self.dir)?;
        let carried = base.map_or_else(Vec::new, |base| base.entries);
        let wanted = carried.into_iter().filter(|entry| entry.seq >= from);
        out.extend(wanted.take(limit));
        let start = segment_of(from, &files)?;
        for (_, path) in &files[start..] {
            if out.len() >= limit {
                break;
            }
            let bytes = read(path)?;
            for (offset, payload) in Frames::new(&bytes) {
                let damaged = |seq, why: String| StoreError::CorruptJournal {
                    file: path.clone(),
                    offset,
                    seq,
                    why,
                };
                let Frame::Commit { lines, .. } =
                    Frame::decode(payload).map_err(|why| damaged(from, why))?
                else {
                    continue;
                };
                for text in lines.split('\n') {
                    let line = Line::parse(text).map_err(|why| damaged(from, why.into()))?;
                    if line.seq < from || out.len() >= limit {
                        continue;
                    }
                    let record = line
                        .decode()
                        .map_err(|e| damaged(line.seq, e.to_string()))?;
                    out.push(Entry {
                        seq: line.seq,
                        time: line.time,
                        prev: line.prev,
                        hash: line.hash(),
                        record,
                    });
                }
            }
        }
        Ok(out)
    }
}

/// Index of the last segment that begins at or before `from`.
fn segment_of(from: u64, files: &[(u64, PathBuf)]) -> Result<usize, StoreError> {
    for (index, (_, path)) in files.iter().enumerate().rev() {
        if first_seq(path)?.is_some_and(|first| first <= from) {
            return Ok(index);
        }
    }
    Ok(0)
}

fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    fs::read(path).map_err(|e| StoreError::io("read", path, e))
}

/// From the header alone; none while the segment is being created.
pub(super) fn first_seq(path: &Path) -> Result<Option<u64>, StoreError> {
    use std::io::Read as _;
    /// A header holds a few certificates in hex.
    const HEADER_MAX_BYTES: u64 = 64 * 1024;
    let mut head = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(HEADER_MAX_BYTES).read_to_end(&mut head))
        .map_err(|e| StoreError::io("read", path, e))?;
    let first = Frames::new(&head).next();
    Ok(match first.map(|(_, payload)| Frame::decode(payload)) {
        Some(Ok(Frame::Header(Header { first_seq, .. }))) => Some(first_seq),
        _ => None,
    })
}
