//! Names of compiled code, asked for on a thread of their own.
//!
//! [`super::native`] talks to the symbol process, and waits for it: here it is spoken to through two bounded channels.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    thread,
    time::Instant,
};

use crate::model::{FileOffset, Location, LocationId};

use super::{Module, native::Worker, worker::SymbolProcess};

/// The thread's name, at most 15 bytes.
const THREAD_NAME: &str = "symbols";

/// Batches of requests that wait at most.
const REQUEST_BATCHES: usize = 64;

/// Batches of answers that wait at most; the thread then waits for [`NativeSymbolizer::try_answers`].
const ANSWER_BATCHES: usize = 64;

/// Requests in a batch. An answer to one is some 200 bytes.
const BATCH_LEN: usize = 256;

/// Requests that are looked at together, for the ones that cost least to go first.
const BACKLOG_MAX: usize = 64 * BATCH_LEN;

/// How much to find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeOptions {
    /// Debug information that is read, in bytes of all modules together, the first ones asked for first. Memory grows by
    /// about 1.5 times that. Default 8 MiB; 0: names only.
    pub debug_bytes_max: u64,
}

impl Default for NativeOptions {
    fn default() -> Self {
        Self {
            debug_bytes_max: 8 << 20,
        }
    }
}

/// A place in code, on its way to a name.
#[derive(Clone, Debug)]
pub struct Request {
    /// Comes back with the answer.
    pub id: LocationId,
    /// What to look up.
    pub place: Place,
}

/// Where code lies.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a file. For a caller's frame, inside the call (see [`crate::model::CodeAddress::lookup`]).
    Module(Arc<Module>, FileOffset),
    /// At an address of the kernel.
    Kernel(u64),
}

/// What the two threads share.
#[derive(Debug, Default)]
struct Shared {
    losses: AtomicU64,
    /// Set once the recording has ended: until when answers are waited for.
    until: OnceLock<Instant>,
    /// No more answers will come.
    is_over: AtomicBool,
}

/// Names addresses on its own thread. Every request gets one answer, in no particular order.
#[derive(Debug)]
pub struct NativeSymbolizer {
    requests: SyncSender<Vec<Request>>,
    answers: Receiver<Vec<(LocationId, Location)>>,
    shared: Arc<Shared>,
}

impl NativeSymbolizer {
    /// Starts the thread, and opens the kernel's symbols with the privileges of this moment. Fails if there can be no
    /// more threads.
    pub fn start(options: NativeOptions, process: SymbolProcess) -> io::Result<Self> {
        let (requests, incoming) = sync_channel::<Vec<Request>>(REQUEST_BATCHES);
        let (outgoing, answers) = sync_channel(ANSWER_BATCHES);
        let shared = Arc::new(Shared::default());
        let kallsyms = File::open("/proc/kallsyms").ok();
        let thread = thread::Builder::new().name(THREAD_NAME.to_owned());
        let theirs = Arc::clone(&shared);
        thread.spawn(move || {
            let worker = Worker::new(options, kallsyms, process);
            work(worker, &incoming, &outgoing, &theirs);
            theirs.is_over.store(true, Ordering::Release);
        })?;
        Ok(Self {
            requests,
            answers,
            shared,
        })
    }

    /// The recording has ended: answers are waited for until then at most, and what costs much is left out.
    pub fn hurry(&self, until: Instant) {
        self.shared.until.get_or_init(|| until);
    }

    /// No more answers will come, whatever is asked.
    pub fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Acquire)
    }

    /// Hands places over, never waiting. Gives back what there was no room for: ask again later.
    pub fn request(&self, batch: Vec<Request>) -> Vec<Request> {
        let mut rest = VecDeque::from(batch);
        while !rest.is_empty() {
            let piece: Vec<_> = rest.drain(..rest.len().min(BATCH_LEN)).collect();
            if let Err(refused) = self.requests.try_send(piece) {
                let (TrySendError::Full(piece) | TrySendError::Disconnected(piece)) = refused;
                for request in piece.into_iter().rev() {
                    rest.push_front(request);
                }
                break;
            }
        }
        rest.into()
    }

    /// The answers that are ready, never waiting.
    pub fn try_answers(&self) -> impl Iterator<Item = (LocationId, Location)> + '_ {
        self.answers.try_iter().flatten()
    }

    /// Symbol processes that were lost so far: they crashed, or took more than they may and were ended.
    pub fn losses(&self) -> u64 {
        self.shared.losses.load(Ordering::Relaxed)
    }
}

/// Takes what is asked, asks the symbol process, gives answers, until nobody asks any more or time is up.
fn work(
    mut worker: Worker,
    incoming: &Receiver<Vec<Request>>,
    outgoing: &SyncSender<Vec<(LocationId, Location)>>,
    shared: &Shared,
) {
    let mut has_ended = false;
    loop {
        if worker.waiting() == 0 {
            let Ok(batch) = incoming.recv() else { return };
            if !give(outgoing, worker.take(batch)) {
                return;
            }
        }
        while !has_ended && worker.waiting() < BACKLOG_MAX {
            match incoming.try_recv() {
                Ok(batch) => {
                    if !give(outgoing, worker.take(batch)) {
                        return;
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => has_ended = true,
            }
        }
        if let Some(&until) = shared.until.get() {
            worker.hurry(until);
        }
        if worker.is_over() {
            for batch in incoming.try_iter() {
                if !give(outgoing, worker.take(batch)) {
                    return;
                }
            }
            give(outgoing, worker.give_up());
            return;
        }
        let answers = worker.step();
        shared.losses.store(worker.losses(), Ordering::Relaxed);
        if !give(outgoing, answers) {
            return;
        }
    }
}

/// Hands answers over. False: nobody wants them any more.
fn give(
    outgoing: &SyncSender<Vec<(LocationId, Location)>>,
    answers: Vec<(LocationId, Location)>,
) -> bool {
    answers.is_empty() || outgoing.send(answers).is_ok()
}

#[cfg(test)]
#[path = "native_tests.rs"]
mod tests;
