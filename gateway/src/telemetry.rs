//! The daemon's own log: set-up, the error chain, and what may not be printed.
//!
//! Decides the shape of a line. Events carry fields (`machine_id`, `step`, `xid`, `port`, `reason`,
//! `error`), not sentences. Secrets have no `Debug` that prints them; [`redact`] is for text that
//! comes from outside and may hold anything.

use std::error::Error;
use std::fmt::Write as _;
use std::io::IsTerminal as _;

use gateway_core::reason::Reason;
use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Longest text from outside in one log field, in characters.
const OUTSIDE_MAX_CHARS: usize = 200;

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter does not parse.
    #[error("log.filter cannot be used")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// A subscriber is installed already.
    #[error("logging is set up already")]
    Installed(#[source] Box<dyn Error + Send + Sync>),
}

/// Installs the process-wide subscriber; lines go to standard error.
///
/// # Errors
/// When the filter is wrong or a subscriber is installed already.
pub fn init(log: &Log) -> Result<(), TelemetryError> {
    let filter = EnvFilter::try_new(&log.filter)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match log.format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder
            .with_ansi(std::io::stderr().is_terminal())
            .try_init(),
    }
    .map_err(TelemetryError::Installed)
}

/// An error and its causes on one line, outermost first.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut out = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        // Wrappers that repeat their cause add nothing.
        if !out.ends_with(&text) {
            let _ = write!(out, ": {text}");
        }
        source = cause.source();
    }
    out
}

/// Text from outside, fit for one log field: control characters escaped, length bounded.
pub fn redact(text: &str) -> String {
    let mut out = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == OUTSIDE_MAX_CHARS {
            out.push_str("...");
            break;
        }
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Logs one refusal with its five parts as fields.
pub fn refused(listener: &str, peer: impl std::fmt::Display, reason: &Reason) {
    tracing::warn!(
        listener,
        %peer,
        reason = %reason.code,
        expected = %redact(&reason.expected),
        found = %redact(&reason.found),
        source = %reason.source,
        next = %reason.next,
        "refused"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the store")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn prints_the_chain_once() {
        let error = Outer(std::io::Error::other("disk full"));
        assert_eq!(chain(&error), "cannot open the store: disk full");
        let same = std::io::Error::other("x");
        assert_eq!(chain(&same), "x");
    }

    #[test]
    fn text_from_outside_stays_on_one_line() {
        let text = redact(&format!("a\nb\u{1b}[2J{}", "x".repeat(1000)));
        assert!(!text.contains(['\n', '\u{1b}']), "{text}");
        assert!(text.chars().count() < 220);
    }
}
