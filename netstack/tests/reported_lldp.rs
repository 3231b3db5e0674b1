//! LLDP faults that other receivers had in the field, each as its own test: the frame of the report,
//! and what must happen here. Named `project_issue_what`.

use netstack::MacAddr;
use netstack::lldp::{Change, Frame, Id, IdKind, Lldpdu, Note, Table, neighbour::Limits};

const SWITCH: MacAddr = MacAddr([0x44, 0x38, 0x39, 0, 0, 1]);

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let header = u16::from(kind) << 9 | value.len() as u16;
    [&header.to_be_bytes()[..], value].concat()
}

/// An Ethernet frame with these TLVs after Chassis ID (MAC), Port ID `swp7`, TTL 120.
fn frame(tlvs: &[Vec<u8>]) -> Vec<u8> {
    let mut out = [0x01, 0x80, 0xc2, 0, 0, 0x0e].to_vec();
    out.extend_from_slice(&SWITCH.0);
    out.extend_from_slice(&[0x88, 0xcc]);
    out.extend(tlv(1, &[&[4][..], &SWITCH.0].concat()));
    out.extend(tlv(2, b"\x05swp7"));
    out.extend(tlv(3, &[0, 120]));
    out.extend(tlvs.concat());
    out
}

fn read(tlvs: &[Vec<u8>]) -> Lldpdu {
    Frame::parse(&frame(tlvs)).expect("a frame").lldpdu
}

fn management(addr: [u8; 4], oid: &[u8]) -> Vec<u8> {
    let head = [
        5,
        1,
        addr[0],
        addr[1],
        addr[2],
        addr[3],
        2,
        0,
        0,
        0,
        1,
        oid.len() as u8,
    ];
    tlv(8, &[&head[..], oid].concat())
}

#[test]
fn ldwin_21_order_after_the_first_three_is_free() {
    // A Catalyst 9000: description of 245 octets with line feeds, then the port's.
    let mut description = "Cisco IOS Software [Gibraltar]\nTechnical Support".to_owned();
    description.push_str(&"x".repeat(245 - description.len()));
    let pdu = read(&[
        tlv(6, description.as_bytes()),
        tlv(7, &[0, 0x14, 0, 0x04]),
        tlv(4, b"GigabitEthernet1/0/2"),
        tlv(5, b"cat9k"),
        tlv(0, &[]),
    ]);
    assert_eq!(pdu.system_description, Some(description));
    assert_eq!(
        pdu.port_description.as_deref(),
        Some("GigabitEthernet1/0/2")
    );
    assert_eq!(pdu.system_name.as_deref(), Some("cat9k"));
    assert!(pdu.notes.is_empty(), "{:?}", pdu.notes);
}

#[test]
fn ldwin_6_the_oid_is_opaque() {
    // A Netgear: the text "broadcom" where an object identifier belongs.
    let pdu = read(&[management([10, 0, 0, 9], b"broadcom"), tlv(0, &[])]);
    assert_eq!(pdu.management[0].oid, b"broadcom");
    assert_eq!(pdu.management[0].ip(), Some([10, 0, 0, 9].into()));
    assert!(pdu.notes.is_empty(), "{:?}", pdu.notes);
}

#[test]
fn openlldp_129_several_management_addresses() {
    // A Cumulus MSN4600: IPv4 and IPv6.
    let v6 = [&[17, 2][..], &[0xfe; 16], &[2, 0, 0, 0, 3, 0]].concat();
    let pdu = read(&[management([192, 0, 2, 1], &[]), tlv(8, &v6), tlv(0, &[])]);
    let found: Vec<_> = pdu.management.iter().filter_map(|m| m.ip()).collect();
    assert_eq!(
        found,
        [[192, 0, 2, 1].into(), std::net::IpAddr::from([0xfe; 16])]
    );
    assert!(pdu.notes.is_empty(), "{:?}", pdu.notes);
}

#[test]
fn lldpd_319_a_tag_is_read_and_named() {
    let plain = frame(&[tlv(0, &[])]);
    let tagged = [&plain[..12], &[0x81, 0x00, 0xe0, 0x64], &plain[12..]].concat();
    let read = Frame::parse(&tagged).expect("a frame");
    assert_eq!(
        read.vlan,
        Some(100),
        "priority bits are no part of the VLAN id"
    );
    assert_eq!(read.lldpdu, Frame::parse(&plain).expect("a frame").lldpdu);
    // A driver that strips the tag leaves the same neighbour, without it.
    let mut table = Table::new(Limits::default());
    assert_eq!(table.handle(0, "prov", &tagged), Ok(Change::New));
    assert_eq!(table.handle(1, "prov", &plain), Ok(Change::Updated));
    assert_eq!(table.iter(1).count(), 1);
}

#[test]
fn lldpd_372_local_chassis_and_mac_port() {
    // A Huawei: 215 octets of LLDPDU, Chassis ID locally assigned, Port ID a hardware address.
    let mut out = [0x01, 0x80, 0xc2, 0, 0, 0x0e].to_vec();
    out.extend_from_slice(&SWITCH.0);
    out.extend_from_slice(&[0x88, 0xcc]);
    let at = out.len();
    out.extend(tlv(1, b"\x07HUAWEI-S5720"));
    out.extend(tlv(2, &[3, 2, 0, 0, 0, 0, 9]));
    out.extend(tlv(3, &[0, 120]));
    let fill = 215 - (out.len() - at) - 2 - 2;
    out.extend(tlv(6, "d".repeat(fill).as_bytes()));
    out.extend(tlv(0, &[]));
    assert_eq!(out.len() - at, 215);
    let pdu = Frame::parse(&out).expect("a frame").lldpdu;
    assert_eq!(
        (pdu.chassis.kind, pdu.port.kind),
        (IdKind::Local, IdKind::Mac)
    );
    assert_eq!(pdu.chassis.to_string(), "HUAWEI-S5720");
    assert_eq!(pdu.port.as_mac(), Some(MacAddr([2, 0, 0, 0, 0, 9])));
    assert_eq!(pdu.system_description.map(|text| text.len()), Some(fill));
}

#[test]
fn lldpd_83_the_tlvs_read_so_far_are_kept() {
    // A Cisco 3650: the last TLV claims more than the frame has.
    let mut cut = tlv(127, &[0, 0x12, 0x0f, 2, 7, 1, 0]);
    cut.truncate(5);
    let pdu = read(&[tlv(5, b"c3650"), tlv(4, b"Gi1/0/1"), cut]);
    assert_eq!(pdu.port, Id::interface("swp7"));
    assert_eq!(pdu.system_name.as_deref(), Some("c3650"));
    assert_eq!(pdu.port_description.as_deref(), Some("Gi1/0/1"));
    let note = Note::Truncated {
        kind: 127,
        announced: 7,
        left: 3,
    };
    assert_eq!(pdu.notes, [note]);
    let mut table = Table::new(Limits::default());
    let bytes = frame(&[tlv(5, b"c3650"), vec![0xff, 0xff]]);
    assert_eq!(
        table.handle(0, "prov", &bytes),
        Ok(Change::New),
        "the neighbour is shown"
    );
}

#[test]
fn wireshark_43_an_organisational_tlv_without_information_is_legal() {
    let pdu = read(&[tlv(127, &[0, 0x90, 0x69, 9]), tlv(0, &[])]);
    assert_eq!(pdu.organisation.len(), 1);
    assert!(pdu.organisation[0].value.is_empty());
    assert_eq!(pdu.organisation[0].read(), Ok(None));
    assert!(pdu.notes.is_empty(), "{:?}", pdu.notes);
}

/// Others had it the other way round: a known subtype without its contents must cost itself only.
#[test]
fn an_empty_known_subtype_costs_itself() {
    let pdu = read(&[tlv(127, &[0, 0x12, 0x0f, 4]), tlv(5, b"sw"), tlv(0, &[])]);
    assert_eq!(pdu.system_name.as_deref(), Some("sw"));
    let note = Note::BadOrganisation {
        oui: [0, 0x12, 0x0f],
        subtype: 4,
        len: 0,
    };
    assert_eq!(pdu.notes, [note]);
}
