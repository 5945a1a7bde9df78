//! Section headers for a file that has none, made of what the dynamic loader reads: program headers and the dynamic
//! section. Such files run, and have the symbols that they offer to others, their unwind information and jump stubs.

use std::{fs::File, ops::Range};

use object::elf;

use super::{
    bytes::{u32_at, u64_at},
    elf::{Section, read},
};

/// Entries of the dynamic section that are read, of 16 bytes.
const DYNAMIC_ENTRIES_MAX: u64 = 4096;

/// Most buckets of a hash table of symbols.
const BUCKETS_MAX: u64 = 1 << 20;

/// Symbols of one bucket that are looked at.
const CHAIN_MAX: u64 = 4096;

/// Most jump stubs whose slots are read.
const STUBS_MAX: u64 = 1 << 16;

const PROGRAM_BYTES: usize = 56;
const SYMBOL_BYTES: u64 = 24;
const RELOCATION_BYTES: u64 = 24;
const STUB_BYTES: u64 = 16;
/// How the header of `.eh_frame` states where that is: four bytes, relative to themselves.
const RELATIVE_4: u8 = 0x1b;

/// The sections, and the table of their names. The first one is code: in a file with section headers, it is none.
pub(super) fn sections_of_segments(file: &File, programs: &[u8]) -> (Vec<Section>, Vec<u8>) {
    let layout = Layout::new(file, programs);
    let mut made = Made::default();
    for (memory, _) in layout.code() {
        made.add("", elf::SHT_NOBITS, elf::SHF_EXECINSTR, memory, 0);
    }
    if made.sections.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let dynamic = Dynamic::read(&layout);
    if let Some(dynamic) = &dynamic {
        if let Some((symbols, names)) = dynamic.symbols(&layout) {
            let strings = made.add_at(&layout, ".dynstr", elf::SHT_STRTAB, names);
            let table = made.add_at(&layout, ".dynsym", elf::SHT_DYNSYM, symbols);
            if let (Some(strings), Some(table)) = (strings, table) {
                made.sections[table].link = strings as u32;
                made.sections[table].entry_size = SYMBOL_BYTES;
            }
        }
        let tables = [
            (".rela.plt", dynamic.stub_slots()),
            (".rela.dyn", dynamic.relocations()),
        ];
        for (name, place) in tables {
            if let Some(place) = place {
                made.add_at(&layout, name, elf::SHT_RELA, place);
            }
        }
        if let Some(stubs) = dynamic.stubs(&layout)
            && let Some(index) = made.add_at(&layout, ".plt", elf::SHT_PROGBITS, stubs)
        {
            made.sections[index].flags |= u64::from(elf::SHF_EXECINSTR);
            made.sections[index].entry_size = STUB_BYTES;
        }
    }
    if let Some(frames) = layout.eh_frame() {
        made.add_at(&layout, ".eh_frame", elf::SHT_PROGBITS, frames);
    }
    (made.sections, made.names)
}

#[derive(Default)]
struct Made {
    sections: Vec<Section>,
    names: Vec<u8>,
}

impl Made {
    fn add(&mut self, name: &str, kind: u32, flags: u32, memory: Range<u64>, offset: u64) -> usize {
        let at = self.names.len() as u32;
        self.names.extend_from_slice(name.as_bytes());
        self.names.push(0);
        self.sections.push(Section {
            name: at,
            kind,
            flags: u64::from(elf::SHF_ALLOC | flags),
            address: memory.start,
            offset,
            size: memory.end - memory.start,
            link: 0,
            entry_size: 0,
        });
        self.sections.len() - 1
    }

    /// `None`: the file does not have it.
    fn add_at(
        &mut self,
        layout: &Layout<'_>,
        name: &str,
        kind: u32,
        memory: Range<u64>,
    ) -> Option<usize> {
        let offset = layout.offset_of(&memory)?;
        Some(self.add(name, kind, 0, memory, offset))
    }
}

/// What lies where.
struct Layout<'f> {
    file: &'f File,
    programs: Vec<Program>,
}

struct Program {
    kind: u32,
    flags: u32,
    offset: u64,
    /// Addresses of what the file holds of it.
    memory: Range<u64>,
}

impl<'f> Layout<'f> {
    fn new(file: &'f File, programs: &[u8]) -> Self {
        let program = |header: &[u8]| Program {
            kind: u32_at(header, 0),
            flags: u32_at(header, 4),
            offset: u64_at(header, 8),
            memory: u64_at(header, 16)..u64_at(header, 16).saturating_add(u64_at(header, 32)),
        };
        let programs = programs.chunks_exact(PROGRAM_BYTES).map(program).collect();
        Self { file, programs }
    }

    fn loaded(&self) -> impl Iterator<Item = &Program> {
        self.programs.iter().filter(|it| it.kind == elf::PT_LOAD)
    }

    fn code(&self) -> impl Iterator<Item = (Range<u64>, u64)> {
        self.loaded()
            .filter(|it| it.flags & elf::PF_X != 0 && !it.memory.is_empty())
            .map(|it| (it.memory.clone(), it.offset))
    }

    fn find(&self, kind: u32) -> Option<&Program> {
        self.programs.iter().find(|it| it.kind == kind)
    }

    fn segment_of(&self, address: u64) -> Option<&Program> {
        self.loaded().find(|it| it.memory.contains(&address))
    }

    /// Where it is in the file, if all of it is there.
    fn offset_of(&self, memory: &Range<u64>) -> Option<u64> {
        let segment = self.segment_of(memory.start)?;
        let is_whole = memory.end > memory.start && memory.end <= segment.memory.end;
        is_whole.then(|| {
            segment
                .offset
                .checked_add(memory.start - segment.memory.start)
        })?
    }

    fn read(&self, memory: &Range<u64>) -> Option<Vec<u8>> {
        let offset = self.offset_of(memory)?;
        read(self.file, offset, memory.end - memory.start).ok()
    }

    /// From the beginning of `.eh_frame` to the end of its segment: an entry in it marks its end.
    fn eh_frame(&self) -> Option<Range<u64>> {
        let header = self.find(elf::PT_GNU_EH_FRAME)?.memory.start;
        let bytes = self.read(&(header..header.checked_add(8)?))?;
        if bytes[..2] != [1, RELATIVE_4] {
            return None;
        }
        let distance = i64::from(u32_at(&bytes, 4) as i32);
        let start = header.checked_add(4)?.checked_add_signed(distance)?;
        Some(start..self.segment_of(start)?.memory.end)
    }
}

/// The dynamic section: tags and values.
struct Dynamic(Vec<u8>);

impl Dynamic {
    fn read(layout: &Layout<'_>) -> Option<Self> {
        let program = layout.find(elf::PT_DYNAMIC)?;
        let bytes = (program.memory.end - program.memory.start).min(DYNAMIC_ENTRIES_MAX * 16);
        read(layout.file, program.offset, bytes).ok().map(Self)
    }

    fn get(&self, tag: i64) -> Option<u64> {
        let entry = self
            .0
            .chunks_exact(16)
            .find(|it| u64_at(it, 0) as i64 == tag)?;
        Some(u64_at(entry, 8))
    }

    fn range(&self, address: i64, bytes: i64) -> Option<Range<u64>> {
        let start = self.get(address)?;
        Some(start..start.checked_add(self.get(bytes)?)?)
    }

    fn stub_slots(&self) -> Option<Range<u64>> {
        self.range(elf::DT_JMPREL, elf::DT_PLTRELSZ)
    }

    fn relocations(&self) -> Option<Range<u64>> {
        self.range(elf::DT_RELA, elf::DT_RELASZ)
    }

    /// The table of symbols, and that of their names.
    fn symbols(&self, layout: &Layout<'_>) -> Option<(Range<u64>, Range<u64>)> {
        let start = self.get(elf::DT_SYMTAB)?;
        let count = self.symbol_count(layout)?;
        let end = start.checked_add(count.checked_mul(SYMBOL_BYTES)?)?;
        Some((start..end, self.range(elf::DT_STRTAB, elf::DT_STRSZ)?))
    }

    /// How many symbols there are, which only the hash tables say.
    fn symbol_count(&self, layout: &Layout<'_>) -> Option<u64> {
        let word = |at: u64| {
            Some(u64::from(u32_at(
                &layout.read(&(at..at.checked_add(4)?))?,
                0,
            )))
        };
        if let Some(hash) = self.get(elf::DT_HASH) {
            return word(hash.checked_add(4)?);
        }
        let hash = self.get(elf::DT_GNU_HASH)?;
        let (buckets, first) = (word(hash)?, word(hash.checked_add(4)?)?);
        let filter = word(hash.checked_add(8)?)?.checked_mul(8)?;
        let table = hash.checked_add(16)?.checked_add(filter)?;
        let chains = table.checked_add(buckets.min(BUCKETS_MAX) * 4)?;
        let bytes = layout.read(&(table..chains))?;
        let last = bytes.chunks_exact(4).map(|it| u32_at(it, 0)).max()?;
        let Some(into_chain) = u64::from(last).checked_sub(first) else {
            return Some(first);
        };
        // Symbols of the last bucket follow one another up to the one that is marked.
        let chain = chains.checked_add(into_chain.checked_mul(4)?)?;
        let end = layout.segment_of(chain)?.memory.end;
        let bytes = layout.read(&(chain..end.min(chain.checked_add(CHAIN_MAX * 4)?)))?;
        let length = bytes
            .chunks_exact(4)
            .position(|it| u32_at(it, 0) & 1 != 0)? as u64;
        u64::from(last).checked_add(length + 1)
    }

    /// The stubs that load the address of their function late: each slot leads back into its stub at first.
    fn stubs(&self, layout: &Layout<'_>) -> Option<Range<u64>> {
        let slots = self.stub_slots()?;
        let most = slots.start.saturating_add(STUBS_MAX * RELOCATION_BYTES);
        let relocations = layout.read(&(slots.start..slots.end.min(most)))?;
        let is_code = |at: &u64| layout.code().any(|(memory, _)| memory.contains(at));
        let late = relocations
            .chunks_exact(RELOCATION_BYTES as usize)
            .filter(|it| u32_at(it, 8) == elf::R_X86_64_JUMP_SLOT)
            .filter_map(|it| {
                let slot = u64_at(it, 0);
                let bytes = layout.read(&(slot..slot.checked_add(8)?))?;
                Some(u64_at(&bytes, 0) & !(STUB_BYTES - 1)).filter(is_code)
            });
        let (first, last) = late.fold((u64::MAX, 0), |(first, last), at| {
            (first.min(at), last.max(at))
        });
        // In a file that was made so there is one stub for each slot, and one before them.
        let bytes = last.checked_sub(first)?.checked_add(STUB_BYTES)?;
        let most = (slots.end - slots.start) / RELOCATION_BYTES * STUB_BYTES;
        (bytes <= most).then(|| first.saturating_sub(STUB_BYTES)..last + STUB_BYTES)
    }
}
