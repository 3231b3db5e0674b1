//! A seeded generator and the usual mutations.

/// Xorshift (Marsaglia): small, seeded, the same on every machine.
pub struct Rng(u64);

impl Rng {
    /// One stream for each seed and target.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a over the name, so that targets do not walk in step.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self((hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Below `end`; 0 when `end` is 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end.max(1)
    }

    fn byte(&mut self) -> u8 {
        const EDGES: [u8; 10] = [0, 1, 2, 0x7f, 0x80, 0xfe, 0xff, b'"', b'{', b'\\'];
        match self.below(3) {
            0 => EDGES[self.below(EDGES.len())],
            _ => (self.next() >> 32) as u8,
        }
    }
}

/// Longest input, in bytes: above every bound of the parsers that is worth testing here.
const INPUT_MAX: usize = 600 * 1024;

/// Writes the next input into `out`: a seed with one to eight changes.
pub fn mutate(rng: &mut Rng, seeds: &[Vec<u8>], out: &mut Vec<u8>) {
    out.clear();
    let seed = &seeds[rng.below(seeds.len())];
    out.extend_from_slice(seed);
    for _ in 0..=rng.below(8) {
        change(rng, seeds, out);
    }
    out.truncate(INPUT_MAX);
}

fn change(rng: &mut Rng, seeds: &[Vec<u8>], out: &mut Vec<u8>) {
    let at = rng.below(out.len());
    match rng.below(10) {
        // Lengths and types live in single bytes and big or little endian words.
        0 | 1 if !out.is_empty() => out[at] = rng.byte(),
        2 if !out.is_empty() => out[at] ^= 1 << rng.below(8),
        3 if !out.is_empty() => out[at] = out[at].wrapping_add(1).wrapping_sub(rng.below(3) as u8),
        4 if out.len() >= 4 => {
            let word = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x0001_0000][rng.below(6)];
            let bytes = if rng.below(2) == 0 {
                u32::to_be_bytes(word)
            } else {
                u32::to_le_bytes(word)
            };
            let at = rng.below(out.len() - 3);
            out[at..at + 4].copy_from_slice(&bytes);
        }
        5 => out.truncate(at),
        6 => {
            let end = (at + 1 + rng.below(32)).min(out.len());
            out.drain(at.min(end)..end);
        }
        7 => {
            let extra: Vec<u8> = (0..=rng.below(16)).map(|_| rng.byte()).collect();
            out.splice(at..at, extra);
        }
        8 => {
            let end = (at + 1 + rng.below(64)).min(out.len());
            let again = out[at.min(end)..end].to_vec();
            out.splice(at..at, again);
        }
        _ => {
            let other = &seeds[rng.below(seeds.len())];
            let from = rng.below(other.len());
            let tail = &other[from.min(other.len())..];
            out.truncate(at);
            out.extend_from_slice(&tail[..tail.len().min(INPUT_MAX)]);
        }
    }
}
