//! A UDP socket of a server: shared by all peers, or connected to one.

use std::io;
use std::mem::size_of;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};

use super::{Inbox, Outbox, Sent, address, check};

/// Socket buffers: a boot storm's acknowledgements, and windows to all of them. The kernel gives
/// less to a process without `CAP_NET_ADMIN`.
const BUFFER_LEN: usize = 4 << 20;
/// Most ICMP errors taken at once; the rest wait for the next time.
const ERRORS_MAX: usize = 64;

/// How long to wait for a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// As long as [`UdpPort::set_patience`] says.
    Patiently,
}

/// One UDP socket.
pub struct UdpPort {
    socket: UdpSocket,
    connected: bool,
}

impl UdpPort {
    /// A port that all peers send to. ICMP errors are told by [`unreachable`](Self::unreachable).
    ///
    /// # Errors
    /// The socket is refused.
    pub fn shared(socket: UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        let on = true;
        match socket.local_addr()? {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4RecvErr, &on)?,
            SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvErr, &on)?,
        }
        for set in [
            setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_LEN)
                .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &BUFFER_LEN)),
            setsockopt(&socket, sockopt::SndBufForce, &BUFFER_LEN)
                .or_else(|_| setsockopt(&socket, sockopt::SndBuf, &BUFFER_LEN)),
        ] {
            set?;
        }
        Ok(Self {
            socket,
            connected: false,
        })
    }

    /// A port of its own for one peer; takes packets of this peer only.
    ///
    /// # Errors
    /// No port or descriptor is left, or there is no route.
    pub fn connected(local: SocketAddr, peer: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(SocketAddr::new(local.ip(), 0))?;
        socket.connect(peer)?;
        Ok(Self {
            socket,
            connected: true,
        })
    }

    /// What the kernel gave of the receive buffer that [`shared`](Self::shared) asked for, and what
    /// that was, in bytes.
    pub fn receive_room(&self) -> (usize, usize) {
        // The kernel doubles what it was asked for, to have room for its own records (socket(7)).
        let doubled = nix::sys::socket::getsockopt(&self.socket, sockopt::RcvBuf).unwrap_or(0);
        (doubled / 2, BUFFER_LEN)
    }

    /// The local address.
    ///
    /// # Errors
    /// Only for a broken socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// How long [`Wait::Patiently`] waits.
    ///
    /// # Errors
    /// A wait of zero.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(patience))
    }

    /// Takes what has come, at most what fits the inbox; nothing when the wait ended.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`] of a connected port: the peer's port is closed. Of a
    /// shared port an ICMP error ends the wait without an error; see
    /// [`unreachable`](Self::unreachable).
    pub fn receive(&self, inbox: &mut Inbox, wait: Wait) -> io::Result<usize> {
        match inbox.fill(self.socket.as_fd(), wait) {
            Err(error) if !self.connected && is_icmp(&error) => Ok(0),
            other => other,
        }
    }

    /// Sends and empties the outbox. Peers whose ports are closed are added to `closed`.
    pub fn send(&self, outbox: &mut Outbox, closed: &mut Vec<SocketAddr>) -> Sent {
        outbox.flush(self.socket.as_fd(), || self.unreachable(closed))
    }

    /// Takes the ICMP errors of a shared port: adds the peers whose ports are closed to `closed`.
    /// Other errors (no route, too big) pass by themselves or by the peer's silence.
    pub fn unreachable(&self, closed: &mut Vec<SocketAddr>) {
        for _ in 0..ERRORS_MAX {
            match next_error(self.socket.as_fd()) {
                Some((libc::ECONNREFUSED, Some(peer))) => closed.push(peer),
                Some(_) => {}
                None => return,
            }
        }
    }

    /// MTU of the route of a connected port.
    ///
    /// # Errors
    /// The port is not connected.
    pub fn path_mtu(&self) -> io::Result<u32> {
        let (level, option) = match self.socket.local_addr()? {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        let mut mtu: libc::c_int = 0;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the pointers are to a live int and a live length that states its size.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                level,
                option,
                std::ptr::from_mut(&mut mtu).cast(),
                &raw mut len,
            )
        };
        check(result as isize)?;
        u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// MTU of the route from one of our addresses to a peer, path MTU discovery included.
///
/// # Errors
/// There is no route.
pub fn path_mtu(local: SocketAddr, peer: SocketAddr) -> io::Result<u32> {
    UdpPort::connected(local, peer)?.path_mtu()
}

/// What an ICMP message makes of the next call on a socket.
fn is_icmp(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EMSGSIZE
                | libc::EPROTO
                | libc::EHOSTDOWN
                | libc::ENOPROTOOPT
        )
    )
}

/// One entry of the error queue (ip(7), `IP_RECVERR`): the error and where its datagram was going.
fn next_error(fd: BorrowedFd<'_>) -> Option<(i32, Option<SocketAddr>)> {
    /// Room for `sock_extended_err` and an offender's address, aligned as a header must be.
    #[repr(C, align(8))]
    struct Control([u8; 128]);
    let mut control = Control([0; 128]);
    let mut name = address::empty();
    // The failed datagram itself comes back here; it is not looked at.
    let mut payload = [0_u8; 8];
    let mut part = libc::iovec {
        iov_base: payload.as_mut_ptr().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: msghdr is plain data; all-zero is its empty value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = std::ptr::from_mut(&mut name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: `message` points to live buffers of the lengths it states.
    let result = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    check(result).ok()?;
    let mut errno = 0;
    // SAFETY: `message` was filled by recvmsg and `control` is still alive.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR only return headers that lie within the control
        // buffer; its alignment is that of cmsghdr.
        let (level, kind, len) = unsafe {
            (
                (*header).cmsg_level,
                (*header).cmsg_type,
                (*header).cmsg_len as usize,
            )
        };
        let ours = matches!(
            (level, kind),
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
        );
        // SAFETY: only computes a size.
        let wanted =
            unsafe { libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) } as usize;
        if ours && len >= wanted {
            // SAFETY: the message is at least as long as the structure, and any bytes are a valid
            // one; read_unaligned asks for no alignment.
            let error = unsafe {
                libc::CMSG_DATA(header)
                    .cast::<libc::sock_extended_err>()
                    .read_unaligned()
            };
            errno = error.ee_errno as i32;
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Some((errno, address::read(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> (UdpPort, SocketAddr) {
        let port = UdpPort::shared(UdpSocket::bind("127.0.0.1:0").expect("bound")).expect("set up");
        let address = port.local_addr().expect("address");
        (port, address)
    }

    fn client() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        let patience = Some(Duration::from_secs(5));
        socket.set_read_timeout(patience).expect("timeout");
        let address = socket.local_addr().expect("address");
        (socket, address)
    }

    #[test]
    fn a_batch_comes_in_with_its_senders() {
        let (port, to) = shared();
        port.set_patience(Duration::from_secs(5)).expect("patience");
        let (a, from_a) = client();
        let (b, from_b) = client();
        a.send_to(b"one", to).expect("sent");
        b.send_to(&[7; 100], to).expect("sent");
        let mut inbox = Inbox::new(8, 64);
        assert_eq!(port.receive(&mut inbox, Wait::Patiently).expect("some"), 2);
        assert_eq!(inbox.get(0), Some((from_a, &b"one"[..])));
        assert_eq!(inbox.get(1), Some((from_b, &[7; 64][..])), "cut, not more");
        assert_eq!(inbox.get(2), None);
        assert_eq!(port.receive(&mut inbox, Wait::No).expect("none"), 0);
        assert!(inbox.is_empty());
        inbox.expect(1);
        a.send_to(b"one", to).expect("sent");
        b.send_to(&[7; 100], to).expect("sent");
        assert_eq!(port.receive(&mut inbox, Wait::Patiently).expect("some"), 1);
        assert!(inbox.is_full());
        assert_eq!(inbox.get(0), Some((from_a, &b"one"[..])));
        assert_eq!(inbox.get(1), None);
        assert_eq!(port.receive(&mut inbox, Wait::No).expect("some"), 1);
        assert!(!inbox.is_full());
        assert_eq!(inbox.get(0), Some((from_b, &[7; 64][..])), "cut, not more");
        assert_eq!(port.receive(&mut inbox, Wait::No).expect("none"), 0);
        assert!(inbox.is_empty());
    }

    #[test]
    fn a_window_goes_out_as_datagrams_with_and_without_help_of_the_kernel() {
        for gso in [true, false] {
            let (port, _) = shared();
            let (a, to_a) = client();
            let (b, to_b) = client();
            let mut outbox = Outbox::new(gso);
            outbox.bytes.extend(0..250_u8);
            outbox.push(Some(to_a), 250, 100);
            outbox.bytes.extend(b"single");
            outbox.push(Some(to_b), 6, 6);
            let mut closed = Vec::new();
            assert_eq!(port.send(&mut outbox, &mut closed), Sent::default());
            assert!(outbox.is_empty() && outbox.bytes.is_empty() && closed.is_empty());
            let mut buffer = [0; 2048];
            let mut got = Vec::new();
            for want in [100, 100, 50] {
                let len = a.recv(&mut buffer).expect("a datagram");
                assert_eq!(len, want, "gso {gso}");
                got.extend_from_slice(&buffer[..len]);
            }
            assert!(got.iter().copied().eq(0..250));
            assert_eq!(b.recv(&mut buffer).expect("a datagram"), 6);
        }
    }

    #[test]
    fn a_closed_port_is_told_and_does_not_hurt_the_others() {
        let (port, _) = shared();
        let (gone, to_gone) = client();
        let (stays, to_stays) = client();
        drop(gone);
        let (mut outbox, mut closed) = (Outbox::new(true), Vec::new());
        for to in [to_gone, to_stays] {
            outbox.bytes.extend(b"hello");
            outbox.push(Some(to), 5, 5);
        }
        assert_eq!(port.send(&mut outbox, &mut closed).dropped, 0);
        let mut buffer = [0; 16];
        assert_eq!(stays.recv(&mut buffer).expect("a datagram"), 5);
        port.unreachable(&mut closed);
        assert_eq!(closed, [to_gone]);
        assert_eq!(
            port.receive(&mut Inbox::new(4, 64), Wait::No)
                .expect("no error"),
            0
        );
    }

    #[test]
    fn rejects_sending_on_to_a_connected_peer_that_left() {
        let (peer, to) = client();
        let port = UdpPort::connected(([127, 0, 0, 1], 0).into(), to).expect("connected");
        drop(peer);
        let (mut outbox, mut closed) = (Outbox::new(true), Vec::new());
        for _ in 0..2 {
            outbox.bytes.extend(b"hello");
            outbox.push(None, 5, 5);
            if port.send(&mut outbox, &mut closed).refused {
                return;
            }
        }
        let refused = port.receive(&mut Inbox::new(4, 64), Wait::No);
        assert_eq!(
            refused.expect_err("closed").kind(),
            io::ErrorKind::ConnectionRefused
        );
    }

    #[test]
    fn the_loopback_route_has_its_mtu() {
        let (_, to) = client();
        let mtu = path_mtu(([127, 0, 0, 1], 0).into(), to).expect("a route");
        assert!(mtu >= 16_384, "{mtu}");
    }
}
