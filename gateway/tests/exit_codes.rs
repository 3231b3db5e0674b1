//! Exit codes of the real program, as docs/OPERATIONS.md lists them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn vestibule(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vestibule"))
        .args(args)
        .output()
        .expect("the program starts")
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[track_caller]
fn expect(args: &[&str], code: i32, text: &str) {
    let output = vestibule(args);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(said.contains(text), "{args:?}: {text:?} is not in {said}");
}

fn vector(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/config");
    path.join(name).to_string_lossy().into_owned()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A configuration whose files are in `dir`.
fn config(dir: &Path) -> PathBuf {
    let minimal = std::fs::read_to_string(vector("minimal.ok.toml")).expect("vector");
    let state = format!(
        "name = \"door-1\"\nstate_dir = \"{}\"",
        dir.join("state").display()
    );
    let path = dir.join("vestibule.toml");
    std::fs::write(&path, minimal.replace("name = \"door-1\"", &state)).expect("written");
    path
}

#[test]
fn usage() {
    expect(&["--help"], 0, "Usage");
    expect(&["--version"], 0, "vestibule");
    expect(&[], 2, "Usage");
    expect(&["frobnicate"], 2, "unrecognized");
    expect(&["machine", "approve", "m-1"], 2, "--compared");
}

#[test]
fn configuration_mistakes_are_all_listed() {
    let many = vector("many-at-once.toml");
    let output = vestibule(&["config", "check", "--config", &many]);
    assert_eq!(output.status.code(), Some(2));
    let said = said(&output);
    let expected = std::fs::read_to_string(vector("many-at-once.txt")).expect("vector");
    for line in expected.lines() {
        assert!(said.contains(line), "{line} is missing in {said}");
    }
    expect(
        &["config", "check", "--config", "/nonexistent.toml"],
        2,
        "cannot read /nonexistent.toml",
    );
}

#[test]
fn configuration_names_files_that_must_exist() {
    let dir = tempfile::tempdir().expect("dir");
    let config = text(&config(dir.path()));
    let check = ["config", "check", "--config", &config];
    expect(&check, 2, "image-key.pem");
    let mut without = check.to_vec();
    without.push("--without-images");
    expect(&without, 0, "ok: 0 declared machines");
    without.push("--json");
    expect(
        &without,
        0,
        "{\"ek_crls\":0,\"ek_roots\":0,\"machines\":0,\"ok\":true,\"warnings\":[]}",
    );
}

#[test]
fn a_class_that_the_policy_does_not_have_is_a_warning() {
    let dir = tempfile::tempdir().expect("dir");
    let path = config(dir.path());
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).expect("written");
        path
    };
    let inventory = file(
        "inventory.toml",
        "version = 1\n[[machine]]\nserial = \"ABC1\"\nclass = \"contrl\"\n",
    );
    let policy = file(
        "policy.toml",
        "version = 1\npreset = \"standard\"\n[[class]]\nname = \"control\"\n",
    );
    let with = format!(
        "file = \"{}\"\n[inventory]\nfile = \"{}\"\n",
        policy.display(),
        inventory.display()
    );
    let minimal = std::fs::read_to_string(&path).expect("read");
    let with = minimal.replace("preset = \"standard\"\n", &with);
    std::fs::write(&path, with).expect("written");
    let config = text(&path);
    let check = ["config", "check", "--without-images", "--config", &config];
    expect(
        &check,
        0,
        "warning: inventory: the policy has no class \"contrl\" (it has control, default), so its 1 machines are refused",
    );
    expect(&check, 0, "ok: 1 declared machines");
}

#[test]
fn ek_roots_are_listed_without_a_daemon() {
    let dir = tempfile::tempdir().expect("dir");
    let path = config(dir.path());
    let config = text(&path);
    let list = ["ek-ca", "list", "--config", &config];
    expect(&list, 0, "no EK roots");
    let roots = dir.path().join("roots");
    std::fs::create_dir(&roots).expect("folder");
    let key = rcgen::KeyPair::generate().expect("key");
    let mut params = rcgen::CertificateParams::default();
    let mut name = rcgen::DistinguishedName::new();
    name.push(rcgen::DnType::CommonName, "Vendor, Root");
    params.distinguished_name = name;
    params.not_after = rcgen::date_time_ymd(2020, 1, 2);
    let pem = params.self_signed(&key).expect("certificate").pem();
    std::fs::write(roots.join("vendor.pem"), pem).expect("written");
    let more = format!("[inventory]\nek_roots_dir = \"{}\"\n", roots.display());
    let with = std::fs::read_to_string(&path).expect("read") + "\n" + &more;
    std::fs::write(&path, with).expect("written");
    expect(&list, 0, "CN=Vendor\\, Root");
    expect(&list, 0, "issued by itself, expired 2020-01-02T00:00:00Z");
    let mut json = list.to_vec();
    json.push("--json");
    let output = vestibule(&json);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let cert = &value["certificates"][0];
    assert_eq!(cert["subject"], "CN=Vendor\\, Root");
    assert_eq!(cert["expiry"], "expired");
    assert_eq!(cert["sha256"].as_str().map(str::len), Some(64));
    let file = cert["file"].as_str().unwrap_or_default();
    assert!(file.ends_with("roots/vendor.pem"), "{cert}");
    std::fs::write(roots.join("broken.crt"), "nothing").expect("written");
    expect(&list, 2, "broken.crt");
}

#[test]
fn a_ledger_that_does_not_hold() {
    let dir = tempfile::tempdir().expect("dir");
    let ca = dir.path().join("ca.der");
    std::fs::write(&ca, [0x30, 0x00]).expect("written");
    let (ca, none) = (text(&ca), text(&dir.path().join("none")));
    expect(&["ledger", "verify", &none, "--ca", &ca], 5, "cannot read");
    let empty = text(dir.path());
    expect(&["ledger", "verify", &empty, "--ca", &ca], 1, "no segment");
    expect(
        &["ledger", "verify", &empty, "--ca", &none],
        2,
        "cannot read",
    );
}

#[test]
fn a_state_directory_that_cannot_be_used() {
    let dir = tempfile::tempdir().expect("dir");
    std::fs::write(dir.path().join("state"), "a file").expect("written");
    let config = text(&config(dir.path()));
    expect(&["store", "check", "--config", &config], 5, "state");
}

#[test]
fn an_appliance_that_does_not_answer() {
    let dir = tempfile::tempdir().expect("dir");
    let desk = text(dir.path());
    expect(&["machine", "list", "--desk", &desk], 2, "url");
    let key = rcgen::KeyPair::generate().expect("key");
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("params");
    let cert = params.self_signed(&key).expect("certificate").pem();
    for (name, pem) in [
        ("admin-ca.pem", &cert),
        ("owner.pem", &cert),
        ("owner.key", &key.serialize_pem()),
    ] {
        std::fs::write(dir.path().join(name), pem).expect("written");
    }
    // A port that was just free and has no listener.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let url = format!("https://{}", free.local_addr().expect("address"));
    drop(free);
    expect(
        &["machine", "list", "--desk", &desk, "--url", &url],
        6,
        "admin endpoint 127.0.0.1",
    );
    expect(
        &["machine", "list", "--desk", &desk, "--url", "http://x"],
        2,
        "expected https://",
    );
}
