//! Boot data without an address: ProxyDHCP beside another server, and the boot port 4011.
//!
//! In proxy mode nothing here gives, renews or refuses an address, and whoever asks for no boot data
//! hears nothing. Port 4011 is answered in both modes: EDK2 asks there whenever it takes an offer for
//! BINL, and iPXE whenever a ProxyDHCP offer lacked its next server (PXE 2.1 section 2.2).

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::client::MessageType;
use super::reply::Answer;
use super::server::{Call, Server, Step};
use super::{Event, Refused};
use crate::MacAddr;

/// Addresses remembered of clients that another server serves: four /22 of machines. The longest
/// silent one makes room.
const SIGHTED_MAX: usize = 4096;

/// Who uses which address, as the clients of another server say it. Nothing is leased by it.
#[derive(Debug, Default)]
pub(crate) struct Sighted {
    by_addr: BTreeMap<Ipv4Addr, (u64, MacAddr)>,
    by_time: BTreeSet<(u64, Ipv4Addr)>,
}

impl Sighted {
    fn note(&mut self, now_ms: u64, addr: Ipv4Addr, mac: MacAddr) {
        if let Some((at, _)) = self.by_addr.insert(addr, (now_ms, mac)) {
            self.by_time.remove(&(at, addr));
        }
        self.by_time.insert((now_ms, addr));
        while self.by_addr.len() > SIGHTED_MAX
            && let Some((_, oldest)) = self.by_time.pop_first()
        {
            self.by_addr.remove(&oldest);
        }
    }

    pub fn holder(&self, addr: Ipv4Addr) -> Option<MacAddr> {
        self.by_addr.get(&addr).map(|(_, mac)| *mac)
    }
}

impl Server {
    /// Port 67 in proxy mode.
    pub(super) fn proxy(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let client = call.client();
        let asked = match client.ciaddr {
            Ipv4Addr::UNSPECIFIED => client.requested_addr,
            ciaddr => Some(ciaddr),
        };
        if client.message_type == MessageType::Request
            && let Some(addr) = asked
        {
            self.sighting(call, addr);
        }
        if !client.boots() {
            return Ok(left_alone());
        }
        match client.message_type {
            MessageType::Discover => {
                // An answer here is a broadcast to the whole segment.
                if !call.boot.knows(client) {
                    let port = call.who.port.as_ref();
                    self.meter.take(call.now_ms, port, &call.ingress.iface)?;
                }
                self.boot_only(call, true, false)
            }
            // A running system that asks for boot data only (RFC 2131 section 4.3.5).
            MessageType::Inform if !client.ciaddr.is_unspecified() => {
                self.boot_only(call, false, false)
            }
            MessageType::Request
            | MessageType::Decline
            | MessageType::Release
            | MessageType::Inform
            | MessageType::Bootp => Ok(left_alone()),
        }
    }

    /// Port 4011. Option 54 does not count here: whoever sends to this port by unicast means us.
    pub(super) fn boot_request(&mut self, call: &Call<'_>) -> Result<Step, Refused> {
        let client = call.client();
        let peer = *call.ingress.source.ip();
        if !client.boots() {
            return Err(Refused::NotBootClient { mac: client.mac });
        }
        if peer.is_unspecified() || call.ingress.source.port() == 0 {
            return Err(Refused::NoAddress);
        }
        self.sighting(call, peer);
        match client.message_type {
            MessageType::Discover => self.boot_only(call, true, true),
            MessageType::Request | MessageType::Inform => self.boot_only(call, false, true),
            MessageType::Decline | MessageType::Release | MessageType::Bootp => {
                Err(Refused::MessageType {
                    value: None,
                    mac: client.mac,
                })
            }
        }
    }

    fn boot_only(
        &mut self,
        call: &Call<'_>,
        offer: bool,
        boot_port: bool,
    ) -> Result<Step, Refused> {
        let scope = if boot_port {
            // An answer by unicast goes no further than our own segments.
            let peer = *call.ingress.source.ip();
            let mut tables = self.tables.iter();
            let covers = tables.position(|table| table.scope.subnet.is_host(peer));
            covers.ok_or(Refused::NoScope { link: peer })?
        } else {
            self.locate(call.client(), call.ingress)?
        };
        let boot = call.boot.boot(call.client());
        let Some(file) = boot.name().map(str::to_owned) else {
            return Ok(left_alone());
        };
        let answer = Answer::Boot {
            boot,
            offer,
            boot_port,
        };
        let reply = self.reply(scope, call, &answer)?;
        self.counters.boot_only += 1;
        let event = if offer && !boot_port {
            Event::ProxyOffered { file }
        } else {
            Event::BootAnswered { file }
        };
        Ok(Step {
            reply: Some(reply),
            event: Some(event),
            ..Step::default()
        })
    }

    /// Remembers who uses an address of ours to serve, unless our own lease table knows better.
    fn sighting(&mut self, call: &Call<'_>, addr: Ipv4Addr) {
        let ours = self.tables.iter().find(|t| t.scope.subnet.is_host(addr));
        if ours.is_some_and(|table| table.lease(addr).is_none()) {
            self.sighted.note(call.now_ms, addr, call.client().mac);
        }
    }
}

fn left_alone() -> Step {
    Step {
        event: Some(Event::LeftAlone),
        ..Step::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sightings_are_bounded_and_the_longest_silent_goes() {
        let mut sighted = Sighted::default();
        let mac = |n: u32| MacAddr([2, 0, 0, 0, (n >> 8) as u8, n as u8]);
        for n in 0..10_000u32 {
            sighted.note(u64::from(n), Ipv4Addr::from_bits(0x0a00_0000 + n), mac(n));
            sighted.note(u64::from(n), Ipv4Addr::from_bits(0x0a00_0000), mac(1));
        }
        assert_eq!(sighted.by_addr.len(), SIGHTED_MAX);
        assert_eq!(sighted.by_time.len(), SIGHTED_MAX);
        assert_eq!(sighted.holder(Ipv4Addr::new(10, 0, 0, 0)), Some(mac(1)));
        assert_eq!(sighted.holder(Ipv4Addr::new(10, 0, 0, 9)), None);
        assert_eq!(
            sighted.holder(Ipv4Addr::from_bits(0x0a00_0000 + 9_999)),
            Some(mac(9_999))
        );
    }
}
