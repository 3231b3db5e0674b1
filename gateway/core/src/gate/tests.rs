//! Histories against a model that knows nothing of how the gate remembers.

use proptest::prelude::*;

use super::*;

const OPEN_MS: u64 = 100_000;

fn id(n: u8) -> MachineId {
    MachineId(format!("m{n}"))
}

fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, n])
}

fn addr(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

fn rule(class: Option<&str>, to: &str, ports: &str) -> OpenRule {
    OpenRule {
        class: class.map(str::to_owned),
        to: to.parse().expect("a network"),
        ports: ports.parse().expect("ports"),
    }
}

fn settings(by: By) -> Settings {
    Settings {
        by,
        rules: vec![
            rule(Some("worker"), "192.0.2.0/24", "tcp/6443"),
            rule(Some("control"), "192.0.2.0/24", "tcp/2379-2380"),
            rule(None, "198.51.100.7/32", "udp/123"),
        ],
        open_ms: OPEN_MS,
    }
}

/// The world and what should follow from it.
#[derive(Default)]
struct Model {
    /// Machines that pass; all others do not.
    pass: BTreeSet<MachineId>,
    leases: BTreeMap<Ipv4Addr, (MacAddr, u64)>,
    not_after: BTreeMap<MachineId, u64>,
    /// Hardware address and end of the last grant.
    grants: BTreeMap<MachineId, (MacAddr, u64)>,
}

impl World for Model {
    fn standing(&self, machine: &MachineId) -> Standing {
        let control = *machine == id(0);
        Standing {
            may_pass: self.pass.contains(machine),
            class: if control { "control" } else { "worker" }.to_owned(),
            port: Some(format!("leaf/{machine}")),
            not_after: self.not_after.get(machine).map(|at| UnixMillis(*at)),
        }
    }

    fn leased(&self, mac: MacAddr) -> Vec<Leased> {
        let leases = self.leases.iter().filter(|(_, (of, _))| *of == mac);
        let leased = |(addr, (_, ends)): (&Ipv4Addr, &(MacAddr, u64))| Leased {
            addr: *addr,
            ends: UnixMillis(*ends),
        };
        leases.map(leased).collect()
    }
}

impl Model {
    fn expected(&self, now: u64) -> BTreeSet<String> {
        let mut out = BTreeSet::new();
        for (machine, (mac, until)) in &self.grants {
            let until = (*until).min(self.not_after.get(machine).copied().unwrap_or(u64::MAX));
            if until <= now || !self.pass.contains(machine) {
                continue;
            }
            let ports = if *machine == id(0) {
                "tcp/2379-2380"
            } else {
                "tcp/6443"
            };
            for (addr, (of, ends)) in &self.leases {
                if of == mac && *ends > now {
                    out.insert(format!("{mac} {addr} to 192.0.2.0/24 {ports}"));
                    out.insert(format!("{mac} {addr} to 198.51.100.7/32 udp/123"));
                }
            }
        }
        out
    }
}

#[derive(Debug, Clone)]
enum Op {
    Admit(u8, u8),
    Refuse(u8),
    Stop(u8),
    Resume(u8),
    Lease(u8, u8, u64),
    Release(u8),
    Pass(u64),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let small = 0u8..4;
    prop_oneof![
        4 => (small.clone(), small.clone()).prop_map(|(m, a)| Op::Admit(m, a)),
        1 => small.clone().prop_map(Op::Refuse),
        2 => small.clone().prop_map(Op::Stop),
        1 => small.clone().prop_map(Op::Resume),
        5 => (small.clone(), small.clone(), 1_000u64..150_000).prop_map(|(a, m, t)| Op::Lease(a, m, t)),
        1 => small.prop_map(Op::Release),
        3 => (1u64..60_000).prop_map(Op::Pass),
        1 => Just(Op::Restart),
    ]
}

/// What a backend does: elements with their end.
fn apply(actual: &mut BTreeMap<Element, u64>, now: u64, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Open {
                element, left_ms, ..
            } => {
                actual.insert(element.clone(), now + left_ms);
            }
            Change::Close { element } => {
                actual.remove(element);
            }
        }
    }
}

fn shown(actual: &BTreeMap<Element, u64>) -> BTreeSet<String> {
    actual.keys().map(ToString::to_string).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn what_is_open_is_what_should_be(ops in prop::collection::vec(op(), 1..60)) {
        let mut gate = Gate::new(settings(By::Address));
        let mut model = Model::default();
        let mut actual: BTreeMap<Element, u64> = BTreeMap::new();
        let mut ledger: Vec<Record> = Vec::new();
        let mut now = 1_000u64;
        for op in ops {
            match op {
                Op::Admit(m, a) => {
                    model.pass.insert(id(m));
                    model.not_after.remove(&id(m));
                    let holder = model.grants.iter().find(|(other, (of, _))| {
                        **other != id(m) && *of == mac(a)
                    });
                    if holder.is_some() {
                        model.grants.remove(&id(m));
                    } else {
                        model.grants.insert(id(m), (mac(a), now + OPEN_MS));
                    }
                    gate.admitted(UnixMillis(now), &id(m), Some(mac(a)));
                }
                Op::Refuse(m) => {
                    model.grants.remove(&id(m));
                    gate.refused(&id(m));
                }
                Op::Stop(m) => {
                    model.pass.remove(&id(m));
                    model.grants.remove(&id(m));
                    gate.touched(&id(m));
                }
                Op::Resume(m) => {
                    model.pass.insert(id(m));
                    model.not_after.insert(id(m), now + 30_000);
                    gate.touched(&id(m));
                }
                Op::Lease(a, m, t) => {
                    model.leases.insert(addr(a), (mac(m), now + t));
                    gate.lease(addr(a), mac(m));
                }
                Op::Release(a) => {
                    if let Some((of, _)) = model.leases.remove(&addr(a)) {
                        gate.lease(addr(a), of);
                    }
                }
                Op::Pass(ms) => now += ms,
                Op::Restart => {
                    gate = Gate::new(settings(By::Address));
                    for record in &ledger {
                        gate.replay(record);
                    }
                }
            }
            let restarted = matches!(op, Op::Restart);
            let settled = gate.settle(UnixMillis(now), &model);
            ledger.extend(settled.records.into_iter().map(Record::Gate));
            if restarted {
                actual.clear();
            }
            // A grant whose time is over is gone for good, also if the machine passes again.
            model.grants.retain(|m, (_, until)| {
                let own = model.not_after.get(m).copied().unwrap_or(u64::MAX);
                (*until).min(own) > now
            });
            apply(&mut actual, now, &settled.changes);
            prop_assert_eq!(shown(&actual), model.expected(now));
            let told: BTreeMap<Element, u64> = actual.clone();
            let open = gate.open(UnixMillis(now));
            prop_assert_eq!(open.len(), told.len());
            prop_assert!(actual.values().all(|until| *until > now));
            prop_assert!(gate.poll_timeout().is_none_or(|at| at.0 > now));
            // Nobody who may not pass has an element, whatever happened before.
            for machine in (0..4).map(id).filter(|m| !model.pass.contains(m)) {
                prop_assert!(gate.view(&machine).is_none());
            }
        }
    }

    #[test]
    fn a_diff_leads_from_anything_to_what_is_wanted(
        wanted in prop::collection::btree_map((0u8..6, 0u8..6), 10_000u64..99_000, 0..20),
        found in prop::collection::btree_map((0u8..6, 0u8..6), prop::option::of(1u64..99_000), 0..20),
    ) {
        let element = |(m, a): (u8, u8)| Element::Flow {
            mac: mac(m),
            addr: addr(a),
            to: "192.0.2.0/24".parse().expect("a network"),
            ports: "tcp/6443".parse().expect("ports"),
        };
        let wanted: BTreeMap<Element, (MachineId, u64)> =
            wanted.into_iter().map(|(k, left)| (element(k), (id(0), left))).collect();
        let found: BTreeMap<Element, Option<u64>> =
            found.into_iter().map(|(k, left)| (element(k), left)).collect();
        let mut actual = found.clone();
        let changes = diff(&wanted, &found);
        for change in &changes {
            match change {
                Change::Open { element, left_ms, .. } => {
                    actual.insert(element.clone(), Some(*left_ms));
                }
                Change::Close { element } => prop_assert!(actual.remove(element).is_some()),
            }
        }
        prop_assert!(actual.keys().eq(wanted.keys()));
        for (element, (_, left)) in &wanted {
            let got = actual[element].expect("a time");
            prop_assert!(got.abs_diff(*left) <= SLACK_MS);
        }
        // Done is done.
        let settled: BTreeMap<_, _> = actual.into_iter().collect();
        prop_assert!(diff(&wanted, &settled).is_empty());
    }
}

fn admitted(by: By) -> (Gate, Model, Settled) {
    let mut gate = Gate::new(settings(by));
    let mut model = Model::default();
    model.pass.insert(id(1));
    model.leases.insert(addr(5), (mac(1), 40_000));
    gate.admitted(UnixMillis(0), &id(1), Some(mac(1)));
    let settled = gate.settle(UnixMillis(0), &model);
    (gate, model, settled)
}

#[test]
fn an_admission_is_recorded_and_ends_with_its_time() {
    let (mut gate, mut model, settled) = admitted(By::Address);
    assert_eq!(settled.changes.len(), 2);
    let record = &settled.records[0];
    assert_eq!((record.change, record.elements), (GateAct::Opened, 2));
    assert_eq!(
        (record.mac, record.until),
        (Some(mac(1)), Some(UnixMillis(OPEN_MS)))
    );
    // The lease ends first; a renewal opens again, without a record.
    assert_eq!(gate.poll_timeout(), Some(UnixMillis(40_000)));
    let ended = gate.settle(UnixMillis(40_000), &model);
    assert_eq!((ended.changes.len(), ended.records.len()), (2, 0));
    model.leases.insert(addr(5), (mac(1), 900_000));
    gate.lease(addr(5), mac(1));
    let renewed = gate.settle(UnixMillis(41_000), &model);
    assert_eq!((renewed.changes.len(), renewed.records.len()), (2, 0));
    // Attested again before its time: the same elements for longer.
    gate.admitted(UnixMillis(50_000), &id(1), Some(mac(1)));
    let again = gate.settle(UnixMillis(50_000), &model);
    assert!(matches!(
        again.changes[0],
        Change::Open {
            left_ms: OPEN_MS,
            ..
        }
    ));
    assert_eq!(gate.poll_timeout(), Some(UnixMillis(50_000 + OPEN_MS)));
    let over = gate.settle(UnixMillis(50_000 + OPEN_MS), &model);
    let cause = over.records.iter().map(|r| (r.change, r.cause, r.elements));
    assert!(cause.eq([(GateAct::Closed, GateCause::Expired, 2)]));
    assert_eq!(gate.poll_timeout(), None);
}

#[test]
fn a_lease_that_moves_is_closed_before_it_is_open_for_another() {
    let (mut gate, mut model, _) = admitted(By::Address);
    model.pass.insert(id(2));
    gate.admitted(UnixMillis(1), &id(2), Some(mac(2)));
    model.leases.insert(addr(5), (mac(2), 40_000));
    gate.lease(addr(5), mac(2));
    let moved = gate.settle(UnixMillis(1), &model);
    let kinds: Vec<bool> = moved
        .changes
        .iter()
        .map(|change| matches!(change, Change::Close { .. }))
        .collect();
    assert_eq!(kinds, [true, true, false, false]);
}

#[test]
fn a_hardware_address_belongs_to_one_machine() {
    let (mut gate, mut model, _) = admitted(By::Address);
    model.pass.insert(id(2));
    gate.admitted(UnixMillis(1), &id(2), Some(mac(1)));
    assert_eq!(gate.settle(UnixMillis(1), &model), Settled::default());
    // From nowhere that is its own, the first loses what it had.
    gate.admitted(UnixMillis(2), &id(1), None);
    let moved = gate.settle(UnixMillis(2), &model);
    assert_eq!(moved.records[0].cause, GateCause::Moved);
    assert_eq!(moved.changes.len(), 2);
}

#[test]
fn by_port_the_declared_port_is_the_element() {
    let (mut gate, model, settled) = admitted(By::Port);
    let element = Element::Port {
        machine: id(1),
        port: "leaf/m1".to_owned(),
    };
    let opened = Change::Open {
        element: element.clone(),
        machine: id(1),
        left_ms: OPEN_MS,
    };
    assert_eq!(settled.changes, [opened]);
    gate.refused(&id(1));
    let closed = gate.settle(UnixMillis(9), &model);
    assert_eq!(closed.changes, [Change::Close { element }]);
    assert_eq!(closed.records[0].cause, GateCause::Refused);
}

#[test]
fn the_set_is_bounded_and_says_so() {
    let mut settings = settings(By::Address);
    settings.rules = (1..=64)
        .map(|n| rule(None, &format!("192.0.2.{n}/32"), "tcp/1"))
        .collect();
    let mut gate = Gate::new(settings);
    let mut model = Model::default();
    let machines = limits::GATE_ELEMENTS_MAX / 64 + 1;
    let mut full = 0;
    for n in 0..machines {
        let id = MachineId(format!("x{n:04}"));
        let mac = MacAddr([2, 0, 0, 1, (n >> 8) as u8, n as u8]);
        model.pass.insert(id.clone());
        let addr = Ipv4Addr::from_bits(0x0a00_0000 + n as u32);
        model.leases.insert(addr, (mac, 1_000));
        gate.admitted(UnixMillis(0), &id, Some(mac));
        full += gate.settle(UnixMillis(0), &model).full.len();
    }
    assert_eq!(full, 1);
    assert_eq!(gate.open(UnixMillis(0)).len(), limits::GATE_ELEMENTS_MAX);
}
