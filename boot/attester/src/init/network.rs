//! From interfaces to one address and a gateway, and the LLDP frames heard on the way.
//!
//! Every interface is brought up and listened to; the first one with a carrier whose DHCP server
//! answers becomes the uplink. A lease is asked for anew at half of its time.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use attest_wire::v1::LLDP_MAX;
use hw::nic::{self, Interface, LldpSocket};

use super::dhcp;
use crate::console::{say, say_error};
use crate::facts::HeardFrame;

/// Longest wait for a carrier on any interface: some switches take half a minute to forward.
const CARRIER_WAIT: Duration = Duration::from_secs(30);
/// Time for the first LLDP frame, from link-up on; switches send within seconds of it.
const LLDP_WAIT: Duration = Duration::from_secs(8);
/// How long a listening thread blocks.
const LISTEN: Duration = Duration::from_secs(5);

/// An address and whom to talk to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Uplink {
    /// Interface.
    pub ifname: String,
    /// The gateway.
    pub gateway: Ipv4Addr,
}

struct Lease {
    ifname: String,
    /// Where the gateway may be: the server that leased, then the next server.
    gateways: VecDeque<Ipv4Addr>,
    renew_at: Instant,
}

/// All interfaces of the machine.
pub(super) struct Network {
    interfaces: Vec<Interface>,
    heard: Arc<Mutex<VecDeque<HeardFrame>>>,
    listening: Vec<String>,
    lease: Option<Lease>,
    /// When the links were brought up, until the first wait for LLDP is over.
    listen_until: Option<Instant>,
}

impl Network {
    /// Brings every interface up and starts to listen for LLDP.
    pub fn start() -> Self {
        let mut network = Self {
            interfaces: Vec::new(),
            heard: Arc::default(),
            listening: Vec::new(),
            lease: None,
            listen_until: None,
        };
        network.bring_up();
        network
    }

    /// Interfaces may appear late (USB, slow drivers), so this is done again before each search.
    fn bring_up(&mut self) {
        self.interfaces = nic::interfaces();
        for interface in &self.interfaces {
            let name = &interface.name;
            if self.listening.contains(name) {
                continue;
            }
            // Listen before the link comes up: a switch greets with LLDP at once.
            match LldpSocket::open(name) {
                Ok(socket) => listen(socket, Arc::clone(&self.heard)),
                Err(error) => say_error("network", &error),
            }
            if let Err(error) = nic::link_up(name) {
                say_error("network", &error);
            }
            self.listening.push(name.clone());
            self.listen_until = Some(Instant::now() + LLDP_WAIT);
        }
    }

    /// The uplink that is there, or a search for one.
    ///
    /// # Errors
    /// One line for the console.
    pub fn uplink(&mut self) -> Result<Uplink, String> {
        if let Some(lease) = &self.lease
            && Instant::now() < lease.renew_at
            && let Some(gateway) = lease.gateways.front()
        {
            return Ok(Uplink {
                ifname: lease.ifname.clone(),
                gateway: *gateway,
            });
        }
        self.lease = None;
        self.bring_up();
        if self.interfaces.is_empty() {
            return Err("no network interface: its driver is not in this image".to_owned());
        }
        let lease = self.search()?;
        let gateway = *lease
            .gateways
            .front()
            .ok_or("the DHCP server named no gateway")?;
        let uplink = Uplink {
            ifname: lease.ifname.clone(),
            gateway,
        };
        self.lease = Some(lease);
        Ok(uplink)
    }

    /// An attempt failed: the next server address is tried, and when none is left, a new lease.
    pub fn forget(&mut self, uplink: &Uplink) {
        if let Some(lease) = &mut self.lease {
            lease.gateways.retain(|gateway| *gateway != uplink.gateway);
            if lease.gateways.is_empty() {
                self.lease = None;
            }
        }
    }

    /// The newest LLDP frames. The first call waits until a frame was heard or its time is over.
    pub fn heard(&mut self) -> Vec<HeardFrame> {
        if let Some(until) = self.listen_until.take() {
            while self.frames().is_empty() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        self.frames()
    }

    fn frames(&self) -> Vec<HeardFrame> {
        let frames = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        frames.iter().cloned().collect()
    }

    fn search(&self) -> Result<Lease, String> {
        let deadline = Instant::now() + CARRIER_WAIT;
        loop {
            let ready: Vec<&Interface> = self
                .interfaces
                .iter()
                .filter(|interface| {
                    nic::wait_for_carrier(&interface.name, Duration::ZERO).unwrap_or(false)
                })
                .collect();
            for interface in &ready {
                match self.lease_on(interface) {
                    Ok(lease) => return Ok(lease),
                    Err(why) => say("network", &format!("{}: {why}", interface.name)),
                }
            }
            if !ready.is_empty() {
                return Err("no DHCP server offers an address".to_owned());
            }
            if Instant::now() >= deadline {
                let names: Vec<&str> = self.interfaces.iter().map(|i| i.name.as_str()).collect();
                return Err(format!("no link on {}: is the cable in?", names.join(", ")));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn lease_on(&self, interface: &Interface) -> Result<Lease, String> {
        let mac = interface.mac.ok_or("has no hardware address")?;
        let offer = dhcp::acquire(&interface.name, mac).map_err(|error| error.to_string())?;
        nic::configure_ipv4(&interface.name, offer.addr, offer.prefix, offer.router)
            .map_err(|error| error.to_string())?;
        say(
            "network",
            &format!("{} has {}/{}", interface.name, offer.addr, offer.prefix),
        );
        let mut gateways = VecDeque::from([offer.server]);
        if offer.next_server != offer.server && !offer.next_server.is_unspecified() {
            gateways.push_back(offer.next_server);
        }
        Ok(Lease {
            ifname: interface.name.clone(),
            gateways,
            renew_at: Instant::now() + Duration::from_secs(u64::from(offer.lease_secs / 2)),
        })
    }
}

/// Listens for as long as the interface lives.
fn listen(socket: LldpSocket, heard: Arc<Mutex<VecDeque<HeardFrame>>>) {
    let spawned = std::thread::Builder::new()
        .name("lldp".to_owned())
        .spawn(move || {
            loop {
                match socket.recv(LISTEN) {
                    Ok(Some(frame)) => keep(
                        &mut heard.lock().unwrap_or_else(PoisonError::into_inner),
                        HeardFrame {
                            frame: frame.bytes,
                            heard: frame.at,
                            nic: socket.ifname().to_owned(),
                        },
                    ),
                    Ok(None) => {}
                    // A link that is down answers with an error; it may come back.
                    Err(_) => std::thread::sleep(LISTEN),
                }
            }
        });
    if let Err(error) = spawned {
        say_error("network", &error);
    }
}

/// Keeps the newest frames; a repetition replaces its older copy.
fn keep(frames: &mut VecDeque<HeardFrame>, new: HeardFrame) {
    frames.retain(|old| old.nic != new.nic || old.frame != new.frame);
    if frames.len() == LLDP_MAX {
        frames.pop_front();
    }
    frames.push_back(new);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(byte: u8, nic: &str) -> HeardFrame {
        HeardFrame {
            frame: vec![byte; 60],
            heard: Instant::now(),
            nic: nic.to_owned(),
        }
    }

    #[test]
    fn repetitions_replace_and_the_newest_stay() {
        let mut frames = VecDeque::new();
        for _ in 0..5 {
            keep(&mut frames, frame(1, "eth0"));
        }
        keep(&mut frames, frame(1, "eth1"));
        assert_eq!(frames.len(), 2);
        for byte in 2..30 {
            keep(&mut frames, frame(byte, "eth0"));
        }
        assert_eq!(frames.len(), LLDP_MAX);
        assert_eq!(frames.back().unwrap().frame[0], 29);
    }

    #[test]
    fn a_failed_attempt_goes_to_the_next_server_then_asks_anew() {
        let (server, next) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let mut network = Network {
            interfaces: Vec::new(),
            heard: Arc::default(),
            listening: Vec::new(),
            lease: Some(Lease {
                ifname: "eth0".to_owned(),
                gateways: VecDeque::from([server, next]),
                renew_at: Instant::now() + Duration::from_secs(60),
            }),
            listen_until: None,
        };
        let uplink = network.uplink().unwrap();
        assert_eq!(uplink.gateway, server);
        network.forget(&uplink);
        let uplink = network.uplink().unwrap();
        assert_eq!(uplink.gateway, next);
        network.forget(&uplink);
        assert!(network.lease.is_none());
    }
}
