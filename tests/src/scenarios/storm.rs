//! Fifty simulated machines switched on at once: every one gets a lease of its own, boots, attests
//! with a real TPM in software, and is admitted. All of them are declared, so no approval waits.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use attest_wire::tpm::Public;
use hw::tpm::NodeTpm as _;

use crate::report::Report;
use crate::sim::{Attested, Machine};
use crate::site::{Options, Site};

/// Machines of the storm.
pub const MACHINES: usize = 50;

/// Runs the scenario with [`MACHINES`].
///
/// # Errors
/// The site or a TPM cannot be made.
pub fn run(report: &Report) -> Result<()> {
    storm(report, MACHINES)
}

/// What one machine went through.
#[derive(Default)]
struct Walked {
    steps: Vec<(&'static str, Duration)>,
    addr: Option<std::net::Ipv4Addr>,
    error: Option<String>,
}

/// A storm of `count` machines.
///
/// # Errors
/// The site or a TPM cannot be made.
pub fn storm(report: &Report, count: usize) -> Result<()> {
    let mut site = Site::prepare("storm", Options::default())?;
    let mut machines = Vec::new();
    for number in 1..=count {
        let mut machine = Machine::plug(&site, number)?;
        machine.boot_honestly(&site)?;
        machines.push(machine);
    }
    let declared: Vec<String> = machines.iter().map(declare).collect::<Result<_>>()?;
    site.declare(&format!("version = 1\n{}", declared.concat()))?;
    site.serve()?;
    report.note(format!("{count} machines, each with its own swtpm"));
    let started = Instant::now();
    let cpu_before = site.cpu_secs();
    let results: Mutex<Vec<Walked>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for machine in &machines {
            scope.spawn(|| {
                let mut walked = Walked::default();
                if let Err(error) = walk(machine, &mut walked) {
                    walked.error = Some(format!("{}: {error:#}", machine.name));
                }
                results
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
                    .push(walked);
            });
        }
    });
    let wall = started.elapsed();
    let results = results
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    table(report, &results);
    let memory = site.memory_kib().map_or(0, |(_, peak)| peak / 1024);
    report.note(format!(
        "wall {:.1} s, daemon {:.1} CPU s, peak RSS {memory} MiB",
        wall.as_secs_f64(),
        site.cpu_secs() - cpu_before
    ));
    report.check("all admitted, no error", no_error(&results));
    report.check("unique leases", unique(&results));
    report.check("the daemon says the same", all_admitted(&site, count));
    report.check("the ledger verifies", site.verify_ledger().map(drop));
    if !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    Ok(())
}

fn walk(machine: &Machine, walked: &mut Walked) -> Result<()> {
    let started = Instant::now();
    let (_, steps) = machine.netboot()?;
    walked.steps = steps;
    let lease = machine.lease(crate::pxe::Stage::Attester)?;
    walked.addr = Some(lease.addr);
    let mut last = Instant::now();
    let mut at = Vec::new();
    let outcome = machine.attest_with(&attester::Options::default(), &mut |step, _| {
        at.push((step.as_str(), last.elapsed()));
        last = Instant::now();
    })?;
    walked.steps.extend(at);
    match outcome {
        Attested::Admitted { .. } => {}
        other => anyhow::bail!("{other:?}"),
    }
    walked.steps.push(("whole walk", started.elapsed()));
    Ok(())
}

/// One `[[machine]]` of the inventory, with the Names that its TPM shows.
fn declare(machine: &Machine) -> Result<String> {
    let names = machine.with_tpm(|tpm| {
        tpm.endorsement_keys()?
            .iter()
            .map(|ek| {
                let public = Public::decode(&ek.public)
                    .map_err(|error| anyhow::anyhow!("EK public: {error}"))?;
                Ok(format!("\"{}\"", public.name().to_hex()))
            })
            .collect::<Result<Vec<String>>>()
    })?;
    Ok(format!(
        "[[machine]]\nname = \"{}\"\nserial = \"{}\"\nek_names = [{}]\nclass = \"node\"\n",
        machine.name,
        machine.claims.serial,
        names.join(", ")
    ))
}

fn no_error(results: &[Walked]) -> Result<()> {
    let errors: Vec<_> = results.iter().filter_map(|w| w.error.as_deref()).collect();
    ensure!(
        errors.is_empty(),
        "{} of {} machines\n{}",
        errors.len(),
        results.len(),
        errors.join("\n")
    );
    Ok(())
}

fn unique(results: &[Walked]) -> Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    for walked in results {
        let addr = walked.addr.context("a machine without a lease")?;
        ensure!(seen.insert(addr), "{addr} twice");
    }
    Ok(())
}

fn all_admitted(site: &Site, count: usize) -> Result<()> {
    let admitted = site
        .desk
        .machines()?
        .iter()
        .filter(|m| m.state == "admitted")
        .count();
    ensure!(admitted == count, "{admitted} of {count} admitted");
    Ok(())
}

fn table(report: &Report, results: &[Walked]) {
    let mut columns: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    let mut order = Vec::new();
    for (step, took) in results.iter().flat_map(|w| &w.steps) {
        if !columns.contains_key(step) {
            order.push(*step);
        }
        columns.entry(step).or_default().push(*took);
    }
    report.note(format!(
        "{:22} {:>5} {:>9} {:>9} {:>9}",
        "step", "n", "p50 ms", "p99 ms", "max ms"
    ));
    for step in order {
        let Some(times) = columns.get_mut(step) else {
            continue;
        };
        times.sort();
        let ms = |d: Duration| d.as_secs_f64() * 1000.0;
        report.note(format!(
            "{step:22} {:>5} {:>9.1} {:>9.1} {:>9.1}",
            times.len(),
            ms(percentile(times, 50)),
            ms(percentile(times, 99)),
            ms(percentile(times, 100))
        ));
    }
}

/// Nearest-rank percentile of a sorted list.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank() {
        let times: Vec<_> = (1..=50).map(Duration::from_millis).collect();
        for (percent, ms) in [(50, 25), (99, 50), (100, 50)] {
            assert_eq!(percentile(&times, percent), Duration::from_millis(ms));
        }
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
