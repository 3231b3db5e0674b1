//! LLDP frames <-> `netstack::lldp::Agent`: who is at the other end of our cables, and our own
//! announcement.
//!
//! Moves frames and tells what changed; the agent decides when. Nothing here reaches the gateway's
//! core, and nothing here ends the daemon: an interface that is missing or breaks is a problem in
//! the status and is tried again.

use std::net::Ipv4Addr;
use std::time::Duration;

use gateway_core::reason::Reason;
use hw::nic::{self, LldpSocket, NicError};
use netstack::MacAddr;
use netstack::lldp::agent::{Config as AgentConfig, Event, Output, TTL_SECS, explain_silence};
use netstack::lldp::neighbour::Limits;
use netstack::lldp::tlv::{Capabilities, ManagementAddress};
use netstack::lldp::{Agent, Frame, Id, Lldpdu, Neighbour};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::metrics::{LLDP_FRAMES, LLDP_NEIGHBOURS, Metrics};
use crate::neighbours::{Neighbours, Port};
use crate::telemetry::{self, redact};

/// How often the link is looked at, and a broken interface tried again.
const LINK_CHECK: Duration = Duration::from_secs(1);
/// Frames read in one turn, so that a flood on one cable leaves time for everything else.
const FRAMES_PER_TURN: usize = 64;
/// Lines about neighbours in one minute and interface; further changes are only counted.
const LINES_PER_MINUTE: u32 = 30;

/// What LLDP is to do on all interfaces.
pub struct LldpService {
    neighbours: Neighbours,
    identity: Identity,
    metrics: std::sync::Arc<Metrics>,
}

/// What we say of ourselves.
#[derive(Debug, Clone)]
struct Identity {
    name: String,
    address: Ipv4Addr,
    provisioning: String,
}

impl LldpService {
    /// One agent for each configured interface; none when LLDP is switched off.
    pub fn new(config: &Config, metrics: std::sync::Arc<Metrics>) -> Self {
        let provisioning = &config.provisioning;
        let lldp = &provisioning.lldp;
        let used = lldp.announce || lldp.listen;
        let names = std::iter::once(&provisioning.interface).chain(&lldp.interfaces);
        let ports = names.filter(|_| used).map(|name| Port {
            agent: Agent::new(
                name,
                AgentConfig {
                    listen: lldp.listen,
                    limits: Limits::default(),
                },
            ),
            announces: lldp.announce,
            listens: lldp.listen,
            driver: nic::driver(name),
            sent: 0,
            received: 0,
            refused: 0,
            trouble: None,
        });
        Self {
            neighbours: Neighbours::new(ports.collect()),
            identity: Identity {
                name: config.appliance.name.clone(),
                address: provisioning.address.address,
                provisioning: provisioning.interface.clone(),
            },
            metrics,
        }
    }

    /// For whoever shows them.
    pub fn neighbours(&self) -> Neighbours {
        self.neighbours.clone()
    }

    /// Speaks and listens on every interface until `cancel`, then says good-bye.
    pub async fn run(self, cancel: CancellationToken) {
        let mut tasks = JoinSet::new();
        for index in 0..self.neighbours.len() {
            let wire = Wire {
                neighbours: self.neighbours.clone(),
                index,
                iface: self.neighbours.port(index).agent.iface().to_owned(),
                identity: self.identity.clone(),
                metrics: self.metrics.clone(),
                lines: Lines::default(),
            };
            let cancel = cancel.clone();
            tasks.spawn(wire.run(cancel));
        }
        if tasks.is_empty() {
            cancel.cancelled().await;
        }
        while tasks.join_next().await.is_some() {}
    }
}

/// One interface.
struct Wire {
    neighbours: Neighbours,
    index: usize,
    iface: String,
    identity: Identity,
    metrics: std::sync::Arc<Metrics>,
    lines: Lines,
}

impl Wire {
    async fn run(mut self, cancel: CancellationToken) {
        let mut socket: Option<AsyncFd<LldpSocket>> = None;
        let mut check_at = Instant::now();
        loop {
            if Instant::now() >= check_at {
                check_at = Instant::now() + LINK_CHECK;
                self.check(&mut socket);
            }
            self.timers(&socket);
            let wake = check_at.min(self.wake());
            let broken = tokio::select! {
                () = cancel.cancelled() => break,
                () = tokio::time::sleep_until(wake) => false,
                broken = self.receive(&socket) => broken,
            };
            if broken {
                socket = None;
            }
        }
        let good_bye = self.neighbours.port(self.index).agent.shutdown();
        if let (Some(frame), Some(socket)) = (good_bye, &socket) {
            self.send(socket.get_ref(), &frame);
        }
    }

    /// Opens what is not open, and tells the agent of the link.
    fn check(&mut self, socket: &mut Option<AsyncFd<LldpSocket>>) {
        let link = if socket.is_some() {
            nic::carrier(&self.iface)
        } else {
            self.open()
                .map(|opened| *socket = opened)
                .and_then(|()| nic::carrier(&self.iface))
        };
        let up = match link {
            Ok(up) => {
                self.trouble(None);
                up
            }
            Err(error) => {
                *socket = None;
                self.trouble(Some(telemetry::chain(&error)));
                false
            }
        };
        let now_ms = self.neighbours.now_ms();
        let up = up && socket.is_some();
        self.neighbours
            .port(self.index)
            .agent
            .handle_link(now_ms, up);
    }

    #[expect(
        deprecated,
        reason = "its successor is unsafe, which this ring forbids; a LldpSocket owns its descriptor for as long as it lives and never replaces it"
    )]
    fn open(&self) -> Result<Option<AsyncFd<LldpSocket>>, NicError> {
        let opened = LldpSocket::open(&self.iface)?;
        let announcement = self.announcement(&opened);
        let driver = nic::driver(&self.iface);
        let now_ms = self.neighbours.now_ms();
        let mut port = self.neighbours.port(self.index);
        port.driver = driver;
        let announcement = announcement.filter(|_| port.announces);
        port.agent.set_announcement(now_ms, announcement);
        drop(port);
        // Only a runtime that shuts down refuses: tried again at the next look.
        Ok(AsyncFd::with_interest(opened, Interest::READABLE).ok())
    }

    /// Logs a trouble when it begins and when it ends.
    fn trouble(&self, trouble: Option<String>) {
        let mut port = self.neighbours.port(self.index);
        if port.trouble == trouble {
            return;
        }
        match &trouble {
            Some(error) => tracing::warn!(iface = self.iface, error, "lldp not possible"),
            None => tracing::info!(iface = self.iface, "lldp possible again"),
        }
        port.trouble = trouble;
    }

    fn announcement(&self, socket: &LldpSocket) -> Option<Frame> {
        let mac = nic::interfaces()
            .into_iter()
            .find(|interface| interface.name == self.iface)
            .and_then(|interface| interface.mac)
            .map(MacAddr)?;
        let mut pdu = Lldpdu::new(Id::mac(mac), Id::interface(&self.iface), TTL_SECS);
        if self.iface == self.identity.provisioning {
            pdu.port_description = Some("provisioning".to_owned());
        }
        pdu.system_name = Some(self.identity.name.clone());
        pdu.system_description = Some(format!(
            "Vestibule {} edge attestation gateway",
            env!("CARGO_PKG_VERSION")
        ));
        // Nothing is forwarded from one interface to another.
        pdu.capabilities = Some(Capabilities {
            supported: Capabilities::STATION,
            enabled: Capabilities::STATION,
        });
        pdu.management.push(ManagementAddress {
            family: 1,
            addr: self.identity.address.octets().to_vec(),
            numbering: 2,
            interface: socket.index(),
            oid: Vec::new(),
        });
        Some(Frame::announce(mac, pdu))
    }

    fn wake(&self) -> Instant {
        let now_ms = self.neighbours.now_ms();
        let next = self.neighbours.port(self.index).agent.poll_timeout();
        let wait = next.map_or(LINK_CHECK, |at| {
            Duration::from_millis(at.saturating_sub(now_ms))
        });
        Instant::now() + wait
    }

    /// Waits for frames and hands them over; true when the socket is of no use any more.
    async fn receive(&self, socket: &Option<AsyncFd<LldpSocket>>) -> bool {
        let Some(socket) = socket
            .as_ref()
            .filter(|_| self.neighbours.port(self.index).listens)
        else {
            return std::future::pending().await;
        };
        let Ok(mut ready) = socket.readable().await else {
            return true;
        };
        for _ in 0..FRAMES_PER_TURN {
            match socket.get_ref().recv(Duration::ZERO) {
                Ok(Some(frame)) => self.frame(&frame.bytes),
                Ok(None) => {
                    ready.clear_ready();
                    return false;
                }
                // Also told when the link goes down. The next look says what it is.
                Err(error) => {
                    tracing::debug!(iface = self.iface, error = telemetry::chain(&error), "lldp");
                    return true;
                }
            }
        }
        false
    }

    fn frame(&self, bytes: &[u8]) {
        let now_ms = self.neighbours.now_ms();
        let mut port = self.neighbours.port(self.index);
        port.received += 1;
        match port.agent.handle_frame(now_ms, bytes) {
            Ok(()) => self.metrics.count(LLDP_FRAMES, "received"),
            Err(refused) => {
                port.refused += 1;
                self.metrics.count(LLDP_FRAMES, refused.code());
                let reason = Reason::from(refused.explain());
                tracing::debug!(iface = self.iface, reason = %reason.code, found = %redact(&reason.found), "lldp frame refused");
            }
        }
    }

    /// Lets the agent's time pass and does what it says.
    fn timers(&mut self, socket: &Option<AsyncFd<LldpSocket>>) {
        let now_ms = self.neighbours.now_ms();
        self.neighbours
            .port(self.index)
            .agent
            .handle_timeout(now_ms);
        loop {
            let output = self.neighbours.port(self.index).agent.poll_output();
            match output {
                None => return,
                Some(Output::Transmit(frame)) => {
                    if let Some(socket) = socket {
                        self.send(socket.get_ref(), &frame);
                    }
                }
                Some(Output::Neighbour(event, neighbour)) => self.changed(event, &neighbour),
                Some(Output::Silent) => {
                    let driver = self.neighbours.port(self.index).driver.clone();
                    let reason = Reason::from(explain_silence(&self.iface, driver.as_deref()));
                    self.metrics.count(LLDP_NEIGHBOURS, "silent");
                    telemetry::decided(&self.iface, &reason);
                }
                Some(Output::HeardAgain) => {
                    tracing::info!(iface = self.iface, "lldp heard");
                }
            }
        }
    }

    /// A frame that cannot be sent is counted: the next one follows within 30 s.
    fn send(&self, socket: &LldpSocket, frame: &[u8]) {
        match socket.send(frame) {
            Ok(()) => {
                self.neighbours.port(self.index).sent += 1;
                self.metrics.count(LLDP_FRAMES, "sent");
            }
            Err(error) => {
                self.metrics.count(LLDP_FRAMES, "unsent");
                tracing::debug!(
                    iface = self.iface,
                    error = telemetry::chain(&error),
                    "lldp not sent"
                );
            }
        }
    }

    fn changed(&mut self, event: Event, neighbour: &Neighbour) {
        self.metrics.count(LLDP_NEIGHBOURS, event.as_str());
        if !self.lines.may(Instant::now()) {
            return;
        }
        let pdu = neighbour.lldpdu();
        tracing::info!(
            iface = self.iface,
            change = event.as_str(),
            role = pdu.role().as_str(),
            chassis = %redact(&pdu.chassis.to_string()),
            port = %redact(&pdu.port.to_string()),
            system_name = pdu.system_name.as_deref().map(redact),
            vlan = neighbour.frame.vlan,
            ttl_secs = pdu.ttl_secs,
            "neighbour"
        );
    }
}

/// Lines that may still be written in this minute.
#[derive(Default)]
struct Lines {
    since: Option<Instant>,
    written: u32,
}

impl Lines {
    fn may(&mut self, now: Instant) -> bool {
        if self
            .since
            .is_none_or(|since| now - since >= Duration::from_secs(60))
        {
            *self = Self {
                since: Some(now),
                written: 0,
            };
        }
        self.written += 1;
        if self.written == LINES_PER_MINUTE + 1 {
            tracing::warn!(
                "too many changes of LLDP neighbours: the rest of this minute is counted"
            );
        }
        self.written <= LINES_PER_MINUTE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_neighbours_are_bounded() {
        let mut lines = Lines::default();
        let start = Instant::now();
        let written = (0..1_000).filter(|_| lines.may(start)).count();
        assert_eq!(written, LINES_PER_MINUTE as usize);
        assert!(lines.may(start + Duration::from_secs(60)));
    }
}
