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

use libtest_mimic::{Arguments, Completion, Failed, Trial};

#[path = "support/mod.rs"]
mod support;

use support::{Package, Python, pythons, scratch, with_own_tmp};

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
const PROGRAMS: [(&str, For); 19] = [
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
    ("deleted_directory", For::All),
    ("full_disk", For::Ours),
    ("no_executable_memory", For::Ours),
    ("no_memory", For::Ours),
    ("many_functions", For::Ours),
    ("refusal", For::Others),
    ("delegation", For::Own),
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let pythons = pythons();
    let package = Arc::new(Package::stage().unwrap());
    let mut trials = Vec::new();
    for (program, whose) in PROGRAMS {
        let mut fitting = pythons
            .iter()
            .filter(|python| is_for(whose, python.version))
            .peekable();
        if fitting.peek().is_none() {
            trials.push(Trial::ignorable_test(program, || {
                Ok(Completion::ignored_with("no Python that it is for"))
            }));
        }
        for python in fitting {
            let (own, package) = (python.clone(), Arc::clone(&package));
            let name = format!("{}::{program}", python.text);
            trials.push(Trial::ignorable_test(name, move || {
                run(program, &own, &package)
            }));
        }
    }
    for python in pythons
        .iter()
        .filter(|python| is_for(For::Ours, python.version))
    {
        let (own, package) = (python.clone(), Arc::clone(&package));
        let name = format!("{}::embedding", python.text);
        trials.push(Trial::ignorable_test(name, move || embed(&own, &package)));
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

fn run(program: &str, python: &Python, package: &Package) -> Result<Completion, Failed> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trampolines");
    let mut command = with_own_tmp(&python.path);
    command
        .arg(programs.join(format!("{program}.py")))
        .env("PYTHONPATH", package.path());
    judge(command)
}

/// A C program with the interpreter's library in it.
fn embed(python: &Python, package: &Package) -> Result<Completion, Failed> {
    const ASK: &str = "import sysconfig as s, sys; g = s.get_config_var\n\
        print(s.get_path('include'), g('LIBDIR'), g('LDVERSION'), g('Py_ENABLE_SHARED'), sys.base_prefix, sep='\\n')";
    let told = Command::new(&python.path).args(["-c", ASK]).output()?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let [include, libraries, version, shared, home] = told.lines().collect::<Vec<_>>()[..] else {
        return Err(format!("{} does not know itself: {told}", python.path.display()).into());
    };
    if shared != "1" || !Path::new(include).join("Python.h").exists() {
        return Ok(Completion::ignored_with(
            "this Python has no headers or no libpython",
        ));
    }
    let folder = scratch()?;
    let program = folder.path().join("embedding");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trampolines/embedding.c");
    let compiled = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .args([format!("-I{include}"), format!("-L{libraries}")])
        .args([
            format!("-lpython{version}"),
            format!("-Wl,-rpath,{libraries}"),
        ])
        .output();
    match compiled {
        Err(_) => return Ok(Completion::ignored_with("there is no C compiler")),
        Ok(output) if !output.status.success() => {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(_) => {}
    }
    let mut command = with_own_tmp(&program);
    command.arg(package.path()).env("PYTHONHOME", home);
    judge(command)
}

/// Runs a program that checks itself.
fn judge(mut command: Command) -> Result<Completion, Failed> {
    let child = command
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
    if !output.status.success() || !printed.trim_end().ends_with("done") {
        return Err(format!("{command:?}: {}\n{printed}{complained}", output.status).into());
    }
    match printed
        .lines()
        .find_map(|line| line.strip_prefix("cannot run here: "))
    {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => Ok(Completion::Completed),
    }
}
