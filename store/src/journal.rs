//! The lease journal: working state that must survive a power cut and need not be kept for ever.
//!
//! Decides how leases and walk marks are written, read back and compacted. Does not know what a
//! lease means. Unsigned: who can edit this file already owns the state directory, and nothing in
//! it admits a machine.
//!
//! Frames ([`crate::frame`]) whose payload is one kind byte, a sequence (u64, little endian) and
//! JSON lines: `H` begins a file; `S` is state at compaction, the sequence being that of the next
//! record; `R` is one group commit, the sequence being that of its first record.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gateway_core::identity::MacAddr;
use gateway_core::record::{JournalRecord, Lease6Record, LeaseRecord, Mark};
use gateway_core::walk::Step;

use crate::error::StoreError;
use crate::file::{self, AppendFile, Disk};
use crate::frame::{self, Frames, Tail};

/// The file is not compacted below this size, in bytes.
const COMPACT_MIN_BYTES: u64 = 1024 * 1024;
/// Marks kept by a compaction, the newest ones: one site's machines many times over, and a bound
/// for a flood of made-up hardware addresses.
const MARKS_MAX: usize = 32 * 1024;
/// Records in one snapshot frame.
const SNAPSHOT_RECORDS: usize = 1024;

const VERSION: &str = "vestibule lease journal 2";
/// Before DHCPv6 leases. Read as it is, and migrated at the start by writing the state anew, since a
/// daemon of that time must not meet a record it does not know behind its own header.
const VERSION_1: &str = "vestibule lease journal 1";
const HEADER: u8 = b'H';
const SNAPSHOT: u8 = b'S';
const RECORDS: u8 = b'R';

/// What the lease journal held at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Last state of each address, in order of address.
    pub leases: Vec<LeaseRecord>,
    /// The same of DHCPv6.
    pub leases6: Vec<Lease6Record>,
    /// Last mark of each hardware address and step, oldest first.
    pub marks: Vec<Mark>,
    /// Bytes of an interrupted write that were cut from the end of the file.
    pub cut_bytes: u64,
}

/// Leases of one commit or of a whole journal, for the views.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    pub v4: Vec<LeaseRecord>,
    pub v6: Vec<Lease6Record>,
}

impl Recovered {
    pub(crate) fn all_leases(&self) -> Leases {
        Leases {
            v4: self.leases.clone(),
            v6: self.leases6.clone(),
        }
    }
}

/// Leases and marks as of the last record.
#[derive(Debug, Default)]
struct State {
    leases: BTreeMap<Ipv4Addr, LeaseRecord>,
    leases6: BTreeMap<Ipv6Addr, Lease6Record>,
    marks: HashMap<(MacAddr, Step), Mark>,
    next_seq: u64,
    /// The header was [`VERSION_1`].
    old: bool,
}

impl State {
    fn apply(&mut self, record: JournalRecord) {
        match record {
            JournalRecord::Lease(lease) => {
                self.leases.insert(lease.addr, lease);
            }
            JournalRecord::Lease6(lease) => {
                self.leases6.insert(lease.addr, lease);
            }
            JournalRecord::Mark(mark) => {
                self.marks.insert((mark.mac, mark.step), mark);
            }
        }
    }

    fn marks(&self) -> Vec<Mark> {
        let mut marks: Vec<Mark> = self.marks.values().cloned().collect();
        marks.sort_by_key(|m| (m.at, m.step, m.mac));
        marks
    }

    /// Drops the oldest marks beyond the bound and returns what is left as records.
    fn compact(&mut self) -> Vec<JournalRecord> {
        let mut marks = self.marks();
        for old in marks.drain(..marks.len().saturating_sub(MARKS_MAX)) {
            self.marks.remove(&(old.mac, old.step));
        }
        let leases = self.leases.values().cloned().map(JournalRecord::Lease);
        let leases6 = self.leases6.values().cloned().map(JournalRecord::Lease6);
        leases
            .chain(leases6)
            .chain(marks.into_iter().map(JournalRecord::Mark))
            .collect()
    }

    /// Applies one frame.
    fn frame(&mut self, payload: &[u8], first: bool) -> Result<(), String> {
        let (head, text) = payload.split_at_checked(9).ok_or("frame is too short")?;
        let mut seq = [0u8; 8];
        seq.copy_from_slice(&head[1..]);
        let seq = u64::from_le_bytes(seq);
        let text = std::str::from_utf8(text).map_err(|e| e.to_string())?;
        match (head[0], first) {
            (HEADER, true) if text == VERSION || text == VERSION_1 => {
                self.next_seq = seq;
                self.old = text == VERSION_1;
                Ok(())
            }
            (HEADER, true) => Err(format!("expected {VERSION:?}, found {text:?}")),
            (_, true) => Err("the header is missing".into()),
            (SNAPSHOT | RECORDS, false) if seq != self.next_seq => {
                Err(format!("expected record {}, found {seq}", self.next_seq))
            }
            (kind @ (SNAPSHOT | RECORDS), false) => {
                for line in text.split('\n') {
                    self.apply(serde_json::from_str(line).map_err(|e| e.to_string())?);
                    self.next_seq += u64::from(kind == RECORDS);
                }
                Ok(())
            }
            (other, false) => Err(format!("unexpected frame kind {other:#04x}")),
        }
    }
}

/// What reading a journal file gave.
struct Read {
    state: State,
    good_bytes: u64,
    torn_bytes: u64,
}

fn read(path: &Path, bytes: &[u8]) -> Result<Read, StoreError> {
    let mut state = State::default();
    let mut good_bytes = 0;
    let mut frames = Frames::new(bytes);
    let damaged = |offset, seq, why| StoreError::CorruptJournal {
        file: path.to_path_buf(),
        offset,
        seq,
        why,
    };
    for (offset, payload) in frames.by_ref() {
        state
            .frame(payload, offset == 0)
            .map_err(|why| damaged(offset, state.next_seq, why))?;
        good_bytes = offset + (frame::HEADER_BYTES + payload.len()) as u64;
    }
    match frames.tail() {
        Tail::Clean => Ok(Read {
            state,
            good_bytes,
            torn_bytes: 0,
        }),
        Tail::Torn { bytes, .. } => Ok(Read {
            state,
            good_bytes,
            torn_bytes: bytes,
        }),
        Tail::Damaged { offset } => Err(damaged(
            offset,
            state.next_seq,
            "the bytes were changed after they were written".into(),
        )),
    }
}

fn payload(kind: u8, seq: u64, lines: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(9 + lines.len());
    out.push(kind);
    out.extend_from_slice(&seq.to_le_bytes());
    out.extend_from_slice(lines.as_bytes());
    out
}

/// Looks at a journal without touching it: leases, marks, torn bytes, next sequence.
pub(crate) fn inspect(path: &Path) -> Result<(Recovered, u64), StoreError> {
    let Some(bytes) = file::read_if_there(path)? else {
        return Ok((Recovered::default(), 1));
    };
    let read = read(path, &bytes)?;
    let recovered = Recovered {
        leases: read.state.leases.values().cloned().collect(),
        leases6: read.state.leases6.values().cloned().collect(),
        marks: read.state.marks(),
        cut_bytes: read.torn_bytes,
    };
    Ok((recovered, read.state.next_seq.max(1)))
}

/// The open end of the lease journal.
pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: Box<dyn AppendFile>,
    offset: u64,
    state: State,
    compact_above: u64,
    cut_bytes: u64,
}

impl Journal {
    /// Reads what is there, cuts a torn tail, and stands at the end.
    pub(crate) fn open(disk: Arc<dyn Disk>, path: &Path) -> Result<Self, StoreError> {
        let found = match file::read_if_there(path)? {
            Some(bytes) => Some(read(path, &bytes)?),
            None => None,
        };
        let cut_bytes = found.as_ref().map_or(0, |f| f.torn_bytes);
        let mut journal = match found {
            Some(found) if found.good_bytes > 0 => {
                if found.torn_bytes > 0 {
                    file::cut(path, found.good_bytes)?;
                }
                let mut file = disk
                    .open(path)
                    .map_err(|e| StoreError::io("open", path, e))?;
                // What a killed process wrote may be in memory only, and is served from now on.
                file.sync()
                    .and_then(|()| file::sync_parent(path))
                    .map_err(|e| StoreError::io("sync", path, e))?;
                Self {
                    disk,
                    path: path.to_path_buf(),
                    file,
                    offset: found.good_bytes,
                    state: found.state,
                    compact_above: COMPACT_MIN_BYTES,
                    cut_bytes,
                }
            }
            other => {
                if other.is_some() {
                    // Not even its header was written: the file was never used.
                    std::fs::remove_file(path).map_err(|e| StoreError::io("remove", path, e))?;
                }
                let mut first = Vec::new();
                frame::encode(&payload(HEADER, 1, VERSION), 0, &mut first);
                let file = disk
                    .create(path, &first)
                    .map_err(|e| StoreError::io("create", path, e))?;
                Self {
                    disk,
                    path: path.to_path_buf(),
                    file,
                    offset: first.len() as u64,
                    state: State {
                        next_seq: 1,
                        ..State::default()
                    },
                    compact_above: COMPACT_MIN_BYTES,
                    cut_bytes,
                }
            }
        };
        if journal.state.old {
            journal.compact()?;
            journal.state.old = false;
        }
        journal.compact_if_large()?;
        Ok(journal)
    }

    pub(crate) fn recovered(&self) -> Recovered {
        Recovered {
            leases: self.state.leases.values().cloned().collect(),
            leases6: self.state.leases6.values().cloned().collect(),
            marks: self.state.marks(),
            cut_bytes: self.cut_bytes,
        }
    }

    /// Sequence of the next record, from 1.
    pub(crate) fn next_seq(&self) -> u64 {
        self.state.next_seq
    }

    /// Appends these records with their JSON as one group commit and returns when it is durable.
    pub(crate) fn commit(
        &mut self,
        records: Vec<(String, JournalRecord)>,
    ) -> Result<(), StoreError> {
        let lines: Vec<&str> = records.iter().map(|(json, _)| json.as_str()).collect();
        let mut bytes = Vec::new();
        let payload = payload(RECORDS, self.state.next_seq, &lines.join("\n"));
        frame::encode(&payload, self.offset, &mut bytes);
        file::append_durably(&mut *self.file, &self.path, &bytes)?;
        self.offset += bytes.len() as u64;
        for (_, record) in records {
            self.state.apply(record);
            self.state.next_seq += 1;
        }
        self.compact_if_large()
    }

    fn compact_if_large(&mut self) -> Result<(), StoreError> {
        if self.offset <= self.compact_above {
            return Ok(());
        }
        self.compact()
    }

    /// Writes the state as a new file and puts it in the place of the old one.
    fn compact(&mut self) -> Result<(), StoreError> {
        let seq = self.state.next_seq;
        let mut bytes = Vec::new();
        frame::encode(&payload(HEADER, seq, VERSION), 0, &mut bytes);
        for records in self.state.compact().chunks(SNAPSHOT_RECORDS) {
            let lines: Result<Vec<String>, _> = records.iter().map(serde_json::to_string).collect();
            let lines = lines.map_err(StoreError::Encode)?.join("\n");
            let at = bytes.len() as u64;
            frame::encode(&payload(SNAPSHOT, seq, &lines), at, &mut bytes);
        }
        let new = self.path.with_extension("new");
        match std::fs::remove_file(&new) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io("remove", &new, e));
            }
            _ => {}
        }
        let file = self
            .disk
            .create(&new, &bytes)
            .map_err(|e| StoreError::io("create", &new, e))?;
        std::fs::rename(&new, &self.path)
            .and_then(|()| file::sync_parent(&self.path))
            .map_err(|e| StoreError::io("replace", &self.path, e))?;
        self.file = file;
        self.offset = bytes.len() as u64;
        self.compact_above = (4 * self.offset).max(COMPACT_MIN_BYTES);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::RealDisk;
    use gateway_core::identity::UnixMillis;
    use proptest::prelude::*;

    fn lease(last: u8, state: &str) -> JournalRecord {
        JournalRecord::Lease(LeaseRecord {
            addr: Ipv4Addr::new(10, 0, 0, last),
            client: format!("01{last:012x}"),
            mac: MacAddr([2, 0, 0, 0, 0, last]),
            state: state.into(),
            expires: UnixMillis(u64::from(last)),
            port: None,
        })
    }

    fn mark(mac: u32, step: Step, at: u64) -> JournalRecord {
        let [a, b, c, d] = mac.to_be_bytes();
        JournalRecord::Mark(Mark {
            mac: MacAddr([2, 0, a, b, c, d]),
            machine: None,
            step,
            at: UnixMillis(at),
            detail: "x".into(),
        })
    }

    fn encoded(records: &[JournalRecord]) -> Vec<(String, JournalRecord)> {
        records
            .iter()
            .map(|r| (serde_json::to_string(r).unwrap(), r.clone()))
            .collect()
    }

    fn open(path: &Path) -> Journal {
        Journal::open(Arc::new(RealDisk), path).unwrap()
    }

    #[test]
    fn last_state_per_address_and_step_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases.vjl");
        let mut journal = open(&path);
        journal
            .commit(encoded(&[lease(5, "bound"), mark(1, Step::Discover, 1)]))
            .unwrap();
        journal
            .commit(encoded(&[
                lease(5, "released"),
                lease(4, "bound"),
                mark(1, Step::Discover, 9),
            ]))
            .unwrap();
        let journal = open(&path);
        assert_eq!(journal.next_seq(), 6);
        let recovered = journal.recovered();
        assert_eq!(
            recovered
                .leases
                .iter()
                .map(|l| l.state.as_str())
                .collect::<Vec<_>>(),
            ["bound", "released"]
        );
        assert_eq!(recovered.marks.len(), 1);
        assert_eq!(recovered.marks[0].at, UnixMillis(9));
    }

    #[test]
    fn a_cut_anywhere_in_the_last_commit_loses_only_that_commit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases.vjl");
        let mut journal = open(&path);
        journal.commit(encoded(&[lease(1, "bound")])).unwrap();
        let keep = std::fs::metadata(&path).unwrap().len() as usize;
        journal
            .commit(encoded(&[lease(2, "bound"), lease(3, "bound")]))
            .unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in keep + 1..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut journal = open(&path);
            assert_eq!(journal.recovered().leases.len(), 1, "cut at {cut}");
            assert_eq!(journal.recovered().cut_bytes, (cut - keep) as u64);
            journal.commit(encoded(&[lease(9, "bound")])).unwrap();
            assert_eq!(open(&path).recovered().leases.len(), 2, "cut at {cut}");
        }
        for cut in 0..frame::HEADER_BYTES + 9 + VERSION.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(open(&path).recovered().leases.len(), 0, "cut at {cut}");
        }
    }

    #[test]
    fn rejects_an_edited_byte_with_file_and_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases.vjl");
        let mut journal = open(&path);
        for last in 1..4 {
            journal.commit(encoded(&[lease(last, "bound")])).unwrap();
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        match Journal::open(Arc::new(RealDisk), &path) {
            Err(StoreError::CorruptJournal { file, seq: 2, .. }) => assert_eq!(file, path),
            other => panic!(
                "expected CorruptJournal at record 2, found {:?}",
                other.err()
            ),
        }
    }

    #[test]
    fn compaction_keeps_state_and_sequence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases.vjl");
        let mut journal = open(&path);
        for round in 0..50u64 {
            let records: Vec<_> = (0..20).map(|m| mark(m, Step::Boot, round)).collect();
            journal.commit(encoded(&records)).unwrap();
        }
        journal.commit(encoded(&[lease(7, "bound")])).unwrap();
        let (before, seq) = (journal.recovered(), journal.next_seq());
        let long = std::fs::metadata(&path).unwrap().len();
        journal.compact().unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < long / 10);
        journal.commit(encoded(&[lease(8, "bound")])).unwrap();
        let again = open(&path);
        assert_eq!(again.next_seq(), seq + 1);
        assert_eq!(again.recovered().marks, before.marks);
        assert_eq!(again.recovered().leases.len(), 2);
        assert!(!path.with_extension("new").exists());
    }

    fn lease6(last: u8, state: &str) -> JournalRecord {
        JournalRecord::Lease6(Lease6Record {
            addr: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(last)),
            duid: format!("0003{last:02x}"),
            iaid: 1,
            mac: None,
            state: state.into(),
            expires: UnixMillis(u64::from(last)),
        })
    }

    #[test]
    fn leases_of_both_families_come_back_and_survive_compaction() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases.vjl");
        let mut journal = open(&path);
        let records = [lease(1, "bound"), lease6(1, "bound"), lease6(2, "bound")];
        journal.commit(encoded(&records)).unwrap();
        journal.commit(encoded(&[lease6(1, "released")])).unwrap();
        let before = open(&path).recovered();
        let states: Vec<_> = before.leases6.iter().map(|l| l.state.as_str()).collect();
        assert_eq!(
            (states, before.leases.len()),
            (vec!["released", "bound"], 1)
        );
        journal.compact().unwrap();
        assert_eq!(open(&path).recovered(), before);
    }

    #[test]
    fn a_journal_of_version_1_is_migrated_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases.vjl");
        let mut old = Vec::new();
        frame::encode(&payload(HEADER, 41, VERSION_1), 0, &mut old);
        let lines = encoded(&[lease(7, "bound"), mark(1, Step::Boot, 3)]);
        let lines = format!("{}\n{}", lines[0].0, lines[1].0);
        let at = old.len() as u64;
        frame::encode(&payload(RECORDS, 41, &lines), at, &mut old);
        std::fs::write(&path, &old).unwrap();
        let (seen, next) = inspect(&path).unwrap();
        assert_eq!((seen.leases.len(), seen.marks.len(), next), (1, 1, 43));
        assert_eq!(std::fs::read(&path).unwrap(), old, "a look changes nothing");

        let mut journal = open(&path);
        assert_eq!((journal.next_seq(), journal.recovered()), (43, seen));
        let new = std::fs::read(&path).unwrap();
        let header = &new[frame::HEADER_BYTES + 9..];
        assert!(
            header.starts_with(VERSION.as_bytes()),
            "an old daemon refuses it whole"
        );
        journal.commit(encoded(&[lease6(1, "bound")])).unwrap();
        assert_eq!(open(&path).recovered().leases6.len(), 1);
    }

    #[test]
    fn rejects_a_journal_of_a_version_to_come() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases.vjl");
        let mut bytes = Vec::new();
        let header = payload(HEADER, 1, "vestibule lease journal 3");
        frame::encode(&header, 0, &mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let refused = Journal::open(Arc::new(RealDisk), &path).err().unwrap();
        assert!(
            matches!(refused, StoreError::CorruptJournal { offset: 0, .. }),
            "{refused:?}"
        );
    }

    #[test]
    fn a_stale_unfinished_compaction_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases.vjl");
        let mut journal = open(&path);
        journal.commit(encoded(&[lease(7, "bound")])).unwrap();
        std::fs::write(path.with_extension("new"), b"half").unwrap();
        let mut journal = open(&path);
        assert_eq!(journal.recovered().leases.len(), 1);
        journal.compact().unwrap();
        assert_eq!(open(&path).recovered().leases.len(), 1);
    }

    #[test]
    fn a_flood_of_addresses_is_bounded_and_compacts_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases.vjl");
        let mut journal = open(&path);
        for round in 0..40u32 {
            let records: Vec<_> = (0..1024)
                .map(|m| mark(round * 1024 + m, Step::Discover, u64::from(round)))
                .collect();
            journal.commit(encoded(&records)).unwrap();
        }
        journal.compact().unwrap();
        let marks = open(&path).recovered().marks;
        assert_eq!(marks.len(), MARKS_MAX);
        assert_eq!(marks.last().map(|m| m.at), Some(UnixMillis(39)));
        assert_eq!(marks.first().map(|m| m.at), Some(UnixMillis(8)));
    }

    proptest! {
        #[test]
        fn frames_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), first: bool) {
            let _ = State::default().frame(&bytes, first);
        }
    }
}
