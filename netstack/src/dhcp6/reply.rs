//! How an answer is put on the wire: identifiers, identity associations, boot options per kind of
//! client, and the way back through the relays.

use std::net::{Ipv6Addr, SocketAddrV6};

use super::config::{Config, encode_name};
use super::message::{MessageType, RELAY_REPLY};
use super::options::{code, put};
use super::{
    BootFile, CLIENT_PORT, ClientInfo, Duid, IaKind, Ingress, Refused, Reply, SERVER_PORT,
};

/// Longest boot file URL: address, digest and file name of a catalogue entry need below 200.
const URL_LEN_MAX: usize = 512;
/// Enterprise number of PXE and UEFI HTTP boot (Intel), when the client named none.
const ENTERPRISE_PXE: u32 = 343;
/// Most an Information-request client waits before it asks again, at least `IRT_MINIMUM`.
const REFRESH_SECS_MIN: u32 = 600;

/// Status codes (RFC 8415 section 21.13) with what an operator reads in a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Success,
    NoAddrsAvail,
    NoBinding,
    NotOnLink,
    NoPrefixAvail,
}

impl Status {
    fn number(self) -> u16 {
        match self {
            Self::Success => 0,
            Self::NoAddrsAvail => 2,
            Self::NoBinding => 3,
            Self::NotOnLink => 4,
            Self::NoPrefixAvail => 6,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::NoAddrsAvail => "no address available",
            Self::NoBinding => "no binding on record",
            Self::NotOnLink => "address is not on this link",
            Self::NoPrefixAvail => "prefixes are not delegated here",
        }
    }
}

/// What is said of one identity association.
pub(crate) struct IaAnswer {
    pub kind: IaKind,
    pub iaid: u32,
    /// Addresses and their lifetime in seconds; 0 takes one away.
    pub addrs: Vec<(Ipv6Addr, u32)>,
    pub status: Option<Status>,
}

/// One answer.
pub(crate) struct Answer {
    pub msg_type: MessageType,
    pub ias: Vec<IaAnswer>,
    pub status: Option<Status>,
    pub rapid_commit: bool,
    /// Whether DNS and boot options belong into it.
    pub boot: Option<BootFile>,
}

/// Whether a boot answer can be sent at all; asked before anything is leased.
///
/// # Errors
/// [`Refused::BootFile`].
pub(crate) fn check_boot_file(boot: &BootFile) -> Result<(), Refused> {
    let BootFile::Url(url) = boot else {
        return Ok(());
    };
    let fits = (1..=URL_LEN_MAX).contains(&url.len());
    if fits && url.bytes().all(|octet| octet.is_ascii_graphic()) {
        return Ok(());
    }
    Err(Refused::BootFile {
        found: url.chars().take(300).collect(),
        len_max: URL_LEN_MAX,
    })
}

/// Builds the datagram and says where it goes.
///
/// # Errors
/// [`Refused::ReplyTooLong`].
pub(crate) fn build(
    client: &ClientInfo,
    ingress: &Ingress,
    config: &Config,
    answer: &Answer,
) -> Result<Reply, Refused> {
    let [_, xid @ ..] = client.xid.to_be_bytes();
    let mut message = vec![answer.msg_type as u8];
    message.extend_from_slice(&xid);
    if let Some(duid) = &client.duid {
        put(&mut message, code::CLIENT_ID, duid.as_bytes());
    }
    put(&mut message, code::SERVER_ID, config.duid.as_bytes());
    for ia in &answer.ias {
        put(&mut message, ia.kind.code(), &ia_value(ia));
    }
    if let Some(status) = answer.status {
        put_status(&mut message, status);
    }
    if answer.msg_type == MessageType::Advertise && config.preference > 0 {
        put(&mut message, code::PREFERENCE, &[config.preference]);
    }
    if answer.rapid_commit {
        put(&mut message, code::RAPID_COMMIT, &[]);
    }
    if let Some(boot) = &answer.boot {
        put_boot(&mut message, client, boot);
    }
    // `put` takes lengths of 16 bits: 8 relays' interface identifiers are at most 9,000 octets.
    let around = relayed(client, Vec::new()).len();
    let max = config.limits.reply_len_max;
    if around + message.len() > max {
        return Err(Refused::ReplyTooLong { max });
    }
    if answer.boot.is_some() {
        for (option, value) in settings(client, config) {
            if around + message.len() + 4 + value.len() <= max {
                put(&mut message, option, &value);
            }
        }
    }
    Ok(Reply {
        payload: relayed(client, message),
        to: destination(client, ingress),
        xid: client.xid,
    })
}

fn ia_value(ia: &IaAnswer) -> Vec<u8> {
    let mut value = ia.iaid.to_be_bytes().to_vec();
    // IA_TA has no times. T1 and T2 as RFC 8415 section 21.4 recommends.
    if ia.kind != IaKind::Temporary {
        let shortest = ia
            .addrs
            .iter()
            .map(|(_, secs)| *secs)
            .filter(|secs| *secs > 0)
            .min();
        let shortest = u64::from(shortest.unwrap_or(0));
        for time in [shortest / 2, shortest * 4 / 5] {
            value.extend_from_slice(&(time as u32).to_be_bytes());
        }
    }
    for (addr, secs) in &ia.addrs {
        let mut inner = addr.octets().to_vec();
        inner.extend_from_slice(&secs.to_be_bytes());
        inner.extend_from_slice(&secs.to_be_bytes());
        put(&mut value, code::IA_ADDR, &inner);
    }
    if let Some(status) = ia.status {
        put_status(&mut value, status);
    }
    value
}

fn put_status(out: &mut Vec<u8>, status: Status) {
    let mut value = status.number().to_be_bytes().to_vec();
    value.extend_from_slice(status.text().as_bytes());
    put(out, code::STATUS, &value);
}

/// Options 59 and 16. Option 60 (boot file parameters) is never sent: nothing we boot takes
/// parameters, and EDK2 takes its first string for a file size (edk2 issue 10114).
///
/// `HTTPClient` goes back to UEFI HTTP boot, which waits for it (UEFI 2.10 section 24.7.3);
/// `PXEClient` does not: EDK2 takes such an answer for BINL and asks again on port 4011.
fn put_boot(message: &mut Vec<u8>, client: &ClientInfo, boot: &BootFile) {
    let BootFile::Url(url) = boot else { return };
    put(message, code::BOOT_FILE_URL, url.as_bytes());
    if client.is_http_client && !client.is_ipxe {
        const CLASS: &[u8] = b"HTTPClient";
        let asked = client.vendor_classes.iter();
        let asked = asked.filter(|class| class.data.iter().any(|data| data.starts_with(CLASS)));
        let enterprise = asked.map(|class| class.enterprise).next();
        let mut value = enterprise.unwrap_or(ENTERPRISE_PXE).to_be_bytes().to_vec();
        value.extend_from_slice(&(CLASS.len() as u16).to_be_bytes());
        value.extend_from_slice(CLASS);
        put(message, code::VENDOR_CLASS, &value);
    }
}

/// What is sent when asked for, and left out when it does not fit.
fn settings(client: &ClientInfo, config: &Config) -> Vec<(u16, Vec<u8>)> {
    let mut settings = Vec::new();
    if client.asks_for(code::DNS_SERVERS) && !config.dns.is_empty() {
        let value = config.dns.iter().flat_map(|addr| addr.octets()).collect();
        settings.push((code::DNS_SERVERS, value));
    }
    let domain = config.domain.as_deref().and_then(encode_name);
    if let Some(value) = domain.filter(|_| client.asks_for(code::DOMAIN_LIST)) {
        settings.push((code::DOMAIN_LIST, value));
    }
    let informed = client.message_type == MessageType::InformationRequest;
    if informed && client.asks_for(code::INFORMATION_REFRESH) {
        let secs = config.lease_secs.max(REFRESH_SECS_MIN);
        settings.push((code::INFORMATION_REFRESH, secs.to_be_bytes().to_vec()));
    }
    settings
}

/// Relay-replies around a message, with what each relay wants back (RFC 8415 section 19.3).
fn relayed(client: &ClientInfo, message: Vec<u8>) -> Vec<u8> {
    client.relays.iter().rev().fold(message, |inner, relay| {
        let mut out = vec![RELAY_REPLY, relay.hop_count];
        out.extend_from_slice(&relay.link_address.octets());
        out.extend_from_slice(&relay.peer_address.octets());
        if let Some(id) = &relay.interface_id {
            put(&mut out, code::INTERFACE_ID, id);
        }
        if let Some(port) = &relay.relay_port {
            put(&mut out, code::RELAY_PORT, port);
        }
        put(&mut out, code::RELAY_MESSAGE, &inner);
        out
    })
}

/// To the client at its own address, or to the relay that asked (RFC 8415 section 18.4; the
/// relay's port by RFC 8357).
fn destination(client: &ClientInfo, ingress: &Ingress) -> SocketAddrV6 {
    let port = match client.relays.first() {
        None => CLIENT_PORT,
        Some(relay) if relay.relay_port.is_some() => ingress.source.port(),
        Some(_) => SERVER_PORT,
    };
    SocketAddrV6::new(*ingress.source.ip(), port, 0, ingress.source.scope_id())
}

/// Our DUID as another server's message names it, hex, bounded.
pub(crate) fn server_text(duid: &[u8]) -> String {
    let known = Duid::from_bytes(duid.iter().copied().take(130).collect());
    known.map_or_else(|| "of odd length".into(), |duid| duid.to_string())
}
