//! One run of a program: arguments without a shell, bounded input, output and time.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::GateError;

/// How often a running program is looked at.
const POLL: Duration = Duration::from_millis(1);
/// What is kept of standard error: the first lines say what is wrong.
const SAID_MAX_BYTES: u64 = 2_048;

/// What came of a run.
pub(super) struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output, cut at the bound.
    pub out: Vec<u8>,
    /// Whether it was cut.
    pub cut: bool,
    /// First line of standard error, printable.
    pub said: String,
}

/// Runs `program` with `args` and `input` on its standard input. It gets no environment but a `PATH`,
/// at most `limit`, and is ended after that.
pub(super) fn run(
    program: &Path,
    args: &[&str],
    input: &[u8],
    out_max_bytes: u64,
    limit: Duration,
) -> Result<Outcome, GateError> {
    let subject = || program.display().to_string();
    let started = Instant::now();
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own: what it started ends with it, and holds no pipe of ours open.
        .process_group(0)
        .spawn()
        .map_err(|source| {
            GateError::new(
                subject(),
                "a program that can be started",
                source.kind().to_string(),
                "install it, or correct its path in [gate]",
            )
            .because(source)
        })?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // Each pipe has a thread of its own, so that a program which fills one while it waits for
    // another neither hangs us nor is hung.
    let finished = std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Some(mut stdin) = stdin {
                // A program that ends without reading says why by its status.
                let _ = stdin.write_all(input);
            }
        });
        let out = scope.spawn(move || capped(stdout, out_max_bytes));
        let said = scope.spawn(move || capped(stderr, SAID_MAX_BYTES));
        let status = wait(&mut child, started, limit);
        let (out, cut) = out.join().unwrap_or_default();
        let (said, _) = said.join().unwrap_or_default();
        status.map(|status| (status, out, cut, said))
    });
    let Some((status, out, cut, said)) = finished else {
        return Err(GateError::new(
            subject(),
            format!("an end within {} ms", limit.as_millis()),
            "it still ran, and was ended",
            "run it by hand; if it waits for a lock or a switch, find out which",
        ));
    };
    Ok(Outcome {
        status,
        out,
        cut,
        said: first_line(&said),
    })
}

/// Waits until it ends; none when the time was over and it was ended. What it started ends with it.
fn wait(child: &mut Child, started: Instant, limit: Duration) -> Option<ExitStatus> {
    let pid = Pid::from_raw(i32::try_from(child.id()).ok()?);
    // It is looked at and not yet collected: until then its group's number is nobody else's.
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let ended = loop {
        match waitid(Id::Pid(pid), look) {
            Ok(WaitStatus::StillAlive) if started.elapsed() < limit => std::thread::sleep(POLL),
            Ok(WaitStatus::StillAlive) | Err(_) => break false,
            Ok(_) => break true,
        }
    };
    let _ = killpg(pid, Signal::SIGKILL);
    let status = child.wait().ok()?;
    ended.then_some(status)
}

/// Reads to the end, keeps `max` bytes.
fn capped(pipe: Option<impl Read>, max: u64) -> (Vec<u8>, bool) {
    let (mut kept, mut cut) = (Vec::new(), false);
    let Some(mut pipe) = pipe else {
        return (kept, cut);
    };
    let mut buffer = [0; 16 * 1024];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return (kept, cut),
            Ok(n) => {
                let room = usize::try_from(max).unwrap_or(usize::MAX) - kept.len();
                kept.extend_from_slice(&buffer[..n.min(room)]);
                cut |= n > room;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return (kept, cut),
        }
    }
}

fn first_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().next().unwrap_or_default();
    line.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(300)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, input: &[u8], max: u64, limit: Duration) -> Result<Outcome, GateError> {
        run(Path::new("/bin/sh"), &["-c", script], input, max, limit)
    }

    #[test]
    fn output_and_input_are_bounded_and_nothing_hangs() {
        let second = Duration::from_secs(5);
        let big = vec![b'x'; 1 << 20];
        let done = sh("cat; echo no >&2; exit 3", &big, 1_000, second).expect("ran");
        assert_eq!(
            (done.status.code(), done.out.len(), done.cut),
            (Some(3), 1_000, true)
        );
        assert_eq!(done.said, "no");
        // It does not read what it is given.
        let done = sh("exit 0", &big, 10, second).expect("ran");
        assert!(done.status.success() && !done.cut && done.out.is_empty());
    }

    #[test]
    fn a_program_that_stays_is_ended() {
        let started = Instant::now();
        for script in ["exec sleep 60", "sleep 60; true"] {
            let error = sh(script, b"", 10, Duration::from_millis(200)).err();
            assert!(error.is_some_and(|e| e.found.contains("was ended")));
        }
        // What it leaves behind holds our pipes.
        let done = sh("sleep 60 & exit 0", b"", 10, Duration::from_secs(5)).expect("ran");
        assert!(done.status.success());
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn the_environment_stays_here() {
        let done = sh("env | grep -c HOME", b"", 10, Duration::from_secs(5)).expect("ran");
        assert_eq!(done.out, b"0\n");
    }
}
