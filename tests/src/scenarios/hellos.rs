//! A flood of hellos with made-up endorsement keys, each on a connection of its own and from many
//! addresses, while one honest machine attests again and again. Rows 36 and 61 of the liars'
//! suite: nobody is challenged twice for nothing, 10,000 keys buy a handful of records, and the claims
//! of the flood do not push out a machine that is known. Then made-up keys that answer their challenges:
//! claims by the hundred, beside which a real machine is heard.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use attest_wire::tpm::{Public, PublicKind};
use attest_wire::v1::{HELLO_PATH, Hello, Verdict};
use gateway_core::limits::CLAIMS_UNVOUCHED_MAX;
use gateway_core::record::Record;
use rand_core::{OsRng, RngCore as _};

use super::bounded::Figures;
use crate::event_log::EventLog;
use crate::exchange::{Connection, Node, say_hello, send_evidence};
use crate::netns::{GATEWAY_ADDR, Netns, PREFIX};
use crate::report::Report;
use crate::sim::{Attested, Machine, mac};
use crate::site::{Options, Site};
use crate::soft_tpm::SoftTpm;

/// The attest listener.
const GATEWAY: SocketAddrV4 = SocketAddrV4::new(GATEWAY_ADDR, 8443);
/// Made-up keys.
const HELLOS: usize = 10_000;
/// The flood's addresses, one after the other; the first is behind the pool.
const ADDRESSES: u8 = 40;
const FIRST_ADDRESS: u8 = 210;
const THREADS: usize = 4;
/// Attempts of the honest machine before the flood, and beside it, spread over its hellos. With the one
/// before them fewer than the 30 certificates that a machine gets in an hour.
const ALONE: usize = 8;
const BESIDE: usize = 16;
/// An honest attempt beside the flood, most of it the machine's own TPM.
const HONEST_MAX: Duration = Duration::from_secs(10);
/// Sessions of 60 s, claims and summaries are bounded, and so is what they hold.
const GROWTH_MAX_KIB: u64 = 64 * 1024;
/// A session lives for 60 s and a sum is written 60 s after its first refusal (gateway/core/src/limits.rs).
const SUMMED: Duration = Duration::from_secs(125);
/// Summaries by code and ingress for each minute, the claims that are kept, and the honest
/// machine's own.
const RECORDS_MAX: u64 = 1_000;
/// Software machines that claim; well beyond what may wait.
const SOFTWARE_KEYS: usize = 10_000;
const CLAIM: Duration = Duration::from_secs(5);

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made, or the honest machine is not admitted at all.
pub fn run(report: &Report) -> Result<()> {
    let mut site = Site::start("hellos", Options::default())?;
    let outcome = steps(report, &mut site);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

fn steps(report: &Report, site: &mut Site) -> Result<()> {
    let mut machine = Machine::plug(site, 1)?;
    machine.boot_honestly(site)?;
    machine.netboot()?;
    claims(&machine)?;
    approve(site, &machine)?;
    attempt(&machine).context("the honest machine is not admitted")?;
    let liar = site.segment.plug(&site.run, "liar", mac(205))?;
    for number in 0..ADDRESSES {
        let address = format!("{}/{}", source(number), PREFIX);
        liar.ip(&["addr", "add", &address, "dev", "eth0"])?;
    }
    let hello = template(&mut machine)?;
    report.check(
        "attack_36: 10,000 hellos with made-up keys: an honest machine attests beside them",
        attack_36_ten_thousand_hellos_with_made_up_keys(report, site, &machine, &liar, &hello),
    );
    report.check(
        "attack_61: claims of software EKs end at their quota, a real machine's is heard",
        attack_61_claims_of_software_keys_beside_a_real_machine(report, site, &liar),
    );
    report.check(
        "the honest machine passes in the end",
        attempt(&machine).map(drop),
    );
    report.check("the ledger verifies", site.verify_ledger().map(drop));
    Ok(())
}

/// The machine is unknown: it waits.
fn claims(machine: &Machine) -> Result<()> {
    match machine.attest()? {
        Attested::Pending { code } => ensure!(code == "ek.unknown", "code {code}"),
        other => bail!("an unknown machine: {other:?}"),
    }
    Ok(())
}

fn approve(site: &Site, machine: &Machine) -> Result<()> {
    let claim = site.desk.wait_machine("claim", CLAIM, |m| {
        m.state == "pending" && m.macs.contains(&machine.mac)
    })?;
    site.desk.approve(&claim.machine)
}

/// Software EKs without a certificate: half of the list of claims is theirs and no more. A real TPM's
/// claim comes while they go on and has its place, its owner finds it, and it is admitted. What the
/// flood leaves is its claims and sums, in the ledger and in memory.
fn attack_61_claims_of_software_keys_beside_a_real_machine(
    report: &Report,
    site: &Site,
    liar: &Netns,
) -> Result<()> {
    let log = EventLog::of(&site.honest_boot()?);
    let before_kib = site.memory_kib().context("no memory figure")?.0;
    let mut real = Machine::plug(site, 2)?;
    real.boot_honestly(site)?;
    real.netboot()?;
    let (sent, waiting, refused) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let over = AtomicBool::new(false);
    let begun = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let flood = scope.spawn(|| {
            let outcome = software_keys(liar, &log, &sent, &waiting, &refused);
            over.store(true, Ordering::Relaxed);
            outcome
        });
        while sent.load(Ordering::Relaxed) < SOFTWARE_KEYS / 2 && !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let heard = claims(&real).context("the real machine beside them");
        let late = over.load(Ordering::Relaxed);
        flood
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("a panic")))?;
        heard?;
        ensure!(!late, "the flood was over before the real machine's claim");
        Ok(())
    })?;
    let wall = begun.elapsed();
    let (waiting, refused) = (waiting.into_inner(), refused.into_inner());
    ensure!(
        waiting == CLAIMS_UNVOUCHED_MAX && refused == SOFTWARE_KEYS - CLAIMS_UNVOUCHED_MAX,
        "{waiting} wait, {refused} are refused"
    );
    approve(site, &real)?;
    attempt(&real)?;
    std::thread::sleep(SUMMED);
    let sums = sums_of(site, "claim.quota")?;
    ensure!(
        sums.iter().sum::<u64>() >= refused as u64,
        "{sums:?} in the ledger's sums, {refused} refused by claim.quota"
    );
    ensure!(
        sums.len() as u64 <= RECORDS_MAX,
        "{refused} refusals bought {} records",
        sums.len()
    );
    let verdicts = site.desk.records(
        |record| matches!(record, Record::Verdict(verdict) if !verdict.admitted && verdict.reasons.iter().any(|r| r.code == "claim.quota")),
    )?;
    ensure!(
        verdicts.is_empty(),
        "{} verdicts of their own in the ledger",
        verdicts.len()
    );
    let after_kib = site.memory_kib().context("no memory figure")?.1;
    ensure!(
        after_kib.saturating_sub(before_kib) <= GROWTH_MAX_KIB,
        "grew by {} KiB",
        after_kib.saturating_sub(before_kib)
    );
    report.note(format!(
        "{SOFTWARE_KEYS} software EKs in {:.1} s: {waiting} wait, {refused} refused by claim.quota in {} sums; RSS \
         {:.1} MiB before, most {:.1} MiB",
        wall.as_secs_f64(),
        sums.len(),
        before_kib as f64 / 1024.0,
        after_kib as f64 / 1024.0
    ));
    Ok(())
}

/// Counts of the ledger's sums of one code.
fn sums_of(site: &Site, code: &str) -> Result<Vec<u64>> {
    let ledger = site.desk.ledger()?;
    let sums = ledger.iter().filter_map(|entry| match &entry.record {
        Record::RefusalSummary(sum) if sum.last.code == code => Some(sum.count),
        _ => None,
    });
    Ok(sums.collect())
}

/// Each with keys of its own, all the way to a claim.
fn software_keys(
    liar: &Netns,
    log: &EventLog,
    sent: &AtomicUsize,
    waiting: &AtomicUsize,
    refused: &AtomicUsize,
) -> Result<()> {
    in_threads(liar, SOFTWARE_KEYS, &|number| {
        let tpm = SoftTpm::new(&format!("SOFT-{number}"));
        let from = source((number % usize::from(ADDRESSES)) as u8);
        let mut connection = Connection::open_from(from, GATEWAY)?;
        let (challenge, binding) = say_hello(&mut connection, &tpm.hello())?
            .map_err(|refusal| anyhow::anyhow!("hello {number}: {}", refusal.code))?;
        let evidence = tpm.evidence(&challenge, &binding, log)?;
        let result = send_evidence(&mut connection, &evidence)?;
        let count = match result.code.as_str() {
            "ek.unknown" if result.verdict == Verdict::Pending => waiting,
            "claim.quota" if result.verdict == Verdict::NotAdmitted => refused,
            code => bail!("software key {number}: {:?} {code}", result.verdict),
        };
        count.fetch_add(1, Ordering::Relaxed);
        sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })
}

fn source(number: u8) -> Ipv4Addr {
    let [a, b, c, _] = GATEWAY_ADDR.octets();
    Ipv4Addr::new(a, b, c, FIRST_ADDRESS + number)
}

/// A hello whose every part is sound; only the endorsement key will be made up.
fn template(machine: &mut Machine) -> Result<Hello> {
    let claims = machine.claims.clone();
    let mut hello = machine.with_tpm(|tpm| {
        let mut pcr15 = Vec::new();
        let mut node = Node {
            tpm,
            pcr15: &mut pcr15,
            claims,
            event_log: Vec::new(),
        };
        Ok(node.hello()?.0)
    })?;
    hello.eks.retain(|ek| {
        let public = Public::decode(&ek.public.0);
        matches!(public.map(|public| public.kind), Ok(PublicKind::Rsa { .. }))
    });
    hello.eks.truncate(1);
    ensure!(!hello.eks.is_empty(), "the TPM has no RSA EK");
    hello.eks[0].cert = None;
    hello.platform.serial = "MADE-UP".to_owned();
    hello.nics.clear();
    Ok(hello)
}

/// The same hello with a key that no TPM has.
fn made_up(hello: &Hello) -> Result<Vec<u8>> {
    let mut hello = hello.clone();
    let mut public = Public::decode(&hello.eks[0].public.0)?;
    if let PublicKind::Rsa { modulus, .. } = &mut public.kind {
        OsRng.fill_bytes(modulus);
        // As long as a modulus, and odd; nobody knows its factors.
        if let [first, .., last] = modulus.as_mut_slice() {
            *first |= 0x80;
            *last |= 1;
        }
    }
    hello.eks[0].public = public.encode().into();
    Ok(serde_json::to_vec(&hello)?)
}

fn attack_36_ten_thousand_hellos_with_made_up_keys(
    report: &Report,
    site: &Site,
    machine: &Machine,
    liar: &Netns,
    hello: &Hello,
) -> Result<()> {
    let mut alone = Vec::new();
    for _ in 0..ALONE {
        alone.push(attempt(machine)?);
    }
    let before_kib = site.memory_kib().context("no memory figure")?.0;
    let records_before = site.desk.get::<serde_json::Value>("/v1/status")?["ledger_entries"]
        .as_u64()
        .context("no count of the ledger")?;
    let (sent, refused, over) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicBool::new(false),
    );
    let mut beside = Vec::new();
    let begun = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let flood = scope.spawn(|| {
            let outcome = flood(liar, hello, &sent, &refused);
            over.store(true, Ordering::Relaxed);
            outcome
        });
        let honest = (0..BESIDE).try_for_each(|turn| {
            let due = turn * HELLOS / BESIDE;
            while sent.load(Ordering::Relaxed) < due && !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if !over.load(Ordering::Relaxed) {
                beside.push(attempt(machine)?);
            }
            anyhow::Ok(())
        });
        let flooded = flood
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("a panic")));
        honest?;
        flooded
    })?;
    let wall = begun.elapsed();
    // What the flood left is written in sums, a minute after the first of each: only then it can be counted.
    std::thread::sleep(SUMMED);
    let after_kib = site.memory_kib().context("no memory figure")?.1;
    let records = site.desk.get::<serde_json::Value>("/v1/status")?["ledger_entries"]
        .as_u64()
        .context("no count of the ledger")?
        - records_before;
    alone.sort();
    beside.sort();
    let p99 = |times: &[Duration]| crate::dhcp_load::percentile_ms(times, 99);
    let figures = Figures {
        what: format!("{HELLOS} hellos with made-up keys"),
        before_kib,
        after_kib,
        alone_ms: p99(&alone),
        during_ms: p99(&beside),
    };
    report.note(format!(
        "{} hellos in {:.1} s, {} answered without a challenge; {records} records; RSS {:.1} MiB before, most {:.1} \
         MiB; an honest attempt's p99 {:.0} ms alone ({ALONE}), {:.0} ms beside it ({})",
        sent.load(Ordering::Relaxed),
        wall.as_secs_f64(),
        refused.load(Ordering::Relaxed),
        figures.before_kib as f64 / 1024.0,
        figures.after_kib as f64 / 1024.0,
        figures.alone_ms,
        figures.during_ms,
        beside.len(),
    ));
    ensure!(
        sent.load(Ordering::Relaxed) == HELLOS,
        "the flood ended early"
    );
    ensure!(beside.len() >= 5, "{} honest attempts only", beside.len());
    ensure!(
        figures.during_ms <= HONEST_MAX.as_secs_f64() * 1e3,
        "an honest attempt took {:.0} ms",
        figures.during_ms
    );
    let honest_records = 2 * (beside.len() as u64 + 1);
    ensure!(
        records <= RECORDS_MAX + honest_records,
        "{HELLOS} made-up keys bought {records} records"
    );
    ensure!(
        after_kib.saturating_sub(before_kib) <= GROWTH_MAX_KIB,
        "grew by {} KiB",
        after_kib - before_kib
    );
    Ok(())
}

fn attempt(machine: &Machine) -> Result<Duration> {
    let begun = Instant::now();
    match machine.attest()? {
        Attested::Admitted { .. } => Ok(begun.elapsed()),
        other => bail!("the honest machine: {other:?}"),
    }
}

fn flood(liar: &Netns, hello: &Hello, sent: &AtomicUsize, refused: &AtomicUsize) -> Result<()> {
    in_threads(liar, HELLOS, &|number| {
        let from = source((number % usize::from(ADDRESSES)) as u8);
        let body = made_up(hello)?;
        let mut connection = Connection::open_from(from, GATEWAY)?;
        let (status, _) = connection.post(HELLO_PATH, &body)?;
        sent.fetch_add(1, Ordering::Relaxed);
        if status != 200 {
            refused.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    })
}

/// Does it for the numbers below `count`, in the namespace, by as many threads as the liar has.
fn in_threads(
    liar: &Netns,
    count: usize,
    each: &(dyn Fn(usize) -> Result<()> + Sync),
) -> Result<()> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    liar.enter(|| {
                        loop {
                            let number = next.fetch_add(1, Ordering::Relaxed);
                            if number >= count {
                                return Ok(());
                            }
                            each(number)?;
                        }
                    })
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a thread of the flood panicked")))
        })
    })
}
