//! The exact public templates of the exchange, and the comparison with a key that was sent.
//!
//! A template fixes every field but `unique`. Says whether a key has the template's shape, not
//! whether it lives in a TPM: that is proven by activation and certification.
//! EK templates: TCG EK Credential Profile for TPM 2.0, section B.3 (L) and B.4 (H); storage and
//! DevID templates: what SPIRE's `tpm_devid` plugin recreates.

use crate::tpm::attributes as attr;
use crate::tpm::{Curve, HashAlg, Public, PublicKind, Scheme, SymDef};

/// PolicySecret(TPM_RH_ENDORSEMENT), SHA-256: PolicyA of the L templates.
const POLICY_A_SHA256: &str = "837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa";
/// PolicyOR(PolicyA, PolicyC), SHA-256.
const POLICY_B_SHA256: &str = "ca3d0a99a2b93906f7a3342414efcfb3a385d44cd1fd459089d19b5071c0b7a0";
/// PolicyOR(PolicyA, PolicyC), SHA-384.
const POLICY_B_SHA384: &str = "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419ca\
                               cb47ba09699646150f9fc000f3f80e12";

/// L-range EK: fixedTPM, fixedParent, sensitiveDataOrigin, adminWithPolicy, restricted, decrypt.
pub const EK_L_ATTRIBUTES: u32 = attr::FIXED_TPM
    | attr::FIXED_PARENT
    | attr::SENSITIVE_DATA_ORIGIN
    | attr::ADMIN_WITH_POLICY
    | attr::RESTRICTED
    | attr::DECRYPT;
/// H-range EK: the same and userWithAuth.
pub const EK_H_ATTRIBUTES: u32 = EK_L_ATTRIBUTES | attr::USER_WITH_AUTH;
/// AK: sign, restricted, noDA, userWithAuth, sensitiveDataOrigin, fixedParent, fixedTPM.
pub const AK_ATTRIBUTES: u32 = DEVID_ATTRIBUTES | attr::RESTRICTED;
/// DevID: sign, noDA, userWithAuth, sensitiveDataOrigin, fixedParent, fixedTPM.
pub const DEVID_ATTRIBUTES: u32 = attr::SIGN
    | attr::NO_DA
    | attr::USER_WITH_AUTH
    | attr::SENSITIVE_DATA_ORIGIN
    | attr::FIXED_PARENT
    | attr::FIXED_TPM;
/// SRK: restricted decrypt key without dictionary-attack protection.
pub const SRK_ATTRIBUTES: u32 = attr::RESTRICTED
    | attr::DECRYPT
    | attr::NO_DA
    | attr::USER_WITH_AUTH
    | attr::SENSITIVE_DATA_ORIGIN
    | attr::FIXED_PARENT
    | attr::FIXED_TPM;

/// A key differs from its template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{template} {field}: expected {expected}, found {found}")]
pub struct Mismatch {
    /// The template it was compared with.
    pub template: &'static str,
    /// Field of `TPMT_PUBLIC`.
    pub field: &'static str,
    /// What the template says.
    pub expected: String,
    /// What the key says.
    pub found: String,
}

/// Every template that a key of the exchange may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Template {
    /// EK L-1: RSA-2048, SHA-256, policy A, unique of 256 bytes.
    EkRsa2048L,
    /// EK L-2: P-256, SHA-256, policy A.
    EkP256L,
    /// EK H-1: RSA-2048, SHA-256, policy B.
    EkRsa2048H,
    /// EK H-2: P-256, SHA-256, policy B.
    EkP256H,
    /// EK H-3: P-384, SHA-384, policy B, AES-256.
    EkP384H,
    /// EK H-6: RSA-3072, SHA-384, policy B, AES-256.
    EkRsa3072H,
    /// EK H-7: RSA-4096, SHA-384, policy B, AES-256.
    EkRsa4096H,
    /// AK: P-256 restricted signing key, a primary of the endorsement hierarchy.
    Ak,
    /// SRK under which an RSA DevID lives.
    SrkRsa2048,
    /// SRK under which an ECC DevID lives.
    SrkP256,
    /// DevID: RSA-2048, RSASSA/SHA-256.
    DevIdRsa2048,
    /// DevID: P-256, ECDSA/SHA-256.
    DevIdP256,
}

const EKS: [Template; 7] = [
    Template::EkRsa2048L,
    Template::EkP256L,
    Template::EkRsa2048H,
    Template::EkP256H,
    Template::EkP384H,
    Template::EkRsa3072H,
    Template::EkRsa4096H,
];

const AES128: SymDef = SymDef::AesCfb { bits: 128 };
const AES256: SymDef = SymDef::AesCfb { bits: 256 };

impl Template {
    /// Name for reasons and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EkRsa2048L => "EK L-1 (RSA-2048)",
            Self::EkP256L => "EK L-2 (P-256)",
            Self::EkRsa2048H => "EK H-1 (RSA-2048)",
            Self::EkP256H => "EK H-2 (P-256)",
            Self::EkP384H => "EK H-3 (P-384)",
            Self::EkRsa3072H => "EK H-6 (RSA-3072)",
            Self::EkRsa4096H => "EK H-7 (RSA-4096)",
            Self::Ak => "AK (P-256)",
            Self::SrkRsa2048 => "SRK (RSA-2048)",
            Self::SrkP256 => "SRK (P-256)",
            Self::DevIdRsa2048 => "DevID (RSA-2048)",
            Self::DevIdP256 => "DevID (P-256)",
        }
    }

    /// The template itself; `unique` is empty.
    pub fn public(self) -> Public {
        let sha256 = HashAlg::Sha256;
        let sha384 = HashAlg::Sha384;
        let null = Scheme::Null;
        match self {
            Self::EkRsa2048L => rsa(sha256, EK_L_ATTRIBUTES, POLICY_A_SHA256, AES128, null, 2048),
            Self::EkP256L => ecc(
                sha256,
                EK_L_ATTRIBUTES,
                POLICY_A_SHA256,
                AES128,
                null,
                Curve::P256,
            ),
            Self::EkRsa2048H => rsa(sha256, EK_H_ATTRIBUTES, POLICY_B_SHA256, AES128, null, 2048),
            Self::EkP256H => ecc(
                sha256,
                EK_H_ATTRIBUTES,
                POLICY_B_SHA256,
                AES128,
                null,
                Curve::P256,
            ),
            Self::EkP384H => ecc(
                sha384,
                EK_H_ATTRIBUTES,
                POLICY_B_SHA384,
                AES256,
                null,
                Curve::P384,
            ),
            Self::EkRsa3072H => rsa(sha384, EK_H_ATTRIBUTES, POLICY_B_SHA384, AES256, null, 3072),
            Self::EkRsa4096H => rsa(sha384, EK_H_ATTRIBUTES, POLICY_B_SHA384, AES256, null, 4096),
            Self::Ak => ecc(
                sha256,
                AK_ATTRIBUTES,
                "",
                SymDef::Null,
                Scheme::Ecdsa(sha256),
                Curve::P256,
            ),
            Self::SrkRsa2048 => rsa(sha256, SRK_ATTRIBUTES, "", AES128, null, 2048),
            Self::SrkP256 => ecc(sha256, SRK_ATTRIBUTES, "", AES128, null, Curve::P256),
            Self::DevIdRsa2048 => rsa(
                sha256,
                DEVID_ATTRIBUTES,
                "",
                SymDef::Null,
                Scheme::RsaSsa(sha256),
                2048,
            ),
            Self::DevIdP256 => ecc(
                sha256,
                DEVID_ATTRIBUTES,
                "",
                SymDef::Null,
                Scheme::Ecdsa(sha256),
                Curve::P256,
            ),
        }
    }

    /// Compares every field but `unique`, and that `unique` is a key of the template's size: an
    /// odd modulus of exactly the stated bits, a point on the curve.
    ///
    /// # Errors
    /// The first field that differs.
    pub fn check(self, found: &Public) -> Result<(), Mismatch> {
        let expected = self.public();
        let differ = |field, expected: String, found: String| {
            Err(Mismatch {
                template: self.name(),
                field,
                expected,
                found,
            })
        };
        if found.name_alg != expected.name_alg {
            return differ(
                "nameAlg",
                expected.name_alg.name().into(),
                found.name_alg.name().into(),
            );
        }
        if found.attributes != expected.attributes {
            return differ(
                "objectAttributes",
                format!("{:08x}", expected.attributes),
                format!("{:08x}", found.attributes),
            );
        }
        if found.auth_policy != expected.auth_policy {
            return differ(
                "authPolicy",
                hex_or_empty(&expected.auth_policy),
                hex_or_empty(&found.auth_policy),
            );
        }
        let (want, have) = (parameters(&expected), parameters(found));
        if want != have {
            return differ("parameters", want, have);
        }
        unique_is_a_key(found).map_err(|(expected, found)| Mismatch {
            template: self.name(),
            field: "unique",
            expected,
            found,
        })
    }

    /// The template with zeroed `unique` of the size that L-1 and L-2 ask for, as CreatePrimary
    /// input; other templates leave it empty.
    pub fn create_primary_input(self) -> Public {
        let mut public = self.public();
        match (self, &mut public.kind) {
            (Self::EkRsa2048L, PublicKind::Rsa { modulus, .. }) => *modulus = vec![0; 256],
            (Self::EkP256L, PublicKind::Ecc { x, y, .. }) => {
                *x = vec![0; 32];
                *y = vec![0; 32];
            }
            _ => {}
        }
        public
    }
}

/// Finds the EK template a key follows.
///
/// # Errors
/// The difference from the template that shares type, size and range with the key.
pub fn ek_template(public: &Public) -> Result<Template, Mismatch> {
    let range = |p: &Public| p.attributes & attr::USER_WITH_AUTH;
    let mut nearest: Option<(u8, Mismatch)> = None;
    for template in EKS {
        let Err(mismatch) = template.check(public) else {
            return Ok(template);
        };
        let expected = template.public();
        let alike = 2 * u8::from(parameters(&expected) == parameters(public))
            + u8::from(range(&expected) == range(public));
        if nearest.as_ref().is_none_or(|(best, _)| alike > *best) {
            nearest = Some((alike, mismatch));
        }
    }
    let (_, mismatch) = nearest.expect("there is at least one EK template");
    Err(mismatch)
}

/// The DevID template a key follows, and the SRK template it must live under.
///
/// # Errors
/// The difference from the DevID template of the same type.
pub fn devid_templates(devid: &Public) -> Result<(Template, Template), Mismatch> {
    let (template, srk) = match devid.kind {
        PublicKind::Rsa { .. } => (Template::DevIdRsa2048, Template::SrkRsa2048),
        PublicKind::Ecc { .. } | PublicKind::KeyedHash { .. } => {
            (Template::DevIdP256, Template::SrkP256)
        }
    };
    template.check(devid).map(|()| (template, srk))
}

fn rsa(
    name_alg: HashAlg,
    attributes: u32,
    policy: &str,
    symmetric: SymDef,
    scheme: Scheme,
    key_bits: u16,
) -> Public {
    Public {
        name_alg,
        attributes,
        auth_policy: unhex(policy),
        kind: PublicKind::Rsa {
            symmetric,
            scheme,
            key_bits,
            exponent: 0,
            modulus: Vec::new(),
        },
    }
}

fn ecc(
    name_alg: HashAlg,
    attributes: u32,
    policy: &str,
    symmetric: SymDef,
    scheme: Scheme,
    curve: Curve,
) -> Public {
    Public {
        name_alg,
        attributes,
        auth_policy: unhex(policy),
        kind: PublicKind::Ecc {
            symmetric,
            scheme,
            curve,
            kdf: Scheme::Null,
            x: Vec::new(),
            y: Vec::new(),
        },
    }
}

/// Type and parameters in words, `unique` left out.
fn parameters(public: &Public) -> String {
    match &public.kind {
        PublicKind::Rsa {
            symmetric,
            scheme,
            key_bits,
            exponent,
            ..
        } => {
            format!("RSA-{key_bits} exponent {exponent} symmetric {symmetric:?} scheme {scheme:?}")
        }
        PublicKind::Ecc {
            symmetric,
            scheme,
            curve,
            kdf,
            ..
        } => format!("ECC {curve:?} symmetric {symmetric:?} scheme {scheme:?} kdf {kdf:?}"),
        PublicKind::KeyedHash { scheme, .. } => format!("KEYEDHASH scheme {scheme:?}"),
    }
}

fn unique_is_a_key(public: &Public) -> Result<(), (String, String)> {
    match &public.kind {
        PublicKind::Rsa {
            key_bits, modulus, ..
        } => {
            let want = usize::from(*key_bits) / 8;
            let top = modulus.first().is_some_and(|b| b & 0x80 != 0);
            let odd = modulus.last().is_some_and(|b| b & 1 == 1);
            if modulus.len() == want && top && odd {
                return Ok(());
            }
            Err((
                format!("odd modulus of {key_bits} bits"),
                format!("{} bytes, top bit set {top}, odd {odd}", modulus.len()),
            ))
        }
        PublicKind::Ecc { curve, .. } => {
            let on_curve = public.ecc_point().is_some_and(|point| match curve {
                Curve::P256 => p256::PublicKey::from_sec1_bytes(&point).is_ok(),
                Curve::P384 => p384::PublicKey::from_sec1_bytes(&point).is_ok(),
                Curve::P521 => false,
            });
            if on_curve {
                return Ok(());
            }
            Err((
                format!("point on {curve:?}"),
                "no point of the curve".into(),
            ))
        }
        PublicKind::KeyedHash { .. } => Err(("asymmetric key".into(), "KEYEDHASH".into())),
    }
}

fn hex_or_empty(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "empty".into();
    }
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Decodes the constants above.
fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("constants are ASCII");
            u8::from_str_radix(pair, 16).expect("constants are hex")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TPM2_PolicySecret(TPM_RH_ENDORSEMENT) with empty policyRef (Part 3, 23.4).
    fn policy_a(alg: HashAlg) -> Vec<u8> {
        let zero = vec![0; alg.size()];
        let first = alg.digest(&[
            &zero,
            &0x0000_0151u32.to_be_bytes(),
            &0x4000_000bu32.to_be_bytes(),
        ]);
        alg.digest(&[&first])
    }

    /// TPM2_PolicyAuthorizeNV of the profile's index: PolicyC, a constant per hash.
    fn policy_or(alg: HashAlg, branches: &[&[u8]]) -> Vec<u8> {
        let zero = vec![0; alg.size()];
        let mut parts: Vec<&[u8]> = vec![&zero, &[0x00, 0x00, 0x01, 0x71]];
        parts.extend(branches);
        alg.digest(&parts)
    }

    #[test]
    fn policies_follow_from_the_commands() {
        assert_eq!(policy_a(HashAlg::Sha256), unhex(POLICY_A_SHA256));
        let policy_c_sha384 = unhex(
            "d6032ce61f2fb3c240eb3cf6a33237ef2b6a16f4293c22b455e261cffd217ad5\
             b4947c2d73e63005eed2dc2b3593d165",
        );
        let a = policy_a(HashAlg::Sha384);
        assert_eq!(
            policy_or(HashAlg::Sha384, &[&a, &policy_c_sha384]),
            unhex(POLICY_B_SHA384)
        );
    }

    #[test]
    fn attributes_are_the_documented_words() {
        assert_eq!(EK_L_ATTRIBUTES, 0x0003_00b2);
        assert_eq!(EK_H_ATTRIBUTES, 0x0003_00f2);
        assert_eq!(AK_ATTRIBUTES, 0x0005_0472);
        assert_eq!(SRK_ATTRIBUTES, 0x0003_0472);
        assert_eq!(DEVID_ATTRIBUTES, 0x0004_0472);
    }

    #[test]
    fn templates_encode_as_tpms_take_them() {
        let hex = |t: Template| -> String {
            t.public()
                .encode()
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect()
        };
        assert_eq!(
            hex(Template::SrkRsa2048),
            "0001000b00030472000000060080004300100800000000000000"
        );
        assert_eq!(
            hex(Template::SrkP256),
            "0023000b000304720000000600800043001000030010".to_owned() + "00000000"
        );
        assert_eq!(
            hex(Template::DevIdRsa2048),
            "0001000b00040472000000100014000b0800000000000000"
        );
        assert_eq!(
            hex(Template::DevIdP256),
            "0023000b00040472000000100018000b0003001000000000"
        );
        assert_eq!(
            Template::EkRsa2048L.create_primary_input().encode().len(),
            314
        );
        assert_eq!(Template::EkP256L.create_primary_input().encode().len(), 122);
    }
}
