//! The DHCP client of systemd-networkd, on one interface of a namespace.
//!
//! The host's own program, run by hand without a bus: in a mount namespace with a `/run` of its own.
//! `/sys` is read-only there, by which it knows that no udev will say when the link is ready.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::netns::Netns;
use crate::run::{Process, Run};

const PROGRAM: &str = "/lib/systemd/systemd-networkd";
const END_LIMIT: Duration = Duration::from_secs(10);

/// Makes `/run` with one `.network` file, then becomes networkd. All of it ends with the process.
const ENTER: &str = r#"set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/network
cat > /run/systemd/network/10-eth0.network <<END
[Match]
Name=eth0
[Network]
DHCP=ipv4
LinkLocalAddressing=no
IPv6AcceptRA=no
END
mount -o remount,ro /sys
exec "$@""#;

/// A running networkd.
pub struct Networkd {
    process: Process,
    log: std::path::PathBuf,
}

impl Networkd {
    /// Starts it on `eth0` of `ns`.
    ///
    /// # Errors
    /// The program is missing.
    pub fn start(run: &Run, ns: &Netns) -> Result<Self> {
        if !std::path::Path::new(PROGRAM).exists() {
            bail!("no {PROGRAM}: package systemd");
        }
        let mut command = ns.command("unshare");
        command
            .env("SYSTEMD_LOG_LEVEL", "debug")
            .env("SYSTEMD_LOG_TARGET", "console")
            .args(["--mount", "--propagation", "private", "sh", "-c", ENTER])
            .args(["sh", PROGRAM]);
        Ok(Self {
            process: run.spawn("networkd", &mut command)?,
            log: run.log("networkd"),
        })
    }

    /// Waits until it has logged `needle`; returns that line.
    ///
    /// # Errors
    /// It ended, or `limit` passed.
    pub fn wait_for(&mut self, needle: &str, limit: Duration) -> Result<String> {
        let started = Instant::now();
        loop {
            let log = std::fs::read(&self.log).context("its log")?;
            let log = String::from_utf8_lossy(&log);
            if let Some(line) = log.lines().find(|line| line.contains(needle)) {
                return Ok(line.to_owned());
            }
            let last: Vec<&str> = log.lines().rev().take(8).collect();
            if let Some(status) = self.process.ended() {
                bail!("networkd ended ({status}): {last:?}");
            }
            if started.elapsed() > limit {
                bail!("no {needle:?} within {} s: {last:?}", limit.as_secs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops it; it gives its lease back.
    ///
    /// # Errors
    /// It does not end well.
    pub fn stop(&mut self) -> Result<()> {
        match self.process.terminate(END_LIMIT) {
            Some(status) if status.success() => Ok(()),
            other => bail!("networkd ended with {other:?}"),
        }
    }
}
