//! Good evidence with one thing changed, for every thing there is: each octet of each field, each
//! member of the JSON, each event of the boot. What still passes is in a list here, with the reason;
//! a new way to pass fails these tests.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use attest_wire::v1::{Binding as WireBinding, Hello, decode_challenge};
use gateway_core::appraisal::eventlog::Log;
use gateway_core::appraisal::{Appraisal, appraise_evidence, appraise_hello, make_challenge};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use serde_json::{Value, json};
use support::Session;
use support::log::{
    EV_ACTION, EV_APPLICATION, EV_AUTHORITY, EV_NO_ACTION, EV_VARIABLE, LogBuilder,
};
use support::world::{EXPORTER, SESSION, UKI, World, honest_log};

/// Verdict in a word: `admitted`, `possession` or the first code.
fn word(appraisal: Appraisal) -> String {
    match appraisal {
        Appraisal::Admitted(_) => "admitted".to_owned(),
        Appraisal::Possession(_) => "possession".to_owned(),
        Appraisal::Refused(refusal) => refusal.code().to_owned(),
    }
}

/// One exchange in two halves, so that the second can be tried again and again: the challenge is
/// the same each time.
struct Exchange {
    world: World,
    hello: Vec<u8>,
    evidence: Value,
}

impl Exchange {
    /// The node's hello, and what it answers to the challenge that the gateway made of it.
    fn new(world: World) -> Self {
        let hello = serde_json::to_vec(&world.node.hello()).unwrap();
        Self::of(world, hello)
    }

    fn of(world: World, hello: Vec<u8>) -> Self {
        let issued = {
            let verified = appraise_hello(&hello, &world.hello_context()).unwrap();
            make_challenge(&verified, SESSION, EXPORTER, &mut rng()).unwrap()
        };
        let session = Session {
            hello_body: &hello,
            challenge_body: &issued.body,
            exporter: EXPORTER,
        };
        let evidence = serde_json::to_value(world.node.evidence(&session)).unwrap();
        Self {
            world,
            hello,
            evidence,
        }
    }

    /// The verdict over these bodies.
    fn judge(&self, hello: &[u8], evidence: &[u8]) -> String {
        let verified = match appraise_hello(hello, &self.world.hello_context()) {
            Ok(verified) => verified,
            Err(refusal) => return refusal.code().to_owned(),
        };
        let issued = make_challenge(&verified, SESSION, EXPORTER, &mut rng()).unwrap();
        word(appraise_evidence(
            verified,
            issued,
            evidence,
            &self.world.evidence_context(),
        ))
    }

    fn judge_evidence(&self, evidence: &Value) -> String {
        self.judge(&self.hello, evidence.to_string().as_bytes())
    }
}

fn rng() -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(7)
}

/// Every place of a document, as JSON pointers (RFC 6901); the root is the empty one.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                places(value, &format!("{at}/{name}"), out);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                places(value, &format!("{at}/{index}"), out);
            }
        }
        _ => {}
    }
}

/// What may become of one place, with a name for each.
fn variants(document: &Value, place: &str) -> Vec<(&'static str, Value)> {
    let mut out = Vec::new();
    let mut with = |name: &'static str, value: Value| {
        let mut changed = document.clone();
        *changed.pointer_mut(place).unwrap() = value;
        if changed != *document {
            out.push((name, changed));
        }
    };
    with("null", Value::Null);
    with("another type", json!(true));
    match document.pointer(place).unwrap() {
        Value::String(text) => {
            with("empty", json!(""));
            with("longer", json!(format!("{text}A")));
            with("shorter", json!(text.get(1..).unwrap_or_default()));
        }
        Value::Number(number) => {
            let number = number.as_u64().unwrap();
            with("one more", json!(number + 1));
            with("nothing", json!(0));
            with("the largest", json!(u64::MAX));
        }
        Value::Array(list) => {
            with("no elements", json!([]));
            for index in 0..list.len() {
                let mut fewer = list.clone();
                fewer.remove(index);
                with("an element less", json!(fewer));
                let mut more = list.clone();
                more.insert(index, list[index].clone());
                with("an element twice", json!(more));
                let mut swapped = list.clone();
                swapped.swap(index, 0);
                with("two elements swapped", json!(swapped));
            }
        }
        Value::Object(members) => {
            for name in members.keys() {
                let mut fewer = members.clone();
                fewer.remove(name);
                with("a member less", Value::Object(fewer));
            }
            let mut more = members.clone();
            more.insert("unknown".into(), json!(1));
            with("a member more", Value::Object(more));
        }
        Value::Null | Value::Bool(_) => {}
    }
    out
}

/// Places without their list positions: `/pcr_values/3/digest` is `/pcr_values/digest`.
fn field(place: &str) -> String {
    let names = place
        .split('/')
        .filter(|part| part.parse::<usize>().is_err());
    names.collect::<Vec<_>>().join("/")
}

#[test]
fn every_change_of_the_evidence_document_is_refused() {
    let exchange = Exchange::new(World::new());
    assert_eq!(exchange.judge_evidence(&exchange.evidence), "admitted");
    let mut all = Vec::new();
    places(&exchange.evidence, "", &mut all);
    let (mut tried, mut codes) = (0, BTreeMap::<String, usize>::new());
    let mut passed = BTreeSet::new();
    for place in &all {
        for (what, changed) in variants(&exchange.evidence, place) {
            tried += 1;
            let verdict = exchange.judge_evidence(&changed);
            if verdict == "admitted" {
                passed.insert((field(place), what));
            }
            *codes.entry(verdict).or_default() += 1;
        }
    }
    println!("{} places, {tried} changes: {codes:?}", all.len());
    assert!(tried > 200, "{tried}");
    assert!(
        passed.is_empty(),
        "these must change the verdict: {passed:?}"
    );
}

#[test]
fn a_member_twice_is_refused_and_space_between_members_means_nothing() {
    let exchange = Exchange::new(World::new());
    let text = exchange.evidence.to_string();
    for name in exchange.evidence.as_object().unwrap().keys() {
        let value = &exchange.evidence[name];
        let twice = format!("{{\"{name}\":{value},{}", &text[1..]);
        assert_eq!(
            exchange.judge(&exchange.hello, twice.as_bytes()),
            "malformed.json",
            "{name}"
        );
    }
    let spaced = serde_json::to_string_pretty(&exchange.evidence).unwrap();
    assert_eq!(
        exchange.judge(&exchange.hello, spaced.as_bytes()),
        "admitted"
    );
    let trailing = format!("{text}{{}}");
    assert_eq!(
        exchange.judge(&exchange.hello, trailing.as_bytes()),
        "malformed.json"
    );
}

/// Flips one bit of every octet of every octet string but the log.
#[test]
fn every_octet_of_the_evidence_counts() {
    let exchange = Exchange::new(World::new());
    let mut all = Vec::new();
    places(&exchange.evidence, "", &mut all);
    let mut tried = 0;
    for place in all.iter().filter(|place| *place != "/event_log") {
        let Some(octets) = octets(&exchange.evidence, place) else {
            continue;
        };
        for index in 0..octets.len() {
            let mut changed = octets.clone();
            changed[index] ^= 1 << (index % 8);
            let mut evidence = exchange.evidence.clone();
            *evidence.pointer_mut(place).unwrap() = wire(&changed);
            let verdict = exchange.judge_evidence(&evidence);
            assert!(
                !matches!(verdict.as_str(), "admitted" | "possession"),
                "{place}: octet {index} says nothing: {verdict}"
            );
            tried += 1;
        }
    }
    println!("{tried} octets");
    assert!(tried > 800, "{tried}");
}

fn octets(document: &Value, place: &str) -> Option<Vec<u8>> {
    serde_json::from_value::<attest_wire::v1::Bytes>(document.pointer(place)?.clone())
        .ok()
        .map(|bytes| bytes.0)
}

fn wire(octets: &[u8]) -> Value {
    serde_json::to_value(attest_wire::v1::Bytes(octets.to_vec())).unwrap()
}

/// Parts of a log that no decision may hang on, and why.
const LOG_IS_SILENT: &[(&str, &str)] = &[
    (
        "header",
        "the Spec ID event is not extended; of it only the banks count",
    ),
    (
        "type",
        "no digest covers an event's type: decisions hang on digests",
    ),
    (
        "data, not hashed",
        "a device path, a text beside a digest of something else",
    ),
    (
        "data, no decision",
        "hashes to its digest, and nothing is decided by what it says",
    ),
];

/// Flips one bit of every octet of the event log: what is refused by another code than the log's,
/// and what passes.
#[test]
fn octets_of_the_event_log_count_or_are_known_not_to() {
    let exchange = Exchange::new(World::new());
    let log = octets(&exchange.evidence, "/event_log").unwrap();
    let parsed = Log::parse(&log).unwrap();
    // Where each event begins; its data is the last of it.
    let ends: Vec<usize> = parsed
        .events
        .iter()
        .map(|event| event.data.as_ptr().addr() - log.as_ptr().addr() + event.data.len())
        .collect();
    let part = |offset: usize| -> (&'static str, String) {
        let index = ends.iter().position(|end| offset < *end).unwrap();
        let event = &parsed.events[index];
        let begin = ends[index] - event.data.len() - 50;
        let subject = format!("PCR {} type {:#x}", event.pcr, event.kind);
        if index == 0 && offset < begin {
            return ("header", String::new());
        }
        let part = match offset - begin {
            0..4 => "PCR",
            4..8 => "type",
            8..12 => "count",
            12..14 => "algorithm",
            14..46 => "digest",
            46..50 => "size",
            _ if event
                .data_proven(attest_wire::tpm::HashAlg::Sha256)
                .is_none() =>
            {
                "data, not hashed"
            }
            _ => "data, no decision",
        };
        (part, subject)
    };
    let mut passed: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let (mut counts, mut codes) = (BTreeMap::<&str, usize>::new(), BTreeMap::new());
    for offset in 0..log.len() {
        let mut changed = log.clone();
        changed[offset] ^= 1 << (offset % 8);
        let mut evidence = exchange.evidence.clone();
        evidence["event_log"] = wire(&changed);
        let verdict = exchange.judge_evidence(&evidence);
        if verdict == "admitted" {
            let (part, subject) = part(offset);
            *counts.entry(part).or_default() += 1;
            passed.entry(part).or_default().insert(subject);
        }
        *codes.entry(verdict).or_insert(0usize) += 1;
    }
    println!("{} octets of the log: {codes:?}", log.len());
    for (part, subjects) in &passed {
        let reason = LOG_IS_SILENT.iter().find(|(name, _)| name == part);
        let (_, reason) = reason.unwrap_or_else(|| panic!("{part} must count: {subjects:?}"));
        println!("{part} ({} octets): {reason}: {subjects:?}", counts[part]);
    }
    // Secure Boot's variables and authorities are decided by what they say; a separator is known by its
    // digest.
    let silent = &passed["data, no decision"];
    let said = silent.iter().filter(|subject| subject.starts_with("PCR 7"));
    assert_eq!(said.collect::<Vec<_>>(), ["PCR 7 type 0x4"], "{silent:?}");
    assert!(codes["admitted"] * 3 < log.len() * 2, "{codes:?}");
}

/// A hello that was changed on its way is another hello: the node signed the first.
#[test]
fn every_change_of_a_hello_on_its_way_is_refused() {
    let exchange = Exchange::new(World::new());
    let hello: Value = serde_json::from_slice(&exchange.hello).unwrap();
    let evidence = exchange.evidence.to_string().into_bytes();
    let mut all = Vec::new();
    places(&hello, "", &mut all);
    let (mut tried, mut codes) = (0, BTreeMap::<String, usize>::new());
    for place in &all {
        for (what, changed) in variants(&hello, place) {
            let verdict = exchange.judge(changed.to_string().as_bytes(), &evidence);
            assert!(
                !matches!(verdict.as_str(), "admitted" | "possession"),
                "{place} {what}: {verdict}"
            );
            tried += 1;
            *codes.entry(verdict).or_default() += 1;
        }
    }
    println!("{} places, {tried} changes: {codes:?}", all.len());
    // Not even a space may be added: hashes are over the body as it came.
    let spaced = serde_json::to_vec_pretty(&hello).unwrap();
    assert_eq!(exchange.judge(&spaced, &evidence), "ak.activation");
    assert!(tried > 150, "{tried}");
}

/// What a node may say of itself without a consequence, and why: its keys prove who it is.
const LABELS: &[(&str, &str)] = &[
    ("/arch", "the image in the event log decides"),
    (
        "/tpm/vendor",
        "shown to the owner; the EK certificate names the maker",
    ),
    ("/tpm/model", "shown to the owner"),
    ("/tpm/firmware", "shown to the owner"),
    ("/platform/manufacturer", "shown to the owner"),
    ("/platform/product", "shown to the owner"),
    ("/platform/uuid", "firmware repeats it; the serial is bound"),
    (
        "/nics",
        "a MAC decides nothing unless it is another machine's",
    ),
    ("/nics/name", "the node's own word for it"),
    (
        "/nics/mac",
        "a MAC decides nothing unless it is another machine's",
    ),
    ("/disks/name", "the node's own word for it"),
    ("/disks/model", "the serial is bound"),
    ("/disks/size_bytes", "the serial is bound"),
    ("/boot_path", "the event log decides"),
    ("/uki_hint", "the event log decides"),
];

/// The node itself lies in its hello and signs for it.
#[test]
fn a_hello_that_the_node_itself_changed_is_refused_or_a_label() {
    let world = World::new();
    let hello = serde_json::to_value(world.node.hello()).unwrap();
    let exchange = Exchange::new(world);
    let mut all = Vec::new();
    places(&hello, "", &mut all);
    let (mut tried, mut codes) = (0, BTreeMap::<String, usize>::new());
    let mut passed = BTreeSet::new();
    for place in &all {
        for (what, changed) in variants(&hello, place) {
            // Only what a hello can be; the rest is refused before.
            if serde_json::from_value::<Hello>(changed.clone()).is_err() {
                continue;
            }
            tried += 1;
            let body = changed.to_string().into_bytes();
            let verdict = lie(&exchange.world, &body);
            if verdict == "admitted" || verdict == "possession" {
                passed.insert((field(place), what));
            }
            *codes.entry(verdict).or_default() += 1;
        }
    }
    println!("{} places, {tried} changes: {codes:?}", all.len());
    for (place, what) in passed {
        assert!(
            LABELS.iter().any(|(label, _)| *label == place),
            "{place} {what} must change the verdict"
        );
    }
    assert!(codes.keys().any(|code| code == "admitted"), "{codes:?}");
}

/// The verdict over a hello that the node made and signs for.
fn lie(world: &World, body: &[u8]) -> String {
    let verified = match appraise_hello(body, &world.hello_context()) {
        Ok(verified) => verified,
        Err(refusal) => return refusal.code().to_owned(),
    };
    let issued = make_challenge(&verified, SESSION, EXPORTER, &mut rng()).unwrap();
    let challenge = decode_challenge(&issued.body).unwrap();
    if challenge.credentials.len() > world.node.eks.len() {
        return "an EK twice".to_owned();
    }
    let session = Session {
        hello_body: body,
        challenge_body: &issued.body,
        exporter: EXPORTER,
    };
    let evidence = serde_json::to_vec(&world.node.evidence(&session)).unwrap();
    word(appraise_evidence(
        verified,
        issued,
        &evidence,
        &world.evidence_context(),
    ))
}

/// Any event of a register, or of one type in it.
const ANY: u32 = 0;

/// Events of an honest boot that may be otherwise, in these ways, without a consequence, and why.
const NOT_JUDGED: &[(u8, u32, &[&str], &str)] = &[
    (
        0,
        ANY,
        &["other", "less", "twice"],
        "the board's firmware: recorded, no rule of this policy",
    ),
    (
        1,
        ANY,
        &["other", "less", "twice"],
        "settings and boot order of the board",
    ),
    (
        2,
        ANY,
        &["other", "less", "twice"],
        "option ROMs: by this policy any that firmware accepted",
    ),
    (
        5,
        ANY,
        &["other", "less", "twice"],
        "partition table and ExitBootServices",
    ),
    (
        4,
        EV_APPLICATION,
        &["less", "twice"],
        "another boot path (HTTP boot has no iPXE), of images that are each in the catalogue",
    ),
    (
        4,
        EV_ACTION,
        &["less", "twice"],
        "the firmware's word that it begins with a boot option: once for each that it tries",
    ),
    (
        7,
        EV_VARIABLE,
        &["less", "twice"],
        "PK, KEK, db and dbx: every image must be in the catalogue whoever signed it",
    ),
    (
        7,
        EV_AUTHORITY,
        &["less", "twice"],
        "measured once for each key that vouches; this policy lists no authorities",
    ),
];

/// The machine boots with one event more, less or different, and says so honestly: registers and log agree.
#[test]
fn every_event_of_the_boot_counts_or_is_of_a_register_that_is_not_judged() {
    let honest = honest_log();
    assert!(honest.iter().all(|entry| entry.kind != EV_NO_ACTION));
    let verdict = |entries: &[support::log::Entry]| {
        let mut world = World::new();
        world.node.log = LogBuilder::write(entries);
        word(world.run())
    };
    assert_eq!(verdict(&honest), "admitted");
    let mut codes = BTreeMap::<String, usize>::new();
    let mut silent = BTreeSet::new();
    for index in 0..honest.len() {
        let mut other = honest.clone();
        other[index].digest[5] ^= 1;
        let mut less = honest.clone();
        less.remove(index);
        let mut twice = honest.clone();
        twice.insert(index, honest[index].clone());
        for (what, entries) in [("other", other), ("less", less), ("twice", twice)] {
            let verdict = verdict(&entries);
            if verdict == "admitted" {
                let entry = &honest[index];
                silent.insert((entry.pcr, entry.kind, what));
            }
            *codes.entry(verdict).or_default() += 1;
        }
    }
    println!("{} events: {codes:?}", honest.len());
    for (pcr, kind, what) in &silent {
        println!("PCR {pcr} type {kind:#x} {what}: passes");
    }
    for (pcr, kind, what) in silent {
        let known = NOT_JUDGED.iter().any(|(register, of, ways, _)| {
            *register == pcr && (*of == ANY || *of == kind) && ways.contains(&what)
        });
        assert!(
            known,
            "PCR {pcr} type {kind:#x} {what} must change the verdict"
        );
    }
}

/// What is left out above one at a time is not left out altogether.
#[test]
fn a_boot_without_its_image_or_its_secure_boot_is_refused() {
    let without = |gone: &dyn Fn(&support::log::Entry) -> bool| {
        let mut entries = honest_log();
        entries.retain(|entry| !gone(entry));
        let mut world = World::new();
        world.node.log = LogBuilder::write(&entries);
        word(world.run())
    };
    let images = without(&|entry| entry.kind == EV_APPLICATION);
    assert_eq!(images, "boot.uki");
    let uki = without(&|entry| entry.digest == UKI);
    assert_eq!(uki, "boot.uki");
    let variables = without(&|entry| entry.kind == EV_VARIABLE);
    assert_eq!(variables, "boot.secure_boot");
}

/// A binding is over the bodies as they came: labels, bodies and connection each make another digest.
#[test]
fn bindings_differ_in_every_part() {
    let base = WireBinding::new(b"hello", b"challenge", EXPORTER);
    let mut digests = BTreeSet::new();
    for label in ["quote", "devid", "activation", "boot", "pair"] {
        assert!(digests.insert(base.digest(label)), "{label}");
    }
    let mut exporter = EXPORTER;
    exporter[0] ^= 1;
    for other in [
        WireBinding::new(b"hellp", b"challenge", EXPORTER),
        WireBinding::new(b"hello", b"challengf", EXPORTER),
        WireBinding::new(b"helloc", b"hallenge", EXPORTER),
        WireBinding::new(b"hello", b"challenge", exporter),
    ] {
        assert!(digests.insert(other.digest("quote")));
    }
}
