//! Append-only files as the committer sees them, and the few file-system calls that make a new
//! file durable. A trait, so that the tests can let a write or a sync fail.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::error::StoreError;

/// A file that only grows. After the first error its length is unknown and it is not used again.
pub(crate) trait AppendFile: Send {
    /// Writes all bytes at the end.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns once everything appended is on stable storage (`fdatasync`).
    fn sync(&mut self) -> io::Result<()>;
}

/// Where append-only files come from.
pub(crate) trait Disk: Send + Sync {
    /// Opens an existing file for appending.
    fn open(&self, path: &Path) -> io::Result<Box<dyn AppendFile>>;
    /// Makes a new file with these first bytes, durable together with its directory entry.
    fn create(&self, path: &Path, first: &[u8]) -> io::Result<Box<dyn AppendFile>>;
}

/// The real file system.
pub(crate) struct RealDisk;

struct RealFile(File);

impl AppendFile for RealFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}

impl Disk for RealDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn AppendFile>> {
        let file = OpenOptions::new().append(true).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn create(&self, path: &Path, first: &[u8]) -> io::Result<Box<dyn AppendFile>> {
        let mut file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(first)?;
        file.sync_all()?;
        sync_parent(path)?;
        Ok(Box::new(RealFile(file)))
    }
}

/// Appends `bytes` and returns once they are on stable storage.
pub(crate) fn append_durably(
    file: &mut dyn AppendFile,
    path: &Path,
    bytes: &[u8],
) -> Result<(), StoreError> {
    file.append(bytes)
        .map_err(|e| StoreError::io("write", path, e))?;
    file.sync().map_err(|e| StoreError::io("sync", path, e))
}

/// Makes renames and new names in the folder of `path` durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

/// Makes a folder that only its owner can read, with its parents.
pub(crate) fn create_dir(path: &Path) -> Result<(), StoreError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| sync_parent(path))
        .map_err(|e| StoreError::io("create", path, e))
}

/// Whole contents, or none when there is no such file.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(StoreError::io("read", path, e)),
    }
}

/// Cuts a file to `len` bytes, durably.
pub(crate) fn cut(path: &Path, len: u64) -> Result<(), StoreError> {
    let cut = || -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(len)?;
        file.sync_all()
    };
    cut().map_err(|e| StoreError::io("cut", path, e))
}

/// Replaces `path` by a file with these contents: after a power cut either the old or the new one
/// is there, never a mixture.
pub(crate) fn replace(path: &Path, contents: &[u8]) -> Result<(), StoreError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        sync_parent(path)
    };
    write().map_err(|e| StoreError::io("replace", path, e))
}

/// Fsyncs every regular file below `dir` and every folder: what sled's flush leaves out.
pub(crate) fn sync_tree(dir: &Path) -> Result<(), StoreError> {
    let walk = || -> io::Result<()> {
        let mut open = vec![dir.to_path_buf()];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    open.push(entry.path());
                } else if kind.is_file() {
                    match File::open(entry.path()) {
                        Ok(file) => file.sync_all()?,
                        // sled removes old snapshots in the background.
                        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                        Err(e) => return Err(e),
                    }
                }
            }
            File::open(&folder)?.sync_all()?;
        }
        Ok(())
    };
    walk().map_err(|e| StoreError::io("sync", dir, e))
}
