//! What trampolines cost a Python program, whether it is profiled or not: ours on CPython 3.9 to 3.11, and CPython's
//! own beside them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::table::Table;
use crate::{command, host, pythons};

/// Fields of what `trampolines.py` prints: their rows, unit, and what should do for ours before 3.11 and in 3.11.
const FIELDS: [(&str, &str, &str, Option<[f64; 2]>); 8] = [
    ("calls", "nothing but calls", "x", Some([1.1, 1.5])),
    ("objects", "small methods", "x", None),
    ("generators", "generators", "x", None),
    ("loop", "a loop without calls", "x", Some([1.02, 1.02])),
    ("text", "work done in C", "x", Some([1.02, 1.02])),
    ("first_call_us", "first call of a function", "us", None),
    ("stack_off", "stack a call, without", "bytes", None),
    ("stack_on", "stack a call, with", "bytes", None),
];

const SECTION: &str = "Trampolines on, against off: CPU time in one process";

/// Fills in the section, for every interpreter of this machine.
pub(super) fn measure(folder: &Path, table: &mut Table) -> Result<()> {
    let package = package(folder)?;
    let program = host::workspace().join("xtask/src/bench/trampolines.py");
    for python in pythons::find_old().into_iter().chain(pythons::find_all()) {
        let version = python.version_text();
        eprintln!("trampolines: CPython {version}");
        let mut run = Command::new(&python.path);
        run.arg(&program)
            .env("PYTHONPATH", &package)
            .env_remove("PYTHONPERFSUPPORT");
        let json = command::output(&mut run)?;
        let (_, minor, _) = python.version;
        for (field, what, unit, goals) in FIELDS {
            let goal = match (goals, minor) {
                (Some([goal, _]), ..=10) | (Some([_, goal]), 11) => Some(goal),
                _ => None,
            };
            for value in list(&json, field).with_context(|| format!("no {field} in {json}"))? {
                table.add(SECTION, format!("{version}: {what}"), value, unit, goal);
            }
        }
    }
    Ok(())
}

/// The Python package as it is installed.
fn package(folder: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo
        .args([
            "build",
            "--profile",
            "trampoline",
            "--package",
            "profiler-trampoline",
        ])
        .current_dir(host::workspace());
    command::run(&mut cargo)?;
    let package = folder.join("trampolines");
    let target = package.join("pyprof_trampoline");
    fs::create_dir_all(&target).with_context(|| format!("cannot make {}", target.display()))?;
    let source = host::workspace().join("profiler-trampoline/python/pyprof_trampoline");
    let object = host::target_dir().join("trampoline/libpyprof_trampoline.so");
    let files = [
        (source.join("__init__.py"), "__init__.py"),
        (object, "_native.so"),
    ];
    for (from, name) in files {
        fs::copy(&from, target.join(name))
            .with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(package)
}

/// The numbers of a list in a flat JSON object.
fn list(json: &str, key: &str) -> Option<Vec<f64>> {
    let start = format!("\"{key}\": [");
    let rest = &json[json.find(&start)? + start.len()..];
    let numbers = rest[..rest.find(']')?].split(',');
    numbers.map(|number| number.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn lists_are_read_by_their_key() {
        let json = r#"{"calls": [1.5, 2.0], "loop": [1.0]}"#;
        assert_eq!(list(json, "calls"), Some(vec![1.5, 2.0]));
        assert_eq!(list(json, "loop"), Some(vec![1.0]));
        assert_eq!(list(json, "text"), None);
    }
}
