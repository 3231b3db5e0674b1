//! The folder of EK hashes: one empty file for each EK that SPIRE's plugin `tpm` is to admit (its
//! `hash_path`), named by the SHA-256 of the EK's `SubjectPublicKeyInfo` in lower-case hex.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use gateway_core::spire::{EkPlan, is_ek_hash};

/// A folder or file that did not do what it should.
#[derive(Debug, thiserror::Error)]
#[error("cannot change the folder of EK hashes: {}", path.display())]
pub(super) struct FolderError {
    path: PathBuf,
    source: io::Error,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> FolderError + '_ {
    |source| FolderError {
        path: path.to_owned(),
        source,
    }
}

/// The hashes that have a file. Other names are not looked at.
pub(super) fn present(dir: &Path) -> Result<BTreeSet<String>, FolderError> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).map_err(at(dir))? {
        let name = entry.map_err(at(dir))?.file_name();
        if let Some(name) = name.to_str().filter(|name| is_ek_hash(name)) {
            found.insert(name.to_owned());
        }
    }
    Ok(found)
}

/// Removes, then makes. An empty file is there or not: each step is atomic, and the folder is synced at
/// the end.
pub(super) fn perform(dir: &Path, plan: &EkPlan) -> Result<(), FolderError> {
    for (_, hash) in &plan.remove {
        let path = dir.join(hash);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&path)(error)),
            _ => {}
        }
    }
    for (_, hash) in &plan.add {
        let path = dir.join(hash);
        let made = OpenOptions::new().write(true).create_new(true).open(&path);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(at(&path)(error));
            }
            _ => {}
        }
    }
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(at(dir))
}

#[cfg(test)]
mod tests {
    use gateway_core::identity::MachineId;

    use super::*;

    #[test]
    fn files_come_and_go_and_others_stay() {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path();
        let hash = |byte: &str| byte.repeat(32);
        let of = |byte: &str| (MachineId("m".into()), hash(byte));
        fs::write(dir.join("README"), "by hand").expect("written");
        fs::write(dir.join(hash("AA")), "").expect("upper case is no name of the plugin");
        let plan = EkPlan {
            add: vec![of("0a"), of("0b")],
            remove: vec![of("0c")],
        };
        perform(dir, &plan).expect("a folder that can be written");
        perform(dir, &plan).expect("the same again");
        assert_eq!(
            present(dir).expect("read"),
            BTreeSet::from([hash("0a"), hash("0b")])
        );
        assert_eq!(fs::metadata(dir.join(hash("0a"))).expect("there").len(), 0);
        let back = EkPlan {
            add: Vec::new(),
            remove: vec![of("0a"), of("0b")],
        };
        perform(dir, &back).expect("removed");
        assert!(present(dir).expect("read").is_empty());
        assert_eq!(fs::read_dir(dir).expect("read").count(), 2);
    }
}
