//! Zstandard (RFC 8878) as a stream: all frames of a file, one after the other, in bounded memory.
//!
//! Decides nothing about what is in it: a digest does. The decoder is ruzstd, which is Rust alone: the
//! attester's program has no C code in front of what a network sends but the TLS library's.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// Largest window that a frame may ask for, in bytes: what `zstd` makes below its `--ultra` levels. A
/// frame that wants more is refused, for it decides how much memory is taken.
pub const WINDOW_BYTES_MAX: u64 = 8 << 20;

/// The bytes of all frames that `R` holds.
pub struct Frames<R: BufRead> {
    state: State<R>,
}

enum State<R: BufRead> {
    Between(R),
    Within(Box<StreamingDecoder<R, FrameDecoder>>),
    Over,
}

impl<R: BufRead> Frames<R> {
    /// Nothing is read yet.
    pub fn new(from: R) -> Self {
        Self {
            state: State::Between(from),
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Over => return Ok(0),
                State::Between(mut from) => {
                    if from.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    let decoder =
                        StreamingDecoder::new_with_max_window_size(from, WINDOW_BYTES_MAX)
                            .map_err(bad_frame)?;
                    self.state = State::Within(Box::new(decoder));
                }
                State::Within(mut decoder) => {
                    let count = decoder.read(buffer)?;
                    if count > 0 {
                        self.state = State::Within(decoder);
                        return Ok(count);
                    }
                    self.state = State::Between(decoder.into_inner());
                }
            }
        }
    }
}

fn bad_frame(error: FrameDecoderError) -> io::Error {
    let text = match &error {
        FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { .. }) => {
            "a skippable frame, which no image of ours has".to_owned()
        }
        other => other.to_string(),
    };
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of raw blocks (RFC 8878 section 3.1.1); `window` is the window descriptor.
    fn frame(bytes: &[u8], window: u8) -> Vec<u8> {
        let mut out = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, window];
        let mut blocks = bytes.chunks(100_000).peekable();
        while let Some(block) = blocks.next() {
            let last = u32::from(blocks.peek().is_none());
            out.extend(&(((block.len() as u32) << 3) | last).to_le_bytes()[..3]);
            out.extend(block);
        }
        out
    }

    fn unpacked(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        Frames::new(packed).read_to_end(&mut out)?;
        Ok(out)
    }

    /// Window descriptors of 1 MiB and of 128 MiB.
    const MIB: u8 = 10 << 3;
    const MIB_128: u8 = 17 << 3;

    #[test]
    fn all_frames_follow_each_other() {
        let bytes: Vec<u8> = (0..300_000).map(|n| (n % 253) as u8).collect();
        let packed = [frame(&bytes, MIB), frame(b"end", MIB)].concat();
        assert_eq!(
            unpacked(&packed).unwrap(),
            [bytes.as_slice(), b"end"].concat()
        );
        assert_eq!(unpacked(b"").unwrap(), b"");
    }

    #[test]
    fn rejects_what_is_cut_damaged_or_wants_too_much_memory() {
        let packed = frame(&[7; 200_000], MIB);
        for length in [1, 5, 8, 1_000, packed.len() - 1] {
            assert!(unpacked(&packed[..length]).is_err(), "{length} bytes");
        }
        assert!(
            unpacked(&frame(b"x", MIB_128)).is_err(),
            "a window of 128 MiB"
        );
        assert!(unpacked(b"not zstandard at all").is_err());
        // A skippable frame.
        assert!(unpacked(&[0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 9]).is_err());
        let mut trailing = packed;
        trailing.extend(b"trailing");
        assert!(unpacked(&trailing).is_err());
    }
}
