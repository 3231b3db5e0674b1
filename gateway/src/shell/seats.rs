//! Who keeps a place at a listener when there are more connections than places.
//!
//! Decides by progress: a newcomer takes the place of the connection that has shown none for
//! longest, if that is long enough. Slow clients thus cannot keep a rack out, and a machine that was
//! switched off in the middle of a download does not count against itself. Knows no protocol:
//! whoever moves bytes says so through [`Progress`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

/// When a connection last moved: a handshake flight or a response was sent, or 16 KiB of a body.
/// What a peer sends is none, since a slow sender always sends something.
#[derive(Debug, Clone)]
pub struct Progress {
    epoch: Instant,
    last_ms: Arc<AtomicU64>,
}

impl Progress {
    fn new(epoch: Instant, now: Instant) -> Self {
        let progress = Self {
            epoch,
            last_ms: Arc::default(),
        };
        progress.made_at(now);
        progress
    }

    /// Something moved.
    pub fn made(&self) {
        self.made_at(Instant::now());
    }

    fn made_at(&self, now: Instant) {
        self.last_ms.store(self.since_ms(now), Ordering::Relaxed);
    }

    /// For how long nothing moved.
    fn idle(&self, now: Instant) -> Duration {
        let last = self.last_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.since_ms(now).saturating_sub(last))
    }

    fn since_ms(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.epoch);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The places of one listener.
#[derive(Clone)]
pub struct Seats {
    epoch: Instant,
    total_max: usize,
    per_peer_max: usize,
    stale_after: Option<Duration>,
    table: Arc<Mutex<Table>>,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Open>,
    per_peer: HashMap<IpAddr, usize>,
}

struct Open {
    peer: IpAddr,
    progress: Progress,
    /// None until the connection's task exists.
    task: Option<AbortHandle>,
}

impl Table {
    fn leave(&mut self, id: u64) -> Option<Open> {
        let open = self.open.remove(&id)?;
        if let Some(count) = self.per_peer.get_mut(&open.peer) {
            *count -= 1;
            if *count == 0 {
                self.per_peer.remove(&open.peer);
            }
        }
        Some(open)
    }

    /// Ends the connection that stood still for longest, of one peer or of all. Whether there was
    /// one that stood still for `stale_after`.
    fn evict(&mut self, now: Instant, of: Option<IpAddr>, stale_after: Duration) -> bool {
        let stalest = self
            .open
            .iter()
            .filter(|(_, open)| open.task.is_some() && of.is_none_or(|peer| open.peer == peer))
            .map(|(id, open)| (open.progress.idle(now), *id))
            .max();
        let Some((_, id)) = stalest.filter(|(idle, _)| *idle >= stale_after) else {
            return false;
        };
        if let Some(task) = self.leave(id).and_then(|open| open.task) {
            task.abort();
        }
        true
    }
}

/// A newcomer has its place, and whether somebody else lost it.
pub struct Entered {
    /// The place; free again when dropped.
    pub seat: Seat,
    /// A connection that stood still was ended for it.
    pub evicted: bool,
}

impl Seats {
    /// Places for `total_max` connections, `per_peer_max` of one address. A connection that stands
    /// still for `stale_after` gives way; never without it.
    pub fn new(total_max: usize, per_peer_max: usize, stale_after: Option<Duration>) -> Self {
        Self {
            epoch: Instant::now(),
            total_max,
            per_peer_max,
            stale_after,
            table: Arc::default(),
        }
    }

    /// A place for a connection of `peer`, or none.
    pub fn enter(&self, peer: IpAddr) -> Option<Entered> {
        self.enter_at(Instant::now(), peer)
    }

    fn enter_at(&self, now: Instant, peer: IpAddr) -> Option<Entered> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = table.per_peer.get(&peer).copied().unwrap_or(0);
        let evicted = if of_peer >= self.per_peer_max {
            // Its own connection, so that one machine never takes the place of another.
            Some(table.evict(now, Some(peer), self.stale_after?))
        } else if table.open.len() >= self.total_max {
            Some(table.evict(now, None, self.stale_after?))
        } else {
            None
        };
        if evicted == Some(false) {
            return None;
        }
        let id = table.next;
        table.next += 1;
        let progress = Progress::new(self.epoch, now);
        let open = Open {
            peer,
            progress: progress.clone(),
            task: None,
        };
        table.open.insert(id, open);
        *table.per_peer.entry(peer).or_insert(0) += 1;
        Some(Entered {
            seat: Seat {
                id,
                progress,
                table: self.table.clone(),
            },
            evicted: evicted == Some(true),
        })
    }

    /// Names the task that is ended when the connection has to give way.
    pub fn seated(&self, id: u64, task: AbortHandle) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        // A connection that has ended already has no place any more.
        if let Some(open) = table.open.get_mut(&id) {
            open.task = Some(task);
        }
    }
}

/// One connection's place.
pub struct Seat {
    /// Its number.
    pub id: u64,
    /// Where the connection tells that it moves.
    pub progress: Progress,
    table: Arc<Mutex<Table>>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.leave(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE: Duration = Duration::from_secs(2);

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    /// A seat with a task that waits forever, taken `ms` after the start.
    fn sit(
        seats: &Seats,
        ms: u64,
        peer: IpAddr,
    ) -> Option<(Seat, tokio::task::JoinHandle<()>, bool)> {
        let entered = seats.enter_at(at(seats, ms), peer)?;
        let task = tokio::spawn(std::future::pending());
        seats.seated(entered.seat.id, task.abort_handle());
        Some((entered.seat, task, entered.evicted))
    }

    fn at(seats: &Seats, ms: u64) -> Instant {
        seats.epoch + Duration::from_millis(ms)
    }

    #[tokio::test]
    async fn a_newcomer_takes_the_place_of_the_stalest() {
        let seats = Seats::new(2, 2, Some(STALE));
        let (_first, first, _) = sit(&seats, 0, address(1)).expect("a place");
        let (second, _task, evicted) = sit(&seats, 1_000, address(2)).expect("a place");
        assert!(!evicted);
        assert!(
            sit(&seats, 1_999, address(3)).is_none(),
            "nobody stands still yet"
        );
        let (_third, third, evicted) = sit(&seats, 2_000, address(3)).expect("a place");
        assert!(evicted);
        assert!(first.await.expect_err("ended").is_cancelled());
        // The second one moves, so the third is next to go, and only once it stands still.
        second.progress.made_at(at(&seats, 3_999));
        assert!(sit(&seats, 3_999, address(4)).is_none());
        let (_fourth, _task, evicted) = sit(&seats, 4_000, address(4)).expect("a place");
        assert!(evicted);
        assert!(third.await.expect_err("ended").is_cancelled());
    }

    #[tokio::test]
    async fn a_peer_evicts_only_itself() {
        let seats = Seats::new(8, 1, Some(STALE));
        let (_other, other, _) = sit(&seats, 0, address(1)).expect("a place");
        let (_own, own, _) = sit(&seats, 1_000, address(2)).expect("a place");
        assert!(sit(&seats, 2_500, address(2)).is_none());
        let (_again, _task, evicted) = sit(&seats, 3_000, address(2)).expect("a place");
        assert!(evicted);
        assert!(own.await.expect_err("ended").is_cancelled());
        assert!(!other.is_finished());
    }

    #[tokio::test]
    async fn nobody_is_evicted_where_that_is_off() {
        let seats = Seats::new(1, 1, None);
        let (seat, _task, _) = sit(&seats, 0, address(1)).expect("a place");
        assert!(sit(&seats, 3_600_000, address(2)).is_none());
        drop(seat);
        let (seat, _task, evicted) = sit(&seats, 3_600_000, address(2)).expect("a place");
        assert!(!evicted);
        drop(seat);
        let table = seats.table.lock().expect("lock");
        assert_eq!((table.open.len(), table.per_peer.len()), (0, 0));
    }
}
