//! Why a datagram was not served, or answered with a status other than Success: one variant per
//! rule, each with a stable code and a next step.

use std::net::Ipv6Addr;

use super::duid;
use crate::Explanation;

/// Why a DHCPv6 message was not served, or not fully.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Fewer octets than the fixed part of a message.
    #[error("message of {len} bytes is shorter than its header")]
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
    /// More relays than `HOP_COUNT_LIMIT`.
    #[error("more than {max} relay messages one in another")]
    RelayDepth {
        /// The limit.
        max: usize,
    },
    /// A relay message without option 9.
    #[error("relay message carries no message")]
    RelayEmpty,
    /// A server's or a relay's message: another server's reply, or noise.
    #[error("message type {msg_type} is not a request")]
    NotARequest {
        /// The type.
        msg_type: u8,
    },
    /// A type that is not known.
    #[error("message type {value} is not served")]
    MessageType {
        /// The type.
        value: u8,
    },
    /// No client identifier where one is required.
    #[error("the message has no client identifier")]
    NoClientId,
    /// The client identifier does not have a DUID's length.
    #[error("client identifier of {len} bytes")]
    DuidLength {
        /// Octets.
        len: usize,
    },
    /// No server identifier where one is required.
    #[error("the message has no server identifier")]
    NoServerId,
    /// A server identifier where none may stand.
    #[error("{message} with a server identifier")]
    ServerIdUnexpected {
        /// Message name.
        message: &'static str,
    },
    /// The message is for another server.
    #[error("the client chose server {server}")]
    ChoseOther {
        /// That server's DUID, hex, at most 130 octets of it.
        server: String,
    },
    /// No identity association where one is required.
    #[error("the message has no identity association")]
    NoIa,
    /// An identity association in an Information-request.
    #[error("INFORMATION-REQUEST with an identity association")]
    IaUnexpected,
    /// Only identity associations of a kind that is not served.
    #[error("the client wants temporary addresses or prefixes only")]
    IaKind,
    /// Confirm without an address.
    #[error("the message names no address")]
    NoAddress,
    /// The relay names a link that is not ours.
    #[error("link address {link} is not on {prefix}")]
    NoScope {
        /// The link address.
        link: Ipv6Addr,
        /// Our prefix.
        prefix: String,
    },
    /// Every address of the pool is leased, advertised or in quarantine.
    #[error("pool of {addresses} addresses is exhausted")]
    PoolExhausted {
        /// Size of the pool.
        addresses: usize,
    },
    /// Too many advertised addresses wait for their Request.
    #[error("{open} advertised addresses wait")]
    OfferLimit {
        /// How many, which is the bound.
        open: usize,
    },
    /// One DUID holds as many addresses as it may.
    #[error("the client holds {held} addresses")]
    ClientLimit {
        /// How many, which is the bound.
        held: usize,
    },
    /// The address does not belong to the client's link.
    #[error("{addr} is not on {prefix}")]
    NotOnLink {
        /// Address named.
        addr: Ipv6Addr,
        /// Our prefix.
        prefix: String,
    },
    /// Renew, Rebind, Release or Decline of what this client does not hold.
    #[error("identity association {iaid:08x} holds no such address")]
    NoBinding {
        /// The association.
        iaid: u32,
    },
    /// Too many addresses are in quarantine already; this one returned to the pool.
    #[error("{held} addresses are in quarantine")]
    QuarantineLimit {
        /// Addresses in quarantine, which is the bound.
        held: usize,
    },
    /// The boot answer is no URL that fits a reply.
    #[error("boot file URL {found:?}")]
    BootFile {
        /// The URL, cut to 300 characters.
        found: String,
        /// Most octets.
        len_max: usize,
    },
    /// The reply could not be built within one packet.
    #[error("reply does not fit {max} bytes")]
    ReplyTooLong {
        /// Our bound.
        max: usize,
    },
}

impl Refused {
    /// Stable code, also the metric label.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooShort { .. } => "dhcp6.too_short",
            Self::TooLong { .. } => "dhcp6.too_long",
            Self::RelayDepth { .. } => "dhcp6.relay_depth",
            Self::RelayEmpty => "dhcp6.relay_empty",
            Self::NotARequest { .. } => "dhcp6.not_a_request",
            Self::MessageType { .. } => "dhcp6.message_type",
            Self::NoClientId => "dhcp6.no_client_id",
            Self::DuidLength { .. } => "dhcp6.duid_length",
            Self::NoServerId => "dhcp6.no_server_id",
            Self::ServerIdUnexpected { .. } => "dhcp6.server_id_unexpected",
            Self::ChoseOther { .. } => "dhcp6.chose_other",
            Self::NoIa => "dhcp6.no_ia",
            Self::IaUnexpected => "dhcp6.ia_unexpected",
            Self::IaKind => "dhcp6.ia_kind",
            Self::NoAddress => "dhcp6.no_address",
            Self::NoScope { .. } => "dhcp6.no_scope",
            Self::PoolExhausted { .. } => "dhcp6.pool_exhausted",
            Self::OfferLimit { .. } => "dhcp6.offer_limit",
            Self::ClientLimit { .. } => "dhcp6.client_limit",
            Self::NotOnLink { .. } => "dhcp6.not_on_link",
            Self::NoBinding { .. } => "dhcp6.no_binding",
            Self::QuarantineLimit { .. } => "dhcp6.quarantine_limit",
            Self::BootFile { .. } => "dhcp6.boot_file",
            Self::ReplyTooLong { .. } => "dhcp6.reply_too_long",
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
        const STARTS_OVER: &str = "nothing: the client was told and starts over";
        const SECOND_SERVER: &str = "look for a second DHCPv6 server on this segment";
        let text = String::from;
        match self {
            Self::TooShort { .. } => (
                text("at least 4 bytes, 34 from a relay"),
                "RFC 8415 sections 8 and 9",
                NOISE,
            ),
            Self::TooLong { max, .. } => (
                format!("at most {max} bytes"),
                "limit of this server",
                NOISE,
            ),
            Self::RelayDepth { max } => (
                format!("at most {max} relays"),
                "RFC 8415 section 7.6, HOP_COUNT_LIMIT",
                "look for a relay loop",
            ),
            Self::RelayEmpty => (text("option 9"), "RFC 8415 section 9", NOISE),
            Self::NotARequest { .. } => (
                text("a client's message"),
                "RFC 8415 section 7.3",
                SECOND_SERVER,
            ),
            Self::MessageType { .. } => (
                text("a message type of RFC 8415"),
                "RFC 8415 section 7.3",
                NOISE,
            ),
            Self::NoClientId => (text("option 1"), "RFC 8415 section 16", NOISE),
            Self::DuidLength { .. } => (
                format!("{} to {} bytes", duid::LEN.start(), duid::LEN.end()),
                "RFC 8415 section 11.1",
                NOISE,
            ),
            Self::NoServerId => (
                text("option 2, our DUID"),
                "RFC 8415 sections 16.4, 16.6, 16.8 and 16.9",
                NOISE,
            ),
            Self::ServerIdUnexpected { .. } => (
                text("no option 2"),
                "RFC 8415 sections 16.2, 16.5 and 16.7",
                NOISE,
            ),
            Self::ChoseOther { .. } => (text("our own DUID"), "RFC 8415 section 16", SECOND_SERVER),
            Self::NoIa => (text("option 3"), "RFC 8415 section 18.2", NOISE),
            Self::IaUnexpected => (
                text("no option 3, 4 or 25"),
                "RFC 8415 section 16.12",
                NOISE,
            ),
            Self::IaKind => (
                text("option 3, IA_NA"),
                "limit of this server: non-temporary addresses only",
                "nothing: provisioning needs no temporary address and no prefix",
            ),
            Self::NoAddress => (
                text("option 5 in option 3"),
                "RFC 8415 section 18.3.3",
                NOISE,
            ),
            Self::NoScope { prefix, .. } => (
                format!("a link address in {prefix}"),
                "configuration: provisioning.ipv6.address",
                "set the relay's link address, or do not relay this segment to us",
            ),
            Self::PoolExhausted { .. } => (
                text("a free address"),
                "configuration: provisioning.ipv6.pool",
                "widen the pool or shorten the lease time",
            ),
            Self::OfferLimit { open } => (
                format!("fewer than {open} advertised addresses"),
                "limit of this server: offers_max",
                "look for a machine that floods SOLICIT on this segment",
            ),
            Self::ClientLimit { held } => (
                format!("fewer than {held} addresses"),
                "limit of this server: leases_per_client",
                "look for a machine that makes up identity associations",
            ),
            Self::NotOnLink { prefix, .. } => (
                format!("an address in {prefix}"),
                "RFC 8415 section 18.3.2",
                STARTS_OVER,
            ),
            Self::NoBinding { .. } => (
                text("an address this client holds from us"),
                "RFC 8415 sections 18.3.4 to 18.3.8",
                STARTS_OVER,
            ),
            Self::QuarantineLimit { held } => (
                format!("fewer than {held} addresses in quarantine"),
                "limit of this server: quarantine_max",
                "look for static addresses inside the pool, or a machine that declines all it gets",
            ),
            Self::BootFile { len_max, .. } => (
                format!("1 to {len_max} visible ASCII characters"),
                "RFC 5970 section 3.1",
                "shorten or correct the boot file name in the catalogue",
            ),
            Self::ReplyTooLong { max } => (
                format!("a reply of at most {max} bytes"),
                "RFC 8200 section 5",
                "shorten the boot file name, or ask for fewer identity associations",
            ),
        }
    }
}
