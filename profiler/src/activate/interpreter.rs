//! Finds in a process what is needed of its interpreter: its main interpreter state, and how that is
//! asked for something.
//!
//! [`examine`] has tried out on the process that it is built as its version says; nothing else is touched.

use super::{ActivateError, Version, memory::ProcessMemory};
use crate::{
    model::Pid,
    process::{
        Mapping, PythonInfo,
        interpreter::{
            Examined, Interpreter, ReadMemory, RequestSupport, Runtime, examine, is_free_threaded,
            locate, request_support,
        },
    },
};

/// Interpreters that are looked at.
const INTERPRETERS_MAX: usize = 1024;
/// Where `interpreters.main` lies, behind `interpreters.head` (`struct pyinterpreters`,
/// Include/internal/pycore_runtime.h up to 3.13, pycore_runtime_structs.h since).
const MAIN_BEHIND_HEAD: u64 = 8;

/// An interpreter in a process: addresses in it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) version: Version,
    pub(super) free_threaded: bool,
    /// The state of its main interpreter.
    pub(super) state: u64,
    /// The state of its main thread, and how that is asked for something.
    pub(super) requests: Option<(u64, RequestSupport)>,
}

impl Found {
    /// Looks for it, and refuses what is not surely known.
    pub(super) fn look_for(
        pid: Pid,
        mappings: &[Mapping],
        python: &PythonInfo,
        memory: &ProcessMemory,
    ) -> Result<Self, ActivateError> {
        let memory: &dyn ReadMemory = memory;
        let interpreter = match examine(pid, memory, mappings, python) {
            Examined::Known(interpreter) => interpreter,
            Examined::NotYet(reason) => return Err(ActivateError::NotYet { pid, reason }),
            Examined::Refused(reason) => return Err(ActivateError::unknown(pid, &reason)),
            Examined::NoPython => return Err(ActivateError::NotPython { pid }),
        };
        let runtimes =
            locate(pid, mappings, python).map_err(|reason| ActivateError::unknown(pid, &reason))?;
        let runtime = runtime_of(&interpreter, runtimes)
            .ok_or_else(|| ActivateError::unknown(pid, "it has no runtime"))?;
        let state = main_interpreter(memory, &interpreter)
            .ok_or_else(|| ActivateError::unknown(pid, "it has no main interpreter"))?;
        let requests = request_support(memory, runtime.runtime)
            .transpose()
            .map_err(|fault| ActivateError::unknown(pid, &fault))?;
        Ok(Self {
            version: version(&interpreter, &runtime),
            free_threaded: is_free_threaded(memory, runtime.runtime),
            state,
            requests: requests.and_then(|support| {
                let thread = memory.u64(state.wrapping_add(support.main_thread))?;
                let owner = u64::from(interpreter.frames.thread_interpreter);
                (memory.u64(thread.wrapping_add(owner)) == Some(state)).then_some((thread, support))
            }),
        })
    }
}

/// The one that was examined: its list of interpreters lies in it.
fn runtime_of(interpreter: &Interpreter, runtimes: Vec<Runtime>) -> Option<Runtime> {
    let begins_before = |runtime: &Runtime| runtime.runtime <= interpreter.frames.interpreters;
    let candidates = runtimes.into_iter().filter(begins_before);
    candidates.max_by_key(|runtime| runtime.runtime)
}

/// The main interpreter, if it is one of those that there are.
fn main_interpreter(memory: &dyn ReadMemory, interpreter: &Interpreter) -> Option<u64> {
    let layout = &interpreter.frames;
    let main = memory.u64(layout.interpreters.wrapping_add(MAIN_BEHIND_HEAD))?;
    let mut next = memory.u64(layout.interpreters)?;
    for _ in 0..INTERPRETERS_MAX {
        if next == 0 || next == main {
            break;
        }
        next = memory.u64(next.wrapping_add(u64::from(layout.interpreter_next)))?;
    }
    (next != 0 && next == main).then_some(main)
}

/// Where only the minor version is known, there is no micro version.
fn version(interpreter: &Interpreter, runtime: &Runtime) -> Version {
    let [major, minor, micro, level] = interpreter.version.to_be_bytes();
    let is_told = level != 0 || runtime.version_hex.is_some();
    Version(major, minor, is_told.then_some(micro))
}
