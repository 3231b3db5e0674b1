//! The TFTP thread: datagrams to `netstack::tftp::Server`, its bursts to the sockets.
//!
//! Decides only how to wait. While packets come and nothing else is awaited, it blocks in the
//! receive itself, which saves a call for each block in lock step; otherwise it waits for sockets,
//! answers and the next deadline together.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hw::net::{Inbox, Outbox, Poller, UdpPort, Wait, Wake, path_mtu};
use netstack::tftp::{End, Event, Outcome, Report, Server, TransferId};
use tokio::sync::mpsc;

use super::{Answer, Ask, FileSource, Options, Ports};

/// Longest datagram read: requests and acknowledgements are far shorter.
const DATAGRAM_LEN_MAX: usize = 2048;
/// Datagrams taken by one call.
const BATCH_MAX: usize = 64;
/// Octets gathered before they are sent: within a processor's cache.
const GATHER_LEN_MAX: usize = 256 * 1024;
/// How long the receive itself is waited in. Deadlines and the stop are late by at most this.
const PATIENCE: Duration = Duration::from_millis(4);
/// Pause after a failed wait, so that a broken socket does not spin.
const BROKEN_PAUSE: Duration = Duration::from_millis(50);
/// Failures in a row after which the sockets count as broken for good.
const BROKEN_MAX: u32 = 100;
/// Transfers at once with a port each: descriptors are shared with the whole daemon, which has
/// 1024 where nobody raised it.
const EPHEMERAL_MAX: usize = 512;

const TOKEN_WAKE: u64 = 0;
const TOKEN_LISTENER: u64 = 1;
/// Token of slot 0's own port.
const TOKEN_SLOTS: u64 = 2;

/// How the engine speaks to the rest of the daemon.
pub(super) struct Doors {
    /// Files to look for.
    pub asks: mpsc::Sender<Ask>,
    /// Files found.
    pub answers: std::sync::mpsc::Receiver<Answer>,
    /// Whether to stop.
    pub stopping: Arc<AtomicBool>,
    /// Rung for the two above.
    pub wake: Wake,
}

/// The thread's state.
pub(super) struct Engine<F> {
    listener: UdpPort,
    local: SocketAddr,
    ports: Ports,
    /// Own ports by slot.
    own: Vec<Option<(TransferId, UdpPort)>>,
    server: Server<Bytes>,
    source: Arc<F>,
    doors: Doors,
    poller: Poller,
    inbox: Inbox,
    outbox: Outbox,
    closed: Vec<SocketAddr>,
    started: Instant,
    /// Answers awaited.
    opening: usize,
    /// Whether the last wait brought a datagram.
    heard: bool,
}

impl<F: FileSource> Engine<F> {
    pub(super) fn new(
        socket: UdpSocket,
        options: Options,
        source: Arc<F>,
        doors: Doors,
    ) -> io::Result<Self> {
        let local = socket.local_addr()?;
        let listener = UdpPort::shared(socket)?;
        let (room, wanted) = listener.receive_room();
        if room < wanted {
            tracing::warn!(
                %local,
                room,
                wanted,
                "receive buffer smaller than asked for: in a boot storm some clients must ask twice; \
                 raise net.core.rmem_max or give CAP_NET_ADMIN"
            );
        }
        listener.set_patience(PATIENCE)?;
        let poller = Poller::new()?;
        poller.add(&doors.wake, TOKEN_WAKE)?;
        poller.add(&listener, TOKEN_LISTENER)?;
        let mut bounds = options.bounds;
        if options.ports == Ports::Ephemeral {
            bounds.transfers_max = bounds.transfers_max.min(EPHEMERAL_MAX);
        }
        Ok(Self {
            listener,
            local,
            ports: options.ports,
            own: Vec::new(),
            server: Server::new(bounds),
            source,
            doors,
            poller,
            inbox: Inbox::new(BATCH_MAX, DATAGRAM_LEN_MAX),
            outbox: Outbox::new(true),
            closed: Vec::new(),
            started: Instant::now(),
            opening: 0,
            heard: false,
        })
    }

    /// Serves until it is told to stop.
    ///
    /// # Errors
    /// The sockets broke for good.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut broken = 0;
        while !self.doors.stopping.load(Ordering::Relaxed) {
            let now_us = match self.wait() {
                Ok(now_us) => {
                    broken = 0;
                    now_us
                }
                Err(error) if broken < BROKEN_MAX => {
                    tracing::warn!(%error, "tftp receive failed");
                    broken += 1;
                    std::thread::sleep(BROKEN_PAUSE);
                    self.now_us()
                }
                Err(error) => return Err(error),
            };
            self.server.handle_timeout(now_us);
            self.act(now_us);
        }
        // What came before the stop is told of it, too.
        loop {
            let (count, now_us) = self.receive(Wait::No)?;
            if count == 0 {
                break;
            }
            self.act(now_us);
        }
        let now_us = self.now_us();
        self.server.stop(now_us);
        self.act(now_us);
        Ok(())
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Waits for something and hands it to the server; returns the time after the wait.
    fn wait(&mut self) -> io::Result<u64> {
        let only_packets = self.ports == Ports::One && self.opening == 0;
        if self.heard && only_packets && !self.server.is_empty() {
            let (count, now_us) = self.receive(Wait::Patiently)?;
            self.heard = count > 0;
            return Ok(now_us);
        }
        let now_us = self.now_us();
        let due = self.server.poll_timeout();
        let limit = due.map(|due_us| Duration::from_micros(due_us.saturating_sub(now_us)));
        self.heard = false;
        for index in 0..self.poller.wait(limit)? {
            match self.poller.token(index) {
                TOKEN_WAKE => {
                    self.doors.wake.clear();
                    self.opened();
                }
                TOKEN_LISTENER => self.heard |= self.receive(Wait::No)?.0 > 0,
                slot => self.receive_own((slot - TOKEN_SLOTS) as usize),
            }
        }
        Ok(self.now_us())
    }

    /// Takes a batch from the listener's port: how many there were, and when.
    fn receive(&mut self, wait: Wait) -> io::Result<(usize, u64)> {
        // One client in lock step has one packet under way.
        self.inbox.expect(self.server.len());
        let count = self.listener.receive(&mut self.inbox, wait)?;
        let now_us = self.now_us();
        for index in 0..count {
            if let Some((peer, datagram)) = self.inbox.get(index) {
                self.server.handle(now_us, peer, datagram);
            }
        }
        if count == 0 {
            self.listener.unreachable(&mut self.closed);
        }
        Ok((count, now_us))
    }

    /// Takes a batch from a transfer's own port.
    fn receive_own(&mut self, slot: usize) {
        let Some(Some((id, port))) = self.own.get(slot) else {
            return;
        };
        let id = *id;
        match port.receive(&mut self.inbox, Wait::No) {
            Ok(count) => {
                let now_us = self.now_us();
                for index in 0..count {
                    if let Some((_, datagram)) = self.inbox.get(index) {
                        self.server.handle_transfer(now_us, id, datagram);
                    }
                }
            }
            Err(error) => {
                let end = match error.kind() {
                    io::ErrorKind::ConnectionRefused => End::PeerGone,
                    kind => End::Socket(kind),
                };
                self.server.gone(self.now_us(), id, end);
            }
        }
    }

    /// Takes the files that were found.
    fn opened(&mut self) {
        while let Ok(Answer { id, contents }) = self.doors.answers.try_recv() {
            self.opening = self.opening.saturating_sub(1);
            let mtu = self
                .server
                .peer(id)
                .and_then(|peer| self.path_mtu(id, peer));
            self.server.opened(self.now_us(), id, contents, mtu);
        }
    }

    /// MTU of the route to a client; none when the kernel does not say.
    fn path_mtu(&self, id: TransferId, peer: SocketAddr) -> Option<u32> {
        match self.own_port(id) {
            Some(port) => port.path_mtu().ok(),
            None => path_mtu(self.local, peer).ok(),
        }
    }

    fn own_port(&self, id: TransferId) -> Option<&UdpPort> {
        match self.own.get(id.slot()) {
            Some(Some((owner, port))) if *owner == id => Some(port),
            _ => None,
        }
    }

    /// Sends and does what the server wants, until it wants nothing.
    fn act(&mut self, now_us: u64) {
        loop {
            self.send(now_us);
            for peer in std::mem::take(&mut self.closed) {
                self.server.peer_gone(now_us, peer);
            }
            let Some(event) = self.server.poll_event() else {
                return;
            };
            self.event(now_us, event);
            while let Some(event) = self.server.poll_event() {
                self.event(now_us, event);
            }
        }
    }

    fn send(&mut self, now_us: u64) {
        while let Some(burst) = self.server.poll_burst(now_us, &mut self.outbox.bytes) {
            let own = match burst.id.and_then(|id| self.own.get(id.slot())?.as_ref()) {
                Some((id, port)) if Some(*id) == burst.id => Some((*id, port)),
                _ => None,
            };
            if let Some((id, port)) = own {
                self.outbox.push(None, burst.len, burst.segment);
                if port.send(&mut self.outbox, &mut self.closed).refused {
                    self.server.gone(now_us, id, End::PeerGone);
                }
                continue;
            }
            self.outbox.push(Some(burst.to), burst.len, burst.segment);
            // With own ports the next burst may leave from another one.
            if self.outbox.bytes.len() >= GATHER_LEN_MAX || self.ports == Ports::Ephemeral {
                self.listener.send(&mut self.outbox, &mut self.closed);
            }
        }
        if !self.outbox.is_empty() {
            self.listener.send(&mut self.outbox, &mut self.closed);
        }
    }

    fn event(&mut self, now_us: u64, event: Event) {
        match event {
            Event::Open { id, peer, name } => self.open(now_us, Ask { id, peer, name }),
            Event::Ended(id, report) => {
                if let Some(own) = self.own.get_mut(id.slot())
                    && own.as_ref().is_some_and(|(owner, _)| *owner == id)
                {
                    *own = None;
                }
                log(&report);
                self.source.finished(&report);
            }
            Event::Refused { peer, code } => {
                tracing::debug!(%peer, code, "tftp datagram refused");
                self.source.refused(peer, code);
            }
        }
    }

    fn open(&mut self, now_us: u64, ask: Ask) {
        let id = ask.id;
        if self.ports == Ports::Ephemeral
            && let Err(error) = self.own_port_for(id, ask.peer)
        {
            self.server.gone(now_us, id, End::Socket(error.kind()));
            return;
        }
        match self.doors.asks.try_send(ask) {
            Ok(()) => self.opening += 1,
            // An ERROR would end the boot of a machine that asks in the middle of a flood; silence
            // costs it the second after which it asks again.
            Err(_full) => self.server.gone(now_us, id, End::Busy),
        }
    }

    fn own_port_for(&mut self, id: TransferId, peer: SocketAddr) -> io::Result<()> {
        let port = UdpPort::connected(self.local, peer)?;
        self.poller.add(&port, TOKEN_SLOTS + id.slot() as u64)?;
        if self.own.len() <= id.slot() {
            self.own.resize_with(id.slot() + 1, || None);
        }
        self.own[id.slot()] = Some((id, port));
        Ok(())
    }
}

fn log(report: &Report) {
    let Report {
        peer,
        name,
        end,
        file_len,
        stats,
        duration_us,
    } = report;
    let (code, ms) = (end.code(), duration_us / 1_000);
    let (sent, again) = (stats.blocks_sent, stats.blocks_again);
    match end {
        End::Protocol(Outcome::Complete | Outcome::Probed) | End::Stopped | End::Superseded => {
            tracing::info!(%peer, name, code, file_len, sent, again, ms, "tftp transfer");
        }
        // A flood of spoofed requests must not become a flood of lines; it is counted.
        End::Evicted | End::Busy => {
            tracing::debug!(%peer, name, code, ms, "tftp transfer");
        }
        End::Refused(reply) => {
            tracing::warn!(%peer, name, code, message = reply.message, "tftp transfer");
        }
        End::Protocol(_) | End::PeerGone | End::Socket(_) => {
            let acked = stats.acked_len;
            // The usual suspect; the ROM of a Raspberry Pi is one that stops there.
            let hint = stats.rolled_over.then_some(
                "block numbers rolled over, which some clients cannot follow: offer HTTP or larger blocks",
            );
            tracing::warn!(%peer, name, code, ?end, file_len, acked, sent, again, ms, hint, "tftp transfer");
        }
    }
}
