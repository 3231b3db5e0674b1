//! Faults that other servers had in the field, each as its own test: the packet of the report, and
//! what must happen here. Named `project_issue_what`.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use netstack::dhcp::{
    BootAnswer, BootFile, ClientInfo, Config, Destination, Ingress, Message, Mode, Outcome, Pool,
    Refused, Scope, Server, Subnet,
};
use netstack::tftp::{self, ErrorCode, ErrorReply, Limits, Packet, RollOver, Transfer};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const NEXT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 7);

struct Loader;

impl BootAnswer for Loader {
    fn boot(&self, client: &ClientInfo) -> BootFile {
        match client {
            _ if client.is_ipxe => BootFile::Url("http://10.77.0.7/boot.ipxe".into()),
            _ if client.arch == Some(0) => BootFile::File {
                next_server: NEXT,
                name: "undionly.kpxe".into(),
            },
            _ => BootFile::File {
                next_server: NEXT,
                name: "ipxe.efi".into(),
            },
        }
    }
}

fn server() -> Server {
    let subnet = Subnet::new(Ipv4Addr::new(10, 77, 0, 0), 24).expect("a prefix");
    let pool = Pool {
        start: Ipv4Addr::new(10, 77, 0, 100),
        end: Ipv4Addr::new(10, 77, 0, 120),
    };
    Server::new(Config::single(Scope::new(subnet, pool, 3600)))
}

fn handle(server: &mut Server, packet: &[u8]) -> Outcome {
    let source = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
    let ingress = Ingress {
        server_addr: SERVER,
        source,
        iface: "prov0".into(),
    };
    server.handle(0, packet, &ingress, &Loader)
}

fn answer(packet: &[u8]) -> Message {
    let outcome = handle(&mut server(), packet);
    let reply = outcome
        .reply
        .unwrap_or_else(|| panic!("no reply: {:?}", outcome.refused));
    assert!(reply.payload.len() >= 300);
    Message::parse(&reply.payload).expect("our own reply")
}

/// A request of 52:54:00:00:00:01 with these options; `giaddr` zero for none.
fn packet(message_type: u8, giaddr: [u8; 4], options: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; 240];
    bytes[..3].copy_from_slice(&[1, 1, 6]);
    bytes[24..28].copy_from_slice(&giaddr);
    bytes[28..34].copy_from_slice(&[0x52, 0x54, 0, 0, 0, 1]);
    bytes[236..].copy_from_slice(&[99, 130, 83, 99]);
    bytes.extend_from_slice(&[53, 1, message_type]);
    for (code, value) in options {
        bytes.extend_from_slice(&[*code, value.len() as u8]);
        bytes.extend_from_slice(value);
    }
    bytes.push(255);
    bytes
}

fn discover(options: &[(u8, &[u8])]) -> Vec<u8> {
    packet(1, [0; 4], options)
}

const UEFI: &[(u8, &[u8])] = &[
    (93, &[0, 7]),
    (60, b"PXEClient:Arch:00007:UNDI:003016"),
    (55, &[1, 3, 43, 60, 66, 67]),
];

#[test]
fn fog_188_and_edk2_8149_pxeclient_has_discovery_control() {
    let offer = answer(&discover(UEFI));
    assert_eq!(offer.options.get(60), Some(&b"PXEClient"[..]));
    assert_eq!(offer.options.get(43), Some(&[6, 1, 8, 255][..]));
}

#[test]
fn edk2_6944_address_and_boot_data_are_in_one_offer() {
    let offer = answer(&discover(UEFI));
    assert_eq!(offer.yiaddr, Ipv4Addr::new(10, 77, 0, 100));
    assert_eq!(offer.file, b"ipxe.efi");
}

/// Beside a server whose offers have an address and no boot data.
#[test]
fn edk2_6944_and_8149_proxy_offers_are_complete_and_port_4011_answers() {
    let subnet = Subnet::new(Ipv4Addr::new(10, 77, 0, 0), 24).expect("a prefix");
    let pool = Pool {
        start: Ipv4Addr::new(10, 77, 0, 100),
        end: Ipv4Addr::new(10, 77, 0, 120),
    };
    let mut config = Config::single(Scope::new(subnet, pool, 3600));
    config.mode = Mode::Proxy;
    config.scopes[0].pools.clear();
    for mut server in [Server::new(config), server()] {
        let mut request = packet(3, [0; 4], UEFI);
        request[12..16].copy_from_slice(&[10, 77, 0, 50]);
        let ingress = Ingress {
            server_addr: SERVER,
            source: SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 50), 68),
            iface: "prov0".into(),
        };
        let ack = server.handle_boot_request(0, &request, &ingress, &Loader);
        let ack = ack.reply.expect("an answer on 4011");
        let ack = Message::parse(&ack.payload).expect("ours");
        assert_eq!((ack.siaddr, ack.file.as_slice()), (NEXT, &b"ipxe.efi"[..]));
        assert_eq!(ack.options.get(60), Some(&b"PXEClient"[..]));
        assert_eq!(ack.options.get(43), Some(&[6, 1, 8, 255][..]));
    }
}

#[test]
fn openwrt_14660_siaddr_names_the_boot_server() {
    assert_eq!(answer(&discover(UEFI)).siaddr, NEXT);
}

#[test]
fn netboot_xyz_1198_and_bootimus_117_option_67_ends_in_nul_and_may_be_left_out() {
    assert_eq!(
        answer(&discover(UEFI)).options.get(67),
        Some(&b"ipxe.efi\0"[..])
    );
    let without = answer(&discover(&[
        (93, &[0, 7]),
        (60, b"PXEClient"),
        (55, &[1, 3]),
    ]));
    assert_eq!(
        (without.options.get(67), without.file.as_slice()),
        (None, &b"ipxe.efi"[..])
    );
}

#[test]
fn wicked_376_and_opnsense_7744_replies_are_padded_and_short_requests_taken() {
    let request = discover(&[]);
    assert!(request.len() < 292);
    let outcome = handle(&mut server(), &request);
    assert_eq!(outcome.reply.expect("an offer").payload.len(), 300);
}

#[test]
fn pybootd_16_bare_bootp_request() {
    let mut request = discover(&[]);
    request.truncate(240);
    request.push(255);
    request.resize(300, 0);
    let outcome = handle(&mut server(), &request);
    assert!(matches!(outcome.refused, Some(Refused::Bootp { .. })));
}

#[test]
fn staticdhcpd_69_option_82_is_in_every_reply_the_nak_too() {
    let circuit: (u8, &[u8]) = (82, &[1, 2, b'e', b'7']);
    let relay = [10, 77, 0, 254];
    for request in [
        packet(1, relay, &[circuit]),
        packet(3, relay, &[circuit, (50, &[192, 168, 9, 9])]),
        packet(
            3,
            relay,
            &[circuit, (50, &[10, 77, 0, 100]), (54, &SERVER.octets())],
        ),
    ] {
        let outcome = handle(&mut server(), &request);
        let reply = outcome.reply.expect("a reply");
        let message = Message::parse(&reply.payload).expect("our own reply");
        assert_eq!(message.options.get(82), Some(circuit.1));
        assert_eq!(
            reply.to,
            Destination::Relay(SocketAddrV4::new(relay.into(), 67))
        );
    }
}

#[test]
fn fbnetboot_427_and_ironic_446_raw_user_class() {
    let read = |value: &[u8]| ClientInfo::parse(&discover(&[(77, value)])).expect("a request");
    assert_eq!(read(b"linuxboot").user_class, [b"linuxboot".to_vec()]);
    assert!(read(b"linuxboot").notes.is_empty());
    for value in [&b"iPXE"[..], b"\x04iPXE"] {
        assert!(read(value).is_ipxe);
    }
    let ipxe: &[(u8, &[u8])] = &[
        (77, b"iPXE"),
        (57, &[5, 0xc0]),
        (93, &[0, 7]),
        (94, &[1, 3, 10]),
    ];
    assert_eq!(
        answer(&discover(ipxe)).options.get(67),
        Some(&b"http://10.77.0.7/boot.ipxe"[..])
    );
}

#[test]
fn ipxe_1527_and_xcat_7645_ipxe_never_gets_itself_again() {
    for mark in [(77, &b"iPXE"[..]), (175, &[0xb1, 1, 1])] {
        let chained = discover(&[
            (60, b"PXEClient:Arch:00007:UNDI:003010"),
            (93, &[0, 7]),
            mark,
        ]);
        let offer = answer(&chained);
        assert_eq!(offer.file, b"http://10.77.0.7/boot.ipxe");
        assert_eq!(offer.options.get(60), None);
    }
}

#[test]
fn pypxe_167_architecture_is_of_the_packet_at_hand() {
    let mut server = server();
    let bios = handle(&mut server, &discover(&[(93, &[0, 0])]))
        .reply
        .expect("an offer");
    assert_eq!(
        Message::parse(&bios.payload).expect("ours").file,
        b"undionly.kpxe"
    );
    let request = packet(
        3,
        [0; 4],
        &[
            (50, &[10, 77, 0, 100]),
            (54, &SERVER.octets()),
            (93, &[0, 7]),
        ],
    );
    let uefi = handle(&mut server, &request).reply.expect("an ack");
    assert_eq!(
        Message::parse(&uefi.payload).expect("ours").file,
        b"ipxe.efi"
    );
}

#[test]
fn raspberrypi_859_the_same_uuid_twice_is_two_machines() {
    let uuid = [[0u8].as_slice(), &[0x44; 16]].concat();
    let mut server = server();
    let mut second = discover(&[(97, &uuid)]);
    let first = handle(&mut server, &second).reply.expect("an offer");
    second[33] = 2;
    let second = handle(&mut server, &second).reply.expect("an offer");
    let addr = |payload: &[u8]| Message::parse(payload).expect("ours").yiaddr;
    assert_ne!(addr(&first.payload), addr(&second.payload));
}

/// A Pi 4 says x86; a PC beside it has the same option 93 and another address block.
#[test]
fn rpi_eeprom_182_and_60_a_pi_is_told_apart_and_gets_its_own_menu() {
    let pi_class: &[(u8, &[u8])] = &[
        (93, &[0, 0]),
        (60, b"PXEClient:Arch:00000:UNDI:002001"),
        (55, &[1, 3, 43, 60, 66, 67]),
    ];
    let by_mac = |oui: [u8; 3]| {
        let mut request = discover(pi_class);
        request[28..31].copy_from_slice(&oui);
        request
    };
    let menu = b"\x06\x01\x03\x0a\x04\x00PXE\x09\x14\x00\x00\x11Raspberry Pi Boot\xff";
    for oui in [[0xdc, 0xa6, 0x32], [0xb8, 0x27, 0xeb]] {
        let request = by_mac(oui);
        let client = ClientInfo::parse(&request).expect("a request");
        assert!(client.is_raspberry_pi(), "{oui:02x?}");
        assert_eq!(answer(&request).options.get(43), Some(&menu[..]));
    }
    let pc = by_mac([0x52, 0x54, 0x00]);
    assert!(!ClientInfo::parse(&pc).expect("a request").is_raspberry_pi());
    assert_eq!(answer(&pc).options.get(43), Some(&[6, 1, 8, 255][..]));
    // A Pi with another maker's network card, by option 97.
    for uuid in [[0x44; 16], *b"RPi4\x14\x31\xc0\x00abcdefgh"] {
        let value = [&[0], uuid.as_slice()].concat();
        let mut options = pi_class.to_vec();
        options.push((97, &value));
        let client = ClientInfo::parse(&discover(&options)).expect("a request");
        assert!(client.is_raspberry_pi());
    }
    // The same block under UEFI (option 93 = 11) is an ordinary arm64 machine.
    let mut uefi = discover(&[(93, &[0, 11]), (60, b"PXEClient:Arch:00011:UNDI:003000")]);
    uefi[28..31].copy_from_slice(&[0xdc, 0xa6, 0x32]);
    assert!(
        !ClientInfo::parse(&uefi)
            .expect("a request")
            .is_raspberry_pi()
    );
}

/// Options 66 and 150 beside siaddr, each where it is asked for.
#[test]
fn openwrt_14660_options_66_and_150_name_the_same_server_as_siaddr() {
    let offer = answer(&discover(&[
        (93, &[0, 7]),
        (60, b"PXEClient"),
        (55, &[66, 150]),
    ]));
    assert_eq!(offer.siaddr, NEXT);
    assert_eq!(offer.options.get(66), Some(NEXT.to_string().as_bytes()));
    assert_eq!(offer.options.get(150), Some(&NEXT.octets()[..]));
    assert_eq!(answer(&discover(UEFI)).options.get(150), None);
}

#[test]
fn simple_dhcp_26_and_insomniacslk_395_bad_options_cost_themselves() {
    let mut request = discover(&[(12, &[0xff, 0xfe, 0x80]), (51, &[1])]);
    request.pop();
    request.extend_from_slice(&[15, 99, b'x']);
    let outcome = handle(&mut server(), &request);
    assert!(outcome.reply.is_some());
    assert!(outcome.client.expect("read").notes.len() >= 2);
    for len in 0..request.len() {
        let _ = handle(&mut server(), &request[..len]);
    }
}

#[test]
fn snort_457_options_inside_sname_and_file() {
    for (value, found) in [
        (1u8, "from-file"),
        (2, "from-sname"),
        (3, "from-filefrom-sname"),
    ] {
        let mut request = discover(&[(52, &[value])]);
        let mut put = |at: usize, text: &str| {
            request[at..at + 2].copy_from_slice(&[12, text.len() as u8]);
            request[at + 2..at + 2 + text.len()].copy_from_slice(text.as_bytes());
            request[at + 2 + text.len()] = 255;
        };
        put(44, "from-sname");
        put(108, "from-file");
        let client = ClientInfo::parse(&request).expect("a request");
        assert_eq!(client.host_name.as_deref(), Some(found.as_bytes()));
    }
    let invalid = ClientInfo::parse(&discover(&[(52, &[9])])).expect("served nevertheless");
    assert_eq!(invalid.notes.len(), 1);
}

fn rrq(options: &[u8]) -> tftp::Request {
    let bytes = [b"\0\x01f\0octet\0", options].concat();
    match Packet::parse(&bytes) {
        Ok(Packet::ReadRequest(request)) => request,
        other => panic!("{other:?}"),
    }
}

/// First packet for a file of 3000 octets.
fn first(options: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut transfer = Transfer::new(0, &rrq(options), 3000, Limits::default());
    assert!(transfer.poll_transmit(0, &[0; 3000], &mut out));
    out
}

#[test]
fn tftp_85_blocks_stay_512_unless_asked() {
    assert_eq!(first(b"").len(), 4 + 512);
}

#[test]
fn tx_tftp_3_tsize_is_the_true_size() {
    assert_eq!(first(b"tsize\x000\0"), b"\0\x06tsize\x003000\0");
}

#[test]
fn edk2_7264_windowsize_is_supported() {
    let oack = first(b"blksize\x001468\0windowsize\x004\0tsize\x000\0");
    assert_eq!(
        oack,
        b"\0\x06blksize\x001468\0windowsize\x004\0tsize\x003000\0"
    );
}

#[test]
fn tftp_125_error_8_after_the_oack_is_no_failure() {
    let mut transfer = Transfer::new(0, &rrq(b"tsize\x000\0"), 3000, Limits::default());
    transfer.poll_transmit(0, &[0; 3000], &mut Vec::new());
    transfer.handle(
        1,
        &ErrorReply::new(ErrorCode::OptionNegotiation, "").encode(),
    );
    assert_eq!(transfer.outcome(), Some(&tftp::Outcome::Probed));
}

#[test]
fn pybootd_21_and_tftp_net_6_block_numbers_past_32767_and_65535() {
    for (roll_over, after_65535) in [(RollOver::Zero, 0u16), (RollOver::One, 1)] {
        let file = vec![0; 8 * 65_537];
        let limits = Limits {
            roll_over,
            ..Limits::default()
        };
        let mut transfer = Transfer::new(0, &rrq(b"blksize\x008\0"), file.len() as u64, limits);
        let (mut out, mut numbers) = (Vec::new(), Vec::new());
        while transfer.outcome().is_none() && transfer.poll_transmit(0, &file, &mut out) {
            let block = match Packet::parse(&out) {
                Ok(Packet::Data { block, .. }) => block,
                _ => 0,
            };
            if block != 0 || transfer.stats().blocks_sent > 0 {
                numbers.push(block);
            }
            let [high, low] = block.to_be_bytes();
            transfer.handle(0, &[0, 4, high, low]);
        }
        assert_eq!(transfer.outcome(), Some(&tftp::Outcome::Complete));
        assert_eq!(numbers[32_766..32_769], [32_767, 32_768, 32_769]);
        assert_eq!(numbers[65_534..65_536], [65_535, after_65535]);
    }
}

/// What a listener answers at once to a request, when the file is not there.
fn told_of_a_missing_file(request: &[u8]) -> Vec<u8> {
    let mut server: tftp::Server<Vec<u8>> = tftp::Server::new(tftp::Bounds::default());
    server.handle(0, SocketAddr::from((NEXT, 2070)), request);
    let Some(tftp::Event::Open { id, .. }) = server.poll_event() else {
        panic!("a request asks for a file")
    };
    let missing = ErrorReply::new(ErrorCode::FileNotFound, "no such file");
    server.opened(0, id, Err(missing), None);
    let mut out = Vec::new();
    assert!(server.poll_burst(0, &mut out).is_some(), "at once");
    assert!(server.is_empty(), "nothing is left behind");
    out
}

#[test]
fn tinkerbell_424_a_missing_autoexec_is_error_1_at_once() {
    let request = b"\0\x01autoexec.ipxe\0octet\0blksize\x001432\0tsize\x000\0";
    assert_eq!(told_of_a_missing_file(request)[..4], [0, 5, 0, 1]);
}

#[test]
fn super_uefi_4_a_second_stage_that_is_not_there_is_error_1() {
    for name in ["grubx64.efi", "/EFI/BOOT/grubx64_real.efi"] {
        let request = [b"\0\x01", name.as_bytes(), b"\0octet\0tsize\x000\0"].concat();
        assert_eq!(
            told_of_a_missing_file(&request)[..4],
            [0, 5, 0, 1],
            "{name}"
        );
    }
}

/// 114 MB at 1468 octets are more than 65535 blocks, which a Raspberry Pi ROM cannot follow: the
/// end of such a transfer says so.
#[test]
fn rpi_eeprom_720_a_transfer_past_65535_blocks_says_so() {
    for (blocks, rolled_over) in [(65_535_u64, false), (65_536, true)] {
        let file = vec![0; 8 * (blocks as usize - 1) + 1];
        let options = b"blksize\x008\0windowsize\x0032\0";
        let mut transfer = Transfer::new(0, &rrq(options), file.len() as u64, Limits::default());
        let mut out = Vec::new();
        while transfer.outcome().is_none() {
            let mut last = 0;
            while transfer.poll_transmit(0, &file, &mut out) {
                if let Ok(Packet::Data { block, .. }) = Packet::parse(&out) {
                    last = block;
                }
            }
            let [high, low] = last.to_be_bytes();
            transfer.handle(0, &[0, 4, high, low]);
        }
        assert_eq!(transfer.stats().rolled_over, rolled_over, "{blocks}");
    }
}

/// ATTACKS row 34: the size in a request is a question, never a size of ours.
#[test]
fn attack_34_giant_tsize_is_answered_with_the_true_one() {
    for asked in ["1", "18446744073709551615"] {
        let options = format!("tsize\0{asked}\0");
        assert_eq!(first(options.as_bytes()), b"\0\x06tsize\x003000\0");
    }
    let beyond = b"tsize\x0018446744073709551616\0";
    assert_eq!(first(beyond)[..4], [0, 3, 0, 1], "no number, no option");
}
