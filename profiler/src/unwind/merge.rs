//! One stack out of a sample's lists: native frames, with those of the interpreter in the places of its loop.
//!
//! Python frames stand in the native stack where the interpreter's loop runs them. Which activation of the loop runs
//! which of them is known exactly since 3.11: each leaves something on its stack, whose address the interpreter's list
//! has too (`entry::SHIM`), and the CFA of a loop's frame says where its part of the stack ends. Before, there is one
//! activation for each Python frame, so they are counted from the outermost on.
//!
//! Where neither is possible, nothing is said of their order but what is sure: the innermost Python function was running,
//! so what the innermost activation of the loop has called was called by it. All Python frames stand there in one block,
//! and [`StackEnd::NoFit`] says so: the native frames further out are between them, nobody knows where.

use std::ops::Range;

use profiler_common::{
    python::{ADDRESS_BITS, FRAME_WORDS, KIND_SHIFT, NO_INSTRUCTION, entry},
    sample::native,
};

use crate::model::{
    Avma, CodeAddress, ImageId, PythonEnd, PythonFrame, RawSample, StackEnd, UnwoundStack,
    UserFrame,
};

/// Fills `stack`, a buffer that is used again and again, from a sample; `image` is the program that its process ran then.
///
/// `has_greenlets`: the process has the library of that name.
pub fn merge(
    sample: &RawSample<'_>,
    image: ImageId,
    has_greenlets: bool,
    stack: &mut UnwoundStack,
) {
    describe(sample, image, stack);
    let python = PythonPart::of(sample, has_greenlets);
    merge_user(sample.native, &python, stack);
}

/// Everything but the user frames.
pub(super) fn describe(sample: &RawSample<'_>, image: ImageId, stack: &mut UnwoundStack) {
    let RawSample {
        ktime,
        pid,
        tid,
        thread_name,
        in_kernel,
        guessed,
        end,
        python_end: _, // all these: `merge_user`
        python_is_counted: _,
        python_is_unconfirmed: _,
        native: _,
        python: _,
        kernel,
        unfinished: _, // `builder` finishes such walks
    } = *sample;
    stack.ktime = ktime;
    stack.pid = pid;
    stack.image = image;
    stack.tid = tid;
    stack.thread_name = thread_name;
    stack.in_kernel = in_kernel;
    stack.guessed = guessed;
    stack.end = if end == StackEnd::ZeroReturnAddress && may_be_torn(sample) {
        StackEnd::NoUserRegisters
    } else {
        end
    };
    stack.kernel.clear();
    // The kernel's own unwinder gives return addresses above the interrupted instruction.
    stack
        .kernel
        .extend(kernel.iter().enumerate().map(|(n, &word)| {
            if n == 0 {
                CodeAddress::Leaf(Avma(word))
            } else {
                CodeAddress::Caller(Avma(word))
            }
        }));
}

/// The sample was taken in the kernel, and there is nothing but its innermost frame.
///
/// While the kernel delivers a signal, it writes the user's stack pointer and instruction pointer one after the other
/// (`x64_setup_rt_frame`, arch/x86/kernel/signal_64.c, Linux 6.18). In between, the return address of the interrupted
/// function is read from the new signal frame, which is full of zeros.
fn may_be_torn(sample: &RawSample<'_>) -> bool {
    let frames = sample
        .native
        .iter()
        .filter(|&&word| word & native::CFA == 0);
    sample.in_kernel && frames.count() <= 1
}

/// The interpreter's frames of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct PythonPart<'a> {
    /// How reading them ended.
    pub(super) end: PythonEnd,
    /// There are no shims among them.
    pub(super) is_counted: bool,
    /// The C stack may begin with frames of another greenlet, whose Python frames are in no list.
    pub(super) has_greenlets: bool,
    /// See `profiler_common::python`.
    pub(super) words: &'a [u64],
}

impl<'a> PythonPart<'a> {
    /// That of a sample.
    pub(super) fn of(sample: &RawSample<'a>, has_greenlets: bool) -> Self {
        let part = Self {
            end: sample.python_end,
            is_counted: sample.python_is_counted,
            has_greenlets,
            words: sample.python,
        };
        if sample.python_is_unconfirmed && has_greenlets {
            // The frames may be those of the greenlet that switched to this one.
            return Self {
                end: PythonEnd::NotCode,
                words: &[],
                ..part
            };
        }
        part
    }
}

/// Fills `stack.user` from both lists. `stack.end` says how the native walk ended; afterwards, what is missing of both.
pub(super) fn merge_user(native: &[u64], python: &PythonPart<'_>, stack: &mut UnwoundStack) {
    stack.user.clear();
    stack.trampolines.clear();
    let native_is_whole = stack.end.is_complete();
    let has_frames = python_frames(python.words).next().is_some();
    let fits = if !has_frames {
        let all = natives(native).map(|frame| UserFrame::Native(frame.address));
        stack.user.extend(all);
        true
    } else if python.is_counted {
        let is_whole = native_is_whole && python.end == PythonEnd::Whole;
        by_count(native, python, is_whole, stack)
    } else {
        by_address(native, python.words, native_is_whole, stack)
    };
    if !fits {
        as_block(native, python.words, stack);
    }
    stack.end = match python.end {
        PythonEnd::Whole if !fits => StackEnd::NoFit,
        PythonEnd::Whole if !native_is_whole && has_frames => StackEnd::NativePart,
        PythonEnd::NotRead | PythonEnd::NoThreadState | PythonEnd::Whole => stack.end,
        PythonEnd::DepthLimit => StackEnd::DepthLimit,
        PythonEnd::NotFound | PythonEnd::ReadFault | PythonEnd::NotCode => {
            StackEnd::PythonPart(python.end)
        }
    };
}

/// Puts each group of Python frames in the place of the loop that has its shim. False: some are left, though no native
/// frame is missing.
fn by_address(
    native: &[u64],
    python: &[u64],
    native_is_whole: bool,
    stack: &mut UnwoundStack,
) -> bool {
    let mut sorted = Vec::new();
    let one_state = !entries(python).any(|(kind, ..)| kind == entry::THREAD_STATE);
    if !one_state {
        // Groups of several states: the stack grows downwards, so that of the innermost call has the lowest shim.
        sorted.extend(groups(python));
        sorted.sort_by_key(|group| group.shim.unwrap_or(u64::MAX));
    }
    let groups = groups(python).filter(|_| one_state).chain(sorted);
    let mut groups = groups.peekable();
    for frame in natives(native) {
        let Some(cfa) = frame.cfa else {
            keep(frame, stack);
            continue;
        };
        // A group without a shim was cut short: it belongs to this loop, and maybe to others further out.
        let mut ran = false;
        while let Some(group) = groups.next_if(|it| it.shim.is_none_or(|shim| shim < cfa)) {
            ran |= add(group, python, stack);
        }
        if !ran {
            // It has no frame yet, or no more.
            stack.user.push(UserFrame::Native(frame.address));
        }
    }
    let mut is_left = false;
    for group in groups {
        is_left |= add(group, python, stack);
    }
    !(is_left && native_is_whole)
}

/// Adds the frames of a group. False: it has none.
fn add(group: Group, python: &[u64], stack: &mut UnwoundStack) -> bool {
    let words = &python[group.words];
    let frames = python_frames(words).map(UserFrame::Python);
    stack.user.extend(frames);
    !words.is_empty()
}

/// Puts each Python frame in the place of one loop. `is_whole`: no frame is missing of either kind, and they are counted
/// from the outermost on; else from the innermost. False: the numbers do not fit.
fn by_count(
    native: &[u64],
    part: &PythonPart<'_>,
    is_whole: bool,
    stack: &mut UnwoundStack,
) -> bool {
    let python = part.words;
    let loops = natives(native).filter(|frame| frame.cfa.is_some()).count();
    let count = python_frames(python).count();
    // The innermost one has no frame yet, or no more.
    let without_frame = loops.saturating_sub(count);
    // With greenlets, it may as well be the outermost one, which belongs to another of them.
    let most = usize::from(!part.has_greenlets);
    if is_whole && (without_frame > most || loops < count) {
        return false;
    }
    let mut to_skip = if is_whole { without_frame } else { 0 };
    let mut frames = python_frames(python);
    for frame in natives(native) {
        if frame.cfa.is_none() {
            keep(frame, stack);
        } else if to_skip > 0 {
            to_skip -= 1;
            stack.user.push(UserFrame::Native(frame.address));
        } else {
            let python = frames.next().map(UserFrame::Python);
            let shown = python.unwrap_or(UserFrame::Native(frame.address));
            stack.user.push(shown);
        }
    }
    stack.user.extend(frames.map(UserFrame::Python));
    true
}

/// Puts all Python frames in one place: behind what the innermost activation of the loop has called. Without a known loop,
/// only the leaf is surely called by the innermost Python function.
fn as_block(native: &[u64], python: &[u64], stack: &mut UnwoundStack) {
    stack.user.clear();
    stack.trampolines.clear();
    let loop_at = natives(native).position(|frame| frame.cfa.is_some());
    let mut natives = natives(native);
    for frame in natives.by_ref().take(loop_at.unwrap_or(1)) {
        keep(frame, stack);
    }
    stack
        .user
        .extend(python_frames(python).map(UserFrame::Python));
    for frame in natives {
        keep(frame, stack);
    }
}

/// A frame that is not one of the loop's. A trampoline says what the Python frame beside it says better.
fn keep(frame: NativeFrame, stack: &mut UnwoundStack) {
    if frame.is_trampoline {
        stack.trampolines.push(frame.address);
    } else {
        stack.user.push(UserFrame::Native(frame.address));
    }
}

/// A native frame of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NativeFrame {
    pub(super) address: CodeAddress,
    /// Of a frame of the interpreter's loop: where its part of the stack ends.
    pub(super) cfa: Option<u64>,
    pub(super) is_trampoline: bool,
}

/// The native frames of a sample, innermost first.
pub(super) fn natives(words: &[u64]) -> impl Iterator<Item = NativeFrame> + '_ {
    words.iter().enumerate().filter_map(|(index, &word)| {
        if word & native::CFA != 0 {
            return None;
        }
        let at = Avma(word & native::ADDRESS);
        let address = if word & native::INTERRUPTED == 0 {
            CodeAddress::Caller(at)
        } else {
            CodeAddress::Leaf(at)
        };
        let behind = words.get(index + 1).filter(|&word| word & native::CFA != 0);
        Some(NativeFrame {
            address,
            cfa: behind.map(|&word| word & native::ADDRESS),
            is_trampoline: word & native::TRAMPOLINE != 0,
        })
    })
}

/// The interpreter's entries: kind, address, second word.
fn entries(words: &[u64]) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
    let (pairs, _) = words.as_chunks::<FRAME_WORDS>();
    let address = (1 << ADDRESS_BITS) - 1;
    pairs
        .iter()
        .map(move |&[first, second]| (first >> KIND_SHIFT, first & address, second))
}

/// The interpreter's frames, innermost first.
pub(super) fn python_frames(words: &[u64]) -> impl Iterator<Item = PythonFrame> + '_ {
    entries(words)
        .filter(|&(kind, ..)| kind == entry::FRAME)
        .map(|(_, code, second)| PythonFrame {
            code: Avma(code),
            identity: (second >> 32) as u32,
            instruction: Some(second as u32 as i32).filter(|&at| at != NO_INSTRUCTION),
        })
}

/// Python frames that one activation of the loop runs.
#[derive(Clone, Debug)]
struct Group {
    /// Their words.
    words: Range<usize>,
    /// Its shim; `None`: what follows could not be read.
    shim: Option<u64>,
}

/// The groups, innermost first within each state of the thread.
fn groups(words: &[u64]) -> impl Iterator<Item = Group> + '_ {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let mut end = begin;
        for (kind, address, _) in entries(words.get(begin..)?) {
            let here = end;
            end += FRAME_WORDS;
            let shim = match kind {
                entry::SHIM => Some(address),
                entry::THREAD_STATE if here == begin => {
                    begin = end;
                    continue;
                }
                entry::THREAD_STATE => None,
                _ => continue,
            };
            return Some(Group {
                words: std::mem::replace(&mut begin, end)..here,
                shim,
            });
        }
        let rest = std::mem::replace(&mut begin, words.len().max(end))..end;
        (!rest.is_empty()).then_some(Group {
            words: rest,
            shim: None,
        })
    })
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
