//! Ends from outside, at any moment: of the profiler, which leaves nothing behind, and of what it has just begun to
//! look at.

use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    Python, Test, Verdict, busy, eventually, note,
    recording::{Recorder, pyprof, record},
    running::{Running, signal},
    scratch, skip,
    stops::assert_gone,
};

pub(super) const TESTS: &[Test] = &[
    ("a_killed_profiler_leaves_nothing", killed),
    (
        "a_profiler_killed_while_it_writes_leaves_whole_files_only",
        killed_writing,
    ),
    (
        "an_end_of_the_profiler_at_its_start_leaves_no_command",
        ended_launching,
    ),
    ("a_command_killed_before_it_begins_is_told", command_killed),
    (
        "a_signal_at_any_moment_of_the_start_has_a_clear_end",
        signalled_early,
    ),
    (
        "a_signal_that_comes_while_its_handler_is_installed_is_not_lost",
        signalled_while_caught,
    ),
    ("a_target_killed_while_it_is_opened_is_told", target_killed),
];

/// Moments of a start that are tried.
const MOMENTS: u32 = 24;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// How long it takes from its start until it samples, and a little more.
fn time_to_start(target: u32) -> Duration {
    let began = Instant::now();
    let mut command = pyprof();
    command.args(["--pid", &target.to_string()]);
    let recorder = Recorder::start(command, &[]);
    let took = began.elapsed();
    signal(recorder.pid(), Signal::INT);
    drop(recorder.output());
    took + Duration::from_millis(50)
}

/// Moments that are spread over a span.
fn moments(span: Duration) -> impl Iterator<Item = Duration> {
    (0..MOMENTS).map(move |n| span * n / MOMENTS)
}

fn killed(python: &Python) -> Verdict {
    let target = busy(python);
    let files = scratch();
    let mut command = pyprof();
    command
        .args(["--pid", &target.pid().to_string(), "-F", "999"])
        .env("TMPDIR", files.path());
    let file = files.path().join("profile.folded");
    let recorder = Recorder::start_into(command, &file, &[]);
    sleep(Duration::from_millis(300));
    let (programs, maps) = (recorder.bpf_ids("prog_id:"), recorder.bpf_ids("map_id:"));
    assert!(!programs.is_empty() && !maps.is_empty());
    signal(recorder.pid(), Signal::KILL);
    assert_eq!(recorder.output().status.signal(), Some(9));
    assert_gone(&programs, &maps);
    assert!(names(files.path()).is_empty());
    // The target never notices, nor does the next one.
    record(target.pid(), &["-F", "999", "-d", "1"])
        .assert_done(20)
        .assert_whole(super::recording::WHOLE);
    Ok(())
}

fn killed_writing(python: &Python) -> Verdict {
    let target = busy(python);
    let mut unfinished = 0;
    for moment in moments(Duration::from_millis(60)) {
        let files = scratch();
        let mut command = pyprof();
        command
            .args(["--pid", &target.pid().to_string(), "-F", "999", "--output"])
            .arg(files.path().join("profile.svg"));
        let file = files.path().join("profile.folded");
        let recorder = Recorder::start_into(command, &file, &[]);
        sleep(Duration::from_millis(100));
        signal(recorder.pid(), Signal::INT);
        sleep(moment);
        // It may have ended by now, and is waited for below.
        signal(recorder.pid(), Signal::KILL);
        let output = recorder.output();
        let there = names(files.path());
        match there.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] | ["profile.svg"] => unfinished += 1,
            ["profile.folded", "profile.svg"] => {
                let text = fs::read_to_string(&file).unwrap();
                assert!(text.ends_with('\n'), "{text}");
            }
            _ => panic!("{there:?}: {output:?}"),
        }
        if there.contains(&"profile.svg".to_owned()) {
            let picture = fs::read_to_string(files.path().join("profile.svg")).unwrap();
            assert!(picture.ends_with("</svg>"));
        }
    }
    note(format!("{unfinished} of {MOMENTS} came before the end"));
    assert!(
        unfinished > 0,
        "every kill came too late: this shows nothing"
    );
    Ok(())
}

/// The command is started by a process that waits for the profiler, and must not wait for ever.
fn ended_launching(python: &Python) -> Verdict {
    let span = time_to_start(busy(python).pid());
    for sent in [Signal::KILL, Signal::TERM, Signal::INT] {
        for moment in moments(span) {
            let files = scratch();
            let mark = files.path().join("mark").to_str().unwrap().to_owned();
            let child = launching(files.path(), &mark).spawn().unwrap();
            sleep(moment);
            signal(child.id(), sent);
            let output = ended(child);
            let said = assert_clear(&output);
            match output.status.code() {
                None => assert_eq!(output.status.signal(), Some(sent.as_raw()), "{said}"),
                // When the command had ended, Ctrl-C ends what is left to do.
                Some(130) => assert!(sent == Signal::INT && said.contains("Ctrl-C"), "{said}"),
                // The command's own end, by what was passed on to it, or ours.
                Some(code) => assert!([0, 3, 128 + 15].contains(&code), "{code}: {said}"),
            }
            eventually("the end of what it started", || called(&mark).is_none());
            let there = names(files.path());
            assert!(there.is_empty() || there == ["profile.folded"], "{there:?}");
        }
    }
    Ok(())
}

/// The profiler, with a command that takes a moment, and is known by its last word.
fn launching(folder: &Path, mark: &str) -> Command {
    let mut command = pyprof();
    command
        .args(["record", "-d", "1", "--output"])
        .arg(folder.join("profile.folded"))
        .args(["--", "sh", "-c", "sleep 0.05; :", mark])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

fn command_killed(python: &Python) -> Verdict {
    let span = time_to_start(busy(python).pid());
    let mut killed = 0;
    for moment in moments(span) {
        let files = scratch();
        let mark = files.path().join("mark").to_str().unwrap().to_owned();
        let child = launching(files.path(), &mark).spawn().unwrap();
        sleep(moment);
        // The profiler has the word in its command line, too.
        if let Some(pid) = called_but(&mark, child.id()) {
            // It may be gone by now.
            let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
        }
        let output = ended(child);
        let said = assert_clear(&output);
        match output.status.code() {
            Some(0 | 3) => {}
            Some(137) => killed += 1,
            // Before it could be looked at.
            Some(1) if said.contains("has exited") => killed += 1,
            code => panic!("{code:?}: {said}"),
        }
        assert!(said.lines().count() <= 8, "{said}");
    }
    note(format!("{killed} of {MOMENTS} were killed"));
    assert!(killed > 0, "every kill came too late: this shows nothing");
    Ok(())
}

/// A process with this word in its command line.
fn called(word: &str) -> Option<u32> {
    called_but(word, 0)
}

/// The same, other than one.
fn called_but(word: &str, other: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .filter(|&pid: &u32| pid != other)
        .find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|&byte| byte == 0)
                .any(|it| it == word.as_bytes())
        })
}

/// Waits for an end that must come soon.
fn ended(mut child: Child) -> Output {
    eventually("the end of the profiler", || {
        child.try_wait().unwrap().is_some()
    });
    child.wait_with_output().unwrap()
}

/// What it says is short, and no accident.
fn assert_clear(output: &Output) -> String {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(!said.contains("panic") && !said.contains("bug"), "{said}");
    said
}

/// A recording of a process into a file, what it says kept.
fn recording(target: &Running, file: &Path) -> Command {
    let mut command = pyprof();
    command
        .args(["-F", "999", "--pid", &target.pid().to_string(), "--output"])
        .arg(file)
        .stderr(Stdio::piped());
    command
}

fn signalled_early(python: &Python) -> Verdict {
    let target = busy(python);
    let span = time_to_start(target.pid());
    let mut ends = [0; 3];
    for sent in [Signal::INT, Signal::TERM] {
        for moment in moments(span) {
            let files = scratch();
            let file = files.path().join("profile.folded");
            let child = recording(&target, &file).spawn().unwrap();
            sleep(moment);
            signal(child.id(), sent);
            let output = ended(child);
            let said = assert_clear(&output);
            match output.status.code() {
                // Before it caught signals: as any program ends then.
                None => {
                    assert_eq!(output.status.signal(), Some(sent.as_raw()));
                    assert!(!file.exists() && said.is_empty(), "{said}");
                    ends[0] += 1;
                }
                // Before there was a sample.
                Some(3) => {
                    assert!(said.contains("nothing to draw") && !file.exists(), "{said}");
                    ends[1] += 1;
                }
                Some(0) => {
                    assert!(said.contains("wrote ") && file.exists(), "{said}");
                    ends[2] += 1;
                }
                code => panic!("{code:?}: {said}"),
            }
            let expected = usize::from(file.exists());
            assert_eq!(names(files.path()).len(), expected);
        }
    }
    let [by_signal, empty, recorded] = ends;
    note(format!(
        "{by_signal} ended by the signal, {empty} without samples, {recorded} with some"
    ));
    Ok(())
}

/// strace holds up each installation of a handler just after the kernel has it; then the signal is sent.
fn signalled_while_caught(python: &Python) -> Verdict {
    let target = busy(python);
    for sent in [Signal::INT, Signal::TERM] {
        let files = scratch();
        let file = files.path().join("profile.folded");
        let mut command = Command::new("strace");
        command
            .args(["-D", "-qq", "-o", "/dev/null", "-e", "trace=rt_sigaction"])
            .args(["-e", "inject=rt_sigaction:delay_exit=500000"])
            .arg(env!("CARGO_BIN_EXE_pyprof-bpf"))
            .args(["--pid", &target.pid().to_string(), "--output"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return skip(format!("cannot start strace: {error}")),
        };
        let bit = 1 << (sent.as_raw() - 1);
        let caught = || mask_of(child.id(), "SigCgt") & bit != 0;
        let begun = Instant::now();
        while !caught() && begun.elapsed() < Duration::from_secs(30) {
            sleep(Duration::from_millis(1));
        }
        if !caught() {
            let _ = child.kill();
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return skip(format!("strace may not trace here: {}", said.trim()));
        }
        signal(child.id(), sent);
        let output = ended(child);
        let said = assert_clear(&output);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("nothing to draw"), "{said}");
    }
    Ok(())
}

/// A mask of signals in `/proc/PID/status`.
fn mask_of(pid: u32, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn target_killed(python: &Python) -> Verdict {
    let span = time_to_start(busy(python).pid());
    let mut ends = [0; 3];
    for (n, moment) in moments(span).enumerate() {
        let target = if n % 3 == 0 {
            busy(python)
        } else {
            let shell = &mut Command::new("sh");
            Running::start_silent(shell.args(["-c", "while :; do :; done"]))
        };
        let files = scratch();
        let file = files.path().join("profile.folded");
        let child = recording(&target, &file).spawn().unwrap();
        sleep(moment);
        signal(target.pid(), Signal::KILL);
        // Its parent takes note of its end at once or not so soon.
        let target = (n % 2 == 0).then_some(target);
        let output = ended(child);
        drop(target);
        let said = assert_clear(&output);
        match output.status.code() {
            Some(0) => {
                assert!(
                    file.exists() && said.contains("until the target exited"),
                    "{said}"
                );
                ends[0] += 1;
            }
            Some(3) => {
                assert!(!file.exists() && said.contains("nothing to draw"), "{said}");
                ends[1] += 1;
            }
            Some(1) => {
                let known = ["there is no process", "has exited"];
                assert!(known.iter().any(|words| said.contains(words)), "{said}");
                assert!(said.lines().count() <= 5 && !file.exists(), "{said}");
                ends[2] += 1;
            }
            code => panic!("{code:?}: {said}"),
        }
    }
    let [recorded, empty, told] = ends;
    note(format!(
        "{recorded} with samples, {empty} without, {told} gone before"
    ));
    Ok(())
}
