//! The certificates that the daemon serves and signs with: load, judge their age, use.

use std::net::IpAddr;

use gateway_core::identity::UnixMillis;
use gateway_core::issuer::{KeyKind, renew_at};
use rcgen::SigningKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use store::{LedgerSigner, Store, StoreKey};
use x509_parser::extensions::GeneralName;
use zeroize::Zeroizing;

use super::{CaError, ServerNames, x509};

/// What a receipt's signature covers, before its body.
const RECEIPT_LABEL: &[u8] = b"vestibule/receipt/v1\0";

/// Leaves of the appliance itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeafKind {
    /// TLS of the attest endpoint.
    Attest,
    /// Ledger and receipts.
    Receipt,
    /// Grants to install, and what is said of sealed payloads.
    Grant,
    /// TLS of the boot endpoint, P-256.
    Boot,
    /// TLS of the boot endpoint, RSA-3072.
    BootRsa,
    /// TLS of the admin endpoint.
    AdminServer,
}

impl LeafKind {
    /// All of them, in the order they are made.
    pub const ALL: [Self; 6] = [
        Self::Receipt,
        Self::Grant,
        Self::Attest,
        Self::Boot,
        Self::BootRsa,
        Self::AdminServer,
    ];

    pub(super) fn store_name(self) -> &'static str {
        match self {
            Self::Attest => "leaf/attest",
            Self::Receipt => "leaf/receipt",
            Self::Grant => "leaf/grant",
            Self::Boot => "leaf/boot",
            Self::BootRsa => "leaf/boot-rsa",
            Self::AdminServer => "leaf/admin-server",
        }
    }

    fn key_kind(self) -> KeyKind {
        match self {
            Self::BootRsa => KeyKind::Rsa3072,
            Self::Attest | Self::Receipt | Self::Grant | Self::Boot | Self::AdminServer => {
                KeyKind::P256
            }
        }
    }

    /// The CA that is sent along: iPXE with a build-time trust anchor wants the root in the chain.
    fn sends_root(self) -> bool {
        matches!(self, Self::Boot | Self::BootRsa)
    }
}

/// A certificate with its key.
pub struct Leaf {
    kind: LeafKind,
    chain: Vec<CertificateDer<'static>>,
    pkcs8: Zeroizing<Vec<u8>>,
    names: ServerNames,
    not_before: UnixMillis,
    not_after: UnixMillis,
}

impl Leaf {
    /// From the store; none when it was never made.
    pub(super) fn load(
        store: &Store,
        key: &StoreKey,
        kind: LeafKind,
    ) -> Result<Option<Self>, CaError> {
        let name = kind.store_name();
        let (Some(der), Some(pkcs8)) = (store.public(name)?, store.secret(key, name)?) else {
            return Ok(None);
        };
        let unreadable = |why: String| CaError::X509 {
            what: name,
            source: rcgen::Error::X509(why),
        };
        let (_, cert) =
            x509_parser::parse_x509_certificate(&der).map_err(|e| unreadable(e.to_string()))?;
        let pair = rcgen::KeyPair::try_from(&PrivatePkcs8KeyDer::from(pkcs8.as_slice()))
            .map_err(|source| CaError::X509 { what: name, source })?;
        x509::require_own(name, &der, &pair)?;
        let millis = |at: x509_parser::time::ASN1Time| {
            UnixMillis(
                u64::try_from(at.timestamp())
                    .unwrap_or(0)
                    .saturating_mul(1000),
            )
        };
        let names = server_names(&cert).map_err(unreadable)?;
        let (not_before, not_after) = (
            millis(cert.validity().not_before),
            millis(cert.validity().not_after),
        );
        let mut chain = vec![CertificateDer::from(der.clone())];
        if kind.sends_root() {
            let root = super::ca_name(super::Which::Boot);
            let root = store.public(&root)?.ok_or(CaError::Absent { name: root })?;
            chain.push(root.into());
        }
        Ok(Some(Self {
            kind,
            chain,
            pkcs8,
            names,
            not_before,
            not_after,
        }))
    }

    /// Which one.
    pub fn kind(&self) -> LeafKind {
        self.kind
    }

    /// Leaf first, as sent in a handshake.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.chain.clone()
    }

    /// The private key, for the TLS library.
    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.pkcs8.to_vec()))
    }

    /// End of validity.
    pub fn not_after(&self) -> UnixMillis {
        self.not_after
    }

    /// Two thirds of its life are over, or it has other names than it should.
    pub(super) fn is_due(&self, now: UnixMillis, names: Option<&ServerNames>) -> bool {
        now >= renew_at(self.not_before, self.not_after)
            || names.is_some_and(|names| *names != self.names)
    }
}

/// The names in a certificate's `subjectAltName`.
fn server_names(
    cert: &x509_parser::certificate::X509Certificate<'_>,
) -> Result<ServerNames, String> {
    let mut names = ServerNames::default();
    let san = cert.subject_alternative_name().map_err(|e| e.to_string())?;
    for name in san.iter().flat_map(|san| &san.value.general_names) {
        match name {
            GeneralName::DNSName(dns) => names.dns.push((*dns).to_owned()),
            GeneralName::IPAddress(bytes) => {
                let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                let v6 = <[u8; 16]>::try_from(*bytes).map(IpAddr::from);
                names
                    .ip
                    .push(v4.or(v6).map_err(|_| "iPAddress of odd length")?);
            }
            _ => {}
        }
    }
    Ok(names)
}

/// Signs ledger heads and receipts with the receipt key: one key, two labels.
pub struct ReceiptSigner {
    key: rcgen::KeyPair,
    certificate: Vec<u8>,
}

impl ReceiptSigner {
    pub(super) fn new(leaf: &Leaf) -> Result<Self, CaError> {
        let name = leaf.kind.store_name();
        Ok(Self {
            key: x509::open_key(name, &leaf.pkcs8, leaf.kind.key_kind())?,
            certificate: leaf.chain[0].to_vec(),
        })
    }

    /// A receipt over `body`, the canonical JSON of a record.
    ///
    /// # Errors
    /// The key cannot be used.
    pub fn receipt(&self, body: Vec<u8>) -> Result<attest_wire::v1::Receipt, CaError> {
        let signature = self
            .key
            .sign(&[RECEIPT_LABEL, &body].concat())
            .map_err(|source| CaError::X509 {
                what: "receipt",
                source,
            })?;
        Ok(attest_wire::v1::Receipt {
            body: body.into(),
            sig: signature.into(),
            chain: vec![self.certificate.clone().into()],
        })
    }
}

/// Signs grants and statements of sealed payloads with the grant key: one key, two labels, and neither is
/// the receipt's.
pub struct GrantSigner {
    key: rcgen::KeyPair,
    certificate: Vec<u8>,
}

impl GrantSigner {
    pub(super) fn new(leaf: &Leaf) -> Result<Self, CaError> {
        let name = leaf.kind.store_name();
        Ok(Self {
            key: x509::open_key(name, &leaf.pkcs8, leaf.kind.key_kind())?,
            certificate: leaf.chain[0].to_vec(),
        })
    }

    /// The signature of `body` under `label`, DER.
    ///
    /// # Errors
    /// The key cannot be used.
    pub fn sign(&self, label: &[u8], body: &[u8]) -> Result<Vec<u8>, CaError> {
        self.key
            .sign(&[label, body].concat())
            .map_err(|source| CaError::X509 {
                what: "grant",
                source,
            })
    }

    /// Certificates of the key, DER, leaf first.
    pub fn chain(&self) -> Vec<attest_wire::v1::Bytes> {
        vec![self.certificate.clone().into()]
    }
}

impl LedgerSigner for ReceiptSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        SigningKey::sign(&self.key, message).map_err(|e| e.to_string())
    }

    fn chain_der(&self) -> Vec<Vec<u8>> {
        vec![self.certificate.clone()]
    }
}
