//! Whom the attester believes: certificates under the pinned infra CA, and nothing else.
//!
//! Decides by chain, key purpose and exact name. Deliberately ignores validity dates: a node may
//! have a dead clock, and freshness comes from nonces (docs/PROTOCOL.md section 8). There is no
//! system trust store here and no second way in.

use std::sync::Arc;
use std::time::Duration;

use attest_wire::oid::{EKU_ATTEST, EKU_GRANT, EKU_RECEIPT, Oid};
use attest_wire::v1::handover::{GRANT_LABEL, Grant};
use attest_wire::v1::{ATTEST_SERVER_NAME, Bytes, Receipt};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, OtherError, SignatureScheme};
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::prelude::{FromDer, X509Certificate};

/// What a receipt's signature covers, before its body.
const RECEIPT_LABEL: &[u8] = b"vestibule/receipt/v1\0";
/// Longest chain below the pin: leaf and three intermediates.
const CHAIN_MAX: usize = 4;

/// Why a certificate is not the gateway's.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PinError {
    /// The pinned file holds no usable CA certificate.
    #[error("pinned certificate {index}: {why}")]
    Anchor {
        /// Position in the list of anchors.
        index: usize,
        /// What is wrong with it.
        why: String,
    },
    /// No anchor was given.
    #[error("no pinned certificate: the image holds no /etc/vestibule/anchor*.pem")]
    NoAnchor,
    /// The chain does not lead to a pinned CA with the right key purpose.
    #[error("certificate is not under the pinned CA for this purpose: {why}")]
    Chain {
        /// What the path check said.
        why: String,
    },
    /// The certificate is for another name.
    #[error("certificate names {found:?}, expected exactly {expected:?}")]
    Name {
        /// The only acceptable name.
        expected: &'static str,
        /// DNS names in it.
        found: Vec<String>,
    },
    /// A signature by that certificate's key is wrong.
    #[error("signature by the certificate's key is wrong: {why}")]
    Signature {
        /// What the verifier said.
        why: String,
    },
}

/// The infra CA certificates that the measured image carries; two during an overlap.
#[derive(Debug, Clone)]
pub struct Pin {
    anchors: Vec<TrustAnchor<'static>>,
}

impl Pin {
    /// Takes DER certificates of the pinned CAs.
    ///
    /// # Errors
    /// When there is none, or one is not a certificate.
    pub fn new(anchors: &[CertificateDer<'static>]) -> Result<Self, PinError> {
        if anchors.is_empty() {
            return Err(PinError::NoAnchor);
        }
        let anchors = anchors
            .iter()
            .enumerate()
            .map(|(index, der)| {
                webpki::anchor_from_trusted_cert(der)
                    .map(|anchor| anchor.to_owned())
                    .map_err(|e| PinError::Anchor {
                        index,
                        why: e.to_string(),
                    })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { anchors })
    }

    /// Checks a chain, leaf first, for one of our key purposes.
    fn check<'a>(
        &self,
        leaf: &'a CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        purpose: Oid,
    ) -> Result<EndEntityCert<'a>, PinError> {
        let chain = |why: String| PinError::Chain { why };
        if intermediates.len() >= CHAIN_MAX {
            return Err(chain(format!("more than {CHAIN_MAX} certificates")));
        }
        let cert = EndEntityCert::try_from(leaf).map_err(|e| chain(e.to_string()))?;
        cert.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &self.anchors,
            intermediates,
            latest_not_before(leaf, intermediates)?,
            KeyUsage::required(purpose.der),
            None,
            None,
        )
        .map_err(|e| chain(e.to_string()))?;
        Ok(cert)
    }

    /// Checks a receipt: its key is under the pin for receipts, its signature covers the body.
    ///
    /// # Errors
    /// [`PinError::Chain`] or [`PinError::Signature`].
    pub fn check_receipt(&self, receipt: &Receipt) -> Result<(), PinError> {
        let Receipt { body, sig, chain } = receipt;
        self.check_signed(EKU_RECEIPT, RECEIPT_LABEL, &body.0, &sig.0, chain)
    }

    /// Checks a grant to install: its key is under the pin for grants, its signature covers the body.
    ///
    /// # Errors
    /// [`PinError::Chain`] or [`PinError::Signature`].
    pub fn check_grant(&self, grant: &Grant) -> Result<(), PinError> {
        let (body, sig) = (&grant.body.0, &grant.sig.0);
        self.check_signed(EKU_GRANT, GRANT_LABEL, body, sig, &grant.chain)
    }

    /// Checks a signed statement of the gateway: the key is under the pin for this purpose, its signature
    /// covers label and body.
    ///
    /// # Errors
    /// [`PinError::Chain`] or [`PinError::Signature`].
    pub fn check_signed(
        &self,
        purpose: Oid,
        label: &[u8],
        body: &[u8],
        sig: &[u8],
        chain: &[Bytes],
    ) -> Result<(), PinError> {
        let chain: Vec<CertificateDer<'_>> = chain
            .iter()
            .map(|der| CertificateDer::from(der.0.as_slice()))
            .collect();
        let (leaf, intermediates) = chain.split_first().ok_or_else(|| PinError::Chain {
            why: "a signature without certificates".to_owned(),
        })?;
        // The pinned CA itself may come along; it is not an intermediate.
        let cert = self.check(leaf, intermediates, purpose)?;
        let message = [label, body].concat();
        cert.verify_signature(webpki::aws_lc_rs::ECDSA_P256_SHA256, &message, sig)
            .map_err(|e| PinError::Signature { why: e.to_string() })
    }

    /// TLS client configuration: TLS 1.3 only, this pin only, no resumption, no early data.
    ///
    /// # Errors
    /// When the crypto provider lacks TLS 1.3, which would be a build mistake.
    pub fn client_config(&self) -> Result<ClientConfig, rustls::Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = PinVerifier {
            pin: self.clone(),
            provider: Arc::clone(&provider),
        };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Dates are ignored by checking the path at a moment when all of its certificates had begun.
fn latest_not_before(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<UnixTime, PinError> {
    let mut latest = 0;
    for der in std::iter::once(leaf).chain(intermediates) {
        let (_, cert) = X509Certificate::from_der(der).map_err(|e| PinError::Chain {
            why: format!("not a certificate: {e}"),
        })?;
        latest = latest.max(cert.validity().not_before.timestamp());
    }
    let seconds = u64::try_from(latest).unwrap_or(0);
    Ok(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

/// The rustls face of [`Pin`].
#[derive(Debug)]
struct PinVerifier {
    pin: Pin,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let refuse = |error: PinError| {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
        };
        let cert = self
            .pin
            .check(end_entity, intermediates, EKU_ATTEST)
            .map_err(refuse)?;
        let names: Vec<&str> = cert.valid_dns_names().collect();
        if names == [ATTEST_SERVER_NAME] {
            return Ok(ServerCertVerified::assertion());
        }
        Err(refuse(PinError::Name {
            expected: ATTEST_SERVER_NAME,
            found: names.into_iter().take(8).map(str::to_owned).collect(),
        }))
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // Only TLS 1.3 is configured; a TLS 1.2 signature is never asked for.
        Err(rustls::Error::General(
            "TLS 1.2 is not spoken here".to_owned(),
        ))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
