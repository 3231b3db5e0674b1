//! TFTP listener: one task and one port of its own per transfer, within bounds.
//!
//! Packets, options and retransmission are `netstack::tftp`'s; what a name means is
//! [`FileSource`]'s. This file owns sockets and time, and decides only who is turned away.
//!
//! Reflection: to an address that never answered goes one packet per timeout, the OACK or block 1;
//! a window is sent only after an ACK came back.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use netstack::tftp::{
    ErrorCode, ErrorReply, Limits, Mode, Outcome, Packet, Request, Stats, Transfer, netascii,
};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Longest datagram read: requests and acknowledgements are far shorter.
const DATAGRAM_LEN_MAX: usize = 2048;
/// Pause after a failed receive, so that a broken socket does not spin.
const RECEIVE_PAUSE: Duration = Duration::from_millis(50);
/// How long [`FileSource::open`] may take. Firmware asks again after about as long.
const OPEN_MAX: Duration = Duration::from_secs(10);

/// Where file contents come from. One value serves all transfers.
pub trait FileSource: Send + Sync + 'static {
    /// The contents for a name, or what the client is told instead. `name` is what the client
    /// sent: not a path, not checked.
    fn open(
        &self,
        peer: SocketAddr,
        name: &str,
    ) -> impl Future<Output = Result<Bytes, ErrorReply>> + Send;

    /// A transfer is over. Must not block.
    fn finished(&self, _report: &Report) {}

    /// A datagram or request was turned away before any file was asked for. Must not block.
    fn refused(&self, _peer: SocketAddr, _code: &'static str) {}
}

/// Bounds of the listener, each with the reason it exists.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Transfers at once: each holds a socket and a task. A rack boots within this.
    pub transfers_max: usize,
    /// Transfers at once from one address: one machine must not starve the rack. UEFI has two
    /// open while it ends its size probe; a relay that translates addresses needs more.
    pub per_peer_max: usize,
    /// Largest file in netascii mode, which is copied per transfer.
    pub netascii_len_max: usize,
    /// What the transfer core needs to know.
    pub transfer: Limits,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            transfers_max: 256,
            per_peer_max: 8,
            netascii_len_max: 1 << 20,
            transfer: Limits::default(),
        }
    }
}

/// How a transfer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The protocol's own end.
    Protocol(Outcome),
    /// The client was told why it gets nothing.
    Refused(ErrorReply),
    /// The client's port is closed (ICMP).
    PeerGone,
    /// The same client port asked for something else.
    Superseded,
    /// The daemon stops.
    Stopped,
    /// The socket failed.
    Socket(io::ErrorKind),
}

impl End {
    /// Stable code, also the metric label.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Protocol(Outcome::Complete) => "tftp.complete",
            Self::Protocol(Outcome::Probed) => "tftp.probed",
            Self::Protocol(Outcome::ClientError(_)) => "tftp.client_error",
            Self::Protocol(Outcome::TimedOut) => "tftp.timed_out",
            Self::Protocol(Outcome::TooSlow) => "tftp.too_slow",
            Self::Refused(_) => "tftp.refused",
            Self::PeerGone => "tftp.peer_gone",
            Self::Superseded => "tftp.superseded",
            Self::Stopped => "tftp.stopped",
            Self::Socket(_) => "tftp.socket",
        }
    }
}

/// One finished transfer.
#[derive(Debug, Clone)]
pub struct Report {
    /// The client.
    pub peer: SocketAddr,
    /// The name it asked for.
    pub name: String,
    /// How it ended.
    pub end: End,
    /// Length of the file in octets, once it was opened.
    pub file_len: Option<u64>,
    /// What the protocol cost.
    pub stats: Stats,
    /// Wall time.
    pub duration: Duration,
}

/// A transfer as the listener sees it.
struct Running {
    task: tokio::task::Id,
    request: Vec<u8>,
    superseded: CancellationToken,
}

/// The listener's own state, owned by its one task.
struct Listener<F> {
    socket: UdpSocket,
    source: Arc<F>,
    bounds: Bounds,
    stop: CancellationToken,
    running: HashMap<SocketAddr, Running>,
    tasks: JoinSet<Report>,
}

/// Serves until `stop`, then waits for the transfers to say good-bye.
///
/// # Errors
/// Only when the socket's own address cannot be read. A failed receive is logged and survived.
pub async fn serve<F: FileSource>(
    socket: UdpSocket,
    source: Arc<F>,
    bounds: Bounds,
    stop: CancellationToken,
) -> io::Result<()> {
    let local = socket.local_addr()?;
    tracing::info!(%local, "tftp listens");
    let (running, tasks) = (HashMap::new(), JoinSet::new());
    let mut listener = Listener {
        socket,
        source,
        bounds,
        stop,
        running,
        tasks,
    };
    let mut buffer = [0; DATAGRAM_LEN_MAX];
    loop {
        tokio::select! {
            () = listener.stop.cancelled() => break,
            Some(joined) = listener.tasks.join_next_with_id() => listener.finished(joined),
            received = listener.socket.recv_from(&mut buffer) => match received {
                Ok((len, peer)) => listener.datagram(local, peer, &buffer[..len]).await,
                Err(error) => {
                    tracing::warn!(%error, "tftp receive failed");
                    tokio::time::sleep(RECEIVE_PAUSE).await;
                }
            },
        }
    }
    while let Some(joined) = listener.tasks.join_next_with_id().await {
        listener.finished(joined);
    }
    Ok(())
}

impl<F: FileSource> Listener<F> {
    async fn datagram(&mut self, local: SocketAddr, peer: SocketAddr, datagram: &[u8]) {
        match Packet::parse(datagram) {
            Ok(Packet::ReadRequest(request)) => {
                self.read_request(local, peer, request, datagram).await;
            }
            Ok(Packet::WriteRequest(request)) => {
                let reply = ErrorReply::new(ErrorCode::AccessViolation, "files are only read here");
                tracing::warn!(%peer, name = %request.filename, "tftp write refused");
                self.refuse(peer, "tftp.write", Some(&reply)).await;
            }
            // Strays of an old transfer: an answer could only start an argument.
            Ok(
                Packet::Data { .. }
                | Packet::Ack { .. }
                | Packet::Error(_)
                | Packet::OptionAck { .. },
            ) => self.refuse(peer, "tftp.stray", None).await,
            Err(error) => {
                self.refuse(peer, error.code(), error.reply().as_ref())
                    .await
            }
        }
    }

    async fn refuse(&self, peer: SocketAddr, code: &'static str, reply: Option<&ErrorReply>) {
        tracing::debug!(%peer, code, "tftp datagram refused");
        self.source.refused(peer, code);
        if let Some(reply) = reply {
            // A client that misses this asks again.
            let _ = self.socket.send_to(&reply.encode(), peer).await;
        }
    }

    async fn read_request(
        &mut self,
        local: SocketAddr,
        peer: SocketAddr,
        request: Request,
        datagram: &[u8],
    ) {
        if let Some(running) = self.running.get(&peer) {
            // A repeated request is answered by the retransmissions of the running transfer.
            if running.request == datagram {
                return;
            }
            running.superseded.cancel();
            self.running.remove(&peer);
        }
        let from_peer = self
            .running
            .keys()
            .filter(|other| other.ip() == peer.ip())
            .count();
        let full = self.tasks.len() >= self.bounds.transfers_max;
        if full || from_peer >= self.bounds.per_peer_max {
            let code = if full {
                "tftp.transfers_max"
            } else {
                "tftp.per_peer_max"
            };
            let reply = ErrorReply::new(ErrorCode::NotDefined, "too many transfers, try again");
            self.refuse(peer, code, Some(&reply)).await;
            return;
        }
        let superseded = CancellationToken::new();
        let mut work = Work {
            peer,
            request,
            bounds: self.bounds,
            stop: self.stop.clone(),
            started: Instant::now(),
            file_len: None,
            stats: Stats::default(),
        };
        let (source, ended) = (self.source.clone(), superseded.clone());
        let task = self.tasks.spawn(async move {
            let end = tokio::select! {
                end = work.run(local, &*source) => end,
                () = ended.cancelled() => End::Superseded,
            };
            work.report(end)
        });
        let running = Running {
            task: task.id(),
            request: datagram.to_vec(),
            superseded,
        };
        self.running.insert(peer, running);
    }

    fn finished(&mut self, joined: Result<(tokio::task::Id, Report), tokio::task::JoinError>) {
        let id = match &joined {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        self.running.retain(|_, running| running.task != id);
        match joined {
            Ok((_, report)) => {
                log(&report);
                self.source.finished(&report);
            }
            Err(error) => tracing::error!(%error, "tftp transfer task failed"),
        }
    }
}

fn log(report: &Report) {
    let Report {
        peer,
        name,
        end,
        file_len,
        stats,
        duration,
    } = report;
    let (code, ms) = (end.code(), duration.as_millis() as u64);
    let (sent, again) = (stats.blocks_sent, stats.blocks_again);
    match end {
        End::Protocol(Outcome::Complete | Outcome::Probed) | End::Stopped | End::Superseded => {
            tracing::info!(%peer, name, code, file_len, sent, again, ms, "tftp transfer");
        }
        End::Refused(reply) => {
            tracing::warn!(%peer, name, code, message = reply.message, "tftp transfer");
        }
        End::Protocol(_) | End::PeerGone | End::Socket(_) => {
            let acked = stats.acked_len;
            // Block numbers that rolled over are the usual suspect: some clients cannot follow.
            let rolled_over = stats.rolled_over;
            tracing::warn!(%peer, name, code, ?end, file_len, acked, sent, again, ms, rolled_over, "tftp transfer");
        }
    }
}

/// One transfer.
struct Work {
    peer: SocketAddr,
    request: Request,
    bounds: Bounds,
    stop: CancellationToken,
    started: Instant,
    file_len: Option<u64>,
    stats: Stats,
}

impl Work {
    fn report(self, end: End) -> Report {
        Report {
            peer: self.peer,
            name: self.request.filename,
            end,
            file_len: self.file_len,
            stats: self.stats,
            duration: self.started.elapsed(),
        }
    }

    async fn run<F: FileSource>(&mut self, local: SocketAddr, source: &F) -> End {
        let socket = match self.socket(local).await {
            Ok(socket) => socket,
            Err(error) => return End::Socket(error.kind()),
        };
        let open = source.open(self.peer, &self.request.filename);
        let opened = tokio::select! {
            () = self.stop.cancelled() => return good_bye(&socket).await,
            opened = tokio::time::timeout(OPEN_MAX, open) => opened.unwrap_or_else(|_| {
                Err(ErrorReply::new(ErrorCode::NotDefined, "the boot server is busy, try again"))
            }),
        };
        let file = match opened.and_then(|file| self.in_mode(file)) {
            Ok(file) => file,
            Err(reply) => {
                let _ = socket.send(&reply.encode()).await;
                return End::Refused(reply);
            }
        };
        self.file_len = Some(file.len() as u64);
        self.transfer(&socket, &file).await
    }

    /// A port of its own, which is the server's transfer id, and which takes packets of this peer only.
    async fn socket(&self, local: SocketAddr) -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(SocketAddr::new(local.ip(), 0)).await?;
        socket.connect(self.peer).await?;
        Ok(socket)
    }

    fn in_mode(&self, file: Bytes) -> Result<Bytes, ErrorReply> {
        match self.request.mode {
            Mode::Octet => Ok(file),
            Mode::Netascii if file.len() <= self.bounds.netascii_len_max => {
                Ok(netascii::encode(&file).into())
            }
            Mode::Netascii => Err(ErrorReply::new(
                ErrorCode::IllegalOperation,
                "ask for this file in octet mode",
            )),
        }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    async fn transfer(&mut self, socket: &UdpSocket, file: &[u8]) -> End {
        let mut transfer = Transfer::new(
            self.now_ms(),
            &self.request,
            file.len() as u64,
            self.bounds.transfer,
        );
        let mut out = Vec::with_capacity(1500);
        let mut buffer = [0; DATAGRAM_LEN_MAX];
        loop {
            while transfer.poll_transmit(self.now_ms(), file, &mut out) {
                match socket.send(&out).await {
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        return End::PeerGone;
                    }
                    // A full queue or a lost link is a lost packet: the transfer sends it again.
                    Ok(_) | Err(_) => {}
                }
            }
            self.stats = transfer.stats();
            if let Some(outcome) = transfer.outcome() {
                return End::Protocol(outcome.clone());
            }
            let due = transfer
                .poll_timeout()
                .map(|ms| self.started + Duration::from_millis(ms));
            let due = tokio::time::Instant::from_std(due.unwrap_or(self.started));
            let received = tokio::select! {
                () = self.stop.cancelled() => return good_bye(socket).await,
                received = tokio::time::timeout_at(due, socket.recv(&mut buffer)) => received,
            };
            match received {
                Err(_elapsed) => transfer.handle_timeout(self.now_ms()),
                Ok(Ok(len)) => transfer.handle(self.now_ms(), &buffer[..len]),
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    return End::PeerGone;
                }
                Ok(Err(error)) => return End::Socket(error.kind()),
            }
        }
    }
}

/// The daemon stops: the client hears it now instead of waiting for its own timeout.
async fn good_bye(socket: &UdpSocket) -> End {
    let reply = ErrorReply::new(ErrorCode::NotDefined, "the boot server stops, try again");
    let _ = socket.send(&reply.encode()).await;
    End::Stopped
}

#[cfg(test)]
mod tests;
