//! DHCPv4 as a conversation: a handful of machines, ports 67 and 4011, ARP answers, other servers'
//! replies, time forwards and backwards, restarts. What the bytes choose is the order.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use netstack::MacAddr;
use netstack::arp::Arp;
use netstack::dhcp::{
    BootAnswer, BootFile, ClientInfo, ClientKey, Config, Event, Heard, Ingress, Lease, LeaseState,
    Mode, Outcome, Pool, Reservation, ReservedFor, Scope, Server, Subnet, Watch,
};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Steps of one input: longer ones find nothing that these do not.
const STEPS_MAX: usize = 200;

/// Machine 3 is installed and boots its disk, machine 5 is in the owner's records.
struct Boot;

impl BootAnswer for Boot {
    fn boot(&self, client: &ClientInfo) -> BootFile {
        if client.mac.0[5] == 3 {
            BootFile::None
        } else if client.is_ipxe || client.is_http_client {
            BootFile::Url("https://10.0.0.1/boot/script.ipxe".into())
        } else {
            BootFile::File {
                next_server: OURS,
                name: "ipxe.efi".into(),
            }
        }
    }

    fn knows(&self, client: &ClientInfo) -> bool {
        client.mac.0[5] == 5
    }

    fn settled(&self, client: &ClientInfo) -> bool {
        client.mac.0[5] == 3
    }
}

/// What the bytes decide about the server.
fn config(choice: u8) -> Config {
    let addr = |last| Ipv4Addr::new(10, 0, 0, last);
    let subnet = Subnet::new(addr(0), 24).expect("24 bits");
    let pool = Pool {
        start: addr(10),
        end: addr(17),
    };
    let mut scope = Scope::new(subnet, pool, 600);
    scope.boot_lease_secs = 120;
    scope.reservations = vec![Reservation {
        client: ReservedFor::Mac(MacAddr([2, 0, 0, 0, 0, 7])),
        addr: addr(12),
    }];
    let mut config = Config::single(scope);
    if choice & 1 != 0 {
        config.mode = Mode::Proxy;
        config.scopes[0].pools.clear();
        config.scopes[0].reservations.clear();
    }
    config.bootp_dynamic = choice & 2 != 0;
    config.limits.probe_ms = if choice & 4 != 0 { 200 } else { 0 };
    config.limits.probes_max = 3;
    config.limits.quarantine_max = 3;
    config.limits.port_addrs_max = 3;
    config.limits.reserve_percent = 25;
    config.limits.reserve_known_percent = 13;
    config.check().expect("one of ours");
    config
}

/// The conversation so far.
struct Talk {
    config: Config,
    server: Server,
    watch: Watch,
    now_ms: u64,
    /// What is on disk.
    disk: BTreeMap<Ipv4Addr, Lease>,
}

/// Takes the steps that the bytes describe.
pub fn run(data: &[u8]) {
    let Some((&choice, mut rest)) = data.split_first() else {
        return;
    };
    let config = config(choice);
    let mut talk = Talk {
        server: Server::new(config.clone()),
        watch: Watch::new(config.mode, OURS, MacAddr([2, 9, 9, 9, 9, 9]), 600_000, 0),
        config,
        now_ms: 1_000_000,
        disk: BTreeMap::new(),
    };
    for _ in 0..STEPS_MAX {
        let [op, a, b, c, tail @ ..] = rest else {
            return;
        };
        rest = tail;
        match op % 10 {
            0..=4 => {
                let len = usize::from(*c % 40).min(rest.len());
                let (options, tail) = rest.split_at(len);
                rest = tail;
                talk.datagram(*op, &packet(*a, *b, *c, options));
            }
            5 => talk.now_ms = talk.now_ms.saturating_add(u64::from(*a) << (b % 16)),
            6 => talk.now_ms = talk.now_ms.saturating_sub(u64::from(*a) << (b % 24)),
            7 => {
                let addr = Ipv4Addr::new(10, 0, 0, 8 + a % 12);
                let by = MacAddr([2, 0, 0, 0, 1, *b]);
                let outcome = talk.server.handle_conflict(talk.now_ms, addr, by, &Boot);
                talk.check(&outcome);
            }
            8 => {
                let len = usize::from(*c).min(rest.len());
                let (frame, tail) = rest.split_at(len);
                rest = tail;
                let _ = Arp::parse(frame).and_then(|arp| arp.claims(MacAddr([2; 6])));
                if let Some(heard) = Heard::parse(frame) {
                    let _ = talk.watch.handle(talk.now_ms, &heard);
                }
                let _ = talk.watch.poll_probe(talk.now_ms);
                let _ = talk.watch.poll_finding(talk.now_ms);
                assert!(talk.watch.found().count() <= 16);
            }
            _ => {
                let mut server = Server::new(talk.config.clone());
                server.restore(talk.disk.values().cloned());
                talk.server = server;
            }
        }
        while let Some((outcome, _)) = talk.server.poll_probed(talk.now_ms, &Boot) {
            talk.check(&outcome);
        }
        talk.invariants();
    }
}

impl Talk {
    fn datagram(&mut self, op: u8, bytes: &[u8]) {
        let boot_port = op % 10 == 4;
        let source = if boot_port {
            SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 200), 68)
        } else {
            SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68)
        };
        let ingress = Ingress {
            server_addr: OURS,
            source,
            iface: "prov".into(),
        };
        let outcome = if boot_port {
            self.server
                .handle_boot_request(self.now_ms, bytes, &ingress, &Boot)
        } else {
            self.server.handle(self.now_ms, bytes, &ingress, &Boot)
        };
        if boot_port || self.config.mode == Mode::Proxy {
            assert!(outcome.changes.is_empty(), "no lease is made here");
            if let Some(reply) = &outcome.reply {
                assert_eq!(reply.payload[16..20], [0; 4], "no address is given here");
            }
        }
        self.check(&outcome);
    }

    fn check(&mut self, outcome: &Outcome) {
        for change in &outcome.changes {
            assert!(
                !matches!(change.lease.state, LeaseState::Offered | LeaseState::Lapsed),
                "offers stay in memory"
            );
            self.disk.insert(change.lease.addr, change.lease.clone());
        }
        if let Some(reply) = &outcome.reply {
            assert!((300..=1472).contains(&reply.payload.len()));
            assert_eq!(reply.payload[0], 2, "a reply is a BOOTREPLY");
        }
        assert!(
            outcome.probe.is_none() || outcome.reply.is_none(),
            "an offer waits for its probe"
        );
        let (addr, state) = match outcome.event {
            Some(Event::Offered { addr }) => (addr, None),
            Some(Event::Acked { addr, .. } | Event::Bootp { addr, .. }) => {
                (addr, Some(LeaseState::Bound))
            }
            _ => return,
        };
        let client = outcome.client.as_ref().expect("somebody asked");
        let lease = self.server.leases().find(|lease| lease.addr == addr);
        let lease = lease.expect("what is given is in the table");
        // A client is its identifier; without one, its hardware address (RFC 2131 section 4.2). A
        // reservation is its hardware address's whatever identifier it sends.
        let key = match &client.client_id {
            Some(id) => ClientKey::from_bytes(id.clone()),
            None => ClientKey::from_hardware(1, client.mac),
        };
        assert!(
            lease.client == key || lease.mac == client.mac,
            "given to one, held by another: {lease:?}"
        );
        assert!(lease.state.is_live());
        if let Some(state) = state {
            assert_eq!(lease.state, state);
            assert_eq!(self.disk.get(&addr), Some(lease), "on disk first");
        }
    }

    fn invariants(&self) {
        let mut resting = 0;
        for lease in self.server.leases() {
            let last = lease.addr.octets()[3];
            assert!(
                (10..=17).contains(&last),
                "{} is no address of ours",
                lease.addr
            );
            resting += usize::from(lease.state == LeaseState::Declined);
        }
        assert!(self.server.leases().count() <= 8);
        assert!(resting <= 8, "{resting} addresses rest");
        if self.config.mode == Mode::Proxy {
            assert_eq!(self.server.leases().count(), 0);
        }
    }
}

/// One request of one of eight machines: `a` who and of which kind, `b` what it asks for.
fn packet(a: u8, b: u8, c: u8, options: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 236];
    out[..3].copy_from_slice(&[1, 1, 6]);
    out[7] = c;
    if c & 0x40 != 0 {
        out[10] = 0x80;
    }
    out[28..34].copy_from_slice(&[2, 0, 0, 0, 0, a % 8]);
    out.extend_from_slice(&[99, 130, 83, 99]);
    let wanted = [10, 0, 0, 8 + (b >> 4) % 12];
    let kind = [1, 1, 3, 3, 3, 4, 7, 8, 0][usize::from(a >> 3) % 9];
    if matches!(kind, 7 | 8) || (kind == 3 && b & 1 != 0) {
        out[12..16].copy_from_slice(&wanted);
    }
    let mut option = |code: u8, value: &[u8]| {
        out.extend_from_slice(&[code, value.len() as u8]);
        out.extend_from_slice(value);
    };
    // 0: BOOTP has no message type.
    if kind != 0 {
        option(53, &[kind]);
    }
    if matches!(kind, 1 | 3 | 4) && b & 3 != 1 {
        option(50, &wanted);
    }
    if kind == 3 && b & 2 != 0 {
        option(54, &OURS.octets());
    }
    match b & 12 {
        4 => option(60, b"PXEClient:Arch:00007:UNDI:003016"),
        8 => option(77, b"iPXE"),
        12 => option(82, &[1, 1, a % 3]),
        _ => {}
    }
    if c & 0x80 != 0 {
        option(61, &[0, c & 3]);
    }
    out.extend_from_slice(options);
    out.push(255);
    out
}

/// Short conversations: leases, a decline, a conflict, a restart, the boot port.
pub fn seeds() -> Vec<Vec<u8>> {
    let lease = [0, 0x01, 0x00, 0, 0, 0x11, 0x22, 0];
    let decline = [0, 0x29, 0x20, 0];
    let wait = [5, 255, 10, 0];
    let conflict = [7, 2, 9, 0];
    let restart = [9, 0, 0, 0];
    let boot_port = [4, 0x12, 0x04, 0];
    let mut seeds = Vec::new();
    for choice in 0..8u8 {
        let mut seed = vec![choice];
        for step in [
            &lease[..],
            &decline,
            &conflict,
            &lease,
            &wait,
            &restart,
            &lease,
            &boot_port,
        ] {
            seed.extend_from_slice(step);
        }
        seeds.push(seed);
    }
    seeds
}
