//! Rows 2 and 4: the shape of an endorsement key, and what its certificate is worth.
//!
//! A certificate says that a vendor made the TPM, not whose machine it is in. Sources: TCG EK
//! Credential Profile for TPM 2.0 revision 2.5; RFC 5280 section 6 reduced to EK chains.

use attest_wire::tpm::{Public, PublicKind};
use sha2::{Digest as _, Sha256};

use super::quirks::Quirk;
use super::shown;
use super::x509::{Cert, CertError, CertKey, TpmNames};
use crate::identity::UnixMillis;
use crate::policy::Policy;
use crate::reason::Reason;

const PROFILE: &str = "TCG EK Credential Profile 2.5";
const RFC5280: &str = "RFC 5280 section 6.1";

/// Certificates between an EK and its anchor.
const DEPTH_MAX: usize = 6;
/// Signatures verified for one EK; a hostile chain must not buy more.
const SIGNATURES_MAX: usize = 24;

/// Key usage bits as x509-parser counts them (bit 0 = digitalSignature).
const KU_KEY_ENCIPHERMENT: u16 = 1 << 2;
const KU_KEY_AGREEMENT: u16 = 1 << 4;
const KU_KEY_CERT_SIGN: u16 = 1 << 5;

/// How far the wall clock may be believed (docs/PROTOCOL.md section 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeTrust {
    /// No idea: validity is not judged.
    None,
    /// It is at least this late.
    Floor(UnixMillis),
    /// Set by an administrator.
    Admin(UnixMillis),
    /// By an authenticated source.
    Authenticated(UnixMillis),
    /// By a battery-backed clock.
    Rtc(UnixMillis),
}

impl TimeTrust {
    /// Seconds since 1970, and whether it may be later than that.
    fn secs(self) -> Option<(i64, bool)> {
        let (ms, only_floor) = match self {
            Self::None => return None,
            Self::Floor(ms) => (ms, true),
            Self::Admin(ms) | Self::Authenticated(ms) | Self::Rtc(ms) => (ms, false),
        };
        Some((i64::try_from(ms.0 / 1000).unwrap_or(i64::MAX), only_floor))
    }
}

/// The certificates that EK chains may end in: vendor roots, or any CA the operator trusts.
#[derive(Debug, Clone, Default)]
pub struct EkRoots {
    anchors: Vec<Cert>,
}

impl EkRoots {
    /// Takes PEM (any number of certificates, other blocks skipped) or one DER certificate.
    ///
    /// # Errors
    /// [`CertError`] of the first certificate that cannot be read.
    pub fn add(&mut self, file: &[u8]) -> Result<usize, CertError> {
        let before = self.anchors.len();
        if !file.starts_with(&[0x30]) && file.windows(10).any(|w| w == b"-----BEGIN") {
            for block in x509_parser::pem::Pem::iter_from_buffer(file) {
                let block = block.map_err(|e| CertError::Parse(e.to_string()))?;
                if block.label == "CERTIFICATE" {
                    self.anchors.push(Cert::parse(&block.contents)?);
                }
            }
        } else {
            self.anchors.push(Cert::parse(file)?);
        }
        Ok(self.anchors.len() - before)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.anchors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.anchors.is_empty()
    }
}

/// What is known about where an EK comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assurance {
    /// A certificate chain ends in a trusted root.
    VendorChain {
        /// SHA-256 of the anchor's DER.
        anchor_sha256: [u8; 32],
        /// TPM attributes of the certificate.
        tpm: Option<TpmNames>,
    },
    /// No certificate: it may be a software TPM.
    BareEk,
}

impl Assurance {
    /// Word of the receipt.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::VendorChain { .. } => "vendor-chain",
            Self::BareEk => "bare-ek",
        }
    }
}

/// Judges one EK certificate.
///
/// # Errors
/// The reason, one of `ek.cert.*`.
pub fn appraise_cert(
    ek: &Public,
    cert: &[u8],
    chain: &[Cert],
    roots: &EkRoots,
    time: TimeTrust,
    policy: &Policy,
    quirks: &mut Vec<Quirk>,
) -> Result<Assurance, Reason> {
    let leaf = Cert::parse(cert).map_err(|error| {
        Reason::new(
            "ek.cert.encoding",
            "an X.509 certificate in DER",
            error.to_string(),
            PROFILE,
            "read the NV index again; if it stays, ask the vendor for the certificate",
        )
    })?;
    key_equals(ek, &leaf)?;
    leaf_usage(&leaf)?;
    validity("EK certificate", &leaf, time, policy)?;
    if leaf.der.len() != cert.len() {
        quirks.push(Quirk::EkCertPadded);
    }
    if matches!(leaf.key, CertKey::Rsa { oaep_oid: true, .. }) {
        quirks.push(Quirk::EkCertOaepOid);
    }
    if leaf.serial.len() > 1 && leaf.serial[0] == 0 && leaf.serial[1] & 0x80 == 0 {
        quirks.push(Quirk::EkCertSerialNotMinimal);
    }
    let mut walk = Walk {
        chain,
        roots,
        time,
        policy,
        signatures: 0,
        best: None,
        sha1: leaf.sha1(),
    };
    let Some(anchor) = walk.climb(&leaf, 0) else {
        return Err(walk.best.unwrap_or_else(|| unknown_issuer(&leaf, roots)));
    };
    if walk.sha1 {
        quirks.push(Quirk::EkChainSha1);
    }
    Ok(Assurance::VendorChain {
        anchor_sha256: Sha256::digest(&anchor.der).into(),
        tpm: leaf.tpm,
    })
}

/// What to say of an EK that has no certificate.
pub fn missing_cert() -> Reason {
    Reason::new(
        "ek.cert.missing",
        "a certificate for at least one EK",
        "none in NV",
        "policy ek.require_cert",
        "import the vendor's certificate, or approve a bare EK by policy",
    )
}

fn key_equals(ek: &Public, leaf: &Cert) -> Result<(), Reason> {
    let equal = match (&ek.kind, &leaf.key) {
        (PublicKind::Rsa { .. }, CertKey::Rsa { n, e, .. }) => ek
            .rsa_components()
            .is_some_and(|own| own == (n.clone(), e.clone())),
        (PublicKind::Ecc { .. }, CertKey::Ec(point)) => ek.ecc_point().as_ref() == Some(point),
        _ => false,
    };
    if equal {
        return Ok(());
    }
    Err(Reason::new(
        "ek.cert.key",
        "the certificate's key equals the EK the TPM made",
        "another key",
        PROFILE,
        "the certificate belongs to another TPM, or the EK was made with another template",
    ))
}

/// KeyUsage, extended key usage, CA bit and critical extensions of the leaf.
fn leaf_usage(leaf: &Cert) -> Result<(), Reason> {
    let refuse = |code, expected: &str, found: String| {
        Err(Reason::new(
            code,
            expected,
            found,
            PROFILE,
            "this is no EK certificate; ask the vendor",
        ))
    };
    if let Some(oid) = &leaf.unknown_critical
        && oid != "2.5.29.9"
    {
        return refuse(
            "ek.cert.extension",
            "no unknown critical extension",
            oid.clone(),
        );
    }
    if leaf.eku == Some(false) {
        return refuse(
            "ek.cert.eku",
            "extended key usage 2.23.133.8.1",
            "others only".into(),
        );
    }
    if leaf.basic_constraints.is_some_and(|(ca, _)| ca) {
        return refuse("ek.cert.usage", "cA false", "a CA certificate".into());
    }
    let wanted = KU_KEY_ENCIPHERMENT | KU_KEY_AGREEMENT;
    match leaf.key_usage {
        Some(bits) if bits & wanted == 0 => refuse(
            "ek.cert.usage",
            "keyEncipherment or keyAgreement",
            format!("key usage bits {bits:#06x}"),
        ),
        None if leaf.eku.is_none() => refuse(
            "ek.cert.usage",
            "key usage or extended key usage",
            "neither".into(),
        ),
        _ => Ok(()),
    }
}

fn validity(what: &str, cert: &Cert, time: TimeTrust, policy: &Policy) -> Result<(), Reason> {
    let Some((now, only_floor)) = time.secs() else {
        return Ok(());
    };
    if now > cert.not_after && !policy.allow_expired_ek_cert() {
        return Err(Reason::new(
            "ek.cert.expired",
            format!("{what} valid at {now} s"),
            format!("notAfter {} s", cert.not_after),
            "RFC 5280 section 4.1.2.5",
            "set ek.allow_expired in the policy if the vendor issues no new one",
        ));
    }
    if now < cert.not_before && !only_floor {
        return Err(Reason::new(
            "ek.cert.not_yet_valid",
            format!("{what} valid at {now} s"),
            format!("notBefore {} s", cert.not_before),
            "RFC 5280 section 4.1.2.5",
            "check the appliance's clock",
        ));
    }
    Ok(())
}

fn unknown_issuer(leaf: &Cert, roots: &EkRoots) -> Reason {
    Reason::new(
        "ek.cert.chain",
        format!("a chain to one of {} trusted certificates", roots.len()),
        format!("issuer {} is unknown", issuer_text(leaf)),
        RFC5280,
        "add the vendor's root (and intermediate) to the EK roots",
    )
}

/// The printable strings of a raw name, joined: for the operator's eye only.
fn issuer_text(cert: &Cert) -> String {
    use x509_parser::prelude::FromDer as _;
    match x509_parser::x509::X509Name::from_der(&cert.issuer) {
        Ok((_, name)) => shown(&name.to_string()),
        Err(_) => "unreadable".into(),
    }
}

/// Depth-first search from the leaf to an anchor.
struct Walk<'a> {
    chain: &'a [Cert],
    roots: &'a EkRoots,
    time: TimeTrust,
    policy: &'a Policy,
    signatures: usize,
    /// The most telling refusal met on the way.
    best: Option<Reason>,
    sha1: bool,
}

impl<'a> Walk<'a> {
    /// `below`: CA certificates already passed, for path lengths.
    fn climb(&mut self, child: &Cert, below: u32) -> Option<&'a Cert> {
        for anchor in &self.roots.anchors {
            if names(child, anchor) && self.issued(child, anchor, below, true) {
                return Some(anchor);
            }
        }
        if below as usize >= DEPTH_MAX {
            return None;
        }
        for issuer in self.chain {
            if issuer.der != child.der
                && names(child, issuer)
                && self.issued(child, issuer, below, false)
                && let Some(anchor) = self.climb(issuer, below + 1)
            {
                self.sha1 |= issuer.sha1();
                return Some(anchor);
            }
        }
        None
    }

    fn issued(&mut self, child: &Cert, issuer: &Cert, below: u32, anchor: bool) -> bool {
        let judged = self.may_issue(issuer, below, anchor).and_then(|()| {
            self.signatures += 1;
            if self.signatures <= SIGNATURES_MAX && child.signed_by(issuer) {
                return Ok(());
            }
            Err(Reason::new(
                "ek.cert.signature",
                format!("a signature by {}", issuer_text(child)),
                "a signature that does not verify",
                RFC5280,
                "the certificate is forged or damaged",
            ))
        });
        match judged {
            Ok(()) => true,
            Err(reason) => {
                self.best.get_or_insert(reason);
                false
            }
        }
    }

    /// Whether the issuer is a CA for that depth. An anchor is trusted because the operator put it
    /// there: its CA bit is checked only where the extension exists (old roots are version 1).
    fn may_issue(&self, issuer: &Cert, below: u32, anchor: bool) -> Result<(), Reason> {
        let refuse = |expected: &str, found: String| {
            Err(Reason::new(
                "ek.cert.ca",
                expected,
                found,
                RFC5280,
                "the chain contains a certificate that may not issue",
            ))
        };
        if let Some(oid) = &issuer.unknown_critical
            && oid != "2.5.29.9"
            && !anchor
        {
            return refuse("no unknown critical extension", oid.clone());
        }
        match issuer.basic_constraints {
            Some((false, _)) => return refuse("cA true", "cA false".into()),
            None if !anchor => return refuse("basic constraints", "none".into()),
            Some((true, Some(len))) if below > len => {
                return refuse(
                    "a path length that allows the chain",
                    format!("path length {len} with {below} CA certificates below"),
                );
            }
            Some((true, _)) | None => {}
        }
        if issuer
            .key_usage
            .is_some_and(|bits| bits & KU_KEY_CERT_SIGN == 0)
        {
            return refuse("keyCertSign", "key usage without it".into());
        }
        validity("issuer", issuer, self.time, self.policy)
    }
}

/// Name and key identifier chaining.
fn names(child: &Cert, issuer: &Cert) -> bool {
    child.issuer == issuer.subject
        && match (&child.aki, &issuer.ski) {
            (Some(aki), Some(ski)) => aki == ski,
            _ => true,
        }
}
