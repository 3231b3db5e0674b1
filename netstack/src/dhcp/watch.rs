//! Looking for other DHCP servers on our segment.
//!
//! Asks now and then with a DISCOVER of its own, as PXE firmware would, and reads every reply to port
//! 68 that can be heard. In server mode another server is a fault somebody must know of: machines
//! take whichever offer comes first. In proxy mode its absence is. Nothing is requested, and our own
//! server does not answer the probe ([`Server::ignore`]).
//!
//! [`Server::ignore`]: super::Server::ignore

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use super::message::Message;
use super::options::code;
use super::{CLIENT_PORT, Mode};
use crate::{Explanation, MacAddr};

/// Servers remembered. A segment has one or two; a liar who makes up more is told of sixteen times.
const SERVERS_MAX: usize = 16;
/// The same server is told of again after this long.
const REPEAT_MS: u64 = 600_000;
/// A server that was not heard for this long is gone: three probes of the default period.
const FORGET_MS: u64 = 1_800_000;
/// A probe is over after this long; a server that pings an address first takes up to 3 s.
const ANSWER_MS: u64 = 10_000;

/// Another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// Its server identifier, option 54; else the source address.
    pub server: Ipv4Addr,
    /// Hardware address its last reply came from: the server, or the last router or relay.
    pub mac: MacAddr,
    /// It tells what to boot and gives no address.
    pub proxy: bool,
    /// Address it last gave or offered, zero for none.
    pub gave: Ipv4Addr,
    /// First heard.
    pub first_ms: u64,
    /// Last heard.
    pub last_ms: u64,
    /// Replies heard.
    pub replies: u64,
    told_ms: u64,
}

/// What the watch has to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Another server answers on the segment.
    Foreign(Foreign),
    /// Proxy mode, and nobody gives addresses.
    NoServer,
}

impl Finding {
    /// The five parts for log, API and page.
    pub fn explain(&self) -> Explanation {
        match self {
            Self::Foreign(foreign) => Explanation {
                code: "dhcp.foreign_server",
                expected: if foreign.proxy {
                    "no other server that tells machines what to boot".into()
                } else {
                    "no other DHCP server on the segment".into()
                },
                found: match (foreign.proxy, foreign.gave.is_unspecified()) {
                    (true, _) => format!("{} at {} offers boot data", foreign.server, foreign.mac),
                    (false, true) => format!("{} at {} answers", foreign.server, foreign.mac),
                    (false, false) => format!(
                        "{} at {} gives {}",
                        foreign.server, foreign.mac, foreign.gave
                    ),
                },
                source: "RFC 2131 section 3.1",
                next: "switch that server off, or set provisioning.dhcp_mode = \"proxy\" if it is \
                       the one that shall give addresses; DHCP snooping finds its port",
            },
            Self::NoServer => Explanation {
                code: "dhcp.no_server",
                expected: "a DHCP server beside us that gives addresses".into(),
                found: "no answer to a DHCPDISCOVER".into(),
                source: "PXE 2.1 section 2.2",
                next: "see to that server and its relay, or set provisioning.dhcp_mode = \"server\"",
            },
        }
    }
}

/// A reply to port 68 as it was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard<'a> {
    /// Source of the frame.
    pub mac: MacAddr,
    /// Source of the datagram.
    pub source: SocketAddrV4,
    /// UDP payload.
    pub payload: &'a [u8],
}

impl<'a> Heard<'a> {
    /// Reads an Ethernet frame; `None` for everything that is no whole IPv4 UDP datagram to port 68.
    pub fn parse(frame: &'a [u8]) -> Option<Self> {
        let (ethernet, packet) = frame.split_at_checked(14)?;
        let header = packet.first_chunk::<20>()?;
        let header_len = usize::from(header[0] & 15) * 4;
        // Version, protocol UDP, no fragment.
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
        if ethernet[12..] != [8, 0] || header[0] >> 4 != 4 || header[9] != 17 || fragment != 0 {
            return None;
        }
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let udp = packet.get(header_len.max(20)..total)?;
        let (ports, payload) = udp.split_at_checked(8)?;
        let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
        let len = usize::from(port(4)).checked_sub(8)?;
        if port(2) != CLIENT_PORT {
            return None;
        }
        let [a, b, c, d] = [header[12], header[13], header[14], header[15]];
        Some(Self {
            mac: MacAddr(ethernet[6..12].try_into().ok()?),
            source: SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), port(0)),
            payload: payload.get(..len)?,
        })
    }
}

/// The watch over one segment.
#[derive(Debug)]
pub struct Watch {
    mode: Mode,
    own: Ipv4Addr,
    mac: MacAddr,
    /// Between probes; 0 listens only.
    period_ms: u64,
    next_ms: Option<u64>,
    xid: u32,
    /// When an answer to the last probe is due, in proxy mode.
    answer_by_ms: Option<u64>,
    lonely_told_ms: Option<u64>,
    found: BTreeMap<Ipv4Addr, Foreign>,
}

impl Watch {
    /// A watch of server `own` that asks as `mac` (locally administered, not our interface's own)
    /// every `period_ms`, first at once; never when that is 0.
    pub fn new(mode: Mode, own: Ipv4Addr, mac: MacAddr, period_ms: u64, now_ms: u64) -> Self {
        let [.., a, b, c, d] = mac.0;
        Self {
            mode,
            own,
            mac,
            period_ms,
            next_ms: (period_ms > 0).then_some(now_ms),
            xid: u32::from_be_bytes([a, b, c, d]),
            answer_by_ms: None,
            lonely_told_ms: None,
            found: BTreeMap::new(),
        }
    }

    /// The hardware address it asks as.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Servers heard lately.
    pub fn found(&self) -> impl Iterator<Item = &Foreign> {
        self.found.values()
    }

    /// When [`poll_probe`](Self::poll_probe) or [`poll_finding`](Self::poll_finding) has something.
    pub fn poll_timeout(&self) -> Option<u64> {
        [self.next_ms, self.answer_by_ms]
            .into_iter()
            .flatten()
            .min()
    }

    /// The DISCOVER to broadcast now, from 0.0.0.0 port 68 and hardware address [`mac`](Self::mac).
    pub fn poll_probe(&mut self, now_ms: u64) -> Option<Vec<u8>> {
        let next = self.next_ms?;
        // A clock that was set back must not silence the watch.
        if now_ms < next && next - now_ms <= self.period_ms {
            return None;
        }
        self.next_ms = Some(now_ms.saturating_add(self.period_ms));
        self.xid = self.xid.wrapping_add(1);
        if self.mode == Mode::Proxy {
            self.answer_by_ms = Some(now_ms.saturating_add(ANSWER_MS));
        }
        self.found
            .retain(|_, foreign| now_ms.saturating_sub(foreign.last_ms) < FORGET_MS);
        Some(discover(self.mac, self.xid))
    }

    /// What the silence after a probe means.
    pub fn poll_finding(&mut self, now_ms: u64) -> Option<Finding> {
        let by = self.answer_by_ms?;
        if now_ms < by && by - now_ms <= ANSWER_MS {
            return None;
        }
        self.answer_by_ms = None;
        let silent =
            |foreign: &Foreign| foreign.proxy || foreign.last_ms.saturating_add(ANSWER_MS) < by;
        let told = self
            .lonely_told_ms
            .is_some_and(|at| now_ms.saturating_sub(at) < REPEAT_MS);
        if told || !self.found.values().all(silent) {
            return None;
        }
        self.lonely_told_ms = Some(now_ms);
        Some(Finding::NoServer)
    }

    /// Takes a reply heard on port 68, to whomever. Tells of a server when it is new, and again when
    /// it still answers much later. In proxy mode the server beside us is no news, another ProxyDHCP
    /// server is.
    pub fn handle(&mut self, now_ms: u64, heard: &Heard<'_>) -> Option<Finding> {
        let message = Message::parse(heard.payload).ok()?;
        if message.op != 2 {
            return None;
        }
        let kind = message.options.get(code::MESSAGE_TYPE).map(<[u8]>::to_vec);
        // OFFER, ACK, NAK; a BOOTP reply has no type.
        if !matches!(kind.as_deref(), None | Some([2 | 5 | 6])) {
            return None;
        }
        let stated = message.options.get(code::SERVER_ID);
        let stated = stated.and_then(|id| <[u8; 4]>::try_from(id).ok());
        let server = stated.map_or(*heard.source.ip(), Ipv4Addr::from);
        if server == self.own || *heard.source.ip() == self.own || server.is_unspecified() {
            return None;
        }
        let offer = kind.as_deref() == Some(&[2]);
        let proxy = offer && message.yiaddr.is_unspecified();
        if !self.found.contains_key(&server) && self.found.len() >= SERVERS_MAX {
            let oldest = self.found.values().min_by_key(|f| f.last_ms)?.server;
            self.found.remove(&oldest);
        }
        let foreign = self.found.entry(server).or_insert(Foreign {
            server,
            mac: heard.mac,
            proxy,
            gave: Ipv4Addr::UNSPECIFIED,
            first_ms: now_ms,
            last_ms: now_ms,
            replies: 0,
            told_ms: 0,
        });
        let turned = foreign.replies > 0 && foreign.proxy && !proxy && offer;
        foreign.mac = heard.mac;
        foreign.last_ms = now_ms;
        foreign.replies += 1;
        if offer {
            foreign.proxy = proxy;
        }
        if !message.yiaddr.is_unspecified() {
            foreign.gave = message.yiaddr;
        }
        let news =
            foreign.replies == 1 || turned || now_ms.saturating_sub(foreign.told_ms) >= REPEAT_MS;
        if !news || (self.mode == Mode::Proxy && !foreign.proxy) {
            return None;
        }
        foreign.told_ms = now_ms;
        Some(Finding::Foreign(foreign.clone()))
    }
}

/// A DISCOVER as x86-64 UEFI firmware sends it, so that ProxyDHCP servers answer too; broadcast flag
/// set, since nobody has the address that will be offered.
fn discover(mac: MacAddr, xid: u32) -> Vec<u8> {
    let mut out = vec![1, 1, 6, 0];
    out.extend_from_slice(&xid.to_be_bytes());
    out.extend_from_slice(&[0, 0, 0x80, 0]);
    out.resize(28, 0);
    out.extend_from_slice(&mac.0);
    out.resize(236, 0);
    out.extend_from_slice(&[99, 130, 83, 99]);
    let mut uuid = vec![0; 11];
    uuid.extend_from_slice(&mac.0);
    for (code, value) in [
        (code::MESSAGE_TYPE, &[1][..]),
        (code::PARAMETER_LIST, &[1, 3, 43, 54, 60, 66, 67]),
        (code::ARCH, &[0, 7]),
        (code::NDI, &[1, 3, 0]),
        (code::UUID, &uuid),
        (code::VENDOR_CLASS, b"PXEClient:Arch:00007:UNDI:003000"),
        // Whoever captures this sees who asks.
        (code::HOST_NAME, b"vestibule-probe"),
    ] {
        out.extend_from_slice(&[code, value.len() as u8]);
        out.extend_from_slice(value);
    }
    out.push(255);
    out.resize(out.len().max(300), 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dhcp::ClientInfo;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    const OTHER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
    const PROBE: MacAddr = MacAddr([0x02, 1, 2, 3, 4, 5]);
    const THEIRS: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 2]);

    fn watch(mode: Mode) -> Watch {
        Watch::new(mode, OWN, PROBE, 600_000, 1_000)
    }

    fn reply(kind: u8, yiaddr: Ipv4Addr, server: Ipv4Addr) -> Vec<u8> {
        let mut out = discover(MacAddr([2, 0, 0, 0, 0, 9]), 7);
        out[0] = 2;
        out[16..20].copy_from_slice(&yiaddr.octets());
        out.truncate(240);
        out.extend_from_slice(&[53, 1, kind, 54, 4]);
        out.extend_from_slice(&server.octets());
        out.push(255);
        out
    }

    fn hear(watch: &mut Watch, now_ms: u64, payload: &[u8]) -> Option<Finding> {
        let source = SocketAddrV4::new(OTHER, 67);
        watch.handle(
            now_ms,
            &Heard {
                mac: THEIRS,
                source,
                payload,
            },
        )
    }

    const GIVEN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);

    #[test]
    fn asks_at_once_and_every_period_as_somebody_else() {
        let mut watch = watch(Mode::Server);
        let probe = watch.poll_probe(1_000).expect("at the start");
        assert!(probe.len() >= 300);
        let client = ClientInfo::parse(&probe).unwrap();
        assert_eq!(client.mac, PROBE);
        assert!(client.is_pxe_client && client.broadcast && client.notes.is_empty());
        assert_eq!(watch.poll_probe(600_999), None);
        assert_eq!(watch.poll_timeout(), Some(601_000));
        let again = watch.poll_probe(601_000).expect("a period later");
        assert_ne!(again[4..8], probe[4..8], "its own xid");
        // Two years back: it asks soon, not in two years.
        assert!(watch.poll_probe(0).is_some());
        let mut silent = Watch::new(Mode::Server, OWN, PROBE, 0, 0);
        assert_eq!(
            (silent.poll_probe(u64::MAX), silent.poll_timeout()),
            (None, None)
        );
    }

    #[test]
    fn a_foreign_server_is_named_once_and_again_much_later() {
        let mut watch = watch(Mode::Server);
        for kind in [2, 5, 6] {
            let mut watch = super::tests::watch(Mode::Server);
            assert!(hear(&mut watch, 0, &reply(kind, GIVEN, OTHER)).is_some());
        }
        let offer = reply(2, GIVEN, OTHER);
        let Some(Finding::Foreign(foreign)) = hear(&mut watch, 5_000, &offer) else {
            panic!("a finding");
        };
        assert_eq!(
            (foreign.server, foreign.mac, foreign.proxy),
            (OTHER, THEIRS, false)
        );
        let said = Finding::Foreign(foreign).explain();
        assert_eq!(said.code, "dhcp.foreign_server");
        assert_eq!(
            said.found,
            "10.77.0.2 at 52:54:00:00:00:02 gives 10.77.0.200"
        );
        assert!(said.next.contains("proxy"), "{}", said.next);
        assert_eq!(hear(&mut watch, 6_000, &offer), None);
        assert_eq!(watch.found().next().unwrap().replies, 2);
        assert!(hear(&mut watch, 605_000, &offer).is_some());
        watch.poll_probe(5_000_000);
        assert_eq!(watch.found().count(), 0, "gone");
    }

    #[test]
    fn our_own_replies_and_noise_are_no_finding() {
        let mut watch = watch(Mode::Server);
        assert_eq!(hear(&mut watch, 0, &reply(2, GIVEN, OWN)), None);
        let request = discover(PROBE, 1);
        assert_eq!(hear(&mut watch, 0, &request), None);
        assert_eq!(hear(&mut watch, 0, &reply(13, GIVEN, OTHER)), None);
        assert_eq!(hear(&mut watch, 0, &[2; 100]), None);
        let from_us = Heard {
            mac: THEIRS,
            source: SocketAddrV4::new(OWN, 67),
            payload: &reply(2, GIVEN, OTHER),
        };
        assert_eq!(watch.handle(0, &from_us), None);
        assert_eq!(watch.found().count(), 0);
    }

    #[test]
    fn made_up_servers_are_bounded() {
        let mut watch = watch(Mode::Server);
        for n in 0..1000u32 {
            let server = Ipv4Addr::from_bits(0x0a4d_0100 + n);
            hear(&mut watch, u64::from(n), &reply(2, GIVEN, server));
        }
        assert_eq!(watch.found().count(), SERVERS_MAX);
        assert!(
            watch
                .found()
                .any(|f| f.server == Ipv4Addr::from_bits(0x0a4d_0100 + 999))
        );
    }

    #[test]
    fn in_proxy_mode_the_server_is_no_news_its_absence_is_and_so_is_another_proxy() {
        let mut watch = watch(Mode::Proxy);
        watch.poll_probe(1_000).unwrap();
        assert_eq!(watch.poll_finding(10_999), None);
        assert_eq!(watch.poll_timeout(), Some(11_000));
        assert_eq!(watch.poll_finding(11_000), Some(Finding::NoServer));
        assert_eq!(watch.poll_finding(11_001), None);
        assert_eq!(Finding::NoServer.explain().code, "dhcp.no_server");
        watch.poll_probe(601_000).unwrap();
        assert_eq!(hear(&mut watch, 602_000, &reply(2, GIVEN, OTHER)), None);
        assert_eq!(watch.found().count(), 1, "shown all the same");
        assert_eq!(watch.poll_finding(611_000), None, "somebody answered");
        let proxy = reply(2, Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(10, 77, 0, 3));
        let found = hear(&mut watch, 612_000, &proxy);
        assert!(
            matches!(&found, Some(Finding::Foreign(f)) if f.proxy),
            "{found:?}"
        );
        assert_eq!(watch.poll_timeout(), Some(1_201_000));
    }

    #[test]
    fn a_frame_is_read_to_its_payload() {
        let payload = reply(2, GIVEN, OTHER);
        let total = (28 + payload.len()) as u16;
        let mut frame = vec![0xff; 6];
        frame.extend_from_slice(&THEIRS.0);
        frame.extend_from_slice(&[8, 0, 0x45, 0]);
        frame.extend_from_slice(&total.to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend_from_slice(&OTHER.octets());
        frame.extend_from_slice(&[255; 4]);
        frame.extend_from_slice(&[0, 67, 0, 68]);
        frame.extend_from_slice(&(8 + payload.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[0, 0]);
        frame.extend_from_slice(&payload);
        let heard = Heard::parse(&frame).expect("a reply");
        assert_eq!((heard.mac, heard.payload), (THEIRS, &payload[..]));
        assert_eq!(heard.source, SocketAddrV4::new(OTHER, 67));
        for len in 0..frame.len() {
            assert_eq!(Heard::parse(&frame[..len]), None, "cut at {len}");
        }
        for (at, value) in [
            (12, 9),
            (14, 0x65),
            (23, 6),
            (20, 0x20),
            (21, 1),
            (37, 67),
            (39, 3),
        ] {
            let mut bad = frame.clone();
            bad[at] = value;
            assert_eq!(Heard::parse(&bad), None, "octet {at}");
        }
        frame.extend_from_slice(&[0; 20]);
        assert_eq!(Heard::parse(&frame).unwrap().payload, payload, "padding");
    }
}
