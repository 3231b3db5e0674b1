//! LLDP: frames from a cable, and inside a hello.

use netstack::MacAddr;
use netstack::lldp::neighbour::Limits;
use netstack::lldp::tlv::OrganisationTlv;
use netstack::lldp::{Frame, Id, Lldpdu, MandatoryPart, Note, Table, compare, compare_port};

/// A frame is read, kept, compared and forgotten.
pub fn frame(data: &[u8]) {
    let mut table = Table::new(Limits::default());
    let first = table.handle(1000, "prov", data);
    let again = table.handle(1000, "prov", data);
    assert_eq!(
        first.is_ok(),
        again.is_ok(),
        "the same frame, another answer"
    );
    assert!(table.iter(1000).count() <= 1);
    let _ = MandatoryPart::parse(data);
    let Ok(frame) = Frame::parse(data) else {
        assert!(first.is_err());
        return;
    };
    for id in [&frame.lldpdu.chassis, &frame.lldpdu.port] {
        let _ = id.as_mac();
        let _ = compare("Ethernet1/1", id).matches();
        let _ = compare(&id.to_string(), id).matches();
    }
    let _ = compare_port("Ethernet1/1", &frame.lldpdu).matches();
    // An organisational TLV is read, unknown, or noted.
    let bad = frame
        .lldpdu
        .organisation
        .iter()
        .filter(|tlv| tlv.read().is_err());
    let noted = frame.lldpdu.notes.iter();
    let noted = noted.filter(|note| matches!(note, Note::BadOrganisation { .. }));
    assert_eq!(bad.count(), noted.count(), "a bad one without its note");
    // Who it is must survive our own encoder; texts that are no UTF-8 need not.
    let (chassis, port) = (frame.lldpdu.chassis.clone(), frame.lldpdu.port.clone());
    let announced = Frame::announce(MacAddr([2, 0, 0, 0, 0, 1]), frame.lldpdu).encode();
    assert!(announced.len() <= 1514, "longer than an Ethernet frame");
    let read = Frame::parse(&announced).expect("our own frame");
    assert_eq!((read.lldpdu.chassis, read.lldpdu.port), (chassis, port));
    table.handle_timeout(u64::MAX);
    assert_eq!(table.iter(0).count(), 0);
}

/// The frames in a capture file.
pub fn frames(file: Vec<u8>) -> Vec<Vec<u8>> {
    crate::around(&file, &[0x88, 0xcc], 12, 1514)
}

/// A switch's announcement, tagged and not.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut lldpdu = Lldpdu::new(
        Id::mac(MacAddr([2, 0, 0, 0, 0, 1])),
        Id::interface("Ethernet1/1"),
        120,
    );
    lldpdu.system_name = Some("leaf-1".into());
    lldpdu.port_description = Some("to \u{1b}[2J node".into());
    lldpdu.pvid = Some(10);
    // MAC/PHY, power and a civic location.
    for (oui, subtype, value) in [
        ([0x00, 0x12, 0x0f], 1, &[3, 0x80, 0, 0, 0x1e][..]),
        ([0x00, 0x12, 0x0f], 2, &[0x0f, 1, 5, 0x13, 2, 0xc6, 1, 0xfe]),
        ([0x00, 0x12, 0xbb], 3, b"\x02\x0b\x02DE\x03\x06Berlin"),
        ([0x00, 0x80, 0xc2], 4, &[2, 0x88, 0x8e]),
    ] {
        lldpdu.organisation.push(OrganisationTlv {
            oui,
            subtype,
            value: value.to_vec(),
        });
    }
    let mut frame = Frame::announce(MacAddr([2, 0, 0, 0, 0, 1]), lldpdu);
    let plain = frame.encode();
    frame.vlan = Some(4);
    vec![plain, frame.encode()]
}
