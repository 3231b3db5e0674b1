//! Frames of an append-only file: `len || header check || payload digest || payload`.
//!
//! Decides where a file stops being good and whether an interrupted write explains the rest. Knows
//! nothing of what a payload means. One group commit is one frame, so everything before the last
//! frame was acknowledged: damage there is an edit, damage in the last frame may be a power cut.

use aws_lc_rs::digest::{SHA256, digest};

/// Byte ranges of the frame header.
mod field {
    use std::ops::Range;

    /// Payload length, u32, little endian.
    pub const LEN: Range<usize> = 0..4;
    /// First bytes of SHA-256 over the length and the frame's offset in the file: a frame that was
    /// moved, or a length that was edited, does not pass.
    pub const HEADER_CHECK: Range<usize> = 4..8;
    /// First bytes of SHA-256 over the payload.
    pub const DIGEST: Range<usize> = 8..16;
}

/// Bytes before the payload.
pub(crate) const HEADER_BYTES: usize = 16;
/// Largest payload, in bytes: a committer never gathers more into one frame.
pub(crate) const PAYLOAD_MAX_BYTES: usize = 16 * 1024 * 1024;

fn header_check(len: [u8; 4], offset: u64) -> [u8; 4] {
    let mut text = [0u8; 12];
    text[..4].copy_from_slice(&len);
    text[4..].copy_from_slice(&offset.to_le_bytes());
    first(&text)
}

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0u8; N];
    out.copy_from_slice(&digest(&SHA256, bytes).as_ref()[..N]);
    out
}

/// Appends one frame to `out`; `offset` is where the frame will start in the file.
pub(crate) fn encode(payload: &[u8], offset: u64, out: &mut Vec<u8>) {
    debug_assert!(payload.len() <= PAYLOAD_MAX_BYTES);
    let len = (payload.len() as u32).to_le_bytes();
    out.extend_from_slice(&len);
    out.extend_from_slice(&header_check(len, offset));
    out.extend_from_slice(&first::<8>(payload));
    out.extend_from_slice(payload);
}

/// Where the good frames end and what follows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// The file ends with its last frame.
    Clean,
    /// The rest can come from an interrupted write.
    Torn {
        /// First byte after the last good frame.
        offset: u64,
        /// How many bytes follow it.
        bytes: u64,
        /// All bytes of the last frame are there and only its contents are wrong.
        complete: bool,
    },
    /// The rest cannot come from an interrupted write: later frames are good.
    Damaged {
        /// First byte of the frame that is not good.
        offset: u64,
    },
}

/// Walks the frames of a whole file in memory.
pub(crate) struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
    tail: Option<Tail>,
}

enum Read<'a> {
    Good { payload: &'a [u8], next: usize },
    BadHeader,
    Short,
    BadPayload { next: usize },
}

impl<'a> Frames<'a> {
    /// Frames of `bytes`, which are a whole file.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            tail: None,
        }
    }

    /// What follows the last good frame. Call it when the iterator has ended.
    pub(crate) fn tail(&self) -> Tail {
        self.tail.unwrap_or(Tail::Clean)
    }

    fn read(&self, at: usize) -> Read<'a> {
        let rest = &self.bytes[at..];
        let Some((header, body)) = rest.split_at_checked(HEADER_BYTES) else {
            return Read::Short;
        };
        let mut len = [0u8; 4];
        len.copy_from_slice(&header[field::LEN]);
        if header[field::HEADER_CHECK] != header_check(len, at as u64) {
            return Read::BadHeader;
        }
        let len = u32::from_le_bytes(len) as usize;
        let Some((payload, _)) = body.split_at_checked(len) else {
            return Read::Short;
        };
        let next = at + HEADER_BYTES + len;
        if header[field::DIGEST] == first::<8>(payload) {
            Read::Good { payload, next }
        } else {
            Read::BadPayload { next }
        }
    }

    /// A good frame anywhere behind `at` proves that the write at `at` had been completed.
    fn good_frame_behind(&self, at: usize) -> bool {
        (at + 1..self.bytes.len().saturating_sub(HEADER_BYTES)).any(|p| {
            let mut len = [0u8; 4];
            len.copy_from_slice(&self.bytes[p..p + 4]);
            let len = u32::from_le_bytes(len) as usize;
            // A cheap look first: most positions claim a length that is not there.
            len > 0
                && len <= self.bytes.len() - p - HEADER_BYTES
                && matches!(self.read(p), Read::Good { .. })
        })
    }

    fn judge_tail(&self, read: &Read<'_>) -> Tail {
        let torn = |complete| Tail::Torn {
            offset: self.at as u64,
            bytes: (self.bytes.len() - self.at) as u64,
            complete,
        };
        let damaged = Tail::Damaged {
            offset: self.at as u64,
        };
        match read {
            Read::Good { .. } => Tail::Clean,
            Read::Short => torn(false),
            Read::BadPayload { next } if *next == self.bytes.len() => torn(true),
            Read::BadPayload { .. } => damaged,
            Read::BadHeader if self.good_frame_behind(self.at) => damaged,
            Read::BadHeader => torn(false),
        }
    }
}

impl<'a> Iterator for Frames<'a> {
    /// Offset of the frame, and its payload.
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.tail.is_some() {
            return None;
        }
        if self.at == self.bytes.len() {
            self.tail = Some(Tail::Clean);
            return None;
        }
        let read = self.read(self.at);
        if let Read::Good { payload, next } = read {
            let offset = self.at as u64;
            self.at = next;
            return Some((offset, payload));
        }
        self.tail = Some(self.judge_tail(&read));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(payloads: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for payload in payloads {
            let at = out.len() as u64;
            encode(payload, at, &mut out);
        }
        out
    }

    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, Tail) {
        let mut frames = Frames::new(bytes);
        let payloads = frames.by_ref().map(|(_, p)| p.to_vec()).collect();
        (payloads, frames.tail())
    }

    #[test]
    fn frame_bytes_are_pinned() {
        let mut out = Vec::new();
        encode(b"abc", 16, &mut out);
        assert_eq!(hex::encode(&out), "03000000cc2820f5ba7816bf8f01cfea616263");
    }

    #[test]
    fn every_cut_of_the_last_frame_is_torn_and_keeps_the_rest() {
        let whole = file(&[b"first", b"second, longer", b"third"]);
        let keep = whole.len() - HEADER_BYTES - 5;
        for cut in keep + 1..whole.len() {
            let (payloads, tail) = read(&whole[..cut]);
            assert_eq!(payloads.len(), 2, "cut at {cut}");
            assert!(
                matches!(tail, Tail::Torn { offset, complete: false, .. } if offset == keep as u64),
                "cut at {cut}: {tail:?}"
            );
        }
        assert_eq!(
            read(&whole[..keep]),
            (read(&whole).0[..2].to_vec(), Tail::Clean)
        );
    }

    #[test]
    fn zeros_or_noise_after_a_cut_are_torn() {
        let whole = file(&[b"first", b"second, longer"]);
        let keep = HEADER_BYTES + 5;
        for fill in [0u8, 0xa5] {
            for cut in keep..whole.len() - 1 {
                let mut bytes = whole.clone();
                bytes[cut..].fill(fill);
                let (payloads, tail) = read(&bytes);
                assert_eq!(payloads, vec![b"first".to_vec()]);
                assert!(matches!(tail, Tail::Torn { .. }), "cut at {cut}: {tail:?}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_before_the_last_frame_is_damage() {
        let whole = file(&[b"first", b"second, longer", b"third"]);
        let last = whole.len() - HEADER_BYTES - 5;
        for at in 0..last {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                let (_, tail) = read(&bytes);
                assert!(
                    matches!(tail, Tail::Damaged { .. }),
                    "byte {at} bit {bit}: {tail:?}"
                );
            }
        }
    }

    #[test]
    fn rejects_a_frame_moved_to_another_offset() {
        let whole = file(&[b"first", b"again"]);
        let second = whole[HEADER_BYTES + 5..].to_vec();
        assert!(read(&second).0.is_empty());
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
        }

        #[test]
        fn round_trip(payloads in proptest::collection::vec(
            proptest::collection::vec(any::<u8>(), 0..100), 0..8)) {
            let refs: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(read(&file(&refs)), (payloads, Tail::Clean));
        }
    }
}
