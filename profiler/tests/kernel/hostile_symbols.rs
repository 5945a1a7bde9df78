//! Symbols and debug information that cost their parser more than it has: a stack without an end, gigabytes, or
//! hours. Beside each of these programs a Python is recorded, whose names must all be there.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use super::{
    Python, Skip, Test, Verdict, note,
    recording::{Recording, begin, pyprof},
    running::{Running, signal},
    scratch, skip, status_field, workload,
};

pub(super) const TESTS: &[Test] = &[
    (
        "calls_nested_without_end_cost_their_own_names_only",
        nested_calls,
    ),
    ("sections_that_expand_without_end_harm_nobody", compressed),
    ("lists_of_ranges_that_many_share_harm_nobody", shared_ranges),
    (
        "tables_of_abbreviations_without_end_harm_nobody",
        abbreviations,
    ),
    ("line_programs_without_end_harm_nobody", line_program),
    (
        "names_that_double_with_each_letter_harm_nobody",
        doubling_name,
    ),
    (
        "symbol_tables_without_end_are_left_out_and_counted",
        huge_table,
    ),
    (
        "many_files_that_cost_much_do_not_keep_others_waiting",
        many_files,
    ),
    ("no_path_that_a_file_names_is_opened", links),
    (
        "symbol_processes_are_no_targets_and_end_with_the_profiler",
        own_processes,
    ),
];

/// User space, all processes together.
const MEMORY_KIB_MAX: u64 = 512 << 10;

/// Where the code of these programs lies.
const TEXT: u64 = 0x40_1000;
const TEXT_BYTES: u64 = 0x1000;

/// A section, by name, with its content; `true`: it says that it is compressed.
type Section = (&'static str, Vec<u8>, bool);

/// A program that spins, with these sections and the symbol `name`.
fn program(folder: &Path, name: &str, sections: &[Section]) -> Result<PathBuf, Skip> {
    let mut source = format!(
        ".text\n.globl main\n.globl {name}\n.type {name},@function\nmain:\n{name}:\n.cfi_startproc\n\
         1: inc %rax\njmp 1b\n.fill 4000, 1, 0x90\n.cfi_endproc\n.size {name},.-{name}\n"
    );
    for (number, (section, content, _)) in sections.iter().enumerate() {
        let file = folder.join(format!("{number}.bin"));
        fs::write(&file, content).unwrap();
        writeln!(
            source,
            ".section {section},\"\",@progbits\n.incbin \"{}\"",
            file.display()
        )
        .unwrap();
    }
    source.push_str(".section .note.GNU-stack,\"\",@progbits\n");
    let (assembler, program) = (folder.join("x.s"), folder.join("program"));
    fs::write(&assembler, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args([
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,-e,main,--section-start=.text=0x401000",
    ])
    .arg("-o")
    .arg(&program)
    .arg(&assembler);
    match cc.output() {
        Ok(done) if done.status.success() => {}
        Ok(done) => panic!("{cc:?}: {}", String::from_utf8_lossy(&done.stderr)),
        Err(error) => return skip(format!("there is no C compiler: {error}")),
    }
    let mut bytes = fs::read(&program).unwrap();
    for (section, _, is_compressed) in sections {
        if *is_compressed {
            let header = header_of(&bytes, section);
            bytes[header + 8..header + 16].copy_from_slice(&0x800_u64.to_le_bytes());
        }
    }
    fs::write(&program, bytes).unwrap();
    Ok(program)
}

/// Where the header of a section is in a file.
fn header_of(bytes: &[u8], name: &str) -> usize {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()) as usize;
    let (table, names) = (number(40), half(62));
    let names = number(table + names * 64 + 24);
    let headers = (0..half(60)).map(|index| table + index * 64);
    let mut called = headers.filter(|&at| {
        let name_at = names + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        bytes[name_at..].starts_with(&[name.as_bytes(), b"\0"].concat())
    });
    called.next().unwrap()
}

/// One unit that covers the code, with a function `deep` whose children are given.
fn unit(children: &[u8]) -> Vec<u8> {
    let range = [TEXT.to_le_bytes(), TEXT_BYTES.to_le_bytes()].concat();
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8, 1];
    unit.extend_from_slice(&range);
    // Its line program is the first.
    unit.extend_from_slice(b"cu\0\0\0\0\0\x02");
    unit.extend_from_slice(&range);
    unit.extend_from_slice(b"deep\0");
    unit.extend_from_slice(children);
    let mut info = (unit.len() as u32).to_le_bytes().to_vec();
    info.extend(unit);
    info
}

fn abbreviations_of_unit() -> Vec<u8> {
    [
        &[
            1, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0x03, 0x08, 0x10, 0x17, 0, 0,
        ][..],
        &[2, 0x2e, 1, 0x11, 0x01, 0x12, 0x07, 0x03, 0x08, 0, 0],
        &[3, 0x1d, 1, 0, 0],
        &[4, 0x2e, 0, 0x55, 0x17, 0, 0],
        &[0],
    ]
    .concat()
}

/// A line program of version 4 with these instructions.
fn line_unit(instructions: &[u8]) -> Vec<u8> {
    let header: &[u8] = &[
        1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, b'x', 0, 0, 0, 0, 0,
    ];
    let mut unit = vec![4, 0];
    unit.extend_from_slice(&(header.len() as u32).to_le_bytes());
    unit.extend_from_slice(header);
    unit.extend_from_slice(instructions);
    let mut line = (unit.len() as u32).to_le_bytes().to_vec();
    line.extend(unit);
    line
}

fn debug(children: &[u8]) -> Vec<Section> {
    vec![
        (".debug_abbrev", abbreviations_of_unit(), false),
        (".debug_info", unit(children), false),
        (".debug_line", line_unit(&[]), false),
    ]
}

/// What came of a recording, and what the profiler needed for it.
struct Outcome {
    recording: Recording,
    honest: u32,
    peak_kib: u64,
    end: Duration,
}

/// Records programs and an honest Python until the profiler gets a signal.
fn beside_honest(python: &Python, programs: &mut [Command]) -> Outcome {
    let honest = Running::start(python.plain().arg(workload("chain")));
    let hostile: Vec<_> = programs.iter_mut().map(Running::start_silent).collect();
    let others: Vec<String> = hostile.iter().map(|it| it.pid().to_string()).collect();
    let mut options = vec!["-F", "499"];
    for pid in &others {
        options.extend(["--pid", pid]);
    }
    let recorder = begin(honest.pid(), &options);
    let profiler = recorder.pid();
    let begun = Instant::now();
    let mut peak_kib = 0;
    let mut told = None;
    // The profiler ends by itself after the signal.
    while status_field(profiler, "VmRSS").is_some() {
        let all = tree(profiler).into_iter();
        let memory = all.filter_map(|pid| status_field(pid, "VmRSS")).sum();
        peak_kib = peak_kib.max(memory);
        if told.is_none() && begun.elapsed() > Duration::from_secs(4) {
            signal(profiler, rustix::process::Signal::INT);
            told = Some(Instant::now());
        }
        assert!(begun.elapsed() < Duration::from_mins(5), "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let end = told.map_or(Duration::ZERO, |told| told.elapsed());
    Outcome {
        recording: recorder.end(),
        honest: honest.pid(),
        peak_kib,
        end,
    }
}

/// A process and all that it started.
fn tree(root: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        Some((pid, status_field(pid, "PPid")? as u32))
    });
    let pids: Vec<_> = pids.collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(
            pids.iter()
                .filter(|(_, its)| *its == parent)
                .map(|(pid, _)| *pid),
        );
        next += 1;
    }
    found
}

impl Outcome {
    /// Of the honest process, all that has a name was named; memory was within bounds.
    fn assert_harmless(self) -> Self {
        let Self {
            recording,
            honest,
            peak_kib,
            end,
        } = &self;
        let root = format!("[{honest}]");
        let (mut named, mut unnamed) = (0, 0);
        for stack in &recording.stacks {
            if !stack
                .frames
                .first()
                .is_some_and(|frame| frame.ends_with(&root))
            {
                continue;
            }
            let native = stack.frames[1..]
                .iter()
                .filter(|frame| !frame.starts_with("py::"));
            for frame in native {
                let is_named = !frame.contains("+0x");
                named += u64::from(is_named) * stack.count;
                unnamed += u64::from(!is_named) * stack.count;
            }
        }
        note(format!(
            "peak {} MiB, {end:.1?} to the end, {named} native frames of the honest process with a name, {unnamed} without",
            peak_kib / 1024
        ));
        assert_eq!(recording.status.code(), Some(0), "{}", recording.report);
        // Code that has no symbol is rare in an interpreter.
        assert!(named > 100 && unnamed * 20 <= named, "{}", recording.report);
        assert!(*peak_kib <= MEMORY_KIB_MAX, "{peak_kib} KiB");
        self
    }

    fn has(&self, function: &str) -> bool {
        self.recording.count(|stack| stack.has(function)) > 0
    }
}

/// One program with these sections.
fn attack(python: &Python, sections: &[Section]) -> Result<Outcome, Skip> {
    attack_as(python, "spins", sections)
}

fn attack_as(python: &Python, name: &str, sections: &[Section]) -> Result<Outcome, Skip> {
    let folder = scratch();
    let program = program(folder.path(), name, sections)?;
    let outcome = beside_honest(python, &mut [Command::new(program)]);
    Ok(outcome.assert_harmless())
}

fn nested_calls(python: &Python) -> Verdict {
    const DEPTH: usize = 200_000;
    let children = [vec![3; DEPTH], vec![0; DEPTH + 3]].concat();
    let outcome = attack(python, &debug(&children))?;
    assert!(outcome.has("spins"), "its symbol is a name all the same");
    Ok(())
}

fn compressed(python: &Python) -> Verdict {
    use std::io::Write as _;
    let zeros = vec![0; 1 << 20];
    let level = flate2::Compression::best();
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), level);
    let mut zstd = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
    for _ in 0..512 {
        zlib.write_all(&zeros).unwrap();
        zstd.write_all(&zeros).unwrap();
    }
    let chunk = |kind: u32, stated: u64, content: Vec<u8>| {
        let mut bytes = [kind.to_le_bytes(), [0; 4]].concat();
        bytes.extend_from_slice(&stated.to_le_bytes());
        bytes.extend_from_slice(&1_u64.to_le_bytes());
        bytes.extend(content);
        bytes
    };
    let (zlib, zstd) = (zlib.finish().unwrap(), zstd.finish().unwrap());
    for strings in [
        chunk(1, 4096, zlib),
        chunk(2, 4096, zstd.clone()),
        chunk(2, 512 << 20, zstd),
    ] {
        let mut sections = debug(&[0, 0, 0]);
        sections.push((".debug_str", strings, true));
        let outcome = attack(python, &sections)?;
        assert!(outcome.has("spins") || outcome.has("deep"));
    }
    Ok(())
}

fn shared_ranges(python: &Python) -> Verdict {
    let range = |at: u64| {
        [
            (TEXT + 2 * at).to_le_bytes(),
            (TEXT + 2 * at + 1).to_le_bytes(),
        ]
        .concat()
    };
    let mut ranges: Vec<u8> = (0..200_000).flat_map(range).collect();
    ranges.extend([0; 16]);
    let functions = [&[0][..], &[4, 0, 0, 0, 0].repeat(200_000), &[0]].concat();
    let mut sections = debug(&functions);
    sections.push((".debug_ranges", ranges, false));
    let outcome = attack(python, &sections)?;
    assert!(outcome.has("spins") || outcome.has("deep"));
    Ok(())
}

fn abbreviations(python: &Python) -> Verdict {
    const ENTRIES: u32 = 60_000;
    let number = |mut value: u32| {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    };
    // Each unit takes the table from another of its entries on.
    let (mut table, mut info) = (Vec::new(), Vec::new());
    for entry in 0..ENTRIES {
        let offset = table.len() as u32;
        table.extend([number(entry + 2), vec![0x24, 0, 0, 0]].concat());
        if entry < 20_000 {
            let die = number(entry + 2);
            info.extend((die.len() as u32 + 7).to_le_bytes());
            info.extend([4, 0]);
            info.extend(offset.to_le_bytes());
            info.push(8);
            info.extend(die);
        }
    }
    table.push(0);
    let sections = [
        (".debug_abbrev", table, false),
        (".debug_info", info, false),
    ];
    let outcome = attack(python, &sections)?;
    assert!(outcome.has("spins"));
    Ok(())
}

fn line_program(python: &Python) -> Verdict {
    // The address of the code, then one row a byte, each a line and an address further.
    let mut instructions = vec![0, 9, 2];
    instructions.extend(TEXT.to_le_bytes());
    instructions.extend(vec![0x21; 6 << 20]);
    let mut sections = debug(&[0, 0, 0]);
    sections[2].1 = line_unit(&instructions);
    let outcome = attack(python, &sections)?;
    assert!(outcome.has("spins") || outcome.has("deep"));
    Ok(())
}

fn doubling_name(python: &Python) -> Verdict {
    let mut cpp = String::from("_Z1f1pI1aS0_E");
    for digit in "123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ".chars() {
        write!(cpp, "S_IS{digit}_S{digit}_E").unwrap();
    }
    let outcome = attack_as(python, &cpp, &[])?;
    let is_cut = |stack: &super::recording::Stack| {
        let mut names = stack.frames.iter();
        names.any(|name| name.starts_with("f(p<a, a>") && name.len() <= 16 << 10)
    };
    assert!(outcome.recording.count(is_cut) > 0);
    Ok(())
}

fn huge_table(python: &Python) -> Verdict {
    let folder = scratch();
    let program = program(folder.path(), "spins", &[])?;
    let mut bytes = fs::read(&program).unwrap();
    let header = header_of(&bytes, ".symtab");
    let (at, size) = ((bytes.len() as u64).next_multiple_of(4096), 180_u64 << 20);
    bytes[header + 24..header + 32].copy_from_slice(&at.to_le_bytes());
    bytes[header + 32..header + 40].copy_from_slice(&size.to_le_bytes());
    fs::write(&program, bytes).unwrap();
    // Nothing but zeros, which take no room on the disk.
    let file = fs::File::options().write(true).open(&program).unwrap();
    file.set_len(at + size).unwrap();
    drop(file);
    let outcome = beside_honest(python, &mut [Command::new(program)]).assert_harmless();
    let report = &outcome.recording.report;
    assert!(
        report.contains("in files whose symbols take too much"),
        "{report}"
    );
    Ok(())
}

fn many_files(python: &Python) -> Verdict {
    const DEPTH: usize = 100_000;
    const PROGRAMS: usize = 12;
    let folder = scratch();
    let children = [vec![3; DEPTH], vec![0; DEPTH + 3]].concat();
    let original = program(folder.path(), "spins", &debug(&children))?;
    let mut programs: Vec<_> = (0..PROGRAMS)
        .map(|number| {
            let copy = folder.path().join(format!("program{number}"));
            fs::copy(&original, &copy).unwrap();
            Command::new(copy)
        })
        .collect();
    beside_honest(python, &mut programs).assert_harmless();
    Ok(())
}

/// Every kind of link, as what it is and as a section that is copied.
fn links(_: &Python) -> Verdict {
    if Command::new("strace").arg("-V").output().is_err() {
        return skip("there is no strace");
    }
    let folder = scratch();
    let secret = folder.path().join("named-by-a-file");
    fs::write(&secret, "secret").unwrap();
    let path = secret.to_str().unwrap();
    let text = |before: &[u8], after: &[u8]| [before, path.as_bytes(), b"\0", after].concat();
    let mut sections = debug(&[0, 0, 0]);
    sections.extend([
        (".debug_sup", text(&[5, 0, 0], &[1, 7]), false),
        // The linker would leave it out under its own name.
        (".gnu_debugLINK", text(&[], &[0; 8]), false),
        (".gnu_debugaltlink", text(&[], &[7; 20]), false),
        (".debug_str", text(&[], &[]), false),
        (".debug_info.dwo", text(&[], &[]), false),
    ]);
    let plain = program(folder.path(), "spins", &sections)?;
    let mut bytes = fs::read(&plain).unwrap();
    let mut windows = bytes.windows(14);
    let name = windows.position(|name| name == b".gnu_debugLINK").unwrap();
    bytes[name + 10..name + 14].copy_from_slice(b"link");
    fs::write(&plain, bytes).unwrap();
    let mut programs = vec![plain.clone()];
    // The same, with headers that claim to be a symbol table, names of symbols, or a list of libraries.
    for kind in [2_u32, 3, 6, 11] {
        let mut bytes = fs::read(&plain).unwrap();
        for section in [".debug_sup", ".gnu_debuglink", ".gnu_debugaltlink"] {
            let header = header_of(&bytes, section);
            bytes[header + 4..header + 8].copy_from_slice(&kind.to_le_bytes());
        }
        let disguised = folder.path().join(format!("disguised{kind}"));
        fs::copy(&plain, &disguised).unwrap();
        fs::write(&disguised, bytes).unwrap();
        programs.push(disguised);
    }
    let running: Vec<_> = programs
        .iter()
        .map(|program| Running::start_silent(&mut Command::new(program)))
        .collect();
    let log = folder.path().join("log");
    let recorded = pyprof();
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-e", "trace=%file,execve", "-o"])
        .arg(&log)
        .arg(recorded.get_program())
        .args(["-d", "2", "-f", "folded", "-o"])
        .arg(folder.path().join("x.folded"));
    for target in &running {
        strace.args(["--pid", &target.pid().to_string()]);
    }
    let output = strace.output().unwrap();
    let report = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{report}");
    let calls = fs::read_to_string(&log).unwrap();
    let named: Vec<_> = calls
        .lines()
        .filter(|line| line.contains("named-by-a-file"))
        .collect();
    assert!(named.is_empty(), "{named:?}");
    // What was opened of the programs was opened as what is mapped.
    assert!(
        calls.contains("/map_files/") || calls.contains("program"),
        "nothing was seen"
    );
    note(format!("{} calls with a path", calls.lines().count()));
    Ok(())
}

fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

fn own_processes(python: &Python) -> Verdict {
    let honest = Running::start(python.plain().arg(workload("chain")));
    let recorder = begin(honest.pid(), &["-F", "499"]);
    let profiler = recorder.pid();
    super::eventually("its symbol process runs", || tree(profiler).len() >= 3);
    let all = tree(profiler);
    for pid in &all[1..] {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let has = |line: &str| status.lines().any(|it| it.starts_with(line));
        assert!(
            has("NoNewPrivs:\t1") && has("CapPrm:\t0000000000000000"),
            "{status}"
        );
        assert!(has("Uid:\t65534"), "{status}");
    }
    // Ctrl-C in a terminal is for the group of the profiler.
    signal(profiler, rustix::process::Signal::INT);
    let recording = recorder.end();
    recording.assert_done(1);
    super::eventually("they have ended", || !all.iter().any(|pid| is_alive(*pid)));
    // Killed, it takes them with it.
    let recorder = begin(honest.pid(), &["-F", "499"]);
    let profiler = recorder.pid();
    super::eventually("its symbol process runs", || tree(profiler).len() >= 3);
    let all = tree(profiler);
    signal(profiler, rustix::process::Signal::KILL);
    drop(recorder);
    super::eventually("they have ended", || {
        !all[1..].iter().any(|pid| is_alive(*pid))
    });
    Ok(())
}
