//! One real machine from DHCPDISCOVER to its LDevID, by PXE and by UEFI HTTP boot.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gateway_core::identity::MachineId;
use gateway_core::record::{JournalRecord, Mark, Record};
use serde_json::Value;

use crate::admin::Desk;
use crate::report::Report;
use crate::run::output;
use crate::sim::mac;
use crate::site::{Firmware, NODE_TEMPLATES, Options, Site};
use crate::switch::Speaker;
use crate::swtpm;
use crate::timeline;
use crate::vm::{FirmwareBoot, Spec, Vm};

/// Power-on to the attester's first evidence, under emulation and beside another job.
const CLAIM_LIMIT: Duration = Duration::from_secs(240);
const ADMIT_LIMIT: Duration = Duration::from_secs(90);
const PREDICT_LIMIT: Duration = Duration::from_secs(30);

/// A VM on the site's segment with everything it hangs on.
pub struct Bench {
    /// The machine.
    pub vm: Vm,
    /// When it was powered on, milliseconds since 1970.
    pub started_ms: u64,
    _speakers: Vec<Speaker>,
}

/// Powers on VM `number` with TPM template `NODE_TEMPLATES + number - 1`.
///
/// # Errors
/// It does not start.
pub fn power_on(site: &Site, number: usize, boot: FirmwareBoot) -> Result<Bench> {
    power_on_as(site, number, boot, None)
}

/// The same with a disk behind the network in the boot order.
///
/// # Errors
/// It does not start.
pub fn power_on_with_disk(
    site: &Site,
    number: usize,
    boot: FirmwareBoot,
    disk: &Path,
) -> Result<Bench> {
    power_on_as(site, number, boot, Some(disk))
}

fn power_on_as(
    site: &Site,
    number: usize,
    boot: FirmwareBoot,
    disk: Option<&Path>,
) -> Result<Bench> {
    let firmware = Firmware::prepare(site.run.dir(), &site.ca_dir().join("boot-ca.pem"))?;
    let name = format!("v{number}");
    let tpm = site.run.dir().join(format!("tpm-{name}"));
    if !tpm.exists() {
        swtpm::provision(NODE_TEMPLATES + number - 1, &tpm)?;
    }
    let serial = format!("LAB-{number:04}");
    let disk_serial = format!("DISK-{number:04}");
    let spec = Spec {
        name: &name,
        mac: mac(number),
        serial: &serial,
        code: &firmware.code,
        vars: &firmware.vars,
        tls_cas: Some(&firmware.tls_cas),
        tpm: &tpm,
        boot,
        disk: disk.map(|disk| (disk, disk_serial.as_str())),
    };
    let started_ms = crate::vm::now_ms();
    let vm = Vm::start(&site.run, &site.segment, &spec)?;
    let port = format!("tap-{name}");
    let fab = &site.segment.fab;
    let mut speakers = vec![Speaker::lldp(fab, &port, &format!("port{number}"))?];
    // With IPv6 the daemon itself says what iPXE waits for.
    if !site.options.ipv6 {
        speakers.push(Speaker::router(fab)?);
    }
    Ok(Bench {
        vm,
        started_ms,
        _speakers: speakers,
    })
}

/// Waits for the claim of VM `number`, while its console is watched for a fatal end.
///
/// # Errors
/// No claim in time; the text has the end of the console.
pub fn wait_claim(site: &Site, bench: &mut Bench, number: usize) -> Result<MachineId> {
    let started = Instant::now();
    loop {
        let pending = site
            .desk
            .machines()?
            .into_iter()
            .find(|m| m.state == "pending" && m.macs.contains(&mac(number)));
        if let Some(machine) = pending {
            return Ok(machine.machine);
        }
        if started.elapsed() > CLAIM_LIMIT {
            // Fails with the console's last lines.
            bench.vm.wait_for("\u{0}never", Duration::ZERO)?;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Walk by PXE.
///
/// # Errors
/// A step that did not happen.
pub fn pxe(report: &Report) -> Result<()> {
    walk(report, "walk", FirmwareBoot::Pxe, false).map(drop)
}

/// Walk by UEFI HTTP boot.
///
/// # Errors
/// A step that did not happen.
pub fn http(report: &Report) -> Result<()> {
    walk(report, "walk-http", FirmwareBoot::Http, false).map(drop)
}

/// Walk by PXE over IPv6.
///
/// # Errors
/// A step that did not happen.
pub fn pxe6(report: &Report) -> Result<()> {
    walk(report, "walk-pxe6", FirmwareBoot::Pxe6, false).map(drop)
}

/// Walk by UEFI HTTP boot over IPv6.
///
/// # Errors
/// A step that did not happen.
pub fn http6(report: &Report) -> Result<()> {
    walk(report, "walk-http6", FirmwareBoot::Http6, false).map(drop)
}

/// `cargo xtask demo`: the walk by PXE, told to a reader.
///
/// # Errors
/// A step that did not happen.
pub fn demo(report: &Report, keep: bool) -> Result<()> {
    let started = Instant::now();
    let site = walk(report, "demo", FirmwareBoot::Pxe, true)?;
    println!("\nseconds: {:.1}", started.elapsed().as_secs_f64());
    println!("admin:   {}", Desk::url());
    if keep {
        crate::forward::serve_until_interrupted(&site)?;
    } else {
        println!("         (gone with this run; `cargo xtask demo --keep` leaves it to look at)");
    }
    Ok(())
}

fn walk(report: &Report, name: &str, boot: FirmwareBoot, tell: bool) -> Result<Site> {
    let options = Options {
        ipv6: boot.is_ipv6(),
        // The quoted registers stand in the daemon's log then.
        log_filter: "info,gateway=debug",
        ..Options::default()
    };
    let site = Site::start(name, options)?;
    let outcome = walk_on(report, &site, boot, tell);
    if outcome.is_err() {
        let logs = site.run.keep_logs();
        report.note(format!("logs kept in {}", logs.display()));
    }
    outcome.map(|()| site)
}

fn walk_on(report: &Report, site: &Site, boot: FirmwareBoot, tell: bool) -> Result<()> {
    let mut bench = power_on(site, 1, boot)?;
    let machine = wait_claim(site, &mut bench, 1)?;
    report.check("an unknown EK is a pending claim without a certificate", {
        no_certificate(site, &machine)
    });
    let (_, line) = bench
        .vm
        .wait_for_any(&["PENDING"], Duration::from_secs(30))?;
    report.note(format!("console: {}", line.text));
    site.desk.approve(&machine)?;
    let admitted = site
        .desk
        .wait_machine("admitted after approval", ADMIT_LIMIT, |m| {
            m.machine == machine && m.state == "admitted"
        });
    if let Err(error) = admitted {
        bail!("{error}\n{}", tail(&bench));
    }
    bench
        .vm
        .wait_for("ADMITTED, correlation", Duration::from_secs(30))?;
    let marks = marks_of(site, 1)?;
    let lines = timeline::merge(&site.desk.timeline(&machine)?, &marks, &bench.vm.lines());
    let missing = timeline::missing(&lines);
    if boot.is_ipv6() {
        report.check(
            "the firmware's lease is one of IPv6, with its hardware address",
            leased_ipv6(site),
        );
    }
    report.check("every step of the walk is recorded", {
        if missing.is_empty() {
            Ok(())
        } else {
            Err(anyhow::anyhow!("not recorded: {missing:?}"))
        }
    });
    report.check(
        "PCR 4 and PCR 11 of the quote are those predicted for this way to boot",
        predicted(site, boot, "attester"),
    );
    report.check("one LDevID in the ledger", one_ldevid(site, &machine));
    report.check("the ledger verifies", site.verify_ledger().map(drop));
    if tell || !missing.is_empty() {
        timeline::print(&lines, bench.started_ms);
    }
    if tell {
        print_receipt(site, &machine)?;
    }
    report.note(format!(
        "{:.1} s and {:.1} CPU s of the VM",
        bench.vm.uptime().as_secs_f64(),
        bench.vm.cpu_secs()
    ));
    bench.vm.power_off();
    Ok(())
}

/// What `vestibule pcr predict` says of the image is what the last quote proved.
///
/// # Errors
/// It is not, or there is no quote in the log.
pub fn predicted(site: &Site, boot: FirmwareBoot, image: &str) -> Result<()> {
    let way = match boot {
        FirmwareBoot::Pxe | FirmwareBoot::Pxe6 => "pxe",
        FirmwareBoot::Http | FirmwareBoot::Http6 => "http",
    };
    let mut command = Command::new(&site.desk.program);
    command
        .args([
            "--json",
            "pcr",
            "predict",
            image,
            "--path",
            way,
            "--catalog",
        ])
        .arg(site.image_dir());
    let told: Value = serde_json::from_str(&output(&mut command, PREDICT_LIMIT)?)?;
    let quoted = quoted(site).context("no quote in the daemon's log")?;
    for (pcr, value) in [("4", &told["paths"][0]["pcr4"]), ("11", &told["pcr11"])] {
        let predicted = value.as_str().context("no value was predicted")?;
        let found = quoted
            .split(' ')
            .find_map(|one| one.strip_prefix(pcr)?.strip_prefix('='));
        ensure!(
            found == Some(predicted),
            "PCR {pcr} by {way}: predicted {predicted}, quoted {found:?}"
        );
    }
    Ok(())
}

/// The registers of the last quote in the daemon's log.
fn quoted(site: &Site) -> Option<String> {
    let log = site.log();
    let mut lines = log.lines().rev();
    lines.find_map(|line| {
        let event: Value = serde_json::from_str(line).ok()?;
        let is_quote = event["message"] == "quoted";
        is_quote.then(|| event["pcrs"].as_str().map(str::to_owned))?
    })
}

fn leased_ipv6(site: &Site) -> Result<()> {
    let journal = site.journal()?;
    let found = journal.iter().any(|record| {
        matches!(record, JournalRecord::Lease6(lease)
            if lease.state == "bound" && lease.mac == Some(mac(1)))
    });
    ensure!(found, "no such lease in the journal");
    Ok(())
}

fn marks_of(site: &Site, number: usize) -> Result<Vec<Mark>> {
    Ok(site
        .journal()?
        .into_iter()
        .filter_map(|record| match record {
            JournalRecord::Mark(mark) if mark.mac == mac(number) => Some(mark),
            JournalRecord::Mark(_) | JournalRecord::Lease(_) | JournalRecord::Lease6(_) => None,
        })
        .collect())
}

fn tail(bench: &Bench) -> String {
    let lines = bench.vm.lines();
    let from = lines.len().saturating_sub(25);
    lines[from..]
        .iter()
        .map(|l| format!("    {}\n", l.text))
        .collect()
}

/// No certificate was issued for `machine`.
///
/// # Errors
/// One was.
pub fn no_certificate(site: &Site, machine: &MachineId) -> Result<()> {
    let issued = site.desk.records(
        |record| matches!(record, Record::Certificate(c) if c.machine.as_ref() == Some(machine)),
    )?;
    ensure!(issued.is_empty(), "{} certificate(s)", issued.len());
    Ok(())
}

fn one_ldevid(site: &Site, machine: &MachineId) -> Result<()> {
    let issued = site.desk.records(|record| {
        matches!(record, Record::Certificate(c)
            if c.machine.as_ref() == Some(machine) && c.profile == "ldevid")
    })?;
    ensure!(!issued.is_empty(), "none");
    Ok(())
}

fn print_receipt(site: &Site, machine: &MachineId) -> Result<()> {
    let verdict = site
        .desk
        .records(|record| {
            matches!(record, Record::Verdict(v) if v.admitted && v.machine.as_ref() == Some(machine))
        })?
        .pop()
        .context("no verdict in the ledger")?;
    println!("\nreceipt (ledger entry {}):", verdict.seq);
    println!("{}", serde_json::to_string_pretty(&verdict.record)?);
    Ok(())
}
