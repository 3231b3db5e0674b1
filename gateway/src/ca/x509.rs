//! From a [`CertProfile`] to a certificate, with rcgen. Decides nothing: every field comes from the
//! profile. The one check here is that a CA signs only profiles that name it.

use gateway_core::identity::UnixMillis;
use gateway_core::issuer::{
    AltNames, Ca as Which, CertProfile, KeyKind, KeyUse, SignedBy, purposes_der,
};
use gateway_core::reason::Reason;
use gateway_core::record::Certificate;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256,
    PublicKeyData, RsaKeySize, SanType, SerialNumber, SignatureAlgorithm, SubjectPublicKeyInfo,
};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use x509_parser::prelude::FromDer;
use zeroize::Zeroizing;

use super::CaError;

/// `id-ce-subjectAltName` and `id-ce-extKeyUsage` as rcgen wants them.
const SUBJECT_ALT_NAME: &[u64] = &[2, 5, 29, 17];
const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];

/// Shortest RSA modulus of a node key, in bits.
const NODE_RSA_MIN_BITS: usize = 2048;

fn failed(what: &'static str) -> impl FnOnce(rcgen::Error) -> CaError {
    move |source| CaError::X509 { what, source }
}

/// 20 random octets for a serial.
pub(super) fn random() -> Result<[u8; 20], CaError> {
    let mut out = [0; 20];
    aws_lc_rs::rand::fill(&mut out).map_err(|_| CaError::Random)?;
    Ok(out)
}

/// PEM with lines of 64 characters (RFC 7468).
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(der));
    let mut out = format!("-----BEGIN {label}-----\n");
    // Room for all of it at once: a growing string would leave pieces of a key behind.
    out.reserve(text.len() + text.len() / 64 + label.len() + 32);
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, next) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = next;
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

/// SHA-1 in hex: SPIRE names certificates by it, nothing here trusts it.
pub(crate) fn sha1_hex(der: &[u8]) -> String {
    use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
    hex::encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, der))
}

/// What the ledger says about a certificate.
pub(super) fn record(
    profile: &CertProfile,
    der: &[u8],
    correlation: Option<String>,
) -> Certificate {
    Certificate {
        machine: match profile.key {
            KeyKind::Node => Some(gateway_core::identity::MachineId(
                profile.common_name.clone(),
            )),
            KeyKind::P256 | KeyKind::P384 | KeyKind::Rsa3072 => None,
        },
        profile: profile.name.into(),
        serial: hex::encode(profile.serial),
        sha256: hex::encode(Sha256::digest(der)),
        sha1: (profile.key == KeyKind::Node).then(|| sha1_hex(der)),
        subject_cn: profile.common_name.clone(),
        not_after: profile.not_after,
        correlation,
    }
}

fn algorithm(kind: KeyKind) -> &'static SignatureAlgorithm {
    match kind {
        KeyKind::P256 | KeyKind::Node => &PKCS_ECDSA_P256_SHA256,
        KeyKind::P384 => &PKCS_ECDSA_P384_SHA384,
        KeyKind::Rsa3072 => &PKCS_RSA_SHA256,
    }
}

/// A key just made for a profile.
pub(super) struct NewKey {
    pair: KeyPair,
    pkcs8: Zeroizing<Vec<u8>>,
}

impl NewKey {
    pub(super) fn generate(profile: &CertProfile) -> Result<Self, CaError> {
        let pair = match profile.key {
            KeyKind::Rsa3072 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_3072),
            kind @ (KeyKind::P256 | KeyKind::P384 | KeyKind::Node) => {
                KeyPair::generate_for(algorithm(kind))
            }
        }
        .map_err(failed(profile.name))?;
        let pkcs8 = Zeroizing::new(pair.serialize_der());
        Ok(Self { pair, pkcs8 })
    }

    pub(super) fn pair(&self) -> &KeyPair {
        &self.pair
    }

    pub(super) fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }
}

/// A stored key, for its algorithm.
pub(super) fn open_key(
    what: &'static str,
    pkcs8: &[u8],
    kind: KeyKind,
) -> Result<KeyPair, CaError> {
    let der = PrivatePkcs8KeyDer::from(pkcs8);
    KeyPair::from_pkcs8_der_and_sign_algo(&der, algorithm(kind)).map_err(failed(what))
}

/// The certificate must be of this key. The key is encrypted and bound to its name, the certificate
/// beside it is not: whoever writes to the database could put there one of his own.
pub(super) fn require_own(
    what: &'static str,
    der: &[u8],
    key: &impl PublicKeyData,
) -> Result<(), CaError> {
    let (_, cert) = x509_parser::parse_x509_certificate(der).map_err(|e| CaError::X509 {
        what,
        source: rcgen::Error::X509(e.to_string()),
    })?;
    if cert.public_key().raw == key.subject_public_key_info() {
        Ok(())
    } else {
        Err(CaError::Exchanged { name: what })
    }
}

/// A CA certificate with its key.
pub(super) struct Authority {
    which: Which,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Signs itself.
    pub(super) fn create(
        which: Which,
        profile: &CertProfile,
        key: &NewKey,
    ) -> Result<Self, CaError> {
        if profile.signed_by != SignedBy::Itself || profile.ca_path_len.is_none() {
            return Err(CaError::WrongIssuer {
                ca: which.name(),
                profile: profile.name,
            });
        }
        let cert = params(profile)?
            .self_signed(&key.pair)
            .map_err(failed(which.name()))?;
        Self::open(which, cert.der(), &key.pkcs8)
    }

    /// From the store.
    pub(super) fn open(which: Which, der: &[u8], pkcs8: &[u8]) -> Result<Self, CaError> {
        let kind = match which {
            Which::Boot => KeyKind::Rsa3072,
            Which::Infra | Which::Device | Which::Admin | Which::Ak => KeyKind::P384,
        };
        let key = open_key(which.name(), pkcs8, kind)?;
        require_own(which.name(), der, &key)?;
        let der = CertificateDer::from(der.to_vec());
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(failed(which.name()))?;
        Ok(Self { which, der, issuer })
    }

    pub(super) fn which(&self) -> Which {
        self.which
    }

    pub(super) fn der(&self) -> &[u8] {
        &self.der
    }

    /// Signs a certificate for `key`; only profiles that name this CA.
    pub(super) fn sign(
        &self,
        profile: &CertProfile,
        key: &impl PublicKeyData,
    ) -> Result<Vec<u8>, CaError> {
        if profile.signed_by != SignedBy::Ca(self.which) {
            return Err(CaError::WrongIssuer {
                ca: self.which.name(),
                profile: profile.name,
            });
        }
        let cert = params(profile)?
            .signed_by(key, &self.issuer)
            .map_err(failed(profile.name))?;
        Ok(cert.der().to_vec())
    }
}

/// X.509 ends with the year 9999 (RFC 5280 section 4.1.2.5), in seconds since 1970.
const LAST_SECOND: u64 = 253_402_300_799;

fn date(at: UnixMillis) -> OffsetDateTime {
    let secs = (at.0 / 1000).min(LAST_SECOND);
    OffsetDateTime::from_unix_timestamp(secs as i64).expect("within the years 1970 to 9999")
}

fn params(profile: &CertProfile) -> Result<CertificateParams, CaError> {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    if let Some(organization) = &profile.organization {
        name.push(DnType::OrganizationName, organization.as_str());
    }
    if let Some(unit) = profile.organizational_unit {
        name.push(DnType::OrganizationalUnitName, unit);
    }
    name.push(DnType::CommonName, profile.common_name.as_str());
    params.distinguished_name = name;
    params.serial_number = Some(SerialNumber::from_slice(&profile.serial));
    params.not_before = date(profile.not_before);
    params.not_after = date(profile.not_after);
    params.is_ca = match profile.ca_path_len {
        Some(len) => IsCa::Ca(BasicConstraints::Constrained(len)),
        None => IsCa::ExplicitNoCa,
    };
    params.use_authority_key_identifier_extension = true;
    params.key_usages = match profile.key_use {
        KeyUse::Sign => vec![KeyUsagePurpose::DigitalSignature],
        KeyUse::Certify => vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign],
    };
    if !profile.purposes.is_empty() {
        params
            .custom_extensions
            .push(CustomExtension::from_oid_content(
                EXTENDED_KEY_USAGE,
                purposes_der(&profile.purposes),
            ));
    }
    match &profile.alt_names {
        AltNames::None => {}
        AltNames::Server { dns, ip } => {
            for dns in dns {
                let name = dns.as_str().try_into().map_err(failed(profile.name))?;
                params.subject_alt_names.push(SanType::DnsName(name));
            }
            let ip = ip.iter().copied().map(SanType::IpAddress);
            params.subject_alt_names.extend(ip);
        }
        AltNames::Device(der) => {
            params
                .custom_extensions
                .push(CustomExtension::from_oid_content(
                    SUBJECT_ALT_NAME,
                    der.clone(),
                ));
        }
    }
    Ok(params)
}

/// A node's key: RSA of at least 2048 bits, or P-256.
pub(super) fn node_key(spki_der: &[u8]) -> Result<SubjectPublicKeyInfo, CaError> {
    let refused = |found: String| {
        CaError::Refused(Reason::new(
            "issue.key",
            "an RSA-2048 or ECC P-256 public key",
            found,
            "docs/PROTOCOL.md, keys and certificates",
            "use a DevID template that the gateway offers",
        ))
    };
    let key = SubjectPublicKeyInfo::from_der(spki_der).map_err(|e| refused(e.to_string()))?;
    if *key.algorithm() == PKCS_ECDSA_P256_SHA256 {
        return Ok(key);
    }
    let (_, spki) = x509_parser::x509::SubjectPublicKeyInfo::from_der(spki_der)
        .map_err(|e| refused(e.to_string()))?;
    match spki.parsed() {
        Ok(x509_parser::public_key::PublicKey::RSA(rsa)) if rsa.key_size() >= NODE_RSA_MIN_BITS => {
            Ok(key)
        }
        Ok(x509_parser::public_key::PublicKey::RSA(rsa)) => {
            Err(refused(format!("RSA with {} bits", rsa.key_size())))
        }
        _ => Err(refused("another kind of key".into())),
    }
}
