//! kill -9 of a writer at any moment: what it had acknowledged is there, and verifies.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Infra, batch, claim, lease};
use store::{Store, verify};

/// Rounds of writing and killing.
const ROUNDS: u64 = 6;

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child_writes_until_killed",
                "--ignored",
                "--nocapture",
            ])
            .env("STORE_TEST_DIR", dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        // Let it write a little, then a varying while longer.
        for _ in 0..20 {
            line.clear();
            lines.read_line(&mut line).unwrap();
        }
        std::thread::sleep(Duration::from_millis(7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        let whole = rest.rfind('\n').map_or("", |end| &rest[..end]);
        let acks = line.lines().chain(whole.lines());
        let last = acks
            .filter_map(|l| l.strip_prefix("ACK ")?.parse::<u64>().ok())
            .max();
        let last = last.expect("the child acknowledged something");
        assert!(last > acknowledged, "round {round}");
        acknowledged = last;

        let infra_ca = std::fs::read(dir.path().join("infra.der")).unwrap();
        let report = verify(dir.path(), &infra_ca).unwrap();
        assert!(
            report.entries >= acknowledged,
            "{report:?}, acknowledged {acknowledged}"
        );
        let store = Store::open(dir.path()).unwrap();
        let recovered = store.recover_journal().unwrap();
        assert_eq!(store.leases().unwrap(), recovered.leases);
        // One lease for each entry, modulo the addresses in use.
        assert!(recovered.leases.len() as u64 >= acknowledged.min(200));
    }
    println!("{ROUNDS} kills, {acknowledged} acknowledged entries, none lost");
}

#[test]
#[ignore = "run by nothing_acknowledged_is_lost_by_kill_9"]
fn child_writes_until_killed() {
    let dir = std::path::PathBuf::from(std::env::var_os("STORE_TEST_DIR").unwrap());
    let store = Store::open(&dir).unwrap();
    // One infra CA for all rounds: the first one leaves its key beside the store.
    let infra = Infra::open_or_create(&dir);
    let opened = store
        .open_ledger(Box::new(infra.signer()), &infra.der)
        .unwrap();
    let mut next = opened.entries.len() as u64;
    loop {
        let n = (next % 200) as u8;
        let written = opened
            .committer
            .commit(batch(vec![claim(n)], vec![lease(n, "bound")]))
            .unwrap();
        next = written.last_seq;
        println!("ACK {next}");
    }
}
