//! THE loop: one task owns the core. Input -> handle -> persist -> perform.
//!
//! It drains what is ready, hands each input to [`Gateway`], gives the records to the one committer
//! thread, and performs the other effects in order when the commit is acknowledged; meanwhile the
//! next inputs are handled. It never waits for a disk or a TPM itself. A commit that fails stops
//! the daemon: what is not on disk must not be seen.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use gateway_core::admission::effect::Effect;
use gateway_core::gateway::{Gateway, Input};
use gateway_core::identity::UnixMillis;
use gateway_core::record::JournalRecord;
use gateway_core::walk::Step;
use hw::clock::Clock;
use store::{Batch, CommitError, Committed, Committer};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use crate::effects::{Perform, Performer};
use crate::handle::Request;
use crate::telemetry;

/// Inputs handled before the records go to the committer.
const DRAIN_MAX: usize = 256;
/// Or this long, whichever is first.
const DRAIN_TIME: Duration = Duration::from_millis(1);
/// Batches with the committer at once. While this many wait for the disk, inputs wait too.
const COMMITS_MAX: usize = 4;
/// A mark that nobody waits for goes to the disk with the next lease, at the latest after this long:
/// half of a storm's datagrams are DISCOVERs, and none of them is worth a sync of its own.
const LATE_MAX: Duration = Duration::from_millis(50);
/// The core is woken at least this often, so that a timer it set while busy is not missed.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// Why the loop ended.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// A record could not be made durable.
    #[error("a decision could not be recorded; the gateway stops")]
    Commit(#[source] CommitError),
}

/// What comes back to the loop from committer, workers and CA.
#[expect(
    clippy::large_enum_variant,
    reason = "one per commit or appraisal, moved once"
)]
pub(crate) enum Done {
    /// A batch is on disk, or never will be.
    Committed(Result<Committed, CommitError>),
    /// Work or a certificate is ready.
    Input(Input),
}

/// Wall-clock time that never goes back and never stands still: when the clock is set back, time
/// goes on at the pace of the monotonic clock until the wall clock has caught up. Leases, sessions
/// and summaries end either way.
pub(crate) struct Forward {
    wall_ms: u64,
    at: Instant,
}

impl Forward {
    pub fn new(wall_ms: u64, at: Instant) -> Self {
        Self { wall_ms, at }
    }

    fn advance(&mut self, wall_ms: u64, at: Instant) -> UnixMillis {
        let passed = at.saturating_duration_since(self.at).as_millis();
        let expected = self
            .wall_ms
            .saturating_add(u64::try_from(passed).unwrap_or(u64::MAX));
        if wall_ms >= expected {
            *self = Self::new(wall_ms, at);
            return UnixMillis(wall_ms);
        }
        UnixMillis(expected)
    }
}

/// Marks of DISCOVERs: written down, but nothing rests on them.
#[derive(Default)]
pub(crate) struct Late {
    records: Vec<JournalRecord>,
    since: Option<Instant>,
}

impl Late {
    fn keep(&mut self, records: Vec<JournalRecord>) {
        self.records = records;
        self.since.get_or_insert_with(Instant::now);
    }

    fn take(&mut self) -> Vec<JournalRecord> {
        std::mem::take(&mut self.records)
    }

    /// How long they may still wait; none when there are none.
    fn left(&self) -> Option<Duration> {
        self.since
            .map(|since| LATE_MAX.saturating_sub(since.elapsed()))
    }
}

fn may_be_late(record: &JournalRecord) -> bool {
    match record {
        JournalRecord::Mark(mark) => mark.step == Step::Discover,
        JournalRecord::Lease(_) | JournalRecord::Lease6(_) => false,
    }
}

/// The loop's own state.
pub(crate) struct Driver {
    pub gateway: Gateway,
    pub clock: Clock,
    /// The time handed to the core.
    pub time: Forward,
    pub requests: mpsc::Receiver<Request>,
    pub done_tx: mpsc::UnboundedSender<Done>,
    pub done_rx: mpsc::UnboundedReceiver<Done>,
    pub committer: Committer,
    pub performer: Performer,
    pub late: Late,
    pub cancel: CancellationToken,
}

impl Driver {
    /// Runs until cancelled.
    ///
    /// # Errors
    /// [`DriverError`] when a decision could not be recorded.
    pub async fn run(mut self) -> Result<(), DriverError> {
        let mut waiting: VecDeque<Vec<Perform>> = VecDeque::new();
        loop {
            let open = waiting.len() < COMMITS_MAX;
            let timeout = self.timeout();
            let mut answers = Vec::new();
            // One clock reading per turn: every record of a batch carries the same time.
            tokio::select! {
                () = self.cancel.cancelled() => break,
                done = self.done_rx.recv() => {
                    if let Some(done) = done {
                        self.done(done, &mut waiting)?;
                    }
                }
                request = self.requests.recv(), if open => match request {
                    Some(request) => {
                        let now = self.now();
                        self.request(now, request, &mut answers);
                        self.drain(now, &mut answers);
                    }
                    None => break,
                },
                () = tokio::time::sleep(timeout) => {
                    let now = self.now();
                    self.gateway.handle_timeout(now);
                }
            }
            self.timers();
            self.commit(answers, &mut waiting);
        }
        // Everything decided is written before the process ends; its effects are not performed.
        let now = self.now();
        let mut late = Batch {
            at: now,
            anchor: self.gateway.anchor(now, true),
            journal: self.late.take(),
            ..Batch::default()
        };
        if late.anchor.is_some() {
            while let Some(effect) = self.gateway.poll_effect() {
                if let Effect::Record { seq, record, .. } = effect {
                    late.first_seq.get_or_insert(seq);
                    late.ledger.push(record);
                }
            }
        }
        if !late.journal.is_empty() || !late.ledger.is_empty() {
            self.committer.submit(late, Box::new(|_| {}));
        }
        Ok(())
    }

    fn now(&mut self) -> UnixMillis {
        self.time.advance(self.clock.now_ms(), Instant::now())
    }

    /// What is due is done in every turn: while inputs keep coming, the sleep never ends.
    fn timers(&mut self) {
        let now = self.now();
        if self.gateway.poll_timeout().is_some_and(|at| at <= now) {
            self.gateway.handle_timeout(now);
        }
    }

    fn timeout(&mut self) -> Duration {
        let now = self.now();
        let core = self.gateway.poll_timeout();
        let core = core.map(|at| Duration::from_millis(at.0.saturating_sub(now.0)));
        let due = [core, self.late.left()].into_iter().flatten().min();
        due.unwrap_or(IDLE_MAX)
            .clamp(Duration::from_millis(1), IDLE_MAX)
    }

    /// Takes what else is ready.
    fn drain(&mut self, now: UnixMillis, answers: &mut Vec<Perform>) {
        let start = Instant::now();
        for _ in 1..DRAIN_MAX {
            if start.elapsed() >= DRAIN_TIME {
                return;
            }
            match self.requests.try_recv() {
                Ok(request) => self.request(now, request, answers),
                Err(_) => return,
            }
        }
    }

    /// One question. Those that only read are answered with the batch, after its commit, so that
    /// nobody sees what a crash could still undo.
    fn request(&mut self, now: UnixMillis, request: Request, answers: &mut Vec<Perform>) {
        match request {
            Request::Datagram(bytes, ingress) => {
                self.gateway.handle(now, Input::Datagram { bytes, ingress });
            }
            Request::Datagram6(bytes, ingress) => {
                self.gateway
                    .handle(now, Input::Datagram6 { bytes, ingress });
            }
            Request::AskBootPort(bytes, ingress) => {
                self.gateway
                    .handle(now, Input::BootRequest { bytes, ingress });
            }
            Request::ArpSeen(addr, mac) => {
                self.gateway.handle(now, Input::ArpSeen { addr, mac });
            }
            Request::DhcpHeard(frame) => self.gateway.handle(now, Input::DhcpHeard { frame }),
            Request::Hello(conn, body, reply) => {
                self.performer.expect_reply(conn.id, reply);
                let time = crate::serve::time_trust(&self.clock.read());
                let mut seed = Zeroizing::new([0; 32]);
                crate::random::fill(&mut seed[..]);
                let input = Input::Hello {
                    conn: conn.id,
                    peer: conn.peer.ip(),
                    session: conn.session,
                    exporter: conn.exporter,
                    time,
                    seed,
                    body: body.into(),
                };
                self.gateway.handle(now, input);
            }
            Request::Evidence(conn, body, reply) => {
                self.performer.expect_reply(conn, reply);
                self.gateway.handle(
                    now,
                    Input::Evidence {
                        conn,
                        body: body.into(),
                    },
                );
            }
            Request::EvidenceBroken(conn, status, reason, reply) => {
                self.performer.expect_reply(conn, reply);
                let input = Input::EvidenceBroken {
                    conn,
                    status,
                    reason: *reason,
                };
                self.gateway.handle(now, input);
            }
            Request::Progress(conn, peer, body, reply) => {
                self.performer.expect_reply(conn, reply);
                let input = Input::Progress {
                    conn,
                    peer: peer.ip(),
                    body: body.into(),
                };
                self.gateway.handle(now, input);
            }
            Request::FetchDisk(peer, sha256, reply) => {
                let allowed = self.gateway.image_fetch(now, peer.ip(), &sha256);
                answers.push(Perform::answer(reply, allowed));
            }
            Request::Disks(reply) => answers.push(Perform::answer(reply, self.gateway.disks())),
            Request::Closed(conn) => {
                self.performer.forget(conn);
                self.gateway.handle(now, Input::Closed(conn));
            }
            Request::Script(query, reply) => {
                let script = self.gateway.boot_script(now, &query);
                answers.push(Perform::answer(reply, script));
            }
            Request::Fetch(query, reply) => {
                let allowed = self.gateway.boot_fetch(now, &query);
                answers.push(Perform::answer(reply, allowed));
            }
            Request::Missing(query, reply) => {
                self.gateway.boot_missing(&query);
                answers.push(Perform::answer(reply, ()));
            }
            Request::Machines(reply) => {
                answers.push(Perform::answer(reply, self.gateway.machines()));
            }
            Request::Timeline(id, reply) => {
                answers.push(Perform::answer(reply, self.gateway.timeline(&id)));
            }
            Request::Command(caller, command, reply) => {
                let done = self.gateway.command(now, &caller, command);
                answers.push(Perform::answer(reply, done));
            }
            Request::EkCaImport(caller, import, reply) => {
                let time = crate::serve::time_trust(&self.clock.read());
                let done = self.gateway.import_ek_cas(now, time, &caller, &import);
                answers.push(Perform::answer(reply, done));
            }
            Request::SealSecret(caller, request, reply) => {
                let mut seed = Zeroizing::new([0; 32]);
                crate::random::fill(seed.as_mut_slice());
                let done = self.gateway.seal_secret(now, &caller, &request, &seed);
                answers.push(Perform::answer(reply, done));
            }
            Request::EkCas(reply) => {
                answers.push(Perform::answer(reply, self.gateway.ek_cas(now)));
            }
            Request::EkUnmatched(reply) => {
                answers.push(Perform::answer(reply, self.gateway.ek_unmatched()));
            }
            Request::EkExport(all, reply) => {
                answers.push(Perform::answer(reply, self.gateway.ek_export(all)));
            }
            Request::Images(reply) => answers.push(Perform::answer(reply, self.gateway.images())),
            Request::Status(reply) => answers.push(Perform::answer(reply, self.gateway.status())),
            Request::SpireMachines(reply) => {
                answers.push(Perform::answer(reply, self.gateway.spire_machines()));
            }
            Request::EkHashes(reply) => {
                answers.push(Perform::answer(reply, self.gateway.ek_hashes()));
            }
            Request::Note(records, reply) => {
                for record in records {
                    self.gateway.note(now, record);
                }
                answers.push(Perform::answer(reply, ()));
            }
            Request::Talos(ask) => answers.push(ask.run(&mut self.gateway, now)),
            Request::Ledger(from, max, reply) => answers.push(Perform::Ledger(from, max, reply)),
        }
    }

    fn done(
        &mut self,
        done: Done,
        waiting: &mut VecDeque<Vec<Perform>>,
    ) -> Result<(), DriverError> {
        match done {
            Done::Input(input) => {
                let now = self.now();
                self.gateway.handle(now, input);
            }
            Done::Committed(result) => {
                result.map_err(DriverError::Commit)?;
                // The committer answers in order, each batch once.
                let perform = waiting
                    .pop_front()
                    .expect("an answer belongs to a waiting batch");
                self.perform(perform);
            }
        }
        Ok(())
    }

    fn perform(&mut self, perform: Vec<Perform>) {
        for perform in perform {
            self.performer.perform(perform, &self.done_tx);
        }
    }

    /// Persist, then perform.
    fn commit(&mut self, answers: Vec<Perform>, waiting: &mut VecDeque<Vec<Perform>>) {
        let now = self.now();
        let mut batch = Batch {
            at: now,
            anchor: self.gateway.anchor(now, false),
            journal: self.late.take(),
            ..Batch::default()
        };
        let mut perform = Vec::new();
        // Replies that tell of a lease: the committer's thread sends them, one wake-up earlier.
        let mut leased = Vec::new();
        let lines = telemetry::hold();
        while let Some(effect) = self.gateway.poll_effect() {
            match effect {
                Effect::Record { seq, at, record } => {
                    telemetry::recorded(seq, &record);
                    // The store refuses to number it otherwise.
                    batch.first_seq.get_or_insert(seq);
                    batch.at = at;
                    batch.ledger.push(record);
                }
                Effect::Journal(record) => {
                    if let JournalRecord::Mark(mark) = &record {
                        telemetry::marked(mark);
                    }
                    batch.journal.push(record);
                }
                effect @ Effect::Dhcp {
                    after_commit: false,
                    ..
                } => {
                    let perform = Perform::Effect(Box::new(effect));
                    self.performer.perform(perform, &self.done_tx);
                }
                Effect::Dhcp { reply, iface, .. } => leased.push((reply, iface)),
                effect @ (Effect::Dhcp6 { .. }
                | Effect::ArpProbe { .. }
                | Effect::DhcpProbe { .. }
                | Effect::Gate(_)
                | Effect::Work(_)
                | Effect::Issue(_)
                | Effect::Wire { .. }
                | Effect::Refused { .. }
                | Effect::RefusedQuietly { .. }) => perform.push(Perform::Effect(Box::new(effect))),
            }
        }
        drop(lines);
        perform.extend(answers);
        let nothing_to_write = batch.ledger.is_empty() && batch.journal.is_empty();
        if nothing_to_write {
            for (reply, iface) in &leased {
                self.performer.dhcp().send(reply, iface);
            }
            // Keep the order: behind what is not yet on disk.
            match waiting.back_mut() {
                Some(last) => last.extend(perform),
                None => self.perform(perform),
            }
            return;
        }
        let nobody_waits = perform.is_empty() && leased.is_empty() && batch.ledger.is_empty();
        let late = self.late.left().is_none_or(|left| !left.is_zero());
        if nobody_waits && late && batch.journal.iter().all(may_be_late) {
            self.late.keep(batch.journal);
            return;
        }
        self.late.since = None;
        waiting.push_back(perform);
        let done = self.done_tx.clone();
        let dhcp = self.performer.dhcp();
        self.committer.submit(
            batch,
            Box::new(move |result| {
                if result.is_ok() {
                    for (reply, iface) in &leased {
                        dhcp.send(reply, iface);
                    }
                }
                // A loop that has ended performs nothing more.
                let _ = done.send(Done::Committed(result));
            }),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attack_50_a_clock_set_back_neither_stops_nor_turns_time() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut time = Forward::new(1_000_000, start);
        assert_eq!(time.advance(1_000_010, after(10)), UnixMillis(1_000_010));
        // Ten years ahead, and back.
        let ahead = 1_000_000 + 315_360_000_000;
        assert_eq!(time.advance(ahead, after(20)), UnixMillis(ahead));
        assert_eq!(time.advance(1_000_030, after(30)), UnixMillis(ahead + 10));
        let mut last = UnixMillis(0);
        for step in 0..10_000u32 {
            let at = after(40) + Duration::from_micros(100) * step;
            let now = time.advance(1_000_040, at);
            assert!(now >= last);
            last = now;
        }
        assert_eq!(last, UnixMillis(ahead + 20 + 999), "a session of 1 s ends");
    }
}
