//! Where functions begin and end by `.eh_frame`, which stays when a file is stripped.

use std::ops::Range;

use gimli::{
    BaseAddresses, CommonInformationEntry, EhFrame, EndianSlice, LittleEndian, UnwindSection as _,
};
use rustc_hash::FxHashMap;

use super::Section;
use crate::process::{u32_at, u64_at};

/// Most functions of one file, 16 bytes each. The largest libraries in use have some 600,000.
const FUNCTIONS_MAX: usize = 2 << 20;

/// Most entries that are shared between functions (CIEs); files have one for each object file at most.
const SHARED_MAX: usize = 1 << 16;

/// Longest of these. Real ones have some 30 bytes.
const SHARED_BYTES_MAX: u64 = 4096;

type Reader<'f> = EndianSlice<'f, LittleEndian>;

/// All functions, in ascending order of their first addresses.
#[derive(Debug, Default)]
pub(super) struct Functions {
    sorted: Vec<(u64, u64)>,
}

impl Functions {
    /// Reads `.eh_frame`. Functions outside of `code` are left out.
    pub(super) fn read(sections: &[Section<'_>], mut code: Vec<Range<u64>>) -> Self {
        let section = sections
            .iter()
            .find(|it| it.is_called(b".eh_frame") && !it.bytes.is_empty());
        let mut sorted =
            section.map_or_else(Vec::new, |section| read(section.bytes, section.range.start));
        code.sort_unstable_by_key(|range| range.start);
        // Of a file without section headers, a segment is code, and the stubs within it are a section.
        code.dedup_by(|next, before| {
            let is_joined = next.start <= before.end;
            if is_joined {
                before.end = before.end.max(next.end);
            }
            is_joined
        });
        sorted.retain(|&(start, _)| {
            let behind = code.partition_point(|range| range.start <= start);
            behind > 0 && code[behind - 1].contains(&start)
        });
        sorted.sort_unstable();
        // Where entries overlap, the one that begins later is in force: so a search for an exception has it.
        sorted.dedup_by_key(|function| function.0);
        Self { sorted }
    }

    /// The function that an address is in.
    pub(super) fn at(&self, address: u64) -> Option<Range<u64>> {
        let behind = self.sorted.partition_point(|it| it.0 <= address);
        let &(start, end) = self.sorted.get(behind.checked_sub(1)?)?;
        (address < end).then_some(start..end)
    }

    /// Where the next function behind an address begins; the last address if there is none.
    pub(super) fn next_after(&self, address: u64) -> u64 {
        let behind = self.sorted.partition_point(|it| it.0 <= address);
        self.sorted.get(behind).map_or(u64::MAX, |it| it.0)
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.sorted)
    }
}

/// First address and end of each function that the section describes.
fn read(data: &[u8], svma: u64) -> Vec<(u64, u64)> {
    let mut section = EhFrame::new(data, LittleEndian);
    section.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(svma);
    let mut shared = Shared {
        section: &section,
        bases: &bases,
        data,
        known: FxHashMap::default(),
    };
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(content) = content_at(data, at) {
        // An entry without content is the last one.
        if content.is_empty() || found.len() >= FUNCTIONS_MAX {
            break;
        }
        let this = std::mem::replace(&mut at, content.end);
        if u32_at(&data[content], 0) == 0 {
            continue;
        }
        let function = section
            .partial_fde_from_offset(&bases, this.into())
            .ok()
            .and_then(|partial| {
                let common = shared.at(partial.cie_offset().0)?;
                partial.parse(|_, _, _| Ok(common.clone())).ok()
            });
        if let Some(function) = function {
            let start = function.initial_address();
            // A length of nothing is left over from functions that the linker removed.
            if let Some(end) = start.checked_add(function.len())
                && start < end
            {
                found.push((start, end));
            }
        }
    }
    found
}

/// Entries that functions share, parsed once each: a hostile file may have long ones, and name them any number of times.
struct Shared<'f, 's> {
    section: &'s EhFrame<Reader<'f>>,
    bases: &'s BaseAddresses,
    data: &'f [u8],
    known: FxHashMap<usize, Option<CommonInformationEntry<Reader<'f>>>>,
}

impl<'f> Shared<'f, '_> {
    fn at(&mut self, offset: usize) -> Option<&CommonInformationEntry<Reader<'f>>> {
        if self.known.len() >= SHARED_MAX && !self.known.contains_key(&offset) {
            return None;
        }
        self.known
            .entry(offset)
            .or_insert_with(|| {
                let content = content_at(self.data, offset)?;
                (content.len() as u64 <= SHARED_BYTES_MAX)
                    .then(|| self.section.cie_from_offset(self.bases, offset.into()).ok())?
            })
            .as_ref()
    }
}

/// The content of the entry at an offset, behind its length. `None`: the section does not have it all.
fn content_at(data: &[u8], offset: usize) -> Option<Range<usize>> {
    let rest = data.get(offset..)?;
    let short = u32::from_le_bytes(*rest.first_chunk()?);
    let (begin, length) = if short == u32::MAX {
        (offset.checked_add(12)?, u64_at(rest, 4))
    } else {
        (offset.checked_add(4)?, short.into())
    };
    let end = begin.checked_add(usize::try_from(length).ok()?)?;
    (end <= data.len()).then_some(begin..end)
}
