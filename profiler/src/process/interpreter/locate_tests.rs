#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use std::{fs, io::Write as _, os::unix::fs::FileExt as _, path::PathBuf};

use proptest::prelude::*;

use super::*;
use crate::process::{
    interpreter::memory::{Memory, ReadMemory},
    python::tests::{Running, interpreters},
};

const SLEEPS: &str = "import time\nprint(flush=True)\ntime.sleep(60)";

#[test]
fn every_interpreter_here_is_located() {
    let all = interpreters();
    if all.is_empty() {
        eprintln!("skipped: no python3.N here");
    }
    for (path, version) in all {
        let Some(running) = Running::run(&path, SLEEPS, &[], &[]) else {
            continue;
        };
        let (target, mappings, info) = running.look_into();
        let located = locate(target.pid, &mappings, &info);
        if version < (3, 7) {
            let no_runtime = matches!(located, Err(NotLocated::NoRuntime { .. }));
            assert!(no_runtime, "{}: {located:?}", path.display());
            continue;
        }
        let located = located.expect("located");
        let [runtime] = &located[..] else {
            panic!("{}: {located:?}", path.display());
        };
        assert_eq!(runtime.version, version);
        assert_eq!(runtime.version_hex.is_some(), version >= (3, 11));
        let Ok(memory) = Memory::open(target.pid) else {
            return eprintln!("skipped: the memory of other processes cannot be read");
        };
        let memory: &dyn ReadMemory = &memory;
        // `PyCode_Type.tp_name`
        let name = memory.u64(runtime.code_type.expect("exported") + 24);
        assert_eq!(memory.bytes(name.expect("a type")), Some(*b"code\0"));
        if version >= (3, 13) {
            assert_eq!(memory.bytes(runtime.runtime), Some(*b"xdebugpy"));
        }
    }
}

#[test]
fn a_process_without_the_files_has_no_interpreter() {
    let own = Pid(std::process::id());
    let mappings = crate::process::read_executable_mappings(own).expect("own mappings");
    let mut info = PythonInfo::unknown();
    let located = locate(own, &mappings.mappings, &info);
    assert_eq!(located, Err(NotLocated::NotMapped));
    let program = std::env::current_exe().expect("own path");
    info.interpreter_files = vec![program.to_string_lossy().into_owned()];
    let located = locate(own, &mappings.mappings, &info);
    assert_eq!(located, Err(NotLocated::NoRuntime { path: program }));
}

/// The file of an interpreter that states where its `_PyRuntime` is.
fn interpreter_file() -> Option<(PathBuf, Stated)> {
    let files = interpreters().into_iter().flat_map(|(path, (_, minor))| {
        let library = format!("../lib/libpython3.{minor}.so.1.0");
        let library = path.parent().map(|bin| bin.join(library));
        [Some(path), library].into_iter().flatten()
    });
    files.into_iter().find_map(|path| {
        let file = File::open(&path).ok()?;
        let place = ElfFile::parse(&file).ok()?.section_place(".PyRuntime")?;
        Some((path, place))
    })
}

#[test]
fn without_symbols_the_section_tells_where_it_is() {
    let Some((path, place)) = interpreter_file() else {
        return eprintln!("skipped: no python with a section .PyRuntime here");
    };
    let mut bytes = fs::read(&path).expect("reads");
    let table = u64::from_le_bytes(bytes[40..48].try_into().expect("eight bytes")) as usize;
    let count = usize::from(u16::from_le_bytes([bytes[60], bytes[61]]));
    for header in bytes[table..][..64 * count].chunks_exact_mut(64) {
        if matches!(header[4], 2 | 11) {
            header[4] = 0;
        }
    }
    let mut stripped = tempfile::tempfile().expect("temporary file");
    stripped.write_all(&bytes).expect("writes");
    let identity = FileIdentity::of(&stripped).expect("stat");
    let mut budget = SYMBOL_BYTES_MAX;
    let FileFacts::Interpreter(found) = read_facts(&stripped, identity, &mut budget) else {
        panic!("{} has the section", path.display());
    };
    assert_eq!((found.runtime, found.code_type), (place, None));
    assert_eq!(budget, SYMBOL_BYTES_MAX);

    stripped.write_all_at(&[183], 18).expect("writes");
    let facts = read_facts(&stripped, identity, &mut budget);
    assert!(
        matches!(facts, FileFacts::OtherMachine),
        "AArch64: {facts:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_damaged_file_is_never_a_panic(damage in proptest::collection::vec((0_usize..12_000, any::<u8>()), 1..60), cut in 0_usize..20_000, begin in any::<u64>()) {
        let file = crate::process::damaged_vdso(damage, cut);
        let identity = FileIdentity::of(&file).expect("stat");
        if let Ok(elf) = ElfFile::parse(&file) {
            let _ = elf.segments().bias(crate::model::Avma(begin), crate::model::FileOffset(begin));
        }
        let _ = read_facts(&file, identity, &mut SYMBOL_BYTES_MAX.clone());
    }
}
