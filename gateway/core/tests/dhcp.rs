//! The DHCP side of the whole core: beside another server, under a flood, and when an address or the
//! segment is not as it should be. Numbers are those of the liars' suite.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::Ipv4Addr;

use gateway_core::admission::command::Command;
use gateway_core::gateway::{BootQuery, Input};
use gateway_core::identity::{MacAddr, MachineId};
use gateway_core::inventory::Inventory;
use gateway_core::policy::Preset;
use gateway_core::walk::Step;
use netstack::dhcp;
use support::site::{
    MAC, PXE, SERVER, Site, boot_file, dhcp_config, dhcp_request, from_mac, lease, message_type,
    node, yiaddr,
};

const PEER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 200);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
const OTHER_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];
const WATCH_MAC: netstack::MacAddr = netstack::MacAddr([2, 1, 2, 3, 4, 5]);

fn site(configure: impl FnOnce(&mut dhcp::Config)) -> Site {
    let mut site = Site::with(Inventory::default(), Preset::Standard);
    let mut config = dhcp_config();
    configure(&mut config);
    config.check().unwrap();
    site.declared.dhcp = config;
    site.restart();
    site
}

fn proxy() -> Site {
    site(|config| {
        config.mode = dhcp::Mode::Proxy;
        config.scopes[0].pools.clear();
    })
}

fn spoofed(n: u32) -> [u8; 6] {
    let [a, b, c, d] = n.to_be_bytes();
    [0x02, 0xbd, a, b, c, d]
}

/// A machine that attested and was approved: the owner's records know its hardware address.
fn admitted(site: &mut Site) -> MachineId {
    let node = node();
    assert_eq!(site.attempt(&node, 1, PEER).0, 202);
    let id = site.gateway.machines()[0].machine.clone();
    site.approve(&id.0);
    assert_eq!(site.attempt(&node, 2, PEER).0, 200);
    id
}

/// What another server broadcasts, as a frame on the wire.
fn foreign_offer(server: Ipv4Addr, yiaddr: Ipv4Addr) -> Vec<u8> {
    let mut payload = dhcp_request(2, &[(54, &server.octets())]);
    payload[0] = 2;
    payload[16..20].copy_from_slice(&yiaddr.octets());
    let total = 28 + payload.len() as u16;
    let mut frame = vec![0xff; 6];
    frame.extend(OTHER_MAC);
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend(server.octets());
    frame.extend([255; 4]);
    frame.extend([0, 67, 0, 68]);
    frame.extend((total - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

#[test]
fn proxy_mode_walks_discover_and_boot_and_leases_nothing() {
    let mut site = proxy();
    let offer = site.datagram(1, &PXE);
    assert_eq!(boot_file(&offer), "ipxe-1.efi");
    assert!(yiaddr(&offer).is_unspecified());
    // The address is the other server's business; that it was asked for tells us who is who.
    let other = OTHER.octets();
    let mut options = PXE.to_vec();
    let peer = PEER.octets();
    options.extend([(50, &peer[..]), (54, &other[..])]);
    assert!(site.send(dhcp_request(3, &options)).is_none());
    let ack = site.ask_boot_port(PEER, dhcp_request(3, &PXE)).unwrap();
    assert_eq!(boot_file(&ack), "ipxe-1.efi");
    assert_eq!(
        ack.to,
        dhcp::Destination::BootPort("10.66.0.200:68".parse().unwrap())
    );
    assert_eq!(site.steps(), [Step::Discover, Step::Boot]);
    assert!(site.disk.leases.is_empty());
    assert_eq!(site.gateway.status().leases, 0);
    assert_eq!(site.gateway.status().dhcp.mode, "proxy");
    assert!(site.refused.is_empty(), "{:?}", site.refused);
}

#[test]
fn in_proxy_mode_too_an_installed_machine_is_left_to_its_disk() {
    let mut site = proxy();
    let id = admitted(&mut site);
    site.act(Command::MarkInstalled(id.clone()));
    assert!(site.send(dhcp_request(1, &PXE)).is_none(), "no boot offer");
    assert!(site.ask_boot_port(PEER, dhcp_request(3, &PXE)).is_none());
    // By address alone, as TFTP asks: the sighting tells whose it is.
    let query = BootQuery {
        peer: PEER.into(),
        mac: None,
        arch: Some("x86_64".into()),
        what: "attester-3.efi".into(),
    };
    let refused = site.gateway.boot_fetch(site.now, &query).unwrap_err();
    assert_eq!(refused.code, "boot.plan");
    site.drain();
}

#[test]
fn attack_33_starvation_by_ten_thousand_addresses_spares_the_known() {
    let mut site = site(|_| {});
    admitted(&mut site);
    // A machine that had an address before, under another hardware address.
    let mut known = from_mac(dhcp_request(1, &PXE), [0x52, 0x54, 0, 0, 0, 7]);
    let before = yiaddr(&site.send(known.clone()).unwrap());
    let server = SERVER.octets();
    let octets = before.octets();
    let select = dhcp_request(3, &[(50, &octets), (54, &server)]);
    assert!(
        site.send(from_mac(select, [0x52, 0x54, 0, 0, 0, 7]))
            .is_some()
    );
    let (leases, marks) = (site.disk.leases.len(), site.disk.marks.len());
    let mut answered = 0;
    for n in 0..10_000 {
        let spoof = from_mac(dhcp_request(1, &PXE), spoofed(n));
        answered += usize::from(site.send(spoof).is_some());
    }
    assert!(answered <= 2 * 11, "{answered} offers of a pool of 11");
    assert_eq!(
        site.disk.leases.len(),
        leases,
        "an offer is not written down"
    );
    assert!(site.disk.marks.len() - marks <= answered);
    // The log tells, and is not filled.
    let told = |code: &str| site.refused.iter().filter(|c| *c == code).count();
    let windows = 10_000 * 10 / 10_000 + 1;
    let most = 20 * windows;
    assert!(told("dhcp.pool_watermark") > 0 && told("dhcp.pool_watermark") <= most);
    let counted = site.gateway.status().dhcp.refused["dhcp.pool_watermark"];
    assert_eq!(
        counted as usize,
        told("dhcp.pool_watermark") + site.quiet.len()
    );
    // Who attested, and who has a lease, are served in the middle of it.
    assert_eq!(boot_file(&site.datagram(1, &PXE)), "ipxe-1.efi");
    known[7] ^= 1;
    assert_eq!(yiaddr(&site.send(known).unwrap()), before);
}

#[test]
fn attack_33_a_conflicting_address_is_probed_written_down_and_never_offered() {
    let mut site = site(|config| config.limits.probe_ms = 200);
    assert!(site.send(dhcp_request(1, &PXE)).is_none(), "it waits");
    let first = site.arp_probes.pop().expect("a probe");
    let mac = MacAddr([0x52, 0x54, 0, 0, 9, 9]);
    site.handle(Input::ArpSeen { addr: first, mac });
    let declined = site.disk.leases.last().unwrap();
    assert_eq!(
        (declined.addr, declined.state.as_str()),
        (first, "declined")
    );
    assert_eq!(site.refused, ["dhcp.address_in_use"]);
    let second = site.arp_probes.pop().expect("the next address");
    site.wait(200);
    let offer = site.dhcp.pop().expect("the offer, after silence");
    assert_eq!(yiaddr(&offer), second);
    assert_eq!(site.gateway.status().dhcp.conflicts, 1);
    assert_eq!(site.steps(), [Step::Discover]);
    // What is written down holds after a restart.
    site.restart();
    let wants = dhcp_request(1, &[(50, &first.octets())]);
    assert!(site.send(wants).is_none());
    assert_ne!(site.arp_probes.pop(), Some(first));
}

#[test]
fn attack_33_a_rogue_server_is_named_with_what_to_do() {
    let mut site = site(|config| {
        config.watch = Some(dhcp::WatchConfig {
            mac: WATCH_MAC,
            period_ms: 600_000,
        });
    });
    site.wait(1);
    let (mac, payload) = site.dhcp_probes.pop().expect("it asks at the start");
    assert_eq!(mac, WATCH_MAC);
    assert!(site.send(payload).is_none(), "not answered to ourselves");
    assert!(site.disk.marks.is_empty());
    let gives = Ipv4Addr::new(10, 66, 0, 77);
    for _ in 0..3 {
        let frame = foreign_offer(OTHER, gives);
        site.handle(Input::DhcpHeard { frame });
    }
    assert_eq!(site.refused, ["dhcp.foreign_server"], "once");
    let status = site.gateway.status().dhcp;
    let found = &status.foreign_servers[0];
    assert_eq!((found.server, found.mac.0), (OTHER, OTHER_MAC));
    assert_eq!((found.gave, found.replies), (Some(gives), 3));
    let reason = found.reason.as_ref().expect("a fault in server mode");
    assert!(
        reason.next.contains("dhcp_mode = \"proxy\""),
        "{}",
        reason.next
    );
    // Our own replies are none, and noise is nothing.
    let frame = foreign_offer(SERVER, gives);
    site.handle(Input::DhcpHeard { frame });
    for len in 0..60 {
        let frame = foreign_offer(OTHER, gives)[..len].to_vec();
        site.handle(Input::DhcpHeard { frame });
    }
    assert_eq!(site.gateway.status().dhcp.foreign_servers.len(), 1);
    site.wait(599_999);
    assert_eq!(site.dhcp_probes.len(), 1, "and asks again");
}

#[test]
fn in_proxy_mode_the_absence_of_the_other_server_is_told() {
    let mut site = site(|config| {
        config.mode = dhcp::Mode::Proxy;
        config.scopes[0].pools.clear();
        config.watch = Some(dhcp::WatchConfig {
            mac: WATCH_MAC,
            period_ms: 600_000,
        });
    });
    site.wait(1);
    site.wait(10_000);
    assert_eq!(site.refused, ["dhcp.no_server"]);
    let frame = foreign_offer(OTHER, PEER);
    site.handle(Input::DhcpHeard { frame });
    let status = site.gateway.status().dhcp;
    assert_eq!(status.foreign_servers.len(), 1, "shown");
    assert_eq!(status.foreign_servers[0].reason, None, "and no fault");
    site.wait(600_000);
    site.wait(10_000);
    let told = site
        .refused
        .iter()
        .filter(|c| *c == "dhcp.no_server")
        .count();
    assert_eq!(told, 2, "it fell silent");
}

#[test]
fn a_machine_on_its_way_has_a_short_lease_and_an_installed_one_a_long_one() {
    let mut site = site(|config| config.scopes[0].boot_lease_secs = 600);
    let secs = |reply: &dhcp::Reply| {
        let message = dhcp::Message::parse(&reply.payload).unwrap();
        let value = message.options.get(51).unwrap().try_into().unwrap();
        u32::from_be_bytes(value)
    };
    assert_eq!(secs(&site.datagram(1, &PXE)), 600);
    assert_eq!(secs(&site.datagram(1, &[])), 600, "nobody knows it");
    let id = admitted(&mut site);
    assert_eq!(secs(&site.datagram(1, &[])), 600);
    site.act(Command::MarkInstalled(id));
    assert_eq!(secs(&site.datagram(1, &[])), 3_600);
    assert_eq!(secs(&site.datagram(1, &PXE)), 600, "its firmware");
}

#[test]
fn option_82_stands_in_the_lease_and_the_walk_and_survives_a_restart() {
    let mut site = site(|config| config.limits.port_addrs_max = 1);
    let circuit = [1u8, 4, b'e', b't', b'h', b'7', 2, 2, 0, 9];
    let server = SERVER.octets();
    let offer = site.datagram(1, &[(82, &circuit)]);
    let addr = yiaddr(&offer).octets();
    site.datagram(3, &[(50, &addr), (54, &server), (82, &circuit)]);
    let lease = site.disk.leases.last().unwrap();
    assert_eq!(lease.port.as_deref(), Some("0.0.0.0/65746837/0009"));
    let walked =
        site.disk.marks.iter().any(|mark| {
            mark.step == Step::Lease && mark.detail.contains("circuit eth7 remote 0x0009")
        });
    assert!(walked, "{:?}", site.disk.marks);
    site.restart();
    let second = from_mac(dhcp_request(1, &[(82, &circuit)]), spoofed(1));
    assert!(site.send(second).is_none());
    assert_eq!(
        site.refused,
        ["dhcp.port_limit"],
        "the port's budget is used"
    );
}

#[test]
fn lease_of_the_walk_is_found_by_its_address() {
    let mut site = site(|_| {});
    let addr = lease(&mut site);
    let id = admitted(&mut site);
    site.act(Command::MarkInstalled(id));
    let query = BootQuery {
        peer: addr.into(),
        mac: None,
        arch: None,
        what: "ipxe-1.efi".into(),
    };
    // Installed: nothing to fetch but its own disk.
    assert!(site.gateway.boot_fetch(site.now, &query).is_err());
}

/// What one machine may boot is the same by every way it can ask.
#[test]
fn tinkerbell_223_dhcp_tftp_and_script_refuse_alike() {
    let mut site = site(|_| {});
    lease(&mut site);
    let id = admitted(&mut site);
    site.act(Command::MarkInstalled(id));
    let offer = site.datagram(1, &PXE);
    let (server, addr) = (SERVER.octets(), yiaddr(&offer).octets());
    let mut taking = PXE.to_vec();
    taking.extend([(50, &addr[..]), (54, &server[..])]);
    assert_eq!(
        message_type(&site.datagram(3, &taking)),
        6,
        "sent on by a NAK"
    );
    let query = |what: &str| BootQuery {
        peer: PEER.into(),
        mac: Some(MacAddr(MAC)),
        arch: Some("x86_64".into()),
        what: what.into(),
    };
    for what in ["ipxe-1.efi", "attester-3.efi"] {
        let refused = site.gateway.boot_fetch(site.now, &query(what)).unwrap_err();
        assert_eq!(refused.code, "boot.plan", "{what}");
    }
    let script = site.gateway.boot_script(site.now, &query("script.ipxe"));
    assert!(
        script.contains("exit") && !script.contains("attester"),
        "{script}"
    );
    site.drain();
}

#[test]
fn xcat_7645_option_93_of_7_and_of_9_are_the_same_machine_and_ipxe_gets_the_script() {
    let mut site = site(|_| {});
    for arch in [7, 9] {
        let value = [0, arch];
        let firmware = [(60, &b"PXEClient"[..]), (93, &value[..])];
        assert_eq!(boot_file(&site.datagram(1, &firmware)), "ipxe-1.efi");
        let ipxe = [
            (60, &b"PXEClient"[..]),
            (93, &value[..]),
            (77, &b"iPXE"[..]),
        ];
        let told = boot_file(&site.datagram(1, &ipxe));
        assert!(told.contains("/boot/script.ipxe"), "{told}");
    }
}

/// No file name of ours holds a hardware address, for no kind of client.
#[test]
fn smee_537_file_names_are_those_of_the_catalogue() {
    let mut site = site(|_| {});
    let mac = MacAddr(MAC).to_string();
    for firmware in [
        &PXE[..],
        &[
            (60, &b"HTTPClient:Arch:00016:UNDI:003000"[..]),
            (93, &[0, 16]),
        ],
    ] {
        let told = boot_file(&site.datagram(1, firmware));
        assert!(!told.is_empty() && !told.contains(&mac), "{told}");
    }
}

/// Firmware and an iPXE that was started over HTTP know no name server: every host is an address.
#[test]
fn ipxe_1316_no_boot_url_needs_a_resolver() {
    let mut site = site(|_| {});
    let http = [
        (60, &b"HTTPClient:Arch:00016:UNDI:003000"[..]),
        (93, &[0, 16]),
        (55, &[67]),
    ];
    let ipxe = [
        (60, &b"PXEClient"[..]),
        (93, &[0, 7]),
        (77, b"iPXE"),
        (55, &[67]),
    ];
    let mut told = vec![site.gateway.boot_script(
        site.now,
        &BootQuery {
            peer: PEER.into(),
            mac: Some(MacAddr(MAC)),
            arch: Some("x86_64".into()),
            what: "script.ipxe".into(),
        },
    )];
    for client in [&http, &ipxe[..]] {
        let reply = site.datagram(1, client);
        told.push(String::from_utf8_lossy(&reply.payload[240..]).into_owned());
    }
    for text in told {
        let hosts: Vec<&str> = text
            .split("://")
            .skip(1)
            .map(|rest| rest.split(['/', ':', ' ']).next().unwrap())
            .collect();
        assert!(!hosts.is_empty(), "{text:?}");
        for host in hosts {
            assert!(host.parse::<Ipv4Addr>().is_ok(), "{host:?} in {text:?}");
        }
    }
    site.drain();
}

#[test]
fn rpi_eeprom_182_a_raspberry_pi_is_not_handed_what_an_x86_bios_boots() {
    let mut site = site(|_| {});
    let rom = [
        (60, &b"PXEClient:Arch:00000:UNDI:002001"[..]),
        (93, &[0, 0]),
    ];
    let pi = from_mac(dhcp_request(1, &rom), [0xdc, 0xa6, 0x32, 0, 0, 1]);
    assert_eq!(
        boot_file(&site.send(pi).unwrap()),
        "",
        "an address and no file"
    );
}
