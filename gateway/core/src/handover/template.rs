//! Text with the facts of a machine in it: `{{ machine }}` and the others of [`VARIABLES`].
//!
//! Strict on both sides: an unknown variable refuses the file when it is read, and a value that could mean
//! something in YAML or in a shell refuses the machine. There are no expressions.

use std::fmt::Write as _;
use std::ops::Range;

use zeroize::Zeroizing;

/// The variables, in the order of the documentation.
pub const VARIABLES: [&str; 6] = [
    "machine",
    "class",
    "address",
    "serial",
    "disk_serial",
    "port",
];

/// What is known of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Values {
    /// Its name.
    pub machine: String,
    /// Its class.
    pub class: String,
    /// The address it attested from.
    pub address: String,
    /// Serial of its binding.
    pub serial: Option<String>,
    /// Serial of the disk of its binding.
    pub disk_serial: Option<String>,
    /// Switch port of its binding.
    pub port: Option<String>,
}

/// Why a template cannot be used or filled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: expected {expected}, found {found}")]
pub struct TemplateError {
    /// Line in the file, from 1.
    pub line: usize,
    /// What may stand there.
    pub expected: String,
    /// What stands there; never more than a variable's name or value.
    pub found: String,
}

/// A text that was read; wiped when dropped.
pub struct Template {
    text: Zeroizing<String>,
    pieces: Vec<Piece>,
}

enum Piece {
    Text(Range<usize>),
    Variable { index: usize, line: usize },
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// The first place that is wrong, with its line.
    pub fn parse(text: Zeroizing<String>) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while let Some(open) = text[at..].find("{{").map(|found| at + found) {
            let line = text[..open].matches('\n').count() + 1;
            let inside = open + 2;
            let close = text[inside..].find("}}").map(|found| inside + found);
            let closed = close.filter(|close| !text[inside..*close].contains('\n'));
            let Some(close) = closed else {
                return Err(TemplateError {
                    line,
                    expected: "}} on the same line".to_owned(),
                    found: "{{ alone; a file with braces of its own has template = false"
                        .to_owned(),
                });
            };
            let name = text[inside..close].trim();
            let index = VARIABLES.iter().position(|known| *known == name);
            let index = index.ok_or_else(|| TemplateError {
                line,
                expected: VARIABLES.join(", "),
                found: format!("variable {:?}", name.chars().take(40).collect::<String>()),
            })?;
            pieces.push(Piece::Text(at..open));
            pieces.push(Piece::Variable { index, line });
            at = close + 2;
        }
        pieces.push(Piece::Text(at..text.len()));
        Ok(Self { text, pieces })
    }

    /// The text with these values.
    ///
    /// # Errors
    /// A variable that is not known of this machine, or has a value that is not plain.
    pub fn render(&self, values: &Values) -> Result<Zeroizing<Vec<u8>>, TemplateError> {
        let filled = self.pieces.iter().map(|piece| match piece {
            Piece::Text(range) => Ok(&self.text[range.clone()]),
            Piece::Variable { index, line } => value(values, *index, *line),
        });
        let filled: Vec<&str> = filled.collect::<Result<_, _>>()?;
        // As large as it becomes: a vector that grows leaves what it held behind.
        let size = filled.iter().map(|part| part.len()).sum();
        let mut out = Zeroizing::new(Vec::with_capacity(size));
        for part in filled {
            out.extend_from_slice(part.as_bytes());
        }
        Ok(out)
    }
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "template of {} bytes", self.text.len())
    }
}

fn value(values: &Values, index: usize, line: usize) -> Result<&str, TemplateError> {
    let known = match VARIABLES[index] {
        "machine" => Some(&values.machine),
        "class" => Some(&values.class),
        "address" => Some(&values.address),
        "serial" => values.serial.as_ref(),
        "disk_serial" => values.disk_serial.as_ref(),
        _ => values.port.as_ref(),
    };
    let mut found = String::from(VARIABLES[index]);
    let Some(value) = known else {
        found.push_str(" of a machine that none is declared for");
        return Err(TemplateError {
            line,
            expected: format!("a value of {}", VARIABLES[index]),
            found,
        });
    };
    // A serial comes from the machine at first: it must not end a string or begin a key.
    let plain = |c: char| c.is_ascii_alphanumeric() || " ._:/-".contains(c);
    if value.chars().all(plain) && value.trim() == value && !value.contains(": ") {
        return Ok(value);
    }
    let _ = write!(found, " = {:?}", value.chars().take(80).collect::<String>());
    Err(TemplateError {
        line,
        expected: "a value of letters, digits, spaces and . _ : / -".to_owned(),
        found,
    })
}
