//! A maker of TPMs that exists in the lab only: a root, an issuing CA, certificates for the EKs of
//! real software TPMs, and a revocation list. `swtpm_localca` makes only good ones.

use anyhow::{Context as _, Result};
use attest_wire::tpm::Public;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CustomExtension,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SubjectPublicKeyInfo, date_time_ymd,
};

/// `tcg-kp-EKCertificate`.
const EKU_EK: &[u64] = &[2, 23, 133, 8, 1];

/// A CA with its key.
pub struct Ca {
    /// Certificate.
    pub der: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

/// The maker.
pub struct Vendor {
    /// What the owner trusts.
    pub root: Ca,
    /// What signs EK certificates; a TPM's NV holds it beside them.
    pub issuing: Ca,
}

impl Vendor {
    /// A maker of that name, with fresh keys. Two of one name differ in their keys only.
    ///
    /// # Errors
    /// Never with a plain name.
    pub fn new(name: &str) -> Result<Self> {
        let root = Ca::root(name)?;
        let issuing = root.below(&format!("{name} EK CA"), |_| {})?;
        Ok(Self { root, issuing })
    }
}

impl Ca {
    fn root(name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let params = ca_params(name);
        let der = params.self_signed(&key)?.der().to_vec();
        let issuer = Issuer::new(params, key);
        Ok(Self { der, issuer })
    }

    /// A CA that this one vouches for; `change` makes it something else.
    ///
    /// # Errors
    /// What is asked for cannot be encoded.
    pub fn below(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = ca_params(name);
        change(&mut params);
        let der = params.signed_by(&key, &self.issuer)?.der().to_vec();
        let issuer = Issuer::new(params, key);
        Ok(Self { der, issuer })
    }

    /// A good EK certificate, but for `change`.
    ///
    /// # Errors
    /// `ek` is no key that a certificate can hold.
    pub fn certify(
        &self,
        ek: &[u8],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Result<Vec<u8>> {
        let spki = Public::decode(ek)?.spki_der().context("an EK's key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2049, 12, 31);
        params.key_usages = vec![
            KeyUsagePurpose::KeyEncipherment,
            KeyUsagePurpose::KeyAgreement,
        ];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(EKU_EK.to_vec())];
        params.custom_extensions = vec![tpm_names()];
        change(&mut params);
        let spki = SubjectPublicKeyInfo::from_der(&spki)?;
        Ok(params.signed_by(&spki, &self.issuer)?.der().to_vec())
    }

    /// Its revocation list, DER, with one serial number.
    ///
    /// # Errors
    /// Never.
    pub fn revoke(&self, serial: u64) -> Result<Vec<u8>> {
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2049, 12, 31),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: serial.into(),
                revocation_time: date_time_ymd(2020, 1, 2),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(params.signed_by(&self.issuer)?.der().to_vec())
    }
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = date_time_ymd(2019, 1, 1);
    params.not_after = date_time_ymd(2049, 12, 31);
    params
}

/// SubjectAltName with directoryName {2.23.133.2.1 = "id:54534554"}, critical: the subject is empty.
fn tpm_names() -> CustomExtension {
    let wrap = |tag: u8, inside: &[u8]| [&[tag, inside.len() as u8][..], inside].concat();
    let oid = wrap(0x06, &[0x67, 0x81, 0x05, 0x02, 0x01]);
    let attribute = wrap(0x30, &[oid, wrap(0x0c, b"id:54534554")].concat());
    let name = wrap(0x30, &wrap(0x31, &attribute));
    let content = wrap(0x30, &wrap(0xa4, &name));
    let mut extension = CustomExtension::from_oid_content(&[2, 5, 29, 17], content);
    extension.set_criticality(true);
    extension
}
