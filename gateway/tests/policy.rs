//! `vestibule policy test`, `policy learn` and `pcr predict` as a person runs them, over boots of real
//! firmware (tests/vectors/eventlog).

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

const PXE: &str = "ovmf-sid-ipxe-uki";
const HTTP: &str = "ovmf-sid-http-uki";

fn vector(name: &str, ending: &str) -> String {
    format!(
        "{}/../tests/vectors/eventlog/{name}.{ending}",
        env!("CARGO_MANIFEST_DIR")
    )
}

fn facts(name: &str) -> Value {
    serde_json::from_slice(&fs::read(vector(name, "json")).unwrap()).unwrap()
}

/// Exit code, standard output, standard error.
fn vestibule(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vestibule"))
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// A folder with the catalogue of the recorded images, the UKI in two versions.
fn desk(name: &str) -> (tempfile::TempDir, PathBuf) {
    let facts = facts(name);
    let entry = |key: &str, kind: &str, version: u64| {
        let mut entry = json!({
            "name": key, "kind": kind, "role": "provision", "arch": "x86_64", "version": version,
            "file": format!("{key}-{version}.efi"), "sha256": format!("{version:064x}"), "size_bytes": 1,
        });
        let own = facts[key].as_object().unwrap().clone();
        entry.as_object_mut().unwrap().extend(own);
        entry
    };
    let mut next = entry("uki", "uki", 8);
    next["pe_sha256"] = Value::String("88".repeat(32));
    next["pcr11"] = Value::String("99".repeat(32));
    let manifest = json!({
        "version": 1,
        "artefacts": [entry("ipxe", "ipxe", 1), entry("uki", "uki", 7), next],
    });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.json");
    fs::write(&path, manifest.to_string()).unwrap();
    (dir, path)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_policy_that_was_learned_passes_both_ways_to_boot() {
    let (dir, catalog) = desk(PXE);
    let (code, draft, err) = vestibule(&[
        "policy",
        "learn",
        &vector(PXE, "bin"),
        "--pcrs",
        &vector(PXE, "json"),
        "--catalog",
        text(dir.path()),
    ]);
    assert_eq!(code, 0, "{err}{draft}");
    assert!(draft.starts_with("# DRAFT, for review."), "{draft}");
    let policy = dir.path().join("policy.toml");
    fs::write(&policy, &draft).unwrap();
    for name in [PXE, HTTP] {
        let (_other, catalog) = desk(name);
        let (code, out, err) = vestibule(&[
            "policy",
            "test",
            text(&policy),
            &vector(name, "bin"),
            "--pcrs",
            &vector(name, "json"),
            "--catalog",
            text(&catalog),
        ]);
        assert_eq!(code, 0, "{name}: {err}{out}");
        assert!(out.contains("row 11  boot       passed"), "{out}");
        assert!(out.contains("the policy passes this boot"), "{out}");
    }
    // Values of another boot.
    let (code, out, _) = vestibule(&[
        "policy",
        "test",
        text(&policy),
        &vector(PXE, "bin"),
        "--pcrs",
        &vector(HTTP, "json"),
        "--catalog",
        text(&catalog),
    ]);
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("eventlog.replay"), "{out}");
}

#[test]
fn a_floor_with_grace_by_the_time_that_is_given() {
    let (dir, catalog) = desk(PXE);
    let policy = dir.path().join("policy.toml");
    let floor = "version = 1\npreset = \"standard\"\n[[boot.floor]]\nimage = \"uki\"\nversion = 8\n\
                 grace_from = 7\ngrace_until = 2026-12-24T00:00:00Z\n\
                 [[class]]\nname = \"strict\"\n[[class.boot.floor]]\nimage = \"uki\"\nversion = 8\n";
    fs::write(&policy, floor).unwrap();
    let log = vector(PXE, "bin");
    let test = |more: &[&str]| {
        let mut args = vec!["--json", "policy", "test", text(&policy), &log, "--catalog"];
        args.push(text(&catalog));
        args.extend(more);
        let (code, out, err) = vestibule(&args);
        let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        (code, report)
    };
    let (code, report) = test(&["--at", "2026-12-23T23:59:59Z"]);
    assert_eq!(code, 0, "{report}");
    assert_eq!(report["passes"], true);
    assert_eq!(report["reported"][0]["code"], "boot.floor");
    assert_eq!(report["checks"][2]["row"], 11);
    assert!(
        report["checks"][2]["tolerated"]
            .as_str()
            .unwrap()
            .contains("uki version 7"),
        "{report}"
    );
    let (code, report) = test(&["--at", "2026-12-24T00:00:00Z"]);
    assert_eq!(code, 1, "{report}");
    assert_eq!(report["checks"][2]["reasons"][0]["code"], "boot.floor");
    // A class without grace.
    let (code, report) = test(&["--at", "2026-12-23T23:59:59Z", "--class", "strict"]);
    assert_eq!(code, 1, "{report}");
    assert_eq!(report["class"], "strict");
    // A class that is mistyped would be judged by the general rules.
    let args = ["policy", "test", text(&policy), &log, "--class", "strickt"];
    let (code, _, err) = vestibule(&[&args[..], &["--catalog", text(&catalog)]].concat());
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("it has strict"), "{err}");
}

#[test]
fn rejects_files_that_are_none() {
    let (dir, catalog) = desk(PXE);
    let policy = dir.path().join("policy.toml");
    let log = vector(PXE, "bin");
    fs::write(
        &policy,
        "version = 1\npreset = \"standart\"\n[boot]\nroles = []\n",
    )
    .unwrap();
    let run = |policy: &str, log: &str, more: &[&str]| {
        let mut args = vec!["policy", "test", policy, log];
        args.extend(more);
        let (code, _, err) = vestibule(&args);
        (code, err)
    };
    let with = ["--catalog", text(&catalog)];
    let (code, err) = run(text(&policy), &log, &with);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("line 2: preset"), "{err}");
    assert!(err.contains("line 4: boot.roles"), "{err}");
    fs::write(&policy, "version = 1\npreset = \"standard\"\n").unwrap();
    for (policy, log, more, wanted) in [
        (text(&policy), "/nowhere", &with[..], 2),
        ("/nowhere", &log, &with, 2),
        (text(&policy), &log, &["--catalog", "/nowhere"], 2),
        // No configuration, so no catalogue of one.
        (text(&policy), &log, &["--config", "/nowhere"], 2),
        // A catalogue that is none; an image as a log.
        (text(&policy), &log, &["--catalog", text(&policy)], 1),
        (text(&policy), text(&policy), &with, 1),
        (
            text(&policy),
            &log,
            &["--catalog", text(&catalog), "--pcrs", text(&policy)],
            2,
        ),
        (
            text(&policy),
            &log,
            &["--catalog", text(&catalog), "--at", "tomorrow"],
            2,
        ),
    ] {
        let (code, err) = run(policy, log, more);
        assert_eq!(code, wanted, "{policy} {log} {more:?}: {err}");
    }
    let (code, _, err) = vestibule(&["policy", "learn", text(&policy)]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("eventlog."), "{err}");
}

#[test]
fn register_values_are_read_from_a_folder_of_the_kernel_and_from_tpm2_tools() {
    let (dir, catalog) = desk(PXE);
    let policy = dir.path().join("policy.toml");
    fs::write(&policy, "version = 1\npreset = \"standard\"\n").unwrap();
    let pcrs = facts(PXE)["pcrs"].as_object().unwrap().clone();
    let folder = dir.path().join("pcr-sha256");
    fs::create_dir(&folder).unwrap();
    let mut printed = String::from("  sha256:\n");
    for pcr in 0..16 {
        let value = pcrs[&pcr.to_string()].as_str().unwrap().to_uppercase();
        fs::write(folder.join(pcr.to_string()), format!("{value}\n")).unwrap();
        printed += &format!("    {pcr:<2}: 0x{value}\n");
    }
    let file = dir.path().join("pcrs.txt");
    fs::write(&file, printed).unwrap();
    for values in [&folder, &file] {
        let args = [
            "policy",
            "test",
            text(&policy),
            &vector(PXE, "bin"),
            "--pcrs",
            text(values),
            "--catalog",
            text(&catalog),
        ];
        let (code, out, err) = vestibule(&args);
        assert_eq!(code, 0, "{err}{out}");
        assert!(out.contains("row  9  quote      passed"), "{out}");
    }
    fs::remove_file(folder.join("7")).unwrap();
    let args = [
        "policy",
        "test",
        text(&policy),
        &vector(PXE, "bin"),
        "--pcrs",
        text(&folder),
        "--catalog",
        text(&catalog),
    ];
    let (code, out, _) = vestibule(&args);
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("quote.selection"), "{out}");
}

#[test]
fn predicted_values_are_those_of_the_recorded_boots() {
    for (name, path, index) in [(PXE, "pxe", 0), (HTTP, "http", 1)] {
        let (_dir, catalog) = desk(name);
        let facts = facts(name);
        let (code, out, err) = vestibule(&[
            "--json",
            "pcr",
            "predict",
            "uki@7",
            "--catalog",
            text(&catalog),
        ]);
        assert_eq!(code, 0, "{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["paths"][index]["path"], path);
        assert_eq!(report["paths"][index]["pcr4"], facts["pcrs"]["4"], "{name}");
        assert_eq!(report["pcr11"], facts["pcrs"]["11"], "{name}");
        // Only that way, in words.
        let args = ["pcr", "predict", "uki@7", "--path", path, "--catalog"];
        let (code, out, _) = vestibule(&[&args[..], &[text(&catalog)]].concat());
        assert_eq!(code, 0, "{out}");
        assert_eq!(out.matches("PCR 4   ").count(), 1, "{out}");
        assert!(out.contains(facts["pcrs"]["4"].as_str().unwrap()), "{out}");
    }
    let (_dir, catalog) = desk(PXE);
    let predict = |image: &str| {
        let args = [
            "--json",
            "pcr",
            "predict",
            image,
            "--catalog",
            text(&catalog),
        ];
        vestibule(&args)
    };
    let (_, out, _) = predict("uki");
    let newest: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(newest["version"], 8, "the newest of a name");
    for (image, word) in [
        ("talos", "it has ipxe@1, uki@7, uki@8"),
        ("uki@9", "no image"),
        ("ipxe", "no UKI"),
    ] {
        let (code, _, err) = predict(image);
        assert_eq!(code, 1, "{image}");
        assert!(err.contains(word), "{image}: {err}");
    }
}
