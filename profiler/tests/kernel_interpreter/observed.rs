//! A program that says what its stacks look like, and what a recording makes of them.

use std::{path::PathBuf, process::Command};

use super::{
    Python,
    judge::{Codes, Tally},
    note,
    recording::{Recorder, Recording, begin},
    running::Running,
    scratch, script,
};

/// As people record, but for the lines.
pub(super) const WITH_LINES: [&str; 3] = ["--python-from", "auto", "--lines"];

/// One of `scripts/`, running.
pub(super) struct Program {
    pub(super) target: Running,
    /// What functions it has.
    pub(super) codes: Codes,
}

impl Program {
    /// Under this interpreter, as people run it.
    pub(super) fn start(python: &Python, name: &str) -> Self {
        Self::start_as(&mut python.plain(), name)
    }

    /// The same; `command` lacks the program.
    pub(super) fn start_as(command: &mut Command, name: &str) -> Self {
        let files = scratch();
        let file: PathBuf = files.path().join("codes");
        command.arg(script(name)).arg("--codes").arg(&file);
        let target = Running::start(command);
        Self {
            codes: Codes::read(&file),
            target,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// Records it with lines, until the options say that it is enough.
    pub(super) fn begin(&self, options: &[&str]) -> Recorder {
        begin(self.pid(), &[options, &WITH_LINES].concat())
    }

    /// The same, to its end.
    pub(super) fn record(&self, options: &[&str]) -> Recording {
        self.begin(options).end()
    }
}

/// Judges each stack of a recording with at least so many samples, and none of them is to lie.
pub(super) fn judged(recording: &Recording, codes: Option<&Codes>, samples_min: u64) -> Tally {
    recording.assert_done(samples_min);
    let mut tally = Tally::default();
    for stack in &recording.stacks {
        tally.add(&stack.frames, stack.count, codes);
    }
    note(tally.text());
    tally.assert_none_wrong();
    tally
}

/// So many of all samples are right. Of few samples, one may be among those that are not.
pub(super) fn assert_right(tally: &Tally, least: f64, recording: &Recording) {
    let all = tally.all();
    let others = ((1.0 - least) * all as f64).max(1.0);
    assert!(
        (all - tally.right) as f64 <= others,
        "{}\n{}",
        tally.text(),
        recording.report
    );
}
