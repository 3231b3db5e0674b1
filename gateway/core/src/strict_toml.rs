//! Reads an operator's TOML file so that every mistake is reported at once, each with its line and
//! key path.
//!
//! A derived deserializer stops at the first mistake; an operator then learns of the second one at
//! the next restart. Decides nothing about meaning: the caller asks for keys and types, says what
//! it expected, and whatever nobody asked for is an unknown key. Knows no file.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml::value::{Datetime, Offset};

use crate::appraisal::x509::days_since_1970;

/// Most mistakes kept per file: a file of the wrong kind should not print a thousand lines.
pub const MISTAKES_MAX: usize = 64;
/// Largest file read, in bytes.
pub const FILE_MAX_BYTES: usize = 4 * 1024 * 1024;

/// One mistake of the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Line in the file, from 1.
    pub line: usize,
    /// Key path, for example `provisioning.pool.start`; empty for a syntax error.
    pub key: String,
    /// What was expected there.
    pub expected: String,
    /// What was found.
    pub found: String,
}

impl Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            line,
            key,
            expected,
            found,
        } = self;
        if key.is_empty() {
            write!(f, "line {line}: expected {expected}, found {found}")
        } else {
            write!(f, "line {line}: {key}: expected {expected}, found {found}")
        }
    }
}

/// A parsed document and the mistakes found so far.
pub struct Document<'i> {
    root: Spanned<DeTable<'i>>,
    mistakes: Mistakes<'i>,
}

struct Mistakes<'i> {
    text: &'i str,
    found: RefCell<Vec<Mistake>>,
}

impl Mistakes<'_> {
    fn push(&self, offset: usize, key: String, expected: String, found: String) {
        let mut list = self.found.borrow_mut();
        if list.len() < MISTAKES_MAX {
            list.push(Mistake {
                line: line_of(self.text, offset),
                key,
                expected,
                found,
            });
        }
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

impl<'i> Document<'i> {
    /// Parses the text.
    ///
    /// # Errors
    /// Every syntax error, when there is any.
    pub fn parse(text: &'i str) -> Result<Self, Vec<Mistake>> {
        let mistakes = Mistakes {
            text,
            found: RefCell::default(),
        };
        if text.len() > FILE_MAX_BYTES {
            mistakes.push(
                0,
                String::new(),
                format!("at most {FILE_MAX_BYTES} bytes"),
                format!("{} bytes", text.len()),
            );
            return Err(mistakes.found.into_inner());
        }
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let offset = error.span().map_or(0, |span| span.start);
            mistakes.push(
                offset,
                String::new(),
                "TOML".to_owned(),
                one_line(error.message()),
            );
        }
        if errors.is_empty() {
            Ok(Self { root, mistakes })
        } else {
            Err(mistakes.found.into_inner())
        }
    }

    /// The top-level table.
    pub fn root(&self) -> Section<'_, 'i> {
        Section {
            mistakes: &self.mistakes,
            path: String::new(),
            offset: 0,
            table: Some(self.root.get_ref()),
            asked: RefCell::default(),
        }
    }

    /// The value, unless a mistake was recorded on the way.
    ///
    /// # Errors
    /// All mistakes, in the order of their lines.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, Vec<Mistake>> {
        let mut mistakes = self.mistakes.found.into_inner();
        mistakes.sort_by_key(|mistake| mistake.line);
        match value {
            Some(value) if mistakes.is_empty() => Ok(value),
            _ => Err(mistakes),
        }
    }
}

/// One table of the document. Call [`Section::close`] when every known key was asked for.
pub struct Section<'d, 'i> {
    mistakes: &'d Mistakes<'i>,
    path: String,
    offset: usize,
    table: Option<&'d DeTable<'i>>,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'d, 'i> Section<'d, 'i> {
    /// Whether the table exists in the file.
    pub fn present(&self) -> bool {
        self.table.is_some()
    }

    /// Whether the table has the key.
    pub fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.get(key).is_some())
    }

    /// Whether the key is in the table and an array without an entry.
    pub fn is_empty_list(&self, key: &str) -> bool {
        let value = self.table.and_then(|table| table.get(key));
        let array = value.and_then(|value| value.get_ref().as_array());
        array.is_some_and(|array| array.is_empty())
    }

    /// Key path of one key of this table.
    fn key_path(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    fn look(&self, key: &'static str) -> Option<&'d Spanned<DeValue<'i>>> {
        self.asked.borrow_mut().insert(key);
        self.table?.get(key)
    }

    /// Records a mistake about one key, at its line when it is in the file.
    pub fn mistake(&self, key: &str, expected: impl Into<String>, found: impl Into<String>) {
        let offset = self
            .table
            .and_then(|table| table.get(key))
            .map_or(self.offset, |value| value.span().start);
        self.mistakes
            .push(offset, self.key_path(key), expected.into(), found.into());
    }

    /// The items of an array, which are to be at most `max`; none when it is missing or something
    /// else, named `expected` to the operator.
    fn array(&self, key: &'static str, expected: &str, max: usize) -> &'d [Spanned<DeValue<'i>>] {
        let Some(value) = self.look(key) else {
            return &[];
        };
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(key, expected, value);
            return &[];
        };
        if array.len() > max {
            let found = array.len().to_string();
            self.mistake(key, format!("at most {max} entries"), found);
        }
        array
    }

    fn wrong_type(&self, key: &str, expected: &str, value: &Spanned<DeValue<'i>>) {
        self.mistake(key, expected, shown(value.get_ref()));
    }

    /// A sub-table; a missing one reads as empty.
    pub fn section(&self, key: &'static str) -> Section<'d, 'i> {
        let value = self.look(key);
        let table = value.and_then(|value| {
            let table = value.get_ref().as_table();
            if table.is_none() {
                self.wrong_type(key, "a table", value);
            }
            table
        });
        Section {
            mistakes: self.mistakes,
            path: self.key_path(key),
            offset: value.map_or(self.offset, |value| value.span().start),
            table,
            asked: RefCell::default(),
        }
    }

    /// An array of tables (`[[key]]`), at most `max` of them; a missing one reads as empty.
    pub fn sections(&self, key: &'static str, max: usize) -> Vec<Section<'d, 'i>> {
        let mut sections = Vec::new();
        let array = self.array(key, "an array of tables", max);
        for (index, item) in array.iter().enumerate().take(max) {
            let path = format!("{}[{index}]", self.key_path(key));
            match item.get_ref().as_table() {
                Some(table) => sections.push(Section {
                    mistakes: self.mistakes,
                    path,
                    offset: item.span().start,
                    table: Some(table),
                    asked: RefCell::default(),
                }),
                None => self.mistakes.push(
                    item.span().start,
                    path,
                    "a table".to_owned(),
                    shown(item.get_ref()),
                ),
            }
        }
        sections
    }

    /// An optional string.
    pub fn string(&self, key: &'static str) -> Option<String> {
        let value = self.look(key)?;
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.wrong_type(key, "a string", value);
        }
        text.map(str::to_owned)
    }

    /// An optional string of a type that parses; `expected` names the type to the operator.
    pub fn parsed<T: FromStr>(&self, key: &'static str, expected: &str) -> Option<T> {
        let value = self.look(key)?;
        let parsed = value.get_ref().as_str().and_then(|text| text.parse().ok());
        if parsed.is_none() {
            self.wrong_type(key, expected, value);
        }
        parsed
    }

    /// An optional list of strings of a type that parses, at most `max` of them.
    pub fn list<T: FromStr>(&self, key: &'static str, expected: &str, max: usize) -> Vec<T> {
        let mut out = Vec::new();
        let array = self.array(key, &format!("a list of {expected}"), max);
        for (index, item) in array.iter().enumerate().take(max) {
            match item.get_ref().as_str().and_then(|text| text.parse().ok()) {
                Some(parsed) => out.push(parsed),
                None => self.mistakes.push(
                    item.span().start,
                    format!("{}[{index}]", self.key_path(key)),
                    expected.to_owned(),
                    shown(item.get_ref()),
                ),
            }
        }
        out
    }

    /// An optional integer within a range; `unit` is shown to the operator.
    pub fn integer(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
        unit: &str,
    ) -> Option<u64> {
        let value = self.look(key)?;
        let fits = number(value.get_ref()).filter(|number| range.contains(number));
        if fits.is_none() {
            self.wrong_type(key, &range_text(&range, unit), value);
        }
        fits
    }

    /// An optional list of at most `max` integers within a range; `unit` is shown to the operator.
    pub fn numbers(
        &self,
        key: &'static str,
        range: RangeInclusive<u8>,
        unit: &str,
        max: usize,
    ) -> Vec<u8> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        let expected = range_text(&range, unit);
        let mut out = Vec::new();
        let array = self.array(key, &format!("a list of {expected}"), max);
        for (index, item) in array.iter().enumerate().take(max) {
            let fits = number(item.get_ref()).filter(|number| range.contains(number));
            match fits.and_then(|number| u8::try_from(number).ok()) {
                Some(number) => out.push(number),
                None => self.mistakes.push(
                    item.span().start,
                    format!("{}[{index}]", self.key_path(key)),
                    expected.clone(),
                    shown(item.get_ref()),
                ),
            }
        }
        out
    }

    /// An optional boolean.
    pub fn boolean(&self, key: &'static str) -> Option<bool> {
        let value = self.look(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.wrong_type(key, "true or false", value);
        }
        flag
    }

    /// An optional moment, in seconds since 1970: a date and time with its offset from UTC.
    pub fn time(&self, key: &'static str) -> Option<i64> {
        let value = self.look(key)?;
        let moment = match value.get_ref() {
            DeValue::Datetime(moment) => unix_secs(moment),
            _ => None,
        };
        if moment.is_none() {
            self.wrong_type(key, "a time as 2026-12-24T00:00:00Z", value);
        }
        moment
    }

    /// One of a fixed set of words.
    pub fn choice<T: Copy>(&self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let value = self.look(key)?;
        let word = value.get_ref().as_str();
        let chosen = choices
            .iter()
            .find(|(name, _)| Some(*name) == word)
            .map(|(_, choice)| *choice);
        if chosen.is_none() {
            let names: Vec<String> = choices
                .iter()
                .map(|(name, _)| format!("\"{name}\""))
                .collect();
            self.wrong_type(key, &names.join(" or "), value);
        }
        chosen
    }

    /// Passes a required value on; its absence is a mistake.
    pub fn required<T>(&self, key: &'static str, expected: &str, value: Option<T>) -> Option<T> {
        if value.is_none() && self.table.is_none_or(|table| table.get(key).is_none()) {
            self.mistake(key, expected, "nothing");
        }
        value
    }

    /// Ends the table: every key that nobody asked for is a mistake.
    pub fn close(&self) {
        let Some(table) = self.table else { return };
        let asked = self.asked.borrow();
        for key in table.keys() {
            let name = key.get_ref().as_ref();
            if asked.contains(name) {
                continue;
            }
            let near = asked
                .iter()
                .map(|known| (distance(name, known), *known))
                .min()
                .filter(|(far, known)| *far <= 2 && *far < known.len());
            let expected = match near {
                Some((_, known)) => format!("a known key (did you mean \"{known}\"?)"),
                None => "a known key".to_owned(),
            };
            self.mistakes.push(
                key.span().start,
                self.key_path(&name.chars().take(64).collect::<String>()),
                expected,
                "an unknown key".to_owned(),
            );
        }
    }
}

/// A moment as it is written in a file, in seconds since 1970; for command lines.
pub fn moment(text: &str) -> Option<i64> {
    unix_secs(&text.parse().ok()?)
}

fn number(value: &DeValue<'_>) -> Option<u64> {
    let integer = value.as_integer()?;
    u64::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok()
}

fn range_text(range: &RangeInclusive<u64>, unit: &str) -> String {
    let text = if range.start() == range.end() {
        format!("{} {unit}", range.start())
    } else {
        format!("{} to {} {unit}", range.start(), range.end())
    };
    text.trim_end().to_owned()
}

/// Seconds since 1970; none without date, time and offset. Fractions are dropped.
fn unix_secs(moment: &Datetime) -> Option<i64> {
    let (date, time) = (moment.date?, moment.time?);
    let offset = match moment.offset? {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    let days = days_since_1970(date.year.into(), date.month.into(), date.day.into());
    let minutes = i64::from(time.hour) * 60 + i64::from(time.minute) - offset;
    Some((days * 1440 + minutes) * 60 + i64::from(time.second))
}

/// How a value is shown to the operator: short, on one line, its type when it is no scalar.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => {
            let short: String = text.chars().take(80).collect();
            format!("{short:?}")
        }
        DeValue::Integer(integer) => integer.as_str().to_owned(),
        DeValue::Float(float) => float.as_str().to_owned(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Levenshtein distance of two keys, for the hint; keys longer than 64 characters are cut.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(text: &str, read: impl FnOnce(&Section<'_, '_>)) -> Vec<String> {
        let document = match Document::parse(text) {
            Ok(document) => document,
            Err(list) => return list.iter().map(ToString::to_string).collect(),
        };
        let root = document.root();
        read(&root);
        root.close();
        match document.finish(Some(())) {
            Ok(()) => Vec::new(),
            Err(list) => list.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn all_mistakes_come_at_once_in_line_order() {
        let text = "b = 70000\na = 1\nlease_sec = 5\n[s]\nx = [\"1.2.3.4\", \"no\"]\n";
        let list = mistakes(text, |root| {
            root.string("a");
            root.integer("b", 1..=65535, "(a port)");
            root.integer("lease_secs", 1..=9, "seconds");
            let s = root.section("s");
            s.list::<std::net::Ipv4Addr>("x", "an IPv4 address", 4);
            s.required::<u64>("y", "an integer", None);
            s.close();
        });
        assert_eq!(
            list,
            [
                "line 1: b: expected 1 to 65535 (a port), found 70000",
                "line 2: a: expected a string, found 1",
                "line 3: lease_sec: expected a known key (did you mean \"lease_secs\"?), found an unknown key",
                "line 4: s.y: expected an integer, found nothing",
                "line 5: s.x[1]: expected an IPv4 address, found \"no\"",
            ]
        );
    }

    #[test]
    fn rejects_bad_syntax_with_its_line() {
        let list = mistakes("a = 1\nb = = 2\n", |_| {});
        assert!(
            !list.is_empty() && list[0].starts_with("line 2: expected TOML"),
            "{list:?}"
        );
    }

    #[test]
    fn rejects_more_entries_than_the_bound() {
        let list = mistakes("a = [\"x\", \"y\", \"z\"]", |root| {
            root.list::<String>("a", "a name", 2);
        });
        assert_eq!(list, ["line 1: a: expected at most 2 entries, found 3"]);
    }

    #[test]
    fn rejects_wrong_shapes() {
        let list = mistakes("a = 1\nb = [1]\nc = \"perhaps\"\nd = \"maybe\"\n", |root| {
            root.section("a").close();
            root.sections("b", 8);
            root.boolean("c");
            root.choice("d", &[("yes", 1), ("no", 2)]);
        });
        assert_eq!(
            list,
            [
                "line 1: a: expected a table, found 1",
                "line 2: b[0]: expected a table, found 1",
                "line 3: c: expected true or false, found \"perhaps\"",
                "line 4: d: expected \"yes\" or \"no\", found \"maybe\"",
            ]
        );
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in ".{0,200}") {
            let _ = mistakes(&text, |root| {
                root.section("a").close();
                root.integer("b", 0..=u64::MAX, "");
            });
        }
    }
}
