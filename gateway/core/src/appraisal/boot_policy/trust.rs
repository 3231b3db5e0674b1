//! What Secure Boot rested on in this boot: who vouched, what was revoked, which cards' drivers ran.
//!
//! An authority says that its certificate vouched for *some* image of this boot, once, whatever many it
//! vouched for; which image it was, no digest tells. So a policy can exclude authorities and demand
//! one, and never pair one with a driver (docs/POLICY.md, option ROMs).

use std::collections::BTreeSet;

use sha2::{Digest as _, Sha256};

use super::super::eventlog::Log;
use super::super::events::BANK;
use super::super::shown;
use super::super::variables::{Signature, Variable};
use super::{BootJudge, describe, extends};
use crate::policy::OptionRoms;

/// What PCR 7 says of keys.
#[derive(Default)]
pub(super) struct Vouched<'l> {
    /// SHA-256 of what vouched: a certificate, or the digest of an image that db names.
    pub authorities: BTreeSet<[u8; 32]>,
    /// Contents of each dbx that was measured before the separator.
    pub dbx: Vec<&'l [u8]>,
}

impl BootJudge<'_> {
    /// The certificate that vouched for an image: one that the policy names, if it names some.
    pub(super) fn authority(&mut self, variable: &Variable<'_>) -> [u8; 32] {
        let digest: [u8; 32] = Sha256::digest(variable.voucher()).into();
        let allowed = &self.rules.authority_sha256;
        let for_drivers = self.rules.option_roms == OptionRoms::Signed
            && self.rules.driver_authority_sha256.contains(&digest);
        if !allowed.is_empty() && !allowed.contains(&digest) && !for_drivers {
            self.refuse(
                "boot.authority",
                "a certificate of policy boot.authority_sha256",
                format!("{} from {}", hex::encode(digest), shown(&variable.name)),
                "policy boot.authority_sha256",
                "remove the foreign key from the machine's db, or add it to the policy",
            );
        }
        digest
    }

    /// The dbx has what the policy asks for. Each one that was measured before the separator: firmware that
    /// took an update on the way measures the old and the new, and passes at its next boot.
    pub(super) fn dbx(&mut self, vouched: &Vouched<'_>) {
        const NEXT: &str =
            "update the machine's dbx (fwupdmgr, or the firmware's vendor) and boot again";
        let (min, listed) = (self.rules.dbx_min_entries, &self.rules.dbx_sha256);
        if min == 0 && listed.is_empty() {
            return;
        }
        if vouched.dbx.is_empty() {
            self.refuse(
                "boot.dbx",
                "the dbx, measured before the separator of PCR 7",
                "none",
                "policy boot.dbx_min_entries, boot.dbx_sha256",
                "the firmware has no dbx or does not measure it; update the firmware",
            );
        }
        for content in &vouched.dbx {
            let digests = Signature::digests(content);
            if digests.len() < min {
                self.refuse(
                    "boot.dbx",
                    format!("a dbx of {min} entries or more"),
                    format!("{} entries in {} bytes", digests.len(), content.len()),
                    "policy boot.dbx_min_entries",
                    NEXT,
                );
            }
            let missing: Vec<&[u8; 32]> = listed
                .iter()
                .filter(|digest| !digests.contains(digest.as_slice()))
                .collect();
            if let Some(first) = missing.first() {
                self.refuse(
                    "boot.dbx",
                    format!("a dbx with all {} entries of the policy", listed.len()),
                    format!(
                        "{} missing, the first {}",
                        missing.len(),
                        hex::encode(first)
                    ),
                    "policy boot.dbx_sha256",
                    NEXT,
                );
            }
        }
    }

    /// PCR 2: drivers from add-in cards and from `Driver####` options.
    pub(super) fn option_roms(&mut self, log: &Log<'_>, vouched: &Vouched<'_>) {
        let rules = self.rules;
        if rules.option_roms == OptionRoms::Any {
            return;
        }
        let vouched_for = rules.option_roms == OptionRoms::Signed
            && rules
                .driver_authority_sha256
                .iter()
                .any(|digest| vouched.authorities.contains(digest));
        for event in extends(log, 2) {
            let known = event
                .digest(BANK)
                .is_some_and(|digest| rules.option_rom_sha256.iter().any(|l| l == digest));
            if known || vouched_for || self.markers.of(event).is_some() {
                continue;
            }
            match rules.option_roms {
                OptionRoms::Signed => self.refuse(
                    "boot.option_rom",
                    "a driver that is listed, or a certificate of boot.driver_authority_sha256 in PCR 7",
                    format!("{}, and no such certificate vouched", describe(event)),
                    "policy boot.option_roms = \"signed\"",
                    "the firmware ran it without asking db: switch on its check of option ROMs, or list the driver",
                ),
                OptionRoms::Any | OptionRoms::Listed => self.refuse(
                    "boot.option_rom",
                    "a driver of policy boot.option_rom_sha256",
                    describe(event),
                    "policy boot.option_roms = \"listed\"",
                    "list the card's driver digest, or disable its option ROM",
                ),
            }
        }
    }
}
