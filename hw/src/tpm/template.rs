//! The public templates a node's keys are made from, as `TPMT_PUBLIC` bytes (TPM 2.0 Part 2,
//! 12.2.4).
//!
//! Decides which endorsement keys exist and with which attributes every key of ours is made. Does
//! not judge what a TPM answers: the verifier compares field by field on its own.

use sha2::{Digest, Sha256, Sha384};

/// `TPM_ALG_SHA256`.
const SHA256: u16 = 0x000b;
/// `TPM_ALG_SHA384`.
const SHA384: u16 = 0x000c;

/// PolicySecret(TPM_RH_ENDORSEMENT), SHA-256 (TCG EK Credential Profile 2.5, B.6.2 `PolicyA`).
const POLICY_A_SHA256: [u8; 32] = [
    0x83, 0x71, 0x97, 0x67, 0x44, 0x84, 0xb3, 0xf8, 0x1a, 0x90, 0xcc, 0x8d, 0x46, 0xa5, 0xd7, 0x24,
    0xfd, 0x52, 0xd7, 0x6e, 0x06, 0x52, 0x0b, 0x64, 0xf2, 0xa1, 0xda, 0x1b, 0x33, 0x14, 0x69, 0xaa,
];
/// PolicyAuthorizeNV over index 0x01c07f01, SHA-256 (`PolicyC`, same profile, B.6.4).
pub(super) const POLICY_C_SHA256: [u8; 32] = [
    0x37, 0x67, 0xe2, 0xed, 0xd4, 0x3f, 0xf4, 0x5a, 0x3a, 0x7e, 0x1e, 0xae, 0xfc, 0xef, 0x78, 0x64,
    0x3d, 0xca, 0x96, 0x46, 0x32, 0xe7, 0xaa, 0xd8, 0x2c, 0x67, 0x3a, 0x30, 0xd8, 0x63, 0x3f, 0xde,
];
/// PolicyAuthorizeNV over index 0x01c07f02, SHA-384 (`PolicyC`).
pub(super) const POLICY_C_SHA384: [u8; 48] = [
    0xd6, 0x03, 0x2c, 0xe6, 0x1f, 0x2f, 0xb3, 0xc2, 0x40, 0xeb, 0x3c, 0xf6, 0xa3, 0x32, 0x37, 0xef,
    0x2b, 0x6a, 0x16, 0xf4, 0x29, 0x3c, 0x22, 0xb4, 0x55, 0xe2, 0x61, 0xcf, 0xfd, 0x21, 0x7a, 0xd5,
    0xb4, 0x94, 0x7c, 0x2d, 0x73, 0xe6, 0x30, 0x05, 0xee, 0xd2, 0xdc, 0x2b, 0x35, 0x93, 0xd1, 0x65,
];
/// PolicyOR(PolicyA, PolicyC), SHA-256 (`PolicyB`).
const POLICY_B_SHA256: [u8; 32] = [
    0xca, 0x3d, 0x0a, 0x99, 0xa2, 0xb9, 0x39, 0x06, 0xf7, 0xa3, 0x34, 0x24, 0x14, 0xef, 0xcf, 0xb3,
    0xa3, 0x85, 0xd4, 0x4c, 0xd1, 0xfd, 0x45, 0x90, 0x89, 0xd1, 0x9b, 0x50, 0x71, 0xc0, 0xb7, 0xa0,
];
/// PolicyOR(PolicyA, PolicyC), SHA-384 (`PolicyB`).
const POLICY_B_SHA384: [u8; 48] = [
    0xb2, 0x6e, 0x7d, 0x28, 0xd1, 0x1a, 0x50, 0xbc, 0x53, 0xd8, 0x82, 0xbc, 0xf5, 0xfd, 0x3a, 0x1a,
    0x07, 0x41, 0x48, 0xbb, 0x35, 0xd3, 0xb4, 0xe4, 0xcb, 0x1c, 0x0a, 0xd9, 0xbd, 0xe4, 0x19, 0xca,
    0xcb, 0x47, 0xba, 0x09, 0x69, 0x96, 0x46, 0x15, 0x0f, 0x9f, 0xc0, 0x00, 0xf3, 0xf8, 0x0e, 0x12,
];

/// Algorithm part of an endorsement key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EkAlgorithm {
    Rsa2048,
    Rsa3072,
    P256,
    P384,
}

/// One endorsement key of the TCG EK Credential Profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EkKind {
    /// NV index of its certificate; nonce and template follow at +1 and +2 in the low range.
    pub cert_index: u32,
    algorithm: EkAlgorithm,
    high_range: bool,
}

/// The kinds we make, in the order they are offered. RSA-4096 and P-521 are left out: the
/// verifier has no template for them.
pub(super) const EK_KINDS: [EkKind; 6] = [
    EkKind {
        cert_index: 0x01c0_0002,
        algorithm: EkAlgorithm::Rsa2048,
        high_range: false,
    },
    EkKind {
        cert_index: 0x01c0_000a,
        algorithm: EkAlgorithm::P256,
        high_range: false,
    },
    EkKind {
        cert_index: 0x01c0_0012,
        algorithm: EkAlgorithm::Rsa2048,
        high_range: true,
    },
    EkKind {
        cert_index: 0x01c0_0014,
        algorithm: EkAlgorithm::P256,
        high_range: true,
    },
    EkKind {
        cert_index: 0x01c0_0016,
        algorithm: EkAlgorithm::P384,
        high_range: true,
    },
    EkKind {
        cert_index: 0x01c0_001c,
        algorithm: EkAlgorithm::Rsa3072,
        high_range: true,
    },
];

impl EkKind {
    /// Index of the EK nonce, which only the low range has.
    pub fn nonce_index(self) -> Option<u32> {
        (!self.high_range).then_some(self.cert_index + 1)
    }

    /// Whether the key is used by PolicyOR(PolicyA, PolicyC) instead of PolicyA alone.
    pub fn high_range(self) -> bool {
        self.high_range
    }

    /// Whether the key's nameAlg is SHA-384.
    pub fn sha384(self) -> bool {
        matches!(self.algorithm, EkAlgorithm::Rsa3072 | EkAlgorithm::P384)
    }

    /// The template. `nonce` goes to the front of `unique` (TCG EK Credential Profile 2.2.1.4).
    pub fn template(self, nonce: &[u8]) -> Vec<u8> {
        let (name_alg, attributes, policy): (u16, u32, &[u8]) =
            match (self.high_range, self.sha384()) {
                (false, _) => (SHA256, 0x0003_00b2, &POLICY_A_SHA256),
                (true, false) => (SHA256, 0x0003_00f2, &POLICY_B_SHA256),
                (true, true) => (SHA384, 0x0003_00f2, &POLICY_B_SHA384),
            };
        let aes_bits: u16 = if self.sha384() { 256 } else { 128 };
        let unique = |size: usize| {
            let mut unique = vec![0; if self.high_range { 0 } else { size }];
            let n = nonce.len().min(unique.len());
            unique[..n].copy_from_slice(&nonce[..n]);
            unique
        };
        let mut out = Vec::with_capacity(320);
        let rsa = |out: &mut Vec<u8>, bits: u16| {
            header(out, 0x0001, name_alg, attributes, policy);
            out.extend([0x00, 0x06]);
            out.extend(aes_bits.to_be_bytes());
            out.extend([0x00, 0x43, 0x00, 0x10]);
            out.extend(bits.to_be_bytes());
            out.extend([0; 4]);
            tpm2b(out, &unique(256));
        };
        let ecc = |out: &mut Vec<u8>, curve: u16| {
            header(out, 0x0023, name_alg, attributes, policy);
            out.extend([0x00, 0x06]);
            out.extend(aes_bits.to_be_bytes());
            out.extend([0x00, 0x43, 0x00, 0x10]);
            out.extend(curve.to_be_bytes());
            out.extend([0x00, 0x10]);
            tpm2b(out, &unique(32));
            tpm2b(out, &vec![0; if self.high_range { 0 } else { 32 }]);
        };
        match self.algorithm {
            EkAlgorithm::Rsa2048 => rsa(&mut out, 2048),
            EkAlgorithm::Rsa3072 => rsa(&mut out, 3072),
            EkAlgorithm::P256 => ecc(&mut out, 0x0003),
            EkAlgorithm::P384 => ecc(&mut out, 0x0004),
        }
        out
    }
}

/// The AK: restricted ECDSA P-256 signing key, noDA, userWithAuth, fixed to TPM and parent.
pub(super) fn ak(unique: &[u8; 64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(88);
    header(&mut out, 0x0023, SHA256, 0x0005_0472, &[]);
    // symmetric NULL, scheme ECDSA/SHA-256, curve P-256, kdf NULL
    out.extend([0x00, 0x10, 0x00, 0x18, 0x00, 0x0b, 0x00, 0x03, 0x00, 0x10]);
    tpm2b(&mut out, &unique[..32]);
    tpm2b(&mut out, &unique[32..]);
    out
}

/// The ECC storage root key that SPIRE recreates, also the appliance's own.
pub(super) const SRK_ECC: [u8; 26] = [
    0x00, 0x23, 0x00, 0x0b, 0x00, 0x03, 0x04, 0x72, 0x00, 0x00, 0x00, 0x06, 0x00, 0x80, 0x00, 0x43,
    0x00, 0x10, 0x00, 0x03, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00,
];
/// The RSA-2048 storage root key that SPIRE recreates.
pub(super) const SRK_RSA: [u8; 26] = [
    0x00, 0x01, 0x00, 0x0b, 0x00, 0x03, 0x04, 0x72, 0x00, 0x00, 0x00, 0x06, 0x00, 0x80, 0x00, 0x43,
    0x00, 0x10, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];
/// DevID, RSA-2048, RSASSA/SHA-256, noDA.
pub(super) const DEVID_RSA: [u8; 24] = [
    0x00, 0x01, 0x00, 0x0b, 0x00, 0x04, 0x04, 0x72, 0x00, 0x00, 0x00, 0x10, 0x00, 0x14, 0x00, 0x0b,
    0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];
/// DevID, ECC P-256, ECDSA/SHA-256, noDA.
pub(super) const DEVID_ECC: [u8; 24] = [
    0x00, 0x23, 0x00, 0x0b, 0x00, 0x04, 0x04, 0x72, 0x00, 0x00, 0x00, 0x10, 0x00, 0x18, 0x00, 0x0b,
    0x00, 0x03, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00,
];

/// The public part of a P-256 update key, as it is loaded for `TPM2_VerifySignature`. Its
/// attributes enter its Name and with it every policy: they never change.
pub(super) fn update_key(x: &[u8; 32], y: &[u8; 32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(88);
    header(&mut out, 0x0023, SHA256, 0x0004_0040, &[]);
    out.extend([0x00, 0x10, 0x00, 0x18, 0x00, 0x0b, 0x00, 0x03, 0x00, 0x10]);
    tpm2b(&mut out, x);
    tpm2b(&mut out, y);
    out
}

/// A sealed data object: noDA, adminWithPolicy, fixed to TPM and parent, userWithAuth clear.
pub(super) fn sealed(policy: &[u8; 32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(50);
    header(&mut out, 0x0008, SHA256, 0x0000_0492, policy);
    out.extend([0x00, 0x10]);
    tpm2b(&mut out, &[]);
    out
}

/// Name of an object whose nameAlg is SHA-256: `nameAlg || H(TPMT_PUBLIC)` (TPM 2.0 Part 1, 16).
pub(super) fn name_sha256(public: &[u8]) -> Vec<u8> {
    let mut name = SHA256.to_be_bytes().to_vec();
    name.extend(Sha256::digest(public));
    name
}

/// Name of an object whose nameAlg is SHA-384.
pub(super) fn name_sha384(public: &[u8]) -> Vec<u8> {
    let mut name = SHA384.to_be_bytes().to_vec();
    name.extend(Sha384::digest(public));
    name
}

fn header(out: &mut Vec<u8>, kind: u16, name_alg: u16, attributes: u32, policy: &[u8]) {
    out.extend(kind.to_be_bytes());
    out.extend(name_alg.to_be_bytes());
    out.extend(attributes.to_be_bytes());
    tpm2b(out, policy);
}

fn tpm2b(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u16).to_be_bytes());
    out.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `policyDigest = H(0.. || TPM_CC_PolicyOR || digests)`, TPM 2.0 Part 3, 23.6.
    #[test]
    fn policy_b_is_the_or_of_a_and_c() {
        let mut sha256 = Sha256::new();
        sha256.update([0; 32]);
        sha256.update(0x0000_0171_u32.to_be_bytes());
        sha256.update(POLICY_A_SHA256);
        sha256.update(POLICY_C_SHA256);
        assert_eq!(sha256.finalize().as_slice(), POLICY_B_SHA256);

        // PolicyA with SHA-384, computed: PolicySecret(TPM_RH_ENDORSEMENT), empty policyRef.
        let mut step = Sha384::new();
        step.update([0; 48]);
        step.update(0x0000_0151_u32.to_be_bytes());
        step.update(0x4000_000b_u32.to_be_bytes());
        let policy_a = Sha384::digest(step.finalize());
        let mut sha384 = Sha384::new();
        sha384.update([0; 48]);
        sha384.update(0x0000_0171_u32.to_be_bytes());
        sha384.update(policy_a);
        sha384.update(POLICY_C_SHA384);
        assert_eq!(sha384.finalize().as_slice(), POLICY_B_SHA384);
    }

    #[test]
    fn template_sizes_are_those_of_the_profile() {
        let sizes: Vec<usize> = EK_KINDS
            .iter()
            .map(|kind| kind.template(&[]).len())
            .collect();
        assert_eq!(sizes, [314, 122, 58, 58, 74, 74]);
        assert_eq!(ak(&[1; 64]).len(), 88);
        assert_eq!(sealed(&[0; 32]).len(), 46);
    }

    #[test]
    fn nonce_goes_to_the_front_of_unique_in_the_low_range_only() {
        let template = EK_KINDS[0].template(&[7; 20]);
        assert_eq!(&template[58..78], [7; 20]);
        assert_eq!(template[78..], [0; 236]);
        assert_eq!(EK_KINDS[4].template(&[7; 20]), EK_KINDS[4].template(&[]));
    }
}
