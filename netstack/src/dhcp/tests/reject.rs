//! One test per refusal, and the proof that no datagram brings the server down.

use super::*;

fn refused(packet: &[u8]) -> Refused {
    let mut server = server();
    let outcome = server.handle(0, packet, &ingress(), &NoBoot);
    assert!(
        outcome.reply.is_none() && outcome.changes.is_empty(),
        "{outcome:?}"
    );
    let refused = outcome.refused.expect("a refusal");
    assert_eq!(server.counters().refused[refused.code()], 1, "counted");
    let explanation = refused.explain();
    for part in [&explanation.expected, &explanation.found] {
        assert!(!part.is_empty() && !part.ends_with('.'), "{explanation}");
    }
    refused
}

#[test]
fn rejects_short_and_long_datagrams() {
    for len in [0, 1, 239] {
        assert_eq!(refused(&vec![1; len]), Refused::TooShort { len });
    }
    assert_eq!(
        refused(&vec![1; 9001]),
        Refused::TooLong {
            len: 9001,
            max: 9000
        }
    );
}

#[test]
fn accepts_requests_below_the_bootp_minimum() {
    let packet = Packet::discover(mac(1)).bytes();
    assert!(packet.len() < 300);
    assert!(
        server()
            .handle(0, &packet, &ingress(), &NoBoot)
            .reply
            .is_some()
    );
}

#[test]
fn rejects_replies_of_other_servers() {
    let packet = Packet::new(2, mac(1)).set(0, 2);
    assert_eq!(refused(&packet.bytes()), Refused::NotARequest { op: 2 });
}

#[test]
fn rejects_other_hardware() {
    for (htype, hlen) in [(32, 0), (1, 16), (1, 255), (7, 1)] {
        let packet = Packet::discover(mac(1)).set(1, htype).set(2, hlen);
        assert_eq!(refused(&packet.bytes()), Refused::Hardware { htype, hlen });
    }
    let ieee_802 = Packet::discover(mac(1)).set(1, 6);
    assert!(
        server()
            .handle(0, &ieee_802.bytes(), &ingress(), &NoBoot)
            .reply
            .is_some()
    );
}

#[test]
fn rejects_relay_loops() {
    assert_eq!(
        refused(&Packet::discover(mac(1)).set(3, 17).bytes()),
        Refused::Hops { hops: 17 }
    );
}

#[test]
fn rejects_a_wrong_cookie() {
    let packet = Packet::discover(mac(1)).set(239, 0);
    assert_eq!(
        refused(&packet.bytes()),
        Refused::Cookie {
            found: [99, 130, 83, 0]
        }
    );
}

#[test]
fn rejects_hardware_addresses_that_are_no_interface() {
    for bad in [
        MacAddr([0; 6]),
        MacAddr([0xff; 6]),
        MacAddr([1, 0, 0x5e, 0, 0, 1]),
    ] {
        let packet = Packet::discover(bad);
        assert_eq!(
            refused(&packet.bytes()),
            Refused::ChaddrInvalid { mac: bad }
        );
    }
}

/// eblot/pybootd#16: 300 bytes, cookie and END.
#[test]
fn rejects_bootp_without_option_53() {
    let mut packet = Packet::discover(mac(1)).bytes();
    packet.truncate(240);
    packet.push(255);
    packet.resize(300, 0);
    assert_eq!(refused(&packet), Refused::Bootp { mac: mac(1) });
}

#[test]
fn rejects_message_types_that_clients_do_not_send() {
    for value in [0, 2, 5, 6, 9, 10, 255] {
        let packet = Packet::new(value, mac(1));
        let want = Refused::MessageType {
            value: Some(value),
            mac: mac(1),
        };
        assert_eq!(refused(&packet.bytes()), want);
    }
    let mut packet = Packet::discover(mac(1)).bytes();
    packet.truncate(240);
    packet.extend_from_slice(&[53, 0, 255]);
    assert_eq!(
        refused(&packet),
        Refused::MessageType {
            value: None,
            mac: mac(1)
        }
    );
}

#[test]
fn rejects_relays_and_links_it_does_not_know() {
    let packet = Packet::discover(mac(1)).giaddr("192.0.2.1");
    assert_eq!(
        refused(&packet.bytes()),
        Refused::RelayUnknown {
            giaddr: ip("192.0.2.1")
        }
    );
    let selects = Packet::discover(mac(1))
        .giaddr("10.77.0.2")
        .option(82, &[5, 4, 192, 0, 2, 0]);
    assert_eq!(
        refused(&selects.bytes()),
        Refused::NoScope {
            link: ip("192.0.2.0")
        }
    );
    let mut elsewhere = ingress();
    elsewhere.server_addr = ip("192.0.2.9");
    let outcome = server().handle(0, &Packet::discover(mac(1)).bytes(), &elsewhere, &NoBoot);
    assert_eq!(
        outcome.refused,
        Some(Refused::NoScope {
            link: ip("192.0.2.9")
        })
    );
}

#[test]
fn rejects_an_offer_flood() {
    let mut config = Config::single(scope());
    config.limits.offers_max = 2;
    let mut server = Server::new(config);
    for i in [1, 2, 1] {
        assert!(
            ask(&mut server, 0, &Packet::discover(mac(i))).1.is_some(),
            "a repeat is no new offer"
        );
    }
    let (outcome, reply) = ask(&mut server, 0, &Packet::discover(mac(3)));
    assert!(reply.is_none());
    assert_eq!(outcome.refused, Some(Refused::OfferLimit { open: 2 }));
    // The third client was given nothing, so the next round is not short of an address.
    assert!(
        ask(&mut server, 60_000, &Packet::discover(mac(3)))
            .1
            .is_some()
    );
}

#[test]
fn rejects_requests_that_name_no_address() {
    for packet in [
        Packet::request(mac(1)),
        Packet::request(mac(1)).option(54, &SERVER.octets()),
        Packet::new(4, mac(1)),
        Packet::new(7, mac(1)),
        Packet::new(8, mac(1)),
    ] {
        assert_eq!(refused(&packet.bytes()), Refused::NoAddress);
    }
}

#[test]
fn rejects_release_and_decline_of_somebody_elses_address() {
    let mut server = server();
    let addr = lease(&mut server, 0, mac(1)).to_string();
    for packet in [
        Packet::new(7, mac(2))
            .ciaddr(&addr)
            .option(54, &SERVER.octets()),
        Packet::new(4, mac(2))
            .addr(50, &addr)
            .option(54, &SERVER.octets()),
        Packet::new(7, mac(1)).ciaddr("10.77.0.101"),
    ] {
        let (outcome, _) = ask(&mut server, 1, &packet);
        assert_eq!(outcome.refused.unwrap().code(), "dhcp.not_holder");
        assert!(outcome.changes.is_empty());
    }
    let other = Packet::new(7, mac(1)).ciaddr(&addr).addr(54, "10.77.0.2");
    let (outcome, _) = ask(&mut server, 1, &other);
    assert_eq!(outcome.refused.unwrap().code(), "dhcp.chose_other");
}

#[test]
fn rejects_inform_from_another_network() {
    let packet = Packet::new(8, mac(1)).ciaddr("192.0.2.7");
    assert_eq!(
        refused(&packet.bytes()),
        Refused::NoScope {
            link: ip("192.0.2.7")
        }
    );
}

/// niccokunzmann/simple_dhcp_server#26, insomniacslk/dhcp#395: one bad option, packet served.
#[test]
fn bad_options_are_noted_and_the_packet_is_answered() {
    let mut packet = Packet::discover(mac(1))
        .option(12, &[0xff, 0xfe])
        .option(57, &[1])
        .option(61, &[1])
        .option(82, &[1, 9, 0])
        .option(97, &[1; 17])
        .bytes();
    packet.pop();
    packet.extend_from_slice(&[60, 200, b'P']);
    let mut server = server();
    let outcome = server.handle(0, &packet, &ingress(), &NoBoot);
    let client = outcome.client.unwrap();
    assert_eq!(
        client.host_name.as_deref(),
        Some(&[0xff, 0xfe][..]),
        "bytes, not text"
    );
    let noted: Vec<u8> = client.notes.iter().map(|note| note.code).collect();
    assert_eq!(noted, [60, 255, 82, 61, 57, 97]);
    assert_eq!(client.key(), ClientKey::from_hardware(1, mac(1)));
    assert!(outcome.reply.is_some());
    assert_eq!(server.counters().with_notes, 1);
}

/// raspberrypi/firmware#859: every Pi 3 sends the same option 97; it must not be an identity.
#[test]
fn machines_with_the_same_uuid_get_different_addresses() {
    let mut server = server();
    let uuid: Vec<u8> = [0].into_iter().chain([0x44; 16]).collect();
    let mut seen = Vec::new();
    for i in 1..=3 {
        let (_, offer) = ask(&mut server, 0, &Packet::discover(mac(i)).option(97, &uuid));
        seen.push(offer.unwrap().yiaddr());
    }
    seen.dedup();
    assert_eq!(seen.len(), 3);
}

#[test]
fn the_table_is_bounded_by_the_pool() {
    let mut server = server();
    for round in 0..2000u32 {
        let [_, a, b, c] = round.to_be_bytes();
        let client = MacAddr([2, 0, 0, a, b, c]);
        let _ = server.handle(
            u64::from(round) * 60_000,
            &Packet::discover(client).bytes(),
            &ingress(),
            &NoBoot,
        );
    }
    assert_eq!(server.leases().count(), 4);
}

proptest::proptest! {
    #[test]
    fn never_panics(datagram in proptest::collection::vec(0u8.., 0..700), now: u64) {
        let _ = server().handle(now, &datagram, &ingress(), &NoBoot);
    }

    /// Mutations of a rich request, with a boot answer, across several messages of one server.
    #[test]
    fn never_panics_on_mutated_requests(
        kinds in proptest::collection::vec(0u8..10, 1..12),
        cuts in proptest::collection::vec((0usize..420, 0u8..), 0..12),
        step in 0u64..5_000_000,
    ) {
        struct Long;
        impl BootAnswer for Long {
            fn boot(&self, _: &ClientInfo) -> BootFile {
                BootFile::Url(format!("http://{}", "y".repeat(200)))
            }
        }
        let mut server = server();
        let mut now = 0u64;
        for kind in kinds {
            let mut bytes = Packet::new(kind, mac(kind))
                .addr(50, "10.77.0.101")
                .option(55, &[1, 3, 6, 15, 51, 58, 66, 67, 43, 60, 97])
                .option(52, &[kind])
                .option(82, &[1, 2, 3, 4])
                .option(93, &[0, 7])
                .option(97, &[0; 17])
                .option(60, b"PXEClient:Arch:00007:UNDI:003000")
                .bytes();
            for (at, value) in &cuts {
                let at = at % bytes.len();
                bytes[at] = *value;
            }
            let outcome = server.handle(now, &bytes, &ingress(), &Long);
            if let Some(reply) = outcome.reply {
                proptest::prop_assert!((300..=1472).contains(&reply.payload.len()));
            }
            let leased: Vec<_> = server.leases().filter(|l| l.state.is_live()).map(|l| l.addr).collect();
            proptest::prop_assert!(leased.iter().all(|addr| scope().subnet.is_host(*addr)));
            now = now.saturating_add(step);
        }
    }
}

/// Row 33 of the liars' suite: whatever stands in the options, the server answers or says why not.
#[test]
fn attack_33_malformed_and_overlapping_options() {
    let overlapping = [
        // Overload that points at itself, at both fields, at nothing.
        &[52, 1, 3][..],
        &[52, 1, 1, 52, 1, 2, 52, 1, 3],
        &[52, 0],
        // Lengths past the end, over one another, of zero, of a whole field.
        &[12, 255, 1, 2, 3],
        &[50, 3, 10, 77, 0, 50, 5, 1, 2, 3, 4, 5],
        &[
            61, 1, 7, 61, 0, 57, 1, 1, 55, 0, 60, 0, 77, 0, 82, 0, 93, 1, 7, 97, 1, 0,
        ],
        &[82, 6, 1, 255, 2, 200, 5, 4],
        // 53 twice, and a REQUEST behind a DISCOVER.
        &[53, 1, 1, 53, 1, 3],
    ];
    let mut server = server();
    for (n, options) in overlapping.iter().enumerate() {
        for fields in [
            &[52, 1, 3, 12, 200][..],
            &[255],
            &[53, 1, 4, 50, 4, 10, 77, 0, 100],
        ] {
            let mut bytes = Packet::discover(mac(n as u8)).bytes();
            bytes.pop();
            bytes.extend_from_slice(options);
            bytes[44..44 + fields.len()].copy_from_slice(fields);
            bytes[108..108 + fields.len()].copy_from_slice(fields);
            let outcome = server.handle(0, &bytes, &ingress(), &NoBoot);
            assert!(outcome.reply.is_some() || outcome.refused.is_some(), "{n}");
            assert!(outcome.changes.is_empty());
        }
    }
}
