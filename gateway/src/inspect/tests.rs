//! Lines of hand-made captures, and the documented names against those of the lines.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

/// A pcapng-free, plain pcap of Ethernet frames.
fn pcap(link: u8, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    out.extend_from_slice(&[0, 4, 0, 0, 0, 0, 0, link]);
    for frame in frames {
        let len = (frame.len() as u32).to_be_bytes();
        out.extend_from_slice(&[0, 0, 0, 7, 0, 0, 0, 9]);
        out.extend_from_slice(&len);
        out.extend_from_slice(&len);
        out.extend_from_slice(frame);
    }
    out
}

fn lines(protocol: Protocol, file: &[u8]) -> (Vec<Value>, Result<(), CaptureError>) {
    let mut lines = Vec::new();
    let result = inspect(protocol, file, &mut |line| {
        lines.push(serde_json::from_str(&line).unwrap());
        true
    });
    (lines, result)
}

fn udp(from: ([u8; 4], u16), to: ([u8; 4], u16), payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff; 6];
    out.extend_from_slice(&[2, 0, 0, 0, 0, 1, 0x81, 0x00, 0, 42, 0x08, 0x00, 0x45, 0]);
    out.extend_from_slice(&(payload.len() as u16 + 28).to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, 0, 64, 17, 0, 0]);
    out.extend_from_slice(&from.0);
    out.extend_from_slice(&to.0);
    out.extend_from_slice(&from.1.to_be_bytes());
    out.extend_from_slice(&to.1.to_be_bytes());
    out.extend_from_slice(&(payload.len() as u16 + 8).to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(payload);
    out
}

/// Codes and values.
type Options<'a> = &'a [(u8, &'a [u8])];

/// A message of 02:00:00:00:00:01 with these options.
fn dhcp_payload(op: u8, options: Options<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 240];
    bytes[..8].copy_from_slice(&[op, 1, 6, 1, 0xde, 0xad, 0xbe, 0xef]);
    bytes[10] = 0x80;
    bytes[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    bytes[236..].copy_from_slice(&[99, 130, 83, 99]);
    for (code, value) in options {
        bytes.extend_from_slice(&[*code, value.len() as u8]);
        bytes.extend_from_slice(value);
    }
    bytes.push(255);
    bytes
}

fn dhcp(payload: &[u8]) -> Value {
    let frame = udp(([0; 4], 68), ([255; 4], 67), payload);
    let (mut lines, result) = lines(Protocol::Dhcp, &pcap(1, &[frame]));
    assert_eq!(result, Ok(()));
    lines.remove(0)
}

const DISCOVER: Options<'_> = &[
    (53, &[1]),
    (55, &[1, 3, 66, 67]),
    (60, b"PXEClient:Arch:00007:UNDI:003016"),
    (77, b"\x04iPXE\x03\xff\xfe\xfd"),
    (82, b"\x01\x04Eth7\x02\x03\x00\x01\x02"),
    (93, &[0, 7]),
    (
        97,
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
    ),
];

#[test]
fn a_dhcpdiscover_in_full() {
    let line = dhcp(&dhcp_payload(1, DISCOVER));
    for (pointer, want) in [
        ("/frame", Value::from(1)),
        ("/ok", true.into()),
        ("/error", Value::Null),
        ("/time", "7.000009000".into()),
        ("/source", "0.0.0.0:68".into()),
        ("/destination", "255.255.255.255:67".into()),
        ("/vlan", 42.into()),
        ("/op", 1.into()),
        ("/message_type", 1.into()),
        ("/message_type_name", "DHCPDISCOVER".into()),
        ("/hops", 1.into()),
        ("/xid", "0xdeadbeef".into()),
        ("/broadcast", true.into()),
        ("/chaddr", "02:00:00:00:00:01".into()),
        ("/giaddr", "0.0.0.0".into()),
        ("/arch", 7.into()),
        ("/vendor_class", "PXEClient:Arch:00007:UNDI:003016".into()),
        ("/user_class", serde_json::json!(["iPXE", "fffefd"])),
        ("/uuid", "04030201-0605-0807-090a-0b0c0d0e0f10".into()),
        ("/parameter_list", serde_json::json!([1, 3, 66, 67])),
        ("/options/93", "0007".into()),
        ("/relay/circuit_id", "45746837".into()),
        ("/relay/circuit_id_text", "Eth7".into()),
        ("/relay/remote_id", "000102".into()),
        ("/relay/remote_id_text", Value::Null),
        ("/would_reply", true.into()),
        ("/reply/message_type_name", "DHCPOFFER".into()),
        ("/refused", Value::Null),
    ] {
        assert_eq!(line.pointer(pointer), Some(&want), "{pointer} of {line}");
    }
}

#[test]
fn what_the_permissive_server_would_reply() {
    let server: (u8, &[u8]) = (54, &[192, 0, 2, 1]);
    let wanted: (u8, &[u8]) = (50, &[192, 0, 2, 55]);
    let table: [(u8, Options<'_>, Option<&str>, Option<&str>); 8] = [
        (1, &[(53, &[1])], Some("DHCPOFFER"), None),
        (1, &[(53, &[3]), server, wanted], Some("DHCPACK"), None),
        (1, &[(53, &[3]), wanted], Some("DHCPACK"), None),
        (1, &[(53, &[3])], None, Some("dhcp.no_address")),
        (
            1,
            &[(53, &[4]), server, wanted],
            None,
            Some("dhcp.not_holder"),
        ),
        (1, &[(53, &[99])], None, Some("dhcp.message_type")),
        (2, &[(53, &[5])], None, Some("dhcp.not_a_request")),
        (2, &[(53, &[2])], None, Some("dhcp.not_a_request")),
    ];
    for (op, options, reply, refused) in table {
        let line = dhcp(&dhcp_payload(op, options));
        assert_eq!(line["ok"], true, "{line}");
        assert_eq!(line["would_reply"], reply.is_some(), "{line}");
        assert_eq!(line["reply"]["message_type_name"].as_str(), reply, "{line}");
        assert_eq!(line["refused"]["code"].as_str(), refused, "{line}");
        assert!(refused.is_none() || line["refused"]["next"].is_string());
    }
}

#[test]
fn broken_dhcp_is_read_as_far_as_it_goes() {
    let mut truncated = dhcp_payload(1, &[(53, &[1]), (12, b"host")]);
    truncated.truncate(truncated.len() - 3);
    let line = dhcp(&truncated);
    assert_eq!(line["error"]["code"], "dhcp.option_truncated", "{line}");
    assert_eq!(
        (&line["ok"], &line["message_type"]),
        (&false.into(), &1.into())
    );
    assert_eq!(
        line["would_reply"], true,
        "a bad option costs itself: {line}"
    );

    let mut other_cookie = dhcp_payload(1, &[(53, &[1])]);
    other_cookie[236] = 1;
    let line = dhcp(&other_cookie);
    assert_eq!(line["error"]["code"], "dhcp.cookie");
    assert_eq!(line["chaddr"], "02:00:00:00:00:01", "the header is shown");

    let mut bootp = dhcp_payload(1, &[]);
    bootp[236..].fill(0);
    bootp.resize(300, 0);
    let line = dhcp(&bootp);
    assert_eq!(
        (&line["ok"], &line["op"]),
        (&true.into(), &1.into()),
        "RFC 951 has no cookie: {line}"
    );

    let line = dhcp(&[1; 100]);
    assert_eq!(line["error"]["code"], "dhcp.too_short");
    assert_eq!(line["op"], Value::Null);
}

#[test]
fn a_tftp_transfer_on_every_port() {
    let (client, server) = ([10, 0, 0, 2], [10, 0, 0, 1]);
    let elsewhere = [10, 0, 0, 3];
    let frames = [
        udp((client, 2000), (server, 40_000), b"\0\x04\0\0"), // before it began
        udp(
            (client, 2000),
            (server, 69),
            b"\0\x01ipxe.efi\0OCTET\0BLKSIZE\x001468\0",
        ),
        udp((server, 40_000), (client, 2000), b"\0\x06blksize\x001468\0"),
        udp((client, 2000), (server, 40_000), b"\0\x04\0\0"),
        udp((server, 40_000), (client, 2000), b"\0\x03\0\x01data"),
        udp((elsewhere, 40_000), (client, 2000), b"\0\x03\0\x01data"),
        udp(
            (server, 40_000),
            (client, 2000),
            b"\0\x05\0\x01File not found\0",
        ),
        udp((client, 2000), (server, 69), b"\0\x09"),
        udp((client, 2000), (server, 69), b"\0\x01ipxe.efi"),
    ];
    let (lines, result) = lines(Protocol::Tftp, &pcap(1, &frames));
    assert_eq!(result, Ok(()));
    let ok: Vec<_> = lines.iter().map(|line| line["ok"] == true).collect();
    assert_eq!(
        ok,
        [false, true, true, true, true, false, true, false, false]
    );
    assert_eq!(lines[0]["error"]["code"], "tftp.not_tftp");
    assert_eq!(lines[1]["filename"], "ipxe.efi");
    assert_eq!(lines[1]["mode"], "OCTET");
    assert_eq!(lines[1]["options"], serde_json::json!({"blksize": "1468"}));
    assert_eq!(lines[2]["opcode_name"], "OACK");
    assert_eq!(
        (&lines[3]["opcode"], &lines[3]["block"]),
        (&4.into(), &0.into())
    );
    assert_eq!(
        (&lines[4]["block"], &lines[4]["data_len"]),
        (&1.into(), &4.into())
    );
    assert_eq!(
        lines[6]["error"]["code"], 1,
        "the peer's own error, and no fault of the frame"
    );
    assert_eq!(lines[6]["error"]["message"], "File not found");
    assert_eq!(
        (&lines[6]["error_code"], &lines[6]["error_message"]),
        (&1.into(), &"File not found".into())
    );
    assert_eq!(
        (&lines[7]["error"]["code"], &lines[7]["opcode"]),
        (&"tftp.opcode".into(), &9.into())
    );
    assert_eq!(
        (&lines[8]["error"]["code"], &lines[8]["opcode"]),
        (&"tftp.text".into(), &1.into())
    );
}

fn lldp(tlvs: &[u8]) -> Value {
    let mut frame = vec![0x01, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 7, 0x88, 0xcc];
    frame.extend_from_slice(tlvs);
    let (mut lines, result) = lines(Protocol::Lldp, &pcap(1, &[frame]));
    assert_eq!(result, Ok(()));
    lines.remove(0)
}

/// Chassis MAC, port `swp7`, TTL 120.
const MANDATORY: &[u8] = b"\x02\x07\x04\x44\x38\x39\0\0\x01\x04\x05\x05swp7\x06\x02\0\x78";

fn with(tlvs: &[u8]) -> Vec<u8> {
    [MANDATORY, tlvs].concat()
}

#[test]
fn an_lldp_frame_in_full() {
    let line = lldp(&with(
        b"\x0a\x02sw\x08\x03to \x0e\x04\0\x14\0\x04\
          \x10\x0c\x05\x01\x0a\0\0\x01\x02\0\0\0\x03\0\
          \x10\x0e\x07\x06\x02\0\0\0\0\x09\x01\0\0\0\0\0\
          \xfe\x06\0\x80\xc2\x01\0\x32\xfe\x08\0\x80\xc2\x03\0\x32\x01p\
          \xfe\x06\0\x12\x0f\x04\x05\xea\xfe\x05\0\x90\x69\x01\xaa\0\0",
    ));
    for (pointer, want) in [
        ("/ok", Value::from(true)),
        ("/source", "02:00:00:00:00:07".into()),
        ("/destination", "01:80:c2:00:00:0e".into()),
        ("/vlan", Value::Null),
        ("/chassis_id/subtype", 4.into()),
        ("/chassis_id/subtype_name", "mac_address".into()),
        ("/chassis_id/value", "44:38:39:00:00:01".into()),
        ("/port_id/subtype", 5.into()),
        ("/port_id/value", "swp7".into()),
        ("/port_id/hex", "73777037".into()),
        ("/ttl", 120.into()),
        ("/system_name", "sw".into()),
        ("/port_description", "to ".into()),
        ("/system_description", Value::Null),
        (
            "/capabilities/supported",
            serde_json::json!(["bridge", "router"]),
        ),
        ("/capabilities/enabled", serde_json::json!(["bridge"])),
        (
            "/management_addresses",
            serde_json::json!(["10.0.0.1", "02:00:00:00:00:09"]),
        ),
        ("/management/0/interface_number", 3.into()),
        ("/pvid", 50.into()),
        ("/vlan_names/0/name", "p".into()),
        ("/organisational/0/name", "dot3.max_frame_size".into()),
        ("/organisational/0/value/bytes", 1514.into()),
        ("/organisational/1/oui", "009069".into()),
        ("/organisational/1/hex", "aa".into()),
        ("/notes", serde_json::json!([])),
    ] {
        assert_eq!(line.pointer(pointer), Some(&want), "{pointer} of {line}");
    }
}

#[test]
fn broken_lldp_is_read_as_far_as_it_goes() {
    let bad_contents = lldp(&with(b"\x0e\x02\0\x14\x0a\x02sw\0\0"));
    assert_eq!(bad_contents["error"]["code"], "lldp.tlv_contents");
    assert_eq!(bad_contents["system_name"], "sw");
    let truncated = lldp(&with(b"\x0a\x20sw"));
    assert_eq!(truncated["error"]["code"], "lldp.tlv_truncated");
    assert_eq!(truncated["port_id"]["value"], "swp7");
    let no_end = lldp(MANDATORY);
    assert_eq!(
        (&no_end["ok"], &no_end["notes"][0]["code"]),
        (&true.into(), &"lldp.no_end".into())
    );
    let no_port = lldp(b"\x02\x07\x04\x44\x38\x39\0\0\x01\xfe\x04\0\x12\xbb\x01");
    assert_eq!(no_port["error"]["code"], "lldp.mandatory");
    assert_eq!(no_port["chassis_id"]["value"], "44:38:39:00:00:01");
    assert_eq!(no_port["port_id"], Value::Null);
}

#[test]
fn frames_of_another_kind_are_named() {
    let cdp = b"\x01\0\x0c\xcc\xcc\xcc\x02\0\0\0\0\x07\0\x10\xaa\xaa\x03\0\0\x0c\x20\0".to_vec();
    let mut fragment = udp(([10, 0, 0, 1], 69), ([10, 0, 0, 2], 2000), b"\0\x03\0\x01");
    fragment[18 + 6] = 0x20;
    let file = pcap(1, &[cdp, fragment]);
    let (lldp, _) = lines(Protocol::Lldp, &file);
    assert_eq!(lldp[0]["error"]["found"], "a CDP frame");
    assert_eq!(lldp[1]["error"]["code"], "lldp.not_lldp");
    let (tftp, _) = lines(Protocol::Tftp, &file);
    assert_eq!(tftp[0]["error"]["code"], "frame.not_ip");
    assert_eq!(
        tftp[1]["error"]["code"], "frame.fragment",
        "named, not misread"
    );
    let (other_link, _) = lines(Protocol::Dhcp, &pcap(105, &[vec![0; 40]]));
    assert_eq!(other_link[0]["error"]["code"], "frame.link_type");
}

/// A UDP datagram over IPv6, from a link-local address made of 02:00:00:00:00:09.
fn udp6(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x33, 0x33, 0, 1, 0, 2, 2, 0, 0, 0, 0, 9, 0x86, 0xdd];
    let len = (payload.len() as u16 + 8).to_be_bytes();
    out.extend_from_slice(&[0x60, 0, 0, 0, len[0], len[1], 17, 1]);
    out.extend_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 9]);
    out.extend_from_slice(&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2]);
    out.extend_from_slice(&from.to_be_bytes());
    out.extend_from_slice(&to.to_be_bytes());
    out.extend_from_slice(&len);
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(payload);
    out
}

/// A DHCPv6 message with these options.
fn dhcp6_payload(kind: u8, options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut out = vec![kind, 0xab, 0xcd, 0xef];
    for (code, value) in options {
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(&(value.len() as u16).to_be_bytes());
        out.extend_from_slice(value);
    }
    out
}

const SOLICIT6: &[(u16, &[u8])] = &[
    (
        1,
        &[0, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
    ),
    (3, &[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]),
    (3, &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]),
    (6, &[0, 59, 0, 23]),
    (8, &[0, 100]),
    (15, b"exr-config"),
    (16, b"\0\0\x01\x57\0\x21HTTPClient:Arch:00016:UNDI:003001"),
];

#[test]
fn a_relayed_solicit_in_full() {
    let mut relay = vec![12, 1];
    relay.extend_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    relay.extend_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 9]);
    let inner = dhcp6_payload(1, SOLICIT6);
    let options = dhcp6_payload(0, &[(18, b"Eth7"), (9, &inner)]);
    relay.extend_from_slice(&options[4..]);
    let (lines, result) = lines(Protocol::Dhcp6, &pcap(1, &[udp6(547, 547, &relay)]));
    assert_eq!(result, Ok(()));
    let line = &lines[0];
    for (pointer, want) in [
        ("/ok", Value::from(true)),
        ("/destination", "[ff02::1:2]:547".into()),
        ("/message_type_name", "SOLICIT".into()),
        ("/transaction_id", "0xabcdef".into()),
        (
            "/client_uuid",
            "01020304-0506-0708-090a-0b0c0d0e0f10".into(),
        ),
        ("/client_mac", "02:00:00:00:00:09".into()),
        ("/server_duid", Value::Null),
        ("/elapsed_ms", 1000.into()),
        ("/arch", 16.into()),
        ("/vendor_enterprise", 343.into()),
        ("/user_class", serde_json::json!(["exr-config"])),
        ("/requested_options", serde_json::json!([59, 23])),
        ("/identity_associations/1/iaid", "00000008".into()),
        (
            "/options/3",
            "000000070000000000000000,000000080000000000000000".into(),
        ),
        ("/relay/interface_id_text", "Eth7".into()),
        ("/relay/link_address", "2001:db8::1".into()),
        ("/relays/0/hop_count", 1.into()),
        ("/notes/0/code", "dhcp6.option_unframed".into()),
        ("/would_reply", true.into()),
        ("/reply/message_type_name", "ADVERTISE".into()),
        ("/refused", Value::Null),
    ] {
        assert_eq!(line.pointer(pointer), Some(&want), "{pointer}: {line}");
    }
    let url = line["reply"]["boot_file_url"].as_str().unwrap();
    assert!(url.starts_with("http://["), "{url}");
}

#[test]
fn what_is_no_dhcpv6_or_broken_has_a_code() {
    let cut = &dhcp6_payload(1, SOLICIT6)[..64];
    let frames = [
        udp6(546, 547, cut),
        udp6(546, 547, &[1, 2]),
        udp6(5000, 5001, &[1, 2, 3, 4]),
        udp(([0; 4], 68), ([255; 4], 67), &dhcp_payload(1, DISCOVER)),
    ];
    let (lines, _) = lines(Protocol::Dhcp6, &pcap(1, &frames));
    let codes: Vec<_> = lines
        .iter()
        .map(|line| line["error"]["code"].clone())
        .collect();
    assert_eq!(
        codes,
        [
            "dhcp6.option_truncated",
            "dhcp6.too_short",
            "dhcp6.not_dhcp6",
            "dhcp6.not_dhcp6"
        ]
    );
    assert_eq!(lines[0]["client_duid"].as_str().map(str::len), Some(36));
}

#[test]
fn lldp_over_a_cooked_capture() {
    let mut frame = vec![0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 7, 0, 0, 0x88, 0xcc];
    frame.extend_from_slice(&with(b"\0\0"));
    let (lines, _) = lines(Protocol::Lldp, &pcap(113, &[frame]));
    assert_eq!(
        (&lines[0]["ok"], &lines[0]["source"]),
        (&true.into(), &"02:00:00:00:00:07".into())
    );
}

#[test]
fn a_damaged_file_ends_with_its_damage() {
    let frame = udp(([0; 4], 68), ([255; 4], 67), &dhcp_payload(1, DISCOVER));
    let mut file = pcap(1, &[frame.clone(), frame]);
    file.pop();
    let (lines, result) = lines(Protocol::Dhcp, &file);
    assert_eq!(result.unwrap_err().code(), "capture.truncated");
    assert_eq!(lines.len(), 2);
    assert_eq!(
        (&lines[1]["frame"], &lines[1]["ok"]),
        (&2.into(), &false.into())
    );
    assert_eq!(lines[1]["error"]["code"], "capture.truncated");
}

#[test]
fn nobody_listens() {
    let frame = udp(([0; 4], 68), ([255; 4], 67), &dhcp_payload(1, DISCOVER));
    let mut count = 0;
    let result = inspect(Protocol::Dhcp, &pcap(1, &vec![frame; 5]), &mut |_| {
        count += 1;
        count < 2
    });
    assert_eq!((count, result), (2, Ok(())));
}

/// The names in one table of docs/INSPECT.md.
fn documented(heading: &str) -> BTreeSet<String> {
    let text = include_str!("../../../docs/INSPECT.md");
    let (_, section) = text
        .split_once(&format!("\n## {heading}\n"))
        .expect("a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split('`').next());
    names
        .map(|name| name.split(['{', '[']).next().unwrap_or(name).to_owned())
        .collect()
}

#[test]
fn the_documented_names_are_those_of_the_lines() {
    let frame = udp(([0; 4], 68), ([255; 4], 67), &dhcp_payload(1, DISCOVER));
    let file = pcap(1, &[frame]);
    let every = documented("Every line");
    assert!(
        every.contains("frame") && every.contains("error"),
        "{every:?}"
    );
    for (protocol, heading) in [
        (Protocol::Dhcp, "dhcp"),
        (Protocol::Dhcp6, "dhcp6"),
        (Protocol::Tftp, "tftp"),
        (Protocol::Lldp, "lldp"),
    ] {
        let (lines, _) = lines(protocol, &file);
        let names: BTreeSet<String> = lines[0].as_object().unwrap().keys().cloned().collect();
        let documented: BTreeSet<String> = every.union(&documented(heading)).cloned().collect();
        assert_eq!(names, documented, "{heading}");
    }
    let log = super::eventlog::inspect(&[], false).line;
    let log: Value = serde_json::from_str(&log).unwrap();
    let mut names: BTreeSet<String> = log.as_object().unwrap().keys().cloned().collect();
    assert!(names.insert("event_list".into()), "only with --events");
    assert_eq!(names, documented("eventlog"));
}
