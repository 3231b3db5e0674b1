//! DHCPv4: any datagram from the segment.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};

use netstack::dhcp::{
    BootAnswer, BootFile, ClientInfo, Config, Ingress, LeaseState, Options, Pool, Scope, Server,
    Subnet, user_class,
};

const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Fixed part of a DHCP message before the cookie.
const FIXED_BYTES: usize = 236;
/// Largest payload on Ethernet.
const PAYLOAD_MAX: usize = 1472;

/// Every kind of boot answer, by what the client says it is.
struct Boot;

impl BootAnswer for Boot {
    fn boot(&self, client: &ClientInfo) -> BootFile {
        if client.is_ipxe || client.is_http_client {
            BootFile::Url("https://10.0.0.1/boot/script.ipxe".into())
        } else if client.arch.is_some() {
            BootFile::File {
                next_server: Ipv4Addr::new(10, 0, 0, 1),
                name: "ipxe.efi".into(),
            }
        } else {
            BootFile::None
        }
    }
}

/// A server with four addresses takes the datagram at once, again, and when offers have ended.
pub fn server(data: &[u8]) {
    let _ = Options::parse(data, &[], &[]);
    let _ = user_class(data);

    let addr = |last| Ipv4Addr::new(10, 0, 0, last);
    let subnet = Subnet::new(addr(0), 24).expect("24 bits");
    let pool = Pool {
        start: addr(10),
        end: addr(13),
    };
    let mut server = Server::new(Config::single(Scope::new(subnet, pool, 600)));
    let ingress = Ingress {
        server_addr: addr(1),
        source: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68),
        iface: "prov".into(),
    };
    for now_ms in [1_000, 1_001, 120_000] {
        let outcome = server.handle(now_ms, data, &ingress, &Boot);
        if let Some(reply) = &outcome.reply {
            assert!(reply.payload.len() >= 300, "a reply below BOOTP's minimum");
            assert!(
                reply.payload.len() <= PAYLOAD_MAX,
                "a reply that would fragment"
            );
            assert_eq!(reply.payload[0], 2, "a reply is a BOOTREPLY");
        }
        for change in &outcome.changes {
            assert!(
                !matches!(change.lease.state, LeaseState::Offered | LeaseState::Lapsed),
                "offers stay in memory"
            );
        }
        let live: Vec<Ipv4Addr> = server
            .leases()
            .filter(|lease| lease.state.is_live())
            .map(|lease| lease.addr)
            .collect();
        assert!(
            live.iter().all(|&addr| pool.contains(addr)),
            "an address outside the pool"
        );
        let unique: BTreeSet<_> = live.iter().collect();
        assert_eq!(unique.len(), live.len(), "one address, two leases");
    }
}

/// The DHCP messages in a capture file.
pub fn payloads(file: Vec<u8>) -> Vec<Vec<u8>> {
    if file.len() < 512 && file.get(FIXED_BYTES..FIXED_BYTES + 4) == Some(&COOKIE) {
        return vec![file];
    }
    crate::around(&file, &COOKIE, FIXED_BYTES, 600)
}

/// One message of each type the server knows, as PXE firmware would send it.
pub fn seeds() -> Vec<Vec<u8>> {
    [1, 3, 4, 7, 8]
        .into_iter()
        .map(|message_type| {
            let mut packet = vec![0; FIXED_BYTES];
            packet[..3].copy_from_slice(&[1, 1, 6]);
            packet[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
            packet.extend_from_slice(&COOKIE);
            for (code, value) in [
                (53, &[message_type][..]),
                (50, &[10, 0, 0, 10]),
                (52, &[3]),
                (54, &[10, 0, 0, 1]),
                (55, &[1, 3, 43, 60, 66, 67]),
                (57, &[5, 0xc0]),
                (60, b"PXEClient:Arch:00007:UNDI:003016"),
                (77, b"iPXE"),
                (82, &[1, 2, 0, 7, 2, 2, 0, 9]),
                (93, &[0, 7]),
                (94, &[1, 3, 16]),
                (97, &[0; 17]),
            ] {
                packet.push(code);
                packet.push(value.len() as u8);
                packet.extend_from_slice(value);
            }
            packet.push(255);
            packet
        })
        .collect()
}
