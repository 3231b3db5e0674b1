//! A secret for a machine's EK in the form that the guest tools of cloud images open: three blobs in one
//! line, for `tpm2_import`, `tpm2_load` and `tpm2_unseal`.
//!
//! The plain form has an empty policy: any system on that machine opens it, in any boot state. The other
//! is bound to PCRs. Decides neither who may have one nor which PCRs count.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand_core::CryptoRngCore;

use crate::codec::put_sized;
use crate::credential::{CredentialError, ImportBlob, policy_pcr_sha256, wrap_object};
use crate::tpm::{Public, attributes};

/// Between the blobs of a line.
pub const SEPARATOR: &str = "@@NULL@@";

/// The three blobs, each with its two bytes of size.
#[derive(Clone, PartialEq, Eq)]
pub struct Bundle {
    /// `TPM2B_PUBLIC`.
    pub public: Vec<u8>,
    /// `TPM2B_PRIVATE`.
    pub private: Vec<u8>,
    /// `TPM2B_ENCRYPTED_SECRET`.
    pub seed: Vec<u8>,
    /// Name of the sealed object, hex.
    pub object_name: String,
}

impl Bundle {
    /// One line of base64 without its end.
    pub fn line(&self) -> String {
        [&self.public, &self.private, &self.seed]
            .map(|blob| STANDARD.encode(blob))
            .join(SEPARATOR)
    }
}

/// Seals `secret` to `ek` under an empty policy: a policy session without any command opens it.
///
/// # Errors
/// [`CredentialError`] when the key is no storage key or the secret is above 128 bytes.
pub fn seal(
    ek: &Public,
    secret: &[u8],
    rng: &mut impl CryptoRngCore,
) -> Result<Bundle, CredentialError> {
    let blob = wrap_object(ek, attributes::NO_DA, &[0; 32], secret, rng)?;
    Ok(bundle(&blob))
}

/// Seals `secret` to `ek` under `PolicyPCR` over these SHA-256 values, numbers ascending.
///
/// # Errors
/// As [`seal`].
pub fn seal_to_pcrs(
    ek: &Public,
    pcrs: &[(u8, [u8; 32])],
    secret: &[u8],
    rng: &mut impl CryptoRngCore,
) -> Result<Bundle, CredentialError> {
    let attributes = attributes::NO_DA | attributes::ADMIN_WITH_POLICY;
    let policy = policy_pcr_sha256(pcrs);
    Ok(bundle(&wrap_object(ek, attributes, &policy, secret, rng)?))
}

fn bundle(blob: &ImportBlob) -> Bundle {
    let sized = |bytes: &[u8]| {
        let mut out = Vec::with_capacity(bytes.len() + 2);
        put_sized(&mut out, bytes);
        out
    };
    Bundle {
        public: sized(&blob.public.encode()),
        private: sized(&blob.private),
        seed: sized(&blob.secret),
        object_name: blob.public.name().to_hex(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sealed::tests::{ek_p256, rng};

    #[test]
    fn the_line_has_three_sized_blobs_of_the_documented_shape() {
        let bundle = seal(&ek_p256(), &[7; 128], &mut rng(1)).unwrap();
        let line = bundle.line();
        assert!(!line.contains('\n'));
        let blobs: Vec<Vec<u8>> = line
            .split(SEPARATOR)
            .map(|text| STANDARD.decode(text).unwrap())
            .collect();
        let [public, private, seed] = blobs.as_slice() else {
            panic!("{} blobs", blobs.len());
        };
        for blob in [public, private, seed] {
            assert_eq!(
                usize::from(u16::from_be_bytes([blob[0], blob[1]])),
                blob.len() - 2
            );
        }
        // TPMT_PUBLIC: keyed hash, SHA-256, noDA alone, 32 zero bytes of policy, no scheme.
        assert_eq!(public.len(), 80);
        assert_eq!(public[2..10], [0, 8, 0, 0x0b, 0, 0, 4, 0]);
        assert_eq!(public[10..44], [[0, 32].as_slice(), &[0; 32]].concat());
        assert_eq!(public[44..48], [0, 0x10, 0, 32]);
        // Two coordinates of full length, whatever their first bytes are.
        assert_eq!(seed.len(), 2 + 2 * (2 + 32));
        assert_eq!(
            (seed[2..4].to_vec(), seed[36..38].to_vec()),
            (vec![0, 32], vec![0, 32])
        );
    }

    #[test]
    fn coordinates_keep_their_length_over_many_ephemeral_keys() {
        for round in 0..300 {
            let bundle = seal(&ek_p256(), b"x", &mut rng(round)).unwrap();
            assert_eq!(bundle.seed.len(), 70, "round {round}");
        }
    }

    #[test]
    fn rejects_a_secret_above_128_bytes() {
        let error = seal(&ek_p256(), &[0; 129], &mut rng(2)).err();
        let expected = CredentialError::SecretTooLong {
            max: 128,
            found: 129,
        };
        assert_eq!(error, Some(expected));
    }

    #[test]
    fn the_form_with_pcrs_has_their_policy() {
        let pcrs = [(4, [1; 32]), (7, [2; 32]), (11, [3; 32])];
        let bundle = seal_to_pcrs(&ek_p256(), &pcrs, b"x", &mut rng(3)).unwrap();
        assert_eq!(bundle.public[6..10], [0, 0, 4, 0x80]);
        assert_eq!(bundle.public[12..44], policy_pcr_sha256(&pcrs));
    }
}
