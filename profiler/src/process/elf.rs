//! A few facts of an ELF file, read in bounded pieces: the file is the target's and may be anything.
//!
//! 64-bit little-endian files only, as x86-64 and AArch64 have them. Nothing is mapped into our memory: a file that
//! shrinks while it is read gives an error here, not a fatal signal.

use std::{fs::File, io, os::unix::fs::FileExt};

use object::elf;

use super::bytes::{u16_at, u32_at, u64_at};
use super::elf_extract::CopyOf;
use super::elf_segments::sections_of_segments;
use crate::model::{Avma, FileOffset, Svma};

/// Entries of the section and program header tables that are read.
const HEADERS_MAX: u64 = 4096;

/// Bytes of a symbol or string table that are read. Chromium's are of this size.
const TABLE_BYTES_MAX: u64 = 64 << 20;

/// Largest table of section names that is read; linked files have some hundred bytes.
const NAMES_BYTES_MAX: u64 = 1 << 20;

/// The kernel maps whole pages of this size.
const PAGE_MASK: u64 = 4095;

const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const SYMBOL_BYTES: usize = 24;

/// The headers of an ELF file, with the file to read more from.
#[derive(Debug)]
pub struct ElfFile<'f> {
    pub(super) file: &'f File,
    pub(super) header: Vec<u8>,
    pub(super) sections: Vec<Section>,
    segments: Segments,
    section_names: Vec<u8>,
}

/// A section header, as far as it matters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    pub(super) name: u32,
    pub(super) kind: u32,
    pub(super) flags: u64,
    pub(super) address: u64,
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) link: u32,
    pub(super) entry_size: u64,
}

/// The parts of a file that are loaded into memory.
#[derive(Clone, Debug, Default)]
pub struct Segments(pub(super) Vec<Segment>);

/// A loadable segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) file_size: u64,
    memory_size: u64,
    pub(super) executable: bool,
    writable: bool,
}

/// Something that a file states the place of in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stated {
    /// Where it begins.
    pub at: Svma,
    /// How many bytes it has; 0: not told.
    pub bytes: u64,
}

/// Which of a file's two symbol tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolTable {
    /// What the file offers to others (`.dynsym`): stays when a file is stripped.
    Dynamic,
    /// Every symbol (`.symtab`).
    Full,
}

impl<'f> ElfFile<'f> {
    /// Reads the headers. Fails with `InvalidData` if it is no 64-bit little-endian ELF file or if its headers lie
    /// outside of it. Costs four reads.
    pub fn parse(file: &'f File) -> io::Result<Self> {
        let header = read(file, 0, HEADER_BYTES as u64)?;
        let expected = [b'\x7f', b'E', b'L', b'F', elf::ELFCLASS64, elf::ELFDATA2LSB];
        if !header.starts_with(&expected) {
            return Err(invalid("not a 64-bit little-endian ELF file"));
        }
        let (segment_table, section_table) = (u64_at(&header, 32), u64_at(&header, 40));
        let (segment_count, section_count) = (
            u64::from(u16_at(&header, 56)),
            u64::from(u16_at(&header, 60)),
        );
        let names = usize::from(u16_at(&header, 62));

        let programs = read(
            file,
            segment_table,
            segment_count.min(HEADERS_MAX) * SEGMENT_BYTES as u64,
        )?;
        let segments = programs
            .chunks_exact(SEGMENT_BYTES)
            .filter_map(Segment::load);
        let segments = Segments(segments.collect());
        // Files without sections still run: only their segments are needed for that.
        let sections = read(
            file,
            section_table,
            section_count.min(HEADERS_MAX) * SECTION_BYTES as u64,
        );
        let sections = sections.unwrap_or_default();
        let sections: Vec<_> = sections
            .chunks_exact(SECTION_BYTES)
            .map(Section::parse)
            .collect();
        let mut parsed = Self {
            file,
            header,
            sections,
            segments,
            section_names: Vec::new(),
        };
        if let Some(&names) = parsed.sections.get(names)
            && names.size <= NAMES_BYTES_MAX
        {
            parsed.section_names = parsed.table(&names).unwrap_or_default();
        }
        if parsed.sections.is_empty() {
            (parsed.sections, parsed.section_names) = sections_of_segments(file, &programs);
        }
        Ok(parsed)
    }

    /// The parts of it that are loaded into memory.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Initial content of memory at a stated address, if it comes from the file.
    pub fn read_at(&self, at: Svma, length: u64) -> Option<Vec<u8>> {
        let inside = |s: &&Segment| {
            at.0 >= s.address && (at.0 - s.address).saturating_add(length) <= s.file_size
        };
        let segment = self.segments.0.iter().find(inside)?;
        read(
            self.file,
            segment.offset.checked_add(at.0 - segment.address)?,
            length,
        )
        .ok()
    }

    /// Addresses of symbols defined in the file, in the order of `wanted`.
    pub fn symbols<const N: usize>(
        &self,
        table: SymbolTable,
        wanted: [&str; N],
    ) -> [Option<Svma>; N] {
        self.sized_symbols(table, wanted)
            .map(|found| found.map(|symbol| symbol.at))
    }

    /// The same, with their sizes.
    pub fn sized_symbols<const N: usize>(
        &self,
        table: SymbolTable,
        wanted: [&str; N],
    ) -> [Option<Stated>; N] {
        let mut found = [None; N];
        let Some((symbols, names)) = self.symbol_sections(table) else {
            return found;
        };
        let (Ok(symbols), Ok(names)) = (self.table(symbols), self.table(names)) else {
            return found;
        };
        for symbol in symbols.chunks_exact(SYMBOL_BYTES) {
            if u16_at(symbol, 6) == elf::SHN_UNDEF {
                continue;
            }
            let Some(name) = names.get(u32_at(symbol, 0) as usize..) else {
                continue;
            };
            let is = |wanted: &&str| {
                name.strip_prefix(wanted.as_bytes())
                    .is_some_and(|rest| rest.first() == Some(&0))
            };
            if let Some(index) = wanted.iter().position(is) {
                found[index].get_or_insert(Stated {
                    at: Svma(u64_at(symbol, 8)),
                    bytes: u64_at(symbol, 16),
                });
            }
        }
        found
    }

    /// Bytes that are read to look for symbols in a table.
    pub(super) fn symbol_bytes(&self, table: SymbolTable) -> u64 {
        let Some((symbols, names)) = self.symbol_sections(table) else {
            return 0;
        };
        symbols.size.saturating_add(names.size)
    }

    /// A symbol table, and the names in it.
    fn symbol_sections(&self, table: SymbolTable) -> Option<(&Section, &Section)> {
        let kind = match table {
            SymbolTable::Dynamic => elf::SHT_DYNSYM,
            SymbolTable::Full => elf::SHT_SYMTAB,
        };
        let symbols = self.sections.iter().find(|section| section.kind == kind)?;
        Some((symbols, self.sections.get(symbols.link as usize)?))
    }

    /// It has a table of all its symbols.
    pub fn has_full_symbols(&self) -> bool {
        self.section(".symtab").is_some()
    }

    /// Bytes of DWARF in it that are used, after decompression: what reading all of it takes, roughly.
    pub fn debug_info_bytes(&self) -> u64 {
        self.sections_to_copy(CopyOf::DebugInfo)
            .map(|(_, section)| self.uncompressed_bytes(section))
            .fold(0, u64::saturating_add)
    }

    /// The build id, by which separate debug information is found; of 8 to 64 bytes.
    pub fn build_id(&self) -> Option<Vec<u8>> {
        let note = self.section_bytes(".note.gnu.build-id", 1024)?;
        let (name_length, length) = (u32_at(note.get(..12)?, 0), u32_at(&note, 4) as usize);
        let is_id = name_length == 4
            && u32_at(&note, 8) == elf::NT_GNU_BUILD_ID
            && note.get(12..16)? == b"GNU\0";
        let id = note.get(16..16_usize.checked_add(length)?)?;
        (is_id && (8..=64).contains(&length)).then(|| id.to_vec())
    }

    /// Content of a section by name; `None` if it is missing, unreadable or longer than `bytes_max`.
    pub fn section_bytes(&self, name: &str, bytes_max: u64) -> Option<Vec<u8>> {
        let section = self.section(name)?;
        if section.kind == elf::SHT_NOBITS || section.size > bytes_max {
            return None;
        }
        read(self.file, section.offset, section.size).ok()
    }

    /// Where a section lies in memory; `None` if it is missing or not loaded.
    pub fn section_place(&self, name: &str) -> Option<Stated> {
        let section = self.section(name)?;
        (section.flags & u64::from(elf::SHF_ALLOC) != 0).then_some(Stated {
            at: Svma(section.address),
            bytes: section.size,
        })
    }

    /// It holds code for x86-64.
    pub fn is_x86_64(&self) -> bool {
        u16_at(&self.header, 18) == elf::EM_X86_64
    }

    pub(super) fn section(&self, name: &str) -> Option<&Section> {
        self.sections
            .iter()
            .find(|section| self.is_called(section, name))
    }

    pub(super) fn is_called(&self, section: &Section, name: &str) -> bool {
        let rest = self.name_onwards(section).strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.first().is_none_or(|&end| end == 0))
    }

    fn uncompressed_bytes(&self, section: &Section) -> u64 {
        if section.kind == elf::SHT_NOBITS {
            return 0;
        }
        if section.flags & u64::from(elf::SHF_COMPRESSED) != 0 {
            // `ch_size` of `Elf64_Chdr`.
            return read(self.file, section.offset, 24)
                .map_or(u64::MAX, |header| u64_at(&header, 8));
        }
        if self.name_onwards(section).starts_with(b".z") {
            // The old GNU form: "ZLIB" and the length, most significant byte first.
            let header = read(self.file, section.offset, 12).ok();
            let length = header.and_then(|header| header.get(4..12)?.try_into().ok());
            return length.map_or(u64::MAX, u64::from_be_bytes);
        }
        section.size
    }

    /// A section's name, which ends at the first zero, and what follows. Looking for that zero would cost as much as the
    /// file wants, for each of its sections.
    fn name_onwards(&self, section: &Section) -> &[u8] {
        self.section_names
            .get(section.name as usize..)
            .unwrap_or_default()
    }

    fn table(&self, section: &Section) -> io::Result<Vec<u8>> {
        if section.kind == elf::SHT_NOBITS || section.size > TABLE_BYTES_MAX {
            return Err(invalid("a table too large to read"));
        }
        read(self.file, section.offset, section.size)
    }
}

impl Segments {
    /// The stated address of what lies at an offset in the file, if that is loaded at all.
    pub fn svma_of(&self, at: FileOffset) -> Option<Svma> {
        let inside = |segment: &&Segment| {
            at.0 >= segment.offset && at.0 - segment.offset < segment.file_size
        };
        let segment = self.0.iter().find(inside)?;
        Some(Svma(segment.address.wrapping_add(at.0 - segment.offset)))
    }

    /// Where the last of its variables ends, and what of the file would be there; what follows in that page belongs to
    /// nobody.
    pub fn end_of_variables(&self) -> Option<(Svma, FileOffset)> {
        let writable = self.0.iter().filter(|segment| segment.writable);
        let ends = writable.filter_map(|segment| {
            let end = segment.address.checked_add(segment.memory_size)?;
            Some((end, segment.offset.checked_add(segment.memory_size)?))
        });
        let (end, offset) = ends.max()?;
        Some((Svma(end), FileOffset(offset)))
    }

    /// What must be added to a stated address to get the one in a process that has the file's code at `begin` from
    /// `offset` on. `None`: no segment begins or goes on there.
    ///
    /// The kernel maps whole pages, so that neighbours can share one: code is asked first.
    pub fn bias(&self, begin: Avma, offset: FileOffset) -> Option<u64> {
        let covers = |s: &&Segment| {
            let pages = s.offset & !PAGE_MASK..s.offset.saturating_add(s.file_size);
            pages.contains(&offset.0)
        };
        let code = self.0.iter().filter(|segment| segment.executable);
        let other = self.0.iter().filter(|segment| !segment.executable);
        let segment = code.chain(other).find(covers)?;
        let stated = segment
            .address
            .wrapping_sub(segment.offset)
            .wrapping_add(offset.0);
        Some(begin.0.wrapping_sub(stated))
    }
}

impl Section {
    fn parse(header: &[u8]) -> Self {
        Self {
            name: u32_at(header, 0),
            kind: u32_at(header, 4),
            flags: u64_at(header, 8),
            address: u64_at(header, 16),
            offset: u64_at(header, 24),
            size: u64_at(header, 32),
            link: u32_at(header, 40),
            entry_size: u64_at(header, 56),
        }
    }
}

impl Segment {
    fn load(header: &[u8]) -> Option<Self> {
        (u32_at(header, 0) == elf::PT_LOAD).then(|| Self {
            executable: u32_at(header, 4) & elf::PF_X != 0,
            writable: u32_at(header, 4) & elf::PF_W != 0,
            offset: u64_at(header, 8),
            address: u64_at(header, 16),
            file_size: u64_at(header, 32),
            memory_size: u64_at(header, 40),
        })
    }
}

/// Reads exactly so much; no memory is taken for what a file does not have.
pub(super) fn read(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let end = offset
        .checked_add(length)
        .ok_or_else(|| invalid("an offset past any file"))?;
    if end > file.metadata()?.len() {
        return Err(invalid("an offset past the end of the file"));
    }
    let mut bytes =
        vec![0; usize::try_from(length).map_err(|_| invalid("a length past any memory"))?];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

pub(super) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn exercise(file: &File) {
        let Ok(elf) = ElfFile::parse(file) else {
            return;
        };
        let _ = elf.symbols(SymbolTable::Dynamic, ["Py_Version", "malloc"]);
        let _ = elf.symbols(SymbolTable::Full, ["main"]);
        let _ = (
            elf.build_id(),
            elf.debug_info_bytes(),
            elf.section_bytes(".rodata", 1 << 20),
            elf.section_place(".data"),
            elf.segments()
                .bias(Avma(0x7f00_0000_0000), FileOffset(0x1000)),
        );
        let _ = (
            elf.segments().svma_of(FileOffset(0x1000)),
            elf.read_at(Svma(0x1000), 16),
        );
    }

    #[test]
    fn knows_its_own_test_program() {
        let file = File::open(std::env::current_exe().expect("own path")).expect("open");
        let elf = ElfFile::parse(&file).expect("parses");
        assert!(elf.has_full_symbols());
        assert!(elf.debug_info_bytes() > 0);
        let [main] = elf.symbols(SymbolTable::Full, ["main"]);
        let main = main.expect("main is defined");
        assert!(elf.read_at(main, 16).is_some());
        assert_eq!(elf.symbols(SymbolTable::Full, ["no such symbol"]), [None]);
    }

    #[test]
    fn where_code_was_mapped_tells_where_everything_is() {
        let file = File::open(std::env::current_exe().expect("own path")).expect("open");
        let elf = ElfFile::parse(&file).expect("parses");
        assert!(elf.is_x86_64());
        assert!(elf.section_place(".data").is_some() && elf.section_place(".none").is_none());
        let own = crate::model::Pid(std::process::id());
        let mappings = crate::process::read_executable_mappings(own).expect("own mappings");
        let [main] = elf.sized_symbols(SymbolTable::Full, ["main"]);
        let main = main.expect("main is defined");
        let here = Avma(exercise as *const () as u64);
        let mut mappings = mappings.mappings.iter();
        let code = mappings.find(|m| m.contains(here)).expect("own code");
        let bias = elf.segments().bias(code.begin, code.file_offset);
        let bias = bias.expect("a segment is mapped there");
        assert!(main.bytes > 0 && code.contains(Avma(bias.wrapping_add(main.at.0))));
        let memory = File::open("/proc/self/mem").expect("own memory");
        let stated = elf.read_at(Svma(here.0.wrapping_sub(bias)), 64);
        assert_eq!(stated, read_memory(&memory, here.0));
    }

    fn read_memory(memory: &File, at: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 64];
        memory.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }

    /// Linkers put code behind constants in one page of the file, which is mapped twice.
    #[test]
    fn a_shared_page_belongs_to_the_code_when_code_is_mapped() {
        let segment = |offset, address, executable| Segment {
            offset,
            address,
            file_size: 0xa40,
            memory_size: 0xa40,
            executable,
            writable: !executable,
        };
        let segments = Segments(vec![
            segment(0x1000, 0x1000, false),
            segment(0x1a40, 0x2a40, true),
        ]);
        let bias = |offset| segments.bias(Avma(0x7000_0000_2000), FileOffset(offset));
        assert_eq!(bias(0x1000), Some(0x7000_0000_0000));
        assert_eq!(bias(0x8000), None);
        let end = (Svma(0x1a40), FileOffset(0x1a40));
        assert_eq!(segments.end_of_variables(), Some(end));
    }

    #[test]
    fn refuses_what_is_no_elf_file() {
        let mut file = tempfile::tempfile().expect("temporary file");
        assert!(ElfFile::parse(&file).is_err());
        file.write_all(b"#!/bin/sh\n").expect("write");
        assert!(ElfFile::parse(&file).is_err());
    }

    /// Every section's name would be searched for its end, through all of the table.
    #[test]
    fn a_huge_table_of_section_names_is_not_read() {
        for (names_bytes, is_read) in [(NAMES_BYTES_MAX, true), (NAMES_BYTES_MAX + 1, false)] {
            let mut bytes = vec![0; 64];
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            bytes[40..48].copy_from_slice(&64_u64.to_le_bytes());
            bytes[60..62].copy_from_slice(&1_u16.to_le_bytes());
            let mut section = [0; SECTION_BYTES];
            section[4..8].copy_from_slice(&elf::SHT_STRTAB.to_le_bytes());
            section[24..32].copy_from_slice(&128_u64.to_le_bytes());
            section[32..40].copy_from_slice(&names_bytes.to_le_bytes());
            bytes.extend(section);
            bytes.resize(128 + names_bytes as usize, b'x');
            let mut file = tempfile::tempfile().expect("temporary file");
            file.write_all(&bytes).expect("write");
            let parsed = ElfFile::parse(&file).expect("parses");
            assert_eq!(!parsed.section_names.is_empty(), is_read);
            assert_eq!(parsed.section_bytes(".rodata", 1 << 20), None);
            assert_eq!(parsed.debug_info_bytes(), 0);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn a_damaged_file_is_never_a_panic(damage in proptest::collection::vec((0_usize..20_000, any::<u8>()), 1..40), header in proptest::collection::vec((0_usize..64, any::<u8>()), 0..4), cut in 0_usize..40_000) {
            let file = crate::process::damaged_vdso(damage.into_iter().chain(header), cut);
            exercise(&file);
        }
    }
}
