//! What a signature is over, by which algorithm, and whether it verifies. Shared by certificates,
//! revocation lists and attribute certificates.

use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};

use super::der::{DerError, Element, Reader, tag};
use super::{CertKey, Curve, RsaUse};

/// Signature algorithms of RFC 4055, 5758 and 3279 that are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Rsa(Hash),
    RsaPss(Hash),
    Ecdsa(Hash),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hash {
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

const PKCS1: [u8; 8] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
const ECDSA_SHA2: [u8; 7] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3];
const MGF1: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 8];
/// 2.16.840.1.101.3.4.2
const SHA2: [u8; 8] = [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02];

impl Algorithm {
    /// From an AlgorithmIdentifier; `None` for one that is not verified here.
    fn of(identifier: Element<'_>) -> Option<Self> {
        let mut reader = identifier.inside();
        let oid = reader.oid("signature algorithm").ok()?;
        if let Some([last]) = oid.strip_prefix(&PKCS1) {
            return Some(match last {
                5 => Self::Rsa(Hash::Sha1),
                10 => return Self::pss(reader),
                11 => Self::Rsa(Hash::Sha256),
                12 => Self::Rsa(Hash::Sha384),
                13 => Self::Rsa(Hash::Sha512),
                _ => return None,
            });
        }
        Some(match oid.strip_prefix(&ECDSA_SHA2)? {
            [2] => Self::Ecdsa(Hash::Sha256),
            [3] => Self::Ecdsa(Hash::Sha384),
            [4] => Self::Ecdsa(Hash::Sha512),
            _ => return None,
        })
    }

    /// RSASSA-PSS-params (RFC 4055 section 3.1): hash, MGF1 with the same hash, a salt as long as the
    /// hash. The default of every field is SHA-1, which no PSS signature is taken with.
    fn pss(mut reader: Reader<'_>) -> Option<Self> {
        let mut params = reader.sequence("PSS parameters").ok()?;
        let hash = params.optional(tag::explicit(0), "hash").ok()??;
        let mut hash = hash.inside().sequence("hash").ok()?;
        let hash = sha2(hash.oid("hash").ok()?)?;
        let mgf = params.optional(tag::explicit(1), "mask").ok()??;
        let mut mgf = mgf.inside().sequence("mask").ok()?;
        if mgf.oid("mask").ok()? != MGF1 {
            return None;
        }
        let mask_hash = mgf.sequence("mask hash").ok()?.oid("mask hash").ok()?;
        let salt = params.optional(tag::explicit(2), "salt").ok()??;
        let salt = salt.inside().integer("salt").ok()?;
        let len = match hash {
            Hash::Sha1 => return None,
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        };
        (sha2(mask_hash)? == hash && salt == [len]).then_some(Self::RsaPss(hash))
    }

    /// The verifier for a key of this kind; `None` when they do not go together.
    fn verifier(self, key: &CertKey) -> Option<&'static dyn VerificationAlgorithm> {
        use Hash::{Sha1, Sha256, Sha384, Sha512};
        Some(match (self, key) {
            (
                Self::Rsa(hash),
                CertKey::Rsa {
                    usage: RsaUse::Any, ..
                },
            ) => match hash {
                Sha1 => &signature::RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
                Sha256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                Sha384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                Sha512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            },
            (
                Self::RsaPss(hash),
                CertKey::Rsa {
                    usage: RsaUse::Any | RsaUse::PssOnly,
                    ..
                },
            ) => match hash {
                Sha1 => return None,
                Sha256 => &signature::RSA_PSS_2048_8192_SHA256,
                Sha384 => &signature::RSA_PSS_2048_8192_SHA384,
                Sha512 => &signature::RSA_PSS_2048_8192_SHA512,
            },
            (Self::Ecdsa(hash), CertKey::Ec { curve, .. }) => match (curve, hash) {
                (Curve::P256, Sha256) => &signature::ECDSA_P256_SHA256_ASN1,
                (Curve::P256, Sha384) => &signature::ECDSA_P256_SHA384_ASN1,
                (Curve::P256, Sha512) => &signature::ECDSA_P256_SHA512_ASN1,
                (Curve::P384, Sha256) => &signature::ECDSA_P384_SHA256_ASN1,
                (Curve::P384, Sha384) => &signature::ECDSA_P384_SHA384_ASN1,
                (Curve::P384, Sha512) => &signature::ECDSA_P384_SHA512_ASN1,
                (Curve::P521, Sha256) => &signature::ECDSA_P521_SHA256_ASN1,
                (Curve::P521, Sha384) => &signature::ECDSA_P521_SHA384_ASN1,
                (Curve::P521, Sha512) => &signature::ECDSA_P521_SHA512_ASN1,
                (_, Sha1) | (Curve::Other(_), _) => return None,
            },
            _ => return None,
        })
    }
}

fn sha2(oid: &[u8]) -> Option<Hash> {
    match oid.strip_prefix(&SHA2)? {
        [1] => Some(Hash::Sha256),
        [2] => Some(Hash::Sha384),
        [3] => Some(Hash::Sha512),
        _ => None,
    }
}

/// A signature and what it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signed {
    /// As encoded, header included.
    pub tbs: Vec<u8>,
    pub algorithm: Option<Algorithm>,
    /// Dotted OID, for people.
    pub algorithm_oid: String,
    pub signature: Vec<u8>,
}

impl Signed {
    /// Takes `SEQUENCE { tbs, AlgorithmIdentifier, BIT STRING }`; gives the TBS to read and the
    /// octets of the outer AlgorithmIdentifier.
    pub fn read<'a>(
        octets: &'a [u8],
        what: &'static str,
    ) -> Result<(Self, Element<'a>, Element<'a>), DerError> {
        let mut outer = super::der::whole(octets, tag::SEQUENCE, what)?.inside();
        let tbs = outer.expect(tag::SEQUENCE, what)?;
        let identifier = outer.expect(tag::SEQUENCE, "signature algorithm")?;
        let signature = outer.bit_octets("signature")?;
        let oid = identifier.inside().oid("signature algorithm")?;
        let signed = Self {
            tbs: tbs.raw.to_vec(),
            algorithm: Algorithm::of(identifier),
            algorithm_oid: super::der::oid_text(oid),
            signature: signature.to_vec(),
        };
        Ok((signed, tbs, identifier))
    }

    /// Whether `key` made the signature.
    pub fn by(&self, key: &CertKey, key_bits: &[u8]) -> bool {
        let Some(verifier) = self.algorithm.and_then(|alg| alg.verifier(key)) else {
            return false;
        };
        UnparsedPublicKey::new(verifier, key_bits)
            .verify(&self.tbs, &self.signature)
            .is_ok()
    }

    pub fn sha1(&self) -> bool {
        matches!(
            self.algorithm,
            Some(Algorithm::Rsa(Hash::Sha1) | Algorithm::Ecdsa(Hash::Sha1))
        )
    }
}

/// Whether inner and outer AlgorithmIdentifier say the same (RFC 5280 section 4.1.1.2): same
/// algorithm, and same parameters but for a NULL that one leaves out.
pub(crate) fn same_algorithm(inner: Element<'_>, outer: Element<'_>) -> bool {
    let split = |identifier: Element<'_>| {
        let mut reader = identifier.inside();
        let oid = reader.oid("algorithm").ok().map(<[u8]>::to_vec);
        let params = match reader.rest() {
            [0x05, 0x00] => Vec::new(),
            rest => rest.to_vec(),
        };
        (oid, params)
    };
    split(inner) == split(outer)
}
