//! Rows into BPF maps: the only place outside `kernel` that knows they are maps.
//!
//! Files are loaded once and shared by all processes that map them. A process's mappings are written to a free slot
//! and then published by one map update, so that the kernel side sees the old list or the new one, never half of it.

use std::{
    borrow::Cow,
    cmp::Reverse,
    hash::{Hash as _, Hasher as _},
    io,
    time::{Duration, Instant},
};

use aya::maps::MapError;

use profiler_common::python::{PythonLayout, ThreadKey, ThreadState};
use profiler_common::target::{LAYOUT_NONE, TargetTables};
use profiler_common::unwind_row::{
    CHUNK_ROWS, MAPPINGS_MAX, MappingEntry, NO_MAPPING, PAGE_BYTES, PAGE_SHIFT, Page,
    ProcessMappings, RULE_BITS, RULE_NONE, SLOT_EMPTY, UnwindRule, mapping_kind, row,
};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use super::{CompactTable, slots::Slots};
use crate::{
    kernel::{KernelError, UnwindMaps},
    model::{Avma, Pid},
};

/// Where the rows of one file lie in the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedTable {
    /// Index of its first page.
    pub page_base: u32,
    /// The page number that it stands for.
    pub page0: u32,
    /// Number of pages.
    pub page_count: u32,
}

/// The unwinder's maps, and how far they are filled.
pub struct UnwindTables {
    maps: UnwindMaps,
    next_row: usize,
    next_page: usize,
    rules: FxHashMap<UnwindRule, u32>,
    slots: Slots,
    layouts: Slots,
    generation: u32,
    scratch: Vec<u32>,
    /// The list being written; 20 KiB.
    list: Box<ProcessMappings>,
}

impl std::fmt::Debug for UnwindTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnwindTables")
            .field("rows", &self.next_row)
            .field("pages", &self.next_page)
            .field("rules", &self.rules.len())
            .finish_non_exhaustive()
    }
}

impl UnwindTables {
    /// Empty tables over these maps.
    pub fn new(maps: UnwindMaps) -> Self {
        let slots = Slots::new(maps.mappings.len() as u32);
        let layouts = Slots::new(maps.layouts.len() as u32);
        // The empty slot needs no writing: zero bytes are mappings that end where they begin.
        // Rule 0 says "nothing is known": the zero bytes of a new map say the same.
        let rules = FxHashMap::from_iter([(UnwindRule::default(), RULE_NONE)]);
        Self {
            maps,
            next_row: 0,
            next_page: 0,
            rules,
            slots,
            layouts,
            generation: 1,
            scratch: Vec::new(),
            list: Box::new(ProcessMappings::EMPTY),
        }
    }

    /// Rows in use, of all files.
    pub const fn row_count(&self) -> usize {
        self.next_row
    }

    /// Writes a file's rows. An error says which table is full: the file's code is then without rows.
    pub fn load(&mut self, table: &CompactTable) -> Result<LoadedTable, FullTable> {
        let page_base = self.next_page;
        if page_base + table.pages.len() > self.maps.pages.len() {
            return Err(FullTable::Pages);
        }
        // Each rule is looked up once, and not for each of its rows.
        let rules = table.rules.iter().map(|&rule| self.intern(rule));
        let rules: Vec<u32> = rules.collect::<Result<_, _>>()?;
        let mut next_row = self.next_row;
        let mut pages = Vec::with_capacity(table.pages.len());
        let mut words = std::mem::take(&mut self.scratch);
        for page in &table.pages {
            if page.count == 0 {
                pages.push(Page::default());
                continue;
            }
            let first = page.first_row as usize;
            let count = usize::from(page.count);
            let rows = table.rows.get(first..first + count).unwrap_or_default();
            if next_row % CHUNK_ROWS + count > CHUNK_ROWS {
                next_row = next_row.next_multiple_of(CHUNK_ROWS);
            }
            words.clear();
            words.extend(rows.iter().map(|entry| {
                let rule = rules.get(entry.rule as usize).copied();
                row(u32::from(entry.offset), rule.unwrap_or(RULE_NONE))
            }));
            self.maps
                .rows
                .write(next_row, &words)
                .map_err(|_| FullTable::Rows)?;
            pages.push(Page {
                chunk: (next_row / CHUNK_ROWS) as u16,
                first: (next_row % CHUNK_ROWS) as u16,
                count: page.count,
                reserved: 0,
            });
            next_row += count;
        }
        self.scratch = words;
        self.maps
            .pages
            .write(page_base, &pages)
            .map_err(|_| FullTable::Pages)?;
        self.next_row = next_row;
        self.next_page += pages.len();
        Ok(LoadedTable {
            page_base: page_base as u32,
            page0: table.first_page,
            page_count: pages.len() as u32,
        })
    }

    /// The index of a rule, which is added when it is new.
    fn intern(&mut self, rule: UnwindRule) -> Result<u32, FullTable> {
        if let Some(&index) = self.rules.get(&rule) {
            return Ok(index);
        }
        let index = self.rules.len();
        self.maps
            .rules
            .write(index, &[rule])
            .map_err(|_| FullTable::Rules)?;
        self.rules.insert(rule, index as u32);
        Ok(index as u32)
    }

    /// Makes a process a target, of which nothing is known yet. It must be seen to live afterwards, or be
    /// [removed](Self::remove) again: the kernel side takes out only those that end later.
    pub fn admit(&mut self, pid: Pid) -> Result<(), KernelError> {
        self.maps
            .processes
            .insert(pid.0, TargetTables::UNKNOWN, 0)
            .map_err(map_error)
    }

    /// The process is no target any more.
    pub fn remove(&mut self, pid: Pid) {
        // It is gone already where the kernel side noticed its end.
        let _ = self.maps.processes.remove(&pid.0);
    }

    /// Makes a target's mappings and its interpreter known to the kernel side, in one step. `entries` are sorted by address
    /// and do not overlap; those past the first [`MAPPINGS_MAX`] are left out. Without any, the target has no slot.
    pub fn publish(
        &mut self,
        pid: Pid,
        entries: &[MappingEntry],
        python: &PythonLayout,
    ) -> Result<Published, KernelError> {
        // The kernel's half of the address space holds `[vsyscall]` only, and the search needs positive numbers.
        let in_user_half = entries.partition_point(|entry| entry.begin < NO_MAPPING);
        let entries = &entries[..in_user_half];
        let kept = entries.len().min(MAPPINGS_MAX);
        let slot = self.slot_with(&entries[..kept])?;
        let layout = self.layout_with(python)?;
        // Not a process that has ended: its pid may be another's.
        let exists_flag = 2; // BPF_EXIST, include/uapi/linux/bpf.h
        let tables = TargetTables::new(slot, layout);
        let is_target = match self.maps.processes.insert(pid.0, tables, exists_flag) {
            Ok(()) => true,
            Err(error) if is_missing(&error) => false,
            Err(error) => return Err(map_error(error)),
        };
        Ok(Published {
            is_target,
            left_out: entries.len() - kept,
            has_slot: slot != SLOT_EMPTY || kept == 0,
            has_layout: layout != LAYOUT_NONE || *python == PythonLayout::NONE,
        })
    }

    /// Fewer slots than these are in use.
    pub fn has_fewer_slots_than(&mut self, count: usize) -> bool {
        if self.slots.taken() >= count && self.slots.may_ask(Instant::now()) {
            self.reclaim();
        }
        self.slots.taken() < count
    }

    /// Where there was no free slot: in how long there may be one.
    pub fn next_free_slot_in(&self) -> Option<Duration> {
        self.slots.next_free_in(Instant::now())
    }

    /// A slot with these mappings: one that has them, or a free one, or the empty one where there is none.
    fn slot_with(&mut self, entries: &[MappingEntry]) -> Result<u32, KernelError> {
        if entries.is_empty() {
            return Ok(SLOT_EMPTY);
        }
        let hash = hash_of(entries);
        if let Some(slot) = self.slots.with_content(hash)
            && self.holds(slot, entries)
        {
            self.slots.share(slot);
            return Ok(slot);
        }
        if self.slots.run_short(Instant::now()) {
            self.reclaim();
        }
        let Some(slot) = self.slots.take(hash) else {
            return Ok(SLOT_EMPTY);
        };
        let list = &mut *self.list;
        list.count = entries.len() as u32;
        list.generation = self.generation;
        list.entries[..entries.len()].copy_from_slice(entries);
        list.entries[entries.len()..].fill(MappingEntry::UNUSED);
        self.generation += 1;
        self.maps
            .mappings
            .write(slot as usize, std::slice::from_ref(list))
            .map_err(write_error)?;
        Ok(slot)
    }

    fn holds(&self, slot: u32, entries: &[MappingEntry]) -> bool {
        self.maps
            .mappings
            .read(slot as usize)
            .is_some_and(|list| list.entries.get(..list.count as usize) == Some(entries))
    }

    /// The place of a layout, as [`slot_with`](Self::slot_with) for mappings.
    fn layout_with(&mut self, python: &PythonLayout) -> Result<u32, KernelError> {
        if *python == PythonLayout::NONE {
            return Ok(LAYOUT_NONE);
        }
        let mut hasher = FxHasher::default();
        python.hash(&mut hasher);
        let hash = hasher.finish();
        if let Some(layout) = self.layouts.with_content(hash)
            && self.maps.layouts.read(layout as usize) == Some(*python)
        {
            self.layouts.share(layout);
            return Ok(layout);
        }
        if self.layouts.run_short(Instant::now()) {
            self.reclaim();
        }
        let Some(layout) = self.layouts.take(hash) else {
            return Ok(LAYOUT_NONE);
        };
        self.maps
            .layouts
            .write(layout as usize, std::slice::from_ref(python))
            .map_err(write_error)?;
        Ok(layout)
    }

    /// Says where the states of a process's threads are, so that the kernel side need not look for them. Where there is
    /// no room for more, it does.
    pub fn remember_threads(&mut self, pid: Pid, threads: &[(u64, u64)]) {
        for &(thread_pointer, state) in threads {
            let key = ThreadKey {
                thread_pointer,
                tgid: pid.0,
                reserved: 0,
            };
            let value = ThreadState { state, newest: 0 };
            if self.maps.threads.insert(key, value, 0).is_err() {
                break;
            }
        }
    }

    /// Finds out which slots and layouts nobody has: two system calls for each target.
    fn reclaim(&mut self) {
        let began = Instant::now();
        let (mut slots, mut layouts) = (FxHashSet::default(), FxHashSet::default());
        for (_, tables) in self.maps.processes.iter().flatten() {
            slots.insert(tables.slot());
            layouts.insert(tables.layout());
        }
        let now = Instant::now();
        let took = now.saturating_duration_since(began);
        self.slots.reclaim(&slots, now, took);
        self.layouts.reclaim(&layouts, now, took);
    }

    /// Forgets where the states of threads are.
    pub fn forget_threads(&mut self) {
        let keys: Vec<ThreadKey> = self.maps.threads.keys().flatten().collect();
        for key in keys {
            // It may be gone already.
            let _ = self.maps.threads.remove(&key);
        }
    }

    /// The rule in force at an address of a mapping, as the kernel side finds it.
    pub fn rule_at(&self, entry: &MappingEntry, at: Avma) -> Option<UnwindRule> {
        if entry.kind != mapping_kind::ROWS {
            return None;
        }
        let svma = at.0.wrapping_sub(entry.bias);
        let index = (svma >> PAGE_SHIFT).checked_sub(u64::from(entry.page0))?;
        if index >= u64::from(entry.page_count) {
            return None;
        }
        let page = self
            .maps
            .pages
            .read(entry.page_base as usize + index as usize)?;
        let first = usize::from(page.chunk) * CHUNK_ROWS + usize::from(page.first);
        let key = row((svma % PAGE_BYTES) as u32, (1 << RULE_BITS) - 1);
        let (mut base, mut length) = (first, usize::from(page.count));
        while length > 1 {
            let half = length / 2;
            if self.maps.rows.read(base + half)? <= key {
                base += half;
            }
            length -= half;
        }
        let rule = (length == 1).then(|| self.maps.rows.read(base))?? & ((1 << RULE_BITS) - 1);
        if rule == RULE_NONE {
            None
        } else {
            self.maps.rules.read(rule as usize)
        }
    }
}

/// What became of a list of mappings and a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The process is a target still.
    pub is_target: bool,
    /// Number of mappings that found no room in the list.
    pub left_out: usize,
    /// False: all slots are in use, and walks of this process are finished in user space.
    pub has_slot: bool,
    /// False: all places for layouts are in use, and no interpreter's frames are read of this process.
    pub has_layout: bool,
}

/// A table in the kernel that has no room for the rows of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullTable {
    /// `ROWS`.
    Rows,
    /// `PAGES`.
    Pages,
    /// `RULES`.
    Rules,
}

fn map_error(source: MapError) -> KernelError {
    KernelError::Map {
        name: "PROCESSES",
        source,
    }
}

fn write_error(source: io::Error) -> KernelError {
    KernelError::System {
        call: "writing mappings",
        source,
    }
}

fn is_missing(error: &MapError) -> bool {
    matches!(error, MapError::SyscallError(error) if error.io_error.kind() == io::ErrorKind::NotFound)
}

fn hash_of(entries: &[MappingEntry]) -> u64 {
    let mut hasher = FxHasher::default();
    for entry in entries {
        let MappingEntry {
            begin,
            end,
            bias,
            page_base,
            page0,
            page_count,
            kind,
        } = *entry;
        (begin, end, bias, page_base, page0, page_count, kind).hash(&mut hasher);
    }
    hasher.finish()
}

/// As many entries as the kernel side can search, by address. Where there are more, those are kept through which a walk
/// gets somewhere: walks that meet any other are finished in user space, which knows all of them.
pub(super) fn most_useful(entries: &[MappingEntry]) -> Cow<'_, [MappingEntry]> {
    if entries.len() <= MAPPINGS_MAX {
        return Cow::Borrowed(entries);
    }
    let rank = |entry: &MappingEntry| {
        let kind = match entry.kind {
            mapping_kind::ROWS => 0,
            mapping_kind::ANONYMOUS => 1,
            mapping_kind::PENDING => 2,
            _ => 3,
        };
        (kind, Reverse(entry.end - entry.begin))
    };
    let mut kept = entries.to_vec();
    kept.sort_by_key(rank);
    kept.truncate(MAPPINGS_MAX);
    kept.sort_unstable_by_key(|entry| entry.begin);
    Cow::Owned(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_mappings_those_with_rows_stay() {
        let entry = |index: usize, kind| MappingEntry {
            begin: index as u64 * 0x2000,
            end: index as u64 * 0x2000 + 0x1000,
            kind,
            ..MappingEntry::default()
        };
        let mut entries: Vec<_> = (0..2 * MAPPINGS_MAX)
            .map(|index| entry(index, mapping_kind::NO_ROWS))
            .collect();
        entries[MAPPINGS_MAX + 7].kind = mapping_kind::ROWS;
        entries[MAPPINGS_MAX + 3].kind = mapping_kind::ANONYMOUS;
        let kept = most_useful(&entries);
        assert_eq!(kept.len(), MAPPINGS_MAX);
        let has = |kind| kept.iter().any(|entry| entry.kind == kind);
        assert!(has(mapping_kind::ROWS) && has(mapping_kind::ANONYMOUS));
        assert!(kept.is_sorted_by_key(|entry| entry.begin));
        assert_eq!(most_useful(&entries[..9]).len(), 9);
    }
}
