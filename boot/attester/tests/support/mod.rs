//! A small gateway for tests: its own CA, a TLS server on loopback that answers as told, and a TPM
//! made of software keys.

#![allow(dead_code)]
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

pub mod honest;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use attest_wire::oid::{EKU_ATTEST, EKU_RECEIPT, Oid};
use attest_wire::templates::Template;
use attest_wire::tpm::PublicKind;
use attest_wire::v1::{ATTEST_SERVER_NAME, Bytes, EXPORTER_LABEL, Platform, Receipt};
use attester::Facts;
use hw::tpm::{Attested, DevId, DevIdKind, EndorsementKey, NodeTpm, TpmError, TpmProperties};
use p256::elliptic_curve::sec1::ToEncodedPoint as _;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair,
    PublicKeyData, SigningKey as _,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use zeroize::Zeroizing;

/// A CA with its certificate.
#[derive(Clone)]
pub struct Ca {
    issuer: Arc<Issuer<'static, KeyPair>>,
    pub der: CertificateDer<'static>,
}

/// A leaf certificate and its key.
pub struct Leaf {
    pub der: CertificateDer<'static>,
    pub key: KeyPair,
}

fn year(year: i32) -> OffsetDateTime {
    time::Date::from_calendar_date(year, time::Month::January, 1)
        .unwrap()
        .midnight()
        .assume_utc()
}

/// extendedKeyUsage with one key purpose. rcgen keeps OID arcs in 64 bits, ours needs 128.
pub fn purpose(oid: Oid) -> CustomExtension {
    let mut content = vec![0x30, oid.der.len() as u8 + 2, 0x06, oid.der.len() as u8];
    content.extend(oid.der);
    CustomExtension::from_oid_content(&[2, 5, 29, 37], content)
}

impl Ca {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.not_before = year(2020);
        params.not_after = year(2035);
        let der = params.self_signed(&key).unwrap().der().clone();
        Self {
            issuer: Arc::new(Issuer::new(params, key)),
            der,
        }
    }

    fn params(names: &[&str], eku: Option<Oid>) -> CertificateParams {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "leaf");
        params.custom_extensions = eku.map(purpose).into_iter().collect();
        params.not_before = year(2020);
        params.not_after = year(2030);
        params
    }

    pub fn leaf(&self, names: &[&str], eku: Option<Oid>) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let der = Self::params(names, eku)
            .signed_by(&key, &self.issuer)
            .unwrap()
            .der()
            .clone();
        Leaf { der, key }
    }

    /// Expired long ago: for the rule that dates are ignored.
    pub fn expired_leaf(&self, names: &[&str], eku: Oid) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let mut params = Self::params(names, Some(eku));
        params.not_before = year(2021);
        params.not_after = year(2022);
        let der = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        Leaf { der, key }
    }

    pub fn attest_leaf(&self) -> Leaf {
        self.leaf(&[ATTEST_SERVER_NAME], Some(EKU_ATTEST))
    }

    /// A certificate for a P-256 point: an LDevID.
    pub fn certify_point(&self, point: &[u8]) -> CertificateDer<'static> {
        struct Point<'a>(&'a [u8]);
        impl PublicKeyData for Point<'_> {
            fn der_bytes(&self) -> &[u8] {
                self.0
            }
            fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
                &rcgen::PKCS_ECDSA_P256_SHA256
            }
        }
        Self::params(&[], None)
            .signed_by(&Point(point), &self.issuer)
            .unwrap()
            .der()
            .clone()
    }

    pub fn receipt(&self, body: &[u8]) -> Receipt {
        let (sig, chain) = self.sign(EKU_RECEIPT, b"vestibule/receipt/v1\0", body);
        Receipt {
            body: Bytes(body.to_vec()),
            sig: Bytes(sig),
            chain,
        }
    }

    /// Signature of a fresh key of this purpose over label and body, and its certificate.
    pub fn sign(&self, purpose: Oid, label: &[u8], body: &[u8]) -> (Vec<u8>, Vec<Bytes>) {
        let leaf = self.leaf(&[], Some(purpose));
        let sig = leaf.key.sign(&[label, body].concat()).unwrap();
        (sig, vec![Bytes(leaf.der.to_vec())])
    }
}

/// What arrived at the server in one request.
pub struct Request {
    pub line: String,
    pub body: Vec<u8>,
}

/// One reply: raw bytes on the connection, or a status with a JSON body.
pub enum Reply {
    Json(u16, Vec<u8>),
    Raw(Vec<u8>),
    Close,
}

/// What a server does with one request: its number on this connection (0, 1, ..), the request, and
/// the TLS exporter for a session id of its choice.
pub trait Script:
    FnMut(usize, &Request, &dyn Fn(&[u8]) -> [u8; 32]) -> Reply + Send + 'static
{
}

impl<F> Script for F where
    F: FnMut(usize, &Request, &dyn Fn(&[u8]) -> [u8; 32]) -> Reply + Send + 'static
{
}

/// Serves one connection on a free port; its thread returns how many requests came.
pub fn serve_one(leaf: Leaf, tls12: bool, script: impl Script) -> (SocketAddr, JoinHandle<usize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (
        addr,
        std::thread::spawn(move || serve(&listener, leaf, tls12, script)),
    )
}

/// Accepts one connection and serves it to its end.
pub fn serve(listener: &TcpListener, leaf: Leaf, tls12: bool, mut script: impl Script) -> usize {
    let versions: &[&rustls::SupportedProtocolVersion] = if tls12 {
        &[&rustls::version::TLS12]
    } else {
        &[&rustls::version::TLS13]
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::try_from(leaf.key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der], key)
        .unwrap();
    let (tcp, _) = listener.accept().unwrap();
    let tls = ServerConnection::new(Arc::new(config)).unwrap();
    let mut stream = StreamOwned::new(tls, tcp);
    let mut count = 0;
    while let Some(request) = read_request(&mut stream) {
        let reply = {
            let conn = &stream.conn;
            let exporter = |session: &[u8]| {
                conn.export_keying_material([0; 32], EXPORTER_LABEL, Some(session))
                    .unwrap()
            };
            script(count, &request, &exporter)
        };
        count += 1;
        let bytes = match reply {
            Reply::Json(status, body) => [
                format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                )
                .into_bytes(),
                body,
            ]
            .concat(),
            Reply::Raw(bytes) => bytes,
            Reply::Close => break,
        };
        if stream
            .write_all(&bytes)
            .and_then(|()| stream.flush())
            .is_err()
        {
            break;
        }
    }
    count
}

fn read_request(stream: &mut impl Read) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .unwrap()
        .parse()
        .unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Request {
        line: head.lines().next().unwrap().to_owned(),
        body,
    })
}

/// A TPM of software: its answers are shaped right and mean little. `activate` gives back the blob.
pub struct SoftTpm {
    pub devid: p256::SecretKey,
    pub pcr15: [u8; 32],
    /// Every PCR 15 extend, quote and certify, in order.
    pub calls: Vec<(&'static str, Vec<u8>)>,
    pub restless_reads: u32,
}

impl SoftTpm {
    pub fn new() -> Self {
        Self {
            devid: p256::SecretKey::random(&mut rand_core::OsRng),
            pcr15: [0; 32],
            calls: Vec::new(),
            restless_reads: 0,
        }
    }

    pub fn devid_point(&self) -> Vec<u8> {
        self.devid
            .public_key()
            .to_encoded_point(false)
            .as_bytes()
            .to_vec()
    }
}

impl NodeTpm for SoftTpm {
    fn properties(&mut self) -> Result<TpmProperties, TpmError> {
        Ok(TpmProperties {
            manufacturer: "SOFT".to_owned(),
            model: "t".repeat(300),
            firmware: "1.2".to_owned(),
        })
    }

    fn endorsement_keys(&mut self) -> Result<Vec<EndorsementKey>, TpmError> {
        Ok(vec![
            EndorsementKey {
                public: Template::EkRsa2048L.create_primary_input().encode(),
                cert_nv: Some(vec![0x30, 0x00]),
            },
            EndorsementKey {
                public: Template::EkP384H.create_primary_input().encode(),
                cert_nv: None,
            },
        ])
    }

    fn ek_chain(&mut self) -> Result<Vec<u8>, TpmError> {
        let ca = Ca::new("EK CA");
        // Two NV indices, each larger than its certificate.
        Ok([ca.der.as_ref(), &[0xff; 30], ca.der.as_ref(), &[0; 9]].concat())
    }

    fn create_ak(&mut self, unique: [u8; 64]) -> Result<Vec<u8>, TpmError> {
        Ok(unique.to_vec())
    }

    fn create_devid(
        &mut self,
        kind: DevIdKind,
        auth: Option<Zeroizing<String>>,
    ) -> Result<DevId, TpmError> {
        assert_eq!(kind, DevIdKind::EccP256);
        let point = self.devid_point();
        let mut public = Template::DevIdP256.public();
        if let PublicKind::Ecc { x, y, .. } = &mut public.kind {
            *x = point[1..33].to_vec();
            *y = point[33..].to_vec();
        }
        Ok(DevId {
            srk_public: Template::SrkP256.public().encode(),
            public: public.encode(),
            private: vec![1; 126],
            auth,
        })
    }

    fn activate(
        &mut self,
        ek_public: &[u8],
        blob: &[u8],
        _secret: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, TpmError> {
        self.calls.push(("activate", ek_public.to_vec()));
        Ok(Zeroizing::new(blob.to_vec()))
    }

    fn unseal_import(
        &mut self,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, TpmError> {
        self.calls.push(("unseal", Vec::new()));
        Err(TpmError::Lockout)
    }

    fn certify_devid(&mut self, qualifying: &[u8; 32]) -> Result<Attested, TpmError> {
        self.calls.push(("certify", qualifying.to_vec()));
        Ok(Attested {
            attest: qualifying.to_vec(),
            signature: vec![2],
        })
    }

    fn sign_devid(&mut self, digest: &[u8; 32]) -> Result<Vec<u8>, TpmError> {
        use p256::ecdsa::signature::hazmat::PrehashSigner as _;
        let key = p256::ecdsa::SigningKey::from(&self.devid);
        let signature: p256::ecdsa::Signature = key.sign_prehash(digest).unwrap();
        let mut out = vec![0x00, 0x18, 0x00, 0x0b];
        for half in signature.to_bytes().chunks(32) {
            out.extend([0, 32]);
            out.extend(half);
        }
        Ok(out)
    }

    fn quote(&mut self, qualifying: &[u8; 32], _pcrs: &[u8]) -> Result<Attested, TpmError> {
        self.calls.push(("quote", qualifying.to_vec()));
        Ok(Attested {
            attest: qualifying.to_vec(),
            signature: vec![3],
        })
    }

    fn pcr_read(&mut self, pcrs: &[u8]) -> Result<Vec<[u8; 32]>, TpmError> {
        let restless = pcrs.len() > 1 && self.restless_reads > 0;
        if restless {
            self.restless_reads -= 1;
        }
        Ok(pcrs
            .iter()
            .map(|pcr| match pcr {
                15 => self.pcr15,
                10 if restless => [self.restless_reads as u8; 32],
                _ => [*pcr; 32],
            })
            .collect())
    }

    fn pcr_extend(&mut self, pcr: u8, digest: &[u8; 32]) -> Result<(), TpmError> {
        assert_eq!(pcr, 15);
        self.calls.push(("extend", digest.to_vec()));
        let mut hash = Sha256::new();
        hash.update(self.pcr15);
        hash.update(digest);
        self.pcr15 = hash.finalize().into();
        Ok(())
    }
}

pub fn facts() -> Facts {
    Facts {
        arch: "x86_64".to_owned(),
        platform: Platform {
            manufacturer: "QEMU".to_owned(),
            product: "Lab".to_owned(),
            serial: "SN-1".to_owned(),
            uuid: "00000000-0000-0000-0000-000000000001".to_owned(),
        },
        nics: Vec::new(),
        disks: Vec::new(),
        lldp: Vec::new(),
        boot_path: "pxe".to_owned(),
        uki_hint: "attester 1".to_owned(),
        event_log: vec![7; 100],
    }
}
