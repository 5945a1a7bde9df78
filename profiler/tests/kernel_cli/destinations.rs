//! Where the result goes, and what happens where it cannot go there.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use libtest_mimic::Trial;
use rustix::{
    fs::{CWD, FileType, Mode},
    process::{Pid, Signal, kill_process},
};

use super::{BUSY, Running, python, stderr, trial};

/// Longer than a profiler may take to notice a signal, on a machine that does other things, too.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("a_descriptor_is_written_to_where_it_stands", descriptors),
        trial("standard_output_that_is_closed_is_an_error", closed_stdout),
        trial("without_proc_the_cause_is_named", without_proc),
        trial("pids_are_taken_as_pgrep_prints_them", pids),
        trial("sigterm_ends_a_profiler_that_writes", || {
            ended_while_it_writes(&[Signal::TERM], 143, "SIGTERM");
        }),
        trial("sighup_ends_a_profiler_that_writes", || {
            ended_while_it_writes(&[Signal::HUP], 129, "SIGHUP");
        }),
        trial("ctrl_c_gives_up_waiting_for_a_reader", || {
            ended_while_it_writes(
                &[Signal::INT],
                130,
                "waiting for a reader of fifo; Ctrl-C gives up",
            );
        }),
    ]
}

/// A Python that works for a minute, and a directory.
fn busy() -> Option<(Running, tempfile::TempDir)> {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(python()?);
    let target = Running::start(command.args(["-c", BUSY, "60"]), directory.path());
    sleep(Duration::from_millis(500));
    Some((target, directory))
}

/// A shell that runs this script, in which `"$@"` is the program with these words.
fn in_shell(script: &str, words: &[&str], directory: &Path) -> Output {
    Command::new("sh")
        .args([
            "-c",
            script,
            "sh",
            env!("CARGO_BIN_EXE_pyprof-bpf"),
            "record",
        ])
        .args(words)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The samples in folded stacks.
fn samples(folded: &str) -> u64 {
    let counts = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1);
    counts.map(|count| count.parse::<u64>().unwrap()).sum()
}

fn descriptors() {
    let Some((target, directory)) = busy() else {
        return;
    };
    let pid = target.pid();
    for (script, path) in [
        ("echo 'before 1' > out; exec \"$@\" >> out", "/dev/stdout"),
        (
            "echo 'before 1' > out; exec \"$@\" >> out",
            "/proc/self/fd/1",
        ),
        ("echo 'before 1' > out; exec \"$@\" 3>> out", "/dev/fd/3"),
        ("echo 'before 1' > out; \"$@\" | cat >> out", "/dev/stdout"),
        // What the report says goes the same way.
        (
            "echo 'before 1' > out; exec \"$@\" -q 2>> out",
            "/dev/stderr",
        ),
    ] {
        let words = [
            "--pid", &pid, "-F", "199", "-d", "1", "-f", "folded", "-o", path,
        ];
        let output = in_shell(script, &words, directory.path());
        let text = fs::read_to_string(directory.path().join("out")).unwrap();
        assert!(
            output.status.success(),
            "{script} {path}: {}",
            stderr(&output)
        );
        assert!(text.starts_with("before 1\n"), "{script} {path}: {text}");
        assert!(samples(&text) > 1, "{script} {path}: {text}");
    }
}

fn closed_stdout() {
    let Some((target, directory)) = busy() else {
        return;
    };
    let words = ["--pid", &target.pid(), "-d", "1", "-f", "folded", "-o", "-"];
    let output = in_shell("exec \"$@\" >&-", &words, directory.path());
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("standard output is closed"), "{text}");
    // Where the result goes elsewhere, nobody needs it.
    let words = [
        "--pid",
        &target.pid(),
        "-F",
        "199",
        "-d",
        "1",
        "-o",
        "out.folded",
    ];
    let output = in_shell("exec \"$@\" <&- >&- 2>&-", &words, directory.path());
    assert_eq!(output.status.code(), Some(0));
    let text = fs::read_to_string(directory.path().join("out.folded")).unwrap();
    assert!(samples(&text) > 0, "{text}");
}

fn without_proc() {
    let directory = tempfile::tempdir().unwrap();
    let script = "exec unshare --mount sh -c 'umount -l /proc && exec \"$@\"' sh \"$@\"";
    let output = in_shell(script, &["--pid", "1", "-d", "1"], directory.path());
    let text = stderr(&output);
    if text.contains("unshare") || text.contains("umount") {
        return; // not allowed here
    }
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("mount -t proc proc /proc"), "{text}");
    assert!(!text.contains("CAP_"), "{text}");
}

fn pids() {
    let Some((target, directory)) = busy() else {
        return;
    };
    let pids = format!("{0}\n{0}\n", target.pid());
    let words = [
        "--pid", &pids, "-F", "199", "-d", "1", "-f", "folded", "-o", "-",
    ];
    let output = in_shell("exec \"$@\"", &words, directory.path());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(samples(&text) > 0 && !text.starts_with('['), "{text}");
}

/// One that has taken its samples, and waits for somebody to read a FIFO.
fn ended_while_it_writes(signals: &[Signal], code: i32, said: &str) {
    let Some((target, directory)) = busy() else {
        return;
    };
    let fifo = directory.path().join("fifo");
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
    let mut profiler = Command::new(env!("CARGO_BIN_EXE_pyprof-bpf"));
    profiler
        .args([
            "--pid",
            &target.pid(),
            "-F",
            "199",
            "-d",
            "1",
            "-f",
            "folded",
        ])
        .args(["-o", "fifo", "-o", "file.folded"])
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let mut profiler = profiler.spawn().unwrap();
    let pid = Pid::from_child(&profiler);
    // It writes once the events it samples with have come and gone.
    for is_sampling in [true, false] {
        let began = Instant::now();
        while has_events(pid) != is_sampling {
            assert!(began.elapsed() < 3 * PATIENCE, "sampling: {is_sampling}");
            sleep(Duration::from_millis(20));
        }
    }
    sleep(Duration::from_secs(2));
    let began = Instant::now();
    for signal in signals {
        kill_process(pid, *signal).unwrap();
        sleep(Duration::from_millis(200));
    }
    while profiler.try_wait().unwrap().is_none() {
        if began.elapsed() > PATIENCE {
            profiler.kill().unwrap();
        }
        sleep(Duration::from_millis(20));
    }
    let output = profiler.wait_with_output().unwrap();
    let text = stderr(&output);
    assert!(began.elapsed() < PATIENCE, "{:?}: {text}", began.elapsed());
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(said), "{text}");
    let left = fs::read_dir(directory.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["fifo"], "{text}");
}

fn has_events(pid: Pid) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()));
    let mut links = descriptors
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    links.any(|link| link.to_string_lossy().contains("perf_event"))
}
