//! Finds real libraries on this machine.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Libraries of the system that every Python process maps.
const SYSTEM: [&str; 5] = [
    "libc.so.6",
    "libcrypto.so.3",
    "libm.so.6",
    "ld-linux-x86-64.so.2",
    "libstdc++.so.6",
];
/// Where distributions keep them.
const SYSTEM_FOLDERS: [&str; 4] = ["/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"];

/// What was found, and what was looked for in vain.
#[derive(Default)]
pub(crate) struct Libraries {
    /// Existing files, each one once.
    pub(crate) paths: Vec<PathBuf>,
    /// Sentences for the reader of the test's output.
    pub(crate) skipped: Vec<String>,
}

impl Libraries {
    /// Looks in the usual places, in pyenv's and in `PYPROF_TEST_LIBS`.
    pub(crate) fn find() -> Self {
        let mut skipped = Vec::new();
        let mut found = BTreeSet::new();
        for name in SYSTEM {
            match system(name) {
                Some(path) => _ = found.insert(path),
                None => skipped.push(format!("{name}: in none of {SYSTEM_FOLDERS:?}")),
            }
        }
        let versions = pyenv_versions();
        let count = found.len();
        for version in &versions {
            found.extend(files(&version.join("lib"), is_libpython));
        }
        if found.len() == count {
            skipped.push("libpython: no shared library in pyenv's versions".to_owned());
        }
        let count = found.len();
        for python in versions.iter().map(|version| version.join("bin/python3")) {
            if let Some(folder) = numpy(&python) {
                found.extend(files(&folder.join("_core"), |_| true));
                found.extend(files(&folder.join("core"), |_| true));
                found.extend(files(&folder.with_extension("libs"), |_| true));
            }
        }
        if found.len() == count {
            skipped.push(format!(
                "numpy: not installed in any of {} Pythons of pyenv",
                versions.len()
            ));
        }
        if let Some(paths) = env::var_os("PYPROF_TEST_LIBS") {
            found.extend(env::split_paths(&paths).filter_map(|path| path.canonicalize().ok()));
        }
        Self {
            paths: found.into_iter().collect(),
            skipped,
        }
    }
}

/// Programs that are Pythons, each one once. What they are linked with is in [`Libraries`].
pub(crate) fn interpreters() -> Vec<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&folders);
    let own = pyenv_versions()
        .into_iter()
        .map(|version| version.join("bin"));
    let found = own.chain(folders).filter_map(|folder| {
        let path = folder.join("python3").canonicalize().ok()?;
        // pyenv has scripts of that name, too.
        let is_elf = fs::read(&path).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
        is_elf.then_some(path)
    });
    found.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The system's copy of a library.
pub(crate) fn system(name: &str) -> Option<PathBuf> {
    SYSTEM_FOLDERS
        .iter()
        .find_map(|folder| Path::new(folder).join(name).canonicalize().ok())
}

/// A small library, or the smallest there is.
pub(crate) fn small_library() -> Vec<u8> {
    let names = [
        "libdl.so.2",
        "libutil.so.1",
        "libpthread.so.0",
        "ld-linux-x86-64.so.2",
    ];
    let found = names
        .iter()
        .filter_map(|name| system(name))
        .filter_map(|path| fs::read(path).ok());
    found.min_by_key(Vec::len).expect("some library is there")
}

/// The library that the kernel maps into every process, read from this one.
pub(crate) fn vdso() -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (begin, end) = line.split_once(' ')?.0.split_once('-')?;
    let (begin, end) = (
        u64::from_str_radix(begin, 16).ok()?,
        u64::from_str_radix(end, 16).ok()?,
    );
    let mut bytes = vec![0; usize::try_from(end.checked_sub(begin)?).ok()?];
    fs::File::open("/proc/self/mem")
        .ok()?
        .read_exact_at(&mut bytes, begin)
        .ok()?;
    Some(bytes)
}

fn pyenv_versions() -> Vec<PathBuf> {
    let root = env::var_os("PYENV_ROOT").map(PathBuf::from);
    let Some(root) = root.or_else(|| env::home_dir().map(|home| home.join(".pyenv"))) else {
        return Vec::new();
    };
    let entries = fs::read_dir(root.join("versions"))
        .into_iter()
        .flatten()
        .flatten();
    entries.map(|entry| entry.path()).collect()
}

/// `libpython3.so` without a number is a forwarder that has no code.
fn is_libpython(name: &str) -> bool {
    name.strip_prefix("libpython3.")
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The folder of the numpy that a Python would import.
fn numpy(python: &Path) -> Option<PathBuf> {
    let output = Command::new(python)
        .args(["-c", "import numpy; print(numpy.__path__[0])"])
        .output()
        .ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(path.trim()))
}

/// Shared libraries in a folder, links resolved.
fn files(folder: &Path, accept: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let wanted = entries.filter(|entry| {
        let name = entry.file_name();
        name.to_str()
            .is_some_and(|name| name.contains(".so") && accept(name))
    });
    wanted
        .filter_map(|entry| entry.path().canonicalize().ok())
        .collect()
}
