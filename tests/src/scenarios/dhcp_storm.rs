//! A boot storm of DHCP alone: 640 clients at once behind a path that loses, delays, reorders and
//! doubles; then a flood of made-up clients on one switch port beside good ones on others.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use gateway_core::record::JournalRecord;

use super::bounded::Figures;
use crate::bench::{plug, rss_of};
use crate::dhcp_load::{Load, Outcome, flood, percentile_ms};
use crate::netns::{GATEWAY_ADDR, Netns};
use crate::report::Report;
use crate::site::{Options, Site};
use crate::udp_path::{Trouble, carry};

pub(super) const PREFIX: u8 = 16;
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 250);
const OTHER_RELAY: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 251);
pub(super) const POOL: (Ipv4Addr, Ipv4Addr) =
    (Ipv4Addr::new(10, 66, 64, 0), Ipv4Addr::new(10, 66, 79, 255));
/// Both ends of the bad path, on the relay's side.
const FLEET_SIDE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const PATH: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Machines switched on at once: a row of racks after a power cut.
const STORM: u32 = 640;
/// Made-up clients, and how many of them come each second.
const SPOOFED: (u32, u32) = (10_000, 5_000);
/// Good clients during the flood, one after the other.
const GOOD: u32 = 200;
/// A good client has its lease before a ROM asks a second time.
const GOOD_P99_MS: f64 = 1_000.0;
/// The daemon may grow by this much in the flood.
const GROWTH_MAX_KIB: u64 = 16 * 1024;

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made.
pub fn run(report: &Report) -> Result<()> {
    let mut site = Site::prepare(
        "dhcp-storm",
        Options {
            prefix: PREFIX,
            pool: POOL,
            ..Options::default()
        },
    )?;
    let relay = relay(&site)?;
    site.serve()?;
    report.check(
        "640 clients at once over a bad path: all leased, no address twice",
        storm(report, &relay),
    );
    report.check(
        "the journal has one client for each address",
        one_each(&site),
    );
    report.check(
        "10,000 made-up clients on one port: the others are served, the daemon does not grow",
        spoofed(report, &site, &relay).map(drop),
    );
    report.check("the daemon still runs", ensure_running(&mut site));
    if !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    Ok(())
}

/// A switch that relays for two ports: by its own address and by that of the flooder's.
///
/// # Errors
/// The namespace cannot be made.
pub(super) fn relay(site: &Site) -> Result<Netns> {
    let relay = plug(&site.run, &site.segment, "relay", RELAY, PREFIX)?;
    let other = format!("{OTHER_RELAY}/{PREFIX}");
    relay.ip(&["addr", "add", &other, "dev", "eth0"])?;
    Ok(relay)
}

fn ensure_running(site: &mut Site) -> Result<()> {
    ensure!(site.running(), "it has ended");
    site.stop()
}

fn storm(report: &Report, relay: &Netns) -> Result<()> {
    let trouble = Trouble {
        lost: 10,
        doubled: 10,
        delay: Duration::from_millis(1),
        jitter: Duration::from_millis(2),
        seed: 640,
    };
    let load = Load {
        server: PATH,
        local: FLEET_SIDE,
        giaddr: RELAY,
        first: 0,
        count: STORM,
        in_flight: STORM as usize,
        patience: Duration::from_secs(1),
        tries: 4,
        limit: Duration::from_secs(60),
    };
    let (outcome, counts) = relay.enter(|| {
        let open = |addr| -> Result<UdpSocket> {
            let socket = UdpSocket::bind((addr, 67))?;
            // What is lost is lost by the path's dice, not by its own sockets.
            hw::nic::receive_buffer(&socket, 8 << 20);
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let (front, back) = (open(PATH)?, open(RELAY)?);
        let server = SocketAddr::from((GATEWAY_ADDR, 67));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Its sockets are of this namespace already.
            let path = scope.spawn(|| carry(&front, &back, server, trouble, &stop));
            let outcome = load.run();
            stop.store(true, Ordering::Relaxed);
            let counts = path
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((outcome?, counts?))
        })
    })?;
    report.note(format!(
        "{STORM} clients, seed {}: {} datagrams, {} lost, {} doubled, {} overtaken",
        trouble.seed, counts.taken, counts.lost, counts.doubled, counts.overtaken
    ));
    tell(report, "storm", &outcome);
    ensure!(
        counts.lost > 0 && counts.doubled > 0 && counts.overtaken > 0,
        "the path did nothing: {counts:?}"
    );
    outcome.check()
}

fn tell(report: &Report, what: &str, outcome: &Outcome) {
    report.note(format!(
        "{what}: {} leased in {:.2} s, {} sent again; OFFER p50 {:.1} ms, p99 {:.1} ms; lease p50 {:.1} ms, p99 {:.1} ms",
        outcome.leases.len(),
        outcome.wall.as_secs_f64(),
        outcome.resent,
        percentile_ms(&outcome.offers, 50),
        percentile_ms(&outcome.offers, 99),
        percentile_ms(&outcome.exchanges, 50),
        percentile_ms(&outcome.exchanges, 99),
    ));
}

fn one_each(site: &Site) -> Result<()> {
    let mut clients: BTreeMap<Ipv4Addr, String> = BTreeMap::new();
    for record in site.journal()? {
        if let JournalRecord::Lease(lease) = record {
            let client = clients.entry(lease.addr).or_insert(lease.client.clone());
            ensure!(
                *client == lease.client,
                "{} was leased to {client} and {}",
                lease.addr,
                lease.client
            );
        }
    }
    ensure!(
        clients.len() == STORM as usize,
        "{} addresses on disk, {STORM} leased",
        clients.len()
    );
    Ok(())
}

/// Made-up clients on one port of the switch, good ones on others; first the good ones alone.
///
/// # Errors
/// A good client is not served in time, or the daemon grows.
pub(super) fn spoofed(report: &Report, site: &Site, relay: &Netns) -> Result<Figures> {
    let pid = site.pid()?;
    let load = Load {
        server: GATEWAY_ADDR,
        local: RELAY,
        giaddr: RELAY,
        first: STORM,
        count: GOOD,
        in_flight: 1,
        patience: Duration::from_secs(2),
        tries: 4,
        limit: Duration::from_secs(120),
    };
    let alone = Load {
        first: STORM + GOOD,
        ..load.clone()
    };
    let alone = relay.enter(|| alone.run())?;
    alone.check()?;
    let before = rss_of(pid)?;
    let (count, per_sec) = SPOOFED;
    let outcome = std::thread::scope(|scope| {
        let attacker = scope
            .spawn(|| relay.enter(|| flood(GATEWAY_ADDR, OTHER_RELAY, 1_000_000, count, per_sec)));
        let outcome = relay.enter(|| load.run());
        attacker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        outcome
    })?;
    let after = rss_of(pid)?;
    report.note(format!(
        "{count} made-up DISCOVERs, {per_sec} a second: RSS {:.1} MiB before, {:.1} MiB after",
        before as f64 / 1024.0,
        after as f64 / 1024.0
    ));
    tell(report, "good clients", &outcome);
    outcome.check()?;
    let p99 = percentile_ms(&outcome.exchanges, 99);
    ensure!(p99 <= GOOD_P99_MS, "lease p99 {p99:.0} ms");
    ensure!(
        after.saturating_sub(before) <= GROWTH_MAX_KIB,
        "grew by {} KiB",
        after - before
    );
    Ok(Figures {
        what: format!("{count} made-up DISCOVERs"),
        before_kib: before,
        after_kib: after,
        alone_ms: percentile_ms(&alone.exchanges, 99),
        during_ms: p99,
    })
}
