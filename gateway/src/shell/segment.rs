//! The segment beside UDP 67: ARP probes and who answers them, our own DHCPDISCOVER, and the DHCP
//! replies of other servers.
//!
//! Moves frames; `netstack` says what they mean. Reading is blocking, on two threads that end with
//! the daemon. What nobody asked about stays here: ARP packets count only for addresses under probe,
//! and foreign DHCP replies are handed on at a bounded rate.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gateway_core::identity::MacAddr;
use hw::nic::{FrameSocket, NicError, RawUdp};
use netstack::arp::{self, Arp};
use netstack::dhcp::{CLIENT_PORT, SERVER_PORT};
use tokio_util::sync::CancellationToken;

use crate::handle::Handle;
use crate::metrics::{DHCP, Metrics};
use crate::telemetry;

/// An ARP packet still counts this long after the probe: the address may be offered and not taken.
const LISTEN: Duration = Duration::from_secs(2);
/// How long a thread waits before it looks whether the daemon ends.
const POLL: Duration = Duration::from_millis(300);
/// Pause after a failed receive, so that an interface that is down does not spin.
const RECEIVE_PAUSE: Duration = Duration::from_secs(1);
/// Foreign replies handed on per second: enough to name every server, too few to be work.
const REPLIES_PER_SEC: u32 = 50;

/// Addresses under probe, and until when.
type Probed = Arc<Mutex<HashMap<Ipv4Addr, Instant>>>;

/// The listening side.
pub struct Segment {
    arp: Arc<FrameSocket>,
    replies: FrameSocket,
    probed: Probed,
    iface: String,
}

/// The asking side.
#[derive(Clone)]
pub struct SegmentSender {
    arp: Arc<FrameSocket>,
    raw: Arc<RawUdp>,
    probed: Probed,
    second: Duration,
    metrics: Arc<Metrics>,
}

impl Segment {
    /// Opens the sockets on `iface`.
    ///
    /// # Errors
    /// [`NicError`]; needs `CAP_NET_RAW`.
    pub fn open(iface: &str) -> Result<Self, NicError> {
        Ok(Self {
            arp: Arc::new(FrameSocket::arp(iface)?),
            replies: FrameSocket::dhcp_replies(iface)?,
            probed: Probed::default(),
            iface: iface.to_owned(),
        })
    }

    /// The asking side; `raw` sends as UDP. An answer to a probe is waited for during `wait`; half way
    /// the address is probed again, for a host that was asleep.
    pub fn sender(&self, raw: Arc<RawUdp>, wait: Duration, metrics: Arc<Metrics>) -> SegmentSender {
        SegmentSender {
            arp: Arc::clone(&self.arp),
            raw,
            probed: Arc::clone(&self.probed),
            second: wait / 2,
            metrics,
        }
    }

    /// Listens until cancelled.
    pub async fn run(self, handle: Handle, cancel: CancellationToken) {
        let Self {
            arp,
            replies,
            probed,
            iface,
        } = self;
        let (arp_iface, arp_handle, arp_cancel) = (iface.clone(), handle.clone(), cancel.clone());
        let arp = tokio::task::spawn_blocking(move || {
            let own = netstack::MacAddr(arp.mac());
            listen(&arp, &arp_iface, &arp_cancel, |frame| {
                let claimed = Arp::parse(&frame).and_then(|arp| Some((arp, arp.claims(own)?)));
                if let Some((arp, addr)) = claimed
                    && is_probed(&probed, addr, Instant::now())
                {
                    // A full queue loses it; the client finds out by itself then.
                    arp_handle.arp_seen(addr, MacAddr(arp.sender_mac.0));
                }
            });
        });
        let replies = tokio::task::spawn_blocking(move || {
            let mut budget = Budget::new(Instant::now());
            listen(&replies, &iface, &cancel, |frame| {
                if budget.take(Instant::now()) {
                    handle.dhcp_heard(frame);
                }
            });
        });
        // Both end with the daemon. One that ends before it has panicked, and ends the daemon.
        tokio::select! {
            _ = arp => {}
            _ = replies => {}
        }
    }
}

fn listen(
    socket: &FrameSocket,
    iface: &str,
    cancel: &CancellationToken,
    mut take: impl FnMut(Vec<u8>),
) {
    while !cancel.is_cancelled() {
        match socket.recv(POLL) {
            Ok(Some(frame)) => take(frame),
            Ok(None) => {}
            Err(error) => {
                let error = telemetry::chain(&error);
                tracing::warn!(error, iface, "listening on the segment failed");
                std::thread::sleep(RECEIVE_PAUSE);
            }
        }
    }
}

fn is_probed(probed: &Probed, addr: Ipv4Addr, now: Instant) -> bool {
    let probed = probed.lock().unwrap_or_else(PoisonError::into_inner);
    probed.get(&addr).is_some_and(|until| now < *until)
}

/// So many a second, whole seconds at a time.
struct Budget {
    since: Instant,
    left: u32,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            left: REPLIES_PER_SEC,
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            *self = Self::new(now);
        }
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        some
    }
}

impl SegmentSender {
    /// Asks twice whether somebody uses an address. The core bounds how many are asked at once.
    pub fn arp_probe(&self, addr: Ipv4Addr) {
        let now = Instant::now();
        {
            let mut probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
            probed.retain(|_, until| now < *until);
            probed.insert(addr, now + LISTEN);
        }
        self.ask(addr);
        let again = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(again.second).await;
            again.ask(addr);
        });
    }

    fn ask(&self, addr: Ipv4Addr) {
        let own = netstack::MacAddr(self.arp.mac());
        let sent = self.arp.send(&arp::probe(own, addr));
        self.told("arp", sent);
    }

    /// Broadcasts a DHCPDISCOVER as `mac`.
    pub fn dhcp_probe(&self, mac: netstack::MacAddr, payload: &[u8]) {
        let from = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, CLIENT_PORT);
        let to = SocketAddrV4::new(Ipv4Addr::BROADCAST, SERVER_PORT);
        let sent = self.raw.broadcast_as(mac.0, from, to, payload);
        self.told("dhcp", sent);
    }

    fn told(&self, probe: &'static str, sent: Result<(), NicError>) {
        match sent {
            Ok(()) => self.metrics.count(DHCP, "probe_sent"),
            Err(error) => {
                let error = telemetry::chain(&error);
                tracing::warn!(error, probe, "probe not sent");
                self.metrics.count(DHCP, "probe_unsent");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_strangers_are_bounded_per_second() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        let passed = |budget: &mut Budget, at| (0..1_000).filter(|_| budget.take(at)).count();
        assert_eq!(passed(&mut budget, start), 50);
        assert_eq!(passed(&mut budget, start + Duration::from_millis(999)), 0);
        assert_eq!(passed(&mut budget, start + Duration::from_secs(1)), 50);
    }

    #[test]
    fn only_what_was_asked_lately_counts() {
        let probed = Probed::default();
        let (now, addr) = (Instant::now(), Ipv4Addr::new(10, 0, 0, 7));
        assert!(!is_probed(&probed, addr, now));
        probed.lock().unwrap().insert(addr, now + LISTEN);
        assert!(is_probed(&probed, addr, now));
        assert!(!is_probed(&probed, addr, now + LISTEN));
    }
}
