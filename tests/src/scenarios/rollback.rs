//! The state folder is exchanged behind the daemon's back: an older copy, a cut ledger, another box.
//! The appliance's TPM has counted along, so each is named at the start, and only the owner can take
//! an older copy for the right one. Rows 43 to 45 of the liars' suite.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::report::Report;
use crate::run::{attempt, output};
use crate::site::{Options, Site};
use crate::swtpm::{self, Swtpm};

const LIMIT: Duration = Duration::from_secs(20);
/// Template of a TPM that is not the appliance's.
const OTHER_TEMPLATE: usize = 9;

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made.
pub fn run(report: &Report) -> Result<()> {
    let mut site = Site::start("rollback", Options::default())?;
    let outcome = steps(report, &mut site);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

fn steps(report: &Report, site: &mut Site) -> Result<()> {
    report.check(
        "an owner's act is anchored before it is answered: kill -9 after it loses nothing",
        act_and_kill(site),
    );
    report.check(
        "killed between anchor and counter: the next start makes up for it",
        interrupted(site),
    );
    // Yesterday's copy, and what the owner did since.
    site.stop()?;
    let (old, new) = (site.run.dir().join("old"), site.run.dir().join("new"));
    copy(&site.state_dir(), &old)?;
    site.serve()?;
    floor(site, 5)?;
    site.stop()?;
    copy(&site.state_dir(), &new)?;
    report.check(
        "attack_43: yesterday's copy of the state folder: ledger.rolled_back, exit code 5",
        attack_43_yesterday_s_copy_of_the_state(&old, site),
    );
    report.check(
        "the newest copy serves again",
        replace(&new, site)
            .and_then(|()| site.serve().map(drop))
            .and_then(|()| site.stop()),
    );
    report.check(
        "attack_44: the newest ledger without its last records, or one edited: named",
        attack_44_a_ledger_cut_edited_or_thinned(&new, site),
    );
    report.check(
        "the state folder in another box: exit code 4",
        replace(&new, site).and_then(|()| other_box(site)),
    );
    report.check(
        "the counter removed by somebody with the owner hierarchy: an alarm, exit code 4",
        replace(&new, site).and_then(|()| removed(site)),
    );
    report.check(
        "only the owner's update key adopts an older copy, and it is written down",
        adopted(&old, site),
    );
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    output(Command::new("cp").arg("-a").args([from, to]), LIMIT).map(drop)
}

fn replace(with: &Path, site: &Site) -> Result<()> {
    std::fs::remove_dir_all(site.state_dir())?;
    copy(with, &site.state_dir())
}

fn floor(site: &Site, version: u64) -> Result<()> {
    let version = version.to_string();
    let (status, out, err) =
        site.desk
            .vestibule(&["image", "floor", "attester", version.as_str()])?;
    ensure!(status.success(), "image floor: {status}: {out}{err}");
    Ok(())
}

/// The daemon ends by itself with this code and names this.
fn refused(site: &mut Site, code: i32, words: &[&str]) -> Result<()> {
    let (found, log) = site.serve_expecting_end()?;
    ensure!(
        found == Some(code),
        "expected {code}, found {found:?}: {log}"
    );
    for word in words {
        ensure!(log.contains(word), "no {word:?} in: {log}");
    }
    Ok(())
}

/// Kinds of the last records, newest last.
fn last_records(site: &Site, count: usize) -> Result<Vec<Value>> {
    let file = site.run.dir().join("export.jsonl");
    // A new one each time.
    let _ = std::fs::remove_file(&file);
    let mut export = Command::new(&site.desk.program);
    export.args(["ledger", "export"]).arg(site.state_dir());
    output(export.arg("--out").arg(&file), LIMIT)?;
    let text = std::fs::read_to_string(&file)?;
    let records: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|line| line.get("record").cloned())
        .collect();
    let skip = records.len().saturating_sub(count);
    Ok(records.into_iter().skip(skip).collect())
}

fn act_and_kill(site: &mut Site) -> Result<()> {
    floor(site, 2)?;
    site.kill();
    let last = last_records(site, 2)?;
    let kinds: Vec<&Value> = last.iter().map(|record| &record["kind"]).collect();
    ensure!(kinds == ["operator", "anchor"], "last records: {last:?}");
    site.serve().map(drop)
}

/// The TPM is held still, so that the anchor is on disk and the counter has not moved.
fn interrupted(site: &mut Site) -> Result<()> {
    let before = last_records(site, 1)?[0]["counter"].as_u64();
    let before = before.context("the last record is no anchor")?;
    let tpm = Pid::from_raw(i32::try_from(site.tpm.pid())?);
    kill(tpm, Signal::SIGSTOP)?;
    let held = held(site, before + 1);
    site.kill();
    kill(tpm, Signal::SIGCONT)?;
    held?;
    site.serve()?;
    ensure!(
        site.log().contains("between an anchor and its counter"),
        "the start says nothing of it"
    );
    Ok(())
}

/// An act whose answer does not come, while its anchor is on disk.
fn held(site: &Site, counter: u64) -> Result<()> {
    let mut act = site.desk.command(&["image", "floor", "attester", "3"]);
    let mut act = site.run.spawn("held-act", &mut act)?;
    let begun = Instant::now();
    let on_disk = loop {
        let last = last_records(site, 1)?;
        if last[0]["counter"].as_u64() == Some(counter) {
            break Ok(());
        }
        if begun.elapsed() > LIMIT {
            break Err(anyhow::anyhow!("no anchor on disk: {last:?}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let answered = act.ended();
    act.kill();
    on_disk?;
    if let Some(status) = answered {
        bail!("answered before the counter moved: {status}");
    }
    Ok(())
}

fn attack_43_yesterday_s_copy_of_the_state(old: &Path, site: &mut Site) -> Result<()> {
    replace(old, site)?;
    refused(site, 5, &["ledger.rolled_back", "adopt"])
}

/// Cut, with one record changed, and with one record taken out.
fn attack_44_a_ledger_cut_edited_or_thinned(new: &Path, site: &mut Site) -> Result<()> {
    replace(new, site)?;
    cut(site)?;
    // The first record of the segment.
    let first = |lines: &[Vec<u8>]| {
        lines
            .iter()
            .position(|line| at(line, b"\"seq\":").is_some())
    };
    for (what, remove) in [("edited", false), ("removed", true)] {
        replace(new, site)?;
        let newest = newest_segment(site)?;
        let before = std::fs::read(&newest)?;
        let mut lines: Vec<Vec<u8>> = before
            .split_inclusive(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        let record = first(&lines).context("no record in the segment")?;
        if remove {
            lines.remove(record);
        } else {
            let time = at(&lines[record], b"\"time\":").context("a record without a time")?;
            lines[record][time + 7] ^= 1;
        }
        std::fs::write(&newest, lines.concat())?;
        // What was removed may look like a write that a power cut interrupted: only what was acknowledged says
        // otherwise.
        let verified = site.verify_ledger();
        ensure!(remove || verified.is_err(), "{what}: {verified:?}");
        let (code, log) = site.serve_expecting_end()?;
        ensure!(code == Some(5), "{what}: expected 5, found {code:?}: {log}");
        let file = newest.file_name().unwrap_or_default().to_string_lossy();
        let named = [&*file, "cut or rolled back", "ledger.rolled_back"];
        ensure!(named.iter().any(|word| log.contains(word)), "{what}: {log}");
    }
    Ok(())
}

/// Where a word begins.
fn at(line: &[u8], word: &[u8]) -> Option<usize> {
    line.windows(word.len()).position(|window| window == word)
}

fn newest_segment(site: &Site) -> Result<PathBuf> {
    let folder = site.state_dir().join("ledger");
    let mut segments: Vec<PathBuf> = std::fs::read_dir(&folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    segments.sort();
    segments.pop().context("no segment")
}

/// The newest segment, cut behind the record before the last anchor.
fn cut(site: &mut Site) -> Result<()> {
    let newest = newest_segment(site)?;
    let len = std::fs::metadata(&newest)?.len();
    let file = std::fs::OpenOptions::new().write(true).open(&newest)?;
    file.set_len(len - len / 4)?;
    drop(file);
    let (code, log) = site.serve_expecting_end()?;
    ensure!(code == Some(5), "expected 5, found {code:?}: {log}");
    ensure!(
        log.contains("cut or rolled back") || log.contains("ledger.rolled_back"),
        "{log}"
    );
    Ok(())
}

fn other_box(site: &mut Site) -> Result<()> {
    site.tpm.stop();
    let folder = site.run.dir().join("tpm-other");
    swtpm::provision(OTHER_TEMPLATE, &folder)?;
    let mut other = Swtpm::start(&site.run, &site.segment.gw, "other", &folder)?;
    std::mem::swap(&mut site.tpm, &mut other);
    let outcome = site
        .measure_boot()
        .and_then(|()| refused(site, 4, &["sealed CA keys does not open"]));
    site.tpm.stop();
    std::mem::swap(&mut site.tpm, &mut other);
    site.tpm.power_cycle(&site.run)?;
    site.measure_boot()?;
    outcome
}

/// What anybody with the empty owner authorisation can do. The TPM's files are put back after it.
fn removed(site: &mut Site) -> Result<()> {
    let folder = site.run.dir().join("tpm-gateway");
    let saved = site.run.dir().join("tpm-saved");
    site.tpm.stop();
    copy(&folder, &saved)?;
    site.tpm.power_cycle(&site.run)?;
    site.measure_boot()?;
    let indices = output(site.tpm.tool("tpm2_getcap").arg("handles-nv-index"), LIMIT)?;
    // The second of the seal is the counter; the first index that reads as one.
    let mut gone = false;
    for index in indices.lines().filter_map(|line| line.split("0x").nth(1)) {
        let index = format!("0x{}", index.trim());
        let public = output(site.tpm.tool("tpm2_nvreadpublic").arg(&index), LIMIT)?;
        if public.contains("nt=0x1") || public.contains("nt=counter") {
            output(
                site.tpm.tool("tpm2_nvundefine").args(["-C", "o", &index]),
                LIMIT,
            )?;
            gone = true;
        }
    }
    let outcome = refused(site, 4, &["counter of the ledger", "is gone"]);
    site.tpm.stop();
    std::fs::remove_dir_all(&folder)?;
    copy(&saved, &folder)?;
    site.tpm.power_cycle(&site.run)?;
    site.measure_boot()?;
    ensure!(gone, "no counter among: {indices}");
    outcome
}

fn adopted(old: &Path, site: &mut Site) -> Result<()> {
    replace(old, site)?;
    let adopt = |site: &Site, key: &Path| {
        let mut adopt = site.local(&["ledger", "adopt", "--why", "restored"]);
        attempt(adopt.arg("--update-key").arg(key), LIMIT)
    };
    let other = site.run.dir().join("other-key.hex");
    std::fs::write(&other, "11".repeat(32))?;
    let (status, _, said) = adopt(site, &other)?;
    ensure!(
        status.code() == Some(1) && said.contains("ledger.adopt"),
        "another key: {status}: {said}"
    );
    let key = site.desk.files.join("update-key.hex");
    let (status, _, said) = adopt(site, &key)?;
    ensure!(status.success(), "the owner's key: {status}: {said}");
    let last = last_records(site, 2)?;
    ensure!(
        last[0]["act"]["act"] == "adopt_ledger" && last[1]["kind"] == "anchor",
        "{last:?}"
    );
    let (status, _, said) = adopt(site, &key)?;
    ensure!(
        status.code() == Some(1) && said.contains("nothing to do"),
        "a second time: {status}: {said}"
    );
    site.serve()?;
    site.verify_ledger()?;
    site.stop()
}
