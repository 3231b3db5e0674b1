//! A policy at a desk: what is judged of a recorded boot is what the daemon judges, and a draft passes its own
//! boot and refuses others.

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

mod support;

use std::collections::BTreeMap;

use boot::catalog::{Artefact, Kind, Role};
use gateway_core::appraisal::draft::{Draft, DraftContext, draft};
use gateway_core::appraisal::eventlog::Log;
use gateway_core::appraisal::events::BANK;
use gateway_core::appraisal::recorded::{
    RecordedBoot, RecordedContext, RecordedVerdict, appraise_recorded,
};
use gateway_core::appraisal::{Appraisal, CatalogEntry, Outcome, TimeTrust};
use gateway_core::policy::{Policy, Preset};
use gateway_core::reason::Reason;
use serde_json::Value;
use support::log::{self, Entry, LogBuilder};
use support::world::*;

fn judge(log: &[u8], policy: &Policy, catalog: &[CatalogEntry]) -> RecordedVerdict {
    let boot = RecordedBoot { log, pcrs: None };
    let context = RecordedContext {
        policy,
        class: None,
        catalog,
        time: TimeTrust::None,
    };
    appraise_recorded(&boot, &context)
}

fn codes(reasons: &[Reason]) -> Vec<&str> {
    reasons.iter().map(|r| r.code.as_ref()).collect()
}

fn drafted(log: &[u8], catalog: &[CatalogEntry]) -> (Draft, Policy) {
    let boot = RecordedBoot { log, pcrs: None };
    let context = DraftContext {
        catalog,
        dbx_entries: true,
        time: TimeTrust::None,
    };
    let made = draft(&boot, &context).unwrap();
    let policy = Policy::parse(&made.text);
    let policy = policy.unwrap_or_else(|mistakes| panic!("{mistakes:?}\n{}", made.text));
    (made, policy)
}

fn catalog() -> Vec<CatalogEntry> {
    vec![
        entry(Kind::Ipxe, "ipxe", 1, IPXE),
        entry(Kind::Uki, "attester", 3, UKI),
    ]
}

/// A boot with everything a draft can write down.
fn rich_boot() -> Vec<Entry> {
    let mut entries = honest_log();
    let mut dbx = vec![
        0x26, 0x16, 0xc4, 0xc1, 0x4c, 0x50, 0x92, 0x40, 0xac, 0xa9, 0x41, 0xf9, 0x36, 0x93, 0x43,
        0x28,
    ];
    dbx.extend((28 + 96_u32).to_le_bytes());
    dbx.extend([0, 0, 0, 0, 48, 0, 0, 0]);
    for digest in [[5; 32], [6; 32]] {
        dbx.extend([[0; 16].as_slice(), &digest].concat());
    }
    let dbx = log::variable(log::SECURITY_DATABASE, "dbx", &dbx);
    entries[5] = Entry::measured(7, log::EV_VARIABLE, &dbx);
    for line in ["console=\"tty\\S0\"", "quiet \u{202e}"] {
        let wide = log::utf16(&format!("{line}\0"));
        entries.push(Entry::measured(12, log::EV_IPL, &wide));
    }
    entries.push(Entry::of(12, log::EV_IPL, [0x12; 32], b"\x01\x02"));
    entries
}

/// Row 10 and 11 of the daemon and of the desk, over the same logs.
#[test]
fn the_desk_judges_what_the_daemon_judges() {
    let mut world = World::new();
    let changes: [fn(&mut Vec<Entry>); 6] = [
        |_| {},
        |log| log.push(Entry::of(4, log::EV_APPLICATION, [9; 32], &[0; 32])),
        |log| log.push(Entry::of(11, log::EV_IPL, [1; 32], b"phase")),
        |log| log.insert(1, Entry::measured(7, log::EV_ACTION, b"UEFI Debug Mode")),
        |log| drop(log.remove(1)),
        |log| log.push(Entry::of(13, log::EV_IPL, [1; 32], b"sysext")),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut entries = honest_log();
        change(&mut entries);
        world.boots(&entries);
        let daemon = match world.run() {
            Appraisal::Refused(refusal) => refusal.reasons,
            Appraisal::Admitted(_) => Vec::new(),
            Appraisal::Possession(_) => panic!("the machine is bound"),
        };
        let pcrs = world.node.pcrs(&[]);
        let pcrs: BTreeMap<u8, [u8; 32]> = pcrs.into_iter().collect();
        for pcrs in [None, Some(&pcrs)] {
            let boot = RecordedBoot {
                log: &world.node.log.bytes,
                pcrs,
            };
            let context = RecordedContext {
                policy: &world.policy,
                class: Some("standard"),
                catalog: &world.catalog,
                time: world.time,
            };
            let desk = appraise_recorded(&boot, &context);
            assert_eq!(desk.refused, daemon, "change {number}");
            assert_eq!(desk.checks.len(), 6, "rows 9 to 14");
        }
    }
}

#[test]
fn rejects_values_that_the_log_does_not_lead_to_and_values_that_are_missing() {
    let log = LogBuilder::write(&honest_log());
    let policy = Policy::preset(Preset::Standard);
    let catalog = catalog();
    let mut pcrs: BTreeMap<u8, [u8; 32]> = Log::parse(&log.bytes)
        .unwrap()
        .replay(BANK)
        .unwrap()
        .into_iter()
        .map(|(pcr, value)| (pcr, value.try_into().unwrap()))
        .collect();
    for pcr in 0..24 {
        pcrs.entry(pcr).or_default();
    }
    let judge = |pcrs: &BTreeMap<u8, [u8; 32]>| {
        let boot = RecordedBoot {
            log: &log.bytes,
            pcrs: Some(pcrs),
        };
        let context = RecordedContext {
            policy: &policy,
            class: None,
            catalog: &catalog,
            time: TimeTrust::None,
        };
        appraise_recorded(&boot, &context)
    };
    assert_eq!(codes(&judge(&pcrs).refused), Vec::<&str>::new());
    // IMA went on, and the session's register is nobody's business here.
    pcrs.insert(10, [1; 32]);
    pcrs.insert(15, [1; 32]);
    assert_eq!(codes(&judge(&pcrs).refused), Vec::<&str>::new());
    pcrs.insert(4, [1; 32]);
    let verdict = judge(&pcrs);
    assert_eq!(codes(&verdict.refused), ["eventlog.replay"]);
    assert!(verdict.refused[0].expected.contains("(read)"));
    let boot = verdict.checks.iter().find(|check| check.row == 11).unwrap();
    assert!(matches!(boot.outcome, Outcome::NotJudged { .. }));
    pcrs.remove(&4);
    let verdict = judge(&pcrs);
    assert_eq!(codes(&verdict.refused), ["quote.selection"]);
    assert!(verdict.refused[0].found.contains("[4]"));
}

#[test]
fn rejects_logs_that_are_none() {
    let policy = Policy::preset(Preset::Standard);
    for (log, code) in [
        (&b""[..], "eventlog.empty"),
        (b"no log", "eventlog.malformed"),
        (&log::header(&[(0x000c, 48)]), "eventlog.bank"),
    ] {
        assert_eq!(codes(&judge(log, &policy, &[]).refused), [code]);
        let boot = RecordedBoot { log, pcrs: None };
        let context = DraftContext {
            catalog: &[],
            dbx_entries: false,
            time: TimeTrust::None,
        };
        let refused = draft(&boot, &context).unwrap_err();
        assert_eq!(codes(&refused), [code]);
    }
}

#[test]
fn a_draft_passes_its_own_boot_and_no_other() {
    let catalog = catalog();
    let own = LogBuilder::write(&rich_boot());
    let (made, policy) = drafted(&own.bytes, &catalog);
    assert_eq!(codes(&made.refused), Vec::<&str>::new(), "{}", made.text);
    assert!(
        made.text.starts_with("# DRAFT, for review."),
        "{}",
        made.text
    );
    assert_eq!(
        codes(&judge(&own.bytes, &policy, &catalog).refused),
        Vec::<&str>::new(),
        "{}",
        made.text
    );
    let text = hex::encode(log::sha256(b"site certificate"));
    assert!(made.text.contains(&text), "{}", made.text);
    assert!(
        made.text.contains("\"console=\\\"tty\\\\S0\\\"\""),
        "a command line is quoted: {}",
        made.text
    );
    assert!(
        made.text.is_ascii(),
        "what turns the order of a line is written out: {}",
        made.text
    );

    type Change = fn(&mut Vec<Entry>);
    let others: [(&str, Change); 8] = [
        ("boot.secure_boot", |log| {
            let off = log::variable(log::GLOBAL, "SecureBoot", &[0]);
            log[1] = Entry::measured(7, log::EV_VARIABLE, &off);
        }),
        ("boot.authority", |log| {
            let entry = [&[7; 16][..], &[0x30, 7], b"another"].concat();
            let data = log::variable(log::SECURITY_DATABASE, "db", &entry);
            log.push(Entry::measured(7, log::EV_AUTHORITY, &data));
        }),
        ("boot.dbx", |log| {
            let empty = log::variable(log::SECURITY_DATABASE, "dbx", b"");
            log[5] = Entry::measured(7, log::EV_VARIABLE, &empty);
        }),
        ("boot.option_rom", |log| {
            log.push(Entry::of(2, log::EV_DRIVER, [0x23; 32], &[0; 32]));
        }),
        ("boot.cmdline", |log| {
            let wide = log::utf16("init=/bin/sh\0");
            log.push(Entry::measured(12, log::EV_IPL, &wide));
        }),
        ("boot.image", |log| {
            log.push(Entry::of(4, log::EV_APPLICATION, [9; 32], &[0; 32]));
        }),
        ("boot.pcr11", |log| {
            log.push(Entry::of(11, log::EV_IPL, [1; 32], b"phase"));
        }),
        ("boot.debug", |log| {
            log.insert(1, Entry::measured(7, log::EV_ACTION, b"UEFI Debug Mode"));
        }),
    ];
    for (code, change) in others {
        let mut entries = rich_boot();
        change(&mut entries);
        let bytes = LogBuilder::write(&entries).bytes;
        let verdict = judge(&bytes, &policy, &catalog);
        assert!(
            codes(&verdict.refused).contains(&code),
            "{code}: {:?}",
            verdict.refused
        );
    }
    // An older image, and another of the catalogue.
    let mut older = catalog.clone();
    older[1].artefact.version = 2;
    assert_eq!(
        codes(&judge(&own.bytes, &policy, &older).refused),
        ["boot.floor"]
    );
    older[1].artefact.version = 3;
    older[1].artefact.name = "talos".into();
    assert_eq!(
        codes(&judge(&own.bytes, &policy, &older).refused),
        ["boot.entry"]
    );
}

#[test]
fn a_draft_of_a_bad_boot_says_so_and_does_not_pass_it() {
    let mut entries = rich_boot();
    let off = log::variable(log::GLOBAL, "SecureBoot", &[0]);
    entries[1] = Entry::measured(7, log::EV_VARIABLE, &off);
    let bytes = LogBuilder::write(&entries).bytes;
    let (made, policy) = drafted(&bytes, &catalog());
    assert_eq!(codes(&made.refused), ["boot.secure_boot"]);
    assert!(
        made.text
            .contains("no policy should let it pass:\n#   boot.secure_boot"),
        "{}",
        made.text
    );
    assert_eq!(
        codes(&judge(&bytes, &policy, &catalog()).refused),
        ["boot.secure_boot"]
    );
}

/// A register that the firmware's log does not account for is left out of the draft only where no decision
/// rests on it.
#[test]
fn a_draft_leaves_out_registers_that_others_measure_into() {
    let log = LogBuilder::write(&honest_log());
    let mut pcrs: BTreeMap<u8, [u8; 32]> = (0..24).map(|pcr| (pcr, [0; 32])).collect();
    for (pcr, value) in Log::parse(&log.bytes).unwrap().replay(BANK).unwrap() {
        pcrs.insert(pcr, value.try_into().unwrap());
    }
    pcrs.insert(9, [9; 32]);
    let catalog = catalog();
    let context = DraftContext {
        catalog: &catalog,
        dbx_entries: false,
        time: TimeTrust::None,
    };
    let of = |pcrs: &BTreeMap<u8, [u8; 32]>| {
        let boot = RecordedBoot {
            log: &log.bytes,
            pcrs: Some(pcrs),
        };
        draft(&boot, &context).unwrap()
    };
    let made = of(&pcrs);
    assert_eq!(codes(&made.refused), Vec::<&str>::new());
    let policy = Policy::parse(&made.text).unwrap();
    assert!(!policy.pcrs(None).contains(&9), "{}", made.text);
    assert!(policy.pcrs(None).contains(&14), "{}", made.text);
    pcrs.insert(7, [7; 32]);
    let made = of(&pcrs);
    assert_eq!(codes(&made.refused), ["eventlog.replay"]);
    let policy = Policy::parse(&made.text).unwrap();
    assert!(policy.pcrs(None).contains(&7), "{}", made.text);
}

macro_rules! recording {
    ($name:literal) => {
        (
            $name,
            include_bytes!(concat!("../../../tests/vectors/eventlog/", $name, ".bin")).as_slice(),
            include_str!(concat!("../../../tests/vectors/eventlog/", $name, ".json")),
        )
    };
}

fn of_record(facts: &Value, key: &str, kind: Kind, version: u64) -> CatalogEntry {
    let text = |field: &str| facts[key][field].as_str().map(str::to_owned);
    CatalogEntry::new(Artefact {
        name: key.into(),
        kind,
        role: Role::Provision,
        arch: "x86_64".into(),
        version,
        file: format!("{key}.efi"),
        sha256: hex::encode([version as u8; 32]),
        size_bytes: 1,
        pe_sha256: text("pe_sha256").unwrap(),
        linux_pe_sha256: text("linux_pe_sha256"),
        pcr11: text("pcr11"),
        cmdline: text("cmdline"),
    })
}

/// One policy for both ways: learned from a boot by PXE, it passes the same machine's boot by HTTP.
#[test]
fn a_draft_from_one_path_passes_the_other_on_real_firmware() {
    let recordings = [
        recording!("ovmf-sid-ipxe-uki"),
        recording!("ovmf-sid-http-uki"),
        recording!("ovmf-sid-refused-then-http"),
    ];
    let boots = recordings.map(|(name, bytes, facts)| {
        let facts: Value = serde_json::from_str(facts).unwrap();
        let catalog = vec![
            of_record(&facts, "ipxe", Kind::Ipxe, 1),
            of_record(&facts, "uki", Kind::Uki, 5),
        ];
        let pcrs: BTreeMap<u8, [u8; 32]> = facts["pcrs"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(pcr, value)| {
                let value = hex::decode(value.as_str().unwrap()).unwrap();
                (pcr.parse().unwrap(), value.try_into().unwrap())
            })
            .collect();
        (name, bytes, catalog, pcrs)
    });
    let (_, bytes, catalog, _) = &boots[0];
    let (made, policy) = drafted(bytes, catalog);
    assert_eq!(codes(&made.refused), Vec::<&str>::new(), "{}", made.text);
    for (name, bytes, catalog, pcrs) in &boots {
        let boot = RecordedBoot {
            log: bytes,
            pcrs: Some(pcrs),
        };
        let context = RecordedContext {
            policy: &policy,
            class: None,
            catalog,
            time: TimeTrust::None,
        };
        let verdict = appraise_recorded(&boot, &context);
        println!("{name}: {:?}", codes(&verdict.refused));
        assert_eq!(
            codes(&verdict.refused),
            Vec::<&str>::new(),
            "{name}\n{}",
            made.text
        );
    }
}

/// Every log of the field that can be read gives a draft that can be read. It passes its own boot as far as
/// a policy can: what is left is Secure Boot off, or an image that no catalogue has.
#[test]
fn logs_of_the_field_give_drafts() {
    let Some(root) = std::env::var_os("VESTIBULE_CORPUS") else {
        println!("SKIP VESTIBULE_CORPUS is not set");
        return;
    };
    let folder = std::path::Path::new(&root).join("eventlog");
    let (mut made, mut passed) = (0, 0);
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let Ok(bytes) = std::fs::read(&path) else {
            continue;
        };
        // Whatever ran in PCR 4 is taken for ours, its last image for the UKI.
        let mut catalog = whatever_ran(&bytes);
        // Not empty, so that images are judged where none ran.
        catalog.push(entry(Kind::Ipxe, "other", 1, [0xff; 32]));
        let boot = RecordedBoot {
            log: &bytes,
            pcrs: None,
        };
        let context = DraftContext {
            catalog: &catalog,
            dbx_entries: true,
            time: TimeTrust::None,
        };
        let Ok(drafted) = draft(&boot, &context) else {
            continue;
        };
        made += 1;
        let policy = Policy::parse(&drafted.text).unwrap();
        let verdict = judge(&bytes, &policy, &catalog);
        assert_eq!(verdict.refused, drafted.refused, "{}", path.display());
        let left = codes(&drafted.refused);
        for code in [
            "boot.authority",
            "boot.dbx",
            "boot.option_rom",
            "boot.cmdline",
            "boot.entry",
            "boot.role",
            "boot.floor",
            "eventlog.replay",
        ] {
            assert!(!left.contains(&code), "{}: {left:?}", path.display());
        }
        passed += usize::from(left.is_empty());
        println!("{}: {left:?}", path.display());
    }
    println!("{made} drafts, {passed} pass their own boot");
    assert!(made >= 15, "{made}");
    assert!(passed >= 1, "{passed}");
}

fn whatever_ran(bytes: &[u8]) -> Vec<CatalogEntry> {
    use gateway_core::appraisal::boot_events::{BootEvents, ImageKind};
    let Ok(log) = Log::parse(bytes) else {
        return Vec::new();
    };
    let Some(events) = BootEvents::read(&log).filter(|events| events.bank == BANK) else {
        return Vec::new();
    };
    let mut digests: Vec<[u8; 32]> = events
        .images
        .iter()
        .filter(|image| image.kind == ImageKind::Application)
        .filter_map(|image| image.digest.try_into().ok())
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    digests.retain(|digest| seen.insert(*digest));
    let last = digests.len().saturating_sub(1);
    let replay = log.replay(BANK).unwrap_or_default();
    digests
        .iter()
        .enumerate()
        .map(|(index, digest)| {
            let kind = match index == last {
                true => Kind::Uki,
                false => Kind::Ipxe,
            };
            let mut made = entry(kind, &format!("image-{index}"), 1, *digest);
            if kind == Kind::Uki {
                let value = replay.get(&11).cloned().unwrap_or(vec![0; 32]);
                made.artefact.pcr11 = Some(hex::encode(value));
            }
            made
        })
        .collect()
}
