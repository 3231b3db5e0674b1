//! DHCPv4 server core (RFC 2131, RFC 2132; options of RFC 3004, 3046, 3396, 4578).
//!
//! [`Server::handle`] takes one datagram and says what must be written down, what is answered and
//! what was refused. It decides addresses, lease times and how a boot answer is put on the wire.
//! It does not know *what* a machine may boot: it asks [`BootAnswer`] once per reply, and it does
//! not know sockets: the shell sends [`Reply`] after [`Outcome::changes`] are durable.
//!
//! DHCP is unauthenticated. Nothing a client says here proves who it is.

mod bootp;
mod client;
mod config;
mod guard;
mod lease;
mod message;
mod onward;
mod options;
mod probe;
mod proxy;
mod refused;
mod reply;
mod server;
mod watch;

pub use client::{ClientInfo, MessageType, RelayInfo};
pub use config::{
    Config, ConfigMistake, Limits, Mode, Pool, Reservation, ReservedFor, Scope, Subnet, WatchConfig,
};
pub use guard::{PortId, PortIdError, Rate};
pub use lease::{ClientKey, Lease, LeaseState};
pub use message::Message;
pub use options::{NoteKind, OptionNote, Options, sub_options, user_class};
pub use refused::Refused;
pub use server::{Counters, Server};
pub use watch::{Finding, Foreign, Heard, Watch};

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::MacAddr;

/// UDP port of DHCP servers and relay agents.
pub const SERVER_PORT: u16 = 67;
/// UDP port of DHCP clients.
pub const CLIENT_PORT: u16 = 68;
/// UDP port where PXE firmware asks a boot server by unicast (PXE 2.1 section 2.2.3). EDK2 asks there
/// whenever it takes an offer for BINL.
pub const BOOT_PORT: u16 = 4011;

/// Where a datagram came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingress {
    /// Our address on that interface; becomes the server identifier (option 54).
    pub server_addr: Ipv4Addr,
    /// UDP source of the datagram.
    pub source: SocketAddrV4,
    /// Name of the interface.
    pub iface: String,
}

/// What a machine is told to boot. Asked once per OFFER, ACK and INFORM answer.
pub trait BootAnswer {
    /// The boot file for this client as described by the packet at hand (never by older ones).
    fn boot(&self, client: &ClientInfo) -> BootFile;

    /// Whether the owner's records know the machine with this hardware address, so that a flood of
    /// unknown ones must not keep it out. A claim all the same: it opens a place, no door.
    fn knows(&self, client: &ClientInfo) -> bool {
        let _ = client;
        false
    }

    /// Whether the machine runs a system of its own. Others are on their way and get the short lease
    /// time ([`Scope::boot_lease_secs`]).
    fn settled(&self, client: &ClientInfo) -> bool {
        let _ = client;
        true
    }
}

/// A boot answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootFile {
    /// Address only, for who did not ask for more.
    None,
    /// Nothing: firmware goes on to its next boot device, at once where it can be made to (see
    /// `onward.rs`).
    NextDevice,
    /// A file by TFTP.
    File {
        /// TFTP server: `siaddr`, and option 66 when asked for.
        next_server: Ipv4Addr,
        /// File name: `file` field, and option 67 when asked for. At most 127 bytes fit `file`.
        name: String,
    },
    /// A URL, for UEFI HTTP boot (option 60 is echoed) and for iPXE.
    Url(String),
}

impl BootFile {
    /// File name or URL.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::None | Self::NextDevice => None,
            Self::File { name, .. } => Some(name),
            Self::Url(url) => Some(url),
        }
    }
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
    /// An address to send an ARP probe for, on the interface the datagram came in by. An answer goes
    /// to [`Server::handle_conflict`]; what else follows comes from [`Server::poll_probed`].
    pub probe: Option<Ipv4Addr>,
    /// What happened, for the walk's record.
    pub event: Option<Event>,
    /// Why nothing (or a NAK) was answered.
    pub refused: Option<Refused>,
}

/// One change of the lease table that rests on disk. Offers are memory only and never appear.
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
    /// First acknowledgement to this client.
    Granted,
    /// The same client again.
    Renewed,
    /// DHCPRELEASE.
    Released,
    /// DHCPDECLINE: the address is in quarantine.
    Declined,
    /// Our own probe found it in use: the address is in quarantine.
    Conflict,
}

/// What a message led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// DHCPDISCOVER was answered with this offer.
    Offered {
        /// Address offered.
        addr: Ipv4Addr,
    },
    /// DHCPREQUEST was acknowledged.
    Acked {
        /// Address leased.
        addr: Ipv4Addr,
        /// End of the lease, on the caller's clock.
        expires_ms: u64,
        /// Whether the client held it before.
        renewed: bool,
    },
    /// DHCPREQUEST was refused with DHCPNAK.
    Naked {
        /// Address the client asked for.
        addr: Ipv4Addr,
    },
    /// Firmware was sent on to its next boot device, by a DHCPNAK.
    SentOn {
        /// Address it had been offered.
        addr: Ipv4Addr,
    },
    /// The client took another server's offer.
    ChoseOther {
        /// That server's identifier.
        server: Ipv4Addr,
    },
    /// The client gave its lease back.
    Released {
        /// Address.
        addr: Ipv4Addr,
    },
    /// The client found the address in use.
    Declined {
        /// Address.
        addr: Ipv4Addr,
    },
    /// DHCPINFORM was answered.
    Informed {
        /// The client's own address.
        addr: Ipv4Addr,
    },
    /// A BOOTP client was answered with this address.
    Bootp {
        /// Address.
        addr: Ipv4Addr,
        /// End of the lease, on the caller's clock.
        expires_ms: u64,
    },
    /// Boot data without an address was offered (proxy mode).
    ProxyOffered {
        /// File name or URL.
        file: String,
    },
    /// A client that has its address was told what to boot: port 4011, or DHCPINFORM in proxy mode.
    BootAnswered {
        /// File name or URL.
        file: String,
    },
    /// An address that was to be offered is in use by another host.
    Conflict {
        /// Address.
        addr: Ipv4Addr,
        /// Who uses it.
        by: MacAddr,
    },
    /// Nothing to say: in proxy mode everything that asks for no boot data, and in both modes a
    /// machine that boots its own disk.
    LeftAlone,
}

/// A datagram to send from port 67.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// UDP payload, at least 300 bytes (BOOTP minimum; shorter ones are dropped by some relays).
    pub payload: Vec<u8>,
    /// Where to.
    pub to: Destination,
}

impl Reply {
    /// `xid` of the exchange it belongs to (RFC 2131 section 2).
    pub fn xid(&self) -> Option<u32> {
        let field = self.payload.get(4..8)?;
        field.try_into().ok().map(u32::from_be_bytes)
    }
}

/// Where a reply goes (RFC 2131 section 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// 255.255.255.255 port 68, on the ingress interface.
    Broadcast,
    /// `addr` port 68 in a frame to `mac` on the ingress interface; the client cannot answer ARP yet.
    Unicast {
        /// Frame destination.
        mac: MacAddr,
        /// IP destination.
        addr: Ipv4Addr,
    },
    /// An ordinary datagram through the routing table: a relay agent, or a client behind a router.
    Relay(SocketAddrV4),
    /// An ordinary datagram from port 4011 to a client that asked there and has its address.
    BootPort(SocketAddrV4),
}

#[cfg(test)]
mod tests;
