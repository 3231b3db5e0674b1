//! The documents against the tree: files, tests and scenarios that they name exist. (Codes are
//! compared beside the table, `appraisal/table.rs`.)

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

use std::path::{Path, PathBuf};

use gateway_core::walk::WALK;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// What stands between single backticks, outside code blocks.
fn quoted(text: &str) -> Vec<&str> {
    text.split("```")
        .step_by(2)
        .flat_map(|part| part.split('`').skip(1).step_by(2))
        .collect()
}

/// Whether a quoted word is meant as a path of this repository.
fn is_path(word: &str) -> bool {
    const TOPS: [&str; 9] = [
        "boot/",
        "docs/",
        "gateway/",
        "hw/",
        "netstack/",
        "store/",
        "tests/",
        "yocto/",
        ".ci/",
    ];
    TOPS.iter().any(|top| word.starts_with(top)) && !word.contains(['*', ' ', '{'])
}

#[test]
fn every_path_in_the_documents_exists() {
    let (mut paths, mut missing) = (0, Vec::new());
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for word in quoted(&text).into_iter().filter(|word| is_path(word)) {
            let file = word.split(':').next().unwrap();
            paths += 1;
            if !root().join(file).exists() {
                missing.push(format!("{}: {file}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(
        paths > 100,
        "only {paths} paths: the documents were not read"
    );
}

/// The tests that a document names as `FILE::NAME`, and those of them that are not there.
fn tests_named(text: &str) -> (usize, Vec<&str>) {
    let (mut tests, mut missing) = (0, Vec::new());
    for word in quoted(text) {
        let Some((file, test)) = word.split_once("::") else {
            continue;
        };
        if !is_path(file) {
            continue;
        }
        tests += 1;
        let code = std::fs::read_to_string(root().join(file)).unwrap_or_default();
        if !code.contains(&format!("fn {test}(")) {
            missing.push(word);
        }
    }
    (tests, missing)
}

#[test]
fn every_test_in_the_threat_model_exists() {
    let text = document("THREAT-MODEL.md");
    let (tests, missing) = tests_named(&text);
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(tests > 40, "only {tests} tests: the document was not read");
}

/// Each report has a line of its own and a test on it.
#[test]
fn every_report_of_the_field_has_a_test_that_exists() {
    let text = document("FIELD-BUGS.md");
    let (_, missing) = tests_named(&text);
    assert!(missing.is_empty(), "{missing:#?}");
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('#'));
    let mut reports = Vec::new();
    for row in rows {
        let report = row.split('|').nth(1).unwrap().trim();
        assert!(tests_named(row).0 > 0, "{report} has no test");
        assert!(!reports.contains(&report), "{report} twice");
        reports.push(report);
    }
    assert!(reports.len() >= 87, "{reports:?}");
}

/// Of the reports that were collected, each that touches the wire is in the document.
#[test]
fn every_collected_report_of_the_wire_is_in_the_document() {
    let Some(corpus) = std::env::var_os("VESTIBULE_CORPUS") else {
        println!("SKIP no VESTIBULE_CORPUS: the collected reports are not there");
        return;
    };
    let collected = std::fs::read_to_string(Path::new(&corpus).join("BUGS.md")).unwrap();
    let document = document("FIELD-BUGS.md");
    let mut reports = 0;
    for section in collected.split("\n## ") {
        let kind = section.lines().next().unwrap_or_default().trim();
        if !["DHCP", "TFTP", "HTTP", "LLDP", "LOG", "EK"].contains(&kind) {
            continue;
        }
        for line in section.lines().filter_map(|line| line.strip_prefix("- ")) {
            let report = line.split('|').next().unwrap().trim();
            assert!(
                document.contains(&format!("| {report} |")),
                "{report} is missing"
            );
            reports += 1;
        }
    }
    println!("{reports} reports, each with a test");
    assert!(reports > 60, "only {reports} reports were read");
}

/// Rows 33 to 35 of the liars' suite: a test of that number for each of their lies.
#[test]
fn attacks_33_to_35_are_tests_of_that_number() {
    let text = document("THREAT-MODEL.md");
    let words = quoted(&text);
    for (row, lies) in ATTACKS {
        for lie in lies {
            let name = format!("::attack_{row}_");
            let named = words
                .iter()
                .any(|word| word.contains(&name) && word.contains(lie));
            assert!(named, "row {row}: no test about {lie}");
        }
    }
}

/// Words that the names of the tests hold.
const ATTACKS: [(u8, &[&str]); 3] = [
    (
        33,
        &["starvation", "decline_flood", "rogue_server", "malformed"],
    ),
    (
        34,
        &[
            "traversal",
            "symlink",
            "giant_tsize",
            "ack_storm",
            "spoofed_error",
            "amplification",
            "half_open",
        ],
    ),
    (
        35,
        &[
            "tls_1_2",
            "wrong_pin",
            "renegotiation",
            "slowloris",
            "100k_headers",
            "huge_body",
            "chunk_bombs",
            "smuggling",
        ],
    ),
];

/// A reference of the review is `file:line` and the name that stands there; lines move, names are
/// checked.
#[test]
fn every_name_in_the_review_exists() {
    let text = document("REVIEW.md");
    let words = quoted(&text);
    let (mut names, mut missing) = (0, Vec::new());
    for pair in words.windows(2) {
        let Some((file, line)) = pair[0].split_once(':') else {
            continue;
        };
        if !is_path(file) || line.parse::<u32>().is_err() {
            continue;
        }
        names += 1;
        let code = std::fs::read_to_string(root().join(file)).unwrap_or_default();
        if !code.contains(pair[1]) {
            missing.push(format!("{}: {}", pair[0], pair[1]));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(names > 30, "only {names} names: the document was not read");
}

#[test]
fn every_scenario_in_the_documents_exists() {
    let code = std::fs::read_to_string(root().join("tests/src/scenarios/mod.rs")).unwrap();
    for document in [document("THREAT-MODEL.md"), document("ARCHITECTURE.md")] {
        for word in quoted(&document) {
            if let Some(name) = word.strip_prefix("lab ") {
                assert!(code.contains(&format!("\"{name}\"")), "no scenario {name}");
            }
        }
    }
}

#[test]
fn the_walk_in_the_documents_is_that_of_the_code() {
    let text = document("ARCHITECTURE.md");
    for row in WALK {
        let step = serde_json::to_value(row.step).unwrap();
        let line = format!("\n| {} | ", step.as_str().unwrap());
        assert!(text.contains(&line), "ARCHITECTURE lacks {line:?}");
    }
}
