//! Why Python functions have no names, and what to do about it: the line people need most.

use super::text::{clip, columns, visible};
use crate::{
    session::{PythonSource, TargetSummary},
    symbols::NameDiagnosis,
};

/// Room for a command line in a sentence.
const COMMAND_COLUMNS: usize = 60;

/// The last CPython without trampolines of its own: those that it can be given have other commands.
const LAST_WITHOUT_OWN: (u8, u8) = (3, 11);

/// The first CPython whose frames are read.
const FIRST_READ: (u8, u8) = (3, 8);

/// What is to be said about the names of one target, in five lines at most; nothing where all is well. `refusals` is what
/// was wrong with perf maps.
pub(crate) fn advice(target: &TargetSummary, refusals: &[String], follows: bool) -> Vec<String> {
    let pid = target.pid;
    let lines: Vec<String> = match target.names {
        NameDiagnosis::Named => vec![],
        NameDiagnosis::NotPython => vec![format!(
            "no Python names: pid {pid} ({}) is not a CPython process; its native stacks are there{}",
            short_command(target),
            if follows { "" } else { ". If it starts Python, -s records that too" }
        )],
        NameDiagnosis::TooOld { .. } | NameDiagnosis::NotActivated
            if target.source == PythonSource::NotYet => vec![
            format!(
                "no Python names: {} had no frames to be read while it was recorded; native stacks are there:",
                interpreter(target)
            ),
            "  it was starting or ending, runs no Python in these threads, or this machine was too busy; record it longer".to_owned(),
        ],
        NameDiagnosis::TooOld { version } => vec![format!(
            "no Python names: {}; native stacks are there{}",
            obstacle(target),
            if is_asked_for(target) && version >= FIRST_READ {
                ". Omit --python-from, and its own frames are read"
            } else {
                ""
            }
        )],
        NameDiagnosis::NotActivated if let Some(python) = old_python(target) => without_own(target, &python),
        NameDiagnosis::NotActivated => vec![
            format!(
                "no Python names: {}; native stacks are there. {} with",
                obstacle(target),
                if is_asked_for(target) {
                    "Omit --python-from or switch it on"
                } else {
                    "A perf map gives names: start it"
                }
            ),
            "  `python -X perf`, PYTHONPERFSUPPORT=1 (which -I and -E ignore), or sys.activate_stack_trampoline(\"perf\") in it"
                .to_owned(),
        ],
        NameDiagnosis::ActivatedLate => vec![
            "trampolines were switched on late: functions that were running then are not in the picture until they are"
                .to_owned(),
            format!(
                "  called again; `{}` switches them on from the start",
                command_with_names(target)
            ),
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
            vec![format!("no Python names: the perf map of pid {pid} was refused{}", reason(refusals))]
        }
        NameDiagnosis::MapUnreadable if refusals.is_empty() => vec![format!(
            "no Python names: the perf map of pid {pid} names none of the code that ran; it was emptied or written \
             over: restart the process"
        )],
        NameDiagnosis::MapUnreadable => {
            vec![format!("no Python names: the perf map of pid {pid} is of no use{}", reason(refusals))]
        }
    };
    lines
}

/// What to do for a CPython that can be given trampolines.
fn without_own(target: &TargetSummary, python: &str) -> Vec<String> {
    vec![
        format!(
            "no Python names: {}; native stacks are there. {}ive it some with",
            obstacle(target),
            if is_asked_for(target) {
                "Omit --python-from or g"
            } else {
                "G"
            }
        ),
        format!(
            "  `pyprof-bpf record --python-from perf-map -- {python} app.py`, without Python's -I, -E and -S;"
        ),
        format!(
            "  or `{python} -m pyprof_trampoline app.py`, with the wheel of pyprof-bpf installed by `{python} -m pip`;"
        ),
        "  or, in the program, `import pyprof_trampoline; pyprof_trampoline.activate()`".to_owned(),
    ]
}

/// Perf maps were asked for: the interpreter's own frames may well be there to be read.
fn is_asked_for(target: &TargetSummary) -> bool {
    target.source == PythonSource::PerfMap
}

/// Why the interpreter's own frames are not read.
fn obstacle(target: &TargetSummary) -> String {
    match &target.source {
        PythonSource::Refused(reason) => visible(reason),
        _ if old_python(target).is_some() => {
            format!("{} has no trampolines of its own", interpreter(target))
        }
        _ => format!("{} was started without perf support", interpreter(target)),
    }
}

/// The command that starts such a program with names.
fn command_with_names(target: &TargetSummary) -> String {
    match old_python(target) {
        Some(python) => format!("pyprof-bpf record --python-from perf-map -- {python} app.py"),
        None => "python -X perf".to_owned(),
    }
}

/// `python3.11`, if the target is a CPython without trampolines of its own.
fn old_python(target: &TargetSummary) -> Option<String> {
    let (major, minor) = target
        .python
        .version
        .filter(|version| *version <= LAST_WITHOUT_OWN)?;
    Some(format!("python{major}.{minor}"))
}

fn interpreter(target: &TargetSummary) -> String {
    match target.python.version {
        Some((major, minor)) => format!("CPython {major}.{minor}"),
        None => "Python".to_owned(),
    }
}

/// The session's own words, where it has some.
fn reason(refusals: &[String]) -> String {
    match refusals {
        [] => "; it must be a regular file of the target's user".to_owned(),
        [only] => format!(": {}", visible(only)),
        [first, others @ ..] => format!(": {} (and {} more)", visible(first), others.len()),
    }
}

/// A command line short enough to stand in a sentence: the program without its directory, and the script's name
/// whatever directory it is in. What is still too long is cut at its end.
pub(crate) fn short_command(target: &TargetSummary) -> String {
    let command = visible(&target.command);
    let (program, arguments) = command.split_once(' ').unwrap_or((&command, ""));
    let program = program
        .rsplit_once('/')
        .map(|(_, name)| name)
        .filter(|name| !name.is_empty() && !program.starts_with('['))
        .unwrap_or(program);
    let mut words = vec![program.to_owned()];
    words.extend(arguments.split(' ').map(str::to_owned));
    for at in 1..words.len() {
        if columns(&words.join(" ")) <= COMMAND_COLUMNS {
            break;
        }
        if let Some((_, name)) = words[at].rsplit_once('/')
            && !name.is_empty()
        {
            words[at] = format!("…/{name}");
        }
    }
    clip(words.join(" ").trim_end(), COMMAND_COLUMNS)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{model::Pid, process::PythonInfo};

    fn short(command: &str) -> String {
        short_command(&TargetSummary {
            pid: Pid(1),
            label: String::new(),
            command: command.to_owned(),
            samples: 0,
            python: PythonInfo {
                version: None,
                interpreter_files: vec![],
                trampolines_asked: false,
                jitdump: false,
            },
            cpu_time: Duration::ZERO,
            source: PythonSource::PerfMap,
            names: NameDiagnosis::Named,
        })
    }

    #[test]
    fn the_program_is_shown_without_its_directory() {
        assert_eq!(
            short("/opt/python/3.12.1/bin/python3 -X perf app.py --fast"),
            "python3 -X perf app.py --fast"
        );
        assert_eq!(short("venv/bin/python"), "python");
        assert_eq!(short("[kworker/0:1]"), "[kworker/0:1]");
        assert_eq!(short("nginx: worker /etc/x"), "nginx: worker /etc/x");
    }

    #[test]
    fn a_long_command_keeps_the_name_of_its_script() {
        let deep = "/srv/a/very/deep/directory/of/a/deployment/with/versions/1.2.3";
        assert_eq!(
            short(&format!(
                "{deep}/bin/python3 -X perf {deep}/app.py -v {deep}/in"
            )),
            "python3 -X perf …/app.py -v …/in"
        );
        assert_eq!(
            short(&format!(
                "{deep}/bin/python3 {deep}/app.py {}",
                "x".repeat(90)
            )),
            format!("python3 …/app.py {}…", "x".repeat(41))
        );
    }
}
