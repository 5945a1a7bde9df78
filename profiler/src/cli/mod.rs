//! The command line: from words to a recording, and from a recording to words.
//!
//! `args` is exactly what was typed, `settings` is that checked; below it nothing knows the command line. Each
//! command has a file. `report` and `status` do all the talking about a recording; errors travel up to `main`.

mod activate;
mod args;
mod completions;
mod doctor;
mod duration;
mod exit;
mod file_remark;
mod files;
mod follow;
mod help;
mod logging;
mod man;
mod missing_names;
mod names;
mod panics;
mod record;
mod report;
mod settings;
mod shortened;
mod signals;
mod stamp;
mod status;
mod surroundings;
mod text;
mod writer;

use std::{ffi::OsString, process::ExitCode};

use clap::{
    CommandFactory as _, FromArgMatches as _,
    error::{ContextKind, ContextValue, ErrorKind},
};
use clap_complete::Shell;

pub use exit::{exit_code, is_told, message};

use self::{
    args::{ActivateArgs, Cli, Command, DoctorArgs, RecordArgs},
    settings::{Settings, Typed},
};
use crate::{output, process::launch, session};

/// The program from its words (the first one is its name) to its exit code.
///
/// Errors are for [`exit_code`] to classify and for `main` to print. A `clap::Error` among them prints itself: it
/// may be the help text.
pub fn run(words: impl IntoIterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let words: Vec<OsString> = words.into_iter().collect();
    if let [_, first, command @ ..] = words.as_slice() {
        if first == launch::HELPER {
            return Ok(launch::exec_when_ready(command).into());
        }
        if let Some(code) = session::run_symbol_process(first) {
            return Ok(code);
        }
    }
    panics::tell_in_one_line();
    panics::caught(|| run_command(words))
}

fn run_command(words: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let code = match parse(words)? {
        Parsed::Record { args, typed } => {
            logging::start(args.verbose);
            let settings = Settings::check(args, typed)?;
            surroundings::check_proc()?;
            surroundings::check_limits()?;
            record::run(&settings)?
        }
        Parsed::Doctor(args) => {
            output::check_stdout()?;
            surroundings::check_proc()?;
            doctor::run(&args)?
        }
        Parsed::Activate(args) => {
            surroundings::check_proc()?;
            activate::run(&args)?
        }
        Parsed::Completions(shell) => {
            output::check_stdout()?;
            completions::run(shell)?
        }
        Parsed::Man => {
            output::check_stdout()?;
            man::run()?
        }
    };
    Ok(code.into())
}

/// What the words ask for.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// A recording.
    Record {
        /// Its options.
        args: RecordArgs,
        /// Where they came from.
        typed: Typed,
    },
    /// What a recording would run into.
    Doctor(DoctorArgs),
    /// Trampolines on or off.
    Activate(ActivateArgs),
    /// A completion script.
    Completions(Shell),
    /// The manual page.
    Man,
}

/// Parses the words; help and version arrive as errors, as clap has it.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Parsed, clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    let matches = command()
        .try_get_matches_from(&words)
        .map_err(|err| with_advice(err, words.get(1).and_then(|word| word.to_str())))?;
    let cli = Cli::from_arg_matches(&matches)?;
    Ok(match cli.command {
        None => Parsed::Record {
            args: cli.record,
            typed: Typed::of(&matches),
        },
        Some(Command::Record(args)) => Parsed::Record {
            args,
            typed: matches
                .subcommand()
                .map(|(_, matches)| Typed::of(matches))
                .unwrap_or_default(),
        },
        Some(Command::Doctor(args)) => Parsed::Doctor(args),
        Some(Command::Activate(args)) => Parsed::Activate(args),
        Some(Command::Completions { shell }) => Parsed::Completions(shell),
        Some(Command::Man) => Parsed::Man,
    })
}

/// A word where none is expected is nearly always a pid without its option, or a command without its dashes. `first` is
/// the first word of all, which names the command if there is one.
fn with_advice(err: clap::Error, first: Option<&str>) -> clap::Error {
    let word = match (err.kind(), err.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => text::visible(word),
        _ => return err,
    };
    if word.starts_with('-') {
        return without_dashes_tip(err);
    }
    let is_number = word.bytes().all(|b| b.is_ascii_digit());
    let advice = match first {
        Some("doctor") if is_number => {
            format!("to look at the process of that number, use `doctor --pid {word}`")
        }
        Some("activate") if is_number => {
            format!("for the process of that number, use `activate --pid {word}`")
        }
        Some("doctor" | "activate" | "completions" | "man") => return err,
        _ if is_number => format!("to record the process of that number, use `--pid {word}`"),
        _ => format!("a command to start comes after two dashes, `record -- {word}`"),
    };
    let mut command = command();
    command.build();
    let command = match first.and_then(|name| command.find_subcommand_mut(name)) {
        Some(subcommand) => subcommand,
        None => &mut command,
    };
    command.error(
        ErrorKind::UnknownArgument,
        format!("unexpected `{word}`: {advice}"),
    )
}

/// The error without clap's tip to put an unknown option after two dashes: it would be a command to start there.
fn without_dashes_tip(mut err: clap::Error) -> clap::Error {
    if let Some(ContextValue::StyledStrs(mut tips)) = err.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains(" as a value, use "));
        if !tips.is_empty() {
            err.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    err
}

/// The definition of the command line, from which help, completions and the manual page are made.
pub fn command() -> clap::Command {
    Cli::command()
}
