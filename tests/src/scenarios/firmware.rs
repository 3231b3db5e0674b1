//! What real firmware refuses by itself, and what the gateway refuses of a properly signed image.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use boot::catalog::{Artefact, CATALOG_VERSION, Kind, Manifest};

use super::walk::{power_on, wait_claim};
use crate::report::Report;
use crate::site::{Options, Site, site_keys};
use crate::vm::FirmwareBoot;

const FETCH_LIMIT: Duration = Duration::from_secs(180);
const REFUSE_LIMIT: Duration = Duration::from_secs(60);

/// The firmware refuses an unsigned iPXE, and iPXE (by the firmware's LoadImage) an unsigned UKI.
///
/// # Errors
/// The site cannot be made.
pub fn unsigned(report: &Report) -> Result<()> {
    for (kind, name, words) in [
        (
            Kind::Ipxe,
            "unsigned iPXE: refused by the firmware",
            ["Access Denied", "Security Violation"],
        ),
        (
            Kind::Uki,
            "unsigned UKI: refused by the firmware under iPXE",
            ["7f04818f", "Access Denied"],
        ),
    ] {
        let outcome = refused_by_firmware(report, kind, &words);
        report.check(name, outcome);
    }
    Ok(())
}

fn refused_by_firmware(report: &Report, kind: Kind, words: &[&str]) -> Result<()> {
    let mut site = Site::prepare("refusals-firmware", Options::default())?;
    site.strip_signature(kind)?;
    site.serve()?;
    let mut bench = power_on(&site, 1, FirmwareBoot::Pxe)?;
    let outcome = bench.vm.wait_for_any(words, FETCH_LIMIT);
    if outcome.is_err() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    let (_, line) = outcome?;
    report.note(format!("console: {}", line.text));
    // Nothing that was refused may have run: no attester (only it says hello),
    // no claim.
    let started = bench
        .vm
        .lines()
        .iter()
        .any(|l| l.text.starts_with("vestibule: [hello]"));
    ensure!(!started, "the attester ran");
    ensure!(
        site.desk.machines()?.iter().all(|m| m.state != "pending"),
        "a claim exists"
    );
    Ok(())
}

/// A properly signed UKI below the floor: the firmware starts it, the gateway refuses it.
///
/// # Errors
/// The site cannot be made, or no VM comes so far.
pub fn floor(report: &Report) -> Result<()> {
    let mut site = Site::start("floor", Options::default())?;
    let outcome = floor_on(report, &mut site);
    if outcome.is_err() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

fn floor_on(report: &Report, site: &mut Site) -> Result<()> {
    let mut bench = power_on(site, 1, FirmwareBoot::Pxe)?;
    let machine = wait_claim(site, &mut bench, 1)?;
    // A newer image comes into the catalogue while the machine runs the old one.
    let next = site.options.version + 1;
    site.stop()?;
    site.add_uki(next)?;
    site.serve()?;
    let floor = next.to_string();
    let (status, out, err) = site
        .desk
        .vestibule(&["image", "floor", "attester", &floor])?;
    if !status.success() {
        bail!("image floor: {status}: {out}{err}");
    }
    site.desk.approve(&machine)?;
    let refused = site.desk.wait_machine("refusal", REFUSE_LIMIT, |m| {
        m.machine == machine && m.reasons.iter().any(|r| r.code == "boot.floor")
    });
    report.check("a signed UKI below the floor is refused", {
        refused.and_then(|m| {
            ensure!(m.state != "admitted", "state {}", m.state);
            super::walk::no_certificate(site, &machine)
        })
    });
    let (_, line) = bench.vm.wait_for_any(&["boot.floor"], REFUSE_LIMIT)?;
    report.note(format!("console: {}", line.text));
    bench.vm.power_off();
    drop(bench);
    // The same machine boots what is served now, the newer image, and passes.
    let mut bench = power_on(site, 1, FirmwareBoot::Pxe)?;
    let admitted = bench
        .vm
        .wait_for_any(&["ADMITTED, correlation"], FETCH_LIMIT);
    report.check(
        "the same machine with the image at the floor is admitted",
        {
            admitted.and_then(|_| {
                site.desk
                    .wait_machine("admission", REFUSE_LIMIT, |m| {
                        m.machine == machine && m.state == "admitted"
                    })
                    .map(drop)
            })
        },
    );
    bench.vm.power_off();
    Ok(())
}

impl Site {
    /// Replaces an artefact by itself without its signature, in a newly signed catalogue: what the
    /// gateway serves is what the owner's catalogue says, only the firmware can object.
    ///
    /// # Errors
    /// The catalogue cannot be rewritten.
    pub fn strip_signature(&self, kind: Kind) -> Result<()> {
        let mut artefacts = self.artefacts()?;
        let artefact = artefacts
            .iter_mut()
            .find(|a| a.kind == kind)
            .with_context(|| format!("no {kind:?}"))?;
        let path = self.image_dir().join(&artefact.file);
        crate::run::output(
            std::process::Command::new("sbattach")
                .arg("--remove")
                .arg(&path),
            Duration::from_secs(30),
        )?;
        let bytes = fs::read(&path)?;
        let measured = boot::measure::measure(&bytes)?;
        ensure!(
            hex::encode(measured.pe_sha256) == artefact.pe_sha256,
            "removing the signature changed the Authenticode digest"
        );
        artefact.sha256 = hex::encode(measured.sha256);
        artefact.size_bytes = measured.size_bytes;
        self.write_catalog(artefacts)
    }

    /// Builds the UKI again as `version` and adds it to the catalogue beside what is there.
    ///
    /// # Errors
    /// The build fails.
    pub fn add_uki(&self, version: u64) -> Result<()> {
        let dir = self.run.dir().join(format!("images-{version}"));
        self.build_images(version, &dir)?;
        let mut artefacts = self.artefacts()?;
        let mut uki = crate::site::artefacts_of(&dir)?
            .into_iter()
            .find(|a| a.kind == Kind::Uki)
            .context("no UKI was built")?;
        let file = format!("attester-{version}.efi");
        fs::copy(dir.join(&uki.file), self.image_dir().join(&file))?;
        uki.file = file;
        artefacts.push(uki);
        self.write_catalog(artefacts)
    }

    /// Writes a catalogue of these artefacts, signed by the site's key.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_catalog(&self, artefacts: Vec<Artefact>) -> Result<()> {
        let manifest = Manifest {
            disks: Vec::new(),
            version: CATALOG_VERSION,
            artefacts,
        };
        let text = serde_json::to_vec_pretty(&manifest)?;
        let signature = site_keys()?.sign_catalog(&text)?;
        fs::write(self.image_dir().join("catalog.json"), text)?;
        fs::write(self.image_dir().join("catalog.sig"), signature)?;
        Ok(())
    }
}
