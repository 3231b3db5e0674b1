//! Each operator mistake is a file in `tests/vectors/config`, with the text the operator sees.

use std::path::{Path, PathBuf};

use gateway::config::{Config, LogFormat, PolicySource, Preset};

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/config")
}

#[test]
fn every_mistake_is_answered_with_its_text() {
    let mut checked = 0;
    let mut wrong = Vec::new();
    let mut files: Vec<PathBuf> = std::fs::read_dir(vectors())
        .expect("vectors")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "toml"))
        .collect();
    files.sort();
    for path in files {
        let text = std::fs::read_to_string(&path).expect("readable");
        let answer = match Config::parse(&text, Path::new("/etc/vestibule")) {
            Ok(_) => "ok\n".to_owned(),
            Err(list) => list.iter().map(|mistake| format!("{mistake}\n")).collect(),
        };
        let good = path.to_string_lossy().ends_with(".ok.toml");
        let expected = if good {
            "ok\n".to_owned()
        } else {
            std::fs::read_to_string(path.with_extension("txt")).unwrap_or_default()
        };
        if answer != expected {
            wrong.push(format!(
                "{}\n expected:\n{expected} found:\n{answer}",
                path.display()
            ));
        }
        checked += 1;
    }
    println!("{checked} config files checked");
    assert!(checked >= 25, "only {checked} vectors found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_example_is_valid_and_shows_the_defaults() {
    let text = include_str!("../config.example.toml");
    let example = Config::parse(text, Path::new("/etc/vestibule")).expect("the example is valid");
    let minimal = std::fs::read_to_string(vectors().join("minimal.ok.toml")).expect("readable");
    let minimal = Config::parse(&minimal, Path::new("/etc/vestibule")).expect("valid");
    assert_eq!(example.appliance, minimal.appliance);
    assert_eq!(example.provisioning.ports, minimal.provisioning.ports);
    assert_eq!(example.provisioning.tftp, minimal.provisioning.tftp);
    assert_eq!(example.provisioning.lldp, minimal.provisioning.lldp);
    assert_eq!(
        example.provisioning.http_boot,
        minimal.provisioning.http_boot
    );
    assert_eq!(
        example.provisioning.lease_secs,
        minimal.provisioning.lease_secs
    );
    assert_eq!(example.management.admin_port, 9443);
    assert_eq!(example.management.health_port, 9100);
    assert_eq!(example.ledger, minimal.ledger);
    assert_eq!(example.devid, minimal.devid);
    assert_eq!(example.log, minimal.log);
    assert_eq!(example.log.format, LogFormat::Text);
    assert_eq!(example.policy, PolicySource::Preset(Preset::Standard));
    assert_eq!(example.tpm, minimal.tpm);
    assert_eq!(
        minimal.boot.image_dir,
        Path::new("/etc/vestibule/images"),
        "relative to the file's folder"
    );
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(Path::new("/nonexistent/vestibule.toml")).expect_err("absent");
    assert_eq!(error.to_string(), "cannot read /nonexistent/vestibule.toml");
}
