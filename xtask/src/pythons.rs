//! The CPython interpreters of this machine whose functions can have names, and virtual
//! environments on top of them for the tests.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    command::{self, Patience},
    host,
};

/// Printed by the interpreter itself: implementation, version, where it really lies
/// (a pyenv shim is a script in front of it).
const ASK: &str =
    "import sys; print(sys.implementation.name, *sys.version_info[:3], sys.executable)";

/// The oldest version with `-X perf`.
const OLDEST: (u32, u32, u32) = (3, 12, 0);
/// The oldest version that profiler-trampoline has trampolines for.
const OLDEST_WITH_OURS: (u32, u32, u32) = (3, 9, 0);

/// The oldest version whose interpreter frames are read.
const OLDEST_READ: (u32, u32, u32) = (3, 8, 0);

/// What to install when there is none with trampolines of its own.
const INSTALL_HINT: &str = "There is no CPython 3.12 or newer on PATH or under pyenv; older ones have no trampolines of their own.\nInstall one: `apt-get install python3` on Debian 13 or Ubuntu 24.04 and later, else `pyenv install 3.13`.";

/// What to install when there is none at all.
const INSTALL_HINT_FOR_ANY: &str = "There is no CPython 3.8 or newer on PATH or under pyenv.\nInstall one: `apt-get install python3`, else `pyenv install 3.13`.";

/// One interpreter.
#[derive(Clone, Debug)]
pub(crate) struct Python {
    /// The executable.
    pub(crate) path: PathBuf,
    /// Such as 3.12.1.
    pub(crate) version: (u32, u32, u32),
}

impl Python {
    /// The same version at another path: that of a virtual environment.
    pub(crate) fn at(&self, path: PathBuf) -> Self {
        Self {
            path,
            version: self.version,
        }
    }

    /// The version with dots.
    pub(crate) fn version_text(&self) -> String {
        let (major, minor, patch) = self.version;
        format!("{major}.{minor}.{patch}")
    }
}

/// Every CPython of at least 3.12, one for each version, the oldest first.
pub(crate) fn find_all() -> Vec<Python> {
    let mut all = find_from(OLDEST_WITH_OURS);
    all.retain(|python| python.version >= OLDEST);
    all
}

/// Every CPython that has trampolines from us only, 3.9 to 3.11, the oldest first.
pub(crate) fn find_old() -> Vec<Python> {
    let mut all = find_from(OLDEST_WITH_OURS);
    all.retain(|python| python.version < OLDEST);
    all
}

fn find_from(oldest: (u32, u32, u32)) -> Vec<Python> {
    let mut found = BTreeMap::new();
    for path in candidates() {
        if let Some(python) = ask(&path)
            && python.version >= oldest
        {
            found.entry(python.version).or_insert(python);
        }
    }
    found.into_values().collect()
}

/// The newest CPython from 3.9 on.
pub(crate) fn any() -> Option<Python> {
    find_from(OLDEST_WITH_OURS).pop()
}

/// The interpreter for measurements: the user's own `python3` if it is new enough, else
/// the newest of all.
pub(crate) fn preferred() -> Result<Python> {
    own_from(OLDEST)
        .or_else(|| find_all().pop())
        .context(INSTALL_HINT)
}

/// The interpreter for a demonstration: the user's own `python3`, else the newest of all.
pub(crate) fn for_demo() -> Result<Python> {
    own_from(OLDEST_READ)
        .or_else(|| find_from(OLDEST_READ).pop())
        .context(INSTALL_HINT_FOR_ANY)
}

/// Every CPython whose frames are read, the oldest first.
pub(crate) fn find_read() -> Vec<Python> {
    find_from(OLDEST_READ)
}

/// The user's own `python3`, if it is new enough.
fn own_from(oldest: (u32, u32, u32)) -> Option<Python> {
    let python = ask(&host::which("python3")?)?;
    (python.version >= oldest).then_some(python)
}

/// The tests' interpreters: for each one found, a virtual environment with numpy under
/// `target/test-python`, or the bare interpreter when that cannot be made. `notes` gets
/// the reasons.
pub(crate) fn with_numpy(notes: &mut Vec<String>) -> Vec<PathBuf> {
    let mut pythons = find_all();
    if pythons.is_empty() && host::has_apt() && distribution_is_new_enough() {
        match command::apt_install(&["python3", "python3-venv"]) {
            Ok(()) => pythons = find_all(),
            Err(err) => notes.push(format!("python3 was not installed: {err:#}")),
        }
    }
    if pythons.is_empty() {
        notes.push(INSTALL_HINT.to_owned());
    }
    let usable = |python: Python| match environment(&python) {
        Ok(path) => path,
        Err(err) => {
            let version = python.version_text();
            notes.push(format!(
                "CPython {version} is tested without numpy: {err:#}"
            ));
            python.path
        }
    };
    pythons.into_iter().map(usable).collect()
}

/// What the tests' Pythons have besides: compiled code to walk through, and a server that
/// forks its workers.
const PACKAGES: [&str; 2] = ["numpy", "gunicorn"];

/// The interpreter of the virtual environment for `python`, with numpy and gunicorn, made
/// if it is not there.
pub(crate) fn environment(python: &Python) -> Result<PathBuf> {
    let version = python.version_text();
    let (major, minor, _) = python.version;
    let folder = host::target_dir().join("test-python").join(&version);
    let own = folder.join("bin/python");
    let packages = folder.join(format!("lib/python{major}.{minor}/site-packages"));
    if own.exists() && PACKAGES.iter().all(|name| packages.join(name).is_dir()) {
        return Ok(own);
    }
    eprintln!("Making a virtual environment with numpy for CPython {version}");
    make_environment(python, &folder)?;
    pip_install(&own, &PACKAGES, Patience::seconds(300))?;
    Ok(own)
}

/// Makes a virtual environment, or makes it anew.
pub(crate) fn make_environment(python: &Python, folder: &Path) -> Result<()> {
    let mut venv = Command::new(&python.path);
    venv.args(["-m", "venv", "--clear"]).arg(folder);
    command::run_patiently(&mut venv, Patience::seconds(120))
}

/// Installs packages that need no compiler for an interpreter, that of a virtual environment.
pub(crate) fn pip_install(python: &Path, packages: &[&str], patience: Patience) -> Result<()> {
    let mut pip = Command::new(python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    pip.args(["--only-binary", ":all:"]).args(packages);
    command::run_patiently(&mut pip, patience)
}

/// Would apt install a Python that can write perf maps?
fn distribution_is_new_enough() -> bool {
    let policy = command::output(Command::new("apt-cache").args(["policy", "python3"]));
    policy.is_ok_and(|text| {
        text.lines()
            .find_map(|line| line.trim().strip_prefix("Candidate: 3."))
            .and_then(|rest| rest.split('.').next()?.parse().ok())
            .is_some_and(|minor: u32| minor >= OLDEST.1)
    })
}

/// Files that may be interpreters.
fn candidates() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = env::split_paths(&env::var_os("PATH").unwrap_or_default())
        .filter(|folder| !folder.ends_with("shims")) // what lies behind these comes below
        .collect();
    let pyenv = env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    if let Some(versions) = pyenv.and_then(|root| fs::read_dir(root.join("versions")).ok()) {
        folders.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in folders {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        files.extend(
            entries
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| is_python(path)),
        );
    }
    files.sort();
    files.dedup();
    files
}

/// `python3` or `python3.N` with N from 8 on.
fn is_python(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    match name.and_then(|name| name.strip_prefix("python3")) {
        Some("") => true,
        Some(rest) => rest
            .strip_prefix('.')
            .and_then(|minor| minor.parse().ok())
            .is_some_and(|minor: u32| minor >= OLDEST_READ.1),
        None => false,
    }
}

/// The interpreter at `path`, if it is CPython and runs.
pub(crate) fn at(path: &Path) -> Option<Python> {
    let found = ask(path)?;
    Some(found.at(path.to_owned()))
}

/// What the interpreter at `path` says about itself; `None` unless it is CPython.
fn ask(path: &Path) -> Option<Python> {
    let text = command::output(Command::new(path).args(["-I", "-S", "-c", ASK])).ok()?;
    let mut words = text.trim().splitn(5, ' ');
    if words.next() != Some("cpython") {
        return None;
    }
    let mut number = || words.next()?.parse::<u32>().ok();
    let version = (number()?, number()?, number()?);
    let path = PathBuf::from(words.next()?);
    Some(Python { path, version })
}
