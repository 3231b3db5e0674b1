//! Payloads that only the admitted machine opens, in the boot and session that was quoted; and the owner's
//! secret in the form that tpm2-tools open. The copies of a thief are tried with a real TPM.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use attest_wire::credential::SEALED_MAX_BYTES;
use attest_wire::ekseal::SEPARATOR;
use attest_wire::sealed::{Expected, Item, check, closed_digest, open};
use attest_wire::tpm::Public;
use attest_wire::v1::handover::{Ability, SEALED_PCRS, Sealed};
use attest_wire::v1::{AttestationResult, Verdict};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gateway_core::identity::MachineId;
use gateway_core::record::{Act, Delivery, Record};
use hw::tpm::{NodeTpm, TpmError};
use sha2::{Digest as _, Sha256};

use crate::exchange::{Connection, Node, say_hello, send_evidence};
use crate::http::{Client, Tls, TlsClient};
use crate::netns::GATEWAY_ADDR;
use crate::pxe::Stage;
use crate::report::Report;
use crate::run::{attempt, output};
use crate::sim::{ATTEST, Attested, Machine};
use crate::site::{Options, Site};
use crate::swtpm::Swtpm;

const LIMIT: Duration = Duration::from_secs(30);
/// What the files say; none of it may be found where it does not belong.
const PASSWORD: &str = "correct-horse-battery";
const SECRET: &[u8] = b"a secret of the owner, for cloud-init";
/// TPM_RC_POLICY_FAIL of the first session.
const POLICY_FAIL: u32 = 0x99d;
const CONFIG: &str = r#"
[handover]
ekseal = true
[[handover.payload]]
kind = "user-data"
file = "handover/user-data"
[[handover.payload]]
kind = "meta-data"
file = "handover/meta-data"
[[handover.payload]]
kind = "talos-config"
file = "handover/talos-config"
class = "another"
[handover.spire]
server = "spire.example.net:8081"
trust_domain = "example.net"
bundle = "ca/device-ca.pem"
"#;

/// A machine's side of one attempt, with the message as it went over the wire.
struct Taken {
    result: AttestationResult,
    eks: Vec<Vec<u8>>,
    pcrs: [[u8; 32]; 4],
    /// What was extended into PCR 15 since the reset.
    pcr15: Vec<[u8; 32]>,
}

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made, or a machine cannot be admitted at all.
pub fn run(report: &Report) -> Result<()> {
    let options = Options {
        more: CONFIG.to_owned(),
        ..Options::default()
    };
    let mut site = Site::prepare("sealed", options)?;
    write_payloads(site.run.dir())?;
    site.serve()?;
    let outcome = steps(report, &mut site);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

fn write_payloads(dir: &Path) -> Result<()> {
    let dir = dir.join("handover");
    fs::create_dir_all(&dir)?;
    fs::write(
        dir.join("user-data"),
        format!("#cloud-config\nhostname: {{{{ machine }}}}\npassword: {PASSWORD}\n"),
    )?;
    fs::write(
        dir.join("meta-data"),
        "instance-id: {{ machine }}\nserial: {{ serial }}\naddress: {{ address }}\n",
    )?;
    fs::write(dir.join("talos-config"), "cluster: another's\n")?;
    Ok(())
}

fn steps(report: &Report, site: &mut Site) -> Result<()> {
    let mut machine = Machine::plug(site, 1)?;
    machine.boot_honestly(site)?;
    let lease = machine.lease(Stage::Attester)?;
    report.check("a pending machine gets no payload", {
        ensure_none(
            &session(&mut machine, &[], Some(Ability::Payloads))?,
            Verdict::Pending,
        )
    });
    let id = approve(site, &machine)?;

    machine.boot_honestly(site)?;
    let payloads = admitted(&machine)?;
    report.check(
        "the admitted machine opens its payloads, filled in for it",
        says_what_is_declared(&payloads, &id, &machine, &lease.addr.to_string()),
    );
    report.check("their digests are in the ledger, their contents are not", {
        on_record(site, &id, &payloads)
    });
    report.check(
        "a later attempt of the same boot is admitted over the closed PCR 15",
        says_what_is_declared(&admitted(&machine)?, &id, &machine, &lease.addr.to_string()),
    );

    machine.boot_honestly(site)?;
    let other = Machine::plug(site, 2)?;
    thefts(report, site, &mut machine, &other)?;
    no_payload(report, site, &mut machine, &id)?;
    metadata(report, site, &machine)?;
    secrets(report, site, &mut machine, &other, &id)?;
    report.check("the ledger verifies", site.verify_ledger().map(drop));
    Ok(())
}

/// One attempt by hand; the message stays as it came.
fn session(machine: &mut Machine, before: &[[u8; 32]], can: Option<Ability>) -> Result<Taken> {
    let (claims, event_log) = (machine.claims.clone(), machine.event_log.bytes.clone());
    machine.with_tpm(|tpm| {
        let mut pcr15 = before.to_vec();
        let (result, eks) = {
            let mut node = Node {
                tpm,
                pcr15: &mut pcr15,
                claims,
                event_log,
            };
            let (mut hello, _) = node.hello()?;
            hello.can = can.into_iter().collect();
            let eks = hello.eks.iter().map(|ek| ek.public.0.clone()).collect();
            let mut connection = Connection::open(ATTEST)?;
            let result = match say_hello(&mut connection, &hello)? {
                Err(refused) => refused,
                Ok((challenge, binding)) => {
                    let evidence = node.evidence(&hello, &challenge, &binding)?;
                    send_evidence(&mut connection, &evidence)?
                }
            };
            (result, eks)
        };
        let values = tpm.pcr_read(&SEALED_PCRS)?;
        let pcrs = values
            .try_into()
            .map_err(|_| anyhow::anyhow!("four PCRs"))?;
        Ok(Taken {
            result,
            eks,
            pcrs,
            pcr15,
        })
    })
}

impl Taken {
    fn sealed(&self) -> Result<&Sealed> {
        self.result
            .sealed
            .as_deref()
            .with_context(|| format!("no payload: {}, {}", self.result.code, self.result.hint))
    }

    /// Opens the message with this TPM, under its own EK at `ek`.
    fn open_with(
        &self,
        machine: &Machine,
        ek: &[u8],
    ) -> Result<std::result::Result<Vec<Item>, TpmError>> {
        let sealed = self.sealed()?;
        let receipt = self.result.receipt.as_ref().context("no receipt")?;
        let body: serde_json::Value = serde_json::from_slice(&receipt.body.0)?;
        let own = Public::decode(&self.eks[usize::from(sealed.ek)])?;
        let expected = Expected {
            machine: body["machine"].as_str().context("no machine")?,
            receipt_sha256: Sha256::digest(&receipt.body.0).into(),
            ek: &own,
            pcrs: self.pcrs,
        };
        check(sealed, &expected)?;
        let unsealed = machine.with_tpm(|tpm| {
            // The key must have been made by this process to be used.
            tpm.endorsement_keys()?;
            Ok(tpm.unseal_import(
                ek,
                &sealed.public.0,
                &sealed.private.0,
                &sealed.secret.0,
                &SEALED_PCRS,
            ))
        })?;
        match unsealed {
            Ok(secret) => Ok(Ok(open(sealed, &expected, &secret)?)),
            Err(error) => Ok(Err(error)),
        }
    }

    fn opens(&self, machine: &Machine) -> Result<()> {
        let ek = &self.eks[usize::from(self.sealed()?.ek)];
        let items = self.open_with(machine, ek)??;
        ensure!(
            text(&items, "user-data")?.contains(PASSWORD),
            "other content"
        );
        Ok(())
    }

    fn does_not_open(&self, machine: &Machine, ek: &[u8], with: &[u32]) -> Result<()> {
        match self.open_with(machine, ek)? {
            Ok(items) => bail!("it opens: {items:?}"),
            Err(TpmError::Command { code, .. }) if with.contains(&code) => Ok(()),
            Err(error) => Err(error).context("another refusal"),
        }
    }

    fn is_closed(&self, machine: &Machine) -> Result<()> {
        let ek = &self.eks[usize::from(self.sealed()?.ek)];
        self.does_not_open(machine, ek, &[POLICY_FAIL])
    }
}

/// Attack 56: the message is copied on its way, and tried wherever a thief may try it.
fn thefts(report: &Report, site: &Site, machine: &mut Machine, other: &Machine) -> Result<()> {
    let can = Some(Ability::Payloads);
    let first = session(machine, &[], can)?;
    report.check(
        "a message taken from the wire opens in its session",
        first.opens(machine),
    );
    let second = session(machine, &first.pcr15, can)?;
    report.check(
        "attack 56: not in another session of the same boot",
        first.is_closed(machine),
    );
    report.check("the other session opens its own", second.opens(machine));
    let eks = other.with_tpm(|tpm| Ok(tpm.endorsement_keys()?))?;
    let foreign = eks.first().context("no EK")?.public.clone();
    report.check("not on another TPM", {
        // TPM_RC_FAILURE or TPM_RC_INTEGRITY: the seed is not for its key.
        second.does_not_open(other, &foreign, &[0x101, 0x3df])
    });
    machine.with_tpm(|tpm| Ok(tpm.pcr_extend(15, &closed_digest())?))?;
    report.check(
        "attack 56: not after the attester has closed PCR 15",
        second.is_closed(machine),
    );
    machine.boot_honestly(site)?;
    report.check("attack 56: not after a reset into the same image", {
        first
            .is_closed(machine)
            .and_then(|()| second.is_closed(machine))
    });
    report.check("and nothing of it is readable on the wire", {
        let shown = serde_json::to_vec(&second.result)?;
        let clear = [PASSWORD.as_bytes(), b"instance-id", b"spire.example.net"];
        let leaks = |part: &&[u8]| shown.windows(part.len()).any(|window| window == *part);
        ensure!(!clear.iter().any(leaks), "clear text on the wire");
        Ok(())
    });
    Ok(())
}

fn no_payload(report: &Report, site: &Site, machine: &mut Machine, id: &MachineId) -> Result<()> {
    let silent = session(machine, &[], None)?;
    report.check(
        "an attester that says nothing of payloads gets none, and is admitted",
        ensure_none(&silent, Verdict::Admitted),
    );
    machine.boot_honestly(site)?;
    site.desk.vestibule(&["machine", "cordon", &id.0])?;
    report.check("a refused machine gets none", {
        let refused = session(machine, &[], Some(Ability::Payloads))?;
        ensure_none(&refused, Verdict::NotAdmitted)
    });
    site.desk.vestibule(&["machine", "uncordon", &id.0])?;
    // Attack 1: everything of the machine but its TPM.
    let mut thief = Machine::plug(site, 3)?;
    thief.claims = machine.claims.clone();
    thief.boot_honestly(site)?;
    thief.lease(Stage::Attester)?;
    report.check(
        "attack 1: address, serial and disk of another machine buy no payload",
        {
            let taken = session(&mut thief, &[], Some(Ability::Payloads))?;
            ensure!(taken.result.verdict != Verdict::Admitted, "admitted");
            ensure!(
                taken.result.sealed.is_none() && taken.result.receipt.is_none(),
                "it gets something"
            );
            Ok(())
        },
    );
    Ok(())
}

/// Attack 3: a metadata URL, guessed or from a log, on every listener.
fn metadata(report: &Report, site: &Site, machine: &Machine) -> Result<()> {
    const PATHS: [&str; 7] = [
        "/user-data",
        "/meta-data",
        "/nocloud/node-7/user-data",
        "/2009-04-04/meta-data/instance-id",
        "/latest/user-data",
        "/metadata",
        "/openstack/latest/user_data",
    ];
    let boot_ca = site.ca_dir().join("boot-ca.pem");
    let refused = |what: &str, path: &str, status: u16, body: &[u8]| -> Result<()> {
        let body = String::from_utf8_lossy(body);
        ensure!(status == 403, "{what} {path}: {status}");
        let told =
            body.trim() == "handover.unattested" || body.contains("\"code\":\"not_admitted\"");
        ensure!(told && !body.contains(PASSWORD), "{what} {path}: {body}");
        Ok(())
    };
    let inside = |port: u16| SocketAddr::from((GATEWAY_ADDR, port));
    report.check(
        "attack 3: metadata URLs answer 403 and a code on every listener",
        {
            let walk = || -> Result<()> {
                for path in PATHS {
                    machine.ns.enter(|| {
                        let answer =
                            Client::plain(inside(80), LIMIT)?.request("GET", path, &[], b"")?;
                        refused("http", path, answer.status, &answer.body)?;
                        let tls = Tls {
                            ca_pem: boot_ca.clone(),
                            identity: None,
                        };
                        let answer = TlsClient::connect(inside(443), tls.config()?, LIMIT)?
                            .request("GET", path, &[], b"")?;
                        refused("boot", path, answer.status, &answer.body)?;
                        let (status, body) = Connection::open(ATTEST)?.get(path)?;
                        refused("attest", path, status, &body)
                    })?;
                    let (status, body) = site.desk.health(path)?;
                    refused("health", path, status, body.as_bytes())?;
                }
                Ok(())
            };
            walk()
        },
    );
    Ok(())
}

/// The owner's secret for another system on the machine.
fn secrets(
    report: &Report,
    site: &mut Site,
    machine: &mut Machine,
    other: &Machine,
    id: &MachineId,
) -> Result<()> {
    machine.boot_honestly(site)?;
    admitted(machine)?;
    let file = site.run.dir().join("secret");
    fs::write(&file, SECRET)?;
    let dir = site.run.dir().join("ekseal");
    let plain = seal(site, id, &file, &[])?;
    report.check("tpm2-tools open the owner's secret on the machine's TPM", {
        tools_open(&machine.tpm, &dir, &plain, Session::Empty)
    });
    report.check(
        "and not on another TPM",
        refuses(tools_open(&other.tpm, &dir, &plain, Session::Empty)),
    );
    let bound = seal(site, id, &file, &["--pcr"])?;
    report.check(
        "the form with PCRs opens in the boot of the last admission",
        tools_open(&machine.tpm, &dir, &bound, Session::Pcrs),
    );
    report.check("and not by a session without a policy", {
        refuses(tools_open(&machine.tpm, &dir, &bound, Session::Empty))
    });
    machine.with_tpm(|tpm| Ok(tpm.pcr_extend(4, &[4; 32])?))?;
    report.check("nor after another boot", {
        refuses(tools_open(&machine.tpm, &dir, &bound, Session::Pcrs))
    });
    report.check("cluster credentials and large secrets are refused", {
        refused_with(site, id, &file, &["--kind", "talos-config"], "secret.kind")
            .and_then(|()| {
                refused_with(site, id, &file, &["--kind", "spire-package"], "secret.kind")
            })
            .and_then(|()| {
                let large = site.run.dir().join("large");
                fs::write(&large, vec![7; SEALED_MAX_BYTES + 1])?;
                refused_with(site, id, &large, &[], "1 to 128 bytes")
            })
    });
    report.check("each is on record, without the secret", {
        let acts = site
            .desk
            .records(|record| matches!(record, Record::Operator(_)))?;
        let sealed = acts.iter().filter(|entry| match &entry.record {
            Record::Operator(act) => matches!(act.act, Act::SealSecret { .. }),
            _ => false,
        });
        ensure!(sealed.count() == 2, "not two acts");
        Ok(())
    });
    site.stop()?;
    let config = fs::read_to_string(site.config())?;
    site.serve()?;
    report.check("after a restart it waits for an attestation", {
        refused_with(site, id, &file, &[], "secret.ek")
    });
    site.stop()?;
    fs::write(
        site.config(),
        config.replace("ekseal = true", "ekseal = false"),
    )?;
    site.serve()?;
    report.check("and is refused where it is not switched on", {
        refused_with(site, id, &file, &[], "secret.off")
    });
    Ok(())
}

/// How the sealed object is opened.
#[derive(Clone, Copy)]
enum Session {
    /// A policy session without a command.
    Empty,
    /// PolicyPCR.
    Pcrs,
}

/// The guest's sequence: createek, policysecret, import, policysecret, load, unseal.
fn tools_open(tpm: &Swtpm, dir: &Path, line: &str, session: Session) -> Result<()> {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir)?;
    let blobs: Vec<Vec<u8>> = line
        .split(SEPARATOR)
        .map(|text| STANDARD.decode(text))
        .collect::<Result<_, _>>()?;
    for (name, blob) in ["pub", "priv", "seed"].iter().zip(&blobs) {
        fs::write(dir.join(name), blob)?;
    }
    let path = |name: &str| dir.join(name);
    let run = |program: &str, args: &[(&str, Option<PathBuf>)]| -> Result<String> {
        let mut command = tpm.tool(program);
        for (option, value) in args {
            command.arg(option);
            command.args(value);
        }
        output(&mut command, LIMIT).with_context(|| program.to_owned())
    };
    let flush = || run("tpm2_flushcontext", &[("-t", None)]).map(drop);
    let with_secret = |work: &dyn Fn() -> Result<()>| -> Result<()> {
        run(
            "tpm2_startauthsession",
            &[("--policy-session", None), ("-S", Some(path("session")))],
        )?;
        run(
            "tpm2_policysecret",
            &[
                ("-S", Some(path("session"))),
                ("-c", Some("0x4000000B".into())),
            ],
        )?;
        let done = work();
        let ended = run(
            "tpm2_flushcontext",
            &[(&path("session").to_string_lossy(), None)],
        );
        done?;
        ended.map(drop)
    };
    let by_session = PathBuf::from(format!("session:{}", path("session").display()));
    run(
        "tpm2_createek",
        &[
            ("-G", Some("rsa".into())),
            ("-c", Some(path("ek.ctx"))),
            ("-u", Some(path("ek.pub"))),
        ],
    )?;
    flush()?;
    with_secret(&|| {
        run(
            "tpm2_import",
            &[
                ("-C", Some(path("ek.ctx"))),
                ("-P", Some(by_session.clone())),
                ("-u", Some(path("pub"))),
                ("-i", Some(path("priv"))),
                ("-s", Some(path("seed"))),
                ("-r", Some(path("loadable"))),
            ],
        )?;
        flush()
    })?;
    with_secret(&|| {
        run(
            "tpm2_load",
            &[
                ("-C", Some(path("ek.ctx"))),
                ("-P", Some(by_session.clone())),
                ("-u", Some(path("pub"))),
                ("-r", Some(path("loadable"))),
                ("-c", Some(path("object.ctx"))),
            ],
        )?;
        flush()
    })?;
    let unseal = |auth: PathBuf| {
        run(
            "tpm2_unseal",
            &[
                ("-c", Some(path("object.ctx"))),
                ("-p", Some(auth)),
                ("-o", Some(path("secret"))),
            ],
        )
    };
    let opened = match session {
        Session::Pcrs => unseal("pcr:sha256:4,7,11".into()),
        Session::Empty => {
            run(
                "tpm2_startauthsession",
                &[("--policy-session", None), ("-S", Some(path("session")))],
            )?;
            let opened = unseal(by_session);
            run(
                "tpm2_flushcontext",
                &[(&path("session").to_string_lossy(), None)],
            )?;
            opened
        }
    };
    flush()?;
    opened?;
    ensure!(fs::read(path("secret"))? == SECRET, "another secret");
    Ok(())
}

fn refuses(opened: Result<()>) -> Result<()> {
    match opened {
        Ok(()) => bail!("it opens"),
        Err(error) => {
            let text = format!("{error:#}").to_lowercase();
            // Import under another TPM, or Unseal under another policy, and by the TPM itself: a wrong RSA key
            // is TPM_RC_FAILURE with swtpm.
            let step = text.starts_with("tpm2_import") || text.starts_with("tpm2_unseal");
            let refusal = step && text.contains("tpm:");
            ensure!(refusal, "another failure: {text}");
            Ok(())
        }
    }
}

fn seal(site: &Site, id: &MachineId, file: &Path, more: &[&str]) -> Result<String> {
    let (status, out, err) = seal_command(site, id, file, more)?;
    ensure!(status, "{out}{err}");
    Ok(out.trim_end().to_owned())
}

fn refused_with(site: &Site, id: &MachineId, file: &Path, more: &[&str], code: &str) -> Result<()> {
    let (status, out, err) = seal_command(site, id, file, more)?;
    ensure!(!status && err.contains(code), "expected {code}: {out}{err}");
    Ok(())
}

fn seal_command(
    site: &Site,
    id: &MachineId,
    file: &Path,
    more: &[&str],
) -> Result<(bool, String, String)> {
    let mut command = site.desk.command(&["machine", "seal", &id.0]);
    command.arg("--secret-file").arg(file).args(more);
    let (status, out, err) = attempt(&mut command, LIMIT)?;
    Ok((status.success(), out, err))
}

fn approve(site: &Site, machine: &Machine) -> Result<MachineId> {
    let claim = site
        .desk
        .wait_machine("claim", Duration::from_secs(5), |m| {
            m.state == "pending" && m.macs.contains(&machine.mac)
        })?;
    site.desk.approve(&claim.machine)?;
    Ok(claim.machine)
}

fn admitted(machine: &Machine) -> Result<Vec<Item>> {
    match machine.attest()? {
        Attested::Admitted { payloads, .. } => Ok(payloads),
        other => bail!("not admitted: {other:?}"),
    }
}

fn ensure_none(taken: &Taken, verdict: Verdict) -> Result<()> {
    ensure!(taken.result.verdict == verdict, "{:?}", taken.result);
    ensure!(taken.result.sealed.is_none(), "it has payloads");
    Ok(())
}

fn text(items: &[Item], kind: &str) -> Result<String> {
    let item = items.iter().find(|item| item.kind == kind);
    let item = item.with_context(|| format!("no {kind} in {items:?}"))?;
    Ok(String::from_utf8(item.bytes.to_vec())?)
}

fn says_what_is_declared(
    items: &[Item],
    id: &MachineId,
    machine: &Machine,
    address: &str,
) -> Result<()> {
    ensure!(items.len() == 3, "{items:?}");
    let user = text(items, "user-data")?;
    ensure!(
        user == format!("#cloud-config\nhostname: {id}\npassword: {PASSWORD}\n"),
        "user-data: {user}"
    );
    let meta = text(items, "meta-data")?;
    let serial = &machine.claims.serial;
    ensure!(
        meta == format!("instance-id: {id}\nserial: {serial}\naddress: {address}\n"),
        "meta-data: {meta}"
    );
    let package: serde_json::Value = serde_json::from_str(&text(items, "spire-package")?)?;
    ensure!(
        package["server_address"] == "spire.example.net",
        "{package}"
    );
    ensure!(package["server_port"] == 8081 && package["trust_domain"] == "example.net");
    let bundle = package["trust_bundle"].as_str().unwrap_or_default();
    ensure!(bundle.contains("BEGIN CERTIFICATE"), "{package}");
    Ok(())
}

fn on_record(site: &Site, id: &MachineId, items: &[Item]) -> Result<()> {
    let records = site.desk.ledger()?;
    let deliveries: Vec<&Delivery> = records
        .iter()
        .filter_map(|entry| match &entry.record {
            Record::Delivery(delivery) if delivery.machine == *id => Some(delivery),
            _ => None,
        })
        .collect();
    let [delivery] = deliveries.as_slice() else {
        bail!("{} deliveries", deliveries.len());
    };
    for item in items {
        let digest = hex::encode(Sha256::digest(&item.bytes));
        let listed = delivery
            .items
            .iter()
            .any(|listed| listed.kind == item.kind && listed.sha256 == digest);
        ensure!(listed, "{} is not listed", item.kind);
    }
    let text = serde_json::to_string(&records)?;
    ensure!(!text.contains(PASSWORD), "the ledger has a secret");
    ensure!(!site.log().contains(PASSWORD), "the log has a secret");
    Ok(())
}
