//! DHCPv6 server core (RFC 8415; boot options of RFC 5970, DUID-UUID of RFC 6355, relays with RFC
//! 6939 and RFC 8357).
//!
//! [`Server::handle`] takes one datagram and says what must be written down, what is answered and
//! what was refused, by the same contract as [`crate::dhcp::Server::handle`]: [`Outcome::changes`]
//! are durable before [`Outcome::reply`] leaves. It asks [`BootAnswer`] what a machine may boot.
//!
//! The codec is our own. dhcproto's for DHCPv6 is not fit here: one option it cannot read ends the
//! whole option list, its Relay Message option holds another relay message only and never a
//! client's, options 59 to 62 are unknown to it apart from 61, its domain names come with a
//! resolver crate, and every new message draws a random number. Tests read what we write with it.
//!
//! DHCPv6 is unauthenticated. Nothing a client says here proves who it is.

mod client;
mod config;
mod duid;
mod lease;
mod message;
mod options;
mod refused;
mod reply;
mod server;

pub use client::{ClientInfo, Ia, IaKind};
pub use config::{Config, ConfigMistake, Limits, Pool};
pub use duid::Duid;
pub use lease::{ClientKey, Lease, LeaseState};
pub use message::{Message, MessageType, RELAYS_MAX, Relay};
pub use options::{NoteKind, OptionNote, Options, VendorClass, user_class, vendor_class};
pub use refused::Refused;
pub use server::{Counters, Server};

use std::net::{Ipv6Addr, SocketAddrV6};

/// UDP port of DHCPv6 servers and relay agents.
pub const SERVER_PORT: u16 = 547;
/// UDP port of DHCPv6 clients.
pub const CLIENT_PORT: u16 = 546;
/// `All_DHCP_Relay_Agents_and_Servers` (RFC 8415 section 7.1), joined on the provisioning link.
pub const ALL_RELAYS_AND_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// Where a datagram came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingress {
    /// UDP source: a client's link-local address, or a relay's address.
    pub source: SocketAddrV6,
    /// Name of the interface.
    pub iface: String,
}

/// What a machine is told to boot. Asked once per Advertise and Reply that can carry it.
pub trait BootAnswer {
    /// The boot file for this client as described by the packet at hand (never by older ones).
    fn boot(&self, client: &ClientInfo) -> BootFile;
}

/// A boot answer. DHCPv6 has URLs only (RFC 5970 section 3.1), for TFTP as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootFile {
    /// Address only: firmware goes on to its next boot device.
    None,
    /// Option 59, an address literal in brackets: firmware has no resolver everywhere.
    Url(String),
}

/// A boot answer that gives addresses and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoBoot;

impl BootAnswer for NoBoot {
    fn boot(&self, _client: &ClientInfo) -> BootFile {
        BootFile::None
    }
}

/// What one datagram led to. Perform in this order: make `changes` durable, then send `reply`.
#[derive(Debug, Default)]
#[must_use]
pub struct Outcome {
    /// Who asked; `None` only when the bytes could not be read that far.
    pub client: Option<ClientInfo>,
    /// Lease changes that must be on disk before the reply leaves.
    pub changes: Vec<LeaseChange>,
    /// The answer, if there is one.
    pub reply: Option<Reply>,
    /// What happened, for the walk's record.
    pub event: Option<Event>,
    /// Why nothing, or a status other than Success, was answered: the first reason.
    pub refused: Option<Refused>,
}

/// One change of the lease table that rests on disk. Advertised addresses are memory only and
/// never appear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseChange {
    /// The lease as it is now.
    pub lease: Lease,
    /// What changed it.
    pub cause: Cause,
}

/// What changed a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// First Reply to this client.
    Granted,
    /// The same client again.
    Renewed,
    /// Release.
    Released,
    /// Decline: the address is in quarantine.
    Declined,
}

/// What a message led to. Addresses in the order of the client's IAs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Solicit was answered with these.
    Advertised {
        /// Addresses offered.
        addrs: Vec<Ipv6Addr>,
    },
    /// Request, Renew, Rebind, or Solicit with rapid commit was answered.
    Leased {
        /// Addresses leased.
        addrs: Vec<Ipv6Addr>,
        /// Whether the client held all of them before.
        renewed: bool,
    },
    /// Confirm was answered.
    Confirmed {
        /// Whether the client's addresses fit its link.
        on_link: bool,
    },
    /// Release.
    Released {
        /// Addresses given back.
        addrs: Vec<Ipv6Addr>,
    },
    /// Decline.
    Declined {
        /// Addresses found in use.
        addrs: Vec<Ipv6Addr>,
    },
    /// Information-request was answered.
    Informed,
}

/// A datagram to send from port 547.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// UDP payload.
    pub payload: Vec<u8>,
    /// The client's link-local address at port 546, or the relay's. The scope is the ingress's.
    pub to: SocketAddrV6,
    /// Transaction id of the exchange, 24 bits.
    pub xid: u32,
}

#[cfg(test)]
mod tests;
