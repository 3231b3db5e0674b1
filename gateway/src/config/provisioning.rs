//! Reads `[provisioning]`: the segment's addresses, pools, ports and protocols.

use std::net::{Ipv4Addr, Ipv6Addr};

use boot::plan::HttpBoot;
use gateway_core::identity::MacAddr;
use gateway_core::strict_toml::Section;
use netstack::dhcp::BOOT_PORT;

use super::{
    DNS_MAX, DhcpGuard, DhcpMode, Ipv4Cidr, Ipv6Cidr, LLDP_INTERFACES_MAX, Lldp, POOL6_MAX,
    Provisioning, ProvisioningPorts, ProvisioningV6, RESERVATIONS_MAX, Reservation, Tftp,
    in_section, is_dns_name, is_interface_name, port,
};
use crate::shell::tftp;

pub(super) fn read_provisioning(section: &Section<'_, '_>) -> Option<Provisioning> {
    let interface = section.string("interface");
    let interface = section.required("interface", "an interface name", interface);
    let interface = interface.filter(|name| {
        let usable = is_interface_name(name);
        if !usable {
            section.mistake(
                "interface",
                "an interface name of 1 to 15 bytes without / or spaces",
                format!("{name:?}"),
            );
        }
        usable
    });
    let cidr_form = "our address and prefix, for example 10.20.0.1/24 (prefix 8 to 30)";
    let address = section.parsed::<Ipv4Cidr>("address", cidr_form);
    let address = section.required("address", cidr_form, address);
    let mode = section.choice(
        "dhcp_mode",
        &[("server", DhcpMode::Server), ("proxy", DhcpMode::Proxy)],
    );
    let mode = mode.unwrap_or(DhcpMode::Server);
    let bootp_dynamic = section.boolean("bootp_dynamic");
    let lease = section.integer("lease_secs", 120..=604_800, "seconds");
    let lease = lease.unwrap_or(3600);
    let boot_lease = section.integer("boot_lease_secs", 120..=604_800, "seconds");
    if let Some(boot_lease) = boot_lease.filter(|secs| *secs > lease) {
        let found = format!("{boot_lease}");
        section.mistake(
            "boot_lease_secs",
            format!("at most lease_secs, {lease}"),
            found,
        );
    }
    let boot_lease = boot_lease.unwrap_or(600).min(lease);
    let conflict_probe = section.integer("conflict_probe_ms", 0..=1_000, "milliseconds");
    let rogue_probe = section.integer("rogue_probe_secs", 0..=86_400, "seconds");
    let guard = read_guard(&section.section("guard"));
    let router = section.parsed::<Ipv4Addr>("router", "an IPv4 address");
    let dns = section.list::<Ipv4Addr>("dns", "an IPv4 address", DNS_MAX);
    let domain = section.string("domain").filter(|name| {
        let usable = is_dns_name(name);
        if !usable {
            section.mistake("domain", "a DNS name", format!("{name:?}"));
        }
        usable
    });
    let ports = read_ports(section);
    let http_boot = section.choice(
        "http_boot",
        &[
            ("https", HttpBoot::UkiOverHttps),
            ("ipxe", HttpBoot::IpxeOverHttp),
            ("uki", HttpBoot::UkiOverHttp),
        ],
    );
    let lldp = in_section(section, "lldp", |s| read_lldp(s, interface.as_deref()));
    let pool = read_pool(&section.section("pool"), address);
    let reservations = read_reservations(section, address);
    let ipv6 = read_ipv6(&section.section("ipv6"));
    let address = address?;
    if let Some(router) = router.filter(|router| !address.has_host(*router)) {
        section.mistake(
            "router",
            format!("a host address of {}/{}", address.network(), address.prefix),
            router.to_string(),
        );
    }
    let pool_given = section.section("pool").present();
    match mode {
        DhcpMode::Server if !pool_given && reservations.is_empty() => {
            section.mistake("pool", "a pool, or at least one reservation", "neither");
        }
        DhcpMode::Proxy if pool_given || !reservations.is_empty() => {
            let found = if pool_given { "a pool" } else { "reservations" };
            section.mistake(
                "dhcp_mode",
                "no pool and no reservation beside \"proxy\", which gives no address",
                found,
            );
        }
        DhcpMode::Server | DhcpMode::Proxy => {}
    }
    Some(Provisioning {
        interface: interface?,
        address,
        dhcp_mode: mode,
        bootp_dynamic: bootp_dynamic.unwrap_or(false),
        pool,
        lease_secs: u32::try_from(lease).ok()?,
        boot_lease_secs: u32::try_from(boot_lease).ok()?,
        conflict_probe_ms: u16::try_from(conflict_probe.unwrap_or(40)).ok()?,
        rogue_probe_secs: u32::try_from(rogue_probe.unwrap_or(600)).ok()?,
        guard,
        router,
        dns,
        domain,
        reservations,
        ipv6: ipv6.ok()?,
        ports: ports?,
        tftp: read_tftp(section)?,
        http_boot: http_boot.unwrap_or_default(),
        lldp: lldp?,
    })
}

fn read_tftp(section: &Section<'_, '_>) -> Option<Tftp> {
    let ports = section.choice(
        "tftp_ports",
        &[("one", tftp::Ports::One), ("each", tftp::Ports::Ephemeral)],
    );
    // RFC 2348: 65464 at most. Below 512 nobody gains.
    let block = section.integer("tftp_block_bytes_max", 512..=65_464, "bytes");
    Some(Tftp {
        ports: ports.unwrap_or_default(),
        block_bytes_max: u16::try_from(block.unwrap_or(1468)).ok()?,
    })
}

fn read_guard(section: &Section<'_, '_>) -> DhcpGuard {
    // The ranges fit the types; a key that does not is a mistake and its default does not matter.
    let reserve = section.integer("reserve_percent", 0..=90, "percent");
    let addresses = section.integer("port_addresses_max", 1..=4_096, "addresses");
    let clients = section.integer("port_clients_per_sec", 1..=10_000, "clients a second");
    section.close();
    let or = |value: Option<u64>, default: u16| {
        value
            .and_then(|value| u16::try_from(value).ok())
            .unwrap_or(default)
    };
    DhcpGuard {
        reserve_percent: u8::try_from(or(reserve, 10)).unwrap_or(10),
        port_addresses_max: or(addresses, 64),
        port_clients_per_sec: or(clients, 20),
    }
}

fn read_lldp(section: &Section<'_, '_>, provisioning: Option<&str>) -> Option<Lldp> {
    const FORM: &str = "an interface name of 1 to 15 bytes without / or spaces";
    let announce = section.boolean("announce");
    let listen = section.boolean("listen");
    let interfaces = section.list::<String>("interfaces", FORM, LLDP_INTERFACES_MAX);
    for (index, name) in interfaces.iter().enumerate() {
        let twice = provisioning == Some(name) || interfaces[..index].contains(name);
        if !is_interface_name(name) {
            section.mistake("interfaces", FORM, format!("{name:?}"));
        } else if twice {
            let expected = "each interface once, besides provisioning.interface";
            section.mistake("interfaces", expected, format!("{name:?} again"));
        }
    }
    Some(Lldp {
        announce: announce.unwrap_or(true),
        listen: listen.unwrap_or(true),
        interfaces,
    })
}

fn read_ports(section: &Section<'_, '_>) -> Option<ProvisioningPorts> {
    let ports = ProvisioningPorts {
        dhcp: port(section, "dhcp_port", 67)?,
        tftp: port(section, "tftp_port", 69)?,
        http: port(section, "http_port", 80)?,
        boot_https: port(section, "boot_https_port", 443)?,
        attest: port(section, "attest_port", 8443)?,
    };
    if ports.dhcp == BOOT_PORT || ports.tftp == BOOT_PORT {
        let key = if ports.dhcp == BOOT_PORT {
            "dhcp_port"
        } else {
            "tftp_port"
        };
        section.mistake(
            key,
            "a UDP port other than the boot port",
            BOOT_PORT.to_string(),
        );
    }
    let pairs = [
        ("tftp_port", ports.tftp, "dhcp_port", ports.dhcp, "UDP"),
        (
            "boot_https_port",
            ports.boot_https,
            "http_port",
            ports.http,
            "TCP",
        ),
        ("attest_port", ports.attest, "http_port", ports.http, "TCP"),
        (
            "attest_port",
            ports.attest,
            "boot_https_port",
            ports.boot_https,
            "TCP",
        ),
    ];
    for (key, number, other, taken, transport) in pairs {
        if number == taken {
            section.mistake(
                key,
                format!("a {transport} port of its own"),
                format!("{number}, which {other} has already"),
            );
        }
    }
    Some(ports)
}

fn read_pool(section: &Section<'_, '_>, segment: Option<Ipv4Cidr>) -> Option<(Ipv4Addr, Ipv4Addr)> {
    if !section.present() {
        return None;
    }
    let start = section.parsed::<Ipv4Addr>("start", "an IPv4 address");
    let start = section.required("start", "the first address", start);
    let end = section.parsed::<Ipv4Addr>("end", "an IPv4 address");
    let end = section.required("end", "the last address", end);
    section.close();
    let (segment, start, end) = (segment?, start?, end?);
    let mut usable = true;
    for (key, address) in [("start", start), ("end", end)] {
        if !segment.has_host(address) {
            usable = false;
            section.mistake(
                key,
                format!("a host address of {}/{}", segment.network(), segment.prefix),
                address.to_string(),
            );
        }
    }
    if usable && start > end {
        usable = false;
        section.mistake("end", format!("{start} or above"), end.to_string());
    }
    if usable && (start..=end).contains(&segment.address) {
        usable = false;
        section.mistake(
            "start",
            "a pool without our own address",
            format!("{start} to {end}, which holds {}", segment.address),
        );
    }
    usable.then_some((start, end))
}

/// None without the section; an error when it has mistakes.
fn read_ipv6(section: &Section<'_, '_>) -> Result<Option<ProvisioningV6>, ()> {
    if !section.present() {
        return Ok(None);
    }
    let form =
        "our address and prefix, for example fd00:20::1/64 (prefix 48 to 120, not link-local)";
    let address = section.parsed::<Ipv6Cidr>("address", form);
    let address = section.required("address", form, address);
    let dns = section.list::<Ipv6Addr>("dns", "an IPv6 address", DNS_MAX);
    // RFC 4861 section 6.2.1: AdvDefaultLifetime is 0 or at most 9000 s.
    let lifetime = section.integer("router_lifetime_secs", 0..=9_000, "seconds");
    let pool = read_pool6(&section.section("pool"), address);
    section.close();
    Ok(Some(ProvisioningV6 {
        address: address.ok_or(())?,
        pool: pool.ok_or(())?,
        dns,
        router_lifetime_secs: lifetime.map_or(Ok(0), u16::try_from).map_err(|_| ())?,
    }))
}

fn read_pool6(
    section: &Section<'_, '_>,
    segment: Option<Ipv6Cidr>,
) -> Option<(Ipv6Addr, Ipv6Addr)> {
    let start = section.parsed::<Ipv6Addr>("start", "an IPv6 address");
    let start = section.required("start", "the first address", start);
    let end = section.parsed::<Ipv6Addr>("end", "an IPv6 address");
    let end = section.required("end", "the last address", end);
    section.close();
    let (segment, start, end) = (segment?, start?, end?);
    let mut usable = true;
    for (key, address) in [("start", start), ("end", end)] {
        if !segment.prefix().is_host(address) {
            usable = false;
            let expected = format!("a host address of {}", segment.prefix());
            section.mistake(key, expected, address.to_string());
        }
    }
    let pool = netstack::dhcp6::Pool { start, end };
    if usable && pool.is_empty() {
        usable = false;
        section.mistake("end", format!("{start} or above"), end.to_string());
    }
    if usable && pool.len() > POOL6_MAX {
        usable = false;
        section.mistake(
            "end",
            format!("a pool of at most {POOL6_MAX} addresses"),
            end.to_string(),
        );
    }
    if usable && pool.contains(segment.address) {
        usable = false;
        section.mistake(
            "start",
            "a pool without our own address",
            format!("{start} to {end}, which holds {}", segment.address),
        );
    }
    usable.then_some((start, end))
}

fn read_reservations(section: &Section<'_, '_>, segment: Option<Ipv4Cidr>) -> Vec<Reservation> {
    let mut reservations: Vec<Reservation> = Vec::new();
    for entry in section.sections("reservation", RESERVATIONS_MAX) {
        let mac = entry.parsed::<MacAddr>("mac", "a MAC address, aa:bb:cc:dd:ee:ff");
        let mac = entry.required("mac", "a MAC address, aa:bb:cc:dd:ee:ff", mac);
        let address = entry.parsed::<Ipv4Addr>("address", "an IPv4 address");
        let address = entry.required("address", "an IPv4 address", address);
        entry.close();
        let (Some(mac), Some(address), Some(segment)) = (mac, address, segment) else {
            continue;
        };
        if !segment.has_host(address) || address == segment.address {
            entry.mistake(
                "address",
                format!(
                    "a host address of {}/{} other than our own",
                    segment.network(),
                    segment.prefix
                ),
                address.to_string(),
            );
        }
        if reservations.iter().any(|other| other.mac == mac) {
            entry.mistake("mac", "a MAC address reserved once", mac.to_string());
        }
        if reservations.iter().any(|other| other.address == address) {
            entry.mistake("address", "an address reserved once", address.to_string());
        }
        reservations.push(Reservation { mac, address });
    }
    reservations
}
