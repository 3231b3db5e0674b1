//! The scenarios: each proves one thing of the walk against the running daemon, says PASS or FAIL
//! for every check, and is bounded.

pub mod attacks;
pub mod beside;
pub mod bounded;
pub mod dhcp_faults;
pub mod dhcp_storm;
pub mod ek_ca;
pub mod firmware;
pub mod gate;
pub mod hellos;
pub mod install;
pub mod install_vm;
pub mod interop;
pub mod ipv6;
pub mod kill;
pub mod ldevid;
pub mod lldp;
pub mod local_disk;
pub mod policy;
pub mod rollback;
pub mod sealed;
pub mod slow;
pub mod spire;
pub mod starts;
pub mod storm;
pub mod talos;
pub mod visitors;
pub mod walk;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::report::Report;

/// One scenario.
pub struct Scenario {
    /// Name for `lab run`.
    pub name: &'static str,
    /// What it proves.
    pub what: &'static str,
    /// Longest run, in seconds; beyond it the scenario fails and is ended.
    pub limit_secs: u64,
    /// Does it; each check goes to the report, an error is a failed scenario.
    pub run: fn(&Report) -> Result<()>,
}

/// All scenarios, in the order of a run: simulated machines first, they tell more in less time.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "attacks",
        what: "the liars' suite: eighty lies of simulated machines, each refused with its code and recorded",
        limit_secs: 600,
        run: attacks::run,
    },
    Scenario {
        name: "ldevid",
        what: "the LDevID chain under openssl, the key blobs under tpm2-tools, and under another TPM",
        limit_secs: 240,
        run: ldevid::run,
    },
    Scenario {
        name: "talos",
        what: "Talos nodes, played by doubles: disk keys by the KMS, the config by one code, copies of both refused",
        limit_secs: 120,
        run: talos::run,
    },
    Scenario {
        name: "ek-ca",
        what: "a TPM whose vendor is unknown: listed, its CA imported, judged again, admitted, exported for SPIRE",
        limit_secs: 120,
        run: ek_ca::run,
    },
    Scenario {
        name: "gate",
        what: "real nftables between the machines and an uplink: admitted, spoofed, withdrawn, meddled with, down",
        limit_secs: 120,
        run: gate::run,
    },
    Scenario {
        name: "spire",
        what: "spire-server and spire-agent 1.13.3 with our LDevIDs; entries, renewal, withdrawal and the sweeper",
        limit_secs: 1_800,
        run: spire::run,
    },
    Scenario {
        name: "sealed",
        what: "payloads open for their machine, boot and session alone; tpm2-tools open the owner's secret",
        limit_secs: 120,
        run: sealed::run,
    },
    Scenario {
        name: "kill",
        what: "kill -9 of the daemon at every step of the walk; one PCR of the appliance extended",
        limit_secs: 420,
        run: kill::run,
    },
    Scenario {
        name: "starts",
        what: "what the daemon says when it cannot start: one line and the documented exit code",
        limit_secs: 240,
        run: starts::run,
    },
    Scenario {
        name: "rollback",
        what: "older copies of the state folder, a cut ledger, another box: named; the owner adopts a backup",
        limit_secs: 240,
        run: rollback::run,
    },
    Scenario {
        name: "install",
        what: "a disk written under a grant; grants and reports replayed, forged, reordered, late, for another disk or boot",
        limit_secs: 300,
        run: install::run,
    },
    Scenario {
        name: "hellos",
        what: "10,000 hellos with made-up keys beside an honest machine: records, memory, its p99",
        limit_secs: 480,
        run: hellos::run,
    },
    Scenario {
        name: "storm",
        what: "50 simulated machines at once, DISCOVER to LDevID; p50 and p99 of each step",
        limit_secs: 600,
        run: storm::run,
    },
    Scenario {
        name: "dhcp-storm",
        what: "640 DHCP clients at once over a bad path; 10,000 made-up ones beside good ones",
        limit_secs: 300,
        run: dhcp_storm::run,
    },
    Scenario {
        name: "interop",
        what: "udhcpc, dhclient, networkd, tftp-hpa, atftp, busybox, curl, openssl, gnutls against the daemon",
        limit_secs: 360,
        run: interop::run,
    },
    Scenario {
        name: "ipv6",
        what: "rdisc6, dhclient -6, curl and a firmware's Solicit against the daemon over IPv6",
        limit_secs: 240,
        run: ipv6::run,
    },
    Scenario {
        name: "dhcp-faults",
        what: "a static host inside the pool is found by ARP; a second DHCP server is named",
        limit_secs: 180,
        run: dhcp_faults::run,
    },
    Scenario {
        name: "beside",
        what: "proxy mode beside busybox udhcpd: its addresses, our boot data, port 4011, attestation",
        limit_secs: 240,
        run: beside::run,
    },
    Scenario {
        name: "slow",
        what: "1,000 and 1,400 slow TLS clients while one machine boots; its p99, and the daemon's memory",
        limit_secs: 300,
        run: slow::run,
    },
    Scenario {
        name: "bounded",
        what: "10,000 DISCOVERs, 5,000 half-open TFTP transfers, 1,000 slow TLS clients: RSS and p99",
        limit_secs: 300,
        run: bounded::run,
    },
    Scenario {
        name: "lldp",
        what: "lldpd both ways: it shows us, we show it; ageing, good-byes, hosts, tags, a cut cable",
        limit_secs: 240,
        run: lldp::run,
    },
    Scenario {
        name: "walk",
        what: "a VM with Secure Boot: PXE, signed iPXE, HTTPS UKI, attester, approval, LDevID",
        limit_secs: 420,
        run: walk::pxe,
    },
    Scenario {
        name: "walk-http",
        what: "the same by UEFI HTTP boot straight to the UKI (option 93 = 16)",
        limit_secs: 420,
        run: walk::http,
    },
    Scenario {
        name: "walk-http6",
        what: "UEFI HTTP boot straight to the UKI over IPv6 alone (DHCPv6 option 61 = 16)",
        limit_secs: 420,
        run: walk::http6,
    },
    Scenario {
        name: "walk-pxe6",
        what: "PXE by firmware with IPv6 alone: DHCPv6, TFTP, signed iPXE (which has both), HTTPS UKI",
        limit_secs: 420,
        run: walk::pxe6,
    },
    Scenario {
        name: "refusals-firmware",
        what: "the firmware refuses an unsigned iPXE, iPXE refuses an unsigned UKI",
        limit_secs: 420,
        run: firmware::unsigned,
    },
    Scenario {
        name: "local-disk",
        what: "a VM that boots PXE first: pending, refused and held say why and when; installed reaches its disk",
        limit_secs: 900,
        run: local_disk::run,
    },
    Scenario {
        name: "local-disk-firmware",
        what: "an installed VM by HTTP boot and by PXE: the firmware is on its disk in seconds",
        limit_secs: 480,
        run: local_disk::firmware,
    },
    Scenario {
        name: "install-vm",
        what: "a VM installs a disk under a grant, its power cut while it wipes, writes and reports, and boots from it",
        limit_secs: 600,
        run: install_vm::run,
    },
    Scenario {
        name: "visitors",
        what: "SeaBIOS with three iPXE ROMs, AAVMF, and OVMF with trixie's iPXE: what each is told to boot",
        limit_secs: 600,
        run: visitors::run,
    },
    Scenario {
        name: "floor",
        what: "a VM with a signed UKI below the floor is refused, and admitted when it is not",
        limit_secs: 420,
        run: firmware::floor,
    },
    Scenario {
        name: "policy",
        what: "one policy file for a VM's boots by PXE and by HTTP; a newer image, floors that overlap, the older refused",
        limit_secs: 900,
        run: policy::run,
    },
];

/// Not in a CI run, which has to end: `policy` boots the same images in firmware, and `attacks` has the owner's
/// floor.
const BY_NAME_ONLY: &[&str] = &["floor"];

/// These measure how long something takes, or how the daemon fares when it gets all of the machine.
const ALONE: &[&str] = &[
    "hellos",
    "storm",
    "dhcp-storm",
    "slow",
    "bounded",
    "local-disk-firmware",
];

/// Whether nothing may run beside it.
pub fn runs_alone(name: &str) -> bool {
    ALONE.contains(&name)
}

/// What a CI run runs.
pub fn suite() -> impl Iterator<Item = &'static Scenario> {
    ALL.iter()
        .filter(|scenario| !BY_NAME_ONLY.contains(&scenario.name))
}

/// The storm of the benchmark: too long for the suite.
pub static LARGE_STORM: Scenario = Scenario {
    name: "storm-640",
    what: "640 simulated machines at once, DISCOVER to LDevID; p50 and p99 of each step, our share of the time",
    limit_secs: 1_500,
    run: storm::large,
};

/// Finds a scenario by name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}

/// Runs one scenario; whether every check held.
pub fn run(scenario: &'static Scenario) -> bool {
    println!("scenario {}: {}", scenario.name, scenario.what);
    let report = Report::new(scenario.name);
    let watchdog = Watchdog::start(scenario.name, scenario.limit_secs);
    let started = Instant::now();
    match std::panic::catch_unwind(AssertUnwindSafe(|| (scenario.run)(&report))) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => report.fail("scenario", &format!("{error:#}")),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("panic");
            report.fail("scenario", text);
        }
    }
    drop(watchdog);
    let secs = started.elapsed().as_secs_f64();
    let failures = report.failures();
    if failures.is_empty() {
        println!("scenario {} held, {secs:.1} s", scenario.name);
    } else {
        println!(
            "scenario {} failed, {secs:.1} s: {}",
            scenario.name,
            failures.join(", ")
        );
    }
    failures.is_empty()
}

/// Ends the whole program when a scenario takes too long: a stuck socket must not hold a CI run.
pub(crate) struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    pub(crate) fn start(name: &'static str, limit_secs: u64) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&done);
        std::thread::spawn(move || {
            let deadline = Instant::now() + Duration::from_secs(limit_secs);
            while Instant::now() < deadline {
                if seen.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
            if !seen.load(Ordering::Relaxed) {
                println!("FAIL {name}: scenario: over its limit of {limit_secs} s");
                crate::run::clear_own();
                std::process::exit(1);
            }
        });
        Self(done)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for scenario in ALL {
            assert_eq!(
                find(scenario.name).map(|s| s.what),
                Some(scenario.what),
                "{}",
                scenario.name
            );
        }
        assert!(find("no-such").is_none());
        assert!(BY_NAME_ONLY.iter().all(|name| find(name).is_some()));
        assert!(ALONE.iter().all(|name| find(name).is_some()));
        assert_eq!(suite().count() + BY_NAME_ONLY.len(), ALL.len());
    }
}
