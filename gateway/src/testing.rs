//! Test support: a driver that answers as a test says, throw-away certificates, real clients.

use std::process::{Command as Process, Output, Stdio};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, RsaKeySize,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::sync::mpsc;

use crate::handle::{Handle, Request};
use crate::metrics::{Family, Metrics};
use crate::shell::tls::CertSlot;

/// A handle whose requests are answered by `answer`, one after the other.
pub(crate) fn driver(mut answer: impl FnMut(Request) + Send + 'static) -> Handle {
    let (tx, mut rx) = mpsc::channel(16);
    tokio::spawn(async move {
        while let Some(request) = rx.recv().await {
            answer(request);
        }
    });
    Handle { tx }
}

/// A handle whose driver has stopped.
pub(crate) fn stopped_driver() -> Handle {
    let (tx, _) = mpsc::channel(1);
    Handle { tx }
}

/// A throw-away CA.
pub(crate) struct TestCa {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A leaf of it.
pub(crate) struct Leaf {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) cert_pem: String,
    pub(crate) key_pem: String,
}

impl TestCa {
    pub(crate) fn new(cn: &str) -> Self {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.distinguished_name = name(cn, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert = params.self_signed(&key).expect("self-signed");
        Self {
            der: cert.der().clone(),
            pem: cert.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A revocation list in DER that names this serial.
    pub(crate) fn crl(&self, serial: u64) -> Vec<u8> {
        use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams};
        let now = time::OffsetDateTime::now_utc();
        let params = CertificateRevocationListParams {
            this_update: now - time::Duration::hours(1),
            next_update: now + time::Duration::days(1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: serial.into(),
                revocation_time: now,
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).expect("signed");
        list.der().to_vec()
    }

    fn leaf(
        &self,
        key: KeyPair,
        mut params: CertificateParams,
        eku: ExtendedKeyUsagePurpose,
    ) -> Leaf {
        params.extended_key_usages = vec![eku];
        let cert = params.signed_by(&key, &self.issuer).expect("signed");
        Leaf {
            chain: vec![cert.der().clone(), self.der.clone()],
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            cert_pem: cert.pem(),
            key_pem: key.serialize_pem(),
        }
    }

    pub(crate) fn server(&self, rsa: bool) -> Leaf {
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let params = CertificateParams::new(names).expect("params");
        let key = if rsa {
            KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_3072)
        } else {
            KeyPair::generate()
        };
        self.leaf(
            key.expect("key"),
            params,
            ExtendedKeyUsagePurpose::ServerAuth,
        )
    }

    pub(crate) fn client(&self, cn: &str, ou: Option<&str>) -> Leaf {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.distinguished_name = name(cn, ou);
        self.leaf(
            KeyPair::generate().expect("key"),
            params,
            ExtendedKeyUsagePurpose::ClientAuth,
        )
    }
}

impl Leaf {
    pub(crate) fn slot(self) -> Arc<CertSlot> {
        CertSlot::new("test", self.chain, self.key).expect("usable")
    }
}

fn name(cn: &str, ou: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, cn);
    if let Some(ou) = ou {
        name.push(DnType::OrganizationalUnitName, ou);
    }
    name
}

/// Runs a real client to its end with empty standard input.
pub(crate) async fn run(program: &str, args: Vec<String>) -> Output {
    let program = program.to_owned();
    tokio::task::spawn_blocking(move || {
        Process::new(&program)
            .args(&args)
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"))
    })
    .await
    .expect("client ended")
}

/// [`run`] with `&str` arguments; standard output and error as one text.
pub(crate) async fn text_of(program: &str, args: &[&str]) -> String {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let output = run(program, args).await;
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Waits until a counter has reached `wanted`, since a client may end before the server has
/// counted it; the last value either way.
pub(crate) async fn counted(metrics: &Metrics, family: Family, value: &str, wanted: u64) -> u64 {
    for _ in 0..300 {
        if metrics.get(family, value) >= wanted {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    metrics.get(family, value)
}
