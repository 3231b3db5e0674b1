//! The three rings, read from `cargo metadata` and said in words: cores decide and touch nothing,
//! devices block, one shell has the runtime. One provider of cryptography for TLS.

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Packages that decide. They get bytes, time and randomness as arguments.
const CORES: &[&str] = &["netstack", "attest-wire", "boot", "gateway-core"];
/// What a core must not reach, however far down.
const WORLD: &[&str] = &[
    "tokio",
    "hyper",
    "rustls",
    "tss-esapi",
    "sled",
    "nix",
    "pnet_datalink",
    "socket2",
    "tracing-subscriber",
];
/// Which packages of the workspace a package may depend on, tests aside.
const ARROWS: &[(&str, &[&str])] = &[
    ("netstack", &[]),
    ("attest-wire", &[]),
    ("boot", &[]),
    ("gateway-core", &["netstack", "boot", "attest-wire"]),
    ("store", &["gateway-core", "attest-wire"]),
    ("hw", &["attest-wire"]),
    ("attester", &["hw", "attest-wire", "netstack", "boot"]),
    ("boot-image", &["boot"]),
    (
        "gateway",
        &[
            "gateway-core",
            "store",
            "hw",
            "netstack",
            "boot",
            "attest-wire",
        ],
    ),
    ("xtask", &[]),
];

struct Graph {
    /// Package name by id.
    names: BTreeMap<String, String>,
    /// Ids of normal and build dependencies by id.
    edges: BTreeMap<String, Vec<String>>,
    /// Members of the workspace: id by name.
    members: BTreeMap<String, String>,
}

impl Graph {
    fn read() -> Self {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked"])
            .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let names: BTreeMap<_, _> = metadata["packages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| (text(&p["id"]), text(&p["name"])))
            .collect();
        let members = metadata["workspace_members"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| (names[&text(id)].clone(), text(id)))
            .collect();
        let edges = metadata["resolve"]["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| {
                let deps = node["deps"].as_array().unwrap().iter();
                let used = deps.filter(|dep| {
                    dep["dep_kinds"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .any(|kind| kind["kind"] != "dev")
                });
                (
                    text(&node["id"]),
                    used.map(|dep| text(&dep["pkg"])).collect(),
                )
            })
            .collect();
        Self {
            names,
            edges,
            members,
        }
    }

    fn direct(&self, package: &str) -> BTreeSet<&str> {
        self.edges[&self.members[package]]
            .iter()
            .map(|id| self.names[id].as_str())
            .collect()
    }

    /// Everything below a package, with the path by which it is reached.
    fn reach(&self, package: &str) -> BTreeMap<&str, String> {
        let start = &self.members[package];
        let mut seen = BTreeMap::new();
        let mut open = vec![(start, package.to_owned())];
        while let Some((id, path)) = open.pop() {
            for next in &self.edges[id] {
                let name = self.names[next].as_str();
                if !seen.contains_key(name) {
                    let path = format!("{path} -> {name}");
                    seen.insert(name, path.clone());
                    open.push((next, path));
                }
            }
        }
        seen
    }
}

#[test]
fn a_core_reaches_no_runtime_no_device_and_no_database() {
    let graph = Graph::read();
    for core in CORES {
        let reach = graph.reach(core);
        for world in WORLD {
            assert!(
                !reach.contains_key(world),
                "{core} must stay pure, but {}",
                reach[world]
            );
        }
    }
}

#[test]
fn only_the_shell_has_the_runtime() {
    let graph = Graph::read();
    for package in ["hw", "store", "attester", "boot-image"] {
        let reach = graph.reach(package);
        for runtime in ["tokio", "hyper"] {
            assert!(
                !reach.contains_key(runtime),
                "{package} blocks and has no runtime, but {}",
                reach[runtime]
            );
        }
    }
}

#[test]
fn arrows_between_our_packages_are_the_allowed_ones() {
    let graph = Graph::read();
    for (package, allowed) in ARROWS {
        let ours: BTreeSet<&str> = graph
            .direct(package)
            .into_iter()
            .filter(|name| graph.members.contains_key(*name))
            .collect();
        for found in ours {
            assert!(
                allowed.contains(&found),
                "{package} may use {allowed:?} of ours, found {found}"
            );
        }
    }
    let listed: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    for member in graph.members.keys() {
        assert!(
            member == "lab" || listed.contains(member.as_str()),
            "{member} has no line in ARROWS"
        );
    }
}

#[test]
fn xtask_builds_without_a_native_library() {
    let graph = Graph::read();
    let native: Vec<_> = graph
        .reach("xtask")
        .into_keys()
        .filter(|name| name.ends_with("-sys"))
        .collect();
    assert!(native.is_empty(), "xtask reaches {native:?}");
}

/// `cargo metadata` also shows what a feature merely names (`ring?/alloc`); `cargo tree` shows what
/// is built.
#[test]
fn one_provider_of_cryptography() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--workspace", "--locked", "-e", "normal,build"])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(["--target", "x86_64-unknown-linux-gnu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let built: BTreeSet<&str> = text.lines().filter_map(|l| l.split(' ').next()).collect();
    assert!(built.contains("aws-lc-rs"));
    for other in ["ring", "openssl-sys", "native-tls", "mbedtls"] {
        assert!(
            !built.contains(other),
            "aws-lc-rs is the one provider, but {other} is built"
        );
    }
}
