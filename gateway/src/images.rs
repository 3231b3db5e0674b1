//! The boot artefacts in memory: read once, checked against the catalogue, shared with every
//! transfer.
//!
//! Decides that only bytes whose size and SHA-256 the signed catalogue names are ever served.
//! Deliberately does not know who may fetch them. Held in memory rather than mapped: a file that
//! changes under a mapping would be served although it was never checked.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use boot::catalog::Artefact;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// Largest artefact, in bytes: a UKI with firmware blobs stays below; bounds memory.
pub const ARTEFACT_MAX_BYTES: u64 = 1 << 30;

/// Why an image directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not the one that was signed for.
    #[error("{path}: expected {expected}, found {found}")]
    Differs {
        /// Which one.
        path: PathBuf,
        /// Size or digest of the catalogue.
        expected: String,
        /// Size or digest of the file.
        found: String,
    },
}

/// One artefact with its bytes.
#[derive(Debug, Clone)]
pub struct Image {
    /// What the catalogue says.
    pub artefact: Artefact,
    /// The file.
    pub bytes: Bytes,
}

/// All artefacts of one catalogue.
#[derive(Debug, Default)]
pub struct Images {
    by_sha256: HashMap<String, Arc<Image>>,
}

impl Images {
    /// Reads the files of verified catalogue entries from their folder.
    ///
    /// # Errors
    /// [`ImageError`] for the first file that is missing or is not the one signed for.
    pub fn read(dir: &Path, artefacts: &[Artefact]) -> Result<Self, ImageError> {
        let mut images = Self::default();
        for artefact in artefacts {
            let path = dir.join(&artefact.file);
            let wrong = |expected: String, found: String| ImageError::Differs {
                path: path.clone(),
                expected,
                found,
            };
            let read = |source| ImageError::Read {
                path: path.clone(),
                source,
            };
            let size = std::fs::metadata(&path).map_err(read)?.len();
            if size != artefact.size_bytes || size > ARTEFACT_MAX_BYTES {
                return Err(wrong(
                    format!(
                        "{} bytes (at most {ARTEFACT_MAX_BYTES})",
                        artefact.size_bytes
                    ),
                    format!("{size} bytes"),
                ));
            }
            let bytes = std::fs::read(&path).map_err(read)?;
            let digest = hex::encode(Sha256::digest(&bytes));
            if digest != artefact.sha256 {
                return Err(wrong(
                    format!("sha256 {}", artefact.sha256),
                    format!("sha256 {digest}"),
                ));
            }
            images.by_sha256.insert(
                digest,
                Arc::new(Image {
                    artefact: artefact.clone(),
                    bytes: Bytes::from(bytes),
                }),
            );
        }
        Ok(images)
    }

    /// The artefact with this digest (hex, lower case).
    pub fn by_sha256(&self, sha256: &str) -> Option<Arc<Image>> {
        self.by_sha256.get(sha256).cloned()
    }

    /// All artefacts, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Image>> {
        self.by_sha256.values()
    }
}

/// The artefacts in use; exchanged as a whole when the catalogue changes.
#[derive(Debug, Clone, Default)]
pub struct ImageStore(Arc<RwLock<Arc<Images>>>);

impl ImageStore {
    /// A store with its first catalogue.
    pub fn new(images: Images) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(images))))
    }

    /// The current artefacts; running transfers keep the ones they have.
    pub fn current(&self) -> Arc<Images> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Serves another catalogue from the next request on.
    pub fn replace(&self, images: Images) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(images);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use boot::catalog::{Kind, Role};

    use super::*;

    /// A catalogue entry for `bytes`.
    pub(crate) fn artefact(file: &str, bytes: &[u8]) -> Artefact {
        Artefact {
            name: "attester".to_owned(),
            kind: Kind::Uki,
            role: Role::Provision,
            arch: "x86_64".to_owned(),
            version: 1,
            file: file.to_owned(),
            sha256: hex::encode(Sha256::digest(bytes)),
            size_bytes: bytes.len() as u64,
            pe_sha256: "00".repeat(32),
            linux_pe_sha256: None,
            pcr11: None,
            cmdline: None,
        }
    }

    #[test]
    fn serves_what_was_signed_for() {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::write(dir.path().join("a.efi"), b"hello").expect("written");
        let entry = artefact("a.efi", b"hello");
        let images = Images::read(dir.path(), std::slice::from_ref(&entry)).expect("read");
        let image = images.by_sha256(&entry.sha256).expect("there");
        assert_eq!(&image.bytes[..], b"hello");
    }

    #[test]
    fn rejects_a_file_that_is_missing_longer_or_changed() {
        let dir = tempfile::tempdir().expect("dir");
        let entry = artefact("a.efi", b"hello");
        let read = || Images::read(dir.path(), std::slice::from_ref(&entry)).expect_err("refused");
        assert!(matches!(read(), ImageError::Read { .. }));
        std::fs::write(dir.path().join("a.efi"), b"hello!").expect("written");
        assert!(read().to_string().contains("found 6 bytes"));
        std::fs::write(dir.path().join("a.efi"), b"hellO").expect("written");
        assert!(read().to_string().contains("expected sha256"));
    }
}
