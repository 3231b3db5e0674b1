//! Counts what ran: libtest's output and the `PASS`/`FAIL`/`SKIP` lines of our own checks.

/// Sum over checks.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Ran and held.
    pub passed: usize,
    /// Ran and did not hold, or could not run to its end.
    pub failed: usize,
    /// Names of what failed.
    pub failures: Vec<String>,
    /// Did not run, `name: reason` each.
    pub skips: Vec<String>,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.skips.extend(other.skips);
    }

    /// One check by its outcome.
    pub fn single(name: &str, ok: bool) -> Self {
        Self {
            passed: usize::from(ok),
            failed: usize::from(!ok),
            failures: if ok {
                Vec::new()
            } else {
                vec![name.to_owned()]
            },
            skips: Vec::new(),
        }
    }

    /// Reads the output of `cargo test -- --show-output`. A test that printed `SKIP reason` counts
    /// as skipped, not as passed, though libtest calls it ok.
    pub fn from_libtest(lines: &[String]) -> Self {
        let mut tally = Self::default();
        let mut binary = String::new();
        let mut test = String::new();
        let mut skipped_tests = std::collections::BTreeSet::new();
        for line in lines {
            let text = line.trim_start();
            if let Some(rest) = text
                .strip_prefix("Running ")
                .or_else(|| text.strip_prefix("Doc-tests "))
            {
                binary = rest.split(" (").next().unwrap_or(rest).to_owned();
            } else if let Some(rest) = text.strip_prefix("---- ") {
                test = rest.split(" stdout").next().unwrap_or(rest).to_owned();
            } else if let Some(reason) = text.strip_prefix("SKIP ") {
                skipped_tests.insert(format!("{binary} {test}"));
                tally.skips.push(format!("{test}: {reason}"));
            } else if let Some(rest) = text.strip_prefix("test result: ") {
                let count = |word: &str| count_before(rest, word);
                tally.passed += count("passed");
                tally.failed += count("failed");
                test.clear();
            } else if let Some((name, outcome)) = text
                .strip_prefix("test ")
                .and_then(|rest| rest.split_once(" ... "))
            {
                tally.one_test(&binary, name, outcome);
            }
        }
        tally.passed = tally.passed.saturating_sub(skipped_tests.len());
        tally
    }

    /// One line of libtest.
    fn one_test(&mut self, binary: &str, name: &str, outcome: &str) {
        if outcome == "FAILED" {
            self.failures.push(format!("{binary} {name}"));
        } else if let Some(reason) = outcome.strip_prefix("ignored") {
            let reason = reason.trim_start_matches(", ");
            // The body of another test, which starts it in a process of its own: it did run.
            if !reason.starts_with("run by ") {
                self.skips.push(format!("{name}: ignored, {reason}"));
            }
        }
    }

    /// Reads `PASS name`, `FAIL name why` and `SKIP reason` lines.
    pub fn from_verdicts(lines: &[String]) -> Self {
        let mut tally = Self::default();
        for line in lines {
            if line.starts_with("PASS ") {
                tally.passed += 1;
            } else if let Some(rest) = line.strip_prefix("FAIL ") {
                tally.failed += 1;
                tally.failures.push(rest.to_owned());
            } else if let Some(rest) = line.strip_prefix("SKIP ") {
                tally.skips.push(rest.to_owned());
            }
        }
        tally
    }
}

fn count_before(text: &str, word: &str) -> usize {
    text.split([';', '.'])
        .filter_map(|part| part.trim().strip_suffix(word))
        .filter_map(|number| number.trim().parse().ok())
        .next()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(String::from).collect()
    }

    #[test]
    fn libtest_counts_a_skipping_test_as_skipped() {
        let tally = Tally::from_libtest(&lines(
            "     Running unittests src/lib.rs (target/debug/deps/hw-1)\n\
             running 3 tests\n\
             test a ... ok\n\
             test b ... ok\n\
             test c ... FAILED\n\
             test d ... ignored, a measurement\n\
             test e ... ignored, run by a\n\
             successes:\n\
             ---- b stdout ----\n\
             SKIP swtpm is not installed\n\
             SKIP and no device either\n\
             test result: FAILED. 2 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
        ));
        assert_eq!((tally.passed, tally.failed), (1, 1));
        assert_eq!(tally.failures, ["unittests src/lib.rs c"]);
        assert_eq!(
            tally.skips,
            [
                "d: ignored, a measurement",
                "b: swtpm is not installed",
                "b: and no device either"
            ]
        );
    }

    #[test]
    fn several_binaries_are_summed() {
        let tally = Tally::from_libtest(&lines(
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.0s\n\
             test result: ok. 30 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.0s\n",
        ));
        assert_eq!(tally.passed, 42);
        assert_eq!(
            tally,
            Tally {
                passed: 42,
                ..Tally::default()
            }
        );
    }

    #[test]
    fn verdict_lines() {
        let tally = Tally::from_verdicts(&lines(
            "noise\nPASS walk\nFAIL storm 3 of 50 machines not admitted\nSKIP dhclient absent\n",
        ));
        assert_eq!((tally.passed, tally.failed), (1, 1));
        assert_eq!(tally.failures, ["storm 3 of 50 machines not admitted"]);
        assert_eq!(tally.skips, ["dhclient absent"]);
    }
}
