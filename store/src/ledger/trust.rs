//! Which certificates may sign a ledger: chain to the pinned infra CA, receipt purpose.
//!
//! Dates are taken at the leaf's own notBefore: an old ledger must verify after its key's 90 days,
//! and the time of an entry is the signer's own statement anyway.

use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert, aws_lc_rs as algs};

/// A leaf that may sign, with its key ready for use.
pub(crate) struct TrustedLeaf {
    der: CertificateDer<'static>,
}

impl TrustedLeaf {
    /// Checks `chain` (leaf first, DER) against the infra CA certificate.
    ///
    /// # Errors
    /// Why the chain is not trusted, in words.
    pub(crate) fn check(chain: &[Vec<u8>], infra_ca_der: &[u8]) -> Result<Self, String> {
        let (leaf, rest) = chain.split_first().ok_or("no certificate")?;
        let infra = CertificateDer::from(infra_ca_der);
        let anchor =
            anchor_from_trusted_cert(&infra).map_err(|e| format!("infra CA certificate: {e}"))?;
        let der = CertificateDer::from(leaf.clone());
        let intermediates: Vec<_> = rest.iter().map(|c| CertificateDer::from(&c[..])).collect();
        let at = not_before(leaf)?;
        EndEntityCert::try_from(&der)
            .and_then(|cert| {
                cert.verify_for_usage(
                    &[algs::ECDSA_P384_SHA384, algs::ECDSA_P256_SHA256],
                    &[anchor],
                    &intermediates,
                    at,
                    KeyUsage::required(attest_wire::oid::EKU_RECEIPT.der),
                    None,
                    None,
                )
                .map(drop)
            })
            .map_err(|e| format!("ledger certificate: {e}"))?;
        Ok(Self { der })
    }

    /// Whether `signature` over `label || message` is by this leaf.
    pub(crate) fn signed(&self, label: &[u8], message: &[u8], signature: &[u8]) -> bool {
        EndEntityCert::try_from(&self.der).is_ok_and(|cert| {
            cert.verify_signature(
                algs::ECDSA_P256_SHA256,
                &super::labelled(label, message),
                signature,
            )
            .is_ok()
        })
    }
}

fn not_before(leaf: &[u8]) -> Result<UnixTime, String> {
    let (_, cert) = x509_parser::parse_x509_certificate(leaf)
        .map_err(|e| format!("ledger certificate: {e}"))?;
    let secs = u64::try_from(cert.validity().not_before.timestamp())
        .map_err(|_| "ledger certificate begins before 1970")?;
    Ok(UnixTime::since_unix_epoch(std::time::Duration::from_secs(
        secs,
    )))
}
