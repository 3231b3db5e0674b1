//! How an answer is put on the wire: header, option order, boot options per kind of client, size.
//!
//! The reply header is the request's, as RFC 2131 table 3 wants; options are encoded one by one
//! through dhcproto, because its option map would sort them and clients ask for an order.

use std::net::{Ipv4Addr, SocketAddrV4};

use dhcproto::v4::{DhcpOption, Encodable, Encoder, MessageType as Wire, Opcode, UnknownOption};

use super::client::Request;
use super::config::Scope;
use super::options::code;
use super::{BootFile, CLIENT_PORT, ClientInfo, Destination, Ingress, Refused, Reply, SERVER_PORT};

/// BOOTP's minimum (RFC 1542 section 2.1); relays and old clients drop shorter messages.
const PAYLOAD_LEN_MIN: usize = 300;
/// What every client takes (RFC 2131 section 2): 576 octets of IP datagram.
const MESSAGE_LEN_DEFAULT: u16 = 576;
/// IPv4 header without options, and UDP header.
const IP_UDP_LEN: usize = 28;
/// `file` is 128 octets and must end in NUL.
const FILE_LEN_MAX: usize = 127;
/// One option instance; firmware does not join split ones (RFC 3396).
const OPTION_LEN_MAX: usize = 255;
/// PXE 2.1: encapsulated option 6, discovery control, bit 3: use the file given, ask nobody else.
const PXE_NO_DISCOVERY: [u8; 4] = [6, 1, 8, 255];
/// What the boot ROM of a Raspberry Pi looks for before it fetches anything: no multicast discovery,
/// a menu prompt without a wait, and a menu whose one entry has this very text. Nobody else gets it
/// (raspberrypi/rpi-eeprom#60: other firmware would show the menu).
const RASPBERRY_PI_MENU: &[u8] =
    b"\x06\x01\x03\x0a\x04\x00PXE\x09\x14\x00\x00\x11Raspberry Pi Boot\xff";
/// iPXE's option 176 inside 175: do not wait for ProxyDHCP offers.
const IPXE_NO_PXEDHCP: [u8; 3] = [0xb0, 1, 1];
/// What a client without a parameter list gets.
const DEFAULT_PARAMETERS: [u8; 5] = [1, 3, 6, 15, 28];

/// What kind of answer, with what only that kind carries.
pub(crate) enum Answer {
    Offer {
        addr: Ipv4Addr,
        lease_secs: u32,
        boot: BootFile,
    },
    Ack {
        addr: Ipv4Addr,
        lease_secs: u32,
        boot: BootFile,
    },
    /// To DHCPINFORM: no address, no lease.
    Informed {
        boot: BootFile,
    },
    Nak {
        message: String,
    },
    /// To a BOOTP client: an address, and none of DHCP's own options (RFC 1534 section 2).
    Bootp {
        addr: Ipv4Addr,
        boot: BootFile,
    },
    /// Boot data without an address.
    Boot {
        boot: BootFile,
        /// DHCPOFFER, else DHCPACK.
        offer: bool,
        /// From port 4011 back to where the request came from.
        boot_port: bool,
    },
}

impl Answer {
    fn wire_type(&self) -> Option<Wire> {
        match self {
            Self::Offer { .. } | Self::Boot { offer: true, .. } => Some(Wire::Offer),
            Self::Ack { .. } | Self::Informed { .. } | Self::Boot { offer: false, .. } => {
                Some(Wire::Ack)
            }
            Self::Nak { .. } => Some(Wire::Nak),
            Self::Bootp { .. } => None,
        }
    }

    fn addr(&self) -> Ipv4Addr {
        match self {
            Self::Offer { addr, .. } | Self::Ack { addr, .. } | Self::Bootp { addr, .. } => *addr,
            Self::Informed { .. } | Self::Nak { .. } | Self::Boot { .. } => Ipv4Addr::UNSPECIFIED,
        }
    }

    fn lease_secs(&self) -> Option<u32> {
        match self {
            Self::Offer { lease_secs, .. } | Self::Ack { lease_secs, .. } => Some(*lease_secs),
            Self::Informed { .. } | Self::Nak { .. } | Self::Bootp { .. } | Self::Boot { .. } => {
                None
            }
        }
    }

    fn boot(&self) -> &BootFile {
        match self {
            Self::Offer { boot, .. }
            | Self::Ack { boot, .. }
            | Self::Informed { boot }
            | Self::Bootp { boot, .. }
            | Self::Boot { boot, .. } => boot,
            Self::Nak { .. } => &BootFile::None,
        }
    }

    /// Whether the client's address is somebody else's business.
    fn boot_only(&self) -> bool {
        matches!(self, Self::Boot { .. })
    }
}

/// Builds the datagram and says where it goes.
///
/// # Errors
/// [`Refused::BootFile`] or [`Refused::ReplyTooLong`].
pub(crate) fn build(
    request: &Request,
    ingress: &Ingress,
    scope: &Scope,
    answer: &Answer,
    len_max: usize,
) -> Result<Reply, Refused> {
    let client = &request.client;
    check_boot_file(answer.boot())?;
    let nak = matches!(answer, Answer::Nak { .. });
    let mut header = request.header.clone();
    header
        .set_opcode(Opcode::BootReply)
        .set_hops(0)
        .set_secs(0)
        .set_yiaddr(answer.addr());
    header.set_siaddr(Ipv4Addr::UNSPECIFIED);
    if !matches!(
        answer,
        Answer::Ack { .. }
            | Answer::Informed { .. }
            | Answer::Bootp { .. }
            | Answer::Boot { offer: false, .. }
    ) {
        header.set_ciaddr(Ipv4Addr::UNSPECIFIED);
    }
    // The relay must broadcast a NAK: the client has no address (RFC 2131 section 4.3.2).
    if nak && !client.giaddr().is_unspecified() {
        header.set_flags(header.flags().set_broadcast());
    }
    match answer.boot() {
        BootFile::None | BootFile::NextDevice => {}
        BootFile::File { next_server, name } => {
            header.set_siaddr(*next_server);
            if name.len() <= FILE_LEN_MAX {
                header.set_fname(name.as_bytes());
            }
        }
        BootFile::Url(url) => {
            // iPXE takes a ProxyDHCP offer as complete only with a next server, and asks port 4011
            // otherwise.
            if answer.boot_only() {
                header.set_siaddr(ingress.server_addr);
            }
            if url.len() <= FILE_LEN_MAX {
                header.set_fname(url.as_bytes());
            }
        }
    }
    let mut payload = Vec::with_capacity(512);
    header
        .encode(&mut Encoder::new(&mut payload))
        .map_err(|_| Refused::ReplyTooLong { max: len_max })?;

    let message_len = client
        .max_message_len
        .unwrap_or(MESSAGE_LEN_DEFAULT)
        .max(MESSAGE_LEN_DEFAULT);
    let mut len_max = len_max.min(usize::from(message_len) - IP_UDP_LEN);
    if matches!(answer, Answer::Bootp { .. }) {
        // RFC 1542 section 2.1: a BOOTP client need not take more; option 82 goes off at the relay.
        len_max = PAYLOAD_LEN_MIN + relay_option_len(client);
    }
    append_options(
        &mut payload,
        client,
        options(client, ingress, scope, answer),
        len_max,
    )?;
    payload.resize(payload.len().max(PAYLOAD_LEN_MIN), 0);
    Ok(Reply {
        payload,
        to: match answer {
            Answer::Boot {
                boot_port: true, ..
            } => Destination::BootPort(ingress.source),
            _ => destination(client, ingress, scope, answer.addr(), nak),
        },
    })
}

/// Octets that option 82 takes in the reply.
fn relay_option_len(client: &ClientInfo) -> usize {
    let raw = client.relay.as_ref().and_then(|relay| relay.raw.as_ref());
    raw.map_or(0, |value| value.len() + 2)
}

fn check_boot_file(boot: &BootFile) -> Result<(), Refused> {
    // A File gets a NUL in option 67, a URL does not.
    let (text, len_max) = match boot {
        BootFile::None | BootFile::NextDevice => return Ok(()),
        BootFile::File { name, .. } => (name, OPTION_LEN_MAX - 1),
        BootFile::Url(url) => (url, OPTION_LEN_MAX),
    };
    let fits = (1..=len_max).contains(&text.len());
    if !fits || !text.bytes().all(|octet| octet.is_ascii_graphic()) {
        return Err(Refused::BootFile {
            found: text.chars().take(300).collect(),
            len_max,
        });
    }
    Ok(())
}

/// One option and whether the reply is useless without it.
struct Item {
    option: DhcpOption,
    essential: bool,
}

fn options(client: &ClientInfo, ingress: &Ingress, scope: &Scope, answer: &Answer) -> Vec<Item> {
    let essential = |option| Item {
        option,
        essential: true,
    };
    let mut items = Vec::new();
    if let Some(wire_type) = answer.wire_type() {
        items.push(essential(DhcpOption::MessageType(wire_type)));
        items.push(essential(DhcpOption::ServerIdentifier(ingress.server_addr)));
    }
    if let Answer::Nak { message } = answer {
        items.push(Item {
            option: DhcpOption::Message(message.clone()),
            essential: false,
        });
        return items;
    }
    let mut done = vec![code::MESSAGE_TYPE, code::SERVER_ID];
    // First what is asked for, in the order asked (RFC 2131 section 4.3.1), then what the client
    // needs whether it asked or not.
    let asked: &[u8] = if client.parameters.is_empty() {
        &DEFAULT_PARAMETERS
    } else {
        &client.parameters
    };
    let needed = [
        code::LEASE_TIME,
        1,
        58,
        59,
        code::VENDOR_CLASS,
        code::VENDOR_OPTIONS,
        67,
        97,
        175,
    ];
    let lease_time_first = [code::LEASE_TIME];
    for (&wanted, asked_for) in lease_time_first
        .iter()
        .map(|c| (c, false))
        .chain(asked.iter().map(|c| (c, true)))
        .chain(needed.iter().map(|c| (c, false)))
    {
        if done.contains(&wanted) {
            continue;
        }
        if let Some(option) = value(wanted, asked_for, client, scope, answer) {
            done.push(wanted);
            let essential = matches!(wanted, 1 | 3 | 43 | 51 | 60 | 67);
            items.push(Item { option, essential });
        }
    }
    items
}

/// The value of one option for this client, if there is one.
fn value(
    wanted: u8,
    asked_for: bool,
    client: &ClientInfo,
    scope: &Scope,
    answer: &Answer,
) -> Option<DhcpOption> {
    let lease_secs = answer.lease_secs();
    let boot = answer.boot();
    let boot_only = answer.boot_only();
    // What makes an OFFER without an address a ProxyDHCP offer is its option 60, for iPXE too.
    let pxe = match boot {
        BootFile::None | BootFile::NextDevice => false,
        BootFile::File { .. } => client.is_pxe_client || boot_only && client.is_ipxe,
        BootFile::Url(_) => boot_only && (client.is_ipxe || client.is_pxe_client),
    };
    let http = client.is_http_client && !client.is_ipxe && matches!(boot, BootFile::Url(_));
    let list = |addrs: &Vec<Ipv4Addr>| (!addrs.is_empty()).then(|| addrs.clone());
    match wanted {
        1 | 3 | 6 | 15 | 28 if boot_only => None,
        1 => Some(DhcpOption::SubnetMask(scope.subnet.mask())),
        3 => list(&scope.routers).map(DhcpOption::Router),
        6 => list(&scope.dns).map(DhcpOption::DomainNameServer),
        15 => scope.domain.clone().map(DhcpOption::DomainName),
        28 => Some(DhcpOption::BroadcastAddr(scope.subnet.broadcast())),
        code::LEASE_TIME => lease_secs.map(DhcpOption::AddressLeaseTime),
        58 => lease_secs.map(|secs| DhcpOption::Renewal(secs / 2)),
        59 => lease_secs.map(|secs| DhcpOption::Rebinding((u64::from(secs) * 7 / 8) as u32)),
        // PXEClient never leaves without discovery control: UEFI firmware would take it for BINL
        // and ask port 4011.
        code::VENDOR_CLASS if pxe => Some(DhcpOption::ClassIdentifier(b"PXEClient".to_vec())),
        code::VENDOR_CLASS if http => Some(DhcpOption::ClassIdentifier(b"HTTPClient".to_vec())),
        code::VENDOR_OPTIONS if pxe && client.is_raspberry_pi() => {
            Some(DhcpOption::VendorExtensions(RASPBERRY_PI_MENU.to_vec()))
        }
        code::VENDOR_OPTIONS if pxe => {
            Some(DhcpOption::VendorExtensions(PXE_NO_DISCOVERY.to_vec()))
        }
        // PXE 2.1 wants the machine identifier back.
        code::UUID if pxe => client.uuid.map(|uuid| {
            let mut value = vec![0];
            value.extend_from_slice(&uuid);
            raw(code::UUID, value)
        }),
        66 => match boot {
            BootFile::File { next_server, .. } => Some(DhcpOption::TFTPServerName(
                next_server.to_string().into_bytes(),
            )),
            BootFile::None | BootFile::NextDevice | BootFile::Url(_) => None,
        },
        // RFC 5859: TFTP server addresses, for clients that ask for them.
        150 => match boot {
            BootFile::File { next_server, .. } if asked_for => {
                Some(raw(150, next_server.octets().to_vec()))
            }
            _ => None,
        },
        67 => boot_file_option(boot, asked_for),
        code::IPXE if client.is_ipxe && boot.name().is_some() && !boot_only => {
            Some(raw(code::IPXE, IPXE_NO_PXEDHCP.to_vec()))
        }
        _ => None,
    }
}

/// Option 67. A file name goes into `file` anyway and repeats here only on request or when it is
/// too long for `file`; it carries a NUL, since old ROMs read on to the next option without one.
/// A URL always goes here, without NUL (RFC 2132 section 2).
fn boot_file_option(boot: &BootFile, asked_for: bool) -> Option<DhcpOption> {
    match boot {
        BootFile::None | BootFile::NextDevice => None,
        BootFile::File { name, .. } => (asked_for || name.len() > FILE_LEN_MAX).then(|| {
            let mut value = name.clone().into_bytes();
            value.push(0);
            DhcpOption::BootfileName(value)
        }),
        BootFile::Url(url) => Some(DhcpOption::BootfileName(url.clone().into_bytes())),
    }
}

fn raw(code: u8, value: Vec<u8>) -> DhcpOption {
    DhcpOption::Unknown(UnknownOption::new(code.into(), value))
}

/// Appends the options that fit, then option 82 as it came (last, RFC 3046 section 2.2), then END.
fn append_options(
    payload: &mut Vec<u8>,
    client: &ClientInfo,
    items: Vec<Item>,
    len_max: usize,
) -> Result<(), Refused> {
    let mut scratch = Vec::with_capacity(OPTION_LEN_MAX + 2);
    let mut tail = Vec::new();
    if let Some(value) = client.relay.as_ref().and_then(|relay| relay.raw.clone()) {
        if value.is_empty() {
            tail.extend_from_slice(&[code::RELAY_AGENT, 0]);
        } else {
            encode(&raw(code::RELAY_AGENT, value), &mut scratch, &mut tail)?;
        }
    }
    tail.push(255);
    let header_len = payload.len();
    // Where each option ends in `payload`, and whether it must stay.
    let mut ends = Vec::with_capacity(items.len());
    for item in items {
        encode(&item.option, &mut scratch, payload)?;
        ends.push((item.essential, payload.len()));
    }
    while payload.len() + tail.len() > len_max {
        let last = ends.iter().rposition(|(essential, _)| !essential);
        let Some(last) = last else {
            return Err(Refused::ReplyTooLong { max: len_max });
        };
        let start = last.checked_sub(1).map_or(header_len, |i| ends[i].1);
        let (_, end) = ends.remove(last);
        payload.drain(start..end);
        for (_, later) in &mut ends[last..] {
            *later -= end - start;
        }
    }
    payload.extend_from_slice(&tail);
    Ok(())
}

/// Encodes through dhcproto; it fails on lengths only, which were checked before. `scratch` because its
/// encoder begins at the front of the buffer it is given.
fn encode(what: &impl Encodable, scratch: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<(), Refused> {
    scratch.clear();
    what.encode(&mut Encoder::new(scratch))
        .map_err(|_| Refused::ReplyTooLong {
            max: OPTION_LEN_MAX,
        })?;
    out.extend_from_slice(scratch);
    Ok(())
}

/// RFC 2131 section 4.1; the relay's port by RFC 8357.
fn destination(
    client: &ClientInfo,
    ingress: &Ingress,
    scope: &Scope,
    yiaddr: Ipv4Addr,
    nak: bool,
) -> Destination {
    if let Some(relay) = client
        .relay
        .as_ref()
        .filter(|relay| !relay.giaddr.is_unspecified())
    {
        let port = if relay.source_port {
            ingress.source.port()
        } else {
            SERVER_PORT
        };
        return Destination::Relay(SocketAddrV4::new(relay.giaddr, port));
    }
    // Without an address in it, an OFFER has nobody to be framed to.
    if nak || (yiaddr.is_unspecified() && client.ciaddr.is_unspecified()) {
        return Destination::Broadcast;
    }
    if !client.ciaddr.is_unspecified() {
        if !scope.subnet.contains(ingress.server_addr) {
            return Destination::Relay(SocketAddrV4::new(client.ciaddr, CLIENT_PORT));
        }
        return Destination::Unicast {
            mac: client.mac,
            addr: client.ciaddr,
        };
    }
    if client.broadcast {
        return Destination::Broadcast;
    }
    Destination::Unicast {
        mac: client.mac,
        addr: yiaddr,
    }
}
