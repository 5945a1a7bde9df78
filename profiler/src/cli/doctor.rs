//! `pyprof-bpf doctor`: what a recording would run into, a line for each thing.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use anyhow::Context as _;

use super::{
    args::DoctorArgs,
    exit, names,
    text::{clip, visible},
};
use crate::{
    doctor::{Check, FrameFacts, Machine, Patient, State, verdict},
    model::Pid,
    session::{PythonSource, TargetSummary},
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

/// What the report of a recording would say, in its words.
fn name_check(patient: &Patient) -> Check {
    let refusals: Vec<String> = (!patient.map.refusal.is_empty())
        .then(|| format!("{} was not read: {}", patient.map.path, patient.map.refusal))
        .into_iter()
        .collect();
    let target = TargetSummary {
        pid: patient.pid,
        command: patient.command.clone(),
        label: String::new(),
        samples: 0,
        python: patient.python.clone(),
        cpu_time: Duration::ZERO,
        source: match &patient.frames {
            FrameFacts::Known(version) => PythonSource::Interpreter(*version),
            FrameFacts::Refused(reason) => PythonSource::Refused(reason.clone()),
            FrameFacts::NoPython | FrameFacts::NotYet(_) => PythonSource::NotYet,
        },
        names: patient.diagnosis(),
    };
    let mut lines = names::advice(&target, &refusals, false).into_iter();
    let finding = lines.next();
    let mut check = Check {
        name: "names",
        state: match target.names {
            NameDiagnosis::Named => State::Ok,
            _ => State::Limited,
        },
        finding: finding.unwrap_or_else(|| "Python functions have names".to_owned()),
        next: lines.map(|line| line.trim().to_owned()).collect(),
    };
    if check.state == State::Limited && check.next.is_empty() {
        // The advice is one sentence.
        if let Some((finding, next)) = check.finding.rsplit_once("; ") {
            (check.next, check.finding) = (vec![next.to_owned()], finding.to_owned());
        } else {
            // What is wrong with the map has its own check.
            check.next = vec!["see perf map".to_owned()];
        }
    }
    check
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
