//! Copies what names addresses out of an ELF file: for the process that parses symbols, which has no file system.
//!
//! Sections are chosen by name out of two fixed lists, whatever kind their headers claim, and get the kind that belongs
//! to that name. No section that leads to another file (`.gnu_debuglink`, `.gnu_debugaltlink`, `.debug_sup`, DWARF's
//! split units) is in a list, so that the parser of the copy cannot learn of a path to open.

use std::{
    fs::File,
    io::{self, Write},
};

use object::elf;

use super::elf::{ElfFile, Section, read};

/// Bytes that are copied of one file. libpython has 0.8 MiB of symbols; the largest libraries have some 100 MiB.
pub const COPY_BYTES_MAX: u64 = 128 << 20;

/// Copied to name functions. The first four are needed for that; the others are left out of a copy that would become
/// too large.
const SYMBOL_SECTIONS: [&str; 15] = [
    ".symtab",
    ".strtab",
    ".dynsym",
    ".dynstr",
    ".eh_frame_hdr",
    ".eh_frame",
    ".gnu_debugdata",
    ".rela.plt",
    ".plt",
    ".plt.sec",
    ".plt.got",
    ".iplt",
    ".rela.dyn",
    ".got",
    ".got.plt",
];

/// Those of `SYMBOL_SECTIONS` without which there are no names.
const NEEDED: usize = 4;

/// Copied for inlined calls, files and lines.
const DEBUG_SECTIONS: [&str; 10] = [
    ".debug_info",
    ".debug_abbrev",
    ".debug_line",
    ".debug_str",
    ".debug_line_str",
    ".debug_str_offsets",
    ".debug_addr",
    ".debug_aranges",
    ".debug_ranges",
    ".debug_rnglists",
];

/// The same in the old compressed form.
const COMPRESSED_DEBUG_SECTIONS: [&str; 10] = [
    ".zdebug_info",
    ".zdebug_abbrev",
    ".zdebug_line",
    ".zdebug_str",
    ".zdebug_line_str",
    ".zdebug_str_offsets",
    ".zdebug_addr",
    ".zdebug_aranges",
    ".zdebug_ranges",
    ".zdebug_rnglists",
];

const HEADER_BYTES: u64 = 64;
const PIECE_BYTES: u64 = 1 << 20;

/// What a copy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOf {
    /// Names of functions, and where they begin and end.
    Symbols,
    /// DWARF, as far as it says which calls were inlined, and which line is executed.
    DebugInfo,
}

/// A small ELF file that can be written, with some sections of another one.
///
/// Sections keep their numbers. Those that are not copied have no content, but keep their place in memory, so that a
/// symbol can be kept within its section. There are no segments.
#[derive(Debug)]
pub struct ElfCopy<'f> {
    file: &'f File,
    header: [u8; HEADER_BYTES as usize],
    /// Offsets and sizes in the file, in the order in which they are written.
    contents: Vec<(u64, u64)>,
    names: Vec<u8>,
    headers: Vec<u8>,
    bytes: u64,
}

impl ElfFile<'_> {
    /// The sections that a copy has: the first one of each name.
    pub(super) fn sections_to_copy(
        &self,
        what: CopyOf,
    ) -> impl Iterator<Item = (&'static str, &Section)> {
        let (first, second): (&[&'static str], &[&'static str]) = match what {
            CopyOf::Symbols => (&SYMBOL_SECTIONS, &[]),
            CopyOf::DebugInfo => (&DEBUG_SECTIONS, &COMPRESSED_DEBUG_SECTIONS),
        };
        first.iter().enumerate().filter_map(move |(at, &name)| {
            let plain = self.section(name).map(|section| (name, section));
            let found = plain.or_else(|| {
                let name = *second.get(at)?;
                Some((name, self.section(name)?))
            });
            found.filter(|(_, section)| section.kind != elf::SHT_NOBITS && section.size > 0)
        })
    }

    /// Plans a copy. Fails with `FileTooLarge` if the sections that are needed have more than 128 MiB.
    pub fn copy_of(&self, what: CopyOf) -> io::Result<ElfCopy<'_>> {
        let mut copied: Vec<Option<(&'static str, u64)>> = vec![None; self.sections.len()];
        let (mut at, mut contents) = (HEADER_BYTES, Vec::new());
        for (name, section) in self.sections_to_copy(what) {
            let begin = at.next_multiple_of(8);
            let end = begin
                .checked_add(section.size)
                .filter(|&end| end <= COPY_BYTES_MAX);
            let Some(end) = end else {
                if what == CopyOf::Symbols && !SYMBOL_SECTIONS[..NEEDED].contains(&name) {
                    continue;
                }
                return Err(io::Error::from(io::ErrorKind::FileTooLarge));
            };
            let index = self
                .sections
                .iter()
                .position(|it| std::ptr::eq(it, section));
            let Some(slot) = index.and_then(|index| copied.get_mut(index)) else {
                continue;
            };
            // One section may have one name only, but a header may be the end of another name, too.
            if slot.is_none() {
                *slot = Some((name, begin));
                contents.push((section.offset, section.size));
                at = end;
            }
        }

        let mut names = vec![0];
        let mut headers = Vec::with_capacity((self.sections.len() + 1) * 64);
        let index_of = |wanted: &str| {
            let found = copied
                .iter()
                .position(|it| it.is_some_and(|(name, _)| name == wanted));
            found.unwrap_or(0) as u32
        };
        for (section, slot) in self.sections.iter().zip(&copied) {
            headers.extend_from_slice(&match slot {
                Some((name, offset)) => Header {
                    name: add_name(&mut names, name),
                    kind: kind_of(name),
                    flags: section.flags,
                    address: section.address,
                    offset: *offset,
                    size: section.size,
                    link: match *name {
                        ".symtab" => index_of(".strtab"),
                        ".dynsym" => index_of(".dynstr"),
                        ".rela.plt" | ".rela.dyn" => index_of(".dynsym"),
                        _ => 0,
                    },
                    // Of jump stubs, too: how long each of them is.
                    entry_size: if kind_of(name) == elf::SHT_PROGBITS && !name.contains("plt") {
                        0
                    } else {
                        section.entry_size
                    },
                }
                .encode(),
                None if section.flags & u64::from(elf::SHF_ALLOC) != 0 => Header {
                    kind: elf::SHT_NOBITS,
                    flags: section.flags,
                    address: section.address,
                    size: section.size,
                    ..Header::default()
                }
                .encode(),
                None => [0; 64],
            });
        }
        // One more, at the end, for the names of sections.
        let names_name = add_name(&mut names, ".shstrtab");
        let names_at = at.next_multiple_of(8);
        headers.extend_from_slice(
            &Header {
                name: names_name,
                kind: elf::SHT_STRTAB,
                offset: names_at,
                size: names.len() as u64,
                ..Header::default()
            }
            .encode(),
        );
        let table = (names_at + names.len() as u64).next_multiple_of(8);
        Ok(ElfCopy {
            file: self.file,
            header: self.encode_header(table),
            contents,
            names,
            bytes: table + headers.len() as u64,
            headers,
        })
    }

    fn encode_header(&self, section_table: u64) -> [u8; HEADER_BYTES as usize] {
        let mut header = [0; HEADER_BYTES as usize];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &elf::ELFMAG);
        put(4, &[elf::ELFCLASS64, elf::ELFDATA2LSB, elf::EV_CURRENT]);
        // Kind of file and machine.
        put(16, &self.header[16..20]);
        put(20, &u32::from(elf::EV_CURRENT).to_le_bytes());
        put(40, &section_table.to_le_bytes());
        put(52, &64_u16.to_le_bytes());
        put(58, &64_u16.to_le_bytes());
        let sections = self.sections.len() as u16;
        put(60, &(sections + 1).to_le_bytes());
        put(62, &sections.to_le_bytes());
        header
    }
}

impl ElfCopy<'_> {
    /// Bytes that it has.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes exactly the given number of bytes. What cannot be read any more, because the file has become shorter, is zeros.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let mut at = HEADER_BYTES;
        out.write_all(&self.header)?;
        for &(offset, size) in &self.contents {
            at = pad(out, at)?;
            let mut done = 0;
            while done < size {
                let length = PIECE_BYTES.min(size - done);
                let piece = read(self.file, offset.saturating_add(done), length);
                out.write_all(&piece.unwrap_or_else(|_| vec![0; length as usize]))?;
                done += length;
            }
            at += size;
        }
        at = pad(out, at)?;
        out.write_all(&self.names)?;
        pad(out, at + self.names.len() as u64)?;
        out.write_all(&self.headers)
    }
}

/// Zeros up to the next multiple of eight.
fn pad(out: &mut impl Write, at: u64) -> io::Result<u64> {
    let next = at.next_multiple_of(8);
    out.write_all(&[0; 8][..(next - at) as usize])?;
    Ok(next)
}

fn add_name(names: &mut Vec<u8>, name: &str) -> u32 {
    let at = names.len() as u32;
    names.extend_from_slice(name.as_bytes());
    names.push(0);
    at
}

/// The kind of section that a name stands for.
fn kind_of(name: &str) -> u32 {
    match name {
        ".symtab" => elf::SHT_SYMTAB,
        ".dynsym" => elf::SHT_DYNSYM,
        ".strtab" | ".dynstr" => elf::SHT_STRTAB,
        ".rela.plt" | ".rela.dyn" => elf::SHT_RELA,
        _ => elf::SHT_PROGBITS,
    }
}

/// A section header, alignment aside: that matters to nobody who reads tables.
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    name: u32,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    size: u64,
    link: u32,
    entry_size: u64,
}

impl Header {
    fn encode(self) -> [u8; 64] {
        let mut header = [0; 64];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.name.to_le_bytes());
        put(4, &self.kind.to_le_bytes());
        put(8, &self.flags.to_le_bytes());
        put(16, &self.address.to_le_bytes());
        put(24, &self.offset.to_le_bytes());
        put(32, &self.size.to_le_bytes());
        put(40, &self.link.to_le_bytes());
        put(48, &8_u64.to_le_bytes());
        put(56, &self.entry_size.to_le_bytes());
        header
    }
}

#[cfg(test)]
#[path = "elf_extract_tests.rs"]
mod tests;
