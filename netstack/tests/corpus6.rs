//! Captured DHCPv6 messages, read by us and by a reference dissector: every field that both have
//! must agree. The dissector's malformed ones are compared as well, as far as it went.

mod common;

use std::net::{Ipv6Addr, SocketAddrV6};

use common::{Compared, captures, list, payload_of, udp_payload};
use netstack::dhcp6::{
    BootAnswer, BootFile, ClientInfo, Config, Duid, Ingress, Message, Options, Pool, Server,
    user_class, vendor_class,
};
use netstack::{Ipv6Prefix, MacAddr};
use serde_json::Value;

#[test]
fn dhcp6_agrees_with_the_dissector() {
    let Some(captures) = captures("dhcp") else {
        return;
    };
    let mut compared = Compared::default();
    let (mut files, mut answered, mut requests) = (0, 0, 0);
    for capture in captures {
        let mut any = false;
        for (i, packet) in capture.packets.iter().enumerate() {
            let Some(theirs) = packet.get("dhcpv6") else {
                continue;
            };
            let subject = format!("{} frame {}", capture.name, i + 1);
            let (read, printed) = (udp_payload(&capture.frames[i]), payload_of(packet));
            let bytes = read
                .or(printed)
                .unwrap_or_else(|| panic!("{subject}: no payload"));
            any = true;
            compared.frames += 1;
            let message = Message::parse(&bytes).unwrap_or_else(|e| panic!("{subject}: {e}"));
            message_agrees(&subject, &message, theirs, &mut compared);
            if matches!(message.msg_type, 1 | 3 | 4 | 5 | 6 | 8 | 9 | 11) {
                requests += 1;
                answered += usize::from(served(&subject, &bytes));
            }
        }
        files += usize::from(any);
    }
    println!("requests {requests}, served when they name us and our link: {answered}");
    assert!(
        files == 0 || answered > 0,
        "our server answers none of them"
    );
    compared.finish(files, 250);
}

fn message_agrees(subject: &str, message: &Message, theirs: &Value, compared: &mut Compared) {
    let Some(relay) = message.relays.first() else {
        compared.field(
            subject,
            "msgtype",
            message.msg_type,
            theirs.get("dhcpv6.msgtype"),
        );
        let xid = format!("{:#08x}", message.xid);
        compared.field(subject, "xid", xid, theirs.get("dhcpv6.xid"));
        options_agree(subject, &message.options, theirs, compared);
        return;
    };
    let mut field = |name: &str, ours: String| {
        compared.field(subject, name, ours, theirs.get(name));
    };
    field("dhcpv6.msgtype", relay.msg_type.to_string());
    field("dhcpv6.hopcount", relay.hop_count.to_string());
    field("dhcpv6.linkaddr", relay.link_address.to_string());
    field("dhcpv6.peeraddr", relay.peer_address.to_string());
    let mut inside = None;
    for tree in list(theirs.get("dhcpv6.option.type_str_tree")) {
        let id = relay
            .interface_id
            .as_deref()
            .map(colons)
            .unwrap_or_default();
        compared.field(subject, "interface id", id, tree.get("dhcpv6.interface_id"));
        inside = inside.or(tree.get("dhcpv6"));
    }
    let inner = Message {
        relays: message.relays[1..].to_vec(),
        ..message.clone()
    };
    let theirs = inside.unwrap_or_else(|| panic!("{subject}: no relayed message"));
    message_agrees(subject, &inner, theirs, compared);
}

/// Every option by position: number, length, and what is inside the kinds we read.
fn options_agree(subject: &str, ours: &Options, theirs: &Value, compared: &mut Compared) {
    let trees = list(theirs.get("dhcpv6.option.type_str_tree"));
    compared.text(
        subject,
        "number of options",
        &ours.iter().count().to_string(),
        &trees.len().to_string(),
    );
    for ((code, value), tree) in ours.iter().zip(trees) {
        let mut field = |name: &str, ours: String| {
            let name = format!("dhcpv6.{name}");
            compared.field(subject, &name, ours, tree.get(&name));
        };
        field("option.type", code.to_string());
        field("option.length", value.len().to_string());
        match code {
            1 | 2 => {
                field("duid.bytes", colons(value));
                let duid =
                    Duid::from_bytes(value.to_vec()).unwrap_or_else(|| panic!("{subject}: DUID"));
                field("duid.type", duid.kind().to_string());
                for name in ["duidll.link_layer_addr", "duidllt.link_layer_addr"] {
                    field(name, duid.mac().map(|m| m.to_string()).unwrap_or_default());
                }
                field(
                    "duiduuid.bytes",
                    duid.uuid().map(|u| colons(&u)).unwrap_or_default(),
                );
            }
            3 | 4 => {
                let fixed = if code == 3 { 12 } else { 4 };
                let iaid = hex::encode(&value[..4]);
                field(if code == 3 { "iaid" } else { "iata" }, iaid);
                let inner = Options::parse(&value[fixed..]);
                if tree.get("dhcpv6.option.type_str_tree").is_some() {
                    options_agree(subject, &inner, tree, compared);
                }
            }
            5 => {
                let addr = <[u8; 16]>::try_from(&value[..16]).expect("16 octets");
                field("iaaddr.ip", Ipv6Addr::from(addr).to_string());
            }
            6 => {
                let pairs = value
                    .chunks_exact(2)
                    .map(|p| u16::from_be_bytes([p[0], p[1]]));
                let ours: Vec<String> = pairs.map(|number| number.to_string()).collect();
                let theirs = list(tree.get("dhcpv6.requested_option_code"));
                let theirs: Vec<&str> = theirs.iter().filter_map(|v| v.as_str()).collect();
                compared.text(subject, "option 6", &ours.join(","), &theirs.join(","));
            }
            8 => {
                let time = u16::from_be_bytes([value[0], value[1]]);
                field("elapsed_time", (u32::from(time) * 10).to_string());
            }
            15 => {
                let (classes, _) = user_class(value);
                let first = classes.first().map(|c| colons(c)).unwrap_or_default();
                field("userclass.opaque_data", first);
            }
            16 => {
                let class = vendor_class(value)
                    .0
                    .unwrap_or_else(|| panic!("{subject}: class"));
                field("vendorclass.enterprise", class.enterprise.to_string());
                let data = class
                    .data
                    .first()
                    .map(|d| String::from_utf8_lossy(d).into_owned());
                field("vendorclass.data", data.unwrap_or_default());
            }
            _ => {}
        }
    }
}

fn colons(bytes: &[u8]) -> String {
    let octets: Vec<String> = bytes.iter().map(|octet| format!("{octet:02x}")).collect();
    octets.join(":")
}

struct Loader;

impl BootAnswer for Loader {
    fn boot(&self, client: &ClientInfo) -> BootFile {
        match client.arch {
            Some(_) => BootFile::Url("tftp://[2001:db8::1]/ipxe.efi".into()),
            None => BootFile::None,
        }
    }
}

/// Whether a server on the client's link, with the DUID that the message names, answers it.
fn served(subject: &str, bytes: &[u8]) -> bool {
    let ingress = Ingress {
        source: SocketAddrV6::new("fe80::9".parse().expect("an address"), 546, 0, 1),
        iface: "prov0".into(),
    };
    let client = ClientInfo::parse(bytes, &ingress).unwrap_or_else(|e| panic!("{subject}: {e}"));
    let named = client.ias.iter().flat_map(|ia| &ia.addrs).next().copied();
    let link = client.link_address().or(named);
    let link = link.unwrap_or("2001:db8::1".parse().expect("an address"));
    let prefix = Ipv6Prefix::new(link, 64).expect("a prefix");
    let at = |last: u128| Ipv6Addr::from_bits(prefix.network().to_bits() + last);
    let duid = client.server_duid.and_then(Duid::from_bytes);
    let duid = duid.unwrap_or_else(|| Duid::link_layer(MacAddr([2, 0, 0, 0, 0, 1])));
    let pool = Pool {
        start: at(0x100),
        end: at(0x1ff),
    };
    let mut server = Server::new(Config::new(duid, at(1), prefix, pool));
    let outcome = server.handle(0, bytes, &ingress, &Loader);
    if let Some(reply) = &outcome.reply {
        assert!(Message::parse(&reply.payload).is_ok());
    }
    outcome.reply.is_some()
}
