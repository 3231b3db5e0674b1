//! Who may join: sessions, claims, bindings and the verdict's consequences.
//!
//! Decides what follows from an appraisal and from an administrator's act. Does not judge evidence
//! (`appraisal`), make certificates (the shell's CA) or know any socket.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use attest_wire::v1::handover::Sealed;
use attest_wire::v1::{AttestationResult, Verdict as WireVerdict};
use zeroize::Zeroizing;

use crate::appraisal::{
    Admission as Proof, Appraisal, Assurance, Facts, HelloFacts, Issued, PossessionProven, Refusal,
    RelayWord, TimeTrust, Verified,
};
use crate::identity::{ConnId, MacAddr, MachineId, UnixMillis};
use crate::install::Installs;
use crate::inventory::Inventory;
use crate::limits;
use crate::outbox::{Outbox, Seen};
use crate::reason::Reason;
use crate::record::{Act, Claim, JournalRecord, Mark, OperatorAct, Record};
use crate::walk::Step;

pub mod command;
pub mod effect;
pub mod ek_certs;
pub mod ek_store;
pub mod event;
pub mod installing;
pub mod machine;
mod refusals;
pub mod registry;
pub mod secret;
mod session;

use command::{Caller, Command};
use effect::{Delivered, Effect, IssueRequest, IssuedDevId, Rules, WireReply, Work};
use event::Event;
use machine::State;
use refusals::Refusals;
use registry::Registry;
use session::{Phase, Session, Sessions};

/// A hello as the listener hands it over.
pub struct HelloInput {
    /// The connection.
    pub conn: ConnId,
    /// The node's address.
    pub peer: IpAddr,
    /// Hardware address of the lease behind it, if any.
    pub mac: Option<MacAddr>,
    /// Option 82 of that lease.
    pub relay: Option<RelayWord>,
    /// Interface or relay it came by.
    pub ingress: String,
    /// Session id.
    pub session: [u8; 16],
    /// TLS exporter.
    pub exporter: [u8; 32],
    /// How far the clock is trusted now.
    pub time: TimeTrust,
    /// Randomness for the challenge.
    pub seed: Zeroizing<[u8; 32]>,
    /// The body.
    pub body: Vec<u8>,
}

/// All machines, sessions and refusals.
///
/// Contract: one `handle`-like call, then drain the [`Outbox`], then the next call. Nothing here
/// reads a clock: `now` never goes back.
pub struct Admission {
    registry: Registry,
    sessions: Sessions,
    refusals: Refusals,
    inventory: Inventory,
    installs: Installs,
    rules: Rules,
    seal: String,
    /// Machines whose EK certificates are to be judged again: a CA has arrived.
    ek_again: VecDeque<MachineId>,
    /// What machines have proven since the start, for secrets that are sealed to them.
    proven: BTreeMap<MachineId, secret::Proven>,
}

impl Admission {
    /// Starts with what the ledger proved; `registry` has been replayed.
    pub fn new(
        registry: Registry,
        installs: Installs,
        inventory: Inventory,
        rules: Rules,
        seal: String,
    ) -> Self {
        let mut admission = Self {
            registry,
            installs,
            sessions: Sessions::default(),
            refusals: Refusals::default(),
            inventory,
            rules,
            seal,
            ek_again: VecDeque::new(),
            proven: BTreeMap::new(),
        };
        // The folder of EK roots may hold more than before the start.
        admission.judge_eks_again();
        admission
    }

    /// All machines.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// All machines, for sightings.
    pub fn registry_mut(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// Live sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Refusals since start, per code.
    pub fn refusal_totals(&self) -> &std::collections::BTreeMap<String, u64> {
        self.refusals.totals()
    }

    /// The rules in force.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Step `hello`: bounds, then rows 1-6 on a worker.
    pub fn hello(&mut self, now: UnixMillis, input: HelloInput, out: &mut Outbox) {
        let mac = input.mac.unwrap_or(MacAddr([0; 6]));
        let correlation = effect::correlation(&input.session);
        let session = Session {
            peer: input.peer,
            mac,
            relay: input.relay,
            ingress: input.ingress.clone(),
            correlation: correlation.clone(),
            deadline: UnixMillis(now.0 + limits::SESSION_MS),
            machine: None,
            phase: Phase::JudgingHello,
        };
        if let Err(reason) = self.sessions.open(input.conn, session) {
            self.refuse_unproven(now, &input.ingress, &correlation, vec![reason], out);
            wire(out, input.conn, 503, not_admitted(&correlation));
            return;
        }
        self.mark(
            now,
            mac,
            None,
            Step::Hello,
            format!("attempt {correlation}"),
            out,
        );
        self.rules.directory = self.registry.directory();
        self.rules.time = input.time;
        out.push(Effect::Work(Box::new(Work::Hello {
            conn: input.conn,
            body: input.body,
            session: input.session,
            exporter: input.exporter,
            seed: input.seed,
            rules: self.rules.clone(),
        })));
    }

    /// Step `challenge`: the hello was judged.
    pub fn hello_judged(
        &mut self,
        now: UnixMillis,
        conn: ConnId,
        done: Result<Box<(Verified<HelloFacts>, Issued)>, Box<Refusal>>,
        out: &mut Outbox,
    ) {
        let Some(session) = self.sessions.get_mut(conn) else {
            return;
        };
        match done {
            Err(refusal) => self.refused(now, conn, *refusal, out),
            Ok(judged) => {
                let machine = judged.0.machine().cloned();
                let body = judged.1.body.clone();
                session.machine = machine.clone();
                session.phase = Phase::Challenged(judged);
                let (mac, correlation) = (session.mac, session.correlation.clone());
                if let Some(id) = &machine {
                    self.move_machine(now, id, &Event::Challenged, out);
                }
                let detail = format!("attempt {correlation}");
                self.mark(now, mac, machine, Step::Challenge, detail, out);
                let reply = WireReply {
                    status: 200,
                    body,
                    close: false,
                };
                out.push(Effect::Wire { conn, reply });
            }
        }
    }

    /// Step `evidence`: rows 7-14 on a worker.
    pub fn evidence(&mut self, now: UnixMillis, conn: ConnId, body: Vec<u8>, out: &mut Outbox) {
        let phase = match self.sessions.get_mut(conn) {
            Some(session) => {
                let judging = Phase::Judging(Arc::clone(&self.rules.catalog));
                std::mem::replace(&mut session.phase, judging)
            }
            None => {
                // Evidence on a connection that never said hello, or whose session is over.
                let reason = channel_mismatch("a connection without a hello");
                let correlation = format!("conn-{}", conn.0);
                self.refuse_unproven(now, "attest", &correlation, vec![reason], out);
                wire(out, conn, 409, not_admitted(&correlation));
                return;
            }
        };
        let Phase::Challenged(judged) = phase else {
            let reason = channel_mismatch("evidence before the challenge, or twice");
            let refusal = unproven(reason);
            self.refused(now, conn, refusal, out);
            return;
        };
        let (hello, issued) = *judged;
        let mut relay = None;
        if let Some(session) = self.sessions.get_mut(conn) {
            relay = session.relay.take();
            let detail = format!("attempt {}", session.correlation);
            let (mac, machine) = (session.mac, session.machine.clone());
            self.mark(now, mac, machine, Step::Evidence, detail, out);
        }
        // Bindings may have changed since the last hello.
        self.rules.directory = self.registry.directory();
        let mut rules = self.rules.clone();
        // Only a grace is judged by it from here on: a clock that is held back must not prolong one.
        rules.time = rules.time.not_before(self.registry.newest().max(now));
        out.push(Effect::Work(Box::new(Work::Evidence {
            conn,
            hello,
            issued,
            body,
            rules,
            relay,
        })));
    }

    /// The transport refused the evidence: too large, encoded, too slow or broken off. The attempt ends
    /// with its record as any other.
    pub fn evidence_broken(
        &mut self,
        now: UnixMillis,
        conn: ConnId,
        status: u16,
        reason: Reason,
        out: &mut Outbox,
    ) {
        if self.sessions.get_mut(conn).is_some() {
            self.refused_with(now, conn, status, unproven(reason), out);
            return;
        }
        let correlation = format!("conn-{}", conn.0);
        self.refuse_unproven(now, "attest", &correlation, vec![reason], out);
        wire(out, conn, status, not_admitted(&correlation));
    }

    /// Step `appraise`: the evidence was judged.
    pub fn evidence_judged(
        &mut self,
        now: UnixMillis,
        conn: ConnId,
        appraisal: Appraisal,
        out: &mut Outbox,
    ) {
        let Some(session) = self.sessions.get_mut(conn) else {
            return;
        };
        let (mac, machine) = (session.mac, session.machine.clone());
        let detail = format!("attempt {}", session.correlation);
        self.mark(now, mac, machine, Step::Appraise, detail, out);
        match appraisal {
            Appraisal::Refused(refusal) => self.refused(now, conn, *refusal, out),
            Appraisal::Possession(possession) => self.claim(now, conn, &possession, out),
            Appraisal::Admitted(admission) => self.admit(now, conn, *admission, out),
        }
    }

    /// The evidence passed: the verdict goes on record, then the certificate is issued.
    fn admit(&mut self, now: UnixMillis, conn: ConnId, proof: Verified<Proof>, out: &mut Outbox) {
        let Some(session) = self.sessions.get_mut(conn) else {
            return;
        };
        let id = proof.binding.machine.clone();
        // Owner and operator may have acted while the evidence was judged.
        let unchanged = match &session.phase {
            Phase::Judging(catalog) => Arc::ptr_eq(catalog, &self.rules.catalog),
            Phase::JudgingHello | Phase::Challenged(_) => false,
        };
        let (mac, peer) = (session.mac, session.peer);
        let correlation = session.correlation.clone();
        let still = self.may_attest(&id).and_then(|()| {
            self.cas_still_known(&proof.facts)?;
            if !unchanged {
                return Err(rules_changed());
            }
            self.registry
                .get(&id)
                .map_or(Ok(()), |machine| machine.may_be_issued(now))
        });
        if let Err(reason) = still {
            let refusal = Refusal {
                reasons: vec![reason],
                activated: true,
                machine: Some(id),
                facts: proof.facts.clone(),
                checks: Vec::new(),
            };
            self.refused(now, conn, refusal, out);
            return;
        }
        let verdict = proof.record(&self.seal, &correlation);
        self.write(now, Record::Verdict(verdict.clone()), out);
        out.saw(Seen::Admitted(id.clone(), mac));
        self.ek_shown(now, &id, &proof.facts, out);
        self.keep_proven(&proof);
        let grant = self.grant_for(now, peer, &proof, &correlation, out);
        out.push(Effect::Issue(Box::new(IssueRequest {
            conn,
            machine: id,
            admission: proof,
            verdict,
            peer,
            grant,
        })));
    }

    /// Step `issue`: the CA answered.
    pub fn issued(
        &mut self,
        now: UnixMillis,
        conn: ConnId,
        machine: &MachineId,
        done: Result<IssuedDevId, Reason>,
        out: &mut Outbox,
    ) {
        let session = self.sessions.close(conn);
        let correlation = session
            .as_ref()
            .map_or_else(String::new, |s| s.correlation.clone());
        match done {
            Ok(issued) => {
                let grant = self.granted(now, machine, issued.grant, out);
                // Signed is signed: it goes on record even when nobody gets it.
                self.write(now, Record::Certificate(issued.record), out);
                if let Err(reason) = self.may_attest(machine) {
                    self.refusals.count(&reason);
                    out.refused(machine.to_string(), vec![reason.clone()]);
                    wire(out, conn, 403, explained(&correlation, &reason));
                    return;
                }
                let mut hint = format!("admitted as {machine}");
                let sealed = self.delivered(now, machine, issued.delivery, &mut hint, out);
                let mac = session.map_or(MacAddr([0; 6]), |s| s.mac);
                let detail = format!("attempt {correlation}");
                self.mark(now, mac, Some(machine.clone()), Step::Issue, detail, out);
                let result = AttestationResult {
                    verdict: WireVerdict::Admitted,
                    code: "admitted".to_owned(),
                    hint,
                    correlation,
                    retry_secs: 0,
                    receipt: Some(issued.receipt),
                    devid_chain: issued.chain.into_iter().map(Into::into).collect(),
                    sealed,
                    grant,
                };
                wire(out, conn, 200, result);
            }
            Err(reason) => {
                self.refusals.count(&reason);
                out.refused(machine.to_string(), vec![reason.clone()]);
                let mut result = explained(&correlation, &reason);
                result.hint = "the gateway could not issue; an operator must look".to_owned();
                wire(out, conn, 503, result);
            }
        }
    }

    /// Payloads go on record before they leave; those that are withheld are told of.
    fn delivered(
        &mut self,
        now: UnixMillis,
        machine: &MachineId,
        delivery: Result<Option<Box<Delivered>>, Box<Reason>>,
        hint: &mut String,
        out: &mut Outbox,
    ) -> Option<Box<Sealed>> {
        match delivery {
            Ok(None) => None,
            Ok(Some(delivered)) => {
                let Delivered { record, sealed } = *delivered;
                self.write(now, Record::Delivery(record), out);
                Some(sealed)
            }
            Err(reason) => {
                hint.push_str(&format!("; payloads withheld: {}", reason.code));
                self.refusals.count(&reason);
                out.refused(machine.to_string(), vec![*reason]);
                None
            }
        }
    }

    /// Whether the machine may be admitted now.
    fn may_attest(&self, id: &MachineId) -> Result<(), Reason> {
        let state = self.registry.get(id).map(|m| &m.state);
        if state.is_some_and(State::may_attest) {
            return Ok(());
        }
        Err(Reason::new(
            "machine.state",
            "a machine that may attest",
            format!("machine {id} is {}", state.map_or("unknown", State::name)),
            "docs/PROTOCOL.md section 9",
            "uncordon it, or enrol the board anew if it was withdrawn in error",
        ))
    }

    /// Possession is proven, but nobody has bound these keys: a claim waits for an owner.
    fn claim(
        &mut self,
        now: UnixMillis,
        conn: ConnId,
        possession: &PossessionProven,
        out: &mut Outbox,
    ) {
        let Some(session) = self.sessions.close(conn) else {
            return;
        };
        let facts = &possession.facts;
        let declared = self.declared_name(facts);
        let vouched = declared.is_some() || facts.assurance != Assurance::BareEk.name();
        let id = declared.unwrap_or_else(|| provisional_id(&facts.ek_names));
        let mut claim = possession.record(id, &session.correlation);
        if let Some(rival) = self.registry.rival_claim(&claim) {
            claim.would_refuse.push(contested(&claim, rival));
        }
        let fits = self
            .cas_still_known(facts)
            .and_then(|()| self.claim_fits(&claim, &session.ingress, vouched));
        if let Err(reason) = fits.and_then(|()| self.claim_stays(now, &claim)) {
            let correlation = session.correlation.clone();
            self.refuse_unproven(
                now,
                &session.ingress,
                &correlation,
                vec![reason.clone()],
                out,
            );
            wire(out, conn, 403, explained(&correlation, &reason));
            return;
        }
        let (id, report) = (claim.machine.clone(), claim.report_sha256.clone());
        if !self.waits(&claim) {
            self.write(now, Record::Claim(claim), out);
        }
        self.ek_shown(now, &id, facts, out);
        let result = AttestationResult {
            verdict: WireVerdict::Pending,
            code: "ek.unknown".to_owned(),
            hint: format!("claim {id} waits for approval; report {}", &report[..16]),
            correlation: session.correlation,
            retry_secs: limits::PENDING_RETRY_SECS,
            receipt: None,
            devid_chain: Vec::new(),
            sealed: None,
            grant: None,
        };
        wire(out, conn, 202, result);
    }

    /// The name that the inventory keeps for this serial, unless other keys are waiting for it: then
    /// both are shown, and the later one under a name of its own.
    fn declared_name(&self, facts: &Facts) -> Option<MachineId> {
        let declared = self
            .inventory
            .machines
            .iter()
            .find(|m| m.serial == facts.serial && m.ek_names.is_empty())?;
        let holder = self.registry.get(&declared.id);
        let waits = holder.is_some_and(|machine| machine.state == State::Pending);
        let free = self.registry.may_claim(&declared.id, &facts.ek_names);
        (free || !waits).then(|| declared.id.clone())
    }

    /// Whether the claim waits already, so that a node that asks again does not write it again.
    fn waits(&self, claim: &Claim) -> bool {
        let waiting = self.registry.get(&claim.machine);
        waiting.is_some_and(|machine| {
            machine.state == State::Pending
                && machine.claim.as_ref().is_some_and(|old| {
                    old.report_sha256 == claim.report_sha256 && old.ek_names == claim.ek_names
                })
        })
    }

    /// Whether the facts of a waiting claim may change now: one TPM must not fill the ledger, nor
    /// change what an owner is looking at from second to second.
    fn claim_stays(&self, now: UnixMillis, claim: &Claim) -> Result<(), Reason> {
        let Some(waiting) = self.registry.get(&claim.machine) else {
            return Ok(());
        };
        let age = now.0.saturating_sub(waiting.claimed_at.0);
        if waiting.state != State::Pending || self.waits(claim) || age >= limits::CLAIM_CHANGE_MS {
            return Ok(());
        }
        Err(Reason::new(
            "claim.changed",
            format!(
                "the same facts for {} s after a claim",
                limits::CLAIM_CHANGE_MS / 1000
            ),
            format!(
                "another report of claim {} after {} s",
                claim.machine,
                age / 1000
            ),
            "docs/PROTOCOL.md section 7",
            "the node asks again by itself; find out why its serial, NICs or disks change",
        ))
    }

    fn claim_fits(&self, claim: &Claim, ingress: &str, vouched: bool) -> Result<(), Reason> {
        if self.registry.was_rejected(&claim.ek_names) {
            return Err(Reason::new(
                "claim.rejected",
                "keys that no owner has rejected",
                format!("the keys of attempt {} were rejected", claim.correlation),
                "docs/PROTOCOL.md section 7",
                "if it was rejected in error, declare its EK names in the inventory",
            ));
        }
        match self.registry.get(&claim.machine) {
            Some(known) if !self.registry.may_claim(&known.id, &claim.ek_names) => {
                return Err(Reason::new(
                    "ek.unknown",
                    format!("the keys bound to machine {}", claim.machine),
                    format!(
                        "unknown keys of attempt {} with its serial",
                        claim.correlation
                    ),
                    "docs/PROTOCOL.md section 7",
                    "if the board was replaced, withdraw the old one and enrol the new keys",
                ));
            }
            Some(known) if known.state == State::Pending => return Ok(()),
            Some(_) | None => {}
        }
        let pending = self.registry.pending().count();
        let max = if vouched {
            limits::CLAIMS_MAX
        } else {
            limits::CLAIMS_UNVOUCHED_MAX
        };
        if pending >= max {
            return Err(Reason::new(
                "claim.quota",
                format!("fewer than {max} pending claims"),
                format!("{pending} pending, the newest from {ingress}"),
                "gateway/core/src/limits.rs",
                "approve or withdraw waiting claims: vestibule claims",
            ));
        }
        Ok(())
    }

    /// An administrator acts.
    ///
    /// # Errors
    /// A [`Reason`] when the role, the machine or its state does not allow it.
    pub fn command(
        &mut self,
        now: UnixMillis,
        caller: &Caller,
        command: Command,
        out: &mut Outbox,
    ) -> Result<(), Reason> {
        if let Command::Install(machine, act) = command {
            return self.install(now, caller, &machine, act, out);
        }
        let disks = self.installs.disks();
        let act = command::to_act(command, caller, &self.registry, disks, &self.rules)?;
        self.write_act(now, caller, act, out);
        Ok(())
    }

    fn write_act(&mut self, now: UnixMillis, caller: &Caller, act: Act, out: &mut Outbox) {
        if let Act::ImageFloor { .. } | Act::ImageWithdraw { .. } = &act {
            let catalog = Arc::make_mut(&mut self.rules.catalog);
            crate::catalog::apply(catalog, &act);
        }
        let act = OperatorAct {
            by: caller.cn.clone(),
            role: caller.role.as_str().to_owned(),
            act,
        };
        let seq = self.write(now, Record::Operator(act.clone()), out);
        self.left_the_fleet(now, &act, out);
        if let Act::EkCaImport { .. } | Act::EkCaRemove { .. } = &act.act {
            let roots = Arc::make_mut(&mut self.rules.ek_roots);
            ek_store::apply(roots, &mut self.registry, seq, now, &act);
        }
    }

    /// The gateway itself ends a machine's access.
    pub fn withdraw(&mut self, now: UnixMillis, act: OperatorAct, out: &mut Outbox) {
        self.write(now, Record::Operator(act.clone()), out);
        self.left_the_fleet(now, &act, out);
    }

    /// A worker gave no result: the attempt ends, and the reason is ours.
    pub fn work_failed(&mut self, now: UnixMillis, conn: ConnId, out: &mut Outbox) {
        self.refused(now, conn, unproven(effect::work_failed()), out);
    }

    /// A connection ended; its session dies with it.
    pub fn closed(&mut self, now: UnixMillis, conn: ConnId, out: &mut Outbox) {
        if let Some(Session {
            machine: Some(id), ..
        }) = self.sessions.close(conn)
        {
            self.move_machine(now, &id, &Event::AttemptEnded, out);
        }
    }

    /// When [`Admission::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<UnixMillis> {
        let at_once = (!self.ek_again.is_empty()).then_some(UnixMillis(0));
        [
            self.sessions.deadline(),
            self.refusals.deadline(),
            self.installs.deadline(),
            at_once,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Ends sessions, writes refusal summaries that are due, and goes on judging what a CA that arrived
    /// may have changed.
    pub fn handle_timeout(&mut self, now: UnixMillis, out: &mut Outbox) {
        self.judge_some_eks(now, out);
        for conn in self.sessions.expired(now) {
            let reason = Reason::new(
                "session.timeout",
                format!(
                    "evidence within {} s of the hello",
                    limits::SESSION_MS / 1000
                ),
                "none",
                "docs/PROTOCOL.md section 2",
                "look at the node's console: a slow or busy TPM, or a lost connection",
            );
            self.refused(now, conn, unproven(reason), out);
        }
        for end in self.installs.timed_out(now) {
            self.end_run(now, end, out);
        }
        for summary in self.refusals.due(now) {
            self.write(now, Record::RefusalSummary(summary), out);
        }
    }

    /// Ends an attempt with a refusal: ledger, log, and what the node may know.
    fn refused(&mut self, now: UnixMillis, conn: ConnId, refusal: Refusal, out: &mut Outbox) {
        self.refused_with(now, conn, 403, refusal, out);
    }

    fn refused_with(
        &mut self,
        now: UnixMillis,
        conn: ConnId,
        status: u16,
        refusal: Refusal,
        out: &mut Outbox,
    ) {
        let Some(session) = self.sessions.close(conn) else {
            return;
        };
        let correlation = session.correlation.clone();
        if let Some(id) = &session.machine {
            self.move_machine(now, id, &Event::AttemptEnded, out);
        }
        // Possession of keys that are bound to a machine earns a record of its own; anything less is
        // summed, so that made-up keys buy none.
        let proven = refusal.activated && session.machine.is_some();
        let machine = session.machine.as_ref().map_or("", |id| id.0.as_str());
        if proven && self.refusals.in_full(now, machine) {
            for reason in &refusal.reasons {
                self.refusals.count(reason);
            }
            out.refused(correlation.clone(), refusal.reasons.clone());
            self.write(
                now,
                Record::Verdict(refusal.record(&self.seal, &correlation)),
                out,
            );
            if let Some(id) = &session.machine {
                self.ek_shown(now, id, &refusal.facts, out);
            }
        } else if proven {
            // One line for the attempt: its first reason decides the code.
            let first = refusal.reasons.first().cloned();
            let ingress = format!("machine {machine}");
            self.refuse_unproven(
                now,
                &ingress,
                &correlation,
                first.into_iter().collect(),
                out,
            );
        } else {
            let reasons = refusal.reasons.clone();
            self.refuse_unproven(now, &session.ingress, &correlation, reasons, out);
        }
        let (code, hint) = refusal.told();
        wire(
            out,
            conn,
            status,
            AttestationResult {
                code,
                hint,
                ..not_admitted(&correlation)
            },
        );
    }

    pub(crate) fn refuse_unproven(
        &mut self,
        now: UnixMillis,
        ingress: &str,
        correlation: &str,
        reasons: Vec<Reason>,
        out: &mut Outbox,
    ) {
        for reason in &reasons {
            if let Some(summary) = self.refusals.unproven(now, ingress, reason, correlation) {
                self.write(now, Record::RefusalSummary(summary), out);
            }
        }
        out.refused(correlation, reasons);
    }

    /// Writes one ledger record and folds it in: the same code as in a replay.
    pub(crate) fn write(&mut self, now: UnixMillis, record: Record, out: &mut Outbox) -> u64 {
        let seq = out.record(now, record.clone());
        self.registry.apply(seq, now, &record);
        self.installs.apply(now, &record);
        seq
    }

    fn move_machine(&mut self, now: UnixMillis, id: &MachineId, event: &Event, out: &mut Outbox) {
        if let Err(unfit) = self.registry.event(now, id, event) {
            let reason = Reason::new(
                "machine.event",
                "an event that fits the state",
                unfit.to_string(),
                "gateway/core/src/admission/machine.rs",
                "none needed; it is counted and kept",
            );
            out.refused(id.to_string(), vec![reason]);
        }
    }

    /// Writes a walk mark unless the same one was written a moment ago.
    pub fn mark(
        &mut self,
        at: UnixMillis,
        mac: MacAddr,
        machine: Option<MachineId>,
        step: Step,
        detail: String,
        out: &mut Outbox,
    ) {
        let mark = Mark {
            mac,
            machine,
            step,
            at,
            detail,
        };
        if self.registry.mark(&mark) {
            out.journal(JournalRecord::Mark(mark));
        }
    }
}

/// A refusal that no appraisal made.
fn unproven(reason: Reason) -> Refusal {
    Refusal {
        reasons: vec![reason],
        activated: false,
        machine: None,
        facts: Facts::default(),
        checks: Vec::new(),
    }
}

fn rules_changed() -> Reason {
    Reason::new(
        "boot.rules_changed",
        "one catalogue from evidence to verdict",
        "a floor was raised or an image withdrawn meanwhile",
        "docs/PROTOCOL.md section 4",
        "the node asks again by itself",
    )
}

fn contested(claim: &Claim, rival: &registry::Machine) -> Reason {
    Reason::new(
        "claim.contested",
        format!(
            "one claim for serial {}",
            crate::appraisal::shown(&claim.serial)
        ),
        format!("claim {} with other keys waits for it too", rival.id),
        "docs/PROTOCOL.md section 7",
        "compare the digest with the machine's own console before you approve either",
    )
}

fn channel_mismatch(found: &str) -> Reason {
    Reason::new(
        "channel.mismatch",
        "hello and evidence once each, in order, on one TLS connection",
        found,
        "docs/PROTOCOL.md section 2",
        "the node starts over; a TLS-terminating proxy on the path is not supported",
    )
}

/// Name of a machine that nobody has named: the start of its first EK Name's digest.
fn provisional_id(ek_names: &[crate::identity::EkName]) -> MachineId {
    let name = ek_names.iter().min().map_or("", |n| n.0.as_str());
    MachineId(format!("m-{}", name.get(4..16).unwrap_or("unknown")))
}

/// What an unproven node may know.
fn not_admitted(correlation: &str) -> AttestationResult {
    AttestationResult {
        verdict: WireVerdict::NotAdmitted,
        code: "not_admitted".to_owned(),
        hint: "ask the operator, with the attempt's number".to_owned(),
        correlation: correlation.to_owned(),
        retry_secs: limits::REFUSED_RETRY_SECS,
        receipt: None,
        devid_chain: Vec::new(),
        sealed: None,
        grant: None,
    }
}

/// What a node that proved possession may know: the code and one line, no policy detail.
fn explained(correlation: &str, reason: &Reason) -> AttestationResult {
    let mut hint: String = reason.next.chars().take(72).collect();
    if hint.is_empty() {
        hint = "ask the operator, with the attempt's number".to_owned();
    }
    AttestationResult {
        code: reason.code.to_string(),
        hint,
        ..not_admitted(correlation)
    }
}

fn wire(out: &mut Outbox, conn: ConnId, status: u16, result: AttestationResult) {
    let body = serde_json::to_vec(&result).expect("a result of strings and bytes encodes");
    out.push(Effect::Wire {
        conn,
        reply: WireReply {
            status,
            body,
            close: true,
        },
    });
}
