//! Open rules: which class may reach what.

use std::net::Ipv4Addr;
use std::str::FromStr;

/// Transport protocols with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proto {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A protocol with a port or a range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports {
    /// The protocol.
    pub proto: Proto,
    /// First destination port.
    pub first: u16,
    /// Last destination port.
    pub last: u16,
}

/// IPv4 destinations: a network without host bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// Network address.
    pub addr: Ipv4Addr,
    /// Prefix length, 0 to 32.
    pub prefix: u8,
}

/// One `[[gate.open]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRule {
    /// The class; none for every class.
    pub class: Option<String>,
    /// Destinations.
    pub to: Network,
    /// Protocol and ports.
    pub ports: Ports,
}

impl OpenRule {
    /// Whether machines of this class may use it.
    pub fn is_for(&self, class: &str) -> bool {
        self.class.as_deref().is_none_or(|own| own == class)
    }

    /// Whether one packet of one machine could match both: the kernel's set refuses elements that
    /// overlap.
    pub fn overlaps(&self, other: &OpenRule) -> bool {
        let class = match (&self.class, &other.class) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        let prefix = self.to.prefix.min(other.to.prefix);
        let mask = mask(prefix);
        let (a, b) = (self.ports, other.ports);
        class
            && self.to.addr.to_bits() & mask == other.to.addr.to_bits() & mask
            && a.proto == b.proto
            && a.first <= b.last
            && b.first <= a.last
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(prefix.min(32)))
        .unwrap_or(0)
}

impl FromStr for Network {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (addr, prefix) = match text.split_once('/') {
            Some((addr, prefix)) => (addr, prefix.parse().map_err(|_| ())?),
            None => (text, 32),
        };
        let addr: Ipv4Addr = addr.parse().map_err(|_| ())?;
        let clean = prefix <= 32 && addr.to_bits() & !mask(prefix) == 0;
        clean.then_some(Self { addr, prefix }).ok_or(())
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

impl FromStr for Ports {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (proto, ports) = text.split_once('/').ok_or(())?;
        let proto = match proto {
            "tcp" => Proto::Tcp,
            "udp" => Proto::Udp,
            _ => return Err(()),
        };
        let port = |text: &str| text.parse::<u16>().map_err(|_| ());
        let (first, last) = match ports.split_once('-') {
            Some((first, last)) => (port(first)?, port(last)?),
            None => (port(ports)?, port(ports)?),
        };
        let good = first >= 1 && first <= last;
        good.then_some(Self { proto, first, last }).ok_or(())
    }
}

impl std::fmt::Display for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let proto = match self.proto {
            Proto::Tcp => "tcp",
            Proto::Udp => "udp",
        };
        write!(f, "{proto}/{}", self.first)?;
        if self.last > self.first {
            write!(f, "-{}", self.last)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(class: Option<&str>, to: &str, ports: &str) -> OpenRule {
        OpenRule {
            class: class.map(str::to_owned),
            to: to.parse().expect("a network"),
            ports: ports.parse().expect("ports"),
        }
    }

    #[test]
    fn texts_are_read_as_they_are_shown() {
        for text in ["192.0.2.0/24", "0.0.0.0/0", "192.0.2.7/32"] {
            assert_eq!(
                text.parse::<Network>().map(|n| n.to_string()).as_deref(),
                Ok(text)
            );
        }
        assert_eq!("192.0.2.7".parse::<Network>().map(|n| n.prefix), Ok(32));
        for text in ["tcp/6443", "udp/53", "tcp/30000-32767"] {
            assert_eq!(
                text.parse::<Ports>().map(|p| p.to_string()).as_deref(),
                Ok(text)
            );
        }
        for bad in [
            "192.0.2.1/24",
            "192.0.2.0/33",
            "192.0.2.0/",
            "x",
            "fd00::/8",
        ] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
        for bad in [
            "6443",
            "icmp/1",
            "tcp/0",
            "tcp/9-8",
            "tcp/70000",
            "tcp/",
            "tcp/1-2-3",
        ] {
            assert!(bad.parse::<Ports>().is_err(), "{bad}");
        }
    }

    #[test]
    fn rules_overlap_only_where_one_packet_fits_both() {
        let worker = rule(Some("worker"), "192.0.2.0/24", "tcp/6443");
        let cases = [
            (rule(Some("worker"), "192.0.2.9/32", "tcp/6000-7000"), true),
            (rule(None, "0.0.0.0/0", "tcp/6443"), true),
            (rule(Some("control"), "192.0.2.9/32", "tcp/6443"), false),
            (rule(Some("worker"), "192.0.3.0/24", "tcp/6443"), false),
            (rule(Some("worker"), "192.0.2.0/24", "udp/6443"), false),
            (rule(Some("worker"), "192.0.2.0/24", "tcp/6444"), false),
        ];
        for (other, expected) in cases {
            assert_eq!(worker.overlaps(&other), expected, "{other:?}");
            assert_eq!(other.overlaps(&worker), expected, "{other:?}");
        }
    }
}
