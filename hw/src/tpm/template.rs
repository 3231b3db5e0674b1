//! What our keys are made from: the shared templates of `attest-wire`, with the parts only the
//! maker of a key needs.
//!
//! Decides which endorsement keys exist, where their certificates lie and how their policy is
//! satisfied. Does not judge what a TPM answers: the verifier compares field by field on its own.

use attest_wire::templates::Template;
use attest_wire::tpm::{HashAlg, Public, PublicKind, Scheme};

/// `TPM2_PolicyAuthorizeNV` over index 0x01c07f01, SHA-256: `PolicyC` of the TCG EK Credential
/// Profile (version 2.5, appendix B.6), the branch that is not taken here.
const POLICY_C_SHA256: [u8; 32] = [
    0x37, 0x67, 0xe2, 0xed, 0xd4, 0x3f, 0xf4, 0x5a, 0x3a, 0x7e, 0x1e, 0xae, 0xfc, 0xef, 0x78, 0x64,
    0x3d, 0xca, 0x96, 0x46, 0x32, 0xe7, 0xaa, 0xd8, 0x2c, 0x67, 0x3a, 0x30, 0xd8, 0x63, 0x3f, 0xde,
];
/// The same over index 0x01c07f02, SHA-384.
const POLICY_C_SHA384: [u8; 48] = [
    0xd6, 0x03, 0x2c, 0xe6, 0x1f, 0x2f, 0xb3, 0xc2, 0x40, 0xeb, 0x3c, 0xf6, 0xa3, 0x32, 0x37, 0xef,
    0x2b, 0x6a, 0x16, 0xf4, 0x29, 0x3c, 0x22, 0xb4, 0x55, 0xe2, 0x61, 0xcf, 0xfd, 0x21, 0x7a, 0xd5,
    0xb4, 0x94, 0x7c, 0x2d, 0x73, 0xe6, 0x30, 0x05, 0xee, 0xd2, 0xdc, 0x2b, 0x35, 0x93, 0xd1, 0x65,
];

/// One endorsement key of the TCG EK Credential Profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EkKind {
    /// NV index of its certificate.
    pub cert_index: u32,
    template: Template,
}

/// The kinds we make, in the order they are offered (section 2.2.1 of the profile).
pub(super) const EK_KINDS: [EkKind; 7] = [
    EkKind {
        cert_index: 0x01c0_0002,
        template: Template::EkRsa2048L,
    },
    EkKind {
        cert_index: 0x01c0_000a,
        template: Template::EkP256L,
    },
    EkKind {
        cert_index: 0x01c0_0012,
        template: Template::EkRsa2048H,
    },
    EkKind {
        cert_index: 0x01c0_0014,
        template: Template::EkP256H,
    },
    EkKind {
        cert_index: 0x01c0_0016,
        template: Template::EkP384H,
    },
    EkKind {
        cert_index: 0x01c0_001c,
        template: Template::EkRsa3072H,
    },
    EkKind {
        cert_index: 0x01c0_001e,
        template: Template::EkRsa4096H,
    },
];

impl EkKind {
    /// The kind that is made from this template, if it is one of an EK.
    pub fn of(template: Template) -> Option<Self> {
        EK_KINDS.into_iter().find(|kind| kind.template == template)
    }

    /// Index of the EK nonce, which only the low range has.
    pub fn nonce_index(self) -> Option<u32> {
        (!self.high_range()).then_some(self.cert_index + 1)
    }

    /// Whether the key is used by PolicyOR(PolicyA, PolicyC) instead of PolicyA alone.
    pub fn high_range(self) -> bool {
        !matches!(self.template, Template::EkRsa2048L | Template::EkP256L)
    }

    /// Hash of the key's Name and policy.
    pub fn hash(self) -> HashAlg {
        self.template.public().name_alg
    }

    /// The other branch of a high-range key's PolicyOR.
    pub fn policy_c(self) -> &'static [u8] {
        match self.hash() {
            HashAlg::Sha384 => &POLICY_C_SHA384,
            HashAlg::Sha1 | HashAlg::Sha256 | HashAlg::Sha512 | HashAlg::Sm3 => &POLICY_C_SHA256,
        }
    }

    /// Input of `TPM2_CreatePrimary`. A nonce goes to the front of `unique`, or of its X.
    pub fn template(self, nonce: &[u8]) -> Vec<u8> {
        let mut public = self.template.create_primary_input();
        let unique = match &mut public.kind {
            PublicKind::Rsa { modulus, .. } => modulus,
            PublicKind::Ecc { x, .. } => x,
            PublicKind::KeyedHash { unique, .. } => unique,
        };
        let count = nonce.len().min(unique.len());
        unique[..count].copy_from_slice(&nonce[..count]);
        public.encode()
    }
}

/// The AK with a random `unique`, so that each boot has its own.
pub(super) fn ak(unique: &[u8; 64]) -> Vec<u8> {
    with_point(Template::Ak, &unique[..32], &unique[32..]).encode()
}

/// The ECC storage root key that SPIRE recreates, also the appliance's own.
pub(super) fn srk_ecc() -> Vec<u8> {
    Template::SrkP256.public().encode()
}

/// The public part of a P-256 update key, as it is loaded for `TPM2_VerifySignature`. Its
/// attributes (sign, userWithAuth) enter its Name and with it every policy: they never change.
pub(super) fn update_key(x: &[u8], y: &[u8]) -> Vec<u8> {
    let mut public = with_point(Template::DevIdP256, x, y);
    public.attributes = 0x0004_0040;
    public.encode()
}

/// A sealed data object: noDA, adminWithPolicy, fixed to TPM and parent, userWithAuth clear.
pub(super) fn sealed(policy: &[u8; 32]) -> Vec<u8> {
    Public {
        name_alg: HashAlg::Sha256,
        attributes: 0x0000_0492,
        auth_policy: policy.to_vec(),
        kind: PublicKind::KeyedHash {
            scheme: Scheme::Null,
            unique: Vec::new(),
        },
    }
    .encode()
}

/// `nameAlg || H(public)`: the Name of an object, or of an NV index (TPM 2.0 Part 1, 16).
pub(super) fn name(hash: HashAlg, public: &[u8]) -> Vec<u8> {
    let mut name = hash.id().to_be_bytes().to_vec();
    name.extend(hash.digest(&[public]));
    name
}

fn with_point(template: Template, new_x: &[u8], new_y: &[u8]) -> Public {
    let mut public = template.public();
    if let PublicKind::Ecc { x, y, .. } = &mut public.kind {
        *x = new_x.to_vec();
        *y = new_y.to_vec();
    }
    public
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `policyDigest = H(0.. || TPM_CC_PolicyOR || PolicyA || PolicyC)`, TPM 2.0 Part 3, 23.6, where
    /// PolicyA is PolicySecret(TPM_RH_ENDORSEMENT) with an empty policyRef, 23.4.
    #[test]
    fn the_branches_we_satisfy_are_those_of_the_templates() {
        for kind in EK_KINDS {
            let hash = kind.hash();
            let zero = vec![0; hash.size()];
            let secret = [0, 0, 1, 0x51, 0x40, 0, 0, 0x0b];
            let policy_a = hash.digest(&[&hash.digest(&[&zero, &secret])]);
            let policy = if kind.high_range() {
                hash.digest(&[&zero, &[0, 0, 1, 0x71], &policy_a, kind.policy_c()])
            } else {
                policy_a
            };
            assert_eq!(
                policy,
                kind.template.public().auth_policy,
                "{}",
                kind.template.name()
            );
        }
    }

    #[test]
    fn nonce_goes_to_the_front_of_unique_in_the_low_range_only() {
        let rsa = EK_KINDS[0].template(&[7; 20]);
        assert_eq!(&rsa[58..78], [7; 20]);
        assert_eq!(rsa[78..], [0; 236]);
        let ecc = EK_KINDS[1].template(&[7; 20]);
        assert_eq!(&ecc[56..76], [7; 20]);
        assert_eq!(EK_KINDS[4].template(&[7; 20]), EK_KINDS[4].template(&[]));
        assert_eq!(EK_KINDS[0].template(&[7; 300])[58..], [7; 256]);
    }

    #[test]
    fn golden_bytes_of_what_only_we_make() {
        assert_eq!(
            hex::encode(&ak(&[1; 64])[..22]),
            "0023000b00050472000000100018000b000300100020"
        );
        assert_eq!(
            hex::encode(&update_key(&[1; 32], &[2; 32])[..22]),
            "0023000b00040040000000100018000b000300100020"
        );
        assert_eq!(
            hex::encode(sealed(&[3; 32])),
            format!("0008000b000004920020{}00100000", "03".repeat(32))
        );
        assert_eq!(
            hex::encode(srk_ecc()),
            "0023000b00030472000000060080004300100003001000000000"
        );
    }
}
