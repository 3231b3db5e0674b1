//! Installing under a grant (docs/PROTOCOL.md section 6): which machine may write which image to which
//! disk in which boot, and how far it is.
//!
//! A *run* is what an owner, or the class of a worker, authorised. Each boot within it gets a *grant* of
//! its own. A report counts only when it is signed by the DevID that was admitted in that boot and
//! continues what is on record. Decides all this from the ledger's records alone: [`Installs::apply`]
//! folds them, at a start and while running alike, so a restart adopts what was begun. Knows no
//! socket, makes no randomness and signs nothing.

mod reports;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use attest_wire::v1::handover::ItemDigest;
use attest_wire::v1::handover::{Ability, GrantBody, GrantImage, InstallStep};
use boot::catalog::DiskImage;
use sha2::{Digest as _, Sha256};

use crate::appraisal::{Admission, shown};
use crate::identity::{MachineId, UnixMillis};
use crate::limits;
use crate::reason::Reason;
use crate::record::{Act, Grant, InstallProgress, Record, Run, RunEnd, RunOutcome};
use crate::view::{DiskView, InstallView};

const SECTION: &str = "docs/PROTOCOL.md section 6";

/// A disk image and what the owner decided about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskEntry {
    /// The image.
    pub image: DiskImage,
    /// Lowest version of its name that may be installed.
    pub floor: u64,
    /// Refused whatever its version.
    pub withdrawn: bool,
}

impl DiskEntry {
    fn passes(&self) -> bool {
        !self.withdrawn && self.image.version >= self.floor
    }
}

/// What a run is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the disk image.
    pub image: String,
    /// Its version; the newest that passes when absent.
    pub version: Option<u64>,
    /// Serial number of the disk.
    pub disk_serial: String,
}

/// A grant to be signed; with a new one the signer fills in `grant` and `nonce`.
#[derive(Debug, Clone)]
pub struct GrantOrder {
    /// What will be on record.
    pub record: Grant,
    /// The run it belongs to.
    pub run: Run,
    /// Digests of the payloads that go onto the disk.
    pub payloads: Vec<ItemDigest>,
    /// Whether it is new: else the same boot asked again and gets the same grant.
    pub fresh: bool,
}

impl GrantOrder {
    /// What is signed.
    pub fn body(&self) -> GrantBody {
        let (run, grant) = (&self.run, &self.record);
        GrantBody {
            grant: grant.grant.clone(),
            run: run.run.clone(),
            machine: run.machine.0.clone(),
            ek_name: grant.ek_name.0.clone(),
            reset: grant.reset,
            restart: grant.restart,
            clock_max_ms: grant.clock_max_ms,
            disk_serial: run.disk_serial.clone(),
            image: GrantImage {
                name: run.image.clone(),
                version: run.version,
                sha256: run.image_sha256.clone(),
                size_bytes: run.image_bytes,
                compression: run.compression.clone(),
                raw_sha256: run.raw_sha256.clone(),
                raw_bytes: run.raw_bytes,
            },
            payloads: self.payloads.clone(),
            nonce: grant.nonce.clone(),
            reread: grant.reread,
        }
    }
}

struct GrantState {
    grant: Grant,
    reports: Vec<InstallProgress>,
}

struct RunState {
    run: Run,
    since: UnixMillis,
    /// Last record of it.
    moved: UnixMillis,
    grants: Vec<GrantState>,
    ended: Option<RunEnd>,
}

impl RunState {
    /// When nothing more is waited for.
    fn deadline(&self) -> Option<UnixMillis> {
        if self.ended.is_some() {
            return None;
        }
        let wait = match self.grants.is_empty() {
            true => limits::RUN_WAIT_MS,
            false => limits::RUN_STEP_MS,
        };
        let late = self.moved.0.saturating_add(wait);
        // A large image over a slow link is given what its grant gives it.
        let granted = self.grants.last().map_or(0, |last| last.grant.expires.0);
        Some(UnixMillis(late.max(granted)))
    }

    fn last_step(&self) -> Option<InstallStep> {
        let reports = self.grants.last()?.reports.last()?;
        Some(reports.step)
    }

    /// What is waited for, in words.
    fn waits_for(&self) -> &'static str {
        if self.grants.is_empty() {
            return "boot";
        }
        match self.last_step() {
            None => InstallStep::Checked.as_str(),
            Some(InstallStep::Checked) => InstallStep::Wiped.as_str(),
            Some(InstallStep::Wiped) => InstallStep::Written.as_str(),
            Some(InstallStep::Written) => InstallStep::Configured.as_str(),
            Some(InstallStep::Configured | InstallStep::Verified | InstallStep::Failed) => {
                InstallStep::Verified.as_str()
            }
        }
    }

    /// Whether an earlier boot may have written the whole image: its last report may be the one that
    /// was lost, so the next boot reads the disk before it writes.
    fn reread(&self) -> bool {
        let written = |grant: &GrantState| {
            let reports = grant.reports.iter();
            reports
                .map(|r| r.step)
                .any(|step| matches!(step, InstallStep::Written | InstallStep::Configured))
        };
        self.grants.iter().any(written)
    }
}

/// All runs: the last one of each machine.
#[derive(Default)]
pub struct Installs {
    runs: BTreeMap<MachineId, RunState>,
    /// Whose run a grant belongs to.
    by_grant: HashMap<String, MachineId>,
    disks: Vec<DiskEntry>,
    grant_ms: u64,
}

impl Installs {
    /// No run yet; `grant_ms` is how long something may be begun under a grant.
    pub fn new(disks: &[DiskImage], grant_ms: u64) -> Self {
        let entry = |image: &DiskImage| DiskEntry {
            image: image.clone(),
            floor: 0,
            withdrawn: false,
        };
        Self {
            disks: disks.iter().map(entry).collect(),
            grant_ms,
            ..Self::default()
        }
    }

    /// Disk images with what the owner decided.
    pub fn disks(&self) -> &[DiskEntry] {
        &self.disks
    }

    /// The same for an administrator.
    pub fn disk_views(&self) -> Vec<DiskView> {
        let view = |entry: &DiskEntry| DiskView {
            image: entry.image.clone(),
            floor: entry.floor,
            withdrawn: entry.withdrawn,
        };
        self.disks.iter().map(view).collect()
    }

    /// Folds one ledger record in.
    pub fn apply(&mut self, at: UnixMillis, record: &Record) {
        match record {
            Record::Run(run) => {
                if let Some(old) = self.runs.remove(&run.machine) {
                    for grant in &old.grants {
                        self.by_grant.remove(&grant.grant.grant);
                    }
                }
                let state = RunState {
                    run: run.clone(),
                    since: at,
                    moved: at,
                    grants: Vec::new(),
                    ended: None,
                };
                self.runs.insert(run.machine.clone(), state);
            }
            Record::Grant(grant) => {
                if let Some(state) = self.of_run(&grant.machine, &grant.run) {
                    state.moved = at;
                    state.grants.push(GrantState {
                        grant: grant.clone(),
                        reports: Vec::new(),
                    });
                    self.by_grant
                        .insert(grant.grant.clone(), grant.machine.clone());
                }
            }
            Record::Progress(progress) => {
                if let Some(state) = self.of_run(&progress.machine, &progress.run) {
                    state.moved = at;
                    let of = |g: &&mut GrantState| g.grant.grant == progress.grant;
                    if let Some(grant) = state.grants.iter_mut().find(of) {
                        grant.reports.push(progress.clone());
                    }
                }
            }
            Record::RunEnd(end) => {
                if let Some(state) = self.of_run(&end.machine, &end.run) {
                    state.moved = at;
                    state.ended = Some(end.clone());
                }
            }
            Record::Operator(act) => self.apply_act(&act.act),
            Record::Genesis(_)
            | Record::Claim(_)
            | Record::Verdict(_)
            | Record::RefusalSummary(_)
            | Record::Certificate(_)
            | Record::EkCertificates(_)
            | Record::Anchor(_)
            | Record::Delivery(_)
            | Record::Pruned(_)
            | Record::Gate(_)
            | Record::Bridge(_)
            | Record::Talos(_)
            | Record::Policy(_) => {}
        }
    }

    fn apply_act(&mut self, act: &Act) {
        match act {
            Act::ImageFloor { name, floor } => {
                for entry in self.disks.iter_mut().filter(|e| e.image.name == *name) {
                    entry.floor = entry.floor.max(*floor);
                }
            }
            Act::ImageWithdraw { sha256 } => {
                for entry in self.disks.iter_mut().filter(|e| e.image.sha256 == *sha256) {
                    entry.withdrawn = true;
                }
            }
            _ => {}
        }
    }

    fn of_run(&mut self, machine: &MachineId, run: &str) -> Option<&mut RunState> {
        self.runs
            .get_mut(machine)
            .filter(|state| state.run.run == run)
    }

    fn unfinished(&self, machine: &MachineId) -> Option<&RunState> {
        self.runs.get(machine).filter(|run| run.ended.is_none())
    }

    /// Whether the machine ever had a run.
    pub fn had_run(&self, machine: &MachineId) -> bool {
        self.runs.contains_key(machine)
    }

    /// The run of a machine that has not ended.
    pub fn current(&self, machine: &MachineId) -> Option<&Run> {
        self.unfinished(machine).map(|state| &state.run)
    }

    /// The image of a name that passes, newest first.
    fn image(&self, name: &str, version: Option<u64>) -> Result<&DiskImage, Reason> {
        let of_name = |entry: &&DiskEntry| entry.image.name == name;
        let named: Vec<&DiskEntry> = self.disks.iter().filter(of_name).collect();
        let fits = |entry: &&&DiskEntry| version.is_none_or(|v| entry.image.version == v);
        let found = named.iter().filter(fits).filter(|entry| entry.passes());
        if let Some(entry) = found.max_by_key(|entry| entry.image.version) {
            return Ok(&entry.image);
        }
        let what = match version {
            Some(version) => format!("{} version {version}", shown(name)),
            None => shown(name),
        };
        let (code, found) = match named.iter().find(|entry| fits(entry)) {
            None => ("image.unknown", format!("none called {what}")),
            Some(entry) if entry.withdrawn => ("image.withdrawn", format!("{what}, withdrawn")),
            Some(entry) => {
                let floor = entry.floor;
                ("image.floor", format!("{what}, below the floor {floor}"))
            }
        };
        Err(Reason::new(
            code,
            "a disk image of the catalogue that may be installed",
            found,
            "docs/PROTOCOL.md section 4",
            "vestibule image list shows all; boot-image disk adds one",
        ))
    }

    /// Whether the very image of a run may still be installed: it may have been withdrawn, or be another
    /// one in the catalogue of this start.
    fn image_of(&self, run: &Run) -> Result<(), Reason> {
        let image = self.image(&run.image, Some(run.version))?;
        if image.sha256 == run.image_sha256 {
            return Ok(());
        }
        Err(Reason::new(
            "image.unknown",
            format!(
                "{} version {} with SHA-256 {}",
                shown(&run.image),
                run.version,
                run.image_sha256
            ),
            format!("SHA-256 {}", image.sha256),
            "docs/PROTOCOL.md section 4",
            "the catalogue has another image of that version: begin the installation once more",
        ))
    }

    /// A new run; `seq` is the ledger sequence it will get.
    ///
    /// # Errors
    /// `run.unfinished`, `run.disk`, `image.unknown`, `image.withdrawn`, `image.floor`.
    pub fn begin(
        &self,
        seq: u64,
        machine: &MachineId,
        class: &str,
        wanted: &Wanted,
        by: Option<&str>,
    ) -> Result<Run, Reason> {
        if let Some(state) = self.unfinished(machine) {
            return Err(Reason::new(
                "run.unfinished",
                format!("no unfinished run of machine {machine}"),
                format!("run {} waits for {}", state.run.run, state.waits_for()),
                SECTION,
                "vestibule machine install-cancel ends it",
            ));
        }
        if wanted.disk_serial.is_empty() {
            return Err(Reason::new(
                "run.disk",
                format!("the serial number of the disk of machine {machine}"),
                "none declared and none given",
                SECTION,
                "say it with --disk, or declare disk_serial in the inventory",
            ));
        }
        let image = self.image(&wanted.image, wanted.version)?;
        Ok(Run {
            run: run_id(machine, seq),
            machine: machine.clone(),
            class: class.to_owned(),
            image: image.name.clone(),
            version: image.version,
            image_sha256: image.sha256.clone(),
            image_bytes: image.size_bytes,
            compression: image.compression.as_str().to_owned(),
            raw_sha256: image.raw_sha256.clone(),
            raw_bytes: image.raw_bytes,
            disk_serial: wanted.disk_serial.clone(),
            by: by.map(str::to_owned),
        })
    }

    /// What the last run of a machine wanted, to begin it once more.
    ///
    /// # Errors
    /// `run.unknown`, `run.unfinished`, `run.verified`.
    pub fn again(&self, machine: &MachineId) -> Result<Wanted, Reason> {
        let state = self.runs.get(machine).ok_or_else(|| no_run(machine))?;
        let verified = |end: &RunEnd| end.outcome == RunOutcome::Verified;
        let found = match &state.ended {
            None => "run.unfinished",
            Some(end) if verified(end) => "run.verified",
            Some(_) => {
                return Ok(Wanted {
                    image: state.run.image.clone(),
                    version: Some(state.run.version),
                    disk_serial: state.run.disk_serial.clone(),
                });
            }
        };
        Err(Reason::new(
            found,
            "a run that failed, was cancelled or timed out",
            format!("run {} of machine {machine}", state.run.run),
            SECTION,
            "vestibule machine show tells how far it is; a new run: vestibule machine install",
        ))
    }

    /// How an unfinished run ends by an owner's word, or with its machine.
    ///
    /// # Errors
    /// `run.unknown` when there is none.
    pub fn cancel(&self, machine: &MachineId, by: &str, why: &str) -> Result<RunEnd, Reason> {
        let state = self.unfinished(machine).ok_or_else(|| no_run(machine))?;
        let reason = Reason::new(
            "run.cancelled",
            format!("{} of run {}", state.waits_for(), state.run.run),
            why.to_owned(),
            SECTION,
            "vestibule machine install-retry begins it once more",
        );
        Ok(state.end(RunOutcome::Cancelled, Some(reason), Some(by.to_owned())))
    }

    /// The grant for a machine that was just admitted: none without an unfinished run or for an attester
    /// that cannot install. `Err` ends the run.
    ///
    /// # Errors
    /// Why the run ends (`run.attempts`, `image.withdrawn`, `image.floor`) as its last record.
    pub fn grant(
        &self,
        now: UnixMillis,
        proof: &Admission,
        addr: IpAddr,
        correlation: &str,
    ) -> Result<Option<Box<GrantOrder>>, Box<RunEnd>> {
        let machine = &proof.binding.machine;
        let Some(state) = self.unfinished(machine) else {
            return Ok(None);
        };
        if may_install(proof).is_err() {
            return Ok(None);
        }
        let (Some((reset, restart)), Some(ek_name)) = (proof.facts.counters, &proof.ek_name) else {
            return Ok(None);
        };
        let devid_pub = hex::encode(proof.devid.encode());
        let order = |record: Grant, fresh: bool| {
            Ok(Some(Box::new(GrantOrder {
                record,
                run: state.run.clone(),
                payloads: Vec::new(),
                fresh,
            })))
        };
        if let Err(reason) = self.image_of(&state.run) {
            return Err(Box::new(state.end(RunOutcome::Failed, Some(reason), None)));
        }
        if let Some(last) = state.grants.last() {
            let grant = &last.grant;
            let same = (grant.reset, grant.restart) == (reset, restart);
            if same && grant.devid_pub == devid_pub && grant.addr == addr && now < grant.expires {
                return order(grant.clone(), false);
            }
        }
        let attempt = state.grants.len() as u32 + 1;
        if attempt > limits::GRANTS_PER_RUN_MAX {
            let reason = Reason::new(
                "run.attempts",
                format!("at most {} boots of one run", limits::GRANTS_PER_RUN_MAX),
                format!("boot {attempt} of run {}", state.run.run),
                "gateway/core/src/limits.rs",
                "look at the machine's console; vestibule machine install-retry begins once more",
            );
            return Err(Box::new(state.end(RunOutcome::Failed, Some(reason), None)));
        }
        let record = Grant {
            grant: String::new(),
            run: state.run.run.clone(),
            machine: machine.clone(),
            attempt,
            ek_name: ek_name.clone(),
            reset,
            restart,
            clock_max_ms: proof.clock_ms.saturating_add(self.grant_ms),
            expires: UnixMillis(now.0.saturating_add(self.grant_ms)),
            addr,
            devid_pub,
            nonce: String::new(),
            reread: state.reread(),
            correlation: correlation.to_owned(),
        };
        order(record, true)
    }

    /// Whether a signed grant may still go out: its run may have ended meanwhile.
    pub fn still_wanted(&self, grant: &Grant) -> bool {
        let current = self.unfinished(&grant.machine);
        current.is_some_and(|state| state.run.run == grant.run)
    }

    /// Whether `peer` may fetch the image with this digest now.
    ///
    /// # Errors
    /// `grant.unknown`, `grant.image`, `grant.expired`; whose machine it is comes with success, since
    /// its state counts too.
    pub fn may_fetch(
        &self,
        now: UnixMillis,
        peer: IpAddr,
        sha256: &str,
    ) -> Result<&MachineId, Reason> {
        // The newest, should an address have gone from one machine to another.
        let live = self.runs.values().filter(|state| state.ended.is_none());
        let granted = live.filter_map(|state| {
            let grant = &state.grants.last()?.grant;
            (grant.addr == peer).then_some((state, grant))
        });
        let Some((state, grant)) = granted.max_by_key(|(_, grant)| grant.expires) else {
            let found = format!("none for {peer}");
            return Err(refused("grant.unknown", "a grant of this boot", found));
        };
        if state.run.image_sha256 != sha256 {
            let expected = format!("image {} of run {}", state.run.image_sha256, state.run.run);
            return Err(refused("grant.image", expected, shown(sha256)));
        }
        live_at(now, grant)?;
        self.image_of(&state.run)?;
        Ok(&state.run.machine)
    }

    /// When [`Installs::timed_out`] has something to say.
    pub fn deadline(&self) -> Option<UnixMillis> {
        self.runs.values().filter_map(RunState::deadline).min()
    }

    /// The ends of runs in which nothing has moved for too long.
    pub fn timed_out(&self, now: UnixMillis) -> Vec<RunEnd> {
        let late = |state: &&RunState| state.deadline().is_some_and(|at| at <= now);
        let end = |state: &RunState| {
            let step = state.waits_for();
            let minutes = now.0.saturating_sub(state.moved.0) / 60_000;
            let next = match state.grants.is_empty() {
                true => "switch the machine on and let it boot from the network",
                false => {
                    "look at the machine's console and power; then: vestibule machine install-retry"
                }
            };
            let reason = Reason::new(
                "run.timeout",
                format!("step {step} of run {}", state.run.run),
                format!("nothing for {minutes} min, since {}", state.moved.0),
                SECTION,
                next,
            );
            state.end(RunOutcome::TimedOut, Some(reason), None)
        };
        self.runs.values().filter(late).map(end).collect()
    }

    /// How far the last run of a machine is.
    pub fn view(&self, machine: &MachineId) -> Option<InstallView> {
        let state = self.runs.get(machine)?;
        let last = state.grants.last();
        Some(InstallView {
            run: state.run.run.clone(),
            image: state.run.image.clone(),
            version: state.run.version,
            disk_serial: state.run.disk_serial.clone(),
            by: state.run.by.clone(),
            since: state.since,
            moved: state.moved,
            boots: state.grants.len() as u32,
            step: state.last_step().map(|step| step.as_str().to_owned()),
            detail: last
                .and_then(|grant| grant.reports.last())
                .map(|report| report.detail.clone()),
            waits_for: match &state.ended {
                None => Some(state.waits_for().to_owned()),
                Some(_) => None,
            },
            outcome: state
                .ended
                .as_ref()
                .map(|end| end.outcome.as_str().to_owned()),
            reason: state.ended.as_ref().and_then(|end| end.reason.clone()),
        })
    }
}

impl RunState {
    fn end(&self, outcome: RunOutcome, reason: Option<Reason>, by: Option<String>) -> RunEnd {
        RunEnd {
            run: self.run.run.clone(),
            machine: self.run.machine.clone(),
            outcome,
            reason,
            by,
        }
    }
}

/// Whether the machine that was admitted runs something that may install: an attester that can, in an
/// image of role `provision`.
///
/// # Errors
/// `grant.ability`, `grant.image_role`.
pub fn may_install(proof: &Admission) -> Result<(), Reason> {
    if !proof.can.contains(&Ability::Install) {
        let found = "an attester that does not say so";
        return Err(refused(
            "grant.ability",
            "an attester that can install",
            found,
        ));
    }
    let why = |reason: Reason| refused("grant.image_role", reason.expected, reason.found);
    crate::handover::provision_image(proof).map_err(why)
}

/// Names a run: unique in a ledger, since its sequence is.
fn run_id(machine: &MachineId, seq: u64) -> String {
    let mut hash = Sha256::new();
    hash.update(b"vestibule/run/v1\0");
    hash.update(seq.to_be_bytes());
    hash.update(machine.0.as_bytes());
    hex::encode(&hash.finalize()[..16])
}

fn live_at(now: UnixMillis, grant: &Grant) -> Result<(), Reason> {
    if now < grant.expires {
        return Ok(());
    }
    let expected = format!("something begun before {}", grant.expires.0);
    let found = format!("grant {} at {}", grant.grant, now.0);
    Err(refused("grant.expired", expected, found))
}

fn no_run(machine: &MachineId) -> Reason {
    Reason::new(
        "run.unknown",
        format!("a run of machine {machine}"),
        "none",
        SECTION,
        "vestibule machine install begins one",
    )
}

fn refused(code: &'static str, expected: impl Into<String>, found: impl Into<String>) -> Reason {
    Reason::new(
        code,
        expected.into(),
        found.into(),
        SECTION,
        "look at the machine's console; a new boot gets a new grant",
    )
}
