//! One policy file over a VM's boots by PXE and by HTTP, and a fleet of one that moves to a newer image:
//! floors that overlap, a grace that ends, and the older image refused.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use boot::catalog::{Artefact, Kind};
use gateway_core::appraisal::x509::rfc3339;
use gateway_core::identity::MachineId;
use gateway_core::record::{Record, Verdict};
use sha2::{Digest as _, Sha256};

use super::walk::{power_on, predicted, wait_claim};
use crate::report::Report;
use crate::site::{Options, Site, site_keys};
use crate::vm::FirmwareBoot;

const BOOT_LIMIT: Duration = Duration::from_secs(240);
const ADMIT_LIMIT: Duration = Duration::from_secs(90);
const VERDICT_LIMIT: Duration = Duration::from_secs(20);
const DAY_SECS: i64 = 86_400;

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made, or no VM comes so far.
pub fn run(report: &Report) -> Result<()> {
    let options = Options {
        policy: Some(policy(1, None)?),
        log_filter: "info,gateway=debug",
        // A grace ends by a clock that may be believed.
        rtc: true,
        ..Options::default()
    };
    let mut site = Site::start("policy", options)?;
    let outcome = steps(report, &mut site);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

/// The site's policy with a floor for the attester. A grace lets version 1 pass until then.
fn policy(floor: u64, grace_until: Option<i64>) -> Result<String> {
    let certificates = crate::http::certificates(&site_keys()?.db_certificate())?;
    let db = certificates.first().context("no db certificate")?;
    let grace = grace_until.map_or(String::new(), |until| {
        format!("grace_from = 1\ngrace_until = {}\n", rfc3339(until))
    });
    Ok(format!(
        "version = 1\npreset = \"standard\"\n[boot]\nauthority_sha256 = [\"{}\"]\noption_roms = \"listed\"\n\
         images = [\"ipxe\", \"attester\"]\nroles = [\"provision\"]\n\
         [[boot.floor]]\nimage = \"attester\"\nversion = {floor}\n{grace}",
        hex::encode(Sha256::digest(db)),
    ))
}

fn steps(report: &Report, site: &mut Site) -> Result<()> {
    let machine = enrolled(site)?;
    let by_pxe = last_verdict(site, &machine)?;
    report.check(
        "a boot by PXE passes the policy file",
        passed(&by_pxe, 1, site),
    );
    report.check(
        "its PCR 4 and PCR 11 are the predicted ones",
        predicted(site, FirmwareBoot::Pxe, "attester"),
    );
    let by_http = boots(site, &machine, FirmwareBoot::Http)?;
    report.check("a boot by HTTP passes the same policy file", {
        passed(&by_http, 1, site).and_then(|()| {
            ensure!(
                by_http.policy_sha256 == by_pxe.policy_sha256,
                "two policies"
            );
            Ok(())
        })
    });
    report.check(
        "its PCR 4 and PCR 11 are the predicted ones, too",
        predicted(site, FirmwareBoot::Http, "attester"),
    );

    let old = site.artefacts()?;
    site.stop()?;
    site.add_uki(2)?;
    let both = site.artefacts()?;
    site.serve()?;
    let newer = boots(site, &machine, FirmwareBoot::Http)?;
    report.check(
        "a newer image passes before the floor is raised",
        passed(&newer, 2, site),
    );

    let now = i64::try_from(crate::vm::now_ms() / 1000)?;
    // The older image is what is served, as if the newer one had not come everywhere yet.
    restart(site, &old, &policy(2, Some(now + DAY_SECS))?)?;
    let graced = boots(site, &machine, FirmwareBoot::Http)?;
    report.check("the older image passes while the floors overlap", {
        ensure(graced.admitted, &graced).and_then(|()| {
            let told: Vec<&str> = graced.reasons.iter().map(|r| r.code.as_ref()).collect();
            ensure!(
                told.contains(&"boot.floor"),
                "nothing on record of the floor to come: {told:?}"
            );
            Ok(())
        })
    });
    restart(site, &old, &policy(2, Some(now - 1))?)?;
    let refused = boots(site, &machine, FirmwareBoot::Http)?;
    report.check("and is refused with boot.floor when the grace is over", {
        ensure!(!refused.admitted, "admitted");
        let codes: BTreeSet<&str> = refused.reasons.iter().map(|r| r.code.as_ref()).collect();
        ensure!(codes.contains("boot.floor"), "{codes:?}");
        Ok(())
    });

    restart(site, &both, &policy(2, None)?)?;
    let (status, out, err) = site.desk.vestibule(&["image", "floor", "attester", "2"])?;
    if !status.success() {
        bail!("image floor: {status}: {out}{err}");
    }
    let after = boots(site, &machine, FirmwareBoot::Pxe)?;
    report.check(
        "the newer image passes after both floors are raised",
        passed(&after, 2, site),
    );
    report.check(
        "each change of the policy is on record, with the digest of the verdicts",
        changes(site, &[&by_pxe, &graced, &refused, &after]),
    );
    report.check("the ledger verifies", site.verify_ledger().map(drop));
    Ok(())
}

fn changes(site: &Site, of: &[&Verdict]) -> Result<()> {
    let records = site
        .desk
        .records(|record| matches!(record, Record::Policy(_)))?;
    let written = records.iter().filter_map(|entry| match &entry.record {
        Record::Policy(policy) => Some(policy.sha256.as_str()),
        _ => None,
    });
    let written: Vec<&str> = written.collect();
    let judged: Vec<&str> = of.iter().map(|v| v.policy_sha256.as_str()).collect();
    ensure!(
        written == judged,
        "on record {written:?}, judged by {judged:?}"
    );
    Ok(())
}

fn restart(site: &mut Site, artefacts: &[Artefact], policy: &str) -> Result<()> {
    site.stop()?;
    site.write_catalog(artefacts.to_vec())?;
    site.write_policy(policy)?;
    site.serve().map(drop)
}

/// The VM's first boot, by PXE: a claim that is approved.
fn enrolled(site: &Site) -> Result<MachineId> {
    let mut bench = power_on(site, 1, FirmwareBoot::Pxe)?;
    let machine = wait_claim(site, &mut bench, 1)?;
    site.desk.approve(&machine)?;
    site.desk.wait_machine("admission", ADMIT_LIMIT, |m| {
        m.machine == machine && m.state == "admitted"
    })?;
    bench.vm.power_off();
    Ok(machine)
}

/// Boots the VM once more and gives the verdict over it.
fn boots(site: &Site, machine: &MachineId, boot: FirmwareBoot) -> Result<Verdict> {
    let before = verdicts(site, machine)?.len();
    let mut bench = power_on(site, 1, boot)?;
    bench.vm.wait_for_any(
        &["ADMITTED, correlation", "NOT ADMITTED", "boot.floor"],
        BOOT_LIMIT,
    )?;
    let started = std::time::Instant::now();
    loop {
        let all = verdicts(site, machine)?;
        if all.len() > before {
            bench.vm.power_off();
            return last_verdict(site, machine);
        }
        ensure!(started.elapsed() < VERDICT_LIMIT, "no verdict on record");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn verdicts(site: &Site, machine: &MachineId) -> Result<Vec<Verdict>> {
    let of_it = |record: &Record| matches!(record, Record::Verdict(v) if v.machine.as_ref() == Some(machine));
    let found = site.desk.records(of_it)?.into_iter();
    Ok(found
        .filter_map(|entry| match entry.record {
            Record::Verdict(verdict) => Some(verdict),
            _ => None,
        })
        .collect())
}

fn last_verdict(site: &Site, machine: &MachineId) -> Result<Verdict> {
    verdicts(site, machine)?.pop().context("no verdict")
}

fn ensure(holds: bool, verdict: &Verdict) -> Result<()> {
    ensure!(holds, "{:?}", verdict.reasons);
    Ok(())
}

/// Admitted with the UKI of that version, and nothing of the boot to complain about.
fn passed(verdict: &Verdict, version: u64, site: &Site) -> Result<()> {
    ensure(verdict.admitted, verdict)?;
    let of_boot = |code: &str| code.starts_with("boot.") || code.starts_with("eventlog.");
    ensure(!verdict.reasons.iter().any(|r| of_boot(&r.code)), verdict)?;
    let artefacts = site.artefacts()?;
    let uki = artefacts
        .iter()
        .find(|a| a.kind == Kind::Uki && a.version == version)
        .with_context(|| format!("no UKI of version {version}"))?;
    ensure!(
        verdict.image_sha256.as_ref() == Some(&uki.sha256),
        "another image booted: {:?}",
        verdict.image_sha256
    );
    Ok(())
}
