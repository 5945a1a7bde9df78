//! The interpreters of this machine.

use std::{
    collections::BTreeMap,
    env, fs,
    ops::Range,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use super::trampolines::Trampolines;

const ASK: &str =
    "import sys; print(sys.implementation.name, sys.version_info[0], sys.version_info[1])";

/// The versions that have trampolines of their own.
const WITH_OWN: Range<(u32, u32)> = (3, 12)..(4, 0);
/// The versions that get them from `profiler-trampoline`.
const WITH_OURS: Range<(u32, u32)> = (3, 9)..(3, 12);

/// One interpreter.
#[derive(Clone, Debug)]
pub(super) struct Python {
    pub(super) path: PathBuf,
    pub(super) version: (u32, u32),
    /// What gives it trampolines, if it has none of its own.
    pub(super) ours: Option<Arc<Trampolines>>,
    /// Its functions are named by perf maps, not read from its own frames, which is the default.
    pub(super) by_perf_maps: bool,
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
            .env_remove("PYTHONPERFSUPPORT")
            .env_remove("PYTHONPATH");
        command
    }

    /// A command line with trampolines.
    pub(super) fn perf(&self) -> Command {
        let mut command = self.plain();
        match &self.ours {
            Some(ours) => command.env("PYTHONPATH", ours.launch()),
            None => command.args(["-X", "perf"]),
        };
        command
    }

    /// The same, named by perf maps.
    pub(super) fn named_by_perf_maps(&self) -> Self {
        Self {
            by_perf_maps: true,
            ..self.clone()
        }
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
    one_each(every_new())
}

/// The oldest and the newest CPython of 3.9 to 3.11, as above; each of them where `PYPROF_TEST_EVERY_PYTHON` is set. 3.10 gets
/// its trampolines in the same way as 3.9.
pub(super) fn old() -> Vec<Python> {
    let mut pythons = one_each(every_old());
    if env::var_os("PYPROF_TEST_EVERY_PYTHON").is_none() && pythons.len() > 2 {
        pythons.drain(1..pythons.len() - 1);
    }
    pythons
}

/// Every CPython from 3.12 on, in no order.
pub(super) fn every_new() -> Vec<Python> {
    named_or_found("PYPROF_TEST_PYTHONS", &WITH_OWN)
}

/// Every CPython from 3.9 to 3.11, in no order. They share a copy of what gives them trampolines.
pub(super) fn every_old() -> Vec<Python> {
    let mut pythons = named_or_found("PYPROF_TEST_OLD_PYTHONS", &WITH_OURS);
    if !pythons.is_empty() {
        let ours = Arc::new(Trampolines::copied());
        for python in &mut pythons {
            python.ours = Some(Arc::clone(&ours));
        }
    }
    pythons
}

/// The first one of each minor version, the oldest version first.
pub(super) fn one_each(pythons: Vec<Python>) -> Vec<Python> {
    let mut found = BTreeMap::new();
    for python in pythons {
        found.entry(python.version).or_insert(python);
    }
    found.into_values().collect()
}

/// The interpreters that a variable names, else those of this machine, as far as they are of these versions.
pub(super) fn named_or_found(variable: &str, versions: &Range<(u32, u32)>) -> Vec<Python> {
    let named = env::var_os(variable).filter(|list| !list.is_empty());
    let paths = match named {
        Some(list) => env::split_paths(&list).collect(),
        None => candidates(),
    };
    let pythons = paths.iter().filter_map(|path| ask(path));
    pythons
        .filter(|python| versions.contains(&python.version))
        .collect()
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
        .filter(|python| python.version < WITH_OWN.start && python.version.0 == 3)
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
        ours: None,
        by_perf_maps: false,
    })
}
