//! The parts of a loaded file, written to where the file has them, with section headers.

use std::{
    fs::File,
    hash::{DefaultHasher, Hasher as _},
    io,
    os::unix::fs::FileExt as _,
};

use object::elf;

use super::{Dynamic, Loaded, Part, Program, SYMBOL_BYTES};
use crate::process::{
    bytes::{u16_at, u32_at, u64_at},
    elf::invalid,
    file::FILE_BYTES_MAX,
};

/// Files are copied with code and constants up to this size, and others that are an interpreter or a C library up to
/// the next: their code is looked at.
const SMALL_BYTES_MAX: u64 = 4 << 20;
const NEEDED_BYTES_MAX: u64 = 48 << 20;

/// Symbols of files whose code is looked at: parts of the evaluation loop are found by its jumps, and where stacks end in
/// a C library by its calls.
const NEEDS_CODE: [&[u8]; 4] = [
    b"_PyEval_EvalFrameDefault",
    b"Py_GetVersion",
    b"exit",
    b"pthread_exit",
];

/// Bytes that are read at a time.
const PIECE_BYTES: u64 = 1 << 20;

const SECTION_BYTES: usize = 64;

/// Writes the copy.
pub(super) struct Writer<'l, 'm> {
    loaded: &'l Loaded<'m>,
    copy: &'l File,
    /// Of everything that was written, and where.
    pub(super) hasher: DefaultHasher,
    /// Bytes that it may still have.
    pub(super) left: u64,
    sections: Sections,
}

/// Symbols and their names.
struct Symbols {
    table: Read,
    names: Read,
}

/// A part of the file that was read.
struct Read {
    part: Part,
    offset: u64,
    bytes: Vec<u8>,
}

impl Symbols {
    fn read(loaded: &Loaded<'_>, dynamic: &Dynamic) -> Option<Self> {
        let read = |part| {
            Some(Read {
                part,
                offset: loaded.offset_of(part)?,
                bytes: loaded.read_part(part)?,
            })
        };
        Some(Self {
            table: read(dynamic.symbols)?,
            names: read(dynamic.names)?,
        })
    }

    /// The file defines one of [`NEEDS_CODE`].
    fn need_code(&self) -> bool {
        let mut symbols = self.table.bytes.chunks_exact(SYMBOL_BYTES as usize);
        symbols.any(|symbol| {
            let names = &self.names.bytes;
            let name = names.get(u32_at(symbol, 0) as usize..).unwrap_or_default();
            let is = |wanted: &[u8]| {
                let rest = name.strip_prefix(wanted);
                rest.is_some_and(|rest| rest.first() == Some(&0))
            };
            u16_at(symbol, 6) != elf::SHN_UNDEF && NEEDS_CODE.iter().any(|wanted| is(wanted))
        })
    }
}

impl<'l, 'm> Writer<'l, 'm> {
    pub(super) fn new(
        loaded: &'l Loaded<'m>,
        copy: &'l File,
        hasher: DefaultHasher,
        bytes_max: u64,
    ) -> Self {
        Self {
            loaded,
            copy,
            hasher,
            left: bytes_max,
            sections: Sections::default(),
        }
    }

    /// Writes what is needed of the file.
    pub(super) fn write_all(&mut self) -> io::Result<()> {
        let loaded = self.loaded;
        let segments = self.add_segments();
        let symbols = loaded.dynamic().and_then(|it| Symbols::read(loaded, &it));
        let eh_frame = loaded.eh_frame();
        let is_needed = eh_frame.is_none() || symbols.as_ref().is_some_and(Symbols::need_code);
        let most = if is_needed {
            NEEDED_BYTES_MAX
        } else {
            SMALL_BYTES_MAX
        };
        let parts = || {
            segments
                .iter()
                .filter(|(segment, _)| !segment.is_writable())
        };
        let bytes = parts().map(|(segment, _)| segment.file_size);
        if bytes.fold(0, u64::saturating_add) <= most.min(self.left) {
            for (segment, _) in parts() {
                // Pages that cannot be read stay zeros.
                self.write_part(segment.part(), true)?;
            }
        }
        if let Some(symbols) = symbols {
            self.write_symbols(symbols, &segments)?;
        }
        for (name, kind, part) in [
            (".eh_frame", elf::SHT_PROGBITS, eh_frame),
            (".note.gnu.build-id", elf::SHT_NOTE, loaded.build_id()),
        ] {
            if let Some(part) = part
                && let Some(offset) = loaded.offset_of(part)
            {
                self.write_part(part, false)?;
                self.sections.add(name, Section::new(kind, part, offset));
            }
        }
        self.write_headers()
    }

    /// A section for each segment. Gives them with their numbers.
    fn add_segments(&mut self) -> Vec<(Program, u16)> {
        let loaded = self.loaded;
        let constants = loaded.segments().filter(|it| it.holds_constants());
        // The linker puts constants behind the code, and tables for the loader in front of it.
        let last_constants = constants.last().map(|it| it.address);
        let sections = loaded.segments().map(|segment| {
            let (name, more) = match () {
                () if segment.is_code() => (".text", elf::SHF_EXECINSTR),
                () if segment.is_writable() => (".data", elf::SHF_WRITE),
                () if Some(segment.address) == last_constants => (".rodata", 0),
                () => (".loader", 0),
            };
            let section = Section {
                flags: u64::from(elf::SHF_ALLOC | more),
                ..Section::new(elf::SHT_PROGBITS, segment.part(), segment.offset)
            };
            (*segment, self.sections.add(name, section))
        });
        sections.collect()
    }

    fn write_symbols(&mut self, symbols: Symbols, segments: &[(Program, u16)]) -> io::Result<()> {
        let Symbols { table, names } = symbols;
        self.write(names.offset, &names.bytes)?;
        self.write(table.offset, &renumbered(table.bytes, segments))?;
        let names = Section::new(elf::SHT_STRTAB, names.part, names.offset);
        let link = self.sections.add(".dynstr", names).into();
        let table = Section {
            link,
            entry_size: SYMBOL_BYTES,
            ..Section::new(elf::SHT_DYNSYM, table.part, table.offset)
        };
        self.sections.add(".dynsym", table);
        Ok(())
    }

    /// Copies a part to its place. What cannot be read is an error, or stays zeros.
    fn write_part(&mut self, part: Part, may_have_gaps: bool) -> io::Result<()> {
        let mut done = 0;
        while done < part.bytes {
            let piece = Part {
                address: part.address.wrapping_add(done),
                bytes: PIECE_BYTES.min(part.bytes - done),
            };
            done += piece.bytes;
            match (self.loaded.read_part(piece), self.loaded.offset_of(piece)) {
                (Some(bytes), Some(offset)) => self.write(offset, &bytes)?,
                _ if may_have_gaps => {}
                _ => return Err(invalid("a part that is not loaded")),
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or_else(|| invalid("more than is copied of loaded files"))?;
        if offset.saturating_add(bytes.len() as u64) > FILE_BYTES_MAX {
            return Err(invalid("an offset past any file"));
        }
        self.hasher.write_u64(offset);
        self.hasher.write(bytes);
        self.copy.write_all_at(bytes, offset)
    }

    /// The file header, the program headers, and the section headers behind everything else.
    fn write_headers(&mut self) -> io::Result<()> {
        let ends = self
            .loaded
            .segments()
            .map(|it| it.offset.saturating_add(it.file_size));
        let end = ends
            .max()
            .unwrap_or_default()
            .max(self.copy.metadata()?.len());
        let table_of_programs = u64_at(&self.loaded.header, 32);
        let end = end.max(table_of_programs.saturating_add(self.loaded.program_bytes.len() as u64));
        if end > FILE_BYTES_MAX / 2 {
            return Err(invalid("segments past the size of any file"));
        }
        let names_at = end.next_multiple_of(8);
        let (names, headers) = self.sections.encode(names_at);
        let headers_at = (names_at + names.len() as u64).next_multiple_of(8);
        let count = (headers.len() / SECTION_BYTES) as u16;
        let mut header = self.loaded.header;
        header[40..48].copy_from_slice(&headers_at.to_le_bytes());
        header[56..58].copy_from_slice(&(self.loaded.programs.len() as u16).to_le_bytes());
        header[58..60].copy_from_slice(&(SECTION_BYTES as u16).to_le_bytes());
        header[60..62].copy_from_slice(&count.to_le_bytes());
        header[62..64].copy_from_slice(&(count - 1).to_le_bytes());
        let programs = self.loaded.program_bytes.clone();
        self.write(names_at, &names)?;
        self.write(headers_at, &headers)?;
        self.write(table_of_programs, &programs)?;
        self.write(0, &header)
    }
}

/// Symbols whose section numbers are those of the copy's segments.
fn renumbered(mut symbols: Vec<u8>, segments: &[(Program, u16)]) -> Vec<u8> {
    for symbol in symbols.chunks_exact_mut(SYMBOL_BYTES as usize) {
        if matches!(u16_at(symbol, 6), elf::SHN_UNDEF | elf::SHN_ABS) {
            continue;
        }
        let at = u64_at(symbol, 8);
        let holds = |(segment, _): &&(Program, u16)| {
            at >= segment.address && at - segment.address < segment.memory_size
        };
        let section = segments.iter().find(holds).map_or(elf::SHN_ABS, |it| it.1);
        symbol[6..8].copy_from_slice(&section.to_le_bytes());
    }
    symbols
}

/// A section header that is to be written.
struct Section {
    kind: u32,
    flags: u64,
    part: Part,
    offset: u64,
    link: u32,
    entry_size: u64,
}

impl Section {
    fn new(kind: u32, part: Part, offset: u64) -> Self {
        Self {
            kind,
            flags: elf::SHF_ALLOC.into(),
            part,
            offset,
            link: 0,
            entry_size: 0,
        }
    }
}

/// All section headers, behind the empty one.
#[derive(Default)]
struct Sections(Vec<(&'static str, Section)>);

impl Sections {
    /// Gives its number.
    fn add(&mut self, name: &'static str, section: Section) -> u16 {
        self.0.push((name, section));
        self.0.len() as u16
    }

    /// The table of names, which is to be at `names_at` in the file, and the headers, the last of which is that table's.
    fn encode(&self, names_at: u64) -> (Vec<u8>, Vec<u8>) {
        const NAMES: &str = ".shstrtab";
        let mut names = vec![0];
        let mut headers = vec![0; SECTION_BYTES];
        let mut put = |name: &str, section: &Section, bytes: u64| {
            let mut header = [0; SECTION_BYTES];
            let mut field = |at: usize, bytes: &[u8]| {
                header[at..at + bytes.len()].copy_from_slice(bytes);
            };
            field(0, &(names.len() as u32).to_le_bytes());
            field(4, &section.kind.to_le_bytes());
            field(8, &section.flags.to_le_bytes());
            field(16, &section.part.address.to_le_bytes());
            field(24, &section.offset.to_le_bytes());
            field(32, &bytes.to_le_bytes());
            field(40, &section.link.to_le_bytes());
            field(48, &8_u64.to_le_bytes());
            field(56, &section.entry_size.to_le_bytes());
            headers.extend_from_slice(&header);
            names.extend_from_slice(name.as_bytes());
            names.push(0);
        };
        for (name, section) in &self.0 {
            put(name, section, section.part.bytes);
        }
        let own = Section {
            flags: 0,
            ..Section::new(elf::SHT_STRTAB, Part::default(), names_at)
        };
        let names_bytes = 1
            + NAMES.len() as u64
            + 1
            + self
                .0
                .iter()
                .map(|(name, _)| name.len() as u64 + 1)
                .sum::<u64>();
        put(NAMES, &own, names_bytes);
        (names, headers)
    }
}
