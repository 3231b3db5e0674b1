//! HTTPS boot against nginx: the same file, the same kinds of certificate, TLS versions, suite and
//! number of tickets, both with an access log. Both run through all rounds.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use boot::arch::Arch;
use boot::catalog::{Artefact, Kind, Role};
use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};
use sha2::{Digest as _, Sha256};

use super::{Peer, Row, Side, Socket, Target, cpu_of, interleave, plug, program, rss_of, version};
use crate::netns::{GATEWAY_ADDR, Netns};
use crate::run::output;
use crate::site::{Options, Site, site_keys};
use crate::tls_load::{Download, Key, client, content};

const PREFIX: u8 = 16;
const NGINX: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 4);
const LOAD: Ipv4Addr = Ipv4Addr::new(10, 66, 1, 1);
/// Addresses of the clients: one machine each.
const MACHINES: u8 = 64;
const PORT: u16 = 443;

/// What a UKI with its initramfs weighs today.
const FILE: &str = "bench.efi";
const FILE_BYTES: usize = 80 << 20;
/// Clients at once, transfers of each, and the target of the ratio.
const BULK: [(usize, usize, f64); 3] = [(1, 8, 0.6), (8, 2, 0.5), (64, 1, 0.8)];
/// New connections of one measurement, and clients at once that make them.
const CONNECTIONS: usize = 600;
const CONNECTING: usize = 4;
/// What nginx sends by OpenSSL's default; ours must be as many.
const TICKETS: u32 = 2;

/// What one server did in one round.
#[derive(Default)]
struct Measured {
    /// CPU seconds per GB, in the order of [`BULK`].
    bulk: Vec<f64>,
    /// Bytes per second, in the same order, in MB/s.
    rate: Vec<f64>,
    /// The same for 8 clients of TLS 1.2.
    tls12: f64,
    /// Most resident memory with 64 clients, in MiB.
    rss: f64,
    /// CPU microseconds per new connection.
    p256: f64,
    rsa: f64,
}

/// One server and its clients.
struct Server {
    address: SocketAddrV4,
    pid: u32,
    path: String,
    /// The artefact in its memory, in MiB: ours holds it, nginx has the page cache.
    held: f64,
    tls13: Arc<ClientConfig>,
    tls13_rsa: Arc<ClientConfig>,
    tls12: Arc<ClientConfig>,
}

/// Measures.
///
/// # Errors
/// nginx is missing, or a client did not get the file whole and right.
pub fn run(rounds: usize) -> Result<Vec<Row>> {
    let name = version("nginx-light")?;
    let file = content(FILE_BYTES, 0x9e37_79b9_7f4a_7c15);
    let mut site = Site::prepare(
        "bench-https",
        Options {
            prefix: PREFIX,
            ..Options::default()
        },
    )?;
    let sha256 = only_artefact(&site, &file)?;
    site.serve()?;
    let load = plug(&site.run, &site.segment, "load", LOAD, PREFIX)?;
    let [a, b, ..] = LOAD.octets();
    let sources: Vec<Ipv4Addr> = (1..=MACHINES).map(|n| Ipv4Addr::new(a, b, 1, n)).collect();
    for source in &sources[1..] {
        load.ip(&["addr", "add", &format!("{source}/{PREFIX}"), "dev", "eth0"])?;
    }
    let ns = plug(&site.run, &site.segment, "nginx", NGINX, PREFIX)?;
    let (nginx, nginx_ca) = start_nginx(&site, &ns, &file)?;
    let ours = Server::new(
        GATEWAY_ADDR,
        site.pid()?,
        format!("/boot/{sha256}/{FILE}"),
        FILE_BYTES as f64 / MIB,
        &site.ca_dir().join("boot-ca.pem"),
    )?;
    let peer = Server::new(NGINX, nginx.pid(), format!("/{FILE}"), 0.0, &nginx_ca)?;
    let side = |name, server| {
        let (load, sources, file) = (&load, &sources, &file);
        Side::new(name, move |_| measure(server, load, sources, file))
    };
    // Both read the file once and reach their working size.
    for server in [&ours, &peer] {
        load.enter(|| server.download(&sources, &file, &server.tls13).run(8, 1))?;
    }
    let results = interleave(rounds, vec![side("vestibule", &ours), side("nginx", &peer)])?;
    nginx.stop()?;
    let [ours, peer] = &results[..] else {
        unreachable!("two sides give two lists");
    };
    rows(ours, &name, peer)
}

const MIB: f64 = (1 << 20) as f64;

impl Server {
    fn new(address: Ipv4Addr, pid: u32, path: String, held: f64, ca: &Path) -> Result<Self> {
        Ok(Self {
            address: SocketAddrV4::new(address, PORT),
            pid,
            path,
            held,
            tls13: client(ca, &TLS13, Key::P256)?,
            tls13_rsa: client(ca, &TLS13, Key::Rsa)?,
            tls12: client(ca, &TLS12, Key::P256)?,
        })
    }

    fn download<'a>(
        &'a self,
        sources: &'a [Ipv4Addr],
        content: &'a [u8],
        config: &'a Arc<ClientConfig>,
    ) -> Download<'a> {
        Download {
            sources,
            server: self.address,
            path: &self.path,
            content,
            config,
        }
    }
}

fn measure(server: &Server, load: &Netns, sources: &[Ipv4Addr], file: &[u8]) -> Result<Measured> {
    let mut measured = Measured::default();
    let bulk = |clients: usize, each: usize, config| -> Result<(f64, f64)> {
        let gigabytes = (clients * each * file.len()) as f64 / 1e9;
        let started = Instant::now();
        let cpu = timed(server.pid, || {
            load.enter(|| server.download(sources, file, config).run(clients, each))
        })?;
        let wall = (started.elapsed() - SETTLE * 2).as_secs_f64();
        Ok((cpu / gigabytes, gigabytes * 1e3 / wall))
    };
    for (clients, each, _) in BULK {
        let memory = Watched::start(server.pid);
        let (cpu, rate) = bulk(clients, each, &server.tls13)?;
        measured.rss = memory.end() - server.held;
        measured.bulk.push(cpu);
        measured.rate.push(rate);
    }
    measured.tls12 = bulk(8, 2, &server.tls12)?.0;
    let connections = |config| -> Result<f64> {
        let cpu = timed(server.pid, || {
            load.enter(|| {
                let clients = server.download(sources, file, config);
                clients.handshakes(CONNECTING, CONNECTIONS, TICKETS)
            })
        })?;
        Ok(cpu * 1e6 / CONNECTIONS as f64)
    };
    measured.p256 = connections(&server.tls13)?;
    measured.rsa = connections(&server.tls13_rsa)?;
    Ok(measured)
}

/// What a server does after the last answer belongs to the work before it.
const SETTLE: Duration = Duration::from_millis(150);

/// Processor seconds that `work` took of the process.
fn timed(pid: u32, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    std::thread::sleep(SETTLE);
    let before = cpu_of(pid)?;
    work()?;
    std::thread::sleep(SETTLE);
    Ok((cpu_of(pid)? - before).as_secs_f64())
}

/// The most resident memory of a process while this lives, in MiB.
struct Watched {
    most: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Watched {
    fn start(pid: u32) -> Self {
        let (most, done) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (seen, ended) = (Arc::clone(&most), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                seen.fetch_max(rss_of(pid).unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Self { most, done, thread }
    }

    fn end(self) -> f64 {
        self.done.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        self.most.load(Ordering::Relaxed) as f64 / 1024.0
    }
}

fn rows(ours: &[Measured], name: &str, peer: &[Measured]) -> Result<Vec<Row>> {
    let compare = |metric: String, unit, pick: &dyn Fn(&Measured) -> f64, target| {
        let of = |side: &[Measured]| side.iter().map(pick).collect::<Vec<_>>();
        Row::against(metric, unit, &of(ours), name, &of(peer), target)
    };
    let mut rows = Vec::new();
    for (index, (clients, _, ratio)) in BULK.into_iter().enumerate() {
        rows.push(compare(
            format!("80 MiB over TLS 1.3, {clients} client(s), server CPU"),
            "s/GB",
            &|m| m.bulk[index],
            Target::RatioAtMost(ratio),
        )?);
        rows.push(compare(
            format!("80 MiB over TLS 1.3, {clients} client(s), rate of all"),
            "MB/s",
            &|m| m.rate[index],
            Target::Shown,
        )?);
    }
    rows.push(compare(
        "80 MiB over TLS 1.2, 8 clients, server CPU".into(),
        "s/GB",
        &|m| m.tls12,
        Target::Shown,
    )?);
    rows.push(compare(
        "memory with 64 clients, without the file itself".into(),
        "MiB",
        &|m| m.rss,
        Target::RatioAtMost(1.0),
    )?);
    for (kind, pick, ratio) in [
        ("P-256", (|m| m.p256) as fn(&Measured) -> f64, 0.6),
        ("RSA-3072", (|m| m.rsa) as fn(&Measured) -> f64, 0.85),
    ] {
        rows.push(compare(
            format!("new TLS 1.3 connection, {kind}, {TICKETS} tickets, server CPU"),
            "us",
            &pick,
            Target::RatioAtMost(ratio),
        )?);
    }
    Ok(rows)
}

/// Leaves one artefact in the site's catalogue, signed as the others were; its digest. Of the one
/// kind whose programs are no PE images, since only its size matters here.
fn only_artefact(site: &Site, bytes: &[u8]) -> Result<String> {
    let sha256 = hex::encode(Sha256::digest(bytes));
    fs::write(site.image_dir().join(FILE), bytes)?;
    let artefact = Artefact {
        name: "bench".to_owned(),
        kind: Kind::Ipxe,
        role: Role::Provision,
        arch: Arch::X86Bios.as_str().to_owned(),
        version: 1,
        file: FILE.to_owned(),
        sha256: sha256.clone(),
        size_bytes: bytes.len() as u64,
        pe_sha256: "00".repeat(32),
        linux_pe_sha256: None,
        pcr11: None,
        cmdline: None,
    };
    boot_image::assemble::write_catalog(&site.image_dir(), &site_keys()?, vec![artefact])?;
    Ok(sha256)
}

/// nginx with both certificates under a CA of its own; the CA's file.
fn start_nginx(site: &Site, ns: &Netns, file: &[u8]) -> Result<(Peer, PathBuf)> {
    let dir = site.run.dir().join("nginx");
    fs::create_dir_all(dir.join("www"))?;
    fs::write(dir.join("www").join(FILE), file)?;
    make_certificates(&dir)?;
    let path = |name: &str| dir.join(name).display().to_string();
    let config = format!(
        "user root;\n\
         worker_processes auto;\n\
         daemon off;\n\
         pid {pid};\n\
         error_log {errors};\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n\
           access_log {access};\n\
           sendfile on;\n\
           tcp_nopush on;\n\
           client_body_temp_path {temp};\n\
           proxy_temp_path {temp};\n\
           fastcgi_temp_path {temp};\n\
           uwsgi_temp_path {temp};\n\
           scgi_temp_path {temp};\n\
           server {{\n\
             listen {PORT} ssl;\n\
             ssl_certificate {p256}; ssl_certificate_key {p256_key};\n\
             ssl_certificate {rsa}; ssl_certificate_key {rsa_key};\n\
             ssl_protocols TLSv1.2 TLSv1.3;\n\
             ssl_session_tickets on;\n\
             root {www};\n\
           }}\n\
         }}\n",
        pid = path("pid"),
        errors = path("error.log"),
        access = path("access.log"),
        temp = path("temp"),
        p256 = path("p256.pem"),
        p256_key = path("p256.key"),
        rsa = path("rsa.pem"),
        rsa_key = path("rsa.key"),
        www = path("www"),
    );
    fs::write(dir.join("nginx.conf"), config)?;
    let mut command = ns.command(&program("nginx", "nginx-light")?.to_string_lossy());
    command.args(["-p", &dir.to_string_lossy(), "-e", &path("error.log")]);
    command.args(["-c", &path("nginx.conf")]);
    let peer = Peer::start(&site.run, ns, "nginx", &mut command, Socket::Tcp(PORT))?;
    Ok((peer, dir.join("ca.pem")))
}

/// An RSA-3072 CA, a P-256 and an RSA-3072 leaf under it, leaf and root in each chain, as ours.
fn make_certificates(dir: &Path) -> Result<()> {
    let openssl = |words: &[&str]| -> Result<()> {
        let mut command = Command::new("openssl");
        command.args(words).current_dir(dir);
        output(&mut command, Duration::from_secs(60))
            .map(drop)
            .with_context(|| format!("openssl {}", words.join(" ")))
    };
    openssl(&[
        "req",
        "-x509",
        "-newkey",
        "rsa:3072",
        "-nodes",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=peer CA",
        "-days",
        "30",
    ])?;
    let kinds: [(&str, &[&str]); 2] = [
        (
            "p256",
            &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"],
        ),
        ("rsa", &["-newkey", "rsa:3072"]),
    ];
    let san = format!("subjectAltName=IP:{NGINX}");
    for (name, key) in kinds {
        let file = |ext: &str| format!("{name}.{ext}");
        let (key_file, csr, leaf) = (file("key"), file("csr"), file("crt"));
        let mut request = vec!["req", "-nodes", "-subj", "/CN=peer", "-addext", &san];
        request.extend_from_slice(key);
        request.extend(["-keyout", &key_file, "-out", &csr]);
        openssl(&request)?;
        openssl(&[
            "x509",
            "-req",
            "-in",
            &csr,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-copy_extensions",
            "copyall",
            "-days",
            "30",
            "-out",
            &leaf,
        ])?;
        let chain = [fs::read(dir.join(&leaf))?, fs::read(dir.join("ca.pem"))?].concat();
        fs::write(dir.join(file("pem")), chain)?;
    }
    Ok(())
}
