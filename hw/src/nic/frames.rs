//! Raw sockets for whole frames of one kind: ARP, and DHCP replies on their way to clients.
//!
//! The kernel's filter lets nothing else in. Parses nothing; `netstack` says what a frame means.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::libc::sock_filter;

use super::packet;
use super::{NicError, index_of};

/// Largest frame kept, in bytes: Ethernet with a VLAN tag.
const FRAME_MAX: usize = 1600;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV4: u16 = 0x0800;

/// An open socket on one interface that hears frames of one kind and sends any.
pub struct FrameSocket {
    fd: OwnedFd,
    index: u32,
    mac: [u8; 6],
    ifname: String,
    doing: &'static str,
}

impl FrameSocket {
    /// Hears ARP (RFC 826).
    ///
    /// # Errors
    /// [`NicError`]; needs `CAP_NET_RAW`, and an interface with a hardware address.
    pub fn arp(ifname: &str) -> Result<Self, NicError> {
        Self::open(ifname, ETHERTYPE_ARP, &NOT_OURS, "listening for ARP")
    }

    /// Hears IPv4 datagrams to UDP port 68, to whomever they are addressed.
    ///
    /// # Errors
    /// [`NicError`]; needs `CAP_NET_RAW`, and an interface with a hardware address.
    pub fn dhcp_replies(ifname: &str) -> Result<Self, NicError> {
        let doing = "listening for DHCP replies";
        Self::open(ifname, ETHERTYPE_IPV4, &TO_DHCP_CLIENTS, doing)
    }

    fn open(
        ifname: &str,
        ethertype: u16,
        filter: &[sock_filter],
        doing: &'static str,
    ) -> Result<Self, NicError> {
        let index = index_of(ifname)?;
        let mac = super::hardware_address(ifname)?;
        let fail = |source| NicError::os(doing, ifname, "CAP_NET_RAW", source);
        let fd = packet::raw_socket().map_err(fail)?;
        // Filter before bind: nothing else can slip into the queue in between.
        packet::attach_filter(&fd, filter).map_err(fail)?;
        packet::bind(&fd, index, ethertype).map_err(fail)?;
        Ok(Self {
            fd,
            index,
            mac,
            ifname: ifname.to_owned(),
            doing,
        })
    }

    /// Hardware address of the interface.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Waits for a frame; none when the time is over. Frames larger than Ethernet's are dropped.
    ///
    /// # Errors
    /// [`NicError::Os`], for example when the interface went down or away.
    pub fn recv(&self, timeout: Duration) -> Result<Option<Vec<u8>>, NicError> {
        let fail = |source| NicError::os(self.doing, &self.ifname, "CAP_NET_RAW", source);
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
            match packet::receive(&self.fd, &mut buffer) {
                Ok((length, _)) => {
                    if let Some(frame) = buffer.get(..length) {
                        return Ok(Some(frame.to_vec()));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(fail(error)),
            }
        }
    }

    /// Sends one whole Ethernet frame.
    ///
    /// # Errors
    /// [`NicError::Os`].
    pub fn send(&self, frame: &[u8]) -> Result<(), NicError> {
        packet::send_frame(&self.fd, self.index, frame)
            .map_err(|source| NicError::os("sending a frame", &self.ifname, "CAP_NET_RAW", source))
    }
}

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Offset of the kernel's own "packet type" in a classic BPF program (`SKF_AD_OFF + SKF_AD_PKTTYPE`).
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
/// `PACKET_OUTGOING`: our own frames.
const OUTGOING: u32 = 4;

/// Classic BPF: everything of the socket's EtherType but our own.
const NOT_OURS: [sock_filter; 4] = [
    instruction(0x30, 0, 0, PACKET_TYPE), // ldb [packet type]
    instruction(0x15, 1, 0, OUTGOING),    // jeq outgoing: drop
    instruction(0x06, 0, 0, 0xffff),      // keep
    instruction(0x06, 0, 0, 0),           // drop
];

/// Classic BPF: not our own, UDP, no later fragment, destination port 68.
const TO_DHCP_CLIENTS: [sock_filter; 11] = [
    instruction(0x30, 0, 0, PACKET_TYPE), // ldb [packet type]
    instruction(0x15, 8, 0, OUTGOING),    // jeq outgoing: drop
    instruction(0x30, 0, 0, 23),          // ldb [23], the protocol
    instruction(0x15, 0, 6, 17),          // jeq UDP, else drop
    instruction(0x28, 0, 0, 20),          // ldh [20], flags and fragment offset
    instruction(0x45, 4, 0, 0x1fff),      // jset fragment: drop
    instruction(0xb1, 0, 0, 14),          // ldxb 4*([14]&0xf), the IPv4 header's length
    instruction(0x48, 0, 0, 16),          // ldh [x + 16], the destination port
    instruction(0x15, 0, 1, 68),          // jeq 68, else drop
    instruction(0x06, 0, 0, 0xffff),      // keep
    instruction(0x06, 0, 0, 0),           // drop
];
