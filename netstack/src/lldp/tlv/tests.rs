//! Golden frames, one `rejects_*` per refusal, tolerance after the mandatory part.

use super::*;

const SWITCH: MacAddr = MacAddr([0x44, 0x38, 0x39, 0, 0, 1]);

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let mut out = (u16::from(kind) << 9 | value.len() as u16)
        .to_be_bytes()
        .to_vec();
    out.extend_from_slice(value);
    out
}

/// Chassis MAC, port `swp7`, TTL 120.
fn head() -> Vec<u8> {
    let chassis = [&[4][..], &SWITCH.0].concat();
    [tlv(1, &chassis), tlv(2, b"\x05swp7"), tlv(3, &[0, 120])].concat()
}

fn full() -> Lldpdu {
    let mut pdu = Lldpdu::new(Id::mac(SWITCH), Id::interface("swp7"), 120);
    pdu.port_description = Some("to rack 4".into());
    pdu.system_name = Some("leaf01".into());
    pdu.system_description = Some("line one\nline two".into());
    pdu.capabilities = Some(Capabilities {
        supported: Capabilities::BRIDGE | Capabilities::ROUTER,
        enabled: Capabilities::BRIDGE,
    });
    for (family, addr) in [(1, vec![192, 0, 2, 1]), (2, vec![0xfe; 16])] {
        let management = ManagementAddress {
            family,
            addr,
            numbering: 2,
            interface: 3,
            oid: vec![1, 3, 6],
        };
        pdu.management.push(management);
    }
    pdu.pvid = Some(42);
    pdu.vlan_names = vec![(42, "provision".into()), (7, String::new())];
    pdu.organisation = vec![OrganisationTlv {
        oui: [0, 0x12, 0x0f],
        subtype: 4,
        value: vec![5, 0xdc],
    }];
    pdu.reserved = vec![(9, vec![1])];
    pdu
}

#[test]
fn golden_frame() {
    let mut pdu = Lldpdu::new(Id::mac(SWITCH), Id::interface("swp7"), 120);
    pdu.system_name = Some("leaf01".into());
    pdu.pvid = Some(42);
    let bytes = Frame::announce(SWITCH, pdu.clone()).encode();
    let golden = "0180c200000e 443839000001 88cc 0207 04 443839000001 0405 05 73777037 \
                  0602 0078 0a06 6c6561663031 fe06 0080c2 01 002a 0000";
    assert_eq!(hex::encode(&bytes), golden.replace(' ', ""));
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(
        (frame.source, frame.destination, frame.vlan),
        (SWITCH, NEAREST_BRIDGE, None)
    );
    assert_eq!(frame.lldpdu, pdu);
}

#[test]
fn every_tlv_there_and_back() {
    let pdu = full();
    assert_eq!(Lldpdu::parse(&pdu.encode()), Ok(pdu.clone()));
    assert_eq!(pdu.management[0].ip(), Some(IpAddr::from([192, 0, 2, 1])));
    assert_eq!(pdu.management[1].ip(), Some(IpAddr::from([0xfe; 16])));
}

#[test]
fn tagged_frames_are_read_and_named() {
    let mut frame = Frame::announce(SWITCH, full());
    frame.vlan = Some(100);
    let bytes = frame.encode();
    assert_eq!(Frame::parse(&bytes).unwrap(), frame);
    // 802.1ad outside 802.1Q.
    let double = [&bytes[..12], &[0x88, 0xa8, 0x00, 0x05], &bytes[12..]].concat();
    assert_eq!(Frame::parse(&double).unwrap().vlan, Some(5));
    let triple = [&double[..12], &[0x88, 0xa8, 0x00, 0x06], &double[12..]].concat();
    assert_eq!(Frame::parse(&triple), Err(Refused::NotLldp(0x8100)));
}

#[test]
fn padding_after_the_end_is_nothing() {
    let mut bytes = [head(), tlv(0, &[])].concat();
    bytes.resize(46, 0xaa);
    assert!(Lldpdu::parse(&bytes).unwrap().notes.is_empty());
}

/// chall32/LDWin#21: order after the first three is free. intel/openlldp#129: two management
/// addresses. chall32/LDWin#6: OID as text. wireshark/wireshark#43: empty organisational TLV.
#[test]
fn what_switches_send() {
    let management = |oid: &[u8]| {
        [
            &[5, 1, 192, 0, 2, 9, 2, 0, 0, 0, 1, oid.len() as u8][..],
            oid,
        ]
        .concat()
    };
    let bytes = [
        head(),
        tlv(6, b"Catalyst\n9300"),
        tlv(8, &management(b"broadcom")),
        tlv(4, b"GigabitEthernet1/0/7"),
        tlv(8, &management(&[])),
        tlv(127, &[0, 1, 2, 3]),
        tlv(0, &[]),
    ];
    let pdu = Lldpdu::parse(&bytes.concat()).unwrap();
    assert!(pdu.notes.is_empty(), "{:?}", pdu.notes);
    assert_eq!(pdu.system_description.as_deref(), Some("Catalyst\n9300"));
    assert_eq!(
        pdu.port_description.as_deref(),
        Some("GigabitEthernet1/0/7")
    );
    assert_eq!(pdu.management.len(), 2);
    assert_eq!(pdu.management[0].oid, b"broadcom");
    assert_eq!(
        pdu.organisation[0],
        OrganisationTlv {
            oui: [0, 1, 2],
            subtype: 3,
            value: vec![]
        }
    );
}

/// lldpd/lldpd#372: Huawei with a local chassis and a hardware address as port.
#[test]
fn local_chassis_and_mac_port() {
    let bytes = [
        tlv(1, b"\x07Huawei"),
        tlv(2, &[3, 2, 0, 0, 0, 0, 9]),
        tlv(3, &[0, 120]),
        tlv(0, &[]),
    ];
    let pdu = Lldpdu::parse(&bytes.concat()).unwrap();
    assert_eq!(
        (pdu.chassis.kind, pdu.port.kind),
        (IdKind::Local, IdKind::Mac)
    );
    assert_eq!(
        (pdu.chassis.to_string(), pdu.port.to_string()),
        ("Huawei".into(), "02:00:00:00:00:09".into())
    );
}

/// lldpd/lldpd#83: keep what was read when a later TLV runs past the frame.
#[test]
fn bad_tlvs_after_the_mandatory_part_are_notes() {
    let table: [(Vec<u8>, Note); 9] = [
        (
            vec![0x0a, 200, b'x'],
            Note::Truncated {
                kind: 5,
                announced: 200,
                left: 1,
            },
        ),
        (
            vec![0xff, 0xff],
            Note::Truncated {
                kind: 127,
                announced: 511,
                left: 0,
            },
        ),
        (vec![], Note::NoEnd),
        (vec![0x0a], Note::NoEnd),
        (
            [tlv(7, &[0, 4]), tlv(0, &[])].concat(),
            Note::BadContents { kind: 7, len: 2 },
        ),
        (
            [tlv(8, &[9, 1]), tlv(0, &[])].concat(),
            Note::BadContents { kind: 8, len: 2 },
        ),
        (
            [tlv(8, &[]), tlv(0, &[])].concat(),
            Note::BadContents { kind: 8, len: 0 },
        ),
        (
            [tlv(127, &[0, 1, 2]), tlv(0, &[])].concat(),
            Note::BadContents { kind: 127, len: 3 },
        ),
        (
            [tlv(5, b"a"), tlv(5, b"b"), tlv(0, &[])].concat(),
            Note::Repeated { kind: 5 },
        ),
    ];
    for (tail, want) in table {
        let pdu = Lldpdu::parse(&[head(), tail].concat()).unwrap();
        assert_eq!(pdu.notes, [want]);
        assert_eq!(pdu.port, Id::interface("swp7"));
    }
    let vlan = [tlv(127, &[0, 0x80, 0xc2, 3, 0, 1, 9, b'x']), tlv(0, &[])].concat();
    let pdu = Lldpdu::parse(&[head(), vlan].concat()).unwrap();
    let note = Note::BadOrganisation {
        oui: OUI_8021,
        subtype: 3,
        len: 4,
    };
    assert_eq!(pdu.notes, [note]);
    assert_eq!(pdu.organisation.len(), 1, "kept as it came");
    let many = [head(), tlv(9, &[]).repeat(200)].concat();
    let pdu = Lldpdu::parse(&many).unwrap();
    assert_eq!(
        (pdu.reserved.len(), pdu.notes),
        (TLVS_MAX, vec![Note::TooMany])
    );
}

#[test]
fn rejects_a_broken_mandatory_part() {
    let chassis = tlv(1, b"\x07sw");
    let port = tlv(2, b"\x07p1");
    let ttl = tlv(3, &[0, 120]);
    let table: [(Vec<u8>, &str); 10] = [
        (vec![], "Chassis ID: 0 bytes left"),
        (
            [&port[..], &chassis, &ttl].concat(),
            "Chassis ID: TLV type 2 in its place",
        ),
        (tlv(1, &[7]), "Chassis ID: length 1"),
        (tlv(1, &[7; 257]), "Chassis ID: length 257"),
        (vec![0x02, 9, 7], "Chassis ID: length 9 with 1 bytes left"),
        (
            [&chassis[..], &ttl].concat(),
            "Port ID: TLV type 3 in its place",
        ),
        ([&chassis[..], &tlv(2, &[])].concat(), "Port ID: length 0"),
        ([&chassis[..], &port].concat(), "TTL: 0 bytes left"),
        (
            [&chassis[..], &port, &tlv(3, &[1])].concat(),
            "TTL: length 1",
        ),
        (
            [&chassis[..], &port, &tlv(0, &[])].concat(),
            "TTL: TLV type 0 in its place",
        ),
    ];
    for (bytes, want) in table {
        let refused = Lldpdu::parse(&bytes).unwrap_err();
        assert_eq!(refused.to_string(), want);
        assert_eq!(refused.explain().code, "lldp.mandatory");
    }
    for (again, want) in [(&chassis, "Chassis ID"), (&port, "Port ID"), (&ttl, "TTL")] {
        let bytes = [&chassis[..], &port, &ttl, again].concat();
        assert_eq!(Lldpdu::parse(&bytes), Err(Refused::Twice(want)));
    }
}

#[test]
fn rejects_frames_that_are_not_lldp() {
    let good = Frame::announce(SWITCH, full()).encode();
    assert_eq!(
        Frame::parse(&good[..13]),
        Err(Refused::TooShort { len: 13 })
    );
    let cut_tag = [&good[..12], &[0x81, 0x00, 0x00]].concat();
    assert_eq!(Frame::parse(&cut_tag), Err(Refused::TooShort { len: 15 }));
    assert_eq!(
        Frame::parse(&vec![0; 1601]),
        Err(Refused::TooLong { len: 1601 })
    );
    let mut arp = good.clone();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(Frame::parse(&arp), Err(Refused::NotLldp(0x0806)));
    let mut group = good;
    group[6] |= 1;
    assert_eq!(Frame::parse(&group).unwrap_err().code(), "lldp.source");
}

#[test]
fn encoding_cuts_what_the_standard_forbids() {
    let mut pdu = full();
    pdu.system_description = Some("x".repeat(600));
    pdu.organisation[0].value = vec![0; 900];
    pdu.vlan_names = vec![(1, "n".repeat(40))];
    pdu.management[0].oid = vec![1; 200];
    let read = Lldpdu::parse(&pdu.encode()).unwrap();
    assert!(read.notes.is_empty(), "{:?}", read.notes);
    assert_eq!(read.system_description.unwrap().len(), 255);
    assert_eq!(read.organisation[0].value.len(), 507);
    assert_eq!(
        (read.vlan_names[0].1.len(), read.management[0].oid.len()),
        (32, 128)
    );
}

#[test]
fn encoding_never_exceeds_one_frame() {
    let mut pdu = full();
    pdu.reserved = (0..40).map(|_| (9, vec![0; 100])).collect();
    pdu.reserved.push((10, vec![7]));
    let bytes = Frame::announce(SWITCH, pdu.clone()).encode();
    assert!(bytes.len() <= 14 + 1500, "{} bytes", bytes.len());
    let read = Frame::parse(&bytes).unwrap().lldpdu;
    assert!(read.notes.is_empty(), "{:?}", read.notes);
    assert_eq!((&read.chassis, &read.port), (&pdu.chassis, &pdu.port));
    let kept = read.reserved.len();
    assert!((10..40).contains(&kept), "{kept} TLVs kept");
    assert_eq!(
        read.reserved[kept - 1],
        (10, vec![7]),
        "a short one still fits"
    );
}

proptest::proptest! {
    #[test]
    fn never_panics(bytes: Vec<u8>, cuts in proptest::collection::vec((0usize..400, 0u8..), 0..10)) {
        let _ = Frame::parse(&bytes);
        let _ = Lldpdu::parse(&[head(), bytes].concat());
        let mut frame = Frame::announce(SWITCH, full()).encode();
        for (at, value) in cuts {
            let at = at % frame.len();
            frame[at] = value;
        }
        if let Ok(read) = Frame::parse(&frame) {
            let again = Lldpdu::parse(&read.lldpdu.encode());
            proptest::prop_assert!(again.is_ok(), "{again:?}");
        }
    }
}
