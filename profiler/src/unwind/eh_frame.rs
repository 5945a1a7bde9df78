//! From call frame information to rules in order of address.
//!
//! Where entries of two functions overlap, the one that begins later is in force from its beginning on, and the
//! earlier one does not come back: this is what a look-up by binary search in `.eh_frame_hdr` gives, so it is what a
//! C++ exception sees. Of two that begin at the same address the first in the section counts.

use std::ops::Range;

use gimli::{BaseAddresses, DebugFrame, EhFrame, LittleEndian, UnwindContext, UnwindSection};
use profiler_common::unwind_row::{UnwindRule, cfa, rule_flags};

use super::c_library::CLibrary;
use super::elf::{ElfView, Plt, Section};
use super::entries::{Function, SectionKind, SharedEntries, functions};
use super::interrupt::Interrupt;
use super::plt::Stubs;
use super::read_code::read_code;
use super::rule::{Reader, Storage, Translator, UNSUPPORTED};
use super::{CompileStats, LoopPart, UnwindError};

/// Bytes between two functions that are taken for padding: the rule before stays in force. Linkers align functions to
/// 16 bytes; a longer gap is code that nothing describes.
const PADDING_BELOW: u64 = 16;
/// Most rows that are read from one file: twice what the largest libraries have.
const ROWS_MAX: u32 = 1 << 23;
/// Nothing is known.
pub(super) const NONE: UnwindRule = UnwindRule {
    cfa: cfa::NONE,
    bp: 0,
    reg: 0,
    saved: [0; 5],
    cfa_off: 0,
    bp_off: 0,
    flags: 0,
};

/// Calls `put(address, rule)` for each address from which on another rule is in force, in ascending order.
///
/// Uses `.eh_frame`, or `.debug_frame` where the former describes nothing. `loop_parts` says which of the functions are
/// the evaluation loop: their rules are marked, and it is given back.
pub(super) fn rules(
    elf: &ElfView<'_>,
    loop_parts: &dyn Fn(&[Function]) -> Vec<LoopPart>,
    interrupt: &Interrupt<'_>,
    stats: &mut CompileStats,
    mut put: impl FnMut(u64, UnwindRule),
) -> Result<Vec<LoopPart>, UnwindError> {
    let code = elf.code_ranges();
    if let Some(Section { data, svma }) = elf.eh_frame {
        let mut section = EhFrame::new(data, LittleEndian);
        section.set_address_size(8);
        let bases = BaseAddresses::default().set_eh_frame(svma);
        let walk = Walk {
            section,
            data,
            bases,
            kind: SectionKind::EhFrame,
            code: &code,
            plt: &elf.plt,
            library: elf.c_library.as_ref(),
            loop_parts,
            interrupt,
        };
        if let Some(loop_parts) = walk.run(stats, &mut put) {
            return Ok(loop_parts);
        }
    }
    if let Some(Section { data, .. }) = elf.debug_frame {
        let mut section = DebugFrame::new(data, LittleEndian);
        section.set_address_size(8);
        let bases = BaseAddresses::default();
        let walk = Walk {
            section,
            data,
            bases,
            kind: SectionKind::DebugFrame,
            code: &code,
            plt: &elf.plt,
            library: elf.c_library.as_ref(),
            loop_parts,
            interrupt,
        };
        if let Some(loop_parts) = walk.run(stats, &mut put) {
            return Ok(loop_parts);
        }
    }
    let undescribed = Gaps::new(elf.c_library.as_ref(), &[]);
    if undescribed.rows.is_empty() {
        return Err(UnwindError::NoUnwindInformation);
    }
    undescribed.fill(0, u64::MAX, &mut put);
    Ok(Vec::new())
}

/// What is known of code that is not described.
struct Gaps {
    /// In ascending order.
    rows: Vec<(u64, UnwindRule)>,
}

impl Gaps {
    /// Reads the code of a C library none of whose own roots is described.
    fn new(library: Option<&CLibrary<'_>>, described: &[Function]) -> Self {
        let is_described = |at: u64| {
            let below = described.partition_point(|function| function.begin <= at);
            below > 0 && at < described[below - 1].end
        };
        let undescribed = library.filter(|it| !it.roots.iter().any(|&at| is_described(at - 1)));
        Self {
            rows: undescribed.map_or_else(Vec::new, |it| read_code(it, is_described)),
        }
    }

    /// Emits the rules from where something is described up to where something else is.
    fn fill(&self, from: u64, to: u64, put: &mut impl FnMut(u64, UnwindRule)) {
        let behind = self.rows.partition_point(|(at, _)| *at <= from);
        if from != 0 {
            let known = behind.checked_sub(1).map(|before| self.rows[before].1);
            put(from, known.unwrap_or(NONE));
        }
        let inside = self.rows[behind..].iter();
        for &(at, rule) in inside.take_while(|(at, _)| *at < to) {
            put(at, rule);
        }
    }
}

/// One section and what is needed to read it.
struct Walk<'a, 'e, S> {
    section: S,
    data: &'a [u8],
    bases: BaseAddresses,
    kind: SectionKind,
    code: &'e [Range<u64>],
    plt: &'e [Plt],
    library: Option<&'e CLibrary<'a>>,
    loop_parts: &'e dyn Fn(&[Function]) -> Vec<LoopPart>,
    interrupt: &'e Interrupt<'e>,
}

impl<'a, S: UnwindSection<Reader<'a>>> Walk<'a, '_, S> {
    /// Emits the section's rules, and gives those functions that are the evaluation loop. `None`: it describes none.
    fn run(
        &self,
        stats: &mut CompileStats,
        put: &mut impl FnMut(u64, UnwindRule),
    ) -> Option<Vec<LoopPart>> {
        let mut shared = SharedEntries::new(&self.section, self.data, &self.bases);
        let found = functions(self.kind, self.data, &mut shared, self.code, self.interrupt);
        stats.malformed_entries = stats.malformed_entries.saturating_add(found.malformed);
        if found.sorted.is_empty() {
            return None;
        }
        let loop_parts = (self.loop_parts)(&found.sorted);
        stats.functions = found.sorted.len() as u32;
        let mut stubs = Stubs::new(self.plt, self.code);
        let mut rows = RowReader {
            walk: self,
            context: UnwindContext::new_in(),
            shared,
            translator: Translator::new(&self.section),
        };
        let gaps = Gaps::new(self.library, &found.sorted);
        let mut described_until = 0;
        let mut functions = found.sorted.iter().peekable();
        while let Some(&function) = functions.next() {
            if self.interrupt.step() {
                break;
            }
            while functions
                .next_if(|next| next.begin == function.begin)
                .is_some()
            {
                stats.overlapping_functions += 1;
            }
            stubs.fill(&mut described_until, function.begin, put);
            if function.begin.saturating_sub(described_until) >= PADDING_BELOW {
                gaps.fill(described_until, function.begin, put);
            }
            let end = match functions.peek() {
                Some(next) if next.begin < function.end => {
                    stats.overlapping_functions += 1;
                    next.begin
                }
                _ => function.end,
            };
            let is_loop = loop_parts.iter().any(|it| it.begin.0 == function.begin);
            let flags = u16::from(is_loop) * rule_flags::EVALUATION_LOOP;
            rows.read(Function { end, ..function }, flags, stats, put);
            described_until = end;
        }
        stubs.fill(&mut described_until, u64::MAX, put);
        gaps.fill(described_until, u64::MAX, put);
        Some(loop_parts)
    }
}

/// Runs the instructions of one function after the other.
struct RowReader<'a, 'w, 'e, S: UnwindSection<Reader<'a>>> {
    walk: &'w Walk<'a, 'e, S>,
    context: UnwindContext<usize, Storage>,
    shared: SharedEntries<'a, 'w, S>,
    translator: Translator<'w, S>,
}

impl<'a, S: UnwindSection<Reader<'a>>> RowReader<'a, '_, '_, S> {
    /// Emits the rules of one function, with these flags. Where its instructions are damaged, the rest of it is
    /// unsupported.
    fn read(
        &mut self,
        function: Function,
        flags: u16,
        stats: &mut CompileStats,
        put: &mut impl FnMut(u64, UnwindRule),
    ) {
        let Walk {
            section,
            bases,
            interrupt,
            ..
        } = self.walk;
        let mut next = function.begin;
        let complete = self.shared.function(function.offset).and_then(|entry| {
            let shared = entry.cie();
            let is_signal = shared.is_signal_trampoline();
            let return_column = shared.return_address_register().0;
            let mut table = entry.rows(section, bases, &mut self.context).ok()?;
            while let Some(row) = table.next_row().ok()? {
                let (begin, end) = (row.start_address(), row.end_address());
                if begin >= function.end {
                    break;
                }
                if stats.rows_read >= ROWS_MAX || interrupt.step() {
                    return None;
                }
                // Rows without any byte are overwritten by the next one.
                if begin < end {
                    stats.rows_read += 1;
                    let rule = self.translator.translate(row, is_signal, return_column);
                    put(begin, UnwindRule { flags, ..rule });
                }
                next = end;
            }
            Some(())
        });
        if complete.is_none() {
            stats.malformed_entries = stats.malformed_entries.saturating_add(1);
            if next < function.end {
                let rule = UNSUPPORTED;
                put(next, UnwindRule { flags, ..rule });
            }
        }
    }
}
