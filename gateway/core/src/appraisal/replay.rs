//! Row 10: the event log replays to the registers, and PCR 15 to this session.
//!
//! Only a log that replayed is `Verified`; row 11 takes nothing else.

use std::collections::BTreeMap;

use attest_wire::v1::Evidence;

use super::Verified;
use super::eventlog::Log;
use super::events::BANK;
use super::quirks::Quirk;
use crate::reason::Reason;

/// The PCR of the session: its extends are sent beside the log, which ends before them.
const SESSION_PCR: u8 = 15;

/// Parses, replays, compares with every quoted PCR, and PCR 15 with this session.
pub(super) fn replayed<'e>(
    evidence: &'e Evidence,
    boot_digest: &[u8; 32],
    quoted: &BTreeMap<u8, [u8; 32]>,
    quirks: &mut Vec<Quirk>,
) -> Result<Verified<Log<'e>>, Vec<Reason>> {
    let log = parsed(&evidence.event_log.0, quirks)?;
    let mut reasons = differences(&log, quoted, "quoted");
    let extends = &evidence.pcr15_extends;
    if extends.last().map(|last| last.0.as_slice()) != Some(boot_digest.as_slice()) {
        reasons.push(reason(
            "eventlog.pcr15",
            "last extend of PCR 15 is this session's".into(),
            "another digest".into(),
        ));
    }
    let begun = values(&log).remove(&SESSION_PCR).unwrap_or_default();
    let value = extends
        .iter()
        .fold(begun, |value, extend| BANK.digest(&[&value, &extend.0]));
    let found = quoted.get(&SESSION_PCR);
    if found.map(<[u8; 32]>::as_slice) != Some(value.as_slice()) {
        reasons.push(reason(
            "eventlog.pcr15",
            format!("PCR 15 {}", found.map(hex::encode).unwrap_or_default()),
            format!("{} over the extends sent", hex::encode(value)),
        ));
    }
    match reasons.is_empty() {
        true => Ok(Verified(log)),
        false => Err(reasons),
    }
}

/// A log that can be read and has the bank that is judged.
pub(super) fn parsed<'l>(bytes: &'l [u8], quirks: &mut Vec<Quirk>) -> Result<Log<'l>, Vec<Reason>> {
    let log = Log::parse(bytes).map_err(|error| {
        vec![reason(
            error.code(),
            "a TCG event log".into(),
            error.to_string(),
        )]
    })?;
    if log.startup_locality.is_some_and(|locality| locality != 0) {
        quirks.push(Quirk::StartupLocality);
    }
    if log.padding_from.is_some() {
        quirks.push(Quirk::LogPadded);
    }
    if log.replay(BANK).is_none() {
        let banks: Vec<String> = log
            .banks
            .iter()
            .map(|(id, _)| format!("{id:#06x}"))
            .collect();
        return Err(vec![reason(
            "eventlog.bank",
            "sha256 (0x000b)".into(),
            banks.join(" "),
        )]);
    }
    Ok(log)
}

/// Every register of the bank that is judged, as the log leaves it.
pub(super) fn values(log: &Log<'_>) -> BTreeMap<u8, Vec<u8>> {
    let mut values = log.replay(BANK).unwrap_or_default();
    for pcr in 0..24 {
        values
            .entry(pcr)
            .or_insert_with(|| log.reset_value(BANK, pcr));
    }
    values
}

/// Where values and log disagree; the session's register excepted. `whose` says what the values are.
pub(super) fn differences(
    log: &Log<'_>,
    pcrs: &BTreeMap<u8, [u8; 32]>,
    whose: &str,
) -> Vec<Reason> {
    let replayed = values(log);
    pcrs.iter()
        .filter(|(pcr, _)| **pcr != SESSION_PCR)
        .filter_map(|(pcr, value)| {
            let of_log = replayed.get(pcr)?;
            (of_log != value).then(|| {
                reason(
                    "eventlog.replay",
                    format!("PCR {pcr} {} ({whose})", hex::encode(value)),
                    format!("{} (replayed)", hex::encode(of_log)),
                )
            })
        })
        .collect()
}

fn reason(code: &'static str, expected: String, found: String) -> Reason {
    Reason::new(
        code,
        expected,
        found,
        "TCG PC Client PFP 1.06 section 10",
        "boot again; if it stays, firmware and log disagree: read /sys/kernel/security/tpm0/binary_bios_measurements there",
    )
}
