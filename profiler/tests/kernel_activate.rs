//! `pyprof-bpf activate` with real Pythons: what it does to them, what it leaves alone, and that nothing stays behind.
//!
//! Interpreters come from `PYPROF_TEST_PYTHONS` and `PYPROF_TEST_OLD_PYTHONS` (lists like PATH), else from pyenv. CPython
//! 3.14 and later take requests; `cargo xtask test-pythons` brings some. Needs root; without it every test is ignored.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    os::fd::AsRawFd as _,
    process::{Child, Command, ExitCode, Output, Stdio},
    thread::sleep,
    time::Duration,
};

use libtest_mimic::{Arguments, Completion, Trial};
use rustix::process::{Pid, Signal, kill_process};

#[path = "support/children.rs"]
mod children;
#[path = "support/empty_tmp.rs"]
mod empty_tmp;
#[path = "kernel_activate/stage.rs"]
mod stage;

use children::EndChildren;
use empty_tmp::EMPTY_TMP;
use stage::{Python, Running};

/// A user without an account.
const USER: &str = "65533";

type Test = (&'static str, fn(&Python));

/// For 3.14 and later.
const TESTS: &[Test] = &[
    ("they_are_switched_on_and_off", on_and_off),
    ("many_threads_and_signals_are_no_hindrance", many_threads),
    ("a_process_that_is_blocked_is_told_and_left_alone", blocked),
    ("a_process_that_ends_meanwhile_is_told", ends_meanwhile),
    ("whoever_loses_patience_leaves_nothing_behind", interrupted),
    ("a_process_that_is_stopped_is_told", stopped),
    ("what_python_says_against_it_is_told", refused_by_python),
    ("without_rights_it_says_so", without_rights),
    ("a_process_that_does_not_listen_is_told", not_listening),
    ("a_process_that_forbids_scripts_is_told", forbidden),
];
/// For those that can be shown to another user.
const TESTS_ELSEWHERE: &[Test] = &[("a_process_of_another_user_elsewhere", elsewhere)];
/// For those before 3.14.
const TESTS_OF_OLDER: &[Test] = &[(
    "a_version_that_takes_no_requests_is_left_alone",
    no_requests,
)];

fn main() -> ExitCode {
    children::supervised(run_all)
}

fn run_all() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let pythons = Python::all();
    let mut trials = Vec::new();
    for python in &pythons {
        if !python.takes_requests() {
            trials.extend(TESTS_OF_OLDER.iter().map(|test| trial(*test, python)));
            continue;
        }
        trials.extend(TESTS.iter().map(|test| trial(*test, python)));
        let elsewhere = TESTS_ELSEWHERE.iter();
        trials.extend(if python.prefix().is_some() {
            elsewhere.map(|test| trial(*test, python)).collect()
        } else {
            ignored(elsewhere, "this interpreter is in another root anyway")
        });
    }
    if pythons.iter().all(Python::takes_requests) {
        let why = "there is no CPython 3.9 to 3.13 under pyenv";
        trials.extend(ignored(TESTS_OF_OLDER.iter(), why));
    }
    if !pythons.iter().any(Python::takes_requests) {
        let why =
            "there is no CPython 3.14 or newer under pyenv; `cargo xtask test-pythons` brings some";
        trials.extend(ignored(TESTS.iter().chain(TESTS_ELSEWHERE), why));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn ignored<'t>(tests: impl Iterator<Item = &'t Test>, why: &'static str) -> Vec<Trial> {
    let ignored = move || Ok(Completion::ignored_with(why));
    tests
        .map(|(name, _)| Trial::ignorable_test(*name, ignored))
        .collect()
}

fn trial((name, test): Test, python: &Python) -> Trial {
    let python = python.clone();
    let (major, minor, _) = python.version;
    Trial::ignorable_test(format!("cpython_{major}_{minor}::{name}"), move || {
        if !rustix::process::geteuid().is_root() {
            return Ok(Completion::ignored_with("needs root"));
        }
        let _end = EndChildren;
        test(&python);
        Ok(Completion::Completed)
    })
}

fn activate(running: &Running, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pyprof-bpf"));
    command.args(["activate", "--pid", &running.pid()]);
    command.args(more);
    command
}

/// Exit code, standard output and standard error.
fn texts(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code();
    (code, text(output.stdout), text(output.stderr))
}

fn run(running: &Running, more: &[&str]) -> (Option<i32>, String, String) {
    texts(activate(running, more).output().unwrap())
}

fn on_and_off(python: &Python) {
    let mut running = python.start("busy");
    running.expect("off");
    let (code, text, errors) = run(&running, &[]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(text.starts_with("trampolines are on in process"), "{text}");
    assert_eq!(errors, "");
    // Nothing is left in its modules.
    running.expect("on");
    running.assert_unharmed();
    named(&running, "py::leaf:");

    let (code, text, _) = run(&running, &[]);
    assert_eq!(code, Some(0));
    assert!(text.contains("were already on"), "{text}");
    let (code, text, errors) = run(&running, &["--off"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(text.starts_with("trampolines are off in"), "{text}");
    running.expect("off");
    let (_, text, _) = run(&running, &["--off"]);
    assert!(text.contains("were already off"), "{text}");

    let (code, text, errors) = run(&running, &[]);
    if python.crashes_the_second_time() {
        assert_eq!(code, Some(1), "{text}");
        assert!(errors.contains("crashes when"), "{errors}");
    } else {
        assert_eq!(code, Some(0), "{errors}");
        running.expect("on");
    }
    sleep(Duration::from_millis(50));
    running.assert_unharmed();
}

/// A function gets a name in its perf map soon.
fn named(running: &Running, name: &str) {
    for _ in 0..500 {
        if fs::read_to_string(running.map()).is_ok_and(|map| map.contains(name)) {
            return;
        }
        sleep(Duration::from_millis(10));
    }
    panic!("{name} is not in {}", running.map().display());
}

fn many_threads(python: &Python) {
    let mut running = python.start("threads");
    running.expect("off");
    let times = if python.crashes_the_second_time() {
        1
    } else {
        5
    };
    for _ in 0..times {
        let (code, _, errors) = run(&running, &[]);
        assert_eq!(code, Some(0), "{errors}");
        running.expect("on");
        let (code, _, errors) = run(&running, &["--off"]);
        assert_eq!(code, Some(0), "{errors}");
        running.expect("off");
    }
    running.assert_unharmed();
}

fn blocked(python: &Python) {
    let mut running = python.start("blocked");
    let (code, _, errors) = run(&running, &["--timeout", "300ms"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("the request is withdrawn"), "{errors}");
    running.assert_unharmed();
    running.say();
    // It comes back to Python code, and finds nothing to do.
    running.expect("off");
    sleep(Duration::from_millis(200));
    running.assert_unharmed();
    assert!(!running.map().exists());
    let (code, _, errors) = run(&running, &[]);
    assert_eq!(code, Some(0), "{errors}");
    running.expect("on");
}

/// Begins to wait for a process that is blocked.
fn waiting(running: &Running) -> Child {
    let child = beginning(running);
    // It has written its file, and asks now.
    sleep(Duration::from_millis(100));
    child
}

/// Begins to ask a process that is blocked: what it asks is written, and the process may not know of it yet.
fn beginning(running: &Running) -> Child {
    let mut command = activate(running, &["--timeout", "60"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    for _ in 0..30_000 {
        if !running.new_files().is_empty() {
            return child;
        }
        sleep(Duration::from_millis(1));
    }
    let _ = child.kill();
    let (_, _, errors) = texts(child.wait_with_output().unwrap());
    panic!("no file for the process appeared: {errors}");
}

fn ends_meanwhile(python: &Python) {
    // In the middle of being asked, and after that.
    for moment in [0, 1, 3, 10, 100] {
        ends_after(python, Duration::from_millis(moment));
    }
}

fn ends_after(python: &Python, moment: Duration) {
    let mut running = python.start("blocked");
    let waiting = beginning(&running);
    sleep(moment);
    // Its root is gone with it.
    let tmp = fs::File::open(running.root().join("tmp")).unwrap();
    let before = running.files_before.clone();
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    let (code, _, errors) = texts(waiting.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("has ended meanwhile"), "{errors}");
    let tmp = format!("/proc/self/fd/{}", tmp.as_raw_fd());
    let left = fs::read_dir(tmp).unwrap().flatten();
    let left = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let left: Vec<String> = left
        .filter(|name| name.starts_with("pyprof-activate-") && !before.contains(name))
        .collect();
    assert_eq!(left, Vec::<String>::new());
}

fn interrupted(python: &Python) {
    let mut running = python.start("blocked");
    let child = waiting(&running);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let (code, _, errors) = texts(child.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("stopped by a signal"), "{errors}");
    running.assert_unharmed();
    // Killed, it cannot take anything back: what it has asked is done, and the process removes the file.
    let mut child = waiting(&running);
    child.kill().unwrap();
    child.wait().unwrap();
    running.say();
    let said = running.line();
    if said == "off" {
        running.expect("on");
    }
    running.assert_unharmed();
}

fn stopped(python: &Python) {
    let mut running = python.start("busy");
    running.signal(Signal::STOP);
    sleep(Duration::from_millis(50));
    let (code, _, errors) = run(&running, &[]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("kill -CONT"), "{errors}");
    running.signal(Signal::CONT);
    running.expect("off");
    running.assert_unharmed();
}

/// Where its map should be lies a FIFO, which CPython alone would wait for without end.
fn refused_by_python(python: &Python) {
    let mut running = python.start("busy");
    running.expect("off");
    let made = Command::new("mkfifo").arg(running.map()).status();
    assert!(made.unwrap().success());
    let (code, _, errors) = run(&running, &[]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(
        errors.contains("cannot switch trampolines on: "),
        "{errors}"
    );
    assert!(errors.contains("Error: "), "{errors}");
    running.assert_unharmed();
    fs::remove_file(running.map()).unwrap();
    let (code, _, errors) = run(&running, &[]);
    assert_eq!(code, Some(0), "{errors}");
    running.expect("on");
}

/// Another user's, in namespaces of its own, with a `/tmp` that root cannot mean.
fn elsewhere(python: &Python) {
    // The interpreter must be there for others, whose way does not lead through root's home.
    let start = format!(
        "set -e; empty_tmp; mkdir /mnt/py; mount --bind \"$1\" /mnt/py; shift; \
         export LD_LIBRARY_PATH=/mnt/py/lib; \
         exec setpriv --reuid={USER} --regid={USER} --clear-groups /mnt/py/bin/python3 \"$@\""
    );
    let prefix = python.prefix().unwrap();
    let mount = format!("{EMPTY_TMP}mount -t tmpfs none /mnt; {start}");
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &mount,
        "sh",
    ]);
    command.arg(prefix).args(python.command("busy").get_args());
    let mut running = Running::start(&mut command);
    running.expect("off");
    let (code, text, errors) = run(&running, &[]);
    assert_eq!(code, Some(0), "{errors}");
    let map = running.map().display().to_string();
    assert!(
        text.contains(&format!("its perf map: {map}, which is /tmp/")),
        "{text}"
    );
    running.expect("on");
    named(&running, "py::leaf:");
    running.assert_unharmed();
}

fn without_rights(python: &Python) {
    let mut running = python.start("busy");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("pyprof-bpf");
    fs::copy(env!("CARGO_BIN_EXE_pyprof-bpf"), &program).unwrap();
    let public = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), public).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", USER, "--clear-groups", "--bounding-set=-all"])
        .arg(program)
        .args(["activate", "--pid", &running.pid()])
        .output();
    let (code, _, errors) = texts(output.unwrap());
    assert_eq!(code, Some(4), "{errors}");
    assert!(errors.contains("sudo"), "{errors}");
    running.expect("off");
    running.assert_unharmed();
}

fn no_requests(python: &Python) {
    let mut running = python.start("busy");
    let (code, text, errors) = run(&running, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(errors.lines().count() <= 5, "{errors}");
    for word in ["takes no requests", "sudo pyprof-bpf --pid"] {
        assert!(errors.contains(word), "{errors}");
    }
    running.expect("off");
    running.assert_unharmed();
}

fn not_listening(python: &Python) {
    let mut command = python.command("busy");
    command.env("PYTHON_DISABLE_REMOTE_DEBUG", "1");
    let mut running = Running::start(&mut command);
    let (code, _, errors) = run(&running, &[]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("-X disable-remote-debug"), "{errors}");
    assert!(errors.lines().count() <= 5, "{errors}");
    running.expect("off");
    running.assert_unharmed();
}

/// It says so on its own standard error, as it would to `sys.remote_exec`.
fn forbidden(python: &Python) {
    let mut running = python.start("deaf");
    running.expect("off");
    let (code, _, errors) = run(&running, &[]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("an audit hook may forbid that"), "{errors}");
    assert_eq!(running.new_files(), Vec::<String>::new());
    assert!(running.child.try_wait().unwrap().is_none());
}
