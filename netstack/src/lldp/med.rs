//! LLDP-MED (ANSI/TIA-1057 section 10.2): what an endpoint is told and says of itself.

use super::organisation::{BadContents, bit};
use super::tlv::text;

/// Longest inventory string (TIA-1057 section 10.2.6).
const INVENTORY_LEN_MAX: usize = 32;
/// Shortest and longest ELIN (section 10.2.4.3.3).
const ELIN_LEN: std::ops::RangeInclusive<usize> = 10..=25;

/// One TLV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tlv {
    /// 1: LLDP-MED Capabilities.
    Capabilities {
        /// Bits: 0 capabilities, 1 network policy, 2 location, 3 power as PSE, 4 power as PD,
        /// 5 inventory.
        capabilities: u16,
        /// 1 to 3 endpoint class, 4 network connectivity device.
        class: u8,
    },
    /// 2: Network Policy.
    NetworkPolicy {
        /// Application: 1 voice, 2 voice signalling ...
        application: u8,
        /// The policy is not known.
        unknown: bool,
        /// Frames are tagged.
        tagged: bool,
        /// VLAN id; 0 for priority tags.
        vlan: u16,
        /// Layer 2 priority, 3 bits.
        l2_priority: u8,
        /// DSCP, 6 bits.
        dscp: u8,
    },
    /// 3: Location Identification.
    Location(Location),
    /// 4: Extended Power Via MDI.
    ExtendedPower {
        /// 0 PSE, 1 PD.
        kind: u8,
        /// Power source, 2 bits.
        source: u8,
        /// 0 unknown, 1 critical, 2 high, 3 low.
        priority: u8,
        /// Power in 0.1 W.
        power_dw: u16,
    },
    /// 5 to 11: inventory.
    Inventory(Inventory, String),
}

/// Which inventory string, by subtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inventory {
    /// 5.
    HardwareRevision,
    /// 6.
    FirmwareRevision,
    /// 7.
    SoftwareRevision,
    /// 8.
    SerialNumber,
    /// 9.
    ManufacturerName,
    /// 10.
    ModelName,
    /// 11.
    AssetId,
}

/// Where the port is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// 1: coordinates (RFC 3825).
    Coordinates(Coordinates),
    /// 2: civic address (RFC 4776).
    Civic {
        /// Whose: 0 the server's, 1 the network element's, 2 the client's.
        what: u8,
        /// ISO 3166 country code.
        country: String,
        /// CAtype and its text, in order.
        elements: Vec<(u8, String)>,
    },
    /// 3: emergency number.
    Elin(String),
    /// A format the standard does not name.
    Other {
        /// Format.
        format: u8,
        /// Octets.
        data: Vec<u8>,
    },
}

/// Fixed-point coordinates; a resolution says how many bits of the value count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coordinates {
    /// Bits of the latitude.
    pub latitude_resolution: u8,
    /// In 1/2^25 degrees, north positive.
    pub latitude: i64,
    /// Bits of the longitude.
    pub longitude_resolution: u8,
    /// In 1/2^25 degrees, east positive.
    pub longitude: i64,
    /// 1 metres, 2 floors.
    pub altitude_type: u8,
    /// Bits of the altitude.
    pub altitude_resolution: u8,
    /// In 1/2^8 of the unit.
    pub altitude: i64,
    /// 1 WGS 84, 2 and 3 NAD 83.
    pub datum: u8,
}

impl Coordinates {
    fn read(value: &[u8]) -> Option<Self> {
        let all = u128::from_be_bytes(*value.first_chunk::<16>()?);
        // Bit fields from the top; at most 34 bits each.
        let field = |below: u32, bits: u32| (all >> below & ((1 << bits) - 1)) as i64;
        let signed = |below: u32, bits: u32| {
            let shift = 64 - bits;
            field(below, bits) << shift >> shift
        };
        let small = |below: u32, bits: u32| field(below, bits) as u8;
        Some(Self {
            latitude_resolution: small(122, 6),
            latitude: signed(88, 34),
            longitude_resolution: small(82, 6),
            longitude: signed(48, 34),
            altitude_type: small(44, 4),
            altitude_resolution: small(38, 6),
            altitude: signed(8, 30),
            datum: small(0, 8),
        })
    }
}

fn civic(value: &[u8]) -> Option<Location> {
    let (&len, rest) = value.split_first()?;
    // What follows the announced length is padding: switches fill the TLV up.
    let body = rest.get(..usize::from(len))?;
    let (&[what, a, b], mut rest) = body.split_first_chunk::<3>()?;
    let mut elements = Vec::new();
    while let Some((&[kind, len], tail)) = rest.split_first_chunk::<2>() {
        let (value, tail) = tail.split_at_checked(usize::from(len))?;
        elements.push((kind, text(value)));
        rest = tail;
    }
    rest.is_empty().then(|| Location::Civic {
        what,
        country: text(&[a, b]),
        elements,
    })
}

fn location(value: &[u8]) -> Option<Location> {
    let (&format, data) = value.split_first()?;
    match format {
        1 => Coordinates::read(data).map(Location::Coordinates),
        2 => civic(data),
        3 => ELIN_LEN
            .contains(&data.len())
            .then(|| Location::Elin(text(data))),
        _ => Some(Location::Other {
            format,
            data: data.to_vec(),
        }),
    }
}

fn inventory(subtype: u8) -> Option<Inventory> {
    Some(match subtype {
        5 => Inventory::HardwareRevision,
        6 => Inventory::FirmwareRevision,
        7 => Inventory::SoftwareRevision,
        8 => Inventory::SerialNumber,
        9 => Inventory::ManufacturerName,
        10 => Inventory::ModelName,
        11 => Inventory::AssetId,
        _ => return None,
    })
}

/// Reads one TLV of LLDP-MED; `None` for a subtype that is not known here.
pub(super) fn read(subtype: u8, value: &[u8]) -> Result<Option<Tlv>, BadContents> {
    let tlv = match (subtype, value) {
        (1, &[a, b, class, ..]) => Some(Tlv::Capabilities {
            capabilities: u16::from_be_bytes([a, b]),
            class,
        }),
        (2, &[application, a, b, c, ..]) => {
            // U, T, reserved, VLAN id (12), priority (3), DSCP (6).
            let all = u32::from_be_bytes([0, a, b, c]);
            Some(Tlv::NetworkPolicy {
                application,
                unknown: bit(a, 7),
                tagged: bit(a, 6),
                vlan: (all >> 9 & 0x0fff) as u16,
                l2_priority: (all >> 6 & 0x07) as u8,
                dscp: c & 0x3f,
            })
        }
        (3, value) => location(value).map(Tlv::Location),
        (4, &[first, a, b, ..]) => Some(Tlv::ExtendedPower {
            kind: first >> 6,
            source: first >> 4 & 0x03,
            priority: first & 0x0f,
            power_dw: u16::from_be_bytes([a, b]),
        }),
        (5..=11, value) => inventory(subtype)
            .filter(|_| value.len() <= INVENTORY_LEN_MAX)
            .map(|which| Tlv::Inventory(which, text(value))),
        (1..=4, _) => None,
        _ => return Ok(None),
    };
    tlv.map(Some).ok_or(BadContents)
}
