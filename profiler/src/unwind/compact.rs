//! From rules in order of address to the small table that the kernel searches.

use std::fs::File;

use object::{ReadCache, ReadRef};
use profiler_common::unwind_row::{PAGE_BYTES, PAGE_ROWS_MAX, PAGE_SHIFT, RULE_NONE, UnwindRule};
use rustc_hash::FxHashMap;

use super::eh_frame;
use super::elf::{ElfView, Segment, bias, code_at};
use super::entries::Function;
use super::interrupt::Interrupt;
use super::rule::UNSUPPORTED;
use super::{CompileStats, LoopPart, UnwindError};
use crate::model::{Avma, FileOffset, Svma};

/// Most pages of one file: 1 GiB of text.
const PAGES_MAX: u64 = 1 << 18;
/// Most rows of one file: 64 MiB in memory, half of that in the kernel.
const ROWS_MAX: usize = 1 << 23;
/// Most different rules of one file. Real ones have some hundreds or thousands.
const RULES_MAX: usize = 1 << 16;

/// Where the rows of one page of text lie in [`CompactTable::rows`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactPage {
    /// Index of the first row.
    pub first_row: u32,
    /// Number of rows; 0 when nothing is known of the whole page.
    pub count: u16,
}

/// From here on, up to the next row or the end of the page, this rule is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactRow {
    /// Bytes from the start of the page.
    pub offset: u16,
    /// Index in [`CompactTable::rules`].
    pub rule: u32,
}

/// The unwind information of one file.
///
/// The first row of each page that has rows stands at offset 0, so that a look-up never needs the page before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactTable {
    /// Number (address >> 12) of the page of text that `pages[0]` describes.
    pub first_page: u32,
    /// One for each page of text, without holes.
    pub pages: Vec<CompactPage>,
    /// The rows of all pages, page by page, ascending in each.
    pub rows: Vec<CompactRow>,
    /// Different rules. The first one is "nothing is known".
    pub rules: Vec<UnwindRule>,
    /// What was read to make this, and what could not be used.
    pub stats: CompileStats,
}

impl CompactTable {
    /// The rule in force at an address; `None` where nothing is known. Searches just as the kernel side does: a fixed
    /// number of halvings, whatever the page holds.
    pub fn rule_at(&self, at: Svma) -> Option<&UnwindRule> {
        let page = (at.0 >> PAGE_SHIFT).checked_sub(u64::from(self.first_page))?;
        let page = self.pages.get(usize::try_from(page).ok()?)?;
        let rows = self
            .rows
            .get(page.first_row as usize..)?
            .get(..usize::from(page.count))?;
        let offset = at.0 % PAGE_BYTES;
        let mut found = 0;
        let mut step = PAGE_ROWS_MAX / 2;
        while step > 0 {
            match rows.get(found + step) {
                Some(row) if u64::from(row.offset) <= offset => found += step,
                _ => {}
            }
            step /= 2;
        }
        match rows.get(found)?.rule {
            RULE_NONE => None,
            rule => self.rules.get(rule as usize),
        }
    }
}

/// A file ready to be unwound through: its table, and how to translate addresses to it.
#[derive(Clone, Debug)]
pub struct CompiledElf {
    /// What of the file is loaded, in the order of the program headers.
    pub segments: Vec<Segment>,
    /// How to step from its frames to their callers.
    pub table: CompactTable,
    /// What of it is CPython's evaluation loop, by address; the rules there say so, too. Empty where there is none.
    pub evaluation_loop: Vec<LoopPart>,
}

impl CompiledElf {
    /// What to subtract (wrapping) from an address in a process to get the address in this file, when the process has
    /// mapped it at `mapping_begin` from `file_offset` on. `None`: the file has no segment there.
    pub fn bias(&self, mapping_begin: Avma, file_offset: FileOffset) -> Option<u64> {
        bias(&self.segments, mapping_begin, file_offset)
    }
}

/// Compiles the unwind information of an ELF file, which may be hostile: this takes time and memory in proportion to
/// the file's size, and never panics.
///
/// The bytes must begin at an address that 8 divides, as those of a `Vec` or of a mapping do.
pub fn compile(elf_bytes: &[u8]) -> Result<CompiledElf, UnwindError> {
    compile_from(elf_bytes, &|| false)
}

/// Compiles a file, of which only headers and unwind information are read: a large library costs no more memory than
/// its tables, and a file that is cut short meanwhile gives an error, where a mapping of it would end the process.
pub fn compile_file(file: &File) -> Result<CompiledElf, UnwindError> {
    compile_file_until(file, &|| false)
}

/// [`compile_file`], which ends early with [`UnwindError::Interrupted`] once `is_over` says so.
pub(crate) fn compile_file_until(
    file: &File,
    is_over: &dyn Fn() -> bool,
) -> Result<CompiledElf, UnwindError> {
    compile_from(&ReadCache::new(file), is_over)
}

fn compile_from<'a, R: ReadRef<'a>>(
    data: R,
    is_over: &dyn Fn() -> bool,
) -> Result<CompiledElf, UnwindError> {
    let interrupt = Interrupt::new(is_over);
    let elf = ElfView::parse(data)?;
    let mut stats = CompileStats::default();
    let mut builder = Builder::default();
    let loop_parts = |functions: &[Function]| match &elf.loop_symbols {
        Some(symbols) => symbols.parts(functions, |range| {
            code_at(&elf.segments, range.start, range.end - range.start, data)
        }),
        None => Vec::new(),
    };
    let put = |at, rule| builder.put(at, rule);
    let evaluation_loop = eh_frame::rules(&elf, &loop_parts, &interrupt, &mut stats, put);
    if interrupt.happened() {
        return Err(UnwindError::Interrupted);
    }
    let evaluation_loop = evaluation_loop?;
    Ok(CompiledElf {
        segments: elf.segments,
        table: builder.finish(stats),
        evaluation_loop,
    })
}

/// Collects rows in ascending order of address.
struct Builder {
    table: CompactTable,
    indices: FxHashMap<UnwindRule, u32>,
    /// The rule in force, and its index.
    rule: UnwindRule,
    rule_index: u32,
    /// A limit was reached: nothing more is taken.
    is_full: bool,
    stats: BuilderStats,
}

/// What the limits cost.
#[derive(Default)]
struct BuilderStats {
    dropped_rows: u32,
    dropped_rules: u32,
}

impl Default for Builder {
    fn default() -> Self {
        let none = UnwindRule::default();
        Self {
            table: CompactTable {
                rules: vec![none],
                ..CompactTable::default()
            },
            indices: FxHashMap::from_iter([(none, RULE_NONE)]),
            rule: none,
            rule_index: RULE_NONE,
            is_full: false,
            stats: BuilderStats::default(),
        }
    }
}

impl Builder {
    /// From `at` on, `rule` is in force. Addresses must not descend.
    fn put(&mut self, at: u64, rule: UnwindRule) {
        if rule == self.rule {
            return;
        }
        if self.is_full || !self.open_pages_until(at >> PAGE_SHIFT) {
            self.is_full = true;
            self.stats.dropped_rows = self.stats.dropped_rows.saturating_add(1);
            return;
        }
        let offset = (at % PAGE_BYTES) as u16;
        if offset > 0 {
            self.begin_page();
        }
        self.rule_index = self.intern(rule);
        self.rule = self.table.rules[self.rule_index as usize];
        // "Nothing known" from the first byte on is what a page without rows says.
        if offset > 0 || self.rule_index != RULE_NONE {
            self.push(offset);
        }
    }

    /// Closes the table.
    fn finish(mut self, stats: CompileStats) -> CompactTable {
        let BuilderStats {
            dropped_rows,
            dropped_rules,
        } = self.stats;
        self.table.stats = CompileStats {
            dropped_rows,
            dropped_rules,
            ..stats
        };
        self.table
    }

    /// Makes `page` the last one, and those before it complete. False: a limit does not allow it. Rows of the last
    /// page are never refused, so that no rule stays in force where another one should follow.
    fn open_pages_until(&mut self, page: u64) -> bool {
        if self.table.pages.is_empty() {
            // The kernel numbers pages with 32 bits, which is enough for 16 TiB.
            let Ok(first_page) = u32::try_from(page) else {
                return false;
            };
            self.table.first_page = first_page;
            self.table.pages.push(CompactPage::default());
        }
        let index = page.saturating_sub(u64::from(self.table.first_page));
        let missing = (index + 1).saturating_sub(self.table.pages.len() as u64);
        if missing == 0 {
            return true;
        }
        self.complete_page();
        let rows_then = self.table.rows.len() as u64 + missing + PAGE_ROWS_MAX as u64;
        if index >= PAGES_MAX || rows_then > ROWS_MAX as u64 {
            return false;
        }
        for _ in 0..missing {
            self.complete_page();
            let first_row = self.table.rows.len() as u32;
            self.table.pages.push(CompactPage {
                first_row,
                count: 0,
            });
        }
        true
    }

    /// Gives the last page its row at offset 0, unless it has rows.
    fn begin_page(&mut self) {
        if self.table.pages.last().is_some_and(|page| page.count == 0) {
            self.push(0);
        }
    }

    /// Nothing more comes in the last page: without rows it needs one only if a rule is in force.
    fn complete_page(&mut self) {
        if self.rule_index != RULE_NONE {
            self.begin_page();
        }
    }

    /// Appends a row with the rule in force to the last page.
    fn push(&mut self, offset: u16) {
        if let Some(page) = self.table.pages.last_mut() {
            page.count += 1;
            self.table.rows.push(CompactRow {
                offset,
                rule: self.rule_index,
            });
        }
    }

    /// The index of a rule. When there are too many, the new ones are unsupported.
    fn intern(&mut self, rule: UnwindRule) -> u32 {
        if let Some(&index) = self.indices.get(&rule) {
            return index;
        }
        let rule = if self.table.rules.len() < RULES_MAX {
            rule
        } else {
            self.stats.dropped_rules = self.stats.dropped_rules.saturating_add(1);
            UNSUPPORTED
        };
        let rules = &mut self.table.rules;
        *self.indices.entry(rule).or_insert_with(|| {
            rules.push(rule);
            rules.len() as u32 - 1
        })
    }
}

#[cfg(test)]
#[path = "compact_tests.rs"]
mod tests;
