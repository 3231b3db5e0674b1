//! The lease table: which identity association holds which address until when.
//!
//! One entry per address that was ever given out, so the table is bounded by the pool
//! ([`Config::check`](super::Config::check) caps it). Entries are never removed: a released or
//! expired one remembers its client, who gets the same address again while nobody else needs it.
//! The table decides who may have an address; it knows no packet and no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use super::config::Config;
use super::{Duid, Refused};
use crate::MacAddr;

/// What leases are keyed by (RFC 8415 section 12.1): DUID and IAID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientKey {
    /// The client.
    pub duid: Duid,
    /// Its identity association.
    pub iaid: u32,
}

/// One address and who holds or held it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub addr: Ipv6Addr,
    /// Its identity association.
    pub client: ClientKey,
    /// Hardware address the client was seen with, if any.
    pub mac: Option<MacAddr>,
    /// What it is.
    pub state: LeaseState,
    /// When `state` ends; for [`LeaseState::Released`] and [`LeaseState::Expired`], when it ended.
    /// Milliseconds on the caller's clock (Unix time in the daemon).
    pub expires_ms: u64,
}

/// State of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// Advertised; memory only.
    Offered,
    /// Leased.
    Bound,
    /// Given back; free, remembered.
    Released,
    /// Ran out; free, remembered.
    Expired,
    /// Found in use by the client; in quarantine.
    Declined,
}

impl LeaseState {
    /// Whether the address is taken.
    pub fn is_live(self) -> bool {
        match self {
            Self::Offered | Self::Bound | Self::Declined => true,
            Self::Released | Self::Expired => false,
        }
    }
}

/// Lease table of one link.
#[derive(Debug)]
pub(crate) struct Table {
    by_addr: BTreeMap<Ipv6Addr, Lease>,
    by_client: BTreeMap<ClientKey, Ipv6Addr>,
    /// Taken addresses by end.
    live: BTreeSet<(u64, Ipv6Addr)>,
    /// Free addresses that were used before, longest free first.
    free: BTreeSet<(u64, Ipv6Addr)>,
    /// Offset in the pool where never used addresses begin.
    fresh: u128,
    offers: usize,
    quarantined: usize,
}

impl Table {
    pub fn new() -> Self {
        Self {
            by_addr: BTreeMap::new(),
            by_client: BTreeMap::new(),
            live: BTreeSet::new(),
            free: BTreeSet::new(),
            fresh: 0,
            offers: 0,
            quarantined: 0,
        }
    }

    pub fn offers(&self) -> usize {
        self.offers
    }

    pub fn quarantined(&self) -> usize {
        self.quarantined
    }

    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.by_addr.values()
    }

    pub fn lease(&self, addr: Ipv6Addr) -> Option<&Lease> {
        self.by_addr.get(&addr)
    }

    /// The address on record for an identity association, taken or only remembered.
    pub fn on_record(&self, key: &ClientKey) -> Option<&Lease> {
        self.by_addr.get(self.by_client.get(key)?)
    }

    /// Taken addresses of one DUID.
    pub fn held_by(&self, duid: &Duid) -> usize {
        let key = |iaid| ClientKey {
            duid: duid.clone(),
            iaid,
        };
        self.by_client
            .range(key(0)..=key(u32::MAX))
            .filter(|(_, addr)| self.lease(**addr).is_some_and(|l| l.state.is_live()))
            .count()
    }

    /// The earliest end of a taken address.
    pub fn next_end(&self) -> Option<u64> {
        self.live.first().map(|(end, _)| *end)
    }

    /// Writes one entry; the only place that touches the indexes.
    pub fn put(&mut self, lease: Lease) {
        if let Some(old) = self.by_addr.remove(&lease.addr) {
            self.forget(&old);
        }
        let at = (lease.expires_ms, lease.addr);
        if lease.state.is_live() {
            self.live.insert(at)
        } else {
            self.free.insert(at)
        };
        match lease.state {
            LeaseState::Offered => self.offers += 1,
            LeaseState::Declined => self.quarantined += 1,
            LeaseState::Bound | LeaseState::Released | LeaseState::Expired => {}
        }
        // Whoever declined an address must not be led back to it.
        if lease.state != LeaseState::Declined {
            self.by_client.insert(lease.client.clone(), lease.addr);
        }
        self.by_addr.insert(lease.addr, lease);
    }

    fn forget(&mut self, old: &Lease) {
        let at = (old.expires_ms, old.addr);
        self.live.remove(&at);
        self.free.remove(&at);
        match old.state {
            LeaseState::Offered => self.offers -= 1,
            LeaseState::Declined => self.quarantined -= 1,
            LeaseState::Bound | LeaseState::Released | LeaseState::Expired => {}
        }
        if self.by_client.get(&old.client) == Some(&old.addr) {
            self.by_client.remove(&old.client);
        }
    }

    /// Frees what ended at or before `now_ms`.
    pub fn expire(&mut self, now_ms: u64) {
        while let Some(&(end, addr)) = self.live.first()
            && end <= now_ms
        {
            let Some(lease) = self.by_addr.get(&addr).cloned() else {
                self.live.pop_first();
                continue;
            };
            // An expired quarantine or an old offer must not pull its client away from an address
            // it got meanwhile.
            let moved = self.by_client.get(&lease.client).copied();
            let moved = moved.filter(|other| *other != addr);
            self.put(Lease {
                state: LeaseState::Expired,
                ..lease.clone()
            });
            if let Some(other) = moved {
                self.by_client.insert(lease.client, other);
            }
        }
    }

    /// The caller's clock was set back: no entry may outlive what it could have been given now.
    pub fn clamp(&mut self, latest_ms: u64) {
        let late: Vec<Lease> = self
            .live
            .range((latest_ms.saturating_add(1), Ipv6Addr::UNSPECIFIED)..)
            .filter_map(|(_, addr)| self.by_addr.get(addr).cloned())
            .collect();
        for lease in late {
            self.put(Lease {
                expires_ms: latest_ms,
                ..lease
            });
        }
    }

    /// Whether this identity association may have this address now.
    pub fn may_have(&self, addr: Ipv6Addr, key: &ClientKey, config: &Config) -> bool {
        let leasable = config.prefix.is_host(addr)
            && addr != config.server_addr
            && config.pool.is_some_and(|pool| pool.contains(addr));
        let taken = self.by_addr.get(&addr).is_some_and(|lease| {
            lease.state.is_live() && (lease.client != *key || lease.state == LeaseState::Declined)
        });
        leasable && !taken
    }

    /// An address: the one on record, the one asked for, one never used, the one longest free.
    ///
    /// # Errors
    /// [`Refused::PoolExhausted`].
    pub fn choose(
        &mut self,
        key: &ClientKey,
        wanted: &[Ipv6Addr],
        config: &Config,
    ) -> Result<Ipv6Addr, Refused> {
        let on_record = self.by_client.get(key).copied();
        let mut known = on_record.into_iter().chain(wanted.iter().copied());
        known
            .find(|addr| self.may_have(*addr, key, config))
            .or_else(|| self.first_fresh(key, config))
            .or_else(|| {
                let mut free = self.free.iter().map(|(_, addr)| *addr);
                free.find(|addr| self.may_have(*addr, key, config))
            })
            .ok_or_else(|| Refused::PoolExhausted {
                addresses: config.pool.map_or(0, |pool| pool.len()),
            })
    }

    /// The first address without an entry. What is passed over either has one, and entries stay,
    /// or can never be leased; so the scan never goes back.
    fn first_fresh(&mut self, key: &ClientKey, config: &Config) -> Option<Ipv6Addr> {
        let pool = config.pool?;
        loop {
            let bits = pool.start.to_bits().checked_add(self.fresh)?;
            if bits > pool.end.to_bits() {
                return None;
            }
            let addr = Ipv6Addr::from_bits(bits);
            if !self.by_addr.contains_key(&addr) && self.may_have(addr, key, config) {
                return Some(addr);
            }
            self.fresh += 1;
        }
    }
}
