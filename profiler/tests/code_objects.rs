//! What is read of code objects, against what each interpreter says of them itself: lines against `co_lines()`, and up to
//! 3.9 `dis.findlinestarts`; names and lines out of the memory of live processes.
//!
//! Interpreters come from `PYPROF_TEST_PYTHONS` and `PYPROF_TEST_OLD_PYTHONS` (lists like PATH), from PATH and from pyenv.
#![expect(
    clippy::print_stderr,
    reason = "says what was checked, and what was skipped and why"
)]

use std::{
    fs::File,
    io::{BufRead, BufReader, Write as _},
    os::unix::fs::FileExt as _,
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use pyprof_bpf::process::interpreter::{
    Code, CodeLayout, CodeMiss, LineMap, LineTableKind, ReadMemory, identity_at, read_code,
};

use pythons::Python;

#[path = "code_objects/layouts.rs"]
mod layouts;
#[path = "code_objects/pythons.rs"]
mod pythons;

const LINES: &str = include_str!("code_objects/lines.py");
const LIVE: &str = include_str!("code_objects/live.py");
/// Files of each standard library in a test of bounded time.
const FILES: u32 = 150;

/// What was compared.
#[derive(Debug, Default)]
struct Counts {
    code_objects: usize,
    units: usize,
    without_line: usize,
}

/// The interpreters there are; says which there are not.
fn pythons() -> Vec<Python> {
    let (pythons, skipped) = pythons::find();
    for reason in skipped {
        eprintln!("skipped: {reason}");
    }
    pythons
}

fn kind_of(minor: u32) -> LineTableKind {
    layouts::of(minor, false, 0).lines
}

/// The instruction of a code unit, as frames of that version have it.
fn instruction(kind: LineTableKind, unit: usize) -> i32 {
    let unit = i32::try_from(unit).expect("a real function");
    match kind {
        LineTableKind::Ranges => unit,
        LineTableKind::Lnotab | LineTableKind::Locations => 2 * unit,
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a digit") as u8;
    let pairs = hex.as_bytes().chunks_exact(2);
    pairs
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

fn text_of(hex: &str) -> String {
    String::from_utf8(bytes_of(hex)).expect("the script encodes it")
}

fn line_of(word: &str) -> Option<u32> {
    (word != "-").then(|| word.parse().expect("a line"))
}

/// Compares one line of what `lines.py` prints.
fn compare(printed: &str, kind: LineTableKind, counts: &mut Counts) {
    let mut words = printed.split(' ');
    let mut word = || words.next().expect("the script prints it");
    let first_line = word().parse().expect("a number");
    let table = bytes_of(word().trim_matches('-'));
    let units = word().parse::<usize>().expect("a number") / 2;
    let runs = words.map(|run| run.split_once(':').expect("a run"));
    let mut runs = runs
        .map(|(begin, line)| (begin.parse::<usize>().expect("a number"), line_of(line)))
        .peekable();
    let map = LineMap::decode(kind, first_line, &table);
    let mut expected = None;
    for unit in 0..units {
        while let Some((_, line)) = runs.next_if(|(begin, _)| *begin <= 2 * unit) {
            expected = line;
        }
        let found = map.line_at(instruction(kind, unit));
        assert_eq!(found, expected, "unit {unit} of {printed}");
        counts.without_line += usize::from(found.is_none());
    }
    assert_eq!(map.line_at(-1), None);
    counts.code_objects += 1;
    counts.units += units;
}

fn compare_library(python: &Python, files: u32) -> Counts {
    let mut child = python
        .script(LINES)
        .arg(files.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it ran before");
    let output = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut counts = Counts::default();
    for printed in output.lines() {
        let printed = printed.expect("readable");
        compare(&printed, kind_of(python.minor), &mut counts);
    }
    assert!(child.wait().expect("it is ours").success());
    counts
}

fn compare_libraries(files: u32, code_objects_min: usize) {
    for python in pythons() {
        let counts = compare_library(&python, files);
        eprintln!("{}: {counts:?}", python.label());
        assert!(counts.code_objects >= code_objects_min);
    }
}

#[test]
fn every_instruction_of_some_files_has_the_line_that_the_interpreter_finds() {
    compare_libraries(FILES, 1000);
}

#[test]
#[ignore = "takes minutes"]
fn every_instruction_of_the_standard_library_has_the_line_that_the_interpreter_finds() {
    compare_libraries(0, 5000);
}

/// A process that waits.
struct Live {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    memory: File,
    layout: CodeLayout,
}

impl ReadMemory for Live {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        self.memory.read_exact_at(into, at).is_ok()
    }
}

impl Live {
    /// Returns when the interpreter has told its version: the file is of the program that was run last by then.
    fn start(python: &Python) -> Self {
        let mut command = python.script(LIVE);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it ran before");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self {
            layout: layout_of(&line_from(&mut output)),
            input: child.stdin.take().expect("it is piped"),
            output,
            memory: File::open(format!("/proc/{}/mem", child.id())).expect("it is our child"),
            child,
        }
    }

    fn go_on(&mut self) {
        self.input.write_all(b"\n").expect("it waits for it");
    }

    /// What the kernel side would send with a sample.
    fn identity(&self, at: u64) -> u32 {
        identity_at(self, &self.layout, at).expect("it is there")
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the process says of a code object.
struct Said {
    at: u64,
    goes: bool,
    name: String,
    file: String,
    first_line: u32,
    lines: Vec<Option<u32>>,
    identity: u32,
}

impl Said {
    /// Of its own words, and of the memory for the identity.
    fn parse(printed: &str, live: &Live) -> Self {
        let words: Vec<&str> = printed.split('\t').collect();
        let [at, goes, name, file, first_line, lines] = words[..] else {
            panic!("not a code object: {printed}");
        };
        let at = address_of(at);
        Self {
            at,
            goes: goes == "1",
            name: cut(&text_of(name), 2048),
            file: cut(&text_of(file), 4096),
            first_line: first_line.parse().expect("a number"),
            lines: lines.split(',').map(line_of).collect(),
            identity: live.identity(at),
        }
    }

    fn read(&self, live: &Live) -> Result<Code, CodeMiss> {
        read_code(live, &live.layout, self.at, self.identity)
    }

    fn check(&self, live: &Live) {
        let code = self.read(live);
        let code = code.unwrap_or_else(|miss| panic!("{miss:?}: {}", self.name));
        let (read, said) = (code.name.len(), self.name.len());
        assert!(*code.name == self.name, "{read} bytes for {said}");
        assert_eq!(*code.file, self.file, "{}", self.name);
        assert_eq!(code.first_line, self.first_line, "{}", self.name);
        for (unit, line) in self.lines.iter().enumerate() {
            let line = line.filter(|&line| line > 0).unwrap_or(self.first_line);
            let found = code.line_at(instruction(live.layout.lines, unit));
            assert_eq!(found, line, "unit {unit} of {}", self.name);
        }
        assert!(!code.is_internal());
    }
}

fn address_of(hex: &str) -> u64 {
    let digits = hex.strip_prefix("0x").expect("hexadecimal");
    u64::from_str_radix(digits, 16).expect("an address")
}

/// The beginning of a text of more than `chars_max` characters, or of 4 KiB, with a mark for the rest.
fn cut(text: &str, chars_max: usize) -> String {
    const BYTES_MAX: usize = 4096;
    let kept: String = text.chars().take(chars_max).collect();
    if kept.len() > BYTES_MAX {
        let end = kept.floor_char_boundary(BYTES_MAX - '…'.len_utf8());
        return format!("{}…", &kept[..end]);
    }
    if kept.len() == text.len() {
        return kept;
    }
    text.chars().take(chars_max - 1).chain(['…']).collect()
}

fn line_from(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("it prints text");
    line.truncate(line.trim_end_matches('\n').len());
    line
}

fn layout_of(printed: &str) -> CodeLayout {
    let words: Vec<&str> = printed.split('\t').collect();
    let [minor, free_threaded, code_type] = words[..] else {
        panic!("not about the interpreter: {printed}");
    };
    let minor = minor.parse().expect("a number");
    layouts::of(minor, free_threaded == "1", address_of(code_type))
}

/// All code objects that a process tells of.
fn told(live: &mut Live) -> Vec<Said> {
    let mut all = Vec::new();
    loop {
        match line_from(&mut live.output).as_str() {
            "ready" => return all,
            printed => all.push(Said::parse(printed, live)),
        }
    }
}

#[test]
fn code_objects_of_live_processes_say_what_the_interpreter_says() {
    for python in pythons() {
        let mut live = Live::start(&python);
        let all = told(&mut live);
        for said in &all {
            said.check(&live);
        }
        eprintln!("{}: {} code objects", python.label(), all.len());
        assert!(all.len() > 1000);
    }
}

#[test]
fn freed_code_objects_are_missed_and_never_mistaken() {
    for python in pythons() {
        let mut live = Live::start(&python);
        let all = told(&mut live);
        live.go_on();
        assert_eq!(line_from(&mut live.output), "freed");
        let (mut replaced, mut gone) = (0, 0);
        for said in &all {
            if !said.goes {
                said.check(&live);
                continue;
            }
            match said.read(&live) {
                Err(CodeMiss::Replaced) => replaced += 1,
                Err(CodeMiss::Gone) => gone += 1,
                other => panic!("{}: {}: {other:?}", python.label(), said.name),
            }
        }
        eprintln!("{}: {replaced} replaced, {gone} gone", python.label());
        assert_eq!(replaced + gone, 500);
        live.go_on();
    }
}
