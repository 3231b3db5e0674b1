//! The bounds of `gateway_core::limits` at their edge, where no other test has them. (Sessions and
//! refusal sums are tested beside their code.)

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

use gateway_core::admission::command::{Caller, Command, Role, to_act};
use gateway_core::admission::effect::Rules;
use gateway_core::admission::event::Event;
use gateway_core::admission::registry::Registry;
use gateway_core::appraisal::{DevIdRules, EkRoots, TimeTrust};
use gateway_core::identity::{EkName, MacAddr, MachineId, UnixMillis};
use gateway_core::limits;
use gateway_core::policy::{Policy, Preset};
use gateway_core::record::{Act, Claim, Mark, OperatorAct, Record};
use gateway_core::walk::Step;

fn mac(n: usize) -> MacAddr {
    let [.., a, b, c] = n.to_be_bytes();
    MacAddr([2, 0, 0, a, b, c])
}

fn mark(n: usize, at: u64) -> Mark {
    Mark {
        mac: mac(n),
        machine: None,
        step: Step::Discover,
        at: UnixMillis(at),
        detail: String::new(),
    }
}

fn claim(machine: &str, mac: MacAddr) -> Record {
    Record::Claim(Claim {
        machine: MachineId(machine.into()),
        ek_names: vec![EkName(format!("000b{}", "11".repeat(32)))],
        serial: "S1".into(),
        macs: vec![mac],
        disks: Vec::new(),
        port: None,
        assurance: "bare-ek".into(),
        report_sha256: "22".repeat(32),
        would_refuse: Vec::new(),
        correlation: "c".into(),
    })
}

#[test]
fn a_step_is_marked_again_only_after_a_while() {
    let mut registry = Registry::default();
    assert!(registry.mark(&mark(1, 0)));
    assert!(!registry.mark(&mark(1, limits::MARK_REPEAT_MS - 1)));
    assert!(registry.mark(&mark(1, limits::MARK_REPEAT_MS)));
    let other = Mark {
        detail: "other".into(),
        ..mark(1, limits::MARK_REPEAT_MS + 1)
    };
    assert!(registry.mark(&other), "news is written at once");
}

#[test]
fn made_up_addresses_do_not_keep_a_real_one_out() {
    let mut registry = Registry::default();
    registry.apply(1, UnixMillis(0), &claim("m-1", mac(0)));
    let id = MachineId("m-1".into());
    let marks = |registry: &Registry| {
        let timeline = registry.timeline(&id).unwrap();
        timeline.iter().filter(|e| e.seq.is_none()).count()
    };
    for n in 0..limits::WALKERS_MAX {
        assert!(registry.mark(&mark(n, n as u64)));
    }
    assert_eq!(marks(&registry), 1, "exactly the bound is kept");
    assert!(registry.mark(&mark(limits::WALKERS_MAX, 1 << 20)));
    assert_eq!(marks(&registry), 0, "the longest silent one made room");
    assert!(registry.mark(&mark(0, 1 << 20)));
    assert_eq!(marks(&registry), 1, "and is marked again when it speaks");
}

#[test]
fn a_timeline_keeps_its_newest_entries() {
    let mut registry = Registry::default();
    let id = MachineId("m-1".into());
    for seq in 1..=limits::TIMELINE_MAX as u64 + 1 {
        registry.apply(seq, UnixMillis(seq), &claim("m-1", mac(1)));
    }
    let timeline = registry.timeline(&id).unwrap();
    assert_eq!(timeline.len(), limits::TIMELINE_MAX);
    assert_eq!(timeline[0].seq, Some(2));
}

#[test]
fn events_that_do_not_fit_are_counted_and_the_newest_kept() {
    let mut registry = Registry::default();
    registry.apply(1, UnixMillis(0), &claim("m-1", mac(1)));
    let id = MachineId("m-1".into());
    for at in 0..limits::UNFIT_MAX as u64 + 5 {
        let unfit = registry.event(UnixMillis(at), &id, &Event::Retired);
        assert_eq!(unfit.unwrap_err().state, "pending");
    }
    let (kept, total) = registry.unfit();
    assert_eq!(
        (kept.len(), total),
        (limits::UNFIT_MAX, limits::UNFIT_MAX as u64 + 5)
    );
    assert_eq!(kept[0].0, UnixMillis(5));
}

#[test]
fn rejects_operator_text_beyond_the_bound() {
    let mut registry = Registry::default();
    registry.apply(1, UnixMillis(0), &claim("m-1", mac(1)));
    let caller = Caller {
        cn: "ada".into(),
        role: Role::Operator,
    };
    let rules = Rules {
        policy: Policy::preset(Preset::Standard).into(),
        directory: registry.directory(),
        ek_roots: EkRoots::default().into(),
        catalog: Vec::new().into(),
        time: TimeTrust::None,
        devid: DevIdRules::default(),
    };
    let withdraw = |len: usize| {
        let command = Command::Withdraw(MachineId("m-1".into()), "x".repeat(len));
        to_act(command, &caller, &registry, &[], &rules)
    };
    assert!(matches!(
        withdraw(limits::OPERATOR_TEXT_MAX_BYTES),
        Ok(Act::Withdraw { .. })
    ));
    for len in [0, limits::OPERATOR_TEXT_MAX_BYTES + 1] {
        assert_eq!(withdraw(len).unwrap_err().code, "malformed.command");
    }
    let act = Record::Operator(OperatorAct {
        by: "ada".into(),
        role: "operator".into(),
        act: withdraw(1).unwrap(),
    });
    registry.apply(2, UnixMillis(1), &act);
    assert_eq!(
        registry.get(&MachineId("m-1".into())).unwrap().state.name(),
        "withdrawn"
    );
}
