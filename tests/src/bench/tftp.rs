//! TFTP: our engine against tftpd-hpa, atftpd and dnsmasq, each in a namespace of its own behind a
//! cable of its own, with the same load.
//!
//! Ours is the engine alone in a process (`lab serve-tftp`): the daemon serves artefacts of its
//! catalogue to machines it knows, which the peers' clients are not. The peers run as their
//! packages start them, without a log for each transfer where that can be turned off. tftpd-hpa
//! and atftpd cannot be installed side by side, so both are unpacked beside the host.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{Peer, Row, Side, Socket, Target, interleave, program, version};
use crate::lossy::{Relay, Trouble};
use crate::netns::Netns;
use crate::run::{Run, output};
use crate::tftp_load::{Load, Outcome};
use crate::tftp_server::pattern;

const SUITE: &str = "bookworm";
const PORT: u16 = 69;

/// A large artefact: an initramfs or UKI.
const BIG: (&str, usize) = ("big.img", 64 << 20);
/// A first boot program: iPXE.
const SMALL: (&str, usize) = ("small.efi", 1 << 20);
/// Fills an Ethernet frame behind a tunnel; what most boot programs ask for.
const BLOCK: usize = 1428;
/// Machines switched on at once.
const STORM: usize = 200;
/// As patient as iPXE at first.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);
/// Between the end at the client and the look at the server's processor time.
const SETTLE: Duration = Duration::from_millis(50);
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// What one server did in one round.
struct Measured {
    /// Processor seconds of the server for each 10^9 octets delivered.
    cpu_per_gb: f64,
    wall_s: f64,
}

struct Server {
    name: String,
    /// Its cable: the server has 10.99.N.1, the load 10.99.N.2.
    cable: u8,
    /// Dropped before the group: an empty one can be removed.
    process: Peer,
    group: Group,
}

/// A control group of one server (cgroups(7), version 2): its processor time counts children that
/// ended without being waited for, which tftpd-hpa has one of for each transfer.
struct Group(PathBuf);

impl Group {
    fn make(run: &Run, cable: u8, pid: u32) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let root = mounts
            .lines()
            .filter_map(|line| {
                let mut fields = line.split_whitespace().skip(1);
                Some((fields.next()?, fields.next()?))
            })
            .find(|(_, kind)| *kind == "cgroup2")
            .map(|(path, _)| Path::new(path))
            .context("no cgroup version 2 is mounted: the servers cannot be measured")?;
        let group = Self(root.join(format!("vestibule-{}-{cable}", run.id())));
        fs::create_dir(&group.0).with_context(|| group.0.display().to_string())?;
        fs::write(group.0.join("cgroup.procs"), pid.to_string())?;
        Ok(group)
    }

    /// Processor time of all that ever ran in it.
    fn used(&self) -> Result<Duration> {
        let stat = fs::read_to_string(self.0.join("cpu.stat"))?;
        let us = stat
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "))
            .context("no usage_usec in cpu.stat")?;
        Ok(Duration::from_micros(us.trim().parse()?))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Empty once the processes are gone; a left one holds nothing.
        let _ = fs::remove_dir(&self.0);
    }
}

impl Server {
    fn start(
        run: &Run,
        load: &Netns,
        cable: u8,
        name: String,
        command: impl FnOnce(&Netns, SocketAddr) -> Result<Command>,
    ) -> Result<Self> {
        let ns = Netns::create(run, &format!("srv{cable}"))?;
        let ifname = format!("cable{cable}");
        ns.ip(&[
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            &ifname,
            "netns",
            load.name(),
        ])?;
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 99, cable, 1)), PORT);
        for (end, ifname, last) in [(&ns, "eth0", 1), (load, &ifname, 2)] {
            let host = format!("10.99.{cable}.{last}/24");
            end.ip(&["addr", "add", &host, "dev", ifname])?;
            end.ip(&["link", "set", ifname, "up"])?;
        }
        let mut command = command(&ns, address)?;
        let short = name.replace(' ', "-");
        let process = Peer::start(run, &ns, &short, &mut command, Socket::Udp(PORT))?;
        let group = Group::make(run, cable, process.pid())?;
        Ok(Self {
            name,
            cable,
            process,
            group,
        })
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host(1), PORT)
    }

    fn host(&self, last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 99, self.cable, last))
    }
}

/// Measures.
///
/// # Errors
/// A peer is missing, a server ends, or a file arrives wrong.
pub fn run(rounds: usize) -> Result<Vec<Row>> {
    let run = Run::start("bench-tftp")?;
    let ns = Netns::create(&run, "load")?;
    let folder = run.dir().join("files");
    fs::create_dir_all(&folder)?;
    let (big, small) = (pattern(BIG.1), pattern(SMALL.1));
    fs::write(folder.join(BIG.0), &big)?;
    fs::write(folder.join(SMALL.0), &small)?;
    let mut chmod = Command::new("chmod");
    output(chmod.args(["-R", "a+rX"]).arg(run.dir()), COMMAND_LIMIT)?;
    let servers = Servers::start(&run, &ns, &folder)?;
    println!(
        "  ours against {}, {}, {}",
        servers.hpa.name, servers.atftpd.name, servers.dnsmasq.name
    );

    let mut rows = Vec::new();
    let base = Load {
        server: servers.ours.address(),
        from: servers.ours.host(2),
        name: BIG.0,
        contents: &big,
        clients: 1,
        block_len: BLOCK,
        window: 1,
        timeout: CLIENT_TIMEOUT,
        limit: Duration::from_secs(120),
    };
    let all = [
        &servers.ours,
        &servers.hpa,
        &servers.dnsmasq,
        &servers.atftpd,
    ];
    compare(
        &mut rows,
        &ns,
        rounds,
        &all,
        "lock step",
        &base,
        (0.7, None),
    )?;
    let windows = [&servers.ours, &servers.atftpd];
    let windowed = Load {
        window: 16,
        ..base.clone()
    };
    compare(
        &mut rows,
        &ns,
        rounds,
        &windows,
        "window 16",
        &windowed,
        (0.5, None),
    )?;
    let storm = Load {
        name: SMALL.0,
        contents: &small,
        clients: STORM,
        window: 4,
        ..base.clone()
    };
    compare(
        &mut rows,
        &ns,
        rounds,
        &windows,
        "storm of 200",
        &storm,
        (0.8, Some(0.8)),
    )?;

    let lossy = Load {
        name: SMALL.0,
        contents: &small,
        ..base
    };
    let lockstep = [&servers.ours, &servers.hpa, &servers.dnsmasq];
    with_loss(&mut rows, &ns, rounds, &lockstep, "lock step", &lossy, 0.3)?;
    let windowed = Load {
        window: 16,
        ..lossy
    };
    with_loss(
        &mut rows,
        &ns,
        rounds,
        &windows,
        "window 16",
        &windowed,
        1.0,
    )?;
    servers.stop()?;
    Ok(rows)
}

/// One load against several servers in turn, the first is ours: processor time, then wall time.
fn compare(
    rows: &mut Vec<Row>,
    ns: &Netns,
    rounds: usize,
    servers: &[&Server],
    what: &str,
    load: &Load<'_>,
    (cpu_target, wall_target): (f64, Option<f64>),
) -> Result<()> {
    let sides = servers
        .iter()
        .map(|server| {
            Side::new(&server.name, move |_| {
                let before = server.group.used()?;
                let outcome = fetch(ns, server, server.address(), load)?;
                // The server's own end of the transfer: a child that exits, a last log line.
                std::thread::sleep(SETTLE);
                let spent = server.group.used()?.saturating_sub(before);
                let octets = load.clients as f64 * load.contents.len() as f64;
                Ok(Measured {
                    cpu_per_gb: spent.as_secs_f64() * 1e9 / octets,
                    wall_s: outcome.wall.as_secs_f64(),
                })
            })
        })
        .collect();
    let measured = interleave(rounds, sides)?;
    let column = |index: usize, pick: fn(&Measured) -> f64| -> Vec<f64> {
        measured[index].iter().map(pick).collect()
    };
    let cpu = |m: &Measured| m.cpu_per_gb;
    let wall = |m: &Measured| m.wall_s;
    for (index, server) in servers.iter().enumerate().skip(1) {
        rows.push(Row::against(
            format!("{what}: server CPU"),
            "s/GB",
            &column(0, cpu),
            &server.name,
            &column(index, cpu),
            Target::RatioAtMost(cpu_target),
        )?);
    }
    for (index, server) in servers.iter().enumerate().skip(1) {
        rows.push(Row::against(
            format!("{what}: wall"),
            "s",
            &column(0, wall),
            &server.name,
            &column(index, wall),
            wall_target.map_or(Target::Shown, Target::RatioAtMost),
        )?);
    }
    Ok(())
}

/// One file with one datagram in a hundred lost each way; the same seed for all servers of a
/// round.
fn with_loss(
    rows: &mut Vec<Row>,
    ns: &Netns,
    rounds: usize,
    servers: &[&Server],
    what: &str,
    load: &Load<'_>,
    target: f64,
) -> Result<()> {
    let sides = servers
        .iter()
        .map(|server| {
            Side::new(&server.name, move |round| {
                let trouble = Trouble {
                    lost_permille: 10,
                    seed: 100 + round as u64,
                    ..Trouble::default()
                };
                let listen = SocketAddr::new(server.host(2), 0);
                let relay = ns.enter(|| Relay::start(listen, server.address(), trouble))?;
                let outcome = fetch(ns, server, relay.address(), load)?;
                let counts = relay.stop()?;
                ensure!(counts.lost > 0, "the relay lost nothing: {counts:?}");
                Ok(outcome.wall.as_secs_f64())
            })
        })
        .collect();
    let measured = interleave(rounds, sides)?;
    for (index, server) in servers.iter().enumerate().skip(1) {
        rows.push(Row::against(
            format!("1 % lost, 1 MiB, {what}: wall"),
            "s",
            &measured[0],
            &server.name,
            &measured[index],
            Target::RatioAtMost(target),
        )?);
    }
    Ok(())
}

fn fetch(ns: &Netns, server: &Server, to: SocketAddr, load: &Load<'_>) -> Result<Outcome> {
    let load = Load {
        server: to,
        from: server.host(2),
        ..load.clone()
    };
    let outcome = ns.enter(|| load.run())?;
    outcome.check()?;
    let agreed = (load.block_len, load.window);
    ensure!(
        outcome.agreed == agreed,
        "agreed on {:?} instead of {agreed:?}",
        outcome.agreed
    );
    Ok(outcome)
}

struct Servers {
    ours: Server,
    hpa: Server,
    atftpd: Server,
    dnsmasq: Server,
}

impl Servers {
    fn start(run: &Run, load: &Netns, folder: &Path) -> Result<Self> {
        let lab = std::env::current_exe()?;
        let ours = Server::start(run, load, 1, "ours".to_owned(), |ns, address| {
            let mut command = ns.command(&lab.to_string_lossy());
            command
                .arg("serve-tftp")
                .arg(folder)
                .arg(address.to_string());
            Ok(command)
        })?;
        let (path, name) = unpacked("tftpd-hpa", "usr/sbin/in.tftpd")?;
        let hpa = Server::start(run, load, 2, name, |ns, address| {
            let mut command = ns.command(&path.to_string_lossy());
            command
                .args(["-L", "-u", "root", "-a", &address.to_string(), "-s"])
                .arg(folder);
            Ok(command)
        })?;
        let (path, name) = unpacked("atftpd", "usr/sbin/atftpd")?;
        let atftpd = Server::start(run, load, 3, name, |ns, address| {
            let mut command = ns.command(&path.to_string_lossy());
            command
                .args(["--daemon", "--no-fork", "--user", "root", "--group", "root"])
                .args(["--maxthread", "1000", "--verbose=1", "--logfile"])
                .arg(run.log("atftpd-own"))
                .args(["--bind-address", &address.ip().to_string()])
                .arg(folder);
            Ok(command)
        })?;
        let path = program("dnsmasq", "dnsmasq-base")?;
        let name = version("dnsmasq-base")?;
        let dnsmasq = Server::start(run, load, 4, name, |ns, address| {
            let mut command = ns.command(&path.to_string_lossy());
            command
                .args(["-k", "-C", "/dev/null", "--user=root", "--port=0"])
                .args(["--enable-tftp", "--tftp-max=1000", "--quiet-tftp"])
                .args(["--bind-interfaces", "--except-interface=lo"])
                .arg(format!("--listen-address={}", address.ip()))
                .arg(format!("--tftp-root={}", folder.display()))
                .arg("--log-facility=-");
            Ok(command)
        })?;
        Ok(Self {
            ours,
            hpa,
            atftpd,
            dnsmasq,
        })
    }

    fn stop(self) -> Result<()> {
        for server in [self.ours, self.hpa, self.atftpd, self.dnsmasq] {
            server.process.stop()?;
        }
        Ok(())
    }
}

/// A program of a package that is unpacked beside the host, and the package's name and version.
fn unpacked(package: &str, path: &str) -> Result<(PathBuf, String)> {
    let unpacked = boot_image::debs::fetch(SUITE, package)
        .with_context(|| format!("the peer {package} cannot be had"))?;
    let program = unpacked.root.join(path);
    ensure!(program.is_file(), "no {}", program.display());
    let upstream = unpacked
        .version
        .split(['-', '+'])
        .next()
        .unwrap_or_default();
    Ok((program, format!("{package} {upstream}")))
}
