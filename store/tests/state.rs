//! The state directory as a whole: who may open it, what the views show, what a rebuild brings back.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Infra, batch, claim, genesis, lease, mark};
use gateway_core::identity::{MachineId, UnixMillis};
use gateway_core::record::{JournalRecord, Lease6Record};
use gateway_core::walk::Step;
use store::{Batch, INFRA_CA, Store, StoreError, StoreKey, check, rebuild, verify};

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A store with something of everything.
fn filled(dir: &Path, infra: &Infra) {
    let store = Store::open(dir).unwrap();
    store.put_public(INFRA_CA, &infra.der).unwrap();
    store.put_seal_blob("ca", b"sealed").unwrap();
    let key = StoreKey::derive(&[1; 32], "ca");
    store.put_secret(&key, "ca/infra-ca", b"private").unwrap();
    let opened = store
        .open_ledger(Box::new(infra.signer()), &infra.der)
        .unwrap();
    let batch = Batch {
        machines: vec![(
            MachineId("m-1".into()),
            Some(b"{\"state\":\"pending\"}".to_vec()),
        )],
        ..batch(
            vec![genesis(), claim(1)],
            vec![lease(1, "bound"), lease(2, "bound"), mark(1, Step::Lease)],
        )
    };
    opened.committer.commit(batch).unwrap();
}

#[test]
fn a_second_process_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    // flock is per open file, so the same process sees what another one would.
    for _ in 0..2 {
        match Store::open(dir.path()) {
            Err(e @ StoreError::InUse { .. }) => {
                assert!(e.to_string().contains("in use by another process"));
            }
            other => panic!("expected InUse, found {other:?}"),
        }
    }
    assert!(matches!(
        check(dir.path(), None),
        Err(StoreError::InUse { .. })
    ));
    assert!(matches!(
        rebuild(dir.path(), None),
        Err(StoreError::InUse { .. })
    ));
    drop(store);
    assert!(Store::open(dir.path()).is_ok());
}

#[test]
fn everything_comes_back_after_a_restart() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &infra);
    let store = Store::open(dir.path()).unwrap();
    let recovered = store.recover_journal().unwrap();
    assert_eq!((recovered.leases.len(), recovered.marks.len()), (2, 1));
    assert_eq!(store.leases().unwrap(), recovered.leases);
    let machine = store.machine(&MachineId("m-1".into())).unwrap().unwrap();
    assert_eq!(machine, b"{\"state\":\"pending\"}");
    assert_eq!(store.machines().unwrap().len(), 1);
    assert_eq!(store.seal_blob("ca").unwrap().unwrap(), b"sealed");
    let key = StoreKey::derive(&[1; 32], "ca");
    let secret = store.secret(&key, "ca/infra-ca").unwrap().unwrap();
    assert_eq!(&secret[..], b"private");
    assert!(store.secret(&key, "absent").unwrap().is_none());
    let other = StoreKey::derive(&[2; 32], "ca");
    assert!(matches!(
        store.secret(&other, "ca/infra-ca"),
        Err(StoreError::SecretBroken { .. })
    ));
    let opened = store
        .open_ledger(Box::new(infra.signer()), &infra.der)
        .unwrap();
    assert_eq!(opened.entries.len(), 2);
    assert!(matches!(
        store.recover_journal(),
        Err(StoreError::AlreadyOpen { .. })
    ));
    assert!(matches!(
        store.open_ledger(Box::new(infra.signer()), &infra.der),
        Err(StoreError::AlreadyOpen { .. })
    ));
    let gone = Batch {
        machines: vec![(MachineId("m-1".into()), None)],
        ..Batch::default()
    };
    opened.committer.commit(gone).unwrap();
    assert!(store.machines().unwrap().is_empty());
}

#[test]
fn views_that_lag_are_brought_up_from_the_journal() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &infra);
    let old = tempfile::tempdir().unwrap();
    copy_dir(&dir.path().join("db"), &old.path().join("db"));
    {
        let store = Store::open(dir.path()).unwrap();
        let opened = store
            .open_ledger(Box::new(infra.signer()), &infra.der)
            .unwrap();
        let more = vec![lease(1, "released"), lease(9, "bound")];
        opened.committer.commit(batch(vec![], more)).unwrap();
    }
    // A power cut took back what sled had not written yet.
    fs::remove_dir_all(dir.path().join("db")).unwrap();
    copy_dir(&old.path().join("db"), &dir.path().join("db"));
    let store = Store::open(dir.path()).unwrap();
    let leases = store.leases().unwrap();
    assert_eq!(leases, store.recover_journal().unwrap().leases);
    let states: Vec<&str> = leases.iter().map(|l| l.state.as_str()).collect();
    assert_eq!(states, ["released", "bound", "bound"]);
    drop(store);
    // Or all of it, which is only acceptable where nothing else was in it.
    fs::remove_dir_all(dir.path().join("db")).unwrap();
    fs::remove_file(dir.path().join("db.kept")).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.leases().unwrap(), leases);
}

#[test]
fn the_lease_view_follows_at_the_end_and_at_a_start() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let opened = store
        .open_ledger(Box::new(infra.signer()), &infra.der)
        .unwrap();
    let leases = (1..=200).map(|n| lease(n, "bound")).collect();
    opened.committer.commit(batch(vec![], leases)).unwrap();
    // Long enough for the database to hear how far the journal is, without the leases.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let killed = tempfile::tempdir().unwrap();
    copy_dir(dir.path(), killed.path());
    drop(opened);
    assert_eq!(store.leases().unwrap().len(), 200, "the end waits for it");
    let store = Store::open(killed.path()).unwrap();
    assert_eq!(store.leases().unwrap().len(), 200, "a start replays it");
}

#[test]
fn rejects_a_lease_journal_cut_behind_an_acknowledged_record() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("leases.vjl");
    drop(Store::open(dir.path()).unwrap());
    let empty = fs::read(&journal).unwrap();
    filled(dir.path(), &infra);
    fs::write(&journal, empty).unwrap();
    match Store::open(dir.path()) {
        Err(StoreError::RolledBack {
            file,
            applied: 3,
            found: 0,
        }) => assert_eq!(file, journal),
        other => panic!("expected RolledBack, found {other:?}"),
    }
    let problems = check(dir.path(), None).unwrap().problems;
    assert!(
        problems.iter().any(|p| p.contains("leases.vjl")),
        "{problems:?}"
    );
    let report = rebuild(dir.path(), None).unwrap();
    assert_eq!((report.leases, report.entries), (0, 2));
    assert!(Store::open(dir.path()).is_ok());
}

#[test]
fn check_finds_nothing_in_a_sound_store() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &infra);
    let report = check(dir.path(), None).unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert_eq!((report.leases, report.marks, report.torn_bytes), (2, 1, 0));
    assert_eq!(report.ledger.unwrap().entries, 2);
    assert_eq!(report.seals, ["ca"]);
    assert_eq!(report.secrets, ["ca/infra-ca"]);
    assert_eq!(report.documents, [INFRA_CA]);
}

#[test]
fn check_names_a_damaged_file() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &infra);
    let path = dir.path().join("ledger/ledger-00000001.vlg");
    let mut bytes = fs::read(&path).unwrap();
    bytes[40] ^= 1;
    fs::write(&path, bytes).unwrap();
    let report = check(dir.path(), None).unwrap();
    assert_eq!(report.ledger, None);
    let named = |p: &String| p.contains("ledger-00000001.vlg") && p.contains("entry 1");
    assert!(report.problems.iter().any(named), "{:?}", report.problems);
    assert!(matches!(
        rebuild(dir.path(), None),
        Err(StoreError::Ledger(_))
    ));
    assert!(
        dir.path().join("db").is_dir(),
        "a refused rebuild touches nothing"
    );
}

#[test]
fn rebuild_carries_over_what_the_database_still_holds() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &infra);
    let report = rebuild(dir.path(), None).unwrap();
    assert_eq!((report.entries, report.leases, report.carried), (2, 2, 3));
    assert_eq!(report.lost, [""; 0]);
    assert!(report.old_database.unwrap().is_dir());
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.leases().unwrap().len(), 2);
    assert_eq!(store.seal_blob("ca").unwrap().unwrap(), b"sealed");
    // The machines' view is the daemon's to derive again.
    assert!(store.machines().unwrap().is_empty());
}

#[test]
fn a_corrupt_database_is_named_and_rebuilt_with_its_losses() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &infra);
    for file in ["conf", "db"] {
        fs::write(dir.path().join("db").join(file), [0x5a; 4096]).unwrap();
    }
    for entry in fs::read_dir(dir.path().join("db")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file()
            && path
                .file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("snap")
        {
            fs::write(path, [0x5a; 512]).unwrap();
        }
    }
    match Store::open(dir.path()) {
        Err(e @ StoreError::CorruptDatabase { .. }) => {
            assert!(e.to_string().contains("vestibule store rebuild"), "{e}");
        }
        other => panic!("expected CorruptDatabase, found {other:?}"),
    }
    let report = rebuild(dir.path(), Some(&infra.der)).unwrap();
    assert_eq!((report.entries, report.leases, report.carried), (2, 2, 0));
    for lost in ["sealed blobs", "secrets", "certificates"] {
        assert!(
            report.lost.iter().any(|l| l.contains(lost)),
            "{:?}",
            report.lost
        );
    }
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.leases().unwrap().len(), 2);
    assert_eq!(store.seal_blob("ca").unwrap(), None);
    assert!(verify(dir.path(), &infra.der).is_ok());
}

/// sled opens a log that was cut short, without its newest values and without an error.
#[test]
fn rejects_a_database_that_lost_a_key() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &infra);
    fs::remove_dir_all(dir.path().join("db")).unwrap();
    match Store::open(dir.path()) {
        Err(e @ StoreError::ValuesLost { .. }) => {
            let text = e.to_string();
            for name in [
                "sealed blob ca",
                "secret ca/infra-ca",
                "document ca/infra-ca",
            ] {
                assert!(text.contains(name), "{text}");
            }
        }
        other => panic!("expected ValuesLost, found {other:?}"),
    }
    let problems = check(dir.path(), Some(&infra.der)).unwrap().problems;
    assert!(
        problems.iter().any(|p| p.contains("secret ca/infra-ca")),
        "{problems:?}"
    );
    let report = rebuild(dir.path(), Some(&infra.der)).unwrap();
    assert!(
        report.lost.iter().any(|l| l.contains("secret ca/infra-ca")),
        "{:?}",
        report.lost
    );
    // The loss was accepted.
    assert!(Store::open(dir.path()).is_ok());
}

#[test]
fn a_removed_secret_is_not_missed() {
    let dir = tempfile::tempdir().unwrap();
    let key = StoreKey::derive(&[1; 32], "store");
    {
        let store = Store::open(dir.path()).unwrap();
        store.put_secret(&key, "update", b"x").unwrap();
        store.remove_secret("update").unwrap();
    }
    let store = Store::open(dir.path()).unwrap();
    assert!(store.secret(&key, "update").unwrap().is_none());
}

#[test]
fn rejects_a_schema_of_a_later_release() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    {
        let db = sled::open(dir.path().join("db")).unwrap();
        let meta = db.open_tree("meta").unwrap();
        meta.insert("schema_version", &9u32.to_be_bytes()).unwrap();
        db.flush().unwrap();
    }
    assert!(matches!(
        Store::open(dir.path()),
        Err(StoreError::SchemaTooNew { found: 9, known: 2 })
    ));
}

/// Schema 1 had no view of DHCPv6 leases.
#[test]
fn a_database_of_schema_1_is_migrated_at_the_start() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), &infra);
    {
        let db = sled::open(dir.path().join("db")).unwrap();
        db.drop_tree("leases6").unwrap();
        let meta = db.open_tree("meta").unwrap();
        meta.insert("schema_version", &1u32.to_be_bytes()).unwrap();
        db.flush().unwrap();
    }
    let lease6 = |state: &str| Lease6Record {
        addr: "2001:db8::5".parse().unwrap(),
        duid: "000407".into(),
        iaid: 1,
        mac: None,
        state: state.into(),
        expires: UnixMillis(1),
    };
    {
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.leases().unwrap().len(), 2);
        assert!(store.leases6().unwrap().is_empty());
        let opened = store
            .open_ledger(Box::new(infra.signer()), &infra.der)
            .unwrap();
        let records = vec![JournalRecord::Lease6(lease6("bound"))];
        opened.committer.commit(batch(vec![], records)).unwrap();
    }
    {
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.leases6().unwrap(), [lease6("bound")]);
        assert_eq!(store.recover_journal().unwrap().leases6, [lease6("bound")]);
    }
    let db = sled::open(dir.path().join("db")).unwrap();
    let version = db.open_tree("meta").unwrap().get("schema_version").unwrap();
    assert_eq!(version.unwrap().as_ref(), 2u32.to_be_bytes());
}

/// Runs one of the tests below marked `ignore` in a process of its own, behind a shell prologue
/// in mount namespace of its own. None when this user may not make one.
fn in_mount_namespace(test: &str, dir: &Path, prologue: &str) -> Option<String> {
    let script = format!("set -e; {prologue}; exec \"$0\" --exact {test} --nocapture");
    let done = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env("STORE_TEST_DIR", dir)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    text.contains("CHILD").then_some(text)
}

/// Set by the parent of a child test; without it the child has nothing to do.
fn child_dir() -> Option<std::path::PathBuf> {
    std::env::var_os("STORE_TEST_DIR").map(Into::into)
}

#[test]
fn a_full_disk_is_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=3m none \"$STORE_TEST_DIR\"";
    let Some(text) = in_mount_namespace("child_fills_the_disk", dir.path(), mount) else {
        println!("SKIP a_full_disk_is_one_clear_error: no mount namespace for this user");
        return;
    };
    assert!(text.contains("CHILD no space left: cannot write"), "{text}");
    assert!(
        text.contains("CHILD acknowledged entries are all there"),
        "{text}"
    );
}

/// The child of `a_full_disk_is_one_clear_error`.
#[test]
fn child_fills_the_disk() {
    let Some(dir) = child_dir() else { return };
    let infra = Infra::new();
    let store = Store::open(&dir).unwrap();
    let opened = store
        .open_ledger(Box::new(infra.signer()), &infra.der)
        .unwrap();
    let mut acknowledged = 0;
    let error = loop {
        match opened
            .committer
            .commit(batch(vec![common::sized(20_000)], vec![]))
        {
            Ok(committed) => acknowledged = committed.last_seq,
            Err(store::CommitError::Failed(e)) => break e,
            Err(other) => panic!("{other}"),
        }
    };
    println!("CHILD {error}");
    assert!(matches!(*error, StoreError::Full { .. }));
    drop((opened, store));
    let report = verify(&dir, &infra.der).unwrap();
    assert_eq!(report.entries, acknowledged);
    println!("CHILD acknowledged entries are all there");
}

#[test]
fn a_read_only_directory_is_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o ro none \"$STORE_TEST_DIR\"";
    let Some(text) = in_mount_namespace("child_opens_read_only", dir.path(), mount) else {
        println!("SKIP a_read_only_directory_is_one_clear_error: no mount namespace for this user");
        return;
    };
    assert!(text.contains("CHILD not writable: cannot"), "{text}");
}

/// The child of `a_read_only_directory_is_one_clear_error`.
#[test]
fn child_opens_read_only() {
    let Some(dir) = child_dir() else { return };
    let error = Store::open(&dir).unwrap_err();
    println!("CHILD {error}");
    assert!(matches!(error, StoreError::ReadOnly { .. }));
}
