//! `vestibule inspect`, the real program: every handed capture against what a reference dissector
//! says of it, and damaged captures, which may give errors and never a panic.

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

#[path = "inspect/agreement.rs"]
mod agreement;
#[path = "inspect/ek.rs"]
mod ek;
#[path = "inspect/eventlog.rs"]
mod eventlog;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use agreement::Agreement;
use gateway::inspect::{Protocol, inspect};
use serde_json::Value;

fn vestibule(kind: &str, file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vestibule"))
        .args(["inspect", kind])
        .arg(file)
        .output()
        .expect("the program starts")
}

fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).expect("UTF-8");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// The handed field files; `None` without them.
fn corpus(kind: &str) -> Option<Vec<PathBuf>> {
    let Some(root) = std::env::var_os("VESTIBULE_CORPUS").map(PathBuf::from) else {
        println!("SKIP VESTIBULE_CORPUS is not set");
        return None;
    };
    let files = std::fs::read_dir(root.join(kind)).expect("the corpus has this kind");
    let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no {kind} files in the corpus");
    Some(files)
}

/// Compares all files of a kind. The least counts keep the test from passing on nothing.
fn agrees(kind: &'static str, least_files: usize, least_frames: usize, least_fields: usize) {
    let Some(files) = corpus(kind) else {
        return;
    };
    let mut agreement = Agreement::new(kind);
    for path in &files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let expected = path.parent().unwrap().with_file_name("expected");
        let expected = std::fs::read(expected.join(format!("{kind}__{name}.json"))).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let output = vestibule(kind, path);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{name}: {said}");
        agreement.file(&name, &lines(&output), &expected);
    }
    agreement.finish(least_files, least_frames, least_fields);
}

#[test]
fn lldp_agrees_with_the_dissector() {
    agrees("lldp", 17, 20, 450);
}

#[test]
fn dhcp_agrees_with_the_dissector() {
    agrees("dhcp", 37, 360, 7000);
}

#[test]
fn tftp_agrees_with_the_dissector() {
    agrees("tftp", 8, 280, 600);
}

/// Which server would answer what: every DISCOVER and every REQUEST of the field is answered by a
/// server that serves everybody, no reply of a server is.
#[test]
fn the_permissive_server_answers_what_clients_ask() {
    let Some(files) = corpus("dhcp") else {
        return;
    };
    let (mut asked, mut silent) = (0, 0);
    for path in files {
        for line in lines(&vestibule("dhcp", &path)) {
            let subject = format!("{} {line}", path.display());
            match (
                line["ok"].as_bool(),
                line["op"].as_u64(),
                line["message_type"].as_u64(),
            ) {
                (Some(true), Some(1), Some(1 | 3)) => {
                    asked += 1;
                    assert_eq!(line["would_reply"], true, "{subject}");
                    let want = if line["message_type"] == 1 { 2 } else { 5 };
                    assert_eq!(line["reply"]["message_type"], want, "{subject}");
                }
                (_, Some(2), _) => {
                    silent += 1;
                    assert_eq!(line["would_reply"], false, "{subject}");
                    assert_eq!(line["refused"]["code"], "dhcp.not_a_request", "{subject}");
                }
                _ => {}
            }
        }
    }
    println!("asked {asked} silent {silent}");
    assert!(
        asked >= 100 && silent >= 300,
        "asked {asked} silent {silent}"
    );
}

/// A pcap file of Ethernet frames.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    out.extend_from_slice(&[0, 0, 4, 0, 1, 0, 0, 0]);
    for frame in frames {
        let len = (frame.len() as u32).to_le_bytes();
        out.extend_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
        out.extend_from_slice(&len);
        out.extend_from_slice(&len);
        out.extend_from_slice(frame);
    }
    out
}

/// A UDP datagram in an Ethernet frame.
fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff; 6];
    out.extend_from_slice(&[2, 0, 0, 0, 0, 1, 0x08, 0x00, 0x45, 0]);
    out.extend_from_slice(&(payload.len() as u16 + 28).to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    out.extend_from_slice(&from.to_be_bytes());
    out.extend_from_slice(&to.to_be_bytes());
    out.extend_from_slice(&(payload.len() as u16 + 8).to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(payload);
    out
}

fn vector(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/vectors")
        .join(name);
    let text = std::fs::read_to_string(&path).expect("vector");
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    hex::decode(digits.split_whitespace().collect::<String>()).expect("hex")
}

/// Captures that are always there, by kind: recorded firmware, lldpd.
fn built_in() -> Vec<(&'static str, Vec<u8>)> {
    let dhcp = [
        "ovmf-2022.11-pxe-discover",
        "ovmf-2022.11-pxe-offer",
        "ipxe-2019-x64-request",
    ];
    let dhcp = dhcp.map(|name| udp(68, 67, &vector(&format!("dhcp/{name}.hex"))));
    let tftp = [
        "ovmf-2022.11-load-rrq",
        "ovmf-2022.11-load-oack",
        "ovmf-2022.11-probe-error",
    ];
    let tftp = tftp.map(|name| udp(2000, 69, &vector(&format!("tftp/{name}.hex"))));
    let lldp = vec![vector("lldp/lldpd-1.0.16.hex")];
    vec![
        ("dhcp", pcap(&dhcp)),
        ("tftp", pcap(&tftp)),
        ("lldp", pcap(&lldp)),
    ]
}

/// Small and repeatable; what is random here need not be good.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }

    /// Flips, sets and cuts.
    fn damage(&mut self, file: &[u8]) -> Vec<u8> {
        let mut file = file.to_vec();
        for _ in 0..=self.below(8) {
            let at = self.below(file.len());
            match self.below(4) {
                0 => file[at] ^= 1 << self.below(8),
                1 => file[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                2 => file[at] = self.below(256) as u8,
                _ => {
                    let end = at + self.below(16);
                    file.splice(at..end.min(file.len()), std::iter::empty());
                }
            }
            if file.is_empty() {
                break;
            }
        }
        file
    }
}

fn protocol(kind: &str) -> Protocol {
    match kind {
        "dhcp" => Protocol::Dhcp,
        "tftp" => Protocol::Tftp,
        "lldp" => Protocol::Lldp,
        other => panic!("no protocol {other}"),
    }
}

#[test]
fn damaged_captures_give_errors_and_never_a_panic() {
    let mut captures = built_in();
    for kind in ["dhcp", "tftp", "lldp"] {
        for path in corpus(kind).unwrap_or_default() {
            captures.push((kind, std::fs::read(path).unwrap()));
        }
    }
    let mut random = Random(0x5eed_0b5e_55ed_cafe);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.pcap");
    let (mut in_process, mut programs, mut refused) = (0, 0, 0);
    for (kind, capture) in &captures {
        // Large captures repeat themselves; their start has every form.
        let capture = &capture[..capture.len().min(16_384)];
        for round in 0..200 {
            let damaged = random.damage(capture);
            for kind in ["dhcp", "tftp", "lldp"] {
                let mut frames = 0;
                let result = inspect(protocol(kind), &damaged, &mut |line| {
                    let line: Value = serde_json::from_str(&line).expect("JSON");
                    frames += 1;
                    assert_eq!(line["frame"], frames, "{line}");
                    let fine = line["ok"] == true;
                    assert!(fine || line["error"]["code"].is_string(), "{line}");
                    true
                });
                in_process += 1;
                refused += usize::from(result.is_err());
                assert!(result.is_ok() || frames > 0, "a refusal is a line as well");
            }
            if round % 50 == 0 {
                std::fs::write(&path, &damaged).unwrap();
                let output = vestibule(kind, &path);
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(
                    matches!(output.status.code(), Some(0 | 1)),
                    "{:?}: {said}",
                    output.status
                );
                assert_eq!(output.status.success(), said.is_empty(), "{said}");
                programs += 1;
            }
        }
    }
    println!(
        "captures {} in process {in_process} programs {programs} refused {refused}",
        captures.len()
    );
    assert!(in_process >= 1800 && programs >= 12 && refused > 100);
}

#[test]
fn exit_codes_and_what_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let (_, dhcp) = built_in().remove(0);
    let cut = write("cut.pcap", &dhcp[..dhcp.len() - 3]);
    let output = vestibule("dhcp", &cut);
    assert_eq!(output.status.code(), Some(1));
    let read = lines(&output);
    assert_eq!(read.len(), 3, "two whole frames and the damage");
    assert_eq!(
        (&read[0]["ok"], &read[1]["ok"]),
        (&true.into(), &true.into())
    );
    assert_eq!(read[2]["error"]["code"], "capture.truncated");
    assert_eq!(read[2]["frame"], 3);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in ["capture.truncated", "expected", "at offset", "next:"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let text = write("notes.txt", b"no capture at all");
    let output = vestibule("lldp", &text);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(lines(&output)[0]["error"]["code"], "capture.format");
    let absent = vestibule("tftp", &folder.path().join("absent"));
    assert_eq!(absent.status.code(), Some(2));
    let whole = write("whole.pcap", &dhcp);
    let output = vestibule("tftp", &whole);
    assert_eq!(
        output.status.code(),
        Some(0),
        "another protocol is no fault of the file"
    );
    let codes: Vec<_> = lines(&output)
        .iter()
        .map(|l| l["error"]["code"].clone())
        .collect();
    assert_eq!(codes, ["tftp.not_tftp"; 3]);
}
