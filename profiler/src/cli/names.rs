//! Why Python functions have no names, and what to do about it: the line people need most.

use super::text::{clip, columns, visible};
use crate::{
    model::Pid,
    process::interpreter::Remedy,
    session::{PythonSource, TargetSummary},
    symbols::NameDiagnosis,
};

/// Room for a command line in a sentence.
const COMMAND_COLUMNS: usize = 60;

/// The last CPython without trampolines of its own: those that it can be given have other commands.
const LAST_WITHOUT_OWN: (u8, u8) = (3, 11);

/// The first CPython that can be given trampolines.
const FIRST_WITH_TRAMPOLINES: (u8, u8) = (3, 9);

/// The first CPython whose frames are read.
const FIRST_READ: (u8, u8) = (3, 8);

/// What is known of a process, as far as its names depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameCase<'a> {
    /// Its pid.
    pub(crate) pid: Pid,
    /// Its command line, raw.
    pub(crate) command: &'a str,
    /// Its CPython.
    pub(crate) version: Option<(u8, u8)>,
    /// It was started so that it should have trampolines.
    pub(crate) trampolines_asked: bool,
    /// Where its names come from.
    pub(crate) source: &'a PythonSource,
    /// What is wrong.
    pub(crate) names: NameDiagnosis,
    /// What was wrong with perf maps.
    pub(crate) refusals: &'a [String],
    /// Child processes are recorded as well.
    pub(crate) follows: bool,
    /// It was recorded, and not only looked at.
    pub(crate) is_recorded: bool,
}

/// What is to be said of names: at most five lines, ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    /// How it is, a sentence without its full stop.
    pub(crate) finding: String,
    /// What to do, a step a line; empty where nothing helps.
    pub(crate) steps: Vec<String>,
}

impl Advice {
    fn new<const N: usize>(finding: impl Into<String>, steps: [&str; N]) -> Self {
        Self {
            finding: finding.into(),
            steps: steps.map(str::to_owned).to_vec(),
        }
    }

    /// For a report: steps below the finding.
    pub(crate) fn into_lines(self) -> Vec<String> {
        let steps = self.steps.into_iter().map(|step| format!("  {step}"));
        std::iter::once(self.finding).chain(steps).collect()
    }
}

impl<'a> NameCase<'a> {
    /// Of a target that was recorded.
    pub(crate) fn recorded(
        target: &'a TargetSummary,
        refusals: &'a [String],
        follows: bool,
    ) -> Self {
        Self {
            pid: target.pid,
            command: &target.command,
            version: target.python.version,
            trampolines_asked: target.python.trampolines_asked,
            source: &target.source,
            names: target.names,
            refusals,
            follows,
            is_recorded: true,
        }
    }

    /// What is to be said; nothing where all is well.
    pub(crate) fn advice(&self) -> Option<Advice> {
        let pid = self.pid;
        Some(match self.names {
            NameDiagnosis::Named => return None,
            NameDiagnosis::NotPython => Advice {
                finding: format!(
                    "no Python names: no CPython was found in pid {pid} ({}); its native stacks are there",
                    short(self.command)
                ),
                steps: if self.follows {
                    vec![]
                } else {
                    vec!["if it starts Python, -s records that too".to_owned()]
                },
            },
            NameDiagnosis::TooOld { .. } | NameDiagnosis::NotActivated
                if *self.source == PythonSource::NotYet =>
            {
                self.without_frames()
            }
            NameDiagnosis::TooOld { .. } | NameDiagnosis::NotActivated
                if let Some(advice) = self.without_remedy() =>
            {
                advice
            }
            NameDiagnosis::TooOld { version } => Advice::new(
                self.nameless(),
                [if version < FIRST_READ {
                    "run the program with CPython 3.8 to 3.15"
                } else if self.is_map_wanted() {
                    "omit --python-from, and its own frames are read"
                } else {
                    "run the program with a release build of CPython, 3.8 to 3.15"
                }],
            ),
            NameDiagnosis::NotActivated => self.not_activated(),
            NameDiagnosis::ActivatedLate => Advice::new(
                "trampolines were switched on late, or off meanwhile: functions that ran without one are not in the picture",
                [&format!(
                    "until they are called with one; `{}` has them from the start",
                    self.command_with_names()
                )],
            ),
            NameDiagnosis::JitDump => Advice::new(
                "no Python names: with -X perf_jit CPython keeps them in a buffered jitdump, unreadable while it runs",
                ["start it with `python -X perf` or PYTHONPERFSUPPORT=1 instead"],
            ),
            NameDiagnosis::MapMissing => self.map_missing(),
            NameDiagnosis::MapRefused => Advice::new(
                format!(
                    "no Python names: the perf map of pid {pid} was refused{}",
                    self.refusal()
                ),
                [],
            ),
            NameDiagnosis::MapUnreadable if self.refusals.is_empty() => Advice::new(
                format!(
                    "no Python names: the perf map of pid {pid} names none of the code that ran"
                ),
                ["it was emptied or written over: restart the process"],
            ),
            NameDiagnosis::MapUnreadable => Advice::new(
                format!(
                    "no Python names: the perf map of pid {pid} is of no use{}",
                    self.refusal()
                ),
                [],
            ),
        })
    }

    /// The interpreter had no frames to be read.
    fn without_frames(&self) -> Advice {
        let interpreter = self.interpreter();
        if self.is_recorded {
            Advice::new(
                format!(
                    "no Python names: {interpreter} had no frames to be read while it was recorded; native stacks are there"
                ),
                [
                    "it was starting or ending, ran no Python code, or did not answer in time: record it longer",
                ],
            )
        } else {
            Advice::new(
                format!("no Python names at this moment: {interpreter} has no frames to be read"),
                ["a recording looks again and again"],
            )
        }
    }

    /// The interpreter's frames are not read, and perf maps would not help either.
    fn without_remedy(&self) -> Option<Advice> {
        let PythonSource::Refused(obstacle) = self.source else {
            return None;
        };
        let finding = format!("no Python names: {}", visible(&obstacle.reason));
        let step = match obstacle.remedy {
            Remedy::PerfMap => return None,
            Remedy::Rights => "run pyprof-bpf with sudo, or give it CAP_SYS_PTRACE",
            Remedy::File => {
                "let pyprof-bpf read that file: run it with sudo, where the file is, or restart the process"
            }
            Remedy::OtherPython => "record a program that runs CPython for x86-64 (64-bit)",
        };
        Some(Advice::new(finding, [step]))
    }

    fn not_activated(&self) -> Advice {
        let mut steps = self.trampoline_steps("--python-from perf-map");
        if let Some(first) = steps.first_mut() {
            let before = match (self.is_map_wanted(), self.old_python().is_some()) {
                (true, true) => "omit --python-from, or ",
                (true, false) => "omit --python-from, or have a perf map: ",
                (false, true) => "",
                (false, false) => "a perf map gives names: ",
            };
            first.insert_str(0, before);
        }
        Advice {
            finding: self.nameless(),
            steps,
        }
    }

    /// How such a program gets trampolines; `option` is the one with which `record` gives it some.
    fn trampoline_steps(&self, option: &str) -> Vec<String> {
        match self.old_python() {
            Some(python) => vec![
                format!("`pyprof-bpf record {option} -- {python} app.py`, without -I, -E and -S;"),
                format!(
                    "or `{python} -m pyprof_trampoline app.py`, with the wheel of pyprof-bpf installed by `{python} -m pip`;"
                ),
                "or, in the program, `import pyprof_trampoline; pyprof_trampoline.activate()`"
                    .to_owned(),
            ],
            None => vec![
                "`python -X perf`, PYTHONPERFSUPPORT=1 (which -I and -E ignore),".to_owned(),
                "or sys.activate_stack_trampoline(\"perf\") in the program".to_owned(),
            ],
        }
    }

    /// How this process can be recorded with interpreter frames and trampolines, both.
    pub(crate) fn cross_check_steps(&self) -> Vec<String> {
        if self
            .version
            .is_some_and(|version| version < FIRST_WITH_TRAMPOLINES)
        {
            return vec![format!("{} cannot have trampolines", self.interpreter())];
        }
        let mut steps = self.trampoline_steps("--cross-check");
        if let Some(first) = steps.first_mut() {
            first.insert_str(0, "trampolines come with ");
        }
        steps
    }

    fn map_missing(&self) -> Advice {
        let pid = self.pid;
        let cause = if self.trampolines_asked {
            "perf support was asked for at its start"
        } else {
            "trampolines are in use"
        };
        Advice::new(
            format!("no Python names: {cause}, but there is no /tmp/perf-PID.map of pid {pid}"),
            [
                "it was removed, its /tmp was not writable or full when Python started, or the program does not heed",
                "PYTHONPERFSUPPORT: restart it with `python -X perf`",
            ],
        )
    }

    /// There are no names, and why.
    fn nameless(&self) -> String {
        format!(
            "no Python names: {}; native stacks are there",
            self.obstacle()
        )
    }

    /// Perf maps were asked for: the interpreter's own frames may well be there to be read.
    fn is_map_wanted(&self) -> bool {
        *self.source == PythonSource::PerfMap
    }

    /// Why the interpreter's own frames are not read.
    fn obstacle(&self) -> String {
        match self.source {
            PythonSource::Refused(obstacle) => visible(&obstacle.reason),
            _ if self.old_python().is_some() => {
                format!("{} has no trampolines of its own", self.interpreter())
            }
            _ => format!("{} was started without perf support", self.interpreter()),
        }
    }

    /// The command that starts such a program with names.
    fn command_with_names(&self) -> String {
        match self.old_python() {
            Some(python) => format!("pyprof-bpf record --python-from perf-map -- {python} app.py"),
            None => "python -X perf".to_owned(),
        }
    }

    /// `python3.11`, if it is a CPython without trampolines of its own.
    fn old_python(&self) -> Option<String> {
        let (major, minor) = self
            .version
            .filter(|version| *version <= LAST_WITHOUT_OWN)?;
        Some(format!("python{major}.{minor}"))
    }

    fn interpreter(&self) -> String {
        match self.version {
            Some((major, minor)) => format!("CPython {major}.{minor}"),
            None => "Python".to_owned(),
        }
    }

    /// The session's own words, where it has some.
    fn refusal(&self) -> String {
        match self.refusals {
            [] => "; it must be a regular file of the target's user".to_owned(),
            [only] => format!(": {}", visible(only)),
            [first, others @ ..] => format!(": {} (and {} more)", visible(first), others.len()),
        }
    }
}

/// The command line of a target, short enough to stand in a sentence.
pub(crate) fn short_command(target: &TargetSummary) -> String {
    short(&target.command)
}

/// A command line short enough to stand in a sentence: the program without its directory, and the script's name
/// whatever directory it is in. What is still too long is cut at its end.
fn short(command: &str) -> String {
    let command = visible(command);
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
#[path = "names_tests.rs"]
mod tests;
