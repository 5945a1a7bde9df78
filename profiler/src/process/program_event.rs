//! What happens to programs. A program is what a process runs between two calls of `exec`.

use std::{path::Path, sync::Arc, time::Duration};

use super::{Mapping, PythonInfo, Target, interpreter::Interpreter};
use crate::model::{ImageId, Pid};

/// What has happened to one program. The registry emits these events; unwinding and symbols each take them in.
#[derive(Clone, Copy, Debug)]
pub struct ProgramEvent<'e> {
    /// The process that runs it.
    pub pid: Pid,
    /// The program.
    pub image: ImageId,
    /// What has happened.
    pub change: ProgramChange<'e>,
}

/// What can happen to a program.
#[derive(Clone, Copy, Debug)]
pub enum ProgramChange<'e> {
    /// It is recorded from now on, and ran already before.
    Started {
        /// Its process.
        target: &'e Target,
        /// Its interpreter, as far as known.
        python: &'e PythonInfo,
        /// The BPF program samples its process already.
        is_sampled: bool,
    },
    /// It begins with everything that is known of the program it was forked from.
    Forked {
        /// That program.
        from: ImageId,
        /// The child process.
        child: ForkedChild<'e>,
    },
    /// It has replaced another program in its process, by `exec`.
    Replaced {
        /// That program.
        before: ImageId,
        /// When, since boot.
        since_boot: Duration,
        /// So little time has passed since that it cannot have written to its perf map yet.
        is_fresh: bool,
    },
    /// What was found out about a program that has replaced another one.
    Described {
        /// Its process.
        target: &'e Target,
        /// Its interpreter, as far as known.
        python: &'e PythonInfo,
    },
    /// These are its executable mappings from now on.
    Mapped {
        /// All of them, by address.
        mappings: &'e [Mapping],
        /// Its interpreter, as far as known.
        python: &'e PythonInfo,
        /// The descriptor with which it writes its perf map, as a path below `/proc`.
        perf_map: Option<&'e Path>,
    },
    /// The frames of its interpreter can be read from now on.
    InterpreterFound {
        /// Where the interpreter keeps its frames.
        interpreter: &'e Arc<Interpreter>,
        /// Thread pointers, and addresses of the thread states that belong to them.
        threads: &'e [(u64, u64)],
    },
    /// Its process has exited. Samples of it may still be on their way.
    Exited,
    /// No more samples of it will come.
    Retired,
    /// Its process is not to be sampled any more, by whatever program it runs.
    Expelled,
}

/// A child process, as it begins.
#[derive(Clone, Copy, Debug)]
pub struct ForkedChild<'a> {
    /// Its pid in its own pid namespace.
    pub ns_pid: u32,
    /// Processes between it and the one whose program it begins with, the nearest first: their pids in their own
    /// namespaces, and when they were made, since boot.
    pub between: &'a [(u32, Duration)],
    /// When it was made, since boot.
    pub since_boot: Duration,
}
