//! Our own files, read from our own memory.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::{
    model::Pid,
    process::{
        ElfFile, Mapping, SymbolTable, file_name, interpreter::Memory, read_executable_mappings,
    },
};

const ENOUGH: u64 = 64 << 20;

/// One of our own mappings by the beginning of its file's name.
fn own_mapping(name: &str) -> Mapping {
    let own = read_executable_mappings(Pid(std::process::id())).expect("own maps");
    let is = |it: &Mapping| {
        it.path()
            .is_some_and(|path| file_name(path).starts_with(name))
    };
    own.mappings.into_iter().find(is).expect("it is mapped")
}

fn copied(mapping: &Mapping, bytes_max: u64) -> io::Result<MappedFile> {
    let memory = Memory::open(Pid(std::process::id()))?;
    let head = mapping.head.expect("its beginning is mapped");
    copy_from_memory(&memory, head.0, &PathBuf::from("/a/name"), bytes_max)
}

#[test]
fn a_loaded_library_has_the_symbols_and_the_build_id_of_its_file() {
    let mapping = own_mapping("libc.so.6");
    let file = File::open(mapping.path().expect("a path")).expect("opens");
    let (file, copy) = (&file, copied(&mapping, ENOUGH).expect("is copied"));
    let (whole, loaded) = (
        ElfFile::parse(file).expect("parses"),
        ElfFile::parse(&copy.file).expect("parses"),
    );
    let wanted = [
        "malloc",
        "exit",
        "pthread_exit",
        "environ",
        "no such symbol",
    ];
    assert_eq!(
        loaded.sized_symbols(SymbolTable::Dynamic, wanted),
        whole.sized_symbols(SymbolTable::Dynamic, wanted)
    );
    assert_eq!(loaded.build_id(), whole.build_id());
    assert!(!loaded.has_full_symbols() && copy.is_from_memory && copy.is_elf());
    let same = |name| {
        let at = whole.section_place(name).expect("it is there").at;
        let (ours, theirs) = (
            loaded.section_bytes(name, ENOUGH),
            whole.section_bytes(name, ENOUGH),
        );
        assert_eq!(
            loaded.section_place(name).map(|it| it.at),
            Some(at),
            "{name}"
        );
        ours.zip(theirs).expect("both have it")
    };
    for name in [".eh_frame", ".dynstr"] {
        let (ours, theirs) = same(name);
        assert!(
            ours == theirs,
            "{name}: {} of {} bytes",
            ours.len(),
            theirs.len()
        );
    }
    // The code of a C library says where stacks end.
    let main = whole.symbols(SymbolTable::Dynamic, ["exit"])[0].expect("exit");
    assert_eq!(loaded.read_at(main, 32), whole.read_at(main, 32));
}

#[test]
fn equal_content_is_the_same_file_and_other_content_is_not() {
    let (libc, own) = (own_mapping("libc.so.6"), own_mapping("pyprof_bpf-"));
    let identity = |mapping: &Mapping| copied(mapping, ENOUGH).expect("is copied").identity;
    assert_eq!(identity(&libc), identity(&libc));
    assert_ne!(identity(&libc), identity(&own));
}

#[test]
fn more_than_may_be_copied_is_refused() {
    let error = copied(&own_mapping("libc.so.6"), 64 << 10).expect_err("it has more");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

/// Memory that holds these bytes at address 0x1000, and nothing else.
struct Made(Vec<u8>);

impl ReadMemory for Made {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let from = at
            .checked_sub(0x1000)
            .and_then(|at| usize::try_from(at).ok());
        let bytes = from.and_then(|from| self.0.get(from..from.checked_add(into.len())?));
        bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }
}

/// Nothing that memory holds does harm.
fn read_made(bytes: Vec<u8>) {
    let copy = copy_from_memory(&Made(bytes), 0x1000, Path::new("made"), 8 << 20);
    if let Ok(copy) = copy {
        // Large offsets leave a sparse file.
        let elf = ElfFile::parse(&copy.file);
        let _ = elf.map(|elf| elf.symbols(SymbolTable::Dynamic, ["malloc"]));
    }
}

#[test]
fn memory_without_an_elf_file_is_refused() {
    let made = Made(vec![0; 4096]);
    let error = copy_from_memory(&made, 0x1000, Path::new("made"), ENOUGH).expect_err("zeros");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(copy_from_memory(&made, 0x9000, Path::new("made"), ENOUGH).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_damage_to_a_loaded_file_is_harmless(
        damage in proptest::collection::vec((0_usize..4096, any::<u8>()), 1..8),
        cut in 0_usize..16_384,
    ) {
        let mut bytes = crate::process::vdso_image().expect("a vDSO");
        for (at, byte) in damage {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        bytes.truncate(cut);
        read_made(bytes);
    }
}
