//! Simulated machines switched on at once, fifty in the suite and 640 in the benchmark: every one gets a
//! lease of its own, boots, attests with a real TPM in software, and is admitted. All of them are declared,
//! so no approval waits.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use attest_wire::tpm::Public;
use hw::tpm::NodeTpm as _;

use crate::event_log::EventLog;
use crate::report::Report;
use crate::run::output;
use crate::sim::{ATTEST, Attested, Machine};
use crate::site::{Options, Site};

/// Machines of the storm of the suite.
const MACHINES: usize = 50;
/// Machines of the storm of the benchmark.
const LARGE: usize = 640;
/// Attempts of a machine to attest: the gateway takes 256 connections of attesters at once, and a machine
/// whose connection it does not take waits and comes again.
const ATTEMPTS: u32 = 8;
/// Machines that are plugged in at once.
const HANDS: usize = 4;

/// A storm of `MACHINES`, whose TPMs have EK certificates.
///
/// # Errors
/// The site or a TPM cannot be made.
pub fn run(report: &Report) -> Result<()> {
    storm(report, MACHINES, Options::default(), Machine::plug)
}

/// A storm of `LARGE`, whose TPMs have none: a manufacturer would need a quarter of an hour for them.
///
/// # Errors
/// The site or a TPM cannot be made.
pub fn large(report: &Report) -> Result<()> {
    let options = Options {
        prefix: 16,
        pool: (
            Ipv4Addr::new(10, 66, 64, 0),
            Ipv4Addr::new(10, 66, 127, 255),
        ),
        ..Options::default()
    };
    let _room = NeighbourRoom::make()?;
    storm(report, LARGE, options, Machine::plug_blank)
}

/// Room in the kernel's one table of IPv4 neighbours, which all namespaces share (arp(7), `gc_thresh3`): here
/// every machine's entry of the gateway stands in it beside the gateway's of every machine. Given back at the
/// end.
struct NeighbourRoom(String);

impl NeighbourRoom {
    const FILE: &str = "/proc/sys/net/ipv4/neigh/default/gc_thresh3";

    fn make() -> Result<Self> {
        let before = fs::read_to_string(Self::FILE).context(Self::FILE)?;
        fs::write(Self::FILE, "8192").context(Self::FILE)?;
        Ok(Self(before))
    }
}

impl Drop for NeighbourRoom {
    fn drop(&mut self) {
        if let Err(error) = fs::write(Self::FILE, &self.0) {
            eprintln!("{} is still 8192: {error}", Self::FILE);
        }
    }
}

/// What one machine went through.
#[derive(Default)]
struct Walked {
    steps: Vec<(&'static str, Duration)>,
    addr: Option<Ipv4Addr>,
    attempts: u32,
    error: Option<String>,
}

fn storm(
    report: &Report,
    count: usize,
    options: Options,
    plug: fn(&Site, usize) -> Result<Machine>,
) -> Result<()> {
    let mut site = Site::prepare("storm", options)?;
    // First every TPM is started, then the first is spoken to: its library's sockets are inherited by a
    // program that another thread starts meanwhile, and a TPM serves one client until all have closed.
    let numbers = (1..=count).collect();
    let machines = in_parallel(numbers, |number| plug(&site, number))?;
    let boot = site.honest_boot()?;
    let booted = in_parallel(machines, |mut machine| {
        machine.measure(EventLog::of(&boot))?;
        let declared = declare(&machine)?;
        Ok((machine, declared))
    })?;
    let (machines, declared): (Vec<Machine>, Vec<String>) = booted.into_iter().unzip();
    site.declare(&format!("version = 1\n{}", declared.concat()))?;
    site.serve()?;
    report.note(format!("{count} machines, each with its own swtpm"));
    if count >= LARGE {
        stand_back(&machines)?;
        report.note("machines and their TPMs run when the daemon does not (SCHED_IDLE)");
    }
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
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(walked);
            });
        }
    });
    let wall = started.elapsed();
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    table(report, &results);
    let memory = site.memory_kib().map_or(0, |(_, peak)| peak / 1024);
    let cpu = site.cpu_secs() - cpu_before;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    report.note(format!(
        "wall {:.1} s, daemon {cpu:.1} CPU s ({:.0} % of {cores} cores), peak RSS {memory} MiB",
        wall.as_secs_f64(),
        100.0 * cpu / (wall.as_secs_f64() * cores),
    ));
    let again = results.iter().filter(|walked| walked.attempts > 1).count();
    report.note(format!(
        "{again} machines needed more than one attempt to attest"
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

/// Lets the machines and their TPMs run only when nobody else wants to: on a site they have processors of
/// their own, and here each of them would count as much as the daemon. Threads that are started from now
/// on inherit it.
fn stand_back(machines: &[Machine]) -> Result<()> {
    let tpms = machines.iter().map(|machine| machine.tpm.pid());
    for pid in tpms.chain([std::process::id()]) {
        let mut chrt = Command::new("chrt");
        chrt.args(["--idle", "--pid", "0", &pid.to_string()]);
        output(&mut chrt, Duration::from_secs(5))?;
    }
    Ok(())
}

/// `make` of each item, [`HANDS`] at a time, in their order.
fn in_parallel<I: Send, T: Send>(
    items: Vec<I>,
    make: impl Fn(I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let todo = Mutex::new(items.into_iter().enumerate());
    let next = || todo.lock().unwrap_or_else(PoisonError::into_inner).next();
    let mut made = std::thread::scope(|scope| {
        let hand = || {
            std::iter::from_fn(next)
                .map(|(at, item)| Ok((at, make(item)?)))
                .collect::<Result<Vec<_>>>()
        };
        let hands: Vec<_> = (0..HANDS).map(|_| scope.spawn(hand)).collect();
        let joined = hands.into_iter().map(|hand| {
            hand.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.collect::<Result<Vec<_>>>()
    })?
    .into_iter()
    .flatten()
    .collect::<Vec<_>>();
    made.sort_by_key(|(at, _)| *at);
    Ok(made.into_iter().map(|(_, made)| made).collect())
}

fn walk(machine: &Machine, walked: &mut Walked) -> Result<()> {
    let started = Instant::now();
    let (_, steps) = machine.netboot()?;
    walked.steps = steps;
    let lease = machine.lease(crate::pxe::Stage::Attester)?;
    walked.addr = Some(lease.addr);
    let mut last = Instant::now();
    let mut at = Vec::new();
    // The first step that is told is the hello, before which the TPM makes its keys.
    let options = attester::Options::default();
    let (outcome, attempts) =
        machine.attest_patiently(ATTEST, &options, ATTEMPTS, &mut |step, _| {
            at.push((step.as_str(), last.elapsed()));
            last = Instant::now();
        })?;
    walked.attempts = attempts;
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
    fn hands_keep_the_order_and_tell_a_failure() {
        let squares = in_parallel((0..100).collect(), |at: u32| Ok(at * at)).unwrap();
        assert!(
            squares
                .iter()
                .zip(0..)
                .all(|(square, at)| *square == at * at)
        );
        let failed = in_parallel(vec![1, 2, 3], |at: u32| {
            ensure!(at != 2, "the second");
            Ok(at)
        });
        assert_eq!(failed.unwrap_err().to_string(), "the second");
    }

    #[test]
    fn nearest_rank() {
        let times: Vec<_> = (1..=50).map(Duration::from_millis).collect();
        for (percent, ms) in [(50, 25), (99, 50), (100, 50)] {
            assert_eq!(percentile(&times, percent), Duration::from_millis(ms));
        }
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
