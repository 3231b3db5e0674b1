//! The reports of installers: whose they are, whether they continue what is on record, what they lead to.

use attest_wire::tpm::{Public, Signature};
use attest_wire::v1::decode_progress;
use attest_wire::v1::handover::{InstallStep, PROGRESS_LABEL, ProgressBody};
use sha2::{Digest as _, Sha256};

use super::{GrantState, Installs, RunState, live_at, refused};
use crate::appraisal::{malformed, shown, verify_tpm_signature};
use crate::identity::{MachineId, UnixMillis};
use crate::reason::Reason;
use crate::record::{Grant, InstallProgress, Record, RunOutcome};

impl Installs {
    /// Whose report this is and what it leads to. `may_attest` tells whether the machine is still one
    /// of ours; an identical repeat leads to no record.
    ///
    /// # Errors
    /// `malformed.*`, `grant.unknown`, `grant.other_boot`, `grant.expired`, `machine.state`,
    /// `progress.signature`, `progress.replayed`, `progress.order`, `progress.digest`, `run.ended`.
    pub fn progress(
        &self,
        now: UnixMillis,
        body: &[u8],
        may_attest: impl Fn(&MachineId) -> Result<(), Reason>,
    ) -> Result<Vec<Record>, Reason> {
        let (progress, said) = decode_progress(body).map_err(malformed)?;
        let unknown = || {
            let found = shown(&said.grant);
            refused("grant.unknown", "a grant of this appliance", found)
        };
        let machine = self.by_grant.get(&said.grant).ok_or_else(unknown)?;
        let state = self.runs.get(machine).ok_or_else(unknown)?;
        let at = state
            .grants
            .iter()
            .position(|g| g.grant.grant == said.grant);
        let (at, granted) = at
            .and_then(|at| Some((at, state.grants.get(at)?)))
            .ok_or_else(unknown)?;
        check_signature(&granted.grant, &progress.body.0, &progress.sig.0)?;
        let body_sha256 = hex::encode(Sha256::digest(&progress.body.0));
        let repeated = granted.reports.iter().find(|old| old.seq == said.seq);
        if let Some(old) = repeated {
            if old.body_sha256 == body_sha256 {
                // Verified and failed have ended the run themselves; any other is leave to go on.
                return match old.step {
                    InstallStep::Verified | InstallStep::Failed => Ok(Vec::new()),
                    InstallStep::Checked
                    | InstallStep::Wiped
                    | InstallStep::Written
                    | InstallStep::Configured => self
                        .may_go_on(now, state, at, said.step, may_attest)
                        .map(|()| Vec::new()),
                };
            }
            let expected = format!("report {} as it is on record", said.seq);
            let found = "another report of the same number";
            return Err(refused("progress.replayed", expected, found));
        }
        self.may_go_on(now, state, at, said.step, may_attest)?;
        check_order(granted, &said)?;
        if said.step == InstallStep::Verified && said.sha256 != state.run.raw_sha256 {
            let expected = format!("a disk that reads as {}", state.run.raw_sha256);
            return Err(refused("progress.digest", expected, shown(&said.sha256)));
        }
        let record = InstallProgress {
            run: state.run.run.clone(),
            grant: said.grant.clone(),
            machine: machine.clone(),
            seq: said.seq,
            step: said.step,
            sha256: said.sha256.clone(),
            detail: shown(&said.detail),
            body_sha256,
        };
        let mut records = vec![Record::Progress(record)];
        match said.step {
            InstallStep::Verified => {
                records.push(Record::RunEnd(state.end(RunOutcome::Verified, None, None)));
            }
            InstallStep::Failed => {
                let reason = Reason::new(
                    "run.failed",
                    format!("{} of run {}", state.waits_for(), state.run.run),
                    shown(&said.detail),
                    "the installer's signed report",
                    "mend what it says, then: vestibule machine install-retry",
                );
                let end = state.end(RunOutcome::Failed, Some(reason), None);
                records.push(Record::RunEnd(end));
            }
            InstallStep::Checked
            | InstallStep::Wiped
            | InstallStep::Written
            | InstallStep::Configured => {}
        }
        Ok(records)
    }

    /// Whether an installer may act on the acceptance of this step: a withdrawal, an end or a newer boot
    /// may have come between the report and its answer.
    fn may_go_on(
        &self,
        now: UnixMillis,
        state: &RunState,
        at: usize,
        step: InstallStep,
        may_attest: impl Fn(&MachineId) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        let granted = state.grants.get(at).map(|granted| &granted.grant);
        if let Some(newer) = state.grants.get(at + 1..).and_then(<[_]>::last) {
            let expected = format!("a report under grant {}", newer.grant.grant);
            let found = granted.map_or("?", |grant| &grant.grant);
            let found = format!("grant {found} of an earlier boot");
            return Err(refused("grant.other_boot", expected, found));
        }
        may_attest(&state.run.machine)?;
        if let Some(end) = &state.ended {
            let found = format!("run {} has ended: {}", state.run.run, end.outcome.as_str());
            return Err(refused("run.ended", "an unfinished run", found));
        }
        if let (InstallStep::Checked, Some(grant)) = (step, granted) {
            live_at(now, grant)?;
            self.image_of(&state.run)?;
        }
        Ok(())
    }
}

fn check_signature(grant: &Grant, body: &[u8], sig: &[u8]) -> Result<(), Reason> {
    let key = hex::decode(&grant.devid_pub)
        .map_err(|e| e.to_string())
        .and_then(|bytes| Public::decode(&bytes).map_err(|e| e.to_string()));
    let signature = Signature::decode(sig).map_err(|e| e.to_string());
    let verified = key.and_then(|key| {
        let message = [PROGRESS_LABEL, body].concat();
        verify_tpm_signature(&key, &message, &signature?)
    });
    verified.map_err(|why| {
        let expected = format!("a signature of the DevID of grant {}", grant.grant);
        refused("progress.signature", expected, shown(&why))
    })
}

/// The number is the next one, and the step may follow the last.
fn check_order(granted: &GrantState, said: &ProgressBody) -> Result<(), Reason> {
    let last = granted.reports.last();
    let next = last.map_or(1, |report| report.seq.saturating_add(1));
    if said.seq != next {
        let expected = format!("report {next} of grant {}", said.grant);
        let found = format!("report {}", said.seq);
        let code = match said.seq < next {
            true => "progress.replayed",
            false => "progress.order",
        };
        return Err(refused(code, expected, found));
    }
    use InstallStep as S;
    let legal: &[S] = match last.map(|report| report.step) {
        None => &[S::Checked, S::Failed],
        // The disk had been written in an earlier boot and reads as it should.
        Some(S::Checked) if granted.grant.reread => &[S::Wiped, S::Configured, S::Failed],
        Some(S::Checked) => &[S::Wiped, S::Failed],
        Some(S::Wiped) => &[S::Written, S::Failed],
        Some(S::Written) => &[S::Configured, S::Failed],
        Some(S::Configured) => &[S::Verified, S::Failed],
        Some(S::Verified | S::Failed) => &[],
    };
    if legal.contains(&said.step) {
        return Ok(());
    }
    let names: Vec<&str> = legal.iter().map(|step| step.as_str()).collect();
    let found = said.step.as_str();
    Err(refused("progress.order", names.join(" or "), found))
}
