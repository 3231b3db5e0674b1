//! The lease table of one scope: who holds which address until when.
//!
//! One entry per address that was ever given out, so the table is bounded by pool and reservations
//! ([`Config::check`](super::Config::check) caps both). Entries are never removed: a released or
//! expired one remembers its client, who gets the same address again while nobody else needs it.
//! The table decides who may have an address; it knows no packet and no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::config::{ReservedFor, Scope};
use super::{ClientInfo, PortId, Refused};
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
    /// The switch port that option 82 named when it last asked.
    pub port: Option<PortId>,
    /// What it is.
    pub state: LeaseState,
    /// When `state` ends; for a free address, when it ended.
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
    /// Offered and never taken; free. Whoever was offered it is no known client by that.
    Lapsed,
    /// Found in use by the client; in quarantine.
    Declined,
}

impl LeaseState {
    /// Whether the address is taken.
    pub fn is_live(self) -> bool {
        match self {
            Self::Offered | Self::Bound | Self::Declined => true,
            Self::Released | Self::Expired | Self::Lapsed => false,
        }
    }
}

/// Whom an address is wanted for.
pub(crate) struct Who {
    pub key: ClientKey,
    pub mac: MacAddr,
    pub port: Option<PortId>,
}

impl Who {
    pub fn of(client: &ClientInfo) -> Self {
        Self {
            key: client.key(),
            mac: client.mac,
            port: PortId::of(client),
        }
    }
}

/// Lease table of one scope.
#[derive(Debug)]
pub(crate) struct Table {
    pub scope: Scope,
    reserved: BTreeMap<Ipv4Addr, ReservedFor>,
    reserved_by_mac: BTreeMap<MacAddr, Ipv4Addr>,
    reserved_by_id: BTreeMap<Vec<u8>, Ipv4Addr>,
    by_addr: BTreeMap<Ipv4Addr, Lease>,
    by_client: BTreeMap<ClientKey, Ipv4Addr>,
    /// Taken addresses by end.
    live: BTreeSet<(u64, Ipv4Addr)>,
    /// Free addresses that were used before, longest free first.
    free: BTreeSet<(u64, Ipv4Addr)>,
    /// Free addresses whose offer was never taken: leased anew before those that somebody had, so
    /// that a flood of offers does not make us forget our clients.
    lapsed: BTreeSet<(u64, Ipv4Addr)>,
    /// Where never used addresses begin: pool index and offset.
    fresh: (usize, u32),
    offers: usize,
    quarantined: usize,
    /// Pool addresses taken, and by whom.
    taken: usize,
    taken_by_mac: BTreeMap<MacAddr, usize>,
    taken_by_port: BTreeMap<PortId, usize>,
    declined_by_mac: BTreeMap<MacAddr, usize>,
}

/// Adds one to a count.
fn add<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    *counts.entry(key).or_default() += 1;
}

/// Takes one from a count; an entry at zero goes, so the map is as large as what it counts.
fn drop_one<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Table {
    pub fn new(scope: Scope) -> Self {
        let mut reserved = BTreeMap::new();
        let (mut reserved_by_mac, mut reserved_by_id) = (BTreeMap::new(), BTreeMap::new());
        for reservation in &scope.reservations {
            reserved.insert(reservation.addr, reservation.client.clone());
            // A configuration that passed its check has each client once; else the first counts.
            match &reservation.client {
                ReservedFor::Mac(mac) => {
                    reserved_by_mac.entry(*mac).or_insert(reservation.addr);
                }
                ReservedFor::ClientId(id) => {
                    reserved_by_id.entry(id.clone()).or_insert(reservation.addr);
                }
            }
        }
        Self {
            scope,
            reserved,
            reserved_by_mac,
            reserved_by_id,
            by_addr: BTreeMap::new(),
            by_client: BTreeMap::new(),
            live: BTreeSet::new(),
            free: BTreeSet::new(),
            lapsed: BTreeSet::new(),
            fresh: (0, 0),
            offers: 0,
            quarantined: 0,
            taken: 0,
            taken_by_mac: BTreeMap::new(),
            taken_by_port: BTreeMap::new(),
            declined_by_mac: BTreeMap::new(),
        }
    }

    pub fn offers(&self) -> usize {
        self.offers
    }

    pub fn quarantined(&self) -> usize {
        self.quarantined
    }

    /// Pool addresses that are leased, offered or in quarantine.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Of them, those of one hardware address.
    pub fn taken_by_mac(&self, mac: MacAddr) -> usize {
        self.taken_by_mac.get(&mac).copied().unwrap_or(0)
    }

    /// Of them, those of one switch port.
    pub fn taken_by_port(&self, port: &PortId) -> usize {
        self.taken_by_port.get(port).copied().unwrap_or(0)
    }

    /// Addresses that one hardware address put in quarantine.
    pub fn declined_by_mac(&self, mac: MacAddr) -> usize {
        self.declined_by_mac.get(&mac).copied().unwrap_or(0)
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
        match lease.state {
            LeaseState::Offered | LeaseState::Bound | LeaseState::Declined => self.live.insert(at),
            LeaseState::Released | LeaseState::Expired => self.free.insert(at),
            LeaseState::Lapsed => self.lapsed.insert(at),
        };
        match lease.state {
            LeaseState::Offered => self.offers += 1,
            LeaseState::Declined => self.quarantined += 1,
            LeaseState::Bound | LeaseState::Released | LeaseState::Expired | LeaseState::Lapsed => {
            }
        }
        if lease.state.is_live() && !self.reserved.contains_key(&lease.addr) {
            self.taken += 1;
            if lease.state == LeaseState::Declined {
                add(&mut self.declined_by_mac, lease.mac);
            } else {
                add(&mut self.taken_by_mac, lease.mac);
                if let Some(port) = &lease.port {
                    add(&mut self.taken_by_port, port.clone());
                }
            }
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
        self.lapsed.remove(&at);
        match old.state {
            LeaseState::Offered => self.offers -= 1,
            LeaseState::Declined => self.quarantined -= 1,
            LeaseState::Bound | LeaseState::Released | LeaseState::Expired | LeaseState::Lapsed => {
            }
        }
        if old.state.is_live() && !self.reserved.contains_key(&old.addr) {
            self.taken -= 1;
            if old.state == LeaseState::Declined {
                drop_one(&mut self.declined_by_mac, &old.mac);
            } else {
                drop_one(&mut self.taken_by_mac, &old.mac);
                if let Some(port) = &old.port {
                    drop_one(&mut self.taken_by_port, port);
                }
            }
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
            let state = match lease.state {
                LeaseState::Offered => LeaseState::Lapsed,
                _ => LeaseState::Expired,
            };
            self.put(Lease {
                state,
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
        self.reserved_by_id
            .get(who.key.as_bytes())
            .or_else(|| self.reserved_by_mac.get(&who.mac))
            .copied()
    }

    /// Whether an address is reserved for a client.
    pub fn has_reservation(&self, who: &Who) -> bool {
        self.reservation(who).is_some()
    }

    /// Whether we know the client: it holds an address, has a reservation, or comes back to an
    /// address that was leased to it and still is to be had.
    pub fn knows(&self, who: &Who, server: Ipv4Addr) -> bool {
        let Some(lease) = self.on_record(&who.key) else {
            return self.has_reservation(who);
        };
        match lease.state {
            LeaseState::Offered | LeaseState::Bound => true,
            LeaseState::Released | LeaseState::Expired => {
                self.may_have(lease.addr, who, server) || self.has_reservation(who)
            }
            LeaseState::Lapsed | LeaseState::Declined => self.has_reservation(who),
        }
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
    /// never used, one whose offer was not taken, the one longest free (RFC 2131 section 4.3.1, in that order).
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
                let free = self.lapsed.iter().chain(&self.free);
                let mut free = free.map(|(_, addr)| *addr);
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
