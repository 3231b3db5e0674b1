//! `TPMT_SIGNATURE`.

use crate::codec::{DecodeError, Reader, put_sized};
use crate::tpm::HashAlg;

const ALG_RSASSA: u16 = 0x0014;
const ALG_RSAPSS: u16 = 0x0016;
const ALG_ECDSA: u16 = 0x0018;

/// A signature by a TPM key. Verified nowhere in this crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signature {
    /// PKCS #1 v1.5.
    RsaSsa {
        /// Hash.
        hash: HashAlg,
        /// As long as the modulus.
        sig: Vec<u8>,
    },
    /// PSS.
    RsaPss {
        /// Hash.
        hash: HashAlg,
        /// As long as the modulus.
        sig: Vec<u8>,
    },
    /// ECDSA.
    Ecdsa {
        /// Hash.
        hash: HashAlg,
        /// Big-endian, may lack leading zeros.
        r: Vec<u8>,
        /// Big-endian, may lack leading zeros.
        s: Vec<u8>,
    },
}

impl Signature {
    /// Decodes a whole `TPMT_SIGNATURE`.
    ///
    /// # Errors
    /// [`DecodeError`] names the field.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let alg = reader.u16("TPMT_SIGNATURE.sigAlg")?;
        if !matches!(alg, ALG_RSASSA | ALG_RSAPSS | ALG_ECDSA) {
            return Err(DecodeError::Value {
                field: "TPMT_SIGNATURE.sigAlg",
                found: u64::from(alg),
            });
        }
        let hash = HashAlg::decode("TPMS_SIGNATURE.hash", reader.u16("TPMS_SIGNATURE.hash")?)?;
        let signature = if alg == ALG_ECDSA {
            Self::Ecdsa {
                hash,
                r: reader.sized("TPMS_SIGNATURE_ECC.signatureR", 66)?.to_vec(),
                s: reader.sized("TPMS_SIGNATURE_ECC.signatureS", 66)?.to_vec(),
            }
        } else {
            let sig = reader.sized("TPMS_SIGNATURE_RSA.sig", 512)?.to_vec();
            if alg == ALG_RSASSA {
                Self::RsaSsa { hash, sig }
            } else {
                Self::RsaPss { hash, sig }
            }
        };
        reader.finish("TPMT_SIGNATURE")?;
        Ok(signature)
    }

    /// Encodes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let (alg, hash, parts): (u16, HashAlg, [Option<&[u8]>; 2]) = match self {
            Self::RsaSsa { hash, sig } => (ALG_RSASSA, *hash, [Some(sig), None]),
            Self::RsaPss { hash, sig } => (ALG_RSAPSS, *hash, [Some(sig), None]),
            Self::Ecdsa { hash, r, s } => (ALG_ECDSA, *hash, [Some(r), Some(s)]),
        };
        out.extend_from_slice(&alg.to_be_bytes());
        out.extend_from_slice(&hash.id().to_be_bytes());
        for part in parts.into_iter().flatten() {
            put_sized(&mut out, part);
        }
        out
    }

    /// `r || s`, each padded to `size` bytes; none when it is no ECDSA signature or too long.
    pub fn ecdsa_fixed(&self, size: usize) -> Option<Vec<u8>> {
        let Self::Ecdsa { r, s, .. } = self else {
            return None;
        };
        let mut out = Vec::with_capacity(2 * size);
        for part in [r, s] {
            let pad = size.checked_sub(part.len())?;
            out.resize(out.len() + pad, 0);
            out.extend_from_slice(part);
        }
        Some(out)
    }
}
