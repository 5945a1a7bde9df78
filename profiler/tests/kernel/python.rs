//! The interpreters of this machine.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const ASK: &str =
    "import sys; print(sys.implementation.name, sys.version_info[0], sys.version_info[1])";
const OLDEST: (u32, u32) = (3, 12);
/// The oldest with trampolines from us.
const OLDEST_WITH_OURS: (u32, u32) = (3, 9);

/// One interpreter.
#[derive(Clone, Debug)]
pub(super) struct Python {
    pub(super) path: PathBuf,
    pub(super) version: (u32, u32),
}

impl Python {
    /// For the names of trials.
    pub(super) fn short(&self) -> String {
        format!("cpython_{}_{}", self.version.0, self.version.1)
    }

    /// A command line without trampolines.
    pub(super) fn plain(&self) -> Command {
        let mut command = Command::new(&self.path);
        // The compiled form of a script is nobody's business here.
        command
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("PYTHONPERFSUPPORT");
        command
    }

    /// A command line with trampolines.
    pub(super) fn perf(&self) -> Command {
        let mut command = self.plain();
        command.args(["-X", "perf"]);
        command
    }

    /// `-c` prints something true.
    pub(super) fn can(&self, expression: &str) -> bool {
        let code = format!("print(bool({expression}))");
        let output = self.plain().args(["-c", &code]).output();
        output.is_ok_and(|output| output.stdout == b"True\n")
    }
}

/// Every CPython from 3.12 on, one for each minor version, the oldest first.
pub(super) fn all() -> Vec<Python> {
    one_of_each("PYPROF_TEST_PYTHONS", |version| version >= OLDEST)
}

/// Every CPython that needs trampolines from us, one for each minor version, the oldest first.
pub(super) fn old() -> Vec<Python> {
    one_of_each("PYPROF_TEST_OLD_PYTHONS", |version| {
        (OLDEST_WITH_OURS..OLDEST).contains(&version)
    })
}

fn one_of_each(variable: &str, is_wanted: impl Fn((u32, u32)) -> bool) -> Vec<Python> {
    let named = env::var_os(variable).filter(|list| !list.is_empty());
    let candidates = match named {
        Some(list) => env::split_paths(&list).collect(),
        None => candidates(),
    };
    let mut found = BTreeMap::new();
    for python in candidates.iter().filter_map(|path| ask(path)) {
        if is_wanted(python.version) {
            found.entry(python.version).or_insert(python);
        }
    }
    found.into_values().collect()
}

/// Pythons that cannot have trampolines at all: CPython before 3.9, and other implementations; each by its path.
pub(super) fn without_trampolines() -> Vec<PathBuf> {
    let names = [
        "python2.7",
        "python3.6",
        "python3.7",
        "python3.8",
        "pypy",
        "pypy3",
    ];
    let runs = |path: &PathBuf| {
        let done = Command::new(path).args(["-c", ""]).output();
        done.is_ok_and(|done| done.status.success())
    };
    let all = folders()
        .into_iter()
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .filter(|path| path.is_file());
    all.filter(runs).collect()
}

/// The newest one that has no trampolines yet.
pub(super) fn too_old() -> Option<Python> {
    let pythons = candidates().into_iter().filter_map(|path| ask(&path));
    pythons
        .filter(|python| python.version < OLDEST && python.version.0 == 3)
        .max_by_key(|python| python.version)
}

fn candidates() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = folders()
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .filter(|path| is_python(path))
        .collect();
    files.sort();
    files
}

/// Where interpreters lie: the folders on PATH, but for pyenv's scripts, and those of pyenv's versions.
fn folders() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).filter(|folder| !folder.ends_with("shims"));
    let mut folders: Vec<PathBuf> = on_path.collect();
    let root = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    let versions = root.and_then(|root| fs::read_dir(root.join("versions")).ok());
    folders.extend(
        versions
            .into_iter()
            .flatten()
            .flatten()
            .map(|version| version.path().join("bin")),
    );
    folders
}

/// `python3` or `python3.N`.
fn is_python(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.strip_prefix("python3"))
        .is_some_and(|rest| {
            rest.is_empty()
                || rest
                    .strip_prefix('.')
                    .is_some_and(|minor| minor.parse::<u32>().is_ok())
        })
}

fn ask(path: &Path) -> Option<Python> {
    let output = Command::new(path)
        .args(["-I", "-S", "-c", ASK])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut words = text.strip_prefix("cpython ")?.split_whitespace();
    let mut number = || words.next()?.parse().ok();
    Some(Python {
        path: path.to_owned(),
        version: (number()?, number()?),
    })
}
