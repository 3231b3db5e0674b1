//! The servers we are compared with: from Debian packages, each in a namespace of its own on the
//! same switch, started and ended by pid.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gateway_core::identity::MacAddr;

use crate::netns::{Netns, Segment};
use crate::run::{Process, Run, output};

const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(10);
const QUERY_LIMIT: Duration = Duration::from_secs(10);

/// A socket that a server opens when it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    /// Bound UDP port.
    Udp(u16),
    /// Listening TCP port.
    Tcp(u16),
}

/// A running peer. Ended when dropped.
pub struct Peer {
    process: Process,
    name: String,
}

impl Peer {
    /// Starts `command` (see [`Netns::command`] and [`program`]) and waits until it has `socket`
    /// open in `ns`.
    ///
    /// # Errors
    /// It cannot start, ends, or does not open the socket within 20 s; the text has its log.
    pub fn start(
        run: &Run,
        ns: &Netns,
        name: &str,
        command: &mut Command,
        socket: Socket,
    ) -> Result<Self> {
        if is_open(ns, socket)? {
            bail!("{name}: {socket:?} is in use before it starts");
        }
        let mut process = run.spawn(name, command)?;
        let started = Instant::now();
        while !is_open(ns, socket)? {
            let log = || std::fs::read_to_string(run.log(name)).unwrap_or_default();
            if let Some(status) = process.ended() {
                bail!("{name} ended at its start: {status}\n{}", log());
            }
            if started.elapsed() > START_LIMIT {
                bail!("{name} does not open {socket:?}\n{}", log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self {
            process,
            name: name.to_owned(),
        })
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Ends it as an init system does.
    ///
    /// # Errors
    /// It had ended before: what was measured was not it.
    pub fn stop(mut self) -> Result<()> {
        if let Some(status) = self.process.ended() {
            bail!("{} ended by itself: {status}", self.name);
        }
        self.process.terminate(STOP_LIMIT);
        Ok(())
    }
}

/// Path of a peer's program.
///
/// # Errors
/// Its package is not installed.
pub fn program(name: &str, package: &str) -> Result<PathBuf> {
    ["/usr/sbin", "/usr/bin", "/sbin", "/usr/libexec"]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.is_file())
        .with_context(|| {
            format!("the peer {name} is missing: package {package} (cargo xtask bench installs it)")
        })
}

/// Name and version of a package, for the table.
///
/// # Errors
/// It is not installed.
pub fn version(package: &str) -> Result<String> {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f=${Version}", package]);
    let text = output(&mut query, QUERY_LIMIT)
        .with_context(|| format!("the package {package} is not installed"))?;
    // Epoch and Debian revision say nothing to the reader of a figure.
    let upstream = text.split_once(':').map_or(text.as_str(), |(_, rest)| rest);
    let upstream = upstream.split(['-', '+']).next().unwrap_or(upstream);
    Ok(format!("{package} {upstream}"))
}

/// A port on the switch with `eth0` at `addr`/`prefix`, for a peer or a load.
///
/// # Errors
/// What `ip` says.
pub fn plug(run: &Run, segment: &Segment, name: &str, addr: Ipv4Addr, prefix: u8) -> Result<Netns> {
    let [.., c, d] = addr.octets();
    let ns = segment.plug(run, name, MacAddr([0x52, 0x54, 0x00, 0xbe, c, d]))?;
    ns.ip(&["addr", "add", &format!("{addr}/{prefix}"), "dev", "eth0"])?;
    Ok(ns)
}

/// Whether somebody has the socket open in a namespace.
///
/// # Errors
/// The namespace is gone.
pub fn is_open(ns: &Netns, socket: Socket) -> Result<bool> {
    let (file, port, state) = match socket {
        // proc(5) net/tcp: state 0A listens. A bound UDP socket is in state 07.
        Socket::Udp(port) => ("udp", port, "07"),
        Socket::Tcp(port) => ("tcp", port, "0A"),
    };
    // Of the thread that entered the namespace, not of the process.
    let read = |file: &str| -> Result<String> {
        let path = format!("/proc/thread-self/net/{file}");
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
    };
    let tables = ns.enter(|| Ok([read(file)?, read(&format!("{file}6")).unwrap_or_default()]))?;
    let port = format!(":{port:04X}");
    Ok(tables.iter().any(|table| {
        table.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&port))
                && fields.nth(1) == Some(state)
        })
    }))
}
