//! One disk to be written as a whole: a block device, or a file in its place.
//!
//! Blocking. Which disk it is, and whether it may be written, is decided before: `disk` lists them, the
//! installer chooses.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};

/// Bytes that are zeroed by plain writes at a time.
const ZEROES: usize = 1 << 20;

mod ioctl {
    // linux/fs.h: BLKDISCARD, BLKZEROOUT take two u64, first byte and count; BLKFLSBUF nothing.
    nix::ioctl_write_ptr_bad!(discard, nix::request_code_none!(0x12, 119), [u64; 2]);
    nix::ioctl_write_ptr_bad!(zero_out, nix::request_code_none!(0x12, 127), [u64; 2]);
    nix::ioctl_none_bad!(flush_buffers, nix::request_code_none!(0x12, 97));
}

/// How a range was emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emptied {
    /// The device was told to forget it (BLKDISCARD).
    Discarded,
    /// The device zeroed it (BLKZEROOUT).
    ZeroedOut,
    /// Zeros were written.
    Written,
}

impl Emptied {
    /// Word for the console and the record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Discarded => "discarded (BLKDISCARD)",
            Self::ZeroedOut => "zeroed (BLKZEROOUT)",
            Self::Written => "zeros written",
        }
    }
}

/// An open disk.
#[derive(Debug)]
pub struct BlockDisk {
    file: File,
    size: u64,
    is_device: bool,
}

impl BlockDisk {
    /// Opens a disk for reading and writing. A block device that is mounted, swapped on or part of
    /// another device is busy for everybody else (open(2), `O_EXCL`).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_EXCL.bits())
            .open(path)?;
        let is_device = file.metadata()?.file_type().is_block_device();
        let size = file.seek(SeekFrom::End(0))?;
        Ok(Self {
            file,
            size,
            is_device,
        })
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Fills `bytes`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    /// What was written is on the disk (fsync(2), which flushes the device's own cache).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// The next reads come from the disk and not from memory.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn forget_cached(&self) -> io::Result<()> {
        self.sync()?;
        posix_fadvise(&self.file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        if self.is_device {
            // SAFETY: the descriptor is open for as long as `file` is; BLKFLSBUF reads no argument.
            unsafe { ioctl::flush_buffers(self.file.as_raw_fd()) }?;
        }
        Ok(())
    }

    /// Tells the device that nothing of the range is needed any more; what it reads as then is not
    /// said. `None` where it cannot be told.
    pub fn discard(&self, from: u64, length: u64) -> Option<Emptied> {
        if !self.is_device {
            return None;
        }
        let range = [from, length];
        // SAFETY: the descriptor is open; BLKDISCARD reads two u64 that live for the call.
        let done = unsafe { ioctl::discard(self.file.as_raw_fd(), &raw const range) };
        done.ok().map(|_| Emptied::Discarded)
    }

    /// The range reads as zeros from now on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn zero(&self, from: u64, length: u64) -> io::Result<Emptied> {
        if self.is_device {
            let range = [from, length];
            // SAFETY: the descriptor is open; BLKZEROOUT reads two u64 that live for the call.
            let done = unsafe { ioctl::zero_out(self.file.as_raw_fd(), &raw const range) };
            if done.is_ok() {
                return Ok(Emptied::ZeroedOut);
            }
        }
        let zeros = vec![0; ZEROES.min(usize::try_from(length).unwrap_or(ZEROES))];
        let mut at = 0;
        while at < length {
            let count = (length - at).min(zeros.len() as u64);
            self.file
                .write_all_at(&zeros[..count as usize], from + at)?;
            at += count;
        }
        Ok(Emptied::Written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_its_place_is_written_zeroed_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, vec![7; 4 << 20]).unwrap();
        let disk = BlockDisk::open(&path).unwrap();
        assert_eq!(disk.size(), 4 << 20);
        assert_eq!(disk.discard(0, 512), None);
        assert_eq!(disk.zero(1 << 20, 2 << 20).unwrap(), Emptied::Written);
        disk.write_at(512, b"written").unwrap();
        disk.forget_cached().unwrap();
        let mut all = vec![0; 4 << 20];
        disk.read_at(0, &mut all).unwrap();
        assert_eq!(&all[512..519], b"written");
        assert!(all[1 << 20..3 << 20].iter().all(|byte| *byte == 0));
        assert!(all[3 << 20..].iter().all(|byte| *byte == 7));
        assert!(disk.write_at(0, b"x").is_ok());
        assert!(disk.read_at(4 << 20, &mut [0]).is_err());
    }
}
