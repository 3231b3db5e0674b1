//! Installing under a grant on simulated machines: the attester's own installer writes files in place of
//! disks, against the running daemon; and what liars try with grants and reports (rows 29 to 32 of the
//! liars' suite).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use attest_wire::v1::Bytes;
use attest_wire::v1::handover::{
    Grant, GrantBody, IMAGE_PATH, InstallStep, PROGRESS_PATH, Progress, ProgressAnswer,
    ProgressBody, progress_digest,
};
use attester::install::disk::{Roots, find};
use attester::install::grant::{Used, check};
use attester::install::link::{Link, own};
use attester::install::package::Package;
use attester::install::{InstallError, install};
use gateway_core::identity::MachineId;
use gateway_core::record::Record;
use hw::tpm::{NodeDevice, NodeTpm as _};

use crate::efi_disk;
use crate::exchange::Connection;
use crate::report::Report;
use crate::sim::{ATTEST, Admitted, Attested, Machine};
use crate::site::{Options, Site};

/// Name of the disk image.
pub const IMAGE: &str = "worker";
/// Refusals of unproven nodes are summed up once a minute.
const SUMMED: Duration = Duration::from_secs(80);
const DISK_BYTES: usize = 32 << 20;
/// Life of a grant where its end is waited for.
const SHORT_SECS: u64 = 10;

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made.
pub fn run(report: &Report) -> Result<()> {
    let mut site = Site::prepare("install", Options::default())?;
    let image = add_image(&site, 0)?;
    site.serve()?;
    let mut machine = Machine::plug(&site, 1)?;
    let id = admit(&site, &mut machine)?;
    let mut scene = Scene {
        site,
        image,
        machine,
        id,
        codes: Vec::new(),
    };
    report.check(
        "a packed image is installed, the package is in its place, the ledger tells it",
        honest(&mut scene),
    );
    for (name, attack) in [
        (
            "29 grant replayed, for another disk, another boot, after withdrawal",
            attack_29_grant as fn(&mut Scene) -> Result<()>,
        ),
        ("29 grant after its expiry", attack_29_expired),
        ("30 two disks with one serial", attack_30_two_disks),
        (
            "31 progress forged, reordered, replayed",
            attack_31_progress,
        ),
        (
            "32 erase report and image for an unattested node",
            attack_32_unattested,
        ),
    ] {
        report.check(name, attack(&mut scene));
    }
    report.check(
        "each refusal of a report stands in the ledger",
        in_ledger(&scene),
    );
    if !report.failures().is_empty() {
        report.note(format!(
            "logs kept in {}",
            scene.site.run.keep_logs().display()
        ));
    }
    Ok(())
}

/// Puts a bootable disk into the site's catalogue, packed; the bytes as they are written.
///
/// # Errors
/// A tool is missing.
pub fn add_image(site: &Site, free_mib: usize) -> Result<Vec<u8>> {
    let raw = site.run.dir().join("worker.raw");
    efi_disk::write_gpt(&raw, free_mib)?;
    let packed = site.run.dir().join("worker.raw.zst");
    let mut zstd = std::process::Command::new("zstd");
    zstd.args(["-q", "-f"]).arg(&raw).arg("-o").arg(&packed);
    let file = match crate::run::output(&mut zstd, Duration::from_secs(60)) {
        Ok(_) => &packed,
        Err(_) => &raw,
    };
    site.add_disk(file, IMAGE, 1)?;
    Ok(fs::read(&raw)?)
}

struct Scene {
    site: Site,
    image: Vec<u8>,
    machine: Machine,
    id: MachineId,
    /// Codes of refused reports, to be found in the ledger.
    codes: Vec<&'static str>,
}

/// The machine walks in and is approved with its disk.
///
/// # Errors
/// A step of it.
pub fn admit(site: &Site, machine: &mut Machine) -> Result<MachineId> {
    machine.boot_honestly(site)?;
    machine.netboot()?;
    let claim = machine.attest()?;
    ensure!(matches!(claim, Attested::Pending { .. }), "{claim:?}");
    let view = site
        .desk
        .wait_machine("claim", Duration::from_secs(5), |m| {
            m.state == "pending" && m.macs.contains(&machine.mac)
        })?;
    let disk = machine.claims.disk_serial.clone().context("no disk")?;
    let id = view.machine;
    vestibule(
        site,
        &[
            "machine",
            "approve",
            &id.0,
            "--compared",
            "console",
            "--disk-serial",
            &disk,
        ],
    )?;
    Ok(id)
}

/// A command of the owner.
///
/// # Errors
/// It is refused.
pub fn vestibule(site: &Site, args: &[&str]) -> Result<()> {
    let (status, out, err) = site.desk.vestibule(args)?;
    ensure!(status.success(), "{args:?}: {status}: {out}{err}");
    Ok(())
}

/// What the ledger tells of the installations of a machine, in order.
///
/// # Errors
/// It cannot be read.
pub fn story(site: &Site, id: &MachineId) -> Result<Vec<String>> {
    let ledger = site.desk.ledger()?;
    let told = ledger.iter().filter_map(|entry| match &entry.record {
        Record::Run(run) if run.machine == *id => Some("run".to_owned()),
        Record::Grant(grant) if grant.machine == *id => Some(format!("grant {}", grant.attempt)),
        Record::Progress(said) if said.machine == *id => Some(said.step.as_str().to_owned()),
        Record::RunEnd(end) if end.machine == *id => Some(format!("end {}", end.outcome.as_str())),
        _ => None,
    });
    Ok(told.collect())
}

impl Scene {
    fn begin(&self, more: &[&str]) -> Result<()> {
        let args = [&["machine", "install", &self.id.0, "--image", IMAGE], more].concat();
        vestibule(&self.site, &args)
    }

    fn cancel(&self) -> Result<()> {
        let args = [
            "machine",
            "install-cancel",
            &self.id.0,
            "--why",
            "the next lie",
        ];
        vestibule(&self.site, &args)
    }

    /// Cuts the power, boots from the network and attests; `f` has the TPM and what came.
    fn boot<T: Send>(
        &mut self,
        f: impl FnOnce(&mut NodeDevice, &attester::Node, &attester::Gateway, Admitted) -> Result<T>
        + Send,
    ) -> Result<T> {
        self.machine.boot_honestly(&self.site)?;
        self.machine.admitted(f)
    }

    /// sysfs, /dev and the disks of a machine: name, serial.
    fn disks(&self, name: &str, disks: &[(&str, &str)]) -> Result<Roots> {
        let folder = self.site.run.dir().join(format!("disks-{name}"));
        let roots = Roots {
            block: folder.join("block"),
            dev: folder.join("dev"),
            mounts: folder.join("mounts"),
        };
        fs::create_dir_all(&roots.dev)?;
        fs::write(&roots.mounts, "")?;
        for (disk, serial) in disks {
            let dir = roots.block.join(disk);
            fs::create_dir_all(&dir)?;
            fs::write(dir.join("serial"), serial)?;
            fs::write(dir.join("ro"), "0")?;
            fs::write(roots.dev.join(disk), vec![0x5a; DISK_BYTES])?;
        }
        Ok(roots)
    }

    fn serial(&self) -> String {
        self.machine.claims.disk_serial.clone().unwrap_or_default()
    }

    /// The report was refused with this code.
    fn refused(&mut self, what: &str, code: &'static str, answer: &ProgressAnswer) -> Result<()> {
        ensure!(
            !answer.accepted && answer.code == code,
            "{what}: {} where {code} was due",
            answer.code
        );
        self.codes.push(code);
        Ok(())
    }
}

/// The whole of what the boot program does after its admission.
fn installed(
    tpm: &mut NodeDevice,
    node: &attester::Node,
    gateway: &attester::Gateway,
    came: &Admitted,
    roots: &Roots,
    folder: &Path,
) -> Result<std::result::Result<(), InstallError>> {
    let grant = came.grant.as_ref().context("no grant came")?;
    let pin = attester::pin::Pin::new(&gateway.anchors)?;
    let own = own(tpm, node, attester::output::subject_cn(&came.chain))?;
    let body = check(&pin, grant, &own, &mut Used::default())?;
    attester::output::write(folder, &came.chain, &came.devid, &came.receipt)?;
    let package = Package::from_folder(folder)?;
    let mut link = Link::new(tpm, gateway)?;
    let open = |body: &GrantBody| find(roots, &body.disk_serial, body.image.raw_bytes);
    Ok(install(&body, &package, &mut link, open, &mut |_| {}))
}

fn honest(scene: &mut Scene) -> Result<()> {
    scene.begin(&[])?;
    let serial = scene.serial();
    let roots = scene.disks("honest", &[("vda", &serial), ("vdb", "OTHER")])?;
    let folder = scene.site.run.dir().join("package");
    let before = roots.clone();
    scene.boot(move |tpm, node, gateway, came| {
        Ok(installed(tpm, node, gateway, &came, &before, &folder)??)
    })?;
    let disk = fs::read(roots.dev.join("vda"))?;
    let head = &scene.image[..1 << 20];
    let place = attester::install::package::place(head, scene.image.len() as u64);
    let place = place.map_err(anyhow::Error::msg)?.context("no place")?;
    let (from, to) = (place.from as usize, (place.from + place.length) as usize);
    ensure!(
        disk[..from] == scene.image[..from],
        "the image in front of the package"
    );
    ensure!(
        disk[to..scene.image.len()] == scene.image[to..],
        "the image behind it"
    );
    ensure!(disk[from..].starts_with(b"chain.pem\0"), "the package");
    let other = fs::read(roots.dev.join("vdb"))?;
    ensure!(
        other.iter().all(|byte| *byte == 0x5a),
        "the other disk was written to"
    );
    let view = scene.site.desk.machines()?;
    let view = view
        .iter()
        .find(|m| m.machine == scene.id)
        .context("gone")?;
    ensure!(view.state == "installed", "state {}", view.state);
    ensure!(view.boot == "local disk", "boots {}", view.boot);
    let told = story(&scene.site, &scene.id)?;
    let expected = [
        "run",
        "grant 1",
        "checked",
        "wiped",
        "written",
        "configured",
        "verified",
        "end verified",
    ];
    ensure!(told == expected, "the ledger tells {told:?}");
    // A new boot gets nothing without the owner, who has to say "again".
    ensure!(
        scene.begin(&[]).is_err(),
        "an installed machine is not written over"
    );
    let grant = scene.boot(|_, _, _, came| Ok(came.grant))?;
    ensure!(grant.is_none(), "a grant without a run");
    Ok(())
}

fn body_of(grant: &Grant) -> Result<GrantBody> {
    Ok(serde_json::from_slice(&grant.body.0)?)
}

fn said(grant: &str, seq: u32, step: InstallStep) -> ProgressBody {
    ProgressBody {
        grant: grant.to_owned(),
        seq,
        step,
        sha256: String::new(),
        detail: "in a liar's words".to_owned(),
    }
}

/// Signs with the DevID of this boot and sends; in the machine's namespace already.
fn send(tpm: &mut NodeDevice, said: &ProgressBody) -> Result<ProgressAnswer> {
    let body = serde_json::to_vec(said)?;
    let sig = tpm.sign_devid(&progress_digest(&body))?;
    post(body, sig)
}

fn post(body: Vec<u8>, sig: Vec<u8>) -> Result<ProgressAnswer> {
    let progress = Progress {
        body: Bytes(body),
        sig: Bytes(sig),
    };
    let sent = serde_json::to_vec(&progress)?;
    let (_, answer) = Connection::open(ATTEST)?.post(PROGRESS_PATH, &sent)?;
    serde_json::from_slice(&answer)
        .with_context(|| format!("answer {}", String::from_utf8_lossy(&answer)))
}

fn fetch(sha256: &str) -> Result<(u16, String)> {
    let (status, body) = Connection::open(ATTEST)?.get_first(&format!("{IMAGE_PATH}{sha256}"))?;
    let told = serde_json::from_slice::<ProgressAnswer>(&body);
    Ok((
        status,
        told.map_or_else(|_| String::new(), |told| told.code),
    ))
}

/// Row 29: the installer and the gateway each refuse what is theirs to see.
fn attack_29_grant(scene: &mut Scene) -> Result<()> {
    scene.begin(&["--again"])?;
    // The same boot, the same grant: once.
    let serial = scene.serial();
    let old = scene.boot(|tpm, node, gateway, came| {
        let grant = came.grant.context("no grant")?;
        let pin = attester::pin::Pin::new(&gateway.anchors)?;
        let own = own(tpm, node, attester::output::subject_cn(&came.chain))?;
        let mut used = Used::default();
        let body = check(&pin, &grant, &own, &mut used)?;
        ensure!(body.disk_serial == serial, "for disk {}", body.disk_serial);
        let again = check(&pin, &grant, &own, &mut used)
            .err()
            .context("taken twice")?;
        ensure!(again.code == "grant.replayed", "{again}");
        // Another disk, in a grant that nobody signed.
        let mut other = body.clone();
        other.disk_serial = "OTHER".to_owned();
        let forged = Grant {
            body: Bytes(serde_json::to_vec(&other)?),
            ..grant.clone()
        };
        let refused = check(&pin, &forged, &own, &mut Used::default()).err();
        let refused = refused.context("a forged grant was taken")?;
        ensure!(refused.code == "grant.signature", "{refused}");
        // A receipt is no grant, whatever it says.
        let receipt = Grant {
            body: came.receipt.body.clone(),
            sig: came.receipt.sig.clone(),
            chain: came.receipt.chain.clone(),
        };
        let refused = check(&pin, &receipt, &own, &mut Used::default()).err();
        ensure!(
            refused.is_some_and(|r| r.code == "grant.signature"),
            "a receipt was taken"
        );
        let late = attester::install::grant::Own {
            clock_ms: body.clock_max_ms,
            ..own.clone()
        };
        let refused = check(&pin, &grant, &late, &mut Used::default()).err();
        ensure!(
            refused.is_some_and(|r| r.code == "grant.expired"),
            "a late grant was taken"
        );
        Ok(grant)
    })?;
    // Another boot: the installer sees it by its TPM, the gateway by its records.
    let stolen = old.clone();
    let answer = scene.boot(move |tpm, node, gateway, came| {
        let pin = attester::pin::Pin::new(&gateway.anchors)?;
        let own = own(tpm, node, attester::output::subject_cn(&came.chain))?;
        let refused = check(&pin, &stolen, &own, &mut Used::default()).err();
        ensure!(
            refused.is_some_and(|r| r.code == "grant.other_boot"),
            "taken in another boot"
        );
        let now = body_of(&came.grant.context("no grant")?)?;
        let before = body_of(&stolen)?;
        ensure!(
            now.grant != before.grant && now.run == before.run,
            "not a grant of its own"
        );
        // The DevID of the earlier boot is gone with it: its grant can be reported on by nobody.
        send(tpm, &said(&before.grant, 1, InstallStep::Checked))
    })?;
    scene.refused(
        "a report under the grant of another boot",
        "progress.signature",
        &answer,
    )?;
    // Withdrawn while its grant is live.
    let id = scene.id.clone();
    let site = &scene.site;
    let withdraw = || vestibule(site, &["machine", "cordon", &id.0]);
    let (answer, fetched) = scene.machine.admitted(|tpm, _, _, came| {
        let body = body_of(&came.grant.context("no grant")?)?;
        ensure!(fetch(&body.image.sha256)?.0 == 206, "a live grant fetches");
        let (wrong, code) = fetch(&"00".repeat(32))?;
        ensure!(
            (wrong, code.as_str()) == (403, "grant.image"),
            "another image: {wrong} {code}"
        );
        withdraw()?;
        let answer = send(tpm, &said(&body.grant, 1, InstallStep::Checked))?;
        Ok((answer, fetch(&body.image.sha256)?))
    })?;
    scene.refused(
        "a report of a machine that is held",
        "machine.state",
        &answer,
    )?;
    ensure!(
        fetched == (403, "machine.state".to_owned()),
        "fetched {fetched:?}"
    );
    vestibule(&scene.site, &["machine", "uncordon", &scene.id.0])?;
    scene.cancel()
}

fn attack_29_expired(scene: &mut Scene) -> Result<()> {
    scene.site.stop()?;
    let path = scene.site.config();
    let before = fs::read_to_string(&path)?;
    fs::write(
        &path,
        format!("{before}[install]\ngrant_secs = {SHORT_SECS}\n"),
    )?;
    scene.site.serve()?;
    scene.begin(&[])?;
    let (answer, fetched) = scene.boot(|tpm, _, _, came| {
        let body = body_of(&came.grant.context("no grant")?)?;
        ensure!(fetch(&body.image.sha256)?.0 == 206, "a live grant fetches");
        std::thread::sleep(Duration::from_secs(SHORT_SECS + 1));
        let answer = send(tpm, &said(&body.grant, 1, InstallStep::Checked))?;
        Ok((answer, fetch(&body.image.sha256)?))
    })?;
    scene.refused("a beginning after the expiry", "grant.expired", &answer)?;
    ensure!(
        fetched == (403, "grant.expired".to_owned()),
        "fetched {fetched:?}"
    );
    scene.site.stop()?;
    fs::write(&path, before)?;
    scene.site.serve()?;
    scene.cancel()
}

/// Row 30: the installer looks itself, whatever the hello showed; the failure waits for the owner.
fn attack_30_two_disks(scene: &mut Scene) -> Result<()> {
    scene.begin(&[])?;
    let serial = scene.serial();
    let roots = scene.disks("two", &[("vda", &serial), ("vdb", &serial)])?;
    let folder = scene.site.run.dir().join("package");
    let (given, into) = (roots.clone(), folder.clone());
    let outcome = scene.boot(move |tpm, node, gateway, came| {
        installed(tpm, node, gateway, &came, &given, &into)
    })?;
    match outcome {
        Err(InstallError::Refused(refused)) if refused.code == "disk.ambiguous" => {}
        other => bail!("two disks with one serial: {other:?}"),
    }
    for disk in ["vda", "vdb"] {
        let bytes = fs::read(roots.dev.join(disk))?;
        ensure!(
            bytes.iter().all(|byte| *byte == 0x5a),
            "{disk} was written to"
        );
    }
    let told = story(&scene.site, &scene.id)?;
    let last = told.get(told.len().saturating_sub(2)..).unwrap_or_default();
    ensure!(
        last == ["failed", "end failed"],
        "the ledger tells {told:?}"
    );
    let grant = scene.boot(|_, _, _, came| Ok(came.grant))?;
    ensure!(
        grant.is_none(),
        "a failure was tried again without the owner"
    );
    vestibule(&scene.site, &["machine", "install-retry", &scene.id.0])?;
    fs::remove_dir_all(roots.block.join("vdb"))?;
    scene.boot(move |tpm, node, gateway, came| {
        Ok(installed(tpm, node, gateway, &came, &roots, &folder)??)
    })?;
    Ok(())
}

/// Row 31.
fn attack_31_progress(scene: &mut Scene) -> Result<()> {
    scene.begin(&["--again"])?;
    let answers = scene.boot(|tpm, _, _, came| {
        let body = body_of(&came.grant.context("no grant")?)?;
        let g = body.grant.as_str();
        let mut answers = Vec::new();
        let mut lie = |what, code, answer: Result<ProgressAnswer>| {
            answers.push((what, code, answer?));
            anyhow::Ok(())
        };
        let checked = said(g, 1, InstallStep::Checked);
        let text = serde_json::to_vec(&checked)?;
        let software = crate::exchange::SoftwareKey::generate();
        let message = [attest_wire::v1::handover::PROGRESS_LABEL, &text].concat();
        lie(
            "signed by another key",
            "progress.signature",
            post(text.clone(), software.sign(&message)?),
        )?;
        let raw: [u8; 32] = sha2::Digest::finalize(sha2::Digest::chain_update(
            <sha2::Sha256 as sha2::Digest>::new(),
            &text,
        ))
        .into();
        lie(
            "signed without its label",
            "progress.signature",
            post(text, tpm.sign_devid(&raw)?),
        )?;
        lie(
            "out of order",
            "progress.order",
            send(tpm, &said(g, 1, InstallStep::Verified)),
        )?;
        lie(
            "a number left out",
            "progress.order",
            send(tpm, &said(g, 2, InstallStep::Checked)),
        )?;
        ensure!(send(tpm, &checked)?.accepted, "the honest report");
        ensure!(send(tpm, &checked)?.accepted, "its identical repeat");
        let mut other = checked;
        other.detail = "another".to_owned();
        lie(
            "the same number again",
            "progress.replayed",
            send(tpm, &other),
        )?;
        lie(
            "a step left out",
            "progress.order",
            send(tpm, &said(g, 2, InstallStep::Configured)),
        )?;
        for (step, seq) in [
            InstallStep::Wiped,
            InstallStep::Written,
            InstallStep::Configured,
        ]
        .into_iter()
        .zip(2..)
        {
            ensure!(
                send(tpm, &said(g, seq, step))?.accepted,
                "{}",
                step.as_str()
            );
        }
        let mut wrong = said(g, 5, InstallStep::Verified);
        wrong.sha256 = "11".repeat(32);
        lie(
            "another disk than granted",
            "progress.digest",
            send(tpm, &wrong),
        )?;
        Ok(answers)
    })?;
    for (what, code, answer) in &answers {
        scene.refused(what, code, answer)?;
    }
    let told = story(&scene.site, &scene.id)?;
    ensure!(
        !told.ends_with(&["end verified".to_owned()]),
        "a lie verified the disk"
    );
    scene.cancel()
}

/// Row 32: a machine that nobody has admitted reports an erased disk and asks for the image.
fn attack_32_unattested(scene: &mut Scene) -> Result<()> {
    scene.begin(&[])?;
    let body = scene.boot(|_, _, _, came| body_of(&came.grant.context("no grant")?))?;
    let mut stranger = Machine::plug(&scene.site, 2)?;
    stranger.boot_honestly(&scene.site)?;
    stranger.netboot()?;
    let claim = stranger.attest()?;
    ensure!(matches!(claim, Attested::Pending { .. }), "{claim:?}");
    let (known, unknown, fetched) = stranger.with_tpm(|tpm| {
        tpm.create_devid(hw::tpm::DevIdKind::EccP256, None)?;
        let known = send(tpm, &said(&body.grant, 1, InstallStep::Wiped))?;
        let unknown = send(tpm, &said(&"5a".repeat(16), 1, InstallStep::Wiped))?;
        Ok((known, unknown, fetch(&body.image.sha256)?))
    })?;
    scene.refused(
        "a report under another machine's grant",
        "progress.signature",
        &known,
    )?;
    scene.refused("a report under a made-up grant", "grant.unknown", &unknown)?;
    ensure!(
        fetched == (403, "grant.unknown".to_owned()),
        "fetched {fetched:?}"
    );
    scene.cancel()
}

fn in_ledger(scene: &Scene) -> Result<()> {
    let started = Instant::now();
    loop {
        let ledger = scene.site.desk.ledger()?;
        let summed = |code: &str| {
            ledger.iter().any(|entry| {
                matches!(&entry.record, Record::RefusalSummary(sum) if sum.last.code == code)
            })
        };
        let missing: Vec<&&str> = scene.codes.iter().filter(|code| !summed(code)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        ensure!(started.elapsed() < SUMMED, "no record of {missing:?}");
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Path of the file that a scenario keeps a VM's disk in.
pub fn blank_disk(site: &Site, name: &str, bytes: u64) -> Result<PathBuf> {
    let path = site.run.dir().join(name);
    fs::File::create(&path)?.set_len(bytes)?;
    Ok(path)
}
