//! May this file be read, as root, on the word of the program that is being profiled?
//!
//! Anybody can put anything under the name `perf-PID.map` into `/tmp`: a link to a file that only root may read, a FIFO
//! that is never written to, a file that claims to be of another process. So a map is opened only as what a map is:
//!
//! * its directory is resolved inside the target's root, whatever links a container has there;
//! * the file itself is not a link, not a mount of its own, and regular, which is looked at before it is opened
//!   (opening a device can have effects) and again afterwards (it may have been swapped);
//! * it belongs to the target's user, or to root and has one name only: others can make hard links to root's files;
//! * one that has lost its name is read through the target's own descriptor, if it belongs to the target's user;
//! * it is not larger than [`PerfMapLimits::file_bytes`](super::PerfMapLimits::file_bytes).

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, statat,
};
use rustix::io::Errno;

/// Why a perf map that is there is not read. Displayed as a clause with the file as its subject: "it is a FIFO, …".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Following it could show what the target's user may not read.
    #[error("it is a symbolic link, which is never followed")]
    Symlink,
    /// Perf maps are regular files.
    #[error("it is a {0}, not a regular file")]
    NotRegular(FileKind),
    /// It was not written by the target.
    #[error("it belongs to user {owner}, not to user {expected} as the process does")]
    Owner {
        /// Whose it is.
        owner: u32,
        /// Whose the target is.
        expected: u32,
    },
    /// It belongs to root and has other names: a user who may not read it may have given it this one.
    #[error("it is root's file under {links} names; only one is trusted")]
    HardLinked {
        /// How many names it has.
        links: u64,
    },
    /// A file was mounted over it.
    #[error("it is a mount of its own, which perf maps are not")]
    Mounted,
    /// Its size is beyond [`PerfMapLimits::file_bytes`](super::PerfMapLimits::file_bytes). When it grew so large while
    /// it was followed, what was read before stays.
    #[error("it has {bytes} bytes, and more than {limit} are not accepted")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The bound.
        limit: u64,
    },
    /// All perf maps together have taken what memory there is for them: [`PerfMapMemory`](super::PerfMapMemory). What was
    /// read before stays.
    #[error(
        "its end found no room: the perf maps of all processes have taken the {} MiB there are for them",
        limit >> 20
    )]
    NoRoom {
        /// The bound, in bytes.
        limit: usize,
    },
    /// The file or its directory.
    #[error(
        "no permission to read it: that takes the user of the process, root, or CAP_DAC_READ_SEARCH"
    )]
    PermissionDenied,
    /// Anything else that the system had against it.
    #[error("it cannot be read: {}", std::io::Error::from_raw_os_error(*errno))]
    Io {
        /// The error number.
        errno: i32,
    },
}

/// What a file is that is not a regular one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// None of these.
    Other,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Directory => "directory",
            Self::Fifo => "FIFO",
            Self::Socket => "socket",
            Self::Device => "device",
            Self::Other => "special file",
        })
    }
}

/// Who may own a map, and how large it may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) owner_uid: u32,
    pub(super) file_bytes: u64,
}

impl Rules {
    /// Judges a file by its metadata.
    pub(super) fn check(self, stat: &Stat) -> Result<(), Refusal> {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => None,
            FileType::Symlink => return Err(Refusal::Symlink),
            FileType::Directory => Some(FileKind::Directory),
            FileType::Fifo => Some(FileKind::Fifo),
            FileType::Socket => Some(FileKind::Socket),
            FileType::CharacterDevice | FileType::BlockDevice => Some(FileKind::Device),
            FileType::Unknown => Some(FileKind::Other),
        };
        if let Some(kind) = kind {
            return Err(Refusal::NotRegular(kind));
        }
        let (owner, expected) = (stat.st_uid, self.owner_uid);
        if owner != expected && owner != 0 {
            return Err(Refusal::Owner { owner, expected });
        }
        let links = widen(stat.st_nlink);
        if owner != expected && links > 1 {
            return Err(Refusal::HardLinked { links });
        }
        let (bytes, limit) = (size_of_file(stat), self.file_bytes);
        if bytes > limit {
            return Err(Refusal::TooLarge { bytes, limit });
        }
        Ok(())
    }

    /// Opens a map for reading. `None`: there is no such file.
    pub(super) fn open(
        self,
        directory: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<Option<(OwnedFd, Stat)>, Refusal> {
        let Some(stat) = unless_missing(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW))? else {
            return Ok(None);
        };
        self.check(&stat)?;
        // Not blocking: a FIFO that was swapped in, or a lease somebody holds on the file, would keep us waiting.
        let flags =
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        let opened = open_resolved(directory, Path::new(name), flags, resolve);
        let Some(fd) = unless_missing(opened)? else {
            return Ok(None);
        };
        let stat = fstat(&fd).map_err(refusal_of)?;
        self.check(&stat)?;
        Ok(Some((fd, stat)))
    }
}

impl Rules {
    /// Opens the file behind a descriptor of the process, `/proc/PID/fd/N`: a map whose name was removed. Stricter than
    /// [`open`](Self::open): it must be the user's own, since a process may hold a descriptor of a file it cannot read.
    pub(super) fn open_handle(self, handle: &Path) -> Result<Option<(OwnedFd, Stat)>, Refusal> {
        let found = openat(CWD, handle, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let Some(found) = unless_missing(found)? else {
            return Ok(None);
        };
        let stat = fstat(&found).map_err(refusal_of)?;
        let (owner, expected) = (stat.st_uid, self.owner_uid);
        if owner != expected {
            return Err(Refusal::Owner { owner, expected });
        }
        self.check(&stat)?;
        let again = format!("/proc/self/fd/{}", found.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = openat(CWD, again, flags, Mode::empty()).map_err(refusal_of)?;
        Ok(Some((fd, stat)))
    }
}

/// Opens the directory that a map is in: its parent as the path says, then its own name as a process would see it whose
/// root is that parent. For `/proc/PID/root/tmp`, that is the target's own idea of `/tmp`, also where that is a link.
/// `None`: there is no such directory, or no such process any more.
pub(super) fn open_directory(path: &Path) -> Result<Option<OwnedFd>, Refusal> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return unless_missing(openat(CWD, path, flags, Mode::empty()));
    };
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    let Some(parent) = unless_missing(openat(CWD, parent, flags, Mode::empty()))? else {
        return Ok(None);
    };
    unless_missing(open_resolved(
        &parent,
        Path::new(name),
        flags,
        ResolveFlags::IN_ROOT,
    ))
}

/// The size of a file in bytes.
pub(super) fn size_of_file(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// What the system's error means for a map.
pub(super) fn refusal_of(error: Errno) -> Refusal {
    match error {
        Errno::LOOP => Refusal::Symlink,
        Errno::XDEV => Refusal::Mounted,
        Errno::ACCESS | Errno::PERM => Refusal::PermissionDenied,
        _ => Refusal::Io {
            errno: error.raw_os_error(),
        },
    }
}

/// `openat2` (Linux 5.6). Where a sandbox forbids it, `openat` that follows no link at all: stricter for directories, and
/// blind to mounts.
fn open_resolved(
    directory: impl rustix::fd::AsFd,
    name: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    match openat2(&directory, name, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => {
            openat(&directory, name, flags | OFlags::NOFOLLOW, Mode::empty())
        }
        result => result,
    }
}

fn unless_missing<T>(result: Result<T, Errno>) -> Result<Option<T>, Refusal> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT | Errno::SRCH | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(refusal_of(error)),
    }
}

/// `st_nlink` is 32 bits wide on some architectures and 64 on others.
fn widen(links: impl Into<u64>) -> u64 {
    links.into()
}
