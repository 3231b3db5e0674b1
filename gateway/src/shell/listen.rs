//! Accepting TCP connections within bounds, and streams whose peer must keep reading.
//!
//! Decides who is turned away before any byte is read: totals, per-peer limits, handshake time and
//! write pace; who gives way is decided in [`crate::shell::seats`]. Knows neither TLS versions nor
//! HTTP.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::metrics::{CONNECTIONS, CONNECTIONS_EVICTED, CONNECTIONS_REFUSED, Metrics, TLS_REFUSED};
use crate::shell::seats::{Progress, Seats};
use crate::shell::tls::{self, Offer};
use crate::telemetry;

/// Time for open connections to finish when the daemon stops.
const DRAIN: Duration = Duration::from_secs(5);
/// A peer that takes less than this many bytes in [`Bounds::pace`] while we wait for it is dropped.
const PACE_MIN_BYTES: usize = 16 * 1024;
/// Connections that the kernel keeps for us before we accept them: a rack that starts at once.
const BACKLOG: u32 = 1_024;
/// Pause after a failed `accept` (out of file descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bounds of one listener, each with its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Open connections in total: bounds memory and file descriptors.
    pub connections_max: usize,
    /// Open connections of one address: one machine must not starve the rack.
    pub per_peer_max: usize,
    /// Time for the TLS handshake.
    pub handshake: Duration,
    /// Time for a request head, also between two requests of one connection.
    pub idle: Duration,
    /// Window in which a slow reader must take 16 KiB.
    pub pace: Duration,
    /// Once the bounds are reached, a connection that moved nothing for this long gives way to a
    /// newcomer. None where a peer rightly computes for longer.
    pub stale_after: Option<Duration>,
    /// Bytes that the kernel holds for a peer that does not take them; its default grows to 4 MiB
    /// for each connection.
    pub send_buffer_bytes: u32,
    /// Life of a connection, if bounded.
    pub lifetime: Option<Duration>,
}

/// Boot artefacts: a rack of machines at once; firmware opens one or two connections, is slow
/// under emulation (seconds for a handshake), and an 80 MiB image takes minutes on a bad link.
pub const BOOT: Bounds = Bounds {
    connections_max: 1_024,
    per_peer_max: 16,
    handshake: Duration::from_secs(30),
    idle: Duration::from_secs(60),
    pace: Duration::from_secs(30),
    stale_after: Some(Duration::from_secs(1)),
    // Half the processor time per byte of 512 KiB, since what is sent is still in the core's cache when
    // the card takes it (docs/PERFORMANCE.md, HTTPS). The kernel doubles it: enough for 1 Gb/s at
    // 2 ms, and 10 MB/s to a relayed site 20 ms away.
    send_buffer_bytes: 128 * 1024,
    lifetime: None,
};
/// Attest sessions: 60 s each from the hello (docs/PROTOCOL.md section 2), which is the core's to end,
/// with its record; handshake and hello come before. A peer needs one, and two while an old one
/// dies. Peers behind one relay still have their own addresses.
pub const ATTEST: Bounds = Bounds {
    connections_max: 256,
    per_peer_max: 4,
    handshake: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    pace: Duration::from_secs(30),
    // A node's TPM signs between hello and evidence; some take half a minute.
    stale_after: None,
    send_buffer_bytes: 64 * 1024,
    lifetime: Some(Duration::from_secs(100)),
};
/// Administrators: people, a page and scripts from few addresses.
pub const ADMIN: Bounds = Bounds {
    connections_max: 128,
    per_peer_max: 32,
    handshake: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    pace: Duration::from_secs(30),
    stale_after: Some(Duration::from_secs(10)),
    send_buffer_bytes: 256 * 1024,
    lifetime: None,
};
/// Health and metrics: one scraper or two.
pub const HEALTH: Bounds = Bounds {
    connections_max: 32,
    per_peer_max: 16,
    handshake: Duration::from_secs(10),
    idle: Duration::from_secs(30),
    pace: Duration::from_secs(10),
    stale_after: Some(Duration::from_secs(10)),
    send_buffer_bytes: 64 * 1024,
    lifetime: Some(Duration::from_secs(300)),
};

/// A listener could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {listener}")]
pub struct BindError {
    /// Which listener.
    pub listener: &'static str,
    /// Where.
    pub address: SocketAddr,
    /// Why: port in use, address not on this machine, missing privilege.
    #[source]
    pub source: io::Error,
}

/// A bound TCP port, not yet accepting.
pub struct Listener {
    name: &'static str,
    tcp: TcpListener,
    bounds: Bounds,
    metrics: Arc<Metrics>,
}

impl Listener {
    /// Binds the port; the kernel queues connections until [`Listener::run`].
    ///
    /// # Errors
    /// [`BindError`] with the address and the kernel's answer.
    pub async fn bind(
        name: &'static str,
        address: SocketAddr,
        bounds: Bounds,
        metrics: Arc<Metrics>,
    ) -> Result<Self, BindError> {
        let open = || {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            // A restart must not wait for the last connections' TIME_WAIT.
            socket.set_reuseaddr(true)?;
            // Accepted connections inherit it.
            socket.set_send_buffer_size(bounds.send_buffer_bytes)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        };
        let tcp = open().map_err(|source| BindError {
            listener: name,
            address,
            source,
        })?;
        Ok(Self {
            name,
            tcp,
            bounds,
            metrics,
        })
    }

    /// Where it listens: the real port when 0 was asked for.
    ///
    /// # Errors
    /// The kernel's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Accepts until `cancel`; then lets open connections finish for five seconds.
    ///
    /// `serve` handles one connection; its token says when to finish gracefully.
    pub async fn run<F, Fut>(self, cancel: CancellationToken, serve: F)
    where
        F: Fn(Paced<TcpStream>, SocketAddr, CancellationToken) -> Fut,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let seats = Seats::new(
            self.bounds.connections_max,
            self.bounds.per_peer_max,
            self.bounds.stale_after,
        );
        let mut tasks = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = cancel.cancelled() => break,
                Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
                accepted = self.tcp.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(pair) => pair,
                Err(error) => {
                    tracing::warn!(listener = self.name, %error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(entered) = seats.enter(peer.ip()) else {
                self.metrics.count(CONNECTIONS_REFUSED, self.name);
                tracing::debug!(listener = self.name, %peer, "connection bound reached");
                continue;
            };
            if entered.evicted {
                self.metrics.count(CONNECTIONS_EVICTED, self.name);
                tracing::debug!(listener = self.name, %peer, "took the place of a stale connection");
            }
            let seat = entered.seat;
            self.metrics.count(CONNECTIONS, self.name);
            // Small replies must not wait for an ACK of the firmware.
            let _ = stream.set_nodelay(true);
            let stream = Paced::new(stream, self.bounds.pace).telling(seat.progress.clone());
            let work = serve(stream, peer, cancel.child_token());
            let (id, lifetime) = (seat.id, self.bounds.lifetime);
            let task = tasks.spawn(async move {
                let _seat = seat;
                match lifetime {
                    Some(limit) => {
                        let _ = tokio::time::timeout(limit, work).await;
                    }
                    None => work.await,
                }
            });
            seats.seated(id, task);
        }
        let drained = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN, drained).await.is_err() {
            tasks.shutdown().await;
        }
    }
}

/// A TLS connection of a listener, or nothing when the handshake failed (logged and counted).
pub async fn handshake(
    listener: &'static str,
    config: Arc<ServerConfig>,
    limit: Duration,
    stream: Paced<TcpStream>,
    peer: SocketAddr,
    metrics: &Metrics,
) -> Option<TlsStream<Paced<TcpStream>>> {
    // What the client offered, for the refusal; kept outside since the handshake may run into its
    // time limit.
    let mut offer = None;
    let work = async {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await;
        match hello {
            Ok(start) => {
                offer = Some(Offer::of(&start.client_hello()));
                start.into_stream(config).await.map_err(Some)
            }
            // A port scan or a health probe: nothing was said, so there is nothing to explain.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(None),
            Err(error) => Err(Some(error)),
        }
    };
    let outcome = match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Some(io::ErrorKind::TimedOut.into())),
    };
    match outcome {
        Ok(stream) => Some(stream),
        Err(None) => {
            metrics.count(TLS_REFUSED, "tls.silent");
            None
        }
        Err(Some(error)) => {
            let reason = tls::diagnose(listener, &error, offer.as_ref());
            metrics.count(TLS_REFUSED, reason.code.clone());
            telemetry::refused(listener, peer, &reason);
            None
        }
    }
}

/// A stream whose writes fail with `TimedOut` when the peer stops reading.
///
/// While a write waits, the peer must take 16 KiB in each window; a peer that does not is holding
/// a connection and our memory for nothing.
pub struct Paced<S> {
    inner: S,
    window: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    moved: usize,
    progress: Option<Progress>,
}

impl<S> Paced<S> {
    /// Wraps a stream.
    pub fn new(inner: S, window: Duration) -> Self {
        Self {
            inner,
            window,
            deadline: None,
            moved: 0,
            progress: None,
        }
    }

    /// Tells `progress` whenever enough was taken.
    #[must_use]
    pub fn telling(mut self, progress: Progress) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Accounts for one write attempt.
    fn pace(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match wrote {
            Poll::Ready(Ok(bytes)) => {
                self.moved = self.moved.saturating_add(bytes);
                if self.moved >= PACE_MIN_BYTES {
                    self.rest();
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let window = self.window;
                let deadline = self.deadline.get_or_insert_with(|| {
                    Box::pin(tokio::time::sleep_until(Instant::now() + window))
                });
                match deadline.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn rest(&mut self) {
        // A flush of nothing is no progress: HTTP flushes after each byte it reads.
        if self.moved > 0
            && let Some(progress) = &self.progress
        {
            progress.made();
        }
        self.moved = 0;
        self.deadline = None;
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.pace(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.pace(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.rest();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn small(per_peer_max: usize) -> Bounds {
        Bounds {
            connections_max: 8,
            per_peer_max,
            ..BOOT
        }
    }

    async fn echo(mut stream: Paced<TcpStream>, _: SocketAddr, _: CancellationToken) {
        let mut byte = [0; 1];
        while matches!(stream.read(&mut byte).await, Ok(1)) {
            let _ = stream.write_all(&byte).await;
        }
    }

    #[tokio::test]
    async fn rejects_one_connection_too_many_of_a_peer_and_lets_it_back() {
        let metrics = Arc::new(Metrics::default());
        let address = "127.0.0.1:0".parse().expect("address");
        let listener = Listener::bind("test", address, small(2), metrics.clone())
            .await
            .expect("bound");
        let address = listener.address().expect("address");
        let cancel = CancellationToken::new();
        let task = tokio::spawn(listener.run(cancel.clone(), echo));
        let mut byte = [0; 1];
        let mut first = TcpStream::connect(address).await.expect("connected");
        let mut second = TcpStream::connect(address).await.expect("connected");
        for stream in [&mut first, &mut second] {
            stream.write_all(b"x").await.expect("written");
            assert_eq!(stream.read(&mut byte).await.expect("read"), 1);
        }
        let mut third = TcpStream::connect(address).await.expect("connected");
        let _ = third.write_all(b"x").await;
        assert!(
            !matches!(third.read(&mut byte).await, Ok(1)),
            "the third connection must be closed"
        );
        assert_eq!(metrics.get(CONNECTIONS_REFUSED, "test"), 1);
        drop(first);
        // The seat is free again once the server has seen the end.
        for _ in 0..100 {
            let mut again = TcpStream::connect(address).await.expect("connected");
            let _ = again.write_all(b"x").await;
            if matches!(again.read(&mut byte).await, Ok(1)) {
                cancel.cancel();
                drop((again, second));
                task.await.expect("joined");
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the seat was never freed");
    }

    #[tokio::test]
    async fn rejects_a_port_in_use_with_its_address() {
        let metrics = Arc::new(Metrics::default());
        let address = "127.0.0.1:0".parse().expect("address");
        let first = Listener::bind("test", address, BOOT, metrics.clone())
            .await
            .expect("bound");
        let taken = first.address().expect("address");
        let Err(error) = Listener::bind("admin", taken, BOOT, metrics).await else {
            panic!("bound twice");
        };
        assert_eq!(
            error.to_string(),
            format!("cannot listen on {taken} for admin")
        );
        assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn rejects_a_reader_that_stops() {
        let (ours, _theirs) = tokio::io::duplex(1024);
        let mut paced = Paced::new(ours, Duration::from_millis(100));
        let begun = Instant::now();
        let error = paced.write_all(&[0; 4096]).await.expect_err("must stall");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= Duration::from_millis(100));
    }

    #[tokio::test]
    async fn a_steady_slow_reader_is_served() {
        let (ours, mut theirs) = tokio::io::duplex(16 * 1024);
        let mut paced = Paced::new(ours, Duration::from_secs(2));
        let reader = tokio::spawn(async move {
            let mut buf = vec![0; 16 * 1024];
            let mut total = 0;
            while total < 160 * 1024 {
                tokio::time::sleep(Duration::from_millis(300)).await;
                theirs.read_exact(&mut buf).await.expect("read");
                total += buf.len();
            }
        });
        paced.write_all(&vec![0; 160 * 1024]).await.expect("served");
        reader.await.expect("joined");
    }
}
