//! TPM 2.0 behind two traits: what a node does with its TPM, and what the appliance does with its
//! own. tss-esapi stays inside this folder.

mod counter;
mod device;
mod import;
mod node;
mod policy;
mod seal;
mod template;

pub use counter::SealedCounter;
pub use device::silence_tss_log;
pub use node::NodeDevice;
pub use seal::{ApplianceDevice, SealBlob, SealMode, SealPlan, SealTpm, SealedPcr, UpdateKey};

use zeroize::Zeroizing;

/// What went wrong with the TPM.
#[derive(Debug, thiserror::Error)]
pub enum TpmError {
    /// No device, or it does not answer.
    #[error("no TPM at {tcti}")]
    Absent {
        /// The TCTI that was tried.
        tcti: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A command failed.
    #[error("TPM command {command} failed with response code {code:#06x}")]
    Command {
        /// Name as in TPM 2.0 Part 3.
        command: &'static str,
        /// Response code, 0 when the stack and not the TPM refused.
        code: u32,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The TPM (or something between it and us) answered with another object than pinned.
    #[error("{what}: expected Name {expected}, found {found}")]
    ForeignObject {
        /// Which object.
        what: &'static str,
        /// Pinned Name, hex.
        expected: String,
        /// Name found, hex.
        found: String,
    },
    /// The sealed data does not open in this boot state.
    #[error("sealed {what} does not open: {why}")]
    SealBroken {
        /// What was sealed.
        what: &'static str,
        /// What changed and what to do.
        why: String,
    },
    /// The TPM is in dictionary-attack lockout.
    #[error("TPM is in lockout")]
    Lockout,
    /// Data from the TPM could not be decoded.
    #[error("{what} from the TPM is malformed: {why}")]
    Malformed {
        /// What was read.
        what: &'static str,
        /// Why.
        why: String,
    },
}

/// One endorsement key that the TPM can make.
#[derive(Debug, Clone)]
pub struct EndorsementKey {
    /// `TPMT_PUBLIC`.
    pub public: Vec<u8>,
    /// Certificate bytes exactly as NV holds them, if there is an index.
    pub cert_nv: Option<Vec<u8>>,
}

/// Key type of the DevID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevIdKind {
    /// RSA-2048, RSASSA/SHA-256, under SPIRE's RSA SRK.
    Rsa2048,
    /// ECC P-256, ECDSA/SHA-256, under SPIRE's ECC SRK.
    EccP256,
}

/// A DevID key and what is needed to load it again: the blobs as SPIRE's agent wants them, without
/// the TPM2B size prefix.
#[derive(Clone)]
pub struct DevId {
    /// `TPMT_PUBLIC` of the SRK it was made under.
    pub srk_public: Vec<u8>,
    /// `TPMT_PUBLIC`.
    pub public: Vec<u8>,
    /// Inside of `TPM2B_PRIVATE`.
    pub private: Vec<u8>,
    /// authValue, 32 characters, or none.
    pub auth: Option<Zeroizing<String>>,
}

/// A signed `TPMS_ATTEST`.
#[derive(Debug, Clone)]
pub struct Attested {
    /// `TPMS_ATTEST`.
    pub attest: Vec<u8>,
    /// `TPMT_SIGNATURE`.
    pub signature: Vec<u8>,
}

/// Fixed properties, as the TPM reports them.
#[derive(Debug, Clone)]
pub struct TpmProperties {
    /// Four characters.
    pub manufacturer: String,
    /// Vendor string.
    pub model: String,
    /// `FirmwareVersion1.FirmwareVersion2`, hex.
    pub firmware: String,
}

/// What the attester does with the node's TPM. One AK and one DevID per value; blocking.
pub trait NodeTpm: Send {
    /// Manufacturer, model, firmware.
    fn properties(&mut self) -> Result<TpmProperties, TpmError>;
    /// Every EK with its NV certificate; RSA-2048 (L) first when present.
    fn endorsement_keys(&mut self) -> Result<Vec<EndorsementKey>, TpmError>;
    /// NV 0x01c00100..0x01c001ff, concatenated.
    fn ek_chain(&mut self) -> Result<Vec<u8>, TpmError>;
    /// Makes the AK (ECC P-256 primary in the endorsement hierarchy, random `unique`) and keeps
    /// it; returns its `TPMT_PUBLIC`.
    fn create_ak(&mut self, unique: [u8; 64]) -> Result<Vec<u8>, TpmError>;
    /// Makes a DevID under SPIRE's SRK template and keeps it for `certify_devid`.
    fn create_devid(
        &mut self,
        kind: DevIdKind,
        auth: Option<Zeroizing<String>>,
    ) -> Result<DevId, TpmError>;
    /// `TPM2_ActivateCredential` with the EK whose `TPMT_PUBLIC` is given.
    fn activate(
        &mut self,
        ek_public: &[u8],
        blob: &[u8],
        secret: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, TpmError>;
    /// Opens a secret wrapped for one of this TPM's EKs, under `PolicyPCR` over the present values of
    /// these PCRs: `TPMT_PUBLIC`, then the insides of `TPM2B_PRIVATE` and `TPM2B_ENCRYPTED_SECRET`.
    fn unseal_import(
        &mut self,
        ek_public: &[u8],
        public: &[u8],
        private: &[u8],
        secret: &[u8],
        pcrs: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, TpmError>;
    /// `TPM2_Certify` of the DevID by the AK.
    fn certify_devid(&mut self, qualifying: &[u8; 32]) -> Result<Attested, TpmError>;
    /// `TPM2_Sign` of a SHA-256 digest by the DevID; a `TPMT_SIGNATURE`.
    fn sign_devid(&mut self, digest: &[u8; 32]) -> Result<Vec<u8>, TpmError>;
    /// `TPM2_Quote` by the AK, SHA-256 bank.
    fn quote(&mut self, qualifying: &[u8; 32], pcrs: &[u8]) -> Result<Attested, TpmError>;
    /// Values of the SHA-256 bank, in the order asked.
    fn pcr_read(&mut self, pcrs: &[u8]) -> Result<Vec<[u8; 32]>, TpmError>;
    /// `TPM2_PCR_Extend`, SHA-256 bank.
    fn pcr_extend(&mut self, pcr: u8, digest: &[u8; 32]) -> Result<(), TpmError>;
}
