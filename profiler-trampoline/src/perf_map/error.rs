//! What can go wrong with a perf map.

use std::fmt;

use rustix::io::Errno;

/// Why nothing was written. No half of an entry stays behind.
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
    /// A map could not be copied: the one asked for, or the parent's after `fork`.
    Copy(Errno),
    /// The entry could not be written: the disk is full, for example.
    Write(Errno),
    /// A signal handler wrote an entry while this same thread was opening the file (`EDEADLK`).
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

impl fmt::Display for PerfMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(Errno::LOOP) => f.write_str("it is a symbolic link"),
            Self::Open(errno) => write!(f, "cannot be opened: {errno}"),
            Self::NotRegular => f.write_str("it is not a regular file"),
            Self::ForeignOwner => f.write_str("it belongs to another user"),
            Self::HardLink => f.write_str("the file there has other names (hard links)"),
            Self::Copy(errno) => write!(f, "entries cannot be copied: {errno}"),
            Self::Write(errno) => write!(f, "cannot be written: {errno}"),
            Self::Reentered => f.write_str("it is being opened by the code that was interrupted"),
        }
    }
}

impl std::error::Error for PerfMapError {}
