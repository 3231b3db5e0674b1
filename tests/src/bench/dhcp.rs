//! DHCP: full exchanges (DISCOVER, OFFER, REQUEST, ACK) of relayed UEFI clients against dnsmasq
//! and Kea.
//!
//! Each server keeps its leases on the same disk in its own way: ours is synced before the ACK,
//! dnsmasq rewrites and syncs its file, Kea appends and does not sync. All start a round without
//! leases, are warmed up with a hundred, and log as their packages do.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gateway_core::record::JournalRecord;

use super::{Peer, Row, Side, Socket, Target, cpu_of, interleave, plug, program, version};
use crate::dhcp_load::{Load, Outcome, percentile_ms};
use crate::netns::{GATEWAY_ADDR, Netns};
use crate::run::output;
use crate::site::{Options, Site};

const PREFIX: u8 = 16;
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 250);
const DNSMASQ: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
const KEA: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 3);
const POOL: (Ipv4Addr, Ipv4Addr) = (
    Ipv4Addr::new(10, 66, 64, 0),
    Ipv4Addr::new(10, 66, 127, 255),
);

/// Leases before the first measurement, and the small table of the comparison of sizes.
const WARM: u32 = 100;
/// Exchanges of one measurement.
const MEASURED: u32 = 1_000;
/// Exchanges open at once.
const IN_FLIGHT: usize = 16;
/// Machines switched on at once.
const STORM: u32 = 640;
/// Leases of the large table.
const LARGE: u32 = 10_000;

/// What one server did in one round.
struct Measured {
    rate: f64,
    cpu_us: f64,
    p50_ms: f64,
    p99_ms: f64,
    storm: Option<Storm>,
    large: Option<Large>,
}

/// [`STORM`] clients at once.
struct Storm {
    offer_p99_ms: f64,
    wall_ms: f64,
}

/// The same measurement with [`LARGE`] leases in the table.
struct Large {
    rate: f64,
    cpu_us: f64,
}

/// Measures.
///
/// # Errors
/// A peer is missing, a client is not served, an address is given twice, or an acknowledged lease
/// is not on our disk.
pub fn run(rounds: usize) -> Result<Vec<Row>> {
    let names = (version("dnsmasq-base")?, version("kea-dhcp4-server")?);
    let mut site = Site::prepare(
        "bench-dhcp",
        Options {
            prefix: PREFIX,
            pool: POOL,
            // As the peers run: an ARP probe would wait 200 ms for each new address.
            conflict_probe_ms: 0,
            ..Options::default()
        },
    )?;
    let snapshot = site.run.dir().join("state-before");
    copy_folder(&site.state_dir(), &snapshot)?;
    let port = |name: &str, addr| plug(&site.run, &site.segment, name, addr, PREFIX);
    let relay = port("relay", RELAY)?;
    let (dnsmasq, kea) = (port("dnsmasq", DNSMASQ)?, port("kea", KEA)?);
    let site = std::cell::RefCell::new(&mut site);
    let results = interleave(
        rounds,
        vec![
            Side::new("vestibule", |_| {
                let mut site = site.borrow_mut();
                forget_leases(&site.state_dir(), &snapshot)?;
                ours(&mut site, &relay)
            }),
            Side::new("dnsmasq", |_| {
                let peer = start_dnsmasq(&site.borrow(), &dnsmasq)?;
                let measured = measure(&relay, DNSMASQ, peer.pid(), WARM)?;
                peer.stop()?;
                Ok(measured)
            }),
            Side::new("kea", |_| {
                let peer = start_kea(&site.borrow(), &kea)?;
                let mut measured = measure(&relay, KEA, peer.pid(), WARM)?;
                measured.storm = Some(storm(&relay, KEA, WARM + MEASURED)?);
                peer.stop()?;
                Ok(measured)
            }),
        ],
    )?;
    let [ours, dnsmasq, kea] = &results[..] else {
        unreachable!("three sides give three lists");
    };
    rows(ours, (&names.0, dnsmasq), (&names.1, kea))
}

fn rows(
    ours: &[Measured],
    (dnsmasq_name, dnsmasq): (&str, &[Measured]),
    (kea_name, kea): (&str, &[Measured]),
) -> Result<Vec<Row>> {
    let of = |side: &[Measured], pick: fn(&Measured) -> f64| -> Vec<f64> {
        side.iter().map(pick).collect()
    };
    let compare = |metric: String, unit, pick: fn(&Measured) -> f64, name: &str, peer, target| {
        Row::against(metric, unit, &of(ours, pick), name, &of(peer, pick), target)
    };
    let load = format!("{MEASURED} leases, {IN_FLIGHT} in flight");
    let rate = || format!("DORA rate, {load}");
    let cpu = || format!("server CPU per DORA, {load}");
    let storms = |side: &[Measured], pick: fn(&Storm) -> f64| -> Vec<f64> {
        side.iter()
            .filter_map(|m| m.storm.as_ref())
            .map(pick)
            .collect()
    };
    let large = |pick: fn(&Large) -> f64| -> Vec<f64> {
        ours.iter()
            .filter_map(|m| m.large.as_ref())
            .map(pick)
            .collect()
    };
    let small_name = format!("ours at {WARM} leases");
    Ok(vec![
        compare(
            rate(),
            "1/s",
            |m| m.rate,
            dnsmasq_name,
            dnsmasq,
            Target::RatioAtLeast(10.0),
        )?,
        compare(
            rate(),
            "1/s",
            |m| m.rate,
            kea_name,
            kea,
            Target::RatioAtLeast(1.0),
        )?,
        compare(
            cpu(),
            "us",
            |m| m.cpu_us,
            dnsmasq_name,
            dnsmasq,
            Target::Shown,
        )?,
        compare(
            cpu(),
            "us",
            |m| m.cpu_us,
            kea_name,
            kea,
            Target::RatioAtMost(0.5),
        )?,
        compare(
            "DORA p50".into(),
            "ms",
            |m| m.p50_ms,
            kea_name,
            kea,
            Target::Shown,
        )?,
        compare(
            "DORA p99".into(),
            "ms",
            |m| m.p99_ms,
            kea_name,
            kea,
            Target::Shown,
        )?,
        Row::against(
            format!("OFFER p99, {STORM} clients at once"),
            "ms",
            &storms(ours, |s| s.offer_p99_ms),
            kea_name,
            &storms(kea, |s| s.offer_p99_ms),
            Target::AtMost(50.0),
        )?,
        Row::against(
            format!("all {STORM} leased"),
            "ms",
            &storms(ours, |s| s.wall_ms),
            kea_name,
            &storms(kea, |s| s.wall_ms),
            Target::Shown,
        )?,
        Row::against(
            format!("DORA rate at {LARGE} leases"),
            "1/s",
            &large(|l| l.rate),
            &small_name,
            &of(ours, |m| m.rate),
            Target::RatioAtLeast(0.9),
        )?,
        Row::against(
            format!("server CPU per DORA at {LARGE} leases"),
            "us",
            &large(|l| l.cpu_us),
            &small_name,
            &of(ours, |m| m.cpu_us),
            Target::Shown,
        )?,
    ])
}

/// Our round: everything a peer does, then the large table; every lease must be on disk.
fn ours(site: &mut Site, relay: &Netns) -> Result<Measured> {
    site.serve()?;
    let pid = site.pid()?;
    let mut measured = measure(relay, GATEWAY_ADDR, pid, WARM)?;
    let mut next = WARM + MEASURED;
    measured.storm = Some(storm(relay, GATEWAY_ADDR, next)?);
    next += STORM;
    drive(relay, GATEWAY_ADDR, next, LARGE - next, IN_FLIGHT)?;
    let (outcome, cpu_us) = timed(relay, GATEWAY_ADDR, pid, LARGE)?;
    measured.large = Some(Large {
        rate: outcome.rate(),
        cpu_us,
    });
    // Before the end of the process, which would write what is still waiting.
    let bound = bound_on_disk(site)?;
    let lost = outcome
        .leases
        .iter()
        .filter(|(_, addr)| !bound.contains(addr))
        .count();
    ensure!(lost == 0, "{lost} acknowledged lease(s) are not on disk");
    let all = (LARGE + MEASURED) as usize;
    ensure!(
        bound.len() == all,
        "{} leases on disk, {all} given",
        bound.len()
    );
    site.stop()?;
    Ok(measured)
}

fn bound_on_disk(site: &Site) -> Result<std::collections::BTreeSet<Ipv4Addr>> {
    let records = site.journal()?;
    Ok(records
        .into_iter()
        .filter_map(|record| match record {
            JournalRecord::Lease(lease) if lease.state == "bound" => Some(lease.addr),
            JournalRecord::Lease(_) | JournalRecord::Lease6(_) | JournalRecord::Mark(_) => None,
        })
        .collect())
}

/// Warms up with the clients below `first`, then measures [`MEASURED`] from it on.
fn measure(relay: &Netns, server: Ipv4Addr, pid: u32, first: u32) -> Result<Measured> {
    drive(relay, server, 0, first, IN_FLIGHT)?;
    let (outcome, cpu_us) = timed(relay, server, pid, first)?;
    Ok(Measured {
        rate: outcome.rate(),
        cpu_us,
        p50_ms: percentile_ms(&outcome.exchanges, 50),
        p99_ms: percentile_ms(&outcome.exchanges, 99),
        storm: None,
        large: None,
    })
}

/// [`MEASURED`] exchanges, and the server's processor time for each in microseconds.
fn timed(relay: &Netns, server: Ipv4Addr, pid: u32, first: u32) -> Result<(Outcome, f64)> {
    settle();
    let before = cpu_of(pid)?;
    let outcome = drive(relay, server, first, MEASURED, IN_FLIGHT)?;
    settle();
    let used = cpu_of(pid)?.saturating_sub(before).as_secs_f64();
    Ok((outcome, used * 1e6 / f64::from(MEASURED)))
}

fn storm(relay: &Netns, server: Ipv4Addr, first: u32) -> Result<Storm> {
    let outcome = drive(relay, server, first, STORM, STORM as usize)?;
    Ok(Storm {
        offer_p99_ms: percentile_ms(&outcome.offers, 99),
        wall_ms: outcome.wall.as_secs_f64() * 1000.0,
    })
}

/// What a server still does after the last answer belongs to the work before it.
fn settle() {
    std::thread::sleep(Duration::from_millis(150));
}

fn drive(
    relay: &Netns,
    server: Ipv4Addr,
    first: u32,
    count: u32,
    in_flight: usize,
) -> Result<Outcome> {
    let load = Load {
        server,
        local: RELAY,
        giaddr: RELAY,
        first,
        count,
        in_flight,
        patience: Duration::from_secs(2),
        tries: 5,
        limit: Duration::from_secs(120),
    };
    let outcome = relay.enter(|| load.run())?;
    outcome.check()?;
    Ok(outcome)
}

fn start_dnsmasq(site: &Site, ns: &Netns) -> Result<Peer> {
    let dir = fresh_folder(site, "dnsmasq")?;
    let file = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let path = program("dnsmasq", "dnsmasq-base")?;
    let mut command = ns.command(&path.to_string_lossy());
    command
        .args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0"])
        .args(["--interface=eth0", "--bind-interfaces", "--user=root"])
        .arg(format!("--dhcp-range={},{},255.255.0.0,1h", POOL.0, POOL.1))
        .arg(format!("--dhcp-leasefile={}", file("leases")))
        .arg(format!("--pid-file={}", file("pid")))
        .arg(format!("--log-facility={}", file("log")))
        // It would probe every address for up to three seconds, one at a time; and it stops at
        // 1000 leases.
        .args(["--no-ping", "--dhcp-lease-max=100000"])
        .args(["--dhcp-authoritative", "--dhcp-boot=ipxe.efi"]);
    Peer::start(&site.run, ns, "dnsmasq", &mut command, Socket::Udp(67))
}

fn start_kea(site: &Site, ns: &Netns) -> Result<Peer> {
    let dir = fresh_folder(site, "kea")?;
    let file = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let config = serde_json::json!({"Dhcp4": {
        "interfaces-config": {"interfaces": ["eth0"], "dhcp-socket-type": "udp"},
        "lease-database": {"type": "memfile", "persist": true, "name": file("leases.csv")},
        "valid-lifetime": 3600,
        "authoritative": true,
        "subnet4": [{
            "id": 1,
            "subnet": format!("10.66.0.0/{PREFIX}"),
            "pools": [{"pool": format!("{} - {}", POOL.0, POOL.1)}],
            "next-server": KEA.to_string(),
            "boot-file-name": "ipxe.efi",
        }],
        "loggers": [{
            "name": "kea-dhcp4",
            "severity": "INFO",
            "output_options": [{"output": file("log")}],
        }],
    }});
    fs::write(file("kea.json"), serde_json::to_vec_pretty(&config)?)?;
    let path = program("kea-dhcp4", "kea-dhcp4-server")?;
    let mut command = ns.command(&path.to_string_lossy());
    command
        .args(["-c", &file("kea.json")])
        .env("KEA_PIDFILE_DIR", &dir)
        .env("KEA_LOCKFILE_DIR", &dir);
    Peer::start(&site.run, ns, "kea", &mut command, Socket::Udp(67))
}

fn fresh_folder(site: &Site, name: &str) -> Result<std::path::PathBuf> {
    let dir = site.run.dir().join(format!("peer-{name}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// Puts the lease journal and the database back to what they were before the first round. The ledger
/// stays: the appliance's TPM has counted along, and a copy of it would not start.
fn forget_leases(state: &std::path::Path, snapshot: &std::path::Path) -> Result<()> {
    for entry in fs::read_dir(snapshot)? {
        let name = entry?.file_name();
        if name == "ledger" {
            continue;
        }
        let (from, to) = (snapshot.join(&name), state.join(&name));
        if to.is_dir() {
            fs::remove_dir_all(&to)?;
        } else if to.exists() {
            fs::remove_file(&to)?;
        }
        copy_folder(&from, &to)?;
    }
    Ok(())
}

/// A folder with everything in it, as it is.
pub(crate) fn copy_folder(from: &std::path::Path, to: &std::path::Path) -> Result<()> {
    let mut copy = Command::new("cp");
    copy.arg("--archive").arg(from).arg(to);
    output(&mut copy, Duration::from_secs(60)).map(drop)
}
