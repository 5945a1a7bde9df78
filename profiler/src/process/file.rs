//! Opens the very file that is mapped in a process, not one that happens to have its path now.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileExt as _, MetadataExt},
        },
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::model::Pid;

use super::{
    loaded_files::open_loaded,
    mappings::{CodeCopy, Mapping, MappingKind},
    proc_folder, running_thread,
};

/// Larger files are not read. The largest libraries in use (CUDA back ends) are below 2 GiB.
pub const FILE_BYTES_MAX: u64 = 4 << 30;

/// What makes a file the same file: as long as these are equal, so is its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIdentity {
    /// Device number, as `stat` gives it.
    pub device: u64,
    /// Inode number on that device.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Last change of the content, nanoseconds since 1970.
    pub modified_ns: i128,
}

impl FileIdentity {
    /// Asks the kernel what an open file is.
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self::from_metadata(&file.metadata()?))
    }

    fn from_metadata(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified_ns: i128::from(metadata.mtime()) * 1_000_000_000
                + i128::from(metadata.mtime_nsec()),
        }
    }
}

/// An open file that is, or was, mapped in a process.
#[derive(Debug)]
pub struct MappedFile {
    /// Open for reading; a regular file of at most [`FILE_BYTES_MAX`] bytes.
    pub file: File,
    /// What file it is.
    pub identity: FileIdentity,
    /// Its path as mapped, for people: another file may be there now.
    pub display_path: PathBuf,
    /// The file itself cannot be opened: this is what a process has loaded of it, without `.symtab` and debug information.
    pub is_from_memory: bool,
}

impl MappedFile {
    /// It begins as an ELF file does: libraries may be loaded from memory that has no name, which else holds JIT code.
    pub fn is_elf(&self) -> bool {
        let mut magic = [0; 4];
        self.file.read_exact_at(&mut magic, 0).is_ok() && magic == *b"\x7fELF"
    }
}

/// Why a mapped file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenMappedError {
    /// The mapping is of no file.
    #[error("the mapping at {begin:#x} is of no file")]
    NotAFile {
        /// Where it begins.
        begin: u64,
    },
    /// It is gone: deleted, and `/proc/PID/map_files` may not be used.
    #[error(
        "{path:?} is deleted; reading it from the running process needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN"
    )]
    Deleted {
        /// Its path as mapped.
        path: PathBuf,
    },
    /// Another file is at its path now, and `/proc/PID/map_files` may not be used.
    #[error("{path:?} is another file now than the one mapped in pid {pid}")]
    Replaced {
        /// Its path as mapped.
        path: PathBuf,
        /// The process.
        pid: Pid,
    },
    /// It is a device, a pipe or the like.
    #[error("{path:?} is not a regular file")]
    NotRegular {
        /// Its path as mapped.
        path: PathBuf,
    },
    /// It is larger than [`FILE_BYTES_MAX`].
    #[error("{path:?} has {size} bytes, more than is read of one file")]
    TooLarge {
        /// Its path as mapped.
        path: PathBuf,
        /// Its length in bytes.
        size: u64,
    },
    /// It cannot be opened, and the memory of the process, from which it is read instead, has not answered yet.
    #[error("{path:?} is being read from the memory of pid {pid}")]
    NotYet {
        /// Its path as mapped.
        path: PathBuf,
        /// The process.
        pid: Pid,
    },
    /// Any other refusal of the operating system.
    #[error("cannot open {path:?} of pid {pid}: {source}")]
    Io {
        /// Its path as mapped.
        path: PathBuf,
        /// The process.
        pid: Pid,
        /// What the operating system said.
        source: io::Error,
    },
}

/// Opens the file behind a mapping of a process.
///
/// First `/proc/PID/map_files`, which leads to the mapped file whatever became of its name. That needs
/// CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN in the first user namespace (`proc_map_files_get_link` in fs/proc/base.c,
/// Linux 5.9), a mapping that has not changed since, and a process that still lives. Else the path, first under the
/// process's root directory, then under our own, accepted only if its inode number is that of the mapping. The device
/// number is not compared: btrfs and overlay file systems show another one in `/proc/PID/maps`.
///
/// The vDSO has no file: see [`super::vdso_file`]. Nothing is opened for reading before it is known to be a regular file, so
/// that a device or pipe put in its place does not notice.
///
/// A file that cannot be opened at all is read from the process's memory, as far as it is loaded: see
/// [`MappedFile::is_from_memory`].
pub fn open_mapped(pid: Pid, mapping: &Mapping) -> Result<MappedFile, OpenMappedError> {
    let refusal = match open_itself(pid, mapping) {
        Ok(opened) => return Ok(opened),
        Err(refusal) => refusal,
    };
    let (OpenMappedError::Deleted { path }
    | OpenMappedError::Replaced { path, .. }
    | OpenMappedError::Io { path, .. }) = &refusal
    else {
        return Err(refusal);
    };
    let path = path.clone();
    open_loaded(pid, mapping).map_err(|error| {
        if error.kind() == io::ErrorKind::WouldBlock {
            return OpenMappedError::NotYet { path, pid };
        }
        tracing::debug!("pid {pid}: not read from memory either: {error}");
        refusal
    })
}

/// Opens the file itself, not what a process has loaded of it.
fn open_itself(pid: Pid, mapping: &Mapping) -> Result<MappedFile, OpenMappedError> {
    let MappingKind::File { path, deleted } = &mapping.kind else {
        return Err(OpenMappedError::NotAFile {
            begin: mapping.begin.0,
        });
    };
    let failed = |source: Errno| OpenMappedError::Io {
        path: path.to_path_buf(),
        pid,
        source: source.into(),
    };

    let entry = map_files_entry(pid, mapping);
    if let Ok(found) = rustix::fs::open(entry, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        return open_regular(&found, path, pid);
    }
    // Only processes have `map_files`, but `/proc/TID` of any thread looks like one.
    let thread = running_thread(pid).map(Pid);
    if let Some(thread) = thread
        && let entry = map_files_entry(thread, mapping)
        && let Ok(found) = rustix::fs::open(entry, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        // It is still a thread of this process, not another one with its number.
        && fs::exists(format!("/proc/{pid}/task/{thread}")).unwrap_or(false)
    {
        return open_regular(&found, path, pid);
    }
    if *deleted {
        return Err(OpenMappedError::Deleted {
            path: path.to_path_buf(),
        });
    }
    let mut replaced = false;
    let mut refusal = Errno::NOENT;
    for root in [format!("{}/root", proc_folder(pid)), "/".to_owned()] {
        match find_in_root(&root, path) {
            Ok(found) if rustix::fs::fstat(&found).map_err(failed)?.st_ino == mapping.inode => {
                return open_regular(&found, path, pid);
            }
            Ok(_) => replaced = true,
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => refusal = error,
        }
    }
    Err(if replaced {
        OpenMappedError::Replaced {
            path: path.to_path_buf(),
            pid,
        }
    } else {
        failed(refusal)
    })
}

/// The file behind a mapping is there to be read, if only `/proc/PID/map_files` were open to us.
pub fn takes_map_files(pid: Pid, mapping: &Mapping) -> bool {
    let entry = map_files_entry(pid, mapping);
    matches!(
        rustix::fs::open(entry, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()),
        Err(Errno::PERM | Errno::ACCESS)
    )
}

fn map_files_entry(pid: Pid, mapping: &Mapping) -> String {
    let (begin, end) = match mapping.copy {
        CodeCopy::None => (mapping.begin, mapping.end),
        CodeCopy::Same(begin, end) | CodeCopy::Changed(begin, end) => (begin, end),
    };
    format!("/proc/{pid}/map_files/{begin:x}-{end:x}")
}

/// Looks a path up under a root directory without following any link out of it. The kernel's path of a mapping goes
/// through no links, so one in it means that it leads elsewhere now.
fn find_in_root(root: &str, path: &Path) -> Result<OwnedFd, Errno> {
    let root = rustix::fs::open(
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(
        &root,
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        how,
    )
}

/// From a handle that cannot read (`O_PATH`) to one that can, if it is of a regular file of bearable length.
fn open_regular(found: &impl AsFd, path: &Path, pid: Pid) -> Result<MappedFile, OpenMappedError> {
    let failed = |source: io::Error| OpenMappedError::Io {
        path: path.to_path_buf(),
        pid,
        source,
    };
    let kind = rustix::fs::fstat(found)
        .map_err(|error| failed(error.into()))?
        .st_mode;
    if !rustix::fs::FileType::from_raw_mode(kind).is_file() {
        return Err(OpenMappedError::NotRegular {
            path: path.to_path_buf(),
        });
    }
    let again = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(again, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let file = File::from(file);
    let identity = FileIdentity::of(&file).map_err(failed)?;
    if identity.size > FILE_BYTES_MAX {
        return Err(OpenMappedError::TooLarge {
            path: path.to_path_buf(),
            size: identity.size,
        });
    }
    Ok(MappedFile {
        file,
        identity,
        display_path: path.to_path_buf(),
        is_from_memory: false,
    })
}

/// The last part of a path as text, with bytes that are no text replaced.
pub fn file_name(path: &Path) -> String {
    let name = path
        .file_name()
        .map_or(path.as_os_str().as_bytes(), OsStrExt::as_bytes);
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
