//! The thread that makes tables: mappings of targets become rows in BPF maps, and walks that met code without rows are
//! finished as soon as it has some.
//!
//! Short commands pass walks, so a walk finds the mappings that were sent before it; if their rows are not made yet, it waits
//! for them, and others go on. Files are compiled by threads of their own ([`makers`](super::makers)), in the order of
//! [`schedule`](super::schedule). Draining samples never waits for any of these threads: what finds no room is counted by the
//! sender.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use profiler_common::python::PythonLayout;
use rustc_hash::FxHashMap;

use super::{
    UnwindTables,
    builder_thread::Builder,
    makers::{Made, Makers},
    merge::{PythonPart, describe, merge_user, python_frames},
    queue::Queue,
};
use crate::{
    model::{ImageId, Pid, PythonEnd, PythonFrame, RawSample, StackCopy, UnwoundStack},
    process::{Mapping, ProgramChange, ProgramEvent},
};

/// The thread's name, at most 15 bytes. It catches its own panics.
pub(crate) const THREAD_NAME: &str = "unwind-tables";
/// Time for rows that walks wait for at the end, and for what is still in the queue then.
const END_SETTLING: Duration = Duration::from_millis(500);
const END_PATIENCE: Duration = Duration::from_secs(1);
/// When no walk was finished for so long, the thread waits for a file system.
const END_STALL: Duration = Duration::from_millis(700);
/// Interval at which a caller that waits for the thread checks whether to go on.
const SETTLE_STEP: Duration = Duration::from_millis(20);

/// A walk that the kernel side could not finish, owned.
#[derive(Debug)]
pub struct UnfinishedWalk {
    /// What is known of the stack so far.
    pub stack: UnwoundStack,
    /// Its native frames so far, and those of the interpreter: they are merged when the walk is finished.
    pub(super) native: Vec<u64>,
    pub(super) python: Box<[u64]>,
    pub(super) python_end: PythonEnd,
    pub(super) python_is_counted: bool,
    pub(super) has_greenlets: bool,
    pub(super) copy: StackCopy<Box<[u8]>>,
}

impl UnfinishedWalk {
    /// Takes over a sample whose `unfinished` is set; `None` for any other.
    pub fn of(sample: &RawSample<'_>, image: ImageId, has_greenlets: bool) -> Option<Self> {
        let copy = sample.unfinished?.map_stack(Box::from);
        let mut stack = UnwoundStack::empty();
        describe(sample, image, &mut stack);
        let python = PythonPart::of(sample, has_greenlets);
        Some(Self {
            stack,
            native: sample.native.to_vec(),
            python: python.words.into(),
            python_end: python.end,
            python_is_counted: python.is_counted,
            has_greenlets,
            copy,
        })
    }

    /// One of a program, without frames.
    #[cfg(test)]
    pub(super) fn for_tests(image: ImageId) -> Box<Self> {
        let mut stack = UnwoundStack::empty();
        stack.image = image;
        Box::new(Self {
            stack,
            native: Vec::new(),
            python: Box::default(),
            python_end: PythonEnd::NotRead,
            python_is_counted: false,
            has_greenlets: false,
            copy: StackCopy {
                ip: crate::model::Avma(0),
                sp: 0,
                bp: 0,
                saved: [crate::model::SavedRegister::Value(0); 5],
                is_leaf: true,
                begin: 0,
                stack: Box::default(),
            },
        })
    }

    /// The frames of the interpreter, innermost first.
    pub fn python_frames(&self) -> impl Iterator<Item = PythonFrame> + '_ {
        python_frames(&self.python)
    }

    /// The stack as far as it is known.
    pub fn into_stack(mut self) -> UnwoundStack {
        let python = PythonPart {
            end: self.python_end,
            is_counted: self.python_is_counted,
            has_greenlets: self.has_greenlets,
            words: &self.python,
        };
        merge_user(&self.native, &python, &mut self.stack);
        self.stack
    }
}

/// Where a program's interpreter keeps its frames, and the states of the threads that it had a moment ago.
#[derive(Clone, Debug)]
pub(super) struct KnownInterpreter {
    pub(super) layout: PythonLayout,
    /// Thread pointers and addresses of thread states.
    pub(super) threads: Vec<(u64, u64)>,
}

/// What the thread is to do.
#[derive(Debug)]
pub(super) enum Command {
    /// A process is a target, and runs this program.
    Admit(Pid, ImageId),
    /// A program's mappings are waiting in [`Shared::mappings`].
    Mappings(Pid, ImageId),
    /// A program begins with another one's mappings: it was forked from it.
    Fork {
        /// Whose they are.
        from: ImageId,
        /// The child.
        pid: Pid,
        /// Its program.
        to: ImageId,
    },
    /// A program's interpreter is waiting in [`Shared::interpreters`].
    Interpreter(Pid, ImageId),
    /// Threads are to be found anew.
    ForgetThreads,
    /// A program has ended. Comes after its walks.
    Forget(ImageId),
    /// A process is no target any more.
    Expel(Pid),
    /// The rows of a file are made.
    Made(Made),
    /// Go on with a walk.
    Finish(Box<UnfinishedWalk>),
    /// Say when all short commands sent before are done.
    Taken(SyncSender<()>),
    /// Say when the rows of all files known by then are made.
    Settled(SyncSender<()>),
}

impl Command {
    /// Is one of those whose number is bounded.
    pub(super) const fn is_walk(&self) -> bool {
        matches!(self, Self::Finish(_))
    }
}

/// What the thread did, for the report and for logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuilderStats {
    /// Files compiled.
    pub files: u64,
    /// Bytes of their executable segments.
    pub text_bytes: u64,
    /// Time spent compiling and loading.
    pub build_time: Duration,
    /// Rows in the kernel.
    pub rows: u64,
    /// Files without rows because a table is full.
    pub full: FullTables,
    /// Files whose rows are incomplete: they have more than is kept of one file.
    pub files_cut: u64,
    /// Files without rows because there was no time left to make them.
    pub files_late: u64,
    /// Mappings past those of one process that the kernel side can search, of the process that has most.
    pub mappings_refused: u64,
    /// Processes that could not become targets, because there are too many.
    pub processes_refused: u64,
    /// Processes for which there was no slot.
    pub slots_refused: u64,
    /// Processes for whose layout there was no place.
    pub layouts_refused: u64,
    /// Walks that were still waiting for their tables when there was no more time.
    pub walks_abandoned: u64,
}

impl BuilderStats {
    /// What was done since an earlier moment. `rows` and `mappings_refused` are as they are now.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let difference = u64::saturating_sub;
        Self {
            files: difference(self.files, before.files),
            text_bytes: difference(self.text_bytes, before.text_bytes),
            build_time: self.build_time.saturating_sub(before.build_time),
            rows: self.rows,
            full: FullTables {
                rows: difference(self.full.rows, before.full.rows),
                pages: difference(self.full.pages, before.full.pages),
                rules: difference(self.full.rules, before.full.rules),
            },
            files_cut: difference(self.files_cut, before.files_cut),
            files_late: difference(self.files_late, before.files_late),
            mappings_refused: self.mappings_refused,
            processes_refused: difference(self.processes_refused, before.processes_refused),
            slots_refused: difference(self.slots_refused, before.slots_refused),
            layouts_refused: difference(self.layouts_refused, before.layouts_refused),
            walks_abandoned: difference(self.walks_abandoned, before.walks_abandoned),
        }
    }
}

/// Files that found no room in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FullTables {
    /// In `ROWS`.
    pub rows: u64,
    /// In `PAGES`.
    pub pages: u64,
    /// In `RULES`.
    pub rules: u64,
}

/// What both sides of the queue see.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The newest mappings of processes whose turn has not come: one list for each, however often they change.
    mappings: Mutex<FxHashMap<ImageId, Vec<Mapping>>>,
    /// Interpreters that the kernel side does not know yet: they need not wait until all rows are made.
    interpreters: Mutex<FxHashMap<ImageId, KnownInterpreter>>,
    /// The program that each target runs. What belongs to an older one is not published any more.
    current: Mutex<FxHashMap<Pid, ImageId>>,
    /// What the thread has done so far.
    stats: Mutex<BuilderStats>,
    /// No new rows are wanted.
    pub(super) is_ending: Arc<AtomicBool>,
}

/// Handle of the thread.
#[derive(Debug)]
pub struct TableBuilder {
    shared: Arc<Shared>,
    queue: Arc<Queue<Command>>,
    finished: Receiver<UnwoundStack>,
    thread: Option<JoinHandle<BuilderStats>>,
    /// Walks sent and not yet fetched.
    outstanding: AtomicU64,
}

impl TableBuilder {
    /// Starts the thread, and those that compile files for it.
    pub fn start(tables: UnwindTables) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let (results, finished) = channel();
        let shared = Arc::new(Shared::default());
        let made = Arc::clone(&queue);
        let makers = Makers::start(&shared.is_ending, move |file| {
            made.send(Command::Made(file));
        })?;
        let builder = Builder::new(tables, makers, results, Arc::clone(&shared));
        let commands = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name(THREAD_NAME.into())
            .spawn(move || builder.run(&commands))?;
        Ok(Self {
            shared,
            queue,
            finished,
            thread: Some(thread),
            outstanding: AtomicU64::new(0),
        })
    }

    /// Takes in what has happened to a program.
    pub fn apply(&self, event: &ProgramEvent<'_>) {
        let ProgramEvent { pid, image, change } = *event;
        match change {
            ProgramChange::Started { is_sampled, .. } => {
                self.shared.set_current(pid, image);
                if !is_sampled {
                    self.queue.send(Command::Admit(pid, image));
                }
            }
            ProgramChange::Forked { from, .. } => {
                let to = image;
                self.queue.send(Command::Fork { from, pid, to });
                self.shared.set_current(pid, image);
            }
            ProgramChange::Replaced { .. } => self.shared.set_current(pid, image),
            ProgramChange::Described { .. } => {}
            ProgramChange::Mapped { mappings, .. } => {
                let is_waiting = self.shared.put(image, mappings.to_vec());
                if !is_waiting {
                    self.queue.send(Command::Mappings(pid, image));
                }
            }
            ProgramChange::InterpreterFound {
                interpreter,
                threads,
            } => {
                let known = KnownInterpreter {
                    layout: interpreter.frames,
                    threads: threads.to_vec(),
                };
                lock(&self.shared.interpreters).insert(image, known);
                self.queue.send(Command::Interpreter(pid, image));
            }
            ProgramChange::Exited => self.shared.unset_current(pid, image),
            ProgramChange::Retired => {
                self.shared.unset_current(pid, image);
                self.shared.take(image);
                self.shared.take_interpreter(image);
                self.queue.send_after_walks(Command::Forget(image));
            }
            ProgramChange::Expelled => self.queue.send(Command::Expel(pid)),
        }
    }

    /// The kernel side has no room to remember more threads: most of them have ended, each program that was replaced
    /// leaves one. It finds again those that have not.
    pub fn forget_threads(&self) {
        self.queue.send(Command::ForgetThreads);
    }

    /// Finishes a walk once the rows that it needs are made. Given back when too many walks wait.
    pub fn finish_walk(&self, walk: Box<UnfinishedWalk>) -> Result<(), Box<UnfinishedWalk>> {
        self.queue
            .send_walk(Command::Finish(walk))
            .map(|()| _ = self.outstanding.fetch_add(1, Ordering::Relaxed))
            .map_err(|command| match command {
                Command::Finish(walk) => walk,
                _ => unreachable!("only walks are sent here"),
            })
    }

    /// Waits until all processes and mappings sent before are known to the kernel side, at most `patience`.
    pub fn wait_until_taken(&self, patience: Duration) {
        let (done, taken) = sync_channel(1);
        self.queue.send(Command::Taken(done));
        // Late is no failure: what is known later is sampled from then on.
        let _ = taken.recv_timeout(patience);
    }

    /// Waits until the rows of all files are made that are known now, for `timeout` at most and as long as `may_go_on` says
    /// so.
    pub fn settle(&self, timeout: Duration, may_go_on: impl Fn() -> bool) {
        let (done, settled) = sync_channel(1);
        self.queue.send(Command::Settled(done));
        let until = Instant::now() + timeout;
        // Late is no failure: walks that need a missing table are finished afterwards.
        while may_go_on() {
            let left = until.saturating_duration_since(Instant::now());
            match settled.recv_timeout(left.min(SETTLE_STEP)) {
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                _ => return,
            }
        }
    }

    /// What the thread has done so far; a moment ago, while it is working.
    pub fn stats(&self) -> BuilderStats {
        *lock(&self.shared.stats)
    }

    /// Walks finished since the last call.
    pub fn finished(&self) -> impl Iterator<Item = UnwoundStack> + '_ {
        self.finished
            .try_iter()
            .inspect(|_| _ = self.outstanding.fetch_sub(1, Ordering::Relaxed))
    }

    /// Works off what is queued, makes no more rows, and ends the thread; `each` gets the walks that were still in it.
    /// Takes a second and a half at most: a thread that waits for a file system until then is left to itself.
    pub fn end(&mut self, mut each: impl FnMut(UnwoundStack)) -> BuilderStats {
        if self.outstanding.load(Ordering::Relaxed) > 0 {
            self.settle(END_SETTLING, || true);
        }
        self.shared.is_ending.store(true, Ordering::Relaxed);
        self.queue.close();
        let until = Instant::now() + END_PATIENCE;
        let left = || until.saturating_duration_since(Instant::now());
        loop {
            match self.finished.recv_timeout(left().min(END_STALL)) {
                Ok(stack) => {
                    self.outstanding.fetch_sub(1, Ordering::Relaxed);
                    each(stack);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    tracing::debug!("unwind tables were still being made");
                    return BuilderStats {
                        walks_abandoned: self.outstanding.load(Ordering::Relaxed),
                        ..self.stats()
                    };
                }
            }
        }
        self.thread
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default()
    }
}

impl Shared {
    pub(super) fn set_stats(&self, stats: BuilderStats) {
        *lock(&self.stats) = stats;
    }

    /// Puts a list in the place of an older one; true if that was still waiting.
    fn put(&self, image: ImageId, mappings: Vec<Mapping>) -> bool {
        lock(&self.mappings).insert(image, mappings).is_some()
    }

    /// The list of a program, which then waits no more.
    pub(super) fn take(&self, image: ImageId) -> Option<Vec<Mapping>> {
        lock(&self.mappings).remove(&image)
    }

    /// The interpreter of a program, which then waits no more.
    pub(super) fn take_interpreter(&self, image: ImageId) -> Option<KnownInterpreter> {
        lock(&self.interpreters).remove(&image)
    }

    /// It has one that waits.
    pub(super) fn has_interpreter(&self, image: ImageId) -> bool {
        lock(&self.interpreters).contains_key(&image)
    }

    fn set_current(&self, pid: Pid, image: ImageId) {
        lock(&self.current).insert(pid, image);
    }

    fn unset_current(&self, pid: Pid, image: ImageId) {
        let mut current = lock(&self.current);
        if current.get(&pid) == Some(&image) {
            current.remove(&pid);
        }
    }

    /// The process still runs this program.
    pub(super) fn is_current(&self, pid: Pid, image: ImageId) -> bool {
        lock(&self.current).get(&pid) == Some(&image)
    }
}

/// The values are whole whenever the lock is free, also after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
