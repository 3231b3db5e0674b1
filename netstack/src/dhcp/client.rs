//! One request as read from the wire: header checks, and who the client says it is.
//!
//! Everything in [`ClientInfo`] is a claim of an unauthenticated packet.

use std::net::Ipv4Addr;

use dhcproto::v4::{self, Decodable, Decoder};

use super::message::{HEADER_LEN, Message};
use super::options::{NoteKind, OptionNote, Options, code, sub_options, user_class};
use super::{ClientKey, Refused};
use crate::MacAddr;

/// RFC 1542 section 4.1.1: a relay discards a request with more hops.
const HOPS_MAX: u8 = 16;

/// Address blocks of the Raspberry Pi makers (IEEE MA-L registry).
const RASPBERRY_PI_OUIS: [[u8; 3]; 6] = [
    [0xb8, 0x27, 0xeb],
    [0xdc, 0xa6, 0x32],
    [0xe4, 0x5f, 0x01],
    [0xd8, 0x3a, 0xdd],
    [0x28, 0xcd, 0xc1],
    [0x2c, 0xcf, 0x67],
];

/// DHCP message type, option 53 (RFC 2132 section 9.6), of messages that clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageType {
    /// DHCPDISCOVER, 1.
    Discover,
    /// DHCPREQUEST, 3.
    Request,
    /// DHCPDECLINE, 4.
    Decline,
    /// DHCPRELEASE, 7.
    Release,
    /// DHCPINFORM, 8.
    Inform,
    /// No option 53: a BOOTP request (RFC 951, RFC 1534).
    Bootp,
}

impl MessageType {
    fn from_wire(value: u8) -> Option<Self> {
        match value {
            1 => Some(Self::Discover),
            3 => Some(Self::Request),
            4 => Some(Self::Decline),
            7 => Some(Self::Release),
            8 => Some(Self::Inform),
            _ => None,
        }
    }
}

/// Who a client says it is and what it asks for. Untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// Message type, option 53.
    pub message_type: MessageType,
    /// Transaction id.
    pub xid: u32,
    /// Seconds since the client began.
    pub secs: u16,
    /// Whether the client wants broadcast answers.
    pub broadcast: bool,
    /// Hardware address, `chaddr`.
    pub mac: MacAddr,
    /// Hardware type, `htype`.
    pub htype: u8,
    /// Option 61, at least two octets.
    pub client_id: Option<Vec<u8>>,
    /// Address the client already uses, `ciaddr`; zero when none.
    pub ciaddr: Ipv4Addr,
    /// Requested address, option 50.
    pub requested_addr: Option<Ipv4Addr>,
    /// Server identifier, option 54.
    pub server_id: Option<Ipv4Addr>,
    /// Requested lease time in seconds, option 51.
    pub lease_secs: Option<u32>,
    /// Parameter request list, option 55, in the client's order.
    pub parameters: Vec<u8>,
    /// Largest DHCP message it takes, option 57.
    pub max_message_len: Option<u16>,
    /// Host name, option 12, as bytes.
    pub host_name: Option<Vec<u8>>,
    /// First architecture of option 93; from option 60 (`PXEClient:Arch:00007:..`) when 93 is absent.
    pub arch: Option<u16>,
    /// Network interface identifier, option 94: type, major, minor.
    pub ndi: Option<[u8; 3]>,
    /// Vendor class, option 60.
    pub vendor_class: Option<Vec<u8>>,
    /// Vendor options, option 43, raw.
    pub vendor_options: Option<Vec<u8>>,
    /// User classes, option 77, raw or RFC 3004.
    pub user_class: Vec<Vec<u8>>,
    /// iPXE speaks: user class `iPXE`, or its own option 175. Looked at before option 60, because
    /// a chain-loaded iPXE still says `PXEClient` there.
    pub is_ipxe: bool,
    /// UEFI HTTP boot: option 60 begins with `HTTPClient`.
    pub is_http_client: bool,
    /// PXE firmware: option 60 begins with `PXEClient` and it is not iPXE.
    pub is_pxe_client: bool,
    /// Client machine identifier, option 97 type 0.
    pub uuid: Option<[u8; 16]>,
    /// The relay's part: `giaddr` and option 82, either of which makes it present.
    pub relay: Option<RelayInfo>,
    /// Options that could not be read and were left out.
    pub notes: Vec<OptionNote>,
}

impl ClientInfo {
    /// Reads a client's request, for inspection; the server does the same.
    ///
    /// # Errors
    /// What makes the datagram no DHCP request of an Ethernet client.
    pub fn parse(datagram: &[u8]) -> Result<Self, Refused> {
        parse(datagram).map(|request| request.client)
    }

    /// What leases are keyed by: option 61, else `htype` and `chaddr` (RFC 2131 section 4.2).
    pub fn key(&self) -> ClientKey {
        match &self.client_id {
            Some(id) => ClientKey::from_bytes(id.clone()),
            None => ClientKey::from_hardware(self.htype, self.mac),
        }
    }

    /// Whether it asks for something to boot: PXE firmware, UEFI HTTP boot or iPXE.
    pub fn boots(&self) -> bool {
        self.is_ipxe || self.is_http_client || self.is_pxe_client
    }

    /// The boot ROM of a Raspberry Pi. It says architecture 0, x86 with a BIOS, and is none
    /// (raspberrypi/rpi-eeprom#182); its address block or option 97 tells it.
    pub fn is_raspberry_pi(&self) -> bool {
        let [a, b, c, ..] = self.mac.0;
        let by_mac = RASPBERRY_PI_OUIS.contains(&[a, b, c]);
        // Pi 3: sixteen times 0x44, on every board; Pi 4 and later: "RPi" and more.
        let by_uuid = self
            .uuid
            .is_some_and(|uuid| uuid == [0x44; 16] || uuid.starts_with(b"RPi"));
        self.arch == Some(0) && (by_mac || by_uuid)
    }

    /// Relay agent address, zero when the client is on our own link.
    pub fn giaddr(&self) -> Ipv4Addr {
        self.relay
            .as_ref()
            .map_or(Ipv4Addr::UNSPECIFIED, |relay| relay.giaddr)
    }
}

/// What a relay agent or switch added. Evidence only as far as the wire to it is trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayInfo {
    /// `giaddr`; zero when a switch added option 82 and did not relay.
    pub giaddr: Ipv4Addr,
    /// Hop count.
    pub hops: u8,
    /// Option 82 sub-option 1.
    pub circuit_id: Option<Vec<u8>>,
    /// Option 82 sub-option 2.
    pub remote_id: Option<Vec<u8>>,
    /// Sub-option 5 (RFC 3527): subnet to lease from, when `giaddr` is not on it.
    pub link_selection: Option<Ipv4Addr>,
    /// Sub-option 19 (RFC 8357): the relay wants answers on its source port.
    pub source_port: bool,
    /// Option 82 as it came, echoed in every reply.
    pub raw: Option<Vec<u8>>,
}

/// A request: its header, from which the reply is made, and what was read from it.
pub(crate) struct Request {
    /// Header through dhcproto, without options.
    pub header: v4::Message,
    /// Everything else.
    pub client: ClientInfo,
}

/// Reads one datagram as a client's request.
///
/// # Errors
/// The part of the header that makes it no DHCP request of an Ethernet client.
pub(crate) fn parse(datagram: &[u8]) -> Result<Request, Refused> {
    let mut message = Message::parse(datagram)?;
    if message.op != 1 {
        return Err(Refused::NotARequest { op: message.op });
    }
    // dhcproto slices `chaddr` by `hlen` unchecked, so the length is settled before it sees it.
    // 6 is "IEEE 802 networks" (RFC 1700), said by some embedded clients for Ethernet.
    let (htype, hlen) = (message.htype, message.hlen);
    if !matches!(htype, 1 | 6) || hlen != 6 {
        return Err(Refused::Hardware { htype, hlen });
    }
    if message.hops > HOPS_MAX {
        return Err(Refused::Hops { hops: message.hops });
    }
    let [a, b, c, d, e, f, ..] = message.chaddr;
    let mac = MacAddr([a, b, c, d, e, f]);
    if mac.is_zero() || mac.is_group() {
        return Err(Refused::ChaddrInvalid { mac });
    }
    // Options that break off may have held a 53 behind the break: no BOOTP client says so.
    let broken = message
        .options
        .notes()
        .iter()
        .any(|note| matches!(note.kind, NoteKind::Truncated { .. } | NoteKind::NoLength));
    let typed = message.options.contains(code::MESSAGE_TYPE) || broken;
    let message_type = match message.options.fixed::<1>(code::MESSAGE_TYPE) {
        None if !typed => MessageType::Bootp,
        Some([value]) => {
            let refused = Refused::MessageType {
                value: Some(value),
                mac,
            };
            MessageType::from_wire(value).ok_or(refused)?
        }
        None => return Err(Refused::MessageType { value: None, mac }),
    };
    let client = client_info(message, mac, message_type);
    Ok(Request {
        header: header(datagram)?,
        client,
    })
}

/// The request's header as dhcproto has it, the base of every reply: no options, no texts.
fn header(datagram: &[u8]) -> Result<v4::Message, Refused> {
    let refused = Refused::TooShort {
        len: datagram.len(),
    };
    let fixed = datagram.get(..HEADER_LEN).ok_or(refused.clone())?;
    let mut header = v4::Message::decode(&mut Decoder::new(fixed)).map_err(|_| refused)?;
    header.clear_sname();
    header.clear_fname();
    Ok(header)
}

fn client_info(mut message: Message, mac: MacAddr, message_type: MessageType) -> ClientInfo {
    let relay = relay(&mut message);
    let options = &mut message.options;
    let user_class = options
        .non_empty(code::USER_CLASS)
        .map_or_else(Vec::new, |v| user_class(&v));
    let vendor_class = options.non_empty(code::VENDOR_CLASS);
    let is_ipxe = options.contains(code::IPXE) || user_class.iter().any(|class| class == b"iPXE");
    let says = |prefix: &[u8]| {
        vendor_class
            .as_deref()
            .is_some_and(|class| class.starts_with(prefix))
    };
    let (is_pxe_client, is_http_client) = (says(b"PXEClient") && !is_ipxe, says(b"HTTPClient"));
    let arch = arch(options).or_else(|| vendor_class.as_deref().and_then(arch_of_vendor_class));
    let client = ClientInfo {
        message_type,
        xid: message.xid,
        secs: message.secs,
        broadcast: message.flags & 0x8000 != 0,
        mac,
        htype: message.htype,
        client_id: client_id(options),
        ciaddr: message.ciaddr,
        requested_addr: present(options, code::REQUESTED_ADDR, Options::addr),
        server_id: present(options, code::SERVER_ID, Options::addr),
        lease_secs: present(options, code::LEASE_TIME, Options::u32),
        parameters: options.non_empty(code::PARAMETER_LIST).unwrap_or_default(),
        max_message_len: present(options, code::MAX_MESSAGE_SIZE, Options::u16),
        host_name: options.non_empty(code::HOST_NAME).map(without_nuls),
        arch,
        ndi: present(options, code::NDI, Options::fixed::<3>),
        vendor_class,
        vendor_options: options.get(code::VENDOR_OPTIONS).map(<[u8]>::to_vec),
        user_class,
        is_ipxe,
        is_http_client,
        is_pxe_client,
        uuid: uuid(options),
        relay,
        notes: Vec::new(),
    };
    ClientInfo {
        notes: options.notes().to_vec(),
        ..client
    }
}

/// A typed option when it is there; absence is no mistake and leaves no note.
fn present<T>(
    options: &mut Options,
    code: u8,
    read: impl Fn(&mut Options, u8) -> Option<T>,
) -> Option<T> {
    options
        .contains(code)
        .then(|| read(options, code))
        .flatten()
}

/// Text options may end in NULs, which are not part of them (RFC 2132 section 2).
fn without_nuls(mut text: Vec<u8>) -> Vec<u8> {
    text.truncate(
        text.iter()
            .rposition(|octet| *octet != 0)
            .map_or(0, |last| last + 1),
    );
    text
}

/// Option 61; shorter than two octets is noted and absent (RFC 2132 section 9.14).
fn client_id(options: &mut Options) -> Option<Vec<u8>> {
    let id = options.get(code::CLIENT_ID)?.to_vec();
    if id.len() < 2 {
        options.note(code::CLIENT_ID, NoteKind::BadLength { len: id.len() });
        return None;
    }
    Some(id)
}

/// Option 93 is a list of architectures; the first is the one that runs (RFC 4578 section 2.1).
fn arch(options: &mut Options) -> Option<u16> {
    let value = options.get(code::ARCH)?;
    let (first, len) = (value.first_chunk::<2>().copied(), value.len());
    if first.is_none() || !len.is_multiple_of(2) {
        options.note(code::ARCH, NoteKind::BadLength { len });
    }
    first.map(u16::from_be_bytes)
}

/// `PXEClient:Arch:xxxxx:UNDI:yyyzzz`, decimal (PXE 2.1; UEFI HTTP boot says the same after `HTTPClient`).
fn arch_of_vendor_class(class: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(class).ok()?;
    let mut parts = text.split(':');
    let _client = parts.next()?;
    (parts.next()? == "Arch")
        .then(|| parts.next()?.parse().ok())
        .flatten()
}

/// Option 97: type 0 and 16 octets (RFC 4578 section 2.3).
fn uuid(options: &mut Options) -> Option<[u8; 16]> {
    let [kind, uuid @ ..] = present(options, code::UUID, Options::fixed::<17>)?;
    if kind != 0 {
        options.note(code::UUID, NoteKind::BadValue);
        return None;
    }
    Some(uuid)
}

fn relay(message: &mut Message) -> Option<RelayInfo> {
    let raw = message.options.get(code::RELAY_AGENT).map(<[u8]>::to_vec);
    if message.giaddr.is_unspecified() && raw.is_none() {
        return None;
    }
    let mut relay = RelayInfo {
        giaddr: message.giaddr,
        hops: message.hops,
        circuit_id: None,
        remote_id: None,
        link_selection: None,
        source_port: false,
        raw: None,
    };
    let value = raw.as_deref().unwrap_or_default();
    let (subs, whole) = sub_options(value);
    if !whole {
        message
            .options
            .note(code::RELAY_AGENT, NoteKind::BadLength { len: value.len() });
    }
    for (sub, value) in subs {
        match sub {
            1 => relay.circuit_id = Some(value.to_vec()),
            2 => relay.remote_id = Some(value.to_vec()),
            5 => relay.link_selection = value.first_chunk::<4>().copied().map(Ipv4Addr::from),
            19 => relay.source_port = true,
            _ => {}
        }
    }
    relay.raw = raw;
    Some(relay)
}
