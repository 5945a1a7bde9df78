//! Names of compiled code, found on a thread of their own.
//!
//! The symbolizer of [`super::native`] cannot move between threads: here it is born, used and emptied on one thread that
//! is spoken to through two bounded channels.
//!
//! # What it costs
//!
//! Naming 300 addresses of CPython 3.12's libpython (30 MB, of which 25 MB are debug information), release build:
//!
//! | | time | resident memory |
//! |---|---|---|
//! | symbol tables | 2 to 14 ms | + 1.6 MB |
//! | and debug information: inlined calls, files, lines | 55 ms | + 35 MB |
//!
//! So debug information is read only within a budget for all modules together ([`NativeOptions::debug_bytes_max`]):
//! extension modules get inlined calls and lines, the interpreter gets names.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use crate::model::{FileOffset, Location, LocationId};

use super::{Module, native::Worker};

/// The thread's name, at most 15 bytes. It catches its own panics.
pub(crate) const THREAD_NAME: &str = "symbols";

/// Batches of requests that wait at most.
const REQUEST_BATCHES: usize = 64;

/// Batches of answers that wait at most; the thread then waits for [`NativeSymbolizer::try_answers`].
const ANSWER_BATCHES: usize = 64;

/// Requests in a batch. An answer to one is some 200 bytes.
const BATCH_LEN: usize = 256;

/// The library's parsers and demanglers recurse, if boundedly.
const STACK_BYTES: usize = 8 << 20;

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

/// What was not named before time ran out.
#[derive(Debug, Default)]
pub struct Finished {
    /// The answers that had not been taken yet.
    pub answers: Vec<(LocationId, Location)>,
    /// Requests without an answer.
    pub unanswered: usize,
}

/// Names addresses on its own thread. Every request gets one answer, in no particular order.
#[derive(Debug)]
pub struct NativeSymbolizer {
    requests: SyncSender<Vec<Request>>,
    answers: Receiver<Vec<(LocationId, Location)>>,
    pending: Arc<AtomicUsize>,
}

impl NativeSymbolizer {
    /// Starts the thread, and opens the kernel's symbols with the privileges of this moment. Fails if there can be no
    /// more threads.
    pub fn start(options: NativeOptions) -> io::Result<Self> {
        let (requests, incoming) = sync_channel::<Vec<Request>>(REQUEST_BATCHES);
        let (outgoing, answers) = sync_channel(ANSWER_BATCHES);
        let pending = Arc::new(AtomicUsize::new(0));
        let kallsyms = File::open("/proc/kallsyms").ok();
        let thread = thread::Builder::new()
            .name(THREAD_NAME.to_owned())
            .stack_size(STACK_BYTES);
        thread.spawn(move || {
            let mut worker = Worker::new(options, kallsyms);
            for batch in incoming {
                if outgoing.send(worker.answer(batch)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            requests,
            answers,
            pending,
        })
    }

    /// Hands places over, never waiting. Gives back what there was no room for: ask again later.
    pub fn request(&self, batch: Vec<Request>) -> Vec<Request> {
        let mut rest = VecDeque::from(batch);
        while !rest.is_empty() {
            let piece: Vec<_> = rest.drain(..rest.len().min(BATCH_LEN)).collect();
            let length = piece.len();
            self.pending.fetch_add(length, Ordering::Relaxed);
            if let Err(refused) = self.requests.try_send(piece) {
                self.pending.fetch_sub(length, Ordering::Relaxed);
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
        self.answers.try_iter().flat_map(|batch| {
            self.pending.fetch_sub(batch.len(), Ordering::Relaxed);
            batch
        })
    }

    /// Requests that were taken and whose answers were not fetched yet.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Waits for the remaining answers, but not longer than `patience`; the thread then ends by itself.
    pub fn finish(self, patience: Duration) -> Finished {
        let Self {
            requests,
            answers,
            pending,
        } = self;
        drop(requests);
        let until = Instant::now() + patience;
        let mut finished = Finished::default();
        let left = || until.saturating_duration_since(Instant::now());
        while let Ok(batch) = answers.recv_timeout(left()) {
            finished.answers.extend(batch);
        }
        finished.unanswered = pending
            .load(Ordering::Relaxed)
            .saturating_sub(finished.answers.len());
        finished
    }
}

#[cfg(test)]
#[path = "native_tests.rs"]
mod tests;
