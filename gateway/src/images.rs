//! The boot artefacts: checked against the catalogue at the start, read again when a machine asks, and
//! shared by every transfer while they are in use.
//!
//! Decides that only bytes whose size and SHA-256 the signed catalogue names are ever served.
//! Deliberately does not know who may fetch them.
//!
//! An appliance waits for weeks between two boots, so an artefact that nobody fetches is not held in
//! memory: it is dropped [`LINGER`] after its last use, and the next request reads and checks it
//! again, once for all that wait. Other ways were weighed. A mapping of the file would serve bytes that
//! were changed after the check, and a file that is cut under it kills the process (SIGBUS). A
//! sealed memfd is safe, but it is memory all the same, only under another name. Reading each part as it is
//! sent would need a digest for each part and hash every byte of every transfer.
//!
//! The file stays open from the start on: one that is renamed over or removed later is still the one
//! that was checked. One that is written to in place is found out by its digest and not served
//! (`image.changed`).

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use boot::catalog::{
    ARTEFACT_BYTES_MAX, Artefact, CATALOG_FILE, Catalog, CatalogError, ImageKey, SIGNATURE_FILE,
};
use bytes::Bytes;
use gateway_core::reason::Reason;
use tokio_util::sync::CancellationToken;

use crate::config::BootFiles;
use crate::telemetry;

/// How long an artefact is held after its last use: a rack that boots one machine after the other
/// reads it once.
pub const LINGER: Duration = Duration::from_secs(30);
/// How often is looked for what nobody uses any more.
const SWEEP: Duration = Duration::from_secs(10);

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

impl ImageError {
    /// Why an artefact that was good at the start cannot be served.
    pub fn reason(&self) -> Reason {
        let (code, expected) = match self {
            Self::Refused { .. } => ("image.changed", "the file that was checked at the start"),
            Self::Read { .. } => ("image.unreadable", "a file to read"),
        };
        Reason::new(
            code,
            expected,
            telemetry::chain(self),
            "the signed catalogue; docs/OPERATIONS.md, images",
            "put the catalogue's file back, or start the gateway with the new catalogue",
        )
    }
}

/// One artefact: what the catalogue says, and its bytes while they are in use.
#[derive(Debug)]
pub struct Image {
    /// What the catalogue says.
    pub artefact: Artefact,
    path: PathBuf,
    file: File,
    held: Mutex<Option<Held>>,
    /// Whoever reads the file; the others wait for him. Kept by the read itself, not by who asked for
    /// it: clients that ask and hang up must not start a read each.
    reading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct Held {
    bytes: Bytes,
    used: Instant,
}

impl Image {
    /// Opens a file and checks it in every figure of its entry.
    fn open(path: PathBuf, artefact: &Artefact) -> Result<Self, ImageError> {
        let file = File::open(&path).map_err(|source| ImageError::Read {
            path: path.clone(),
            source,
        })?;
        let bytes = whole(&file, &path)?;
        if let Err(source) = artefact.check(&bytes) {
            return Err(ImageError::Refused { path, source });
        }
        Ok(Self {
            artefact: artefact.clone(),
            path,
            file,
            held: Mutex::new(None),
            reading: Arc::default(),
        })
    }

    /// The bytes, as the catalogue names them; read and checked again if nobody had them lately.
    /// They stay in memory as long as somebody has them, and [`LINGER`] longer.
    ///
    /// # Errors
    /// [`ImageError`]: the file can no longer be read, or is no longer the one signed for.
    pub async fn bytes(self: &Arc<Self>) -> Result<Bytes, ImageError> {
        if let Some(bytes) = self.held() {
            return Ok(bytes);
        }
        let reading = Arc::clone(&self.reading).lock_owned().await;
        if let Some(bytes) = self.held() {
            return Ok(bytes);
        }
        let image = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            let _reading = reading;
            image.read()
        })
        .await;
        // Nothing is begun any more while the process ends.
        read.unwrap_or_else(|ended| {
            Err(ImageError::Read {
                path: self.path.clone(),
                source: std::io::Error::other(ended),
            })
        })
    }

    fn held(&self) -> Option<Bytes> {
        let mut held = self.lock();
        let held = held.as_mut()?;
        held.used = Instant::now();
        Some(held.bytes.clone())
    }

    fn read(&self) -> Result<Bytes, ImageError> {
        let started = Instant::now();
        let bytes = whole(&self.file, &self.path)?;
        if let Err(source) = self.artefact.check_digest(&bytes) {
            let path = self.path.clone();
            return Err(ImageError::Refused { path, source });
        }
        let bytes = Bytes::from(bytes);
        *self.lock() = Some(Held {
            bytes: bytes.clone(),
            used: Instant::now(),
        });
        let ms = started.elapsed().as_millis() as u64;
        tracing::debug!(
            file = self.artefact.file,
            size = bytes.len(),
            ms,
            "artefact read"
        );
        Ok(bytes)
    }

    /// Lets go of what was not used since `since` and is in nobody's hands.
    fn release(&self, since: Instant) {
        let mut held = self.lock();
        if held
            .as_ref()
            .is_some_and(|held| held.used <= since && held.bytes.is_unique())
        {
            *held = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The catalogue alone, verified with the site's image key; its files are not looked at.
///
/// # Errors
/// [`ImageError`]: a file is missing, or the catalogue is not what was signed.
pub fn verified_catalog(files: &BootFiles) -> Result<Catalog, ImageError> {
    let key_pem = read(&files.image_key)?;
    let refused = |path: &Path| {
        let path = path.to_owned();
        move |source| ImageError::Refused { path, source }
    };
    let key = ImageKey::from_pem(&key_pem).map_err(refused(&files.image_key))?;
    let path = files.image_dir.join(CATALOG_FILE);
    let signature = read(&files.image_dir.join(SIGNATURE_FILE))?;
    Catalog::load(&read(&path)?, &signature, &key).map_err(refused(&path))
}

/// All artefacts of one catalogue.
#[derive(Debug, Default)]
pub struct Images {
    by_sha256: HashMap<String, Arc<Image>>,
}

impl Images {
    /// Verifies the catalogue with the site's image key and checks every artefact it names.
    ///
    /// # Errors
    /// [`ImageError`] for the first file that is missing or is not the one signed for.
    pub fn load(files: &BootFiles) -> Result<(Catalog, Self), ImageError> {
        let catalog = verified_catalog(files)?;
        let images = Self::read(&files.image_dir, catalog.artefacts())?;
        Ok((catalog, images))
    }

    /// Opens and checks the files of verified catalogue entries, one after the other: no more than
    /// one is in memory.
    ///
    /// # Errors
    /// [`ImageError`] for the first file that is missing or is not the one signed for.
    pub fn read(dir: &Path, artefacts: &[Artefact]) -> Result<Self, ImageError> {
        let mut images = Self::default();
        for artefact in artefacts {
            let image = Image::open(dir.join(&artefact.file), artefact)?;
            images
                .by_sha256
                .insert(artefact.sha256.clone(), Arc::new(image));
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

fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    let file = File::open(path).map_err(|source| ImageError::Read {
        path: path.to_owned(),
        source,
    })?;
    whole(&file, path)
}

/// A whole file as it is now, at most as large as an artefact may be. By position: an open file's
/// own one is shared.
fn whole(file: &File, path: &Path) -> Result<Vec<u8>, ImageError> {
    let failed = |source| ImageError::Read {
        path: path.to_owned(),
        source,
    };
    let size = file.metadata().map_err(failed)?.len();
    if size > ARTEFACT_BYTES_MAX {
        let text = format!("{size} bytes, at most {ARTEFACT_BYTES_MAX} are served");
        return Err(failed(std::io::Error::other(text)));
    }
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    Ok(bytes)
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

    /// Lets go of what nobody fetches any more, until `cancel`.
    pub async fn run(self, cancel: CancellationToken) {
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(SWEEP) => {}
            }
            if let Some(since) = Instant::now().checked_sub(LINGER) {
                self.release(since);
            }
        }
    }

    fn release(&self, since: Instant) {
        for image in self.current().iter() {
            image.release(since);
        }
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

    /// A store of one artefact `a.efi` with the contents `hello`, its folder, and the artefact.
    fn hello() -> (tempfile::TempDir, ImageStore, Arc<Image>) {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::write(dir.path().join("a.efi"), b"hello").expect("written");
        let entry = artefact("a.efi", b"hello");
        let images = Images::read(dir.path(), std::slice::from_ref(&entry)).expect("read");
        let image = images.by_sha256(&entry.sha256).expect("there");
        (dir, ImageStore::new(images), image)
    }

    #[tokio::test]
    async fn serves_what_was_signed_for() {
        let (_dir, _, image) = hello();
        assert_eq!(&image.bytes().await.expect("served")[..], b"hello");
    }

    #[tokio::test]
    async fn nothing_is_held_before_the_first_request_or_long_after_the_last() {
        let (_dir, store, image) = hello();
        let held = || image.lock().is_some();
        assert!(!held());
        let bytes = image.bytes().await.expect("served");
        let again = image.bytes().await.expect("served");
        assert_eq!(bytes.as_ptr(), again.as_ptr(), "one copy for all");
        drop(again);
        store.release(Instant::now());
        assert!(held(), "a transfer has it");
        drop(bytes);
        let used = image.lock().as_ref().expect("held").used;
        store.release(used.checked_sub(LINGER).expect("an earlier time"));
        assert!(held(), "used lately");
        store.release(Instant::now());
        assert!(!held());
        assert_eq!(&image.bytes().await.expect("read again")[..], b"hello");
    }

    #[tokio::test]
    async fn a_request_that_is_given_up_has_read_it_for_the_next_one() {
        let (_dir, _, image) = hello();
        // Polled once: the read has begun.
        let _given_up = tokio::time::timeout(Duration::ZERO, image.bytes()).await;
        let _over = image.reading.lock().await;
        assert!(image.lock().is_some());
    }

    #[tokio::test]
    async fn what_is_removed_or_renamed_over_later_is_still_served() {
        let (dir, _, image) = hello();
        std::fs::write(dir.path().join("new"), b"other").expect("written");
        std::fs::rename(dir.path().join("new"), dir.path().join("a.efi")).expect("renamed");
        assert_eq!(&image.bytes().await.expect("served")[..], b"hello");
    }

    #[tokio::test]
    async fn rejects_what_was_written_over_or_cut_after_the_start() {
        let (dir, store, image) = hello();
        let path = dir.path().join("a.efi");
        for contents in [&b"hellO"[..], b"hell", b"", b"hello!"] {
            std::fs::write(&path, contents).expect("written");
            let reason = image.bytes().await.expect_err("refused").reason();
            assert_eq!(reason.code, "image.changed", "{contents:?}");
            assert!(image.lock().is_none());
        }
        std::fs::write(&path, b"hello").expect("written");
        let bytes = image.bytes().await.expect("the catalogue's file is back");
        // What is being served was checked: the file no longer matters.
        std::fs::write(&path, b"hell").expect("written");
        assert_eq!(&bytes[..], b"hello");
        drop(bytes);
        store.release(Instant::now());
        assert!(image.bytes().await.is_err());
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
