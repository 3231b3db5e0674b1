//! `TPMT_PUBLIC`, its `Name`, and qualified names.

use crate::codec::{DecodeError, Reader, put_sized};
use crate::tpm::HashAlg;

/// Bits of `TPMA_OBJECT` that our templates use.
pub mod attributes {
    /// `fixedTPM`.
    pub const FIXED_TPM: u32 = 1 << 1;
    /// `fixedParent`.
    pub const FIXED_PARENT: u32 = 1 << 4;
    /// `sensitiveDataOrigin`.
    pub const SENSITIVE_DATA_ORIGIN: u32 = 1 << 5;
    /// `userWithAuth`.
    pub const USER_WITH_AUTH: u32 = 1 << 6;
    /// `adminWithPolicy`.
    pub const ADMIN_WITH_POLICY: u32 = 1 << 7;
    /// `noDA`.
    pub const NO_DA: u32 = 1 << 10;
    /// `restricted`.
    pub const RESTRICTED: u32 = 1 << 16;
    /// `decrypt`.
    pub const DECRYPT: u32 = 1 << 17;
    /// `sign`.
    pub const SIGN: u32 = 1 << 18;
}

const ALG_RSA: u16 = 0x0001;
const ALG_AES: u16 = 0x0006;
const ALG_KEYEDHASH: u16 = 0x0008;
const ALG_NULL: u16 = 0x0010;
const ALG_HMAC: u16 = 0x0005;
const ALG_RSASSA: u16 = 0x0014;
const ALG_RSAES: u16 = 0x0015;
const ALG_RSAPSS: u16 = 0x0016;
const ALG_OAEP: u16 = 0x0017;
const ALG_ECDSA: u16 = 0x0018;
const ALG_ECDH: u16 = 0x0019;
const ALG_ECC: u16 = 0x0023;
const ALG_CFB: u16 = 0x0043;

/// Largest digest, bytes.
const DIGEST_MAX: usize = 64;
/// Largest RSA modulus, bytes (RSA-4096).
const RSA_MAX: usize = 512;
/// Largest ECC coordinate, bytes (P-521).
const ECC_MAX: usize = 66;

/// `TPMI_ECC_CURVE` that we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// `TPM_ECC_NIST_P256`, 0x0003.
    P256,
    /// `TPM_ECC_NIST_P384`, 0x0004.
    P384,
    /// `TPM_ECC_NIST_P521`, 0x0005.
    P521,
}

impl Curve {
    fn decode(id: u16) -> Result<Self, DecodeError> {
        match id {
            0x0003 => Ok(Self::P256),
            0x0004 => Ok(Self::P384),
            0x0005 => Ok(Self::P521),
            _ => Err(DecodeError::Value {
                field: "TPMI_ECC_CURVE",
                found: u64::from(id),
            }),
        }
    }

    const fn id(self) -> u16 {
        match self {
            Self::P256 => 0x0003,
            Self::P384 => 0x0004,
            Self::P521 => 0x0005,
        }
    }

    /// Size of one coordinate, bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }
}

/// `TPMT_SYM_DEF_OBJECT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymDef {
    /// `TPM_ALG_NULL`: not a storage key.
    Null,
    /// AES in CFB mode.
    AesCfb {
        /// Key size, bits: 128, 192 or 256.
        bits: u16,
    },
}

impl SymDef {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u16("TPMT_SYM_DEF_OBJECT.algorithm")? {
            ALG_NULL => Ok(Self::Null),
            ALG_AES => {
                let bits = reader.u16("TPMT_SYM_DEF_OBJECT.keyBits")?;
                if !matches!(bits, 128 | 192 | 256) {
                    return Err(DecodeError::Value {
                        field: "TPMT_SYM_DEF_OBJECT.keyBits",
                        found: u64::from(bits),
                    });
                }
                match reader.u16("TPMT_SYM_DEF_OBJECT.mode")? {
                    ALG_CFB => Ok(Self::AesCfb { bits }),
                    other => Err(DecodeError::Value {
                        field: "TPMT_SYM_DEF_OBJECT.mode",
                        found: u64::from(other),
                    }),
                }
            }
            other => Err(DecodeError::Value {
                field: "TPMT_SYM_DEF_OBJECT.algorithm",
                found: u64::from(other),
            }),
        }
    }

    fn encode(self, out: &mut Vec<u8>) {
        match self {
            Self::Null => out.extend_from_slice(&ALG_NULL.to_be_bytes()),
            Self::AesCfb { bits } => {
                for value in [ALG_AES, bits, ALG_CFB] {
                    out.extend_from_slice(&value.to_be_bytes());
                }
            }
        }
    }
}

/// `TPMT_RSA_SCHEME`, `TPMT_ECC_SCHEME`, `TPMT_KDF_SCHEME` or `TPMT_KEYEDHASH_SCHEME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `TPM_ALG_NULL`.
    Null,
    /// `TPM_ALG_RSASSA`: PKCS #1 v1.5.
    RsaSsa(HashAlg),
    /// `TPM_ALG_RSAPSS`.
    RsaPss(HashAlg),
    /// `TPM_ALG_RSAES`: PKCS #1 v1.5 encryption.
    RsaEs,
    /// `TPM_ALG_OAEP`.
    Oaep(HashAlg),
    /// `TPM_ALG_ECDSA`.
    Ecdsa(HashAlg),
    /// `TPM_ALG_ECDH`.
    Ecdh(HashAlg),
    /// `TPM_ALG_HMAC`.
    Hmac(HashAlg),
}

impl Scheme {
    fn decode(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let make: fn(HashAlg) -> Self = match reader.u16(field)? {
            ALG_NULL => return Ok(Self::Null),
            ALG_RSAES => return Ok(Self::RsaEs),
            ALG_RSASSA => Self::RsaSsa,
            ALG_RSAPSS => Self::RsaPss,
            ALG_OAEP => Self::Oaep,
            ALG_ECDSA => Self::Ecdsa,
            ALG_ECDH => Self::Ecdh,
            ALG_HMAC => Self::Hmac,
            other => {
                return Err(DecodeError::Value {
                    field,
                    found: u64::from(other),
                });
            }
        };
        Ok(make(HashAlg::decode(field, reader.u16(field)?)?))
    }

    fn encode(self, out: &mut Vec<u8>) {
        let (alg, hash) = match self {
            Self::Null => (ALG_NULL, None),
            Self::RsaEs => (ALG_RSAES, None),
            Self::RsaSsa(hash) => (ALG_RSASSA, Some(hash)),
            Self::RsaPss(hash) => (ALG_RSAPSS, Some(hash)),
            Self::Oaep(hash) => (ALG_OAEP, Some(hash)),
            Self::Ecdsa(hash) => (ALG_ECDSA, Some(hash)),
            Self::Ecdh(hash) => (ALG_ECDH, Some(hash)),
            Self::Hmac(hash) => (ALG_HMAC, Some(hash)),
        };
        out.extend_from_slice(&alg.to_be_bytes());
        if let Some(hash) = hash {
            out.extend_from_slice(&hash.id().to_be_bytes());
        }
    }
}

/// Type-specific part of a public area: parameters and `unique`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicKind {
    /// `TPM_ALG_RSA`.
    Rsa {
        /// Symmetric algorithm of a storage key.
        symmetric: SymDef,
        /// Scheme fixed in the key.
        scheme: Scheme,
        /// Modulus size, bits.
        key_bits: u16,
        /// Public exponent as stored; 0 means 65537.
        exponent: u32,
        /// Modulus, big-endian; empty in a template.
        modulus: Vec<u8>,
    },
    /// `TPM_ALG_ECC`.
    Ecc {
        /// Symmetric algorithm of a storage key.
        symmetric: SymDef,
        /// Scheme fixed in the key.
        scheme: Scheme,
        /// Curve.
        curve: Curve,
        /// Key derivation scheme.
        kdf: Scheme,
        /// X, big-endian as stored; may lack leading zeros.
        x: Vec<u8>,
        /// Y, big-endian as stored; may lack leading zeros.
        y: Vec<u8>,
    },
    /// `TPM_ALG_KEYEDHASH`: sealed data or an HMAC key.
    KeyedHash {
        /// Scheme.
        scheme: Scheme,
        /// Digest of the sensitive part.
        unique: Vec<u8>,
    },
}

/// `TPMT_PUBLIC`. Untrusted until compared with a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Public {
    /// Hash of the `Name`.
    pub name_alg: HashAlg,
    /// `TPMA_OBJECT`, reserved bits included.
    pub attributes: u32,
    /// Policy digest, empty for none.
    pub auth_policy: Vec<u8>,
    /// Parameters and `unique`.
    pub kind: PublicKind,
}

impl Public {
    /// Decodes a whole `TPMT_PUBLIC` (no size prefix).
    ///
    /// # Errors
    /// [`DecodeError`] names the field; trailing bytes are an error.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let public = Self::read(&mut reader)?;
        reader.finish("TPMT_PUBLIC")?;
        Ok(public)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let alg = reader.u16("TPMT_PUBLIC.type")?;
        let name_alg = HashAlg::decode("TPMT_PUBLIC.nameAlg", reader.u16("TPMT_PUBLIC.nameAlg")?)?;
        let attributes = reader.u32("TPMT_PUBLIC.objectAttributes")?;
        let auth_policy = reader.sized("TPMT_PUBLIC.authPolicy", DIGEST_MAX)?.to_vec();
        let kind = match alg {
            ALG_RSA => PublicKind::Rsa {
                symmetric: SymDef::decode(reader)?,
                scheme: Scheme::decode(reader, "TPMT_RSA_SCHEME")?,
                key_bits: reader.u16("TPMS_RSA_PARMS.keyBits")?,
                exponent: reader.u32("TPMS_RSA_PARMS.exponent")?,
                modulus: reader.sized("TPM2B_PUBLIC_KEY_RSA", RSA_MAX)?.to_vec(),
            },
            ALG_ECC => PublicKind::Ecc {
                symmetric: SymDef::decode(reader)?,
                scheme: Scheme::decode(reader, "TPMT_ECC_SCHEME")?,
                curve: Curve::decode(reader.u16("TPMI_ECC_CURVE")?)?,
                kdf: Scheme::decode(reader, "TPMT_KDF_SCHEME")?,
                x: reader.sized("TPMS_ECC_POINT.x", ECC_MAX)?.to_vec(),
                y: reader.sized("TPMS_ECC_POINT.y", ECC_MAX)?.to_vec(),
            },
            ALG_KEYEDHASH => PublicKind::KeyedHash {
                scheme: Scheme::decode(reader, "TPMT_KEYEDHASH_SCHEME")?,
                unique: reader.sized("TPM2B_DIGEST", DIGEST_MAX)?.to_vec(),
            },
            other => {
                return Err(DecodeError::Value {
                    field: "TPMT_PUBLIC.type",
                    found: u64::from(other),
                });
            }
        };
        Ok(Self {
            name_alg,
            attributes,
            auth_policy,
            kind,
        })
    }

    /// Encodes; `decode` of the result gives the same value, and of decoded bytes the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(320);
        let alg = match self.kind {
            PublicKind::Rsa { .. } => ALG_RSA,
            PublicKind::Ecc { .. } => ALG_ECC,
            PublicKind::KeyedHash { .. } => ALG_KEYEDHASH,
        };
        out.extend_from_slice(&alg.to_be_bytes());
        out.extend_from_slice(&self.name_alg.id().to_be_bytes());
        out.extend_from_slice(&self.attributes.to_be_bytes());
        put_sized(&mut out, &self.auth_policy);
        match &self.kind {
            PublicKind::Rsa {
                symmetric,
                scheme,
                key_bits,
                exponent,
                modulus,
            } => {
                symmetric.encode(&mut out);
                scheme.encode(&mut out);
                out.extend_from_slice(&key_bits.to_be_bytes());
                out.extend_from_slice(&exponent.to_be_bytes());
                put_sized(&mut out, modulus);
            }
            PublicKind::Ecc {
                symmetric,
                scheme,
                curve,
                kdf,
                x,
                y,
            } => {
                symmetric.encode(&mut out);
                scheme.encode(&mut out);
                out.extend_from_slice(&curve.id().to_be_bytes());
                kdf.encode(&mut out);
                put_sized(&mut out, x);
                put_sized(&mut out, y);
            }
            PublicKind::KeyedHash { scheme, unique } => {
                scheme.encode(&mut out);
                put_sized(&mut out, unique);
            }
        }
        out
    }

    /// `Name` = nameAlg || H(TPMT_PUBLIC) (Part 1, 16).
    pub fn name(&self) -> Name {
        Name::of_digest(self.name_alg, self.name_alg.digest(&[&self.encode()]))
    }

    /// Uncompressed SEC 1 point with both coordinates padded to the curve's size.
    pub fn ecc_point(&self) -> Option<Vec<u8>> {
        let PublicKind::Ecc { curve, x, y, .. } = &self.kind else {
            return None;
        };
        let mut point = vec![0x04];
        for coordinate in [x, y] {
            let pad = curve.size().checked_sub(coordinate.len())?;
            point.resize(point.len() + pad, 0);
            point.extend_from_slice(coordinate);
        }
        Some(point)
    }

    /// Modulus and exponent (big-endian, no leading zeros) of an RSA key.
    pub fn rsa_components(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let PublicKind::Rsa {
            exponent, modulus, ..
        } = &self.kind
        else {
            return None;
        };
        let exponent = if *exponent == 0 { 65537 } else { *exponent };
        let trim =
            |bytes: &[u8]| -> Vec<u8> { bytes.iter().copied().skip_while(|&b| b == 0).collect() };
        Some((trim(modulus), trim(&exponent.to_be_bytes())))
    }

    /// `SubjectPublicKeyInfo` in DER (RFC 3279, RFC 5480); none for keyed hashes and P-521.
    pub fn spki_der(&self) -> Option<Vec<u8>> {
        use p256::pkcs8::EncodePublicKey as _;
        match &self.kind {
            PublicKind::Rsa { .. } => {
                let (n, e) = self.rsa_components()?;
                let key = rsa::RsaPublicKey::new(
                    rsa::BigUint::from_bytes_be(&n),
                    rsa::BigUint::from_bytes_be(&e),
                )
                .ok()?;
                Some(key.to_public_key_der().ok()?.into_vec())
            }
            PublicKind::Ecc { curve, .. } => {
                let point = self.ecc_point()?;
                let der = match curve {
                    Curve::P256 => p256::PublicKey::from_sec1_bytes(&point)
                        .ok()?
                        .to_public_key_der(),
                    Curve::P384 => p384::PublicKey::from_sec1_bytes(&point)
                        .ok()?
                        .to_public_key_der(),
                    Curve::P521 => return None,
                };
                Some(der.ok()?.into_vec())
            }
            PublicKind::KeyedHash { .. } => None,
        }
    }
}

/// A TPM `Name`: nameAlg || digest.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

impl Name {
    fn of_digest(alg: HashAlg, digest: Vec<u8>) -> Self {
        let mut name = alg.id().to_be_bytes().to_vec();
        name.extend_from_slice(&digest);
        Self(name)
    }

    /// The bytes, nameAlg first.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Lower-case hex.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// Qualified name of a primary object: nameAlg || H(hierarchy handle || Name) (Part 1, 16).
pub fn qualified_name_of_primary(hierarchy: u32, object: &Public) -> Name {
    let name = object.name();
    Name::of_digest(
        object.name_alg,
        object
            .name_alg
            .digest(&[&hierarchy.to_be_bytes(), name.as_bytes()]),
    )
}

/// Qualified name of an object under a parent: nameAlg || H(QN of parent || Name) (Part 1, 16).
pub fn qualified_name(parent: &Name, object: &Public) -> Name {
    let name = object.name();
    Name::of_digest(
        object.name_alg,
        object
            .name_alg
            .digest(&[parent.as_bytes(), name.as_bytes()]),
    )
}
