#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::*;
use crate::process::{
    CodeCopy, FileIdentity, Target, inspect,
    interpreter::{
        Memory,
        debug_offsets::tests::{PYTHON_3_13, PYTHON_3_14, PYTHON_3_15, offsets},
        fake_process::{CODE_TYPE, FakeMemory, RUNTIME, THREAD, process},
        threads,
    },
    python::tests::{Running, interpreters},
    read_executable_mappings,
};

const SLEEPS: &str = "import time\nprint(flush=True)\ntime.sleep(60)";

/// Two threads with generators and C callbacks, and coroutines on the main thread: frames change all the time.
const BUSY: &str = "
import asyncio, threading
def spin(depth):
    return depth and spin(depth - 1)
def generate():
    while True:
        yield spin(5)
def run():
    for _ in generate():
        sorted([3, 1, 2], key=lambda number: spin(3) or number)
async def leaf():
    spin(10)
    await asyncio.sleep(0)
async def main():
    print(flush=True)
    while True:
        await asyncio.gather(leaf(), leaf())
for _ in range(2):
    threading.Thread(target=run, daemon=True).start()
asyncio.run(main())
";

/// Those of this machine that are to be known, if their memory may be read.
fn known_interpreters() -> Vec<(std::path::PathBuf, (u8, u8))> {
    let mut all = interpreters();
    all.retain(|(_, version)| *version >= (3, 8));
    let sleeping = Command::new("sleep")
        .arg("60")
        .stdout(Stdio::null())
        .spawn();
    let mut sleeping = sleeping.expect("sleep starts");
    let memory = Memory::open(Pid(sleeping.id()));
    let ended = sleeping.kill().and_then(|()| sleeping.wait());
    ended.expect("sleep ends");
    if all.is_empty() || memory.is_err() {
        eprintln!("skipped: no python3.8 or later here whose memory can be read");
        all.clear();
    }
    all
}

fn start(path: &Path, code: &str) -> Option<(Running, Target, Memory, Vec<Mapping>, PythonInfo)> {
    let running = Running::run(path, code, &[], &[])?;
    let (target, mappings, info) = running.look_into();
    let memory = Memory::open(target.pid).expect("its memory");
    Some((running, target, memory, mappings, info))
}

#[test]
fn every_interpreter_here_is_known_whatever_it_does() {
    for (path, version) in known_interpreters() {
        for code in [SLEEPS, BUSY] {
            let Some((_running, target, memory, mappings, info)) = start(&path, code) else {
                continue;
            };
            let mut times = Vec::new();
            for _ in 0..50 {
                let begun = Instant::now();
                let examined = examine(target.pid, &memory, &mappings, &info);
                times.push(begun.elapsed());
                let Examined::Known(interpreter) = examined else {
                    panic!("{}: {examined:?}", path.display());
                };
                assert_eq!(Version(interpreter.version).minor(), version);
                let count = if code == BUSY { 3 } else { 1 };
                let threads = threads(&interpreter, &memory);
                assert_eq!(threads.len(), count, "{}", path.display());
            }
            let first = times[0];
            times.sort();
            eprintln!(
                "{} {version:?}: {first:?} the first time, then {:?}, at most {:?}",
                path.display(),
                times[25],
                times[48]
            );
        }
    }
}

#[test]
fn while_it_starts_an_interpreter_is_not_known_yet_but_never_refused() {
    for (path, _) in known_interpreters() {
        let mut command = Command::new(&path);
        command.args(["-c", SLEEPS]).stdout(Stdio::piped());
        let running = Running(command.spawn().expect("starts"));
        let begun = Instant::now();
        let mut seen = Vec::new();
        loop {
            assert!(begun.elapsed() < Duration::from_secs(30), "{seen:?}");
            let pid = Pid(running.0.id());
            let Ok(target) = Target::check(pid) else {
                continue;
            };
            let mappings = read_executable_mappings(pid).unwrap_or_default();
            let info = inspect(&target, &mappings.mappings);
            let Ok(memory) = Memory::open(pid) else {
                continue;
            };
            let examined = examine(pid, &memory, &mappings.mappings, &info);
            let is_known = matches!(examined, Examined::Known(_));
            assert!(
                !matches!(examined, Examined::Refused(_)),
                "{}: {examined:?}",
                path.display()
            );
            if seen.last() != Some(&examined) {
                seen.push(examined);
            }
            if is_known {
                break;
            }
        }
    }
}

/// Layouts of every version, as if the process that `runtime` is of were one of it.
fn layouts(memory: &dyn ReadMemory, runtime: &Runtime) -> Vec<((u8, u8), Option<Interpreter>)> {
    let code_type = runtime.code_type.expect("exported");
    let tables = (8..=12).map(|minor| {
        let layout = built_in(minor, runtime.runtime, code_type, 0);
        ((3, minor), layout)
    });
    let offsets = DebugOffsets::read(memory, runtime.runtime).expect("readable");
    let rows = ROWS.iter().map(|row| {
        let layout = offsets.layout(row, runtime.runtime, code_type);
        (row.version, layout.ok())
    });
    tables.chain(rows).collect()
}

#[test]
fn the_layout_of_another_version_is_refused() {
    for (path, version) in known_interpreters() {
        let Some((_running, target, memory, mappings, info)) = start(&path, SLEEPS) else {
            continue;
        };
        let runtimes = locate(target.pid, &mappings, &info).expect("located");
        let layouts = layouts(&memory, &runtimes[0]);
        let own = layouts.iter().find(|(other, _)| *other == version);
        let own = own.and_then(|(_, layout)| layout.as_ref());
        for (other, layout) in &layouts {
            let Some(layout) = layout else {
                assert!(
                    *other >= (3, 13),
                    "only what a process says can be impossible"
                );
                continue;
            };
            let same =
                own.is_some_and(|own| (own.frames, own.code) == (layout.frames, layout.code));
            for demands in [Demands::Fits, Demands::FitsForSure] {
                let verdict = try_out(&memory, layout, demands);
                let path = path.display();
                match verdict {
                    Verdict::Fits => assert!(same, "{path} as {other:?}"),
                    Verdict::Misfit(_) => assert!(!same, "{path} as {other:?}: {verdict:?}"),
                    Verdict::NotYet(_) => panic!("{path} as {other:?}: {verdict:?}"),
                }
            }
        }
    }
}

fn runtime_of(version_hex: Option<u32>, version: (u8, u8), code_type: Option<u64>) -> Runtime {
    let own = std::fs::File::open("/proc/self/exe").expect("own program");
    Runtime {
        runtime: RUNTIME,
        code_type,
        version_hex,
        version,
        file: FileIdentity::of(&own).expect("stat"),
        path: "/usr/bin/python3".into(),
        bias: 0,
    }
}

/// A process that describes itself by these words, and is as they say.
fn described(words: &[u64], row: &Row, names: &[&str]) -> FakeMemory {
    let layout = offsets(words).layout(row, RUNTIME, CODE_TYPE);
    let memory = process(&layout.expect("possible"), names);
    for (index, word) in words.iter().enumerate() {
        memory.put_word(RUNTIME + 8 * index as u64, *word);
    }
    memory
}

fn with_version(words: &[u64], version: u64) -> Vec<u64> {
    let mut words = words.to_vec();
    words[1] = version;
    words
}

#[test]
fn a_version_of_the_future_is_known_if_it_is_like_one_of_today() {
    for row in &ROWS {
        let words: &[u64] = match row.version {
            (3, 13) => &PYTHON_3_13,
            (3, 14) => &PYTHON_3_14,
            _ => &PYTHON_3_15,
        };
        let words = with_version(words, 0x0310_00f0);
        let runtime = runtime_of(Some(0x0310_00f0), (3, 16), Some(CODE_TYPE));
        let memory = described(&words, row, &["leaf", "<module>"]);
        let Examined::Known(known) = examine_runtime(&memory, &runtime) else {
            panic!("like {:?}", row.version);
        };
        assert_eq!(known.version, 0x0310_00f0);

        let memory = described(&words, row, &["leaf"]);
        let examined = examine_runtime(&memory, &runtime);
        assert_eq!(examined, Examined::NotYet(NotYet::TooLittle));
    }
}

/// 3.15.0b4 got one word more in the middle of the list.
#[test]
fn a_prerelease_that_differs_from_its_release_is_refused() {
    let mut words = with_version(&PYTHON_3_15, 0x030f_00b3);
    words.remove(29);
    words.push(0);
    let memory = process(
        &built_in(12, RUNTIME, CODE_TYPE, 0).expect("known"),
        &["leaf"],
    );
    for (index, word) in words.iter().enumerate() {
        memory.put_word(RUNTIME + 8 * index as u64, *word);
    }
    let runtime = runtime_of(Some(0x030f_00b3), (3, 15), Some(CODE_TYPE));
    let Examined::Refused(refusal) = examine_runtime(&memory, &runtime) else {
        panic!("it is none of those known");
    };
    let said = refusal.to_string();
    assert!(
        said.starts_with("CPython 3.15.0b3 is not known, "),
        "{said}"
    );
}

#[test]
fn a_list_that_is_damaged_or_missing_is_refused() {
    let words = PYTHON_3_14;
    let row = &ROWS[1];
    let runtime = runtime_of(Some(0x030e_0af0), (3, 14), Some(CODE_TYPE));
    let examined = |word: usize, value: u64| {
        let memory = described(&words, row, &["leaf", "<module>"]);
        assert!(matches!(
            examine_runtime(&memory, &runtime),
            Examined::Known(_)
        ));
        memory.put_word(RUNTIME + 8 * word as u64, value);
        examine_runtime(&memory, &runtime)
    };
    let version = Version(0x030e_0af0);
    let no_description = Examined::Refused(Refusal::NoDescription(version));
    assert_eq!(examined(0, 0), no_description);
    assert_eq!(
        examined(1, 0x030e_09f0),
        no_description,
        "not that of its file"
    );
    assert!(matches!(
        examined(1, 0),
        Examined::Refused(Refusal::Damaged { .. })
    ));
    let Examined::Refused(refusal) = examined(27, 12_345) else {
        panic!("no thread has its id there");
    };
    assert_eq!(
        refusal.to_string(),
        "CPython 3.14.10 describes itself wrongly (PyThreadState.thread_id cannot be 12345): \
         it is damaged, or a changed build"
    );
    // Possible, but not true.
    for (word, value) in [
        (5, 800),
        (9, 7352),
        (24, 16),
        (26, 80),
        (27, 160),
        (34, 64),
        (43, 144),
    ] {
        let examined = examined(word, value);
        let is_known = matches!(examined, Examined::Known(_));
        assert!(!is_known, "word {word}: {examined:?}");
    }
}

#[test]
fn without_symbols_the_type_is_found_by_what_runs() {
    let interpreter = built_in(10, RUNTIME, CODE_TYPE, 0x030a_0000).expect("known");
    let memory = process(&interpreter, &["leaf", "<module>"]);
    let runtime = runtime_of(None, (3, 10), None);
    let examined = examine_runtime(&memory, &runtime);
    assert_eq!(examined, Examined::Known(Box::new(interpreter.clone())));

    let idle = process(&interpreter, &[]);
    idle.put_word(THREAD + 24, 0);
    let examined = examine_runtime(&idle, &runtime);
    assert_eq!(examined, Examined::NotYet(NotYet::NoFrames));
}

#[test]
fn what_is_too_old_or_no_cpython_is_told_apart() {
    let own = Pid(std::process::id());
    let memory = FakeMemory::new(Vec::new());
    let mut info = PythonInfo::unknown();
    let mapping = |path: &str| Mapping {
        begin: crate::model::Avma(0x1000),
        end: crate::model::Avma(0x2000),
        file_offset: crate::model::FileOffset(0),
        executable: true,
        kind: crate::process::MappingKind::from_kernel_name(path.as_bytes()),
        device: (0, 0),
        inode: 0,
        head: None,
        copy: CodeCopy::None,
    };
    let examine = |path: &str, info: &PythonInfo| examine(own, &memory, &[mapping(path)], info);
    assert_eq!(examine("/usr/bin/nginx", &info), Examined::NoPython);
    for path in ["/usr/lib/libpypy3.10-c.so", "/opt/pypy/bin/pypy3.9"] {
        assert_eq!(examine(path, &info), Examined::Refused(Refusal::PyPy));
    }
    for version in [(2, 7), (3, 7)] {
        info.version = Some(version);
        let examined = examine("/usr/bin/python", &info);
        let version = Version::of_minor(version);
        assert_eq!(examined, Examined::Refused(Refusal::TooOld(version)));
    }
    info.version = Some((3, 12));
    let examined = examine("/usr/bin/python", &info);
    assert_eq!(
        examined,
        Examined::NotYet(NotYet::Gone),
        "not mapped any more"
    );
}

#[test]
fn of_several_interpreters_the_one_in_use_decides() {
    let unused = Examined::NotYet(NotYet::NotInitialised);
    let refused = Examined::Refused(Refusal::PyPy);
    let changing = Examined::NotYet(NotYet::Changing);
    let interpreter = built_in(10, RUNTIME, CODE_TYPE, 0x030a_0000).expect("known");
    let known = Examined::Known(Box::new(interpreter));
    let ranked = [unused, refused, changing, known];
    assert!(ranked.is_sorted_by_key(says_most));
}
