//! Putting bytes in their place: whole or not at all, and never over something else.
//!
//! The bytes go to a new file without a name, which gets the destination's when it is finished. Whoever looks sees
//! nothing or everything, and of a process that is killed meanwhile nothing is left over. A recording takes its time, so
//! whether its result can be written is found out before ([`OutputFile::prepare`]).
//!
//! Others may write to the directory, or own it. So it is held open from then on, whatever becomes of its name; a file
//! is always a new one, which no link leads to; and it is given away, and looked at once more, by its descriptor.

mod stream;
mod unfinished;

use std::{
    ffi::{OsStr, OsString},
    io::{self, BufWriter, Write},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use self::{
    stream::{Found, Stream},
    unfinished::Unfinished,
};
use super::OutputError;

/// Who shall own a file: the user who called `sudo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// A place that was found fit to be written to.
#[derive(Debug)]
pub struct OutputFile {
    place: Place,
    owner: Option<Owner>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where; `None` for standard output. Another name than the one asked for, `NAME-1.svg`, when a file of that name
    /// came into being during the recording: neither that file nor the recording is lost.
    pub path: Option<PathBuf>,
    /// The file could not be given to the owner it should have.
    pub owner_not_set: bool,
}

#[derive(Debug)]
enum Place {
    Stdout,
    /// A device or pipe: it is written to directly.
    Stream {
        stream: Stream,
        path: PathBuf,
    },
    /// A new file. The directory is held open, so that it may be moved meanwhile.
    New {
        directory: OwnedFd,
        name: OsString,
        path: PathBuf,
        /// Who may read it, less the umask.
        mode: Mode,
    },
}

/// What people expect of a file that a program writes.
const MODE: Mode = Mode::from_raw_mode(0o644);
/// For a file in a place that was not asked for, where it may meet other readers.
const MODE_PRIVATE: Mode = Mode::from_raw_mode(0o600);

impl OutputFile {
    /// Checks that `path` can be written to later, by making a file beside it and removing it again. `-` is standard
    /// output. `owner` is given the file once it is written; this needs `CAP_CHOWN`.
    ///
    /// Fails when something has that name already, and when the directory does not let files be made.
    pub fn prepare(path: &Path, owner: Option<Owner>) -> Result<Self, OutputError> {
        let place = if path == Path::new("-") {
            Place::Stdout
        } else {
            let ourselves = rustix::process::geteuid().as_raw();
            let trusted = [0, ourselves, owner.map_or(ourselves, |owner| owner.uid)];
            Place::find(path, &trusted)?
        };
        Ok(Self { place, owner })
    }

    /// A new file in a directory that was not asked for, such as `/tmp`: only for its owner to read, and with a number
    /// in its name where that is taken.
    pub fn private(
        directory: &Path,
        name: &OsStr,
        owner: Option<Owner>,
    ) -> Result<Self, OutputError> {
        let opened = open_directory(directory)
            .and_then(|opened| tried(opened, MODE_PRIVATE))
            .map_err(|errno| not_in(directory, errno))?;
        let place = Place::New {
            directory: opened,
            name: name.to_owned(),
            path: directory.join(name),
            mode: MODE_PRIVATE,
        };
        Ok(Self { place, owner })
    }

    /// Writes what `content` writes.
    ///
    /// On any error, one of `content` included, nothing remains in the directory.
    pub fn commit(
        self,
        content: impl FnOnce(&mut dyn Write) -> Result<(), OutputError>,
    ) -> Result<Written, OutputError> {
        let written = |path| Written {
            path,
            owner_not_set: false,
        };
        match self.place {
            Place::Stdout => fill(io::stdout().lock(), content).map(|()| written(None)),
            Place::Stream { stream, path } => {
                let file = stream.into_file().map_err(|source| OutputError::Open {
                    path: path.clone(),
                    source,
                })?;
                fill(file, content).map(|()| written(Some(path)))
            }
            Place::New {
                directory,
                name,
                path,
                mode,
            } => {
                let in_directory = |errno| not_in(&parent(&path), errno);
                let directory = if is_removed(&directory) {
                    made_anew(&directory).map_err(in_directory)?
                } else {
                    directory
                };
                let mut unfinished = Unfinished::create(&directory, mode).map_err(in_directory)?;
                fill(&unfinished.file, content)?;
                // Some file systems find out only now that there is no room (NFS), or not even that (a power cut).
                unfinished
                    .file
                    .sync_all()
                    .map_err(|source| OutputError::Write { source })?;
                let published = unfinished.publish(&name);
                let name = published.map_err(|errno| OutputError::Publish {
                    path: path.clone(),
                    source: errno.into(),
                })?;
                // Now, as only its owner may give a file its name (`may_linkat`, `may_delete`, fs/namei.c).
                let owner_not_set = self.owner.is_some_and(|Owner { uid, gid }| {
                    std::os::unix::fs::fchown(&unfinished.file, Some(uid), Some(gid)).is_err()
                });
                Ok(Written {
                    path: Some(path.with_file_name(name)),
                    owner_not_set,
                })
            }
        }
    }
}

impl Place {
    /// `trusted` are the users who may decide where a link leads.
    fn find(path: &Path, trusted: &[u32]) -> Result<Self, OutputError> {
        let not_a_file = || OutputError::NotAFile {
            path: path.to_owned(),
        };
        let name = path
            .file_name()
            .filter(|_| !path.as_os_str().as_encoded_bytes().ends_with(b"/"))
            .ok_or_else(not_a_file)?;
        let in_directory = |errno| not_in(&parent(path), errno);
        let directory = open_directory(&parent(path)).map_err(in_directory)?;
        match Stream::find(&directory, name, trusted) {
            Ok(Found::Stream(stream)) => {
                return Ok(Self::Stream {
                    stream,
                    path: path.to_owned(),
                });
            }
            Ok(Found::Distrusted(why)) => {
                return Err(OutputError::Distrusted {
                    path: path.to_owned(),
                    why,
                });
            }
            Ok(Found::Other(FileType::Directory)) => return Err(not_a_file()),
            Err(errno) if !has_name(&directory, name) => {
                if errno != Errno::NOENT {
                    return Err(in_directory(errno));
                }
            }
            // Something is there, be it a link that leads nowhere.
            Ok(Found::Other(_)) | Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => {
                return Err(OutputError::Exists {
                    path: path.to_owned(),
                });
            }
            Err(errno) => {
                return Err(OutputError::Open {
                    path: path.to_owned(),
                    source: errno.into(),
                });
            }
        }
        Ok(Self::New {
            directory: tried(directory, MODE).map_err(in_directory)?,
            name: name.to_owned(),
            path: path.to_owned(),
            mode: MODE,
        })
    }
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, DIRECTORY, Mode::empty())
}

/// A directory in which a file can be made, as was tried.
fn tried(directory: OwnedFd, mode: Mode) -> Result<OwnedFd, Errno> {
    Unfinished::create(&directory, mode).map(drop)?;
    Ok(directory)
}

fn not_in(directory: &Path, errno: Errno) -> OutputError {
    OutputError::Directory {
        directory: directory.to_owned(),
        source: errno.into(),
    }
}

/// The directory has no name any more, and takes no files. What the kernel says then depends on the file system.
fn is_removed(directory: &OwnedFd) -> bool {
    rustix::fs::fstat(directory).is_ok_and(|about| about.st_nlink == 0)
}

/// One that has the removed directory's place by now. Whoever could remove it may have put a link there, and
/// decides no more than before: none is followed, in no part of the path. (Needs Linux 5.6.)
fn made_anew(removed: &OwnedFd) -> Result<OwnedFd, Errno> {
    // The kernel's own name for it, in which links are followed already (`d_path`, fs/d_path.c).
    let known = rustix::fs::readlink(format!("/proc/self/fd/{}", removed.as_raw_fd()), Vec::new())?;
    let path = known.as_bytes();
    let path = OsStr::from_bytes(path.strip_suffix(b" (deleted)").unwrap_or(path));
    let links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(CWD, path, DIRECTORY, Mode::empty(), links)
}

/// Something has that name, be it a dangling link.
fn has_name(directory: &OwnedFd, name: &OsStr) -> bool {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn fill(
    to: impl Write,
    content: impl FnOnce(&mut dyn Write) -> Result<(), OutputError>,
) -> Result<(), OutputError> {
    let mut to = BufWriter::with_capacity(64 << 10, to);
    content(&mut to)?;
    to.flush().map_err(|source| OutputError::Write { source })
}

#[cfg(test)]
mod tests;
