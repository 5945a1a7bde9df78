//! What the registry asks the system, so that tests can answer in its place.

use std::{
    fmt, io,
    path::PathBuf,
    time::{Duration, Instant},
};

use super::interpreter::Examination;
use crate::{
    model::Pid,
    process::{
        Mapping, ParsedMappings, PythonInfo, Search, SelectError, Selector, Target, TargetError,
        descendants_of, inspect_within, interpreter, now_since_boot, perf_map_handle,
        read_executable_mappings, stack_of, thread_time,
    },
};

/// Facts about processes, and the time.
pub trait Host: Send + Sync + fmt::Debug {
    /// The time now.
    fn now(&self) -> Instant;

    /// The time since boot, by which the kernel dates events of processes.
    fn since_boot(&self) -> Duration;

    /// CPU time that the calling thread has used.
    fn work_time(&self) -> Duration;

    /// See [`Target::check`].
    fn check(&self, pid: Pid) -> Result<Target, TargetError>;

    /// See [`read_executable_mappings`].
    fn mappings(&self, pid: Pid) -> io::Result<ParsedMappings>;

    /// See [`inspect_within`].
    fn inspect(&self, target: &Target, mappings: &[Mapping], search: Search) -> Option<PythonInfo>;

    /// See [`stack_of`].
    fn stack_of(&self, pid: Pid) -> Option<u64>;

    /// See [`perf_map_handle`].
    fn perf_map_handle(&self, target: &Target) -> Option<PathBuf>;

    /// See [`Selector::scan_within`].
    fn scan(&self, selector: &Selector, search: Search) -> Result<(Vec<Pid>, u64), SelectError>;

    /// See [`Selector::admits`].
    fn admits(&self, selector: &Selector, pid: Pid) -> bool;

    /// See [`descendants_of`].
    fn descendants_of(&self, roots: &[Pid]) -> Vec<Pid>;

    /// Looks at the interpreter of a process. Reads memory of the process, which can take any time.
    fn examine(&self, pid: Pid, mappings: &[Mapping], python: &PythonInfo) -> Examination;
}

/// The system that this program runs on.
#[derive(Clone, Copy, Debug)]
pub struct ThisHost;

impl Host for ThisHost {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn since_boot(&self) -> Duration {
        now_since_boot()
    }

    fn work_time(&self) -> Duration {
        thread_time()
    }

    fn check(&self, pid: Pid) -> Result<Target, TargetError> {
        Target::check(pid)
    }

    fn mappings(&self, pid: Pid) -> io::Result<ParsedMappings> {
        read_executable_mappings(pid)
    }

    fn inspect(&self, target: &Target, mappings: &[Mapping], search: Search) -> Option<PythonInfo> {
        inspect_within(target, mappings, search)
    }

    fn stack_of(&self, pid: Pid) -> Option<u64> {
        stack_of(pid)
    }

    fn perf_map_handle(&self, target: &Target) -> Option<PathBuf> {
        perf_map_handle(target)
    }

    fn scan(&self, selector: &Selector, search: Search) -> Result<(Vec<Pid>, u64), SelectError> {
        selector.scan_within(search)
    }

    fn admits(&self, selector: &Selector, pid: Pid) -> bool {
        selector.admits(pid)
    }

    fn descendants_of(&self, roots: &[Pid]) -> Vec<Pid> {
        descendants_of(roots)
    }

    fn examine(&self, pid: Pid, mappings: &[Mapping], python: &PythonInfo) -> Examination {
        let memory = interpreter::Memory::open(pid)?;
        let examined = interpreter::examine(pid, &memory, mappings, python);
        let threads = match &examined {
            interpreter::Examined::Known(interpreter) => interpreter::threads(interpreter, &memory),
            _ => Vec::new(),
        };
        Ok((examined, threads))
    }
}
