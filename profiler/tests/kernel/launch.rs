//! Commands that are started by the program.

use std::process::Output;

use super::{
    Python, Test, Verdict,
    recording::{Recording, pyprof},
    scratch, script,
};

pub(super) const TESTS: &[Test] = &[
    (
        "a_started_command_keeps_its_output_and_exit_code",
        exit_code,
    ),
    (
        "a_started_command_that_a_signal_ends_says_so",
        death_by_signal,
    ),
    (
        "a_started_command_outlives_the_recording",
        longer_than_recorded,
    ),
];

/// Runs `launched.py` with these words under a recording.
fn launch(python: &Python, options: &[&str], words: &[&str]) -> (Output, Recording) {
    let files = scratch();
    let file = files.path().join("launched.folded");
    let mut command = pyprof();
    command
        .args(["record", "-F", "999", "--output"])
        .arg(&file)
        .args(options)
        .arg("--");
    command
        .arg(&python.path)
        .arg(script("launched"))
        .args(words);
    let output = command.output().unwrap();
    let recording = Recording::of(&output, &file);
    (output, recording)
}

fn exit_code(python: &Python) -> Verdict {
    let (output, recording) = launch(python, &[], &["0.7", "exit", "7"]);
    assert_eq!(output.status.code(), Some(7), "{}", recording.report);
    assert_eq!(output.stdout, b"PYTHONPERFSUPPORT=1\nworked\n");
    let shown = recording.share(|stack| stack.python().ends_with(&["<module>", "work"]));
    assert!(shown > 0.5, "{shown} of {}", recording.report);
    Ok(())
}

fn death_by_signal(python: &Python) -> Verdict {
    let (output, recording) = launch(python, &[], &["0.5", "kill", "9"]);
    assert_eq!(output.status.code(), Some(128 + 9), "{}", recording.report);
    assert!(
        recording.count(|stack| stack.has("work")) > 0,
        "{}",
        recording.report
    );
    Ok(())
}

fn longer_than_recorded(python: &Python) -> Verdict {
    let (output, recording) = launch(python, &["-d", "1"], &["2", "exit", "0"]);
    assert_eq!(output.status.code(), Some(0), "{}", recording.report);
    assert_eq!(output.stdout, b"PYTHONPERFSUPPORT=1\nworked\n");
    assert!(
        recording.report.contains(" in 1.0 s;"),
        "{}",
        recording.report
    );
    assert!(
        recording.count(|stack| stack.has("work")) > 0,
        "{}",
        recording.report
    );
    Ok(())
}
