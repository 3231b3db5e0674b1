//! The registrar: keeps SPIRE's entries and agents in line with the machines.
//!
//! Every round begins with what should be (the core's machines) and what is (the server's lists), so
//! nothing is lost when either was away. Intents are written to the ledger before the first call. SPIRE
//! that does not answer is a log line and a counter; the door goes on without it.

mod client;
mod ek_hashes;
mod proto;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway_core::record::{Bridge, Record};
use gateway_core::spire::{Actual, Change, EkPlan, Entry, Intents, Machine, Plan, Settings};
use gateway_core::spire::{ek_plan, plan};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use self::client::{Client, ItemStatus, SpireError};
use crate::ca::sha1_hex;
use crate::config::{Config, Spire, SpireServer};
use crate::handle::{Busy, Handle};
use crate::metrics::{Metrics, SPIRE_CHANGES, SPIRE_ROUNDS};
use crate::telemetry;

/// How often the machines are looked at: an admission or a withdrawal waits no longer.
const LOOK: Duration = Duration::from_secs(1);
/// Entries are compared at least this often though no machine changed: somebody may have deleted one.
const ENTRIES_EVERY: Duration = Duration::from_secs(300);
/// After a failure the next round waits this long at first, and twice as long each time.
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_LONGEST: Duration = Duration::from_secs(10);

/// Starts what `[spire]` asks for; runs until cancelled.
pub(crate) async fn run(
    config: Spire,
    settings: Settings,
    handle: Handle,
    metrics: Arc<Metrics>,
    cancel: CancellationToken,
) {
    let registrar = async {
        let Some(server) = config.server.clone() else {
            return cancel.cancelled().await;
        };
        let mut registrar = Registrar {
            server,
            trust_domain: config.trust_domain.clone(),
            sweep: config.sweep,
            settings,
            handle: handle.clone(),
            metrics: Arc::clone(&metrics),
            intents: Intents::default(),
        };
        registrar.run(&cancel).await;
    };
    let folder = async {
        match &config.ek_hash_dir {
            Some(dir) => keep_folder(dir, &handle, &metrics, &cancel).await,
            None => cancel.cancelled().await,
        }
    };
    tokio::join!(registrar, folder);
}

/// What the core needs to know beside the machines.
pub(crate) fn settings(config: &Config, spire: &Spire, device_ca: &[u8]) -> Settings {
    Settings {
        appliance: config.appliance.name.clone(),
        device_ca_sha1: sha1_hex(device_ca),
        workloads: spire.workloads.clone(),
    }
}

struct Registrar {
    server: SpireServer,
    trust_domain: String,
    sweep: Duration,
    settings: Settings,
    handle: Handle,
    metrics: Arc<Metrics>,
    intents: Intents,
}

/// When to do what.
struct Pace {
    last: Option<Instant>,
    entries: Option<Instant>,
    retry: Duration,
    failed: Option<String>,
    more: bool,
    known: Vec<Machine>,
}

/// How a round ended.
struct Round {
    /// The server took everything.
    clean: bool,
    /// There was more than fits one round.
    more: bool,
}

impl Registrar {
    async fn run(&mut self, cancel: &CancellationToken) {
        let mut pace = Pace {
            last: None,
            entries: None,
            retry: RETRY_FIRST,
            failed: None,
            more: false,
            known: Vec::new(),
        };
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                stepped = self.step(&mut pace) => if stepped.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Looks at the machines; a round when they changed or the sweep is due.
    async fn step(&mut self, pace: &mut Pace) -> Result<(), Busy> {
        let machines = self.handle.spire_machines().await?;
        let changed = machines != pace.known;
        let wait = match pace.failed {
            Some(_) => pace.retry,
            None => self.sweep,
        };
        let due = pace.last.is_none_or(|last| last.elapsed() >= wait);
        let news = (changed || pace.more) && pace.failed.is_none();
        if !due && !news {
            return Ok(());
        }
        let old = pace.entries.is_none_or(|at| at.elapsed() >= ENTRIES_EVERY);
        let entries = changed || old;
        pace.last = Some(Instant::now());
        match self.round(&machines, entries).await? {
            Ok(round) => {
                self.metrics.count(SPIRE_ROUNDS, "done");
                if pace.failed.take().is_some() {
                    tracing::info!("SPIRE answers again");
                }
                pace.retry = RETRY_FIRST;
                // What was refused or is left over is looked at again.
                pace.entries = match (round.clean && !round.more, entries) {
                    (false, _) => None,
                    (true, true) => Some(Instant::now()),
                    (true, false) => pace.entries,
                };
                pace.more = round.more;
                pace.known = machines;
            }
            Err(error) => {
                self.metrics.count(SPIRE_ROUNDS, "failed");
                let text = telemetry::chain(&error);
                if pace.failed.is_some() {
                    pace.retry = (pace.retry * 2).min(RETRY_LONGEST);
                }
                if pace.failed.as_ref() != Some(&text) {
                    tracing::warn!(error = text, "SPIRE: tried again until it answers");
                }
                pace.failed = Some(text);
            }
        }
        Ok(())
    }

    /// One round: list, plan, persist, perform.
    async fn round(
        &mut self,
        machines: &[Machine],
        entries: bool,
    ) -> Result<Result<Round, SpireError>, Busy> {
        let listed = async {
            let mut client = Client::connect(&self.server, &self.trust_domain).await?;
            let actual = Actual {
                agents: client.agents(&self.settings.ca_selector()).await?,
                entries: match entries {
                    true => Some(client.entries().await?),
                    false => None,
                },
            };
            Ok((client, actual))
        };
        let (mut client, actual) = match listed.await {
            Ok(listed) => listed,
            Err(error) => return Ok(Err(error)),
        };
        let plan = plan(&self.settings, machines, &actual);
        let fresh = self.intents.fresh(plan.records());
        if !fresh.is_empty() {
            let records = fresh.into_iter().map(Record::Bridge);
            self.handle.note(records.collect()).await?;
        }
        let more = plan.more;
        let performed = self.perform(&mut client, plan).await;
        Ok(performed.map(|clean| Round { clean, more }))
    }

    /// In the order of the plan. `true` when the server took all of it.
    async fn perform(&self, client: &mut Client, plan: Plan) -> Result<bool, SpireError> {
        let mut all = true;
        if !plan.delete.is_empty() {
            let ids: Vec<String> = plan.delete.iter().map(|c| c.what.clone()).collect();
            let results = client.delete(ids).await?;
            for (change, status) in plan.delete.iter().zip(results) {
                all &= self.took("entry_delete", &change.what, change, status, Code::NotFound);
            }
        }
        for change in &plan.ban {
            let status = client.ban(&change.what).await?;
            all &= self.took("agent_ban", &change.what, change, status, Code::NotFound);
        }
        if !plan.create.is_empty() {
            let new: Vec<Entry> = plan.create.iter().map(|c| c.what.clone()).collect();
            let results = client.create(&new).await?;
            for (change, status) in plan.create.iter().zip(results) {
                let id = &change.what.id;
                all &= self.took("entry_create", id, change, status, Code::AlreadyExists);
            }
        }
        if !plan.update.is_empty() {
            let new: Vec<Entry> = plan.update.iter().map(|c| c.what.clone()).collect();
            let results = client.update(&new).await?;
            for (change, status) in plan.update.iter().zip(results) {
                all &= self.took("entry_update", &change.what.id, change, status, Code::Ok);
            }
        }
        for change in &plan.purge {
            let status = client.evict(&change.what).await?;
            all &= self.took("agent_delete", &change.what, change, status, Code::NotFound);
        }
        Ok(all)
    }

    /// Counts and logs one item; `fine` is the status beside OK that is as good.
    fn took<T>(
        &self,
        what: &'static str,
        id: &str,
        change: &Change<T>,
        (code, message): ItemStatus,
        fine: Code,
    ) -> bool {
        let took = code == Code::Ok || code == fine;
        let outcome = if took { "done" } else { "refused" };
        self.metrics
            .count(SPIRE_CHANGES, format!("{what}/{outcome}"));
        let machine_id = change.machine.as_ref().map(|id| id.0.as_str());
        if took {
            tracing::info!(machine_id, what, id, ?code, "SPIRE");
        } else {
            tracing::warn!(machine_id, what, id, ?code, message, "SPIRE refuses");
        }
        took
    }
}

/// Keeps the folder of EK hashes in line with the machines.
async fn keep_folder(dir: &Path, handle: &Handle, metrics: &Metrics, cancel: &CancellationToken) {
    let mut noted = EkPlan::default();
    let mut failed = None;
    loop {
        let stepped = folder_step(dir.to_owned(), handle, &mut noted).await;
        match stepped {
            Ok(Ok(0)) => {}
            Ok(Ok(changed)) => {
                metrics.add(SPIRE_CHANGES, "ek_hash/done", changed);
                failed = None;
            }
            Ok(Err(text)) => {
                if failed.as_ref() != Some(&text) {
                    tracing::warn!(error = text, "EK hashes: tried again");
                    metrics.count(SPIRE_CHANGES, "ek_hash/failed");
                }
                failed = Some(text);
            }
            Err(Busy) => return,
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

async fn folder_step(
    dir: PathBuf,
    handle: &Handle,
    noted: &mut EkPlan,
) -> Result<Result<u64, String>, Busy> {
    let machines = handle.ek_hashes().await?;
    let listing = dir.clone();
    let present = tokio::task::spawn_blocking(move || ek_hashes::present(&listing)).await;
    let present = match present {
        Ok(Ok(present)) => present,
        Ok(Err(error)) => return Ok(Err(telemetry::chain(&error))),
        Err(_) => return Err(Busy),
    };
    let plan = ek_plan(&machines, &present);
    let changes = (plan.add.len() + plan.remove.len()) as u64;
    if changes == 0 {
        *noted = plan;
        return Ok(Ok(0));
    }
    if plan != *noted {
        let records: Vec<Bridge> = plan.records();
        handle
            .note(records.into_iter().map(Record::Bridge).collect())
            .await?;
        *noted = plan.clone();
    }
    let performed = tokio::task::spawn_blocking(move || ek_hashes::perform(&dir, &plan)).await;
    match performed {
        Ok(done) => Ok(done.map(|()| changes).map_err(|e| telemetry::chain(&e))),
        Err(_) => Err(Busy),
    }
}
