//! At the door itself: more challenges than one address may hold, and a machine that has no TPM to answer
//! with.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use gateway_core::walk::Step;

use super::scene::Scene;
use crate::exchange::{Connection, Node, say_hello};
use crate::programs;
use crate::pxe::Stage;
use crate::run::attempt;
use crate::sim::{ATTEST, Machine};

/// Attest connections of one address (docs/OPERATIONS.md, bounds).
const HELD: usize = 4;
/// Turned away before a byte was read.
const TURNED_AWAY: &str = "vestibule_connections_refused_total{listener=\"attest\"}";

pub fn attack_37_challenges_that_nobody_answers(scene: &mut Scene<'_>) -> Result<()> {
    let flooder = Machine::plug(scene.site, 8)?;
    flooder.lease(Stage::Attester)?;
    let before = turned_away(scene)?;
    let held = flooder.with_tpm(|tpm| {
        let mut pcr15 = Vec::new();
        let mut node = Node {
            tpm,
            pcr15: &mut pcr15,
            claims: flooder.claims.clone(),
            event_log: Vec::new(),
        };
        let (hello, _) = node.hello()?;
        let mut held = Vec::new();
        for _ in 0..HELD {
            let mut connection = Connection::open(ATTEST)?;
            if let Err(refusal) = say_hello(&mut connection, &hello)? {
                bail!("challenge {}: {}", held.len(), refusal.code);
            }
            held.push(connection);
        }
        ensure!(
            Connection::open(ATTEST).is_err(),
            "a fifth connection of one address was served"
        );
        Ok(held)
    })?;
    let after = turned_away(scene)?;
    ensure!(
        after > before,
        "{before} connections turned away, then {after}"
    );
    scene.honest_passes()?;
    // They are held until the gateway ends them, and that is written down.
    scene.hold(held, flooder);
    Ok(())
}

fn turned_away(scene: &Scene<'_>) -> Result<u64> {
    let (_, text) = scene.site.desk.health("/metrics")?;
    let value = text.lines().find_map(|line| line.strip_prefix(TURNED_AWAY));
    Ok(value.map_or(0, |value| value.trim().parse().unwrap_or(0)))
}

pub fn attack_66_a_tpm_that_the_firmware_switched_off(
    scene: &mut Scene<'_>,
    machine: &mut Machine,
) -> Result<()> {
    let id = scene.machine_of(machine)?;
    machine.tpm.stop();
    machine.netboot()?;
    let mut attester = machine
        .ns
        .command(&programs::find("vestibule-attester")?.to_string_lossy());
    attester
        .args(["attest", "--tcti", crate::swtpm::TCTI, "--gateway"])
        .arg(ATTEST.to_string())
        .arg("--anchor")
        .arg(scene.site.ca_dir().join("infra-ca.pem"));
    let (status, out, err) = attempt(&mut attester, Duration::from_secs(30))?;
    let said = format!("{out}{err}");
    ensure!(status.code() == Some(4), "{status}: {said}");
    for word in ["no TPM", "Switch on the TPM in the firmware setup"] {
        ensure!(said.contains(word), "no {word:?} in {said}");
    }
    // The gateway has seen it boot, and never heard of it again.
    let walk = scene.site.desk.timeline(&id)?;
    let last = |step: Step| {
        walk.iter()
            .filter(|e| e.step == Some(step))
            .map(|e| e.at)
            .max()
    };
    ensure!(
        last(Step::Boot) > last(Step::Hello),
        "boot {:?}, hello {:?}",
        last(Step::Boot),
        last(Step::Hello)
    );
    let owned = scene.site.desk.machines()?;
    let state = owned.iter().find(|m| m.machine == id).map(|m| &*m.state);
    ensure!(state == Some("admitted"), "state {state:?}");
    scene.honest_passes()
}
