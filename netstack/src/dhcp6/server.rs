//! The server: one datagram in, lease changes and a reply out.
//!
//! One `handle` call is one mutation; the caller makes `changes` durable and then sends `reply`.
//! The state depends on configuration and inputs only. A reply that was lost is simply asked for
//! again; handling the same request twice gives the same address.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use super::client::{ClientInfo, Ia, IaKind};
use super::config::Config;
use super::lease::{ClientKey, Lease, LeaseState, Table};
use super::message::MessageType;
use super::reply::{self, Answer, IaAnswer, Status};
use super::{
    BootAnswer, BootFile, Cause, Duid, Event, Ingress, LeaseChange, Outcome, Refused, Reply,
};

/// What the server counted since it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams handed in.
    pub received: u64,
    /// Advertises made.
    pub advertised: u64,
    /// Addresses leased or renewed.
    pub leased: u64,
    /// Addresses given back.
    pub released: u64,
    /// Addresses declined.
    pub declined: u64,
    /// Requests that had an option which could not be read as it should be.
    pub with_notes: u64,
    /// Refusals by code.
    pub refused: BTreeMap<&'static str, u64>,
}

/// A DHCPv6 server on one link.
///
/// Call [`handle`](Self::handle) for each datagram and [`handle_timeout`](Self::handle_timeout)
/// when [`poll_timeout`](Self::poll_timeout) is due; nothing breaks when a timeout is late.
#[derive(Debug)]
pub struct Server {
    config: Config,
    table: Table,
    counters: Counters,
    last_ms: u64,
}

/// What a message led to when it was not refused outright.
#[derive(Default)]
struct Step {
    changes: Vec<LeaseChange>,
    reply: Option<Reply>,
    event: Option<Event>,
    refused: Option<Refused>,
}

/// One request on its way through the server.
struct Call<'a> {
    now_ms: u64,
    client: &'a ClientInfo,
    duid: &'a Duid,
    ingress: &'a Ingress,
    boot: &'a dyn BootAnswer,
}

impl Call<'_> {
    fn key(&self, ia: &Ia) -> ClientKey {
        ClientKey {
            duid: self.duid.clone(),
            iaid: ia.iaid,
        }
    }

    /// # Errors
    /// [`Refused::BootFile`].
    fn boot_file(&self) -> Result<BootFile, Refused> {
        let boot = self.boot.boot(self.client);
        reply::check_boot_file(&boot).map(|()| boot)
    }
}

/// Identity associations on their way to an answer.
#[derive(Default)]
struct Work {
    ias: Vec<IaAnswer>,
    addrs: Vec<Ipv6Addr>,
    changes: Vec<LeaseChange>,
    refused: Option<Refused>,
}

impl Work {
    fn refuse(&mut self, refused: Refused) {
        self.refused.get_or_insert(refused);
    }

    fn answer(&mut self, ia: &Ia, addrs: Vec<(Ipv6Addr, u32)>, status: Option<Status>) {
        self.ias.push(IaAnswer {
            kind: ia.kind,
            iaid: ia.iaid,
            addrs,
            status,
        });
    }

    /// Answers the kinds we do not serve, and says whether that was one.
    fn is_other_kind(&mut self, ia: &Ia) -> bool {
        let status = match ia.kind {
            IaKind::NonTemporary => return false,
            IaKind::Temporary => Status::NoAddrsAvail,
            IaKind::Prefix => Status::NoPrefixAvail,
        };
        self.answer(ia, Vec::new(), Some(status));
        true
    }

    /// What to say when nothing was leased and nothing was refused: other kinds only.
    fn settle(&mut self) {
        if self.addrs.is_empty() {
            self.refuse(Refused::IaKind);
        }
    }
}

impl Server {
    /// A server without leases. `config` should have passed [`Config::check`]; one that has not
    /// leases less than meant and never panics.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            table: Table::new(),
            counters: Counters::default(),
            last_ms: u64::MAX,
        }
    }

    /// Takes over leases from the journal, oldest first. Offers and addresses outside the prefix
    /// are left out. Call before the first `handle`.
    pub fn restore(&mut self, leases: impl IntoIterator<Item = Lease>) {
        for lease in leases {
            if lease.state != LeaseState::Offered && self.config.prefix.is_host(lease.addr) {
                self.table.put(lease);
            }
        }
    }

    /// All leases: taken and remembered, advertised ones included (see [`LeaseState`]).
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.table.leases()
    }

    /// One address.
    pub fn lease(&self, addr: Ipv6Addr) -> Option<&Lease> {
        self.table.lease(addr)
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// When the next lease, offer or quarantine ends, on the caller's clock.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.table.next_end()
    }

    /// Frees what ended. Ends are not written down: they follow from time.
    pub fn handle_timeout(&mut self, now_ms: u64) {
        // As in DHCPv4: a clock that was set back must not keep addresses taken for years.
        if now_ms < self.last_ms {
            let limits = self.config.limits;
            let lease_ms = u64::from(self.config.lease_secs) * 1000;
            let longest = lease_ms.max(limits.quarantine_ms).max(limits.offer_ms);
            self.table.clamp(now_ms.saturating_add(longest));
        }
        self.last_ms = now_ms;
        self.table.expire(now_ms);
    }

    /// Takes one datagram. `now_ms` is milliseconds on any one clock (the daemon: Unix time).
    pub fn handle(
        &mut self,
        now_ms: u64,
        datagram: &[u8],
        ingress: &Ingress,
        boot: &dyn BootAnswer,
    ) -> Outcome {
        self.handle_timeout(now_ms);
        self.counters.received += 1;
        let client = match ClientInfo::parse(datagram, ingress) {
            Ok(client) => client,
            Err(refused) => {
                self.count_refused(&refused);
                return Outcome {
                    refused: Some(refused),
                    ..Outcome::default()
                };
            }
        };
        if !client.notes.is_empty() {
            self.counters.with_notes += 1;
        }
        let step = self.step(now_ms, &client, ingress, boot);
        let step = step.unwrap_or_else(|refused| Step {
            refused: Some(refused),
            ..Step::default()
        });
        if let Some(refused) = &step.refused {
            self.count_refused(refused);
        }
        Outcome {
            client: Some(client),
            changes: step.changes,
            reply: step.reply,
            event: step.event,
            refused: step.refused,
        }
    }

    fn count_refused(&mut self, refused: &Refused) {
        *self.counters.refused.entry(refused.code()).or_default() += 1;
    }

    fn step(
        &mut self,
        now_ms: u64,
        client: &ClientInfo,
        ingress: &Ingress,
        boot: &dyn BootAnswer,
    ) -> Result<Step, Refused> {
        if let Some(link) = client.link_address()
            && !self.config.prefix.contains(link)
        {
            let prefix = self.config.prefix.to_string();
            return Err(Refused::NoScope { link, prefix });
        }
        if client.message_type == MessageType::InformationRequest {
            return self.inform(client, ingress, boot);
        }
        let duid = client.duid.as_ref().ok_or(Refused::NoClientId)?;
        let call = Call {
            now_ms,
            client,
            duid,
            ingress,
            boot,
        };
        self.check_server_id(&call)?;
        if client.ias.is_empty() {
            return Err(Refused::NoIa);
        }
        match client.message_type {
            MessageType::Solicit => self.solicit(&call),
            MessageType::Request => self.request(&call),
            MessageType::Confirm => self.confirm(&call),
            MessageType::Renew | MessageType::Rebind => self.renew(&call),
            MessageType::Release | MessageType::Decline => self.give_back(&call),
            // `ClientInfo::parse` and the lines above have dealt with these.
            MessageType::Advertise
            | MessageType::Reply
            | MessageType::Reconfigure
            | MessageType::InformationRequest => Err(Refused::NotARequest {
                msg_type: client.message_type as u8,
            }),
        }
    }

    /// RFC 8415 section 16: who must name a server, and who must not.
    fn check_server_id(&mut self, call: &Call<'_>) -> Result<(), Refused> {
        let message = call.client.message_type;
        let found = call.client.server_duid.as_deref();
        match message {
            MessageType::Solicit | MessageType::Confirm | MessageType::Rebind => match found {
                None => Ok(()),
                Some(_) => Err(Refused::ServerIdUnexpected {
                    message: message.name(),
                }),
            },
            MessageType::Request
            | MessageType::Renew
            | MessageType::Release
            | MessageType::Decline => match found {
                None => Err(Refused::NoServerId),
                Some(duid) if duid == self.config.duid.as_bytes() => Ok(()),
                Some(duid) => {
                    if message == MessageType::Request {
                        self.drop_offers(call);
                    }
                    Err(Refused::ChoseOther {
                        server: reply::server_text(duid),
                    })
                }
            },
            // Optional here; `inform` looks at it.
            MessageType::InformationRequest => Ok(()),
            MessageType::Advertise | MessageType::Reply | MessageType::Reconfigure => {
                Err(Refused::NotARequest {
                    msg_type: message as u8,
                })
            }
        }
    }

    /// The client took another server's addresses: ours return to the pool at once.
    fn drop_offers(&mut self, call: &Call<'_>) {
        for ia in &call.client.ias {
            if let Some(lease) = self.table.on_record(&call.key(ia)).cloned()
                && lease.state == LeaseState::Offered
            {
                self.table.put(Lease {
                    state: LeaseState::Expired,
                    expires_ms: call.now_ms,
                    ..lease
                });
            }
        }
    }

    /// An address for one identity association, within the bounds; and whether it is held already.
    fn choose(
        &mut self,
        call: &Call<'_>,
        ia: &Ia,
    ) -> Result<(Ipv6Addr, Option<LeaseState>), Refused> {
        let key = call.key(ia);
        let addr = self.table.choose(&key, &ia.addrs, &self.config)?;
        let current = self.table.lease(addr).map(|lease| lease.state);
        let current = current.filter(|state| state.is_live());
        let (open, held) = (self.table.offers(), self.table.held_by(call.duid));
        if current.is_none() && held >= self.config.limits.leases_per_client {
            return Err(Refused::ClientLimit { held });
        }
        if current.is_none() && open >= self.config.limits.offers_max {
            return Err(Refused::OfferLimit { open });
        }
        Ok((addr, current))
    }

    fn solicit(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let boot = call.boot_file()?;
        if call.client.rapid_commit && self.config.rapid_commit {
            return Ok(self.grant(call, boot, true));
        }
        let mut work = Work::default();
        for ia in &call.client.ias {
            if work.is_other_kind(ia) {
                continue;
            }
            match self.choose(call, ia) {
                Ok((addr, current)) => {
                    // A client that starts over still holds its lease; an offer must not shorten it.
                    if current != Some(LeaseState::Bound) {
                        let offer_ms = self.config.limits.offer_ms;
                        self.put(call, ia, addr, LeaseState::Offered, offer_ms);
                    }
                    work.addrs.push(addr);
                    work.answer(ia, vec![(addr, self.config.lease_secs)], None);
                }
                Err(refused) => {
                    work.refuse(refused);
                    work.answer(ia, Vec::new(), Some(Status::NoAddrsAvail));
                }
            }
        }
        work.settle();
        self.counters.advertised += 1;
        let event = Event::Advertised {
            addrs: work.addrs.clone(),
        };
        Ok(self.finish(
            call,
            work,
            MessageType::Advertise,
            None,
            false,
            Some(boot),
            event,
        ))
    }

    fn request(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let boot = call.boot_file()?;
        Ok(self.grant(call, boot, false))
    }

    /// Request, or Solicit with rapid commit (RFC 8415 sections 18.3.1 and 18.3.2).
    fn grant(&mut self, call: &Call<'_>, boot: BootFile, rapid_commit: bool) -> Step {
        let mut work = Work::default();
        let mut renewed = true;
        for ia in &call.client.ias {
            if work.is_other_kind(ia) {
                continue;
            }
            // In a Solicit addresses are a wish, in a Request they are what was advertised.
            let elsewhere = ia
                .addrs
                .iter()
                .find(|addr| !self.config.prefix.contains(**addr));
            if let Some(addr) = elsewhere.filter(|_| !rapid_commit) {
                work.refuse(self.not_on_link(*addr));
                work.answer(ia, Vec::new(), Some(Status::NotOnLink));
                continue;
            }
            match self.choose(call, ia) {
                Ok((addr, current)) => {
                    let held = current == Some(LeaseState::Bound);
                    renewed &= held;
                    self.bind(call, ia, addr, held, &mut work);
                    work.answer(ia, vec![(addr, self.config.lease_secs)], None);
                }
                Err(refused) => {
                    work.refuse(refused);
                    work.answer(ia, Vec::new(), Some(Status::NoAddrsAvail));
                }
            }
        }
        work.settle();
        let event = Event::Leased {
            addrs: work.addrs.clone(),
            renewed,
        };
        self.finish(
            call,
            work,
            MessageType::Reply,
            None,
            rapid_commit,
            Some(boot),
            event,
        )
    }

    /// Renew and Rebind (RFC 8415 sections 18.3.4 and 18.3.5). A binding that we have no record of
    /// is made anew when its address is free: the client uses it already, and the record may have
    /// been lost with a disk. What it may not keep comes back with lifetime 0.
    fn renew(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let boot = call.boot_file()?;
        let mut work = Work::default();
        let mut renewed = true;
        for ia in &call.client.ias {
            if work.is_other_kind(ia) {
                continue;
            }
            let key = call.key(ia);
            let on_record = self
                .table
                .on_record(&key)
                .map(|lease| (lease.addr, lease.state));
            let bound = on_record.filter(|(_, state)| *state == LeaseState::Bound);
            let keeps = match bound {
                Some((addr, _)) => Some(addr),
                None => {
                    let mut named = ia.addrs.iter().copied();
                    let free = named.find(|addr| self.table.may_have(*addr, &key, &self.config));
                    let held = self.table.held_by(call.duid);
                    free.filter(|_| held < self.config.limits.leases_per_client)
                }
            };
            let Some(addr) = keeps else {
                work.refuse(Refused::NoBinding { iaid: ia.iaid });
                if call.client.message_type == MessageType::Renew {
                    work.answer(ia, Vec::new(), Some(Status::NoBinding));
                    continue;
                }
                // A Rebind asks every server. We take away what is wrong on this link or ours to
                // lease, and say nothing of an address that another server may have leased.
                let ours = |addr: &&Ipv6Addr| {
                    !self.config.prefix.contains(**addr)
                        || self.config.pool.is_some_and(|pool| pool.contains(**addr))
                };
                let gone: Vec<_> = ia
                    .addrs
                    .iter()
                    .filter(ours)
                    .map(|addr| (*addr, 0))
                    .collect();
                if !gone.is_empty() {
                    work.answer(ia, gone, None);
                }
                continue;
            };
            renewed &= bound.is_some();
            self.bind(call, ia, addr, bound.is_some(), &mut work);
            let mut addrs = vec![(addr, self.config.lease_secs)];
            let others = ia.addrs.iter().filter(|other| **other != addr);
            addrs.extend(others.map(|other| (*other, 0)));
            work.answer(ia, addrs, None);
        }
        work.settle();
        if work.ias.is_empty() {
            return Err(work.refused.unwrap_or(Refused::NoIa));
        }
        let event = Event::Leased {
            addrs: work.addrs.clone(),
            renewed,
        };
        Ok(self.finish(
            call,
            work,
            MessageType::Reply,
            None,
            false,
            Some(boot),
            event,
        ))
    }

    /// RFC 8415 section 18.3.3.
    fn confirm(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let mut addrs = call.client.ias.iter().flat_map(|ia| &ia.addrs).peekable();
        if addrs.peek().is_none() {
            return Err(Refused::NoAddress);
        }
        let elsewhere = addrs
            .find(|addr| !self.config.prefix.contains(**addr))
            .copied();
        let mut work = Work::default();
        let status = match elsewhere {
            None => Status::Success,
            Some(addr) => {
                work.refuse(self.not_on_link(addr));
                Status::NotOnLink
            }
        };
        let event = Event::Confirmed {
            on_link: elsewhere.is_none(),
        };
        Ok(self.finish(
            call,
            work,
            MessageType::Reply,
            Some(status),
            false,
            None,
            event,
        ))
    }

    /// Release and Decline (RFC 8415 sections 18.3.7 and 18.3.8).
    fn give_back(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let declines = call.client.message_type == MessageType::Decline;
        let mut work = Work::default();
        for ia in &call.client.ias {
            let key = call.key(ia);
            let held: Vec<Lease> = ia
                .addrs
                .iter()
                .filter_map(|addr| self.table.lease(*addr))
                .filter(|lease| lease.client == key)
                .filter(|lease| matches!(lease.state, LeaseState::Offered | LeaseState::Bound))
                .cloned()
                .collect();
            if held.is_empty() {
                work.refuse(Refused::NoBinding { iaid: ia.iaid });
                work.answer(ia, Vec::new(), Some(Status::NoBinding));
                continue;
            }
            for lease in held {
                work.addrs.push(lease.addr);
                let change = if declines {
                    self.decline(call, lease, &mut work)
                } else {
                    self.release(call, lease)
                };
                self.table.put(change.lease.clone());
                work.changes.push(change);
            }
        }
        let addrs = work.addrs.clone();
        let event = if declines {
            self.counters.declined += addrs.len() as u64;
            Event::Declined { addrs }
        } else {
            self.counters.released += addrs.len() as u64;
            Event::Released { addrs }
        };
        let status = Some(Status::Success);
        Ok(self.finish(call, work, MessageType::Reply, status, false, None, event))
    }

    fn release(&self, call: &Call<'_>, lease: Lease) -> LeaseChange {
        LeaseChange {
            lease: Lease {
                state: LeaseState::Released,
                expires_ms: call.now_ms,
                ..lease
            },
            cause: Cause::Released,
        }
    }

    fn decline(&self, call: &Call<'_>, lease: Lease, work: &mut Work) -> LeaseChange {
        let held = self.table.quarantined();
        if held >= self.config.limits.quarantine_max {
            work.refuse(Refused::QuarantineLimit { held });
            return self.release(call, lease);
        }
        let quarantine_ms = self.config.limits.quarantine_ms;
        LeaseChange {
            lease: Lease {
                state: LeaseState::Declined,
                expires_ms: call.now_ms.saturating_add(quarantine_ms),
                ..lease
            },
            cause: Cause::Declined,
        }
    }

    /// RFC 8415 section 18.3.6: settings without an address.
    fn inform(
        &mut self,
        client: &ClientInfo,
        ingress: &Ingress,
        boot: &dyn BootAnswer,
    ) -> Result<Step, Refused> {
        let ours = self.config.duid.as_bytes();
        if let Some(server) = client.server_duid.as_deref().filter(|duid| *duid != ours) {
            return Err(Refused::ChoseOther {
                server: reply::server_text(server),
            });
        }
        if !client.ias.is_empty() {
            return Err(Refused::IaUnexpected);
        }
        let boot = boot.boot(client);
        reply::check_boot_file(&boot)?;
        let answer = Answer {
            msg_type: MessageType::Reply,
            ias: Vec::new(),
            status: None,
            rapid_commit: false,
            boot: Some(boot),
        };
        Ok(Step {
            reply: Some(reply::build(client, ingress, &self.config, &answer)?),
            event: Some(Event::Informed),
            ..Step::default()
        })
    }

    fn not_on_link(&self, addr: Ipv6Addr) -> Refused {
        Refused::NotOnLink {
            addr,
            prefix: self.config.prefix.to_string(),
        }
    }

    fn put(
        &mut self,
        call: &Call<'_>,
        ia: &Ia,
        addr: Ipv6Addr,
        state: LeaseState,
        ms: u64,
    ) -> Lease {
        let lease = Lease {
            addr,
            client: call.key(ia),
            mac: call.client.mac,
            state,
            expires_ms: call.now_ms.saturating_add(ms),
        };
        self.table.put(lease.clone());
        lease
    }

    fn bind(&mut self, call: &Call<'_>, ia: &Ia, addr: Ipv6Addr, held: bool, work: &mut Work) {
        let lease_ms = u64::from(self.config.lease_secs) * 1000;
        let lease = self.put(call, ia, addr, LeaseState::Bound, lease_ms);
        let cause = if held { Cause::Renewed } else { Cause::Granted };
        work.changes.push(LeaseChange { lease, cause });
        work.addrs.push(addr);
        self.counters.leased += 1;
    }

    /// Puts the answer on the wire. One that does not fit still leaves its changes: what is in
    /// memory and what is on disk stay the same.
    #[expect(
        clippy::too_many_arguments,
        reason = "the one exit of every message with identity associations"
    )]
    fn finish(
        &self,
        call: &Call<'_>,
        work: Work,
        msg_type: MessageType,
        status: Option<Status>,
        rapid_commit: bool,
        boot: Option<BootFile>,
        event: Event,
    ) -> Step {
        let answer = Answer {
            msg_type,
            ias: work.ias,
            status,
            rapid_commit,
            boot,
        };
        match reply::build(call.client, call.ingress, &self.config, &answer) {
            Ok(reply) => Step {
                changes: work.changes,
                reply: Some(reply),
                event: Some(event),
                refused: work.refused,
            },
            Err(refused) => Step {
                changes: work.changes,
                refused: Some(refused),
                ..Step::default()
            },
        }
    }
}
