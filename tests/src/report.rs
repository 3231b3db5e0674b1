//! How a scenario speaks: notes for the reader, one PASS, FAIL or SKIP line for each check.

use std::sync::Mutex;

use anyhow::Result;

/// Collects the verdicts of one scenario while printing them.
pub struct Report {
    scenario: &'static str,
    failures: Mutex<Vec<String>>,
}

impl Report {
    /// A report for one scenario.
    pub fn new(scenario: &'static str) -> Self {
        Self {
            scenario,
            failures: Mutex::new(Vec::new()),
        }
    }

    /// Something worth reading that is no verdict.
    pub fn note(&self, text: impl AsRef<str>) {
        println!("  {}", text.as_ref());
    }

    /// One check by its outcome; a scenario goes on after a failed one where that makes sense.
    pub fn check(&self, name: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => println!("PASS {}: {name}", self.scenario),
            Err(error) => self.fail(name, &format!("{error:#}")),
        }
    }

    /// A check that cannot run here.
    pub fn skip(&self, reason: &str) {
        println!("SKIP {}: {reason}", self.scenario);
    }

    /// A failed check.
    pub fn fail(&self, name: &str, why: &str) {
        // One line for the tally; the rest is for the reader.
        let mut lines = why.lines();
        println!(
            "FAIL {}: {name}: {}",
            self.scenario,
            lines.next().unwrap_or("")
        );
        for line in lines {
            println!("  {line}");
        }
        self.failures
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(name.to_owned());
    }

    /// Names of the checks that failed.
    pub fn failures(&self) -> Vec<String> {
        self.failures
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }
}
