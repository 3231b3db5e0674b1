//! The real image under real firmware installs a virtio disk under a grant. Its power is cut while it wipes,
//! while it writes and before its last report; the next power-on goes on, and the ledger tells the story. In
//! the end it boots from the disk.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use gateway_core::identity::MachineId;

use super::install::{IMAGE, add_image, admit, blank_disk, story, vestibule};
use super::walk::{Bench, power_on_with_disk};
use crate::efi_disk;
use crate::report::Report;
use crate::sim::Machine;
use crate::site::{Options, Site};
use crate::vm::FirmwareBoot;

/// Power-on to a line of the installer, under emulation and beside another job.
const START_LIMIT: Duration = Duration::from_secs(200);
const STEP_LIMIT: Duration = Duration::from_secs(120);
/// The image is larger than what is in it: writing and reading it takes seconds, in which power is cut.
const FREE_MIB: usize = 120;
const DISK_BYTES: u64 = 192 << 20;

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made, or no VM comes so far.
pub fn run(report: &Report) -> Result<()> {
    let mut site = Site::prepare("install-vm", Options::default())?;
    add_image(&site, FREE_MIB)?;
    site.serve()?;
    let outcome = steps(report, &site);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

fn steps(report: &Report, site: &Site) -> Result<()> {
    let disk = blank_disk(site, "v1.disk", DISK_BYTES)?;
    let id = approved(site)?;
    // Each boot is cut at the first line that says how far it is.
    for (what, line) in [
        ("while it wipes", "[install] wiping"),
        ("while it writes", "[install] writing:"),
        (
            "after the image, before its last report",
            "[install] configured",
        ),
    ] {
        let mut bench = power_on_with_disk(site, 1, FirmwareBoot::Http, &disk)?;
        let seen = bench.vm.wait_for(line, START_LIMIT);
        bench.vm.cut_power();
        tell(report, &bench);
        report.check(&format!("power cut {what}"), seen.map(drop));
        let state = state(site, &id)?;
        report.check(
            "the machine is installing, and the network is what it boots",
            ensured(state == "installing", &format!("state {state}")),
        );
    }
    finished(report, site, &disk)?;
    report.check("installed", {
        let state = state(site, &id)?;
        ensured(state == "installed", &format!("state {state}"))
    });
    let told = story(site, &id)?;
    report.note(format!("the ledger: {}", told.join(", ")));
    report.check("the ledger tells the story", told_well(&told));
    from_the_disk(report, site, &disk)
}

/// The boot that nobody cuts.
fn finished(report: &Report, site: &Site, disk: &Path) -> Result<()> {
    let mut bench = power_on_with_disk(site, 1, FirmwareBoot::Http, disk)?;
    let needles = ["INSTALLED", "NOT INSTALLED", "rebooting in 30 s"];
    let (which, line) = bench.vm.wait_for_any(&needles, START_LIMIT + STEP_LIMIT)?;
    report.check("the next power-on finishes it", {
        ensured(which == 0 && !line.text.contains("NOT"), &line.text)
    });
    bench.vm.power_off();
    tell(report, &bench);
    Ok(())
}

/// The firmware asks the network, is sent on, and starts what was installed.
fn from_the_disk(report: &Report, site: &Site, disk: &Path) -> Result<()> {
    let mut bench = power_on_with_disk(site, 1, FirmwareBoot::Http, disk)?;
    let booted = bench.vm.wait_for_any(
        &[efi_disk::LINE, "Start HTTP Boot", "[boot] image"],
        START_LIMIT,
    );
    report.check("the next power-on boots from the disk", {
        booted
            .and_then(|(which, line)| ensured(which != 2, &line.text))
            .and_then(|()| bench.vm.wait_for(efi_disk::LINE, STEP_LIMIT).map(drop))
    });
    bench.vm.power_off();
    tell(report, &bench);
    Ok(())
}

/// A claim of the same TPM, approved with its disk, and the run; the cable is then the VM's.
fn approved(site: &Site) -> Result<MachineId> {
    let mut machine = Machine::plug(site, 1)?;
    let id = admit(site, &mut machine)?;
    machine.ns.ip(&["link", "set", "eth0", "down"])?;
    vestibule(site, &["machine", "install", &id.0, "--image", IMAGE])?;
    Ok(id)
}

/// One run, a grant for each boot, each begun anew, and the end.
fn told_well(told: &[String]) -> Result<()> {
    ensure!(told.first().is_some_and(|first| first == "run"), "{told:?}");
    ensure!(
        told.last().is_some_and(|last| last == "end verified"),
        "{told:?}"
    );
    let count = |what: &str| told.iter().filter(|word| word.starts_with(what)).count();
    ensure!(count("run") == 1 && count("end") == 1, "{told:?}");
    ensure!(count("grant") == 4 && count("checked") == 4, "{told:?}");
    // The boot after the one that had written everything reads before it writes.
    let last = told.iter().rposition(|word| word.starts_with("grant"));
    let last = told.get(last.context("no grant")?..).unwrap_or_default();
    if last
        != [
            "grant 4",
            "checked",
            "configured",
            "verified",
            "end verified",
        ]
    {
        bail!("the last boot wrote again: {last:?}");
    }
    Ok(())
}

fn state(site: &Site, id: &MachineId) -> Result<String> {
    let all = site.desk.machines()?;
    let machine = all.into_iter().find(|m| m.machine == *id);
    Ok(machine.context("the machine is gone")?.state)
}

fn ensured(good: bool, why: &str) -> Result<()> {
    ensure!(good, "{why}");
    Ok(())
}

fn tell(report: &Report, bench: &Bench) {
    report.note(format!(
        "{:.1} s and {:.1} CPU s of the VM",
        bench.vm.uptime().as_secs_f64(),
        bench.vm.cpu_secs()
    ));
}
