//! What can go wrong with a perf map.

use std::fmt;

use rustix::io::Errno;

use super::file::path_of;

/// Why an entry was not written, or a map not opened or copied.
///
/// Half a line that was written is taken off the file again. Only while other threads are writing it stays until one of
/// them can do so, and the next line begins with a line end. One gap is left: a line of another thread that finds room
/// on a full disk at that very moment lands behind the half, and neither is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PerfMapError {
    /// `/tmp/perf-PID.map` can be neither opened nor made.
    Open(Errno),
    /// A FIFO, device or socket lies there (`EINVAL`). A directory or a symbolic link is [`Open`](Self::Open) with
    /// `EISDIR` or `ELOOP`.
    NotRegular,
    /// A file of another user lies there (`EPERM`).
    ForeignOwner,
    /// The file that lies there has other names (`EMLINK`): somebody linked another file to this place.
    HardLink,
    /// A map could not be copied: the one asked for, or the parent's after `fork`. Nothing was added, unless other
    /// threads were writing at the same time: then the first of its entries may have been.
    Copy(Errno),
    /// The entry could not be written: `ENOSPC` when the disk is full, or the file as large as it may be. At the limit
    /// of `RLIMIT_FSIZE` exactly it is `EFBIG`, and the kernel also sends `SIGXFSZ`. `EBADF` is for a program that
    /// closed the descriptor while this library was using it.
    Write(Errno),
    /// A signal handler wrote an entry while this same thread was opening or closing the file, or taking half a line
    /// off it (`EDEADLK`).
    Reentered,
}

impl PerfMapError {
    /// As a number for `errno`.
    pub fn errno(self) -> i32 {
        let errno = match self {
            Self::Open(errno) | Self::Copy(errno) | Self::Write(errno) => errno,
            Self::NotRegular => Errno::INVAL,
            Self::ForeignOwner => Errno::PERM,
            Self::HardLink => Errno::MLINK,
            Self::Reentered => Errno::DEADLK,
        };
        errno.raw_os_error()
    }
}

impl PerfMapError {
    /// The cause without the path, for a message that names it elsewhere.
    pub(crate) fn cause(self) -> String {
        match self {
            Self::Open(Errno::LOOP) => "it is a symbolic link; remove it".to_owned(),
            Self::Open(Errno::ISDIR) => "it is a directory; remove it".to_owned(),
            Self::Open(errno) => format!("cannot be opened: {errno}"),
            Self::NotRegular => "it is not a regular file; remove it".to_owned(),
            Self::ForeignOwner => "it belongs to another user; have it removed".to_owned(),
            Self::HardLink => "the file there has other names (hard links); remove it".to_owned(),
            Self::Copy(errno) => format!("entries cannot be copied: {errno}"),
            Self::Write(errno) => format!("cannot be written: {errno}"),
            Self::Reentered => "it is being opened by the code that was interrupted".to_owned(),
        }
    }
}

impl fmt::Display for PerfMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", path_of(std::process::id()), self.cause())
    }
}

impl std::error::Error for PerfMapError {}
