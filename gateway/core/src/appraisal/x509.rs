//! One X.509 certificate, reduced to what an EK chain is judged by.
//!
//! Tolerant where vendors are sloppy and nothing is decided: NV padding, TCG header, serials as
//! bytes, unsorted name SETs (names are compared as raw bytes, never re-encoded). Verifies one
//! signature; the walk is in `ek`.

use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use x509_parser::prelude::{FromDer as _, GeneralName, ParsedExtension, X509Certificate};

/// `tcg-kp-EKCertificate`.
const EKU_EK: &str = "2.23.133.8.1";
/// Header of a certificate stored by the TPM 1.2 PC Client rules: tag 0x1001, full certificate.
const NV_TAG_STORED_CERT: [u8; 3] = [0x10, 0x01, 0x00];
const NV_TAG_FULL_CERT: [u8; 2] = [0x10, 0x02];

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

/// The public key of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertKey {
    /// RSA modulus and exponent, big-endian without leading zeros; key DER is PKCS #1.
    Rsa {
        /// Modulus.
        n: Vec<u8>,
        /// Exponent.
        e: Vec<u8>,
        /// Whether the algorithm was id-RSAES-OAEP instead of rsaEncryption.
        oaep_oid: bool,
    },
    /// An EC point as encoded.
    Ec(Vec<u8>),
    /// Something else.
    Other,
}

/// What the subject alternative name says about the TPM.
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
    /// Whether extended key usage is there, and whether it names an EK certificate.
    pub eku: Option<bool>,
    /// Subject key identifier.
    pub ski: Option<Vec<u8>>,
    /// Authority key identifier.
    pub aki: Option<Vec<u8>>,
    /// First critical extension that we do not know.
    pub unknown_critical: Option<String>,
    /// TPM attributes of the subject alternative name.
    pub tpm: Option<TpmNames>,
    /// CRL distribution point URLs.
    pub crl_urls: Vec<String>,
    tbs: Vec<u8>,
    signature: Vec<u8>,
    signature_oid: String,
    signature_params: Vec<u8>,
}

/// Cuts the certificate out of what an NV index holds: an optional TCG header before, padding
/// behind.
///
/// # Errors
/// [`CertError`] when the header or the DER length does not fit.
pub fn trim_nv(bytes: &[u8]) -> Result<&[u8], CertError> {
    let mut der = bytes;
    if bytes.starts_with(&NV_TAG_STORED_CERT) {
        let (size, rest) = bytes[3..]
            .split_at_checked(2)
            .ok_or(CertError::NotDer("TCG header ends early"))?;
        let says = usize::from(u16::from_be_bytes([size[0], size[1]]));
        let inside = rest.get(..says).ok_or(CertError::Length {
            what: "TCG header",
            says,
            left: rest.len(),
        })?;
        der = inside
            .strip_prefix(&NV_TAG_FULL_CERT)
            .ok_or(CertError::NotDer("TCG header of no full certificate"))?;
    }
    let (head, content) = match der {
        [0x30, 0x82, high, low, ..] => (4, usize::from(u16::from_be_bytes([*high, *low]))),
        [0x30, 0x81, low, ..] => (3, usize::from(*low)),
        _ => return Err(CertError::NotDer("does not begin with SEQUENCE")),
    };
    der.get(..head + content).ok_or(CertError::Length {
        what: "DER SEQUENCE",
        says: head + content,
        left: der.len(),
    })
}

impl Cert {
    /// Parses bytes as an NV index or a file holds them.
    ///
    /// # Errors
    /// [`CertError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, CertError> {
        let der = trim_nv(bytes)?;
        let (_, x509) = X509Certificate::from_der(der)
            .map_err(|error| CertError::Parse(short(&error.to_string())))?;
        let tbs = &x509.tbs_certificate;
        let spki = &tbs.subject_pki;
        let key_bits = spki.subject_public_key.data.to_vec();
        let mut cert = Self {
            der: der.to_vec(),
            issuer: tbs.issuer.as_raw().to_vec(),
            subject: tbs.subject.as_raw().to_vec(),
            serial: tbs.raw_serial().to_vec(),
            not_before: tbs.validity.not_before.timestamp(),
            not_after: tbs.validity.not_after.timestamp(),
            key: key_of(&spki.algorithm.algorithm.to_id_string(), &key_bits),
            key_bits,
            basic_constraints: None,
            key_usage: None,
            eku: None,
            ski: None,
            aki: None,
            unknown_critical: None,
            tpm: None,
            crl_urls: Vec::new(),
            tbs: tbs.as_ref().to_vec(),
            signature: x509.signature_value.data.to_vec(),
            signature_oid: x509.signature_algorithm.algorithm.to_id_string(),
            signature_params: x509
                .signature_algorithm
                .parameters
                .as_ref()
                .map(|any| any.data.to_vec())
                .unwrap_or_default(),
        };
        for extension in tbs.extensions() {
            cert.read_extension(extension);
        }
        Ok(cert)
    }

    fn read_extension(&mut self, extension: &x509_parser::extensions::X509Extension<'_>) {
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(bc) => {
                self.basic_constraints = Some((bc.ca, bc.path_len_constraint));
            }
            ParsedExtension::KeyUsage(usage) => self.key_usage = Some(usage.flags),
            ParsedExtension::ExtendedKeyUsage(eku) => {
                self.eku = Some(eku.other.iter().any(|oid| oid.to_id_string() == EKU_EK));
            }
            ParsedExtension::SubjectKeyIdentifier(id) => self.ski = Some(id.0.to_vec()),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                self.aki = id.key_identifier.as_ref().map(|id| id.0.to_vec());
            }
            ParsedExtension::SubjectAlternativeName(san) => {
                self.tpm = tpm_names(&san.general_names);
            }
            ParsedExtension::CRLDistributionPoints(points) => {
                for point in points.iter() {
                    if let Some(x509_parser::extensions::DistributionPointName::FullName(names)) =
                        &point.distribution_point
                    {
                        self.crl_urls
                            .extend(names.iter().filter_map(|name| match name {
                                GeneralName::URI(url) => Some((*url).to_owned()),
                                _ => None,
                            }));
                    }
                }
            }
            ParsedExtension::CertificatePolicies(_) | ParsedExtension::AuthorityInfoAccess(_) => {}
            _ if extension.critical && self.unknown_critical.is_none() => {
                self.unknown_critical = Some(extension.oid.to_id_string());
            }
            _ => {}
        }
    }

    /// Whether `issuer` signed this certificate.
    pub fn signed_by(&self, issuer: &Self) -> bool {
        let ec_size = match &issuer.key {
            CertKey::Ec(point) => point.len(),
            CertKey::Rsa { .. } | CertKey::Other => 0,
        };
        let Some(algorithm) = self.signature_algorithm(ec_size) else {
            return false;
        };
        UnparsedPublicKey::new(algorithm, &issuer.key_bits)
            .verify(&self.tbs, &self.signature)
            .is_ok()
    }

    /// Whether the signature rests on SHA-1, as old vendor chains do.
    pub fn sha1(&self) -> bool {
        self.signature_oid == "1.2.840.113549.1.1.5"
    }

    fn signature_algorithm(&self, ec_point: usize) -> Option<&'static dyn VerificationAlgorithm> {
        Some(match (self.signature_oid.as_str(), ec_point) {
            ("1.2.840.113549.1.1.5", 0) => &signature::RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            ("1.2.840.113549.1.1.11", 0) => &signature::RSA_PKCS1_2048_8192_SHA256,
            ("1.2.840.113549.1.1.12", 0) => &signature::RSA_PKCS1_2048_8192_SHA384,
            ("1.2.840.113549.1.1.13", 0) => &signature::RSA_PKCS1_2048_8192_SHA512,
            ("1.2.840.113549.1.1.10", 0) => return self.pss_algorithm(),
            ("1.2.840.10045.4.3.2", 65) => &signature::ECDSA_P256_SHA256_ASN1,
            ("1.2.840.10045.4.3.3", 65) => &signature::ECDSA_P256_SHA384_ASN1,
            ("1.2.840.10045.4.3.4", 65) => &signature::ECDSA_P256_SHA512_ASN1,
            ("1.2.840.10045.4.3.2", 97) => &signature::ECDSA_P384_SHA256_ASN1,
            ("1.2.840.10045.4.3.3", 97) => &signature::ECDSA_P384_SHA384_ASN1,
            ("1.2.840.10045.4.3.4", 97) => &signature::ECDSA_P384_SHA512_ASN1,
            ("1.2.840.10045.4.3.2", 133) => &signature::ECDSA_P521_SHA256_ASN1,
            ("1.2.840.10045.4.3.3", 133) => &signature::ECDSA_P521_SHA384_ASN1,
            ("1.2.840.10045.4.3.4", 133) => &signature::ECDSA_P521_SHA512_ASN1,
            _ => return None,
        })
    }

    /// RSASSA-PSS-params name the hash first; MGF1 uses the same one in every profile we know.
    fn pss_algorithm(&self) -> Option<&'static dyn VerificationAlgorithm> {
        // id-sha256/384/512: 2.16.840.1.101.3.4.2.x
        const ARC: [u8; 8] = [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02];
        let at = self.signature_params.windows(8).position(|w| w == ARC)?;
        Some(match self.signature_params.get(at + 8)? {
            1 => &signature::RSA_PSS_2048_8192_SHA256,
            2 => &signature::RSA_PSS_2048_8192_SHA384,
            3 => &signature::RSA_PSS_2048_8192_SHA512,
            _ => return None,
        })
    }
}

fn key_of(algorithm: &str, bits: &[u8]) -> CertKey {
    match algorithm {
        "1.2.840.113549.1.1.1" | "1.2.840.113549.1.1.7" => {
            let Ok((_, key)) = x509_parser::public_key::RSAPublicKey::from_der(bits) else {
                return CertKey::Other;
            };
            let trim = |bytes: &[u8]| -> Vec<u8> {
                bytes.iter().copied().skip_while(|&b| b == 0).collect()
            };
            CertKey::Rsa {
                n: trim(key.modulus),
                e: trim(key.exponent),
                oaep_oid: algorithm.ends_with('7'),
            }
        }
        "1.2.840.10045.2.1" => CertKey::Ec(bits.to_vec()),
        _ => CertKey::Other,
    }
}

/// Attributes 2.23.133.2.1 to .3 of a directoryName (TCG EK Credential Profile 3.2.9).
fn tpm_names(names: &[GeneralName<'_>]) -> Option<TpmNames> {
    let mut out = TpmNames::default();
    for name in names {
        let GeneralName::DirectoryName(name) = name else {
            continue;
        };
        for attribute in name.iter_attributes() {
            let value = attribute.as_str().map(short).unwrap_or_default();
            match attribute.attr_type().to_id_string().as_str() {
                "2.23.133.2.1" => out.manufacturer = value,
                "2.23.133.2.2" => out.model = value,
                "2.23.133.2.3" => out.version = value,
                _ => {}
            }
        }
    }
    (out != TpmNames::default()).then_some(out)
}

/// Text of a peer, bounded and without control characters.
fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(120).collect()
}
