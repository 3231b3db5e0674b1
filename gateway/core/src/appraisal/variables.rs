//! UEFI variables in the event log, and the certificates and digests that they hold.
//!
//! A variable counts as far as a digest covers it. Which that is has three forms in the field;
//! decisions take the weaker two for authorities only, and never where the name matters.

use std::collections::BTreeSet;

use attest_wire::tpm::HashAlg;

use super::eventlog::Event;
use super::events::{BANK, EV_EFI_VARIABLE_AUTHORITY};
use super::quirks::Quirk;

/// `EFI_GLOBAL_VARIABLE`, as bytes of the log.
pub const EFI_GLOBAL_VARIABLE: [u8; 16] = [
    0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c,
];
/// `EFI_IMAGE_SECURITY_DATABASE_GUID`: db, dbx, dbt, dbr.
pub const EFI_IMAGE_SECURITY_DATABASE: [u8; 16] = [
    0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f,
];
/// `SHIM_LOCK_GUID`: what shim measures of its own.
pub const SHIM_LOCK: [u8; 16] = [
    0x50, 0xab, 0x5d, 0x60, 0x46, 0xe0, 0x00, 0x43, 0xab, 0xb6, 0x3d, 0xd8, 0x10, 0xdd, 0x8b, 0x23,
];

/// How the digest of an event covers its variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The whole `UEFI_VARIABLE_DATA`.
    Whole,
    /// The same without one stray byte behind it.
    Padded,
    /// Only the content: the name is the log's word.
    Content,
}

/// `UEFI_VARIABLE_DATA` (PFP 10.2.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable<'a> {
    /// Vendor GUID as in the log.
    pub guid: [u8; 16],
    /// Name.
    pub name: String,
    /// Content.
    pub data: &'a [u8],
}

impl<'a> Variable<'a> {
    /// Parses; none when the lengths do not fit. Up to eight zero bytes may follow (old shim).
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let (guid, rest) = data.split_at_checked(16)?;
        let (name_len, rest) = rest.split_at_checked(8)?;
        let (data_len, rest) = rest.split_at_checked(8)?;
        let name_len = usize::try_from(u64::from_le_bytes(name_len.try_into().ok()?)).ok()?;
        let data_len = usize::try_from(u64::from_le_bytes(data_len.try_into().ok()?)).ok()?;
        let (name, content) = rest.split_at_checked(name_len.checked_mul(2)?)?;
        let (content, padding) = content.split_at_checked(data_len)?;
        if padding.len() > 8 || padding.iter().any(|&b| b != 0) {
            return None;
        }
        let units = name
            .chunks_exact(2)
            .map(|c| u16::from_le_bytes([c[0], c[1]]));
        let name: String = char::decode_utf16(units).collect::<Result<_, _>>().ok()?;
        Some(Self {
            guid: guid.try_into().ok()?,
            name,
            data: content,
        })
    }

    /// A variable that the event's digest covers in that bank, and how.
    pub fn covered(event: &Event<'a>, alg: HashAlg) -> Option<(Self, Proof)> {
        if let Some(data) = event.data_proven(alg) {
            return Some((Self::parse(data)?, Proof::Whole));
        }
        let digest = event.digest(alg)?;
        if let Some((_, hashed)) = event.data.split_last()
            && alg.digest(&[hashed]) == digest
        {
            return Some((Self::parse(hashed)?, Proof::Padded));
        }
        let variable = Self::parse(event.data)?;
        (alg.digest(&[variable.data]) == digest).then_some((variable, Proof::Content))
    }

    /// A variable that the event's digest proves well enough to decide on, and the quirk the proof
    /// needed.
    ///
    /// The digest covers the whole `UEFI_VARIABLE_DATA`; for authorities some firmware hashes the
    /// variable's content only, and old shim logs one stray byte more than it hashed. The type is
    /// unprotected: anything can be wrapped as the content of an authority. So a content alone
    /// counts only if it is a certificate; a variable that was wrapped counts as itself, and any
    /// other octets prove nothing.
    pub fn proven(event: &Event<'a>) -> Option<(Self, Option<Quirk>)> {
        let (variable, proof) = Self::covered(event, BANK)?;
        if proof == Proof::Whole {
            return Some((variable, None));
        }
        if event.kind != EV_EFI_VARIABLE_AUTHORITY {
            return None;
        }
        match proof {
            Proof::Whole | Proof::Padded => Some((variable, Some(Quirk::VariablePadded))),
            Proof::Content => {
                let counts = match Self::parse(variable.data) {
                    Some(wrapped) => wrapped,
                    None => {
                        variable.certificate()?;
                        variable
                    }
                };
                Some((counts, Some(Quirk::AuthorityContentHashed)))
            }
        }
    }

    /// Whether it is the global variable of that name.
    pub fn is_global(&self, name: &str) -> bool {
        self.guid == EFI_GLOBAL_VARIABLE && self.name == name
    }

    /// The X.509 certificate that the variable holds as an authority: behind the owner's GUID
    /// (`EFI_SIGNATURE_DATA`), or alone, as shim measures its own and those of its user.
    pub fn certificate(&self) -> Option<&'a [u8]> {
        let behind_owner = self.data.get(16..).filter(|der| is_one_der_sequence(der));
        behind_owner.or_else(|| Some(self.data).filter(|der| is_one_der_sequence(der)))
    }

    /// What vouched: the certificate, or the digest of an image that db names, behind the owner's GUID.
    pub fn voucher(&self) -> &'a [u8] {
        self.certificate()
            .unwrap_or_else(|| self.data.get(16..).unwrap_or_default())
    }

    /// Whether it is the database of what must not run.
    pub fn is_dbx(&self) -> bool {
        self.guid == EFI_IMAGE_SECURITY_DATABASE && self.name == "dbx"
    }

    /// Shim's own state, which stands where authorities stand and vouches for nothing.
    pub fn is_shim_state(&self) -> bool {
        self.guid == SHIM_LOCK
            && matches!(self.name.as_str(), "SbatLevel" | "MokListTrusted")
            && self.certificate().is_none()
    }
}

/// Whether the octets are one DER SEQUENCE and nothing else. Not the contents: they are only hashed.
fn is_one_der_sequence(bytes: &[u8]) -> bool {
    let Some((&[0x30, first], rest)) = bytes.split_first_chunk::<2>() else {
        return false;
    };
    let (len, rest) = match first {
        0x81..=0x83 => {
            let Some((octets, rest)) = rest.split_at_checked(usize::from(first - 0x80)) else {
                return false;
            };
            let len = octets.iter().fold(0, |len, &o| (len << 8) | usize::from(o));
            (len, rest)
        }
        len if len < 0x80 => (usize::from(len), rest),
        _ => return false,
    };
    rest.len() == len && len > 0
}

/// What kind of thing one entry of a signature database is (UEFI 2.10 section 32.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureKind {
    /// `EFI_CERT_X509_GUID`.
    X509,
    /// `EFI_CERT_SHA256_GUID`: Authenticode digest of an image.
    Sha256,
    /// `EFI_CERT_X509_SHA256_GUID`: digest of a certificate's signed part, with a date.
    X509Sha256,
    /// Another one, named by its GUID.
    Other([u8; 16]),
}

impl SignatureKind {
    fn of(guid: [u8; 16]) -> Self {
        match guid {
            [
                0xa1,
                0x59,
                0xc0,
                0xa5,
                0xe4,
                0x94,
                0xa7,
                0x4a,
                0x87,
                0xb5,
                0xab,
                0x15,
                0x5c,
                0x2b,
                0xf0,
                0x72,
            ] => Self::X509,
            [
                0x26,
                0x16,
                0xc4,
                0xc1,
                0x4c,
                0x50,
                0x92,
                0x40,
                0xac,
                0xa9,
                0x41,
                0xf9,
                0x36,
                0x93,
                0x43,
                0x28,
            ] => Self::Sha256,
            [
                0x92,
                0xa4,
                0xd2,
                0x3b,
                0xc0,
                0x96,
                0x79,
                0x40,
                0xb4,
                0x20,
                0xfc,
                0xf9,
                0x8e,
                0xf1,
                0x03,
                0xed,
            ] => Self::X509Sha256,
            other => Self::Other(other),
        }
    }
}

/// One entry of a signature database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature<'a> {
    /// What it is.
    pub kind: SignatureKind,
    /// Who put it there, GUID as in the log.
    pub owner: [u8; 16],
    /// Certificate, digest, or what the kind says.
    pub data: &'a [u8],
}

impl<'a> Signature<'a> {
    /// Reads the content of PK, KEK, db or dbx: `EFI_SIGNATURE_LIST` after `EFI_SIGNATURE_LIST`.
    /// None when the lengths do not fit. As many entries as the content has room for, 17 bytes each.
    pub fn lists(mut content: &'a [u8]) -> Option<Vec<Self>> {
        let mut all = Vec::new();
        while !content.is_empty() {
            let (head, rest) = content.split_at_checked(28)?;
            let kind = SignatureKind::of(head[..16].try_into().ok()?);
            let number = |at: usize| -> Option<usize> {
                let octets = head.get(at..at + 4)?.try_into().ok()?;
                usize::try_from(u32::from_le_bytes(octets)).ok()
            };
            let (list, header, each) = (number(16)?, number(20)?, number(24)?);
            let (body, after) = rest.split_at_checked(list.checked_sub(28)?)?;
            let entries = body.get(header..)?;
            if each <= 16 || entries.len() % each != 0 {
                return None;
            }
            for entry in entries.chunks_exact(each) {
                let (owner, data) = entry.split_at_checked(16)?;
                all.push(Self {
                    kind,
                    owner: owner.try_into().ok()?,
                    data,
                });
            }
            content = after;
        }
        Some(all)
    }

    /// What the content of a database names, each once. One that cannot be read names nothing.
    pub fn digests(content: &'a [u8]) -> BTreeSet<Vec<u8>> {
        let entries = Self::lists(content).unwrap_or_default();
        entries.iter().map(Self::digest).collect()
    }

    /// Digest by which one names it: SHA-256 of a certificate, else the digest that it is.
    pub fn digest(&self) -> Vec<u8> {
        match self.kind {
            SignatureKind::Sha256 => self.data.to_vec(),
            // The date of revocation stands behind the digest.
            SignatureKind::X509Sha256 => self.data.get(..32).unwrap_or(self.data).to_vec(),
            SignatureKind::X509 | SignatureKind::Other(_) => HashAlg::Sha256.digest(&[self.data]),
        }
    }
}

/// A GUID as it is written: the first three numbers are little-endian in the log.
pub fn guid_text(guid: &[u8; 16]) -> String {
    let [a, b, c, d, e, f, g, h, rest @ ..] = guid;
    let rest: String = rest.iter().map(|octet| format!("{octet:02x}")).collect();
    format!(
        "{d:02x}{c:02x}{b:02x}{a:02x}-{f:02x}{e:02x}-{h:02x}{g:02x}-{}-{}",
        &rest[..4],
        &rest[4..]
    )
}
