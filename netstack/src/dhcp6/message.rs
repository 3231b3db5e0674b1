//! Any DHCPv6 message as it stands on the wire, relayed or not, before judgement. For inspection
//! and for [`super::ClientInfo`]; the server decides on the latter.

use std::net::Ipv6Addr;

use super::Refused;
use super::options::{Options, code};
use crate::MacAddr;

/// Largest UDP payload read; one cap bounds every option.
const DATAGRAM_LEN_MAX: usize = 9000;
/// Most relays on the way: `HOP_COUNT_LIMIT` (RFC 8415 section 7.6).
pub const RELAYS_MAX: usize = 8;

mod field {
    use std::ops::Range;

    pub const MSG_TYPE: usize = 0;
    pub const XID: Range<usize> = 1..4;
    pub const OPTIONS: usize = 4;
    /// Relay-forward and Relay-reply (RFC 8415 section 9).
    pub const HOP_COUNT: usize = 1;
    pub const LINK_ADDRESS: Range<usize> = 2..18;
    pub const PEER_ADDRESS: Range<usize> = 18..34;
    pub const RELAY_OPTIONS: usize = 34;
}

/// DHCPv6 message type (RFC 8415 section 7.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MessageType {
    /// 1.
    Solicit = 1,
    /// 2.
    Advertise = 2,
    /// 3.
    Request = 3,
    /// 4.
    Confirm = 4,
    /// 5.
    Renew = 5,
    /// 6.
    Rebind = 6,
    /// 7.
    Reply = 7,
    /// 8.
    Release = 8,
    /// 9.
    Decline = 9,
    /// 10.
    Reconfigure = 10,
    /// 11.
    InformationRequest = 11,
}

impl MessageType {
    /// Client and server messages; relay messages are [`Relay`]s around one of these.
    pub fn from_wire(value: u8) -> Option<Self> {
        use MessageType::*;
        let all = [
            Solicit,
            Advertise,
            Request,
            Confirm,
            Renew,
            Rebind,
            Reply,
            Release,
            Decline,
            Reconfigure,
            InformationRequest,
        ];
        all.into_iter().find(|known| *known as u8 == value)
    }

    /// Name as RFC 8415 writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Solicit => "SOLICIT",
            Self::Advertise => "ADVERTISE",
            Self::Request => "REQUEST",
            Self::Confirm => "CONFIRM",
            Self::Renew => "RENEW",
            Self::Rebind => "REBIND",
            Self::Reply => "REPLY",
            Self::Release => "RELEASE",
            Self::Decline => "DECLINE",
            Self::Reconfigure => "RECONFIGURE",
            Self::InformationRequest => "INFORMATION-REQUEST",
        }
    }
}

/// `Relay-forward` and `Relay-reply`.
pub(crate) const RELAY_FORWARD: u8 = 12;
pub(crate) const RELAY_REPLY: u8 = 13;

/// What one relay agent put around a message. Evidence only as far as the wire to it is trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    /// 12 Relay-forward, 13 Relay-reply.
    pub msg_type: u8,
    /// Relays before this one.
    pub hop_count: u8,
    /// An address on the client's link; zero from a switch that only adds options (RFC 6221).
    pub link_address: Ipv6Addr,
    /// Whom the relay got the message from.
    pub peer_address: Ipv6Addr,
    /// Option 18, echoed.
    pub interface_id: Option<Vec<u8>>,
    /// Option 37: enterprise number and identifier.
    pub remote_id: Option<Vec<u8>>,
    /// Option 79 of an Ethernet client.
    pub client_mac: Option<MacAddr>,
    /// Option 135 as it came, echoed: answers go to the relay's source port.
    pub relay_port: Option<Vec<u8>>,
    /// Its options, without the message it carries.
    pub options: Options,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Type number, of the innermost message.
    pub msg_type: u8,
    /// Transaction id, 24 bits.
    pub xid: u32,
    /// Relays, the one nearest to the server first. Empty on the client's own link.
    pub relays: Vec<Relay>,
    /// Options of the innermost message.
    pub options: Options,
}

impl Message {
    /// Reads one datagram, through at most [`RELAYS_MAX`] relay messages.
    ///
    /// # Errors
    /// [`Refused::TooShort`], [`Refused::TooLong`], [`Refused::RelayDepth`],
    /// [`Refused::RelayEmpty`]. Options never fail: see [`Options::notes`].
    pub fn parse(datagram: &[u8]) -> Result<Self, Refused> {
        if datagram.len() > DATAGRAM_LEN_MAX {
            return Err(Refused::TooLong {
                len: datagram.len(),
                max: DATAGRAM_LEN_MAX,
            });
        }
        let mut relays = Vec::new();
        let mut bytes = datagram.to_vec();
        loop {
            let short = Refused::TooShort { len: bytes.len() };
            let Some(&msg_type) = bytes.get(field::MSG_TYPE) else {
                return Err(short);
            };
            if !matches!(msg_type, RELAY_FORWARD | RELAY_REPLY) {
                let (Some(xid), Some(options)) =
                    (bytes.get(field::XID), bytes.get(field::OPTIONS..))
                else {
                    return Err(short);
                };
                return Ok(Self {
                    msg_type,
                    xid: u32::from_be_bytes([0, xid[0], xid[1], xid[2]]),
                    relays,
                    options: Options::parse(options),
                });
            }
            if relays.len() == RELAYS_MAX {
                return Err(Refused::RelayDepth { max: RELAYS_MAX });
            }
            let (relay, inner) = relay(&bytes).ok_or(short)?;
            relays.push(relay);
            bytes = inner.ok_or(Refused::RelayEmpty)?;
        }
    }

    /// The type, if it is one of a client's or a server's.
    pub fn message_type(&self) -> Option<MessageType> {
        MessageType::from_wire(self.msg_type)
    }
}

/// One relay message and what it carries; `None` when the fixed part is not whole.
fn relay(bytes: &[u8]) -> Option<(Relay, Option<Vec<u8>>)> {
    let address = |range| {
        let octets = <[u8; 16]>::try_from(bytes.get::<std::ops::Range<usize>>(range)?).ok()?;
        Some(Ipv6Addr::from(octets))
    };
    let mut options = Options::parse(bytes.get(field::RELAY_OPTIONS..)?);
    let inner = options.singleton(code::RELAY_MESSAGE);
    let linklayer = options.singleton(code::CLIENT_LINKLAYER_ADDR);
    let relay = Relay {
        msg_type: bytes[field::MSG_TYPE],
        hop_count: bytes[field::HOP_COUNT],
        link_address: address(field::LINK_ADDRESS)?,
        peer_address: address(field::PEER_ADDRESS)?,
        interface_id: options.singleton(code::INTERFACE_ID),
        remote_id: options.singleton(code::REMOTE_ID),
        client_mac: linklayer.as_deref().and_then(ethernet),
        relay_port: options.singleton(code::RELAY_PORT),
        options: options.without(code::RELAY_MESSAGE),
    };
    Some((relay, inner))
}

/// An option 79 value of hardware type 1 (RFC 6939 section 4).
fn ethernet(value: &[u8]) -> Option<MacAddr> {
    let (hardware, addr) = value.split_first_chunk::<2>()?;
    let mac = MacAddr(<[u8; 6]>::try_from(addr).ok()?);
    (*hardware == [0, 1] && !mac.is_zero() && !mac.is_group()).then_some(mac)
}
