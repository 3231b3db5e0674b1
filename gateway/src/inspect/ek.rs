//! `vestibule inspect ek`: what a file of certificates holds, as one JSON object.
//!
//! Pure: octets in, a value out. The reading is `gateway_core::appraisal::x509`, the same that row 4
//! of the appraisal does, so what an operator sees here is what the daemon makes of the certificate.
//! Field names are stable and described in docs/INSPECT.md. Judges no chain and no time: those are
//! the daemon's, with the owner's roots.

use gateway_core::appraisal::ek;
use gateway_core::appraisal::x509::{
    AttributeCert, Cert, CertError, CertKey, FILE_MAX_BYTES, Form, Object, RsaUse, Vendor, What,
    cert_url, contents, manufacturer_text, public_hash, rfc3339,
};
use gateway_core::reason::Reason;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// Names of the key usage bits, in their order (RFC 5280 section 4.2.1.3).
const KEY_USAGES: [&str; 9] = [
    "digitalSignature",
    "nonRepudiation",
    "keyEncipherment",
    "dataEncipherment",
    "keyAgreement",
    "keyCertSign",
    "cRLSign",
    "encipherOnly",
    "decipherOnly",
];

/// Everything a file holds.
#[derive(Debug, Serialize)]
pub struct File {
    /// Every certificate, in file order.
    pub certs: Vec<Certificate>,
    /// Every attribute certificate: platform certificates hold no key and are no EK certificates.
    pub attribute_certs: Vec<Attribute>,
    /// How many revocation lists there are.
    pub crls: usize,
    /// What else was seen, in words.
    pub others: Vec<String>,
    /// Why the file holds no certificate.
    pub error: Option<Fault>,
}

impl File {
    /// Whether the file holds certificates and all of them could be read.
    pub fn whole(&self) -> bool {
        self.error.is_none() && self.certs.iter().all(|cert| cert.error.is_none())
    }
}

/// What is wrong: stable code, what belongs there, what is there.
#[derive(Debug, Clone, Serialize)]
pub struct Fault {
    /// Stable code.
    pub code: String,
    /// What belongs there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

impl Fault {
    fn new(code: &str, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}

impl From<Reason> for Fault {
    fn from(reason: Reason) -> Self {
        Self::new(&reason.code, reason.expected, reason.found)
    }
}

/// A public key.
#[derive(Debug, Serialize)]
pub struct Key {
    /// `RSA`, `EC`, or the dotted OID of another algorithm.
    #[serde(rename = "type")]
    kind: String,
    /// Of an RSA modulus.
    #[serde(skip_serializing_if = "Option::is_none")]
    bits: Option<usize>,
    /// Of an EC key, as SEC 2 names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    curve: Option<String>,
    /// `OAEP` or `PSS`, when its algorithm identifier allows an RSA key nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    only: Option<&'static str>,
}

/// What a certificate says of the TPM; every field may be absent.
#[derive(Debug, Default, Serialize)]
pub struct Tpm {
    manufacturer: Option<String>,
    model: Option<String>,
    version: Option<String>,
}

/// One certificate. What could not be read is null or empty, and `error` says why.
#[derive(Debug, Default, Serialize)]
pub struct Certificate {
    der_sha256: Option<String>,
    subject: Option<String>,
    issuer: Option<String>,
    serial: Option<String>,
    not_before: Option<String>,
    not_after: Option<String>,
    key: Option<Key>,
    tpm: Tpm,
    eku: Vec<String>,
    quirks: Vec<&'static str>,
    error: Option<Fault>,
    serial_number: Option<String>,
    ca: Option<bool>,
    path_len: Option<u32>,
    key_usage: Option<Vec<&'static str>>,
    subject_key_id: Option<String>,
    authority_key_id: Option<String>,
    signature: Option<String>,
    tpm_vendor: Option<String>,
    tpm_specification: Option<String>,
    unknown_critical: Option<String>,
    crl_urls: Vec<String>,
    ca_issuers: Vec<String>,
    vendor_url: Option<String>,
    refused: Option<Fault>,
    form: &'static str,
    offset: usize,
    padding: usize,
}

/// The certificate an attribute certificate belongs to.
#[derive(Debug, Default, Serialize)]
pub struct Holder {
    issuer: Option<String>,
    serial: Option<String>,
    name: Option<String>,
}

/// The machine an attribute certificate describes; every field may be absent.
#[derive(Debug, Default, Serialize)]
pub struct Platform {
    manufacturer: Option<String>,
    model: Option<String>,
    version: Option<String>,
    serial: Option<String>,
}

/// One attribute certificate.
#[derive(Debug, Default, Serialize)]
pub struct Attribute {
    der_sha256: Option<String>,
    holder: Holder,
    issuer: Option<String>,
    serial: Option<String>,
    not_before: Option<String>,
    not_after: Option<String>,
    platform: Platform,
    platform_specification: Option<String>,
    credential_type: Option<String>,
    signature: Option<String>,
    error: Option<Fault>,
    form: &'static str,
    offset: usize,
}

/// Looks at a file.
pub fn inspect(file: &[u8]) -> File {
    let mut out = File {
        certs: Vec::new(),
        attribute_certs: Vec::new(),
        crls: 0,
        others: Vec::new(),
        error: None,
    };
    if file.len() > FILE_MAX_BYTES {
        out.error = Some(Fault::new(
            "ek.file.size",
            format!("at most {FILE_MAX_BYTES} bytes"),
            format!("{} bytes or more", file.len()),
        ));
        return out;
    }
    let found = contents(file);
    out.others = found.others;
    for object in &found.objects {
        match &object.what {
            What::Certificate => out.certs.push(certificate(object)),
            What::Damaged(error) => out.certs.push(damaged(object, error)),
            What::AttributeCertificate => out.attribute_certs.push(attribute(object)),
            What::Crl => out.crls += 1,
            What::Pkcs7 => {}
            What::Other(what) => out.others.push((*what).to_owned()),
        }
    }
    if out.certs.is_empty() {
        out.error = Some(holds_none(file, &out));
    }
    out
}

fn holds_none(file: &[u8], seen: &File) -> Fault {
    if !seen.attribute_certs.is_empty() {
        return Fault::new(
            "ek.file.attribute_certificate",
            "a certificate of a key",
            format!(
                "{} attribute certificates (platform certificates)",
                seen.attribute_certs.len()
            ),
        );
    }
    let mut words = seen.others.clone();
    if seen.crls > 0 {
        words.push(format!("{} revocation lists", seen.crls));
    }
    let found = match (file, words.is_empty()) {
        ([], _) => "an empty file".to_owned(),
        (_, false) => words.join(", "),
        (_, true) => {
            let start = &file[..file.len().min(8)];
            format!(
                "{} bytes that begin with {}",
                file.len(),
                hex::encode(start)
            )
        }
    };
    Fault::new(
        "ek.file.none",
        "an X.509 certificate: PEM, DER, PKCS #7, an NV index or a UEFI signature list",
        found,
    )
}

fn damaged(object: &Object<'_>, error: &CertError) -> Certificate {
    Certificate {
        error: Some(ek::unreadable(error).into()),
        form: object.form.name(),
        offset: object.offset,
        padding: object.padding,
        ..Certificate::default()
    }
}

fn certificate(object: &Object<'_>) -> Certificate {
    let digest = Some(hex::encode(Sha256::digest(&object.der)));
    let cert = match Cert::read(&object.der) {
        Ok(cert) => cert,
        Err(error) => {
            return Certificate {
                der_sha256: digest,
                ..damaged(object, &error)
            };
        }
    };
    let mut quirks: Vec<&'static str> = Vec::new();
    if object.padding > 0 || object.form == Form::NvHeader {
        quirks.push(gateway_core::appraisal::quirks::Quirk::EkCertPadded.id());
    }
    quirks.extend(cert.quirks.iter().map(|quirk| quirk.id()));
    let tpm = cert.tpm.clone().unwrap_or_default();
    let vendor = manufacturer_text(&tpm.manufacturer);
    let url = Vendor::of(&tpm.manufacturer).and_then(|vendor| cert_url(vendor, &cert.key));
    Certificate {
        der_sha256: digest,
        subject: Some(cert.subject_text()),
        issuer: Some(cert.issuer_text()),
        serial: Some(hex::encode(&cert.serial)),
        not_before: Some(rfc3339(cert.not_before)),
        not_after: Some(rfc3339(cert.not_after)),
        key: Some(key(&cert.key)),
        tpm: Tpm {
            manufacturer: present(tpm.manufacturer),
            model: present(tpm.model),
            version: present(tpm.version),
        },
        eku: cert.eku.clone().unwrap_or_default(),
        quirks,
        error: wrong_hash(object, &cert),
        serial_number: Some(serial_number(&cert.serial)),
        ca: Some(cert.basic_constraints.is_some_and(|(ca, _)| ca)),
        path_len: cert.basic_constraints.and_then(|(_, length)| length),
        key_usage: cert.key_usage.map(usages),
        subject_key_id: cert.ski.as_ref().map(hex::encode),
        authority_key_id: cert.aki.as_ref().map(hex::encode),
        signature: Some(cert.signature_oid().to_owned()),
        tpm_vendor: vendor,
        tpm_specification: cert.specification.as_ref().map(|specification| {
            let (level, revision) = (specification.level, specification.revision);
            format!("{} level {level} revision {revision}", specification.family)
        }),
        unknown_critical: cert.unknown_critical.clone(),
        crl_urls: cert
            .crl_points
            .iter()
            .flat_map(|point| point.urls.clone())
            .collect(),
        ca_issuers: cert.ca_issuers.clone(),
        vendor_url: url,
        refused: ek::usage(&cert).err().map(Fault::from),
        form: object.form.name(),
        offset: object.offset,
        padding: object.padding,
    }
}

/// Intel's answer says for which key it is; another certificate in it is not the one asked for.
fn wrong_hash(object: &Object<'_>, cert: &Cert) -> Option<Fault> {
    let said = object.public_hash.as_ref()?;
    let is = public_hash(&cert.key).unwrap_or_default();
    (said[..] != is).then(|| {
        Fault::new(
            "ek.file.pubhash",
            format!("pubhash {} of the certificate's key", hex::encode(is)),
            hex::encode(said),
        )
    })
}

fn key(key: &CertKey) -> Key {
    let mut out = Key {
        kind: "RSA".to_owned(),
        bits: None,
        curve: None,
        only: None,
    };
    match key {
        CertKey::Rsa { n, usage, .. } => {
            let zeros = n.first().map_or(0, |first| first.leading_zeros() as usize);
            out.bits = Some(n.len() * 8 - zeros);
            out.only = match usage {
                RsaUse::Any => None,
                RsaUse::OaepOnly => Some("OAEP"),
                RsaUse::PssOnly => Some("PSS"),
            };
        }
        CertKey::Ec { curve, .. } => {
            out.kind = "EC".to_owned();
            out.curve = Some(curve.name().to_owned());
        }
        CertKey::Other(oid) => out.kind.clone_from(oid),
    }
    out
}

fn usages(bits: u16) -> Vec<&'static str> {
    let set = (0..).zip(KEY_USAGES);
    set.filter(|(bit, _)| bits & (1 << bit) != 0)
        .map(|(_, name)| name)
        .collect()
}

/// The serial as a number in hex, as OpenSSL writes it: no leading zeros, a minus for negative ones.
fn serial_number(octets: &[u8]) -> String {
    let negative = octets.first().is_some_and(|first| first & 0x80 != 0);
    let mut magnitude = octets.to_vec();
    if negative {
        // Two's complement: invert and add one.
        let mut carry = true;
        for octet in magnitude.iter_mut().rev() {
            let (sum, over) = (!*octet).overflowing_add(u8::from(carry));
            (*octet, carry) = (sum, over);
        }
    }
    let zeros = magnitude.iter().take_while(|&&octet| octet == 0).count();
    let zeros = zeros.min(magnitude.len().saturating_sub(1));
    let sign = if negative { "-" } else { "" };
    format!("{sign}{}", hex::encode_upper(&magnitude[zeros..]))
}

fn present(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn attribute(object: &Object<'_>) -> Attribute {
    let digest = Some(hex::encode(Sha256::digest(&object.der)));
    let cert = match AttributeCert::read(&object.der) {
        Ok(cert) => cert,
        Err(error) => {
            return Attribute {
                der_sha256: digest,
                error: Some(Fault::new(
                    "ek.attribute_cert.encoding",
                    "an attribute certificate (RFC 5755)",
                    match error {
                        CertError::Parse(what) => what,
                        other => other.to_string(),
                    },
                )),
                form: object.form.name(),
                offset: object.offset,
                ..Attribute::default()
            };
        }
    };
    Attribute {
        der_sha256: digest,
        signature: Some(cert.signature_oid().to_owned()),
        holder: Holder {
            issuer: cert.holder.issuer,
            serial: cert.holder.serial.map(hex::encode),
            name: cert.holder.name,
        },
        issuer: Some(cert.issuer),
        serial: Some(hex::encode(cert.serial)),
        not_before: Some(rfc3339(cert.not_before)),
        not_after: Some(rfc3339(cert.not_after)),
        platform: Platform {
            manufacturer: present(cert.platform.manufacturer),
            model: present(cert.platform.model),
            version: present(cert.platform.version),
            serial: present(cert.platform.serial),
        },
        platform_specification: cert.specification,
        credential_type: cert.credential_type,
        error: None,
        form: object.form.name(),
        offset: object.offset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCa;

    #[test]
    fn serials_are_written_as_openssl_writes_them() {
        let table: [(&[u8], &str); 7] = [
            (&[0x00, 0xe9, 0xba], "E9BA"),
            (&[0x00, 0x00, 0x01], "01"),
            (&[0x01], "01"),
            (&[0x00], "00"),
            (&[0xff], "-01"),
            (&[0x80, 0x00], "-8000"),
            (&[0xff, 0x00], "-0100"),
        ];
        for (octets, text) in table {
            assert_eq!(serial_number(octets), text, "{octets:02x?}");
        }
    }

    #[test]
    fn a_file_of_something_else_is_named() {
        let names = |file: &[u8]| {
            let seen = inspect(file);
            assert!(!seen.whole() && seen.certs.is_empty());
            let error = seen.error.expect("an error");
            (error.code, error.found)
        };
        let none = "ek.file.none".to_owned();
        assert_eq!(names(b""), (none.clone(), "an empty file".into()));
        let (code, found) = names(b"\x7fELF....");
        assert_eq!((code, found.contains("7f454c46")), (none.clone(), true));
        let request = [
            &[0x30, 0x81, 0x8f, 0x30, 0x81, 0x88, 2, 1, 0, 0x30, 0][..],
            &[4; 200],
        ]
        .concat();
        let (_, found) = names(&request);
        assert_eq!(found, "a certificate request", "with an empty name");
        let key = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(names(key), (none, "a PEM block PRIVATE KEY".into()));
    }

    #[test]
    fn an_answer_for_another_key_is_named() {
        use base64::Engine as _;
        let ca = TestCa::new("Intel");
        let url_safe = base64::engine::general_purpose::URL_SAFE;
        let key = Cert::read(&ca.der).expect("a certificate").key;
        let right = public_hash(&key).expect("a key that has a hash");
        let answer = |hash: &[u8]| {
            let (hash, cert) = (url_safe.encode(hash), url_safe.encode(&ca.der));
            let text = format!("{{\"pubhash\":\"{hash}\",\"certificate\":\"{cert}\"}}");
            inspect(text.replace('=', "%3D").as_bytes())
        };
        assert!(answer(&right).whole());
        let wrong = answer(&[7; 32]);
        assert!(!wrong.whole());
        let error = wrong.certs[0].error.as_ref().expect("an error");
        assert_eq!(error.code, "ek.file.pubhash");
        assert_eq!(wrong.certs[0].subject.as_deref(), Some("CN=Intel"));
    }

    #[test]
    fn a_certificate_in_each_wrapping_is_the_same_one() {
        let ca = TestCa::new("Wrapped");
        let der = ca.der.to_vec();
        let size = (der.len() + 2) as u16;
        let head = [&[0x10, 0x01, 0x00][..], &size.to_be_bytes(), &[0x10, 0x02]].concat();
        let list = {
            let one = (der.len() + 16) as u32;
            let guid = [
                0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b,
                0xf0, 0x72,
            ];
            let sizes = [one + 28, 0, one].map(u32::to_le_bytes).concat();
            [&guid[..], &sizes, &[7; 16], &der].concat()
        };
        let files = [
            ("der", 1, der.clone()),
            ("der", 1, [&der[..], &[0xff; 400]].concat()),
            ("der", 1, [&der[..], &[0x11; 192]].concat()),
            ("nv-header", 1, [&head, &der[..], &[0; 9]].concat()),
            ("der", 2, [&der[..], &der].concat()),
            ("der", 2, [&der[..], &[0; 5], &der, &[0xff]].concat()),
            ("pem", 1, ca.pem.clone().into_bytes()),
            ("pem", 2, format!("a\n{}b: c\n{0}", ca.pem).into_bytes()),
            ("efi-signature-list", 1, list.clone()),
            ("efi-signature-list", 1, [&[7, 0, 0, 0], &list[..]].concat()),
        ];
        let digest = hex::encode(Sha256::digest(&der));
        for (form, count, file) in files {
            let seen = inspect(&file);
            assert!(seen.whole(), "{seen:?}");
            assert_eq!(seen.certs.len(), count, "{form}");
            for cert in &seen.certs {
                assert_eq!((cert.form, cert.der_sha256.as_ref()), (form, Some(&digest)));
                assert_eq!(cert.subject.as_deref(), Some("CN=Wrapped"));
            }
        }
        let cut = inspect(&der[..der.len() - 1]);
        assert_eq!(cut.certs.len(), 1);
        let error = cut.certs[0].error.as_ref().expect("cut");
        assert_eq!(error.code, "ek.cert.encoding");
        // The second of a chain, cut: the first is read, the second is named.
        let cut = inspect(&[&der[..], &der[..der.len() - 1]].concat());
        let errors: Vec<bool> = cut.certs.iter().map(|cert| cert.error.is_some()).collect();
        assert_eq!(errors, [false, true]);
    }
}
