//! Callers of code that nothing describes. What is found here may be wrong, and the sample says so.

use aya_ebpf::helpers::bpf_probe_read_user;
use profiler_common::{
    frame_code::{is_before_frame, words_above_return_address},
    sample::flags,
    trampoline::ends_in_call,
    unwind_row::{MAPPINGS_MAX, PAGE_BYTES, ProcessMappings, SAVED_UNKNOWN, bp, cfa},
};

use crate::{
    maps::{self, PROCESS_MAPPINGS, State},
    trampoline,
    walk::{find_mapping, frame_pointer, note, pair, read},
};

/// Words of the stack in which the caller of code without unwind information is looked for.
const GUESS_WORDS: u64 = 8;
/// The same above a stack pointer that the code has kept in a register: six saved registers and as many variables come
/// first in the kernels of OpenBLAS.
const GUESS_WORDS_KEPT: u64 = 16;
/// Code that puts pieces of matrices on the stack rounds its stack pointer down to this, or to more. Few others have such
/// a stack pointer.
const ROUNDED_TO: u64 = 1024;
/// The DWARF number of `rbx`.
const RBX: usize = 3;
/// A frame of generated code is not larger than this.
const JIT_FRAME_BYTES_MAX: u64 = 64 * 1024;
/// What a frame that was left by its frame pointer says of the other callee-saved registers: nothing.
const BY_FRAME_POINTER: u64 = u64::from_le_bytes([
    cfa::RBP,
    bp::AT_CFA,
    0,
    SAVED_UNKNOWN,
    SAVED_UNKNOWN,
    SAVED_UNKNOWN,
    SAVED_UNKNOWN,
    SAVED_UNKNOWN,
]);

/// For an interrupted frame without unwind information: takes the first word of the stack that is a return address,
/// and marks the sample. Returns 0 when there is none.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn guess_caller(slot: u32) -> u32 {
    let Some(pointer) = maps::state() else {
        return 0;
    };
    // SAFETY: this CPU's map value.
    let state = unsafe { &mut *pointer };
    let Some(mappings) = PROCESS_MAPPINGS.get(slot) else {
        return 0;
    };
    for n in 0..GUESS_WORDS {
        let place = state.sp.wrapping_add(8 * n);
        let Ok(word) = read(place) else {
            return 0;
        };
        if is_return_address(mappings, word) {
            // A frame that keeps a frame pointer has its caller's just below.
            if state.bp_in_memory == 0
                && state.bp == place.wrapping_sub(8)
                && let Ok(callers) = read(state.bp)
            {
                state.bp = callers;
            }
            return go_to(state, place, word);
        }
    }
    0
}

/// For an interrupted frame without unwind information that has rounded its stack pointer down, and keeps the one from
/// before in `rbx` (`dgemm_kernel_HASWELL` of OpenBLAS 0.3): takes the first word above that one that is a return
/// address, and marks the sample. Returns 0 when there is none. What lies at the stack pointer itself may be left over from
/// earlier calls, so this comes before [`guess_caller`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn guess_by_kept_stack_pointer(slot: u32) -> u32 {
    let Some(pointer) = maps::state() else {
        return 0;
    };
    // SAFETY: this CPU's map value.
    let state = unsafe { &mut *pointer };
    let Some(mappings) = PROCESS_MAPPINGS.get(slot) else {
        return 0;
    };
    let kept = state.leaf_registers[RBX];
    let room = kept.wrapping_sub(state.sp);
    if state.sp % ROUNDED_TO != 0 || kept % 8 != 0 || room == 0 || room >= JIT_FRAME_BYTES_MAX {
        return 0;
    }
    for n in 0..GUESS_WORDS_KEPT {
        let place = kept.wrapping_add(8 * n);
        let Ok(word) = read(place) else {
            return 0;
        };
        if is_return_address(mappings, word) {
            return leave(state, place, word);
        }
    }
    0
}

/// For generated code that is no trampoline, and code of a file that says nothing of it: takes it that it keeps a frame
/// pointer, as that of most JIT compilers does, and marks the sample. Returns 0 when what is found there does not look
/// like a frame.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn by_frame_pointer(slot: u32) -> u32 {
    let Some(pointer) = maps::state() else {
        return 0;
    };
    // SAFETY: this CPU's map value.
    let state = unsafe { &mut *pointer };
    let Some(mappings) = PROCESS_MAPPINGS.get(slot) else {
        return 0;
    };
    if state.leaf != 0 {
        let place = words_pushed();
        if place != IN_FRAME {
            let pushed = u64::from(place == BELOW_ONE_WORD);
            let at = state.sp.wrapping_add(8 * pushed);
            match read(at) {
                Ok(word) if is_return_address(mappings, word) => {
                    if pushed != 0 {
                        state.bp = state.sp;
                        state.bp_in_memory = 1;
                    }
                    return leave(state, at, word);
                }
                // Then it has its frame, and another function begins behind it.
                _ if place == MAYBE_AT_TOP => {}
                _ => return 0,
            }
        }
    }
    let Ok(frame) = frame_pointer(state) else {
        return 0;
    };
    if frame & 7 != 0 || frame.wrapping_sub(state.sp) >= JIT_FRAME_BYTES_MAX {
        return 0;
    }
    let Ok([callers, word]) = pair(state, frame) else {
        return 0;
    };
    if !is_return_address(mappings, word) {
        return 0;
    }
    state.bp = callers;
    state.bp_in_memory = 0;
    leave(state, frame.wrapping_add(8), word)
}

/// As [`go_to`], from a frame that may have saved any register anywhere.
#[inline(always)]
fn leave(state: &mut State, place: u64, word: u64) -> u32 {
    note(state, BY_FRAME_POINTER, place.wrapping_add(8));
    go_to(state, place, word)
}

/// Moves to the caller whose return address, `word`, lies at `place`, and marks the sample.
#[inline(always)]
fn go_to(state: &mut State, place: u64, word: u64) -> u32 {
    state.header.flags |= flags::GUESSED;
    state.sp = place.wrapping_add(8);
    state.ip = word;
    state.leaf = 0;
    1
}

/// [`words_pushed`]: the frame is there, as far as the code says.
const IN_FRAME: u32 = 0;
/// [`words_pushed`]: the return address is at the stack pointer.
const AT_TOP: u32 = 1;
/// [`words_pushed`]: one word lies above the return address.
const BELOW_ONE_WORD: u32 = 2;
/// [`words_pushed`]: the return address is at the stack pointer, unless the function ends before the one that begins next.
const MAYBE_AT_TOP: u32 = 3;

/// Where the return address is of code that is interrupted before it has its frame, or after.
///
/// A global function: its many comparisons are checked once.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn words_pushed() -> u32 {
    let Some(pointer) = maps::state() else {
        return IN_FRAME;
    };
    // SAFETY: this CPU's map value.
    let ip = unsafe { (*pointer).ip };
    // SAFETY: a checked read of user memory.
    let code = unsafe { bpf_probe_read_user(ip.wrapping_sub(8) as *const [u64; 4]) };
    let [before, ahead @ ..] = match code {
        Ok(code) => code,
        // The code may end soon.
        Err(_) => [
            trampoline::word(ip.wrapping_sub(8)),
            trampoline::word(ip),
            0,
            0,
        ],
    };
    match words_above_return_address(before, ahead[0]) {
        Some(0) => AT_TOP,
        Some(_) => BELOW_ONE_WORD,
        None if is_before_frame(&ahead) => MAYBE_AT_TOP,
        None => IN_FRAME,
    }
}

/// `word` is the address of code that a call stands before, or of a signal restorer.
#[inline(always)]
fn is_return_address(mappings: &ProcessMappings, word: u64) -> bool {
    if word >= i64::MAX as u64 || word < PAGE_BYTES {
        return false;
    }
    let entry = &mappings.entries[find_mapping(mappings, word) as usize & (MAPPINGS_MAX - 1)];
    word >= entry.begin
        && word < entry.end
        && (ends_in_call(trampoline::word(word - 8)) || trampoline::sigreturn_at(word).is_some())
}
