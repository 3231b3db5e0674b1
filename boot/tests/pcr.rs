//! Predictions against recorded boots: real firmware, real iPXE, real stub (tests/vectors/eventlog/ORIGIN.md).

#![allow(clippy::unwrap_used, reason = "a test says what failed by panicking")]

use boot::catalog::{Artefact, Kind, Role};
use boot::measure::{Sha256Digest, pcr4};
use boot::predict::{BootPath, images, pcr4_of, pcr11_of};
use serde_json::Value;

fn recorded(name: &str) -> Value {
    let path = format!(
        "{}/../tests/vectors/eventlog/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn digest(value: &Value) -> Sha256Digest {
    hex::decode(value.as_str().unwrap())
        .unwrap()
        .try_into()
        .unwrap()
}

fn predicted_pcr4(record: &Value) -> Sha256Digest {
    let images: Vec<Sha256Digest> = record["images_in_pcr4"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| digest(&record[name.as_str().unwrap()]["pe_sha256"]))
        .collect();
    pcr4(&images)
}

#[test]
fn pcr4_of_each_boot_path() {
    for name in [
        "ovmf-sid-ipxe-uki",
        "ovmf-sid-ipxe-uki-stub262",
        "ovmf-sid-http-uki",
    ] {
        let record = recorded(name);
        assert_eq!(
            predicted_pcr4(&record),
            digest(&record["pcrs"]["4"]),
            "{name}"
        );
    }
}

/// The catalogue entry of a recorded image.
fn entry(record: &Value, key: &str, kind: Kind) -> Option<Artefact> {
    let text = |field: &str| record[key][field].as_str().map(str::to_owned);
    Some(Artefact {
        name: key.into(),
        kind,
        role: Role::Provision,
        arch: "x86_64".into(),
        version: 1,
        file: format!("{key}.efi"),
        sha256: "00".repeat(32),
        size_bytes: 1,
        pe_sha256: text("pe_sha256")?,
        linux_pe_sha256: text("linux_pe_sha256"),
        pcr11: text("pcr11"),
        cmdline: text("cmdline"),
    })
}

#[test]
fn a_catalogue_entry_is_predicted_for_the_path_that_was_taken() {
    for (name, path) in [
        ("ovmf-sid-ipxe-uki", BootPath::Pxe),
        ("ovmf-sid-ipxe-uki-stub262", BootPath::Pxe),
        ("ovmf-sid-http-uki", BootPath::Http),
    ] {
        let record = recorded(name);
        let uki = entry(&record, "uki", Kind::Uki).unwrap();
        let ipxe = entry(&record, "ipxe", Kind::Ipxe);
        for other in BootPath::ALL {
            // With the iPXE of another boot, where this one had none.
            let ipxe = ipxe.clone().unwrap_or(Artefact {
                pe_sha256: "11".repeat(32),
                ..uki.clone()
            });
            let predicted = pcr4_of(other, &uki, Some(&ipxe)).unwrap();
            let same = images(other, &uki, Some(&ipxe)).unwrap().len()
                == images(path, &uki, Some(&ipxe)).unwrap().len();
            let was = predicted == digest(&record["pcrs"]["4"]);
            assert_eq!(was, same, "{name} {}", other.name());
        }
        let (stub, phases) = pcr11_of(&uki).unwrap();
        assert_eq!(stub, digest(&record["pcrs"]["11"]), "{name}");
        assert!(phases.iter().all(|(_, value)| *value != stub));
    }
}

/// A boot option that was refused before leaves more actions in PCR 4: only the log can tell, a value cannot.
#[test]
fn rejects_to_predict_a_boot_that_had_another_try() {
    let record = recorded("ovmf-sid-refused-then-http");
    assert_ne!(predicted_pcr4(&record), digest(&record["pcrs"]["4"]));
}

/// The kernel inside the UKI is covered by PCR 11 and never seen in PCR 4; the stub measures before user space.
#[test]
fn pcr11_was_the_predicted_one_and_12_and_13_untouched() {
    for name in [
        "ovmf-sid-ipxe-uki",
        "ovmf-sid-ipxe-uki-stub262",
        "ovmf-sid-http-uki",
        "ovmf-sid-refused-then-http",
    ] {
        let record = recorded(name);
        assert_eq!(record["pcrs"]["11"], record["uki"]["pcr11"], "{name}");
        for pcr in ["12", "13"] {
            assert_eq!(digest(&record["pcrs"][pcr]), [0; 32], "{name} {pcr}");
        }
    }
}
