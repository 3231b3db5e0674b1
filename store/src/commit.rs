//! The one committer: gathers what is queued into one group commit, makes it durable, brings the
//! views up to it, and answers in order.
//!
//! Decides when a record counts as written: after `fdatasync` of every file it is in, never before.
//! Does not know what the records mean. The first failure is final: an effect that could not be
//! recorded must not happen, so every later commit is refused and the daemon stops loudly.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gateway_core::identity::{MachineId, UnixMillis};
use gateway_core::record::{JournalRecord, Record};

use crate::error::StoreError;
use crate::frame;
use crate::journal::Journal;
use crate::ledger::{Hash, LedgerSigner, LedgerWriter};
use crate::views::Views;

/// Batches waiting for the committer. A full queue means the disk is seconds behind.
const QUEUE_MAX: usize = 1024;
/// A group commit takes no further batch above this many bytes.
const GROUP_BYTES: usize = 1024 * 1024;
/// Largest single batch, in bytes of JSON: with a full group before it, below a frame's bound.
const BATCH_MAX_BYTES: usize = frame::PAYLOAD_MAX_BYTES / 4;

/// The database learns how far the lease journal has come when nothing has been queued for this
/// long. The leases themselves it gets at the end, or at the next start: nobody reads that view
/// meanwhile, and in a boot storm it would cost more than the journal.
const VIEW_IDLE: Duration = Duration::from_millis(100);
/// Or at the latest after this long: as long as sled itself keeps what it was told in memory.
const VIEW_LAG_MAX: Duration = Duration::from_secs(1);

/// What belongs together: either all of it is written, or the commit fails for good.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Wall clock of the decisions, for their ledger entries.
    pub at: UnixMillis,
    /// Decisions for the signed ledger.
    pub ledger: Vec<Record>,
    /// The sequence that the first of them must get, when whoever decided has counted along. The
    /// commit fails for good when the ledger is elsewhere: the two must not drift apart.
    pub first_seq: Option<u64>,
    /// The value that the counter gets after the batch is on disk and before it is answered. Its
    /// record is among the others.
    pub anchor: Option<u64>,
    /// Working state for the lease journal.
    pub journal: Vec<JournalRecord>,
    /// New JSON of a machine for its view, or none to remove it. Derived from the records: lost
    /// views are rebuilt by whoever replays the ledger.
    pub machines: Vec<(MachineId, Option<Vec<u8>>)>,
}

/// Where a batch ended up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Sequence of its first ledger entry; `last_seq + 1` when it had none.
    pub first_seq: u64,
    /// Sequence of its last ledger entry.
    pub last_seq: u64,
    /// Hash of the last entry of the group commit it was part of: what the signature covers.
    pub head: Hash,
}

/// Why a batch is not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// The queue is full; nothing was written, later batches may be.
    #[error("commit queue is full ({QUEUE_MAX} batches): the disk does not keep up")]
    QueueFull,
    /// The batch alone is too large; nothing was written.
    #[error("batch has {bytes} bytes, at most {BATCH_MAX_BYTES} fit")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
    },
    /// The commit failed. Whether a restart finds the batch is unknown; its effects must not happen.
    #[error("commit failed, the store is stopped")]
    Failed(#[source] Arc<StoreError>),
    /// An earlier commit failed or the committer is gone; nothing was written.
    #[error("the store is stopped since an earlier failure")]
    Stopped(#[source] Option<Arc<StoreError>>),
}

impl CommitError {
    /// Whether every later commit fails too, so that the daemon has to stop.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Stopped(_))
    }
}

/// Called once per batch, on the committer's thread unless the batch was refused at once. Must not
/// block: hand the answer to a channel.
pub type Done = Box<dyn FnOnce(Result<Committed, CommitError>) + Send>;

/// The counter that the ledger is anchored to: a copy of the files cannot turn it back.
pub trait Anchor: Send {
    /// Moves it on by one, to `to`. Blocking.
    ///
    /// # Errors
    /// It did not move, or to another value; the store stops.
    fn advance(&mut self, to: u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

struct Job {
    at: UnixMillis,
    ledger: Vec<String>,
    first_seq: Option<u64>,
    anchor: Option<u64>,
    journal: Vec<(String, JournalRecord)>,
    machines: Vec<(MachineId, Option<Vec<u8>>)>,
    bytes: usize,
    done: Done,
}

enum Message {
    Commit(Job),
    Signer(Box<dyn LedgerSigner>),
    Anchor(Box<dyn Anchor>),
}

/// Hands batches to the committer thread. Dropping it waits until everything queued is answered.
pub struct Committer {
    queue: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    pub(crate) fn start(
        ledger: LedgerWriter,
        journal: Journal,
        views: Arc<Views>,
    ) -> Result<Self, StoreError> {
        let (queue, jobs) = sync_channel(QUEUE_MAX);
        let mut worker = Worker {
            ledger,
            journal,
            views,
            anchor: None,
            untold: None,
            untaught: false,
            failed: None,
        };
        let thread = std::thread::Builder::new()
            .name("committer".into())
            .spawn(move || worker.run(&jobs))
            .map_err(|_| StoreError::Resource { what: "a thread" })?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Where batches with an anchor find their counter. Without it they fail.
    pub fn set_anchor(&self, anchor: Box<dyn Anchor>) {
        let queue = self.queue.as_ref().expect("only drop takes the queue");
        // A committer that is gone says so at the next commit.
        let _ = queue.send(Message::Anchor(anchor));
    }

    /// Queues a batch. `done` is called exactly once, batches in the order they were submitted,
    /// unless the committer's thread was lost to a panic in an earlier `done`.
    pub fn submit(&self, batch: Batch, done: Done) {
        let job = match encode(batch, done) {
            Ok(job) => job,
            Err((e, done)) => return done(Err(e)),
        };
        let queue = self.queue.as_ref().expect("only drop takes the queue");
        match queue.try_send(Message::Commit(job)) {
            Ok(()) => {}
            Err(TrySendError::Full(message)) => refuse(message, CommitError::QueueFull),
            Err(TrySendError::Disconnected(message)) => {
                refuse(message, CommitError::Stopped(None));
            }
        }
    }

    /// Commits a batch and waits. For start, tests and commands; the driver uses [`Self::submit`].
    ///
    /// # Errors
    /// As [`CommitError`] says.
    pub fn commit(&self, batch: Batch) -> Result<Committed, CommitError> {
        let (answer, wait) = sync_channel(1);
        self.submit(
            batch,
            Box::new(move |result| {
                let _ = answer.send(result);
            }),
        );
        wait.recv().unwrap_or(Err(CommitError::Stopped(None)))
    }

    /// Goes on with a renewed ledger key from the next group commit on; opens a new segment. A
    /// failure shows at the next commit.
    pub fn set_signer(&self, signer: Box<dyn LedgerSigner>) {
        let queue = self.queue.as_ref().expect("only drop takes the queue");
        // A committer that is gone says so at the next commit.
        let _ = queue.send(Message::Signer(signer));
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic in a `done` was already printed by the panic hook.
            let _ = thread.join();
        }
    }
}

fn refuse(message: Message, error: CommitError) {
    if let Message::Commit(job) = message {
        (job.done)(Err(error));
    }
}

/// Turns a batch into the bytes that will be written.
fn encode(batch: Batch, done: Done) -> Result<Job, (CommitError, Done)> {
    let ledger: Result<Vec<String>, _> = batch.ledger.iter().map(serde_json::to_string).collect();
    let journal: Result<Vec<(String, JournalRecord)>, _> = batch
        .journal
        .into_iter()
        .map(|record| Ok((serde_json::to_string(&record)?, record)))
        .collect();
    let (ledger, journal) = match (ledger, journal) {
        (Ok(ledger), Ok(journal)) => (ledger, journal),
        (Err(e), _) | (_, Err(e)) => {
            let e: serde_json::Error = e;
            return Err((CommitError::Failed(Arc::new(StoreError::Encode(e))), done));
        }
    };
    let bytes = ledger.iter().map(String::len).sum::<usize>()
        + journal.iter().map(|(json, _)| json.len()).sum::<usize>();
    let longest = ledger.iter().map(String::len).max().unwrap_or(0);
    if bytes > BATCH_MAX_BYTES || longest > crate::ledger::RECORD_MAX_BYTES {
        return Err((CommitError::TooLarge { bytes }, done));
    }
    Ok(Job {
        at: batch.at,
        ledger,
        first_seq: batch.first_seq,
        anchor: batch.anchor,
        journal,
        machines: batch.machines,
        bytes,
        done,
    })
}

struct Worker {
    ledger: LedgerWriter,
    journal: Journal,
    views: Arc<Views>,
    anchor: Option<Box<dyn Anchor>>,
    /// Since when the database does not know how far the journal has come.
    untold: Option<Instant>,
    /// Whether leases may have changed that the lease view has not seen.
    untaught: bool,
    failed: Option<Arc<StoreError>>,
}

impl Worker {
    fn run(&mut self, queue: &Receiver<Message>) {
        let mut group = Vec::new();
        while let Some(first) = self.next(queue) {
            let mut next = Some(first);
            let mut bytes = 0;
            while let Some(message) = next.take() {
                match message {
                    Message::Commit(job) => {
                        bytes += job.bytes;
                        let anchored = job.anchor.is_some();
                        group.push(job);
                        // One anchor a write: after a power cut the counter is behind by one at most.
                        if anchored {
                            self.finish(&mut group);
                        }
                    }
                    Message::Anchor(anchor) => self.anchor = Some(anchor),
                    Message::Signer(signer) => {
                        self.finish(&mut group);
                        self.set_signer(signer);
                    }
                }
                if bytes < GROUP_BYTES {
                    next = queue.try_recv().ok();
                }
            }
            self.finish(&mut group);
        }
        if self.untaught && self.failed.is_none() {
            let leases = self.journal.recovered().all_leases();
            let seen = self.journal.next_seq() - 1;
            if let Err(e) = self.views.apply_leases(&leases, seen) {
                self.fail(e);
            }
        }
    }

    /// The next message, or none at the end.
    fn next(&mut self, queue: &Receiver<Message>) -> Option<Message> {
        if self.untold.is_some() {
            match queue.recv_timeout(VIEW_IDLE) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => self.tell_views(),
            }
        }
        queue.recv().ok()
    }

    /// Tells the database how far the journal has come, so that a journal cut short is noticed. A
    /// view that fails stops the store at the next commit.
    fn tell_views(&mut self) {
        self.untold = None;
        if self.failed.is_none()
            && let Err(e) = self.views.set_applied_journal(self.journal.next_seq() - 1)
        {
            self.fail(e);
        }
    }

    fn set_signer(&mut self, signer: Box<dyn LedgerSigner>) {
        if self.failed.is_none()
            && let Err(e) = self.ledger.set_signer(signer)
        {
            self.fail(e);
        }
    }

    fn fail(&mut self, e: StoreError) -> Arc<StoreError> {
        let error: &dyn std::error::Error = &e;
        tracing::error!(error, "commit failed, the store stops");
        let e = Arc::new(e);
        self.failed = Some(e.clone());
        e
    }

    /// Writes a group, then answers each of its batches in order.
    fn finish(&mut self, group: &mut Vec<Job>) {
        if group.is_empty() {
            return;
        }
        if let Some(failed) = &self.failed {
            for job in group.drain(..) {
                (job.done)(Err(CommitError::Stopped(Some(failed.clone()))));
            }
            return;
        }
        let mut seq = self.ledger.next_seq();
        let written = self.write(group).and_then(|()| self.anchor(group));
        if let Err(e) = written {
            let e = self.fail(e);
            for job in group.drain(..) {
                (job.done)(Err(CommitError::Failed(e.clone())));
            }
            return;
        }
        let since = *self.untold.get_or_insert_with(Instant::now);
        self.untaught = true;
        // The group is durable: a view that fails stops the store, but not this answer.
        if let Err(e) = self.apply(group) {
            self.fail(e);
        }
        let head = self.ledger.head();
        for job in group.drain(..) {
            let first_seq = seq;
            seq += job.ledger.len() as u64;
            (job.done)(Ok(Committed {
                first_seq,
                last_seq: seq - 1,
                head,
            }));
        }
        if since.elapsed() > VIEW_LAG_MAX {
            self.tell_views();
        }
    }

    /// Moves the counter to what the group's anchor says.
    fn anchor(&mut self, group: &[Job]) -> Result<(), StoreError> {
        let Some(to) = group.iter().find_map(|job| job.anchor) else {
            return Ok(());
        };
        let advanced = match &mut self.anchor {
            Some(anchor) => anchor.advance(to),
            None => Err("no counter was given to the store".into()),
        };
        advanced.map_err(|source| StoreError::Anchor { to, source })
    }

    /// Every batch that counts along must find the ledger where it thinks it is.
    fn check_sequence(&self, group: &[Job]) -> Result<(), StoreError> {
        let mut next = self.ledger.next_seq();
        for job in group {
            if let Some(expected) = job.first_seq
                && expected != next
            {
                return Err(StoreError::Sequence { expected, next });
            }
            next += job.ledger.len() as u64;
        }
        Ok(())
    }

    /// Both files, side by side when both have something to write.
    fn write(&mut self, group: &mut [Job]) -> Result<(), StoreError> {
        self.check_sequence(group)?;
        let journal_records: Vec<_> = group
            .iter_mut()
            .flat_map(|job| std::mem::take(&mut job.journal))
            .collect();
        let ledger_records: Vec<_> = group
            .iter()
            .flat_map(|job| job.ledger.iter().map(|record| (job.at, record.as_str())))
            .collect();
        let (ledger, journal) = (&mut self.ledger, &mut self.journal);
        match (ledger_records.is_empty(), journal_records.is_empty()) {
            (true, true) => Ok(()),
            (false, true) => ledger.commit(ledger_records.into_iter()),
            (true, false) => journal.commit(journal_records),
            (false, false) => std::thread::scope(|scope| {
                let side = scope.spawn(|| journal.commit(journal_records));
                let main = ledger.commit(ledger_records.into_iter());
                let side = side.join().unwrap_or(Err(StoreError::Resource {
                    what: "the journal's thread",
                }));
                main.and(side)
            }),
        }
    }

    /// Brings the machine view up to a group.
    fn apply(&self, group: &[Job]) -> Result<(), StoreError> {
        let mut jobs = group.iter();
        if jobs.all(|job| job.ledger.is_empty() && job.machines.is_empty()) {
            return Ok(());
        }
        let machines = group
            .iter()
            .flat_map(|job| job.machines.iter().map(|(id, json)| (id, json.as_deref())));
        self.views
            .apply_machines(machines, self.ledger.next_seq() - 1)
    }
}
