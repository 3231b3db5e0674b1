//! DHCPv6 and Router Solicitations: any datagrams from the segment, one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv6Addr, SocketAddrV6};

use netstack::dhcp6::{
    BootAnswer, BootFile, ClientInfo, Config, Duid, Event, Ingress, LeaseState, Message, Pool,
    Server,
};
use netstack::ra::{self, Advertiser};
use netstack::{Ipv6Prefix, MacAddr};

/// Least IPv6 MTU without headers.
const PAYLOAD_MAX: usize = 1232;

const fn addr(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
}

/// Every kind of boot answer, by what the client says it is.
struct Boot;

impl BootAnswer for Boot {
    fn boot(&self, client: &ClientInfo) -> BootFile {
        if client.is_ipxe || client.is_http_client {
            BootFile::Url("https://[fd00::1]/boot/script.ipxe".into())
        } else if client.arch.is_some() {
            BootFile::Url("tftp://[fd00::1]/ipxe.efi".into())
        } else {
            BootFile::None
        }
    }
}

fn config() -> Config {
    let prefix = Ipv6Prefix::new(addr(0), 64).expect("64 bits");
    let pool = Pool {
        start: addr(0x10),
        end: addr(0x13),
    };
    Config::new(
        Duid::link_layer(MacAddr([2, 0, 0, 0, 0, 1])),
        addr(1),
        prefix,
        pool,
    )
}

/// A sequence: each step is a pause in seconds, a length of two octets, and a datagram of that
/// length (the last one whatever is left). A server with four addresses takes all of them.
pub fn sequence(data: &[u8]) {
    let mut server = Server::new(config());
    let mut disk = BTreeMap::new();
    let (mut now_ms, mut rest) = (1_000, data);
    while let [pause, hi, lo, tail @ ..] = rest {
        now_ms += u64::from(*pause) * 1_000;
        let len = usize::from(u16::from_be_bytes([*hi, *lo])).min(tail.len());
        let (datagram, tail) = tail.split_at(len);
        rest = tail;
        let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, u16::from(*pause));
        let ingress = Ingress {
            source: SocketAddrV6::new(source, 546, 0, 2),
            iface: "prov".into(),
        };
        let outcome = server.handle(now_ms, datagram, &ingress, &Boot);
        if let Some(refused) = &outcome.refused {
            assert!(refused.explain().code.starts_with("dhcp6."));
        }
        for change in &outcome.changes {
            assert_ne!(
                change.lease.state,
                LeaseState::Offered,
                "offers stay in memory"
            );
            disk.insert(change.lease.addr, change.lease.clone());
        }
        if let Some(Event::Leased { addrs, .. }) = &outcome.event {
            for addr in addrs {
                let lease = server.lease(*addr).expect("a leased address has an entry");
                assert_eq!(disk.get(addr), Some(lease), "leased and not written down");
            }
        }
        if let Some(reply) = &outcome.reply {
            assert!(
                reply.payload.len() <= PAYLOAD_MAX,
                "a reply that would fragment"
            );
            let read = Message::parse(&reply.payload).expect("our own reply");
            assert!(
                matches!(read.msg_type, 2 | 7),
                "a reply is Advertise or Reply"
            );
            assert!(read.options.notes().is_empty(), "our own options are whole");
        }
        let live: Vec<Ipv6Addr> = server
            .leases()
            .filter(|lease| lease.state.is_live())
            .map(|lease| lease.addr)
            .collect();
        let unique: BTreeSet<_> = live.iter().collect();
        assert_eq!(unique.len(), live.len(), "one address, two leases");
        let pool = config().pool.expect("a pool");
        assert!(
            live.iter().all(|a| pool.contains(*a)),
            "an address outside the pool"
        );
    }
}

/// One ICMPv6 message at three moments.
pub fn solicitation(data: &[u8]) {
    let config = ra::Config {
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        prefix: Ipv6Prefix::new(addr(0), 64).expect("64 bits"),
        prefix_secs: 3_600,
        router_lifetime_secs: 0,
        mtu: None,
    };
    let mut advertiser = Advertiser::new(&config, 0, 1);
    for (now_ms, source) in [(0, addr(9)), (1, Ipv6Addr::UNSPECIFIED), (9_000, addr(9))] {
        match advertiser.handle(now_ms, data, source, ra::HOP_LIMIT) {
            Ok(Some(sent)) => assert_eq!(sent.message, config.advertisement()),
            Ok(None) => {}
            Err(refused) => assert!(refused.explain().code.starts_with("ra.")),
        }
        assert!(advertiser.poll_timeout() <= now_ms + 200_000);
    }
}

fn step(pause: u8, datagram: &[u8]) -> Vec<u8> {
    let mut out = vec![pause];
    out.extend_from_slice(&(datagram.len() as u16).to_be_bytes());
    out.extend_from_slice(datagram);
    out
}

/// One message with all options that the server reads.
fn message(kind: u8) -> Vec<u8> {
    let mut out = vec![kind, 1, 2, 3];
    let server = Duid::link_layer(MacAddr([2, 0, 0, 0, 0, 1]));
    let mut ia = vec![0; 12];
    ia.extend_from_slice(&[0, 5, 0, 24]);
    ia.extend_from_slice(&addr(0x10).octets());
    ia.extend_from_slice(&[0; 8]);
    let mut list: Vec<(u16, &[u8])> = vec![
        (1, &[0, 3, 0, 1, 2, 0, 0, 0, 0, 9]),
        (3, &ia),
        (4, &[0, 0, 0, 1]),
        (25, &[0; 12]),
        (6, &[0, 59, 0, 60, 0, 23, 0, 24, 0, 32]),
        (8, &[0, 0]),
        (14, &[]),
        (15, b"\0\x04iPXE"),
        (16, b"\0\0\x01\x57\0\x09PXEClient"),
        (61, &[0, 7]),
        (62, &[1, 3, 16]),
    ];
    if matches!(kind, 3 | 5 | 8 | 9) {
        list.push((2, server.as_bytes()));
    }
    if kind == 11 {
        list.retain(|(code, _)| !matches!(code, 3 | 4 | 25));
    }
    for (code, value) in list {
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(&(value.len() as u16).to_be_bytes());
        out.extend_from_slice(value);
    }
    out
}

fn relayed(inner: &[u8]) -> Vec<u8> {
    let mut out = vec![12, 0];
    out.extend_from_slice(&addr(0xfe).octets());
    out.extend_from_slice(&addr(9).octets());
    out.extend_from_slice(&[0, 18, 0, 2, 0, 7, 0, 79, 0, 8, 0, 1, 2, 0, 0, 0, 0, 9, 0, 9]);
    out.extend_from_slice(&(inner.len() as u16).to_be_bytes());
    out.extend_from_slice(inner);
    out
}

/// Each type alone, relayed once and twice, and whole exchanges.
pub fn seeds() -> Vec<Vec<u8>> {
    let kinds = [1, 3, 4, 5, 6, 8, 9, 11];
    let mut seeds: Vec<Vec<u8>> = kinds.iter().map(|kind| step(1, &message(*kind))).collect();
    seeds.push(step(1, &relayed(&message(1))));
    seeds.push(step(1, &relayed(&relayed(&message(3)))));
    for last in [5, 6, 8, 9] {
        let exchange = [1, 3, last, 1].map(|kind| step(200, &message(kind)));
        seeds.push(exchange.concat());
    }
    seeds
}

/// Solicitations with and without options.
pub fn solicitation_seeds() -> Vec<Vec<u8>> {
    let plain = vec![133, 0, 0, 0, 0, 0, 0, 0];
    let with_mac = [&plain[..], &[1, 1, 2, 0, 0, 0, 0, 9]].concat();
    vec![plain, with_mac]
}

/// The DHCPv6 messages in a capture file, each a sequence of one: what follows a UDP header with
/// ports 546 and 547.
pub fn payloads(file: Vec<u8>) -> Vec<Vec<u8>> {
    let ports = [[2, 34, 2, 35], [2, 35, 2, 34], [2, 35, 2, 35]];
    let mut found = Vec::new();
    for at in 0..file.len().saturating_sub(8) {
        if ports.iter().any(|pair| file[at..].starts_with(pair)) {
            let len = usize::from(u16::from_be_bytes([file[at + 4], file[at + 5]]));
            let end = (at + len.max(8)).min(file.len());
            found.push(step(1, &file[at + 8..end]));
        }
    }
    found
}
