//! One run of the lab: its folder, its processes, its namespaces, and their end.
//!
//! Everything a run makes is written down before it is used, so that the next run can clear away
//! what a killed one left: processes by pid and start time, namespaces by name. Nothing else is
//! ever ended or deleted.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Short, on disk (the gateway's journals are synced), and below the 108 bytes of a socket path.
const BASE: &str = "/var/tmp/vestibule-lab";
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// One run. Dropping it ends its processes, deletes its namespaces and its folder.
pub struct Run {
    dir: PathBuf,
    id: String,
    kept: std::sync::atomic::AtomicBool,
}

impl Run {
    /// Clears away what dead runs left and makes a folder for this one.
    ///
    /// # Errors
    /// Not root, or the folder cannot be made.
    pub fn start(name: &str) -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            bail!("the lab makes network namespaces: run it as root");
        }
        fs::create_dir_all(BASE).with_context(|| format!("cannot make {BASE}"))?;
        sweep();
        let pid = std::process::id();
        let id = format!("{pid:x}{}", COUNTER.fetch_add(1, Ordering::Relaxed));
        let dir = Path::new(BASE).join(format!("{name}-{id}"));
        fs::create_dir_all(dir.join("log"))?;
        fs::write(
            dir.join("owner"),
            format!("{pid} {}", start_time(pid).unwrap_or(0)),
        )?;
        Ok(Self {
            dir,
            id,
            kept: std::sync::atomic::AtomicBool::new(false),
        })
    }

    /// The run's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unique in this machine; part of every namespace name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Path of a log file of this run.
    pub fn log(&self, name: &str) -> PathBuf {
        self.dir.join("log").join(format!("{name}.log"))
    }

    /// Keeps the logs after the end, and says where they are.
    pub fn keep_logs(&self) -> PathBuf {
        self.kept.store(true, Ordering::Relaxed);
        self.dir.join("log")
    }

    /// Starts a process whose output goes to `log/NAME.log`.
    ///
    /// # Errors
    /// The program is missing or the log cannot be opened.
    pub fn spawn(&self, name: &str, command: &mut Command) -> Result<Process> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log(name))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.spawn_raw(name, command)
    }

    /// Starts a process whose streams the caller has set, and writes it down.
    ///
    /// # Errors
    /// The program is missing.
    pub fn spawn_raw(&self, name: &str, command: &mut Command) -> Result<Process> {
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let pid = child.id();
        self.note("pids", &format!("{pid} {}", start_time(pid).unwrap_or(0)))?;
        Ok(Process {
            name: name.to_owned(),
            child,
            ended: None,
        })
    }

    /// Writes a namespace down, before it is made.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn note_netns(&self, name: &str) -> Result<()> {
        self.note("netns", name)
    }

    fn note(&self, file: &str, line: &str) -> Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join(file))?;
        writeln!(file, "{line}")?;
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        clear(&self.dir, self.kept.load(Ordering::Relaxed));
    }
}

/// Clears the runs of this very process: for the signal handler.
pub fn clear_own() {
    let own = std::process::id();
    for dir in runs() {
        if owner(&dir).is_some_and(|(pid, _)| pid == own) {
            clear(&dir, false);
        }
    }
}

/// Clears away runs whose owner is dead.
fn sweep() {
    for dir in runs() {
        match owner(&dir) {
            Some((pid, started)) if start_time(pid) == Some(started) => {}
            Some(_) => clear(&dir, false),
            // Kept logs of an earlier run have no owner: they go after a day.
            None => {
                let old = fs::metadata(&dir)
                    .and_then(|m| m.modified())
                    .ok()
                    .and_then(|t| t.elapsed().ok())
                    .is_some_and(|age| age > Duration::from_secs(86_400));
                if old {
                    let _ = fs::remove_dir_all(&dir);
                }
            }
        }
    }
}

fn runs() -> Vec<PathBuf> {
    fs::read_dir(BASE)
        .map(|entries| entries.filter_map(|e| Some(e.ok()?.path())).collect())
        .unwrap_or_default()
}

fn owner(dir: &Path) -> Option<(u32, u64)> {
    let text = fs::read_to_string(dir.join("owner")).ok()?;
    let (pid, started) = text.split_once(' ')?;
    Some((pid.parse().ok()?, started.trim().parse().ok()?))
}

fn clear(dir: &Path, keep_logs: bool) {
    let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
    for line in read("pids").lines() {
        let Some((pid, started)) = line.split_once(' ') else {
            continue;
        };
        let (Ok(pid), Ok(started)) = (pid.parse::<u32>(), started.parse::<u64>()) else {
            continue;
        };
        if start_time(pid) == Some(started) {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
    }
    for name in read("netns").lines() {
        let _ = Command::new("ip")
            .args(["netns", "del", name])
            .stderr(Stdio::null())
            .status();
    }
    if keep_logs {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.file_name().is_some_and(|n| n == "log") {
                continue;
            }
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    } else {
        let _ = fs::remove_dir_all(dir);
    }
}

/// Start time of a process in clock ticks since boot (proc(5), field 22): with the pid it names
/// one process for good.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // A zombie no longer runs anything.
    if fields.first() == Some(&"Z") {
        return None;
    }
    fields.get(19)?.parse().ok()
}

/// Processor seconds, user and system, that a process has used.
pub fn cpu_secs(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ticks: f64 = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().skip(11).take(2))
        .into_iter()
        .flatten()
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    // USER_HZ is 100 on every Linux this runs on (proc(5)).
    ticks / 100.0
}

/// A process of this run; ended when dropped.
pub struct Process {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes a piped standard output.
    pub fn take_stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// Still running after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            if started.elapsed() > limit {
                bail!("{} still runs after {} s", self.name, limit.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// `SIGKILL`, and waits for the end: what a power cut does to a process.
    pub fn kill(&mut self) {
        if self.ended().is_none() {
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
        }
    }

    /// `SIGTERM`, then `SIGKILL` after `limit`.
    pub fn terminate(&mut self, limit: Duration) -> Option<ExitStatus> {
        if self.ended().is_none() {
            let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
            if self.wait(limit).is_err() {
                self.kill();
            }
        }
        self.ended
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a short command and returns its standard output.
///
/// # Errors
/// It cannot start, fails, or takes longer than `limit`; the text has its output.
pub fn output(command: &mut Command, limit: Duration) -> Result<String> {
    let (status, out, err) = attempt(command, limit)?;
    if !status.success() {
        bail!(
            "{:?}: {status}: {}{}",
            command.get_program(),
            out.trim_end(),
            err.trim_end()
        );
    }
    Ok(out)
}

/// Runs a short command and returns how it ended and what it said on either stream.
///
/// # Errors
/// It cannot start or takes longer than `limit`.
pub fn attempt(command: &mut Command, limit: Duration) -> Result<(ExitStatus, String, String)> {
    let folder = tempfile::tempdir()?;
    // Files, not pipes: a full pipe cannot block a child that nobody reads.
    let (out, err) = (folder.path().join("out"), folder.path().join("err"));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?)
        .spawn()
        .with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            bail!(
                "{:?} still runs after {} s: ended",
                command.get_program(),
                limit.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = |path: &Path| -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
    };
    Ok((status, text(&out)?, text(&err)?))
}

/// `${XDG_CACHE_HOME:-~/.cache}/vestibule`, as in the other tools; every entry can be made again.
///
/// # Errors
/// Neither variable is set.
pub fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("XDG_CACHE_HOME").filter(|d| !d.is_empty()) {
        return Ok(PathBuf::from(dir).join("vestibule"));
    }
    let home = std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cache/vestibule"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_names_this_process_and_no_dead_one() {
        assert!(start_time(std::process::id()).is_some());
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(start_time(child.id()), None);
    }

    #[test]
    fn output_ends_what_takes_too_long() {
        let error =
            output(Command::new("sleep").arg("60"), Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().contains("ended"), "{error}");
    }

    #[test]
    fn output_tells_what_a_failing_command_said() {
        let error = output(
            Command::new("sh").args(["-c", "echo why >&2; exit 3"]),
            Duration::from_secs(5),
        )
        .unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
    }
}
