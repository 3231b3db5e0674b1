//! One X.509 certificate, reduced to what an EK chain is judged by.
//!
//! Tolerant where vendors are sloppy and nothing is decided by it: serials are octets, names are
//! compared as octets and never encoded anew, odd times and strings are read. Each such thing is a
//! [`Quirk`] of the certificate. Strict where something is decided: one of each extension, the same
//! algorithm inside and outside, no critical extension that was not understood. Verifies one
//! signature; the walk is in `ek`, what a file or an NV index holds in `container`.

mod attribute;
mod container;
mod crl;
mod der;
mod extensions;
mod name;
mod signed;
mod time;
mod vendor;

use super::quirks::Quirk;
use der::{DerError, Reader, tag};
use signed::Signed;

pub use attribute::{AttributeCert, Holder, Platform};
pub use container::{Contents, FILE_MAX_BYTES, Form, Object, What, contents, read_chain, trim_nv};
pub use crl::{Crl, CrlError, Revoked, Scope};
pub use der::oid_text;
pub use extensions::{DistributionPoint, TpmSpecification};
pub(crate) use extensions::{KU_KEY_AGREEMENT, KU_KEY_CERT_SIGN, KU_KEY_ENCIPHERMENT};
pub(crate) use time::days_since_1970;
pub use time::rfc3339;
pub use vendor::{Vendor, cert_url, manufacturer_text, public_hash};

/// Longest serial number that RFC 5280 section 4.1.2.2 allows.
const SERIAL_MAX_BYTES: usize = 20;

/// Why a certificate could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertError {
    /// No DER certificate where one should begin.
    #[error("no DER certificate: {0}")]
    NotDer(&'static str),
    /// A length field does not fit.
    #[error("{what} says {says} bytes, {left} are there")]
    Length {
        /// Which length.
        what: &'static str,
        /// What it says.
        says: usize,
        /// What is there.
        left: usize,
    },
    /// The DER is not a certificate.
    #[error("not an X.509 certificate: {0}")]
    Parse(String),
}

impl From<DerError> for CertError {
    fn from(error: DerError) -> Self {
        Self::Parse(error.to_string())
    }
}

/// What an RSA key may be used for, as its algorithm identifier says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RsaUse {
    /// rsaEncryption: anything.
    Any,
    /// id-RSAES-OAEP: encryption only, as STMicro and Infineon mark EKs.
    OaepOnly,
    /// id-RSASSA-PSS: signatures only.
    PssOnly,
}

/// A named curve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Curve {
    /// secp256r1.
    P256,
    /// secp384r1.
    P384,
    /// secp521r1.
    P521,
    /// Another one, by its OID.
    Other(String),
}

impl Curve {
    /// Its name as SEC 2 has it.
    pub fn name(&self) -> &str {
        match self {
            Self::P256 => "secp256r1",
            Self::P384 => "secp384r1",
            Self::P521 => "secp521r1",
            Self::Other(oid) => oid,
        }
    }
}

/// The public key of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertKey {
    /// RSA modulus and exponent, big-endian without leading zeros; key DER is PKCS #1.
    Rsa {
        /// Modulus.
        n: Vec<u8>,
        /// Exponent.
        e: Vec<u8>,
        /// What its algorithm identifier allows.
        usage: RsaUse,
    },
    /// An EC point as encoded.
    Ec {
        /// Its curve.
        curve: Curve,
        /// The point (SEC 1).
        point: Vec<u8>,
    },
    /// Something else, by its algorithm's OID.
    Other(String),
}

/// What a certificate says about the TPM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TpmNames {
    /// `id:XXXXXXXX`.
    pub manufacturer: String,
    /// Model.
    pub model: String,
    /// `id:XXXX`.
    pub version: String,
}

/// An owned, reduced certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cert {
    /// The DER.
    pub der: Vec<u8>,
    /// Issuer name, raw.
    pub issuer: Vec<u8>,
    /// Subject name, raw.
    pub subject: Vec<u8>,
    /// Serial number as encoded.
    pub serial: Vec<u8>,
    /// Seconds since 1970.
    pub not_before: i64,
    /// Seconds since 1970.
    pub not_after: i64,
    /// Public key.
    pub key: CertKey,
    /// Contents of the subjectPublicKey BIT STRING.
    pub key_bits: Vec<u8>,
    /// `cA` and path length, when the extension is there.
    pub basic_constraints: Option<(bool, Option<u32>)>,
    /// Key usage bits (RFC 5280 section 4.2.1.3, bit 0 is digitalSignature), when there.
    pub key_usage: Option<u16>,
    /// Extended key usages, dotted, when the extension is there.
    pub eku: Option<Vec<String>>,
    /// Subject key identifier.
    pub ski: Option<Vec<u8>>,
    /// Authority key identifier.
    pub aki: Option<Vec<u8>>,
    /// First critical extension that we do not know.
    pub unknown_critical: Option<String>,
    /// TPM attributes of the subject alternative name, or of the subject where that has none.
    pub tpm: Option<TpmNames>,
    /// TPM specification of the subject directory attributes.
    pub specification: Option<TpmSpecification>,
    /// CRL distribution points.
    pub crl_points: Vec<DistributionPoint>,
    /// Where the issuer's certificate is said to be (authority information access).
    pub ca_issuers: Vec<String>,
    /// What was tolerated, in the order of [`Quirk`].
    pub quirks: Vec<Quirk>,
    signed: Signed,
}

impl Cert {
    /// Parses bytes as an NV index or a file holds them.
    ///
    /// # Errors
    /// [`CertError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, CertError> {
        let der = trim_nv(bytes)?;
        let mut cert = Self::read(der)?;
        if der.len() != bytes.len() {
            cert.quirks.insert(0, Quirk::EkCertPadded);
        }
        Ok(cert)
    }

    /// Parses exactly one certificate.
    ///
    /// # Errors
    /// [`CertError`].
    pub fn read(der: &[u8]) -> Result<Self, CertError> {
        let (signed, tbs, outer_algorithm) = Signed::read(der, "certificate")?;
        let mut tbs = tbs.inside();
        let version = match tbs.optional(tag::explicit(0), "version")? {
            Some(version) => der::small(version.inside().integer("version")?).unwrap_or(u32::MAX),
            None => 0,
        };
        let serial = tbs.integer("serial number")?.to_vec();
        if serial.is_empty() {
            return Err(CertError::Parse("serial number: no octets".into()));
        }
        let inner_algorithm = tbs.expect(tag::SEQUENCE, "signature algorithm")?;
        if !signed::same_algorithm(inner_algorithm, outer_algorithm) {
            return Err(CertError::Parse(
                "the signature algorithm inside differs from the one outside".into(),
            ));
        }
        let issuer = tbs.expect(tag::SEQUENCE, "issuer")?.raw;
        let mut validity = tbs.sequence("validity")?;
        let not_before = time::read(validity.any("notBefore")?, "notBefore")?;
        let not_after = time::read(validity.any("notAfter")?, "notAfter")?;
        let subject = tbs.expect(tag::SEQUENCE, "subject")?.raw;
        let mut names = name::attributes(issuer)?;
        let subject_names = name::attributes(subject)?;
        let (key, key_bits, null_missing) = public_key(tbs.sequence("public key")?)?;
        // Unique identifiers: nobody uses them, and they decide nothing.
        for number in [1, 2] {
            tbs.optional(tag::implicit(number), "unique identifier")?;
        }

        let mut tpm = TpmNames::default();
        name::tpm_names(&subject_names, &mut tpm);
        let empty_subject = subject_names.is_empty();
        names.extend(subject_names);
        let mut quirks = Vec::new();
        let mut seen = |is: bool, quirk| {
            if is {
                quirks.push(quirk);
            }
        };
        seen(
            matches!(
                key,
                CertKey::Rsa {
                    usage: RsaUse::OaepOnly,
                    ..
                }
            ),
            Quirk::EkCertOaepOid,
        );
        seen(
            matches!(serial[..], [0, next, ..] if next & 0x80 == 0)
                || matches!(serial[..], [0xff, next, ..] if next & 0x80 != 0),
            Quirk::EkCertSerialNotMinimal,
        );
        seen(serial[0] & 0x80 != 0, Quirk::EkCertSerialNegative);
        seen(
            serial.len() > SERIAL_MAX_BYTES || serial.iter().all(|&o| o == 0),
            Quirk::EkCertSerialRange,
        );
        seen(
            !name::sets_sorted(issuer) || !name::sets_sorted(subject),
            Quirk::EkCertNameUnsorted,
        );
        seen(!name::strings_conform(&names), Quirk::EkCertNameOctets);
        seen(
            names.iter().any(|a| a.value.tag == tag::TELETEX_STRING),
            Quirk::EkCertNameTeletex,
        );
        seen(empty_subject, Quirk::EkCertSubjectEmpty);
        seen(
            !not_before.conforms || !not_after.conforms,
            Quirk::EkCertTimeForm,
        );
        seen(null_missing, Quirk::EkCertRsaNullMissing);
        seen(!der::lengths_minimal(der), Quirk::EkCertBerLength);

        let mut cert = Self {
            der: der.to_vec(),
            issuer: issuer.to_vec(),
            subject: subject.to_vec(),
            serial,
            not_before: not_before.secs,
            not_after: not_after.secs,
            key,
            key_bits,
            basic_constraints: None,
            key_usage: None,
            eku: None,
            ski: None,
            aki: None,
            unknown_critical: None,
            tpm: (tpm != TpmNames::default()).then_some(tpm),
            specification: None,
            crl_points: Vec::new(),
            ca_issuers: Vec::new(),
            quirks,
            signed,
        };
        if cert.tpm.is_some() {
            cert.quirks.push(Quirk::EkCertTpmInSubject);
        }
        if let Some(extensions) = tbs.optional(tag::explicit(3), "extensions")? {
            cert.read_extensions(extensions)?;
            if version != 2 {
                cert.quirks.push(Quirk::EkCertVersion);
            }
        }
        Ok(cert)
    }

    /// Whether `issuer` signed this certificate.
    pub fn signed_by(&self, issuer: &Self) -> bool {
        self.signed.by(&issuer.key, &issuer.key_bits)
    }

    /// Whether the signature rests on SHA-1, as old vendor chains do.
    pub fn sha1(&self) -> bool {
        self.signed.sha1()
    }

    /// Dotted OID of the signature algorithm.
    pub fn signature_oid(&self) -> &str {
        &self.signed.algorithm_oid
    }

    /// The subject as text (RFC 4514); empty for an empty one.
    pub fn subject_text(&self) -> String {
        name_text(&self.subject)
    }

    /// The issuer as text (RFC 4514).
    pub fn issuer_text(&self) -> String {
        name_text(&self.issuer)
    }

    /// Whether subject and issuer are one name.
    pub fn self_issued(&self) -> bool {
        self.subject == self.issuer
    }

    /// Whether the key may sign revocation lists.
    pub fn may_sign_crls(&self) -> bool {
        self.key_usage
            .is_none_or(|bits| bits & extensions::KU_CRL_SIGN != 0)
    }
}

/// The signed part of a certificate as encoded, header included; none where it cannot be cut out.
pub(crate) fn signed_part(certificate: &[u8]) -> Option<&[u8]> {
    let mut whole = Reader(certificate).sequence("certificate").ok()?;
    let part = whole.expect(tag::SEQUENCE, "signed part").ok()?;
    Some(part.raw)
}

/// A raw name as text.
pub(crate) fn name_text(raw: &[u8]) -> String {
    name::rfc4514(raw).map_or_else(|_| "unreadable".into(), |text| shown_long(&text))
}

/// Whether two raw names are one (RFC 5280 section 7.1): the same octets, or the same text in
/// other string types.
pub(crate) fn names_equal(one: &[u8], other: &[u8]) -> bool {
    one == other || name::equal_as_text(one, other)
}

/// SubjectPublicKeyInfo: key, its octets, and whether an RSA key lacks the NULL of RFC 3279
/// section 2.3.1.
fn public_key(mut spki: Reader<'_>) -> Result<(CertKey, Vec<u8>, bool), DerError> {
    const RSA: [u8; 8] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
    const EC: [u8; 7] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
    let mut algorithm = spki.sequence("key algorithm")?;
    let oid = algorithm.oid("key algorithm")?;
    let bits = spki.bit_octets("public key")?.to_vec();
    let usage = match oid.strip_prefix(&RSA) {
        Some([1]) => Some(RsaUse::Any),
        Some([7]) => Some(RsaUse::OaepOnly),
        Some([10]) => Some(RsaUse::PssOnly),
        _ => None,
    };
    if let Some(usage) = usage {
        let null_missing = usage == RsaUse::Any && algorithm.is_empty();
        let mut key = der::whole(&bits, tag::SEQUENCE, "RSA public key")?.inside();
        let n = der::without_zeros(key.integer("modulus")?).to_vec();
        let e = der::without_zeros(key.integer("exponent")?).to_vec();
        return Ok((CertKey::Rsa { n, e, usage }, bits, null_missing));
    }
    if oid == EC {
        let curve = match algorithm.oid("curve") {
            Ok([0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7]) => Curve::P256,
            Ok([0x2b, 0x81, 4, 0, 0x22]) => Curve::P384,
            Ok([0x2b, 0x81, 4, 0, 0x23]) => Curve::P521,
            Ok(other) => Curve::Other(oid_text(other)),
            Err(_) => Curve::Other("explicit parameters".into()),
        };
        let point = bits.clone();
        return Ok((CertKey::Ec { curve, point }, bits, false));
    }
    Ok((CertKey::Other(oid_text(oid)), bits, false))
}

/// Text of a peer, bounded and without control characters.
pub(crate) fn shown_text(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(120).collect()
}

/// The same for whole names.
fn shown_long(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(2048)
        .collect()
}
