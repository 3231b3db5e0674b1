//! `vestibule seal`: which boot state opens the CA keys, and the owner's word that another one may.
//!
//! The update key is never kept here: it is read, used and forgotten. One state is approved at a
//! time; the key halves stay the same, so nothing is sealed anew.

use std::path::Path;

use hw::tpm::{ApplianceDevice, SealBlob, SealTpm as _, TpmError, UpdateKey};
use serde_json::json;
use store::Store;
use zeroize::Zeroizing;

use super::{Exit, Failure, Output};
use crate::appliance::SEAL;
use crate::config::Config;

/// PCRs of the seal, in the order of its values.
const PCRS: [u8; 3] = [4, 7, 11];

/// `vestibule seal show`
pub(super) fn show(out: &Output, config: &Config) -> Result<Exit, Failure> {
    let store = Store::open(&config.appliance.state_dir)?;
    let blob = read(&store)?;
    let now = tpm(config)?.boot_state().map_err(tpm_failed)?;
    let rows: Vec<_> = PCRS
        .iter()
        .zip(now)
        .map(|(index, now)| {
            let sealed = blob.pcrs.iter().find(|pcr| pcr.index == *index);
            (
                *index,
                sealed.map_or("", |pcr| pcr.sha256.as_str()),
                hex::encode(now),
            )
        })
        .collect();
    let opens = rows.iter().all(|(_, sealed, now)| sealed == now);
    let pcrs: Vec<_> = rows
        .iter()
        .map(|(index, sealed, now)| json!({ "pcr": index, "approved": sealed, "now": now }))
        .collect();
    let value = json!({
        "mode": blob.mode.to_string(),
        "epoch": blob.epoch,
        "pcrs": pcrs,
        "this_boot_is_approved": opens,
    });
    out.print(&value, || {
        let mut text = format!("mode  {}\nepoch {}\n", blob.mode, blob.epoch);
        for (index, sealed, now) in &rows {
            text.push_str(&format!(
                "PCR {index:<2} approved {sealed}\n       now      {now}\n"
            ));
        }
        text.push_str(if opens {
            "this boot is approved\n"
        } else {
            "this boot is not approved\n"
        });
        text
    });
    Ok(if opens { Exit::Done } else { Exit::Refused })
}

/// `vestibule seal approve`: `state` is the boot state to come, or none for this very boot.
pub(super) fn approve(
    out: &Output,
    config: &Config,
    update_key: &Path,
    state: Option<[String; 3]>,
) -> Result<Exit, Failure> {
    let key = read_key(update_key)?;
    let store = Store::open(&config.appliance.state_dir)?;
    let mut blob = read(&store)?;
    let mut tpm = tpm(config)?;
    let this_boot = tpm.boot_state().map_err(tpm_failed)?;
    let values = match state {
        None => this_boot,
        Some(texts) => parse(&texts)?,
    };
    blob.approve(&key, values)
        .map_err(|error| Failure::new(Exit::Refused, &error))?;
    // What this boot can open is opened before it is kept: a wrong approval must not lock the box.
    if values == this_boot {
        tpm.unseal(&blob).map_err(tpm_failed)?;
    }
    let bytes = serde_json::to_vec(&blob).map_err(|e| Failure::new(Exit::Tpm, &e))?;
    store.put_seal_blob(SEAL, &bytes)?;
    let value = json!({ "approved": values.map(hex::encode), "this_boot": values == this_boot });
    out.print(&value, || {
        let mut text = String::from("approved\n");
        for (index, value) in PCRS.iter().zip(values) {
            text.push_str(&format!("PCR {index:<2} {}\n", hex::encode(value)));
        }
        if values != this_boot {
            text.push_str("this boot no longer opens the CA keys; the approved one will\n");
        }
        text
    });
    Ok(Exit::Done)
}

fn tpm(config: &Config) -> Result<ApplianceDevice, Failure> {
    ApplianceDevice::open(&config.tpm.tcti).map_err(tpm_failed)
}

fn tpm_failed(error: TpmError) -> Failure {
    Failure::new(Exit::Tpm, &error)
}

fn read(store: &Store) -> Result<SealBlob, Failure> {
    let bytes = store.seal_blob(SEAL)?.ok_or_else(|| {
        Failure::told(
            Exit::Refused,
            "seal.absent: expected a sealed appliance, found none here; the first vestibule serve \
             or vestibule claim makes the seal",
        )
    })?;
    serde_json::from_slice(&bytes).map_err(|error| Failure::new(Exit::Tpm, &error))
}

pub(super) fn read_key(path: &Path) -> Result<UpdateKey, Failure> {
    let text = std::fs::read_to_string(path)
        .map(Zeroizing::new)
        .map_err(|error| {
            Failure::told(
                Exit::Usage,
                format!("cannot read {}: {error}", path.display()),
            )
        })?;
    let mut bytes = Zeroizing::new([0; 32]);
    hex::decode_to_slice(text.trim(), &mut bytes[..]).map_err(|_| {
        let text = format!(
            "{}: expected 64 hex digits, as claim wrote them",
            path.display()
        );
        Failure::told(Exit::Usage, text)
    })?;
    UpdateKey::from_bytes(&bytes).map_err(|error| Failure::new(Exit::Usage, &error))
}

fn parse(texts: &[String; 3]) -> Result<[[u8; 32]; 3], Failure> {
    let mut values = [[0; 32]; 3];
    for ((value, text), index) in values.iter_mut().zip(texts).zip(PCRS) {
        hex::decode_to_slice(text, value).map_err(|_| {
            let found = text.chars().count();
            Failure::told(
                Exit::Usage,
                format!("--pcr{index}: expected 64 hex digits, found {found} characters"),
            )
        })?;
    }
    Ok(values)
}
