//! The LDevID and its key, judged by other people's code: openssl for the chain, tpm2-tools for the
//! key blobs, under SPIRE's SRK template, after a restart of the TPM, and under another TPM.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use attester::{DevIdAuth, Options as AttesterOptions};
use gateway_core::record::Record;
use hw::tpm::{DevId, DevIdKind};

use crate::report::Report;
use crate::run::{attempt, output};
use crate::sim::{Attested, Machine};
use crate::site::{Options, Site};
use crate::swtpm::Swtpm;

const LIMIT: Duration = Duration::from_secs(30);

/// Runs the scenario.
///
/// # Errors
/// A machine cannot be admitted at all.
pub fn run(report: &Report) -> Result<()> {
    let site = Site::start("ldevid", Options::default())?;
    let cases = [
        (1, DevIdKind::EccP256, DevIdAuth::None),
        (2, DevIdKind::EccP256, DevIdAuth::Random),
        (3, DevIdKind::Rsa2048, DevIdAuth::None),
        (4, DevIdKind::Rsa2048, DevIdAuth::Random),
    ];
    let mut issued = Vec::new();
    for (number, kind, auth) in cases {
        let name = format!("{kind:?}, auth {auth:?}");
        let mut machine = Machine::plug(&site, number)?;
        let options = AttesterOptions {
            devid_kind: kind,
            devid_auth: auth,
            extends_file: None,
            can: Vec::new(),
        };
        let (chain, devid) = admit(&site, &mut machine, &options).context(name.clone())?;
        let dir = site.run.dir().join(format!("ldevid-{number}"));
        fs::create_dir_all(&dir)?;
        report.check(&format!("{name}: openssl verifies the chain"), {
            openssl(&site, &dir, &chain)
        });
        issued.push(chain[0].clone());
        machine.tpm.power_cycle(&site.run)?;
        report.check(
            &format!("{name}: the blobs load and sign after a restart of the TPM"),
            signs(&machine.tpm, &dir, kind, &devid, &chain[0]),
        );
        let other = Machine::plug_with_tpm(&site, 100 + number, 10 + number)?;
        report.check(
            &format!("{name}: the blobs do not load under another TPM"),
            does_not_load(&other.tpm, &dir, kind, &devid),
        );
    }
    report.check("the device CA has issued LDevIDs and nothing else", {
        nothing_else(&site, &issued)
    });
    Ok(())
}

fn admit(
    site: &Site,
    machine: &mut Machine,
    options: &AttesterOptions,
) -> Result<(Vec<Vec<u8>>, DevId)> {
    machine.boot_honestly(site)?;
    machine.lease(crate::pxe::Stage::Attester)?;
    match machine.attest_with(options, &mut |_, _| {})? {
        Attested::Pending { .. } => {}
        other => bail!("before approval: {other:?}"),
    }
    let claim = site
        .desk
        .wait_machine("claim", Duration::from_secs(5), |m| {
            m.state == "pending" && m.macs.contains(&machine.mac)
        })?;
    site.desk.approve(&claim.machine)?;
    match machine.attest_with(options, &mut |_, _| {})? {
        Attested::Admitted { chain, devid, .. } => Ok((chain, devid)),
        other => bail!("after approval: {other:?}"),
    }
}

/// `openssl verify` against the exported device CA.
fn openssl(site: &Site, dir: &Path, chain: &[Vec<u8>]) -> Result<()> {
    let leaf = dir.join("ldevid.der");
    fs::write(&leaf, chain.first().context("empty chain")?)?;
    let pem = dir.join("ldevid.pem");
    output(
        Command::new("openssl")
            .args(["x509", "-inform", "DER", "-in"])
            .arg(&leaf)
            .arg("-out")
            .arg(&pem),
        LIMIT,
    )?;
    let said = output(
        Command::new("openssl")
            .args(["verify", "-x509_strict", "-CAfile"])
            .arg(site.ca_dir().join("device-ca.pem"))
            .arg(&pem),
        LIMIT,
    )?;
    ensure!(said.trim_end().ends_with("OK"), "{said}");
    Ok(())
}

fn srk_arguments(kind: DevIdKind) -> [&'static str; 8] {
    let algorithm = match kind {
        DevIdKind::Rsa2048 => "rsa2048:aes128cfb",
        DevIdKind::EccP256 => "ecc256:aes128cfb",
    };
    [
        "-C",
        "o",
        "-g",
        "sha256",
        "-G",
        algorithm,
        "-a",
        "restricted|decrypt|fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda",
    ]
}

/// tpm2-tools wants each blob in its TPM2B: two bytes of size in front.
fn write_blobs(dir: &Path, devid: &DevId) -> Result<(PathBuf, PathBuf)> {
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let (public, private) = (dir.join("devid.pub"), dir.join("devid.priv"));
    fs::write(&public, sized(&devid.public))?;
    fs::write(&private, sized(&devid.private))?;
    Ok((public, private))
}

/// SRK by SPIRE's template, then the blobs under it.
fn load(tpm: &Swtpm, dir: &Path, kind: DevIdKind, devid: &DevId) -> Result<Command> {
    let (public, private) = write_blobs(dir, devid)?;
    let mut primary = tpm.tool("tpm2_createprimary");
    primary
        .args(srk_arguments(kind))
        .arg("-c")
        .arg(dir.join("srk.ctx"));
    output(&mut primary, LIMIT)?;
    output(tpm.tool("tpm2_flushcontext").arg("-t"), LIMIT)?;
    let mut load = tpm.tool("tpm2_load");
    load.arg("-C")
        .arg(dir.join("srk.ctx"))
        .arg("-u")
        .arg(public)
        .arg("-r")
        .arg(private)
        .arg("-c")
        .arg(dir.join("devid.ctx"));
    Ok(load)
}

fn signs(tpm: &Swtpm, dir: &Path, kind: DevIdKind, devid: &DevId, cert: &[u8]) -> Result<()> {
    output(&mut load(tpm, dir, kind, devid)?, LIMIT).context("tpm2_load")?;
    output(tpm.tool("tpm2_flushcontext").arg("-t"), LIMIT)?;
    let message = dir.join("message");
    fs::write(&message, b"a message of the lab")?;
    let signature = dir.join("signature");
    let sign = |auth: Option<&str>| -> Result<Command> {
        let mut sign = tpm.tool("tpm2_sign");
        sign.arg("-c")
            .arg(dir.join("devid.ctx"))
            .args(["-g", "sha256", "-f", "plain", "-o"])
            .arg(&signature);
        if let Some(auth) = auth {
            sign.args(["-p", auth]);
        }
        sign.arg(&message);
        Ok(sign)
    };
    if let Some(auth) = &devid.auth {
        ensure!(auth.len() == 32, "authValue of {} characters", auth.len());
        let (status, _, _) = attempt(&mut sign(None)?, LIMIT)?;
        ensure!(!status.success(), "it signs without its authValue");
        output(tpm.tool("tpm2_flushcontext").arg("-t"), LIMIT)?;
    }
    output(&mut sign(devid.auth.as_ref().map(|a| a.as_str()))?, LIMIT).context("tpm2_sign")?;
    output(tpm.tool("tpm2_flushcontext").arg("-t"), LIMIT)?;
    // The signature verifies under the key that the certificate is for.
    let key = dir.join("key.pem");
    let leaf = dir.join("leaf.der");
    fs::write(&leaf, cert)?;
    let public = output(
        Command::new("openssl")
            .args(["x509", "-inform", "DER", "-noout", "-pubkey", "-in"])
            .arg(&leaf),
        LIMIT,
    )?;
    fs::write(&key, public)?;
    let said = output(
        Command::new("openssl")
            .args(["dgst", "-sha256", "-verify"])
            .arg(&key)
            .arg("-signature")
            .arg(&signature)
            .arg(&message),
        LIMIT,
    )?;
    ensure!(said.contains("Verified OK"), "{said}");
    Ok(())
}

fn does_not_load(tpm: &Swtpm, dir: &Path, kind: DevIdKind, devid: &DevId) -> Result<()> {
    let (status, _, err) = attempt(&mut load(tpm, dir, kind, devid)?, LIMIT)?;
    ensure!(!status.success(), "it loads");
    // TPM_RC_INTEGRITY on parameter 1 of Load: the blob is not of this hierarchy's seed.
    ensure!(
        err.to_lowercase().contains("integrity"),
        "another failure: {err}"
    );
    Ok(())
}

/// Every certificate record under the device CA is an LDevID, and each of ours is among them.
fn nothing_else(site: &Site, issued: &[Vec<u8>]) -> Result<()> {
    use sha2::Digest as _;
    let records = site
        .desk
        .records(|record| matches!(record, Record::Certificate(_)))?;
    let mut ldevids = std::collections::BTreeSet::new();
    for entry in records {
        if let Record::Certificate(certificate) = entry.record {
            match certificate.profile.as_str() {
                "ldevid" => {
                    ensure!(certificate.machine.is_some(), "LDevID for nobody");
                    ldevids.insert(certificate.sha256);
                }
                // Other profiles are other CAs' business; a machine only ever gets an LDevID.
                profile => ensure!(certificate.machine.is_none(), "{profile} for a machine"),
            }
        }
    }
    for leaf in issued {
        let digest = hex::encode(sha2::Sha256::digest(leaf));
        ensure!(
            ldevids.contains(&digest),
            "LDevID {digest} is not in the ledger"
        );
    }
    ensure!(
        ldevids.len() == issued.len(),
        "{} LDevIDs in the ledger, {} were handed out",
        ldevids.len(),
        issued.len()
    );
    Ok(())
}
