//! `vestibule inspect dhcp6`, the real program, on every handed capture: each field that both have
//! must agree with a reference dissector.

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn lines(file: &Path) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_vestibule"))
        .args(["inspect", "dhcp6"])
        .arg(file)
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{}: {said}", file.display());
    let text = std::str::from_utf8(&output.stdout).expect("UTF-8");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// A value that is a list when there are several.
fn list(value: Option<&Value>) -> Vec<&Value> {
    match value {
        None => Vec::new(),
        Some(Value::Array(values)) => values.iter().collect(),
        Some(value) => vec![value],
    }
}

#[derive(Default)]
struct Agreement {
    fields: usize,
    differ: Vec<String>,
}

impl Agreement {
    /// One field; those that one side does not have are not counted.
    fn field(&mut self, subject: &str, name: &str, ours: &Value, theirs: Option<&Value>) {
        let ours = match ours {
            Value::Null => return,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let Some(theirs) = theirs.and_then(Value::as_str) else {
            return;
        };
        self.text(subject, name, &ours, theirs);
    }

    fn text(&mut self, subject: &str, name: &str, ours: &str, theirs: &str) {
        self.fields += 1;
        if ours != theirs {
            self.differ.push(format!(
                "{subject} {name}: we say {ours:?}, the dissector {theirs:?}"
            ));
        }
    }

    fn message(&mut self, subject: &str, line: &Value, theirs: &Value) {
        let mut inner = theirs;
        // Our `relays` are flat, the dissector's lie in each other.
        for relay in line["relays"].as_array().unwrap() {
            for (ours, name) in [
                ("message_type", "dhcpv6.msgtype"),
                ("hop_count", "dhcpv6.hopcount"),
                ("link_address", "dhcpv6.linkaddr"),
                ("peer_address", "dhcpv6.peeraddr"),
            ] {
                self.field(subject, ours, &relay[ours], inner.get(name));
            }
            let trees = list(inner.get("dhcpv6.option.type_str_tree"));
            for tree in &trees {
                let id = tree["dhcpv6.interface_id"].as_str();
                if let Some(id) = id {
                    let ours = relay["interface_id"].as_str().unwrap_or("absent");
                    self.text(subject, "interface_id", ours, &id.replace(':', ""));
                }
            }
            let carried = trees.iter().find_map(|tree| tree.get("dhcpv6"));
            inner = carried.unwrap_or_else(|| panic!("{subject}: no relayed message"));
        }
        self.field(
            subject,
            "message_type",
            &line["message_type"],
            inner.get("dhcpv6.msgtype"),
        );
        self.field(
            subject,
            "transaction_id",
            &line["transaction_id"],
            inner.get("dhcpv6.xid"),
        );
        let mut lengths: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for tree in list(inner.get("dhcpv6.option.type_str_tree")) {
            let code = tree["dhcpv6.option.type"].as_str().expect("a code");
            let len = tree["dhcpv6.option.length"].as_str().expect("a length");
            lengths.entry(code).or_default().push(len.parse().unwrap());
            self.option(subject, line, code, tree);
        }
        // Every option that they list, with the length of each of its values, and no other.
        let options = line["options"].as_object().unwrap();
        self.text(
            subject,
            "options{}",
            &options.len().to_string(),
            &lengths.len().to_string(),
        );
        for (code, theirs) in lengths {
            let ours = options.get(code).and_then(Value::as_str);
            let ours = ours.map_or(Vec::new(), |text| {
                text.split(',').map(|value| value.len() / 2).collect()
            });
            self.text(
                subject,
                "options{}",
                &format!("{ours:?}"),
                &format!("{theirs:?}"),
            );
        }
    }

    fn option(&mut self, subject: &str, line: &Value, code: &str, tree: &Value) {
        let plain = |name: &str| tree[name].as_str().map(|text| text.replace(':', ""));
        let list_of = |ours: &Value| -> Vec<String> {
            let numbers = ours.as_array().into_iter().flatten();
            numbers.map(ToString::to_string).collect()
        };
        match code {
            "1" | "2" => {
                let name = if code == "1" {
                    "client_duid"
                } else {
                    "server_duid"
                };
                let theirs = plain("dhcpv6.duid.bytes").map(Value::String);
                self.field(subject, name, &line[name], theirs.as_ref());
            }
            "3" | "4" => {
                let name = if code == "3" {
                    "dhcpv6.iaid"
                } else {
                    "dhcpv6.iata"
                };
                let ia = &line["identity_associations"][0];
                self.field(subject, "iaid", &ia["iaid"], tree.get(name));
                let inner = list(tree.get("dhcpv6.option.type_str_tree"));
                let addr = inner.iter().find(|t| t["dhcpv6.option.type"] == "5");
                for (ours, name) in [
                    ("address", "dhcpv6.iaaddr.ip"),
                    ("preferred_secs", "dhcpv6.iaaddr.pref_lifetime"),
                    ("valid_secs", "dhcpv6.iaaddr.valid_lifetime"),
                ] {
                    let theirs = addr.and_then(|tree| tree.get(name));
                    self.field(subject, ours, &ia["addresses"][0][ours], theirs);
                }
            }
            "6" => {
                let theirs = list(tree.get("dhcpv6.requested_option_code"));
                let theirs: Vec<_> = theirs.iter().filter_map(|v| v.as_str()).collect();
                let ours = list_of(&line["requested_options"]);
                self.text(
                    subject,
                    "requested_options",
                    &ours.join(" "),
                    &theirs.join(" "),
                );
            }
            "8" => {
                let theirs = tree.get("dhcpv6.elapsed_time");
                self.field(subject, "elapsed_ms", &line["elapsed_ms"], theirs);
            }
            "16" => {
                let (number, data) = ("dhcpv6.vendorclass.enterprise", "dhcpv6.vendorclass.data");
                self.field(
                    subject,
                    number,
                    &line["vendor_enterprise"],
                    tree.get(number),
                );
                self.field(subject, data, &line["vendor_class"], tree.get(data));
            }
            _ => {}
        }
    }
}

#[test]
fn dhcp6_agrees_with_the_dissector() {
    let Some(root) = std::env::var_os("VESTIBULE_CORPUS").map(PathBuf::from) else {
        println!("SKIP VESTIBULE_CORPUS is not set");
        return;
    };
    let mut agreement = Agreement::default();
    let (mut files, mut frames, mut others, mut asked) = (0, 0, 0, 0);
    for entry in std::fs::read_dir(root.join("dhcp")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let expected = std::fs::read(root.join(format!("expected/dhcp__{name}.json"))).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let packets = expected["packets"].as_array().unwrap();
        if !packets.iter().any(|packet| packet.get("dhcpv6").is_some()) {
            continue;
        }
        files += 1;
        for (line, packet) in lines(&path).iter().zip(packets) {
            let subject = format!("{name} frame {}", line["frame"]);
            let Some(theirs) = packet.get("dhcpv6") else {
                others += 1;
                assert_eq!(line["ok"], false, "{subject} is no DHCPv6: {line}");
                continue;
            };
            frames += 1;
            // A class without its length is a note here: the server reads and answers it.
            assert_eq!(line["ok"], true, "{subject}: {}", line["error"]);
            agreement.message(&subject, line, theirs);
            match line["message_type"].as_u64() {
                Some(1 | 3 | 4 | 5 | 6 | 8 | 9 | 11) => {
                    asked += 1;
                    assert_eq!(line["would_reply"], true, "{subject}: {}", line["refused"]);
                }
                _ => {
                    assert_eq!(line["would_reply"], false, "{subject}");
                    assert_eq!(line["refused"]["code"], "dhcp6.not_a_request", "{subject}");
                }
            }
        }
    }
    println!(
        "files {files} frames {frames} fields {} asked {asked} other frames {others}",
        agreement.fields
    );
    assert!(
        agreement.differ.is_empty(),
        "{}",
        agreement.differ.join("\n")
    );
    assert!(files >= 11 && frames >= 32 && agreement.fields >= 450 && asked >= 20);
}
