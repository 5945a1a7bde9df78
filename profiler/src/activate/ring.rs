//! The interpreter's queue of pending calls, CPython 3.9 to 3.13: functions that its threads call between two
//! instructions, when they look at `eval_breaker`.
//!
//! `Py_AddPendingCall` puts something in from inside, and here the same is done from outside, while all threads stand
//! still ([`super::stopped`]) and none of them is in the middle of doing it itself (the lock). Nothing says where the
//! queue is, so its place is known by version, and everything around it has to look as it should.
//!
//! Up to 3.11 the main thread alone makes these calls (`make_pending_calls`, Python/ceval.c), since 3.12 any thread does
//! (Python/ceval_gil.c).

use super::memory::WriteMemory;

/// Where one version keeps it, in bytes from the interpreter state on (`struct _ceval_state` and `struct _pending_calls`:
/// Include/internal/pycore_interp.h up to 3.11, pycore_ceval_state.h since).
#[derive(Clone, Copy, Debug)]
struct Layout {
    calls: u64,
    call_bytes: u64,
    capacity: u32,
    first: u64,
    next: u64,
    guard: Guard,
}

/// How it is locked and how threads are told.
#[derive(Clone, Copy, Debug)]
enum Guard {
    /// Up to 3.12: a semaphore, an `int` that says whether there is something to do, and one that says so of everything.
    Semaphore {
        lock: u64,
        to_do: u64,
        breaker: u64,
        recursion_limit: u64,
    },
    /// 3.13: a byte, a count, and a word in each thread.
    Mutex { mutex: u64, count: u64, max: u64 },
}

/// `NPENDINGCALLS` up to 3.12. One place stays empty, or a full ring would look like an empty one.
const OLD_CALLS: u32 = 32;
/// `PENDINGCALLSARRAYSIZE`, 3.13, which counts them.
const NEW_CALLS: u32 = 300;
/// `MAXPENDINGCALLSLOOP`, 3.13.
const NEW_LOOP: u32 = 100;
/// 3.13: `PyThreadState.eval_breaker`.
const THREAD_BREAKER: u64 = 24;
/// 3.13: `_PY_CALLS_TO_DO_BIT` (Include/internal/pycore_ceval.h).
const CALLS_TO_DO: u8 = 1 << 2;

/// In the order of their minor versions, from 9 on.
const LAYOUTS: [Layout; 5] = [
    old(72, 80, 88, 96, 608, 64),
    old(68, 80, 88, 96, 608, 64),
    old(100, 112, 120, 128, 640, 96),
    old(368, 408, 416, 424, 936, 376),
    Layout {
        calls: 56,
        call_bytes: 24,
        capacity: NEW_CALLS,
        first: 7256,
        next: 7260,
        guard: Guard::Mutex {
            mutex: 40,
            count: 44,
            max: 48,
        },
    },
];

const fn old(
    breaker: u64,
    lock: u64,
    to_do: u64,
    calls: u64,
    first: u64,
    recursion_limit: u64,
) -> Layout {
    Layout {
        calls,
        call_bytes: 16,
        capacity: OLD_CALLS - 1,
        first,
        next: first + 4,
        guard: Guard::Semaphore {
            lock,
            to_do,
            breaker,
            recursion_limit,
        },
    }
}

/// A call of a C function with one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// `int (*func)(void *)`.
    pub(super) function: u64,
    /// Its argument.
    pub(super) argument: u64,
}

/// Why the queue is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Not where this version has it.
    #[error(
        "the queue of calls is not where this version of CPython keeps it: {0} is not plausible"
    )]
    Implausible(&'static str),
    /// A thread was stopped in the middle of using it.
    #[error("a thread holds the lock of its queue of calls")]
    Locked,
    /// No place in it.
    #[error("its queue of calls is full")]
    Full,
}

/// What became of a call that was to be taken out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withdrawn {
    /// It is out.
    Yes,
    /// A thread had taken it already.
    WasGone,
}

/// The queue of one interpreter.
pub(super) struct Ring<'m> {
    memory: &'m dyn WriteMemory,
    interpreter: u64,
    layout: &'static Layout,
}

/// Which places are taken: `length` of them from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    first: u32,
    next: u32,
    length: u32,
}

impl<'m> Ring<'m> {
    /// `None`: no version whose queue is known.
    pub(super) fn of(
        memory: &'m dyn WriteMemory,
        interpreter: u64,
        version: (u8, u8),
    ) -> Option<Self> {
        let (3, minor) = version else {
            return None;
        };
        let layout = LAYOUTS.get(usize::from(minor.checked_sub(9)?))?;
        Some(Self {
            memory,
            interpreter,
            layout,
        })
    }

    /// Puts a call in, and tells the threads, whose states are at `threads`. Only while everything stands still.
    ///
    /// `is_code`: executable memory begins, or goes on, there.
    pub(super) fn push(
        &self,
        call: Call,
        threads: &[u64],
        is_code: &dyn Fn(u64) -> bool,
    ) -> Result<(), Refused> {
        let taken = self.check(is_code)?;
        if taken.length >= self.layout.capacity {
            return Err(Refused::Full);
        }
        // The index comes last: without it, all this is nothing.
        let put = self.put_call(taken.next, Some(call))
            && self.put_taken(Taken {
                next: self.after(taken.next),
                length: taken.length + 1,
                ..taken
            });
        if !put {
            return Err(Refused::Implausible("its memory"));
        }
        self.tell(threads);
        Ok(())
    }

    /// Has the threads look into the queue once more: one that was about to clear the flag when all stood still clears it
    /// when they go on (`COMPUTE_EVAL_BREAKER`). A flag that is set for nothing does no harm.
    pub(super) fn remind(&self) {
        if let Guard::Semaphore { to_do, .. } = self.layout.guard
            && self.u32(to_do) == Some(1)
        {
            self.tell(&[]);
        }
    }

    /// A call is in it. A look without stopping anything, which may be wrong.
    pub(super) fn has(&self, call: Call) -> bool {
        let Ok(taken) = self.taken() else {
            return false;
        };
        let mut at = taken.first;
        (0..taken.length).any(|_| {
            let found = self.call(at) == Some(call);
            at = self.after(at);
            found
        })
    }

    /// Takes a call out again, wherever it is in the queue. Only while everything stands still.
    pub(super) fn withdraw(
        &self,
        call: Call,
        is_code: &dyn Fn(u64) -> bool,
    ) -> Result<Withdrawn, Refused> {
        let taken = self.check(is_code)?;
        let mut at = taken.first;
        let mut found = false;
        for _ in 0..taken.length {
            let following = self.after(at);
            found |= self.call(at) == Some(call);
            // Those behind it move up.
            if found && following != taken.next {
                let moved = self.raw_call(following);
                if !moved.is_some_and(|bytes| self.memory.write(self.place(at), &bytes)) {
                    return Err(Refused::Implausible("its memory"));
                }
            }
            at = following;
        }
        if !found {
            return Ok(Withdrawn::WasGone);
        }
        let last = self.before(taken.next);
        let done = self.put_taken(Taken {
            next: last,
            length: taken.length - 1,
            ..taken
        }) && self.put_call(last, None);
        if done {
            Ok(Withdrawn::Yes)
        } else {
            Err(Refused::Implausible("its memory"))
        }
    }

    /// Is everything as this version has it, and free to be changed?
    fn check(&self, is_code: &dyn Fn(u64) -> bool) -> Result<Taken, Refused> {
        let taken = self.taken()?;
        let mut at = taken.first;
        for _ in 0..taken.length {
            let call = self.call(at).ok_or(Refused::Implausible("a call"))?;
            if !is_code(call.function) {
                return Err(Refused::Implausible("a call's function"));
            }
            at = self.after(at);
        }
        match self.layout.guard {
            Guard::Semaphore {
                lock,
                to_do,
                breaker,
                recursion_limit,
            } => {
                let flag = |at| self.u32(at).is_some_and(|flag| flag <= 1);
                // With them `gil_drop_request` and `async_exc`, right behind.
                if ![to_do, to_do + 4, breaker, breaker + 4]
                    .into_iter()
                    .all(flag)
                {
                    return Err(Refused::Implausible("a flag"));
                }
                let limit = self.u32(recursion_limit);
                if !limit.is_some_and(|limit| (1..=i32::MAX as u32).contains(&limit)) {
                    return Err(Refused::Implausible("the recursion limit"));
                }
                let lock = self.u64(lock).filter(|lock| *lock != 0 && lock % 8 == 0);
                let lock = lock.ok_or(Refused::Implausible("the lock"))?;
                // `sem_t` of glibc and musl: the value, then the number of those who wait, an `int` each.
                match self.memory_u64(lock) {
                    Some(1) => {}
                    Some(_) => return Err(Refused::Locked),
                    None => return Err(Refused::Implausible("the lock")),
                }
            }
            Guard::Mutex { mutex, .. } => match self.u8(mutex) {
                Some(0) => {}
                Some(1..=3) => return Err(Refused::Locked),
                _ => return Err(Refused::Implausible("the mutex")),
            },
        }
        Ok(taken)
    }

    fn taken(&self) -> Result<Taken, Refused> {
        let size = self.places();
        let index = |at| self.u32(at).filter(|index| *index < size);
        let (Some(first), Some(next)) = (index(self.layout.first), index(self.layout.next)) else {
            return Err(Refused::Implausible("an index"));
        };
        let between = (next + size - first) % size;
        let length = match self.layout.guard {
            Guard::Semaphore { .. } => between,
            Guard::Mutex { count, max, .. } => {
                let limits = (self.u32(max), self.u32(max + 4));
                if limits != (Some(NEW_CALLS), Some(NEW_LOOP)) {
                    return Err(Refused::Implausible("a limit"));
                }
                let count = self.u32(count).filter(|count| *count <= NEW_CALLS);
                let count = count.filter(|count| count % size == between);
                count.ok_or(Refused::Implausible("the number of calls"))?
            }
        };
        Ok(Taken {
            first,
            next,
            length,
        })
    }

    fn put_taken(&self, taken: Taken) -> bool {
        let next = self.memory.write_u32(self.at(self.layout.next), taken.next);
        next && match self.layout.guard {
            Guard::Semaphore { .. } => true,
            Guard::Mutex { count, .. } => self.memory.write_u32(self.at(count), taken.length),
        }
    }

    fn tell(&self, threads: &[u64]) {
        match self.layout.guard {
            Guard::Semaphore { to_do, breaker, .. } => {
                self.memory.write_u32(self.at(to_do), 1);
                self.memory.write_u32(self.at(breaker), 1);
            }
            Guard::Mutex { .. } => {
                for thread in threads {
                    let at = thread + THREAD_BREAKER;
                    let mut flags = [0];
                    if self.memory.read(at, &mut flags) {
                        self.memory.write(at, &[flags[0] | CALLS_TO_DO]);
                    }
                }
            }
        }
    }

    fn put_call(&self, at: u32, call: Option<Call>) -> bool {
        // 3.13 has flags as the third word; none of them is wanted.
        let mut bytes = [0; 24];
        if let Some(call) = call {
            bytes[..8].copy_from_slice(&call.function.to_le_bytes());
            bytes[8..16].copy_from_slice(&call.argument.to_le_bytes());
        }
        let bytes = &bytes[..self.layout.call_bytes as usize];
        self.memory.write(self.place(at), bytes)
    }

    fn call(&self, at: u32) -> Option<Call> {
        Some(Call {
            function: self.memory_u64(self.place(at))?,
            argument: self.memory_u64(self.place(at) + 8)?,
        })
    }

    fn raw_call(&self, at: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.layout.call_bytes as usize];
        self.memory
            .read(self.place(at), &mut bytes)
            .then_some(bytes)
    }

    /// Places in the ring.
    fn places(&self) -> u32 {
        match self.layout.guard {
            Guard::Semaphore { .. } => OLD_CALLS,
            Guard::Mutex { .. } => NEW_CALLS,
        }
    }

    fn after(&self, index: u32) -> u32 {
        (index + 1) % self.places()
    }

    fn before(&self, index: u32) -> u32 {
        (index + self.places() - 1) % self.places()
    }

    fn place(&self, index: u32) -> u64 {
        self.at(self.layout.calls + u64::from(index) * self.layout.call_bytes)
    }

    fn at(&self, offset: u64) -> u64 {
        self.interpreter.wrapping_add(offset)
    }

    fn u8(&self, offset: u64) -> Option<u8> {
        let mut byte = [0];
        self.memory
            .read(self.at(offset), &mut byte)
            .then_some(byte[0])
    }

    fn u32(&self, offset: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        let is_read = self.memory.read(self.at(offset), &mut bytes);
        is_read.then_some(u32::from_le_bytes(bytes))
    }

    fn u64(&self, offset: u64) -> Option<u64> {
        self.memory_u64(self.at(offset))
    }

    fn memory_u64(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory
            .read(at, &mut bytes)
            .then_some(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
