//! TFTP: packets to or from port 69, and of the conversations that began there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use netstack::capture::{Datagram, Frame};
use netstack::tftp::Packet;
use serde::Serialize;

use super::{Fault, Inspect, Seen, cut, datagram};

/// UDP port of TFTP servers.
const SERVER_PORT: u16 = 69;
/// Conversations remembered; the oldest is forgotten. A storm of a whole site has fewer at once.
const CONVERSATIONS_MAX: usize = 65_536;

/// Field names as in docs/INSPECT.md.
#[derive(Default, Serialize)]
pub(super) struct Fields {
    opcode: Option<u16>,
    opcode_name: Option<&'static str>,
    filename: Option<String>,
    mode: Option<String>,
    options: BTreeMap<String, String>,
    block: Option<u16>,
    data_len: Option<usize>,
    error_code: Option<u16>,
    error_message: Option<String>,
}

/// A client's transfer id and the server it asked. The server answers from a port of its own
/// choice (RFC 1350 section 4).
type Conversation = (SocketAddr, IpAddr);

/// Remembers which conversations are TFTP.
#[derive(Default)]
pub(super) struct Tftp {
    known: BTreeSet<Conversation>,
    order: VecDeque<Conversation>,
}

impl Tftp {
    fn is_tftp(&self, seen: &Datagram<'_>) -> bool {
        let (from, to) = (seen.source, seen.destination);
        from.port() == SERVER_PORT
            || to.port() == SERVER_PORT
            || self.known.contains(&(from, to.ip()))
            || self.known.contains(&(to, from.ip()))
    }

    fn remember(&mut self, conversation: Conversation) {
        if self.known.insert(conversation) {
            self.order.push_back(conversation);
        }
        if self.order.len() > CONVERSATIONS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

impl Inspect for Tftp {
    type Fields = Fields;

    fn look(&mut self, frame: &Frame<'_>) -> Seen<Fields> {
        let (seen, vlan) = match datagram(frame) {
            Ok(seen) => seen,
            Err(error) => return Seen::fault(error.into()),
        };
        let (source, destination) = (seen.source.to_string(), seen.destination.to_string());
        let (fault, fields) = if self.is_tftp(&seen) {
            let (fault, fields) = packet(seen.payload);
            if seen.destination.port() == SERVER_PORT && matches!(fields.opcode, Some(1 | 2)) {
                self.remember((seen.source, seen.destination.ip()));
            }
            (fault.or_else(|| cut(&seen)), fields)
        } else {
            let fault = Fault::new(
                "tftp.not_tftp",
                "UDP port 69, or a conversation that began there in this file",
                format!("UDP {source} to {destination}"),
            );
            (Some(fault), Fields::default())
        };
        Seen {
            fault,
            source: Some(source),
            destination: Some(destination),
            vlan,
            fields,
            notes: Vec::new(),
        }
    }
}

fn opcode_name(opcode: u16) -> Option<&'static str> {
    Some(match opcode {
        1 => "RRQ",
        2 => "WRQ",
        3 => "DATA",
        4 => "ACK",
        5 => "ERROR",
        6 => "OACK",
        _ => return None,
    })
}

fn packet(payload: &[u8]) -> (Option<Fault>, Fields) {
    let opcode = payload.first_chunk::<2>().copied().map(u16::from_be_bytes);
    let mut fields = Fields {
        opcode,
        opcode_name: opcode.and_then(opcode_name),
        ..Fields::default()
    };
    if matches!(opcode, Some(1 | 2)) {
        // As sent, also where the request is refused.
        let mut texts = terminated(payload.get(2..).unwrap_or_default());
        fields.filename = texts.next();
        fields.mode = texts.next();
    }
    let fault = match Packet::parse(payload) {
        Ok(Packet::ReadRequest(request) | Packet::WriteRequest(request)) => {
            fields.options = first_of_each(request.options);
            None
        }
        Ok(Packet::Data { block, data }) => {
            fields.block = Some(block);
            fields.data_len = Some(data.len());
            None
        }
        Ok(Packet::Ack { block }) => {
            fields.block = Some(block);
            None
        }
        Ok(Packet::OptionAck { options }) => {
            fields.options = first_of_each(options);
            None
        }
        Ok(Packet::Error(error)) => {
            let code = error.code.to_wire();
            fields.error_code = Some(code);
            fields.error_message = Some(error.message.clone());
            Some(Fault::told(code, error.message))
        }
        Err(error) => Some(error.explain().into()),
    };
    (fault, fields)
}

/// The texts that end in NUL.
fn terminated(octets: &[u8]) -> impl Iterator<Item = String> {
    let texts = octets.split_inclusive(|octet| *octet == 0);
    let texts = texts.filter_map(|text| text.strip_suffix(&[0]));
    texts.map(|text| String::from_utf8_lossy(text).into_owned())
}

/// Names in lower case; of an option that came twice the first, as the server reads it.
fn first_of_each(options: Vec<(String, String)>) -> BTreeMap<String, String> {
    let mut by_name = BTreeMap::new();
    for (name, value) in options {
        by_name.entry(name.to_ascii_lowercase()).or_insert(value);
    }
    by_name
}
