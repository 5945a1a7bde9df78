//! Trampolines under real Pythons: each program in `trampolines/` is run by each interpreter that it is for.
//!
//! A program checks itself and ends with an error, or prints why it cannot run here. What each of them is about, and
//! which versions it is for, is in the table below.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode, Stdio},
    sync::Arc,
};

use libtest_mimic::{Arguments, Failed, Trial};

#[path = "support/mod.rs"]
mod support;

use support::{Package, Python, pythons};

/// Versions that get their trampolines from here.
const OURS: [(u32, u32); 3] = [(3, 9), (3, 10), (3, 11)];

/// For whom a program is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// 3.9 to 3.11.
    Ours,
    /// Those and later ones, which have trampolines of their own.
    All,
    /// Versions without any.
    Others,
    /// 3.12 and later.
    Own,
}

/// The programs.
const PROGRAMS: [(&str, For); 17] = [
    ("names", For::Ours),
    ("threads", For::All),
    ("generators", For::All),
    ("callbacks", For::All),
    ("subinterpreters", For::Ours),
    ("fork", For::Ours),
    ("switching", For::All),
    ("foreign_evaluator", For::Ours),
    ("shutdown", For::All),
    ("recursion", For::All),
    ("introspection", For::All),
    ("hostile_map", For::All),
    ("full_disk", For::Ours),
    ("no_executable_memory", For::Ours),
    ("many_functions", For::Ours),
    ("refusal", For::Others),
    ("delegation", For::Own),
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let pythons = pythons();
    let package = Arc::new(Package::stage(false).unwrap());
    let mut trials = Vec::new();
    for (program, whose) in PROGRAMS {
        let mut fitting: Vec<_> = pythons
            .iter()
            .filter(|python| is_for(whose, python.version))
            .collect();
        if fitting.is_empty() {
            trials.push(Trial::test(program, || Ok(())).with_ignored_flag(true));
        }
        for python in fitting.drain(..) {
            let (python, package) = (python.clone(), Arc::clone(&package));
            let name = format!(
                "{program}::cpython_{}_{}",
                python.version.0, python.version.1
            );
            trials.push(Trial::test(name, move || run(program, &python, &package)));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn is_for(whose: For, version: (u32, u32)) -> bool {
    let ours = OURS.contains(&version);
    match whose {
        For::Ours => ours,
        For::All => ours || version >= (3, 12),
        For::Others => version < OURS[0],
        For::Own => version >= (3, 12),
    }
}

fn run(program: &str, python: &Python, package: &Package) -> Result<(), Failed> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trampolines");
    let child = Command::new(&python.path)
        .arg(programs.join(format!("{program}.py")))
        .env("PYTHONPATH", package.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONFAULTHANDLER", "1")
        .env_remove("PYTHONPERFSUPPORT")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let map = format!("/tmp/perf-{}.map", child.id());
    let output = child.wait_with_output()?;
    // The program may have removed it.
    let _ = fs::remove_file(map);
    let printed = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    if output.status.success() && printed.trim_end().ends_with("done") {
        return Ok(());
    }
    Err(format!(
        "{program} under {}: {}\n{printed}{complained}",
        python.path.display(),
        output.status
    )
    .into())
}
