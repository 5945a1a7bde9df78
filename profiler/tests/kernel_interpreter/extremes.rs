//! Programs that give the least time to read their frames, and threads and processes that are hard to find.

use super::{
    Python, Skip, Test, Verdict,
    judge::{Claims, Frame},
    note,
    observed::{Program, WITH_LINES, assert_right, judged},
    recording::{Recording, WHOLE, record},
    running::Running,
    script, skip,
    unshare::{PID, innermost, unshare},
};

pub(super) const TESTS: &[Test] = &[
    ("nothing_but_calls_and_returns", calls),
    (
        "functions_called_from_c_keep_their_python_callers",
        callbacks,
    ),
    ("functions_that_live_for_less_than_a_millisecond", fresh),
    ("threads_that_hash_that_wait_and_that_end_soon", threads),
    ("an_interpreter_within_the_interpreter", inner),
];

/// Whichever the version.
pub(super) const TESTS_OF_PROCESSES: &[Test] = &[
    ("children_that_are_forked", forks),
    ("a_process_in_a_pid_namespace", pid_namespace),
];

const OPTIONS: [&str; 4] = ["-F", "999", "-d", "2"];
const ENOUGH: u64 = 100;

/// What is caught between two stores of a call says so.
fn calls(python: &Python) -> Verdict {
    let program = Program::start(python, "calls");
    let recording = program.record(&["-F", "14999", "-d", "2"]);
    let tally = judged(&recording, Some(&program.codes), 2000);
    assert_eq!(tally.no_python, 0, "{}", tally.text());
    assert_eq!(tally.freed, 0, "{}", tally.text());
    let allowed = (0.0002 * tally.all() as f64).max(1.0);
    assert!(
        tally.flagged as f64 <= allowed,
        "{}\n{}",
        tally.text(),
        recording.report
    );
    Ok(())
}

/// 3.11 and 3.12 enter their loop in several steps, and here they do little else.
fn callbacks(python: &Python) -> Verdict {
    let program = Program::start(python, "callbacks");
    let recording = program.record(&["-F", "9999", "-d", "3"]);
    let tally = judged(&recording, Some(&program.codes), 2000);
    tally.assert_seen(["near_key", "far_key", "sort_key", "numbers", "inner_key"]);
    let lost = (tally.no_python + tally.flagged) as f64;
    let allowed = (0.001 * tally.all() as f64).max(2.0);
    assert!(
        lost <= allowed && tally.freed == 0,
        "{}\n{}",
        tally.text(),
        recording.report
    );
    Ok(())
}

fn fresh(python: &Python) -> Verdict {
    let program = Program::start(python, "fresh");
    let recording = program.record(&["-F", "4999", "-d", "2.5"]);
    let tally = judged(&recording, None, 2000);
    let mut functions = 0;
    for stack in &recording.stacks {
        let frames = stack.frames.iter().filter_map(|text| Frame::of(text));
        for frame in frames {
            functions += u64::from(check_fresh(&frame)) * stack.count;
        }
    }
    note(format!("{functions} with a function that lives shortly"));
    assert!(functions > 200, "{}", tally.text());
    let read = (tally.right + tally.freed) as f64;
    assert!(
        read >= WHOLE * tally.all() as f64,
        "{}\n{}",
        tally.text(),
        recording.report
    );
    Ok(())
}

/// The number of such a function is also that of its file, and says where its file's own code may be; is it one?
fn check_fresh(frame: &Frame<'_>) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number_of = |text: &str, end: &str| {
        let number = text.strip_prefix('f')?.strip_suffix(end)?;
        is_number(number).then(|| number.parse::<u32>().unwrap())
    };
    let in_file = number_of(frame.file, ".py");
    let stem = Claims::of(frame.function()).stem;
    let in_name = number_of(stem, "");
    match (in_file, in_name) {
        (Some(number), None) => {
            assert_eq!(frame.function(), "<module>");
            let first = number % 40 + 1;
            // Up to 3.8, and from 3.11 on before the first instruction, a line may be the first of all.
            let lines = [1, first, first + 6];
            assert!(lines.contains(&frame.line), "{frame:?}");
            false
        }
        (file, name) => {
            assert_eq!(file, name, "{frame:?}");
            name.is_some()
        }
    }
}

fn threads(python: &Python) -> Verdict {
    let program = Program::start(python, "threads");
    let recording = program.record(&OPTIONS);
    let tally = judged(&recording, Some(&program.codes), ENOUGH);
    tally.assert_seen(["hash_blocks", "short", "alone"]);
    // A thread that begins or ends has no Python frames, and at its very end no memory of which anything can be read.
    let (no_python, flagged) = (tally.no_python as f64, tally.flagged as f64);
    let (all, right) = (tally.all() as f64, tally.right as f64);
    assert!(
        no_python <= 0.1 * all && flagged <= 0.01 * all,
        "{}\n{}",
        tally.text(),
        recording.report
    );
    assert!(
        right >= WHOLE * (all - no_python - flagged),
        "{}",
        tally.text()
    );
    let cut_in_python = recording.count(|stack| !stack.is_whole() && stack.frames.len() > 2);
    assert!(
        cut_in_python as f64 <= (1.0 - WHOLE) * all,
        "{:#?}",
        recording.stacks
    );
    Ok(())
}

/// One thread has a state in each of two interpreters, and frames of both on its stack.
fn inner(python: &Python) -> Verdict {
    if python.version < (3, 12) {
        return skip("interpreters within one are read from 3.12 on");
    }
    if !python.can("__import__('importlib.util').util.find_spec('_interpreters') or __import__('importlib.util').util.find_spec('_xxsubinterpreters')") {
        return skip("this Python has no module for interpreters");
    }
    let program = Program::start(python, "inner");
    let recording = program.record(&OPTIONS);
    // What runs inside is not among the functions that were there.
    let tally = judged(&recording, None, ENOUGH);
    assert_right(&tally, WHOLE, &recording);
    let both = ["_run_inner (inner.py", "_S1_5_spin ("];
    let has_both = recording.share(|stack| {
        let mut names = both.iter();
        names.all(|name| stack.frames.iter().any(|frame| frame.contains(name)))
    });
    note(format!("{:.2} % have frames of both", 100.0 * has_both));
    assert!(has_both > 0.9, "{}", recording.report);
    Ok(())
}

fn forks(python: &Python) -> Verdict {
    let program = Program::start(python, "forks");
    let recording = program.record(&[&OPTIONS[..], &["-s", "--merge-processes"]].concat());
    let tally = judged(&recording, Some(&program.codes), ENOUGH);
    tally.assert_seen(["of_the_parent", "of_a_child", "of_a_grandchild"]);
    // A child that ends takes along what was not read yet.
    let known = (tally.right + tally.freed) as f64;
    assert!(
        known >= 0.99 * tally.all() as f64 && tally.freed as f64 <= 0.25 * known,
        "{}\n{}",
        tally.text(),
        recording.report
    );
    Ok(())
}

fn pid_namespace(python: &Python) -> Verdict {
    let target = in_namespace(python)?;
    let pid = innermost(target.pid());
    let recording: Recording = record(pid, &[&OPTIONS[..], &WITH_LINES].concat());
    let tally = judged(&recording, None, ENOUGH);
    assert_right(&tally, WHOLE, &recording);
    Ok(())
}

fn in_namespace(python: &Python) -> Result<Running, Skip> {
    let mut command = unshare(&[&PID[..], &["--mount-proc"]].concat())?;
    command.arg(&python.path).arg(script("frames"));
    Ok(Running::start(&mut command))
}
