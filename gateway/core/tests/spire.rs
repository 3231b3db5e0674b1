//! What SPIRE is told, as a table: from the states of the machines and the lists of the server.

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

use std::collections::BTreeSet;

use gateway_core::identity::MachineId;
use gateway_core::record::BridgeAct;
use gateway_core::spire::{
    Actual, Agent, BATCH_MAX, EkHashes, Entry, Intents, Machine, Plan, Selector, Settings,
    Workload, ek_plan, is_ek_hash, plan,
};

const CA: &str = "0123456789abcdef0123456789abcdef01234567";

fn settings() -> Settings {
    Settings {
        appliance: "door-1".into(),
        device_ca_sha1: CA.into(),
        workloads: vec![Workload {
            name: "kubelet".into(),
            class: Some("worker".into()),
            path: "/on/{machine}/kubelet".into(),
            selectors: vec!["unix:uid:0".parse().unwrap()],
            x509_svid_ttl_secs: 600,
        }],
    }
}

fn machine(name: &str, class: &str) -> Machine {
    Machine {
        id: MachineId(name.into()),
        class: class.into(),
        left: false,
        leaf_sha1: Some(format!("{name}-new")),
    }
}

fn left(name: &str) -> Machine {
    Machine {
        left: true,
        ..machine(name, "worker")
    }
}

fn agent(name: &str, leaf: &str) -> Agent {
    let selectors = [
        format!("tpm_devid:subject:cn:{name}"),
        "tpm_devid:issuer:cn:door-1 device CA".into(),
        format!("tpm_devid:ca:fingerprint:{CA}"),
    ];
    Agent {
        path: format!("/spire/agent/tpm_devid/{name}-{leaf}"),
        selectors: selectors.iter().map(|s| s.parse().unwrap()).collect(),
        banned: false,
    }
}

/// What the server has after it was told.
fn after(plan: &Plan, mut actual: Actual) -> Actual {
    if let Some(entries) = &mut actual.entries {
        entries.retain(|entry| !plan.delete.iter().any(|c| c.what == entry.id));
        entries.extend(plan.create.iter().map(|c| c.what.clone()));
        for change in &plan.update {
            let id = &change.what.id;
            *entries.iter_mut().find(|e| e.id == *id).unwrap() = change.what.clone();
        }
    }
    for agent in &mut actual.agents {
        agent.banned |= plan.ban.iter().any(|c| c.what == agent.path);
    }
    actual
        .agents
        .retain(|agent| !plan.purge.iter().any(|c| c.what == agent.path));
    actual
}

fn empty() -> Actual {
    Actual {
        entries: Some(Vec::new()),
        agents: Vec::new(),
    }
}

#[test]
fn an_admitted_machine_has_an_alias_and_the_workloads_of_its_class() {
    let machines = [machine("n1", "worker"), machine("n2", "control")];
    let plan = plan(&settings(), &machines, &empty());
    let entries: Vec<&Entry> = plan.create.iter().map(|c| &c.what).collect();
    assert_eq!(entries.len(), 3);
    let alias = Entry {
        id: "vestibule.door-1.node.n1".into(),
        path: "/node/n1".into(),
        parent: "/spire/server".into(),
        selectors: [
            "tpm_devid:subject:cn:n1".parse().unwrap(),
            format!("tpm_devid:ca:fingerprint:{CA}").parse().unwrap(),
        ]
        .into(),
        x509_svid_ttl_secs: 0,
    };
    assert_eq!(entries[0], &alias);
    assert_eq!(entries[1].id, "vestibule.door-1.workload.n1.W.kubelet");
    assert_eq!(entries[1].path, "/on/n1/kubelet");
    assert_eq!(entries[1].parent, "/node/n1");
    assert_eq!(entries[1].x509_svid_ttl_secs, 600);
    assert_eq!(entries[2].path, "/node/n2");
}

#[test]
fn what_was_told_is_not_told_again() {
    let machines = [machine("n1", "worker"), left("n2")];
    let mut actual = empty();
    actual.agents = vec![agent("n1", "new"), agent("n1", "old"), agent("n2", "new")];
    let first = plan(&settings(), &machines, &actual);
    assert!(!first.is_empty());
    let second = plan(&settings(), &machines, &after(&first, actual));
    assert_eq!(second, Plan::default());
}

#[test]
fn a_change_of_the_configuration_updates_and_deletes() {
    let machines = [machine("n1", "worker")];
    let told = after(&plan(&settings(), &machines, &empty()), empty());
    let mut other = settings();
    other.workloads[0].x509_svid_ttl_secs = 60;
    let changed = plan(&other, &machines, &told);
    assert_eq!(changed.update.len(), 1);
    assert_eq!(changed.create.len() + changed.delete.len(), 0);
    other.workloads.clear();
    let gone = plan(&other, &machines, &told);
    assert_eq!(
        gone.delete[0].what,
        "vestibule.door-1.workload.n1.W.kubelet"
    );
    assert_eq!(gone.delete[0].machine, Some(MachineId("n1".into())));
}

#[test]
fn entries_of_others_stay_and_an_alias_made_by_hand_counts() {
    let settings = settings();
    let machines = [machine("n1", "control")];
    let mut by_hand = plan(&settings, &machines, &empty()).create[0].what.clone();
    by_hand.id = "7d1f3d64-0000-0000-0000-000000000000".into();
    let other = Entry {
        id: "vestibule.door-2.node.n1".into(),
        path: "/node/n1".into(),
        parent: "/spire/server".into(),
        selectors: ["tpm_devid:ca:fingerprint:ff".parse().unwrap()].into(),
        x509_svid_ttl_secs: 0,
    };
    let below = Entry {
        id: "8".into(),
        path: "/db".into(),
        parent: "/node/n1".into(),
        selectors: ["unix:uid:5".parse().unwrap()].into(),
        x509_svid_ttl_secs: 0,
    };
    let actual = Actual {
        entries: Some(vec![by_hand.clone(), other, below]),
        agents: Vec::new(),
    };
    assert!(plan(&settings, &machines, &actual).is_empty());
    // Withdrawn, its alias goes by whatever id it has: nothing below it can be reached then.
    let plan = plan(&settings, &[left("n1")], &actual);
    let ids: Vec<&String> = plan.delete.iter().map(|c| &c.what).collect();
    assert_eq!(ids, [&by_hand.id]);
}

#[test]
fn attack_64_every_agent_of_a_machine_that_left_is_banned_whenever_it_appears() {
    let machines = [left("n1"), machine("n2", "worker")];
    let mut actual = Actual {
        entries: None,
        agents: vec![agent("n1", "new"), agent("n2", "new")],
    };
    let first = plan(&settings(), &machines, &actual);
    assert_eq!(first.ban.len(), 1);
    assert_eq!(first.ban[0].what, "/spire/agent/tpm_devid/n1-new");
    actual = after(&first, actual);
    actual.agents.push(agent("n1", "never-seen"));
    let second = plan(&settings(), &machines, &actual);
    assert_eq!(second.ban.len(), 1);
    assert_eq!(second.ban[0].what, "/spire/agent/tpm_devid/n1-never-seen");
    // Entries were not listed: none may be taken for missing.
    assert!(second.create.is_empty() && second.delete.is_empty());
}

#[test]
fn rejects_agents_of_the_same_name_under_another_ca() {
    let mut stranger = agent("n1", "new");
    stranger.selectors = ["tpm_devid:subject:cn:n1", "tpm_devid:ca:fingerprint:ff"]
        .map(|s| s.parse::<Selector>().unwrap())
        .into();
    let actual = Actual {
        entries: None,
        agents: vec![stranger],
    };
    assert!(plan(&settings(), &[left("n1")], &actual).is_empty());
}

#[test]
fn an_older_agent_is_purged_only_once_the_newest_has_attested() {
    let machines = [machine("n1", "control")];
    let agents = |leaves: &[&str]| Actual {
        entries: None,
        agents: leaves.iter().map(|leaf| agent("n1", leaf)).collect(),
    };
    assert!(plan(&settings(), &machines, &agents(&["old"])).is_empty());
    let both = plan(&settings(), &machines, &agents(&["old", "new", "older"]));
    let purged: Vec<&str> = both.purge.iter().map(|c| c.what.as_str()).collect();
    assert_eq!(
        purged,
        [
            "/spire/agent/tpm_devid/n1-old",
            "/spire/agent/tpm_devid/n1-older"
        ]
    );
    // An operator's ban is no rubbish: deleting the agent would let it in again.
    let mut banned = agents(&["old", "new"]);
    banned.agents[0].banned = true;
    assert!(plan(&settings(), &machines, &banned).is_empty());
}

#[test]
fn a_round_is_bounded_and_says_that_more_is_left() {
    let count = 2 * BATCH_MAX + 1;
    let machines: Vec<Machine> = (0..count)
        .map(|n| machine(&format!("n{n}"), "control"))
        .collect();
    let mut actual = empty();
    let mut rounds = 0;
    loop {
        let round = plan(&settings(), &machines, &actual);
        if round.is_empty() {
            break;
        }
        assert!(round.create.len() <= BATCH_MAX);
        assert_eq!(round.more, rounds < 2);
        actual = after(&round, actual);
        rounds += 1;
    }
    assert_eq!((rounds, actual.entries.unwrap().len()), (3, count));
}

#[test]
fn records_come_deletions_first_and_an_intent_is_written_once() {
    let mut actual = after(
        &plan(&settings(), &[machine("n1", "worker")], &empty()),
        empty(),
    );
    actual.agents = vec![agent("n1", "new")];
    let records = plan(&settings(), &[left("n1")], &actual).records();
    let acts: Vec<_> = records.iter().map(|r| (r.what, r.ids.len())).collect();
    assert_eq!(
        acts,
        [(BridgeAct::EntryDelete, 2), (BridgeAct::AgentBan, 1)]
    );
    let mut intents = Intents::default();
    assert_eq!(intents.fresh(records.clone()), records);
    assert!(intents.fresh(records.clone()).is_empty(), "SPIRE is down");
    assert!(intents.fresh(Vec::new()).is_empty(), "done");
    assert_eq!(intents.fresh(records.clone()), records, "and back");
}

fn hashes(name: &str, left: bool, now: &[&str], before: &[&str]) -> EkHashes {
    let set = |hashes: &[&str]| hashes.iter().map(|h| (*h).to_owned()).collect();
    EkHashes {
        id: MachineId(name.into()),
        left,
        now: set(now),
        before: set(before),
    }
}

#[test]
fn files_of_eks_follow_the_machines_and_strangers_stay() {
    let machines = [
        hashes("n1", false, &["a", "b"], &["old"]),
        hashes("n2", true, &["c"], &[]),
        // The same TPM under another name: withdrawn wins.
        hashes("n3", false, &["c", "d"], &["a"]),
    ];
    let present: BTreeSet<String> = ["a", "c", "old", "by-hand"].map(String::from).into();
    let plan = ek_plan(&machines, &present);
    let of = |list: &[(MachineId, String)]| -> Vec<String> {
        list.iter()
            .map(|(id, hash)| format!("{id} {hash}"))
            .collect()
    };
    assert_eq!(of(&plan.add), ["n1 b", "n3 d"]);
    assert_eq!(of(&plan.remove), ["n2 c", "n1 old"]);
    let acts: Vec<BridgeAct> = plan.records().iter().map(|r| r.what).collect();
    assert_eq!(acts[..2], [BridgeAct::EkHashRemove; 2]);
    assert_eq!(acts[2..], [BridgeAct::EkHashAdd; 2]);
}

#[test]
fn only_lower_case_hex_of_64_digits_is_a_file_of_an_ek() {
    assert!(is_ek_hash(&"0f".repeat(32)));
    for name in [
        "",
        "README",
        &"0F".repeat(32),
        &"0f".repeat(31),
        &"0g".repeat(32),
    ] {
        assert!(!is_ek_hash(name), "{name}");
    }
}

#[test]
fn rejects_selectors_without_type_or_value() {
    for text in ["", "unix", ":uid", "unix:", "unix:a\nb"] {
        assert!(text.parse::<Selector>().is_err(), "{text:?}");
    }
    let selector: Selector = "k8s:pod-label:a:b".parse().unwrap();
    assert_eq!(
        (&*selector.kind, &*selector.value),
        ("k8s", "pod-label:a:b")
    );
}
