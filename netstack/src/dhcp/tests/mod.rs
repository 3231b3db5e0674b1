//! Timelines of the server: one machine per state of RFC 2131, and one `rejects_*` per refusal.

mod boot;
mod bootp;
mod guard;
mod onward;
mod probe;
mod proxy;
mod reject;
mod walk;

use std::net::{Ipv4Addr, SocketAddrV4};

use super::options::Options;
use super::*;

pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(super) const LEASE_SECS: u32 = 3600;

pub(super) fn ip(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

pub(super) fn mac(last: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, last])
}

/// 10.77.0.0/24 with four dynamic addresses, .100 to .103.
pub(super) fn scope() -> Scope {
    let subnet = Subnet::new(ip("10.77.0.0"), 24).unwrap();
    let pool = Pool {
        start: ip("10.77.0.100"),
        end: ip("10.77.0.103"),
    };
    let mut scope = Scope::new(subnet, pool, LEASE_SECS);
    scope.routers = vec![ip("10.77.0.254")];
    scope.dns = vec![ip("10.77.0.53"), ip("10.77.0.54")];
    scope.domain = Some("lab.example".into());
    scope
}

pub(super) fn server() -> Server {
    let config = Config::single(scope());
    config.check().unwrap();
    Server::new(config)
}

pub(super) fn ingress() -> Ingress {
    Ingress {
        server_addr: SERVER,
        source: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, CLIENT_PORT),
        iface: "prov0".into(),
    }
}

/// A request under construction.
#[derive(Clone)]
pub(super) struct Packet {
    fixed: [u8; 240],
    options: Vec<u8>,
}

impl Packet {
    pub fn new(message_type: u8, mac: MacAddr) -> Self {
        let mut fixed = [0; 240];
        fixed[..3].copy_from_slice(&[1, 1, 6]);
        fixed[4..8].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
        fixed[28..34].copy_from_slice(&mac.0);
        fixed[236..].copy_from_slice(&[99, 130, 83, 99]);
        Self {
            fixed,
            options: Vec::new(),
        }
        .option(53, &[message_type])
    }

    pub fn discover(mac: MacAddr) -> Self {
        Self::new(1, mac)
    }

    pub fn request(mac: MacAddr) -> Self {
        Self::new(3, mac)
    }

    pub fn option(mut self, code: u8, value: &[u8]) -> Self {
        self.options.extend_from_slice(&[code, value.len() as u8]);
        self.options.extend_from_slice(value);
        self
    }

    /// Makes it another message: option 53 is the first.
    pub fn message(mut self, message_type: u8) -> Self {
        self.options[2] = message_type;
        self
    }

    pub fn addr(self, code: u8, addr: &str) -> Self {
        self.option(code, &ip(addr).octets())
    }

    pub fn ciaddr(mut self, addr: &str) -> Self {
        self.fixed[12..16].copy_from_slice(&ip(addr).octets());
        self
    }

    pub fn giaddr(mut self, addr: &str) -> Self {
        self.fixed[24..28].copy_from_slice(&ip(addr).octets());
        self
    }

    pub fn broadcast(mut self) -> Self {
        self.fixed[10] = 0x80;
        self
    }

    pub fn set(mut self, at: usize, value: u8) -> Self {
        self.fixed[at] = value;
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.fixed.to_vec();
        bytes.extend_from_slice(&self.options);
        bytes.push(255);
        bytes
    }
}

/// A reply read back.
#[derive(Debug)]
pub(super) struct Read {
    pub payload: Vec<u8>,
    pub options: Options,
    pub order: Vec<u8>,
    pub to: Destination,
}

impl Read {
    pub fn of(reply: &Reply) -> Self {
        assert!(reply.payload.len() >= 300, "{} bytes", reply.payload.len());
        let options = Options::parse(&reply.payload[240..], &[], &[]);
        assert!(options.notes().is_empty(), "{:?}", options.notes());
        let mut order = Vec::new();
        let mut at = 240;
        while reply.payload[at] != 255 {
            order.push(reply.payload[at]);
            at += 2 + usize::from(reply.payload[at + 1]);
        }
        Self {
            payload: reply.payload.clone(),
            options,
            order,
            to: reply.to,
        }
    }

    fn field(&self, at: usize) -> Ipv4Addr {
        Ipv4Addr::from(<[u8; 4]>::try_from(&self.payload[at..at + 4]).unwrap())
    }

    pub fn ciaddr(&self) -> Ipv4Addr {
        self.field(12)
    }

    pub fn yiaddr(&self) -> Ipv4Addr {
        self.field(16)
    }

    pub fn siaddr(&self) -> Ipv4Addr {
        self.field(20)
    }

    pub fn file(&self) -> String {
        let file = &self.payload[108..236];
        let end = file
            .iter()
            .position(|octet| *octet == 0)
            .expect("NUL terminated");
        String::from_utf8(file[..end].to_vec()).unwrap()
    }

    pub fn message_type(&self) -> u8 {
        self.options.get(53).unwrap()[0]
    }

    pub fn option(&self, code: u8) -> Option<&[u8]> {
        self.options.get(code)
    }
}

/// Hands a packet in and reads the reply.
pub(super) fn ask(server: &mut Server, now_ms: u64, packet: &Packet) -> (Outcome, Option<Read>) {
    let outcome = server.handle(now_ms, &packet.bytes(), &ingress(), &NoBoot);
    let read = outcome.reply.as_ref().map(Read::of);
    (outcome, read)
}

/// DISCOVER and REQUEST; the address.
pub(super) fn lease(server: &mut Server, now_ms: u64, mac: MacAddr) -> Ipv4Addr {
    let (_, offer) = ask(server, now_ms, &Packet::discover(mac));
    let addr = offer.expect("an offer").yiaddr();
    let request = Packet::request(mac)
        .addr(50, &addr.to_string())
        .option(54, &SERVER.octets());
    let (outcome, ack) = ask(server, now_ms, &request);
    assert_eq!(ack.expect("an answer").message_type(), 5, "{outcome:?}");
    addr
}
