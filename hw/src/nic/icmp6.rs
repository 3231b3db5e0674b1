//! ICMPv6 of one interface: Router Solicitations in, Router Advertisements out (RFC 3542).
//!
//! The kernel computes and checks checksums, picks our link-local source address for link-local
//! destinations, and drops every type but solicitations before it reaches us.

use std::io::{self, IoSliceMut};
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrIn6, recvmsg, sendto, setsockopt, sockopt,
};

use super::{NicError, bind_to_device, index_of, packet};

/// `ICMP6_FILTER` of linux/icmpv6.h, at level `IPPROTO_ICMPV6`.
const ICMP6_FILTER: libc::c_int = 1;
/// Router Solicitation (RFC 4861 section 4.1).
const SOLICITATION: u8 = 133;
/// All routers on the link.
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Neighbour Discovery packets have this hop limit, in and out (RFC 4861 section 6.1).
const HOP_LIMIT: libc::c_int = 255;

/// A received ICMPv6 message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Octets in the buffer.
    pub len: usize,
    /// Source address.
    pub source: Ipv6Addr,
    /// Hop limit; 0 when the kernel did not say.
    pub hop_limit: u8,
}

/// A raw ICMPv6 socket bound to one interface, non-blocking.
pub struct Icmp6Socket {
    fd: OwnedFd,
    index: u32,
    ifname: String,
}

impl Icmp6Socket {
    /// Opens the socket and joins `ff02::2`, all routers on the link.
    ///
    /// # Errors
    /// [`NicError`]; needs `CAP_NET_RAW`, and an interface with IPv6.
    pub fn open(ifname: &str) -> Result<Self, NicError> {
        let index = index_of(ifname)?;
        let failed = |source| NicError::os("opening ICMPv6", ifname, "CAP_NET_RAW", source);
        let fd = raw_socket().map_err(failed)?;
        bind_to_device(&fd, ifname)?;
        only_solicitations(&fd).map_err(failed)?;
        let options = || -> nix::Result<()> {
            setsockopt(&fd, sockopt::Ipv6RecvHopLimit, &true)?;
            setsockopt(&fd, sockopt::Ipv6MulticastHops, &HOP_LIMIT)?;
            setsockopt(&fd, sockopt::Ipv6Ttl, &HOP_LIMIT)
        };
        options().map_err(|errno| failed(errno.into()))?;
        let group = libc::ipv6_mreq {
            ipv6mr_multiaddr: libc::in6_addr {
                s6_addr: ALL_ROUTERS.octets(),
            },
            ipv6mr_interface: index,
        };
        let (level, join) = (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP);
        packet::set_option(&fd, level, join, &group).map_err(failed)?;
        Ok(Self {
            fd,
            index,
            ifname: ifname.to_owned(),
        })
    }

    /// Receives one message.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none; the kernel's otherwise.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut control = nix::cmsg_space!(libc::c_int);
        let mut parts = [IoSliceMut::new(buffer)];
        let message = recvmsg::<SockaddrIn6>(
            self.fd.as_raw_fd(),
            &mut parts,
            Some(&mut control),
            MsgFlags::MSG_DONTWAIT,
        )?;
        let hop_limit = message.cmsgs()?.find_map(|cmsg| match cmsg {
            ControlMessageOwned::Ipv6HopLimit(limit) => u8::try_from(limit).ok(),
            _ => None,
        });
        let source = message.address.map_or(Ipv6Addr::UNSPECIFIED, |a| a.ip());
        Ok(Received {
            len: message.bytes,
            source,
            hop_limit: hop_limit.unwrap_or(0),
        })
    }

    /// Sends one message with hop limit 255; the kernel fills the checksum.
    ///
    /// # Errors
    /// The kernel's, with the interface.
    pub fn send(&self, message: &[u8], to: Ipv6Addr) -> Result<(), NicError> {
        let to = SockaddrIn6::from(SocketAddrV6::new(to, 0, 0, self.index));
        sendto(self.fd.as_raw_fd(), message, &to, MsgFlags::MSG_DONTWAIT)
            .map(drop)
            .map_err(|errno| {
                NicError::os("sending ICMPv6", &self.ifname, "CAP_NET_RAW", errno.into())
            })
    }
}

impl AsFd for Icmp6Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Icmp6Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

fn raw_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers are involved; the result is checked before it is owned.
    let fd = unsafe { libc::socket(libc::AF_INET6, kind, libc::IPPROTO_ICMPV6) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened here and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `struct icmp6_filter`: a set bit keeps a type from us.
fn only_solicitations(fd: &OwnedFd) -> io::Result<()> {
    let mut filter = [u32::MAX; 8];
    filter[usize::from(SOLICITATION >> 5)] &= !(1 << (SOLICITATION & 31));
    packet::set_option(fd, libc::IPPROTO_ICMPV6, ICMP6_FILTER, &filter)
}
