//! The LLDP agent of one interface: when to announce ourselves, who is heard, and when silence means
//! that somebody swallows the frames (IEEE 802.1AB-2016 clause 9).
//!
//! Decides; the caller sends what [`Agent::poll_output`] hands out, and tells of frames, of the link
//! and of the time. Does not know sockets, and not what a neighbour is good for.

use std::collections::VecDeque;

use super::neighbour::{Change, Limits, Neighbour, Table};
use super::{Frame, Lldpdu, Refused};
use crate::Explanation;

/// `msgTxInterval`: seconds between two announcements (clause 9.2.5.7, recommended value).
pub const INTERVAL_SECS: u16 = 30;
/// `msgTxHold` 4 times that interval: seconds that a neighbour keeps what we said.
pub const TTL_SECS: u16 = 4 * INTERVAL_SECS;
/// `msgFastTx`: milliseconds between the announcements of a fast start. Never are two sent closer
/// together, whatever is heard: neighbours that come and go cannot make us flood the cable.
const FAST_MS: u64 = 1_000;
/// `txFastInit`: announcements of a fast start.
const FAST_COUNT: u8 = 4;
/// Two TTLs of a neighbour with the recommended values: a link that was up for so long without one
/// frame is silent.
pub const SILENCE_MS: u64 = 2 * 1_000 * TTL_SECS as u64;

/// What an agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Whether to keep neighbours.
    pub listen: bool,
    /// Bounds of the neighbour table.
    pub limits: Limits,
}

/// What became of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// Heard for the first time, or again after it was gone.
    New,
    /// Says something else than before.
    Updated,
    /// Said good-bye.
    Shutdown,
    /// Its TTL ended.
    Aged,
    /// The link went down: at the other end may be another port when it comes up again.
    LinkDown,
}

impl Event {
    /// Stable word for logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Updated => "updated",
            Self::Shutdown => "shutdown",
            Self::Aged => "aged",
            Self::LinkDown => "link_down",
        }
    }
}

/// What the caller is to do or to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, moved once")]
pub enum Output {
    /// Send this Ethernet frame.
    Transmit(Vec<u8>),
    /// A neighbour changed; as it is now, or as it was when it went.
    Neighbour(Event, Neighbour),
    /// Nothing was heard for [`SILENCE_MS`] although the link is up. Told once until a frame comes.
    Silent,
    /// A frame came after all.
    HeardAgain,
}

/// The agent. Contract: one `handle_*`, then [`Agent::poll_output`] until it is empty. `now_ms` is a
/// monotonic clock.
#[derive(Debug)]
pub struct Agent {
    iface: String,
    config: Config,
    table: Table,
    announcement: Option<Frame>,
    /// When the link came up; none while it is down.
    up_ms: Option<u64>,
    sent_ms: Option<u64>,
    next_ms: u64,
    fast_left: u8,
    heard_ms: Option<u64>,
    silent: bool,
    out: VecDeque<Output>,
}

impl Agent {
    /// An agent for `iface`, whose link counts as down until [`Agent::handle_link`].
    pub fn new(iface: &str, config: Config) -> Self {
        Self {
            iface: iface.to_owned(),
            config,
            table: Table::new(config.limits),
            announcement: None,
            up_ms: None,
            sent_ms: None,
            next_ms: 0,
            fast_left: 0,
            heard_ms: None,
            silent: false,
            out: VecDeque::new(),
        }
    }

    /// What is announced from now on, at once and with a fast start; none announces nothing.
    pub fn set_announcement(&mut self, now_ms: u64, announcement: Option<Frame>) {
        self.announcement = announcement;
        self.start_fast(now_ms);
        self.handle_timeout(now_ms);
    }

    /// The link came up or went down.
    pub fn handle_link(&mut self, now_ms: u64, up: bool) {
        match (self.up_ms, up) {
            (None, true) => {
                self.up_ms = Some(now_ms);
                self.start_fast(now_ms);
            }
            (Some(_), false) => {
                self.up_ms = None;
                self.silent = false;
                for neighbour in self.table.clear() {
                    self.tell(Event::LinkDown, neighbour);
                }
            }
            (None, false) | (Some(_), true) => {}
        }
        self.handle_timeout(now_ms);
    }

    /// A frame came in.
    ///
    /// # Errors
    /// What [`Table::handle`] refuses; it counts as heard all the same.
    pub fn handle_frame(&mut self, now_ms: u64, bytes: &[u8]) -> Result<(), Refused> {
        if !self.config.listen {
            return Ok(());
        }
        // Before the table drops the aged ones itself: each end is told.
        self.handle_timeout(now_ms);
        self.heard_ms = Some(now_ms);
        if std::mem::take(&mut self.silent) {
            self.out.push_back(Output::HeardAgain);
        }
        let frame = Frame::parse(bytes)?;
        let (chassis, port) = (frame.lldpdu.chassis.clone(), frame.lldpdu.port.clone());
        let before = self.table.get(&self.iface, &chassis, &port).cloned();
        let event = match self.table.handle(now_ms, &self.iface, bytes)? {
            Change::New => Event::New,
            Change::Updated => Event::Updated,
            Change::Shutdown(true) => Event::Shutdown,
            Change::Refreshed | Change::Shutdown(false) => return Ok(()),
        };
        if event == Event::New {
            // Clause 9.2.7.7: a new neighbour hears of us soon.
            self.start_fast(now_ms);
        }
        let after = self.table.get(&self.iface, &chassis, &port).cloned();
        if let Some(neighbour) = after.or(before) {
            self.tell(event, neighbour);
        }
        self.handle_timeout(now_ms);
        Ok(())
    }

    /// When [`Agent::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<u64> {
        let announce = self.announces().then_some(self.next_ms);
        [announce, self.table.poll_timeout(), self.silent_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Lets time pass: announces, ages neighbours, notices silence.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        for neighbour in self.table.handle_timeout(now_ms) {
            self.tell(Event::Aged, neighbour);
        }
        if self.silent_at().is_some_and(|at| at <= now_ms) {
            self.silent = true;
            self.out.push_back(Output::Silent);
        }
        if !self.announces() || now_ms < self.next_ms {
            return;
        }
        if let Some(frame) = &self.announcement {
            self.out.push_back(Output::Transmit(frame.encode()));
        }
        self.sent_ms = Some(now_ms);
        self.fast_left = self.fast_left.saturating_sub(1);
        let pause = match self.fast_left {
            0 => u64::from(INTERVAL_SECS) * 1_000,
            _ => FAST_MS,
        };
        self.next_ms = now_ms.saturating_add(pause);
    }

    /// The next thing to do or to tell.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// The good-bye (clause 9.1.2.2: TTL 0 and nothing optional), when anything was announced on this
    /// link. The agent announces nothing afterwards.
    pub fn shutdown(&mut self) -> Option<Vec<u8>> {
        let frame = self.announcement.take()?;
        self.sent_ms.filter(|_| self.up_ms.is_some())?;
        let pdu = Lldpdu::new(frame.lldpdu.chassis, frame.lldpdu.port, 0);
        Some(Frame::announce(frame.source, pdu).encode())
    }

    /// The interface.
    pub fn iface(&self) -> &str {
        &self.iface
    }

    /// What is announced.
    pub fn announcement(&self) -> Option<&Frame> {
        self.announcement.as_ref()
    }

    /// Whether the link is up.
    pub fn link_up(&self) -> bool {
        self.up_ms.is_some()
    }

    /// Whether the silence was told and lasts.
    pub fn silent(&self) -> bool {
        self.silent
    }

    /// When the last frame came, readable or not.
    pub fn heard_ms(&self) -> Option<u64> {
        self.heard_ms
    }

    /// Neighbours whose TTL has not ended.
    pub fn neighbours(&self, now_ms: u64) -> impl Iterator<Item = &Neighbour> {
        self.table.iter(now_ms)
    }

    fn announces(&self) -> bool {
        self.announcement.is_some() && self.up_ms.is_some()
    }

    fn silent_at(&self) -> Option<u64> {
        let up = self.up_ms?;
        let last = self.heard_ms.map_or(up, |heard| heard.max(up));
        (self.config.listen && !self.silent).then(|| last.saturating_add(SILENCE_MS))
    }

    fn start_fast(&mut self, now_ms: u64) {
        self.fast_left = FAST_COUNT;
        let earliest = self.sent_ms.map_or(0, |sent| sent.saturating_add(FAST_MS));
        self.next_ms = now_ms.max(earliest);
    }

    fn tell(&mut self, event: Event, neighbour: Neighbour) {
        self.out.push_back(Output::Neighbour(event, neighbour));
    }
}

/// Says what silence on `iface` may be, and what to do, from the name of its driver (or `bridge`,
/// `bonding` for what has no driver).
pub fn explain_silence(iface: &str, driver: Option<&str>) -> Explanation {
    let next = match driver {
        Some("i40e") => {
            "the firmware of this NIC keeps LLDP for itself: ethtool --set-priv-flags INTERFACE disable-fw-lldp on"
        }
        Some("ice") => {
            "the firmware of this NIC keeps LLDP for itself: ethtool --set-priv-flags INTERFACE fw-lldp-agent off"
        }
        Some("bnxt_en" | "mlx5_core" | "qede") => {
            "the firmware of this NIC may keep LLDP for itself: turn its LLDP or DCBX agent off with the vendor's tool, then look at the switch port"
        }
        Some("bridge" | "bonding") => {
            "LLDP ends at the members of a bridge or bond: name them in provisioning.lldp.interfaces"
        }
        Some(_) | None => {
            "look whether LLDP is on at the switch port; then whether the NIC's firmware has an LLDP agent of its own"
        }
    };
    Explanation {
        code: "lldp.silent",
        expected: format!(
            "an LLDP frame within {} s of the last one or of link-up",
            SILENCE_MS / 1_000
        ),
        found: format!("none on {iface} (driver {})", driver.unwrap_or("unknown")),
        source: "IEEE 802.1AB-2016 clause 9.2.5",
        next,
    }
}

#[cfg(test)]
mod tests;
