//! Exchanges of RFC 8415 section 18, and the lease table over time.

use std::collections::BTreeSet;

use super::*;

#[test]
fn solicit_advertise_request_reply() {
    let mut server = server();
    let solicit = Packet::new(MessageType::Solicit, 1)
        .option(code::ELAPSED_TIME, &[0, 100])
        .ia(7, &[]);
    let outcome = solicit.handle(&mut server, 1_000);
    assert!(
        outcome.changes.is_empty(),
        "an advertised address is memory only"
    );
    let client = outcome.client.as_ref().unwrap();
    assert_eq!(client.elapsed_ms, Some(1_000));
    assert_eq!(
        client.mac,
        Some(MacAddr([2, 0, 0, 0, 0, 9])),
        "EUI-64 before the DUID"
    );
    let offer = Answer::of(&outcome);
    assert_eq!(offer.addr(), ip("2001:db8:20::100"));
    assert_eq!(offer.get(code::PREFERENCE), Some(&[255][..]));
    assert_eq!(offer.get(code::SERVER_ID), Some(config().duid.as_bytes()));
    assert_eq!(offer.get(code::CLIENT_ID), Some(&solicit.options[0].1[..]));
    let reply = outcome.reply.unwrap();
    assert_eq!(
        (reply.xid, reply.to.port(), reply.to.scope_id()),
        (0x01_02_03, 546, 3)
    );

    let request = Packet::new(MessageType::Request, 1)
        .naming_us()
        .ia(7, &[offer.addr()]);
    let outcome = request.handle(&mut server, 2_000);
    let [change] = outcome.changes.as_slice() else {
        panic!()
    };
    assert_eq!(change.cause, Cause::Granted);
    assert_eq!(change.lease.state, LeaseState::Bound);
    assert_eq!(change.lease.expires_ms, 2_000 + HOUR_MS);
    assert_eq!(change.lease.client.iaid, 7);
    let event = Event::Leased {
        addrs: vec![offer.addr()],
        renewed: false,
    };
    assert_eq!(outcome.event, Some(event));
    let answer = Answer::of(&outcome);
    assert_eq!(answer.ias(), [(vec![(offer.addr(), 3600)], None)]);
    assert_eq!(answer.get(code::PREFERENCE), None);
    // T1 at a half, T2 at four fifths (section 21.4).
    let ia = answer.get(code::IA_NA).unwrap();
    assert_eq!(ia[4..12], [0, 0, 7, 8, 0, 0, 11, 64]);

    // Lost on the way: the same again gives the same, and says so.
    let again = request.handle(&mut server, 3_000);
    assert_eq!(again.changes[0].cause, Cause::Renewed);
    assert_eq!(Answer::of(&again).addr(), offer.addr());
}

#[test]
fn rapid_commit_leases_at_once_where_it_is_allowed() {
    let solicit = Packet::new(MessageType::Solicit, 1)
        .option(code::RAPID_COMMIT, &[])
        .ia(1, &[]);
    let mut allowed = server();
    let outcome = solicit.handle(&mut allowed, 0);
    assert_eq!(outcome.changes[0].lease.state, LeaseState::Bound);
    let answer = Answer::of(&outcome);
    assert_eq!(answer.kind(), MessageType::Reply);
    assert_eq!(answer.get(code::RAPID_COMMIT), Some(&[][..]));
    let mut refused = Server::new(Config {
        rapid_commit: false,
        ..config()
    });
    let outcome = solicit.handle(&mut refused, 0);
    assert!(outcome.changes.is_empty());
    let answer = Answer::of(&outcome);
    assert_eq!(
        (answer.kind(), answer.get(code::RAPID_COMMIT)),
        (MessageType::Advertise, None)
    );
}

#[test]
fn a_client_keeps_its_address_over_renew_rebind_release_and_expiry() {
    let mut server = server();
    let addr = leased(&mut server, 1, 0);
    for (kind, now_ms) in [
        (MessageType::Renew, 1_800_000),
        (MessageType::Rebind, 3_000_000),
    ] {
        let packet = Packet::new(kind, 1).ia(1, &[addr]);
        let packet = if kind == MessageType::Renew {
            packet.naming_us()
        } else {
            packet
        };
        let outcome = packet.handle(&mut server, now_ms);
        assert_eq!(outcome.changes[0].cause, Cause::Renewed);
        assert_eq!(outcome.changes[0].lease.expires_ms, now_ms + HOUR_MS);
        assert_eq!(Answer::of(&outcome).addr(), addr);
    }
    let release = Packet::new(MessageType::Release, 1)
        .naming_us()
        .ia(1, &[addr]);
    let outcome = release.handle(&mut server, 3_100_000);
    assert_eq!(outcome.changes[0].cause, Cause::Released);
    assert_eq!(Answer::of(&outcome).status(), Some(0));
    // Released and expired addresses are remembered while nobody needs them.
    assert_ne!(leased(&mut server, 2, 3_200_000), addr);
    assert_eq!(leased(&mut server, 1, 3_300_000), addr);
    server.handle_timeout(9_999_999_999);
    assert_eq!(server.lease(addr).unwrap().state, LeaseState::Expired);
    assert_eq!(leased(&mut server, 1, 9_999_999_999), addr);
}

#[test]
fn a_renew_without_record_is_made_anew_when_the_address_is_free() {
    let mut server = server();
    let addr = ip("2001:db8:20::105");
    let renew = Packet::new(MessageType::Renew, 1)
        .naming_us()
        .ia(1, &[addr]);
    let outcome = renew.handle(&mut server, 0);
    assert_eq!(outcome.changes[0].cause, Cause::Granted);
    assert_eq!(Answer::of(&outcome).addr(), addr);
    // Taken by now: no binding.
    let other = Packet::new(MessageType::Renew, 2)
        .naming_us()
        .ia(1, &[addr]);
    let outcome = other.handle(&mut server, 0);
    assert_eq!(
        outcome.refused.as_ref().map(Refused::code),
        Some("dhcp6.no_binding")
    );
    assert_eq!(Answer::of(&outcome).ias(), [(vec![], Some(3))]);
    // By Rebind it is taken away; an address that another server may lease is not spoken of.
    let rebind = Packet::new(MessageType::Rebind, 2).ia(1, &[addr, ip("2001:db8:20::9")]);
    assert_eq!(
        Answer::of(&rebind.handle(&mut server, 0)).ias(),
        [(vec![(addr, 0)], None)]
    );
    let foreign = Packet::new(MessageType::Rebind, 2).ia(1, &[ip("2001:db8:20::9")]);
    let outcome = foreign.handle(&mut server, 0);
    assert!(outcome.reply.is_none() && outcome.refused.is_some());
    let elsewhere = Packet::new(MessageType::Rebind, 2).ia(1, &[ip("2001:db8:99::9")]);
    assert_eq!(
        Answer::of(&elsewhere.handle(&mut server, 0)).ias()[0].0[0].1,
        0
    );
}

#[test]
fn renew_keeps_one_address_and_takes_the_others_away() {
    let mut server = server();
    let addr = leased(&mut server, 1, 0);
    let old = ip("2001:db8:99::1");
    let renew = Packet::new(MessageType::Renew, 1)
        .naming_us()
        .ia(1, &[old, addr]);
    let answer = Answer::of(&renew.handle(&mut server, 1));
    assert_eq!(answer.ias(), [(vec![(addr, 3600), (old, 0)], None)]);
}

#[test]
fn a_declined_address_is_in_quarantine_and_the_client_gets_another() {
    let mut server = server();
    let addr = leased(&mut server, 1, 0);
    let decline = Packet::new(MessageType::Decline, 1)
        .naming_us()
        .ia(1, &[addr]);
    let outcome = decline.handle(&mut server, 1_000);
    assert_eq!(outcome.changes[0].lease.state, LeaseState::Declined);
    assert_eq!(outcome.event, Some(Event::Declined { addrs: vec![addr] }));
    assert_eq!(Answer::of(&outcome).status(), Some(0));
    let next = leased(&mut server, 1, 2_000);
    assert_ne!(next, addr);
    let everybody: BTreeSet<_> = (2..16).map(|n| leased(&mut server, n, 2_000)).collect();
    assert!(!everybody.contains(&addr) && everybody.len() == 14);
    let late = Packet::new(MessageType::Solicit, 99).ia(1, &[]);
    assert_eq!(
        Answer::of(&late.handle(&mut server, 2_000)).ias(),
        [(vec![], Some(2))]
    );
    assert_eq!(
        Answer::of(&late.handle(&mut server, 1_000 + HOUR_MS)).addr(),
        addr
    );
}

#[test]
fn quarantine_is_bounded() {
    let mut config = config();
    config.limits.quarantine_max = 2;
    let mut server = Server::new(config);
    let mut last = None;
    for n in 0..3 {
        let addr = leased(&mut server, n, 0);
        let decline = Packet::new(MessageType::Decline, n)
            .naming_us()
            .ia(1, &[addr]);
        last = Some(decline.handle(&mut server, 0));
    }
    let last = last.unwrap();
    assert_eq!(last.changes[0].cause, Cause::Released);
    assert_eq!(last.refused, Some(Refused::QuarantineLimit { held: 2 }));
}

#[test]
fn confirm_tells_whether_the_link_is_the_same() {
    let mut server = server();
    for (addr, want) in [("2001:db8:20::abcd", 0), ("2001:db8:21::1", 4)] {
        let confirm = Packet::new(MessageType::Confirm, 1).ia(1, &[ip(addr)]);
        let outcome = confirm.handle(&mut server, 0);
        assert!(outcome.changes.is_empty());
        assert_eq!(Answer::of(&outcome).status(), Some(want), "{addr}");
        assert_eq!(outcome.event, Some(Event::Confirmed { on_link: want == 0 }));
    }
}

#[test]
fn two_associations_get_two_addresses_and_other_kinds_a_status() {
    let mut server = server();
    let solicit = Packet::new(MessageType::Solicit, 1)
        .ia(1, &[])
        .ia(2, &[])
        .option(code::IA_TA, &[0, 0, 0, 3])
        .option(code::IA_PD, &[0; 12]);
    let outcome = solicit.handle(&mut server, 0);
    assert_eq!(outcome.refused, None);
    let answer = Answer::of(&outcome);
    let addrs: Vec<_> = answer
        .ias()
        .into_iter()
        .map(|(addrs, _)| addrs[0].0)
        .collect();
    assert_eq!(addrs, [ip("2001:db8:20::100"), ip("2001:db8:20::101")]);
    let ta = answer.get(code::IA_TA).unwrap();
    assert_eq!(status(&Options::parse(&ta[4..])), Some(2));
    let pd = answer.get(code::IA_PD).unwrap();
    assert_eq!(status(&Options::parse(&pd[12..])), Some(6));
}

#[test]
fn settings_go_to_who_asks() {
    let mut config = config();
    config.dns = vec![ip("2001:db8:20::53"), ip("2001:db8::53")];
    config.domain = Some("rack1.example.net".into());
    let mut server = Server::new(config);
    let ask = Packet::new(MessageType::InformationRequest, 1)
        .option(code::OPTION_REQUEST, &[0, 23, 0, 24, 0, 32]);
    let outcome = ask.handle(&mut server, 0);
    assert_eq!(outcome.event, Some(Event::Informed));
    let answer = Answer::of(&outcome);
    assert_eq!(answer.get(code::DNS_SERVERS).unwrap().len(), 32);
    let domain = answer.get(code::DOMAIN_LIST).unwrap();
    assert_eq!(domain, b"\x05rack1\x07example\x03net\0");
    assert_eq!(
        answer.get(code::INFORMATION_REFRESH),
        Some(&[0, 0, 14, 16][..])
    );
    let quiet = Packet::new(MessageType::Solicit, 1).ia(1, &[]);
    let answer = Answer::of(&quiet.handle(&mut server, 0));
    assert_eq!(
        (answer.get(23), answer.get(24), answer.get(32)),
        (None, None, None)
    );
    // Without a client identifier, as section 18.2.6 allows.
    let mut nobody = ask;
    nobody.options.remove(0);
    assert_eq!(
        Answer::of(&nobody.handle(&mut server, 0)).get(code::CLIENT_ID),
        None
    );
}

#[test]
fn leases_come_back_from_the_journal() {
    let mut before = server();
    let addr = leased(&mut before, 1, 0);
    let journal: Vec<Lease> = before.leases().cloned().collect();
    let mut after = server();
    after.restore(journal);
    let renew = Packet::new(MessageType::Renew, 1)
        .naming_us()
        .ia(1, &[addr]);
    assert_eq!(renew.handle(&mut after, 5).changes[0].cause, Cause::Renewed);
    assert_ne!(leased(&mut after, 2, 5), addr);
    // A clock that was years ahead at the grant holds nothing for years.
    let mut ahead = server();
    let addr = leased(&mut ahead, 1, 1 << 45);
    ahead.handle_timeout(1_000);
    assert_eq!(ahead.lease(addr).unwrap().expires_ms, 1_000 + HOUR_MS);
}

proptest::proptest! {
    /// Any messages of four clients in any order: one address never has two holders, offers are
    /// never written down, and what is written down is what the table says.
    #[test]
    fn no_address_has_two_holders(
        script in proptest::collection::vec((0u8..4, 1u8..=11, 0u32..3, 0u8..20, 0u64..2_000_000), 1..60),
    ) {
        let mut server = server();
        let mut now_ms = 0;
        let mut disk = std::collections::BTreeMap::new();
        for (client, kind, iaid, last, pause) in script {
            now_ms += pause;
            let addr = Ipv6Addr::from_bits(ip("2001:db8:20::100").to_bits() + u128::from(last));
            let packet = Packet::new(MessageType::from_wire(kind).unwrap(), client).ia(iaid, &[addr]);
            let named = matches!(kind, 3 | 5 | 8 | 9);
            let packet = if named { packet.naming_us() } else { packet };
            let outcome = packet.handle(&mut server, now_ms);
            for change in &outcome.changes {
                proptest::prop_assert_ne!(change.lease.state, LeaseState::Offered);
                disk.insert(change.lease.addr, change.lease.clone());
            }
            if let Some(Event::Leased { addrs, .. }) = &outcome.event {
                for addr in addrs {
                    let lease = server.lease(*addr).unwrap();
                    proptest::prop_assert_eq!(lease, &disk[addr]);
                    proptest::prop_assert_eq!(lease.client.iaid, iaid);
                }
            }
            let live: Vec<_> = server.leases().filter(|l| l.state.is_live()).collect();
            let addrs: BTreeSet<_> = live.iter().map(|l| l.addr).collect();
            proptest::prop_assert_eq!(addrs.len(), live.len());
            proptest::prop_assert!(addrs.iter().all(|a| config().pool.unwrap().contains(*a)));
        }
    }
}
