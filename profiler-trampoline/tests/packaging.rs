//! The Python package as its users have it, on each CPython from 3.9 on: run in front of a program
//! (`packaging/running.py`), and installed from a wheel (`packaging/installing.rs`).
//!
//! Interpreters come from `PYPROF_TEST_PYTHONS` and `PYPROF_TEST_OLD_PYTHONS` (lists like PATH), else from pyenv and
//! PATH. The wheel is the one that `PYPROF_TEST_WHEEL` names: `cargo xtask package --test` and `cargo xtask test` make
//! it. What is not there is told, and its trials are skipped.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    path::Path,
    process::{Command, ExitCode, Output},
    sync::Arc,
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

#[path = "packaging/installing.rs"]
mod installing;
#[path = "support/mod.rs"]
mod support;

use support::{Package, Python, with_own_tmp};

/// The oldest version that the package is for.
const OLDEST: (u32, u32) = (3, 9);

/// Compares `python -m pyprof_trampoline app.py` with `python app.py`.
const RUNNING: &str = include_str!("packaging/running.py");

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut pythons = support::pythons();
    pythons.retain(|python| python.version >= OLDEST);
    let mut trials = Vec::new();
    if pythons.is_empty() {
        trials.push(skipped(
            "the_package",
            "there is no CPython 3.9 or later on PATH or under pyenv",
        ));
    }
    // Held until all trials are done.
    let package = (!arguments.list).then(|| Arc::new(Package::stage().unwrap()));
    for python in &pythons {
        for test in running_tests() {
            let (python, package) = (python.clone(), package.clone());
            trials.push(Trial::ignorable_test(
                format!("{}::running::{test}", python.text),
                move || {
                    let package = package.as_deref().expect("trials are run, not listed");
                    run(&python, package, &test)
                },
            ));
        }
    }
    trials.extend(installing::trials(&pythons));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A trial that only says why there is none.
fn skipped(name: &str, reason: &str) -> Trial {
    let reason = reason.to_owned();
    Trial::ignorable_test(name.to_owned(), move || {
        Ok(Completion::ignored_with(reason))
    })
}

/// The names of the tests in `running.py`, without `test_`.
fn running_tests() -> Vec<String> {
    let names = RUNNING.split("    def test_").skip(1);
    names
        .filter_map(|rest| rest.split('(').next().map(str::to_owned))
        .collect()
}

fn run(python: &Python, package: &Package, test: &str) -> Result<Completion, Failed> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packaging/running.py");
    let mut command = with_own_tmp(&python.path);
    command
        .arg(script)
        .arg(format!("Running.test_{test}"))
        .env("PYTHONPATH", package.path())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    succeed(&mut command)?;
    Ok(Completion::Completed)
}

/// Runs to the end; anything but success is a failure that shows all that was printed.
fn succeed(command: &mut Command) -> Result<Output, Failed> {
    let done = command
        .output()
        .map_err(|err| format!("{command:?}: {err}"))?;
    if !done.status.success() {
        return Err(format!(
            "{command:?}: {}\n{}{}",
            done.status,
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        )
        .into());
    }
    Ok(done)
}
