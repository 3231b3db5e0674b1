//! Benchmarks: our daemon against its peers, in one run, round by round.
//!
//! The method: servers from Debian packages in namespaces on one switch, driven in turn (A B A B,
//! at least [`ROUNDS`] rounds) by the same load, the content of every answer checked. What counts
//! is processor time of the server per unit of work and the ratio to the peer in the same round;
//! medians with their range. A peer that is missing or a wrong answer fails the run; no figure of
//! a peer is kept from one run to the next.

mod attest;
mod dhcp;
mod footprint;
mod https;
mod keylime;
mod peer;
mod row;
mod tftp;
mod usage;

pub use peer::{Peer, Socket, is_open, plug, program, version};
pub use row::{Row, Sample, Target, table, write};
pub use usage::{cpu_of, peak_rss_of, rss_of};

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::scenarios::Watchdog;

/// Fewest rounds of a figure that is quoted.
pub const ROUNDS: usize = 5;

/// One benchmark.
pub struct Bench {
    /// Name for `lab bench` and of its JSON file.
    pub name: &'static str,
    /// What is compared.
    pub what: &'static str,
    /// Longest run, in seconds; beyond it the program ends.
    pub limit_secs: u64,
    /// Measures that many rounds; an error is a failed run.
    pub run: fn(usize) -> Result<Vec<Row>>,
}

/// All of them.
pub const ALL: &[Bench] = &[
    Bench {
        name: "attest",
        what: "one appraisal of a real quote and a real firmware's log against keylime",
        limit_secs: 900,
        run: attest::run,
    },
    Bench {
        name: "dhcp",
        what: "full exchanges of relayed UEFI clients against dnsmasq and Kea",
        limit_secs: 900,
        run: dhcp::run,
    },
    Bench {
        name: "footprint",
        what: "memory, size and start, beside dnsmasq and nginx at rest",
        limit_secs: 600,
        run: footprint::run,
    },
    Bench {
        name: "tftp",
        what: "lock step, windows, a storm and loss against tftpd-hpa, dnsmasq and atftpd",
        limit_secs: 1_800,
        run: tftp::run,
    },
    Bench {
        name: "https",
        what: "an 80 MiB image to 1, 8 and 64 machines, and new TLS connections, against nginx",
        limit_secs: 1_800,
        run: https::run,
    },
];

/// Finds a benchmark by name.
pub fn find(name: &str) -> Option<&'static Bench> {
    ALL.iter().find(|bench| bench.name == name)
}

/// Runs one: prints its table and writes its JSON. 0: every target met; 1: one missed; 3: the run
/// failed.
pub fn run(bench: &'static Bench, rounds: usize) -> ExitCode {
    println!("bench {}: {}", bench.name, bench.what);
    println!("  {}", machine());
    if rounds < ROUNDS {
        println!("  {rounds} round(s): too few to quote, {ROUNDS} are asked for");
    }
    let watchdog = Watchdog::start(bench.name, bench.limit_secs);
    let started = Instant::now();
    let measured = (bench.run)(rounds).and_then(|rows| {
        let path = write(bench.name, &rows)?;
        Ok((rows, path))
    });
    drop(watchdog);
    let (rows, path) = match measured {
        Ok(measured) => measured,
        Err(error) => {
            println!("FAIL bench {}: {error:#}", bench.name);
            return ExitCode::from(3);
        }
    };
    print!("{}", table(&rows));
    let missed = rows.iter().filter(|row| !row.ok).count();
    println!(
        "bench {}: {} figures, {missed} target(s) missed, {:.0} s, {}",
        bench.name,
        rows.len(),
        started.elapsed().as_secs_f64(),
        path.display()
    );
    ExitCode::from(u8::from(missed > 0))
}

/// One side of a comparison.
pub struct Side<'a, T> {
    /// Its name, for the text of an error.
    pub name: &'a str,
    /// Measures one round, counted from 0.
    pub run: Box<dyn FnMut(usize) -> Result<T> + 'a>,
}

impl<'a, T> Side<'a, T> {
    /// A side that `run` measures.
    pub fn new(name: &'a str, run: impl FnMut(usize) -> Result<T> + 'a) -> Self {
        Self {
            name,
            run: Box::new(run),
        }
    }
}

/// Every side once, then every side again: what slows the machine for a while slows all of them.
/// For each side, in their order, what each round gave.
///
/// # Errors
/// The first failing round, with its side.
pub fn interleave<T>(rounds: usize, mut sides: Vec<Side<'_, T>>) -> Result<Vec<Vec<T>>> {
    let mut all: Vec<Vec<T>> = sides.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for (side, results) in sides.iter_mut().zip(&mut all) {
            let result =
                (side.run)(round).with_context(|| format!("{}, round {}", side.name, round + 1))?;
            results.push(result);
        }
    }
    Ok(all)
}

/// The machine in one line.
fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    format!(
        "machine: {cpus} CPUs, {} GiB, Linux {}",
        kib >> 20,
        kernel.trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn sides_take_turns_and_a_failure_names_its_side() {
        let order = RefCell::new(Vec::new());
        let side = |name: &'static str| {
            let order = &order;
            Side::new(name, move |round| {
                order.borrow_mut().push((name, round));
                Ok(round * 10)
            })
        };
        let results = interleave(2, vec![side("a"), side("b")]).unwrap();
        assert_eq!(results, [vec![0, 10], vec![0, 10]]);
        assert_eq!(order.into_inner(), [("a", 0), ("b", 0), ("a", 1), ("b", 1)]);
        let broken: Vec<Side<'_, ()>> = vec![Side::new("c", |_| anyhow::bail!("no answer"))];
        let error = interleave(1, broken).unwrap_err();
        assert_eq!(format!("{error:#}"), "c, round 1: no answer");
    }

    #[test]
    fn names_are_unique_and_found() {
        for bench in ALL {
            assert_eq!(find(bench.name).map(|b| b.what), Some(bench.what));
        }
        assert!(find("no-such").is_none());
    }
}
