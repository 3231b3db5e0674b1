//! The starvation guard: what a flood of made-up clients may take, and what stays for the others.
//!
//! A hardware address costs its inventor nothing, so nothing that one DISCOVER can take is free of a
//! bound. A client is *known* when it holds a lease or an offer, has a reservation, comes back to an
//! address that was leased to it, or when the owner's records know it ([`BootAnswer::knows`]). Who is
//! known pays nothing here; everybody else is new and needs a token of its port, a place among the
//! open offers and the addresses of its port, and a pool below its watermark.
//!
//! [`BootAnswer::knows`]: super::BootAnswer::knows

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::str::FromStr;

use super::{ClientInfo, Refused};

/// Octets kept of a circuit or remote id. Switches send names and numbers of some 10 octets; one
/// address holds at most this much of what a relay wrote.
const ID_LEN_MAX: usize = 128;
/// Ports whose rate is measured on their own: a /22 of machines, each on its own switch port. What
/// comes from further ones is measured together.
const PORTS_MAX: usize = 1024;

/// The port that option 82 names: as good as the wire to the switch that wrote it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId {
    /// Relay agent; zero when the switch did not relay.
    pub giaddr: Ipv4Addr,
    /// Sub-option 1, at most 128 octets of it; empty when absent.
    pub circuit_id: Vec<u8>,
    /// Sub-option 2, the same.
    pub remote_id: Vec<u8>,
}

impl PortId {
    /// The port in a client's message, if option 82 names one.
    pub fn of(client: &ClientInfo) -> Option<Self> {
        let relay = client.relay.as_ref()?;
        let cut = |id: &Option<Vec<u8>>| {
            let id = id.as_deref().unwrap_or_default();
            id[..id.len().min(ID_LEN_MAX)].to_vec()
        };
        let (circuit_id, remote_id) = (cut(&relay.circuit_id), cut(&relay.remote_id));
        if circuit_id.is_empty() && remote_id.is_empty() {
            return None;
        }
        Some(Self {
            giaddr: relay.giaddr,
            circuit_id,
            remote_id,
        })
    }

    /// For people: text where the octets are text, hex elsewhere.
    pub fn to_text(&self) -> String {
        let shown = |id: &[u8]| {
            let text = id.iter().all(|octet| octet.is_ascii_graphic());
            match std::str::from_utf8(id) {
                Ok(id) if text => id.to_owned(),
                _ => format!("0x{}", hex_of(id)),
            }
        };
        let mut out = format!("relay {}", self.giaddr);
        for (name, id) in [("circuit", &self.circuit_id), ("remote", &self.remote_id)] {
            if !id.is_empty() {
                out.push_str(&format!(" {name} {}", shown(id)));
            }
        }
        out
    }
}

/// `GIADDR/CIRCUIT/REMOTE`, the ids in hex: exact, for the lease journal.
impl std::fmt::Display for PortId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (circuit, remote) = (hex_of(&self.circuit_id), hex_of(&self.remote_id));
        write!(f, "{}/{circuit}/{remote}", self.giaddr)
    }
}

impl std::fmt::Debug for PortId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Text that is no `GIADDR/CIRCUIT/REMOTE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not of the form GIADDR/CIRCUIT/REMOTE")]
pub struct PortIdError;

impl FromStr for PortId {
    type Err = PortIdError;

    fn from_str(text: &str) -> Result<Self, PortIdError> {
        let mut parts = text.split('/');
        let mut next = || parts.next().ok_or(PortIdError);
        let (giaddr, circuit, remote) = (next()?, next()?, next()?);
        if next().is_ok() {
            return Err(PortIdError);
        }
        Ok(Self {
            giaddr: giaddr.parse().map_err(|_| PortIdError)?,
            circuit_id: octets_of(circuit).ok_or(PortIdError)?,
            remote_id: octets_of(remote).ok_or(PortIdError)?,
        })
    }
}

fn hex_of(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn octets_of(hex: &str) -> Option<Vec<u8>> {
    if !hex.is_ascii() || !hex.len().is_multiple_of(2) || hex.len() > 2 * ID_LEN_MAX {
        return None;
    }
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok())
        .collect()
}

/// How many new clients one port may bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// In the long run, per second.
    pub per_sec: u32,
    /// At once.
    pub burst: u32,
}

/// A token bucket in thousandths of a token, so that a millisecond earns `per_sec` of them.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    millis: u64,
    at_ms: u64,
}

impl Bucket {
    fn full(rate: Rate, now_ms: u64) -> Self {
        Self {
            millis: u64::from(rate.burst) * 1000,
            at_ms: now_ms,
        }
    }

    fn fill(&mut self, rate: Rate, now_ms: u64) {
        // A clock that was set back earns nothing and loses nothing.
        let passed = now_ms.saturating_sub(self.at_ms);
        let earned = passed.saturating_mul(u64::from(rate.per_sec));
        let most = u64::from(rate.burst) * 1000;
        self.millis = self.millis.saturating_add(earned).min(most);
        self.at_ms = now_ms;
    }

    fn take(&mut self, rate: Rate, now_ms: u64) -> bool {
        self.fill(rate, now_ms);
        let paid = self.millis >= 1000;
        if paid {
            self.millis -= 1000;
        }
        paid
    }

    fn is_full(&self, rate: Rate, now_ms: u64) -> bool {
        let mut then = *self;
        then.fill(rate, now_ms);
        then.millis == u64::from(rate.burst) * 1000
    }
}

/// The token buckets: one for each port that option 82 names, one for each interface of ours.
#[derive(Debug)]
pub(crate) struct Meter {
    port_rate: Rate,
    iface_rate: Rate,
    ports: BTreeMap<PortId, Bucket>,
    /// All ports beyond [`PORTS_MAX`].
    others: Option<Bucket>,
    ifaces: BTreeMap<String, Bucket>,
}

impl Meter {
    pub fn new(port_rate: Rate, iface_rate: Rate) -> Self {
        Self {
            port_rate,
            iface_rate,
            ports: BTreeMap::new(),
            others: None,
            ifaces: BTreeMap::new(),
        }
    }

    /// Takes one token for a new client, of its interface and of its port.
    ///
    /// # Errors
    /// [`Refused::RateLimit`] names the bucket that is empty.
    pub fn take(&mut self, now_ms: u64, port: Option<&PortId>, iface: &str) -> Result<(), Refused> {
        let refused = |port: String, rate: Rate| Refused::RateLimit {
            port,
            per_sec: rate.per_sec,
        };
        if let Some(port) = port {
            let rate = self.port_rate;
            if !self.bucket(now_ms, port).take(rate, now_ms) {
                return Err(refused(port.to_text(), rate));
            }
        }
        let rate = self.iface_rate;
        // Interfaces are ours: there are as many as are configured.
        let bucket = match self.ifaces.get_mut(iface) {
            Some(bucket) => bucket,
            None => self
                .ifaces
                .entry(iface.to_owned())
                .or_insert_with(|| Bucket::full(rate, now_ms)),
        };
        if !bucket.take(rate, now_ms) {
            return Err(refused(format!("interface {iface}"), rate));
        }
        Ok(())
    }

    fn bucket(&mut self, now_ms: u64, port: &PortId) -> &mut Bucket {
        let rate = self.port_rate;
        if !self.ports.contains_key(port) && self.ports.len() >= PORTS_MAX {
            // A full bucket says no more than a new one.
            self.ports.retain(|_, bucket| !bucket.is_full(rate, now_ms));
            if self.ports.len() >= PORTS_MAX {
                return self
                    .others
                    .get_or_insert_with(|| Bucket::full(rate, now_ms));
            }
        }
        self.ports
            .entry(port.clone())
            .or_insert_with(|| Bucket::full(rate, now_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        per_sec: 10,
        burst: 20,
    };

    fn port(n: u32) -> PortId {
        PortId {
            giaddr: Ipv4Addr::new(10, 0, 0, 1),
            circuit_id: n.to_be_bytes().to_vec(),
            remote_id: Vec::new(),
        }
    }

    fn taken(meter: &mut Meter, now_ms: u64, port: &PortId, tries: u32) -> usize {
        (0..tries)
            .filter(|_| meter.take(now_ms, Some(port), "prov0").is_ok())
            .count()
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut meter = Meter::new(
            RATE,
            Rate {
                per_sec: 9,
                burst: 99,
            },
        );
        assert_eq!(taken(&mut meter, 0, &port(1), 100), 20);
        assert_eq!(taken(&mut meter, 99, &port(1), 100), 0);
        assert_eq!(taken(&mut meter, 1_000, &port(1), 100), 10);
        assert_eq!(taken(&mut meter, 500, &port(1), 100), 0, "time set back");
        assert_eq!(taken(&mut meter, u64::MAX, &port(1), 100), 20);
        assert_eq!(taken(&mut meter, u64::MAX, &port(2), 100), 20);
    }

    #[test]
    fn rejects_at_the_interface_when_every_port_is_new() {
        let iface = Rate {
            per_sec: 1,
            burst: 30,
        };
        let mut meter = Meter::new(RATE, iface);
        let passed = (0..100)
            .filter(|n| meter.take(0, Some(&port(*n)), "prov0").is_ok())
            .count();
        assert_eq!(passed, 30);
        let refused = meter.take(0, None, "prov0").unwrap_err();
        assert_eq!(refused.code(), "dhcp.rate_limit");
        assert!(refused.to_string().contains("interface prov0"), "{refused}");
        assert!(meter.take(0, None, "prov1").is_ok());
    }

    #[test]
    fn made_up_ports_share_one_bucket_and_idle_ones_make_room() {
        let iface = Rate {
            per_sec: 1_000_000,
            burst: 1_000_000,
        };
        let mut meter = Meter::new(RATE, iface);
        let passed = (0..10_000)
            .filter(|n| meter.take(0, Some(&port(*n)), "prov0").is_ok())
            .count();
        assert_eq!(passed, PORTS_MAX + 20);
        assert_eq!(meter.ports.len(), PORTS_MAX);
        assert_eq!(taken(&mut meter, 100, &port(20_000), 100), 20);
        assert!(meter.ports.len() <= PORTS_MAX);
    }

    #[test]
    fn a_port_reads_back() {
        for text in ["10.0.0.1/65746837/", "0.0.0.0//00ff", "10.0.0.1/00/01"] {
            let port: PortId = text.parse().unwrap();
            assert_eq!(port.to_string(), text);
        }
        let port: PortId = "10.0.0.1/65746837/00ff".parse().unwrap();
        assert_eq!(port.to_text(), "relay 10.0.0.1 circuit eth7 remote 0x00ff");
        for bad in [
            "",
            "10.0.0.1",
            "10.0.0.1/0/",
            "10.0.0.1/zz/",
            "x/00/00",
            "10.0.0.1/00/00/00",
            "10.0.0.1/\u{e9}\u{e9}/",
        ] {
            assert_eq!(bad.parse::<PortId>(), Err(PortIdError), "{bad}");
        }
    }
}
