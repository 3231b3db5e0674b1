//! What is wrong with a capture file, or with a frame in it: where, what was expected, what is there.

use std::fmt;

use super::LinkType;
use super::file::FRAME_LEN_MAX;
use crate::Explanation;

/// Why a capture file cannot be read on. Frames before it were read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// The file begins with something else.
    #[error("{}", Start(.found))]
    Format {
        /// The first octets, at most four.
        found: Vec<u8>,
    },
    /// The file ends inside something.
    #[error("at offset {offset}: {left} bytes left")]
    Truncated {
        /// Where that thing begins, in octets from the start of the file.
        offset: usize,
        /// What it is.
        what: &'static str,
        /// Octets it has.
        need: usize,
        /// Octets left in the file.
        left: usize,
    },
    /// A length or number that cannot be.
    #[error("at offset {offset}: {found}")]
    Malformed {
        /// Where it stands.
        offset: usize,
        /// What belongs there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A frame longer than is read.
    #[error("at offset {offset}: a frame of {len} bytes")]
    FrameTooLong {
        /// Where its header begins.
        offset: usize,
        /// Octets captured, as the file says.
        len: usize,
    },
}

/// The first octets of a file, named where they are known.
struct Start<'a>(&'a [u8]);

impl fmt::Display for Start<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("an empty file"),
            [0x1f, 0x8b, ..] => f.write_str("a gzip file"),
            [0x28, 0xb5, 0x2f, 0xfd] => f.write_str("a zstd file"),
            [0xfd, b'7', b'z', b'X'] => f.write_str("an xz file"),
            octets => {
                f.write_str("at offset 0: ")?;
                octets.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
            }
        }
    }
}

impl CaptureError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Format { .. } => "capture.format",
            Self::Truncated { .. } => "capture.truncated",
            Self::Malformed { .. } => "capture.malformed",
            Self::FrameTooLong { .. } => "capture.frame_too_long",
        }
    }

    /// The five parts.
    pub fn explain(&self) -> Explanation {
        const AGAIN: &str = "record it again with tcpdump -w; what came before it was read";
        const FORMATS: &str = "pcap (draft-ietf-opsawg-pcap), pcapng (draft-ietf-opsawg-pcapng)";
        let (expected, source, next) = match self {
            Self::Format { .. } => (
                "a pcap file (a1b2c3d4, a1b23c4d or a1b2cd34 in either byte order) or a pcapng file \
                 (0a0d0d0a)"
                    .to_owned(),
                FORMATS,
                "record with tcpdump -w; decompress the file if it is compressed",
            ),
            Self::Truncated { what, need, .. } => (format!("{what} of {need} bytes"), FORMATS, AGAIN),
            Self::Malformed { expected, .. } => ((*expected).to_owned(), FORMATS, AGAIN),
            Self::FrameTooLong { .. } => (
                format!("at most {FRAME_LEN_MAX} bytes"),
                "limit of this reader",
                AGAIN,
            ),
        };
        Explanation {
            code: self.code(),
            expected,
            found: self.to_string(),
            source,
            next,
        }
    }
}

/// Why a frame holds no packet, or a packet no whole UDP datagram.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A link layer that is not read.
    #[error("link type {}", .0.0)]
    LinkType(LinkType),
    /// The frame ends inside a header.
    #[error("{left} bytes")]
    Short {
        /// Which header.
        what: &'static str,
        /// Octets left for it.
        left: usize,
    },
    /// More VLAN tags than are passed over.
    #[error("more than {0} VLAN tags")]
    Tags(usize),
    /// Neither IPv4 nor IPv6.
    #[error("EtherType {0:#06x}")]
    NotIp(u16),
    /// An IP header that contradicts itself.
    #[error("{0}")]
    IpHeader(String),
    /// A fragment: what it carries cannot be told without the others.
    #[error("{}", if *.first { "the first fragment" } else { "a later fragment" })]
    Fragment {
        /// Whether it is the one that begins with the UDP header.
        first: bool,
    },
    /// Another protocol over IP.
    #[error("IP protocol {0}")]
    NotUdp(u8),
}

impl LinkError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::LinkType(_) => "frame.link_type",
            Self::Short { .. } => "frame.short",
            Self::Tags(_) => "frame.tags",
            Self::NotIp(_) => "frame.not_ip",
            Self::IpHeader(_) => "frame.ip_header",
            Self::Fragment { .. } => "frame.fragment",
            Self::NotUdp(_) => "frame.not_udp",
        }
    }

    /// The five parts.
    pub fn explain(&self) -> Explanation {
        const NOTHING: &str = "nothing: other traffic; a capture filter leaves it out";
        const CUT: &str = "record it again with tcpdump -s 0 -w";
        let (expected, source, next) = match self {
            Self::LinkType(_) => (
                "Ethernet (1), Linux cooked v1 (113) or v2 (276), raw IP (12, 14, 101, 228, 229) or \
                 loopback (0, 108)"
                    .to_owned(),
                "tcpdump.org/linktypes",
                "record on the Ethernet interface",
            ),
            Self::Short { what, .. } => (format!("a whole {what}"), "IEEE 802.3, RFC 768", CUT),
            Self::Tags(max) => (format!("at most {max} VLAN tags"), "limit of this reader", NOTHING),
            Self::NotIp(_) => ("IPv4 or IPv6".to_owned(), "RFC 894, RFC 2464", NOTHING),
            Self::IpHeader(_) => ("an IP header".to_owned(), "RFC 791, RFC 8200", CUT),
            Self::Fragment { .. } => (
                "a whole datagram".to_owned(),
                "RFC 791 section 3.2",
                "look for a datagram above the path MTU: a TFTP blksize, a long boot file name",
            ),
            Self::NotUdp(_) => ("UDP (17)".to_owned(), "RFC 768", NOTHING),
        };
        Explanation {
            code: self.code(),
            expected,
            found: self.to_string(),
            source,
            next,
        }
    }
}
