//! The frames of one ledger segment: encode and decode, no judgement.

use serde::{Deserialize, Serialize};

use super::entry::{Hash, push_hex};

/// Version of the segment format.
pub(crate) const VERSION: u32 = 1;

const HEADER: u8 = b'H';
const COMMIT: u8 = b'C';
const CHECKPOINT: u8 = b'K';

/// First frame of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    pub version: u32,
    /// Number of the segment, from 1.
    pub segment: u64,
    /// Sequence of its first entry.
    pub first_seq: u64,
    /// Hash of the entry before, hex.
    #[serde(with = "hex32")]
    pub prev: Hash,
    /// Leaf first, DER in hex.
    #[serde(with = "hexes")]
    pub chain: Vec<Vec<u8>>,
}

/// Last frame of a closed segment; also the last line of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Checkpoint {
    pub segment: u64,
    pub first_seq: u64,
    pub last_seq: u64,
    #[serde(with = "hex32")]
    pub head: Hash,
}

/// One frame of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Header(Header),
    Commit {
        signature: &'a [u8],
        /// Entry lines, separated by `\n`.
        lines: &'a str,
    },
    Checkpoint {
        signature: &'a [u8],
        /// The signed bytes.
        json: &'a str,
        checkpoint: Checkpoint,
    },
}

impl<'a> Frame<'a> {
    /// Decodes a payload.
    ///
    /// # Errors
    /// What is not as this release writes it.
    pub(crate) fn decode(payload: &'a [u8]) -> Result<Self, String> {
        let (kind, rest) = payload.split_first().ok_or("empty frame")?;
        match *kind {
            HEADER => {
                let header: Header =
                    serde_json::from_slice(rest).map_err(|e| format!("header: {e}"))?;
                one_spelling(&header, rest).map_err(|why| format!("header: {why}"))?;
                Ok(Frame::Header(header))
            }
            COMMIT => {
                let (signature, lines) = signed(rest)?;
                Ok(Frame::Commit { signature, lines })
            }
            CHECKPOINT => {
                let (signature, json) = signed(rest)?;
                let checkpoint =
                    serde_json::from_str(json).map_err(|e| format!("checkpoint: {e}"))?;
                Ok(Frame::Checkpoint {
                    signature,
                    json,
                    checkpoint,
                })
            }
            other => Err(format!("unknown frame kind {other:#04x}")),
        }
    }
}

/// JSON as this release writes it: no signature covers the spelling, and no bit may be without meaning.
///
/// # Errors
/// It says the same in other bytes.
pub(super) fn one_spelling(value: &impl Serialize, text: &[u8]) -> Result<(), &'static str> {
    match serde_json::to_vec(value) {
        Ok(again) if again == text => Ok(()),
        _ => Err("it is spelled in another way"),
    }
}

/// `u16` little-endian length, signature, text.
pub(super) fn signed(rest: &[u8]) -> Result<(&[u8], &str), String> {
    let (len, rest) = rest.split_at_checked(2).ok_or("no signature")?;
    let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
    let (signature, text) = rest.split_at_checked(len).ok_or("short signature")?;
    let text = std::str::from_utf8(text).map_err(|e| e.to_string())?;
    Ok((signature, text))
}

pub(super) fn encode_signed(kind: u8, signature: &[u8], text: &str) -> Vec<u8> {
    let len = u16::try_from(signature.len()).expect("an ECDSA signature is below 64 KiB");
    let mut out = Vec::with_capacity(3 + signature.len() + text.len());
    out.push(kind);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(signature);
    out.extend_from_slice(text.as_bytes());
    out
}

impl Header {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut out = vec![HEADER];
        serde_json::to_writer(&mut out, self)?;
        Ok(out)
    }
}

/// Payload of a group commit.
pub(crate) fn encode_commit(signature: &[u8], lines: &str) -> Vec<u8> {
    encode_signed(COMMIT, signature, lines)
}

/// Payload of a checkpoint.
pub(crate) fn encode_checkpoint(signature: &[u8], json: &str) -> Vec<u8> {
    encode_signed(CHECKPOINT, signature, json)
}

/// File name of a segment.
pub(crate) fn file_name(segment: u64) -> String {
    format!("ledger-{segment:08}.vlg")
}

/// Number of a segment file; none for any other name.
pub(crate) fn parse_file_name(name: &str) -> Option<u64> {
    let number = name.strip_prefix("ledger-")?.strip_suffix(".vlg")?;
    let parsed = number.parse().ok()?;
    (file_name(parsed) == name).then_some(parsed)
}

/// 32 bytes as 64 lower-case hex digits.
pub(crate) mod hex32 {
    use super::*;

    pub(crate) fn serialize<S: serde::Serializer>(hash: &Hash, s: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(64);
        push_hex(&mut text, hash);
        s.serialize_str(&text)
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Hash, D::Error> {
        let text = String::deserialize(d)?;
        let mut out = [0u8; 32];
        hex::decode_to_slice(&text, &mut out).map_err(serde::de::Error::custom)?;
        Ok(out)
    }
}

/// A list of byte strings in hex.
pub(crate) mod hexes {
    use super::*;

    pub(crate) fn serialize<S: serde::Serializer>(
        list: &[Vec<u8>],
        s: S,
    ) -> Result<S::Ok, S::Error> {
        s.collect_seq(list.iter().map(hex::encode))
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(
        d: D,
    ) -> Result<Vec<Vec<u8>>, D::Error> {
        Vec::<String>::deserialize(d)?
            .iter()
            .map(|text| hex::decode(text).map_err(serde::de::Error::custom))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_round_trip() {
        let header = Header {
            version: VERSION,
            segment: 3,
            first_seq: 9,
            prev: [7; 32],
            chain: vec![vec![0x30, 0x00]],
        };
        assert_eq!(
            Frame::decode(&header.encode().unwrap()),
            Ok(Frame::Header(header))
        );
        assert_eq!(
            Frame::decode(&encode_commit(&[1, 2], "a\nb")),
            Ok(Frame::Commit {
                signature: &[1, 2],
                lines: "a\nb"
            })
        );
        let checkpoint = Checkpoint {
            segment: 3,
            first_seq: 9,
            last_seq: 12,
            head: [1; 32],
        };
        let json = serde_json::to_string(&checkpoint).unwrap();
        assert_eq!(
            Frame::decode(&encode_checkpoint(&[9], &json)),
            Ok(Frame::Checkpoint {
                signature: &[9],
                json: &json,
                checkpoint
            })
        );
    }

    #[test]
    fn file_names_have_one_spelling() {
        assert_eq!(parse_file_name("ledger-00000012.vlg"), Some(12));
        assert_eq!(parse_file_name("ledger-123456789.vlg"), Some(123_456_789));
        for other in [
            "ledger-12.vlg",
            "ledger-0000001x.vlg",
            "ledger-00000012.vlg.new",
            "x",
        ] {
            assert_eq!(parse_file_name(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Frame::decode(&payload);
        }
    }
}
