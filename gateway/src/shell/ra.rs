//! ICMPv6 <-> `netstack::ra`: hears Router Solicitations, sends Router Advertisements.
//!
//! Beside the driver: nothing here changes a machine's state or rests on a record.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hw::nic::{Icmp6Socket, NicError};
use netstack::ra::{Advertisement, Advertiser, Config};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Metrics, RA};

/// Longest message read: a solicitation has one or two options.
const MESSAGE_LEN_MAX: usize = 1_500;
/// Pause after a failed receive, so that a broken socket does not spin.
const RECEIVE_PAUSE: Duration = Duration::from_millis(50);

/// The socket of one interface with what it announces.
pub struct RaSocket {
    socket: AsyncFd<Icmp6Socket>,
    config: Config,
    iface: String,
}

impl RaSocket {
    /// Opens the socket on `iface`.
    ///
    /// # Errors
    /// [`NicError`].
    pub fn open(iface: &str, config: Config) -> Result<Self, NicError> {
        let os = |source| NicError::Os {
            doing: "watching ICMPv6",
            ifname: iface.to_owned(),
            source,
        };
        let socket = Icmp6Socket::open(iface)?;
        #[expect(
            deprecated,
            reason = "unsound for a type that could close or change its descriptor; Icmp6Socket owns \
                      one OwnedFd for life, and the successor is an unsafe fn, which this ring forbids"
        )]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE).map_err(os)?;
        Ok(Self {
            socket,
            config,
            iface: iface.to_owned(),
        })
    }

    /// Advertises until cancelled.
    pub async fn run(self, metrics: Arc<Metrics>, cancel: CancellationToken) {
        let start = Instant::now();
        let now_ms = || start.elapsed().as_millis() as u64;
        let mut seed = [0; 8];
        crate::random::fill(&mut seed);
        let mut advertiser = Advertiser::new(&self.config, 0, u64::from_le_bytes(seed));
        let mut buffer = vec![0; MESSAGE_LEN_MAX];
        loop {
            let due = start + Duration::from_millis(advertiser.poll_timeout());
            let send = tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep_until(due.into()) => advertiser.handle_timeout(now_ms()),
                ready = self.socket.readable() => {
                    let received = match ready {
                        Ok(mut ready) => ready.try_io(|s| s.get_ref().receive(&mut buffer)),
                        Err(error) => Ok(Err(error)),
                    };
                    match received {
                        Err(_would_block) => None,
                        Ok(Ok(received)) => {
                            let message = &buffer[..received.len];
                            let (source, hops) = (received.source, received.hop_limit);
                            match advertiser.handle(now_ms(), message, source, hops) {
                                Ok(send) => {
                                    metrics.count(RA, "solicited");
                                    send
                                }
                                Err(refused) => {
                                    let told = refused.explain();
                                    tracing::debug!(%source, reason = %told, "router solicitation");
                                    metrics.count(RA, refused.code());
                                    None
                                }
                            }
                        }
                        Ok(Err(error)) => {
                            self.failed(&error).await;
                            None
                        }
                    }
                }
            };
            if let Some(send) = send {
                self.send(&send, &metrics);
            }
        }
    }

    async fn failed(&self, error: &io::Error) {
        tracing::warn!(%error, iface = self.iface, "icmpv6 receive failed");
        tokio::time::sleep(RECEIVE_PAUSE).await;
    }

    fn send(&self, send: &Advertisement, metrics: &Metrics) {
        match self.socket.get_ref().send(&send.message, send.to) {
            Ok(()) => metrics.count(RA, "advertised"),
            Err(error) => {
                // The link may be down or still look for a double of its address; the next
                // advertisement is not far.
                let error = crate::telemetry::chain(&error);
                tracing::debug!(error, iface = self.iface, to = %send.to, "router advertisement not sent");
                metrics.count(RA, "unsent");
            }
        }
    }
}
