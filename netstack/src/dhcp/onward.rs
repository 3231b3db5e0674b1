//! Firmware that is to boot nothing from here, and to go on to its next boot device now.
//!
//! EDK2, and with it most UEFI firmware, asks for an offer that it can boot from four times, 4, 8, 16
//! and 32 seconds apart (`NetworkPkg`: PXE and HTTP boot alike). Silence and an offer without a boot
//! file both cost that minute at every start of a machine. What ends its attempt at once is a DHCPNAK
//! to its DHCPREQUEST; so it is offered what it looks for, and refused when it takes it. Nothing is
//! leased, and no other client is offered anything it does not get.

use std::net::Ipv4Addr;

use super::lease::{Lease, LeaseState};
use super::reply::Answer;
use super::server::{Call, Server, Step};
use super::{BootFile, ClientInfo, Event, Refused};

/// What the NAK says (option 56); firmware does not show it, captures do.
const MESSAGE: &str = "nothing to boot from here: go on to the next boot device";
/// The name behind the offer. Nobody asks for it; who does finds no such file.
const NAME: &str = "next-boot-device";

/// Whether this client gives up at a NAK. The ROM of a BIOS machine starts over instead, and ends by
/// itself when an offer has no boot file; iPXE has a script that says what to do.
fn ends_at_nak(client: &ClientInfo) -> bool {
    // RFC 4578 section 2.1: 0 is a BIOS machine, as is who names no architecture; 20 is its HTTP boot.
    let uefi = client.arch.is_some_and(|arch| !matches!(arch, 0 | 20));
    uefi && !client.is_ipxe && (client.is_http_client || client.is_pxe_client)
}

/// Whether the boot answer of this client is to be sent on by a NAK.
fn sent_on(client: &ClientInfo, boot: &BootFile) -> bool {
    *boot == BootFile::NextDevice && ends_at_nak(client)
}

/// The boot file to offer.
pub(super) fn offered(call: &Call<'_>) -> BootFile {
    let client = call.client();
    let boot = call.boot.boot(client);
    if !sent_on(client, &boot) {
        return boot;
    }
    let server = call.ingress.server_addr;
    if client.is_http_client {
        BootFile::Url(format!("http://{server}/{NAME}"))
    } else {
        BootFile::File {
            next_server: server,
            name: NAME.to_owned(),
        }
    }
}

impl Server {
    /// The NAK for a client in SELECTING that is to go on; `None` when it is to be served.
    pub(super) fn send_on(
        &mut self,
        call: &Call<'_>,
        scope: usize,
        addr: Ipv4Addr,
    ) -> Result<Option<Step>, Refused> {
        let client = call.client();
        if !sent_on(client, &call.boot.boot(client)) {
            return Ok(None);
        }
        let message = MESSAGE.to_owned();
        let reply = self.reply(scope, call, &Answer::Nak { message })?;
        let offered = self.tables[scope]
            .lease(addr)
            .filter(|lease| lease.state == LeaseState::Offered && lease.client == call.who.key);
        if let Some(lease) = offered.cloned() {
            self.tables[scope].put(Lease {
                state: LeaseState::Lapsed,
                expires_ms: call.now_ms,
                ..lease
            });
        }
        self.counters.sent_on += 1;
        Ok(Some(Step {
            reply: Some(reply),
            event: Some(Event::SentOn { addr }),
            ..Step::default()
        }))
    }
}
