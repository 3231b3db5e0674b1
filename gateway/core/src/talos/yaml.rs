//! YAML 1.2 as far as a machine config needs it: documents as JSON values, each with its line.
//!
//! Built on the events of `saphyr-parser`, which is kept up, has no I/O and no unsafe code, and brings two
//! small crates. The tree is made here because a config needs what ready-made loaders leave out: a key
//! that stands twice is a mistake (the loader of Talos refuses it too), aliases are bounded, and every
//! mistake has its line.

use std::collections::HashMap;

use saphyr_parser::{Event as Parsed, Parser, ScalarStyle, Tag};
use serde_json::{Map, Number, Value};

use crate::strict_toml::Mistake;

/// Largest text that is read, in bytes: a config with every manifest inside is below a tenth of it.
pub const TEXT_MAX_BYTES: usize = 1024 * 1024;
/// Deepest nesting.
const DEPTH_MAX: usize = 64;
/// Most values of a text once its aliases are written out.
const VALUES_MAX: usize = 100_000;

/// One event of a text, without its style: what a value may not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub line: usize,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Document,
    DocumentEnd,
    Alias(usize),
    Scalar {
        text: String,
        plain: bool,
        anchor: usize,
        tag: Option<String>,
    },
    Sequence(usize, Option<String>),
    Mapping(usize, Option<String>),
    End,
}

/// One document.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Line of its first value, from 1.
    pub line: usize,
    /// What it says.
    pub value: Value,
}

/// The documents of a text, empty ones left out.
///
/// # Errors
/// Not YAML, a key twice, too deep or too large.
pub fn documents(text: &str) -> Result<Vec<Document>, Mistake> {
    read(&events(text)?)
}

pub(super) fn mistake(
    line: usize,
    key: impl Into<String>,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> Mistake {
    Mistake {
        line,
        key: key.into(),
        expected: expected.into(),
        found: found.into(),
    }
}

pub(super) fn events(text: &str) -> Result<Vec<Event>, Mistake> {
    if text.len() > TEXT_MAX_BYTES {
        let found = format!("{} bytes", text.len());
        return Err(mistake(
            1,
            "",
            format!("at most {TEXT_MAX_BYTES} bytes"),
            found,
        ));
    }
    let mut parser = Parser::new_from_str(text);
    let (mut events, mut depth) = (Vec::new(), 0usize);
    while let Some(next) = parser.next_event() {
        let (event, span) = next
            .map_err(|error| mistake(error.marker().line(), "", "YAML", error.info().to_owned()))?;
        let line = span.start.line();
        let kind = match event {
            Parsed::Nothing | Parsed::StreamStart | Parsed::StreamEnd => continue,
            Parsed::DocumentStart(_) => Kind::Document,
            Parsed::DocumentEnd => Kind::DocumentEnd,
            Parsed::Alias(id) => Kind::Alias(id),
            Parsed::Scalar(text, style, anchor, tag) => Kind::Scalar {
                text: text.into_owned(),
                plain: style == ScalarStyle::Plain,
                anchor,
                tag: tag.as_deref().map(tag_name),
            },
            Parsed::SequenceStart(anchor, tag) => {
                Kind::Sequence(anchor, tag.as_deref().map(tag_name))
            }
            Parsed::MappingStart(anchor, tag) => {
                Kind::Mapping(anchor, tag.as_deref().map(tag_name))
            }
            Parsed::SequenceEnd | Parsed::MappingEnd => Kind::End,
        };
        match kind {
            Kind::Sequence(..) | Kind::Mapping(..) => depth += 1,
            Kind::End => depth = depth.saturating_sub(1),
            Kind::Document | Kind::DocumentEnd | Kind::Alias(_) | Kind::Scalar { .. } => {}
        }
        if depth > DEPTH_MAX || events.len() > 4 * VALUES_MAX {
            let expected = format!("at most {DEPTH_MAX} levels and {VALUES_MAX} values");
            return Err(mistake(line, "", expected, "more"));
        }
        events.push(Event { line, kind });
    }
    Ok(events)
}

fn tag_name(tag: &Tag) -> String {
    format!("{}{}", tag.handle, tag.suffix)
}

pub(super) fn read(events: &[Event]) -> Result<Vec<Document>, Mistake> {
    let mut reader = Reader {
        events,
        at: 0,
        anchors: HashMap::new(),
        values: 0,
    };
    let mut documents = Vec::new();
    while let Some(event) = reader.next() {
        match &event.kind {
            Kind::Document => reader.anchors.clear(),
            Kind::DocumentEnd => {}
            Kind::Alias(_)
            | Kind::Scalar { .. }
            | Kind::Sequence(..)
            | Kind::Mapping(..)
            | Kind::End => {
                let value = reader.value(event)?;
                if !value.is_null() {
                    documents.push(Document {
                        line: event.line,
                        value,
                    });
                }
            }
        }
    }
    Ok(documents)
}

struct Reader<'e> {
    events: &'e [Event],
    at: usize,
    /// Anchored values, with how many values each has.
    anchors: HashMap<usize, (Value, usize)>,
    values: usize,
}

impl<'e> Reader<'e> {
    fn next(&mut self) -> Option<&'e Event> {
        let event = self.events.get(self.at)?;
        self.at += 1;
        Some(event)
    }

    /// What starts with `event`. The parser closes what it opens and bounds the depth.
    fn value(&mut self, event: &'e Event) -> Result<Value, Mistake> {
        let before = self.values;
        self.values += 1;
        let (value, anchor) = match &event.kind {
            Kind::Scalar {
                text,
                plain,
                anchor,
                tag,
            } => (scalar(event.line, text, *plain, tag.as_deref())?, *anchor),
            Kind::Alias(id) => {
                let Some((value, size)) = self.anchors.get(id) else {
                    return Err(mistake(
                        event.line,
                        "",
                        "an anchor before its alias",
                        "none",
                    ));
                };
                self.values += size;
                (value.clone(), 0)
            }
            Kind::Sequence(anchor, tag) => {
                container_tag(event.line, tag.as_deref(), "tag:yaml.org,2002:seq")?;
                let mut items = Vec::new();
                while let Some(next) = self.next().filter(|next| next.kind != Kind::End) {
                    items.push(self.value(next)?);
                }
                (Value::Array(items), *anchor)
            }
            Kind::Mapping(anchor, tag) => {
                container_tag(event.line, tag.as_deref(), "tag:yaml.org,2002:map")?;
                (Value::Object(self.mapping()?), *anchor)
            }
            Kind::Document | Kind::DocumentEnd | Kind::End => (Value::Null, 0),
        };
        if self.values > VALUES_MAX {
            let expected = format!("at most {VALUES_MAX} values, aliases written out");
            return Err(mistake(event.line, "", expected, "more"));
        }
        if anchor > 0 {
            let size = self.values - before;
            self.anchors.insert(anchor, (value.clone(), size));
        }
        Ok(value)
    }

    fn mapping(&mut self) -> Result<Map<String, Value>, Mistake> {
        let mut map = Map::new();
        while let Some(next) = self.next().filter(|next| next.kind != Kind::End) {
            let Kind::Scalar { text, plain, .. } = &next.kind else {
                return Err(mistake(
                    next.line,
                    "",
                    "a text as key",
                    "an alias, a list or a mapping",
                ));
            };
            if *plain && text == "<<" {
                let found = "a merge of another mapping (<<), which YAML 1.2 does not have";
                return Err(mistake(next.line, "", "keys written out", found));
            }
            if map.contains_key(text) {
                return Err(mistake(
                    next.line,
                    text,
                    "a key that stands once",
                    "the same key again",
                ));
            }
            let value = match self.next() {
                Some(next) => self.value(next)?,
                None => Value::Null,
            };
            map.insert(text.clone(), value);
        }
        Ok(map)
    }
}

fn container_tag(line: usize, tag: Option<&str>, own: &str) -> Result<(), Mistake> {
    match tag {
        None | Some("!") => Ok(()),
        Some(tag) if tag == own => Ok(()),
        Some(tag) => Err(mistake(line, "", "no tag of its own", tag)),
    }
}

/// The core schema (YAML 1.2.2 section 10.3.2) for plain scalars; others are text.
fn scalar(line: usize, text: &str, plain: bool, tag: Option<&str>) -> Result<Value, Mistake> {
    match tag.map(|tag| tag.strip_prefix("tag:yaml.org,2002:").unwrap_or(tag)) {
        Some("str" | "binary" | "!") => Ok(Value::String(text.to_owned())),
        None if !plain => Ok(Value::String(text.to_owned())),
        None | Some("null" | "bool" | "int" | "float") => Ok(plain_scalar(text)),
        Some(tag) => Err(mistake(line, "", "no tag of its own", tag)),
    }
}

fn plain_scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let radix = |prefix, radix| {
        let digits = text.strip_prefix(prefix)?;
        u64::from_str_radix(digits, radix).ok()
    };
    if let Some(number) = radix("0x", 16).or_else(|| radix("0o", 8)) {
        return Value::from(number);
    }
    let numeric = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
        && text.contains(|c: char| c.is_ascii_digit())
        && text
            .chars()
            .all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
    if numeric {
        if let Ok(number) = text.parse::<i64>() {
            return Value::from(number);
        }
        if let Ok(number) = text.parse::<u64>() {
            return Value::from(number);
        }
        if let Some(number) = text.parse::<f64>().ok().and_then(Number::from_f64) {
            return Value::Number(number);
        }
    }
    Value::String(text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(text: &str) -> Value {
        let mut documents = documents(text).expect("YAML");
        assert_eq!(documents.len(), 1, "{text}");
        documents.remove(0).value
    }

    #[test]
    fn scalars_of_the_core_schema() {
        let text = "a: 1\nb: '1'\nc: true\nd: \"true\"\ne: ~\nf: 0x1f\ng: 1.5\nh: 1.2.3\ni: 10.0.0.1/24\n\
                    j: 0o17\nk: 18446744073709551615\nl: no\nm: 5m0s\nn: -\no: +5\np: !!str 5\n";
        let expected = json!({"a": 1, "b": "1", "c": true, "d": "true", "e": null, "f": 31, "g": 1.5,
            "h": "1.2.3", "i": "10.0.0.1/24", "j": 15, "k": u64::MAX, "l": "no", "m": "5m0s", "n": "-",
            "o": 5, "p": "5"});
        assert_eq!(one(&text.replace("n: -\n", "n: \"-\"\n")), expected);
    }

    #[test]
    fn documents_have_lines_and_empty_ones_are_left_out() {
        let found = documents("---\n---\n# a\na: 1\n---\n\nb: [x, {c: d}]\n...\n").expect("YAML");
        let lines: Vec<usize> = found.iter().map(|d| d.line).collect();
        assert_eq!(lines, [4, 7]);
        assert_eq!(found[1].value, json!({"b": ["x", {"c": "d"}]}));
        assert!(documents("").expect("nothing").is_empty());
    }

    #[test]
    fn aliases_are_written_out() {
        let value = one("a: &x {k: [1, 2]}\nb: *x\n");
        assert_eq!(value["a"], value["b"]);
    }

    #[test]
    fn rejects_what_a_config_cannot_mean() {
        for (text, line, word) in [
            ("a: 1\na: 2\n", 2, "again"),
            ("a: [1\n", 2, ""),
            ("a: b: c\n", 1, ""),
            ("a: *nobody\n", 1, ""),
            ("x: &x {a: 1}\ny:\n  <<: *x\n", 3, "merge"),
            ("a: !local 1\n", 1, "local"),
            ("[a]: 1\n", 1, "list"),
        ] {
            let error = documents(text).expect_err(text);
            assert_eq!(error.line, line, "{text}: {error}");
            assert!(error.found.contains(word), "{text}: {error}");
        }
    }

    /// Nine lines that stand for a thousand million values.
    #[test]
    fn rejects_a_text_that_grows_by_aliases() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..9 {
            let list = vec![format!("*a{}", n - 1); 10].join(", ");
            text.push_str(&format!("a{n}: &a{n} [{list}]\n"));
        }
        let error = documents(&text).expect_err("a bomb");
        assert!(error.expected.contains("aliases"), "{error}");
        let deep = "[".repeat(5_000);
        assert!(documents(&deep).is_err());
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "[\\-a:{}\\[\\]&*!|>'\"#, \n\t0-9~<.]{0,80}") {
            let _ = documents(&text);
        }
    }
}
