//! Firmware that is to go on to its next boot device: what ends its attempt, and whom it leaves alone.

use super::*;

/// The same answer for everybody, as an installed machine gets it in each of its lives.
struct Onward;

impl BootAnswer for Onward {
    fn boot(&self, client: &ClientInfo) -> BootFile {
        if client.boots() {
            BootFile::NextDevice
        } else {
            BootFile::None
        }
    }
}

fn firmware(class: &str, arch: u8) -> Packet {
    Packet::discover(mac(2))
        .broadcast()
        .option(55, &[1, 3, 6, 43, 60, 66, 67])
        .option(93, &[0, arch])
        .option(
            60,
            format!("{class}:Arch:000{arch:02}:UNDI:003000").as_bytes(),
        )
}

fn answer(server: &mut Server, packet: &Packet) -> (Outcome, Read) {
    let outcome = server.handle(0, &packet.bytes(), &ingress(), &Onward);
    let read = Read::of(outcome.reply.as_ref().expect("an answer"));
    (outcome, read)
}

fn selecting(discover: Packet, addr: Ipv4Addr) -> Packet {
    discover
        .option(50, &addr.octets())
        .option(54, &SERVER.octets())
        .message(3)
}

#[test]
fn uefi_firmware_is_offered_what_it_looks_for_and_refused_when_it_takes_it() {
    for (class, arch) in [
        ("HTTPClient", 16),
        ("HTTPClient", 19),
        ("PXEClient", 7),
        ("PXEClient", 11),
    ] {
        let mut server = server();
        let discover = firmware(class, arch);
        let (_, offer) = answer(&mut server, &discover);
        assert_eq!(offer.message_type(), 2);
        assert_eq!(offer.option(60), Some(class.as_bytes()));
        if class == "HTTPClient" {
            assert_eq!(
                offer.option(67),
                Some(&b"http://10.77.0.1/next-boot-device"[..])
            );
        } else {
            assert_eq!(
                (offer.siaddr(), offer.file().as_str()),
                (SERVER, "next-boot-device")
            );
            assert_eq!(offer.option(43), Some(&[6, 1, 8, 255][..]));
        }
        let (outcome, nak) = answer(&mut server, &selecting(discover, offer.yiaddr()));
        assert_eq!(nak.message_type(), 6, "{class} {arch}");
        assert_eq!(nak.yiaddr(), Ipv4Addr::UNSPECIFIED);
        assert_eq!(
            nak.option(54),
            Some(&SERVER.octets()[..]),
            "EDK2 compares it"
        );
        assert_eq!(
            outcome.event,
            Some(Event::SentOn {
                addr: offer.yiaddr()
            })
        );
        assert!(outcome.changes.is_empty() && outcome.refused.is_none());
        assert_eq!(server.counters().sent_on, 1);
        let taken = server.leases().filter(|lease| lease.state.is_live());
        assert_eq!(taken.count(), 0, "nothing is held for it");
    }
}

/// A PXE ROM starts over at a NAK, and ends by itself at an offer without a boot file.
#[test]
fn bios_firmware_and_raspberry_pis_get_an_address_and_no_boot_file() {
    let pi = |packet: Packet| packet.set(28, 0xdc).set(29, 0xa6).set(30, 0x32);
    let bios = firmware("PXEClient", 0);
    for discover in [bios.clone(), pi(bios), firmware("HTTPClient", 20)] {
        let mut server = server();
        let (_, offer) = answer(&mut server, &discover);
        assert_eq!(offer.file(), "");
        for code in [43, 60, 66, 67] {
            assert_eq!(offer.option(code), None, "option {code}");
        }
        let (outcome, ack) = answer(&mut server, &selecting(discover, offer.yiaddr()));
        assert_eq!(ack.message_type(), 5);
        assert_eq!(outcome.changes.len(), 1);
    }
}

/// The system that runs on the machine keeps its lease, and gets one, whatever its firmware is told.
#[test]
fn the_system_of_the_same_machine_keeps_its_lease() {
    let mut server = server();
    let system = Packet::discover(mac(2));
    let (_, offer) = answer(&mut server, &system);
    let addr = offer.yiaddr();
    let (_, ack) = answer(&mut server, &selecting(system.clone(), addr));
    assert_eq!(ack.message_type(), 5);
    let discover = firmware("HTTPClient", 16);
    let (_, offer) = answer(&mut server, &discover);
    assert_eq!(
        offer.yiaddr(),
        addr,
        "the same client by its hardware address"
    );
    let (_, nak) = answer(&mut server, &selecting(discover, addr));
    assert_eq!(nak.message_type(), 6);
    let renewal = Packet::request(mac(2)).ciaddr(&addr.to_string());
    let (outcome, ack) = answer(&mut server, &renewal);
    assert_eq!(ack.message_type(), 5, "{outcome:?}");
    let bound = server.leases().find(|lease| lease.addr == addr);
    assert_eq!(bound.map(|lease| lease.state), Some(LeaseState::Bound));
}

/// Between offer and request the machine became one that boots from here no more.
#[test]
fn a_request_is_judged_by_what_is_true_when_it_comes() {
    struct Url;
    impl BootAnswer for Url {
        fn boot(&self, _client: &ClientInfo) -> BootFile {
            BootFile::Url("https://10.77.0.7/boot/uki.efi".into())
        }
    }
    let mut server = server();
    let discover = firmware("HTTPClient", 16);
    let outcome = server.handle(0, &discover.bytes(), &ingress(), &Url);
    let offer = Read::of(outcome.reply.as_ref().expect("an offer"));
    let (_, nak) = answer(&mut server, &selecting(discover.clone(), offer.yiaddr()));
    assert_eq!(nak.message_type(), 6);
    let (_, offer) = answer(&mut server, &discover);
    let request = selecting(discover, offer.yiaddr());
    let outcome = server.handle(0, &request.bytes(), &ingress(), &Url);
    let ack = Read::of(outcome.reply.as_ref().expect("an answer"));
    assert_eq!(ack.message_type(), 5);
    assert_eq!(ack.option(67), Some(&b"https://10.77.0.7/boot/uki.efi"[..]));
}
