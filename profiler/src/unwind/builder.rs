//! The thread that makes tables: mappings of targets become rows in BPF maps, and walks that met code without rows are
//! finished as soon as it has some.
//!
//! Commands are worked off in order, so a walk sent after the mappings that it needs finds them. Draining samples
//! never waits for this thread: the command queue is bounded, and what it refuses is counted by the sender.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use profiler_common::python::PythonLayout;
use rustc_hash::FxHashMap;

use super::{
    UnwindTables,
    builder_thread::Builder,
    merge::{PythonPart, describe, merge_user, python_frames},
};
use crate::{
    model::{ImageId, Pid, PythonEnd, PythonFrame, RawSample, StackCopy, UnwoundStack},
    process::Mapping,
};

/// The thread's name, at most 15 bytes. It catches its own panics.
pub(crate) const THREAD_NAME: &str = "unwind-tables";
/// Commands that may wait; a walk has up to 24 KiB. A burst of imports at the highest rate fills some hundred.
const QUEUE: usize = 1024;
/// Time for what is still in the queue at the end.
const END_PATIENCE: Duration = Duration::from_secs(2);

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
        Some(Self {
            stack,
            native: sample.native.to_vec(),
            python: sample.python.into(),
            python_end: sample.python_end,
            python_is_counted: sample.python_is_counted,
            has_greenlets,
            copy,
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
pub struct KnownInterpreter {
    /// The process.
    pub pid: Pid,
    /// The program.
    pub image: ImageId,
    /// Where its frames are.
    pub layout: PythonLayout,
    /// Thread pointers and addresses of thread states.
    pub threads: Vec<(u64, u64)>,
}

/// What the thread is to do.
pub(super) enum Command {
    /// A process is a target, and runs this program.
    Admit(Pid, ImageId),
    /// A program's mappings are waiting in [`Shared::mappings`].
    Mappings(Pid, ImageId),
    /// A program begins with another one's mappings: it was forked from it.
    Fork {
        /// Whose they are.
        from: ImageId,
        /// The child's.
        to: ImageId,
    },
    /// A program's interpreter is waiting in [`Shared::interpreters`].
    Interpreter(Pid, ImageId),
    /// Threads are to be found anew.
    ForgetThreads,
    /// A program has ended.
    Forget(ImageId),
    /// A process is no target any more.
    Expel(Pid),
    /// Go on with a walk.
    Finish(Box<UnfinishedWalk>),
    /// Say when everything before is done.
    Settled(SyncSender<()>),
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
    /// Lists of mappings for which there was no slot.
    pub slots_refused: u64,
    /// Walks that were still waiting for their tables when there was no more time.
    pub walks_abandoned: u64,
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
    /// No new rows are wanted.
    pub(super) is_ending: AtomicBool,
}

/// Handle of the thread.
#[derive(Debug)]
pub struct TableBuilder {
    shared: Arc<Shared>,
    commands: Option<SyncSender<Command>>,
    finished: Receiver<UnwoundStack>,
    thread: Option<JoinHandle<BuilderStats>>,
    /// Walks sent and not yet fetched.
    outstanding: AtomicU64,
}

impl TableBuilder {
    /// Starts the thread.
    pub fn start(tables: UnwindTables) -> std::io::Result<Self> {
        let (commands, receiver) = sync_channel(QUEUE);
        let (results, finished) = channel();
        let shared = Arc::new(Shared::default());
        let builder = Builder::new(tables, results, Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name(THREAD_NAME.into())
            .spawn(move || builder.run(&receiver))?;
        Ok(Self {
            shared,
            commands: Some(commands),
            finished,
            thread: Some(thread),
            outstanding: AtomicU64::new(0),
        })
    }

    /// A process becomes a target: samples are taken of it from now on. False: the queue is full, or the kernel's table.
    pub fn admit(&self, pid: Pid, image: ImageId) -> bool {
        self.shared.set_current(pid, image);
        self.send(Command::Admit(pid, image)).is_ok()
    }

    /// A target runs another program now, or the kernel side has made a child of one a target.
    pub fn runs(&self, pid: Pid, image: ImageId) {
        self.shared.set_current(pid, image);
    }

    /// A program begins with what is known of the one that it was forked from.
    pub fn fork(&self, from: ImageId, to: ImageId) {
        // Without it, the mappings of the child are read from its files.
        let _ = self.send(Command::Fork { from, to });
    }

    /// These are a program's executable mappings now. False: the queue is full; send them again later.
    pub fn update(&self, pid: Pid, image: ImageId, mappings: Vec<Mapping>) -> bool {
        let is_waiting = self.shared.put(image, mappings);
        let is_sent = is_waiting || self.send(Command::Mappings(pid, image)).is_ok();
        if !is_sent {
            self.shared.take(image);
        }
        is_sent
    }

    /// A program's interpreter keeps its frames there. False: the queue is full; say it again later.
    pub fn interpreter(&self, interpreter: KnownInterpreter) -> bool {
        let KnownInterpreter { pid, image, .. } = interpreter;
        lock(&self.shared.interpreters).insert(image, interpreter);
        let is_sent = self.send(Command::Interpreter(pid, image)).is_ok();
        if !is_sent {
            self.shared.take_interpreter(image);
        }
        is_sent
    }

    /// The kernel side has no room to remember more threads: most of them have ended, each program that was replaced
    /// leaves one. It finds again those that have not.
    pub fn forget_threads(&self) {
        // It is said again as long as it is so.
        let _ = self.send(Command::ForgetThreads);
    }

    /// A target has ended, as the kernel side knows: nothing more is to be published for it.
    pub fn gone(&self, pid: Pid, image: ImageId) {
        self.shared.unset_current(pid, image);
    }

    /// Nothing more will be asked of a program. False: the queue is full; say it again later.
    pub fn forget(&self, pid: Pid, image: ImageId) -> bool {
        self.shared.unset_current(pid, image);
        self.shared.take(image);
        self.shared.take_interpreter(image);
        self.send(Command::Forget(image)).is_ok()
    }

    /// No more samples are to be taken of a process. False: the queue is full; say it again later.
    pub fn expel(&self, pid: Pid) -> bool {
        self.send(Command::Expel(pid)).is_ok()
    }

    /// Finishes a walk after everything sent before. Given back when the queue is full.
    pub fn finish_walk(&self, walk: Box<UnfinishedWalk>) -> Result<(), Box<UnfinishedWalk>> {
        self.send(Command::Finish(walk))
            .map(|()| _ = self.outstanding.fetch_add(1, Ordering::Relaxed))
            .map_err(|command| match command {
                Command::Finish(walk) => walk,
                _ => unreachable!("only walks are sent here"),
            })
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
        self.finished
            .try_iter()
            .inspect(|_| _ = self.outstanding.fetch_sub(1, Ordering::Relaxed))
    }

    /// Works off what is queued, makes no more rows, and ends the thread; `each` gets the walks that were still in it.
    /// Takes two seconds at most: a thread that is busy with a huge file until then is left to itself.
    pub fn end(&mut self, mut each: impl FnMut(UnwoundStack)) -> BuilderStats {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        self.commands = None;
        let until = Instant::now() + END_PATIENCE;
        let left = || until.saturating_duration_since(Instant::now());
        loop {
            match self.finished.recv_timeout(left()) {
                Ok(stack) => {
                    self.outstanding.fetch_sub(1, Ordering::Relaxed);
                    each(stack);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    tracing::debug!("unwind tables were still being made");
                    return BuilderStats {
                        walks_abandoned: self.outstanding.load(Ordering::Relaxed),
                        ..BuilderStats::default()
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
