//! What SPIRE should know of the machines, and what is to be done about the difference.
//!
//! Decides which registration entries there are and which agents are banned, from the states of the
//! machines alone; `gateway::spire` lists, calls this, and does what it was told. Knows no gRPC.
//!
//! An agent's SPIFFE ID ends in the SHA-1 of its LDevID (SPIRE's plugin `tpm_devid`), so a renewed
//! LDevID is a new agent. Workloads therefore hang below a *node alias*: an entry with the server as
//! parent, selected by the machine's name and our device CA, whichever leaf it attested with.
//!
//! A ban reaches only agents that the server has seen (`BanAgent` answers `NOT_FOUND` for others). So
//! entries go first: an agent of a withdrawn machine that appears later finds nothing, and the next
//! look bans it.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::MachineId;
use crate::record::{Bridge, BridgeAct};

/// Most changes of one kind in one round; the next round does the rest.
pub const BATCH_MAX: usize = 50;
/// Type of the selectors that `tpm_devid` gives.
pub const SELECTOR_TYPE: &str = "tpm_devid";
/// Path of the server itself, the parent of every node alias.
const SERVER_PATH: &str = "/spire/server";
/// Path of every agent that attested with `tpm_devid`; its last segment is the SHA-1 of the leaf.
const AGENT_PREFIX: &str = "/spire/agent/tpm_devid/";
const ALIAS_PREFIX: &str = "/node/";
/// Stands for the machine's name in a workload's path.
pub const MACHINE_PLACE: &str = "{machine}";

/// What the owner says once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Begins the ids of our entries: several appliances may share a server.
    pub appliance: String,
    /// SHA-1 of the device CA (DER), hex, as SPIRE prints it.
    pub device_ca_sha1: String,
    /// Workloads that every machine, or every one of a class, may run.
    pub workloads: Vec<Workload>,
}

/// One workload of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Ends the id of its entry.
    pub name: String,
    /// Only machines of this class.
    pub class: Option<String>,
    /// Path of its SPIFFE ID; [`MACHINE_PLACE`] is replaced.
    pub path: String,
    /// What the agent's workload attestors must find.
    pub selectors: Vec<Selector>,
    /// Life of its X.509-SVID; 0 for the server's default.
    pub x509_svid_ttl_secs: i32,
}

/// `type:value`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    /// Which attestor says it.
    pub kind: String,
    /// What it says.
    pub value: String,
}

impl Selector {
    /// Of `tpm_devid`.
    fn devid(value: String) -> Self {
        let kind = SELECTOR_TYPE.to_owned();
        Self { kind, value }
    }
}

impl std::str::FromStr for Selector {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (kind, value) = text.split_once(':').ok_or(())?;
        let plain = |text: &str| !text.is_empty() && !text.contains(char::is_control);
        (plain(kind) && plain(value))
            .then(|| Self {
                kind: kind.to_owned(),
                value: value.to_owned(),
            })
            .ok_or(())
    }
}

/// What the registry knows of one machine that was ever issued an LDevID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Its name, the leaf's CN.
    pub id: MachineId,
    /// Its class.
    pub class: String,
    /// Withdrawn, retired or replaced.
    pub left: bool,
    /// SHA-1 of its newest LDevID, hex, if that is on record.
    pub leaf_sha1: Option<String>,
}

/// A registration entry, as far as we say something about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its id; ours are chosen by us, so that making it twice is the same as once.
    pub id: String,
    /// Path of its SPIFFE ID.
    pub path: String,
    /// Path of its parent.
    pub parent: String,
    /// All must match.
    pub selectors: BTreeSet<Selector>,
    /// Life of its X.509-SVID; 0 for the server's default.
    pub x509_svid_ttl_secs: i32,
}

/// An attested agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// Path of its SPIFFE ID.
    pub path: String,
    /// What the server has found out about it.
    pub selectors: BTreeSet<Selector>,
    /// Banned already.
    pub banned: bool,
}

/// What the server holds of ours: its entries, none when they were not asked for, and its agents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Actual {
    /// Entries.
    pub entries: Option<Vec<Entry>>,
    /// Agents under our device CA.
    pub agents: Vec<Agent>,
}

/// One change, with the machine it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change<T> {
    /// The machine; none for an entry of a machine that nobody knows any more.
    pub machine: Option<MachineId>,
    /// What to change.
    pub what: T,
}

/// What is to be done, to be performed in the order of the fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Ids of entries: without them an agent is worth nothing.
    pub delete: Vec<Change<String>>,
    /// Paths of agents of machines that left.
    pub ban: Vec<Change<String>>,
    /// New entries.
    pub create: Vec<Change<Entry>>,
    /// Entries that say something else.
    pub update: Vec<Change<Entry>>,
    /// Paths of agents with an older leaf, of machines whose newest leaf has attested.
    pub purge: Vec<Change<String>>,
    /// Whether [`BATCH_MAX`] left something for the next round.
    pub more: bool,
}

impl Plan {
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.delete.is_empty()
            && self.ban.is_empty()
            && self.create.is_empty()
            && self.update.is_empty()
            && self.purge.is_empty()
    }

    /// What is written down before it is performed: one record for each machine and kind.
    pub fn records(&self) -> Vec<Bridge> {
        let mut found: BTreeMap<(Option<&MachineId>, BridgeAct), Vec<String>> = BTreeMap::new();
        let mut note = |machine, act, id: &str| {
            let ids: &mut Vec<String> = found.entry((machine, act)).or_default();
            ids.push(id.to_owned());
        };
        for change in &self.delete {
            note(
                change.machine.as_ref(),
                BridgeAct::EntryDelete,
                &change.what,
            );
        }
        for change in &self.ban {
            note(change.machine.as_ref(), BridgeAct::AgentBan, &change.what);
        }
        for change in &self.create {
            let act = BridgeAct::EntryCreate;
            note(change.machine.as_ref(), act, &change.what.id);
        }
        for change in &self.update {
            let act = BridgeAct::EntryUpdate;
            note(change.machine.as_ref(), act, &change.what.id);
        }
        for change in &self.purge {
            note(
                change.machine.as_ref(),
                BridgeAct::AgentDelete,
                &change.what,
            );
        }
        let record = |((machine, what), ids): ((Option<&MachineId>, _), _)| Bridge {
            machine: machine.cloned(),
            what,
            ids,
        };
        found.into_iter().map(record).collect()
    }
}

impl Settings {
    /// Selector of every agent and alias under our device CA.
    pub fn ca_selector(&self) -> Selector {
        Selector::devid(format!("ca:fingerprint:{}", self.device_ca_sha1))
    }

    fn id_prefix(&self) -> String {
        format!("vestibule.{}.", self.appliance)
    }

    fn alias(&self, machine: &Machine) -> Entry {
        let id = &machine.id;
        Entry {
            id: format!("{}node.{id}", self.id_prefix()),
            path: format!("{ALIAS_PREFIX}{id}"),
            parent: SERVER_PATH.to_owned(),
            selectors: [
                Selector::devid(format!("subject:cn:{id}")),
                self.ca_selector(),
            ]
            .into(),
            x509_svid_ttl_secs: 0,
        }
    }

    fn workload(&self, machine: &Machine, workload: &Workload) -> Entry {
        let id = &machine.id;
        Entry {
            // A machine's name may hold a dot, but no upper-case letter: no two entries share an id.
            id: format!("{}workload.{id}.W.{}", self.id_prefix(), workload.name),
            path: workload.path.replace(MACHINE_PLACE, &id.0),
            parent: format!("{ALIAS_PREFIX}{id}"),
            selectors: workload.selectors.iter().cloned().collect(),
            x509_svid_ttl_secs: workload.x509_svid_ttl_secs,
        }
    }

    /// The entries of one machine.
    fn desired(&self, machine: &Machine) -> Vec<Entry> {
        if machine.left {
            return Vec::new();
        }
        let of_class = |workload: &&Workload| {
            let class = workload.class.as_deref();
            class.is_none_or(|class| class == machine.class)
        };
        let workloads = self.workloads.iter().filter(of_class);
        let mut entries = vec![self.alias(machine)];
        entries.extend(workloads.map(|workload| self.workload(machine, workload)));
        entries
    }

    /// Whether an entry is ours to change: by its id, or because it is a node alias under our device
    /// CA that somebody made by hand.
    fn owns(&self, entry: &Entry) -> bool {
        entry.id.starts_with(&self.id_prefix())
            || (entry.parent == SERVER_PATH
                && entry.path.starts_with(ALIAS_PREFIX)
                && entry.selectors.contains(&self.ca_selector()))
    }
}

/// Two entries that the server holds for the same: it keeps no second one.
fn similar(a: &Entry, b: &Entry) -> bool {
    a.path == b.path && a.parent == b.parent && a.selectors == b.selectors
}

/// Compares what should be with what is.
pub fn plan(settings: &Settings, machines: &[Machine], actual: &Actual) -> Plan {
    let mut plan = Plan::default();
    if let Some(entries) = &actual.entries {
        plan_entries(settings, machines, entries, &mut plan);
    }
    plan_agents(settings, machines, &actual.agents, &mut plan);
    plan.more = bounded(&mut plan.delete)
        | bounded(&mut plan.ban)
        | bounded(&mut plan.create)
        | bounded(&mut plan.update)
        | bounded(&mut plan.purge);
    plan
}

fn bounded<T>(changes: &mut Vec<T>) -> bool {
    let more = changes.len() > BATCH_MAX;
    changes.truncate(BATCH_MAX);
    more
}

fn plan_entries(settings: &Settings, machines: &[Machine], entries: &[Entry], plan: &mut Plan) {
    let owned: Vec<&Entry> = entries.iter().filter(|e| settings.owns(e)).collect();
    let by_id: BTreeMap<&str, &Entry> = owned.iter().map(|e| (e.id.as_str(), *e)).collect();
    let mut by_path: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for entry in &owned {
        by_path.entry(&entry.path).or_default().push(entry);
    }
    let mut kept = BTreeSet::new();
    for machine in machines {
        for entry in settings.desired(machine) {
            let change = |what| Change {
                machine: Some(machine.id.clone()),
                what,
            };
            if let Some(present) = by_id.get(entry.id.as_str()) {
                kept.insert(present.id.as_str());
                if **present != entry {
                    plan.update.push(change(entry));
                }
                continue;
            }
            let namesakes = by_path.get(entry.path.as_str()).into_iter().flatten();
            if let Some(present) = namesakes.into_iter().find(|other| similar(other, &entry)) {
                kept.insert(present.id.as_str());
            } else {
                plan.create.push(change(entry));
            }
        }
    }
    let leftover = owned.iter().filter(|e| !kept.contains(e.id.as_str()));
    plan.delete = leftover
        .map(|entry| Change {
            machine: machine_of(entry),
            what: entry.id.clone(),
        })
        .collect();
}

/// The machine whose alias an entry is, or hangs below.
fn machine_of(entry: &Entry) -> Option<MachineId> {
    let alias = [&entry.parent, &entry.path];
    let name = alias
        .iter()
        .find_map(|path| path.strip_prefix(ALIAS_PREFIX))?;
    Some(MachineId(name.to_owned()))
}

fn plan_agents(settings: &Settings, machines: &[Machine], agents: &[Agent], plan: &mut Plan) {
    let ca = settings.ca_selector();
    let mut by_name: BTreeMap<&str, Vec<&Agent>> = BTreeMap::new();
    for agent in agents.iter().filter(|a| a.selectors.contains(&ca)) {
        let names = agent.selectors.iter().filter(|s| s.kind == SELECTOR_TYPE);
        for name in names.filter_map(|s| s.value.strip_prefix("subject:cn:")) {
            by_name.entry(name).or_default().push(agent);
        }
    }
    for machine in machines {
        let of_this = by_name.get(machine.id.0.as_str()).into_iter().flatten();
        let unbanned: Vec<&&Agent> = of_this.filter(|agent| !agent.banned).collect();
        let change = |agent: &Agent| Change {
            machine: Some(machine.id.clone()),
            what: agent.path.clone(),
        };
        if machine.left {
            plan.ban.extend(unbanned.iter().map(|agent| change(agent)));
            continue;
        }
        let Some(newest) = &machine.leaf_sha1 else {
            continue;
        };
        let newest = format!("{AGENT_PREFIX}{newest}");
        // Only once the newest has attested: until then the older one is the machine's only agent.
        if unbanned.iter().any(|agent| agent.path == newest) {
            let older = unbanned.iter().filter(|agent| agent.path != newest);
            plan.purge.extend(older.map(|agent| change(agent)));
        }
    }
}

/// What has been written down and not yet been seen to be done: a server that is down must not fill
/// the ledger with the same intent every few seconds.
#[derive(Debug, Default)]
pub struct Intents {
    noted: BTreeSet<(Option<MachineId>, BridgeAct, String)>,
}

impl Intents {
    /// The part of these records that is new. What `records` no longer has was done or is no longer
    /// wanted: should it come back, it is written down again.
    pub fn fresh(&mut self, records: Vec<Bridge>) -> Vec<Bridge> {
        let mut now = BTreeSet::new();
        let mut fresh = Vec::new();
        for mut record in records {
            record.ids.retain(|id| {
                let intent = (record.machine.clone(), record.what, id.clone());
                let known = self.noted.contains(&intent);
                now.insert(intent);
                !known
            });
            if !record.ids.is_empty() {
                fresh.push(record);
            }
        }
        self.noted = now;
        fresh
    }
}

/// The EKs of one machine that was ever admitted, each as the SHA-256 of its `SubjectPublicKeyInfo`
/// (DER) in lower-case hex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EkHashes {
    /// Its name.
    pub id: MachineId,
    /// Withdrawn, retired or replaced.
    pub left: bool,
    /// Those it was last admitted with.
    pub now: BTreeSet<String>,
    /// Those it was admitted with before.
    pub before: BTreeSet<String>,
}

/// What is to change in the folder of EK hashes: the alternative for SPIRE's plugin `tpm`, which admits
/// every EK that has a file there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EkPlan {
    /// Files to make.
    pub add: Vec<(MachineId, String)>,
    /// Files to remove.
    pub remove: Vec<(MachineId, String)>,
}

impl EkPlan {
    /// What is written down before it is performed: one record for each machine and act.
    pub fn records(&self) -> Vec<Bridge> {
        let of = |files: &[(MachineId, String)], what| {
            let machines: BTreeSet<&MachineId> = files.iter().map(|(id, _)| id).collect();
            let record = move |id: &MachineId| Bridge {
                machine: Some(id.clone()),
                what,
                ids: Vec::new(),
            };
            machines.into_iter().map(record).collect::<Vec<_>>()
        };
        let mut records = of(&self.remove, BridgeAct::EkHashRemove);
        records.extend(of(&self.add, BridgeAct::EkHashAdd));
        records
    }
}

/// Compares the files that are there with those that should be. A file of a key that no machine of
/// ours ever proved is somebody else's and stays.
pub fn ek_plan(machines: &[EkHashes], present: &BTreeSet<String>) -> EkPlan {
    let stay = machines.iter().filter(|machine| !machine.left);
    let wanted: BTreeMap<&String, &MachineId> = stay
        .flat_map(|machine| machine.now.iter().map(|hash| (hash, &machine.id)))
        .collect();
    // A board that was withdrawn stays out, whatever other name its TPM was admitted by.
    let gone: BTreeMap<&String, &MachineId> = machines
        .iter()
        .filter(|machine| machine.left)
        .flat_map(|machine| machine.now.iter().map(|hash| (hash, &machine.id)))
        .collect();
    let former = machines.iter().flat_map(|machine| {
        let before = machine.before.iter().map(|hash| (hash, &machine.id));
        before.filter(|(hash, _)| !wanted.contains_key(hash))
    });
    let remove: BTreeMap<&String, &MachineId> = former.chain(gone.clone()).collect();
    let named = |(hash, id): (&&String, &&MachineId)| ((*id).clone(), (*hash).clone());
    EkPlan {
        add: wanted
            .iter()
            .filter(|(hash, _)| !gone.contains_key(*hash) && !present.contains(**hash))
            .map(named)
            .collect(),
        remove: remove
            .iter()
            .filter(|(hash, _)| present.contains(**hash))
            .map(named)
            .collect(),
    }
}

/// Whether a file name is one of ours: 64 lower-case hex digits. Anything else in the folder is left
/// alone.
pub fn is_ek_hash(name: &str) -> bool {
    name.len() == 64
        && name
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
