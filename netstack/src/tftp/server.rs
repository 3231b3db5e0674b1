//! All transfers of one listener as one state machine: who gets a slot, whose packet is whose, what
//! goes out together, who is let go.
//!
//! Contract: after every `handle*`, `opened`, `gone` or `stop`, send what [`Server::poll_burst`]
//! gives, then do what [`Server::poll_event`] says, until both are empty; then wait for a datagram
//! or for [`Server::poll_timeout`]. Time is in microseconds of any clock that only goes forward. Knows no
//! socket and no file: a name is asked for with [`Event::Open`], its contents come back through
//! [`Server::opened`].
//!
//! Reflection: to an address that never answered goes one packet per timeout or per request, the
//! OACK or block 1; a window is sent only after an ACK came back.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use super::netascii;
use super::packet::{ErrorCode, ErrorReply, Mode, Packet, Request};
use super::transfer::{Limits, Outcome, Stats, Transfer};

/// Most octets of one burst: the kernel takes no larger datagram to cut into segments.
const BURST_LEN_MAX: usize = 65_000;
/// Most packets of one burst (`UDP_MAX_SEGMENTS` of Linux before 6.9).
const BURST_PACKETS_MAX: usize = 64;
/// Request opcodes; everything else belongs to a running transfer.
const REQUESTS: [[u8; 2]; 2] = [[0, 1], [0, 2]];

/// Bounds of the listener, each with the reason it exists.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Transfers at once, each about 1 KiB. When all are taken, the oldest to whose client nobody
    /// ever answered makes room, so that spoofed requests cannot lock a rack out.
    pub transfers_max: usize,
    /// Transfers at once from one address: one machine must not starve the rack. UEFI has two
    /// open while it ends its size probe; a relay that translates addresses needs more.
    pub per_peer_max: usize,
    /// Largest file in netascii mode, which is copied per transfer.
    pub netascii_len_max: usize,
    /// Transfers in netascii mode at once: with the length it bounds the copies' memory.
    pub netascii_max: usize,
    /// What a transfer needs to know.
    pub transfer: Limits,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            transfers_max: 2048,
            per_peer_max: 8,
            netascii_len_max: 1 << 20,
            netascii_max: 16,
            transfer: Limits::default(),
        }
    }
}

/// Names one transfer for good: a slot and how often it was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId {
    slot: u32,
    generation: u32,
}

impl TransferId {
    /// The slot, below [`Bounds::transfers_max`]: an index for what the shell keeps beside.
    pub fn slot(self) -> usize {
        self.slot as usize
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
    /// All slots were taken and this client had never answered.
    Evicted,
    /// Too much is asked for at once; nothing was sent, and the client asks again by itself.
    Busy,
    /// The daemon stops.
    Stopped,
    /// The transfer's own socket failed.
    Socket(std::io::ErrorKind),
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
            Self::Evicted => "tftp.evicted",
            Self::Busy => "tftp.busy",
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
    /// From request to end.
    pub duration_us: u64,
}

/// What the shell must do or know.
#[derive(Debug)]
pub enum Event {
    /// Find the contents for a name and call [`Server::opened`]. The name is what the client sent:
    /// not a path, not checked.
    Open {
        /// The transfer.
        id: TransferId,
        /// Who asks.
        peer: SocketAddr,
        /// For what.
        name: String,
    },
    /// A transfer is over; what was kept for it can go.
    Ended(TransferId, Report),
    /// A datagram was turned away before any file was asked for.
    Refused {
        /// Who sent it.
        peer: SocketAddr,
        /// Stable code, also the metric label.
        code: &'static str,
    },
}

/// Packets for one client, side by side in the buffer: all of `segment` octets, the last one
/// perhaps shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// Whose; none for an answer outside any transfer, which leaves from the listener's port.
    pub id: Option<TransferId>,
    /// To whom.
    pub to: SocketAddr,
    /// Octets of each packet.
    pub segment: usize,
    /// Octets in total.
    pub len: usize,
}

enum Contents<B> {
    Shared(B),
    Netascii(Vec<u8>),
}

impl<B: AsRef<[u8]>> Contents<B> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes.as_ref(),
            Self::Netascii(bytes) => bytes,
        }
    }
}

#[expect(
    clippy::large_enum_variant,
    reason = "a slot waits for its file for a moment and then runs; no detour on the hot path"
)]
enum State<B> {
    /// The shell was asked for the contents.
    Opening,
    Running {
        contents: Contents<B>,
        transfer: Transfer,
    },
}

struct Slot<B> {
    generation: u32,
    peer: SocketAddr,
    /// The request as it came, to know a repetition.
    datagram: Box<[u8]>,
    request: Request,
    state: State<B>,
    started_us: u64,
    /// Whether it is in `ready`.
    ready: bool,
    /// Its earliest entry in `timers`.
    scheduled_us: u64,
}

/// All transfers of one listener; `B` is a file's contents, cheap to hold.
pub struct Server<B> {
    bounds: Bounds,
    slots: Vec<Option<Slot<B>>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    by_peer: BTreeMap<SocketAddr, TransferId>,
    per_address: BTreeMap<IpAddr, usize>,
    /// In order of arrival, those whose client had not answered when last looked at.
    half_open: VecDeque<TransferId>,
    /// Due times; an entry that is not its slot's `scheduled_us` is void.
    timers: BinaryHeap<Reverse<(u64, TransferId)>>,
    /// Slots that may have something to send.
    ready: VecDeque<TransferId>,
    /// Answers outside transfers, and last words of ended ones.
    replies: VecDeque<(Option<TransferId>, SocketAddr, Vec<u8>)>,
    events: VecDeque<Event>,
    netascii: usize,
}

impl<B: AsRef<[u8]>> Server<B> {
    /// A server without transfers.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            slots: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            by_peer: BTreeMap::new(),
            per_address: BTreeMap::new(),
            half_open: VecDeque::new(),
            timers: BinaryHeap::new(),
            ready: VecDeque::new(),
            replies: VecDeque::new(),
            events: VecDeque::new(),
            netascii: 0,
        }
    }

    /// Running transfers, those that wait for their file included.
    pub fn len(&self) -> usize {
        self.by_peer.len()
    }

    /// Whether there is no transfer.
    pub fn is_empty(&self) -> bool {
        self.by_peer.is_empty()
    }

    /// The client of a transfer; none once it ended.
    pub fn peer(&self, id: TransferId) -> Option<SocketAddr> {
        self.slot(id).map(|slot| slot.peer)
    }

    /// Takes a datagram that came to the listener's port: a request, or, where transfers share
    /// that port, a packet of a running one.
    pub fn handle(&mut self, now_us: u64, peer: SocketAddr, datagram: &[u8]) {
        let known = self.by_peer.get(&peer).copied();
        let is_request = datagram
            .get(..2)
            .is_some_and(|op| REQUESTS.iter().any(|request| request == op));
        if let Some(id) = known
            && !is_request
        {
            self.handle_transfer(now_us, id, datagram);
            return;
        }
        match Packet::parse(datagram) {
            Ok(Packet::ReadRequest(request)) => {
                self.read_request(now_us, peer, known, request, datagram);
            }
            Ok(Packet::WriteRequest(_)) => {
                let reply = ErrorReply::new(ErrorCode::AccessViolation, "files are only read here");
                self.refuse(peer, "tftp.write", Some(&reply));
            }
            // Strays of an old transfer: an answer could only start an argument.
            Ok(
                Packet::Data { .. }
                | Packet::Ack { .. }
                | Packet::Error(_)
                | Packet::OptionAck { .. },
            ) => self.refuse(peer, "tftp.stray", None),
            Err(error) => self.refuse(peer, error.code(), error.reply().as_ref()),
        }
    }

    /// Takes a datagram that came to the transfer's own port.
    pub fn handle_transfer(&mut self, now_us: u64, id: TransferId, datagram: &[u8]) {
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        match &mut slot.state {
            State::Opening => {
                // An ERROR while we look: the client gave up. Nothing else means anything yet.
                if let Ok(Packet::Error(error)) = Packet::parse(datagram) {
                    let end = End::Protocol(Outcome::ClientError(error));
                    self.end(now_us, id, end);
                }
            }
            State::Running { transfer, .. } => {
                transfer.handle(now_us, datagram);
                self.settle(now_us, id);
            }
        }
    }

    fn refuse(&mut self, peer: SocketAddr, code: &'static str, reply: Option<&ErrorReply>) {
        self.events.push_back(Event::Refused { peer, code });
        // A client that misses this asks again.
        if let Some(reply) = reply {
            self.replies.push_back((None, peer, reply.encode()));
        }
    }

    fn read_request(
        &mut self,
        now_us: u64,
        peer: SocketAddr,
        known: Option<TransferId>,
        request: Request,
        datagram: &[u8],
    ) {
        if let Some(id) = known {
            if let Some(slot) = self.slot_mut(id)
                && *slot.datagram == *datagram
            {
                if let State::Running { transfer, .. } = &mut slot.state {
                    transfer.handle_repeated_request();
                    self.settle(now_us, id);
                }
                return;
            }
            self.end(now_us, id, End::Superseded);
        }
        let from_address = self.per_address.get(&peer.ip()).copied().unwrap_or(0);
        let busy = ErrorReply::new(ErrorCode::NotDefined, "too many transfers, try again");
        if from_address >= self.bounds.per_peer_max {
            self.refuse(peer, "tftp.per_peer_max", Some(&busy));
            return;
        }
        if self.by_peer.len() >= self.bounds.transfers_max && !self.evict(now_us) {
            self.refuse(peer, "tftp.transfers_max", Some(&busy));
            return;
        }
        let name = request.filename.clone();
        let id = self.insert(now_us, peer, request, datagram);
        self.events.push_back(Event::Open { id, peer, name });
    }

    fn insert(
        &mut self,
        now_us: u64,
        peer: SocketAddr,
        request: Request,
        datagram: &[u8],
    ) -> TransferId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.generations.push(0);
            (self.slots.len() - 1) as u32
        });
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(1);
        let id = TransferId {
            slot,
            generation: *generation,
        };
        self.slots[slot as usize] = Some(Slot {
            generation: id.generation,
            peer,
            datagram: datagram.into(),
            request,
            state: State::Opening,
            started_us: now_us,
            ready: false,
            scheduled_us: u64::MAX,
        });
        self.by_peer.insert(peer, id);
        *self.per_address.entry(peer.ip()).or_insert(0) += 1;
        // Those that answered or ended stay in the queue until they are a burden.
        if self.half_open.len() > 2 * self.bounds.transfers_max {
            let mut queue = std::mem::take(&mut self.half_open);
            queue.retain(|id| self.is_half_open(*id));
            self.half_open = queue;
        }
        self.half_open.push_back(id);
        id
    }

    fn is_half_open(&self, id: TransferId) -> bool {
        self.slot(id).is_some_and(|slot| match &slot.state {
            State::Opening => true,
            State::Running { transfer, .. } => !transfer.answered(),
        })
    }

    /// Ends the oldest transfer whose client never answered; whether there was one.
    fn evict(&mut self, now_us: u64) -> bool {
        while let Some(id) = self.half_open.pop_front() {
            if self.is_half_open(id) {
                self.end(now_us, id, End::Evicted);
                return true;
            }
        }
        false
    }

    /// The answer to [`Event::Open`]. `path_mtu` is the route's MTU to the client, if it is known:
    /// blocks are kept within it.
    pub fn opened(
        &mut self,
        now_us: u64,
        id: TransferId,
        contents: Result<B, ErrorReply>,
        path_mtu: Option<u32>,
    ) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        if !matches!(slot.state, State::Opening) {
            return;
        }
        let contents = match contents.and_then(|file| self.in_mode(slot.request.mode, file)) {
            Ok(contents) => contents,
            Err(reply) => {
                self.replies
                    .push_back((Some(id), slot.peer, reply.encode()));
                self.end(now_us, id, End::Refused(reply));
                return;
            }
        };
        if matches!(contents, Contents::Netascii(_)) {
            self.netascii += 1;
        }
        let mut limits = self.bounds.transfer;
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        if let Some(mtu) = path_mtu {
            let most = super::block_len_for(mtu, slot.peer.is_ipv6());
            limits.block_len_max = limits.block_len_max.min(most);
        }
        let len = contents.bytes().len() as u64;
        let transfer = Transfer::new(now_us, &slot.request, len, limits);
        slot.state = State::Running { contents, transfer };
        self.settle(now_us, id);
    }

    fn in_mode(&self, mode: Mode, file: B) -> Result<Contents<B>, ErrorReply> {
        let fits = file.as_ref().len() <= self.bounds.netascii_len_max;
        match mode {
            Mode::Octet => Ok(Contents::Shared(file)),
            Mode::Netascii if !fits => Err(ErrorReply::new(
                ErrorCode::IllegalOperation,
                "ask for this file in octet mode",
            )),
            Mode::Netascii if self.netascii >= self.bounds.netascii_max => Err(ErrorReply::new(
                ErrorCode::NotDefined,
                "too many netascii transfers, try again or ask in octet mode",
            )),
            Mode::Netascii => Ok(Contents::Netascii(netascii::encode(file.as_ref()))),
        }
    }

    /// The client's port is closed, or the transfer's socket failed: nothing more is sent.
    pub fn gone(&mut self, now_us: u64, id: TransferId, end: End) {
        self.end(now_us, id, end);
    }

    /// The same by the client's address, where transfers share a port.
    pub fn peer_gone(&mut self, now_us: u64, peer: SocketAddr) {
        if let Some(id) = self.by_peer.get(&peer).copied() {
            self.end(now_us, id, End::PeerGone);
        }
    }

    /// The daemon stops: each client hears it now instead of waiting for its own timeout.
    pub fn stop(&mut self, now_us: u64) {
        let reply = ErrorReply::new(ErrorCode::NotDefined, "the boot server stops, try again");
        let running: Vec<_> = self.by_peer.iter().map(|(peer, id)| (*peer, *id)).collect();
        for (peer, id) in running {
            self.replies.push_back((Some(id), peer, reply.encode()));
            self.end(now_us, id, End::Stopped);
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); none while nothing is awaited.
    pub fn poll_timeout(&mut self) -> Option<u64> {
        while let Some(Reverse((due_us, id))) = self.timers.peek().copied() {
            if self.slot(id).is_some_and(|s| s.scheduled_us == due_us) {
                return Some(due_us);
            }
            self.timers.pop();
        }
        None
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now_us: u64) {
        while let Some(Reverse((due_us, id))) = self.timers.peek().copied() {
            if due_us > now_us {
                return;
            }
            self.timers.pop();
            let Some(slot) = self.slot_mut(id) else {
                continue;
            };
            if slot.scheduled_us != due_us {
                continue;
            }
            slot.scheduled_us = u64::MAX;
            if let State::Running { transfer, .. } = &mut slot.state {
                transfer.handle_timeout(now_us);
            }
            self.settle(now_us, id);
        }
    }

    /// What happened, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Appends the next burst to `out`; none when there is nothing to send now. Bursts of one
    /// transfer come in order; the last words of one come before its [`Event::Ended`].
    pub fn poll_burst(&mut self, now_us: u64, out: &mut Vec<u8>) -> Option<Burst> {
        if let Some((id, to, packet)) = self.replies.pop_front() {
            out.extend_from_slice(&packet);
            return Some(Burst {
                id,
                to,
                segment: packet.len(),
                len: packet.len(),
            });
        }
        while let Some(id) = self.ready.front().copied() {
            if let Some(burst) = self.burst_of(now_us, id, out) {
                return Some(burst);
            }
            self.ready.pop_front();
            if let Some(slot) = self.slot_mut(id) {
                slot.ready = false;
                self.schedule(id);
            }
        }
        None
    }

    fn burst_of(&mut self, now_us: u64, id: TransferId, out: &mut Vec<u8>) -> Option<Burst> {
        let slot = self.slot_mut(id)?;
        let to = slot.peer;
        let State::Running { contents, transfer } = &mut slot.state else {
            return None;
        };
        let start = out.len();
        let mut segment = 0;
        let mut packets = 0;
        loop {
            let before = out.len();
            if !transfer.poll_transmit_onto(now_us, contents.bytes(), out) {
                break;
            }
            let len = out.len() - before;
            packets += 1;
            if packets == 1 {
                segment = len;
            }
            // A shorter packet ends a burst; only the last block and the OACK are shorter, and
            // nothing follows those before an ACK.
            let total = out.len() - start;
            if len < segment || packets == BURST_PACKETS_MAX || total + segment > BURST_LEN_MAX {
                break;
            }
        }
        (packets > 0).then(|| Burst {
            id: Some(id),
            to,
            segment,
            len: out.len() - start,
        })
    }

    /// After a change of one transfer: is it over, has it something to send, when is it due?
    fn settle(&mut self, now_us: u64, id: TransferId) {
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        let State::Running { transfer, .. } = &slot.state else {
            return;
        };
        if let Some(outcome) = transfer.outcome() {
            let end = End::Protocol(outcome.clone());
            self.end(now_us, id, end);
            return;
        }
        if !slot.ready {
            slot.ready = true;
            self.ready.push_back(id);
        }
        self.schedule(id);
    }

    /// One entry a transfer suffices as long as it is not later than the deadline.
    fn schedule(&mut self, id: TransferId) {
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        let State::Running { transfer, .. } = &slot.state else {
            return;
        };
        let Some(due_us) = transfer.poll_timeout() else {
            return;
        };
        if due_us < slot.scheduled_us {
            slot.scheduled_us = due_us;
            self.timers.push(Reverse((due_us, id)));
        }
    }

    fn end(&mut self, now_us: u64, id: TransferId, end: End) {
        if self.slot(id).is_none() {
            return;
        }
        let Some(slot) = self.slots[id.slot()].take() else {
            return;
        };
        self.free.push(id.slot);
        self.by_peer.remove(&slot.peer);
        if let Some(count) = self.per_address.get_mut(&slot.peer.ip()) {
            *count -= 1;
            if *count == 0 {
                self.per_address.remove(&slot.peer.ip());
            }
        }
        let (file_len, stats) = match &slot.state {
            State::Opening => (None, Stats::default()),
            State::Running { contents, transfer } => {
                if matches!(contents, Contents::Netascii(_)) {
                    self.netascii -= 1;
                }
                (Some(contents.bytes().len() as u64), transfer.stats())
            }
        };
        let report = Report {
            peer: slot.peer,
            name: slot.request.filename,
            end,
            file_len,
            stats,
            duration_us: now_us.saturating_sub(slot.started_us),
        };
        self.events.push_back(Event::Ended(id, report));
    }

    fn slot(&self, id: TransferId) -> Option<&Slot<B>> {
        let slot = self.slots.get(id.slot())?.as_ref()?;
        (slot.generation == id.generation).then_some(slot)
    }

    fn slot_mut(&mut self, id: TransferId) -> Option<&mut Slot<B>> {
        let slot = self.slots.get_mut(id.slot())?.as_mut()?;
        (slot.generation == id.generation).then_some(slot)
    }
}

#[cfg(test)]
mod tests;
