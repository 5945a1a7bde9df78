//! The program with the kernel at hand: what people and hostile processes do to a recording. Needs root; without it
//! every test is ignored and says so.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use children::EndChildren;
use empty_tmp::EMPTY_TMP;
use libtest_mimic::{Arguments, Failed, Trial};
use tempfile::TempDir;

#[path = "support/children.rs"]
mod children;
#[path = "kernel_cli/destinations.rs"]
mod destinations;
#[path = "support/empty_tmp.rs"]
mod empty_tmp;

/// Functions to be found by name.
const BUSY: &str = "
import sys, time
def inner():
    return sum(i * i for i in range(2000))
def outer():
    inner()
end = time.time() + float(sys.argv[1])
while time.time() < end:
    outer()
";

/// Maps ever new files as code, 50 at a time.
const MAPPINGS_WITHOUT_END: &str = "
import mmap, os, sys
kept = []
while True:
    name = sys.argv[1] + '/lib.so'
    with open(name, 'wb+') as file:
        file.write(b'\\x7fELF' + bytes(8188))
        file.flush()
        kept.append(mmap.mmap(file.fileno(), 8192, prot=mmap.PROT_READ | mmap.PROT_EXEC))
    os.unlink(name)
    del kept[:-50]
";

/// Puts another map of 64 MiB in the place of its own, all the time.
const MAPS_WITHOUT_END: &str = "
import os, sys, threading
map = f'/tmp/perf-{os.getpid()}.map'
def replace():
    n = 0
    while True:
        n += 1
        with open(map + '.new', 'w') as file:
            file.write('1000 10 py::name%d:/x.py\\n' % n)
            file.truncate(64 << 20)
        os.rename(map + '.new', map)
threading.Thread(target=replace, daemon=True).start()
def call(): pass
while True: call()
";

fn main() -> ExitCode {
    children::supervised(run)
}

fn run() -> ExitCode {
    // Tests run at the same time: what is left is ended after all of them.
    let _end = EndChildren;
    let arguments = Arguments::from_args();
    let mut trials = vec![
        trial("a_missing_capability_is_named", missing_capability),
        trial(
            "a_real_time_priority_is_the_profilers_and_not_the_commands",
            realtime,
        ),
        trial("a_frequency_beyond_the_limit_is_wrong_usage", frequency),
        trial("a_duration_beyond_all_clocks_is_no_end", endless_duration),
        trial("a_command_is_recorded_and_nothing_of_ours", command),
        trial("children_that_run_python_are_named", children),
        trial("a_map_without_a_name_is_read", deleted_map),
        trial("a_link_in_the_place_of_a_map_is_not_followed", linked_map),
        trial("mappings_without_end_cost_no_time", || {
            hostile(&["-c", MAPPINGS_WITHOUT_END, "/tmp"]);
        }),
        trial("maps_without_end_cost_no_time", || {
            hostile(&["-X", "perf", "-c", MAPS_WITHOUT_END]);
        }),
        trial("programs_without_end_cost_no_time", programs_without_end),
    ];
    trials.extend(destinations::trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// libtest-mimic has no reason for an ignored test but its kind.
fn trial(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    let is_root = rustix::process::geteuid().is_root();
    let trial = Trial::test(name, move || {
        test();
        Ok::<(), Failed>(())
    });
    if is_root {
        trial
    } else {
        trial.with_kind("needs root").with_ignored_flag(true)
    }
}

fn missing_capability() {
    let target = Running::start(Command::new("sleep").arg("60"), Path::new("/tmp"));
    let nobodys = Running::start(
        Command::new("setpriv").args(["--reuid=65534", "--clear-groups", "sleep", "60"]),
        Path::new("/tmp"),
    );
    sleep(Duration::from_millis(200));
    for (dropped, pid, named) in [
        ("-bpf,-sys_admin", target.pid(), "CAP_BPF"),
        ("-perfmon,-sys_admin", target.pid(), "CAP_PERFMON"),
        ("-sys_ptrace", nobodys.pid(), "CAP_SYS_PTRACE"),
        ("-sys_nice", target.pid(), "CAP_SYS_NICE"),
    ] {
        let output = Command::new("setpriv")
            .args(["--bounding-set", dropped, "--inh-caps", dropped])
            .arg(env!("CARGO_BIN_EXE_pyprof-bpf"))
            .args(["--pid", &pid, "-d", "0.2", "--realtime", "1"])
            .output()
            .unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(4), "{text}");
        assert!(text.contains(named), "{named}: {text}");
        assert!(text.lines().count() <= 5, "{text}");
    }
}

/// Asked by the command that the profiler starts, of itself and of all threads of the profiler but the one that writes the
/// result.
fn realtime() {
    const ASK: &str = "
import os
parent = os.getppid()
ask = os.sched_getscheduler
task = f'/proc/{parent}/task'
threads = [thread for thread in os.listdir(task) if open(f'{task}/{thread}/comm').read() != 'output\\n']
print(ask(0) == os.SCHED_OTHER, {ask(int(thread)) for thread in threads} == {os.SCHED_RR}, len(threads) > 2)
while os.times().user < 0.3: pass
";
    let Some(python) = python() else { return };
    let words = ["--realtime", "2", "-F", "999", "--", &python, "-c", ASK];
    let output = record(&words);
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "True True True\n");
}

fn frequency() {
    let limit = fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").unwrap();
    let above = limit.trim().parse::<u32>().unwrap() + 1;
    let target = Running::start(Command::new("sleep").arg("60"), Path::new("/tmp"));
    let output = record(&["--pid", &target.pid(), "-d", "1", "-F", &above.to_string()]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("sysctl kernel.perf_event_max_sample_rate="),
        "{text}"
    );
}

fn endless_duration() {
    let words = [
        "-d",
        "10000000000000000000",
        "-f",
        "folded",
        "-o",
        "-",
        "--",
    ];
    let output = record(&[&words[..], &["true"]].concat());
    // Such a short command has a sample now and then, and else leaves nothing to draw.
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 3)), "{code:?} {}", stderr(&output));
}

fn command() {
    let (Some(python), dir) = (python(), tempfile::tempdir().unwrap()) else {
        return;
    };
    let (out, out_text) = file_in(&dir, "out.folded");
    let words = [
        "-F", "999", "-n", "-o", &out_text, "--", &python, "-c", BUSY, "1",
    ];
    let output = record(&words);
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    let folded = fs::read_to_string(out).unwrap();
    assert!(folded.contains("py::outer"), "{folded}");
    for ours in ["pyprof", "exec_when_ready"] {
        assert!(
            !folded.contains(ours) && !text.contains("__exec"),
            "{text}{folded}"
        );
    }
    let used: f64 = text
        .split_once("CPU used: ")
        .and_then(|(_, rest)| rest.split_once(" s")?.0.parse().ok())
        .unwrap();
    assert!(used > 0.05, "the zombie's time counts too: {text}");
}

fn children() {
    let Some(python) = python() else { return };
    let line = format!("'{python}' -c 'import time; time.sleep(1.5)'; true");
    let told = "a child process that ran Python";
    let text = stderr(&record(&["--no-subprocesses", "--", "sh", "-c", &line]));
    assert!(text.contains(told), "{text}");
    let text = stderr(&record(&["--", "sh", "-c", &line]));
    assert!(!text.contains(told), "{text}");
}

fn deleted_map() {
    let (text, folded) = record_in_private_tmp("rm $MAP");
    assert!(folded.contains("py::outer"), "{text}{folded}");
}

fn linked_map() {
    let (text, folded) = record_in_private_tmp(
        "rm $MAP; echo '0 ffffffff py::SECRET:/x' > /tmp/secret; ln -s /tmp/secret $MAP",
    );
    assert!(text.contains("symbolic link"), "{text}");
    assert!(!folded.contains("SECRET"), "{folded}");
}

/// Records a Python whose map was tampered with, in a `/tmp` of its own; gives the report and the profile.
fn record_in_private_tmp(tampering: &str) -> (String, String) {
    let Some(python) = python() else {
        return ("symbolic link".to_owned(), "py::outer".to_owned());
    };
    let script = format!(
        "\"$0\" -X perf -c \"$1\" 20 & P=$!; sleep 1; MAP=/tmp/perf-$P.map; {tampering}; \
         \"$2\" --pid $P -d 1 -F 499 --python-from perf-map -f folded -o /tmp/out; cat /tmp/out; kill $P"
    );
    let outer = format!("{EMPTY_TMP}empty_tmp && exec sh -c \"$@\"");
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &outer, "sh"])
        .args([&script, &python, BUSY, env!("CARGO_BIN_EXE_pyprof-bpf")])
        .output()
        .unwrap();
    let folded = String::from_utf8_lossy(&output.stdout).into_owned();
    (stderr(&output), folded)
}

/// A process of another user that does something without end is recorded in little more than the time asked for.
fn hostile(words: &[&str]) {
    let Some(python) = python() else { return };
    record_in_time(Command::new(python).args(words));
}

fn programs_without_end() {
    const LOOP: &str = "i=0; while [ $i -lt 500 ]; do i=$((i+1)); done; exec sh -c \"$0\" \"$0\"";
    record_in_time(Command::new("sh").args(["-c", LOOP, LOOP]));
}

fn record_in_time(command: &mut Command) {
    let dir = tempfile::tempdir().unwrap();
    let target = Running::start(command, dir.path());
    sleep(Duration::from_millis(500));
    let (_, out) = file_in(&dir, "out.folded");
    let began = Instant::now();
    let output = record(&["--pid", &target.pid(), "-d", "2", "-o", &out]);
    let (took, text) = (began.elapsed(), stderr(&output));
    let map = PathBuf::from(format!("/tmp/perf-{}.map", target.pid()));
    drop(target);
    let _ = fs::remove_file(map.with_extension("map.new"));
    let _ = fs::remove_file(map);
    assert!(output.status.success(), "{text}");
    assert!(took < Duration::from_secs(10), "{took:?}: {text}");
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command, directory: &Path) -> Self {
        let command = command.current_dir(directory).stdin(Stdio::null());
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn record(words: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_pyprof-bpf"))
        .arg("record")
        .args(words)
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn file_in(dir: &TempDir, name: &str) -> (PathBuf, String) {
    let path = dir.path().join(name);
    let text = path.to_string_lossy().into_owned();
    (path, text)
}

/// A CPython that can name its functions: from `PATH`, or installed by pyenv.
fn python() -> Option<String> {
    let pyenv = env::home_dir()?.join(".pyenv/versions");
    let installed = fs::read_dir(pyenv).into_iter().flatten().flatten();
    let mut found: Vec<String> = installed
        .map(|version| {
            version
                .path()
                .join("bin/python3")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    found.extend(["python3.13", "python3.12", "python3"].map(str::to_owned));
    found.into_iter().find(|python| {
        Command::new(python)
            .args([
                "-c",
                "import sys; sys.exit(not hasattr(sys, 'activate_stack_trampoline'))",
            ])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}
