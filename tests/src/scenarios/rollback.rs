//! The state folder is exchanged behind the daemon's back: an older copy, a cut ledger, another box.
//! The appliance's TPM has counted along, so each is named at the start, and only the owner can take
//! an older copy for the right one. Rows 43 to 45 of the liars' suite.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gateway::appliance::Appliance;
use gateway::config::Config;
use gateway_core::identity::UnixMillis;
use gateway_core::reason::Reason;
use gateway_core::record::{Record, RefusalSummary};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

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
    report.check(
        "[ledger] keep_days removes old segments for a signed base; the front cannot be cut without one",
        retention(site),
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

/// Cut behind a whole commit, and by a fault or somebody who repairs the frames: edited, thinned,
/// in another order, doubled. The offline check names segment, sequence, expected and found; so does
/// the daemon, which also knows what was cut.
fn attack_44_a_ledger_cut_edited_or_thinned(new: &Path, site: &mut Site) -> Result<()> {
    replace(new, site)?;
    let newest = newest_segment(site)?;
    let good = std::fs::read(&newest)?;
    let frames = frames(&good)?;
    ensure!(frames.len() >= 5, "a ledger of {} frames", frames.len());
    let name = newest.file_name().context("no name")?.to_string_lossy();
    // Whole commits cut off: nothing in the files says so, the counter and the database do.
    let last = frames.len() - 1;
    std::fs::write(&newest, repaired(&frames[..last]))?;
    site.verify_ledger()
        .context("a ledger that was cut behind a commit")?;
    cut_is_refused(site)?;
    replace(new, site)?;
    std::fs::write(&newest, &good[..good.len() - good.len() / 4])?;
    cut_is_refused(site)?;
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let mut thinned = frames.clone();
    thinned.remove(2);
    let mut swapped = frames.clone();
    swapped.swap(2, 3);
    let mut edited = frames.clone();
    let time = at(&edited[2], b"\"time\":").context("a record without a time")?;
    edited[2][time + 7] ^= 1;
    let mut twice = frames.clone();
    twice.insert(2, frames[2].clone());
    for (what, bytes, words) in [
        ("a bit flipped", flipped, ["damaged frame", "entry"]),
        (
            "a record taken out",
            repaired(&thinned),
            ["expected entry", "found"],
        ),
        (
            "records swapped",
            repaired(&swapped),
            ["expected entry", "found"],
        ),
        (
            "a record twice",
            repaired(&twice),
            ["expected entry", "found"],
        ),
        ("a record edited", repaired(&edited), ["entry", ""]),
    ] {
        replace(new, site)?;
        std::fs::write(&newest, bytes)?;
        let said = match site.verify_ledger() {
            Ok(said) => bail!("{what}: verified: {said}"),
            Err(error) => format!("{error:#}"),
        };
        for word in [&*name, "restore", words[0], words[1]] {
            ensure!(said.contains(word), "{what}: no {word:?} in: {said}");
        }
        refused(site, 5, &[&name, "does not verify", words[0], words[1]]).context(what)?;
    }
    // A segment of its own place, and one that is gone.
    replace(new, site)?;
    let number: u64 = name
        .trim_start_matches("ledger-")
        .trim_end_matches(".vlg")
        .parse()?;
    let next = newest.with_file_name(format!("ledger-{:08}.vlg", number + 1));
    std::fs::copy(&newest, &next)?;
    refused(site, 5, &["ledger-", "header of segment"])?;
    // What is left begins with segment 2.
    std::fs::remove_file(newest.with_file_name("ledger-00000001.vlg"))?;
    refused(
        site,
        5,
        &["front of the ledger was cut", "expected segment 1"],
    )
}

/// Which of the two says so depends on whether the last anchor is gone too.
fn cut_is_refused(site: &mut Site) -> Result<()> {
    let (code, log) = site.serve_expecting_end()?;
    ensure!(code == Some(5), "expected 5, found {code:?}: {log}");
    ensure!(
        log.contains("cut or rolled back") || log.contains("ledger.rolled_back"),
        "{log}"
    );
    Ok(())
}

/// Payloads of the frames of a segment (store/src/frame.rs).
fn frames(bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    let mut rest = bytes;
    while let Some((header, body)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let (payload, next) = body
            .split_at_checked(usize::try_from(len)?)
            .context("a frame that is cut short")?;
        frames.push(payload.to_vec());
        rest = next;
    }
    Ok(frames)
}

/// What somebody writes who knows the format: every check of a frame is right.
fn repaired(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    for payload in frames {
        let len = (payload.len() as u32).to_le_bytes();
        let place = [&len[..], &(out.len() as u64).to_le_bytes()].concat();
        out.extend(len);
        out.extend(&Sha256::digest(&place)[..4]);
        out.extend(&Sha256::digest(payload)[..8]);
        out.extend(payload);
    }
    out
}

/// Where a word begins.
fn at(line: &[u8], word: &[u8]) -> Option<usize> {
    line.windows(word.len()).position(|window| window == word)
}

fn newest_segment(site: &Site) -> Result<PathBuf> {
    segments(site, ".vlg")?.pop().context("no segment")
}

fn segments(site: &Site, ends: &str) -> Result<Vec<PathBuf>> {
    let folder = site.state_dir().join("ledger");
    let mut segments = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(ends) {
            segments.push(path);
        }
    }
    segments.sort();
    Ok(segments)
}

/// An appliance that is old: `[ledger] keep_days` takes its first segments off, a power cut in between is
/// made up for, and nobody can cut the front without the base.
fn retention(site: &mut Site) -> Result<()> {
    let aside = site.run.dir().join("aside");
    std::fs::rename(site.state_dir(), &aside)?;
    let path = site.config();
    let before = std::fs::read_to_string(&path)?;
    let rule = "[ledger]\nsegment_max_bytes = 65536\nkeep_days = 30\n";
    std::fs::write(&path, format!("{before}{rule}"))?;
    let outcome = site
        .segment
        .gw
        .enter(|| aged(&path))
        .and_then(|()| pruned(site));
    site.kill();
    std::fs::write(&path, before)?;
    std::fs::remove_dir_all(site.state_dir())?;
    std::fs::rename(&aside, site.state_dir())?;
    outcome
}

const DAY_MS: u64 = 86_400_000;

/// A first start of 400 days ago, and some segments since.
fn aged(config: &Path) -> Result<()> {
    let mut appliance = Appliance::open(&Config::load(config)?)?;
    let now = hw::clock::Clock.now_ms();
    let days_ago = |days: u64| UnixMillis(now - days * DAY_MS);
    appliance.begin(days_ago(400))?;
    for days in [300, 200, 100, 0] {
        let records = (0..100).map(|count| {
            Record::RefusalSummary(RefusalSummary {
                ingress: "i".repeat(800),
                count,
                last: Reason::new("ek.unknown", "an enrolled EK", "x", "inventory", "approve"),
                correlation: "c".to_owned(),
            })
        });
        appliance.commit_anchored(days_ago(days), records.collect())?;
    }
    Ok(())
}

fn pruned(site: &mut Site) -> Result<()> {
    let old = site.run.dir().join("unpruned");
    let said = ca_of(site).and_then(|ca| verify(site, &ca))?;
    ensure!(!said.contains("begins at"), "{said}");
    copy(&site.state_dir().join("ledger"), &old)?;
    site.serve()?;
    ensure!(
        site.log().contains("old ledger segments removed"),
        "the log does not say what was removed"
    );
    site.kill();
    let ca = ca_of(site)?;
    let said = verify(site, &ca)?;
    for word in ["begins at entry", ".base vouches for it"] {
        ensure!(said.contains(word), "no {word:?} in: {said}");
    }
    let last = last_records(site, 400)?;
    ensure!(
        last.iter().any(|record| record["kind"] == "pruned"),
        "the removal is not on record"
    );
    ensure!(
        last.iter().any(|record| record["kind"] == "genesis"),
        "no genesis"
    );
    // The power went before the last old segment was removed.
    let kept = segments(site, ".vlg")?;
    let first = kept.first().context("no segment")?;
    let before: Vec<PathBuf> = std::fs::read_dir(&old)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    let mut gone: Vec<&PathBuf> = before
        .iter()
        .filter(|path| path.file_name() < first.file_name())
        .collect();
    gone.sort();
    let last = gone.last().context("nothing was removed")?;
    let back = first.with_file_name(last.file_name().context("no name")?);
    std::fs::copy(last, &back)?;
    verify(site, &ca)?;
    site.serve()?;
    site.kill();
    ensure!(!back.exists(), "{} is still there", back.display());
    // Without the base the front is cut off.
    for base in segments(site, ".base")? {
        std::fs::remove_file(base)?;
    }
    refused(site, 5, &["front of the ledger was cut"])
}

/// The infra CA certificate of the state folder as it is.
fn ca_of(site: &Site) -> Result<PathBuf> {
    let folder = site.run.dir().join("aged-ca");
    let _ = std::fs::remove_dir_all(&folder);
    let mut export = site.local(&["ca", "export"]);
    output(export.arg("--out").arg(&folder), LIMIT)?;
    Ok(folder.join("infra-ca.pem"))
}

fn verify(site: &Site, ca: &Path) -> Result<String> {
    let mut verify = Command::new(&site.desk.program);
    verify.args(["ledger", "verify"]).arg(site.state_dir());
    output(verify.arg("--ca").arg(ca), LIMIT)
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
