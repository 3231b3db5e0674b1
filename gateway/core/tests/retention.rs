//! What is carried of removed ledger segments leads to the very state that all of them led to, whatever
//! happened and whatever is declared at the next start.

use std::collections::BTreeSet;

use gateway_core::appraisal::EkRoots;
use gateway_core::gate::{By, Change, Gate, Leased, Settings, Standing, World};
use gateway_core::identity::{EkName, MacAddr, MachineId, UnixMillis};
use gateway_core::inventory::{DeclaredMachine, Inventory};
use gateway_core::reason::Reason;
use gateway_core::record::{
    Act, Anchor, Certificate, Claim, EkCause, EkCertificate, EkCertificates, GateAct, GateCause,
    GateChange, OperatorAct, Record, RefusalSummary, Verdict,
};
use gateway_core::retention::{self, Numbered};
use proptest::prelude::*;

const NOW: UnixMillis = UnixMillis(2_000);

fn machine(n: u8) -> MachineId {
    MachineId(format!("m-{n}"))
}

fn ek(n: u8) -> EkName {
    EkName(format!("000b{}", hex::encode([n; 32])))
}

fn reason(n: u8) -> Reason {
    Reason::new("ek.unknown", "an enrolled EK", n.to_string(), "x", "y")
}

fn operator(act: Act) -> Record {
    Record::Operator(OperatorAct {
        by: "owner".into(),
        role: "owner".into(),
        act,
    })
}

fn verdict(n: u8, mac: u8, admitted: bool, count: u8) -> Record {
    Record::Verdict(Verdict {
        machine: Some(machine(n)),
        admitted,
        ek_names: vec![ek(n)],
        ek_keys: vec![],
        ak_name: "00".into(),
        macs: vec![MacAddr([2, 0, 0, 0, 0, mac])],
        node_uuid: Some(format!("uuid-{}", count % 3)),
        counters: Some((count.into(), 0)),
        boot_mark: Some(hex::encode([count; 32])),
        image_sha256: None,
        port: None,
        assurance: if count.is_multiple_of(2) {
            "bare-ek"
        } else {
            "vendor-chain"
        }
        .into(),
        devid_auth: "none".into(),
        seal: "development".into(),
        reasons: if admitted {
            vec![]
        } else {
            vec![reason(count)]
        },
        policy_sha256: "00".into(),
        correlation: "c".into(),
    })
}

fn claim(n: u8, mac: u8, key: u8) -> Record {
    Record::Claim(Claim {
        machine: machine(n),
        ek_names: vec![ek(key)],
        serial: format!("S{n}"),
        macs: vec![MacAddr([2, 0, 0, 0, 0, mac])],
        disks: vec![],
        port: None,
        assurance: "bare-ek".into(),
        report_sha256: "11".into(),
        would_refuse: vec![reason(n)],
        correlation: "c".into(),
    })
}

fn certificate(n: Option<u8>, not_after: u64) -> Record {
    Record::Certificate(Certificate {
        machine: n.map(machine),
        profile: "ldevid".into(),
        serial: "01".into(),
        sha256: "02".into(),
        sha1: None,
        subject_cn: "x".into(),
        not_after: UnixMillis(not_after),
        correlation: None,
    })
}

fn eks(n: u8, path: bool, arrived: bool) -> Record {
    let cert = EkCertificate {
        ek_name: ek(n),
        proven: true,
        ek_cert_sha256: hex::encode([n; 32]),
        ek_cert_serial: "01".into(),
        path: if path { vec!["aa".repeat(32)] } else { vec![] },
        issuer: "CN=x".into(),
        issuer_key: None,
        ca_issuers: vec![],
        reason: (!path).then(|| reason(n)),
        ek_cert_der: None,
    };
    Record::EkCertificates(EkCertificates {
        machine: machine(n),
        cause: if arrived {
            EkCause::CaArrived
        } else {
            EkCause::Attestation
        },
        assurance: if path { "vendor-chain" } else { "bare-ek" }.into(),
        certs: vec![cert],
        chain: vec![],
        reasons: vec![],
    })
}

fn approve(n: u8, key: u8) -> Record {
    operator(Act::Approve {
        machine: machine(n),
        ek_names: vec![ek(key)],
        serial: format!("S{n}"),
        disk_serial: None,
        port: None,
        class: "default".into(),
        compared: "console".into(),
    })
}

fn refusals() -> Record {
    Record::RefusalSummary(RefusalSummary {
        ingress: "eth0".into(),
        count: 1,
        last: reason(0),
        correlation: "c".into(),
    })
}

fn gate_change(n: u8, until: Option<u64>) -> Record {
    Record::Gate(GateChange {
        machine: machine(n),
        change: if until.is_some() {
            GateAct::Opened
        } else {
            GateAct::Closed
        },
        cause: GateCause::Admitted,
        mac: None,
        until: until.map(UnixMillis),
        elements: 1,
    })
}

/// Every machine passes, each at a port of its own.
struct AllPass;

impl World for AllPass {
    fn standing(&self, machine: &MachineId) -> Standing {
        Standing {
            may_pass: true,
            class: "default".to_owned(),
            port: Some(machine.to_string()),
            not_after: None,
        }
    }

    fn leased(&self, _: MacAddr) -> Vec<Leased> {
        Vec::new()
    }
}

/// What a gate opens after a start over these records.
fn opened<'r>(ledger: impl Iterator<Item = Numbered<'r>>) -> Vec<Change> {
    let mut gate = Gate::new(Settings {
        by: By::Port,
        rules: Vec::new(),
        open_ms: 1_000,
    });
    ledger.for_each(|(_, _, record)| gate.replay(record));
    gate.settle(NOW, &AllPass).changes
}

/// Machines 0 to 3; addresses and keys mostly their own, sometimes another's.
fn record() -> impl Strategy<Value = Record> {
    let id = 0u8..4;
    let other = |n: u8, wild: u8| if wild < 2 { wild } else { n };
    prop_oneof![
        12 => (id.clone(), 0u8..30, any::<bool>(), 0u8..9)
            .prop_map(move |(n, wild, admitted, count)| verdict(n, other(n, wild), admitted, count)),
        8 => (id.clone(), 1_000u64..3_000).prop_map(|(n, end)| certificate(Some(n), end)),
        1 => Just(certificate(None, 3_000)),
        4 => (id.clone(), proptest::option::of(1_000u64..4_000))
            .prop_map(|(n, until)| gate_change(n, until)),
        2 => (id.clone(), 0u8..20, 0u8..20)
            .prop_map(move |(n, mac, key)| claim(n, other(n, mac), other(n, key))),
        3 => (id.clone(), 0u8..20).prop_map(move |(n, key)| approve(n, other(n, key))),
        2 => (id.clone(), any::<bool>(), any::<bool>()).prop_map(|(n, a, b)| eks(n, a, b)),
        1 => id.clone().prop_map(|n| operator(Act::Cordon { machine: machine(n) })),
        1 => id.clone().prop_map(|n| operator(Act::Uncordon { machine: machine(n) })),
        1 => id.clone().prop_map(|n| operator(Act::MarkInstalled { machine: machine(n) })),
        1 => id.clone().prop_map(|n| operator(Act::Withdraw { machine: machine(n), why: "w".into() })),
        1 => id.prop_map(|n| operator(Act::Retire { machine: machine(n) })),
        1 => Just(operator(Act::EkCaRemove {
            sha256: "aa".repeat(32), subject: "CN=ca".into(), why: "w".into(),
        })),
        2 => (1u64..9).prop_map(|counter| Record::Anchor(Anchor { counter })),
        3 => Just(refusals()),
    ]
}

fn inventory(declared: &BTreeSet<u8>, same_key: bool) -> Inventory {
    let machines = declared.iter().map(|n| DeclaredMachine {
        id: machine(*n),
        serial: format!("S{n}"),
        ek_names: vec![ek(if same_key { 0 } else { *n })],
        disk_serial: None,
        port: None,
        class: "default".into(),
    });
    Inventory {
        machines: machines.collect(),
    }
}

fn numbered(ledger: &[(UnixMillis, Record)]) -> Vec<Numbered<'_>> {
    let records = (1u64..).zip(ledger);
    records
        .map(|(seq, (at, record))| (seq, *at, record))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_is_carried_leads_to_the_same_state(
        ledger in proptest::collection::vec((0u64..2_000, record()), 1..120),
        cut in any::<prop::sample::Index>(),
        declared in proptest::collection::btree_set(0u8..4, 0..4),
        same_key in any::<bool>(),
    ) {
        let ledger: Vec<_> = ledger.into_iter().map(|(at, record)| (UnixMillis(at), record)).collect();
        let all = numbered(&ledger);
        let removed = &all[..=cut.index(all.len())];
        let carried = retention::carried(removed, NOW);
        let (inventory, roots) = (inventory(&declared, same_key), EkRoots::default());
        retention::check((&inventory, &[], &roots), removed, &carried, NOW)
            .map_err(TestCaseError::fail)?;
        // And so does what comes after.
        let rest = || all[removed.len()..].iter().copied();
        let few = removed.iter().copied().filter(|(seq, _, _)| carried.contains(seq));
        let one = retention::replay(&inventory, &[], &roots, all.iter().copied(), NOW);
        let two = retention::replay(&inventory, &[], &roots, few.chain(rest()), NOW);
        one.registry.same_as(&two.registry).map_err(TestCaseError::fail)?;
        prop_assert_eq!(one.next_seq, two.next_seq);
        let few = removed.iter().copied().filter(|(seq, _, _)| carried.contains(seq));
        prop_assert_eq!(opened(all.iter().copied()), opened(few.chain(rest())));
        // The next removal begins with what was carried.
        let first: Vec<Numbered<'_>> =
            removed.iter().copied().filter(|(seq, _, _)| carried.contains(seq)).collect();
        let again = retention::carried(&first, NOW);
        retention::check((&inventory, &[], &roots), removed, &again, NOW)
            .map_err(TestCaseError::fail)?;
    }
}

#[test]
fn a_thousand_boots_of_one_machine_leave_a_handful() {
    let mut ledger = vec![
        (UnixMillis(1), claim(1, 1, 1)),
        (UnixMillis(2), approve(1, 1)),
    ];
    for n in 0..1_000u64 {
        ledger.push((UnixMillis(10 + n), verdict(1, 1, true, (n % 8) as u8)));
        ledger.push((UnixMillis(10 + n), certificate(Some(1), 1_500)));
        ledger.push((UnixMillis(10 + n), refusals()));
    }
    let all = numbered(&ledger);
    let carried = retention::carried(&all, NOW);
    // Claim, approval, first and last verdict, the certificates of the hourly budget, the last record.
    assert_eq!(carried.len(), 2 + 2 + 30 + 1);
}

#[test]
fn a_way_out_stays_as_its_last_change_or_refusal_left_it() {
    let open = gate_change(1, Some(9_000));
    let ledger = [
        (UnixMillis(1), open.clone()),
        (UnixMillis(2), verdict(1, 1, false, 1)),
        (UnixMillis(3), verdict(1, 1, true, 2)),
        (UnixMillis(4), gate_change(2, Some(9_000))),
    ];
    let all = numbered(&ledger);
    let carried = retention::carried(&all, NOW);
    let few = || {
        let all = all.iter().copied();
        all.filter(|(seq, _, _)| carried.contains(seq))
    };
    assert_eq!(opened(few()).len(), 1);
    assert_eq!(opened(few()), opened(all.iter().copied()));
}

#[test]
fn the_check_sees_every_record_that_counts() {
    let ledger = [
        (UnixMillis(1), claim(1, 1, 1)),
        (UnixMillis(2), approve(1, 1)),
        (UnixMillis(3), verdict(1, 1, true, 1)),
        (UnixMillis(4), certificate(Some(1), 3_000)),
        (UnixMillis(5), Record::Anchor(Anchor { counter: 7 })),
        (UnixMillis(6), claim(2, 2, 2)),
        (
            UnixMillis(7),
            operator(Act::Withdraw {
                machine: machine(2),
                why: "w".into(),
            }),
        ),
    ];
    let all = numbered(&ledger);
    let carried = retention::carried(&all, NOW);
    let (inventory, roots) = (Inventory::default(), EkRoots::default());
    let check =
        |carried: &BTreeSet<u64>| retention::check((&inventory, &[], &roots), &all, carried, NOW);
    assert_eq!(check(&carried), Ok(()));
    for seq in carried.iter() {
        let mut fewer = carried.clone();
        fewer.remove(seq);
        assert!(check(&fewer).is_err(), "without {seq}");
    }
}
