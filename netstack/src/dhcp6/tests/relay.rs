//! Relay agents (RFC 8415 section 19): the way in, and the same way back.

use super::*;

/// Wraps `inner` in a Relay-forward with these options.
fn forward(hops: u8, link: &str, peer: &str, options: &[(u16, &[u8])], inner: &[u8]) -> Vec<u8> {
    let mut out = vec![12, hops];
    out.extend_from_slice(&ip(link).octets());
    out.extend_from_slice(&ip(peer).octets());
    for (code, value) in options {
        put(&mut out, *code, value);
    }
    put(&mut out, code::RELAY_MESSAGE, inner);
    out
}

fn relayed(server: &mut Server, bytes: &[u8]) -> Outcome {
    server.handle(0, bytes, &from("2001:db8:20::fe"), &NoBoot)
}

#[test]
fn two_relays_get_back_what_they_need() {
    let mut server = server();
    let solicit = Packet::new(MessageType::Solicit, 1).ia(1, &[]).bytes();
    let mac = [0, 1, 0x52, 0x54, 0, 0, 0, 7];
    // The switch adds the port and the client's address and knows no link (RFC 6221).
    let switch = [
        (code::INTERFACE_ID, &b"Eth1/7"[..]),
        (code::REMOTE_ID, b"\0\0\0\x09sw1"),
        (code::CLIENT_LINKLAYER_ADDR, &mac),
    ];
    let inner = forward(0, "::", "fe80::abcd", &switch, &solicit);
    let outer = forward(
        1,
        "2001:db8:20::fe",
        "fe80::1",
        &[(code::INTERFACE_ID, b"vlan20")],
        &inner,
    );
    let outcome = relayed(&mut server, &outer);
    let client = outcome.client.as_ref().unwrap();
    assert_eq!(client.mac, Some(MacAddr([0x52, 0x54, 0, 0, 0, 7])));
    assert_eq!(client.peer, ip("fe80::abcd"));
    assert_eq!(
        client.relays[1].remote_id.as_deref(),
        Some(&b"\0\0\0\x09sw1"[..])
    );
    let reply = outcome.reply.as_ref().unwrap();
    assert_eq!(
        reply.to,
        SocketAddrV6::new(ip("2001:db8:20::fe"), 547, 0, 3)
    );
    let back = Answer::read(&reply.payload).message;
    assert_eq!(back.message_type(), Some(MessageType::Advertise));
    let [vlan, port] = back.relays.as_slice() else {
        panic!()
    };
    assert_eq!((vlan.msg_type, vlan.hop_count, port.hop_count), (13, 1, 0));
    assert_eq!(
        (vlan.peer_address, port.peer_address),
        (ip("fe80::1"), ip("fe80::abcd"))
    );
    assert_eq!(
        (vlan.link_address, port.link_address),
        (ip("2001:db8:20::fe"), ip("::"))
    );
    assert_eq!(vlan.interface_id.as_deref(), Some(&b"vlan20"[..]));
    assert_eq!(port.interface_id.as_deref(), Some(&b"Eth1/7"[..]));
    assert_eq!(
        (port.remote_id.clone(), port.client_mac),
        (None, None),
        "not for the way back"
    );
}

#[test]
fn a_relay_that_wants_its_own_port_gets_it() {
    let mut server = server();
    let solicit = Packet::new(MessageType::Solicit, 1).ia(1, &[]).bytes();
    let bytes = forward(
        0,
        "2001:db8:20::fe",
        "fe80::9",
        &[(code::RELAY_PORT, &[0, 0])],
        &solicit,
    );
    let ingress = Ingress {
        source: SocketAddrV6::new(ip("2001:db8:20::fe"), 4_000, 0, 0),
        iface: "prov0".into(),
    };
    let reply = server.handle(0, &bytes, &ingress, &NoBoot).reply.unwrap();
    assert_eq!(reply.to.port(), 4_000);
    assert!(
        Answer::read(&reply.payload).message.relays[0]
            .relay_port
            .is_some()
    );
}

#[test]
fn rejects_relays_from_elsewhere_loops_and_empty_ones() {
    let mut server = server();
    let solicit = Packet::new(MessageType::Solicit, 1).ia(1, &[]).bytes();
    let code_of = |outcome: Outcome| outcome.refused.unwrap().code();
    let foreign = forward(0, "2001:db8:99::1", "fe80::9", &[], &solicit);
    assert_eq!(code_of(relayed(&mut server, &foreign)), "dhcp6.no_scope");
    let mut deep = solicit.clone();
    for hop in 0..8 {
        deep = forward(hop, "::", "fe80::9", &[], &deep);
    }
    assert!(
        relayed(&mut server, &deep).reply.is_some(),
        "eight relays are allowed"
    );
    deep = forward(8, "::", "fe80::9", &[], &deep);
    assert_eq!(code_of(relayed(&mut server, &deep)), "dhcp6.relay_depth");
    let mut empty = forward(0, "::", "fe80::9", &[], &[]);
    empty.truncate(34);
    assert_eq!(code_of(relayed(&mut server, &empty)), "dhcp6.relay_empty");
    empty.truncate(33);
    assert_eq!(code_of(relayed(&mut server, &empty)), "dhcp6.too_short");
    let mut reply = forward(0, "::", "fe80::9", &[], &solicit);
    reply[0] = 13;
    assert_eq!(code_of(relayed(&mut server, &reply)), "dhcp6.not_a_request");
}

#[test]
fn a_reply_that_outgrows_the_packet_is_refused_and_what_was_leased_is_written_down() {
    let mut server = server();
    let solicit = Packet::new(MessageType::Solicit, 1)
        .option(code::RAPID_COMMIT, &[])
        .ia(1, &[])
        .bytes();
    let long = vec![b'x'; 1_300];
    let bytes = forward(0, "::", "fe80::9", &[(code::INTERFACE_ID, &long)], &solicit);
    let outcome = relayed(&mut server, &bytes);
    assert_eq!(outcome.refused, Some(Refused::ReplyTooLong { max: 1232 }));
    assert!(outcome.reply.is_none());
    assert_eq!(
        outcome.changes[0].lease,
        *server.lease(outcome.changes[0].lease.addr).unwrap()
    );
}
