//! Organisational TLVs (802.1AB clause 8.6): which organisation, and what its TLV says.
//!
//! [`OrganisationTlv`] keeps the octets; [`OrganisationTlv::read`] gives them a meaning where this
//! gateway knows one. Read on demand, so a neighbour costs its octets and nothing more. Longer than
//! the standard's form is read as far as the form goes: revisions append (802.1AB clause 9.2.7.7.3).

use super::tlv::OrganisationTlv;
use super::{dot1, dot3, med};

/// IEEE 802.1.
pub const OUI_8021: [u8; 3] = [0x00, 0x80, 0xc2];
/// IEEE 802.3.
pub const OUI_8023: [u8; 3] = [0x00, 0x12, 0x0f];
/// TIA TR-41, LLDP-MED.
pub const OUI_MED: [u8; 3] = [0x00, 0x12, 0xbb];

/// An organisational TLV with a known meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Organisational {
    /// IEEE 802.1 (802.1Q annex D).
    Dot1(dot1::Tlv),
    /// IEEE 802.3 (802.3 clause 79).
    Dot3(dot3::Tlv),
    /// LLDP-MED (ANSI/TIA-1057).
    Med(med::Tlv),
}

/// The contents do not have the form of their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("contents that are not of this type")]
pub struct BadContents;

impl OrganisationTlv {
    /// What it says; `None` for organisations and subtypes that are not known here.
    ///
    /// # Errors
    /// [`BadContents`] when it is of a known type and not of its form.
    pub fn read(&self) -> Result<Option<Organisational>, BadContents> {
        let value = self.value.as_slice();
        Ok(match self.oui {
            OUI_8021 => dot1::read(self.subtype, value)?.map(Organisational::Dot1),
            OUI_8023 => dot3::read(self.subtype, value)?.map(Organisational::Dot3),
            OUI_MED => med::read(self.subtype, value)?.map(Organisational::Med),
            _ => None,
        })
    }
}

/// Link aggregation, the same form in 802.1 (subtype 7) and, deprecated, in 802.3 (subtype 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAggregation {
    /// The port can be aggregated.
    pub capable: bool,
    /// It is.
    pub enabled: bool,
    /// ifIndex of the aggregate; 0 when it is in none.
    pub port_id: u32,
}

impl LinkAggregation {
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let [status, a, b, c, d, ..] = *value else {
            return None;
        };
        Some(Self {
            capable: bit(status, 0),
            enabled: bit(status, 1),
            port_id: u32::from_be_bytes([a, b, c, d]),
        })
    }
}

/// Bit `n`, the least significant being 0.
pub(super) fn bit(octet: u8, n: u32) -> bool {
    octet >> n & 1 == 1
}

/// Big-endian number at `at`.
pub(super) fn u16_at(value: &[u8], at: usize) -> Option<u16> {
    value
        .get(at..)?
        .first_chunk::<2>()
        .copied()
        .map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests;
