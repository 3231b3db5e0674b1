//! Who was heard on which interface, until its TTL ends.
//!
//! The table decides what is new, changed or gone. Whether a neighbour is the right one is decided
//! elsewhere, from [`Neighbour::frame`], which is kept as received.

use std::collections::BTreeMap;

use super::tlv::{Frame, Refused};
use super::{Id, Lldpdu};

/// Bounds of the table, each with the reason it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Neighbours on one interface. A cable has one far end; a few more cover bonds, virtual
    /// switches and a device behind the same hub.
    pub per_interface_max: usize,
    /// Neighbours in total.
    pub total_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_interface_max: 8,
            total_max: 512,
        }
    }
}

/// What makes a neighbour one (the MSAP of 802.1AB), per interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    iface: String,
    chassis: Id,
    port: Id,
}

/// One neighbour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Interface it was heard on.
    pub iface: String,
    /// Its last frame, read.
    pub frame: Frame,
    /// Its last frame, octets.
    pub bytes: Vec<u8>,
    /// When it was heard first, on the caller's clock, in milliseconds.
    pub first_ms: u64,
    /// When its last frame came.
    pub received_ms: u64,
    /// When it counts as gone.
    pub expires_ms: u64,
}

impl Neighbour {
    /// What it said.
    pub fn lldpdu(&self) -> &Lldpdu {
        &self.frame.lldpdu
    }
}

/// What a frame changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Heard for the first time, or again after it was gone.
    New,
    /// Known, and it says something else.
    Updated,
    /// Known, and it says the same.
    Refreshed,
    /// It said good-bye and is gone; `false` when it was not known.
    Shutdown(bool),
}

/// The neighbour table.
///
/// Call [`handle_timeout`](Self::handle_timeout) when [`poll_timeout`](Self::poll_timeout) is due;
/// a neighbour past its TTL is not shown even when the call is late.
#[derive(Debug)]
pub struct Table {
    limits: Limits,
    neighbours: BTreeMap<Key, Neighbour>,
}

impl Table {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            neighbours: BTreeMap::new(),
        }
    }

    /// Takes one frame received on an interface.
    ///
    /// # Errors
    /// What [`Frame::parse`] refuses, and [`Refused::TooManyNeighbours`]: the newest is refused,
    /// the known ones stay (802.1AB clause 9.2.7.7.5), so a flood cannot push the switch out.
    pub fn handle(&mut self, now_ms: u64, iface: &str, bytes: &[u8]) -> Result<Change, Refused> {
        let frame = Frame::parse(bytes)?;
        self.handle_timeout(now_ms);
        let pdu = &frame.lldpdu;
        let key = Key {
            iface: iface.to_owned(),
            chassis: pdu.chassis.clone(),
            port: pdu.port.clone(),
        };
        if pdu.is_shutdown() {
            return Ok(Change::Shutdown(self.neighbours.remove(&key).is_some()));
        }
        let known = self.neighbours.get(&key);
        let first_ms = known.map_or(now_ms, |known| known.first_ms);
        let change = match known {
            Some(known) if known.frame == frame => Change::Refreshed,
            Some(_) => Change::Updated,
            None => {
                let here = self
                    .neighbours
                    .keys()
                    .filter(|key| key.iface == iface)
                    .count();
                let full = here >= self.limits.per_interface_max;
                if full || self.neighbours.len() >= self.limits.total_max {
                    let held = if full { here } else { self.neighbours.len() };
                    return Err(Refused::TooManyNeighbours {
                        iface: iface.to_owned(),
                        held,
                    });
                }
                Change::New
            }
        };
        let expires_ms = now_ms.saturating_add(u64::from(pdu.ttl_secs) * 1000);
        self.neighbours.insert(
            key,
            Neighbour {
                iface: iface.to_owned(),
                frame,
                bytes: bytes.to_vec(),
                first_ms,
                received_ms: now_ms,
                expires_ms,
            },
        );
        Ok(change)
    }

    /// When the next neighbour's TTL ends.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.neighbours
            .values()
            .map(|neighbour| neighbour.expires_ms)
            .min()
    }

    /// Removes and returns the neighbours whose TTL ended.
    pub fn handle_timeout(&mut self, now_ms: u64) -> Vec<Neighbour> {
        self.neighbours
            .extract_if(.., |_, n| n.expires_ms <= now_ms)
            .map(|(_, n)| n)
            .collect()
    }

    /// Forgets and returns everybody.
    pub fn clear(&mut self) -> Vec<Neighbour> {
        std::mem::take(&mut self.neighbours).into_values().collect()
    }

    /// One neighbour, whether its TTL has ended or not.
    pub fn get(&self, iface: &str, chassis: &Id, port: &Id) -> Option<&Neighbour> {
        self.neighbours.get(&Key {
            iface: iface.to_owned(),
            chassis: chassis.clone(),
            port: port.clone(),
        })
    }

    /// Neighbours on one interface whose TTL has not ended.
    pub fn on<'a>(&'a self, now_ms: u64, iface: &'a str) -> impl Iterator<Item = &'a Neighbour> {
        self.iter(now_ms)
            .filter(move |neighbour| neighbour.iface == iface)
    }

    /// All neighbours whose TTL has not ended.
    pub fn iter(&self, now_ms: u64) -> impl Iterator<Item = &Neighbour> {
        self.neighbours
            .values()
            .filter(move |neighbour| now_ms < neighbour.expires_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MacAddr;

    fn frame(port: &str, ttl_secs: u16, name: &str) -> Vec<u8> {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut pdu = Lldpdu::new(Id::mac(mac), Id::interface(port), ttl_secs);
        pdu.system_name = Some(name.into());
        Frame::announce(mac, pdu).encode()
    }

    #[test]
    fn a_neighbour_from_first_frame_to_its_end() {
        let mut table = Table::new(Limits::default());
        assert_eq!(table.poll_timeout(), None);
        assert_eq!(
            table.handle(0, "eth0", &frame("swp1", 120, "sw")),
            Ok(Change::New)
        );
        assert_eq!(
            table.handle(30_000, "eth0", &frame("swp1", 120, "sw")),
            Ok(Change::Refreshed)
        );
        assert_eq!(
            table.handle(60_000, "eth0", &frame("swp1", 120, "sw2")),
            Ok(Change::Updated)
        );
        assert_eq!(table.poll_timeout(), Some(180_000));
        assert_eq!(table.on(60_000, "eth0").count(), 1);
        assert_eq!(table.on(60_000, "eth1").count(), 0);
        assert_eq!(
            table.iter(180_000).count(),
            0,
            "past its TTL, timeout or not"
        );
        let gone = table.handle_timeout(180_000);
        assert_eq!(gone.len(), 1);
        assert_eq!(gone[0].lldpdu().system_name.as_deref(), Some("sw2"));
        assert_eq!(
            table.handle(200_000, "eth0", &frame("swp1", 120, "sw")),
            Ok(Change::New)
        );
    }

    #[test]
    fn a_good_bye_removes_at_once() {
        let mut table = Table::new(Limits::default());
        assert_eq!(
            table.handle(0, "eth0", &frame("swp1", 0, "")),
            Ok(Change::Shutdown(false))
        );
        assert_eq!(
            table.handle(0, "eth0", &frame("swp1", 9, "")),
            Ok(Change::New)
        );
        assert_eq!(
            table.handle(1, "eth1", &frame("swp1", 0, "")),
            Ok(Change::Shutdown(false))
        );
        assert_eq!(
            table.handle(1, "eth0", &frame("swp1", 0, "")),
            Ok(Change::Shutdown(true))
        );
        assert_eq!(table.poll_timeout(), None);
    }

    #[test]
    fn rejects_a_flood_and_keeps_the_switch() {
        let mut table = Table::new(Limits {
            per_interface_max: 2,
            total_max: 3,
        });
        assert_eq!(
            table.handle(0, "eth0", &frame("swp1", 120, "sw")),
            Ok(Change::New)
        );
        assert_eq!(
            table.handle(0, "eth0", &frame("x1", 5, "")),
            Ok(Change::New)
        );
        let refused = Refused::TooManyNeighbours {
            iface: "eth0".into(),
            held: 2,
        };
        assert_eq!(table.handle(0, "eth0", &frame("x2", 5, "")), Err(refused));
        assert_eq!(
            table.handle(0, "eth0", &frame("swp1", 120, "sw")),
            Ok(Change::Refreshed)
        );
        assert_eq!(
            table.handle(0, "eth1", &frame("x1", 5, "")),
            Ok(Change::New)
        );
        assert_eq!(
            table
                .handle(0, "eth2", &frame("x1", 5, ""))
                .unwrap_err()
                .code(),
            "lldp.too_many_neighbours"
        );
        assert_eq!(
            table.handle(5000, "eth0", &frame("x2", 5, "")),
            Ok(Change::New),
            "room again"
        );
    }
}
