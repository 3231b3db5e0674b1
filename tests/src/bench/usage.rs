//! What a server costs: processor time and memory of a process and everything below it.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// Ticks of `/proc/PID/stat` per second: USER_HZ is 100 on every Linux this runs on (proc(5)).
const TICKS_PER_SEC: f64 = 100.0;

/// Processor time, user and system, that a process and its descendants have used: every thread,
/// ended ones too, to the nanosecond (clock_getcpuclockid(3)), and what children took that have
/// ended and were waited for, in ticks.
///
/// # Errors
/// There is no such process.
pub fn cpu_of(pid: u32) -> Result<Duration> {
    let own = cpu_of_one(pid)?;
    // A descendant that ends between the look and the question is counted by its parent next time.
    let below: Duration = descendants(pid)
        .into_iter()
        .filter_map(|child| cpu_of_one(child).ok())
        .sum();
    Ok(own + below)
}

fn cpu_of_one(pid: u32) -> Result<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()))
        .with_context(|| format!("no process {pid}"))?;
    let own = Duration::from(clock_gettime(clock)?);
    // proc(5): fields 16 and 17, cutime and cstime; 13 and 14 after the state.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let reaped: f64 = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().skip(13).take(2))
        .into_iter()
        .flatten()
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    Ok(own + Duration::from_secs_f64(reaped / TICKS_PER_SEC))
}

/// Resident memory now, in KiB, of a process and its descendants (proc(5) `VmRSS`; pages that they
/// share count for each).
///
/// # Errors
/// There is no such process.
pub fn rss_of(pid: u32) -> Result<u64> {
    sum_of(pid, "VmRSS:")
}

/// The most resident memory each of them ever had, in KiB, summed (proc(5) `VmHWM`).
///
/// # Errors
/// There is no such process.
pub fn peak_rss_of(pid: u32) -> Result<u64> {
    sum_of(pid, "VmHWM:")
}

fn sum_of(pid: u32, field: &str) -> Result<u64> {
    let own = kib(pid, field)?;
    let below: u64 = descendants(pid)
        .into_iter()
        .filter_map(|child| kib(child, field).ok())
        .sum();
    Ok(own + below)
}

fn kib(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .with_context(|| format!("no {field} in {path}"))
}

/// Every process below `pid`, by the parent pids of `/proc`.
fn descendants(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|child| Some((child, parent_of(child)?)))
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let children = parents.iter().filter(|(_, of)| *of == parent);
        found.extend(children.map(|(child, _)| *child));
        next += 1;
    }
    found.split_off(1)
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // proc(5): pid (comm) state ppid; comm may hold spaces and parentheses.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn work_of_a_child_is_counted() {
        let before = cpu_of(std::process::id()).unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"])
            .spawn()
            .unwrap();
        child.wait().unwrap();
        let after = cpu_of(std::process::id()).unwrap();
        assert!(
            after - before > Duration::from_millis(20),
            "{before:?} to {after:?}"
        );
    }

    #[test]
    fn a_grandchild_is_found_and_a_dead_process_is_not() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 60 & wait"])
            .spawn()
            .unwrap();
        let started = Instant::now();
        while descendants(child.id()).is_empty() {
            assert!(started.elapsed() < Duration::from_secs(10), "no grandchild");
            std::thread::sleep(Duration::from_millis(5));
        }
        let grandchildren = descendants(child.id());
        assert!(rss_of(child.id()).unwrap() > 100);
        assert!(peak_rss_of(child.id()).unwrap() >= rss_of(child.id()).unwrap() / 2);
        child.kill().unwrap();
        child.wait().unwrap();
        for pid in grandchildren {
            let pid = Pid::from_raw(pid.cast_signed());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        assert!(cpu_of(child.id()).is_err());
        assert!(rss_of(child.id()).is_err());
    }
}
