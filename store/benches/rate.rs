//! Ledger append against a bare append and fdatasync of the same rows, interleaved.
//!
//! `cargo bench -p store --bench rate`
#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Instant;

use common::{Infra, batch, sized};
use store::{Store, verify};

const ROUNDS: usize = 7;
const COMMITS: u64 = 200;
const ROWS: u64 = 32;
const ROW_BYTES: usize = 256;

fn main() {
    let infra = Infra::new();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let opened = store
        .open_ledger(Box::new(infra.signer()), &infra.der)
        .unwrap();
    let rows = vec![sized(ROW_BYTES); ROWS as usize];
    let row = serde_json::to_vec(&rows[0]).unwrap();
    assert_eq!(row.len(), ROW_BYTES);
    let mut raw = OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.path().join("raw"))
        .unwrap();
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..COMMITS {
            for _ in 0..ROWS {
                raw.write_all(&row).unwrap();
            }
            raw.sync_data().unwrap();
        }
        let bare = (COMMITS * ROWS) as f64 / start.elapsed().as_secs_f64();
        let start = Instant::now();
        for _ in 0..COMMITS {
            opened
                .committer
                .commit(batch(rows.clone(), vec![]))
                .unwrap();
        }
        let ours = (COMMITS * ROWS) as f64 / start.elapsed().as_secs_f64();
        println!(
            "raw {bare:.0} rows/s, ledger {ours:.0} rows/s, ratio {:.2}",
            ours / bare
        );
        ratios.push(ours / bare);
    }
    assert_eq!(
        verify(dir.path(), &infra.der).unwrap().entries,
        ROUNDS as u64 * COMMITS * ROWS
    );
    ratios.sort_by(f64::total_cmp);
    let (low, median, high) = (ratios[0], ratios[ROUNDS / 2], ratios[ROUNDS - 1]);
    println!("ledger append, {ROW_BYTES} B x {ROWS}: ratio {median:.2} ({low:.2} to {high:.2})");
    assert!(median >= 0.8, "median ratio {median:.2}, target 0.8");
}
