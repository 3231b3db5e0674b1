//! Does a ledger hold together? For an auditor with nothing but the infra CA certificate, and for
//! the daemon at its start.
//!
//! Decides whether entries were edited, removed or added by somebody without the ledger key. Cannot
//! see that the newest commits were cut off as a whole: the views of a running appliance and an
//! export's last line can.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::base::{self, Base};
use super::entry::{Entry, Hash, Line};
use super::segment::{self, Checkpoint, Frame, Header};
use super::trust::TrustedLeaf;
use super::{CHECKPOINT_LABEL, HEAD_LABEL};
use crate::frame::{Frames, Tail};

/// What a verified ledger holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Entries read.
    pub entries: u64,
    /// Segments read; 1 for an export.
    pub segments: u64,
    /// Signatures checked.
    pub signatures: u64,
    /// Sequence of the last entry, 0 when there is none.
    pub last_seq: u64,
    /// Hash of the last entry.
    pub head: Hash,
    /// Bytes of an interrupted write behind the last commit: unsigned and never acknowledged.
    pub torn_bytes: u64,
    /// What stands for the segments that were removed, if any were.
    pub base: Option<BaseReport>,
}

/// What a pruned ledger begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseReport {
    /// The signed file that vouches for it; the export itself for an export.
    pub file: PathBuf,
    /// First segment that is kept.
    pub first_segment: u64,
    /// First sequence from which on every entry is there.
    pub first_seq: u64,
    /// Entries before it that are carried.
    pub carried: u64,
    /// Segments before it that are not removed yet.
    pub leftover: u64,
}

impl BaseReport {
    pub(super) fn new(file: &Path, manifest: &base::Manifest, leftover: u64) -> Self {
        Self {
            file: file.to_path_buf(),
            first_segment: manifest.first_segment,
            first_seq: manifest.first_seq,
            carried: manifest.carried,
            leftover,
        }
    }
}

/// Why a ledger does not verify. `seq` is the first entry that cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// Nothing to read.
    #[error("cannot read {}", file.display())]
    Read {
        /// The file or folder.
        file: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The export cannot be written.
    #[error("cannot write the export")]
    Write(#[source] io::Error),
    /// The file is no ledger, or of a version this release does not know.
    #[error("{} is not a ledger of this release: {why}", file.display())]
    NotALedger {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Bytes were changed.
    #[error("{} was edited at entry {seq}: {why}", file.display())]
    Edited {
        /// The file.
        file: PathBuf,
        /// The entry.
        seq: u64,
        /// What does not fit.
        why: String,
    },
    /// Entries or whole segments are missing.
    #[error("{}: entries are missing: expected entry {expected}, found {found}", file.display())]
    Missing {
        /// The file where it shows.
        file: PathBuf,
        /// Next sequence by the chain.
        expected: u64,
        /// Sequence found there, or `nothing`.
        found: String,
    },
    /// The oldest segments are missing and no signed base stands for them.
    #[error(
        "{}: the front of the ledger was cut: expected segment 1, or a signed base of the first segment \
         that is there; found {found}. Restore the folder from a backup",
        dir.display()
    )]
    FrontCut {
        /// The ledger's folder.
        dir: PathBuf,
        /// What is there.
        found: String,
    },
    /// A signature is not by the segment's ledger key.
    #[error("{}: the signature over entry {seq} is not by the ledger key", file.display())]
    BadSignature {
        /// The file.
        file: PathBuf,
        /// Last entry that the signature covers.
        seq: u64,
    },
    /// The ledger key is not certified for this by the infra CA given.
    #[error("{}: {why}", file.display())]
    Untrusted {
        /// The file.
        file: PathBuf,
        /// Why.
        why: String,
    },
}

/// The state at the end of a scan: what the writer needs to go on.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub report: Report,
    pub next_seq: u64,
    pub last: Option<LastSegment>,
}

/// The newest segment file.
#[derive(Debug)]
pub(crate) struct LastSegment {
    pub number: u64,
    pub path: PathBuf,
    /// None when not even the header is whole.
    pub header: Option<Header>,
    /// End of the last good frame.
    pub good_bytes: u64,
    pub closed: bool,
    pub entries: u64,
}

/// How much of a ledger's signatures to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Every one.
    Every,
    /// The last of each segment: it covers all entries before it through the hash chain.
    Newest,
}

/// What to make of a last frame that is whole in length and wrong in contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnTornTail {
    /// An edit: nobody else is writing, and an auditor must hear of it.
    Refuse,
    /// A power cut: the daemon cuts it, and the views tell if it had been acknowledged.
    Cut,
}

/// Verifies a ledger folder or an exported file against the infra CA certificate (DER).
///
/// # Errors
/// The first thing that does not hold, with file and entry.
pub fn verify(path: &Path, infra_ca_der: &[u8]) -> Result<Report, VerifyError> {
    if path.is_dir() {
        let inner = path.join(crate::LEDGER_DIR);
        let dir = if inner.is_dir() { &inner } else { path };
        let found = segments(dir)?;
        if found.is_empty() {
            return Err(VerifyError::NotALedger {
                file: dir.to_path_buf(),
                why: "no segment file in it".into(),
            });
        }
        let scanned = scan_dir(
            dir,
            infra_ca_der,
            Depth::Every,
            OnTornTail::Refuse,
            &mut |_| {},
        )?;
        return Ok(scanned.report);
    }
    super::export::verify_export(path, infra_ca_der)
}

/// Segment files in order of their number.
pub(crate) fn segments(dir: &Path) -> Result<Vec<(u64, PathBuf)>, VerifyError> {
    numbered(dir, segment::parse_file_name)
}

/// A whole file of the ledger.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, VerifyError> {
    fs::read(path).map_err(|source| VerifyError::Read {
        file: path.to_path_buf(),
        source,
    })
}

/// Files whose name `parse` gives a number, in order of it.
pub(super) fn numbered(
    dir: &Path,
    parse: impl Fn(&str) -> Option<u64>,
) -> Result<Vec<(u64, PathBuf)>, VerifyError> {
    let read = |source| VerifyError::Read {
        file: dir.to_path_buf(),
        source,
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(read)? {
        let entry = entry.map_err(read)?;
        if let Some(number) = entry.file_name().to_str().and_then(&parse) {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Reads all segments, checks them, and hands each entry to `visit` in order.
pub(crate) fn scan_dir(
    dir: &Path,
    infra_ca_der: &[u8],
    depth: Depth,
    on_torn: OnTornTail,
    visit: &mut dyn FnMut(Entry),
) -> Result<Scanned, VerifyError> {
    let base::Start {
        base,
        files,
        leftover,
    } = base::start(dir)?;
    let mut chain = Chain::default();
    let mut report = Report {
        entries: 0,
        segments: 0,
        signatures: 0,
        last_seq: 0,
        head: [0; 32],
        torn_bytes: 0,
        base: None,
    };
    let mut first_segment = 1;
    if let Some(base) = base {
        base.check(infra_ca_der)?;
        report.signatures += 1;
        report.base = Some(BaseReport::new(&base.path, &base.manifest, leftover));
        first_segment = base.manifest.first_segment;
        chain = Chain::after(&base);
        report.entries = base.manifest.carried;
        base.entries.into_iter().for_each(&mut *visit);
        if files.is_empty() {
            return Err(missing_segment(dir, first_segment, &chain));
        }
    }
    let mut last = None;
    for (index, (number, path)) in files.iter().enumerate() {
        let expected = first_segment + index as u64;
        if *number != expected {
            return Err(missing_segment(dir, expected, &chain));
        }
        let bytes = read_file(path)?;
        let newest = index + 1 == files.len();
        let mut scan = SegmentScan {
            path,
            number: *number,
            infra_ca_der,
            depth,
            header: None,
            leaf: None,
            unchecked: None,
            closed: false,
            entries: 0,
            signatures: 0,
        };
        let mut frames = Frames::new(&bytes);
        let mut good_bytes = 0;
        for (offset, payload) in frames.by_ref() {
            scan.frame(payload, &mut chain, visit)?;
            good_bytes = offset + (crate::frame::HEADER_BYTES + payload.len()) as u64;
        }
        scan.end(&chain)?;
        let edited = |why: &str| VerifyError::Edited {
            file: path.clone(),
            seq: chain.next_seq,
            why: why.into(),
        };
        match frames.tail() {
            Tail::Clean if scan.header.is_some() || newest => {}
            Tail::Clean => return Err(edited("the segment is empty")),
            Tail::Torn { complete: true, .. } if on_torn == OnTornTail::Refuse => {
                return Err(edited("its last commit does not match its digest"));
            }
            Tail::Torn { bytes, .. } if newest => report.torn_bytes = bytes,
            Tail::Torn { offset, .. } => {
                return Err(edited(&format!(
                    "the segment breaks off at byte {offset}, and another follows"
                )));
            }
            Tail::Damaged { offset } => {
                return Err(edited(&format!("damaged frame at byte {offset}")));
            }
        }
        report.segments += 1;
        report.entries += scan.entries;
        report.signatures += scan.signatures;
        last = Some(LastSegment {
            number: *number,
            path: path.clone(),
            header: scan.header,
            good_bytes,
            closed: scan.closed,
            entries: scan.entries,
        });
    }
    report.last_seq = chain.next_seq - 1;
    report.head = chain.head;
    Ok(Scanned {
        report,
        next_seq: chain.next_seq,
        last,
    })
}

fn missing_segment(dir: &Path, number: u64, chain: &Chain) -> VerifyError {
    VerifyError::Missing {
        file: dir.join(segment::file_name(number)),
        expected: chain.next_seq,
        found: "nothing: the segment is not there".into(),
    }
}

/// The hash chain so far.
pub(super) struct Chain {
    pub next_seq: u64,
    pub head: Hash,
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            next_seq: 1,
            head: [0; 32],
        }
    }
}

impl Chain {
    /// The chain that a base vouches for.
    pub(super) fn after(base: &Base) -> Self {
        Self {
            next_seq: base.manifest.first_seq,
            head: base.manifest.head,
        }
    }

    /// Takes the next line; its sequence and previous hash must fit.
    pub(super) fn accept(&mut self, file: &Path, text: &str) -> Result<Entry, VerifyError> {
        let edited = |why: String| VerifyError::Edited {
            file: file.to_path_buf(),
            seq: self.next_seq,
            why,
        };
        let line = Line::parse(text).map_err(|why| edited(why.into()))?;
        if line.seq != self.next_seq {
            return Err(VerifyError::Missing {
                file: file.to_path_buf(),
                expected: self.next_seq,
                found: line.seq.to_string(),
            });
        }
        if line.prev != self.head {
            return Err(edited("prev is not the hash of the entry before".into()));
        }
        let record = line
            .decode()
            .map_err(|e| edited(format!("record is not readable: {e}")))?;
        let hash = line.hash();
        self.next_seq += 1;
        self.head = hash;
        Ok(Entry {
            seq: line.seq,
            time: line.time,
            prev: line.prev,
            hash,
            record,
        })
    }
}

/// One segment while it is read.
struct SegmentScan<'a> {
    path: &'a Path,
    number: u64,
    infra_ca_der: &'a [u8],
    depth: Depth,
    header: Option<Header>,
    leaf: Option<TrustedLeaf>,
    /// Newest commit signature not yet checked.
    unchecked: Option<Vec<u8>>,
    closed: bool,
    entries: u64,
    signatures: u64,
}

impl SegmentScan<'_> {
    fn edited(&self, chain: &Chain, why: impl Into<String>) -> VerifyError {
        VerifyError::Edited {
            file: self.path.to_path_buf(),
            seq: chain.next_seq,
            why: why.into(),
        }
    }

    fn frame(
        &mut self,
        payload: &[u8],
        chain: &mut Chain,
        visit: &mut dyn FnMut(Entry),
    ) -> Result<(), VerifyError> {
        let frame = Frame::decode(payload).map_err(|why| self.edited(chain, why))?;
        if self.closed {
            return Err(self.edited(chain, "something follows the checkpoint"));
        }
        match frame {
            Frame::Header(header) if self.header.is_none() => self.begin(header, chain),
            Frame::Header(_) => Err(self.edited(chain, "a second header")),
            _ if self.header.is_none() => Err(self.edited(chain, "the header is missing")),
            Frame::Commit { signature, lines } => {
                for line in lines.split('\n') {
                    visit(chain.accept(self.path, line)?);
                    self.entries += 1;
                }
                self.unchecked = Some(signature.to_vec());
                if self.depth == Depth::Every {
                    self.check_newest(chain)?;
                }
                Ok(())
            }
            Frame::Checkpoint {
                signature,
                json,
                checkpoint,
            } => self.close(signature, json, &checkpoint, chain),
        }
    }

    fn begin(&mut self, header: Header, chain: &Chain) -> Result<(), VerifyError> {
        if header.version != segment::VERSION {
            return Err(VerifyError::NotALedger {
                file: self.path.to_path_buf(),
                why: format!("version {}, expected {}", header.version, segment::VERSION),
            });
        }
        if header.segment != self.number {
            return Err(self.edited(
                chain,
                format!(
                    "header of segment {} in segment {}",
                    header.segment, self.number
                ),
            ));
        }
        if header.first_seq != chain.next_seq {
            return Err(VerifyError::Missing {
                file: self.path.to_path_buf(),
                expected: chain.next_seq,
                found: header.first_seq.to_string(),
            });
        }
        if header.prev != chain.head {
            return Err(self.edited(chain, "the segment does not follow the one before"));
        }
        let leaf = TrustedLeaf::check(&header.chain, self.infra_ca_der).map_err(|why| {
            VerifyError::Untrusted {
                file: self.path.to_path_buf(),
                why,
            }
        })?;
        self.header = Some(header);
        self.leaf = Some(leaf);
        Ok(())
    }

    fn check(
        &mut self,
        label: &[u8],
        message: &[u8],
        signature: &[u8],
        seq: u64,
    ) -> Result<(), VerifyError> {
        let good = self
            .leaf
            .as_ref()
            .is_some_and(|leaf| leaf.signed(label, message, signature));
        if !good {
            return Err(VerifyError::BadSignature {
                file: self.path.to_path_buf(),
                seq,
            });
        }
        self.signatures += 1;
        Ok(())
    }

    fn check_newest(&mut self, chain: &Chain) -> Result<(), VerifyError> {
        match self.unchecked.take() {
            Some(signature) => self.check(HEAD_LABEL, &chain.head, &signature, chain.next_seq - 1),
            None => Ok(()),
        }
    }

    fn close(
        &mut self,
        signature: &[u8],
        json: &str,
        checkpoint: &Checkpoint,
        chain: &Chain,
    ) -> Result<(), VerifyError> {
        let first_seq = self.header.as_ref().map_or(0, |h| h.first_seq);
        let expected = Checkpoint {
            segment: self.number,
            first_seq,
            last_seq: chain.next_seq - 1,
            head: chain.head,
        };
        if *checkpoint != expected {
            return Err(self.edited(chain, "the checkpoint does not match the entries before it"));
        }
        self.check(
            CHECKPOINT_LABEL,
            json.as_bytes(),
            signature,
            expected.last_seq,
        )?;
        self.closed = true;
        Ok(())
    }

    fn end(&mut self, chain: &Chain) -> Result<(), VerifyError> {
        self.check_newest(chain)
    }
}
