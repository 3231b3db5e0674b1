//! What the daemon says when it cannot start: one clear line and the documented exit code
//! (docs/OPERATIONS.md) for each thing that goes wrong at 3 a.m., and that it starts once it is put
//! right.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gateway_core::record::JournalRecord;

use crate::netns::GATEWAY_ADDR;
use crate::pxe::Stage;
use crate::report::Report;
use crate::run::{attempt, output};
use crate::sim::Machine;
use crate::site::{NODE_TEMPLATES, Options, Site};

const LIMIT: Duration = Duration::from_secs(30);
/// Room for a new appliance and little else.
const TINY_TMPFS: &str = "size=256k";
/// More machines than have room for their records in what is left of one page.
const LEASES_IN_A_PAGE: usize = 40;

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made.
pub fn run(report: &Report) -> Result<()> {
    let mut site = Site::prepare("starts", Options::default())?;
    report.check("a TCP port in use: 6", port_in_use(&site));
    report.check("UDP port 67 in use: 6", dhcp_port_in_use(&site));
    report.check("a missing capability: 3", no_capability(&site));
    report.check("a missing interface: 3", no_interface(&site));
    report.check("a full disk: 5", full_disk(&site));
    report.check("the state folder in use: 5", in_use(&mut site));
    report.check(
        "an artefact that is not the one signed: 1",
        wrong_artefact(&site),
    );
    report.check(
        "a mistake in the configuration: 2, with its key",
        wrong_config(&site),
    );
    report.check("a second claim: 1", second_claim(&site));
    report.check(
        "a TPM in lockout: it serves all the same",
        lockout(&mut site),
    );
    report.check("no TPM: 4", no_tpm(&mut site));
    report.check(
        "put right, it serves",
        site.serve().and_then(|_| site.stop()),
    );
    if !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    Ok(())
}

/// The daemon ends with `code` and says one line that holds every word.
fn ends(command: &mut Command, code: i32, words: &[&str]) -> Result<()> {
    let (status, _, said) = attempt(command, LIMIT)?;
    let errors: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("vestibule: "))
        .collect();
    ensure!(
        status.code() == Some(code),
        "expected exit code {code}, found {status}: {said}"
    );
    ensure!(
        errors.len() == 1,
        "expected one line, found {}: {said}",
        errors.len()
    );
    for word in words {
        ensure!(
            errors[0].contains(word),
            "expected {word:?} in: {}",
            errors[0]
        );
    }
    Ok(())
}

fn port_in_use(site: &Site) -> Result<()> {
    site.segment.gw.enter(|| {
        let _taken = TcpListener::bind((GATEWAY_ADDR, 443))?;
        ends(&mut site.local(&["serve"]), 6, &["boot", "443", "in use"])
    })
}

fn dhcp_port_in_use(site: &Site) -> Result<()> {
    site.segment.gw.enter(|| {
        let _taken = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67))?;
        ends(&mut site.local(&["serve"]), 6, &["67", "prov0", "in use"])
    })
}

fn no_capability(site: &Site) -> Result<()> {
    let mut bare = site.segment.gw.command("setpriv");
    bare.arg("--bounding-set=-net_bind_service,-net_raw")
        .arg(&site.desk.program)
        .args(["serve", "--config"])
        .arg(site.config());
    ends(&mut bare, 3, &["67", "ermission denied"])
}

fn no_interface(site: &Site) -> Result<()> {
    let config = edited(site, "no-interface", &[("\"prov0\"", "\"prov9\"")])?;
    ends(&mut with_config(site, &config), 3, &["prov9"])
}

/// At the start, and while it serves: a decision that cannot be recorded stops the daemon.
fn full_disk(site: &Site) -> Result<()> {
    let folder = site.run.dir().join("tiny");
    fs::create_dir_all(&folder)?;
    output(
        Command::new("mount")
            .args(["-t", "tmpfs", "-o", TINY_TMPFS, "tmpfs"])
            .arg(&folder),
        LIMIT,
    )?;
    let outcome = on_full_disk(site, &folder);
    output(Command::new("umount").arg(&folder), LIMIT)?;
    outcome
}

fn on_full_disk(site: &Site, folder: &Path) -> Result<()> {
    let state = site.state_dir();
    let pair = (
        state.to_string_lossy().into_owned(),
        folder.to_string_lossy().into_owned(),
    );
    let config = edited(site, "full-disk", &[(&pair.0, &pair.1)])?;
    let filler = folder.join("filler");
    fill(&filler)?;
    ends(&mut with_config(site, &config), 5, &["No space left"])?;

    fs::remove_file(&filler)?;
    let mut daemon = site
        .run
        .spawn("full-disk", &mut with_config(site, &config))?;
    let log = site.run.log("full-disk");
    let started = Instant::now();
    while !fs::read_to_string(&log).is_ok_and(|text| text.contains("ready")) {
        ensure!(started.elapsed() < LIMIT, "not ready: {}", log.display());
        std::thread::sleep(Duration::from_millis(20));
    }
    fill(&filler)?;
    // The journal's last page may have room for some records still; a lease without room is none.
    let mut given = Vec::new();
    for number in 1..=LEASES_IN_A_PAGE {
        let machine = Machine::plug_with_tpm(site, number, NODE_TEMPLATES)?;
        match machine.lease(Stage::Attester) {
            Ok(lease) => given.push(lease.addr),
            Err(_) => break,
        }
    }
    let status = daemon.wait(LIMIT)?;
    let said = fs::read_to_string(&log)?;
    ensure!(
        status.code() == Some(5),
        "expected exit code 5, found {status}: {said}"
    );
    ensure!(
        said.contains("could not be recorded"),
        "the reason is not said: {said}"
    );
    let recorded: Vec<Ipv4Addr> = Site::journal_in(folder)?
        .into_iter()
        .filter_map(|record| match record {
            JournalRecord::Lease(lease) => Some(lease.addr),
            JournalRecord::Lease6(_) | JournalRecord::Mark(_) => None,
        })
        .collect();
    let lost = given.iter().find(|addr| !recorded.contains(addr));
    ensure!(lost.is_none(), "leases without their record: {lost:?}");
    Ok(())
}

fn fill(path: &Path) -> Result<()> {
    let mut file = fs::File::create(path)?;
    while file.write_all(&[0; 512]).is_ok() {}
    Ok(())
}

fn in_use(site: &mut Site) -> Result<()> {
    site.serve()?;
    let outcome = ends(&mut site.local(&["serve"]), 5, &["in use"]);
    site.stop()?;
    outcome
}

fn wrong_artefact(site: &Site) -> Result<()> {
    let artefacts = site.artefacts()?;
    let path = site.image_dir().join(&artefacts[0].file);
    let good = fs::read(&path)?;
    let mut bad = good.clone();
    let last = bad.len() - 1;
    bad[last] ^= 1;
    fs::write(&path, bad)?;
    let outcome = ends(
        &mut site.local(&["serve"]),
        1,
        &[&artefacts[0].file, "sha256"],
    );
    fs::write(&path, good)?;
    outcome
}

fn wrong_config(site: &Site) -> Result<()> {
    let config = edited(site, "mistake", &[("lease_secs = 3600", "lease_secs = 0")])?;
    let (status, _, said) = attempt(&mut with_config(site, &config), LIMIT)?;
    ensure!(
        status.code() == Some(2),
        "expected exit code 2, found {status}: {said}"
    );
    ensure!(
        said.contains("provisioning.lease_secs"),
        "no key path in: {said}"
    );
    Ok(())
}

fn second_claim(site: &Site) -> Result<()> {
    let mut claim = site.local(&["claim", "--local"]);
    claim.arg("--out").arg(site.run.dir().join("second-owner"));
    ends(&mut claim, 1, &["claim.done"])
}

/// Nothing the daemon does needs auth that dictionary-attack lockout blocks.
fn lockout(site: &mut Site) -> Result<()> {
    let tool = |program: &str, args: &[&str]| attempt(site.tpm.tool(program).args(args), LIMIT);
    tool(
        "tpm2_dictionarylockout",
        &["--setup-parameters", "--max-tries=1"],
    )?;
    // A key with an authValue, tried with a wrong one.
    let folder = site.run.dir().join("lockout");
    fs::create_dir_all(&folder)?;
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (parent, public, private) = (file("parent"), file("public"), file("private"));
    let (key, text, out) = (file("key"), file("text"), file("out"));
    fs::write(&text, b"text")?;
    tool("tpm2_createprimary", &["-C", "o", "-c", &parent])?;
    tool("tpm2_flushcontext", &["-t"])?;
    let create = [
        "-C", &parent, "-p", "right", "-u", &public, "-r", &private, "-c", &key,
    ];
    tool("tpm2_create", &create)?;
    tool("tpm2_flushcontext", &["-t"])?;
    tool("tpm2_sign", &["-c", &key, "-p", "wrong", "-o", &out, &text])?;
    tool("tpm2_flushcontext", &["-t"])?;
    let (_, _, said) = tool("tpm2_sign", &["-c", &key, "-p", "right", "-o", &out, &text])?;
    tool("tpm2_flushcontext", &["-t"])?;
    let locked = said.contains("lockout");
    let outcome = site.serve().and_then(|_| site.stop());
    let tool = |args: &[&str]| attempt(site.tpm.tool("tpm2_dictionarylockout").args(args), LIMIT);
    tool(&["--clear-lockout"])?;
    tool(&["--setup-parameters", "--max-tries=3"])?;
    ensure!(locked, "the TPM is not in lockout: {said}");
    outcome
}

fn no_tpm(site: &mut Site) -> Result<()> {
    site.tpm.stop();
    let outcome = ends(&mut site.local(&["serve"]), 4, &["no TPM"]);
    site.tpm.power_cycle(&site.run)?;
    site.measure_boot()?;
    outcome
}

fn with_config(site: &Site, config: &PathBuf) -> Command {
    let mut command = site
        .segment
        .gw
        .command(&site.desk.program.to_string_lossy());
    command.args(["serve", "--config"]).arg(config);
    command
}

/// The site's configuration with some text exchanged, beside the original.
fn edited(site: &Site, name: &str, edits: &[(&str, &str)]) -> Result<PathBuf> {
    let mut text = fs::read_to_string(site.config())?;
    for (from, to) in edits {
        ensure!(text.contains(from), "the configuration has no {from:?}");
        text = text.replace(from, to);
    }
    let path = site.run.dir().join(format!("{name}.toml"));
    fs::write(&path, text)?;
    Ok(path)
}
