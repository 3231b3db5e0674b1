//! Machines that say they are another one: by address, by serial, by its keys, by a copy of its TPM.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use attest_wire::v1::{Challenge, EkOffer, Hello};
use hw::tpm::NodeTpm as _;

use super::liar::Liar;
use super::scene::{GUARDED, Scene, When};
use crate::exchange::{Connection, say_hello, send_evidence};
use crate::pxe::Stage;
use crate::run::output;
use crate::scenarios::walk::no_certificate;
use crate::sim::{ATTEST, Attested, Machine};

pub fn attack_01_the_address_of_another_machine(scene: &mut Scene<'_>) -> Result<()> {
    // A TPM of its own, the hardware address of the honest machine: it gets that one's lease.
    let mut stranger = Machine::plug(scene.site, 3)?;
    stranger.mac = scene.honest.mac;
    stranger.claims.mac = scene.honest.claims.mac.clone();
    stranger.boot_honestly(scene.site)?;
    waits_as_a_stranger(scene, &mut stranger)
}

pub fn attack_01_an_admitted_machine_with_the_address_of_another(
    liar: &mut Liar<'_, '_>,
) -> Result<()> {
    let mut hello = liar.hello.clone();
    hello.nics[0].mac = liar.scene.honest.claims.mac.clone();
    liar.refused_after(
        &hello,
        "the address of another admitted machine",
        "platform.mac",
        |_, _, _, _| Ok(()),
    )
}

pub fn attack_02_everything_of_another_machine_but_its_tpm(scene: &mut Scene<'_>) -> Result<()> {
    let mut stranger = Machine::plug(scene.site, 4)?;
    stranger.mac = scene.honest.mac;
    stranger.claims = scene.honest.claims.clone();
    stranger.boot_honestly(scene.site)?;
    waits_as_a_stranger(scene, &mut stranger)
}

pub fn attack_02_an_admitted_machine_in_the_case_of_another(liar: &mut Liar<'_, '_>) -> Result<()> {
    let theirs = liar.scene.honest.claims.clone();
    let mut hello = liar.hello.clone();
    hello.platform.serial = theirs.serial;
    hello.platform.uuid = theirs.uuid;
    hello.nics[0].mac = theirs.mac;
    liar.refused_after(
        &hello,
        "serial, UUID and address of another machine",
        "platform.serial",
        |_, _, _, _| Ok(()),
    )
}

/// Leased, not admitted: a claim that no owner has seen, which changes nothing of the honest machine.
fn waits_as_a_stranger(scene: &mut Scene<'_>, stranger: &mut Machine) -> Result<()> {
    let before = scene.machine_of(&scene.honest)?;
    stranger
        .ns
        .ip(&["link", "set", "eth0", "address", &stranger.mac.to_string()])?;
    let lease = stranger.lease(Stage::Attester)?;
    match stranger.attest()? {
        Attested::Pending { code } => ensure!(code == "ek.unknown", "code {code}"),
        other => bail!("{other:?}"),
    }
    // One cable less with this address.
    stranger.ns.ip(&["link", "set", "eth0", "down"])?;
    let claim = scene
        .site
        .desk
        .wait_machine("claim", Duration::from_secs(5), |m| {
            m.state == "pending" && m.macs.contains(&stranger.mac)
        })?;
    ensure!(
        claim.machine != before,
        "the claim is for the honest machine"
    );
    no_certificate(scene.site, &claim.machine)?;
    let owned = scene
        .site
        .desk
        .machines()?
        .into_iter()
        .find(|m| m.machine == before)
        .context("the honest machine is gone")?;
    ensure!(
        owned.state == "admitted",
        "the honest machine is {}",
        owned.state
    );
    let again = scene.honest.lease(Stage::Attester)?;
    ensure!(
        again.addr == lease.addr,
        "{} is not {}: not one client to the server",
        again.addr,
        lease.addr
    );
    scene.honest_passes()?;
    // Nobody has seen it: the owner throws it away.
    let why = ["machine", "withdraw", &claim.machine.0, "--why", "not ours"];
    let (status, out, err) = scene.site.desk.vestibule(&why)?;
    ensure!(status.success(), "withdraw: {status}: {out}{err}");
    match stranger_again(stranger)? {
        Attested::Refused { code, .. } => ensure!(code == "claim.rejected", "code {code}"),
        other => bail!("a rejected claim: {other:?}"),
    }
    scene.honest.lease(Stage::Attester)?;
    scene.honest_passes()
}

fn stranger_again(stranger: &Machine) -> Result<Attested> {
    stranger.ns.ip(&["link", "set", "eth0", "up"])?;
    let outcome = stranger
        .lease(Stage::Attester)
        .and_then(|_| stranger.attest());
    stranger.ns.ip(&["link", "set", "eth0", "down"])?;
    outcome
}

/// What the honest machine's TPM says of its endorsement keys.
fn their_eks(scene: &Scene<'_>) -> Result<Vec<EkOffer>> {
    scene.honest.with_tpm(|tpm| {
        Ok(tpm
            .endorsement_keys()?
            .into_iter()
            .map(|ek| EkOffer {
                public: ek.public.into(),
                cert: ek.cert_nv.map(Into::into),
            })
            .collect())
    })
}

pub fn attack_10_an_ak_of_another_tpm_beside_an_approved_ek(liar: &mut Liar<'_, '_>) -> Result<()> {
    let mut hello = liar.hello.clone();
    hello.eks = their_eks(liar.scene)?;
    let mut connection = Connection::open(ATTEST)?;
    let (challenge, binding) = say_hello(&mut connection, &hello)?
        .map_err(|refusal| anyhow::anyhow!("hello refused: {}", refusal.code))?;
    let evidence = liar.guessed(&hello, &challenge, &binding)?;
    let result = send_evidence(&mut connection, &evidence)?;
    liar.scene
        .refused("their EK, our AK", "ak.activation", When::Unproven, &result)
}

pub fn attack_38_the_gateway_is_no_oracle_for_credentials(liar: &mut Liar<'_, '_>) -> Result<()> {
    // A challenge for a known EK and one for an unknown one look the same.
    let mut known = liar.hello.clone();
    known.eks = their_eks(liar.scene)?;
    let stranger = Machine::plug(liar.scene.site, 5)?;
    let mut unknown = liar.hello.clone();
    unknown.eks = stranger.with_tpm(|tpm| {
        let keys = tpm.endorsement_keys()?.into_iter();
        let offer = |ek: hw::tpm::EndorsementKey| EkOffer {
            public: ek.public.into(),
            cert: ek.cert_nv.map(Into::into),
        };
        Ok(keys.map(offer).collect())
    })?;
    drop(stranger);
    let (for_known, for_unknown) = (challenged(&known)?, challenged(&unknown)?);
    ensure!(
        shape(&for_known) == shape(&for_unknown),
        "known {:?}, unknown {:?}",
        shape(&for_known),
        shape(&for_unknown)
    );
    // It opens in neither TPM: not in the one without the EK, not in the one without the AK.
    liar.opens_nothing(&known, &for_known)?;
    liar.scene.honest.with_tpm(|tpm| {
        tpm.endorsement_keys()?;
        tpm.create_ak([7; 64])?;
        for credential in &for_known.credentials {
            let ek = &known.eks[usize::from(credential.ek)].public.0;
            let opened = tpm.activate(ek, &credential.blob.0, &credential.secret.0);
            ensure!(opened.is_err(), "a credential opened for another AK's Name");
        }
        Ok(())
    })?;
    // And what it was made for ends as every other guess.
    attack_10_an_ak_of_another_tpm_beside_an_approved_ek(liar)
}

fn challenged(hello: &Hello) -> Result<Challenge> {
    let mut connection = Connection::open(ATTEST)?;
    say_hello(&mut connection, hello)?
        .map(|(challenge, _)| challenge)
        .map_err(|refusal| anyhow::anyhow!("hello refused: {}", refusal.code))
}

/// Credentials by EK and size.
fn shape(challenge: &Challenge) -> Vec<(u8, usize, usize)> {
    let credentials = challenge.credentials.iter();
    credentials
        .map(|c| (c.ek, c.blob.0.len(), c.secret.0.len()))
        .collect()
}

pub fn attack_25_two_machines_claim_one_ek(liar: &mut Liar<'_, '_>) -> Result<()> {
    let mut hello = liar.hello.clone();
    hello.eks.extend(their_eks(liar.scene)?);
    liar.hello_refused("our EKs and theirs", "ek.ambiguous", &hello)?;
    // Nor can the owner's inventory say so.
    let site = liar.scene.site;
    let ek = liar.scene.site.desk.machines()?;
    let ek = &ek
        .iter()
        .find_map(|m| m.ek_names.first())
        .context("no EK")?
        .0;
    let twice = |name: &str| {
        format!(
            "[[machine]]\nname = \"{name}\"\nserial = \"{name}\"\nek_names = [\"{ek}\"]\nclass = \"x\"\n"
        )
    };
    let text = format!("version = 1\n{}{}", twice("one"), twice("two"));
    let file = site.run.dir().join("inventory-twice.toml");
    std::fs::write(&file, text)?;
    let config = std::fs::read_to_string(site.config())?;
    let other = site.run.dir().join("vestibule-twice.toml");
    std::fs::write(
        &other,
        config.replace("inventory.toml", "inventory-twice.toml"),
    )?;
    let mut check = site
        .segment
        .gw
        .command(&site.desk.program.to_string_lossy());
    check.args(["config", "check", "--config"]).arg(&other);
    let (status, out, err) = crate::run::attempt(&mut check, Duration::from_secs(20))?;
    ensure!(
        status.code() == Some(2) && format!("{out}{err}").contains("which one has already"),
        "an EK declared twice: {status}: {out}{err}"
    );
    Ok(())
}

pub fn attack_26_a_cloned_tpm_on_two_hosts_at_once(scene: &mut Scene<'_>) -> Result<()> {
    let mut original = Machine::plug(scene.site, 6)?;
    original.boot_honestly(scene.site)?;
    original.lease(Stage::Attester)?;
    match original.attest()? {
        Attested::Pending { .. } => {}
        other => bail!("{other:?}"),
    }
    scene.approve(&original, &["--class", GUARDED])?;
    admitted("the original", &original)?;
    // Its state is copied while it is off, and both go on.
    original.tpm.stop();
    let mut clone = Machine::plug_with_tpm(scene.site, 7, 6)?;
    clone.claims = original.claims.clone();
    clone.tpm.stop();
    let dir = |name: &str| scene.site.run.dir().join(format!("tpm-{name}"));
    let mut copy = std::process::Command::new("cp");
    copy.arg("-a").arg(dir("n6").join(".")).arg(dir("n7"));
    output(&mut copy, Duration::from_secs(10))?;
    original.boot_honestly(scene.site)?;
    clone.boot_honestly(scene.site)?;
    clone.lease(Stage::Attester)?;
    admitted("the original after its copy was made", &original)?;
    // The counters of both are the same now; what the first left in PCR 15 is not.
    cloned(scene, &clone, "freshness.clone")?;
    admitted("the original beside its clone", &original)?;
    // The original boots once more: the clone's counters are behind.
    original.boot_honestly(scene.site)?;
    admitted("the original after another boot", &original)?;
    cloned(scene, &clone, "freshness.cleared")?;
    admitted("the original in the end", &original)
}

fn admitted(what: &str, machine: &Machine) -> Result<()> {
    match machine.attest()? {
        Attested::Admitted { .. } => Ok(()),
        other => bail!("{what}: {other:?}"),
    }
}

fn cloned(scene: &mut Scene<'_>, clone: &Machine, code: &'static str) -> Result<()> {
    match clone.attest()? {
        Attested::Refused {
            code: told,
            correlation,
            ..
        } => scene.refused_as("the clone", code, When::Proven, &told, &correlation),
        other => bail!("the clone, expected {code}: {other:?}"),
    }
}
