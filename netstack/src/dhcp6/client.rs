//! One request as read from the wire, and who the client says it is.
//!
//! Everything in [`ClientInfo`] is a claim of an unauthenticated packet.

use std::net::Ipv6Addr;

use super::message::{Message, MessageType, RELAY_REPLY, Relay};
use super::options::{NoteKind, OptionNote, Options, VendorClass, code, user_class, vendor_class};
use super::{Duid, Ingress, Refused};
use crate::MacAddr;

/// Identity associations read from one message. Firmware sends one, a system one per kind; each
/// can cost an address.
const IAS_MAX: usize = 8;
/// Addresses read from one identity association; we lease one, a client may still hold old ones.
const IA_ADDRS_MAX: usize = 8;

/// Kind of an identity association.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IaKind {
    /// Option 3, non-temporary addresses: what we lease.
    NonTemporary,
    /// Option 4, temporary addresses: answered with `NoAddrsAvail`.
    Temporary,
    /// Option 25, prefix delegation: answered with `NoPrefixAvail`.
    Prefix,
}

impl IaKind {
    pub(crate) fn code(self) -> u16 {
        match self {
            Self::NonTemporary => code::IA_NA,
            Self::Temporary => code::IA_TA,
            Self::Prefix => code::IA_PD,
        }
    }
}

/// One identity association of a request. Times a client sends are hints we do not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ia {
    /// Kind.
    pub kind: IaKind,
    /// IAID, chosen by the client.
    pub iaid: u32,
    /// Addresses in it.
    pub addrs: Vec<Ipv6Addr>,
}

/// Who a client says it is and what it asks for. Untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// Message type.
    pub message_type: MessageType,
    /// Transaction id, 24 bits.
    pub xid: u32,
    /// The client's own address: UDP source, or the innermost relay's peer.
    pub peer: Ipv6Addr,
    /// Client identifier, option 1; absent in some Information-requests only.
    pub duid: Option<Duid>,
    /// Server identifier, option 2.
    pub server_duid: Option<Vec<u8>>,
    /// Hardware address, from the surest source there is: the relay (option 79), the interface
    /// identifier of a link-local peer, the DUID.
    pub mac: Option<MacAddr>,
    /// Time since the client began, option 8, in milliseconds.
    pub elapsed_ms: Option<u32>,
    /// Option request, option 6, in the client's order.
    pub requested: Vec<u16>,
    /// Identity associations, in the client's order.
    pub ias: Vec<Ia>,
    /// Option 14.
    pub rapid_commit: bool,
    /// First architecture of option 61; from option 16 (`PXEClient:Arch:00007:..`) when 61 is absent.
    pub arch: Option<u16>,
    /// Network interface identifier, option 62: type, major, minor.
    pub ndi: Option<[u8; 3]>,
    /// Vendor classes, option 16, one per enterprise.
    pub vendor_classes: Vec<VendorClass>,
    /// User classes, option 15.
    pub user_class: Vec<Vec<u8>>,
    /// iPXE speaks: user class `iPXE`. Looked at before the vendor class, as in DHCPv4.
    pub is_ipxe: bool,
    /// UEFI HTTP boot: a vendor class begins with `HTTPClient`.
    pub is_http_client: bool,
    /// PXE firmware: a vendor class begins with `PXEClient` and it is not iPXE.
    pub is_pxe_client: bool,
    /// Relays, the one nearest to the server first.
    pub relays: Vec<Relay>,
    /// Options that could not be read as they should be.
    pub notes: Vec<OptionNote>,
}

impl ClientInfo {
    /// Reads a client's request, for inspection; the server does the same.
    ///
    /// # Errors
    /// What makes the datagram no DHCPv6 request.
    pub fn parse(datagram: &[u8], ingress: &Ingress) -> Result<Self, Refused> {
        let mut message = Message::parse(datagram)?;
        let message_type = match (message.msg_type, message.message_type()) {
            (
                _,
                Some(
                    found
                    @ (MessageType::Advertise | MessageType::Reply | MessageType::Reconfigure),
                ),
            ) => {
                return Err(Refused::NotARequest {
                    msg_type: found as u8,
                });
            }
            (_, Some(found)) => found,
            (value, None) => return Err(Refused::MessageType { value }),
        };
        if message
            .relays
            .iter()
            .any(|relay| relay.msg_type == RELAY_REPLY)
        {
            return Err(Refused::NotARequest {
                msg_type: RELAY_REPLY,
            });
        }
        let duid = match message.options.singleton(code::CLIENT_ID) {
            None => None,
            Some(value) => {
                let len = value.len();
                Some(Duid::from_bytes(value).ok_or(Refused::DuidLength { len })?)
            }
        };
        Ok(client_info(message, message_type, duid, ingress))
    }

    /// The link the client is on, as its relays say; `None` on our own.
    pub fn link_address(&self) -> Option<Ipv6Addr> {
        let nearest_client_first = self.relays.iter().rev();
        nearest_client_first
            .map(|relay| relay.link_address)
            .find(|link| !link.is_unspecified())
    }

    /// Machine UUID of a DUID-UUID.
    pub fn uuid(&self) -> Option<[u8; 16]> {
        self.duid.as_ref().and_then(Duid::uuid)
    }

    /// Whether option 6 asks for an option.
    pub fn asks_for(&self, code: u16) -> bool {
        self.requested.contains(&code)
    }
}

fn client_info(
    mut message: Message,
    message_type: MessageType,
    duid: Option<Duid>,
    ingress: &Ingress,
) -> ClientInfo {
    let peer = match message.relays.last() {
        Some(relay) => relay.peer_address,
        None => *ingress.source.ip(),
    };
    let seen_by_relay = message
        .relays
        .iter()
        .rev()
        .find_map(|relay| relay.client_mac);
    let mac = seen_by_relay
        .or_else(|| eui64(peer))
        .or_else(|| duid.as_ref().and_then(Duid::mac));
    let options = &mut message.options;
    let vendor_classes = vendor_classes(options);
    let user_class = match options.singleton(code::USER_CLASS) {
        None => Vec::new(),
        Some(value) => {
            let (classes, odd) = user_class(&value);
            if let Some(kind) = odd {
                options.note(code::USER_CLASS, kind);
            }
            classes
        }
    };
    let is_ipxe = user_class.iter().any(|class| class == b"iPXE");
    let says = |prefix: &[u8]| {
        let mut all = vendor_classes.iter().flat_map(|class| &class.data);
        all.any(|data| data.starts_with(prefix))
    };
    let (is_pxe_client, is_http_client) = (says(b"PXEClient") && !is_ipxe, says(b"HTTPClient"));
    let arch = options.numbers(code::ARCH).first().copied();
    let arch = arch.or_else(|| {
        let mut all = vendor_classes.iter().flat_map(|class| &class.data);
        all.find_map(|data| arch_of_vendor_class(data))
    });
    let elapsed = options.fixed::<2>(code::ELAPSED_TIME);
    let client = ClientInfo {
        message_type,
        xid: message.xid,
        peer,
        duid,
        server_duid: options.singleton(code::SERVER_ID),
        mac,
        elapsed_ms: elapsed.map(|time| u32::from(u16::from_be_bytes(time)) * 10),
        requested: options.numbers(code::OPTION_REQUEST),
        ias: ias(options),
        rapid_commit: options.contains(code::RAPID_COMMIT),
        arch,
        ndi: options.fixed::<3>(code::NDI),
        vendor_classes,
        user_class,
        is_ipxe,
        is_http_client,
        is_pxe_client,
        relays: message.relays,
        notes: Vec::new(),
    };
    ClientInfo {
        notes: options.notes().to_vec(),
        ..client
    }
}

/// The hardware address in a link-local address made by EUI-64 (RFC 4291 appendix A), as firmware
/// and iPXE make theirs.
fn eui64(addr: Ipv6Addr) -> Option<MacAddr> {
    let [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] = addr.octets() else {
        return None;
    };
    let mac = MacAddr([a ^ 0x02, b, c, d, e, f]);
    (!mac.is_zero() && !mac.is_group()).then_some(mac)
}

/// `PXEClient:Arch:xxxxx:UNDI:yyyzzz`, decimal, as in DHCPv4's option 60.
fn arch_of_vendor_class(class: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(class).ok()?;
    let mut parts = text.split(':');
    let _client = parts.next()?;
    (parts.next()? == "Arch")
        .then(|| parts.next()?.parse().ok())
        .flatten()
}

fn vendor_classes(options: &mut Options) -> Vec<VendorClass> {
    let values: Vec<Vec<u8>> = options
        .all(code::VENDOR_CLASS)
        .map(<[u8]>::to_vec)
        .collect();
    let mut classes = Vec::new();
    for value in values {
        let (class, odd) = vendor_class(&value);
        if let Some(kind) = odd {
            options.note(code::VENDOR_CLASS, kind);
        }
        classes.extend(class);
    }
    classes
}

fn ias(options: &mut Options) -> Vec<Ia> {
    let all: Vec<(u16, Vec<u8>)> = options
        .iter()
        .map(|(code, value)| (code, value.to_vec()))
        .collect();
    let mut ias = Vec::new();
    for (option, value) in all {
        // IA_TA has no T1 and T2.
        let (kind, fixed_len) = match option {
            code::IA_NA => (IaKind::NonTemporary, 12),
            code::IA_TA => (IaKind::Temporary, 4),
            code::IA_PD => (IaKind::Prefix, 12),
            _ => continue,
        };
        let (Some(iaid), Some(rest)) = (value.first_chunk::<4>(), value.get(fixed_len..)) else {
            options.note(option, NoteKind::BadLength { len: value.len() });
            continue;
        };
        if ias.len() == IAS_MAX {
            options.note(option, NoteKind::TooMany { max: IAS_MAX });
            break;
        }
        let inner = Options::parse(rest);
        for note in inner.notes() {
            options.note(option, note.kind);
        }
        let mut addrs = Vec::new();
        for value in inner.all(code::IA_ADDR) {
            match value.first_chunk::<16>() {
                // Preferred and valid lifetime follow.
                Some(addr) if value.len() >= 24 => addrs.push(Ipv6Addr::from(*addr)),
                _ => options.note(code::IA_ADDR, NoteKind::BadLength { len: value.len() }),
            }
        }
        if addrs.len() > IA_ADDRS_MAX {
            options.note(option, NoteKind::TooMany { max: IA_ADDRS_MAX });
            addrs.truncate(IA_ADDRS_MAX);
        }
        ias.push(Ia {
            kind,
            iaid: u32::from_be_bytes(*iaid),
            addrs,
        });
    }
    ias
}
