//! A bad network in user space: a UDP relay that loses, repeats, delays and reorders datagrams,
//! seeded. (Kernels without netem are common, and this needs no privilege.)
//!
//! Clients speak to the relay's address instead of the server's. Each client has a socket of its
//! own towards the server, so that the server sees as many clients as there are; an answer from
//! another port of the server (a TFTP transfer id) is answered there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hw::net::{Inbox, Poller, UdpPort, Wait, Wake};

/// Clients of one relay.
const CLIENTS_MAX: usize = 1024;
/// Datagrams on their way at once; what comes beyond is lost, as in a full queue.
const QUEUE_MAX: usize = 65_536;
/// Largest UDP payload of an Ethernet frame, and of loopback where blocks are larger.
const DATAGRAM_LEN_MAX: usize = 65_535;

/// What happens to datagrams, each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trouble {
    /// Of 1000 datagrams, how many are lost.
    pub lost_permille: u32,
    /// Of 1000, how many come twice.
    pub repeated_permille: u32,
    /// Of 1000, how many are held back for [`held_back`](Self::held_back), so that later ones
    /// overtake them.
    pub reordered_permille: u32,
    /// How long.
    pub held_back: Duration,
    /// How long every datagram takes.
    pub delay: Duration,
    /// The same seed and order of datagrams is the same trouble.
    pub seed: u64,
}

impl Default for Trouble {
    fn default() -> Self {
        Self {
            lost_permille: 0,
            repeated_permille: 0,
            reordered_permille: 0,
            held_back: Duration::from_millis(2),
            delay: Duration::ZERO,
            seed: 1,
        }
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Datagrams that arrived at the relay.
    pub seen: u64,
    /// Of these, lost on purpose.
    pub lost: u64,
    /// Sent twice.
    pub repeated: u64,
    /// Held back.
    pub reordered: u64,
    /// Lost because the queue was full.
    pub overrun: u64,
}

/// The dice: when the copies of one datagram leave, relative to its arrival.
#[derive(Debug)]
pub struct Dice {
    trouble: Trouble,
    state: u64,
    counts: Counts,
}

impl Dice {
    /// New dice of a seed.
    pub fn new(trouble: Trouble) -> Self {
        Self {
            trouble,
            // An odd multiplier keeps neighbouring seeds apart; zero would stand still.
            state: trouble.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            counts: Counts::default(),
        }
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Of 1000, by Marsaglia's xorshift64.
    fn permille(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        ((self.state >> 32) % 1000) as u32
    }

    /// Delays of the copies of the next datagram: none when it is lost.
    pub fn throw(&mut self) -> Vec<Duration> {
        let trouble = self.trouble;
        self.counts.seen += 1;
        if self.permille() < trouble.lost_permille {
            self.counts.lost += 1;
            return Vec::new();
        }
        let mut delay = trouble.delay;
        if self.permille() < trouble.reordered_permille {
            self.counts.reordered += 1;
            delay += trouble.held_back;
        }
        let mut delays = vec![delay];
        if self.permille() < trouble.repeated_permille {
            self.counts.repeated += 1;
            delays.push(delay + trouble.held_back / 2);
        }
        delays
    }
}

/// Where a datagram goes, and from which client's pair of sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    ToServer(usize),
    ToClient(usize),
}

/// A running relay. Ended when dropped.
pub struct Relay {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    wake: Wake,
    thread: Option<JoinHandle<Result<Counts>>>,
}

impl Relay {
    /// Starts one at `listen` (port 0 for any) towards `server`, in the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// The socket is refused.
    pub fn start(listen: SocketAddr, server: SocketAddr, trouble: Trouble) -> Result<Self> {
        let front = UdpSocket::bind(listen).with_context(|| format!("cannot bind {listen}"))?;
        let address = front.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let wake = Wake::new()?;
        let (flag, bell) = (stop.clone(), wake.clone());
        let thread = std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || Carrier::new(front, server, trouble)?.run(&flag, &bell))?;
        Ok(Self {
            address,
            stop,
            wake,
            thread: Some(thread),
        })
    }

    /// Where clients speak to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it and tells what happened.
    ///
    /// # Errors
    /// It had failed.
    pub fn stop(mut self) -> Result<Counts> {
        self.end()
    }

    fn end(&mut self) -> Result<Counts> {
        self.stop.store(true, Ordering::Relaxed);
        self.wake.notify();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => anyhow::bail!("the relay panicked"),
            None => Ok(Counts::default()),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

struct Client {
    address: SocketAddr,
    /// Towards the server.
    back: UdpSocket,
    back_port: UdpPort,
    /// Where the server last answered from.
    server: SocketAddr,
}

/// A datagram on its way: when it leaves, its number, where to, what.
type Waiting = (Instant, u64, Way, Vec<u8>);

struct Carrier {
    front: UdpSocket,
    front_port: UdpPort,
    listener: SocketAddr,
    dice: Dice,
    clients: Vec<Client>,
    by_address: BTreeMap<SocketAddr, usize>,
    queue: BinaryHeap<Reverse<Waiting>>,
    number: u64,
}

const TOKEN_WAKE: u64 = 0;
const TOKEN_FRONT: u64 = 1;
const TOKEN_CLIENTS: u64 = 2;

impl Carrier {
    fn new(front: UdpSocket, listener: SocketAddr, trouble: Trouble) -> Result<Self> {
        Ok(Self {
            front_port: UdpPort::shared(front.try_clone()?)?,
            front,
            listener,
            dice: Dice::new(trouble),
            clients: Vec::new(),
            by_address: BTreeMap::new(),
            queue: BinaryHeap::new(),
            number: 0,
        })
    }

    fn run(mut self, stop: &AtomicBool, wake: &Wake) -> Result<Counts> {
        let mut poller = Poller::new()?;
        poller.add(wake, TOKEN_WAKE)?;
        poller.add(&self.front_port, TOKEN_FRONT)?;
        let mut inbox = Inbox::new(32, DATAGRAM_LEN_MAX);
        while !stop.load(Ordering::Relaxed) {
            self.deliver();
            let due = self.queue.peek().map(|Reverse((due, ..))| *due);
            let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
            let count = poller.wait(wait)?;
            for index in 0..count {
                match poller.token(index) {
                    TOKEN_WAKE => wake.clear(),
                    TOKEN_FRONT => self.take_requests(&poller, &mut inbox)?,
                    token => self.take_answers((token - TOKEN_CLIENTS) as usize, &mut inbox)?,
                }
            }
        }
        Ok(self.dice.counts())
    }

    fn take_requests(&mut self, poller: &Poller, inbox: &mut Inbox) -> Result<()> {
        if self.front_port.receive(inbox, Wait::No)? == 0 {
            self.front_port.unreachable(&mut Vec::new());
        }
        for index in 0..inbox.len() {
            let Some((from, datagram)) = inbox.get(index) else {
                continue;
            };
            let client = match self.by_address.get(&from) {
                Some(client) => *client,
                None if self.clients.len() >= CLIENTS_MAX => continue,
                None => {
                    let any = SocketAddr::new(self.front.local_addr()?.ip(), 0);
                    let back = UdpSocket::bind(any)?;
                    let back_port = UdpPort::shared(back.try_clone()?)?;
                    let number = self.clients.len();
                    poller.add(&back_port, TOKEN_CLIENTS + number as u64)?;
                    self.clients.push(Client {
                        address: from,
                        back,
                        back_port,
                        server: self.listener,
                    });
                    self.by_address.insert(from, number);
                    number
                }
            };
            // A request goes to the listener, whatever was agreed before.
            if datagram.starts_with(&[0, 1]) {
                self.clients[client].server = self.listener;
            }
            self.enqueue(Way::ToServer(client), datagram.to_vec());
        }
        Ok(())
    }

    fn take_answers(&mut self, number: usize, inbox: &mut Inbox) -> Result<()> {
        let Some(client) = self.clients.get_mut(number) else {
            return Ok(());
        };
        if client.back_port.receive(inbox, Wait::No)? == 0 {
            client.back_port.unreachable(&mut Vec::new());
        }
        for index in 0..inbox.len() {
            if let Some((from, datagram)) = inbox.get(index) {
                self.clients[number].server = from;
                self.enqueue(Way::ToClient(number), datagram.to_vec());
            }
        }
        Ok(())
    }

    fn enqueue(&mut self, way: Way, datagram: Vec<u8>) {
        let now = Instant::now();
        for delay in self.dice.throw() {
            if self.queue.len() >= QUEUE_MAX {
                self.dice.counts.overrun += 1;
                continue;
            }
            self.number += 1;
            let entry = (now + delay, self.number, way, datagram.clone());
            self.queue.push(Reverse(entry));
        }
    }

    fn deliver(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((due, ..))) = self.queue.peek()
            && *due <= now
        {
            let Some(Reverse((_, _, way, datagram))) = self.queue.pop() else {
                return;
            };
            // What a socket refuses is lost; the ends notice by themselves.
            let _ = match way {
                Way::ToServer(number) => {
                    let client = &self.clients[number];
                    client.back.send_to(&datagram, client.server)
                }
                Way::ToClient(number) => {
                    self.front.send_to(&datagram, self.clients[number].address)
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dice_are_fair_and_repeatable() {
        let trouble = Trouble {
            lost_permille: 100,
            repeated_permille: 50,
            reordered_permille: 200,
            ..Trouble::default()
        };
        let throw = |seed| {
            let mut dice = Dice::new(Trouble { seed, ..trouble });
            let all: Vec<_> = (0..10_000).map(|_| dice.throw().len()).collect();
            (all, dice.counts())
        };
        let (all, counts) = throw(7);
        assert_eq!((all.clone(), counts), throw(7));
        assert_ne!(all, throw(8).0);
        assert!((900..1100).contains(&counts.lost), "{counts:?}");
        assert!((380..520).contains(&counts.repeated), "{counts:?}");
        assert!((1650..1950).contains(&counts.reordered), "{counts:?}");
    }

    #[test]
    fn datagrams_pass_both_ways_and_the_answering_port_is_kept() {
        let bind = || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
            let patience = Some(Duration::from_secs(5));
            socket.set_read_timeout(patience).expect("timeout");
            socket
        };
        let (listener, own, client) = (bind(), bind(), bind());
        let any = "127.0.0.1:0".parse().expect("address");
        let relay = Relay::start(
            any,
            listener.local_addr().expect("address"),
            Trouble::default(),
        )
        .expect("started");
        let mut buffer = [0; 64];
        client.send_to(b"\0\x01ask", relay.address()).expect("sent");
        let (len, from) = listener.recv_from(&mut buffer).expect("asked");
        assert_eq!(&buffer[..len], b"\0\x01ask");
        own.send_to(b"answer", from).expect("sent");
        let (len, from) = client.recv_from(&mut buffer).expect("answered");
        assert_eq!((&buffer[..len], from), (&b"answer"[..], relay.address()));
        client.send_to(b"go on", relay.address()).expect("sent");
        let len = own.recv(&mut buffer).expect("went on");
        assert_eq!(&buffer[..len], b"go on");
        assert_eq!(relay.stop().expect("ran").seen, 3);
    }
}
