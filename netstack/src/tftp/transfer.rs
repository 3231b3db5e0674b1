//! One read transfer as one state machine: options, window, retransmission, end.
//!
//! Contract: after every `handle` and `handle_timeout`, call `poll_transmit` until it returns
//! `false` and send each packet; then wait for a datagram or for `poll_timeout`. When `outcome` is
//! set the transfer is over. The file is borrowed per call and must not change its length. `now` is
//! in microseconds of any clock that only goes forward.

use super::packet::{self, ErrorCode, ErrorReply, Packet, Request};

/// RFC 1350 block size, used unless the client asks for another.
const BLOCK_LEN_DEFAULT: u64 = 512;
/// RFC 2348: smallest block size that may be asked for.
const BLOCK_LEN_MIN: u64 = 8;
/// Largest size a DATA packet can have, whatever the configuration says.
const BLOCK_LEN_LIMIT: u64 = 65464;

/// Bounds of a transfer, each with the reason it exists. Times are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest block in octets. 1468 fills an Ethernet frame; more would fragment, and most
    /// firmware cannot reassemble. The shell lowers it to the path's MTU ([`block_len_for`]).
    pub block_len_max: u16,
    /// Most blocks in flight (RFC 7440). A NIC's boot driver has few receive buffers.
    pub window_max: u16,
    /// Wait before the first retransmission, until a round trip was measured.
    pub rto_initial_us: u64,
    /// Shortest wait. Firmware polls its NIC every 10 ms; below twice that a block that was only
    /// read late would be sent again.
    pub rto_min_us: u64,
    /// Longest wait under back-off.
    pub rto_max_us: u64,
    /// Retransmissions to a client that never answered: its address may be spoofed.
    pub handshake_retries_max: u32,
    /// Silence after which a client that had answered counts as gone. Firmware that erases flash
    /// or shows a prompt stops for longer than back-off from 20 ms would allow by counting.
    pub silence_max_us: u64,
    /// Longest transfer. A client that acknowledges one block a minute must not hold a slot.
    pub lifetime_us: u64,
    /// What follows block 65535.
    pub roll_over: RollOver,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            block_len_max: 1468,
            window_max: 32,
            rto_initial_us: 500_000,
            rto_min_us: 20_000,
            rto_max_us: 8_000_000,
            handshake_retries_max: 5,
            silence_max_us: 45_000_000,
            lifetime_us: 1_800_000_000,
            roll_over: RollOver::Zero,
        }
    }
}

/// Largest block that a path of this MTU carries in one packet: IP header (20 octets, IPv6 40), UDP
/// header (8) and DATA header (4) off.
pub fn block_len_for(mtu: u32, ipv6: bool) -> u16 {
    let headers = if ipv6 { 40 + 8 + 4 } else { 20 + 8 + 4 };
    let most = u64::from(mtu.saturating_sub(headers));
    most.clamp(BLOCK_LEN_MIN, BLOCK_LEN_LIMIT) as u16
}

/// The block number after 65535. RFC 1350 is silent; nearly every client takes 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RollOver {
    /// 0.
    Zero,
    /// 1: for clients that refuse block 0.
    One,
}

impl RollOver {
    /// The number on the wire of the `block`-th block, counted from 1; 0 is the OACK's.
    fn wire(self, block: u64) -> u16 {
        match self {
            Self::Zero => block as u16,
            Self::One if block == 0 => 0,
            Self::One => ((block - 1) % 65535 + 1) as u16,
        }
    }
}

/// How a transfer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The last block was acknowledged.
    Complete,
    /// The client ended it before the first block, after it saw the options: UEFI asks for the
    /// size this way. Not a failure.
    Probed,
    /// The client gave up.
    ClientError(ErrorReply),
    /// No answer to the last retransmission.
    TimedOut,
    /// Longer than [`Limits::lifetime_us`].
    TooSlow,
}

/// What a transfer cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// DATA packets sent.
    pub blocks_sent: u64,
    /// Of these, sent before.
    pub blocks_again: u64,
    /// Octets acknowledged.
    pub acked_len: u64,
    /// Datagrams that meant nothing here: late duplicates, noise.
    pub ignored: u64,
    /// Whether block numbers rolled over; some clients cannot follow (tell it in the log).
    pub rolled_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The OACK was or will be sent; ACK 0 is awaited.
    Options {
        /// Whether the OACK is to be sent (again).
        pending: bool,
    },
    Data,
}

/// One read transfer.
#[derive(Debug)]
pub struct Transfer {
    limits: Limits,
    /// What the OACK says.
    options: Vec<(&'static str, u64)>,
    block_len: u64,
    window: u64,
    file_len: u64,
    /// Blocks in total; the last one is short, perhaps empty.
    blocks: u64,
    phase: Phase,
    /// Highest block acknowledged in order.
    acked: u64,
    /// Next block to send.
    next: u64,
    /// Highest block ever sent.
    sent: u64,
    /// The window was restarted for an ACK of this block already.
    restarted_at: Option<u64>,
    /// When the block after `acked` was last sent.
    window_us: u64,
    rto: Rto,
    /// A block sent once, and when (Karn: never a retransmitted one).
    timed: Option<(u64, u64)>,
    /// The OACK was sent before: its answer tells no round trip.
    options_sent: bool,
    /// Whether the client ever answered.
    answered: bool,
    /// When it last made progress; at first, when it asked.
    heard_us: u64,
    retries: u32,
    deadline_us: Option<u64>,
    end_us: u64,
    outcome: Option<Outcome>,
    stats: Stats,
}

impl Transfer {
    /// A transfer of `file_len` octets as the request asks.
    pub fn new(now_us: u64, request: &Request, file_len: u64, limits: Limits) -> Self {
        let mut transfer = Self {
            limits,
            options: Vec::new(),
            block_len: BLOCK_LEN_DEFAULT,
            window: 1,
            file_len,
            blocks: 0,
            phase: Phase::Data,
            acked: 0,
            next: 1,
            sent: 0,
            restarted_at: None,
            window_us: now_us,
            rto: Rto::new(&limits),
            timed: None,
            options_sent: false,
            answered: false,
            heard_us: now_us,
            retries: 0,
            deadline_us: None,
            end_us: now_us.saturating_add(limits.lifetime_us),
            outcome: None,
            stats: Stats::default(),
        };
        transfer.negotiate(request);
        transfer.blocks = file_len / transfer.block_len + 1;
        if !transfer.options.is_empty() {
            transfer.phase = Phase::Options { pending: true };
        }
        transfer
    }

    /// Takes the options it knows; one it does not know or cannot read is left out of the OACK
    /// (RFC 2347), so the client goes on as if it had not asked.
    fn negotiate(&mut self, request: &Request) {
        let mut seen: Vec<&str> = Vec::new();
        for (name, value) in &request.options {
            let Ok(asked) = value.parse::<u64>() else {
                continue;
            };
            if seen.contains(&name.as_str()) {
                continue;
            }
            seen.push(name);
            match name.as_str() {
                "blksize" if asked >= BLOCK_LEN_MIN => {
                    let most =
                        u64::from(self.limits.block_len_max).clamp(BLOCK_LEN_MIN, BLOCK_LEN_LIMIT);
                    self.block_len = asked.min(most);
                    self.options.push(("blksize", self.block_len));
                }
                "tsize" => self.options.push(("tsize", self.file_len)),
                "timeout" if (1..=255).contains(&asked) => {
                    self.rto = Rto::fixed(asked * 1_000_000);
                    self.options.push(("timeout", asked));
                }
                "windowsize" if (1..=65535).contains(&asked) => {
                    self.window = asked.min(u64::from(self.limits.window_max).max(1));
                    self.options.push(("windowsize", self.window));
                }
                _ => {}
            }
        }
    }

    /// How it ended, once it has.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// What it cost so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Block size in octets, as agreed.
    pub fn block_len(&self) -> u64 {
        self.block_len
    }

    /// Blocks in flight, as agreed.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Whether the client ever answered: until then its address may be spoofed.
    pub fn answered(&self) -> bool {
        self.answered
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.outcome.is_some() {
            return None;
        }
        Some(
            self.deadline_us
                .map_or(self.end_us, |deadline| deadline.min(self.end_us)),
        )
    }

    /// Writes the next packet into `out`, which is cleared; `false` when there is none to send now.
    pub fn poll_transmit(&mut self, now_us: u64, file: &[u8], out: &mut Vec<u8>) -> bool {
        out.clear();
        self.poll_transmit_onto(now_us, file, out)
    }

    /// The same, appended to `out`: several packets side by side go out in one call of the kernel.
    pub fn poll_transmit_onto(&mut self, now_us: u64, file: &[u8], out: &mut Vec<u8>) -> bool {
        if self.outcome.is_some() {
            return false;
        }
        match self.phase {
            Phase::Options { pending: false } => return false,
            Phase::Options { pending: true } => {
                packet::append_option_ack(&self.options, out);
                self.phase = Phase::Options { pending: false };
                self.timed = (!self.options_sent).then_some((0, now_us));
                self.options_sent = true;
            }
            Phase::Data => {
                if self.next > self.blocks.min(self.acked + self.window) {
                    return false;
                }
                self.data(now_us, file, out);
            }
        }
        self.deadline_us = Some(now_us.saturating_add(self.rto.get()));
        true
    }

    fn data(&mut self, now_us: u64, file: &[u8], out: &mut Vec<u8>) {
        let block = self.next;
        let start = ((block - 1) * self.block_len).min(file.len() as u64) as usize;
        let end = (block * self.block_len).min(file.len() as u64) as usize;
        packet::append_data(self.limits.roll_over.wire(block), &file[start..end], out);
        self.stats.blocks_sent += 1;
        if block > self.sent {
            self.sent = block;
            self.timed.get_or_insert((block, now_us));
        } else {
            self.stats.blocks_again += 1;
            self.timed = None;
        }
        if block == self.acked + 1 {
            self.window_us = now_us;
        }
        self.stats.rolled_over |= block > u64::from(u16::MAX);
        self.next += 1;
    }

    /// Takes a datagram of the client.
    pub fn handle(&mut self, now_us: u64, datagram: &[u8]) {
        if self.outcome.is_some() {
            return;
        }
        match Packet::parse(datagram) {
            Ok(Packet::Ack { block }) => self.acknowledged(now_us, block),
            Ok(Packet::Error(error)) => {
                // Before the first ACK nothing but options was agreed: 8 says "not these", 0 is
                // what older firmware sends for the same.
                let probe = matches!(
                    error.code,
                    ErrorCode::OptionNegotiation | ErrorCode::NotDefined
                );
                let ended_early = matches!(self.phase, Phase::Options { .. }) && probe;
                let outcome = if ended_early {
                    Outcome::Probed
                } else {
                    Outcome::ClientError(error)
                };
                self.outcome = Some(outcome);
            }
            Ok(
                Packet::ReadRequest(_)
                | Packet::WriteRequest(_)
                | Packet::Data { .. }
                | Packet::OptionAck { .. },
            )
            | Err(_) => self.stats.ignored += 1,
        }
    }

    fn acknowledged(&mut self, now_us: u64, wire: u16) {
        match self.phase {
            Phase::Options { .. } if wire == 0 => {
                self.phase = Phase::Data;
                self.progress(now_us, 0);
            }
            Phase::Options { .. } => self.stats.ignored += 1,
            Phase::Data => {
                // At most a window of candidates, so a wrapped number cannot be mistaken.
                let mut candidates = self.acked..=self.sent;
                match candidates.find(|block| self.limits.roll_over.wire(*block) == wire) {
                    Some(block) if block > self.acked => self.progress(now_us, block),
                    Some(_) => self.repeated(now_us),
                    None => self.stats.ignored += 1,
                }
            }
        }
    }

    fn progress(&mut self, now_us: u64, block: u64) {
        if let Some((timed, sent_us)) = self.timed
            && timed <= block
        {
            self.rto.sample(now_us.saturating_sub(sent_us));
            self.timed = None;
        }
        self.acked = block;
        self.answered = true;
        self.heard_us = now_us;
        self.retries = 0;
        self.restarted_at = None;
        self.stats.acked_len = (block * self.block_len).min(self.file_len);
        if block == self.blocks {
            self.outcome = Some(Outcome::Complete);
            return;
        }
        // An ACK inside the window says that what follows it was lost (RFC 7440 section 4).
        self.next = block + 1;
        self.deadline_us = Some(now_us.saturating_add(self.rto.get()));
    }

    /// The same ACK again. In lock step it is a late duplicate, and to answer it would double
    /// every later packet (the Sorcerer's Apprentice; RFC 1123 section 4.2.3.1). With a window it
    /// says that the first block after it was lost: start over, once, and not for an ACK that left
    /// before that block could arrive. A receiver that acknowledges each block of a broken window
    /// would else buy a second window.
    fn repeated(&mut self, now_us: u64) {
        let in_flight = self.next > self.acked + 1;
        let could_know = now_us.saturating_sub(self.window_us) >= self.rto.shortest();
        if self.window > 1 && in_flight && could_know && self.restarted_at != Some(self.acked) {
            self.restarted_at = Some(self.acked);
            self.next = self.acked + 1;
            self.timed = None;
        } else {
            self.stats.ignored += 1;
        }
    }

    /// The request came again: the first answer was lost. It is sent again at once, one packet for
    /// one request; after the client answered, the request is a late duplicate.
    pub fn handle_repeated_request(&mut self) {
        if self.outcome.is_some() || self.answered {
            self.stats.ignored += 1;
            return;
        }
        match self.phase {
            Phase::Options { .. } => self.phase = Phase::Options { pending: true },
            Phase::Data => self.next = 1,
        }
        self.timed = None;
    }

    /// Time passed: retransmits or gives up.
    pub fn handle_timeout(&mut self, now_us: u64) {
        if self.outcome.is_some() {
            return;
        }
        if now_us >= self.end_us {
            self.outcome = Some(Outcome::TooSlow);
            return;
        }
        if self.deadline_us.is_none_or(|deadline| now_us < deadline) {
            return;
        }
        // A client that chose its interval (RFC 2349) is given at least four of them.
        let patience = self.limits.silence_max_us.max(self.rto.chosen() * 4);
        let gone = if self.answered {
            now_us.saturating_sub(self.heard_us) >= patience
        } else {
            self.retries >= self.limits.handshake_retries_max
        };
        if gone {
            self.outcome = Some(Outcome::TimedOut);
            return;
        }
        self.retries += 1;
        self.rto.back_off();
        self.timed = None;
        match self.phase {
            Phase::Options { .. } => self.phase = Phase::Options { pending: true },
            Phase::Data => self.next = self.acked + 1,
        }
        self.deadline_us = Some(now_us.saturating_add(self.rto.get()));
    }
}

/// Retransmission timeout by measured round trips (the estimator of RFC 6298), or fixed when the
/// client chose it (RFC 2349).
#[derive(Debug)]
struct Rto {
    current_us: u64,
    min_us: u64,
    max_us: u64,
    /// Smoothed round trip and its variation.
    smoothed: Option<(u64, u64)>,
    /// Shortest round trip seen.
    shortest_us: Option<u64>,
    fixed: bool,
}

impl Rto {
    fn new(limits: &Limits) -> Self {
        Self {
            current_us: limits.rto_initial_us.max(1),
            min_us: limits.rto_min_us.max(1),
            max_us: limits.rto_max_us.max(limits.rto_min_us).max(1),
            smoothed: None,
            shortest_us: None,
            fixed: false,
        }
    }

    fn fixed(us: u64) -> Self {
        Self {
            current_us: us,
            min_us: us,
            max_us: us,
            smoothed: None,
            shortest_us: None,
            fixed: true,
        }
    }

    fn get(&self) -> u64 {
        self.current_us
    }

    /// Shortest round trip seen; 0 before the first.
    fn shortest(&self) -> u64 {
        self.shortest_us.unwrap_or(0)
    }

    /// The interval the client chose; 0 when it did not.
    fn chosen(&self) -> u64 {
        if self.fixed { self.current_us } else { 0 }
    }

    fn sample(&mut self, round_trip_us: u64) {
        let shortest = self.shortest_us.get_or_insert(round_trip_us);
        *shortest = round_trip_us.min(*shortest);
        if self.fixed {
            return;
        }
        let sample = round_trip_us.min(self.max_us);
        let (smoothed, variation) = match self.smoothed {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => (
                (smoothed * 7 + sample) / 8,
                (variation * 3 + smoothed.abs_diff(sample)) / 4,
            ),
        };
        self.smoothed = Some((smoothed, variation));
        self.current_us = (smoothed + 4 * variation).clamp(self.min_us, self.max_us);
    }

    fn back_off(&mut self) {
        self.current_us = (self.current_us.saturating_mul(2)).min(self.max_us);
    }
}

#[cfg(test)]
mod tests;
