//! Bounded children: every process that xtask starts has a time limit and is ended by pid, with
//! all its descendants.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// How a child ended.
pub struct Outcome {
    status: Option<ExitStatus>,
    /// Wall seconds it took.
    pub secs: f64,
    /// Its output, both streams, in order of arrival; empty for a passed-through child.
    pub lines: Vec<String>,
}

impl Outcome {
    /// Ended by itself with exit code 0.
    pub fn ok(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    /// One clause for a message.
    pub fn describe(&self) -> String {
        match self.status {
            Some(status) => format!("{status} after {:.1} s", self.secs),
            None => format!("ended by xtask: over its limit after {:.1} s", self.secs),
        }
    }
}

/// A child to be.
pub struct Run {
    command: Command,
    limit: Duration,
    echo: bool,
}

impl Run {
    /// `program args`, in the root of the checkout, without standard input.
    pub fn new<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: &[S]) -> Self {
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(crate::root())
            .stdin(Stdio::null());
        Self {
            command,
            limit: Duration::from_secs(600),
            echo: false,
        }
    }

    /// Ends the child after this many seconds.
    pub fn limit_secs(mut self, secs: u64) -> Self {
        self.limit = Duration::from_secs(secs);
        self
    }

    /// Sets one environment variable.
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Prints each line as it comes (it is collected either way).
    pub fn echo(mut self) -> Self {
        self.echo = true;
        self
    }

    /// Runs with the terminal's own output and collects nothing.
    pub fn passthrough(mut self) -> Result<Outcome> {
        let started = Instant::now();
        let mut child = self.spawn()?;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Outcome {
                    status: Some(status),
                    secs: started.elapsed().as_secs_f64(),
                    lines: Vec::new(),
                });
            }
            if started.elapsed() > self.limit {
                end_tree(child.id());
                child.wait()?;
                return Ok(Outcome {
                    status: None,
                    secs: started.elapsed().as_secs_f64(),
                    lines: Vec::new(),
                });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs and collects both streams.
    pub fn collect(mut self) -> Result<Outcome> {
        let started = Instant::now();
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn()?;
        let (sender, receiver) = mpsc::channel();
        if let Some(stream) = child.stdout.take() {
            forward(stream, sender.clone());
        }
        if let Some(stream) = child.stderr.take() {
            forward(stream, sender.clone());
        }
        drop(sender);
        let mut lines = Vec::new();
        let mut take = |line: String| {
            if self.echo {
                println!("{line}");
            }
            lines.push(line);
        };
        let mut open = true;
        let mut ended = None;
        let status = loop {
            if open {
                match receiver.recv_timeout(Duration::from_millis(100)) {
                    Ok(line) => take(line),
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => open = false,
                }
            } else {
                std::thread::sleep(Duration::from_millis(20));
            }
            if ended.is_none() {
                ended = child.try_wait()?.map(|status| (status, Instant::now()));
            }
            match ended {
                // A grandchild may hold the pipes open after the child has ended: two seconds for
                // the rest of the output, then on without it.
                Some((status, at)) if !open || at.elapsed() > Duration::from_secs(2) => {
                    break Some(status);
                }
                None if started.elapsed() > self.limit => {
                    end_tree(child.id());
                    child.wait()?;
                    break None;
                }
                _ => {}
            }
        };
        receiver.try_iter().for_each(&mut take);
        Ok(Outcome {
            status,
            secs: started.elapsed().as_secs_f64(),
            lines,
        })
    }

    fn spawn(&mut self) -> Result<std::process::Child> {
        self.command.spawn().with_context(|| {
            format!(
                "cannot start {}",
                self.command.get_program().to_string_lossy()
            )
        })
    }
}

fn forward(stream: impl Read + Send + 'static, to: mpsc::Sender<String>) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut raw = Vec::new();
        while let Ok(n) = reader.read_until(b'\n', &mut raw) {
            if n == 0 {
                return;
            }
            let line = String::from_utf8_lossy(&raw).trim_end().to_owned();
            if to.send(line).is_err() {
                return;
            }
            raw.clear();
        }
    });
}

/// Sends KILL to a process and its descendants, found by parent pid, deepest last. The children
/// stay in our process group, so that Ctrl-C at the terminal reaches them too.
fn end_tree(pid: u32) {
    let mut pids = vec![pid];
    let mut next = 0;
    while next < pids.len() {
        let parent = pids[next];
        pids.extend(children_of(parent));
        next += 1;
    }
    for pid in pids {
        // The shell's builtin: procps may be missing on a bare machine.
        let _ = Command::new("sh")
            .args(["-c", "kill -s KILL \"$0\"", &pid.to_string()])
            .stderr(Stdio::null())
            .status();
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| parent_of(*pid) == Some(parent))
        .collect()
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // proc(5): pid (comm) state ppid; comm may hold spaces and parentheses.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// Replaces this process; as root where `root` says so. Returns only on failure.
pub fn replace(program: &Path, args: &[&str], root: bool) -> Result<ExitCode> {
    let program = program.to_string_lossy();
    let mut words = vec![program.as_ref()];
    words.extend_from_slice(args);
    let words = if root {
        as_root(&words)
    } else {
        words.into_iter().map(String::from).collect()
    };
    let error = Command::new(&words[0])
        .args(&words[1..])
        .current_dir(crate::root())
        .exec();
    Err(error).with_context(|| format!("cannot start {}", words[0]))
}

/// A command that runs as root: by sudo when we are not.
pub fn as_root(words: &[&str]) -> Vec<String> {
    let sudo = [
        "sudo",
        "--preserve-env=HOME,XDG_CACHE_HOME,VESTIBULE_CORPUS,CI,RUST_LOG,DEBIAN_FRONTEND",
        "--",
    ];
    let prefix: &[&str] = if is_root() { &[] } else { &sudo };
    prefix
        .iter()
        .chain(words)
        .map(|word| (*word).to_owned())
        .collect()
}

fn is_root() -> bool {
    // proc(5): Uid: real effective saved filesystem.
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"))
            .and_then(|uids| uids.split_whitespace().nth(1))
            == Some("0")
    })
}

/// The cargo that runs us.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collects_both_streams_and_the_exit_code() {
        let outcome = Run::new("sh", &["-c", "echo out; echo err >&2; exit 7"])
            .limit_secs(10)
            .collect()
            .unwrap();
        assert!(!outcome.ok());
        let mut lines = outcome.lines.clone();
        lines.sort();
        assert_eq!(lines, ["err", "out"]);
        assert!(outcome.describe().contains('7'), "{}", outcome.describe());
    }

    #[test]
    fn ends_a_child_and_its_grandchild_at_the_limit() {
        let outcome = Run::new("sh", &["-c", "sleep 300 & echo $!; wait"])
            .limit_secs(1)
            .collect()
            .unwrap();
        assert!(!outcome.ok());
        assert!(outcome.describe().contains("over its limit"));
        let grandchild = &outcome.lines[0];
        // SIGKILL was sent; on a busy machine the kernel needs a moment to carry it out.
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let state =
                std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
            if state.is_empty() || state.contains(") Z ") {
                break;
            }
            assert!(Instant::now() < deadline, "still there: {state}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
