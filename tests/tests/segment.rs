//! The lab's own ground: namespaces, cables, TPMs, and that nothing of them stays.

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use gateway_core::identity::MacAddr;
use lab::netns::{GATEWAY_ADDR, MGMT_ADDR, Segment};
use lab::run::{Run, output};
use lab::swtpm::{self, Swtpm};

fn root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("SKIP not root: network namespaces cannot be made");
    }
    root
}

fn namespaces() -> String {
    output(Command::new("ip").arg("netns"), Duration::from_secs(5)).unwrap()
}

#[test]
fn a_machine_reaches_the_provisioning_side_and_never_the_management_side() {
    if !root() {
        return;
    }
    let run = Run::start("segment").unwrap();
    let segment = Segment::create(&run).unwrap();
    let node = segment
        .plug(&run, "n1", MacAddr([2, 0, 0, 0, 0, 1]))
        .unwrap();
    node.ip(&["addr", "add", "10.66.0.20/24", "dev", "eth0"])
        .unwrap();
    let listen = |addr| {
        segment
            .gw
            .enter(move || Ok(TcpListener::bind((addr, 7000))?))
    };
    let _prov = listen(GATEWAY_ADDR).unwrap();
    let _mgmt = listen(MGMT_ADDR).unwrap();
    let connect = |ns: &lab::netns::Netns, addr: std::net::Ipv4Addr| {
        ns.enter(|| {
            Ok(
                TcpStream::connect_timeout(&(addr, 7000).into(), Duration::from_millis(500))
                    .is_ok(),
            )
        })
        .unwrap()
    };
    assert!(connect(&node, GATEWAY_ADDR));
    assert!(!connect(&node, MGMT_ADDR));
    assert!(connect(&segment.mgmt, MGMT_ADDR));
    assert!(!connect(&segment.mgmt, GATEWAY_ADDR));
}

#[test]
fn a_run_leaves_no_namespace_no_process_and_no_folder() {
    if !root() {
        return;
    }
    let run = Run::start("leaves").unwrap();
    let id = run.id().to_owned();
    let dir = run.dir().to_owned();
    let segment = Segment::create(&run).unwrap();
    let sleeper = run
        .spawn("sleeper", segment.gw.command("sleep").arg("300"))
        .unwrap();
    let pid = sleeper.pid();
    assert!(namespaces().contains(&id));
    // As after a crash: the process value is not dropped, the run is.
    std::mem::forget(sleeper);
    drop(run);
    assert!(!namespaces().contains(&id));
    assert!(!dir.exists());
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "{state}");
}

#[test]
fn two_templates_are_two_tpms_and_a_copy_survives_a_power_cycle() {
    if !root() {
        return;
    }
    let run = Run::start("tpms").unwrap();
    let segment = Segment::create(&run).unwrap();
    let mut names = Vec::new();
    for (ns, index) in [(&segment.gw, 0), (&segment.mgmt, 1)] {
        let dir = run.dir().join(format!("tpm-{index}"));
        swtpm::provision(index, &dir).unwrap();
        let mut tpm = Swtpm::start(&run, ns, &format!("t{index}"), &dir).unwrap();
        let read = |tpm: &Swtpm| {
            output(
                tpm.tool("tpm2_nvread")
                    .arg("0x1c00002")
                    .args(["-o", "/dev/stdout"]),
                Duration::from_secs(20),
            )
            .unwrap()
        };
        let before = read(&tpm);
        output(
            tpm.tool("tpm2_pcrextend")
                .arg(format!("4:sha256={}", "11".repeat(32))),
            Duration::from_secs(20),
        )
        .unwrap();
        let pcr = |tpm: &Swtpm| {
            output(
                tpm.tool("tpm2_pcrread").arg("sha256:4"),
                Duration::from_secs(20),
            )
            .unwrap()
        };
        let extended = pcr(&tpm);
        tpm.power_cycle(&run).unwrap();
        assert_ne!(pcr(&tpm), extended, "PCR 4 starts anew");
        assert_eq!(read(&tpm), before, "the EK certificate stays");
        names.push(before);
    }
    assert_ne!(names[0], names[1]);
}
