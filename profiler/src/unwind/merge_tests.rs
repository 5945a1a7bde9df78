//! Merges of lists written by hand. Native frames are written as names of one letter, `L` is the interpreter's loop.

use super::*;
use crate::model::{KtimeNs, Pid, ThreadName, Tid};

/// A stack being written, innermost frame first.
#[derive(Default)]
struct Hand {
    native: Vec<u64>,
    python: Vec<u64>,
    is_counted: bool,
    has_greenlets: bool,
    end: Option<StackEnd>,
    python_end: Option<PythonEnd>,
}

impl Hand {
    /// Compiled code.
    fn code(mut self, name: char) -> Self {
        self.native.push(name as u64);
        self
    }

    /// The loop, whose part of the stack ends at `cfa`.
    fn running(mut self, cfa: u64) -> Self {
        self.native.extend([u64::from(b'L'), native::CFA | cfa]);
        self
    }

    fn trampoline(mut self) -> Self {
        self.native.push(u64::from(b't') | native::TRAMPOLINE);
        self
    }

    fn python(mut self, name: char) -> Self {
        self.python.extend([name as u64, 0]);
        self
    }

    fn shim(mut self, at: u64) -> Self {
        self.python.extend([entry::SHIM << KIND_SHIFT | at, 0]);
        self
    }

    fn state(mut self) -> Self {
        self.python.extend([entry::THREAD_STATE << KIND_SHIFT, 0]);
        self
    }

    /// What is shown, and what is missing. Python frames are in capital letters.
    fn merged(&self) -> (String, StackEnd) {
        let mut stack = UnwoundStack::empty();
        stack.end = self.end.unwrap_or(StackEnd::Root);
        let python = PythonPart {
            end: self.python_end.unwrap_or(PythonEnd::Whole),
            is_counted: self.is_counted,
            has_greenlets: self.has_greenlets,
            words: &self.python,
        };
        merge_user(&self.native, &python, &mut stack);
        let shown = stack.user.iter().map(|frame| match frame {
            // Callers are looked up one byte earlier.
            UserFrame::Native(address) => (address.lookup().0 as u8 + 1) as char,
            UserFrame::Python(frame) => (frame.code.0 as u8 as char).to_ascii_uppercase(),
        });
        (shown.collect(), stack.end)
    }

    fn check(&self, shown: &str, end: StackEnd) {
        assert_eq!(self.merged(), (shown.to_owned(), end));
    }
}

fn hand() -> Hand {
    Hand::default()
}

fn counted() -> Hand {
    Hand {
        is_counted: true,
        ..Hand::default()
    }
}

const WHOLE: StackEnd = StackEnd::Root;

#[test]
fn c_functions_stand_between_the_python_functions_that_they_connect() {
    // sort called key() back: two activations, the outer one runs two functions.
    let stack = hand()
        .code('a')
        .running(0x100)
        .code('s')
        .code('v')
        .running(0x200)
        .code('m');
    let stack = stack
        .python('k')
        .shim(0xf0)
        .python('w')
        .python('x')
        .shim(0x1f0);
    stack.check("aKsvWXm", WHOLE);
}

#[test]
fn an_activation_that_has_no_frame_yet_is_shown_as_what_it_is() {
    let stack = hand().code('a').running(0x100).code('v').running(0x200);
    stack.python('w').shim(0x1f0).check("aLvW", WHOLE);
}

#[test]
fn the_same_is_so_where_frames_are_counted() {
    let stack = counted().code('a').running(0x100).code('v').running(0x200);
    stack.python('w').check("aLvW", WHOLE);
    let stack = counted().code('a').running(0x100).code('v').running(0x200);
    stack.python('v').python('w').check("aVvW", WHOLE);
}

#[test]
fn frames_whose_counts_do_not_fit_are_all_kept_with_the_python_ones_in_one_block() {
    let stack = counted()
        .running(0x100)
        .code('b')
        .running(0x200)
        .running(0x300);
    stack.python('w').check("WLbLL", StackEnd::NoFit);
    let stack = counted()
        .code('a')
        .code('b')
        .running(0x100)
        .code('m')
        .python('v')
        .python('w');
    stack.check("abVWLm", StackEnd::NoFit);
}

/// The outermost loop is that of the greenlet that switched to this one.
#[test]
fn with_greenlets_a_loop_too_many_fits_nothing() {
    let greenlets = || Hand {
        has_greenlets: true,
        ..counted()
    };
    let stack = greenlets()
        .running(0x100)
        .code('g')
        .running(0x200)
        .code('m');
    stack.python('w').check("WLgLm", StackEnd::NoFit);
    let stack = greenlets()
        .running(0x100)
        .code('v')
        .running(0x200)
        .code('m');
    stack.python('w').python('x').check("WvXm", WHOLE);
}

#[test]
fn the_base_frame_of_a_thread_state_is_nothing() {
    // 3.14 and later: it lies in the thread state, anywhere in memory.
    for base in [0x10, 0x7fff_0000] {
        let stack = hand().running(0x200).code('m').python('w').shim(0x1f0);
        stack.shim(base).check("Wm", WHOLE);
    }
}

#[test]
fn a_native_walk_that_fails_half_way_keeps_all_python_frames() {
    let cut = Some(StackEnd::UnknownJit(Avma(7)));
    let stack = Hand {
        end: cut,
        ..hand().code('a').running(0x100).code('s')
    };
    let stack = stack.python('k').shim(0xf0).python('w').shim(0x1f0);
    stack.check("aKsW", StackEnd::NativePart);
    let stack = Hand {
        end: cut,
        ..counted().code('a').running(0x100).code('s')
    };
    stack
        .python('k')
        .python('w')
        .check("aKsW", StackEnd::NativePart);
    let stack = Hand {
        end: Some(StackEnd::NoUserRegisters),
        ..hand().python('w').shim(0x1f0)
    };
    stack.check("W", StackEnd::NativePart);
}

#[test]
fn a_loop_that_was_not_recognised_leaves_all_frames() {
    // Only the leaf is surely called by the innermost Python function: the loop may be any of the others.
    let stack = hand().code('a').code('b').code('m').python('w').shim(0x1f0);
    stack.check("aWbm", StackEnd::NoFit);
    let stack = counted().code('a').code('b').code('m').python('w');
    stack.python('x').check("aWXbm", StackEnd::NoFit);
    let stack = hand().code('a').python('w').shim(0x1f0);
    stack.check("aW", StackEnd::NoFit);
    hand().python('w').shim(0x1f0).check("W", StackEnd::NoFit);
}

#[test]
fn trampolines_are_left_out_of_frames_that_cannot_be_merged() {
    let stack = counted()
        .code('a')
        .running(0x100)
        .trampoline()
        .code('v')
        .running(0x200)
        .running(0x300);
    stack.python('w').check("aWLvLL", StackEnd::NoFit);
}

/// A whole sample, taken in user mode, without Python frames.
fn raw(native: &[u64]) -> RawSample<'_> {
    RawSample {
        ktime: KtimeNs(0),
        pid: Pid(1),
        tid: Tid(1),
        thread_name: ThreadName([0; 16]),
        in_kernel: false,
        guessed: false,
        end: StackEnd::Root,
        python_end: PythonEnd::Whole,
        python_is_counted: false,
        python_is_unconfirmed: false,
        native,
        python: &[],
        kernel: &[],
        unfinished: None,
    }
}

/// In the kernel, the registers of one frame may not belong together.
#[test]
fn a_single_frame_of_a_sample_in_the_kernel_is_not_the_whole_stack() {
    let (loop_frame, caller) = ([u64::from(b'L'), native::CFA | 0x100], [1, 2]);
    let torn = StackEnd::NoUserRegisters;
    let zero = StackEnd::ZeroReturnAddress;
    for (native, in_kernel, end, shown) in [
        (&loop_frame[..], true, zero, torn),
        (&loop_frame[..1], true, zero, torn),
        (&loop_frame[..], true, StackEnd::Root, StackEnd::Root),
        (&loop_frame[..], false, zero, zero),
        (&caller[..], true, zero, zero),
    ] {
        let sample = RawSample {
            in_kernel,
            end,
            ..raw(native)
        };
        let mut stack = UnwoundStack::empty();
        describe(&sample, ImageId(0), &mut stack);
        assert_eq!(stack.end, shown, "{sample:?}");
    }
}

/// 3.11 and 3.12: the new activation has no frame yet, and its caller was found by address. A new greenlet has no caller.
#[test]
fn frames_that_may_be_another_greenlets_are_not_shown() {
    let native = [u64::from(b'L'), native::CFA | 0x100];
    let python = [u64::from(b'w'), 0];
    let mut sample = RawSample {
        python_is_unconfirmed: true,
        python: &python,
        ..raw(&native)
    };
    let merged = |sample: &RawSample<'_>, has_greenlets| {
        let mut stack = UnwoundStack::empty();
        merge(sample, ImageId(0), has_greenlets, &mut stack);
        let is_python = |frame: &UserFrame| matches!(frame, UserFrame::Python(_));
        (stack.user.iter().any(is_python), stack.end)
    };
    let not_code = StackEnd::PythonPart(PythonEnd::NotCode);
    assert_eq!(merged(&sample, true), (false, not_code));
    assert!(merged(&sample, false).0);
    sample.python_is_unconfirmed = false;
    assert!(merged(&sample, true).0);
}

#[test]
fn python_frames_that_end_early_keep_the_native_ones() {
    let stack = Hand {
        python_end: Some(PythonEnd::NotCode),
        ..hand().code('a').running(0x100)
    };
    stack.check("aL", StackEnd::PythonPart(PythonEnd::NotCode));
    let stack = Hand {
        python_end: Some(PythonEnd::DepthLimit),
        ..hand().code('a').running(0x100).code('m')
    };
    stack
        .python('w')
        .python('x')
        .check("aWXm", StackEnd::DepthLimit);
}

#[test]
fn frames_of_several_thread_states_are_ordered_by_where_they_were_called() {
    // A subinterpreter runs inside the main one, and its state was found last.
    let stack = hand()
        .code('a')
        .running(0x100)
        .code('r')
        .running(0x200)
        .code('m');
    let stack = stack
        .state()
        .python('w')
        .shim(0x1f0)
        .state()
        .python('k')
        .shim(0xf0);
    stack.check("aKrWm", WHOLE);
}

#[test]
fn trampolines_are_left_out_where_the_interpreters_frames_are_there() {
    let stack = hand()
        .running(0x100)
        .trampoline()
        .code('v')
        .running(0x200)
        .trampoline();
    stack.check("LtvLt", WHOLE);
    let stack = Hand {
        ..hand()
            .running(0x100)
            .trampoline()
            .code('v')
            .running(0x200)
            .trampoline()
    };
    let stack = stack.python('k').shim(0xf0).python('w').shim(0x1f0);
    stack.check("KvW", WHOLE);
}

#[test]
fn a_thread_without_python_is_as_native_as_before() {
    let stack = Hand {
        python_end: Some(PythonEnd::NoThreadState),
        end: Some(StackEnd::NoRule(Avma(1))),
        ..hand().code('a').code('b')
    };
    stack.check("ab", StackEnd::NoRule(Avma(1)));
}

#[test]
fn words_that_make_no_sense_are_no_frames() {
    let stack = Hand {
        native: vec![native::CFA | 5, native::CFA | 6],
        python: vec![9 << KIND_SHIFT, 1, entry::SHIM << KIND_SHIFT],
        ..hand()
    };
    stack.check("", WHOLE);
}
