//! Two admitted machines that boot Talos, played by doubles: their disk keys at the KMS, their machine
//! config by the device flow, and what neither gets.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use gateway_core::identity::MachineId;
use gateway_core::record::{Record, TalosEvent};

use crate::pxe::Stage;
use crate::report::Report;
use crate::run::{attempt, output};
use crate::sim::{Attested, Machine};
use crate::site::{Options, Site};
use crate::talos::{MetalDouble, Told, Variables, kms_call, kms_double};

const LIMIT: Duration = Duration::from_secs(20);
const CONFIG: &str = r#"[talos]
template = "{dir}/talos.yaml"
schema = "{dir}/talos.schema.json"
values = ["cluster=lab", "role=worker"]
[talos.kms]
port = 4050
[talos.device]
client_id = "vestibule"
"#;
const TEMPLATE: &str = r#"version: v1alpha1
machine:
  type: {{ role }}
  network:
    hostname: "{{ machine }}"
  nodeLabels:
    address: '{{ address }}'
    serial: '{{ serial }}'
cluster:
  clusterName: {{ cluster }}
---
apiVersion: v1alpha1
kind: VolumeConfig
name: STATE
"#;
/// In the shape of Talos' own file and in its keywords; Talos' is the operator's to supply.
const SCHEMA: &str = r##"{
"$schema": "https://json-schema.org/draft/2020-12/schema",
"$defs": {
  "Config": {"type": "object", "additionalProperties": false, "properties": {
    "version": {"enum": ["v1alpha1"]}, "cluster": {"type": "object"},
    "machine": {"type": "object", "additionalProperties": false, "properties": {
      "type": {"enum": ["controlplane", "worker"]}, "network": {"type": "object"},
      "nodeLabels": {"type": "object", "patternProperties": {".*": {"type": "string"}}}}}}},
  "Volume": {"type": "object", "additionalProperties": false, "required": ["apiVersion", "kind"], "properties": {
    "apiVersion": {"enum": ["v1alpha1"]}, "kind": {"enum": ["VolumeConfig"]}, "name": {"type": "string"}}}},
"oneOf": [{"$ref": "#/$defs/Config"}, {"$ref": "#/$defs/Volume"}]}"##;

/// Runs the scenario.
///
/// # Errors
/// The site or a machine cannot be made at all.
pub fn run(report: &Report) -> Result<()> {
    let options = Options {
        talos: Some(CONFIG),
        ..Options::default()
    };
    let mut site = Site::prepare("talos", options)?;
    fs::write(site.run.dir().join("talos.yaml"), TEMPLATE)?;
    fs::write(site.run.dir().join("talos.schema.json"), SCHEMA)?;
    site.serve()?;
    let one = admitted(&site, 1).context("machine 1")?;
    let two = admitted(&site, 2).context("machine 2")?;
    report.check(
        "desk: render and check say what the daemon will",
        desk(&site, &one),
    );
    let disks = disks(report, &site, &one, &two)?;
    configs(report, &site, &one, &two)?;
    if let Some(disks) = disks {
        report.check(
            "a withdrawn machine's disks stay shut (crypto-withdrawal)",
            withdrawn(&site, &one, &two, &disks),
        );
    }
    report.check("the ledger verifies", site.verify_ledger().map(drop));
    Ok(())
}

/// One admitted machine, at its lease.
struct Node {
    machine: Machine,
    id: MachineId,
}

fn admitted(site: &Site, number: usize) -> Result<Node> {
    let mut machine = Machine::plug(site, number)?;
    machine.boot_honestly(site)?;
    machine.lease(Stage::Attester)?;
    match machine.attest()? {
        Attested::Pending { .. } => {}
        other => bail!("before approval: {other:?}"),
    }
    let claim = site
        .desk
        .wait_machine("claim", Duration::from_secs(5), |m| {
            m.state == "pending" && m.macs.contains(&machine.mac)
        })?;
    site.desk.approve(&claim.machine)?;
    match machine.attest()? {
        Attested::Admitted { .. } => {}
        other => bail!("after approval: {other:?}"),
    }
    Ok(Node {
        machine,
        id: claim.machine,
    })
}

fn desk(site: &Site, node: &Node) -> Result<()> {
    let mut render = site.local(&["talos", "render", &node.id.0]);
    render.args(["--address", "10.66.0.9"]);
    let declared = format!(
        "version = 1\n[[machine]]\nname = \"{}\"\nserial = \"LAB-0001\"\nclass = \"worker\"\n",
        node.id
    );
    let before = fs::read_to_string(site.run.dir().join("inventory.toml"))?;
    site.declare(&declared)?;
    let text = output(&mut render, LIMIT);
    site.declare(&before)?;
    let text = text?;
    ensure!(
        text.contains(&format!("hostname: \"{}\"", node.id)),
        "{text}"
    );
    let file = site.run.dir().join("rendered.yaml");
    let schema = site.run.dir().join("talos.schema.json");
    let check = |text: &str| -> Result<(Option<i32>, String)> {
        fs::write(&file, text)?;
        let mut check = std::process::Command::new(&site.desk.program);
        check
            .args(["talos", "check"])
            .arg(&file)
            .arg("--schema")
            .arg(&schema);
        let (status, out, err) = attempt(&mut check, LIMIT)?;
        Ok((status.code(), format!("{out}{err}")))
    };
    let (code, said) = check(&text)?;
    ensure!(code == Some(0), "{said}");
    let (code, said) = check(&text.replace("type: worker", "type: boss"))?;
    ensure!(
        code == Some(1) && said.contains("/machine/type: expected controlplane or worker"),
        "{said}"
    );
    let (code, said) = check(&text.replace("kind: VolumeConfig", "knid: VolumeConfig"))?;
    ensure!(code == Some(2) && said.contains("kind"), "{code:?} {said}");
    Ok(())
}

/// Sealed disk keys of both machines.
struct Disks {
    program: PathBuf,
    keys: [[u8; 32]; 2],
    sealed: [Vec<u8>; 2],
}

fn boot_ca(site: &Site) -> PathBuf {
    site.ca_dir().join("boot-ca.pem")
}

fn call(
    site: &Site,
    program: &Path,
    from: &Node,
    method: &str,
    uuid: &str,
    data: &[u8],
) -> Result<Told> {
    kms_call(
        program,
        &from.machine.ns,
        &boot_ca(site),
        method,
        uuid,
        data,
    )
}

fn refused(told: Told, code: &str) -> Result<()> {
    ensure!(
        told == Told::Refused(code.to_owned()),
        "expected {code}, found {told:?}"
    );
    Ok(())
}

fn disks(report: &Report, site: &Site, one: &Node, two: &Node) -> Result<Option<Disks>> {
    let program = match kms_double()? {
        Ok(program) => program,
        Err(reason) => {
            report.skip(&reason);
            return Ok(None);
        }
    };
    let keys = [[0x11; 32], [0x22; 32]];
    let uuids = [&one.machine.claims.uuid, &two.machine.claims.uuid];
    let mut sealed = [Vec::new(), Vec::new()];
    for (n, node) in [one, two].into_iter().enumerate() {
        match call(site, &program, node, "seal", uuids[n], &keys[n])? {
            Told::Bytes(bytes) => sealed[n] = bytes,
            told => bail!("seal of machine {}: {told:?}", n + 1),
        }
    }
    let unseal =
        |from: &Node, uuid: &str, data: &[u8]| call(site, &program, from, "unseal", uuid, data);
    report.check(
        "a double over grpc-go unseals what it sealed",
        (|| {
            let told = unseal(one, uuids[0], &sealed[0])?;
            ensure!(told == Told::Bytes(keys[0].to_vec()), "{told:?}");
            ensure!(
                sealed[0].len() == 60 && sealed[0] != sealed[1],
                "another length"
            );
            Ok(())
        })(),
    );
    report.check(
        "attack 2: this UUID from another machine's lease",
        unseal(two, uuids[0], &sealed[0]).and_then(|told| refused(told, "PermissionDenied")),
    );
    report.check(
        "attack 1: another machine's disk under its own UUID",
        unseal(two, uuids[1], &sealed[0]).and_then(|told| refused(told, "InvalidArgument")),
    );
    report.check(
        "an unknown UUID is refused like a wrong place, and bytes of another length by their length",
        (|| {
            let unknown = "4c4c4544-0042-3510-8052-b7c04f564433";
            refused(unseal(one, unknown, &sealed[0])?, "PermissionDenied")?;
            refused(unseal(one, uuids[0], &sealed[0][..59])?, "InvalidArgument")
        })(),
    );
    report.check(
        "a cordoned machine's disk stays shut until it is uncordoned",
        (|| {
            act(site, "cordon", &one.id)?;
            let held = unseal(one, uuids[0], &sealed[0])?;
            act(site, "uncordon", &one.id)?;
            refused(held, "PermissionDenied")?;
            let told = unseal(one, uuids[0], &sealed[0])?;
            ensure!(told == Told::Bytes(keys[0].to_vec()), "{told:?}");
            Ok(())
        })(),
    );
    Ok(Some(Disks {
        program,
        keys,
        sealed,
    }))
}

fn act(site: &Site, what: &str, id: &MachineId) -> Result<()> {
    output(&mut site.desk.command(&["machine", what, &id.0]), LIMIT).map(drop)
}

fn code_of(site: &Site, node: &Node) -> Result<String> {
    let mut command = site.desk.command(&["talos", "code", &node.id.0]);
    Ok(output(&mut command, LIMIT)?.trim().to_owned())
}

fn double(site: &Site, node: &Node, code: &str) -> MetalDouble {
    let variables = Variables {
        uuid: node.machine.claims.uuid.clone(),
        mac: node.machine.mac.to_string(),
        code: code.to_owned(),
    };
    MetalDouble::new(&boot_ca(site), variables)
}

fn configs(report: &Report, site: &Site, one: &Node, two: &Node) -> Result<()> {
    let codes = [code_of(site, one)?, code_of(site, two)?];
    let mut good = double(site, one, &codes[0]);
    let mut guess = double(site, two, "a-code-that-was-guessed");
    one.machine.ns.enter(|| good.begin())?;
    two.machine.ns.enter(|| guess.begin())?;
    std::thread::sleep(good.interval());
    report.check(
        "attack 3: a guessed code, and the URL alone, get nothing",
        (|| {
            let error = two.machine.ns.enter(|| guess.poll())?;
            ensure!(error.as_deref() == Some("access_denied"), "{error:?}");
            let response = two.machine.ns.enter(|| guess.fetch())?;
            ensure!(response.status == 403, "{}", response.status);
            let console = guess.console.join("\n");
            ensure!(console.contains("await approval"), "{console}");
            Ok(())
        })(),
    );
    report.check(
        "the code of the admitted boot gets this machine's config, and no other",
        (|| {
            let error = one.machine.ns.enter(|| good.poll())?;
            ensure!(error.is_none(), "{error:?}");
            // A bearer that somebody read is of no use elsewhere.
            let mut copied = double(site, two, "");
            copied.bearer.clone_from(&good.bearer);
            let elsewhere = two.machine.ns.enter(|| copied.fetch())?;
            ensure!(elsewhere.status == 403, "{}", elsewhere.status);
            let response = one.machine.ns.enter(|| good.fetch())?;
            let text = String::from_utf8(response.body)?;
            ensure!(response.status == 200, "{} {text}", response.status);
            ensure!(
                text.contains(&format!("hostname: \"{}\"", one.id)) && text.contains("LAB-0001"),
                "{text}"
            );
            Ok(())
        })(),
    );
    let mut thief = double(site, one, &codes[1]);
    let mut again = double(site, one, &codes[0]);
    one.machine.ns.enter(|| thief.begin())?;
    one.machine.ns.enter(|| again.begin())?;
    std::thread::sleep(thief.interval());
    report.check(
        "attack 1: a stolen code at another machine's address is refused, alarms and withdraws",
        misused(site, one, two, &mut thief, "another machine"),
    );
    report.check(
        "a second use of a code is refused, alarms and withdraws",
        misused(site, one, one, &mut again, "after the config"),
    );
    report.check(
        "nothing secret in a URL, on a console, in the log or in the ledger",
        (|| {
            let ledger = serde_json::to_string(&site.desk.ledger()?)?;
            let consoles = [good.console, thief.console, again.console]
                .concat()
                .join("\n");
            let bearer = good.bearer.context("no bearer")?;
            for secret in [&codes[0], &codes[1], &bearer, &hex::encode([0x11; 32])] {
                for (place, text) in [
                    ("log", &site.log()),
                    ("ledger", &ledger),
                    ("console", &consoles),
                ] {
                    ensure!(!text.contains(secret.as_str()), "a secret in the {place}");
                }
            }
            Ok(())
        })(),
    );
    Ok(())
}

fn misused(site: &Site, from: &Node, of: &Node, double: &mut MetalDouble, how: &str) -> Result<()> {
    let error = from.machine.ns.enter(|| double.poll())?;
    ensure!(error.as_deref() == Some("access_denied"), "{error:?}");
    let found = site.desk.records(|record| {
        matches!(record, Record::Talos(r) if r.machine == of.id
            && matches!(&r.event, TalosEvent::CodeMisused { how: said } if said.contains(how)))
    })?;
    ensure!(found.len() == 1, "{} records of it", found.len());
    ensure!(
        site.log().contains("talos.code_misused"),
        "no alarm in the log"
    );
    let view = site
        .desk
        .machines()?
        .into_iter()
        .find(|m| m.machine == of.id);
    let state = view.map(|view| view.state);
    ensure!(state.as_deref() == Some("withdrawn"), "{state:?}");
    Ok(())
}

fn withdrawn(site: &Site, one: &Node, two: &Node, disks: &Disks) -> Result<()> {
    for (n, node) in [one, two].into_iter().enumerate() {
        let uuid = &node.machine.claims.uuid;
        let program = &disks.program;
        refused(
            call(site, program, node, "unseal", uuid, &disks.sealed[n])?,
            "PermissionDenied",
        )?;
        refused(
            call(site, program, node, "seal", uuid, &disks.keys[n])?,
            "PermissionDenied",
        )?;
        let found = site.desk.records(|record| {
            matches!(record, Record::Talos(r) if r.machine == node.id
                && matches!(&r.event, TalosEvent::DiskKeyRefused { state } if state == "withdrawn"))
        })?;
        ensure!(found.len() == 1, "{} records of the effect", found.len());
    }
    Ok(())
}
