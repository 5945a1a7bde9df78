//! What the thread of [`TableBuilder`](super::TableBuilder) does: opens files, makes their rows, goes on with walks.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    panic::catch_unwind,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, Sender},
    },
    time::{Duration, Instant},
};

use profiler_common::{
    python::PythonLayout,
    unwind_row::{MappingEntry, PAGE_BYTES, mapping_kind},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    CODE_BEFORE, CodeBytes, LoadedTable, Published, RuleLookup, Segment, UnwindError, UnwindTables,
    builder::{BuilderStats, Command, Shared, UnfinishedWalk},
    compile_file, finish, segments_bias,
    table::most_useful,
    trampoline_rule,
};
use crate::{
    model::{Avma, CodeAddress, ImageId, Pid, UnwoundStack},
    process::{
        FileIdentity, Mapping, MappingKey, MappingKind, open_mapped, proc_folder, vdso_file,
    },
};

/// Files remembered, most of which have no rows then: those with rows fill the BPF maps long before.
const FILES_MAX: usize = 65_536;
/// Time that making rows may take, and a quarter of the time since the beginning on top of it. The largest processes
/// known (CUDA back ends) take about 5 s; one that maps ever new files would otherwise keep a CPU busy.
const BUILD_TIME: Duration = Duration::from_secs(10);
/// While several files are being compiled, what is ready is published this often.
const PUBLISH_EVERY: Duration = Duration::from_millis(10);

/// A file's rows, and how its addresses translate. `None`: it has no usable unwind information.
type FileRows = Option<(LoadedTable, Vec<Segment>)>;

/// One program in one process. Copies of the lists are made by `fork` only when one of the two gets other ones.
#[derive(Default)]
struct Process {
    entries: Arc<Vec<MappingEntry>>,
    /// Mappings that were looked at before.
    known: Arc<FxHashMap<MappingKey, MappingEntry>>,
    python: PythonLayout,
    memory: Option<File>,
}

/// The thread's own things.
pub(super) struct Builder {
    tables: UnwindTables,
    files: FxHashMap<FileIdentity, FileRows>,
    vdso: Option<FileRows>,
    processes: FxHashMap<ImageId, Process>,
    results: Sender<UnwoundStack>,
    shared: Arc<Shared>,
    began: Instant,
    is_full: bool,
    stats: BuilderStats,
}

impl Builder {
    pub(super) fn new(
        tables: UnwindTables,
        results: Sender<UnwoundStack>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            tables,
            files: FxHashMap::default(),
            vdso: None,
            processes: FxHashMap::default(),
            results,
            shared,
            began: Instant::now(),
            is_full: false,
            stats: BuilderStats::default(),
        }
    }

    /// Works until nobody can send commands any more.
    pub(super) fn run(mut self, commands: &Receiver<Command>) -> BuilderStats {
        while let Ok(command) = commands.recv() {
            match command {
                Command::Admit(pid, image) => self.admit(pid, image),
                Command::Mappings(pid, image) => {
                    if let Some(mappings) = self.shared.take(image) {
                        self.update(pid, image, &mappings);
                    }
                }
                Command::Fork { from, to } => self.fork(from, to),
                Command::Interpreter(pid, image) => self.read_frames(pid, image),
                Command::ForgetThreads => self.tables.forget_threads(),
                Command::Forget(image) => _ = self.processes.remove(&image),
                Command::Expel(pid) => self.tables.remove(pid),
                Command::Finish(walk) => {
                    let stack = self.finish(*walk);
                    // Nobody listens any more: the recording is over.
                    let _ = self.results.send(stack);
                }
                Command::Settled(done) => _ = done.try_send(()),
            }
        }
        self.stats.rows = self.tables.row_count() as u64;
        self.stats
    }

    fn admit(&mut self, pid: Pid, image: ImageId) {
        if !self.shared.is_current(pid, image) {
            return;
        }
        if let Err(error) = self.tables.admit(pid) {
            tracing::warn!("pid {pid}: {error}");
        }
    }

    fn fork(&mut self, from: ImageId, to: ImageId) {
        if let Some(parent) = self.processes.get(&from) {
            let child = Process {
                entries: Arc::clone(&parent.entries),
                known: Arc::clone(&parent.known),
                python: parent.python,
                memory: None,
            };
            self.processes.insert(to, child);
        }
    }

    /// Has the kernel side read a program's interpreter frames from now on.
    fn read_frames(&mut self, pid: Pid, image: ImageId) {
        // It may have been published with mappings.
        if self.shared.has_interpreter(image) {
            let mut process = self.processes.remove(&image).unwrap_or_default();
            let entries = Arc::clone(&process.entries);
            self.publish(pid, image, &mut process, &entries);
            self.processes.insert(image, process);
        }
    }

    /// Publishes what is known at once, then makes what is missing.
    fn update(&mut self, pid: Pid, image: ImageId, mappings: &[Mapping]) {
        let mut process = self.processes.remove(&image).unwrap_or_default();
        let mapped: FxHashSet<MappingKey> = mappings.iter().map(Mapping::key).collect();
        let mut known = std::mem::take(Arc::make_mut(&mut process.known));
        known.retain(|known, _| mapped.contains(known));
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
            } else if entry.kind == mapping_kind::PENDING || is_file {
                pending.push((entries.len(), mapping));
            }
            entries.push(entry);
        }
        self.publish(pid, image, &mut process, &entries);
        // The program first, then about as they were loaded: the kernel gives out addresses downwards. What a process
        // began with is needed by every stack.
        if let [_program, others @ ..] = pending.as_mut_slice() {
            others.reverse();
        }
        let mut published = Instant::now();
        for (index, mapping) in &pending {
            if !self.may_build() {
                break;
            }
            let entry = self.entry_of(pid, mapping);
            known.insert(mapping.key(), entry);
            entries[*index] = entry;
            if published.elapsed() >= PUBLISH_EVERY || self.shared.has_interpreter(image) {
                self.publish(pid, image, &mut process, &entries);
                published = Instant::now();
            }
        }
        if !pending.is_empty() {
            self.publish(pid, image, &mut process, &entries);
        }
        process.known = Arc::new(known);
        process.entries = Arc::new(entries);
        self.processes.insert(image, process);
    }

    /// There is time for more rows. What is left out stays pending, and is looked at again with the next update.
    fn may_build(&self) -> bool {
        !self.shared.is_ending.load(Ordering::Relaxed)
            && self.stats.build_time <= BUILD_TIME + self.began.elapsed() / 4
    }

    /// Not for a program that has been replaced: its mappings would be taken for those of the new one.
    fn publish(
        &mut self,
        pid: Pid,
        image: ImageId,
        process: &mut Process,
        entries: &[MappingEntry],
    ) {
        if !self.shared.is_current(pid, image) {
            return;
        }
        if let Some(interpreter) = self.shared.take_interpreter(image) {
            self.tables.remember_threads(pid, &interpreter.threads);
            process.python = interpreter.layout;
        }
        let kept = most_useful(entries);
        match self.tables.publish(pid, &kept, &process.python) {
            Ok(Published::Done { left_out }) => self.stats.mappings_refused += left_out as u64,
            Ok(Published::NoSlot) => self.stats.slots_refused += 1,
            Ok(Published::Gone) => {}
            Err(error) => tracing::warn!("pid {pid}: {error}"),
        }
    }

    /// The entry of a mapping of a file, whose rows are made if this file was not seen before.
    fn entry_of(&mut self, pid: Pid, mapping: &Mapping) -> MappingEntry {
        let mut entry = plain_entry(mapping);
        if entry.kind == mapping_kind::PENDING {
            entry.kind = mapping_kind::NO_ROWS;
        }
        let opened = match mapping.kind {
            MappingKind::Vdso => None,
            _ => match open_mapped(pid, mapping) {
                Ok(opened) if mapping.may_hold_jit_code() && !opened.is_elf() => return entry,
                Ok(opened) => Some(opened),
                Err(error) => {
                    tracing::debug!("no rows for a mapping of pid {pid}: {error}");
                    return entry;
                }
            },
        };
        let known = match &opened {
            Some(opened) => self.files.get(&opened.identity).cloned(),
            None => self.vdso.clone(),
        };
        let rows = known.unwrap_or_else(|| {
            let rows = match &opened {
                Some(opened) => {
                    let path = opened.display_path.to_string_lossy();
                    self.make_rows(&opened.file, &path.escape_debug().to_string())
                }
                None => vdso_file()
                    .ok()
                    .and_then(|vdso| self.make_rows(&vdso.file, "[vdso]")),
            };
            if self.files.len() >= FILES_MAX {
                // Files without any are found to be so once more, should they come again.
                self.files.retain(|_, rows| rows.is_some());
            }
            match &opened {
                Some(opened) => _ = self.files.insert(opened.identity, rows.clone()),
                None => self.vdso = Some(rows.clone()),
            }
            rows
        });
        if let Some((table, segments)) = rows
            && let Some(bias) = segments_bias(&segments, mapping.begin, mapping.file_offset)
        {
            entry.kind = mapping_kind::ROWS;
            entry.bias = bias;
            entry.page_base = table.page_base;
            entry.page0 = table.page0;
            entry.page_count = table.page_count;
        }
        entry
    }

    /// The rows of a file. `name` is for the log, and harmless.
    fn make_rows(&mut self, file: &File, name: &str) -> FileRows {
        let began = Instant::now();
        // The file is hostile, and nothing of what the compiler uses outlives the call.
        let compiled = catch_unwind(|| compile_file(file))
            .unwrap_or_else(|_| {
                tracing::warn!("cannot compile {name}");
                Err(UnwindError::NoUnwindInformation)
            })
            .inspect_err(|error| tracing::debug!("no rows for {name}: {error}"))
            .ok();
        let rows = compiled.and_then(|compiled| {
            let loaded = self.tables.load(&compiled.table);
            if let Err(error) = &loaded {
                if !std::mem::replace(&mut self.is_full, true) {
                    tracing::warn!("no room for the unwind rows of {name}: {error}");
                }
                self.stats.mappings_refused += 1;
            }
            let stats = &compiled.table.stats;
            let dropped = stats.dropped_rows + stats.dropped_rules;
            if dropped > 0 {
                tracing::debug!("{name}: {dropped} rows are past the limits and were left out");
                self.stats.mappings_refused += 1;
            }
            let code = compiled.segments.iter().filter(|it| it.executable);
            self.stats.text_bytes += code.map(|segment| segment.file_bytes).sum::<u64>();
            let count = compiled.table.rows.len();
            tracing::debug!("{name}: {count} rows in {:?}", began.elapsed());
            Some((loaded.ok()?, compiled.segments))
        });
        self.stats.files += u64::from(rows.is_some());
        self.stats.build_time += began.elapsed();
        rows
    }

    /// Goes on where the kernel side stopped.
    fn finish(&mut self, mut walk: UnfinishedWalk) -> UnwoundStack {
        let stack = &mut walk.stack;
        let Some(process) = self.processes.get_mut(&stack.image) else {
            return walk.into_stack();
        };
        // The handle is of the program's memory, not of the process's: another one after an `exec`.
        if process.memory.is_none() && self.shared.is_current(stack.pid, stack.image) {
            process.memory = File::open(format!("{}/mem", proc_folder(stack.pid))).ok();
        }
        let (entries, memory, tables) = (&process.entries, &process.memory, &self.tables);
        let look_up = |address: CodeAddress| look_up(entries, memory.as_ref(), tables, address);
        stack.end = finish(&walk.copy, &mut walk.native, look_up, trampoline_rule);
        walk.into_stack()
    }
}

/// What can be said of a mapping without opening its file.
fn plain_entry(mapping: &Mapping) -> MappingEntry {
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

/// What is known of the code at an address.
fn look_up(
    entries: &[MappingEntry],
    memory: Option<&File>,
    tables: &UnwindTables,
    address: CodeAddress,
) -> RuleLookup {
    let at = address.lookup();
    let index = entries.partition_point(|entry| entry.begin <= at.0);
    let Some(entry) = index
        .checked_sub(1)
        .and_then(|index| entries.get(index))
        .filter(|entry| at.0 < entry.end)
    else {
        return RuleLookup::NoMapping;
    };
    match entry.kind {
        mapping_kind::ROWS => tables
            .rule_at(entry, at)
            .map_or(RuleLookup::NoRule, RuleLookup::Rule),
        mapping_kind::ANONYMOUS => {
            let (CodeAddress::Leaf(ip) | CodeAddress::Caller(ip)) = address;
            RuleLookup::Anonymous(code_around(memory, ip))
        }
        mapping_kind::PENDING => RuleLookup::NotYet,
        _ => RuleLookup::NoRule,
    }
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
        let _ = memory.read_exact_at(after, ip.0);
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
