//! What the owner says of a catalogued image: name, role, version and withdrawal.
//!
//! Two hands may say it: acts (`image floor`, `image withdraw`), which are on the ledger and hold at
//! once, and the policy, which has names and roles for each class and floors with a grace. Both are
//! judged; the stricter one refuses.

use boot::catalog::Artefact;

use super::super::facts::CatalogEntry;
use super::super::x509::rfc3339;
use super::BootJudge;
use crate::policy::{Floor, role_name};
use crate::reason::Reason;

/// The next step for an image that is too old.
const CURRENT: &str = "boot the current image; clear what still serves the old one";

impl BootJudge<'_> {
    /// An image that ran is one that may run now.
    pub(super) fn current(&mut self, entry: &CatalogEntry) {
        let artefact = &entry.artefact;
        let found = titled(artefact);
        if artefact.version < entry.floor {
            self.refuse(
                "boot.floor",
                format!("{} version {} or newer", artefact.name, entry.floor),
                found.clone(),
                "the owner's floor (image floor)",
                CURRENT,
            );
        }
        if entry.withdrawn {
            self.refuse(
                "boot.withdrawn",
                format!("an image of {} that is not withdrawn", artefact.name),
                found.clone(),
                "the owner's withdrawal (image withdraw)",
                CURRENT,
            );
        }
        let named = |digest: &[u8; 32]| {
            let digest = hex::encode(digest);
            [&artefact.sha256, &artefact.pe_sha256]
                .into_iter()
                .any(|of_entry| of_entry.eq_ignore_ascii_case(&digest))
        };
        if self.rules.withdrawn_sha256.iter().any(named) {
            self.refuse(
                "boot.withdrawn",
                format!("an image of {} that is not withdrawn", artefact.name),
                found.clone(),
                "policy boot.withdrawn_sha256",
                CURRENT,
            );
        }
        let images = &self.rules.images;
        if !images.is_empty() && !images.contains(&artefact.name) {
            self.refuse(
                "boot.entry",
                format!("one of {}", images.join(", ")),
                found,
                "policy boot.images",
                "boot an image that is meant for this class, or name it in the policy",
            );
        }
        for floor in self
            .rules
            .floors
            .iter()
            .filter(|f| f.image == artefact.name)
        {
            self.floor(artefact, floor);
        }
    }

    /// The policy's floor. While its grace lasts, a version that the floor of before let pass still
    /// does. Only a clock that may be believed says so: without one nobody knows when it is over.
    fn floor(&mut self, artefact: &Artefact, floor: &Floor) {
        if artefact.version >= floor.version {
            return;
        }
        let reason = |expected: String, found: String, next: &'static str| {
            Reason::new("boot.floor", expected, found, "policy boot.floor", next)
        };
        let newer = format!("{} version {} or newer", floor.image, floor.version);
        let found = titled(artefact);
        let grace = floor.grace.filter(|grace| artefact.version >= grace.from);
        let Some(grace) = grace else {
            self.reasons.push(reason(newer, found, CURRENT));
            return;
        };
        let until = rfc3339(grace.until);
        let older = format!("{newer}; version {} until {until}", grace.from);
        match self.time.secs() {
            Some((now, false)) if now < grace.until => {
                let expected = format!("{newer} from {until} on");
                let next = "boot the current image before then";
                self.graced.push(reason(expected, found, next));
            }
            Some((now, _)) if now >= grace.until => {
                self.reasons.push(reason(older, found, CURRENT));
            }
            _ => self.reasons.push(reason(
                older,
                format!("{found}, and the appliance's clock is not known to be right"),
                "boot the current image, or give the appliance the time: grace ends by the clock",
            )),
        }
    }

    /// The role of the UKI; what starts it (iPXE) is for all roles.
    pub(super) fn role(&mut self, uki: &Artefact) {
        if !self.rules.roles.contains(&uki.role) {
            let allowed: Vec<&str> = self.rules.roles.iter().map(|r| role_name(*r)).collect();
            self.refuse(
                "boot.role",
                format!("a UKI with role {}", allowed.join(" or ")),
                format!("{}, role {}", titled(uki), role_name(uki.role)),
                "policy boot.roles; docs/PROTOCOL.md section 4",
                "boot an image of that role, or name the role for the machine's class",
            );
        }
    }
}

fn titled(artefact: &Artefact) -> String {
    format!("{} version {}", artefact.name, artefact.version)
}
