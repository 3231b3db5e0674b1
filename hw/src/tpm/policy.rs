//! The sealing policy in software: what the TPM will compute, and the key that approves it.
//!
//! `PolicyAuthorize(update key, "vestibule/seal" || epoch)` over `PolicyPCR {4, 7, 11}`
//! (TPM 2.0 Part 3, 23.7 and 23.16). Knows no TPM.

use p256::ecdsa::signature::hazmat::PrehashSigner;
use p256::ecdsa::{Signature, SigningKey, VerifyingKey};
use rand_core::CryptoRngCore;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::TpmError;
use super::device::malformed;
use super::template;

/// The PCRs an appliance is sealed to: boot loader and kernel, Secure Boot state, UKI sections.
pub(super) const SEAL_PCRS: [u8; 3] = [4, 7, 11];

/// The owner's update key: ECDSA P-256 in software. It approves boot states for sealing.
pub struct UpdateKey {
    key: SigningKey,
}

impl UpdateKey {
    /// Makes a new key.
    pub fn generate(rng: &mut impl CryptoRngCore) -> Self {
        Self {
            key: SigningKey::random(rng),
        }
    }

    /// Reads a key back from [`UpdateKey::to_bytes`].
    ///
    /// # Errors
    /// When the scalar is zero or not below the group order.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, TpmError> {
        SigningKey::from_slice(bytes)
            .map(|key| Self { key })
            .map_err(|e| malformed("update key", &e.to_string()))
    }

    /// The private scalar, 32 bytes big-endian. Secret.
    pub fn to_bytes(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.key.to_bytes().into())
    }

    /// The public point, uncompressed SEC1, 65 bytes.
    pub fn public(&self) -> Vec<u8> {
        self.key
            .verifying_key()
            .to_encoded_point(false)
            .as_bytes()
            .to_vec()
    }

    /// Approves a boot state for one epoch: `TPMT_SIGNATURE` over `H(policy || policyRef)`.
    pub(super) fn approve(
        &self,
        approved_policy: &[u8; 32],
        epoch: u64,
    ) -> Result<Vec<u8>, TpmError> {
        let signature: Signature = self
            .key
            .sign_prehash(&approval_digest(approved_policy, epoch))
            .map_err(|e| malformed("policy signature", &e.to_string()))?;
        let (r, s) = signature.split_bytes();
        // sigAlg ECDSA, hash SHA-256, then r and s as TPM2B_ECC_PARAMETER
        let mut out = vec![0x00, 0x18, 0x00, 0x0b];
        for part in [r, s] {
            out.extend((part.len() as u16).to_be_bytes());
            out.extend(part);
        }
        Ok(out)
    }
}

/// `TPMT_PUBLIC` of an update key from its uncompressed SEC1 point.
pub(super) fn update_key_public(point: &[u8]) -> Result<Vec<u8>, TpmError> {
    let key = VerifyingKey::from_sec1_bytes(point)
        .map_err(|e| malformed("update key of the sealed blob", &e.to_string()))?;
    let point = key.to_encoded_point(false);
    match (point.x(), point.y()) {
        (Some(x), Some(y)) => Ok(template::update_key(x, y)),
        _ => Err(malformed(
            "update key of the sealed blob",
            "point at infinity",
        )),
    }
}

/// `"vestibule/seal" || epoch`, 22 bytes.
pub(super) fn policy_ref(epoch: u64) -> Vec<u8> {
    let mut reference = b"vestibule/seal".to_vec();
    reference.extend(epoch.to_be_bytes());
    reference
}

/// What the update key signs: `H(approvedPolicy || policyRef)`.
pub(super) fn approval_digest(approved_policy: &[u8; 32], epoch: u64) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(approved_policy);
    hash.update(policy_ref(epoch));
    hash.finalize().into()
}

/// `PolicyPCR` over these values of [`SEAL_PCRS`], SHA-256 bank.
pub(super) fn pcr_policy(values: &[[u8; 32]]) -> [u8; 32] {
    let mut composite = Sha256::new();
    for value in values {
        composite.update(value);
    }
    let mut hash = Sha256::new();
    hash.update([0; 32]);
    hash.update(0x0000_017f_u32.to_be_bytes());
    // TPML_PCR_SELECTION: one selection, SHA-256, three octets, bits 4, 7 and 11
    hash.update([0x00, 0x00, 0x00, 0x01, 0x00, 0x0b, 0x03, 0x90, 0x08, 0x00]);
    hash.update(composite.finalize());
    hash.finalize().into()
}

/// authPolicy of everything sealed under this update key and epoch.
pub(super) fn seal_policy(update_key_name: &[u8], epoch: u64) -> [u8; 32] {
    let mut first = Sha256::new();
    first.update([0; 32]);
    first.update(0x0000_016a_u32.to_be_bytes());
    first.update(update_key_name);
    let mut second = Sha256::new();
    second.update(first.finalize());
    second.update(policy_ref(epoch));
    second.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use p256::ecdsa::signature::hazmat::PrehashVerifier;

    #[test]
    fn approval_is_bound_to_policy_and_epoch() {
        let key = UpdateKey::generate(&mut rand_core::OsRng);
        let policy = pcr_policy(&[[0; 32]; 3]);
        let signature = key.approve(&policy, 1).unwrap();
        assert_eq!(signature.len(), 72);
        let mut raw = signature[6..38].to_vec();
        raw.extend_from_slice(&signature[40..]);
        let raw = Signature::from_slice(&raw).unwrap();
        let public = VerifyingKey::from_sec1_bytes(&key.public()).unwrap();
        public
            .verify_prehash(&approval_digest(&policy, 1), &raw)
            .unwrap();
        public
            .verify_prehash(&approval_digest(&policy, 2), &raw)
            .unwrap_err();
        public
            .verify_prehash(&approval_digest(&pcr_policy(&[[1; 32]; 3]), 1), &raw)
            .unwrap_err();
    }

    #[test]
    fn update_key_round_trips_and_refuses_a_bad_scalar() {
        let key = UpdateKey::generate(&mut rand_core::OsRng);
        let again = UpdateKey::from_bytes(&key.to_bytes()).unwrap();
        assert_eq!(again.public(), key.public());
        assert!(UpdateKey::from_bytes(&[0; 32]).is_err());
        assert!(UpdateKey::from_bytes(&[0xff; 32]).is_err());
        assert!(update_key_public(&[4; 65]).is_err());
    }
}
