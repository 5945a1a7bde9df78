//! What the registry is asked to do, and what it says about each program at the end.

use std::time::Duration;

use crate::{
    model::Pid,
    process::{PythonInfo, interpreter::Obstacle},
    symbols::NameDiagnosis,
};

/// Where Python functions come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PythonFrom {
    /// The interpreter's own frames where they can be read, else perf maps.
    #[default]
    Auto,
    /// The interpreter's own frames; a process that was asked for by pid and whose frames cannot be read is refused.
    Interpreter,
    /// Trampolines, named by perf maps.
    PerfMap,
}

/// Where the names of one target's Python functions come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PythonSource {
    /// The frames of its interpreter, which has this `PY_VERSION_HEX`.
    Interpreter(u32),
    /// Perf maps: they were asked for.
    PerfMap,
    /// Perf maps: the interpreter's frames cannot be read.
    Refused(Obstacle),
    /// Perf maps: there were no interpreter's frames to be read.
    NotYet,
}

/// What is known of one target at the end. A process that ran several programs has one of these for each that has
/// samples.
#[derive(Clone, Debug)]
pub struct TargetSummary {
    /// Its pid.
    pub pid: Pid,
    /// What to call it: short, see [`Target::label`](crate::process::Target::label).
    pub label: String,
    /// Its command line, arguments joined by spaces.
    pub command: String,
    /// Samples of it.
    pub samples: u64,
    /// Its interpreter.
    pub python: PythonInfo,
    /// CPU time it used during the recording, user and system.
    pub cpu_time: Duration,
    /// Where its Python functions come from.
    pub source: PythonSource,
    /// Why its Python functions have, or do not have, names.
    pub names: NameDiagnosis,
}

/// Processes that were tracked and of which there is no sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsampled {
    /// How many.
    pub processes: u64,
    /// CPU time that they used.
    pub cpu_time: Duration,
    /// The one that used the most, where there is one.
    pub busiest: Option<(Pid, Duration)>,
    /// Processes with samples that have no summary of their own, because there are too many.
    pub unlisted: u64,
}

/// What is left of all processes at the end.
#[derive(Debug)]
pub struct Summaries {
    /// One of each program that has samples, and of each process that was asked for: those come first.
    pub targets: Vec<TargetSummary>,
    /// Perf maps that were refused or could not be read, with the reason, ready to be shown.
    pub complaints: Vec<String>,
    /// A process whose perf map another one writes as well, and that other process.
    pub contested: Option<(Pid, Pid)>,
    /// Mappings past those that are kept of a process.
    pub mappings_left_out: u64,
    /// Processes without a sample.
    pub unsampled: Unsampled,
}
