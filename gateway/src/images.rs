//! The boot artefacts in memory: read once, checked against the catalogue, shared with every
//! transfer.
//!
//! Decides that only bytes whose size and SHA-256 the signed catalogue names are ever served.
//! Deliberately does not know who may fetch them. Held in memory rather than mapped: a file that
//! changes under a mapping would be served although it was never checked.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use boot::catalog::{
    ARTEFACT_BYTES_MAX, Artefact, CATALOG_FILE, Catalog, CatalogError, ImageKey, SIGNATURE_FILE,
};
use bytes::Bytes;

use crate::config::BootFiles;

/// Why an image folder cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The catalogue, or a file of it, is not what was signed.
    #[error("{} is refused ({})", path.display(), source.code())]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why.
        source: CatalogError,
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
    /// Verifies the catalogue with the site's image key and reads every artefact it names.
    ///
    /// # Errors
    /// [`ImageError`] for the first file that is missing or is not the one signed for.
    pub fn load(files: &BootFiles) -> Result<(Catalog, Self), ImageError> {
        let key_pem = read(&files.image_key)?;
        let refused = |path: &Path| {
            let path = path.to_owned();
            move |source| ImageError::Refused { path, source }
        };
        let key = ImageKey::from_pem(&key_pem).map_err(refused(&files.image_key))?;
        let path = files.image_dir.join(CATALOG_FILE);
        let signature = read(&files.image_dir.join(SIGNATURE_FILE))?;
        let catalog = Catalog::load(&read(&path)?, &signature, &key).map_err(refused(&path))?;
        let images = Self::read(&files.image_dir, catalog.artefacts())?;
        Ok((catalog, images))
    }

    /// Reads the files of verified catalogue entries from their folder.
    ///
    /// # Errors
    /// [`ImageError`] for the first file that is missing or is not the one signed for.
    pub fn read(dir: &Path, artefacts: &[Artefact]) -> Result<Self, ImageError> {
        let mut images = Self::default();
        for artefact in artefacts {
            let path = dir.join(&artefact.file);
            let bytes = read(&path)?;
            artefact
                .check(&bytes)
                .map_err(|source| ImageError::Refused { path, source })?;
            images.by_sha256.insert(
                artefact.sha256.clone(),
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

/// A whole file, at most as large as an artefact may be.
fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    let failed = |source| ImageError::Read {
        path: path.to_owned(),
        source,
    };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > ARTEFACT_BYTES_MAX {
        let text = format!("{size} bytes, at most {ARTEFACT_BYTES_MAX} are served");
        return Err(failed(std::io::Error::other(text)));
    }
    std::fs::read(path).map_err(failed)
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
    use sha2::{Digest as _, Sha256};

    use super::*;

    /// A catalogue entry for `bytes`, of the one architecture whose programs are no PE images.
    pub(crate) fn artefact(file: &str, bytes: &[u8]) -> Artefact {
        Artefact {
            name: "attester".to_owned(),
            kind: Kind::Ipxe,
            role: Role::Provision,
            arch: boot::arch::Arch::X86Bios.as_str().to_owned(),
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
        let read = || {
            let error =
                Images::read(dir.path(), std::slice::from_ref(&entry)).expect_err("refused");
            crate::telemetry::chain(&error)
        };
        assert!(read().starts_with("cannot read"));
        std::fs::write(dir.path().join("a.efi"), b"hello!").expect("written");
        assert!(read().contains("expected 5, found 6"), "{}", read());
        std::fs::write(dir.path().join("a.efi"), b"hellO").expect("written");
        assert!(read().contains("sha256 expected"), "{}", read());
    }

    #[test]
    fn rejects_a_folder_without_a_signed_catalogue() {
        let dir = tempfile::tempdir().expect("dir");
        let files = BootFiles {
            image_dir: dir.path().to_owned(),
            image_key: dir.path().join("key.pem"),
        };
        let load = || crate::telemetry::chain(&Images::load(&files).expect_err("refused"));
        assert!(load().contains("key.pem"), "{}", load());
        std::fs::write(&files.image_key, "no key").expect("written");
        assert!(load().contains("catalog.key"), "{}", load());
    }
}
