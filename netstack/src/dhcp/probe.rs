//! Conflict probing: before an address of the pool is first offered, the segment is asked whether
//! somebody uses it (RFC 2131 section 3.1 step 2, in the form of RFC 5227).
//!
//! Sans-IO: [`Outcome::probe`] asks the shell for an ARP probe, [`Server::handle_conflict`] hears of
//! an answer, and when none came in time [`Server::poll_probed`] gives the OFFER. Silence is decided
//! by the clock here, so a shell that says nothing delays an offer and never prevents it. Who holds a
//! lease, has a reservation, or comes back to an address of its own never waits.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::client::{self, MessageType};
use super::lease::{Lease, LeaseState, Table, Who};
use super::server::{Call, Received, Server, Step};
use super::{BootAnswer, Cause, ClientKey, Event, Ingress, LeaseChange, Outcome, Refused};
use crate::MacAddr;

/// Addresses tried for one DISCOVER. The client asks again, and a liar who answers every probe must
/// not keep us busy with one datagram.
const TRIES_MAX: u8 = 3;

/// A request that waits for its address to be found free.
#[derive(Debug)]
struct Waiting {
    due_ms: u64,
    datagram: Vec<u8>,
    ingress: Ingress,
    tries: u8,
}

/// The addresses under probe.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    by_addr: BTreeMap<Ipv4Addr, Waiting>,
    by_due: BTreeSet<(u64, Ipv4Addr)>,
}

impl Probes {
    pub fn next_due(&self) -> Option<u64> {
        self.by_due.first().map(|(due, _)| *due)
    }

    fn remove(&mut self, addr: Ipv4Addr) -> Option<Waiting> {
        let waiting = self.by_addr.remove(&addr)?;
        self.by_due.remove(&(waiting.due_ms, addr));
        Some(waiting)
    }

    fn insert(&mut self, addr: Ipv4Addr, waiting: Waiting) {
        self.by_due.insert((waiting.due_ms, addr));
        self.by_addr.insert(addr, waiting);
    }

    fn take_due(&mut self, now_ms: u64) -> Option<(Ipv4Addr, Waiting)> {
        let (due, addr) = *self.by_due.first()?;
        if due > now_ms {
            return None;
        }
        Some((addr, self.remove(addr)?))
    }

    /// A clock that was set back must not leave clients waiting for the old time.
    pub fn clamp(&mut self, latest_ms: u64) {
        let late: Vec<Ipv4Addr> = self
            .by_due
            .range((latest_ms.saturating_add(1), Ipv4Addr::UNSPECIFIED)..)
            .map(|(_, addr)| *addr)
            .collect();
        for addr in late {
            if let Some(waiting) = self.remove(addr) {
                let due_ms = latest_ms;
                self.insert(addr, Waiting { due_ms, ..waiting });
            }
        }
    }
}

impl Server {
    /// Gives the address at once, or puts the request behind a probe of it. `grant` answers.
    pub(super) fn probe_first(
        &mut self,
        call: &Call<'_>,
        scope: usize,
        addr: Ipv4Addr,
        grant: impl FnOnce(&mut Self, &Call<'_>, usize, Ipv4Addr) -> Result<Step, Refused>,
    ) -> Result<Step, Refused> {
        if let Some(waiting) = self.probes.by_addr.get_mut(&addr) {
            // The same client again (the address is held for it): answer what it sent last.
            waiting.datagram = call.datagram.to_vec();
            return Ok(Step::default());
        }
        if !self.needs_probe(call, scope, addr) {
            return grant(self, call, scope, addr);
        }
        if self.probes.by_addr.len() >= self.limits.probes_max {
            self.counters.unprobed += 1;
            return grant(self, call, scope, addr);
        }
        self.tables[scope].put(Lease {
            addr,
            client: call.who.key.clone(),
            mac: call.who.mac,
            port: call.who.port.clone(),
            state: LeaseState::Offered,
            expires_ms: call.now_ms.saturating_add(self.limits.offer_ms),
        });
        self.probes.insert(
            addr,
            Waiting {
                due_ms: call.now_ms.saturating_add(self.limits.probe_ms),
                datagram: call.datagram.to_vec(),
                ingress: call.ingress.clone(),
                tries: call.tries,
            },
        );
        self.counters.probed += 1;
        Ok(Step {
            probe: Some(addr),
            ..Step::default()
        })
    }

    fn needs_probe(&self, call: &Call<'_>, scope: usize, addr: Ipv4Addr) -> bool {
        let table = &self.tables[scope];
        let own_link = call.client().giaddr().is_unspecified()
            && table.scope.subnet.contains(call.ingress.server_addr);
        if self.limits.probe_ms == 0 || !own_link || table.has_reservation(&call.who) {
            return false;
        }
        let was_its_own = |lease: &Lease| {
            lease.client == call.who.key
                && match lease.state {
                    LeaseState::Offered | LeaseState::Bound => true,
                    LeaseState::Released | LeaseState::Expired => true,
                    LeaseState::Lapsed | LeaseState::Declined => false,
                }
        };
        !table.lease(addr).is_some_and(was_its_own)
    }

    /// Somebody with hardware address `mac` uses `addr`, by an ARP packet on our own segment. Counts
    /// only while the address is offered and not yet leased: the address goes into quarantine and
    /// the client is led to the next one.
    pub fn handle_conflict(
        &mut self,
        now_ms: u64,
        addr: Ipv4Addr,
        mac: MacAddr,
        boot: &dyn BootAnswer,
    ) -> Outcome {
        self.handle_timeout(now_ms);
        let offered = |table: &Table| {
            let lease = table.lease(addr);
            lease.is_some_and(|l| l.state == LeaseState::Offered && l.mac != mac)
        };
        let Some(scope) = self.tables.iter().position(offered) else {
            return Outcome::default();
        };
        let waiting = self.probes.remove(addr);
        let Some(lease) = self.tables[scope].lease(addr).cloned() else {
            return Outcome::default();
        };
        self.counters.conflicts += 1;
        let refused = Refused::AddressInUse {
            addr,
            by: mac,
            client: lease.mac,
        };
        self.count_refused(&refused);
        let change = self.quarantine(now_ms, scope, lease, Cause::Conflict);
        let mut outcome = Outcome {
            changes: change.into_iter().collect(),
            event: Some(Event::Conflict { addr, by: mac }),
            ..Outcome::default()
        };
        if let Some(waiting) = waiting.filter(|waiting| waiting.tries + 1 < TRIES_MAX) {
            let next = self.again(now_ms, &waiting, boot);
            outcome.client = next.client;
            outcome.changes.extend(next.changes);
            outcome.probe = next.probe;
            outcome.reply = next.reply;
        }
        outcome.refused = Some(refused);
        outcome
    }

    /// The waiting request, decided anew.
    fn again(&mut self, now_ms: u64, waiting: &Waiting, boot: &dyn BootAnswer) -> Outcome {
        let received = Received {
            now_ms,
            datagram: &waiting.datagram,
            ingress: &waiting.ingress,
            tries: waiting.tries + 1,
        };
        self.take(&received, boot, |server, call| {
            match call.client().message_type {
                MessageType::Bootp => server.bootp(call),
                _ => server.discover(call),
            }
        })
    }

    /// The next answer whose probe ended in silence, and the interface it goes out by. Call until
    /// `None` when [`Server::poll_timeout`] is due.
    pub fn poll_probed(&mut self, now_ms: u64, boot: &dyn BootAnswer) -> Option<(Outcome, String)> {
        self.handle_timeout(now_ms);
        while let Some((addr, waiting)) = self.probes.take_due(now_ms) {
            let Ok(request) = client::parse(&waiting.datagram) else {
                continue;
            };
            let who = Who::of(&request.client);
            // Meanwhile it may have been bound, or have run out.
            let held = |table: &Table| {
                let lease = table.lease(addr);
                lease.is_some_and(|l| l.state == LeaseState::Offered && l.client == who.key)
            };
            let Some(scope) = self.tables.iter().position(held) else {
                continue;
            };
            let call = Call {
                now_ms,
                datagram: &waiting.datagram,
                request: &request,
                ingress: &waiting.ingress,
                boot,
                who,
                tries: waiting.tries,
            };
            let step = match request.client.message_type {
                MessageType::Bootp => self.bootp_grant(&call, scope, addr),
                _ => self.offer(&call, scope, addr),
            };
            let outcome = self.outcome(request.client.clone(), step);
            return Some((outcome, waiting.ingress.iface));
        }
        None
    }

    /// Keeps an address from being leased for a while; `None` when the quarantine is full and the
    /// address only goes to the end of the queue.
    pub(super) fn quarantine(
        &mut self,
        now_ms: u64,
        scope: usize,
        lease: Lease,
        cause: Cause,
    ) -> Option<LeaseChange> {
        let held: usize = self.tables.iter().map(Table::quarantined).sum();
        if held >= self.limits.quarantine_max {
            // Nobody's: its client must not be led back to it.
            self.tables[scope].put(Lease {
                client: ClientKey::from_bytes(Vec::new()),
                state: LeaseState::Lapsed,
                expires_ms: now_ms,
                ..lease
            });
            return None;
        }
        let lease = Lease {
            state: LeaseState::Declined,
            expires_ms: now_ms.saturating_add(self.limits.quarantine_ms),
            ..lease
        };
        self.tables[scope].put(lease.clone());
        Some(LeaseChange { lease, cause })
    }
}
