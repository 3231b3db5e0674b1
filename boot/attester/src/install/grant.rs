//! Whether a grant is for this machine, this TPM and this boot: every field, before anything is opened.

use std::collections::BTreeSet;
use std::path::PathBuf;

use attest_wire::v1::handover::{Grant, GrantBody};
use sha2::{Digest as _, Sha256};

use super::Refused;
use super::package::{PAYLOADS, Package};
use crate::pin::Pin;

/// What this machine knows of itself.
#[derive(Debug, Clone)]
pub struct Own {
    /// Name in its LDevID.
    pub machine: String,
    /// Names of its endorsement keys, hex.
    pub ek_names: Vec<String>,
    /// `resetCount` of its TPM.
    pub reset: u32,
    /// `restartCount` of its TPM.
    pub restart: u32,
    /// Clock of its TPM, in milliseconds.
    pub clock_ms: u64,
}

/// The grants that were used in this boot, in memory and in a file of `/run`.
#[derive(Debug, Default)]
pub struct Used {
    nonces: BTreeSet<String>,
    file: Option<PathBuf>,
}

impl Used {
    /// With what an earlier process of the same boot left.
    pub fn open(file: PathBuf) -> Self {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        Self {
            nonces: text.lines().map(str::to_owned).collect(),
            file: Some(file),
        }
    }

    fn take(&mut self, nonce: &str) -> Result<(), Refused> {
        let taken = self.nonces.insert(nonce.to_owned());
        if !taken {
            let expected = "a grant that was not used in this boot";
            return Err(Refused::new(
                "grant.replayed",
                expected,
                "its nonce was used",
            ));
        }
        if let Some(file) = &self.file {
            let all: Vec<&str> = self.nonces.iter().map(String::as_str).collect();
            std::fs::write(file, all.join("\n")).map_err(|error| {
                let expected = format!("{} can be written", file.display());
                Refused::new("grant.replayed", expected, error.to_string())
            })?;
        }
        Ok(())
    }
}

/// Checks a grant and uses it up.
///
/// # Errors
/// `grant.signature`, `grant.form`, `grant.machine`, `grant.tpm`, `grant.other_boot`, `grant.expired`,
/// `grant.replayed`.
pub fn check(pin: &Pin, grant: &Grant, own: &Own, used: &mut Used) -> Result<GrantBody, Refused> {
    pin.check_grant(grant).map_err(|error| {
        let expected = "a signature of the pinned gateway's grant key";
        Refused::new("grant.signature", expected, error.to_string())
    })?;
    let body: GrantBody = serde_json::from_slice(&grant.body.0)
        .map_err(|error| Refused::new("grant.form", "a grant of version 1", error.to_string()))?;
    if body.machine != own.machine {
        let found = format!("one for {:?}", body.machine);
        return Err(Refused::new("grant.machine", own.machine.clone(), found));
    }
    if !own.ek_names.contains(&body.ek_name) {
        let expected = "the Name of an endorsement key of this TPM";
        return Err(Refused::new("grant.tpm", expected, body.ek_name));
    }
    if (body.reset, body.restart) != (own.reset, own.restart) {
        let expected = format!("this boot, reset {} restart {}", own.reset, own.restart);
        let found = format!("reset {} restart {}", body.reset, body.restart);
        return Err(Refused::new("grant.other_boot", expected, found));
    }
    if own.clock_ms >= body.clock_max_ms {
        let expected = format!("a TPM clock before {} ms", body.clock_max_ms);
        let found = format!("{} ms", own.clock_ms);
        return Err(Refused::new("grant.expired", expected, found));
    }
    used.take(&body.nonce)?;
    Ok(body)
}

/// Every payload that is granted is there, as it was granted.
///
/// # Errors
/// `package.payload`.
pub fn check_payloads(body: &GrantBody, package: &Package) -> Result<(), Refused> {
    for payload in &body.payloads {
        let path = format!("{PAYLOADS}/{}", payload.kind);
        let entry = package.entries.iter().find(|entry| entry.path == path);
        let found = entry.map(|entry| hex::encode(Sha256::digest(&*entry.bytes)));
        if found.as_deref() != Some(payload.sha256.as_str()) {
            let expected = format!("payload {} with SHA-256 {}", payload.kind, payload.sha256);
            let found = found.unwrap_or_else(|| "none".to_owned());
            return Err(Refused::new("package.payload", expected, found));
        }
    }
    Ok(())
}
