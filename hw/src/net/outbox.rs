//! Datagrams that one `sendmmsg` takes, some of them large ones that are cut on the way out.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::{address, check};

/// Most messages of one call.
const BATCH_MAX: usize = 64;
/// How often one message is tried when the socket reports another one's trouble.
const TRIES_MAX: u32 = 3;
/// How long a full send buffer is waited for; then the datagram counts as lost, which every
/// protocol above must bear anyway.
const FULL_WAIT: Duration = Duration::from_millis(5);
/// `CMSG_SPACE` of one `u16`, rounded to the alignment of a control message.
const CONTROL_LEN: usize = 24;

/// Control message room, aligned as its header must be.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_LEN]);

#[derive(Clone, Copy)]
struct Message {
    to: Option<SocketAddr>,
    start: usize,
    len: usize,
    /// Octets of each datagram; `len` when it is one.
    segment: usize,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Messages the kernel did not take.
    pub dropped: usize,
    /// The connected peer's port is closed.
    pub refused: bool,
}

/// Datagrams side by side in one buffer, with their destinations.
pub struct Outbox {
    /// The octets; append here, then call [`push`](Self::push).
    pub bytes: Vec<u8>,
    messages: Vec<Message>,
    /// Whether the kernel cuts; off after it refused to.
    gso: bool,
    names: Vec<libc::sockaddr_storage>,
    parts: Vec<libc::iovec>,
    controls: Vec<Control>,
    headers: Vec<libc::mmsghdr>,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            messages: Vec::new(),
            gso: true,
            names: vec![address::empty(); BATCH_MAX],
            parts: Vec::with_capacity(BATCH_MAX),
            controls: vec![Control([0; CONTROL_LEN]); BATCH_MAX],
            headers: Vec::with_capacity(BATCH_MAX),
        }
    }
}

impl Outbox {
    /// An empty one that lets the kernel cut large datagrams, or does not.
    pub fn new(gso: bool) -> Self {
        Self {
            gso,
            ..Self::default()
        }
    }

    /// Messages waiting.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Takes the last `len` octets of `bytes` as datagrams of `segment` octets each (the last one
    /// may be shorter) to `to`, or to the peer of a connected socket.
    pub fn push(&mut self, to: Option<SocketAddr>, len: usize, segment: usize) {
        let len = len.min(self.bytes.len());
        if len == 0 || segment == 0 {
            return;
        }
        let start = self.bytes.len() - len;
        if self.gso {
            self.messages.push(Message {
                to,
                start,
                len,
                segment,
            });
        } else {
            self.push_each(to, start, len, segment);
        }
    }

    fn push_each(&mut self, to: Option<SocketAddr>, start: usize, len: usize, segment: usize) {
        self.messages.extend(each(Message {
            to,
            start,
            len,
            segment,
        }));
    }

    /// Sends all and forgets all. `trouble` is called when the socket has an error of an earlier
    /// datagram to tell (`IP_RECVERR`), which stands in the way of the next one.
    pub(super) fn flush(&mut self, fd: BorrowedFd<'_>, mut trouble: impl FnMut()) -> Sent {
        let mut sent = Sent::default();
        let mut next = 0;
        let mut tries = 0;
        while next < self.messages.len() {
            let error = match self.send_from(fd, next) {
                Ok(count) => {
                    next += count.max(1);
                    tries = 0;
                    continue;
                }
                Err(error) => error,
            };
            let message = self.messages[next];
            tries += 1;
            match error.raw_os_error() {
                Some(libc::EINTR) if tries < TRIES_MAX => continue,
                Some(libc::EAGAIN | libc::ENOBUFS) if tries < TRIES_MAX => {
                    wait_for_room(fd);
                    continue;
                }
                // No checksum offload on the way, or a kernel without it: never again.
                Some(libc::EIO | libc::ENOPROTOOPT | libc::EOPNOTSUPP)
                    if message.segment < message.len =>
                {
                    self.gso = false;
                    self.cut(next);
                    tries = 0;
                    continue;
                }
                // A segment larger than the route's MTU by now: IP fragments single datagrams.
                Some(libc::EINVAL | libc::EMSGSIZE) if message.segment < message.len => {
                    self.cut(next);
                    tries = 0;
                    continue;
                }
                Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH)
                    if tries < TRIES_MAX && message.to.is_some() =>
                {
                    trouble();
                    continue;
                }
                Some(libc::ECONNREFUSED) if message.to.is_none() => {
                    sent.refused = true;
                    break;
                }
                _ => {}
            }
            sent.dropped += 1;
            next += 1;
            tries = 0;
        }
        self.messages.clear();
        self.bytes.clear();
        sent
    }

    /// Replaces one message by its datagrams.
    fn cut(&mut self, index: usize) {
        let message = self.messages[index];
        self.messages.splice(index..=index, each(message));
    }

    fn send_from(&mut self, fd: BorrowedFd<'_>, first: usize) -> io::Result<usize> {
        if let [message] = self.messages[first..]
            && message.segment >= message.len
        {
            return self.send_one(fd, message);
        }
        self.parts.clear();
        self.headers.clear();
        let batch = &self.messages[first..];
        let batch = &batch[..batch.len().min(BATCH_MAX)];
        for message in batch {
            let octets = &self.bytes[message.start..message.start + message.len];
            self.parts.push(libc::iovec {
                // The kernel only reads what it sends.
                iov_base: octets.as_ptr().cast_mut().cast(),
                iov_len: octets.len(),
            });
        }
        let rooms = self.names.iter_mut().zip(&mut self.controls);
        for ((message, part), (name, control)) in batch.iter().zip(&mut self.parts).zip(rooms) {
            // SAFETY: mmsghdr is plain data; all-zero is its empty value.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = std::ptr::from_mut(part);
            header.msg_hdr.msg_iovlen = 1;
            if let Some(to) = message.to {
                header.msg_hdr.msg_namelen = address::write(to, name);
                header.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
            }
            if message.segment < message.len {
                set_segment(&mut header.msg_hdr, control, message.segment as u16);
            }
            self.headers.push(header);
        }
        // SAFETY: each header points to one part and perhaps one name and control room, each part
        // into `bytes`; none of these is touched until the call is over.
        let result = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as libc::c_uint,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        check(result as isize)
    }

    /// `sendto`: cheaper for a single datagram, which is all there is in lock step.
    fn send_one(&mut self, fd: BorrowedFd<'_>, message: Message) -> io::Result<usize> {
        let octets = &self.bytes[message.start..message.start + message.len];
        let name = &mut self.names[0];
        let (name, name_len) = match message.to {
            Some(to) => {
                let len = address::write(to, name);
                (std::ptr::from_ref(name).cast(), len)
            }
            None => (std::ptr::null(), 0),
        };
        // SAFETY: `octets` is alive and of the length given; `name` is null with length 0, or a live
        // address of the length that `write` returned.
        let result = unsafe {
            libc::sendto(
                fd.as_raw_fd(),
                octets.as_ptr().cast(),
                octets.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                name,
                name_len,
            )
        };
        check(result).map(|_| 1)
    }
}

/// The datagrams of one message.
fn each(message: Message) -> impl Iterator<Item = Message> {
    let end = message.start + message.len;
    (message.start..end)
        .step_by(message.segment)
        .map(move |start| {
            let len = message.segment.min(end - start);
            Message {
                to: message.to,
                start,
                len,
                segment: len,
            }
        })
}

/// `UDP_SEGMENT` (udp(7)): the kernel cuts the datagram into pieces of this many octets.
fn set_segment(header: &mut libc::msghdr, control: &mut Control, octets: u16) {
    *control = Control([0; CONTROL_LEN]);
    header.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: these only compute sizes.
    let (space, len) = unsafe {
        (
            libc::CMSG_SPACE(size_of::<u16>() as u32) as usize,
            libc::CMSG_LEN(size_of::<u16>() as u32),
        )
    };
    header.msg_controllen = space.min(CONTROL_LEN) as _;
    // SAFETY: the control room is alive, aligned and as long as `msg_controllen` says, which is
    // enough for one header and a u16; so the first header and its data lie within it.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(std::ptr::from_ref(header));
        (*first).cmsg_level = libc::SOL_UDP;
        (*first).cmsg_type = libc::UDP_SEGMENT;
        (*first).cmsg_len = len as _;
        libc::CMSG_DATA(first).cast::<u16>().write_unaligned(octets);
    }
}

fn wait_for_room(fd: BorrowedFd<'_>) {
    let wait = PollTimeout::try_from(FULL_WAIT).unwrap_or(PollTimeout::ZERO);
    // Whether there is room now shows at the next try.
    let _ = nix::poll::poll(&mut [PollFd::new(fd, PollFlags::POLLOUT)], wait);
}
