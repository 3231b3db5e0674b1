//! Secrets at rest: AES-256-GCM under a key that the appliance's TPM seals.
//!
//! Stored form: version byte 1, 12-byte random nonce, ciphertext, 16-byte tag. The name is
//! authenticated, so that one secret cannot be put in another's place.

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use zeroize::Zeroizing;

use crate::error::StoreError;

const VERSION: u8 = 1;
const NONCE_BYTES: usize = 12;
const AAD_LABEL: &str = "vestibule/secret/v1\0";

/// The key that secrets in the store are encrypted under. Never written anywhere by this package.
pub struct StoreKey(Zeroizing<[u8; 32]>);

impl StoreKey {
    /// HKDF-SHA-256 of the key that the TPM unsealed, for one purpose (`ca`, `store`).
    pub fn derive(kek: &[u8; 32], purpose: &str) -> Self {
        let mut key = Zeroizing::new([0u8; 32]);
        let prk = Salt::new(HKDF_SHA256, b"vestibule/store-key/v1").extract(kek);
        prk.expand(&[purpose.as_bytes()], HKDF_SHA256)
            .and_then(|okm| okm.fill(&mut *key))
            .expect("32 bytes are within the bound of HKDF");
        Self(key)
    }

    /// The key itself, for what is encrypted elsewhere: disk keys, which never are in the store.
    pub fn into_bytes(self) -> Zeroizing<[u8; 32]> {
        self.0
    }

    fn cipher(&self) -> RandomizedNonceKey {
        RandomizedNonceKey::new(&AES_256_GCM, &*self.0).expect("the key has 32 bytes")
    }
}

impl std::fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreKey(..)")
    }
}

/// Encrypts a secret for storage under `name`.
pub(crate) fn encrypt(key: &StoreKey, name: &str, secret: &[u8]) -> Result<Vec<u8>, StoreError> {
    // Room for the tag, so that no copy of the plain text stays behind in a smaller allocation.
    let mut body = Zeroizing::new(Vec::with_capacity(secret.len() + AES_256_GCM.tag_len()));
    body.extend_from_slice(secret);
    let aad = Aad::from(format!("{AAD_LABEL}{name}"));
    let nonce = key
        .cipher()
        .seal_in_place_append_tag(aad, &mut *body)
        .map_err(|_| StoreError::Resource {
            what: "the cipher or its random nonce",
        })?;
    Ok([&[VERSION][..], nonce.as_ref(), &body[..]].concat())
}

/// Decrypts what [`encrypt`] made for the same name and key.
pub(crate) fn decrypt(
    key: &StoreKey,
    name: &str,
    stored: &[u8],
) -> Result<Zeroizing<Vec<u8>>, StoreError> {
    let broken = || StoreError::SecretBroken { name: name.into() };
    let body = stored.strip_prefix(&[VERSION]).ok_or_else(broken)?;
    let (nonce, body) = body.split_at_checked(NONCE_BYTES).ok_or_else(broken)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| broken())?;
    let mut body = Zeroizing::new(body.to_vec());
    let aad = Aad::from(format!("{AAD_LABEL}{name}"));
    let len = key
        .cipher()
        .open_in_place(nonce, aad, &mut body)
        .map_err(|_| broken())?
        .len();
    body.truncate(len);
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_under_the_same_key_and_name_only() {
        let key = StoreKey::derive(&[7; 32], "ca");
        let stored = encrypt(&key, "ca/device", b"private").unwrap();
        assert_eq!(
            &decrypt(&key, "ca/device", &stored).unwrap()[..],
            b"private"
        );
        assert!(!stored.windows(7).any(|w| w == b"private"));
        for (other, name) in [
            (StoreKey::derive(&[7; 32], "ca"), "ca/infra"),
            (StoreKey::derive(&[7; 32], "store"), "ca/device"),
            (StoreKey::derive(&[8; 32], "ca"), "ca/device"),
        ] {
            assert!(matches!(
                decrypt(&other, name, &stored),
                Err(StoreError::SecretBroken { .. })
            ));
        }
    }

    #[test]
    fn rejects_every_edited_byte_and_every_cut() {
        let key = StoreKey::derive(&[7; 32], "ca");
        let stored = encrypt(&key, "n", b"private").unwrap();
        for at in 0..stored.len() {
            let mut bad = stored.clone();
            bad[at] ^= 0x40;
            assert!(decrypt(&key, "n", &bad).is_err(), "byte {at}");
            assert!(decrypt(&key, "n", &stored[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn two_encryptions_differ() {
        let key = StoreKey::derive(&[7; 32], "ca");
        assert_ne!(
            encrypt(&key, "n", b"x").unwrap(),
            encrypt(&key, "n", b"x").unwrap()
        );
    }
}
