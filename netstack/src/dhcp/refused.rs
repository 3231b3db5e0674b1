//! Why a datagram was not served: one variant per rule, each with a stable code and a next step.

use std::net::Ipv4Addr;

use crate::{Explanation, MacAddr};

/// Why a DHCP message was not served, or was answered with DHCPNAK.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Fewer octets than a BOOTP header and the magic cookie.
    #[error("datagram of {len} bytes is shorter than a DHCP header")]
    TooShort {
        /// Octets received.
        len: usize,
    },
    /// More octets than any client sends.
    #[error("datagram of {len} bytes is over the limit of {max}")]
    TooLong {
        /// Octets received.
        len: usize,
        /// Our bound.
        max: usize,
    },
    /// `op` is not BOOTREQUEST: another server's reply, or noise.
    #[error("op {op} is not a request")]
    NotARequest {
        /// The `op` field.
        op: u8,
    },
    /// Not an Ethernet client.
    #[error("hardware type {htype} with address length {hlen} is not served")]
    Hardware {
        /// The `htype` field.
        htype: u8,
        /// The `hlen` field.
        hlen: u8,
    },
    /// Too many relays on the way.
    #[error("{hops} hops")]
    Hops {
        /// The `hops` field.
        hops: u8,
    },
    /// The options do not begin with the DHCP cookie.
    #[error("magic cookie {found:02x?}")]
    Cookie {
        /// The four octets found.
        found: [u8; 4],
    },
    /// `chaddr` is zero or a group address.
    #[error("client hardware address {mac} is not an interface's")]
    ChaddrInvalid {
        /// The address.
        mac: MacAddr,
    },
    /// No option 53: a BOOTP client, and no address may be given to it.
    #[error("{mac} speaks BOOTP and has no reservation")]
    Bootp {
        /// The client.
        mac: MacAddr,
    },
    /// Option 53 holds a type that clients do not send, or cannot be read.
    #[error("message type {value:?} from {mac} is not served")]
    MessageType {
        /// The type, if it was one octet.
        value: Option<u8>,
        /// The client.
        mac: MacAddr,
    },
    /// The relay is neither configured nor on a configured subnet.
    #[error("relay {giaddr} is not known")]
    RelayUnknown {
        /// The relay.
        giaddr: Ipv4Addr,
    },
    /// No scope covers the link the client is on.
    #[error("no scope covers {link}")]
    NoScope {
        /// An address on that link.
        link: Ipv4Addr,
    },
    /// Every address of the pool is leased, offered or in quarantine.
    #[error("pool of {addresses} addresses is exhausted")]
    PoolExhausted {
        /// Size of the pool.
        addresses: usize,
    },
    /// Too many offers wait for their request.
    #[error("{open} offers are open")]
    OfferLimit {
        /// Open offers, which is the bound.
        open: usize,
    },
    /// New clients come faster than one port or interface may bring them.
    #[error("{port} brings new clients faster than {per_sec} a second")]
    RateLimit {
        /// The port or interface.
        port: String,
        /// New clients a second in the long run.
        per_sec: u32,
    },
    /// The clients of one port hold all addresses that one port may.
    #[error("{port} holds {held} addresses")]
    PortLimit {
        /// The port.
        port: String,
        /// Addresses held, which is the bound.
        held: usize,
    },
    /// One hardware address holds addresses under many client identifiers.
    #[error("{mac} holds {held} addresses under different client identifiers")]
    MacLimit {
        /// The hardware address.
        mac: MacAddr,
        /// Addresses held, which is the bound.
        held: usize,
    },
    /// What is left of the pool is for clients we know.
    #[error("{used} of {addresses} addresses are in use and {kept} are kept for known clients")]
    PoolWatermark {
        /// Addresses taken.
        used: usize,
        /// Size of the pool.
        addresses: usize,
        /// Addresses kept.
        kept: usize,
    },
    /// Another host answered the ARP probe of an address that was to be offered.
    #[error("{addr} is in use by {by} and was to be offered to {client}")]
    AddressInUse {
        /// The address.
        addr: Ipv4Addr,
        /// Who uses it.
        by: MacAddr,
        /// Who was to get it.
        client: MacAddr,
    },
    /// One client declined one address after the other; this one returned to the pool.
    #[error("{mac} declined {declined} addresses")]
    DeclineLimit {
        /// The client.
        mac: MacAddr,
        /// Its addresses in quarantine, which is the bound.
        declined: usize,
    },
    /// DHCPREQUEST for another server's offer.
    #[error("the client chose server {server}")]
    ChoseOther {
        /// That server.
        server: Ipv4Addr,
    },
    /// DHCPREQUEST, DHCPDECLINE or DHCPRELEASE that names no address.
    #[error("the message names no address")]
    NoAddress,
    /// The address does not belong to the client's link (answered with DHCPNAK).
    #[error("{addr} is not on the subnet {subnet}")]
    WrongSubnet {
        /// Address asked for.
        addr: Ipv4Addr,
        /// Subnet of the link, in CIDR.
        subnet: String,
    },
    /// The address is not to be had for this client (answered with DHCPNAK).
    #[error("{addr} is not available to this client")]
    NotAvailable {
        /// Address asked for.
        addr: Ipv4Addr,
        /// Address on record for this client, if any.
        on_record: Option<Ipv4Addr>,
    },
    /// INIT-REBOOT of a client we do not know; RFC 2131 wants silence.
    #[error("no record of this client at {addr}")]
    NoRecord {
        /// Address it claims.
        addr: Ipv4Addr,
    },
    /// DHCPDECLINE or DHCPRELEASE of an address this client does not hold.
    #[error("{addr} is not held by this client")]
    NotHolder {
        /// Address named.
        addr: Ipv4Addr,
    },
    /// Too many addresses are in quarantine already; this one returned to the pool.
    #[error("{held} addresses are in quarantine")]
    QuarantineLimit {
        /// Addresses in quarantine, which is the bound.
        held: usize,
    },
    /// Somebody asked port 4011 who is no boot firmware.
    #[error("{mac} asks the boot port without a boot client's vendor class")]
    NotBootClient {
        /// The client.
        mac: MacAddr,
    },
    /// The boot answer is no file name or URL that fits a DHCP reply.
    #[error("boot file {found:?} of {} bytes", found.len())]
    BootFile {
        /// The boot file, cut to 300 characters.
        found: String,
        /// Most octets.
        len_max: usize,
    },
    /// The reply could not be built within what the client takes.
    #[error("reply does not fit {max} bytes")]
    ReplyTooLong {
        /// Octets the client takes.
        max: usize,
    },
}

impl Refused {
    /// Stable code, also the metric label.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooShort { .. } => "dhcp.too_short",
            Self::TooLong { .. } => "dhcp.too_long",
            Self::NotARequest { .. } => "dhcp.not_a_request",
            Self::Hardware { .. } => "dhcp.hardware",
            Self::Hops { .. } => "dhcp.hops",
            Self::Cookie { .. } => "dhcp.cookie",
            Self::ChaddrInvalid { .. } => "dhcp.chaddr",
            Self::Bootp { .. } => "dhcp.bootp",
            Self::MessageType { .. } => "dhcp.message_type",
            Self::RelayUnknown { .. } => "dhcp.relay_unknown",
            Self::NoScope { .. } => "dhcp.no_scope",
            Self::PoolExhausted { .. } => "dhcp.pool_exhausted",
            Self::OfferLimit { .. } => "dhcp.offer_limit",
            Self::RateLimit { .. } => "dhcp.rate_limit",
            Self::PortLimit { .. } => "dhcp.port_limit",
            Self::MacLimit { .. } => "dhcp.mac_limit",
            Self::PoolWatermark { .. } => "dhcp.pool_watermark",
            Self::AddressInUse { .. } => "dhcp.address_in_use",
            Self::DeclineLimit { .. } => "dhcp.decline_limit",
            Self::ChoseOther { .. } => "dhcp.chose_other",
            Self::NoAddress => "dhcp.no_address",
            Self::WrongSubnet { .. } => "dhcp.wrong_subnet",
            Self::NotAvailable { .. } => "dhcp.not_available",
            Self::NoRecord { .. } => "dhcp.no_record",
            Self::NotHolder { .. } => "dhcp.not_holder",
            Self::QuarantineLimit { .. } => "dhcp.quarantine_limit",
            Self::NotBootClient { .. } => "dhcp.not_boot_client",
            Self::BootFile { .. } => "dhcp.boot_file",
            Self::ReplyTooLong { .. } => "dhcp.reply_too_long",
        }
    }

    /// The five parts for log, API and ledger.
    pub fn explain(&self) -> Explanation {
        let (expected, source, next) = self.rule();
        Explanation {
            code: self.code(),
            expected,
            found: self.to_string(),
            source,
            next,
        }
    }

    fn rule(&self) -> (String, &'static str, &'static str) {
        const NOISE: &str = "nothing, unless it repeats; then capture it with tcpdump -w";
        let text = String::from;
        match self {
            Self::TooShort { .. } => (text("at least 240 bytes"), "RFC 2131 section 2", NOISE),
            Self::TooLong { max, .. } => (
                format!("at most {max} bytes"),
                "limit of this server",
                NOISE,
            ),
            Self::NotARequest { .. } => (
                text("op 1, BOOTREQUEST"),
                "RFC 2131 section 2",
                "look for another DHCP server on this segment if op is 2",
            ),
            Self::Hardware { .. } => (
                text("htype 1 or 6 with hlen 6"),
                "limit of this server: Ethernet only",
                "boot this machine from an Ethernet port",
            ),
            Self::Hops { .. } => (
                text("at most 16 hops"),
                "RFC 1542 section 4.1.1",
                "look for a relay loop",
            ),
            Self::Cookie { .. } => (text("63 82 53 63"), "RFC 2131 section 3", NOISE),
            Self::ChaddrInvalid { .. } => (
                text("an individual hardware address"),
                "IEEE 802 section 8.2",
                "set the machine's MAC address; the NIC's NVRAM may be blank",
            ),
            Self::Bootp { .. } => (
                text("option 53, or a reservation for this hardware address"),
                "RFC 1534 section 2",
                "add a reservation, allow bootp_dynamic, or give the device DHCP firmware",
            ),
            Self::MessageType { .. } => (
                text("DISCOVER, REQUEST, DECLINE, RELEASE or INFORM"),
                "RFC 2132 section 9.6",
                NOISE,
            ),
            Self::RelayUnknown { .. } => (
                text("a giaddr on a scope's subnet or among the configured relays"),
                "configuration: relays",
                "add the relay to the configuration if it is yours",
            ),
            Self::NoScope { .. } => (
                text("a scope that covers the client's link"),
                "configuration: scopes",
                "add a scope for that subnet",
            ),
            Self::PoolExhausted { .. } => (
                text("a free address"),
                "configuration: pool",
                "widen the pool or shorten the lease time",
            ),
            Self::OfferLimit { open } => (
                format!("fewer than {open} open offers"),
                "limit of this server: offers_max",
                "look for a machine that floods DHCPDISCOVER on this segment",
            ),
            Self::RateLimit { per_sec, .. } => (
                format!("at most {per_sec} new clients a second"),
                "limit of this server: port_rate, iface_rate",
                "look for a machine behind that port that invents hardware addresses",
            ),
            Self::PortLimit { held, .. } => (
                format!("fewer than {held} addresses on one switch port"),
                "limit of this server: port_addrs_max",
                "look for a machine behind that port that invents hardware addresses",
            ),
            Self::MacLimit { held, .. } => (
                format!("fewer than {held} addresses for one hardware address"),
                "limit of this server: mac_addrs_max",
                "look for a machine that changes its client identifier (option 61) at each boot",
            ),
            Self::PoolWatermark { kept, .. } => (
                format!("a client we know, or more than {kept} free addresses"),
                "limit of this server: reserve_percent",
                "widen the pool, or reserve an address for this machine; if many unknown machines \
                 ask, look for a flood",
            ),
            Self::AddressInUse { .. } => (
                text("an address that nobody uses"),
                "RFC 2131 section 3.1, RFC 5227 section 2.1.1",
                "take the host with that hardware address out of the pool's range",
            ),
            Self::DeclineLimit { declined, .. } => (
                format!("fewer than {declined} addresses declined by one client"),
                "limit of this server: declines_max",
                "look at that machine: it, or whoever answers its ARP probes, is at fault",
            ),
            Self::ChoseOther { .. } => (
                text("our own server identifier"),
                "RFC 2131 section 4.3.2",
                "look for a second DHCP server on this segment",
            ),
            Self::NoAddress => (text("option 50 or ciaddr"), "RFC 2131 section 4.3.2", NOISE),
            Self::WrongSubnet { subnet, .. } => (
                format!("an address in {subnet}"),
                "RFC 2131 section 4.3.2",
                "nothing: the client was told and starts over",
            ),
            Self::NotAvailable { on_record, .. } => (
                match on_record {
                    Some(addr) => format!("{addr}, which is on record for this client"),
                    None => text("an address of the pool that nobody holds"),
                },
                "RFC 2131 section 4.3.2",
                "nothing: the client was told and starts over",
            ),
            Self::NoRecord { .. } => (
                text("a lease on record"),
                "RFC 2131 section 4.3.2",
                "nothing: the client starts over by itself",
            ),
            Self::NotHolder { .. } => (
                text("the address this client holds from us"),
                "RFC 2131 sections 4.3.3 and 4.3.4",
                NOISE,
            ),
            Self::QuarantineLimit { held } => (
                format!("fewer than {held} addresses in quarantine"),
                "limit of this server: quarantine_max",
                "look for static addresses inside the pool, or a machine that declines all it gets",
            ),
            Self::NotBootClient { .. } => (
                text("option 60 PXEClient or HTTPClient, or iPXE's option 77 or 175"),
                "PXE 2.1 section 2.2.3",
                NOISE,
            ),
            Self::BootFile { len_max, .. } => (
                format!("1 to {len_max} visible ASCII characters"),
                "RFC 2132 section 9.5",
                "shorten or correct the boot file name or URL in the configuration",
            ),
            Self::ReplyTooLong { max } => (
                format!("a reply of at most {max} bytes"),
                "RFC 2132 section 9.10",
                "shorten the boot file name or URL",
            ),
        }
    }
}
