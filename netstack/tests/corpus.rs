//! Captured packets of real machines and switches, read by us and by a reference dissector: every
//! field that both have must agree, and what the dissector calls malformed must not panic.

mod common;

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use common::{Compared, captures, hex_of, list, payload_of, udp_payload};
use netstack::dhcp::{
    BootAnswer, BootFile, ClientInfo, Config, Ingress, Message, Pool, Refused, Scope, Server,
    Subnet,
};
use netstack::lldp::{self, Frame, Lldpdu};
use netstack::tftp::{Mode, Packet};
use serde_json::Value;

/// The payload of frame `i`, from the file when it can be reached there, else as printed; both
/// must be the same bytes.
fn payload(
    frames: &[Vec<u8>],
    i: usize,
    packet: &Value,
    compared: &mut Compared,
    subject: &str,
) -> Option<Vec<u8>> {
    let (read, printed) = (udp_payload(&frames[i]), payload_of(packet));
    if let (Some(read), Some(printed)) = (&read, &printed) {
        // A frame cut at capture has fewer octets in the file than its headers say.
        compared.text(
            subject,
            "udp.payload",
            &hex::encode(read),
            &hex::encode(printed),
        );
    }
    read.or(printed)
}

#[test]
fn dhcp_agrees_with_the_dissector() {
    let Some(captures) = captures("dhcp") else {
        return;
    };
    let mut compared = Compared::default();
    let (mut replies, files) = (0, captures.len());
    for capture in captures {
        for (i, packet) in capture.packets.iter().enumerate() {
            let subject = format!("{} frame {}", capture.name, i + 1);
            let Some(theirs) = packet.get("dhcp") else {
                continue;
            };
            let Some(bytes) = payload(&capture.frames, i, packet, &mut compared, &subject) else {
                continue;
            };
            compared.frames += 1;
            replies += usize::from(served(&bytes));
            if capture.malformed[i] {
                let _ = Message::parse(&bytes);
                continue;
            }
            // A chain of layers when a message carries another, or its fields were dissected twice.
            for theirs in list(Some(theirs)).into_iter().take(1) {
                dhcp_message(&subject, &bytes, theirs, &mut compared);
            }
        }
    }
    println!("answered by our server: {replies}");
    compared.finish(files, 4000);
}

fn dhcp_message(subject: &str, bytes: &[u8], theirs: &Value, compared: &mut Compared) {
    let message = match Message::parse(bytes) {
        Ok(message) => message,
        Err(refused) => {
            // Plain BOOTP has no cookie; everything that has one must be read.
            let expected = matches!(refused, Refused::Cookie { .. } | Refused::TooShort { .. });
            if !expected || theirs.get("dhcp.cookie").is_some() {
                compared
                    .differ
                    .push(format!("{subject}: refused: {refused}"));
            }
            return;
        }
    };
    let mut field =
        |name: &str, ours: String| compared.field(subject, name, ours, theirs.get(name));
    field("dhcp.type", message.op.to_string());
    field("dhcp.hw.type", format!("{:#04x}", message.htype));
    field("dhcp.hw.len", message.hlen.to_string());
    field("dhcp.hops", message.hops.to_string());
    field("dhcp.id", format!("{:#010x}", message.xid));
    field("dhcp.secs", message.secs.to_string());
    field("dhcp.flags", format!("{:#06x}", message.flags));
    field("dhcp.ip.client", message.ciaddr.to_string());
    field("dhcp.ip.your", message.yiaddr.to_string());
    field("dhcp.ip.server", message.siaddr.to_string());
    field("dhcp.ip.relay", message.giaddr.to_string());
    let octets: Vec<String> = message.chaddr[..6]
        .iter()
        .map(|o| format!("{o:02x}"))
        .collect();
    field("dhcp.hw.mac_addr", octets.join(":"));
    // A field that holds options (52) is not shown as text by the dissector.
    for (name, ours) in [
        ("dhcp.server", &message.sname),
        ("dhcp.file", &message.file),
    ] {
        if theirs
            .get(name)
            .and_then(Value::as_str)
            .is_some_and(|text| !text.is_empty())
        {
            field(name, String::from_utf8_lossy(ours).into_owned());
        }
    }
    let types = list(theirs.get("dhcp.option.type"));
    let trees = list(theirs.get("dhcp.option.type_tree"));
    let mut expected: BTreeMap<u8, Option<Vec<u8>>> = BTreeMap::new();
    for (code, tree) in types.iter().zip(&trees) {
        if tree.get("dhcp.option.end").is_some() {
            continue;
        }
        let code: u8 = code
            .as_str()
            .and_then(|c| c.parse().ok())
            .expect("an option code");
        let len = tree["dhcp.option.length"].as_str().unwrap_or_default();
        let value = match tree.get("dhcp.option.value") {
            Some(value) => hex_of(value),
            None if len == "0" => Some(Vec::new()),
            None => None,
        };
        let joined = expected.entry(code).or_insert_with(|| Some(Vec::new()));
        *joined = joined.take().zip(value).map(|(mut joined, value)| {
            joined.extend(value);
            joined
        });
    }
    for (code, value) in &expected {
        let Some(value) = value else { continue };
        let ours = message
            .options
            .get(*code)
            .map_or("absent".into(), hex::encode);
        compared.text(
            subject,
            &format!("option {code}"),
            &ours,
            &hex::encode(value),
        );
    }
    for (code, _) in message.options.iter() {
        let known = expected.contains_key(&code);
        compared.text(
            subject,
            &format!("option {code}"),
            "present",
            if known { "present" } else { "absent" },
        );
    }
    client_info(subject, bytes, &types, &trees, compared);
}

/// What the server makes of the options, against the dissector's reading of each.
fn client_info(
    subject: &str,
    bytes: &[u8],
    types: &[&Value],
    trees: &[&Value],
    compared: &mut Compared,
) {
    let Ok(client) = ClientInfo::parse(bytes) else {
        return;
    };
    let mut field = |code: &str, name: &str, ours: Option<String>| {
        let found = types
            .iter()
            .zip(trees)
            .find(|(c, _)| c.as_str() == Some(code));
        if let (Some((_, tree)), Some(ours)) = (found, ours) {
            compared.field(subject, name, ours, tree.get(name));
        }
    };
    field(
        "50",
        "dhcp.option.requested_ip_address",
        client.requested_addr.map(|a| a.to_string()),
    );
    field(
        "54",
        "dhcp.option.dhcp_server_id",
        client.server_id.map(|a| a.to_string()),
    );
    field(
        "57",
        "dhcp.option.dhcp_max_message_size",
        client.max_message_len.map(|v| v.to_string()),
    );
    field(
        "60",
        "dhcp.option.vendor_class_id",
        client.vendor_class.as_deref().map(text),
    );
    field(
        "12",
        "dhcp.option.hostname",
        client.host_name.as_deref().map(text),
    );
    field(
        "93",
        "dhcp.option.client_system_architecture",
        client.arch.map(|v| v.to_string()),
    );
    field(
        "94",
        "dhcp.client_network_id_major",
        client.ndi.map(|[_, major, _]| major.to_string()),
    );
    field(
        "94",
        "dhcp.client_network_id_minor",
        client.ndi.map(|[_, _, minor]| minor.to_string()),
    );
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

/// Whether a server that gives everybody a file answers this message. Must not panic.
fn served(bytes: &[u8]) -> bool {
    struct All;
    impl BootAnswer for All {
        fn boot(&self, client: &ClientInfo) -> BootFile {
            match client.is_http_client || client.is_ipxe {
                true => BootFile::Url("http://10.77.0.1/x".into()),
                false => BootFile::File {
                    next_server: [10, 77, 0, 1].into(),
                    name: "x.efi".into(),
                },
            }
        }
    }
    let subnet = Subnet::new([10, 77, 0, 0].into(), 16).expect("a prefix");
    let pool = Pool {
        start: [10, 77, 1, 0].into(),
        end: [10, 77, 1, 99].into(),
    };
    let mut server = Server::new(Config::single(Scope::new(subnet, pool, 600)));
    let source = SocketAddrV4::new([0, 0, 0, 0].into(), 68);
    let ingress = Ingress {
        server_addr: [10, 77, 0, 1].into(),
        source,
        iface: "prov0".into(),
    };
    let outcome = server.handle(0, bytes, &ingress, &All);
    if let Some(refused) = &outcome.refused {
        assert!(!refused.explain().next.is_empty());
    }
    outcome.reply.is_some()
}

#[test]
fn tftp_agrees_with_the_dissector() {
    let Some(captures) = captures("tftp") else {
        return;
    };
    let mut compared = Compared::default();
    let files = captures.len();
    for capture in captures {
        for (i, packet) in capture.packets.iter().enumerate() {
            let subject = format!("{} frame {}", capture.name, i + 1);
            let Some(theirs) = packet.get("tftp") else {
                continue;
            };
            let Some(bytes) = payload(&capture.frames, i, packet, &mut compared, &subject) else {
                continue;
            };
            compared.frames += 1;
            tftp_packet(
                &subject,
                &bytes,
                theirs,
                capture.malformed[i],
                &mut compared,
            );
        }
    }
    compared.finish(files, 300);
}

fn tftp_packet(
    subject: &str,
    bytes: &[u8],
    theirs: &Value,
    malformed: bool,
    compared: &mut Compared,
) {
    let opcode = theirs["tftp.opcode"].as_str().unwrap_or_default();
    let mut field =
        |name: &str, ours: String| compared.field(subject, name, ours, theirs.get(name));
    let options = match Packet::parse(bytes) {
        Ok(Packet::ReadRequest(request)) => {
            field("tftp.opcode", "1".into());
            field("tftp.source_file", request.filename.clone());
            let mode = match request.mode {
                Mode::Octet => "octet",
                Mode::Netascii => "netascii",
            };
            field("tftp.type", mode.into());
            request.options
        }
        Ok(Packet::WriteRequest(request)) => {
            field("tftp.opcode", "2".into());
            field("tftp.destination_file", request.filename.clone());
            request.options
        }
        Ok(Packet::Data { block, data }) => {
            field("tftp.opcode", "3".into());
            field("tftp.block", block.to_string());
            assert_eq!(data.len() + 4, bytes.len());
            Vec::new()
        }
        Ok(Packet::Ack { block }) => {
            field("tftp.opcode", "4".into());
            field("tftp.block", block.to_string());
            Vec::new()
        }
        Ok(Packet::Error(error)) => {
            field("tftp.opcode", "5".into());
            field("tftp.error.code", error.code.to_wire().to_string());
            field("tftp.error.message", error.message);
            Vec::new()
        }
        Ok(Packet::OptionAck { options }) => {
            field("tftp.opcode", "6".into());
            options
        }
        Err(error) => {
            // The dissector shows requests without a file name or with a cut one; we refuse them.
            let no_name = theirs.get("tftp.source_file").is_none_or(|name| name == "");
            assert!(
                malformed || (opcode == "1" && no_name),
                "{subject}: {error}"
            );
            return;
        }
    };
    let entries = theirs.as_object().into_iter().flatten();
    let entries = entries
        .filter(|(key, _)| key.starts_with("Option: "))
        .flat_map(|(_, v)| list(Some(v)));
    let theirs: BTreeMap<String, String> = entries
        .map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            (
                text("tftp.option.name").to_lowercase(),
                text("tftp.option.value"),
            )
        })
        .collect();
    let ours: BTreeMap<String, String> = options.into_iter().collect();
    compared.text(
        subject,
        "options",
        &format!("{ours:?}"),
        &format!("{theirs:?}"),
    );
}

#[test]
fn lldp_agrees_with_the_dissector() {
    let Some(captures) = captures("lldp") else {
        return;
    };
    let mut compared = Compared::default();
    let (mut refused, files) = (Vec::new(), captures.len());
    for capture in captures {
        for (i, packet) in capture.packets.iter().enumerate() {
            let subject = format!("{} frame {}", capture.name, i + 1);
            compared.frames += 1;
            let Some(theirs) = packet.get("lldp") else {
                assert!(
                    Frame::parse(&capture.frames[i]).is_err(),
                    "{subject} is no LLDP"
                );
                continue;
            };
            match Frame::parse(&capture.frames[i]) {
                Ok(frame) => {
                    compared.field(
                        &subject,
                        "eth.src",
                        frame.source,
                        packet["eth"].get("eth.src"),
                    );
                    compared.field(
                        &subject,
                        "eth.dst",
                        frame.destination,
                        packet["eth"].get("eth.dst"),
                    );
                    let malformed = capture.malformed[i];
                    lldpdu(&subject, &frame.lldpdu, theirs, malformed, &mut compared);
                }
                Err(error) => {
                    // Only what the dissector finds fault with as well.
                    let complains =
                        format!("{packet}").contains("_ws.expert") || capture.malformed[i];
                    assert!(complains, "{subject}: {error}");
                    refused.push(format!("{subject}: {error}"));
                }
            }
        }
    }
    println!(
        "refused, as the dissector complains too:\n  {}",
        refused.join("\n  ")
    );
    compared.finish(files, 120);
}

fn lldpdu(subject: &str, ours: &Lldpdu, theirs: &Value, malformed: bool, compared: &mut Compared) {
    let tlvs: Vec<&Value> = theirs
        .as_object()
        .into_iter()
        .flatten()
        .flat_map(|(_, v)| list(Some(v)))
        .collect();
    let of = |kind: &'static str| {
        tlvs.iter()
            .filter(move |t| t["lldp.tlv.type"] == kind)
            .copied()
    };
    let first = |kind: &'static str| of(kind).next();
    let mut field = |kind: &'static str, name: &str, value: String| {
        compared.field(
            subject,
            name,
            value,
            first(kind).and_then(|tlv| tlv.get(name)),
        );
    };
    let id = |id: &lldp::Id| id.to_string();
    field(
        "1",
        "lldp.chassis.subtype",
        ours.chassis.kind.chassis_subtype().to_string(),
    );
    field("1", "lldp.chassis.id.mac", id(&ours.chassis));
    field("1", "lldp.chassis.id.ip4", id(&ours.chassis));
    field(
        "2",
        "lldp.port.subtype",
        ours.port.kind.port_subtype().to_string(),
    );
    field("2", "lldp.port.id.mac", id(&ours.port));
    field("2", "lldp.port.id", id(&ours.port));
    field("3", "lldp.time_to_live", ours.ttl_secs.to_string());
    field(
        "4",
        "lldp.port.desc",
        ours.port_description.clone().unwrap_or_default(),
    );
    field(
        "5",
        "lldp.tlv.system.name",
        ours.system_name.clone().unwrap_or_default(),
    );
    field(
        "6",
        "lldp.tlv.system.desc",
        ours.system_description.clone().unwrap_or_default(),
    );
    let capabilities = ours.capabilities.unwrap_or(lldp::tlv::Capabilities {
        supported: 0,
        enabled: 0,
    });
    field(
        "7",
        "lldp.tlv.system_cap",
        format!("{:#06x}", capabilities.supported),
    );
    field(
        "7",
        "lldp.tlv.enable_system_cap",
        format!("{:#06x}", capabilities.enabled),
    );
    let management: Vec<&Value> = of("8").collect();
    compared.text(
        subject,
        "management addresses",
        &ours.management.len().to_string(),
        &management.len().to_string(),
    );
    for (ours, theirs) in ours.management.iter().zip(&management) {
        let ip = ours.ip().map(|ip| ip.to_string()).unwrap_or_default();
        compared.field(
            subject,
            "lldp.mgn.addr.ip4",
            &ip,
            theirs.get("lldp.mgn.addr.ip4"),
        );
        compared.field(
            subject,
            "lldp.mgn.addr.ip6",
            &ip,
            theirs.get("lldp.mgn.addr.ip6"),
        );
        if let Some(octets) = theirs.get("lldp.mgn.addr.hex").and_then(hex_of) {
            compared.text(
                subject,
                "lldp.mgn.addr.hex",
                &hex::encode(&ours.addr),
                &hex::encode(octets),
            );
        }
        let mut field =
            |name: &str, value: String| compared.field(subject, name, value, theirs.get(name));
        field("lldp.mgn.address.subtype", ours.family.to_string());
        field("lldp.mgn.interface.subtype", ours.numbering.to_string());
        field("lldp.mgn.interface.number", ours.interface.to_string());
        field("lldp.mgn.obj.len", ours.oid.len().to_string());
    }
    if malformed {
        // The dissector gives up inside a TLV; we read on behind it.
        return;
    }
    let organisation: Vec<&Value> = of("127").collect();
    let read = ours.organisation.len() + ours.vlan_names.len() + usize::from(ours.pvid.is_some());
    compared.text(
        subject,
        "organisational TLVs",
        &read.to_string(),
        &organisation.len().to_string(),
    );
    let pvid = organisation
        .iter()
        .find_map(|tlv| tlv.get("lldp.ieee.802_1.port_vlan.id"));
    compared.field(subject, "pvid", ours.pvid.unwrap_or_default(), pvid);
    let names: Vec<&str> = organisation
        .iter()
        .filter_map(|tlv| tlv.get("lldp.ieee.802_1.vlan.name")?.as_str())
        .collect();
    let read: Vec<&str> = ours
        .vlan_names
        .iter()
        .map(|(_, name)| name.as_str())
        .collect();
    compared.text(subject, "VLAN names", &read.join(" "), &names.join(" "));
}
