//! Beside a DHCP server that is there already: busybox udhcpd gives the addresses, the daemon in
//! proxy mode says what to boot, and nothing of ours disturbs who does not boot.

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use boot::catalog::Kind;
use gateway_core::identity::MacAddr;
use gateway_core::record::JournalRecord;
use gateway_core::walk::Step;

use crate::netns::{GATEWAY_ADDR, Netns};
use crate::pxe::{self, Lease, Stage};
use crate::report::Report;
use crate::run::Process;
use crate::sim::{Attested, Machine};
use crate::site::{Options, Site};

/// The server that was there before us.
pub const OTHER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
const OTHER_POOL: (Ipv4Addr, Ipv4Addr) =
    (Ipv4Addr::new(10, 66, 0, 30), Ipv4Addr::new(10, 66, 0, 60));
/// Long enough for udhcpd's ARP probe of the address.
const WAIT: Duration = Duration::from_millis(2_500);

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made.
pub fn run(report: &Report) -> Result<()> {
    let options = Options {
        dhcp_mode: "proxy",
        ..Options::default()
    };
    let site = Site::start("beside", options)?;
    let (_netns, _udhcpd) = udhcpd(&site)?;
    let mut machine = Machine::plug(&site, 1)?;
    machine.boot_honestly(&site)?;
    let file = ipxe_file(&site)?;
    let lease = firmware(&machine, &file);
    report.check(
        "firmware: the other server's address, our boot data",
        lease
            .as_ref()
            .map(drop)
            .map_err(|error| anyhow::anyhow!("{error:#}")),
    );
    let lease = lease?;
    report.check(
        "port 4011 says the same",
        boot_port(&machine, &lease, &file),
    );
    report.check(
        "iPXE by TFTP, script and UKI by HTTPS",
        fetched(&machine, &file),
    );
    report.check("the attester's claim waits", claimed(&machine));
    report.check(
        "who does not boot hears the other server only",
        silent(&machine),
    );
    report.check(
        "no lease of ours is on disk, the walk is",
        recorded(&site, machine.mac),
    );
    if !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    Ok(())
}

/// The foreign server, on a port of its own.
///
/// # Errors
/// Namespace or process cannot be made.
pub fn udhcpd(site: &Site) -> Result<(Netns, Process)> {
    let ns = site
        .segment
        .plug(&site.run, "other", MacAddr([0x52, 0x54, 0, 0x66, 0xff, 1]))?;
    ns.ip(&["addr", "add", &format!("{OTHER}/24"), "dev", "eth0"])?;
    let dir = site.run.dir();
    let (leases, config) = (dir.join("udhcpd.leases"), dir.join("udhcpd.conf"));
    fs::write(&leases, "")?;
    fs::write(
        &config,
        format!(
            "start {}\nend {}\ninterface eth0\nmax_leases 20\nlease_file {}\npidfile {}\n\
             option subnet 255.255.255.0\noption lease 600\n",
            OTHER_POOL.0,
            OTHER_POOL.1,
            leases.display(),
            dir.join("udhcpd.pid").display(),
        ),
    )?;
    let mut command = ns.command("busybox");
    command.args(["udhcpd", "-f"]).arg(&config);
    let process = site.run.spawn("udhcpd", &mut command)?;
    Ok((ns, process))
}

fn ipxe_file(site: &Site) -> Result<String> {
    let artefacts = site.artefacts()?;
    let ipxe = artefacts.iter().find(|a| a.kind == Kind::Ipxe);
    Ok(ipxe.context("no iPXE in the catalogue")?.file.clone())
}

/// The two offers of one DISCOVER: the other server's address, and our boot data.
fn both(machine: &Machine, stage: Stage, xid: u32) -> Result<(Lease, Lease)> {
    let mut offers = machine.with_dhcp(|dhcp| dhcp.offers(stage, xid, WAIT))?;
    let summary: Vec<_> = offers.iter().map(|o| (o.server, o.addr)).collect();
    ensure!(offers.len() == 2, "expected two offers, found {summary:?}");
    offers.sort_by_key(|offer| offer.server != OTHER);
    let ours = offers.pop().context("two offers")?;
    let theirs = offers.pop().context("two offers")?;
    ensure!(
        theirs.server == OTHER && theirs.addr >= OTHER_POOL.0 && theirs.addr <= OTHER_POOL.1,
        "the other server: {summary:?}"
    );
    ensure!(
        ours.server == GATEWAY_ADDR && ours.addr.is_unspecified() && ours.lease_secs == 0,
        "our offer has an address or a lease: {summary:?}"
    );
    Ok((theirs, ours))
}

fn says_boot(lease: &Lease, file: &str) -> Result<()> {
    ensure!(lease.boot_file == file, "boot file {:?}", lease.boot_file);
    ensure!(
        lease.next_server == GATEWAY_ADDR,
        "siaddr {}",
        lease.next_server
    );
    let option = |code: u8| lease.options.get(&code).map(Vec::as_slice);
    ensure!(option(60) == Some(b"PXEClient"), "60: {:?}", option(60));
    ensure!(option(43) == Some(&[6, 1, 8, 255]), "43: {:?}", option(43));
    for code in [1, 3, 6, 51] {
        ensure!(option(code).is_none(), "option {code} is not ours to give");
    }
    Ok(())
}

fn firmware(machine: &Machine, file: &str) -> Result<Lease> {
    let (theirs, ours) = both(machine, Stage::Pxe, 0x6600_0001)?;
    says_boot(&ours, file)?;
    let lease = machine.with_dhcp(|dhcp| dhcp.take(Stage::Pxe, 0x6600_0001, &theirs))?;
    ensure!(
        lease.server == OTHER && lease.boot_file.is_empty(),
        "{lease:?}"
    );
    machine.address(lease.addr)?;
    Ok(lease)
}

fn boot_port(machine: &Machine, lease: &Lease, file: &str) -> Result<()> {
    let ours = machine
        .with_dhcp(|dhcp| dhcp.boot_port(Stage::Pxe, 0x6600_0002, lease.addr, GATEWAY_ADDR))?;
    ensure!(ours.addr.is_unspecified(), "{}", ours.addr);
    says_boot(&ours, file)
}

fn fetched(machine: &Machine, file: &str) -> Result<()> {
    let ipxe = machine.ns.enter(|| pxe::tftp(GATEWAY_ADDR, file))?;
    ensure!(ipxe.get(..2) == Some(b"MZ"), "not a PE image");
    let (_, ours) = both(machine, Stage::Ipxe, 0x6600_0003)?;
    let (script, _) = machine.fetch_uki(&ours.boot_file)?;
    ensure!(script.starts_with("#!ipxe"), "{script}");
    Ok(())
}

fn claimed(machine: &Machine) -> Result<()> {
    match machine.attest()? {
        Attested::Pending { .. } => Ok(()),
        other => anyhow::bail!("{other:?}"),
    }
}

fn silent(machine: &Machine) -> Result<()> {
    let offers = machine.with_dhcp(|dhcp| dhcp.offers(Stage::Attester, 0x6600_0004, WAIT))?;
    let servers: Vec<_> = offers.iter().map(|offer| offer.server).collect();
    ensure!(servers == [OTHER], "offers of {servers:?}");
    Ok(())
}

fn recorded(site: &Site, mac: MacAddr) -> Result<()> {
    let journal = site.journal()?;
    let leases = journal
        .iter()
        .filter(|record| matches!(record, JournalRecord::Lease(_)));
    ensure!(leases.count() == 0, "a proxy leases nothing");
    for step in [Step::Discover, Step::Boot] {
        let marked = journal.iter().any(|record| {
            matches!(record, JournalRecord::Mark(mark) if mark.step == step && mark.mac == mac)
        });
        ensure!(marked, "no mark of step {} for {mac}", step.name());
    }
    Ok(())
}
