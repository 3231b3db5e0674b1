//! A fleet of DHCP clients behind one relay agent: full exchanges, a given number in flight.
//!
//! The relay is a top-of-rack switch: it unicasts to the server from its own address, counts one
//! hop and adds option 82 with the port of each client (RFC 3046). The clients are UEFI firmware.
//! Written apart from the product's codec, as [`crate::pxe`] is. A step that is not answered is
//! asked again with the same `xid`, each time with twice the patience (RFC 2131 section 4.1).

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

const SERVER_PORT: u16 = 67;
const MAGIC: [u8; 4] = [0x63, 0x82, 0x53, 0x63];
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;
/// Switch ports that the fleet is spread over.
const PORTS: u32 = 512;
/// Octets before the options.
const HEADER_LEN: usize = 240;
/// Answers of a whole fleet may be on their way at once.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;
/// How long the socket is waited for before unanswered steps are looked at.
const TURN: u8 = 5;
/// Datagrams read before the next look at the fleet.
const DRAIN_MAX: usize = 64;

/// The fleet and how it behaves.
#[derive(Debug, Clone)]
pub struct Load {
    /// Where messages are sent: the DHCP server, or a path to it.
    pub server: Ipv4Addr,
    /// Where they are sent from, in the calling thread's namespace.
    pub local: Ipv4Addr,
    /// The relay's address; the same unless a path lies between.
    pub giaddr: Ipv4Addr,
    /// Number of the first client; hardware address, `xid` and port follow from it.
    pub first: u32,
    /// How many clients.
    pub count: u32,
    /// Exchanges open at once.
    pub in_flight: usize,
    /// How long the first try of a step waits.
    pub patience: Duration,
    /// Tries of a step before the client gives up.
    pub tries: u32,
    /// Longest run.
    pub limit: Duration,
}

/// What became of the fleet.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Client number and address, as acknowledged.
    pub leases: Vec<(u32, Ipv4Addr)>,
    /// Clients that gave up, or had not finished at the limit.
    pub unserved: Vec<u32>,
    /// DHCPNAKs.
    pub naks: u64,
    /// Messages sent again.
    pub resent: u64,
    /// From the first DISCOVER to the last ACK.
    pub wall: Duration,
    /// DISCOVER to ACK of each client, sorted.
    pub exchanges: Vec<Duration>,
    /// DISCOVER to OFFER of each client, sorted.
    pub offers: Vec<Duration>,
}

impl Outcome {
    /// Leases per second.
    pub fn rate(&self) -> f64 {
        self.leases.len() as f64 / self.wall.as_secs_f64()
    }

    /// Everybody has a lease and nobody shares one.
    ///
    /// # Errors
    /// Who does not, or which address was given twice.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.unserved.is_empty(),
            "{} client(s) without a lease ({} have one, {} NAKs), the first number {}",
            self.unserved.len(),
            self.leases.len(),
            self.naks,
            self.unserved[0]
        );
        let mut seen = BTreeSet::new();
        for (client, addr) in &self.leases {
            ensure!(
                seen.insert(addr),
                "{addr} twice, the second time to {client}"
            );
        }
        Ok(())
    }
}

/// Nearest-rank percentile of a sorted list, in milliseconds; 0 for an empty one.
pub fn percentile_ms(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted
        .get(rank - 1)
        .map_or(0.0, |duration| duration.as_secs_f64() * 1000.0)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Selecting,
    Requesting { addr: Ipv4Addr, server: Ipv4Addr },
    Bound,
    GaveUp,
}

#[derive(Clone, Copy)]
struct Client {
    step: Step,
    tries: u32,
    began: Instant,
    sent: Instant,
}

impl Load {
    /// One exchange each.
    ///
    /// # Errors
    /// The socket is refused, or an answer breaks RFC 2131.
    pub fn run(&self) -> Result<Outcome> {
        let socket = open(self.local)?;
        let started = Instant::now();
        let fresh = Client {
            step: Step::Selecting,
            tries: 1,
            began: started,
            sent: started,
        };
        let mut clients = vec![fresh; self.count as usize];
        let mut outcome = Outcome::default();
        let mut open_now: Vec<u32> = Vec::with_capacity(self.in_flight);
        let mut next = 0;
        let mut looked = started;
        let mut buffer = [0; 2048];
        while (next < self.count || !open_now.is_empty()) && started.elapsed() < self.limit {
            while open_now.len() < self.in_flight && next < self.count {
                let client = &mut clients[next as usize];
                client.began = Instant::now();
                self.send(&socket, next, client)?;
                open_now.push(next);
                next += 1;
            }
            let mut ready = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            poll(&mut ready, PollTimeout::from(TURN))?;
            for _ in 0..DRAIN_MAX {
                let Ok(len) = socket.recv(&mut buffer) else {
                    break;
                };
                self.answer(
                    &socket,
                    &buffer[..len],
                    &mut clients[..next as usize],
                    &mut outcome,
                )?;
            }
            open_now.retain(|number| {
                matches!(
                    clients[*number as usize].step,
                    Step::Selecting | Step::Requesting { .. }
                )
            });
            if looked.elapsed() > self.patience / 8 {
                looked = Instant::now();
                for number in &open_now {
                    self.look(
                        &socket,
                        *number,
                        &mut clients[*number as usize],
                        &mut outcome,
                    )?;
                }
            }
        }
        outcome.wall = started.elapsed();
        for (number, client) in (self.first..).zip(&clients) {
            if client.step != Step::Bound {
                outcome.unserved.push(number);
            }
        }
        outcome.exchanges.sort();
        outcome.offers.sort();
        Ok(outcome)
    }

    /// A step without its answer is asked again, or given up.
    fn look(
        &self,
        socket: &UdpSocket,
        number: u32,
        client: &mut Client,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let patience = self.patience * (1 << (client.tries - 1).min(8));
        if client.sent.elapsed() <= patience {
            return Ok(());
        }
        if client.tries >= self.tries {
            client.step = Step::GaveUp;
            return Ok(());
        }
        client.tries += 1;
        outcome.resent += 1;
        self.send(socket, number, client)
    }

    fn answer(
        &self,
        socket: &UdpSocket,
        datagram: &[u8],
        clients: &mut [Client],
        outcome: &mut Outcome,
    ) -> Result<()> {
        let Some(answer) = Answer::parse(datagram) else {
            bail!(
                "an answer that is no DHCP message: {} bytes",
                datagram.len()
            );
        };
        // Answers to an earlier fleet may still be on their way.
        let Some(number) = answer.xid.checked_sub(self.first + 1) else {
            return Ok(());
        };
        let Some(client) = clients.get_mut(number as usize) else {
            return Ok(());
        };
        ensure!(
            answer.mac == mac_of(self.first + number) && answer.giaddr == self.giaddr,
            "xid {:#x} came back with another chaddr or giaddr",
            answer.xid
        );
        match (answer.kind, client.step) {
            (OFFER, Step::Selecting) => {
                let server = answer.server.context("OFFER without option 54")?;
                outcome.offers.push(client.began.elapsed());
                client.step = Step::Requesting {
                    addr: answer.yiaddr,
                    server,
                };
                client.tries = 1;
                self.send(socket, number, client)
            }
            (ACK, Step::Requesting { addr, .. }) => {
                ensure!(
                    answer.yiaddr == addr,
                    "offered {addr} but acknowledged {}",
                    answer.yiaddr
                );
                ensure!(answer.lease_secs.is_some(), "ACK without option 51");
                client.step = Step::Bound;
                outcome.exchanges.push(client.began.elapsed());
                outcome.leases.push((self.first + number, addr));
                Ok(())
            }
            (NAK, Step::Requesting { .. }) => {
                outcome.naks += 1;
                client.step = Step::Selecting;
                client.tries = 1;
                self.send(socket, number, client)
            }
            // Answers to what was sent twice.
            _ => Ok(()),
        }
    }

    fn send(&self, socket: &UdpSocket, number: u32, client: &mut Client) -> Result<()> {
        let number = self.first + number;
        let message = match client.step {
            Step::Selecting => message(DISCOVER, number, self.giaddr, &port_of(number), None),
            Step::Requesting { addr, server } => {
                let chosen = Some((addr, server));
                message(REQUEST, number, self.giaddr, &port_of(number), chosen)
            }
            Step::Bound | Step::GaveUp => return Ok(()),
        };
        client.sent = Instant::now();
        send(socket, &message, self.server)
    }
}

/// DISCOVERs with made-up hardware addresses that nobody follows up, all from one switch port, at
/// most `per_sec` of them a second.
///
/// # Errors
/// The socket is refused.
pub fn flood(
    server: Ipv4Addr,
    giaddr: Ipv4Addr,
    first: u32,
    count: u32,
    per_sec: u32,
) -> Result<()> {
    let socket = open(giaddr)?;
    let started = Instant::now();
    let mut buffer = [0; 2048];
    for sent in 0..count {
        send(
            &socket,
            &message(DISCOVER, first + sent, giaddr, b"Eth99/1", None),
            server,
        )?;
        let due = Duration::from_secs_f64(f64::from(sent) / f64::from(per_sec));
        if let Some(early) = due.checked_sub(started.elapsed()) {
            std::thread::sleep(early);
        }
        while socket.recv(&mut buffer).is_ok() {}
    }
    Ok(())
}

fn open(local: Ipv4Addr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((local, SERVER_PORT))
        .with_context(|| format!("cannot bind {local}:{SERVER_PORT}"))?;
    setsockopt(&socket.as_fd(), sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn send(socket: &UdpSocket, message: &[u8], server: Ipv4Addr) -> Result<()> {
    let to = SocketAddrV4::new(server, SERVER_PORT);
    match socket.send_to(message, to) {
        Ok(_) => Ok(()),
        // A full send buffer loses the datagram, as a switch would; the client asks again.
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error).context("sending to the DHCP server"),
    }
}

fn mac_of(number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_be_bytes();
    [0x02, 0xd0, a, b, c, d]
}

/// Its switch port: of [`PORTS`], so that a large fleet has several machines behind each.
fn port_of(number: u32) -> Vec<u8> {
    let port = number % PORTS;
    format!("Eth{}/{}", port / 48 + 1, port % 48 + 1).into_bytes()
}

/// A relayed message of UEFI firmware, with the options of OVMF.
fn message(
    kind: u8,
    number: u32,
    giaddr: Ipv4Addr,
    port: &[u8],
    chosen: Option<(Ipv4Addr, Ipv4Addr)>,
) -> Vec<u8> {
    let mac = mac_of(number);
    let mut m = Vec::with_capacity(400);
    m.extend([1, 1, 6, 1]);
    m.extend((number + 1).to_be_bytes());
    m.extend([0; 16]);
    m.extend(giaddr.octets());
    m.extend(mac);
    m.extend([0; 10 + 64 + 128]);
    m.extend(MAGIC);
    let mut option = |code: u8, value: &[u8]| {
        m.extend([code, value.len() as u8]);
        m.extend(value);
    };
    option(53, &[kind]);
    if let Some((addr, server)) = chosen {
        option(54, &server.octets());
        option(50, &addr.octets());
    }
    option(57, &1472u16.to_be_bytes());
    option(
        55,
        &[
            1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 43, 51, 54, 58, 59, 60, 66, 67, 97,
        ],
    );
    let mut uuid = [0; 17];
    uuid[11..].copy_from_slice(&mac);
    option(97, &uuid);
    option(94, &[1, 3, 0]);
    option(93, &[0, 7]);
    option(60, b"PXEClient:Arch:00007:UNDI:003000");
    let mut agent = vec![1, port.len() as u8];
    agent.extend(port);
    option(82, &agent);
    m.push(255);
    m
}

struct Answer {
    xid: u32,
    yiaddr: Ipv4Addr,
    giaddr: Ipv4Addr,
    mac: [u8; 6],
    kind: u8,
    server: Option<Ipv4Addr>,
    lease_secs: Option<u32>,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, mut rest) = bytes.split_at_checked(HEADER_LEN)?;
        if header[0] != 2 || header[236..] != MAGIC {
            return None;
        }
        let word = |at: usize| header[at..at + 4].first_chunk::<4>().copied();
        let mut answer = Self {
            xid: u32::from_be_bytes(word(4)?),
            yiaddr: word(16)?.into(),
            giaddr: word(24)?.into(),
            mac: *header[28..].first_chunk()?,
            kind: 0,
            server: None,
            lease_secs: None,
        };
        loop {
            match rest {
                [255, ..] => return Some(answer),
                [0, tail @ ..] => rest = tail,
                [code, len, tail @ ..] => {
                    let (value, tail) = tail.split_at_checked(usize::from(*len))?;
                    let quad = value.first_chunk::<4>().copied();
                    match code {
                        53 => answer.kind = *value.first()?,
                        54 => answer.server = quad.map(Ipv4Addr::from),
                        51 => answer.lease_secs = quad.map(u32::from_be_bytes),
                        _ => {}
                    }
                    rest = tail;
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A server of a few lines on loopback: what it answers decides what the load must say.
    fn serve(socket: &UdpSocket, shared: bool, datagrams: usize) {
        let mut given: BTreeMap<[u8; 6], u32> = BTreeMap::new();
        let mut buffer = [0; 2048];
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        for _ in 0..datagrams {
            let (len, from) = socket.recv_from(&mut buffer).unwrap();
            let mut reply = buffer[..HEADER_LEN].to_vec();
            let mac = *buffer[28..].first_chunk().unwrap();
            let next = if shared { 0 } else { given.len() as u32 };
            let number = *given.entry(mac).or_insert(next);
            reply[0] = 2;
            reply[16..20].copy_from_slice(&(0x0a00_0000 + number).to_be_bytes());
            // Option 53 is the first of the load's options.
            let kind = if buffer[242] == DISCOVER { OFFER } else { ACK };
            reply.extend([53, 1, kind, 54, 4, 127, 0, 0, 1, 51, 4, 0, 0, 14, 16, 255]);
            assert!(len > 300);
            socket.send_to(&reply, from).unwrap();
        }
    }

    /// The load always speaks on port 67, so the exchange needs a namespace of its own.
    fn exchange(shared: bool) -> Option<Outcome> {
        if nix::unistd::geteuid().is_root() {
            let run = crate::run::Run::start("dhcp-load").unwrap();
            let ns = crate::netns::Netns::create(&run, "lo").unwrap();
            let outcome = ns
                .enter(|| {
                    let server = UdpSocket::bind("127.0.0.1:67")?;
                    std::thread::scope(|scope| {
                        scope.spawn(|| serve(&server, shared, 40));
                        let load = Load {
                            server: Ipv4Addr::LOCALHOST,
                            local: Ipv4Addr::new(127, 0, 0, 2),
                            giaddr: Ipv4Addr::new(127, 0, 0, 2),
                            first: 100,
                            count: 20,
                            in_flight: 4,
                            patience: Duration::from_secs(5),
                            tries: 2,
                            limit: Duration::from_secs(20),
                        };
                        load.run()
                    })
                })
                .unwrap();
            return Some(outcome);
        }
        println!("SKIP not root: network namespaces cannot be made");
        None
    }

    #[test]
    fn every_client_finishes_its_exchange() {
        let Some(outcome) = exchange(false) else {
            return;
        };
        outcome.check().unwrap();
        assert_eq!(outcome.leases.len(), 20);
        assert_eq!(outcome.exchanges.len(), 20);
        assert_eq!((outcome.naks, outcome.resent), (0, 0));
    }

    #[test]
    fn an_address_given_twice_is_told() {
        let Some(outcome) = exchange(true) else {
            return;
        };
        let error = outcome.check().unwrap_err();
        assert!(error.to_string().contains("10.0.0.0 twice"), "{error}");
    }

    #[test]
    fn a_fleet_that_is_not_served_is_told() {
        let outcome = Outcome {
            unserved: vec![7],
            ..Outcome::default()
        };
        assert!(outcome.check().is_err());
    }
}
