//! A raw socket for LLDP (IEEE 802.1AB): frames in, whole and with their VLAN tag, and out.
//!
//! Decides which frames belong to LLDP (EtherType and the three group addresses of 802.1AB-2016,
//! table 7-1). Does not parse them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::libc::sock_filter;

use super::packet::{self, StrippedTag};
use super::{NicError, index_of};

/// All EtherTypes (`ETH_P_ALL`). A socket for 0x88cc alone gets its frames after the kernel has
/// forgotten their VLAN tag; the filter keeps everything else out.
const ETHERTYPE_ALL: u16 = 0x0003;
/// Last octet of the group addresses 01-80-C2-00-00-xx: nearest bridge, nearest non-TPMR bridge,
/// nearest customer bridge.
const GROUPS: [u8; 3] = [0x0e, 0x03, 0x00];
/// `TC_PRIO_CONTROL` of linux/pkt_sched.h.
const PRIORITY_CONTROL: i32 = 7;
/// Largest frame kept, in bytes; an LLDPDU fits into one Ethernet frame.
const FRAME_MAX: usize = 1600;
/// Ethernet header up to where a VLAN tag goes.
const ADDRESSES: usize = 12;

/// One frame.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The whole Ethernet frame; a VLAN tag that the kernel stripped is back in its place.
    pub bytes: Vec<u8>,
    /// When it was received, monotonic clock.
    pub at: Instant,
}

/// An open socket on one interface.
pub struct LldpSocket {
    fd: OwnedFd,
    index: u32,
    ifname: String,
}

impl LldpSocket {
    /// Opens the socket; the interface may be down and may have no address.
    ///
    /// # Errors
    /// [`NicError`]; needs `CAP_NET_RAW`.
    pub fn open(ifname: &str) -> Result<Self, NicError> {
        let index = index_of(ifname)?;
        let fail = |source| NicError::os("opening an LLDP socket", ifname, "CAP_NET_RAW", source);
        let fd = packet::raw_socket().map_err(fail)?;
        // Filter before bind: nothing else can slip into the queue in between.
        packet::attach_filter(&fd, &FILTER).map_err(fail)?;
        packet::ask_auxdata(&fd).map_err(fail)?;
        for group in GROUPS {
            packet::join_group(&fd, index, group_address(group)).map_err(fail)?;
        }
        // Intel E810 (`ice`) drops LLDP from the host unless its priority is that of control traffic.
        // Old kernels want CAP_NET_ADMIN for that; frames then leave without it, which other NICs do not mind.
        let _ = packet::set_priority(&fd, PRIORITY_CONTROL);
        packet::bind(&fd, index, ETHERTYPE_ALL).map_err(fail)?;
        Ok(Self {
            fd,
            index,
            ifname: ifname.to_owned(),
        })
    }

    /// The interface it listens on.
    pub fn ifname(&self) -> &str {
        &self.ifname
    }

    /// Kernel index of that interface (`ifIndex`).
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Waits for a frame; none when the time is over. Frames larger than Ethernet's are dropped.
    ///
    /// # Errors
    /// [`NicError::Os`], for example when the interface went down or away.
    pub fn recv(&self, timeout: Duration) -> Result<Option<Frame>, NicError> {
        let fail = |source| NicError::os("receiving LLDP", &self.ifname, "CAP_NET_RAW", source);
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if !packet::wait_readable(&self.fd, left).map_err(fail)? {
                if left.is_zero() {
                    return Ok(None);
                }
                continue;
            }
            let mut buffer = [0; FRAME_MAX];
            let (length, tag) = match packet::receive(&self.fd, &mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(fail(error)),
            };
            if let Some(bytes) = whole_frame(&buffer, length, tag) {
                return Ok(Some(Frame {
                    bytes,
                    at: Instant::now(),
                }));
            }
        }
    }

    /// Sends one whole Ethernet frame.
    ///
    /// # Errors
    /// [`NicError::Os`].
    pub fn send(&self, frame: &[u8]) -> Result<(), NicError> {
        packet::send_frame(&self.fd, self.index, frame)
            .map_err(|source| NicError::os("sending LLDP", &self.ifname, "CAP_NET_RAW", source))
    }
}

impl AsFd for LldpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// For an event loop that waits for readability; then [`LldpSocket::recv`] with no time to wait,
/// until it has nothing more.
impl AsRawFd for LldpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// The frame with its tag put back; none when it was larger than the buffer.
fn whole_frame(buffer: &[u8], length: usize, tag: Option<StrippedTag>) -> Option<Vec<u8>> {
    let received = buffer.get(..length)?;
    let (addresses, rest) = received.split_at_checked(ADDRESSES)?;
    let mut bytes = Vec::with_capacity(length + 4);
    bytes.extend_from_slice(addresses);
    if let Some(tag) = tag {
        bytes.extend(tag.tpid.to_be_bytes());
        bytes.extend(tag.tci.to_be_bytes());
    }
    bytes.extend_from_slice(rest);
    Some(bytes)
}

fn group_address(last: u8) -> [u8; 6] {
    [0x01, 0x80, 0xc2, 0x00, 0x00, last]
}

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Offset of the kernel's own "packet type" in a classic BPF program (`SKF_AD_OFF + SKF_AD_PKTTYPE`).
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
/// `PACKET_OUTGOING`: our own frames, which a socket for all EtherTypes also gets to see.
const OUTGOING: u32 = 4;

/// Classic BPF: not our own, EtherType 0x88cc and one of the three group addresses, else drop.
const FILTER: [sock_filter; 12] = [
    instruction(0x30, 0, 0, PACKET_TYPE), // ldb [packet type]
    instruction(0x15, 9, 0, OUTGOING),    // jeq outgoing: drop
    instruction(0x28, 0, 0, 12),          // ldh [12], the EtherType
    instruction(0x15, 0, 7, 0x88cc),      // jeq LLDP, else drop
    instruction(0x20, 0, 0, 0),           // ld [0], destination address
    instruction(0x15, 0, 5, 0x0180_c200), // jeq 01-80-C2-00, else drop
    instruction(0x28, 0, 0, 4),           // ldh [4], its last two octets
    instruction(0x15, 2, 0, 0x000e),      // nearest bridge
    instruction(0x15, 1, 0, 0x0003),      // nearest non-TPMR bridge
    instruction(0x15, 0, 1, 0x0000),      // nearest customer bridge, else drop
    instruction(0x06, 0, 0, 0xffff),      // keep
    instruction(0x06, 0, 0, 0),           // drop
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripped_tag_is_put_back_after_the_addresses() {
        let mut buffer = [0; 64];
        buffer[..14].copy_from_slice(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x88, 0xcc]);
        let tag = StrippedTag {
            tpid: 0x88a8,
            tci: 0x2064,
        };
        let frame = whole_frame(&buffer, 60, Some(tag)).unwrap();
        assert_eq!(frame.len(), 64);
        assert_eq!(frame[12..18], [0x88, 0xa8, 0x20, 0x64, 0x88, 0xcc]);
        assert_eq!(whole_frame(&buffer, 60, None).unwrap(), buffer[..60]);
    }

    #[test]
    fn rejects_frames_that_did_not_fit_or_are_no_frames() {
        assert!(whole_frame(&[0; 64], 65, None).is_none());
        assert!(whole_frame(&[0; 64], 11, None).is_none());
    }
}
