//! What is written down of EK certificates, and how they are judged again from that when a CA
//! arrives, without the machine.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::ek::{Assurance, CertId, EkRoots, Noted, Shown, TimeTrust, appraise_chain, id_of};
use super::shown;
use super::x509::Cert;
use crate::identity::EkName;
use crate::limits;
use crate::policy::Policy;
use crate::reason::Reason;
use crate::record::{CarriedCertificate, EkCertificate};

/// DER as a record has it.
pub fn encode_der(der: &[u8]) -> String {
    STANDARD.encode(der)
}

/// DER out of a record.
pub fn decode_der(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// The EK certificates of one hello, as they are written down.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    certs: Vec<EkCertificate>,
    paths: Vec<Cert>,
    kept_bytes: usize,
}

impl Recorder {
    /// Adds what was judged of one certificate.
    pub fn add(&mut self, ek_name: &EkName, judged: &Result<Assurance, Reason>, seen: Shown) {
        let reason = judged.as_ref().err().cloned();
        let Some(mut cert) = describe(ek_name, &seen, reason) else {
            return;
        };
        if cert.path.is_empty() && self.fits(seen.leaf.der.len()) {
            cert.ek_cert_der = Some(encode_der(&seen.leaf.der));
        }
        self.certs.push(cert);
        self.paths.extend(seen.path);
    }

    /// The CAs of the chains that the store holds.
    pub fn stored(&self, roots: &EkRoots) -> Vec<CertId> {
        let ids = self.paths.iter().map(|cert| id_of(&cert.der));
        ids.filter(|id| roots.find(id).is_some()).collect()
    }

    /// All of it, with those of the certificates beside them that are in no other place: the whole
    /// `chain` while an issuer is missing, else the CAs of the chains that were found.
    pub fn finish(
        mut self,
        chain: &[Cert],
        roots: &EkRoots,
    ) -> (Vec<EkCertificate>, Vec<CarriedCertificate>) {
        let missing = self.certs.iter().any(|cert| cert.path.is_empty());
        let paths = std::mem::take(&mut self.paths);
        let wanted = if missing { chain } else { &paths };
        let mut carried: Vec<CarriedCertificate> = Vec::new();
        for cert in wanted {
            let text = encode_der(&cert.der);
            let known = roots.find(&id_of(&cert.der)).is_some()
                || carried.iter().any(|other| other.ek_cert_der == text);
            if !self.certs.is_empty() && !known && self.fits(cert.der.len()) {
                carried.push(CarriedCertificate { ek_cert_der: text });
            }
        }
        (self.certs, carried)
    }

    fn fits(&mut self, bytes: usize) -> bool {
        let fits = self.kept_bytes + bytes <= limits::EK_KEPT_MAX_BYTES;
        if fits {
            self.kept_bytes += bytes;
        }
        fits
    }
}

/// One certificate without its DER; none when its chain was not looked for.
fn describe(ek_name: &EkName, seen: &Shown, reason: Option<Reason>) -> Option<EkCertificate> {
    let lacks = match &seen.top {
        Some(top) => top,
        None if seen.path.is_empty() => return None,
        None => &seen.leaf,
    };
    Some(EkCertificate {
        ek_name: ek_name.clone(),
        proven: false,
        ek_cert_sha256: hex::encode(id_of(&seen.leaf.der)),
        ek_cert_serial: hex::encode(seen.leaf.serial.get(..20).unwrap_or(&seen.leaf.serial)),
        path: seen
            .path
            .iter()
            .map(|ca| hex::encode(id_of(&ca.der)))
            .collect(),
        issuer: shown(&lacks.issuer_text()),
        issuer_key: lacks
            .aki
            .as_ref()
            .map(|aki| hex::encode(aki.get(..32).unwrap_or(aki))),
        ca_issuers: lacks
            .ca_issuers
            .iter()
            .take(limits::EK_URLS_MAX)
            .map(|url| shown(url))
            .collect(),
        reason,
        ek_cert_der: None,
    })
}

/// Judges again those without a chain whose bytes were kept. None when nothing was found.
pub fn judge_again(
    certs: &[EkCertificate],
    chain: &[CarriedCertificate],
    roots: &EkRoots,
    time: TimeTrust,
    policy: &Policy,
) -> Option<(Vec<EkCertificate>, Vec<Reason>)> {
    let read = |text: &str| Cert::read(&decode_der(text)?).ok();
    let chain: Vec<Cert> = chain
        .iter()
        .filter_map(|cert| read(&cert.ek_cert_der))
        .collect();
    let mut noted = Noted::default();
    let mut found = false;
    let judged = certs.iter().map(|cert| {
        let bytes = cert.ek_cert_der.as_deref().filter(|_| cert.path.is_empty());
        let Some(leaf) = bytes.and_then(read) else {
            return EkCertificate {
                ek_cert_der: None,
                ..cert.clone()
            };
        };
        let (result, seen) = appraise_chain(leaf, &chain, roots, time, policy, &mut noted);
        found |= result.is_ok();
        let described = describe(&cert.ek_name, &seen, result.err());
        // Its own validity may be over by now: then nothing new is known of its chain.
        described.map_or_else(
            || EkCertificate {
                ek_cert_der: None,
                ..cert.clone()
            },
            |described| EkCertificate {
                proven: cert.proven,
                ..described
            },
        )
    });
    let judged: Vec<EkCertificate> = judged.collect();
    found.then_some((judged, noted.crl))
}

/// `vendor-chain` when an EK that was proven has a chain.
pub fn assurance(certs: &[EkCertificate]) -> &'static str {
    let vouched = certs
        .iter()
        .any(|cert| cert.proven && !cert.path.is_empty());
    if vouched {
        super::ek::VENDOR_CHAIN
    } else {
        Assurance::BareEk.name()
    }
}
