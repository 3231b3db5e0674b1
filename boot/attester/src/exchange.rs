//! The exchange of docs/PROTOCOL.md section 2, node side, as one straight path:
//! hello, challenge, PCR 15, activation, certify, quote, evidence, result.
//!
//! Decides only what a challenge may ask of this TPM. Whether the node is admitted is the
//! gateway's business; what is done with the answer is the caller's.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use attest_wire::sealed::Item;
use attest_wire::tpm::Public;
use attest_wire::v1::handover::{Ability, Grant};
use attest_wire::v1::{
    self, Attested, Binding, Bytes, Challenge, Credential, EK_CHAIN_MAX, EVENT_LOG_MAX_BYTES,
    EVIDENCE_MAX_BYTES, EVIDENCE_PATH, EkOffer, Evidence, HELLO_MAX_BYTES, HELLO_PATH, Hello,
    PcrValue, Receipt, TpmInfo, Verdict,
};
use hmac::{Hmac, Mac};
use hw::tpm::{DevId, DevIdKind, EndorsementKey, NodeTpm, TpmError, TpmProperties};
use rand_core::{OsRng, RngCore};
use rustls::pki_types::CertificateDer;
use sha2::Sha256;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use crate::client::{Answer, ClientError, Connection};
use crate::extends::{Extends, ExtendsError, PCR};
use crate::facts::{Facts, cut};
use crate::payloads::{self, PayloadError, Session};
use crate::pin::{Pin, PinError};

/// How often PCRs are quoted again when one changed between reading and quoting.
const QUOTE_TRIES: u32 = 5;

/// Where the gateway is and how it is recognised.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// Its attest endpoint.
    pub addr: SocketAddr,
    /// Pinned infra CA certificates.
    pub anchors: Vec<CertificateDer<'static>>,
}

/// Whether the DevID is protected by an authValue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevIdAuth {
    /// None: anybody on the running system can use the key.
    None,
    /// 32 random characters.
    Random,
}

/// Choices of one node.
#[derive(Debug, Clone)]
pub struct Options {
    /// Key type of the DevID.
    pub devid_kind: DevIdKind,
    /// Its protection.
    pub devid_auth: DevIdAuth,
    /// Where the extends of PCR 15 are kept over a restart of this program within one boot.
    pub extends_file: Option<PathBuf>,
    /// What is done with what may come beside an LDevID.
    pub can: Vec<Ability>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            devid_kind: DevIdKind::EccP256,
            devid_auth: DevIdAuth::None,
            extends_file: None,
            can: vec![Ability::Payloads],
        }
    }
}

/// What the gateway answered.
pub enum Outcome {
    /// Admitted.
    Admitted {
        /// LDevID chain, DER, leaf first; its leaf is for our DevID.
        chain: Vec<Vec<u8>>,
        /// The signed receipt, checked against the pin.
        receipt: Receipt,
        /// The key behind the certificate.
        devid: DevId,
        /// Payloads in clear; PCR 15 is closed behind them.
        payloads: Vec<Item>,
        /// Leave to install, not yet checked.
        grant: Option<Box<Grant>>,
        /// Finds the attempt in the gateway's ledger.
        correlation: String,
    },
    /// Possession is proven; an owner must approve.
    Pending {
        /// Stable code.
        code: String,
        /// One line for the console.
        hint: String,
        /// Finds the attempt in the gateway's ledger.
        correlation: String,
        /// Seconds until the next attempt.
        retry_secs: u32,
        /// [`Hello::report_sha256`], hex: what the owner compares with the claim.
        /// The owner compares it with the claim.
        report_sha256: String,
    },
    /// Not admitted.
    Refused {
        /// Stable code; `not_admitted` until possession was proven.
        code: String,
        /// One line for the console.
        hint: String,
        /// Finds the attempt in the gateway's ledger.
        correlation: String,
        /// Seconds until the next attempt.
        retry_secs: u32,
    },
}

/// Why there is no answer to act on.
#[derive(Debug, thiserror::Error)]
pub enum AttestError {
    /// The TPM.
    #[error(transparent)]
    Tpm(#[from] TpmError),
    /// PCR 15 and its list.
    #[error(transparent)]
    Extends(#[from] ExtendsError),
    /// The connection.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The pin.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Payloads that do not open.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// A message of the gateway is malformed, or asks what we do not do.
    #[error("{message} of the gateway: {why}")]
    Message {
        /// Which message.
        message: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Something of ours is larger than the protocol allows.
    #[error("{what} is {size} bytes, the protocol allows {max}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The bound in bytes.
        max: usize,
    },
    /// The operating system gave no randomness.
    #[error("no random bytes from the operating system: {0}")]
    Random(rand_core::Error),
}

/// A step of the walk, for the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Keys made, hello sent.
    Hello,
    /// Challenge received and checked.
    Challenge,
    /// Evidence sent.
    Evidence,
    /// The gateway has judged.
    Appraise,
    /// An LDevID came back.
    Issue,
    /// A disk is written under a grant.
    Install,
}

impl Step {
    /// Name as in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Challenge => "challenge",
            Self::Evidence => "evidence",
            Self::Appraise => "appraise",
            Self::Issue => "issue",
            Self::Install => "install",
        }
    }
}

/// The keys of one boot: made once, used by every attempt.
pub struct Node {
    properties: TpmProperties,
    eks: Vec<EndorsementKey>,
    ek_chain: Vec<Bytes>,
    ak_public: Vec<u8>,
    devid: DevId,
    extends: Extends,
    can: Vec<Ability>,
}

/// Makes the keys and attests once. [`Node`] is for a caller that tries again.
///
/// # Errors
/// [`AttestError`] when there is no answer to act on; a refusal is an [`Outcome`].
pub fn attest(
    tpm: &mut dyn NodeTpm,
    facts: &Facts,
    gateway: &Gateway,
    options: &Options,
) -> Result<Outcome, AttestError> {
    Node::prepare(tpm, options)?.attest(tpm, facts, gateway, &mut |_, _| {})
}

impl Node {
    /// Reads the EKs and makes AK and DevID.
    ///
    /// # Errors
    /// What the TPM says, or a PCR 15 that is not ours.
    pub fn prepare(tpm: &mut dyn NodeTpm, options: &Options) -> Result<Self, AttestError> {
        let extends = Extends::open(tpm, options.extends_file.clone())?;
        let eks = tpm.endorsement_keys()?;
        let ek_chain = split_certificates(&tpm.ek_chain()?);
        let mut unique = [0; 64];
        OsRng
            .try_fill_bytes(&mut unique)
            .map_err(AttestError::Random)?;
        let ak_public = tpm.create_ak(unique)?;
        let auth = match options.devid_auth {
            DevIdAuth::None => None,
            DevIdAuth::Random => Some(random_auth()?),
        };
        let devid = tpm.create_devid(options.devid_kind, auth)?;
        Ok(Self {
            properties: tpm.properties()?,
            eks,
            ek_chain,
            ak_public,
            devid,
            extends,
            can: options.can.clone(),
        })
    }

    /// One attempt, on one connection. `progress` hears each step with one line of detail.
    ///
    /// # Errors
    /// [`AttestError`] when there is no answer to act on; a refusal is an [`Outcome`].
    pub fn attest(
        &mut self,
        tpm: &mut dyn NodeTpm,
        facts: &Facts,
        gateway: &Gateway,
        progress: &mut dyn FnMut(Step, &str),
    ) -> Result<Outcome, AttestError> {
        self.extends.check(tpm)?;
        if facts.event_log.len() > EVENT_LOG_MAX_BYTES {
            let size = facts.event_log.len();
            return Err(AttestError::TooLarge {
                what: "event log",
                size,
                max: EVENT_LOG_MAX_BYTES,
            });
        }
        let pin = Pin::new(&gateway.anchors)?;

        let hello = self.hello(facts);
        let report = hex::encode(hello.report_sha256());
        let hello_body = encode("hello", &hello, HELLO_MAX_BYTES)?;
        let config = pin.client_config().map_err(ClientError::Tls)?;
        let mut connection = Connection::open(gateway.addr, config)?;
        progress(
            Step::Hello,
            &format!("{} with {} endorsement keys", gateway.addr, self.eks.len()),
        );
        let answer = connection.post(HELLO_PATH, &hello_body)?;
        if answer.status != 200 {
            return self.outcome(tpm, &answer, &pin, (report, &[]), progress);
        }

        let challenge = decode_challenge(&answer.body, self.eks.len())?;
        progress(
            Step::Challenge,
            &format!("{} credentials", challenge.credentials.len()),
        );
        let exporter = connection.exporter(&challenge.session.0)?;
        let binding = Binding::new(&hello_body, &answer.body, exporter);

        let activated = challenge
            .credentials
            .iter()
            .map(|credential| self.activate(tpm, credential, &binding))
            .collect::<Result<Vec<_>, _>>()?;
        self.extends.extend(tpm, binding.digest("boot"))?;
        let devid_certify = wire(tpm.certify_devid(&binding.digest("devid"))?);
        let (quote, pcr_values) = quote(tpm, &binding.digest("quote"), &challenge.pcr_selection)?;
        let evidence = Evidence {
            session: challenge.session,
            activated,
            devid_certify,
            quote,
            pcr_values,
            pcr15_extends: self
                .extends
                .digests()
                .iter()
                .map(|d| Bytes(d.to_vec()))
                .collect(),
            event_log: Bytes(facts.event_log.clone()),
        };
        let evidence_body = encode("evidence", &evidence, EVIDENCE_MAX_BYTES)?;
        progress(
            Step::Evidence,
            &format!("event log {} bytes", facts.event_log.len()),
        );
        let answer = connection.post(EVIDENCE_PATH, &evidence_body)?;
        let quoted = &evidence.pcr_values;
        self.outcome(tpm, &answer, &pin, (report, quoted), progress)
    }

    fn hello(&self, facts: &Facts) -> Hello {
        let facts = facts.clone().bounded();
        let text = |text: &str| {
            let mut text = text.to_owned();
            cut(&mut text);
            text
        };
        Hello {
            version: 1,
            eks: self
                .eks
                .iter()
                .map(|ek| EkOffer {
                    public: Bytes(ek.public.clone()),
                    cert: ek.cert_nv.clone().map(Bytes),
                })
                .collect(),
            ek_chain: self.ek_chain.clone(),
            srk_pub: Bytes(self.devid.srk_public.clone()),
            ak_pub: Bytes(self.ak_public.clone()),
            devid_pub: Bytes(self.devid.public.clone()),
            devid_auth: match self.devid.auth {
                None => v1::DevIdAuth::None,
                Some(_) => v1::DevIdAuth::Secret,
            },
            tpm: TpmInfo {
                vendor: text(&self.properties.manufacturer),
                model: text(&self.properties.model),
                firmware: text(&self.properties.firmware),
            },
            lldp: facts.lldp_reports(Instant::now()),
            arch: facts.arch,
            platform: facts.platform,
            nics: facts.nics,
            disks: facts.disks,
            boot_path: facts.boot_path,
            uki_hint: facts.uki_hint,
            can: self.can.clone(),
        }
    }

    /// Names of the endorsement keys, hex: one of them stands in a grant.
    pub fn ek_names(&self) -> Vec<String> {
        let publics = self.eks.iter().map(|ek| Public::decode(&ek.public));
        let names = publics
            .flatten()
            .map(|public| hex::encode(public.name().as_bytes()));
        names.collect()
    }

    /// HMAC-SHA256(secret, B("activation")): the secret itself never leaves the node.
    fn activate(
        &self,
        tpm: &mut dyn NodeTpm,
        credential: &Credential,
        binding: &Binding,
    ) -> Result<Bytes, AttestError> {
        let ek = self
            .eks
            .get(usize::from(credential.ek))
            .ok_or_else(|| message("challenge", "names an endorsement key we did not offer"))?;
        let secret = tpm.activate(&ek.public, &credential.blob.0, &credential.secret.0)?;
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&secret).expect("HMAC takes a key of any length");
        mac.update(&binding.digest("activation"));
        Ok(Bytes(mac.finalize().into_bytes().to_vec()))
    }

    /// What the answer means. Payloads are opened here, while PCR 15 is that of this session.
    fn outcome(
        &mut self,
        tpm: &mut dyn NodeTpm,
        answer: &Answer,
        pin: &Pin,
        (report_sha256, quoted): (String, &[PcrValue]),
        progress: &mut dyn FnMut(Step, &str),
    ) -> Result<Outcome, AttestError> {
        let result = v1::decode_result(&answer.body).map_err(|e| {
            message(
                "answer",
                &format!("HTTP status {} without a result: {e}", answer.status),
            )
        })?;
        let correlation = one_line(&result.correlation);
        let (code, hint) = (one_line(&result.code), one_line(&result.hint));
        progress(Step::Appraise, &code);
        match result.verdict {
            Verdict::Pending => Ok(Outcome::Pending {
                code,
                hint,
                correlation,
                retry_secs: result.retry_secs,
                report_sha256,
            }),
            Verdict::NotAdmitted => Ok(Outcome::Refused {
                code,
                hint,
                correlation,
                retry_secs: result.retry_secs,
            }),
            Verdict::Admitted => {
                let receipt = result
                    .receipt
                    .ok_or_else(|| message("result", "admitted without a receipt"))?;
                pin.check_receipt(&receipt)?;
                let chain: Vec<Vec<u8>> =
                    result.devid_chain.into_iter().map(|cert| cert.0).collect();
                require_devid_leaf(&chain, &self.devid.public)?;
                let payloads = match &result.sealed {
                    None => Vec::new(),
                    Some(sealed) => {
                        let session = Session {
                            pin,
                            receipt: &receipt,
                            eks: &self.eks,
                            quoted,
                        };
                        payloads::open(tpm, &mut self.extends, &session, sealed)?
                    }
                };
                progress(Step::Issue, &issued_text(&chain, &payloads));
                Ok(Outcome::Admitted {
                    chain,
                    receipt,
                    devid: self.devid.clone(),
                    payloads,
                    grant: result.grant,
                    correlation,
                })
            }
        }
    }
}

/// One line for the console: kinds and sizes, never contents.
fn issued_text(chain: &[Vec<u8>], payloads: &[Item]) -> String {
    let mut text = format!("{} certificates", chain.len());
    for item in payloads {
        text.push_str(&format!(", {item:?}"));
    }
    text
}

/// Decodes a challenge and checks that it asks what this node does.
fn decode_challenge(body: &[u8], eks: usize) -> Result<Challenge, AttestError> {
    let challenge = v1::decode_challenge(body).map_err(|e| message("challenge", &e.to_string()))?;
    let mut seen = Vec::new();
    for credential in &challenge.credentials {
        if usize::from(credential.ek) >= eks || seen.contains(&credential.ek) {
            return Err(message(
                "challenge",
                "names an endorsement key twice, or one we did not offer",
            ));
        }
        seen.push(credential.ek);
    }
    if !challenge.pcr_selection.contains(&PCR) {
        return Err(message(
            "challenge",
            "PCR selection leaves out 15, which binds this boot to the session",
        ));
    }
    Ok(challenge)
}

/// Quotes and reads the same PCRs; again when one changed in between (IMA extends PCR 10 at any
/// moment), so that the values sent are those quoted.
fn quote(
    tpm: &mut dyn NodeTpm,
    qualifying: &[u8; 32],
    pcrs: &[u8],
) -> Result<(Attested, Vec<PcrValue>), AttestError> {
    let mut before = tpm.pcr_read(pcrs)?;
    for _ in 0..QUOTE_TRIES {
        let quote = tpm.quote(qualifying, pcrs)?;
        let after = tpm.pcr_read(pcrs)?;
        if before == after {
            let values = pcrs
                .iter()
                .zip(after)
                .map(|(index, digest)| PcrValue {
                    index: *index,
                    digest: Bytes(digest.to_vec()),
                })
                .collect();
            return Ok((wire(quote), values));
        }
        before = after;
    }
    Err(TpmError::Malformed {
        what: "PCRs",
        why: "they change faster than we quote".to_owned(),
    }
    .into())
}

/// The certificate must be for the key we made: another one would be of no use to this node.
fn require_devid_leaf(chain: &[Vec<u8>], devid_public: &[u8]) -> Result<(), AttestError> {
    let leaf = chain
        .first()
        .ok_or_else(|| message("result", "admitted without an LDevID"))?;
    let (_, cert) = X509Certificate::from_der(leaf)
        .map_err(|e| message("result", &format!("LDevID is not a certificate: {e}")))?;
    let devid = Public::decode(devid_public)
        .map_err(|e| message("result", &format!("our DevID cannot be compared: {e}")))?;
    if devid.spki_der().as_deref() == Some(cert.public_key().raw) {
        return Ok(());
    }
    Err(message(
        "result",
        "LDevID is for another key than our DevID",
    ))
}

/// Splits DER certificates that follow each other. Between them may be the padding of an NV index that
/// is larger than its certificate; what is no certificate ends them.
fn split_certificates(mut bytes: &[u8]) -> Vec<Bytes> {
    let mut certificates = Vec::new();
    while certificates.len() < EK_CHAIN_MAX {
        let padding = bytes.iter().take_while(|&&o| o == 0 || o == 0xff).count();
        bytes = &bytes[padding..];
        let Ok((rest, _)) = X509Certificate::from_der(bytes) else {
            break;
        };
        let (certificate, _) = bytes.split_at(bytes.len() - rest.len());
        certificates.push(Bytes(certificate.to_vec()));
        bytes = rest;
    }
    certificates
}

/// 32 characters out of 64, from the operating system.
fn random_auth() -> Result<Zeroizing<String>, AttestError> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bytes = Zeroizing::new([0_u8; 32]);
    OsRng
        .try_fill_bytes(&mut bytes[..])
        .map_err(AttestError::Random)?;
    Ok(Zeroizing::new(
        bytes
            .iter()
            .map(|byte| char::from(ALPHABET[usize::from(byte & 63)]))
            .collect(),
    ))
}

fn encode<T: serde::Serialize>(
    what: &'static str,
    value: &T,
    max: usize,
) -> Result<Vec<u8>, AttestError> {
    let body = serde_json::to_vec(value).map_err(|e| message(what, &e.to_string()))?;
    if body.len() > max {
        return Err(AttestError::TooLarge {
            what,
            size: body.len(),
            max,
        });
    }
    Ok(body)
}

fn wire(attested: hw::tpm::Attested) -> Attested {
    Attested {
        attest: Bytes(attested.attest),
        sig: Bytes(attested.signature),
    }
}

fn message(message: &'static str, why: &str) -> AttestError {
    AttestError::Message {
        message,
        why: why.to_owned(),
    }
}

/// Text of the gateway for a console: printable ASCII, bounded.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_ascii_graphic() || c == ' ' {
                c
            } else {
                '?'
            }
        })
        .take(512)
        .collect()
}
