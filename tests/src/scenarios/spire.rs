//! SPIRE itself: the real server and agents take the LDevIDs while the daemon is down; the registrar
//! keeps entries and agents in line with the machines; a withdrawn machine gets nothing more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use attest_wire::v1::Receipt;
use attester::{DevIdAuth, Options as AttesterOptions};
use gateway_core::identity::MachineId;
use gateway_core::record::{BridgeAct, Record};
use hw::tpm::{DevId, DevIdKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha1::{Digest as _, Sha1};
use sha2::Sha256;

use crate::report::Report;
use crate::run::{attempt, output};
use crate::sim::{Attested, Machine};
use crate::site::{Options, Site};
use crate::spire::{self, Agent, Blobs, Programs, SERVER, Server, TRUST_DOMAIN};

const LIMIT: Duration = Duration::from_secs(30);
/// What the registrar, the server's cache and the agent's next look may take together.
const SOON: Duration = Duration::from_secs(20);
const POLICY: &str = include_str!("../../../docs/spire/vestibule.rego");
/// SPIRE's words for a certificate that is not under `devid_ca_path`, and Go's for one whose key purpose
/// is an OID with an arc of more than 31 bits, as ours are: the agent does not even read those.
const STRANGER: &str = "unable to verify DevID signature: verification failed";
const UNREADABLE: &str = "invalid extended key usages";

/// Runs the scenario.
///
/// # Errors
/// The site, the server or the first admissions fail.
pub fn run(report: &Report) -> Result<()> {
    let programs = match spire::programs()? {
        Ok(programs) => programs,
        Err(why) => {
            report.skip(&why);
            return Ok(());
        }
    };
    let mut site = Site::prepare("spire", Options::default())?;
    let outcome = all(report, &mut site, &programs);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

/// An LDevID with its key.
struct Leaf {
    chain: Vec<Vec<u8>>,
    devid: DevId,
}

impl Leaf {
    /// The name that SPIRE gives its agent.
    fn agent(&self) -> String {
        hex::encode(Sha1::digest(&self.chain[0]))
    }

    fn blobs(&self) -> Blobs<'_> {
        Blobs {
            chain: &self.chain,
            devid: &self.devid,
        }
    }
}

/// The scene: a site, a server, and two machines.
struct Scene<'a> {
    site: &'a mut Site,
    programs: &'a Programs,
    server: Server,
}

impl Scene<'_> {
    fn agent(&self, name: &str, tpm: &Path, leaf: &Leaf) -> Result<Agent> {
        let run = &self.site.run;
        Agent::start(self.programs, &self.server, run, name, tpm, &leaf.blobs())
    }
}

fn all(report: &Report, site: &mut Site, programs: &Programs) -> Result<()> {
    let hashes = site.run.dir().join("ek-hashes");
    fs::create_dir_all(&hashes)?;
    let base = fs::read_to_string(site.config())?;
    let socket = site.run.dir().join("spire/api.sock");
    let by_socket = format!("server = \"unix:{}\"", socket.display());
    configure(site, &base, &by_socket, &hashes)?;
    site.serve()?;
    let mut one = Machine::plug(site, 1)?;
    let (id, first) = admit(site, &mut one, DevIdKind::EccP256, DevIdAuth::None)?;
    let mut two = Machine::plug(site, 2)?;
    let (other_id, other) = admit(site, &mut two, DevIdKind::Rsa2048, DevIdAuth::Random)?;
    report.check("SPIRE is down: the door admits, the counter says so", {
        wait(|| failed_rounds(site))
    });
    report.check("a file for each EK, by the hash of its public key", {
        wait(|| hashed(site, &one, &hashes, true))
            .and_then(|()| wait(|| hashed(site, &two, &hashes, true)))
    });
    let server = server(site, programs)?;
    let mut scene = Scene {
        site,
        programs,
        server,
    };
    scene.server.start(&scene.site.run)?;
    report.check("SPIRE is there: entries of both machines", {
        wait(|| entries(&scene.server, &id, 2)).and_then(|()| entries(&scene.server, &other_id, 2))
    });

    let strangers = strangers(scene.site, &one)?;
    scene.site.stop()?;
    let tpm = one.tpm.on_socket(&scene.site.run)?;
    let mut agent = attests(report, &scene, "P-256, no authValue", &id, &tpm, &first)?;
    report.check("a cold start: the agent attests anew", {
        drop(agent);
        let tpm = one.tpm.on_socket(&scene.site.run)?;
        agent = scene.agent(&id.0, &tpm, &first)?;
        agent.attested().and_then(|()| agent.fetch(SOON).map(drop))
    });
    let other_tpm = two.tpm.on_socket(&scene.site.run)?;
    let what = "RSA-2048, a secret authValue";
    drop(attests(
        report, &scene, what, &other_id, &other_tpm, &other,
    )?);
    report.check("the same blobs under another TPM: TPM_RC_INTEGRITY", {
        let mut agent = scene.agent("cloned", &other_tpm, &first)?;
        agent.refused("integrity check failed")
    });
    for (what, why, der) in strangers {
        report.check(
            &format!("attack 55: {what} certificate as DevID certificate"),
            {
                let leaf = Leaf {
                    chain: vec![der],
                    devid: other.devid.clone(),
                };
                let mut agent = scene.agent(what, &other_tpm, &leaf)?;
                agent.refused(why)
            },
        );
    }
    report.check(
        "attack 55: an LDevID as TLS server and as receipt signer",
        as_server(scene.site, &first),
    );

    by_svid(&scene, &base, &hashes)?;
    scene.site.serve()?;
    report.check("least privilege: the gateway's SVID may not mint SVIDs", {
        may_not_mint(&scene)
    });
    drop(agent);
    one.tpm.power_cycle(&scene.site.run)?;
    let second = renew(scene.site, &mut one)?;
    let unseen = renew(scene.site, &mut one)?;
    let newest = renew(scene.site, &mut one)?;
    let tpm = one.tpm.on_socket(&scene.site.run)?;
    let mut agent = scene.agent(&id.0, &tpm, &newest)?;
    report.check(
        "renewed: the new agent has the workload's SVID through the alias",
        {
            agent.attested().and_then(|()| {
                let svid = agent.fetch(SOON)?;
                belongs(&svid, &scene.server.bundle(), &id)
            })
        },
    );
    report.check("renewed: the agent of the older LDevID is purged", {
        wait(|| {
            let agents = scene.server.agents()?;
            let is = |leaf: &Leaf| agents.iter().any(|(name, _)| *name == leaf.agent());
            ensure!(is(&newest) && !is(&first), "{agents:?}");
            Ok(())
        })
    });

    withdrawn(report, &scene, &id, &one, &hashes, &mut agent, &newest)?;
    report.check(
        "attack 64: a never-seen leaf attests, gets nothing, is banned",
        {
            let tpm = one.tpm.on_socket(&scene.site.run)?;
            let mut agent = scene.agent("unseen", &tpm, &unseen)?;
            agent
                .attested()
                .and_then(|()| {
                    ensure!(agent.fetch(Duration::ZERO).is_err(), "a workload SVID");
                    wait(|| banned(&scene.server, &unseen))
                })
                .and_then(|()| agent.ended(SOON))
        },
    );
    report.check("the other machine keeps its entries", {
        entries(&scene.server, &other_id, 2)
    });
    report.check("after a restart: a leaf that appears is still banned", {
        scene.site.kill();
        scene.site.serve()?;
        let tpm = one.tpm.on_socket(&scene.site.run)?;
        let mut agent = scene.agent("late", &tpm, &second)?;
        agent
            .attested()
            .and_then(|()| wait(|| banned(&scene.server, &second)))
    });
    report.check("the ledger has what SPIRE was told, and verifies", {
        recorded(scene.site, &id)
    });
    Ok(())
}

/// `[spire]` behind the rest of the configuration.
fn configure(site: &Site, base: &str, server: &str, hashes: &Path) -> Result<()> {
    let hashes = hashes.display();
    let text = format!(
        r#"{base}
[spire]
trust_domain = "{TRUST_DOMAIN}"
{server}
sweep_secs = 2
ek_hash_dir = "{hashes}"
[[spire.workload]]
name = "root"
path = "/on/{{machine}}/root"
selectors = ["unix:uid:0"]
[[spire.workload]]
name = "elsewhere"
class = "no-such-class"
path = "/on/{{machine}}/elsewhere"
selectors = ["unix:uid:0"]
"#
    );
    Ok(fs::write(site.config(), text)?)
}

fn server(site: &Site, programs: &Programs) -> Result<Server> {
    let bundle = site.run.dir().join("endorsement_ca.pem");
    let path = bundle.to_string_lossy();
    let (status, out, err) = site.desk.vestibule(&["ek-ca", "export", &path])?;
    ensure!(status.success(), "{out}{err}");
    let device_ca = site.ca_dir().join("device-ca.pem");
    // The gateway reaches it by TCP later: both are in its namespace.
    let ns = &site.segment.gw;
    Server::new(programs, &site.run, ns, &device_ca, &bundle, POLICY)
}

/// Asks again until it holds.
fn wait(mut holds: impl FnMut() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    loop {
        match holds() {
            Ok(()) => return Ok(()),
            Err(error) if started.elapsed() > SOON => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

fn admit(
    site: &Site,
    machine: &mut Machine,
    kind: DevIdKind,
    auth: DevIdAuth,
) -> Result<(MachineId, Leaf)> {
    let options = AttesterOptions {
        devid_kind: kind,
        devid_auth: auth,
        extends_file: None,
        can: Vec::new(),
    };
    machine.boot_honestly(site)?;
    machine.lease(crate::pxe::Stage::Attester)?;
    match machine.attest_with(&options, &mut |_, _| {})? {
        Attested::Pending { .. } => {}
        other => bail!("before approval: {other:?}"),
    }
    let claim = site.desk.wait_machine("claim", LIMIT, |m| {
        m.state == "pending" && m.macs.contains(&machine.mac)
    })?;
    site.desk.approve(&claim.machine)?;
    match machine.attest_with(&options, &mut |_, _| {})? {
        Attested::Admitted { chain, devid, .. } => Ok((claim.machine, Leaf { chain, devid })),
        other => bail!("after approval: {other:?}"),
    }
}

/// Another admission of the same machine, in a boot of its own.
fn renew(site: &Site, machine: &mut Machine) -> Result<Leaf> {
    machine.boot_honestly(site)?;
    machine.lease(crate::pxe::Stage::Attester)?;
    match machine.attest()? {
        Attested::Admitted { chain, devid, .. } => Ok(Leaf { chain, devid }),
        other => bail!("renewal: {other:?}"),
    }
}

fn attests(
    report: &Report,
    scene: &Scene<'_>,
    what: &str,
    id: &MachineId,
    tpm: &Path,
    leaf: &Leaf,
) -> Result<Agent> {
    let started = Instant::now();
    let mut agent = scene.agent(&id.0, tpm, leaf)?;
    report.check(&format!("the daemon is down, {what}: the agent attests"), {
        agent.attested().and_then(|()| {
            let agents = scene.server.agents()?;
            ensure!(agents.contains(&(leaf.agent(), false)), "{agents:?}");
            Ok(())
        })
    });
    report.check(&format!("{what}: a workload gets its X.509-SVID"), {
        agent
            .fetch(SOON)
            .and_then(|svid| belongs(&svid, &scene.server.bundle(), id))
    });
    let secs = started.elapsed().as_secs_f64();
    report.note(format!("{what}: {secs:.1} s from a cold start to the SVID"));
    Ok(agent)
}

/// openssl reads the SVID: under the bundle, for this machine's workload.
fn belongs(svid: &Path, bundle: &Path, id: &MachineId) -> Result<()> {
    let mut verify = Command::new("openssl");
    verify.args(["verify", "-CAfile"]).arg(bundle).arg(svid);
    output(&mut verify, LIMIT)?;
    let mut print = Command::new("openssl");
    print.args(["x509", "-noout", "-ext", "subjectAltName", "-in"]);
    let said = output(print.arg(svid), LIMIT)?;
    let expected = format!("URI:spiffe://{TRUST_DOMAIN}/on/{id}/root");
    ensure!(said.trim_end().ends_with(&expected), "{said}");
    Ok(())
}

/// How many entries name the machine: its alias and what hangs below.
fn entries(server: &Server, id: &MachineId, count: usize) -> Result<()> {
    let all = server.entries()?;
    let marks = [format!("/node/{id}"), format!("/on/{id}/")];
    let of_this = |entry: &&serde_json::Value| {
        let text = entry.to_string();
        marks.iter().any(|mark| text.contains(mark))
    };
    let found = all.iter().filter(of_this).count();
    ensure!(found == count, "{found} entries of {id} in {all:?}");
    Ok(())
}

fn failed_rounds(site: &Site) -> Result<()> {
    let (_, text) = site.desk.health("/metrics")?;
    let failed = "vestibule_spire_rounds_total{outcome=\"failed\"}";
    ensure!(text.contains(failed), "no {failed}");
    Ok(())
}

/// Whether the folder has the file of the machine's RSA EK, by openssl's reading of its certificate.
fn hashed(site: &Site, machine: &Machine, hashes: &Path, expected: bool) -> Result<()> {
    let name = machine.name.clone();
    let (der, spki) = (
        site.run.dir().join(format!("ek-{name}.der")),
        site.run.dir().join(format!("ek-{name}.spki")),
    );
    if !der.exists() {
        let mut read = machine.tpm.tool("tpm2_nvread");
        output(read.arg("0x1c00002").arg("-o").arg(&der), LIMIT)?;
    }
    let mut key = Command::new("openssl");
    key.args(["x509", "-inform", "DER", "-noout", "-pubkey", "-in"]);
    let pem = site.run.dir().join(format!("ek-{name}.pub"));
    fs::write(&pem, output(key.arg(&der), LIMIT)?)?;
    let mut convert = Command::new("openssl");
    convert.args(["pkey", "-pubin", "-outform", "DER", "-in"]);
    output(convert.arg(&pem).arg("-out").arg(&spki), LIMIT)?;
    let file = hashes.join(hex::encode(Sha256::digest(fs::read(&spki)?)));
    ensure!(file.exists() == expected, "{}: {expected}", file.display());
    ensure!(!expected || fs::read(&file)?.is_empty(), "not empty");
    Ok(())
}

/// Certificates of ours that are no LDevIDs: of an administrator, of the attest endpoint, of the ledger.
fn strangers(site: &Site, machine: &Machine) -> Result<Vec<(&'static str, &'static str, Vec<u8>)>> {
    let first = |pem: &Path| -> Result<Vec<u8>> {
        let all = crate::http::certificates(pem)?;
        Ok(all.first().context("no certificate")?.to_vec())
    };
    let mut hello = machine.ns.command("openssl");
    hello.args(["s_client", "-connect"]);
    hello.arg(crate::sim::ATTEST.to_string());
    let (_, said, _) = attempt(&mut hello, LIMIT)?;
    let attest = site.run.dir().join("attest.pem");
    fs::write(&attest, said)?;
    let export = site.run.dir().join("ledger.jsonl");
    let mut command = Command::new(&site.desk.program);
    command.args(["ledger", "export"]).arg(site.state_dir());
    let (status, out, err) = attempt(command.arg("--out").arg(&export), LIMIT)?;
    ensure!(status.success(), "{out}{err}");
    let text = fs::read_to_string(&export)?;
    let last = text.lines().last().context("an empty export")?;
    let last: serde_json::Value = serde_json::from_str(last)?;
    let receipt = last["chain"][0].as_str().context("no chain")?;
    Ok(vec![
        (
            "admin",
            STRANGER,
            first(&site.desk.files.join("owner.pem"))?,
        ),
        ("attest", UNREADABLE, first(&attest)?),
        ("receipt", UNREADABLE, hex::decode(receipt)?),
    ])
}

/// The attester's own pin: an LDevID is not under the infra CA, whoever holds its key.
fn as_server(site: &Site, leaf: &Leaf) -> Result<()> {
    let anchors = crate::http::certificates(&site.ca_dir().join("infra-ca.pem"))?;
    let pin = attester::pin::Pin::new(&anchors)?;
    let receipt = Receipt {
        body: b"{}".to_vec().into(),
        sig: vec![0; 70].into(),
        chain: leaf.chain.iter().cloned().map(Into::into).collect(),
    };
    let said = pin.check_receipt(&receipt);
    let chain =
        |error: &attester::pin::PinError| matches!(error, attester::pin::PinError::Chain { .. });
    ensure!(said.as_ref().is_err_and(chain), "{said:?}");
    // The certificate is judged before the signature of its key, so another key does.
    let key = rcgen::KeyPair::generate()?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)?;
    let certificates = leaf.chain.iter().cloned().map(CertificateDer::from);
    let certified = rustls::sign::CertifiedKey::new(certificates.collect(), key);
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::aws_lc_rs::default_provider(),
    ))
    .with_protocol_versions(&[&rustls::version::TLS13])?
    .with_no_client_auth()
    .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
    let mut server = rustls::ServerConnection::new(Arc::new(config))?;
    let name = attest_wire::v1::ATTEST_SERVER_NAME.try_into()?;
    let mut client = rustls::ClientConnection::new(Arc::new(pin.client_config()?), name)?;
    let (mut there, mut back) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        client.write_tls(&mut there)?;
        server.read_tls(&mut there.as_slice())?;
        there.clear();
        let _ = server.process_new_packets();
        server.write_tls(&mut back)?;
        client.read_tls(&mut back.as_slice())?;
        back.clear();
        match client.process_new_packets() {
            Err(rustls::Error::InvalidCertificate(_)) => return Ok(()),
            Err(other) => bail!("{other}"),
            Ok(_) => {}
        }
    }
    bail!("the attester speaks to it")
}

fn svid(site: &Site) -> [PathBuf; 3] {
    ["svid.pem", "key.pem", "bundle.pem"].map(|name| site.run.dir().join("spire").join(name))
}

/// From here on the gateway comes over TCP with an SVID of its own.
fn by_svid(scene: &Scene<'_>, base: &str, hashes: &Path) -> Result<()> {
    let dir = scene.site.run.dir().join("spire");
    let id = format!("spiffe://{TRUST_DOMAIN}/vestibule");
    let write = dir.to_string_lossy();
    scene
        .server
        .ask(&["x509", "mint", "-spiffeID", &id, "-write", &write])?;
    let [svid, key, bundle] = svid(scene.site);
    let server = format!(
        "server = \"{SERVER}\"\nsvid = \"{}\"\nkey = \"{}\"\nbundle = \"{}\"",
        svid.display(),
        key.display(),
        bundle.display()
    );
    configure(scene.site, base, &server, hashes)
}

/// `MintX509SVID` with the gateway's SVID, by curl: an empty message in gRPC's frame.
fn may_not_mint(scene: &Scene<'_>) -> Result<()> {
    let [svid, key, _] = svid(scene.site);
    let frame = scene.site.run.dir().join("empty.grpc");
    fs::write(&frame, [0; 5])?;
    let call = |method: &str| -> Result<String> {
        let mut curl = scene.site.segment.gw.command("curl");
        curl.args([
            "-sS",
            "-k",
            "--http2",
            "-D",
            "-",
            "-o",
            "/dev/null",
            "-m",
            "10",
        ]);
        curl.arg("--cert").arg(&svid).arg("--key").arg(&key);
        curl.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
        curl.arg("--data-binary")
            .arg(format!("@{}", frame.display()));
        curl.arg(format!("https://{SERVER}/{method}"));
        output(&mut curl, LIMIT)
    };
    let said = call("spire.api.server.svid.v1.SVID/MintX509SVID")?;
    // PERMISSION_DENIED.
    ensure!(said.contains("grpc-status: 7"), "{said}");
    let said = call("spire.api.server.agent.v1.Agent/ListAgents")?;
    ensure!(
        said.contains("200") && !said.contains("grpc-status: 7"),
        "{said}"
    );
    Ok(())
}

fn banned(server: &Server, leaf: &Leaf) -> Result<()> {
    let agents = server.agents()?;
    ensure!(agents.contains(&(leaf.agent(), true)), "{agents:?}");
    Ok(())
}

fn withdrawn(
    report: &Report,
    scene: &Scene<'_>,
    id: &MachineId,
    machine: &Machine,
    hashes: &Path,
    agent: &mut Agent,
    leaf: &Leaf,
) -> Result<()> {
    let args = ["machine", "withdraw", &id.0, "--why", "lost"];
    let (status, out, err) = scene.site.desk.vestibule(&args)?;
    ensure!(status.success(), "{out}{err}");
    let started = Instant::now();
    report.check("withdrawn: its entries are gone", {
        wait(|| entries(&scene.server, id, 0))
    });
    report.check(
        "withdrawn: its agent is banned",
        wait(|| banned(&scene.server, leaf)),
    );
    report.note(format!(
        "entries gone and agent banned {:.1} s after",
        started.elapsed().as_secs_f64()
    ));
    report.check("withdrawn: the file of its EK is gone", {
        wait(|| hashed(scene.site, machine, hashes, false))
    });
    report.check("withdrawn: the agent stops, a workload gets nothing", {
        agent.ended(SOON).and_then(|()| {
            ensure!(agent.fetch(Duration::ZERO).is_err(), "a workload SVID");
            Ok(())
        })
    });
    let tpm = machine.tpm.socket();
    report.check("withdrawn: attesting again is refused", {
        let mut agent = scene.agent(&id.0, &tpm, leaf)?;
        agent.refused("PermissionDenied")
    });
    Ok(())
}

/// Every kind of change of this machine is in the ledger, deletions before bans.
fn recorded(site: &Site, id: &MachineId) -> Result<()> {
    let records = site.desk.records(
        |record| matches!(record, Record::Bridge(bridge) if bridge.machine.as_ref() == Some(id)),
    )?;
    let acts: Vec<BridgeAct> = records
        .iter()
        .filter_map(|entry| match &entry.record {
            Record::Bridge(bridge) => Some(bridge.what),
            _ => None,
        })
        .collect();
    let at = |act| acts.iter().position(|other| *other == act);
    for act in [
        BridgeAct::EntryCreate,
        BridgeAct::AgentDelete,
        BridgeAct::EkHashAdd,
        BridgeAct::EkHashRemove,
    ] {
        ensure!(at(act).is_some(), "no {act:?} in {acts:?}");
    }
    let (deleted, banned) = (at(BridgeAct::EntryDelete), at(BridgeAct::AgentBan));
    ensure!(deleted.is_some() && deleted < banned, "{acts:?}");
    site.verify_ledger().map(drop)
}
