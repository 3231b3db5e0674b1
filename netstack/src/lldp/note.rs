//! What was left out of an LLDPDU that is served nevertheless.

use std::fmt;

use crate::Explanation;

/// A TLV after the mandatory part that was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The length points past the frame; nothing after it was read.
    Truncated {
        /// TLV type.
        kind: u8,
        /// Octets announced.
        announced: usize,
        /// Octets left.
        left: usize,
    },
    /// The contents do not fit the type.
    BadContents {
        /// TLV type.
        kind: u8,
        /// Octets it has.
        len: usize,
    },
    /// The contents of an organisational TLV do not fit its subtype; its octets are kept.
    BadOrganisation {
        /// Organisation.
        oui: [u8; 3],
        /// Subtype.
        subtype: u8,
        /// Octets of information.
        len: usize,
    },
    /// A TLV that may come once came again; the first counts.
    Repeated {
        /// TLV type.
        kind: u8,
    },
    /// No End TLV.
    NoEnd,
    /// More TLVs than are read.
    TooMany,
}

impl Note {
    /// Whether the sender broke the form of a TLV, and something it said is lost.
    pub fn is_fault(self) -> bool {
        match self {
            Self::Truncated { .. } | Self::BadContents { .. } | Self::BadOrganisation { .. } => {
                true
            }
            Self::Repeated { .. } | Self::NoEnd | Self::TooMany => false,
        }
    }

    /// Stable code.
    pub fn code(self) -> &'static str {
        match self {
            Self::Truncated { .. } => "lldp.tlv_truncated",
            Self::BadContents { .. } => "lldp.tlv_contents",
            Self::BadOrganisation { .. } => "lldp.organisation_contents",
            Self::Repeated { .. } => "lldp.tlv_repeated",
            Self::NoEnd => "lldp.no_end",
            Self::TooMany => "lldp.too_many_tlvs",
        }
    }

    /// The five parts.
    pub fn explain(self) -> Explanation {
        const SERVED: &str = "nothing: the rest of the frame counts; tell the switch's vendor";
        let (expected, source) = match self {
            Self::Truncated { .. } => {
                ("a length within the frame", "IEEE 802.1AB clause 9.2.7.7.3")
            }
            Self::BadContents { .. } => ("the form of this TLV type", "IEEE 802.1AB clause 8.5"),
            Self::BadOrganisation { oui, .. } => (
                "the form of this subtype",
                match oui {
                    super::organisation::OUI_8023 => "IEEE 802.3 clause 79",
                    super::organisation::OUI_MED => "ANSI/TIA-1057 section 10.2",
                    _ => "IEEE 802.1Q annex D",
                },
            ),
            Self::Repeated { .. } => ("this TLV once", "IEEE 802.1AB table 8-1"),
            Self::NoEnd => ("an End TLV", "IEEE 802.1AB clause 8.5.1"),
            Self::TooMany => ("at most 128 TLVs", "limit of this receiver"),
        };
        Explanation {
            code: self.code(),
            expected: expected.to_owned(),
            found: self.to_string(),
            source,
            next: SERVED,
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated {
                kind,
                announced,
                left,
            } => write!(
                f,
                "TLV type {kind} of {announced} bytes with {left} bytes left"
            ),
            Self::BadContents { kind, len } => write!(f, "TLV type {kind} of {len} bytes"),
            Self::BadOrganisation {
                oui: [a, b, c],
                subtype,
                len,
            } => write!(
                f,
                "{a:02x}-{b:02x}-{c:02x} subtype {subtype} of {len} bytes"
            ),
            Self::Repeated { kind } => write!(f, "a second TLV of type {kind}"),
            Self::NoEnd => f.write_str("the end of the frame"),
            Self::TooMany => f.write_str("more TLVs"),
        }
    }
}
