//! The list of trials, one module for each thing that must hold.

mod advice;
mod compiled;
mod containers;
mod faults;
mod hostile;
mod hostile_names;
mod hotplug;
mod launch;
mod launch_old;
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
mod stops;
mod targets;
mod trampolines;
mod trees;

use std::{
    fmt::Display,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use libtest_mimic::{Completion, Trial};

use python::Python;

/// A trial that cannot run here says why.
type Verdict = Result<(), Skip>;

/// Why a trial cannot run here.
struct Skip(String);

/// For `ok_or_else` and early returns.
fn skip<T>(why: impl Display) -> Result<T, Skip> {
    Err(Skip(why.to_string()))
}

/// What each trial is called, what it does, and whether it needs an interpreter of its own.
type Test = (&'static str, fn(&Python) -> Verdict);

/// Every trial for every interpreter, the one that plays with the machine last.
pub(crate) fn trials() -> Vec<Trial> {
    let with_own: Vec<Test> = [
        stacks::TESTS,
        compiled::TESTS,
        shares::TESTS,
        names::TESTS,
        perf_map::TESTS,
        refusals::TESTS,
        advice::TESTS,
        launch::TESTS,
        stops::TESTS,
        targets::TESTS,
        program::TESTS,
        trees::TESTS,
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
        // Where a process lives has nothing to do with its version.
        namespaces::TESTS,
        containers::TESTS,
        hostile::TESTS,
        hostile_names::TESTS,
        hotplug::TESTS,
    ]
    .concat();
    let (pythons, old_pythons) = (python::all(), python::old());
    let mut trials = if pythons.is_empty() {
        skipped(
            with_own.iter().chain(&with_newest),
            "there is no CPython 3.12 or newer on PATH or under pyenv",
        )
    } else {
        for_each(&pythons, &with_own)
    };
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

fn for_each(pythons: &[Python], tests: &[Test]) -> Vec<Trial> {
    let pairs = pythons
        .iter()
        .flat_map(|python| tests.iter().map(move |test| (test, python)));
    pairs.map(|(test, python)| trial(*test, python)).collect()
}

fn skipped<'a>(tests: impl IntoIterator<Item = &'a Test>, why: &'static str) -> Vec<Trial> {
    let tests = tests.into_iter();
    tests
        .map(|(name, _)| Trial::ignorable_test(*name, move || Ok(Completion::ignored_with(why))))
        .collect()
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

fn trial((name, test): Test, python: &Python) -> Trial {
    let python = python.clone();
    let name = format!("{}::{name}", python.short());
    Trial::ignorable_test(name.clone(), move || {
        if !rustix::process::geteuid().is_root() {
            return Ok(Completion::ignored_with(
                "only root can load BPF programs everywhere",
            ));
        }
        *NOW.lock().unwrap_or_else(PoisonError::into_inner) = name;
        match test(&python) {
            Ok(()) => Ok(Completion::Completed),
            Err(Skip(why)) => Ok(Completion::ignored_with(why)),
        }
    })
}

/// The trial that runs.
static NOW: Mutex<String> = Mutex::new(String::new());
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps a measured number for the end of the output.
fn note(text: impl Display) {
    let now = NOW.lock().unwrap_or_else(PoisonError::into_inner);
    let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    notes.push(format!("{now}: {text}"));
}

/// What was measured, in order.
pub(crate) fn notes() -> Vec<String> {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A program from `workloads/`.
fn workload(name: &str) -> PathBuf {
    let workloads = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("workloads");
    workloads.join(name).with_extension("py")
}

/// A program that only these trials use.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/kernel/scripts")
        .join(name)
        .with_extension("py")
}

/// A folder for the files of one trial.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder for temporary files")
}

/// Waits for something that comes soon, or never.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{what} did not happen within half a minute");
}

/// A number from a line of `/proc/PID/status`.
fn status_field(pid: u32, field: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}
