//! The gate inside the whole core: what an admission opens, what closes it, and that a restart finds
//! the same.

#![allow(clippy::unwrap_used)]

mod support;

use attest_wire::v1::Verdict as WireVerdict;
use gateway_core::admission::command::Command;
use gateway_core::gate::{By, OpenRule, Settings};
use gateway_core::identity::MachineId;
use gateway_core::record::{GateCause, Record};
use support::Node;
use support::site::{Site, lease, node};

const OPEN_MS: u64 = 600_000;

fn site() -> Site {
    let mut site = Site::new();
    site.disk.gate = Some(Settings {
        by: By::Address,
        rules: vec![OpenRule {
            class: None,
            to: "192.0.2.0/24".parse().unwrap(),
            ports: "tcp/6443".parse().unwrap(),
        }],
        open_ms: OPEN_MS,
    });
    site.restart();
    site
}

/// A machine that was approved and admitted: the node, its name and the text of its element.
fn admitted(site: &mut Site) -> (Node, MachineId, String) {
    let node = node();
    let addr = lease(site);
    site.attempt(&node, 1, addr);
    let id = site.gateway.machines()[0].machine.clone();
    site.approve(&id.0);
    assert!(site.open.is_empty(), "an approval opens nothing");
    let (_, result) = site.attempt(&node, 2, addr);
    assert_eq!(result.verdict, WireVerdict::Admitted, "{}", result.hint);
    let element = format!("52:54:00:12:34:56 {addr} to 192.0.2.0/24 tcp/6443");
    assert!(site.open.iter().eq([&element]), "{:?}", site.open);
    (node, id, element)
}

fn causes(site: &Site) -> Vec<GateCause> {
    let records = site.disk.ledger.iter();
    records
        .filter_map(|(_, _, record)| match record {
            Record::Gate(change) => Some(change.cause),
            _ => None,
        })
        .collect()
}

/// What a restart puts in place before anybody is answered.
fn after_restart(site: &mut Site) -> Vec<String> {
    site.restart();
    let open = site.gateway.gate_open(site.now);
    site.drain();
    let text = |change: &gateway_core::gate::Change| match change {
        gateway_core::gate::Change::Open { element, .. } => element.to_string(),
        gateway_core::gate::Change::Close { .. } => panic!("a start closes by leaving out"),
    };
    open.iter().map(text).collect()
}

#[test]
fn a_withdrawal_closes_and_a_restart_finds_the_same() {
    let mut site = site();
    let (_, id, element) = admitted(&mut site);
    let gate = site.machine(&id.0).gate.unwrap();
    assert_eq!(gate.open, std::slice::from_ref(&element));
    assert_eq!(after_restart(&mut site), [element]);
    site.act(Command::Withdraw(id.clone(), "left".into()));
    assert!(site.open.is_empty());
    assert_eq!(causes(&site), [GateCause::Admitted, GateCause::State]);
    assert!(after_restart(&mut site).is_empty());
    assert_eq!(site.machine(&id.0).gate.unwrap().until, None);
}

/// The power went between the withdrawal and the gate's own record: the state alone closes.
#[test]
fn a_withdrawal_without_the_gate_s_record_closes_at_the_next_start() {
    let mut site = site();
    let (_, id, _) = admitted(&mut site);
    site.act(Command::Withdraw(id, "left".into()));
    let last = site.disk.ledger.pop().unwrap();
    assert!(matches!(last.2, Record::Gate(_)), "{last:?}");
    assert!(after_restart(&mut site).is_empty());
    assert_eq!(causes(&site), [GateCause::Admitted, GateCause::State]);
}

#[test]
fn a_cordon_closes_and_only_the_next_admission_opens_again() {
    let mut site = site();
    let (node, id, element) = admitted(&mut site);
    site.act(Command::Cordon(id.clone()));
    assert!(site.open.is_empty());
    site.act(Command::Uncordon(id));
    assert!(site.open.is_empty());
    let addr = element.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, result) = site.attempt(&node, 3, addr);
    assert_eq!(result.verdict, WireVerdict::Admitted, "{}", result.hint);
    assert!(site.open.contains(&element));
}

#[test]
fn time_closes_and_says_so() {
    let mut site = site();
    let (_, _, element) = admitted(&mut site);
    site.wait(OPEN_MS - 1_000);
    assert!(site.open.contains(&element));
    let due = site.gateway.poll_timeout().unwrap();
    assert!(due.0 <= site.now.0 + 1_000, "nobody would be woken");
    site.wait(2_000);
    assert!(site.open.is_empty());
    assert_eq!(causes(&site), [GateCause::Admitted, GateCause::Expired]);
}

/// Evidence that comes from an address without a lease of the machine's own hardware address: a
/// router, a forwarder, a neighbour.
#[test]
fn a_machine_opens_only_the_address_that_it_attested_from() {
    let mut site = site();
    let (node, id, _) = admitted(&mut site);
    let (_, result) = site.attempt(&node, 3, "10.66.0.77".parse().unwrap());
    assert_eq!(result.verdict, WireVerdict::Admitted, "{}", result.hint);
    assert!(site.open.is_empty(), "{:?}", site.open);
    assert!(site.refused.iter().any(|code| code == "gate.address"));
    assert_eq!(causes(&site), [GateCause::Admitted, GateCause::Moved]);
    assert_eq!(site.machine(&id.0).state, "admitted");
}

#[test]
fn without_a_gate_nothing_of_it_is_written_or_done() {
    let mut site = Site::new();
    let node = node();
    let addr = lease(&mut site);
    site.attempt(&node, 1, addr);
    let id = site.gateway.machines()[0].machine.clone();
    site.approve(&id.0);
    site.attempt(&node, 2, addr);
    site.act(Command::Withdraw(id.clone(), "left".into()));
    assert!(causes(&site).is_empty() && site.open.is_empty());
    assert_eq!(site.machine(&id.0).gate, None);
}
