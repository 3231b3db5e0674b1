//! Many TFTP clients at once, on one thread: the load of tests and benches.
//!
//! A receiver as RFC 1350, 2347, 2348, 2349 and 7440 describe it, written apart from the product's
//! sender. Every block is compared with what it must be.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use hw::net::{Inbox, Poller, UdpPort, Wait};
use nix::libc::{in_addr, in_pktinfo};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg};

/// Datagrams taken by one call.
const BATCH_MAX: usize = 64;
/// Calls for one socket before the others have their turn.
const TURNS_MAX: usize = 4;
/// Timeouts in a row after which a client gives up, as patient as iPXE.
const TRIES_MAX: u32 = 20;

/// What to fetch, and how.
#[derive(Debug, Clone)]
pub struct Load<'a> {
    /// The server's listener.
    pub server: SocketAddr,
    /// Address to ask from.
    pub from: IpAddr,
    /// File name.
    pub name: &'a str,
    /// What it must contain.
    pub contents: &'a [u8],
    /// Clients, each with a port of its own.
    pub clients: usize,
    /// `blksize` asked for; 512 asks for nothing.
    pub block_len: usize,
    /// `windowsize` asked for; 1 asks for nothing.
    pub window: u16,
    /// Silence after which a client repeats what it said last.
    pub timeout: Duration,
    /// Longest run.
    pub limit: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Clients that have the whole file.
    pub whole: usize,
    /// Clients that do not.
    pub failed: usize,
    /// Octets that differ from the file, over all clients.
    pub wrong: u64,
    /// First request to last end.
    pub wall: Duration,
    /// Time of each client that has the whole file, sorted.
    pub times: Vec<Duration>,
    /// DATA packets that arrived.
    pub packets: u64,
    /// Of these, not the one awaited.
    pub out_of_turn: u64,
    /// Times a client waited in vain.
    pub timeouts: u64,
    /// `blksize` and `windowsize` as the first client saw them acknowledged.
    pub agreed: (usize, u16),
    /// What a server said instead, once.
    pub error: Option<String>,
}

impl Outcome {
    /// # Errors
    /// A client without the whole file, or a wrong octet.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.failed == 0 && self.wrong == 0,
            "{} clients have the file, {} do not, {} octets are wrong{}",
            self.whole,
            self.failed,
            self.wrong,
            self.error
                .as_ref()
                .map_or(String::new(), |text| format!(": {text}"))
        );
        Ok(())
    }

    /// The time within which this part of the clients was done.
    pub fn quantile(&self, part: f64) -> Duration {
        let last = self.times.len().saturating_sub(1);
        let index = (last as f64 * part).round() as usize;
        self.times.get(index).copied().unwrap_or_default()
    }
}

struct Client {
    socket: UdpSocket,
    port: UdpPort,
    /// The server's transfer id, once it answered.
    peer: Option<SocketAddr>,
    block_len: usize,
    window: u16,
    /// Block awaited, counted from 1 without roll-over.
    next: u64,
    in_window: u16,
    /// The gap was told already.
    gap_told: bool,
    heard: Instant,
    tries: u32,
    whole: bool,
    started: Instant,
    ended: Option<Instant>,
}

/// Requests from `count` addresses, `first` and those after it, by one socket, none of them ever
/// answered. What the server sends arrives at the socket that is returned, and stays there. The
/// addresses must be local to the calling thread's namespace.
///
/// # Errors
/// The socket or a datagram is refused.
pub fn half_open(server: SocketAddr, first: Ipv4Addr, count: u32, name: &str) -> Result<UdpSocket> {
    let SocketAddr::V4(server) = server else {
        bail!("IPv4 only");
    };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // Room for what comes: how much that was says how many transfers were begun.
    hw::nic::receive_buffer(&socket, 16 << 20);
    let request = [b"\0\x01", name.as_bytes(), b"\0octet\0blksize\x001428\0"].concat();
    let to = SockaddrIn::from(server);
    for number in 0..count {
        let source = Ipv4Addr::from_bits(first.to_bits() + number);
        let info = in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: in_addr {
                s_addr: u32::from_ne_bytes(source.octets()),
            },
            ipi_addr: in_addr { s_addr: 0 },
        };
        sendmsg(
            socket.as_raw_fd(),
            &[IoSlice::new(&request)],
            &[ControlMessage::Ipv4PacketInfo(&info)],
            MsgFlags::empty(),
            Some(&to),
        )
        .with_context(|| format!("request as {source}"))?;
        // As fast as a sender that means harm, no faster than the server's socket holds.
        if number % 64 == 63 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(socket)
}

impl Load<'_> {
    /// Fetches with all clients; returns when the last one ended.
    ///
    /// # Errors
    /// A socket is refused. What goes wrong in a transfer is in the outcome.
    pub fn run(&self) -> Result<Outcome> {
        let mut poller = Poller::new()?;
        let mut clients = Vec::with_capacity(self.clients);
        for index in 0..self.clients {
            let socket = UdpSocket::bind(SocketAddr::new(self.from, 0))
                .with_context(|| format!("cannot bind {}", self.from))?;
            let port = UdpPort::shared(socket.try_clone()?)?;
            poller.add(&port, index as u64)?;
            let now = Instant::now();
            clients.push(Client {
                socket,
                port,
                peer: None,
                block_len: 512,
                window: 1,
                next: 1,
                in_window: 0,
                gap_told: false,
                heard: now,
                tries: 0,
                whole: false,
                started: now,
                ended: None,
            });
        }
        let mut outcome = Outcome::default();
        let request = self.request();
        let started = Instant::now();
        for client in &mut clients {
            client.started = Instant::now();
            client.heard = client.started;
            client.socket.send_to(&request, self.server)?;
        }
        let mut inbox = Inbox::new(BATCH_MAX, 65_535);
        let step = (self.timeout / 8).max(Duration::from_millis(1));
        let mut look = started + step;
        let mut open = self.clients;
        while open > 0 && started.elapsed() < self.limit {
            for index in 0..poller.wait(Some(step))? {
                let Some(client) = clients.get_mut(poller.token(index) as usize) else {
                    continue;
                };
                self.receive(client, &mut inbox, &mut outcome)?;
            }
            let now = Instant::now();
            if now >= look {
                look = now + step;
                for client in clients.iter_mut().filter(|c| c.ended.is_none()) {
                    self.time_passed(client, now, &request, &mut outcome);
                }
            }
            open = clients.iter().filter(|c| c.ended.is_none()).count();
        }
        outcome.wall = started.elapsed();
        for client in &clients {
            match client.ended {
                Some(ended) if client.whole => outcome.times.push(ended - client.started),
                _ => outcome.failed += 1,
            }
        }
        outcome.times.sort();
        outcome.whole = outcome.times.len();
        Ok(outcome)
    }

    fn request(&self) -> Vec<u8> {
        let mut words = vec![self.name.to_owned(), "octet".to_owned()];
        if self.block_len != 512 {
            words.extend(["blksize".to_owned(), self.block_len.to_string()]);
        }
        words.extend(["tsize".to_owned(), "0".to_owned()]);
        if self.window > 1 {
            words.extend(["windowsize".to_owned(), self.window.to_string()]);
        }
        let mut request = vec![0, 1];
        for word in words {
            request.extend(word.as_bytes());
            request.push(0);
        }
        request
    }

    fn receive(&self, client: &mut Client, inbox: &mut Inbox, outcome: &mut Outcome) -> Result<()> {
        for _ in 0..TURNS_MAX {
            if client.port.receive(inbox, Wait::No)? == 0 {
                client.port.unreachable(&mut Vec::new());
                return Ok(());
            }
            for index in 0..inbox.len() {
                let Some((from, packet)) = inbox.get(index) else {
                    continue;
                };
                if client.ended.is_some() || client.peer.is_some_and(|peer| peer != from) {
                    continue;
                }
                client.peer = Some(from);
                self.packet(client, packet, outcome);
            }
            // Nothing more waits: a look that finds nothing would cost as much as a packet.
            if !inbox.is_full() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn packet(&self, client: &mut Client, packet: &[u8], outcome: &mut Outcome) {
        match packet {
            [0, 6, options @ ..] if client.next == 1 => {
                let words: Vec<&[u8]> = options.split(|octet| *octet == 0).collect();
                for pair in words.chunks_exact(2) {
                    let value = std::str::from_utf8(pair[1])
                        .ok()
                        .and_then(|v| v.parse().ok());
                    match (pair[0].to_ascii_lowercase().as_slice(), value) {
                        (b"blksize", Some(value)) => client.block_len = value,
                        (b"windowsize", Some(value)) => client.window = value as u16,
                        _ => {}
                    }
                }
                outcome.agreed = (client.block_len, client.window);
                client.acknowledge();
            }
            [0, 3, high, low, data @ ..] => {
                let block = u16::from_be_bytes([*high, *low]);
                outcome.packets += 1;
                if block != client.next as u16 {
                    outcome.out_of_turn += 1;
                    let ahead = block.wrapping_sub(client.next as u16) < 0x8000;
                    let last_again = block.wrapping_add(1) == client.next as u16;
                    if (ahead && !client.gap_told) || last_again {
                        client.acknowledge();
                        client.gap_told |= ahead;
                    }
                    return;
                }
                let start = (client.next - 1) as usize * client.block_len;
                let right = self
                    .contents
                    .get(start..start + data.len())
                    .is_some_and(|want| want == data);
                outcome.wrong += if right { 0 } else { data.len() as u64 };
                client.next += 1;
                client.in_window += 1;
                client.gap_told = false;
                client.tries = 0;
                client.heard = Instant::now();
                let last = data.len() < client.block_len;
                if last || client.in_window >= client.window {
                    client.acknowledge();
                }
                if last {
                    client.whole = start + data.len() == self.contents.len();
                    client.ended = Some(client.heard);
                }
            }
            [0, 5, code @ ..] => {
                let text = String::from_utf8_lossy(code.get(2..).unwrap_or_default());
                outcome.error.get_or_insert_with(|| text.into_owned());
                client.ended = Some(Instant::now());
            }
            _ => {}
        }
    }

    fn time_passed(
        &self,
        client: &mut Client,
        now: Instant,
        request: &[u8],
        outcome: &mut Outcome,
    ) {
        if now.duration_since(client.heard) < self.timeout {
            return;
        }
        outcome.timeouts += 1;
        client.heard = now;
        client.gap_told = false;
        client.tries += 1;
        if client.tries > TRIES_MAX {
            client.ended = Some(now);
        } else if client.peer.is_none() {
            let _ = client.socket.send_to(request, self.server);
        } else {
            client.acknowledge();
        }
    }
}

impl Client {
    /// ACK of the last block in order; 0 answers the OACK.
    fn acknowledge(&mut self) {
        let [high, low] = ((self.next - 1) as u16).to_be_bytes();
        self.in_window = 0;
        if let Some(peer) = self.peer {
            // What is lost here is lost on the way: the server or a timeout brings it again.
            let _ = self.socket.send_to(&[0, 4, high, low], peer);
        }
    }
}
