//! Why Python functions have no names, and what to do about it: the line people need most.

use super::text::visible;
use crate::{
    session::{Summary, TargetSummary},
    symbols::NameDiagnosis,
};

/// What is to be said about the names of one target, in one or two lines; nothing where all is well.
pub(crate) fn advice(target: &TargetSummary, summary: &Summary) -> Vec<String> {
    let pid = target.pid;
    let lines: Vec<String> = match target.names {
        NameDiagnosis::Named => vec![],
        NameDiagnosis::NotPython => vec![format!(
            "no Python names: pid {pid} ({}) is not a CPython process; its native stacks are there. \
             If it starts Python, give Python's pid",
            short_command(target)
        )],
        NameDiagnosis::TooOld { version: (major, minor) } => vec![format!(
            "no Python names: this is CPython {major}.{minor}, they come with 3.12 and later; native stacks are there \
             (--view native)"
        )],
        NameDiagnosis::NotActivated => vec![
            format!(
                "no Python names: {} was started without perf support; native stacks are there. Switch it on with",
                interpreter(target)
            ),
            "  `python -X perf`, PYTHONPERFSUPPORT=1, or sys.activate_stack_trampoline(\"perf\") in the program".to_owned(),
        ],
        NameDiagnosis::ActivatedLate => vec![
            "some Python names are missing: perf support was switched on late, and functions that were running already"
                .to_owned(),
            "  cannot be shown until they are called again; `python -X perf` switches it on from the start".to_owned(),
        ],
        NameDiagnosis::JitDump => vec![
            "no Python names: with -X perf_jit CPython keeps them in a buffered jitdump, unreadable while it runs;"
                .to_owned(),
            "  start it with `python -X perf` or PYTHONPERFSUPPORT=1 instead".to_owned(),
        ],
        NameDiagnosis::MapMissing => vec![
            format!("no Python names: perf support is on, but /tmp/perf-PID.map of pid {pid} is not there;"),
            "  it was removed, or its /tmp was not writable or was full when Python started: restart it".to_owned(),
        ],
        NameDiagnosis::MapRefused => {
            vec![format!("no Python names: the perf map of pid {pid} was refused{}", reason(summary))]
        }
        NameDiagnosis::MapUnreadable if summary.refusals.is_empty() => vec![format!(
            "no Python names: the perf map of pid {pid} names none of the code that ran; it was emptied or written \
             over: restart the process"
        )],
        NameDiagnosis::MapUnreadable => {
            vec![format!("no Python names: the perf map of pid {pid} is of no use{}", reason(summary))]
        }
    };
    lines
}

fn interpreter(target: &TargetSummary) -> String {
    match target.python.version {
        Some((major, minor)) => format!("CPython {major}.{minor}"),
        None => "Python".to_owned(),
    }
}

/// The session's own words, where it has some.
fn reason(summary: &Summary) -> String {
    match summary.refusals.as_slice() {
        [] => "; it must be a regular file of the target's user".to_owned(),
        [only] => format!(": {}", visible(only)),
        [first, others @ ..] => format!(": {} (and {} more)", visible(first), others.len()),
    }
}

/// A command line short enough to stand in a sentence.
pub(crate) fn short_command(target: &TargetSummary) -> String {
    super::text::clip(&visible(&target.command), 60)
}
