//! Liars and races against the whole core: what an unproven node, a proven one or a bad moment must
//! not bring about. Numbers are those of the liars' suite where there is one.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::Ipv4Addr;

use attest_wire::v1::{Disk, Verdict as WireVerdict};
use gateway_core::admission::command::Command;
use gateway_core::admission::effect::{Effect, Work, WorkDone};
use gateway_core::appraisal::TimeTrust;
use gateway_core::gateway::Input;
use gateway_core::identity::{ConnId, EkName, MachineId};
use gateway_core::inventory::{DeclaredMachine, Inventory};
use gateway_core::limits;
use gateway_core::policy::{Policy, Preset};
use gateway_core::reason::Reason;
use gateway_core::record::Record;
use support::Node;
use support::log::{self, EV_VARIABLE, Entry, LogBuilder};
use support::site::{IPXE, PXE, STUB, Site, UKI, boot_file, lease, node};

const PEER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 200);
/// The ledger takes no record beyond this (store: 256 KiB a line, less its frame).
const RECORD_BYTES: usize = 255 * 1024;

fn declared(id: &str, ek_names: Vec<EkName>) -> Inventory {
    Inventory {
        machines: vec![DeclaredMachine {
            id: MachineId(id.into()),
            serial: "LAB-0001".into(),
            ek_names,
            disk_serial: None,
            port: None,
            class: "default".into(),
        }],
    }
}

fn ek_names(node: &Node) -> Vec<EkName> {
    let name = |ek: &support::NodeEk| EkName(ek.public.name().to_hex());
    node.eks.iter().map(name).collect()
}

fn claims(site: &Site) -> usize {
    let claim = |(_, _, record): &&(u64, _, Record)| matches!(record, Record::Claim(_));
    site.disk.ledger.iter().filter(claim).count()
}

fn longest_record(site: &Site) -> usize {
    let len = |(_, _, record): &(u64, _, Record)| serde_json::to_vec(record).unwrap().len();
    site.disk.ledger.iter().map(len).max().unwrap_or(0)
}

#[test]
fn attack_16_a_log_of_thousands_of_bad_events_makes_no_record_that_the_ledger_refuses() {
    let mut entries = log::honest(&[IPXE, UKI, UKI], &STUB);
    for n in 0..4_500u32 {
        entries.push(Entry::of(
            7,
            EV_VARIABLE,
            log::sha256(&n.to_le_bytes()),
            b"x",
        ));
    }
    let mut site = Site::new();
    let node = Node::new(LogBuilder::write(&entries));
    assert_eq!(site.attempt(&node, 1, PEER).0, 202);
    assert!(
        longest_record(&site) < RECORD_BYTES,
        "{}",
        longest_record(&site)
    );
    let id = site.gateway.machines()[0].machine.0.clone();
    site.approve(&id);
    assert_eq!(site.attempt(&node, 2, PEER).0, 403);
    assert!(
        longest_record(&site) < RECORD_BYTES,
        "{}",
        longest_record(&site)
    );
}

#[test]
fn attack_16_evidence_that_the_transport_refuses_ends_on_record() {
    let node = node();
    let mut site = Site::with(declared("rack1-n1", ek_names(&node)), Preset::Standard);
    let too_large = || Reason::new("malformed.size", "less", "64 MiB", "row 1", "send less");
    for conn in [1, 2] {
        // The second connection has said no hello.
        if conn == 1 {
            site.hello(&node, conn, PEER);
        }
        site.handle(Input::EvidenceBroken {
            conn: ConnId(conn),
            status: 413,
            reason: too_large(),
        });
        let (status, result) = site.result();
        assert_eq!((status, result.code.as_str()), (413, "not_admitted"));
        assert_eq!(site.gateway.status().sessions, 0);
        let written = site.disk.ledger.iter().any(|(_, _, record)| {
            matches!(record, Record::RefusalSummary(sum)
                if sum.last == too_large() && sum.correlation == result.correlation)
        });
        assert!(written, "connection {conn}");
    }
    assert_eq!(site.attempt(&node, 3, PEER).0, 200);
}

#[test]
fn attack_26_a_clone_is_known_by_the_mark_it_lacks_also_after_a_restart() {
    let mut node = node();
    let mut site = Site::with(declared("rack1-n1", ek_names(&node)), Preset::Standard);
    assert_eq!(site.attempt(&node, 1, PEER).0, 200);
    let verdicts = |site: &Site| -> Vec<(String, Vec<String>)> {
        let verdict = |record: &Record| match record {
            Record::Verdict(verdict) => Some((
                verdict.boot_mark.clone().expect("row 10 has passed"),
                verdict.reasons.iter().map(|r| r.code.to_string()).collect(),
            )),
            _ => None,
        };
        site.disk
            .ledger
            .iter()
            .filter_map(|(_, _, r)| verdict(r))
            .collect()
    };
    let mark = node.mark.get();
    site.restart();
    // A TPM of the same state, in which nobody has attested.
    assert_eq!(site.attempt(&node, 2, PEER).0, 200);
    // The original, which has not seen what the clone left.
    node.pcr15.push(mark);
    assert_eq!(site.attempt(&node, 3, PEER).0, 200);
    let codes: Vec<Vec<String>> = verdicts(&site)
        .into_iter()
        .map(|(_, codes)| codes)
        .collect();
    let cloned = vec!["freshness.clone".to_owned()];
    assert_eq!(
        codes,
        [vec![], cloned.clone(), cloned],
        "reported by the preset"
    );
}

#[test]
fn a_restart_does_not_undo_what_was_decided_about_a_declared_machine() {
    let node = node();
    let mut site = Site::with(declared("rack1-n1", ek_names(&node)), Preset::Standard);
    assert_eq!(site.attempt(&node, 1, PEER).0, 200);
    site.restart();
    assert_eq!(site.machine("rack1-n1").state, "admitted");
    site.act(Command::Withdraw(
        MachineId("rack1-n1".into()),
        "stolen".into(),
    ));
    site.restart();
    assert_eq!(site.machine("rack1-n1").state, "withdrawn");
    site.hello(&node, 2, PEER);
    assert_eq!(site.result().0, 403, "withdrawn stays withdrawn");
}

#[test]
fn attack_02_other_keys_with_the_declared_serial_do_not_take_over_a_waiting_claim() {
    let (honest, liar) = (node(), node());
    let mut site = Site::with(declared("rack1-n1", Vec::new()), Preset::Standard);
    assert_eq!(site.attempt(&honest, 1, PEER).0, 202);
    assert_eq!(site.attempt(&liar, 2, PEER).0, 202);
    assert_eq!(site.machine("rack1-n1").ek_names, ek_names(&honest));
    let other = site
        .gateway
        .machines()
        .into_iter()
        .find(|m| m.ek_names == ek_names(&liar))
        .expect("a claim of its own");
    assert!(other.reasons.iter().any(|r| r.code == "claim.contested"));
    site.restart();
    assert_eq!(site.machine("rack1-n1").ek_names, ek_names(&honest));
    site.approve("rack1-n1");
    assert_eq!(site.attempt(&honest, 3, PEER).0, 200);
}

#[test]
fn a_rejected_claim_leaves_name_and_addresses_to_the_real_machine() {
    let (liar, honest) = (node(), node());
    let mut site = Site::with(declared("rack1-n1", Vec::new()), Preset::Standard);
    assert_eq!(site.attempt(&liar, 1, PEER).0, 202);
    site.act(Command::Withdraw(
        MachineId("rack1-n1".into()),
        "not ours".into(),
    ));
    for round in 0..2u64 {
        // The liar had the honest machine's hardware address.
        lease(&mut site);
        let (status, result) = site.attempt(&liar, 10 + round, PEER);
        assert_eq!((status, result.code.as_str()), (403, "claim.rejected"));
        site.restart();
    }
    assert_eq!(site.attempt(&honest, 2, PEER).0, 202);
    site.approve("rack1-n1");
    assert_eq!(site.attempt(&honest, 3, PEER).0, 200);
    site.restart();
    assert_eq!(site.machine("rack1-n1").ek_names, ek_names(&honest));
    assert_eq!(site.machine("rack1-n1").state, "admitted");
}

#[test]
fn a_certificate_is_not_handed_to_a_machine_that_was_withdrawn_meanwhile() {
    let node = node();
    let id = MachineId("rack1-n1".into());
    let mut site = Site::with(declared(&id.0, ek_names(&node)), Preset::Standard);
    let hello = site.hello(&node, 1, PEER);
    site.evidence_held(&node, 1, &hello);
    // The evidence has passed and the CA is at work.
    site.act(Command::Withdraw(id.clone(), "stolen".into()));
    site.release();
    let (status, result) = site.result();
    assert_eq!((status, result.verdict), (403, WireVerdict::NotAdmitted));
    assert!(result.devid_chain.is_empty() && result.receipt.is_none());
    let last = site
        .disk
        .ledger
        .iter()
        .rev()
        .find(|r| matches!(r.2, Record::Certificate(_)));
    assert!(
        last.is_some(),
        "what the CA signed is on record all the same"
    );
}

#[test]
fn a_floor_raised_while_the_evidence_is_judged_counts() {
    let node = node();
    let mut site = Site::with(declared("rack1-n1", ek_names(&node)), Preset::Standard);
    let hello = site.hello(&node, 1, PEER);
    site.hold = true;
    site.evidence(&node, 1, &hello);
    site.act(Command::ImageFloor("attester".into(), 4));
    site.release();
    assert_eq!(site.result().0, 403);
}

#[test]
fn an_installed_machine_that_attests_stays_installed() {
    let node = node();
    let id = MachineId("rack1-n1".into());
    let mut site = Site::with(declared(&id.0, ek_names(&node)), Preset::Standard);
    assert_eq!(site.attempt(&node, 1, PEER).0, 200);
    site.act(Command::MarkInstalled(id.clone()));
    assert_eq!(site.attempt(&node, 2, PEER).0, 200);
    let live = site.machine(&id.0).state;
    site.restart();
    assert_eq!(
        (live.as_str(), site.machine(&id.0).state.as_str()),
        ("installed", "installed")
    );
    // Somebody who only shows its public keys does not keep the owner from stating it either.
    site.act(Command::Cordon(id.clone()));
    site.act(Command::Uncordon(id.clone()));
    site.hello(&node, 3, PEER);
    site.act(Command::MarkInstalled(id));
}

#[test]
fn attack_01_an_admitted_machine_does_not_take_the_address_of_another() {
    let (first, second) = (node(), node());
    let mut inventory = declared("a", ek_names(&first));
    inventory
        .machines
        .extend(declared("b", ek_names(&second)).machines);
    let mut site = Site::with(inventory, Preset::Observe);
    assert_eq!(site.attempt(&first, 1, PEER).0, 200);
    assert_eq!(
        site.attempt(&second, 2, PEER).0,
        200,
        "observe only reports"
    );
    site.act(Command::MarkInstalled(MachineId("b".into())));
    let offer = site.datagram(1, &PXE);
    assert_eq!(
        boot_file(&offer),
        "ipxe-1.efi",
        "the address is still that of a"
    );
}

#[test]
fn attack_61_a_flood_of_claims_leaves_room_for_a_declared_machine() {
    const SOFTWARE_EKS: u64 = 10_000;
    let waiting = limits::CLAIMS_UNVOUCHED_MAX as u64;
    let mut site = Site::with(declared("rack1-n1", Vec::new()), Preset::Standard);
    let real = node();
    let mut refused = 0;
    for n in 0..SOFTWARE_EKS {
        // It waits from the middle of the flood on.
        if n == SOFTWARE_EKS / 2 {
            assert_eq!(site.attempt(&real, 1, PEER).0, 202);
            assert_eq!(site.machine("rack1-n1").state, "pending");
        }
        let mut liar = node();
        liar.serial = format!("FAKE-{n}");
        let (status, result) = site.attempt(&liar, n + 10, PEER);
        if status == 403 {
            assert_eq!(result.code, "claim.quota");
            refused += 1;
        }
    }
    assert_eq!(refused, SOFTWARE_EKS - waiting);
    site.approve("rack1-n1");
    assert_eq!(site.attempt(&real, 2, PEER).0, 200);
    // What is left of the flood: its claims within the quota, and sums.
    assert_eq!(site.gateway.machines().len() as u64, waiting + 1);
    site.now.0 += 60_000;
    site.gateway.handle_timeout(site.now);
    site.drain();
    let (mut summed, mut sums) = (0, 0);
    for (_, _, record) in &site.disk.ledger {
        match record {
            Record::RefusalSummary(sum) => {
                assert_eq!(sum.last.code, "claim.quota");
                summed += sum.count;
                sums += 1;
            }
            Record::Verdict(verdict) => assert!(verdict.admitted, "{verdict:?}"),
            _ => {}
        }
    }
    assert_eq!(summed, refused, "none is lost in the sums");
    // One attempt takes some 10 ms of the test's clock; a sum is written each minute.
    assert!(sums <= 40, "{sums} sums");
    assert_eq!(claims(&site) as u64, waiting + 1);
}

#[test]
fn one_software_tpm_does_not_fill_the_ledger_with_claims() {
    let mut site = Site::new();
    let mut liar = node();
    for n in 0..40u64 {
        liar.disks = vec![Disk {
            name: "vda".into(),
            serial: format!("DISK-{n}"),
            model: "virtio".into(),
            size_bytes: 1,
        }];
        site.attempt(&liar, n, PEER);
    }
    assert!(claims(&site) <= 2, "{}", claims(&site));
}

#[test]
fn a_bound_machine_that_lies_again_and_again_buys_few_records() {
    let mut entries = log::honest(&[IPXE, UKI, UKI], &STUB);
    entries.push(Entry::of(7, EV_VARIABLE, [9; 32], b"x"));
    let liar = Node::new(LogBuilder::write(&entries));
    let mut site = Site::with(declared("rack1-n1", ek_names(&liar)), Preset::Standard);
    for n in 0..100 {
        assert_eq!(site.attempt(&liar, n, PEER).0, 403);
    }
    assert!(site.disk.ledger.len() <= 22, "{}", site.disk.ledger.len());
    site.now.0 += 60_000;
    site.gateway.handle_timeout(site.now);
    site.drain();
    let total: u64 = site
        .disk
        .ledger
        .iter()
        .map(|(_, _, record)| match record {
            Record::Verdict(_) => 1,
            Record::RefusalSummary(sum) => sum.count,
            _ => 0,
        })
        .sum();
    assert_eq!(total, 100, "none is lost in the sum");
}

#[test]
fn an_approval_is_for_the_report_that_was_seen() {
    let mut site = Site::new();
    let mut node = node();
    site.attempt(&node, 1, PEER);
    let id = site.gateway.machines()[0].machine.0.clone();
    let seen = site.approval(&id);
    node.serial = "LAB-0666".into();
    // Too soon: an owner may be looking at it.
    let (status, result) = site.attempt(&node, 2, PEER);
    assert_eq!((status, result.code.as_str()), (403, "claim.changed"));
    site.now.0 += 60_000;
    assert_eq!(site.attempt(&node, 3, PEER).0, 202);
    let refused = site.ask(seen).expect_err("another report");
    assert_eq!(refused.code, "claim.changed");
    assert_eq!(site.machine(&id).state, "pending");
    site.approve(&id);
}

#[test]
fn an_approval_is_for_a_class_that_the_policy_has() {
    let classes = |names: &[&str]| {
        let lines = names.iter().map(|n| format!("[[class]]\nname = \"{n}\"\n"));
        let text = lines.collect::<String>();
        Policy::parse(&format!("version = 1\npreset = \"standard\"\n{text}")).unwrap()
    };
    let given = |site: &Site, id: &str, name: &str| {
        let Command::Approve {
            machine,
            report_sha256,
            compared,
            ..
        } = site.approval(id)
        else {
            panic!("no approval");
        };
        Command::Approve {
            machine,
            report_sha256,
            class: Some(name.into()),
            disk_serial: None,
            port: None,
            compared,
        }
    };
    let mut site = Site::new();
    site.declared.policy = classes(&["control", "worker"]);
    site.restart();
    let node = node();
    site.attempt(&node, 1, PEER);
    let id = site.gateway.machines()[0].machine.0.clone();
    for name in ["contrl", "Control", "control "] {
        let command = given(&site, &id, name);
        let refused = site.ask(command).expect_err("no such class");
        assert_eq!(refused.code, "machine.class");
        assert!(
            refused.expected.contains("control, worker, default"),
            "{refused:?}"
        );
        assert_eq!(site.machine(&id).state, "pending");
    }
    let command = given(&site, &id, "worker");
    site.act(command);
    assert_eq!(site.attempt(&node, 2, PEER).0, 200);
    // A later policy without its class lets it in no more, and the names are in the count's reason.
    site.declared.policy = classes(&["control"]);
    site.restart();
    site.hello(&node, 3, PEER);
    assert_eq!(site.result().0, 403);
    let refusals = site.gateway.status().refusals;
    assert_eq!(refusals.get("machine.class"), Some(&1), "{refusals:?}");
    // Without classes there is one set of rules, whatever the name.
    site.declared.policy = classes(&[]);
    site.restart();
    assert_eq!(site.attempt(&node, 4, PEER).0, 200);
}

#[test]
fn attack_25_a_key_declared_for_two_machines_serves_neither() {
    let node = node();
    let mut site = Site::new();
    site.attempt(&node, 1, PEER);
    let id = site.gateway.machines()[0].machine.0.clone();
    site.approve(&id);
    assert_eq!(site.attempt(&node, 2, PEER).0, 200);
    site.act(Command::Withdraw(MachineId(id), "stolen".into()));
    // Declaring its key once more under another name does not wash it clean.
    site.declared.inventory = declared("rack1-n1", ek_names(&node));
    site.restart();
    site.hello(&node, 3, PEER);
    assert_eq!(site.result().0, 403);
    let refusals = site.gateway.status().refusals;
    assert_eq!(refusals.get("ek.ambiguous"), Some(&1), "{refusals:?}");
}

#[test]
fn made_up_addresses_do_not_keep_real_ones_out_of_the_timeline() {
    let mut site = Site::new();
    for n in 0..4_200u32 {
        let query = gateway_core::gateway::BootQuery {
            peer: PEER.into(),
            mac: Some(gateway_core::identity::MacAddr([
                2,
                0,
                0,
                0,
                (n >> 8) as u8,
                n as u8,
            ])),
            arch: None,
            what: "/boot/script.ipxe".into(),
        };
        site.now.0 += 1;
        site.gateway.boot_script(site.now, &query);
        site.drain();
    }
    let before = site.disk.marks.len();
    lease(&mut site);
    assert!(site.disk.marks.len() > before);
}

#[test]
fn a_worker_that_fails_leaves_no_session_behind() {
    let mut site = Site::new();
    site.hold = true;
    site.hello(&node(), 1, PEER);
    site.held.clear();
    assert_eq!(site.gateway.status().sessions, 1);
    let failed = Box::new(WorkDone::Failed(ConnId(1)));
    site.handle(Input::WorkDone(failed));
    let (status, result) = site.result();
    assert_eq!((status, result.code.as_str()), (403, "not_admitted"));
    assert_eq!(site.gateway.status().sessions, 0);
    let refusals = site.gateway.status().refusals;
    assert_eq!(refusals.get("gateway.defect"), Some(&1));
}

#[test]
fn certificates_are_judged_by_the_clock_of_today_not_of_the_start() {
    let mut site = Site::new();
    site.hold = true;
    site.time = TimeTrust::Rtc(site.now);
    site.hello(&node(), 1, PEER);
    let Some(Effect::Work(work)) = site.held.pop() else {
        panic!("the hello is judged");
    };
    let Work::Hello { rules, .. } = *work else {
        panic!("the hello is judged");
    };
    assert_eq!(rules.time, site.time);
}

/// A machine in a boot loop does not keep the CA signing; the budget counts over a restart.
#[test]
fn a_machine_in_a_loop_is_issued_no_more_than_its_hourly_budget() {
    let node = node();
    let mut site = Site::with(declared("m-1", ek_names(&node)), Preset::Standard);
    let budget = gateway_core::limits::ISSUES_PER_HOUR_MAX as u64;
    for conn in 0..budget {
        let (status, result) = site.attempt(&node, conn, PEER);
        assert_eq!(status, 200, "{}", result.code);
        site.gateway.handle(site.now, Input::Closed(ConnId(conn)));
    }
    site.restart();
    let (status, result) = site.attempt(&node, 1_000, PEER);
    assert_eq!((status, result.code.as_str()), (403, "issue.budget"));
    site.now.0 += gateway_core::limits::ISSUE_BUDGET_MS;
    assert_eq!(site.attempt(&node, 1_001, PEER).0, 200);
}

/// A DHCPREQUEST for `addr`, as a lease is granted or renewed, with option 82 or without.
fn request(site: &mut Site, addr: Ipv4Addr, relay: Option<&[u8]>) {
    let (addr, server) = (addr.octets(), support::site::SERVER.octets());
    let mut options = vec![(50, &addr[..]), (54, &server[..])];
    options.extend(relay.map(|relay| (82, relay)));
    let ack = site.datagram(3, &options);
    assert_eq!(ack.payload[16..20], addr);
}

/// Verdicts of the ledger: port, and codes of what was reported.
fn ports(site: &Site) -> Vec<(String, Vec<String>)> {
    site.disk
        .ledger
        .iter()
        .filter_map(|(_, _, record)| match record {
            Record::Verdict(verdict) => Some((
                verdict.port.clone().unwrap_or_default(),
                verdict.reasons.iter().map(|r| r.code.to_string()).collect(),
            )),
            _ => None,
        })
        .collect()
}

#[test]
fn attack_28_option_82_of_the_lease_is_a_second_witness_also_after_a_restart() {
    use netstack::lldp::{Frame, Id, Lldpdu};
    let mut node = node();
    let pdu = Lldpdu::new(Id::local("sw1"), Id::interface("Ethernet1/7"), 120);
    let frame = Frame::announce(netstack::MacAddr([2, 0, 0, 0, 0, 1]), pdu).encode();
    node.lldp.push(attest_wire::v1::LldpReport {
        frame: frame.into(),
        age_ms: 1_000,
        nic: "eth0".into(),
    });
    let mut site = Site::with(declared("node-1", ek_names(&node)), Preset::Standard);
    let addr = lease(&mut site);
    site.attempt(&node, 1, addr);
    request(&mut site, addr, Some(b"\x01\x06Eth1/9\x02\x03sw1"));
    site.attempt(&node, 2, addr);
    // The word is on disk with the lease, and a renewal past the relay does not take it back.
    site.restart();
    request(&mut site, addr, None);
    site.restart();
    site.attempt(&node, 3, addr);
    request(&mut site, addr, Some(b"\x01\x06Eth1/7"));
    site.attempt(&node, 4, addr);
    let other = "sw1/Ethernet1/7; option 82 names another port (circuit id Eth1/9, remote id sw1)";
    let same = "sw1/Ethernet1/7; option 82 names the same port (circuit id Eth1/7)";
    let told = vec!["port.option82".to_owned()];
    let seen: Vec<(String, Vec<String>)> = ports(&site)
        .into_iter()
        .map(|(port, codes)| {
            let ours = codes.into_iter().filter(|c| c.starts_with("port."));
            (port, ours.collect())
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("sw1/Ethernet1/7".to_owned(), vec![]),
            (other.to_owned(), told.clone()),
            (other.to_owned(), told),
            (same.to_owned(), vec![]),
        ]
    );
}
