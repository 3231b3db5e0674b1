//! Files of the commands that judge or predict at a desk: a recorded boot, a catalogue, a time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use boot::catalog::{Artefact, CATALOG_BYTES_MAX, CATALOG_FILE, Manifest, check};
use clap::Args;
use gateway_core::appraisal::TimeTrust;
use gateway_core::appraisal::x509::rfc3339;
use gateway_core::catalog::CatalogEntry;
use gateway_core::identity::UnixMillis;
use gateway_core::strict_toml::moment;

use super::inspect::read;
use super::{Exit, Failure};
use crate::config::{Config, DEFAULT_PATH};
use crate::images::verified_catalog;
use crate::inspect::eventlog::FILE_LEN_MAX;
use crate::inspect::registers_of;

/// Largest file of register values; 24 registers of several banks as text have below 8 KiB.
const REGISTERS_LEN_MAX: u64 = 64 << 10;
/// Registers of a bank.
const PCRS: u8 = 24;

/// A recorded boot.
#[derive(Debug, Clone, Args)]
pub struct RecordedArgs {
    /// Event log, as in /sys/kernel/security/tpm0/binary_bios_measurements.
    pub evidence: PathBuf,
    /// Register values read beside it: what `tpm2_pcrread sha256` prints, JSON by number, or a copy of the
    /// folder /sys/class/tpm/tpm0/pcr-sha256. Without them those stand in that the log leads to.
    #[arg(long)]
    pub pcrs: Option<PathBuf>,
    /// The time it is judged at, as 2026-12-24T00:00:00Z; default: now.
    #[arg(long)]
    pub at: Option<String>,
}

/// A recorded boot, read.
pub(super) struct Recorded {
    pub log: Vec<u8>,
    pub pcrs: Option<BTreeMap<u8, [u8; 32]>>,
    pub time: TimeTrust,
    pub at: String,
}

impl RecordedArgs {
    pub(super) fn read(&self) -> Result<Recorded, Failure> {
        let secs = match &self.at {
            Some(text) => moment(text).filter(|secs| *secs >= 0).ok_or_else(|| {
                let text = format!("--at: expected a time as 2026-12-24T00:00:00Z, found {text:?}");
                Failure::told(Exit::Usage, text)
            })?,
            None => now_secs(),
        };
        Ok(Recorded {
            log: read(&self.evidence, FILE_LEN_MAX)?,
            pcrs: self.pcrs.as_deref().map(registers).transpose()?,
            // Whoever asks says what time it is.
            time: TimeTrust::Admin(UnixMillis(secs.unsigned_abs().saturating_mul(1000))),
            at: rfc3339(secs),
        })
    }
}

fn now_secs() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

/// Values of a file, or of a folder with one file for each register.
fn registers(path: &Path) -> Result<BTreeMap<u8, [u8; 32]>, Failure> {
    if !path.is_dir() {
        return registers_of(&read(path, REGISTERS_LEN_MAX)?).ok_or_else(|| no_registers(path));
    }
    let mut values = BTreeMap::new();
    for pcr in 0..PCRS {
        let file = path.join(pcr.to_string());
        if !file.exists() {
            continue;
        }
        let text = read(&file, REGISTERS_LEN_MAX)?;
        let text = String::from_utf8_lossy(&text);
        let mut value = [0; 32];
        hex::decode_to_slice(text.trim(), &mut value).map_err(|_| no_registers(&file))?;
        values.insert(pcr, value);
    }
    match values.is_empty() {
        true => Err(no_registers(path)),
        false => Ok(values),
    }
}

fn no_registers(path: &Path) -> Failure {
    let text = format!(
        "{}: expected SHA-256 register values with their numbers: the output of `tpm2_pcrread sha256`, JSON \
         {{\"0\": \"HEX\", ..}}, or a copy of the folder /sys/class/tpm/tpm0/pcr-sha256",
        path.display()
    );
    Failure::told(Exit::Usage, text)
}

/// Which catalogue.
#[derive(Debug, Clone, Args)]
pub struct CatalogArgs {
    /// A catalog.json, or a folder that has one; its signature is not looked at. Default: the catalogue of
    /// the configuration, verified.
    #[arg(long)]
    pub catalog: Option<PathBuf>,
    /// Configuration.
    #[arg(long, default_value = DEFAULT_PATH)]
    pub config: PathBuf,
}

impl CatalogArgs {
    pub(super) fn artefacts(&self) -> Result<Vec<Artefact>, Failure> {
        match &self.catalog {
            Some(path) => manifest(path),
            None => {
                let config = Config::load(&self.config)?;
                Ok(verified_catalog(&config.boot)?.artefacts().to_vec())
            }
        }
    }

    pub(super) fn entries(&self) -> Result<Vec<CatalogEntry>, Failure> {
        let artefacts = self.artefacts()?;
        Ok(artefacts.into_iter().map(CatalogEntry::new).collect())
    }
}

/// The artefacts of a catalogue whose content is in order.
pub(super) fn manifest(path: &Path) -> Result<Vec<Artefact>, Failure> {
    let file = match path.is_dir() {
        true => path.join(CATALOG_FILE),
        false => path.to_owned(),
    };
    let bytes = read(&file, CATALOG_BYTES_MAX as u64)?;
    let refused = |why: String| Failure::told(Exit::Refused, format!("{}: {why}", file.display()));
    let manifest: Manifest =
        serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))?;
    check(&manifest).map_err(|error| refused(error.to_string()))?;
    Ok(manifest.artefacts)
}
