//! The daemon's own log: set-up, the error chain, and what may not be printed.
//!
//! Decides the shape of a line. Events carry fields (`machine_id`, `step`, `xid`, `port`, `reason`,
//! `error`), not sentences. Secrets have no `Debug` that prints them; [`redact`] is for text that
//! comes from outside and may hold anything.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gateway_core::reason::Reason;
use gateway_core::record::{Mark, Record};
use gateway_core::walk::Step;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, fmt, registry};

use crate::config::{Log, LogFormat};

/// Longest text from outside in one log field, in characters.
const OUTSIDE_MAX_CHARS: usize = 200;

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter does not parse.
    #[error("log.filter cannot be used")]
    Filter(#[from] ParseError),
    /// A subscriber is installed already.
    #[error("logging is set up already")]
    Installed(#[source] Box<dyn Error + Send + Sync>),
}

/// Installs the process-wide subscriber; lines go to standard error.
///
/// # Errors
/// When the filter is wrong or a subscriber is installed already.
pub fn init(log: &Log) -> Result<(), TelemetryError> {
    // The TPM library says in its own words what our errors say in one line each; asked for by name
    // it still speaks.
    let filter = filter(&format!("tss_esapi=off,{}", log.filter))?;
    let lines = fmt::layer().with_writer(|| Lines);
    let lines = match log.format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
    };
    registry()
        .with(lines)
        .with(filter)
        .try_init()
        .map_err(|error| TelemetryError::Installed(Box::new(error)))
}

/// Directives `target=level` or `level`, with commas between. Spans and fields are no part of them: the
/// filter that knows those needs regular expressions, 1 MB of program for what nobody here
/// writes.
///
/// # Errors
/// What is no directive.
pub fn filter(directives: &str) -> Result<Targets, ParseError> {
    directives.parse()
}

/// Lines that wait for the end of a [`Hold`].
struct Held {
    holds: usize,
    bytes: Vec<u8>,
}

impl Held {
    const fn new() -> Self {
        Self {
            holds: 0,
            bytes: Vec::new(),
        }
    }

    /// Whether the lines wait.
    fn keep(&mut self, lines: &[u8]) -> bool {
        if self.holds > 0 {
            self.bytes.extend_from_slice(lines);
        }
        self.holds > 0
    }

    /// What may be shown now that one hold has ended.
    fn end(&mut self) -> &[u8] {
        self.holds -= 1;
        if self.holds == 0 { &self.bytes } else { &[] }
    }
}

/// For the whole process, like the subscriber itself.
static HELD: Mutex<Held> = Mutex::new(Held::new());

fn held() -> MutexGuard<'static, Held> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps lines together until it is dropped, then writes them at once: a storm's batch has hundreds,
/// and each would be a call of the kernel of its own. Holds are for moments: no line is shown meanwhile.
#[must_use]
pub(crate) struct Hold(());

/// Begins a [`Hold`].
pub(crate) fn hold() -> Hold {
    held().holds += 1;
    Hold(())
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = held();
        let lines = held.end();
        if !lines.is_empty() {
            // A log that cannot be written must not stop the gateway.
            let _ = io::stderr().write_all(lines);
            held.bytes.clear();
        }
    }
}

/// Standard error, or what is held for it.
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if held().keep(bytes) {
            return Ok(bytes.len());
        }
        io::stderr().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
    // Nearly every text is short and plain.
    if text.len() <= OUTSIDE_MAX_CHARS && !text.contains(char::is_control) {
        return text.to_owned();
    }
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

/// Logs a mark of the walk: step and names as in `gateway_core::walk`.
pub fn marked(mark: &Mark) {
    tracing::info!(
        step = mark.step.name(),
        machine_id = mark.machine.as_ref().map(|id| id.0.as_str()),
        mac = %mark.mac,
        detail = %redact(&mark.detail),
        "walk"
    );
}

/// Logs what a ledger record says of a machine; its reasons have lines of their own.
pub fn recorded(seq: u64, record: &Record) {
    match record {
        Record::Claim(claim) => tracing::info!(
            step = Step::Appraise.name(),
            machine_id = claim.machine.0,
            correlation = claim.correlation,
            seq,
            "claim"
        ),
        Record::Verdict(verdict) => tracing::info!(
            step = Step::Appraise.name(),
            machine_id = verdict.machine.as_ref().map(|id| id.0.as_str()),
            correlation = verdict.correlation,
            admitted = verdict.admitted,
            seq,
            "verdict"
        ),
        Record::Certificate(certificate) => tracing::info!(
            step = certificate.machine.is_some().then(|| Step::Issue.name()),
            machine_id = certificate.machine.as_ref().map(|id| id.0.as_str()),
            correlation = certificate.correlation,
            profile = certificate.profile,
            serial = certificate.serial,
            seq,
            "certificate"
        ),
        Record::EkCertificates(record) => tracing::info!(
            machine_id = record.machine.0,
            assurance = record.assurance,
            without_chain = record
                .certs
                .iter()
                .filter(|cert| cert.path.is_empty())
                .count(),
            seq,
            "ek certificates"
        ),
        Record::Bridge(bridge) => tracing::info!(
            machine_id = bridge.machine.as_ref().map(|id| id.0.as_str()),
            what = bridge.what.name(),
            ids = bridge.ids.len(),
            seq,
            "bridge"
        ),
        Record::Delivery(delivery) => tracing::info!(
            step = Step::Issue.name(),
            machine_id = delivery.machine.0,
            correlation = delivery.correlation,
            payloads = delivery.items.len(),
            seq,
            "delivery"
        ),
        Record::Anchor(anchor) => tracing::debug!(counter = anchor.counter, seq, "anchor"),
        Record::Talos(record) => tracing::info!(
            machine_id = record.machine.0,
            peer = record.peer.map(tracing::field::display),
            seq,
            "talos: {}",
            record.event.text()
        ),
        Record::Policy(policy) => tracing::info!(sha256 = policy.sha256, seq, "policy"),
        Record::Pruned(pruned) => tracing::info!(
            first_seq = pruned.first_seq,
            segments = pruned.segments,
            carried = pruned.carried,
            seq,
            "old ledger segments removed"
        ),
        Record::Gate(gate) => tracing::info!(
            machine_id = gate.machine.0,
            change = ?gate.change,
            cause = gate.cause.name(),
            elements = gate.elements,
            seq,
            "gate"
        ),
        Record::Run(run) => tracing::info!(
            step = Step::Install.name(),
            machine_id = run.machine.0,
            run = run.run,
            image = run.image,
            version = run.version,
            disk = %redact(&run.disk_serial),
            seq,
            "run"
        ),
        Record::Grant(grant) => tracing::info!(
            step = Step::Install.name(),
            machine_id = grant.machine.0,
            run = grant.run,
            grant = grant.grant,
            attempt = grant.attempt,
            correlation = grant.correlation,
            seq,
            "grant"
        ),
        Record::Progress(progress) => tracing::info!(
            step = Step::Install.name(),
            machine_id = progress.machine.0,
            run = progress.run,
            reached = progress.step.as_str(),
            detail = %redact(&progress.detail),
            seq,
            "progress"
        ),
        Record::RunEnd(end) => tracing::info!(
            step = Step::Install.name(),
            machine_id = end.machine.0,
            run = end.run,
            outcome = end.outcome.as_str(),
            seq,
            "run ended"
        ),
        // Acts are logged by the admin endpoint with the role; refusals by `decided`.
        Record::Genesis(_) | Record::Operator(_) | Record::RefusalSummary(_) => {}
    }
}

/// Logs one refusal of the core with its five parts as fields. `subject` is a correlation id, a
/// hardware address or a machine.
pub fn decided(subject: &str, reason: &Reason) {
    tracing::warn!(
        subject,
        reason = %reason.code,
        expected = %redact(&reason.expected),
        found = %redact(&reason.found),
        source = %reason.source,
        next = %reason.next,
        "refused"
    );
}

/// Logs the register values that a quote has proven, none before it has: what a person compares when a
/// boot is refused.
pub fn quoted(pcrs: &BTreeMap<u8, [u8; 32]>) {
    if pcrs.is_empty() || !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let values: Vec<String> = pcrs
        .iter()
        .map(|(pcr, value)| format!("{pcr}={}", hex::encode(value)))
        .collect();
    tracing::debug!(pcrs = values.join(" "), "quoted");
}

/// Logs one refusal of a listener with its five parts as fields.
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
    fn lines_of_the_walk_carry_its_names() {
        use std::sync::{Arc, Mutex, PoisonError};

        use gateway_core::identity::{MacAddr, MachineId, UnixMillis};

        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                lines.write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            marked(&Mark {
                mac: MacAddr([2, 0, 0, 0, 0, 7]),
                machine: Some(MachineId("node-7".into())),
                step: Step::Lease,
                at: UnixMillis(1),
                detail: "leased\n10.0.0.7".into(),
            });
            decided("m-1", &Reason::new("ek.unknown", "a", "b", "c", "d"));
        });
        let bytes = lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&bytes);
        let events: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("one event per line"))
            .collect();
        let expected = [
            ("step", "lease"),
            ("machine_id", "node-7"),
            ("mac", "02:00:00:00:00:07"),
            ("detail", "leased\\n10.0.0.7"),
        ];
        for (field, value) in expected {
            assert_eq!(events[0][field], value, "{text}");
        }
        for (field, value) in [
            ("subject", "m-1"),
            ("reason", "ek.unknown"),
            ("expected", "a"),
            ("found", "b"),
            ("source", "c"),
            ("next", "d"),
        ] {
            assert_eq!(events[1][field], value, "{text}");
        }
    }

    #[test]
    fn lines_are_held_to_the_end_of_the_last_hold() {
        let mut held = Held::new();
        assert!(!held.keep(b"at once"));
        held.holds = 2;
        assert!(held.keep(b"first\n"));
        assert!(held.end().is_empty());
        assert!(held.keep(b"second\n"));
        assert_eq!(held.end(), b"first\nsecond\n");
    }

    #[test]
    fn text_from_outside_stays_on_one_line() {
        let text = redact(&format!("a\nb\u{1b}[2J{}", "x".repeat(1000)));
        assert!(!text.contains(['\n', '\u{1b}']), "{text}");
        assert!(text.chars().count() < 220);
    }
}
