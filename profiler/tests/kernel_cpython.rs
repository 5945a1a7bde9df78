//! CPython's own tests as a judge from outside: of the perf-map writer in its three languages, of the trampolines for
//! CPython 3.9 to 3.11, and of pyprof-bpf where these tests mean perf, on builds on which perf does not pass them.
//!
//! The tests are those installed with the interpreters of this machine, from 3.12 on; none of their text is here.
//! `cpython/judge.py` runs one of them in surroundings in which it meets our code. Each is a trial for each interpreter
//! that it can judge.
//!
//! Needs root: these tests remove perf maps that are not theirs from /tmp, so each gets a /tmp of its own, and the
//! profiler is among what is judged.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    env,
    io::{self, BufRead as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::Arc,
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use pyprof_trampoline::{PerfMap, PerfMapError};

use children::EndChildren;
use empty_tmp::EMPTY_TMP;
use python::Python;
use trampolines::Trampolines;

#[path = "support/children.rs"]
mod children;
#[path = "support/empty_tmp.rs"]
mod empty_tmp;
#[expect(dead_code, reason = "the kernel trials have more uses for it")]
#[path = "kernel/python.rs"]
mod python;
#[path = "kernel/trampolines.rs"]
mod trampolines;

/// In the place of a test's name: be the program that writes entries for one.
const WRITER: &str = "--write-perf-map";
/// CPython's tests that can judge us.
const PERF_MAPS: &str = "test_perfmaps.py";
const PERF_PROFILER: &str = "test_perf_profiler.py";
/// From `judge.py`, which gives the reason on standard output.
const CANNOT_JUDGE: i32 = 77;

fn main() -> ExitCode {
    if env::args().nth(1).is_some_and(|first| first == WRITER) {
        write_perf_map().unwrap();
        return ExitCode::SUCCESS;
    }
    children::supervised(run)
}

fn run() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1); // The profiler's trials are not to take each other's time.
    libtest_mimic::run(&arguments, trials()).exit_code()
}

/// Takes lines from standard input: `write ADDRESS SIZE NAME`, the numbers in hexadecimal, or `finish`. Answers each
/// with 0, or an error number.
fn write_perf_map() -> io::Result<()> {
    let map = PerfMap::of_this_process();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let number = |text| usize::from_str_radix(text, 16).map_err(io::Error::other);
        let done = match words[..] {
            ["write", address, size, name] => {
                map.write_entry(number(address)?, number(size)?, name.as_bytes())
            }
            ["finish"] => {
                map.fini();
                Ok(())
            }
            _ => return Err(io::Error::other(line)),
        };
        writeln!(
            io::stdout(),
            "{}",
            done.map_or_else(PerfMapError::errno, |()| 0)
        )?;
    }
    Ok(())
}

/// An interpreter, and where its standard library is.
struct Installed {
    python: Python,
    library: PathBuf,
}

impl Installed {
    fn new(python: Python) -> Option<Self> {
        let ask = "import sysconfig; print(sysconfig.get_path('stdlib'))";
        let output = python.plain().args(["-c", ask]).output().ok()?;
        let library = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim_end());
        Some(Self { python, library })
    }

    /// A file of its tests. Distributions leave them out, or put them into a package of their own.
    fn tests(&self, name: &str) -> Option<PathBuf> {
        Some(self.library.join("test").join(name)).filter(|path| path.is_file())
    }

    fn version(&self) -> (u32, u32) {
        self.python.version
    }
}

/// One for each minor version: the one with the most of what is needed.
fn installed(pythons: Vec<Python>) -> Vec<Installed> {
    let mut all: Vec<Installed> = pythons.into_iter().filter_map(Installed::new).collect();
    all.sort_by_key(|installed| {
        let needed = ["support/__init__.py", PERF_MAPS, PERF_PROFILER];
        let missing = needed.iter().filter(|name| installed.tests(name).is_none());
        (installed.version(), missing.count())
    });
    all.dedup_by_key(|installed| installed.version());
    all
}

fn trials() -> Vec<Trial> {
    let (old, new) = (
        installed(python::every_old()),
        installed(python::every_new()),
    );
    let ours = old
        .first()
        .and_then(|installed| installed.python.ours.clone());
    let ours = ours.unwrap_or_else(|| Arc::new(Trampolines::copied()));
    let this_program = env::current_exe().unwrap();
    let pyprof = Path::new(env!("CARGO_BIN_EXE_pyprof-bpf"));

    if old.is_empty() && new.is_empty() {
        let why = "there is no CPython 3.9 or newer on PATH or under pyenv";
        return vec![skipped("cpython", why.to_owned())];
    }
    let mut trials = Vec::new();
    let mut add = |judge: &Installed, role, tests_of: &Installed, arguments: &[&Path]| {
        trials.extend(judgements(judge, role, tests_of, arguments, &ours));
    };
    for judge in old.iter().chain(&new) {
        // Its own tests. The old versions have none of these, so they take the newest.
        let is_old = judge.python.ours.is_some();
        let tests_of = if is_old { new.last() } else { None }.unwrap_or(judge);
        add(judge, "perf-map-python", tests_of, &[ours.folder.path()]);
        add(judge, "perf-map-c", tests_of, &[ours.folder.path()]);
        let writer = [&this_program, Path::new(WRITER)];
        add(judge, "perf-map-rust", tests_of, &writer);
        if is_old {
            for tests_of in &new {
                add(judge, "trampolines", tests_of, &[ours.folder.path()]);
            }
            let both = [pyprof, ours.folder.path()];
            add(judge, "profiler-and-trampolines", tests_of, &both);
        } else {
            add(judge, "profiler", judge, &[pyprof]);
        }
    }
    trials
}

/// Trials of one role: one for each test, or one that is skipped if there are none.
fn judgements(
    judge: &Installed,
    role: &'static str,
    tests_of: &Installed,
    arguments: &[&Path],
    ours: &Arc<Trampolines>,
) -> Vec<Trial> {
    let file = if role.starts_with("perf-map") {
        PERF_MAPS
    } else {
        PERF_PROFILER
    };
    let short = judge.python.short();
    let Some(path) = tests_of.tests(file) else {
        let why = format!("CPython's {file} is not installed with any interpreter of this version");
        return vec![skipped(&format!("{short}::{role}"), why)];
    };
    let mut list = judge_command(&judge.python);
    list.args(["list", role]).arg(&path);
    let listed = list.output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let listed = String::from_utf8(listed.stdout).unwrap();
    let (major, minor) = tests_of.version();
    let trial = |test: &str| {
        let name = format!("{short}::{role}::tests_of_{major}_{minor}::{test}");
        let mut run = judge_command(&judge.python);
        run.args(["run", role]).arg(&path).arg(test).args(arguments);
        let mut run = with_own_tmp(&run);
        // The folder is to be there for as long as a trial needs it.
        let ours = Arc::clone(ours);
        Trial::ignorable_test(name, move || {
            let completion = judged(&mut run);
            drop(ours);
            completion
        })
    };
    listed.lines().map(trial).collect()
}

fn skipped(name: &str, why: String) -> Trial {
    Trial::ignorable_test(name, move || Ok(Completion::ignored_with(why)))
}

/// The judge, run by this interpreter.
fn judge_command(python: &Python) -> Command {
    let mut command = python.plain();
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cpython/judge.py"));
    command
}

/// The same, where /tmp is empty and nobody else's.
fn with_own_tmp(inner: &Command) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-ec"])
        .arg(format!("{EMPTY_TMP}empty_tmp; exec \"$@\""))
        .arg("sh")
        .arg(inner.get_program())
        .args(inner.get_args());
    // What is said to whoever runs the tests is not for the profiler that is tested.
    let foreign = |name: &str| {
        ["PYPROF_", "SUDO_"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    for (name, _) in env::vars_os().filter(|(name, _)| foreign(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("TMPDIR", "/tmp").env_remove("RUST_LOG");
    command
}

/// What the judge found.
fn judged(run: &mut Command) -> Result<Completion, Failed> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Completion::ignored_with(
            "only root can give a test a /tmp of its own and load BPF programs",
        ));
    }
    let usable = Command::new("unshare").args(["--mount", "true"]).output();
    if !usable.is_ok_and(|done| done.status.success()) {
        return Ok(Completion::ignored_with(
            "mount namespaces cannot be made here",
        ));
    }
    let _end = EndChildren;
    let output = run.stdin(Stdio::null()).output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(0) => Ok(Completion::Completed),
        Some(CANNOT_JUDGE) => Ok(Completion::ignored_with(printed.trim().to_owned())),
        _ => Err(format!(
            "{}\n{printed}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into()),
    }
}
