//! An interpreter whose evaluation loop nobody recognises, as another compiler or a fork of CPython may make it.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use super::{
    Python, Test, Verdict, note,
    observed::{Program, judged},
    scratch, skip,
};

pub(super) const TESTS: &[Test] = &[(
    "native_and_python_frames_are_both_kept_where_the_loop_is_not_recognised",
    both_kept,
)];

const NAME: &[u8] = b"_PyEval_EvalFrameDefault\0";
/// Another name with the same hash (33 · 'D' + 'e' = 33 · 'E' + 'D'; `_dl_new_hash`, elf/dl-new-hash.h, glibc 2.36), so that
/// a library that calls it through its own symbol table still finds it.
const OTHER: &[u8] = b"_PyEval_EvalFrameEDfault\0";
const ENOUGH: u64 = 100;
/// A sample of 3.11 and 3.12 may fall between two stores, and only a loop that is known tells its caller then.
const MOST: f64 = 0.97;

fn both_kept(python: &Python) -> Verdict {
    let Some(library) = library_of(python) else {
        return skip("this interpreter is no shared library");
    };
    let files = scratch();
    let copy = files.path().join(library.file_name().unwrap());
    fs::write(&copy, renamed(&fs::read(&library).unwrap())).unwrap();
    let mut command = python.plain();
    // It has the name under which the program wants the other one.
    command.env("LD_PRELOAD", &copy);
    let program = Program::start_as(&mut command, "frames");
    assert!(maps(program.pid(), &copy), "another library is in use");

    let options = |view| ["-F", "999", "-d", "2", "--view", view];
    let recording = program.record(&options("python"));
    let tally = judged(&recording, Some(&program.codes), ENOUGH);
    assert!(
        tally.right as f64 >= MOST * tally.all() as f64,
        "{}\n{}",
        tally.text(),
        recording.report
    );
    let recording = program.record(&options("native"));
    recording.assert_done(ENOUGH);
    let (empty, whole) = (
        recording.share(|stack| stack.has("[no frames]")),
        recording.share(|stack| stack.frames.len() > 4),
    );
    assert!(empty == 0.0 && whole >= MOST, "{:#?}", recording.stacks);
    let recording = program.record(&options("mixed"));
    recording.assert_done(ENOUGH);
    let mut marked = 0;
    for stack in &recording.stacks {
        let is_python = |frame: &String| frame.contains(".py:");
        let Some(mark) = stack
            .frames
            .iter()
            .position(|frame| frame == "[order unknown]")
        else {
            continue;
        };
        marked += stack.count;
        // Native frames stand before the mark, Python frames in one block behind it, then what the innermost called.
        let (before, behind) = stack.frames.split_at(mark);
        let block = behind[1..].iter().take_while(|frame| is_python(frame));
        let rest = &behind[1 + block.count()..];
        assert!(
            !before.iter().chain(rest).any(is_python),
            "{:?}",
            stack.frames
        );
    }
    let said = format!("{marked} of {} of unknown order", recording.samples());
    assert!(
        marked as f64 >= MOST * recording.samples() as f64,
        "{said}: {:#?}",
        recording.stacks
    );
    note(said);
    assert!(
        recording.report.contains("but not their order"),
        "{}",
        recording.report
    );
    Ok(())
}

/// The library that has the interpreter, if it is one.
fn library_of(python: &Python) -> Option<PathBuf> {
    let mut command = python.plain();
    command.args(["-c", "print(open('/proc/self/maps').read())"]);
    let output = command.output().ok()?;
    let maps = String::from_utf8(output.stdout).ok()?;
    let mut paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let path = paths.find(|path| path.contains("/libpython3"))?;
    Some(path.into())
}

fn maps(pid: u32, file: &Path) -> bool {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap();
    let path: &OsStr = file.as_ref();
    let path = path.as_encoded_bytes();
    maps.windows(path.len()).any(|window| window == path)
}

/// The same file, in which the loop has another name.
fn renamed(library: &[u8]) -> Vec<u8> {
    let mut bytes = library.to_vec();
    let mut at = 0;
    while let Some(found) = bytes[at..]
        .windows(NAME.len())
        .position(|window| window == NAME)
    {
        bytes[at + found..at + found + NAME.len()].copy_from_slice(OTHER);
        at += found + NAME.len();
    }
    assert!(at > 0, "the loop has no name");
    bytes
}
