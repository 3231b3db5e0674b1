//! pcap (draft-ietf-opsawg-pcap) and pcapng (draft-ietf-opsawg-pcapng): frames in file order.
//!
//! Own code rather than a crate: it is small, and an operator at night needs the offset and what was
//! expected there, which no reader we looked at gives. Interface options other than the clock's
//! resolution, names, comments and statistics are passed over.

use super::{CaptureError, LinkType};

/// Longest frame read. libpcap stops at 256 KiB for everything that is a network; four times that is
/// damage.
pub(super) const FRAME_LEN_MAX: usize = 1 << 20;
/// Most interfaces of one pcapng section: a real capture has as many as the host.
const INTERFACES_MAX: usize = 4096;

/// pcap file header.
const PCAP_HEADER_LEN: usize = 24;
/// pcap record header; the variant of a1b2cd34 has eight octets more.
const RECORD_HEADER_LEN: usize = 16;
const MODIFIED_RECORD_HEADER_LEN: usize = 24;
/// The pcap version in use since 1998.
const PCAP_VERSION: u16 = 2;
/// A pcapng block: type, length, length again.
const BLOCK_LEN_MIN: usize = 12;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

mod block {
    pub const SECTION: u32 = 0x0a0d_0d0a;
    pub const INTERFACE: u32 = 1;
    /// Obsolete, still in old files.
    pub const PACKET: u32 = 2;
    pub const SIMPLE_PACKET: u32 = 3;
    pub const ENHANCED_PACKET: u32 = 6;
}

/// One captured frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Position in the file, from 1.
    pub number: u64,
    /// Link layer it begins with.
    pub link: LinkType,
    /// Octets captured.
    pub data: &'a [u8],
    /// Octets it had on the wire, as the file says.
    pub wire_len: u32,
    /// Nanoseconds since 1970, where the file has a time.
    pub time_ns: Option<u64>,
}

/// Reads numbers in the file's byte order.
#[derive(Debug, Clone, Copy)]
struct Order {
    big: bool,
}

impl Order {
    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        match bytes.get(at..).and_then(|b| b.first_chunk::<2>()) {
            Some(octets) if self.big => u16::from_be_bytes(*octets),
            Some(octets) => u16::from_le_bytes(*octets),
            None => 0,
        }
    }

    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        match bytes.get(at..).and_then(|b| b.first_chunk::<4>()) {
            Some(octets) if self.big => u32::from_be_bytes(*octets),
            Some(octets) => u32::from_le_bytes(*octets),
            None => 0,
        }
    }

    fn len(self, bytes: &[u8], at: usize) -> usize {
        // usize has 32 bits or more on every target of ours.
        self.u32(bytes, at) as usize
    }
}

/// A pcapng interface.
#[derive(Debug, Clone, Copy)]
struct Interface {
    link: LinkType,
    /// Longest capture; 0 for no limit. Gives the length of a Simple Packet Block.
    snaplen: usize,
    units_per_sec: u64,
}

#[derive(Debug)]
enum Format {
    Pcap {
        order: Order,
        link: LinkType,
        nanoseconds: bool,
        header_len: usize,
    },
    Pcapng {
        order: Order,
        interfaces: Vec<Interface>,
    },
}

/// The frames of a capture file. After an error there are no more.
#[derive(Debug)]
pub struct Reader<'a> {
    file: &'a [u8],
    at: usize,
    frames: u64,
    format: Format,
}

impl<'a> Reader<'a> {
    /// Looks at the file's header.
    ///
    /// # Errors
    /// [`CaptureError::Format`], and what is wrong with the header.
    pub fn new(file: &'a [u8]) -> Result<Self, CaptureError> {
        let format = |at, format| {
            Ok(Self {
                file,
                at,
                frames: 0,
                format,
            })
        };
        let (big, nanoseconds, header_len) = match file.get(..4) {
            Some([0x0a, 0x0d, 0x0d, 0x0a]) => {
                // The section header is read with the other blocks and sets the byte order.
                let order = Order { big: false };
                let interfaces = Vec::new();
                return format(0, Format::Pcapng { order, interfaces });
            }
            Some([0xa1, 0xb2, 0xc3, 0xd4]) => (true, false, RECORD_HEADER_LEN),
            Some([0xd4, 0xc3, 0xb2, 0xa1]) => (false, false, RECORD_HEADER_LEN),
            Some([0xa1, 0xb2, 0x3c, 0x4d]) => (true, true, RECORD_HEADER_LEN),
            Some([0x4d, 0x3c, 0xb2, 0xa1]) => (false, true, RECORD_HEADER_LEN),
            Some([0xa1, 0xb2, 0xcd, 0x34]) => (true, false, MODIFIED_RECORD_HEADER_LEN),
            Some([0x34, 0xcd, 0xb2, 0xa1]) => (false, false, MODIFIED_RECORD_HEADER_LEN),
            _ => {
                return Err(CaptureError::Format {
                    found: file[..file.len().min(4)].to_vec(),
                });
            }
        };
        let order = Order { big };
        let header = take(file, 0, PCAP_HEADER_LEN, "a pcap file header")?;
        let (major, minor) = (order.u16(header, 4), order.u16(header, 6));
        if major != PCAP_VERSION {
            return Err(CaptureError::Malformed {
                offset: 4,
                expected: "pcap version 2",
                found: format!("version {major}.{minor}"),
            });
        }
        // The upper bits say how long the frame check sequence is; what trails is not looked at.
        let link = LinkType((order.u32(header, 20) & 0xffff) as u16);
        format(
            PCAP_HEADER_LEN,
            Format::Pcap {
                order,
                link,
                nanoseconds,
                header_len,
            },
        )
    }

    /// Frames read so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    fn read(&mut self) -> Result<Option<Frame<'a>>, CaptureError> {
        match self.format {
            Format::Pcap {
                order,
                link,
                nanoseconds,
                header_len,
            } => self.record(order, link, nanoseconds, header_len),
            Format::Pcapng { .. } => self.blocks(),
        }
    }

    fn record(
        &mut self,
        order: Order,
        link: LinkType,
        nanoseconds: bool,
        header_len: usize,
    ) -> Result<Option<Frame<'a>>, CaptureError> {
        let offset = self.at;
        if offset == self.file.len() {
            return Ok(None);
        }
        let header = take(self.file, offset, header_len, "a record header")?;
        let len = order.len(header, 8);
        if len > FRAME_LEN_MAX {
            return Err(CaptureError::FrameTooLong { offset, len });
        }
        let data = take(self.file, offset + header_len, len, "a frame")?;
        self.at = offset + header_len + len;
        let fraction = u64::from(order.u32(header, 4)) * if nanoseconds { 1 } else { 1000 };
        let time_ns = u64::from(order.u32(header, 0)) * 1_000_000_000 + fraction;
        Ok(Some(self.frame(
            link,
            data,
            order.u32(header, 12),
            Some(time_ns),
        )))
    }

    fn frame(
        &mut self,
        link: LinkType,
        data: &'a [u8],
        wire_len: u32,
        time_ns: Option<u64>,
    ) -> Frame<'a> {
        self.frames += 1;
        Frame {
            number: self.frames,
            link,
            data,
            wire_len,
            time_ns,
        }
    }

    /// Blocks up to the next one with a frame.
    fn blocks(&mut self) -> Result<Option<Frame<'a>>, CaptureError> {
        while self.at < self.file.len() {
            let offset = self.at;
            let head = take(self.file, offset, BLOCK_LEN_MIN, "a block")?;
            let Format::Pcapng { order, .. } = &mut self.format else {
                return Ok(None);
            };
            if head[..4] == block::SECTION.to_be_bytes() {
                *order = byte_order(head, offset)?;
            }
            let order = *order;
            let len = order.len(head, 4);
            if len < BLOCK_LEN_MIN || !len.is_multiple_of(4) {
                return Err(CaptureError::Malformed {
                    offset: offset + 4,
                    expected: "a block length of 12 or more, a multiple of 4",
                    found: format!("length {len}"),
                });
            }
            let whole = take(self.file, offset, len, "a block")?;
            let again = order.len(whole, len - 4);
            if again != len {
                return Err(CaptureError::Malformed {
                    offset: offset + len - 4,
                    expected: "the block length again",
                    found: format!("{again} after {len}"),
                });
            }
            self.at = offset + len;
            let body = &whole[8..len - 4];
            if let Some(frame) = self.block(order, order.u32(head, 0), offset, body)? {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// One block; `body` is what stands between its lengths.
    fn block(
        &mut self,
        order: Order,
        kind: u32,
        offset: usize,
        body: &'a [u8],
    ) -> Result<Option<Frame<'a>>, CaptureError> {
        let body_at = offset + 8;
        let Format::Pcapng { interfaces, .. } = &mut self.format else {
            return Ok(None);
        };
        let (interface, time, captured, wire_len, data) = match kind {
            block::SECTION => {
                interfaces.clear();
                return Ok(None);
            }
            block::INTERFACE => {
                let fixed = within(body, body_at, 8, "an interface block")?;
                if interfaces.len() >= INTERFACES_MAX {
                    return Err(CaptureError::Malformed {
                        offset,
                        expected: "at most 4096 interfaces",
                        found: "one more".into(),
                    });
                }
                interfaces.push(Interface {
                    link: LinkType(order.u16(fixed, 0)),
                    snaplen: order.len(fixed, 4),
                    units_per_sec: resolution(order, &body[8..]),
                });
                return Ok(None);
            }
            block::ENHANCED_PACKET => {
                let fixed = within(body, body_at, 20, "a packet block")?;
                let number = order.len(fixed, 0);
                (
                    number,
                    true,
                    order.len(fixed, 12),
                    order.u32(fixed, 16),
                    &body[20..],
                )
            }
            block::PACKET => {
                let fixed = within(body, body_at, 20, "a packet block")?;
                let number = usize::from(order.u16(fixed, 0));
                (
                    number,
                    true,
                    order.len(fixed, 12),
                    order.u32(fixed, 16),
                    &body[20..],
                )
            }
            block::SIMPLE_PACKET => {
                let fixed = within(body, body_at, 4, "a simple packet block")?;
                let wire_len = order.u32(fixed, 0);
                let snaplen = interfaces.first().map_or(0, |i| i.snaplen);
                let limit = if snaplen == 0 { usize::MAX } else { snaplen };
                let captured = (wire_len as usize).min(limit);
                (0, false, captured, wire_len, &body[4..])
            }
            _ => return Ok(None),
        };
        let Some(interface) = interfaces.get(interface).copied() else {
            return Err(CaptureError::Malformed {
                offset: body_at,
                expected: "an interface described before",
                found: format!("interface {interface} of {}", interfaces.len()),
            });
        };
        if captured > FRAME_LEN_MAX {
            return Err(CaptureError::FrameTooLong {
                offset,
                len: captured,
            });
        }
        let left = data.len();
        let data = data.get(..captured).ok_or(CaptureError::Truncated {
            offset: body_at,
            what: "a frame",
            need: captured,
            left,
        })?;
        let time_ns = time.then(|| {
            let units = u64::from(order.u32(body, 4)) << 32 | u64::from(order.u32(body, 8));
            nanoseconds(units, interface.units_per_sec)
        });
        Ok(Some(self.frame(interface.link, data, wire_len, time_ns)))
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Frame<'a>, CaptureError>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_err() {
            self.at = self.file.len();
        }
        read.transpose()
    }
}

/// `len` octets at `offset` of the file.
fn take<'a>(
    file: &'a [u8],
    offset: usize,
    len: usize,
    what: &'static str,
) -> Result<&'a [u8], CaptureError> {
    let left = file.get(offset..).unwrap_or_default();
    left.get(..len).ok_or(CaptureError::Truncated {
        offset,
        what,
        need: len,
        left: left.len(),
    })
}

/// The fixed part of a block's body.
fn within<'a>(
    body: &'a [u8],
    offset: usize,
    len: usize,
    what: &'static str,
) -> Result<&'a [u8], CaptureError> {
    body.get(..len).ok_or(CaptureError::Truncated {
        offset,
        what,
        need: len,
        left: body.len(),
    })
}

/// Of a section, from the magic behind its length.
fn byte_order(head: &[u8], offset: usize) -> Result<Order, CaptureError> {
    for big in [false, true] {
        let order = Order { big };
        if order.u32(head, 8) == BYTE_ORDER_MAGIC {
            return Ok(order);
        }
    }
    Err(CaptureError::Malformed {
        offset: offset + 8,
        expected: "the byte-order magic 1a2b3c4d",
        found: format!("{:08x}", Order { big: true }.u32(head, 8)),
    })
}

/// Clock units in a second, from option `if_tsresol` (9); microseconds when it is absent.
fn resolution(order: Order, mut options: &[u8]) -> u64 {
    const MICROSECONDS: u64 = 1_000_000;
    while options.len() >= 4 {
        let (code, len) = (order.u16(options, 0), usize::from(order.u16(options, 2)));
        let value = options.get(4..4 + len);
        match (code, value) {
            (0, _) | (_, None) => break,
            (9, Some([exponent])) => {
                // The top bit says a power of two.
                return match exponent & 0x80 {
                    0 => 10u64.checked_pow(u32::from(*exponent)),
                    _ => 2u64.checked_pow(u32::from(exponent & 0x7f)),
                }
                .unwrap_or(u64::MAX);
            }
            _ => {}
        }
        options = options
            .get(4 + len.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    MICROSECONDS
}

fn nanoseconds(units: u64, units_per_sec: u64) -> u64 {
    let ns = u128::from(units) * 1_000_000_000 / u128::from(units_per_sec.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}
