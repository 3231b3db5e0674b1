//! The suite on two cores: what measures itself runs alone, the rest in two lanes.
//!
//! A scenario has its own folder, processes and namespaces, so two do not meet; a process of its own for
//! each keeps a panic or a watchdog from ending the other. What one prints comes out whole when it ends.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::scenarios::{self, Scenario};

/// As many as the cores of the smallest machine that runs the suite.
const LANES: usize = 2;

/// Scenarios that run now, each in a process.
static CHILDREN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Runs the suite; whether every scenario held.
pub fn run_suite() -> bool {
    let (alone, mut shared): (Vec<_>, Vec<_>) =
        scenarios::suite().partition(|scenario| scenarios::runs_alone(scenario.name));
    // Minutes of both cores where nothing is cached: not beside machines that have limits of their own.
    // Whether it worked is told by the scenarios that need it.
    let _ = (crate::spire::programs(), crate::talos::kms_double());
    let mut held = true;
    for scenario in alone {
        held &= scenarios::run(scenario);
    }
    // The longest first: the lanes then end together.
    shared.sort_by_key(|scenario| std::cmp::Reverse(scenario.limit_secs));
    let queue = Mutex::new(VecDeque::from(shared));
    let results = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(|| lane(&queue))).collect();
        lanes
            .into_iter()
            .map(|lane| lane.join().unwrap_or(false))
            .collect::<Vec<_>>()
    });
    held && results.into_iter().all(|held| held)
}

/// Ends what runs in the lanes: each clears away what it made.
pub fn end_children() {
    for pid in lock(&CHILDREN).drain(..) {
        if let Ok(pid) = i32::try_from(pid) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }
}

fn lane(queue: &Mutex<VecDeque<&'static Scenario>>) -> bool {
    let mut held = true;
    loop {
        let next = lock(queue).pop_front();
        let Some(scenario) = next else {
            return held;
        };
        held &= match run_one(scenario) {
            Ok(held) => held,
            Err(error) => {
                println!("FAIL {}: scenario: {error:#}", scenario.name);
                false
            }
        };
    }
}

fn run_one(scenario: &Scenario) -> Result<bool> {
    // A file, not a pipe: what nobody reads blocks nobody.
    let mut said = tempfile::tempfile().context("no file for what a scenario says")?;
    let program = std::env::current_exe().context("which program this is")?;
    let mut child = Command::new(program)
        .args(["run", scenario.name])
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot start scenario {}", scenario.name))?;
    let pid = child.id();
    lock(&CHILDREN).push(pid);
    let status = child.wait();
    lock(&CHILDREN).retain(|other| *other != pid);
    show(&mut said)?;
    Ok(status?.success())
}

/// All of it, in one piece.
fn show(said: &mut File) -> Result<()> {
    said.rewind()?;
    let mut text = Vec::new();
    said.read_to_end(&mut text)?;
    let mut out = std::io::stdout().lock();
    out.write_all(&text)?;
    out.flush()?;
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
