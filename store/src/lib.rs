//! Storage behind one door: the signed ledger, the lease journal, sled views, sealed blobs and
//! encrypted secrets. Blocking; the shell runs it beside its own threads.
//!
//! Decides when something is durable and whether what is on disk can be believed. Does not know
//! what a record means, nor how the keys it is given are sealed. No sled type leaves this package
//! (docs/adr/0002: why sled alone does not carry durability).
//!
//! | in the state directory | what | truth or view |
//! |---|---|---|
//! | `lock` | held by the process that uses the directory | - |
//! | `ledger/ledger-N.vlg` | every decision, hash-chained and signed | truth, kept |
//! | `ledger/ledger-N.base` | what is left of the segments before N that were removed, signed | truth, kept |
//! | `leases.vjl` | leases and walk marks | truth, compacted |
//! | `db/` | sled: machines and leases | view, replayed |
//! | `db/` | sled: sealed blobs, encrypted secrets, certificates | truth, fsynced; only a backup has another copy |
//! | `db.kept` | names of those, so that their loss is noticed | - |

#![forbid(unsafe_code)]

mod commit;
mod error;
mod file;
mod frame;
mod journal;
mod kept;
mod ledger;
mod rebuild;
mod schema;
mod secret;
mod views;

// The tests share their records and keys with those in `tests/`.
#[cfg(test)]
extern crate self as store;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gateway_core::identity::MachineId;
use gateway_core::record::{Lease6Record, LeaseRecord};
use zeroize::Zeroizing;

pub use commit::{Anchor, Batch, CommitError, Committed, Committer, Done};
pub use error::StoreError;
pub use journal::Recovered;
pub use ledger::{
    BASE_LABEL, BaseReport, CHECKPOINT_LABEL, Cut, Entry, ExportReport, HEAD_LABEL, Hash,
    LedgerReader, LedgerSigner, Report, SEGMENT_MAX_BYTES, VerifyError, export, verify,
};
pub use rebuild::{CheckReport, RebuildReport, check, rebuild};
pub use secret::StoreKey;

use file::{Disk, RealDisk};
use journal::Journal;
use kept::Kept;
use ledger::LedgerWriter;
use views::Views;

/// Folder of the ledger in the state directory.
pub(crate) const LEDGER_DIR: &str = "ledger";
const LOCK_FILE: &str = "lock";
const JOURNAL_FILE: &str = "leases.vjl";
const DATABASE_DIR: &str = "db";

/// Name of the public document that holds the infra CA certificate (DER): what the ledger of this
/// store verifies against.
pub const INFRA_CA: &str = "ca/infra-ca";

/// The state directory, open and locked. Cheap to clone; the lock goes with the last clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    dir: PathBuf,
    views: Arc<Views>,
    /// Taken by the committer.
    journal: Mutex<Option<Journal>>,
    disk: Arc<dyn Disk>,
    _lock: File,
}

/// A private key and its certificate.
pub struct KeyPair<'a> {
    /// Name of both.
    pub name: &'a str,
    /// PKCS #8; encrypted before it is stored.
    pub secret: &'a [u8],
    /// The certificate, DER.
    pub public: &'a [u8],
}

/// What opening the ledger gave.
pub struct OpenedLedger {
    /// Takes batches from now on.
    pub committer: Committer,
    /// Every entry so far, in order, for the replay.
    pub entries: Vec<Entry>,
    /// Bytes of an interrupted write that were cut from the end: never acknowledged.
    pub cut_bytes: u64,
}

impl Store {
    /// Opens or makes the state directory and brings the lease view up to the journal.
    ///
    /// # Errors
    /// In use by another process, not writable, full, or damaged: one variant each.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_on(dir, Arc::new(RealDisk))
    }

    pub(crate) fn open_on(dir: &Path, disk: Arc<dyn Disk>) -> Result<Self, StoreError> {
        let lock = lock(dir)?;
        let journal = Journal::open(disk.clone(), &dir.join(JOURNAL_FILE))?;
        let views = Views::open(&dir.join(DATABASE_DIR))?;
        views.require_kept()?;
        let found = journal.next_seq() - 1;
        let (_, applied) = views.applied()?;
        if applied > found {
            return Err(StoreError::RolledBack {
                file: dir.join(JOURNAL_FILE),
                applied,
                found,
            });
        }
        let recovered = journal.recovered();
        // A view that cannot be read is as good as one that lags: both are made anew.
        let shown = views.leases().ok().as_ref() == Some(&recovered.leases)
            && views.leases6().ok().as_ref() == Some(&recovered.leases6);
        if applied < found || !shown {
            views.reset_leases(&recovered.all_leases(), found)?;
        }
        if recovered.cut_bytes > 0 {
            tracing::warn!(
                bytes = recovered.cut_bytes,
                "cut an interrupted write from the lease journal"
            );
        }
        Ok(Self {
            inner: Arc::new(Inner {
                dir: dir.to_path_buf(),
                views: Arc::new(views),
                journal: Mutex::new(Some(journal)),
                disk,
                _lock: lock,
            }),
        })
    }

    /// Leases and walk marks as of the last start.
    ///
    /// # Errors
    /// [`StoreError::AlreadyOpen`] once the committer has taken the journal.
    pub fn recover_journal(&self) -> Result<Recovered, StoreError> {
        let journal = self.inner.journal.lock();
        let journal = journal.unwrap_or_else(PoisonError::into_inner);
        journal
            .as_ref()
            .map(Journal::recovered)
            .ok_or_else(|| self.already_open())
    }

    /// Verifies the ledger against the infra CA certificate (DER), starts the committer, and
    /// returns all entries for the replay.
    ///
    /// # Errors
    /// The ledger does not verify, ends before what had been acknowledged, or `signer` is not
    /// certified by that CA for the receipt purpose.
    pub fn open_ledger(
        &self,
        signer: Box<dyn LedgerSigner>,
        infra_ca_der: &[u8],
    ) -> Result<OpenedLedger, StoreError> {
        self.open_ledger_with(signer, infra_ca_der, SEGMENT_MAX_BYTES)
    }

    /// As [`Store::open_ledger`], with another segment size.
    ///
    /// # Errors
    /// As [`Store::open_ledger`].
    pub fn open_ledger_with(
        &self,
        signer: Box<dyn LedgerSigner>,
        infra_ca_der: &[u8],
        segment_max_bytes: u64,
    ) -> Result<OpenedLedger, StoreError> {
        let mut journal = self
            .inner
            .journal
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if journal.is_none() {
            return Err(self.already_open());
        }
        let dir = self.inner.dir.join(LEDGER_DIR);
        let (ledger, entries, cut_bytes) = LedgerWriter::open(
            self.inner.disk.clone(),
            &dir,
            signer,
            infra_ca_der,
            segment_max_bytes,
        )?;
        let found = ledger.next_seq() - 1;
        let (applied, _) = self.inner.views.applied()?;
        if applied > found {
            return Err(StoreError::RolledBack {
                file: dir,
                applied,
                found,
            });
        }
        if cut_bytes > 0 {
            tracing::warn!(
                bytes = cut_bytes,
                "cut an interrupted write from the ledger"
            );
        }
        let journal = journal.take().ok_or_else(|| self.already_open())?;
        let committer = Committer::start(ledger, journal, self.inner.views.clone())?;
        Ok(OpenedLedger {
            committer,
            entries,
            cut_bytes,
        })
    }

    fn already_open(&self) -> StoreError {
        StoreError::AlreadyOpen {
            dir: self.inner.dir.clone(),
        }
    }

    /// Reads ranges of the ledger beside the committer.
    pub fn ledger(&self) -> LedgerReader {
        LedgerReader::new(self.inner.dir.join(LEDGER_DIR))
    }

    /// The state directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// A sealed blob by name.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn seal_blob(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.views.get(Kept::Seal, name)
    }

    /// Stores a sealed blob; on stable storage when this returns.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn put_seal_blob(&self, name: &str, blob: &[u8]) -> Result<(), StoreError> {
        self.inner.views.put(&[(Kept::Seal, name, blob)])
    }

    /// Decrypts a secret.
    ///
    /// # Errors
    /// [`StoreError::SecretBroken`] under another key or name, or when it was edited.
    pub fn secret(
        &self,
        key: &StoreKey,
        name: &str,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        match self.inner.views.get(Kept::Secret, name)? {
            Some(stored) => secret::decrypt(key, name, &stored).map(Some),
            None => Ok(None),
        }
    }

    /// Encrypts and stores a secret; on stable storage when this returns.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn put_secret(&self, key: &StoreKey, name: &str, secret: &[u8]) -> Result<(), StoreError> {
        let stored = secret::encrypt(key, name, secret)?;
        self.inner.views.put(&[(Kept::Secret, name, &stored)])
    }

    /// Stores keys with their certificates, each pair under one name, with one sync for all.
    ///
    /// # Errors
    /// The database cannot be written; some of the pairs may then be there.
    pub fn put_key_pairs(&self, key: &StoreKey, pairs: &[KeyPair<'_>]) -> Result<(), StoreError> {
        let stored: Result<Vec<Vec<u8>>, StoreError> = pairs
            .iter()
            .map(|pair| secret::encrypt(key, pair.name, pair.secret))
            .collect();
        let stored = stored?;
        let values: Vec<(Kept, &str, &[u8])> = pairs
            .iter()
            .zip(&stored)
            .flat_map(|(pair, stored)| {
                [
                    (Kept::Secret, pair.name, stored.as_slice()),
                    (Kept::Public, pair.name, pair.public),
                ]
            })
            .collect();
        self.inner.views.put(&values)
    }

    /// Removes a secret; gone from the database when this returns, not erased from the medium.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn remove_secret(&self, name: &str) -> Result<(), StoreError> {
        self.inner.views.remove(Kept::Secret, name)
    }

    /// A public document (a certificate) by name.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn public(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.views.get(Kept::Public, name)
    }

    /// Stores a public document; on stable storage when this returns.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn put_public(&self, name: &str, document: &[u8]) -> Result<(), StoreError> {
        self.inner.views.put(&[(Kept::Public, name, document)])
    }

    /// Removes a public document; gone from the database when this returns.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn remove_public(&self, name: &str) -> Result<(), StoreError> {
        self.inner.views.remove(Kept::Public, name)
    }

    /// One machine's JSON as of the last commit.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn machine(&self, id: &MachineId) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.views.machine(id)
    }

    /// All machines' JSON as of the last commit.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn machines(&self) -> Result<Vec<(MachineId, Vec<u8>)>, StoreError> {
        self.inner.views.machines()
    }

    /// The lease view as of the last start or end of the committer.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn leases(&self) -> Result<Vec<LeaseRecord>, StoreError> {
        self.inner.views.leases()
    }

    /// The view of DHCPv6 leases, likewise.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn leases6(&self) -> Result<Vec<Lease6Record>, StoreError> {
        self.inner.views.leases6()
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.inner.dir.display())
    }
}

/// Makes the directory if needed and takes its lock for this process.
pub(crate) fn lock(dir: &Path) -> Result<File, StoreError> {
    file::create_dir(dir)?;
    let path = dir.join(LOCK_FILE);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|e| StoreError::io("open", &path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse {
            dir: dir.to_path_buf(),
        }),
        Err(TryLockError::Error(e)) => Err(StoreError::io("lock", &path, e)),
    }
}
