//! BOOTP clients: RFC 951, RFC 1542, RFC 1534.

use super::*;

/// 300 octets, cookie and END, as in eblot/pybootd#16.
fn bare(mac: MacAddr) -> Vec<u8> {
    let mut packet = Packet::discover(mac).bytes();
    packet.truncate(240);
    packet.push(255);
    packet.resize(300, 0);
    packet
}

fn reserved(dynamic: bool) -> Server {
    let mut scope = scope();
    scope.reservations = vec![Reservation {
        client: ReservedFor::Mac(mac(1)),
        addr: ip("10.77.0.50"),
    }];
    let mut config = Config::single(scope);
    config.bootp_dynamic = dynamic;
    config.check().unwrap();
    Server::new(config)
}

#[test]
fn a_reservation_is_answered_without_any_option_of_dhcp() {
    let mut server = reserved(false);
    let outcome = server.handle(7, &bare(mac(1)), &ingress(), &NoBoot);
    let reply = outcome.reply.expect("a reply");
    assert_eq!(reply.payload.len(), 300, "RFC 1542 section 2.1");
    let read = Read::of(&reply);
    assert_eq!(read.yiaddr(), ip("10.77.0.50"));
    assert_eq!(read.payload[0], 2);
    for code in [50, 51, 53, 54, 55, 57, 58, 59, 60, 61] {
        assert_eq!(read.option(code), None, "option {code} is DHCP's");
    }
    assert_eq!(read.option(1), Some(&[255, 255, 255, 0][..]));
    assert_eq!(read.option(3), Some(&[10, 77, 0, 254][..]));
    let to = Destination::Unicast {
        mac: mac(1),
        addr: ip("10.77.0.50"),
    };
    assert_eq!(read.to, to);
    assert_eq!(outcome.changes[0].cause, Cause::Granted, "on disk first");
    assert_eq!(server.holder(ip("10.77.0.50")), Some(mac(1)));
    let again = server.handle(8, &bare(mac(1)), &ingress(), &NoBoot);
    assert_eq!(again.changes[0].cause, Cause::Renewed);
    assert_eq!(server.counters().bootp, 2);
}

#[test]
fn rejects_strangers_and_leaves_the_pool_to_dhcp() {
    let mut server = reserved(false);
    let outcome = server.handle(0, &bare(mac(2)), &ingress(), &NoBoot);
    assert!(outcome.reply.is_none() && outcome.changes.is_empty());
    assert_eq!(outcome.refused, Some(Refused::Bootp { mac: mac(2) }));
    // Its reserved address is in use: no other is given.
    let addr = server.handle(0, &bare(mac(1)), &ingress(), &NoBoot);
    assert!(addr.reply.is_some());
    let decline = Packet::new(4, mac(1)).addr(50, "10.77.0.50");
    assert_eq!(ask(&mut server, 1, &decline).0.refused, None);
    let outcome = server.handle(2, &bare(mac(1)), &ingress(), &NoBoot);
    assert_eq!(outcome.refused.unwrap().code(), "dhcp.not_available");
}

#[test]
fn a_pool_address_where_the_owner_allows_it() {
    let mut server = reserved(true);
    let outcome = server.handle(0, &bare(mac(2)), &ingress(), &NoBoot);
    let addr = Read::of(&outcome.reply.expect("a reply")).yiaddr();
    assert_eq!(addr, ip("10.77.0.100"));
    let day_ms = 86_400_000;
    server.handle_timeout(29 * day_ms);
    assert_eq!(server.holder(addr), Some(mac(2)), "it cannot renew");
    assert_ne!(lease(&mut server, 29 * day_ms, mac(3)), addr);
    server.handle_timeout(31 * day_ms);
    assert_eq!(server.holder(addr), None);
}

#[test]
fn a_relay_gets_option_82_back_whole() {
    let mut server = reserved(false);
    let circuit = [1u8, 60]
        .iter()
        .copied()
        .chain([b'x'; 60])
        .collect::<Vec<u8>>();
    let mut packet = Packet::discover(mac(1)).giaddr("10.77.0.2").bytes();
    packet.truncate(240);
    packet.extend_from_slice(&[82, circuit.len() as u8]);
    packet.extend_from_slice(&circuit);
    packet.push(255);
    let outcome = server.handle(0, &packet, &ingress(), &NoBoot);
    let read = Read::of(&outcome.reply.expect("a reply"));
    assert_eq!(read.option(82), Some(&circuit[..]));
    assert_eq!(read.option(1), Some(&[255, 255, 255, 0][..]));
    assert!(read.payload.len() <= 300 + circuit.len() + 2);
}

#[test]
fn rejects_options_that_break_off_before_a_message_type() {
    let mut server = reserved(true);
    for tail in [&[12u8, 99, b'x'][..], &[12]] {
        let mut packet = Packet::discover(mac(1)).bytes();
        packet.truncate(240);
        packet.extend_from_slice(tail);
        let outcome = server.handle(0, &packet, &ingress(), &NoBoot);
        assert_eq!(outcome.refused.unwrap().code(), "dhcp.message_type");
    }
}
