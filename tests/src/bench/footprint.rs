//! Footprint: memory at rest and in a storm, size of the program, time from power-on of the
//! process to serving; beside dnsmasq and nginx, which together do part of the same, at rest.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use boot::catalog::{Artefact, Kind};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use sha2::{Digest as _, Sha256};

use super::{
    Peer, Row, Side, Socket, Target, interleave, peak_rss_of, plug, program, rss_of, version,
};
use crate::dhcp_load::Load;
use crate::http::Tls;
use crate::netns::{GATEWAY_ADDR, Netns};
use crate::run::output;
use crate::site::{Options, Site};

const PREFIX: u8 = 16;
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 250);
/// The first of the machines that download.
const MACHINES: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 100);
const PEERS: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
const POOL: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(10, 66, 64, 0), Ipv4Addr::new(10, 66, 79, 255));
/// After this long a server that was just started is at rest.
const REST: Duration = Duration::from_secs(2);
/// The storm: DHCP clients, TFTP transfers and HTTPS downloads at once.
const STORM: (u32, usize, usize) = (640, 200, 64);
const FETCH_LIMIT: Duration = Duration::from_secs(120);

/// One round of ours.
struct Ours {
    idle_mib: f64,
    /// After the storm, with the artefacts it fetched.
    used_mib: f64,
    storm_mib: f64,
    serving_ms: f64,
    seal_ms: f64,
}

/// Measures.
///
/// # Errors
/// A peer is missing, or a machine of the storm is not served whole.
pub fn run(rounds: usize) -> Result<Vec<Row>> {
    let peer_name = format!("{} + {}", version("dnsmasq-base")?, version("nginx-light")?);
    let mut site = Site::prepare(
        "bench-footprint",
        Options {
            prefix: PREFIX,
            pool: POOL,
            // As the peers run: an ARP probe would wait 200 ms for each new address.
            conflict_probe_ms: 0,
            ..Options::default()
        },
    )?;
    let relay = plug(&site.run, &site.segment, "relay", RELAY, PREFIX)?;
    for number in 0..STORM.2 {
        let addr = format!("{}/{PREFIX}", machine(number));
        relay.ip(&["addr", "add", &addr, "dev", "eth0"])?;
    }
    let beside = plug(&site.run, &site.segment, "peers", PEERS, PREFIX)?;
    let artefacts = site.artefacts()?;
    let held: u64 = artefacts.iter().map(|artefact| artefact.size_bytes).sum();
    let site = std::cell::RefCell::new(&mut site);
    let mut ours = Vec::new();
    let idle = interleave(
        rounds,
        vec![
            Side::new("vestibule", |round| {
                let round = round as u32;
                let measured = ours_round(&mut site.borrow_mut(), &relay, &artefacts, round)?;
                let idle = measured.idle_mib;
                ours.push(measured);
                Ok(idle)
            }),
            Side::new("dnsmasq and nginx", |_| peers_idle(&site.borrow(), &beside)),
        ],
    )?;
    let of = |pick: fn(&Ours) -> f64| -> Vec<f64> { ours.iter().map(pick).collect() };
    let program = crate::programs::vestibule()?;
    let size = fs::metadata(&program)?.len() as f64 / 1e6;
    let held = held as f64 / f64::from(1 << 20);
    let (clients, tftp, https) = STORM;
    Ok(vec![
        Row::against(
            "RSS at rest",
            "MiB",
            &idle[0],
            peer_name,
            &idle[1],
            Target::AtMost(24.0),
        )?,
        Row::alone(
            "RSS after the storm, artefacts still held",
            "MiB",
            &of(|m| m.used_mib),
            Target::Shown,
        )?,
        Row::alone(
            "artefacts, all of the catalogue",
            "MiB",
            &[held],
            Target::Shown,
        )?,
        Row::alone(
            format!("peak RSS, {clients} DHCP, {tftp} TFTP, {https} HTTPS at once"),
            "MiB",
            &of(|m| m.storm_mib),
            Target::AtMost(96.0),
        )?,
        Row::alone("program, stripped", "MB", &[size], Target::AtMost(12.0))?,
        Row::alone(
            "start of the process to serving, without the TPM",
            "ms",
            &of(|m| m.serving_ms - m.seal_ms),
            Target::AtMost(1000.0),
        )?,
        Row::alone(
            "opening the seal (software TPM)",
            "ms",
            &of(|m| m.seal_ms),
            Target::Shown,
        )?,
    ])
}

fn ours_round(site: &mut Site, relay: &Netns, artefacts: &[Artefact], round: u32) -> Result<Ours> {
    let logged = site.log().len();
    let serving = site.serve()?;
    let pid = site.pid()?;
    let seal_ms = seal_ms(&site.log()[logged..])?;
    std::thread::sleep(REST);
    let mib = |kib: u64| kib as f64 / 1024.0;
    let idle_mib = mib(rss_of(pid)?);
    storm(site, relay, artefacts, round)?;
    let storm_mib = mib(peak_rss_of(pid)?);
    let used_mib = mib(rss_of(pid)?);
    site.stop()?;
    Ok(Ours {
        idle_mib,
        used_mib,
        storm_mib,
        serving_ms: serving.as_secs_f64() * 1000.0,
        seal_ms,
    })
}

/// How long the TPM took, from the daemon's log of this start.
fn seal_ms(log: &str) -> Result<f64> {
    log.lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find(|event| event["message"] == "seal opened")
        .and_then(|event| event["ms"].as_f64())
        .context("the log of the start does not say how long the TPM took")
}

/// Everything at once: leases, iPXE by TFTP, the UKI by HTTPS; every byte checked.
fn storm(site: &Site, relay: &Netns, artefacts: &[Artefact], round: u32) -> Result<()> {
    let of = |kind| {
        let mut list = artefacts.iter().filter(|artefact| artefact.kind == kind);
        list.next().with_context(|| format!("no {kind:?}"))
    };
    let (ipxe, uki) = (of(Kind::Ipxe)?, of(Kind::Uki)?);
    let original = fs::read(site.image_dir().join(&ipxe.file))?;
    let tls = Tls {
        ca_pem: site.ca_dir().join("boot-ca.pem"),
        identity: None,
    };
    let tls = tls.config()?;
    let (clients, transfers, downloads) = STORM;
    let load = Load {
        server: GATEWAY_ADDR,
        local: RELAY,
        giaddr: RELAY,
        first: round * clients,
        count: clients,
        in_flight: clients as usize,
        patience: Duration::from_secs(2),
        tries: 4,
        limit: FETCH_LIMIT,
    };
    std::thread::scope(|scope| {
        let leases = scope.spawn(|| relay.enter(|| load.run())?.check());
        let files: Vec<_> = (0..transfers)
            .map(|_| {
                scope.spawn(|| {
                    let file =
                        patiently(|| relay.enter(|| crate::pxe::tftp(GATEWAY_ADDR, &ipxe.file)))?;
                    ensure!(file == original, "{}: content differs", ipxe.file);
                    Ok(())
                })
            })
            .chain((0..downloads).map(|number| {
                let (tls, from) = (&tls, machine(number));
                scope.spawn(move || relay.enter(|| download(tls, uki, from)))
            }))
            .collect();
        let results = std::iter::once(leases).chain(files).map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        // All of them end before the first error is told.
        results.collect::<Vec<Result<()>>>().into_iter().collect()
    })
}

/// All clients have the relay's address, so the bound of one client turns some away; they ask again,
/// as firmware does.
fn patiently<T>(fetch: impl Fn() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        match fetch() {
            Err(error)
                if error.to_string().contains("too many transfers")
                    && started.elapsed() < FETCH_LIMIT =>
            {
                std::thread::sleep(Duration::from_millis(100));
            }
            done => return done,
        }
    }
}

/// Address of one machine that downloads: a peer has few connections, so each has its own.
fn machine(number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(MACHINES.to_bits() + number as u32)
}

fn connect_from(from: Ipv4Addr, port: u16) -> Result<TcpStream> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
    let fd = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let raw = std::os::fd::AsRawFd::as_raw_fd(&fd);
    bind(raw, &SockaddrIn::from(SocketAddrV4::new(from, 0)))
        .with_context(|| format!("cannot bind {from}"))?;
    let to = SocketAddrV4::new(GATEWAY_ADDR, port);
    connect(raw, &SockaddrIn::from(to)).with_context(|| format!("cannot connect to {to}"))?;
    Ok(TcpStream::from(fd))
}

/// One download, hashed as it comes.
fn download(tls: &Arc<ClientConfig>, uki: &Artefact, from: Ipv4Addr) -> Result<()> {
    let addr = SocketAddr::from((GATEWAY_ADDR, 443));
    let tcp = connect_from(from, 443)?;
    tcp.set_read_timeout(Some(FETCH_LIMIT))?;
    let name = ServerName::IpAddress(addr.ip().into());
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::clone(tls), name)?, tcp);
    let path = format!("/boot/{}/{}", uki.sha256, uki.file);
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n"
    )?;
    let (mut digest, mut size) = (Sha256::new(), 0);
    let mut head: Option<Vec<u8>> = Some(Vec::new());
    let mut buffer = vec![0; 65_536];
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        let mut body = &buffer[..len];
        let rest;
        if let Some(mut begun) = head.take() {
            begun.extend(body);
            let Some(end) = begun.windows(4).position(|four| four == b"\r\n\r\n") else {
                head = Some(begun);
                continue;
            };
            ensure!(
                begun.starts_with(b"HTTP/1.1 200"),
                "GET {path}: {}",
                String::from_utf8_lossy(&begun[..end])
            );
            rest = begun.split_off(end + 4);
            body = &rest;
        }
        digest.update(body);
        size += body.len() as u64;
    }
    ensure!(
        size == uki.size_bytes && hex::encode(digest.finalize()) == uki.sha256,
        "{}: content differs, {size} of {} bytes",
        uki.file,
        uki.size_bytes
    );
    Ok(())
}

/// Memory of both peers at rest, in MiB.
fn peers_idle(site: &Site, ns: &Netns) -> Result<f64> {
    let dir = site.run.dir().join("peers");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    let dnsmasq = program("dnsmasq", "dnsmasq-base")?;
    let mut command = ns.command(&dnsmasq.to_string_lossy());
    command
        .args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0"])
        .args(["--interface=eth0", "--bind-interfaces", "--user=root"])
        .arg(format!("--dhcp-range={},{},255.255.0.0,1h", POOL.0, POOL.1))
        .arg(format!("--dhcp-leasefile={}", dir.join("leases").display()))
        .arg(format!("--log-facility={}", dir.join("log").display()))
        .args(["--pid-file=", "--enable-tftp", "--dhcp-boot=ipxe.efi"])
        .arg(format!("--tftp-root={}", site.image_dir().display()));
    let dnsmasq = Peer::start(&site.run, ns, "dnsmasq", &mut command, Socket::Udp(67))?;
    let nginx = start_nginx(site, ns, &dir)?;
    std::thread::sleep(REST);
    let kib = rss_of(dnsmasq.pid())? + rss_of(nginx.pid())?;
    nginx.stop()?;
    dnsmasq.stop()?;
    Ok(kib as f64 / 1024.0)
}

fn start_nginx(site: &Site, ns: &Netns, dir: &Path) -> Result<Peer> {
    let path = program("nginx", "nginx-light")?;
    let file = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let mut certificate = Command::new("openssl");
    certificate
        .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"])
        .args([
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-subj",
            "/CN=peer",
        ])
        .args(["-keyout", &file("key.pem"), "-out", &file("cert.pem")]);
    output(&mut certificate, Duration::from_secs(20))?;
    let config = format!(
        "user root;\nworker_processes auto;\npid {dir}/nginx.pid;\nerror_log {dir}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log {dir}/access.log;\n  sendfile on;\n\
         server {{ listen 443 ssl; root {images};\n    ssl_certificate {dir}/cert.pem;\n\
         ssl_certificate_key {dir}/key.pem; }}\n}}\n",
        dir = dir.display(),
        images = site.image_dir().display(),
    );
    fs::write(file("nginx.conf"), config)?;
    let mut command = ns.command(&path.to_string_lossy());
    command
        .args(["-c", &file("nginx.conf"), "-e", &file("error.log")])
        .args(["-g", "daemon off;"]);
    Peer::start(&site.run, ns, "nginx", &mut command, Socket::Tcp(443))
}
