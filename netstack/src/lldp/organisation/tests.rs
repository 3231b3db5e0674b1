//! Each subtype by the octets of its standard, and cut by one octet.

use super::*;
use dot1::{Application, Ets};
use dot3::{Power, PowerBt, PowerDll};
use med::{Coordinates, Inventory, Location};

fn tlv(oui: [u8; 3], subtype: u8, value: &[u8]) -> OrganisationTlv {
    OrganisationTlv {
        oui,
        subtype,
        value: value.to_vec(),
    }
}

/// Reads to the given, also when something is appended; refuses when an octet is missing.
#[track_caller]
fn reads(oui: [u8; 3], subtype: u8, value: &[u8], want: Organisational) {
    assert_eq!(tlv(oui, subtype, value).read(), Ok(Some(want)));
    let cut = tlv(oui, subtype, &value[..value.len() - 1]);
    assert_eq!(cut.read(), Err(BadContents), "cut: {cut:?}");
    assert_eq!(tlv(oui, subtype, &[]).read(), Err(BadContents));
}

#[test]
fn every_subtype_of_802_1() {
    let dot1 =
        |subtype, value: &[u8], want| reads(OUI_8021, subtype, value, Organisational::Dot1(want));
    dot1(1, &[0, 50], dot1::Tlv::PortVlan(50));
    for (flags, supported, enabled) in [
        (0x02, true, false),
        (0x06, true, true),
        (0x01, false, false),
    ] {
        let want = dot1::Tlv::PortAndProtocolVlan {
            supported,
            enabled,
            vlan: 258,
        };
        dot1(2, &[flags, 1, 2], want);
    }
    let name = dot1::Tlv::VlanName {
        vlan: 50,
        name: "prod-net".into(),
    };
    dot1(3, b"\x00\x32\x08prod-net", name);
    dot1(
        4,
        &[2, 0x88, 0x8e],
        dot1::Tlv::ProtocolIdentity(vec![0x88, 0x8e]),
    );
    dot1(5, &[1, 2, 3, 4], dot1::Tlv::VidUsageDigest(0x0102_0304));
    dot1(6, &[0x0f, 0xa0], dot1::Tlv::ManagementVlan(4000));
    let aggregation = LinkAggregation {
        capable: true,
        enabled: true,
        port_id: 1000,
    };
    dot1(
        7,
        &[3, 0, 0, 3, 0xe8],
        dot1::Tlv::LinkAggregation(aggregation),
    );
    let congestion = dot1::Tlv::CongestionNotification { cnpv: 8, ready: 0 };
    dot1(8, &[8, 0], congestion);
    let ets = Ets {
        willing: true,
        cbs: false,
        classes_max: 3,
        priorities: [0, 1, 2, 3, 4, 5, 6, 7],
        bandwidth: [50, 50, 0, 0, 0, 0, 0, 0],
        algorithm: [2, 2, 0, 0, 0, 0, 0, 0],
    };
    let octets = [
        &[0x83, 0x01, 0x23, 0x45, 0x67][..],
        &ets.bandwidth,
        &ets.algorithm,
    ]
    .concat();
    dot1(9, &octets, dot1::Tlv::EtsConfiguration(ets));
    dot1(10, &octets, dot1::Tlv::EtsRecommendation(ets));
    let pfc = dot1::Tlv::PriorityFlowControl {
        willing: false,
        mbc: true,
        classes_max: 8,
        enabled: 0x08,
    };
    dot1(11, &[0x48, 0x08], pfc);
    let iscsi = Application {
        priority: 4,
        selector: 2,
        protocol: 3260,
    };
    let table = dot1::Tlv::ApplicationPriority(vec![iscsi]);
    dot1(12, &[0, 0x82, 0x0c, 0xbc], table);
}

#[test]
fn every_subtype_of_802_3() {
    let dot3 =
        |subtype, value: &[u8], want| reads(OUI_8023, subtype, value, Organisational::Dot3(want));
    let mac_phy = dot3::Tlv::MacPhy {
        autoneg_supported: true,
        autoneg_enabled: true,
        advertised: 0x8000,
        mau_type: 30,
    };
    dot3(1, &[3, 0x80, 0, 0, 0x1e], mac_phy);
    let aggregation = LinkAggregation {
        capable: true,
        enabled: false,
        port_id: 0,
    };
    dot3(3, &[1, 0, 0, 0, 0], dot3::Tlv::LinkAggregation(aggregation));
    dot3(4, &[0x05, 0xea], dot3::Tlv::MaxFrameSize(1514));
    let eee = dot3::Tlv::Eee {
        transmit_us: 1,
        receive_us: 2,
        fallback_us: 3,
        echo_transmit_us: 4,
        echo_receive_us: 5,
    };
    dot3(5, &[0, 1, 0, 2, 0, 3, 0, 4, 0, 5], eee);
}

/// The octets of a Catalyst 9300 with 802.3bt: 3, then 8, then 25 of them.
#[test]
fn power_via_mdi_in_its_three_lengths() {
    let octets = [
        0x0f, 1, 5, // 802.3af
        0x13, 0x02, 0xc6, 0x01, 0xfe, // 802.3at
        0x01, 0x63, 0x01, 0x63, 0, 0xff, 0, 0xff, 0xce, 0x4f, 0, 0x01, 0xfe, 0, 0, 0,
        0, // 802.3bt
    ];
    let mut want = Power {
        is_pse: true,
        supported: true,
        enabled: true,
        pairs_selectable: true,
        pairs: 1,
        class: 5,
        dll: None,
        bt: None,
    };
    let read = |len: usize| tlv(OUI_8023, 2, &octets[..len]).read();
    let power = |want: &Power| Ok(Some(Organisational::Dot3(dot3::Tlv::Power(want.clone()))));
    assert_eq!(read(2), Err(BadContents));
    assert_eq!(read(3), power(&want));
    want.dll = Some(PowerDll {
        kind: 0,
        source: 1,
        priority: 3,
        pd_requested_dw: 710,
        pse_allocated_dw: 510,
    });
    assert_eq!(read(8), power(&want));
    assert_eq!(read(24), power(&want), "half an extension is none");
    want.bt = Some(PowerBt {
        ds_pd_requested_dw: [355, 355],
        ds_pse_allocated_dw: [255, 255],
        pse_status: 3,
        pd_status: 0,
        pairs: 3,
        ds_class: [4, 4],
        class: 15,
        kind: 0,
        pd_load_isolated: false,
        pse_max_dw: 510,
        autoclass_supported: false,
        autoclass_completed: false,
        autoclass_requested: false,
        power_down: 0,
        power_down_secs: 0,
    });
    assert_eq!(read(25), power(&want));
    let mut down = octets;
    down[18] = 0x0b;
    down[21] = 0x05;
    down[22..].copy_from_slice(&[0x1d << 2 | 0x02, 0x01, 0x00]);
    let Ok(Some(Organisational::Dot3(dot3::Tlv::Power(power)))) = tlv(OUI_8023, 2, &down).read()
    else {
        panic!("no power");
    };
    let bt = power.bt.unwrap();
    assert_eq!((bt.kind, bt.pd_load_isolated), (5, true));
    assert_eq!(
        (
            bt.autoclass_supported,
            bt.autoclass_completed,
            bt.autoclass_requested
        ),
        (true, false, true)
    );
    assert_eq!((bt.power_down, bt.power_down_secs), (0x1d, 0x2_0100));
}

#[test]
fn every_subtype_of_lldp_med() {
    let med =
        |subtype, value: &[u8], want| reads(OUI_MED, subtype, value, Organisational::Med(want));
    let capabilities = med::Tlv::Capabilities {
        capabilities: 0x2f,
        class: 4,
    };
    med(1, &[0, 0x2f, 4], capabilities);
    let policy = med::Tlv::NetworkPolicy {
        application: 1,
        unknown: false,
        tagged: true,
        vlan: 4000,
        l2_priority: 5,
        dscp: 46,
    };
    // T, VLAN 0xfa0, priority 5, DSCP 46.
    med(2, &[1, 0x5f, 0x41, 0x6e], policy);
    let power = med::Tlv::ExtendedPower {
        kind: 1,
        source: 2,
        priority: 3,
        power_dw: 65,
    };
    med(4, &[0x63, 0, 65], power);
    let elin = Location::Elin("0123456789".into());
    med(3, b"\x030123456789", med::Tlv::Location(elin));
    let civic = Location::Civic {
        what: 2,
        country: "DE".into(),
        elements: vec![(3, "Berlin".into()), (25, String::new())],
    };
    med(
        3,
        b"\x02\x0d\x02DE\x03\x06Berlin\x19\x00",
        med::Tlv::Location(civic),
    );
    // 47.5 N, 8.25 E, 400.5 m, WGS 84.
    let place = Coordinates {
        latitude_resolution: 34,
        latitude: 47 << 25 | 1 << 24,
        longitude_resolution: 34,
        longitude: 8 << 25 | 1 << 23,
        altitude_type: 1,
        altitude_resolution: 30,
        altitude: 400 << 8 | 128,
        datum: 1,
    };
    let bits = (34u128 << 122)
        | (place.latitude as u128) << 88
        | 34u128 << 82
        | (place.longitude as u128) << 48
        | 1u128 << 44
        | 30u128 << 38
        | (place.altitude as u128) << 8
        | 1;
    let octets = [&[1][..], &bits.to_be_bytes()].concat();
    med(3, &octets, med::Tlv::Location(Location::Coordinates(place)));
}

#[test]
fn south_and_west_are_negative() {
    let bits =
        (((-1i64 as u128) & 0x3_ffff_ffff) << 88) | (((-2i64 as u128) & 0x3_ffff_ffff) << 48);
    let octets = [&[1][..], &bits.to_be_bytes()].concat();
    let Ok(Some(Organisational::Med(med::Tlv::Location(Location::Coordinates(place))))) =
        tlv(OUI_MED, 3, &octets).read()
    else {
        panic!("no coordinates");
    };
    assert_eq!((place.latitude, place.longitude), (-1, -2));
}

#[test]
fn inventory_strings_padded_and_bounded() {
    let read = |subtype, value: &[u8]| tlv(OUI_MED, subtype, value).read();
    for (subtype, which) in [
        (5, Inventory::HardwareRevision),
        (6, Inventory::FirmwareRevision),
        (7, Inventory::SoftwareRevision),
        (8, Inventory::SerialNumber),
        (9, Inventory::ManufacturerName),
        (10, Inventory::ModelName),
        (11, Inventory::AssetId),
    ] {
        let mut padded = b"V02".to_vec();
        padded.resize(32, 0);
        let want = Organisational::Med(med::Tlv::Inventory(which, "V02".into()));
        assert_eq!(read(subtype, &padded), Ok(Some(want)));
        let empty = Organisational::Med(med::Tlv::Inventory(which, String::new()));
        assert_eq!(
            read(subtype, &[]),
            Ok(Some(empty)),
            "an empty string is one"
        );
        assert_eq!(read(subtype, &[b'x'; 33]), Err(BadContents));
    }
}

#[test]
fn rejects_locations_that_do_not_add_up() {
    let read = |value: &[u8]| tlv(OUI_MED, 3, value).read();
    for value in [
        &b"\x02\x02\x41\x02\x03"[..], // shorter than a country
        b"\x02\x09\x02DE\x03\x06Ber", // past the end
        b"\x02\x07\x02DE\x03\x06Be",  // an element past the length
        b"\x02\x04\x02DE\x03",        // half an element
        b"\x03123456789",             // a short ELIN
    ] {
        assert_eq!(read(value), Err(BadContents), "{value:02x?}");
    }
    let other = Location::Other {
        format: 9,
        data: vec![1],
    };
    assert_eq!(
        read(&[9, 1]),
        Ok(Some(Organisational::Med(med::Tlv::Location(other))))
    );
}

#[test]
fn unknown_organisations_and_subtypes_are_left_alone() {
    for (oui, subtype) in [
        ([0x00, 0x90, 0x69], 1),
        (OUI_8021, 0),
        (OUI_8021, 200),
        (OUI_8023, 99),
        (OUI_MED, 12),
    ] {
        assert_eq!(tlv(oui, subtype, &[]).read(), Ok(None));
    }
}

proptest::proptest! {
    #[test]
    fn never_panics(oui in 0usize..3, subtype: u8, value in proptest::collection::vec(0u8.., 0..512)) {
        let oui = [OUI_8021, OUI_8023, OUI_MED][oui];
        let _ = tlv(oui, subtype, &value).read();
    }
}
