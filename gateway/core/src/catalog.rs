//! The boot catalogue with the owner's rules on it: floors and withdrawals.

use boot::catalog::Artefact;

pub use crate::appraisal::CatalogEntry;
use crate::record::Act;
use crate::view::ImageView;

impl CatalogEntry {
    /// An artefact without rules.
    pub fn new(artefact: Artefact) -> Self {
        Self {
            artefact,
            floor: 0,
            withdrawn: false,
        }
    }

    /// Whether a machine that booted it may be admitted.
    pub fn passes(&self) -> bool {
        !self.withdrawn && self.artefact.version >= self.floor
    }

    /// What an administrator is shown.
    pub fn view(&self) -> ImageView {
        ImageView {
            artefact: self.artefact.clone(),
            floor: self.floor,
            withdrawn: self.withdrawn,
        }
    }
}

/// Applies an owner's act; acts on machines change nothing. A floor never falls.
pub fn apply(catalog: &mut [CatalogEntry], act: &Act) {
    match act {
        Act::ImageFloor { name, floor } => {
            for entry in catalog.iter_mut().filter(|e| e.artefact.name == *name) {
                entry.floor = entry.floor.max(*floor);
            }
        }
        Act::ImageWithdraw { sha256 } => {
            for entry in catalog.iter_mut().filter(|e| e.artefact.sha256 == *sha256) {
                entry.withdrawn = true;
            }
        }
        Act::ImageAdd { .. }
        | Act::ClaimAppliance
        | Act::AdoptLedger { .. }
        | Act::Approve { .. }
        | Act::Cordon { .. }
        | Act::Uncordon { .. }
        | Act::MarkInstalled { .. }
        | Act::Withdraw { .. }
        | Act::Retire { .. }
        | Act::EkCaImport { .. }
        | Act::EkCaRemove { .. }
        | Act::SealSecret { .. } => {}
    }
}
