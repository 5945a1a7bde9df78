//! From an address in a file to the functions there: what the symbol process does with the copies that it gets.
//!
//! Everything works on bytes in memory. The libraries that take part (addr2line, gimli, object) are compiled without
//! the parts of them that open files, so that no content of a file can make them open another one.

use std::{borrow::Cow, cell::OnceCell, io::Read as _};

use addr2line::Context;
use gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};
use object::{
    Endianness, elf,
    read::elf::{FileHeader as _, SectionHeader as _},
};

use crate::{model::Svma, symbols::elf_names::ElfNames};

use super::{
    demangle::demangled,
    protocol::{FRAMES_MAX, Found, FoundPlace, NAME_BYTES_MAX, Part},
};

/// Behind the name of the function that a jump stub leads to.
const STUB_MARK: &str = "@plt";

type Header = elf::FileHeader64<Endianness>;
type Reader<'b> = EndianSlice<'b, LittleEndian>;

/// A file with all that was sent of it.
#[derive(Default)]
pub(super) struct SymbolFile<'b> {
    own: Option<&'b [u8]>,
    separate: Option<&'b [u8]>,
    /// Made of both when the first address is looked up.
    names: OnceCell<Option<ElfNames<'b>>>,
    debug: Option<Context<Reader<'b>>>,
}

impl<'b> SymbolFile<'b> {
    /// Adds the symbols in an ELF file.
    pub(super) fn add_symbols(&mut self, part: Part, image: &'b [u8]) {
        match part {
            Part::Own => self.own = Some(image),
            Part::Separate => self.separate = Some(image),
            Part::DebugInfo => return,
        }
        self.names = OnceCell::new();
    }

    /// Adds debug information.
    pub(super) fn add_debug_info(&mut self, sections: &'b DebugSections<'b>) {
        self.debug = sections.context();
    }

    /// What is known of an address. Debug information knows of inlined calls, files and lines; which function it is, and
    /// where that begins, is known better by [`ElfNames`], if it has a name.
    pub(super) fn find(&self, at: u64, with_debug_info: bool) -> FoundPlace {
        let names = self.names.get_or_init(|| {
            let own = self.own.or(self.separate)?;
            ElfNames::read(own, self.separate).ok()
        });
        let symbol = names.as_ref().and_then(|names| names.look_up(Svma(at)));
        // A jump stub is the linker's: nothing else describes it.
        let is_stub = symbol.is_some_and(|symbol| symbol.is_stub);
        let mut frames = match &self.debug {
            Some(context) if with_debug_info && !is_stub => {
                frames_of(context, at).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        if let Some(name) = symbol.and_then(|symbol| symbol.name) {
            let mut name = demangled(&String::from_utf8_lossy(name));
            if is_stub {
                name.truncate(name.floor_char_boundary(NAME_BYTES_MAX - STUB_MARK.len()));
                name.push_str(STUB_MARK);
            }
            match frames.last_mut() {
                Some(outermost) => outermost.name = name,
                None => frames.push(named(name)),
            }
        }
        // A function may be described by its lines alone.
        frames.retain(|frame| !frame.name.is_empty());
        let start = symbol.map(|symbol| symbol.start.0);
        FoundPlace {
            start: start.filter(|_| frames.is_empty()),
            frames,
        }
    }
}

/// As much of a path as is kept.
fn beginning(path: &str) -> String {
    path[..path.floor_char_boundary(NAME_BYTES_MAX)].to_owned()
}

fn named(name: String) -> Found {
    Found {
        name,
        file: None,
        line: None,
    }
}

/// What debug information says of an address: the calls that were inlined there, and the function.
fn frames_of(context: &Context<Reader<'_>>, at: u64) -> Option<Vec<Found>> {
    // Split units are in other files, which nobody looks for.
    let mut found = context.find_frames(at).skip_all_loads().ok()?;
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = found.next() {
        let name = frame.function.as_ref().and_then(|it| it.raw_name().ok());
        let location = frame.location.as_ref();
        let found = Found {
            name: name.map_or_else(String::new, |name| demangled(&name)),
            file: location.and_then(|it| it.file).map(beginning),
            line: location.and_then(|it| it.line),
        };
        // The last frame is the function itself: it takes the place of the last call there is room for.
        if frames.len() == FRAMES_MAX {
            frames.pop();
        }
        frames.push(found);
    }
    (!frames.is_empty()).then_some(frames)
}

/// The sections of DWARF that are used, decompressed.
pub(super) struct DebugSections<'b>(Vec<(SectionId, Cow<'b, [u8]>)>);

impl<'b> DebugSections<'b> {
    /// Takes them out of an ELF file. Fails where decompressing gives more than a section
    /// says that it has, or more than `bytes_max` in all.
    pub(super) fn read(image: &'b [u8], bytes_max: u64) -> Option<Self> {
        let header = Header::parse(image).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, image).ok()?;
        let mut left = bytes_max;
        let mut found = Vec::new();
        for section in sections.iter() {
            let Ok(name) = sections.section_name(endian, section) else {
                continue;
            };
            let Ok(data) = section.data(endian, image) else {
                continue;
            };
            let (id, content) = if let Some(id) = id_of(name) {
                let compressed = section.sh_flags(endian) & u64::from(elf::SHF_COMPRESSED) != 0;
                (
                    id,
                    if compressed {
                        decompress(data, left)?
                    } else {
                        data.into()
                    },
                )
            } else if let Some(id) = old_id_of(name) {
                let data = data.strip_prefix(b"ZLIB")?;
                let stated = u64::from_be_bytes(*data.first_chunk()?);
                (id, Cow::Owned(inflate(&data[8..], left.min(stated))?))
            } else {
                continue;
            };
            left = left.saturating_sub(content.len() as u64);
            found.push((id, content));
        }
        Some(Self(found))
    }

    /// Ready to look up addresses; `None`: there is no debug information, or it is damaged.
    pub(super) fn context(&'b self) -> Option<Context<Reader<'b>>> {
        if self.0.is_empty() {
            return None;
        }
        let section = |id: SectionId| -> Result<Reader<'b>, gimli::Error> {
            let found = self.0.iter().find(|(known, _)| *known == id);
            let bytes = found.map_or(&[][..], |(_, bytes)| bytes);
            Ok(EndianSlice::new(bytes, LittleEndian))
        };
        Context::from_dwarf(Dwarf::load(section).ok()?).ok()
    }
}

fn id_of(name: &[u8]) -> Option<SectionId> {
    USED.into_iter().find(|id| id.name().as_bytes() == name)
}

/// `.zdebug_…` stands for `.debug_…`.
fn old_id_of(name: &[u8]) -> Option<SectionId> {
    let rest = name.strip_prefix(b".z")?;
    USED.into_iter()
        .find(|id| id.name().as_bytes().strip_prefix(b".") == Some(rest))
}

const USED: [SectionId; 10] = [
    SectionId::DebugInfo,
    SectionId::DebugAbbrev,
    SectionId::DebugLine,
    SectionId::DebugStr,
    SectionId::DebugLineStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
];

/// A section with a header that says how it is compressed, and what it has then (`Elf64_Chdr`).
fn decompress(data: &[u8], bytes_max: u64) -> Option<Cow<'_, [u8]>> {
    let kind = u32::from_le_bytes(*data.first_chunk()?);
    let stated = u64::from_le_bytes(*data.get(8..)?.first_chunk()?);
    let bytes_max = bytes_max.min(stated);
    let content = data.get(24..)?;
    match kind {
        elf::ELFCOMPRESS_ZLIB => inflate(content, bytes_max).map(Cow::Owned),
        elf::ELFCOMPRESS_ZSTD => {
            let decoder = zstd::stream::Decoder::with_buffer(content).ok()?;
            at_most(decoder, bytes_max).map(Cow::Owned)
        }
        _ => None,
    }
}

fn inflate(data: &[u8], bytes_max: u64) -> Option<Vec<u8>> {
    at_most(flate2::bufread::ZlibDecoder::new(data), bytes_max)
}

/// All that comes out; `None` if it is damaged or more.
fn at_most(decoder: impl std::io::Read, bytes_max: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    decoder
        .take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)
        .ok()?;
    (bytes.len() as u64 <= bytes_max).then_some(bytes)
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
