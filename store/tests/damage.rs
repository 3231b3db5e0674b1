//! Every bit of a small ledger is flipped and every record is taken out, swapped and repeated, by a
//! fault and by somebody who repairs the frames around it. Each is found and named.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use common::{Infra, batch, claim, genesis};
use store::{Store, VerifyError, export, verify};

/// Three segments: two closed, one open. Returns their contents.
fn ledger(dir: &Path, infra: &Infra) -> Vec<Vec<u8>> {
    let store = Store::open(dir).unwrap();
    let signer = Arc::new(infra.signer());
    let opened = store
        .open_ledger_with(Box::new(signer), &infra.der, 2_000)
        .unwrap();
    let commit = |records| opened.committer.commit(batch(records, vec![])).unwrap();
    commit(vec![genesis(), claim(1)]);
    commit(vec![claim(2), claim(3)]);
    commit(vec![claim(4)]);
    commit(vec![claim(5)]);
    commit(vec![claim(6)]);
    drop(opened);
    let mut files: Vec<PathBuf> = fs::read_dir(dir.join("ledger"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let files: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    assert_eq!(
        files.len(),
        3,
        "a ledger of another shape than the tests count on"
    );
    files
}

/// A ledger that is written anew for each trial.
struct Trial {
    _made: tempfile::TempDir,
    infra: Infra,
    good: Vec<Vec<u8>>,
    copy: tempfile::TempDir,
}

impl Trial {
    fn new() -> Self {
        let (infra, made) = (Infra::new(), tempfile::tempdir().unwrap());
        let good = ledger(made.path(), &infra);
        let trial = Self {
            _made: made,
            infra,
            good,
            copy: tempfile::tempdir().unwrap(),
        };
        trial.verify(&trial.good).unwrap();
        trial
    }

    fn path(&self, segment: usize) -> PathBuf {
        self.copy.path().join(format!("ledger-{segment:08}.vlg"))
    }

    fn verify(&self, segments: &[Vec<u8>]) -> Result<store::Report, VerifyError> {
        for entry in fs::read_dir(self.copy.path()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for (number, bytes) in (1..).zip(segments) {
            fs::write(self.path(number), bytes).unwrap();
        }
        verify(self.copy.path(), &self.infra.der)
    }

    /// As it is, with one segment exchanged.
    fn with(&self, index: usize, bytes: Vec<u8>) -> Result<store::Report, VerifyError> {
        let mut segments = self.good.clone();
        segments[index] = bytes;
        self.verify(&segments)
    }

    /// Every bit of one segment, as a fault of the medium flips it.
    fn flip_all(&self, index: usize) {
        let newest = index + 1 == self.good.len();
        let whole = self.verify(&self.good).unwrap().entries;
        let last = self.good[index].len() - frames(&self.good[index]).pop().unwrap().len() - 16;
        for at in 0..self.good[index].len() {
            for bit in 0..8 {
                let mut bytes = self.good[index].clone();
                bytes[at] ^= 1 << bit;
                match self.with(index, bytes) {
                    Err(error) => self.named(&error, index),
                    // The header of the very last frame: what an interrupted write looks like. It is told
                    // (torn_bytes), and the counter of the TPM knows whether it had been acknowledged.
                    Ok(report) => {
                        assert!(
                            newest && (last..last + 16).contains(&at),
                            "byte {at} bit {bit}"
                        );
                        assert!(report.torn_bytes > 0 && report.entries < whole, "byte {at}");
                    }
                }
            }
        }
    }

    /// The error names the file.
    fn named(&self, error: &VerifyError, index: usize) {
        let name = format!("ledger-{:08}.vlg", index + 1);
        assert!(error.to_string().contains(&name), "{name}: {error}");
    }
}

/// Payloads of the frames of a segment.
fn frames(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let len = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        frames.push(bytes[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    frames
}

/// What somebody writes who knows the format: every check of a frame is right.
fn repaired(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    for payload in frames {
        let len = u32::try_from(payload.len()).unwrap().to_le_bytes();
        let place = [&len[..], &(out.len() as u64).to_le_bytes()].concat();
        out.extend(len);
        out.extend(&digest(&SHA256, &place).as_ref()[..4]);
        out.extend(&digest(&SHA256, payload).as_ref()[..8]);
        out.extend(payload);
    }
    out
}

/// Where the salts of entries without a TPM Name are. Nothing is hidden with them, so nothing is hashed of
/// them: the one place where a bit does not matter.
fn idle_salts(payload: &[u8]) -> Vec<std::ops::Range<usize>> {
    let label = b"\"salt\":\"";
    let mut found = Vec::new();
    let mut at = 0;
    for line in payload.split_inclusive(|byte| *byte == b'\n') {
        let names = line.windows(4).any(|four| four == b"000b");
        let salt = line.windows(label.len()).position(|part| part == label);
        if let (false, Some(salt)) = (names, salt) {
            let from = at + salt + label.len();
            found.push(from..from + 32);
        }
        at += line.len();
    }
    found
}

#[test]
fn every_flipped_bit_of_the_first_segment_is_found() {
    Trial::new().flip_all(0);
}

#[test]
fn every_flipped_bit_of_the_newest_segment_is_found() {
    Trial::new().flip_all(2);
}

#[test]
fn every_flipped_bit_is_found_when_the_frames_are_repaired() {
    let trial = Trial::new();
    let mut idle_seen = 0;
    for index in [0, 2] {
        let good = frames(&trial.good[index]);
        assert_eq!(repaired(&good), trial.good[index]);
        for (number, payload) in good.iter().enumerate() {
            let idle = idle_salts(payload);
            for at in 0..payload.len() {
                for bit in 0..8 {
                    let mut bad = good.clone();
                    bad[number][at] ^= 1 << bit;
                    let found = trial.with(index, repaired(&bad));
                    if idle.iter().any(|range| range.contains(&at)) {
                        idle_seen += 1;
                        continue;
                    }
                    match found {
                        Err(error) => trial.named(&error, index),
                        Ok(_) => panic!("segment {index} frame {number} byte {at} bit {bit}"),
                    }
                }
            }
        }
    }
    assert_eq!(idle_seen, 32 * 8, "the genesis alone names no TPM");
}

#[test]
fn every_flipped_bit_of_an_export_is_found() {
    let trial = Trial::new();
    trial.verify(&trial.good).unwrap();
    let file = trial._made.path().join("export.jsonl");
    let mut text = Vec::new();
    export(trial.copy.path(), &mut text, false).unwrap();
    for at in 0..text.len() {
        for bit in 0..8 {
            let mut bad = text.clone();
            bad[at] ^= 1 << bit;
            fs::write(&file, bad).unwrap();
            assert!(
                verify(&file, &trial.infra.der).is_err(),
                "byte {at} bit {bit}"
            );
        }
    }
    for len in 0..text.len() {
        fs::write(&file, &text[..len]).unwrap();
        assert!(verify(&file, &trial.infra.der).is_err(), "cut at {len}");
    }
}

#[test]
fn every_record_that_is_taken_out_or_moved_is_found() {
    let trial = Trial::new();
    let whole = trial.verify(&trial.good).unwrap();
    for index in 0..trial.good.len() {
        let good = frames(&trial.good[index]);
        for number in 0..good.len() {
            let mut fewer = good.clone();
            fewer.remove(number);
            let last = index + 1 == trial.good.len() && number + 1 == good.len();
            match trial.with(index, repaired(&fewer)) {
                Err(_) => {}
                // The checkpoint of a closed segment is no record: the header of the next segment names the
                // same hash, and a key that was renewed leaves its last segment without one.
                Ok(report) if good[number][0] == b'K' => assert_eq!(report.entries, whole.entries),
                // The whole newest commit: offline nothing tells it from a ledger that is that old. The
                // daemon's counter does, and an export that was made later.
                Ok(report) => assert!(last && report.entries < whole.entries, "{index} {number}"),
            }
            let mut twice = good.clone();
            twice.insert(number, good[number].clone());
            assert!(
                trial.with(index, repaired(&twice)).is_err(),
                "{index} {number} twice"
            );
            if number + 1 < good.len() {
                let mut swapped = good.clone();
                swapped.swap(number, number + 1);
                assert!(
                    trial.with(index, repaired(&swapped)).is_err(),
                    "{index} {number} swapped"
                );
            }
        }
    }
}

#[test]
fn a_record_within_a_commit_that_is_taken_out_or_swapped_is_named() {
    let trial = Trial::new();
    let good = frames(&trial.good[0]);
    let from = good[1]
        .windows(7)
        .position(|part| part == b"{\"seq\":")
        .unwrap();
    let (before, lines) = good[1].split_at(from);
    let lines = std::str::from_utf8(lines).unwrap();
    let (first, second) = lines.split_once('\n').unwrap();
    for (lines, expected_seq) in [
        (second.to_owned(), 1),
        (format!("{second}\n{first}"), 1),
        (format!("{first}\n{first}"), 2),
    ] {
        let mut bad = good.clone();
        bad[1] = [before, lines.as_bytes()].concat();
        match trial.with(0, repaired(&bad)) {
            Err(VerifyError::Missing {
                file,
                expected,
                found,
            }) => {
                assert_eq!((file, expected), (trial.path(1), expected_seq));
                assert_ne!(found, expected.to_string());
            }
            other => panic!("{other:?}"),
        }
    }
    // Its signature is over the last of the two.
    let mut bad = good.clone();
    bad[1] = [before, first.as_bytes()].concat();
    assert!(matches!(
        trial.with(0, repaired(&bad)),
        Err(VerifyError::BadSignature { seq: 1, .. })
    ));
}

#[test]
fn segments_missing_doubled_swapped_or_of_another_box_are_named() {
    let trial = Trial::new();
    let [one, two, three] = &trial.good[..] else {
        panic!("three segments")
    };
    trial.verify(&trial.good).unwrap();
    fs::remove_file(trial.path(2)).unwrap();
    match verify(trial.copy.path(), &trial.infra.der) {
        Err(VerifyError::Missing { file, .. }) => assert_eq!(file, trial.path(2)),
        other => panic!("{other:?}"),
    }
    let sets = [
        (vec![one, three], 1),
        (vec![one, one, two, three], 1),
        (vec![one, two, two, three], 2),
        (vec![one, two, three, three], 3),
        (vec![two, one, three], 0),
        (vec![one, three, two], 1),
    ];
    for (set, wrong) in sets {
        let set: Vec<Vec<u8>> = set.into_iter().cloned().collect();
        trial.named(&trial.verify(&set).unwrap_err(), wrong);
    }
    let other = Trial::new();
    assert!(matches!(
        trial.verify(&other.good),
        Err(VerifyError::Untrusted { .. })
    ));
    // A segment of another box under the same infra CA: the chain does not go on.
    let sister = tempfile::tempdir().unwrap();
    let sister = ledger(sister.path(), &trial.infra);
    trial.named(&trial.with(1, sister[1].clone()).unwrap_err(), 1);
}
