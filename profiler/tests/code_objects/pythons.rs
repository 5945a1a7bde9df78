//! The interpreters of this machine, of every version that the profiler can read.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const ASK: &str = "import sys, sysconfig; print(sys.implementation.name, sys.version_info[1], int(bool(sysconfig.get_config_var('Py_GIL_DISABLED'))))";
/// Minor versions, from the oldest on.
const VERSIONS: std::ops::RangeInclusive<u32> = 8..=15;
/// Lists like PATH of interpreters that are taken before those that are found.
const LISTS: [&str; 2] = ["PYPROF_TEST_PYTHONS", "PYPROF_TEST_OLD_PYTHONS"];

/// One interpreter.
#[derive(Clone, Debug)]
pub(crate) struct Python {
    pub(crate) path: PathBuf,
    pub(crate) minor: u32,
    pub(crate) is_free_threaded: bool,
}

impl Python {
    pub(crate) fn label(&self) -> String {
        let suffix = if self.is_free_threaded { "t" } else { "" };
        format!("CPython 3.{}{suffix} ({})", self.minor, self.path.display())
    }

    /// A command line that runs a script and nothing of the user's.
    pub(crate) fn script(&self, text: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(["-I", "-S", "-W", "ignore", "-c", text]);
        command
    }
}

/// One interpreter of each version, the oldest first, and sentences about those that there are not.
pub(crate) fn find() -> (Vec<Python>, Vec<String>) {
    let mut found = BTreeMap::new();
    let named = LISTS.iter().filter_map(env::var_os);
    let named: Vec<PathBuf> = named
        .flat_map(|list| env::split_paths(&list).collect::<Vec<_>>())
        .collect();
    for path in named.into_iter().chain(candidates()) {
        if let Some(python) = ask(&path) {
            found
                .entry((python.minor, python.is_free_threaded))
                .or_insert(python);
        }
    }
    let missing = VERSIONS.filter(|&minor| !found.contains_key(&(minor, false)));
    let skipped = missing.map(|minor| {
        format!("CPython 3.{minor}: not on PATH, not under pyenv, not named by {LISTS:?}")
    });
    let skipped = skipped.collect();
    (found.into_values().collect(), skipped)
}

fn candidates() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path)
        .filter(|folder| !folder.ends_with("shims"))
        .collect();
    let root = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    let versions = root.and_then(|root| fs::read_dir(root.join("versions")).ok());
    for version in versions.into_iter().flatten().flatten() {
        folders.push(version.path().join("bin"));
    }
    let entries = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok());
    let files = entries.flat_map(|entries| entries.flatten().map(|entry| entry.path()));
    let mut files: Vec<PathBuf> = files.filter(|path| is_python(path)).collect();
    files.sort();
    files
}

/// `python3`, `python3.13` or `python3.13t`.
fn is_python(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let rest = name.and_then(|name| name.strip_prefix("python3"));
    rest.is_some_and(|rest| {
        let minor = rest
            .strip_prefix('.')
            .map(|minor| minor.strip_suffix('t').unwrap_or(minor));
        rest.is_empty() || minor.is_some_and(|minor| minor.parse::<u32>().is_ok())
    })
}

fn ask(path: &Path) -> Option<Python> {
    let output = Command::new(path)
        .args(["-I", "-S", "-c", ASK])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut numbers = text
        .strip_prefix("cpython ")?
        .split_whitespace()
        .map(str::parse);
    let (minor, free_threaded): (u32, u32) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    VERSIONS.contains(&minor).then(|| Python {
        path: path.to_owned(),
        minor,
        is_free_threaded: free_threaded != 0,
    })
}
