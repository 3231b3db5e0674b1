//! Recorded traffic: frames out of a capture file, and the datagram inside a frame.
//!
//! [`Reader`] reads pcap and pcapng, [`Packet`] a frame's link layer, [`Datagram`] UDP over IPv4 and
//! IPv6. Nothing is reassembled and no checksum is looked at: a capture shows what was on the wire.
//! Which protocol a datagram belongs to is the caller's business.

mod error;
mod file;
mod link;

#[cfg(test)]
mod tests;

pub use error::{CaptureError, LinkError};
pub use file::{Frame, Reader};
pub use link::{Datagram, LinkType, Packet};
