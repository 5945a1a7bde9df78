//! The thread that makes tables: mappings of targets become rows in BPF maps, and walks that met code without rows are
//! finished as soon as it has some.
//!
//! Commands are worked off in order, so a walk sent after the mappings that it needs finds them. Draining samples
//! never waits for this thread: the command queue is bounded, and what it refuses is counted by the sender.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use profiler_common::unwind_row::{MappingEntry, mapping_kind};
use rustc_hash::FxHashMap;

use super::{
    CODE_BEFORE, CodeBytes, LoadedTable, RuleLookup, Segment, UnwindTables, compile_file, finish,
    segments_bias, trampoline_rule,
};
use crate::{
    model::{Avma, CodeAddress, Pid, RawSample, SavedRegister, StackCopy, UnwoundStack},
    process::{FileIdentity, Mapping, MappingKind, open_mapped, vdso_file},
};

/// Commands that may wait. A burst of imports at the highest rate fills some hundred.
const QUEUE: usize = 4096;
/// While several files are being compiled, what is ready is published this often.
const PUBLISH_EVERY: Duration = Duration::from_millis(10);

/// A walk that the kernel side could not finish, owned.
#[derive(Debug)]
pub struct UnfinishedWalk {
    /// What is known of the stack so far.
    pub stack: UnwoundStack,
    ip: Avma,
    sp: u64,
    bp: u64,
    saved: [SavedRegister; 5],
    is_leaf: bool,
    begin: u64,
    bytes: Box<[u8]>,
}

impl UnfinishedWalk {
    /// Takes over a sample whose `unfinished` is set; `None` for any other.
    pub fn of(sample: &RawSample<'_>) -> Option<Self> {
        let StackCopy {
            ip,
            sp,
            bp,
            saved,
            is_leaf,
            begin,
            stack: bytes,
        } = sample.unfinished?;
        let mut stack = UnwoundStack::empty();
        super::merge(sample, &mut stack);
        Some(Self {
            stack,
            ip,
            sp,
            bp,
            saved,
            is_leaf,
            begin,
            bytes: bytes.into(),
        })
    }
}

enum Command {
    Mappings(Pid, Vec<Mapping>),
    Finish(Box<UnfinishedWalk>),
    Settled(SyncSender<()>),
    Forget(Pid),
}

/// What the thread did, for the report and for logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuilderStats {
    /// Files compiled.
    pub files: u64,
    /// Bytes of their executable segments.
    pub text_bytes: u64,
    /// Time spent compiling and loading.
    pub build_time: Duration,
    /// Rows in the kernel.
    pub rows: u64,
    /// Mappings left out because a process has too many, or because a map is full.
    pub mappings_refused: u64,
}

/// Handle of the thread.
#[derive(Debug)]
pub struct TableBuilder {
    commands: Option<SyncSender<Command>>,
    finished: Receiver<UnwoundStack>,
    thread: Option<JoinHandle<BuilderStats>>,
}

impl TableBuilder {
    /// Starts the thread.
    pub fn start(tables: UnwindTables) -> std::io::Result<Self> {
        let (commands, receiver) = sync_channel(QUEUE);
        let (results, finished) = channel();
        let thread = std::thread::Builder::new()
            .name("unwind-tables".into())
            .spawn(move || Builder::new(tables, results).run(&receiver))?;
        Ok(Self {
            commands: Some(commands),
            finished,
            thread: Some(thread),
        })
    }

    /// These are a process's executable mappings now. False: the queue is full; send them again later.
    pub fn update(&self, pid: Pid, mappings: Vec<Mapping>) -> bool {
        self.send(Command::Mappings(pid, mappings)).is_ok()
    }

    /// Finishes a walk after everything sent before. Given back when the queue is full.
    pub fn finish_walk(&self, walk: Box<UnfinishedWalk>) -> Result<(), Box<UnfinishedWalk>> {
        self.send(Command::Finish(walk))
            .map_err(|command| match command {
                Command::Finish(walk) => walk,
                Command::Mappings(..) | Command::Forget(_) | Command::Settled(_) => {
                    unreachable!("only walks are sent here")
                }
            })
    }

    /// Stops sampling a process.
    pub fn forget(&self, pid: Pid) -> bool {
        self.send(Command::Forget(pid)).is_ok()
    }

    fn send(&self, command: Command) -> Result<(), Command> {
        let Some(commands) = &self.commands else {
            return Err(command);
        };
        commands
            .try_send(command)
            .map_err(|(TrySendError::Full(command) | TrySendError::Disconnected(command))| command)
    }

    /// Waits until everything sent before has been worked off, at most `patience`.
    pub fn settle(&self, patience: Duration) {
        let (done, settled) = sync_channel(1);
        if self.send(Command::Settled(done)).is_ok() {
            // Late is no failure: walks that need a missing table are finished afterwards.
            let _ = settled.recv_timeout(patience);
        }
    }

    /// Walks finished since the last call.
    pub fn finished(&self) -> impl Iterator<Item = UnwoundStack> + '_ {
        self.finished.try_iter()
    }

    /// Works off what is queued and ends the thread; `each` gets the walks that were still in it.
    pub fn end(mut self, mut each: impl FnMut(UnwoundStack)) -> BuilderStats {
        self.commands = None;
        while let Ok(stack) = self.finished.recv() {
            each(stack);
        }
        self.thread
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default()
    }
}

/// A file's rows, and how its addresses translate. `None`: it has no usable unwind information.
type FileRows = Option<(LoadedTable, Vec<Segment>)>;

/// A mapping of a process that was looked at before.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Known {
    begin: Avma,
    offset: u64,
    device: (u32, u32),
    inode: u64,
}

#[derive(Default)]
struct Process {
    entries: Vec<MappingEntry>,
    known: FxHashMap<Known, MappingEntry>,
    memory: Option<File>,
}

struct Builder {
    tables: UnwindTables,
    files: FxHashMap<FileIdentity, FileRows>,
    vdso: Option<FileRows>,
    processes: FxHashMap<Pid, Process>,
    results: Sender<UnwoundStack>,
    stats: BuilderStats,
}

impl Builder {
    fn new(tables: UnwindTables, results: Sender<UnwoundStack>) -> Self {
        Self {
            tables,
            files: FxHashMap::default(),
            vdso: None,
            processes: FxHashMap::default(),
            results,
            stats: BuilderStats::default(),
        }
    }

    fn run(mut self, commands: &Receiver<Command>) -> BuilderStats {
        while let Ok(command) = commands.recv() {
            match command {
                Command::Mappings(pid, mappings) => self.update(pid, &mappings),
                Command::Finish(walk) => {
                    let stack = self.finish(*walk);
                    // Nobody listens any more: the recording is over.
                    let _ = self.results.send(stack);
                }
                Command::Settled(done) => _ = done.try_send(()),
                Command::Forget(pid) => {
                    self.processes.remove(&pid);
                    self.tables.forget(pid);
                }
            }
        }
        self.stats.rows = self.tables.row_count() as u64;
        self.stats
    }

    /// Publishes what is known at once, then makes what is missing.
    fn update(&mut self, pid: Pid, mappings: &[Mapping]) {
        let mut process = self.processes.remove(&pid).unwrap_or_default();
        process
            .known
            .retain(|known, _| mappings.iter().any(|mapping| Known::of(mapping) == *known));
        process.entries.clear();
        let mut pending = Vec::new();
        for mapping in mappings {
            let mut entry = plain_entry(mapping);
            // A library may have been loaded from memory: until that is known, it is taken for JIT code.
            let is_file = matches!(mapping.kind, MappingKind::File { .. });
            if let Some(known) = process.known.get(&Known::of(mapping)) {
                entry = *known;
                // It may have moved: anonymous memory grows, files are unmapped in part.
                entry.end = mapping.end.0;
            } else if entry.kind == mapping_kind::PENDING || is_file {
                pending.push((process.entries.len(), mapping));
            }
            process.entries.push(entry);
        }
        self.publish(pid, &process.entries);
        let mut published = Instant::now();
        for (index, mapping) in &pending {
            let entry = self.entry_of(pid, mapping);
            process.known.insert(Known::of(mapping), entry);
            process.entries[*index] = entry;
            if published.elapsed() >= PUBLISH_EVERY {
                self.publish(pid, &process.entries);
                published = Instant::now();
            }
        }
        if !pending.is_empty() {
            self.publish(pid, &process.entries);
        }
        self.processes.insert(pid, process);
    }

    fn publish(&mut self, pid: Pid, entries: &[MappingEntry]) {
        match self.tables.publish(pid, entries) {
            Ok(refused) => self.stats.mappings_refused += refused as u64,
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
                    self.make_rows(&opened.file, &opened.display_path.display().to_string())
                }
                None => vdso_file()
                    .ok()
                    .and_then(|vdso| self.make_rows(&vdso.file, "[vdso]")),
            };
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

    fn make_rows(&mut self, file: &File, name: &str) -> FileRows {
        let began = Instant::now();
        let compiled = compile_file(file)
            .inspect_err(|error| tracing::debug!("no rows for {name}: {error}"))
            .ok()?;
        let loaded = match self.tables.load(&compiled.table) {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::warn!("no room for the unwind rows of {name}: {error}");
                self.stats.mappings_refused += 1;
                return None;
            }
        };
        let dropped = compiled.table.stats.dropped_rows + compiled.table.stats.dropped_rules;
        if dropped > 0 {
            tracing::warn!("{name}: {dropped} unwind rows are past the limits and were left out");
            self.stats.mappings_refused += 1;
        }
        self.stats.files += 1;
        self.stats.build_time += began.elapsed();
        let code = compiled
            .segments
            .iter()
            .filter(|segment| segment.executable);
        self.stats.text_bytes += code.map(|segment| segment.file_bytes).sum::<u64>();
        tracing::debug!(
            "{name}: {} rows in {:?}",
            compiled.table.rows.len(),
            began.elapsed()
        );
        Some((loaded, compiled.segments))
    }

    /// Goes on where the kernel side stopped.
    fn finish(&mut self, walk: UnfinishedWalk) -> UnwoundStack {
        let UnfinishedWalk {
            mut stack,
            ip,
            sp,
            bp,
            saved,
            is_leaf,
            begin,
            bytes,
        } = walk;
        let Some(process) = self.processes.get_mut(&stack.pid) else {
            return stack;
        };
        if process.memory.is_none() {
            process.memory = File::open(format!("/proc/{}/mem", stack.pid)).ok();
        }
        let (entries, memory, tables) = (&process.entries, &process.memory, &self.tables);
        let copy = StackCopy {
            ip,
            sp,
            bp,
            saved,
            is_leaf,
            begin,
            stack: &bytes,
        };
        let look_up = |address: CodeAddress| look_up(entries, memory.as_ref(), tables, address);
        stack.end = finish(&copy, &mut stack.user, look_up, trampoline_rule);
        stack
    }
}

impl Known {
    fn of(mapping: &Mapping) -> Self {
        Self {
            begin: mapping.begin,
            offset: mapping.file_offset.0,
            device: mapping.device,
            inode: mapping.inode,
        }
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
        // The part before may lie in front of the mapping.
        let (before, after) = bytes.split_at_mut(CODE_BEFORE);
        let _ = memory.read_exact_at(before, ip.0.wrapping_sub(CODE_BEFORE as u64));
        let _ = memory.read_exact_at(after, ip.0);
    }
    bytes
}
