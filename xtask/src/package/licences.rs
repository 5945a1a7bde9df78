//! The notices of the crates that are linked into what the wheel holds: most licences ask that they go with a binary.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::TARGET;
use crate::{command, host};

const INTRODUCTION: &str = "\
The program and the shared object in this package are compiled from code of the project itself, the standard library of
Rust (MIT OR Apache-2.0) and the crates below. Each notice stands once, under all the crates that it is the notice of. Where a crate may be used under the MIT
licence, that is chosen. The source of each is on crates.io, under its name and version.
";
/// What the file names of notices begin with.
const NOTICES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// The text of `DEPENDENCIES.txt`.
pub(super) fn collect() -> Result<String> {
    let mut crates_of_notice = BTreeMap::<String, BTreeSet<String>>::new();
    let mut without = BTreeSet::new();
    let folders = folders()?;
    for (name, licence) in linked_crates()? {
        let folder = folders
            .iter()
            .find(|folder| folder.ends_with(&name))
            .with_context(|| format!("cargo does not say where the sources of {name} are"))?;
        let shown = format!("{name} ({licence})");
        let notices = notices(folder, &licence)?;
        if notices.is_empty() {
            without.insert(shown.clone());
        }
        for notice in notices {
            crates_of_notice
                .entry(notice)
                .or_default()
                .insert(shown.clone());
        }
    }
    if crates_of_notice.is_empty() {
        bail!("no notice of any crate was found");
    }
    let mut text = INTRODUCTION.to_owned();
    let rule = "=".repeat(80);
    let by_crate: BTreeMap<_, _> = crates_of_notice
        .into_iter()
        .map(|(notice, crates)| ((crates, notice.clone()), notice))
        .collect();
    for ((crates, _), notice) in by_crate {
        let _ = writeln!(text, "\n{rule}\n{}\n\n{notice}", lines(crates));
    }
    if !without.is_empty() {
        let _ = writeln!(
            text,
            "\n{rule}\nThese come without a notice:\n\n{}",
            lines(without)
        );
    }
    Ok(text)
}

fn lines(words: BTreeSet<String>) -> String {
    words.into_iter().collect::<Vec<_>>().join("\n")
}

/// Crates that are linked: their folder's name (`libc-0.2.1`) and their licence.
fn linked_crates() -> Result<BTreeSet<(String, String)>> {
    let mut tree = Command::new("cargo");
    tree.args(["tree", "--locked", "-p", "pyprof-bpf"]);
    // The object that the kernel loads is in the program.
    tree.args(["-p", "profiler-trampoline", "-p", "profiler-ebpf"])
        .args(["--edges", "normal,no-proc-macro", "--target", TARGET])
        .args(["--prefix", "none", "--format", "{p}\t{l}"])
        .current_dir(host::workspace());
    let listed = command::output(&mut tree)?;
    Ok(listed.lines().filter_map(linked_crate).collect())
}

/// From a line such as `libc v0.2.1\tMIT OR Apache-2.0`; crates of our own have a path behind the version.
fn linked_crate(line: &str) -> Option<(String, String)> {
    let (package, licence) = line.split_once('\t')?;
    let (name, version) = package.split_once(" v")?;
    let licence = licence.trim_end_matches(" (*)"); // shown before
    let own = version.contains('(');
    (!own).then(|| (format!("{name}-{version}"), licence.to_owned()))
}

/// The folders of all crates that the workspace uses.
fn folders() -> Result<Vec<PathBuf>> {
    let mut metadata = Command::new("cargo");
    metadata
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", TARGET])
        .current_dir(host::workspace());
    let text = command::output(&mut metadata)?;
    let manifests = text.split(r#""manifest_path":""#).skip(1);
    let paths = manifests.filter_map(|rest| rest.split('"').next());
    Ok(paths
        .filter_map(|path| Path::new(path).parent().map(Path::to_owned))
        .collect())
}

/// The texts of a crate's notices: that of the MIT licence alone, where it may be chosen and has a file.
fn notices(folder: &Path, licence: &str) -> Result<Vec<String>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file() && is_notice(path))
        .collect();
    files.sort();
    let mit = files.iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.to_uppercase().contains("MIT")
    });
    if licence.contains("MIT")
        && licence.contains("OR")
        && let Some(mit) = mit
    {
        files = vec![mit.clone()];
    }
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
        Ok(text.trim().to_owned())
    };
    files.into_iter().map(read).collect()
}

fn is_notice(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_uppercase();
    NOTICES.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_told_by_its_folder_and_our_own_are_left_out() {
        assert_eq!(
            linked_crate("libc v0.2.1\tMIT OR Apache-2.0 (*)"),
            Some(("libc-0.2.1".into(), "MIT OR Apache-2.0".into()))
        );
        assert_eq!(linked_crate("profiler-common v0.1.0 (/w/c)\tMIT"), None);
        assert_eq!(linked_crate(""), None);
    }
}
