//! A ledger whose oldest segments were removed: what a restart, an auditor and a thief see.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Infra, Signer, batch, claim, genesis};
use gateway_core::identity::UnixMillis;
use store::{Cut, Entry, OpenedLedger, Store, StoreError, VerifyError, export, verify};

/// A ledger of small segments, with one key.
struct Site {
    dir: tempfile::TempDir,
    infra: Infra,
    signer: Arc<Signer>,
}

impl Site {
    /// With ten entries, a segment for each, of the milliseconds 1 to 10.
    fn new() -> Self {
        let infra = Infra::new();
        let signer = Arc::new(infra.signer());
        let made = Self {
            dir: tempfile::tempdir().unwrap(),
            infra,
            signer,
        };
        let (_store, opened) = made.open();
        for n in 1..=10 {
            let record = if n == 1 { genesis() } else { claim(n) };
            let mut batch = batch(vec![record], vec![]);
            batch.at = UnixMillis(n.into());
            opened.committer.commit(batch).unwrap();
        }
        drop(opened);
        made
    }

    fn open(&self) -> (Store, OpenedLedger) {
        let store = Store::open(self.dir.path()).unwrap();
        let opened = self.open_ledger(&store).unwrap();
        (store, opened)
    }

    fn open_ledger(&self, store: &Store) -> Result<OpenedLedger, StoreError> {
        store.open_ledger_with(Box::new(self.signer.clone()), &self.infra.der, 1)
    }

    fn ledger(&self) -> PathBuf {
        self.dir.path().join("ledger")
    }

    /// Writes the base that keeps entries from this time on, with these carried.
    fn base(&self, before: u64, carried: &[u64]) -> (Cut, String) {
        let (store, opened) = self.open();
        let cut = store
            .ledger_cut(&opened.entries, UnixMillis(before))
            .unwrap()
            .unwrap();
        let carried: BTreeSet<u64> = carried.iter().copied().collect();
        let digest = store.write_base(cut, &carried, &self.signer).unwrap();
        (cut, hex::encode(digest))
    }

    fn prune(&self, before: u64, carried: &[u64]) -> Cut {
        let (cut, digest) = self.base(before, carried);
        let (store, _opened) = self.open();
        assert!(store.remove_before(cut.first_segment, &digest).unwrap() > 0);
        cut
    }

    fn seqs(&self) -> Vec<u64> {
        let (_store, opened) = self.open();
        seqs(&opened.entries)
    }

    fn verify(&self) -> Result<store::Report, VerifyError> {
        verify(self.dir.path(), &self.infra.der)
    }
}

fn seqs(entries: &[Entry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.seq).collect()
}

fn files(dir: &Path, ends: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(ends))
        .collect();
    files.sort();
    files
}

#[test]
fn a_pruned_ledger_replays_what_is_carried_and_goes_on() {
    let site = Site::new();
    let whole = site.verify().unwrap();
    assert_eq!((whole.entries, whole.last_seq, whole.base), (10, 10, None));
    let cut = site.prune(7, &[1, 3]);
    assert_eq!(cut.first_seq, 7);
    // Carried, and always the last that was removed.
    assert_eq!(site.seqs(), [1, 3, 6, 7, 8, 9, 10]);
    let report = site.verify().unwrap();
    let base = report.base.unwrap();
    assert_eq!((base.first_seq, base.carried, base.leftover), (7, 3, 0));
    assert_eq!(
        (report.entries, report.last_seq, report.head),
        (7, 10, whole.head)
    );
    let (store, opened) = site.open();
    assert_eq!(seqs(&store.ledger().page(1, 4).unwrap()), [1, 3, 6, 7]);
    assert_eq!(seqs(&store.ledger().page(4, 9).unwrap()), [6, 7, 8, 9, 10]);
    let committed = opened
        .committer
        .commit(batch(vec![claim(11)], vec![]))
        .unwrap();
    assert_eq!(committed.first_seq, 11);
    drop((opened, store));
    // Once more, over the base of the first time.
    site.prune(10, &[1, 8]);
    assert_eq!(site.seqs(), [1, 8, 9, 10, 11]);
    assert_eq!(files(&site.ledger(), ".base").len(), 1);
    site.verify().unwrap();
}

#[test]
fn the_newest_segment_and_young_entries_stay() {
    let site = Site::new();
    let (store, opened) = site.open();
    let cut = |before| {
        store
            .ledger_cut(&opened.entries, UnixMillis(before))
            .unwrap()
    };
    assert_eq!(cut(1), None, "nothing is older");
    assert_eq!(cut(2).map(|cut| cut.first_seq), Some(2));
    assert_eq!(cut(u64::MAX).map(|cut| cut.first_seq), Some(10));
}

#[test]
fn a_power_cut_anywhere_in_a_removal_leaves_the_same_ledger() {
    let site = Site::new();
    let whole = site.verify().unwrap();
    let (cut, digest) = site.base(7, &[1, 3]);
    // The base alone changes nothing.
    assert_eq!(site.verify().unwrap(), whole);
    assert_eq!(site.seqs(), (1..=10).collect::<Vec<u64>>());
    let old: Vec<PathBuf> = files(&site.ledger(), ".vlg")
        .into_iter()
        .take(usize::try_from(cut.segments).unwrap())
        .collect();
    for (gone, path) in (1..).zip(&old) {
        fs::remove_file(path).unwrap();
        let report = site.verify().unwrap();
        let base = report.base.unwrap();
        assert_eq!(base.leftover, cut.segments - gone);
        assert_eq!(report.head, whole.head);
        assert_eq!(site.seqs(), [1, 3, 6, 7, 8, 9, 10], "{gone} gone");
    }
    let (store, _opened) = site.open();
    assert_eq!(store.remove_before(cut.first_segment, &digest).unwrap(), 0);
}

#[test]
fn nothing_is_removed_for_a_base_that_is_not_the_one_on_record() {
    let site = Site::new();
    let (cut, digest) = site.base(7, &[1, 3]);
    let (store, _opened) = site.open();
    let before = files(&site.ledger(), ".vlg");
    let other = "00".repeat(32);
    assert!(store.remove_before(cut.first_segment, &other).is_err());
    assert!(store.remove_before(cut.first_segment + 1, &digest).is_err());
    assert_eq!(files(&site.ledger(), ".vlg"), before);
    // Nor is one written that leaves out what is asked for.
    let none = Cut {
        first_seq: 99,
        ..cut
    };
    assert!(
        store
            .write_base(none, &BTreeSet::new(), &site.signer)
            .is_err()
    );
}

#[test]
fn attack_a_ledger_whose_front_was_cut_is_refused_by_name() {
    let site = Site::new();
    let old = files(&site.ledger(), ".vlg");
    for path in &old[..3] {
        fs::remove_file(path).unwrap();
    }
    let error = site.verify().unwrap_err();
    assert!(matches!(error, VerifyError::FrontCut { .. }), "{error}");
    assert!(error.to_string().contains("segment 4 first"), "{error}");
    let store = Store::open(site.dir.path()).unwrap();
    let opened = site.open_ledger(&store);
    assert!(matches!(
        opened,
        Err(StoreError::Ledger(VerifyError::FrontCut { .. }))
    ));
    assert!(export(site.dir.path(), &mut Vec::new(), true).is_err());
}

#[test]
fn attack_a_base_that_was_taken_away_edited_or_forged_is_refused() {
    let site = Site::new();
    site.prune(7, &[1, 3]);
    let path = files(&site.ledger(), ".base").pop().unwrap();
    let good = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(matches!(site.verify(), Err(VerifyError::FrontCut { .. })));
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, bytes).unwrap();
        assert!(site.verify().is_err(), "byte {at}");
    }
    for len in (0..good.len()).step_by(7) {
        fs::write(&path, &good[..len]).unwrap();
        assert!(site.verify().is_err(), "cut at {len}");
    }
    // The same ledger cut by somebody with a key of another CA.
    fs::write(&path, &good).unwrap();
    site.verify().unwrap();
    let forger = Infra::new().signer();
    let (store, opened) = site.open();
    let cut = store
        .ledger_cut(&opened.entries, UnixMillis(9))
        .unwrap()
        .unwrap();
    let digest = store.write_base(cut, &BTreeSet::new(), &forger).unwrap();
    store
        .remove_before(cut.first_segment, &hex::encode(digest))
        .unwrap();
    drop((opened, store));
    assert!(matches!(site.verify(), Err(VerifyError::Untrusted { .. })));
}

#[test]
fn attack_a_base_and_a_segment_that_is_missing_behind_it() {
    let site = Site::new();
    let cut = site.prune(7, &[1, 3]);
    let name = |number: u64| site.ledger().join(format!("ledger-{number:08}.vlg"));
    let missing = name(cut.first_segment + 1);
    let bytes = fs::read(&missing).unwrap();
    fs::remove_file(&missing).unwrap();
    match site.verify() {
        Err(VerifyError::Missing { file, expected, .. }) => {
            assert_eq!((file, expected), (missing.clone(), 8));
        }
        other => panic!("{other:?}"),
    }
    fs::write(&missing, bytes).unwrap();
    fs::remove_file(name(cut.first_segment)).unwrap();
    assert!(matches!(site.verify(), Err(VerifyError::FrontCut { .. })));
}

#[test]
fn an_export_of_a_pruned_ledger_verifies_and_shows_every_edit() {
    let site = Site::new();
    site.prune(7, &[1, 3]);
    let file = site.dir.path().join("export.jsonl");
    for show in [false, true] {
        let report = export(site.dir.path(), &mut fs::File::create(&file).unwrap(), show).unwrap();
        let verified = verify(&file, &site.infra.der).unwrap();
        assert_eq!((report.entries, verified.entries), (7, 7));
        assert_eq!(report.head, verified.head);
        assert_eq!(verified.base.map(|base| base.first_seq), Some(7));
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for gone in 0..lines.len() {
            let mut fewer = lines.clone();
            fewer.remove(gone);
            fs::write(&file, fewer.join("\n") + "\n").unwrap();
            assert!(
                verify(&file, &site.infra.der).is_err(),
                "without line {gone}"
            );
            let mut swapped = lines.clone();
            swapped.swap(gone, (gone + 1) % lines.len());
            fs::write(&file, swapped.join("\n") + "\n").unwrap();
            assert!(
                verify(&file, &site.infra.der).is_err(),
                "line {gone} swapped"
            );
        }
    }
}
