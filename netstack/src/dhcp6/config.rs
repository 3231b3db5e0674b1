//! What the server is told: its prefix, pool, times and bounds. Data only; mistakes are all found
//! by [`Config::check`] before a server is made from it.

use std::net::Ipv6Addr;

use super::Duid;
use crate::Ipv6Prefix;

/// Configuration of one DHCPv6 server on one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Our DUID, option 2. Must be the same after a restart: clients renew with it.
    pub duid: Duid,
    /// Our address on the link; never leased.
    pub server_addr: Ipv6Addr,
    /// Prefix of the link; relays must name a link address under it.
    pub prefix: Ipv6Prefix,
    /// Addresses leased.
    pub pool: Option<Pool>,
    /// Valid and preferred lifetime in seconds.
    pub lease_secs: u32,
    /// Option 23.
    pub dns: Vec<Ipv6Addr>,
    /// Option 24, one name.
    pub domain: Option<String>,
    /// Answer a Solicit with option 14 by a Reply at once (RFC 8415 section 18.3.1). Right where
    /// this is the link's only server.
    pub rapid_commit: bool,
    /// Option 7; 255 makes clients take our Advertise without waiting for others.
    pub preference: u8,
    /// Bounds.
    pub limits: Limits,
}

/// A range of addresses, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// First address.
    pub start: Ipv6Addr,
    /// Last address.
    pub end: Ipv6Addr,
}

impl Pool {
    /// Whether `addr` lies in the range.
    pub fn contains(self, addr: Ipv6Addr) -> bool {
        (self.start..=self.end).contains(&addr)
    }

    /// Number of addresses, zero when the ends are swapped; saturates.
    pub fn len(self) -> usize {
        let last = self.end.to_bits().checked_sub(self.start.to_bits());
        last.map_or(0, |last| {
            usize::try_from(last)
                .unwrap_or(usize::MAX)
                .saturating_add(1)
        })
    }

    /// Whether the range holds no address.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Bounds of the server, each with the reason it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long an advertised address is kept. Clients collect Advertises for a second or two.
    pub offer_ms: u64,
    /// Advertised addresses kept at once. A flood of made-up DUIDs can hold at most these.
    pub offers_max: usize,
    /// Addresses one DUID may hold. IAIDs are free to make up; a system has one or two interfaces
    /// on this link, and firmware, iPXE and system may share the DUID.
    pub leases_per_client: usize,
    /// How long a declined address is not leased.
    pub quarantine_ms: u64,
    /// Addresses in quarantine at once. One client must not decline a pool away.
    pub quarantine_max: usize,
    /// Largest UDP payload we send: the least IPv6 link MTU without IPv6 and UDP headers, since
    /// firmware does not reassemble.
    pub reply_len_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            offer_ms: 60_000,
            offers_max: 1024,
            leases_per_client: 8,
            quarantine_ms: 3_600_000,
            quarantine_max: 64,
            reply_len_max: 1232,
        }
    }
}

/// Most addresses in the pool: the table holds one entry per address ever leased.
const POOL_MAX: usize = 1 << 16;
/// Most DNS servers: what fits beside a long URL in one packet.
const DNS_MAX: usize = 8;

/// One mistake in a [`Config`]. Paths are relative to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: expected {expected}, found {found}")]
pub struct ConfigMistake {
    /// Key path.
    pub path: &'static str,
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
}

impl Config {
    /// One link, the only server on it, default bounds.
    pub fn new(duid: Duid, server_addr: Ipv6Addr, prefix: Ipv6Prefix, pool: Pool) -> Self {
        Self {
            duid,
            server_addr,
            prefix,
            pool: Some(pool),
            lease_secs: 3600,
            dns: Vec::new(),
            domain: None,
            rapid_commit: true,
            preference: 255,
            limits: Limits::default(),
        }
    }

    /// All mistakes at once.
    ///
    /// # Errors
    /// Every rule that does not hold, with the path to the value.
    pub fn check(&self) -> Result<(), Vec<ConfigMistake>> {
        let mut mistakes = Vec::new();
        let mut expect = |holds: bool, path, expected: String, found: String| {
            if !holds {
                mistakes.push(ConfigMistake {
                    path,
                    expected,
                    found,
                });
            }
        };
        let host = format!("a host address in {}", self.prefix);
        let holds = self.prefix.is_host(self.server_addr);
        expect(
            holds,
            "server_addr",
            host.clone(),
            self.server_addr.to_string(),
        );
        if let Some(pool) = self.pool {
            for (path, addr) in [("pool.start", pool.start), ("pool.end", pool.end)] {
                expect(
                    self.prefix.is_host(addr),
                    path,
                    host.clone(),
                    addr.to_string(),
                );
            }
            let found = format!("{} to {}", pool.start, pool.end);
            let holds = (1..=POOL_MAX).contains(&pool.len());
            expect(holds, "pool", format!("1 to {POOL_MAX} addresses"), found);
        }
        let holds = self.lease_secs >= 120;
        expect(
            holds,
            "lease_secs",
            "at least 120 s".into(),
            format!("{} s", self.lease_secs),
        );
        let holds = self.dns.len() <= DNS_MAX;
        expect(
            holds,
            "dns",
            format!("at most {DNS_MAX}"),
            self.dns.len().to_string(),
        );
        let domain = self.domain.as_deref();
        let holds = domain.is_none_or(|name| encode_name(name).is_some());
        expect(holds, "domain", "a DNS name".into(), format!("{domain:?}"));
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(mistakes)
        }
    }
}

/// A DNS name in the form of RFC 1035 section 3.1, uncompressed (RFC 8415 section 10).
pub(crate) fn encode_name(name: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(name.len() + 2);
    for label in name.trim_end_matches('.').split('.') {
        let usable = (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if !usable {
            return None;
        }
        out.push(label.len() as u8);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    (out.len() <= 255).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MacAddr;

    fn ip(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn config(start: &str, end: &str) -> Config {
        let prefix = Ipv6Prefix::new(ip("2001:db8::"), 64).unwrap();
        let pool = Pool {
            start: ip(start),
            end: ip(end),
        };
        Config::new(
            Duid::link_layer(MacAddr([2, 0, 0, 0, 0, 1])),
            ip("2001:db8::1"),
            prefix,
            pool,
        )
    }

    #[test]
    fn rejects_every_mistake_at_once() {
        assert_eq!(config("2001:db8::100", "2001:db8::1ff").check(), Ok(()));
        let mut bad = config("2001:db8::1ff", "2001:db9::100");
        bad.server_addr = ip("2001:db8::");
        bad.lease_secs = 5;
        bad.domain = Some("a..b".into());
        bad.dns = vec![ip("::1"); 9];
        let paths: Vec<_> = bad
            .check()
            .unwrap_err()
            .into_iter()
            .map(|m| m.path)
            .collect();
        assert_eq!(
            paths,
            [
                "server_addr",
                "pool.end",
                "pool",
                "lease_secs",
                "dns",
                "domain"
            ]
        );
    }

    #[test]
    fn names_are_encoded_label_by_label() {
        assert_eq!(
            encode_name("cisco.local").unwrap(),
            b"\x05cisco\x05local\0".to_vec()
        );
        assert_eq!(encode_name(&"a.".repeat(200)), None);
        assert_eq!(encode_name(""), None);
    }
}
