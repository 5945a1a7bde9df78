//! The folder that maturin makes the wheel from: `pyproject.toml`, the package with its shared object, and the texts.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::licences;
use crate::host;

/// Copied as they are. `pyproject.toml` chooses those that are licences.
const TEXTS: [&str; 4] = [
    "LICENSE-APACHE",
    "LICENSE-GPL2",
    "LICENSE-MIT",
    "THIRD-PARTY.md",
];
/// The files of the package; a new one must be meant to be in the wheel.
const MODULES: [&str; 4] = ["__init__.py", "__main__.py", "_native.pyi", "py.typed"];
/// Where the links of the long description lead from PyPI.
const PAGES: &str = "https://github.com/pyprof-bpf/pyprof-bpf";

/// Fills `stage` anew.
pub(super) fn make(stage: &Path, native: &Path) -> Result<PathBuf> {
    if stage.exists() {
        fs::remove_dir_all(stage).with_context(|| format!("cannot empty {}", stage.display()))?;
    }
    let package = stage.join("python/pyprof_trampoline");
    fs::create_dir_all(&package).with_context(|| format!("cannot make {}", package.display()))?;

    let workspace = host::workspace();
    let sources = workspace.join("profiler-trampoline");
    for text in TEXTS {
        copy(&workspace.join(text), &stage.join(text))?;
    }
    for module in MODULES {
        let source = sources.join("python/pyprof_trampoline").join(module);
        copy(&source, &package.join(module))?;
    }
    copy(native, &package.join("_native.so"))?;
    write(&stage.join("DEPENDENCIES.txt"), &licences::collect()?)?;

    let readme = read(&workspace.join("README.md"))?;
    write(&stage.join("README.md"), &with_whole_links(&readme))?;
    // Its last table is maturin's.
    let project = read(&sources.join("pyproject.toml"))?;
    let manifest = workspace.join("profiler/Cargo.toml");
    let project = format!(
        "{project}manifest-path = {:?}\n",
        manifest.display().to_string()
    );
    write(&stage.join("pyproject.toml"), &project)?;
    Ok(stage.to_owned())
}

/// Makes links to files of the repository lead there: beside the description on PyPI there are no files.
fn with_whole_links(text: &str) -> String {
    let mut whole = String::with_capacity(text.len() + 1024);
    let mut rest = text;
    while let Some(at) = rest.find("](") {
        let (before, link) = rest.split_at(at + 2);
        whole.push_str(before);
        rest = link;
        let target = link.split(')').next().unwrap_or_default();
        if target.starts_with('#') || target.contains("://") {
            continue;
        }
        let is_picture = before
            .rfind('[')
            .is_some_and(|at| before[..at].ends_with('!'));
        let kind = if is_picture { "raw" } else { "blob" };
        let _ = write!(whole, "{PAGES}/{kind}/main/");
    }
    whole + rest
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_into_the_repository_become_whole_and_others_stay() {
        let text = "[![A graph](docs/demo.png)](docs/demo.svg) [why](ARCHITECTURE.md#maps), [below](#use), [x](https://x.org/)";
        assert_eq!(
            with_whole_links(text),
            format!(
                "[![A graph]({PAGES}/raw/main/docs/demo.png)]({PAGES}/blob/main/docs/demo.svg) [why]({PAGES}/blob/main/ARCHITECTURE.md#maps), [below](#use), [x](https://x.org/)"
            )
        );
    }
}
