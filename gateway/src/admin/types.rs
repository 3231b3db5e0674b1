//! Bodies of the admin API and their conversions. Unknown fields are refused; docs/admin-api.md
//! shows one example of each.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gateway_core::appraisal::ek_record::decode_der;
use gateway_core::identity::MachineId;
use gateway_core::reason::Reason;
use gateway_core::view::{DiskView, ImageView, LedgerView, MachineView, TimelineEntry};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::handle::{Command, EkCaImport, Install, SecretRequest};

/// Longest text of an operator, in bytes.
const TEXT_MAX_BYTES: usize = 256;

/// How the report digest may have been compared.
const COMPARED: [&str; 3] = ["console", "exported-report", "none"];

/// `POST /v1/claims/{machine}/approve`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApproveRequest {
    /// Digest of the report that the owner has seen (`report_sha256` of the claim), hex.
    pub report_sha256: String,
    /// How the report digest was compared: `console`, `exported-report` or `none`.
    pub compared: String,
    /// Class, which selects the policy; the policy's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Serial of the one disk that may be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_serial: Option<String>,
    /// Switch port the machine is expected at, `chassis/port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

impl ApproveRequest {
    /// The command for one claim.
    ///
    /// # Errors
    /// A field outside its range.
    pub fn into_command(self, machine: MachineId) -> Result<Command, Reason> {
        if !COMPARED.contains(&self.compared.as_str()) {
            return Err(field("compared", COMPARED.join(" or "), &self.compared));
        }
        for (name, value) in [
            ("class", &self.class),
            ("disk_serial", &self.disk_serial),
            ("port", &self.port),
        ] {
            if let Some(value) = value {
                check_text(name, value)?;
            }
        }
        Ok(Command::Approve {
            machine,
            report_sha256: self.report_sha256,
            class: self.class,
            disk_serial: self.disk_serial,
            port: self.port,
            compared: self.compared,
        })
    }
}

/// `POST /v1/machines/{id}/withdraw` and `POST /v1/ek-ca/{sha256}/remove`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WithdrawRequest {
    /// Why, in the operator's words; it stays in the ledger.
    pub why: String,
}

impl WithdrawRequest {
    /// The command for one machine.
    ///
    /// # Errors
    /// No reason, or one that is too long.
    pub fn into_command(self, machine: MachineId) -> Result<Command, Reason> {
        check_text("why", &self.why)?;
        Ok(Command::Withdraw(machine, self.why))
    }
}

/// `POST /v1/machines/{id}/install`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstallRequest {
    /// Name of the disk image.
    pub image: String,
    /// Its version; the newest that passes its floor when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Serial of the disk; the declared one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_serial: Option<String>,
    /// Also where the machine is installed already: what is on its disk is lost.
    #[serde(default)]
    pub again: bool,
}

impl InstallRequest {
    /// The command for one machine.
    ///
    /// # Errors
    /// A field outside its range.
    pub fn into_command(self, machine: MachineId) -> Result<Command, Reason> {
        check_text("image", &self.image)?;
        if let Some(serial) = &self.disk_serial {
            check_text("disk_serial", serial)?;
        }
        let begin = Install::Begin {
            image: self.image,
            version: self.version,
            disk_serial: self.disk_serial,
            again: self.again,
        };
        Ok(Command::Install(machine, begin))
    }
}

/// `POST /v1/machines/{id}/talos-code`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TalosCodeRequest {
    /// How long the code is good, in seconds; at most a day.
    pub window_secs: u64,
}

/// Answer to it. The code is a secret: it is never printed with `{:?}`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TalosCode {
    /// For META key 0x0b of that machine, and nowhere else.
    pub code: String,
}

impl std::fmt::Debug for TalosCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TalosCode(..)")
    }
}

/// `POST /v1/ek-ca/import`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EkCaImportRequest {
    /// Where the owner has them from; it stays in the ledger.
    pub source: String,
    /// One DER certificate each, in base64.
    pub certificates: Vec<String>,
}

impl EkCaImportRequest {
    /// What the core is asked.
    ///
    /// # Errors
    /// A field that is not what it should be.
    pub fn into_import(self) -> Result<EkCaImport, Reason> {
        check_text("source", &self.source)?;
        let certificates = self.certificates.iter().map(|text| {
            decode_der(text).ok_or_else(|| {
                let expected = "DER in base64".to_owned();
                field("certificates", expected, text)
            })
        });
        Ok(EkCaImport {
            certificates: certificates.collect::<Result<_, _>>()?,
            source: self.source,
        })
    }
}

/// `POST /v1/machines/{id}/seal`
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealRequest {
    /// What the owner calls the secret; it stays in the ledger.
    pub kind: String,
    /// The secret, in base64: 1 to 128 bytes.
    pub secret: String,
    /// Whether it is bound to PCR 4, 7 and 11 of the machine's last admission.
    #[serde(default)]
    pub pcr: bool,
}

impl std::fmt::Debug for SealRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealRequest")
            .field("kind", &self.kind)
            .field("pcr", &self.pcr)
            .finish_non_exhaustive()
    }
}

impl SealRequest {
    /// What the core is asked.
    ///
    /// # Errors
    /// A secret that is not base64.
    pub fn into_request(self, machine: MachineId) -> Result<SecretRequest, Reason> {
        let text = Zeroizing::new(self.secret);
        let secret = STANDARD.decode(text.as_bytes()).map_err(|_| {
            // What was sent is not told back.
            field("secret", "base64".to_owned(), "something else")
        })?;
        Ok(SecretRequest {
            machine,
            kind: self.kind,
            secret: Zeroizing::new(secret),
            pcrs: self.pcr,
        })
    }
}

/// Answer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedSecret {
    /// The three blobs in one line.
    pub bundle: String,
}

/// `POST /v1/images/{name}/floor`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FloorRequest {
    /// Lowest version that passes from now on.
    pub floor: u64,
}

/// Body of the acts that need no more than their path: `{}` or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoFields {}

/// `GET /v1/machines` and `GET /v1/claims`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineList {
    /// The machines.
    pub machines: Vec<MachineView>,
}

/// `GET /v1/machines/{id}/timeline`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Oldest first.
    pub timeline: Vec<TimelineEntry>,
}

/// `GET /v1/ledger?from=&max=`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerPage {
    /// At most `max` entries.
    pub entries: Vec<LedgerView>,
    /// Sequence to ask for next; the same again until there is more.
    pub next: u64,
}

/// `GET /v1/images`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageList {
    /// The catalogue.
    pub images: Vec<ImageView>,
    /// Disk images for the installer.
    #[serde(default)]
    pub disks: Vec<DiskView>,
}

/// Answer to an act that was done and is in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Always true; a refusal is a `Reason` with its own status.
    pub done: bool,
}

fn check_text(name: &str, value: &str) -> Result<(), Reason> {
    let usable = !value.trim().is_empty()
        && value.len() <= TEXT_MAX_BYTES
        && !value.chars().any(char::is_control);
    if usable {
        Ok(())
    } else {
        let expected = format!("1 to {TEXT_MAX_BYTES} bytes without control characters");
        Err(field(name, expected, value))
    }
}

fn field(name: &str, expected: String, found: &str) -> Reason {
    Reason::new(
        "malformed.field",
        format!("{name}: {expected}"),
        format!("{:?}", crate::telemetry::redact(found)),
        "docs/admin-api.md",
        "correct the request",
    )
}
