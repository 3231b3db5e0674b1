//! ProxyDHCP beside another server, and port 4011 in both modes. What the clients do with these
//! replies was read in EDK2 (PxeBcDhcp4.c, HttpBootDhcp4.c) and iPXE (dhcp.c).

use super::*;

const NEXT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const FOREIGN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);

struct Site;

impl BootAnswer for Site {
    fn boot(&self, client: &ClientInfo) -> BootFile {
        match client {
            _ if client.mac == mac(9) => BootFile::None,
            _ if client.is_ipxe => BootFile::Url("https://10.77.0.1/boot/script.ipxe".into()),
            _ if client.is_http_client => BootFile::Url("https://10.77.0.1/boot/uki.efi".into()),
            _ => BootFile::File {
                next_server: NEXT,
                name: "ipxe.efi".into(),
            },
        }
    }
}

fn proxy() -> Server {
    let mut config = Config::single(scope());
    config.mode = Mode::Proxy;
    config.scopes[0].pools.clear();
    config.check().unwrap();
    Server::new(config)
}

fn pxe(kind: u8, mac: MacAddr) -> Packet {
    Packet::new(kind, mac)
        .broadcast()
        .option(55, &[1, 3, 6, 15, 28, 43, 51, 54, 60, 66, 67, 97])
        .option(97, &[0; 17])
        .option(94, &[1, 3, 0])
        .option(93, &[0, 7])
        .option(60, b"PXEClient:Arch:00007:UNDI:003000")
}

fn take(server: &mut Server, packet: &Packet) -> (Outcome, Option<Read>) {
    let outcome = server.handle(0, &packet.bytes(), &ingress(), &Site);
    let read = outcome.reply.as_ref().map(Read::of);
    (outcome, read)
}

/// From 10.77.0.50 port 68, as EDK2 asks.
fn at_4011(server: &mut Server, packet: &Packet) -> (Outcome, Option<Read>) {
    let mut ingress = ingress();
    ingress.source = "10.77.0.50:68".parse().unwrap();
    let outcome = server.handle_boot_request(0, &packet.bytes(), &ingress, &Site);
    let read = outcome.reply.as_ref().map(Read::of);
    (outcome, read)
}

/// What only the server that gives the address may say.
fn says_nothing_of_addresses(read: &Read) {
    assert_eq!(read.yiaddr(), ip("0.0.0.0"));
    for code in [1, 3, 6, 15, 28, 51, 58, 59] {
        assert_eq!(read.option(code), None, "option {code}");
    }
}

#[test]
fn pxe_firmware_gets_boot_data_and_no_address() {
    let mut server = proxy();
    let (outcome, offer) = take(&mut server, &pxe(1, mac(1)));
    let offer = offer.expect("a proxy offer");
    says_nothing_of_addresses(&offer);
    assert_eq!(offer.message_type(), 2);
    assert_eq!(offer.option(54), Some(&SERVER.octets()[..]));
    assert_eq!(offer.option(60), Some(&b"PXEClient"[..]));
    assert_eq!(offer.option(43), Some(&[6, 1, 8, 255][..]));
    assert_eq!(offer.option(97), Some(&[0; 17][..]));
    assert_eq!((offer.siaddr(), offer.file().as_str()), (NEXT, "ipxe.efi"));
    assert_eq!(offer.to, Destination::Broadcast);
    assert!(outcome.changes.is_empty());
    let file = "ipxe.efi".to_owned();
    assert_eq!(outcome.event, Some(Event::ProxyOffered { file }));
    assert_eq!(server.leases().count(), 0);
}

#[test]
fn a_proxy_offer_is_broadcast_even_to_who_did_not_ask_for_it() {
    let mut packet = pxe(1, mac(1));
    packet = packet.set(10, 0);
    let (_, offer) = take(&mut proxy(), &packet);
    assert_eq!(
        offer.unwrap().to,
        Destination::Broadcast,
        "it has no address"
    );
}

#[test]
fn uefi_http_boot_is_told_its_url() {
    let discover = Packet::discover(mac(1))
        .option(55, &[1, 3, 6, 60, 66, 67])
        .option(93, &[0, 16])
        .option(60, b"HTTPClient:Arch:00016:UNDI:003000");
    let (_, offer) = take(&mut proxy(), &discover);
    let offer = offer.unwrap();
    says_nothing_of_addresses(&offer);
    assert_eq!(offer.option(60), Some(&b"HTTPClient"[..]));
    assert_eq!(
        offer.option(67),
        Some(&b"https://10.77.0.1/boot/uki.efi"[..])
    );
    assert_eq!(offer.option(43), None);
}

#[test]
fn ipxe_finds_the_offer_complete() {
    let discover = Packet::discover(mac(1))
        .option(93, &[0, 7])
        .option(60, b"PXEClient:Arch:00007:UNDI:003010")
        .option(77, b"iPXE")
        .option(175, &[0xb1, 1, 1]);
    let (_, offer) = take(&mut proxy(), &discover);
    let offer = offer.unwrap();
    says_nothing_of_addresses(&offer);
    // iPXE asks port 4011 unless class, next server and file are all there.
    assert_eq!(offer.option(60), Some(&b"PXEClient"[..]));
    assert_eq!(offer.siaddr(), SERVER);
    assert_eq!(offer.file(), "https://10.77.0.1/boot/script.ipxe");
    assert_eq!(offer.option(175), None, "that is for who gives the address");
}

#[test]
fn everybody_else_hears_nothing_in_proxy_mode() {
    let mut server = proxy();
    let cases = [
        Packet::discover(mac(1)),
        Packet::request(mac(1)).addr(50, "10.77.0.100"),
        Packet::request(mac(1)).ciaddr("10.77.0.100"),
        Packet::new(4, mac(1)).addr(50, "10.77.0.100"),
        Packet::new(7, mac(1)).ciaddr("10.77.0.100"),
        Packet::new(8, mac(1)).ciaddr("10.77.0.100"),
        Packet::discover(mac(1)).option(60, b"MSFT 5.0"),
        // A boot client that speaks to the other server, or to us by mistake.
        pxe(3, mac(1))
            .addr(50, "10.77.0.100")
            .option(54, &FOREIGN.octets()),
        pxe(3, mac(1))
            .addr(50, "10.77.0.100")
            .option(54, &SERVER.octets()),
        pxe(4, mac(1)).addr(50, "10.77.0.100"),
        // It boots its own disk.
        pxe(1, mac(9)),
    ];
    let asked = cases.len() as u64;
    for packet in cases {
        let (outcome, reply) = take(&mut server, &packet);
        assert!(reply.is_none() && outcome.changes.is_empty(), "{outcome:?}");
        assert_eq!(outcome.event, Some(Event::LeftAlone));
        assert_eq!(outcome.refused, None);
    }
    assert_eq!(server.counters().left_alone, asked);
    let mut bare = Packet::discover(mac(1)).bytes();
    bare.truncate(240);
    bare.push(255);
    let outcome = server.handle(0, &bare, &ingress(), &Site);
    assert_eq!(outcome.event, Some(Event::LeftAlone), "BOOTP");
}

#[test]
fn a_running_boot_client_may_ask_by_inform() {
    let (_, ack) = take(&mut proxy(), &pxe(8, mac(1)).ciaddr("10.77.0.50"));
    let ack = ack.unwrap();
    says_nothing_of_addresses(&ack);
    assert_eq!((ack.message_type(), ack.ciaddr()), (5, ip("10.77.0.50")));
    let addr = ip("10.77.0.50");
    assert_eq!(ack.to, Destination::Unicast { mac: mac(1), addr });
}

/// tianocore/edk2#6944 and #8149.
#[test]
fn port_4011_answers_where_it_was_asked_in_both_modes() {
    for mut server in [proxy(), server()] {
        let request = pxe(3, mac(1)).ciaddr("10.77.0.50");
        let (outcome, ack) = at_4011(&mut server, &request);
        let ack = ack.expect("an ack");
        says_nothing_of_addresses(&ack);
        assert_eq!((ack.message_type(), ack.ciaddr()), (5, ip("10.77.0.50")));
        assert_eq!(&ack.payload[4..8], &[0xde, 0xad, 0xbe, 0xef], "xid");
        assert_eq!(ack.option(60), Some(&b"PXEClient"[..]));
        assert_eq!(ack.option(43), Some(&[6, 1, 8, 255][..]));
        assert_eq!((ack.siaddr(), ack.file().as_str()), (NEXT, "ipxe.efi"));
        assert_eq!(
            ack.to,
            Destination::BootPort("10.77.0.50:68".parse().unwrap())
        );
        let file = "ipxe.efi".to_owned();
        assert_eq!(outcome.event, Some(Event::BootAnswered { file }));
        assert!(outcome.changes.is_empty());
        assert_eq!(server.leases().count(), 0, "no lease is made here");
        // iPXE's ProxyDHCPREQUEST has no ciaddr when its interface has none yet; BINL discovers.
        let (_, ack) = at_4011(&mut server, &pxe(3, mac(1)).option(54, &FOREIGN.octets()));
        assert_eq!(ack.unwrap().message_type(), 5);
        let (_, offer) = at_4011(&mut server, &pxe(1, mac(1)));
        assert_eq!(offer.unwrap().message_type(), 2);
    }
}

#[test]
fn rejects_on_port_4011() {
    for mut server in [proxy(), server()] {
        let code = |outcome: Outcome| {
            assert!(outcome.reply.is_none());
            outcome.refused.expect("a refusal").code()
        };
        let (outcome, _) = at_4011(&mut server, &Packet::request(mac(1)));
        assert_eq!(code(outcome), "dhcp.not_boot_client");
        let (outcome, _) = at_4011(&mut server, &pxe(7, mac(1)));
        assert_eq!(code(outcome), "dhcp.message_type");
        for (from, why) in [
            ("0.0.0.0:68", "dhcp.no_address"),
            ("10.77.0.50:0", "dhcp.no_address"),
            ("192.0.2.9:68", "dhcp.no_scope"),
            ("10.77.0.255:68", "dhcp.no_scope"),
        ] {
            let mut ingress = ingress();
            ingress.source = from.parse().unwrap();
            let bytes = pxe(3, mac(1)).bytes();
            let outcome = server.handle_boot_request(0, &bytes, &ingress, &Site);
            assert_eq!(code(outcome), why, "{from}");
        }
        let (outcome, reply) = at_4011(&mut server, &pxe(3, mac(9)));
        assert!(reply.is_none());
        assert_eq!(outcome.event, Some(Event::LeftAlone), "its own disk");
    }
}

#[test]
fn who_uses_which_address_is_known_without_a_lease() {
    let mut proxy = proxy();
    let _ = take(
        &mut proxy,
        &pxe(3, mac(1))
            .addr(50, "10.77.0.60")
            .option(54, &FOREIGN.octets()),
    );
    assert_eq!(proxy.holder(ip("10.77.0.60")), Some(mac(1)));
    let _ = at_4011(&mut proxy, &pxe(3, mac(2)));
    assert_eq!(proxy.holder(ip("10.77.0.50")), Some(mac(2)));
    let _ = take(&mut proxy, &pxe(3, mac(3)).addr(50, "192.0.2.1"));
    assert_eq!(proxy.holder(ip("192.0.2.1")), None, "not of our segment");
    // Where we lease, our table is right and a stranger's word changes nothing.
    let mut server = server();
    let addr = lease(&mut server, 0, mac(1));
    let mut ingress = ingress();
    ingress.source = SocketAddrV4::new(addr, 68);
    let _ = server.handle_boot_request(0, &pxe(3, mac(2)).bytes(), &ingress, &Site);
    assert_eq!(server.holder(addr), Some(mac(1)));
}

#[test]
fn a_relay_gets_the_proxy_offer_back_with_its_option_82() {
    let circuit = [1, 2, b'e', b'7'];
    let discover = pxe(1, mac(1)).giaddr("10.77.0.2").option(82, &circuit);
    let (_, offer) = take(&mut proxy(), &discover);
    let offer = offer.unwrap();
    assert_eq!(offer.option(82), Some(&circuit[..]));
    let relay = Destination::Relay("10.77.0.2:67".parse().unwrap());
    assert_eq!(offer.to, relay);
}
