//! With which rights the program works, and which it keeps: as root, under sudo, and as a user with capabilities.
//!
//! The target is always the worst one: another user's, in a mount namespace of its own, with its interpreter in a
//! directory that only its owner may enter, deleted since, with a perf map for its owner's eyes only, and set not to dump
//! core, which closes `/proc/PID` to its own user. Its `/tmp` is its own as well: in that of the machine may lie a map that
//! an earlier process with its pid left behind. Needs root; without it every test is ignored and says so.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::PathBuf,
    process::{Child, ChildStdout, Command, ExitCode, Output, Stdio},
    thread::sleep,
    time::Duration,
};

use children::EndChildren;
use empty_tmp::EMPTY_TMP;
use libtest_mimic::{Arguments, Completion, Trial};
use rustix::{
    process::{Pid, Signal, kill_process},
    thread::CapabilitySet,
};

/// A user without an account, and another.
const USER: u32 = 65534;
const OTHER: u32 = 65533;

/// What recording takes at most, where nothing special is asked for.
const USUAL: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHECKPOINT_RESTORE);

/// The same where a limit on locked memory could not be raised, as this process could not raise it.
fn usual() -> CapabilitySet {
    let held = rustix::thread::capabilities(None).unwrap().permitted;
    if held.contains(CapabilitySet::SYS_RESOURCE) {
        USUAL
    } else {
        USUAL | CapabilitySet::IPC_LOCK
    }
}

/// Functions to be found by name, called by one that asks the kernel for something all the time.
const TARGET: &str = "
import ctypes, os, sys
def inner():
    return sum(i * i for i in range(500))
def outer():
    while True:
        inner()
        for _ in range(20):
            os.stat('/')
closed = 'closed' in sys.argv
if closed:
    os.chmod(f'/tmp/perf-{os.getpid()}.map', 0o600)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
print('ready', flush=True)
outer()
";

/// Starts it: $1 is Python's prefix, $2 the user, $3 the program.
const START: &str = "
set -e
empty_tmp
mount -t tmpfs none /mnt
mkdir /mnt/py /mnt/lib
mount --bind \"$1\" /mnt/py
cp \"$1\"/lib/libpython3.?*.so.1.0 /mnt/lib
chown -R \"$2\" /mnt/lib
chmod 700 /mnt/lib
export LD_LIBRARY_PATH=/mnt/lib
exec setpriv --reuid=\"$2\" --regid=\"$2\" --clear-groups $4 /mnt/py/bin/python3 -X perf -c \"$3\" $5
";

#[path = "support/children.rs"]
mod children;
#[path = "kernel_privileges/doctor.rs"]
mod doctor;
#[path = "support/empty_tmp.rs"]
mod empty_tmp;

fn main() -> ExitCode {
    children::supervised(run)
}

fn run() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = vec![
        trial("every_thread_keeps_what_it_needs_only", every_thread),
        trial("names_come_with_the_rights_that_are_kept", names),
        trial("a_command_keeps_the_rights_of_root", command_of_root),
        trial("under_sudo_command_and_file_are_the_callers", under_sudo),
        trial("under_sudo_a_signal_still_reaches_the_command", signals),
        trial("capabilities_are_enough", user_with_capabilities),
        trial("the_same_user_takes_no_ptrace", same_user),
        trial("each_missing_capability_is_named", each_missing),
        trial("less_is_shown_with_fewer_capabilities", degraded),
        trial(
            "root_without_ptrace_still_sees_its_own",
            root_without_ptrace,
        ),
        trial("doctor_finds_root_in_good_health", doctor::of_root),
        trial(
            "doctor_works_without_any_rights",
            doctor::of_a_user_without_rights,
        ),
        trial(
            "doctor_finds_the_faults_of_a_target",
            doctor::of_a_target_with_faults,
        ),
        trial("doctor_knows_its_namespaces", doctor::in_namespaces),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, test: fn(&Python)) -> Trial {
    Trial::ignorable_test(name, move || {
        let why = match (rustix::process::geteuid().is_root(), Python::find()) {
            (false, _) => "needs root",
            (true, None) => "there is no CPython 3.12 or newer with a shared library",
            (true, Some(python)) => {
                let _end = EndChildren;
                test(&python);
                return Ok(Completion::Completed);
            }
        };
        Ok(Completion::ignored_with(why))
    })
}

/// A CPython that can name its functions and has a libpython, by its prefix.
struct Python(PathBuf);

impl Python {
    fn find() -> Option<Self> {
        let listed = env::var_os("PYPROF_TEST_PYTHONS").unwrap_or_default();
        let listed: Vec<PathBuf> = env::split_paths(&listed).collect();
        let pyenv = env::home_dir()?.join(".pyenv/versions");
        let installed = fs::read_dir(pyenv).into_iter().flatten().flatten();
        let installed = installed.map(|version| version.path().join("bin/python3"));
        let code = "import sys; sys.activate_stack_trampoline; print(sys.base_prefix)";
        listed.into_iter().chain(installed).find_map(|python| {
            let output = Command::new(python).args(["-c", code]).output().ok()?;
            let prefix = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
            let libraries = fs::read_dir(prefix.join("lib")).ok()?.flatten();
            let shared = output.status.success()
                && libraries
                    .map(|file| file.file_name().to_string_lossy().into_owned())
                    .any(|name| name.starts_with("libpython3.") && name.ends_with(".so.1.0"));
            shared.then_some(Self(prefix))
        })
    }

    /// One that runs as that user; `setpriv` are more options for its capabilities.
    fn target(&self, user: u32, setpriv: &str, closed: bool) -> Running {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        let script = format!("{EMPTY_TMP}{START}");
        command.args(["sh", "-c", &script, "sh"]).arg(&self.0);
        command.args([&user.to_string(), TARGET, setpriv]);
        let running = Running::start(command.arg(if closed { "closed" } else { "" }));
        if closed {
            // Only whoever may use `map_files` finds it now.
            let library = format!("/proc/{}/root/mnt/lib", running.pid());
            for file in fs::read_dir(library).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
        }
        running
    }
}

/// A process that ends with the test.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    /// Starts it and waits until it says `ready`.
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self { child, output };
        let mut line = String::new();
        running.output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{command:?}");
        running
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory with a copy of the program that every user may run.
fn program() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("pyprof-bpf");
    let copied = Command::new("cp")
        .args([
            env!("CARGO_BIN_EXE_pyprof-bpf").as_ref(),
            program.as_os_str(),
        ])
        .status();
    assert!(copied.unwrap().success());
    (dir, program)
}

/// The program as `setpriv` has it run.
fn with_rights(setpriv: &[&str], words: &[&str]) -> Output {
    let (dir, program) = program();
    let mut command = Command::new("setpriv");
    command.args(setpriv).arg(program).args(words);
    command.current_dir(dir.path()).output().unwrap()
}

/// Options of setpriv for a user with these capabilities and no others.
fn user_with(user: u32, capabilities: &str) -> Vec<String> {
    let sets = [
        format!("--reuid={user}"),
        format!("--regid={user}"),
        "--clear-groups".to_owned(),
        format!("--inh-caps=-all,{capabilities}"),
        format!("--ambient-caps=-all,{capabilities}"),
        format!("--bounding-set=-all,{capabilities}"),
    ];
    sets.to_vec()
}

/// Records a target so, as text; gives the report and the profile.
fn record(setpriv: &[String], target: &Running, more: &[&str]) -> (String, String) {
    let setpriv: Vec<&str> = setpriv.iter().map(String::as_str).collect();
    let pid = target.pid();
    let words = [
        "--pid", &pid, "-d", "1", "-F", "499", "-n", "-f", "folded", "-o", "-",
    ];
    let output = with_rights(&setpriv, &[&words, more].concat());
    let (report, profile) = texts(&output);
    assert!(output.status.success(), "{report}");
    (report, profile)
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stderr), text(&output.stdout))
}

const ALL: &str = "+bpf,+perfmon,+sys_ptrace,+dac_read_search,+syslog,+checkpoint_restore";

/// The capability sets and `NoNewPrivs` of each thread of a process, by its name.
fn threads(pid: u32) -> BTreeMap<String, BTreeMap<String, String>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let read = tasks.filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let thread = task.file_name().to_string_lossy().into_owned();
        Some((format!("{} {thread}", name.trim()), sets(&status)))
    });
    read.collect()
}

fn sets(status: &str) -> BTreeMap<String, String> {
    let lines = status.lines().filter_map(|line| line.split_once(":\t"));
    lines
        .filter(|(name, _)| name.starts_with("Cap") || *name == "NoNewPrivs")
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

fn capabilities(set: &str) -> CapabilitySet {
    CapabilitySet::from_bits_retain(u64::from_str_radix(set, 16).unwrap())
}

/// Waits for something that comes soon, or never.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if is_so() {
            return;
        }
        sleep(Duration::from_millis(20));
    }
    panic!("{what} did not happen within half a minute");
}

/// Records with these options, and looks at the threads meanwhile, when all of them are there.
fn threads_while_recording(words: &[&str]) -> BTreeMap<String, BTreeMap<String, String>> {
    let dir = tempfile::tempdir().unwrap();
    let mut recorder = Command::new(env!("CARGO_BIN_EXE_pyprof-bpf"))
        .args(words)
        .current_dir(dir.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = BTreeMap::new();
    eventually("the start of all threads", || {
        seen = threads(recorder.id());
        ["output", "unwind-tables", "symbols"]
            .iter()
            .all(|wanted| seen.keys().any(|name| name.starts_with(wanted)))
    });
    assert!(recorder.try_wait().unwrap().is_none(), "it still records");
    kill_process(Pid::from_child(&recorder), Signal::INT).unwrap();
    let output = recorder.wait_with_output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    seen
}

fn every_thread(python: &Python) {
    let target = python.target(USER, "", true);
    let pid = target.pid();
    let none = CapabilitySet::empty();
    for (more, kept) in [
        (None, usual()),
        (Some("--kernel"), usual() | CapabilitySet::SYSLOG),
        (Some("--bpf-stats"), usual() | CapabilitySet::SYS_ADMIN),
    ] {
        let words = ["--pid", &pid, "-o", "out.svg"];
        let words: Vec<&str> = words.into_iter().chain(more).collect();
        let seen = threads_while_recording(&words);
        for (name, sets) in &seen {
            let expected = if name.starts_with("output ") {
                none
            } else {
                kept
            };
            assert_eq!(sets["NoNewPrivs"], "1", "{name}: {sets:?}");
            for set in ["CapEff", "CapPrm", "CapBnd"] {
                assert_eq!(capabilities(&sets[set]), expected, "{name} {set}: {sets:?}");
            }
            for set in ["CapInh", "CapAmb"] {
                assert_eq!(capabilities(&sets[set]), none, "{name} {set}: {sets:?}");
            }
        }
    }
}

fn assert_named(report: &str, profile: &str) {
    for name in ["py::outer", "py::inner", "PyEval_EvalCode"] {
        assert!(profile.contains(name), "no {name}: {report}\n{profile}");
    }
}

fn names(python: &Python) {
    let target = python.target(USER, "", true);
    let (report, profile) = record(&["--reuid=0".to_owned()], &target, &["--kernel"]);
    assert_named(&report, &profile);
    let kernel = |line: &str| line.contains("_[k]") && !line.contains("[kernel]");
    assert!(profile.lines().any(kernel), "{report}\n{profile}");
}

fn command_of_root(_: &Python) {
    let of_ours = sets(&fs::read_to_string("/proc/self/status").unwrap());
    let output = Command::new(env!("CARGO_BIN_EXE_pyprof-bpf"))
        .args(["record", "-f", "folded", "-o", "/dev/null", "--"])
        .args(["cat", "/proc/self/status"])
        .output()
        .unwrap();
    let (report, status) = texts(&output);
    assert_eq!(sets(&status), of_ours, "{report}");
}

/// What sudo tells of its caller.
fn sudo() -> [(&'static str, String); 2] {
    [
        ("SUDO_UID", USER.to_string()),
        ("SUDO_GID", USER.to_string()),
    ]
}

/// A home directory that nobody but the caller may enter.
fn home() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    chown(dir.path(), Some(USER), Some(USER)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    dir
}

fn under_sudo(_: &Python) {
    let of_ours = sets(&fs::read_to_string("/proc/self/status").unwrap());
    let (home, roots) = (home(), tempfile::tempdir().unwrap());
    let busy = "cat /proc/self/status; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    // Where the caller may write, and where only root may.
    for dir in [home.path(), roots.path()] {
        let out = dir.join("out.svg");
        let output = Command::new(env!("CARGO_BIN_EXE_pyprof-bpf"))
            .args(["record", "-F", "999", "-o"])
            .arg(&out)
            .args(["--", "sh", "-c", busy])
            .envs(sudo())
            .output()
            .unwrap();
        let (report, status) = texts(&output);
        assert!(output.status.success(), "{report}");
        assert!(
            status.contains("Uid:\t65534\t65534\t65534\t65534"),
            "{status}"
        );
        let command = sets(&status);
        assert_eq!(
            command["NoNewPrivs"], of_ours["NoNewPrivs"],
            "sudo in it works"
        );
        assert_eq!(command["CapBnd"], of_ours["CapBnd"], "sudo in it works");
        let file = fs::metadata(&out).unwrap();
        assert_eq!((file.uid(), file.gid()), (USER, USER));
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
    }
}

fn signals(_: &Python) {
    let home = home();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pyprof-bpf"));
    command
        .args(["record", "-f", "folded", "-o", "/dev/null", "--", "sh"])
        .args(["-c", "trap 'exit 9' TERM; echo ready; while :; do :; done"])
        .envs(sudo())
        .current_dir(home.path());
    let mut recorder = Running::start(&mut command);
    let others = threads(recorder.child.id());
    let worker = others.iter().find(|(name, _)| name.starts_with("tokio"));
    let kept = capabilities(&worker.unwrap().1["CapEff"]);
    assert_eq!(kept, usual() | CapabilitySet::KILL, "and nothing else");
    recorder.signal(Signal::TERM);
    let mut ended = None;
    eventually("the command's end", || {
        ended = recorder.child.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(9));
}

fn user_with_capabilities(python: &Python) {
    let target = python.target(USER, "", true);
    for user in [USER, OTHER] {
        let (report, profile) = record(&user_with(user, ALL), &target, &["--kernel"]);
        assert_named(&report, &profile);
        let kernel = |line: &str| line.contains("_[k]") && !line.contains("[kernel]");
        assert!(profile.lines().any(kernel), "{report}\n{profile}");
    }
}

/// A process that is open to its own user: three capabilities fewer.
fn same_user(python: &Python) {
    let target = python.target(USER, "", false);
    let (report, profile) = record(&user_with(USER, "+bpf,+perfmon"), &target, &[]);
    assert!(profile.contains("py::outer"), "{report}\n{profile}");
}

fn each_missing(python: &Python) {
    let target = python.target(USER, "", true);
    let pid = target.pid();
    for (user, without, named) in [
        (OTHER, "bpf", "CAP_BPF missing"),
        (OTHER, "perfmon", "CAP_PERFMON missing"),
        (OTHER, "sys_ptrace", "CAP_SYS_PTRACE missing"),
        // The same user's, but closed to it.
        (USER, "sys_ptrace", "CAP_SYS_PTRACE"),
    ] {
        let rest = ALL.replace(&format!("+{without}"), "").replace(",,", ",");
        let setpriv = user_with(user, rest.trim_matches(','));
        let setpriv: Vec<&str> = setpriv.iter().map(String::as_str).collect();
        let output = with_rights(&setpriv, &["--pid", &pid, "-d", "1", "-o", "-"]);
        let (report, profile) = texts(&output);
        assert_eq!(output.status.code(), Some(4), "without {without}: {report}");
        assert!(report.contains(named), "without {without}: {report}");
        assert!(
            report.lines().count() <= 5 && profile.is_empty(),
            "{report}"
        );
    }
}

/// What is then not seen, is said.
fn degraded(python: &Python) {
    let target = python.target(USER, "", true);
    let without = |capability: &str, more: &[&str]| {
        let rest = ALL.replace(capability, "").replace(",,", ",");
        record(&user_with(OTHER, rest.trim_matches(',')), &target, more)
    };
    let (report, profile) = without("+dac_read_search", &[]);
    assert!(report.contains("CAP_DAC_READ_SEARCH"), "{report}");
    assert!(!profile.contains("py::outer"), "{profile}");
    let (report, profile) = without("+syslog", &["--kernel"]);
    let hidden = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap() != "0\n";
    assert_eq!(report.contains("CAP_SYSLOG"), hidden, "{report}");
    assert_named(&report, &profile);
    // What is exported has names: the file is read from the process's memory.
    let (report, profile) = without("+checkpoint_restore", &[]);
    assert!(profile.contains("Py_RunMain"), "{profile}");
    assert_named(&report, &profile);
    assert!(report.contains("CAP_CHECKPOINT_RESTORE"), "{report}");
}

/// As in a container that was given little: who has fewer capabilities than a process may not look into it, so they
/// are kept.
fn root_without_ptrace(python: &Python) {
    let target = python.target(
        0,
        "--bounding-set=-sys_ptrace --inh-caps=-sys_ptrace",
        false,
    );
    let dropped = ["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];
    let (report, profile) = record(&dropped.map(str::to_owned), &target, &[]);
    assert_named(&report, &profile);
    let words = ["record", "-n", "-F", "999", "-f", "folded", "-o", "-", "--"];
    let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let output = with_rights(&dropped, &[&words[..], &["sh", "-c", busy]].concat());
    let (report, profile) = texts(&output);
    assert!(output.status.success() && !profile.is_empty(), "{report}");
}
