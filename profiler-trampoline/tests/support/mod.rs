//! The Python package as it is installed, in a folder of its own, and the interpreters of this machine.

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use empty_tmp::EMPTY_TMP;
use tempfile::TempDir;

#[path = "../../../profiler/tests/support/empty_tmp.rs"]
mod empty_tmp;

/// Lists of interpreters, made by `cargo xtask test`.
const LISTS: [&str; 2] = ["PYPROF_TEST_OLD_PYTHONS", "PYPROF_TEST_PYTHONS"];
/// What an interpreter is asked; a pyenv shim answers for what lies behind it.
const ASK: &str =
    "import sys; print(sys.implementation.name, *sys.version_info[:3], sys.executable)";

/// A CPython.
#[derive(Clone, Debug)]
pub(crate) struct Python {
    /// The executable.
    pub(crate) path: PathBuf,
    /// Such as (3, 11).
    pub(crate) version: (u32, u32),
    /// Such as 3.11.7.
    pub(crate) text: String,
}

/// A folder for `PYTHONPATH` with `pyprof_trampoline`. Removed with the value.
#[derive(Debug)]
pub(crate) struct Package {
    folder: TempDir,
}

impl Package {
    /// Puts together what cargo has just built and the Python files of this package.
    pub(crate) fn stage() -> io::Result<Self> {
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        let folder = scratch()?;
        let package = folder.path().join("pyprof_trampoline");
        fs::create_dir(&package)?;
        for entry in fs::read_dir(python.join("pyprof_trampoline"))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), package.join(entry.file_name()))?;
            }
        }
        fs::copy(shared_object()?, package.join("_native.so"))?;
        Ok(Self { folder })
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A folder that is gone with the value, and not in `/tmp`: programs may have one of their own.
pub(crate) fn scratch() -> io::Result<TempDir> {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))
}

/// A command with a `/tmp` of its own, where that can be had. Maps of earlier processes with the same pid lie in the
/// common one, and entries would be added to them.
pub(crate) fn with_own_tmp(program: &Path) -> Command {
    let can = || {
        let mut probe = Command::new("unshare");
        let script = format!("{EMPTY_TMP}empty_tmp");
        let done = probe.args(["--mount", "sh", "-c", &script]).output();
        done.is_ok_and(|done| done.status.success())
    };
    if !can() {
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    let script = format!("{EMPTY_TMP}empty_tmp && exec \"$0\" \"$@\"");
    command.args(["--mount", "sh", "-c", &script]).arg(program);
    command
}

/// `libpyprof_trampoline.so`, which cargo builds beside the test program.
pub(crate) fn shared_object() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let folder = program.parent().ok_or(io::ErrorKind::NotFound)?;
    Ok(folder.join("libpyprof_trampoline.so"))
}

/// Every CPython from 3.8 on, one of each version, the oldest first: those that the lists name, and those under pyenv
/// and on PATH.
pub(crate) fn pythons() -> Vec<Python> {
    let lists = LISTS.iter().filter_map(env::var_os);
    let mut files: Vec<PathBuf> = lists
        .flat_map(|list| env::split_paths(&list).collect::<Vec<_>>())
        .collect();
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let root = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pyenv")));
    if let Some(versions) = root.and_then(|root| fs::read_dir(root.join("versions")).ok()) {
        folders.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    files.extend(folders.iter().map(|folder| folder.join("python3")));
    let mut found = BTreeMap::new();
    let existing = files.iter().filter(|path| path.is_file());
    for (version, path) in existing.filter_map(|path| ask(path)) {
        let (major, minor, patch) = version;
        if (major, minor) >= (3, 8) {
            found.entry(version).or_insert(Python {
                path,
                version: (major, minor),
                text: format!("{major}.{minor}.{patch}"),
            });
        }
    }
    found.into_values().collect()
}

fn ask(path: &Path) -> Option<((u32, u32, u32), PathBuf)> {
    let output = Command::new(path)
        .args(["-I", "-S", "-c", ASK])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut words = text.trim().splitn(5, ' ');
    if words.next() != Some("cpython") {
        return None;
    }
    let mut number = || words.next()?.parse().ok();
    let version = (number()?, number()?, number()?);
    Some((version, PathBuf::from(words.next()?)))
}
