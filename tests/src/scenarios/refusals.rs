//! A dozen lies. Each changes one thing of what the honest machine sends; each must be refused with
//! its own code, told in log, API and ledger with expected, found and next step; and the honest
//! machine must pass before and after.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use attest_wire::v1::{AttestationResult, Evidence, Hello, Verdict};
use hw::tpm::NodeTpm as _;
use rand_core::{OsRng, RngCore as _};
use serde_json::Value;

use crate::exchange::{Connection, Node, SoftwareKey, say_hello, send_evidence};
use crate::report::Report;
use crate::sim::{ATTEST, Attested, Machine};
use crate::site::{Options, Site};

/// Refusals before activation are summed up once a minute; a little more than that.
const SUMMARY_LIMIT: Duration = Duration::from_secs(80);

/// One lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// The TPM of A in the case of B: serial and MAC of another machine.
    AnothersCase,
    /// The quote of an earlier session.
    ReplayedQuote,
    /// The hello names another AK than the one that proves possession.
    ForeignAk,
    /// The AK shown lacks `restricted`: it could sign a made-up TPMS_ATTEST.
    UnrestrictedKey,
    /// A made-up TPMS_ATTEST, signed by such a key beside an honest AK.
    ForgedAttest,
    /// A digest of the event log is another one.
    EditedLog,
    /// Evidence on a connection that has said no hello.
    NoHello,
    /// Evidence of one connection's session on another that has said a hello of its own.
    AnotherConnection,
    /// A real AK, in the owner hierarchy.
    OwnerAk,
    /// A DevID that is not made from our template.
    DevIdTemplate,
    /// The machine really booted with Secure Boot off.
    SecureBootOff,
    /// The machine really booted with a command line of its own.
    CommandLine,
    /// The machine really booted an image that nobody catalogued.
    UnknownImage,
}

/// Lie, its name, the code it earns.
const LIES: &[(Lie, &str, &str)] = &[
    (
        Lie::AnothersCase,
        "EK of machine A with MAC and serial of B",
        "platform.serial",
    ),
    (Lie::ReplayedQuote, "replayed quote", "quote.nonce"),
    (
        Lie::ForeignAk,
        "AK whose Name is not the activated one",
        "ak.activation",
    ),
    (Lie::UnrestrictedKey, "AK without restricted", "ak.template"),
    (
        Lie::ForgedAttest,
        "TPMS_ATTEST forged by an unrestricted key",
        "quote.signature",
    ),
    (Lie::EditedLog, "edited event log", "eventlog.replay"),
    (
        Lie::NoHello,
        "evidence on a connection without a hello",
        "channel.mismatch",
    ),
    (
        Lie::AnotherConnection,
        "evidence on another connection",
        "channel.mismatch",
    ),
    (Lie::OwnerAk, "AK in the owner hierarchy", "quote.signer"),
    (
        Lie::DevIdTemplate,
        "DevID of another template",
        "devid.template",
    ),
    (Lie::SecureBootOff, "Secure Boot off", "boot.secure_boot"),
    (Lie::CommandLine, "changed command line", "boot.cmdline"),
    (
        Lie::UnknownImage,
        "image outside the catalogue",
        "boot.image",
    ),
];

/// Runs the scenario.
///
/// # Errors
/// The honest machine cannot be admitted at all.
pub fn run(report: &Report) -> Result<()> {
    let site = Site::start("refusals", Options::default())?;
    let outcome = all(report, &site);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

fn all(report: &Report, site: &Site) -> Result<()> {
    let mut a = Machine::plug(site, 1)?;
    let b = Machine::plug(site, 2)?;
    report.check("unknown EK: a pending claim, no certificate", {
        unknown_ek(site, &mut a)
    });
    admit(site, &mut a).context("the honest machine is not admitted")?;
    report.check(
        "MAC, serial and UUID of an admitted machine with a TPM of its own: a claim",
        stranger(site, &mut a),
    );
    let mut expected = Vec::new();
    for (lie, name, code) in LIES {
        let refused = tell(site, &mut a, &b, *lie);
        report.check(
            &format!("{name}: refused"),
            refused.and_then(|r| not_admitted(&r, code)),
        );
        report.check(
            &format!("{name}: the honest machine passes"),
            honest(site, &mut a),
        );
        expected.push((*name, *code));
    }
    let started = Instant::now();
    for (name, code) in expected {
        let outcome = loop {
            let outcome = told(site, code);
            if outcome.is_ok() || started.elapsed() > SUMMARY_LIMIT {
                break outcome;
            }
            std::thread::sleep(Duration::from_secs(1));
        };
        report.check(&format!("{name}: {code} in log, API and ledger"), outcome);
    }
    report.check(
        "what every check enforced would refuse: nothing honest",
        what_if(site),
    );
    report.check("the ledger verifies", site.verify_ledger().map(drop));
    Ok(())
}

fn unknown_ek(site: &Site, machine: &mut Machine) -> Result<()> {
    machine.boot_honestly(site)?;
    machine.netboot()?;
    match machine.attest()? {
        Attested::Pending { code } => ensure!(code == "ek.unknown", "code {code}"),
        other => bail!("{other:?}"),
    }
    let claim = site
        .desk
        .wait_machine("claim", Duration::from_secs(5), |m| {
            m.state == "pending" && m.macs.contains(&machine.mac)
        })?;
    super::walk::no_certificate(site, &claim.machine)
}

/// A machine that copies everything of `admitted` that can be copied gets nothing of it.
fn stranger(site: &Site, admitted: &mut Machine) -> Result<()> {
    let mut stranger = Machine::plug(site, 3)?;
    stranger.claims = admitted.claims.clone();
    stranger.boot_honestly(site)?;
    stranger.lease(crate::pxe::Stage::Attester)?;
    match stranger.attest()? {
        Attested::Pending { code } => ensure!(code == "ek.unknown", "code {code}"),
        other => bail!("{other:?}"),
    }
    honest(site, admitted).context("the real one")
}

/// Approves the machine's claim and lets it in.
///
/// # Errors
/// It is not admitted.
pub fn admit(site: &Site, machine: &mut Machine) -> Result<()> {
    let claim = site
        .desk
        .wait_machine("claim", Duration::from_secs(5), |m| {
            m.state == "pending" && m.macs.contains(&machine.mac)
        })?;
    site.desk.approve(&claim.machine)?;
    honest(site, machine)
}

fn honest(site: &Site, machine: &mut Machine) -> Result<()> {
    machine.boot_honestly(site)?;
    machine.lease(crate::pxe::Stage::Attester)?;
    match machine.attest()? {
        Attested::Admitted { .. } => Ok(()),
        other => bail!("the honest machine: {other:?}"),
    }
}

/// The result refuses; its code is the expected one, or says nothing before activation.
fn not_admitted(result: &AttestationResult, code: &str) -> Result<()> {
    ensure!(
        result.verdict == Verdict::NotAdmitted,
        "verdict {:?}",
        result.verdict
    );
    ensure!(result.devid_chain.is_empty(), "a certificate came back");
    ensure!(
        result.code == code || result.code == "not_admitted",
        "code {} instead of {code}",
        result.code
    );
    Ok(())
}

/// Tells one lie and returns what the gateway answered.
fn tell(site: &Site, a: &mut Machine, b: &Machine, lie: Lie) -> Result<AttestationResult> {
    let mut boot = site.honest_boot()?;
    match lie {
        Lie::SecureBootOff => boot.secure_boot = false,
        Lie::CommandLine => boot.command_line = Some("console=ttyS0 init=/bin/sh".into()),
        Lie::UnknownImage => boot.images.push([0x66; 32]),
        _ => {}
    }
    a.boot(site, &boot)?;
    a.lease(crate::pxe::Stage::Attester)?;
    let claims = if lie == Lie::AnothersCase {
        b.claims.clone()
    } else {
        a.claims.clone()
    };
    let event_log = a.event_log.bytes.clone();
    let mut pcr15 = Vec::new();
    a.with_tpm(|tpm| {
        let mut node = Node {
            tpm,
            pcr15: &mut pcr15,
            claims,
            event_log,
        };
        let (mut hello, _) = node.hello()?;
        let forged = SoftwareKey::generate();
        at_hello(lie, &mut node, &mut hello, &forged)?;
        let earlier = if lie == Lie::ReplayedQuote {
            Some(earlier_evidence(&mut node, &hello)?)
        } else {
            None
        };
        let mut connection = Connection::open(ATTEST)?;
        let (challenge, binding) = match say_hello(&mut connection, &hello)? {
            Ok(challenge) => challenge,
            Err(refusal) => return Ok(refusal),
        };
        let mut evidence = if lie == Lie::ForeignAk {
            guessed_evidence(&mut node, &hello, &challenge, &binding)?
        } else {
            node.evidence(&hello, &challenge, &binding)?
        };
        if let Some(earlier) = earlier {
            evidence.quote = earlier.quote;
        }
        if lie == Lie::ForgedAttest {
            // Magic, type and nonce stay; the PCR digest, the last field, becomes what one wishes.
            let attest = &mut evidence.quote.attest.0;
            let last = attest.last_mut().context("an empty TPMS_ATTEST")?;
            *last ^= 1;
            evidence.quote.sig = forged.sign(attest)?.into();
        }
        if lie == Lie::EditedLog {
            edit_last_pcr4_digest(&mut evidence.event_log.0)?;
        }
        if matches!(lie, Lie::NoHello | Lie::AnotherConnection) {
            connection = Connection::open(ATTEST)?;
        }
        if lie == Lie::AnotherConnection {
            say_hello(&mut connection, &hello)?
                .map_err(|refusal| anyhow::anyhow!("second hello refused: {}", refusal.code))?;
        }
        send_evidence(&mut connection, &evidence)
    })
}

/// What a lie changes in the hello.
fn at_hello(lie: Lie, node: &mut Node<'_>, hello: &mut Hello, forged: &SoftwareKey) -> Result<()> {
    match lie {
        // An AK in form, but not one of this TPM.
        Lie::ForeignAk => hello.ak_pub = forged.public(0x0005_0472).into(),
        // What could sign a forged TPMS_ATTEST: sign without restricted.
        Lie::UnrestrictedKey => hello.ak_pub = forged.public(0x0004_0472).into(),
        Lie::DevIdTemplate => {
            // Our template without noDA: the attributes are bytes 4 to 8 of TPMT_PUBLIC, noDA is
            // bit 10.
            let mut public = hello.devid_pub.0.clone();
            public[6] &= !0x04;
            hello.devid_pub = public.into();
        }
        Lie::OwnerAk => {
            let mut unique = [0u8; 64];
            OsRng.fill_bytes(&mut unique);
            hello.ak_pub = node.tpm.create_owner_ak(unique)?.into();
        }
        _ => {}
    }
    Ok(())
}

/// Evidence that answers a challenge of its own and is then kept back: same keys, same boot, only
/// the session is another.
fn earlier_evidence(node: &mut Node<'_>, hello: &Hello) -> Result<Evidence> {
    let mut connection = Connection::open(ATTEST)?;
    let (challenge, binding) = say_hello(&mut connection, hello)?
        .map_err(|refusal| anyhow::anyhow!("honest hello refused: {}", refusal.code))?;
    node.evidence(hello, &challenge, &binding)
}

/// The TPM does not give the secret for a foreign AK: the liar guesses it.
fn guessed_evidence(
    node: &mut Node<'_>,
    hello: &Hello,
    challenge: &attest_wire::v1::Challenge,
    binding: &attest_wire::v1::Binding,
) -> Result<Evidence> {
    let mut without = challenge.clone();
    without.credentials.clear();
    for credential in &challenge.credentials {
        let ek = &hello.eks[usize::from(credential.ek)].public.0;
        ensure!(
            node.tpm
                .activate(ek, &credential.blob.0, &credential.secret.0)
                .is_err(),
            "the TPM activated a credential for an AK that it does not hold"
        );
    }
    let mut evidence = node.evidence(hello, &without, binding)?;
    evidence.activated = challenge
        .credentials
        .iter()
        .map(|_| crate::exchange::activation(&[0x5a; 32], binding).into())
        .collect();
    Ok(evidence)
}

/// Changes one digest of the last PCR 4 event and nothing else.
fn edit_last_pcr4_digest(log: &mut [u8]) -> Result<()> {
    // TCG_PCR_EVENT2 of PCR 4, EV_EFI_BOOT_SERVICES_APPLICATION, one digest, SHA-256.
    let start = [4, 0, 0, 0, 3, 0, 0, 0x80, 1, 0, 0, 0, 0x0b, 0];
    let at = log
        .windows(start.len())
        .rposition(|window| window == start)
        .context("no application event in PCR 4")?;
    log[at + start.len()] ^= 1;
    Ok(())
}

/// By its last evidence, which was honest, no machine would be refused by any check.
fn what_if(site: &Site) -> Result<()> {
    let (status, out, err) = site.desk.vestibule(&["policy", "what-if", "--json"])?;
    ensure!(status.success(), "policy what-if: {status}: {out}{err}");
    let told: Value = serde_json::from_str(&out)?;
    ensure!(told["judged"].as_u64() >= Some(1), "{told}");
    let refused = told["would_refuse"].as_array().context("no list")?;
    ensure!(refused.is_empty(), "{told}");
    Ok(())
}

/// The refusal is in the daemon's log, in the API and in the ledger, with all its parts.
fn told(site: &Site, code: &str) -> Result<()> {
    let log = site.log();
    let line = log
        .lines()
        .find(|line| line.contains(code))
        .with_context(|| format!("{code} is not in the log"))?;
    for part in ["expected", "found", "next"] {
        ensure!(
            line.contains(part),
            "log line of {code} without {part}: {line}"
        );
    }
    let ledger = serde_json::to_value(site.desk.ledger()?)?;
    ensure!(has_reason(&ledger, code), "{code} is not in the ledger");
    let mut api = serde_json::to_value(site.desk.machines()?)?;
    for machine in site.desk.machines()? {
        let timeline = serde_json::to_value(site.desk.timeline(&machine.machine)?)?;
        if let Value::Array(list) = &mut api {
            list.push(timeline);
        }
    }
    if !has_reason(&api, code) {
        // A refusal that no machine can be blamed for is counted in the status.
        let status: Value = site.desk.get("/v1/status")?;
        let count = status
            .get("refusals")
            .and_then(|r| r.get(code))
            .and_then(Value::as_u64);
        ensure!(count.unwrap_or(0) > 0, "{code} is not in the API");
    }
    Ok(())
}

/// Whether somewhere in `value` there is a reason with this code and all its parts filled.
fn has_reason(value: &Value, code: &str) -> bool {
    match value {
        Value::Array(list) => list.iter().any(|v| has_reason(v, code)),
        Value::Object(object) => {
            let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or("");
            let whole = text("code") == code
                && ["expected", "found", "source", "next"]
                    .iter()
                    .all(|k| !text(k).is_empty());
            whole || object.values().any(|v| has_reason(v, code))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_reason_counts_only_with_all_its_parts() {
        let whole = json!({"x": [{"code": "a.b", "expected": "1", "found": "2", "source": "s", "next": "n"}]});
        assert!(has_reason(&whole, "a.b"));
        assert!(!has_reason(&whole, "a.c"));
        let empty =
            json!({"code": "a.b", "expected": "1", "found": "", "source": "s", "next": "n"});
        assert!(!has_reason(&empty, "a.b"));
    }
}
