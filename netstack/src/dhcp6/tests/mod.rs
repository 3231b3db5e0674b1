//! The server against packets built option by option, and against what firmware sent.

mod boot;
mod reject;
mod relay;
mod walk;

use std::net::{Ipv6Addr, SocketAddrV6};

use super::options::{Options, code, put};
use super::*;
use crate::{Ipv6Prefix, MacAddr};

const HOUR_MS: u64 = 3_600_000;

fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// 16 addresses, 2001:db8:20::100 to ::10f.
fn config() -> Config {
    let prefix = Ipv6Prefix::new(ip("2001:db8:20::"), 64).unwrap();
    let pool = Pool {
        start: ip("2001:db8:20::100"),
        end: ip("2001:db8:20::10f"),
    };
    let duid = Duid::link_layer(MacAddr([2, 0, 0, 0, 0, 1]));
    let config = Config::new(duid, ip("2001:db8:20::1"), prefix, pool);
    config.check().unwrap();
    config
}

fn server() -> Server {
    Server::new(config())
}

fn ingress() -> Ingress {
    from("fe80::ff:fe00:9")
}

fn from(source: &str) -> Ingress {
    Ingress {
        source: SocketAddrV6::new(ip(source), 546, 0, 3),
        iface: "prov0".into(),
    }
}

/// A client's message, put together.
#[derive(Clone)]
struct Packet {
    msg_type: u8,
    options: Vec<(u16, Vec<u8>)>,
}

impl Packet {
    /// With the DUID-LL of client `n`.
    fn new(msg_type: MessageType, n: u8) -> Self {
        let duid = Duid::link_layer(MacAddr([2, 0, 0, 0, 1, n]));
        Self {
            msg_type: msg_type as u8,
            options: vec![(code::CLIENT_ID, duid.as_bytes().to_vec())],
        }
    }

    fn option(mut self, code: u16, value: &[u8]) -> Self {
        self.options.push((code, value.to_vec()));
        self
    }

    /// An IA_NA with these addresses.
    fn ia(self, iaid: u32, addrs: &[Ipv6Addr]) -> Self {
        let mut value = iaid.to_be_bytes().to_vec();
        value.extend_from_slice(&[0; 8]);
        for addr in addrs {
            let mut inner = addr.octets().to_vec();
            inner.extend_from_slice(&[0; 8]);
            put(&mut value, code::IA_ADDR, &inner);
        }
        self.option(code::IA_NA, &value)
    }

    fn naming_us(self) -> Self {
        let duid = config().duid;
        self.option(code::SERVER_ID, duid.as_bytes())
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![self.msg_type, 1, 2, 3];
        for (code, value) in &self.options {
            put(&mut out, *code, value);
        }
        out
    }

    fn handle(&self, server: &mut Server, now_ms: u64) -> Outcome {
        server.handle(now_ms, &self.bytes(), &ingress(), &NoBoot)
    }
}

/// What an identity association of a reply says: addresses with valid lifetimes, status.
type IaSays = (Vec<(Ipv6Addr, u32)>, Option<u16>);

/// An answer, read back.
struct Answer {
    message: Message,
}

impl Answer {
    fn of(outcome: &Outcome) -> Self {
        let reply = outcome.reply.as_ref();
        let reply = reply.unwrap_or_else(|| panic!("no reply: {:?}", outcome.refused));
        Self::read(&reply.payload)
    }

    /// Reads with our parser and with dhcproto's: both must take all of it.
    fn read(payload: &[u8]) -> Self {
        use dhcproto::Decodable as _;
        let message = Message::parse(payload).unwrap();
        assert!(
            message.options.notes().is_empty(),
            "{:?}",
            message.options.notes()
        );
        if message.relays.is_empty() {
            let mut decoder = dhcproto::Decoder::new(payload);
            let theirs = dhcproto::v6::Message::decode(&mut decoder).unwrap();
            assert_eq!(theirs.opts().iter().count(), message.options.iter().count());
            assert_eq!(theirs.xid_num(), message.xid);
        }
        Self { message }
    }

    fn kind(&self) -> MessageType {
        self.message.message_type().unwrap()
    }

    fn get(&self, code: u16) -> Option<&[u8]> {
        self.message.options.get(code)
    }

    fn status(&self) -> Option<u16> {
        status(&self.message.options)
    }

    fn ias(&self) -> Vec<IaSays> {
        let read = |value: &[u8]| {
            let inner = Options::parse(&value[12..]);
            let addrs = inner.all(code::IA_ADDR).map(|v| {
                let addr = Ipv6Addr::from(<[u8; 16]>::try_from(&v[..16]).unwrap());
                assert_eq!(v[16..20], v[20..24], "preferred and valid are the same");
                (addr, u32::from_be_bytes(v[20..24].try_into().unwrap()))
            });
            (addrs.collect(), status(&inner))
        };
        self.message.options.all(code::IA_NA).map(read).collect()
    }

    /// The one address of a reply with one.
    fn addr(&self) -> Ipv6Addr {
        match self.ias().as_slice() {
            [(addrs, None)] if addrs.len() == 1 => addrs[0].0,
            other => panic!("{other:?}"),
        }
    }

    fn url(&self) -> Option<&str> {
        self.get(code::BOOT_FILE_URL)
            .map(|v| std::str::from_utf8(v).unwrap())
    }
}

fn status(options: &Options) -> Option<u16> {
    let value = options.get(code::STATUS)?;
    assert!(value.len() > 2, "a status says in words what it means");
    Some(u16::from_be_bytes([value[0], value[1]]))
}

/// Client `n` gets its address by Solicit and Request.
fn leased(server: &mut Server, n: u8, now_ms: u64) -> Ipv6Addr {
    let offered = Answer::of(
        &Packet::new(MessageType::Solicit, n)
            .ia(1, &[])
            .handle(server, now_ms),
    );
    assert_eq!(offered.kind(), MessageType::Advertise);
    let request = Packet::new(MessageType::Request, n)
        .naming_us()
        .ia(1, &[offered.addr()]);
    let outcome = request.handle(server, now_ms);
    assert_eq!(outcome.refused, None);
    let answer = Answer::of(&outcome);
    assert_eq!(
        (answer.kind(), answer.addr()),
        (MessageType::Reply, offered.addr())
    );
    answer.addr()
}
