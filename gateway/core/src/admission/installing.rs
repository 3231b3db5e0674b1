//! What an installation needs of the machines: authorising it, granting it to a boot that was admitted,
//! taking its reports. What may follow what is decided in [`crate::install`].

use std::net::IpAddr;

use attest_wire::v1::handover::{self, ProgressAnswer};

use super::command::{self, Caller};
use super::effect::{Effect, SignedGrant, WireReply};
use super::machine::{Settled, State};
use super::{Admission, Proof, Verified};
use crate::admission::event::Event;
use crate::identity::{ConnId, MachineId, UnixMillis};
use crate::install::{GrantOrder, Installs, Wanted, may_install};
use crate::outbox::Outbox;
use crate::reason::Reason;
use crate::record::{Act, OperatorAct, Record, RunEnd, RunOutcome};

/// What an owner may ask about installations.
#[derive(Debug, Clone)]
pub enum Install {
    /// Authorise a run.
    Begin {
        /// Name of the disk image.
        image: String,
        /// Its version; the newest that passes when absent.
        version: Option<u64>,
        /// Serial number of the disk; the declared one when absent.
        disk_serial: Option<String>,
        /// Also where the machine is installed already.
        again: bool,
    },
    /// Begin once more what has failed, was cancelled or timed out.
    Retry,
    /// End the unfinished run; why.
    Cancel(String),
}

/// Where refusals of installers are summed: one place, since addresses cost nothing.
const INGRESS: &str = "installer";

impl Admission {
    /// All runs.
    pub fn installs(&self) -> &Installs {
        &self.installs
    }

    /// An owner authorises, repeats or ends an installation.
    ///
    /// # Errors
    /// `admin.role`, `machine.unknown`, `machine.state`, `run.*`, `image.*`, `malformed.command`.
    pub fn install(
        &mut self,
        now: UnixMillis,
        caller: &Caller,
        machine: &MachineId,
        act: Install,
        out: &mut Outbox,
    ) -> Result<(), Reason> {
        command::demand(caller, command::Role::Owner)?;
        let wanted = match act {
            Install::Cancel(why) => {
                command::text("why", &why)?;
                let end = self.installs.cancel(machine, &caller.cn, &why)?;
                self.end_run(now, end, out);
                return Ok(());
            }
            Install::Retry => {
                self.may_begin(machine, false)?;
                self.installs.again(machine)?
            }
            Install::Begin {
                image,
                version,
                disk_serial,
                again,
            } => {
                if let Some(serial) = &disk_serial {
                    command::text("disk_serial", serial)?;
                }
                self.may_begin(machine, again)?;
                let declared = self.registry.get(machine).and_then(|m| m.binding.as_ref());
                let declared = declared.and_then(|binding| binding.disk_serial.clone());
                Wanted {
                    image,
                    version,
                    disk_serial: disk_serial.or(declared).unwrap_or_default(),
                }
            }
        };
        command::fits(&self.registry, machine, &Event::RunBegun)?;
        self.begin(now, machine, &wanted, Some(&caller.cn), out)
    }

    /// What is installed is not written over by mistake.
    fn may_begin(&self, machine: &MachineId, again: bool) -> Result<(), Reason> {
        command::fits(&self.registry, machine, &Event::RunBegun)?;
        let state = self.registry.get(machine).map(|m| &m.state);
        // Anybody who knows its public EKs can have it challenged.
        let installed = matches!(
            state,
            Some(
                State::Installed
                    | State::Active
                    | State::Challenged {
                        resume: Settled::Installed | Settled::Active
                    }
            )
        );
        if !installed || again {
            return Ok(());
        }
        Err(Reason::new(
            "run.installed",
            "a machine that is not installed, or the word that it shall be once more",
            format!(
                "machine {machine} is {}",
                state.map_or("unknown", State::name)
            ),
            "docs/PROTOCOL.md section 6",
            "vestibule machine install --again writes over what is on its disk",
        ))
    }

    fn begin(
        &mut self,
        now: UnixMillis,
        machine: &MachineId,
        wanted: &Wanted,
        by: Option<&str>,
        out: &mut Outbox,
    ) -> Result<(), Reason> {
        let binding = self.registry.get(machine).and_then(|m| m.binding.as_ref());
        let class = binding.map_or_else(|| "default".to_owned(), |b| b.class.clone());
        let seq = out.next_seq();
        let run = self.installs.begin(seq, machine, &class, wanted, by)?;
        self.write(now, Record::Run(run), out);
        Ok(())
    }

    /// The grant that goes out with an admission, to be signed. A class may authorise the first
    /// installation of a declared worker by itself.
    pub(super) fn grant_for(
        &mut self,
        now: UnixMillis,
        peer: IpAddr,
        proof: &Verified<Proof>,
        correlation: &str,
        out: &mut Outbox,
    ) -> Option<Box<GrantOrder>> {
        let machine = proof.binding.machine.clone();
        self.begin_by_class(now, proof, out);
        if self.installs.current(&machine).is_some()
            && let Err(reason) = may_install(proof)
        {
            out.refused(machine.to_string(), vec![reason]);
            return None;
        }
        match self.installs.grant(now, proof, peer, correlation) {
            Ok(order) => order,
            Err(end) => {
                self.end_run(now, *end, out);
                None
            }
        }
    }

    fn begin_by_class(&mut self, now: UnixMillis, proof: &Verified<Proof>, out: &mut Outbox) {
        let binding = &proof.binding;
        let rules = self.rules.policy.install(&binding.class);
        let state = self.registry.get(&binding.machine).map(|m| &m.state);
        // The verdict is on record already: what was never installed is admitted by now.
        let fresh = matches!(state, Some(State::Admitted { .. }));
        let (Some(image), Some(disk_serial), true) =
            (&rules.auto_image, &binding.disk_serial, fresh)
        else {
            return;
        };
        if self.installs.had_run(&binding.machine) || may_install(proof).is_err() {
            return;
        }
        let wanted = Wanted {
            image: image.clone(),
            version: None,
            disk_serial: disk_serial.clone(),
        };
        let machine = binding.machine.clone();
        if let Err(reason) = self.begin(now, &machine, &wanted, None, out) {
            out.refused(machine.to_string(), vec![reason]);
        }
    }

    /// A grant was signed: on record before it leaves, unless its run or its machine is out by now.
    pub(super) fn granted(
        &mut self,
        now: UnixMillis,
        machine: &MachineId,
        signed: Option<Box<SignedGrant>>,
        out: &mut Outbox,
    ) -> Option<Box<handover::Grant>> {
        let SignedGrant { order, grant } = *signed?;
        if self.may_attest(machine).is_err() || !self.installs.still_wanted(&order.record) {
            return None;
        }
        if order.fresh {
            self.write(now, Record::Grant(order.record), out);
        }
        Some(Box::new(grant))
    }

    /// An installer reports.
    pub fn progress(
        &mut self,
        now: UnixMillis,
        conn: ConnId,
        peer: IpAddr,
        body: &[u8],
        out: &mut Outbox,
    ) {
        let may_attest = |machine: &MachineId| self.may_attest(machine);
        let answer = match self.installs.progress(now, body, may_attest) {
            Ok(records) => {
                for record in records {
                    self.write(now, record, out);
                }
                ProgressAnswer {
                    accepted: true,
                    code: "accepted".to_owned(),
                    hint: String::new(),
                }
            }
            Err(reason) => {
                let answer = ProgressAnswer {
                    accepted: false,
                    code: reason.code.to_string(),
                    hint: reason.next.chars().take(72).collect(),
                };
                let correlation = format!("installer {peer}");
                self.refuse_unproven(now, INGRESS, &correlation, vec![reason], out);
                answer
            }
        };
        let status = if answer.accepted { 200 } else { 403 };
        let body = serde_json::to_vec(&answer).expect("an answer of strings encodes");
        let reply = WireReply {
            status,
            body,
            close: false,
        };
        out.push(Effect::Wire { conn, reply });
    }

    /// Whether `peer` may fetch the disk image with this digest now.
    ///
    /// # Errors
    /// `grant.*`, `machine.state`.
    pub fn may_fetch(
        &mut self,
        now: UnixMillis,
        peer: IpAddr,
        sha256: &str,
        out: &mut Outbox,
    ) -> Result<(), Reason> {
        let allowed = self.installs.may_fetch(now, peer, sha256);
        let allowed = allowed.and_then(|machine| self.may_attest(machine));
        if let Err(reason) = &allowed {
            let correlation = format!("installer {peer}");
            self.refuse_unproven(now, INGRESS, &correlation, vec![reason.clone()], out);
        }
        allowed
    }

    /// Access that ended ends the run as well.
    pub(super) fn left_the_fleet(&mut self, now: UnixMillis, act: &OperatorAct, out: &mut Outbox) {
        let (Act::Withdraw { machine, .. } | Act::MarkInstalled { machine }) = &act.act else {
            return;
        };
        let why = match &act.act {
            Act::Withdraw { .. } => "the machine was withdrawn",
            _ => "the machine was marked installed",
        };
        if let Ok(end) = self.installs.cancel(machine, &act.by, why) {
            self.end_run(now, end, out);
        }
    }

    pub(super) fn end_run(&mut self, now: UnixMillis, end: RunEnd, out: &mut Outbox) {
        if let (RunOutcome::Failed | RunOutcome::TimedOut, Some(reason)) =
            (end.outcome, &end.reason)
        {
            out.refused(end.machine.to_string(), vec![reason.clone()]);
        }
        self.write(now, Record::RunEnd(end), out);
    }
}
