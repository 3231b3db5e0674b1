//! The ledger through the front door: what an auditor and a restarted daemon see.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Infra, batch, claim, ek_name, genesis};
use store::{LedgerSigner, Store, StoreError, VerifyError, export, verify};

/// A state directory with a ledger of `entries` claims, each its own group commit.
fn ledger_of(dir: &Path, infra: &Infra, entries: u8) {
    let store = Store::open(dir).unwrap();
    let opened = store
        .open_ledger(Box::new(infra.signer()), &infra.der)
        .unwrap();
    opened
        .committer
        .commit(batch(vec![genesis()], vec![]))
        .unwrap();
    for n in 1..entries {
        opened
            .committer
            .commit(batch(vec![claim(n)], vec![]))
            .unwrap();
    }
}

fn segment(dir: &Path) -> PathBuf {
    dir.join("ledger/ledger-00000001.vlg")
}

#[test]
fn entries_come_back_in_order_and_verify() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    ledger_of(dir.path(), &infra, 5);
    let report = verify(dir.path(), &infra.der).unwrap();
    assert_eq!((report.entries, report.last_seq), (5, 5));
    assert_eq!(
        (report.segments, report.signatures, report.torn_bytes),
        (1, 5, 0)
    );
    // Another ledger key: another segment, the same chain.
    let store = Store::open(dir.path()).unwrap();
    let opened = store
        .open_ledger(Box::new(infra.signer()), &infra.der)
        .unwrap();
    assert_eq!(opened.entries.len(), 5);
    assert_eq!(opened.entries[4].hash, report.head);
    assert_eq!(opened.entries[3].record, claim(3));
    for pair in opened.entries.windows(2) {
        assert_eq!(pair[1].prev, pair[0].hash);
    }
    let committed = opened
        .committer
        .commit(batch(vec![claim(9), claim(10)], vec![]))
        .unwrap();
    assert_eq!((committed.first_seq, committed.last_seq), (6, 7));
    let report = verify(dir.path(), &infra.der).unwrap();
    assert_eq!((report.entries, report.segments), (7, 2));
    assert_eq!(report.head, committed.head);
}

#[test]
fn pages_are_read_beside_the_committer() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let opened = store
        .open_ledger(Box::new(infra.signer()), &infra.der)
        .unwrap();
    let reader = store.ledger();
    for n in 0..10 {
        opened
            .committer
            .commit(batch(vec![claim(n)], vec![]))
            .unwrap();
        if n == 4 {
            opened.committer.set_signer(Box::new(infra.signer()));
        }
        let page = reader.page(1, 100).unwrap();
        assert_eq!(page.len(), usize::from(n) + 1);
    }
    let seqs = |from, limit| -> Vec<u64> {
        let page = reader.page(from, limit).unwrap();
        page.iter().map(|e| e.seq).collect()
    };
    assert_eq!(seqs(4, 3), [4, 5, 6]);
    assert_eq!(seqs(10, 3), [10]);
    assert_eq!(seqs(11, 3), [0u64; 0]);
    assert_eq!(seqs(0, 2), [1, 2]);
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    ledger_of(dir.path(), &infra, 3);
    let whole = fs::read(segment(dir.path())).unwrap();
    let copy = tempfile::tempdir().unwrap();
    let path = copy.path().join("ledger-00000001.vlg");
    let good = verify(dir.path(), &infra.der).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, bytes).unwrap();
        match verify(copy.path(), &infra.der) {
            Err(_) => {}
            // Only the last frame's own header can look like an interrupted write, and says so.
            Ok(report) => {
                assert!(report.torn_bytes > 0, "byte {at}");
                assert!(report.entries < good.entries, "byte {at}");
            }
        }
    }
}

#[test]
fn rejects_edits_that_repair_the_frame() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    ledger_of(dir.path(), &infra, 4);
    let shown = dir.path().join("shown.jsonl");
    export(dir.path(), &mut fs::File::create(&shown).unwrap(), true).unwrap();
    let text = fs::read_to_string(&shown).unwrap();
    let check = |bad: String| {
        assert_ne!(bad, text);
        fs::write(&shown, bad).unwrap();
        verify(&shown, &infra.der)
    };
    assert!(matches!(
        check(text.replacen("\"serial\":\"S\"", "\"serial\":\"T\"", 1)),
        Err(VerifyError::Edited { seq: 3, .. })
    ));
    let lines: Vec<&str> = text.lines().collect();
    let without = |index: usize| {
        let mut lines = lines.clone();
        lines.remove(index);
        lines.join("\n") + "\n"
    };
    assert!(matches!(
        check(without(2)),
        Err(VerifyError::Missing { expected: 2, ref found, .. }) if found == "3"
    ));
    assert!(matches!(
        check(without(4)),
        Err(VerifyError::Missing { expected: 4, .. })
    ));
    assert!(matches!(
        check(without(5)),
        Err(VerifyError::Missing { expected: 5, .. })
    ));
    assert!(matches!(
        check(without(0)),
        Err(VerifyError::NotALedger { .. })
    ));
    let mut added = lines.clone();
    added.push(lines[1]);
    assert!(check(added.join("\n") + "\n").is_err());
}

#[test]
fn export_hides_names_and_still_verifies() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    ledger_of(dir.path(), &infra, 6);
    let head = verify(dir.path(), &infra.der).unwrap().head;
    for show in [false, true] {
        let path = dir.path().join(format!("export-{show}.jsonl"));
        let report = export(dir.path(), &mut fs::File::create(&path).unwrap(), show).unwrap();
        assert_eq!((report.entries, report.head), (6, head));
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.contains(&ek_name(3).0), show);
        assert_eq!(text.contains("name-sha256:"), !show);
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("{\"checkpoint\""));
        let verified = verify(&path, &infra.der).unwrap();
        assert_eq!(
            (verified.entries, verified.head, verified.signatures),
            (6, head, 1)
        );
    }
}

#[test]
fn rejects_an_export_of_an_empty_ledger() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    ledger_of(dir.path(), &infra, 1);
    fs::write(segment(dir.path()), b"").unwrap();
    let result = export(dir.path(), &mut Vec::new(), true);
    assert!(matches!(result, Err(VerifyError::NotALedger { .. })));
}

#[test]
fn rejects_a_key_of_another_ca_or_purpose() {
    let (infra, other) = (Infra::new(), Infra::new());
    let dir = tempfile::tempdir().unwrap();
    ledger_of(dir.path(), &infra, 2);
    assert!(matches!(
        verify(dir.path(), &other.der),
        Err(VerifyError::Untrusted { .. })
    ));
    let store = Store::open(dir.path()).unwrap();
    for wrong in [
        other.signer(),
        infra.signer_for(attest_wire::oid::EKU_ATTEST.der),
        infra.signer_for(attest_wire::oid::EKU_GRANT.der),
        infra.signer_for(attest_wire::oid::EKU_SERVER_AUTH.der),
    ] {
        assert!(matches!(
            store.open_ledger(Box::new(wrong), &infra.der),
            Err(StoreError::Signer { .. })
        ));
    }
    // None of the refusals consumed the journal or left a segment behind.
    assert!(
        store
            .open_ledger(Box::new(infra.signer()), &infra.der)
            .is_ok()
    );
    assert!(verify(dir.path(), &infra.der).is_ok());
}

/// A forger has the files and another certified key, but not this ledger's key.
struct Forger {
    chain: Vec<Vec<u8>>,
    key: common::Signer,
}

impl LedgerSigner for Forger {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        self.key.sign(message)
    }

    fn chain_der(&self) -> Vec<Vec<u8>> {
        self.chain.clone()
    }
}

#[test]
fn rejects_a_signature_by_another_key() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let forger = Forger {
        chain: infra.signer().chain_der(),
        key: infra.signer(),
    };
    let opened = store.open_ledger(Box::new(forger), &infra.der).unwrap();
    opened
        .committer
        .commit(batch(vec![genesis()], vec![]))
        .unwrap();
    drop(opened);
    assert!(matches!(
        verify(dir.path(), &infra.der),
        Err(VerifyError::BadSignature { seq: 1, .. })
    ));
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert!(matches!(
        store.open_ledger(Box::new(infra.signer()), &infra.der),
        Err(StoreError::Ledger(VerifyError::BadSignature { seq: 1, .. }))
    ));
}

#[test]
fn a_cut_anywhere_in_the_last_commit_loses_only_that_commit() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    ledger_of(dir.path(), &infra, 2);
    let keep = fs::metadata(segment(dir.path())).unwrap().len() as usize;
    let grown = tempfile::tempdir().unwrap();
    {
        let store = Store::open(dir.path()).unwrap();
        // The same segment goes on only with the same key; so write the third entry by hand-over
        // to another and take that segment as the last.
        let opened = store
            .open_ledger(Box::new(infra.signer()), &infra.der)
            .unwrap();
        opened
            .committer
            .commit(batch(vec![claim(3)], vec![]))
            .unwrap();
        opened
            .committer
            .commit(batch(vec![claim(4), claim(5)], vec![]))
            .unwrap();
    }
    let first = fs::read(segment(dir.path())).unwrap();
    assert_eq!(first.len(), keep);
    let whole = fs::read(dir.path().join("ledger/ledger-00000002.vlg")).unwrap();
    let frames = frame_ends(&whole);
    let [.., before_last, end] = frames[..] else {
        panic!("expected a header and two commits, found {frames:?}")
    };
    assert_eq!(end, whole.len());
    for cut in (before_last..end).step_by(7) {
        let ledger = grown.path().join("ledger");
        let _ = fs::remove_dir_all(grown.path());
        fs::create_dir_all(&ledger).unwrap();
        fs::write(ledger.join("ledger-00000001.vlg"), &first).unwrap();
        fs::write(ledger.join("ledger-00000002.vlg"), &whole[..cut]).unwrap();
        let store = Store::open(grown.path()).unwrap();
        let opened = store
            .open_ledger(Box::new(infra.signer()), &infra.der)
            .unwrap();
        assert_eq!(opened.entries.len(), 3, "cut at {cut}");
        assert_eq!(opened.cut_bytes, (cut - before_last) as u64);
        let committed = opened
            .committer
            .commit(batch(vec![claim(7)], vec![]))
            .unwrap();
        assert_eq!(committed.first_seq, 4);
        drop(opened);
        assert_eq!(verify(grown.path(), &infra.der).unwrap().entries, 4);
    }
}

/// Ends of the frames of a segment file.
fn frame_ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let len = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        at += 16 + len;
        ends.push(at);
    }
    ends
}

#[test]
fn rejects_a_ledger_cut_behind_an_acknowledged_entry() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    ledger_of(dir.path(), &infra, 4);
    let whole = fs::read(segment(dir.path())).unwrap();
    let ends = frame_ends(&whole);
    fs::write(segment(dir.path()), &whole[..ends[ends.len() - 2]]).unwrap();
    // What is left verifies by itself; the views know better.
    assert_eq!(verify(dir.path(), &infra.der).unwrap().entries, 3);
    let store = Store::open(dir.path()).unwrap();
    assert!(matches!(
        store.open_ledger(Box::new(infra.signer()), &infra.der),
        Err(StoreError::RolledBack {
            applied: 4,
            found: 3,
            ..
        })
    ));
    drop(store);
    // The owner accepts the loss.
    let report = store::rebuild(dir.path(), Some(&infra.der)).unwrap();
    assert_eq!(report.entries, 3);
    let store = Store::open(dir.path()).unwrap();
    assert!(
        store
            .open_ledger(Box::new(infra.signer()), &infra.der)
            .is_ok()
    );
}

#[test]
fn rejects_a_missing_segment() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let store = Store::open(dir.path()).unwrap();
        let opened = store
            .open_ledger(Box::new(infra.signer()), &infra.der)
            .unwrap();
        opened
            .committer
            .commit(batch(vec![claim(1)], vec![]))
            .unwrap();
    }
    assert_eq!(verify(dir.path(), &infra.der).unwrap().segments, 3);
    fs::remove_file(dir.path().join("ledger/ledger-00000002.vlg")).unwrap();
    assert!(matches!(
        verify(dir.path(), &infra.der),
        Err(VerifyError::Missing { expected: 2, .. })
    ));
    // Renaming the third into its place does not help.
    fs::rename(
        dir.path().join("ledger/ledger-00000003.vlg"),
        dir.path().join("ledger/ledger-00000002.vlg"),
    )
    .unwrap();
    assert!(verify(dir.path(), &infra.der).is_err());
}

#[test]
fn rejects_what_is_no_ledger() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x");
    for text in [
        "",
        "{}\n",
        "hello",
        "{\"format\":\"x\",\"version\":1,\"names\":\"shown\"}\n",
    ] {
        fs::write(&file, text).unwrap();
        assert!(matches!(
            verify(&file, &infra.der),
            Err(VerifyError::NotALedger { .. })
        ));
    }
    assert!(matches!(
        verify(&dir.path().join("absent"), &infra.der),
        Err(VerifyError::Read { .. })
    ));
    assert!(verify(dir.path(), &infra.der).is_err());
}
