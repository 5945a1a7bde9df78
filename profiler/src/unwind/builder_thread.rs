//! What the thread of [`TableBuilder`](super::TableBuilder) does: opens files, has their rows made, goes on with walks.
//!
//! It never compiles a file itself, and works in short pieces, so that what is said of one process is published at once
//! whatever the files of others are like.

mod walks;

use std::{
    collections::VecDeque,
    fs::File,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Sender, SyncSender},
    },
    time::{Duration, Instant},
};

use profiler_common::unwind_row::MappingEntry;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    CompiledElf, FullTable, UnwindError, UnwindTables,
    builder::{BuilderStats, Command, Shared},
    builder_process::{FileRows, Process, entry_with, plain_entry},
    makers::{FileKey, Made, Makers, Task},
    parked::Parked,
    queue::{Next, Queue},
    schedule::{Job, Schedule},
    table::most_useful,
};
use crate::{
    model::{ImageId, Pid, UnwoundStack},
    process::{Mapping, MappingKind, OpenMappedError, open_mapped, vdso_file},
};

/// Files remembered, most of which have no rows then: those with rows fill the BPF maps long before.
const FILES_MAX: usize = 65_536;
/// While several files are being compiled, what is ready is published this often.
const PUBLISH_EVERY: Duration = Duration::from_millis(10);
/// Walks that wait are tried again this often while more files become ready.
const TRY_EVERY: Duration = Duration::from_millis(100);
/// Processes that get slots before they have samples, so that the first samples of the usual few are whole.
const EARLY_SLOTS: usize = 64;
/// Commands are looked for after so much other work.
const PIECE: Duration = Duration::from_millis(2);
/// The same while there is nothing to do but for what becomes due.
const IDLE: Duration = Duration::from_millis(20);
const IDLE_LONG: Duration = Duration::from_secs(1);
/// A process without a slot is tried again after this, if none is about to be free.
const RETRY: Duration = Duration::from_secs(1);
/// Files that are kept open while they wait; others are opened anew.
const KEPT_OPEN_MAX: usize = 64;
/// Processes whose memory is kept open.
const MEMORY_MAX: usize = 256;

/// What is remembered of a file that waits to be compiled.
struct WaitingFile {
    key: FileKey,
    mapping: Mapping,
    image: ImageId,
    file: Option<File>,
    /// For the log, and harmless.
    name: String,
}

/// The thread's own things.
pub(super) struct Builder {
    tables: UnwindTables,
    files: FxHashMap<FileKey, FileRows>,
    processes: FxHashMap<ImageId, Process>,
    /// Programs that have files to be looked at.
    opening: VecDeque<ImageId>,
    /// Who waits for files that are being compiled or will be.
    making: FxHashMap<FileKey, Vec<(ImageId, Mapping)>>,
    schedule: Schedule<WaitingFile>,
    makers: Makers,
    /// Files that wait and are open.
    kept_open: usize,
    /// Programs of which the kernel side is to know more.
    changed: FxHashSet<ImageId>,
    /// Programs for which there was no slot.
    without_slot: FxHashSet<ImageId>,
    parked: Parked,
    memory_open: usize,
    settling: Vec<SyncSender<()>>,
    results: Sender<UnwoundStack>,
    shared: Arc<Shared>,
    began: Instant,
    is_full: bool,
    refused: Refused,
    stats: BuilderStats,
}

/// Processes for which a table had no place.
#[derive(Default)]
struct Refused {
    processes: FxHashSet<Pid>,
    slots: FxHashSet<Pid>,
    layouts: FxHashSet<Pid>,
}

impl Builder {
    pub(super) fn new(
        tables: UnwindTables,
        makers: Makers,
        results: Sender<UnwoundStack>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            tables,
            files: FxHashMap::default(),
            processes: FxHashMap::default(),
            opening: VecDeque::new(),
            making: FxHashMap::default(),
            schedule: Schedule::default(),
            makers,
            kept_open: 0,
            changed: FxHashSet::default(),
            without_slot: FxHashSet::default(),
            parked: Parked::default(),
            memory_open: 0,
            settling: Vec::new(),
            results,
            shared,
            began: Instant::now(),
            is_full: false,
            refused: Refused::default(),
            stats: BuilderStats::default(),
        }
    }

    /// Works until nobody can send commands any more.
    pub(super) fn run(mut self, queue: &Queue<Command>) -> BuilderStats {
        let mut worked = Instant::now();
        loop {
            match queue.next(self.idle_for(), Command::is_walk) {
                Next::Command(command) => {
                    self.execute(command);
                    if worked.elapsed() < PIECE {
                        continue;
                    }
                }
                Next::Nothing => {}
                Next::Closed => break,
            }
            self.work();
            self.shared.set_stats(self.stats());
            worked = Instant::now();
        }
        for image in self.parked.images() {
            self.give_up_walks(image);
        }
        self.stats()
    }

    fn stats(&self) -> BuilderStats {
        BuilderStats {
            rows: self.tables.row_count() as u64,
            processes_refused: self.refused.processes.len() as u64,
            slots_refused: self.refused.slots.len() as u64,
            layouts_refused: self.refused.layouts.len() as u64,
            ..self.stats
        }
    }

    /// How long to wait for a command.
    fn idle_for(&self) -> Duration {
        if !self.opening.is_empty() {
            Duration::ZERO
        } else if self.changed.is_empty()
            && self.without_slot.is_empty()
            && self.parked.is_empty()
            && self.schedule.is_empty()
            && self.settling.is_empty()
        {
            IDLE_LONG
        } else {
            IDLE
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Admit(pid, image) => self.admit(pid, image),
            Command::Mappings(pid, image) => {
                if let Some(mappings) = self.shared.take(image) {
                    self.update(pid, image, &mappings);
                }
            }
            Command::Fork { from, pid, to } => {
                if let Some(parent) = self.processes.get(&from) {
                    let child = parent.fork(pid);
                    self.processes.insert(to, child);
                }
            }
            Command::Interpreter(pid, image) => self.read_frames(pid, image),
            Command::ForgetThreads => self.tables.forget_threads(),
            Command::Forget(image) => self.forget(image),
            Command::Expel(pid) => self.tables.remove(pid),
            Command::Made(made) => self.made(made),
            Command::Finish(walk) => self.finish_or_park(walk),
            Command::Taken(done) => _ = done.try_send(()),
            Command::Settled(done) => self.settling.push(done),
        }
    }

    /// What else there is to do, for a short while.
    fn work(&mut self) {
        let began = Instant::now();
        while began.elapsed() < PIECE
            && let Some(image) = self.opening.pop_front()
        {
            self.open_next(image);
        }
        self.begin_files();
        self.publish_changes();
        self.retry_without_slot();
        self.retry_walks();
        let is_settled = self.opening.is_empty()
            && self.changed.is_empty()
            && !self.schedule.is_busy(self.began.elapsed());
        if is_settled {
            for done in self.settling.drain(..) {
                // Nobody may wait any more.
                let _ = done.try_send(());
            }
        }
    }

    fn admit(&mut self, pid: Pid, image: ImageId) {
        if !self.shared.is_current(pid, image) {
            return;
        }
        if let Err(error) = self.tables.admit(pid)
            && self.refused.processes.insert(pid)
        {
            tracing::debug!("pid {pid} is no target: {error}");
        }
    }

    fn process(&mut self, pid: Pid, image: ImageId) -> &mut Process {
        self.processes
            .entry(image)
            .or_insert_with(|| Process::new(pid))
    }

    /// Has the kernel side read a program's interpreter frames from now on.
    fn read_frames(&mut self, pid: Pid, image: ImageId) {
        // It may have been published with mappings.
        if self.shared.has_interpreter(image) {
            self.process(pid, image);
            self.publish(image);
        }
    }

    /// Publishes what is known at once; what is missing is looked at later.
    fn update(&mut self, pid: Pid, image: ImageId, mappings: &[Mapping]) {
        let has_room = self.tables.has_fewer_slots_than(EARLY_SLOTS);
        let process = self.process(pid, image);
        process.update(mappings);
        process.is_wanted |= has_room;
        if process.is_wanted {
            let is_to_open = process.has_to_open();
            self.publish(image);
            if is_to_open {
                self.opening.push_back(image);
            }
        }
    }

    /// A program has its first sample: it gets a slot, and rows.
    fn want(&mut self, image: ImageId) {
        let Some(process) = self.processes.get_mut(&image) else {
            return;
        };
        if !std::mem::replace(&mut process.is_wanted, true) {
            if process.has_to_open() {
                self.opening.push_back(image);
            }
            self.publish(image);
        }
    }

    /// Looks at the file of one mapping. The program has its turn again when all others have had theirs.
    fn open_next(&mut self, image: ImageId) {
        let Some(process) = self.processes.get_mut(&image) else {
            return;
        };
        let Some(mapping) = process.next_to_open() else {
            return;
        };
        let pid = process.pid;
        if process.has_to_open() {
            self.opening.push_back(image);
        }
        let (key, file, bytes, name) = if mapping.kind == MappingKind::Vdso {
            (FileKey::Vdso, None, 0, "[vdso]".to_owned())
        } else if mapping.is_changed_code() {
            // The file's rows do not describe it.
            return self.know(image, &mapping, plain_entry(&mapping));
        } else {
            match open_mapped(pid, &mapping) {
                Ok(opened) if mapping.may_hold_jit_code() && !opened.is_elf() => {
                    return self.know(image, &mapping, plain_entry(&mapping));
                }
                Ok(opened) => {
                    let path = opened.display_path.to_string_lossy();
                    let name = path.escape_debug().to_string();
                    let key = FileKey::File(opened.identity);
                    (key, Some(opened.file), opened.identity.size, name)
                }
                // It stays pending, and is looked at again with the next update.
                Err(OpenMappedError::NotYet { .. }) => return,
                Err(error) => {
                    tracing::debug!("no rows for a mapping of pid {pid}: {error}");
                    return self.know(image, &mapping, entry_with(&mapping, &None));
                }
            }
        };
        if let Some(rows) = self.files.get(&key) {
            let entry = entry_with(&mapping, rows);
            return self.know(image, &mapping, entry);
        }
        if let Some(process) = self.processes.get_mut(&image) {
            process.wait_for(&mapping);
        }
        let waiting = self.making.entry(key).or_default();
        waiting.push((image, mapping.clone()));
        if waiting.len() > 1 {
            return;
        }
        let file = file.filter(|_| self.kept_open < KEPT_OPEN_MAX);
        self.kept_open += usize::from(file.is_some());
        let what = WaitingFile {
            key,
            mapping,
            image,
            file,
            name,
        };
        self.schedule.add(Job { pid, bytes, what });
        self.begin_files();
    }

    fn know(&mut self, image: ImageId, mapping: &Mapping, entry: MappingEntry) {
        if let Some(process) = self.processes.get_mut(&image)
            && process.know(mapping, entry)
        {
            self.changed.insert(image);
        }
    }

    /// Has files compiled, as many as there are threads.
    fn begin_files(&mut self) {
        while !self.is_ending()
            && let Some((job, limit)) = self.schedule.next(self.began.elapsed())
        {
            let Job {
                pid,
                bytes,
                mut what,
            } = job;
            self.kept_open -= usize::from(what.file.is_some());
            let task = self.open_file(&mut what).map(|file| Task {
                key: what.key,
                pid,
                file,
                bytes,
                name: what.name,
                limit,
            });
            let is_begun = task.is_some_and(|task| self.makers.begin(task).is_ok());
            if !is_begun {
                self.schedule.done(pid, bytes, Duration::ZERO);
                self.pass_on(what.key, Some(what.image));
            }
        }
    }

    /// Opens a file that waits. `None`: nobody needs it any more, or it is out of reach.
    fn open_file(&self, what: &mut WaitingFile) -> Option<File> {
        let waiting = self.making.get(&what.key)?;
        let is_needed = waiting.iter().any(|(image, mapping)| {
            let process = self.processes.get(image);
            process.is_some_and(|process| process.waits_for(mapping))
        });
        if !is_needed {
            return None;
        }
        if let Some(file) = what.file.take() {
            return Some(file);
        }
        if what.key == FileKey::Vdso {
            return vdso_file().ok().map(|vdso| vdso.file);
        }
        let process = self.processes.get(&what.image)?;
        let opened = open_mapped(process.pid, &what.mapping).ok()?;
        (FileKey::File(opened.identity) == what.key).then_some(opened.file)
    }

    /// The rows of a file could not be made for one of those who wait for it: another one's time is used, or its mapping to open
    /// it. Where there is nobody else, it goes without.
    fn pass_on(&mut self, key: FileKey, not_for: Option<ImageId>) {
        let waiting = self.making.remove(&key).unwrap_or_default();
        let (given_up, mut others): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|(image, _)| Some(*image) == not_for);
        for (image, mapping) in given_up {
            self.know(image, &mapping, entry_with(&mapping, &None));
        }
        others.retain(|(image, mapping)| {
            let process = self.processes.get(image);
            process.is_some_and(|process| process.waits_for(mapping))
        });
        let Some((image, mapping)) = others.first().cloned() else {
            return;
        };
        let Some(pid) = self.processes.get(&image).map(|process| process.pid) else {
            return;
        };
        let (bytes, name) = match key {
            FileKey::File(identity) => (identity.size, format!("a file of pid {pid}")),
            FileKey::Vdso => (0, "[vdso]".to_owned()),
        };
        self.making.insert(key, others);
        let what = WaitingFile {
            key,
            mapping,
            image,
            file: None,
            name,
        };
        self.schedule.add(Job { pid, bytes, what });
    }

    /// A file was compiled.
    fn made(&mut self, made: Made) {
        let Made {
            key,
            pid,
            bytes,
            name,
            compiled,
            took,
        } = made;
        self.schedule.done(pid, bytes, took);
        self.stats.build_time += took;
        if matches!(compiled, Err(UnwindError::Interrupted)) {
            if !self.is_ending() {
                tracing::debug!("{name}: no time for all of it ({took:?})");
                self.stats.files_late += 1;
                let waiting = self.making.get(&key).into_iter().flatten();
                let own = waiting
                    .filter(|(image, _)| self.processes.get(image).is_some_and(|it| it.pid == pid))
                    .map(|(image, _)| *image)
                    .next();
                self.pass_on(key, own);
            }
            return;
        }
        let rows = match compiled {
            Ok(compiled) => self.load(*compiled, &name, took),
            Err(error) => {
                tracing::debug!("no rows for {name}: {error}");
                None
            }
        };
        if self.files.len() >= FILES_MAX {
            // Files without any are found to be so once more, should they come again.
            self.files.retain(|_, rows| rows.is_some());
        }
        for (image, mapping) in self.making.remove(&key).unwrap_or_default() {
            let waits = |process: &Process| process.waits_for(&mapping);
            if self.processes.get(&image).is_some_and(waits) {
                self.know(image, &mapping, entry_with(&mapping, &rows));
            }
        }
        self.files.insert(key, rows);
    }

    /// Writes the rows of a file into the maps.
    fn load(&mut self, compiled: CompiledElf, name: &str, took: Duration) -> FileRows {
        let loaded = self.tables.load(&compiled.table);
        if let Err(full) = &loaded {
            match full {
                FullTable::Rows => self.stats.full.rows += 1,
                FullTable::Pages => self.stats.full.pages += 1,
                FullTable::Rules => self.stats.full.rules += 1,
            }
            if !std::mem::replace(&mut self.is_full, true) {
                tracing::warn!("no room for the unwind rows of {name}: {full:?} are full");
            }
        }
        let stats = &compiled.table.stats;
        let dropped = stats.dropped_rows + stats.dropped_rules;
        if dropped > 0 {
            tracing::debug!("{name}: {dropped} rows past the limits are left out");
            self.stats.files_cut += 1;
        }
        let code = compiled.segments.iter().filter(|it| it.executable);
        self.stats.text_bytes += code.map(|it| it.file_bytes).sum::<u64>();
        tracing::debug!("{name}: {} rows in {took:?}", compiled.table.rows.len());
        let loaded = loaded.ok()?;
        self.stats.files += 1;
        Some((loaded, compiled.segments))
    }

    /// Tells the kernel side what has become known of programs: when that is all, or not too often.
    fn publish_changes(&mut self) {
        let changed: Vec<ImageId> = self.changed.iter().copied().collect();
        for image in changed {
            let is_due = self.processes.get(&image).is_none_or(|process| {
                let is_complete = !process.has_to_open() && !process.is_waiting();
                let is_recent = |at: Instant| at.elapsed() < PUBLISH_EVERY;
                is_complete || !process.published.is_some_and(is_recent)
            });
            if is_due {
                self.changed.remove(&image);
                self.publish(image);
            }
        }
    }

    /// Not for a program that has been replaced: its mappings would be taken for those of the new one.
    fn publish(&mut self, image: ImageId) {
        let Some(process) = self.processes.get_mut(&image) else {
            return;
        };
        let pid = process.pid;
        if !self.shared.is_current(pid, image) {
            return;
        }
        if let Some(interpreter) = self.shared.take_interpreter(image) {
            self.tables.remember_threads(pid, &interpreter.threads);
            process.python = interpreter.layout;
        }
        process.published = Some(Instant::now());
        let kept = if process.is_wanted {
            most_useful(&process.entries)
        } else {
            (&[][..]).into()
        };
        let published = match self.tables.publish(pid, &kept, &process.python) {
            Ok(published) => published,
            Err(error) => {
                tracing::warn!("pid {pid}: {error}");
                return;
            }
        };
        if !published.is_target {
            return;
        }
        let left_out = process.entries.len().saturating_sub(kept.len()) + published.left_out;
        if process.is_wanted {
            self.stats.mappings_refused = self.stats.mappings_refused.max(left_out as u64);
        }
        if published.has_slot {
            process.retry_at = None;
            self.without_slot.remove(&image);
        } else {
            let free_in = self.tables.next_free_slot_in();
            if process.retry_at.is_some() || free_in.is_none() {
                self.refused.slots.insert(pid);
            }
            process.retry_at = Some(Instant::now() + free_in.map_or(RETRY, |it| it + PIECE));
            self.without_slot.insert(image);
        }
        if !published.has_layout {
            self.refused.layouts.insert(pid);
        }
    }

    /// Tries again to find slots for those that have none.
    fn retry_without_slot(&mut self) {
        let now = Instant::now();
        let due: Vec<ImageId> = self
            .without_slot
            .iter()
            .copied()
            .filter(|image| {
                let process = self.processes.get(image);
                process.is_none_or(|it| it.retry_at.is_none_or(|at| now >= at))
            })
            .collect();
        for image in due {
            self.without_slot.remove(&image);
            self.publish(image);
        }
    }

    fn send(&self, stack: UnwoundStack) {
        // Nobody listens any more: the recording is over.
        let _ = self.results.send(stack);
    }

    fn is_ending(&self) -> bool {
        self.shared.is_ending.load(Ordering::Relaxed)
    }
}
