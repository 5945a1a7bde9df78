//! Putting bytes in their place: whole or not at all, and never over something else.
//!
//! The bytes go to a new file without a name, which gets the destination's when it is finished. Whoever looks sees
//! nothing or everything, and of a process that is killed meanwhile nothing is left over. A recording takes its time, so
//! whether its result can be written is found out before ([`OutputFile::prepare`]).
//!
//! Others may write to the directory, or own it. So no link of theirs is followed to it, and it is held open from then
//! on, whatever becomes of its name; a file is always a new one, and it is given away, and looked at once more, by its
//! descriptor.

mod descriptor;
mod directory;
mod reader;
mod stream;
mod unfinished;

use std::{
    ffi::{OsStr, OsString},
    fmt,
    fs::File,
    io::{self, BufWriter, Write},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType},
    io::Errno,
};

use self::{
    reader::Watched,
    stream::{Found, Stream},
    unfinished::Unfinished,
};
use super::OutputError;

pub use descriptor::descriptor;
pub use reader::{Waiting, WhileWaiting};

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
    /// Where; `None` for standard output and other descriptors. Another name than the one asked for, `NAME-1.svg`, when a file of that name
    /// came into being during the recording: neither that file nor the recording is lost.
    pub path: Option<PathBuf>,
    /// The descriptor, where it was asked for by its number.
    pub descriptor: Option<u32>,
    /// The file could not be given to the owner it should have.
    pub owner_not_set: bool,
}

#[derive(Debug)]
enum Place {
    Stdout,
    /// What this program was started with.
    Descriptor {
        file: File,
        number: u32,
    },
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
        mode: u32,
    },
}

/// What people expect of a file that a program writes.
const MODE: u32 = 0o644;
/// For a file in a place that was not asked for, where it may meet other readers.
const MODE_PRIVATE: u32 = 0o600;

/// Fails where standard output was closed when the program started: what is written to it would be lost.
pub fn check_stdout() -> Result<(), OutputError> {
    descriptor::check(&io::stdout(), 1)
}

impl OutputFile {
    /// Checks that `path` can be written to later, by making a file beside it and removing it again. `-` is standard
    /// output. `owner` is given the file once it is written; this needs `CAP_CHOWN`.
    ///
    /// Fails when something has that name already, and when the directory does not let files be made.
    pub fn prepare(path: &Path, owner: Option<Owner>) -> Result<Self, OutputError> {
        let place = if path == Path::new("-") {
            check_stdout()?;
            Place::Stdout
        } else {
            Place::find(path, &trusted(owner))?
        };
        Ok(Self { place, owner })
    }

    /// A descriptor that this program was started with, such as 3 for `3>file`.
    pub fn descriptor(number: u32) -> Result<Self, OutputError> {
        let file = descriptor(number).map_err(|source| OutputError::Open {
            path: format!("/dev/fd/{number}").into(),
            source,
        })?;
        descriptor::check(&file, number)?;
        let place = Place::Descriptor { file, number };
        Ok(Self { place, owner: None })
    }

    /// A new file in a directory that was not asked for, such as `/tmp`: only for its owner to read, and with a number
    /// in its name where that is taken.
    pub fn private(
        directory: &Path,
        name: &OsStr,
        owner: Option<Owner>,
    ) -> Result<Self, OutputError> {
        let place = Place::New {
            directory: probed(directory, &trusted(owner))?,
            name: name.to_owned(),
            path: directory.join(name),
            mode: MODE_PRIVATE,
        };
        Ok(Self { place, owner })
    }

    /// Writes what `content` writes, and waits for a reader as long as it takes.
    ///
    /// On any error, one of `content` included, nothing remains in the directory.
    pub fn commit(
        self,
        content: impl FnOnce(&mut dyn Write) -> Result<(), OutputError>,
    ) -> Result<Written, OutputError> {
        self.commit_while(&mut |_| Ok(()), content)
    }

    /// The same; `waiting` is called again and again while nobody reads what is written, and ends it with an error.
    pub fn commit_while(
        self,
        waiting: &mut WhileWaiting<'_>,
        content: impl FnOnce(&mut dyn Write) -> Result<(), OutputError>,
    ) -> Result<Written, OutputError> {
        let written = |path| Written {
            path,
            descriptor: None,
            owner_not_set: false,
        };
        match self.place {
            Place::Stdout => {
                // Itself, and not what would divide the bytes into lines.
                let file = io::stdout().as_fd().try_clone_to_owned();
                let file = file.map_err(|source| OutputError::Write { source })?;
                fill(Watched::new(file.into(), &mut *waiting), content).map(|()| written(None))
            }
            Place::Descriptor { file, number } => fill(Watched::new(file, &mut *waiting), content)
                .map(|()| Written {
                    descriptor: Some(number),
                    ..written(None)
                }),
            Place::Stream { stream, path } => {
                let file = stream
                    .into_file(&mut *waiting)
                    .map_err(|source| OutputError::Open {
                        path: path.clone(),
                        source,
                    })?;
                fill(Watched::new(file, &mut *waiting), content).map(|()| written(Some(path)))
            }
            Place::New {
                directory,
                name,
                path,
                mode,
            } => {
                // One of that name may have taken its place.
                let directory = if is_removed(&directory) {
                    probed(&parent(&path), &trusted(self.owner))?
                } else {
                    directory
                };
                let mut unfinished = Unfinished::create(&directory, mode).map_err(|errno| {
                    OutputError::Directory {
                        directory: parent(&path),
                        source: errno.into(),
                    }
                })?;
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
                    descriptor: None,
                    owner_not_set,
                })
            }
        }
    }
}

impl fmt::Display for OutputFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Stdout => f.write_str("standard output"),
            Place::Descriptor { number, .. } => write!(f, "descriptor {number}"),
            Place::Stream { path, .. } | Place::New { path, .. } => path.display().fmt(f),
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
        let in_directory = |errno: Errno| OutputError::Directory {
            directory: parent(path),
            source: errno.into(),
        };
        let directory = opened(&parent(path), trusted)?;
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
        Unfinished::create(&directory, MODE).map_err(in_directory)?;
        Ok(Self::New {
            directory,
            name: name.to_owned(),
            path: path.to_owned(),
            mode: MODE,
        })
    }
}

/// The users who may decide what is written to: root, whoever writes, and whose the file will be.
fn trusted(owner: Option<Owner>) -> [u32; 3] {
    let ourselves = rustix::process::geteuid().as_raw();
    [0, ourselves, owner.map_or(ourselves, |owner| owner.uid)]
}

fn opened(directory: &Path, trusted: &[u32]) -> Result<OwnedFd, OutputError> {
    directory::open(directory, trusted).map_err(|refusal| match refusal {
        directory::Refusal::Errno(errno) => OutputError::Directory {
            directory: directory.to_owned(),
            source: errno.into(),
        },
        directory::Refusal::LinkOf(user) => OutputError::Distrusted {
            path: directory.to_owned(),
            why: format!("leads over a link of user {user}"),
        },
    })
}

/// Opens a directory in which a file can be made, as was tried.
fn probed(directory: &Path, trusted: &[u32]) -> Result<OwnedFd, OutputError> {
    let opened = opened(directory, trusted)?;
    let tried = Unfinished::create(&opened, MODE).map(drop);
    tried.map_err(|errno| OutputError::Directory {
        directory: directory.to_owned(),
        source: errno.into(),
    })?;
    Ok(opened)
}

/// The directory has no name any more, and takes no files. What the kernel says then depends on the file system.
fn is_removed(directory: &OwnedFd) -> bool {
    rustix::fs::fstat(directory).is_ok_and(|about| about.st_nlink == 0)
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
