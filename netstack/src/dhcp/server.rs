//! The server: one datagram in, lease changes and a reply out.
//!
//! One `handle` call is one mutation; the caller makes `changes` durable and then sends `reply`.
//! The state depends on configuration and inputs only. A reply that was lost is simply asked for
//! again; handling the same request twice gives the same address.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::client::{self, ClientInfo, MessageType, Request};
use super::config::{Config, Limits, Mode};
use super::guard::Meter;
use super::lease::{Lease, LeaseState, Table, Who};
use super::onward;
use super::probe::Probes;
use super::proxy::Sighted;
use super::reply::{self, Answer};
use super::{BootAnswer, Cause, Event, Ingress, LeaseChange, Outcome, Refused, Reply};
use crate::MacAddr;

/// What the server counted since it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams handed in.
    pub received: u64,
    /// DHCPOFFERs made.
    pub offered: u64,
    /// DHCPACKs to DHCPREQUEST.
    pub acked: u64,
    /// DHCPNAKs.
    pub naked: u64,
    /// DHCPNAKs that sent firmware on to its next boot device.
    pub sent_on: u64,
    /// DHCPACKs to DHCPINFORM.
    pub informed: u64,
    /// DHCPRELEASEs taken.
    pub released: u64,
    /// DHCPDECLINEs taken.
    pub declined: u64,
    /// BOOTP replies.
    pub bootp: u64,
    /// Boot data told without an address: ProxyDHCP offers and answers on port 4011.
    pub boot_only: u64,
    /// Addresses probed before they were offered.
    pub probed: u64,
    /// Offers without a probe, because too many were under way.
    pub unprobed: u64,
    /// Addresses found in use.
    pub conflicts: u64,
    /// Requests that were somebody else's to answer, or a machine's that boots its own disk.
    pub left_alone: u64,
    /// Requests that had an option left out because it could not be read.
    pub with_notes: u64,
    /// Refusals by code.
    pub refused: BTreeMap<&'static str, u64>,
}

/// A DHCPv4 server.
///
/// Call [`handle`](Self::handle) for each datagram and [`handle_timeout`](Self::handle_timeout)
/// when [`poll_timeout`](Self::poll_timeout) is due; nothing breaks when a timeout is late.
#[derive(Debug)]
pub struct Server {
    mode: Mode,
    pub(super) tables: Vec<Table>,
    relays: Vec<Ipv4Addr>,
    authoritative: bool,
    pub(super) bootp_dynamic: bool,
    pub(super) limits: Limits,
    pub(super) counters: Counters,
    pub(super) sighted: Sighted,
    pub(super) probes: Probes,
    pub(super) meter: Meter,
    ignored: Option<MacAddr>,
    last_ms: u64,
}

/// What a message led to when it was not refused outright.
#[derive(Default)]
pub(super) struct Step {
    pub changes: Vec<LeaseChange>,
    pub reply: Option<Reply>,
    pub probe: Option<Ipv4Addr>,
    pub event: Option<Event>,
    pub refused: Option<Refused>,
}

/// A datagram as it came in, or as it waited for a probe.
pub(super) struct Received<'a> {
    pub now_ms: u64,
    pub datagram: &'a [u8],
    pub ingress: &'a Ingress,
    /// Addresses that were tried for it and found in use.
    pub tries: u8,
}

/// One request on its way through the server.
pub(super) struct Call<'a> {
    pub now_ms: u64,
    pub datagram: &'a [u8],
    pub request: &'a Request,
    pub ingress: &'a Ingress,
    pub boot: &'a dyn BootAnswer,
    pub who: Who,
    pub tries: u8,
}

impl Call<'_> {
    pub fn client(&self) -> &ClientInfo {
        &self.request.client
    }
}

impl Server {
    /// A server without leases. `config` should have passed [`Config::check`]; one that has not
    /// leases less than meant and never panics.
    pub fn new(config: Config) -> Self {
        Self {
            mode: config.mode,
            tables: config.scopes.into_iter().map(Table::new).collect(),
            relays: config.relays,
            authoritative: config.authoritative,
            bootp_dynamic: config.bootp_dynamic,
            limits: config.limits,
            counters: Counters::default(),
            sighted: Sighted::default(),
            probes: Probes::default(),
            meter: Meter::new(config.limits.port_rate, config.limits.iface_rate),
            ignored: None,
            last_ms: u64::MAX,
        }
    }

    /// Takes over leases from the journal, oldest first. Offers and addresses outside every scope
    /// are left out. Call before the first `handle`.
    pub fn restore(&mut self, leases: impl IntoIterator<Item = Lease>) {
        for lease in leases {
            if matches!(lease.state, LeaseState::Offered | LeaseState::Lapsed) {
                continue;
            }
            if let Some(table) = self
                .tables
                .iter_mut()
                .find(|t| t.scope.subnet.is_host(lease.addr))
            {
                table.put(lease);
            }
        }
    }

    /// Never answers this hardware address: our own watch asks as it.
    pub fn ignore(&mut self, mac: MacAddr) {
        self.ignored = Some(mac);
    }

    /// All leases: taken and remembered, offers included (see [`LeaseState`]).
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.tables.iter().flat_map(Table::leases)
    }

    /// The hardware address behind an address: of the lease bound now, and in proxy mode what its
    /// client told the other server or port 4011. As good as any word of the segment.
    pub fn holder(&self, addr: Ipv4Addr) -> Option<MacAddr> {
        let lease = self.tables.iter().find_map(|table| table.lease(addr));
        let bound = lease.filter(|lease| lease.state == LeaseState::Bound);
        bound
            .map(|lease| lease.mac)
            .or_else(|| self.sighted.holder(addr))
    }

    /// The switch port that option 82 named beside the lease that is bound at `addr`.
    pub fn port(&self, addr: Ipv4Addr) -> Option<&super::PortId> {
        let lease = self.tables.iter().find_map(|table| table.lease(addr))?;
        let bound = lease.state == LeaseState::Bound;
        lease.port.as_ref().filter(|_| bound)
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// When the next lease, offer, quarantine or probe ends, on the caller's clock.
    pub fn poll_timeout(&self) -> Option<u64> {
        let ends = self.tables.iter().filter_map(Table::next_end);
        ends.chain(self.probes.next_due()).min()
    }

    /// Frees what ended. Ends are not written down: they follow from time.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        // A clock that was wrong (a dead RTC before its first sync) must not keep addresses taken
        // for years. `last_ms` starts at the far end, so restored leases are looked at once.
        if now_ms < self.last_ms {
            for table in &mut self.tables {
                let lease_ms = u64::from(table.scope.lease_secs) * 1000;
                let bootp_ms = if self.bootp_dynamic {
                    self.limits.bootp_ms
                } else {
                    0
                };
                let longest = lease_ms
                    .max(self.limits.quarantine_ms)
                    .max(self.limits.offer_ms)
                    .max(bootp_ms);
                table.clamp(now_ms.saturating_add(longest));
            }
            self.probes
                .clamp(now_ms.saturating_add(self.limits.probe_ms));
        }
        self.last_ms = now_ms;
        for table in &mut self.tables {
            table.expire(now_ms);
        }
    }

    /// Takes one datagram of port 67. `now_ms` is milliseconds on any one clock (the daemon: Unix
    /// time).
    pub fn handle(
        &mut self,
        now_ms: u64,
        datagram: &[u8],
        ingress: &Ingress,
        boot: &dyn BootAnswer,
    ) -> Outcome {
        self.counters.received += 1;
        let received = Received {
            now_ms,
            datagram,
            ingress,
            tries: 0,
        };
        self.take(&received, boot, |server, call| {
            match (server.mode, call.client().message_type) {
                (Mode::Proxy, _) => server.proxy(call),
                (Mode::Server, MessageType::Discover) => server.discover(call),
                (Mode::Server, MessageType::Request) => server.request(call),
                (Mode::Server, MessageType::Decline) => server.decline(call),
                (Mode::Server, MessageType::Release) => server.release(call),
                (Mode::Server, MessageType::Inform) => server.inform(call),
                (Mode::Server, MessageType::Bootp) => server.bootp(call),
            }
        })
    }

    /// Takes one datagram of port 4011, in both modes: boot data for a client that has its address.
    /// No lease is made or changed.
    pub fn handle_boot_request(
        &mut self,
        now_ms: u64,
        datagram: &[u8],
        ingress: &Ingress,
        boot: &dyn BootAnswer,
    ) -> Outcome {
        self.counters.received += 1;
        let received = Received {
            now_ms,
            datagram,
            ingress,
            tries: 0,
        };
        self.take(&received, boot, Self::boot_request)
    }

    /// Reads a datagram and lets `step` decide.
    pub(super) fn take(
        &mut self,
        received: &Received<'_>,
        boot: &dyn BootAnswer,
        step: impl FnOnce(&mut Self, &Call<'_>) -> Result<Step, Refused>,
    ) -> Outcome {
        self.handle_timeout(received.now_ms);
        let request = match client::parse(received.datagram) {
            Ok(request) => request,
            Err(refused) => {
                self.count_refused(&refused);
                return Outcome {
                    refused: Some(refused),
                    ..Outcome::default()
                };
            }
        };
        if !request.client.notes.is_empty() {
            self.counters.with_notes += 1;
        }
        if self.ignored == Some(request.client.mac) {
            self.counters.left_alone += 1;
            return Outcome {
                client: Some(request.client),
                ..Outcome::default()
            };
        }
        let call = Call {
            now_ms: received.now_ms,
            datagram: received.datagram,
            request: &request,
            ingress: received.ingress,
            boot,
            who: Who::of(&request.client),
            tries: received.tries,
        };
        let step = step(self, &call);
        self.outcome(request.client, step)
    }

    /// Counts what a step led to.
    pub(super) fn outcome(&mut self, client: ClientInfo, step: Result<Step, Refused>) -> Outcome {
        let step = step.unwrap_or_else(|refused| Step {
            refused: Some(refused),
            ..Step::default()
        });
        if let Some(refused) = &step.refused {
            self.count_refused(refused);
        }
        if step.event == Some(Event::LeftAlone) {
            self.counters.left_alone += 1;
        }
        let Step {
            changes,
            reply,
            probe,
            event,
            refused,
        } = step;
        Outcome {
            client: Some(client),
            changes,
            reply,
            probe,
            event,
            refused,
        }
    }

    pub(super) fn count_refused(&mut self, refused: &Refused) {
        *self.counters.refused.entry(refused.code()).or_default() += 1;
    }

    /// The scope of the link the client is on.
    pub(super) fn locate(&self, client: &ClientInfo, ingress: &Ingress) -> Result<usize, Refused> {
        let covers = |link: Ipv4Addr| {
            self.tables
                .iter()
                .position(|t| t.scope.subnet.contains(link))
        };
        let giaddr = client.giaddr();
        let link = if giaddr.is_unspecified() {
            ingress.server_addr
        } else {
            // Replies go where giaddr says, so it is not taken from just anybody.
            if !self.relays.contains(&giaddr) && covers(giaddr).is_none() {
                return Err(Refused::RelayUnknown { giaddr });
            }
            client
                .relay
                .as_ref()
                .and_then(|relay| relay.link_selection)
                .unwrap_or(giaddr)
        };
        covers(link).ok_or(Refused::NoScope { link })
    }

    fn lease_secs(&self, scope: usize, call: &Call<'_>) -> u32 {
        let client = call.client();
        let scope = &self.tables[scope].scope;
        // Firmware and iPXE are gone in minutes, whatever the machine is.
        let longest = if call.boot.settled(client) && !client.boots() {
            scope.lease_secs
        } else {
            scope.boot_lease_secs.min(scope.lease_secs)
        };
        let shortest = self.limits.lease_secs_min.min(longest);
        client
            .lease_secs
            .map_or(longest, |wanted| wanted.clamp(shortest, longest))
    }

    /// Whether a client may take something new. See [`guard`](super::guard).
    pub(super) fn admit(&mut self, call: &Call<'_>, scope: usize) -> Result<(), Refused> {
        let table = &self.tables[scope];
        let (who, limits) = (&call.who, &self.limits);
        if table.knows(who, call.ingress.server_addr) {
            return Ok(());
        }
        let held = table.taken_by_mac(who.mac);
        if held >= limits.mac_addrs_max {
            return Err(Refused::MacLimit { mac: who.mac, held });
        }
        if call.boot.knows(call.client()) {
            return Ok(());
        }
        let port = who.port.as_ref();
        self.meter.take(call.now_ms, port, &call.ingress.iface)?;
        let open: usize = self.tables.iter().map(Table::offers).sum();
        if open >= limits.offers_max {
            return Err(Refused::OfferLimit { open });
        }
        if let Some(port) = port {
            let held = table.taken_by_port(port);
            if held >= limits.port_addrs_max {
                let port = port.to_text();
                return Err(Refused::PortLimit { port, held });
            }
        }
        let percent = match port {
            Some(_) => limits.reserve_known_percent,
            None => limits.reserve_percent,
        };
        let (used, addresses) = (table.taken(), table.addresses());
        let kept = addresses * usize::from(percent.min(100)) / 100;
        // A pool with nothing kept is exhausted when it is exhausted.
        if kept > 0 && used + kept >= addresses {
            return Err(Refused::PoolWatermark {
                used,
                addresses,
                kept,
            });
        }
        Ok(())
    }

    pub(super) fn discover(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let scope = self.locate(call.client(), call.ingress)?;
        self.admit(call, scope)?;
        let server = call.ingress.server_addr;
        let wanted = call.client().requested_addr;
        let addr = self.tables[scope].choose(&call.who, wanted, server)?;
        self.probe_first(call, scope, addr, Self::offer)
    }

    pub(super) fn offer(
        &mut self,
        call: &Call<'_>,
        scope: usize,
        addr: Ipv4Addr,
    ) -> Result<Step, Refused> {
        let current = self.tables[scope].lease(addr);
        // A client that starts over still holds its lease; an offer must not shorten it.
        let bound = current.is_some_and(|lease| lease.state == LeaseState::Bound);
        let lease_secs = self.lease_secs(scope, call);
        let boot = onward::offered(call);
        let reply = self.reply(
            scope,
            call,
            &Answer::Offer {
                addr,
                lease_secs,
                boot,
            },
        )?;
        if !bound {
            self.tables[scope].put(Lease {
                addr,
                client: call.who.key.clone(),
                mac: call.who.mac,
                port: call.who.port.clone(),
                state: LeaseState::Offered,
                expires_ms: call.now_ms.saturating_add(self.limits.offer_ms),
            });
        }
        self.counters.offered += 1;
        Ok(Step {
            reply: Some(reply),
            event: Some(Event::Offered { addr }),
            ..Step::default()
        })
    }

    /// DHCPREQUEST in the four states of RFC 2131 section 4.3.2.
    fn request(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let client = call.client();
        if let Some(server) = client
            .server_id
            .filter(|id| *id != call.ingress.server_addr)
        {
            return Ok(self.chose_other(call, server));
        }
        let scope = self.locate(client, call.ingress)?;
        let selecting = client.server_id.is_some();
        match (client.ciaddr, client.requested_addr) {
            (Ipv4Addr::UNSPECIFIED, Some(addr)) if selecting => self.selecting(call, scope, addr),
            (Ipv4Addr::UNSPECIFIED, Some(addr)) => self.init_reboot(call, scope, addr),
            (Ipv4Addr::UNSPECIFIED, None) => Err(Refused::NoAddress),
            // RENEWING and REBINDING differ in how the datagram travelled, not in its content.
            (ciaddr, _) => self.renewing(call, scope, ciaddr),
        }
    }

    /// The client took somebody else's offer: ours returns to the pool at once.
    fn chose_other(&mut self, call: &Call<'_>, server: Ipv4Addr) -> Step {
        for table in &mut self.tables {
            if let Some(lease) = table.on_record(&call.who.key).cloned()
                && lease.state == LeaseState::Offered
            {
                table.put(Lease {
                    state: LeaseState::Lapsed,
                    expires_ms: call.now_ms,
                    ..lease
                });
            }
        }
        Step {
            event: Some(Event::ChoseOther { server }),
            refused: Some(Refused::ChoseOther { server }),
            ..Step::default()
        }
    }

    fn selecting(
        &mut self,
        call: &Call<'_>,
        scope: usize,
        addr: Ipv4Addr,
    ) -> Result<Step, Refused> {
        let table = &self.tables[scope];
        let on_record = table
            .on_record(&call.who.key)
            .filter(|lease| lease.state.is_live());
        let on_record = on_record.map(|lease| lease.addr);
        // Offers are memory only: after a restart the record is missing and a free address is
        // still as good as it was when we offered it.
        let as_offered = on_record.is_none_or(|ours| ours == addr);
        if as_offered && table.may_have(addr, &call.who, call.ingress.server_addr) {
            if let Some(step) = self.send_on(call, scope, addr)? {
                return Ok(step);
            }
            return self.acknowledge(call, scope, addr);
        }
        self.refuse_address(call, scope, addr, on_record)
    }

    fn init_reboot(
        &mut self,
        call: &Call<'_>,
        scope: usize,
        addr: Ipv4Addr,
    ) -> Result<Step, Refused> {
        let table = &self.tables[scope];
        let on_record = table.on_record(&call.who.key).map(|lease| lease.addr);
        if !table.scope.subnet.contains(addr) {
            return self.refuse_address(call, scope, addr, on_record);
        }
        let known = on_record.is_some() || table.has_reservation(&call.who);
        if !known && !self.authoritative {
            return Err(Refused::NoRecord { addr });
        }
        let ours = on_record.is_none_or(|ours| ours == addr) && known;
        if ours && table.may_have(addr, &call.who, call.ingress.server_addr) {
            return self.acknowledge(call, scope, addr);
        }
        self.refuse_address(call, scope, addr, on_record)
    }

    fn renewing(&mut self, call: &Call<'_>, scope: usize, addr: Ipv4Addr) -> Result<Step, Refused> {
        // A client behind a relay renews by unicast, past the relay: giaddr is zero and only our
        // own record says which subnet it is on.
        let scope = if call.client().giaddr().is_unspecified() {
            let holds = |table: &Table| {
                let lease = table.on_record(&call.who.key);
                lease.is_some_and(|l| l.addr == addr && l.state == LeaseState::Bound)
            };
            self.tables.iter().position(holds).unwrap_or(scope)
        } else {
            scope
        };
        // Without a record (a lost store) the client is trusted as long as nobody else has the
        // address: breaking a running machine would help nobody.
        if self.tables[scope].may_have(addr, &call.who, call.ingress.server_addr) {
            return self.acknowledge(call, scope, addr);
        }
        let on_record = self.tables[scope]
            .on_record(&call.who.key)
            .map(|lease| lease.addr);
        self.refuse_address(call, scope, addr, on_record)
    }

    fn acknowledge(
        &mut self,
        call: &Call<'_>,
        scope: usize,
        addr: Ipv4Addr,
    ) -> Result<Step, Refused> {
        // A REQUEST without a DISCOVER takes an address too.
        self.admit(call, scope)?;
        let lease_secs = self.lease_secs(scope, call);
        let boot = call.boot.boot(call.client());
        let reply = self.reply(
            scope,
            call,
            &Answer::Ack {
                addr,
                lease_secs,
                boot,
            },
        )?;
        let held = self.tables[scope].lease(addr);
        let renewed =
            held.is_some_and(|l| l.state == LeaseState::Bound && l.client == call.who.key);
        // A renewal goes past the relay agent (RFC 2131 section 4.4.5): one without option 82 takes
        // nothing back.
        let known = held.filter(|_| renewed).and_then(|l| l.port.clone());
        let expires_ms = call.now_ms.saturating_add(u64::from(lease_secs) * 1000);
        let lease = Lease {
            addr,
            client: call.who.key.clone(),
            mac: call.who.mac,
            port: call.who.port.clone().or(known),
            state: LeaseState::Bound,
            expires_ms,
        };
        self.tables[scope].put(lease.clone());
        self.counters.acked += 1;
        let cause = if renewed {
            Cause::Renewed
        } else {
            Cause::Granted
        };
        Ok(Step {
            changes: vec![LeaseChange { lease, cause }],
            reply: Some(reply),
            event: Some(Event::Acked {
                addr,
                expires_ms,
                renewed,
            }),
            ..Step::default()
        })
    }

    fn refuse_address(
        &mut self,
        call: &Call<'_>,
        scope: usize,
        addr: Ipv4Addr,
        on_record: Option<Ipv4Addr>,
    ) -> Result<Step, Refused> {
        let subnet = self.tables[scope].scope.subnet;
        let refused = if subnet.contains(addr) {
            Refused::NotAvailable { addr, on_record }
        } else {
            Refused::WrongSubnet {
                addr,
                subnet: subnet.to_string(),
            }
        };
        let reply = self.reply(
            scope,
            call,
            &Answer::Nak {
                message: refused.to_string(),
            },
        )?;
        self.counters.naked += 1;
        Ok(Step {
            reply: Some(reply),
            event: Some(Event::Naked { addr }),
            refused: Some(refused),
            ..Step::default()
        })
    }

    fn decline(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let addr = call.client().requested_addr.ok_or(Refused::NoAddress)?;
        let (scope, lease) = self.held(call, addr)?;
        let held: usize = self.tables.iter().map(Table::quarantined).sum();
        let declined = self.tables[scope].declined_by_mac(lease.mac);
        let refused = if held >= self.limits.quarantine_max {
            Some(Refused::QuarantineLimit { held })
        } else if declined >= self.limits.declines_max {
            let mac = lease.mac;
            Some(Refused::DeclineLimit { mac, declined })
        } else {
            None
        };
        self.counters.declined += 1;
        let change = if refused.is_some() {
            let lease = Lease {
                state: LeaseState::Released,
                expires_ms: call.now_ms,
                ..lease
            };
            self.tables[scope].put(lease.clone());
            let cause = Cause::Released;
            Some(LeaseChange { lease, cause })
        } else {
            self.quarantine(call.now_ms, scope, lease, Cause::Declined)
        };
        Ok(Step {
            changes: change.into_iter().collect(),
            event: Some(Event::Declined { addr }),
            refused,
            ..Step::default()
        })
    }

    fn release(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let addr = call.client().ciaddr;
        if addr.is_unspecified() {
            return Err(Refused::NoAddress);
        }
        let (scope, lease) = self.held(call, addr)?;
        let lease = Lease {
            state: LeaseState::Released,
            expires_ms: call.now_ms,
            ..lease
        };
        self.tables[scope].put(lease.clone());
        self.counters.released += 1;
        Ok(Step {
            changes: vec![LeaseChange {
                lease,
                cause: Cause::Released,
            }],
            event: Some(Event::Released { addr }),
            ..Step::default()
        })
    }

    /// The scope and lease of an address that this client holds from us.
    fn held(&self, call: &Call<'_>, addr: Ipv4Addr) -> Result<(usize, Lease), Refused> {
        if let Some(server) = call
            .client()
            .server_id
            .filter(|id| *id != call.ingress.server_addr)
        {
            return Err(Refused::ChoseOther { server });
        }
        let holds = |lease: &&Lease| {
            lease.client == call.who.key
                && matches!(lease.state, LeaseState::Offered | LeaseState::Bound)
        };
        let mut tables = self.tables.iter().enumerate();
        let found =
            tables.find_map(|(i, table)| Some((i, table.lease(addr).filter(holds)?.clone())));
        found.ok_or(Refused::NotHolder { addr })
    }

    fn inform(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let addr = call.client().ciaddr;
        if addr.is_unspecified() {
            return Err(Refused::NoAddress);
        }
        let scope = match self.locate(call.client(), call.ingress) {
            Ok(scope) if self.tables[scope].scope.subnet.is_host(addr) => scope,
            _ => return Err(Refused::NoScope { link: addr }),
        };
        let boot = call.boot.boot(call.client());
        let reply = self.reply(scope, call, &Answer::Informed { boot })?;
        self.counters.informed += 1;
        Ok(Step {
            reply: Some(reply),
            event: Some(Event::Informed { addr }),
            ..Step::default()
        })
    }

    pub(super) fn reply(
        &self,
        scope: usize,
        call: &Call<'_>,
        answer: &Answer,
    ) -> Result<Reply, Refused> {
        let scope = &self.tables[scope].scope;
        reply::build(
            call.request,
            call.ingress,
            scope,
            answer,
            self.limits.reply_len_max,
        )
    }
}
