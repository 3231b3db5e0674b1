//! THE verifier: one table (`TABLE`), this order, two entry points.
//!
//! [`appraise_hello`] judges rows 1 to 6 and gives a [`Verified`] hello; [`make_challenge`] and
//! [`appraise_evidence`] (rows 7 to 14) take nothing else. Only this module makes a `Verified`, so
//! a step that did not pass cannot be continued. No clock, randomness, store or socket: all comes
//! in as arguments. Read `TABLE` first, then the two functions; each row has its file.

mod ak;
pub mod boot_events;
mod boot_policy;
pub mod dbx;
pub mod draft;
pub mod ek;
pub mod ek_record;
mod ek_roots;
pub mod eventlog;
pub mod events;
mod facts;
pub mod notices;
mod platform;
mod port;
pub mod quirks;
mod quote;
pub mod recorded;
mod relay;
mod replay;
mod revocation;
mod signature;
mod table;
pub mod variables;
pub mod x509;

use std::collections::BTreeSet;

use attest_wire::credential::make_credential as wrap_credential;
use attest_wire::templates::ek_template;
use attest_wire::tpm::Public;
use attest_wire::v1::{
    self, Challenge, Credential, Evidence, Hello, Malformed, decode_evidence, decode_hello,
};
use rand_core::CryptoRngCore;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

pub use ek::{Assurance, EkRoots, TimeTrust};
pub use facts::{
    Admission, Appraisal, Binding, CatalogEntry, CheckResult, DevIdRules, Ek, EkDirectory,
    EvidenceContext, Facts, HelloContext, HelloFacts, Issued, Outcome, PossessionProven, Refusal,
    Standing,
};
pub use quote::{PCRS_ALWAYS, QUOTED_PCRS};
pub use relay::RelayWord;
pub use signature::verify_tpm_signature;
pub use table::{Check, Row, TABLE};

use crate::identity::EkName;
use crate::policy::{Mode, Policy};
use crate::reason::Reason;
use facts::{Judge, OnlyHere};

/// A value that passed the checks named by its type. Made here and nowhere else.
#[derive(Debug, Clone)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    /// The value.
    pub fn get(&self) -> &T {
        &self.0
    }

    /// The value, no longer marked.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> std::ops::Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Rows 1 to 6: shapes, binding and certificates. Nothing is proven yet.
///
/// # Errors
/// The refusal; possession is unproven, so the wire tells nothing.
pub fn appraise_hello(
    body: &[u8],
    ctx: &HelloContext<'_>,
) -> Result<Verified<HelloFacts>, Box<Refusal>> {
    let mut judge = Judge::default();
    let mut facts = Facts {
        policy_sha256: hex::encode(ctx.policy.sha256()),
        assurance: Assurance::BareEk.name(),
        ..Facts::default()
    };
    let message = decode_hello(body)
        .map_err(malformed)
        .and_then(|hello| Publics::decode(&hello).map(|publics| (hello, publics)));
    let Some((hello, publics)) = judge.row(Check::Message, Mode::Enforce, one(message)) else {
        return Err(refused(judge, facts, None, false));
    };
    shown_by(&hello, &mut facts);

    let eks = templates_of(publics.eks);
    let Some(mut eks) = judge.row(Check::EkTemplate, Mode::Enforce, eks) else {
        return Err(refused(judge, facts, None, false));
    };
    facts.ek_names = eks.iter().map(|ek| ek.name.clone()).collect();

    let standing = standing(&eks, ctx);
    let Some(standing) = judge.row(Check::EkBinding, Mode::Enforce, one(standing)) else {
        return Err(refused(judge, facts, None, false));
    };
    let (class, machine) = match &standing {
        Standing::Bound(binding) => (Some(binding.class.as_str()), Some(&binding.machine)),
        Standing::Enrolling => (None, None),
    };

    let mut noted = ek::Noted::default();
    let certs = appraise_certs(&hello, &mut eks, ctx, &mut noted, &mut facts);
    facts.note(&noted.quirks);
    // A claim is no admission: what its certificates lack is shown to the owner, unless the policy
    // demands a manufacturer's certificate of everybody.
    let mode = match machine {
        None if !ctx.policy.require_ek_cert() => Mode::Report,
        _ => ctx.policy.mode(Check::EkCert, class),
    };
    judge.row(Check::EkCert, mode, certs);
    judge.report(noted.crl);
    if let Some(ek) = eks.iter().find(|ek| ek.assurance != Assurance::BareEk) {
        facts.assurance = ek.assurance.name();
    }

    let ak_name = judge.row(Check::Ak, Mode::Enforce, one(ak::appraise_ak(&publics.ak)));
    if let Some(name) = &ak_name {
        facts.ak_name = name.to_hex();
    }
    let devid = ak::appraise_devid(&publics.devid, &publics.srk, hello.devid_auth, ctx.devid);
    let devid_qualified_name = judge.row(Check::DevId, Mode::Enforce, one(devid));
    let machine = machine.cloned();
    let pcrs = ctx.policy.pcrs(class).to_vec();
    let Some(devid_qualified_name) = devid_qualified_name.filter(|_| judge.enforced.is_empty())
    else {
        return Err(refused(judge, facts, machine, false));
    };
    Ok(Verified(HelloFacts {
        hello_sha256: Sha256::digest(body).into(),
        challenged: relied_on(&eks, &standing),
        eks,
        standing,
        ak: publics.ak,
        devid: publics.devid,
        devid_qualified_name,
        pcrs,
        facts,
        judge,
        hello,
    }))
}

/// Makes the challenge of a verified hello: nonce, and a credential per EK that counts.
///
/// `exporter` is the TLS exporter of the connection the hello came on.
///
/// # Errors
/// An EK that nothing can be wrapped for; its template passed, so this is our own fault.
pub fn make_challenge(
    hello: &Verified<HelloFacts>,
    session: [u8; 16],
    exporter: [u8; 32],
    rng: &mut impl CryptoRngCore,
) -> Result<Issued, Box<Refusal>> {
    let mut nonce = [0u8; 32];
    rng.fill_bytes(&mut nonce);
    let ak_name = hello.ak.name();
    let mut secrets = Vec::new();
    let mut credentials = Vec::new();
    for &index in &hello.challenged {
        let ek = &hello.eks[usize::from(index)];
        let mut secret = Zeroizing::new([0u8; 32]);
        rng.fill_bytes(secret.as_mut_slice());
        let blob = wrap_credential(&ek.public, &ak_name, secret.as_slice(), rng);
        let blob = blob.map_err(|error| {
            let mut judge = hello.judge.clone();
            let reason = Reason::new(
                "ek.template",
                "an EK that a credential can be wrapped for",
                error.to_string(),
                "TPM 2.0 Part 1 section 24",
                "report this EK: its template passed",
            );
            judge.row::<()>(Check::EkTemplate, Mode::Enforce, Err(vec![reason]));
            refused(judge, hello.facts.clone(), hello.machine().cloned(), false)
        })?;
        secrets.push(secret);
        credentials.push(Credential {
            ek: index,
            blob: blob.id_object.into(),
            secret: blob.secret.into(),
        });
    }
    let challenge = Challenge {
        session: session.to_vec().into(),
        nonce: nonce.to_vec().into(),
        credentials,
        pcr_selection: hello.pcrs.clone(),
    };
    let body = serde_json::to_vec(&challenge).expect("a challenge has string keys only");
    Ok(Issued {
        session,
        nonce,
        secrets,
        binding: v1::Binding {
            hello_sha256: hello.hello_sha256,
            challenge_sha256: Sha256::digest(&body).into(),
            exporter,
        },
        body,
    })
}

/// Rows 7 to 14. Consumes hello and challenge: a session is used once, passed or not.
pub fn appraise_evidence(
    hello: Verified<HelloFacts>,
    issued: Issued,
    body: &[u8],
    ctx: &EvidenceContext<'_>,
) -> Appraisal {
    let hello = hello.into_inner();
    let machine = hello.machine().cloned();
    let mut facts = hello.facts.clone();
    let mut judge = hello.judge.clone();
    let evidence = one(decode_evidence(body)
        .map_err(malformed)
        .and_then(|evidence| same_session(evidence, &issued)));
    let Some(evidence) = judge.row(Check::Message, Mode::Enforce, evidence) else {
        return Appraisal::Refused(refused(judge, facts, machine, false));
    };
    let still = one(still_bound(&hello, ctx.bindings));
    if judge.row(Check::EkBinding, Mode::Enforce, still).is_none() {
        return Appraisal::Refused(refused(judge, facts, machine, false));
    }

    let proofs = ak::appraise_activation(
        &issued.secrets,
        &issued.binding.digest("activation"),
        &evidence.activated,
    );
    let activated = judge.row(Check::Activation, Mode::Enforce, one(proofs));
    if activated.is_none() {
        return Appraisal::Refused(refused(judge, facts, machine, false));
    }
    facts.ek_names = challenged(&hello.eks, &hello.challenged)
        .map(|ek| ek.name.clone())
        .collect();
    facts.ek_keys = challenged(&hello.eks, &hello.challenged)
        .filter_map(|ek| ek.public.spki_der())
        .map(|der| hex::encode(<sha2::Sha256 as sha2::Digest>::digest(der)))
        .collect();
    for cert in &mut facts.ek_certs {
        cert.proven = facts.ek_names.contains(&cert.ek_name);
    }

    let certify = ak::appraise_certify(
        &hello.ak,
        &hello.devid,
        &hello.devid_qualified_name,
        &issued.binding.digest("devid"),
        &evidence.devid_certify,
    );
    judge.row(Check::DevIdCertify, Mode::Enforce, certify);
    let quoted = quote::appraise_quote(
        &hello.ak,
        &issued.binding.digest("quote"),
        &hello.pcrs,
        &evidence.quote,
        &evidence.pcr_values,
    );
    let quoted = judge.row(Check::Quote, Mode::Enforce, one(quoted));
    let Some(quoted) = quoted.filter(|_| judge.enforced.is_empty()) else {
        return Appraisal::Refused(refused(judge, facts, machine, true));
    };
    facts.counters = Some((quoted.clock.reset_count, quoted.clock.restart_count));
    facts.pcrs.clone_from(&quoted.pcrs);

    let modes = Modes {
        policy: ctx.policy,
        standing: &hello.standing,
    };
    let boot_digest = issued.binding.digest("boot");
    appraise_log(&evidence, &boot_digest, &modes, ctx, &mut facts, &mut judge);
    let marks = &evidence.pcr15_extends;
    appraise_surroundings(&hello, &quoted, marks, &modes, ctx, &mut facts, &mut judge);

    if !judge.enforced.is_empty() {
        return Appraisal::Refused(refused(judge, facts, machine, true));
    }
    match hello.standing {
        Standing::Bound(binding) => Appraisal::Admitted(Box::new(Verified(Admission {
            binding: *binding,
            ek_name: challenged(&hello.eks, &hello.challenged)
                .next()
                .map(|ek| ek.name.clone()),
            can: hello.hello.can,
            clock_ms: quoted.clock.clock,
            devid: hello.devid,
            proven: proven(&hello.eks, &hello.challenged),
            facts,
            reported: judge.reported,
            checks: judge.checks,
            _only_here: OnlyHere,
        }))),
        Standing::Enrolling => Appraisal::Possession(Box::new(PossessionProven {
            facts,
            eks: challenged(&hello.eks, &hello.challenged).cloned().collect(),
            would_refuse: judge.reported,
            checks: judge.checks,
            _only_here: OnlyHere,
        })),
    }
}

/// Mode of a row after possession is proven: for a claim everything is only reported.
struct Modes<'a> {
    policy: &'a Policy,
    standing: &'a Standing,
}

impl Modes<'_> {
    fn of(&self, check: Check) -> Mode {
        match self.standing {
            Standing::Bound(_) => self.policy.mode(check, self.class()),
            Standing::Enrolling => Mode::Report,
        }
    }

    fn class(&self) -> Option<&str> {
        match self.standing {
            Standing::Bound(binding) => Some(&binding.class),
            Standing::Enrolling => None,
        }
    }
}

/// Rows 10 and 11.
fn appraise_log(
    evidence: &Evidence,
    boot_digest: &[u8; 32],
    modes: &Modes<'_>,
    ctx: &EvidenceContext<'_>,
    facts: &mut Facts,
    judge: &mut Judge,
) {
    let mut quirks = Vec::new();
    let log = replay::replayed(evidence, boot_digest, &facts.pcrs, &mut quirks);
    facts.note(&quirks);
    let log = judge.row(Check::EventLog, modes.of(Check::EventLog), log);
    facts.boot_mark = log.is_some().then(|| platform::mark_digest(boot_digest));
    let mode = modes.of(Check::Boot);
    let Some(log) = log else {
        judge.skip(Check::Boot, mode, "the event log does not match the quote");
        return;
    };
    let rules = ctx.policy.boot(modes.class());
    let (boot, reasons) =
        boot_policy::appraise_boot(&log, &facts.pcrs, ctx.catalog, rules, ctx.time);
    facts.note(&boot.quirks);
    facts.image_sha256 = boot.image_sha256;
    facts.image_role = boot.role;
    judge.row(Check::Boot, mode, all_or_none(reasons));
    judge.report(boot.graced);
}

/// Rows 12 to 14: what only a binding can be compared with.
fn appraise_surroundings(
    hello: &HelloFacts,
    quoted: &quote::Quoted,
    marks: &[v1::Bytes],
    modes: &Modes<'_>,
    ctx: &EvidenceContext<'_>,
    facts: &mut Facts,
    judge: &mut Judge,
) {
    facts.port = port::heard(&hello.hello);
    let witness = port::witness(&hello.hello, ctx.relay);
    facts.port_witness = witness.as_ref().map(|witness| witness.text.clone());
    let disagreement = witness.and_then(|witness| witness.disagreement);
    let Standing::Bound(binding) = &hello.standing else {
        for check in [Check::Platform, Check::Port, Check::Freshness] {
            judge.skip(check, Mode::Report, "nothing is declared for a claim");
        }
        return;
    };
    let platform = platform::appraise_platform(&hello.hello, binding, ctx.bindings);
    judge.row(Check::Platform, modes.of(Check::Platform), platform);
    match &binding.port {
        Some(declared) => {
            let mut reasons: Vec<Reason> = disagreement.into_iter().collect();
            match port::appraise_port(&hello.hello, declared) {
                Ok(tolerated) => facts.port_tolerated = tolerated,
                Err(reason) => reasons.insert(0, reason),
            }
            let result = if reasons.is_empty() {
                Ok(())
            } else {
                Err(reasons)
            };
            judge.row(Check::Port, modes.of(Check::Port), result);
            judge.note(facts.port_tolerated.clone());
        }
        None => match disagreement {
            // Nothing is declared that could be missed; that two witnesses contradict each other is told.
            Some(reason) => {
                judge.row::<()>(Check::Port, Mode::Report, Err(vec![reason]));
            }
            None => judge.skip(Check::Port, modes.of(Check::Port), "no port is declared"),
        },
    }
    // Only where the log replays to PCR 15 the list of its extends is proven.
    let marks = facts.boot_mark.is_some().then_some(marks);
    let fresh = platform::appraise_freshness(&quoted.clock, marks, binding);
    judge.row(Check::Freshness, modes.of(Check::Freshness), one(fresh));
}

/// The four kinds of keys of a hello, decoded.
struct Publics {
    eks: Vec<Public>,
    ak: Public,
    devid: Public,
    srk: Public,
}

impl Publics {
    fn decode(hello: &Hello) -> Result<Self, Reason> {
        let one = |what: &str, bytes: &v1::Bytes| {
            Public::decode(&bytes.0).map_err(|error| {
                Reason::new(
                    "malformed.public",
                    format!("{what} as TPMT_PUBLIC"),
                    error.to_string(),
                    "TPM 2.0 Part 2 section 12.2.4",
                    "boot the signed attester",
                )
            })
        };
        Ok(Self {
            eks: hello
                .eks
                .iter()
                .map(|ek| one("eks.pub", &ek.public))
                .collect::<Result<_, _>>()?,
            ak: one("ak_pub", &hello.ak_pub)?,
            devid: one("devid_pub", &hello.devid_pub)?,
            srk: one("srk_pub", &hello.srk_pub)?,
        })
    }
}

/// Row 2.
fn templates_of(publics: Vec<Public>) -> Result<Vec<Ek>, Vec<Reason>> {
    let mut eks: Vec<Ek> = Vec::new();
    let mut reasons = Vec::new();
    for public in publics {
        match ek_template(&public) {
            Ok(template) => {
                let name = EkName(public.name().to_hex());
                if eks.iter().any(|ek| ek.name == name) {
                    reasons.push(Reason::new(
                        "ek.template",
                        "each EK once",
                        format!("{name} twice"),
                        "docs/PROTOCOL.md section 2",
                        "boot the signed attester",
                    ));
                }
                eks.push(Ek {
                    public,
                    name,
                    template,
                    assurance: Assurance::BareEk,
                });
            }
            Err(mismatch) => reasons.push(ak::mismatch("ek.template", &mismatch)),
        }
    }
    if reasons.is_empty() {
        Ok(eks)
    } else {
        Err(reasons)
    }
}

/// Row 3.
fn standing(eks: &[Ek], ctx: &HelloContext<'_>) -> Result<Standing, Reason> {
    let owners: Vec<&Binding> = eks
        .iter()
        .filter_map(|ek| ctx.bindings.owner(&ek.name))
        .collect();
    let machines: BTreeSet<&str> = owners.iter().map(|b| b.machine.0.as_str()).collect();
    let Some(binding) = owners.first() else {
        if ctx.policy.claims() {
            return Ok(Standing::Enrolling);
        }
        return Err(Reason::new(
            "ek.unknown",
            "an EK bound to a machine",
            format!("{} EKs bound to none", eks.len()),
            "policy enrol.claims = false",
            "declare the machine with its EK names in the inventory",
        ));
    };
    if machines.len() > 1 {
        return Err(Reason::new(
            "ek.ambiguous",
            "EKs of one machine",
            machines.into_iter().collect::<Vec<_>>().join(", "),
            "docs/PROTOCOL.md section 3 row 3",
            "one TPM is declared for two machines: correct the inventory",
        ));
    }
    binding.may_attest.clone()?;
    ctx.policy.know_class(
        &binding.class,
        "correct the machine's class in the inventory, or write the class into the policy; one approved with a \
         class that is gone is withdrawn and approved again",
    )?;
    Ok(Standing::Bound(Box::new((*binding).clone())))
}

/// Row 3 again, when the evidence comes: a withdrawal between the two messages counts.
fn still_bound(hello: &HelloFacts, bindings: &dyn EkDirectory) -> Result<(), Reason> {
    let Standing::Bound(then) = &hello.standing else {
        return Ok(());
    };
    let mut now = hello.eks.iter().filter_map(|ek| bindings.owner(&ek.name));
    match now.next() {
        Some(now) if now.machine == then.machine => now.may_attest.clone(),
        other => Err(Reason::new(
            "ek.unknown",
            format!("EKs still bound to {}", then.machine),
            other.map_or("bound to none".into(), |now| {
                format!("bound to {}", now.machine)
            }),
            "docs/PROTOCOL.md section 3 row 3",
            "the binding was changed meanwhile; boot again",
        )),
    }
}

/// Row 4: every certificate offered is judged; without any, the policy decides.
fn appraise_certs(
    hello: &Hello,
    eks: &mut [Ek],
    ctx: &HelloContext<'_>,
    noted: &mut ek::Noted,
    facts: &mut Facts,
) -> Result<(), Vec<Reason>> {
    // Unreadable chain certificates are skipped: a missing link shows as an unknown issuer.
    let chain = x509::read_chain(hello.ek_chain.iter().map(|part| part.0.as_slice()));
    let mut reasons = Vec::new();
    let mut recorder = ek_record::Recorder::default();
    for (ek, offer) in eks.iter_mut().zip(&hello.eks) {
        let Some(cert) = &offer.cert else { continue };
        let (judged, seen) = ek::appraise_shown(
            &ek.public,
            &cert.0,
            &chain,
            ctx.ek_roots,
            ctx.time,
            ctx.policy,
            noted,
        );
        if let Some(seen) = seen {
            recorder.add(&ek.name, &judged, seen);
        }
        match judged {
            Ok(assurance) => ek.assurance = assurance,
            Err(reason) => reasons.push(reason),
        }
    }
    facts.ek_cas = recorder.stored(ctx.ek_roots);
    (facts.ek_certs, facts.ek_chain) = recorder.finish(&chain, ctx.ek_roots);
    let bare = eks.iter().all(|ek| ek.assurance == Assurance::BareEk);
    if bare && reasons.is_empty() && ctx.policy.require_ek_cert() {
        reasons.push(ek::missing_cert());
    }
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(reasons)
    }
}

/// Which EKs must be activated: those the binding names, those with a certificate, and RSA-2048
/// (L), which SPIRE relies on. An EK that nobody relies on is not asked for: each costs the TPM
/// seconds.
fn relied_on(eks: &[Ek], standing: &Standing) -> Vec<u8> {
    let counts = |ek: &Ek| {
        let bound = match standing {
            Standing::Bound(binding) => binding.ek_names.contains(&ek.name),
            Standing::Enrolling => false,
        };
        bound
            || ek.assurance != Assurance::BareEk
            || ek.template == attest_wire::templates::Template::EkRsa2048L
    };
    let mut out: Vec<u8> = (0u8..)
        .zip(eks)
        .filter(|(_, ek)| counts(ek))
        .map(|(index, _)| index)
        .collect();
    if out.is_empty() {
        out.push(0);
    }
    out
}

fn proven(eks: &[Ek], indices: &[u8]) -> Vec<(u8, Public)> {
    let eks = challenged(eks, indices).map(|ek| ek.public.clone());
    indices.iter().copied().zip(eks).collect()
}

fn challenged<'a>(eks: &'a [Ek], indices: &[u8]) -> impl Iterator<Item = &'a Ek> {
    indices.iter().map(|&index| &eks[usize::from(index)])
}

fn same_session(evidence: Evidence, issued: &Issued) -> Result<Evidence, Reason> {
    if evidence.session.0 == issued.session {
        return Ok(evidence);
    }
    Err(Reason::new(
        "channel.mismatch",
        "the session of this connection",
        "another session",
        "docs/PROTOCOL.md section 2",
        "hello and evidence must travel on one connection; start again",
    ))
}

/// Everything the hello shows that is written down.
fn shown_by(hello: &Hello, facts: &mut Facts) {
    facts.devid_auth = hello.devid_auth.as_str();
    facts.report_sha256 = hex::encode(hello.report_sha256());
    facts.serial = hello.platform.serial.clone();
    facts.node_uuid = crate::talos::node::uuid(&hello.platform.uuid);
    facts.macs = hello
        .nics
        .iter()
        .filter_map(|nic| nic.mac.parse().ok())
        .collect();
    facts.disks = hello.disks.iter().map(|disk| disk.serial.clone()).collect();
}

pub(crate) fn malformed(error: Malformed) -> Reason {
    Reason::new(
        error.code,
        format!("{}: {}", error.field, error.expected),
        error.found,
        "docs/PROTOCOL.md section 2",
        "boot the signed attester of this gateway's version",
    )
}

fn all_or_none(reasons: Vec<Reason>) -> Result<(), Vec<Reason>> {
    match reasons.is_empty() {
        true => Ok(()),
        false => Err(reasons),
    }
}

fn one<T>(result: Result<T, Reason>) -> Result<T, Vec<Reason>> {
    result.map_err(|reason| vec![reason])
}

fn refused(
    judge: Judge,
    facts: Facts,
    machine: Option<crate::identity::MachineId>,
    activated: bool,
) -> Box<Refusal> {
    let mut reasons = judge.enforced;
    reasons.extend(judge.reported);
    Box::new(Refusal {
        reasons,
        activated,
        machine,
        facts,
        checks: judge.checks,
    })
}

/// Untrusted text for a reason: bounded, control characters made visible.
pub(crate) fn shown(text: &str) -> String {
    text.chars()
        .take(128)
        .flat_map(|c| {
            let plain = !c.is_control();
            plain
                .then_some(c)
                .into_iter()
                .chain((!plain).then(|| c.escape_default()).into_iter().flatten())
        })
        .collect()
}
