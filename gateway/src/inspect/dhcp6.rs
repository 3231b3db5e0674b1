//! DHCPv6: datagrams to or from ports 546 and 547.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use netstack::capture::{Datagram, Frame};
use netstack::dhcp6::{
    BootAnswer, BootFile, CLIENT_PORT, ClientInfo, Config, Duid, Ingress, Message, NoteKind,
    OptionNote, Options, Outcome, Pool, Relay, SERVER_PORT, Server, user_class, vendor_class,
};
use netstack::{Explanation, Ipv6Prefix, MacAddr};
use serde::Serialize;

use super::{Fault, Inspect, Seen, cut, datagram, printable, text_or_hex};

/// Option codes shown by name (RFC 8415 and RFC 5970).
mod code {
    pub const CLIENT_ID: u16 = 1;
    pub const SERVER_ID: u16 = 2;
    pub const IA_NA: u16 = 3;
    pub const IA_TA: u16 = 4;
    pub const IA_ADDR: u16 = 5;
    pub const OPTION_REQUEST: u16 = 6;
    pub const ELAPSED_TIME: u16 = 8;
    pub const STATUS: u16 = 13;
    pub const USER_CLASS: u16 = 15;
    pub const VENDOR_CLASS: u16 = 16;
    pub const IA_PD: u16 = 25;
    pub const BOOT_FILE_URL: u16 = 59;
    pub const BOOT_FILE_PARAMETERS: u16 = 60;
    pub const ARCH: u16 = 61;
}

/// The server that is asked what it would reply: it serves every link and has a boot file for
/// everybody. A message that it refuses is wrong in itself.
const PERMISSIVE_SERVER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);
const PERMISSIVE_POOL: Pool = Pool {
    start: Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 1, 0),
    end: Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 1, 0xff),
};

/// Field names as in docs/INSPECT.md.
#[derive(Default, Serialize)]
pub(super) struct Fields {
    message_type: Option<u8>,
    message_type_name: Option<&'static str>,
    transaction_id: Option<String>,
    client_duid: Option<String>,
    client_uuid: Option<String>,
    client_mac: Option<String>,
    server_duid: Option<String>,
    elapsed_ms: Option<u32>,
    arch: Option<u16>,
    vendor_enterprise: Option<u32>,
    vendor_class: Option<String>,
    user_class: Vec<String>,
    requested_options: Vec<u16>,
    identity_associations: Vec<IaField>,
    status: Option<StatusField>,
    boot_file_url: Option<String>,
    boot_file_parameters: Vec<String>,
    options: BTreeMap<u16, String>,
    relay: Option<RelayField>,
    relays: Vec<RelayField>,
    would_reply: bool,
    reply: Option<ReplyField>,
    refused: Option<RefusedField>,
}

#[derive(Serialize)]
struct IaField {
    kind: &'static str,
    iaid: String,
    addresses: Vec<AddressField>,
    status: Option<StatusField>,
}

#[derive(Serialize)]
struct AddressField {
    address: Ipv6Addr,
    preferred_secs: u32,
    valid_secs: u32,
}

#[derive(Serialize)]
struct StatusField {
    code: u16,
    message: String,
}

#[derive(Clone, Serialize)]
struct RelayField {
    message_type: u8,
    hop_count: u8,
    link_address: Ipv6Addr,
    peer_address: Ipv6Addr,
    interface_id: Option<String>,
    interface_id_text: Option<String>,
    remote_id: Option<String>,
    client_mac: Option<String>,
    options: BTreeMap<u16, String>,
}

/// What the permissive server would send.
#[derive(Serialize)]
struct ReplyField {
    message_type: u8,
    message_type_name: Option<&'static str>,
    boot_file_url: Option<String>,
    len: usize,
}

/// Why it would not, or with which status.
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
pub(super) struct Dhcp6;

impl Inspect for Dhcp6 {
    type Fields = Fields;

    fn look(&mut self, frame: &Frame<'_>) -> Seen<Fields> {
        let (seen, vlan) = match datagram(frame) {
            Ok(seen) => seen,
            Err(error) => return Seen::fault(error.into()),
        };
        let (source, destination) = (seen.source.to_string(), seen.destination.to_string());
        let ports = [seen.source.port(), seen.destination.port()];
        let is_dhcp6 = seen.source.is_ipv6()
            && ports
                .iter()
                .any(|port| [CLIENT_PORT, SERVER_PORT].contains(port));
        let (fault, fields, notes) = if is_dhcp6 {
            message(&seen)
        } else {
            let fault = Fault::new(
                "dhcp6.not_dhcp6",
                "UDP port 546 or 547 over IPv6",
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
    let message = match Message::parse(seen.payload) {
        Ok(message) => message,
        Err(refused) => {
            let fault = Some(refused.explain().into());
            return (fault, Fields::default(), Vec::new());
        }
    };
    let outcome = ask(seen.payload, &message, seen.source);
    let notes = match &outcome.client {
        Some(client) => &client.notes,
        None => message.options.notes(),
    };
    let broken = notes.iter().find(|note| is_fault(note)).map(explain);
    let notes = notes.iter().map(explain).collect();
    let fields = fields(&message, &outcome);
    (broken.or_else(|| cut(seen)), fields, notes)
}

fn fields(message: &Message, outcome: &Outcome) -> Fields {
    let options = &message.options;
    let classes = options
        .get(code::USER_CLASS)
        .map(|value| user_class(value).0);
    let vendor = options
        .get(code::VENDOR_CLASS)
        .and_then(|value| vendor_class(value).0);
    let duid = options.get(code::CLIENT_ID).map(<[u8]>::to_vec);
    let uuid = duid
        .clone()
        .and_then(Duid::from_bytes)
        .and_then(|duid| duid.uuid());
    let client = outcome.client.as_ref();
    let numbers = |code| {
        let pairs = options.get(code).unwrap_or_default().chunks_exact(2);
        pairs.map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
    };
    let arch = numbers(code::ARCH).next();
    let elapsed = options
        .get(code::ELAPSED_TIME)
        .and_then(|value| value.first_chunk::<2>());
    let relays: Vec<RelayField> = message.relays.iter().map(relay).collect();
    let reply = outcome.reply.as_ref();
    Fields {
        message_type: Some(message.msg_type),
        message_type_name: message.message_type().map(|kind| kind.name()),
        transaction_id: Some(format!("{:#08x}", message.xid)),
        client_duid: duid.map(hex::encode),
        client_uuid: uuid.map(uuid_text),
        client_mac: client
            .and_then(|client| client.mac)
            .map(|mac| mac.to_string()),
        server_duid: options.get(code::SERVER_ID).map(hex::encode),
        elapsed_ms: elapsed.map(|time| u32::from(u16::from_be_bytes(*time)) * 10),
        arch: arch.or_else(|| client.and_then(|client| client.arch)),
        vendor_enterprise: vendor.as_ref().map(|class| class.enterprise),
        vendor_class: vendor.and_then(|class| class.data.first().map(|data| text_or_hex(data))),
        user_class: classes
            .iter()
            .flatten()
            .map(|class| text_or_hex(class))
            .collect(),
        requested_options: numbers(code::OPTION_REQUEST).collect(),
        identity_associations: options.iter().filter_map(ia).collect(),
        status: status(options),
        boot_file_url: boot_file_url(options),
        boot_file_parameters: options
            .get(code::BOOT_FILE_PARAMETERS)
            .map(|value| {
                user_class(value)
                    .0
                    .iter()
                    .map(|text| text_or_hex(text))
                    .collect()
            })
            .unwrap_or_default(),
        options: in_hex(options),
        relay: relays.last().cloned(),
        relays,
        would_reply: reply.is_some(),
        reply: reply.and_then(|reply| reply_field(&reply.payload)),
        refused: outcome
            .refused
            .as_ref()
            .map(|refused| refused.explain().into()),
    }
}

/// Every option; one that comes more than once has its values in order, with commas between.
fn in_hex(options: &Options) -> BTreeMap<u16, String> {
    let mut all: BTreeMap<u16, String> = BTreeMap::new();
    for (code, value) in options.iter() {
        let text = hex::encode(value);
        all.entry(code)
            .and_modify(|before| {
                before.push(',');
                before.push_str(&text);
            })
            .or_insert(text);
    }
    all
}

fn boot_file_url(options: &Options) -> Option<String> {
    options.get(code::BOOT_FILE_URL).map(text_or_hex)
}

fn status(options: &Options) -> Option<StatusField> {
    let (number, text) = options.get(code::STATUS)?.split_first_chunk::<2>()?;
    Some(StatusField {
        code: u16::from_be_bytes(*number),
        message: String::from_utf8_lossy(text).into_owned(),
    })
}

fn ia((option, value): (u16, &[u8])) -> Option<IaField> {
    // IA_TA has no T1 and T2.
    let (kind, fixed_len) = match option {
        code::IA_NA => ("ia_na", 12),
        code::IA_TA => ("ia_ta", 4),
        code::IA_PD => ("ia_pd", 12),
        _ => return None,
    };
    let inner = Options::parse(value.get(fixed_len..)?);
    let secs = |value: &[u8], at: usize| {
        let octets = value.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_be_bytes(octets))
    };
    let addresses = inner.all(code::IA_ADDR).filter_map(|value| {
        Some(AddressField {
            address: Ipv6Addr::from(*value.first_chunk::<16>()?),
            preferred_secs: secs(value, 16)?,
            valid_secs: secs(value, 20)?,
        })
    });
    Some(IaField {
        kind,
        iaid: hex::encode(value.get(..4)?),
        addresses: addresses.collect(),
        status: status(&inner),
    })
}

fn relay(relay: &Relay) -> RelayField {
    RelayField {
        message_type: relay.msg_type,
        hop_count: relay.hop_count,
        link_address: relay.link_address,
        peer_address: relay.peer_address,
        interface_id: relay.interface_id.as_deref().map(hex::encode),
        interface_id_text: relay.interface_id.as_deref().and_then(printable),
        remote_id: relay.remote_id.as_deref().map(hex::encode),
        client_mac: relay.client_mac.map(|mac| mac.to_string()),
        options: in_hex(&relay.options),
    }
}

fn reply_field(payload: &[u8]) -> Option<ReplyField> {
    let message = Message::parse(payload).ok()?;
    Some(ReplyField {
        message_type: message.msg_type,
        message_type_name: message.message_type().map(|kind| kind.name()),
        boot_file_url: boot_file_url(&message.options),
        len: payload.len(),
    })
}

/// As it stands in the DUID (RFC 6355 section 4), in the usual groups.
fn uuid_text(uuid: [u8; 16]) -> String {
    let text = hex::encode(uuid);
    let groups = [
        &text[..8],
        &text[8..12],
        &text[12..16],
        &text[16..20],
        &text[20..],
    ];
    groups.join("-")
}

/// Whether octets were lost because a form is broken; the others only leave a note.
fn is_fault(note: &OptionNote) -> bool {
    match note.kind {
        NoteKind::Truncated { .. } | NoteKind::Trailing { .. } => true,
        NoteKind::BadLength { .. }
        | NoteKind::Repeated
        | NoteKind::LittleEndian
        | NoteKind::Unframed
        | NoteKind::TooMany { .. } => false,
    }
}

fn explain(note: &OptionNote) -> Fault {
    let option = note.code;
    let (code, expected, found) = match note.kind {
        NoteKind::Truncated { announced, left } => (
            "dhcp6.option_truncated",
            format!("option {option} of {announced} bytes"),
            format!("{left} bytes left"),
        ),
        NoteKind::Trailing { left } => (
            "dhcp6.trailing",
            "an option's code and length".into(),
            format!("{left} bytes left"),
        ),
        NoteKind::BadLength { len } => (
            "dhcp6.option_length",
            format!("the length of option {option}'s type"),
            format!("{len} bytes"),
        ),
        NoteKind::Repeated => (
            "dhcp6.option_repeated",
            format!("option {option} once"),
            "more than one; the first counts".into(),
        ),
        NoteKind::LittleEndian => (
            "dhcp6.option_little_endian",
            format!("lengths inside option {option} in network order"),
            "little endian; read so".into(),
        ),
        NoteKind::Unframed => (
            "dhcp6.option_unframed",
            format!("a length before each part of option {option}"),
            "none; read as one part".into(),
        ),
        NoteKind::TooMany { max } => (
            "dhcp6.option_too_many",
            format!("at most {max} parts of option {option}"),
            "more; the rest was not read".into(),
        ),
    };
    Fault::new(code, expected, found)
}

/// A boot file for everybody.
struct EveryBoot;

impl BootAnswer for EveryBoot {
    fn boot(&self, client: &ClientInfo) -> BootFile {
        let scheme = if client.is_http_client || client.is_ipxe {
            "http"
        } else {
            "tftp"
        };
        BootFile::Url(format!("{scheme}://[{PERMISSIVE_SERVER}]/boot.efi"))
    }
}

/// Asks the daemon's own server, new and permissive, for its answer to this message.
fn ask(payload: &[u8], message: &Message, source: SocketAddr) -> Outcome {
    let SocketAddr::V6(source) = source else {
        return Outcome::default();
    };
    let ingress = Ingress {
        source: SocketAddrV6::new(*source.ip(), source.port(), 0, 0),
        iface: "capture".into(),
    };
    let named = message.options.get(code::SERVER_ID).map(<[u8]>::to_vec);
    let duid = named.and_then(Duid::from_bytes);
    let duid = duid.unwrap_or_else(|| Duid::link_layer(MacAddr([2, 0, 0, 0, 0, 1])));
    let Some(everywhere) = Ipv6Prefix::new(Ipv6Addr::UNSPECIFIED, 0) else {
        return Outcome::default();
    };
    // The client keeps the address it names.
    let associations = message.options.iter().filter_map(ia);
    let wanted = associations.flat_map(|ia| ia.addresses).map(|a| a.address);
    let pool = match wanted.into_iter().find(|addr| everywhere.is_host(*addr)) {
        Some(addr) => Pool {
            start: addr,
            end: Ipv6Addr::from_bits(addr.to_bits().saturating_add(0xff)),
        },
        None => PERMISSIVE_POOL,
    };
    let mut server = Server::new(Config::new(duid, PERMISSIVE_SERVER, everywhere, pool));
    server.handle(0, payload, &ingress, &EveryBoot)
}
