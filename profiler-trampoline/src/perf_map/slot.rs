//! One open file, shared by all threads without a lock.
//!
//! A lock would be held by nobody after `fork`, and by the interrupted code in a signal handler. So the descriptor and
//! the number of those who are using it stand in one word; the last one who lets go closes it, if it is to be closed.
//! Only opening keeps others waiting, since the child of a `fork` must have its parent's entries before its own.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::{
    fd::{AsFd, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd},
    thread::{gettid, sched_yield},
};

use super::{PerfMapError, file};
use crate::ffi::watch_forks;

/// The word is 0 while nothing is open.
const CLOSED: u64 = 0;
/// Somebody is opening the file; the lower half of the word is the thread's id.
const OPENING: u64 = 1 << 63;
/// The lower half is a descriptor.
const OPEN: u64 = 1 << 62;
/// It is to be closed by the last one who lets go.
const CLOSING: u64 = 1 << 61;
/// One who uses it. There is room for 2^29.
const USER: u64 = 1 << 32;
const USERS: u64 = CLOSING - USER;

/// The file of this process, or none.
#[derive(Debug)]
pub(super) struct FileSlot {
    word: AtomicU64,
    /// The parent's file, in a child that has not opened its own yet; -1 otherwise.
    inherited: AtomicI32,
    /// How much of it was there at the `fork`.
    inherited_length: AtomicU64,
}

/// Keeps the file open while it lives.
#[derive(Debug)]
pub(super) struct OpenFile<'a> {
    slot: &'a FileSlot,
    descriptor: i32,
}

impl FileSlot {
    pub(super) const fn new() -> Self {
        Self {
            word: AtomicU64::new(CLOSED),
            inherited: AtomicI32::new(-1),
            inherited_length: AtomicU64::new(0),
        }
    }

    /// The open file; opens it if need be.
    pub(super) fn borrow(&self) -> Result<OpenFile<'_>, PerfMapError> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & OPEN != 0 {
                let next = (word + USER) & !CLOSING;
                match self.exchange(word, next) {
                    Ok(()) => return Ok(self.guard(descriptor(word))),
                    Err(now) => word = now,
                }
            } else if word & OPENING != 0 {
                if word == opening() {
                    return Err(PerfMapError::Reentered);
                }
                sched_yield();
                word = self.word.load(Ordering::Acquire);
            } else {
                match self.exchange(CLOSED, opening()) {
                    Ok(()) => return self.open(),
                    Err(now) => word = now,
                }
            }
        }
    }

    /// Closes the file, now or when the last one who uses it has let go.
    pub(super) fn close(&self) {
        let mut word = self.word.load(Ordering::Acquire);
        while word & OPEN != 0 {
            let idle = word & USERS == 0;
            match self.exchange(word, if idle { CLOSED } else { word | CLOSING }) {
                Ok(()) if idle => return close(descriptor(word)),
                Ok(()) => return,
                Err(now) => word = now,
            }
        }
    }

    /// In the child of a `fork`: the open file is the parent's, and whoever was using it is not here.
    pub(super) fn forked(&self) {
        let word = self.word.swap(CLOSED, Ordering::AcqRel);
        if word & OPEN == 0 {
            return; // A grandchild keeps what the child inherited.
        }
        let parents = descriptor(word);
        let length = file::length(borrowed(&parents));
        self.inherited_length.store(length, Ordering::Release);
        close(self.inherited.swap(parents, Ordering::AcqRel));
    }

    /// Only one thread at a time comes here.
    fn open(&self) -> Result<OpenFile<'_>, PerfMapError> {
        watch_forks();
        match self.open_with_inherited_entries() {
            Ok(file) => {
                let descriptor = file.into_raw_fd();
                let word = OPEN | USER | u64::from(descriptor.cast_unsigned());
                self.word.store(word, Ordering::Release);
                Ok(self.guard(descriptor))
            }
            Err(err) => {
                self.word.store(CLOSED, Ordering::Release);
                Err(err)
            }
        }
    }

    fn open_with_inherited_entries(&self) -> Result<OwnedFd, PerfMapError> {
        let own = file::open_own()?;
        let parents = self.inherited.load(Ordering::Acquire);
        if parents >= 0 {
            let length = self.inherited_length.load(Ordering::Acquire);
            file::append_entries(&borrowed(&parents), length, own.as_fd())
                .map_err(PerfMapError::Copy)?;
            close(self.inherited.swap(-1, Ordering::AcqRel));
        }
        Ok(own)
    }

    fn exchange(&self, current: u64, new: u64) -> Result<(), u64> {
        self.word
            .compare_exchange_weak(current, new, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }

    fn guard(&self, descriptor: i32) -> OpenFile<'_> {
        OpenFile {
            slot: self,
            descriptor,
        }
    }
}

impl OpenFile<'_> {
    /// Others are using it at this moment.
    pub(super) fn is_shared(&self) -> bool {
        self.slot.word.load(Ordering::Acquire) & USERS != USER
    }
}

impl AsFd for OpenFile<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        borrowed(&self.descriptor)
    }
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        let mut word = self.slot.word.load(Ordering::Acquire);
        loop {
            let last = word & CLOSING != 0 && word & USERS == USER;
            match self
                .slot
                .exchange(word, if last { CLOSED } else { word - USER })
            {
                Ok(()) if last => return close(self.descriptor),
                Ok(()) => return,
                Err(now) => word = now,
            }
        }
    }
}

fn opening() -> u64 {
    OPENING | u64::from(gettid().as_raw_nonzero().get().cast_unsigned())
}

/// The lower half of an open word. Descriptors are not negative.
const fn descriptor(word: u64) -> i32 {
    word as u32 as i32
}

/// The descriptor stands in a word of the slot for as long as it is borrowed here.
fn borrowed(descriptor: &i32) -> BorrowedFd<'_> {
    // SAFETY: whoever calls this holds the descriptor open: as one of its users (`OpenFile`), as the one who is
    // opening the file, or as the only thread of a process that was just forked.
    unsafe { BorrowedFd::borrow_raw(*descriptor) }
}

/// Closes a descriptor that no word has any more; -1 is none.
fn close(descriptor: i32) {
    if descriptor >= 0 {
        // SAFETY: it came from an `OwnedFd` in `open`, and was just taken out of the only place it stood in.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_word_do_not_overlap() {
        let parts = [OPENING, OPEN, CLOSING, USERS, u64::from(u32::MAX)];
        for (n, part) in parts.iter().enumerate() {
            for other in &parts[n + 1..] {
                assert_eq!(part & other, 0);
            }
        }
        assert_eq!(parts.iter().fold(0, |all, part| all | part), u64::MAX);
    }
}
