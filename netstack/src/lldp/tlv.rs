//! LLDP frames: Ethernet and VLAN tags by etherparse, TLVs here (IEEE 802.1AB-2016 clause 8).
//!
//! The first three TLVs must be right or the frame is refused. After them a bad TLV costs itself
//! and leaves a note: switches send odd things there, and the port is known already.

use std::net::IpAddr;

use etherparse::{EtherType, Ethernet2Slice, SingleVlanSlice};

use super::organisation::OUI_8021;
use super::{ETHERTYPE, Id, IdKind, NEAREST_BRIDGE, Note};
use crate::{Explanation, MacAddr};

/// Longest frame read; LLDP never needs more than one Ethernet frame, with room for tags.
const FRAME_LEN_MAX: usize = 1600;
/// Most TLVs read of one frame.
const TLVS_MAX: usize = 128;
/// Most VLAN tags passed over.
const TAGS_MAX: usize = 2;
/// A TLV's length field has nine bits.
const TLV_LEN_MAX: usize = 511;
/// Longest LLDPDU sent: what an untagged 802.3 frame carries.
const LLDPDU_LEN_MAX: usize = 1500;
/// 802.1AB limits its own texts to this.
const TEXT_LEN_MAX: usize = 255;

mod kind {
    pub const END: u8 = 0;
    pub const CHASSIS_ID: u8 = 1;
    pub const PORT_ID: u8 = 2;
    pub const TTL: u8 = 3;
    pub const PORT_DESCRIPTION: u8 = 4;
    pub const SYSTEM_NAME: u8 = 5;
    pub const SYSTEM_DESCRIPTION: u8 = 6;
    pub const CAPABILITIES: u8 = 7;
    pub const MANAGEMENT_ADDRESS: u8 = 8;
    pub const ORGANISATION: u8 = 127;
}

/// A received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Ethernet source.
    pub source: MacAddr,
    /// Ethernet destination.
    pub destination: MacAddr,
    /// VLAN of the outermost tag. A tagged frame did not come from the nearest bridge as the
    /// standard wants it; some switches do it nevertheless.
    pub vlan: Option<u16>,
    /// Its contents.
    pub lldpdu: Lldpdu,
}

/// One LLDPDU. Untrusted text throughout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lldpdu {
    /// Chassis ID.
    pub chassis: Id,
    /// Port ID.
    pub port: Id,
    /// Time to live in seconds; 0 is the sender's good-bye.
    pub ttl_secs: u16,
    /// Port description.
    pub port_description: Option<String>,
    /// System name.
    pub system_name: Option<String>,
    /// System description.
    pub system_description: Option<String>,
    /// System capabilities.
    pub capabilities: Option<Capabilities>,
    /// Management addresses; several are legal.
    pub management: Vec<ManagementAddress>,
    /// 802.1 port VLAN id (annex D.2.1); 0 when the port has none.
    pub pvid: Option<u16>,
    /// 802.1 VLAN names (annex D.2.3).
    pub vlan_names: Vec<(u16, String)>,
    /// The other organisational TLVs, as they came; [`OrganisationTlv::read`] says what they mean.
    pub organisation: Vec<OrganisationTlv>,
    /// TLVs of types 9 to 126, as they came.
    pub reserved: Vec<(u8, Vec<u8>)>,
    /// What could not be read after the mandatory part.
    pub notes: Vec<Note>,
}

/// System capabilities (table 8-4), one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// What the system can be.
    pub supported: u16,
    /// What it is.
    pub enabled: u16,
}

impl Capabilities {
    /// MAC bridge.
    pub const BRIDGE: u16 = 1 << 2;
    /// Router.
    pub const ROUTER: u16 = 1 << 4;
}

/// One management address (clause 8.5.9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagementAddress {
    /// IANA address family: 1 IPv4, 2 IPv6, 6 hardware address.
    pub family: u8,
    /// Address octets.
    pub addr: Vec<u8>,
    /// Interface numbering: 1 unknown, 2 ifIndex, 3 system port.
    pub numbering: u8,
    /// Interface number.
    pub interface: u32,
    /// Object identifier, opaque: some switches put text here.
    pub oid: Vec<u8>,
}

impl ManagementAddress {
    /// The IP address, if it is one.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.family {
            1 => <[u8; 4]>::try_from(self.addr.as_slice())
                .ok()
                .map(IpAddr::from),
            2 => <[u8; 16]>::try_from(self.addr.as_slice())
                .ok()
                .map(IpAddr::from),
            _ => None,
        }
    }
}

/// An organisational TLV (clause 8.6). One without information is legal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrganisationTlv {
    /// Organisationally unique identifier.
    pub oui: [u8; 3],
    /// Subtype.
    pub subtype: u8,
    /// Information.
    pub value: Vec<u8>,
}

/// Why a frame is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No Ethernet header, or a cut VLAN tag.
    #[error("frame of {len} bytes is too short")]
    TooShort {
        /// Octets.
        len: usize,
    },
    /// Over the bound.
    #[error("frame of {len} bytes")]
    TooLong {
        /// Octets.
        len: usize,
    },
    /// Another protocol.
    #[error("EtherType {0:#06x}")]
    NotLldp(u16),
    /// Source is a group address.
    #[error("source address {0}")]
    Source(MacAddr),
    /// One of the first three TLVs is missing, out of order or malformed.
    #[error("{what}: {found}")]
    Mandatory {
        /// Which one.
        what: &'static str,
        /// What stands there.
        found: String,
    },
    /// A mandatory TLV came twice; the standard wants the frame discarded.
    #[error("a second {0} TLV")]
    Twice(&'static str),
    /// The neighbour table has no room (see [`super::neighbour::Limits`]).
    #[error("{held} neighbours on {iface}")]
    TooManyNeighbours {
        /// Interface.
        iface: String,
        /// Neighbours held, which is the bound.
        held: usize,
    },
}

impl Refused {
    /// Stable code, also the metric label.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooShort { .. } => "lldp.too_short",
            Self::TooLong { .. } => "lldp.too_long",
            Self::NotLldp(_) => "lldp.not_lldp",
            Self::Source(_) => "lldp.source",
            Self::Mandatory { .. } => "lldp.mandatory",
            Self::Twice(_) => "lldp.twice",
            Self::TooManyNeighbours { .. } => "lldp.too_many_neighbours",
        }
    }

    /// The five parts for log, API and ledger.
    pub fn explain(&self) -> Explanation {
        const CAPTURE: &str =
            "capture the frame with tcpdump -w and look at the switch's LLDP settings";
        let (expected, source, next) = match self {
            Self::TooShort { .. } => (
                "an Ethernet frame".to_owned(),
                "IEEE 802.3 clause 3",
                CAPTURE,
            ),
            Self::TooLong { .. } => (
                format!("at most {FRAME_LEN_MAX} bytes"),
                "limit of this receiver",
                CAPTURE,
            ),
            Self::NotLldp(_) => (
                "EtherType 0x88cc".to_owned(),
                "IEEE 802.1AB clause 7.4",
                CAPTURE,
            ),
            Self::Source(_) => (
                "an individual address".to_owned(),
                "IEEE 802.1AB clause 7.2",
                CAPTURE,
            ),
            Self::Mandatory { .. } => (
                "Chassis ID, Port ID and TTL, in this order".to_owned(),
                "IEEE 802.1AB clause 8.2",
                CAPTURE,
            ),
            Self::Twice(_) => (
                "each mandatory TLV once".to_owned(),
                "IEEE 802.1AB clause 9.2.7.7",
                CAPTURE,
            ),
            Self::TooManyNeighbours { held, .. } => (
                format!("fewer than {held} neighbours"),
                "limit of this receiver",
                "look for a hub or a bridge that forwards LLDP between the switch and the machine",
            ),
        };
        Explanation {
            code: self.code(),
            expected,
            found: self.to_string(),
            source,
            next,
        }
    }
}

impl Frame {
    /// Reads one Ethernet frame, tagged or not, without FCS.
    ///
    /// # Errors
    /// The first rule that does not hold; see [`Refused`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Refused> {
        let short = || Refused::TooShort { len: bytes.len() };
        if bytes.len() > FRAME_LEN_MAX {
            return Err(Refused::TooLong { len: bytes.len() });
        }
        let ethernet = Ethernet2Slice::from_slice_without_fcs(bytes).map_err(|_| short())?;
        let (mut ether_type, mut payload) = (ethernet.ether_type(), ethernet.payload_slice());
        let mut vlan = None;
        for _ in 0..TAGS_MAX {
            if !matches!(
                ether_type,
                EtherType::VLAN_TAGGED_FRAME
                    | EtherType::PROVIDER_BRIDGING
                    | EtherType::VLAN_DOUBLE_TAGGED_FRAME
            ) {
                break;
            }
            let tag = SingleVlanSlice::from_slice(payload).map_err(|_| short())?;
            vlan.get_or_insert(tag.vlan_identifier().value());
            (ether_type, payload) = (tag.ether_type(), tag.payload_slice());
        }
        if ether_type.0 != ETHERTYPE {
            return Err(Refused::NotLldp(ether_type.0));
        }
        let source = MacAddr(ethernet.source());
        if source.is_group() {
            return Err(Refused::Source(source));
        }
        let destination = MacAddr(ethernet.destination());
        Ok(Self {
            source,
            destination,
            vlan,
            lldpdu: Lldpdu::parse(payload)?,
        })
    }

    /// An untagged frame to the nearest bridge.
    pub fn announce(source: MacAddr, lldpdu: Lldpdu) -> Self {
        Self {
            source,
            destination: NEAREST_BRIDGE,
            vlan: None,
            lldpdu,
        }
    }

    /// The frame's octets, without padding and FCS.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(&self.destination.0);
        out.extend_from_slice(&self.source.0);
        if let Some(vlan) = self.vlan {
            out.extend_from_slice(&EtherType::VLAN_TAGGED_FRAME.0.to_be_bytes());
            out.extend_from_slice(&(vlan & 0x0fff).to_be_bytes());
        }
        out.extend_from_slice(&ETHERTYPE.to_be_bytes());
        out.extend_from_slice(&self.lldpdu.encode());
        out
    }
}

/// A TLV's value and what follows it.
type Taken<'a> = (&'a [u8], &'a [u8]);

/// A TLV length that points past the end.
struct Overrun {
    announced: usize,
    left: usize,
}

/// Takes one TLV: its type, then value and rest. `None` when less than a header is left.
fn take(bytes: &[u8]) -> Option<(u8, Result<Taken<'_>, Overrun>)> {
    let (head, rest) = bytes.split_first_chunk::<2>()?;
    let kind = head[0] >> 1;
    let len = usize::from(head[0] & 1) << 8 | usize::from(head[1]);
    let overrun = Overrun {
        announced: len,
        left: rest.len(),
    };
    Some((kind, rest.split_at_checked(len).ok_or(overrun)))
}

/// One of the first three TLVs.
fn mandatory<'a>(bytes: &'a [u8], want: u8, what: &'static str) -> Result<Taken<'a>, Refused> {
    let refuse = |found: String| Refused::Mandatory { what, found };
    match take(bytes) {
        None => Err(refuse(format!("{} bytes left", bytes.len()))),
        Some((kind, _)) if kind != want => Err(refuse(format!("TLV type {kind} in its place"))),
        Some((_, Err(Overrun { announced, left }))) => {
            Err(refuse(format!("length {announced} with {left} bytes left")))
        }
        Some((_, Ok(found))) => Ok(found),
    }
}

fn id(value: &[u8], what: &'static str, kind: fn(u8) -> IdKind) -> Result<Id, Refused> {
    match value.split_first() {
        Some((subtype, octets)) if (1..=TEXT_LEN_MAX).contains(&octets.len()) => Ok(Id {
            kind: kind(*subtype),
            octets: octets.to_vec(),
        }),
        _ => Err(Refused::Mandatory {
            what,
            found: format!("length {}", value.len()),
        }),
    }
}

/// What can be read of the three mandatory TLVs, also where [`Lldpdu::parse`] refuses: for people who
/// look for the fault. Nothing is decided on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MandatoryPart {
    /// Chassis ID.
    pub chassis: Option<Id>,
    /// Port ID, when the Chassis ID could be read.
    pub port: Option<Id>,
    /// TTL, when the Port ID could be read.
    pub ttl_secs: Option<u16>,
}

impl MandatoryPart {
    /// Reads up to the first fault.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut part = Self::default();
        let _ = part.read(bytes);
        part
    }

    /// Fills in what can be read; an LLDPDU of all three, and what follows them.
    fn read<'a>(&mut self, bytes: &'a [u8]) -> Result<(Lldpdu, &'a [u8]), Refused> {
        let (chassis, rest) = mandatory(bytes, kind::CHASSIS_ID, "Chassis ID")?;
        let chassis = id(chassis, "Chassis ID", IdKind::of_chassis)?;
        self.chassis = Some(chassis.clone());
        let (port, rest) = mandatory(rest, kind::PORT_ID, "Port ID")?;
        let port = id(port, "Port ID", IdKind::of_port)?;
        self.port = Some(port.clone());
        let (ttl, rest) = mandatory(rest, kind::TTL, "TTL")?;
        let Some(ttl) = ttl.first_chunk::<2>() else {
            return Err(Refused::Mandatory {
                what: "TTL",
                found: format!("length {}", ttl.len()),
            });
        };
        let ttl_secs = u16::from_be_bytes(*ttl);
        self.ttl_secs = Some(ttl_secs);
        Ok((Lldpdu::new(chassis, port, ttl_secs), rest))
    }
}

impl Lldpdu {
    /// An LLDPDU with the mandatory part only.
    pub fn new(chassis: Id, port: Id, ttl_secs: u16) -> Self {
        Self {
            chassis,
            port,
            ttl_secs,
            port_description: None,
            system_name: None,
            system_description: None,
            capabilities: None,
            management: Vec::new(),
            pvid: None,
            vlan_names: Vec::new(),
            organisation: Vec::new(),
            reserved: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Whether the sender says good-bye (clause 9.1.2.2).
    pub fn is_shutdown(&self) -> bool {
        self.ttl_secs == 0
    }

    /// Reads an LLDPDU; what follows the End TLV is padding.
    ///
    /// # Errors
    /// [`Refused::Mandatory`] and [`Refused::Twice`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Refused> {
        let (mut pdu, mut rest) = MandatoryPart::default().read(bytes)?;
        for _ in 0..TLVS_MAX {
            match take(rest) {
                None => {
                    pdu.notes.push(Note::NoEnd);
                    return Ok(pdu);
                }
                Some((kind::END, _)) => return Ok(pdu),
                Some((kind, Err(Overrun { announced, left }))) => {
                    pdu.notes.push(Note::Truncated {
                        kind,
                        announced,
                        left,
                    });
                    return Ok(pdu);
                }
                Some((kind, Ok((value, tail)))) => {
                    pdu.optional(kind, value)?;
                    rest = tail;
                }
            }
        }
        pdu.notes.push(Note::TooMany);
        Ok(pdu)
    }

    fn optional(&mut self, kind: u8, value: &[u8]) -> Result<(), Refused> {
        let bad = Note::BadContents {
            kind,
            len: value.len(),
        };
        match kind {
            kind::CHASSIS_ID => return Err(Refused::Twice("Chassis ID")),
            kind::PORT_ID => return Err(Refused::Twice("Port ID")),
            kind::TTL => return Err(Refused::Twice("TTL")),
            kind::PORT_DESCRIPTION => once(
                &mut self.port_description,
                text(value),
                kind,
                &mut self.notes,
            ),
            kind::SYSTEM_NAME => once(&mut self.system_name, text(value), kind, &mut self.notes),
            kind::SYSTEM_DESCRIPTION => {
                once(
                    &mut self.system_description,
                    text(value),
                    kind,
                    &mut self.notes,
                );
            }
            kind::CAPABILITIES => match *value {
                [a, b, c, d, ..] => {
                    let found = Capabilities {
                        supported: u16::from_be_bytes([a, b]),
                        enabled: u16::from_be_bytes([c, d]),
                    };
                    once(&mut self.capabilities, found, kind, &mut self.notes);
                }
                _ => self.notes.push(bad),
            },
            kind::MANAGEMENT_ADDRESS => match management(value) {
                Some(found) => self.management.push(found),
                None => self.notes.push(bad),
            },
            kind::ORGANISATION => match value.split_first_chunk::<4>() {
                Some((&[a, b, c, subtype], value)) => {
                    self.organisational([a, b, c], subtype, value)
                }
                None => self.notes.push(bad),
            },
            _ => self.reserved.push((kind, value.to_vec())),
        }
        Ok(())
    }

    fn organisational(&mut self, oui: [u8; 3], subtype: u8, value: &[u8]) {
        match (oui, subtype, value) {
            (OUI_8021, 1, &[a, b]) => {
                let pvid = u16::from_be_bytes([a, b]);
                once(&mut self.pvid, pvid, kind::ORGANISATION, &mut self.notes);
            }
            (OUI_8021, 3, [a, b, len, name @ ..]) if name.len() == usize::from(*len) => {
                self.vlan_names
                    .push((u16::from_be_bytes([*a, *b]), text(name)));
            }
            _ => {
                let tlv = OrganisationTlv {
                    oui,
                    subtype,
                    value: value.to_vec(),
                };
                if tlv.read().is_err() {
                    self.notes.push(Note::BadOrganisation {
                        oui,
                        subtype,
                        len: value.len(),
                    });
                }
                self.organisation.push(tlv);
            }
        }
    }

    /// The octets of the LLDPDU, End TLV included. Texts and values over the standard's maxima are
    /// cut; an optional TLV that does not fit one frame any more is left out (the mandatory ones
    /// always fit); notes are not sent.
    pub fn encode(&self) -> Vec<u8> {
        /// The End TLV, which must still fit.
        const END_LEN: usize = 2;
        let mut out = Vec::with_capacity(256);
        let mut put = |kind: u8, value: &[u8]| {
            let value = &value[..value.len().min(TLV_LEN_MAX)];
            if kind != kind::END && out.len() + 2 + value.len() + END_LEN > LLDPDU_LEN_MAX {
                return;
            }
            out.extend_from_slice(&(u16::from(kind) << 9 | value.len() as u16).to_be_bytes());
            out.extend_from_slice(value);
        };
        let with_subtype = |subtype: u8, octets: &[u8]| {
            let mut value = vec![subtype];
            value.extend_from_slice(&octets[..octets.len().min(TEXT_LEN_MAX)]);
            value
        };
        put(
            kind::CHASSIS_ID,
            &with_subtype(self.chassis.kind.chassis_subtype(), &self.chassis.octets),
        );
        put(
            kind::PORT_ID,
            &with_subtype(self.port.kind.port_subtype(), &self.port.octets),
        );
        put(kind::TTL, &self.ttl_secs.to_be_bytes());
        for (kind, text) in [
            (kind::PORT_DESCRIPTION, &self.port_description),
            (kind::SYSTEM_NAME, &self.system_name),
            (kind::SYSTEM_DESCRIPTION, &self.system_description),
        ] {
            if let Some(text) = text {
                put(kind, &text.as_bytes()[..text.len().min(TEXT_LEN_MAX)]);
            }
        }
        if let Some(Capabilities { supported, enabled }) = self.capabilities {
            put(
                kind::CAPABILITIES,
                &[supported.to_be_bytes(), enabled.to_be_bytes()].concat(),
            );
        }
        for address in &self.management {
            put(kind::MANAGEMENT_ADDRESS, &address.encode());
        }
        let mut organisation = |oui: [u8; 3], subtype: u8, value: &[u8]| {
            put(
                kind::ORGANISATION,
                &[oui.as_slice(), &[subtype], value].concat(),
            );
        };
        if let Some(pvid) = self.pvid {
            organisation(OUI_8021, 1, &pvid.to_be_bytes());
        }
        for (vlan, name) in &self.vlan_names {
            let name = &name.as_bytes()[..name.len().min(32)];
            organisation(
                OUI_8021,
                3,
                &[&vlan.to_be_bytes()[..], &[name.len() as u8], name].concat(),
            );
        }
        for tlv in &self.organisation {
            organisation(tlv.oui, tlv.subtype, &tlv.value);
        }
        for (kind, value) in &self.reserved {
            put(*kind, value);
        }
        put(kind::END, &[]);
        out
    }
}

impl ManagementAddress {
    fn encode(&self) -> Vec<u8> {
        let addr = &self.addr[..self.addr.len().min(31)];
        let oid = &self.oid[..self.oid.len().min(128)];
        let mut value = vec![addr.len() as u8 + 1, self.family];
        value.extend_from_slice(addr);
        value.push(self.numbering);
        value.extend_from_slice(&self.interface.to_be_bytes());
        value.push(oid.len() as u8);
        value.extend_from_slice(oid);
        value
    }
}

/// Keeps the first value and notes the second.
fn once<T>(slot: &mut Option<T>, value: T, kind: u8, notes: &mut Vec<Note>) {
    match slot {
        None => *slot = Some(value),
        Some(_) => notes.push(Note::Repeated { kind }),
    }
}

/// Text of a stranger: bad UTF-8 replaced, ended by the first NUL, which some switches fill up with.
/// Escape it before showing it.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|octet| *octet == 0);
    String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned()
}

fn management(value: &[u8]) -> Option<ManagementAddress> {
    let (&len, rest) = value.split_first()?;
    let (addr, rest) = rest.split_at_checked(usize::from(len))?;
    let (&family, addr) = addr.split_first()?;
    let (&numbering, rest) = rest.split_first()?;
    let (interface, rest) = rest.split_first_chunk::<4>()?;
    let (&len, oid) = rest.split_first()?;
    // An OID shorter than announced is kept as far as it goes; nobody reads it.
    let oid = oid.get(..usize::from(len)).unwrap_or(oid);
    (!addr.is_empty()).then(|| ManagementAddress {
        family,
        addr: addr.to_vec(),
        numbering,
        interface: u32::from_be_bytes(*interface),
        oid: oid.to_vec(),
    })
}

#[cfg(test)]
mod tests;
