//! TFTP packets (RFC 1350 section 5; option fields by RFC 2347).

use crate::Explanation;

/// Longest request read. RFC 2347 wants at most 512 octets; firmware with long paths sends more.
const REQUEST_LEN_MAX: usize = 1024;
/// Most options kept of a request; there are four we know.
const OPTIONS_MAX: usize = 16;

mod opcode {
    pub const RRQ: u16 = 1;
    pub const WRQ: u16 = 2;
    pub const DATA: u16 = 3;
    pub const ACK: u16 = 4;
    pub const ERROR: u16 = 5;
    pub const OACK: u16 = 6;
}

/// One packet, borrowed from the datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet<'a> {
    /// Read request.
    ReadRequest(Request),
    /// Write request.
    WriteRequest(Request),
    /// Data block.
    Data {
        /// Block number, rolls over.
        block: u16,
        /// Contents.
        data: &'a [u8],
    },
    /// Acknowledgement.
    Ack {
        /// Block number.
        block: u16,
    },
    /// The peer gives up.
    Error(ErrorReply),
    /// Option acknowledgement, sent by servers.
    OptionAck {
        /// Names and values as sent.
        options: Vec<(String, String)>,
    },
}

/// A read or write request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// File name as sent, not a path of ours.
    pub filename: String,
    /// Transfer mode.
    pub mode: Mode,
    /// Options in the order sent; names in lower case (RFC 2347: case does not matter).
    pub options: Vec<(String, String)>,
}

impl Request {
    /// The value of an option; the first one if it came twice.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Transfer mode (RFC 1350 section 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Bytes as they are.
    Octet,
    /// Text with CR LF line ends.
    Netascii,
}

/// Error codes (RFC 1350 appendix; 8 by RFC 2347).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// 0: see the message.
    NotDefined,
    /// 1.
    FileNotFound,
    /// 2.
    AccessViolation,
    /// 3.
    DiskFull,
    /// 4.
    IllegalOperation,
    /// 5.
    UnknownTransferId,
    /// 6.
    FileExists,
    /// 7.
    NoSuchUser,
    /// 8: the peer does not want the options acknowledged; UEFI ends its size probe this way.
    OptionNegotiation,
    /// Any other value a peer sent.
    Other(u16),
}

impl ErrorCode {
    /// From the wire.
    pub fn from_wire(value: u16) -> Self {
        match value {
            0 => Self::NotDefined,
            1 => Self::FileNotFound,
            2 => Self::AccessViolation,
            3 => Self::DiskFull,
            4 => Self::IllegalOperation,
            5 => Self::UnknownTransferId,
            6 => Self::FileExists,
            7 => Self::NoSuchUser,
            8 => Self::OptionNegotiation,
            other => Self::Other(other),
        }
    }

    /// To the wire.
    pub fn to_wire(self) -> u16 {
        match self {
            Self::NotDefined => 0,
            Self::FileNotFound => 1,
            Self::AccessViolation => 2,
            Self::DiskFull => 3,
            Self::IllegalOperation => 4,
            Self::UnknownTransferId => 5,
            Self::FileExists => 6,
            Self::NoSuchUser => 7,
            Self::OptionNegotiation => 8,
            Self::Other(value) => value,
        }
    }
}

/// An ERROR packet, to send or as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorReply {
    /// Code.
    pub code: ErrorCode,
    /// Text for a person; shown on the machine's console.
    pub message: String,
}

impl ErrorReply {
    /// An error with a message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(5 + self.message.len());
        out.extend_from_slice(&opcode::ERROR.to_be_bytes());
        out.extend_from_slice(&self.code.to_wire().to_be_bytes());
        out.extend(self.message.bytes().filter(|octet| *octet != 0));
        out.push(0);
        out
    }
}

/// Why a datagram is no packet we read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Fewer octets than the opcode and its fixed part.
    #[error("{len} bytes are too short")]
    TooShort {
        /// Octets received.
        len: usize,
    },
    /// A request over the bound.
    #[error("request of {len} bytes")]
    RequestTooLong {
        /// Octets received.
        len: usize,
    },
    /// No such opcode.
    #[error("opcode {0}")]
    Opcode(u16),
    /// File name, mode or an option is not NUL terminated text.
    #[error("{0} is not terminated UTF-8 text")]
    Text(&'static str),
    /// The file name is empty.
    #[error("empty file name")]
    EmptyName,
    /// Neither `octet` nor `netascii`.
    #[error("mode {0:?}")]
    Mode(String),
}

impl PacketError {
    /// Stable code, also the metric label.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooShort { .. } => "tftp.too_short",
            Self::RequestTooLong { .. } => "tftp.request_too_long",
            Self::Opcode(_) => "tftp.opcode",
            Self::Text(_) => "tftp.text",
            Self::EmptyName => "tftp.empty_name",
            Self::Mode(_) => "tftp.mode",
        }
    }

    /// The five parts for log and API.
    pub fn explain(&self) -> Explanation {
        let (expected, source) = match self {
            Self::TooShort { .. } => ("a whole packet".to_owned(), "RFC 1350 section 5"),
            Self::RequestTooLong { .. } => (
                format!("at most {REQUEST_LEN_MAX} bytes"),
                "limit of this server",
            ),
            Self::Opcode(_) => ("an opcode from 1 to 6".to_owned(), "RFC 1350 section 5"),
            Self::Text(_) => ("text that ends in NUL".to_owned(), "RFC 1350 section 5"),
            Self::EmptyName => ("a file name".to_owned(), "RFC 1350 section 5"),
            Self::Mode(_) => ("octet or netascii".to_owned(), "RFC 1350 section 1"),
        };
        Explanation {
            code: self.code(),
            expected,
            found: self.to_string(),
            source,
            next: "look at the boot file name the client was given; else ignore it as noise",
        }
    }

    /// What the peer is told; `None` for packets that must not be answered.
    pub fn reply(&self) -> Option<ErrorReply> {
        match self {
            Self::TooShort { .. } | Self::Opcode(_) => None,
            Self::RequestTooLong { .. } | Self::Text(_) | Self::EmptyName | Self::Mode(_) => Some(
                ErrorReply::new(ErrorCode::IllegalOperation, self.to_string()),
            ),
        }
    }
}

impl<'a> Packet<'a> {
    /// Reads one datagram.
    ///
    /// # Errors
    /// The first rule of RFC 1350 or 2347 that does not hold. Options that cannot be read, and
    /// those beyond the sixteenth, are left out rather than refused.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, PacketError> {
        let short = PacketError::TooShort {
            len: datagram.len(),
        };
        let (opcode, body) = take_u16(datagram).ok_or(short.clone())?;
        match opcode {
            opcode::RRQ => request(datagram.len(), body).map(Packet::ReadRequest),
            opcode::WRQ => request(datagram.len(), body).map(Packet::WriteRequest),
            opcode::DATA => {
                let (block, data) = take_u16(body).ok_or(short)?;
                Ok(Packet::Data { block, data })
            }
            // Some clients pad the ACK to the Ethernet minimum: what follows is not looked at.
            opcode::ACK => Ok(Packet::Ack {
                block: take_u16(body).ok_or(short)?.0,
            }),
            opcode::ERROR => {
                let (code, text) = take_u16(body).ok_or(short)?;
                let text = text.split(|octet| *octet == 0).next().unwrap_or_default();
                let text = &text[..text.len().min(256)];
                let message = String::from_utf8_lossy(text).into_owned();
                Ok(Packet::Error(ErrorReply {
                    code: ErrorCode::from_wire(code),
                    message,
                }))
            }
            opcode::OACK => Ok(Packet::OptionAck {
                options: options(body),
            }),
            other => Err(PacketError::Opcode(other)),
        }
    }
}

fn take_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (value, rest) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*value), rest))
}

/// One NUL terminated string.
fn take_text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|octet| *octet == 0)?;
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    Some((text, &bytes[end + 1..]))
}

fn request(len: usize, body: &[u8]) -> Result<Request, PacketError> {
    if len > REQUEST_LEN_MAX {
        return Err(PacketError::RequestTooLong { len });
    }
    let (filename, rest) = take_text(body).ok_or(PacketError::Text("file name"))?;
    if filename.is_empty() {
        return Err(PacketError::EmptyName);
    }
    let (mode, rest) = take_text(rest).ok_or(PacketError::Text("mode"))?;
    let mode = match mode.to_ascii_lowercase().as_str() {
        "octet" => Mode::Octet,
        "netascii" => Mode::Netascii,
        _ => return Err(PacketError::Mode(mode.to_owned())),
    };
    Ok(Request {
        filename: filename.to_owned(),
        mode,
        options: options(rest),
    })
}

fn options(mut rest: &[u8]) -> Vec<(String, String)> {
    let mut options = Vec::new();
    while options.len() < OPTIONS_MAX
        && let Some((name, tail)) = take_text(rest)
        && let Some((value, tail)) = take_text(tail)
    {
        options.push((name.to_ascii_lowercase(), value.to_owned()));
        rest = tail;
    }
    options
}

/// Appends a DATA packet to `out`.
pub fn append_data(block: u16, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&opcode::DATA.to_be_bytes());
    out.extend_from_slice(&block.to_be_bytes());
    out.extend_from_slice(data);
}

/// Appends an OACK packet to `out`.
pub fn append_option_ack(options: &[(&'static str, u64)], out: &mut Vec<u8>) {
    out.extend_from_slice(&opcode::OACK.to_be_bytes());
    for (name, value) in options {
        out.extend_from_slice(name.as_bytes());
        out.push(0);
        out.extend_from_slice(value.to_string().as_bytes());
        out.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_uefi_request() {
        let packet = b"\0\x01small.efi\0octet\0tsize\x000\0BlkSize\x001468\0windowsize\x004\0";
        let Ok(Packet::ReadRequest(request)) = Packet::parse(packet) else {
            panic!()
        };
        assert_eq!(
            (request.filename.as_str(), request.mode),
            ("small.efi", Mode::Octet)
        );
        assert_eq!(request.option("blksize"), Some("1468"));
        assert_eq!(request.option("tsize"), Some("0"));
        assert_eq!(request.option("timeout"), None);
    }

    #[test]
    fn writes_and_reads_back() {
        let mut out = Vec::new();
        append_data(0xabcd, b"xyz", &mut out);
        assert_eq!(out, b"\0\x03\xab\xcdxyz");
        assert_eq!(
            Packet::parse(&out),
            Ok(Packet::Data {
                block: 0xabcd,
                data: b"xyz"
            })
        );
        out.clear();
        append_option_ack(&[("tsize", 3000), ("blksize", 1468)], &mut out);
        assert_eq!(out, b"\0\x06tsize\x003000\0blksize\x001468\0");
        let error = ErrorReply::new(ErrorCode::FileNotFound, "no \0such file");
        assert_eq!(error.encode(), b"\0\x05\0\x01no such file\0");
        let Ok(Packet::Error(read)) = Packet::parse(&error.encode()) else {
            panic!()
        };
        assert_eq!(read.code, ErrorCode::FileNotFound);
        assert_eq!(
            Packet::parse(b"\0\x04\0\x07pad"),
            Ok(Packet::Ack { block: 7 })
        );
    }

    #[test]
    fn rejects_each_malformed_packet() {
        let long = [b"\0\x01".as_slice(), &[b'a'; 1100]].concat();
        let table: [(&[u8], PacketError); 11] = [
            (b"", PacketError::TooShort { len: 0 }),
            (b"\0", PacketError::TooShort { len: 1 }),
            (b"\0\x03\0", PacketError::TooShort { len: 3 }),
            (b"\0\x04", PacketError::TooShort { len: 2 }),
            (b"\0\x07", PacketError::Opcode(7)),
            (b"\0\x01name", PacketError::Text("file name")),
            (b"\0\x01na\xffme\0octet\0", PacketError::Text("file name")),
            (b"\0\x01name\0octet", PacketError::Text("mode")),
            (b"\0\x01\0octet\0", PacketError::EmptyName),
            (b"\0\x01name\0mail\0", PacketError::Mode("mail".into())),
            (&long, PacketError::RequestTooLong { len: 1102 }),
        ];
        for (bytes, want) in table {
            assert_eq!(Packet::parse(bytes), Err(want.clone()), "{bytes:?}");
            assert!(want.explain().code.starts_with("tftp."));
        }
    }

    #[test]
    fn half_an_option_is_left_out() {
        let packet = b"\0\x01f\0octet\0blksize\x00512\0tsize\0";
        let Ok(Packet::ReadRequest(request)) = Packet::parse(packet) else {
            panic!()
        };
        assert_eq!(request.options, [("blksize".to_owned(), "512".to_owned())]);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(opcode in 0u16..8, body: Vec<u8>) {
            let mut datagram = opcode.to_be_bytes().to_vec();
            datagram.extend_from_slice(&body);
            let _ = Packet::parse(&datagram);
        }
    }
}
