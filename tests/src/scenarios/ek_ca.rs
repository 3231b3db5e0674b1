//! A machine whose TPM vendor the appliance does not know, and what its owner does about it: look who
//! waits for whom, import, approve, hand the issuers to SPIRE, take a CA out again. openssl judges the
//! export; the liar is a CA of the vendor's name with a key of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use gateway_core::identity::MachineId;
use gateway_core::view::{EkCaExport, EkCaList, EkUnmatchedList, MachineView};
use serde_json::Value;

use crate::report::Report;
use crate::run::{attempt, output};
use crate::sim::{Attested, Machine};
use crate::site::{Options, Site};
use crate::swtpm;

const LIMIT: Duration = Duration::from_secs(30);
/// NV index of the RSA EK's certificate.
const EK_CERT_INDEX: &str = "0x1c00002";

/// Runs the scenario.
///
/// # Errors
/// The machine does not even become a claim.
pub fn run(report: &Report) -> Result<()> {
    let options = Options {
        ek_roots: false,
        ..Options::default()
    };
    let mut site = Site::start("ek-ca", options)?;
    let outcome = all(report, &mut site);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

fn all(report: &Report, site: &mut Site) -> Result<()> {
    let authority = swtpm::ek_authority()?;
    let mut machine = Machine::plug(site, 1)?;
    let ek_cert = ek_certificate(site, &machine)?;
    let id = pending(site, &mut machine)?;
    report.check(
        "unknown issuer: listed with its claim",
        listed(site, &id, 1),
    );
    report.check("files that hold no CA are refused", no_cas(site, &ek_cert));
    report.check("a CA of the vendor's name alone matches nothing", {
        namesake(site, &authority, &id)
    });
    report.check("the intermediate without its root is worth nothing", {
        import(site, &[&authority.issuer], 0)
            .and_then(|said| {
                ensure!(said.contains("worth nothing yet"), "{said}");
                Ok(())
            })
            .and_then(|()| assurance(site, &id, "bare-ek"))
    });
    report.check("the root arrives: judged again without the machine", {
        import(site, &[&authority.root, &authority.issuer], 0)
            .and_then(|_| vouched(site, &id))
            .and_then(|()| listed(site, &id, 0))
    });
    report.check("approved and admitted with the vendor's word", {
        admitted(site, &mut machine, &id)
    });
    let bundle = site.run.dir().join("endorsement_ca.pem");
    report.check("openssl takes the export for the EK certificate", {
        exported(site, &bundle, &authority.root, &ek_cert, &id)
    });
    let before = fs::read(&bundle).unwrap_or_default();
    site.kill();
    site.serve()?;
    report.check("all of it is there after kill -9", {
        export(site, &bundle).and_then(|_| {
            ensure!(fs::read(&bundle)? == before, "another export");
            let list: EkCaList = site.desk.get("/v1/ek-ca")?;
            ensure!(list.certificates.len() == 4, "{list:?}");
            assurance(site, &id, "vendor-chain")
        })
    });
    report.check(
        "taken out, the CA vouches for nobody; back again, it does",
        taken_out(site, &mut machine, &authority.root, &id),
    );
    report.check("the ledger verifies", site.verify_ledger().map(drop));
    Ok(())
}

/// The certificate of the machine's RSA EK, as PEM.
fn ek_certificate(site: &Site, machine: &Machine) -> Result<PathBuf> {
    let (der, pem) = (site.run.dir().join("ek.der"), site.run.dir().join("ek.pem"));
    let mut read = machine.tpm.tool("tpm2_nvread");
    output(read.arg(EK_CERT_INDEX).arg("-o").arg(&der), LIMIT)?;
    output(
        Command::new("openssl")
            .args(["x509", "-inform", "DER", "-in"])
            .arg(&der)
            .arg("-out")
            .arg(&pem),
        LIMIT,
    )?;
    Ok(pem)
}

fn pending(site: &Site, machine: &mut Machine) -> Result<MachineId> {
    machine.boot_honestly(site)?;
    machine.lease(crate::pxe::Stage::Attester)?;
    match machine.attest()? {
        Attested::Pending { .. } => {}
        other => bail!("before approval: {other:?}"),
    }
    let limit = Duration::from_secs(5);
    let claim = site.desk.wait_machine("claim", limit, |m| {
        m.state == "pending" && m.macs.contains(&machine.mac)
    })?;
    ensure!(
        claim.assurance.as_deref() == Some("bare-ek"),
        "{:?}",
        claim.assurance
    );
    ensure!(
        claim.reasons.iter().any(|r| r.code == "ek.cert.chain"),
        "{:?}",
        claim.reasons
    );
    Ok(claim.machine)
}

/// Whether `ek-ca unmatched` names the machine, with `count` issuers in all.
fn listed(site: &Site, id: &MachineId, count: usize) -> Result<()> {
    let (status, out, err) = site.desk.vestibule(&["ek-ca", "unmatched", "--json"])?;
    ensure!(status.success(), "{out}{err}");
    let list: EkUnmatchedList = serde_json::from_str(&out)?;
    ensure!(list.unmatched.len() == count, "{out}");
    for issuer in &list.unmatched {
        ensure!(issuer.issuer.contains("swtpm"), "{out}");
        ensure!(issuer.issuer_key.is_some(), "{out}");
        let waits = issuer.machines.iter().find(|m| m.machine == *id);
        let waits = waits.with_context(|| out.clone())?;
        ensure!(waits.kept, "{out}");
    }
    Ok(())
}

/// `ek-ca import`, with the exit code that is expected; what it says.
fn import(site: &Site, files: &[&Path], code: i32) -> Result<String> {
    let mut command = site
        .desk
        .command(&["ek-ca", "import", "--source", "the lab's authority"]);
    let (status, out, err) = attempt(command.args(files), LIMIT)?;
    ensure!(status.code() == Some(code), "{status}: {out}{err}");
    Ok(out + &err)
}

fn no_cas(site: &Site, ek_cert: &Path) -> Result<()> {
    let said = import(site, &[ek_cert], 1)?;
    ensure!(said.contains("ek_ca.not_ca"), "{said}");
    let big = site.run.dir().join("big.pem");
    fs::write(&big, vec![b'x'; 10 << 20])?;
    let said = import(site, &[&big], 1)?;
    ensure!(said.contains("ek_ca.size"), "{said}");
    let list: EkCaList = site.desk.get("/v1/ek-ca")?;
    ensure!(list.certificates.is_empty(), "{list:?}");
    Ok(())
}

/// Self-made CAs with the names of the vendor's root and issuer; the owner even imports them.
fn namesake(site: &Site, authority: &swtpm::EkAuthority, id: &MachineId) -> Result<()> {
    let mut made = Vec::new();
    for (at, real) in [&authority.root, &authority.issuer].into_iter().enumerate() {
        let mut name = Command::new("openssl");
        name.args([
            "x509",
            "-noout",
            "-subject",
            "-nameopt",
            "multiline,-esc_msb",
            "-in",
        ])
        .arg(real);
        let said = output(&mut name, LIMIT)?;
        let cn = said.lines().find_map(|line| line.split_once("commonName"));
        let (_, cn) = cn.with_context(|| said.clone())?;
        let subject = format!("/CN={}", cn.trim_start_matches([' ', '=']));
        let pem = site.run.dir().join(format!("namesake-{at}.pem"));
        output(
            Command::new("openssl")
                .args([
                    "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30",
                ])
                .args(["-subj", &subject, "-keyout", "/dev/null", "-out"])
                .arg(&pem),
            LIMIT,
        )?;
        made.push(pem);
    }
    let files: Vec<&Path> = made.iter().map(PathBuf::as_path).collect();
    import(site, &files, 0)?;
    assurance(site, id, "bare-ek")?;
    listed(site, id, 1)
}

fn view(site: &Site, id: &MachineId) -> Result<MachineView> {
    site.desk.get(&format!("/v1/machines/{id}"))
}

fn assurance(site: &Site, id: &MachineId, expected: &str) -> Result<()> {
    let view = view(site, id)?;
    ensure!(
        view.assurance.as_deref() == Some(expected),
        "{:?}",
        view.assurance
    );
    Ok(())
}

/// The claim is worth more now, and its timeline says why.
fn vouched(site: &Site, id: &MachineId) -> Result<()> {
    let limit = Duration::from_secs(5);
    let claim = site.desk.wait_machine("vendor-chain", limit, |m| {
        m.machine == *id && m.assurance.as_deref() == Some("vendor-chain")
    })?;
    ensure!(claim.state == "pending", "{}", claim.state);
    let ek_codes = claim.reasons.iter().filter(|r| r.code.starts_with("ek"));
    ensure!(ek_codes.count() == 0, "{:?}", claim.reasons);
    let (_, out, _) = site.desk.vestibule(&["machine", "show", &id.0])?;
    ensure!(out.contains("a CA arrived"), "{out}");
    ensure!(out.contains("has a chain"), "{out}");
    Ok(())
}

fn admitted(site: &Site, machine: &mut Machine, id: &MachineId) -> Result<()> {
    site.desk.approve(id)?;
    let Attested::Admitted { receipt, .. } = machine.attest()? else {
        bail!("not admitted");
    };
    let receipt: Value = serde_json::from_slice(&receipt)?;
    ensure!(receipt["assurance"] == "vendor-chain", "{receipt}");
    Ok(())
}

fn export(site: &Site, bundle: &Path) -> Result<String> {
    let path = bundle.to_string_lossy();
    let (status, out, err) = site.desk.vestibule(&["ek-ca", "export", &path])?;
    ensure!(status.success(), "{out}{err}");
    Ok(out)
}

/// What SPIRE does with the file: the direct issuer is the root, and nothing else is there.
fn exported(site: &Site, bundle: &Path, root: &Path, ek_cert: &Path, id: &MachineId) -> Result<()> {
    export(site, bundle)?;
    let export: EkCaExport = site.desk.get("/v1/ek-ca/export")?;
    ensure!(export.certificates.len() == 1, "{export:?}");
    ensure!(
        export.certificates[0].machines == [id.clone()],
        "{export:?}"
    );
    ensure!(export.without.is_empty(), "{export:?}");
    let verify = |ca: &Path| {
        let mut verify = Command::new("openssl");
        verify.args(["verify", "-partial_chain", "-no-CApath", "-no-CAstore"]);
        attempt(verify.arg("-CAfile").arg(ca).arg(ek_cert), LIMIT)
    };
    let (status, out, err) = verify(bundle)?;
    ensure!(status.success() && out.contains("OK"), "{out}{err}");
    // The root alone does not do: SPIRE has no intermediates.
    let (status, out, _) = verify(root)?;
    ensure!(!status.success(), "{out}");
    Ok(())
}

fn taken_out(site: &Site, machine: &mut Machine, root: &Path, id: &MachineId) -> Result<()> {
    let der = crate::http::certificates(root)?;
    let der = der.first().context("no root")?;
    let sha256 = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(der));
    let args = ["ek-ca", "remove", &sha256, "--why", "its key is lost"];
    let (status, out, err) = site.desk.vestibule(&args)?;
    ensure!(status.success(), "{out}{err}");
    assurance(site, id, "bare-ek")?;
    match machine.attest()? {
        Attested::Refused { .. } => {}
        other => bail!("without its CA: {other:?}"),
    }
    import(site, &[root], 0)?;
    match machine.attest()? {
        Attested::Admitted { .. } => Ok(()),
        other => bail!("with its CA back: {other:?}"),
    }
}
