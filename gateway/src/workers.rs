//! Workers for what is too long for the loop: a bound on how many run, and none of it for a node
//! that has gone. Whoever says hello and hangs up, again and again, must not leave work queued.

use std::collections::HashMap;
use std::sync::Arc;

use gateway_core::identity::ConnId;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// Appraisals at once: one per core; the rest wait their turn in order.
const WORKERS: usize = 4;

/// Runs and queues work, at most one piece per connection.
pub(crate) struct Workers {
    free: Arc<Semaphore>,
    tasks: HashMap<ConnId, AbortHandle>,
}

impl Workers {
    pub fn new() -> Self {
        Self {
            free: Arc::new(Semaphore::new(WORKERS)),
            tasks: HashMap::new(),
        }
    }

    /// Runs `work` when a worker is free, then `done` with its result, or with none when it
    /// panicked. Neither runs when the connection is abandoned before its turn.
    pub fn start<T: Send + 'static>(
        &mut self,
        conn: ConnId,
        work: impl FnOnce() -> T + Send + 'static,
        done: impl FnOnce(Option<T>) + Send + 'static,
    ) {
        let free = Arc::clone(&self.free);
        let task = tokio::spawn(async move {
            let Ok(permit) = free.acquire_owned().await else {
                return;
            };
            // The permit goes with the work: what has begun keeps its worker when it is abandoned.
            let run = move || {
                let _permit = permit;
                work()
            };
            done(tokio::task::spawn_blocking(run).await.ok());
        });
        self.tasks.insert(conn, task.abort_handle());
    }

    /// The connection is gone: its work is not begun any more, and nobody wants its result.
    pub fn abandon(&mut self, conn: ConnId) {
        if let Some(task) = self.tasks.remove(&conn) {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn attack_36_work_of_a_node_that_hung_up_is_not_begun() {
        let mut workers = Workers::new();
        let began = Arc::new(AtomicUsize::new(0));
        let (go, gates): (Vec<_>, Vec<_>) = (0..WORKERS).map(|_| mpsc::channel::<()>()).unzip();
        for (conn, gate) in (0..).zip(gates) {
            let began = Arc::clone(&began);
            let work = move || {
                began.fetch_add(1, Ordering::SeqCst);
                let _ = gate.recv();
            };
            workers.start(ConnId(conn), work, |_| {});
        }
        while began.load(Ordering::SeqCst) < WORKERS {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for conn in 100..10_100 {
            let began = Arc::clone(&began);
            let work = move || {
                began.fetch_add(1, Ordering::SeqCst);
            };
            workers.start(ConnId(conn), work, |_| {});
            workers.abandon(ConnId(conn));
        }
        let (tx, rx) = oneshot::channel();
        workers.start(
            ConnId(20_000),
            || 7,
            move |seven| {
                let _ = tx.send(seven);
            },
        );
        drop(go);
        assert_eq!(rx.await, Ok(Some(7)), "an honest node has its turn");
        assert_eq!(began.load(Ordering::SeqCst), WORKERS);
        assert_eq!(workers.tasks.len(), WORKERS + 1);
    }

    #[tokio::test]
    async fn work_that_panics_is_answered_and_frees_its_worker() {
        let mut workers = Workers::new();
        for conn in 0..2 * WORKERS as u64 {
            let (tx, rx) = oneshot::channel();
            let work = || -> u8 { panic!("a defect in an appraisal") };
            workers.start(ConnId(conn), work, move |none| {
                let _ = tx.send(none);
            });
            assert_eq!(rx.await, Ok(None));
        }
    }
}
