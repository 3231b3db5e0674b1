//! DHCPv4 and BOOTP: datagrams to or from ports 67, 68 and 4011.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use netstack::capture::{Datagram, Frame};
use netstack::dhcp::{
    BootAnswer, BootFile, ClientInfo, Config, Ingress, Message, NoteKind, OptionNote, Outcome,
    Pool, Reservation, ReservedFor, Scope, Server, Subnet, sub_options, user_class,
};
use netstack::{Explanation, MacAddr};
use serde::Serialize;

use super::{Fault, Inspect, Seen, colons, cut, datagram, printable, text_or_hex};

/// Server, client, and PXE boot server (PXE 2.1 section 2.2.3).
const PORTS: [u16; 3] = [67, 68, 4011];
/// Octets before the options.
const HEADER_LEN: usize = 240;
const COOKIE: std::ops::Range<usize> = 236..240;

/// The server that is asked what it would reply: it serves every network, gives each client the
/// address it wants, and has a boot file for everybody. A message that it refuses is wrong in
/// itself.
const PERMISSIVE_SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PERMISSIVE_POOL: Pool = Pool {
    start: Ipv4Addr::new(10, 77, 1, 0),
    end: Ipv4Addr::new(10, 77, 1, 99),
};
const PERMISSIVE_LEASE_SECS: u32 = 600;

mod code {
    pub const REQUESTED_ADDR: u8 = 50;
    pub const MESSAGE_TYPE: u8 = 53;
    pub const SERVER_ID: u8 = 54;
    pub const PARAMETER_LIST: u8 = 55;
    pub const VENDOR_CLASS: u8 = 60;
    pub const CLIENT_ID: u8 = 61;
    pub const USER_CLASS: u8 = 77;
    pub const RELAY_AGENT: u8 = 82;
    pub const ARCH: u8 = 93;
    pub const UUID: u8 = 97;
}

/// Field names as in docs/INSPECT.md.
#[derive(Default, Serialize)]
pub(super) struct Fields {
    op: Option<u8>,
    message_type: Option<u8>,
    message_type_name: Option<&'static str>,
    htype: Option<u8>,
    hops: Option<u8>,
    xid: Option<String>,
    secs: Option<u16>,
    broadcast: Option<bool>,
    chaddr: Option<String>,
    ciaddr: Option<Ipv4Addr>,
    yiaddr: Option<Ipv4Addr>,
    siaddr: Option<Ipv4Addr>,
    giaddr: Option<Ipv4Addr>,
    sname: Option<String>,
    file: Option<String>,
    arch: Option<u16>,
    vendor_class: Option<String>,
    user_class: Vec<String>,
    client_id: Option<String>,
    uuid: Option<String>,
    parameter_list: Vec<u8>,
    options: BTreeMap<u8, String>,
    relay: Option<RelayField>,
    would_reply: bool,
    reply: Option<ReplyField>,
    refused: Option<RefusedField>,
}

#[derive(Serialize)]
struct RelayField {
    circuit_id: Option<String>,
    circuit_id_text: Option<String>,
    remote_id: Option<String>,
    remote_id_text: Option<String>,
}

/// What the permissive server would send.
#[derive(Serialize)]
struct ReplyField {
    message_type: Option<u8>,
    message_type_name: Option<&'static str>,
    yiaddr: Ipv4Addr,
    file: String,
    len: usize,
}

/// Why it would not, or would say no.
#[derive(Serialize)]
struct RefusedField {
    code: &'static str,
    expected: String,
    found: String,
    source: &'static str,
    next: &'static str,
}

impl From<Explanation> for RefusedField {
    fn from(explained: Explanation) -> Self {
        let Explanation {
            code,
            expected,
            found,
            source,
            next,
        } = explained;
        Self {
            code,
            expected,
            found,
            source,
            next,
        }
    }
}

/// Every message stands for itself: it is asked of a server that knows nobody.
pub(super) struct Dhcp;

impl Inspect for Dhcp {
    type Fields = Fields;

    fn look(&mut self, frame: &Frame<'_>) -> Seen<Fields> {
        let (seen, vlan) = match datagram(frame) {
            Ok(seen) => seen,
            Err(error) => return Seen::fault(error.into()),
        };
        let (source, destination) = (seen.source.to_string(), seen.destination.to_string());
        let is_dhcp = seen.source.is_ipv4()
            && [seen.source, seen.destination]
                .iter()
                .any(|end| PORTS.contains(&end.port()));
        let (fault, fields, notes) = if is_dhcp {
            message(&seen)
        } else {
            let fault = Fault::new(
                "dhcp.not_dhcp",
                "UDP port 67, 68 or 4011 over IPv4",
                format!("UDP {source} to {destination}"),
            );
            (Some(fault), Fields::default(), Vec::new())
        };
        Seen {
            fault,
            source: Some(source),
            destination: Some(destination),
            vlan,
            fields,
            notes,
        }
    }
}

fn message(seen: &Datagram<'_>) -> (Option<Fault>, Fields, Vec<Fault>) {
    let payload = seen.payload;
    let (message, fault) = match Message::parse(payload) {
        Ok(message) => (message, None),
        Err(refused) => match without_options(payload) {
            // RFC 951: a BOOTP message without a vendor area is a whole one.
            Some((message, true)) => (message, None),
            Some((message, false)) => (message, Some(refused.explain().into())),
            None => {
                return (
                    Some(refused.explain().into()),
                    Fields::default(),
                    Vec::new(),
                );
            }
        },
    };
    let outcome = ask(payload, &message, seen.source);
    let notes = match &outcome.client {
        Some(client) => client.notes.as_slice(),
        None => message.options.notes(),
    };
    let broken = notes.iter().find(|note| is_fault(note)).map(explain);
    let notes = notes.iter().map(explain).collect();
    let fields = fields(&message, &outcome);
    (fault.or(broken).or_else(|| cut(seen)), fields, notes)
}

/// The header of a message that has no DHCP cookie, and whether that is no fault.
fn without_options(payload: &[u8]) -> Option<(Message, bool)> {
    let mut header = payload.get(..HEADER_LEN)?.to_vec();
    let no_vendor_area = header[COOKIE] == [0; 4];
    header[COOKIE].copy_from_slice(&[99, 130, 83, 99]);
    header.push(255);
    Some((Message::parse(&header).ok()?, no_vendor_area))
}

fn fields(message: &Message, outcome: &Outcome) -> Fields {
    let options = &message.options;
    let get = |code| options.get(code).filter(|value| !value.is_empty());
    let message_type = get(code::MESSAGE_TYPE).map(|value| value[0]);
    let hlen = usize::from(message.hlen).min(message.chaddr.len());
    let arch = get(code::ARCH)
        .and_then(|value| value.first_chunk::<2>())
        .map(|octets| u16::from_be_bytes(*octets));
    let arch = arch.or_else(|| outcome.client.as_ref().and_then(|client| client.arch));
    let classes = get(code::USER_CLASS).map(user_class).unwrap_or_default();
    let reply = outcome.reply.as_ref();
    Fields {
        op: Some(message.op),
        message_type,
        message_type_name: message_type.and_then(message_type_name),
        htype: Some(message.htype),
        hops: Some(message.hops),
        xid: Some(format!("{:#010x}", message.xid)),
        secs: Some(message.secs),
        broadcast: Some(message.flags & 0x8000 != 0),
        chaddr: Some(colons(&message.chaddr[..hlen])),
        ciaddr: Some(message.ciaddr),
        yiaddr: Some(message.yiaddr),
        siaddr: Some(message.siaddr),
        giaddr: Some(message.giaddr),
        sname: Some(String::from_utf8_lossy(&message.sname).into_owned()),
        file: Some(String::from_utf8_lossy(&message.file).into_owned()),
        arch,
        vendor_class: get(code::VENDOR_CLASS).map(text_or_hex),
        user_class: classes.iter().map(|class| text_or_hex(class)).collect(),
        client_id: get(code::CLIENT_ID).map(hex::encode),
        uuid: get(code::UUID).and_then(uuid),
        parameter_list: get(code::PARAMETER_LIST).unwrap_or_default().to_vec(),
        options: options
            .iter()
            .map(|(code, value)| (code, hex::encode(value)))
            .collect(),
        relay: options.get(code::RELAY_AGENT).map(relay),
        would_reply: reply.is_some(),
        reply: reply.and_then(|reply| reply_field(&reply.payload)),
        refused: outcome
            .refused
            .as_ref()
            .map(|refused| refused.explain().into()),
    }
}

fn reply_field(payload: &[u8]) -> Option<ReplyField> {
    let message = Message::parse(payload).ok()?;
    let message_type = message.options.get(code::MESSAGE_TYPE);
    let message_type = message_type.and_then(|value| value.first().copied());
    Some(ReplyField {
        message_type,
        message_type_name: message_type.and_then(message_type_name),
        yiaddr: message.yiaddr,
        file: String::from_utf8_lossy(&message.file).into_owned(),
        len: payload.len(),
    })
}

fn relay(value: &[u8]) -> RelayField {
    let (subs, _) = sub_options(value);
    let sub = |wanted: u8| {
        let found = subs.iter().find(|(code, _)| *code == wanted);
        found.map(|(_, value)| *value)
    };
    let (circuit, remote) = (sub(1), sub(2));
    RelayField {
        circuit_id: circuit.map(hex::encode),
        circuit_id_text: circuit.and_then(printable),
        remote_id: remote.map(hex::encode),
        remote_id_text: remote.and_then(printable),
    }
}

/// Option 97 as SMBIOS and the firmware's own screen write it: the first three fields are
/// little-endian there (RFC 4578 section 2.3 leaves it open; every firmware sends it so).
fn uuid(value: &[u8]) -> Option<String> {
    let [_, u @ ..] = *value.first_chunk::<17>()?;
    let text = |octets: &[u8]| hex::encode(octets);
    Some(format!(
        "{}-{}-{}-{}-{}",
        text(&[u[3], u[2], u[1], u[0]]),
        text(&[u[5], u[4]]),
        text(&[u[7], u[6]]),
        text(&u[8..10]),
        text(&u[10..]),
    ))
}

/// RFC 2132 section 9.6, and the registry after it.
fn message_type_name(value: u8) -> Option<&'static str> {
    const NAMES: [&str; 18] = [
        "DHCPDISCOVER",
        "DHCPOFFER",
        "DHCPREQUEST",
        "DHCPDECLINE",
        "DHCPACK",
        "DHCPNAK",
        "DHCPRELEASE",
        "DHCPINFORM",
        "DHCPFORCERENEW",
        "DHCPLEASEQUERY",
        "DHCPLEASEUNASSIGNED",
        "DHCPLEASEUNKNOWN",
        "DHCPLEASEACTIVE",
        "DHCPBULKLEASEQUERY",
        "DHCPLEASEQUERYDONE",
        "DHCPACTIVELEASEQUERY",
        "DHCPLEASEQUERYSTATUS",
        "DHCPTLS",
    ];
    NAMES.get(usize::from(value).checked_sub(1)?).copied()
}

/// Whether an option was lost because its form is broken; the others only leave a note.
fn is_fault(note: &OptionNote) -> bool {
    match note.kind {
        NoteKind::Truncated { .. } | NoteKind::NoLength => true,
        NoteKind::NoEnd
        | NoteKind::BadLength { .. }
        | NoteKind::BadOverload
        | NoteKind::Repeated
        | NoteKind::BadValue => false,
    }
}

fn explain(note: &OptionNote) -> Fault {
    let option = note.code;
    let (code, expected, found) = match note.kind {
        NoteKind::Truncated { announced, left } => (
            "dhcp.option_truncated",
            format!("option {option} of {announced} bytes"),
            format!("{left} bytes left"),
        ),
        NoteKind::NoLength => (
            "dhcp.option_no_length",
            format!("a length after code {option}"),
            "the end of the field".into(),
        ),
        NoteKind::NoEnd => (
            "dhcp.no_end",
            "END (255)".into(),
            "the end of the options field".into(),
        ),
        NoteKind::BadLength { len } => (
            "dhcp.option_length",
            format!("the length of option {option}'s type"),
            format!("{len} bytes"),
        ),
        NoteKind::BadOverload => (
            "dhcp.option_overload",
            "option 52 of 1, 2 or 3, in the options field".into(),
            "another value or place".into(),
        ),
        NoteKind::Repeated => (
            "dhcp.option_repeated",
            format!("option {option} once"),
            "more than one; the first counts".into(),
        ),
        NoteKind::BadValue => (
            "dhcp.option_value",
            format!("a value that option {option} can have"),
            "one it cannot".into(),
        ),
    };
    Fault::new(code, expected, found)
}

/// A boot file for everybody.
struct EveryBoot;

impl BootAnswer for EveryBoot {
    fn boot(&self, client: &ClientInfo) -> BootFile {
        if client.is_http_client || client.is_ipxe {
            BootFile::Url("http://10.77.0.1/boot".into())
        } else {
            BootFile::File {
                next_server: PERMISSIVE_SERVER,
                name: "boot.efi".into(),
            }
        }
    }
}

/// Asks the daemon's own server, new and permissive, for its answer to this message.
fn ask(payload: &[u8], message: &Message, source: SocketAddr) -> Outcome {
    let addr = |code| {
        let value = message.options.get(code)?;
        value.first_chunk::<4>().copied().map(Ipv4Addr::from)
    };
    let everywhere = Subnet::new(Ipv4Addr::UNSPECIFIED, 0);
    let Some(subnet) = everywhere else {
        return Outcome::default();
    };
    let mut scope = Scope::new(subnet, PERMISSIVE_POOL, PERMISSIVE_LEASE_SECS);
    let wanted = addr(code::REQUESTED_ADDR).unwrap_or(message.ciaddr);
    let [a, b, c, d, e, f, ..] = message.chaddr;
    if subnet.is_host(wanted) {
        scope.reservations.push(Reservation {
            client: ReservedFor::Mac(MacAddr([a, b, c, d, e, f])),
            addr: wanted,
        });
    }
    let source = match (source.ip(), source.port()) {
        (IpAddr::V4(ip), port) => SocketAddrV4::new(ip, port),
        (IpAddr::V6(_), port) => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port),
    };
    let ingress = Ingress {
        // The server that the client chose: otherwise every DHCPREQUEST would be another's.
        server_addr: addr(code::SERVER_ID).unwrap_or(PERMISSIVE_SERVER),
        source,
        iface: "capture".into(),
    };
    Server::new(Config::single(scope)).handle(0, payload, &ingress, &EveryBoot)
}
