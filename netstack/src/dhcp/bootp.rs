//! BOOTP clients (RFC 951, RFC 1542) of a DHCP server (RFC 1534): one request, one reply, no lease
//! option, no way to give an address back.

use std::net::Ipv4Addr;

use super::lease::{Lease, LeaseState};
use super::reply::Answer;
use super::server::{Call, Server, Step};
use super::{Cause, Event, LeaseChange, Refused};

impl Server {
    /// A reservation, or a pool address where the owner allows that.
    pub(super) fn bootp(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let scope = self.locate(call.client(), call.ingress)?;
        let server = call.ingress.server_addr;
        let table = &self.tables[scope];
        let addr = match table.reservation(&call.who) {
            Some(addr) if table.may_have(addr, &call.who, server) => addr,
            _ if self.bootp_dynamic => {
                self.admit(call, scope)?;
                self.tables[scope].choose(&call.who, None, server)?
            }
            Some(addr) => {
                let on_record = None;
                return Err(Refused::NotAvailable { addr, on_record });
            }
            None => {
                let mac = call.client().mac;
                return Err(Refused::Bootp { mac });
            }
        };
        self.probe_first(call, scope, addr, Self::bootp_grant)
    }

    pub(super) fn bootp_grant(
        &mut self,
        call: &Call<'_>,
        scope: usize,
        addr: Ipv4Addr,
    ) -> Result<Step, Refused> {
        let boot = call.boot.boot(call.client());
        let reply = self.reply(scope, call, &Answer::Bootp { addr, boot })?;
        let held = self.tables[scope].lease(addr);
        let renewed =
            held.is_some_and(|l| l.state == LeaseState::Bound && l.client == call.who.key);
        let lease = Lease {
            addr,
            client: call.who.key.clone(),
            mac: call.who.mac,
            port: call.who.port.clone(),
            state: LeaseState::Bound,
            expires_ms: call.now_ms.saturating_add(self.limits.bootp_ms),
        };
        self.tables[scope].put(lease.clone());
        self.counters.bootp += 1;
        let cause = if renewed {
            Cause::Renewed
        } else {
            Cause::Granted
        };
        let expires_ms = lease.expires_ms;
        Ok(Step {
            changes: vec![LeaseChange { lease, cause }],
            reply: Some(reply),
            event: Some(Event::Bootp { addr, expires_ms }),
            ..Step::default()
        })
    }
}
