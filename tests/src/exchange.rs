//! The exchange of docs/PROTOCOL.md section 2, one step at a time, so that a liar can lie at any of
//! them. Honest machines use the attester's own code (`sim`); this is for the others.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use attest_wire::v1::{
    ATTEST_SERVER_NAME, AttestationResult, Attested, Binding, Challenge, DevIdAuth, Disk,
    EVIDENCE_PATH, EXPORTER_LABEL, EkOffer, Evidence, HELLO_PATH, Hello, Nic, PcrValue, Platform,
    TpmInfo,
};
use hw::tpm::{DevId, DevIdKind, NodeDevice, NodeTpm};
use p256::ecdsa::signature::hazmat::PrehashSigner as _;
use rand_core::{OsRng, RngCore as _};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};

use crate::event_log::EventLog;

const LIMIT: Duration = Duration::from_secs(30);

/// What a machine says about itself apart from its TPM.
#[derive(Debug, Clone)]
pub struct Claims {
    /// SMBIOS serial number.
    pub serial: String,
    /// SMBIOS UUID.
    pub uuid: String,
    /// Hardware address of its NIC.
    pub mac: String,
    /// Its one disk's serial, if it has a disk.
    pub disk_serial: Option<String>,
}

/// One TLS 1.3 connection to the attest listener.
pub struct Connection {
    stream: StreamOwned<ClientConnection, TcpStream>,
    host: String,
}

impl Connection {
    /// Connects from the calling thread's namespace. A liar pins nothing.
    ///
    /// # Errors
    /// No connection.
    pub fn open(gateway: SocketAddr) -> Result<Self> {
        Self::over(TcpStream::connect_timeout(&gateway, LIMIT)?, gateway)
    }

    /// As [`Connection::open`], from one of the namespace's addresses.
    ///
    /// # Errors
    /// No connection.
    pub fn open_from(from: Ipv4Addr, gateway: SocketAddrV4) -> Result<Self> {
        let tcp = crate::tls_load::connect_from(Some(from), gateway)?;
        Self::over(tcp, SocketAddr::V4(gateway))
    }

    fn over(tcp: TcpStream, gateway: SocketAddr) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
            .with_no_client_auth();
        tcp.set_read_timeout(Some(LIMIT))?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(ATTEST_SERVER_NAME)?;
        let connection = ClientConnection::new(Arc::new(config), name)?;
        let mut stream = StreamOwned::new(connection, tcp);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self {
            stream,
            host: gateway.to_string(),
        })
    }

    /// The TLS exporter with `session` as context.
    ///
    /// # Errors
    /// The connection does not export.
    pub fn exporter(&self, session: &[u8]) -> Result<[u8; 32]> {
        Ok(self
            .stream
            .conn
            .export_keying_material([0u8; 32], EXPORTER_LABEL, Some(session))?)
    }

    /// `POST path`; status and body.
    ///
    /// # Errors
    /// The connection ends before an answer.
    pub fn post(&mut self, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let headers = [("Content-Type", "application/json")];
        let response =
            crate::http::exchange(&mut self.stream, &self.host, "POST", path, &headers, body)?;
        Ok((response.status, response.body))
    }
}

impl Connection {
    /// `GET path`; status and body.
    ///
    /// # Errors
    /// The connection ends before an answer.
    pub fn get(&mut self, path: &str) -> Result<(u16, Vec<u8>)> {
        let response = crate::http::exchange(&mut self.stream, &self.host, "GET", path, &[], b"")?;
        Ok((response.status, response.body))
    }

    /// `GET path` of the first bytes; status and body.
    ///
    /// # Errors
    /// The connection ends before an answer.
    pub fn get_first(&mut self, path: &str) -> Result<(u16, Vec<u8>)> {
        let headers = [("Range", "bytes=0-4095")];
        let response =
            crate::http::exchange(&mut self.stream, &self.host, "GET", path, &headers, b"")?;
        Ok((response.status, response.body))
    }

    /// A `POST` that says it has `length` bytes, of which only the first are sent.
    ///
    /// # Errors
    /// The connection ends before an answer.
    pub fn post_of_length(
        &mut self,
        path: &str,
        length: usize,
        first: &[u8],
    ) -> Result<(u16, Vec<u8>)> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {length}\r\n\r\n",
            self.host
        );
        self.stream.write_all(head.as_bytes())?;
        self.stream.write_all(first)?;
        self.stream.flush()?;
        let response = crate::http::response(&mut self.stream, false)?;
        Ok((response.status, response.body))
    }
}

/// A node in the middle of an exchange.
pub struct Node<'a> {
    /// Its TPM.
    pub tpm: &'a mut NodeDevice,
    /// What was extended into PCR 15 since the TPM's reset, kept over attempts.
    pub pcr15: &'a mut Vec<[u8; 32]>,
    /// What it says about itself.
    pub claims: Claims,
    /// The event log that it sends.
    pub event_log: Vec<u8>,
}

impl Node<'_> {
    /// Makes AK and DevID and says hello honestly.
    ///
    /// # Errors
    /// The TPM refuses.
    pub fn hello(&mut self) -> Result<(Hello, DevId)> {
        let mut unique = [0u8; 64];
        OsRng.fill_bytes(&mut unique);
        let ak_pub = self.tpm.create_ak(unique)?;
        let devid = self.tpm.create_devid(DevIdKind::EccP256, None)?;
        let properties = self.tpm.properties()?;
        let eks = self.tpm.endorsement_keys()?;
        let disks = self.claims.disk_serial.iter().map(|serial| Disk {
            name: "vda".into(),
            serial: serial.clone(),
            model: "lab".into(),
            size_bytes: 1 << 30,
        });
        let hello = Hello {
            version: 1,
            arch: "x86_64".into(),
            eks: eks
                .into_iter()
                .map(|ek| EkOffer {
                    public: ek.public.into(),
                    cert: ek.cert_nv.map(Into::into),
                })
                .collect(),
            ek_chain: Vec::new(),
            srk_pub: devid.srk_public.clone().into(),
            ak_pub: ak_pub.into(),
            devid_pub: devid.public.clone().into(),
            devid_auth: match devid.auth {
                None => DevIdAuth::None,
                Some(_) => DevIdAuth::Secret,
            },
            tpm: TpmInfo {
                vendor: properties.manufacturer,
                model: properties.model,
                firmware: properties.firmware,
            },
            platform: Platform {
                manufacturer: "Lab".into(),
                product: "Node".into(),
                serial: self.claims.serial.clone(),
                uuid: self.claims.uuid.clone(),
            },
            nics: vec![Nic {
                name: "eth0".into(),
                mac: self.claims.mac.clone(),
            }],
            disks: disks.collect(),
            lldp: Vec::new(),
            boot_path: "pxe".into(),
            uki_hint: "lab".into(),
            can: Vec::new(),
        };
        Ok((hello, devid))
    }

    /// Answers a challenge honestly: activation, PCR 15, certify, quote.
    ///
    /// # Errors
    /// The TPM refuses.
    pub fn evidence(
        &mut self,
        hello: &Hello,
        challenge: &Challenge,
        binding: &Binding,
    ) -> Result<Evidence> {
        let mut activated = Vec::new();
        for credential in &challenge.credentials {
            let ek = hello
                .eks
                .get(usize::from(credential.ek))
                .context("credential for an EK that was not offered")?;
            let secret =
                self.tpm
                    .activate(&ek.public.0, &credential.blob.0, &credential.secret.0)?;
            activated.push(activation(&secret, binding).into());
        }
        let boot = binding.digest("boot");
        self.tpm.pcr_extend(15, &boot)?;
        self.pcr15.push(boot);
        let certify = self.tpm.certify_devid(&binding.digest("devid"))?;
        let pcrs = &challenge.pcr_selection;
        let quote = self.tpm.quote(&binding.digest("quote"), pcrs)?;
        let values = self.tpm.pcr_read(pcrs)?;
        Ok(Evidence {
            session: challenge.session.clone(),
            activated,
            devid_certify: attested(certify),
            quote: attested(quote),
            pcr_values: pcrs
                .iter()
                .zip(values)
                .map(|(index, value)| PcrValue {
                    index: *index,
                    digest: value.to_vec().into(),
                })
                .collect(),
            pcr15_extends: self.pcr15.iter().map(|d| d.to_vec().into()).collect(),
            event_log: self.event_log.clone().into(),
        })
    }
}

/// HMAC-SHA256(secret, B("activation")).
pub fn activation(secret: &[u8], binding: &Binding) -> Vec<u8> {
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret);
    aws_lc_rs::hmac::sign(&key, &binding.digest("activation"))
        .as_ref()
        .to_vec()
}

fn attested(signed: hw::tpm::Attested) -> Attested {
    Attested {
        attest: signed.attest.into(),
        sig: signed.signature.into(),
    }
}

/// Sends a hello; the challenge with its body as received, or the refusal.
///
/// # Errors
/// No answer, or one that is neither.
pub fn say_hello(
    connection: &mut Connection,
    hello: &Hello,
) -> Result<std::result::Result<(Challenge, Binding), AttestationResult>> {
    let body = serde_json::to_vec(hello)?;
    let (status, answer) = connection.post(HELLO_PATH, &body)?;
    if status == 200
        && let Ok(challenge) = serde_json::from_slice::<Challenge>(&answer)
    {
        let exporter = connection.exporter(&challenge.session.0)?;
        let binding = Binding::new(&body, &answer, exporter);
        return Ok(Ok((challenge, binding)));
    }
    Ok(Err(result(status, &answer)?))
}

/// Sends evidence; the result.
///
/// # Errors
/// No answer, or not a result.
pub fn send_evidence(
    connection: &mut Connection,
    evidence: &Evidence,
) -> Result<AttestationResult> {
    let (status, answer) = connection.post(EVIDENCE_PATH, &serde_json::to_vec(evidence)?)?;
    result(status, &answer)
}

/// The result in an answer's body.
///
/// # Errors
/// It is something else.
pub fn result(status: u16, body: &[u8]) -> Result<AttestationResult> {
    match serde_json::from_slice(body) {
        Ok(result) => Ok(result),
        Err(error) => bail!(
            "status {status}, not a result ({error}): {}",
            String::from_utf8_lossy(body)
        ),
    }
}

/// A P-256 key outside any TPM that signs what it is given: an unrestricted "AK".
pub struct SoftwareKey(p256::ecdsa::SigningKey);

impl SoftwareKey {
    /// A fresh key.
    pub fn generate() -> Self {
        Self(p256::ecdsa::SigningKey::random(&mut OsRng))
    }

    /// `TPMT_PUBLIC` with the AK's parameters and `attributes` (a real AK has 0x00050472).
    pub fn public(&self, attributes: u32) -> Vec<u8> {
        let point = self.0.verifying_key().to_encoded_point(false);
        let mut out = vec![0x00, 0x23, 0x00, 0x0b];
        out.extend(attributes.to_be_bytes());
        // No policy, no symmetric algorithm, ECDSA with SHA-256, P-256, no KDF.
        out.extend([0, 0, 0, 0x10, 0, 0x18, 0, 0x0b, 0, 0x03, 0, 0x10]);
        for coordinate in [point.x(), point.y()].into_iter().flatten() {
            out.extend([0, 32]);
            out.extend(coordinate);
        }
        out
    }

    /// `TPMT_SIGNATURE`, ECDSA with SHA-256, over `message`.
    ///
    /// # Errors
    /// Never with a valid key.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>> {
        use sha2::Digest as _;
        let digest = sha2::Sha256::digest(message);
        let signature: p256::ecdsa::Signature = self.0.sign_prehash(&digest)?;
        let mut out = vec![0x00, 0x18, 0x00, 0x0b];
        let bytes = signature.to_bytes();
        for half in bytes.chunks(32) {
            out.extend([0, 32]);
            out.extend(half);
        }
        Ok(out)
    }
}

/// Extends the TPM with everything that the log stands for.
///
/// # Errors
/// The TPM refuses.
pub fn replay(tpm: &mut dyn NodeTpm, log: &EventLog) -> Result<()> {
    for (pcr, digest) in &log.extends {
        tpm.pcr_extend(*pcr, digest)?;
    }
    Ok(())
}

#[derive(Debug)]
struct AnyServer(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
