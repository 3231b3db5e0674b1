//! Firmware of other kinds than the nodes': a BIOS with iPXE in its option ROM, EDK2 for ARM, and an
//! older iPXE as the first stage. Each asks by DHCP, is told what fits its architecture, and fetches it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use boot::arch::Arch;
use boot::catalog::{Artefact, Role};
use boot_image::debs::Unpacked;
use gateway_core::identity::MacAddr;
use gateway_core::record::JournalRecord;
use gateway_core::walk::Step;

use super::walk::power_on;
use crate::report::Report;
use crate::sim::mac;
use crate::site::{Firmware, Options, Site, find_file, site_keys};
use crate::switch::Speaker;
use crate::vm::{FirmwareBoot, Visitor, Vm};

/// Power-on to the script of a held machine, under emulation.
const LIMIT: Duration = Duration::from_secs(180);
/// Suites whose iPXE is the NIC's option ROM.
const ROMS: [&str; 3] = ["bookworm", "trixie", "sid"];
const ARM_IPXE: &str = "ipxe-arm64.efi";

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
    add_arm(&site)?;
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
        "AAVMF: iPXE for its architecture by TFTP, and the script that says why it is held",
        arm(report, site),
    );
    report.check(
        "OVMF with iPXE of trixie: by TFTP, and the script that says why it is held",
        older(report, site),
    );
    Ok(())
}

/// Signs iPXE for ARM and puts it in the catalogue.
fn add_arm(site: &Site) -> Result<()> {
    let package = boot_image::debs::fetch("sid", "ipxe")?;
    let keys = site_keys()?;
    let bytes = std::fs::read(find_file(&package.root, ARM_IPXE)?)?;
    let signed = boot_image::sign::sign(&bytes, &keys)?;
    let dir = site.image_dir();
    std::fs::write(dir.join(ARM_IPXE), &signed)?;
    let mut artefacts = site.artefacts()?;
    artefacts.push(Artefact::describe(
        "ipxe",
        Role::Provision,
        Arch::Arm64Uefi,
        1,
        ARM_IPXE,
        &signed,
    )?);
    boot_image::assemble::write_catalog(&dir, &keys, artefacts)?;
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
    let visitor = Visitor::SeaBios { rom: &rom };
    let mut vm = Vm::visit(&site.run, &site.segment, &name, mac, &visitor)?;
    let line = vm.wait_for("/boot/script.ipxe", LIMIT)?;
    ensure!(line.text.contains("arch=x86_bios"), "{}", line.text);
    let (_, line) = vm.wait_for_any(&["ipxe.org/", "why:"], LIMIT)?;
    report.note(format!("{suite}: {}", line.text));
    recorded(site, mac, "ipxe")?;
    told(report, suite, &package, &vm);
    Ok(())
}

fn arm(report: &Report, site: &Site) -> Result<()> {
    let package = boot_image::debs::fetch("sid", "qemu-efi-aarch64")?;
    let (code, vars) = (
        find_file(&package.root, "AAVMF_CODE.no-secboot.fd")?,
        find_file(&package.root, "AAVMF_VARS.fd")?,
    );
    let tls_cas: PathBuf =
        Firmware::prepare(site.run.dir(), &site.ca_dir().join("boot-ca.pem"))?.tls_cas;
    let visitor = Visitor::Aavmf {
        code: &code,
        vars: &vars,
        tls_cas: &tls_cas,
    };
    let mac = mac(41);
    let mut vm = Vm::visit(&site.run, &site.segment, "v41", mac, &visitor)?;
    vm.wait_for(ARM_IPXE, LIMIT)?;
    let (which, line) = vm.wait_for_any(&["why: no usable arm64 attester", "ipxe.org/0"], LIMIT)?;
    report.note(line.text.clone());
    ensure!(which == 0, "{}", line.text);
    recorded(site, mac, "pxe")?;
    told(report, "AAVMF", &package, &vm);
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
