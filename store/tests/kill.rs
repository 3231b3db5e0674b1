//! kill -9 of a writer at any moment: what it had acknowledged is there, and verifies.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Infra, batch, claim, lease};
use store::{Store, verify};

/// Rounds of writing and killing.
const ROUNDS: u64 = 6;

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let (mut acknowledged, mut leases) = (0, BTreeSet::new());
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_writes_until_killed", "--nocapture"])
            .env("STORE_TEST_DIR", dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        // Let it write a little, then a varying while longer.
        for _ in 0..20 {
            lines.read_line(&mut text).unwrap();
        }
        std::thread::sleep(Duration::from_millis(7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        lines.read_to_string(&mut text).unwrap();
        // A line that was cut off acknowledges nothing.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let before = acknowledged;
        for ack in whole.lines().filter_map(|line| line.strip_prefix("ACK ")) {
            let (seq, lease) = ack.split_once(' ').unwrap();
            acknowledged = seq.parse::<u64>().unwrap();
            leases.insert(lease.parse::<Ipv4Addr>().unwrap());
        }
        assert!(acknowledged > before, "round {round}");

        let infra_ca = std::fs::read(dir.path().join("infra.der")).unwrap();
        let report = verify(dir.path(), &infra_ca).unwrap();
        assert!(
            report.entries >= acknowledged,
            "{report:?}, acknowledged {acknowledged}"
        );
        let store = Store::open(dir.path()).unwrap();
        let recovered = store.recover_journal().unwrap();
        assert_eq!(store.leases().unwrap(), recovered.leases);
        let found: BTreeSet<_> = recovered.leases.iter().map(|lease| lease.addr).collect();
        assert!(found.is_superset(&leases), "round {round}");
    }
    println!("{ROUNDS} kills, {acknowledged} acknowledged entries, none lost");
}

/// The child of `nothing_acknowledged_is_lost_by_kill_9`; by itself it has nothing to do.
#[test]
fn child_writes_until_killed() {
    let Some(dir) = std::env::var_os("STORE_TEST_DIR").map(std::path::PathBuf::from) else {
        return;
    };
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
        println!("ACK {next} 10.0.0.{n}");
    }
}
