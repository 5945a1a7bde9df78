//! More processes than tables were made for, and processes that take all the time there is for tables.

use std::collections::BTreeMap;

use super::{
    Python, Test, Verdict, note,
    recording::{Recorder, Recording, Stack, pyprof},
    running::Running,
    script,
};

/// Of the newest Python only: they take their time.
pub(super) const LONG_TESTS: &[Test] = &[
    ("two_hundred_processes_all_have_python_frames", by_pid),
    ("six_hundred_children_all_have_python_frames", followed),
    (
        "a_process_beside_huge_files_is_sampled_and_named",
        huge_files,
    ),
];

/// Samples of each process, and how many of them have this Python function.
fn by_process(recording: &Recording, function: &str) -> BTreeMap<String, (u64, u64)> {
    let mut processes = BTreeMap::new();
    for Stack { frames, count } in &recording.stacks {
        let (all, such) = processes.entry(frames[0].clone()).or_insert((0, 0));
        *all += count;
        let is_it = |frame: &String| frame.starts_with(&format!("py::{function}:"));
        *such += u64::from(frames.iter().any(is_it)) * count;
    }
    processes
}

fn from_interpreters() -> std::process::Command {
    let mut command = pyprof();
    command.env("PYPROF_PYTHON_FROM", "auto");
    command
}

fn by_pid(python: &Python) -> Verdict {
    const PROCESSES: usize = 200;
    let start = |_| {
        let mut command = python.plain();
        Running::start_silent(command.args(["-S", "-E"]).arg(script("fleet")))
    };
    let mut fleet: Vec<Running> = (0..PROCESSES).map(start).collect();
    assert!(fleet.iter_mut().all(|it| it.line() == "ready"));
    let pids: Vec<String> = fleet.iter().map(|it| it.pid().to_string()).collect();
    let mut command = from_interpreters();
    command.args(["--pid", &pids.join(",")]);
    let recording = Recorder::start(command, &["-F", "999", "-d", "6"]).end();
    drop(fleet);
    recording.assert_done(PROCESSES as u64);
    let processes = by_process(&recording, "hot");
    note(format!(
        "{} samples of {} processes",
        recording.samples(),
        processes.len()
    ));
    assert!(
        processes.len() * 10 >= PROCESSES * 9,
        "{}",
        recording.report
    );
    for (name, (all, hot)) in processes {
        assert!(
            hot * 2 >= all,
            "{name}: {hot} of {all}: {}",
            recording.report
        );
    }
    assert!(
        !recording.report.contains("lists of mappings"),
        "{}",
        recording.report
    );
    Ok(())
}

fn followed(python: &Python) -> Verdict {
    const CHILDREN: &str = "600";
    /// Some may not get a sample on a busy machine.
    const SAMPLED: u64 = 513;
    let mut command = python.plain();
    let command = command
        .args(["-S", "-E"])
        .arg(script("fleet"))
        .arg(CHILDREN);
    let mut parent = Running::start(command);
    let mut command = from_interpreters();
    command.args(["--subprocesses", "--pid", &parent.pid().to_string()]);
    let recorder = Recorder::start(command, &["-F", "999", "-d", "12"]);
    parent.say("go");
    assert_eq!(parent.line(), "made");
    let recording = recorder.end();
    drop(parent);
    recording.assert_done(SAMPLED);
    let processes = by_process(&recording, "hot");
    let working = processes.iter().filter(|(_, (_, hot))| *hot > 0);
    let working = working.count();
    note(format!(
        "{} samples of {} processes, {working} at work",
        recording.samples(),
        processes.len()
    ));
    assert!(working * 10 >= processes.len() * 9, "{}", recording.report);
    let named = recording.share(|stack| !stack.python().is_empty());
    assert!(named > 0.9, "{named}: {}", recording.report);
    // Forked children have their parent's list of mappings: one is enough for all of them.
    assert!(
        !recording.report.contains("lists of mappings"),
        "{}",
        recording.report
    );
    Ok(())
}

fn huge_files(python: &Python) -> Verdict {
    let files = super::scratch();
    let mut command = python.plain();
    command.arg(script("huge_unwind_information"));
    let hostile = Running::start(command.arg(files.path()).arg("4"));
    let mut command = python.plain();
    let mut honest = Running::start(command.arg(script("tree")).arg("nursery"));
    let worker = super::trees::new_worker(&mut honest);
    let mut command = from_interpreters();
    command.args(["--pid", &format!("{},{worker}", hostile.pid())]);
    let recording = Recorder::start(command, &["-F", "499", "-d", "3"]).end();
    super::trees::end_workers(&[worker]);
    recording.assert_done(100);
    let processes = by_process(&recording, "burn");
    let count = |pid: u32| {
        let process = processes
            .iter()
            .find(|(name, _)| name.ends_with(&format!("[{pid}]")));
        process.map_or((0, 0), |(_, counts)| *counts)
    };
    let ((of_hostile, _), (of_honest, named)) = (count(hostile.pid()), count(worker));
    note(format!(
        "{of_honest} samples beside {of_hostile}, {named} named"
    ));
    assert!(of_honest * 3 >= of_hostile, "{}", recording.report);
    assert!(named * 10 >= of_honest * 9, "{}", recording.report);
    Ok(())
}
