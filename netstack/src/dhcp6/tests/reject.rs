//! One test per rule: the packet that passes, changed in one thing.

use super::*;

fn refused(packet: &Packet) -> (&'static str, bool) {
    refused_by(&mut server(), packet)
}

fn refused_by(server: &mut Server, packet: &Packet) -> (&'static str, bool) {
    let outcome = packet.handle(server, 0);
    let refused = outcome.refused.expect("a refusal");
    let told = refused.explain();
    assert!(!told.expected.is_empty() && !told.found.is_empty() && !told.next.is_empty());
    assert!(
        told.source.starts_with("RFC ") || told.source.contains(": "),
        "{}",
        told.source
    );
    assert_eq!(server.counters().refused[refused.code()], 1);
    (refused.code(), outcome.reply.is_some())
}

#[test]
fn rejects_datagrams_that_are_no_message() {
    let mut server = server();
    let mut code_of = |bytes: &[u8]| {
        server
            .handle(0, bytes, &ingress(), &NoBoot)
            .refused
            .unwrap()
            .code()
    };
    assert_eq!(code_of(&[]), "dhcp6.too_short");
    assert_eq!(code_of(&[1, 2, 3]), "dhcp6.too_short");
    assert_eq!(code_of(&vec![1; 9_001]), "dhcp6.too_long");
    assert_eq!(code_of(&[99, 0, 0, 1]), "dhcp6.message_type");
    for reply in [2, 7, 10] {
        assert_eq!(code_of(&[reply, 0, 0, 1]), "dhcp6.not_a_request");
    }
}

#[test]
fn rejects_messages_without_or_with_a_bad_client_identifier() {
    let mut packet = Packet::new(MessageType::Solicit, 1).ia(1, &[]);
    assert!(packet.handle(&mut server(), 0).refused.is_none());
    packet.options[0].1 = vec![0, 3];
    assert_eq!(refused(&packet), ("dhcp6.duid_length", false));
    packet.options[0].1 = vec![0; 131];
    assert_eq!(refused(&packet), ("dhcp6.duid_length", false));
    packet.options.remove(0);
    assert_eq!(refused(&packet), ("dhcp6.no_client_id", false));
}

#[test]
fn rejects_server_identifiers_where_they_are_wrong() {
    let addr = [ip("2001:db8:20::100")];
    for kind in [
        MessageType::Solicit,
        MessageType::Confirm,
        MessageType::Rebind,
    ] {
        let packet = Packet::new(kind, 1).naming_us().ia(1, &addr);
        assert_eq!(refused(&packet), ("dhcp6.server_id_unexpected", false));
    }
    for kind in [
        MessageType::Request,
        MessageType::Renew,
        MessageType::Release,
        MessageType::Decline,
    ] {
        let packet = Packet::new(kind, 1).ia(1, &addr);
        assert_eq!(refused(&packet), ("dhcp6.no_server_id", false));
        let other = packet.option(code::SERVER_ID, &[0, 3, 0, 1, 9, 9, 9, 9, 9, 9]);
        assert_eq!(refused(&other), ("dhcp6.chose_other", false));
    }
    let other = Packet::new(MessageType::InformationRequest, 1).option(code::SERVER_ID, &[0, 3, 9]);
    assert_eq!(refused(&other), ("dhcp6.chose_other", false));
}

#[test]
fn an_offer_returns_when_the_client_takes_another_servers() {
    let mut server = server();
    let solicit = Packet::new(MessageType::Solicit, 1).ia(1, &[]);
    let addr = Answer::of(&solicit.handle(&mut server, 0)).addr();
    let other = Packet::new(MessageType::Request, 1)
        .option(code::SERVER_ID, &[0, 3, 9])
        .ia(1, &[addr]);
    assert_eq!(refused_by(&mut server, &other).0, "dhcp6.chose_other");
    assert_eq!(server.lease(addr).unwrap().state, LeaseState::Expired);
}

#[test]
fn rejects_identity_associations_that_are_missing_or_misplaced() {
    let none = Packet::new(MessageType::Solicit, 1);
    assert_eq!(refused(&none), ("dhcp6.no_ia", false));
    let short = none.clone().option(code::IA_NA, &[0, 0, 0, 1]);
    assert_eq!(refused(&short), ("dhcp6.no_ia", false));
    let inform = Packet::new(MessageType::InformationRequest, 1).ia(1, &[]);
    assert_eq!(refused(&inform), ("dhcp6.ia_unexpected", false));
    // Told in words what is not served here.
    let temporary = none.option(code::IA_TA, &[0, 0, 0, 1]);
    assert_eq!(refused(&temporary), ("dhcp6.ia_kind", true));
    let confirm = Packet::new(MessageType::Confirm, 1).ia(1, &[]);
    assert_eq!(refused(&confirm), ("dhcp6.no_address", false));
}

#[test]
fn rejects_addresses_of_another_link_and_of_other_clients() {
    let elsewhere = Packet::new(MessageType::Request, 1)
        .naming_us()
        .ia(1, &[ip("2001:db8:99::1")]);
    let mut server = server();
    let outcome = elsewhere.handle(&mut server, 0);
    assert_eq!(
        outcome.refused.as_ref().unwrap().code(),
        "dhcp6.not_on_link"
    );
    assert_eq!(Answer::of(&outcome).ias(), [(vec![], Some(4))]);
    let taken = leased(&mut server, 1, 0);
    // A Request for what somebody else holds gets another address.
    let request = Packet::new(MessageType::Request, 2)
        .naming_us()
        .ia(1, &[taken]);
    assert_ne!(Answer::of(&request.handle(&mut server, 0)).addr(), taken);
    for kind in [MessageType::Release, MessageType::Decline] {
        let packet = Packet::new(kind, 3).naming_us().ia(1, &[taken]);
        let outcome = packet.handle(&mut server, 0);
        assert_eq!(outcome.refused.as_ref().unwrap().code(), "dhcp6.no_binding");
        assert!(outcome.changes.is_empty());
        assert_eq!(Answer::of(&outcome).ias(), [(vec![], Some(3))]);
    }
    assert_eq!(server.lease(taken).unwrap().state, LeaseState::Bound);
}

#[test]
fn rejects_when_the_pool_is_exhausted_and_says_so() {
    let mut server = server();
    for n in 0..16 {
        leased(&mut server, n, 0);
    }
    let late = Packet::new(MessageType::Solicit, 99).ia(1, &[]);
    assert_eq!(
        refused_by(&mut server, &late),
        ("dhcp6.pool_exhausted", true)
    );
}

#[test]
fn a_flood_of_solicits_holds_the_offers_it_may_and_ends() {
    let mut config = config();
    config.limits.offers_max = 4;
    let mut server = Server::new(config);
    for n in 0..4 {
        let solicit = Packet::new(MessageType::Solicit, n).ia(1, &[]);
        assert!(solicit.handle(&mut server, 0).refused.is_none());
    }
    let fifth = Packet::new(MessageType::Solicit, 4).ia(1, &[]);
    assert_eq!(refused_by(&mut server, &fifth), ("dhcp6.offer_limit", true));
    assert!(fifth.handle(&mut server, 60_000).refused.is_none());
}

#[test]
fn one_client_holds_the_addresses_it_may() {
    let mut server = server();
    for iaid in 0..8 {
        let request = Packet::new(MessageType::Request, 1)
            .naming_us()
            .ia(iaid, &[]);
        assert!(request.handle(&mut server, 0).refused.is_none());
    }
    let ninth = Packet::new(MessageType::Request, 1).naming_us().ia(8, &[]);
    assert_eq!(
        refused_by(&mut server, &ninth),
        ("dhcp6.client_limit", true)
    );
    let renew = Packet::new(MessageType::Renew, 1)
        .naming_us()
        .ia(9, &[ip("2001:db8:20::10f")]);
    assert_eq!(
        renew.handle(&mut server, 0).refused.unwrap().code(),
        "dhcp6.no_binding"
    );
}

#[test]
fn one_message_asks_for_the_associations_it_may() {
    let mut packet = Packet::new(MessageType::Solicit, 1);
    for iaid in 0..20 {
        packet = packet.ia(iaid, &[]);
    }
    let outcome = packet.handle(&mut server(), 0);
    assert_eq!(Answer::of(&outcome).ias().len(), 8);
    let note = OptionNote {
        code: 3,
        kind: NoteKind::TooMany { max: 8 },
    };
    assert_eq!(outcome.client.unwrap().notes, [note]);
}

proptest::proptest! {
    #[test]
    fn never_panics_on_bytes(bytes: Vec<u8>, kind in 1u8..=13) {
        let mut server = server();
        let _ = server.handle(0, &bytes, &ingress(), &NoBoot);
        let mut typed = bytes;
        typed.insert(0, kind);
        let _ = server.handle(0, &typed, &ingress(), &NoBoot);
    }

    /// A good packet with some octets changed: never a panic, and an answer stays within its bound.
    #[test]
    fn never_panics_on_changed_packets(
        changes in proptest::collection::vec((0usize..200, 0u8..), 0..6), kind in 1u8..=11,
    ) {
        let mut bytes = Packet::new(MessageType::from_wire(kind).unwrap(), 1)
            .ia(1, &[ip("2001:db8:20::100")])
            .option(code::USER_CLASS, b"\0\x04iPXE")
            .option(code::VENDOR_CLASS, b"\0\0\x01\x57\0\x09PXEClient")
            .bytes();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let outcome = server().handle(0, &bytes, &ingress(), &NoBoot);
        if let Some(reply) = outcome.reply {
            proptest::prop_assert!(reply.payload.len() <= 1232);
            let _ = Answer::read(&reply.payload);
        }
    }
}
