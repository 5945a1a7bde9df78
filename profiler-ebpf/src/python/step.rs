//! The frames of one thread state, one a step.
//!
//! As in `walk`, the step is a global function, which the verifier checks once. It knows no version of CPython: where
//! everything lies is in the process's [`PythonLayout`](profiler_common::python::PythonLayout), and what a frame points
//! at is believed to be a code object only if its type says so.

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use profiler_common::python::{
    CODE_BYTES_MAX, CONTENT_BYTES, CONTENT_LENGTH_AT, CONTENT_NAME, CONTENT_TABLE, FRAME_BYTES_MAX,
    IDENTITY_WORDS, NO_FIELD, NO_INSTRUCTION, PYTHON_WORDS_MAX, PythonEnd, THREAD_STATES_MAX,
    content_end, entry as entry_kind, mix,
};

use super::{entry, find::first, push, word};
use crate::maps::{self, CODE_WORDS, FRAME_WINDOW_WORDS, PythonState, State, known_code};

/// Steps of one state: one for each entry.
const STEPS_MAX: usize = PYTHON_WORDS_MAX / 2 + 2;
const WINDOW_BYTES: u64 = 8 * FRAME_WINDOW_WORDS as u64;
/// An instruction is not further from the beginning of its code than this.
const CODE_DISTANCE_MAX: i64 = 1 << 24;

/// [`python_state`]: there is no room for another state's frames.
pub(super) const NO_ROOM: u32 = 0;
/// [`python_state`]: it is done.
const DONE: u32 = 1;
/// [`python_state`]: what was read is not of this moment. Called again, it begins further out.
pub(super) const AGAIN: u32 = 2;

/// Reads all frames of one of the states that were found.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn python_state(index: u32) -> u32 {
    let Some(pointer) = maps::state() else {
        return NO_ROOM;
    };
    // SAFETY: this CPU's map value.
    let state = unsafe { &mut *pointer };
    let thread = state.python.states[index as usize & (THREAD_STATES_MAX - 1)];
    state.python.thread = thread;
    state.python.is_doubtful = 0;
    if state.python.is_empty != 0 {
        state.python.is_empty = 0;
        state.used = state.python.state_begin;
        if entry::python_caller(index) == 0 {
            return DONE;
        }
    } else {
        if state.python.state_count > 1 && !push(state, entry_kind::THREAD_STATE, thread, 0) {
            return end(state, PythonEnd::DepthLimit);
        }
        // SAFETY: a field of the map value; volatile as in `walk::unwind_step`.
        state.python.state_begin = unsafe { core::ptr::read_volatile(&raw const state.used) };
        let Some(first) = first(pointer, thread) else {
            end(state, PythonEnd::ReadFault);
            return DONE;
        };
        state.python.frame = first.frame;
        state.python.cframe = first.cframe;
        state.python.cframe_previous = first.cframe_previous;
        state.python.is_doubtful = u64::from(entry::is_doubtful(state));
        if first.frame == 0 {
            end(state, PythonEnd::Whole);
            return done(state);
        }
    }
    state.python.code = 0;
    state.python.window_begin = 0;
    for _ in 0..STEPS_MAX {
        if python_step() == 0 {
            break;
        }
    }
    done(state)
}

#[inline(always)]
fn done(state: &State) -> u32 {
    // SAFETY: a field of the map value, which `python_step` may have changed.
    let is_empty = unsafe { core::ptr::read_volatile(&raw const state.python.is_empty) };
    if is_empty == 0 { DONE } else { AGAIN }
}

/// Notes how reading ended: of several states, the worst counts.
#[inline(always)]
pub(super) fn end(state: &mut State, reason: PythonEnd) -> u32 {
    if state.python.is_doubtful != 0 {
        // Frames of an activation of the loop end with its shim. These did not.
        state.python.is_empty = 1;
    } else if state.header.python_end < reason as u16 {
        state.header.python_end = reason as u16;
    }
    0
}

/// One frame: records it and moves to its caller. Returns 0 when there is none.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn python_step() -> u32 {
    let Some(pointer) = maps::state() else {
        return 0;
    };
    // SAFETY: this CPU's map value.
    let state = unsafe { &mut *pointer };
    let frame = state.python.frame;
    if !read_frame(&mut state.python, frame) {
        return end(state, PythonEnd::ReadFault);
    }
    let python = &mut state.python;
    let layout = &python.layout;
    let previous = frame_word(python, layout.frame_previous);
    let is_shim = layout.frame_owner != NO_FIELD
        && frame_byte(python, layout.frame_owner) >= layout.shim_owner;
    if is_shim {
        if !entry::confirm(state, previous) || !push(state, entry_kind::SHIM, frame, 0) {
            return end(state, PythonEnd::DepthLimit);
        }
        return go_to(state, previous);
    }
    let code = frame_word(python, layout.frame_code) & layout.code_mask;
    let identity = if code == python.code {
        python.identity
    } else {
        match identify(python, code) {
            Some(identity) => identity,
            None => return end(state, PythonEnd::NotCode),
        }
    };
    let instruction = instruction(python, code);
    let second = u64::from(instruction as u32) | (identity << 32);
    let is_entry = python.layout.frame_is_entry != NO_FIELD
        && frame_byte(python, python.layout.frame_is_entry) != 0;
    if !push(state, entry_kind::FRAME, code, second) {
        return end(state, PythonEnd::DepthLimit);
    }
    if is_entry && !(entry::confirm(state, previous) && leave_cframe(state)) {
        return end(state, PythonEnd::DepthLimit);
    }
    go_to(state, previous)
}

/// Moves to the caller.
#[inline(always)]
fn go_to(state: &mut State, previous: u64) -> u32 {
    state.python.frame = previous;
    if previous == 0 {
        return end(state, PythonEnd::Whole);
    }
    1
}

/// 3.11: the frame was entered from C, by the activation of the loop that has this `_PyCFrame` on its stack.
#[inline(always)]
fn leave_cframe(state: &mut State) -> bool {
    let cframe = state.python.cframe;
    let offset = state.python.layout.cframe_previous;
    state.python.cframe = word(cframe, u64::from(offset)).unwrap_or(0);
    push(state, entry_kind::SHIM, cframe, 0)
}

/// Reads a code object and gives its identity; `None`: it is none.
#[inline(always)]
fn identify(python: &mut PythonState, code: u64) -> Option<u64> {
    let begin = code.wrapping_add(u64::from(python.layout.code_begin));
    let bytes = u32::from(python.layout.code_bytes);
    if !read(
        &raw mut python.code_words,
        begin,
        bytes,
        CODE_BYTES_MAX as u32,
    ) || python.code_words[0] != python.layout.code_type
    {
        return None;
    }
    let first = python.layout.code_identity as usize;
    let mut hash = 0;
    for n in 0..IDENTITY_WORDS {
        hash = mix(hash, python.code_words[(first + n) & (CODE_WORDS - 1)]);
    }
    if python.layout.content_text != 0 {
        python.hash = hash;
        mix_contents();
        // SAFETY: a field of the map value, which `mix_contents` has changed.
        hash = unsafe { core::ptr::read_volatile(&raw const python.hash) };
    }
    let identity = hash >> 32;
    python.code = code;
    python.identity = identity;
    let place = (identity ^ (code >> 4)) as u32;
    if let Some(known) = known_code(place) {
        let value = (identity as u32).wrapping_add(code as u32);
        // SAFETY: a word of a map value. Others may write it at the same time: then user space is woken once too often.
        if unsafe { known.read_volatile() } != value {
            // SAFETY: as above.
            unsafe { known.write_volatile(value) };
            python.has_news = 1;
        }
    }
    Some(identity)
}

/// Adds what file, name and line table are like to [`PythonState::hash`]. A global function: six reads, each of which may
/// fail, would make the step 64 times as long for the verifier.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn mix_contents() -> u32 {
    let Some(pointer) = maps::state() else {
        return 0;
    };
    // SAFETY: this CPU's map value.
    let python = unsafe { &mut (*pointer).python };
    let text = u64::from(python.layout.content_text);
    let first = python.layout.code_identity as usize;
    let file = python.layout.content_file as usize;
    let mut hash = python.hash;
    for (index, data) in [
        (file, text),
        (CONTENT_NAME, text),
        (CONTENT_TABLE, CONTENT_BYTES),
    ] {
        let object = python.code_words[(first + index) & (CODE_WORDS - 1)];
        let length = word(object, CONTENT_LENGTH_AT).unwrap_or(0);
        let end = word(object, content_end(data, length)).unwrap_or(0);
        hash = mix(mix(hash, length), end);
    }
    python.hash = hash;
    0
}

/// Where in its code a frame is.
#[inline(always)]
fn instruction(python: &PythonState, code: u64) -> i32 {
    let layout = &python.layout;
    let at = frame_word(python, layout.frame_instruction);
    if layout.instruction_is_address == 0 {
        return at as i32;
    }
    let mut begin = code.wrapping_add(u64::from(layout.code_instructions));
    if layout.code_tlbc != NO_FIELD {
        // Free-threaded: each thread may run a copy of its own (`_PyCodeArray`, Include/cpython/code.h, 3.14).
        let shift = u32::from(layout.frame_tlbc & 7) * 8;
        let index = u64::from((frame_word(python, layout.frame_tlbc) >> (shift & 63)) as u32);
        let copies = word(code, u64::from(layout.code_tlbc)).unwrap_or(0);
        begin = word(copies, 8 + 8 * index).unwrap_or(begin);
    }
    let distance = at.wrapping_sub(begin) as i64;
    if distance.unsigned_abs() > CODE_DISTANCE_MAX as u64 {
        NO_INSTRUCTION
    } else {
        distance as i32
    }
}

/// Reads a frame, unless it was read with the one before. A read costs about the same however little is read, and since
/// 3.11 a frame's caller lies before it in memory (`_PyThreadState_PushFrame`, Python/pystate.c): so what lies before is
/// read, too.
#[inline(always)]
fn read_frame(python: &mut PythonState, frame: u64) -> bool {
    let bytes = u64::from(python.layout.frame_bytes);
    let offset = frame.wrapping_sub(python.window_begin);
    if offset <= WINDOW_BYTES.wrapping_sub(bytes) && offset & 7 == 0 {
        python.frame_at = offset / 8;
        return true;
    }
    if python.layout.frame_owner != NO_FIELD || python.layout.frame_is_entry != NO_FIELD {
        let begin = frame.wrapping_add(bytes).wrapping_sub(WINDOW_BYTES);
        // SAFETY: a checked read of user memory into a buffer of that size.
        let failed = unsafe {
            bpf_probe_read_user(
                (&raw mut python.window).cast(),
                WINDOW_BYTES as u32,
                begin as *const _,
            )
        };
        if failed == 0 {
            python.window_begin = begin;
            python.frame_at = (WINDOW_BYTES - bytes) / 8;
            return true;
        }
    }
    // A frame may begin where its memory does.
    python.window_begin = 0;
    python.frame_at = 0;
    read(
        &raw mut python.window,
        frame,
        bytes as u32,
        FRAME_BYTES_MAX as u32,
    )
}

/// A word of the frame that was read.
#[inline(always)]
fn frame_word(python: &PythonState, offset: u16) -> u64 {
    python.window[(python.frame_at as usize + offset as usize / 8) & (FRAME_WINDOW_WORDS - 1)]
}

/// A byte of it.
#[inline(always)]
fn frame_byte(python: &PythonState, offset: u16) -> u16 {
    let shift = u32::from(offset & 7) * 8;
    (frame_word(python, offset) >> (shift & 63)) as u16 & 0xff
}

/// Reads `bytes` bytes of the target's memory, at most `most`, which is less than a power of two that `into` has room for.
#[inline(always)]
fn read<T>(into: *mut T, from: u64, bytes: u32, most: u32) -> bool {
    if bytes == 0 || bytes > most {
        return false;
    }
    // SAFETY: a checked read of user memory into a buffer of at least `most` bytes.
    unsafe { bpf_probe_read_user(into.cast(), bytes, from as *const _) == 0 }
}
