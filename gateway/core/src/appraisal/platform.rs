//! Rows 12 and 14: the board is the declared one, the disk is there once, counters do not fall.
//!
//! Serial and disks are the node's words, believed as far as its measured image is: row 11 comes
//! first.

use attest_wire::tpm::ClockInfo;
use attest_wire::v1::{Bytes, Hello};
use sha2::{Digest as _, Sha256};

use super::facts::{Binding, EkDirectory};
use super::shown;
use crate::reason::Reason;

/// Row 12.
pub(super) fn appraise_platform(
    hello: &Hello,
    binding: &Binding,
    directory: &dyn EkDirectory,
) -> Result<(), Vec<Reason>> {
    let mut reasons = Vec::new();
    if let Some(expected) = &binding.serial
        && hello.platform.serial.trim() != expected.trim()
    {
        reasons.push(Reason::new(
            "platform.serial",
            format!("serial {}", shown(expected)),
            format!("serial {}", shown(&hello.platform.serial)),
            "the machine's binding",
            "the TPM sits in another board: check the machine, then re-declare it",
        ));
    }
    for nic in &hello.nics {
        let Ok(mac) = nic.mac.parse() else { continue };
        if let Some(other) = directory.mac_owner(mac)
            && other != binding.machine
        {
            reasons.push(Reason::new(
                "platform.mac",
                format!("hardware addresses of {}", binding.machine),
                format!("{mac}, recorded for {other}"),
                "the last admission of that machine",
                "somebody uses another machine's address, or a card was moved: check both",
            ));
        }
    }
    if let Some(expected) = &binding.disk_serial {
        let count = hello
            .disks
            .iter()
            .filter(|disk| disk.serial.trim() == expected.trim())
            .count();
        if count != 1 {
            reasons.push(Reason::new(
                if count == 0 {
                    "disk.missing"
                } else {
                    "disk.ambiguous"
                },
                format!("exactly one disk with serial {}", shown(expected)),
                format!("{count} of {} disks", hello.disks.len()),
                "the machine's binding",
                "check the disk; a duplicated serial must never be written to",
            ));
        }
    }
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(reasons)
    }
}

/// Row 14. `marks`: what was extended into PCR 15 since the TPM's reset, if that is proven. Each attempt
/// leaves its mark there, so a boot that the counters say is the last one's has the last accepted
/// attempt's: a copy of the TPM's state, started beside the original, has not. Clock values are not compared: `clock` steps back after an unclean stop, and `safe` is
/// then false on an honest machine.
pub(super) fn appraise_freshness(
    clock: &ClockInfo,
    marks: Option<&[Bytes]>,
    binding: &Binding,
) -> Result<(), Reason> {
    let Some((reset, restart)) = binding.counters else {
        return Ok(());
    };
    let found = (clock.reset_count, clock.restart_count);
    let (code, next) = if found.0 < reset {
        (
            "freshness.cleared",
            "TPM2_Clear resets the counters: the owner confirms and the machine gets a new DevID",
        )
    } else if found.0 == reset && found.1 < restart {
        (
            "freshness.restart",
            "counters of one TPM never fall: look for a cloned TPM state",
        )
    } else if found == (reset, restart) {
        return appraise_mark(marks, binding);
    } else {
        return Ok(());
    };
    Err(Reason::new(
        code,
        format!("(reset, restart) at least ({reset}, {restart})"),
        format!("({}, {})", found.0, found.1),
        "the machine's last accepted quote",
        next,
    ))
}

/// What is on record of a mark: SHA-256, hex.
pub(super) fn mark_digest(mark: &[u8]) -> String {
    hex::encode(Sha256::digest(mark))
}

/// The boot of the last accepted attempt: its mark is in PCR 15. Whoever lacks it is not told it, and what
/// is on record is its digest, so that no reader of the ledger can extend it.
fn appraise_mark(marks: Option<&[Bytes]>, binding: &Binding) -> Result<(), Reason> {
    let Some(last) = &binding.boot_mark else {
        return Ok(());
    };
    let found = match marks {
        Some(marks) if marks.iter().any(|mark| mark_digest(&mark.0) == *last) => return Ok(()),
        Some(marks) => format!("{} extends without it", marks.len()),
        // Where row 10 is only reported, it does not excuse this row.
        None => "extends that the quote does not prove".to_owned(),
    };
    Err(Reason::new(
        "freshness.clone",
        "the mark of this boot's last accepted attempt among the extends of PCR 15",
        found,
        "the machine's last accepted quote",
        "two TPMs of one state run at once: find the other machine, withdraw the keys of both",
    ))
}
