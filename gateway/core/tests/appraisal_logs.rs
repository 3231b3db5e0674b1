//! Whole appraisals over logs of real firmware, over damaged input, and their cost.

#![allow(clippy::disallowed_methods, reason = "the cost of a log is measured")]
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::time::Instant;

use boot::catalog::{Artefact, Kind, Role};
use gateway_core::appraisal::eventlog::Log;
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
        let context = EvidenceContext { policy: &policy, bindings: &registry, catalog: &catalog, relay: None };
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
