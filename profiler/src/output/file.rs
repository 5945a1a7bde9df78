//! Putting bytes in their place: whole or not at all, and never over something else.
//!
//! The bytes go to a new file without a name, which gets the destination's when it is finished. Whoever looks sees
//! nothing or everything, and of a process that is killed meanwhile nothing is left over. A recording takes its time, so
//! whether its result can be written is found out before ([`OutputFile::prepare`]).

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufWriter, Write},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::FileTypeExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, RenameFlags},
    io::Errno,
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
    Stream(PathBuf),
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

impl OutputFile {
    /// Checks that `path` can be written to later, by making a file beside it and removing it again. `-` is standard
    /// output. `owner` is given the file once it is written; this needs `CAP_CHOWN`.
    ///
    /// Fails when something has that name already, and when the directory does not let files be made.
    pub fn prepare(path: &Path, owner: Option<Owner>) -> Result<Self, OutputError> {
        let place = if path == Path::new("-") {
            Place::Stdout
        } else {
            Place::find(path)?
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
        let place = Place::New {
            directory: probed(directory)?,
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
            Place::Stream(path) => {
                let opened = File::options().write(true).open(&path);
                let stream = opened.map_err(|source| OutputError::Open {
                    path: path.clone(),
                    source,
                })?;
                fill(stream, content).map(|()| written(Some(path)))
            }
            Place::New {
                directory,
                name,
                path,
                mode,
            } => {
                // One of that name may have taken its place.
                let directory = if is_removed(&directory) {
                    probed(&parent(&path))?
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
                // Last: a file of another user cannot be given a name by everybody who can write to it
                // (`may_linkat`, fs/namei.c).
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
    fn find(path: &Path) -> Result<Self, OutputError> {
        let name = path
            .file_name()
            .filter(|_| !path.as_os_str().as_encoded_bytes().ends_with(b"/"));
        let Some(name) = name else {
            return Err(OutputError::NotAFile {
                path: path.to_owned(),
            });
        };
        match path.metadata() {
            Ok(there) if there.file_type().is_char_device() || there.file_type().is_fifo() => {
                return Ok(Self::Stream(path.to_owned()));
            }
            Ok(there) if there.is_dir() => {
                return Err(OutputError::NotAFile {
                    path: path.to_owned(),
                });
            }
            _ => {}
        }
        // A link that leads nowhere is something, too.
        if path.symlink_metadata().is_ok() {
            return Err(OutputError::Exists {
                path: path.to_owned(),
            });
        }
        Ok(Self::New {
            directory: probed(&parent(path))?,
            name: name.to_owned(),
            path: path.to_owned(),
            mode: MODE,
        })
    }
}

/// Opens a directory in which a file can be made, as was tried.
fn probed(directory: &Path) -> Result<OwnedFd, OutputError> {
    rustix::fs::open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .and_then(|opened| Unfinished::create(&opened, MODE).map(drop).map(|()| opened))
    .map_err(|errno| OutputError::Directory {
        directory: directory.to_owned(),
        source: errno.into(),
    })
}

/// The directory has no name any more, and takes no files. What the kernel says then depends on the file system.
fn is_removed(directory: &OwnedFd) -> bool {
    rustix::fs::fstat(directory).is_ok_and(|about| about.st_nlink == 0)
}

/// A file that does not have its name yet. It is gone unless it gets one.
struct Unfinished<'d> {
    directory: &'d OwnedFd,
    /// On file systems that have no files without a name, one that nobody looks for.
    name: Option<String>,
    file: File,
}

impl<'d> Unfinished<'d> {
    fn create(directory: &'d OwnedFd, mode: u32) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(directory, ".", flags, Mode::from_raw_mode(mode)) {
            Ok(file) => Ok(Self {
                directory,
                name: None,
                file: file.into(),
            }),
            // NFS, FAT and others.
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => Self::create_named(directory, mode),
            Err(errno) => Err(errno),
        }
    }

    fn create_named(directory: &'d OwnedFd, mode: u32) -> Result<Self, Errno> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut attempt = 0;
        loop {
            let name = format!(".pyprof-bpf-{}-{attempt}.part", std::process::id());
            match rustix::fs::openat(directory, &name, flags, Mode::from_raw_mode(mode)) {
                Ok(file) => {
                    return Ok(Self {
                        directory,
                        name: Some(name),
                        file: file.into(),
                    });
                }
                Err(Errno::EXIST) if attempt < 99 => attempt += 1,
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Gives the file its name, or the first free one like it.
    fn publish(&mut self, wanted: &OsStr) -> Result<OsString, Errno> {
        let mut number = 0;
        loop {
            let name = numbered(wanted, number);
            let placed = match &self.name {
                Some(unfinished) => rename_to_new(self.directory, unfinished, &name),
                None => link_to_new(&self.file, self.directory, &name),
            };
            match placed {
                Ok(()) => {
                    self.name = None;
                    return Ok(name);
                }
                Err(Errno::EXIST) if number < 99 => number += 1,
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // Nobody is left to tell, and the next one takes another name.
            let _ = rustix::fs::unlinkat(self.directory, name, AtFlags::empty());
        }
    }
}

/// Gives a name to a file that has none, unless there is a file of that name.
fn link_to_new(file: &File, directory: &OwnedFd, to: &OsStr) -> Result<(), Errno> {
    // By way of /proc, for which no capability is needed (`AT_EMPTY_PATH` in linkat(2)).
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, from, directory, to, AtFlags::SYMLINK_FOLLOW)
}

/// Renames, unless there is a file of that name. A file system that cannot do both at once (NFS) has links, which never
/// replace anything.
fn rename_to_new(directory: &OwnedFd, from: &str, to: &OsStr) -> Result<(), Errno> {
    match rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(directory, from, directory, to, AtFlags::empty())?;
            rustix::fs::unlinkat(directory, from, AtFlags::empty())
        }
        result => result,
    }
}

/// `profile.svg`, `profile-1.svg`, `profile-2.svg`, …
fn numbered(name: &OsStr, number: u32) -> OsString {
    if number == 0 {
        return name.to_owned();
    }
    let path = Path::new(name);
    let mut numbered = path.file_stem().unwrap_or_default().to_owned();
    numbered.push(format!("-{number}"));
    if let Some(extension) = path.extension() {
        numbered.push(".");
        numbered.push(extension);
    }
    numbered
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
