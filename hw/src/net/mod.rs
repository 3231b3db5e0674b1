//! UDP in batches: many datagrams in and out by one call of the kernel, windows as one large
//! datagram that the kernel or the NIC cuts (UDP GSO), the route's MTU, ICMP errors by peer.
//!
//! Moves bytes and parses none. Blocking, with a bound on every wait.

mod address;
mod inbox;
mod outbox;
mod poll;
mod port;

pub use inbox::Inbox;
pub use outbox::{Outbox, Sent};
pub use poll::{Poller, Wake};
pub use port::{UdpPort, Wait, path_mtu};

use std::io;

/// A result of the C library: negative is the thread's error.
fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
