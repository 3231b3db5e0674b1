//! LLDP agent core (IEEE 802.1AB-2016): receiver, neighbours, our own announcements.
//!
//! [`tlv`] reads a frame, [`organisation`] the TLVs of [`dot1`], [`dot3`] and [`med`], [`neighbour`]
//! keeps who was heard where until its TTL ends, [`agent`] does that for one interface and announces
//! us, [`role`] tells switches from hosts, [`id`] and [`port`] compare what was heard with what was
//! declared. LLDP is unauthenticated: a frame is evidence of a port only as far as the cable is
//! trusted, and everything in it is text of a stranger.

pub mod agent;
pub mod dot1;
pub mod dot3;
pub mod id;
pub mod med;
pub mod neighbour;
mod note;
pub mod organisation;
pub mod port;
pub mod role;
pub mod tlv;

pub use agent::Agent;
pub use id::{Comparison, Id, IdKind, Tolerance, compare};
pub use neighbour::{Change, Neighbour, Table};
pub use note::Note;
pub use organisation::Organisational;
pub use port::compare_port;
pub use role::Role;
pub use tlv::{Frame, Lldpdu, MandatoryPart, Refused};

/// EtherType of LLDP.
pub const ETHERTYPE: u16 = 0x88cc;
/// Group address "nearest bridge" (802.1AB table 7-1); bridges do not forward it.
pub const NEAREST_BRIDGE: crate::MacAddr = crate::MacAddr([0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e]);
