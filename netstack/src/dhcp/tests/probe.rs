//! Conflict probing as a timeline: the offer waits for silence, a hit leads on, nobody bound waits.

use super::*;

const WAIT_MS: u64 = 200;
const STATIC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 9, 9]);

fn probing() -> Server {
    let mut config = Config::single(scope());
    config.limits.probe_ms = WAIT_MS;
    Server::new(config)
}

/// DISCOVER that must wait; the address under probe.
fn probed(server: &mut Server, now_ms: u64, packet: &Packet) -> Ipv4Addr {
    let (outcome, reply) = ask(server, now_ms, packet);
    assert!(reply.is_none() && outcome.refused.is_none(), "{outcome:?}");
    assert!(outcome.changes.is_empty() && outcome.event.is_none());
    outcome.probe.expect("a probe")
}

fn due(server: &mut Server, now_ms: u64) -> Option<Read> {
    let (outcome, iface) = server.poll_probed(now_ms, &NoBoot)?;
    assert_eq!(iface, "prov0");
    outcome.reply.as_ref().map(Read::of)
}

fn take(server: &mut Server, now_ms: u64, mac: MacAddr, addr: Ipv4Addr) {
    let request = Packet::request(mac)
        .addr(50, &addr.to_string())
        .option(54, &SERVER.octets());
    let (_, ack) = ask(server, now_ms, &request);
    assert_eq!(ack.expect("an answer").message_type(), 5);
}

#[test]
fn silence_gives_the_offer_at_the_stated_time() {
    let mut server = probing();
    let addr = probed(&mut server, 1_000, &Packet::discover(mac(1)));
    assert_eq!(addr, ip("10.77.0.100"));
    assert_eq!(server.poll_timeout(), Some(1_000 + WAIT_MS));
    assert!(due(&mut server, 999 + WAIT_MS).is_none());
    let offer = due(&mut server, 1_000 + WAIT_MS).expect("the offer");
    assert_eq!((offer.message_type(), offer.yiaddr()), (2, addr));
    assert!(due(&mut server, 5_000).is_none(), "once");
    take(&mut server, 1_300, mac(1), addr);
    assert_eq!(server.counters().probed, 1);
}

#[test]
fn a_client_that_repeats_itself_is_answered_once_with_its_last_xid() {
    let mut server = probing();
    probed(&mut server, 0, &Packet::discover(mac(1)));
    let again = Packet::discover(mac(1)).set(7, 0x77);
    let (outcome, reply) = ask(&mut server, 100, &again);
    assert!(reply.is_none() && outcome.probe.is_none(), "{outcome:?}");
    let offer = due(&mut server, WAIT_MS).expect("the offer");
    assert_eq!(offer.payload[7], 0x77);
    assert!(due(&mut server, 10_000).is_none());
}

#[test]
fn a_hit_rests_the_address_and_leads_to_the_next() {
    let mut server = probing();
    let first = probed(&mut server, 0, &Packet::discover(mac(1)));
    let outcome = server.handle_conflict(50, first, STATIC, &NoBoot);
    assert_eq!(outcome.changes.len(), 1);
    assert_eq!(outcome.changes[0].lease.state, LeaseState::Declined);
    assert_eq!(outcome.changes[0].cause, Cause::Conflict, "on record");
    let event = Event::Conflict {
        addr: first,
        by: STATIC,
    };
    assert_eq!(outcome.event, Some(event));
    let refused = outcome.refused.expect("named");
    assert_eq!(refused.code(), "dhcp.address_in_use");
    let said = refused.to_string();
    assert!(said.contains("52:54:00:00:09:09"), "{said}");
    assert_eq!(outcome.client.expect("for whom").mac, mac(1));
    let second = outcome.probe.expect("the next address");
    assert_ne!(first, second);
    assert!(due(&mut server, WAIT_MS).is_none(), "its own wait");
    let offer = due(&mut server, 50 + WAIT_MS).expect("the offer");
    assert_eq!(offer.yiaddr(), second);
    // The first is nobody's until its rest is over.
    let wants = Packet::discover(mac(2)).addr(50, &first.to_string());
    assert_ne!(probed(&mut server, 1_000, &wants), first);
}

#[test]
fn a_liar_who_answers_every_probe_costs_a_few_addresses_per_discover() {
    let mut server = probing();
    let mut addr = Some(probed(&mut server, 0, &Packet::discover(mac(1))));
    let mut hits = 0;
    while let Some(under_probe) = addr {
        addr = server
            .handle_conflict(1, under_probe, STATIC, &NoBoot)
            .probe;
        hits += 1;
    }
    assert_eq!(hits, 3);
    assert!(due(&mut server, 60_000).is_none());
    // Not even a full quarantine gives out an address that is in use.
    let mut config = Config::single(scope());
    config.limits.probe_ms = WAIT_MS;
    config.limits.quarantine_max = 0;
    let mut server = Server::new(config);
    let first = probed(&mut server, 0, &Packet::discover(mac(1)));
    let outcome = server.handle_conflict(1, first, STATIC, &NoBoot);
    assert!(outcome.changes.is_empty());
    assert_ne!(outcome.probe.expect("the next"), first);
}

#[test]
fn who_holds_or_held_an_address_never_waits() {
    let mut server = probing();
    let addr = probed(&mut server, 0, &Packet::discover(mac(1)));
    due(&mut server, WAIT_MS).expect("the offer");
    let offer = |server: &mut Server, now_ms| {
        let (outcome, offer) = ask(server, now_ms, &Packet::discover(mac(1)));
        assert_eq!(outcome.probe, None);
        assert_eq!(offer.expect("at once").yiaddr(), addr);
    };
    offer(&mut server, 300);
    take(&mut server, 400, mac(1), addr);
    offer(&mut server, 500);
    offer(&mut server, 4_000_000);
    let release = Packet::new(7, mac(1)).ciaddr(&addr.to_string());
    take(&mut server, 4_000_100, mac(1), addr);
    assert_eq!(ask(&mut server, 4_000_200, &release).0.refused, None);
    offer(&mut server, 4_000_300);
    // Somebody else is led to it only after a probe.
    let wants = Packet::discover(mac(2)).addr(50, "10.77.0.101");
    assert_eq!(probed(&mut server, 4_000_400, &wants), ip("10.77.0.101"));
}

#[test]
fn reservations_relayed_clients_and_storms_are_not_probed() {
    let mut scope = scope();
    scope.reservations = vec![Reservation {
        client: ReservedFor::Mac(mac(1)),
        addr: ip("10.77.0.50"),
    }];
    let mut config = Config::single(scope);
    let far = Subnet::new(ip("10.78.0.0"), 24).unwrap();
    let pool = Pool {
        start: ip("10.78.0.10"),
        end: ip("10.78.0.20"),
    };
    config.scopes.push(Scope::new(far, pool, 600));
    config.limits.probe_ms = WAIT_MS;
    config.limits.probes_max = 1;
    let mut server = Server::new(config);
    let at_once = |server: &mut Server, packet: &Packet| {
        let (outcome, offer) = ask(server, 0, packet);
        assert!(offer.is_some() && outcome.probe.is_none(), "{outcome:?}");
    };
    at_once(&mut server, &Packet::discover(mac(1)));
    // ARP does not cross the relay.
    at_once(&mut server, &Packet::discover(mac(2)).giaddr("10.78.0.1"));
    probed(&mut server, 0, &Packet::discover(mac(3)));
    at_once(&mut server, &Packet::discover(mac(4)));
    assert_eq!(server.counters().unprobed, 1);
}

#[test]
fn hits_that_mean_nothing_change_nothing() {
    let mut server = probing();
    let addr = probed(&mut server, 0, &Packet::discover(mac(1)));
    let ignored = |server: &mut Server, addr: Ipv4Addr, by: MacAddr| {
        let outcome = server.handle_conflict(10, addr, by, &NoBoot);
        assert!(outcome.changes.is_empty() && outcome.refused.is_none());
    };
    ignored(&mut server, addr, mac(1)); // the client itself
    ignored(&mut server, ip("10.77.0.101"), STATIC); // not under probe
    ignored(&mut server, ip("192.0.2.1"), STATIC);
    let offer = due(&mut server, WAIT_MS).expect("the offer");
    assert_eq!(offer.yiaddr(), addr);
    take(&mut server, 300, mac(1), addr);
    ignored(&mut server, addr, STATIC); // bound: the client's own check (DECLINE) counts
    assert_eq!(server.counters().conflicts, 0);
}

#[test]
fn a_late_answer_still_stops_an_offer_that_was_not_taken() {
    let mut server = probing();
    let addr = probed(&mut server, 0, &Packet::discover(mac(1)));
    due(&mut server, WAIT_MS).expect("the offer");
    let outcome = server.handle_conflict(300, addr, STATIC, &NoBoot);
    assert_eq!(outcome.changes[0].lease.state, LeaseState::Declined);
    assert_eq!(outcome.probe, None, "the client asks again by itself");
    let request = Packet::request(mac(1))
        .addr(50, &addr.to_string())
        .option(54, &SERVER.octets());
    let (_, nak) = ask(&mut server, 400, &request);
    assert_eq!(nak.expect("an answer").message_type(), 6);
}

#[test]
fn a_clock_set_back_does_not_leave_a_client_waiting() {
    let mut server = probing();
    let year_2099 = 4_070_908_800_000;
    probed(&mut server, year_2099, &Packet::discover(mac(1)));
    server.handle_timeout(1_000);
    assert_eq!(server.poll_timeout(), Some(1_000 + WAIT_MS));
    assert!(due(&mut server, 1_000 + WAIT_MS).is_some());
}

#[test]
fn bootp_waits_for_the_same_silence() {
    let mut config = Config::single(scope());
    config.limits.probe_ms = WAIT_MS;
    config.bootp_dynamic = true;
    let mut server = Server::new(config);
    let mut bare = Packet::discover(mac(1)).bytes();
    bare.truncate(240);
    bare.push(255);
    let outcome = server.handle(0, &bare, &ingress(), &NoBoot);
    assert!(outcome.reply.is_none() && outcome.probe.is_some());
    let (outcome, _) = server.poll_probed(WAIT_MS, &NoBoot).expect("the reply");
    assert!(matches!(outcome.event, Some(Event::Bootp { .. })));
    assert_eq!(outcome.changes.len(), 1, "on disk before it leaves");
}

#[test]
fn our_own_watch_is_never_answered() {
    let mut server = probing();
    server.ignore(mac(9));
    for packet in [Packet::discover(mac(9)), Packet::request(mac(9))] {
        let (outcome, reply) = ask(&mut server, 0, &packet);
        assert!(reply.is_none() && outcome.probe.is_none());
        assert_eq!((outcome.event, outcome.refused), (None, None));
    }
    assert_eq!(server.leases().count(), 0);
}
