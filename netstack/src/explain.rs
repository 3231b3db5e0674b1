//! How a refusal of a protocol core is told to a person. Carries the five parts of a gateway
//! reason without depending on the gateway.

/// One explained refusal: what the operator reads in log, API and ledger. Holds no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Stable code, `area.detail`.
    pub code: &'static str,
    /// What was expected, with units.
    pub expected: String,
    /// What came.
    pub found: String,
    /// Standard and section, or the configuration key, that the expectation comes from.
    pub source: &'static str,
    /// What the operator can do next.
    pub next: &'static str,
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: expected {}, found {} ({}); next: {}",
            self.code, self.expected, self.found, self.source, self.next
        )
    }
}
