//! Which values must be in the database: a list beside it.
//!
//! sled 0.34 opens a log file that was cut short without an error and without its newest values.
//! Views are replayed then; a key that only the database holds would be gone unnoticed, and the
//! daemon would make new certificate authorities. So the names of such values are also in a small
//! file, replaced atomically after each write, and a store that misses one does not open.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::file;

/// A tree of values that are in no journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kept {
    Seal,
    Secret,
    Public,
}

impl Kept {
    pub(crate) const ALL: [Self; 3] = [Self::Seal, Self::Secret, Self::Public];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Seal => "sealed blob",
            Self::Secret => "secret",
            Self::Public => "document",
        }
    }
}

/// The list file and what it says.
pub(crate) struct KeptList {
    path: PathBuf,
    names: Mutex<BTreeSet<(Kept, String)>>,
}

impl KeptList {
    pub(crate) fn open(path: PathBuf) -> Result<Self, StoreError> {
        let names = match file::read_if_there(&path)? {
            Some(bytes) => {
                serde_json::from_slice(&bytes).map_err(|e| StoreError::CorruptJournal {
                    file: path.clone(),
                    offset: 0,
                    seq: 0,
                    why: e.to_string(),
                })?
            }
            None => BTreeSet::new(),
        };
        Ok(Self {
            path,
            names: Mutex::new(names),
        })
    }

    /// Every value that must be there.
    pub(crate) fn names(&self) -> BTreeSet<(Kept, String)> {
        let names = self.names.lock();
        names.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds names whose values are on stable storage.
    pub(crate) fn add<'a>(
        &self,
        added: impl Iterator<Item = (Kept, &'a str)>,
    ) -> Result<(), StoreError> {
        let added: Vec<_> = added.map(|(tree, name)| (tree, name.to_owned())).collect();
        self.change(|names| names.extend(added))
    }

    /// Removes a name before its value is removed.
    pub(crate) fn remove(&self, tree: Kept, name: &str) -> Result<(), StoreError> {
        self.change(|names| {
            names.remove(&(tree, name.to_owned()));
        })
    }

    /// Says that nothing but these must be there.
    pub(crate) fn reset(&self, kept: BTreeSet<(Kept, String)>) -> Result<(), StoreError> {
        self.change(|names| *names = kept)
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<(Kept, String)>)) -> Result<(), StoreError> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = names.clone();
        change(&mut new);
        if new != *names {
            let text = serde_json::to_vec(&new).map_err(StoreError::Encode)?;
            file::replace(&self.path, &text)?;
            *names = new;
        }
        Ok(())
    }
}

/// Where the list of a database folder is: `db` has `db.kept` beside it.
pub(crate) fn list_path(database: &Path) -> PathBuf {
    database.with_extension("kept")
}
