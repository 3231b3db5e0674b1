//! Runs, grants and reports against the whole core, in virtual time.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::{IpAddr, Ipv4Addr};

use attest_wire::v1::handover::{Ability, GrantBody, InstallStep, ProgressAnswer, ProgressBody};
use gateway_core::admission::command::{Caller, Command, Role};
use gateway_core::admission::installing::Install;
use gateway_core::gateway::Input;
use gateway_core::identity::{ConnId, MachineId};
use gateway_core::limits;
use gateway_core::policy::Policy;
use gateway_core::record::Record;
use support::Node;
use support::site::{GRANT_MS, Site, node};

const PEER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 100);
const IMAGE: [u8; 32] = [0x72; 32];
const RAW: [u8; 32] = [0x82; 32];

/// A site with one admitted machine whose attester can install, and its name.
fn admitted() -> (Site, Node, MachineId) {
    let mut site = Site::new();
    let mut node = node();
    node.can = vec![Ability::Install];
    site.attempt(&node, 1, PEER);
    let id = site.gateway.machines()[0].machine.clone();
    site.approve(&id.0);
    let (status, result) = site.attempt(&node, 2, PEER);
    assert_eq!(status, 200);
    assert!(result.grant.is_none(), "nobody has authorised anything");
    (site, node, id)
}

fn begin(id: &MachineId) -> Command {
    let install = Install::Begin {
        image: "worker".into(),
        version: None,
        disk_serial: Some("DISK-1".into()),
        again: false,
    };
    Command::Install(id.clone(), install)
}

/// The next boot attests; its grant.
fn boot(site: &mut Site, node: &mut Node, conn: u64) -> Option<GrantBody> {
    node.clock.reset_count += 1;
    attest(site, node, conn)
}

fn attest(site: &mut Site, node: &Node, conn: u64) -> Option<GrantBody> {
    let (status, result) = site.attempt(node, conn, PEER);
    assert_eq!(status, 200, "{} {}", result.code, result.hint);
    result
        .grant
        .map(|grant| serde_json::from_slice(&grant.body.0).unwrap())
}

fn said(grant: &GrantBody, seq: u32, step: InstallStep) -> ProgressBody {
    let sha256 = match step {
        InstallStep::Verified => grant.image.raw_sha256.clone(),
        _ => String::new(),
    };
    ProgressBody {
        grant: grant.grant.clone(),
        seq,
        step,
        sha256,
        detail: "as it should".into(),
    }
}

fn send(site: &mut Site, body: Vec<u8>) -> ProgressAnswer {
    site.handle(Input::Progress {
        conn: ConnId(99),
        peer: IpAddr::V4(PEER),
        body,
    });
    let (_, status, body) = site.replies.pop().unwrap();
    let answer: ProgressAnswer = serde_json::from_slice(&body).unwrap();
    assert_eq!(status == 200, answer.accepted);
    answer
}

fn report(site: &mut Site, node: &Node, said: &ProgressBody) -> String {
    let answer = send(site, node.progress(said));
    answer.code
}

fn story(site: &Site) -> Vec<&'static str> {
    let records = site.disk.ledger.iter().map(|(_, _, record)| record);
    records
        .filter_map(|record| match record {
            Record::Run(_) => Some("run"),
            Record::Grant(_) => Some("grant"),
            Record::Progress(progress) => Some(progress.step.as_str()),
            Record::RunEnd(end) => Some(end.outcome.as_str()),
            _ => None,
        })
        .collect()
}

const STEPS: [InstallStep; 5] = [
    InstallStep::Checked,
    InstallStep::Wiped,
    InstallStep::Written,
    InstallStep::Configured,
    InstallStep::Verified,
];

#[test]
fn a_run_from_the_owners_word_to_the_local_disk() {
    let (mut site, mut node, id) = admitted();
    site.act(begin(&id));
    assert_eq!(
        site.machine(&id.0).install.unwrap().waits_for.as_deref(),
        Some("boot")
    );
    let grant = boot(&mut site, &mut node, 3).unwrap();
    assert_eq!(
        (grant.machine.as_str(), grant.image.version),
        (id.0.as_str(), 2)
    );
    assert_eq!((grant.reset, grant.restart), (8, 2));
    assert_eq!(grant.clock_max_ms, node.clock.clock + GRANT_MS);
    assert!(!grant.reread);
    for (step, seq) in STEPS.into_iter().zip(1..) {
        assert_eq!(
            report(&mut site, &node, &said(&grant, seq, step)),
            "accepted"
        );
        let state = site.machine(&id.0).state;
        let expected = if step == InstallStep::Verified {
            "installed"
        } else {
            "installing"
        };
        assert_eq!(state, expected, "after {step:?}");
        // A restart finds the same.
        site.restart();
        assert_eq!(site.machine(&id.0).state, expected);
    }
    assert_eq!(
        story(&site),
        [
            "run",
            "grant",
            "checked",
            "wiped",
            "written",
            "configured",
            "verified",
            "verified"
        ]
    );
    assert_eq!(site.machine(&id.0).boot, "local disk");
    // The lost answer of the last report: it is on record, and nothing is written twice.
    let before = site.disk.ledger.len();
    assert_eq!(
        report(&mut site, &node, &said(&grant, 5, InstallStep::Verified)),
        "accepted"
    );
    assert_eq!(site.disk.ledger.len(), before);
    // Nothing is fetched or granted again without the owner, and the owner must say "again".
    assert_eq!(boot(&mut site, &mut node, 4), None);
    let fetch = site
        .gateway
        .image_fetch(site.now, IpAddr::V4(PEER), &hex::encode(IMAGE));
    assert_eq!(fetch.unwrap_err().code, "grant.unknown");
    assert_eq!(site.ask(begin(&id)).unwrap_err().code, "run.installed");
    let again = Install::Begin {
        image: "worker".into(),
        version: Some(1),
        disk_serial: Some("DISK-1".into()),
        again: true,
    };
    site.act(Command::Install(id.clone(), again));
    assert_eq!(site.machine(&id.0).boot, "provision");
    assert_eq!(boot(&mut site, &mut node, 5).unwrap().image.version, 1);
}

#[test]
fn each_boot_has_its_own_grant_and_the_same_boot_the_same() {
    let (mut site, mut node, id) = admitted();
    site.act(begin(&id));
    let first = boot(&mut site, &mut node, 3).unwrap();
    assert_eq!(attest(&mut site, &node, 4).unwrap(), first, "the same boot");
    site.restart();
    assert_eq!(
        attest(&mut site, &node, 5).unwrap(),
        first,
        "after a restart too"
    );
    assert_eq!(
        report(&mut site, &node, &said(&first, 1, InstallStep::Checked)),
        "accepted"
    );
    let second = boot(&mut site, &mut node, 6).unwrap();
    assert_ne!((&second.grant, &second.nonce), (&first.grant, &first.nonce));
    assert_eq!(second.run, first.run);
    assert!(!second.reread, "nothing was written yet");
    let old = said(&first, 2, InstallStep::Wiped);
    assert_eq!(report(&mut site, &node, &old), "grant.other_boot");
    for (step, seq) in STEPS[..3].iter().zip(1..) {
        assert_eq!(
            report(&mut site, &node, &said(&second, seq, *step)),
            "accepted"
        );
    }
    // Power cut after the image: the third boot reads before it writes, and may skip writing.
    let third = boot(&mut site, &mut node, 7).unwrap();
    assert!(third.reread);
    assert_eq!(
        report(&mut site, &node, &said(&third, 1, InstallStep::Checked)),
        "accepted"
    );
    assert_eq!(
        report(&mut site, &node, &said(&third, 2, InstallStep::Configured)),
        "accepted"
    );
    assert_eq!(
        report(&mut site, &node, &said(&third, 3, InstallStep::Verified)),
        "accepted"
    );
    assert_eq!(site.machine(&id.0).state, "installed");
}

#[test]
fn rejects_reports_that_are_forged_reordered_replayed_or_late() {
    let (mut site, mut node, id) = admitted();
    site.act(begin(&id));
    let grant = boot(&mut site, &mut node, 3).unwrap();
    let stranger = support::site::node();
    let checked = said(&grant, 1, InstallStep::Checked);
    assert_eq!(report(&mut site, &stranger, &checked), "progress.signature");
    let mut unknown = checked.clone();
    unknown.grant = "00".repeat(16);
    assert_eq!(report(&mut site, &node, &unknown), "grant.unknown");
    assert_eq!(send(&mut site, b"{}".to_vec()).code, "malformed.json");
    for step in [
        InstallStep::Wiped,
        InstallStep::Configured,
        InstallStep::Verified,
    ] {
        assert_eq!(
            report(&mut site, &node, &said(&grant, 1, step)),
            "progress.order"
        );
    }
    assert_eq!(
        report(&mut site, &node, &said(&grant, 2, InstallStep::Checked)),
        "progress.order"
    );
    assert_eq!(report(&mut site, &node, &checked), "accepted");
    let mut other = checked.clone();
    other.detail = "another".into();
    assert_eq!(report(&mut site, &node, &other), "progress.replayed");
    // Without an earlier boot that wrote it, the image cannot be there already.
    let early = said(&grant, 2, InstallStep::Configured);
    assert_eq!(report(&mut site, &node, &early), "progress.order");
    for (step, seq) in STEPS[1..4].iter().zip(2..) {
        assert_eq!(
            report(&mut site, &node, &said(&grant, seq, *step)),
            "accepted"
        );
    }
    let mut wrong = said(&grant, 5, InstallStep::Verified);
    wrong.sha256 = "11".repeat(32);
    assert_eq!(report(&mut site, &node, &wrong), "progress.digest");
    site.act(Command::Withdraw(id.clone(), "stolen".into()));
    let verified = said(&grant, 5, InstallStep::Verified);
    assert_eq!(report(&mut site, &node, &verified), "machine.state");
    assert_eq!(site.machine(&id.0).state, "withdrawn");
    assert_eq!(
        story(&site).last(),
        Some(&"cancelled"),
        "access that ended ends the run"
    );
    // Refusals are in the ledger, in sum.
    site.wait(120_000);
    let sums = |code: &str| {
        site.disk.ledger.iter().any(
            |(_, _, record)| matches!(record, Record::RefusalSummary(sum) if sum.last.code == code),
        )
    };
    assert!(sums("progress.signature") && sums("grant.unknown"));
}

#[test]
fn nothing_begins_after_the_grant_has_expired() {
    let (mut site, mut node, id) = admitted();
    site.act(begin(&id));
    let grant = boot(&mut site, &mut node, 3).unwrap();
    let fetch = |site: &mut Site, peer: Ipv4Addr, image: [u8; 32]| {
        let done = site
            .gateway
            .image_fetch(site.now, IpAddr::V4(peer), &hex::encode(image));
        done.map_or_else(|reason| reason.code.to_string(), |()| "allowed".to_owned())
    };
    assert_eq!(fetch(&mut site, PEER, IMAGE), "allowed");
    assert_eq!(fetch(&mut site, PEER, RAW), "grant.image");
    assert_eq!(
        fetch(&mut site, Ipv4Addr::new(10, 66, 0, 101), IMAGE),
        "grant.unknown"
    );
    site.wait(GRANT_MS);
    assert_eq!(fetch(&mut site, PEER, IMAGE), "grant.expired");
    let late = said(&grant, 1, InstallStep::Checked);
    assert_eq!(report(&mut site, &node, &late), "grant.expired");
    // The same boot may ask again and gets a new one.
    let fresh = attest(&mut site, &node, 4).unwrap();
    assert_ne!(fresh.grant, grant.grant);
    assert_eq!(fetch(&mut site, PEER, IMAGE), "allowed");
    site.act(Command::Cordon(id));
    assert_eq!(fetch(&mut site, PEER, IMAGE), "machine.state");
}

/// Row 29: an answer that is held back on the wire is no leave: what came in between counts.
#[test]
fn attack_29_a_repeated_report_is_accepted_only_while_it_would_be() {
    for (act, code) in [
        ("cordon", "machine.state"),
        ("cancel", "run.ended"),
        ("image", "image.withdrawn"),
    ] {
        let (mut site, mut node, id) = admitted();
        site.act(begin(&id));
        let grant = boot(&mut site, &mut node, 3).unwrap();
        let checked = said(&grant, 1, InstallStep::Checked);
        assert_eq!(report(&mut site, &node, &checked), "accepted");
        assert_eq!(report(&mut site, &node, &checked), "accepted", "repeated");
        site.act(match act {
            "cordon" => Command::Cordon(id),
            "cancel" => Command::Install(id, Install::Cancel("another disk".into())),
            _ => Command::ImageWithdraw(hex::encode(IMAGE)),
        });
        assert_eq!(report(&mut site, &node, &checked), code, "{act}");
    }
    // Verified ends the run itself: its answer may be lost as well.
    let (mut site, mut node, id) = admitted();
    site.act(begin(&id));
    let grant = boot(&mut site, &mut node, 3).unwrap();
    let steps = [
        InstallStep::Checked,
        InstallStep::Wiped,
        InstallStep::Written,
        InstallStep::Configured,
        InstallStep::Verified,
    ];
    for (seq, step) in (1..).zip(steps) {
        assert_eq!(
            report(&mut site, &node, &said(&grant, seq, step)),
            "accepted"
        );
    }
    let last = said(&grant, 5, InstallStep::Verified);
    assert_eq!(report(&mut site, &node, &last), "accepted");
    // An installed machine is not written over by mistake, nor by a retry.
    let retry = Command::Install(id.clone(), Install::Retry);
    assert_eq!(site.ask(retry).unwrap_err().code, "run.installed");
    assert_eq!(site.ask(begin(&id)).unwrap_err().code, "run.installed");
}

#[test]
fn a_run_that_fails_times_out_or_is_cancelled_waits_for_the_owner() {
    let (mut site, mut node, id) = admitted();
    let retry = || Command::Install(id.clone(), Install::Retry);
    assert_eq!(site.ask(retry()).unwrap_err().code, "run.unknown");
    site.act(begin(&id));
    assert_eq!(site.ask(begin(&id)).unwrap_err().code, "run.unfinished");
    let grant = boot(&mut site, &mut node, 3).unwrap();
    assert_eq!(
        report(&mut site, &node, &said(&grant, 1, InstallStep::Checked)),
        "accepted"
    );
    let mut failed = said(&grant, 2, InstallStep::Failed);
    failed.detail = "disk.io: expected a disk that is written, found Input/output error".into();
    assert_eq!(report(&mut site, &node, &failed), "accepted");
    let view = site.machine(&id.0);
    assert_eq!(
        (view.state.as_str(), view.boot.as_str()),
        ("admitted", "provision")
    );
    let install = view.install.unwrap();
    assert_eq!(install.outcome.as_deref(), Some("failed"));
    assert!(install.reason.unwrap().found.contains("Input/output"));
    assert_eq!(
        boot(&mut site, &mut node, 4),
        None,
        "a failure is not tried again by itself"
    );
    let wiped = said(&grant, 3, InstallStep::Wiped);
    assert_eq!(report(&mut site, &node, &wiped), "run.ended");

    site.act(retry());
    let grant = boot(&mut site, &mut node, 5).unwrap();
    assert_eq!(
        report(&mut site, &node, &said(&grant, 1, InstallStep::Checked)),
        "accepted"
    );
    site.wait(limits::RUN_STEP_MS);
    let install = site.machine(&id.0).install.unwrap();
    let reason = install.reason.unwrap();
    assert_eq!(
        (reason.code.as_ref(), install.outcome.as_deref()),
        ("run.timeout", Some("timed_out"))
    );
    assert!(
        reason.expected.contains("wiped"),
        "the stuck step is named: {reason}"
    );

    site.act(retry());
    site.act(Command::Install(
        id.clone(),
        Install::Cancel("another disk".into()),
    ));
    assert_eq!(boot(&mut site, &mut node, 6), None);
    // A run may wait for its machine, but not for ever.
    site.act(retry());
    site.wait(limits::RUN_WAIT_MS - 1_000);
    assert_eq!(site.machine(&id.0).install.unwrap().outcome, None);
    site.wait(1_000);
    let reason = site.machine(&id.0).install.unwrap().reason.unwrap();
    assert!(reason.expected.contains("boot"), "{reason}");
}

#[test]
fn attempts_are_bounded_and_the_owner_may_change_his_mind_about_the_image() {
    let (mut site, mut node, id) = admitted();
    site.act(begin(&id));
    for attempt in 0..limits::GRANTS_PER_RUN_MAX {
        let hour = u64::from(attempt) * 3_600_000 / 8;
        site.now.0 += hour.max(1) / u64::from(attempt.max(1));
        assert!(boot(&mut site, &mut node, 10 + u64::from(attempt)).is_some());
    }
    assert_eq!(boot(&mut site, &mut node, 60), None);
    let reason = site.machine(&id.0).install.unwrap().reason.unwrap();
    assert_eq!(reason.code, "run.attempts");
    site.act(Command::Install(id.clone(), Install::Retry));
    site.act(Command::ImageWithdraw(hex::encode(IMAGE)));
    site.now.0 += 3_600_000;
    assert_eq!(boot(&mut site, &mut node, 61), None);
    let install = site.machine(&id.0).install.unwrap();
    assert_eq!(install.reason.unwrap().code, "image.withdrawn");
    // The older version still passes.
    site.act(begin(&id));
    assert_eq!(boot(&mut site, &mut node, 62).unwrap().image.version, 1);
}

#[test]
fn who_may_ask_and_what_may_be_granted() {
    let (mut site, mut node, id) = admitted();
    for role in [Role::Viewer, Role::Operator] {
        let caller = Caller {
            cn: "bob".into(),
            role,
        };
        let done = site.gateway.command(site.now, &caller, begin(&id));
        assert_eq!(done.unwrap_err().code, "admin.role");
    }
    let begin_with = |image: &str, version, disk: Option<&str>| {
        let install = Install::Begin {
            image: image.into(),
            version,
            disk_serial: disk.map(str::to_owned),
            again: false,
        };
        Command::Install(id.clone(), install)
    };
    for (command, code) in [
        (begin_with("none", None, Some("D")), "image.unknown"),
        (begin_with("worker", Some(7), Some("D")), "image.unknown"),
        (begin_with("worker", None, None), "run.disk"),
        (
            begin_with("worker", None, Some("a\nb")),
            "malformed.command",
        ),
    ] {
        assert_eq!(site.ask(command).unwrap_err().code, code);
    }
    site.act(Command::ImageFloor("worker".into(), 2));
    let old = begin_with("worker", Some(1), Some("D"));
    assert_eq!(site.ask(old).unwrap_err().code, "image.floor");
    // An attester that does not say that it can gets none.
    site.act(begin(&id));
    node.can.clear();
    assert_eq!(boot(&mut site, &mut node, 3), None);
    node.can = vec![Ability::Install];
    assert!(boot(&mut site, &mut node, 4).is_some());
}

fn auto_policy(class: &str) -> Policy {
    let text = format!(
        "version = 1\npreset = \"standard\"\n[[class]]\nname = \"default\"\n[class.install]\n{class}\n"
    );
    Policy::parse(&text).unwrap()
}

#[test]
fn a_class_may_install_its_declared_workers_once() {
    let mut site = Site::new();
    site.declared.policy = auto_policy("auto_image = \"worker\"");
    site.restart();
    let mut node = node();
    node.can = vec![Ability::Install];
    site.attempt(&node, 1, PEER);
    let id = site.gateway.machines()[0].machine.clone();
    let Command::Approve {
        machine,
        report_sha256,
        class,
        port,
        compared,
        ..
    } = site.approval(&id.0)
    else {
        unreachable!()
    };
    let disk_serial = Some("DISK-1".to_owned());
    site.act(Command::Approve {
        machine,
        report_sha256,
        class,
        disk_serial,
        port,
        compared,
    });
    let grant = attest(&mut site, &node, 2).unwrap();
    assert_eq!(grant.disk_serial, "DISK-1");
    let by = site.machine(&id.0).install.unwrap().by;
    assert_eq!(by, None, "nobody but its class");
    site.act(Command::Install(
        id.clone(),
        Install::Cancel("not yet".into()),
    ));
    assert_eq!(boot(&mut site, &mut node, 3), None, "once");
}

#[test]
fn a_control_plane_is_never_installed_by_its_class() {
    let both = "version = 1\npreset = \"standard\"\n[[class]]\nname = \"cp\"\n[class.install]\n\
         control_plane = true\nauto_image = \"worker\"\n";
    let mistakes = Policy::parse(both).unwrap_err();
    assert!(
        mistakes[0].to_string().contains("control plane"),
        "{}",
        mistakes[0]
    );
    let policy = auto_policy("control_plane = true");
    assert_eq!(policy.install("default").auto_image, None);
    assert!(policy.install("default").control_plane);
}
