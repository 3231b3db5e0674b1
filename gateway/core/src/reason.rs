//! Why something was refused, for the person at 3 a.m.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// One explained refusal. Never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Stable code, `area.detail` (docs/PROTOCOL.md section 3).
    pub code: Cow<'static, str>,
    /// What was expected, with units.
    pub expected: String,
    /// What came.
    pub found: String,
    /// Where the expectation comes from: standard and section, policy key, or inventory line.
    pub source: Cow<'static, str>,
    /// What the operator can do next.
    pub next: Cow<'static, str>,
}

impl Reason {
    /// A reason; all five parts are mandatory.
    pub fn new(
        code: &'static str,
        expected: impl Into<String>,
        found: impl Into<String>,
        source: impl Into<Cow<'static, str>>,
        next: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            code: Cow::Borrowed(code),
            expected: expected.into(),
            found: found.into(),
            source: source.into(),
            next: next.into(),
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: expected {}, found {} ({}); next: {}",
            self.code, self.expected, self.found, self.source, self.next
        )
    }
}

impl From<netstack::Explanation> for Reason {
    fn from(told: netstack::Explanation) -> Self {
        Self::new(told.code, told.expected, told.found, told.source, told.next)
    }
}
