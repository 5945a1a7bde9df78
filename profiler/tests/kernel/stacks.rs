//! Stacks are whole, and are the ones that the programs really have.

use std::{process::Command, time::Duration};

use rustix::process::Signal;

use super::{
    Python, Test, Verdict, let_work, note,
    recording::{Recorder, Recording, Stack, WHOLE, begin, record},
    running::{Running, remove_perf_map, signal},
    script, skip, workload,
};

pub(super) const TESTS: &[Test] = &[
    ("every_sample_of_a_call_chain_is_whole", call_chain),
    (
        "system_calls_and_page_faults_keep_the_stack_below",
        system_calls,
    ),
    (
        "user_registers_are_also_found_without_the_kernels_help",
        task_stack,
    ),
    ("numpy_with_one_blas_thread", numpy_alone),
    ("numpy_with_several_blas_threads", numpy_threads),
    ("eight_threads_each_with_its_own_stack", threads),
    ("recursion_is_as_deep_as_it_is", recursion),
    ("c_code_that_calls_python_back", callbacks),
    ("signal_handlers_stand_on_what_they_interrupted", signals),
    (
        "generators_and_coroutines_stand_on_who_runs_them",
        generators,
    ),
    ("libraries_that_are_loaded_during_the_recording", imports),
    ("assembler_that_keeps_its_frame_in_memory", hashing),
    ("functions_that_ran_when_their_process_forked", forked),
];

/// Those that depend on what lies between the interpreter and a trampoline, and one that is about ours alone.
pub(super) const TESTS_WITH_OUR_TRAMPOLINES: &[Test] = &[
    ("every_sample_of_a_call_chain_is_whole", call_chain),
    (
        "system_calls_and_page_faults_keep_the_stack_below",
        system_calls,
    ),
    ("eight_threads_each_with_its_own_stack", threads),
    ("recursion_is_as_deep_as_it_is", recursion),
    ("c_code_that_calls_python_back", callbacks),
    ("signal_handlers_stand_on_what_they_interrupted", signals),
    (
        "generators_and_coroutines_stand_on_who_runs_them",
        generators,
    ),
    ("libraries_that_are_loaded_during_the_recording", imports),
    ("functions_that_get_their_trampolines_now", first_calls),
    ("functions_that_ran_when_their_process_forked", forked),
];

/// With the kernel's part of each stack.
const IN_KERNEL: [&str; 3] = ["-F", "1999", "--kernel"];

/// Enough samples for shares of a thousandth.
const OFTEN: [&str; 4] = ["-F", "1999", "-d", "3"];

/// Fewer than these, and the machine is too busy to judge anything by it.
const ENOUGH: u64 = 500;

fn run(command: &mut Command, options: &[&str]) -> Recording {
    let target = Running::start(command);
    record(target.pid(), options)
}

fn perf(python: &Python, name: &str) -> Command {
    let mut command = python.perf();
    command.arg(workload(name));
    command
}

/// The positions of these functions, outermost first, with anything between them.
fn in_order(stack: &Stack, names: &[&str]) -> bool {
    let python = stack.python();
    let mut left = python.iter();
    names
        .iter()
        .all(|name| left.any(|function| function == name))
}

fn assert_all(recording: &Recording, such: &str, holds: impl Fn(&Stack) -> bool) {
    for stack in recording.whole() {
        assert!(holds(stack), "not {such}: {stack:?}");
    }
}

fn call_chain(python: &Python) -> Verdict {
    let recording = run(&mut perf(python, "chain"), &["-F", "9999", "-d", "3"]);
    recording
        .assert_done(ENOUGH)
        .assert_none_lost()
        .assert_whole(WHOLE);
    let chain = ["<module>", "baz", "bar", "foo"];
    assert_all(&recording, "foo on bar on baz on <module>", |stack| {
        stack.python() == chain
    });
    Ok(())
}

fn system_calls(python: &Python) -> Verdict {
    let target = Running::start(&mut perf(python, "syscalls"));
    kernel_work(&target, begin(target.pid(), &IN_KERNEL));
    Ok(())
}

/// Records until the program has used that much CPU time, so that the number of samples does not depend on the machine:
/// of few samples, some incomplete stacks are a large share.
fn kernel_work(target: &Running, recorder: Recorder) {
    let_work(target.pid(), Duration::from_millis(1500));
    signal(recorder.pid(), Signal::INT);
    let recording = recorder.end();
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    let in_kernel = |stack: &Stack| stack.frames.last().unwrap().ends_with("_[k]");
    let share = recording.share(in_kernel);
    note(format!("{:.1} % in the kernel", 100.0 * share));
    assert!(
        share > 0.2,
        "this program spends its time in the kernel\n{}",
        recording.report
    );
    assert_all(&recording, "under main", |stack| {
        in_order(stack, &["<module>", "main"])
    });
    let is_fault = |frame: &String| frame.contains("fault") && frame.ends_with("_[k]");
    let in_fault = |stack: &Stack| stack.frames.iter().any(is_fault);
    assert!(recording.count(in_fault) > 0, "new pages are touched");
}

/// Kernels before 5.15 have no helper that gives the registers.
fn task_stack(python: &Python) -> Verdict {
    let target = Running::start(&mut perf(python, "syscalls"));
    let mut command = super::recording::pyprof();
    command
        .args(["--pid", &target.pid().to_string()])
        .env("PYPROF_BPF_USER_REGS", "task-stack");
    let recorder = Recorder::start(command, &IN_KERNEL);
    kernel_work(&target, recorder);
    Ok(())
}

fn numpy(python: &Python, blas_threads: &str) -> Result<Recording, super::Skip> {
    if !python.can("__import__('numpy')") {
        return skip("this Python has no numpy");
    }
    let recording = run(
        perf(python, "numpy_blas").env("OPENBLAS_NUM_THREADS", blas_threads),
        &OFTEN,
    );
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    Ok(recording)
}

/// A thread that a library started for itself.
fn starts_a_thread(stack: &Stack) -> bool {
    stack.python().is_empty() && stack.frames[0].contains("clone")
}

fn numpy_alone(python: &Python) -> Verdict {
    let recording = numpy(python, "1")?;
    assert_all(&recording, "under main", |stack| {
        in_order(stack, &["<module>", "main"])
    });
    for function in ["multiply", "elementwise", "order"] {
        assert!(
            recording.count(|stack| stack.has(function)) > 0,
            "no {function}"
        );
    }
    Ok(())
}

fn numpy_threads(python: &Python) -> Verdict {
    let recording = numpy(python, "4")?;
    let workers = recording.share(|stack| stack.is_whole() && stack.python().is_empty());
    note(format!(
        "{:.1} % in threads of the library",
        100.0 * workers
    ));
    assert!(
        workers > 0.1,
        "the library has threads of its own\n{}",
        recording.report
    );
    assert_all(&recording, "Python, or a thread of the library", |stack| {
        in_order(stack, &["<module>", "main"]) || starts_a_thread(stack)
    });
    Ok(())
}

fn threads(python: &Python) -> Verdict {
    let recording = run(&mut perf(python, "threads"), &OFTEN);
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    for number in 0..8 {
        let worker = format!("worker_{number}");
        let samples = recording.count(|stack| stack.has(&worker));
        assert!(samples > 0, "no {worker}");
    }
    assert_all(
        &recording,
        "under a worker alone, or the main thread",
        |stack| {
            let workers = stack
                .python()
                .into_iter()
                .filter(|name| name.starts_with("worker_"))
                .count();
            workers == usize::from(!stack.has("main"))
        },
    );
    Ok(())
}

fn recursion(python: &Python) -> Verdict {
    let recording = run(&mut perf(python, "recursion"), &OFTEN);
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    let depth = |stack: &Stack| stack.times("descend");
    assert_all(&recording, "200 deep where the work is", |stack| {
        if stack.has("spin") {
            depth(stack) == 200
        } else {
            depth(stack) <= 200
        }
    });
    assert!(recording.share(|stack| stack.has("spin")) > 0.9);
    Ok(())
}

fn callbacks(python: &Python) -> Verdict {
    let recording = run(&mut perf(python, "callbacks"), &OFTEN);
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    for (callback, caller) in [
        ("compare_numbers", "sort_in_c"),
        ("sort_key", "sort_by_key"),
        ("replacement", "substitute"),
        ("halve", "map_all"),
    ] {
        assert!(
            recording.count(|stack| stack.has(callback)) > 0,
            "no {callback}"
        );
        assert_all(&recording, "a callback on its caller", |stack| {
            !stack.has(callback) || in_order(stack, &["<module>", "main", caller, callback])
        });
    }
    Ok(())
}

fn signals(python: &Python) -> Verdict {
    let recording = run(&mut perf(python, "signals"), &OFTEN);
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    let in_c = |stack: &Stack| stack.frames.iter().any(|frame| frame.contains("random"));
    note(format!("{} in the handler in C", recording.count(in_c)));
    assert!(recording.count(in_c) > 0, "no handler in C");
    assert!(
        recording.count(|stack| stack.has("handle_in_python")) > 0,
        "no handler in Python"
    );
    assert_all(&recording, "on the interrupted work", |stack| {
        in_order(stack, &["<module>", "main", "interrupted_work"])
    });
    Ok(())
}

fn generators(python: &Python) -> Verdict {
    let recording = run(&mut perf(python, "generators"), &OFTEN);
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    let nested = |stack: &Stack| stack.times("flattened");
    assert!(
        recording
            .whole()
            .any(|stack| nested(stack) == 11 && stack.has("numbers")),
        "generators in generators"
    );
    assert_all(
        &recording,
        "a coroutine on the one that awaits it",
        |stack| !stack.has("compute") || in_order(stack, &["request", "middle", "compute"]),
    );
    assert_all(&recording, "the pipeline on the stream", |stack| {
        !stack.has("flattened") || in_order(stack, &["consume", "stream", "pipeline", "flattened"])
    });
    Ok(())
}

fn imports(python: &Python) -> Verdict {
    let recording = run(
        perf(python, "imports").args(["--delay", "1"]),
        &["-F", "1999", "-d", "4"],
    );
    recording.assert_done(ENOUGH).assert_whole(0.99);
    assert!(
        recording.count(|stack| stack.has("use_sqlite")) > 0,
        "the new library is used"
    );
    assert_all(
        &recording,
        "under main, or a thread of a library",
        |stack| in_order(stack, &["<module>", "main"]) || starts_a_thread(stack),
    );
    Ok(())
}

/// Without the processor's SHA instructions, OpenSSL's assembler keeps the caller's stack pointer on its own stack.
fn hashing(python: &Python) -> Verdict {
    let target = Running::start(
        python
            .perf()
            .arg(script("hashing"))
            .env("OPENSSL_ia32cap", ":~0x20000000"),
    );
    // So that there are thousands of samples, on a busy machine, too: of a few hundred, one that is cut is too many.
    let recorder = begin(target.pid(), &["-F", "1999"]);
    let_work(target.pid(), Duration::from_millis(2500));
    signal(recorder.pid(), Signal::INT);
    let recording = recorder.end();
    recording.assert_done(2000).assert_whole(WHOLE);
    assert!(
        recording.share(|stack| stack.is_whole() && in_order(stack, &["<module>", "hash_blocks"]))
            > 0.9
    );
    Ok(())
}

/// Until a function has a trampoline, code of ours stands where its frame will be.
fn first_calls(python: &Python) -> Verdict {
    let target = Running::start(python.perf().arg(script("new_code")));
    let recording = record(target.pid(), &["-F", "9999", "-d", "3"]);
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    let in_ours = recording.count(|stack| {
        stack
            .frames
            .iter()
            .any(|frame| frame.contains("make_trampoline"))
    });
    note(format!("{in_ours} where a trampoline is made"));
    assert!(in_ours > 0, "there are new functions all the time");
    assert!(recording.count(|stack| stack.has("fresh")) > 0, "no fresh");
    assert_all(&recording, "a new function on who made it", |stack| {
        let python = stack.python();
        python.starts_with(&["<module>", "main"])
            && (!stack.has("fresh") || python.ends_with(&["main", "make", "fresh"]))
    });
    Ok(())
}

/// A child has its parent's trampolines, in its stack and elsewhere, and makes others for itself. Ours name all of them
/// in the child's map, CPython's own name the parent's in the parent's.
fn forked(python: &Python) -> Verdict {
    let mut parent = Running::start(python.perf().arg(script("forked")));
    let child = parent.line().parse().unwrap();
    let recording = record(child, &OFTEN);
    drop(parent); // and with it goes the child
    remove_perf_map(child);
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    let old = recording.share(|stack| stack.python() == ["<module>", "main", "serve", "work"]);
    let new = recording.share(|stack| stack.has("only_in_the_child"));
    note(format!(
        "{:.1} % in old functions, {:.1} % below a new one",
        100.0 * old,
        100.0 * new
    ));
    assert!(old > 0.3 && new > 0.3, "{}", recording.report);
    assert_all(&recording, "with the frames of the parent below", |stack| {
        in_order(stack, &["<module>", "main", "serve"])
    });
    Ok(())
}
