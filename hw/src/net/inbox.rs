//! Room for datagrams that one `recvmmsg` takes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::libc;

use super::{address, check};

/// Fewest datagrams asked for: preparing room for many costs more than one packet in lock step.
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
            parts: Vec::with_capacity(datagrams),
            headers: Vec::with_capacity(datagrams),
        }
    }

    /// Datagrams of the last receive.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether the last receive brought nothing.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// One datagram and its sender.
    pub fn get(&self, index: usize) -> Option<(SocketAddr, &[u8])> {
        let len = *self.lengths.get(index)?;
        let start = index * self.datagram_len_max;
        let from = address::read(self.names.get(index)?)?;
        Some((from, &self.bytes[start..start + len]))
    }

    /// `recvmmsg` with the given flags; nothing is no error when the wait ended.
    pub(super) fn fill(&mut self, fd: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<usize> {
        self.lengths.clear();
        self.parts.clear();
        self.headers.clear();
        let room = self.names.len();
        self.ask = self.ask.clamp(BATCH_MIN, room);
        let chunks = self.bytes.chunks_exact_mut(self.datagram_len_max);
        for chunk in chunks.take(self.ask) {
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
        let count = match check(result as isize) {
            Ok(count) => count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => 0,
                _ => return Err(error),
            },
        };
        let lengths = self.headers.iter().take(count);
        self.lengths
            .extend(lengths.map(|h| (h.msg_len as usize).min(self.datagram_len_max)));
        self.ask = (count * 2).clamp(BATCH_MIN, room);
        Ok(count)
    }
}
