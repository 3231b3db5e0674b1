//! `kill -9` of the daemon at every step of the walk. The killer waits until the step's record is
//! on disk, kills, starts the daemon again, and the same machine must come through; nothing that
//! was acknowledged before may be missing afterwards.
//!
//! Steps up to the lease are held by the machine itself: it goes no further until the daemon is
//! dead. From the hello on, the kill comes as soon as the record is seen, while the exchange goes on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gateway_core::view::LedgerView;
use gateway_core::walk::{Step, WALK};

use crate::admin::Desk;
use crate::pxe::Stage;
use crate::report::Report;
use crate::run::output;
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
    for (number, row) in WALK.iter().enumerate() {
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
        if hits == WALK.len() {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{hits} of {}", WALK.len()))
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
    site.serve().context("restart")?;
    site.verify_ledger().context("after the restart")?;
    let after = site.desk.ledger()?;
    ensure!(
        after.len() >= before.len() && after[..before.len()] == before[..],
        "acknowledged records are missing: {} before, {} after",
        before.len(),
        after.len()
    );
    ensure!(
        recorded(&site.desk, machine, step, since)?,
        "the record of {} is gone",
        step_name(step)
    );
    complete(site, machine)
}

/// Brings the machine to `step`, waits for the record, kills the daemon; the ledger as it was seen
/// before.
fn reach(
    site: &mut Site,
    machine: &mut Machine,
    step: Step,
    since: u64,
) -> Result<Vec<LedgerView>> {
    let desk = site.desk.clone();
    match step {
        Step::Discover | Step::Lease | Step::Boot => {
            match step {
                Step::Discover => machine.discover()?,
                Step::Lease => drop(machine.lease(Stage::Pxe)?),
                _ => drop(machine.netboot()?),
            }
            wait_record(&desk, machine, step, since)?;
            let ledger = desk.ledger()?;
            site.kill();
            Ok(ledger)
        }
        Step::Hello | Step::Challenge | Step::Evidence | Step::Appraise | Step::Issue => {
            machine.lease(Stage::Attester)?;
            let ledger = desk.ledger()?;
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
                let seen = wait_record(&desk, machine, step, since);
                site.kill();
                killed.store(true, Ordering::Relaxed);
                let _ = attester.join();
                seen
            })?;
            Ok(ledger)
        }
    }
}

fn wait_record(desk: &Desk, machine: &Machine, step: Step, since: u64) -> Result<()> {
    let started = Instant::now();
    loop {
        if recorded(desk, machine, step, since)? {
            return Ok(());
        }
        if started.elapsed() > RECORD_LIMIT {
            bail!("no record of {} for {}", step_name(step), machine.name);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the daemon shows a record of `step` for this machine, made since `since`.
fn recorded(desk: &Desk, machine: &Machine, step: Step, since: u64) -> Result<bool> {
    for view in desk.machines()? {
        if !view.macs.contains(&machine.mac) {
            continue;
        }
        let timeline = desk.timeline(&view.machine)?;
        if timeline
            .iter()
            .any(|e| e.step == Some(step) && e.at.0 >= since)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// From the start to the LDevID, with the approval if one is needed.
fn complete(site: &Site, machine: &mut Machine) -> Result<()> {
    machine.boot_honestly(site)?;
    machine.netboot()?;
    machine.lease(Stage::Attester)?;
    match machine.attest()? {
        Attested::Admitted { .. } => return Ok(()),
        Attested::Pending { .. } => {}
        refused => bail!("after the restart: {refused:?}"),
    }
    approve(site, machine)?;
    match machine.attest()? {
        Attested::Admitted { .. } => Ok(()),
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
/// what to do. After an honest power-on they open again.
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
    for word in ["pcr 11", "escrow"] {
        ensure!(lower.contains(word), "no {word:?} in: {log}");
    }
    site.tpm.power_cycle(&site.run)?;
    site.measure_boot()?;
    site.serve().context("after an honest power-on")?;
    Ok(())
}
