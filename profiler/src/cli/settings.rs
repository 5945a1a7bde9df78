//! The command line checked: what `record` is really to do. Usage errors come from here.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fmt,
    io::{self, IsTerminal as _},
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use clap::{ArgMatches, error::ErrorKind, parser::ValueSource};

use super::{
    args::{FormatArg, Pids, PythonFromArg, RecordArgs, ViewArg},
    duration::parse_duration,
    stamp::utc_stamp,
    text::visible,
};
use crate::{
    model::{Hz, Pid},
    output::{self, Format},
    process::Container,
    profile::{Granularity, View},
    session::PythonFrom,
};

/// A recording, checked.
#[derive(Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct Settings {
    pub(crate) target: Target,
    pub(crate) subprocesses: bool,
    pub(crate) merge_processes: bool,
    pub(crate) duration: Option<Duration>,
    pub(crate) frequency: Hz,
    pub(crate) realtime: Option<u32>,
    pub(crate) kernel_stacks: bool,
    pub(crate) threads: bool,
    pub(crate) outputs: Outputs,
    pub(crate) view: View,
    pub(crate) granularity: Granularity,
    pub(crate) quiet: bool,
    pub(crate) python_from: PythonFrom,
    pub(crate) cross_check: bool,
    pub(crate) bpf_stats: bool,
    pub(crate) ring_bytes: Option<u32>,
}

/// What to record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Processes that run. Never empty.
    Pids(Vec<Pid>),
    /// All Pythons.
    AllPython,
    /// What is in a control group.
    Cgroup(PathBuf),
    /// What is in a container of this id.
    Container(String),
    /// A program to be started, with its arguments. Never empty.
    Command(Vec<OsString>),
}

/// Where the result goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outputs {
    /// A new file, named after the pid, where there is one, and the time.
    New(Format),
    /// These.
    Given(Vec<(Destination, Format)>),
}

/// One place to write to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Standard output.
    Stdout,
    /// Another descriptor that this program was started with.
    Descriptor(u32),
    /// A new file.
    File(PathBuf),
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("standard output"),
            Self::Descriptor(2) => f.write_str("standard error"),
            Self::Descriptor(number) => write!(f, "descriptor {number}"),
            Self::File(path) => f.write_str(&visible(&path.to_string_lossy())),
        }
    }
}

/// Which options were typed, as opposed to found in the environment: what is typed wins.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each option that matters"
)]
pub(crate) struct Typed {
    pid: bool,
    all_python: bool,
    cgroup: bool,
    container: bool,
    /// What `--subprocesses` and `--no-subprocesses`, typed or in the environment, say together; without them it depends on
    /// the kind of target.
    subprocesses: Option<bool>,
    view: bool,
    native: bool,
}

impl Typed {
    /// Asks clap where the values came from.
    pub(crate) fn of(matches: &ArgMatches) -> Self {
        let typed = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        Self {
            pid: typed("pid"),
            all_python: typed("all_python"),
            cgroup: typed("cgroup"),
            container: typed("container"),
            subprocesses: subprocesses(matches),
            view: typed("view"),
            native: typed("native"),
        }
    }
}

/// Of the two options, the last one that was typed; else what the environment has, `--no-subprocesses` first.
fn subprocesses(matches: &ArgMatches) -> Option<bool> {
    const WITH: &str = "subprocesses";
    const WITHOUT: &str = "no_subprocesses";
    let has = |id: &str, source| matches.value_source(id) == Some(source);
    let typed = [(WITH, true), (WITHOUT, false)]
        .into_iter()
        .filter(|(id, _)| has(id, ValueSource::CommandLine))
        .max_by_key(|(id, _)| matches.index_of(id));
    if let Some((_, follow)) = typed {
        return Some(follow);
    }
    if has(WITHOUT, ValueSource::EnvVariable) && matches.get_flag(WITHOUT) {
        return Some(false);
    }
    has(WITH, ValueSource::EnvVariable).then(|| matches.get_flag(WITH))
}

impl Settings {
    /// Checks what was typed. The errors are usage errors.
    pub(crate) fn check(args: RecordArgs, typed: Typed) -> Result<Self, clap::Error> {
        let RecordArgs {
            pid,
            all_python,
            cgroup,
            container,
            // Read with their order, in `typed`.
            subprocesses: _,
            no_subprocesses: _,
            command,
            duration,
            frequency,
            realtime,
            kernel,
            threads,
            merge_processes,
            output,
            format,
            view,
            native,
            lines,
            quiet,
            verbose: _, // read when logging is set up
            python_from,
            cross_check,
            bpf_stats,
            ring_bytes,
        } = args;
        let subprocesses = typed.subprocesses.unwrap_or(!command.is_empty());
        Ok(Self {
            target: target(
                Chosen {
                    pid,
                    all_python,
                    cgroup,
                    container,
                },
                command,
                typed,
            )?,
            subprocesses,
            merge_processes,
            duration: duration.as_deref().map(checked_duration).transpose()?,
            frequency: Hz(frequency),
            realtime,
            kernel_stacks: kernel,
            threads,
            outputs: outputs(output, format)?,
            view: checked_view(view, native, typed)?,
            granularity: if lines {
                Granularity::Lines
            } else {
                Granularity::Functions
            },
            quiet,
            python_from: checked_python_from(python_from, cross_check)?,
            cross_check,
            bpf_stats,
            ring_bytes,
        })
    }
}

impl Outputs {
    /// The files and formats, now that the pid is known; `None` where there may be several.
    pub(crate) fn resolve(&self, pid: Option<Pid>, now: SystemTime) -> Vec<(Destination, Format)> {
        match self {
            Self::Given(outputs) => outputs.clone(),
            Self::New(format) => {
                let stem = match pid {
                    Some(pid) => format!("pyprof-{pid}-{}", utc_stamp(now)),
                    None => format!("pyprof-{}", utc_stamp(now)),
                };
                let path = unused_name(&stem, format.file_extensions()[0]);
                vec![(Destination::File(path), *format)]
            }
        }
    }
}

/// `stem.extension`, or with a number where files of that name exist.
fn unused_name(stem: &str, extension: &str) -> PathBuf {
    let plain = PathBuf::from(format!("{stem}.{extension}"));
    if !exists(&plain) {
        return plain;
    }
    (2..=u32::MAX)
        .map(|n| PathBuf::from(format!("{stem}-{n}.{extension}")))
        .find(|path| !exists(path))
        .unwrap_or(plain)
}

/// Something has that name, be it a dangling symbolic link.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// What was said of the processes to record, by whatever means.
struct Chosen {
    pid: Vec<Pids>,
    all_python: bool,
    cgroup: Option<PathBuf>,
    container: Option<String>,
}

impl Chosen {
    /// The ways to choose that were used, each with its option and whether that was typed.
    fn targets(self, typed: Typed) -> Vec<(Target, &'static str, bool)> {
        let mut targets = Vec::new();
        if !self.pid.is_empty() {
            let mut seen = BTreeSet::new();
            let pids = self.pid.into_iter().flat_map(|Pids(pids)| pids);
            let pids = pids.filter(|pid| seen.insert(*pid)).map(Pid).collect();
            targets.push((Target::Pids(pids), "--pid", typed.pid));
        }
        if self.all_python {
            targets.push((Target::AllPython, "--all-python", typed.all_python));
        }
        if let Some(path) = self.cgroup {
            targets.push((Target::Cgroup(path), "--cgroup", typed.cgroup));
        }
        if let Some(id) = self.container {
            targets.push((Target::Container(id), "--container", typed.container));
        }
        targets
    }
}

fn target(chosen: Chosen, command: Vec<OsString>, typed: Typed) -> Result<Target, clap::Error> {
    let mut targets = chosen.targets(typed);
    if !command.is_empty() {
        targets.push((Target::Command(command), "a command", true));
    }
    if targets.iter().any(|(_, _, typed)| *typed) {
        // What comes from the environment gives way.
        targets.retain(|(_, _, typed)| *typed);
    }
    if let [(_, one, _), (_, other, _), ..] = targets.as_slice() {
        return Err(usage(
            ErrorKind::ArgumentConflict,
            format!("{one} and {other} exclude each other: record one or the other"),
        ));
    }
    let Some((target, ..)) = targets.pop() else {
        return Err(usage(
            ErrorKind::MissingRequiredArgument,
            "nothing to record: give a process, `--pid 4242`, several, `--all-python`, or a command, `-- python app.py`",
        ));
    };
    if let Target::Container(id) = &target {
        Container::new(id).map_err(|reason| {
            usage(
                ErrorKind::ValueValidation,
                format!("invalid value {id:?} for --container: {reason}"),
            )
        })?;
    }
    Ok(target)
}

fn checked_duration(text: &str) -> Result<Duration, clap::Error> {
    parse_duration(text).map_err(|reason| {
        usage(
            ErrorKind::ValueValidation,
            format!("invalid value {text:?} for --duration: {reason}"),
        )
    })
}

fn checked_python_from(from: PythonFromArg, cross_check: bool) -> Result<PythonFrom, clap::Error> {
    Ok(match from {
        PythonFromArg::Auto => PythonFrom::Auto,
        PythonFromArg::Interpreter => PythonFrom::Interpreter,
        PythonFromArg::PerfMap if cross_check => {
            return Err(usage(
                ErrorKind::ArgumentConflict,
                "--cross-check compares both ways: give it without --python-from perf-map",
            ));
        }
        PythonFromArg::PerfMap => PythonFrom::PerfMap,
    })
}

fn checked_view(view: ViewArg, native: bool, typed: Typed) -> Result<View, clap::Error> {
    if native && typed.native && typed.view && view != ViewArg::Mixed {
        return Err(usage(
            ErrorKind::ArgumentConflict,
            "--native means --view mixed: give one of the two",
        ));
    }
    // `--native` from the environment gives way to a typed `--view`.
    let native = native && (typed.native || !typed.view);
    Ok(match (native, view) {
        (true, _) | (false, ViewArg::Mixed) => View::Mixed,
        (false, ViewArg::Python) => View::Python,
        (false, ViewArg::Native) => View::Native,
    })
}

fn outputs(paths: Vec<PathBuf>, format: Option<FormatArg>) -> Result<Outputs, clap::Error> {
    let format = format.map(|format| match format {
        FormatArg::Svg => Format::Svg,
        FormatArg::Folded => Format::Folded,
    });
    if paths.is_empty() {
        return Ok(Outputs::New(format.unwrap_or(Format::Svg)));
    }
    let mut given: Vec<(Destination, Format)> = Vec::with_capacity(paths.len());
    for path in paths {
        let output = destination(path, format)?;
        if given
            .iter()
            .any(|(destination, _)| *destination == output.0)
        {
            return Err(usage(
                ErrorKind::ArgumentConflict,
                "the same --output is given twice",
            ));
        }
        given.push(output);
    }
    Ok(Outputs::Given(given))
}

fn destination(
    path: PathBuf,
    format: Option<Format>,
) -> Result<(Destination, Format), clap::Error> {
    if path.as_os_str() == "-" {
        let format = format.unwrap_or(Format::Svg);
        return stdout_for(format, io::stdout().is_terminal());
    }
    if let Some(number) = descriptor_of(&path) {
        let open = output::descriptor(number).map_err(|err| {
            usage(
                ErrorKind::ValueValidation,
                format!(
                    "cannot write to {}: {err}",
                    visible(&path.to_string_lossy())
                ),
            )
        })?;
        let format = format.unwrap_or(Format::Svg);
        let (stdout, format) = stdout_for(format, open.is_terminal())?;
        let destination = match number {
            1 => stdout,
            number => Destination::Descriptor(number),
        };
        return Ok((destination, format));
    }
    let format = match (format, Format::from_path(&path)) {
        (Some(format), _) | (None, Ok(format)) => Ok(format),
        // Like standard output: it is what it is, and has no name of its own.
        (None, Err(_)) if is_stream(&path) => Ok(Format::Svg),
        (None, Err(unknown)) => Err(unknown),
    };
    format
        .map(|format| (Destination::File(path), format))
        .map_err(|err| usage(ErrorKind::ValueValidation, visible(&err.to_string())))
}

/// The number of a descriptor of this process that a path means: `/dev/stdout`, `/dev/fd/3`, `/proc/self/fd/3`.
fn descriptor_of(path: &Path) -> Option<u32> {
    for (name, number) in [("stdin", 0), ("stdout", 1), ("stderr", 2)] {
        if path == Path::new("/dev").join(name) {
            return Some(number);
        }
    }
    let own = format!("/proc/{}/fd", std::process::id());
    ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd", &own]
        .iter()
        .find_map(|folder| path.strip_prefix(folder).ok())
        .and_then(Path::to_str)
        .filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|number| number.parse().ok())
}

/// A pipe or a device.
fn is_stream(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|about| about.file_type().is_fifo() || about.file_type().is_char_device())
}

/// Standard output. `> app.svg` is as good a habit as `-o app.svg`, but nobody reads an SVG on a terminal.
fn stdout_for(format: Format, is_terminal: bool) -> Result<(Destination, Format), clap::Error> {
    match format {
        Format::Svg if is_terminal => Err(usage(
            ErrorKind::ValueValidation,
            "an SVG is not for a terminal: give `-f folded` for text, or redirect it, `-o - > app.svg`",
        )),
        format => Ok((Destination::Stdout, format)),
    }
}

fn usage(kind: ErrorKind, message: impl fmt::Display) -> clap::Error {
    super::command().error(kind, message)
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
