//! Targets that are no busy Python.

use std::{
    fs,
    process::{Command, Output, Stdio},
};

use super::{
    Python, Test, Verdict, eventually, note,
    recording::{pyprof, record},
    running::Running,
};

pub(super) const TESTS: &[Test] = &[
    ("every_wrong_target_has_its_own_message", wrong_targets),
    ("a_program_that_is_no_python_may_be_recorded", not_python),
    ("an_idle_target_gives_no_picture", idle),
];

/// What the program says of this pid, and its exit code.
fn refusal(pid: u32) -> String {
    refused(
        &pyprof()
            .args(["-d", "1", "--pid", &pid.to_string()])
            .output()
            .unwrap(),
    )
}

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

fn wrong_targets(python: &Python) -> Verdict {
    // Beyond `kernel.pid_max`, or not; in any case not running.
    let missing = (1..4_194_304)
        .rev()
        .find(|pid| !fs::exists(format!("/proc/{pid}")).unwrap())
        .unwrap();

    let code = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); print('ready', flush=True)";
    let threaded = Running::start(python.plain().args(["-c", code]));
    let tasks = fs::read_dir(format!("/proc/{}/task", threaded.pid())).unwrap();
    let thread = tasks
        .filter_map(|task| task.unwrap().file_name().to_str()?.parse().ok())
        .find(|&task: &u32| task != threaded.pid())
        .unwrap();

    let mut dead = Command::new("true").spawn().unwrap();
    let zombie = dead.id();
    eventually("its end", || {
        fs::read_to_string(format!("/proc/{zombie}/stat"))
            .unwrap()
            .contains(") Z ")
    });

    // The shell becomes the program, which then has the shell's pid.
    let ourselves = Command::new("sh")
        .args([
            "-c",
            "exec \"$0\" -d 1 --pid $$",
            env!("CARGO_BIN_EXE_pyprof-bpf"),
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let mut said = vec![
        (refusal(missing), "there is no process"),
        (refusal(thread), "is a thread of process"),
        (refusal(zombie), "has exited and waits for its parent"),
        (refused(&ourselves), "is pyprof-bpf itself"),
    ];
    dead.wait().unwrap();
    // In a pid namespace of its own, a process does not see the kernel's threads.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        said.push((refusal(2), "is a kernel thread"));
    }
    note(format!("{} kinds", said.len()));
    for (message, own_words) in &said {
        for (_, words) in &said {
            assert_eq!(message.contains(words), words == own_words, "{message}");
        }
    }
    Ok(())
}

fn not_python(_: &Python) -> Verdict {
    let busy = Running::start(Command::new("sh").args(["-c", "echo ready; while :; do :; done"]));
    let recording = record(busy.pid(), &["-F", "999", "-d", "1"]);
    recording.assert_done(10);
    assert!(
        recording.report.contains("no CPython was found in"),
        "{}",
        recording.report
    );

    let asleep = Running::start_silent(Command::new("sleep").arg("600"));
    let recording = record(asleep.pid(), &["-d", "1"]);
    assert_eq!(recording.status.code(), Some(3), "{}", recording.report);
    Ok(())
}

fn idle(python: &Python) -> Verdict {
    let code = "import time; print('ready', flush=True); time.sleep(600)";
    let target = Running::start(python.perf().args(["-c", code]));
    let recording = record(target.pid(), &["-d", "1"]);
    assert_eq!(recording.status.code(), Some(3), "{}", recording.report);
    assert!(!recording.has_file, "there is nothing to draw");
    assert!(
        recording.report.contains("nothing to draw"),
        "{}",
        recording.report
    );
    Ok(())
}
