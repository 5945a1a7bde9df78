//! The threads of an interpreter: lists in a memory that changes while it is read.

use profiler_common::python::{NO_FIELD, PythonLayout};
use rustc_hash::FxHashSet;

use super::{
    ADDRESS_END, Interpreter, ReadMemory, debug_offsets::THREAD_FIELDS_MAX, refusal::Misfit,
};

/// States of threads that are looked at in one process.
pub const THREADS_MAX: usize = 16_384;
/// Interpreters that are looked at in one process: the main one, and subinterpreters.
const INTERPRETERS_MAX: usize = 1024;
/// The list is read so many times, if it changes meanwhile.
const ATTEMPTS: usize = 4;

/// A thread in an interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadState {
    /// Where it is.
    pub(super) at: u64,
    /// `thread_id`
    pub(super) id: u64,
    /// Its newest frame; 0: it has none.
    pub(super) frame: u64,
}

/// The threads of a process as `(thread_id, address of the thread's state)`, of each interpreter the newest first; at most
/// [`THREADS_MAX`].
///
/// An id comes more than once where a thread has a state in several interpreters; up to 3.10 a state that is just being
/// made has the id of the thread that makes it. Costs one system call for each. What begins or ends meanwhile may be
/// missing.
pub fn threads(interpreter: &Interpreter, memory: &dyn ReadMemory) -> Vec<(u64, u64)> {
    let mut most = Vec::new();
    for _ in 0..ATTEMPTS {
        let mut found = Vec::new();
        let is_whole = list_threads(memory, &interpreter.frames, &mut found).is_ok();
        if is_whole || found.len() > most.len() {
            most = found;
        }
        if is_whole {
            break;
        }
    }
    let known = most.into_iter().filter(|thread| thread.id != 0);
    known.map(|thread| (thread.id, thread.at)).collect()
}

/// Adds the threads of all interpreters to `found`. Fails where a list leads astray, with those found before.
pub(super) fn list_threads(
    memory: &dyn ReadMemory,
    layout: &PythonLayout,
    found: &mut Vec<ThreadState>,
) -> Result<(), Misfit> {
    let mut seen = FxHashSet::default();
    let mut next = memory
        .u64(layout.interpreters)
        .ok_or(Misfit::Interpreters)?;
    while next != 0 && seen.len() < INTERPRETERS_MAX {
        if !is_object(next) || !seen.insert(next) {
            return Err(Misfit::Interpreters);
        }
        let word = |offset: u32| memory.u64(next.wrapping_add(u64::from(offset)));
        let head = word(layout.interpreter_threads).ok_or(Misfit::Interpreters)?;
        list_of_interpreter(memory, layout, next, head, found)?;
        next = word(layout.interpreter_next).ok_or(Misfit::Interpreters)?;
    }
    Ok(())
}

fn list_of_interpreter(
    memory: &dyn ReadMemory,
    layout: &PythonLayout,
    interpreter: u64,
    head: u64,
    found: &mut Vec<ThreadState>,
) -> Result<(), Misfit> {
    let mut seen = FxHashSet::default();
    let mut is_linked = true;
    let (mut before, mut next) = (0, head);
    while next != 0 && found.len() < THREADS_MAX {
        let fields = Fields::read(memory, layout, next).ok_or(Misfit::Threads)?;
        if fields.interpreter != interpreter || !seen.insert(next) {
            return Err(Misfit::Threads);
        }
        // While a thread is put in or taken out, its neighbours do not agree, but what follows can be reached
        // (`add_threadstate`, `tstate_delete_common` in Python/pystate.c, 3.8 to 3.15).
        is_linked &= fields.previous == before;
        found.push(ThreadState {
            at: next,
            id: fields.id,
            // Nothing can be there: looking at it says what is wrong.
            frame: fields.frame_of(memory, layout).unwrap_or(u64::MAX),
        });
        (before, next) = (next, fields.next);
    }
    is_linked.then_some(()).ok_or(Misfit::Threads)
}

/// What of a `PyThreadState` is read.
struct Fields {
    previous: u64,
    next: u64,
    interpreter: u64,
    id: u64,
    /// The newest frame, or the `_PyCFrame` that has it.
    frame: u64,
}

impl Fields {
    fn read(memory: &dyn ReadMemory, layout: &PythonLayout, at: u64) -> Option<Self> {
        let offsets = [
            layout.thread_prev,
            layout.thread_next,
            layout.thread_interpreter,
            layout.thread_id,
            layout.thread_frame,
        ];
        let end = usize::from(offsets.into_iter().max()?) + 8;
        let mut buffer = [0; THREAD_FIELDS_MAX as usize];
        let bytes = buffer.get_mut(..end)?;
        if !is_object(at) || !memory.read(at, bytes) {
            return None;
        }
        let word = |offset: u16| {
            let bytes = bytes.get(usize::from(offset)..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        Some(Self {
            previous: word(layout.thread_prev)?,
            next: word(layout.thread_next)?,
            interpreter: word(layout.thread_interpreter)?,
            id: word(layout.thread_id)?,
            frame: word(layout.thread_frame)?,
        })
    }

    fn frame_of(&self, memory: &dyn ReadMemory, layout: &PythonLayout) -> Option<u64> {
        if layout.cframe_frame == NO_FIELD || self.frame == 0 {
            return Some(self.frame);
        }
        memory.u64(self.frame.wrapping_add(u64::from(layout.cframe_frame)))
    }
}

/// Something can be there: allocators and compilers align what has pointers in it.
pub(super) const fn is_object(at: u64) -> bool {
    at != 0 && at.is_multiple_of(8) && at < ADDRESS_END
}

#[cfg(test)]
#[path = "threads_tests.rs"]
mod tests;
