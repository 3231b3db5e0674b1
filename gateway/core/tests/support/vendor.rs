//! A vendor of TPMs: root, intermediate, EK certificates, revocation lists; by a library, and octet by
//! octet where a library makes nothing so odd.

#![allow(dead_code, reason = "each test uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

use attest_wire::tpm::Public;
use gateway_core::appraisal::ek::{Assurance, EkRoots, Noted, TimeTrust, appraise_cert};
use gateway_core::appraisal::quirks::Quirk;
use gateway_core::appraisal::x509::Cert;
use gateway_core::identity::UnixMillis;
use gateway_core::policy::{Policy, Preset};
use rand_core::OsRng;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SigningKey as _,
    SubjectPublicKeyInfo,
};
use time::{Duration, OffsetDateTime};

use crate::support::NodeEk;

pub const EKU_EK: &[u64] = &[2, 23, 133, 8, 1];
/// 2025-06-01, seconds since 1970.
pub const NOW: i64 = 1_748_736_000;

pub struct Ca {
    pub der: Vec<u8>,
    pub issuer: Issuer<'static, KeyPair>,
}

pub fn at(secs: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(secs).unwrap()
}

pub fn ca_params(name: &str, ca: IsCa) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut dn = DistinguishedName::new();
    dn.push(DnType::CommonName, name);
    params.distinguished_name = dn;
    params.is_ca = ca;
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = at(NOW) - Duration::days(3650);
    params.not_after = at(NOW) + Duration::days(3650);
    params
}

pub fn unlimited() -> IsCa {
    IsCa::Ca(BasicConstraints::Unconstrained)
}

pub fn root(name: &str) -> Ca {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let params = ca_params(name, unlimited());
    let der = params.self_signed(&key).unwrap().der().to_vec();
    Ca {
        der,
        issuer: Issuer::new(params, key),
    }
}

pub fn intermediate(parent: &Ca, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Ca {
    let key = KeyPair::generate().unwrap();
    let mut params = ca_params(name, unlimited());
    change(&mut params);
    let der = params
        .signed_by(&key, &parent.issuer)
        .unwrap()
        .der()
        .to_vec();
    Ca {
        der,
        issuer: Issuer::new(params, key),
    }
}

/// An EK certificate as vendors make it: empty subject, critical SAN with the TPM's names.
pub fn ek_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = at(NOW) - Duration::days(365);
    params.not_after = at(NOW) + Duration::days(365);
    params.key_usages = vec![KeyUsagePurpose::KeyAgreement];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(EKU_EK.to_vec())];
    params.custom_extensions = vec![san(true)];
    params
}

/// SubjectAltName with directoryName {2.23.133.2.1 = "id:54534554"}.
pub fn san(critical: bool) -> CustomExtension {
    let value = b"id:54534554";
    let oid = [0x06, 0x05, 0x67, 0x81, 0x05, 0x02, 0x01];
    let wrap = |tag: u8, inside: &[u8]| [&[tag, inside.len() as u8][..], inside].concat();
    let attribute = wrap(0x30, &[&oid[..], &wrap(0x0c, value)].concat());
    let name = wrap(0x30, &wrap(0x31, &attribute));
    let content = wrap(0x30, &wrap(0xa4, &name));
    let mut extension = CustomExtension::from_oid_content(&[2, 5, 29, 17], content);
    extension.set_criticality(critical);
    extension
}

pub fn issue(ek: &Public, ca: &Ca, change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    let mut params = ek_params();
    change(&mut params);
    let spki = SubjectPublicKeyInfo::from_der(&ek.spki_der().unwrap()).unwrap();
    params.signed_by(&spki, &ca.issuer).unwrap().der().to_vec()
}

pub struct Vendor {
    pub root: Ca,
    pub ica: Ca,
    pub ek: Public,
}

impl Vendor {
    pub fn new() -> Self {
        let root = root("Vendor Root");
        let ica = intermediate(&root, "Vendor EK CA", |_| {});
        Self {
            root,
            ica,
            ek: NodeEk::p256(&mut OsRng).public,
        }
    }

    pub fn roots(&self) -> EkRoots {
        let mut roots = EkRoots::default();
        assert_eq!(roots.add(&self.root.der), Ok(1));
        roots
    }

    pub fn judge(&self, cert: &[u8], chain: &[&[u8]]) -> Result<Assurance, String> {
        self.judge_at(cert, chain, rtc(NOW), &Policy::preset(Preset::Standard))
            .map(|(assurance, _)| assurance)
    }

    pub fn judge_at(
        &self,
        cert: &[u8],
        chain: &[&[u8]],
        time: TimeTrust,
        policy: &Policy,
    ) -> Result<(Assurance, Vec<Quirk>), String> {
        let chain: Vec<Cert> = chain.iter().map(|der| Cert::parse(der).unwrap()).collect();
        let mut noted = Noted::default();
        appraise_cert(
            &self.ek,
            cert,
            &chain,
            &self.roots(),
            time,
            policy,
            &mut noted,
        )
        .map(|assurance| (assurance, noted.quirks))
        .map_err(|reason| reason.code.into_owned())
    }
}

pub fn rtc(secs: i64) -> TimeTrust {
    TimeTrust::Rtc(UnixMillis(secs as u64 * 1000))
}

/// One DER element.
pub fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let len = content.len();
    let header = match len {
        0..=0x7f => vec![tag, len as u8],
        0x80..=0xff => vec![tag, 0x81, len as u8],
        _ => vec![tag, 0x82, (len >> 8) as u8, len as u8],
    };
    [header, content].concat()
}

pub fn oid(content: &[u8]) -> Vec<u8> {
    tlv(0x06, &[content])
}

/// AttributeTypeAndValue.
pub fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
    tlv(0x30, &[&oid(kind), &tlv(tag, &[value])])
}

/// A name of RDNs of one attribute each.
pub fn name(attributes: &[&[u8]]) -> Vec<u8> {
    let sets: Vec<Vec<u8>> = attributes.iter().map(|a| tlv(0x31, &[a])).collect();
    tlv(0x30, &[&sets.concat()])
}

pub fn extension(id: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let critical: &[u8] = if critical { &[1, 1, 0xff] } else { &[] };
    tlv(0x30, &[&oid(id), critical, &tlv(0x04, &[value])])
}

pub fn generalized(text: &str) -> Vec<u8> {
    tlv(0x18, &[text.as_bytes()])
}

pub const CN: &[u8] = &[0x55, 4, 3];
pub const C: &[u8] = &[0x55, 4, 6];
pub const O: &[u8] = &[0x55, 4, 10];
pub const TPM_MANUFACTURER: &[u8] = &[0x67, 0x81, 5, 2, 1];
pub const TPM_MODEL: &[u8] = &[0x67, 0x81, 5, 2, 2];
pub const TPM_VERSION: &[u8] = &[0x67, 0x81, 5, 2, 3];

impl Ca {
    /// Signature algorithm of its key.
    pub fn algorithm(&self) -> Vec<u8> {
        let p384 = self.issuer.key().algorithm() == &rcgen::PKCS_ECDSA_P384_SHA384;
        let last = if p384 { 3 } else { 2 };
        tlv(0x30, &[&oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, last])])
    }

    pub fn subject(&self) -> Vec<u8> {
        Cert::parse(&self.der).unwrap().subject
    }

    /// `SEQUENCE { tbs, algorithm, signature }`.
    pub fn signed(&self, tbs: &[u8]) -> Vec<u8> {
        let signature = self.issuer.key().sign(tbs).unwrap();
        tlv(
            0x30,
            &[tbs, &self.algorithm(), &tlv(0x03, &[&[0], &signature])],
        )
    }
}

/// An EK certificate octet by octet: a good one, each field of which may be something else.
pub struct Made {
    pub version: Vec<u8>,
    pub serial: Vec<u8>,
    pub issuer: Vec<u8>,
    pub not_before: Vec<u8>,
    pub not_after: Vec<u8>,
    pub subject: Vec<u8>,
    pub spki: Vec<u8>,
    pub extensions: Vec<Vec<u8>>,
}

/// Names of the TPM as STMicro, Infineon and swtpm write them: an RDN for each.
pub fn tpm_name() -> Vec<u8> {
    name(&[
        &attribute(TPM_MANUFACTURER, 0x0c, b"id:54534554"),
        &attribute(TPM_MODEL, 0x0c, b"T1"),
        &attribute(TPM_VERSION, 0x0c, b"id:00010002"),
    ])
}

/// SubjectAltName with this directoryName.
pub fn san_of(critical: bool, name: &[u8]) -> Vec<u8> {
    let names = tlv(0x30, &[&tlv(0xa4, &[name])]);
    extension(&[0x55, 0x1d, 17], critical, &names)
}

pub fn eku_ek() -> Vec<u8> {
    let purposes = tlv(0x30, &[&oid(&[0x67, 0x81, 5, 8, 1])]);
    extension(&[0x55, 0x1d, 37], false, &purposes)
}

impl Made {
    pub fn new(ek: &Public, ca: &Ca) -> Self {
        Self {
            version: tlv(0xa0, &[&[2, 1, 2]]),
            serial: vec![0x01, 0x02],
            issuer: ca.subject(),
            not_before: tlv(0x17, &[b"240101000000Z"]),
            not_after: tlv(0x17, &[b"340101000000Z"]),
            subject: vec![0x30, 0],
            spki: ek.spki_der().unwrap(),
            extensions: vec![san_of(true, &tpm_name()), eku_ek()],
        }
    }

    pub fn by(&self, ca: &Ca) -> Vec<u8> {
        let extensions = tlv(0xa3, &[&tlv(0x30, &[&self.extensions.concat()])]);
        let tbs = tlv(
            0x30,
            &[
                &self.version,
                &tlv(0x02, &[&self.serial]),
                &ca.algorithm(),
                &self.issuer,
                &tlv(0x30, &[&self.not_before, &self.not_after]),
                &self.subject,
                &self.spki,
                if self.extensions.is_empty() {
                    &[]
                } else {
                    &extensions
                },
            ],
        );
        ca.signed(&tbs)
    }
}
