//! The committer on a disk that fails, stalls or stops in the middle of a write.
#![allow(clippy::unwrap_used)]

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex};

use super::*;
use crate::file::AppendFile;
use common::{Infra, batch, claim, genesis, lease, sized};

#[path = "../tests/common/mod.rs"]
mod common;

/// What goes wrong, and where.
#[derive(Default)]
struct Plan {
    /// Part of the file name it concerns.
    file: &'static str,
    /// Bytes that still fit; the write that would exceed them stops there.
    room: Option<usize>,
    /// The next sync fails.
    sync_fails: bool,
    /// The next new file cannot be made.
    create_fails: bool,
    /// Syncs wait.
    stalled: bool,
}

#[derive(Default)]
struct Shared {
    plan: Mutex<Plan>,
    changed: Condvar,
}

impl Shared {
    fn set(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.plan.lock().unwrap());
        self.changed.notify_all();
    }
}

struct FaultyDisk(Arc<Shared>);

struct FaultyFile {
    inner: Box<dyn AppendFile>,
    name: String,
    shared: Arc<Shared>,
}

impl FaultyDisk {
    fn wrap(&self, path: &Path, inner: Box<dyn AppendFile>) -> Box<dyn AppendFile> {
        Box::new(FaultyFile {
            inner,
            name: path.display().to_string(),
            shared: self.0.clone(),
        })
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn AppendFile>> {
        Ok(self.wrap(path, RealDisk.open(path)?))
    }

    fn create(&self, path: &Path, first: &[u8]) -> io::Result<Box<dyn AppendFile>> {
        if std::mem::take(&mut self.0.plan.lock().unwrap().create_fails) {
            // What a power cut in the middle leaves behind.
            std::fs::write(path, &first[..first.len() / 2])?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(self.wrap(path, RealDisk.create(path, first)?))
    }
}

impl AppendFile for FaultyFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut plan = self.shared.plan.lock().unwrap();
        let concerned = self.name.contains(plan.file);
        match &mut plan.room {
            Some(room) if concerned && *room < bytes.len() => {
                self.inner.append(&bytes[..*room])?;
                self.inner.sync()?;
                *room = 0;
                Err(io::ErrorKind::StorageFull.into())
            }
            Some(room) if concerned => {
                *room -= bytes.len();
                self.inner.append(bytes)
            }
            _ => self.inner.append(bytes),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut plan = self.shared.plan.lock().unwrap();
        while plan.stalled {
            plan = self.shared.changed.wait(plan).unwrap();
        }
        if self.name.contains(plan.file) && std::mem::take(&mut plan.sync_fails) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.inner.sync()
    }
}

struct Site {
    dir: tempfile::TempDir,
    infra: Infra,
    shared: Arc<Shared>,
    signer: Arc<common::Signer>,
}

impl Site {
    fn new() -> Self {
        let infra = Infra::new();
        Self {
            dir: tempfile::tempdir().unwrap(),
            signer: Arc::new(infra.signer()),
            infra,
            shared: Arc::default(),
        }
    }

    fn open(&self) -> (Store, OpenedLedger) {
        self.open_with(SEGMENT_MAX_BYTES)
    }

    fn open_with(&self, segment_max_bytes: u64) -> (Store, OpenedLedger) {
        let disk = Arc::new(FaultyDisk(self.shared.clone()));
        let store = Store::open_on(self.dir.path(), disk).unwrap();
        let signer = Box::new(self.signer.clone());
        let opened = store
            .open_ledger_with(signer, &self.infra.der, segment_max_bytes)
            .unwrap();
        (store, opened)
    }

    fn verify(&self) -> Report {
        verify(self.dir.path(), &self.infra.der).unwrap()
    }
}

#[test]
fn a_write_that_stops_at_any_byte_loses_nothing_acknowledged() {
    let site = Site::new();
    let frame = {
        let (_store, opened) = site.open();
        let before = ledger_bytes(&site);
        opened
            .committer
            .commit(batch(vec![genesis()], vec![]))
            .unwrap();
        (ledger_bytes(&site) - before) as usize
    };
    let mut acknowledged = 1;
    // Signatures differ in length by a few bytes, so go past the end too.
    for room in 0..frame + 8 {
        let (_store, opened) = site.open();
        assert_eq!(opened.entries.len() as u64, acknowledged, "room {room}");
        site.shared.set(|plan| {
            plan.file = "ledger-";
            plan.room = Some(room);
        });
        let done = opened.committer.commit(batch(vec![genesis()], vec![]));
        match &done {
            Ok(committed) => acknowledged = committed.last_seq,
            Err(CommitError::Failed(e)) => {
                assert!(matches!(**e, StoreError::Full { .. }), "{e}");
                let next = opened.committer.commit(batch(vec![genesis()], vec![]));
                assert!(matches!(next, Err(CommitError::Stopped(Some(_)))));
            }
            Err(other) => panic!("room {room}: {other}"),
        }
        assert!(room >= 8 + frame - 16 || done.is_err(), "room {room}");
        site.shared.set(|plan| *plan = Plan::default());
    }
    assert!(acknowledged > 1, "no write ever fitted");
    let (_store, opened) = site.open();
    assert_eq!(opened.entries.len() as u64, acknowledged);
    assert_eq!(site.verify().entries, acknowledged);
}

fn ledger_bytes(site: &Site) -> u64 {
    let path = site.dir.path().join("ledger/ledger-00000001.vlg");
    std::fs::metadata(path).unwrap().len()
}

#[test]
fn a_failed_sync_is_final() {
    for file in ["ledger-", "leases"] {
        let site = Site::new();
        let (_store, opened) = site.open();
        let both = || batch(vec![claim(1)], vec![lease(1, "bound")]);
        opened.committer.commit(both()).unwrap();
        site.shared.set(|plan| {
            plan.file = file;
            plan.sync_fails = true;
        });
        match opened.committer.commit(both()) {
            Err(e @ CommitError::Failed(_)) => assert!(e.is_final()),
            other => panic!("{file}: expected Failed, found {other:?}"),
        }
        // The disk works again; the committer does not believe it.
        for _ in 0..2 {
            match opened.committer.commit(both()) {
                Err(e @ CommitError::Stopped(Some(_))) => assert!(e.is_final()),
                other => panic!("{file}: expected Stopped, found {other:?}"),
            }
        }
        drop((_store, opened));
        let (_store, opened) = site.open();
        assert!((1..=2).contains(&opened.entries.len()), "{file}");
        opened.committer.commit(both()).unwrap();
        assert!(site.verify().entries >= 2);
    }
}

#[test]
fn a_signer_that_fails_stops_the_store() {
    struct Broken(Arc<common::Signer>, AtomicBool);
    impl LedgerSigner for Arc<Broken> {
        fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
            match self.1.load(Ordering::SeqCst) {
                true => Err("key is gone".into()),
                false => self.0.sign(message),
            }
        }
        fn chain_der(&self) -> Vec<Vec<u8>> {
            self.0.chain_der()
        }
    }
    let site = Site::new();
    let store = Store::open(site.dir.path()).unwrap();
    let signer = Arc::new(Broken(site.signer.clone(), AtomicBool::new(false)));
    let opened = store
        .open_ledger(Box::new(signer.clone()), &site.infra.der)
        .unwrap();
    let one = || batch(vec![claim(1)], vec![]);
    opened.committer.commit(one()).unwrap();
    signer.1.store(true, Ordering::SeqCst);
    match opened.committer.commit(one()) {
        Err(CommitError::Failed(e)) => assert!(e.to_string().contains("key is gone")),
        other => panic!("expected Failed, found {other:?}"),
    }
    assert_eq!(site.verify().entries, 1);
}

#[test]
fn segments_rotate_and_survive_a_cut_while_the_next_is_made() {
    let site = Site::new();
    {
        let (store, opened) = site.open_with(4096);
        for n in 0..20 {
            opened
                .committer
                .commit(batch(vec![claim(n)], vec![]))
                .unwrap();
        }
        let report = site.verify();
        assert!(report.segments >= 3, "{report:?}");
        assert_eq!(report.entries, 20);
        // Each closed segment has one signature more than commits: its checkpoint.
        assert_eq!(report.signatures, 20 + report.segments - 1);
        let seqs: Vec<u64> = store
            .ledger()
            .page(7, 9)
            .unwrap()
            .iter()
            .map(|e| e.seq)
            .collect();
        assert_eq!(seqs, (7..16).collect::<Vec<u64>>());
    }
    let before = site.verify().segments;
    let (_store, opened) = site.open_with(64);
    site.shared.set(|plan| plan.create_fails = true);
    let failed = opened.committer.commit(batch(vec![claim(1)], vec![]));
    assert!(matches!(failed, Err(CommitError::Failed(_))));
    drop((_store, opened));
    // The half-made segment is not counted as damage, and its place is taken again.
    let report = site.verify();
    assert_eq!((report.entries, report.segments), (20, before + 1));
    assert!(report.torn_bytes > 0);
    let (_store, opened) = site.open();
    assert_eq!(opened.entries.len(), 20);
    opened
        .committer
        .commit(batch(vec![claim(1)], vec![]))
        .unwrap();
    let report = site.verify();
    assert_eq!((report.entries, report.torn_bytes), (21, 0));
}

#[test]
fn what_waits_while_the_disk_is_slow_becomes_one_commit() {
    let site = Site::new();
    let (_store, opened) = site.open();
    site.shared.set(|plan| plan.stalled = true);
    let (answers, wait) = channel();
    for n in 0..100u8 {
        let answers = answers.clone();
        opened.committer.submit(
            batch(vec![claim(n)], vec![lease(n, "bound")]),
            Box::new(move |done| answers.send((n, done)).unwrap()),
        );
    }
    site.shared.set(|plan| plan.stalled = false);
    let mut seq = 0;
    for n in 0..100u8 {
        let (answered, done) = wait.recv().unwrap();
        let done = done.unwrap();
        assert_eq!(answered, n);
        assert_eq!((done.first_seq, done.last_seq), (seq + 1, seq + 1));
        seq = done.last_seq;
    }
    let report = site.verify();
    assert_eq!(report.entries, 100);
    assert!(report.signatures <= 3, "{} commits", report.signatures);
}

#[test]
fn a_full_queue_refuses_without_stopping() {
    let site = Site::new();
    let (_store, opened) = site.open();
    site.shared.set(|plan| plan.stalled = true);
    let (answers, wait) = channel();
    let mut submitted = 0u64;
    let full = loop {
        let answers = answers.clone();
        opened.committer.submit(
            batch(vec![genesis()], vec![]),
            Box::new(move |done| answers.send(done).unwrap()),
        );
        submitted += 1;
        assert!(submitted < 10_000, "the queue never fills");
        // While the disk is stalled, only a refusal is answered.
        if let Ok(done) = wait.try_recv() {
            break done;
        }
    };
    match full {
        Err(e @ CommitError::QueueFull) => assert!(!e.is_final()),
        other => panic!("expected QueueFull, found {other:?}"),
    }
    site.shared.set(|plan| plan.stalled = false);
    for _ in 1..submitted {
        assert!(wait.recv().unwrap().is_ok());
    }
    let last = opened.committer.commit(batch(vec![genesis()], vec![]));
    assert_eq!(last.unwrap().last_seq, submitted);
}

#[test]
fn rejects_a_batch_that_is_too_large_without_stopping() {
    let site = Site::new();
    let (_store, opened) = site.open();
    let long = batch(vec![sized(300 * 1024)], vec![]);
    let many = batch(vec![sized(200 * 1024); 25], vec![]);
    for large in [long, many] {
        match opened.committer.commit(large) {
            Err(e @ CommitError::TooLarge { .. }) => assert!(!e.is_final()),
            other => panic!("expected TooLarge, found {other:?}"),
        }
    }
    let most = batch(vec![sized(200 * 1024); 20], vec![]);
    assert_eq!(opened.committer.commit(most).unwrap().last_seq, 20);
    assert_eq!(site.verify().entries, 20);
}

#[test]
fn rejects_a_batch_that_counts_otherwise() {
    let site = Site::new();
    let (_store, opened) = site.open();
    let at = |first_seq| Batch {
        first_seq: Some(first_seq),
        ..batch(vec![claim(1), claim(2)], vec![])
    };
    assert_eq!(opened.committer.commit(at(1)).unwrap().last_seq, 2);
    assert_eq!(opened.committer.commit(at(3)).unwrap().last_seq, 4);
    match opened.committer.commit(at(4)) {
        Err(CommitError::Failed(e)) => {
            assert!(matches!(
                *e,
                StoreError::Sequence {
                    expected: 4,
                    next: 5
                }
            ));
        }
        other => panic!("expected Failed, found {other:?}"),
    }
    assert_eq!(site.verify().entries, 4);
}

#[test]
fn an_empty_batch_is_answered_in_order() {
    let site = Site::new();
    let (_store, opened) = site.open();
    let done = opened.committer.commit(Batch::default()).unwrap();
    assert_eq!((done.first_seq, done.last_seq), (1, 0));
    let done = opened
        .committer
        .commit(batch(vec![], vec![lease(1, "bound")]))
        .unwrap();
    assert_eq!((done.first_seq, done.last_seq), (1, 0));
    assert_eq!(site.verify().entries, 0);
}

#[test]
fn dropping_the_committer_answers_everything_first() {
    let site = Site::new();
    let (_store, opened) = site.open();
    let (answers, wait) = channel();
    for n in 0..50 {
        let answers = answers.clone();
        opened.committer.submit(
            batch(vec![claim(n)], vec![]),
            Box::new(move |done| answers.send(done.is_ok()).unwrap()),
        );
    }
    drop(opened);
    drop(answers);
    assert_eq!(wait.iter().filter(|ok| *ok).count(), 50);
    assert_eq!(site.verify().entries, 50);
}

/// A counter that writes down what the ledger had on disk when it moved.
struct Counted {
    dir: std::path::PathBuf,
    moves: std::sync::mpsc::Sender<(u64, bool)>,
    works: bool,
}

impl crate::Anchor for Counted {
    fn advance(&mut self, to: u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let files = std::fs::read_dir(self.dir.join("ledger"))?;
        let wanted = format!("\"counter\":{to}");
        let mut there = false;
        for file in files {
            let octets = std::fs::read(file?.path())?;
            there |= octets.windows(wanted.len()).any(|w| w == wanted.as_bytes());
        }
        self.moves.send((to, there))?;
        if self.works {
            Ok(())
        } else {
            Err("the TPM does not answer".into())
        }
    }
}

fn anchored(counter: u64) -> Batch {
    let record = gateway_core::record::Record::Anchor(gateway_core::record::Anchor { counter });
    Batch {
        anchor: Some(counter),
        ..batch(vec![claim(1), record], vec![])
    }
}

#[test]
fn the_counter_moves_once_for_each_anchor_after_it_is_on_disk_and_before_the_answer() {
    let site = Site::new();
    let (store, opened) = site.open();
    let (moves, moved) = channel();
    opened.committer.set_anchor(Box::new(Counted {
        dir: store.dir().to_owned(),
        moves,
        works: true,
    }));
    let (answers, answered) = channel();
    // Queued at once, so that they could share a write.
    for counter in 1..=8 {
        let (answers, batch) = (answers.clone(), anchored(counter));
        opened.committer.submit(
            batch,
            Box::new(move |done| answers.send((counter, done.is_ok())).unwrap()),
        );
    }
    for counter in 1..=8 {
        assert_eq!(answered.recv().unwrap(), (counter, true));
        assert_eq!(
            moved.try_recv().expect("it moved before the answer"),
            (counter, true),
            "the record was not on disk yet"
        );
    }
    assert!(moved.try_recv().is_err(), "once for each");
    assert_eq!(site.verify().entries, 16);
}

#[test]
fn rejects_everything_after_a_counter_that_did_not_move() {
    let site = Site::new();
    let (store, opened) = site.open();
    match opened.committer.commit(anchored(1)) {
        Err(CommitError::Failed(e)) => {
            assert!(matches!(*e, StoreError::Anchor { to: 1, .. }), "{e}");
        }
        other => panic!("without a counter nothing is anchored: {other:?}"),
    }
    drop((store, opened));
    let (store, opened) = site.open();
    let (moves, _moved) = channel();
    opened.committer.set_anchor(Box::new(Counted {
        dir: store.dir().to_owned(),
        moves,
        works: false,
    }));
    assert!(matches!(
        opened.committer.commit(anchored(2)),
        Err(CommitError::Failed(_))
    ));
    assert!(matches!(
        opened.committer.commit(batch(vec![claim(3)], vec![])),
        Err(CommitError::Stopped(_))
    ));
}
