//! `vestibule inspect`: what a capture file holds, one JSON object for each frame; and, one object for
//! the file, what an event log (`eventlog`) or an attestation (`quote`) says and what certificates
//! (`ek`) there are.
//!
//! Pure: octets in, lines out. The reading is `netstack`'s, the same that the daemon does, so what an
//! operator sees here is what the daemon made of the frame. Field names are stable and described in
//! docs/INSPECT.md; a field is never renamed, a new one may appear. Each protocol is one file with
//! one `Inspect`.

mod device_path;
mod dhcp;
mod dhcp6;
pub mod ek;
pub mod eventlog;
mod lldp;
mod quote;
mod tftp;

use std::time::Duration;

pub use quote::{QUOTE_LEN_MAX, Source, quote, registers_of};

use netstack::Explanation;
use netstack::capture::{CaptureError, Datagram, Frame, LinkError, Packet, Reader};
use serde::Serialize;

/// Largest file read: it is held in memory, and 1 GiB of boot traffic is days.
pub const FILE_LEN_MAX: u64 = 1 << 30;

/// Which protocol is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// DHCPv4 and BOOTP.
    Dhcp,
    /// DHCPv6.
    Dhcp6,
    /// TFTP.
    Tftp,
    /// LLDP.
    Lldp,
}

/// Reads the file and hands over one line for each frame, without line end, until `line` says
/// that nobody listens (`false`). A damaged file ends with one line more, which has the damage as
/// its error.
///
/// # Errors
/// What is wrong with the file; the lines before it were handed over.
pub fn inspect(
    protocol: Protocol,
    file: &[u8],
    line: &mut dyn FnMut(String) -> bool,
) -> Result<(), CaptureError> {
    match protocol {
        Protocol::Dhcp => each(dhcp::Dhcp, file, line),
        Protocol::Dhcp6 => each(dhcp6::Dhcp6, file, line),
        Protocol::Tftp => each(tftp::Tftp::default(), file, line),
        Protocol::Lldp => each(lldp::Lldp, file, line),
    }
}

/// One protocol's reading of frames, in file order.
trait Inspect {
    /// The protocol's fields; the default is those of a frame that holds none of it.
    type Fields: Serialize + Default;

    /// Looks at one frame.
    fn look(&mut self, frame: &Frame<'_>) -> Seen<Self::Fields>;
}

/// What was seen in a frame.
struct Seen<F> {
    /// First thing that is wrong; `None` when all of it could be read.
    fault: Option<Fault>,
    /// Where from: address and port, or hardware address.
    source: Option<String>,
    /// Where to.
    destination: Option<String>,
    /// VLAN of the outermost tag.
    vlan: Option<u16>,
    fields: F,
    /// Small things that cost nothing but themselves.
    notes: Vec<Fault>,
}

impl<F: Default> Seen<F> {
    /// Nothing but a fault.
    fn fault(fault: Fault) -> Self {
        Self {
            fault: Some(fault),
            source: None,
            destination: None,
            vlan: None,
            fields: F::default(),
            notes: Vec::new(),
        }
    }
}

/// One line.
#[derive(Serialize)]
struct Line<'a, F> {
    frame: u64,
    ok: bool,
    error: Option<&'a Fault>,
    time: Option<String>,
    source: Option<&'a str>,
    destination: Option<&'a str>,
    vlan: Option<u16>,
    #[serde(flatten)]
    fields: &'a F,
    notes: &'a [Fault],
}

/// Something that is not as it should be: stable code, what belongs there, what is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Fault {
    code: Code,
    expected: Option<String>,
    found: Option<String>,
    /// Text of a peer's own error; only there.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// Not a fault of the frame: it says itself that something failed (TFTP ERROR).
    #[serde(skip)]
    told: bool,
}

/// A code of ours, or a protocol's number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Code {
    Name(&'static str),
    Number(u16),
}

impl Fault {
    fn new(code: &'static str, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            code: Code::Name(code),
            expected: Some(expected.into()),
            found: Some(found.into()),
            message: None,
            told: false,
        }
    }

    /// The peer's own error.
    fn told(code: u16, message: String) -> Self {
        Self {
            code: Code::Number(code),
            expected: None,
            found: None,
            message: Some(message),
            told: true,
        }
    }
}

impl From<Explanation> for Fault {
    fn from(explained: Explanation) -> Self {
        Self::new(explained.code, explained.expected, explained.found)
    }
}

impl From<LinkError> for Fault {
    fn from(error: LinkError) -> Self {
        error.explain().into()
    }
}

fn each<I: Inspect>(
    mut inspect: I,
    file: &[u8],
    line: &mut dyn FnMut(String) -> bool,
) -> Result<(), CaptureError> {
    let damaged = |number: u64, error: &CaptureError| {
        rendered(
            number,
            None,
            &Seen::<I::Fields>::fault(error.explain().into()),
        )
    };
    let mut reader = match Reader::new(file) {
        Ok(reader) => reader,
        Err(error) => {
            line(damaged(1, &error));
            return Err(error);
        }
    };
    while let Some(frame) = reader.next() {
        let goes_on = match &frame {
            Ok(frame) => line(rendered(frame.number, frame.time_ns, &inspect.look(frame))),
            Err(error) => line(damaged(reader.frames() + 1, error)),
        };
        frame?;
        if !goes_on {
            break;
        }
    }
    Ok(())
}

fn rendered<F: Serialize>(number: u64, time_ns: Option<u64>, seen: &Seen<F>) -> String {
    let time = time_ns.map(|ns| {
        let since_1970 = Duration::from_nanos(ns);
        format!("{}.{:09}", since_1970.as_secs(), since_1970.subsec_nanos())
    });
    let line = Line {
        frame: number,
        ok: seen.fault.as_ref().is_none_or(|fault| fault.told),
        error: seen.fault.as_ref(),
        time,
        source: seen.source.as_deref(),
        destination: seen.destination.as_deref(),
        vlan: seen.vlan,
        fields: &seen.fields,
        notes: &seen.notes,
    };
    // Texts and numbers under text keys: it cannot fail, and a line is owed for every frame.
    serde_json::to_string(&line).unwrap_or_else(|error| {
        format!("{{\"frame\":{number},\"ok\":false,\"error\":{{\"code\":\"inspect.json\",\"expected\":null,\"found\":\"{error}\"}}}}")
    })
}

/// The UDP datagram of a frame, and the VLAN it came on.
fn datagram<'a>(frame: &Frame<'a>) -> Result<(Datagram<'a>, Option<u16>), LinkError> {
    let packet = Packet::parse(frame)?;
    let vlan = packet.vlans.first().copied();
    Ok((Datagram::parse(&packet)?, vlan))
}

/// A datagram that was cut at capture.
fn cut(datagram: &Datagram<'_>) -> Option<Fault> {
    let len = datagram.payload.len();
    (datagram.missing > 0).then(|| {
        Fault::new(
            "frame.cut",
            format!(
                "a payload of {} bytes, as its UDP header says",
                len + datagram.missing
            ),
            format!("{len} bytes captured"),
        )
    })
}

/// `0a:0b:0c`.
fn colons(octets: &[u8]) -> String {
    let pairs: Vec<String> = octets.iter().map(|octet| format!("{octet:02x}")).collect();
    pairs.join(":")
}

/// The octets as text when they are printable, trailing NULs left out.
fn printable(octets: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(octets).ok()?.trim_end_matches('\0');
    (!text.is_empty() && !text.chars().any(char::is_control)).then(|| text.to_owned())
}

/// The octets as text, else in hex.
fn text_or_hex(octets: &[u8]) -> String {
    printable(octets).unwrap_or_else(|| hex::encode(octets))
}

#[cfg(test)]
mod tests;
