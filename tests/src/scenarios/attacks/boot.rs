//! Machines that really booted something else, and say so truthfully: only what ran can give them away.

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

use super::liar::Liar;
use super::scene::{CURRENT, OLD, Scene};
use crate::event_log::{Boot, EventLog};
use crate::exchange::Node;
use crate::sim::Machine;

/// `EV_EFI_ACTION`: what nobody looks at twice.
const EV_EFI_ACTION: u32 = 0x8000_0007;

/// Boots with this log and attests.
fn refused(
    scene: &mut Scene<'_>,
    machine: &mut Machine,
    lie: &str,
    code: &'static str,
    log: EventLog,
) -> Result<()> {
    machine.boot_log(scene.site, log)?;
    attesting(scene, machine, |liar| {
        liar.evidence_refused(lie, code, |_, _, _, _| Ok(()))
    })
}

/// Opens the machine's TPM and makes its keys.
///
/// # Errors
/// The TPM refuses, or what `f` says.
pub fn attesting<T: Send>(
    scene: &mut Scene<'_>,
    machine: &Machine,
    f: impl FnOnce(&mut Liar<'_, '_>) -> Result<T> + Send,
) -> Result<T> {
    let mut pcr15 = Vec::new();
    machine.with_tpm(|tpm| {
        let node = Node {
            tpm,
            pcr15: &mut pcr15,
            claims: machine.claims.clone(),
            event_log: machine.event_log.bytes.clone(),
        };
        f(&mut Liar::new(scene, machine, node)?)
    })
}

/// Boots what the site serves and passes.
///
/// # Errors
/// It does not pass.
pub fn truth_passes(scene: &mut Scene<'_>, machine: &mut Machine) -> Result<()> {
    machine.boot_honestly(scene.site)?;
    attesting(scene, machine, |liar| liar.truth_passes())
}

pub fn attack_17_secure_boot_off(scene: &mut Scene<'_>, machine: &mut Machine) -> Result<()> {
    let boot = Boot {
        secure_boot: false,
        ..scene.site.honest_boot()?
    };
    let log = EventLog::of(&boot);
    refused(scene, machine, "Secure Boot off", "boot.secure_boot", log)
}

pub fn attack_18_an_unknown_authority(scene: &mut Scene<'_>, machine: &mut Machine) -> Result<()> {
    let key = rcgen::KeyPair::generate()?;
    let params = rcgen::CertificateParams::new(vec!["somebody's db key".to_owned()])?;
    let boot = Boot {
        db_cert: params.self_signed(&key)?.der().to_vec(),
        ..scene.site.honest_boot()?
    };
    let log = EventLog::of(&boot);
    refused(
        scene,
        machine,
        "our images vouched for by another key",
        "boot.authority",
        log,
    )
}

pub fn attack_19_an_old_signed_image_below_the_floor(
    scene: &mut Scene<'_>,
    machine: &mut Machine,
) -> Result<()> {
    let floor = CURRENT.to_string();
    owner(scene, &["image", "floor", "attester", &floor])?;
    let log = EventLog::of(&scene.site.boot_of(Some(OLD))?);
    refused(scene, machine, "the old image", "boot.floor", log)?;
    truth_passes(scene, machine)
}

pub fn attack_20_a_withdrawn_image(scene: &mut Scene<'_>, machine: &mut Machine) -> Result<()> {
    // Until then it is as good as the new one.
    let old = scene.site.boot_of(Some(OLD))?;
    machine.boot(scene.site, &old)?;
    attesting(scene, machine, |liar| liar.truth_passes())
        .context("the old image before its withdrawal")?;
    let uki = scene
        .site
        .artefacts()?
        .into_iter()
        .find(|a| a.kind == boot::catalog::Kind::Uki && a.version == OLD)
        .context("no old UKI")?;
    owner(scene, &["image", "withdraw", &uki.sha256])?;
    refused(
        scene,
        machine,
        "the withdrawn image",
        "boot.withdrawn",
        EventLog::of(&old),
    )?;
    truth_passes(scene, machine)
}

fn owner(scene: &Scene<'_>, args: &[&str]) -> Result<()> {
    let (status, out, err) = scene.site.desk.vestibule(args)?;
    ensure!(status.success(), "{args:?}: {status}: {out}{err}");
    Ok(())
}

pub fn attack_21_a_changed_command_line(
    scene: &mut Scene<'_>,
    machine: &mut Machine,
) -> Result<()> {
    let line = "console=ttyS0 init=/bin/sh";
    let honest = scene.site.honest_boot()?;
    let handed = Boot {
        command_line: Some(line.into()),
        ..honest.clone()
    };
    let log = EventLog::of(&handed);
    refused(scene, machine, "handed over by iPXE", "boot.cmdline", log)?;
    // In the UKI itself: its section is measured into PCR 11 by the stub, name and content.
    let mut inside = honest;
    let at = inside
        .stub
        .iter()
        .rposition(|(label, _)| label == ".cmdline");
    let at = at.context("the UKI has no command line")?;
    inside.stub[at].1 = Sha256::digest(line.as_bytes()).into();
    let log = EventLog::of(&inside);
    refused(scene, machine, "inside the UKI", "boot.pcr11", log)
}

pub fn attack_22_an_extra_efi_application(
    scene: &mut Scene<'_>,
    machine: &mut Machine,
) -> Result<()> {
    let honest = scene.site.honest_boot()?;
    let mut before = honest.clone();
    before.images.insert(0, [0x66; 32]);
    refused(
        scene,
        machine,
        "a shell before our iPXE",
        "boot.image",
        EventLog::of(&before),
    )?;
    let mut after = EventLog::of(&honest);
    after.event(
        4,
        EV_EFI_ACTION,
        [0x66; 32],
        b"Calling EFI Application from Boot Option",
    );
    refused(
        scene,
        machine,
        "a tool after our UKI that calls itself an action",
        "boot.image",
        after,
    )?;
    let mut both = honest;
    let old = scene.site.boot_of(Some(OLD))?.images;
    both.images.extend(old.last());
    refused(
        scene,
        machine,
        "a second UKI of the catalogue",
        "boot.uki",
        EventLog::of(&both),
    )
}

pub fn attack_23_the_boot_aggregate_of_another_path(
    scene: &mut Scene<'_>,
    machine: &mut Machine,
) -> Result<()> {
    let honest = scene.site.honest_boot()?;
    // Its own disk: a shim and a boot loader, signed by a key that the firmware trusts.
    let disk = Boot {
        images: vec![[0x51; 32], [0x52; 32]],
        stub: Vec::new(),
        ..honest.clone()
    };
    let log = EventLog::of(&disk);
    refused(scene, machine, "the path by its disk", "boot.image", log)?;
    // The same registers, with the log of the path by the network.
    let ours = EventLog::of(&honest).bytes;
    attesting(scene, machine, |liar| {
        liar.evidence_refused(
            "the path by its disk, shown as that by the network",
            "eventlog.replay",
            |evidence, _, _, _| {
                evidence.event_log = ours.into();
                Ok(())
            },
        )
    })
}
