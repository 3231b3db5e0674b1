//! What can be wrong on a segment before anybody lies: a host with a fixed address inside the pool,
//! and a DHCP server that somebody forgot.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gateway_core::identity::MacAddr;
use gateway_core::record::JournalRecord;
use gateway_core::view::{DhcpView, StatusView};

use crate::netns::POOL;
use crate::pxe::Stage;
use crate::report::Report;
use crate::scenarios::beside::{OTHER, udhcpd};
use crate::sim::Machine;
use crate::site::{Options, Site};

/// The host with the fixed address.
const STATIC: MacAddr = MacAddr([0x52, 0x54, 0, 0x66, 0xff, 9]);
/// From the other server's start until we have asked and heard it: `rogue_probe_secs` of this site
/// and udhcpd's own ARP probe.
const FOUND_LIMIT: Duration = Duration::from_secs(20);

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made.
pub fn run(report: &Report) -> Result<()> {
    let options = Options {
        rogue_probe_secs: 5,
        ..Options::default()
    };
    let site = Site::start("dhcp-faults", options)?;
    // The first address that would be handed out.
    let host = site.segment.plug(&site.run, "static", STATIC)?;
    host.ip(&["addr", "add", &format!("{}/24", POOL.0), "dev", "eth0"])?;
    let machine = Machine::plug(&site, 1)?;
    report.check(
        "an address in use is found by ARP, named, written down and not offered",
        conflict(&site, &machine),
    );
    report.check(
        "who has a lease does not wait for a probe",
        known(report, &machine),
    );
    report.check("alone, no other server is seen", alone(&site));
    let (_ns, _udhcpd) = udhcpd(&site)?;
    report.check("a second server is named in status, log and metrics", {
        rogue(report, &site)
    });
    if !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    Ok(())
}

fn conflict(site: &Site, machine: &Machine) -> Result<()> {
    let lease = machine.lease(Stage::Pxe)?;
    ensure!(lease.addr != POOL.0, "{} is in use", lease.addr);
    let declined = site.journal()?.into_iter().any(|record| {
        matches!(record, JournalRecord::Lease(lease)
            if lease.addr == POOL.0 && lease.state == "declined")
    });
    ensure!(declined, "{} is not written down as declined", POOL.0);
    let log = site.log();
    let named = log
        .lines()
        .any(|line| line.contains("dhcp.address_in_use") && line.contains(&STATIC.to_string()));
    ensure!(named, "the log does not name {STATIC}");
    ensure!(status(site)?.conflicts >= 1, "status counts no conflict");
    Ok(())
}

fn known(report: &Report, machine: &Machine) -> Result<()> {
    let lease = machine.lease(Stage::Pxe)?;
    let ms = lease.offer_after.as_millis();
    report.note(format!("OFFER to a known client after {ms} ms"));
    ensure!(ms < 150, "the offer took {ms} ms");
    Ok(())
}

fn alone(site: &Site) -> Result<()> {
    let seen = status(site)?.foreign_servers;
    ensure!(seen.is_empty(), "{seen:?}");
    Ok(())
}

fn rogue(report: &Report, site: &Site) -> Result<()> {
    let started = Instant::now();
    let found = loop {
        let seen = status(site)?.foreign_servers;
        if let Some(found) = seen.into_iter().find(|server| server.server == OTHER) {
            break found;
        }
        ensure!(started.elapsed() < FOUND_LIMIT, "not found");
        std::thread::sleep(Duration::from_millis(200));
    };
    report.note(format!(
        "{} at {} found after {:.1} s",
        found.server,
        found.mac,
        started.elapsed().as_secs_f64()
    ));
    ensure!(!found.proxy && found.gave.is_some(), "{found:?}");
    ensure!(
        found.reason.is_some_and(|r| r.next.contains("proxy")),
        "no next step"
    );
    ensure!(site.log().contains("dhcp.foreign_server"), "not in the log");
    let (_, metrics) = site.desk.health("/metrics")?;
    ensure!(
        metrics.contains("dhcp.foreign_server"),
        "not in the metrics"
    );
    Ok(())
}

fn status(site: &Site) -> Result<DhcpView> {
    Ok(site.desk.get::<StatusView>("/v1/status")?.dhcp)
}
