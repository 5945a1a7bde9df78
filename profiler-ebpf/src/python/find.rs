//! Which thread states the interrupted thread has.
//!
//! They are looked for in the interpreter's lists by their `thread_id`, which is the thread pointer, and remembered. A
//! remembered one must still be linked where it was: the C library gives the stack of a thread that has ended, and so
//! its thread pointer, to the next one.

use aya_ebpf::helpers::bpf_probe_read_user;
use profiler_common::{
    counters,
    python::{NO_FIELD, PythonEnd, THREAD_STATES_MAX, ThreadState},
};

use super::{key, word};
use crate::maps::{self, State, THREADS};

/// Steps through the lists, one for each thread state and interpreter: 58 ns each. New threads stand at the front, and
/// user space says beforehand where those are that it finds.
const STEPS_MAX: u32 = 512;

/// Finds the states into [`crate::maps::PythonState::states`]. Gives a [`PythonEnd`] as number; `Whole`: they are there.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn find_states(tgid: u32) -> u32 {
    let Some(pointer) = maps::state() else {
        return PythonEnd::NotRead as u32;
    };
    states(pointer, tgid) as u32
}

#[inline(always)]
fn states(pointer: *mut State, tgid: u32) -> PythonEnd {
    // SAFETY: this CPU's map value.
    let python = unsafe { &mut (*pointer).python };
    python.state_count = 0;
    python.idle_state = 0;
    let layout = &python.layout;
    let Some(interpreter) = word(layout.interpreters, 0) else {
        return PythonEnd::ReadFault;
    };
    let next = word(interpreter, u64::from(layout.interpreter_next));
    let newest = word(interpreter, u64::from(layout.interpreter_threads));
    let (Some(next), Some(newest)) = (next, newest) else {
        return PythonEnd::ReadFault;
    };
    python.is_only = u64::from(next == 0);
    if next == 0 {
        // SAFETY: the value is copied at once, and its two halves are checked against the process below.
        let known = unsafe { THREADS.get(key(tgid, python.thread_pointer)) }.copied();
        if let Some(known) = known {
            if known.state == 0 {
                // It would stand at the front if it had got one since.
                if known.newest == newest && !is_of_this_thread(pointer, newest) {
                    return PythonEnd::NoThreadState;
                }
            } else if is_linked(pointer, known.state) {
                python.states[0] = known.state;
                python.state_count = 1;
                return PythonEnd::Whole;
            }
        }
    }
    python.interpreter = interpreter;
    python.candidate = newest;
    let mut is_at_end = false;
    for _ in 0..STEPS_MAX {
        if find_step() == 0 {
            is_at_end = true;
            break;
        }
    }
    // SAFETY: a field of the map value, which `find_step` has changed.
    let found = unsafe { core::ptr::read_volatile(&raw const python.state_count) };
    if found > 0 {
        if next == 0 {
            remember(pointer, tgid, python.states[0], 0);
        }
        return PythonEnd::Whole;
    }
    if !is_at_end {
        return PythonEnd::NotFound;
    }
    // SAFETY: as above.
    let idle = unsafe { core::ptr::read_volatile(&raw const python.idle_state) };
    if idle != 0 {
        python.states[0] = idle;
        python.state_count = 1;
        return PythonEnd::Whole;
    }
    if next == 0 {
        remember(pointer, tgid, 0, newest);
    }
    PythonEnd::NoThreadState
}

/// Looks at one thread state, or goes on to the next interpreter. Returns 0 when there is no more to look at.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn find_step() -> u32 {
    let Some(pointer) = maps::state() else {
        return 0;
    };
    // SAFETY: this CPU's map value.
    let python = unsafe { &mut (*pointer).python };
    let layout = &python.layout;
    let candidate = python.candidate;
    if candidate == 0 {
        let next = word(python.interpreter, u64::from(layout.interpreter_next)).unwrap_or(0);
        if next == 0 {
            return 0;
        }
        python.interpreter = next;
        python.candidate = word(next, u64::from(layout.interpreter_threads)).unwrap_or(0);
        return 1;
    }
    if is_of_this_thread(pointer, candidate) {
        // Up to 3.10, and maybe later, a new state has its creator's `thread_id` until its own thread starts: it is the
        // one without a frame.
        if first(pointer, candidate).is_some_and(|first| first.frame != 0) {
            // SAFETY: a field of the map value; volatile as in `walk::unwind_step`.
            let count = unsafe { core::ptr::read_volatile(&raw const python.state_count) };
            if count >= THREAD_STATES_MAX as u64 {
                return 0;
            }
            python.states[count as usize & (THREAD_STATES_MAX - 1)] = candidate;
            python.state_count = count + 1;
            if python.is_only != 0 {
                return 0;
            }
        } else {
            python.idle_state = candidate;
        }
    }
    python.candidate = word(candidate, u64::from(layout.thread_next)).unwrap_or(0);
    1
}

/// With what a state begins.
pub(super) struct First {
    /// Its innermost frame; 0: it is in no function.
    pub(super) frame: u64,
    /// 3.11 and 3.12: the `_PyCFrame` that has that frame, and the one before it.
    pub(super) cframe: u64,
    pub(super) cframe_previous: u64,
}

/// What a state begins with. `None`: that cannot be read.
#[inline(always)]
pub(super) fn first(pointer: *mut State, thread: u64) -> Option<First> {
    // SAFETY: this CPU's map value.
    let layout = unsafe { &(*pointer).python.layout };
    let first = word(thread, u64::from(layout.thread_frame))?;
    if layout.cframe_frame == NO_FIELD || first == 0 {
        return Some(First {
            frame: first,
            cframe: 0,
            cframe_previous: 0,
        });
    }
    // `previous` stands behind `current_frame` (`_PyCFrame`, Include/cpython/pystate.h, 3.11 and 3.12).
    let fields = first.wrapping_add(u64::from(layout.cframe_frame));
    // SAFETY: a checked read of user memory.
    let [frame, cframe_previous] =
        unsafe { bpf_probe_read_user(fields as *const [u64; 2]) }.ok()?;
    Some(First {
        frame,
        cframe: first,
        cframe_previous,
    })
}

#[inline(always)]
fn is_of_this_thread(pointer: *mut State, thread: u64) -> bool {
    // SAFETY: this CPU's map value.
    let python = unsafe { &(*pointer).python };
    word(thread, u64::from(python.layout.thread_id)) == Some(python.thread_pointer)
}

/// A remembered state is this thread's, and in the list of its interpreter.
#[inline(always)]
fn is_linked(pointer: *mut State, thread: u64) -> bool {
    // SAFETY: this CPU's map value.
    let layout = unsafe { &(*pointer).python.layout };
    if !is_of_this_thread(pointer, thread) {
        return false;
    }
    let linked = match word(thread, u64::from(layout.thread_prev)) {
        Some(0) => word(thread, u64::from(layout.thread_interpreter))
            .and_then(|interpreter| word(interpreter, u64::from(layout.interpreter_threads))),
        Some(newer) => word(newer, u64::from(layout.thread_next)),
        None => None,
    };
    linked == Some(thread)
}

#[inline(always)]
fn remember(pointer: *mut State, tgid: u32, state: u64, newest: u64) {
    // SAFETY: this CPU's map value.
    let thread_pointer = unsafe { (*pointer).python.thread_pointer };
    let value = ThreadState { state, newest };
    if THREADS.insert(key(tgid, thread_pointer), value, 0).is_err() {
        maps::count(counters::THREADS_FULL);
    }
}
