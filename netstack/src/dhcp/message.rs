//! Any DHCPv4 or BOOTP message as it stands on the wire, request or reply, before judgement.
//!
//! The header comes through dhcproto's codec, the options through [`Options`]. For inspection and
//! for [`super::ClientInfo`]; the server decides on the latter.

use std::net::Ipv4Addr;

use dhcproto::v4::borrowed;

use super::{Options, Refused};

/// Octets before the options: BOOTP header and magic cookie.
pub(crate) const HEADER_LEN: usize = 240;
/// RFC 2131 section 3: the first four octets of the options field.
const MAGIC_COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Largest UDP payload read; no client sends jumbo requests, and one cap bounds every option.
const DATAGRAM_LEN_MAX: usize = 9000;

mod field {
    use std::ops::Range;

    pub const OP: usize = 0;
    pub const HTYPE: usize = 1;
    pub const CHADDR: Range<usize> = 28..44;
    pub const SNAME: Range<usize> = 44..108;
    pub const FILE: Range<usize> = 108..236;
    pub const COOKIE: Range<usize> = 236..240;
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// 1 request, 2 reply.
    pub op: u8,
    /// Hardware type.
    pub htype: u8,
    /// Hardware address length in octets; may exceed what `chaddr` holds.
    pub hlen: u8,
    /// Relays passed.
    pub hops: u8,
    /// Transaction id.
    pub xid: u32,
    /// Seconds since the client began.
    pub secs: u16,
    /// Flags; bit 15 asks for broadcast.
    pub flags: u16,
    /// Client's address.
    pub ciaddr: Ipv4Addr,
    /// Address given.
    pub yiaddr: Ipv4Addr,
    /// Next server.
    pub siaddr: Ipv4Addr,
    /// Relay agent.
    pub giaddr: Ipv4Addr,
    /// Hardware address field, whole.
    pub chaddr: [u8; 16],
    /// Server name up to the first NUL.
    pub sname: Vec<u8>,
    /// Boot file up to the first NUL.
    pub file: Vec<u8>,
    /// Options of all fields, joined.
    pub options: Options,
}

impl Message {
    /// Reads one datagram.
    ///
    /// # Errors
    /// [`Refused::TooShort`], [`Refused::TooLong`], [`Refused::Cookie`]. Options never fail: see
    /// [`Options::notes`].
    pub fn parse(datagram: &[u8]) -> Result<Self, Refused> {
        if datagram.len() > DATAGRAM_LEN_MAX {
            return Err(Refused::TooLong {
                len: datagram.len(),
                max: DATAGRAM_LEN_MAX,
            });
        }
        let short = Refused::TooShort {
            len: datagram.len(),
        };
        let Some((fixed, option_field)) = datagram.split_first_chunk::<HEADER_LEN>() else {
            return Err(short);
        };
        let header = borrowed::Message::new(fixed).map_err(|_| short)?;
        let mut cookie = [0; 4];
        cookie.copy_from_slice(&fixed[field::COOKIE]);
        if cookie != MAGIC_COOKIE {
            return Err(Refused::Cookie { found: cookie });
        }
        let mut chaddr = [0; 16];
        chaddr.copy_from_slice(&fixed[field::CHADDR]);
        Ok(Self {
            op: fixed[field::OP],
            htype: fixed[field::HTYPE],
            hlen: header.hlen(),
            hops: header.hops(),
            xid: header.xid(),
            secs: header.secs(),
            flags: header.flags().into(),
            ciaddr: header.ciaddr(),
            yiaddr: header.yiaddr(),
            siaddr: header.siaddr(),
            giaddr: header.giaddr(),
            chaddr,
            sname: header.sname().to_vec(),
            file: header.fname().to_vec(),
            options: Options::parse(option_field, &fixed[field::FILE], &fixed[field::SNAME]),
        })
    }
}
