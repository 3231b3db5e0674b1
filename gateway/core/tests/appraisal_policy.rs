//! What a policy file makes of a boot: each test has a boot that passes one policy and is refused by
//! another, or the other way round. Rows 9 and 11; the rows' own rules are in `appraisal.rs`.

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

mod support;

use boot::catalog::{Kind, Role};
use gateway_core::appraisal::dbx::Dbx;
use gateway_core::appraisal::x509::Cert;
use gateway_core::appraisal::{Admission, Appraisal, QUOTED_PCRS, TimeTrust, Verified};
use gateway_core::identity::UnixMillis;
use gateway_core::policy::Policy;
use gateway_core::reason::Reason;
use support::log::{self, Entry};
use support::world::*;

const CARD: [u8; 32] = [0x22; 32];
/// 2026-12-24T00:00:00Z.
const CHRISTMAS_MS: u64 = 1_798_070_400_000;

fn policy(text: &str) -> Policy {
    Policy::parse(&format!("version = 1\npreset = \"standard\"\n{text}\n")).unwrap()
}

/// The world under a policy.
fn under(text: &str) -> World {
    let mut world = World::new();
    world.policy = policy(text);
    world
}

#[track_caller]
fn passes(world: &World) -> Verified<Admission> {
    match world.run() {
        Appraisal::Admitted(admission) => *admission,
        other => panic!("expected admission, got {other:?}"),
    }
}

/// Expects exactly these codes and gives the reasons.
#[track_caller]
fn refuses(world: &World, codes: &[&str]) -> Vec<Reason> {
    let Appraisal::Refused(refusal) = world.run() else {
        panic!("expected {codes:?}, admitted");
    };
    let found: Vec<&str> = refusal.reasons.iter().map(|r| r.code.as_ref()).collect();
    assert_eq!(found, codes, "{:#?}", refusal.reasons);
    for reason in &refusal.reasons {
        let parts = [&reason.expected, &reason.found];
        assert!(
            parts.iter().all(|part| !part.is_empty()),
            "a part is missing: {reason:?}"
        );
        assert!(!reason.source.is_empty() && !reason.next.is_empty());
    }
    refusal.reasons
}

fn changed(change: impl FnOnce(&mut Vec<Entry>)) -> Vec<Entry> {
    let mut entries = honest_log();
    change(&mut entries);
    entries
}

fn certificate(text: &str) -> Vec<u8> {
    [&[0x30, text.len() as u8][..], text.as_bytes()].concat()
}

/// A certificate of db that vouched.
fn vouched(text: &str) -> Entry {
    let entry = [&[7; 16][..], &certificate(text)].concat();
    let data = log::variable(log::SECURITY_DATABASE, "db", &entry);
    Entry::measured(7, log::EV_AUTHORITY, &data)
}

fn sha256_hex(data: &[u8]) -> String {
    hex::encode(log::sha256(data))
}

// Row 9

#[test]
fn a_class_may_leave_out_registers_that_decide_nothing() {
    let less = "[[class]]\nname = \"standard\"\n[class.quote]\n\
                pcrs = [0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 15]\n";
    // A kernel that measures into PCR 9 without a firmware's log to write it in.
    let unlogged = |world: &mut World| world.node.unlogged.push((9, [9; 32]));
    let mut world = under(less);
    unlogged(&mut world);
    assert!(!passes(&world).facts.pcrs.contains_key(&9));
    let mut world = under("");
    unlogged(&mut world);
    refuses(&world, &["eventlog.replay"]);
    // Another class is not concerned.
    let mut world = under(&format!(
        "{}\n[[class]]\nname = \"standard\"\n",
        less.replace("standard", "runtime")
    ));
    unlogged(&mut world);
    refuses(&world, &["eventlog.replay"]);
}

#[test]
fn rejects_a_quote_over_fewer_registers_than_the_policy_wants() {
    let world = under("");
    let fewer: Vec<u8> = QUOTED_PCRS.into_iter().filter(|p| *p != 14).collect();
    let appraisal = world.run_with(
        |_| {},
        |evidence, binding| {
            let qualifying = binding.digest("quote");
            let (attest, values) = world
                .node
                .quote(&qualifying, &fewer, &[binding.digest("boot")]);
            evidence.quote = world.node.sign(&attest);
            evidence.pcr_values = values;
        },
    );
    let Appraisal::Refused(refusal) = appraisal else {
        panic!("admitted");
    };
    assert_eq!(refusal.code(), "quote.selection");
}

// Row 11: keys and drivers

#[test]
fn classes_have_authorities_of_their_own() {
    let site = sha256_hex(b"site certificate");
    let text = |class: &str| {
        format!(
            "[boot]\nauthority_sha256 = [\"{site}\"]\n[[class]]\nname = \"{class}\"\n\
             [class.boot]\nauthority_sha256 = [\"{}\"]",
            hex::encode([1; 32])
        )
    };
    let general = "\n[[class]]\nname = \"standard\"\n";
    passes(&under(&(text("other") + general)));
    refuses(&under(&text("standard")), &["boot.authority"]);
}

#[test]
fn rejects_a_machine_whose_class_the_policy_does_not_have() {
    let classes = "[[class]]\nname = \"control\"\n[[class]]\nname = \"worker\"\n";
    let reasons = refuses(&under(classes), &["machine.class"]);
    assert!(
        reasons[0].expected.contains("control, worker, default"),
        "{reasons:?}"
    );
    // "report" lets no such machine pass either: the class says what is reported.
    let mut world = under(classes);
    let observe = format!("version = 1\npreset = \"observe\"\n{classes}");
    world.policy = Policy::parse(&observe).unwrap();
    refuses(&world, &["machine.class"]);
    // The class of those approved without one has the general rules, and so have all without classes.
    let mut world = under(classes);
    world.binding().class = "default".into();
    passes(&world);
    passes(&under(""));
}

/// Types of entries (UEFI 2.10 section 32.4.1), as stored.
const CERT_SHA256: u128 = 0x2616c4c1_4c509240_aca941f9_36934328;
const CERT_SHA384: u128 = 0x07533eff_d09fc948_85f18ad5_6c701e01;
const CERT_X509: u128 = 0xa159c0a5_e494a74a_87b5ab15_5c2bf072;
const CERT_X509_SHA256: u128 = 0x92a4d23b_c0967940_b420fcf9_8ef103ed;
const CERT_RSA2048: u128 = 0xe866573c_9c26344e_aa14ed77_6e85b3b6;

/// One `EFI_SIGNATURE_LIST`; all of its entries have the length of the first.
fn signature_list(kind: u128, entries: &[&[u8]]) -> Vec<u8> {
    let each = 16 + entries.first().map_or(32, |entry| entry.len());
    let mut list = kind.to_be_bytes().to_vec();
    list.extend((28 + (each * entries.len()) as u32).to_le_bytes());
    list.extend(0u32.to_le_bytes());
    list.extend((each as u32).to_le_bytes());
    for entry in entries {
        list.extend([&[0; 16], *entry].concat());
    }
    list
}

/// The dbx as firmware measures it: one list of SHA-256 entries.
fn dbx(digests: &[[u8; 32]]) -> Vec<u8> {
    let entries: Vec<&[u8]> = digests.iter().map(<[u8; 32]>::as_slice).collect();
    signature_list(CERT_SHA256, &entries)
}

fn with_dbx(world: &mut World, digests: &[[u8; 32]]) {
    with_lists(world, &dbx(digests));
}

fn with_lists(world: &mut World, content: &[u8]) {
    let data = log::variable(log::SECURITY_DATABASE, "dbx", content);
    world.boots(&changed(|log| {
        log[5] = Entry::measured(7, log::EV_VARIABLE, &data)
    }));
}

#[test]
fn rejects_a_dbx_without_what_the_policy_asks_for() {
    let listed = format!("[boot]\ndbx_sha256 = [\"{}\"]", hex::encode([3; 32]));
    for (text, good, bad) in [
        (
            "[boot]\ndbx_min_entries = 2",
            vec![[1; 32], [2; 32]],
            vec![[1; 32], [1; 32]],
        ),
        (
            listed.as_str(),
            vec![[1; 32], [3; 32]],
            vec![[1; 32], [2; 32]],
        ),
        (listed.as_str(), vec![[3; 32]], vec![]),
    ] {
        let mut world = under(text);
        with_dbx(&mut world, &good);
        passes(&world);
        with_dbx(&mut world, &bad);
        refuses(&world, &["boot.dbx"]);
    }
}

/// A certificate's signed part, and the certificate: what matters of it here is where the part ends.
fn certificate_of(part: &str) -> (Vec<u8>, Vec<u8>) {
    let part = certificate(part);
    let whole = [&part[..], &[0x30, 0], &[3, 2, 0, 1]].concat();
    let whole = [&[0x30, whole.len() as u8], &whole[..]].concat();
    (part, whole)
}

#[test]
fn rejects_a_dbx_entry_of_one_kind_in_the_place_of_another() {
    let digest = [0x33; 32];
    let always = [&digest[..], &[0; 16]].concat();
    // 2023-05-09.
    let date = [0xe7, 0x07, 5, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let dated = [&digest[..], &date].concat();
    let (part, whole) = certificate_of("a loader's signer");
    let image = format!("[boot]\ndbx_sha256 = [\"{}\"]", hex::encode(digest));
    let revoked = |what: &str| format!("[boot]\ndbx_certificate_sha256 = [\"{what}\"]");
    let by_digest = revoked(&hex::encode(digest));
    let (by_whole, by_part) = (revoked(&sha256_hex(&whole)), revoked(&sha256_hex(&part)));
    let of_image = signature_list(CERT_SHA256, &[&digest]);
    let of_part = signature_list(CERT_X509_SHA256, &[&always]);
    let from_a_date = signature_list(CERT_X509_SHA256, &[&dated]);
    let of_whole = signature_list(CERT_X509, &[&whole]);
    let as_whole_s_digest = signature_list(CERT_SHA256, &[&log::sha256(&whole)]);
    let unknown = signature_list(CERT_RSA2048, &[&digest]);
    // The size of another kind: firmware would not compare it.
    let short = signature_list(CERT_X509_SHA256, &[&digest]);
    let long = signature_list(CERT_SHA256, &[&always]);
    for (text, good, bad) in [
        (
            &image,
            vec![&of_image],
            vec![&of_part, &from_a_date, &unknown, &short, &long],
        ),
        (
            &by_digest,
            vec![&of_part],
            vec![&of_image, &from_a_date, &unknown, &short, &long],
        ),
        (
            &by_whole,
            vec![&of_whole],
            vec![&as_whole_s_digest, &of_part],
        ),
        (&by_part, vec![&of_whole], vec![&of_part]),
    ] {
        let mut world = under(text);
        for content in good {
            with_lists(&mut world, content);
            passes(&world);
        }
        for content in bad {
            with_lists(&mut world, content);
            refuses(&world, &["boot.dbx"]);
        }
    }
    // And the reason says as what it stands there.
    for (text, content, word) in [
        (&image, &of_part, "boot.dbx_certificate_sha256"),
        (&by_digest, &of_image, "boot.dbx_sha256"),
        (&by_digest, &from_a_date, "from a date on only"),
    ] {
        let mut world = under(text);
        with_lists(&mut world, content);
        let reasons = refuses(&world, &["boot.dbx"]);
        assert!(reasons[0].found.contains(word), "{}", reasons[0].found);
    }
}

#[test]
fn a_dbx_s_minimum_counts_what_it_revokes_each_thing_once_and_nothing_unknown() {
    let digest = [0x33; 32];
    let always = [&digest[..], &[0; 16]].concat();
    let (_, whole) = certificate_of("a loader's signer");
    let four = [
        signature_list(CERT_SHA256, &[&digest, &digest]),
        signature_list(CERT_X509_SHA256, &[&always, &always]),
        signature_list(CERT_X509, &[&whole]),
        signature_list(CERT_SHA384, &[&[1; 48]]),
        signature_list(CERT_RSA2048, &[&[1; 256], &[2; 256]]),
    ]
    .concat();
    let mut world = under("[boot]\ndbx_min_entries = 4");
    with_lists(&mut world, &four);
    passes(&world);
    world.policy = policy("[boot]\ndbx_min_entries = 5");
    let reasons = refuses(&world, &["boot.dbx"]);
    assert!(
        reasons[0].found.contains("4 entries")
            && reasons[0]
                .found
                .contains("and 2 of no kind that UEFI defines"),
        "{}",
        reasons[0].found
    );
}

/// Updates of the dbx as Microsoft publishes them, and a certificate that such an update revokes.
#[test]
fn the_dbx_updates_of_the_corpus_revoke_what_their_lists_say() {
    let Some(root) = std::env::var_os("VESTIBULE_CORPUS") else {
        println!("SKIP VESTIBULE_CORPUS is not set");
        return;
    };
    let keys = std::path::Path::new(&root).join("sbkeys");
    for (file, images, certificates) in UPDATES {
        let update = std::fs::read(keys.join(file)).unwrap();
        // EFI_VARIABLE_AUTHENTICATION_2: a time, then a WIN_CERTIFICATE that knows its length.
        let signed = u32::from_le_bytes(update[16..20].try_into().unwrap()) as usize;
        let dbx = Dbx::read(&update[16 + signed..]);
        let found = (dbx.images.len(), dbx.named.len(), dbx.unknown());
        assert_eq!(found, (images, certificates, 0), "{file}");
        assert_eq!(dbx.entries(), images + certificates, "{file}");
    }
    for file in [
        "go-eventlog__canonical-boothole.crt",
        "go-eventlog__cisco-boothole.crt",
    ] {
        let der = std::fs::read(keys.join(file)).unwrap();
        let dbx = Dbx::read(&signature_list(CERT_X509, &[&der]));
        let cert = Cert::parse(&der).unwrap();
        assert!(dbx.named.contains(&log::sha256(&cert.der)), "{file}");
        assert_eq!((dbx.certificates.len(), dbx.images.len()), (2, 0), "{file}");
    }
}

/// Images and certificates of each file.
const UPDATES: [(&str, usize, usize); 2] = [
    ("go-eventlog__dbxupdate-2014-08-11.bin", 13, 0),
    ("go-eventlog__dbxupdate_x64-2021-04-29.bin", 211, 0),
];

#[test]
fn rejects_a_dbx_that_is_shown_and_not_measured_by_the_firmware() {
    let mut world = under("[boot]\ndbx_min_entries = 1");
    let full = log::variable(log::SECURITY_DATABASE, "dbx", &dbx(&[[1; 32]]));
    let empty = log::variable(log::SECURITY_DATABASE, "dbx", b"");
    // Behind the separator, by the operating system.
    let late = changed(|log| log.push(Entry::measured(7, log::EV_VARIABLE, &full)));
    world.boots(&late);
    refuses(&world, &["boot.dbx"]);
    // A second one before it: both count.
    world.boots(&changed(|log| {
        log.insert(6, Entry::measured(7, log::EV_VARIABLE, &full));
    }));
    refuses(&world, &["boot.dbx"]);
    // Its data exchanged: the event is not understood, and there is no dbx.
    world.boots(&changed(|log| {
        log[5] = Entry::of(7, log::EV_VARIABLE, log::sha256(&empty), &full);
    }));
    refuses(&world, &["boot.variable", "boot.dbx"]);
    // Another variable's name.
    let other = log::variable(log::SECURITY_DATABASE, "dbt", &dbx(&[[1; 32]]));
    world.boots(&changed(|log| {
        log[5] = Entry::measured(7, log::EV_VARIABLE, &other);
    }));
    refuses(&world, &["boot.dbx"]);
    // Lengths that do not fit.
    let torn = log::variable(
        log::SECURITY_DATABASE,
        "dbx",
        &dbx(&[[1; 32], [2; 32]])[..70],
    );
    world.boots(&changed(|log| {
        log[5] = Entry::measured(7, log::EV_VARIABLE, &torn);
    }));
    refuses(&world, &["boot.dbx"]);
}

#[test]
fn drivers_pass_while_their_authority_vouched_and_nobody_else_did() {
    let site = sha256_hex(b"site certificate");
    let text = format!(
        "[boot]\noption_roms = \"signed\"\nauthority_sha256 = [\"{site}\"]\n\
         driver_authority_sha256 = [\"{}\"]",
        sha256_hex(&certificate("UEFI CA"))
    );
    let mut world = under(&text);
    // The card's driver ran and nobody vouched for it: this firmware did not ask.
    refuses(&world, &["boot.option_rom"]);
    world.boots(&changed(|log| log.push(vouched("UEFI CA"))));
    passes(&world);
    world.boots(&changed(|log| log.push(vouched("another CA"))));
    refuses(&world, &["boot.authority", "boot.option_rom"]);
    world.boots(&changed(|log| {
        log.push(vouched("UEFI CA"));
        log.push(vouched("another CA"));
    }));
    refuses(&world, &["boot.authority"]);
    // Listed by its digest it needs nobody.
    world.policy = policy(&format!(
        "{text}\noption_rom_sha256 = [\"{}\"]",
        hex::encode(CARD)
    ));
    world.boots(&honest_log());
    passes(&world);
    // A boot without drivers needs nobody either.
    world.policy = policy(&text);
    world.boots(&changed(|log| log.retain(|entry| entry.digest != CARD)));
    passes(&world);
    // The drivers' authority does not make an image one of ours.
    world.boots(&changed(|log| {
        log.push(vouched("UEFI CA"));
        log.push(Entry::of(4, log::EV_APPLICATION, [9; 32], &[0; 32]));
    }));
    refuses(&world, &["boot.image"]);
}

// Row 11: command lines

#[test]
fn a_command_line_passes_as_text_or_digest_and_no_other() {
    let stub = |line: &str| log::utf16(&format!("{line}\0"));
    let mut world = World::new();
    let measured = |lines: &[&str]| {
        changed(|log| {
            for line in lines {
                log.push(Entry::measured(12, log::EV_IPL, &stub(line)));
            }
        })
    };
    world.boots(&measured(&["console=ttyS0"]));
    let reasons = refuses(&world, &["boot.cmdline"]);
    assert!(
        reasons[0].found.contains("\"console=ttyS0\""),
        "{reasons:?}"
    );
    for text in [
        "command_lines = [\"quiet\", \"console=ttyS0\"]".to_owned(),
        format!(
            "command_line_sha256 = [\"{}\"]",
            sha256_hex(&stub("console=ttyS0"))
        ),
    ] {
        world.policy = policy(&format!("[boot]\n{text}"));
        world.boots(&measured(&["console=ttyS0"]));
        passes(&world);
        // None at all is what the UKI brings.
        world.boots(&honest_log());
        passes(&world);
        world.boots(&measured(&["console=ttyS0", "init=/bin/sh"]));
        refuses(&world, &["boot.cmdline"]);
        world.boots(&measured(&["console=ttyS0 init=/bin/sh"]));
        refuses(&world, &["boot.cmdline"]);
    }
}

// Row 11: entries of the catalogue

#[test]
fn rejects_images_and_roles_that_are_not_for_the_class() {
    passes(&under("[boot]\nimages = [\"ipxe\", \"attester\"]"));
    let reasons = refuses(
        &under("[boot]\nimages = [\"ipxe\", \"talos\"]"),
        &["boot.entry"],
    );
    assert_eq!(reasons[0].found, "attester version 3");
    refuses(&under("[boot]\nimages = [\"attester\"]"), &["boot.entry"]);

    let mut world = under("");
    world.catalog[1].artefact.role = Role::Runtime;
    // An installed system does not walk as an installer, unless its class says so.
    let reasons = refuses(&world, &["boot.role"]);
    assert!(reasons[0].found.contains("role runtime"), "{reasons:?}");
    let allowed = "[[class]]\nname = \"standard\"\n[class.boot]\nroles = [\"runtime\"]";
    world.policy = policy(allowed);
    passes(&world);
    world.catalog[1].artefact.role = Role::Provision;
    refuses(&world, &["boot.role"]);
}

#[test]
fn rejects_what_the_policy_withdraws_by_file_or_by_image() {
    let withdrawn =
        |digest: [u8; 32]| format!("[boot]\nwithdrawn_sha256 = [\"{}\"]", hex::encode(digest));
    passes(&under(&withdrawn([0x77; 32])));
    refuses(&under(&withdrawn(UKI)), &["boot.withdrawn"]);
    // SHA-256 of the file, as `image withdraw` takes it.
    refuses(&under(&withdrawn([3; 32])), &["boot.withdrawn"]);
    // What a class withdraws comes on top.
    let of_class = format!(
        "{}\n[[class]]\nname = \"standard\"\n[class.boot]\nwithdrawn_sha256 = [\"{}\"]",
        withdrawn(UKI),
        hex::encode([0x77; 32])
    );
    refuses(&under(&of_class), &["boot.withdrawn"]);
}

/// The floor of before and the one to come overlap: both versions pass, then only the newer.
#[test]
fn floors_overlap_until_the_grace_is_over() {
    let at = |ms: u64| TimeTrust::Rtc(UnixMillis(ms));
    let before = at(CHRISTMAS_MS - 1000);
    let floor = |version: u64, grace: &str| {
        format!("[[boot.floor]]\nimage = \"attester\"\nversion = {version}\n{grace}")
    };
    let grace = "grace_from = 3\ngrace_until = 2026-12-24T00:00:00Z\n";
    // The machine boots version 3.
    passes(&under(&floor(3, "")));
    let reasons = refuses(&under(&floor(4, "")), &["boot.floor"]);
    assert_eq!(reasons[0].expected, "attester version 4 or newer");
    assert_eq!(reasons[0].source, "policy boot.floor");

    let mut world = under(&floor(4, grace));
    world.time = before;
    let admission = passes(&world);
    let told: Vec<(&str, &str)> = admission
        .reported
        .iter()
        .map(|r| (r.code.as_ref(), r.expected.as_str()))
        .collect();
    assert_eq!(
        told,
        [(
            "boot.floor",
            "attester version 4 or newer from 2026-12-24T00:00:00Z on"
        )],
        "what will refuse is on record before it does"
    );
    // The newer one is not told of anything.
    world.catalog[1].artefact.version = 4;
    assert!(passes(&world).reported.is_empty());
    world.catalog[1].artefact.version = 3;

    for (time, found) in [
        (at(CHRISTMAS_MS), "attester version 3"),
        (
            TimeTrust::Floor(UnixMillis(CHRISTMAS_MS)),
            "attester version 3",
        ),
        // Who does not know the time does not know that the grace still lasts.
        (TimeTrust::Floor(UnixMillis(0)), "clock is not known"),
        (TimeTrust::None, "clock is not known"),
    ] {
        world.time = time;
        let reasons = refuses(&world, &["boot.floor"]);
        assert!(reasons[0].found.contains(found), "{time:?} {reasons:?}");
    }
    // Below the floor of before there is no grace.
    world.time = before;
    world.catalog[1].artefact.version = 2;
    refuses(&world, &["boot.floor"]);
    // The owner's floor has none.
    world.catalog[1].artefact.version = 3;
    world.catalog[1].floor = 4;
    let reasons = refuses(&world, &["boot.floor", "boot.floor"]);
    assert_eq!(reasons[0].source, "the owner's floor (image floor)");
}

#[test]
fn a_floor_is_of_one_image_and_of_a_class() {
    passes(&under("[[boot.floor]]\nimage = \"talos\"\nversion = 100\n"));
    let ipxe = "[[boot.floor]]\nimage = \"ipxe\"\nversion = 2\n";
    let reasons = refuses(&under(ipxe), &["boot.floor"]);
    assert_eq!(reasons[0].found, "ipxe version 1");
    // A class that names another image's floor keeps it; one of the same image is its own.
    let of_class = |image: &str, version: u64| {
        format!(
            "{ipxe}[[class]]\nname = \"standard\"\n[[class.boot.floor]]\nimage = \"{image}\"\nversion = {version}\n"
        )
    };
    refuses(&under(&of_class("attester", 3)), &["boot.floor"]);
    passes(&under(&of_class("ipxe", 1)));
}

/// A machine that nobody has approved is told by the general rules.
#[test]
fn a_claim_is_judged_by_the_general_rules() {
    let mut world = under(
        "[boot]\nimages = [\"talos\"]\n[[class]]\nname = \"standard\"\n[class.boot]\n\
         images = [\"ipxe\", \"attester\"]",
    );
    passes(&world);
    world.registry.owners.clear();
    let Appraisal::Possession(proven) = world.run() else {
        panic!("not a claim");
    };
    let codes: Vec<&str> = proven
        .would_refuse
        .iter()
        .map(|r| r.code.as_ref())
        .collect();
    assert_eq!(codes, ["boot.entry", "boot.entry"]);
}

#[test]
fn two_names_for_one_image_are_both_judged() {
    let mut world = under("[boot]\nimages = [\"ipxe\", \"attester\"]");
    world.catalog.push(entry(Kind::Uki, "talos", 3, UKI));
    refuses(&world, &["boot.entry"]);
}

#[test]
fn the_role_of_every_name_of_an_image_is_judged() {
    for first in [true, false] {
        let mut world = under("");
        let mut other = entry(Kind::Uki, "talos", 3, UKI);
        other.artefact.role = Role::Runtime;
        let at = if first { 0 } else { world.catalog.len() };
        world.catalog.insert(at, other);
        let reasons = refuses(&world, &["boot.role"]);
        assert!(reasons[0].found.contains("talos"), "{reasons:?}");
    }
}
