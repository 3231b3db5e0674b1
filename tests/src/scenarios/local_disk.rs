//! A machine whose firmware asks the network first: told to wait, told no, held, and, once installed,
//! let through to its own disk, by iPXE's `exit` and without any boot file.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::walk::{Bench, power_on_with_disk, wait_claim};
use crate::efi_disk;
use crate::report::Report;
use crate::sim::{Attested, Machine};
use crate::site::{Options, Site};
use crate::vm::{FirmwareBoot, SerialLine};

/// Power-on to a line of the program that is started first, under emulation.
const START_LIMIT: Duration = Duration::from_secs(180);
/// What every iPXE says.
const IPXE: &str = "for the iPXE command line";
/// From power-on to the disk's own loader, under emulation and beside another job: 12 s where the
/// network is asked once, 20 s where PXE and then HTTP boot ask. EDK2 waits four seconds each time for
/// more offers, whatever it has; who gets nothing it can boot asks for a minute (68 s and 127 s here).
const ONWARD_LIMIT: Duration = Duration::from_secs(45);
/// What an attempt may take beside the pause that was announced.
const ATTEMPT_MS: u64 = 25_000;

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made, or no VM comes so far.
pub fn run(report: &Report) -> Result<()> {
    let site = Site::start("local-disk", Options::default())?;
    let outcome = steps(report, &site);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

fn steps(report: &Report, site: &Site) -> Result<()> {
    let disk = site.run.dir().join("v1.disk");
    efi_disk::write(&disk)?;
    let machine = refused_by_the_attester(report, site, &disk)?;
    held_by_ipxe(report, site, &disk, &machine.0)?;
    let mut bench = power_on_with_disk(site, 1, FirmwareBoot::Pxe, &disk)?;
    let outcome = bench
        .vm
        .wait_for_any(&[efi_disk::LINE, IPXE, "NBP file downloaded"], START_LIMIT);
    report.check(
        "installed: no boot file for the firmware, which goes on to the disk",
        {
            outcome.and_then(|(which, line)| {
                ensure!(which == 0, "the network was booted: {}", line.text);
                Ok(())
            })
        },
    );
    tell(report, &bench);
    bench.vm.power_off();
    Ok(())
}

/// Firmware of an installed machine that asks the network first, by PXE and by HTTP boot: on its disk
/// in seconds, not after the minute in which it asks four times.
///
/// # Errors
/// The site cannot be made, or no VM comes so far.
pub fn firmware(report: &Report) -> Result<()> {
    let site = Site::start("local-disk-firmware", Options::default())?;
    install(&site)?;
    let disk = site.run.dir().join("v1.disk");
    efi_disk::write(&disk)?;
    for boot in [FirmwareBoot::Http, FirmwareBoot::Pxe] {
        let mut bench = power_on_with_disk(&site, 1, boot, &disk)?;
        report.check(
            &format!("{boot:?}: the firmware is sent on, and on the disk in seconds"),
            onward(&mut bench),
        );
        tell(report, &bench);
        bench.vm.power_off();
    }
    if !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    Ok(())
}

/// Machine 1 walks in, is approved and marked installed; its cable is then the VM's.
fn install(site: &Site) -> Result<()> {
    let mut machine = Machine::plug(site, 1)?;
    machine.boot_honestly(site)?;
    machine.netboot()?;
    let claim = machine.attest()?;
    ensure!(matches!(claim, Attested::Pending { .. }), "{claim:?}");
    let known = site.desk.machines()?;
    let id = &known.first().context("no machine")?.machine;
    site.desk.approve(id)?;
    let admitted = machine.attest()?;
    ensure!(
        matches!(admitted, Attested::Admitted { .. }),
        "{admitted:?}"
    );
    let (status, out, err) = site.desk.vestibule(&["machine", "installed", &id.0])?;
    ensure!(status.success(), "installed: {status}: {out}{err}");
    machine.ns.ip(&["link", "set", "eth0", "down"])
}

fn onward(bench: &mut Bench) -> Result<()> {
    let needles = [efi_disk::LINE, IPXE, "NBP file downloaded"];
    let (which, line) = bench.vm.wait_for_any(&needles, START_LIMIT)?;
    ensure!(which == 0, "the network was booted: {}", line.text);
    let passed = bench.vm.uptime();
    ensure!(
        passed <= ONWARD_LIMIT,
        "after {:.1} s",
        passed.as_secs_f64()
    );
    Ok(())
}

/// A pending machine and one that runs an image below the floor: both are told why and when.
fn refused_by_the_attester(
    report: &Report,
    site: &Site,
    disk: &std::path::Path,
) -> Result<gateway_core::identity::MachineId> {
    let mut bench = power_on_with_disk(site, 1, FirmwareBoot::Pxe, disk)?;
    let machine = wait_claim(site, &mut bench, 1)?;
    report.check("pending: the reason on the console, again after 10 s", {
        again(&mut bench, "PENDING:", "retry in 10 s", 10)
    });
    for args in [
        &["image", "floor", "attester", "2"][..],
        &["machine", "approve", &machine.0, "--compared", "console"],
    ] {
        let (status, out, err) = site.desk.vestibule(args)?;
        if !status.success() {
            bail!("{args:?}: {status}: {out}{err}");
        }
    }
    report.check("refused: the reason on the console, again after 60 s", {
        again(&mut bench, "NOT ADMITTED: boot.floor", "retry in 60 s", 60)
    });
    tell(report, &bench);
    bench.vm.power_off();
    Ok(machine)
}

/// Held for want of an image: iPXE says so and looks again; what it finds then is that the machine
/// has been installed.
fn held_by_ipxe(report: &Report, site: &Site, disk: &std::path::Path, machine: &str) -> Result<()> {
    let mut bench = power_on_with_disk(site, 1, FirmwareBoot::Pxe, disk)?;
    bench.vm.wait_for("[boot] held", START_LIMIT)?;
    report.check("held: the reason on iPXE's console, again after 60 s", {
        again(
            &mut bench,
            "why: no usable x86_64 attester",
            "asking again in 60 s",
            60,
        )
    });
    let (status, out, err) = site.desk.vestibule(&["machine", "installed", machine])?;
    ensure!(status.success(), "installed: {status}: {out}{err}");
    bench.vm.wait_for(
        "[boot] installed: booting the local disk",
        Duration::from_secs(90),
    )?;
    let outcome = bench.vm.wait_for(efi_disk::LINE, Duration::from_secs(90));
    report.check(
        "installed: iPXE exits and the firmware goes on to the disk",
        outcome.map(drop),
    );
    tell(report, &bench);
    bench.vm.power_off();
    Ok(())
}

/// The console says `why`, then `when`, and says `why` again after the announced pause.
fn again(bench: &mut Bench, why: &str, when: &str, secs: u64) -> Result<()> {
    let limit = Duration::from_secs(secs) + Duration::from_secs(60);
    let said = |bench: &Bench| -> Vec<SerialLine> {
        let lines = bench.vm.lines();
        lines.into_iter().filter(|l| l.text.contains(why)).collect()
    };
    bench.vm.wait_for(why, limit)?;
    bench.vm.wait_for(when, limit)?;
    let deadline = std::time::Instant::now() + limit;
    while said(bench).len() < 2 {
        ensure!(
            std::time::Instant::now() < deadline,
            "{why:?} once within {} s",
            limit.as_secs()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    let times: Vec<u64> = said(bench).iter().map(|line| line.at_ms).collect();
    let [first, second, ..] = times.as_slice() else {
        bail!("no second {why:?}");
    };
    let passed = second.checked_sub(*first).context("time went back")?;
    let range = secs * 1_000..=secs * 1_000 + ATTEMPT_MS;
    ensure!(range.contains(&passed), "again after {passed} ms");
    Ok(())
}

fn tell(report: &Report, bench: &Bench) {
    report.note(format!(
        "{:.1} s and {:.1} CPU s of the VM",
        bench.vm.uptime().as_secs_f64(),
        bench.vm.cpu_secs()
    ));
}
