//! Raw sockets on a veth pair in a network namespace of this test's own.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::time::Duration;

use hw::nic::{
    FrameSocket, Icmp6Socket, LldpSocket, NicError, RawUdp, Received, bind_to_device, carrier,
    configure_ipv4, driver, hardware_address, index_of, interfaces, link_up, wait_for_carrier,
};
use nix::sched::{CloneFlags, unshare};

const WAIT: Duration = Duration::from_secs(3);
const SILENCE: Duration = Duration::from_millis(200);

fn ip(arguments: &str) -> bool {
    Command::new("ip")
        .args(arguments.split_whitespace())
        .status()
        .is_ok_and(|s| s.success())
}

/// Moves this thread into a new namespace with `sw` and `node`, two ends of a cable. False with a
/// SKIP line where that is not permitted.
fn namespace() -> bool {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        println!("SKIP no permission to make a network namespace");
        return false;
    }
    if !ip("link add sw type veth peer name node") {
        println!("SKIP ip cannot make a veth pair");
        return false;
    }
    assert!(ip("link set lo up"));
    true
}

fn plug_in() {
    for end in ["sw", "node"] {
        link_up(end).unwrap();
    }
    for end in ["sw", "node"] {
        assert!(wait_for_carrier(end, WAIT).unwrap());
    }
}

/// Sends until the other end hears it: for a moment after a link has come up, the kernel still
/// drops what is sent (linkwatch activates the queue later).
fn send_until_heard(from: &LldpSocket, to: &LldpSocket, frame: &[u8]) -> hw::nic::Frame {
    for _ in 0..30 {
        from.send(frame).unwrap();
        if let Some(heard) = to.recv(SILENCE).unwrap() {
            return heard;
        }
    }
    panic!("not heard");
}

fn lldp_frame(group: u8) -> Vec<u8> {
    let mut frame = vec![0x01, 0x80, 0xc2, 0x00, 0x00, group];
    frame.extend([0x02, 0, 0, 0, 0, 1, 0x88, 0xcc]);
    frame.extend([
        0x02, 0x07, 0x04, 2, 0, 0, 0, 0, 1, 0x04, 0x02, 0x07, b'7', 0x06, 0x02, 0, 120,
    ]);
    frame.extend([0, 0]);
    frame.resize(60, 0);
    frame
}

#[test]
fn link_comes_up_and_gets_its_address_and_route() {
    if !namespace() {
        return;
    }
    let names: Vec<String> = interfaces().into_iter().map(|i| i.name).collect();
    assert!(
        names.contains(&"sw".to_owned()) && names.contains(&"node".to_owned()),
        "{names:?}"
    );
    assert!(!names.contains(&"lo".to_owned()));
    assert!(interfaces().iter().all(|i| i.mac.is_some() && !i.physical));
    link_up("node").unwrap();
    assert!(
        !wait_for_carrier("node", SILENCE).unwrap(),
        "the other end is down"
    );
    link_up("sw").unwrap();
    assert!(wait_for_carrier("node", WAIT).unwrap());
    let addr = Ipv4Addr::new(10, 9, 8, 7);
    configure_ipv4("node", addr, 24, Some(Ipv4Addr::new(10, 9, 8, 1))).unwrap();
    // Twice is no error: a lease is renewed.
    configure_ipv4("node", addr, 24, Some(Ipv4Addr::new(10, 9, 8, 1))).unwrap();
    let show = |arguments: &str| {
        let output = Command::new("ip")
            .args(arguments.split_whitespace())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(show("-4 addr show dev node").contains("inet 10.9.8.7/24"));
    assert!(show("-4 route show").contains("default via 10.9.8.1 dev node"));
}

#[test]
fn lldp_socket_hears_the_three_groups_and_nothing_else() {
    if !namespace() {
        return;
    }
    plug_in();
    let switch = LldpSocket::open("sw").unwrap();
    let node = LldpSocket::open("node").unwrap();
    for group in [0x0e, 0x03, 0x00] {
        let frame = lldp_frame(group);
        let heard = send_until_heard(&switch, &node, &frame);
        assert_eq!(heard.bytes, frame);
        assert!(heard.at.elapsed() < WAIT);
    }
    let mut other_group = lldp_frame(0x01);
    switch.send(&other_group).unwrap();
    other_group[..6].copy_from_slice(&[0xff; 6]);
    switch.send(&other_group).unwrap();
    let mut other_type = lldp_frame(0x0e);
    other_type[12..14].copy_from_slice(&[0x08, 0x00]);
    switch.send(&other_type).unwrap();
    assert!(node.recv(SILENCE).unwrap().is_none());
    assert!(
        switch.recv(SILENCE).unwrap().is_none(),
        "one's own frames are not heard"
    );
    assert!(matches!(switch.send(&[1, 2, 3]), Err(NicError::Os { .. })));
}

#[test]
fn stripped_vlan_tags_are_put_back() {
    if !namespace() {
        return;
    }
    plug_in();
    let switch = LldpSocket::open("sw").unwrap();
    let node = LldpSocket::open("node").unwrap();
    // 802.1Q, a priority tag (VLAN 0), a provider tag, a tag with the DEI bit.
    for tag in [
        [0x81, 0x00, 0x20, 0x64],
        [0x81, 0x00, 0xe0, 0x00],
        [0x88, 0xa8, 0x00, 0x64],
        [0x81, 0x00, 0x10, 0x01],
    ] {
        let mut tagged = lldp_frame(0x0e);
        tagged.splice(12..12, tag);
        let heard = send_until_heard(&switch, &node, &tagged);
        assert_eq!(heard.bytes, tagged, "{tag:02x?}");
    }
}

#[test]
fn carrier_and_driver_are_told() {
    if !namespace() {
        return;
    }
    assert!(!carrier("node").unwrap(), "not up");
    plug_in();
    assert!(carrier("node").unwrap());
    assert!(ip("link set sw down"));
    assert!(!carrier("node").unwrap(), "the other end is down");
    // sysfs shows the interfaces of the namespace it was mounted in, so only absence can be told here.
    assert_eq!(driver("node"), None);
    assert_eq!(driver("nowhere0"), None);
}

#[test]
fn a_socket_outlives_its_link() {
    if !namespace() {
        return;
    }
    plug_in();
    let switch = LldpSocket::open("sw").unwrap();
    let node = LldpSocket::open("node").unwrap();
    let frame = lldp_frame(0x0e);
    send_until_heard(&switch, &node, &frame);
    assert!(ip("link set node down"));
    // The interface that goes down is told once; then the socket waits for it to come back.
    assert!(node.recv(SILENCE).is_err());
    assert!(node.recv(SILENCE).unwrap().is_none());
    link_up("node").unwrap();
    assert!(wait_for_carrier("node", WAIT).unwrap());
    assert_eq!(send_until_heard(&switch, &node, &frame).bytes, frame);
    // One that is gone is told as well: whoever listens must open it anew.
    assert!(ip("link del node"));
    assert!(node.recv(SILENCE).is_err());
    assert!(node.send(&frame).is_err());
}

#[test]
fn raw_udp_reaches_a_host_without_arp() {
    if !namespace() {
        return;
    }
    plug_in();
    let client = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 68)).unwrap();
    bind_to_device(&client, "node").unwrap();
    client.set_read_timeout(Some(WAIT)).unwrap();
    let mac = interfaces()
        .into_iter()
        .find(|i| i.name == "node")
        .unwrap()
        .mac
        .unwrap();
    let server = RawUdp::open("sw").unwrap();
    let source = SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, 1), 67);
    // The address is configured, but nobody answers ARP for the server.
    configure_ipv4("node", Ipv4Addr::new(10, 1, 0, 9), 24, None).unwrap();
    let destination = SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, 9), 68);
    send_until_heard(
        &LldpSocket::open("sw").unwrap(),
        &LldpSocket::open("node").unwrap(),
        &lldp_frame(0x0e),
    );
    for payload in [b"offer".as_slice(), &[7; 1472]] {
        server.send_to(mac, source, destination, payload).unwrap();
        let mut buffer = [0; 2048];
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], payload);
        assert_eq!(from, source.into());
    }
    assert!(matches!(
        server.send_to(mac, source, destination, &[0; 1473]),
        Err(NicError::TooLarge {
            size: 1473,
            max: 1472
        })
    ));
}

#[test]
fn rejects_interfaces_that_are_not_there() {
    assert!(matches!(
        LldpSocket::open("nowhere0"),
        Err(NicError::Missing { .. })
    ));
    assert!(matches!(
        RawUdp::open("nowhere0"),
        Err(NicError::Missing { .. })
    ));
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    assert!(bind_to_device(&socket, "nowhere0").is_err());
}

/// One received message, within three seconds.
fn icmp6_within(socket: &Icmp6Socket, buffer: &mut [u8]) -> Received {
    let deadline = std::time::Instant::now() + WAIT;
    loop {
        match socket.receive(buffer) {
            Ok(received) => return received,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(e) => panic!("{e}"),
        }
        assert!(std::time::Instant::now() < deadline, "nothing came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_router_solicitation_is_heard_with_source_and_hop_limit() {
    if !namespace() {
        return;
    }
    if !std::path::Path::new("/proc/sys/net/ipv6").exists() {
        println!("SKIP this kernel has no IPv6");
        return;
    }
    plug_in();
    for (end, address) in [("sw", "fe80::1/64"), ("node", "fe80::2/64")] {
        assert!(ip(&format!("-6 addr add {address} dev {end} nodad")));
    }
    let (sw, node) = (
        Icmp6Socket::open("sw").unwrap(),
        Icmp6Socket::open("node").unwrap(),
    );
    let solicitation = [133, 0, 0, 0, 0, 0, 0, 0];
    let all_routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    // Another type is kept from us by the kernel; the solicitation behind it comes first.
    node.send(
        &[134, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        all_routers,
    )
    .unwrap();
    node.send(&solicitation, all_routers).unwrap();
    let mut buffer = [0; 64];
    let received = icmp6_within(&sw, &mut buffer);
    assert_eq!((received.len, received.hop_limit), (8, 255));
    assert!(
        received.source.is_unicast_link_local(),
        "{}",
        received.source
    );
    assert_eq!(buffer[..2], [133, 0]);
    assert_ne!(buffer[2..4], [0, 0], "the kernel fills the checksum");
    // Back to who asked.
    sw.send(&solicitation, received.source).unwrap();
    assert_eq!(icmp6_within(&node, &mut buffer).hop_limit, 255);
}

#[test]
fn rejects_interfaces_that_are_not_there_for_ipv6() {
    assert!(matches!(
        Icmp6Socket::open("not-there"),
        Err(NicError::Missing { .. })
    ));
    assert!(matches!(
        index_of("not-there"),
        Err(NicError::Missing { .. })
    ));
    assert!(matches!(
        hardware_address("not-there"),
        Err(NicError::Missing { .. })
    ));
}

#[test]
fn arp_socket_hears_others_and_not_itself() {
    if !namespace() {
        return;
    }
    plug_in();
    let node = FrameSocket::arp("node").unwrap();
    let switch = FrameSocket::arp("sw").unwrap();
    assert_ne!(node.mac(), switch.mac());
    let addr = Ipv4Addr::new(10, 9, 8, 7);
    let mut probe = vec![0xff; 6];
    probe.extend(node.mac());
    probe.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    probe.extend(node.mac());
    probe.extend([0; 10]);
    probe.extend(addr.octets());
    // The kernel behind the other end answers for its own address (after it is put there).
    configure_ipv4("sw", addr, 24, None).unwrap();
    let mut heard = None;
    for _ in 0..30 {
        node.send(&probe).unwrap();
        heard = node.recv(SILENCE).unwrap();
        let answered = |frame: &Vec<u8>| frame[20..22] == [0, 2] && frame[28..32] == addr.octets();
        if heard.as_ref().is_some_and(answered) {
            break;
        }
    }
    let heard = heard.expect("an answer");
    assert_eq!(heard[22..28], switch.mac(), "the address's holder");
    let mut own = switch.recv(SILENCE).unwrap();
    while let Some(frame) = own {
        assert_ne!(frame[6..12], switch.mac(), "its own frames are left out");
        own = switch.recv(Duration::from_millis(50)).unwrap();
    }
}

#[test]
fn dhcp_reply_socket_hears_port_68_only_whoever_it_is_for() {
    if !namespace() {
        return;
    }
    plug_in();
    let listener = FrameSocket::dhcp_replies("node").unwrap();
    let sender = RawUdp::open("sw").unwrap();
    let port = |last, port| SocketAddrV4::new(Ipv4Addr::new(10, 9, 8, last), port);
    let mut heard = None;
    for _ in 0..30 {
        for to in [67, 69, 546] {
            sender
                .send_to([2, 9, 9, 9, 9, 9], port(1, 67), port(7, to), b"not this")
                .unwrap();
        }
        sender
            .broadcast_as([2, 9, 9, 9, 9, 8], port(1, 67), port(7, 68), b"this")
            .unwrap();
        heard = listener.recv(SILENCE).unwrap();
        if heard.is_some() {
            break;
        }
    }
    let frame = heard.expect("a reply");
    assert_eq!(
        frame[..12],
        [255, 255, 255, 255, 255, 255, 2, 9, 9, 9, 9, 8]
    );
    assert!(frame.ends_with(b"this"), "{frame:?}");
    while let Some(frame) = listener.recv(Duration::from_millis(50)).unwrap() {
        assert_eq!(frame[36..38], [0, 68]);
    }
}
