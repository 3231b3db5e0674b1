//! Row 33 of the liars' suite, on the server: what floods take and what stays for the others.

use super::*;

fn spoofed(n: u32) -> MacAddr {
    let [a, b, c, d] = n.to_be_bytes();
    MacAddr([0x02, 0xbd, a, b, c, d])
}

/// 10.77.0.0/24 with 100 dynamic addresses: 10 kept for known clients, 3 even from ports.
fn wide() -> Config {
    let mut scope = scope();
    scope.pools[0].end = ip("10.77.0.199");
    scope.reservations = vec![Reservation {
        client: ReservedFor::Mac(mac(50)),
        addr: ip("10.77.0.50"),
    }];
    let config = Config::single(scope);
    config.check().unwrap();
    config
}

fn code(outcome: &Outcome) -> Option<&'static str> {
    outcome.refused.as_ref().map(Refused::code)
}

fn offered(server: &mut Server, now_ms: u64, packet: &Packet) -> bool {
    ask(server, now_ms, packet).1.is_some()
}

struct Knows(MacAddr);

impl BootAnswer for Knows {
    fn boot(&self, _client: &ClientInfo) -> BootFile {
        BootFile::None
    }

    fn knows(&self, client: &ClientInfo) -> bool {
        client.mac == self.0
    }
}

#[test]
fn attack_33_ten_thousand_made_up_clients_leave_room_for_those_we_know() {
    let mut server = Server::new(wide());
    // One holds a lease, one gave it back, one let it run out.
    let bound = lease(&mut server, 0, mac(1));
    let released = lease(&mut server, 0, mac(2));
    let release = Packet::new(7, mac(2)).ciaddr(&released.to_string());
    assert_eq!(ask(&mut server, 1, &release).0.refused, None);
    let mut refusals = 0;
    for n in 0..10_000 {
        let (outcome, offer) = ask(&mut server, 10, &Packet::discover(spoofed(n)));
        assert!(outcome.changes.is_empty(), "an offer costs no disk");
        refusals += u64::from(offer.is_none());
    }
    assert!(refusals >= 9_900, "{refusals}");
    assert_eq!(server.counters().refused["dhcp.pool_watermark"], refusals);
    assert!(server.leases().count() <= 101, "memory is the pool's size");
    let (_, offer) = ask(&mut server, 20, &Packet::discover(mac(1)));
    assert_eq!(offer.expect("bound").yiaddr(), bound);
    let (_, offer) = ask(&mut server, 20, &Packet::discover(mac(2)));
    assert_eq!(offer.expect("comes back").yiaddr(), released);
    let (_, offer) = ask(&mut server, 20, &Packet::discover(mac(50)));
    assert_eq!(offer.expect("reserved").yiaddr(), ip("10.77.0.50"));
    let declared = Packet::discover(mac(60)).bytes();
    let outcome = server.handle(20, &declared, &ingress(), &Knows(mac(60)));
    assert!(outcome.reply.is_some(), "declared: {:?}", outcome.refused);
    let (outcome, _) = ask(&mut server, 20, &Packet::discover(mac(70)));
    assert_eq!(code(&outcome), Some("dhcp.pool_watermark"));
    // What was offered to nobody runs out, and a stranger is served again.
    assert!(offered(&mut server, 70_000, &Packet::discover(mac(70))));
}

#[test]
fn attack_33_requests_without_a_discover_pass_the_same_guard() {
    let mut server = Server::new(wide());
    let mut acked = 0;
    for n in 0..1_000u32 {
        let wanted = format!("10.77.0.{}", 100 + n % 100);
        let packet = Packet::request(spoofed(n)).addr(50, &wanted);
        let selecting = packet.option(54, &SERVER.octets());
        let (_, reply) = ask(&mut server, 10, &selecting);
        acked += usize::from(reply.is_some_and(|read| read.message_type() == 5));
    }
    assert_eq!(acked, 90);
}

#[test]
fn one_switch_port_holds_so_many_addresses_and_the_next_port_is_served() {
    let mut config = wide();
    config.limits.port_addrs_max = 8;
    let mut server = Server::new(config);
    let from = |n: u32, port: &[u8]| {
        let mut circuit = vec![1, port.len() as u8];
        circuit.extend_from_slice(port);
        Packet::discover(spoofed(n)).option(82, &circuit)
    };
    for n in 0..8 {
        assert!(offered(&mut server, 0, &from(n, b"eth1")), "{n}");
    }
    let (outcome, _) = ask(&mut server, 0, &from(8, b"eth1"));
    assert_eq!(code(&outcome), Some("dhcp.port_limit"));
    let said = outcome.refused.unwrap().to_string();
    assert!(said.contains("circuit eth1"), "{said}");
    assert!(offered(&mut server, 0, &from(3, b"eth1")), "has its offer");
    assert!(offered(&mut server, 0, &from(8, b"eth2")));
    // The offers run out, the port may bring others.
    assert!(offered(&mut server, 61_000, &from(9, b"eth1")));
}

#[test]
fn above_the_watermark_a_named_port_still_has_its_budget_but_not_the_last_addresses() {
    let mut server = Server::new(wide());
    for n in 0..200 {
        let _ = ask(&mut server, 0, &Packet::discover(spoofed(n)));
    }
    let from = |n: u32| Packet::discover(spoofed(n)).option(82, &[1, 2, b'e', b'7']);
    let served = (1_000..1_100)
        .filter(|n| offered(&mut server, 0, &from(*n)))
        .count();
    assert_eq!(served, 7, "of ten kept, three are for known clients alone");
    let (outcome, _) = ask(&mut server, 0, &from(2_000));
    assert_eq!(code(&outcome), Some("dhcp.pool_watermark"));
}

#[test]
fn rejects_new_clients_faster_than_their_port_may_bring_them() {
    let mut config = wide();
    config.limits.port_rate = Rate {
        per_sec: 1,
        burst: 4,
    };
    let mut server = Server::new(config);
    let from = |n: u32| Packet::discover(spoofed(n)).option(82, &[1, 2, b'e', b'7']);
    for n in 0..4 {
        assert!(offered(&mut server, 0, &from(n)));
    }
    let (outcome, _) = ask(&mut server, 0, &from(4));
    assert_eq!(code(&outcome), Some("dhcp.rate_limit"));
    assert!(offered(&mut server, 0, &from(0)), "retries are free");
    assert!(offered(&mut server, 1_000, &from(4)));
}

#[test]
fn rejects_a_hardware_address_with_ever_new_client_identifiers() {
    let mut server = Server::new(wide());
    let packet = |n: u8| Packet::discover(mac(1)).option(61, &[0, n]);
    for n in 0..4 {
        assert!(offered(&mut server, 0, &packet(n)));
    }
    let (outcome, _) = ask(&mut server, 0, &packet(4));
    assert_eq!(code(&outcome), Some("dhcp.mac_limit"));
    // Nor for a machine we know: whoever copies its address gets no more than it.
    let outcome = server.handle(0, &packet(5).bytes(), &ingress(), &Knows(mac(1)));
    assert_eq!(code(&outcome), Some("dhcp.mac_limit"));
    assert!(offered(&mut server, 0, &packet(2)));
}

#[test]
fn attack_33_a_decline_flood_rests_few_addresses() {
    let mut server = Server::new(wide());
    let decline = |server: &mut Server, mac: MacAddr| {
        let addr = lease(server, 0, mac).to_string();
        let packet = Packet::new(4, mac)
            .addr(50, &addr)
            .option(54, &SERVER.octets());
        ask(server, 0, &packet).0
    };
    for _ in 0..4 {
        assert_eq!(code(&decline(&mut server, mac(1))), None);
    }
    for _ in 0..50 {
        let outcome = decline(&mut server, mac(1));
        assert_eq!(code(&outcome), Some("dhcp.decline_limit"));
        assert_eq!(outcome.changes[0].lease.state, LeaseState::Released);
    }
    let resting = |server: &Server| {
        let declined = |lease: &&Lease| lease.state == LeaseState::Declined;
        server.leases().filter(declined).count()
    };
    assert_eq!(resting(&server), 4);
    for n in 0..64 {
        let _ = decline(&mut server, spoofed(n));
    }
    assert_eq!(resting(&server), 64);
    let outcome = decline(&mut server, spoofed(99));
    assert_eq!(code(&outcome), Some("dhcp.quarantine_limit"));
}

#[test]
fn a_flood_of_offers_does_not_make_us_forget_our_clients() {
    let mut server = Server::new(wide());
    let mine = lease(&mut server, 0, mac(1));
    let other = lease(&mut server, 0, mac(2));
    // Both leases run out; ten rounds of flood take and let go all that strangers may have.
    let mut now = 4_000_000;
    for round in 0..10 {
        for n in 0..300 {
            let _ = ask(
                &mut server,
                now,
                &Packet::discover(spoofed(round * 1_000 + n)),
            );
        }
        now += 120_000;
    }
    for (mac, addr) in [(mac(1), mine), (mac(2), other)] {
        let (_, offer) = ask(&mut server, now, &Packet::discover(mac));
        assert_eq!(offer.expect("an offer").yiaddr(), addr);
    }
}

#[test]
fn the_stage_of_a_machine_sets_its_lease_time() {
    struct Stage;
    impl BootAnswer for Stage {
        fn boot(&self, _client: &ClientInfo) -> BootFile {
            BootFile::None
        }
        fn settled(&self, client: &ClientInfo) -> bool {
            client.mac == mac(2)
        }
    }
    let mut scope = scope();
    scope.boot_lease_secs = 600;
    let config = Config::single(scope);
    config.check().unwrap();
    let mut server = Server::new(config);
    let pxe = b"PXEClient:Arch:00007:UNDI:003000";
    for (who, class, wanted, want) in [
        (mac(1), &b"udhcp"[..], None, 600),
        (mac(1), b"udhcp", Some(3_000u32), 600),
        (mac(1), b"udhcp", Some(120), 120),
        (mac(2), b"udhcp", None, LEASE_SECS),
        (mac(2), pxe, None, 600),
    ] {
        let mut packet = Packet::discover(who).option(60, class);
        if let Some(wanted) = wanted {
            packet = packet.option(51, &wanted.to_be_bytes());
        }
        let outcome = server.handle(0, &packet.bytes(), &ingress(), &Stage);
        let read = Read::of(&outcome.reply.unwrap());
        assert_eq!(read.option(51), Some(&u32::to_be_bytes(want)[..]));
    }
}
