//! What the server is told: subnets, pools, reservations, times and bounds. Data only; mistakes
//! are all found by [`Config::check`] before a server is made from it.

use std::net::Ipv4Addr;

use super::Rate;
use crate::MacAddr;

/// Whose addresses the clients of a segment get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Ours: this is the segment's DHCP server.
    #[default]
    Server,
    /// Another server's: we add boot data and never an address (ProxyDHCP, PXE 2.1 section 2.2).
    Proxy,
}

/// Configuration of one DHCPv4 server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Whose addresses the clients get.
    pub mode: Mode,
    /// Subnets served. The first that covers the client's link is used.
    pub scopes: Vec<Scope>,
    /// Relay agents outside every scope's subnet whose requests are served (RFC 3527 relays).
    pub relays: Vec<Ipv4Addr>,
    /// Answer INIT-REBOOT of unknown clients with DHCPNAK instead of silence. Right where this is
    /// the segment's only server.
    pub authoritative: bool,
    /// Lease pool addresses to BOOTP clients, which cannot give them back. Without it BOOTP is for
    /// reservations only.
    pub bootp_dynamic: bool,
    /// Looking for other DHCP servers ([`Watch`](super::Watch)).
    pub watch: Option<WatchConfig>,
    /// Bounds.
    pub limits: Limits,
}

/// How the segment is watched for other servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchConfig {
    /// The hardware address that asks: locally administered, random, not our interface's.
    pub mac: MacAddr,
    /// Milliseconds between two questions; 0 listens only.
    pub period_ms: u64,
}

/// One subnet and what its clients are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// The subnet.
    pub subnet: Subnet,
    /// Dynamic addresses; empty leases to reservations only.
    pub pools: Vec<Pool>,
    /// Fixed addresses.
    pub reservations: Vec<Reservation>,
    /// Lease time in seconds, the most a client gets.
    pub lease_secs: u32,
    /// The most that firmware, iPXE and machines on their way get: what an abandoned attempt holds
    /// comes back soon. Never above `lease_secs`.
    pub boot_lease_secs: u32,
    /// Option 3.
    pub routers: Vec<Ipv4Addr>,
    /// Option 6.
    pub dns: Vec<Ipv4Addr>,
    /// Option 15.
    pub domain: Option<String>,
}

impl Scope {
    /// A scope that leases `pool` and tells the subnet mask only.
    pub fn new(subnet: Subnet, pool: Pool, lease_secs: u32) -> Self {
        Self {
            subnet,
            pools: vec![pool],
            reservations: Vec::new(),
            lease_secs,
            boot_lease_secs: lease_secs,
            routers: Vec::new(),
            dns: Vec::new(),
            domain: None,
        }
    }
}

/// An IPv4 subnet in CIDR terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    addr: Ipv4Addr,
    prefix: u8,
}

impl Subnet {
    /// The subnet of `addr`/`prefix`; host bits are cleared. `None` over 30 bits, where no host
    /// besides the server fits.
    pub fn new(addr: Ipv4Addr, prefix: u8) -> Option<Self> {
        if prefix > 30 {
            return None;
        }
        let mut subnet = Self { addr, prefix };
        subnet.addr = Ipv4Addr::from_bits(addr.to_bits() & subnet.mask().to_bits());
        Some(subnet)
    }

    /// Network address.
    pub fn network(self) -> Ipv4Addr {
        self.addr
    }

    /// Prefix length in bits.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Option 1.
    pub fn mask(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(
            u32::MAX
                .checked_shl(32 - u32::from(self.prefix))
                .unwrap_or(0),
        )
    }

    /// Option 28.
    pub fn broadcast(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.addr.to_bits() | !self.mask().to_bits())
    }

    /// Whether `addr` lies in the subnet.
    pub fn contains(self, addr: Ipv4Addr) -> bool {
        addr.to_bits() & self.mask().to_bits() == self.addr.to_bits()
    }

    /// Whether `addr` can be a host's: in the subnet, neither network nor broadcast address.
    pub fn is_host(self, addr: Ipv4Addr) -> bool {
        self.contains(addr) && addr != self.network() && addr != self.broadcast()
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

/// A range of dynamic addresses, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// First address.
    pub start: Ipv4Addr,
    /// Last address.
    pub end: Ipv4Addr,
}

impl Pool {
    /// Whether `addr` lies in the range.
    pub fn contains(self, addr: Ipv4Addr) -> bool {
        (self.start..=self.end).contains(&addr)
    }

    /// Number of addresses; zero when the ends are swapped.
    pub fn len(self) -> usize {
        (self.end.to_bits() as usize + 1).saturating_sub(self.start.to_bits() as usize)
    }

    /// Whether the range holds no address.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// An address kept for one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Whom for.
    pub client: ReservedFor,
    /// The address; in the subnet, in the pool or outside it.
    pub addr: Ipv4Addr,
}

/// Whom an address is kept for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReservedFor {
    /// Any client identifier that comes with this hardware address: firmware, iPXE and the
    /// installed system often send three different option 61 values.
    Mac(MacAddr),
    /// This option 61 value.
    ClientId(Vec<u8>),
}

/// Bounds of the server, each with the reason it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long an address stays offered. Long enough for firmware that waits for a second server
    /// (up to 32 s, RFC 2131 section 4.1), short enough that a DISCOVER flood frees itself.
    pub offer_ms: u64,
    /// Offers open at once to clients nobody knows. A flood of made-up hardware addresses can hold
    /// at most these.
    pub offers_max: usize,
    /// New clients of one port that option 82 names. The burst is a rack whose power comes back, all
    /// of it behind one switch port.
    pub port_rate: Rate,
    /// New clients of one interface: far above any boot storm, so that a flood at line rate is dropped
    /// before it costs an answer each.
    pub iface_rate: Rate,
    /// Pool addresses that the clients of one such port hold at once: a rack of 64 behind one port.
    pub port_addrs_max: usize,
    /// Pool addresses that one hardware address holds at once under different client identifiers:
    /// firmware, iPXE, the boot image and the installed system each may have their own.
    pub mac_addrs_max: usize,
    /// Percent of the pool that new clients leave alone when no option 82 says where they are. What a
    /// flood cannot take is for those we know.
    pub reserve_percent: u8,
    /// Percent of the pool that new clients leave alone though option 82 names their port: it is only
    /// as good as the relay.
    pub reserve_known_percent: u8,
    /// How long an OFFER waits for an answer to the ARP probe of its address; 0 asks nobody. A host
    /// on the segment answers within milliseconds; firmware repeats DISCOVER after a second or more.
    pub probe_ms: u64,
    /// Addresses under probe at once. Beyond it addresses are offered unprobed: a storm must not wait.
    pub probes_max: usize,
    /// How long a declined address is not leased. The conflict is usually a static address.
    pub quarantine_ms: u64,
    /// Addresses in quarantine at once. One client must not decline a pool away.
    pub quarantine_max: usize,
    /// Of them, by one hardware address: a client that finds more than this in use is itself at fault.
    pub declines_max: usize,
    /// Shortest lease in seconds. A client must not buy a renewal, and a disk write, per second.
    pub lease_secs_min: u32,
    /// How long a pool address is held for a BOOTP client. RFC 1534 section 2 means for ever, since
    /// the client never renews; an address that nobody has asked about for this long is probed and
    /// leased anew.
    pub bootp_ms: u64,
    /// Largest UDP payload we send: an Ethernet MTU without IP and UDP headers.
    pub reply_len_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            offer_ms: 60_000,
            offers_max: 1024,
            port_rate: Rate {
                per_sec: 20,
                burst: 128,
            },
            iface_rate: Rate {
                per_sec: 20_000,
                burst: 20_000,
            },
            port_addrs_max: 64,
            mac_addrs_max: 4,
            reserve_percent: 10,
            reserve_known_percent: 3,
            probe_ms: 0,
            probes_max: 1024,
            quarantine_ms: 3_600_000,
            quarantine_max: 64,
            declines_max: 4,
            lease_secs_min: 60,
            bootp_ms: 30 * 86_400_000,
            reply_len_max: 1472,
        }
    }
}

/// Most addresses in one scope's pools: the table holds one entry per address.
const POOL_MAX: usize = 1 << 16;

/// One mistake in a [`Config`]. Paths are relative to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: expected {expected}, found {found}")]
pub struct ConfigMistake {
    /// Key path, `scopes[0].pools[1].start`.
    pub path: String,
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
}

impl Config {
    /// One scope, authoritative, default bounds.
    pub fn single(scope: Scope) -> Self {
        Self {
            mode: Mode::Server,
            scopes: vec![scope],
            relays: Vec::new(),
            authoritative: true,
            bootp_dynamic: false,
            watch: None,
            limits: Limits::default(),
        }
    }

    /// All mistakes at once.
    ///
    /// # Errors
    /// Every rule that does not hold, with the path to the value.
    pub fn check(&self) -> Result<(), Vec<ConfigMistake>> {
        let mut mistakes = Vec::new();
        let mut expect = |holds: bool, path: String, expected: String, found: String| {
            if !holds {
                mistakes.push(ConfigMistake {
                    path,
                    expected,
                    found,
                });
            }
        };
        expect(
            !self.scopes.is_empty(),
            "scopes".into(),
            "at least one scope".into(),
            "none".into(),
        );
        for (i, scope) in self.scopes.iter().enumerate() {
            let subnet = scope.subnet;
            for (j, other) in self.scopes.iter().enumerate().take(i) {
                let apart = !subnet.contains(other.subnet.network())
                    && !other.subnet.contains(subnet.network());
                let expected = format!("a subnet apart from scopes[{j}], {}", other.subnet);
                expect(
                    apart,
                    format!("scopes[{i}].subnet"),
                    expected,
                    subnet.to_string(),
                );
            }
            expect(
                scope.lease_secs >= self.limits.lease_secs_min,
                format!("scopes[{i}].lease_secs"),
                format!("at least {} s", self.limits.lease_secs_min),
                format!("{} s", scope.lease_secs),
            );
            expect(
                (self.limits.lease_secs_min..=scope.lease_secs).contains(&scope.boot_lease_secs),
                format!("scopes[{i}].boot_lease_secs"),
                format!("{} s to lease_secs", self.limits.lease_secs_min),
                format!("{} s", scope.boot_lease_secs),
            );
            let domain = scope.domain.as_deref().unwrap_or("x");
            expect(
                (1..=253).contains(&domain.len()) && domain.bytes().all(|b| b.is_ascii_graphic()),
                format!("scopes[{i}].domain"),
                "1 to 253 visible ASCII characters".into(),
                format!("{domain:?}"),
            );
            check_pools(scope, i, self.mode, &mut expect);
            check_reservations(scope, i, &mut expect);
        }
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(mistakes)
        }
    }
}

type Expect<'a> = dyn FnMut(bool, String, String, String) + 'a;

fn check_pools(scope: &Scope, i: usize, mode: Mode, expect: &mut Expect<'_>) {
    let subnet = scope.subnet;
    for (j, pool) in scope.pools.iter().enumerate() {
        let path = format!("scopes[{i}].pools[{j}]");
        for (end, addr) in [("start", pool.start), ("end", pool.end)] {
            let expected = format!("a host address in {subnet}");
            expect(
                subnet.is_host(addr),
                format!("{path}.{end}"),
                expected,
                addr.to_string(),
            );
        }
        let found = format!("{} to {}", pool.start, pool.end);
        expect(
            pool.start <= pool.end,
            path.clone(),
            "start at or before end".into(),
            found.clone(),
        );
        for (k, other) in scope.pools.iter().enumerate().take(j) {
            let apart = pool.end < other.start || other.end < pool.start;
            expect(
                apart,
                path.clone(),
                format!("a range apart from pools[{k}]"),
                found.clone(),
            );
        }
        for router in &scope.routers {
            let expected = format!("a range without the router {router}");
            expect(
                !pool.contains(*router),
                path.clone(),
                expected,
                found.clone(),
            );
        }
    }
    let addresses: usize = scope.pools.iter().map(|pool| pool.len()).sum();
    expect(
        addresses <= POOL_MAX,
        format!("scopes[{i}].pools"),
        format!("at most {POOL_MAX} addresses"),
        addresses.to_string(),
    );
    let (neither, expected, found) = match mode {
        Mode::Server => (false, "a pool or a reservation", "neither"),
        Mode::Proxy => (
            true,
            "no pool and no reservation in proxy mode",
            "addresses",
        ),
    };
    expect(
        (addresses == 0 && scope.reservations.is_empty()) == neither,
        format!("scopes[{i}].pools"),
        expected.into(),
        found.into(),
    );
}

fn check_reservations(scope: &Scope, i: usize, expect: &mut Expect<'_>) {
    for (j, reservation) in scope.reservations.iter().enumerate() {
        let path = format!("scopes[{i}].reservations[{j}]");
        let addr = reservation.addr;
        expect(
            scope.subnet.is_host(addr) && !scope.routers.contains(&addr),
            format!("{path}.addr"),
            format!("a host address in {} that is no router", scope.subnet),
            addr.to_string(),
        );
        if let ReservedFor::ClientId(id) = &reservation.client {
            let found = format!("{} octets", id.len());
            expect(
                (2..=255).contains(&id.len()),
                format!("{path}.client"),
                "2 to 255 octets".into(),
                found,
            );
        }
        for (k, other) in scope.reservations.iter().enumerate().take(j) {
            let differs = other.addr != addr;
            let expected = format!("an address apart from reservations[{k}]");
            expect(differs, format!("{path}.addr"), expected, addr.to_string());
            let expected = format!("a client apart from reservations[{k}]");
            let found = format!("{:?}", reservation.client);
            expect(
                other.client != reservation.client,
                format!("{path}.client"),
                expected,
                found,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn subnet_arithmetic() {
        let subnet = Subnet::new(ip("10.77.1.9"), 24).unwrap();
        assert_eq!(subnet.to_string(), "10.77.1.0/24");
        assert_eq!(subnet.mask(), ip("255.255.255.0"));
        assert_eq!(subnet.broadcast(), ip("10.77.1.255"));
        assert!(subnet.is_host(ip("10.77.1.254")) && !subnet.is_host(ip("10.77.1.255")));
        assert!(!subnet.contains(ip("10.77.2.1")));
        assert_eq!(Subnet::new(ip("0.0.0.0"), 0).unwrap().mask(), ip("0.0.0.0"));
        assert_eq!(Subnet::new(ip("10.0.0.0"), 31), None);
    }

    #[test]
    fn rejects_every_mistake_at_once() {
        let mut scope = Scope::new(
            Subnet::new(ip("10.77.0.0"), 24).unwrap(),
            Pool {
                start: ip("10.77.0.200"),
                end: ip("10.77.0.100"),
            },
            5,
        );
        scope.routers = vec![ip("10.77.0.1")];
        scope.domain = Some("a b".into());
        scope.pools.push(Pool {
            start: ip("10.77.0.1"),
            end: ip("10.77.1.5"),
        });
        let mac = ReservedFor::Mac(MacAddr([2, 0, 0, 0, 0, 1]));
        scope.reservations = vec![
            Reservation {
                client: mac.clone(),
                addr: ip("10.77.0.1"),
            },
            Reservation {
                client: mac,
                addr: ip("10.77.0.1"),
            },
            Reservation {
                client: ReservedFor::ClientId(vec![1]),
                addr: ip("10.77.0.9"),
            },
        ];
        let mut proxy = Config::single(scope.clone());
        proxy.mode = Mode::Proxy;
        let found = proxy.check().unwrap_err();
        assert!(found.iter().any(|mistake| mistake.found == "addresses"));
        let config = Config::single(scope.clone());
        let paths: Vec<String> = config
            .check()
            .unwrap_err()
            .into_iter()
            .map(|mistake| mistake.path)
            .collect();
        assert_eq!(
            paths,
            [
                "scopes[0].lease_secs",
                "scopes[0].boot_lease_secs",
                "scopes[0].domain",
                "scopes[0].pools[0]",
                "scopes[0].pools[1].end",
                "scopes[0].pools[1]",
                "scopes[0].pools[1]",
                "scopes[0].reservations[0].addr",
                "scopes[0].reservations[1].addr",
                "scopes[0].reservations[1].addr",
                "scopes[0].reservations[1].client",
                "scopes[0].reservations[2].client",
            ]
        );
        let mut twice = Config::single(scope.clone());
        twice.scopes.push(scope);
        let found = twice.check().unwrap_err();
        assert!(
            found
                .iter()
                .any(|mistake| mistake.path == "scopes[1].subnet")
        );
    }
}
