//! Firmware of other kinds than the nodes': a BIOS with iPXE in its option ROM, and an older iPXE as
//! the first stage. Each asks by DHCP, is told what fits its architecture, and fetches it.

use std::time::Duration;

use anyhow::{Result, ensure};
use boot_image::debs::Unpacked;
use gateway_core::identity::MacAddr;
use gateway_core::record::JournalRecord;
use gateway_core::walk::Step;

use super::walk::power_on;
use crate::report::Report;
use crate::sim::mac;
use crate::site::{Options, Site, find_file};
use crate::switch::Speaker;
use crate::vm::{FirmwareBoot, Vm};

/// Power-on to the script of a held machine, under emulation.
const LIMIT: Duration = Duration::from_secs(180);
/// Suites whose iPXE is the NIC's option ROM.
const ROMS: [&str; 3] = ["bookworm", "trixie", "sid"];

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made.
pub fn run(report: &Report) -> Result<()> {
    let mut site = Site::prepare(
        "visitors",
        Options {
            ipxe_suite: "trixie",
            ..Options::default()
        },
    )?;
    site.serve()?;
    let outcome = steps(report, &site);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

fn steps(report: &Report, site: &Site) -> Result<()> {
    // What a held machine is shown needs DHCP, the first stage and the script over HTTPS.
    let (status, out, err) = site.desk.vestibule(&["image", "floor", "attester", "2"])?;
    ensure!(status.success(), "image floor: {status}: {out}{err}");
    let _router = Speaker::router(&site.segment.fab)?;
    for (number, suite) in (31..).zip(ROMS) {
        report.check(
            &format!(
                "SeaBIOS with iPXE of {suite}: leased, and sent to the script for its architecture"
            ),
            bios(report, site, number, suite),
        );
    }
    report.check(
        "OVMF with iPXE of trixie: by TFTP, and the script that says why it is held",
        older(report, site),
    );
    Ok(())
}

fn told(report: &Report, what: &str, package: &Unpacked, vm: &Vm) {
    report.note(format!(
        "{what}: {} {}, {:.1} s",
        package.package,
        package.version,
        vm.uptime().as_secs_f64()
    ));
}

fn bios(report: &Report, site: &Site, number: usize, suite: &str) -> Result<()> {
    let package = boot_image::debs::fetch(suite, "ipxe-qemu")?;
    let rom = find_file(&package.root, "pxe-virtio.rom")?;
    let mac = mac(number);
    let name = format!("v{number}");
    let mut vm = Vm::visit(&site.run, &site.segment, &name, mac, &rom)?;
    let line = vm.wait_for("/boot/script.ipxe", LIMIT)?;
    ensure!(line.text.contains("arch=x86_bios"), "{}", line.text);
    let (_, line) = vm.wait_for_any(&["ipxe.org/", "why:"], LIMIT)?;
    report.note(format!("{suite}: {}", line.text));
    recorded(site, mac, "ipxe")?;
    told(report, suite, &package, &vm);
    Ok(())
}

fn older(report: &Report, site: &Site) -> Result<()> {
    let package = boot_image::debs::fetch("trixie", "ipxe")?;
    let mut bench = power_on(site, 1, FirmwareBoot::Pxe)?;
    let line = bench.vm.wait_for("iPXE 1.", LIMIT)?;
    report.note(line.text);
    bench.vm.wait_for("why: no usable x86_64 attester", LIMIT)?;
    told(report, "OVMF", &package, &bench.vm);
    Ok(())
}

/// The walk's record has the lease of `mac` as `kind` of client.
fn recorded(site: &Site, mac: MacAddr, kind: &str) -> Result<()> {
    let journal = site.journal()?;
    let lease = journal.iter().any(|record| {
        matches!(record, JournalRecord::Mark(mark) if mark.mac == mac
            && mark.step == Step::Lease
            && mark.detail.to_lowercase().contains(kind))
    });
    ensure!(lease, "no lease of {mac} as {kind} on record");
    let leased = journal
        .iter()
        .any(|record| matches!(record, JournalRecord::Lease(lease) if lease.mac == mac));
    ensure!(leased, "no lease of {mac} on disk");
    Ok(())
}
