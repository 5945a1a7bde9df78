//! The interpreter's own frames: what Python functions the thread is in.
//!
//! They do not depend on the native walk, but for one moment of 3.11 and 3.12 (see `entry`). The event interrupts the
//! thread itself, so what it wrote last is what is read here: other than for a reader in another process, its frames do
//! not change underneath.
//!
//! ```text
//! thread pointer ─► find (its PyThreadState) ─► step (frame, code object, its identity) ─► two words each
//! ```

mod entry;
mod find;
mod step;

use aya_ebpf::helpers::{
    bpf_probe_read_kernel, bpf_probe_read_user, generated::bpf_get_current_task,
};
use profiler_common::{
    counters,
    python::{
        ADDRESS_BITS, FRAME_WORDS, KIND_SHIFT, NO_FIELD, PYTHON_WORDS_MAX, PythonEnd,
        THREAD_STATES_MAX, ThreadKey,
    },
    sample::{USER_WORDS_MAX, flags},
};

use crate::maps::{self, PYTHON_LAYOUTS, State, THREADS, global};

/// Reads the frames of the interrupted thread, if its process has an interpreter that is known.
///
/// A global function, as `find_states` is: what comes after it is then checked once, and not for each of its outcomes.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn read_python(layout: u32, tgid: u32) -> u32 {
    let Some(pointer) = maps::state() else {
        return 0;
    };
    // SAFETY: this CPU's map value.
    let state = unsafe { &mut *pointer };
    state.python.has_news = 0;
    let Some(layout) = PYTHON_LAYOUTS.get(layout) else {
        return 0;
    };
    if layout.interpreters == 0 {
        return 0;
    }
    let Some(thread_pointer) = thread_pointer() else {
        return 0;
    };
    state.python.layout = *layout;
    state.python.thread_pointer = thread_pointer;
    if layout.frame_owner == NO_FIELD && layout.frame_is_entry == NO_FIELD {
        state.header.flags |= flags::PYTHON_COUNTED;
    }
    // SAFETY: a field of the map value; volatile as in `walk::unwind_step`.
    let begin = unsafe { core::ptr::read_volatile(&raw const state.used) };
    state.python.list_begin = begin;
    state.python.is_empty = 0;
    let found = find::find_states(tgid);
    if found == PythonEnd::Whole as u32 {
        let mut index = 0;
        // A state is read a second time when its first `_PyCFrame` turns out to be empty.
        for _ in 0..=THREAD_STATES_MAX {
            if u64::from(index) >= state.python.state_count {
                break;
            }
            match step::python_state(index) {
                step::NO_ROOM => break,
                step::AGAIN => {}
                _ => index += 1,
            }
        }
    } else {
        state.header.python_end = found as u16;
    }
    // SAFETY: as above.
    let used = unsafe { core::ptr::read_volatile(&raw const state.used) };
    let words = used.wrapping_sub(begin);
    state.header.python_words = words as u16;
    maps::add(counters::PYTHON_FRAMES, words / FRAME_WORDS as u64);
    0
}

/// The thread that ends now is not in the table any more: another one may get its stack, and so its thread pointer.
#[inline(always)]
pub(crate) fn forget_thread(tgid: u32) {
    if let Some(thread_pointer) = thread_pointer() {
        // It fails for threads that never ran Python.
        let _ = THREADS.remove(key(tgid, thread_pointer));
    }
}

#[inline(always)]
fn key(tgid: u32, thread_pointer: u64) -> ThreadKey {
    ThreadKey {
        thread_pointer,
        tgid,
        reserved: 0,
    }
}

/// The thread pointer of the current task, which is `pthread_self()` of glibc and musl. Up to date for the running task:
/// both set it by `arch_prctl` or `clone` (`x86_fsbase_write_task`, arch/x86/kernel/process_64.c).
#[inline(always)]
fn thread_pointer() -> Option<u64> {
    let offset = global!(TASK_OFFSETS).task_thread_pointer;
    if offset == 0 {
        return None;
    }
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() };
    // SAFETY: a checked read of the kernel's memory.
    unsafe { bpf_probe_read_kernel((task + u64::from(offset)) as *const u64) }
        .ok()
        .filter(|&pointer| pointer != 0)
}

/// A word of the target's memory.
#[inline(always)]
fn word(base: u64, offset: u64) -> Option<u64> {
    // SAFETY: a checked read of user memory.
    unsafe { bpf_probe_read_user(base.wrapping_add(offset) as *const u64) }.ok()
}

/// Adds an entry. False: there is no room.
#[inline(always)]
fn push(state: &mut State, kind: u64, address: u64, second: u64) -> bool {
    // SAFETY: a field of the map value; volatile as in `walk::unwind_step`.
    let used = unsafe { core::ptr::read_volatile(&raw const state.used) };
    if used > (USER_WORDS_MAX - FRAME_WORDS) as u64
        || used.wrapping_sub(state.python.list_begin) > (PYTHON_WORDS_MAX - FRAME_WORDS) as u64
    {
        return false;
    }
    let address = address & ((1 << ADDRESS_BITS) - 1);
    state.words[used as usize] = address | (kind << KIND_SHIFT);
    state.words[used as usize + 1] = second;
    state.used = used + FRAME_WORDS as u64;
    true
}
