//! One open file, shared by all threads without a lock.
//!
//! A lock would be held by nobody after `fork`, and by the interrupted code in a signal handler. So the descriptor and
//! the number of those who are using it stand in one word; the last one who lets go closes it, if it is to be closed.
//! Others are kept waiting only while the file is opened, since the child of a `fork` must have its parent's entries
//! before its own, and while half a line is taken off it.
//!
//! Programs close descriptors that are not theirs: a daemon closes all of them, and opens others, which get the same
//! numbers. So the file is known by device and inode, and nothing is written to, or closed, that is another one.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use rustix::{
    fd::{AsFd, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd},
    io::Errno,
    thread::{Timespec, gettid, nanosleep},
};

use super::{PerfMapError, file};
use crate::ffi::watch_forks;

/// The word is 0 while nothing is open.
const CLOSED: u64 = 0;
/// Somebody has it for himself; the lower half of the word is the thread's id.
const TAKEN: u64 = 1 << 63;
/// The lower half is a descriptor.
const OPEN: u64 = 1 << 62;
/// It is to be closed by the last one who lets go.
const CLOSING: u64 = 1 << 61;
/// The descriptor was closed by somebody else: the last one who lets go forgets it.
const LOST: u64 = 1 << 60;
/// One who uses it. There is room for 2^28.
const USER: u64 = 1 << 32;
const USERS: u64 = LOST - USER;

/// How long those wait who cannot go on, in nanoseconds. Asleep, not yielding: the one they wait for may have a lower
/// priority.
const NAP: i64 = 50_000;
/// How many naps a lost descriptor is worth. In a signal handler, the interrupted code may be its last user.
const NAPS_MAX: u32 = 200;

/// The file of this process, or none.
#[derive(Debug)]
pub(super) struct FileSlot {
    word: AtomicU64,
    /// The file that is open.
    identity: Identity,
    /// The process whose own map was opened last, until this one is a child of it; 0 for none.
    owner: AtomicU32,
    /// Lines of the open file that were cut short by write errors since it was last in order.
    tears: AtomicU32,
    /// How many forks led here. Whoever was using the file in the parent has no part in the child's.
    generation: AtomicU32,
    /// The parent's file, in a child that has not opened its own yet; -1 otherwise.
    inherited: AtomicI32,
    inherited_identity: Identity,
    /// Whose it is, in case that the program closes the descriptor.
    parent: AtomicU32,
    /// How much of it was there at the `fork`.
    inherited_length: AtomicU64,
}

/// Keeps the file open while it lives.
#[derive(Debug)]
pub(super) struct OpenFile<'a> {
    slot: &'a FileSlot,
    descriptor: i32,
    generation: u32,
}

/// Which file a descriptor should be.
#[derive(Debug)]
struct Identity {
    device: AtomicU64,
    inode: AtomicU64,
}

impl Identity {
    /// No file has the inode 0.
    const fn none() -> Self {
        Self {
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }

    fn set(&self, (device, inode): (u64, u64)) {
        self.device.store(device, Ordering::Relaxed);
        self.inode.store(inode, Ordering::Relaxed);
    }

    fn get(&self) -> (u64, u64) {
        let device = self.device.load(Ordering::Relaxed);
        (device, self.inode.load(Ordering::Relaxed))
    }

    /// Is this descriptor still that file?
    fn is(&self, descriptor: i32) -> bool {
        descriptor >= 0 && file::identity(borrowed(&descriptor)) == Ok(self.get())
    }
}

impl FileSlot {
    pub(super) const fn new() -> Self {
        Self {
            word: AtomicU64::new(CLOSED),
            identity: Identity::none(),
            owner: AtomicU32::new(0),
            tears: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            inherited: AtomicI32::new(-1),
            inherited_identity: Identity::none(),
            parent: AtomicU32::new(0),
            inherited_length: AtomicU64::new(0),
        }
    }

    /// The open file; opens it if need be.
    pub(super) fn borrow(&self) -> Result<OpenFile<'_>, PerfMapError> {
        // Before the word is changed: a signal handler may fork at any moment after.
        let generation = self.generation.load(Ordering::Acquire);
        let mut naps = 0;
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & LOST != 0 {
                if naps == NAPS_MAX {
                    return Err(PerfMapError::Write(Errno::BADF));
                }
                naps += 1;
                word = self.nap();
            } else if word & OPEN != 0 {
                let next = (word + USER) & !CLOSING;
                match self.exchange(word, next) {
                    Ok(()) => {
                        let file = self.guard(descriptor(word), generation);
                        if self.identity.is(file.descriptor) {
                            return Ok(file);
                        }
                        file.lose();
                        drop(file);
                        word = self.word.load(Ordering::Acquire);
                    }
                    Err(now) => word = now,
                }
            } else if word & TAKEN != 0 {
                if word == taken() {
                    return Err(PerfMapError::Reentered);
                }
                word = self.nap();
            } else {
                // Before it is taken: a child that is not told would wait for a thread that it does not have.
                watch_forks();
                let own = taken();
                // After the calls above: most signals come at the end of a system call.
                let generation = self.generation.load(Ordering::Acquire);
                match self.exchange(CLOSED, own) {
                    Ok(()) if self.generation.load(Ordering::Acquire) == generation => {
                        return self.open(generation);
                    }
                    Ok(()) => {
                        // A signal handler has forked, and this is the child: the slot is taken for its parent, or not at all.
                        let _ = self.word.compare_exchange(
                            own,
                            CLOSED,
                            Ordering::AcqRel,
                            Ordering::Acquire,
                        );
                        word = self.word.load(Ordering::Acquire);
                    }
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
            // Taken first: nobody may open another file while this one's identity is still asked for.
            match self.exchange(word, if idle { taken() } else { word | CLOSING }) {
                Ok(()) if idle => {
                    close(descriptor(word), &self.identity);
                    return self.word.store(CLOSED, Ordering::Release);
                }
                Ok(()) => return,
                Err(now) => word = now,
            }
        }
    }

    /// In the child of a `fork`: the open file is the parent's, and whoever was using it is not here.
    pub(super) fn forked(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        let word = self.word.swap(CLOSED, Ordering::AcqRel);
        let owner = self.owner.swap(0, Ordering::AcqRel);
        let parents = if word & OPEN != 0 && self.identity.is(descriptor(word)) {
            descriptor(word)
        } else if owner != 0 {
            // Closed at the moment, or taken: its entries count all the same.
            let path = file::path_of(owner);
            let Ok(file) = file::open_source(path.as_c_str()) else {
                return;
            };
            let Ok(identity) = file::identity(file.as_fd()) else {
                return;
            };
            self.identity.set(identity);
            file.into_raw_fd()
        } else {
            return; // A grandchild keeps what the child inherited.
        };
        let length = file::length(borrowed(&parents));
        self.inherited_length.store(length, Ordering::Release);
        let before = self.inherited.swap(parents, Ordering::AcqRel);
        close(before, &self.inherited_identity);
        self.inherited_identity.set(self.identity.get());
        self.parent.store(owner, Ordering::Release);
    }

    /// Only one thread at a time comes here.
    fn open(&self, generation: u32) -> Result<OpenFile<'_>, PerfMapError> {
        let opened = self.open_with_inherited_entries();
        if self.generation.load(Ordering::Acquire) != generation {
            // A signal handler forked, and this is the child: the slot is not taken any more.
            return Err(PerfMapError::Reentered);
        }
        match opened {
            Ok(file) => {
                // In this order: a `fork` at any moment finds the parent's entries in one place at least.
                self.owner.store(std::process::id(), Ordering::Release);
                let parents = self.inherited.swap(-1, Ordering::AcqRel);
                close(parents, &self.inherited_identity);
                self.tears.store(0, Ordering::Relaxed);
                let descriptor = file.into_raw_fd();
                let word = OPEN | USER | u64::from(descriptor.cast_unsigned());
                self.word.store(word, Ordering::Release);
                Ok(self.guard(descriptor, generation))
            }
            Err(err) => {
                self.word.store(CLOSED, Ordering::Release);
                Err(err)
            }
        }
    }

    fn open_with_inherited_entries(&self) -> Result<OwnedFd, PerfMapError> {
        let own = file::open_own()?;
        self.identity
            .set(file::identity(own.as_fd()).map_err(PerfMapError::Open)?);
        file::end_last_line(own.as_fd()).map_err(PerfMapError::Write)?;
        let parents = self.inherited.load(Ordering::Acquire);
        if self.inherited_identity.is(parents) {
            self.copy_inherited(borrowed(&parents), own.as_fd())?;
        } else if parents >= 0 {
            // A daemon has closed it, as it closes everything.
            let path = file::path_of(self.parent.load(Ordering::Acquire));
            if let Ok(file) = file::open_source(path.as_c_str())
                && file::identity(file.as_fd()) == Ok(self.inherited_identity.get())
            {
                self.copy_inherited(file.as_fd(), own.as_fd())?;
            }
        }
        Ok(own)
    }

    /// All of the parent's entries or none.
    fn copy_inherited(
        &self,
        parents: BorrowedFd<'_>,
        own: BorrowedFd<'_>,
    ) -> Result<(), PerfMapError> {
        let limit = self.inherited_length.load(Ordering::Acquire);
        let before = file::length(own);
        let mut added = 0;
        file::append_entries(parents, limit, own, &mut added).map_err(|errno| {
            file::take_back(own, before, added);
            PerfMapError::Copy(errno)
        })
    }

    fn exchange(&self, current: u64, new: u64) -> Result<(), u64> {
        self.word
            .compare_exchange_weak(current, new, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }

    /// Lets others go on; the word after that.
    fn nap(&self) -> u64 {
        // That a signal may end it early is as good.
        let _ = nanosleep(&Timespec {
            tv_sec: 0,
            tv_nsec: NAP,
        });
        self.word.load(Ordering::Acquire)
    }

    fn guard(&self, descriptor: i32, generation: u32) -> OpenFile<'_> {
        OpenFile {
            slot: self,
            descriptor,
            generation,
        }
    }
}

impl OpenFile<'_> {
    /// How many lines were cut short lately. Whoever writes while there are some begins with a line end.
    pub(super) fn tears(&self) -> u32 {
        self.slot.tears.load(Ordering::Acquire)
    }

    /// The last line was cut short.
    pub(super) fn tear(&self) {
        self.slot.tears.fetch_add(1, Ordering::AcqRel);
    }

    /// A line that began with a line end was written whole after `seen` tears. Those that came meanwhile still count.
    pub(super) fn ended_after(&self, seen: u32) {
        let _ = self
            .slot
            .tears
            .compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Takes half a line off the end of the file, if nobody else is writing.
    pub(super) fn mend(&self) {
        self.alone(|| {
            if file::cut_last_line(self.as_fd()).is_ok() {
                self.slot.tears.store(0, Ordering::Release);
            }
        });
    }

    /// Does `work` while nobody else uses the file, or not at all.
    pub(super) fn alone(&self, work: impl FnOnce()) {
        let mut word = self.slot.word.load(Ordering::Acquire);
        while word & OPEN != 0 && word & USERS == USER && self.is_of_this_process() {
            match self.slot.exchange(word, taken()) {
                Ok(()) => {
                    work();
                    if self.is_of_this_process() {
                        self.slot.word.store(word, Ordering::Release);
                    }
                    return;
                }
                Err(now) => word = now,
            }
        }
    }

    /// Somebody else closed the descriptor; its number may be another file's by now.
    fn lose(&self) {
        if self.is_of_this_process() {
            self.slot.word.fetch_or(LOST, Ordering::AcqRel);
        }
    }

    /// False after a `fork` in a signal handler that interrupted the use: the child goes on with it, too.
    fn is_of_this_process(&self) -> bool {
        self.generation == self.slot.generation.load(Ordering::Acquire)
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
        while self.is_of_this_process() {
            let last = word & (CLOSING | LOST) != 0 && word & USERS == USER;
            let next = if last { taken() } else { word - USER };
            match self.slot.exchange(word, next) {
                Ok(()) if last => {
                    close(self.descriptor, &self.slot.identity);
                    return self.slot.word.store(CLOSED, Ordering::Release);
                }
                Ok(()) => return,
                Err(now) => word = now,
            }
        }
    }
}

fn taken() -> u64 {
    TAKEN | u64::from(gettid().as_raw_nonzero().get().cast_unsigned())
}

/// The lower half of an open word. Descriptors are not negative.
const fn descriptor(word: u64) -> i32 {
    word as u32 as i32
}

/// The descriptor stands in the slot for as long as it is borrowed here.
fn borrowed(descriptor: &i32) -> BorrowedFd<'_> {
    // SAFETY: it is not -1. Whoever calls this keeps the slot from closing it: as one of its users (`OpenFile`), as the
    // one who has taken it, or as the only thread of a process that was just forked. The program may have closed it
    // behind our back; then it is only asked which file it is (`Identity::is`), and not used further.
    unsafe { BorrowedFd::borrow_raw(*descriptor) }
}

/// Closes a descriptor that the slot has no more, if it is still the file it was; -1 is none.
fn close(descriptor: i32, identity: &Identity) {
    if identity.is(descriptor) {
        // SAFETY: it came from an `OwnedFd`, was just taken out of the only place it stood in, and is still that file.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_word_do_not_overlap() {
        let parts = [TAKEN, OPEN, CLOSING, LOST, USERS, u64::from(u32::MAX)];
        for (n, part) in parts.iter().enumerate() {
            for other in &parts[n + 1..] {
                assert_eq!(part & other, 0);
            }
        }
        assert_eq!(parts.iter().fold(0, |all, part| all | part), u64::MAX);
    }
}
