//! A machine config against the JSON Schema that Talos publishes for its release (`config.schema.json`,
//! draft 2020-12): structure, not sense. The file is the operator's; none ships with the gateway.
//!
//! This is the part of JSON Schema that the file uses. A schema with any other keyword is refused: a check
//! that skips what it does not know would call wrong configs right. The ready-made validators bring the
//! whole of `regex`, which this workspace replaces by three names (docs/adr/0005), so `pattern` is
//! `regex-lite`, whose `\d` is ASCII as in ECMA 262.

use std::collections::HashMap;

use regex_lite::Regex;
use serde_json::{Map, Value};

/// Largest schema, in bytes: that of Talos 1.14 has 470 kB.
pub const SCHEMA_MAX_BYTES: usize = 4 * 1024 * 1024;
/// Most violations that are told of one document.
const VIOLATIONS_MAX: usize = 16;
/// Longest chain of `$ref` and `oneOf` at one place, so that a schema which refers to itself ends.
const CHAIN_MAX: usize = 64;

/// Keywords that say nothing about validity.
const NOTES: [&str; 9] = [
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "markdownDescription",
    "default",
    "examples",
    "deprecated",
];

/// One thing that is wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Violation {
    /// Where: a JSON Pointer (RFC 6901).
    pub pointer: String,
    /// What the schema wants there.
    pub expected: String,
    /// What is there; texts are not shown, they may be secrets.
    pub found: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = if self.pointer.is_empty() {
            "/"
        } else {
            &self.pointer
        };
        write!(f, "{at}: expected {}, found {}", self.expected, self.found)
    }
}

/// A schema that was read.
pub struct Schema {
    root: Value,
    patterns: HashMap<String, Regex>,
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Schema({} patterns)", self.patterns.len())
    }
}

impl Schema {
    /// Reads a schema and checks that all of it is understood.
    ///
    /// # Errors
    /// One line: not JSON, a keyword or reference that is not known, a pattern that does not compile.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > SCHEMA_MAX_BYTES {
            return Err(format!(
                "expected at most {SCHEMA_MAX_BYTES} bytes, found {}",
                text.len()
            ));
        }
        let root: Value = serde_json::from_slice(text)
            .map_err(|error| format!("expected JSON, found {error}"))?;
        let mut patterns = HashMap::new();
        understood(&root, &root, "#", &mut patterns)?;
        Ok(Self { root, patterns })
    }

    /// What is wrong with one document. A key whose value is null is a key that is left out, as Talos
    /// reads it.
    pub fn validate(&self, document: &Value) -> Vec<Violation> {
        let mut found = Vec::new();
        self.check(&self.root, document, "", 0, &mut found);
        found.truncate(VIOLATIONS_MAX);
        found
    }

    fn check(
        &self,
        schema: &Value,
        value: &Value,
        at: &str,
        chain: usize,
        out: &mut Vec<Violation>,
    ) {
        let Some(schema) = schema.as_object() else {
            if schema == &Value::Bool(false) {
                out.push(violation(at, "nothing here", kind(value)));
            }
            return;
        };
        if chain > CHAIN_MAX {
            out.push(violation(
                at,
                "a schema that ends",
                "one that refers to itself",
            ));
            return;
        }
        if let Some(target) = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|name| self.target(name))
        {
            self.check(target, value, at, chain + 1, out);
        }
        if let Some(branches) = schema.get("oneOf").and_then(Value::as_array) {
            self.one_of(branches, value, at, chain + 1, out);
        }
        self.check_value(schema, value, at, out);
        match value {
            Value::Object(map) => self.check_object(schema, map, at, out),
            Value::Array(items) => {
                if let Some(each) = schema.get("items") {
                    for (n, item) in items.iter().enumerate() {
                        self.check(each, item, &format!("{at}/{n}"), 0, out);
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn check_value(
        &self,
        schema: &Map<String, Value>,
        value: &Value,
        at: &str,
        out: &mut Vec<Violation>,
    ) {
        if let Some(wanted) = schema.get("type").and_then(Value::as_str)
            && !is_type(wanted, value)
        {
            out.push(violation(at, wanted, kind(value)));
        }
        if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
            && !allowed.contains(value)
        {
            let names: Vec<String> = allowed.iter().take(12).map(shown).collect();
            out.push(violation(at, names.join(" or "), kind(value)));
        }
        if let (Some(pattern), Value::String(text)) =
            (schema.get("pattern").and_then(Value::as_str), value)
            && self
                .patterns
                .get(pattern)
                .is_some_and(|regex| !regex.is_match(text))
        {
            out.push(violation(at, format!("a text like {pattern}"), kind(value)));
        }
        if let Value::Number(number) = value {
            let number = number.as_f64().unwrap_or(f64::NAN);
            let bound = |key| schema.get(key).and_then(Value::as_f64);
            if bound("minimum").is_some_and(|min| number < min)
                || bound("maximum").is_some_and(|max| number > max)
            {
                let (min, max) = (bound("minimum"), bound("maximum"));
                let low = min.map_or(String::new(), |min| format!("at least {min} "));
                let high = max.map_or(String::new(), |max| format!("at most {max}"));
                out.push(violation(
                    at,
                    format!("{low}{high}").trim_end(),
                    number.to_string(),
                ));
            }
        }
        if let (Some(min), Value::Array(items)) =
            (schema.get("minItems").and_then(Value::as_u64), value)
            && (items.len() as u64) < min
        {
            out.push(violation(
                at,
                format!("at least {min} entries"),
                items.len().to_string(),
            ));
        }
    }

    fn check_object(
        &self,
        schema: &Map<String, Value>,
        map: &Map<String, Value>,
        at: &str,
        out: &mut Vec<Violation>,
    ) {
        let present = |key: &str| map.get(key).is_some_and(|value| !value.is_null());
        for key in schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            if let Some(key) = key.as_str().filter(|key| !present(key)) {
                out.push(violation(&below(at, key), format!("the key {key}"), "none"));
            }
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let by_pattern = schema.get("patternProperties").and_then(Value::as_object);
        for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
            let path = below(at, key);
            let mut known = false;
            if let Some(part) = properties.and_then(|all| all.get(key)) {
                known = true;
                self.check(part, value, &path, 0, out);
            }
            for (pattern, part) in by_pattern.into_iter().flatten() {
                if self
                    .patterns
                    .get(pattern)
                    .is_some_and(|regex| regex.is_match(key))
                {
                    known = true;
                    self.check(part, value, &path, 0, out);
                }
            }
            match schema.get("additionalProperties").filter(|_| !known) {
                Some(Value::Bool(false)) => {
                    out.push(violation(
                        &path,
                        "a key of the schema",
                        "one that it does not have",
                    ));
                }
                Some(part) => self.check(part, value, &path, 0, out),
                None => {}
            }
        }
    }

    /// Exactly one branch. When none fits, the one whose `kind` and `apiVersion` fit is told, else the
    /// one with the fewest violations.
    fn one_of(
        &self,
        branches: &[Value],
        value: &Value,
        at: &str,
        chain: usize,
        out: &mut Vec<Violation>,
    ) {
        let results: Vec<Vec<Violation>> = branches
            .iter()
            .map(|branch| {
                let mut found = Vec::new();
                self.check(branch, value, at, chain, &mut found);
                found
            })
            .collect();
        match results.iter().filter(|found| found.is_empty()).count() {
            1 => return,
            0 => {}
            many => {
                let found = format!("{many} that fit");
                return out.push(violation(at, "exactly one form of the schema", found));
            }
        }
        let named = [below(at, "kind"), below(at, "apiVersion")];
        let fits = |found: &&Vec<Violation>| found.iter().all(|v| !named.contains(&v.pointer));
        let own: Vec<&Vec<Violation>> = results.iter().filter(fits).collect();
        match own.as_slice() {
            [only] => out.extend(only.iter().cloned()),
            [] => {
                let kind = value.get("kind").and_then(Value::as_str).unwrap_or("none");
                let kind: String = kind.chars().filter(|c| !c.is_control()).take(64).collect();
                out.push(violation(
                    &named[0],
                    "a kind and apiVersion of the schema",
                    kind,
                ));
            }
            several => {
                let fewest = several.iter().min_by_key(|found| found.len());
                out.extend(fewest.into_iter().flat_map(|found| found.iter().cloned()));
            }
        }
    }

    fn target(&self, reference: &str) -> Option<&Value> {
        self.root.pointer(reference.strip_prefix('#')?)
    }
}

fn understood(
    root: &Value,
    schema: &Value,
    at: &str,
    patterns: &mut HashMap<String, Regex>,
) -> Result<(), String> {
    let wrong =
        |expected: &str, found: &str| Err(format!("{at}: expected {expected}, found {found}"));
    let map = match schema {
        Value::Object(map) => map,
        Value::Bool(_) => return Ok(()),
        other => return wrong("a schema", kind(other)),
    };
    let mut compile = |pattern: &str| match Regex::new(pattern) {
        Ok(regex) => {
            patterns.insert(pattern.to_owned(), regex);
            Ok(())
        }
        Err(error) => Err(format!("{at}: expected a pattern, found {error}")),
    };
    if let Some(pattern) = map.get("pattern") {
        compile(pattern.as_str().unwrap_or("("))?;
    }
    for pattern in map
        .get("patternProperties")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::keys)
    {
        compile(pattern)?;
    }
    for (key, value) in map {
        let here = format!("{at}/{key}");
        match (key.as_str(), value) {
            ("properties" | "patternProperties" | "$defs", Value::Object(parts)) => {
                for (name, part) in parts {
                    understood(root, part, &format!("{here}/{name}"), patterns)?;
                }
            }
            ("oneOf", Value::Array(parts)) => {
                for (n, part) in parts.iter().enumerate() {
                    understood(root, part, &format!("{here}/{n}"), patterns)?;
                }
            }
            ("items" | "additionalProperties", part) => understood(root, part, &here, patterns)?,
            ("$ref", Value::String(name)) => {
                let known = name
                    .strip_prefix('#')
                    .is_some_and(|path| root.pointer(path).is_some());
                if !known {
                    return wrong("a reference into this file", name);
                }
            }
            ("type", Value::String(_)) | ("enum" | "required", Value::Array(_)) => {}
            ("minimum" | "maximum" | "minItems", Value::Number(_))
            | ("pattern", Value::String(_)) => {}
            (note, _) if NOTES.contains(&note) || note.starts_with("x-") => {}
            (other, _) => return wrong("a keyword of Talos' schema in its form", other),
        }
    }
    Ok(())
}

fn violation(at: &str, expected: impl Into<String>, found: impl Into<String>) -> Violation {
    Violation {
        pointer: at.to_owned(),
        expected: expected.into(),
        found: found.into(),
    }
}

fn below(at: &str, key: &str) -> String {
    format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"))
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
        }
        _ => false,
    }
}

/// What kind of value it is; its text is not told.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "another true or false, or one where none belongs",
        Value::Number(_) => "a number",
        Value::String(_) => "another text, or a text where none belongs",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The shape of Talos' own file in small: documents by `kind`, and the one config without.
    fn small() -> Value {
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "x",
            "$defs": {
                "Config": {"type": "object", "additionalProperties": false, "properties": {
                    "version": {"enum": ["v1alpha1"]},
                    "machine": {"$ref": "#/$defs/Machine"}}},
                "Machine": {"type": "object", "additionalProperties": false, "title": "t", "x-note": 1, "properties": {
                    "type": {"enum": ["controlplane", "worker"]},
                    "labels": {"type": "object", "patternProperties": {".*": {"type": "string"}}},
                    "ports": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1, "maximum": 65535}}}},
                "Roots": {"type": "object", "additionalProperties": false, "required": ["apiVersion", "kind", "name"],
                    "properties": {"apiVersion": {"enum": ["v1alpha1"]}, "kind": {"enum": ["Roots"]},
                        "name": {"type": "string", "pattern": "^[a-z]+$"}}},
                "Other": {"type": "object", "required": ["apiVersion", "kind"], "additionalProperties": false,
                    "properties": {"apiVersion": {"enum": ["v1alpha1"]}, "kind": {"enum": ["Other"]}}},
            },
            "oneOf": [{"$ref": "#/$defs/Config"}, {"$ref": "#/$defs/Roots"}, {"$ref": "#/$defs/Other"}],
        })
    }

    fn schema() -> Schema {
        Schema::parse(small().to_string().as_bytes()).expect("understood")
    }

    #[test]
    fn takes_documents_of_every_kind() {
        let schema = schema();
        for good in [
            json!({"version": "v1alpha1", "machine": {"type": "worker", "labels": {"a/b": "c"}, "ports": [1]}}),
            json!({"version": "v1alpha1", "machine": null}),
            json!({"apiVersion": "v1alpha1", "kind": "Roots", "name": "lab"}),
            json!({"apiVersion": "v1alpha1", "kind": "Other"}),
        ] {
            assert_eq!(schema.validate(&good), [], "{good}");
        }
    }

    #[test]
    fn rejects_with_pointer_expected_and_found() {
        let schema = schema();
        for (bad, pointer, expected) in [
            (
                json!({"version": "v1alpha1", "machine": {"type": "boss"}}),
                "/machine/type",
                "controlplane or worker",
            ),
            (
                json!({"version": "v1alpha1", "machin": {}}),
                "/machin",
                "a key of the schema",
            ),
            (
                json!({"version": "v1alpha1", "machine": []}),
                "/machine",
                "object",
            ),
            (
                json!({"version": "v1alpha1", "machine": {"labels": {"a/b": 1}}}),
                "/machine/labels/a~1b",
                "string",
            ),
            (
                json!({"version": "v1alpha1", "machine": {"ports": []}}),
                "/machine/ports",
                "at least 1 entries",
            ),
            (
                json!({"version": "v1alpha1", "machine": {"ports": [70000]}}),
                "/machine/ports/0",
                "at least 1 at most 65535",
            ),
            (
                json!({"version": "v1alpha1", "machine": {"ports": ["1"]}}),
                "/machine/ports/0",
                "integer",
            ),
            (
                json!({"apiVersion": "v1alpha1", "kind": "Roots", "name": "LAB"}),
                "/name",
                "a text like ^[a-z]+$",
            ),
            (
                json!({"apiVersion": "v1alpha1", "kind": "Roots"}),
                "/name",
                "the key name",
            ),
            (
                json!({"apiVersion": "v1alpha1", "kind": "Nobody"}),
                "/kind",
                "a kind and apiVersion of the schema",
            ),
        ] {
            let found = schema.validate(&bad);
            assert_eq!(
                (&*found[0].pointer, &*found[0].expected),
                (pointer, expected),
                "{bad}: {found:?}"
            );
        }
    }

    /// A violation is printed and logged; a config is full of secrets.
    #[test]
    fn a_violation_never_shows_a_text() {
        let bad = json!({"version": "v1alpha1", "machine": {"type": "s3cret", "labels": "s3cret", "ports": "s3cret"}});
        for found in schema().validate(&bad) {
            assert!(!found.to_string().contains("s3cret"), "{found}");
        }
    }

    #[test]
    fn rejects_a_schema_that_is_not_wholly_understood() {
        for (key, value, word) in [
            ("anyOf", json!([]), "anyOf"),
            ("if", json!({}), "if"),
            ("type", json!(["string", "null"]), "type"),
            ("$ref", json!("https://elsewhere"), "elsewhere"),
            ("$ref", json!("#/$defs/Nobody"), "Nobody"),
            ("pattern", json!("(?=look)"), "pattern"),
            ("unevaluatedProperties", json!(false), "unevaluated"),
        ] {
            let mut root = small();
            root["$defs"]["Machine"][key] = value;
            let error = Schema::parse(root.to_string().as_bytes()).expect_err(key);
            assert!(
                error.contains("#/$defs/Machine") && error.contains(word),
                "{error}"
            );
        }
        assert!(Schema::parse(b"{").is_err());
        let circle = json!({"$ref": "#"}).to_string();
        let circle = Schema::parse(circle.as_bytes()).expect("read");
        assert_eq!(circle.validate(&json!({})).len(), 1);
    }
}
