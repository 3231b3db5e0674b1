//! Version 1 of the exchange: hello, challenge, evidence, result (docs/PROTOCOL.md section 2).
//!
//! JSON bodies, bytes as base64url without padding, unknown fields refused. Hashes are taken over
//! the body as received, never over a re-encoding.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

pub mod handover;
mod limits;

pub use limits::{
    ATTEST_MAX_BYTES, CERT_MAX_BYTES, DEVICES_MAX, EK_CHAIN_MAX, EKS_MAX, EVENT_LOG_MAX_BYTES,
    LLDP_FRAME_MAX_BYTES, LLDP_MAX, Malformed, PCR15_EXTENDS_MAX, PROGRESS_MAX_BYTES,
    PUBLIC_MAX_BYTES, REPLY_MAX_BYTES, RESULT_MAX_BYTES, SEALED_ITEM_MAX_BYTES, SEALED_ITEMS_MAX,
    SEALED_TOTAL_MAX_BYTES, TEXT_MAX_BYTES, decode_challenge, decode_evidence, decode_hello,
    decode_progress, decode_result,
};

/// Largest hello body the gateway reads, in bytes: six EKs with certificates and a chain.
pub const HELLO_MAX_BYTES: usize = 64 * 1024;
/// Largest evidence body the gateway reads, in bytes: a 256 KiB event log in base64 and the rest.
pub const EVIDENCE_MAX_BYTES: usize = 512 * 1024;
/// Label of the TLS exporter (RFC 5705, RFC 8446 section 7.5); its context is the session id.
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-vestibule-attest-v1";
/// The DNS name in the SAN of the gateway's attest certificate; the attester requires it exactly.
pub const ATTEST_SERVER_NAME: &str = "attest.vestibule.internal";
/// Path of the hello request.
pub const HELLO_PATH: &str = "/v1/hello";
/// Path of the evidence request; same connection as the hello.
pub const EVIDENCE_PATH: &str = "/v1/evidence";

/// Bytes that travel as base64url without padding.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Bytes(pub Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&URL_SAFE_NO_PAD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        URL_SAFE_NO_PAD
            .decode(text.as_bytes())
            .map(Bytes)
            .map_err(|e| serde::de::Error::custom(format_args!("not base64url: {e}")))
    }
}

/// First message of a node: who its TPM says it is, and what it claims about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// Wire version, 1.
    pub version: u32,
    /// Machine architecture as `uname -m` prints it.
    pub arch: String,
    /// Every endorsement key the node could make.
    pub eks: Vec<EkOffer>,
    /// DER certificates of NV 0x01c00100..0x01c001ff, leaf issuer first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ek_chain: Vec<Bytes>,
    /// `TPMT_PUBLIC` of the SRK that SPIRE recreates.
    pub srk_pub: Bytes,
    /// `TPMT_PUBLIC` of the attestation key.
    pub ak_pub: Bytes,
    /// `TPMT_PUBLIC` of the DevID key.
    pub devid_pub: Bytes,
    /// How its authValue was made. The node's word, but bound under the quote of a measured image.
    pub devid_auth: DevIdAuth,
    /// What the TPM says of itself; unsigned, for the operator's eye.
    pub tpm: TpmInfo,
    /// SMBIOS facts; unsigned.
    pub platform: Platform,
    /// Network interfaces; unsigned.
    pub nics: Vec<Nic>,
    /// Disks; unsigned.
    pub disks: Vec<Disk>,
    /// LLDP frames heard since link-up; unauthenticated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lldp: Vec<LldpReport>,
    /// How the node believes it was booted: `pxe`, `http` or `unknown`.
    pub boot_path: String,
    /// What the running image calls itself (`/etc/vestibule/image`), a hint for the log.
    pub uki_hint: String,
    /// What this attester can take beyond an LDevID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub can: Vec<handover::Ability>,
}

/// How a DevID's authValue was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DevIdAuth {
    /// Empty: whoever can talk to the TPM can sign.
    None,
    /// 32 random characters that only the node knows.
    Secret,
}

impl DevIdAuth {
    /// Name in records and configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Secret => "secret",
        }
    }
}

impl Hello {
    /// Digest of what stays the same while a machine waits for its owner: EKs, serial, hardware
    /// addresses, disks. Node and gateway compute it alike; the owner compares the two.
    ///
    /// SHA-256 over `"vestibule/report/v1"` and, for each of the four lists in that order, sorted:
    /// u16 count, then u16 length and bytes of each item.
    pub fn report_sha256(&self) -> [u8; 32] {
        let lists: [Vec<&[u8]>; 4] = [
            self.eks.iter().map(|ek| ek.public.0.as_slice()).collect(),
            vec![self.platform.serial.as_bytes()],
            self.nics.iter().map(|nic| nic.mac.as_bytes()).collect(),
            self.disks
                .iter()
                .map(|disk| disk.serial.as_bytes())
                .collect(),
        ];
        let mut hash = Sha256::new();
        hash.update(b"vestibule/report/v1");
        for mut list in lists {
            list.sort_unstable();
            // Counts and lengths are bounded by `limits`, far below 64 Ki.
            hash.update((list.len() as u16).to_be_bytes());
            for item in list {
                hash.update((item.len() as u16).to_be_bytes());
                hash.update(item);
            }
        }
        hash.finalize().into()
    }
}

/// One endorsement key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EkOffer {
    /// `TPMT_PUBLIC`.
    #[serde(rename = "pub")]
    pub public: Bytes,
    /// DER certificate as read from NV, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert: Option<Bytes>,
}

/// TPM properties as the TPM reports them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TpmInfo {
    /// Manufacturer, four characters.
    pub vendor: String,
    /// Vendor string.
    pub model: String,
    /// Firmware version, `hex.hex`.
    pub firmware: String,
}

/// SMBIOS type 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// Manufacturer.
    pub manufacturer: String,
    /// Product name.
    pub product: String,
    /// Serial number.
    pub serial: String,
    /// System UUID.
    pub uuid: String,
}

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Kernel name.
    pub name: String,
    /// Hardware address, `aa:bb:cc:dd:ee:ff`.
    pub mac: String,
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Kernel name.
    pub name: String,
    /// Serial number as sysfs shows it.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// One LLDP frame as heard by the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LldpReport {
    /// The whole Ethernet frame.
    pub frame: Bytes,
    /// Milliseconds between reception and hello, by the node's monotonic clock.
    pub age_ms: u64,
    /// Interface that heard it.
    pub nic: String,
}

/// Second message: what the node must prove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Challenge {
    /// Session id, 16 bytes; also the context of the TLS exporter.
    pub session: Bytes,
    /// 32 random bytes.
    pub nonce: Bytes,
    /// One credential for each EK that a binding relies on.
    pub credentials: Vec<Credential>,
    /// PCRs of the SHA-256 bank that the quote must cover, ascending.
    pub pcr_selection: Vec<u8>,
}

/// One TPM2_ActivateCredential challenge. Both fields are the inside of their TPM2B.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    /// Index into `Hello::eks`.
    pub ek: u8,
    /// Inside of `TPM2B_ID_OBJECT`.
    pub blob: Bytes,
    /// Inside of `TPM2B_ENCRYPTED_SECRET`.
    pub secret: Bytes,
}

/// Third message: the proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Session id of the challenge.
    pub session: Bytes,
    /// HMAC-SHA256(secret, B("activation")) for each credential, same order.
    pub activated: Vec<Bytes>,
    /// TPM2_Certify of the DevID by the AK, qualifyingData = B("devid").
    pub devid_certify: Attested,
    /// TPM2_Quote, qualifyingData = B("quote").
    pub quote: Attested,
    /// Values of the selected PCRs, ascending, SHA-256 bank.
    pub pcr_values: Vec<PcrValue>,
    /// Everything extended into PCR 15 since reset, in order; the last is B("boot").
    pub pcr15_extends: Vec<Bytes>,
    /// The firmware's event log, as the kernel exports it.
    pub event_log: Bytes,
}

/// A signed TPMS_ATTEST.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attested {
    /// `TPMS_ATTEST`.
    pub attest: Bytes,
    /// `TPMT_SIGNATURE`.
    pub sig: Bytes,
}

/// One PCR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcrValue {
    /// PCR number.
    pub index: u8,
    /// 32 bytes.
    pub digest: Bytes,
}

/// What the gateway decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Admitted; a certificate chain follows.
    Admitted,
    /// Possession proven, an owner must approve the claim; try again.
    Pending,
    /// Not admitted.
    NotAdmitted,
}

/// Fourth message, and the body of every refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttestationResult {
    /// The decision.
    pub verdict: Verdict,
    /// Stable code; `not_admitted` until activation has passed.
    pub code: String,
    /// One line for an 80x25 console.
    pub hint: String,
    /// Finds this attempt in the gateway's ledger and log.
    pub correlation: String,
    /// Seconds to wait before the next attempt; 0 when none is needed.
    pub retry_secs: u32,
    /// The signed receipt, when admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    /// DER certificates, LDevID leaf first, when admitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devid_chain: Vec<Bytes>,
    /// Payloads for the proven TPM, to an attester that can open them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Box<handover::Sealed>>,
    /// Leave to install, to an attester that can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Box<handover::Grant>>,
}

/// A signed statement of the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// Canonical JSON of the verdict record.
    pub body: Bytes,
    /// ECDSA P-256 over `"vestibule/receipt/v1\0" || body`, DER.
    pub sig: Bytes,
    /// DER certificates of the receipt key, leaf first.
    pub chain: Vec<Bytes>,
}

/// What every signature and HMAC of a session is bound to (docs/PROTOCOL.md section 2).
#[derive(Clone)]
pub struct Binding {
    /// SHA-256 of the hello body as sent.
    pub hello_sha256: [u8; 32],
    /// SHA-256 of the challenge body as sent.
    pub challenge_sha256: [u8; 32],
    /// TLS exporter of the connection.
    pub exporter: [u8; 32],
}

impl Binding {
    /// Binds the two bodies and the TLS connection.
    pub fn new(hello_body: &[u8], challenge_body: &[u8], exporter: [u8; 32]) -> Self {
        Self {
            hello_sha256: Sha256::digest(hello_body).into(),
            challenge_sha256: Sha256::digest(challenge_body).into(),
            exporter,
        }
    }

    /// `B(label) = SHA-256(u16 len || "vestibule/<label>/v1" || hello || challenge || exporter)`.
    pub fn digest(&self, label: &str) -> [u8; 32] {
        let name = format!("vestibule/{label}/v1");
        let mut hash = Sha256::new();
        hash.update((name.len() as u16).to_be_bytes());
        hash.update(name.as_bytes());
        hash.update(self.hello_sha256);
        hash.update(self.challenge_sha256);
        hash.update(self.exporter);
        hash.finalize().into()
    }
}
