//! From the gateway to the disk: the image as a stream, unpacked and hashed on the way, in bounded memory.

use std::io::{self, BufRead, Read};

use attest_wire::v1::handover::GrantImage;
use boot::unzstd::Frames;
use sha2::{Digest as _, Sha256};

use super::disk::Disk;
use super::package::{HEAD_BYTES, Place, place};
use super::{InstallError, Refused, Source};

/// Bytes that are written or read at a time.
pub const CHUNK_BYTES: usize = 1 << 20;

/// What the stream left in memory: the head is written last, so that a disk which is not whole has
/// neither boot sector nor partition table.
pub struct Head {
    /// The first MiB, or the whole of a smaller image.
    pub bytes: Vec<u8>,
    /// Where the package goes.
    pub place: Option<Place>,
}

/// Writes everything behind the head, and checks the digests of what came and of what was written.
///
/// # Errors
/// `image.digest`, `image.place`, `disk.io`, or the way to the gateway.
pub fn write(
    source: &mut dyn Source,
    image: &GrantImage,
    disk: &mut dyn Disk,
    told: &mut dyn FnMut(u64),
) -> Result<Head, InstallError> {
    let mut pieces = Pieces::new(source, image);
    let written = match image.compression.as_str() {
        "none" => copy(&mut pieces, image, disk, told),
        "zstd" => copy(&mut Frames::new(&mut pieces), image, disk, told),
        other => {
            let found = format!("{other:?}");
            return Err(Refused::new("image.form", "none or zstd", found).into());
        }
    };
    // A broken way to the gateway reaches us through the decoder as an error of reading.
    if let Some(error) = pieces.failed.take() {
        return Err(error);
    }
    let head = written?;
    pieces.finish()?;
    Ok(head)
}

fn copy(
    from: &mut dyn Read,
    image: &GrantImage,
    disk: &mut dyn Disk,
    told: &mut dyn FnMut(u64),
) -> Result<Head, InstallError> {
    let mut hash = Sha256::new();
    let head_bytes = (HEAD_BYTES as u64).min(image.raw_bytes) as usize;
    let mut head = vec![0; head_bytes];
    fill(from, &mut head)?;
    hash.update(&head);
    let place = place(&head, image.raw_bytes)
        .map_err(|why| Refused::new("image.place", "a partition table that can be read", why))?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = head.len() as u64;
    while at < image.raw_bytes {
        let count = (image.raw_bytes - at).min(CHUNK_BYTES as u64) as usize;
        let piece = &mut chunk[..count];
        fill(from, piece)?;
        hash.update(&*piece);
        let inside = place.and_then(|place| place.within(at, count));
        if inside.is_some_and(|range| piece[range].iter().any(|byte| *byte != 0)) {
            let found = format!("contents in it, at {at}");
            return Err(
                Refused::new("image.place", "an empty place for the package", found).into(),
            );
        }
        disk.write_at(at, piece).map_err(disk_io)?;
        at += count as u64;
        told(at);
    }
    let more = from.read(&mut [0]).map_err(reading)?;
    let found = hex::encode(hash.finalize());
    if more > 0 || found != image.raw_sha256 {
        let found = match more {
            0 => found,
            _ => format!("more than {} bytes", image.raw_bytes),
        };
        return Err(Refused::new("image.digest", image.raw_sha256.clone(), found).into());
    }
    Ok(Head { bytes: head, place })
}

/// Reads the disk back as the image was: the package's place was empty.
///
/// # Errors
/// `disk.io`.
pub fn read_back(disk: &mut dyn Disk, image: &GrantImage) -> Result<(String, Head), InstallError> {
    disk.forget_cached().map_err(disk_io)?;
    let mut hash = Sha256::new();
    let head_bytes = (HEAD_BYTES as u64).min(image.raw_bytes) as usize;
    let mut head = vec![0; head_bytes];
    disk.read_at(0, &mut head).map_err(disk_io)?;
    hash.update(&head);
    // A table that cannot be read is not the image's, and the digest says so.
    let place = place(&head, image.raw_bytes).ok().flatten();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = head.len() as u64;
    while at < image.raw_bytes {
        let count = (image.raw_bytes - at).min(CHUNK_BYTES as u64) as usize;
        let piece = &mut chunk[..count];
        disk.read_at(at, piece).map_err(disk_io)?;
        if let Some(range) = place.and_then(|place| place.within(at, count)) {
            piece[range].fill(0);
        }
        hash.update(&*piece);
        at += count as u64;
    }
    let digest = hex::encode(hash.finalize());
    Ok((digest, Head { bytes: head, place }))
}

fn fill(from: &mut dyn Read, buffer: &mut [u8]) -> Result<(), InstallError> {
    from.read_exact(buffer).map_err(reading)
}

fn reading(error: io::Error) -> InstallError {
    let found = match error.kind() {
        io::ErrorKind::UnexpectedEof => "fewer bytes".to_owned(),
        _ => error.to_string(),
    };
    Refused::new("image.digest", "the image that was granted", found).into()
}

/// An error of the disk.
pub fn disk_io(error: io::Error) -> InstallError {
    Refused::new(
        "disk.io",
        "a disk that is written and read",
        error.to_string(),
    )
    .into()
}

/// The file of the image, fetched piece by piece.
struct Pieces<'a> {
    source: &'a mut dyn Source,
    image: &'a GrantImage,
    piece: Vec<u8>,
    at: usize,
    fetched: u64,
    hash: Sha256,
    failed: Option<InstallError>,
}

impl<'a> Pieces<'a> {
    fn new(source: &'a mut dyn Source, image: &'a GrantImage) -> Self {
        Self {
            source,
            image,
            piece: Vec::new(),
            at: 0,
            fetched: 0,
            hash: Sha256::new(),
            failed: None,
        }
    }

    /// All of the file came, and it is the one that was granted.
    fn finish(self) -> Result<(), InstallError> {
        let found = hex::encode(self.hash.finalize());
        if self.fetched == self.image.size_bytes && found == self.image.sha256 {
            return Ok(());
        }
        let expected = format!("{} bytes, {}", self.image.size_bytes, self.image.sha256);
        let found = format!("{} bytes, {found}", self.fetched);
        Err(Refused::new("image.digest", expected, found).into())
    }
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = {
            let ready = self.fill_buf()?;
            let count = ready.len().min(buffer.len());
            buffer[..count].copy_from_slice(&ready[..count]);
            count
        };
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Pieces<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.piece.len() && self.fetched < self.image.size_bytes {
            let piece = self.source.piece(&self.image.sha256, self.fetched);
            let piece = match piece {
                Ok(piece) if piece.is_empty() => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(piece) => piece,
                Err(error) => {
                    let text = error.to_string();
                    self.failed = Some(error);
                    return Err(io::Error::other(text));
                }
            };
            self.hash.update(&piece);
            self.fetched += piece.len() as u64;
            self.piece = piece;
            self.at = 0;
        }
        Ok(&self.piece[self.at..])
    }

    fn consume(&mut self, count: usize) {
        self.at = (self.at + count).min(self.piece.len());
    }
}
