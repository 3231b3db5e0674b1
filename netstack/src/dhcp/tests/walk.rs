//! Leases over time.

use super::*;

fn selecting(mac: MacAddr, addr: &str) -> Packet {
    Packet::request(mac)
        .addr(50, addr)
        .option(54, &SERVER.octets())
}

#[test]
fn a_lease_from_discover_to_expiry() {
    let mut server = server();
    let (outcome, offer) = ask(&mut server, 1_000, &Packet::discover(mac(1)).broadcast());
    let offer = offer.unwrap();
    assert_eq!(offer.message_type(), 2);
    assert_eq!(offer.yiaddr(), ip("10.77.0.100"));
    assert_eq!(offer.to, Destination::Broadcast);
    assert_eq!(
        outcome.event,
        Some(Event::Offered {
            addr: ip("10.77.0.100")
        })
    );
    assert!(outcome.changes.is_empty(), "offers are memory only");
    assert_eq!(server.poll_timeout(), Some(61_000));

    let (outcome, ack) = ask(&mut server, 2_000, &selecting(mac(1), "10.77.0.100"));
    let ack = ack.unwrap();
    assert_eq!(ack.message_type(), 5);
    assert_eq!(ack.option(54), Some(&SERVER.octets()[..]));
    assert_eq!(ack.option(51), Some(&3600u32.to_be_bytes()[..]));
    assert_eq!(ack.option(58), Some(&1800u32.to_be_bytes()[..]));
    assert_eq!(ack.option(59), Some(&3150u32.to_be_bytes()[..]));
    assert_eq!(ack.option(1), Some(&[255, 255, 255, 0][..]));
    assert_eq!(ack.option(3), Some(&ip("10.77.0.254").octets()[..]));
    assert_eq!(ack.option(6), Some(&[10, 77, 0, 53, 10, 77, 0, 54][..]));
    assert_eq!(ack.option(15), Some(&b"lab.example"[..]));
    assert_eq!(ack.option(28), Some(&[10, 77, 0, 255][..]));
    assert_eq!(
        ack.to,
        Destination::Unicast {
            mac: mac(1),
            addr: ip("10.77.0.100")
        }
    );
    let lease = Lease {
        addr: ip("10.77.0.100"),
        client: ClientKey::from_hardware(1, mac(1)),
        mac: mac(1),
        port: None,
        state: LeaseState::Bound,
        expires_ms: 3_602_000,
    };
    assert_eq!(
        outcome.changes,
        [LeaseChange {
            lease,
            cause: Cause::Granted
        }]
    );

    // RENEWING at T1: ciaddr, no 50, no 54, answered by unicast.
    let renew = Packet::request(mac(1)).ciaddr("10.77.0.100");
    let (outcome, ack) = ask(&mut server, 1_802_000, &renew);
    let ack = ack.unwrap();
    assert_eq!((ack.message_type(), ack.ciaddr()), (5, ip("10.77.0.100")));
    assert_eq!(
        ack.to,
        Destination::Unicast {
            mac: mac(1),
            addr: ip("10.77.0.100")
        }
    );
    assert_eq!(outcome.changes[0].cause, Cause::Renewed);
    assert_eq!(server.poll_timeout(), Some(5_402_000));

    server.handle_timeout(5_401_999);
    assert_eq!(server.leases().next().unwrap().state, LeaseState::Bound);
    server.handle_timeout(5_402_000);
    assert_eq!(server.leases().next().unwrap().state, LeaseState::Expired);
    assert_eq!(server.poll_timeout(), None);
    assert_eq!(server.counters().acked, 2);
}

#[test]
fn the_same_client_gets_the_same_address_and_others_the_next() {
    let mut server = server();
    assert_eq!(lease(&mut server, 0, mac(1)), ip("10.77.0.100"));
    assert_eq!(lease(&mut server, 0, mac(2)), ip("10.77.0.101"));
    assert_eq!(lease(&mut server, 0, mac(1)), ip("10.77.0.100"));
    let much_later = 100_000_000;
    assert_eq!(
        lease(&mut server, much_later, mac(2)),
        ip("10.77.0.101"),
        "remembered"
    );
    let wants = Packet::discover(mac(3)).addr(50, "10.77.0.103");
    let (_, offer) = ask(&mut server, much_later, &wants);
    assert_eq!(offer.unwrap().yiaddr(), ip("10.77.0.103"), "as asked for");
}

#[test]
fn a_full_pool_reuses_the_address_that_was_free_longest() {
    let mut server = server();
    for (i, at) in [(1u8, 0u64), (2, 10), (3, 20), (4, 30)] {
        lease(&mut server, at, mac(i));
    }
    let (outcome, reply) = ask(&mut server, 40, &Packet::discover(mac(5)));
    assert!(reply.is_none());
    assert_eq!(
        outcome.refused,
        Some(Refused::PoolExhausted { addresses: 4 })
    );
    let release = Packet::new(7, mac(3))
        .ciaddr("10.77.0.102")
        .option(54, &SERVER.octets());
    let (outcome, reply) = ask(&mut server, 50, &release);
    assert!(reply.is_none());
    assert_eq!(
        outcome.event,
        Some(Event::Released {
            addr: ip("10.77.0.102")
        })
    );
    assert_eq!(outcome.changes[0].cause, Cause::Released);
    assert_eq!(lease(&mut server, 60, mac(5)), ip("10.77.0.102"));
    // All old ones ended; .100 ended first.
    assert_eq!(lease(&mut server, 3_600_040, mac(6)), ip("10.77.0.100"));
}

#[test]
fn an_offer_not_taken_returns_to_the_pool() {
    let mut server = server();
    for i in 1..=4 {
        let _ = ask(&mut server, 0, &Packet::discover(mac(i)));
    }
    let (outcome, _) = ask(&mut server, 59_999, &Packet::discover(mac(9)));
    assert_eq!(outcome.refused.unwrap().code(), "dhcp.pool_exhausted");
    let (_, offer) = ask(&mut server, 60_000, &Packet::discover(mac(9)));
    assert_eq!(offer.unwrap().yiaddr(), ip("10.77.0.100"));
    // One client chose another server: its offer is free at once.
    let other = Packet::request(mac(9))
        .addr(50, "10.77.0.100")
        .addr(54, "10.77.0.2");
    let (outcome, reply) = ask(&mut server, 60_001, &other);
    assert!(reply.is_none());
    assert_eq!(
        outcome.event,
        Some(Event::ChoseOther {
            server: ip("10.77.0.2")
        })
    );
    assert_eq!(server.poll_timeout(), None);
}

#[test]
fn a_discover_of_a_bound_client_does_not_shorten_its_lease() {
    let mut server = server();
    let addr = lease(&mut server, 0, mac(1));
    let (_, offer) = ask(&mut server, 1000, &Packet::discover(mac(1)));
    assert_eq!(offer.unwrap().yiaddr(), addr);
    assert_eq!(server.poll_timeout(), Some(3_600_000));
}

#[test]
fn init_reboot_acks_nothing_it_does_not_know() {
    let mut config = Config::single(scope());
    config.authoritative = false;
    let mut quiet = Server::new(config);
    let reboot = Packet::request(mac(1)).addr(50, "10.77.0.100");
    let (outcome, reply) = ask(&mut quiet, 0, &reboot);
    assert!(reply.is_none(), "RFC 2131: MUST remain silent");
    assert_eq!(
        outcome.refused,
        Some(Refused::NoRecord {
            addr: ip("10.77.0.100")
        })
    );

    let mut server = server();
    let (outcome, reply) = ask(&mut server, 0, &reboot);
    assert_eq!(
        reply.unwrap().message_type(),
        6,
        "authoritative: {outcome:?}"
    );
    let addr = lease(&mut server, 0, mac(1));
    let (outcome, reply) = ask(&mut server, 1, &reboot);
    assert_eq!(reply.unwrap().message_type(), 5);
    assert_eq!(
        outcome.event,
        Some(Event::Acked {
            addr,
            expires_ms: 3_600_001,
            renewed: true
        })
    );
    // Known, and it remembers another address.
    let (outcome, reply) = ask(
        &mut server,
        2,
        &Packet::request(mac(1)).addr(50, "10.77.0.101"),
    );
    assert_eq!(reply.unwrap().message_type(), 6);
    let expected = Refused::NotAvailable {
        addr: ip("10.77.0.101"),
        on_record: Some(addr),
    };
    assert_eq!(outcome.refused, Some(expected));
}

#[test]
fn nak_on_the_wrong_network_is_broadcast() {
    let mut server = server();
    for packet in [
        Packet::request(mac(1)).addr(50, "192.168.1.5"),
        Packet::request(mac(1)).ciaddr("192.168.1.5"),
        Packet::request(mac(1))
            .addr(50, "192.168.1.5")
            .option(54, &SERVER.octets()),
    ] {
        let (outcome, reply) = ask(&mut server, 0, &packet);
        let nak = reply.unwrap();
        assert_eq!(nak.message_type(), 6);
        assert_eq!((nak.yiaddr(), nak.ciaddr()), (ip("0.0.0.0"), ip("0.0.0.0")));
        assert_eq!(nak.to, Destination::Broadcast);
        assert_eq!(nak.option(51), None);
        assert_eq!(outcome.refused.unwrap().code(), "dhcp.wrong_subnet");
    }
    assert_eq!(server.counters().naked, 3);
}

#[test]
fn a_restart_keeps_leases_and_forgets_offers() {
    let mut before = server();
    let addr = lease(&mut before, 1000, mac(1));
    let _ = ask(&mut before, 1000, &Packet::discover(mac(2)));
    let mut after = server();
    after.restore(before.leases().cloned().collect::<Vec<_>>());
    assert_eq!(after.leases().count(), 1);
    // A REQUEST for the offer made before the restart still succeeds.
    let (_, ack) = ask(&mut after, 2000, &selecting(mac(2), "10.77.0.101"));
    assert_eq!(ack.unwrap().message_type(), 5);
    // But not for an address that somebody holds.
    let (_, nak) = ask(&mut after, 2000, &selecting(mac(3), &addr.to_string()));
    assert_eq!(nak.unwrap().message_type(), 6);
    assert_eq!(lease(&mut after, 2000, mac(1)), addr);
}

#[test]
fn a_renewal_without_a_record_is_trusted_unless_somebody_has_the_address() {
    let mut server = server();
    let renew = Packet::request(mac(1)).ciaddr("10.77.0.102");
    let (outcome, ack) = ask(&mut server, 0, &renew);
    assert_eq!(ack.unwrap().message_type(), 5);
    assert_eq!(outcome.changes[0].cause, Cause::Granted);
    let (outcome, nak) = ask(
        &mut server,
        0,
        &Packet::request(mac(2)).ciaddr("10.77.0.102"),
    );
    assert_eq!(nak.unwrap().message_type(), 6);
    assert_eq!(outcome.refused.unwrap().code(), "dhcp.not_available");
}

#[test]
fn a_declined_address_rests_and_its_client_gets_another() {
    let mut server = server();
    let addr = lease(&mut server, 0, mac(1));
    let decline = Packet::new(4, mac(1))
        .addr(50, &addr.to_string())
        .option(54, &SERVER.octets());
    let (outcome, reply) = ask(&mut server, 10, &decline);
    assert!(reply.is_none());
    assert_eq!(outcome.changes[0].lease.state, LeaseState::Declined);
    assert_eq!(lease(&mut server, 20, mac(1)), ip("10.77.0.101"));
    let wants = Packet::discover(mac(2)).addr(50, &addr.to_string());
    let (_, offer) = ask(&mut server, 3_599_999, &wants);
    assert_eq!(offer.unwrap().yiaddr(), ip("10.77.0.102"));
    let (_, offer) = ask(
        &mut server,
        3_600_010,
        &Packet::discover(mac(3)).addr(50, "10.77.0.100"),
    );
    assert_eq!(offer.unwrap().yiaddr(), addr, "the quarantine is over");
}

#[test]
fn rejects_declines_beyond_the_quarantine() {
    let mut config = Config::single(scope());
    config.limits.quarantine_max = 1;
    let mut server = Server::new(config);
    for (i, want) in [(1, LeaseState::Declined), (2, LeaseState::Released)] {
        let addr = lease(&mut server, 0, mac(i)).to_string();
        let decline = Packet::new(4, mac(i))
            .addr(50, &addr)
            .option(54, &SERVER.octets());
        let (outcome, _) = ask(&mut server, 0, &decline);
        assert_eq!(outcome.changes[0].lease.state, want);
        assert_eq!(outcome.refused.is_some(), i == 2);
    }
}

#[test]
fn reservations_by_hardware_address_hold_for_every_client_identifier() {
    let mut scope = scope();
    scope.reservations = vec![
        Reservation {
            client: ReservedFor::Mac(mac(1)),
            addr: ip("10.77.0.50"),
        },
        Reservation {
            client: ReservedFor::ClientId(b"\0node-b".to_vec()),
            addr: ip("10.77.0.100"),
        },
    ];
    let config = Config::single(scope);
    config.check().unwrap();
    let mut server = Server::new(config);
    assert_eq!(lease(&mut server, 0, mac(1)), ip("10.77.0.50"));
    // Firmware sent no option 61, the system sends a DUID: same machine, same address.
    let duid = [255, 1, 2, 3, 4, 0, 1, 0, 1];
    let (_, offer) = ask(&mut server, 10, &Packet::discover(mac(1)).option(61, &duid));
    assert_eq!(offer.unwrap().yiaddr(), ip("10.77.0.50"));
    let request = selecting(mac(1), "10.77.0.50").option(61, &duid);
    let (outcome, ack) = ask(&mut server, 20, &request);
    assert_eq!(ack.unwrap().message_type(), 5);
    assert_eq!(outcome.changes[0].lease.client.as_bytes(), duid);
    // A reserved address inside the pool is nobody else's.
    let (_, offer) = ask(
        &mut server,
        30,
        &Packet::discover(mac(2)).addr(50, "10.77.0.100"),
    );
    assert_eq!(offer.unwrap().yiaddr(), ip("10.77.0.101"));
    let (_, offer) = ask(
        &mut server,
        30,
        &Packet::discover(mac(3)).option(61, b"\0node-b"),
    );
    assert_eq!(offer.unwrap().yiaddr(), ip("10.77.0.100"));
    // The owner of a reservation is moved to it at its next renewal.
    let (outcome, nak) = ask(
        &mut server,
        40,
        &Packet::request(mac(1)).ciaddr("10.77.0.103"),
    );
    assert_eq!(nak.unwrap().message_type(), 6, "{outcome:?}");
}

#[test]
fn option_61_of_type_1_is_the_hardware_address() {
    let mut server = server();
    let addr = lease(&mut server, 0, mac(1));
    let mut id = vec![1];
    id.extend_from_slice(&mac(1).0);
    let (_, offer) = ask(&mut server, 0, &Packet::discover(mac(1)).option(61, &id));
    assert_eq!(offer.unwrap().yiaddr(), addr);
}

#[test]
fn a_wanted_lease_time_counts_within_bounds() {
    let mut server = server();
    for (wanted, want) in [(600u32, 600u32), (1, 60), (u32::MAX, LEASE_SECS)] {
        let discover = Packet::discover(mac(1)).option(51, &wanted.to_be_bytes());
        let (_, offer) = ask(&mut server, 0, &discover);
        assert_eq!(
            offer.unwrap().option(51),
            Some(&want.to_be_bytes()[..]),
            "wanted {wanted}"
        );
    }
}

#[test]
fn inform_is_answered_without_a_lease() {
    let mut server = server();
    let (outcome, ack) = ask(&mut server, 0, &Packet::new(8, mac(1)).ciaddr("10.77.0.9"));
    let ack = ack.unwrap();
    assert_eq!((ack.message_type(), ack.yiaddr()), (5, ip("0.0.0.0")));
    assert_eq!(
        (ack.option(51), ack.option(58), ack.option(59)),
        (None, None, None)
    );
    assert_eq!(ack.option(1), Some(&[255, 255, 255, 0][..]));
    assert_eq!(
        ack.to,
        Destination::Unicast {
            mac: mac(1),
            addr: ip("10.77.0.9")
        }
    );
    assert!(outcome.changes.is_empty());
    assert_eq!(server.leases().count(), 0);
}

fn relayed_server() -> Server {
    let mut config = Config::single(scope());
    let subnet = Subnet::new(ip("10.78.0.0"), 24).unwrap();
    let pool = Pool {
        start: ip("10.78.0.10"),
        end: ip("10.78.0.20"),
    };
    config.scopes.push(Scope::new(subnet, pool, 600));
    config.relays = vec![ip("172.16.0.1")];
    config.check().unwrap();
    Server::new(config)
}

#[test]
fn a_relayed_client_leases_from_the_relays_subnet() {
    let mut server = relayed_server();
    let circuit = [1, 4, b'e', b't', b'h', b'7', 2, 3, b'S', b'W', b'1'];
    let discover = Packet::discover(mac(1))
        .giaddr("10.78.0.1")
        .option(82, &circuit);
    let (outcome, offer) = ask(&mut server, 0, &discover);
    let offer = offer.unwrap();
    assert_eq!(offer.yiaddr(), ip("10.78.0.10"));
    assert_eq!(offer.option(82), Some(&circuit[..]));
    assert_eq!(offer.order.last(), Some(&82));
    assert_eq!(
        offer.to,
        Destination::Relay("10.78.0.1:67".parse().unwrap())
    );
    let relay = outcome.client.unwrap().relay.unwrap();
    assert_eq!(relay.circuit_id.as_deref(), Some(&b"eth7"[..]));
    assert_eq!(relay.remote_id.as_deref(), Some(&b"SW1"[..]));

    let request = Packet::request(mac(1))
        .giaddr("10.78.0.1")
        .addr(50, "10.78.0.10")
        .option(54, &SERVER.octets())
        .option(82, &circuit);
    let (_, ack) = ask(&mut server, 0, &request);
    assert_eq!(ack.unwrap().option(82), Some(&circuit[..]));
    // RENEWING by unicast past the relay: routed back, not framed to a MAC that is the router's.
    let (outcome, ack) = ask(
        &mut server,
        1000,
        &Packet::request(mac(1)).ciaddr("10.78.0.10"),
    );
    assert_eq!(
        ack.unwrap().to,
        Destination::Relay("10.78.0.10:68".parse().unwrap())
    );
    assert_eq!(outcome.changes[0].cause, Cause::Renewed);
    // INIT-REBOOT on the wrong side of the relay: NAK with option 82 and the broadcast bit.
    let reboot = Packet::request(mac(2))
        .giaddr("10.78.0.1")
        .addr(50, "10.77.0.100");
    let (_, nak) = ask(&mut server, 0, &reboot.option(82, &circuit));
    let nak = nak.unwrap();
    assert_eq!((nak.message_type(), nak.payload[10]), (6, 0x80));
    assert_eq!(nak.option(82), Some(&circuit[..]));
    assert_eq!(nak.to, Destination::Relay("10.78.0.1:67".parse().unwrap()));
}

#[test]
fn a_known_relay_selects_the_link_and_its_port() {
    let mut server = relayed_server();
    let mut from = ingress();
    from.source = "172.16.0.1:4567".parse().unwrap();
    let discover = Packet::discover(mac(1))
        .giaddr("172.16.0.1")
        .option(82, &[5, 4, 10, 78, 0, 0, 19, 0]);
    let outcome = server.handle(0, &discover.bytes(), &from, &NoBoot);
    let reply = outcome.reply.unwrap();
    assert_eq!(Read::of(&reply).yiaddr(), ip("10.78.0.10"));
    assert_eq!(
        reply.to,
        Destination::Relay("172.16.0.1:4567".parse().unwrap())
    );
}

#[test]
fn option_82_of_a_switch_that_does_not_relay_is_echoed_too() {
    let mut server = server();
    let (outcome, offer) = ask(
        &mut server,
        0,
        &Packet::discover(mac(1)).option(82, &[1, 1, 9]),
    );
    let offer = offer.unwrap();
    assert_eq!(offer.option(82), Some(&[1, 1, 9][..]));
    assert!(matches!(offer.to, Destination::Unicast { .. }));
    assert_eq!(outcome.client.unwrap().relay.unwrap().giaddr, ip("0.0.0.0"));
}

#[test]
fn a_clock_set_back_does_not_keep_addresses_taken_for_years() {
    let mut server = server();
    let year_2099 = 4_070_908_800_000;
    lease(&mut server, year_2099, mac(1));
    let year_2026 = 1_790_000_000_000;
    server.handle_timeout(year_2026);
    assert_eq!(server.poll_timeout(), Some(year_2026 + 3_600_000));
    // Restored from a journal that was written under the wrong clock.
    let leases: Vec<Lease> = server.leases().cloned().collect();
    let mut restored = super::server();
    restored.restore(leases.into_iter().map(|l| Lease {
        expires_ms: year_2099,
        ..l
    }));
    restored.handle_timeout(year_2026);
    assert_eq!(restored.poll_timeout(), Some(year_2026 + 3_600_000));
}

#[test]
fn the_same_inputs_give_the_same_outputs() {
    let run = || {
        let mut server = server();
        let mut out = Vec::new();
        for i in 0..40u8 {
            let packet = match i % 3 {
                0 => Packet::discover(mac(i % 7)),
                1 => selecting(mac(i % 7), "10.77.0.101"),
                _ => Packet::request(mac(i % 7)).ciaddr("10.77.0.100"),
            };
            let at = u64::from(i) * 700_000;
            let outcome = server.handle(at, &packet.bytes(), &ingress(), &NoBoot);
            out.push(format!("{outcome:?}"));
        }
        (
            out,
            server.leases().cloned().collect::<Vec<_>>(),
            server.counters().clone(),
        )
    };
    assert_eq!(run(), run());
}
