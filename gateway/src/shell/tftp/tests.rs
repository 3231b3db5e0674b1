//! The listener against real clients on loopback: tftp-hpa, atftp, busybox, curl; and against raw
//! datagrams where no client does it on purpose. A client that is not installed prints `SKIP`.
//! What does not depend on the ports is run with one port and with a port each.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Instant;

use netstack::tftp::{Outcome, Packet, Stats};
use tokio::net::UdpSocket;

use super::*;

const BOTH: [Ports; 2] = [Ports::One, Ports::Ephemeral];

/// Files by name; records what the listener reports.
struct Files {
    contents: HashMap<&'static str, Bytes>,
    reports: Mutex<Vec<Report>>,
    refused: Mutex<Vec<&'static str>>,
}

impl FileSource for Files {
    async fn open(&self, _peer: SocketAddr, name: &str) -> Result<Bytes, ErrorReply> {
        if name == "never" {
            std::future::pending::<()>().await;
        }
        let found = self.contents.get(name.trim_start_matches('/')).cloned();
        found.ok_or_else(|| ErrorReply::new(ErrorCode::FileNotFound, "no such boot file"))
    }

    fn finished(&self, report: &Report) {
        self.reports.lock().unwrap().push(report.clone());
    }

    fn refused(&self, _peer: SocketAddr, code: &'static str) {
        self.refused.lock().unwrap().push(code);
    }
}

struct Served {
    addr: SocketAddr,
    files: Arc<Files>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<io::Result<()>>,
}

impl Served {
    async fn start(ports: Ports) -> Self {
        Self::bounded(ports, Bounds::default()).await
    }

    async fn bounded(ports: Ports, bounds: Bounds) -> Self {
        let contents = HashMap::from([
            ("small.efi", pattern(3000)),
            ("empty", Bytes::new()),
            ("exact", pattern(512 * 4)),
            ("middle.img", pattern(777_777)),
            ("big.img", pattern(34 << 20)),
            ("note.txt", Bytes::from_static(b"one\ntwo\r\nthree")),
        ]);
        let files = Arc::new(Files {
            contents,
            reports: Mutex::default(),
            refused: Mutex::default(),
        });
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let addr = socket.local_addr().unwrap();
        let stop = CancellationToken::new();
        let options = Options { bounds, ports };
        let task = tokio::spawn(serve(socket, files.clone(), options, stop.clone()));
        Self {
            addr,
            files,
            stop,
            task,
        }
    }

    /// Stops and returns the ends of all transfers.
    async fn ends(self) -> Vec<(String, End, Stats)> {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
        let reports = std::mem::take(&mut *self.files.reports.lock().unwrap());
        reports
            .into_iter()
            .map(|r| (r.name, r.end, r.stats))
            .collect()
    }
}

fn pattern(len: usize) -> Bytes {
    (0..len)
        .map(|i| (i / 7 % 253) as u8)
        .collect::<Vec<_>>()
        .into()
}

/// Runs a client without blocking the listener; `None` and a SKIP line when it is not installed.
async fn run(mut command: Command) -> Option<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    match tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
    {
        Ok(output) => Some(output),
        Err(error) => {
            println!("SKIP {program} is not installed: {error}");
            None
        }
    }
}

fn tftp_hpa(addr: SocketAddr, name: &str, to: &Path) -> Command {
    let mut command = Command::new("tftp");
    command
        .args([
            "-m",
            "binary",
            "127.0.0.1",
            &addr.port().to_string(),
            "-c",
            "get",
            name,
        ])
        .arg(to);
    command
}

fn busybox(addr: SocketAddr, block_len: u16, name: &str, to: &Path) -> Command {
    let mut command = Command::new("busybox");
    command
        .args(["tftp", "-g", "-b", &block_len.to_string(), "-r", name, "-l"])
        .arg(to);
    command.args(["127.0.0.1", &addr.port().to_string()]);
    command
}

fn curl(addr: SocketAddr, options: &[&str], name: &str, to: &Path) -> Command {
    let mut command = Command::new("curl");
    command
        .args(["-s", "-S", "-m", "60"])
        .args(options)
        .arg("-o")
        .arg(to);
    command.arg(format!("tftp://{addr}/{name}"));
    command
}

fn netascii_hpa(addr: SocketAddr, name: &str, to: &Path) -> Command {
    let mut command = Command::new("tftp");
    let port = addr.port().to_string();
    command
        .args(["-m", "ascii", "127.0.0.1", &port, "-c", "get", name])
        .arg(to);
    command
}

fn netascii_atftp(addr: SocketAddr, name: &str, to: &Path) -> Command {
    atftp(addr, &["mode netascii"], name, to)
}

fn atftp(addr: SocketAddr, options: &[&str], name: &str, to: &Path) -> Command {
    let mut command = Command::new("atftp");
    for option in options {
        command.args(["--option", option]);
    }
    command.args(["--get", "-r", name, "-l"]).arg(to);
    command.args(["127.0.0.1", &addr.port().to_string()]);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn common_clients_fetch_files() {
    for ports in BOTH {
        let served = Served::start(ports).await;
        let dir = tempfile::tempdir().unwrap();
        let mut fetched = 0;
        for name in ["small.efi", "empty", "exact", "middle.img"] {
            let to = dir.path().join(name);
            let clients = [
                tftp_hpa(served.addr, name, &to),
                busybox(served.addr, 512, name, &to),
                busybox(served.addr, 1468, name, &to),
                busybox(served.addr, 65464, name, &to),
                curl(served.addr, &[], name, &to),
                curl(served.addr, &["--tftp-blksize", "1428"], name, &to),
                curl(served.addr, &["--tftp-no-options"], name, &to),
                atftp(served.addr, &[], name, &to),
                atftp(served.addr, &["blksize 1428", "tsize 0"], name, &to),
                atftp(
                    served.addr,
                    &["blksize 1428", "windowsize 16", "timeout 2"],
                    name,
                    &to,
                ),
            ];
            for client in clients {
                let line = format!("{client:?}");
                // curl 7.88 fails on an empty file from any server (dnsmasq tried): getpeername().
                if name == "empty" && line.contains("curl") {
                    continue;
                }
                let _ = std::fs::remove_file(&to);
                let Some(output) = run(client).await else {
                    continue;
                };
                assert!(output.status.success(), "{ports:?} {line}: {output:?}");
                let got = std::fs::read(&to).unwrap();
                assert!(
                    got == served.files.contents[name],
                    "{ports:?} {line}: {} bytes",
                    got.len()
                );
                fetched += 1;
            }
        }
        let ends = served.ends().await;
        println!("{ports:?}: {fetched} files fetched whole");
        // On a busy machine a client may ask twice before it hears of the first.
        let again = |end: &End| *end == End::Superseded;
        let (again, ends): (Vec<_>, Vec<_>) = ends.into_iter().partition(|(_, end, _)| again(end));
        assert_eq!(ends.len(), fetched, "and {} asked again", again.len());
        for (name, end, _) in ends {
            assert_eq!(end, End::Protocol(Outcome::Complete), "{ports:?} {name}");
        }
    }
}

/// 34 MiB at 512 bytes: block numbers pass 65535, where servers that count in 16 bits stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_file_rolls_over() {
    let served = Served::start(Ports::default()).await;
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("big.img");
    let client = curl(served.addr, &["--tftp-no-options"], "big.img", &to);
    let started = Instant::now();
    let Some(output) = run(client).await else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
    println!(
        "34 MiB in lock step, 512 bytes a block: {} ms",
        started.elapsed().as_millis()
    );
    assert!(std::fs::read(&to).unwrap() == served.files.contents["big.img"]);
    let ends = served.ends().await;
    let [(_, end, stats)] = &ends[..] else {
        panic!("{ends:?}")
    };
    assert_eq!(*end, End::Protocol(Outcome::Complete));
    assert!(stats.rolled_over);
    assert_eq!(stats.acked_len, 34 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn netascii_and_missing_files() {
    let bounds = Bounds {
        netascii_len_max: 100,
        ..Bounds::default()
    };
    let served = Served::bounded(Ports::default(), bounds).await;
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("note.txt");
    let ascii = |name: &str| curl(served.addr, &["--use-ascii"], name, &to);
    // curl asks in octet mode unless the URL says otherwise; it does not convert line ends.
    let Some(output) = run(ascii("note.txt;mode=netascii")).await else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read(&to).unwrap(), b"one\r\ntwo\r\0\r\nthree");
    let mut asks = 1;
    for client in [
        netascii_hpa(served.addr, "note.txt", &to),
        netascii_atftp(served.addr, "note.txt", &to),
    ] {
        let _ = std::fs::remove_file(&to);
        let line = format!("{client:?}");
        let Some(output) = run(client).await else {
            continue;
        };
        assert!(output.status.success(), "{line}: {output:?}");
        assert_eq!(std::fs::read(&to).unwrap(), b"one\ntwo\r\nthree", "{line}");
        asks += 1;
    }
    let output = run(ascii("small.efi;mode=netascii")).await.unwrap();
    assert!(!output.status.success());
    let output = run(curl(served.addr, &[], "autoexec.ipxe", &to))
        .await
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(68),
        "curl's code for file not found: {output:?}"
    );
    let ends = served.ends().await;
    let codes: Vec<_> = ends.iter().map(|(_, end, _)| end.code()).collect();
    let mut want = vec!["tftp.complete"; asks];
    want.extend(["tftp.refused", "tftp.refused"]);
    assert_eq!(codes, want);
}

#[tokio::test]
async fn rejects_writes() {
    let served = Served::start(Ports::default()).await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client
        .send_to(b"\0\x02x\0octet\0", served.addr)
        .await
        .unwrap();
    let reply = receive(&client).await.0;
    let Ok(Packet::Error(error)) = Packet::parse(&reply) else {
        panic!("{reply:?}")
    };
    assert_eq!(error.code, ErrorCode::AccessViolation);
    let files = served.files.clone();
    assert!(served.ends().await.is_empty());
    assert_eq!(*files.refused.lock().unwrap(), ["tftp.write"]);
}

async fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 2048];
    let received = tokio::time::timeout(Duration::from_secs(5), socket.recv_from(&mut buffer));
    let (len, from) = received.await.expect("a datagram in time").unwrap();
    (buffer[..len].to_vec(), from)
}

#[tokio::test]
async fn noise_is_counted_and_not_answered() {
    let served = Served::start(Ports::default()).await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for noise in [
        &b""[..],
        b"\0",
        b"\0\x09",
        b"\0\x04\0\x01",
        b"\0\x03\0\x01x",
        b"\0\x05\0\0\0",
    ] {
        client.send_to(noise, served.addr).await.unwrap();
    }
    client
        .send_to(b"\0\x01x\0mail\0", served.addr)
        .await
        .unwrap();
    let reply = receive(&client).await.0;
    assert_eq!(
        &reply[..4],
        b"\0\x05\0\x04",
        "the first answer is to the request"
    );
    let files = served.files.clone();
    served.ends().await;
    let refused = files.refused.lock().unwrap();
    let want = [
        "tftp.too_short",
        "tftp.too_short",
        "tftp.opcode",
        "tftp.stray",
        "tftp.stray",
        "tftp.stray",
        "tftp.mode",
    ];
    assert_eq!(*refused, want);
}

/// What OVMF does (tftp/qemu-capture__tftp-ovmf-x64-pxe): probe, ERROR 8, second request from
/// another port with a window of 4.
#[tokio::test]
async fn uefi_probes_and_then_loads_in_windows() {
    let served = Served::start(Ports::default()).await;
    let probe = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let request = b"\0\x01small.efi\0octet\0tsize\x000\0blksize\x001468\0windowsize\x004\0";
    probe.send_to(request, served.addr).await.unwrap();
    let (oack, from) = receive(&probe).await;
    assert_eq!(
        oack,
        b"\0\x06tsize\x003000\0blksize\x001468\0windowsize\x004\0"
    );
    assert_eq!(from, served.addr, "one port");
    probe
        .send_to(b"\0\x05\0\x08User aborted the transfer\0", from)
        .await
        .unwrap();

    let load = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    load.send_to(
        b"\0\x01small.efi\0octet\0blksize\x001468\0windowsize\x004\0",
        served.addr,
    )
    .await
    .unwrap();
    let (_, from) = receive(&load).await;
    load.send_to(b"\0\x04\0\0", from).await.unwrap();
    let mut got = Vec::new();
    for block in 1..=3u16 {
        let (data, _) = receive(&load).await;
        assert_eq!(data[..4], [[0, 3], block.to_be_bytes()].concat());
        got.extend_from_slice(&data[4..]);
    }
    load.send_to(b"\0\x04\0\x03", from).await.unwrap();
    assert!(got == served.files.contents["small.efi"]);
    while served.files.reports.lock().unwrap().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let codes: Vec<_> = served
        .ends()
        .await
        .iter()
        .map(|(_, end, _)| end.code())
        .collect();
    assert_eq!(codes, ["tftp.probed", "tftp.complete"]);
}

#[tokio::test]
async fn rejects_transfers_over_the_bounds() {
    let bounds = Bounds {
        per_peer_max: 1,
        ..Bounds::default()
    };
    let served = Served::bounded(Ports::default(), bounds).await;
    let request = b"\0\x01small.efi\0octet\0";
    let first = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    first.send_to(request, served.addr).await.unwrap();
    receive(&first).await;
    // The same request again is no second transfer; it is answered again.
    first.send_to(request, served.addr).await.unwrap();
    receive(&first).await;
    let second = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    second.send_to(request, served.addr).await.unwrap();
    let (reply, _) = receive(&second).await;
    assert_eq!(&reply[..4], b"\0\x05\0\0");
    // Another name from the same port replaces the first.
    first
        .send_to(b"\0\x01exact\0octet\0", served.addr)
        .await
        .unwrap();
    let (data, _) = receive(&first).await;
    assert_eq!(data.len(), 516);
    let files = served.files.clone();
    let ends = served.ends().await;
    let codes: Vec<_> = ends
        .iter()
        .map(|(name, end, _)| (name.as_str(), end.code()))
        .collect();
    assert_eq!(
        codes,
        [("small.efi", "tftp.superseded"), ("exact", "tftp.stopped")]
    );
    // Read when the engine has ended: it tells of a refusal after it has answered.
    assert_eq!(*files.refused.lock().unwrap(), ["tftp.per_peer_max"]);
}

#[tokio::test]
async fn a_port_of_its_own_takes_no_strangers() {
    let served = Served::start(Ports::Ephemeral).await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let request = b"\0\x01small.efi\0octet\0";
    client.send_to(request, served.addr).await.unwrap();
    let (_, from) = receive(&client).await;
    assert_ne!(from, served.addr);
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    // The kernel tells a stranger that nobody listens there for him.
    let _ = stranger.send_to(b"\0\x05\0\0spoofed\0", from).await;
    client.send_to(b"\0\x04\0\x01", from).await.unwrap();
    assert_eq!(receive(&client).await.0[..4], *b"\0\x03\0\x02");
    assert_eq!(served.ends().await[0].1, End::Stopped);
}

#[tokio::test]
async fn stopping_tells_the_clients() {
    for ports in BOTH {
        let served = Served::start(ports).await;
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client
            .send_to(b"\0\x01small.efi\0octet\0", served.addr)
            .await
            .unwrap();
        receive(&client).await;
        let waiting = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        waiting
            .send_to(b"\0\x01never\0octet\0", served.addr)
            .await
            .unwrap();
        // The request of `waiting` is in the socket before the stop.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(served.ends().await.len(), 2, "{ports:?}");
        for socket in [client, waiting] {
            assert_eq!(&receive(&socket).await.0[..4], b"\0\x05\0\0");
        }
    }
}

#[tokio::test]
async fn a_client_that_vanished_ends_the_transfer_at_once() {
    for ports in BOTH {
        let served = Served::start(ports).await;
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client
            .send_to(b"\0\x01big.img\0octet\0windowsize\x0016\0", served.addr)
            .await
            .unwrap();
        let (_, from) = receive(&client).await;
        client.send_to(b"\0\x04\0\0", from).await.unwrap();
        drop(client);
        let gone = async {
            while served.files.reports.lock().unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), gone)
            .await
            .expect("ICMP ends it");
        assert_eq!(served.ends().await[0].1, End::PeerGone, "{ports:?}");
    }
}
