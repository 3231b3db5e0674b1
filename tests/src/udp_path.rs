//! A bad path for UDP in user space: seeded loss, delay, reordering and duplication between one
//! client and one server, both ways. (This kernel may have no netem.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Datagrams on their way at once; further ones are lost, as in a full queue.
const QUEUE_MAX: usize = 65_536;
/// How long nothing may happen before the end is looked for.
const TURN: Duration = Duration::from_millis(20);

/// What the path does to each datagram, in each direction.
#[derive(Debug, Clone, Copy)]
pub struct Trouble {
    /// Lost, of a thousand.
    pub lost: u32,
    /// Delivered twice, of a thousand.
    pub doubled: u32,
    /// Every datagram is on its way this long.
    pub delay: Duration,
    /// And up to this much longer, so that later ones overtake it.
    pub jitter: Duration,
    /// The same seed loses and delays the same datagrams of the same sequence.
    pub seed: u64,
}

/// What it did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Datagrams taken in.
    pub taken: u64,
    /// Lost.
    pub lost: u64,
    /// Delivered twice.
    pub doubled: u64,
    /// Delivered after one that was taken in later.
    pub overtaken: u64,
}

/// One datagram on its way.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due: Instant,
    number: u64,
    to_server: bool,
    bytes: Vec<u8>,
}

/// Carries datagrams between whoever last spoke to `front` and `server`, which hears `back`, until
/// `stop`. Both sockets must not block.
///
/// # Errors
/// A socket fails.
pub fn carry(
    front: &UdpSocket,
    back: &UdpSocket,
    server: SocketAddr,
    trouble: Trouble,
    stop: &AtomicBool,
) -> Result<Counts> {
    let mut counts = Counts::default();
    let mut random = Random(trouble.seed);
    let mut queue: BinaryHeap<Reverse<Waiting>> = BinaryHeap::new();
    let mut client = None;
    let mut newest = 0;
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        while queue.peek().is_some_and(|Reverse(first)| first.due <= now) {
            let Some(Reverse(next)) = queue.pop() else {
                break;
            };
            counts.overtaken += u64::from(next.number < newest);
            newest = newest.max(next.number);
            // A full buffer or a closed port loses it: that is what this path is for.
            let _ = match (next.to_server, client) {
                (true, _) => back.send_to(&next.bytes, server),
                (false, Some(client)) => front.send_to(&next.bytes, client),
                (false, None) => continue,
            };
        }
        let wait = queue.peek().map_or(TURN, |Reverse(first)| {
            first.due.saturating_duration_since(now)
        });
        let mut ready = [
            PollFd::new(front.as_fd(), PollFlags::POLLIN),
            PollFd::new(back.as_fd(), PollFlags::POLLIN),
        ];
        // Milliseconds, rounded up: never early, at most one late.
        let millis = wait.min(TURN).as_micros().div_ceil(1000);
        poll(&mut ready, PollTimeout::try_from(millis)?)?;
        for (socket, to_server) in [(front, true), (back, false)] {
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                if to_server {
                    client = Some(from);
                }
                counts.taken += 1;
                if random.below(1000) < trouble.lost || queue.len() >= QUEUE_MAX {
                    counts.lost += 1;
                    continue;
                }
                let copies = 1 + u32::from(random.below(1000) < trouble.doubled);
                counts.doubled += u64::from(copies - 1);
                for _ in 0..copies {
                    let extra = trouble
                        .jitter
                        .mul_f64(f64::from(random.below(1000)) / 1000.0);
                    queue.push(Reverse(Waiting {
                        due: Instant::now() + trouble.delay + extra,
                        number: counts.taken,
                        to_server,
                        bytes: buffer[..len].to_vec(),
                    }));
                }
            }
        }
    }
    Ok(counts)
}

/// SplitMix64: small, seeded, the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(bound)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// What a server behind the path hears of 2000 numbered datagrams, and what the path counted.
    fn heard(trouble: Trouble) -> (Vec<u32>, Counts) {
        let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (client, front, back, server) = (bind(), bind(), bind(), bind());
        for socket in [&front, &back] {
            socket.set_nonblocking(true).unwrap();
        }
        server
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let stop = AtomicBool::new(false);
        let to = server.local_addr().unwrap();
        std::thread::scope(|scope| {
            let path = scope.spawn(|| carry(&front, &back, to, trouble, &stop).unwrap());
            let sender = scope.spawn(|| {
                for number in 0..2000u32 {
                    client
                        .send_to(&number.to_be_bytes(), front.local_addr().unwrap())
                        .unwrap();
                    if number % 16 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            let mut list = Vec::new();
            let mut buffer = [0; 16];
            while let Ok(len) = server.recv(&mut buffer) {
                assert_eq!(len, 4);
                list.push(u32::from_be_bytes([
                    buffer[0], buffer[1], buffer[2], buffer[3],
                ]));
            }
            sender.join().unwrap();
            stop.store(true, Ordering::Relaxed);
            (list, path.join().unwrap())
        })
    }

    #[test]
    fn it_loses_doubles_and_reorders_and_says_how_much() {
        let trouble = Trouble {
            lost: 50,
            doubled: 50,
            delay: Duration::from_millis(1),
            jitter: Duration::from_millis(3),
            seed: 7,
        };
        let (list, counts) = heard(trouble);
        assert_eq!(counts.taken, 2000);
        assert!((50..200).contains(&counts.lost), "{counts:?}");
        assert!((50..200).contains(&counts.doubled), "{counts:?}");
        assert!(counts.overtaken > 20, "{counts:?}");
        let mut times: BTreeMap<u32, u64> = BTreeMap::new();
        for number in &list {
            *times.entry(*number).or_default() += 1;
        }
        assert_eq!(times.len() as u64, 2000 - counts.lost);
        assert_eq!(list.len() as u64, 2000 - counts.lost + counts.doubled);
        assert!(list.windows(2).any(|pair| pair[0] > pair[1]));
    }

    #[test]
    fn without_trouble_everything_comes_in_order() {
        let trouble = Trouble {
            lost: 0,
            doubled: 0,
            delay: Duration::from_millis(1),
            jitter: Duration::ZERO,
            seed: 1,
        };
        let (list, counts) = heard(trouble);
        assert_eq!((counts.lost, counts.doubled, counts.overtaken), (0, 0, 0));
        assert_eq!(list, (0..2000).collect::<Vec<_>>());
    }
}
