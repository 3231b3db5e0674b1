//! Software `TPM2_MakeCredential` and import wrapping for an endorsement key.
//!
//! Computes what a TPM would compute; decides nothing. The caller has compared the EK with its
//! template before (docs/PROTOCOL.md section 2), and passes the randomness in.
//! TPM 2.0 Part 1, sections 11.4.10 (KDFa, KDFe), 23 (duplication), 24 (credentials), annex B and C.

use aes::cipher::{AsyncStreamCipher as _, KeyIvInit as _};
use p256::elliptic_curve::sec1::{FromEncodedPoint as _, ToEncodedPoint as _};
use rand_core::CryptoRngCore;
use zeroize::Zeroizing;

use crate::codec::put_sized;
use crate::tpm::{Curve, HashAlg, Name, Public, PublicKind, SymDef, attributes};

/// Largest payload that a TPM imports as sealed data, bytes (`MAX_SYM_DATA`).
pub const SEALED_MAX_BYTES: usize = 128;

/// Why a secret could not be wrapped for a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// The key is no storage key that we know how to wrap for.
    #[error("cannot wrap a secret for this key: {0}")]
    Key(&'static str),
    /// The secret is too long.
    #[error("secret of {found} bytes, at most {max} fit")]
    SecretTooLong {
        /// Largest size, bytes.
        max: usize,
        /// Size given, bytes.
        found: usize,
    },
}

/// A credential challenge. Both fields are the inside of their TPM2B, as the wire carries them.
#[derive(Clone, PartialEq, Eq)]
pub struct CredentialBlob {
    /// Inside of `TPM2B_ID_OBJECT`: integrity HMAC and encrypted identity.
    pub id_object: Vec<u8>,
    /// Inside of `TPM2B_ENCRYPTED_SECRET`.
    pub secret: Vec<u8>,
}

/// A sealed object wrapped for an EK: input of TPM2_Import. All without TPM2B sizes.
#[derive(Clone, PartialEq, Eq)]
pub struct ImportBlob {
    /// `TPMT_PUBLIC` of the sealed object.
    pub public: Public,
    /// Inside of `TPM2B_PRIVATE`.
    pub private: Vec<u8>,
    /// Inside of `TPM2B_ENCRYPTED_SECRET`.
    pub secret: Vec<u8>,
}

/// The parts of a storage key's public area that protect a credential or a duplicate.
struct Protector<'a> {
    public: &'a Public,
    hash: HashAlg,
    aes_bits: u16,
}

impl<'a> Protector<'a> {
    fn of(public: &'a Public) -> Result<Self, CredentialError> {
        let symmetric = match &public.kind {
            PublicKind::Rsa { symmetric, .. } | PublicKind::Ecc { symmetric, .. } => *symmetric,
            PublicKind::KeyedHash { .. } => return Err(CredentialError::Key("keyed hash")),
        };
        let SymDef::AesCfb { bits } = symmetric else {
            return Err(CredentialError::Key(
                "no symmetric algorithm: not a storage key",
            ));
        };
        if public.attributes & attributes::DECRYPT == 0 {
            return Err(CredentialError::Key("decrypt is clear"));
        }
        Ok(Self {
            public,
            hash: public.name_alg,
            aes_bits: bits,
        })
    }

    /// Makes a seed as long as nameAlg's digest and the ciphertext that the EK opens.
    fn seed(
        &self,
        label: &str,
        rng: &mut impl CryptoRngCore,
    ) -> Result<(Zeroizing<Vec<u8>>, Vec<u8>), CredentialError> {
        match &self.public.kind {
            PublicKind::Rsa { .. } => self.seed_rsa(label, rng),
            PublicKind::Ecc { curve, .. } => self.seed_ecc(*curve, label, rng),
            PublicKind::KeyedHash { .. } => Err(CredentialError::Key("keyed hash")),
        }
    }

    fn seed_rsa(
        &self,
        label: &str,
        rng: &mut impl CryptoRngCore,
    ) -> Result<(Zeroizing<Vec<u8>>, Vec<u8>), CredentialError> {
        let (n, e) = self
            .public
            .rsa_components()
            .ok_or(CredentialError::Key("not RSA"))?;
        let key = rsa::RsaPublicKey::new(
            rsa::BigUint::from_bytes_be(&n),
            rsa::BigUint::from_bytes_be(&e),
        )
        .map_err(|_| CredentialError::Key("modulus or exponent out of range"))?;
        let mut seed = Zeroizing::new(vec![0u8; self.hash.size()]);
        rng.fill_bytes(&mut seed);
        // The label's terminating NUL is part of it (Part 1, B.4).
        let label = format!("{label}\0");
        let padding = match self.hash {
            HashAlg::Sha256 => rsa::Oaep::new_with_label::<sha2::Sha256, _>(label),
            HashAlg::Sha384 => rsa::Oaep::new_with_label::<sha2::Sha384, _>(label),
            HashAlg::Sha512 => rsa::Oaep::new_with_label::<sha2::Sha512, _>(label),
            HashAlg::Sha1 => return Err(CredentialError::Key("nameAlg SHA-1")),
            HashAlg::Sm3 => return Err(CredentialError::Key("nameAlg SM3")),
        };
        let mut rng: &mut dyn CryptoRngCore = rng;
        let secret = key
            .encrypt(&mut rng, padding, &seed)
            .map_err(|_| CredentialError::Key("OAEP does not fit the modulus"))?;
        Ok((seed, secret))
    }

    fn seed_ecc(
        &self,
        curve: Curve,
        label: &str,
        rng: &mut impl CryptoRngCore,
    ) -> Result<(Zeroizing<Vec<u8>>, Vec<u8>), CredentialError> {
        let point = self
            .public
            .ecc_point()
            .ok_or(CredentialError::Key("coordinate longer than the curve"))?;
        let not_on_curve = CredentialError::Key("no point of the curve");
        macro_rules! exchange {
            ($curve:ident, $point:ty) => {{
                let encoded =
                    $curve::EncodedPoint::from_bytes(&point).map_err(|_| not_on_curve.clone())?;
                let peer: Option<$curve::PublicKey> =
                    $curve::PublicKey::from_encoded_point(&encoded).into();
                let peer = peer.ok_or(not_on_curve)?;
                let mut source: &mut dyn CryptoRngCore = rng;
                let ephemeral = $curve::ecdh::EphemeralSecret::random(&mut source);
                let shared = ephemeral.diffie_hellman(&peer);
                let z = Zeroizing::new(shared.raw_secret_bytes().to_vec());
                let own = ephemeral.public_key().to_encoded_point(false);
                (z, own.as_bytes().to_vec())
            }};
        }
        let (z, own) = match curve {
            Curve::P256 => exchange!(p256, p256::AffinePoint),
            Curve::P384 => exchange!(p384, p384::AffinePoint),
            Curve::P521 => return Err(CredentialError::Key("P-521 is not served")),
        };
        let size = curve.size();
        let (own_x, own_y) = (&own[1..1 + size], &own[1 + size..]);
        let peer_x = &point[1..1 + size];
        let seed = kdf_e(self.hash, &z, label, own_x, peer_x, self.hash.size());
        let mut secret = Vec::with_capacity(2 * size + 4);
        put_sized(&mut secret, own_x);
        put_sized(&mut secret, own_y);
        Ok((seed, secret))
    }

    /// `2B HMAC(enc || name) || enc` with keys derived from the seed (Part 1, 24.4 and 23.3.2.3).
    fn protect(&self, seed: &[u8], name: &Name, clear: &[u8]) -> Result<Vec<u8>, CredentialError> {
        let key_bytes = usize::from(self.aes_bits) / 8;
        let key = kdf_a(self.hash, seed, "STORAGE", name.as_bytes(), &[], key_bytes);
        let mut encrypted = clear.to_vec();
        let iv = [0u8; 16];
        let bad = |_| CredentialError::Key("AES key size");
        match self.aes_bits {
            128 => cfb_mode::Encryptor::<aes::Aes128>::new_from_slices(&key, &iv)
                .map_err(bad)?
                .encrypt(&mut encrypted),
            192 => cfb_mode::Encryptor::<aes::Aes192>::new_from_slices(&key, &iv)
                .map_err(bad)?
                .encrypt(&mut encrypted),
            256 => cfb_mode::Encryptor::<aes::Aes256>::new_from_slices(&key, &iv)
                .map_err(bad)?
                .encrypt(&mut encrypted),
            _ => return Err(CredentialError::Key("AES key size")),
        }
        let mac_key = kdf_a(self.hash, seed, "INTEGRITY", &[], &[], self.hash.size());
        let mac = self.hash.hmac(&mac_key, &[&encrypted, name.as_bytes()]);
        let mut out = Vec::with_capacity(2 + mac.len() + encrypted.len());
        put_sized(&mut out, &mac);
        out.extend_from_slice(&encrypted);
        Ok(out)
    }
}

/// Wraps `secret` so that only the TPM holding `ek` gives it back, and only together with a loaded
/// object whose Name is `object` (TPM2_MakeCredential).
///
/// # Errors
/// [`CredentialError`] when the key is no storage key or the secret is longer than its digest.
pub fn make_credential(
    ek: &Public,
    object: &Name,
    secret: &[u8],
    rng: &mut impl CryptoRngCore,
) -> Result<CredentialBlob, CredentialError> {
    let protector = Protector::of(ek)?;
    let max = protector.hash.size();
    if secret.len() > max {
        return Err(CredentialError::SecretTooLong {
            max,
            found: secret.len(),
        });
    }
    let (seed, encrypted_seed) = protector.seed("IDENTITY", rng)?;
    let mut clear = Zeroizing::new(Vec::with_capacity(secret.len() + 2));
    put_sized(&mut clear, secret);
    Ok(CredentialBlob {
        id_object: protector.protect(&seed, object, &clear)?,
        secret: encrypted_seed,
    })
}

/// Wraps `secret` as a sealed object that `ek`'s TPM imports and opens under `policy` only.
///
/// # Errors
/// [`CredentialError`] when the key is no storage key or the secret does not fit.
pub fn wrap_for_import(
    ek: &Public,
    policy: &[u8; 32],
    secret: &[u8],
    rng: &mut impl CryptoRngCore,
) -> Result<ImportBlob, CredentialError> {
    let attributes = attributes::NO_DA | attributes::ADMIN_WITH_POLICY;
    wrap_object(ek, attributes, policy, secret, rng)
}

/// The same with other attributes: those of the object decide who may unseal it.
pub(crate) fn wrap_object(
    ek: &Public,
    attributes: u32,
    policy: &[u8; 32],
    secret: &[u8],
    rng: &mut impl CryptoRngCore,
) -> Result<ImportBlob, CredentialError> {
    let protector = Protector::of(ek)?;
    if secret.len() > SEALED_MAX_BYTES {
        return Err(CredentialError::SecretTooLong {
            max: SEALED_MAX_BYTES,
            found: secret.len(),
        });
    }
    let mut obfuscation = Zeroizing::new([0u8; 32]);
    rng.fill_bytes(obfuscation.as_mut_slice());
    let public = Public {
        name_alg: HashAlg::Sha256,
        attributes,
        auth_policy: policy.to_vec(),
        kind: PublicKind::KeyedHash {
            scheme: crate::tpm::Scheme::Null,
            unique: HashAlg::Sha256.digest(&[obfuscation.as_slice(), secret]),
        },
    };
    // TPM2B_SENSITIVE: sensitiveType, empty authValue, seedValue, data (Part 2, 12.3.2).
    let mut sensitive = Zeroizing::new(Vec::with_capacity(secret.len() + 48));
    sensitive.extend_from_slice(&0x0008u16.to_be_bytes());
    put_sized(&mut sensitive, &[]);
    put_sized(&mut sensitive, obfuscation.as_slice());
    put_sized(&mut sensitive, secret);
    let mut clear = Zeroizing::new(Vec::with_capacity(sensitive.len() + 2));
    put_sized(&mut clear, &sensitive);
    let (seed, encrypted_seed) = protector.seed("DUPLICATE", rng)?;
    Ok(ImportBlob {
        private: protector.protect(&seed, &public.name(), &clear)?,
        public,
        secret: encrypted_seed,
    })
}

/// Policy digest of TPM2_PolicyPCR over SHA-256 values (Part 3, 23.7), numbers ascending.
pub fn policy_pcr_sha256(pcrs: &[(u8, [u8; 32])]) -> [u8; 32] {
    let numbers: Vec<u8> = pcrs.iter().map(|(number, _)| *number).collect();
    let values: Vec<&[u8]> = pcrs.iter().map(|(_, value)| value.as_slice()).collect();
    let values = HashAlg::Sha256.digest(&values);
    let mut selection = Vec::new();
    crate::tpm::put_pcr_selection(&mut selection, &numbers);
    let digest = HashAlg::Sha256.digest(&[
        &[0u8; 32],
        &0x0000_017fu32.to_be_bytes(),
        &selection,
        &values,
    ]);
    digest.try_into().expect("SHA-256 has 32 bytes")
}

/// KDFa: counter mode of SP 800-108 with HMAC (Part 1, 11.4.10.2).
pub fn kdf_a(
    hash: HashAlg,
    key: &[u8],
    label: &str,
    context_u: &[u8],
    context_v: &[u8],
    bytes: usize,
) -> Zeroizing<Vec<u8>> {
    let bits = (bytes as u32 * 8).to_be_bytes();
    blocks(hash.size(), bytes, |counter| {
        hash.hmac(
            key,
            &[
                &counter,
                label.as_bytes(),
                &[0],
                context_u,
                context_v,
                &bits,
            ],
        )
    })
}

/// KDFe: the concatenation KDF of SP 800-56A (Part 1, 11.4.10.3).
pub fn kdf_e(
    hash: HashAlg,
    z: &[u8],
    label: &str,
    party_u: &[u8],
    party_v: &[u8],
    bytes: usize,
) -> Zeroizing<Vec<u8>> {
    blocks(hash.size(), bytes, |counter| {
        hash.digest(&[&counter, z, label.as_bytes(), &[0], party_u, party_v])
    })
}

fn blocks(
    size: usize,
    bytes: usize,
    mut block: impl FnMut([u8; 4]) -> Vec<u8>,
) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(Vec::with_capacity(bytes + size));
    let mut counter = 0u32;
    while out.len() < bytes {
        counter += 1;
        out.extend_from_slice(&Zeroizing::new(block(counter.to_be_bytes())));
    }
    out.truncate(bytes);
    out
}
