//! What the table builder knows of one program: its mappings, and which of their files it waits for.

use std::{collections::VecDeque, fs::File, os::unix::fs::FileExt as _, sync::Arc, time::Instant};

use profiler_common::{
    python::PythonLayout,
    unwind_row::{MappingEntry, PAGE_BYTES, mapping_kind},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    CODE_BEFORE, CodeBytes, FinishedWalk, LoadedTable, RuleLookup, Segment, UnwindTables,
    builder::UnfinishedWalk, finish, segments_bias, trampoline_rule,
};
use crate::{
    model::{Avma, CodeAddress, Pid},
    process::{Mapping, MappingKey, MappingKind},
};

/// A file's rows, and how its addresses translate. `None`: it has no usable unwind information.
pub(super) type FileRows = Option<(LoadedTable, Vec<Segment>)>;

/// One program in one process. Copies of the lists are made by `fork` only when one of the two gets other ones.
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) entries: Arc<Vec<MappingEntry>>,
    /// Mappings that were looked at before.
    known: Arc<FxHashMap<MappingKey, MappingEntry>>,
    pub(super) python: PythonLayout,
    pub(super) memory: Option<File>,
    /// It has had a sample, or there was room enough: it gets a slot, and rows.
    pub(super) is_wanted: bool,
    /// Files that have not been looked at, in the order in which they are needed.
    to_open: VecDeque<Mapping>,
    /// Mappings whose files are being compiled, or wait for that.
    waiting: FxHashSet<MappingKey>,
    /// What the kernel side has was published at that time.
    pub(super) published: Option<Instant>,
    /// There was no slot for it: it is tried again at that time.
    pub(super) retry_at: Option<Instant>,
    /// Its walks that wait were tried at that time.
    pub(super) tried: Option<Instant>,
}

impl Process {
    /// Nothing is known of it.
    pub(super) fn new(pid: Pid) -> Self {
        Self {
            pid,
            entries: Arc::default(),
            known: Arc::default(),
            python: PythonLayout::NONE,
            memory: None,
            is_wanted: false,
            to_open: VecDeque::new(),
            waiting: FxHashSet::default(),
            published: None,
            retry_at: None,
            tried: None,
        }
    }

    /// A child that begins with all that this one has.
    pub(super) fn fork(&self, pid: Pid) -> Self {
        Self {
            entries: Arc::clone(&self.entries),
            known: Arc::clone(&self.known),
            python: self.python,
            is_wanted: self.is_wanted,
            ..Self::new(pid)
        }
    }

    /// These are its mappings now, in order of address.
    pub(super) fn update(&mut self, mappings: &[Mapping]) {
        let mapped: FxHashSet<MappingKey> = mappings.iter().map(Mapping::key).collect();
        let known = Arc::make_mut(&mut self.known);
        known.retain(|key, _| mapped.contains(key));
        self.waiting.retain(|key| mapped.contains(key));
        let mut entries = Vec::with_capacity(mappings.len());
        let mut pending = Vec::new();
        for mapping in mappings {
            let mut entry = plain_entry(mapping);
            // A library may have been loaded from memory: until that is known, it is taken for JIT code.
            let is_file = matches!(mapping.kind, MappingKind::File { .. });
            if let Some(known) = known.get(&mapping.key()) {
                entry = *known;
                // It may have moved: anonymous memory grows, files are unmapped in part.
                entry.end = mapping.end.0;
            } else if (entry.kind == mapping_kind::PENDING || is_file)
                && !self.waiting.contains(&mapping.key())
            {
                pending.push(mapping);
            }
            entries.push(entry);
        }
        // The program first, then about as they were loaded: the kernel gives out addresses downwards. What a process
        // began with is needed by every stack.
        if let [_program, others @ ..] = pending.as_mut_slice() {
            others.reverse();
        }
        self.to_open = pending.into_iter().cloned().collect();
        self.entries = Arc::new(entries);
    }

    /// The next mapping whose file is to be looked at.
    pub(super) fn next_to_open(&mut self) -> Option<Mapping> {
        self.to_open.pop_front()
    }

    /// Files are to be looked at.
    pub(super) fn has_to_open(&self) -> bool {
        !self.to_open.is_empty()
    }

    /// The rows of a mapping's file are to come.
    pub(super) fn wait_for(&mut self, mapping: &Mapping) {
        self.waiting.insert(mapping.key());
    }

    /// Rows of files are to come, in so far as there is time.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// This much is known of a mapping now. False: it is not mapped any more.
    pub(super) fn know(&mut self, mapping: &Mapping, entry: MappingEntry) -> bool {
        self.waiting.remove(&mapping.key());
        let index = self
            .entries
            .binary_search_by_key(&mapping.begin.0, |entry| entry.begin);
        let Ok(index) = index else {
            return false;
        };
        Arc::make_mut(&mut self.known).insert(mapping.key(), entry);
        let entries = Arc::make_mut(&mut self.entries);
        let end = entries[index].end;
        entries[index] = MappingEntry { end, ..entry };
        true
    }

    /// Waits for this mapping's file.
    pub(super) fn waits_for(&self, mapping: &Mapping) -> bool {
        self.waiting.contains(&mapping.key())
    }

    /// What is known of the code at an address.
    pub(super) fn look_up(&self, tables: &UnwindTables, address: CodeAddress) -> RuleLookup {
        let at = address.lookup();
        let Some(entry) = self.entry_at(at) else {
            return RuleLookup::NoMapping;
        };
        match entry.kind {
            mapping_kind::ROWS => tables
                .rule_at(entry, at)
                .map_or(RuleLookup::NoRule, RuleLookup::Rule),
            mapping_kind::ANONYMOUS => {
                let (CodeAddress::Leaf(ip) | CodeAddress::Caller(ip)) = address;
                RuleLookup::Anonymous(code_around(self.memory.as_ref(), ip))
            }
            mapping_kind::PENDING => RuleLookup::NotYet,
            _ => RuleLookup::NoRule,
        }
    }

    /// Goes on with a walk where the kernel side stopped. The frames found are added to it, the end is not.
    pub(super) fn finish(
        &self,
        walk: &mut UnfinishedWalk,
        look_up: impl FnMut(CodeAddress) -> RuleLookup,
    ) -> FinishedWalk {
        let code_around = |at| self.code_around(at);
        let native = &mut walk.native;
        finish(&walk.copy, native, look_up, trampoline_rule, code_around)
    }

    /// The code around an address; `None`: it lies in no executable mapping.
    fn code_around(&self, at: Avma) -> Option<CodeBytes> {
        self.entry_at(at)?;
        Some(code_around(self.memory.as_ref(), at))
    }

    /// The mapping that an address lies in.
    fn entry_at(&self, at: Avma) -> Option<&MappingEntry> {
        let index = self.entries.partition_point(|entry| entry.begin <= at.0);
        let entry = self.entries.get(index.checked_sub(1)?)?;
        Some(entry).filter(|entry| at.0 < entry.end)
    }
}

/// What can be said of a mapping without opening its file.
pub(super) fn plain_entry(mapping: &Mapping) -> MappingEntry {
    let kind = match mapping.kind {
        _ if mapping.may_hold_jit_code() => mapping_kind::ANONYMOUS,
        MappingKind::File { .. } | MappingKind::Vdso => mapping_kind::PENDING,
        MappingKind::Anonymous => mapping_kind::ANONYMOUS,
        MappingKind::Special => mapping_kind::NO_ROWS,
    };
    MappingEntry {
        begin: mapping.begin.0,
        end: mapping.end.0,
        kind,
        ..MappingEntry::default()
    }
}

/// The entry of a mapping whose file has these rows, or none.
pub(super) fn entry_with(mapping: &Mapping, rows: &FileRows) -> MappingEntry {
    let mut entry = plain_entry(mapping);
    if entry.kind == mapping_kind::PENDING {
        entry.kind = mapping_kind::NO_ROWS;
    }
    if let Some((table, segments)) = rows
        && let Some(bias) = segments_bias(segments, mapping.begin, mapping.file_offset)
    {
        entry.kind = mapping_kind::ROWS;
        entry.bias = bias;
        entry.page_base = table.page_base;
        entry.page0 = table.page0;
        entry.page_count = table.page_count;
    }
    entry
}

/// Code around an instruction pointer, zeros where it cannot be read.
fn code_around(memory: Option<&File>, ip: Avma) -> CodeBytes {
    let mut bytes = CodeBytes::default();
    if let Some(memory) = memory {
        let (before, after) = bytes.split_at_mut(CODE_BEFORE);
        // The part before may lie in front of the mapping: the first trampoline stands at its very beginning.
        let in_page = (ip.0 % PAGE_BYTES) as usize;
        let before = &mut before[CODE_BEFORE.saturating_sub(in_page)..];
        let _ = memory.read_exact_at(before, ip.0.wrapping_sub(before.len() as u64));
        // Less, where the mapping ends.
        let _ = memory.read_at(after, ip.0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_at_the_beginning_of_its_mapping_is_read() {
        use std::io::Write as _;
        // A file stands for the process's memory; in front of it there is nothing at all.
        let mut memory = tempfile::tempfile().unwrap();
        memory.write_all(&[0xcc; 64]).unwrap();
        let bytes = code_around(Some(&memory), Avma(5));
        assert_eq!(bytes[CODE_BEFORE - 5..CODE_BEFORE + 8], [0xcc; 13]);
        assert!(bytes[..CODE_BEFORE - 5].iter().all(|&byte| byte == 0));
    }
}
