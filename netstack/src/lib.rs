//! Protocol cores of the provisioning segment: DHCPv4 and DHCPv6 server, Router Advertisements, TFTP
//! sender, LLDP receiver.
//!
//! Bytes and the time come in as arguments; bytes to send, state changes and typed refusals come
//! out as values. No socket, clock, thread, random source or file: the same inputs always give the
//! same outputs, so a recorded night can be replayed. What a machine may boot or become is not
//! known here; the DHCP core asks through [`dhcp::BootAnswer`].

#![forbid(unsafe_code)]

pub mod arp;
pub mod capture;
pub mod dhcp;
pub mod dhcp6;
pub mod lldp;
pub mod ra;
pub mod tftp;

mod explain;
mod mac;
mod prefix6;

pub use explain::Explanation;
pub use mac::{MacAddr, MacAddrError};
pub use prefix6::Ipv6Prefix;
