//! The sled database: views of the journals, and the values that live nowhere else. No sled type
//! leaves this file but errors, which [`StoreError::sled`] turns into ours.
//!
//! sled's flush is not an fsync, so views say up to which record they have seen, and values that
//! cannot be replayed are followed by an fsync of the database's files (docs/adr/0002).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use gateway_core::identity::MachineId;
use gateway_core::record::{Lease6Record, LeaseRecord};

use crate::error::StoreError;
use crate::file;
use crate::journal::Leases;
use crate::kept::{Kept, KeptList, list_path};
use crate::schema;

/// sled's page cache, in bytes: the views are small and read rarely.
const CACHE_BYTES: u64 = 2 * 1024 * 1024;

/// The open database.
pub(crate) struct Views {
    path: PathBuf,
    db: sled::Db,
    meta: sled::Tree,
    machines: sled::Tree,
    leases: sled::Tree,
    leases6: sled::Tree,
    seal: sled::Tree,
    secret: sled::Tree,
    public: sled::Tree,
    list: KeptList,
}

impl Views {
    /// Opens or makes the database.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let fail = |e| StoreError::sled(path, e);
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(Some(1000));
        // sled 0.34 answers some damaged files with a panic instead of an error.
        let db = catch_unwind(AssertUnwindSafe(|| config.open()))
            .map_err(|_| StoreError::CorruptDatabase {
                path: path.to_path_buf(),
                why: "sled gave up while opening it".into(),
            })?
            .map_err(fail)?;
        let tree = |name: &str| db.open_tree(name).map_err(fail);
        let views = Self {
            path: path.to_path_buf(),
            meta: tree(schema::META)?,
            machines: tree(schema::MACHINES)?,
            leases: tree(schema::LEASES)?,
            leases6: tree(schema::LEASES6)?,
            seal: tree(schema::SEAL)?,
            secret: tree(schema::SECRET)?,
            public: tree(schema::PUBLIC)?,
            list: KeptList::open(list_path(path))?,
            db,
        };
        let version = views.meta_number::<4>(schema::KEY_VERSION)?;
        // Version 1 had no view of DHCPv6 leases; an empty one is right for its journal.
        if schema::check(version.map(u32::from_be_bytes))? == schema::Found::ToWrite {
            views.set_meta(schema::KEY_VERSION, &schema::SCHEMA_VERSION.to_be_bytes())?;
            views.sync()?;
        }
        Ok(views)
    }

    fn fail(&self, e: sled::Error) -> StoreError {
        StoreError::sled(&self.path, e)
    }

    fn meta_number<const N: usize>(&self, key: &str) -> Result<Option<[u8; N]>, StoreError> {
        let Some(bytes) = self.meta.get(key).map_err(|e| self.fail(e))? else {
            return Ok(None);
        };
        <[u8; N]>::try_from(bytes.as_ref())
            .map(Some)
            .map_err(|_| StoreError::CorruptDatabase {
                path: self.path.clone(),
                why: format!("{key} has {} bytes, expected {N}", bytes.len()),
            })
    }

    fn set_meta(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.meta
            .insert(key, value)
            .map(drop)
            .map_err(|e| self.fail(e))
    }

    /// Last ledger entry and last journal record the views have seen; 0 is none.
    pub(crate) fn applied(&self) -> Result<(u64, u64), StoreError> {
        let number =
            |key| Ok::<_, StoreError>(self.meta_number::<8>(key)?.map_or(0, u64::from_be_bytes));
        Ok((
            number(schema::KEY_APPLIED_LEDGER)?,
            number(schema::KEY_APPLIED_JOURNAL)?,
        ))
    }

    /// Brings the views up to a commit that is durable in the journals.
    pub(crate) fn apply<'a>(
        &self,
        leases: &Leases,
        machines: impl Iterator<Item = (&'a MachineId, Option<&'a [u8]>)>,
        ledger_seq: u64,
        journal_seq: u64,
    ) -> Result<(), StoreError> {
        self.apply_machines(machines, ledger_seq)?;
        self.apply_leases(leases, journal_seq)
    }

    /// The machines' part of [`Views::apply`].
    pub(crate) fn apply_machines<'a>(
        &self,
        machines: impl Iterator<Item = (&'a MachineId, Option<&'a [u8]>)>,
        ledger_seq: u64,
    ) -> Result<(), StoreError> {
        for (id, json) in machines {
            match json {
                Some(json) => self.machines.insert(&id.0, json),
                None => self.machines.remove(&id.0),
            }
            .map_err(|e| self.fail(e))?;
        }
        self.set_meta(schema::KEY_APPLIED_LEDGER, &ledger_seq.to_be_bytes())
    }

    /// The leases' part of [`Views::apply`].
    pub(crate) fn apply_leases(&self, leases: &Leases, journal_seq: u64) -> Result<(), StoreError> {
        let (mut v4, mut v6) = (sled::Batch::default(), sled::Batch::default());
        for lease in &leases.v4 {
            let json = serde_json::to_vec(lease).map_err(StoreError::Encode)?;
            v4.insert(&lease.addr.octets(), json);
        }
        for lease in &leases.v6 {
            let json = serde_json::to_vec(lease).map_err(StoreError::Encode)?;
            v6.insert(&lease.addr.octets(), json);
        }
        self.leases.apply_batch(v4).map_err(|e| self.fail(e))?;
        self.leases6.apply_batch(v6).map_err(|e| self.fail(e))?;
        self.set_applied_journal(journal_seq)
    }

    /// Says how far the journal has come.
    pub(crate) fn set_applied_journal(&self, journal_seq: u64) -> Result<(), StoreError> {
        self.set_meta(schema::KEY_APPLIED_JOURNAL, &journal_seq.to_be_bytes())
    }

    /// Makes the lease view equal to what the journal gave.
    pub(crate) fn reset_leases(&self, leases: &Leases, journal_seq: u64) -> Result<(), StoreError> {
        self.leases.clear().map_err(|e| self.fail(e))?;
        self.leases6.clear().map_err(|e| self.fail(e))?;
        let (ledger_seq, _) = self.applied()?;
        self.apply(leases, std::iter::empty(), ledger_seq, journal_seq)
    }

    /// The lease view.
    pub(crate) fn leases(&self) -> Result<Vec<LeaseRecord>, StoreError> {
        self.read_leases(&self.leases)
    }

    /// The view of DHCPv6 leases.
    pub(crate) fn leases6(&self) -> Result<Vec<Lease6Record>, StoreError> {
        self.read_leases(&self.leases6)
    }

    fn read_leases<T: serde::de::DeserializeOwned>(
        &self,
        tree: &sled::Tree,
    ) -> Result<Vec<T>, StoreError> {
        tree.iter()
            .values()
            .map(|value| {
                let value = value.map_err(|e| self.fail(e))?;
                serde_json::from_slice(&value).map_err(|e| StoreError::CorruptDatabase {
                    path: self.path.clone(),
                    why: format!("lease: {e}"),
                })
            })
            .collect()
    }

    /// One machine's JSON.
    pub(crate) fn machine(&self, id: &MachineId) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.machines.get(&id.0).map_err(|e| self.fail(e))?;
        Ok(value.map(|v| v.to_vec()))
    }

    /// All machines' JSON in order of their id.
    pub(crate) fn machines(&self) -> Result<Vec<(MachineId, Vec<u8>)>, StoreError> {
        self.machines
            .iter()
            .map(|pair| {
                let (key, value) = pair.map_err(|e| self.fail(e))?;
                let id = String::from_utf8_lossy(&key).into_owned();
                Ok((MachineId(id), value.to_vec()))
            })
            .collect()
    }

    fn kept(&self, tree: Kept) -> &sled::Tree {
        match tree {
            Kept::Seal => &self.seal,
            Kept::Secret => &self.secret,
            Kept::Public => &self.public,
        }
    }

    /// A value that is in no journal.
    pub(crate) fn get(&self, tree: Kept, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.kept(tree).get(name).map_err(|e| self.fail(e))?;
        Ok(value.map(|v| v.to_vec()))
    }

    /// Names in such a tree, in order.
    pub(crate) fn names(&self, tree: Kept) -> Result<Vec<String>, StoreError> {
        self.kept(tree)
            .iter()
            .keys()
            .map(|key| {
                let key = key.map_err(|e| self.fail(e))?;
                Ok(String::from_utf8_lossy(&key).into_owned())
            })
            .collect()
    }

    /// Stores such values together and returns when they are on stable storage.
    pub(crate) fn put(&self, values: &[(Kept, &str, &[u8])]) -> Result<(), StoreError> {
        for (tree, name, value) in values {
            self.kept(*tree)
                .insert(*name, *value)
                .map_err(|e| self.fail(e))?;
        }
        self.sync()?;
        self.list
            .add(values.iter().map(|(tree, name, _)| (*tree, *name)))
    }

    /// Removes such a value and returns when that is on stable storage.
    pub(crate) fn remove(&self, tree: Kept, name: &str) -> Result<(), StoreError> {
        self.list.remove(tree, name)?;
        self.kept(tree).remove(name).map_err(|e| self.fail(e))?;
        self.sync()
    }

    /// Values that were stored and are not there any more.
    pub(crate) fn missing(&self) -> Result<Vec<(Kept, String)>, StoreError> {
        let mut missing = Vec::new();
        for (tree, name) in self.list.names() {
            if self.get(tree, &name)?.is_none() {
                missing.push((tree, name));
            }
        }
        Ok(missing)
    }

    /// Fails when a value is missing that was stored.
    pub(crate) fn require_kept(&self) -> Result<(), StoreError> {
        let missing = self.missing()?;
        if missing.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = missing
            .iter()
            .map(|(tree, name)| format!("{} {name}", tree.title()))
            .collect();
        Err(StoreError::ValuesLost {
            path: self.path.clone(),
            names: names.join(", "),
        })
    }

    /// Accepts that what is missing is lost.
    pub(crate) fn forget_missing(&self) -> Result<(), StoreError> {
        let missing = self.missing()?;
        let mut names = self.list.names();
        names.retain(|name| !missing.contains(name));
        self.list.reset(names)
    }

    /// Flushes and fsyncs the database's files.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.db.flush().map_err(|e| self.fail(e))?;
        file::sync_tree(&self.path)
    }
}
