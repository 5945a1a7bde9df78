//! Installs the wheel into a fresh virtual environment, uses it there, and takes it away again.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use libtest_mimic::{Completion, Failed, Trial};

use crate::{skipped, succeed, support::Python};

/// The wheel to install.
const WHEEL: &str = "PYPROF_TEST_WHEEL";
/// What is called in the environment, without any path to the sources.
const INSTALLED: &str = include_str!("installed.py");

/// One trial for each interpreter.
pub(crate) fn trials(pythons: &[Python]) -> Vec<Trial> {
    let Some(wheel) = env::var_os(WHEEL).filter(|wheel| !wheel.is_empty()) else {
        return vec![skipped(
            "the_wheel_installs_works_and_goes_away",
            &format!("{WHEEL} names no wheel; `cargo xtask package --test` makes one and tests it"),
        )];
    };
    let trial = |python: &Python| {
        let (python, wheel) = (python.clone(), PathBuf::from(&wheel));
        Trial::ignorable_test(
            format!("{}::the_wheel_installs_works_and_goes_away", python.text),
            move || install(&python, &wheel),
        )
    };
    pythons.iter().map(trial).collect()
}

fn install(python: &Python, wheel: &Path) -> Result<Completion, Failed> {
    let folder = tempfile::tempdir().unwrap();
    let environment = folder.path().join("environment");
    let mut venv = Command::new(&python.path);
    venv.args(["-m", "venv"]).arg(&environment);
    // Debian has venv and ensurepip in a package of their own.
    let has_pip = Command::new(&python.path)
        .args(["-c", "import ensurepip, venv"])
        .stderr(Stdio::null())
        .status();
    if !has_pip.is_ok_and(|status| status.success()) {
        return Ok(Completion::ignored_with(
            "this Python has no venv or no ensurepip",
        ));
    }
    succeed(&mut venv)?;

    let before = files_below(&environment);
    let own = environment.join("bin/python");
    let pip = |words: &[&str]| {
        let mut pip = Command::new(&own);
        pip.args(["-m", "pip", "--disable-pip-version-check", "--no-input"]);
        pip.args(words).current_dir(folder.path());
        pip
    };
    // No other source than this file: nothing is to be compiled, nothing else to be fetched.
    succeed(pip(&["install", "--no-index", "--only-binary", ":all:"]).arg(wheel))?;
    succeed(&mut pip(&["check"]))?;

    fs::write(folder.path().join("installed.py"), INSTALLED).unwrap();
    let mut used = Command::new(&own);
    used.arg("installed.py")
        .current_dir(folder.path())
        .env_remove("PYTHONPATH");
    succeed(&mut used)?;

    succeed(&mut pip(&["uninstall", "--yes", "pyprof-bpf"]))?;
    let left: Vec<_> = files_below(&environment)
        .difference(&before)
        .cloned()
        .collect();
    if !left.is_empty() {
        return Err(format!("uninstalling leaves {left:?}").into());
    }
    Ok(Completion::Completed)
}

/// All files and folders, but for what pip compiles of itself while it runs.
fn files_below(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            let of_pip = path.components().any(|part| part.as_os_str() == "pip");
            if entry.file_type().unwrap().is_dir() {
                folders.push(path.clone());
            }
            if !of_pip {
                found.insert(path);
            }
        }
    }
    found
}
