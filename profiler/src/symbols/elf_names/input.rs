//! Section headers and string tables, read out of bytes that may be anything.

use std::{borrow::Cow, ops::Range};

use object::elf;

use super::ElfNamesError;
use crate::process::{u16_at, u32_at, u64_at};

/// Most section headers that are read; linked files have some dozens.
const SECTIONS_MAX: usize = 4096;

/// Longest name of a section that matters, and more.
const SECTION_NAME_BYTES: usize = 32;

/// Bytes of string tables that are kept of a file, all together. The largest libraries have some 30 MiB.
const STRING_BYTES_MAX: usize = 64 << 20;

/// Longest name of a symbol that is kept, in bytes. C++ templates reach some thousand.
const NAME_BYTES_MAX: usize = 16 << 10;

const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;

/// A section, as far as it matters.
#[derive(Clone, Debug)]
pub(super) struct Section<'f> {
    name: &'f [u8],
    pub(super) kind: u32,
    flags: u64,
    /// The addresses that the file states for it.
    pub(super) range: Range<u64>,
    /// Its bytes; empty if the file does not have them.
    pub(super) bytes: &'f [u8],
    /// The index of another section.
    pub(super) link: usize,
    /// Bytes of each of its entries, if it is a table.
    pub(super) entry_bytes: u64,
}

impl Section<'_> {
    pub(super) fn is_called(&self, name: &[u8]) -> bool {
        self.name == name
    }

    /// It is loaded, and can be run.
    pub(super) fn is_code(&self) -> bool {
        let wanted = u64::from(elf::SHF_ALLOC | elf::SHF_EXECINSTR);
        self.flags & wanted == wanted && !self.range.is_empty()
    }
}

/// The section has jump stubs of the linker: `.plt`, `.plt.got`, `.plt.sec`, `.iplt`, …
pub(super) fn is_stub_section(section: &Section<'_>) -> bool {
    let is_named = section.is_called(b".plt")
        || section.is_called(b".iplt")
        || section.name.starts_with(b".plt.");
    is_named && section.is_code()
}

/// All sections of a file, by their index.
pub(super) fn sections(file: &[u8]) -> Result<Vec<Section<'_>>, ElfNamesError> {
    let expected = [b'\x7f', b'E', b'L', b'F', elf::ELFCLASS64, elf::ELFDATA2LSB];
    if !file.starts_with(&expected) || file.len() < HEADER_BYTES {
        return Err(ElfNamesError::NotElf);
    }
    let count = usize::from(u16_at(file, 60)).min(SECTIONS_MAX);
    let table = part(file, u64_at(file, 40), (count * SECTION_BYTES) as u64);
    if table.is_empty() {
        return Err(ElfNamesError::NoSections);
    }
    let names = table
        .chunks_exact(SECTION_BYTES)
        .nth(u16_at(file, 62).into())
        .map_or(&[][..], |header| content(file, header));
    let read = |header| Section {
        name: section_name(names, u32_at(header, 0) as usize),
        kind: u32_at(header, 4),
        flags: u64_at(header, 8),
        range: u64_at(header, 16)..u64_at(header, 16).saturating_add(u64_at(header, 32)),
        bytes: content(file, header),
        link: u32_at(header, 40) as usize,
        entry_bytes: u64_at(header, 56),
    };
    Ok(table.chunks_exact(SECTION_BYTES).map(read).collect())
}

fn content<'f>(file: &'f [u8], header: &[u8]) -> &'f [u8] {
    if u32_at(header, 4) == elf::SHT_NOBITS {
        return &[];
    }
    part(file, u64_at(header, 24), u64_at(header, 32))
}

fn section_name(names: &[u8], at: usize) -> &[u8] {
    let rest = names.get(at..).unwrap_or_default();
    let rest = &rest[..rest.len().min(SECTION_NAME_BYTES)];
    // A name that goes on is none of those that matter.
    rest.iter()
        .position(|&byte| byte == 0)
        .map_or(&[], |end| &rest[..end])
}

/// `length` bytes at an offset; none if the file does not have them all.
fn part(file: &[u8], offset: u64, length: u64) -> &[u8] {
    let range = usize::try_from(offset)
        .ok()
        .zip(usize::try_from(length).ok())
        .and_then(|(begin, length)| Some(begin..begin.checked_add(length)?));
    range.and_then(|range| file.get(range)).unwrap_or_default()
}

/// String tables.
#[derive(Debug, Default)]
pub(super) struct Strings<'f> {
    tables: Vec<Cow<'f, [u8]>>,
}

/// A name in one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NameRef {
    table: u8,
    offset: u32,
}

impl<'f> Strings<'f> {
    /// Keeps a string table. `None`: there is no room for it.
    pub(super) fn add(&mut self, table: Cow<'f, [u8]>) -> Option<u8> {
        let number = u8::try_from(self.tables.len()).ok()?;
        if table.len() > STRING_BYTES_MAX - self.bytes() {
            return None;
        }
        self.tables.push(table);
        Some(number)
    }

    /// A name: up to the zero behind it, and without the version that some linkers put there (`memcpy@@GLIBC_2.14`).
    pub(super) fn get(&self, name: NameRef) -> &[u8] {
        let name = self.start_of(name, NAME_BYTES_MAX);
        match name.iter().position(|&byte| byte == b'@') {
            Some(version) if version > 0 => &name[..version],
            _ => name,
        }
    }

    /// The first bytes of a name, at most `bytes_max`.
    pub(super) fn start_of(&self, name: NameRef, bytes_max: usize) -> &[u8] {
        let table = self.tables.get(usize::from(name.table));
        let rest = table
            .and_then(|table| table.get(name.offset as usize..))
            .unwrap_or_default();
        let rest = &rest[..rest.len().min(bytes_max)];
        let end = rest.iter().position(|&byte| byte == 0);
        &rest[..end.unwrap_or(rest.len())]
    }

    pub(super) fn bytes(&self) -> usize {
        self.tables.iter().map(|table| table.len()).sum()
    }
}

impl NameRef {
    pub(super) const fn new(table: u8, offset: u32) -> Self {
        Self { table, offset }
    }
}
