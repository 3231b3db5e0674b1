//! The appliance's own identity: state folder, TPM, seal, CAs. Opened by `serve` and by
//! `claim --local` alike, so that both make the same things in the same order at the first start.
//!
//! Order: store, TPM, seal (made once, opened ever after), CAs, leaves, ledger, counter. Nothing falls
//! back: a seal that does not open, or a ledger that is not the one the TPM has counted, ends the start
//! with what changed and what to do.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gateway_core::anchor::{self, Standing};
use gateway_core::identity::UnixMillis;
use gateway_core::record::{Act, Anchor, Genesis, OperatorAct, Record};
use hw::clock::Clock;
use hw::tpm::TpmError;
use hw::tpm::{ApplianceDevice, SealBlob, SealMode, SealPlan, SealTpm, UpdateKey};
use sha2::{Digest as _, Sha256};
use store::{Batch, CommitError, OpenedLedger, Recovered, Store, StoreError, StoreKey};
use zeroize::Zeroizing;

use crate::ca::{Ca, CaError, DeviceCa, Names, ServerNames};
use crate::config::Config;

/// Name of the seal in the store.
pub(crate) const SEAL: &str = "appliance";
/// What a first start is about to take from the TPM, until its seal is in the store.
const SEAL_PLAN: &str = "seal-plan";
/// Name of the update key until the owner takes it at claim.
const UPDATE_KEY: &str = "update-key";
/// Tries to move the counter after the first, and the pause before each: a tool that holds the TPM, a
/// TPM that spares its memory (TPM_RC_NV_RATE). Longer, and every lease would wait.
const ADVANCE_RETRIES: u32 = 5;
const ADVANCE_PAUSE: Duration = Duration::from_millis(300);
/// First sealing epoch; raised by later releases, never lowered.
const EPOCH: u64 = 1;

/// Why the appliance cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ApplianceError {
    /// State folder, database or ledger.
    #[error("state folder {dir}")]
    Store {
        /// The folder.
        dir: PathBuf,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// The appliance's own TPM, or its seal.
    #[error("the appliance's TPM at {tcti}")]
    Tpm {
        /// How it was reached.
        tcti: String,
        /// Why.
        #[source]
        source: TpmError,
    },
    /// What is kept of the seal cannot be read.
    #[error("the seal's public part in {dir} cannot be read: restore it from a backup")]
    SealRecord {
        /// The state folder.
        dir: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The certificate authorities.
    #[error("certificate authorities")]
    Ca(#[source] CaError),
    /// The ledger is not the one that the TPM's counter was moved for last.
    #[error(
        "ledger.{code}: expected a ledger in {dir} that is anchored at {counter}, as the TPM's counter \
         says, found one anchored at {anchored}: {meaning}. Restore the newest copy of the state \
         folder; or, if this is all there is, take it with the owner's update key: vestibule ledger \
         adopt (docs/OPERATIONS.md, ledger rolled back)"
    )]
    Anchor {
        /// `rolled_back` or `foreign`.
        code: &'static str,
        /// The state folder.
        dir: PathBuf,
        /// Value of the last anchor.
        anchored: u64,
        /// Value of the counter.
        counter: u64,
        /// What it means.
        meaning: &'static str,
    },
    /// The owner wants to adopt a ledger that needs no adoption, or with another key.
    #[error("ledger.adopt: {0}")]
    Adopt(&'static str),
    /// A record of the start could not be written.
    #[error("the ledger")]
    Commit(#[source] CommitError),
}

/// The owner's word that a ledger is the right one although records are missing.
pub struct Adoption<'a> {
    /// Proves that it is the owner.
    pub update_key: &'a UpdateKey,
    /// Why, in the owner's words.
    pub why: &'a str,
}

/// The appliance, opened.
pub struct Appliance {
    /// The state folder.
    pub store: Store,
    /// How the CA keys are sealed.
    pub seal: SealMode,
    /// All CAs but the device CA.
    pub ca: Ca,
    /// LDevIDs and nothing else.
    pub device: DeviceCa,
    /// Records to write before anything of this start is visible ([`Appliance::begin`]).
    pub records: Vec<Record>,
    /// Those of this start that were written, for the replay: sequence, time, record.
    pub begun: Vec<(u64, UnixMillis, Record)>,
    /// Leases and walk marks of the journal.
    pub recovered: Recovered,
    /// The ledger with everything in it.
    pub ledger: OpenedLedger,
    /// Value of the counter that the ledger is anchored to.
    pub counter: u64,
    /// Encrypts the appliance's own secrets.
    pub key: StoreKey,
    /// Seals disk keys of Talos nodes.
    pub disk_keys: Zeroizing<[u8; 32]>,
}

impl Appliance {
    /// Opens what is there, or makes it at the first start.
    ///
    /// # Errors
    /// [`ApplianceError`].
    pub fn open(config: &Config) -> Result<Self, ApplianceError> {
        Self::open_as(config, None)
    }

    /// Opens a ledger that the counter does not know, on the owner's word, and writes that down.
    ///
    /// # Errors
    /// [`ApplianceError::Adopt`] when the ledger is the right one or the key is another.
    pub fn adopt(config: &Config, adoption: &Adoption<'_>) -> Result<Self, ApplianceError> {
        Self::open_as(config, Some(adoption))
    }

    fn open_as(config: &Config, adoption: Option<&Adoption<'_>>) -> Result<Self, ApplianceError> {
        let dir = config.appliance.state_dir.clone();
        let store_error = |source| ApplianceError::Store {
            dir: dir.clone(),
            source,
        };
        let now = UnixMillis(Clock.now_ms());
        let store = Store::open(&dir).map_err(store_error)?;
        let (kek, blob) = open_seal(config, &store)?;
        let seal = blob.mode;
        let key = secrets_key(&kek);
        let disk_keys = StoreKey::derive(&kek, "talos-disk-keys").into_bytes();
        let opened =
            Ca::open_or_create(&store, &kek, now, names(config)).map_err(ApplianceError::Ca)?;
        let mut records = opened.records;
        let renewed = opened.ca.renew_due(now).map_err(ApplianceError::Ca)?;
        records.extend(
            renewed
                .into_iter()
                .map(|(_, _, record)| Record::Certificate(record)),
        );
        let infra = opened.ca.infra_ca();
        let signer = opened.ca.receipt_signer().map_err(ApplianceError::Ca)?;
        let recovered = store.recover_journal().map_err(store_error)?;
        let ledger = store
            .open_ledger_with(Box::new(signer), &infra, config.ledger.segment_max_bytes)
            .map_err(store_error)?;
        let anchored = anchor::last(ledger.entries.iter().map(|entry| &entry.record));
        let anchored = anchored.unwrap_or(blob.counter.first);
        let mut counter = Counter {
            tcti: config.tpm.tcti.clone(),
            blob,
        };
        let counted = counter.check(&dir, anchored, adoption)?;
        if let Some(adoption) = adoption {
            records.push(Record::Operator(OperatorAct {
                by: "local console".to_owned(),
                role: "owner".to_owned(),
                act: Act::AdoptLedger {
                    anchored,
                    counter: counted,
                    why: adoption.why.to_owned(),
                },
            }));
        }
        ledger.committer.set_anchor(Box::new(counter));
        if ledger.entries.is_empty() {
            let genesis = Genesis {
                appliance: config.appliance.name.clone(),
                seal: seal_name(seal).to_owned(),
                infra_ca_sha256: hex::encode(Sha256::digest(&infra)),
            };
            records.insert(0, Record::Genesis(genesis));
        }
        let appliance = Self {
            store,
            seal,
            ca: opened.ca,
            device: opened.device,
            records,
            begun: Vec::new(),
            recovered,
            ledger,
            counter: counted,
            key,
            disk_keys,
        };
        // A claim that was cut short after its record left the key behind.
        if appliance.is_claimed() && appliance.update_key().map_err(store_error)?.is_some() {
            appliance.forget_update_key().map_err(store_error)?;
        }
        Ok(appliance)
    }

    /// Writes the records of this start and anchors the whole ledger, once the start can go wrong no
    /// more: what the last process left without an anchor is counted, and a copy with an anchor
    /// that never moved the counter is behind from now on.
    ///
    /// # Errors
    /// As [`Appliance::commit_anchored`].
    pub fn begin(&mut self, at: UnixMillis) -> Result<(), ApplianceError> {
        let records = std::mem::take(&mut self.records);
        self.commit_anchored(at, records)
    }

    /// Writes records down and anchors them, for starts and commands; the daemon has its driver.
    ///
    /// # Errors
    /// They are not on disk, or the counter did not move.
    pub fn commit_anchored(
        &mut self,
        at: UnixMillis,
        mut ledger: Vec<Record>,
    ) -> Result<(), ApplianceError> {
        let counter = self.counter + 1;
        ledger.push(Record::Anchor(Anchor { counter }));
        let batch = Batch {
            at,
            ledger: ledger.clone(),
            anchor: Some(counter),
            ..Batch::default()
        };
        let committed = self
            .ledger
            .committer
            .commit(batch)
            .map_err(ApplianceError::Commit)?;
        self.counter = counter;
        let numbered = (committed.first_seq..).zip(ledger);
        self.begun
            .extend(numbered.map(|(seq, record)| (seq, at, record)));
        Ok(())
    }

    /// Whether the owner's certificate was handed out.
    pub fn is_claimed(&self) -> bool {
        self.ledger.entries.iter().any(|entry| {
            matches!(&entry.record, Record::Operator(act) if act.act == Act::ClaimAppliance)
        })
    }

    /// The owner's update key, as long as nobody has claimed the appliance.
    ///
    /// # Errors
    /// The store.
    pub fn update_key(&self) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        self.store.secret(&self.key, UPDATE_KEY)
    }

    /// Forgets the update key: the owner has it, and the claim is on record.
    ///
    /// # Errors
    /// The store.
    pub fn forget_update_key(&self) -> Result<(), StoreError> {
        self.store.remove_secret(UPDATE_KEY)
    }
}

/// Name of a sealing mode in ledger and receipts.
pub fn seal_name(mode: SealMode) -> &'static str {
    match mode {
        SealMode::Development => "development",
        SealMode::Measured => "measured",
    }
}

/// The seal's counter. The TPM is opened for each move: once an hour, and at an owner's act.
struct Counter {
    tcti: String,
    blob: SealBlob,
}

impl Counter {
    /// The counter's value, if this ledger is anchored to it or its owner adopts it. An anchor that a
    /// power cut kept from the counter is made up for.
    fn check(
        &mut self,
        dir: &Path,
        anchored: u64,
        adoption: Option<&Adoption<'_>>,
    ) -> Result<u64, ApplianceError> {
        let tpm_error = |source| ApplianceError::Tpm {
            tcti: self.tcti.clone(),
            source,
        };
        let mut tpm = ApplianceDevice::open(&self.tcti).map_err(tpm_error)?;
        let counter = tpm.counter(&self.blob).map_err(tpm_error)?;
        let standing = anchor::standing(anchored, counter);
        if let Some(adoption) = adoption {
            let good = matches!(standing, Standing::Anchored | Standing::Interrupted);
            let owner = hex::encode(adoption.update_key.public());
            return match (good, owner == self.blob.update_key_public) {
                (_, false) => Err(ApplianceError::Adopt(
                    "expected the update key that the owner got at claim, found another one",
                )),
                (true, true) => Err(ApplianceError::Adopt(
                    "expected a ledger that is behind the counter, found the right one: nothing to do",
                )),
                (false, true) => Ok(counter),
            };
        }
        let (code, meaning) = match standing {
            Standing::Anchored => return Ok(counter),
            Standing::Interrupted => {
                tracing::warn!(
                    anchored,
                    "a power cut came between an anchor and its counter"
                );
                tpm.advance(&self.blob, anchored).map_err(tpm_error)?;
                return Ok(anchored);
            }
            Standing::RolledBack => (
                "rolled_back",
                "the state folder is an older copy, or its newest records were cut",
            ),
            Standing::Foreign => ("foreign", "the state folder belongs to another counter"),
        };
        Err(ApplianceError::Anchor {
            code,
            dir: dir.to_owned(),
            anchored,
            counter,
            meaning,
        })
    }
}

impl store::Anchor for Counter {
    fn advance(&mut self, to: u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let mut tries = 0;
        loop {
            let moved =
                ApplianceDevice::open(&self.tcti).and_then(|mut tpm| tpm.advance(&self.blob, to));
            match moved {
                Ok(()) => return Ok(()),
                // A counter that is not ours does not become ours; a TPM that is busy comes back, and
                // a move that was made is seen.
                Err(error @ TpmError::SealBroken { .. }) => return Err(error.into()),
                Err(error) if tries == ADVANCE_RETRIES => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, to, "the ledger's counter did not move, again");
                    tries += 1;
                    std::thread::sleep(ADVANCE_PAUSE);
                }
            }
        }
    }
}

type Opened = (Zeroizing<[u8; 32]>, SealBlob);

fn secrets_key(kek: &[u8; 32]) -> StoreKey {
    StoreKey::derive(kek, "appliance")
}

/// Opens the seal, or makes it when this store has none. A store with CAs and without a seal is
/// damaged: the CAs' keys could not be read with a new one, and the CA code says so.
fn open_seal(config: &Config, store: &Store) -> Result<Opened, ApplianceError> {
    let dir = config.appliance.state_dir.clone();
    let tcti = config.tpm.tcti.clone();
    let tpm_error = |source| ApplianceError::Tpm {
        tcti: tcti.clone(),
        source,
    };
    let store_error = |source| ApplianceError::Store {
        dir: dir.clone(),
        source,
    };
    let started = Instant::now();
    let mut tpm = ApplianceDevice::open(&config.tpm.tcti).map_err(tpm_error)?;
    if let Some(bytes) = store.seal_blob(SEAL).map_err(store_error)? {
        let blob: SealBlob =
            serde_json::from_slice(&bytes).map_err(|source| ApplianceError::SealRecord {
                dir: dir.clone(),
                source,
            })?;
        let kek = tpm.unseal(&blob).map_err(tpm_error)?;
        // A discrete TPM takes most of a start: told apart from our own share.
        tracing::info!(ms = started.elapsed().as_millis() as u64, "seal opened");
        forget_plan(store).map_err(store_error)?;
        return Ok((kek, blob));
    }
    let unreadable = |source| ApplianceError::SealRecord {
        dir: dir.clone(),
        source,
    };
    // A first start that ended before its seal was stored: nothing rests on its indices.
    if let Some(bytes) = store.public(SEAL_PLAN).map_err(store_error)? {
        let plan: SealPlan = serde_json::from_slice(&bytes).map_err(unreadable)?;
        let indices = tpm.discard(&plan).map_err(tpm_error)?;
        tracing::warn!(
            indices,
            "an earlier first start did not get far: it begins anew"
        );
    }
    let update = UpdateKey::generate(&mut rand_core::OsRng);
    let plan = tpm.plan(EPOCH, &update).map_err(tpm_error)?;
    let bytes = serde_json::to_vec(&plan).map_err(unreadable)?;
    store.put_public(SEAL_PLAN, &bytes).map_err(store_error)?;
    let (blob, kek) = tpm.seal_planned(EPOCH, &update, &plan).map_err(tpm_error)?;
    let bytes = serde_json::to_vec(&blob).map_err(unreadable)?;
    // The update key first: a seal without it could never be approved for another boot state. Until
    // the blob is there, the next start makes both anew.
    store
        .put_secret(&secrets_key(&kek), UPDATE_KEY, &update.to_bytes()[..])
        .map_err(store_error)?;
    store.put_seal_blob(SEAL, &bytes).map_err(store_error)?;
    forget_plan(store).map_err(store_error)?;
    if blob.mode == SealMode::Development {
        tracing::warn!(
            "development seal: this boot was not measured (PCR 4, 7 and 11 are zero), so any \
             software on this board can open the CA keys; every receipt says so"
        );
    }
    Ok((kek, blob))
}

/// The seal is in the store: its indices are no leftovers any more.
fn forget_plan(store: &Store) -> Result<(), StoreError> {
    match store.public(SEAL_PLAN)? {
        Some(_) => store.remove_public(SEAL_PLAN),
        None => Ok(()),
    }
}

fn names(config: &Config) -> Names {
    // A URL with an address literal needs that address in the certificate.
    let v6 = config.provisioning.ipv6.as_ref();
    let mut inside = vec![config.provisioning.address.address.into()];
    inside.extend(v6.map(|v6| std::net::IpAddr::V6(v6.address.address)));
    let mut dns = vec![format!("{}.vestibule.internal", config.appliance.name)];
    dns.extend(config.management.names.iter().cloned());
    Names {
        appliance: config.appliance.name.clone(),
        boot: ServerNames {
            dns: vec![format!("boot.{}.vestibule.internal", config.appliance.name)],
            ip: inside,
        },
        admin: ServerNames {
            dns,
            ip: vec![config.management.address],
        },
    }
}
