//! Hash algorithms by their `TPM_ALG_ID`.

use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha384, Sha512};

use crate::codec::DecodeError;

/// `TPM_ALG_ID` of a hash that we can compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HashAlg {
    /// `TPM_ALG_SHA1`, 0x0004: read in old logs, trusted nowhere.
    Sha1,
    /// `TPM_ALG_SHA256`, 0x000b.
    Sha256,
    /// `TPM_ALG_SHA384`, 0x000c.
    Sha384,
    /// `TPM_ALG_SHA512`, 0x000d.
    Sha512,
}

impl HashAlg {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sha1, Self::Sha256, Self::Sha384, Self::Sha512];

    /// From a `TPM_ALG_ID`; none when it is no hash we know.
    pub const fn from_id(id: u16) -> Option<Self> {
        match id {
            0x0004 => Some(Self::Sha1),
            0x000b => Some(Self::Sha256),
            0x000c => Some(Self::Sha384),
            0x000d => Some(Self::Sha512),
            _ => None,
        }
    }

    pub(crate) fn decode(field: &'static str, id: u16) -> Result<Self, DecodeError> {
        Self::from_id(id).ok_or(DecodeError::Value {
            field,
            found: u64::from(id),
        })
    }

    /// The `TPM_ALG_ID`.
    pub const fn id(self) -> u16 {
        match self {
            Self::Sha1 => 0x0004,
            Self::Sha256 => 0x000b,
            Self::Sha384 => 0x000c,
            Self::Sha512 => 0x000d,
        }
    }

    /// Digest size in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Name as tools print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// Digest over the parts, as if they were one.
    pub fn digest(self, parts: &[&[u8]]) -> Vec<u8> {
        fn run<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
            let mut hash = D::new();
            for part in parts {
                hash.update(part);
            }
            hash.finalize().to_vec()
        }
        match self {
            Self::Sha1 => run::<Sha1>(parts),
            Self::Sha256 => run::<Sha256>(parts),
            Self::Sha384 => run::<Sha384>(parts),
            Self::Sha512 => run::<Sha512>(parts),
        }
    }

    /// HMAC (RFC 2104) over the parts.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        macro_rules! run {
            ($hash:ty) => {{
                let mut mac =
                    Hmac::<$hash>::new_from_slice(key).expect("HMAC takes a key of any length");
                for part in parts {
                    mac.update(part);
                }
                mac.finalize().into_bytes().to_vec()
            }};
        }
        match self {
            Self::Sha1 => run!(Sha1),
            Self::Sha256 => run!(Sha256),
            Self::Sha384 => run!(Sha384),
            Self::Sha512 => run!(Sha512),
        }
    }
}
