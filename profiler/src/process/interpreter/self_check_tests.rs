use profiler_common::python::NO_FIELD;
use proptest::prelude::*;

use super::*;
use crate::process::interpreter::{
    debug_offsets::{
        ROWS,
        tests::{PYTHON_3_13_FREE_THREADED, PYTHON_3_14, PYTHON_3_15, offsets},
    },
    fake_process::{
        BYTES, CODE_TYPE, FakeMemory, INTERPRETER, RUNTIME, THREAD, code, frame, process,
    },
    offsets::built_in,
};

const NAMES: [&str; 3] = ["leaf", "work", "<module>"];

fn python(minor: u8) -> Interpreter {
    built_in(minor, RUNTIME, CODE_TYPE, 0).expect("known")
}

fn described(words: &[u64], row: usize) -> Interpreter {
    let layout = offsets(words).layout(&ROWS[row], RUNTIME, CODE_TYPE);
    layout.expect("possible")
}

/// One of each kind.
fn all() -> Vec<Interpreter> {
    let mut all: Vec<_> = (8..=12).map(python).collect();
    let mut copies = PYTHON_3_14;
    (copies[2], copies[38], copies[49]) = (1, 72, 176);
    all.extend([
        described(&PYTHON_3_15, 0),
        described(&PYTHON_3_14, 1),
        described(&copies, 1),
        described(&PYTHON_3_13_FREE_THREADED, 2),
    ]);
    all
}

fn verdict(memory: &FakeMemory, interpreter: &Interpreter) -> Verdict {
    try_out(memory, interpreter, Demands::Fits)
}

/// Of 3.12, with something changed.
fn changed(change: impl Fn(&FakeMemory, &Interpreter)) -> Verdict {
    let python = python(12);
    let memory = process(&python, &NAMES);
    assert_eq!(verdict(&memory, &python), Verdict::Fits);
    change(&memory, &python);
    verdict(&memory, &python)
}

#[test]
fn a_process_that_is_as_the_layout_says_fits() {
    for interpreter in all() {
        for demands in [Demands::Fits, Demands::FitsForSure] {
            let memory = process(&interpreter, &NAMES);
            let verdict = try_out(&memory, &interpreter, demands);
            assert_eq!(verdict, Verdict::Fits, "{interpreter:?}");
        }
    }
}

#[test]
fn without_interpreter_threads_or_frames_it_cannot_be_told() {
    let verdict = changed(|memory, python| memory.put_word(python.frames.interpreters, 0));
    assert_eq!(verdict, Verdict::NotYet(NotYet::NotInitialised));
    let verdict = changed(|memory, python| {
        memory.put_word(
            INTERPRETER + u64::from(python.frames.interpreter_threads),
            0,
        );
    });
    assert_eq!(verdict, Verdict::NotYet(NotYet::NoFrames));
    let verdict = changed(|memory, _| memory.put_word(THREAD + 56, THREAD + 0x100));
    assert_eq!(
        verdict,
        Verdict::NotYet(NotYet::NoFrames),
        "an empty _PyCFrame"
    );
    let verdict = changed(|memory, _| memory.truncate(0));
    assert_eq!(verdict, Verdict::NotYet(NotYet::Gone));
}

#[test]
fn a_type_with_its_members_elsewhere_says_where_they_are() {
    for (own, other) in [(11, 12), (12, 11), (9, 10), (10, 9), (8, 11), (10, 12)] {
        let memory = process(&python(own), &NAMES);
        let verdict = verdict(&memory, &python(other));
        let is_misfit = matches!(
            verdict,
            Verdict::Misfit(Misfit::Member { .. } | Misfit::NoMember(_))
        );
        assert!(is_misfit, "3.{own} as 3.{other}: {verdict:?}");
    }
    let verdict = changed(|memory, _| memory.put_word(CODE_TYPE + 32, 208));
    let (found, expected) = (208, 192);
    let misfit = Misfit::Instructions { found, expected };
    assert_eq!(verdict, Verdict::Misfit(misfit));
    let verdict = changed(|memory, _| memory.put_word(CODE_TYPE + 24, CODE_TYPE));
    assert_eq!(verdict, Verdict::Misfit(Misfit::CodeType));
}

/// As `--with-trace-refs` makes them, which puts two pointers before each.
#[test]
fn objects_that_begin_with_more_than_usual_are_refused() {
    let with_more = described(&PYTHON_3_13_FREE_THREADED, 2);
    let mut usual = python(12);
    usual.frames.interpreters = with_more.frames.interpreters;
    let memory = process(&with_more, &NAMES);
    assert_eq!(verdict(&memory, &usual), Verdict::Misfit(Misfit::CodeType));
}

#[test]
fn each_thing_that_does_not_fit_is_named() {
    type Damage<'d> = &'d dyn Fn(&FakeMemory, &Interpreter);
    let cases: [(Misfit, Damage<'_>); 13] = [
        (Misfit::Interpreters, &|m, p| {
            m.put_word(p.frames.interpreters, 4);
        }),
        (Misfit::Threads, &|m, _| m.put_word(THREAD + 16, THREAD)),
        (Misfit::ThreadId, &|m, _| m.put_word(THREAD + 136, THREAD)),
        (Misfit::NoFrame, &|m, _| m.put_word(frame(1) + 8, 24)),
        (Misfit::Owner(9), &|m, _| m.put(frame(1) + 70, &[9])),
        (Misfit::Circle, &|m, _| m.put_word(frame(2) + 8, frame(1))),
        (Misfit::Circle, &|m, _| m.put_word(frame(1) + 8, frame(1))),
        (Misfit::NotCode, &|m, _| m.put_word(frame(1), THREAD)),
        (Misfit::NotCode, &|m, _| m.put_word(code(2) + 8, THREAD)),
        (Misfit::Part("the number of references"), &|m, _| {
            m.put_word(code(1), 0);
        }),
        (Misfit::Part("the first line"), &|m, _| {
            m.put(code(0) + 68, &[0xff; 4]);
        }),
        (Misfit::Part("the name"), &|m, _| {
            m.put_word(code(0) + 120, code(0));
        }),
        (Misfit::Instruction, &|m, _| {
            m.put_word(frame(1) + 56, code(0));
        }),
    ];
    for (misfit, change) in cases {
        assert_eq!(changed(change), Verdict::Misfit(misfit));
    }
}

#[test]
fn a_list_that_is_being_changed_is_no_misfit() {
    let verdict = changed(|memory, _| memory.put_word(THREAD, THREAD + 0x200));
    assert_eq!(verdict, Verdict::NotYet(NotYet::Changing));
}

#[test]
fn the_newest_frame_may_be_about_to_begin() {
    let verdict = changed(|memory, _| memory.put_word(frame(0) + 56, 0));
    assert_eq!(verdict, Verdict::Fits);
    // Nothing else speaks for it then.
    let python = python(12);
    let memory = process(&python, &["<module>"]);
    memory.put_word(frame(0) + 56, 0);
    let verdict = try_out(&memory, &python, Demands::Fits);
    assert_eq!(verdict, Verdict::Misfit(Misfit::Instruction));
}

#[test]
fn marks_of_calls_from_c_are_passed_over() {
    let verdict = changed(|memory, _| {
        memory.put(frame(1) + 70, &[3]);
        memory.put_word(frame(1), 0);
    });
    assert_eq!(verdict, Verdict::Fits);
    let verdict = changed(|memory, _| {
        for number in 0..3 {
            memory.put(frame(number) + 70, &[3]);
        }
    });
    assert_eq!(verdict, Verdict::NotYet(NotYet::TooLittle));
}

#[test]
fn a_version_that_is_not_known_must_show_more() {
    let python = described(&PYTHON_3_15, 0);
    let sure = |names: &[&str]| {
        let memory = process(&python, names);
        let verdict = try_out(&memory, &python, Demands::Fits);
        assert_eq!(verdict, Verdict::Fits);
        try_out(&memory, &python, Demands::FitsForSure)
    };
    for root in ["<module>", "_bootstrap", "_run_module_as_main"] {
        assert_eq!(sure(&[root]), Verdict::Fits);
    }
    let too_little = Verdict::NotYet(NotYet::TooLittle);
    assert_eq!(sure(&["application"]), too_little);
    assert_eq!(sure(&["<module>", "application"]), too_little);
    assert_eq!(sure(&["_bootstrap_inner"]), too_little);
    assert_eq!(sure(&["leaf", "work", "application"]), Verdict::Fits);
}

#[test]
fn an_instruction_in_a_threads_own_copy_is_in_its_code() {
    let mut words = PYTHON_3_14;
    (words[2], words[38], words[49]) = (1, 72, 176);
    let python = described(&words, 1);
    let memory = process(&python, &["<module>"]);
    let (array, copy) = (code(5), code(6));
    memory.put_word(frame(0) + 56, copy + 8);
    let verdict = try_out(&memory, &python, Demands::Fits);
    assert_eq!(verdict, Verdict::Misfit(Misfit::Instruction));
    memory.put_word(code(0) + 176, array);
    memory.put_word(array, 2);
    memory.put_word(array + 16, copy);
    memory.put(frame(0) + 72, &[1]);
    assert_eq!(try_out(&memory, &python, Demands::Fits), Verdict::Fits);
    memory.put(frame(0) + 72, &[2]);
    let verdict = try_out(&memory, &python, Demands::Fits);
    assert_eq!(verdict, Verdict::Misfit(Misfit::Instruction));
}

/// As when frames come and go: each read of the newest frame finds another caller, which is none.
struct Changing<'m>(&'m FakeMemory);

impl ReadMemory for Changing<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        if at == frame(1) {
            let nowhere = 0x1000 + 8 * self.0.reads.get() as u64;
            self.0.put_word(frame(1) + 8, nowhere);
        }
        self.0.read(at, into)
    }
}

/// A memory that can be read so many times, and is gone then.
struct Ending<'m>(&'m FakeMemory, usize);

impl ReadMemory for Ending<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        self.0.read(at, into) && self.0.reads.get() <= self.1
    }
}

#[test]
fn a_process_that_ends_meanwhile_is_never_refused() {
    let python = python(12);
    let memory = process(&python, &NAMES);
    assert_eq!(verdict(&memory, &python), Verdict::Fits);
    for reads in 0..memory.reads.get() {
        memory.reads.set(0);
        let verdict = try_out(&Ending(&memory, reads), &python, Demands::Fits);
        assert!(
            !matches!(verdict, Verdict::Misfit(_)),
            "after {reads}: {verdict:?}"
        );
    }
}

#[test]
fn frames_that_change_all_the_time_are_no_misfit() {
    let python = python(12);
    let memory = process(&python, &NAMES);
    let verdict = try_out(&Changing(&memory), &python, Demands::Fits);
    assert_eq!(verdict, Verdict::NotYet(NotYet::Changing));
}

#[test]
fn a_memory_that_ends_anywhere_is_no_panic() {
    for interpreter in all() {
        for bytes in (0..BYTES).step_by(1032) {
            let memory = process(&interpreter, &NAMES);
            memory.truncate(bytes);
            let verdict = verdict(&memory, &interpreter);
            let needs_all = bytes < 0xb000;
            assert!(!needs_all || verdict != Verdict::Fits, "{bytes:#x}");
        }
    }
}

fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..300_u64,
        (0..BYTES as u64 / 8).prop_map(|word| RUNTIME - 0x100 + 8 * word),
        any::<u64>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_damaged_process_is_no_panic_and_takes_bounded_work(
        which in 0_usize..9,
        damage in prop::collection::vec((0..BYTES / 8, any_word()), 1..200),
    ) {
        let interpreter = &all()[which];
        let memory = process(interpreter, &NAMES);
        for (word, value) in damage {
            memory.damage(word, value);
        }
        let _ = verdict(&memory, interpreter);
        prop_assert!(memory.reads.get() < 20_000);
    }

    #[test]
    fn random_memory_never_fits(
        which in 0_usize..9,
        bytes in prop::collection::vec(any::<u8>(), 0x800),
        interpreter_at in any_word(),
    ) {
        let interpreter = &all()[which];
        let memory = FakeMemory::new(bytes.repeat(BYTES / 0x800));
        memory.put_word(interpreter.frames.interpreters, interpreter_at);
        prop_assert_ne!(verdict(&memory, interpreter), Verdict::Fits);
        prop_assert!(interpreter.frames.frame_bytes != NO_FIELD);
    }
}
