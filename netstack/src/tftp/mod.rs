//! TFTP sender core: RFC 1350 with the options of RFC 2347, 2348, 2349 and 7440.
//!
//! [`packet`] reads and writes packets; [`Transfer`] is one read transfer as one state machine;
//! [`Server`] holds all transfers of a listener within its bounds. Writing is refused: nothing on
//! the provisioning segment may store a file here. Which file a name means is not known here.
//!
//! TFTP is unauthenticated: what is served this way must be checked by whoever boots it.

pub mod netascii;
pub mod packet;
mod server;
mod transfer;

pub use packet::{ErrorCode, ErrorReply, Mode, Packet, PacketError, Request};
pub use server::{Bounds, Burst, End, Event, Report, Server, TransferId};
pub use transfer::{Limits, Outcome, RollOver, Stats, Transfer, block_len_for};

/// UDP port that requests go to.
pub const SERVER_PORT: u16 = 69;
