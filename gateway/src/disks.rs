//! The disk images of the catalogue, for the installer: opened and checked at the start, read in pieces as
//! they are asked for.
//!
//! Decides that a piece comes from the file that was checked, as long as nobody writes to it. The
//! node hashes the whole and refuses what is not what it was granted, so a file that was changed in
//! place costs an installation and nothing else. Does not know who may fetch what.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use boot::catalog::{CatalogError, DiskImage};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::images::ImageError;

/// Most bytes of an image in one answer: what all connections of the listener hold at once stays below
/// 128 MiB.
pub const PIECE_BYTES: usize = 512 * 1024;
const CHECK_BYTES: usize = 1 << 20;

/// One image: what the catalogue says, and its file.
#[derive(Debug)]
pub struct Disk {
    /// What the catalogue says.
    pub image: DiskImage,
    path: PathBuf,
    file: File,
}

impl Disk {
    fn open(dir: &Path, image: &DiskImage) -> Result<Self, ImageError> {
        let path = dir.join(&image.file);
        let failed = |source| ImageError::Read {
            path: path.clone(),
            source,
        };
        let mut file = File::open(&path).map_err(failed)?;
        let (mut hash, mut size) = (Sha256::new(), 0);
        let mut buffer = vec![0; CHECK_BYTES];
        loop {
            let count = file.read(&mut buffer).map_err(failed)?;
            if count == 0 {
                break;
            }
            hash.update(&buffer[..count]);
            size += count as u64;
        }
        for (field, expected, found) in [
            (
                "size in bytes",
                image.size_bytes.to_string(),
                size.to_string(),
            ),
            ("sha256", image.sha256.clone(), hex::encode(hash.finalize())),
        ] {
            if expected != found {
                let name = image.name.clone();
                let source = CatalogError::Artefact {
                    name,
                    field,
                    expected,
                    found,
                };
                return Err(ImageError::Refused { path, source });
            }
        }
        Ok(Self {
            image: image.clone(),
            path,
            file,
        })
    }

    /// The bytes from `offset` on, at most [`PIECE_BYTES`] and none beyond the end.
    ///
    /// # Errors
    /// [`ImageError::Read`].
    pub async fn piece(self: Arc<Self>, offset: u64, length: u64) -> Result<Bytes, ImageError> {
        let left = self.image.size_bytes.saturating_sub(offset);
        let length = length.min(left).min(PIECE_BYTES as u64) as usize;
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; length];
            self.file.read_exact_at(&mut bytes, offset)?;
            Ok(Bytes::from(bytes))
        });
        let read = read.await.map_err(std::io::Error::other);
        read.and_then(|done| done)
            .map_err(|source| ImageError::Read { path, source })
    }
}

/// All disk images of a catalogue.
#[derive(Debug, Default)]
pub struct DiskImages {
    by_sha256: HashMap<String, Arc<Disk>>,
}

impl DiskImages {
    /// Opens and checks the files of verified catalogue entries. Blocking: every byte is hashed.
    ///
    /// # Errors
    /// [`ImageError`] for the first file that is missing or is not the one signed for.
    pub fn open(dir: &Path, entries: &[DiskImage]) -> Result<Self, ImageError> {
        let mut images = Self::default();
        for entry in entries {
            let disk = Arc::new(Disk::open(dir, entry)?);
            images.by_sha256.insert(entry.sha256.clone(), disk);
        }
        Ok(images)
    }

    /// The image with this digest (hex, lower case).
    pub fn by_sha256(&self, sha256: &str) -> Option<Arc<Disk>> {
        self.by_sha256.get(sha256).cloned()
    }
}

#[cfg(test)]
mod tests {
    use boot::catalog::Compression;

    use super::*;

    fn entry(bytes: &[u8]) -> DiskImage {
        let sha256 = hex::encode(Sha256::digest(bytes));
        DiskImage {
            name: "worker".into(),
            version: 1,
            file: "worker-1.raw".into(),
            sha256: sha256.clone(),
            size_bytes: bytes.len() as u64,
            compression: Compression::None,
            raw_sha256: sha256,
            raw_bytes: bytes.len() as u64,
        }
    }

    #[tokio::test]
    async fn pieces_are_of_the_file_and_end_with_it() {
        let dir = tempfile::tempdir().expect("dir");
        let bytes: Vec<u8> = (0..PIECE_BYTES + 4096).map(|n| (n % 251) as u8).collect();
        std::fs::write(dir.path().join("worker-1.raw"), &bytes).expect("written");
        let images = DiskImages::open(dir.path(), &[entry(&bytes)]).expect("opened");
        let disk = images.by_sha256(&entry(&bytes).sha256).expect("there");
        let first = Arc::clone(&disk).piece(0, u64::MAX).await.expect("read");
        assert_eq!(first, bytes[..PIECE_BYTES]);
        let last = Arc::clone(&disk).piece(PIECE_BYTES as u64, u64::MAX);
        assert_eq!(last.await.expect("read"), bytes[PIECE_BYTES..]);
        let beyond = disk.piece(1 << 40, 1).await;
        assert!(beyond.is_ok_and(|bytes| bytes.is_empty()));
    }

    #[test]
    fn rejects_a_file_that_is_not_the_one_signed_for() {
        let dir = tempfile::tempdir().expect("dir");
        let open = |bytes: &[u8]| DiskImages::open(dir.path(), &[entry(bytes)]);
        assert!(matches!(open(b"a"), Err(ImageError::Read { .. })));
        std::fs::write(dir.path().join("worker-1.raw"), b"b").expect("written");
        assert!(matches!(open(b"a"), Err(ImageError::Refused { .. })));
        assert!(open(b"b").is_ok());
    }
}
