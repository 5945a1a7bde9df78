//! The CPythons that the package is for.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Lists of interpreters, made by `cargo xtask test`.
const LISTS: [&str; 2] = ["PYPROF_TEST_OLD_PYTHONS", "PYPROF_TEST_PYTHONS"];
/// What an interpreter is asked; a pyenv shim answers for what lies behind it.
const ASK: &str =
    "import sys; print(sys.implementation.name, *sys.version_info[:3], sys.executable)";
const OLDEST: (u32, u32) = (3, 9);

/// One interpreter.
#[derive(Clone)]
pub(crate) struct Python {
    pub(crate) path: PathBuf,
    /// With dots.
    pub(crate) version: String,
}

/// One of each version, the oldest first.
pub(crate) fn all() -> Vec<Python> {
    let mut found = BTreeMap::new();
    for path in candidates() {
        if let Some((version, path)) = ask(&path)
            && (version.0, version.1) >= OLDEST
        {
            let text = format!("{}.{}.{}", version.0, version.1, version.2);
            found.entry(version).or_insert(Python {
                path,
                version: text,
            });
        }
    }
    found.into_values().collect()
}

fn candidates() -> Vec<PathBuf> {
    if LISTS.iter().any(|list| env::var_os(list).is_some()) {
        let lists = LISTS.iter().filter_map(env::var_os);
        return lists
            .flat_map(|list| env::split_paths(&list).collect::<Vec<_>>())
            .filter(|path| !path.as_os_str().is_empty())
            .collect();
    }
    let mut folders: Vec<PathBuf> =
        env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    let root = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".pyenv")));
    let versions = root.and_then(|root| fs::read_dir(root.join("versions")).ok());
    for version in versions.into_iter().flatten().flatten() {
        folders.push(version.path().join("bin"));
    }
    let files = folders.into_iter().map(|folder| folder.join("python3"));
    files.filter(|file| file.is_file()).collect()
}

fn ask(path: &Path) -> Option<((u32, u32, u32), PathBuf)> {
    let done = Command::new(path)
        .args(["-I", "-S", "-c", ASK])
        .output()
        .ok()?;
    let text = String::from_utf8(done.stdout).ok()?;
    let mut words = text.trim().splitn(5, ' ');
    if words.next() != Some("cpython") {
        return None;
    }
    let mut number = || words.next()?.parse().ok();
    let version = (number()?, number()?, number()?);
    Some((version, PathBuf::from(words.next()?)))
}
