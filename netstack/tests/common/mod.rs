//! Reads capture files and the expected dissections that come with the corpus.
//!
//! The corpus is handed in through `VESTIBULE_CORPUS`; without it a test prints `SKIP` and passes.

// Each test binary uses its part of this.
#![allow(dead_code)]

use std::path::PathBuf;

use etherparse::{LaxSlicedPacket, TransportSlice};
use serde_json::Value;

/// One capture file with what the reference dissector said about it.
pub struct Capture {
    pub name: String,
    /// Frames as captured.
    pub frames: Vec<Vec<u8>>,
    /// Dissections, by position the same frames; perhaps only the first ones.
    pub packets: Vec<Value>,
    /// Whether the dissector called the frame malformed, or only had the start of it.
    pub malformed: Vec<bool>,
}

/// All captures of one kind (`dhcp`, `tftp`, `lldp`); `None` without a corpus.
pub fn captures(kind: &str) -> Option<Vec<Capture>> {
    let Some(root) = std::env::var_os("VESTIBULE_CORPUS").map(PathBuf::from) else {
        println!("SKIP VESTIBULE_CORPUS is not set");
        return None;
    };
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root.join(kind))
        .expect("the corpus has this kind")
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no {kind} files in the corpus");
    Some(
        paths
            .iter()
            .map(|path| capture(&root, kind, path))
            .collect(),
    )
}

fn capture(root: &std::path::Path, kind: &str, path: &std::path::Path) -> Capture {
    let name = path
        .file_name()
        .expect("a file")
        .to_string_lossy()
        .into_owned();
    let expected = root.join("expected").join(format!("{kind}__{name}.json"));
    let expected =
        std::fs::read(&expected).unwrap_or_else(|e| panic!("{}: {e}", expected.display()));
    let expected: Value = serde_json::from_slice(&expected).expect("JSON");
    let packets = expected["packets"].as_array().expect("packets").clone();
    let malformed = expected["summary"].as_array().expect("summary").iter();
    let malformed = malformed
        .zip(&packets)
        .map(|(s, p)| s["malformed"] == true || p.get("_ws.short").is_some())
        .collect();
    Capture {
        frames: frames(&std::fs::read(path).expect("readable")),
        name,
        packets,
        malformed,
    }
}

fn u32_at(bytes: &[u8], at: usize, big: bool) -> usize {
    let word: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
    (if big {
        u32::from_be_bytes(word)
    } else {
        u32::from_le_bytes(word)
    }) as usize
}

/// Frames of a pcap or pcapng file.
fn frames(file: &[u8]) -> Vec<Vec<u8>> {
    match file[..4] {
        [0x0a, 0x0d, 0x0d, 0x0a] => pcapng(file),
        [0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d] => pcap(file, true),
        [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1] => pcap(file, false),
        ref magic => panic!("no capture file: {magic:02x?}"),
    }
}

fn pcap(file: &[u8], big: bool) -> Vec<Vec<u8>> {
    let (mut frames, mut at) = (Vec::new(), 24);
    while at + 16 <= file.len() {
        let len = u32_at(file, at + 8, big);
        let Some(frame) = file.get(at + 16..at + 16 + len) else {
            break;
        };
        frames.push(frame.to_vec());
        at += 16 + len;
    }
    frames
}

fn pcapng(file: &[u8]) -> Vec<Vec<u8>> {
    let big = file[8..12] == [0x1a, 0x2b, 0x3c, 0x4d];
    let (mut frames, mut at) = (Vec::new(), 0);
    while at + 12 <= file.len() {
        let (kind, len) = (u32_at(file, at, big), u32_at(file, at + 4, big));
        match kind {
            6 => {
                let captured = u32_at(file, at + 20, big);
                frames.push(file[at + 28..at + 28 + captured].to_vec());
            }
            3 => frames.push(file[at + 12..at + len - 4].to_vec()),
            _ => {}
        }
        at += len.max(12);
    }
    frames
}

/// The UDP payload of an Ethernet or Linux-cooked frame, as far as it was captured.
pub fn udp_payload(frame: &[u8]) -> Option<Vec<u8>> {
    let packet = LaxSlicedPacket::from_ethernet(frame).ok()?;
    match packet.transport? {
        TransportSlice::Udp(udp) => Some(udp.payload().to_vec()),
        _ => None,
    }
}

/// The UDP payload as the dissector printed it.
pub fn payload_of(packet: &Value) -> Option<Vec<u8>> {
    hex_of(packet["udp"].get("udp.payload")?)
}

/// `00:11:22` as bytes.
pub fn hex_of(value: &Value) -> Option<Vec<u8>> {
    let text: String = value.as_str()?.split(':').collect();
    hex::decode(text).ok()
}

/// A value that is a list when there are several.
pub fn list(value: Option<&Value>) -> Vec<&Value> {
    match value {
        None => Vec::new(),
        Some(Value::Array(values)) => values.iter().collect(),
        Some(value) => vec![value],
    }
}

/// Compares fields, counts them, and keeps what differs.
#[derive(Default)]
pub struct Compared {
    pub frames: usize,
    pub fields: usize,
    pub differ: Vec<String>,
}

impl Compared {
    /// One field that both have; a field the dissector did not print is not counted.
    pub fn field(
        &mut self,
        subject: &str,
        name: &str,
        ours: impl ToString,
        theirs: Option<&Value>,
    ) {
        let Some(theirs) = theirs.and_then(Value::as_str) else {
            return;
        };
        self.text(subject, name, &ours.to_string(), theirs);
    }

    /// One field as text.
    pub fn text(&mut self, subject: &str, name: &str, ours: &str, theirs: &str) {
        self.fields += 1;
        if ours != theirs {
            self.differ.push(format!(
                "{subject} {name}: we say {ours:?}, the dissector {theirs:?}"
            ));
        }
    }

    /// Prints the counts and fails on differences.
    pub fn finish(self, files: usize, least_fields: usize) {
        println!(
            "files {files} frames {} fields {}",
            self.frames, self.fields
        );
        assert!(
            self.differ.is_empty(),
            "{} differ:\n{}",
            self.differ.len(),
            self.differ.join("\n")
        );
        assert!(
            self.fields >= least_fields,
            "only {} fields compared",
            self.fields
        );
    }
}
