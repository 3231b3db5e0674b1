//! `kill -9` of the daemon at every step of the walk. The killer waits until the step's record is
//! on disk, kills, starts the daemon again, and the same machine must come through; nothing that
//! was acknowledged before may be missing afterwards.
//!
//! Steps up to the lease are held by the machine itself: it goes no further until the daemon is
//! dead. From the hello on, the kill comes as soon as the record is seen, while the exchange goes on.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gateway_core::record::{JournalRecord, Mark};
use gateway_core::view::LedgerView;
use gateway_core::walk::{Step, WALK};

use crate::pxe::Stage;
use crate::report::Report;
use crate::run::{attempt, output};
use crate::sim::{Attested, Machine};
use crate::site::{Options, Site};
use crate::timeline::step_name;

const RECORD_LIMIT: Duration = Duration::from_secs(15);

/// Runs the scenario.
///
/// # Errors
/// The site or the first admission fails.
pub fn run(report: &Report) -> Result<()> {
    let mut site = Site::start("kill", Options::default())?;
    let outcome = all(report, &mut site);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

fn all(report: &Report, site: &mut Site) -> Result<()> {
    let mut hits = 0;
    // An installation is cut in the machine's middle: scenario install-vm.
    let rows: Vec<_> = WALK
        .iter()
        .filter(|row| row.step != Step::Install)
        .collect();
    for (number, row) in rows.iter().enumerate() {
        let mut machine = Machine::plug(site, number + 1)?;
        let name = step_name(row.step);
        let outcome = one(site, &mut machine, row.step);
        hits += usize::from(outcome.is_ok());
        report.check(
            &format!("killed at {name}: nothing lost, the same machine completes"),
            outcome,
        );
        if !site.running() {
            site.serve()?;
        }
    }
    report.check("every step of the table was hit", {
        if hits == rows.len() {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{hits} of {}", rows.len()))
        }
    });
    report.check("a PCR of the appliance extended: sealed, and says why", {
        changed_pcr(site)
    });
    Ok(())
}

fn one(site: &mut Site, machine: &mut Machine, step: Step) -> Result<()> {
    machine.boot_honestly(site)?;
    // From the appraisal on the machine must be known, else the walk ends with a claim.
    if step >= Step::Appraise {
        claim_and_approve(site, machine)?;
        machine.boot_honestly(site)?;
    }
    let since = crate::vm::now_ms();
    let before = reach(site, machine, step, since)?;
    ensure!(!site.running(), "the daemon was not killed");
    let on_disk = site.journal()?;
    site.serve().context("restart")?;
    site.verify_ledger().context("after the restart")?;
    let after = site.desk.ledger()?;
    ensure!(
        after.len() >= before.ledger.len() && after[..before.ledger.len()] == before.ledger[..],
        "acknowledged records are missing: {} before, {} after",
        before.ledger.len(),
        after.len()
    );
    let now = site.journal()?;
    for mark in marks(&on_disk) {
        ensure!(
            marks(&now).any(|m| m.mac == mark.mac && m.step == mark.step && m.at >= mark.at),
            "lost: {mark:?}"
        );
    }
    ensure!(
        recorded(site, machine, step, since)?,
        "the record of {} is gone",
        step_name(step)
    );
    let addr = complete(site, machine)?;
    if let Some(before) = before.addr {
        ensure!(
            addr == before,
            "{before} was leased, {addr} came after the restart"
        );
    }
    Ok(())
}

/// What the world had been told before the kill.
struct Told {
    ledger: Vec<LedgerView>,
    addr: Option<Ipv4Addr>,
}

/// Brings the machine to `step`, waits for the record, kills the daemon.
fn reach(site: &mut Site, machine: &mut Machine, step: Step, since: u64) -> Result<Told> {
    let told = |site: &Site, addr| -> Result<Told> {
        Ok(Told {
            ledger: site.desk.ledger()?,
            addr,
        })
    };
    match step {
        Step::Discover | Step::Lease | Step::Boot => {
            let addr = match step {
                Step::Discover => {
                    machine.discover()?;
                    None
                }
                Step::Lease => Some(machine.lease(Stage::Pxe)?.addr),
                _ => {
                    machine.netboot()?;
                    None
                }
            };
            wait_record(site, machine, step, since)?;
            let told = told(site, addr)?;
            site.kill();
            Ok(told)
        }
        Step::Install => anyhow::bail!("an installation is not walked here"),
        Step::Hello | Step::Challenge | Step::Evidence | Step::Appraise | Step::Issue => {
            let addr = machine.lease(Stage::Attester)?.addr;
            let told = told(site, Some(addr))?;
            let killed = AtomicBool::new(false);
            let machine = &*machine;
            std::thread::scope(|scope| -> Result<()> {
                let attester = scope.spawn(|| {
                    // Again and again until the daemon is dead, as the /init does.
                    while !killed.load(Ordering::Relaxed) {
                        if matches!(machine.attest(), Ok(Attested::Admitted { .. })) {
                            break;
                        }
                    }
                });
                let seen = wait_record(site, machine, step, since);
                site.kill();
                killed.store(true, Ordering::Relaxed);
                let _ = attester.join();
                seen
            })?;
            Ok(told)
        }
    }
}

fn wait_record(site: &Site, machine: &Machine, step: Step, since: u64) -> Result<()> {
    let started = Instant::now();
    loop {
        if recorded(site, machine, step, since)? {
            return Ok(());
        }
        if started.elapsed() > RECORD_LIMIT {
            bail!("no record of {} for {}", step_name(step), machine.name);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether there is a record of `step` for this machine, made since `since`: a mark in the journal
/// file, or a ledger entry that the daemon shows.
fn recorded(site: &Site, machine: &Machine, step: Step, since: u64) -> Result<bool> {
    if step < Step::Appraise {
        let records = site.journal()?;
        return Ok(
            marks(&records).any(|m| m.mac == machine.mac && m.step == step && m.at.0 >= since)
        );
    }
    for view in site.desk.machines()? {
        if !view.macs.contains(&machine.mac) {
            continue;
        }
        let timeline = site.desk.timeline(&view.machine)?;
        if timeline
            .iter()
            .any(|e| e.step == Some(step) && e.at.0 >= since)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn marks(records: &[JournalRecord]) -> impl Iterator<Item = &Mark> {
    records.iter().filter_map(|record| match record {
        JournalRecord::Mark(mark) => Some(mark),
        JournalRecord::Lease(_) | JournalRecord::Lease6(_) => None,
    })
}

/// From the start to the LDevID, with the approval if one is needed; the leased address.
fn complete(site: &Site, machine: &mut Machine) -> Result<Ipv4Addr> {
    machine.boot_honestly(site)?;
    machine.netboot()?;
    let addr = machine.lease(Stage::Attester)?.addr;
    match machine.attest()? {
        Attested::Admitted { .. } => return Ok(addr),
        Attested::Pending { .. } => {}
        refused => bail!("after the restart: {refused:?}"),
    }
    approve(site, machine)?;
    match machine.attest()? {
        Attested::Admitted { .. } => Ok(addr),
        other => bail!("after the restart and the approval: {other:?}"),
    }
}

fn claim_and_approve(site: &Site, machine: &mut Machine) -> Result<()> {
    machine.lease(Stage::Attester)?;
    match machine.attest()? {
        Attested::Pending { .. } => approve(site, machine),
        other => bail!("a new machine: {other:?}"),
    }
}

fn approve(site: &Site, machine: &Machine) -> Result<()> {
    let claim = site
        .desk
        .wait_machine("claim", Duration::from_secs(5), |m| {
            m.state == "pending" && m.macs.contains(&machine.mac)
        })?;
    site.desk.approve(&claim.machine)
}

/// With one PCR of the appliance extended the CA keys do not open: exit code 4, the PCR named, and
/// what to do. The owner's update key approves this boot, another key does not; and after an honest
/// power-on the first state needs its own approval again.
fn changed_pcr(site: &mut Site) -> Result<()> {
    site.stop()?;
    output(
        site.tpm
            .tool("tpm2_pcrextend")
            .arg(format!("11:sha256={}", "ee".repeat(32))),
        RECORD_LIMIT,
    )?;
    let (code, log) = site.serve_expecting_end()?;
    ensure!(code == Some(4), "exit code {code:?}: {log}");
    let lower = log.to_lowercase();
    for word in ["pcr 11", "seal approve"] {
        ensure!(lower.contains(word), "no {word:?} in: {log}");
    }
    let approve = |site: &Site, key: &Path| {
        let mut approve = site.local(&["seal", "approve", "--this-boot"]);
        attempt(approve.arg("--update-key").arg(key), RECORD_LIMIT)
    };
    let other = site.run.dir().join("other-key.hex");
    std::fs::write(&other, "11".repeat(32))?;
    let (status, _, said) = approve(site, &other)?;
    ensure!(
        status.code() == Some(1),
        "another update key: {status}: {said}"
    );
    ensure!(
        site.serve_expecting_end()?.0 == Some(4),
        "another key approved this boot"
    );
    let key = site.desk.files.join("update-key.hex");
    let (status, _, said) = approve(site, &key)?;
    ensure!(
        status.success(),
        "the owner's key does not approve: {status}: {said}"
    );
    site.serve().context("this boot is approved")?;
    site.stop()?;
    site.tpm.power_cycle(&site.run)?;
    site.measure_boot()?;
    ensure!(
        site.serve_expecting_end()?.0 == Some(4),
        "one state is approved at a time"
    );
    let (status, _, said) = approve(site, &key)?;
    ensure!(
        status.success(),
        "back to the first state: {status}: {said}"
    );
    site.serve().context("after an honest power-on")?;
    Ok(())
}
