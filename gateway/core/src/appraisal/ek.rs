//! Rows 2 and 4: the shape of an endorsement key, and what its certificate is worth.
//!
//! A certificate says that a vendor made the TPM, not whose machine it is in. Sources: TCG EK
//! Credential Profile for TPM 2.0 revision 2.5; RFC 5280 section 6 reduced to EK chains.

use attest_wire::tpm::{Curve as TpmCurve, Public, PublicKind};

use super::quirks::Quirk;
use super::revocation::{self, Status};
use super::shown;
use super::x509::{self, Cert, CertError, CertKey, Curve, RsaUse, TpmNames, names_equal};
use crate::identity::UnixMillis;
use crate::policy::{Mode, Policy};
use crate::reason::Reason;

pub(crate) use super::ek_roots::ca_size;
pub use super::ek_roots::{CaRole, CertId, EkRoots, KnownCa, Provenance, id_of};
pub use super::revocation::LoadedCrl;

const PROFILE: &str = "TCG EK Credential Profile 2.5";
const RFC5280: &str = "RFC 5280 section 6.1";

/// Certificates between an EK and its anchor.
const DEPTH_MAX: usize = 6;
/// Signatures verified for one EK; a hostile chain must not buy more.
const SIGNATURES_MAX: usize = 24;

use x509::{KU_KEY_AGREEMENT, KU_KEY_CERT_SIGN, KU_KEY_ENCIPHERMENT};

/// `tcg-kp-EKCertificate`.
pub(super) const EKU_EK: &str = "2.23.133.8.1";
/// `anyExtendedKeyUsage`.
pub(super) const EKU_ANY: &str = "2.5.29.37.0";

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
    /// The same trust in a time that is not before `known`; where nothing is trusted it stays so.
    pub(crate) fn not_before(self, known: UnixMillis) -> Self {
        match self {
            Self::None => Self::None,
            Self::Floor(ms) => Self::Floor(ms.max(known)),
            Self::Admin(ms) => Self::Admin(ms.max(known)),
            Self::Authenticated(ms) => Self::Authenticated(ms.max(known)),
            Self::Rtc(ms) => Self::Rtc(ms.max(known)),
        }
    }

    /// Seconds since 1970, and whether it may be later than that.
    pub(super) fn secs(self) -> Option<(i64, bool)> {
        let (ms, only_floor) = match self {
            Self::None => return None,
            Self::Floor(ms) => (ms, true),
            Self::Admin(ms) | Self::Authenticated(ms) | Self::Rtc(ms) => (ms, false),
        };
        Some((i64::try_from(ms.0 / 1000).unwrap_or(i64::MAX), only_floor))
    }
}

/// What a passing EK certificate leaves behind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Noted {
    /// Oddities that were tolerated.
    pub quirks: Vec<Quirk>,
    /// What is not known of revocation, where the policy only reports it.
    pub crl: Vec<Reason>,
}

pub(super) const VENDOR_CHAIN: &str = "vendor-chain";

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
            Self::VendorChain { .. } => VENDOR_CHAIN,
            Self::BareEk => "bare-ek",
        }
    }
}

/// A certificate that fits its EK, and what is known of its chain.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The EK certificate.
    pub leaf: Cert,
    /// CA certificates of its chain, direct issuer first, anchor last; empty without a chain.
    pub path: Vec<Cert>,
    /// Without a chain: the last certificate that signatures lead to, whose issuer is missing.
    pub top: Option<Cert>,
}

/// Judges one EK certificate.
///
/// # Errors
/// The reason, one of `ek.cert.*` and `ek.crl.*`.
pub fn appraise_cert(
    ek: &Public,
    cert: &[u8],
    chain: &[Cert],
    roots: &EkRoots,
    time: TimeTrust,
    policy: &Policy,
    noted: &mut Noted,
) -> Result<Assurance, Reason> {
    appraise_shown(ek, cert, chain, roots, time, policy, noted).0
}

/// The same, and what is to be written down of a certificate that is this EK's, chain or not.
pub(super) fn appraise_shown(
    ek: &Public,
    cert: &[u8],
    chain: &[Cert],
    roots: &EkRoots,
    time: TimeTrust,
    policy: &Policy,
    noted: &mut Noted,
) -> (Result<Assurance, Reason>, Option<Shown>) {
    let leaf = Cert::parse(cert).map_err(|error| unreadable(&error));
    let leaf = leaf.and_then(|leaf| {
        key_equals(ek, &leaf)?;
        usage(&leaf)?;
        Ok(leaf)
    });
    match leaf {
        Ok(leaf) => {
            let (judged, shown) = appraise_chain(leaf, chain, roots, time, policy, noted);
            (judged, Some(shown))
        }
        Err(reason) => (Err(reason), None),
    }
}

/// The second half of row 4, for a certificate that was found to be its EK's: validity, chain,
/// revocation. Also what is asked again when a CA arrives.
pub fn appraise_chain(
    leaf: Cert,
    chain: &[Cert],
    roots: &EkRoots,
    time: TimeTrust,
    policy: &Policy,
    noted: &mut Noted,
) -> (Result<Assurance, Reason>, Shown) {
    let mut shown = Shown {
        leaf,
        path: Vec::new(),
        top: None,
    };
    let leaf = &shown.leaf;
    if let Err(reason) = validity("EK certificate", leaf, time, policy) {
        return (Err(reason), shown);
    }
    let mut walk = Walk {
        chain,
        roots,
        time,
        policy,
        signatures: 0,
        best: None,
        crl: Vec::new(),
        reached: (0, leaf),
    };
    let mut path = vec![leaf];
    let Some(anchor) = walk.climb(&mut path) else {
        let top = walk.reached.1;
        let reason = walk.best.unwrap_or_else(|| unknown_issuer(top, roots));
        shown.top = Some(top.clone());
        return (Err(reason), shown);
    };
    let quirks = leaf.quirks.iter().copied();
    noted.quirks.extend(quirks.filter(|quirk| quirk.deviates()));
    if path.iter().any(|cert| cert.sha1()) {
        noted.quirks.push(Quirk::EkChainSha1);
    }
    noted.crl.append(&mut walk.crl);
    let assurance = Assurance::VendorChain {
        anchor_sha256: id_of(&anchor.der),
        tpm: leaf.tpm.clone(),
    };
    let cas = path.iter().skip(1).copied().chain([anchor]);
    shown.path = cas.cloned().collect();
    (Ok(assurance), shown)
}

/// What to say of a certificate that cannot be read.
pub fn unreadable(error: &CertError) -> Reason {
    Reason::new(
        "ek.cert.encoding",
        "an X.509 certificate in DER",
        error.to_string(),
        PROFILE,
        "read the NV index again; if it stays, ask the vendor for the certificate",
    )
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
        (
            PublicKind::Ecc { curve, .. },
            CertKey::Ec {
                curve: other,
                point,
            },
        ) => same_curve(*curve, other) && ek.ecc_point().as_ref() == Some(point),
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

/// KeyUsage, extended key usage, CA bit and critical extensions of an EK certificate: what it says
/// of itself, without key, chain and time.
///
/// # Errors
/// `ek.cert.extension`, `ek.cert.eku` or `ek.cert.usage`.
pub fn usage(leaf: &Cert) -> Result<(), Reason> {
    let refuse = |code, expected: &str, found: String| {
        Err(Reason::new(
            code,
            expected,
            found,
            PROFILE,
            "this is no EK certificate; ask the vendor",
        ))
    };
    if let Some(oid) = &leaf.unknown_critical {
        return refuse(
            "ek.cert.extension",
            "no unknown critical extension",
            oid.clone(),
        );
    }
    if let Some(purposes) = &leaf.eku
        && !purposes.iter().any(|oid| oid == EKU_EK)
    {
        return refuse(
            "ek.cert.eku",
            "extended key usage 2.23.133.8.1",
            shown(&purposes.join(" ")),
        );
    }
    if leaf.basic_constraints.is_some_and(|(ca, _)| ca) {
        return refuse("ek.cert.usage", "cA false", "a CA certificate".into());
    }
    if let CertKey::Rsa {
        usage: RsaUse::PssOnly,
        ..
    } = leaf.key
    {
        return refuse(
            "ek.cert.usage",
            "a key that decrypts",
            "id-RSASSA-PSS: a key for signatures only".into(),
        );
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

/// Whether a certificate is valid now, as far as the clock and the policy say.
///
/// # Errors
/// `ek.cert.expired` or `ek.cert.not_yet_valid`.
pub(crate) fn validity(
    what: &str,
    cert: &Cert,
    time: TimeTrust,
    policy: &Policy,
) -> Result<(), Reason> {
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

/// `top` is the last certificate that the chain leads to: the EK's own, or an intermediate.
fn unknown_issuer(top: &Cert, roots: &EkRoots) -> Reason {
    let aia = match top.ca_issuers.first() {
        Some(url) => format!("; its certificate is said to be at {url}"),
        None => String::new(),
    };
    Reason::new(
        "ek.cert.chain",
        format!("a chain to one of {} trusted certificates", roots.len()),
        format!("issuer {} is unknown{aia}", shown(&top.issuer_text())),
        RFC5280,
        "fetch it elsewhere and import it: vestibule ek-ca import FILE",
    )
}

fn same_curve(own: TpmCurve, other: &Curve) -> bool {
    match own {
        TpmCurve::P256 => *other == Curve::P256,
        TpmCurve::P384 => *other == Curve::P384,
        TpmCurve::P521 => *other == Curve::P521,
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
    /// What is not known of revocation on the path that was found.
    crl: Vec<Reason>,
    /// The longest path that signatures lead to, and the certificate it ends in.
    reached: (usize, &'a Cert),
}

impl<'a> Walk<'a> {
    /// `path`: the leaf and the CA certificates above it so far, each issued by the next.
    fn climb(&mut self, path: &mut Vec<&'a Cert>) -> Option<&'a Cert> {
        let (roots, chain) = (self.roots, self.chain);
        let child = *path.last()?;
        if path.len() > self.reached.0 {
            self.reached = (path.len(), child);
        }
        for anchor in roots.anchors() {
            if names(child, anchor) && self.issued(path, anchor, true) {
                match self.revoked(path, anchor) {
                    Ok(unknown) => {
                        self.crl = unknown;
                        return Some(anchor);
                    }
                    Err(reason) => self.refuse(reason),
                }
            }
        }
        if path.len() > DEPTH_MAX {
            return None;
        }
        for issuer in chain.iter().chain(roots.links()) {
            if !path.iter().any(|before| before.der == issuer.der)
                && names(child, issuer)
                && self.issued(path, issuer, false)
            {
                path.push(issuer);
                if let Some(anchor) = self.climb(path) {
                    return Some(anchor);
                }
                path.pop();
            }
        }
        None
    }

    /// Keeps the most telling refusal: that a certificate is revoked, else the first one met.
    fn refuse(&mut self, reason: Reason) {
        if reason.code == "ek.cert.revoked" {
            self.best = Some(reason);
        } else {
            self.best.get_or_insert(reason);
        }
    }

    fn issued(&mut self, path: &[&Cert], issuer: &Cert, anchor: bool) -> bool {
        let Some(child) = path.last() else {
            return false;
        };
        let judged = self.may_issue(issuer, path, anchor).and_then(|()| {
            self.signatures += 1;
            if self.signatures > SIGNATURES_MAX {
                return Err(Reason::new(
                    "ek.cert.chain",
                    format!("a chain found within {SIGNATURES_MAX} signatures"),
                    "more certificates of the same names",
                    RFC5280,
                    "send the certificates of this EK's chain only",
                ));
            }
            if child.signed_by(issuer) {
                return Ok(());
            }
            Err(Reason::new(
                "ek.cert.signature",
                format!("a signature by {}", shown(&child.issuer_text())),
                "a signature that does not verify",
                RFC5280,
                "the certificate is forged or damaged",
            ))
        });
        match judged {
            Ok(()) => true,
            Err(reason) => {
                self.refuse(reason);
                false
            }
        }
    }

    /// Whether the issuer is a CA for that depth. An anchor is trusted because the operator put it
    /// there: its CA bit is checked only where the extension exists (old roots are version 1).
    fn may_issue(&self, issuer: &Cert, path: &[&Cert], anchor: bool) -> Result<(), Reason> {
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
            && !anchor
        {
            return refuse("no unknown critical extension", oid.clone());
        }
        // Self-issued certificates are not counted (section 6.1.4 l): a CA's own change of keys.
        let below = path
            .iter()
            .skip(1)
            .filter(|cert| !cert.self_issued())
            .count();
        match issuer.basic_constraints {
            Some((false, _)) => return refuse("cA true", "cA false".into()),
            None if !anchor => return refuse("basic constraints", "none".into()),
            Some((true, Some(len))) if below > len as usize => {
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
        // A CA for other purposes, as Microsoft's for AIKs: RFC 5280 leaves this open for CAs, those
        // who write the extension mean it so.
        if let Some(purposes) = &issuer.eku
            && !anchor
            && !purposes.iter().any(|oid| oid == EKU_EK || oid == EKU_ANY)
        {
            return refuse(
                "a CA whose extended key usage has 2.23.133.8.1, or none",
                shown(&purposes.join(" ")),
            );
        }
        validity("issuer", issuer, self.time, self.policy)
    }

    /// Asks the revocation lists about each certificate of a path that ends in `anchor`; gives what
    /// is not known where that is only reported.
    fn revoked(&mut self, path: &[&Cert], anchor: &Cert) -> Result<Vec<Reason>, Reason> {
        let enforced = self.policy.crl() == Mode::Enforce;
        let mut unknown = Vec::new();
        let issuers = path.iter().skip(1).copied().chain([anchor]);
        for (cert, issuer) in path.iter().zip(issuers) {
            let signatures = &mut self.signatures;
            let mut spend = || {
                *signatures += 1;
                *signatures <= SIGNATURES_MAX
            };
            match revocation::status(cert, issuer, self.roots, self.time, enforced, &mut spend) {
                Status::NotRevoked => {}
                Status::Revoked(reason) => return Err(*reason),
                Status::Unknown(reasons) => unknown.extend(reasons),
            }
        }
        if enforced && !unknown.is_empty() {
            return Err(unknown.remove(0));
        }
        Ok(unknown)
    }
}

/// Name and key identifier chaining.
pub(super) fn names(child: &Cert, issuer: &Cert) -> bool {
    names_equal(&child.issuer, &issuer.subject)
        && match (&child.aki, &issuer.ski) {
            (Some(aki), Some(ski)) => aki == ski,
            _ => true,
        }
}
