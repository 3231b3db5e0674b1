//! One machine's walk as a person reads it: what the daemon recorded, what the console said, in
//! order of time. Nothing is added: a step that neither of them reported is not printed.

use gateway_core::record::Mark;
use gateway_core::view::TimelineEntry;
use gateway_core::walk::{Step, WALK};

use crate::vm::SerialLine;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Wall clock, milliseconds since 1970.
    pub at_ms: u64,
    /// `journal`, `ledger` or `console`.
    pub source: String,
    /// Step of the walk, where the source names one.
    pub step: Option<Step>,
    /// What it says.
    pub text: String,
}

/// Beginnings of console lines that tell where the machine is.
const CONSOLE: &[&str] = &[
    "vestibule:",
    "BdsDxe: ",
    ">>Start PXE",
    ">>Start HTTP",
    "iPXE 2",
    "iPXE 1",
    "https://",
    "EFI stub:",
];

/// Merges all sources. `marks` are the machine's marks as the journal on disk has them: the API
/// shows the last of each step, the file also the first.
pub fn merge(recorded: &[TimelineEntry], marks: &[Mark], console: &[SerialLine]) -> Vec<Line> {
    let shown = |mark: &&Mark| {
        recorded
            .iter()
            .all(|e| e.step != Some(mark.step) || e.at != mark.at)
    };
    let mut lines: Vec<Line> = recorded
        .iter()
        .map(|entry| Line {
            at_ms: entry.at.0,
            source: entry.source.clone(),
            step: entry.step,
            text: entry.text.clone(),
        })
        .chain(marks.iter().filter(shown).map(|mark| Line {
            at_ms: mark.at.0,
            source: "journal".to_owned(),
            step: Some(mark.step),
            text: mark.detail.clone(),
        }))
        .chain(
            console
                .iter()
                .filter(|line| CONSOLE.iter().any(|start| line.text.starts_with(start)))
                .map(|line| Line {
                    at_ms: line.at_ms,
                    source: "console".to_owned(),
                    step: None,
                    text: line.text.clone(),
                }),
        )
        .collect();
    lines.sort_by_key(|line| line.at_ms);
    lines
}

/// Steps of the walk that the daemon has not recorded. An installation is an owner's to begin, and is none of
/// them (scenario `install-vm`).
pub fn missing(lines: &[Line]) -> Vec<Step> {
    WALK.iter()
        .map(|row| row.step)
        .filter(|step| *step != Step::Install)
        .filter(|step| lines.iter().all(|line| line.step != Some(*step)))
        .collect()
}

/// The name that code, tests, spans and ledger use.
pub fn step_name(step: Step) -> String {
    serde_json::to_value(step)
        .ok()
        .and_then(|value| value.as_str().map(String::from))
        .unwrap_or_default()
}

/// Prints the lines with seconds since `start_ms`.
pub fn print(lines: &[Line], start_ms: u64) {
    for line in lines {
        let secs = (line.at_ms as f64 - start_ms as f64) / 1000.0;
        let step = line.step.map(step_name).unwrap_or_default();
        let text: String = line.text.chars().take(110).collect();
        println!("{secs:8.2} s  {:8} {step:10} {text}", line.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gateway_core::identity::UnixMillis;

    fn entry(at: u64, step: Option<Step>) -> TimelineEntry {
        TimelineEntry {
            at: UnixMillis(at),
            step,
            source: "journal".into(),
            seq: None,
            text: String::new(),
            reasons: Vec::new(),
        }
    }

    fn mark(at: u64) -> Mark {
        Mark {
            mac: gateway_core::identity::MacAddr([0; 6]),
            machine: None,
            step: Step::Discover,
            at: UnixMillis(at),
            detail: String::new(),
        }
    }

    #[test]
    fn order_is_by_time_and_noise_of_the_console_is_left_out() {
        let serial = |at_ms, text: &str| SerialLine {
            at_ms,
            text: text.into(),
        };
        let lines = merge(
            &[
                entry(30, Some(Step::Hello)),
                entry(10, Some(Step::Discover)),
            ],
            &[mark(10), mark(7)],
            &[
                serial(20, "vestibule: [hello] x"),
                serial(5, "[ 0.1] ACPI: noise"),
            ],
        );
        let at: Vec<u64> = lines.iter().map(|l| l.at_ms).collect();
        assert_eq!(at, [7, 10, 20, 30]);
    }

    #[test]
    fn a_step_nobody_reported_is_missing() {
        let all: Vec<_> = WALK.iter().map(|row| entry(0, Some(row.step))).collect();
        assert!(missing(&merge(&all, &[], &[])).is_empty());
        assert_eq!(missing(&merge(&all[1..], &[], &[])), [Step::Discover]);
        // The console cannot stand in for the daemon.
        let console = [SerialLine {
            at_ms: 0,
            text: "vestibule: [discover] x".into(),
        }];
        assert_eq!(missing(&merge(&all[1..], &[], &console)), [Step::Discover]);
    }
}
