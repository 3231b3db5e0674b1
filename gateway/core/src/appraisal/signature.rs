//! Signatures of TPM keys.

use attest_wire::tpm::{Curve, HashAlg, Public, PublicKind, Signature};
use aws_lc_rs::signature::{
    self, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};

/// Verifies a `TPMT_SIGNATURE` of our AK (P-256, ECDSA with SHA-256) over a `TPMS_ATTEST`.
///
/// The caller has compared the AK with its template: it is a restricted key.
///
/// # Errors
/// What was found instead, for a reason.
pub(super) fn verify_attest(ak: &Public, attest: &[u8], sig: &[u8]) -> Result<(), String> {
    let decoded = Signature::decode(sig).map_err(|error| error.to_string())?;
    let Signature::Ecdsa {
        hash: HashAlg::Sha256,
        ..
    } = decoded
    else {
        return Err("another signature scheme than ECDSA with SHA-256".into());
    };
    verify_tpm_signature(ak, attest, &decoded)
}

/// Verifies a signature of any TPM signing key; used for foreign quotes (`inspect quote`).
///
/// # Errors
/// What was found instead.
pub fn verify_tpm_signature(
    key: &Public,
    message: &[u8],
    signature: &Signature,
) -> Result<(), String> {
    let bad = "a signature that does not verify".to_owned();
    match (&key.kind, signature) {
        (PublicKind::Ecc { curve, .. }, Signature::Ecdsa { hash, .. }) => {
            let algorithm: &'static dyn VerificationAlgorithm = match (curve, hash) {
                (Curve::P256, HashAlg::Sha256) => &signature::ECDSA_P256_SHA256_FIXED,
                (Curve::P384, HashAlg::Sha384) => &signature::ECDSA_P384_SHA384_FIXED,
                _ => return Err(format!("ECDSA {curve:?} with {}", hash.name())),
            };
            let point = key.ecc_point().ok_or("no point of the curve")?;
            let fixed = signature
                .ecdsa_fixed(curve.size())
                .ok_or("r or s longer than the curve")?;
            UnparsedPublicKey::new(algorithm, point)
                .verify(message, &fixed)
                .map_err(|_| bad)
        }
        (
            PublicKind::Rsa { .. },
            Signature::RsaSsa { hash, sig } | Signature::RsaPss { hash, sig },
        ) => {
            let pss = matches!(signature, Signature::RsaPss { .. });
            let algorithm = match (pss, hash) {
                (false, HashAlg::Sha1) => &signature::RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
                (false, HashAlg::Sha256) => &signature::RSA_PKCS1_2048_8192_SHA256,
                (false, HashAlg::Sha384) => &signature::RSA_PKCS1_2048_8192_SHA384,
                (false, HashAlg::Sha512) => &signature::RSA_PKCS1_2048_8192_SHA512,
                (true, HashAlg::Sha256) => &signature::RSA_PSS_2048_8192_SHA256,
                (true, HashAlg::Sha384) => &signature::RSA_PSS_2048_8192_SHA384,
                (true, HashAlg::Sha512) => &signature::RSA_PSS_2048_8192_SHA512,
                (true, HashAlg::Sha1) => return Err("RSAPSS with sha1".into()),
                (_, HashAlg::Sm3) => return Err("RSA with sm3_256".into()),
            };
            let (n, e) = key.rsa_components().ok_or("no RSA key")?;
            RsaPublicKeyComponents { n, e }
                .verify(algorithm, message, sig)
                .map_err(|_| bad)
        }
        _ => Err("a signature of another key type".into()),
    }
}
