//! Certificate revocation lists (RFC 5280 section 5), direct and indirect.
//!
//! Reads one list; whether it counts for a certificate is `revocation`'s. Intel's on-die CAs
//! publish one indirect list for all of their issuers, signed by the root.

use std::collections::HashMap;

use super::der::{self, DerError, Reader, oid_text, tag};
use super::signed::{self, Signed};
use super::{Cert, CertError, extensions, names_equal, time};

/// Largest list that is loaded; vendors' lists have below one mebibyte.
const LIST_MAX_BYTES: usize = 16 << 20;
/// Issuers named in one indirect list; Intel's has some hundred.
const ISSUERS_MAX: usize = 4096;

mod id {
    pub const CRL_NUMBER: &[u8] = &[0x55, 0x1d, 20];
    pub const REASON_CODE: &[u8] = &[0x55, 0x1d, 21];
    pub const INVALIDITY_DATE: &[u8] = &[0x55, 0x1d, 24];
    pub const DELTA_INDICATOR: &[u8] = &[0x55, 0x1d, 27];
    pub const ISSUING_POINT: &[u8] = &[0x55, 0x1d, 28];
    pub const CERTIFICATE_ISSUER: &[u8] = &[0x55, 0x1d, 29];
    pub const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 35];
    pub const FRESHEST: &[u8] = &[0x55, 0x1d, 46];
}

/// Reason codes by number (RFC 5280 section 5.3.1).
const REASONS: [&str; 11] = [
    "unspecified",
    "keyCompromise",
    "cACompromise",
    "affiliationChanged",
    "superseded",
    "cessationOfOperation",
    "certificateHold",
    "7",
    "removeFromCRL",
    "privilegeWithdrawn",
    "aACompromise",
];

const CERTIFICATE_HOLD: u8 = 6;
const REMOVE_FROM_CRL: u8 = 8;

/// Why a list cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CrlError {
    /// It cannot be read.
    #[error("not a revocation list: {0}")]
    Parse(String),
    /// RFC 5280 section 5.2.3: without a number nobody can say what a delta list continues.
    #[error("a delta list without a CRL number")]
    DeltaNumber,
    /// RFC 5280 section 5.2: a list with a critical extension that is not understood must not be used.
    #[error("critical extension {0} is not known")]
    UnknownCritical(String),
    /// Beyond a bound.
    #[error("more than {max} {what}")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// The bound.
        max: usize,
    },
}

impl From<DerError> for CrlError {
    fn from(error: DerError) -> Self {
        Self::Parse(error.to_string())
    }
}

impl From<CertError> for CrlError {
    fn from(error: CertError) -> Self {
        Self::Parse(error.to_string())
    }
}

/// Which certificates a list speaks of (issuing distribution point).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// URLs of its distribution point; empty when it has none.
    pub urls: Vec<String>,
    /// Whether a distribution point is named at all.
    pub point: bool,
    /// Only certificates of no CA.
    pub only_users: bool,
    /// Only certificates of CAs.
    pub only_cas: bool,
    /// Only attribute certificates.
    pub only_attributes: bool,
    /// Only some reasons.
    pub some_reasons: bool,
    /// Entries may name other issuers.
    pub indirect: bool,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revoked {
    /// Seconds since 1970.
    pub at: i64,
    /// Reason code.
    pub reason: Option<u8>,
}

impl Revoked {
    /// Whether it may be taken back: the certificate is on hold.
    pub fn is_hold(&self) -> bool {
        self.reason == Some(CERTIFICATE_HOLD)
    }

    /// The reason in the words of RFC 5280.
    pub fn reason_text(&self) -> &'static str {
        self.reason
            .and_then(|reason| REASONS.get(usize::from(reason)).copied())
            .unwrap_or("no reason")
    }
}

/// A revocation list.
#[derive(Debug, Clone)]
pub struct Crl {
    /// Issuer name, raw.
    pub issuer: Vec<u8>,
    /// Authority key identifier.
    pub aki: Option<Vec<u8>>,
    /// Seconds since 1970.
    pub this_update: i64,
    /// Seconds since 1970.
    pub next_update: Option<i64>,
    /// CRL number, without leading zeros.
    pub number: Option<Vec<u8>>,
    /// Of a delta list: the least number of a complete list that it continues (section 5.2.4).
    pub base: Option<Vec<u8>>,
    /// Where its delta lists are published (section 5.2.6).
    pub freshest: Vec<String>,
    /// What it covers.
    pub scope: Scope,
    /// Certificate issuers that entries name; the first is the list's own.
    issuers: Vec<Vec<u8>>,
    /// By index of the issuer and serial without leading zeros.
    revoked: HashMap<(u32, Vec<u8>), Revoked>,
    signed: Signed,
}

impl Crl {
    /// Reads one list in DER.
    ///
    /// # Errors
    /// [`CrlError`].
    pub fn read(octets: &[u8]) -> Result<Self, CrlError> {
        if octets.len() > LIST_MAX_BYTES {
            return Err(CrlError::TooLarge {
                what: "bytes",
                max: LIST_MAX_BYTES,
            });
        }
        let (signed, tbs, outer_algorithm) = Signed::read(octets, "revocation list")?;
        let mut tbs = tbs.inside();
        tbs.optional(tag::INTEGER, "version")?;
        let inner_algorithm = tbs.expect(tag::SEQUENCE, "signature algorithm")?;
        if !signed::same_algorithm(inner_algorithm, outer_algorithm) {
            return Err(CrlError::Parse(
                "the signature algorithm inside differs from the one outside".into(),
            ));
        }
        let issuer = tbs.expect(tag::SEQUENCE, "issuer")?.raw.to_vec();
        let this_update = time::read(tbs.any("thisUpdate")?, "thisUpdate")?.secs;
        let next_update = match tbs.peek() {
            Some(tag::UTC_TIME | tag::GENERALIZED_TIME) => {
                Some(time::read(tbs.any("nextUpdate")?, "nextUpdate")?.secs)
            }
            _ => None,
        };
        let entries = tbs.optional(tag::SEQUENCE, "revoked certificates")?;
        let mut list = Self {
            issuers: vec![issuer.clone()],
            issuer,
            aki: None,
            this_update,
            next_update,
            number: None,
            base: None,
            freshest: Vec::new(),
            scope: Scope::default(),
            revoked: HashMap::new(),
            signed,
        };
        if let Some(extensions) = tbs.optional(tag::explicit(0), "extensions")? {
            list.read_extensions(extensions.inside().sequence("extensions")?)?;
        }
        if list.base.is_some() && list.number.is_none() {
            return Err(CrlError::DeltaNumber);
        }
        if let Some(entries) = entries {
            list.read_entries(entries.inside())?;
        }
        Ok(list)
    }

    fn read_extensions(&mut self, reader: Reader<'_>) -> Result<(), CrlError> {
        for extension in extensions::list(reader)? {
            match extension.oid {
                id::DELTA_INDICATOR => {
                    self.base = Some(number(extension.value, "base CRL number")?)
                }
                id::FRESHEST => {
                    let points = extensions::distribution_points(extension.value)?;
                    self.freshest = points.into_iter().flat_map(|point| point.urls).collect();
                }
                id::ISSUING_POINT => self.scope = scope(extension.value)?,
                id::AUTHORITY_KEY_ID => self.aki = extensions::authority_key(extension.value)?,
                id::CRL_NUMBER => self.number = Some(number(extension.value, "CRL number")?),
                other if extension.critical => {
                    return Err(CrlError::UnknownCritical(oid_text(other)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// An entry's issuer holds for those behind it until another is named (section 5.3.3).
    fn read_entries(&mut self, mut entries: Reader<'_>) -> Result<(), CrlError> {
        let mut known: HashMap<Vec<u8>, u32> = HashMap::from([(self.issuer.clone(), 0)]);
        let mut issuer = 0;
        while !entries.is_empty() {
            let mut entry = entries.sequence("entry")?;
            let serial = der::without_zeros(entry.integer("serial number")?).to_vec();
            let at = time::read(entry.any("revocation date")?, "revocation date")?.secs;
            let mut reason = None;
            if let Some(list) = entry.optional(tag::SEQUENCE, "entry extensions")? {
                for extension in extensions::list(list.inside())? {
                    match extension.oid {
                        id::REASON_CODE => {
                            let code = der::whole(extension.value, tag::ENUMERATED, "reason")?;
                            reason = code.content.first().copied();
                        }
                        id::CERTIFICATE_ISSUER => {
                            let names = der::whole(extension.value, tag::SEQUENCE, "issuer")?;
                            let (names, _) = extensions::names_and_urls(names.inside())?;
                            let name = names.into_iter().next().ok_or_else(|| {
                                CrlError::Parse("an entry's issuer without a name".into())
                            })?;
                            issuer = self.issuer_index(&mut known, name)?;
                        }
                        id::INVALIDITY_DATE => {}
                        other if extension.critical => {
                            return Err(CrlError::UnknownCritical(oid_text(other)));
                        }
                        _ => {}
                    }
                }
            }
            self.revoked
                .insert((issuer, serial), Revoked { at, reason });
        }
        Ok(())
    }

    fn issuer_index(
        &mut self,
        known: &mut HashMap<Vec<u8>, u32>,
        name: Vec<u8>,
    ) -> Result<u32, CrlError> {
        if let Some(&index) = known.get(&name) {
            return Ok(index);
        }
        if self.issuers.len() >= ISSUERS_MAX {
            return Err(CrlError::TooLarge {
                what: "issuers",
                max: ISSUERS_MAX,
            });
        }
        let index = u32::try_from(self.issuers.len()).unwrap_or(u32::MAX);
        self.issuers.push(name.clone());
        known.insert(name, index);
        Ok(index)
    }

    /// How many certificates it revokes.
    pub fn len(&self) -> usize {
        self.revoked.len()
    }

    /// Whether it revokes none.
    pub fn is_empty(&self) -> bool {
        self.revoked.is_empty()
    }

    /// The issuer as text (RFC 4514).
    pub fn issuer_text(&self) -> String {
        super::name_text(&self.issuer)
    }

    /// The entry of a certificate. Leading zeros of serials do not count: list and certificate are
    /// written by different programs, and one match too many refuses, one too few admits.
    pub fn entry(&self, cert: &Cert) -> Option<&Revoked> {
        let serial = der::without_zeros(&cert.serial).to_vec();
        let mut key = (0, serial);
        for (index, issuer) in (0u32..).zip(&self.issuers) {
            key.0 = index;
            if let Some(entry) = self.revoked.get(&key)
                && names_equal(issuer, &cert.issuer)
            {
                return Some(entry);
            }
        }
        None
    }

    /// Whether it is a delta list, which says what changed since a complete one.
    pub fn is_delta(&self) -> bool {
        self.base.is_some()
    }

    /// Whether the entry takes a certificate off the list. A complete list has no such entries: one
    /// there revokes, as every other.
    pub fn removes(&self, entry: &Revoked) -> bool {
        self.is_delta() && entry.reason == Some(REMOVE_FROM_CRL)
    }

    /// Whether both are parts of one sequence of lists: same issuer, key and scope (section 5.2.4).
    pub fn same_sequence(&self, other: &Self) -> bool {
        let key = self.aki == other.aki;
        key && self.scope == other.scope && names_equal(&self.issuer, &other.issuer)
    }

    /// Whether this delta list can be put on top of that complete list (section 5.2.4): the list is
    /// not older than the base, and older than the delta.
    pub fn continues(&self, complete: &Self) -> bool {
        let (Some(base), Some(own), Some(number)) = (&self.base, &self.number, &complete.number)
        else {
            return false;
        };
        let fits = !less(number, base) && less(number, own);
        fits && !complete.is_delta() && self.same_sequence(complete)
    }

    /// Whether it was made after the other one of its sequence.
    pub fn after(&self, other: &Self) -> bool {
        match (&self.number, &other.number) {
            (Some(own), Some(number)) => less(number, own),
            _ => false,
        }
    }

    /// Whether the key may have signed it by name and key identifier.
    pub fn names(&self, signer: &Cert) -> bool {
        names_equal(&self.issuer, &signer.subject)
            && match (&self.aki, &signer.ski) {
                (Some(aki), Some(ski)) => aki == ski,
                _ => true,
            }
    }

    /// Whether `signer` made the signature and may sign lists.
    pub fn signed_by(&self, signer: &Cert) -> bool {
        signer.may_sign_crls() && self.signed.by(&signer.key, &signer.key_bits)
    }

    /// Whether the absence of an entry says that the certificate is not revoked (section 6.3.3 b).
    pub fn covers(&self, cert: &Cert) -> bool {
        let scope = &self.scope;
        let ca = cert.basic_constraints.is_some_and(|(ca, _)| ca);
        if scope.only_attributes
            || scope.some_reasons
            || scope.only_users && ca
            || scope.only_cas && !ca
        {
            return false;
        }
        let indirectly = scope.indirect && self.named_by(cert);
        if !indirectly && !names_equal(&self.issuer, &cert.issuer) {
            return false;
        }
        !scope.point
            || cert
                .crl_points
                .iter()
                .any(|point| point.urls.iter().any(|url| scope.urls.contains(url)))
    }

    /// Whether the certificate names this list's issuer as the one to ask.
    pub fn named_by(&self, cert: &Cert) -> bool {
        let mut issuers = cert.crl_points.iter().flat_map(|point| &point.crl_issuers);
        issuers.any(|issuer| names_equal(issuer, &self.issuer))
    }
}

/// A CRL number. It is never negative (section 5.2.3).
fn number(value: &[u8], what: &'static str) -> Result<Vec<u8>, DerError> {
    let number = der::whole(value, tag::INTEGER, what)?;
    if number.content.first().is_none_or(|first| first & 0x80 != 0) {
        return Err(DerError::Form {
            what,
            form: "a negative number",
        });
    }
    Ok(der::without_zeros(number.content).to_vec())
}

/// Of numbers without leading zeros.
fn less(one: &[u8], other: &[u8]) -> bool {
    (one.len(), one) < (other.len(), other)
}

/// IssuingDistributionPoint (section 5.2.5).
fn scope(value: &[u8]) -> Result<Scope, DerError> {
    let mut fields = der::whole(value, tag::SEQUENCE, "issuing distribution point")?.inside();
    let mut scope = Scope::default();
    if let Some(point) = fields.optional(tag::explicit(0), "distribution point")? {
        scope.point = true;
        scope.urls = extensions::point_urls(point)?;
    }
    while !fields.is_empty() {
        let field = fields.any("issuing distribution point")?;
        let set = der::boolean(field);
        match field.tag & 0x1f {
            1 => scope.only_users = set,
            2 => scope.only_cas = set,
            3 => scope.some_reasons = true,
            4 => scope.indirect = set,
            5 => scope.only_attributes = set,
            _ => {
                return Err(DerError::Form {
                    what: "issuing distribution point",
                    form: "an unknown field",
                });
            }
        }
    }
    Ok(scope)
}
