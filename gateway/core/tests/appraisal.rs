//! The appraisal, row by row: each test changes exactly one thing of evidence that passes, and
//! names the code. The unmodified evidence passes in the same call. Long, because it is one table
//! and is read beside `TABLE`.

#![allow(clippy::unwrap_used)]

mod support;

use attest_wire::templates::Template;
use attest_wire::tpm::{
    Attest, AttestBody, HashAlg, PcrSelection, PublicKind, RH_OWNER, qualified_name_of_primary,
};
use attest_wire::v1::{
    Binding as WireBinding, Bytes, Challenge, DevIdAuth, Evidence, Hello, decode_challenge,
};
use boot::catalog::{Kind, Role};
use gateway_core::appraisal::variables::SHIM_LOCK;
use gateway_core::appraisal::{
    Admission, Appraisal, Check, PossessionProven, QUOTED_PCRS, Refusal, RelayWord, TABLE,
    Verified, appraise_evidence, appraise_hello, make_challenge,
};
use gateway_core::identity::MachineId;
use gateway_core::policy::{Mode, Policy, Preset};
use gateway_core::reason::Reason;
use rand_core::OsRng;
use support::log::{self, Entry, LogBuilder};
use support::world::*;
use support::{NodeEk, Session};

#[track_caller]
fn admitted(appraisal: Appraisal) -> Verified<Admission> {
    match appraisal {
        Appraisal::Admitted(admission) => *admission,
        Appraisal::Possession(proven) => panic!("only possession: {:?}", proven.would_refuse),
        Appraisal::Refused(refusal) => panic!("refused: {:#?}", refusal.reasons),
    }
}

#[track_caller]
fn possession(appraisal: Appraisal) -> PossessionProven {
    match appraisal {
        Appraisal::Possession(proven) => *proven,
        other => panic!("expected possession, got {other:?}"),
    }
}

/// Asserts the refusal's first code, that the table knows every code, and gives the refusal back.
#[track_caller]
fn refused(appraisal: Appraisal, code: &str) -> Refusal {
    let Appraisal::Refused(refusal) = appraisal else {
        panic!("expected {code}, got {appraisal:?}");
    };
    let known: Vec<&str> = TABLE.iter().flat_map(|row| row.codes).copied().collect();
    for reason in &refusal.reasons {
        assert!(
            known.contains(&&*reason.code),
            "{} is not in the table",
            reason.code
        );
        assert!(!reason.next.is_empty() && !reason.expected.is_empty());
    }
    assert_eq!(refusal.code(), code, "{:#?}", refusal.reasons);
    *refusal
}

/// Changes one thing of the world and expects one code.
#[track_caller]
fn rejects(code: &str, change: impl FnOnce(&mut World)) -> Refusal {
    let mut world = World::new();
    admitted(world.run());
    change(&mut world);
    refused(world.run(), code)
}

/// Changes one thing of the hello.
#[track_caller]
fn rejects_hello(code: &str, change: impl FnOnce(&mut Hello)) {
    let world = World::new();
    admitted(world.run());
    let refusal = refused(world.run_with(change, |_, _| {}), code);
    assert!(!refusal.activated);
    assert_eq!(
        refusal.told().0,
        "not_admitted",
        "an unproven node learns nothing"
    );
}

/// Changes one thing of the evidence.
#[track_caller]
fn rejects_evidence(
    code: &str,
    change: impl FnOnce(&World, &mut Evidence, &WireBinding),
) -> Refusal {
    let world = World::new();
    admitted(world.run());
    refused(world.run_with(|_| {}, |e, b| change(&world, e, b)), code)
}

#[test]
fn an_honest_machine_is_admitted_and_everything_is_recorded() {
    let world = World::new();
    let admission = admitted(world.run());
    assert_eq!(admission.binding.machine.0, "m-1");
    assert_eq!(admission.facts.image_sha256, Some(hex::encode([3; 32])));
    assert_eq!(admission.facts.image_role, Some(Role::Provision));
    assert_eq!(admission.facts.counters, Some((7, 2)));
    assert_eq!(admission.facts.assurance, "bare-ek");
    assert_eq!(admission.devid, world.node.devid);
    assert!(admission.reported.is_empty(), "{:?}", admission.reported);
    let rows: Vec<u8> = admission.checks.iter().map(|check| check.row).collect();
    // Rows 1 and 3 are judged for both messages.
    assert_eq!(rows, [1, 2, 3, 4, 5, 6, 1, 3, 7, 8, 9, 10, 11, 12, 13, 14]);
    let record = admission.record("measured", "c0ffee");
    assert!(record.admitted);
    assert_eq!(record.policy_sha256, hex::encode(world.policy.sha256()));
}

#[test]
fn every_kind_of_ek_activates() {
    let mut world = World::new();
    world.node.eks = vec![
        NodeEk::rsa(&mut OsRng),
        NodeEk::p256(&mut OsRng),
        NodeEk::p384(&mut OsRng),
    ];
    world.registry = Registry::default();
    world.bind("m-2");
    let admission = admitted(world.run());
    assert_eq!(admission.facts.ek_names.len(), 3);
}

#[test]
fn an_unknown_ek_proves_possession_and_is_no_admission() {
    let mut world = World::new();
    world.registry = Registry::default();
    let proven = possession(world.run());
    assert!(proven.would_refuse.is_empty(), "{:?}", proven.would_refuse);
    assert_eq!(proven.facts.ek_names, [name_of(&world.node.eks[0])]);
    let claim = proven.record(MachineId("m-new".into()), "c0ffee");
    assert_eq!(claim.serial, "LAB-0001");
    assert_eq!(claim.report_sha256.len(), 64);
}

#[test]
fn rejects_a_devid_that_the_owner_does_not_take() {
    let mut world = World::new();
    world.devid.template = Some(Template::DevIdP256);
    admitted(world.run());
    world.devid.template = Some(Template::DevIdRsa2048);
    refused(world.run(), "devid.kind");

    let mut world = World::new();
    world.devid.secret_auth = true;
    world.node.devid_auth = DevIdAuth::Secret;
    assert_eq!(admitted(world.run()).facts.devid_auth, "secret");
    world.node.devid_auth = DevIdAuth::None;
    refused(world.run(), "devid.auth");
}

#[test]
fn a_claim_shows_what_would_refuse_it() {
    let mut world = World::new();
    world.registry = Registry::default();
    world.catalog[1].withdrawn = true;
    let proven = possession(world.run());
    let codes: Vec<&str> = proven.would_refuse.iter().map(|r| &*r.code).collect();
    assert_eq!(codes, ["boot.withdrawn"]);
}

#[test]
fn observe_reports_what_would_refuse_and_still_demands_proof() {
    let mut world = World::new();
    world.policy = Policy::preset(Preset::Observe);
    world.catalog[1].withdrawn = true;
    world.node.serial = "OTHER".into();
    let admission = admitted(world.run());
    let codes: Vec<&str> = admission.reported.iter().map(|r| &*r.code).collect();
    assert_eq!(codes, ["boot.withdrawn", "platform.serial"]);
    let forged = world.run_with(
        |_| {},
        |evidence, _| evidence.activated[0] = Bytes(vec![0; 32]),
    );
    refused(forged, "ak.activation");
}

// Row 1

#[test]
fn rejects_row_01_bodies_out_of_bounds() {
    let world = World::new();
    let body = serde_json::to_vec(&world.node.hello()).unwrap();
    assert!(appraise_hello(&body, &world.hello_context()).is_ok());
    for (body, code) in [
        (vec![], "malformed.size"),
        (vec![b' '; 65 * 1024], "malformed.size"),
        (body[1..].to_vec(), "malformed.json"),
    ] {
        let refusal = appraise_hello(&body, &world.hello_context()).unwrap_err();
        assert_eq!(refusal.code(), code);
        assert!(!refusal.activated);
    }
    rejects_hello("malformed.public", |h| h.ak_pub.0.push(0));
    rejects_hello("malformed.public", |h| h.eks[0].public.0.truncate(60));
}

#[test]
fn rejects_row_01_evidence_of_another_session() {
    let refusal = rejects_evidence("channel.mismatch", |_, e, _| e.session.0[0] ^= 1);
    assert!(!refusal.activated);
}

// Row 2

#[test]
fn rejects_row_02_an_ek_that_follows_no_template() {
    rejects("ek.template", |w| {
        w.node.eks[0].public.attributes |= 1 << 18
    });
    rejects("ek.template", |w| w.node.eks[0].public.auth_policy.clear());
    rejects("ek.template", |w| {
        if let PublicKind::Ecc { y, .. } = &mut w.node.eks[0].public.kind {
            y[0] ^= 1;
        }
    });
    rejects_hello("ek.template", |h| h.eks.push(h.eks[0].clone()));
}

// Row 3

#[test]
fn rejects_row_03_unknown_ambiguous_and_withdrawn() {
    rejects("ek.unknown", |w| {
        w.registry = Registry::default();
        let text = "version = 1\npreset = \"standard\"\n[enrol]\nclaims = false\n";
        w.policy = Policy::parse(text).unwrap();
    });
    rejects("ek.ambiguous", |w| {
        w.node.eks.push(NodeEk::p384(&mut OsRng));
        w.registry = Registry::default();
        w.bind("m-1");
        let second = name_of(&w.node.eks[1]);
        w.registry.owners.get_mut(&second).unwrap().machine = MachineId("m-2".into());
    });
    rejects("machine.state", |w| {
        w.binding().may_attest = Err(Reason::new(
            "machine.state",
            "a machine that may attest",
            "withdrawn",
            "the ledger",
            "ask the owner",
        ));
    });
}

#[test]
fn rejects_row_03_a_withdrawal_between_hello_and_evidence() {
    let mut world = World::new();
    let body = serde_json::to_vec(&world.node.hello()).unwrap();
    let verified = appraise_hello(&body, &world.hello_context()).unwrap();
    let issued = make_challenge(&verified, SESSION, EXPORTER, &mut OsRng).unwrap();
    let evidence = world.node.evidence(&Session {
        hello_body: &body,
        challenge_body: &issued.body,
        exporter: EXPORTER,
    });
    let evidence = serde_json::to_vec(&evidence).unwrap();
    world.binding().may_attest = Err(Reason::new(
        "machine.state",
        "a machine that may attest",
        "withdrawn",
        "the ledger",
        "ask the owner",
    ));
    let appraisal = appraise_evidence(verified, issued, &evidence, &world.evidence_context());
    refused(appraisal, "machine.state");
}

// Row 5 and 6

#[test]
fn rejects_row_05_an_unrestricted_or_foreign_ak() {
    rejects("ak.template", |w| w.node.ak_public.attributes &= !(1 << 16));
    rejects("ak.template", |w| w.node.ak_public.attributes &= !(1 << 1));
    rejects("ak.template", |w| {
        w.node.ak_public.auth_policy = vec![0; 32]
    });
}

#[test]
fn rejects_row_06_devid_and_srk_of_other_templates() {
    rejects("devid.template", |w| w.node.devid.attributes &= !(1 << 1));
    rejects("devid.template", |w| w.node.devid.attributes |= 1 << 16);
    rejects("devid.parent", |w| w.node.srk.attributes &= !(1 << 10));
    rejects("devid.parent", |w| w.node.srk.auth_policy = vec![0; 32]);
}

// Row 7

#[test]
fn rejects_row_07_secrets_of_another_tpm_ak_or_channel() {
    rejects_evidence("ak.activation", |_, e, _| e.activated[0].0[0] ^= 1);
    rejects_evidence("ak.activation", |_, e, _| {
        e.activated.push(e.activated[0].clone())
    });
    // The EK's TPM holds no object with that Name: the AK shown is another TPM's.
    let world = World::new();
    let other = World::new();
    let mut node = World::new();
    node.node.ak_public = other.node.ak_public.clone();
    node.registry = Registry::default();
    let mixed = node.run_with(
        |_| {},
        |evidence, _| {
            evidence.activated[0] = Bytes(HashAlg::Sha256.hmac(&[0; 32], &[b"guess"]));
        },
    );
    refused(mixed, "ak.activation");
    admitted(world.run());
}

#[test]
fn rejects_row_07_evidence_relayed_over_another_connection() {
    let world = World::new();
    let body = serde_json::to_vec(&world.node.hello()).unwrap();
    for (exporter, passes) in [(EXPORTER, true), ([0x43; 32], false)] {
        let verified = appraise_hello(&body, &world.hello_context()).unwrap();
        let issued = make_challenge(&verified, SESSION, EXPORTER, &mut OsRng).unwrap();
        let evidence = world.node.evidence(&Session {
            hello_body: &body,
            challenge_body: &issued.body,
            exporter,
        });
        let evidence = serde_json::to_vec(&evidence).unwrap();
        let appraisal = appraise_evidence(verified, issued, &evidence, &world.evidence_context());
        if passes {
            admitted(appraisal);
        } else {
            refused(appraisal, "ak.activation");
        }
    }
}

#[test]
fn rejects_row_07_evidence_of_an_earlier_session() {
    let world = World::new();
    let body = serde_json::to_vec(&world.node.hello()).unwrap();
    let hello = || appraise_hello(&body, &world.hello_context()).unwrap();
    let first = make_challenge(&hello(), SESSION, EXPORTER, &mut OsRng).unwrap();
    let old = world.node.evidence(&Session {
        hello_body: &body,
        challenge_body: &first.body,
        exporter: EXPORTER,
    });
    let old = serde_json::to_vec(&old).unwrap();
    admitted(appraise_evidence(
        hello(),
        first,
        &old,
        &world.evidence_context(),
    ));
    let second = make_challenge(&hello(), SESSION, EXPORTER, &mut OsRng).unwrap();
    let replayed = appraise_evidence(hello(), second, &old, &world.evidence_context());
    refused(replayed, "ak.activation");
}

// Row 8

#[test]
fn rejects_row_08_certifications_of_something_else() {
    let certify =
        |w: &World, qualifying: &[u8], body| w.node.sign(&w.node.attest(qualifying, body));
    rejects_evidence("devid.certify", |_, e, b| {
        let other = World::new();
        e.devid_certify = certify(&other, &b.digest("devid"), other.node.certify_body());
    });
    rejects_evidence("devid.certify", |w, e, b| {
        e.devid_certify = certify(w, &b.digest("quote"), w.node.certify_body());
    });
    rejects_evidence("devid.certify", |w, e, _| {
        e.devid_certify = certify(w, &[], w.node.certify_body());
    });
    rejects_evidence("devid.certify", |w, e, b| {
        let AttestBody::Certify { qualified_name, .. } = w.node.certify_body() else {
            unreachable!("certify_body certifies");
        };
        let name = World::new().node.devid.name().as_bytes().to_vec();
        e.devid_certify = certify(
            w,
            &b.digest("devid"),
            AttestBody::Certify {
                name,
                qualified_name,
            },
        );
    });
    rejects_evidence("devid.parent", |w, e, b| {
        let name = w.node.devid.name().as_bytes().to_vec();
        let qualified_name = vec![0; 34];
        e.devid_certify = certify(
            w,
            &b.digest("devid"),
            AttestBody::Certify {
                name,
                qualified_name,
            },
        );
    });
    rejects_evidence("devid.certify", |_, e, _| e.devid_certify = e.quote.clone());
    rejects_evidence("devid.certify", |_, e, _| e.devid_certify.attest.0[0] ^= 1);
    rejects_evidence("devid.certify", |_, e, _| e.devid_certify.sig.0[10] ^= 1);
}

// Row 9

/// Signs an edited quote with the genuine AK: the TPM itself would have to misbehave.
fn requoted(w: &World, e: &mut Evidence, b: &WireBinding, edit: impl FnOnce(&mut Attest)) {
    let (mut attest, _) = w
        .node
        .quote(&b.digest("quote"), &QUOTED_PCRS, &[b.digest("boot")]);
    edit(&mut attest);
    e.quote = w.node.sign(&attest);
}

#[test]
fn rejects_row_09_nonces_that_are_not_of_this_session() {
    for nonce in [vec![], vec![0; 32], vec![0xff; 32], vec![7; 64]] {
        rejects_evidence("quote.nonce", |w, e, b| {
            requoted(w, e, b, |attest| attest.extra_data = nonce);
        });
    }
    rejects_evidence("quote.nonce", |w, e, b| {
        requoted(w, e, b, |attest| attest.extra_data.extend([0; 32]));
    });
    rejects_evidence("quote.nonce", |w, e, b| {
        requoted(w, e, b, |attest| {
            attest.extra_data = b.digest("devid").to_vec()
        });
    });
}

#[test]
fn rejects_row_09_an_ak_of_the_owner_hierarchy() {
    let refusal = rejects("quote.signer", |w| w.node.ak_hierarchy = RH_OWNER);
    assert_eq!(refusal.reasons.len(), 1);
    assert!(refusal.activated);
    assert_eq!(refusal.told().0, "quote.signer");
    assert!(refusal.told().1.len() <= 78);
}

#[test]
fn rejects_row_09_other_signers_types_and_magic() {
    rejects_evidence("quote.signer", |w, e, b| {
        let owner = qualified_name_of_primary(RH_OWNER, &w.node.ak_public);
        requoted(w, e, b, |a| a.qualified_signer = owner.as_bytes().to_vec());
    });
    rejects_evidence("quote.signature", |_, e, _| {
        let len = e.quote.attest.0.len();
        e.quote.attest.0[len - 1] ^= 1;
    });
    rejects_evidence("quote.signature", |_, e, b| {
        let other = World::new();
        requoted(&other, e, b, |_| {});
    });
    rejects_evidence("quote.magic", |_, e, _| e.quote.attest.0[0] = 0);
    rejects_evidence("quote.malformed", |_, e, _| e.quote.attest.0.push(0));
    rejects_evidence("quote.type", |_, e, _| e.quote = e.devid_certify.clone());
}

#[test]
fn rejects_row_09_other_banks_and_selections() {
    rejects_evidence("quote.bank", |w, e, b| {
        requoted(w, e, b, |attest| {
            select(attest, vec![PcrSelection::of(4, &QUOTED_PCRS)])
        });
    });
    rejects_evidence("quote.bank", |w, e, b| {
        let both = [4, 0x000b].map(|bank| PcrSelection::of(bank, &QUOTED_PCRS));
        requoted(w, e, b, |attest| select(attest, both.to_vec()));
    });
    for left_out in [7, 11, 15] {
        rejects_evidence("quote.selection", |w, e, b| {
            let pcrs: Vec<u8> = QUOTED_PCRS.into_iter().filter(|p| *p != left_out).collect();
            let (attest, values) = w.node.quote(&b.digest("quote"), &pcrs, &[b.digest("boot")]);
            e.quote = w.node.sign(&attest);
            e.pcr_values = values;
        });
    }
}

fn select(attest: &mut Attest, selection: Vec<PcrSelection>) {
    if let AttestBody::Quote { pcr_select, .. } = &mut attest.body {
        *pcr_select = selection;
    }
}

#[test]
fn rejects_row_09_values_that_the_digest_does_not_cover() {
    for at in 0..QUOTED_PCRS.len() {
        rejects_evidence("quote.digest", |_, e, _| e.pcr_values[at].digest.0[0] ^= 1);
    }
}

// Row 10

#[test]
fn rejects_row_10_logs_that_cannot_be_read() {
    rejects_evidence("eventlog.empty", |_, e, _| e.event_log.0.clear());
    rejects_evidence("eventlog.malformed", |_, e, _| {
        let len = e.event_log.0.len();
        e.event_log.0.truncate(len - 1);
    });
    rejects_evidence("eventlog.bank", |_, e, _| {
        e.event_log.0 = log::event1(0, log::EV_S_CRTM_VERSION, &[1; 20], b"x");
    });
    rejects_evidence("malformed.field", |_, e, _| {
        e.event_log.0 = vec![0; 300 * 1024]
    });
}

#[test]
fn rejects_row_10_every_dropped_added_or_swapped_event() {
    let honest = honest_log();
    let with = |entries: &[Entry]| {
        let bytes = LogBuilder::write(entries).bytes;
        rejects_evidence("eventlog.replay", |_, e, _| e.event_log.0 = bytes);
    };
    for at in 0..honest.len() {
        let mut dropped = honest.clone();
        dropped.remove(at);
        with(&dropped);
    }
    let mut added = honest.clone();
    added.push(Entry::of(4, log::EV_APPLICATION, [9; 32], &[]));
    with(&added);
    let mut swapped = honest.clone();
    let uki = swapped
        .iter()
        .position(|entry| entry.digest == UKI)
        .unwrap();
    swapped[uki].digest = IPXE;
    with(&swapped);
    let mut hidden = honest;
    hidden[uki].kind = log::EV_NO_ACTION;
    with(&hidden);
}

#[test]
fn rejects_row_10_an_extend_that_no_log_shows() {
    for pcr in QUOTED_PCRS.into_iter().filter(|pcr| *pcr != 15) {
        rejects("eventlog.replay", |w| w.node.unlogged.push((pcr, [1; 32])));
    }
    rejects("eventlog.pcr15", |w| w.node.unlogged.push((15, [1; 32])));
}

#[test]
fn rejects_row_10_a_pcr_15_of_another_session() {
    rejects_evidence("eventlog.pcr15", |_, e, _| e.pcr15_extends[0].0[0] ^= 1);
    rejects_evidence("eventlog.pcr15", |_, e, _| {
        let last = e.pcr15_extends[0].clone();
        e.pcr15_extends = vec![Bytes(vec![1; 32]), last];
    });
    let mut world = World::new();
    world.node.pcr15 = vec![[1; 32], [2; 32]];
    admitted(world.run());
}

#[test]
fn startup_locality_seeds_pcr_0_and_other_no_action_events_do_not() {
    let locality = |data: &[u8]| Entry::of(0, log::EV_NO_ACTION, [0; 32], data);
    let mut world = World::new();
    let mut entries = honest_log();
    entries.insert(0, locality(b"StartupLocality\0\x03"));
    world.boots(&entries);
    // The software TPM starts at locality 0, so a claimed 3 must not match.
    refused(world.run(), "eventlog.replay");
    for data in [
        &b"StartupLocality\0\x00"[..],
        b"StartupLocality\0\x03\x00",
        b"SP800-155 Event\0\x03",
    ] {
        entries[0] = locality(data);
        world.boots(&entries);
        admitted(world.run());
    }
}

// Row 11

#[track_caller]
fn rejects_boot(code: &str, change: impl FnOnce(&mut Vec<Entry>)) -> Refusal {
    rejects(code, |w| {
        let mut entries = honest_log();
        change(&mut entries);
        w.boots(&entries);
    })
}

fn position(entries: &[Entry], pcr: u8, kind: u32) -> usize {
    let found = entries.iter().position(|e| e.pcr == pcr && e.kind == kind);
    found.unwrap()
}

#[test]
fn rejects_row_11_secure_boot_off_however_it_is_dressed() {
    let off = log::variable(log::GLOBAL, "SecureBoot", &[0]);
    let on = log::variable(log::GLOBAL, "SecureBoot", &[1]);
    rejects_boot("boot.secure_boot", |log| {
        let at = position(log, 7, log::EV_VARIABLE);
        log[at] = Entry::measured(7, log::EV_VARIABLE, &off);
    });
    rejects_boot("boot.secure_boot", |log| {
        let at = position(log, 7, log::EV_VARIABLE);
        log.remove(at);
    });
    // Measured only after the separator, by the operating system.
    rejects_boot("boot.secure_boot", |log| {
        let at = position(log, 7, log::EV_VARIABLE);
        log.remove(at);
        log.push(Entry::measured(7, log::EV_VARIABLE, &on));
    });
    // The type of the true event is changed and a false one appended.
    rejects_boot("boot.secure_boot", |log| {
        let at = position(log, 7, log::EV_VARIABLE);
        log[at] = Entry::measured(7, 2, &off);
        log.insert(at + 1, Entry::measured(7, log::EV_VARIABLE, &on));
    });
    // The true event is wrapped as the content of an authority.
    rejects_boot("boot.secure_boot", |log| {
        let at = position(log, 7, log::EV_VARIABLE);
        let wrapped = log::variable(log::SECURITY_DATABASE, "db", &off);
        log[at] = Entry::of(7, log::EV_AUTHORITY, log::sha256(&off), &wrapped);
        log.insert(at + 1, Entry::measured(7, log::EV_VARIABLE, &on));
    });
    // It is shown with a stray byte behind, as old shim logs its own events.
    rejects_boot("boot.secure_boot", |log| {
        let at = position(log, 7, log::EV_VARIABLE);
        let shown = [&off[..], &[0xaf]].concat();
        log[at] = Entry::of(7, log::EV_AUTHORITY, log::sha256(&off), &shown);
        log.insert(at + 1, Entry::measured(7, log::EV_VARIABLE, &on));
    });
    // Its data is replaced: the digest no longer fits and the event is not understood.
    let refusal = rejects_boot("boot.variable", |log| {
        let at = position(log, 7, log::EV_VARIABLE);
        log[at] = Entry::of(7, log::EV_VARIABLE, log::sha256(&off), &on);
    });
    assert!(refusal.reasons.iter().any(|r| r.code == "boot.secure_boot"));
}

#[test]
fn authorities_of_old_shim_and_old_firmware_are_understood() {
    // As much of a certificate as is looked at: one DER SEQUENCE.
    let certificate = [&[0x30, 0x12][..], b"vendor certificate"].concat();
    let mok = log::variable([0x50; 16], "Shim", &certificate);
    let stray = [&mok[..], &[0, 0, 0, 0, 0, 0xaf]].concat();
    let hashed = log::sha256(&stray[..stray.len() - 1]);
    for (entry, quirk) in [
        (
            Entry::of(7, log::EV_AUTHORITY, hashed, &stray),
            "Q07-variable-padded",
        ),
        (
            Entry::of(7, log::EV_AUTHORITY, log::sha256(&certificate), &mok),
            "Q08-authority-content-hashed",
        ),
    ] {
        let mut world = World::new();
        let mut entries = honest_log();
        entries.push(entry);
        world.boots(&entries);
        assert_eq!(admitted(world.run()).facts.quirks, [quirk]);
    }
}

/// Whatever hashes to its digest can be shown as the content of an authority. Only a certificate
/// counts there: what firmware says in words that are not known here stays unknown.
#[test]
fn rejects_row_11_what_is_no_certificate_dressed_as_an_authority() {
    for words in [
        &b"UEFI Debug Mode, enabled"[..],
        b"",
        &[0x30],
        &[0x30, 0x05, 1, 2],
    ] {
        for owner in [&[][..], &[7; 16]] {
            let hashed = [owner, words].concat();
            let dressed = log::variable(log::SECURITY_DATABASE, "db", &hashed);
            rejects_boot("boot.variable", |log| {
                log.insert(
                    1,
                    Entry::of(7, log::EV_AUTHORITY, log::sha256(&hashed), &dressed),
                );
            });
        }
    }
}

#[test]
fn rejects_row_11_debug_dma_and_separators() {
    rejects_boot("boot.debug", |log| {
        log.insert(1, Entry::measured(7, log::EV_ACTION, b"UEFI Debug Mode"));
    });
    rejects_boot("boot.dma", |log| {
        log.insert(
            1,
            Entry::measured(7, log::EV_ACTION, b"DMA Protection Disabled"),
        );
    });
    // The type does not matter.
    rejects_boot("boot.debug", |log| {
        log.insert(1, Entry::measured(7, 0, b"UEFI Debug Mode\0"));
    });
    rejects_boot("boot.separator", |log| {
        let at = position(log, 4, log::EV_SEPARATOR);
        log.remove(at);
    });
    rejects_boot("boot.separator", |log| {
        let at = position(log, 0, log::EV_SEPARATOR);
        log.insert(at, Entry::measured(0, log::EV_SEPARATOR, &[0; 4]));
    });
    rejects_boot("boot.separator", |log| {
        let at = position(log, 2, log::EV_SEPARATOR);
        log[at] = Entry::measured(2, log::EV_SEPARATOR, &1u32.to_le_bytes());
    });
}

#[test]
fn rejects_row_11_images_outside_the_catalogue() {
    rejects_boot("boot.image", |log| {
        log.push(Entry::of(4, log::EV_APPLICATION, [9; 32], &[0; 32]));
    });
    // Named as something harmless.
    rejects_boot("boot.image", |log| {
        log.push(Entry::of(
            4,
            log::EV_ACTION,
            [9; 32],
            b"Calling EFI Application",
        ));
    });
    // Words of the firmware that do not belong there.
    rejects_boot("boot.image", |log| {
        log.push(Entry::measured(
            4,
            log::EV_ACTION,
            b"DMA Protection Disabled",
        ));
    });
    let refusal = rejects("boot.image", |w| w.catalog.clear());
    assert!(refusal.reasons.iter().any(|r| r.code == "boot.uki"));
    rejects_boot("boot.uki", |log| log.retain(|e| e.digest != UKI));
    rejects("boot.uki", |w| {
        w.catalog.push(entry(Kind::Uki, "attester", 4, [0xb4; 32]));
        w.boots(&log::honest(&[IPXE, UKI, [0xb4; 32]], &STUB));
    });
    rejects("boot.image", |w| {
        let mut other = entry(Kind::Uki, "attester", 4, [0xb4; 32]);
        other.artefact.linux_pe_sha256 = Some(hex::encode([0xc4; 32]));
        w.catalog.push(other);
        w.boots(&log::honest(&[IPXE, UKI, [0xc4; 32]], &STUB));
    });
}

#[test]
fn rejects_row_11_images_below_the_floor_or_withdrawn() {
    rejects("boot.floor", |w| w.catalog[1].floor = 4);
    rejects("boot.withdrawn", |w| w.catalog[1].withdrawn = true);
    rejects("boot.floor", |w| w.catalog[0].floor = 2);
}

#[test]
fn rejects_row_11_what_the_stub_would_not_have_measured() {
    rejects_boot("boot.pcr11", |log| {
        log.push(Entry::of(11, log::EV_IPL, [1; 32], b"phase"));
    });
    rejects_boot("boot.cmdline", |log| {
        log.push(Entry::measured(
            12,
            log::EV_IPL,
            &log::utf16("init=/bin/sh\0"),
        ));
    });
    rejects_boot("boot.pcr13", |log| {
        log.push(Entry::of(13, log::EV_IPL, [1; 32], b"sysext"));
    });
}

#[test]
fn rejects_row_11_foreign_authorities_and_option_roms_by_policy() {
    let policy = |text: &str| {
        Policy::parse(&format!(
            "version = 1\npreset = \"standard\"\n[boot]\n{text}\n"
        ))
        .unwrap()
    };
    let list = |digest: [u8; 32]| format!("authority_sha256 = [\"{}\"]", hex::encode(digest));
    let mut world = World::new();
    world.policy = policy(&list(log::sha256(b"site certificate")));
    admitted(world.run());
    world.policy = policy(&list([1; 32]));
    refused(world.run(), "boot.authority");
    // The type is covered by no digest: as a setting of the firmware it is an authority all the same.
    let mut entries = honest_log();
    let at = position(&entries, 7, log::EV_AUTHORITY);
    for kind in [log::EV_VARIABLE, log::EV_VARIABLE_BOOT, 0] {
        entries[at].kind = kind;
        world.boots(&entries);
        refused(world.run(), "boot.authority");
    }
    // Before the separator, too.
    let certificate = [&[7; 16][..], &[0x30, 7], b"foreign"].concat();
    let foreign = log::variable(log::SECURITY_DATABASE, "db", &certificate);
    world.policy = policy(&list(log::sha256(b"site certificate")));
    let mut entries = honest_log();
    entries.insert(1, Entry::measured(7, log::EV_VARIABLE, &foreign));
    world.boots(&entries);
    refused(world.run(), "boot.authority");
    // Shim's state vouches for nothing; a certificate under its name does.
    for (content, refuses) in [
        (&b"sbat,1,2021030218\n"[..], false),
        (&certificate[16..], true),
    ] {
        let shim = log::variable(SHIM_LOCK, "SbatLevel", content);
        let mut entries = honest_log();
        entries.push(Entry::measured(7, log::EV_AUTHORITY, &shim));
        world.boots(&entries);
        match refuses {
            true => drop(refused(world.run(), "boot.authority")),
            false => drop(admitted(world.run())),
        }
    }
    world.boots(&honest_log());
    world.policy = policy("option_roms = \"listed\"");
    refused(world.run(), "boot.option_rom");
    world.policy = policy(&format!(
        "option_roms = \"listed\"\noption_rom_sha256 = [\"{}\"]",
        hex::encode([0x22; 32])
    ));
    admitted(world.run());
}

// Rows 12 to 14

#[test]
fn rejects_row_12_another_board_address_or_disk() {
    rejects("platform.serial", |w| w.node.serial = "LAB-0002".into());
    rejects("platform.mac", |w| {
        let mac = w.node.nics[0].mac.clone();
        w.registry.macs.insert(mac, MachineId("m-2".into()));
    });
    rejects("disk.missing", |w| w.node.disks[0].serial = "DISK-2".into());
    rejects("disk.ambiguous", |w| {
        let disk = w.node.disks[0].clone();
        w.node.disks.push(disk);
    });
}

mod port {
    use super::*;
    use attest_wire::v1::LldpReport;
    use netstack::MacAddr;
    use netstack::lldp::{Frame, Id, Lldpdu};

    fn report(chassis: &str, port: &str, age_ms: u64) -> LldpReport {
        let pdu = Lldpdu::new(Id::local(chassis), Id::interface(port), 120);
        let frame = Frame::announce(MacAddr([2, 0, 0, 0, 0, 1]), pdu).encode();
        LldpReport {
            frame: frame.into(),
            age_ms,
            nic: "eth0".into(),
        }
    }

    fn enforced(w: &mut World) {
        let text = "version = 1\npreset = \"standard\"\n[checks]\nport = \"enforce\"\n";
        w.policy = Policy::parse(text).unwrap();
        w.binding().port = Some("sw1/Ethernet1/1".into());
    }

    #[test]
    fn rejects_row_13_other_stale_unseen_and_doubled_ports() {
        let mut world = World::new();
        enforced(&mut world);
        world.node.lldp = vec![report("sw1", "Eth1/1", 1000)];
        let admission = admitted(world.run());
        assert_eq!(admission.facts.port.as_deref(), Some("sw1/Eth1/1"));
        for (frames, code) in [
            (vec![], "port.unseen"),
            (vec![report("sw1", "Eth1/1", 120_001)], "port.stale"),
            (vec![report("sw1", "Eth1/2", 1000)], "port.mismatch"),
            (vec![report("sw2", "Eth1/1", 1000)], "port.mismatch"),
            (
                vec![report("sw1", "Eth1/1", 1000), report("sw9", "Eth9", 10)],
                "port.ambiguous",
            ),
        ] {
            world.node.lldp = frames;
            refused(world.run(), code);
        }
    }

    /// What was overlooked stands in the row and in the receipt, and nothing when nothing was.
    #[test]
    fn row_13_says_what_of_the_writing_it_overlooked() {
        let heard = |chassis: Id, name: Option<&str>, port: Id| {
            let mut pdu = Lldpdu::new(chassis, port, 120);
            pdu.system_name = name.map(str::to_owned);
            let frame = Frame::announce(MacAddr([2, 0, 0, 0, 0, 1]), pdu).encode();
            LldpReport {
                frame: frame.into(),
                age_ms: 1000,
                nic: "eth0".into(),
            }
        };
        let switch = || Id::mac(MacAddr([0, 0x1b, 0x21, 0xaa, 0xbb, 0xcc]));
        let interface = || Id::interface("Ethernet1/1");
        let table = [
            ("sw1/Ethernet1/1", Some("sw1"), None),
            ("00:1b:21:aa:bb:cc/Ethernet1/1", Some("sw1"), None),
            (
                "001B.21AA.BBCC/Eth1/1",
                None,
                Some(
                    "switch: other notation of a hardware address, port: interface type abbreviated",
                ),
            ),
            (
                "SW1/ethernet1/1",
                Some("sw1"),
                Some("switch: upper and lower case, port: upper and lower case"),
            ),
            (
                "sw9/Ethernet9, sw1/Eth1/1",
                Some("sw1"),
                Some("port: interface type abbreviated"),
            ),
        ];
        for (declared, name, overlooked) in table {
            let mut world = World::new();
            enforced(&mut world);
            world.binding().port = Some(declared.into());
            world.node.lldp = vec![heard(switch(), name, interface())];
            let admission = admitted(world.run());
            let port = declared.split(", ").last().unwrap();
            let text = overlooked.map(|overlooked| format!("declared as {port} ({overlooked})"));
            let row = admission.checks.iter().find(|check| check.row == 13);
            assert_eq!(row.unwrap().tolerated, text, "{declared}");
            let receipt = admission.record("measured", "c").port.unwrap();
            match text {
                Some(text) => assert!(receipt.ends_with(&format!("; {text}")), "{receipt}"),
                None => assert!(!receipt.contains("declared"), "{receipt}"),
            }
        }
    }

    fn leased_behind(world: &mut World, circuit_id: &str) {
        let mac = world.node.nics[0].mac.parse().unwrap();
        world.relay = Some(RelayWord {
            mac,
            circuit_id: Some(circuit_id.into()),
            remote_id: Some(b"sw1".to_vec()),
        });
    }

    #[test]
    fn attack_28_option_82_that_names_another_port_than_lldp_is_told() {
        let mut world = World::new();
        world.binding().port = Some("sw1/Ethernet1/1".into());
        world.node.lldp = vec![report("sw1", "Eth1/1", 1000)];
        leased_behind(&mut world, "Ethernet1/9");
        let admission = admitted(world.run());
        let [reason] = admission.reported.as_slice() else {
            panic!("{:?}", admission.reported);
        };
        assert_eq!(reason.code, "port.option82");
        assert!(reason.found.contains("circuit id Ethernet1/9"), "{reason}");
        assert!(reason.expected.contains("sw1/Eth1/1"), "{reason}");
        // The same without a declared port, and where the owner enforces the row.
        world.binding().port = None;
        assert_eq!(admitted(world.run()).reported[0].code, "port.option82");
        enforced(&mut world);
        refused(world.run(), "port.option82");
        // Of a cable that the machine did not lease by, nothing follows.
        world.relay.as_mut().unwrap().mac = "02:00:00:00:00:77".parse().unwrap();
        let admission = admitted(world.run());
        assert_eq!(admission.facts.port_witness, None);
    }

    #[test]
    fn option_82_that_agrees_stands_in_the_receipt() {
        let mut world = World::new();
        enforced(&mut world);
        world.node.lldp = vec![report("sw1", "Eth1/1", 1000)];
        for (circuit, said) in [
            ("sw1:Ethernet1/1:Vlan20", "names the same port"),
            ("Vlan20", "names the same switch"),
        ] {
            leased_behind(&mut world, circuit);
            let record = admitted(world.run()).record("measured", "c");
            let port = record.port.unwrap();
            let declared = "declared as sw1/Ethernet1/1 (port: interface type abbreviated)";
            let begin = format!("sw1/Eth1/1; {declared}; option 82");
            assert!(port.starts_with(&begin), "{port}");
            assert!(port.contains(said), "{port}");
        }
    }

    #[test]
    fn attack_27_a_host_that_names_itself_like_the_switch_is_no_switch() {
        let mut world = World::new();
        enforced(&mut world);
        let mut host = report("sw1", "Eth1/1", 1000);
        let mut frame = Frame::parse(&host.frame.0).unwrap();
        frame.lldpdu.capabilities = Some(netstack::lldp::tlv::Capabilities {
            supported: 0x9c,
            enabled: 0x80,
        });
        host.frame = frame.encode().into();
        world.node.lldp = vec![host];
        refused(world.run(), "port.not_switch");
    }

    #[test]
    fn row_13_is_only_reported_by_default() {
        let mut world = World::new();
        world.binding().port = Some("sw1/Ethernet1/1".into());
        let admission = admitted(world.run());
        assert_eq!(admission.reported[0].code, "port.unseen");
    }
}

#[test]
fn rejects_row_14_counters_that_fall() {
    let strict = |w: &mut World| {
        let text = "version = 1\npreset = \"standard\"\n[checks]\nfreshness = \"enforce\"\n";
        w.policy = Policy::parse(text).unwrap();
    };
    for (reset, restart, code) in [
        (6, 9, Some("freshness.cleared")),
        (7, 1, Some("freshness.restart")),
        (7, 2, None),
        (8, 0, None),
    ] {
        let mut world = World::new();
        strict(&mut world);
        world.node.clock.reset_count = reset;
        world.node.clock.restart_count = restart;
        match code {
            Some(code) => drop(refused(world.run(), code)),
            None => drop(admitted(world.run())),
        }
    }
}

/// Two TPMs of one state: the counters are the same, what each attempt left in PCR 15 is not.
#[test]
fn rejects_row_14_a_boot_that_lost_the_mark_of_its_last_attempt() {
    let enforced = "version = 1\npreset = \"standard\"\n[checks]\nfreshness = \"enforce\"\n";
    let mut world = World::new();
    world.policy = Policy::parse(enforced).unwrap();
    let first = admitted(world.run())
        .facts
        .boot_mark
        .clone()
        .expect("proven");
    let mark = world.node.mark.get();
    assert_eq!(first, hex::encode(HashAlg::Sha256.digest(&[&mark])));
    world.binding().boot_mark = Some(first.clone());
    // Neither who is refused nor who reads the record learns what to extend.
    let refusal = refused(world.run(), "freshness.clone");
    let told = format!("{:?} {:?}", refusal.reasons, refusal.told());
    assert!(
        !told.contains(&hex::encode(mark)) && !told.contains(&first),
        "{told}"
    );
    // The original goes on in the same boot.
    world.node.pcr15.push(mark);
    let second = admitted(world.run())
        .facts
        .boot_mark
        .clone()
        .expect("proven");
    assert_ne!(first, second);
    // A mark in the list alone is no mark in the register.
    world.node.pcr15.clear();
    let listed = |evidence: &mut Evidence, _: &WireBinding| {
        evidence.pcr15_extends.insert(0, mark.to_vec().into());
    };
    refused(world.run_with(|_| {}, listed), "eventlog.pcr15");
    // A log that only reports does not excuse the mark either.
    let policy = Policy::preset(Preset::Observe);
    assert_eq!(policy.mode(Check::EventLog, None), Mode::Report);
    world.policy =
        Policy::parse("version = 1\npreset = \"observe\"\n[checks]\nfreshness = \"enforce\"\n")
            .unwrap();
    refused(world.run_with(|_| {}, listed), "freshness.clone");
    world.policy = Policy::parse(enforced).unwrap();
    // Another boot begins anew.
    world.node.clock.reset_count += 1;
    admitted(world.run());
}

#[test]
fn clock_and_safe_are_not_demanded() {
    let mut world = World::new();
    world.node.clock.clock = 0;
    world.node.clock.safe = false;
    admitted(world.run());
}

#[test]
fn the_challenge_asks_for_every_ek_that_counts() {
    let mut world = World::new();
    world.node.eks.push(NodeEk::p384(&mut OsRng));
    let body = serde_json::to_vec(&world.node.hello()).unwrap();
    let verified = appraise_hello(&body, &world.hello_context()).unwrap();
    let issued = make_challenge(&verified, SESSION, EXPORTER, &mut OsRng).unwrap();
    let challenge: Challenge = decode_challenge(&issued.body).unwrap();
    // The second EK is bound to nothing and has no certificate: it is not asked for.
    let asked: Vec<u8> = challenge.credentials.iter().map(|c| c.ek).collect();
    assert_eq!(asked, [0]);
    assert_eq!(challenge.pcr_selection, QUOTED_PCRS);
    assert_eq!(challenge.session.0, SESSION);
    let admission = admitted(world.run());
    assert_eq!(admission.facts.ek_names, [name_of(&world.node.eks[0])]);
}

#[test]
fn template_names_are_told_in_reasons() {
    let refusal = rejects("ek.template", |w| w.node.eks[0].public.attributes |= 1);
    assert!(
        refusal.reasons[0]
            .expected
            .contains(Template::EkP256L.name())
    );
}

#[test]
fn an_admission_issues_for_the_certified_devid_and_its_machine() {
    use gateway_core::identity::UnixMillis;
    let world = World::new();
    let admission = admitted(world.run());
    let now = UnixMillis(1_796_000_000_000);
    let ldevid = gateway_core::issuer::ldevid(&admission, now, [7; 20]).unwrap();
    assert_eq!(
        Some(ldevid.spki_der()),
        world.node.devid.spki_der().as_deref()
    );
    assert_eq!(ldevid.profile().common_name, "m-1");
    assert!(ldevid.profile().not_after.0 - now.0 <= 24 * 3_600_000);
}
