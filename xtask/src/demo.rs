//! `cargo xtask demo`: the profiler at work on a bundled program, with nothing to
//! prepare but cargo and a Python.

use std::{env, fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::{
    command, folded, host,
    pythons::{self, Python},
    workload::Workload,
};

/// The program from `workloads/`.
const NAME: &str = "demo";
/// How long to record.
const SECONDS: &str = "5";
/// Functions to show.
const SHOWN: usize = 10;

/// Builds, records, and says where the time went.
pub(crate) fn run() -> Result<()> {
    let python = pythons::for_demo()?;
    let profiler = release_build()?;

    let folder = host::target_dir().join("demo");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let picture = folder.join("demo.svg");
    let stacks = folder.join("demo.folded");
    // The profiler replaces no file: those of the last demo go first.
    for file in [&picture, &stacks] {
        if file.exists() {
            fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
    }

    let mut record = Command::new(profiler);
    record
        .args(["record", "--frequency", "199", "--output"])
        .arg(&picture)
        .arg("--output")
        .arg(&stacks);
    record_running(&python, record)?;

    let text =
        fs::read_to_string(&stacks).with_context(|| format!("cannot read {}", stacks.display()))?;
    let (functions, samples) = folded::hottest(&text);
    println!("\n  self   total  function, of {samples} samples");
    for (name, heat) in functions.iter().take(SHOWN) {
        let share = |count: u64| 100.0 * count as f64 / samples.max(1) as f64;
        println!(
            "{:5.1}%  {:5.1}%  {}",
            share(heat.own),
            share(heat.total),
            readable(name)
        );
    }
    println!("\nFlame graph, for a browser: {}", picture.display());
    Ok(())
}

/// Records a program that runs already, as people do.
fn record_running(python: &Python, mut record: Command) -> Result<()> {
    let workload = Workload::start_stock(python, NAME, &["--seconds", "120"])?;
    println!(
        "Recording workloads/{NAME}.py (pid {}) under CPython {} for {SECONDS} s.",
        workload.pid(),
        python.version_text()
    );
    record.args(["--duration", SECONDS, "--pid"]);
    record.arg(workload.pid().to_string());
    command::run(&mut command::as_root(&record)?)
}

/// A frame for people: `py::f:/path/app.py` as `f (app.py)`.
fn readable(frame: &str) -> String {
    let Some(function) = frame.strip_prefix("py::") else {
        return if frame.starts_with('[') {
            frame.to_owned()
        } else {
            format!("{frame} (native)")
        };
    };
    match function.split_once(':') {
        // Code without a file: `_find_and_load:<frozen importlib._bootstrap>`.
        Some((name, file)) if file.starts_with('<') => format!("{name} {file}"),
        Some((name, path)) => format!("{name} ({})", path.rsplit('/').next().unwrap_or(path)),
        None => function.to_owned(),
    }
}

/// Builds the program as users get it; gives its path. `PYPROF_BINARY` names another
/// one to use instead, such as an earlier release.
pub(crate) fn release_build() -> Result<PathBuf> {
    if let Some(path) = env::var_os("PYPROF_BINARY").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--release", "--package", "pyprof-bpf"])
        .current_dir(host::workspace());
    command::run(&mut cargo)?;
    Ok(host::target_dir().join("release/pyprof-bpf"))
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn frames_are_shown_as_people_would_write_them() {
        for (frame, shown) in [
            (
                "py::shortest_route:/srv/demo.py",
                "shortest_route (demo.py)",
            ),
            ("py::Desk.rank:/demo.py", "Desk.rank (demo.py)"),
            ("py::load:<frozen importlib>", "load <frozen importlib>"),
            ("sre_ucs1_match", "sre_ucs1_match (native)"),
            ("[truncated]", "[truncated]"),
        ] {
            assert_eq!(readable(frame), shown);
        }
    }
}
