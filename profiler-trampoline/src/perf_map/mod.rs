//! The writer: one perf map for each process.
//!
//! `slot` shares the open file among threads, `file` opens it and refuses what is not ours, `line` formats entries, and
//! `error` says what can go wrong.
//!
//! The semantics are those of CPython's `PyUnstable_PerfMapState_Init`, `PyUnstable_WritePerfMapEntry` and
//! `PyUnstable_PerfMapState_Fini` (Python/sysmodule.c, 3.12 and later): the file is opened by the first entry,
//! finishing can be repeated, and an entry after that opens it again.

mod error;
mod file;
mod line;
mod slot;

use std::{ffi::CStr, path::PathBuf};

use rustix::{
    fd::AsFd as _,
    io::{Errno, IoSlice, retry_on_intr, writev},
};

pub use error::PerfMapError;

use self::slot::{FileSlot, OpenFile};

static OF_THIS_PROCESS: PerfMap = PerfMap {
    slot: FileSlot::new(),
};

/// The perf map of this process, `/tmp/perf-PID.map`.
///
/// It can be used from any number of threads. Each entry is one `write(2)` of the whole line, so that lines of several
/// writers never mix. Nothing waits for a lock once the file is open, and nothing is allocated for names that need no
/// escapes, or are up to 1 KiB long with them. So an entry may be written in a signal handler once the map is open; only
/// when the signal came while this very thread was opening or closing the file, it is an error
/// ([`PerfMapError::Reentered`]).
///
/// An entry costs two system calls, `fstat(2)` and `writev(2)`: about 5 µs on a virtual machine where `write(2)` of the
/// same line alone costs 2.5 µs and the cheapest system call 0.4 µs. 32 threads on two processors wrote 320,000 entries
/// of 156 bytes on average, some of 20 KB, in 2.1 s. The first look at the file is what keeps entries out of files that
/// are not the map: programs close descriptors that are not theirs, and their numbers are used again.
///
/// A reader that follows the file may find it ending within a line, since the kernel lets it see a long write before it
/// is over; the rest comes, with nothing in between.
///
/// After `fork` the child has a map of its own. Its first entry brings along what the parent had written until then, so
/// that the child's map names all of the code that the child has. After `exec` the pid is the same, and so is the file:
/// new entries are added behind the old ones, and readers believe the later of two. A child that is made by the system
/// call `clone` itself, without the C library, goes on in its parent's file.
#[derive(Debug)]
pub struct PerfMap {
    slot: FileSlot,
}

impl PerfMap {
    /// The only one: a process has one perf map.
    pub fn of_this_process() -> &'static Self {
        &OF_THIS_PROCESS
    }

    /// Where it lies: `/tmp/perf-PID.map`, with the pid that this process has in its own pid namespace. `TMPDIR` plays
    /// no role, as readers do not know it.
    pub fn path() -> PathBuf {
        PathBuf::from(file::path_of(std::process::id()).to_string())
    }

    /// Opens the file, or makes it with mode 0600. Does nothing when it is open.
    ///
    /// Not needed before [`write_entry`](Self::write_entry), but tells early whether that will work.
    pub fn init(&self) -> Result<(), PerfMapError> {
        self.slot.borrow().map(drop)
    }

    /// Adds a piece of code: `size` bytes at `address` are called `name`.
    ///
    /// Write the entry before the code runs for the first time, so that no reader meets the code without a name. Of two
    /// entries for one address the later one counts. Control characters in `name`, and bytes that are not UTF-8, are
    /// written as escapes (`\n`, `\x1b`), since a line is an entry.
    pub fn write_entry(
        &self,
        address: usize,
        size: usize,
        name: &[u8],
    ) -> Result<(), PerfMapError> {
        let file = self.slot.borrow()?;
        line::with_entry(address, size, name, |parts| append(&file, parts))
            .unwrap_or(Err(PerfMapError::Write(Errno::NOMEM)))
    }

    /// Adds all entries of another perf map, usually that of the process this one was forked from, to this one.
    ///
    /// [`write_entry`](Self::write_entry) does this by itself in a forked child when the parent used this library.
    /// `path` must be a regular file of this user. A last line without an end is left out.
    pub fn copy_from(&self, path: &CStr) -> Result<(), PerfMapError> {
        let source = file::open_source(path)?;
        let target = self.slot.borrow()?;
        if target.tears() > 0 {
            target.mend();
        }
        let before = file::length(target.as_fd());
        let mut added = 0;
        file::append_entries(source.as_fd(), u64::MAX, target.as_fd(), &mut added).map_err(
            |errno| {
                target.tear();
                target.alone(|| file::take_back(target.as_fd(), before, added));
                target.mend();
                PerfMapError::Copy(errno)
            },
        )
    }

    /// Closes the file. The entries stay, since others read them: nothing removes the file. Does nothing when it is
    /// closed; a write that is going on in another thread is finished first.
    pub fn fini(&self) {
        self.slot.close();
    }

    /// To be called in the child of a `fork`, before anything else: it has a single thread there, and the file that is
    /// open is its parent's.
    pub(crate) fn forked(&self) {
        self.slot.forked();
    }
}

/// One line, in one `write(2)`.
fn append(file: &OpenFile<'_>, parts: &[&[u8]; 3]) -> Result<(), PerfMapError> {
    let [head, name, end] = parts;
    if file.tears() > 0 {
        file.mend();
    }
    let tears = file.tears();
    let newline: &[u8] = if tears > 0 { b"\n" } else { b"" };
    let slices = [newline, head, name, end].map(IoSlice::new);
    let length: usize = slices.iter().map(|slice| slice.len()).sum();
    let written = retry_on_intr(|| writev(file, &slices)).map_err(PerfMapError::Write)?;
    if written < length {
        // The disk is full, or the file as large as it may be. Half a line could be taken for a whole one.
        file.tear();
        file.mend();
        return Err(PerfMapError::Write(Errno::NOSPC));
    }
    if tears > 0 {
        file.ended_after(tears);
    }
    Ok(())
}
