//! Room for datagrams that one `recvmmsg` takes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::libc;

use super::{Wait, address, check};

/// Fewest datagrams of a batch: preparing room for many costs more than it saves while few come.
const BATCH_MIN: usize = 4;

/// Buffers for up to a fixed number of datagrams.
pub struct Inbox {
    bytes: Vec<u8>,
    datagram_len_max: usize,
    names: Vec<libc::sockaddr_storage>,
    /// Length of each datagram of the last batch.
    lengths: Vec<usize>,
    /// How many are asked for next: twice what came last.
    ask: usize,
    /// How many the last receive asked for.
    asked: usize,
    /// Most that can come at once, as far as the caller knows.
    expected: usize,
    parts: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

impl Inbox {
    /// Room for `datagrams`, each cut at `datagram_len_max` octets.
    pub fn new(datagrams: usize, datagram_len_max: usize) -> Self {
        let datagrams = datagrams.max(BATCH_MIN);
        Self {
            bytes: vec![0; datagrams * datagram_len_max],
            datagram_len_max,
            names: vec![address::empty(); datagrams],
            lengths: Vec::with_capacity(datagrams),
            ask: BATCH_MIN,
            asked: 0,
            expected: datagrams,
            parts: Vec::with_capacity(datagrams),
            headers: Vec::with_capacity(datagrams),
        }
    }

    /// Says how many datagrams can be under way. One is waited for by a plainer call, which does not look
    /// into the socket a second time; that more came than expected only costs another call.
    pub fn expect(&mut self, datagrams: usize) {
        self.expected = datagrams;
    }

    /// Datagrams of the last receive.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether the last receive brought nothing.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Whether more may wait in the socket: the last receive brought as many as it asked for.
    pub fn is_full(&self) -> bool {
        self.lengths.len() >= self.asked
    }

    /// One datagram and its sender.
    pub fn get(&self, index: usize) -> Option<(SocketAddr, &[u8])> {
        let len = *self.lengths.get(index)?;
        let start = index * self.datagram_len_max;
        let from = address::read(self.names.get(index)?)?;
        Some((from, &self.bytes[start..start + len]))
    }

    /// Receives what there is; waits for the first datagram if asked. Nothing is no error when the
    /// wait ended.
    pub(super) fn fill(&mut self, fd: BorrowedFd<'_>, wait: Wait) -> io::Result<usize> {
        self.lengths.clear();
        let filled = match wait {
            Wait::Patiently if self.expected <= 1 => self.fill_one(fd),
            Wait::Patiently => self.fill_many(fd, libc::MSG_WAITFORONE),
            Wait::No => self.fill_many(fd, libc::MSG_DONTWAIT),
        };
        filled.or_else(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
            _ => Err(error),
        })
    }

    /// `recvfrom`.
    fn fill_one(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.asked = 1;
        let room = &mut self.bytes[..self.datagram_len_max];
        let name = &mut self.names[0];
        let mut name_len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        // SAFETY: `room` and `name` are alive and of the lengths given; the kernel writes no more, and
        // neither is touched until the call is over.
        let result = unsafe {
            libc::recvfrom(
                fd.as_raw_fd(),
                room.as_mut_ptr().cast(),
                room.len(),
                0,
                std::ptr::from_mut(name).cast(),
                &raw mut name_len,
            )
        };
        self.lengths.push(check(result)?);
        Ok(1)
    }

    /// `recvmmsg`.
    fn fill_many(&mut self, fd: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<usize> {
        self.parts.clear();
        self.headers.clear();
        let room = self.names.len();
        self.asked = self.ask.clamp(BATCH_MIN, room);
        let chunks = self.bytes.chunks_exact_mut(self.datagram_len_max);
        for chunk in chunks.take(self.asked) {
            self.parts.push(libc::iovec {
                iov_base: chunk.as_mut_ptr().cast(),
                iov_len: chunk.len(),
            });
        }
        for (part, name) in self.parts.iter_mut().zip(&mut self.names) {
            // SAFETY: mmsghdr is plain data; all-zero is its empty value.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_iov = std::ptr::from_mut(part);
            header.msg_hdr.msg_iovlen = 1;
            self.headers.push(header);
        }
        // SAFETY: each header points to one part and one name, each part to its own chunk of
        // `bytes`; these vectors are not touched until the call is over.
        let result = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as libc::c_uint,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        let received = check(result as isize);
        let most_likely = received.as_ref().map_or(0, |count| count * 2);
        self.ask = most_likely.clamp(BATCH_MIN, room);
        let count = received?;
        let lengths = self.headers.iter().take(count);
        self.lengths
            .extend(lengths.map(|h| (h.msg_len as usize).min(self.datagram_len_max)));
        Ok(count)
    }
}
