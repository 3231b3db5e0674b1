//! Memory and service under three floods, one after the other, against one daemon: made-up DHCP
//! clients, TFTP transfers that nobody answers, TLS clients that crawl. For each the daemon's memory
//! before and after, and the p99 of a good client alone and beside the flood.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use boot::catalog::Kind;

use super::{dhcp_storm, slow};
use crate::netns::{GATEWAY_ADDR, Netns};
use crate::report::Report;
use crate::sim::mac;
use crate::site::{Options, Site};
use crate::tftp_load::{Load, half_open};

/// TFTP transfers that are asked for and never answered, each from an address of its own.
const HALF_OPEN: u32 = 5_000;
/// The first of these addresses; all are within [`FORGED`].
const FORGED_FIRST: Ipv4Addr = Ipv4Addr::new(10, 66, 128, 1);
const FORGED: &str = "10.66.128.0/17";
/// Slow TLS clients.
const SLOW: usize = 1_000;
const GOOD: Ipv4Addr = Ipv4Addr::new(10, 66, 4, 1);
/// Fetches of iPXE by the good client, alone and beside the flood.
const FETCHES: usize = 100;
/// A ROM repeats what it said after a second or more.
const FETCH_P99_MS: f64 = 1_000.0;
/// 2,048 transfers at most, none with more than a window of a shared file.
const GROWTH_MAX_KIB: u64 = 16 * 1024;

/// What one flood did.
pub(super) struct Figures {
    /// The flood.
    pub what: String,
    /// Resident memory of the daemon before it, KiB.
    pub before_kib: u64,
    /// And after it, or in it where it goes on.
    pub after_kib: u64,
    /// The good client's p99 alone, milliseconds.
    pub alone_ms: f64,
    /// And beside the flood.
    pub during_ms: f64,
}

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made.
pub fn run(report: &Report) -> Result<()> {
    let mut site = Site::prepare(
        "bounded",
        Options {
            prefix: dhcp_storm::PREFIX,
            pool: dhcp_storm::POOL,
            ..Options::default()
        },
    )?;
    let relay = dhcp_storm::relay(&site)?;
    site.serve()?;
    let mut all = Vec::new();
    let mut keep = |name: &str, outcome: Result<Vec<Figures>>| {
        report.check(name, outcome.map(|figures| all.extend(figures)));
    };
    keep(
        "made-up DISCOVERs: the others are served, the daemon does not grow",
        dhcp_storm::spoofed(report, &site, &relay).map(|figures| vec![figures]),
    );
    keep(
        "half-open TFTP transfers: the others are served, the daemon does not grow",
        half_open_transfers(report, &site).map(|figures| vec![figures]),
    );
    keep(
        "slow TLS clients: the others are served, the daemon does not grow",
        slow::crowds(report, &site, &[SLOW]),
    );
    report.check("the daemon still runs", still_runs(&mut site));
    for figures in &all {
        report.note(format!(
            "{:28} RSS {:6.1} MiB before, {:6.1} MiB after; a good client's p99 {:7.1} ms alone, {:7.1} ms beside it",
            figures.what,
            figures.before_kib as f64 / 1024.0,
            figures.after_kib as f64 / 1024.0,
            figures.alone_ms,
            figures.during_ms,
        ));
    }
    if !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    Ok(())
}

fn still_runs(site: &mut Site) -> Result<()> {
    ensure!(site.running(), "it has ended");
    site.stop()
}

fn half_open_transfers(report: &Report, site: &Site) -> Result<Figures> {
    let attacker = site.segment.plug(&site.run, "forger", mac(203))?;
    attacker.ip(&["addr", "add", "10.66.5.1/16", "dev", "eth0"])?;
    // Every address of the range is the attacker's: it answers ARP for them and sends from them.
    attacker.ip(&["route", "add", "local", FORGED, "dev", "lo"])?;
    let good = site.segment.plug(&site.run, "fetcher", mac(204))?;
    good.ip(&["addr", "add", &format!("{GOOD}/16"), "dev", "eth0"])?;
    let artefacts = site.artefacts()?;
    let ipxe = artefacts
        .iter()
        .find(|artefact| artefact.kind == Kind::Ipxe)
        .context("no iPXE")?;
    let contents = std::fs::read(site.image_dir().join(&ipxe.file))?;
    let load = Load {
        server: SocketAddr::from((GATEWAY_ADDR, 69)),
        from: IpAddr::V4(GOOD),
        name: &ipxe.file,
        contents: &contents,
        clients: 1,
        block_len: 1428,
        window: 4,
        timeout: Duration::from_secs(1),
        limit: Duration::from_secs(30),
    };
    let alone_ms = p99_ms(&good, &load)?;
    let before_kib = site.memory_kib().context("no memory figure")?.0;
    let refused = site.log().matches("refused").count();
    let unanswered =
        attacker.enter(|| half_open(load.server, FORGED_FIRST, HALF_OPEN, load.name))?;
    let during_ms = p99_ms(&good, &load)?;
    let after_kib = site.memory_kib().context("no memory figure")?.0;
    let heard = waiting(&unanswered)?;
    report.note(format!(
        "{HALF_OPEN} transfers asked for, {heard} OACKs came, {} more lines of refusals",
        site.log().matches("refused").count() - refused
    ));
    // A flood that was turned away at the door would prove nothing.
    ensure!(heard > 500, "the server began {heard} transfers only");
    ensure!(during_ms <= FETCH_P99_MS, "p99 {during_ms:.0} ms");
    ensure!(
        after_kib.saturating_sub(before_kib) <= GROWTH_MAX_KIB,
        "grew by {} KiB",
        after_kib - before_kib
    );
    Ok(Figures {
        what: format!("{HALF_OPEN} half-open TFTP transfers"),
        before_kib,
        after_kib,
        alone_ms,
        during_ms,
    })
}

fn p99_ms(good: &Netns, load: &Load<'_>) -> Result<f64> {
    good.enter(|| {
        let mut times = Vec::with_capacity(FETCHES);
        for _ in 0..FETCHES {
            let outcome = load.run()?;
            outcome.check()?;
            times.push(outcome.wall);
        }
        times.sort();
        Ok(crate::dhcp_load::percentile_ms(&times, 99))
    })
}

/// OACKs that wait in the flooder's socket, repeated ones too.
fn waiting(socket: &std::net::UdpSocket) -> Result<usize> {
    socket.set_nonblocking(true)?;
    let mut buffer = [0; 2048];
    let mut heard = 0;
    while let Ok((len, _)) = socket.recv_from(&mut buffer) {
        heard += usize::from(buffer[..len].starts_with(&[0, 6]));
    }
    Ok(heard)
}
