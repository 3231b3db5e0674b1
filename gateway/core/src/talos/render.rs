//! A machine config from the operator's template: variables and nothing else, and a text that still says
//! what the template says.
//!
//! A variable is `{{ name }}`; `{{{{` writes two braces. There is no logic: a machine that needs another
//! config has a class, and a class has a template. A value cannot change the structure: the template is
//! read twice, with marks and with values in the variables' places, and every event must be the same but
//! for the marks. So it does not matter where a variable stands, quoted or not.

use std::collections::BTreeMap;

use serde_json::Value;
use zeroize::Zeroizing;

use super::yaml::{self, Document, Event, Kind, mistake};
use crate::strict_toml::Mistake;

/// Names that the gateway fills in; an operator's value cannot have them.
pub const BUILT_IN: [&str; 5] = ["machine", "serial", "class", "address", "mac"];
/// Longest value, in bytes.
pub const VALUE_MAX_BYTES: usize = 1_024;
/// Most variables of a template, counted as often as they stand.
const VARIABLES_MAX: usize = 1_024;
/// Most mistakes that are told.
const MISTAKES_MAX: usize = 32;

/// Values by name.
pub type Values = BTreeMap<String, String>;

/// Whether a name can be a variable.
pub fn is_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Why a text cannot be a value, if so.
pub fn value_mistake(value: &str) -> Option<&'static str> {
    if value.len() > VALUE_MAX_BYTES {
        return Some("more than 1024 bytes");
    }
    // YAML reads these two as line ends as well (YAML 1.1; 1.2 readers differ).
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}');
    value
        .contains(breaks)
        .then_some("a control character or a line end")
}

/// The config of one machine. It may hold cluster secrets: zeroized, never logged.
///
/// # Errors
/// Every mistake with its line; the key of a mistake is the variable.
pub fn render(template: &str, values: &Values) -> Result<Zeroizing<String>, Vec<Mistake>> {
    let pieces = pieces(template)?;
    let mut mistakes = Vec::new();
    for (line, name) in pieces.iter().filter_map(Piece::variable) {
        let wrong = match values.get(name) {
            None => Some((
                "a variable that has a value for this machine",
                "none".to_owned(),
            )),
            Some(value) => {
                value_mistake(value).map(|found| ("a value of one line", found.to_owned()))
            }
        };
        if let Some((expected, found)) = wrong {
            mistakes.push(mistake(line, name, expected, found));
        }
    }
    mistakes.truncate(MISTAKES_MAX);
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let value = |name: &str| values.get(name).map_or("", String::as_str);
    let text = Zeroizing::new(filled(&pieces, |_, name| value(name).to_owned()));
    let base = mark_base(template, values);
    let marked = filled(&pieces, |at, _| mark(&base, at));
    let expected = yaml::events(&marked).map_err(|error| vec![error])?;
    let found = yaml::events(&text);
    let same = |a: &Event, b: &Event| {
        a.line == b.line && unmarked(&a.kind, &base, &pieces, &value) == b.kind
    };
    let changed = match &found {
        Err(error) => Some(error.line),
        Ok(found) => expected
            .iter()
            .zip(found)
            .find(|(a, b)| !same(a, b))
            .map(|(a, _)| a.line)
            .or_else(|| (expected.len() != found.len()).then_some(usize::MAX)),
    };
    if let Some(line) = changed {
        let (line, name) = blamed(&pieces, line);
        let found = "a value that YAML reads as more than text";
        let expected = "a value that fits where it stands; quote the variable otherwise";
        return Err(vec![mistake(line, name, expected, found)]);
    }
    check_documents(
        &found
            .and_then(|events| yaml::read(&events))
            .map_err(|error| vec![error])?,
    )?;
    Ok(text)
}

/// What Talos' loader asks of the documents of a config, whatever they say: each is a mapping with
/// `apiVersion` and `kind`, or the one `v1alpha1` config without a kind, and none stands twice.
///
/// # Errors
/// Every document that it would refuse.
pub fn check_documents(documents: &[Document]) -> Result<(), Vec<Mistake>> {
    let mut mistakes = Vec::new();
    let mut seen = BTreeMap::new();
    for document in documents {
        let text = |key: &str| document.value.get(key).and_then(Value::as_str);
        let Some(object) = document.value.as_object() else {
            mistakes.push(mistake(
                document.line,
                "",
                "a mapping in each document",
                "another value",
            ));
            continue;
        };
        let old = ["machine", "cluster", "debug", "persist"];
        let main = text("kind").is_none() && old.iter().any(|key| object.contains_key(*key));
        if !main && text("kind").is_none() {
            let expected = "kind, or a machine or cluster section";
            mistakes.push(mistake(document.line, "kind", expected, "neither"));
        } else if !main && text("apiVersion").is_none() {
            mistakes.push(mistake(
                document.line,
                "apiVersion",
                "the kind's apiVersion",
                "none",
            ));
        } else if main && text("version") != Some("v1alpha1") {
            let found = text("version").unwrap_or("none").to_owned();
            mistakes.push(mistake(document.line, "version", "v1alpha1", found));
        }
        let id =
            [text("apiVersion"), text("kind"), text("name")].map(|part| part.unwrap_or_default());
        if let Some(first) = seen.insert(id, document.line) {
            let found = format!("the same as in line {first}");
            let expected = "one document of this apiVersion, kind and name";
            mistakes.push(mistake(document.line, "kind", expected, found));
        }
    }
    if documents.is_empty() {
        mistakes.push(mistake(1, "", "at least one document", "none"));
    }
    mistakes.truncate(MISTAKES_MAX);
    if mistakes.is_empty() {
        Ok(())
    } else {
        Err(mistakes)
    }
}

/// Names of the variables of a template.
///
/// # Errors
/// As [`render`].
pub fn variables(template: &str) -> Result<Vec<String>, Vec<Mistake>> {
    let pieces = pieces(template)?;
    let mut names: Vec<String> = pieces
        .iter()
        .filter_map(Piece::variable)
        .map(|(_, name)| name.to_owned())
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

enum Piece<'t> {
    Text(&'t str),
    Variable { line: usize, name: &'t str },
}

impl<'t> Piece<'t> {
    fn variable(&self) -> Option<(usize, &'t str)> {
        match self {
            Piece::Text(_) => None,
            Piece::Variable { line, name } => Some((*line, name)),
        }
    }
}

fn pieces(template: &str) -> Result<Vec<Piece<'_>>, Vec<Mistake>> {
    let mut pieces = Vec::new();
    let mut mistakes = Vec::new();
    let mut line = 1;
    let mut rest = template;
    let mut variables = 0;
    while let Some((before, after)) = rest.split_once("{{") {
        line += before.matches('\n').count();
        pieces.push(Piece::Text(before));
        if let Some(after) = after.strip_prefix("{{") {
            pieces.push(Piece::Text("{{"));
            rest = after;
            continue;
        }
        let this_line = after.split('\n').next().unwrap_or_default();
        let Some((inner, _)) = this_line.split_once("}}") else {
            let shown: String = this_line.trim().chars().take(40).collect();
            mistakes.push(mistake(line, shown, "}} on the same line", "an open {{"));
            rest = after;
            continue;
        };
        let name = inner.trim();
        if is_name(name) {
            pieces.push(Piece::Variable { line, name });
            variables += 1;
        } else {
            let shown: String = name.chars().take(40).collect();
            let expected =
                "a variable's name: a-z, 0-9 and _ (there is no logic; {{{{ writes two braces)";
            mistakes.push(mistake(line, shown, expected, "something else"));
        }
        rest = after.get(inner.len() + 2..).unwrap_or_default();
    }
    pieces.push(Piece::Text(rest));
    if variables > VARIABLES_MAX {
        let expected = format!("at most {VARIABLES_MAX} variables");
        mistakes.push(mistake(1, "", expected, variables.to_string()));
    }
    mistakes.truncate(MISTAKES_MAX);
    if mistakes.is_empty() {
        Ok(pieces)
    } else {
        Err(mistakes)
    }
}

fn filled(pieces: &[Piece<'_>], value: impl Fn(usize, &str) -> String) -> String {
    let mut text = String::new();
    for (at, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Text(part) => text.push_str(part),
            Piece::Variable { name, .. } => text.push_str(&value(at, name)),
        }
    }
    text
}

/// A word that stands in neither template nor values.
fn mark_base(template: &str, values: &Values) -> String {
    let mut base = "variable".to_owned();
    while template.contains(&base) || values.values().any(|value| value.contains(&base)) {
        base.push('q');
    }
    base
}

/// The mark of one piece; it ends in a letter, so that none is the start of another.
fn mark(base: &str, at: usize) -> String {
    format!("{base}{at}z")
}

/// The event with values in place of marks.
fn unmarked<'v>(
    kind: &Kind,
    base: &str,
    pieces: &[Piece<'_>],
    value: &impl Fn(&str) -> &'v str,
) -> Kind {
    let Kind::Scalar {
        text,
        plain,
        anchor,
        tag,
    } = kind
    else {
        return kind.clone();
    };
    let mut text = text.clone();
    if text.contains(base) {
        for (at, piece) in pieces.iter().enumerate() {
            if let Some((_, name)) = piece.variable() {
                text = text.replace(&mark(base, at), value(name));
            }
        }
    }
    Kind::Scalar {
        text,
        plain: *plain,
        anchor: *anchor,
        tag: tag.clone(),
    }
}

/// The variable at or last before a line, with its own line.
fn blamed<'t>(pieces: &[Piece<'t>], line: usize) -> (usize, &'t str) {
    let mut variables = pieces.iter().filter_map(Piece::variable).rev();
    let before = variables.find(|(at, _)| *at <= line);
    before.unwrap_or((1, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> Values {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    const TEMPLATE: &str = "version: v1alpha1\nmachine:\n  type: worker\n  network:\n    \
        hostname: {{ machine }}\n  # {{serial}}\n  install:\n    image: \"reg/{{ class }}:1\"\n\
        ---\napiVersion: v1alpha1\nkind: TrustedRootsConfig\nname: '{{ machine }}-ca'\n";

    #[test]
    fn fills_in_every_place_a_variable_can_stand() {
        let facts = values(&[
            ("machine", "node-7"),
            ("serial", "S: 1"),
            ("class", "gpu's"),
        ]);
        let text = render(TEMPLATE, &facts).expect("renders");
        for part in [
            "hostname: node-7\n",
            "# S: 1\n",
            "\"reg/gpu's:1\"",
            "'node-7-ca'",
        ] {
            assert!(text.contains(part), "{part} in {}", *text);
        }
        assert_eq!(
            variables(TEMPLATE).expect("names"),
            ["class", "machine", "serial"]
        );
        let plain = "version: v1alpha1\nmachine:\n  port: {{ port }}\n  go: '{{{{ .Name }}'\n";
        let text = render(plain, &values(&[("port", "5")])).expect("renders");
        assert!(text.contains("port: 5\n  go: '{{ .Name }}'"), "{}", *text);
    }

    #[test]
    fn rejects_mistakes_of_the_template_with_line_and_name() {
        let machine = values(&[("machine", "n")]);
        for (template, line, key, word) in [
            ("a: 1\nb: {{ nobody }}\n", 2, "nobody", "none"),
            ("a: {{ machine\nb: }}\n", 1, "machine", "open"),
            (
                "a: {{ machine | upper }}\n",
                1,
                "machine | upper",
                "something",
            ),
            ("a: {{}}\n", 1, "", "something"),
            ("a: {{ Machine }}\n", 1, "Machine", "something"),
            ("a: [{{ machine }}\n", 2, "", ""),
            ("kind: X\n", 1, "apiVersion", "none"),
            ("x: {{ machine }}\n", 1, "kind", "neither"),
            ("machine: {}\n", 1, "version", "none"),
            ("- a\n", 1, "", "another"),
            ("", 1, "", "none"),
            (
                "kind: X\napiVersion: v1\n---\nkind: X\napiVersion: v1\n",
                4,
                "kind",
                "line 1",
            ),
        ] {
            let errors = render(template, &machine).expect_err(template);
            let error = &errors[0];
            assert_eq!(
                (error.line, &*error.key),
                (line, key),
                "{template}: {error}"
            );
            assert!(error.found.contains(word), "{template}: {error}");
        }
    }

    #[test]
    fn every_mistake_is_told_at_once() {
        let errors =
            render("a: {{ x }}\nb: {{ y }}\nc: {{ x }}\n", &Values::new()).expect_err("no values");
        assert_eq!(
            errors.iter().map(|e| (e.line, &*e.key)).collect::<Vec<_>>(),
            [(1, "x"), (2, "y"), (3, "x")]
        );
    }

    /// What a name, serial or operator's value could do to the text around it.
    #[test]
    fn rejects_a_value_that_becomes_structure() {
        let base = "version: v1alpha1\nmachine:\n";
        for (line, value) in [
            ("  a: {{ v }}\n", "x, y: z"),
            ("  a: {{ v }}\n", "b: c"),
            ("  a: {{ v }}\n", "x #y"),
            ("  a: {{ v }}\n", "[x"),
            ("  a: {{ v }}\n", "*x"),
            ("  a: {{ v }}\n", "&x y"),
            ("  a: {{ v }}\n", "!!binary aGk="),
            ("  a: {{ v }}\n", "'x'"),
            ("  a: {{ v }}\n", " x"),
            ("  a: \"{{ v }}\"\n", "x\" b: \""),
            ("  a: \"{{ v }}\"\n", "x\\n"),
            ("  a: \"{{ v }}\"\n", "\\"),
            ("  a: '{{ v }}'\n", "it's"),
            ("  a: [{{ v }}]\n", "x, y"),
            ("  {{ v }}: x\n", "? a"),
        ] {
            let template = format!("{base}{line}  z: 1\n");
            let result = render(&template, &values(&[("v", value)]));
            let errors = result.expect_err(&format!("{line:?} {value:?}"));
            assert_eq!(
                (errors[0].line, &*errors[0].key),
                (3, "v"),
                "{line:?} {value:?}: {}",
                errors[0]
            );
        }
        for value in [
            "a\nb",
            "a\rb",
            "a\tb",
            "\u{1b}[2J",
            "\0",
            "a\u{2028}b",
            &"x".repeat(2_000),
        ] {
            let errors =
                render("machine: '{{ v }}'\n", &values(&[("v", value)])).expect_err("refused");
            assert_eq!((errors[0].line, &*errors[0].key), (1, "v"));
        }
    }

    proptest::proptest! {
        /// Whatever the value, a config that is made says it in that place and changes nothing else.
        #[test]
        fn a_value_is_text_or_refused(value in "[ -~]{0,12}", quote in 0usize..3) {
            let place = ["{{ v }}", "\"{{ v }}\"", "'{{ v }}'"][quote];
            let template = format!("version: v1alpha1\nmachine:\n  a: {place}\n  z: 1\n");
            if let Ok(text) = render(&template, &values(&[("v", &value)])) {
                let documents = yaml::documents(&text).expect("YAML");
                let machine = documents[0].value["machine"].as_object().expect("a mapping");
                proptest::prop_assert_eq!(machine.len(), 2);
                proptest::prop_assert!(!machine["a"].is_object() && !machine["a"].is_array());
                if let Some(found) = machine["a"].as_str() {
                    proptest::prop_assert_eq!(found, &value);
                }
            }
        }

        #[test]
        fn never_panics(template in "[{} a-c:\n'\"]{0,60}") {
            let _ = render(&template, &values(&[("a", "x"), ("b", "")]));
        }
    }
}
