//! The list of trials, one module for each thing that must hold.

mod advice;
#[path = "../support/children.rs"]
mod children;
mod compiled;
mod containers;
#[path = "../support/empty_tmp.rs"]
mod empty_tmp;
mod faults;
mod fleets;
mod harness;
mod hostile;
mod hostile_names;
mod hostile_symbols;
mod hotplug;
mod launch;
mod launch_old;
mod moved_code;
mod names;
mod namespaces;
mod perf_map;
mod program;
mod python;
mod recording;
mod refusals;
mod running;
mod shares;
mod stacks;
mod states;
mod stops;
mod targets;
mod trampolines;
mod trees;
mod unshare;
mod windows;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use libtest_mimic::Trial;

use harness::{
    Skip, Test, Verdict, bound, cpu_time, eventually, for_each, let_work, note, scratch, skip,
    skipped, status_field, trial, workload,
};
use python::Python;

/// Runs all of them.
pub(crate) fn run() -> ExitCode {
    children::supervised(|| harness::run(trials()))
}

/// Every trial for every interpreter, the one that plays with the machine last.
///
/// The newest interpreter is recorded as it is by default, by its own frames; the others are named by perf maps, as all are
/// in trials that are about these.
fn trials() -> Vec<Trial> {
    let with_own: Vec<Test> = [
        stacks::TESTS,
        compiled::TESTS,
        shares::TESTS,
        moved_code::TESTS,
        stops::TESTS,
        targets::TESTS,
        program::TESTS,
        trees::TESTS,
    ]
    .concat();
    let with_perf_maps: Vec<Test> = [
        names::TESTS,
        perf_map::TESTS,
        refusals::TESTS,
        advice::TESTS,
        launch::TESTS,
        launch_old::TESTS_OF_NEW,
    ]
    .concat();
    // What does not depend on where trampolines come from is not tried again.
    let with_ours: Vec<Test> = [
        stacks::TESTS_WITH_OUR_TRAMPOLINES,
        compiled::TESTS_WITH_OUR_TRAMPOLINES,
        shares::TESTS,
        names::TESTS,
    ]
    .concat();
    // What does not depend on the version; the one that plays with the machine comes last.
    let with_newest: Vec<Test> = [
        &faults::tests(),
        trees::LONG_TESTS,
        fleets::LONG_TESTS,
        // Where a process lives has nothing to do with its version.
        namespaces::TESTS,
        containers::TESTS,
        states::TESTS,
        windows::TESTS,
        hostile::TESTS,
        hostile_names::TESTS,
        hostile_symbols::TESTS,
        hotplug::TESTS,
    ]
    .concat();
    let (pythons, old_pythons) = (python::all(), python::old());
    let mut trials = Vec::new();
    if let Some((newest, others)) = pythons.split_last() {
        let by_perf_maps = |pythons: &[Python]| -> Vec<Python> {
            pythons.iter().map(Python::named_by_perf_maps).collect()
        };
        trials.extend(for_each(&by_perf_maps(others), &with_own));
        trials.extend(for_each(std::slice::from_ref(newest), &with_own));
        trials.extend(for_each(&by_perf_maps(&pythons), &with_perf_maps));
    } else {
        trials = skipped(
            with_own.iter().chain(&with_perf_maps).chain(&with_newest),
            "there is no CPython 3.12 or newer on PATH or under pyenv",
        );
    }
    trials.extend(trials_of_launching(&pythons, &old_pythons));
    trials.extend(if old_pythons.is_empty() {
        skipped(
            &with_ours,
            "there is no CPython 3.9 to 3.11 on PATH or under pyenv",
        )
    } else {
        for_each(&old_pythons, &with_ours)
    });
    if let Some(newest) = pythons.last() {
        trials.extend(with_newest.iter().map(|test| trial(*test, newest)));
    }
    trials
}

/// What is about commands that run older or other Pythons.
fn trials_of_launching(pythons: &[Python], old: &[Python]) -> Vec<Trial> {
    let mut trials = for_each(old, launch_old::TESTS);
    if old.is_empty() {
        let why = "there is no CPython 3.9 to 3.11 on PATH or under pyenv";
        trials = skipped(launch_old::TESTS, why);
    }
    if let Some(any) = old.iter().chain(pythons).next() {
        let others = launch_old::TESTS_OF_OTHERS.iter();
        trials.extend(others.map(|test| trial(*test, any)));
    }
    trials
}

/// A program that only these trials use.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/kernel/scripts")
        .join(name)
        .with_extension("py")
}
