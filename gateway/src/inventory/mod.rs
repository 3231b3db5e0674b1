//! What the owner has written down before a machine is seen: inventory, EK roots, policy.
//!
//! Reads the files and hands them to the cores that judge them. One unreadable file stops the
//! start: a machine or a root left out silently would be a different decision.

mod handover;
pub mod unmatched;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use gateway_core::appraisal::ek::EkRoots;
use gateway_core::appraisal::x509::{CertError, CrlError};
use gateway_core::handover::Handover;
use gateway_core::inventory::Inventory;
use gateway_core::policy::Policy;
use gateway_core::strict_toml::FILE_MAX_BYTES;

use crate::config::{Config, InventoryFiles, LoadError, PolicySource};

/// Most files in the folder of EK roots: all vendors together have below 200.
const ROOT_FILES_MAX: usize = 1024;
/// File names that are read there.
const ROOT_EXTENSIONS: [&str; 5] = ["pem", "crt", "cer", "der", "cert"];

/// File names of revocation lists.
const CRL_EXTENSIONS: [&str; 3] = ["crl", "pem", "der"];
/// Largest file of roots or lists that is read: all vendors' lists together are smaller.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why the owner's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeclaredError {
    /// A file cannot be read, or has mistakes.
    #[error(transparent)]
    File(#[from] LoadError),
    /// A certificate cannot be used.
    #[error("{} holds no usable certificate", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Why.
        source: CertError,
    },
    /// A revocation list cannot be used.
    #[error("{} holds no usable revocation list", path.display())]
    RevocationList {
        /// The file.
        path: PathBuf,
        /// Why.
        source: CrlError,
    },
    /// A payload cannot be handed over.
    #[error("payload {}: {why}", path.display())]
    Payload {
        /// The file.
        path: PathBuf,
        /// Why; never its content.
        why: String,
    },
    /// Payloads that do not go together.
    #[error("payloads: {0}")]
    Payloads(String),
    /// Far more files than there are TPM vendors.
    #[error("{} holds more than {ROOT_FILES_MAX} files", path.display())]
    TooManyRoots {
        /// The folder.
        path: PathBuf,
    },
}

/// Everything the owner declared.
pub struct Declared {
    /// The machines; empty without a file.
    pub inventory: Inventory,
    /// Roots and intermediates for EK certificates; empty without a folder.
    pub ek_roots: EkRoots,
    /// The appraisal policy.
    pub policy: Policy,
    /// What admitted machines are given.
    pub handover: Handover,
}

impl Declared {
    /// Reads all of it.
    ///
    /// # Errors
    /// The first file that cannot be used, with every mistake in it.
    pub fn load(config: &Config) -> Result<Self, DeclaredError> {
        Ok(Self {
            policy: load_policy(&config.policy)?,
            inventory: load_inventory(&config.inventory)?,
            ek_roots: load_ek_roots(&config.inventory)?,
            handover: handover::load(&config.handover)?,
        })
    }
}

/// Reads the policy.
///
/// # Errors
/// The file cannot be read, or every mistake in it.
pub fn load_policy(source: &PolicySource) -> Result<Policy, DeclaredError> {
    match source {
        PolicySource::Preset(preset) => Ok(Policy::preset(*preset)),
        PolicySource::File(path) => {
            let text = read(path)?;
            Ok(Policy::parse(&text).map_err(|mistakes| mistaken(path, mistakes))?)
        }
    }
}

fn load_inventory(files: &InventoryFiles) -> Result<Inventory, DeclaredError> {
    let Some(path) = &files.file else {
        return Ok(Inventory::default());
    };
    let text = read(path)?;
    Ok(Inventory::parse(&text).map_err(|mistakes| mistaken(path, mistakes))?)
}

/// Reads roots and revocation lists. Roots first: a list is verified with them.
///
/// # Errors
/// The first file that cannot be used.
pub fn load_ek_roots(files: &InventoryFiles) -> Result<EkRoots, DeclaredError> {
    let mut roots = EkRoots::default();
    if let Some(dir) = &files.ek_roots_dir {
        for (path, bytes) in folder(dir, &ROOT_EXTENSIONS)? {
            roots
                .add_from(&path.display().to_string(), &bytes)
                .map_err(|source| DeclaredError::Certificate { path, source })?;
        }
    }
    if let Some(dir) = &files.ek_crls_dir {
        for (path, bytes) in folder(dir, &CRL_EXTENSIONS)? {
            roots
                .add_crls_from(&path.display().to_string(), &bytes)
                .map_err(|source| DeclaredError::RevocationList { path, source })?;
        }
    }
    Ok(roots)
}

/// The files of a folder with these endings and what they hold. The order of a folder is not an
/// order: the same files give the same result everywhere.
fn folder(dir: &Path, extensions: &[&str]) -> Result<Vec<(PathBuf, Vec<u8>)>, DeclaredError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| LoadError::Read { path, source }
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable(dir))? {
        let path = entry.map_err(unreadable(dir))?.path();
        let known = path
            .extension()
            .and_then(|ext| ext.to_str())
            .is_some_and(|ext| extensions.contains(&ext));
        if known {
            paths.push(path);
        }
        if paths.len() > ROOT_FILES_MAX {
            return Err(DeclaredError::TooManyRoots {
                path: dir.to_owned(),
            });
        }
    }
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let file = std::fs::File::open(&path).map_err(unreadable(&path))?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(unreadable(&path))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            let text = format!("more than {FILE_BYTES_MAX} bytes");
            return Err(unreadable(&path)(std::io::Error::other(text)).into());
        }
        files.push((path, bytes));
    }
    Ok(files)
}

fn read(path: &Path) -> Result<String, LoadError> {
    let unreadable = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > FILE_MAX_BYTES as u64 {
        let text = format!("{size} bytes, at most {FILE_MAX_BYTES} are read");
        return Err(unreadable(std::io::Error::other(text)));
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

fn mistaken(path: &Path, mistakes: Vec<gateway_core::strict_toml::Mistake>) -> LoadError {
    LoadError::Mistakes {
        path: path.to_owned(),
        mistakes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCa;

    #[test]
    fn reads_roots_in_any_spelling_and_skips_other_files() {
        let dir = tempfile::tempdir().expect("dir");
        let (one, two) = (TestCa::new("one"), TestCa::new("two"));
        std::fs::write(dir.path().join("a.pem"), one.pem).expect("written");
        std::fs::write(dir.path().join("b.der"), &two.der).expect("written");
        std::fs::write(dir.path().join("README"), "not a certificate").expect("written");
        let files = InventoryFiles {
            file: None,
            ek_roots_dir: Some(dir.path().to_owned()),
            ek_crls_dir: None,
        };
        assert_eq!(load_ek_roots(&files).expect("roots").len(), 2);
        std::fs::write(dir.path().join("c.pem"), "not a certificate").expect("written");
        let Err(error) = load_ek_roots(&files) else {
            panic!("a broken file was taken");
        };
        assert!(error.to_string().contains("c.pem"), "{error}");
    }

    #[test]
    fn reads_revocation_lists_after_the_roots_and_verifies_them_with_them() {
        let (roots, crls) = (
            tempfile::tempdir().expect("dir"),
            tempfile::tempdir().expect("dir"),
        );
        let ca = TestCa::new("one");
        let stranger = TestCa::new("stranger");
        std::fs::write(roots.path().join("a.pem"), &ca.pem).expect("written");
        std::fs::write(crls.path().join("a.crl"), ca.crl(7)).expect("written");
        std::fs::write(crls.path().join("b.crl"), stranger.crl(8)).expect("written");
        std::fs::write(crls.path().join("README"), "no list").expect("written");
        let files = InventoryFiles {
            file: None,
            ek_roots_dir: Some(roots.path().to_owned()),
            ek_crls_dir: Some(crls.path().to_owned()),
        };
        let loaded = load_ek_roots(&files).expect("roots and lists");
        let crls_of: Vec<_> = loaded
            .crls()
            .map(|crl| (crl.crl.len(), crl.signer_loaded()))
            .collect();
        assert_eq!(crls_of, [(1, true), (1, false)]);
        std::fs::write(crls.path().join("c.crl"), &ca.der).expect("written");
        let Err(error) = load_ek_roots(&files) else {
            panic!("a certificate was taken for a list");
        };
        assert!(error.to_string().contains("c.crl"), "{error}");
    }

    #[test]
    fn rejects_missing_files_by_name() {
        let dir = tempfile::tempdir().expect("dir");
        let files = InventoryFiles {
            file: Some(dir.path().join("inventory.toml")),
            ek_roots_dir: Some(dir.path().join("roots")),
            ek_crls_dir: Some(dir.path().join("crls")),
        };
        let Err(error) = load_inventory(&files) else {
            panic!("no file was taken for an empty one");
        };
        assert!(error.to_string().contains("inventory.toml"), "{error}");
        let Err(error) = load_ek_roots(&files) else {
            panic!("no folder was taken for an empty one");
        };
        assert!(error.to_string().contains("roots"), "{error}");
    }
}
