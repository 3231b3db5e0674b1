//! The certificates that EK chains are built with, and where each came from.
//!
//! Two kinds: anchors, in which a chain may end (self-signed certificates that the owner imported,
//! and whatever lies in the folder of EK roots), and links, imported intermediates that are worth
//! nothing until a chain goes on above them. Which is which is decided once, in
//! [`EkRoots::judge_ca`]; that a name fits is never enough, each step is a verified signature.

use sha2::{Digest as _, Sha256};

use super::ek::{EKU_ANY, EKU_EK, names};
use super::revocation::{self, LoadedCrl};
use super::shown;
use super::x509::{self, Cert, CertError, CertKey, Crl, CrlError, KU_KEY_CERT_SIGN, What};
use crate::identity::UnixMillis;
use crate::limits;
use crate::reason::Reason;

/// Revocation lists in total: one for each CA of every vendor, twice.
const CRLS_MAX: usize = 1024;
/// Links between a certificate and its anchor that are followed to say whether it has one.
const LINKS_MAX: usize = 8;

const SOURCE: &str = "RFC 5280 section 4.2.1.9";

/// SHA-256 of a certificate's DER: its name in the store.
pub type CertId = [u8; 32];

/// Where a certificate came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provenance {
    /// A file of `inventory.ek_roots_dir`.
    File(String),
    /// An owner's act, in the ledger.
    Imported {
        /// Subject CN of the owner's certificate.
        by: String,
        /// When.
        at: UnixMillis,
        /// Where the owner has it from, in the owner's words.
        source: String,
        /// Ledger sequence of the act.
        seq: u64,
    },
}

impl std::fmt::Display for Provenance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(name) => write!(f, "file {name}"),
            Self::Imported {
                by,
                at,
                source,
                seq,
            } => {
                let secs = i64::try_from(at.0 / 1000).unwrap_or(i64::MAX);
                let at = x509::rfc3339(secs);
                write!(
                    f,
                    "imported by {by} at {at}, source {source} (record {seq})"
                )
            }
        }
    }
}

/// What a certificate may be in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaRole {
    /// A chain may end in it.
    Anchor,
    /// A chain may go through it.
    Link,
}

/// One certificate of the store.
#[derive(Debug, Clone)]
pub struct KnownCa {
    /// The certificate.
    pub cert: Cert,
    /// Its digest.
    pub id: CertId,
    /// Where it came from.
    pub from: Provenance,
    /// Of a link: who signed it, once that is known.
    issuer: Option<CertId>,
}

impl KnownCa {
    /// Without an issuer yet.
    pub fn new(cert: Cert, from: Provenance) -> Self {
        Self {
            id: id_of(&cert.der),
            cert,
            from,
            issuer: None,
        }
    }
}

/// The digest that names a certificate.
pub fn id_of(der: &[u8]) -> CertId {
    Sha256::digest(der).into()
}

/// All certificates that EK chains are built with, and the revocation lists beside them.
#[derive(Debug, Clone, Default)]
pub struct EkRoots {
    anchors: Vec<KnownCa>,
    links: Vec<KnownCa>,
    crls: Vec<LoadedCrl>,
}

impl EkRoots {
    /// Takes what a file holds as anchors: PEM (any number of certificates, other blocks skipped),
    /// DER, PKCS #7.
    ///
    /// # Errors
    /// [`CertError`] of the first certificate that cannot be read, or of a file without one.
    pub fn add(&mut self, file: &[u8]) -> Result<usize, CertError> {
        self.add_from("", file)
    }

    /// The same, and remembers where they came from.
    ///
    /// # Errors
    /// As [`EkRoots::add`]; then nothing of the file was taken.
    pub fn add_from(&mut self, file_name: &str, file: &[u8]) -> Result<usize, CertError> {
        let mut read = Vec::new();
        for object in x509::contents(file).objects {
            match object.what {
                What::Certificate => read.push(Cert::read(&object.der)?),
                What::Damaged(error) => return Err(error),
                What::AttributeCertificate | What::Crl | What::Pkcs7 | What::Other(_) => {}
            }
        }
        if read.is_empty() {
            return Err(CertError::NotDer("the file holds no certificate"));
        }
        let count = read.len();
        for cert in read {
            let from = Provenance::File(file_name.to_owned());
            self.insert(KnownCa::new(cert, from), CaRole::Anchor);
        }
        Ok(count)
    }

    /// Takes the revocation lists of a file, PEM or DER. Load the certificates first: a list that
    /// one of them signed is verified here, once.
    ///
    /// # Errors
    /// [`CrlError`] of the first list that cannot be used, or of a file without one.
    pub fn add_crls(&mut self, file: &[u8]) -> Result<usize, CrlError> {
        self.add_crls_from("", file)
    }

    /// The same, and remembers where they came from.
    ///
    /// # Errors
    /// As [`EkRoots::add_crls`]; then nothing of the file was taken.
    pub fn add_crls_from(&mut self, source: &str, file: &[u8]) -> Result<usize, CrlError> {
        let mut read = Vec::new();
        for object in x509::contents(file).objects {
            match object.what {
                What::Crl => read.push(Crl::read(&object.der)?),
                What::Damaged(error) => return Err(error.into()),
                What::Certificate | What::AttributeCertificate | What::Pkcs7 | What::Other(_) => {}
            }
        }
        if read.is_empty() {
            return Err(CrlError::Parse("the file holds no revocation list".into()));
        }
        if self.crls.len() + read.len() > CRLS_MAX {
            return Err(CrlError::TooLarge {
                what: "revocation lists",
                max: CRLS_MAX,
            });
        }
        let count = read.len();
        for crl in read {
            let signer = self
                .anchors()
                .find(|anchor| crl.names(anchor) && crl.signed_by(anchor));
            let signer_key = signer.map(|anchor| anchor.key_bits.clone());
            self.crls.push(LoadedCrl {
                crl,
                source: source.to_owned(),
                signer_key,
            });
        }
        Ok(count)
    }

    /// How many certificates there are.
    pub fn len(&self) -> usize {
        self.anchors.len() + self.links.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many revocation lists there are.
    pub fn crl_count(&self) -> usize {
        self.crls.len()
    }

    /// The certificates that a chain may end in.
    pub fn anchors(&self) -> impl Iterator<Item = &Cert> {
        self.anchors.iter().map(|known| &known.cert)
    }

    /// The certificates that a chain may only go through.
    pub fn links(&self) -> impl Iterator<Item = &Cert> {
        self.links.iter().map(|known| &known.cert)
    }

    /// All certificates with what they may be, anchors first, each kind in the order it was taken.
    pub fn list(&self) -> impl Iterator<Item = (&KnownCa, CaRole)> {
        let anchors = self.anchors.iter().map(|known| (known, CaRole::Anchor));
        let links = self.links.iter().map(|known| (known, CaRole::Link));
        anchors.chain(links)
    }

    /// The revocation lists, in the order they were loaded.
    pub fn crls(&self) -> impl Iterator<Item = &LoadedCrl> {
        self.crls.iter()
    }

    /// Delta lists without a complete list that they continue: file, and what is missing.
    pub fn loose_deltas(&self) -> Vec<(&str, Reason)> {
        let missing = |loaded: &LoadedCrl| revocation::without_base(&loaded.crl, self);
        self.crls
            .iter()
            .filter_map(|loaded| Some((loaded.source.as_str(), missing(loaded)?)))
            .collect()
    }

    /// One certificate by its digest.
    pub fn find(&self, id: &CertId) -> Option<(&KnownCa, CaRole)> {
        self.list().find(|(known, _)| known.id == *id)
    }

    /// Whether a chain may end in this certificate now.
    pub fn trusts(&self, id: &CertId) -> bool {
        self.anchors.iter().any(|known| known.id == *id)
    }

    /// How many certificates were imported.
    pub fn imported(&self) -> usize {
        let imported = |known: &KnownCa| matches!(known.from, Provenance::Imported { .. });
        self.list().filter(|(known, _)| imported(known)).count()
    }

    /// Takes a certificate as what it was judged to be; one that is there already is left as it is.
    pub fn insert(&mut self, mut known: KnownCa, role: CaRole) {
        let there = |other: &KnownCa| other.id == known.id && other.from == known.from;
        if self.list().any(|(other, _)| there(other)) {
            return;
        }
        match role {
            CaRole::Anchor => {
                let cert = &known.cert;
                let unsigned = self.crls.iter_mut().filter(|crl| crl.signer_key.is_none());
                for loaded in unsigned {
                    if loaded.crl.names(cert) && loaded.crl.signed_by(cert) {
                        loaded.signer_key = Some(cert.key_bits.clone());
                    }
                }
            }
            CaRole::Link => known.issuer = self.issuer_of(&known.cert).map(|issuer| issuer.id),
        }
        for link in self.links.iter_mut().filter(|link| link.issuer.is_none()) {
            if issued(&link.cert, &known.cert) {
                link.issuer = Some(known.id);
            }
        }
        match role {
            CaRole::Anchor => self.anchors.push(known),
            CaRole::Link => self.links.push(known),
        }
    }

    /// Takes an imported certificate out; `false` when there is none with this digest.
    pub fn remove(&mut self, id: &CertId) -> bool {
        let before = self.len();
        let stays =
            |known: &KnownCa| known.id != *id || !matches!(known.from, Provenance::Imported { .. });
        self.anchors.retain(stays);
        self.links.retain(stays);
        if self.find(id).is_none() {
            // What it signed may have another issuer of the same name.
            let orphans: Vec<Cert> = self
                .links
                .iter_mut()
                .filter(|link| link.issuer == Some(*id))
                .map(|link| {
                    link.issuer = None;
                    link.cert.clone()
                })
                .collect();
            for cert in orphans {
                let issuer = self.issuer_of(&cert).map(|known| known.id);
                for link in self.links.iter_mut().filter(|link| link.cert == cert) {
                    link.issuer = issuer;
                }
            }
        }
        self.len() < before
    }

    /// Whether signatures lead from this certificate to an anchor. Says nothing about time, depth or
    /// purpose: row 4 judges those for each EK.
    pub fn reaches_anchor(&self, id: &CertId) -> bool {
        self.reaches_anchor_by(id, &|_| true)
    }

    /// The same, by certificates that `fits` takes, this one included.
    pub fn reaches_anchor_by(&self, id: &CertId, fits: &dyn Fn(&Cert) -> bool) -> bool {
        let mut at = self.find(id).filter(|(known, _)| fits(&known.cert));
        for _ in 0..LINKS_MAX {
            let Some((known, role)) = at else {
                return false;
            };
            if role == CaRole::Anchor {
                return true;
            }
            let issuer = known.issuer.and_then(|issuer| self.find(&issuer));
            // A CA's certificate may have been renewed under the same key: what one signed, each did.
            at = issuer.and_then(|(issuer, _)| {
                let (name, key) = (&issuer.cert.subject, &issuer.cert.key_bits);
                let mut all = self.list();
                all.find(|(other, _)| {
                    let cert = &other.cert;
                    cert.subject == *name && cert.key_bits == *key && fits(cert)
                })
            });
        }
        false
    }

    fn issuer_of(&self, cert: &Cert) -> Option<&KnownCa> {
        let mut all = self.list().map(|(known, _)| known);
        all.find(|known| known.cert.der != cert.der && issued(cert, &known.cert))
    }

    /// Whether a certificate may be imported, and as what. Its validity does not decide: an expired
    /// CA may have signed EK certificates that the policy still takes.
    ///
    /// # Errors
    /// `ek_ca.size`, `ek_ca.not_ca`, `ek_ca.extension`, `ek_ca.signature` or `ek_ca.quota`.
    pub fn judge_ca(&self, cert: &Cert) -> Result<CaRole, Reason> {
        if cert.der.len() > limits::EK_CA_MAX_BYTES {
            return Err(ca_size(cert.der.len()));
        }
        let not_ca = |expected: &str, found: String| {
            Err(Reason::new(
                "ek_ca.not_ca",
                expected,
                found,
                SOURCE,
                "import the CA that issues EK certificates, not a certificate of one TPM or server",
            ))
        };
        if let CertKey::Other(oid) = &cert.key {
            return not_ca("an RSA or EC key", format!("a key of {}", shown(oid)));
        }
        let bare = cert.key_usage.is_none() && cert.eku.is_none() && cert.ski.is_none();
        match cert.basic_constraints {
            Some((true, _)) => {}
            Some((false, _)) => return not_ca("basic constraints with cA true", "cA false".into()),
            // Version 1 has no extensions; some vendors' roots are that old.
            None if cert.self_issued() && bare => {}
            None => return not_ca("basic constraints with cA true", "none".into()),
        }
        if cert
            .key_usage
            .is_some_and(|bits| bits & KU_KEY_CERT_SIGN == 0)
        {
            return not_ca("keyCertSign", "key usage without it".into());
        }
        // A CA that changes its key certifies the new one under its own name; that is a link.
        let other_key = matches!((&cert.aki, &cert.ski), (Some(aki), Some(ski)) if aki != ski);
        let role = match cert.self_issued() && !other_key {
            true => CaRole::Anchor,
            false => CaRole::Link,
        };
        if role == CaRole::Anchor && !cert.signed_by(cert) {
            return Err(Reason::new(
                "ek_ca.signature",
                "a self-signed certificate whose signature verifies",
                format!("{}: it does not", shown(&cert.subject_text())),
                "RFC 5280 section 6.1",
                "the file is damaged or forged, or signed with an algorithm that is not taken; fetch it again",
            ));
        }
        if role == CaRole::Link {
            if let Some(oid) = &cert.unknown_critical {
                return Err(Reason::new(
                    "ek_ca.extension",
                    "no unknown critical extension",
                    shown(oid),
                    "RFC 5280 section 4.2",
                    "no chain could go through it; if the vendor has no other, put it in inventory.ek_roots_dir",
                ));
            }
            if let Some(purposes) = &cert.eku
                && !purposes.iter().any(|oid| oid == EKU_EK || oid == EKU_ANY)
            {
                return not_ca(
                    "extended key usage with 2.23.133.8.1, or none",
                    shown(&purposes.join(" ")),
                );
            }
        }
        if self.imported() >= limits::EK_CAS_MAX {
            return Err(Reason::new(
                "ek_ca.quota",
                format!("at most {} imported certificates", limits::EK_CAS_MAX),
                "one more",
                "gateway/core/src/limits.rs",
                "take out what no machine needs: vestibule ek-ca remove",
            ));
        }
        Ok(role)
    }
}

/// What to say of a certificate that is too large to be a CA's.
pub(crate) fn ca_size(bytes: usize) -> Reason {
    Reason::new(
        "ek_ca.size",
        format!("at most {} bytes", limits::EK_CA_MAX_BYTES),
        format!("{bytes} bytes"),
        "gateway/core/src/limits.rs",
        "look at the file with vestibule inspect ek: the CAs of TPM vendors have below 2 KiB",
    )
}

fn issued(child: &Cert, issuer: &Cert) -> bool {
    names(child, issuer) && child.signed_by(issuer)
}
