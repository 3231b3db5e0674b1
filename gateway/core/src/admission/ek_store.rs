//! The owner's store of CAs for EK chains: import and removal, whose issuer is missing, what SPIRE
//! is told to trust. The ledger is the store; [`EkRoots`] is what it says now, beside the files.
//!
//! Fetches nothing: it says where an issuer's certificate is said to be, and somebody else goes.

use std::collections::BTreeMap;

use super::command::{Caller, EkCaImport, Role, demand, text};
use super::effect::Rules;
use super::ek_certs::{EkOnRecord, removed, trusted};
use super::registry::{Machine, Registry};
use super::{Admission, Outbox};
use crate::appraisal::ek::{self, CaRole, EkRoots, KnownCa, Provenance, TimeTrust, ca_size, id_of};
use crate::appraisal::ek_record::{self, decode_der, encode_der};
use crate::appraisal::x509::{Cert, rfc3339};
use crate::appraisal::{Facts, shown};
use crate::identity::{MachineId, UnixMillis};
use crate::limits;
use crate::reason::Reason;
use crate::record::{Act, EkCause, EkCertificates, OperatorAct, Record};
use crate::view::{
    EkCaExport, EkCaImported, EkCaList, EkCaOutcome, EkCaResult, EkCaView, EkCrlView, EkExportedCa,
    EkSkippedCa, EkUnmatched, EkUnmatchedList, EkUnmatchedMachine, Expiry, WithoutIssuer,
};

/// An expiry this near is told, in seconds: a vendor's new CA is found and imported in a quarter.
const SOON_SECS: i64 = 90 * 86_400;

/// Folds an owner's act into the certificates, and into the machines whose chains rest on them; acts
/// on anything else change nothing. What the ledger holds was judged when it was written, so it is
/// taken as it says.
pub fn apply(
    roots: &mut EkRoots,
    registry: &mut Registry,
    seq: u64,
    at: UnixMillis,
    act: &OperatorAct,
) {
    match &act.act {
        Act::EkCaImport {
            role, source, der, ..
        } => {
            let Some(Ok(cert)) = decode_der(der).map(|der| Cert::read(&der)) else {
                return;
            };
            let from = Provenance::Imported {
                by: act.by.clone(),
                at,
                source: source.clone(),
                seq,
            };
            let role = if role == ROOT {
                CaRole::Anchor
            } else {
                CaRole::Link
            };
            roots.insert(KnownCa::new(cert, from), role);
            registry.ek_cas_changed();
        }
        Act::EkCaRemove {
            sha256, subject, ..
        } => {
            let mut id = [0; 32];
            if hex::decode_to_slice(sha256, &mut id).is_err() {
                return;
            }
            roots.remove(&id);
            registry.ek_cas_changed();
            // A file may hold it as well, and goes on vouching.
            if roots.find(&id).is_none() {
                registry.apply_ek_ca_removed(seq, at, sha256, subject, &act.by);
            }
        }
        Act::ClaimAppliance
        | Act::AdoptLedger { .. }
        | Act::Approve { .. }
        | Act::Cordon { .. }
        | Act::Uncordon { .. }
        | Act::MarkInstalled { .. }
        | Act::Withdraw { .. }
        | Act::Retire { .. }
        | Act::ImageAdd { .. }
        | Act::ImageFloor { .. }
        | Act::ImageWithdraw { .. }
        | Act::SealSecret { .. } => {}
    }
}

const ROOT: &str = "root";
const INTERMEDIATE: &str = "intermediate";

fn role_name(role: CaRole) -> &'static str {
    match role {
        CaRole::Anchor => ROOT,
        CaRole::Link => INTERMEDIATE,
    }
}

impl Admission {
    /// An owner imports CA certificates: each is judged for itself, and those that are taken are
    /// written down. The answer has one result for each, in their order.
    ///
    /// # Errors
    /// `admin.role`, `malformed.command`.
    pub fn import_ek_cas(
        &mut self,
        now: UnixMillis,
        time: TimeTrust,
        caller: &Caller,
        import: &EkCaImport,
        out: &mut Outbox,
    ) -> Result<EkCaImported, Reason> {
        demand(caller, Role::Owner)?;
        text("source", &import.source)?;
        let count = import.certificates.len();
        if count == 0 || count > limits::EK_CAS_PER_IMPORT_MAX {
            return Err(Reason::new(
                "malformed.command",
                format!("1 to {} certificates", limits::EK_CAS_PER_IMPORT_MAX),
                count.to_string(),
                "docs/admin-api.md",
                "send the rest in a request of its own, as vestibule ek-ca import does",
            ));
        }
        self.rules.time = time;
        let mut results = Vec::new();
        let mut taken = false;
        for der in &import.certificates {
            let result = self.import_one(now, caller, der, &import.source, out);
            taken |= result.outcome == EkCaOutcome::Imported;
            results.push(result);
        }
        // Notes rest on the whole request: a root may have come after its intermediate.
        for result in &mut results {
            let mut id = [0; 32];
            let known = hex::decode_to_slice(&result.sha256, &mut id).ok();
            let known = known.and_then(|()| self.rules.ek_roots.find(&id));
            if let Some((known, role)) = known {
                result.role = Some(role_name(role).to_owned());
                result.notes = notes(&self.rules.ek_roots, known, role, now);
            }
        }
        let judged_again = if taken { self.judge_eks_again() } else { 0 };
        Ok(EkCaImported {
            results,
            judged_again,
        })
    }

    fn import_one(
        &mut self,
        now: UnixMillis,
        caller: &Caller,
        der: &[u8],
        source: &str,
        out: &mut Outbox,
    ) -> EkCaResult {
        let mut result = EkCaResult {
            sha256: hex::encode(id_of(der)),
            subject: String::new(),
            outcome: EkCaOutcome::Refused,
            role: None,
            notes: Vec::new(),
            reason: None,
        };
        let roots = &self.rules.ek_roots;
        let judged = readable(der).and_then(|cert| {
            result.subject = shown(&cert.subject_text());
            if roots.find(&id_of(der)).is_some() {
                return Ok(None);
            }
            roots.judge_ca(&cert).map(Some)
        });
        match judged {
            Ok(None) => result.outcome = EkCaOutcome::Known,
            Ok(Some(role)) => {
                result.outcome = EkCaOutcome::Imported;
                let act = Act::EkCaImport {
                    sha256: result.sha256.clone(),
                    subject: result.subject.clone(),
                    role: role_name(role).to_owned(),
                    source: source.to_owned(),
                    der: encode_der(der),
                };
                self.write_act(now, caller, act, out);
            }
            Err(reason) => {
                out.refused(caller.cn.clone(), vec![reason.clone()]);
                result.reason = Some(reason);
            }
        }
        result
    }

    /// Puts the machines whose EK certificates have no chain in the queue; how many there are.
    pub(super) fn judge_eks_again(&mut self) -> usize {
        let waiting = self.registry.ek_unmatched();
        self.ek_again = waiting
            .filter(|(_, ek)| ek.is_kept())
            .map(|(machine, _)| machine.id.clone())
            .collect();
        self.ek_again.len()
    }

    /// Judges a few of the queue: signatures must not hold up the loop.
    pub(super) fn judge_some_eks(&mut self, now: UnixMillis, out: &mut Outbox) {
        for _ in 0..limits::EK_JUDGED_PER_TURN {
            let Some(id) = self.ek_again.pop_front() else {
                return;
            };
            let Some(ek) = self.registry.get(&id).and_then(|m| m.ek.as_ref()) else {
                continue;
            };
            let rules = &self.rules;
            let judged = ek_record::judge_again(
                &ek.certs,
                &ek.chain,
                &rules.ek_roots,
                rules.time,
                &rules.policy,
            );
            let Some((certs, reasons)) = judged else {
                continue;
            };
            let record = EkCertificates {
                machine: id,
                cause: EkCause::CaArrived,
                assurance: ek_record::assurance(&certs).to_owned(),
                certs,
                chain: Vec::new(),
                reasons,
            };
            self.write(now, Record::EkCertificates(record), out);
        }
    }

    /// Writes down the EK certificates of a machine that has proven its keys, when they say something
    /// new.
    pub(super) fn ek_shown(
        &mut self,
        now: UnixMillis,
        id: &MachineId,
        facts: &Facts,
        out: &mut Outbox,
    ) {
        // Chains through a CA that was taken out meanwhile must not come back on record.
        if self.cas_still_known(facts).is_err() {
            return;
        }
        let (certs, chain) = (&facts.ek_certs, &facts.ek_chain);
        let news = self.registry.ek_news(now, id, certs, chain);
        let Some((certs, chain)) = news else { return };
        let record = EkCertificates {
            machine: id.clone(),
            cause: EkCause::Attestation,
            assurance: facts.assurance.to_owned(),
            certs,
            chain,
            reasons: Vec::new(),
        };
        self.write(now, Record::EkCertificates(record), out);
    }

    /// The owner may have taken a CA out while the evidence was judged: an anchor, or a link that the
    /// store held. One that only the machine brought is not the owner's to take out.
    pub(super) fn cas_still_known(&self, facts: &Facts) -> Result<(), Reason> {
        let roots = &self.rules.ek_roots;
        let mut cas = facts.ek_cas.iter();
        if let Some(gone) = cas.find(|id| roots.find(id).is_none()) {
            return Err(removed(&format!("CA {}", hex::encode(gone))));
        }
        let mut anchors = facts.ek_certs.iter().filter_map(|cert| cert.path.last());
        match anchors.find(|anchor| !trusted(roots, anchor)) {
            Some(gone) => Err(removed(&format!("CA {gone}"))),
            None => Ok(()),
        }
    }

    /// EK certificates without a chain, by the issuer that is missing.
    pub fn ek_unmatched(&self) -> EkUnmatchedList {
        let mut by_issuer: BTreeMap<(String, Option<String>), EkUnmatched> = BTreeMap::new();
        for (machine, ek) in self.registry.ek_unmatched() {
            for cert in ek.unmatched() {
                let key = (cert.issuer.clone(), cert.issuer_key.clone());
                let entry = by_issuer.entry(key).or_insert_with(|| EkUnmatched {
                    issuer: cert.issuer.clone(),
                    issuer_key: cert.issuer_key.clone(),
                    ca_issuers: Vec::new(),
                    machines: Vec::new(),
                });
                for url in &cert.ca_issuers {
                    let room = entry.ca_issuers.len() < limits::EK_URLS_MAX;
                    if room && !entry.ca_issuers.contains(url) {
                        entry.ca_issuers.push(url.clone());
                    }
                }
                entry.machines.push(EkUnmatchedMachine {
                    machine: machine.id.clone(),
                    state: machine.state.name().to_owned(),
                    ek_name: cert.ek_name.clone(),
                    proven: cert.proven,
                    serial: cert.ek_cert_serial.clone(),
                    since: ek.since,
                    kept: cert.ek_cert_der.is_some(),
                    reason: cert.reason.clone(),
                });
            }
        }
        EkUnmatchedList {
            unmatched: by_issuer.into_values().collect(),
            dropped: self.registry.ek_unmatched_dropped(),
        }
    }

    /// The direct issuers of the EK certificates of admitted machines, or with `all` every CA that
    /// row 4 could take now as well. In order of their digest.
    pub fn ek_export(&self, all: bool) -> EkCaExport {
        let roots = &self.rules.ek_roots;
        let mut cas: BTreeMap<[u8; 32], EkExportedCa> = BTreeMap::new();
        let mut without = Vec::new();
        let admitted = |machine: &&Machine| machine.admitted && !machine.state.has_left();
        for machine in self.registry.iter().filter(admitted) {
            let nothing = EkOnRecord::default();
            let ek = machine.ek.as_ref().unwrap_or(&nothing);
            let mut found = false;
            let mut why = "it has shown no EK certificate".to_owned();
            for cert in ek.certs.iter().filter(|cert| cert.proven) {
                let Some(issuer) = cert.path.first() else {
                    why = format!("its issuer is unknown: {}", cert.issuer);
                    continue;
                };
                let anchor = cert.path.last();
                if !anchor.is_some_and(|anchor| trusted(roots, anchor)) {
                    why = format!("its chain ends in no CA that is trusted: {}", cert.issuer);
                    continue;
                }
                let Some(ca) = issuer_certificate(roots, ek, issuer) else {
                    why = format!("the certificate of its issuer is not kept: {}", cert.issuer);
                    continue;
                };
                found = true;
                let entry = cas.entry(id_of(&ca.der)).or_insert_with(|| exported(&ca));
                if !entry.machines.contains(&machine.id) {
                    entry.machines.push(machine.id.clone());
                }
            }
            if !found {
                without.push(WithoutIssuer {
                    machine: machine.id.clone(),
                    why,
                });
            }
        }
        let mut skipped = BTreeMap::new();
        for (known, _) in roots.list().filter(|_| all) {
            if cas.contains_key(&known.id) {
                continue;
            }
            match self.worthless(known) {
                None => {
                    cas.insert(known.id, exported(&known.cert));
                }
                Some(why) => {
                    let ca = EkSkippedCa {
                        sha256: hex::encode(known.id),
                        subject: shown(&known.cert.subject_text()),
                        why,
                    };
                    skipped.insert(known.id, ca);
                }
            }
        }
        EkCaExport {
            certificates: cas.into_values().collect(),
            without,
            skipped: skipped.into_values().collect(),
        }
    }

    /// Why a verifier that knows no chains must not trust this CA: row 4 would take none through it.
    fn worthless(&self, known: &KnownCa) -> Option<String> {
        let Rules {
            ek_roots,
            time,
            policy,
            ..
        } = &self.rules;
        let valid = |cert: &Cert| ek::validity("CA", cert, *time, policy);
        if !ek_roots.reaches_anchor(&known.id) {
            return Some("no chain to a root".to_owned());
        }
        if let Err(reason) = valid(&known.cert) {
            return Some(format!("{}: {}", reason.code, reason.found));
        }
        let reaches = ek_roots.reaches_anchor_by(&known.id, &|cert| valid(cert).is_ok());
        (!reaches).then(|| "a CA above it is not valid".to_owned())
    }

    /// The certificates and revocation lists, files and imported ones together.
    pub fn ek_cas(&self, now: UnixMillis) -> EkCaList {
        list(&self.rules.ek_roots, now)
    }
}

fn readable(der: &[u8]) -> Result<Cert, Reason> {
    if der.len() > limits::EK_CA_MAX_BYTES {
        return Err(ca_size(der.len()));
    }
    let cert = Cert::read(der).map_err(|error| error.to_string());
    // Octets behind it would make another digest of the same certificate.
    let cert = cert.and_then(|cert| match cert.der.len() == der.len() {
        true => Ok(cert),
        false => Err("octets behind the certificate".to_owned()),
    });
    cert.map_err(|found| {
        Reason::new(
            "ek_ca.encoding",
            "one X.509 certificate in DER",
            found,
            "RFC 5280 section 4.1",
            "look at the file with vestibule inspect ek, and fetch it again",
        )
    })
}

/// The certificate with this digest: of the store, or one that the machine brought.
fn issuer_certificate(roots: &EkRoots, ek: &EkOnRecord, sha256: &str) -> Option<Cert> {
    let mut id = [0; 32];
    hex::decode_to_slice(sha256, &mut id).ok()?;
    if let Some((known, _)) = roots.find(&id) {
        return Some(known.cert.clone());
    }
    let mut brought = ek
        .chain
        .iter()
        .filter_map(|cert| decode_der(&cert.ek_cert_der));
    let der = brought.find(|der| id_of(der) == id)?;
    Cert::read(&der).ok()
}

fn exported(cert: &Cert) -> EkExportedCa {
    EkExportedCa {
        sha256: hex::encode(id_of(&cert.der)),
        subject: shown(&cert.subject_text()),
        der: encode_der(&cert.der),
        quirks: cert
            .quirks
            .iter()
            .map(|quirk| quirk.id().to_owned())
            .collect(),
        machines: Vec::new(),
    }
}

/// What the owner is shown of the store.
pub fn list(roots: &EkRoots, now: UnixMillis) -> EkCaList {
    let certificates = roots.list().map(|(known, role)| {
        let cert = &known.cert;
        let (file, imported) = match &known.from {
            Provenance::File(name) => (Some(name.clone()), None),
            Provenance::Imported { .. } => (None, Some(known.from.to_string())),
        };
        EkCaView {
            sha256: hex::encode(known.id),
            subject: cert.subject_text(),
            issuer: cert.issuer_text(),
            not_after: rfc3339(cert.not_after),
            expiry: expiry(cert, now),
            role: if cert.self_issued() {
                ROOT
            } else {
                INTERMEDIATE
            }
            .to_owned(),
            anchor: role == CaRole::Anchor,
            file,
            imported,
            notes: notes(roots, known, role, now),
        }
    });
    let secs = secs(now);
    let crls = roots.crls().map(|loaded| EkCrlView {
        issuer: loaded.crl.issuer_text(),
        this_update: rfc3339(loaded.crl.this_update),
        next_update: loaded.crl.next_update.map(rfc3339),
        stale: loaded.crl.next_update.is_none_or(|next| secs > next),
        revoked: loaded.crl.len(),
        signer_loaded: loaded.signer_loaded(),
        file: loaded.source.clone(),
    });
    EkCaList {
        certificates: certificates.collect(),
        crls: crls.collect(),
    }
}

fn secs(now: UnixMillis) -> i64 {
    i64::try_from(now.0 / 1000).unwrap_or(i64::MAX)
}

fn expiry(cert: &Cert, now: UnixMillis) -> Expiry {
    let left = cert.not_after.saturating_sub(secs(now));
    match left {
        ..0 => Expiry::Expired,
        0..=SOON_SECS => Expiry::Soon,
        _ => Expiry::Valid,
    }
}

/// What an owner should know of a certificate that was taken.
fn notes(roots: &EkRoots, known: &KnownCa, role: CaRole, now: UnixMillis) -> Vec<String> {
    let cert = &known.cert;
    let mut notes = Vec::new();
    match expiry(cert, now) {
        Expiry::Expired => notes.push(format!("expired at {}", rfc3339(cert.not_after))),
        Expiry::Soon => notes.push(format!(
            "expires within 90 days, at {}",
            rfc3339(cert.not_after)
        )),
        Expiry::Valid => {}
    }
    if cert.not_before > secs(now) {
        notes.push(format!("not valid before {}", rfc3339(cert.not_before)));
    }
    if role == CaRole::Link && !roots.reaches_anchor(&known.id) {
        let issuer = shown(&cert.issuer_text());
        let at = cert.ca_issuers.first();
        let at = at.map_or_else(String::new, |url| format!(", said to be at {}", shown(url)));
        notes.push(format!(
            "worth nothing yet: no chain to a root, its issuer {issuer} is unknown{at}"
        ));
    }
    if role == CaRole::Anchor && !cert.self_issued() {
        notes.push("an intermediate that is trusted by itself".to_owned());
    }
    if cert.sha1() && !cert.self_issued() {
        notes.push("signed with SHA-1".to_owned());
    }
    if cert.basic_constraints.is_none() {
        notes.push("says nothing of being a CA, as certificates of version 1".to_owned());
    }
    notes
}
