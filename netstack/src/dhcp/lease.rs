//! The lease table of one scope: who holds which address until when.
//!
//! One entry per address that was ever given out, so the table is bounded by pool and reservations
//! ([`Config::check`](super::Config::check) caps both). Entries are never removed: a released or
//! expired one remembers its client, who gets the same address again while nobody else needs it.
//! The table decides who may have an address; it knows no packet and no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::config::{ReservedFor, Scope};
use super::{ClientInfo, Refused};
use crate::MacAddr;

/// What leases are keyed by (RFC 2131 section 4.2): the option 61 value, or `htype` and `chaddr`.
/// For Ethernet the common option 61 form (type 1 and the address) is the same key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientKey(Vec<u8>);

impl ClientKey {
    /// From an option 61 value, or from what [`ClientKey::as_bytes`] gave.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// From the hardware address of a client without option 61.
    pub fn from_hardware(htype: u8, mac: MacAddr) -> Self {
        let mut bytes = vec![htype];
        bytes.extend_from_slice(&mac.0);
        Self(bytes)
    }

    /// The octets, for the lease journal.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Display for ClientKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl std::fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// One address and who holds or held it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub addr: Ipv4Addr,
    /// Its client.
    pub client: ClientKey,
    /// Hardware address the client last used.
    pub mac: MacAddr,
    /// What it is.
    pub state: LeaseState,
    /// When `state` ends; for [`LeaseState::Released`] and [`LeaseState::Expired`], when it ended.
    /// Milliseconds on the caller's clock (Unix time in the daemon).
    pub expires_ms: u64,
}

/// State of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// Offered; memory only.
    Offered,
    /// Acknowledged.
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

/// Whom an address is wanted for.
pub(crate) struct Who {
    pub key: ClientKey,
    pub mac: MacAddr,
}

impl Who {
    pub fn of(client: &ClientInfo) -> Self {
        Self {
            key: client.key(),
            mac: client.mac,
        }
    }
}

/// Lease table of one scope.
#[derive(Debug)]
pub(crate) struct Table {
    pub scope: Scope,
    reserved: BTreeMap<Ipv4Addr, ReservedFor>,
    by_addr: BTreeMap<Ipv4Addr, Lease>,
    by_client: BTreeMap<ClientKey, Ipv4Addr>,
    /// Taken addresses by end.
    live: BTreeSet<(u64, Ipv4Addr)>,
    /// Free addresses that were used before, longest free first.
    free: BTreeSet<(u64, Ipv4Addr)>,
    /// Where never used addresses begin: pool index and offset.
    fresh: (usize, u32),
    offers: usize,
    quarantined: usize,
}

impl Table {
    pub fn new(scope: Scope) -> Self {
        let reserved = scope
            .reservations
            .iter()
            .map(|r| (r.addr, r.client.clone()))
            .collect();
        Self {
            scope,
            reserved,
            by_addr: BTreeMap::new(),
            by_client: BTreeMap::new(),
            live: BTreeSet::new(),
            free: BTreeSet::new(),
            fresh: (0, 0),
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

    pub fn addresses(&self) -> usize {
        self.scope.pools.iter().map(|pool| pool.len()).sum()
    }

    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.by_addr.values()
    }

    pub fn lease(&self, addr: Ipv4Addr) -> Option<&Lease> {
        self.by_addr.get(&addr)
    }

    /// The address on record for a client, taken or only remembered.
    pub fn on_record(&self, key: &ClientKey) -> Option<&Lease> {
        self.by_addr.get(self.by_client.get(key)?)
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
            let moved = self
                .by_client
                .get(&lease.client)
                .copied()
                .filter(|other| *other != addr);
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
            .range((latest_ms.saturating_add(1), Ipv4Addr::UNSPECIFIED)..)
            .filter_map(|(_, addr)| self.by_addr.get(addr).cloned())
            .collect();
        for lease in late {
            self.put(Lease {
                expires_ms: latest_ms,
                ..lease
            });
        }
    }

    /// The address reserved for a client; option 61 counts before the hardware address.
    pub fn reservation(&self, who: &Who) -> Option<Ipv4Addr> {
        let by_id = self.scope.reservations.iter().find(
            |r| matches!(&r.client, ReservedFor::ClientId(id) if id.as_slice() == who.key.as_bytes()),
        );
        by_id
            .or_else(|| {
                let mac = ReservedFor::Mac(who.mac);
                self.scope.reservations.iter().find(|r| r.client == mac)
            })
            .map(|r| r.addr)
    }

    /// Whether an address is reserved for a client.
    pub fn has_reservation(&self, who: &Who) -> bool {
        self.reservation(who).is_some()
    }

    /// Whether somebody else has the address now.
    fn held_by_other(&self, addr: Ipv4Addr, who: &Who) -> bool {
        let Some(lease) = self
            .by_addr
            .get(&addr)
            .filter(|lease| lease.state.is_live())
        else {
            return false;
        };
        if lease.state == LeaseState::Declined {
            return true;
        }
        // Firmware, iPXE and the system of one machine identify themselves differently; a
        // reservation by hardware address is for all of them.
        let same_machine =
            lease.mac == who.mac && self.reserved.get(&addr) == Some(&ReservedFor::Mac(who.mac));
        lease.client != who.key && !same_machine
    }

    /// Whether the address may be leased to anybody without a reservation for it.
    fn is_dynamic(&self, addr: Ipv4Addr, server: Ipv4Addr) -> bool {
        self.scope.subnet.is_host(addr)
            && addr != server
            && !self.scope.routers.contains(&addr)
            && !self.reserved.contains_key(&addr)
            && self.scope.pools.iter().any(|pool| pool.contains(addr))
    }

    /// Whether this client may have this address now.
    pub fn may_have(&self, addr: Ipv4Addr, who: &Who, server: Ipv4Addr) -> bool {
        if self.held_by_other(addr, who) {
            return false;
        }
        match self
            .reservation(who)
            .filter(|reserved| !self.held_by_other(*reserved, who))
        {
            Some(reserved) => reserved == addr,
            None => self.is_dynamic(addr, server),
        }
    }

    /// An address for a client: its reservation, the one on record, the one it asks for, one
    /// never used, the one longest free (RFC 2131 section 4.3.1, in that order).
    ///
    /// # Errors
    /// [`Refused::PoolExhausted`].
    pub fn choose(
        &mut self,
        who: &Who,
        wanted: Option<Ipv4Addr>,
        server: Ipv4Addr,
    ) -> Result<Ipv4Addr, Refused> {
        let on_record = self.by_client.get(&who.key).copied();
        let known = [self.reservation(who), on_record, wanted];
        let known = known
            .into_iter()
            .flatten()
            .find(|addr| self.may_have(*addr, who, server));
        known
            .or_else(|| self.first_fresh(server))
            .or_else(|| {
                let mut free = self.free.iter().map(|(_, addr)| *addr);
                free.find(|addr| self.is_dynamic(*addr, server))
            })
            .ok_or_else(|| Refused::PoolExhausted {
                addresses: self.addresses(),
            })
    }

    /// The first address without an entry. What is passed over either has one, and entries stay,
    /// or can never be leased; so the scan never goes back.
    fn first_fresh(&mut self, server: Ipv4Addr) -> Option<Ipv4Addr> {
        loop {
            let (index, offset) = self.fresh;
            let pool = self.scope.pools.get(index)?;
            let bits = u64::from(pool.start.to_bits()) + u64::from(offset);
            if bits > u64::from(pool.end.to_bits()) {
                self.fresh = (index + 1, 0);
                continue;
            }
            let addr = Ipv4Addr::from_bits(bits as u32);
            if !self.by_addr.contains_key(&addr) && self.is_dynamic(addr, server) {
                return Some(addr);
            }
            self.fresh.1 += 1;
        }
    }
}
