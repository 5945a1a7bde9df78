//! Tries a layout out on a running process: are there threads, frames and code objects where it says?
//!
//! The process is never stopped. What is read may be half old and half new, or freed: so one thread that fits in all is
//! enough, whatever the others look like, and it is tried a few times before a layout is refused. A wrong layout does not
//! get through by luck: one thread with one frame has some fifteen words that must be right.

use std::{
    hash::{Hash as _, Hasher as _},
    thread,
    time::Duration,
};

use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use super::{
    Interpreter, ReadMemory,
    code_object::{CodeObject, CodeObjects},
    code_type::{CodeType, check_code_type},
    frame::Frame,
    refusal::Misfit,
    threads::{ThreadState, list_threads},
};

/// Tries, with pauses between them: 6 ms in all. A thread that lost its CPU in the middle of a change leaves things as they
/// are for as long.
const ATTEMPTS: u32 = 7;
/// The first pause; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_micros(100);
/// Frames of a thread that are looked at: twice as many as a sample has room for. Those of a deeper recursion are enough.
const FRAMES_MAX: usize = 2048;
/// Frames that are read in one try.
const FRAMES_OF_ALL_MAX: usize = 20_000;
/// Threads with frames that are looked at in one try.
const THREADS_TRIED_MAX: usize = 256;
/// Different code objects on one thread that stand for a root that is known.
const CODES_ENOUGH: usize = 3;

/// What a layout must show before it is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demands {
    /// That of a release, for which it was made: a thread that fits.
    Fits,
    /// One that may have been made for another version: the thread also begins where Python programs begin, or runs
    /// several functions.
    FitsForSure,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It fits.
    Fits,
    /// That cannot be told now.
    NotYet(NotYet),
    /// It does not fit.
    Misfit(Misfit),
}

/// Why it cannot be told yet whether an interpreter is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotYet {
    /// It has not begun, or has ended.
    #[error("its interpreter is not initialised")]
    NotInitialised,
    /// No thread runs Python.
    #[error("none of its threads runs Python")]
    NoFrames,
    /// Frames came and went too fast.
    #[error("its frames changed while they were looked at")]
    Changing,
    /// A version that is not known, with too little on its threads to be sure of it.
    #[error("too little of its Python code runs to be sure of its version")]
    TooLittle,
    /// The process has ended, or begun another program; or what is needed is not in memory now.
    #[error("its memory cannot be read at this moment")]
    Gone,
}

/// Tries a layout out on a process; takes 7 ms where it does not fit.
pub(super) fn try_out(
    memory: &dyn ReadMemory,
    interpreter: &Interpreter,
    demands: Demands,
) -> Verdict {
    let head = || memory.u64(interpreter.frames.interpreters);
    let Some(first_head) = head() else {
        return Verdict::NotYet(NotYet::Gone);
    };
    let verdict = match (first_head, check_code_type(memory, interpreter)) {
        // Before there is an interpreter, pointers may not be relocated; numbers are always right.
        (0, Err(misfit @ (Misfit::Member { .. } | Misfit::Instructions { .. })))
        | (1.., Err(misfit)) => Verdict::Misfit(misfit),
        (0, _) => return Verdict::NotYet(NotYet::NotInitialised),
        (1.., Ok(code_type)) => try_often(memory, interpreter, code_type, demands),
    };
    match (head(), verdict) {
        // It ended meanwhile.
        (None, Verdict::Misfit(_)) => Verdict::NotYet(NotYet::Gone),
        (Some(0), Verdict::Misfit(_)) if first_head != 0 => Verdict::NotYet(NotYet::NotInitialised),
        (_, verdict) => verdict,
    }
}

fn try_often(
    memory: &dyn ReadMemory,
    interpreter: &Interpreter,
    code_type: CodeType,
    demands: Demands,
) -> Verdict {
    let mut first: Option<Failure> = None;
    let mut is_changing = false;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            thread::sleep(PAUSE * 2_u32.pow(attempt - 1));
        }
        let failure = match Attempt::new(memory, interpreter, code_type, demands).run() {
            Ok(verdict) => return verdict,
            Err(failure) => failure,
        };
        let first = first.get_or_insert(failure);
        is_changing |= failure.fits || *first != failure && (first.codes > 0 || failure.codes > 0);
    }
    match first {
        Some(failure) if !is_changing => Verdict::Misfit(failure.misfit),
        _ => Verdict::NotYet(NotYet::Changing),
    }
}

/// A try that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failure {
    misfit: Misfit,
    /// A thread fits in all, but the list of them is not whole.
    fits: bool,
    /// Of all that was read of threads and frames: equal if nothing moves.
    fingerprint: u64,
    /// Code objects that were right.
    codes: usize,
}

/// One try.
struct Attempt<'a> {
    memory: &'a dyn ReadMemory,
    interpreter: &'a Interpreter,
    demands: Demands,
    codes: CodeObjects<'a>,
    frames_left: usize,
    fingerprint: FxHasher,
}

/// The frames of one thread.
struct Chain {
    codes: usize,
    /// It begins as programs and threads do.
    has_known_root: bool,
}

impl<'a> Attempt<'a> {
    fn new(
        memory: &'a dyn ReadMemory,
        interpreter: &'a Interpreter,
        code_type: CodeType,
        demands: Demands,
    ) -> Self {
        Self {
            memory,
            interpreter,
            demands,
            codes: CodeObjects::new(memory, interpreter, code_type),
            frames_left: FRAMES_OF_ALL_MAX,
            fingerprint: FxHasher::default(),
        }
    }

    fn run(mut self) -> Result<Verdict, Failure> {
        let mut threads = Vec::new();
        let listed = list_threads(self.memory, &self.interpreter.frames, &mut threads);
        let (mut first, mut is_little) = (None, false);
        let with_frames = threads.iter().filter(|thread| thread.frame != 0);
        for thread in with_frames.take(THREADS_TRIED_MAX) {
            match self.thread(thread) {
                Ok(chain) if self.is_enough(&chain) => {
                    return match listed {
                        Ok(()) => Ok(Verdict::Fits),
                        Err(misfit) => Err(self.failure(misfit, true)),
                    };
                }
                Ok(_) => is_little = true,
                Err(misfit) => _ = first.get_or_insert(misfit),
            }
        }
        match listed.err().or(first) {
            Some(misfit) => Err(self.failure(misfit, false)),
            None if is_little => Ok(Verdict::NotYet(NotYet::TooLittle)),
            None => Ok(Verdict::NotYet(NotYet::NoFrames)),
        }
    }

    fn failure(&self, misfit: Misfit, fits: bool) -> Failure {
        Failure {
            misfit,
            fits,
            fingerprint: self.fingerprint.finish(),
            codes: self.codes.len(),
        }
    }

    fn is_enough(&self, chain: &Chain) -> bool {
        match self.demands {
            Demands::Fits => chain.codes > 0,
            Demands::FitsForSure => {
                chain.codes >= CODES_ENOUGH || chain.codes > 0 && chain.has_known_root
            }
        }
    }

    fn thread(&mut self, thread: &ThreadState) -> Result<Chain, Misfit> {
        (thread.at, thread.id, thread.frame).hash(&mut self.fingerprint);
        // `pthread_self()` is the thread control block, with a pointer to itself in front (glibc: `tcbhead_t`,
        // sysdeps/x86_64/nptl/tls.h; musl: `struct pthread`, src/internal/pthread_impl.h).
        if self.memory.u64(thread.id) != Some(thread.id) {
            return Err(Misfit::ThreadId);
        }
        self.frames(thread.frame)
    }

    fn frames(&mut self, innermost: u64) -> Result<Chain, Misfit> {
        let mut seen = FxHashSet::default();
        let mut codes = FxHashMap::<u64, CodeObject>::default();
        let mut root = None;
        let mut next = innermost;
        while next != 0 && seen.len() < FRAMES_MAX && self.frames_left > 0 {
            self.frames_left -= 1;
            let frame = Frame::read(self.memory, &self.interpreter.frames, next);
            let frame = frame.ok_or(Misfit::NoFrame)?;
            frame.hash(&mut self.fingerprint);
            if !seen.insert(next) {
                return Err(Misfit::Circle);
            }
            if !frame.is_shim()? {
                let code = match codes.get(&frame.code) {
                    Some(code) => *code,
                    None => self.codes.check(frame.code)?,
                };
                codes.insert(frame.code, code);
                // The newest frame may be about to begin, or just gone.
                if !code.has_instruction(self.memory, &self.interpreter.frames, &frame)
                    && (next != innermost || frame.previous == 0)
                {
                    return Err(Misfit::Instruction);
                }
                root = Some(code);
            }
            next = frame.previous;
        }
        Ok(Chain {
            codes: codes.len(),
            // Of a stack that is too deep, the root was not seen.
            has_known_root: next == 0 && root.is_some_and(|code| self.codes.is_root(&code)),
        })
    }
}

#[cfg(test)]
#[path = "self_check_tests.rs"]
mod tests;
