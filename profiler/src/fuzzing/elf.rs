//! An ELF file: what of it is compiled to unwind rows, and what is read of its headers and tables.
//!
//! Input: the file.

use super::input::file_of;
use crate::{
    model::{Avma, FileOffset, Svma},
    process::{CopyOf, ElfFile, SymbolTable},
    unwind::{CompiledElf, compile, compile_file},
};

/// Bytes a page of text has.
const PAGE_BYTES: u64 = 4096;
/// Rows that may be made of one byte of file. An advance of one address takes a byte of call frame instructions, shared
/// entries are run once for each function that names them within a budget of 16 times the section, and the first row of
/// each page is made up.
const ROWS_PER_BYTE: usize = 64;
/// Rows of a small file all the same: a page of text without any call frame instruction has one.
const ROWS_FREE: usize = 1 << 19;

/// Everything that is read of an ELF file, except by the symbolizer.
pub fn elf(data: &[u8]) {
    let file = file_of(data);
    // A `Vec` begins at an address that 8 divides.
    let copy = data.to_vec();
    let from_file = compile_file(&file);
    match (&from_file, &compile(&copy)) {
        (Ok(a), Ok(b)) => {
            assert_eq!(a.table, b.table);
            assert_eq!(a.segments, b.segments);
        }
        (Err(a), Err(b)) => assert_eq!(a, b),
        (a, b) => panic!("from a file {a:?}, from memory {b:?}"),
    }
    if let Ok(compiled) = &from_file {
        check(compiled, data.len());
    }
    let Ok(parsed) = ElfFile::parse(&file) else {
        return;
    };
    for table in [SymbolTable::Dynamic, SymbolTable::Full] {
        let [found, _] = parsed.symbols(table, ["Py_Version", "main"]);
        if let Some(at) = found {
            let _ = parsed.read_at(at, 4);
        }
    }
    let _ = (
        parsed.build_id(),
        parsed.has_full_symbols(),
        parsed.debug_info_bytes(),
        parsed.section_bytes(".rodata", 1 << 20),
        parsed.segments().svma_of(FileOffset(0x1000)),
        parsed.read_at(Svma(0x1000), 16),
    );
    for what in [CopyOf::Symbols, CopyOf::DebugInfo] {
        if let Ok(copy) = parsed.copy_of(what) {
            let mut bytes = Vec::new();
            copy.write_to(&mut bytes).expect("memory takes it");
            assert_eq!(bytes.len() as u64, copy.bytes(), "as many as were said");
            let file = file_of(&bytes);
            assert!(ElfFile::parse(&file).is_ok(), "the copy is an ELF file");
        }
    }
}

/// The table is one that the kernel side can search, and no larger than the file allows for.
fn check(compiled: &CompiledElf, file_bytes: usize) {
    let table = &compiled.table;
    assert!(table.rows.len() <= ROWS_FREE + ROWS_PER_BYTE * file_bytes);
    for (index, page) in table.pages.iter().enumerate() {
        let begin = page.first_row as usize;
        let rows = &table.rows[begin..begin + usize::from(page.count)];
        assert!(rows.first().is_none_or(|row| row.offset == 0));
        assert!(rows.is_sorted_by(|a, b| a.offset < b.offset), "in order");
        for row in rows {
            assert!(u64::from(row.offset) < PAGE_BYTES);
            let rule = table.rules.get(row.rule as usize).expect("there is one");
            let at = (u64::from(table.first_page) + index as u64) * PAGE_BYTES;
            let at = at.wrapping_add(u64::from(row.offset));
            let found = table.rule_at(Svma(at));
            assert!(found.is_none_or(|found| found == rule), "found by address");
        }
    }
    for segment in &compiled.segments {
        let _ = compiled.bias(Avma(0x7f00_0000_0000), segment.file_offset);
    }
}
