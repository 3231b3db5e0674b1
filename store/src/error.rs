//! What can go wrong with the storage, each case once and with the file it concerns.

use std::io;
use std::path::{Path, PathBuf};

use crate::ledger::VerifyError;

/// A storage failure. The CLI exits with code 5 for every one of them.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process holds the state directory.
    #[error("state directory {} is in use by another process", dir.display())]
    InUse {
        /// The state directory.
        dir: PathBuf,
    },
    /// The file system has no room, or a quota is used up.
    #[error("no space left: cannot {op} {}", path.display())]
    Full {
        /// What was tried.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The directory cannot be written by this user, or is mounted read-only.
    #[error("not writable: cannot {op} {}", path.display())]
    ReadOnly {
        /// What was tried.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Any other failure of the operating system.
    #[error("cannot {op} {}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The sled database does not open or does not answer. Views can be rebuilt, the rest cannot.
    #[error("database {} is corrupt ({why}); run `vestibule store rebuild`", path.display())]
    CorruptDatabase {
        /// The database folder.
        path: PathBuf,
        /// What sled says.
        why: String,
    },
    /// The database opens and no longer holds what had been stored in it for good.
    #[error(
        "database {} has lost: {names}; restore it, or give them up with `vestibule store rebuild`",
        path.display()
    )]
    ValuesLost {
        /// The database folder.
        path: PathBuf,
        /// What is gone.
        names: String,
    },
    /// A journal holds bytes that no interrupted write explains.
    #[error("{} is damaged at byte {offset}, record {seq}: {why}", file.display())]
    CorruptJournal {
        /// The file.
        file: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// Number of the record that could not be read.
        seq: u64,
        /// What is wrong.
        why: String,
    },
    /// The ledger does not verify.
    #[error("ledger does not verify")]
    Ledger(#[from] VerifyError),
    /// The views have seen more than the files hold: acknowledged records are gone.
    #[error(
        "{} ends at record {found}, but record {applied} had been acknowledged: it was cut or \
         rolled back; restore it, or accept the loss with `vestibule store rebuild`",
        file.display()
    )]
    RolledBack {
        /// The file or folder that is too short.
        file: PathBuf,
        /// Last record the views had applied.
        applied: u64,
        /// Last record found.
        found: u64,
    },
    /// Written by a later release.
    #[error("database schema is version {found}, this release knows up to {known}")]
    SchemaTooNew {
        /// Version on disk.
        found: u32,
        /// Newest version known here.
        known: u32,
    },
    /// A secret does not open: another key, another name, or altered bytes.
    #[error("secret {name:?} does not open under this store key")]
    SecretBroken {
        /// Its name.
        name: String,
    },
    /// The counter that the ledger is anchored to did not move.
    #[error("the ledger is not anchored at {to}")]
    Anchor {
        /// The value it should have got.
        to: u64,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The ledger's signer failed; nothing can be committed without a signature.
    #[error("the ledger key did not sign: {why}")]
    Signer {
        /// What the signer says.
        why: String,
    },
    /// A record could not be written as JSON.
    #[error("record cannot be encoded")]
    Encode(#[source] serde_json::Error),
    /// Whoever decides and the ledger disagree on how many entries there are.
    #[error("a batch expected ledger entry {expected}, the next one is {next}")]
    Sequence {
        /// First sequence the batch asked for.
        expected: u64,
        /// What it would have got.
        next: u64,
    },
    /// The ledger of this store is already open.
    #[error("the ledger of {} is already open in this process", dir.display())]
    AlreadyOpen {
        /// The state directory.
        dir: PathBuf,
    },
    /// The operating system gave no random bytes or no thread.
    #[error("{what} is not available")]
    Resource {
        /// What.
        what: &'static str,
    },
}

impl StoreError {
    /// Sorts an I/O error into full, not writable, and other.
    pub(crate) fn io(op: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full { op, path, source }
            }
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                Self::ReadOnly { op, path, source }
            }
            _ => Self::Io { op, path, source },
        }
    }

    /// Sorts a sled error into a failure of the disk and a corrupt database.
    pub(crate) fn sled(path: &Path, source: sled::Error) -> Self {
        match source {
            sled::Error::Io(e) if e.kind() != io::ErrorKind::InvalidData => {
                Self::io("use the database in", path, e)
            }
            other => Self::CorruptDatabase {
                path: path.to_path_buf(),
                why: other.to_string(),
            },
        }
    }
}
