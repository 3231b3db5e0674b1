//! One machine from DHCPDISCOVER to its LDevID in virtual time, against the whole core: the
//! specification of the walk, step by step in the order of `gateway_core::walk::WALK`.
//!
//! The shell is played by [`Site`]: it keeps the records, runs the work, and answers for the CA.
//! Invariants are checked at every effect.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::IpAddr;

use attest_wire::v1::Verdict as WireVerdict;
use gateway_core::admission::command::Command;
use gateway_core::admission::effect::Effect;
use gateway_core::appraisal::TimeTrust;
use gateway_core::gateway::{BootQuery, Input};
use gateway_core::identity::{ConnId, MacAddr, MachineId};
use gateway_core::policy::Policy;
use gateway_core::record::Record;
use gateway_core::walk::{Step, WALK};
use support::site::{MAC, PXE, SERVER, Site, boot_file, lease, message_type, node, yiaddr};

#[test]
fn one_machine_from_discover_to_its_ldevid() {
    let mut site = Site::new();
    let node = node();

    // discover, lease
    let addr = lease(&mut site);

    // boot: firmware fetches iPXE, iPXE its script, the script the UKI
    let query = |what: &str| BootQuery {
        peer: IpAddr::V4(addr),
        mac: None,
        arch: Some("x86_64".into()),
        what: what.into(),
    };
    site.gateway
        .boot_fetch(site.now, &query("ipxe-1.efi"))
        .unwrap();
    let script = site
        .gateway
        .boot_script(site.now, &query("/boot/script.ipxe"));
    assert!(script.contains("attester-3.efi"), "{script}");
    site.gateway
        .boot_fetch(site.now, &query("attester-3.efi"))
        .unwrap();
    site.drain();

    // hello, challenge, evidence, appraise: nobody knows these keys, so a claim waits
    let (status, result) = site.attempt(&node, 1, addr);
    assert_eq!((status, result.verdict), (202, WireVerdict::Pending));
    assert!(result.devid_chain.is_empty(), "a claim gets no certificate");
    let id = site.gateway.machines()[0].machine.0.clone();
    assert_eq!(site.machine(&id).state, "pending");

    // the owner compares the report and approves
    site.approve(&id);
    assert_eq!(site.machine(&id).state, "declared");

    // the machine asks again, on a new connection, and gets its LDevID
    let (status, result) = site.attempt(&node, 2, addr);
    assert_eq!(
        (status, result.verdict),
        (200, WireVerdict::Admitted),
        "{}",
        result.hint
    );
    assert_eq!(result.devid_chain.len(), 1);
    assert!(result.receipt.is_some());
    assert_eq!(site.machine(&id).state, "admitted");

    // every step of the walk left its record, in order
    // (installing is the owner's to begin: gateway/core/tests/install.rs)
    let walked: Vec<Step> = WALK
        .iter()
        .map(|row| row.step)
        .filter(|step| *step != Step::Install)
        .collect();
    let mut seen = site.steps();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, walked);
    let kinds: Vec<&str> = site
        .disk
        .ledger
        .iter()
        .map(|(_, _, record)| match record {
            Record::Genesis(_) => "genesis",
            Record::Claim(_) => "claim",
            Record::Operator(_) => "operator",
            Record::Verdict(_) => "verdict",
            Record::RefusalSummary(_) => "refusals",
            Record::Certificate(_) => "certificate",
            Record::EkCertificates(_) => "ek certificates",
            Record::Anchor(_) => "anchor",
            Record::Policy(_) => "policy",
            Record::Pruned(_) => "pruned",
            Record::Gate(_) => "gate",
            Record::Bridge(_) => "bridge",
            Record::Delivery(_) => "delivery",
            Record::Run(_) => "run",
            Record::Grant(_) => "grant",
            Record::Progress(_) => "progress",
            Record::RunEnd(_) => "run end",
            Record::Talos(_) => "talos",
        })
        .collect();
    assert_eq!(kinds, ["claim", "operator", "verdict", "certificate"]);
    let timeline = site.gateway.timeline(&MachineId(id)).unwrap();
    assert!(timeline.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert!(
        timeline
            .iter()
            .any(|entry| entry.step == Some(Step::Discover))
    );
    assert!(timeline.iter().any(|entry| entry.step == Some(Step::Issue)));
}

/// siderolabs/image-factory#204: iPXE says "No such file" and nothing else; the log must say which
/// machine asked for what.
#[test]
fn image_factory_204_a_missing_boot_file_names_machine_and_path() {
    let mut site = Site::new();
    let node = node();
    let addr = lease(&mut site);
    let asks = |site: &mut Site, peer: IpAddr| {
        site.drain();
        site.gateway.boot_missing(&BootQuery {
            peer,
            mac: None,
            arch: None,
            what: "/image/kernel-amd64".into(),
        });
        match site.gateway.poll_effect() {
            Some(Effect::Refused { subject, reasons }) => {
                assert_eq!(reasons.len(), 1);
                let reason = &reasons[0];
                assert_eq!(reason.code, "boot.no_such_file");
                assert!(
                    reason.found.ends_with("asks for /image/kernel-amd64"),
                    "{reason}"
                );
                (subject, reason.found.clone())
            }
            _ => panic!("a refusal"),
        }
    };
    let mac = MacAddr(MAC).to_string();
    // By its lease, before anything is known of it.
    let (subject, found) = asks(&mut site, addr.into());
    assert_eq!(subject, mac);
    assert!(found.starts_with(&mac), "{found}");
    // By its name, once it has one.
    site.attempt(&node, 1, addr);
    let id = site.gateway.machines()[0].machine.0.clone();
    site.approve(&id);
    let (subject, found) = asks(&mut site, addr.into());
    assert_eq!(subject, mac);
    assert!(found.starts_with(&format!("{id} ({mac})")), "{found}");
    // By its address, when nobody has a lease for it.
    let stranger = IpAddr::from([10, 66, 0, 99]);
    let (subject, found) = asks(&mut site, stranger);
    assert_eq!(subject, "10.66.0.99");
    assert!(found.starts_with("10.66.0.99 asks"), "{found}");
}

/// After each input the power may fail: what a restart finds is what had been decided, and the
/// machine completes.
#[test]
fn a_restart_at_any_point_loses_nothing_that_was_acknowledged() {
    for cut in 0..5 {
        let mut site = Site::new();
        let node = node();
        let addr = lease(&mut site);
        if cut == 0 {
            site.restart();
        }
        let (status, _) = site.attempt(&node, 1, addr);
        assert_eq!(status, 202);
        if cut == 1 {
            site.restart();
        }
        let id = site.gateway.machines()[0].machine.clone();
        site.approve(&id.0);
        if cut == 2 {
            site.restart();
        }
        if cut == 3 {
            // Between challenge and evidence: the session dies with the process.
            site.hello(&node, 7, addr);
            assert_eq!(site.replies.pop().map(|(_, status, _)| status), Some(200));
            site.restart();
            site.handle(Input::Evidence {
                conn: ConnId(7),
                body: b"{}".to_vec(),
            });
            let (status, result) = site.result();
            assert_eq!((status, result.code.as_str()), (409, "not_admitted"));
        }
        let (status, result) = site.attempt(&node, 2, addr);
        assert_eq!(status, 200, "cut {cut}: {} {}", result.code, result.hint);
        let before = site.machine(&id.0);
        site.restart();
        let after = site.machine(&id.0);
        assert_eq!(
            (
                after.state,
                after.ek_names,
                after.ldevid_not_after,
                after.last_seq
            ),
            (
                before.state,
                before.ek_names,
                before.ldevid_not_after,
                before.last_seq
            ),
            "cut {cut}"
        );
    }
}

#[test]
fn a_waiting_machine_that_asks_again_writes_one_claim() {
    let mut site = Site::new();
    let node = node();
    let addr = lease(&mut site);
    let reports: Vec<String> = (1..5)
        .map(|conn| {
            assert_eq!(site.attempt(&node, conn, addr).0, 202);
            site.gateway.machines()[0].report_sha256.clone().unwrap()
        })
        .collect();
    assert_eq!(site.disk.ledger.len(), 1);
    assert!(
        reports.windows(2).all(|pair| pair[0] == pair[1]),
        "the digest to compare stays"
    );
}

#[test]
fn withdrawn_is_refused_with_its_state_and_installed_boots_its_disk() {
    let mut site = Site::new();
    let node = node();
    let addr = lease(&mut site);
    site.attempt(&node, 1, addr);
    let id = site.gateway.machines()[0].machine.clone();
    site.approve(&id.0);
    assert_eq!(site.attempt(&node, 2, addr).0, 200);

    site.act(Command::MarkInstalled(id.clone()));
    let offer = site.datagram(1, &PXE);
    let (server, offered) = (SERVER.octets(), yiaddr(&offer).octets());
    let mut taking = PXE.to_vec();
    taking.extend([(50, &offered[..]), (54, &server[..])]);
    let (leases, nak) = (site.disk.leases.len(), site.datagram(3, &taking));
    assert_eq!(
        message_type(&nak),
        6,
        "the firmware of an installed machine goes on to its local disk"
    );
    assert_eq!(site.disk.leases.len(), leases);
    // Its system asks without a boot client's class, and is leased an address.
    site.datagram(1, &[]);
    assert_eq!(message_type(&site.datagram(3, &taking[PXE.len()..])), 5);

    site.act(Command::Withdraw(id.clone(), "sold".into()));
    let offer = site.datagram(1, &PXE);
    assert_eq!(
        boot_file(&offer),
        "ipxe-1.efi",
        "a held machine is shown why"
    );
    site.hello(&node, 3, addr);
    let (status, result) = site.result();
    assert_eq!((status, result.code.as_str()), (403, "not_admitted"));
    let Some((_, _, Record::RefusalSummary(summary))) = site.disk.ledger.last() else {
        panic!("the refusal is on record");
    };
    assert_eq!(summary.last.code, "machine.state");
    assert_eq!(site.gateway.status().refusals["machine.state"], 1);
}

#[test]
fn a_second_hello_on_a_connection_and_late_evidence_are_refused() {
    let mut site = Site::new();
    let node = node();
    let addr = lease(&mut site);
    site.hello(&node, 1, addr);
    site.replies.clear();
    site.hello(&node, 1, addr);
    assert_eq!(site.result().0, 503);

    site.now.0 += 60_000;
    site.gateway.handle_timeout(site.now);
    site.drain();
    assert!(site.disk.ledger.iter().any(|(_, _, record)| {
        matches!(record, Record::RefusalSummary(s) if s.last.code == "session.timeout")
    }));
    assert_eq!(site.gateway.status().sessions, 0);
}

#[test]
fn a_clock_that_is_held_back_does_not_prolong_a_grace() {
    let mut site = Site::new();
    let before = site.now;
    let floor = "version = 1\npreset = \"standard\"\n[[boot.floor]]\nimage = \"attester\"\nversion = 4\n\
                 grace_from = 3\ngrace_until = 2027-02-01T00:00:00Z\n";
    site.declared.policy = Policy::parse(floor).unwrap();
    site.restart();
    site.time = TimeTrust::Rtc(before);
    let mut node = node();
    let addr = lease(&mut site);
    site.attempt(&node, 1, addr);
    let id = site.gateway.machines()[0].machine.0.clone();
    site.approve(&id);
    let (_, result) = site.attempt(&node, 2, addr);
    assert_eq!(result.verdict, WireVerdict::Admitted);

    // A month later something is written down; then the appliance starts with the time of before.
    site.now.0 += 31 * 86_400_000;
    site.act(Command::Cordon(MachineId(id.clone())));
    site.act(Command::Uncordon(MachineId(id)));
    site.now = before;
    site.restart();
    let addr = lease(&mut site);
    // Still the boot of the last attempt, which left its mark.
    node.pcr15.push(node.mark.get());
    let (_, result) = site.attempt(&node, 3, addr);
    assert_eq!(result.verdict, WireVerdict::NotAdmitted);
    assert_eq!(site.refused, ["boot.floor"]);
}
