use object::elf::{SHF_COMPRESSED, SHT_PROGBITS, SHT_STRTAB, SHT_SYMTAB};

use super::*;
use crate::process::elf_testing::{TestSection, elf_of, symbol};

/// A program with these functions: name, address and size.
fn program(functions: &[(&str, u64, u64)]) -> Vec<u8> {
    let mut strings = vec![0_u8];
    let mut symbols = symbol(0, 0, 0, 0);
    for (name, address, size) in functions {
        symbols.extend(symbol(strings.len() as u32, 1, *address, *size));
        strings.extend_from_slice(name.as_bytes());
        strings.push(0);
    }
    let mut text = TestSection::new(".text", elf::SHT_NOBITS, vec![0; 0x1000]);
    text.address = 0x1000;
    text.flags = u64::from(elf::SHF_ALLOC | elf::SHF_EXECINSTR);
    let mut table = TestSection::new(".symtab", SHT_SYMTAB, symbols);
    table.link = 3;
    let strings = TestSection::new(".strtab", SHT_STRTAB, strings);
    elf_of(&[text, table, strings], None)
}

fn names_of(image: &[u8]) -> SymbolFile<'_> {
    let mut file = SymbolFile::default();
    file.add_symbols(Part::Own, image);
    file
}

fn name_at(file: &SymbolFile<'_>, at: u64) -> Option<String> {
    file.find(at, false).frames.pop().map(|frame| frame.name)
}

#[test]
fn a_function_is_named_within_its_size_and_its_section_only() {
    let image = program(&[("f", 0x1000, 16), ("last", 0x1ff0, 0x1_0000)]);
    let names = names_of(&image);
    assert_eq!(name_at(&names, 0x1000).as_deref(), Some("f"));
    assert_eq!(name_at(&names, 0x100f).as_deref(), Some("f"));
    assert_eq!(name_at(&names, 0x1010), None);
    assert_eq!(name_at(&names, 0x1fff).as_deref(), Some("last"));
    assert_eq!(name_at(&names, 0x2000), None, "past its section");
    assert_eq!(name_at(&names, u64::MAX), None);
}

#[test]
fn symbols_that_overlap_cost_no_more_than_others() {
    let many: Vec<_> = (0..5000)
        .map(|at| ("inner", 0x1100 + at % 512, 1))
        .collect();
    let functions = [&[("outer", 0x1000, 0x800)][..], &many].concat();
    let image = program(&functions);
    let names = names_of(&image);
    assert_eq!(name_at(&names, 0x1000).as_deref(), Some("outer"));
    assert_eq!(name_at(&names, 0x1100).as_deref(), Some("inner"));
}

#[test]
fn what_is_no_elf_file_has_no_names() {
    assert_eq!(name_at(&names_of(b""), 0x1000), None);
    assert_eq!(name_at(&names_of(&[0x7f; 4096]), 0x1000), None);
    let image = program(&[("f", 0x1000, 16)]);
    for length in (0..image.len()).step_by(7) {
        let _ = name_at(&names_of(&image[..length]), 0x1000);
    }
}

/// A section that says that it has `stated` bytes, and has others.
fn compressed(stated: u64, content: &[u8]) -> TestSection {
    use std::io::Write as _;
    let level = flate2::Compression::best();
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
    encoder.write_all(content).expect("memory");
    let mut bytes = elf::ELFCOMPRESS_ZLIB.to_le_bytes().to_vec();
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&stated.to_le_bytes());
    bytes.extend_from_slice(&1_u64.to_le_bytes());
    bytes.extend(encoder.finish().expect("memory"));
    let mut section = TestSection::new(".debug_str", SHT_PROGBITS, bytes);
    section.flags = u64::from(SHF_COMPRESSED);
    section
}

#[test]
fn a_section_gives_no_more_than_it_says() {
    let content = vec![b'x'; 100_000];
    let honest = elf_of(&[compressed(100_000, &content)], None);
    let sections = DebugSections::read(&honest, 1 << 20).expect("decompresses");
    assert_eq!(sections.0.len(), 1);
    assert_eq!(sections.0[0].1.len(), content.len());
    let lies = elf_of(&[compressed(4096, &content)], None);
    assert!(DebugSections::read(&lies, 1 << 20).is_none());
    assert!(
        DebugSections::read(&honest, 1000).is_none(),
        "more than is asked for"
    );
}

/// Of the own program, without a process around it.
#[test]
fn own_debug_information_gives_files_and_lines() {
    use crate::process::{CopyOf, ElfFile, SymbolTable};
    let file = std::fs::File::open(std::env::current_exe().expect("own path")).expect("open");
    let parsed = ElfFile::parse(&file).expect("parses");
    let copy = |what| {
        let mut bytes = Vec::new();
        parsed
            .copy_of(what)
            .expect("copies")
            .write_to(&mut bytes)
            .expect("memory");
        bytes
    };
    let [main] = parsed.symbols(SymbolTable::Full, ["main"]);
    let main = main.expect("every program has it").0;
    let (symbols, debug) = (copy(CopyOf::Symbols), copy(CopyOf::DebugInfo));
    let sections = DebugSections::read(&debug, 1 << 30).expect("decompresses");
    let mut known = SymbolFile::default();
    known.add_symbols(Part::Own, &symbols);
    known.add_debug_info(&sections);
    let found = known.find(main, true);
    assert_eq!(
        found.frames.last().map(|frame| frame.name.as_str()),
        Some("main")
    );
    let names_only = known.find(main, false);
    assert_eq!(names_only.frames.len(), 1);
    assert_eq!(names_only.frames[0].line, None);
}
