//! The gate between the provisioning side and the uplink: what is open now, and what has to change.
//!
//! Decides from admissions, states, leases and the open rules of the configuration. An admission
//! grants a machine the way out for a while, from the hardware address that it attested by; what is
//! open are the addresses leased to that hardware address, towards the destinations of its class. The
//! grant ends with its time, with a refused attestation, and with every state that is not a passing
//! one; an element also ends with its lease. Knows neither nftables nor switches, and no clock.
//!
//! Grants are in the ledger ([`GateChange`]), leases in the journal: after a restart both give the
//! same set. A change that a lease alone brings writes no ledger record, or a flood of DHCP would
//! fill it.
//!
//! Contract: tell it what happened (`admitted`, `refused`, `touched`, `lease`), then [`Gate::settle`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use crate::identity::{MacAddr, MachineId, UnixMillis};
use crate::limits;
use crate::record::{GateAct, GateCause, GateChange, Record};

mod rules;

pub use rules::{Network, OpenRule, Ports, Proto};

/// What the backend tells machines apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Hardware and IPv4 address: the appliance routes.
    Address,
    /// Declared switch port: it does not, or a relay hides the hardware address.
    Port,
}

/// `[gate]`, as far as decisions need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// What elements are.
    pub by: By,
    /// Destinations; they do not overlap for one class.
    pub rules: Vec<OpenRule>,
    /// How long an admission opens.
    pub open_ms: u64,
}

/// One thing that is open or not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// From this pair of addresses to these destinations.
    Flow {
        /// Hardware address.
        mac: MacAddr,
        /// IPv4 address.
        addr: Ipv4Addr,
        /// Destinations.
        to: Network,
        /// Protocol and destination ports.
        ports: Ports,
    },
    /// This switch port, for this machine.
    Port {
        /// The machine.
        machine: MachineId,
        /// The port.
        port: String,
    },
}

impl std::fmt::Display for Element {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Element::Flow {
                mac,
                addr,
                to,
                ports,
            } => write!(f, "{mac} {addr} to {to} {ports}"),
            Element::Port { machine, port } => write!(f, "{machine} at {port}"),
        }
    }
}

/// One change for the backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Open for so long; what is open already gets this time.
    Open {
        /// What.
        element: Element,
        /// For whom.
        machine: MachineId,
        /// How long from now.
        left_ms: u64,
    },
    /// Close, and cut what passes.
    Close {
        /// What.
        element: Element,
    },
}

/// An address that is leased to a hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leased {
    /// The address.
    pub addr: Ipv4Addr,
    /// End of the lease.
    pub ends: UnixMillis,
}

/// Where a machine stands, as far as the gate asks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// Whether its state is a passing one.
    pub may_pass: bool,
    /// Its class.
    pub class: String,
    /// Its declared switch port.
    pub port: Option<String>,
    /// End of its LDevID, where its state has one.
    pub not_after: Option<UnixMillis>,
}

/// What the gate looks up when it settles.
pub trait World {
    /// A machine that is not known does not pass.
    fn standing(&self, machine: &MachineId) -> Standing;
    /// Every address bound to this hardware address now.
    fn leased(&self, mac: MacAddr) -> Vec<Leased>;
}

/// The way out, granted by one admission.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Grant {
    /// Hardware address the machine attested by, where it may use it.
    mac: Option<MacAddr>,
    until: UnixMillis,
}

/// What the backend has been told of one machine.
#[derive(Debug, Default)]
struct Told {
    open: BTreeMap<Element, UnixMillis>,
    due: Option<UnixMillis>,
}

/// What one turn led to. The records go to disk before the changes are made.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// For the ledger.
    pub records: Vec<GateChange>,
    /// For the backend, closings first.
    pub changes: Vec<Change>,
    /// Machines that stay closed because the set is full.
    pub full: Vec<MachineId>,
}

/// The gate.
#[derive(Debug)]
pub struct Gate {
    settings: Settings,
    grants: BTreeMap<MachineId, Grant>,
    by_mac: BTreeMap<MacAddr, MachineId>,
    by_addr: BTreeMap<Ipv4Addr, MachineId>,
    told: BTreeMap<MachineId, Told>,
    elements: usize,
    due: BTreeSet<(UnixMillis, MachineId)>,
    dirty: BTreeSet<MachineId>,
    /// Admissions whose record is still to be made.
    fresh: BTreeSet<MachineId>,
    records: Vec<GateChange>,
}

impl Gate {
    /// Nothing is open.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            grants: BTreeMap::new(),
            by_mac: BTreeMap::new(),
            by_addr: BTreeMap::new(),
            told: BTreeMap::new(),
            elements: 0,
            due: BTreeSet::new(),
            dirty: BTreeSet::new(),
            fresh: BTreeSet::new(),
            records: Vec::new(),
        }
    }

    /// What the backend tells machines apart by.
    pub fn by(&self) -> By {
        self.settings.by
    }

    /// Folds one ledger record in, at a start. Whether the state still passes is asked by the first
    /// [`Gate::settle`].
    pub fn replay(&mut self, record: &Record) {
        match record {
            Record::Gate(change) => match (change.change, change.until) {
                (GateAct::Opened, Some(until)) => {
                    self.grant(&change.machine, change.mac, until);
                    self.dirty.insert(change.machine.clone());
                }
                (GateAct::Opened | GateAct::Closed, _) => {
                    self.revoke(&change.machine);
                }
            },
            Record::Verdict(verdict) if !verdict.admitted => {
                // It is on record as this verdict, if not as a change of the gate as well.
                if let Some(machine) = &verdict.machine {
                    self.revoke(machine);
                }
            }
            _ => {}
        }
    }

    /// The machine was admitted, speaking from `mac` where that is its own. Its way out is open until
    /// the next admission, or for the configured time.
    pub fn admitted(&mut self, now: UnixMillis, machine: &MachineId, mac: Option<MacAddr>) {
        let mac = mac.filter(|mac| self.by_mac.get(mac).is_none_or(|other| other == machine));
        if mac.is_none() && self.settings.by == By::Address {
            // Its earlier grant was for another place.
            self.end(machine, GateCause::Moved);
            return;
        }
        let until = UnixMillis(now.0.saturating_add(self.settings.open_ms));
        self.grant(machine, mac, until);
        self.fresh.insert(machine.clone());
        self.dirty.insert(machine.clone());
    }

    /// The machine proved its keys and was refused: what runs on it is not what was admitted.
    pub fn refused(&mut self, machine: &MachineId) {
        self.end(machine, GateCause::Refused);
    }

    /// The state of the machine may have changed.
    pub fn touched(&mut self, machine: &MachineId) {
        if self.grants.contains_key(machine) || self.told.contains_key(machine) {
            self.dirty.insert(machine.clone());
        }
    }

    /// The lease of an address changed; `mac` has or had it.
    pub fn lease(&mut self, addr: Ipv4Addr, mac: MacAddr) {
        let before = self.by_addr.get(&addr);
        self.dirty.extend(before.cloned());
        self.dirty.extend(self.by_mac.get(&mac).cloned());
    }

    /// When [`Gate::settle`] wants to be called though nothing happened.
    pub fn poll_timeout(&self) -> Option<UnixMillis> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Brings everything that was touched, and everything that is due, in line.
    pub fn settle(&mut self, now: UnixMillis, world: &dyn World) -> Settled {
        let mut settled = Settled::default();
        let mut turn = std::mem::take(&mut self.dirty);
        while let Some((at, machine)) = self.due.pop_first() {
            if at > now {
                self.due.insert((at, machine));
                break;
            }
            turn.insert(machine);
        }
        // A lease that moves is closed for the one before it is open for the other.
        let mut opens = Vec::new();
        for machine in turn {
            self.settle_one(now, &machine, world, &mut settled, &mut opens);
        }
        settled.changes.append(&mut opens);
        settled.records.append(&mut self.records);
        settled
    }

    fn settle_one(
        &mut self,
        now: UnixMillis,
        machine: &MachineId,
        world: &dyn World,
        settled: &mut Settled,
        opens: &mut Vec<Change>,
    ) {
        let standing = world.standing(machine);
        let until = self.grants.get(machine).map(|grant| {
            let own = standing.not_after.unwrap_or(grant.until);
            grant.until.min(own)
        });
        let until = match until {
            Some(_) if !standing.may_pass => {
                self.end(machine, GateCause::State);
                None
            }
            Some(until) if until <= now => {
                self.end(machine, GateCause::Expired);
                None
            }
            other => other,
        };
        let mut want = until.map_or_else(BTreeMap::new, |until| {
            self.wanted(now, machine, until, &standing, world)
        });
        let have = self.forget(machine);
        if self.elements + want.len() > limits::GATE_ELEMENTS_MAX {
            settled.full.push(machine.clone());
            want.clear();
        }
        for element in have.open.keys().filter(|e| !want.contains_key(e)) {
            let element = element.clone();
            settled.changes.push(Change::Close { element });
        }
        for (element, until) in &want {
            if have.open.get(element) != Some(until) {
                opens.push(Change::Open {
                    element: element.clone(),
                    machine: machine.clone(),
                    // A clock that was set back opens for no longer than an admission does.
                    left_ms: until.0.saturating_sub(now.0).min(self.settings.open_ms),
                });
            }
        }
        if self.fresh.remove(machine)
            && let (Some(grant), Some(until)) = (self.grants.get(machine), until)
        {
            self.records.push(GateChange {
                machine: machine.clone(),
                change: GateAct::Opened,
                cause: GateCause::Admitted,
                mac: grant.mac,
                until: Some(until),
                elements: want.len() as u64,
            });
        }
        self.dirty.remove(machine);
        self.keep(machine, want, until);
    }

    /// What is open for a machine with a grant.
    fn wanted(
        &self,
        now: UnixMillis,
        machine: &MachineId,
        until: UnixMillis,
        standing: &Standing,
        world: &dyn World,
    ) -> BTreeMap<Element, UnixMillis> {
        match self.settings.by {
            By::Port => {
                let port = standing.port.clone().into_iter();
                port.map(|port| {
                    let machine = machine.clone();
                    (Element::Port { machine, port }, until)
                })
                .collect()
            }
            By::Address => {
                let Some(mac) = self.grants.get(machine).and_then(|grant| grant.mac) else {
                    return BTreeMap::new();
                };
                let mut leased = world.leased(mac);
                leased.retain(|lease| lease.ends > now);
                leased.sort_by_key(|lease| (std::cmp::Reverse(lease.ends), lease.addr));
                leased.truncate(limits::GATE_ADDRESSES_MAX);
                let rules = self.settings.rules.iter();
                rules
                    .filter(|rule| rule.is_for(&standing.class))
                    .flat_map(|rule| {
                        leased.iter().map(move |lease| {
                            let element = Element::Flow {
                                mac,
                                addr: lease.addr,
                                to: rule.to,
                                ports: rule.ports,
                            };
                            (element, until.min(lease.ends))
                        })
                    })
                    .collect()
            }
        }
    }

    /// Everything that is open now: element, machine, time left.
    pub fn open(&self, now: UnixMillis) -> Vec<Change> {
        let machines = self.told.iter();
        machines
            .flat_map(|(machine, told)| {
                told.open.iter().map(|(element, until)| Change::Open {
                    element: element.clone(),
                    machine: machine.clone(),
                    left_ms: until.0.saturating_sub(now.0),
                })
            })
            .collect()
    }

    /// What is open for one machine, and until when its grant lasts.
    pub fn view(&self, machine: &MachineId) -> Option<(UnixMillis, Vec<&Element>)> {
        let grant = self.grants.get(machine)?;
        let told = self.told.get(machine);
        let open = told.into_iter().flat_map(|told| told.open.keys());
        Some((grant.until, open.collect()))
    }

    fn grant(&mut self, machine: &MachineId, mac: Option<MacAddr>, until: UnixMillis) {
        self.revoke(machine);
        if let Some(mac) = mac {
            self.by_mac.insert(mac, machine.clone());
        }
        self.grants.insert(machine.clone(), Grant { mac, until });
    }

    fn revoke(&mut self, machine: &MachineId) -> bool {
        let Some(grant) = self.grants.remove(machine) else {
            return false;
        };
        if let Some(mac) = grant.mac {
            self.by_mac.remove(&mac);
        }
        self.dirty.insert(machine.clone());
        true
    }

    /// Takes the grant back and writes it down.
    fn end(&mut self, machine: &MachineId, cause: GateCause) {
        self.fresh.remove(machine);
        if !self.revoke(machine) {
            return;
        }
        let elements = self.told.get(machine).map_or(0, |told| told.open.len());
        self.records.push(GateChange {
            machine: machine.clone(),
            change: GateAct::Closed,
            cause,
            mac: None,
            until: None,
            elements: elements as u64,
        });
    }

    fn forget(&mut self, machine: &MachineId) -> Told {
        let told = self.told.remove(machine).unwrap_or_default();
        self.elements -= told.open.len();
        for element in told.open.keys() {
            if let Element::Flow { addr, .. } = element
                && self.by_addr.get(addr) == Some(machine)
            {
                self.by_addr.remove(addr);
            }
        }
        if let Some(at) = told.due {
            self.due.remove(&(at, machine.clone()));
        }
        told
    }

    fn keep(
        &mut self,
        machine: &MachineId,
        open: BTreeMap<Element, UnixMillis>,
        until: Option<UnixMillis>,
    ) {
        let due = open.values().copied().chain(until).min();
        if let Some(at) = due {
            self.due.insert((at, machine.clone()));
        }
        for element in open.keys() {
            if let Element::Flow { addr, .. } = element {
                self.by_addr.insert(*addr, machine.clone());
            }
        }
        self.elements += open.len();
        if due.is_some() {
            self.told.insert(machine.clone(), Told { open, due });
        }
    }
}

/// How far the time left in the backend may be from what it should be, before it is set anew: it
/// counts in seconds, and reading takes a while.
const SLACK_MS: u64 = 5_000;

/// What to change so that the backend has what is wanted: `wanted` with its time left, `found` with
/// the time left where it has one.
pub fn diff(
    wanted: &BTreeMap<Element, (MachineId, u64)>,
    found: &BTreeMap<Element, Option<u64>>,
) -> Vec<Change> {
    let closes = found.keys().filter(|e| !wanted.contains_key(e));
    let closes = closes.map(|element| Change::Close {
        element: element.clone(),
    });
    let right = |element: &Element, left: u64| {
        let there = found.get(element).copied().flatten();
        there.is_some_and(|there| there.abs_diff(left) <= SLACK_MS)
    };
    let opens = wanted.iter().filter(|(e, (_, left))| !right(e, *left));
    let opens = opens.map(|(element, (machine, left_ms))| Change::Open {
        element: element.clone(),
        machine: machine.clone(),
        left_ms: *left_ms,
    });
    closes.chain(opens).collect()
}

#[cfg(test)]
mod tests;
