//! Attribute certificates (RFC 5755), as TCG platform certificates are: read far enough to say
//! which machine and which EK certificate one speaks of. They hold no key and prove nothing here;
//! they are named so that none is taken for an EK certificate.

use super::der::{self, Element, Reader, oid_text, tag};
use super::name::{self, Attribute};
use super::signed::Signed;
use super::{CertError, extensions, name_text, shown_text, time};

/// tcg-at-tcgPlatformSpecification.
const PLATFORM_SPECIFICATION: &[u8] = &[0x67, 0x81, 0x05, 2, 17];
/// tcg-at-tcgCredentialType.
const CREDENTIAL_TYPE: &[u8] = &[0x67, 0x81, 0x05, 2, 25];
/// Attributes of one certificate that are looked at.
const ATTRIBUTES_MAX: usize = 64;

/// Which certificate it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holder {
    /// Issuer of that certificate, as text.
    pub issuer: Option<String>,
    /// Serial number of that certificate, as encoded.
    pub serial: Option<Vec<u8>>,
    /// The holder by name, as text.
    pub name: Option<String>,
}

/// What it says of the machine (TCG Platform Certificate Profile 1.1 section 3.1.3).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Platform {
    /// Manufacturer.
    pub manufacturer: String,
    /// Model.
    pub model: String,
    /// Version.
    pub version: String,
    /// Serial number.
    pub serial: String,
}

/// An attribute certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeCert {
    /// The DER.
    pub der: Vec<u8>,
    /// Whose.
    pub holder: Holder,
    /// Who issued it, as text.
    pub issuer: String,
    /// Serial number as encoded.
    pub serial: Vec<u8>,
    /// Seconds since 1970.
    pub not_before: i64,
    /// Seconds since 1970.
    pub not_after: i64,
    /// The machine it describes.
    pub platform: Platform,
    /// Version of the platform specification, `2.0.43`.
    pub specification: Option<String>,
    /// Credential type, dotted: 2.23.133.8.2 is a platform certificate.
    pub credential_type: Option<String>,
    signed: Signed,
}

impl AttributeCert {
    /// Parses exactly one.
    ///
    /// # Errors
    /// [`CertError`].
    pub fn read(octets: &[u8]) -> Result<Self, CertError> {
        let (signed, tbs, _) = Signed::read(octets, "attribute certificate")?;
        let mut info = tbs.inside();
        let version = info.integer("version")?;
        if version != [1] {
            return Err(CertError::Parse(
                "an attribute certificate of another version than 2".into(),
            ));
        }
        let holder = holder(info.sequence("holder")?)?;
        let issuer = issuer(&mut info)?;
        info.expect(tag::SEQUENCE, "signature algorithm")?;
        let serial = info.integer("serial number")?.to_vec();
        let mut validity = info.sequence("validity")?;
        let not_before = time::read(validity.any("notBefore")?, "notBefore")?.secs;
        let not_after = time::read(validity.any("notAfter")?, "notAfter")?.secs;
        let mut cert = Self {
            der: octets.to_vec(),
            holder,
            issuer,
            serial,
            not_before,
            not_after,
            platform: Platform::default(),
            specification: None,
            credential_type: None,
            signed,
        };
        cert.read_attributes(info.sequence("attributes")?)?;
        info.optional(tag::BIT_STRING, "issuer unique identifier")?;
        if let Some(list) = info.optional(tag::SEQUENCE, "extensions")? {
            for extension in extensions::list(list.inside())? {
                match extension.oid {
                    [0x55, 0x1d, 17] => {
                        cert.platform = platform(&extensions::directory_names(extension.value)?);
                    }
                    // Profile 1.0: attributes as an extension, as in an EK certificate.
                    [0x55, 0x1d, 9] => {
                        let list = der::whole(extension.value, tag::SEQUENCE, "attributes")?;
                        cert.read_attributes(list.inside())?;
                    }
                    _ => {}
                }
            }
        }
        Ok(cert)
    }

    /// Dotted OID of the signature algorithm.
    pub fn signature_oid(&self) -> &str {
        &self.signed.algorithm_oid
    }

    fn read_attributes(&mut self, mut list: Reader<'_>) -> Result<(), CertError> {
        let mut read = 0;
        while !list.is_empty() && read < ATTRIBUTES_MAX {
            read += 1;
            let mut fields = list.sequence("attribute")?;
            let oid = fields.oid("attribute")?;
            let values = fields.expect(tag::SET, "attribute values")?;
            match oid {
                PLATFORM_SPECIFICATION => self.specification = version_text(values),
                CREDENTIAL_TYPE => {
                    let kind = values.inside().sequence("credential type");
                    self.credential_type = kind
                        .and_then(|mut kind| kind.oid("credential type"))
                        .ok()
                        .map(oid_text);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// `SET { SEQUENCE { SEQUENCE { major, minor, revision }, class } }`.
fn version_text(values: Element<'_>) -> Option<String> {
    let mut fields = values.inside().sequence("specification").ok()?;
    let mut version = fields.sequence("version").ok()?;
    let mut part = || der::small(version.integer("version").ok()?);
    Some(format!("{}.{}.{}", part()?, part()?, part()?))
}

fn first_name(names: Reader<'_>) -> Result<Option<String>, CertError> {
    let (names, _) = extensions::names_and_urls(names)?;
    Ok(names.first().map(|raw| name_text(raw)))
}

fn holder(mut fields: Reader<'_>) -> Result<Holder, CertError> {
    let mut holder = Holder::default();
    if let Some(id) = fields.optional(tag::explicit(0), "base certificate")? {
        let mut id = id.inside();
        holder.issuer = first_name(id.sequence("issuer of the base certificate")?)?;
        holder.serial = Some(id.integer("serial of the base certificate")?.to_vec());
    }
    if let Some(names) = fields.optional(tag::explicit(1), "holder's name")? {
        holder.name = first_name(names.inside())?;
    }
    Ok(holder)
}

/// AttCertIssuer: version 1 form is GeneralNames, version 2 form has them inside [0].
fn issuer(info: &mut Reader<'_>) -> Result<String, CertError> {
    let names = match info.optional(tag::explicit(0), "issuer")? {
        Some(form) => form.inside().optional(tag::SEQUENCE, "issuer")?,
        None => Some(info.expect(tag::SEQUENCE, "issuer")?),
    };
    let Some(names) = names else {
        return Ok(String::new());
    };
    Ok(first_name(names.inside())?.unwrap_or_default())
}

/// Attributes of profile 1.0 (2.23.133.2.4 to .6, .23) and of 1.1 (2.23.133.5.1).
fn platform(attributes: &[Attribute<'_>]) -> Platform {
    let mut platform = Platform::default();
    for attribute in attributes {
        let field = match attribute.oid {
            [0x67, 0x81, 0x05, 2, 4] | [0x67, 0x81, 0x05, 5, 1, 1] => &mut platform.manufacturer,
            [0x67, 0x81, 0x05, 2, 5] | [0x67, 0x81, 0x05, 5, 1, 4] => &mut platform.model,
            [0x67, 0x81, 0x05, 2, 6] | [0x67, 0x81, 0x05, 5, 1, 5] => &mut platform.version,
            [0x67, 0x81, 0x05, 2, 23] | [0x67, 0x81, 0x05, 5, 1, 6] => &mut platform.serial,
            _ => continue,
        };
        *field = shown_text(&name::text(attribute.value).unwrap_or_default());
    }
    platform
}
