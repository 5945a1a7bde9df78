//! `pyprof-bpf doctor`: what a recording would run into, a line for each thing.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
};

use anyhow::Context as _;

use super::{
    args::DoctorArgs,
    exit,
    names::{Advice, NameCase},
    text::{clip, visible},
};
use crate::{
    doctor::{Check, FrameFacts, Machine, Patient, State, verdict},
    model::Pid,
    session::PythonSource,
    symbols::NameDiagnosis,
};

/// Columns of a state, and of a name with the blanks behind it.
const STATE: usize = 9;
const NAME: usize = 24;
/// Room for what is found; a command line may be longer.
const FINDING: usize = 160;

/// A heading and the checks below it.
type Section = (String, Vec<Check>);

/// Looks, prints, and says with its exit code whether anything can be recorded.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<u8> {
    let program = env::current_exe().map_or_else(
        |_| "pyprof-bpf".to_owned(),
        |path| path.display().to_string(),
    );
    let mut sections = vec![("this machine".to_owned(), Machine::read(program).checks())];
    if let Some(pid) = args.pid {
        let checks = match Patient::read(Pid(pid)) {
            Ok(patient) => {
                let mut checks = patient.checks();
                checks.push(name_check(&patient));
                checks
            }
            Err(error) => vec![Patient::refused(&error)],
        };
        sections.push((format!("process {pid}"), checks));
    }
    let text = text(&sections, Colours::of_stdout());
    io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to standard output")?;
    Ok(match verdict(all(&sections)) {
        State::Ok | State::Limited => exit::DONE,
        State::Missing => exit::FAILED,
    })
}

fn all(sections: &[Section]) -> impl Iterator<Item = &Check> {
    sections.iter().flat_map(|(_, checks)| checks)
}

/// What the report of a recording would say.
fn name_check(patient: &Patient) -> Check {
    let refusals: Vec<String> = (!patient.map.refusal.is_empty())
        .then(|| format!("{} was not read: {}", patient.map.path, patient.map.refusal))
        .into_iter()
        .collect();
    let source = match &patient.frames {
        FrameFacts::Known(version) => PythonSource::Interpreter(*version),
        FrameFacts::Refused(obstacle) => PythonSource::Refused(obstacle.clone()),
        FrameFacts::NoPython | FrameFacts::NotYet(_) => PythonSource::NotYet,
    };
    let case = NameCase {
        pid: patient.pid,
        command: &patient.command,
        version: patient.python.version,
        trampolines_asked: patient.python.trampolines_asked,
        source: &source,
        names: patient.diagnosis(),
        refusals: &refusals,
        follows: false,
        is_recorded: false,
    };
    let advice = case.advice();
    let state = if advice.is_some() {
        State::Limited
    } else {
        State::Ok
    };
    let Advice { finding, mut steps } = advice.unwrap_or_else(|| Advice {
        finding: "Python functions have names".to_owned(),
        steps: vec![],
    });
    if state == State::Limited && steps.is_empty() {
        // What is wrong with the map, or the interpreter, has its own check.
        let other = match case.names {
            NameDiagnosis::MapRefused | NameDiagnosis::MapUnreadable => "see perf map",
            _ => "see Python frames",
        };
        steps.push(other.to_owned());
    }
    Check {
        name: "names",
        state,
        finding,
        next: steps,
    }
}

/// Escape sequences, or nothing.
#[derive(Clone, Copy)]
struct Colours(bool);

impl Colours {
    fn of_stdout() -> Self {
        let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(io::stdout().is_terminal() && !no_color)
    }

    fn paint(self, state: State, word: &str) -> String {
        let colour = match state {
            State::Ok => 32,
            State::Limited => 33,
            State::Missing => 31,
        };
        if self.0 {
            format!("\x1b[{colour}m{word}\x1b[0m")
        } else {
            word.to_owned()
        }
    }
}

fn word_of(state: State) -> &'static str {
    match state {
        State::Ok => "ok",
        State::Limited => "limited",
        State::Missing => "missing",
    }
}

/// Everything. A step that several checks in a row have in common stands after the last of them.
fn text(sections: &[Section], colours: Colours) -> String {
    let mut lines = Vec::new();
    for (heading, checks) in sections {
        lines.push(format!("{heading}:"));
        for (at, check) in checks.iter().enumerate() {
            let word = word_of(check.state);
            lines.push(format!(
                "  {}{:blanks$}{:NAME$}{}",
                colours.paint(check.state, word),
                "",
                check.name,
                clip(&visible(&check.finding), FINDING),
                blanks = STATE - word.len(),
            ));
            if checks
                .get(at + 1)
                .is_some_and(|next| next.next == check.next)
            {
                continue;
            }
            lines.extend(
                check
                    .next
                    .iter()
                    .map(|step| format!("  {:STATE$}→ {}", "", visible(step))),
            );
        }
        lines.push(String::new());
    }
    let count = |state| all(sections).filter(|check| check.state == state).count();
    let state = verdict(all(sections));
    lines.push(colours.paint(
        state,
        &match state {
            State::Ok => "can record".to_owned(),
            State::Limited => format!("can record, {} limited", count(State::Limited)),
            State::Missing => format!("cannot record: {} missing", count(State::Missing)),
        },
    ));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, state: State, finding: &str, next: &[&str]) -> Check {
        Check {
            name,
            state,
            finding: finding.to_owned(),
            next: next.iter().map(ToString::to_string).collect(),
        }
    }

    fn sections() -> Vec<Section> {
        let checks = vec![
            check("kernel", State::Ok, "Linux 6.1", &[]),
            check("CAP_BPF", State::Missing, "loads", &["sudo"]),
            check("CAP_SYSLOG", State::Limited, "names", &["sudo"]),
            check("/proc", State::Ok, "all", &[]),
        ];
        vec![("this machine".to_owned(), checks)]
    }

    #[test]
    fn lines_are_aligned_and_a_common_step_is_told_once() {
        let expected = "\
this machine:
  ok       kernel                  Linux 6.1
  missing  CAP_BPF                 loads
  limited  CAP_SYSLOG              names
           → sudo
  ok       /proc                   all

cannot record: 1 missing
";
        assert_eq!(text(&sections(), Colours(false)), expected);
    }

    #[test]
    fn colours_change_nothing_else() {
        let plain = text(&sections(), Colours(false));
        let mut coloured = text(&sections(), Colours(true));
        assert_ne!(coloured, plain);
        for sequence in ["\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"] {
            coloured = coloured.replace(sequence, "");
        }
        assert_eq!(coloured, plain);
    }

    #[test]
    fn what_a_process_calls_itself_moves_no_cursor() {
        let evil = check("process", State::Ok, "\x1b[2J\n  ok  all", &[]);
        let text = text(&[("process 7".to_owned(), vec![evil])], Colours(false));
        assert!(text.contains("\\x1b[2J\\n  ok  all"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.ends_with("\ncan record\n"));
    }
}
