//! Whole appraisals over logs of real firmware, over damaged input, and their cost.

#![allow(clippy::disallowed_methods, reason = "the cost of a log is measured")]
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::time::Instant;

use boot::catalog::{Artefact, Kind, Role};
use gateway_core::appraisal::eventlog::Log;
use gateway_core::appraisal::variables::SHIM_LOCK;
use gateway_core::appraisal::{
    Appraisal, Binding, CatalogEntry, DevIdRules, EkDirectory, EkRoots, EvidenceContext,
    HelloContext, HelloFacts, Issued, TimeTrust, Verified, appraise_evidence, appraise_hello,
    make_challenge,
};
use gateway_core::identity::{EkName, MachineId};
use gateway_core::policy::{Policy, Preset};
use proptest::prelude::*;
use rand_core::OsRng;
use serde_json::Value;
use support::log::{self, Entry, LogBuilder};
use support::{Node, Session};

struct Registry(BTreeMap<EkName, Binding>);

impl EkDirectory for Registry {
    fn owner(&self, ek: &EkName) -> Option<&Binding> {
        self.0.get(ek)
    }
}

fn bound(node: &Node) -> Registry {
    let name = EkName(node.eks[0].public.name().to_hex());
    let binding = Binding {
        machine: MachineId("m-1".into()),
        may_attest: Ok(()),
        serial: Some("LAB-0001".into()),
        disk_serial: Some("DISK-1".into()),
        port: None,
        class: "standard".into(),
        ek_names: vec![name.clone()],
        counters: None,
        boot_mark: None,
    };
    Registry(BTreeMap::from([(name, binding)]))
}

/// A log as read from a file; the software TPM is extended with what it says.
fn recorded(bytes: &[u8]) -> LogBuilder {
    let log = Log::parse(bytes).unwrap();
    let bank = attest_wire::tpm::HashAlg::Sha256;
    LogBuilder {
        bytes: bytes.to_vec(),
        extends: log
            .events
            .iter()
            .filter(|event| event.extends())
            .filter_map(|event| Some((event.pcr, event.digest(bank)?.try_into().ok()?)))
            .collect(),
    }
}

/// One exchange up to the evidence body.
struct Prepared {
    hello_body: Vec<u8>,
    issued: Issued,
    evidence: Vec<u8>,
    hello: Verified<HelloFacts>,
}

fn prepare(node: &Node, registry: &Registry, policy: &Policy) -> Prepared {
    let hello_body = serde_json::to_vec(&node.hello()).unwrap();
    let hello = appraise_hello(&hello_body, &hello_context(registry, policy)).unwrap();
    let issued = make_challenge(&hello, [1; 16], [2; 32], &mut OsRng).unwrap();
    let evidence = node.evidence(&Session {
        hello_body: &hello_body,
        challenge_body: &issued.body,
        exporter: [2; 32],
    });
    Prepared {
        evidence: serde_json::to_vec(&evidence).unwrap(),
        hello_body,
        issued,
        hello,
    }
}

fn hello_context<'a>(registry: &'a Registry, policy: &'a Policy) -> HelloContext<'a> {
    static ROOTS: std::sync::LazyLock<EkRoots> = std::sync::LazyLock::new(EkRoots::default);
    HelloContext {
        policy,
        bindings: registry,
        ek_roots: &ROOTS,
        time: TimeTrust::None,
        devid: DevIdRules::default(),
    }
}

fn appraise(node: &Node, catalog: &[CatalogEntry]) -> Appraisal {
    let policy = Policy::preset(Preset::Standard);
    let registry = bound(node);
    let prepared = prepare(node, &registry, &policy);
    let context = EvidenceContext {
        policy: &policy,
        bindings: &registry,
        catalog,
        time: TimeTrust::None,
        relay: None,
    };
    appraise_evidence(
        prepared.hello,
        prepared.issued,
        &prepared.evidence,
        &context,
    )
}

fn codes(appraisal: &Appraisal) -> Vec<String> {
    match appraisal {
        Appraisal::Refused(refusal) => refusal.reasons.iter().map(|r| r.code.to_string()).collect(),
        Appraisal::Admitted(_) => vec![],
        Appraisal::Possession(_) => panic!("the machine is bound"),
    }
}

fn artefact(kind: Kind, version: u64, images: &Value) -> CatalogEntry {
    let text = |key: &str| images[key].as_str().map(str::to_owned);
    CatalogEntry {
        artefact: Artefact {
            name: if kind == Kind::Uki {
                "attester"
            } else {
                "ipxe"
            }
            .into(),
            kind,
            role: Role::Provision,
            arch: "x86_64".into(),
            version,
            file: "image.efi".into(),
            sha256: hex::encode([version as u8; 32]),
            size_bytes: 1,
            pe_sha256: text("pe_sha256").unwrap(),
            linux_pe_sha256: text("linux_pe_sha256"),
            pcr11: text("pcr11"),
            cmdline: text("cmdline"),
        },
        floor: 1,
        withdrawn: false,
    }
}

macro_rules! recordings {
    ($($name:literal),*) => {
        [$(($name,
            include_bytes!(concat!("../../../tests/vectors/eventlog/", $name, ".bin")).as_slice(),
            include_str!(concat!("../../../tests/vectors/eventlog/", $name, ".json")))),*]
    };
}

const RECORDINGS: [(&str, &[u8], &str); 4] = recordings!(
    "ovmf-sid-ipxe-uki",
    "ovmf-sid-ipxe-uki-stub262",
    "ovmf-sid-http-uki",
    "ovmf-sid-refused-then-http"
);

#[test]
fn boots_of_real_firmware_are_admitted_and_one_change_refuses_them() {
    for (name, bytes, facts) in RECORDINGS {
        let facts: Value = serde_json::from_str(facts).unwrap();
        let node = Node::new(recorded(bytes));
        let pcrs = node.pcrs(&[]);
        for pcr in (0..16).filter(|pcr| *pcr != 10) {
            let want = facts["pcrs"][pcr.to_string()].as_str().unwrap();
            assert_eq!(hex::encode(pcrs[&pcr]), want, "{name} PCR {pcr}");
        }
        let mut catalog = vec![
            artefact(Kind::Ipxe, 1, &facts["ipxe"]),
            artefact(Kind::Uki, 5, &facts["uki"]),
        ];
        let passed = appraise(&node, &catalog);
        let Appraisal::Admitted(admission) = &passed else {
            panic!("{name}: {:?}", codes(&passed));
        };
        assert_eq!(admission.facts.image_sha256, Some(hex::encode([5; 32])));
        catalog[1].floor = 6;
        assert_eq!(codes(&appraise(&node, &catalog)), ["boot.floor"], "{name}");
        catalog[1].floor = 1;
        catalog[1].artefact.pcr11 = Some(hex::encode([9; 32]));
        assert_eq!(codes(&appraise(&node, &catalog)), ["boot.pcr11"], "{name}");
        catalog[1].artefact.pe_sha256 = hex::encode([9; 32]);
        assert_eq!(
            codes(&appraise(&node, &catalog)),
            ["boot.image", "boot.uki"],
            "{name}"
        );
    }
}

#[test]
fn logs_of_the_field_are_understood_as_far_as_they_are_whole() {
    let Some(root) = std::env::var_os("VESTIBULE_CORPUS") else {
        println!("SKIP VESTIBULE_CORPUS is not set");
        return;
    };
    // File, and whether its boot had Secure Boot on.
    let table = [
        ("go-eventlog__arch-linux-workstation.bin", false),
        (
            "go-attestation__ubuntu_2104_shielded_vm_no_secure_boot_eventlog",
            false,
        ),
        ("go-eventlog__ubuntu-2104-no-dbx.bin", false),
        ("go-attestation__sb_cert_eventlog", true),
        ("safeboot__t490_eventlog.bin", true),
        ("tcglog-parser__binary_bios_measurements", true),
        ("HIRS__laptop_default_binary_bios_measurements", true),
    ];
    for (file, secure_boot) in table {
        let bytes = std::fs::read(std::path::Path::new(&root).join("eventlog").join(file)).unwrap();
        let found = codes(&appraise(&Node::new(recorded(&bytes)), &[]));
        println!("{file}: {found:?}");
        for code in ["eventlog.replay", "boot.variable"] {
            assert!(!found.contains(&code.to_owned()), "{file}: {found:?}");
        }
        assert!(found.contains(&"boot.uki".to_owned()), "{file}");
        assert_eq!(
            !found.contains(&"boot.secure_boot".to_owned()),
            secure_boot,
            "{file}: {found:?}"
        );
    }
}

fn honest() -> LogBuilder {
    LogBuilder::write(&log::honest(&[[0xa1; 32], [0xb2; 32]], &[[3; 32]]))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_log_parses_or_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut prefixed = log::header(&[(4, 20), (0x0b, 32), (0x12, 32)]);
        prefixed.extend_from_slice(&bytes);
        for bytes in [&bytes, &prefixed] {
            if let Ok(log) = Log::parse(bytes) {
                for alg in attest_wire::tpm::HashAlg::ALL {
                    let _ = log.replay(alg);
                }
            }
        }
    }

    /// Many lies at once.
    #[test]
    fn many_lies_about_a_log_never_turn_a_refusal_into_an_admission(
        which in any::<prop::sample::Index>(),
        lies in prop::collection::vec(
            (any::<prop::sample::Index>(), prop::sample::select(LYING_TYPES.to_vec()), 0u8..7, 0usize..4),
            1..12,
        ),
    ) {
        let bad = bad_boots();
        let (what, policy, mut entries) = bad[which.index(bad.len())].clone();
        for (at, kind, how, name) in lies {
            let at = at.index(entries.len());
            lie(&mut entries, at, kind, how, name);
        }
        let mut node = Node::new(honest());
        prop_assert!(!admits(&mut node, &policy, &entries), "{}", what);
    }

    #[test]
    fn one_changed_byte_of_evidence_never_changes_what_is_admitted(
        at in any::<prop::sample::Index>(),
        to in any::<u8>(),
    ) {
        let node = Node::new(honest());
        let (policy, registry) = (Policy::preset(Preset::Standard), bound(&node));
        let mut prepared = prepare(&node, &registry, &policy);
        let at = at.index(prepared.evidence.len());
        let before = std::mem::replace(&mut prepared.evidence[at], to);
        let catalog = catalog();
        let context = EvidenceContext { policy: &policy, bindings: &registry, catalog: &catalog, time: TimeTrust::None, relay: None };
        let evidence = prepared.evidence;
        let appraisal = appraise_evidence(prepared.hello, prepared.issued, &evidence, &context);
        if before == to {
            prop_assert!(matches!(appraisal, Appraisal::Admitted(_)), "{:?}", codes(&appraisal));
        } else if let Appraisal::Admitted(_) = appraisal {
            // Only what no digest covers may differ: event types and unhashed event data.
            let evidence = attest_wire::v1::decode_evidence(&evidence).unwrap();
            prop_assert_eq!(recorded(&evidence.event_log.0).extends, node.log.extends);
        }
        let mut hello = prepared.hello_body;
        let at = at % hello.len();
        hello[at] = to;
        let _ = appraise_hello(&hello, &hello_context(&registry, &policy));
    }
}

/// fwupd/fwupd#11004 (a second EV_S_CRTM_VERSION event), fwupd/fwupd#2181 (an extend that the firmware
/// did not log): which PCR, what was quoted and what the log gives.
#[test]
fn fwupd_11004_and_2181_a_mismatch_names_the_pcr_and_both_values() {
    let entries = log::honest(&[[0xa1; 32], [0xb2; 32]], &[[3; 32]]);
    let again = Entry::measured(0, log::EV_S_CRTM_VERSION, &log::utf16("again\0"));
    let mut twice = entries.clone();
    twice.insert(1, again);
    let mut node = Node::new(LogBuilder::write(&twice));
    let catalog = catalog();
    assert_eq!(codes(&appraise(&node, &catalog)), Vec::<String>::new());
    for (measured, logged) in [(&twice, &entries), (&entries, &twice)] {
        node.log = LogBuilder {
            extends: LogBuilder::write(measured).extends,
            bytes: LogBuilder::write(logged).bytes,
        };
        let Appraisal::Refused(refusal) = appraise(&node, &catalog) else {
            panic!("admitted");
        };
        let [reason] = refusal.reasons.as_slice() else {
            panic!("{:?}", refusal.reasons);
        };
        let quoted = hex::encode(node.pcrs(&[])[&0]);
        let bytes = LogBuilder::write(logged).bytes;
        let replay = Log::parse(&bytes).unwrap();
        let replay = replay.replay(attest_wire::tpm::HashAlg::Sha256).unwrap();
        assert_eq!(reason.code, "eventlog.replay");
        assert_eq!(reason.expected, format!("PCR 0 {quoted} (quoted)"));
        assert_eq!(
            reason.found,
            format!("{} (replayed)", hex::encode(&replay[&0]))
        );
    }
}

/// keylime/keylime#1411: EV_IPL "MBR" in PCR 4 is read and replayed like any event. That it ran is a
/// fact of the boot: it must be catalogued, whatever it is called.
#[test]
fn keylime_1411_a_boot_record_in_pcr_4_is_named_and_not_malformed() {
    let mut entries = log::honest(&[[0xa1; 32], [0xb2; 32]], &[[3; 32]]);
    entries.push(Entry::of(4, log::EV_IPL, [0x4d; 32], b"MBR"));
    let node = Node::new(LogBuilder::write(&entries));
    let Appraisal::Refused(refusal) = appraise(&node, &catalog()) else {
        panic!("admitted");
    };
    let [reason] = refusal.reasons.as_slice() else {
        panic!("{:?}", refusal.reasons);
    };
    assert_eq!(reason.code, "boot.image");
    assert!(
        reason.found.contains("in PCR 4, EV_IPL 4d4d"),
        "{}",
        reason.found
    );
    let mut known = catalog().to_vec();
    known.push(artefact(
        Kind::Ipxe,
        1,
        &serde_json::json!({ "pe_sha256": hex::encode([0x4d; 32]) }),
    ));
    assert_eq!(codes(&appraise(&node, &known)), Vec::<String>::new());
}

/// Types that a liar writes. `EV_NO_ACTION` is not among them: it takes the event out of the replay,
/// which the quote refutes.
const LYING_TYPES: [u32; 14] = [
    0,
    1,
    2,
    log::EV_SEPARATOR,
    5,
    6,
    log::EV_S_CRTM_VERSION,
    log::EV_IPL,
    log::EV_VARIABLE,
    log::EV_VARIABLE_BOOT,
    log::EV_APPLICATION,
    log::EV_DRIVER,
    log::EV_ACTION,
    log::EV_AUTHORITY,
];

/// A boot that must be refused, and the policy that refuses it.
fn bad_boots() -> Vec<(&'static str, Policy, Vec<Entry>)> {
    let honest = || log::honest(&[[0xa1; 32], [0xb2; 32]], &[[3; 32]]);
    let standard = || Policy::preset(Preset::Standard);
    let policy = |text: &str| {
        let text = format!("version = 1\npreset = \"standard\"\n[boot]\n{text}\n");
        Policy::parse(&text).unwrap()
    };
    let with = |at: usize, entry: Entry| {
        let mut entries = honest();
        entries.insert(at, entry);
        entries
    };
    let off = log::variable(log::GLOBAL, "SecureBoot", &[0]);
    let on = log::variable(log::GLOBAL, "SecureBoot", &[1]);
    let mut secure_boot_off = honest();
    secure_boot_off[1] = Entry::measured(7, log::EV_VARIABLE, &off);
    let mut on_late = honest();
    on_late.remove(1);
    on_late.push(Entry::measured(7, log::EV_VARIABLE, &on));
    let foreign = [&[7; 16][..], &[0x30, 7], b"foreign"].concat();
    let foreign = log::variable(log::SECURITY_DATABASE, "db", &foreign);
    let site = hex::encode(log::sha256(b"site certificate"));
    let authorities = policy(&format!("authority_sha256 = [\"{site}\"]"));
    vec![
        ("secure boot off", standard(), secure_boot_off),
        ("secure boot on too late", standard(), on_late),
        (
            "both values",
            standard(),
            with(1, Entry::measured(7, log::EV_VARIABLE, &off)),
        ),
        (
            "debug mode",
            standard(),
            with(1, Entry::measured(7, log::EV_ACTION, b"UEFI Debug Mode")),
        ),
        (
            "no DMA protection",
            standard(),
            with(
                1,
                Entry::measured(7, log::EV_ACTION, b"DMA Protection Disabled"),
            ),
        ),
        (
            "words that are not known",
            standard(),
            with(1, Entry::measured(7, log::EV_ACTION, b"Firmware Test Mode")),
        ),
        (
            "a digest of nothing known",
            standard(),
            with(1, Entry::of(7, log::EV_ACTION, [0x77; 32], b"")),
        ),
        (
            "a foreign image",
            standard(),
            with(20, Entry::of(4, log::EV_APPLICATION, [9; 32], &[0; 32])),
        ),
        (
            "a separator of an error",
            standard(),
            with(
                1,
                Entry::measured(3, log::EV_SEPARATOR, &1u32.to_le_bytes()),
            ),
        ),
        (
            "a second separator",
            standard(),
            with(1, Entry::measured(7, log::EV_SEPARATOR, &[0; 4])),
        ),
        (
            "a foreign authority",
            authorities.clone(),
            with(17, Entry::measured(7, log::EV_AUTHORITY, &foreign)),
        ),
        (
            "a foreign authority before the separator",
            authorities,
            with(1, Entry::measured(7, log::EV_AUTHORITY, &foreign)),
        ),
        (
            "a card's driver",
            policy("option_roms = \"listed\""),
            honest(),
        ),
        (
            "a command line",
            standard(),
            with(
                20,
                Entry::measured(12, log::EV_IPL, &log::utf16("init=/bin/sh\0")),
            ),
        ),
        (
            "a command line that is not the listed one",
            policy("command_lines = [\"quiet\"]"),
            with(
                20,
                Entry::measured(12, log::EV_IPL, &log::utf16("init=/bin/sh\0")),
            ),
        ),
        ("an empty dbx", policy("dbx_min_entries = 1"), honest()),
        (
            "a dbx without an entry",
            policy(&format!("dbx_sha256 = [\"{}\"]", hex::encode([7; 32]))),
            honest(),
        ),
        (
            "a driver that nobody vouched for",
            // The certificate that a liar shows, if anybody believed what no digest covers.
            policy(&format!(
                "option_roms = \"signed\"\nauthority_sha256 = [\"{site}\"]\ndriver_authority_sha256 = [\"{}\"]",
                hex::encode(log::sha256(&[0x30, 2, 5, 0]))
            )),
            honest(),
        ),
        (
            "an image of another class",
            policy("images = [\"ipxe\"]"),
            honest(),
        ),
        (
            "an image below the policy's floor",
            policy("[[boot.floor]]\nimage = \"attester\"\nversion = 2"),
            honest(),
        ),
    ]
}

/// One lie about one event: its type, its data, or data made to fit another reading of its digest.
fn lie(entries: &mut [Entry], at: usize, kind: u32, how: u8, name: usize) {
    let entry = &mut entries[at];
    let before = entry.data.clone();
    entry.kind = kind;
    let names = [
        (log::GLOBAL, "SecureBoot"),
        (log::SECURITY_DATABASE, "db"),
        (SHIM_LOCK, "SbatLevel"),
        (SHIM_LOCK, "Shim"),
    ];
    let (guid, name) = names[name % names.len()];
    entry.data = match how % 7 {
        0 => before,
        // What is hashed, as the content of a variable.
        1 => log::variable(guid, name, &before),
        2 => [&before[..], &[0]].concat(),
        3 => log::variable(guid, name, &[1]),
        4 => log::variable(guid, name, &[&[7; 16][..], &[0x30, 2, 5, 0]].concat()),
        5 => Vec::new(),
        _ => vec![0; 4],
    };
}

/// Whether a machine with that log is admitted. The node is made once: its keys take long.
fn admits(node: &mut Node, policy: &Policy, entries: &[Entry]) -> bool {
    node.log = LogBuilder::write(entries);
    let registry = bound(node);
    let catalog = catalog();
    let prepared = prepare(node, &registry, policy);
    let context = EvidenceContext {
        policy,
        bindings: &registry,
        catalog: &catalog,
        time: TimeTrust::None,
        relay: None,
    };
    let evidence = prepared.evidence;
    let judged = appraise_evidence(prepared.hello, prepared.issued, &evidence, &context);
    matches!(judged, Appraisal::Admitted(_))
}

/// The caveat of every event log: no digest covers an event's type, and one covers its data only if
/// somebody looks. What was measured is left as it is; types and data lie in every way that a
/// reader could fall for.
#[test]
fn lies_about_types_and_data_never_turn_a_refusal_into_an_admission() {
    let mut node = Node::new(honest());
    let mut tried = 0;
    for (what, policy, entries) in bad_boots() {
        assert!(!admits(&mut node, &policy, &entries), "{what}");
        // Each lie about each event, at the one that matters most in every way.
        for at in 0..entries.len() {
            for (round, &kind) in LYING_TYPES.iter().enumerate() {
                for how in 0..7 {
                    // The whole product would take minutes; every pair of two is there.
                    if (at + round + usize::from(how)) % 5 != 0 {
                        continue;
                    }
                    let mut lying = entries.clone();
                    lie(&mut lying, at, kind, how, at + round);
                    tried += 1;
                    assert!(
                        !admits(&mut node, &policy, &lying),
                        "{what}: admitted with event {at} as {kind:#x}, data {how}"
                    );
                }
            }
        }
    }
    println!("{tried} lies, none believed");
    assert!(tried > 4_000);
}

fn catalog() -> [CatalogEntry; 2] {
    let image = |digest: [u8; 32]| serde_json::json!({ "pe_sha256": hex::encode(digest) });
    [
        artefact(Kind::Ipxe, 1, &image([0xa1; 32])),
        artefact(Kind::Uki, 1, &image([0xb2; 32])),
    ]
}

/// A log of at least `bytes` bytes: an honest one with long events in PCR 1.
fn long_log(bytes: usize) -> LogBuilder {
    let mut entries = log::honest(&[[0xa1; 32], [0xb2; 32]], &[[3; 32]]);
    let mut builder = LogBuilder::write(&entries);
    while builder.bytes.len() < bytes {
        let index = entries.len();
        entries.insert(
            1,
            Entry::measured(1, log::EV_VARIABLE_BOOT, &[index as u8; 300]),
        );
        builder = LogBuilder::write(&entries);
    }
    builder
}

/// Prints the CPU time of one appraisal (rows 7 to 14) with a 41 KB log; `cargo xtask bench
/// appraisal` runs it in release. The bound here is only against accidents.
#[test]
fn appraisal_of_a_41_kb_log_is_cheap() {
    let node = Node::new(long_log(41 * 1024));
    let (policy, registry) = (Policy::preset(Preset::Standard), bound(&node));
    let catalog = catalog();
    let context = EvidenceContext {
        policy: &policy,
        bindings: &registry,
        catalog: &catalog,
        time: TimeTrust::None,
        relay: None,
    };
    let mut prepared: Vec<Prepared> = (0..50)
        .map(|_| prepare(&node, &registry, &policy))
        .collect();
    let hello_started = Instant::now();
    for prepared in &prepared {
        assert!(appraise_hello(&prepared.hello_body, &hello_context(&registry, &policy)).is_ok());
    }
    let hello_us = hello_started.elapsed().as_micros() / prepared.len() as u128;
    let mut times: Vec<u128> = prepared
        .drain(..)
        .map(|p| {
            let started = Instant::now();
            let appraisal = appraise_evidence(p.hello, p.issued, &p.evidence, &context);
            let us = started.elapsed().as_micros();
            assert!(
                matches!(appraisal, Appraisal::Admitted(_)),
                "{:?}",
                codes(&appraisal)
            );
            us
        })
        .collect();
    times.sort_unstable();
    let (p50, p99) = (times[times.len() / 2], times[times.len() - 1]);
    println!("hello {hello_us} us; evidence with 41 KB log p50 {p50} us, max {p99} us");
    assert!(p50 < 50_000, "{p50} us");
}
