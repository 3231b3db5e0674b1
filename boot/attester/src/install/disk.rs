//! The one disk that may be written: found by its serial number in sysfs, opened so that nobody else has
//! it, and what the installer needs of it.

use std::io;
use std::path::{Path, PathBuf};

use hw::block::{BlockDisk, Emptied};

use super::Refused;

/// A disk as the installer uses it. Everything is by position; what is not synchronised may be lost
/// when the power goes.
pub trait Disk {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Writes all of `bytes`.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Fills `bytes`.
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// What was written stays.
    fn sync(&mut self) -> io::Result<()>;
    /// What was written stays, and the next reads come from the disk itself.
    fn forget_cached(&mut self) -> io::Result<()>;
    /// The device forgets all it holds, where it can be told to.
    fn discard_all(&mut self) -> Option<Emptied>;
    /// The range reads as zeros.
    fn zero(&mut self, from: u64, length: u64) -> io::Result<Emptied>;
}

impl Disk for BlockDisk {
    fn size(&self) -> u64 {
        BlockDisk::size(self)
    }
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        BlockDisk::write_at(self, offset, bytes)
    }
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        BlockDisk::read_at(self, offset, bytes)
    }
    fn sync(&mut self) -> io::Result<()> {
        BlockDisk::sync(self)
    }
    fn forget_cached(&mut self) -> io::Result<()> {
        BlockDisk::forget_cached(self)
    }
    fn discard_all(&mut self) -> Option<Emptied> {
        self.discard(0, BlockDisk::size(self))
    }
    fn zero(&mut self, from: u64, length: u64) -> io::Result<Emptied> {
        BlockDisk::zero(self, from, length)
    }
}

/// Where the kernel shows disks.
#[derive(Debug, Clone)]
pub struct Roots {
    /// `/sys/block`.
    pub block: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
    /// `/proc/mounts`.
    pub mounts: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            block: hw::disk::BLOCK_ROOT.into(),
            dev: "/dev".into(),
            mounts: "/proc/mounts".into(),
        }
    }
}

/// Finds the disk with this serial number and opens it.
///
/// # Errors
/// `disk.missing`, `disk.ambiguous`, `disk.small`, `disk.read_only`, `disk.busy`, `disk.io`.
pub fn find(roots: &Roots, serial: &str, bytes_min: u64) -> Result<(String, BlockDisk), Refused> {
    let all = hw::disk::disks(&roots.block);
    let named: Vec<&hw::disk::Disk> = all
        .iter()
        .filter(|disk| !serial.is_empty() && disk.serial == serial)
        .collect();
    let disk = match named.as_slice() {
        [disk] => disk,
        [] => {
            let known: Vec<String> = all
                .iter()
                .map(|disk| format!("{} {:?}", disk.name, disk.serial))
                .collect();
            return Err(Refused::new(
                "disk.missing",
                format!("a disk with serial {serial:?}"),
                format!("{} disks: {}", all.len(), known.join(", ")),
            ));
        }
        several => {
            let names: Vec<&str> = several.iter().map(|disk| disk.name.as_str()).collect();
            return Err(Refused::new(
                "disk.ambiguous",
                format!("one disk with serial {serial:?}"),
                names.join(" and "),
            ));
        }
    };
    let folder = roots.block.join(&disk.name);
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
    if read("ro").trim() == "1" {
        let expected = format!("disk {} can be written", disk.name);
        return Err(Refused::new("disk.read_only", expected, "a read-only disk"));
    }
    if let Some(by) = busy(roots, &folder, &disk.name) {
        let expected = format!("nobody uses disk {}", disk.name);
        return Err(Refused::new("disk.busy", expected, by));
    }
    let path = roots.dev.join(&disk.name);
    let open = BlockDisk::open(&path).map_err(|error| {
        let code = match error.kind() {
            io::ErrorKind::ResourceBusy => "disk.busy",
            _ => "disk.io",
        };
        let expected = format!("{} opens for writing", path.display());
        Refused::new(code, expected, error.to_string())
    })?;
    if open.size() < bytes_min {
        let expected = format!("at least {bytes_min} bytes");
        let found = format!("disk {} of {} bytes", disk.name, open.size());
        return Err(Refused::new("disk.small", expected, found));
    }
    Ok((disk.name.clone(), open))
}

/// Who uses the disk or a part of it.
fn busy(roots: &Roots, folder: &Path, name: &str) -> Option<String> {
    let holders = |folder: &Path| {
        let mut inside = std::fs::read_dir(folder.join("holders")).ok()?.flatten();
        inside
            .next()
            .map(|entry| format!("{} is part of it", entry.file_name().to_string_lossy()))
    };
    let parts = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let parts = parts.filter(|entry| entry.path().join("partition").exists());
    let held = holders(folder).or_else(|| parts.into_iter().find_map(|p| holders(&p.path())));
    let mounts = std::fs::read_to_string(&roots.mounts).unwrap_or_default();
    let device = format!("/dev/{name}");
    let mounted = mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (source, target) = (words.next()?, words.next()?);
        let rest = source.strip_prefix(&device)?;
        let part = rest.strip_prefix('p').unwrap_or(rest);
        part.chars()
            .all(|c| c.is_ascii_digit())
            .then(|| format!("{source} is mounted at {target}"))
    });
    held.or(mounted)
}
