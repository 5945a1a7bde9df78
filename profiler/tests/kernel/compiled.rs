//! Compiled code of all kinds: stacks through it are whole, and its Python callers stand below it.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    Python, Skip, Test, Verdict, note,
    recording::{Recording, WHOLE, record},
    running::Running,
    scratch, script, skip, workload,
};

pub(super) const TESTS: &[Test] = &[
    ("code_without_frame_pointers_is_unwound", library),
    ("a_library_without_a_file_is_unwound", nameless_library),
    ("a_program_at_fixed_addresses_is_unwound", fixed_program),
    (
        "an_interpreter_without_section_headers_is_unwound",
        stripped,
    ),
    ("an_interpreter_whose_file_was_deleted_is_unwound", deleted),
    ("extensions_are_shown_with_all_they_call", extension),
];

/// Our shared object is such code, and stands in every stack.
pub(super) const TESTS_WITH_OUR_TRAMPOLINES: &[Test] =
    &[("code_without_frame_pointers_is_unwound", library)];

const OFTEN: [&str; 4] = ["-F", "1999", "-d", "3"];
const ENOUGH: u64 = 500;
/// `scripts/compiled.py` and `c/frames.c` agree on these.
const KINDS: [&str; 7] = [
    "plt",
    "alloca",
    "large_frame",
    "aligned",
    "realigned",
    "noreturn",
    "sigaltstack",
];

/// Has the C compiler make `output` from `source`, without frame pointers.
pub(super) fn compile(source: &str, options: &[&str], output: &Path) -> Result<(), Skip> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/kernel/c")
        .join(source);
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-fomit-frame-pointer", "-fcf-protection=none"])
        .args(options)
        .arg("-o")
        .arg(output)
        .arg(source);
    match cc.output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => panic!("{cc:?}: {}", String::from_utf8_lossy(&done.stderr)),
        Err(error) => skip(format!("there is no C compiler: {error}")),
    }
}

fn assert_unwound(recording: &Recording) {
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    for kind in KINDS {
        let (run, call) = (format!("run_{kind}"), format!("call_{kind}"));
        let samples = recording.count(|stack| stack.has(&run));
        assert!(samples > 0, "no {run} in\n{}", recording.report);
        let stands =
            |stack: &super::recording::Stack| stack.python().ends_with(&["<module>", &call]);
        let lost = recording
            .whole()
            .find(|stack| stack.has(&run) && !stands(stack));
        assert!(lost.is_none(), "{run} does not stand on {call}: {lost:?}");
    }
    let in_handler =
        |stack: &super::recording::Stack| stack.has("handler") && stack.has("call_sigaltstack");
    assert!(
        recording.count(in_handler) > 0,
        "the handler stands on what it interrupted"
    );
    let after_call =
        |stack: &super::recording::Stack| stack.has("spin_and_leave") && stack.has("never_returns");
    assert!(
        recording.count(after_call) > 0,
        "a call at a function's end is charged to that function"
    );
}

fn run_library(python: &Python, ways: &[&str]) -> Verdict {
    let files = scratch();
    let library = files.path().join("libframes.so");
    compile("frames.c", &["-shared", "-fPIC"], &library)?;
    let target = Running::start(
        python
            .perf()
            .arg(script("compiled"))
            .arg(&library)
            .args(ways),
    );
    assert_unwound(&record(target.pid(), &OFTEN));
    Ok(())
}

fn library(python: &Python) -> Verdict {
    run_library(python, &[])
}

fn nameless_library(python: &Python) -> Verdict {
    run_library(python, &["memfd"])
}

fn fixed_program(_: &Python) -> Verdict {
    let files = scratch();
    let program = files.path().join("fixed");
    compile("program.c", &["-no-pie"], &program)?;
    let target = Running::start(&mut Command::new(&program));
    let recording = record(target.pid(), &OFTEN);
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    let chain = recording.count(|stack| {
        let names: Vec<&str> = stack.frames.iter().map(String::as_str).collect();
        names
            .windows(4)
            .any(|window| window == ["main", "outer", "middle", "inner"])
    });
    assert!(
        chain as f64 > 0.99 * recording.samples() as f64,
        "{chain} of {}",
        recording.samples()
    );
    assert!(
        recording.report.contains("no CPython was found in"),
        "{}",
        recording.report
    );
    Ok(())
}

/// A copy of the file that holds the interpreter, and the command line that uses it.
pub(super) struct Copied {
    pub(super) python: Python,
    pub(super) file: PathBuf,
    /// It is a library, which takes the place of the original when it is loaded first.
    pub(super) preload: bool,
    pub(super) home: String,
}

impl Copied {
    pub(super) fn new(python: &Python, folder: &Path) -> Self {
        let ask = "import sys; print(sys.base_prefix); print(open('/proc/self/maps').read())";
        let output = python.plain().args(["-c", ask]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let home = text.lines().next().unwrap().to_owned();
        let is_library =
            |path: &&str| path.contains("/libpython3.") && !path.ends_with("/libpython3.so");
        let library = text
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5))
            .find(is_library);
        let original =
            library.map_or_else(|| fs::canonicalize(&python.path).unwrap(), PathBuf::from);
        let file = folder.join(original.file_name().unwrap());
        fs::copy(&original, &file).unwrap();
        let path = if library.is_some() {
            python.path.clone()
        } else {
            file.clone()
        };
        Self {
            python: Python {
                path,
                ..python.clone()
            },
            file,
            preload: library.is_some(),
            home,
        }
    }

    /// Starts the call chain with it.
    fn start(&self) -> Running {
        let mut command = self.python.perf();
        command.arg(workload("chain")).env("PYTHONHOME", &self.home);
        if self.preload {
            command.env("LD_PRELOAD", &self.file);
        }
        let running = Running::start(&mut command);
        let maps = fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
        assert!(
            maps.contains(self.file.to_str().unwrap()),
            "the copy is what runs"
        );
        running
    }
}

fn assert_chain(recording: &Recording) {
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    let chain = recording.share(|stack| stack.python() == ["<module>", "baz", "bar", "foo"]);
    note(format!("{:.2} % are the call chain", 100.0 * chain));
    assert!(chain >= WHOLE, "{}", recording.report);
}

/// The unwinder must find its way by program headers alone.
fn stripped(python: &Python) -> Verdict {
    let files = scratch();
    let copied = Copied::new(python, files.path());
    let file = fs::File::options().write(true).open(&copied.file).unwrap();
    // e_shoff, then e_shnum and e_shstrndx (Elf64_Ehdr)
    file.write_all_at(&[0; 8], 40).unwrap();
    file.write_all_at(&[0; 4], 60).unwrap();
    drop(file);
    assert_chain(&record(copied.start().pid(), &OFTEN));
    Ok(())
}

/// As after an upgrade: the file that runs has no name any more.
fn deleted(python: &Python) -> Verdict {
    let files = scratch();
    let copied = Copied::new(python, files.path());
    let target = copied.start();
    fs::remove_file(&copied.file).unwrap();
    assert_chain(&record(target.pid(), &OFTEN));
    Ok(())
}

/// The default view, on a stripped library that works on Python objects.
fn extension(python: &Python) -> Verdict {
    let files = scratch();
    let library = files.path().join("libextension.so");
    compile("extension.c", &["-shared", "-fPIC", "-s"], &library)?;
    let mut command = python.perf();
    let target = Running::start(command.arg(script("extension")).arg(&library));
    let options = ["-F", "1999", "-d", "3", "--view", "python"];
    let recording = record(target.pid(), &options);
    recording.assert_done(ENOUGH);

    let after = |stack: &super::recording::Stack, name: &str| -> Vec<String> {
        let is_it = |frame: &String| frame.starts_with(&format!("py::{name}:"));
        let at = stack.frames.iter().position(is_it);
        at.map_or_else(Vec::new, |at| stack.frames[at + 1..].to_vec())
    };
    let is_fill = |frame: &&String| frame.starts_with("libextension.so+0x");
    let mut starts = std::collections::BTreeSet::new();
    let (mut called, mut in_hot, mut called_back, mut through) = (0, 0, 0, 0);
    for stack in recording.whole() {
        let inner = after(stack, "calls_hot");
        if !inner.is_empty() {
            called += stack.count;
            in_hot += u64::from(inner.iter().any(|frame| frame == "hot")) * stack.count;
            starts.extend(inner.iter().filter(is_fill).cloned());
        }
        let inner = after(stack, "calls_with_callback");
        if let Some(at) = inner.iter().position(|it| it.starts_with("py::callback:")) {
            called_back += stack.count;
            let is_there = inner[..at].iter().any(|frame| frame == "with_callback");
            through += u64::from(is_there) * stack.count;
            assert_eq!(inner.len(), at + 1, "a loop calls nothing: {stack:?}");
        }
    }
    note(format!(
        "{in_hot} of {called} in `hot`, {through} of {called_back} through `with_callback`"
    ));
    assert!(called > 100 && called_back > 100, "{}", recording.report);
    assert!(
        in_hot as f64 >= 0.98 * called as f64,
        "{in_hot} of {called}"
    );
    assert_eq!(through, called_back);
    assert_eq!(starts.len(), 1, "one function, one name: {starts:?}");
    Ok(())
}
