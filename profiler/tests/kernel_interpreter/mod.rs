//! The list of trials. What they share with those in `kernel/` is there.

#[path = "../support/children.rs"]
mod children;
mod extremes;
mod frames;
#[expect(dead_code, reason = "the other suite has more uses for it")]
#[path = "../kernel/harness.rs"]
mod harness;
mod interpreters;
mod judge;
mod judge_trials;
mod lines;
mod observed;
#[expect(dead_code, reason = "the other suite has more uses for it")]
#[path = "../kernel/python.rs"]
mod python;
#[expect(dead_code, reason = "the other suite has more uses for it")]
#[path = "../kernel/recording.rs"]
mod recording;
#[expect(dead_code, reason = "the other suite has more uses for it")]
#[path = "../kernel/running.rs"]
mod running;
#[path = "../kernel/trampolines.rs"]
mod trampolines;
mod unknown_loop;
#[expect(dead_code, reason = "the other suite has more uses for it")]
#[path = "../kernel/unshare.rs"]
mod unshare;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use libtest_mimic::Trial;

use harness::{
    Skip, Test, Verdict, bound, eventually, named_trial, note, scratch, skip, skipped, status_field,
};
use python::Python;

/// Runs all of them.
pub(crate) fn run() -> ExitCode {
    children::supervised(|| harness::run(trials()))
}

fn trials() -> Vec<Trial> {
    let unprivileged = judge_trials::TESTS.iter().map(|(name, test)| {
        Trial::test(format!("judge::{name}"), || {
            test();
            Ok(())
        })
    });
    let mut trials: Vec<Trial> = unprivileged.collect();
    let pythons = interpreters::all();
    let with_each = [
        frames::TESTS,
        lines::TESTS,
        extremes::TESTS,
        unknown_loop::TESTS,
    ]
    .concat();
    let with_own_names = frames::TESTS_WITH_TRAMPOLINES;
    // What does not depend on how a version keeps its frames.
    let with_newest = extremes::TESTS_OF_PROCESSES;
    if pythons.is_empty() {
        let all = with_each.iter().chain(with_own_names).chain(with_newest);
        trials.extend(skipped(
            all,
            "there is no CPython 3.8 or newer on PATH or under pyenv",
        ));
    }
    for (short, python) in &pythons {
        let has_trampolines = python.version >= (3, 12);
        let also = if has_trampolines { with_own_names } else { &[] };
        for (name, test) in with_each.iter().chain(also) {
            trials.push(named_trial(format!("{short}::{name}"), *test, python));
        }
    }
    if let Some((short, newest)) = pythons.last() {
        for (name, test) in with_newest {
            trials.push(named_trial(format!("{short}::{name}"), *test, newest));
        }
    }
    trials
}

/// One of the programs that are judged.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/kernel_interpreter/scripts")
        .join(name)
        .with_extension("py")
}
