//! What the ledger says of the machines' EK certificates: folded in like every other record, so that
//! a restart knows whose issuer is missing and can judge again when it arrives.

use super::machine::State;
use super::registry::{Machine, Registry};
use crate::appraisal::{EkRoots, ek_record};
use crate::identity::{MachineId, UnixMillis};
use crate::limits;
use crate::reason::Reason;
use crate::record::{CarriedCertificate, EkCause, EkCertificate, EkCertificates};
use crate::view::EkCertificateView;
use crate::walk::Step;

/// The EK certificates of one machine.
#[derive(Debug, Clone, Default)]
pub struct EkOnRecord {
    /// Those that fit their EK.
    pub certs: Vec<EkCertificate>,
    /// What came with them.
    pub chain: Vec<CarriedCertificate>,
    /// Since when an issuer is missing.
    pub since: UnixMillis,
    /// When the machine last had its certificates written down; none when an owner has acted since,
    /// or its claim was written anew.
    pub(super) shown_at: Option<UnixMillis>,
}

impl EkOnRecord {
    /// Those without a chain.
    pub fn unmatched(&self) -> impl Iterator<Item = &EkCertificate> {
        self.certs.iter().filter(|cert| cert.path.is_empty())
    }

    /// Whether a CA that arrives can be tried without the machine.
    pub fn is_kept(&self) -> bool {
        self.unmatched().any(|cert| cert.ek_cert_der.is_some())
    }

    /// What an administrator is shown.
    pub fn view(&self) -> impl Iterator<Item = EkCertificateView> {
        self.certs.iter().map(|cert| EkCertificateView {
            sha256: cert.ek_cert_sha256.clone(),
            issuer: cert.issuer.clone(),
            chain: !cert.path.is_empty(),
            proven: cert.proven,
            kept: cert.ek_cert_der.is_some(),
        })
    }

    fn der_of(&self, sha256: &str) -> Option<String> {
        let same = |cert: &&EkCertificate| cert.ek_cert_sha256 == sha256;
        self.certs.iter().find(same)?.ek_cert_der.clone()
    }

    fn same_certs(&self, certs: &[EkCertificate]) -> bool {
        let digests = |certs: &[EkCertificate]| -> Vec<String> {
            let digest = |cert: &EkCertificate| cert.ek_cert_sha256.clone();
            certs.iter().map(digest).collect()
        };
        digests(&self.certs) == digests(certs)
    }
}

/// Whether two say the same, apart from the bytes and the wording of the reason.
fn alike(one: &EkCertificate, other: &EkCertificate) -> bool {
    let plain = |cert: &EkCertificate| EkCertificate {
        reason: None,
        ek_cert_der: None,
        ..cert.clone()
    };
    let code = |cert: &EkCertificate| cert.reason.as_ref().map(|reason| reason.code.clone());
    plain(one) == plain(other) && code(one) == code(other)
}

/// Puts what is known now in the place of what was.
fn exchange(reasons: &mut Vec<Reason>, old: &[EkCertificate], new: &EkCertificates) {
    let gone = |reason: &Reason| {
        let mut olds = old.iter().filter_map(|cert| cert.reason.as_ref());
        olds.any(|old| old.code == reason.code && old.found == reason.found)
    };
    reasons.retain(|reason| !gone(reason));
    let news = new.certs.iter().filter_map(|cert| cert.reason.as_ref());
    for reason in news.chain(&new.reasons) {
        let there = |other: &Reason| other.code == reason.code && other.found == reason.found;
        if !reasons.iter().any(there) {
            reasons.push(reason.clone());
        }
    }
}

impl Registry {
    /// What is to be written down of certificates that a machine has shown; none when it is on record,
    /// or when something else was written a moment ago. Bytes that are on record are left out.
    pub(super) fn ek_news(
        &self,
        now: UnixMillis,
        id: &MachineId,
        certs: &[EkCertificate],
        chain: &[CarriedCertificate],
    ) -> Option<(Vec<EkCertificate>, Vec<CarriedCertificate>)> {
        let nothing = EkOnRecord::default();
        let machine = self.get(id)?;
        let known = machine.ek.as_ref().unwrap_or(&nothing);
        let fresh = |at: UnixMillis| now.0.saturating_sub(at.0) < limits::CLAIM_CHANGE_MS;
        if known.shown_at.is_some_and(fresh) {
            return None;
        }
        let same = known.certs.len() == certs.len()
            && known
                .certs
                .iter()
                .zip(certs)
                .all(|(one, other)| alike(one, other));
        if same {
            return None;
        }
        let mut certs = certs.to_vec();
        for cert in &mut certs {
            if known.der_of(&cert.ek_cert_sha256).is_some() {
                cert.ek_cert_der = None;
            }
        }
        let chain_known = known.same_certs(&certs) && known.chain == chain;
        let chain = if chain_known {
            Vec::new()
        } else {
            chain.to_vec()
        };
        Some((certs, chain))
    }

    pub(super) fn apply_ek(&mut self, seq: u64, at: UnixMillis, record: &EkCertificates) {
        let Some(machine) = self.machines.get_mut(&record.machine) else {
            return;
        };
        let old = machine.ek.take().unwrap_or_default();
        let same = old.same_certs(&record.certs);
        let mut certs = record.certs.clone();
        for cert in &mut certs {
            let kept = cert.ek_cert_der.take();
            if cert.path.is_empty() {
                cert.ek_cert_der = kept.or_else(|| old.der_of(&cert.ek_cert_sha256));
            }
        }
        let was_open = old.unmatched().next().is_some();
        let chain = match record.chain.is_empty() && same {
            true => old.chain,
            false => record.chain.clone(),
        };
        machine.ek = Some(EkOnRecord {
            certs,
            chain,
            since: if same && was_open { old.since } else { at },
            shown_at: match record.cause {
                EkCause::Attestation => Some(at),
                EkCause::CaArrived => old.shown_at,
            },
        });
        // What an admission is worth is said by its verdict.
        if record.cause == EkCause::CaArrived || machine.state == State::Pending {
            machine.assurance = Some(record.assurance.clone());
        }
        exchange(&mut machine.reasons, &old.certs, record);
        if let Some(claim) = &mut machine.claim {
            claim.assurance.clone_from(&record.assurance);
            exchange(&mut claim.would_refuse, &old.certs, record);
        }
        let with = record.certs.iter().filter(|cert| !cert.path.is_empty());
        let with = with.count();
        let (step, text) = match record.cause {
            EkCause::Attestation => (
                Some(Step::Appraise),
                format!(
                    "EK certificates: {with} with a chain, {} without",
                    record.certs.len() - with
                ),
            ),
            EkCause::CaArrived => (
                None,
                format!(
                    "a CA arrived, EK certificates judged again: {}",
                    record.assurance
                ),
            ),
        };
        self.note(&record.machine, seq, at, step, text, record.reasons.clone());
        self.queue_unmatched(&record.machine);
    }

    /// The owner has changed the store: what a machine shows next may be news.
    pub(super) fn ek_cas_changed(&mut self) {
        let eks = self.machines.values_mut();
        for ek in eks.filter_map(|machine| machine.ek.as_mut()) {
            ek.shown_at = None;
        }
    }

    /// An imported CA was taken out, and no file holds it: a chain through it is none any more.
    pub(super) fn apply_ek_ca_removed(
        &mut self,
        seq: u64,
        at: UnixMillis,
        sha256: &str,
        subject: &str,
        by: &str,
    ) {
        let reason = removed(subject);
        let through = |cert: &EkCertificate| {
            let hit = cert.path.iter().any(|ca| ca == sha256);
            hit.then(|| reason.clone())
        };
        for (id, assurance) in self.ek_chains_end(at, through) {
            let text = format!("CA of its EK certificate taken out by {by}: now {assurance}");
            self.note(&id, seq, at, None, text, vec![reason.clone()]);
        }
    }

    /// After a replay: a file of the folder of EK roots may be gone, of which the ledger says nothing.
    pub fn ek_roots_loaded(&mut self, at: UnixMillis, roots: &EkRoots) {
        self.ek_chains_end(at, |cert| {
            let anchor = cert.path.last()?;
            (!trusted(roots, anchor)).then(|| removed(&format!("CA {anchor}")))
        });
    }

    /// Takes the chains away for which `gone` has a reason; the machines, and what they are worth now.
    fn ek_chains_end(
        &mut self,
        at: UnixMillis,
        gone: impl Fn(&EkCertificate) -> Option<Reason>,
    ) -> Vec<(MachineId, String)> {
        let mut hit = Vec::new();
        for machine in self.machines.values_mut() {
            let Some(ek) = &mut machine.ek else { continue };
            if !ek.certs.iter().any(|cert| gone(cert).is_some()) {
                continue;
            }
            let old = ek.certs.clone();
            for cert in &mut ek.certs {
                if let Some(reason) = gone(cert) {
                    cert.path.clear();
                    cert.reason = Some(reason);
                }
            }
            ek.since = at;
            ek.shown_at = None;
            let assurance = ek_record::assurance(&ek.certs).to_owned();
            let now = EkCertificates {
                machine: machine.id.clone(),
                cause: EkCause::CaArrived,
                assurance: assurance.clone(),
                certs: ek.certs.clone(),
                chain: Vec::new(),
                reasons: Vec::new(),
            };
            exchange(&mut machine.reasons, &old, &now);
            if let Some(claim) = &mut machine.claim {
                claim.assurance.clone_from(&assurance);
                exchange(&mut claim.would_refuse, &old, &now);
            }
            machine.assurance = Some(assurance.clone());
            hit.push((machine.id.clone(), assurance));
        }
        for (id, _) in &hit {
            self.queue_unmatched(id);
        }
        hit
    }

    /// Machines whose EK certificates have no chain, the longest waiting first.
    pub fn ek_unmatched(&self) -> impl Iterator<Item = (&Machine, &EkOnRecord)> {
        self.ek_unmatched
            .iter()
            .filter_map(|id| self.machines.get(id))
            .filter_map(|machine| Some((machine, machine.ek.as_ref()?)))
    }

    /// Machines that lost their place in that list to newer ones.
    pub fn ek_unmatched_dropped(&self) -> u64 {
        self.ek_unmatched_dropped
    }

    /// Brings that list in line with one machine.
    pub(super) fn queue_unmatched(&mut self, id: &MachineId) {
        let open = self.machines.get(id).is_some_and(|machine| {
            let missing = |ek: &EkOnRecord| ek.unmatched().next().is_some();
            !machine.state.has_left() && machine.ek.as_ref().is_some_and(missing)
        });
        if !open {
            self.ek_unmatched.retain(|other| other != id);
            return;
        }
        if self.ek_unmatched.contains(id) {
            return;
        }
        self.ek_unmatched.push_back(id.clone());
        while self.ek_unmatched.len() > limits::EK_UNMATCHED_MAX {
            let oldest = self.ek_unmatched.pop_front();
            let machine = oldest.and_then(|id| self.machines.get_mut(&id));
            if let Some(ek) = machine.and_then(|machine| machine.ek.as_mut()) {
                ek.chain.clear();
                for cert in &mut ek.certs {
                    cert.ek_cert_der = None;
                }
            }
            self.ek_unmatched_dropped += 1;
        }
    }
}

/// Whether a chain may end in the certificate with this digest, as a record has it.
pub(super) fn trusted(roots: &EkRoots, sha256: &str) -> bool {
    let mut id = [0; 32];
    hex::decode_to_slice(sha256, &mut id).is_ok() && roots.trusts(&id)
}

/// What to say of a chain whose CA is no longer trusted.
pub(super) fn removed(subject: &str) -> Reason {
    Reason::new(
        "ek_ca.removed",
        "a chain to a CA that is trusted now",
        format!("{} was taken out", crate::appraisal::shown(subject)),
        "docs/OPERATIONS.md, TPM vendors",
        "the node's next attestation says whether another chain is there",
    )
}
