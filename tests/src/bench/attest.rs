//! One appraisal: our verifier against keylime's, in turn, over quotes of one AK and the EK certificate of
//! a software TPM and the same event log of real firmware. keylime's quote leaves out PCR 15, which the
//! attester extends and no firmware logs; keylime would refuse it.
//!
//! Both get everything in memory and judge it again and again; only that is timed. Ours judges all of
//! docs/PROTOCOL.md section 3. keylime checks the quote, replays the log and compares the PCRs, with the
//! policy that accepts every log (`accept-all`), and the EK certificate's signature.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use attest_wire::tpm::{HashAlg, Public};
use attest_wire::v1::{Binding as WireBinding, Evidence, Hello, PcrValue, decode_challenge};
use boot::catalog::{Artefact, Kind, Role};
use gateway_core::appraisal::eventlog::Log;
use gateway_core::appraisal::{
    Appraisal, Binding, CatalogEntry, DevIdRules, EkDirectory, EkRoots, EvidenceContext,
    HelloContext, HelloFacts, Issued, TimeTrust, Verified, appraise_evidence, appraise_hello,
    make_challenge,
};
use gateway_core::identity::{EkName, MacAddr, MachineId, UnixMillis};
use gateway_core::policy::{Policy, Preset};
use hw::clock::Clock;
use hw::tpm::{Attested, NodeDevice, NodeTpm as _};
use nix::time::{ClockId, clock_gettime};
use rand_core::OsRng;
use serde_json::json;

use super::keylime::Keylime;
use super::{Row, Side, Target, interleave};
use crate::event_log::EventLog;
use crate::exchange::{Claims, Node, replay};
use crate::netns::Netns;
use crate::run::Run;
use crate::site::NODE_TEMPLATES;
use crate::swtpm::{self, Swtpm, TCTI};

/// A log of a laptop with Secure Boot on: 34,967 bytes of the field files.
const LOG: &str = "eventlog/tcglog-parser__binary_bios_measurements";
/// Appraisals of one round.
const OURS: usize = 200;
const THEIRS: usize = 20;
const MACHINE: &str = "bench-1";

/// Measures.
///
/// # Errors
/// The field files or keylime are missing, or one side refuses the evidence.
pub fn run(rounds: usize) -> Result<Vec<Row>> {
    let corpus = std::env::var_os("VESTIBULE_CORPUS").context(
        "this bench reads a log of real firmware: VESTIBULE_CORPUS must name the field files",
    )?;
    let path = Path::new(&corpus).join(LOG);
    let log = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let run = Run::start("bench-attest")?;
    let keylime = Keylime::install(run.dir())?;
    let sample = Sample::take(&run, &log)?;
    let task = sample.for_keylime()?;
    let results = interleave(
        rounds,
        vec![
            Side::new("vestibule", |_| sample.appraise(OURS)),
            Side::new("keylime", |_| {
                let seconds = keylime.appraise(&task)?;
                Ok(Spent {
                    hello_ms: 0.0,
                    evidence_ms: median(seconds) * 1_000.0,
                })
            }),
        ],
    )?;
    let [ours, theirs] = &results[..] else {
        unreachable!("two sides give two lists");
    };
    let whole =
        |side: &[Spent]| -> Vec<f64> { side.iter().map(|s| s.hello_ms + s.evidence_ms).collect() };
    let pick = |f: fn(&Spent) -> f64| -> Vec<f64> { ours.iter().map(f).collect() };
    let what = format!(
        "appraisal of a {} byte log, full policy, EK chain",
        log.len()
    );
    Ok(vec![
        Row::against(
            format!("{what}: CPU"),
            "ms",
            &whole(ours),
            keylime.name(),
            &whole(theirs),
            Target::RatioAtMost(1.0 / 120.0),
        )?,
        Row::alone(
            format!("{what}: CPU"),
            "ms",
            &whole(ours),
            Target::AtMost(0.5),
        )?,
        Row::alone(
            "of it rows 1 to 6, two EK chains",
            "ms",
            &pick(|s| s.hello_ms),
            Target::Shown,
        )?,
        Row::alone(
            "of it rows 7 to 14",
            "ms",
            &pick(|s| s.evidence_ms),
            Target::Shown,
        )?,
    ])
}

/// Processor time of one appraisal, the median of a round.
struct Spent {
    hello_ms: f64,
    evidence_ms: f64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Processor time of the calling thread so far.
fn cpu() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// The one machine that exists.
struct Registry(BTreeMap<EkName, Binding>);

impl EkDirectory for Registry {
    fn owner(&self, ek: &EkName) -> Option<&Binding> {
        self.0.get(ek)
    }

    fn mac_owner(&self, _: MacAddr) -> Option<MachineId> {
        Some(MachineId(MACHINE.to_owned()))
    }
}

/// One attempt of a machine with a real TPM in software, as both sides get it.
struct Sample {
    registry: Registry,
    policy: Policy,
    roots: EkRoots,
    catalog: Vec<CatalogEntry>,
    hello: Hello,
    hello_body: Vec<u8>,
    judged: Verified<HelloFacts>,
    issued: Issued,
    evidence: Evidence,
    evidence_body: Vec<u8>,
    ek_store: PathBuf,
    without_pcr_15: Attested,
}

impl Sample {
    fn take(run: &Run, log: &[u8]) -> Result<Self> {
        let ns = Netns::create(run, "node")?;
        let dir = run.dir().join("tpm");
        swtpm::provision(NODE_TEMPLATES, &dir)?;
        let _tpm = Swtpm::start(run, &ns, "node", &dir)?;
        let authority = swtpm::ek_authority()?;
        let ek_store = run.dir().join("ek-store");
        std::fs::create_dir_all(&ek_store)?;
        let mut roots = EkRoots::default();
        for (name, file) in [
            ("root.pem", &authority.root),
            ("issuer.pem", &authority.issuer),
        ] {
            roots.add(&std::fs::read(file)?)?;
            std::fs::copy(file, ek_store.join(name))?;
        }
        let boot = measured(log)?;
        let catalog = catalog(log)?;
        ns.enter(|| {
            let mut tpm = NodeDevice::open(TCTI)?;
            replay(&mut tpm, &boot)?;
            let mut pcr15 = Vec::new();
            let mut node = Node {
                tpm: &mut tpm,
                pcr15: &mut pcr15,
                claims: Claims {
                    serial: "LAB-0001".into(),
                    uuid: "6f1f6f0e-0f6b-4c39-8f3c-0e5b1c0a0001".into(),
                    mac: "52:54:00:66:00:01".into(),
                    disk_serial: Some("DISK-0001".into()),
                },
                event_log: log.to_vec(),
            };
            let (hello, _devid) = node.hello()?;
            let hello_body = serde_json::to_vec(&hello)?;
            let policy = Policy::preset(Preset::Standard);
            let registry = registry(&hello, &node.claims)?;
            let judged = {
                let context = hello_context(&policy, &registry, &roots);
                appraise_hello(&hello_body, &context)
                    .map_err(|refusal| anyhow::anyhow!("hello refused: {:?}", refusal.reasons))?
            };
            let exporter = [0x42; 32];
            let issued = make_challenge(&judged, [0x51; 16], exporter, &mut OsRng)
                .map_err(|refusal| anyhow::anyhow!("no challenge: {:?}", refusal.reasons))?;
            let challenge = decode_challenge(&issued.body)
                .map_err(|error| anyhow::anyhow!("our own challenge: {error}"))?;
            let binding = WireBinding::new(&hello_body, &issued.body, exporter);
            let evidence = node.evidence(&hello, &challenge, &binding)?;
            let selection: Vec<u8> = compared(&evidence).map(|value| value.index).collect();
            let nonce = binding.digest("quote");
            let without_pcr_15 = tpm.quote(&nonce, &selection)?;
            Ok(Self {
                without_pcr_15,
                evidence_body: serde_json::to_vec(&evidence)?,
                registry,
                policy,
                roots,
                catalog,
                hello,
                hello_body,
                judged,
                issued,
                evidence,
                ek_store,
            })
        })
    }

    /// The round of ours. The evidence must be admitted every time.
    fn appraise(&self, times: usize) -> Result<Spent> {
        let (mut hello_ms, mut evidence_ms) = (Vec::new(), Vec::new());
        let hello_context = hello_context(&self.policy, &self.registry, &self.roots);
        let context = EvidenceContext {
            policy: &self.policy,
            bindings: &self.registry,
            catalog: &self.catalog,
            relay: None,
            time: hello_context.time,
        };
        for _ in 0..times {
            let before = cpu()?;
            let judged = appraise_hello(&self.hello_body, &hello_context);
            let after = cpu()?;
            ensure!(judged.is_ok(), "the hello is refused");
            hello_ms.push((after - before).as_secs_f64() * 1_000.0);

            let (judged, issued) = (self.judged.clone(), self.issued_again());
            let before = cpu()?;
            let appraisal = appraise_evidence(judged, issued, &self.evidence_body, &context);
            let after = cpu()?;
            match appraisal {
                Appraisal::Admitted(_) => {}
                Appraisal::Possession(_) => bail!("the machine is not bound"),
                Appraisal::Refused(refusal) => bail!("refused: {:?}", refusal.reasons),
            }
            evidence_ms.push((after - before).as_secs_f64() * 1_000.0);
        }
        Ok(Spent {
            hello_ms: median(hello_ms),
            evidence_ms: median(evidence_ms),
        })
    }

    fn issued_again(&self) -> Issued {
        let Issued {
            session,
            nonce,
            secrets,
            body,
            binding,
        } = &self.issued;
        Issued {
            session: *session,
            nonce: *nonce,
            secrets: secrets.clone(),
            body: body.clone(),
            binding: binding.clone(),
        }
    }

    /// The same evidence in the forms that keylime reads.
    fn for_keylime(&self) -> Result<String> {
        // TPM2B_PUBLIC.
        let ak = &self.hello.ak_pub.0;
        let ak = [&u16::try_from(ak.len())?.to_be_bytes(), ak.as_slice()].concat();
        let ek_cert = self.hello.eks.iter().find_map(|ek| ek.cert.as_ref());
        let ek_cert = ek_cert.context("the TPM has no EK certificate")?;
        let pcrs: BTreeMap<String, String> = compared(&self.evidence)
            .map(|value| (value.index.to_string(), hex::encode(&value.digest.0)))
            .collect();
        let task = json!({
            "times": THEIRS,
            "attest": hex::encode(&self.without_pcr_15.attest),
            "signature": hex::encode(&self.without_pcr_15.signature),
            "ak": hex::encode(ak),
            "nonce": hex::encode(self.issued.binding.digest("quote")),
            "pcrs": pcrs,
            "event_log": hex::encode(&self.evidence.event_log.0),
            "ek_cert": hex::encode(&ek_cert.0),
            "ek_store": self.ek_store,
        });
        Ok(task.to_string())
    }
}

/// What a log of the firmware accounts for.
fn compared(evidence: &Evidence) -> impl Iterator<Item = &PcrValue> {
    evidence.pcr_values.iter().filter(|value| value.index != 15)
}

fn hello_context<'a>(
    policy: &'a Policy,
    registry: &'a Registry,
    roots: &'a EkRoots,
) -> HelloContext<'a> {
    HelloContext {
        policy,
        bindings: registry,
        ek_roots: roots,
        time: TimeTrust::Authenticated(UnixMillis(Clock.now_ms())),
        devid: DevIdRules::default(),
    }
}

fn registry(hello: &Hello, claims: &Claims) -> Result<Registry> {
    let names = hello
        .eks
        .iter()
        .map(|ek| {
            let public = Public::decode(&ek.public.0)
                .map_err(|error| anyhow::anyhow!("EK public: {error}"))?;
            Ok(EkName(public.name().to_hex()))
        })
        .collect::<Result<Vec<_>>>()?;
    let binding = Binding {
        machine: MachineId(MACHINE.to_owned()),
        may_attest: Ok(()),
        serial: Some(claims.serial.clone()),
        disk_serial: claims.disk_serial.clone(),
        port: None,
        class: "standard".into(),
        ek_names: names.clone(),
        counters: None,
        boot_mark: None,
    };
    let owners = names.into_iter().map(|name| (name, binding.clone()));
    Ok(Registry(owners.collect()))
}

/// What the TPM is extended with, so that it stands where the log says.
fn measured(log: &[u8]) -> Result<EventLog> {
    let parsed = Log::parse(log).map_err(|error| anyhow::anyhow!("{LOG}: {error}"))?;
    let extends = parsed.events.iter().filter(|event| event.extends());
    Ok(EventLog {
        bytes: log.to_vec(),
        extends: extends
            .map(|event| {
                let digest = event.digest(HashAlg::Sha256).context("no SHA-256 digest")?;
                Ok((event.pcr, digest.try_into()?))
            })
            .collect::<Result<_>>()?,
    })
}

/// Everything that the log says was started, the last of it as the UKI.
fn catalog(log: &[u8]) -> Result<Vec<CatalogEntry>> {
    const EV_EFI_BOOT_SERVICES_APPLICATION: u32 = 0x8000_0003;
    let parsed = Log::parse(log).map_err(|error| anyhow::anyhow!("{LOG}: {error}"))?;
    let started: Vec<String> = parsed
        .events
        .iter()
        .filter(|event| event.pcr == 4 && event.kind == EV_EFI_BOOT_SERVICES_APPLICATION)
        .filter_map(|event| Some(hex::encode(event.digest(HashAlg::Sha256)?)))
        .collect();
    let last = started.last().context("the log starts nothing")?.clone();
    let entry = |pe_sha256: String| {
        let uki = pe_sha256 == last;
        CatalogEntry::new(Artefact {
            name: if uki { "attester" } else { "ipxe" }.into(),
            kind: if uki { Kind::Uki } else { Kind::Ipxe },
            role: Role::Provision,
            arch: "x86_64".into(),
            version: 1,
            file: format!("{pe_sha256}.efi"),
            sha256: pe_sha256.clone(),
            size_bytes: 1,
            pe_sha256,
            linux_pe_sha256: None,
            pcr11: None,
            cmdline: None,
        })
    };
    Ok(started.into_iter().map(entry).collect())
}
