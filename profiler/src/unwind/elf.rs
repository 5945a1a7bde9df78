//! From the bytes of an ELF file to what unwinding needs of it: the loaded segments, and where the call frame
//! information lies. Every offset in the file is taken for hostile.

use std::ops::Range;

use gimli::{BaseAddresses, EhFrameHdr};
use object::LittleEndian as Endian;
use object::ReadRef;
use object::elf::{
    EM_X86_64, FileHeader64, PF_X, PT_GNU_EH_FRAME, PT_LOAD, ProgramHeader64, SHF_COMPRESSED,
    SHT_DYNSYM, SHT_SYMTAB,
};
use object::read::StringTable;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, SectionTable};

use super::UnwindError;
use super::c_library::CLibrary;
use super::eval_loop::LoopSymbols;
use super::symbol_table::SymbolTable;
use crate::model::{Avma, FileOffset, Svma};

/// Most `PT_LOAD` segments that are looked at; linkers make four or five.
const SEGMENTS_MAX: usize = 64;
/// Most section headers; linked files have some dozens. None of more is looked at.
const SECTIONS_MAX: usize = 4096;
/// Largest table of section names that is read; linked files have some hundred bytes.
const NAMES_BYTES_MAX: u64 = 1 << 20;
/// Most program headers; a file can state more, and a sparse one can have them at no cost to its maker.
const PROGRAMS_MAX: usize = 4096;
/// Most call frame information that is read of a file, in one section or two; the largest libraries in use have some
/// 60 MiB.
const FRAME_BYTES_MAX: u64 = 128 << 20;
/// Bytes of `.eh_frame_hdr` in front of its search table, and more.
const FRAME_HEADER_BYTES: u64 = 64;
/// The kernel maps whole pages of this size.
const PAGE_MASK: u64 = 4095;

type Header = FileHeader64<Endian>;

/// A part of the file that is loaded into memory (`PT_LOAD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where its bytes begin in the file.
    pub file_offset: FileOffset,
    /// How many bytes of it the file holds.
    pub file_bytes: u64,
    /// Where it begins in memory, before relocation.
    pub svma: Svma,
    /// How many bytes it has in memory; those that the file does not hold are zero.
    pub memory_bytes: u64,
    /// It is mapped as code.
    pub executable: bool,
}

impl Segment {
    /// A mapping of the file at `offset` shows this segment. The kernel rounds both ends to whole pages.
    fn covers(&self, offset: u64) -> bool {
        let begin = self.file_offset.0 & !PAGE_MASK;
        let end = self.file_offset.0.saturating_add(self.file_bytes);
        (begin..end).contains(&offset)
    }
}

/// What must be subtracted from an address in a process to get the address that the file states, when the file is
/// mapped at `mapping_begin` from `offset` on. `None`: no segment begins or goes on there.
///
/// Neighbouring segments can share a page of the file, so executable ones are asked first.
pub(crate) fn bias(segments: &[Segment], mapping_begin: Avma, offset: FileOffset) -> Option<u64> {
    let code = segments.iter().filter(|s| s.executable);
    let other = segments.iter().filter(|s| !s.executable);
    let segment = code.chain(other).find(|s| s.covers(offset.0))?;
    let stated = segment
        .svma
        .0
        .wrapping_sub(segment.file_offset.0)
        .wrapping_add(offset.0);
    Some(mapping_begin.0.wrapping_sub(stated))
}

/// `bytes` bytes of code at `svma`. `None`: the file does not have them all, or not as code of one segment.
pub(super) fn code_at<'a, R: ReadRef<'a>>(
    segments: &[Segment],
    svma: u64,
    bytes: u64,
    data: R,
) -> Option<&'a [u8]> {
    let holds = |s: &&Segment| svma >= s.svma.0 && svma - s.svma.0 < s.file_bytes;
    let segment = segments.iter().filter(|s| s.executable).find(holds)?;
    let offset = svma - segment.svma.0;
    if bytes > segment.file_bytes - offset {
        return None;
    }
    data.read_bytes_at(segment.file_offset.0.checked_add(offset)?, bytes)
        .ok()
}

/// A section's bytes and the address that its own pointers are relative to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section<'a> {
    /// The bytes; they may go on behind the section's end when there are no section headers.
    pub(super) data: &'a [u8],
    /// Where it would be loaded.
    pub(super) svma: u64,
}

/// An x86-64 ELF file, as unwinding sees it.
#[derive(Debug)]
pub(super) struct ElfView<'a> {
    /// Segments in the order of the program headers.
    pub(super) segments: Vec<Segment>,
    /// `.eh_frame`, found by its section header, else through `PT_GNU_EH_FRAME`.
    pub(super) eh_frame: Option<Section<'a>>,
    /// `.debug_frame`, not compressed.
    pub(super) debug_frame: Option<Section<'a>>,
    /// Sections of jump stubs by name, for linkers that write no call frame information for them, and the code at the
    /// entry point, for assembly that has none (`_start` of glibc's dynamic loader).
    pub(super) plt: Vec<Plt>,
    /// The file is a C library, or has one in it.
    pub(super) c_library: Option<CLibrary<'a>>,
    /// The file is an interpreter, or has one in it.
    pub(super) loop_symbols: Option<LoopSymbols<'a>>,
}

/// Code whose unwinding is known without being described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plt {
    /// Where it lies.
    pub(super) range: Range<u64>,
    /// What it is.
    pub(super) kind: PltKind,
}

/// Kinds of such code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PltKind {
    /// `.plt`: stubs that push a number before they jump.
    Lazy,
    /// Stubs that only jump.
    Plain,
    /// Where the kernel begins a program: nothing has called it. How long it is, is not known.
    Entry,
}

/// Bytes of code at an entry point that belong to it, if nothing describes them: the loader's has 61.
const ENTRY_BYTES: u64 = 64;

impl<'a> ElfView<'a> {
    /// Reads the headers, and of the rest only the sections of interest. Bytes in memory must begin at an address that
    /// 8 divides, as those of a `Vec` do.
    pub(super) fn parse<R: ReadRef<'a>>(data: R) -> Result<Self, UnwindError> {
        match data.read_bytes_at(0, 6) {
            Ok([0x7f, b'E', b'L', b'F', 2, 1]) => {}
            Ok(&[0x7f, b'E', b'L', b'F', class, order]) => {
                return Err(UnwindError::Layout { class, data: order });
            }
            _ => return Err(UnwindError::NotElf),
        }
        let malformed = |what| move |_| UnwindError::Malformed { what };
        let header = Header::parse(data).map_err(malformed("file header"))?;
        let machine = header.e_machine(Endian);
        if machine != EM_X86_64 {
            return Err(UnwindError::Machine { machine });
        }
        if header
            .phnum(Endian, data)
            .is_ok_and(|count| count > PROGRAMS_MAX)
        {
            return Err(UnwindError::Malformed {
                what: "too many program headers",
            });
        }
        let programs = header
            .program_headers(Endian, data)
            .map_err(malformed("program headers"))?;
        let segments: Vec<Segment> = programs
            .iter()
            .filter(|p| p.p_type(Endian) == PT_LOAD)
            .take(SEGMENTS_MAX)
            .map(|p| Segment {
                file_offset: FileOffset(p.p_offset(Endian)),
                file_bytes: p.p_filesz(Endian),
                svma: Svma(p.p_vaddr(Endian)),
                memory_bytes: p.p_memsz(Endian),
                executable: p.p_flags(Endian) & PF_X != 0,
            })
            .collect();
        if !segments.iter().any(|s| s.executable) {
            return Err(UnwindError::NoCode);
        }
        let mut view = Self {
            segments,
            eh_frame: None,
            debug_frame: None,
            plt: Vec::new(),
            c_library: None,
            loop_symbols: None,
        };
        let entry = header.e_entry(Endian);
        view.plt.push(Plt {
            range: entry..entry.saturating_add(ENTRY_BYTES),
            kind: PltKind::Entry,
        });
        view.find_sections(header, data);
        if view.eh_frame.is_none() {
            view.eh_frame = programs
                .iter()
                .find(|p| p.p_type(Endian) == PT_GNU_EH_FRAME)
                .and_then(|p| view.eh_frame_behind(p, data));
        }
        Ok(view)
    }

    /// Addresses at which the file has code.
    pub(super) fn code_ranges(&self) -> Vec<Range<u64>> {
        let code = self.segments.iter().filter(|s| s.executable);
        code.map(|s| s.svma.0..s.svma.0.saturating_add(s.memory_bytes))
            .collect()
    }

    /// Call frame information that was read already.
    fn frame_bytes(&self) -> u64 {
        let sections = self.eh_frame.iter().chain(&self.debug_frame);
        sections.map(|section| section.data.len() as u64).sum()
    }

    /// Looks through the section headers. Damaged or missing ones leave everything as it is.
    fn find_sections<R: ReadRef<'a>>(&mut self, header: &Header, data: R) {
        if header
            .shnum(Endian, data)
            .is_ok_and(|count| count > SECTIONS_MAX)
        {
            return;
        }
        let Ok(sections) = header.section_headers(Endian, data) else {
            return;
        };
        let strings = header.section_strings_index(Endian, data).ok();
        let Some(names) = strings
            .and_then(|index| sections.get(index.0))
            .filter(|section| section.sh_size(Endian) <= NAMES_BYTES_MAX)
            .and_then(|section| section.data(Endian, data).ok())
        else {
            return;
        };
        let table = SectionTable::new(sections, StringTable::default());
        let symbols: Vec<_> = [SHT_DYNSYM, SHT_SYMTAB]
            .into_iter()
            .filter_map(|kind| SymbolTable::find(kind, &table, data))
            .collect();
        self.c_library = CLibrary::find(header.e_entry(Endian), &symbols, &self.segments, data);
        self.loop_symbols = LoopSymbols::find(symbols);
        for section in sections {
            // Comparing a prefix costs the same whatever the file says.
            let Some(name) = names.get(section.sh_name(Endian) as usize..) else {
                continue;
            };
            let is_compressed = section.sh_flags(Endian) & u64::from(SHF_COMPRESSED) != 0;
            let svma = section.sh_addr(Endian);
            let is_readable =
                !is_compressed && section.sh_size(Endian) <= FRAME_BYTES_MAX - self.frame_bytes();
            let bytes = || {
                let bytes = section.data(Endian, data).ok();
                bytes.filter(|bytes| !bytes.is_empty())
            };
            let stubs = |kind| Plt {
                range: svma..svma.saturating_add(section.sh_size(Endian)),
                kind,
            };
            if name.starts_with(b".eh_frame\0") && is_readable {
                self.eh_frame = self
                    .eh_frame
                    .or_else(|| bytes().map(|data| Section { data, svma }));
            } else if name.starts_with(b".debug_frame\0") && is_readable {
                self.debug_frame = self
                    .debug_frame
                    .or_else(|| bytes().map(|data| Section { data, svma }));
            } else if name.starts_with(b".plt\0") {
                self.plt.push(stubs(PltKind::Lazy));
            } else if name.starts_with(b".plt.sec\0") || name.starts_with(b".plt.got\0") {
                self.plt.push(stubs(PltKind::Plain));
            }
        }
    }

    /// Follows `.eh_frame_hdr` to `.eh_frame`. Its size is not written anywhere, so it ends with its segment; readers
    /// stop earlier, at the entry of length zero.
    fn eh_frame_behind<R: ReadRef<'a>>(
        &self,
        header: &ProgramHeader64<Endian>,
        data: R,
    ) -> Option<Section<'a>> {
        let (offset, bytes) = header.file_range(Endian);
        let table = data
            .read_bytes_at(offset, bytes.min(FRAME_HEADER_BYTES))
            .ok()?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(header.p_vaddr(Endian));
        let parsed = EhFrameHdr::new(table, gimli::LittleEndian)
            .parse(&bases, 8)
            .ok()?;
        let svma = parsed.eh_frame_ptr().direct().ok()?;
        let in_segment = |s: &&Segment| svma >= s.svma.0 && svma - s.svma.0 < s.file_bytes;
        let segment = self.segments.iter().find(in_segment)?;
        let begin = segment.file_offset.0.checked_add(svma - segment.svma.0)?;
        let end = segment
            .file_offset
            .0
            .checked_add(segment.file_bytes)?
            .min(begin.saturating_add(FRAME_BYTES_MAX - self.frame_bytes()))
            .min(data.len().ok()?);
        let data = data.read_bytes_at(begin, end.checked_sub(begin)?).ok()?;
        Some(Section { data, svma })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(offset: u64, svma: u64, bytes: u64, executable: bool) -> Segment {
        Segment {
            file_offset: FileOffset(offset),
            file_bytes: bytes,
            svma: Svma(svma),
            memory_bytes: bytes,
            executable,
        }
    }

    /// Segments as lld lays them out: code begins inside the page in which the constants end.
    fn packed() -> Vec<Segment> {
        vec![
            segment(0, 0, 0x1234, false),
            segment(0x1240, 0x2240, 0x3000, true),
            segment(0x4240, 0x6240, 0x800, false),
        ]
    }

    #[test]
    fn a_mapping_begins_at_the_page_that_holds_the_segments_first_byte() {
        let bias = bias(&packed(), Avma(0x7f00_0000_2000), FileOffset(0x1000));
        assert_eq!(bias, Some(0x7f00_0000_0000));
    }

    #[test]
    fn a_mapping_that_was_split_begins_inside_its_segment() {
        let bias = bias(&packed(), Avma(0x7f00_0000_4000), FileOffset(0x3000));
        assert_eq!(bias, Some(0x7f00_0000_0000));
    }

    #[test]
    fn a_program_linked_to_fixed_addresses_has_no_bias() {
        let fixed = [
            segment(0, 0x40_0000, 0x500, false),
            segment(0x1000, 0x40_1000, 0x99, true),
        ];
        assert_eq!(bias(&fixed, Avma(0x40_1000), FileOffset(0x1000)), Some(0));
    }

    #[test]
    fn an_offset_behind_all_segments_has_no_bias() {
        assert_eq!(
            bias(&packed(), Avma(0x7f00_0000_0000), FileOffset(0x9000)),
            None
        );
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let refused = |bytes: &[u8]| ElfView::parse(bytes).map(|_| ());
        assert_eq!(refused(b"#!/bin/sh"), Err(UnwindError::NotElf));
        assert_eq!(
            refused(b"\x7fELF\x01\x01"),
            Err(UnwindError::Layout { class: 1, data: 1 })
        );
        let mut arm = vec![0u8; 64];
        arm[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        assert!(matches!(
            refused(&arm[..40]),
            Err(UnwindError::Malformed { .. })
        ));
        arm[18] = 183;
        assert_eq!(refused(&arm), Err(UnwindError::Machine { machine: 183 }));
        arm[18] = 62;
        assert_eq!(refused(&arm), Err(UnwindError::NoCode));
    }
}
