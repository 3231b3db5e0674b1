//! Boot answers on the wire, per kind of client. Packets as captured from the firmware named.

use super::*;

const NEXT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 7);

struct Give(BootFile);

impl BootAnswer for Give {
    fn boot(&self, _client: &ClientInfo) -> BootFile {
        self.0.clone()
    }
}

fn file(name: &str) -> Give {
    Give(BootFile::File {
        next_server: NEXT,
        name: name.into(),
    })
}

fn url(url: &str) -> Give {
    Give(BootFile::Url(url.into()))
}

fn offer(packet: &Packet, boot: &dyn BootAnswer) -> (Outcome, Read) {
    let outcome = server().handle(0, &packet.bytes(), &ingress(), boot);
    let read = Read::of(outcome.reply.as_ref().expect("an offer"));
    (outcome, read)
}

/// OVMF (edk2 2022.11), UEFI PXEv4: broadcast, no 61, 97 all zero.
fn ovmf_pxe() -> Packet {
    Packet::discover(mac(2))
        .broadcast()
        .option(57, &[0x05, 0xc0])
        .option(
            55,
            &[
                1, 2, 3, 4, 5, 6, 12, 13, 15, 43, 51, 54, 60, 66, 67, 97, 128,
            ],
        )
        .option(97, &[0; 17])
        .option(94, &[1, 3, 0])
        .option(93, &[0, 7])
        .option(60, b"PXEClient:Arch:00007:UNDI:003000")
}

/// OVMF, UEFI HTTPv4.
fn ovmf_http() -> Packet {
    Packet::discover(mac(2))
        .broadcast()
        .option(55, &[1, 3, 6, 60, 66, 67])
        .option(93, &[0, 16])
        .option(60, b"HTTPClient:Arch:00016:UNDI:003000")
}

/// iPXE chain-loaded by PXE firmware: still says PXEClient in option 60 (ipxe/ipxe#1527).
fn ipxe(user_class: &[u8]) -> Packet {
    Packet::discover(mac(2))
        .option(57, &[0x05, 0xc0])
        .option(93, &[0, 7])
        .option(94, &[1, 3, 10])
        .option(60, b"PXEClient:Arch:00007:UNDI:003010")
        .option(77, user_class)
        .option(
            55,
            &[1, 3, 6, 7, 12, 15, 17, 26, 43, 60, 66, 67, 119, 128, 175],
        )
        .option(175, &[0xb1, 5, 1, 0x80, 0x86, 0x10, 0x0e, 0x17, 1, 1])
        .option(61, &[1, 0x52, 0x54, 0, 0, 0, 2])
}

#[test]
fn pxe_firmware_gets_one_complete_offer() {
    let (outcome, offer) = offer(&ovmf_pxe(), &file("ipxe.efi"));
    let client = outcome.client.unwrap();
    assert_eq!(outcome.reply.unwrap().xid(), Some(client.xid));
    assert_eq!(client.arch, Some(7));
    assert!(client.is_pxe_client && !client.is_ipxe && !client.is_http_client);
    assert_eq!(
        offer.siaddr(),
        NEXT,
        "siaddr names the boot server, not the DHCP server"
    );
    assert_eq!(offer.file(), "ipxe.efi");
    assert_eq!(offer.option(66), Some(&b"10.77.0.7"[..]));
    assert_eq!(
        offer.option(67),
        Some(&b"ipxe.efi\0"[..]),
        "old ROMs read on without a NUL"
    );
    assert_eq!(offer.option(60), Some(&b"PXEClient"[..]));
    assert_eq!(offer.option(43), Some(&[6, 1, 8, 255][..]));
    assert_eq!(offer.option(97), Some(&[0; 17][..]));
    assert_eq!(offer.to, Destination::Broadcast);
    // 53, 54, 51 first, then in the order asked, then what is needed anyway.
    assert_eq!(
        offer.order,
        [53, 54, 51, 1, 3, 6, 15, 43, 60, 66, 67, 97, 58, 59]
    );
}

#[test]
fn option_67_stays_away_when_not_asked_for() {
    let packet = Packet::discover(mac(2))
        .option(60, b"PXEClient")
        .option(55, &[1, 3]);
    let (_, offer) = offer(&packet, &file("ipxe.efi"));
    assert_eq!(offer.file(), "ipxe.efi");
    assert_eq!((offer.option(66), offer.option(67)), (None, None));
    assert_eq!(
        offer.option(43),
        Some(&[6, 1, 8, 255][..]),
        "asked for or not"
    );
}

#[test]
fn pxeclient_is_never_said_without_discovery_control() {
    for boot in [BootFile::None, BootFile::Url("http://10.77.0.7/x".into())] {
        let (_, offer) = offer(&ovmf_pxe(), &Give(boot));
        assert_eq!((offer.option(60), offer.option(43)), (None, None));
    }
}

#[test]
fn no_boot_answer_leaves_every_boot_field_empty() {
    for packet in [ovmf_pxe(), ovmf_http(), ipxe(b"iPXE")] {
        let (_, offer) = offer(&packet, &NoBoot);
        assert_eq!(
            (offer.siaddr(), offer.file()),
            (ip("0.0.0.0"), String::new())
        );
        for code in [43, 60, 66, 67, 97, 175] {
            assert_eq!(offer.option(code), None, "option {code}");
        }
    }
}

#[test]
fn http_client_gets_its_class_back_and_a_url() {
    let (outcome, offer) = offer(&ovmf_http(), &url("https://10.77.0.7/boot/uki.efi"));
    let client = outcome.client.unwrap();
    assert!(client.is_http_client && !client.is_pxe_client);
    assert_eq!(client.arch, Some(16));
    assert_eq!(offer.option(60), Some(&b"HTTPClient"[..]));
    assert_eq!(
        offer.option(67),
        Some(&b"https://10.77.0.7/boot/uki.efi"[..]),
        "no NUL in a URL"
    );
    assert_eq!((offer.option(43), offer.option(66)), (None, None));
}

#[test]
fn ipxe_is_known_by_77_or_175_before_60() {
    for user_class in [&b"iPXE"[..], b"\x04iPXE", b"\x03abc\x04iPXE"] {
        let (outcome, offer) = offer(&ipxe(user_class), &url("http://10.77.0.7/boot.ipxe"));
        let client = outcome.client.unwrap();
        assert!(client.is_ipxe && !client.is_pxe_client, "{user_class:?}");
        assert_eq!(offer.option(67), Some(&b"http://10.77.0.7/boot.ipxe"[..]));
        assert_eq!((offer.option(60), offer.option(43)), (None, None));
        assert_eq!(
            offer.option(175),
            Some(&[0xb0, 1, 1][..]),
            "do not wait for ProxyDHCP"
        );
    }
    let (outcome, _) = offer(&ipxe(b"other"), &NoBoot);
    assert!(outcome.client.unwrap().is_ipxe, "option 175 alone");
    let plain = Packet::discover(mac(3)).option(77, b"linuxboot");
    let (outcome, _) = offer(&plain, &NoBoot);
    let client = outcome.client.unwrap();
    assert!(!client.is_ipxe);
    assert_eq!(client.user_class, [b"linuxboot".to_vec()]);
    assert!(client.notes.is_empty(), "a bare user class is no mistake");
}

#[test]
fn the_boot_answer_sees_the_packet_at_hand() {
    struct ByArch;
    impl BootAnswer for ByArch {
        fn boot(&self, client: &ClientInfo) -> BootFile {
            let name = format!(
                "{}.efi",
                client.arch.map_or("none".into(), |arch| arch.to_string())
            );
            BootFile::File {
                next_server: NEXT,
                name,
            }
        }
    }
    let mut server = server();
    let mut ask = |packet: Packet| {
        let outcome = server.handle(0, &packet.bytes(), &ingress(), &ByArch);
        Read::of(&outcome.reply.unwrap()).file()
    };
    assert_eq!(ask(Packet::discover(mac(1)).option(93, &[0, 0])), "0.efi");
    let request = Packet::request(mac(1))
        .addr(50, "10.77.0.100")
        .option(54, &SERVER.octets());
    assert_eq!(ask(request.option(93, &[0, 7])), "7.efi");
    assert_eq!(
        ask(Packet::discover(mac(1)).option(93, &[0, 11, 0, 7])),
        "11.efi",
        "the first counts"
    );
    let by_class = Packet::discover(mac(1)).option(60, b"PXEClient:Arch:00009:UNDI:003016");
    assert_eq!(ask(by_class), "9.efi");
    assert_eq!(ask(Packet::discover(mac(1)).option(93, &[7])), "none.efi");
}

#[test]
fn replies_fit_what_the_client_takes() {
    let name = "x".repeat(250);
    let packet = |size: u16| {
        Packet::discover(mac(1))
            .option(57, &size.to_be_bytes())
            .option(55, &[1, 3, 6, 15, 67])
    };
    let (_, small) = offer(&packet(576), &file(&name));
    assert!(small.payload.len() <= 548, "{}", small.payload.len());
    assert_eq!(small.file(), "", "too long for the file field");
    assert_eq!(small.option(67).unwrap().len(), 251);
    assert_eq!(small.option(3), Some(&ip("10.77.0.254").octets()[..]));
    let (_, large) = offer(&packet(1472), &file(&name));
    assert!(large.option(58).is_some() && large.option(6).is_some());
    let (_, tiny) = offer(&packet(100), &NoBoot);
    assert!(
        tiny.option(6).is_some(),
        "below 576 is no legal size and not believed"
    );
}

#[test]
fn options_over_the_size_leave_from_the_end() {
    let mut config = Config::single(scope());
    config.scopes[0].domain = Some("provisioning.lab.example".into());
    config.limits.reply_len_max = 300;
    let mut server = Server::new(config);
    let packet = Packet::discover(mac(1)).option(55, &[6, 1, 3, 28, 15]);
    let outcome = server.handle(0, &packet.bytes(), &ingress(), &NoBoot);
    let read = Read::of(&outcome.reply.unwrap());
    assert_eq!(read.payload.len(), 300);
    assert_eq!(read.order, [53, 54, 51, 6, 1, 3, 28]);
}

#[test]
fn rejects_boot_files_that_do_not_fit_a_reply() {
    for boot in [
        file(""),
        file(&"x".repeat(255)),
        file("a\0b"),
        file("a b"),
        url(&"h".repeat(256)),
        url("http://10.77.0.7/ä"),
    ] {
        let outcome = server().handle(0, &ovmf_pxe().bytes(), &ingress(), &boot);
        assert!(outcome.reply.is_none());
        assert_eq!(outcome.refused.unwrap().code(), "dhcp.boot_file");
    }
}

#[test]
fn rejects_a_reply_that_cannot_be_made_small_enough() {
    let circuit = [1u8; 255];
    let packet = Packet::discover(mac(1)).option(82, &circuit);
    let boot = url(&format!("http://{}", "x".repeat(240)));
    let outcome = server().handle(0, &packet.bytes(), &ingress(), &boot);
    assert_eq!(outcome.refused, Some(Refused::ReplyTooLong { max: 548 }));
    assert!(outcome.reply.is_none() && outcome.changes.is_empty());
}
