//! Connections that the kernel tracks: those of a closed element are deleted.
//!
//! ctnetlink over one `NETLINK_NETFILTER` socket: one dump of the IPv4 table, then one delete for each
//! entry that is to go. Message layout from linux/netlink.h, linux/netfilter/nfnetlink.h and
//! linux/netfilter/nfnetlink_conntrack.h. The kernel is trusted, its lengths are checked all the same.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::GateError;

/// A table of a million entries is read in below a second.
const LIMIT: Duration = Duration::from_secs(10);
/// Largest datagram of a dump: the kernel uses at most 32 KiB.
const BUFFER_BYTES: usize = 64 * 1024;

/// Layouts and numbers of the kernel's headers.
mod field {
    /// `struct nlmsghdr`, then `struct nfgenmsg`.
    pub const HEADER: usize = 16;
    pub const GENERIC: usize = 4;
    /// `NFNL_SUBSYS_CTNETLINK` above the message.
    pub const CT_NEW: u16 = 0x0100;
    pub const CT_GET: u16 = 0x0101;
    pub const CT_DELETE: u16 = 0x0102;
    pub const TUPLE_ORIG: u16 = 1;
    pub const ID: u16 = 12;
    pub const ZONE: u16 = 18;
    pub const TUPLE_IP: u16 = 1;
    pub const TUPLE_PROTO: u16 = 2;
    pub const V4_SRC: u16 = 1;
    pub const V4_DST: u16 = 2;
    pub const PROTO_NUM: u16 = 1;
    pub const PROTO_DST_PORT: u16 = 3;
    /// `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
    pub const TYPE_MASK: u16 = 0x3fff;
    pub const NESTED: u16 = 0x8000;
}

/// A connection as its first packet had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tuple {
    /// Who began it.
    pub source: Ipv4Addr,
    /// To whom.
    pub destination: Ipv4Addr,
    /// Protocol number.
    pub proto: u8,
    /// Destination port; 0 where there is none.
    pub port: u16,
}

/// What names one entry to the kernel, as it was read.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    tuple: Tuple,
    orig: Vec<u8>,
    id: Option<Vec<u8>>,
    zone: Option<Vec<u8>>,
}

/// Deletes every entry whose original direction `doomed` names; how many there were.
pub(super) fn delete(doomed: impl Fn(&Tuple) -> bool) -> Result<usize, GateError> {
    let failed = |doing: &str, source: io::Error| {
        GateError::new(
            "conntrack",
            format!("{doing} by netlink"),
            source.kind().to_string(),
            "the daemon needs CAP_NET_ADMIN and a kernel with CONFIG_NF_CT_NETLINK; the elements are \
             closed either way, and their packets are dropped",
        )
        .because(source)
    };
    let mut socket = Netlink::open().map_err(|e| failed("a socket", e))?;
    let entries = socket
        .dump(&doomed)
        .map_err(|e| failed("a reading of the table", e))?;
    for entry in &entries {
        socket
            .delete(entry)
            .map_err(|e| failed("the end of an entry", e))?;
    }
    Ok(entries.len())
}

struct Netlink {
    fd: OwnedFd,
    seq: u32,
    deadline: Instant,
}

impl Netlink {
    fn open() -> io::Result<Self> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkNetFilter,
        )?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(2, 0))?;
        Ok(Self {
            fd,
            seq: 0,
            deadline: Instant::now() + LIMIT,
        })
    }

    fn send(&mut self, kind: u16, flags: libc::c_int, attributes: &[u8]) -> io::Result<()> {
        self.seq += 1;
        let message = message(kind, flags as u16, self.seq, attributes);
        send(self.fd.as_raw_fd(), &message, MsgFlags::empty())?;
        Ok(())
    }

    fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        if Instant::now() >= self.deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let len = recv(self.fd.as_raw_fd(), buffer, MsgFlags::empty())?;
        Ok(&buffer[..len])
    }

    fn dump(&mut self, doomed: &impl Fn(&Tuple) -> bool) -> io::Result<Vec<Entry>> {
        self.send(field::CT_GET, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, &[])?;
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut entries = Vec::new();
        loop {
            let seq = self.seq;
            for (kind, of, body) in messages(self.receive(&mut buffer)?) {
                if of != seq {
                    continue;
                }
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(entries),
                    libc::NLMSG_ERROR => acknowledged(body)?,
                    _ if kind == field::CT_NEW => {
                        entries.extend(entry_of(body).filter(|entry| doomed(&entry.tuple)));
                    }
                    _ => {}
                }
            }
        }
    }

    fn delete(&mut self, entry: &Entry) -> io::Result<()> {
        let mut attributes = Vec::new();
        attribute(
            &mut attributes,
            field::TUPLE_ORIG | field::NESTED,
            &entry.orig,
        );
        for (kind, value) in [(field::ID, &entry.id), (field::ZONE, &entry.zone)] {
            if let Some(value) = value {
                attribute(&mut attributes, kind, value);
            }
        }
        self.send(
            field::CT_DELETE,
            libc::NLM_F_REQUEST | libc::NLM_F_ACK,
            &attributes,
        )?;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let seq = self.seq;
            for (kind, of, body) in messages(self.receive(&mut buffer)?) {
                if of != seq || i32::from(kind) != libc::NLMSG_ERROR {
                    continue;
                }
                return match acknowledged(body) {
                    // It ended by itself meanwhile.
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                    other => other,
                };
            }
        }
    }
}

/// `struct nlmsgerr`: a negative errno, 0 for an acknowledgement.
fn acknowledged(body: &[u8]) -> io::Result<()> {
    let code = body.first_chunk().map(|code| i32::from_ne_bytes(*code));
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn message(kind: u16, flags: u16, seq: u32, attributes: &[u8]) -> Vec<u8> {
    let len = field::HEADER + field::GENERIC + attributes.len();
    let mut out = Vec::with_capacity(len);
    out.extend_from_slice(&(len as u32).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&seq.to_ne_bytes());
    out.extend_from_slice(&0u32.to_ne_bytes());
    out.extend_from_slice(&[libc::AF_INET as u8, 0, 0, 0]);
    out.extend_from_slice(attributes);
    out
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Type, sequence and body of each message of a datagram, as far as the lengths hold.
fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let (header, _) = rest.split_at_checked(field::HEADER)?;
        let len = u32::from_ne_bytes(*header.first_chunk()?);
        let len = usize::try_from(len).ok()?;
        let kind = u16::from_ne_bytes(*header.get(4..)?.first_chunk()?);
        let seq = u32::from_ne_bytes(*header.get(8..)?.first_chunk()?);
        let body = rest.get(field::HEADER..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, seq, body))
    })
}

/// Type and value of each attribute, as far as the lengths hold.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & field::TYPE_MASK, value))
    })
}

fn find(of: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(of).find_map(|(found, value)| (found == kind).then_some(value))
}

/// An entry of the dump, if it is an IPv4 one.
fn entry_of(body: &[u8]) -> Option<Entry> {
    let all = body.get(field::GENERIC..)?;
    let orig = find(all, field::TUPLE_ORIG)?;
    let (ip, proto) = (
        find(orig, field::TUPLE_IP)?,
        find(orig, field::TUPLE_PROTO)?,
    );
    let address = |kind| Some(Ipv4Addr::from(*find(ip, kind)?.first_chunk::<4>()?));
    let port = find(proto, field::PROTO_DST_PORT).and_then(|port| port.first_chunk());
    Some(Entry {
        tuple: Tuple {
            source: address(field::V4_SRC)?,
            destination: address(field::V4_DST)?,
            proto: *find(proto, field::PROTO_NUM)?.first()?,
            port: port.map_or(0, |port| u16::from_be_bytes(*port)),
        },
        orig: orig.to_vec(),
        id: find(all, field::ID).map(<[u8]>::to_vec),
        zone: find(all, field::ZONE).map(<[u8]>::to_vec),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> Vec<u8> {
        let (mut ip, mut proto, mut orig) = (Vec::new(), Vec::new(), Vec::new());
        attribute(&mut ip, field::V4_SRC, &[10, 0, 0, 2]);
        attribute(&mut ip, field::V4_DST, &[192, 0, 2, 9]);
        attribute(&mut proto, field::PROTO_NUM, &[6]);
        attribute(&mut proto, 2, &40_000u16.to_be_bytes());
        attribute(&mut proto, field::PROTO_DST_PORT, &6443u16.to_be_bytes());
        attribute(&mut orig, field::TUPLE_IP | field::NESTED, &ip);
        attribute(&mut orig, field::TUPLE_PROTO | field::NESTED, &proto);
        let mut body = vec![libc::AF_INET as u8, 0, 0, 0];
        attribute(&mut body, field::TUPLE_ORIG | field::NESTED, &orig);
        attribute(&mut body, field::ID, &[1, 2, 3, 4]);
        body
    }

    #[test]
    fn an_entry_is_read_and_named_as_it_came() {
        let entry = entry_of(&body()).expect("an entry");
        let expected = Tuple {
            source: Ipv4Addr::new(10, 0, 0, 2),
            destination: Ipv4Addr::new(192, 0, 2, 9),
            proto: 6,
            port: 6443,
        };
        assert_eq!(entry.tuple, expected);
        assert_eq!(entry.id.as_deref(), Some(&[1, 2, 3, 4][..]));
        assert_eq!(entry.zone, None);
        let datagram = message(field::CT_NEW, 2, 7, &body()[field::GENERIC..]);
        let read: Vec<_> = messages(&datagram).collect();
        assert_eq!(read, [(field::CT_NEW, 7, body().as_slice())]);
    }

    #[test]
    fn lengths_that_lie_end_the_reading() {
        let whole = message(field::CT_NEW, 2, 7, &body()[field::GENERIC..]);
        for end in 0..whole.len() {
            for (_, _, body) in messages(&whole[..end]) {
                assert_eq!(entry_of(body), None);
            }
        }
        let mut bytes = whole.clone();
        for at in 0..bytes.len() {
            for with in [0, 1, 3, 0x7f, 0xff] {
                let kept = std::mem::replace(&mut bytes[at], with);
                // Bounded: each turn takes at least a header, or ends.
                let count = messages(&bytes).take(1_000).fold(0, |count, (_, _, body)| {
                    let _ = entry_of(body);
                    count + 1
                });
                assert!(count < 1_000);
                bytes[at] = kept;
            }
        }
    }

    #[test]
    fn an_answer_is_a_code() {
        assert!(acknowledged(&0i32.to_ne_bytes()).is_ok());
        let denied = acknowledged(&(-libc::EPERM).to_ne_bytes()).expect_err("an errno");
        assert_eq!(denied.raw_os_error(), Some(libc::EPERM));
        assert!(acknowledged(&i32::MIN.to_ne_bytes()).is_err());
        assert!(acknowledged(&[0]).is_err());
    }
}
