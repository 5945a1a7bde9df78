//! The entries of `.eh_frame` or `.debug_frame`: finds those that describe code, and puts them in order.

use std::ops::Range;

use gimli::{
    BaseAddresses, CommonInformationEntry, FrameDescriptionEntry, UnwindOffset, UnwindSection,
};

use super::{interrupt::Interrupt, rule::Reader};

/// Most functions of one file, 24 bytes each. The largest libraries in use have some 600,000.
const FUNCTIONS_MAX: usize = 2 << 20;

/// Which of the two sections it is: they are alike but for the marks below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SectionKind {
    /// `.eh_frame`: loaded with the program; ends with an entry of length zero.
    EhFrame,
    /// `.debug_frame`: for debuggers.
    DebugFrame,
}

/// One function's entry (FDE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Function {
    /// First address it describes.
    pub(super) begin: u64,
    /// Where the entry lies in the section.
    pub(super) offset: usize,
    /// One past the last address.
    pub(super) end: u64,
}

/// Entries that are shared between functions (CIEs), parsed when a function needs them. Functions that use the same
/// one lie next to each other, so the last one is kept.
///
/// A hostile file could let each of its functions use a huge shared entry. So reading one costs its size, and there
/// is a budget, many times what a real section needs.
pub(super) struct SharedEntries<'a, 's, S: UnwindSection<Reader<'a>>> {
    section: &'s S,
    data: &'a [u8],
    bases: &'s BaseAddresses,
    last: Option<(S::Offset, CommonInformationEntry<Reader<'a>>)>,
    budget: usize,
}

impl<'a, 's, S: UnwindSection<Reader<'a>>> SharedEntries<'a, 's, S> {
    /// Nothing read yet.
    pub(super) fn new(section: &'s S, data: &'a [u8], bases: &'s BaseAddresses) -> Self {
        let budget = data.len().saturating_mul(16).saturating_add(1 << 16);
        Self {
            section,
            data,
            bases,
            last: None,
            budget,
        }
    }

    /// The function's entry at `offset`. `None`: it, or the shared entry it names, is damaged.
    pub(super) fn function(&mut self, offset: usize) -> Option<FrameDescriptionEntry<Reader<'a>>> {
        let partial = self
            .section
            .partial_fde_from_offset(self.bases, S::Offset::from(offset))
            .ok()?;
        let shared_offset = partial.cie_offset();
        let shared = self.shared(shared_offset)?;
        partial.parse(|_, _, _| Ok(shared.clone())).ok()
    }

    /// The shared entry at `offset`. `None`: it is damaged, or the budget is spent.
    fn shared(&mut self, offset: S::Offset) -> Option<&CommonInformationEntry<Reader<'a>>> {
        // Its instructions are run once for each function, so it costs the same when it is kept.
        let cost = match &self.last {
            Some((last, shared)) if *last == offset => shared.entry_len(),
            _ => {
                self.last = None;
                Prefix::read(self.data, UnwindOffset::into(offset))?
                    .content
                    .len()
            }
        };
        self.budget = self.budget.checked_sub(cost)?;
        if self.last.is_none() {
            let shared = self.section.cie_from_offset(self.bases, offset).ok()?;
            self.last = Some((offset, shared));
        }
        self.last.as_ref().map(|(_, shared)| shared)
    }
}

/// The length field in front of an entry.
struct Prefix {
    /// The bytes that the length covers, as places in the section.
    content: Range<usize>,
    /// The length was written with 64 bits.
    is_64: bool,
}

impl Prefix {
    /// Reads the length of the entry at `offset`. `None`: the entry does not lie in the section.
    fn read(data: &[u8], offset: usize) -> Option<Self> {
        let short = u32::from_le_bytes(*data.get(offset..)?.first_chunk()?);
        let is_64 = short == u32::MAX;
        let (begin, length) = if is_64 {
            (
                offset.checked_add(12)?,
                u64::from_le_bytes(*data.get(offset + 4..)?.first_chunk()?),
            )
        } else {
            (offset.checked_add(4)?, u64::from(short))
        };
        let end = begin.checked_add(usize::try_from(length).ok()?)?;
        (end <= data.len()).then_some(Self {
            content: begin..end,
            is_64,
        })
    }
}

/// What [`functions`] found.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// Sorted by address; entries for the same address are in the order of the section.
    pub(super) sorted: Vec<Function>,
    /// Entries that could not be read, or that describe addresses at which the file has no code.
    pub(super) malformed: u32,
}

/// Lists the functions whose entries describe addresses in `code`.
pub(super) fn functions<'a, S: UnwindSection<Reader<'a>>>(
    kind: SectionKind,
    data: &'a [u8],
    shared: &mut SharedEntries<'a, '_, S>,
    code: &[Range<u64>],
    interrupt: &Interrupt<'_>,
) -> Functions {
    let mut found = Functions::default();
    let mut offset = 0;
    while offset < data.len() && found.sorted.len() < FUNCTIONS_MAX && !interrupt.step() {
        let Some(prefix) = Prefix::read(data, offset) else {
            found.malformed += 1;
            break;
        };
        let at = std::mem::replace(&mut offset, prefix.content.end);
        if prefix.content.is_empty() {
            match kind {
                SectionKind::EhFrame => break,
                SectionKind::DebugFrame => continue,
            }
        }
        if is_shared(kind, &data[prefix.content], prefix.is_64) {
            continue;
        }
        let function = shared.function(at).and_then(|entry| {
            let begin = entry.initial_address();
            let end = begin.checked_add(entry.len())?;
            let is_code = code
                .iter()
                .any(|range| range.start <= begin && end <= range.end);
            is_code.then_some(Function {
                begin,
                offset: at,
                end,
            })
        });
        match function {
            // Left over from functions that the linker removed.
            Some(function) if function.begin == function.end => {}
            Some(function) => found.sorted.push(function),
            None => found.malformed = found.malformed.saturating_add(1),
        }
    }
    found.sorted.sort_unstable();
    found
}

/// The entry is a CIE, not an FDE. (Entries too short to say so are taken for FDEs, which fail to parse.)
fn is_shared(kind: SectionKind, content: &[u8], is_64: bool) -> bool {
    match kind {
        SectionKind::EhFrame => content.starts_with(&[0; 4]),
        SectionKind::DebugFrame if is_64 => content.starts_with(&[0xff; 8]),
        SectionKind::DebugFrame => content.starts_with(&[0xff; 4]),
    }
}
