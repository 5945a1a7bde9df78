//! Devices and pipes: written to directly, and so held from the beginning, or another file could be there at the end.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat},
    io::Errno,
};

use super::reader::{LOOK, Waiting, WhileWaiting};

/// `PIPEFS_MAGIC` (include/uapi/linux/magic.h).
const PIPEFS_MAGIC: i64 = 0x5049_5045;

/// A character device or a pipe.
#[derive(Debug)]
pub(super) struct Stream {
    /// It itself, whatever becomes of its name.
    found: OwnedFd,
    /// Open for writing; a FIFO that nobody reads yet cannot be opened without waiting.
    open: Option<File>,
}

/// What is found at a name, for a stream.
#[derive(Debug)]
pub(super) enum Found {
    /// One that is fit to be written to.
    Stream(Stream),
    /// Something else.
    Other(FileType),
    /// One that others decide about. Why, as a clause: "is a FIFO of user 1000".
    Distrusted(String),
}

impl Stream {
    /// Looks at `name` in `directory`. `trusted` are the users who may decide what is written to: a link must be where
    /// nobody else can make one, and a FIFO must be theirs. (Devices are made by root only, and a pipe without a name
    /// is handed over by whoever has it open.)
    pub(super) fn find(directory: &OwnedFd, name: &OsStr, trusted: &[u32]) -> Result<Found, Errno> {
        let path = OFlags::PATH | OFlags::CLOEXEC;
        let mut found =
            rustix::fs::openat(directory, name, path | OFlags::NOFOLLOW, Mode::empty())?;
        let mut stat = rustix::fs::fstat(&found)?;
        let is_link = kind(&stat) == FileType::Symlink;
        if is_link {
            found = rustix::fs::openat(directory, name, path, Mode::empty())?;
            stat = rustix::fs::fstat(&found)?;
        }
        let kind = kind(&stat);
        if !matches!(kind, FileType::CharacterDevice | FileType::Fifo) {
            return Ok(Found::Other(kind));
        }
        if is_link {
            let place = rustix::fs::fstat(directory)?;
            if !trusted.contains(&place.st_uid) || place.st_mode & 0o022 != 0 {
                return Ok(Found::Distrusted(
                    "is a link, in a directory that others can write to".to_owned(),
                ));
            }
        }
        let has_name = rustix::fs::fstatfs(&found)?.f_type != PIPEFS_MAGIC;
        if kind == FileType::Fifo && has_name && !trusted.contains(&stat.st_uid) {
            return Ok(Found::Distrusted(format!(
                "is a FIFO of user {}",
                stat.st_uid
            )));
        }
        let open = match open_at_once(&found) {
            Ok(file) => Some(file),
            Err(Errno::NXIO) => None,
            Err(errno) => return Err(errno),
        };
        Ok(Found::Stream(Self { found, open }))
    }

    /// The stream, open for writing. Waits for a reader of a FIFO, until `waiting` fails.
    pub(super) fn into_file(self, waiting: &mut WhileWaiting<'_>) -> io::Result<File> {
        if let Some(file) = self.open {
            return Ok(file);
        }
        loop {
            match open_at_once(&self.found) {
                Ok(file) => return Ok(file),
                Err(Errno::NXIO) => waiting(Waiting::NoReader)?,
                Err(errno) => return Err(errno.into()),
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// From a handle that cannot write (`O_PATH`) to one that can. A FIFO that nobody reads gives `ENXIO`.
fn open_at_once(found: &OwnedFd) -> Result<File, Errno> {
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    // Only the opening must not wait.
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(file.into())
}
