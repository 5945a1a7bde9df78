//! The entry of the interpreter's loop in 3.11 and 3.12.
//!
//! There the loop has a `_PyCFrame` in its own stack frame, which says what the current frame is and which one was before
//! it. `_PyEval_EvalFrameDefault` (Python/ceval.c) publishes it in the thread state first and fills it some ten
//! instructions later. A sample in between finds what an earlier call left at this place of the stack: nonsense, or, worse,
//! a frame of a moment ago. In code that does little but call Python functions from C, that is one sample in a hundred.
//!
//! So where the interrupted function is the loop itself and the newest `_PyCFrame` lies in its stack frame, that one is
//! *doubtful*, until its frames have led to the entry of its activation: the caller that is noted there must be the
//! current frame of the `_PyCFrame` before it. Otherwise it is *empty*, and so is what it has as the one before it. That
//! is found by address: it lies as far from the CFA of its activation of the loop as the empty one from its own, and the
//! native walk has met both.

use profiler_common::{
    python::{NO_FIELD, PythonEnd, THREAD_STATES_MAX},
    sample::{StackEnd, flags},
};

use super::{step::end, word};
use crate::maps::{self, State};

/// `PyThreadState` is not larger than this; its member `root_cframe` is the outermost `_PyCFrame`.
const THREAD_STATE_BYTES_MAX: u64 = 4096;

/// The `_PyCFrame` that was just read may be empty.
#[inline(always)]
pub(super) fn is_doubtful(state: &State) -> bool {
    let (python, loops) = (&state.python, &state.loops);
    if python.layout.cframe_previous == NO_FIELD {
        return false;
    }
    if loops.count == 0 {
        // The walk met no loop that it knows: the interrupted function may be one.
        return python.frame != 0;
    }
    loops.interrupted != 0
        && python.cframe.wrapping_sub(loops.sp) < loops.cfa.wrapping_sub(loops.sp)
}

/// `caller` is what the entry of an activation of the loop has as the frame that called it. False: that shows that the
/// first `_PyCFrame` is empty.
#[inline(always)]
pub(super) fn confirm(state: &mut State, caller: u64) -> bool {
    if state.python.is_doubtful == 0 {
        return true;
    }
    let (python, loops) = (&state.python, &state.loops);
    let before = python.cframe_previous;
    if word(before, u64::from(python.layout.cframe_frame)) != Some(caller) {
        return false;
    }
    if loops.outer_cfa != 0
        && before.wrapping_sub(loops.outer_sp) >= loops.outer_cfa.wrapping_sub(loops.outer_sp)
    {
        // Not of the next activation, which may run another interpreter: then it is the root of this one. Greenlets begin
        // with one of their own, which follows the root.
        let earlier = word(before, u64::from(python.layout.cframe_previous)).unwrap_or(0);
        let is_root = |cframe: u64| cframe.wrapping_sub(python.thread) < THREAD_STATE_BYTES_MAX;
        if !is_root(before) && !is_root(earlier) {
            return false;
        }
    }
    state.python.is_doubtful = 0;
    true
}

/// Goes to the activation of the loop from which the one with the empty `_PyCFrame` was called. 0: there is none, or it
/// is not known; the end is noted. `index` is that of the thread's state.
///
/// A global function, as all that is needed rarely and would make others longer for the verifier.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn python_caller(index: u32) -> u32 {
    let Some(pointer) = maps::state() else {
        return 0;
    };
    // SAFETY: this CPU's map value.
    let state = unsafe { &mut *pointer };
    let loops = state.loops;
    if loops.interrupted == 0 {
        return end(state, PythonEnd::NotCode);
    }
    if loops.outer_cfa == 0 {
        let ending = state.header.stack_end;
        let is_outermost =
            ending == StackEnd::Root as u16 || ending == StackEnd::ZeroReturnAddress as u16;
        let reason = if is_outermost {
            PythonEnd::Whole
        } else {
            PythonEnd::NotCode
        };
        return end(state, reason);
    }
    let distance = loops.cfa.wrapping_sub(state.python.cframe);
    let cframe = loops.outer_cfa.wrapping_sub(distance);
    let thread_frame = u64::from(state.python.layout.thread_frame);
    for other in 0..THREAD_STATES_MAX as u64 {
        // That activation runs another interpreter, which called this one.
        if other != u64::from(index)
            && other < state.python.state_count
            && word(state.python.states[other as usize], thread_frame) == Some(cframe)
        {
            return end(state, PythonEnd::Whole);
        }
    }
    let frame = word(cframe, u64::from(state.python.layout.cframe_frame)).unwrap_or(0);
    if frame == 0 {
        return end(state, PythonEnd::NotCode);
    }
    let mut is_confirmed = false;
    for register in state.leaf_registers {
        is_confirmed |= register == cframe || register == frame;
    }
    if !is_confirmed {
        state.header.flags |= flags::PYTHON_UNCONFIRMED;
    }
    state.python.frame = frame;
    state.python.cframe = cframe;
    1
}
