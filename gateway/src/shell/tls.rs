//! TLS of the three HTTPS listeners, and what a refused handshake means for the operator.
//!
//! Decides versions, suites, tickets and which certificate a client gets. Deliberately does not
//! know how certificates are made (`crate::ca`) or what is served behind them.
//!
//! | listener | versions | certificate | client certificate | resumption |
//! |---|---|---|---|---|
//! | boot | 1.2, 1.3 | P-256 or RSA-3072 by ClientHello | none | tickets |
//! | attest | 1.3 | P-256 | none (the TPM proves the node) | never |
//! | admin | 1.2, 1.3 | P-256 | required, under the admin CA | never |

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use gateway_core::reason::Reason;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    AlertDescription, CipherSuite, Error, NamedGroup, PeerIncompatible, RootCertStore,
    ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Why a TLS configuration cannot be made. All of it is our own data.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Key and certificate do not fit, or the key type is unknown.
    #[error("the {0} certificate or key cannot be used")]
    Certificate(&'static str, #[source] Error),
    /// The provider lacks a protocol version.
    #[error("cannot configure TLS")]
    Config(#[source] Error),
    /// The admin CA certificate cannot verify anybody.
    #[error("the admin CA certificate cannot be used")]
    AdminCa(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A certificate that can be renewed while listeners use it.
#[derive(Debug)]
pub struct CertSlot {
    name: &'static str,
    current: RwLock<Arc<CertifiedKey>>,
}

impl CertSlot {
    /// A slot with its first certificate; `chain` is leaf first, `name` is for error texts.
    ///
    /// # Errors
    /// [`TlsError::Certificate`] when key and leaf do not belong together.
    pub fn new(
        name: &'static str,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Arc<Self>, TlsError> {
        let first = certified(name, chain, key)?;
        Ok(Arc::new(Self {
            name,
            current: RwLock::new(first),
        }))
    }

    /// Serves another certificate from the next handshake on.
    ///
    /// # Errors
    /// As [`CertSlot::new`]; the old certificate then stays.
    pub fn replace(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(), TlsError> {
        let next = certified(self.name, chain, key)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// The certificate in use now.
    pub fn get(&self) -> Arc<CertifiedKey> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl ResolvesServerCert for CertSlot {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.get())
    }
}

fn certified(
    name: &'static str,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, TlsError> {
    CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
        .map(Arc::new)
        .map_err(|e| TlsError::Certificate(name, e))
}

/// The two certificates of the boot listener, both under the boot CA.
#[derive(Debug, Clone)]
pub struct BootCertificates {
    /// P-256 leaf, for clients that do ECDSA.
    pub p256: Arc<CertSlot>,
    /// RSA-3072 leaf, for the others.
    pub rsa: Arc<CertSlot>,
}

impl ResolvesServerCert for BootCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // Firmware sends an IP literal as server name; it selects nothing here.
        let slot = if takes_p256(
            hello.cipher_suites(),
            hello.signature_schemes(),
            hello.named_groups(),
        ) {
            &self.p256
        } else {
            &self.rsa
        };
        Some(slot.get())
    }
}

/// Whether a ClientHello can be answered with a P-256 certificate: the signature, the curve, and a
/// suite that signs with ECDSA or (TLS 1.3) leaves the signature open.
fn takes_p256(
    suites: &[CipherSuite],
    schemes: &[SignatureScheme],
    groups: Option<&[NamedGroup]>,
) -> bool {
    schemes.contains(&SignatureScheme::ECDSA_NISTP256_SHA256)
        && groups.is_none_or(|groups| groups.contains(&NamedGroup::secp256r1))
        && suites.iter().any(|suite| {
            matches!(
                suite,
                CipherSuite::TLS13_AES_128_GCM_SHA256
                    | CipherSuite::TLS13_AES_256_GCM_SHA384
                    | CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
                    | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                    | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
                    | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            )
        })
}

/// AES-128-GCM first: a boot image is public and signed, and one core serves a whole rack.
fn bulk_provider() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.sort_by_key(|suite| {
        !matches!(
            suite.suite(),
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        )
    });
    provider
}

/// Session tickets (RFC 5077 for TLS 1.2, RFC 8446 section 4.6.1) under a key that exists in this process
/// only: it makes tickets for six hours and reads them for six more, so that a key that leaks opens
/// half a day of TLS 1.2, and a restart costs each machine one full handshake.
fn tickets() -> Result<Arc<dyn ProducesTickets>, TlsError> {
    aws_lc_rs::Ticketer::new().map_err(TlsError::Config)
}

/// Boot listener: whatever firmware and iPXE can speak of TLS 1.2 and 1.3.
///
/// # Errors
/// [`TlsError::Config`] when the provider cannot do it.
pub fn boot_config(certificates: BootCertificates) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(bulk_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(TlsError::Config)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificates));
    config.ignore_client_order = true;
    config.ticketer = tickets()?;
    config.alpn_protocols = http1();
    Ok(Arc::new(config))
}

/// Attest listener: TLS 1.3 only, and every session is a full handshake, because evidence is bound
/// to the exporter of its own connection (docs/PROTOCOL.md section 2).
///
/// # Errors
/// [`TlsError::Config`] when the provider cannot do it.
pub fn attest_config(certificate: Arc<CertSlot>) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Config)?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    without_resumption(&mut config);
    config.alpn_protocols = http1();
    Ok(Arc::new(config))
}

/// Admin listener: a client certificate under the admin CA is required in the handshake itself.
///
/// # Errors
/// [`TlsError`] when the CA certificate cannot be used.
pub fn admin_config(
    certificate: Arc<CertSlot>,
    admin_ca: CertificateDer<'static>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots
        .add(admin_ca)
        .map_err(|e| TlsError::AdminCa(Box::new(e)))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|e| TlsError::AdminCa(Box::new(e)))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(TlsError::Config)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificate);
    // A withdrawn certificate must not live on in a resumed session.
    without_resumption(&mut config);
    config.alpn_protocols = http1();
    Ok(Arc::new(config))
}

fn without_resumption(config: &mut ServerConfig) {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
}

fn http1() -> Vec<Vec<u8>> {
    vec![b"http/1.1".to_vec()]
}

/// Most names of one kind that a refusal lists: firmware offers some twenty suites, a log field has
/// 200 characters.
const OFFER_SUITES_MAX: usize = 16;
const OFFER_NAMES_MAX: usize = 6;
/// Most of a kind that is kept of a ClientHello: hostile ones have thousands.
const OFFER_KEPT_MAX: usize = 128;

/// What a ClientHello offered, kept so that a refusal can name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    suites: Vec<CipherSuite>,
    groups: Option<Vec<NamedGroup>>,
    schemes: Vec<SignatureScheme>,
}

impl Offer {
    /// Of a ClientHello.
    pub fn of(hello: &ClientHello<'_>) -> Self {
        Self {
            suites: kept(hello.cipher_suites()),
            groups: hello.named_groups().map(kept),
            schemes: kept(hello.signature_schemes()),
        }
    }
}

fn kept<T: Copy>(offered: &[T]) -> Vec<T> {
    offered.iter().take(OFFER_KEPT_MAX).copied().collect()
}

/// Key exchanges by name, then suites by number (RFC 8446 appendix B.4, the registry has the rest),
/// groups and signatures: short enough for one log field.
impl std::fmt::Display for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut exchanges: Vec<&str> = Vec::new();
        for exchange in self.suites.iter().filter_map(|suite| key_exchange(*suite)) {
            if !exchanges.contains(&exchange) {
                exchanges.push(exchange);
            }
        }
        write!(
            f,
            "offers {}; suites",
            listed(&exchanges, "no key exchange we know")
        )?;
        for suite in self.suites.iter().take(OFFER_SUITES_MAX) {
            write!(f, " {:04x}", u16::from(*suite))?;
        }
        if let more @ 1.. = self.suites.len().saturating_sub(OFFER_SUITES_MAX) {
            write!(f, " +{more}")?;
        }
        let groups: Vec<String> = self.groups.iter().flatten().map(short).collect();
        let schemes: Vec<String> = self.schemes.iter().map(short).collect();
        write!(f, "; groups {}", listed(&groups, "none"))?;
        write!(f, "; signatures {}", listed(&schemes, "none"))
    }
}

fn listed<T: AsRef<str>>(names: &[T], none: &str) -> String {
    let shown = names.iter().take(OFFER_NAMES_MAX).map(AsRef::as_ref);
    let mut text = shown.collect::<Vec<_>>().join(",");
    match names.len().saturating_sub(OFFER_NAMES_MAX) {
        0 if names.is_empty() => text.push_str(none),
        0 => {}
        more => text.push_str(&format!(" +{more}")),
    }
    text
}

/// A registry name; a number for what the TLS library has no name for.
fn short(name: &impl std::fmt::Debug) -> String {
    format!("{name:?}")
}

/// The key exchange in the name of a TLS 1.2 suite; TLS 1.3 suites leave it to the groups.
fn key_exchange(suite: CipherSuite) -> Option<&'static str> {
    const NAMES: [(&str, &str); 7] = [
        ("TLS_ECDHE_ECDSA_", "ECDHE-ECDSA"),
        ("TLS_ECDHE_RSA_", "ECDHE-RSA"),
        ("TLS_DHE_RSA_", "DHE-RSA"),
        ("TLS_DHE_DSS_", "DHE-DSS"),
        ("TLS_ECDH_", "ECDH"),
        ("TLS_RSA_", "RSA"),
        ("TLS13_", "TLS 1.3"),
    ];
    let name = suite.as_str()?;
    NAMES
        .iter()
        .find(|(prefix, _)| name.starts_with(prefix))
        .map(|(_, exchange)| *exchange)
}

/// What a failed handshake means, for the person who has to change something.
///
/// `listener` is `boot`, `attest` or `admin`; `offer` is there when a ClientHello was.
pub fn diagnose(listener: &'static str, error: &io::Error, offer: Option<&Offer>) -> Reason {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(error) => diagnose_tls(listener, error, offer),
        None => diagnose_transport(listener, error),
    }
}

/// What to do about firmware that has nothing in common with us.
fn without_ecdhe(listener: &'static str) -> &'static str {
    match listener {
        "boot" => {
            "update the firmware, boot it by PXE, or set provisioning.http_boot = \"ipxe\": it then \
             chains through signed iPXE, which has ECDHE"
        }
        _ => "update the client",
    }
}

fn diagnose_tls(listener: &'static str, error: &Error, offer: Option<&Offer>) -> Reason {
    let found = error.to_string();
    // Nothing in common: then the offer is what was found.
    let offered = || offer.map_or_else(|| found.clone(), ToString::to_string);
    match error {
        Error::PeerIncompatible(PeerIncompatible::NoKxGroupsInCommon) => Reason::new(
            "tls.no_ecdhe",
            "an ECDHE key exchange over P-256, P-384 or X25519",
            offered(),
            "RFC 8446 section 9.1, RFC 8422; docs/OPERATIONS.md, firmware without ECDHE",
            without_ecdhe(listener),
        ),
        Error::PeerIncompatible(
            PeerIncompatible::NoCipherSuitesInCommon | PeerIncompatible::NoSignatureSchemesInCommon,
        ) => Reason::new(
            "tls.no_common_suite",
            "ECDHE with AES-GCM or ChaCha20-Poly1305, and RSA or P-256 signatures",
            offered(),
            "RFC 8446 section 9.1, RFC 9325 section 4.2",
            without_ecdhe(listener),
        ),
        Error::PeerIncompatible(
            PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::ServerDoesNotSupportTls12Or13,
        ) => Reason::new(
            "tls.version",
            if listener == "attest" {
                "TLS 1.3"
            } else {
                "TLS 1.2 or 1.3"
            },
            found,
            "docs/PROTOCOL.md section 2",
            "update the client; firmware belongs on the boot port",
        ),
        Error::NoCertificatesPresented => Reason::new(
            "tls.client_certificate",
            "a client certificate under the admin CA",
            "none",
            "docs/OPERATIONS.md, admin endpoint",
            "use the owner's certificate of `vestibule claim --local`",
        ),
        Error::InvalidCertificate(_) => Reason::new(
            "tls.client_certificate",
            "a valid client certificate under the admin CA",
            found,
            "docs/OPERATIONS.md, admin endpoint",
            "check its dates, and that it comes from this appliance",
        ),
        Error::AlertReceived(alert) => diagnose_alert(listener, *alert),
        Error::InvalidMessage(_) => Reason::new(
            "tls.not_tls",
            "a TLS ClientHello",
            found,
            "RFC 8446 section 5.1",
            "use https:// on this port",
        ),
        other => Reason::new(
            "tls.refused",
            "a complete TLS handshake",
            other.to_string(),
            "RFC 8446",
            "see the client's own message",
        ),
    }
}

fn diagnose_alert(listener: &'static str, alert: AlertDescription) -> Reason {
    let found = format!("alert {alert:?} from the client");
    match alert {
        AlertDescription::UnknownCA
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateExpired
        | AlertDescription::UnsupportedCertificate => rejected_certificate(listener, found),
        _ => Reason::new(
            "tls.refused",
            "a complete TLS handshake",
            found,
            "RFC 8446 section 6",
            "see the client's own message",
        ),
    }
}

fn diagnose_transport(listener: &'static str, error: &io::Error) -> Reason {
    match error.kind() {
        // Firmware closes or resets right after our Certificate instead of sending an alert.
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionAborted => {
            rejected_certificate(listener, format!("the client hung up ({error})"))
        }
        io::ErrorKind::TimedOut => Reason::new(
            "tls.timeout",
            "a handshake within its time",
            "silence",
            "docs/OPERATIONS.md, bounds",
            "look for packet loss between machine and appliance",
        ),
        _ => Reason::new(
            "tls.transport",
            "a complete TLS handshake",
            error.to_string(),
            "RFC 8446",
            "look for packet loss between machine and appliance",
        ),
    }
}

fn rejected_certificate(listener: &'static str, found: String) -> Reason {
    let next = match listener {
        "boot" => "CA not enrolled, name mismatch, or the machine's clock is wrong",
        "attest" => "the image pins another infra CA: build it with this appliance's infra-ca.pem",
        _ => "give the client admin-ca.pem, and a URL whose host is in the certificate",
    };
    Reason::new(
        "tls.certificate_rejected",
        "a client that accepts our certificate",
        found,
        "RFC 5280 section 6",
        next,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECDSA: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;
    const PKCS1: SignatureScheme = SignatureScheme::RSA_PKCS1_SHA256;

    /// Client, suites, signatures, groups, and whether it gets the P-256 certificate.
    type Row<'a> = (
        &'a str,
        &'a [CipherSuite],
        &'a [SignatureScheme],
        Option<&'a [NamedGroup]>,
        bool,
    );

    #[test]
    fn certificate_by_client_hello() {
        let p256 = [NamedGroup::X25519, NamedGroup::secp256r1];
        let x25519 = [NamedGroup::X25519];
        let rows: [Row<'_>; 6] = [
            (
                "iPXE 2.0: both",
                &[
                    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
                ],
                &[PKCS1, ECDSA],
                Some(&p256),
                true,
            ),
            (
                "iPXE 1.21: ECDHE-RSA and PKCS1 only",
                &[CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256],
                &[PKCS1],
                Some(&p256),
                false,
            ),
            (
                "ECDSA signatures but only RSA suites",
                &[CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256],
                &[PKCS1, ECDSA],
                Some(&p256),
                false,
            ),
            (
                "TLS 1.3 client",
                &[CipherSuite::TLS13_AES_128_GCM_SHA256],
                &[ECDSA],
                Some(&p256),
                true,
            ),
            (
                "no P-256 curve",
                &[CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256],
                &[ECDSA],
                Some(&x25519),
                false,
            ),
            (
                "TLS 1.3 with RSA signatures only",
                &[CipherSuite::TLS13_AES_128_GCM_SHA256],
                &[SignatureScheme::RSA_PSS_SHA256],
                Some(&p256),
                false,
            ),
        ];
        for (name, suites, schemes, groups, expected) in rows {
            assert_eq!(takes_p256(suites, schemes, groups), expected, "{name}");
        }
    }

    #[test]
    fn rejects_a_ticket_of_another_process() {
        let (ours, other) = (tickets().expect("made"), tickets().expect("made"));
        assert!(ours.enabled());
        assert_eq!(ours.lifetime(), 12 * 60 * 60);
        let ticket = ours.encrypt(b"session").expect("made");
        assert_eq!(ours.decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        assert_eq!(other.decrypt(&ticket), None);
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(ours.decrypt(&changed), None, "byte {at}");
        }
    }

    #[test]
    fn failures_are_explained() {
        let wrap = |error: Error| io::Error::new(io::ErrorKind::InvalidData, error);
        let rows = [
            (
                wrap(PeerIncompatible::NoKxGroupsInCommon.into()),
                "tls.no_ecdhe",
                "signed iPXE",
            ),
            (
                wrap(PeerIncompatible::NoCipherSuitesInCommon.into()),
                "tls.no_common_suite",
                "http_boot",
            ),
            (
                wrap(Error::AlertReceived(AlertDescription::UnknownCA)),
                "tls.certificate_rejected",
                "CA not enrolled",
            ),
            (
                io::ErrorKind::ConnectionReset.into(),
                "tls.certificate_rejected",
                "clock is wrong",
            ),
            (
                wrap(PeerIncompatible::SupportedVersionsExtensionRequired.into()),
                "tls.version",
                "update",
            ),
            (io::ErrorKind::TimedOut.into(), "tls.timeout", "packet loss"),
        ];
        for (error, code, next) in rows {
            let reason = diagnose("boot", &error, None);
            assert_eq!(reason.code, code);
            assert!(reason.next.contains(next), "{reason}");
        }
    }
    #[test]
    fn a_refusal_names_the_offer() {
        // OVMF of 2022: DHE-RSA and RSA only, no groups (docs/OPERATIONS.md, firmware without ECDHE).
        let old = Offer {
            suites: [0x009f, 0x006b, 0x0039, 0x009d, 0x003d, 0x0035, 0x00ff]
                .map(CipherSuite::from)
                .to_vec(),
            groups: None,
            schemes: vec![SignatureScheme::RSA_PKCS1_SHA256],
        };
        let error = io::Error::new(
            io::ErrorKind::InvalidData,
            Error::from(PeerIncompatible::NoKxGroupsInCommon),
        );
        let reason = diagnose("boot", &error, Some(&old));
        assert_eq!(
            reason.found,
            "offers DHE-RSA,RSA; suites 009f 006b 0039 009d 003d 0035 00ff; groups none; \
             signatures RSA_PKCS1_SHA256"
        );
        assert!(reason.next.contains("provisioning.http_boot"), "{reason}");
        let reason = diagnose("attest", &error, Some(&old));
        assert!(!reason.next.contains("http_boot"), "{reason}");

        // However much a client offers, the refusal stays one line.
        let hostile = Offer {
            suites: (0..30_000).map(CipherSuite::from).collect(),
            groups: Some((0..30_000).map(NamedGroup::from).collect()),
            schemes: (0..30_000).map(SignatureScheme::from).collect(),
        };
        let text = hostile.to_string();
        assert!(text.len() < 600, "{} bytes: {text}", text.len());
    }
}
