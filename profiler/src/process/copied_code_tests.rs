//! Copies of code in living processes: a Python replaces a library's code.

#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use super::*;
use crate::process::{
    Target, file_name, inspect,
    python::tests::{Running, interpreters},
    read_executable_mappings,
};

/// Moves the code of a mapped file: `NAME` is a part of its name, `CHANGE` what is done to the copy before. The copy
/// takes the place of the original in one step, so that it may be the code that runs.
const MOVE: &str = r#"
import ctypes, math, sys, time
libc = ctypes.CDLL(None, use_errno=True)
for name in ("mmap", "mremap"):
    getattr(libc, name).restype = ctypes.c_void_p
def move(name, change=None):
    for line in open("/proc/self/maps"):
        words = line.split()
        if words[1] == "r-xp" and name in line:
            begin, end = (int(at, 16) for at in words[0].split("-"))
            break
    size = ctypes.c_size_t(end - begin)
    copy = libc.mmap(None, size, 3, 0x22, -1, ctypes.c_long(0))
    ctypes.memmove(copy, begin, end - begin)
    if change:
        change(copy, end - begin)
    libc.mprotect(ctypes.c_void_p(copy), size, 5)
    libc.mremap(ctypes.c_void_p(copy), size, size, 3, ctypes.c_void_p(begin))
def ready():
    print(flush=True)
    time.sleep(60)
"#;

/// A Python with a library of its own that does this; `None` where there is none.
fn python_that(does: &str) -> Option<Running> {
    let mut pythons = interpreters().into_iter();
    let code = format!("{MOVE}\n{does}\nready()");
    let running = pythons.find_map(|(path, version)| {
        (version >= (3, 8)).then(|| Running::run(&path, &code, &[], &[]))?
    });
    if running.is_none() {
        eprintln!("skipped: there is no Python that can replace its code");
    }
    running
}

fn mappings_of(running: &Running) -> Vec<Mapping> {
    read_executable_mappings(Pid(running.0.id()))
        .expect("maps")
        .mappings
}

fn of_file<'m>(mappings: &'m [Mapping], name: &str) -> Vec<&'m Mapping> {
    let is = |it: &&Mapping| {
        it.path()
            .is_some_and(|path| file_name(path).starts_with(name))
    };
    mappings.iter().filter(is).collect()
}

#[test]
fn code_that_was_copied_counts_as_its_files() {
    let (Some(plain), Some(moved)) = (python_that(""), python_that("move('/libm.so')")) else {
        return;
    };
    let (plain, moved_mappings) = (mappings_of(&plain), mappings_of(&moved));
    let (before, after) = (
        of_file(&plain, "libm.so"),
        of_file(&moved_mappings, "libm.so"),
    );
    let ([before], [after]) = (&before[..], &after[..]) else {
        panic!("{before:?} {after:?}");
    };
    assert_eq!(before.copy, CodeCopy::None);
    assert!(matches!(after.copy, CodeCopy::Same(..)), "{after:?}");
    assert!(after.has_file_of(before) && !after.may_hold_jit_code());
    assert_eq!(after.file_offset, before.file_offset);
    assert_eq!(after.end.0 - after.begin.0, before.end.0 - before.begin.0);
    let opened = open_mapped(Pid(moved.0.id()), after).expect("opens");
    assert!(!opened.is_from_memory);
}

#[test]
fn an_interpreter_that_moved_its_own_code_is_found() {
    let name = "'libpython' if 'libpython' in open('/proc/self/maps').read() else '/python3'";
    let Some(moved) = python_that(&format!("move({name})")) else {
        return;
    };
    let pid = Pid(moved.0.id());
    let mappings = mappings_of(&moved);
    let is_moved = |it: &&Mapping| it.copy != CodeCopy::None;
    let copies: Vec<_> = mappings.iter().filter(is_moved).collect();
    assert!(
        matches!(
            copies[..],
            [Mapping {
                copy: CodeCopy::Same(..),
                ..
            }]
        ),
        "{copies:?}"
    );
    let python = inspect(&Target::check(pid).expect("a target"), &mappings);
    assert!(python.version.is_some(), "{python:?}");
    let runtimes = crate::process::interpreter::locate(pid, &mappings, &python);
    assert!(runtimes.is_ok_and(|found| !found.is_empty()));
}

#[test]
fn a_copy_with_other_content_is_not_believed() {
    let change =
        "move('/libm.so', lambda copy, size: ctypes.memset(copy + size // 2, 0xcc, size // 4))";
    let Some(moved) = python_that(change) else {
        return;
    };
    let mappings = mappings_of(&moved);
    let [changed] = of_file(&mappings, "libm.so")[..] else {
        panic!("{mappings:?}");
    };
    assert!(matches!(changed.copy, CodeCopy::Changed(..)), "{changed:?}");
    assert!(changed.is_changed_code() && changed.may_hold_jit_code());
}

#[test]
fn anonymous_code_elsewhere_stays_what_it_is() {
    let elsewhere =
        "keep = libc.mmap(None, ctypes.c_size_t(1 << 20), 7, 0x22, -1, ctypes.c_long(0))";
    let Some(running) = python_that(elsewhere) else {
        return;
    };
    let mappings = mappings_of(&running);
    let is_anonymous = |it: &&Mapping| it.kind == MappingKind::Anonymous;
    assert!(
        mappings.iter().filter(is_anonymous).count() >= 1,
        "{mappings:?}"
    );
    assert!(mappings.iter().all(|it| it.copy == CodeCopy::None));
}

#[test]
fn a_file_that_cannot_be_compared_is_believed_from_both_sides_only() {
    let mapping = |begin: u64| Mapping {
        begin: Avma(begin),
        end: Avma(begin + 0x1000),
        file_offset: FileOffset(0),
        executable: true,
        kind: MappingKind::Anonymous,
        device: (0, 0),
        inode: 0,
        head: None,
        copy: CodeCopy::None,
    };
    let opened = crate::process::vdso_file().expect("a vDSO");
    let segments = ElfFile::parse(&opened.file)
        .expect("parses")
        .segments()
        .clone();
    let place = Place {
        file: Arc::new(NeighbourFile { opened, segments }),
        neighbour: mapping(0x1000),
        offset: FileOffset(0x1000),
        segment_end: 0x2000,
    };
    let mut claim = Claim {
        code: mapping(0x2000),
        is_enclosed: true,
        places: vec![place],
    };
    let copy = |claim: &Claim, verdict| claim.restored(verdict).map(|it| it.copy);
    let (begin, end) = (Avma(0x1000), Avma(0x2000));
    assert_eq!(
        copy(&claim, Verdict::Same(0)),
        Some(CodeCopy::Same(begin, end))
    );
    assert_eq!(
        copy(&claim, Verdict::Unknown),
        Some(CodeCopy::Same(begin, end))
    );
    assert_eq!(
        copy(&claim, Verdict::Changed),
        Some(CodeCopy::Changed(begin, end))
    );
    claim.is_enclosed = false;
    assert_eq!(
        copy(&claim, Verdict::Same(0)),
        Some(CodeCopy::Same(begin, end))
    );
    assert_eq!(copy(&claim, Verdict::Unknown), None);
    assert_eq!(copy(&claim, Verdict::Changed), None);
}
