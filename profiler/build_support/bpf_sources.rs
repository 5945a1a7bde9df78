//! What the BPF object is made from, as a text that can be compared.
//!
//! Shared by the build script, which must not embed an object older than its
//! sources, and by `cargo xtask bpf`, which writes the text beside the object it
//! has built.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

/// The object that the repository carries, relative to the `profiler` folder.
pub(crate) const BUNDLED_OBJECT: &str = "bpf/pyprof-bpf.bpf.o";

/// What that object was built from, relative to the `profiler` folder: the text
/// that [`listing`] gave at that time.
pub(crate) const BUNDLED_SOURCES: &str = "bpf/pyprof-bpf.bpf.o.sources";

/// Files and folders of the workspace that decide what the object does.
pub(crate) const SOURCE_ROOTS: [&str; 4] = [
    "profiler-common/Cargo.toml",
    "profiler-common/src",
    "profiler-ebpf/Cargo.toml",
    "profiler-ebpf/src",
];

/// Crates of the kernel side, by the start of their names: their versions count as
/// sources.
const KERNEL_CRATES: [&str; 3] = ["aya-ebpf", "aya-log-common", "aya-log-ebpf"];

/// One line for each source file, in the form that `sha256sum` writes, then one for
/// each kernel-side crate with its version.
///
/// `None` where the workspace has no BPF sources, as in a published package.
pub(crate) fn listing(workspace: &Path) -> io::Result<Option<String>> {
    if !workspace.join("profiler-ebpf/src").is_dir() {
        return Ok(None);
    }
    let mut files = Vec::new();
    for root in SOURCE_ROOTS {
        collect(&workspace.join(root), &mut files)?;
    }
    files.sort();

    let mut text = String::new();
    for file in files {
        let name = file.strip_prefix(workspace).unwrap_or(&file);
        for byte in Sha256::digest(fs::read(&file)?) {
            let _ = write!(text, "{byte:02x}");
        }
        let _ = writeln!(text, "  {}", name.display());
    }
    for (name, version) in locked_kernel_crates(&fs::read_to_string(workspace.join("Cargo.lock"))?)
    {
        let _ = writeln!(text, "# {name} {version}");
    }
    Ok(Some(text))
}

/// The first source that is not as it was when `recorded` was written.
///
/// `None` when nothing differs.
pub(crate) fn first_change(recorded: &str, now: &str) -> Option<String> {
    let stray = |from: &str, other: &str| {
        from.lines()
            .find(|line| !other.lines().any(|known| known == *line))
            .map(source_name)
    };
    stray(now, recorded).or_else(|| stray(recorded, now))
}

/// The file or crate that one line of a listing is about.
fn source_name(line: &str) -> String {
    let name = line.strip_prefix("# ").or_else(|| line.get(66..));
    name.unwrap_or(line).to_owned()
}

/// Adds `path`, or every file below it, to `files`.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            collect(&entry?.path(), files)?;
        }
    } else {
        files.push(path.to_owned());
    }
    Ok(())
}

/// Name and version of each kernel-side crate in the text of a `Cargo.lock`, in the
/// order of that file (which cargo keeps sorted).
fn locked_kernel_crates(lock: &str) -> Vec<(&str, &str)> {
    lock.split("[[package]]")
        .filter_map(|package| {
            Some((
                lock_value(package, "name")?,
                lock_value(package, "version")?,
            ))
        })
        .filter(|(name, _)| KERNEL_CRATES.iter().any(|known| name.starts_with(known)))
        .collect()
}

/// What `key` is set to in one package's lines of a `Cargo.lock`.
fn lock_value<'a>(package: &'a str, key: &str) -> Option<&'a str> {
    package.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(" = \"")?
            .strip_suffix('"')
    })
}
