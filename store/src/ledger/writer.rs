//! Appends group commits to the newest segment and opens the next one when it is full or when the
//! ledger key changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gateway_core::identity::UnixMillis;

use super::entry::{Hash, Line};
use super::segment::{self, Checkpoint, Header, VERSION, encode_checkpoint, encode_commit};
use super::verify::{Depth, LastSegment, OnTornTail};
use super::{CHECKPOINT_LABEL, Entry, HEAD_LABEL, LedgerSigner, Scanned, scan_dir, sign};
use crate::error::StoreError;
use crate::file::{self, AppendFile, Disk};
use crate::frame;

/// Segments are closed when they grow beyond this, in bytes, unless the configuration says
/// otherwise: some forty thousand verdicts, and still read whole at a start.
pub const SEGMENT_MAX_BYTES: u64 = 64 << 20;

/// The open end of the ledger.
pub(crate) struct LedgerWriter {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    signer: Box<dyn LedgerSigner>,
    segment_max_bytes: u64,
    path: PathBuf,
    file: Box<dyn AppendFile>,
    segment: u64,
    first_seq: u64,
    offset: u64,
    next_seq: u64,
    head: Hash,
}

impl LedgerWriter {
    /// Verifies what is there, cuts a torn tail, and stands at the end. Returns the entries and how
    /// many bytes were cut.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        signer: Box<dyn LedgerSigner>,
        infra_ca_der: &[u8],
        segment_max_bytes: u64,
    ) -> Result<(Self, Vec<Entry>, u64), StoreError> {
        file::create_dir(dir)?;
        let mut entries = Vec::new();
        let Scanned {
            report,
            next_seq,
            last,
        } = scan_dir(
            dir,
            infra_ca_der,
            Depth::Newest,
            OnTornTail::Cut,
            &mut |e| {
                entries.push(e);
            },
        )?;
        // A key that the infra CA did not certify for this would make a ledger nobody can verify.
        super::trust::TrustedLeaf::check(&signer.chain_der(), infra_ca_der)
            .map_err(|why| StoreError::Signer { why })?;
        let place = Place {
            disk: disk.as_ref(),
            dir,
            next_seq,
            head: report.head,
        };
        let opened = place.reopen(last, signer.as_ref())?;
        let writer = Self {
            dir: dir.to_path_buf(),
            signer,
            segment_max_bytes,
            path: opened.path,
            file: opened.file,
            segment: opened.segment,
            first_seq: opened.first_seq,
            offset: opened.offset,
            next_seq,
            head: report.head,
            disk,
        };
        Ok((writer, entries, report.torn_bytes))
    }

    /// Sequence the next entry gets.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Hash of the last entry.
    pub(crate) fn head(&self) -> Hash {
        self.head
    }

    /// Appends these records (JSON) as one signed group commit and returns when it is durable.
    pub(crate) fn commit<'a>(
        &mut self,
        records: impl ExactSizeIterator<Item = (UnixMillis, &'a str)>,
    ) -> Result<(), StoreError> {
        if self.offset >= self.segment_max_bytes {
            self.rotate()?;
        }
        let mut salts = vec![0u8; 16 * records.len()];
        aws_lc_rs::rand::fill(&mut salts).map_err(|_| StoreError::Resource {
            what: "the random number generator",
        })?;
        let (mut seq, mut head) = (self.next_seq, self.head);
        let mut lines = String::new();
        for ((time, record), salt) in records.zip(salts.chunks_exact(16)) {
            let mut line = Line {
                seq,
                time,
                prev: head,
                salt: Some([0; 16]),
                record,
            };
            line.salt.as_mut().expect("set above").copy_from_slice(salt);
            if !lines.is_empty() {
                lines.push('\n');
            }
            line.write(&mut lines);
            head = line.hash();
            seq += 1;
        }
        let signature = sign(self.signer.as_ref(), HEAD_LABEL, &head)?;
        self.append(&encode_commit(&signature, &lines))?;
        (self.next_seq, self.head) = (seq, head);
        Ok(())
    }

    /// Goes on with another ledger key: the old one closes its segment, the new one opens the next.
    pub(crate) fn set_signer(&mut self, signer: Box<dyn LedgerSigner>) -> Result<(), StoreError> {
        self.close()?;
        self.signer = signer;
        self.next_segment()
    }

    fn rotate(&mut self) -> Result<(), StoreError> {
        self.close()?;
        self.next_segment()
    }

    fn close(&mut self) -> Result<(), StoreError> {
        let checkpoint = Checkpoint {
            segment: self.segment,
            first_seq: self.first_seq,
            last_seq: self.next_seq - 1,
            head: self.head,
        };
        let json = serde_json::to_string(&checkpoint).map_err(StoreError::Encode)?;
        let signature = sign(self.signer.as_ref(), CHECKPOINT_LABEL, json.as_bytes())?;
        self.append(&encode_checkpoint(&signature, &json))
    }

    fn next_segment(&mut self) -> Result<(), StoreError> {
        let place = Place {
            disk: self.disk.as_ref(),
            dir: &self.dir,
            next_seq: self.next_seq,
            head: self.head,
        };
        let opened = place.create(self.segment + 1, self.signer.as_ref())?;
        self.path = opened.path;
        self.file = opened.file;
        self.segment = opened.segment;
        self.first_seq = opened.first_seq;
        self.offset = opened.offset;
        Ok(())
    }

    fn append(&mut self, payload: &[u8]) -> Result<(), StoreError> {
        let mut bytes = Vec::with_capacity(payload.len() + frame::HEADER_BYTES);
        frame::encode(payload, self.offset, &mut bytes);
        file::append_durably(&mut *self.file, &self.path, &bytes)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

/// Where the next entry goes.
struct Place<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    next_seq: u64,
    head: Hash,
}

/// A segment ready for appending.
struct Opened {
    path: PathBuf,
    file: Box<dyn AppendFile>,
    segment: u64,
    first_seq: u64,
    offset: u64,
}

impl Place<'_> {
    /// Stands at the end of the newest segment, or begins another where that one is closed, torn
    /// in its header, or signed by another key.
    fn reopen(
        &self,
        last: Option<LastSegment>,
        signer: &dyn LedgerSigner,
    ) -> Result<Opened, StoreError> {
        let Some(last) = last else {
            return self.create(1, signer);
        };
        let unused = last.entries == 0 && !last.closed;
        match last.header {
            Some(header) if !last.closed && header.chain == signer.chain_der() => {
                let len = fs::metadata(&last.path)
                    .map_err(|e| StoreError::io("look at", &last.path, e))?
                    .len();
                if len > last.good_bytes {
                    file::cut(&last.path, last.good_bytes)?;
                }
                let mut file = self
                    .disk
                    .open(&last.path)
                    .map_err(|e| StoreError::io("open", &last.path, e))?;
                // What a killed process wrote may be in memory only, name included; it was just read
                // as if it were there for good, and counters are moved for it.
                file.sync()
                    .and_then(|()| file::sync_parent(&last.path))
                    .map_err(|e| StoreError::io("sync", &last.path, e))?;
                Ok(Opened {
                    path: last.path,
                    file,
                    segment: last.number,
                    first_seq: header.first_seq,
                    offset: last.good_bytes,
                })
            }
            _ if unused => {
                fs::remove_file(&last.path)
                    .and_then(|()| file::sync_parent(&last.path))
                    .map_err(|e| StoreError::io("remove", &last.path, e))?;
                self.create(last.number, signer)
            }
            _ => {
                file::cut(&last.path, last.good_bytes)?;
                self.create(last.number + 1, signer)
            }
        }
    }

    fn create(&self, segment: u64, signer: &dyn LedgerSigner) -> Result<Opened, StoreError> {
        let header = Header {
            version: VERSION,
            segment,
            first_seq: self.next_seq,
            prev: self.head,
            chain: signer.chain_der(),
        };
        let mut first = Vec::new();
        frame::encode(&header.encode().map_err(StoreError::Encode)?, 0, &mut first);
        let path = self.dir.join(segment::file_name(segment));
        let file = self
            .disk
            .create(&path, &first)
            .map_err(|e| StoreError::io("create", &path, e))?;
        Ok(Opened {
            path,
            file,
            segment,
            first_seq: self.next_seq,
            offset: first.len() as u64,
        })
    }
}
