//! The TFTP engine on a bad network, in a storm and under half-open transfers: not one wrong
//! octet, nobody left out, memory bounded.

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gateway::shell::tftp::{Bounds, Options, Ports};
use lab::lossy::{Relay, Trouble};
use lab::tftp_load::{Load, Outcome, half_open};
use lab::tftp_server::{Files, Serving, pattern};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// One lost in a hundred each way, a millisecond of delay, some twice, some late.
const BAD: Trouble = Trouble {
    lost_permille: 10,
    repeated_permille: 10,
    reordered_permille: 10,
    held_back: Duration::from_millis(3),
    delay: Duration::from_millis(1),
    seed: 1,
};

fn any() -> SocketAddr {
    SocketAddr::new(LOOPBACK, 0)
}

/// All clients of these tests have one address.
fn options(ports: Ports) -> Options {
    let bounds = Bounds {
        per_peer_max: 1024,
        ..Bounds::default()
    };
    Options { bounds, ports }
}

fn load<'a>(server: SocketAddr, contents: &'a [u8]) -> Load<'a> {
    Load {
        server,
        from: LOOPBACK,
        name: "boot.img",
        contents,
        clients: 1,
        block_len: 1428,
        window: 1,
        timeout: Duration::from_secs(1),
        limit: Duration::from_secs(60),
    }
}

fn show(what: &str, outcome: &Outcome) {
    println!(
        "{what}: {} whole, p50 {} ms, max {} ms, {} packets, {} out of turn, {} client timeouts",
        outcome.whole,
        outcome.quantile(0.5).as_millis(),
        outcome.quantile(1.0).as_millis(),
        outcome.packets,
        outcome.out_of_turn,
        outcome.timeouts
    );
}

#[test]
fn a_bad_network_brings_the_file_whole_in_every_mode() {
    let contents = pattern(500_000);
    for ports in [Ports::One, Ports::Ephemeral] {
        let files = Files::of([("boot.img", contents.clone())]);
        let server = Serving::start(files, options(ports)).unwrap();
        for (window, seed) in [(1, 1), (4, 2), (16, 3), (32, 4)] {
            let trouble = Trouble { seed, ..BAD };
            let relay = Relay::start(any(), server.address, trouble).unwrap();
            let outcome = Load {
                clients: 4,
                window,
                ..load(relay.address(), &contents)
            }
            .run()
            .unwrap();
            let counts = relay.stop().unwrap();
            show(&format!("{ports:?}, window {window}, {counts:?}"), &outcome);
            outcome.check().unwrap();
            assert!(counts.lost > 0 && counts.repeated > 0 && counts.reordered > 0);
            // Go-back-N sends again what was behind a lost or late block: a window for each piece
            // of trouble, half the file for waits that ended early on a busy machine, no more.
            let needed = 4 * (contents.len() as u64 / 1428 + 1);
            let trouble = counts.lost + counts.repeated + counts.reordered;
            let most = needed + needed / 2 + trouble * u64::from(window);
            assert!(outcome.packets < most, "{} of {needed}", outcome.packets);
        }
    }
}

/// Every twentieth datagram each way: what a broken cable looks like.
#[test]
fn a_broken_cable_is_slow_and_right() {
    let contents = pattern(200_000);
    let files = Files::of([("boot.img", contents.clone())]);
    let server = Serving::start(files, options(Ports::One)).unwrap();
    for (window, seed) in [(1, 11), (8, 12)] {
        let trouble = Trouble {
            lost_permille: 50,
            seed,
            ..BAD
        };
        let relay = Relay::start(any(), server.address, trouble).unwrap();
        let outcome = Load {
            window,
            ..load(relay.address(), &contents)
        }
        .run()
        .unwrap();
        show(&format!("5 % lost, window {window}"), &outcome);
        outcome.check().unwrap();
    }
}

/// One loss costs a measured round trip, not a second: the lost blocks of a file on a network
/// without delay cost about 20 ms each.
#[test]
fn a_loss_in_lock_step_costs_milliseconds() {
    let contents = pattern(1 << 20);
    let files = Files::of([("boot.img", contents.clone())]);
    let server = Serving::start(files, options(Ports::One)).unwrap();
    let trouble = Trouble {
        lost_permille: 10,
        seed: 5,
        ..Trouble::default()
    };
    let relay = Relay::start(any(), server.address, trouble).unwrap();
    let outcome = load(relay.address(), &contents).run().unwrap();
    let counts = relay.stop().unwrap();
    show("1 MiB, 1 % lost", &outcome);
    outcome.check().unwrap();
    assert!(counts.lost >= 5, "{counts:?}");
    // A lost OACK or request waits for half a second or the client; 60 ms a loss is generous.
    let budget = Duration::from_millis(1_500 + counts.lost * 60);
    assert!(outcome.wall < budget, "{:?} over {budget:?}", outcome.wall);
}

#[test]
fn two_hundred_clients_at_once() {
    let contents = pattern(1 << 20);
    for ports in [Ports::One, Ports::Ephemeral] {
        let files = Files::of([("boot.img", contents.clone())]);
        let server = Serving::start(files, options(ports)).unwrap();
        let outcome = Load {
            clients: 200,
            window: 4,
            ..load(server.address, &contents)
        }
        .run()
        .unwrap();
        show(&format!("200 clients, {ports:?}"), &outcome);
        outcome.check().unwrap();
        assert_eq!(outcome.agreed, (1428, 4));
    }
}

#[test]
fn two_hundred_clients_on_a_bad_network() {
    let contents = pattern(100_000);
    let files = Files::of([("boot.img", contents.clone())]);
    let server = Serving::start(files, options(Ports::One)).unwrap();
    let relay = Relay::start(any(), server.address, BAD).unwrap();
    let outcome = Load {
        clients: 200,
        window: 4,
        ..load(relay.address(), &contents)
    }
    .run()
    .unwrap();
    let counts = relay.stop().unwrap();
    show(&format!("200 clients, {counts:?}"), &outcome);
    outcome.check().unwrap();
}

/// The engine in a process of its own, whose memory is then its memory alone.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start(folder: &std::path::Path) -> Self {
        // A port that was free a moment ago; a second program that takes it fails the test loudly.
        let address = UdpSocket::bind(any()).unwrap().local_addr().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_lab"))
            .arg("serve-tftp")
            .arg(folder)
            .arg(address.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, address }
    }

    /// Resident memory in KiB (proc(5)).
    fn rss_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// ATTACKS row 34: five thousand requests whose senders never answer cost little memory, and a
/// machine that answers is served as before.
#[test]
fn attack_34_half_open_transfers_cost_little_and_lock_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let contents = pattern(1 << 20);
    std::fs::write(folder.path().join("boot.img"), &contents).unwrap();
    let server = Process::start(folder.path());
    let good = |name: &str| {
        let outcome = Load {
            clients: 1,
            ..load(server.address, &contents)
        }
        .run()
        .unwrap();
        show(name, &outcome);
        outcome.check().unwrap();
        outcome.wall
    };
    good("the first client, which waits until the server is up");
    let before = good("a good client before");
    let rss_before = server.rss_kib();
    let started = Instant::now();
    let _unanswered = half_open(
        server.address,
        Ipv4Addr::new(127, 1, 0, 1),
        5_000,
        "boot.img",
    )
    .unwrap();
    println!("5000 requests sent in {} ms", started.elapsed().as_millis());
    let during = good("a good client among 5000 half-open transfers");
    let rss_during = server.rss_kib();
    println!("RSS before {rss_before} KiB, with 5000 half-open {rss_during} KiB");
    assert!(
        rss_during < rss_before + 16 * 1024,
        "{rss_before} to {rss_during} KiB"
    );
    let budget = before * 10 + Duration::from_secs(2);
    assert!(during < budget, "{during:?}, {before:?} before");
}
