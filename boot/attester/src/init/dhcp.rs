//! A DHCPv4 client of the smallest useful size (RFC 2131): DISCOVER, REQUEST, and an answer.
//!
//! The codec is dhcproto's. Decides which offer is usable. Keeps no state between calls: a lease
//! that runs low is simply asked for again.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use dhcproto::v4::{DhcpOption, Flags, HType, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable, Encodable};
use hw::nic::{self, NicError};
use rand_core::{OsRng, RngCore};

/// Server and client ports.
const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
/// Waits for an answer, one per transmission (RFC 2131 section 4.1, shortened: a person watches).
const WAITS: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];
/// Largest datagram.
const DATAGRAM_MAX: usize = 1500;
/// Lease time when the server names none, in seconds.
const LEASE_DEFAULT_SECS: u32 = 3600;
/// Shortest lease time acted on, in seconds: a server must not make us ask all the time.
const LEASE_SHORTEST_SECS: u32 = 60;

/// A lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leased {
    /// Our address.
    pub addr: Ipv4Addr,
    /// Prefix length of option 1.
    pub prefix: u8,
    /// Option 3.
    pub router: Option<Ipv4Addr>,
    /// Option 54.
    pub server: Ipv4Addr,
    /// `siaddr`.
    pub next_server: Ipv4Addr,
    /// Option 51.
    pub lease_secs: u32,
}

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
pub(super) enum DhcpError {
    /// Nobody answered.
    #[error("no DHCP server answered {0} {1} messages")]
    Silent(usize, &'static str),
    /// The server took its offer back.
    #[error("the DHCP server refused the address it had offered")]
    Nak,
    /// The socket.
    #[error("DHCP socket: {0}")]
    Socket(#[from] std::io::Error),
    /// The interface.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A message could not be encoded.
    #[error("DHCP message: {0}")]
    Encode(#[from] dhcproto::error::EncodeError),
}

/// What an answer means.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Offer(Leased),
    Ack(Leased),
    Nak,
}

/// Gets a lease on one interface.
pub(super) fn acquire(ifname: &str, mac: [u8; 6]) -> Result<Leased, DhcpError> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, CLIENT_PORT))?;
    nic::bind_to_device(&socket, ifname)?;
    socket.set_broadcast(true)?;
    let xid = OsRng.next_u32();
    let begun = Instant::now();

    let discover = |secs| message(MessageType::Discover, xid, mac, secs, None);
    let offer = exchange(&socket, xid, mac, begun, discover, |answer| match answer {
        Answer::Offer(offer) => Some(offer),
        Answer::Ack(_) | Answer::Nak => None,
    })?
    .ok_or(DhcpError::Silent(WAITS.len(), "DISCOVER"))?;

    let request = |secs| message(MessageType::Request, xid, mac, secs, Some(&offer));
    exchange(&socket, xid, mac, begun, request, |answer| match answer {
        Answer::Ack(lease) => Some(Ok(lease)),
        Answer::Nak => Some(Err(DhcpError::Nak)),
        Answer::Offer(_) => None,
    })?
    .ok_or(DhcpError::Silent(WAITS.len(), "REQUEST"))?
}

/// Sends until `wanted` takes an answer; none after the last wait.
fn exchange<T>(
    socket: &UdpSocket,
    xid: u32,
    mac: [u8; 6],
    begun: Instant,
    message: impl Fn(u16) -> Message,
    wanted: impl Fn(Answer) -> Option<T>,
) -> Result<Option<T>, DhcpError> {
    for wait in WAITS {
        let secs = u16::try_from(begun.elapsed().as_secs()).unwrap_or(u16::MAX);
        socket.send_to(&message(secs).to_vec()?, (Ipv4Addr::BROADCAST, SERVER_PORT))?;
        let deadline = Instant::now() + wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            let mut datagram = [0; DATAGRAM_MAX];
            let length = match socket.recv(&mut datagram) {
                Ok(length) => length,
                Err(error) if is_timeout(&error) => break,
                Err(error) => return Err(error.into()),
            };
            if let Some(value) = read(&datagram[..length], xid, mac).and_then(&wanted) {
                return Ok(Some(value));
            }
        }
    }
    Ok(None)
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock
            | std::io::ErrorKind::TimedOut
            | std::io::ErrorKind::Interrupted
    )
}

/// DISCOVER, or REQUEST for an offer. No client identifier (option 61): the firmware sends none
/// either, so that both get the same address.
fn message(
    kind: MessageType,
    xid: u32,
    mac: [u8; 6],
    secs: u16,
    offer: Option<&Leased>,
) -> Message {
    let mut message = Message::default();
    message
        .set_opcode(Opcode::BootRequest)
        .set_htype(HType::Eth)
        .set_xid(xid)
        .set_secs(secs)
        .set_flags(Flags::default().set_broadcast())
        .set_chaddr(&mac);
    let options = message.opts_mut();
    options.insert(DhcpOption::MessageType(kind));
    options.insert(DhcpOption::MaxMessageSize(DATAGRAM_MAX as u16));
    options.insert(DhcpOption::ParameterRequestList(vec![
        OptionCode::SubnetMask,
        OptionCode::Router,
        OptionCode::AddressLeaseTime,
        OptionCode::ServerIdentifier,
    ]));
    if let Some(offer) = offer {
        options.insert(DhcpOption::RequestedIpAddress(offer.addr));
        options.insert(DhcpOption::ServerIdentifier(offer.server));
    }
    message
}

/// Reads an answer to us; none when it is for somebody else, malformed or of no use.
fn read(datagram: &[u8], xid: u32, mac: [u8; 6]) -> Option<Answer> {
    let message = Message::from_bytes(datagram).ok()?;
    // dhcproto slices its 16 bytes of chaddr by hlen and panics on a larger one.
    if usize::from(message.hlen()) != mac.len() {
        return None;
    }
    if message.opcode() != Opcode::BootReply || message.xid() != xid || message.chaddr() != mac {
        return None;
    }
    let options = message.opts();
    let Some(DhcpOption::MessageType(kind)) = options.get(OptionCode::MessageType) else {
        return None;
    };
    if *kind == MessageType::Nak {
        return Some(Answer::Nak);
    }
    let server = match options.get(OptionCode::ServerIdentifier) {
        Some(DhcpOption::ServerIdentifier(server)) => *server,
        _ => message.siaddr(),
    };
    let prefix = match options.get(OptionCode::SubnetMask) {
        Some(DhcpOption::SubnetMask(mask)) => prefix_of(*mask)?,
        _ => return None,
    };
    let addr = message.yiaddr();
    if unusable(addr) || unusable(server) {
        return None;
    }
    let leased = Leased {
        addr,
        prefix,
        router: match options.get(OptionCode::Router) {
            Some(DhcpOption::Router(routers)) => {
                routers.iter().copied().find(|router| !unusable(*router))
            }
            _ => None,
        },
        server,
        next_server: message.siaddr(),
        lease_secs: match options.get(OptionCode::AddressLeaseTime) {
            Some(DhcpOption::AddressLeaseTime(secs)) => (*secs).max(LEASE_SHORTEST_SECS),
            _ => LEASE_DEFAULT_SECS,
        },
    };
    match kind {
        MessageType::Offer => Some(Answer::Offer(leased)),
        MessageType::Ack => Some(Answer::Ack(leased)),
        _ => None,
    }
}

fn unusable(addr: Ipv4Addr) -> bool {
    addr.is_unspecified() || addr.is_broadcast() || addr.is_multicast() || addr.is_loopback()
}

/// Length of a contiguous mask.
fn prefix_of(mask: Ipv4Addr) -> Option<u8> {
    let bits = u32::from(mask);
    (bits.leading_ones() + bits.trailing_zeros() >= 32).then_some(bits.leading_ones() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn reply(kind: MessageType) -> Message {
        let mut message = Message::default();
        message
            .set_opcode(Opcode::BootReply)
            .set_htype(HType::Eth)
            .set_xid(7)
            .set_chaddr(&MAC)
            .set_yiaddr([10, 0, 0, 50])
            .set_siaddr([10, 0, 0, 2]);
        let options = message.opts_mut();
        options.insert(DhcpOption::MessageType(kind));
        options.insert(DhcpOption::SubnetMask([255, 255, 255, 0].into()));
        options.insert(DhcpOption::Router(vec![[10, 0, 0, 1].into()]));
        options.insert(DhcpOption::ServerIdentifier([10, 0, 0, 1].into()));
        options.insert(DhcpOption::AddressLeaseTime(600));
        message
    }

    fn leased() -> Leased {
        Leased {
            addr: [10, 0, 0, 50].into(),
            prefix: 24,
            router: Some([10, 0, 0, 1].into()),
            server: [10, 0, 0, 1].into(),
            next_server: [10, 0, 0, 2].into(),
            lease_secs: 600,
        }
    }

    fn read_message(message: &Message) -> Option<Answer> {
        read(&message.to_vec().unwrap(), 7, MAC)
    }

    #[test]
    fn reads_offers_acknowledgements_and_refusals() {
        assert_eq!(
            read_message(&reply(MessageType::Offer)),
            Some(Answer::Offer(leased()))
        );
        assert_eq!(
            read_message(&reply(MessageType::Ack)),
            Some(Answer::Ack(leased()))
        );
        assert_eq!(read_message(&reply(MessageType::Nak)), Some(Answer::Nak));
        assert_eq!(read_message(&reply(MessageType::Inform)), None);
        let mut hurried = reply(MessageType::Ack);
        hurried.opts_mut().insert(DhcpOption::AddressLeaseTime(1));
        let Some(Answer::Ack(lease)) = read_message(&hurried) else {
            panic!("refused")
        };
        assert_eq!(lease.lease_secs, LEASE_SHORTEST_SECS);
    }

    #[test]
    fn rejects_what_is_not_for_us_or_of_no_use() {
        type Edit = fn(&mut Message);
        let edits: [(&str, Edit); 9] = [
            ("request", |m| {
                m.set_opcode(Opcode::BootRequest);
            }),
            ("xid", |m| {
                m.set_xid(8);
            }),
            ("chaddr", |m| {
                m.set_chaddr(&[2, 0, 0, 0, 0, 8]);
            }),
            ("no address", |m| {
                m.set_yiaddr([0, 0, 0, 0]);
            }),
            ("multicast", |m| {
                m.set_yiaddr([224, 0, 0, 1]);
            }),
            ("no type", |m| {
                m.opts_mut().remove(OptionCode::MessageType);
            }),
            ("no mask", |m| {
                m.opts_mut().remove(OptionCode::SubnetMask);
            }),
            ("mask with a hole", |m| {
                m.opts_mut()
                    .insert(DhcpOption::SubnetMask([255, 0, 255, 0].into()));
            }),
            ("server", |m| {
                m.opts_mut()
                    .insert(DhcpOption::ServerIdentifier([127, 0, 0, 1].into()));
            }),
        ];
        for (what, edit) in edits {
            let mut message = reply(MessageType::Offer);
            edit(&mut message);
            assert_eq!(read_message(&message), None, "{what}");
        }
        let mut long_address = reply(MessageType::Offer).to_vec().unwrap();
        for hlen in [0, 5, 7, 16, 17, 255] {
            long_address[2] = hlen;
            assert_eq!(read(&long_address, 7, MAC), None, "hlen {hlen}");
        }
        let whole = reply(MessageType::Offer).to_vec().unwrap();
        for end in 0..whole.len() {
            read(&whole[..end], 7, MAC);
        }
    }

    #[test]
    fn requests_carry_what_a_server_needs() {
        let bytes = message(MessageType::Request, 7, MAC, 3, Some(&leased()))
            .to_vec()
            .unwrap();
        let sent = Message::from_bytes(&bytes).unwrap();
        assert!(sent.flags().broadcast());
        assert_eq!((sent.xid(), sent.chaddr()), (7, MAC.as_slice()));
        let options = sent.opts();
        assert_eq!(
            options.get(OptionCode::RequestedIpAddress),
            Some(&DhcpOption::RequestedIpAddress([10, 0, 0, 50].into()))
        );
        assert_eq!(
            options.get(OptionCode::ServerIdentifier),
            Some(&DhcpOption::ServerIdentifier([10, 0, 0, 1].into()))
        );
        assert!(options.get(OptionCode::ClientIdentifier).is_none());
        // A BOOTP relay drops anything below 300 bytes (RFC 1542 section 2.1).
        assert!(bytes.len() >= 240);
    }

    fn ip(arguments: &str) -> bool {
        let status = std::process::Command::new("ip")
            .args(arguments.split_whitespace())
            .status();
        status.is_ok_and(|status| status.success())
    }

    /// Stays silent at first, then answers with a wrong xid and with the right one.
    fn serve_one_client(interface: &str) -> Vec<MessageType> {
        nic::configure_ipv4(interface, [10, 0, 0, 1].into(), 24, None).unwrap();
        nic::link_up(interface).unwrap();
        let server = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, SERVER_PORT)).unwrap();
        nic::bind_to_device(&server, interface).unwrap();
        server.set_broadcast(true).unwrap();
        let mut seen = Vec::new();
        while seen.last() != Some(&MessageType::Request) {
            let mut datagram = [0; DATAGRAM_MAX];
            let length = server.recv(&mut datagram).unwrap();
            let request = Message::from_bytes(&datagram[..length]).unwrap();
            let Some(DhcpOption::MessageType(kind)) = request.opts().get(OptionCode::MessageType)
            else {
                panic!("no type")
            };
            seen.push(*kind);
            let mut answer = reply(match kind {
                MessageType::Discover => MessageType::Offer,
                _ => MessageType::Ack,
            });
            answer.set_chaddr(request.chaddr());
            if seen.len() > 1 {
                for xid in [request.xid() ^ 1, request.xid()] {
                    answer.set_xid(xid);
                    let bytes = answer.to_vec().unwrap();
                    server
                        .send_to(&bytes, (Ipv4Addr::BROADCAST, CLIENT_PORT))
                        .unwrap();
                }
            }
        }
        seen
    }

    /// Client and server each in a network namespace of its own, a cable between them.
    #[test]
    fn gets_a_lease_on_an_interface_without_address() {
        use nix::sched::{CloneFlags, unshare};
        if unshare(CloneFlags::CLONE_NEWNET).is_err() || !ip("link add sw type veth peer name node")
        {
            println!("SKIP no permission to make a network namespace");
            return;
        }
        let (here, there) = std::sync::mpsc::channel();
        let (plugged, wait) = std::sync::mpsc::channel::<()>();
        let answering = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            here.send(nix::unistd::gettid()).unwrap();
            wait.recv().unwrap();
            serve_one_client("sw")
        });
        assert!(ip(&format!("link set sw netns {}", there.recv().unwrap())));
        plugged.send(()).unwrap();
        nic::link_up("node").unwrap();
        assert!(nic::wait_for_carrier("node", Duration::from_secs(5)).unwrap());
        let mac = nic::interfaces()
            .into_iter()
            .find(|i| i.name == "node")
            .unwrap()
            .mac
            .unwrap();
        assert_eq!(acquire("node", mac).unwrap(), leased());
        let seen = answering.join().unwrap();
        assert!(seen.len() >= 3, "the first DISCOVER was repeated: {seen:?}");
        nic::configure_ipv4("node", leased().addr, leased().prefix, leased().router).unwrap();
    }

    #[test]
    fn masks() {
        assert_eq!(prefix_of([255, 255, 255, 0].into()), Some(24));
        assert_eq!(prefix_of([0, 0, 0, 0].into()), Some(0));
        assert_eq!(prefix_of([255, 255, 255, 255].into()), Some(32));
        assert_eq!(prefix_of([255, 255, 0, 255].into()), None);
    }

    proptest::proptest! {
        /// A byte of a good answer changed, or the answer cut: read or refused, never a panic.
        #[test]
        fn mutated_answers_do_not_panic(at in 0_usize..300, byte in 0_u8.., end in 0_usize..400) {
            let mut bytes = reply(MessageType::Ack).to_vec().unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(end);
            let _ = read(&bytes, 7, MAC);
        }
    }
}
