use object::elf::{SHF_ALLOC, SHT_NOBITS, SHT_PROGBITS, SHT_STRTAB, SHT_SYMTAB};

use super::*;
use crate::process::{
    SymbolTable,
    elf_testing::{TestSection, elf_of, symbol},
};

fn own_program() -> File {
    File::open(std::env::current_exe().expect("own path")).expect("open")
}

fn file_of(bytes: &[u8]) -> File {
    use std::os::unix::fs::FileExt as _;
    let file = tempfile::tempfile().expect("temporary file");
    file.write_all_at(bytes, 0).expect("write");
    file
}

/// The copy as a file.
fn copied(file: &File, what: CopyOf) -> File {
    let whole = ElfFile::parse(file).expect("parses");
    let copy = whole.copy_of(what).expect("copies");
    let mut bytes = Vec::new();
    copy.write_to(&mut bytes).expect("memory");
    assert_eq!(bytes.len() as u64, copy.bytes(), "as many as were said");
    file_of(&bytes)
}

#[test]
fn the_copy_has_the_same_symbols_and_is_smaller() {
    let file = own_program();
    let copy = copied(&file, CopyOf::Symbols);
    let length = |file: &File| file.metadata().expect("stat").len();
    assert!(length(&copy) < length(&file));
    let (whole, copy) = (
        ElfFile::parse(&file).expect("parses"),
        ElfFile::parse(&copy).expect("parses"),
    );
    assert_eq!(
        copy.symbols(SymbolTable::Full, ["main"]),
        whole.symbols(SymbolTable::Full, ["main"])
    );
    assert_eq!(copy.debug_info_bytes(), 0);
    assert_eq!(
        copy.section_place(".eh_frame"),
        whole.section_place(".eh_frame")
    );
}

#[test]
fn debug_information_is_a_copy_of_its_own() {
    let file = own_program();
    let copy = copied(&file, CopyOf::DebugInfo);
    let (whole, copy) = (
        ElfFile::parse(&file).expect("parses"),
        ElfFile::parse(&copy).expect("parses"),
    );
    assert_eq!(copy.debug_info_bytes(), whole.debug_info_bytes());
    assert!(!copy.has_full_symbols());
}

/// Every section that leads to a file, as what it is and disguised as what is copied.
#[test]
fn nothing_that_leads_to_another_file_is_copied() {
    let links = [
        ".debug_sup",
        ".gnu_debuglink",
        ".gnu_debugaltlink",
        ".debug_info.dwo",
        ".debug_cu_index",
        ".debug_str.dwo",
        ".interp",
        ".dynamic",
        ".note.gnu.build-id",
    ];
    for kind in [SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, elf::SHT_DYNSYM] {
        let mut sections: Vec<_> = links
            .iter()
            .map(|name| TestSection::new(name, kind, *b"/etc/shadow\0"))
            .collect();
        // The names of the symbols, too, if their table says so.
        let mut symbols = TestSection::new(".symtab", SHT_SYMTAB, symbol(1, 0, 16, 16));
        symbols.link = 1;
        sections.push(symbols);
        sections.push(TestSection::new(".debug_info", kind, vec![1; 40]));
        let file = file_of(&elf_of(&sections, None));
        for what in [CopyOf::Symbols, CopyOf::DebugInfo] {
            let whole = ElfFile::parse(&file).expect("parses");
            let mut bytes = Vec::new();
            whole
                .copy_of(what)
                .expect("copies")
                .write_to(&mut bytes)
                .expect("memory");
            let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
            assert!(!has(b"shadow"), "{what:?} of kind {kind}");
            for link in links {
                assert!(!has(link.as_bytes()), "{link}");
            }
        }
    }
}

#[test]
fn of_sections_with_one_name_the_first_is_copied_and_keeps_its_number() {
    let mut text = TestSection::new(".text", SHT_PROGBITS, vec![0x90; 64]);
    text.flags = u64::from(SHF_ALLOC);
    text.address = 0x1000;
    let sections = [
        text,
        TestSection::new(".strtab", SHT_PROGBITS, *b"\0first\0"),
        TestSection::new(".strtab", SHT_STRTAB, *b"\0other\0"),
        TestSection::new(".symtab", SHT_PROGBITS, symbol(1, 1, 0x1000, 16)),
    ];
    let file = file_of(&elf_of(&sections, None));
    let copy = copied(&file, CopyOf::Symbols);
    let copy = ElfFile::parse(&copy).expect("parses");
    let [found] = copy.symbols(SymbolTable::Full, ["first"]);
    assert_eq!(
        found.map(|at| at.0),
        Some(0x1000),
        "whatever kind it claims"
    );
    let kept = &copy.sections[1];
    assert_eq!(
        (kept.kind, kept.address, kept.size),
        (SHT_NOBITS, 0x1000, 64),
        "a section without content says where code ends"
    );
}

#[test]
fn too_many_symbols_are_no_copy_and_other_sections_are_left_out() {
    let mut large = TestSection::new(".symtab", SHT_SYMTAB, symbol(1, 0, 16, 16));
    large.link = 2;
    let names = TestSection::new(".strtab", SHT_STRTAB, *b"\0f\0");
    let frames = TestSection::new(".eh_frame", SHT_PROGBITS, *b"frames");
    let mut bytes = elf_of(&[large, names, frames], None);
    let table = u64::from_le_bytes(bytes[40..48].try_into().expect("eight")) as usize;
    let mut claim = |section: usize, size: u64| {
        let at = table + section * 64 + 32;
        bytes[at..at + 8].copy_from_slice(&size.to_le_bytes());
        let file = file_of(&bytes);
        let parsed = ElfFile::parse(&file).expect("parses");
        parsed.copy_of(CopyOf::Symbols).map(|copy| copy.bytes())
    };
    let without_frames = claim(3, COPY_BYTES_MAX).expect("still a copy");
    assert!(without_frames < 4096, "{without_frames}");
    let error = claim(1, COPY_BYTES_MAX).expect_err("too large");
    assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
}

/// Its length was announced to its reader.
#[test]
fn a_file_that_becomes_shorter_gives_a_copy_of_the_same_length() {
    let names = TestSection::new(".strtab", SHT_STRTAB, vec![b'x'; 3 << 20]);
    let file = file_of(&elf_of(&[names], None));
    let whole = ElfFile::parse(&file).expect("parses");
    let copy = whole.copy_of(CopyOf::Symbols).expect("copies");
    file.set_len(1 << 20).expect("truncate");
    let mut bytes = Vec::new();
    copy.write_to(&mut bytes).expect("memory");
    assert_eq!(bytes.len() as u64, copy.bytes());
}
