//! What follows an admission, version 1: payloads sealed to the proven TPM, the grant to install,
//! the signed progress of an installation (docs/PROTOCOL.md section 6).
//!
//! All three are signed over a label of their own, so that none can be shown as another. The body
//! that was signed travels as bytes and is hashed as received.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Bytes;

/// What the signature of [`Sealed::statement`] covers before the statement.
pub const SEALED_LABEL: &[u8] = b"vestibule/payload/v1\0";
/// What the signature of [`Grant::body`] covers before the body.
pub const GRANT_LABEL: &[u8] = b"vestibule/grant/v1\0";
/// What the signature of [`Progress::body`] covers before the body: longer than 32 bytes together, so that
/// it is no answer to a nonce of SPIRE, which the same key signs.
pub const PROGRESS_LABEL: &[u8] = b"vestibule/progress/v1\0";
/// PCRs of the SHA-256 bank whose quoted values a sealed payload needs.
pub const SEALED_PCRS: [u8; 4] = [4, 7, 11, 15];
/// Path of a progress report; any connection to the attest listener.
pub const PROGRESS_PATH: &str = "/v1/progress";
/// Path of an installer image, before its SHA-256 in hex.
pub const IMAGE_PATH: &str = "/v1/image/";

/// What an attester can take beyond an LDevID. An attester that says nothing gets what version 1 had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ability {
    /// Opens [`Sealed`].
    Payloads,
    /// Acts on a [`Grant`].
    Install,
}

/// Payloads that open on the proven TPM, in this boot and session only: each is AES-256-GCM under a
/// key derived from one secret, and that secret is an import blob for an EK of the hello with
/// `PolicyPCR` over [`SEALED_PCRS`] as quoted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sealed {
    /// JSON of a [`SealedStatement`].
    pub statement: Bytes,
    /// ECDSA P-256 over [`SEALED_LABEL`] and the statement, DER.
    pub sig: Bytes,
    /// DER certificates of the grant key, leaf first.
    pub chain: Vec<Bytes>,
    /// Index into `Hello::eks`.
    pub ek: u8,
    /// `TPMT_PUBLIC` of the wrapped secret.
    pub public: Bytes,
    /// Inside of its `TPM2B_PRIVATE`.
    pub private: Bytes,
    /// Inside of its `TPM2B_ENCRYPTED_SECRET`.
    pub secret: Bytes,
    /// The payloads.
    pub items: Vec<SealedItem>,
}

/// One payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedItem {
    /// What it is, for example `spire-package`; each kind once.
    pub kind: String,
    /// Ciphertext and tag.
    pub ciphertext: Bytes,
}

/// What the gateway says of [`Sealed`]: anybody can wrap for a public EK.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedStatement {
    /// The machine.
    pub machine: String,
    /// SHA-256 of the receipt's body, hex.
    pub receipt_sha256: String,
    /// Name of the EK, hex.
    pub ek_name: String,
    /// Name of the wrapped object, hex: it covers the policy.
    pub object_name: String,
    /// Kind and SHA-256 of each ciphertext, hex, in the order of the items.
    pub items: Vec<ItemDigest>,
}

/// Kind and digest of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ItemDigest {
    /// Kind of the payload.
    pub kind: String,
    /// SHA-256, hex.
    pub sha256: String,
}

/// Leave to write one disk of one machine in this boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// JSON of a [`GrantBody`].
    pub body: Bytes,
    /// ECDSA P-256 over [`GRANT_LABEL`] and the body, DER.
    pub sig: Bytes,
    /// DER certificates of the grant key, leaf first.
    pub chain: Vec<Bytes>,
}

/// What is granted. The installer compares every field with its own TPM and sysfs before the first
/// write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantBody {
    /// This grant, 16 bytes in hex: new for each boot.
    pub grant: String,
    /// The run it belongs to, 16 bytes in hex.
    pub run: String,
    /// The machine.
    pub machine: String,
    /// Name of the EK that the machine proved, hex.
    pub ek_name: String,
    /// `resetCount` of the quote.
    pub reset: u32,
    /// `restartCount` of the quote.
    pub restart: u32,
    /// TPM clock, in milliseconds, after which nothing may be begun under this grant.
    pub clock_max_ms: u64,
    /// Serial number of the disk.
    pub disk_serial: String,
    /// What is written there.
    pub image: GrantImage,
    /// Digest of each payload's plaintext that goes onto the disk.
    pub payloads: Vec<ItemDigest>,
    /// 32 random bytes, hex.
    pub nonce: String,
    /// An earlier boot of the run may have written everything: the disk is read before it is wiped.
    #[serde(default)]
    pub reread: bool,
}

/// The image of a grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantImage {
    /// Its name in the catalogue.
    pub name: String,
    /// Its version in the catalogue.
    pub version: u64,
    /// SHA-256 of the artefact as it is fetched, hex; [`IMAGE_PATH`] and this is where it is.
    pub sha256: String,
    /// Size of that artefact, in bytes.
    pub size_bytes: u64,
    /// `none` or `zstd`.
    pub compression: String,
    /// SHA-256 of what is written to the disk, hex.
    pub raw_sha256: String,
    /// Size of that, in bytes.
    pub raw_bytes: u64,
}

/// One report of an installer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// JSON of a [`ProgressBody`].
    pub body: Bytes,
    /// `TPMT_SIGNATURE` of the DevID over SHA-256([`PROGRESS_LABEL`] and the body).
    pub sig: Bytes,
}

/// How far an installer is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgressBody {
    /// The grant, 16 bytes in hex.
    pub grant: String,
    /// Counts from 1 within a grant; the same report twice is one report.
    pub seq: u32,
    /// What has ended.
    pub step: InstallStep,
    /// Digest that belongs to the step, hex; empty where none does.
    pub sha256: String,
    /// One line for the owner; a reason where the step is `failed`.
    pub detail: String,
}

/// The steps of an installation, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstallStep {
    /// Grant, TPM and disk agree; nothing was written.
    Checked,
    /// What was on the disk is gone.
    Wiped,
    /// The image is written.
    Written,
    /// Configuration and package are written.
    Configured,
    /// The disk was read back and is what was granted. Digest: of the image as read.
    Verified,
    /// It stopped; the detail says why.
    Failed,
}

impl InstallStep {
    /// Name in records and on the console.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Checked => "checked",
            Self::Wiped => "wiped",
            Self::Written => "written",
            Self::Configured => "configured",
            Self::Verified => "verified",
            Self::Failed => "failed",
        }
    }
}

/// Answer to a progress report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgressAnswer {
    /// Whether it is on record. If not, the installer stops.
    pub accepted: bool,
    /// Stable code; `accepted` if it is.
    pub code: String,
    /// One line for the console.
    pub hint: String,
}

/// What the DevID signs of a progress report.
pub fn progress_digest(body: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(PROGRESS_LABEL);
    hash.update(body);
    hash.finalize().into()
}
