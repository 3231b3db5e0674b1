//! A thousand slow TLS clients at the boot port, and one machine that boots meanwhile.
//!
//! Four kinds, each as slow as it can be without being dropped at once: one says nothing, one sends
//! its ClientHello byte by byte, one its request, one takes an image by a few hundred bytes. Who is
//! dropped comes back. More of them than there are places: then they lose theirs, the machine not.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use boot::catalog::Kind;
use rustls::ClientConfig;
use rustls::version::TLS13;

use super::bounded::Figures;
use crate::netns::{GATEWAY_ADDR, Netns};
use crate::report::Report;
use crate::sim::mac;
use crate::site::{Options, Site};
use crate::tls_load::{Connection, Key, client, connect_from};

const PREFIX: u8 = 16;
const BOOT_PORT: u16 = 443;
const SERVER: SocketAddrV4 = SocketAddrV4::new(GATEWAY_ADDR, BOOT_PORT);
/// Addresses of the slow ones: 1,400 clients, below the 16 of one address.
const ADDRESSES: u8 = 100;
/// What fits into the listener's bound, and what does not.
const CROWDS: [usize; 2] = [1_000, 1_400];
const TICK: Duration = Duration::from_secs(1);
/// Boots of the good machine that its p99 is taken of.
const BOOTS: usize = 200;
/// It fetches this much of the image: iPXE's size.
const PART_BYTES: usize = 1 << 20;
/// p99 of connecting, shaking hands and fetching: far below firmware's patience of seconds.
const P99_MAX: Duration = Duration::from_millis(1_000);
/// Growth of the daemon: 1,024 places of at most 64 KiB of records to send and 16 KiB of state.
const GROWTH_MAX_KIB: u64 = 96 * 1024;

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made.
pub fn run(report: &Report) -> Result<()> {
    let mut site = Site::prepare(
        "slow",
        Options {
            prefix: PREFIX,
            ..Options::default()
        },
    )?;
    site.serve()?;
    crowds(report, &site, &CROWDS).map(drop)
}

/// One crowd after the other; the machine alone before the first.
///
/// # Errors
/// A namespace cannot be made, or the machine does not boot at all.
pub(super) fn crowds(report: &Report, site: &Site, sizes: &[usize]) -> Result<Vec<Figures>> {
    let slow = site.segment.plug(&site.run, "slow", mac(201))?;
    let sources: Vec<Ipv4Addr> = (1..=ADDRESSES)
        .map(|n| Ipv4Addr::new(10, 66, 2, n))
        .collect();
    for source in &sources {
        slow.ip(&["addr", "add", &format!("{source}/{PREFIX}"), "dev", "eth0"])?;
    }
    let good = site.segment.plug(&site.run, "good", mac(202))?;
    good.ip(&["addr", "add", &format!("10.66.3.1/{PREFIX}"), "dev", "eth0"])?;
    let artefacts = site.artefacts()?;
    let uki = artefacts
        .iter()
        .find(|a| a.kind == Kind::Uki)
        .context("no UKI")?;
    let image = std::fs::read(site.image_dir().join(&uki.file))?;
    let path = format!("/boot/{}/{}", uki.sha256, uki.file);
    let config = client(&site.ca_dir().join("boot-ca.pem"), &TLS13, Key::P256)?;
    let machine = Machine {
        ns: &good,
        path: &path,
        part: &image[..PART_BYTES.min(image.len())],
        config: &config,
    };
    let quiet = machine.boots(BOOTS)?;
    let before = site.memory_kib().context("no memory figure")?.0;
    report.note(format!(
        "nobody else: {BOOTS} boots, p50 {:?}, p99 {:?}; daemon {before} KiB",
        quiet.p50, quiet.p99
    ));
    let mut all = Vec::with_capacity(sizes.len());
    for &crowd in sizes {
        let work = Crowd {
            ns: &slow,
            sources: &sources,
            path: &path,
            config: &config,
            size: crowd,
            open: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            done: AtomicBool::new(false),
        };
        let (boots, memory) = work.around(|| {
            let boots = machine.boots(BOOTS)?;
            Ok((boots, site.memory_kib().context("no memory figure")?))
        })?;
        let (open, dropped) = (
            work.open.load(Ordering::Relaxed),
            work.dropped.load(Ordering::Relaxed),
        );
        report.note(format!(
            "{crowd} slow clients ({open} in, {dropped} dropped and back): {BOOTS} boots, p50 {:?}, \
             p99 {:?}, {} tried again; daemon {} KiB, most {} KiB",
            boots.p50, boots.p99, boots.again, memory.0, memory.1
        ));
        report.check(
            &format!("{crowd} slow clients: the machine boots in time"),
            check(boots.p99 <= P99_MAX, || format!("p99 {:?}", boots.p99)),
        );
        report.check(&format!("{crowd} slow clients: memory stays bounded"), {
            let grown = memory.1.saturating_sub(before);
            check(grown <= GROWTH_MAX_KIB, || format!("{grown} KiB more"))
        });
        all.push(Figures {
            what: format!("{crowd} slow TLS clients"),
            before_kib: before,
            after_kib: memory.0,
            alone_ms: quiet.p99.as_secs_f64() * 1e3,
            during_ms: boots.p99.as_secs_f64() * 1e3,
        });
    }
    Ok(all)
}

fn check(held: bool, why: impl FnOnce() -> String) -> Result<()> {
    ensure!(held, "{}", why());
    Ok(())
}

/// The one that means it.
struct Machine<'a> {
    ns: &'a Netns,
    path: &'a str,
    part: &'a [u8],
    config: &'a Arc<ClientConfig>,
}

struct Boots {
    p50: Duration,
    p99: Duration,
    /// Connections that were refused and made again; the time counts.
    again: usize,
}

impl Machine<'_> {
    fn boots(&self, count: usize) -> Result<Boots> {
        self.ns.enter(|| {
            let (mut times, mut again) = (Vec::with_capacity(count), 0);
            for _ in 0..count {
                let started = Instant::now();
                while let Err(error) = self.boot() {
                    again += 1;
                    ensure!(again < count, "{again} failures: {error:#}");
                }
                times.push(started.elapsed());
            }
            times.sort();
            let at = |percent: usize| times[(times.len() - 1) * percent / 100];
            Ok(Boots {
                p50: at(50),
                p99: at(99),
                again,
            })
        })
    }

    /// One connection, one part of the image, every byte compared.
    fn boot(&self) -> Result<()> {
        let mut connection = Connection::open(None, SERVER, self.config.clone())?;
        let last = self.part.len() - 1;
        let path = self.path;
        connection.send(
            format!("GET {path} HTTP/1.1\r\nHost: boot\r\nRange: bytes=0-{last}\r\n\r\n")
                .as_bytes(),
        )?;
        let status = connection.response(self.part)?;
        ensure!(status == 206, "status {status}");
        connection.close()
    }
}

/// The slow ones.
struct Crowd<'a> {
    ns: &'a Netns,
    sources: &'a [Ipv4Addr],
    path: &'a str,
    config: &'a Arc<ClientConfig>,
    size: usize,
    open: AtomicU64,
    dropped: AtomicU64,
    done: AtomicBool,
}

/// One slow connection.
enum Slow {
    Silent(TcpStream),
    Hello(TcpStream, usize),
    Request(Box<Connection>),
    Reader(Box<Connection>),
}

const THREADS: usize = 4;
/// A record of a ClientHello that says it is 512 bytes long, whose rest never comes whole.
const HELLO: [u8; 6] = [22, 3, 1, 2, 0, 1];

impl Crowd<'_> {
    /// Does `work` once the crowd is in, and lets it go afterwards.
    fn around<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || self.ns.enter(|| self.crawl(thread)));
            }
            // Two rounds of everybody: who has a place has it, who lost it has lost it once.
            let started = Instant::now();
            while self.open.load(Ordering::Relaxed) < self.size.min(1_000) as u64 * 9 / 10
                && started.elapsed() < Duration::from_secs(60)
            {
                std::thread::sleep(Duration::from_millis(100));
            }
            std::thread::sleep(TICK * 2);
            let result = work();
            self.done.store(true, Ordering::Relaxed);
            result
        })
    }

    /// One thread's share: all of them move a little once a second.
    fn crawl(&self, thread: usize) -> Result<()> {
        let mut own: Vec<(usize, Option<Slow>)> = (thread..self.size)
            .step_by(THREADS)
            .map(|number| (number, None))
            .collect();
        while !self.done.load(Ordering::Relaxed) {
            let started = Instant::now();
            for (number, slow) in &mut own {
                if self.done.load(Ordering::Relaxed) {
                    break;
                }
                let alive = slow.as_mut().map(|slow| slow.crawl().is_ok());
                match alive {
                    Some(true) => {}
                    Some(false) => {
                        *slow = None;
                        self.open.fetch_sub(1, Ordering::Relaxed);
                        self.dropped.fetch_add(1, Ordering::Relaxed);
                    }
                    None => {
                        *slow = self.start(*number).ok();
                        self.open
                            .fetch_add(u64::from(slow.is_some()), Ordering::Relaxed);
                    }
                }
            }
            std::thread::sleep(TICK.saturating_sub(started.elapsed()));
        }
        Ok(())
    }

    fn start(&self, number: usize) -> Result<Slow> {
        let source = Some(self.sources[number % self.sources.len()]);
        let shaken = || Connection::open(source, SERVER, self.config.clone()).map(Box::new);
        let slow = match number / THREADS % 4 {
            0 => Slow::Silent(connect_from(source, SERVER)?),
            1 => Slow::Hello(connect_from(source, SERVER)?, 0),
            2 => Slow::Request(shaken()?),
            _ => {
                let mut connection = shaken()?;
                let path = self.path;
                connection.send(format!("GET {path} HTTP/1.1\r\nHost: slow\r\n\r\n").as_bytes())?;
                Slow::Reader(connection)
            }
        };
        slow.socket().set_nonblocking(true)?;
        Ok(slow)
    }
}

impl Slow {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Silent(socket) | Self::Hello(socket, _) => socket,
            Self::Request(connection) | Self::Reader(connection) => connection.socket(),
        }
    }

    /// A little; an error when the server has dropped us.
    fn crawl(&mut self) -> Result<()> {
        if let Self::Hello(socket, sent) = self {
            socket.write_all(&[HELLO.get(*sent).copied().unwrap_or(0)])?;
            *sent += 1;
        }
        if let Self::Request(connection) = self {
            connection.send(b"G")?;
        }
        // A few bytes, whoever sends some; what is no longer there is found out here.
        let mut few = [0; 256];
        let mut socket = self.socket();
        match socket.read(&mut few) {
            Ok(0) => anyhow::bail!("dropped"),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crowd_is_below_the_bound_of_one_address_and_beyond_that_of_all() {
        let bounds = gateway::shell::listen::BOOT;
        let most = CROWDS[1].div_ceil(usize::from(ADDRESSES));
        assert!(most <= bounds.per_peer_max);
        assert!(CROWDS[0] < bounds.connections_max && CROWDS[1] > bounds.connections_max);
    }
}
