//! Machine configs of Talos' own tests: the YAML reader finds the documents that another reader found, and
//! the document rules take every config that Talos takes.
//!
//! Reads the folder named by `VESTIBULE_CORPUS`; without it the test prints `SKIP` and passes.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use gateway_core::talos::{render, yaml};
use serde_json::Value;

#[test]
fn documents_of_talos_own_test_files() {
    let Some(root) = std::env::var_os("VESTIBULE_CORPUS") else {
        println!("SKIP VESTIBULE_CORPUS is not set");
        return;
    };
    let root = Path::new(&root);
    let (mut read, mut wrong) = (0, Vec::new());
    for entry in std::fs::read_dir(root.join("expected")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("talos__") {
            continue;
        }
        let expected: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        if expected["yaml_ok"] != true {
            continue;
        }
        let bytes = std::fs::read(root.join(expected["file"].as_str().unwrap())).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let found = match yaml::documents(&text) {
            Ok(found) => found,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let wanted: Vec<&Value> = expected["documents"]
            .as_array()
            .into_iter()
            .flatten()
            .collect();
        for key in ["apiVersion", "kind", "version", "name"] {
            let said = found
                .iter()
                .map(|d| d.value.get(key).cloned().unwrap_or(Value::Null));
            let said: Vec<Value> = said.collect();
            let other: Vec<Value> = wanted.iter().map(|d| d[key].clone()).collect();
            if said != other {
                wrong.push(format!("{name}: {key}: {said:?}, another reader {other:?}"));
            }
        }
        // Lists of arguments are parts of a config.
        if expected["subkind"] == "valid"
            && !name.contains("types_meta_args")
            && let Err(errors) = render::check_documents(&found)
        {
            wrong.push(format!("{name}: {}", errors[0]));
        }
        read += 1;
    }
    println!("{read} files read");
    assert!(read > 100, "only {read} files");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
