//! Hash algorithms by their `TPM_ALG_ID`.

use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha384, Sha512};
use sm3::Sm3;

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
    /// `TPM_ALG_SM3_256`, 0x0012 (GB/T 32905): read in logs, no decision rests on it.
    Sm3,
}

impl HashAlg {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Sha1,
        Self::Sha256,
        Self::Sha384,
        Self::Sha512,
        Self::Sm3,
    ];

    /// From a `TPM_ALG_ID`; none when it is no hash we know.
    pub const fn from_id(id: u16) -> Option<Self> {
        match id {
            0x0004 => Some(Self::Sha1),
            0x000b => Some(Self::Sha256),
            0x000c => Some(Self::Sha384),
            0x000d => Some(Self::Sha512),
            0x0012 => Some(Self::Sm3),
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
            Self::Sm3 => 0x0012,
        }
    }

    /// Digest size in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 | Self::Sm3 => 32,
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
            Self::Sm3 => "sm3_256",
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
            Self::Sm3 => run::<Sm3>(parts),
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
            Self::Sm3 => run!(Sm3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sm3_is_that_of_its_standard() {
        // GB/T 32905-2016, annex A.1.
        assert_eq!(
            HashAlg::Sm3.digest(&[b"a", b"bc"]),
            [
                0x66, 0xc7, 0xf0, 0xf4, 0x62, 0xee, 0xed, 0xd9, 0xd1, 0xf2, 0xd4, 0x6b, 0xdc, 0x10,
                0xe4, 0xe2, 0x41, 0x67, 0xc4, 0x87, 0x5c, 0xf2, 0xf7, 0xa2, 0x29, 0x7d, 0xa0, 0x2b,
                0x8f, 0x4b, 0xa8, 0xe0,
            ]
        );
    }

    #[test]
    fn each_is_found_by_its_id_and_makes_digests_of_its_size() {
        for alg in HashAlg::ALL {
            assert_eq!(HashAlg::from_id(alg.id()), Some(alg));
            assert_eq!(alg.digest(&[b"x"]).len(), alg.size());
            assert_eq!(alg.hmac(b"key", &[b"x"]).len(), alg.size());
        }
        assert_eq!(HashAlg::from_id(0x0010), None);
    }
}
