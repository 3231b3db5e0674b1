//! The site that is lied to, the machines of it, and what every refusal must leave behind.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use attest_wire::v1::{AttestationResult, Verdict};
use gateway_core::identity::MachineId;
use gateway_core::reason::Reason;
use gateway_core::record::Record;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::exchange::Connection;
use crate::sim::{Attested, Machine};
use crate::site::{Options, Site};
use crate::vendor::Vendor;

/// A session that is held runs out after 60 s, and refusals before activation are summed up once a minute
/// (gateway/core/src/limits.rs): twice both, since a busy machine is late with each. It is waited for no longer
/// than needed.
const SUMMED: Duration = Duration::from_secs(240);
/// The switch port of the machines that have one declared.
pub const PORT: &str = "Ethernet1/2";
/// The same as it is declared.
pub const DECLARED_PORT: &str = "lab-switch/Ethernet1/2";
/// The class in which port and counters refuse; by the preset they only report.
pub const GUARDED: &str = "guarded";
/// Serial number of the certificate that the vendor has revoked.
pub const REVOKED: u64 = 0x666;
/// The UKI that an honest machine boots, and the one before it.
pub const CURRENT: u64 = 2;
/// Signed and catalogued as well, until the owner says otherwise.
pub const OLD: u64 = 1;

/// What ends a session that is held open.
const HELD_CODE: &str = "session.timeout";

/// One lie that was refused, to be found again in the ledger.
struct Told {
    lie: String,
    code: &'static str,
    when: When,
    correlation: String,
}

/// When a refusal came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Before the EK was activated: the wire says nothing, the ledger has a sum.
    Unproven,
    /// After it: the wire says the code, the ledger has the verdict.
    Proven,
}

/// The site with its honest machine.
pub struct Scene<'a> {
    /// The site.
    pub site: &'a Site,
    /// The maker of TPMs that the site trusts beside that of the simulated ones.
    pub vendor: &'a Vendor,
    /// A machine that is admitted and never lies.
    pub honest: Machine,
    told: Vec<Told>,
    /// How many of them a report line has named.
    named: usize,
    /// Connections that are held open, and whose they are.
    held: Vec<(Vec<Connection>, Machine)>,
    /// Honest admissions so far.
    pub admissions: usize,
}

/// Makes the site: a policy that demands EK certificates and names the authority of the images, a
/// second vendor with a revocation list, two versions of the UKI, a clock that can be believed.
///
/// # Errors
/// Any step.
pub fn site(vendor: &Vendor) -> Result<Site> {
    let options = Options {
        version: OLD,
        rtc: true,
        ..Options::default()
    };
    let mut site = Site::prepare("attacks", options)?;
    site.add_uki(CURRENT)?;
    let dir = site.run.dir().to_owned();
    let authority = hex::encode(Sha256::digest(&site.honest_boot()?.db_cert));
    std::fs::write(
        dir.join("policy.toml"),
        format!(
            "version = 1\npreset = \"standard\"\n[ek]\nrequire_cert = true\n\
             [boot]\nauthority_sha256 = [\"{authority}\"]\n\
             [[class]]\nname = \"{GUARDED}\"\n[class.checks]\nport = \"enforce\"\nfreshness = \"enforce\"\n"
        ),
    )?;
    std::fs::write(dir.join("ek-roots/vendor.der"), &vendor.root.der)?;
    std::fs::create_dir_all(dir.join("ek-crls"))?;
    std::fs::write(
        dir.join("ek-crls/vendor.crl"),
        vendor.issuing.revoke(REVOKED)?,
    )?;
    let config = std::fs::read_to_string(site.config())?;
    let changed = config
        .replace(
            "preset = \"standard\"",
            &format!("file = \"{}/policy.toml\"", dir.display()),
        )
        .replace(
            "[policy]",
            &format!("ek_crls_dir = \"{}/ek-crls\"\n[policy]", dir.display()),
        );
    ensure!(changed != config, "the configuration has no preset");
    std::fs::write(site.config(), changed)?;
    site.serve()?;
    Ok(site)
}

impl<'a> Scene<'a> {
    /// The site with its honest machine admitted.
    ///
    /// # Errors
    /// It is not.
    pub fn open(site: &'a Site, vendor: &'a Vendor) -> Result<Self> {
        let mut honest = Machine::plug(site, 1)?;
        honest.boot_honestly(site)?;
        honest.netboot()?;
        let mut scene = Self {
            site,
            vendor,
            honest,
            told: Vec::new(),
            named: 0,
            held: Vec::new(),
            admissions: 0,
        };
        match scene.honest.attest()? {
            Attested::Pending { code } => ensure!(code == "ek.unknown", "code {code}"),
            other => bail!("the honest machine's first attempt: {other:?}"),
        }
        scene.approve(&scene.honest, &[])?;
        scene.honest_passes().context("the honest machine")?;
        Ok(scene)
    }

    /// Name of the admitted machine with this hardware address.
    ///
    /// # Errors
    /// There is none.
    pub fn machine_of(&self, machine: &Machine) -> Result<MachineId> {
        let serial = Some(machine.claims.serial.clone());
        self.site
            .desk
            .wait_machine("machine", Duration::from_secs(5), |m| {
                m.state == "admitted" && m.macs.contains(&machine.mac) && m.serial == serial
            })
            .map(|view| view.machine)
    }

    /// Approves the machine's claim, with more arguments for `vestibule machine approve`.
    ///
    /// # Errors
    /// There is no claim, or it is refused.
    pub fn approve(&self, machine: &Machine, more: &[&str]) -> Result<MachineId> {
        let desk = &self.site.desk;
        let claim = desk.wait_machine("claim", Duration::from_secs(5), |m| {
            m.state == "pending" && m.macs.contains(&machine.mac)
        })?;
        let mut args = vec![
            "machine",
            "approve",
            &claim.machine.0,
            "--compared",
            "console",
        ];
        args.extend_from_slice(more);
        let (status, out, err) = desk.vestibule(&args)?;
        ensure!(status.success(), "{args:?}: {status}: {out}{err}");
        Ok(claim.machine)
    }

    /// The honest machine attests and is admitted.
    ///
    /// # Errors
    /// It is not.
    pub fn honest_passes(&mut self) -> Result<()> {
        match self.honest.attest()? {
            Attested::Admitted { .. } => {
                self.admissions += 1;
                Ok(())
            }
            other => bail!("the honest machine: {other:?}"),
        }
    }

    /// Keeps sessions open until the end. The gateway ends each of them after its time.
    pub fn hold(&mut self, held: Vec<Connection>, machine: Machine) {
        self.told.extend(held.iter().map(|_| Told {
            lie: "a challenge that nobody answers".to_owned(),
            code: HELD_CODE,
            when: When::Unproven,
            correlation: "held".to_owned(),
        }));
        self.held.push((held, machine));
    }

    /// Codes of what was refused since the last call, each once.
    pub fn told_since(&mut self) -> Vec<&'static str> {
        let mut codes: Vec<&'static str> = Vec::new();
        for told in &self.told[self.named..] {
            if !codes.contains(&told.code) {
                codes.push(told.code);
            }
        }
        self.named = self.told.len();
        codes
    }

    /// The lie was refused: the wire says what it may and no more, and the log says the rest.
    ///
    /// # Errors
    /// Anything else.
    pub fn refused(
        &mut self,
        lie: &str,
        code: &'static str,
        when: When,
        result: &AttestationResult,
    ) -> Result<()> {
        ensure!(
            result.verdict == Verdict::NotAdmitted,
            "{lie}: {:?}, {}",
            result.verdict,
            result.code
        );
        ensure!(
            result.devid_chain.is_empty() && result.receipt.is_none(),
            "{lie}: a certificate or a receipt came back"
        );
        self.refused_as(lie, code, when, &result.code, &result.correlation)
    }

    /// The same for a machine that keeps to itself what else came back.
    ///
    /// # Errors
    /// Anything else than this refusal.
    pub fn refused_as(
        &mut self,
        lie: &str,
        code: &'static str,
        when: When,
        told: &str,
        correlation: &str,
    ) -> Result<()> {
        let on_wire = match when {
            When::Unproven => "not_admitted",
            When::Proven => code,
        };
        let logged = self.logged(correlation);
        ensure!(
            told == on_wire,
            "{lie}: expected {on_wire} on the wire, found {told}; log: {logged:?}"
        );
        let line = logged
            .iter()
            .find(|line| line["reason"] == code)
            .with_context(|| format!("{lie}: expected {code}, the log has {logged:?}"))?;
        for part in ["expected", "found", "source", "next"] {
            ensure!(
                line[part].as_str().is_some_and(|text| !text.is_empty()),
                "{lie}: {part} is missing in {line}"
            );
        }
        ensure!(
            when == When::Unproven || logged[0]["reason"] == code,
            "{lie}: expected {code} first, the log has {logged:?}"
        );
        self.told.push(Told {
            lie: lie.to_owned(),
            code,
            when,
            correlation: correlation.to_owned(),
        });
        Ok(())
    }

    /// Lines of the log about this attempt. They are written once the answer may leave.
    fn logged(&self, correlation: &str) -> Vec<Value> {
        let begun = Instant::now();
        loop {
            let log = self.site.log();
            let lines: Vec<Value> = log
                .lines()
                .filter(|line| line.contains(correlation))
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .filter(|line| line["message"] == "refused")
                .collect();
            if !lines.is_empty() || begun.elapsed() > Duration::from_secs(2) {
                return lines;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Every lie that was refused is in the ledger: with a verdict of its own, or in the sums of its
    /// code, which are written a minute after the first of each. And the API counts them.
    ///
    /// # Errors
    /// One is not, or a reason lacks a part.
    pub fn recorded(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let outcome = self.in_ledger();
            if outcome.is_ok() || begun.elapsed() > SUMMED {
                outcome?;
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        let status: Value = self.site.desk.get("/v1/status")?;
        for (code, count) in self.codes() {
            let counted = status["refusals"][code].as_u64().unwrap_or(0);
            ensure!(
                enough(code, counted, count),
                "the API counts {counted} {code}, told {count}"
            );
        }
        Ok(())
    }

    /// How often each code was earned.
    pub fn codes(&self) -> BTreeMap<&'static str, u64> {
        let mut codes = BTreeMap::new();
        for told in &self.told {
            *codes.entry(told.code).or_default() += 1;
        }
        codes
    }

    fn in_ledger(&self) -> Result<()> {
        let ledger = self.site.desk.ledger()?;
        let mut verdicts = BTreeMap::new();
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for entry in &ledger {
            match &entry.record {
                Record::Verdict(verdict) => {
                    verdicts.insert(verdict.correlation.as_str(), verdict);
                }
                Record::RefusalSummary(sum) => {
                    whole(&sum.last)?;
                    *sums.entry(&sum.last.code).or_default() += sum.count;
                }
                Record::Genesis(_)
                | Record::Claim(_)
                | Record::Operator(_)
                | Record::Certificate(_)
                | Record::EkCertificates(_)
                | Record::Policy(_)
                | Record::Pruned(_)
                | Record::Gate(_)
                | Record::Bridge(_)
                | Record::Delivery(_)
                | Record::Run(_)
                | Record::Grant(_)
                | Record::Progress(_)
                | Record::RunEnd(_)
                | Record::Talos(_)
                | Record::Anchor(_) => {}
            }
        }
        let mut summed: BTreeMap<&str, u64> = BTreeMap::new();
        for told in &self.told {
            let Some(verdict) = verdicts.get(told.correlation.as_str()) else {
                *summed.entry(told.code).or_default() += 1;
                continue;
            };
            ensure!(!verdict.admitted, "{}: the ledger admits it", told.lie);
            ensure!(
                told.when == When::Proven,
                "{}: a verdict of its own in the ledger, before its EK was activated",
                told.lie
            );
            let first = verdict
                .reasons
                .first()
                .context("a refusal without reason")?;
            ensure!(
                first.code == told.code,
                "{}: {} in the ledger instead of {}",
                told.lie,
                first.code,
                told.code
            );
            verdict.reasons.iter().try_for_each(whole)?;
        }
        for (code, count) in summed {
            let found = sums.get(code).copied().unwrap_or(0);
            ensure!(
                enough(code, found, count),
                "{found} of {count} {code} in the ledger's sums"
            );
        }
        Ok(())
    }
}

/// What the gateway counted covers what was told. A machine's own attempts may add to a code; no
/// machine of the scene lets a session run out but those that are held, so these are counted exactly.
fn enough(code: &str, counted: u64, told: u64) -> bool {
    match code {
        HELD_CODE => counted == told,
        _ => counted >= told,
    }
}

fn whole(reason: &Reason) -> Result<()> {
    let parts = [
        &*reason.expected,
        &*reason.found,
        &*reason.source,
        &*reason.next,
    ];
    ensure!(
        parts.iter().all(|part| !part.is_empty()),
        "a part is missing in {reason:?}"
    );
    Ok(())
}
