//! What Secure Boot rested on in this boot: who vouched, what was revoked, which cards' drivers ran.
//!
//! An authority says that its certificate vouched for *some* image of this boot, once, whatever many it
//! vouched for; which image it was, no digest tells. So a policy can exclude authorities and demand
//! one, and never pair one with a driver (docs/POLICY.md, option ROMs).

use std::collections::BTreeSet;

use sha2::{Digest as _, Sha256};

use super::super::dbx::Dbx;
use super::super::eventlog::Log;
use super::super::events::BANK;
use super::super::shown;
use super::super::variables::Variable;
use super::{BootJudge, describe, extends};
use crate::policy::OptionRoms;

const UPDATE_DBX: &str =
    "update the machine's dbx (fwupdmgr, or the firmware's vendor) and boot again";

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
                format!(
                    "{} of {} from {}",
                    hex::encode(digest),
                    variable.voucher_kind(),
                    shown(&variable.name)
                ),
                "policy boot.authority_sha256",
                "remove the foreign key from the machine's db, or add it to the policy",
            );
        }
        digest
    }

    /// The dbx has what the policy asks for. Each one that was measured before the separator: firmware that
    /// took an update on the way measures the old and the new, and passes at its next boot.
    pub(super) fn dbx(&mut self, vouched: &Vouched<'_>) {
        let rules = self.rules;
        let (images, certificates) = (&rules.dbx_sha256, &rules.dbx_certificate_sha256);
        if rules.dbx_min_entries == 0 && images.is_empty() && certificates.is_empty() {
            return;
        }
        if vouched.dbx.is_empty() {
            self.refuse(
                "boot.dbx",
                "the dbx, measured before the separator of PCR 7",
                "none",
                "policy boot.dbx_min_entries, boot.dbx_sha256, boot.dbx_certificate_sha256",
                "the firmware has no dbx or does not measure it; update the firmware",
            );
        }
        for content in &vouched.dbx {
            let dbx = Dbx::read(content);
            self.dbx_size(&dbx, content.len());
            self.dbx_has(
                ("image digests", "policy boot.dbx_sha256", images),
                &dbx.images,
                &[(
                    &dbx.certificates,
                    "as a certificate: boot.dbx_certificate_sha256",
                )],
            );
            self.dbx_has(
                (
                    "certificates",
                    "policy boot.dbx_certificate_sha256",
                    certificates,
                ),
                &dbx.certificates,
                &[
                    (&dbx.dated, "from a date on only"),
                    (&dbx.images, "as an image: boot.dbx_sha256"),
                ],
            );
        }
    }

    fn dbx_size(&mut self, dbx: &Dbx, bytes: usize) {
        let (min, found) = (self.rules.dbx_min_entries, dbx.entries());
        if found >= min {
            return;
        }
        let unknown = match dbx.unknown() {
            0 => String::new(),
            count => format!(", and {count} of no kind that UEFI defines"),
        };
        self.refuse(
            "boot.dbx",
            format!("a dbx of {min} entries or more"),
            format!("{found} entries in {bytes} bytes{unknown}"),
            "policy boot.dbx_min_entries",
            UPDATE_DBX,
        );
    }

    /// Whether all of a list are among the entries of their kind. `others` are kinds that do not
    /// count, to say of the first one missing that it stands there as something else.
    fn dbx_has(
        &mut self,
        (what, source, listed): (&str, &'static str, &[[u8; 32]]),
        found: &BTreeSet<[u8; 32]>,
        others: &[(&BTreeSet<[u8; 32]>, &str)],
    ) {
        let mut missing = listed.iter().filter(|digest| !found.contains(*digest));
        let Some(first) = missing.next() else {
            return;
        };
        let instead = others
            .iter()
            .find(|(kind, _)| kind.contains(first))
            .map(|(_, word)| format!(" (there {word})"));
        self.refuse(
            "boot.dbx",
            format!("a dbx with all {} {what} of the policy", listed.len()),
            format!(
                "{} missing, the first {}{}",
                1 + missing.count(),
                hex::encode(first),
                instead.unwrap_or_default()
            ),
            source,
            UPDATE_DBX,
        );
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
