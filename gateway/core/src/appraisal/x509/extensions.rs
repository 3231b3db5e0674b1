//! Extensions of a certificate: those that decide something, and those an operator wants to see.
//!
//! A critical extension that is not known, or whose content could not be read, is named in
//! `unknown_critical`; the judges refuse it. The same one twice makes the certificate unreadable
//! (RFC 5280 section 4.2): which of the two counts is what readers disagree about.

use super::der::{self, DerError, Element, Reader, oid_text, tag};
use super::name::{self, Attribute};
use super::{Cert, CertError, TpmNames, shown_text};
use crate::appraisal::quirks::Quirk;

/// Extensions of one certificate; the most in the field is 14.
const EXTENSIONS_MAX: usize = 64;
/// Entries of one list inside an extension: names, purposes, distribution points.
const LIST_MAX: usize = 64;

/// Key usage: keyEncipherment.
pub(crate) const KU_KEY_ENCIPHERMENT: u16 = 1 << 2;
/// Key usage: keyAgreement.
pub(crate) const KU_KEY_AGREEMENT: u16 = 1 << 4;
/// Key usage: keyCertSign.
pub(crate) const KU_KEY_CERT_SIGN: u16 = 1 << 5;
/// Key usage: cRLSign.
pub(crate) const KU_CRL_SIGN: u16 = 1 << 6;

/// id-ce of the extensions that are read.
mod id {
    pub const SUBJECT_DIRECTORY_ATTRIBUTES: &[u8] = &[0x55, 0x1d, 9];
    pub const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 14];
    pub const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
    pub const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 17];
    pub const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
    pub const CRL_DISTRIBUTION_POINTS: &[u8] = &[0x55, 0x1d, 31];
    pub const CERTIFICATE_POLICIES: &[u8] = &[0x55, 0x1d, 32];
    pub const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 35];
    pub const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];
    pub const AUTHORITY_INFO_ACCESS: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 1];
}

/// caIssuers access method.
const CA_ISSUERS: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 2];
/// tcg-at-tpmSpecification.
const TPM_SPECIFICATION: &[u8] = &[0x67, 0x81, 0x05, 2, 16];

/// Where a certificate's revocation list is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DistributionPoint {
    /// URLs of the full name.
    pub urls: Vec<String>,
    /// Who signs that list, when it is not the issuer (raw names): an indirect CRL.
    pub crl_issuers: Vec<Vec<u8>>,
}

/// Which TPM specification a certificate says the TPM follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TpmSpecification {
    /// `2.0`.
    pub family: String,
    /// Level.
    pub level: u32,
    /// Revision, times a hundred.
    pub revision: u32,
}

/// One Extension.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extension<'a> {
    pub oid: &'a [u8],
    pub critical: bool,
    pub value: &'a [u8],
}

/// `SEQUENCE OF Extension`, none twice.
pub(crate) fn list(mut reader: Reader<'_>) -> Result<Vec<Extension<'_>>, CertError> {
    let mut out: Vec<Extension<'_>> = Vec::new();
    while !reader.is_empty() {
        let mut fields = reader.sequence("extension")?;
        let oid = fields.oid("extension")?;
        let critical = fields
            .optional(tag::BOOLEAN, "critical")?
            .is_some_and(der::boolean);
        let value = fields.expect(tag::OCTET_STRING, "extension value")?.content;
        if out.len() >= EXTENSIONS_MAX {
            return Err(CertError::Parse("more than 64 extensions".into()));
        }
        if out.iter().any(|before| before.oid == oid) {
            return Err(CertError::Parse(format!(
                "extension {} twice",
                oid_text(oid)
            )));
        }
        out.push(Extension {
            oid,
            critical,
            value,
        });
    }
    Ok(out)
}

impl Cert {
    pub(super) fn read_extensions(&mut self, explicit: Element<'_>) -> Result<(), CertError> {
        for extension in list(explicit.inside().sequence("extensions")?)? {
            let known = self.read_extension(&extension);
            if let Err(error) = &known {
                // One that a decision rests on is not left out.
                let decides = [id::BASIC_CONSTRAINTS, id::KEY_USAGE, id::EXTENDED_KEY_USAGE];
                if decides.contains(&extension.oid) {
                    return Err(error.clone().into());
                }
                if !self.quirks.contains(&Quirk::EkCertExtensionForm) {
                    self.quirks.push(Quirk::EkCertExtensionForm);
                }
            }
            if extension.critical && known != Ok(true) && self.unknown_critical.is_none() {
                self.unknown_critical = Some(oid_text(extension.oid));
            }
        }
        Ok(())
    }

    /// Whether the extension is one that we act on.
    fn read_extension(&mut self, extension: &Extension<'_>) -> Result<bool, DerError> {
        let value = extension.value;
        match extension.oid {
            id::BASIC_CONSTRAINTS => self.basic_constraints = Some(basic_constraints(value)?),
            id::KEY_USAGE => self.key_usage = Some(key_usage(value)?),
            id::EXTENDED_KEY_USAGE => self.eku = Some(purposes(value)?),
            id::SUBJECT_KEY_ID => {
                let id = der::whole(value, tag::OCTET_STRING, "subject key identifier")?;
                self.ski = Some(id.content.to_vec());
            }
            id::AUTHORITY_KEY_ID => self.aki = authority_key(value)?,
            id::SUBJECT_ALT_NAME => {
                let names = directory_names(value)?;
                if extension.critical && !names.is_empty() {
                    self.quirks.push(Quirk::EkCertSanCritical);
                }
                let mut tpm = TpmNames::default();
                name::tpm_names(&names, &mut tpm);
                if tpm != TpmNames::default() {
                    // The profile's place; the subject counts only where this has none.
                    self.quirks.retain(|q| *q != Quirk::EkCertTpmInSubject);
                    self.tpm = Some(tpm);
                }
            }
            id::CRL_DISTRIBUTION_POINTS => self.crl_points = distribution_points(value)?,
            id::AUTHORITY_INFO_ACCESS => self.ca_issuers = ca_issuers(value)?,
            id::SUBJECT_DIRECTORY_ATTRIBUTES => {
                // TPMSecurityAssertions beside it is written with explicit and with implicit tags
                // by different makers; it decides nothing and is not read.
                self.specification = specification(value);
            }
            // Any policy is good enough: who may issue is said by the owner's roots.
            id::CERTIFICATE_POLICIES => {}
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn basic_constraints(value: &[u8]) -> Result<(bool, Option<u32>), DerError> {
    let mut fields = der::whole(value, tag::SEQUENCE, "basic constraints")?.inside();
    let ca = fields
        .optional(tag::BOOLEAN, "cA")?
        .is_some_and(der::boolean);
    let length = match fields.optional(tag::INTEGER, "path length")? {
        None => None,
        Some(length) => Some(der::small(length.content).ok_or(DerError::Form {
            what: "path length",
            form: "no small number",
        })?),
    };
    Ok((ca, length))
}

/// Bit 0 of the BIT STRING is the highest of its first octet; here it is the lowest.
fn key_usage(value: &[u8]) -> Result<u16, DerError> {
    let bits = der::whole(value, tag::BIT_STRING, "key usage")?.content;
    let octets = match bits {
        [0..=7, octets @ ..] if octets.len() <= 2 => octets,
        _ => {
            return Err(DerError::Form {
                what: "key usage",
                form: "no BIT STRING of at most nine bits",
            });
        }
    };
    Ok(octets.iter().enumerate().fold(0, |usage, (at, octet)| {
        usage | u16::from(octet.reverse_bits()) << (8 * at)
    }))
}

fn purposes(value: &[u8]) -> Result<Vec<String>, DerError> {
    let mut list = der::whole(value, tag::SEQUENCE, "extended key usage")?.inside();
    let mut out = Vec::new();
    while !list.is_empty() && out.len() < LIST_MAX {
        out.push(oid_text(list.oid("key purpose")?));
    }
    Ok(out)
}

/// The key identifier, when that form is used.
pub(crate) fn authority_key(value: &[u8]) -> Result<Option<Vec<u8>>, DerError> {
    let mut fields = der::whole(value, tag::SEQUENCE, "authority key identifier")?.inside();
    let id = fields.optional(tag::implicit(0), "key identifier")?;
    Ok(id.map(|id| id.content.to_vec()))
}

/// Attributes of the directoryNames among GeneralNames. Intel's first platform certificates have
/// a Name where GeneralNames belong; it is read as the name it is.
pub(crate) fn directory_names(value: &[u8]) -> Result<Vec<Attribute<'_>>, DerError> {
    let names = der::whole(value, tag::SEQUENCE, "subject alternative name")?;
    let mut list = names.inside();
    if list.peek() == Some(tag::SET) {
        return name::attributes(names.raw);
    }
    let mut out = Vec::new();
    let mut read = 0;
    while !list.is_empty() && read < LIST_MAX {
        let name = list.any("general name")?;
        if name.tag == tag::explicit(4) {
            out.extend(name::attributes(name.content)?);
        }
        read += 1;
    }
    Ok(out)
}

/// Raw directoryNames and URLs among GeneralNames.
pub(crate) fn names_and_urls(
    mut list: Reader<'_>,
) -> Result<(Vec<Vec<u8>>, Vec<String>), DerError> {
    let (mut names, mut urls) = (Vec::new(), Vec::new());
    while !list.is_empty() && names.len() + urls.len() < LIST_MAX {
        let name = list.any("general name")?;
        if name.tag == tag::explicit(4) {
            names.push(name.content.to_vec());
        } else if name.tag == tag::implicit(6) {
            urls.push(url(name.content));
        }
    }
    Ok((names, urls))
}

fn url(octets: &[u8]) -> String {
    shown_text(&String::from_utf8_lossy(octets))
}

/// DistributionPointName: the URLs of a full name. A name relative to the issuer is not looked up
/// by anybody.
pub(crate) fn point_urls(point: Element<'_>) -> Result<Vec<String>, DerError> {
    match point.inside().optional(tag::explicit(0), "full name")? {
        Some(full) => Ok(names_and_urls(full.inside())?.1),
        None => Ok(Vec::new()),
    }
}

pub(crate) fn distribution_points(value: &[u8]) -> Result<Vec<DistributionPoint>, DerError> {
    let mut list = der::whole(value, tag::SEQUENCE, "CRL distribution points")?.inside();
    let mut out = Vec::new();
    while !list.is_empty() && out.len() < LIST_MAX {
        let mut fields = list.sequence("distribution point")?;
        let mut point = DistributionPoint::default();
        if let Some(name) = fields.optional(tag::explicit(0), "distribution point name")? {
            point.urls = point_urls(name)?;
        }
        fields.optional(tag::implicit(1), "reasons")?;
        if let Some(issuer) = fields.optional(tag::explicit(2), "CRL issuer")? {
            point.crl_issuers = names_and_urls(issuer.inside())?.0;
        }
        out.push(point);
    }
    Ok(out)
}

fn ca_issuers(value: &[u8]) -> Result<Vec<String>, DerError> {
    let mut list = der::whole(value, tag::SEQUENCE, "authority information access")?.inside();
    let mut out = Vec::new();
    while !list.is_empty() && out.len() < LIST_MAX {
        let mut access = list.sequence("access description")?;
        let method = access.oid("access method")?;
        let place = access.any("access location")?;
        if method == CA_ISSUERS && place.tag == tag::implicit(6) {
            out.push(url(place.content));
        }
    }
    Ok(out)
}

/// tcg-at-tpmSpecification among the subject directory attributes (EK Credential Profile 2.5
/// section 3.2.10).
fn specification(value: &[u8]) -> Option<TpmSpecification> {
    let mut list = der::whole(value, tag::SEQUENCE, "attributes")
        .ok()?
        .inside();
    while !list.is_empty() {
        let mut fields = list.sequence("attribute").ok()?;
        let oid = fields.oid("attribute").ok()?;
        let values = fields.expect(tag::SET, "attribute values").ok()?;
        if oid != TPM_SPECIFICATION {
            continue;
        }
        let mut fields = values.inside().sequence("TPM specification").ok()?;
        return Some(TpmSpecification {
            family: shown_text(&name::text(fields.any("family").ok()?)?),
            level: der::small(fields.integer("level").ok()?)?,
            revision: der::small(fields.integer("revision").ok()?)?,
        });
    }
    None
}
