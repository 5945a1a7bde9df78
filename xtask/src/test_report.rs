//! Adds up what test programs print, for the standard harness and libtest-mimic alike.

use std::fmt;

/// Totals over all test programs so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    skipped: u64,
    /// Test and reason, for each one that was skipped or could not report.
    remarks: Vec<String>,
}

impl Report {
    /// Takes in one line of a test program's output.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += count(counts, "passed");
            self.failed += count(counts, "failed");
            self.skipped += count(counts, "ignored");
        } else if let Some(test) = line.strip_prefix("test ") {
            self.read_test(test);
        }
    }

    /// Enters a whole program that cannot be run.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        self.skipped += 1;
        self.remarks.push(format!("skipped {name}: {reason}"));
    }

    /// Enters a program that ended badly without a failed test.
    pub(crate) fn fail(&mut self, name: &str, reason: &str) {
        self.failed += 1;
        self.remarks.push(format!("failed {name}: {reason}"));
    }

    /// `name ... ignored, reason` from the standard harness, `name ... ignored (reason)`
    /// from libtest-mimic, `name ... FAILED` from both.
    fn read_test(&mut self, test: &str) {
        let Some((name, outcome)) = test.split_once(" ... ") else {
            return;
        };
        let name = name.trim();
        if let Some(reason) = outcome.strip_prefix("ignored") {
            let reason = reason.trim_start_matches([',', ' ']);
            let bare = reason
                .strip_prefix('(')
                .and_then(|rest| rest.strip_suffix(')'));
            let reason = match bare.unwrap_or(reason) {
                "" => "no reason is given",
                reason => reason,
            };
            self.remarks.push(format!("skipped {name}: {reason}"));
        } else if outcome.starts_with("FAILED") {
            self.remarks.push(format!("failed {name}"));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for remark in &self.remarks {
            writeln!(f, "{remark}")?;
        }
        let Self {
            passed,
            failed,
            skipped,
            remarks: _,
        } = self;
        writeln!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// The number in front of `word`, in `ok. 3 passed; 0 failed; …`.
fn count(counts: &str, word: &str) -> u64 {
    let mut before = "";
    for next in counts.split([' ', ';', '.']) {
        if next == word {
            return before.parse().unwrap_or(0);
        }
        before = next;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lines: &[&str]) -> String {
        let mut report = Report::default();
        for line in lines {
            report.read(line);
        }
        report.to_string()
    }

    #[test]
    fn totals_and_reasons_of_both_harnesses_are_added_up() {
        let text = report(&[
            "test parses ... ok",
            "test slow   ... ignored, takes an hour",
            "test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test attaches ... ignored (no CAP_BPF)",
            "test unwinds  ... FAILED",
            "test result: FAILED. 7 passed; 1 failed; 1 ignored; 0 measured; 2 filtered out; finished in 1.02s",
        ]);
        assert_eq!(
            text,
            "skipped slow: takes an hour\nskipped attaches: no CAP_BPF\nfailed unwinds\n8 passed, 1 failed, 2 skipped\n"
        );
    }

    #[test]
    fn a_program_that_crashes_is_a_failure() {
        let mut report = Report::default();
        report.fail("kernel", "signal: 11");
        assert_eq!(
            report.to_string(),
            "failed kernel: signal: 11\n0 passed, 1 failed, 0 skipped\n"
        );
    }
}
