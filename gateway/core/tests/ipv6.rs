//! The walk's first steps over IPv6, against the whole core: what firmware and iPXE are told, what
//! is on disk before they are told it, and what a restart finds.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::{IpAddr, Ipv6Addr};

use gateway_core::admission::command::Command;
use gateway_core::gateway::BootQuery;
use gateway_core::identity::MacAddr;
use gateway_core::walk::Step;
use netstack::dhcp6::{Message, MessageType, Options};
use support::site::{MAC, SERVER6, Site, node};

const SERVER_DUID: [u8; 10] = [0, 3, 0, 1, 2, 0, 0, 0, 0, 1];
const SOLICIT: u8 = 1;
const REQUEST: u8 = 3;
const RENEW: u8 = 5;

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(&(value.len() as u16).to_be_bytes());
    out.extend_from_slice(value);
}

/// A message of the node's firmware or iPXE; an address makes it one to our server.
fn message(kind: u8, class: &[u8], user_class: &[u8], addr: Option<Ipv6Addr>) -> Vec<u8> {
    let mut out = vec![kind, 0, 0, 9];
    option(&mut out, 1, &[&[0, 3, 0, 1][..], &MAC].concat());
    let mut ia = vec![0; 12];
    if let Some(addr) = addr {
        option(&mut out, 2, &SERVER_DUID);
        option(&mut ia, 5, &[&addr.octets()[..], &[0; 8]].concat());
    }
    option(&mut out, 3, &ia);
    option(&mut out, 61, &[0, 7]);
    if !class.is_empty() {
        let len = (class.len() as u16).to_be_bytes();
        option(&mut out, 16, &[&[0, 0, 1, 87][..], &len, class].concat());
    }
    if !user_class.is_empty() {
        let len = (user_class.len() as u16).to_be_bytes();
        option(&mut out, 15, &[&len[..], user_class].concat());
    }
    out
}

fn url(reply: &Message) -> Option<String> {
    let url = reply.options.get(59)?;
    Some(String::from_utf8(url.to_vec()).unwrap())
}

fn addr(reply: &Message) -> Ipv6Addr {
    let ia = Options::parse(&reply.options.get(3).unwrap()[12..]);
    Ipv6Addr::from(<[u8; 16]>::try_from(&ia.get(5).unwrap()[..16]).unwrap())
}

fn ask(site: &mut Site, bytes: Vec<u8>) -> Message {
    Message::parse(&site.datagram6(bytes).payload).unwrap()
}

#[test]
fn firmware_and_ipxe_are_led_to_the_signed_image_over_ipv6() {
    let mut site = Site::new();
    let pxe = b"PXEClient:Arch:00007:UNDI:003000";
    let offer = ask(&mut site, message(SOLICIT, pxe, b"", None));
    assert_eq!(offer.message_type(), Some(MessageType::Advertise));
    assert!(site.disk.leases6.is_empty(), "nothing is promised yet");
    let addr = addr(&offer);

    let reply = ask(&mut site, message(REQUEST, pxe, b"", Some(addr)));
    assert_eq!(url(&reply), Some(format!("tftp://[{SERVER6}]/ipxe-1.efi")));
    let [lease] = site.disk.leases6.as_slice() else {
        panic!()
    };
    assert_eq!((lease.addr, lease.state.as_str()), (addr, "bound"));
    assert_eq!(lease.mac, Some(MacAddr(MAC)));

    let http = b"HTTPClient:Arch:00016:UNDI:003001";
    let reply = ask(&mut site, message(REQUEST, http, b"", Some(addr)));
    let uki = url(&reply).unwrap();
    assert!(
        uki.starts_with(&format!("https://[{SERVER6}]/boot/")),
        "{uki}"
    );
    assert!(uki.ends_with("attester-3.efi"), "{uki}");
    assert_eq!(reply.options.get(16).unwrap()[6..], *b"HTTPClient");

    let reply = ask(&mut site, message(REQUEST, b"", b"iPXE", Some(addr)));
    let script = url(&reply).unwrap();
    assert!(script.starts_with(&format!("https://[{SERVER6}]/boot/script.ipxe?mac=52:54:")));

    // The script keeps to the family it was asked by, and knows the machine by its address.
    let query = |peer| BootQuery {
        peer,
        mac: None,
        arch: Some("x86_64".into()),
        what: "/boot/script.ipxe".into(),
    };
    let script = site.gateway.boot_script(site.now, &query(IpAddr::V6(addr)));
    assert!(
        script.contains(&format!("https://[{SERVER6}]/boot/")),
        "{script}"
    );
    assert!(!script.contains("10.66.0.1"), "{script}");
    let v4 = site
        .gateway
        .boot_script(site.now, &query(IpAddr::from([10, 66, 0, 9])));
    assert!(v4.contains("https://10.66.0.1/boot/"), "{v4}");
    site.drain();
    let steps = site.steps();
    for step in [Step::Discover, Step::Lease, Step::Boot] {
        assert!(steps.contains(&step), "{steps:?}");
    }
    assert_eq!(site.gateway.status().leases, 1);
}

#[test]
fn a_restart_finds_the_leases_of_the_journal() {
    let mut site = Site::new();
    let offer = ask(&mut site, message(SOLICIT, b"", b"", None));
    let addr = addr(&offer);
    ask(&mut site, message(REQUEST, b"", b"", Some(addr)));
    site.restart();
    assert_eq!(site.gateway.status().leases, 1);
    let reply = ask(&mut site, message(RENEW, b"", b"", Some(addr)));
    assert_eq!(self::addr(&reply), addr);
    assert_eq!(url(&reply), None, "a system that boots nothing");
}

#[test]
fn a_withdrawn_machine_hears_why_over_ipv6_too() {
    let mut site = Site::new();
    let v4 = support::site::lease(&mut site);
    let node = node();
    site.attempt(&node, 1, v4);
    let id = site.gateway.machines()[0].machine.clone();
    site.approve(&id.0);
    assert_eq!(site.attempt(&node, 2, v4).0, 200);
    let ipxe = message(SOLICIT, b"", b"iPXE", None);
    let addr = addr(&ask(&mut site, ipxe.clone()));
    ask(&mut site, message(REQUEST, b"", b"iPXE", Some(addr)));
    site.act(Command::Withdraw(id, "sold".into()));
    // iPXE still gets its script, which says why and when it asks again.
    assert!(url(&ask(&mut site, ipxe)).is_some());
    let query = BootQuery {
        peer: IpAddr::V6(addr),
        mac: None,
        arch: Some("x86_64".into()),
        what: "attester-3.efi".into(),
    };
    let refused = site.gateway.boot_fetch(site.now, &query).unwrap_err();
    assert_eq!(refused.code, "boot.plan");
    let script = site.gateway.boot_script(site.now, &query);
    assert!(script.contains("withdrawn"), "{script}");
    assert!(script.contains(&format!("[{SERVER6}]")), "{script}");
}
