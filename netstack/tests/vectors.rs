//! Golden bytes both ways: requests of named firmware, and our answers to them. A released vector
//! is never edited; where they come from is in `tests/vectors/*/ORIGIN.md`.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use netstack::dhcp::{
    BootAnswer, BootFile, ClientInfo, Config, Destination, Event, Ingress, Mode, Pool, Scope,
    Server, Subnet,
};
use netstack::lldp::{Frame, Id};
use netstack::tftp::{Limits, Outcome, Packet, Transfer};

fn vector(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/vectors")
        .join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    hex::decode(text.split_whitespace().collect::<String>()).expect("hex")
}

fn golden(name: &str, ours: &[u8]) {
    let lines: Vec<String> = ours.chunks(48).map(hex::encode).collect();
    assert!(
        vector(name) == ours,
        "{name} differs; we say\n{}",
        lines.join("\n")
    );
}

/// What the lab's gateway would say: the signed loader by TFTP, a script for iPXE, the image for
/// UEFI HTTP boot.
struct Lab;

impl BootAnswer for Lab {
    fn boot(&self, client: &ClientInfo) -> BootFile {
        match client {
            _ if client.is_ipxe => BootFile::Url("https://10.0.2.2/boot/script.ipxe".into()),
            _ if client.is_http_client => BootFile::Url("https://10.0.2.2/boot/uki.efi".into()),
            _ => BootFile::File {
                next_server: Ipv4Addr::new(10, 0, 2, 2),
                name: "ipxe.efi".into(),
            },
        }
    }
}

fn server() -> Server {
    Server::new(Config::single(scope()))
}

fn scope() -> Scope {
    let subnet = Subnet::new(Ipv4Addr::new(10, 0, 2, 0), 24).expect("a prefix");
    let first = Ipv4Addr::new(10, 0, 2, 15);
    let mut scope = Scope::new(
        subnet,
        Pool {
            start: first,
            end: Ipv4Addr::new(10, 0, 2, 99),
        },
        3600,
    );
    scope.routers = vec![Ipv4Addr::new(10, 0, 2, 2)];
    scope.dns = vec![Ipv4Addr::new(10, 0, 2, 3)];
    scope.domain = Some("lab.example".into());
    scope
}

fn ingress() -> Ingress {
    Ingress {
        server_addr: Ipv4Addr::new(10, 0, 2, 2),
        source: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68),
        iface: "prov0".into(),
    }
}

#[test]
fn uefi_pxe_is_led_to_the_loader() {
    let mut server = server();
    let offer = server.handle(
        0,
        &vector("dhcp/ovmf-2022.11-pxe-discover.hex"),
        &ingress(),
        &Lab,
    );
    let client = offer.client.expect("read");
    assert_eq!((client.arch, client.is_pxe_client), (Some(7), true));
    assert!(client.notes.is_empty(), "{:?}", client.notes);
    let reply = offer.reply.expect("an offer");
    assert_eq!(reply.to, Destination::Broadcast);
    golden("dhcp/ovmf-2022.11-pxe-offer.hex", &reply.payload);
    let ack = server.handle(
        9,
        &vector("dhcp/ovmf-2022.11-pxe-request.hex"),
        &ingress(),
        &Lab,
    );
    assert!(
        matches!(ack.event, Some(Event::Acked { renewed: false, .. })),
        "{:?}",
        ack.event
    );
    golden(
        "dhcp/ovmf-2022.11-pxe-ack.hex",
        &ack.reply.expect("an ack").payload,
    );
}

/// The same firmware's packets where another server gives the addresses.
#[test]
fn firmware_beside_another_server_gets_boot_data_only() {
    let mut config = Config::single(scope());
    config.mode = Mode::Proxy;
    config.scopes[0].pools.clear();
    config.check().expect("a proxy's configuration");
    let mut proxy = Server::new(config);
    for (asked, told) in [
        ("ovmf-2022.11-pxe-discover", "ovmf-2022.11-pxe-proxy-offer"),
        (
            "ovmf-2022.11-http-discover",
            "ovmf-2022.11-http-proxy-offer",
        ),
        ("ipxe-2019-x64-discover", "ipxe-2019-x64-proxy-offer"),
    ] {
        let discover = vector(&format!("dhcp/{asked}.hex"));
        let offer = proxy.handle(0, &discover, &ingress(), &Lab);
        let reply = offer.reply.expect("a proxy offer");
        assert_eq!(reply.to, Destination::Broadcast);
        golden(&format!("dhcp/{told}.hex"), &reply.payload);
    }
    // The REQUEST goes to the other server; we say nothing and know the address.
    let request = vector("dhcp/ovmf-2022.11-pxe-request.hex");
    let silent = proxy.handle(9, &request, &ingress(), &Lab);
    assert_eq!((silent.reply, silent.event), (None, Some(Event::LeftAlone)));
    let client = ClientInfo::parse(&request).expect("read");
    let addr = client.requested_addr.expect("option 50");
    assert_eq!(proxy.holder(addr), Some(client.mac));
    // The same REQUEST at port 4011, from the address it has by then.
    let mut at_boot_port = ingress();
    at_boot_port.source = SocketAddrV4::new(addr, 68);
    let ack = proxy.handle_boot_request(10, &request, &at_boot_port, &Lab);
    let reply = ack.reply.expect("an ack");
    assert_eq!(reply.to, Destination::BootPort(at_boot_port.source));
    golden("dhcp/ovmf-2022.11-pxe-boot-port-ack.hex", &reply.payload);
}

#[test]
fn uefi_http_gets_its_class_back_and_the_image() {
    let discover = vector("dhcp/ovmf-2022.11-http-discover.hex");
    let offer = server().handle(0, &discover, &ingress(), &Lab);
    assert_eq!(offer.client.expect("read").arch, Some(16));
    golden(
        "dhcp/ovmf-2022.11-http-offer.hex",
        &offer.reply.expect("an offer").payload,
    );
}

#[test]
fn chain_loaded_ipxe_gets_the_script_and_not_itself() {
    let mut server = server();
    let offer = server.handle(
        0,
        &vector("dhcp/ipxe-2019-x64-discover.hex"),
        &ingress(),
        &Lab,
    );
    let client = offer.client.expect("read");
    assert!(client.is_ipxe && !client.is_pxe_client);
    assert_eq!(client.user_class, [b"iPXE".to_vec()]);
    golden(
        "dhcp/ipxe-2019-x64-offer.hex",
        &offer.reply.expect("an offer").payload,
    );
    let ack = server.handle(
        9,
        &vector("dhcp/ipxe-2019-x64-request.hex"),
        &ingress(),
        &Lab,
    );
    golden(
        "dhcp/ipxe-2019-x64-ack.hex",
        &ack.reply.expect("an ack").payload,
    );
    let bios = server.handle(
        9,
        &vector("dhcp/ipxe-2019-bios-discover.hex"),
        &ingress(),
        &Lab,
    );
    let client = bios.client.expect("read");
    assert_eq!((client.arch, client.is_ipxe), (Some(0), true));
}

#[test]
fn firmware_and_ipxe_of_one_machine_share_a_lease() {
    let mut server = server();
    let mut leased = |name: &str| match server.handle(0, &vector(name), &ingress(), &Lab).event {
        Some(Event::Offered { addr } | Event::Acked { addr, .. }) => addr,
        other => panic!("{name}: {other:?}"),
    };
    let firmware = leased("dhcp/ovmf-2022.11-pxe-discover.hex");
    assert_eq!(leased("dhcp/ovmf-2022.11-pxe-request.hex"), firmware);
    assert_eq!(leased("dhcp/ovmf-2022.11-http-discover.hex"), firmware);
}

#[test]
fn uefi_tftp_probe_and_load() {
    let request = |name: &str| match Packet::parse(&vector(name)) {
        Ok(Packet::ReadRequest(request)) => request,
        other => panic!("{name}: {other:?}"),
    };
    let file = vec![7; 3000];
    let mut out = Vec::new();
    let probe = request("tftp/ovmf-2022.11-probe-rrq.hex");
    let mut transfer = Transfer::new(0, &probe, 3000, Limits::default());
    assert!(transfer.poll_transmit(0, &file, &mut out));
    golden("tftp/ovmf-2022.11-probe-oack.hex", &out);
    transfer.handle(1, &vector("tftp/ovmf-2022.11-probe-error.hex"));
    assert_eq!(transfer.outcome(), Some(&Outcome::Probed));

    let load = request("tftp/ovmf-2022.11-load-rrq.hex");
    let mut transfer = Transfer::new(0, &load, 3000, Limits::default());
    assert!(transfer.poll_transmit(0, &file, &mut out));
    golden("tftp/ovmf-2022.11-load-oack.hex", &out);
    assert_eq!((transfer.block_len(), transfer.window()), (1468, 4));

    let ipxe = request("tftp/ipxe-2019-bios-rrq.hex");
    let mut transfer = Transfer::new(0, &ipxe, 3000, Limits::default());
    assert!(transfer.poll_transmit(0, &file, &mut out));
    golden("tftp/ipxe-2019-bios-oack.hex", &out);
}

#[test]
fn a_frame_of_lldpd_there_and_back() {
    let bytes = vector("lldp/lldpd-1.0.16.hex");
    let frame = Frame::parse(&bytes).expect("a frame");
    let pdu = &frame.lldpdu;
    assert!(pdu.notes.is_empty(), "{:?}", pdu.notes);
    assert_eq!(
        pdu.chassis,
        Id::mac("02:00:5e:10:00:01".parse().expect("a MAC"))
    );
    assert_eq!(
        (pdu.system_name.as_deref(), pdu.port_description.as_deref()),
        (Some("vm"), Some("vtna"))
    );
    assert_eq!((pdu.ttl_secs, pdu.management.len()), (120, 2));
    // Our encoder orders optional TLVs by type, so compare what it means.
    assert_eq!(Frame::parse(&frame.encode()).as_ref(), Ok(&frame));
}
