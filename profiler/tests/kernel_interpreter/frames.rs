//! Every kind of call, under every interpreter.

use std::{fs, path::PathBuf, process::Command, thread, time::Duration};

use object::{Object as _, ObjectSymbol as _};

use super::{
    Python, Test, Verdict,
    judge::{Codes, Tally, without_their_c_code},
    note,
    observed::{Program, WITH_LINES, assert_right, judged},
    recording::{Recorder, Recording, WHOLE, record},
    running::Running,
    scratch, script, skip, status_field,
};

pub(super) const TESTS: &[Test] = &[
    ("programs_are_as_they_say", as_they_say),
    ("every_frame_has_its_name_and_line", frames),
];

/// Of those that have trampolines of their own.
pub(super) const TESTS_WITH_TRAMPOLINES: &[Test] = &[
    ("trampolines_show_the_same_frames", cross_check),
    ("frames_are_whole_in_machine_code_of_the_jit", jit),
];

const OPTIONS: [&str; 4] = ["-F", "999", "-d", "3"];
const ENOUGH: u64 = 100;

/// A program is asked what its stacks are, by means of the interpreter's own. Were it not as it says, nothing would follow
/// from what others find.
fn as_they_say(python: &Python) -> Verdict {
    for name in ["frames", "calls", "callbacks", "fresh"] {
        let files = scratch();
        let file = files.path().join("codes");
        let mut command = python.plain();
        command.arg(script(name)).args(["--fold", "500", "--codes"]);
        let output = command.arg(&file).output().unwrap();
        // What it does before it runs is in the library that it shares with others.
        let codes = Codes::read(&file);
        let codes = (name == "frames").then_some(&codes);
        let mut tally = Tally::default();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            let frames: Vec<String> = stack.split(';').map(str::to_owned).collect();
            tally.add(&frames, count.parse().unwrap(), codes);
        }
        tally.assert_none_wrong();
        assert!(tally.right >= 500, "{name}: {}", tally.text());
    }
    Ok(())
}

fn frames(python: &Python) -> Verdict {
    let program = Program::start(python, "frames");
    let recorder = program.begin(&OPTIONS);
    assert_only_reads(&recorder, program.pid());
    let recording = recorder.end();
    recording.assert_none_lost();
    assert_program(&program, &recording);
    assert_c_code(&program, &recording);
    Ok(())
}

/// Judges a recording of `frames.py`.
fn assert_program(program: &Program, recording: &Recording) {
    let tally = judged(recording, Some(&program.codes), ENOUGH);
    assert_right(&tally, WHOLE, recording);
    let leaves = program.codes.leaves();
    assert!(leaves.len() >= 15, "{leaves:?}");
    tally.assert_seen(leaves.iter().map(String::as_str));
    // The main loop ran long before, and so did the threads.
    let has = |stack: &super::recording::Stack, function: &str| {
        let mut frames = stack.frames.iter();
        frames.any(|frame| frame.contains(function))
    };
    let main = recording.count(|stack| has(stack, "<module> (frames.py") && has(stack, "_main ("));
    let threads = recording.count(|stack| has(stack, "T_thread ("));
    assert!(main > 0 && threads > 0, "{main}, {threads}");
}

/// While it records, the process is not traced, and nothing of it is open for writing.
fn assert_only_reads(recorder: &Recorder, pid: u32) {
    for _ in 0..50 {
        assert_eq!(writable_of_processes(recorder.pid()), Vec::<PathBuf>::new());
        assert_eq!(status_field(pid, "TracerPid"), Some(0));
        thread::sleep(Duration::from_millis(50));
    }
}

/// What this process has open for writing of others: their memory, say.
fn writable_of_processes(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let all = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let opened = fs::read_link(&path).ok()?;
        let number = path.file_name()?.to_str()?;
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = u32::from_str_radix(flags.trim(), 8).ok()?;
        let is_writable = flags & 3 != 0; // O_ACCMODE; O_RDONLY is 0
        (is_writable && opened.starts_with("/proc")).then_some(opened)
    });
    all.collect()
}

/// C code that calls back stands where it is, if it has names.
fn assert_c_code(program: &Program, recording: &Recording) {
    if !names_its_c_code(program.pid()) {
        note("this build has no names for its own C code");
        return;
    }
    let (mut all, mut missing, mut examples) = (0, 0, Vec::new());
    for stack in recording.whole() {
        let (callbacks, without) = without_their_c_code(&stack.frames);
        all += callbacks * stack.count;
        missing += without.len() as u64 * stack.count;
        examples.extend(without);
    }
    note(format!("{missing} of {all} callbacks without their C code"));
    // A native part that was cut short is told in the report.
    let allowed = (1.0 - WHOLE) * recording.samples() as f64;
    assert!(all > 0 && missing as f64 <= allowed, "{examples:#?}");
}

/// Has the interpreter of this process a symbol for a function that it exports to nobody?
fn names_its_c_code(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut files: Vec<&str> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|path| path.contains("python3") && !path.contains("/lib-dynload/"))
        .collect();
    files.dedup();
    files.iter().any(|path| {
        let Ok(bytes) = fs::read(format!("/proc/{pid}/root{path}")) else {
            return false;
        };
        let Ok(elf) = object::File::parse(&*bytes) else {
            return false;
        };
        elf.symbols()
            .any(|symbol| symbol.name().is_ok_and(|name| name == "list_sort"))
    })
}

/// Both ways of reading at once. At a call and at a return, one of them may be an instruction ahead of the other.
fn cross_check(python: &Python) -> Verdict {
    let mut command = python.perf();
    command.arg(script("frames")).arg("--without-objects");
    let target = Running::start(&mut command);
    let options = ["-F", "999", "-d", "3", "--cross-check"];
    let recording = record(target.pid(), &[&options[..], &WITH_LINES].concat());
    recording.assert_done(ENOUGH);
    let line = recording
        .report
        .lines()
        .find(|line| line.starts_with("cross-check: "))
        .unwrap_or_else(|| panic!("nothing is said of it: {}", recording.report));
    note(line);
    let mut percents = line.match_indices(" %").map(|(at, _)| {
        let number = line[..at].rsplit(' ').next().unwrap();
        number.parse::<f64>().unwrap()
    });
    let (agree, at_a_call) = (percents.next().unwrap(), percents.next().unwrap());
    // Both are rounded to a tenth.
    assert!(agree + at_a_call > 99.85, "{}", recording.report);
    Ok(())
}

/// Nothing describes that code to whoever walks native stacks; the interpreter knows where it is all the same.
fn jit(python: &Python) -> Verdict {
    if !python.can("hasattr(__import__('sys'), '_jit') and __import__('sys')._jit.is_available()") {
        return skip("this build has no JIT");
    }
    let mut command: Command = python.plain();
    let program = Program::start_as(command.env("PYTHON_JIT", "1"), "frames");
    let recording = program.record(&OPTIONS);
    assert_program(&program, &recording);
    Ok(())
}
