//! UEFI variables in the event log, and the certificates and digests that they hold.
//!
//! A variable counts as far as a digest covers it. Which that is has three forms in the field;
//! decisions take the weaker two for authorities only, and never where the name matters.

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

    /// What kind of thing [`Variable::voucher`] is. The event does not say the type of the entry, so
    /// only what UEFI lets vouch is told apart: a certificate, or the digest of an image.
    pub fn voucher_kind(&self) -> &'static str {
        if self.certificate().is_some() {
            return "a certificate";
        }
        match self.voucher().len() {
            20 | 32 | 48 | 64 => "the digest of an image that db names",
            _ => "octets that are neither certificate nor digest",
        }
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
    /// `EFI_CERT_X509_GUID`: a certificate.
    X509,
    /// `EFI_CERT_SHA256_GUID` and its kin: Authenticode digest of an image.
    Image(HashAlg),
    /// `EFI_CERT_X509_SHA256_GUID` and its kin: digest of a certificate's signed part, with a date.
    SignedPart(HashAlg),
    /// Another one, or one whose entries have not the size of its kind, named by its GUID.
    Other([u8; 16]),
}

/// Octets of `EFI_TIME` behind the digest of a certificate's signed part.
const EFI_TIME_BYTES: usize = 16;

impl SignatureKind {
    /// The kind of a list by its GUID as the log has it, whose entries hold `len` octets behind their owner.
    fn of(guid: [u8; 16], len: usize) -> Self {
        let kind = match u128::from_be_bytes(guid) {
            0xa159c0a5_e494a74a_87b5ab15_5c2bf072 => Self::X509,
            0x12a56c82_10cfc94a_b187be01_496631bd => Self::Image(HashAlg::Sha1),
            0x2616c4c1_4c509240_aca941f9_36934328 => Self::Image(HashAlg::Sha256),
            0x07533eff_d09fc948_85f18ad5_6c701e01 => Self::Image(HashAlg::Sha384),
            0xae0f3e09_c4a6504f_9f1bd41e_2b89c19a => Self::Image(HashAlg::Sha512),
            0x92a4d23b_c0967940_b420fcf9_8ef103ed => Self::SignedPart(HashAlg::Sha256),
            0x6e877670_c280e64e_aad228b3_49a6865b => Self::SignedPart(HashAlg::Sha384),
            0x63bf6d44_0225da4c_bcfa2465_d2b0fe9d => Self::SignedPart(HashAlg::Sha512),
            _ => Self::Other(guid),
        };
        let fits = match kind {
            Self::X509 | Self::Other(_) => true,
            Self::Image(alg) => len == alg.size(),
            Self::SignedPart(alg) => len == alg.size() + EFI_TIME_BYTES,
        };
        if fits { kind } else { Self::Other(guid) }
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
            let kind = SignatureKind::of(head[..16].try_into().ok()?, each - 16);
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

    /// Digest by which one names it: that of an image or of a certificate's signed part as it stands
    /// there, else SHA-256 of what it holds. Says nothing without the kind.
    pub fn digest(&self) -> Vec<u8> {
        match self.kind {
            SignatureKind::Image(_) => self.data.to_vec(),
            SignatureKind::SignedPart(alg) => {
                self.data.get(..alg.size()).unwrap_or(self.data).to_vec()
            }
            SignatureKind::X509 | SignatureKind::Other(_) => HashAlg::Sha256.digest(&[self.data]),
        }
    }

    /// From when on a certificate is revoked that the entry names by its signed part: `EFI_TIME`, or
    /// none where it always is (all zero), and for every other kind.
    pub fn revoked_from(&self) -> Option<&'a [u8]> {
        let SignatureKind::SignedPart(alg) = self.kind else {
            return None;
        };
        let time = self.data.get(alg.size()..)?;
        time.iter().any(|&octet| octet != 0).then_some(time)
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
