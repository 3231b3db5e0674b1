//! Where an image wants the package, and what the package is.
//!
//! The image says where by a GPT partition of the name `VESTIBULE` (UEFI 2.10 section 5.3) that it leaves
//! empty. The package is a `ustar` archive (POSIX.1-2017, pax) at its beginning: modes are kept, any
//! system reads it without a file system (`tar -xf /dev/disk/by-partlabel/VESTIBULE`), and it is one
//! run of sectors that can be written and read back like the rest.

use std::io;
use std::path::Path;

use zeroize::Zeroizing;

/// Name of the partition.
pub const LABEL: &str = "VESTIBULE";
/// Head of a disk in which the tables must lie, in bytes; written last of all.
pub const HEAD_BYTES: usize = 1 << 20;
/// Largest place for a package, in bytes.
pub const PLACE_BYTES_MAX: u64 = 64 << 20;
/// Largest file of a package, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Files of the folder that go into it, where they are there.
const FILES: [&str; 6] = [
    "chain.pem",
    "devid.pub",
    "devid.priv",
    "devid.auth",
    "srk.pub",
    "receipt.json",
];
/// Folder of the payloads in it.
pub const PAYLOADS: &str = "payloads";
const BLOCK: usize = 512;

/// A range of the disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// First byte.
    pub from: u64,
    /// How many.
    pub length: u64,
}

impl Place {
    /// The part of a piece of the disk that lies in it, as indices into the piece.
    pub fn within(self, offset: u64, length: usize) -> Option<std::ops::Range<usize>> {
        let from = self.from.max(offset);
        let to = self
            .from
            .saturating_add(self.length)
            .min(offset.saturating_add(length as u64));
        (from < to).then(|| (from - offset) as usize..(to - offset) as usize)
    }
}

/// The place that the image declares in its head; none where it wants no package.
///
/// # Errors
/// One line, for a table that cannot be what it says.
pub fn place(head: &[u8], raw_bytes: u64) -> Result<Option<Place>, String> {
    let signature = |sector: usize| head.get(sector..sector + 8) == Some(b"EFI PART".as_slice());
    let Some(sector) = [512, 4096].into_iter().find(|sector| signature(*sector)) else {
        return Ok(None);
    };
    let long = |at: usize| {
        let bytes = head.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let word = |at: usize| {
        let bytes = head.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let cut = || "the partition table ends behind the first MiB".to_owned();
    let first = long(sector + 72).ok_or_else(cut)?;
    let count = word(sector + 80).ok_or_else(cut)?.min(1024);
    let size = word(sector + 84).ok_or_else(cut)? as usize;
    if !(128..=4096).contains(&size) {
        return Err(format!("partition entries of {size} bytes"));
    }
    let mut found = None;
    for index in 0..count as usize {
        let at = usize::try_from(first)
            .ok()
            .and_then(|first| first.checked_mul(sector))
            .and_then(|start| start.checked_add(index * size))
            .ok_or_else(cut)?;
        let entry = head.get(at..at + size).ok_or_else(cut)?;
        if entry[..16] == [0; 16] || name(&entry[56..128]) != LABEL {
            continue;
        }
        let (Some(from), Some(last)) = (long(at + 32), long(at + 40)) else {
            return Err(cut());
        };
        let length = last.saturating_sub(from).saturating_add(1);
        let place = Place {
            from: from.saturating_mul(sector as u64),
            length: length.saturating_mul(sector as u64),
        };
        let end = place.from.saturating_add(place.length);
        if last < from
            || place.from < HEAD_BYTES as u64
            || end > raw_bytes
            || place.length > PLACE_BYTES_MAX
        {
            return Err(format!(
                "partition {LABEL} at {} of {} bytes; it lies behind the first MiB, within the image, and has at most {PLACE_BYTES_MAX}",
                place.from, place.length
            ));
        }
        if found.replace(place).is_some() {
            return Err(format!("two partitions {LABEL}"));
        }
    }
    Ok(found)
}

/// UTF-16LE up to the first NUL.
fn name(bytes: &[u8]) -> String {
    let units = bytes.chunks_exact(2);
    let units = units.map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    String::from_utf16_lossy(&units)
}

/// One file of a package.
pub struct Entry {
    /// Path in the archive.
    pub path: String,
    /// Contents.
    pub bytes: Zeroizing<Vec<u8>>,
}

/// What goes onto the disk beside the image.
#[derive(Default)]
pub struct Package {
    /// Its files.
    pub entries: Vec<Entry>,
}

impl Package {
    /// From the folder that an admission leaves (`output::write`), with the payloads below it.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn from_folder(folder: &Path) -> io::Result<Self> {
        let mut paths: Vec<String> = FILES.map(str::to_owned).to_vec();
        let payloads = folder.join(PAYLOADS);
        if payloads.is_dir() {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(&payloads)? {
                let entry = entry?;
                if let (true, Ok(name)) = (
                    entry.file_type()?.is_file(),
                    entry.file_name().into_string(),
                ) {
                    names.push(format!("{PAYLOADS}/{name}"));
                }
            }
            names.sort();
            paths.extend(names);
        }
        let mut package = Self::default();
        for path in paths {
            let file = folder.join(&path);
            match std::fs::metadata(&file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
                Ok(meta) if meta.len() > FILE_BYTES_MAX || path.len() > 100 => {
                    let text = format!("{path}: {} bytes", meta.len());
                    return Err(io::Error::other(text));
                }
                Ok(_) => {}
            }
            let bytes = Zeroizing::new(std::fs::read(&file)?);
            package.entries.push(Entry { path, bytes });
        }
        Ok(package)
    }

    /// The archive, with the two blocks of zeros that end it.
    pub fn archive(&self) -> Zeroizing<Vec<u8>> {
        let padded = |length: usize| length.div_ceil(BLOCK) * BLOCK;
        let total: usize = self
            .entries
            .iter()
            .map(|e| BLOCK + padded(e.bytes.len()))
            .sum();
        // As large as it will be from the start: a vector that grows leaves copies behind.
        let mut out = Zeroizing::new(Vec::with_capacity(total + 2 * BLOCK));
        for entry in &self.entries {
            out.extend_from_slice(&header(&entry.path, entry.bytes.len()));
            out.extend_from_slice(&entry.bytes);
            let whole = padded(out.len());
            out.resize(whole, 0);
        }
        out.resize(total + 2 * BLOCK, 0);
        out
    }
}

/// `ustar` header block of a file of root's that only root reads.
fn header(path: &str, size: usize) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    put(0, path.as_bytes());
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    // The sum is taken with blanks in its own place.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    put(265, b"root");
    put(297, b"root");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}
