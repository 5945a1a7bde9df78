//! Opens the very file that is mapped in a process, not one that happens to have its path now.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::FileExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{MemfdFlags, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::model::Pid;

use super::mappings::{Mapping, MappingKind, parse_mappings};

/// Larger files are not read. The largest libraries in use (CUDA back ends) are below 2 GiB.
pub const FILE_BYTES_MAX: u64 = 4 << 30;

/// The vDSO has two to four pages (arch/x86/entry/vdso, Linux 6.12).
const VDSO_BYTES_MAX: u64 = 1 << 20;

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
        "{path} is deleted; reading it from the running process needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN"
    )]
    Deleted {
        /// Its path as mapped.
        path: PathBuf,
    },
    /// Another file is at its path now, and `/proc/PID/map_files` may not be used.
    #[error("{path} is another file now than the one mapped in pid {pid}")]
    Replaced {
        /// Its path as mapped.
        path: PathBuf,
        /// The process.
        pid: Pid,
    },
    /// It is a device, a pipe or the like.
    #[error("{path} is not a regular file")]
    NotRegular {
        /// Its path as mapped.
        path: PathBuf,
    },
    /// It is larger than [`FILE_BYTES_MAX`].
    #[error("{path} has {size} bytes, more than is read of one file")]
    TooLarge {
        /// Its path as mapped.
        path: PathBuf,
        /// Its length in bytes.
        size: u64,
    },
    /// Any other refusal of the operating system.
    #[error("cannot open {path} of pid {pid}: {source}")]
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
/// The vDSO has no file: see [`vdso_file`]. Nothing is opened for reading before it is known to be a regular file, so
/// that a device or pipe put in its place does not notice.
pub fn open_mapped(pid: Pid, mapping: &Mapping) -> Result<MappedFile, OpenMappedError> {
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

    let entry = format!(
        "/proc/{pid}/map_files/{:x}-{:x}",
        mapping.begin, mapping.end
    );
    if let Ok(found) = rustix::fs::open(entry, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        return open_regular(&found, path, pid);
    }
    if *deleted {
        return Err(OpenMappedError::Deleted {
            path: path.to_path_buf(),
        });
    }
    let mut replaced = false;
    let mut refusal = Errno::NOENT;
    for root in [format!("/proc/{pid}/root"), "/".to_owned()] {
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
    })
}

/// The bytes of the vDSO, an ELF file that the kernel maps into every process.
///
/// Read from our own memory: all 64-bit processes have the same one (`map_vdso` in arch/x86/entry/vdso/vma.c, Linux
/// 6.12). Fails with `NotFound` when we run without one (`vdso=0`).
pub fn vdso_image() -> io::Result<Vec<u8>> {
    let maps = fs::read("/proc/self/maps")?;
    let mappings = parse_mappings(&maps[..], |mapping| mapping.kind == MappingKind::Vdso)?.mappings;
    let vdso = mappings
        .first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "this process has no vDSO"))?;
    let length = vdso.end.0 - vdso.begin.0;
    if length > VDSO_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the vDSO is implausibly large",
        ));
    }
    let mut image = vec![0; length as usize];
    File::open("/proc/self/mem")?.read_exact_at(&mut image, vdso.begin.0)?;
    Ok(image)
}

/// The vDSO as a file (in memory), for what only reads files.
pub fn vdso_file() -> io::Result<MappedFile> {
    let image = vdso_image()?;
    let mut file = File::from(rustix::fs::memfd_create("vdso", MemfdFlags::CLOEXEC)?);
    file.write_all(&image)?;
    let identity = FileIdentity::of(&file)?;
    Ok(MappedFile {
        file,
        identity,
        display_path: PathBuf::from("[vdso]"),
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
mod tests {
    use std::{
        os::unix::fs::symlink,
        process::{Child, Command},
    };

    use super::*;
    use crate::process::read_executable_mappings;

    /// A running program, stopped when it goes out of scope.
    struct Running(Child);

    impl Running {
        fn start(program: &Path) -> Self {
            Self(
                Command::new(program)
                    .arg("60")
                    .spawn()
                    .expect("program starts"),
            )
        }

        fn pid(&self) -> Pid {
            Pid(self.0.id())
        }

        /// Its mapping of a file of this name; it may not have executed the program yet.
        fn mapping(&self, name: &str) -> Mapping {
            for _ in 0..500 {
                let mappings = read_executable_mappings(self.pid()).expect("maps").mappings;
                if let Some(found) = mappings
                    .into_iter()
                    .find(|m| m.path().is_some_and(|p| file_name(p) == name))
                {
                    return found;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            panic!("{name} never appeared")
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn copied_sleep(name: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join(name);
        fs::copy("/bin/sleep", &path).expect("sleep is there");
        (dir, path)
    }

    #[test]
    fn opens_the_file_that_runs() {
        let (_dir, path) = copied_sleep("as-mapped");
        let running = Running::start(&path);
        let opened = open_mapped(running.pid(), &running.mapping("as-mapped")).expect("opens");
        assert_eq!(
            opened.identity,
            FileIdentity::of(&File::open(&path).expect("open")).expect("stat")
        );
        assert_eq!(opened.display_path, path);
    }

    #[test]
    fn opens_a_deleted_file_through_the_process_that_runs_it() {
        let (_dir, path) = copied_sleep("deleted-later");
        let running = Running::start(&path);
        running.mapping("deleted-later");
        let content = fs::read(&path).expect("read");
        fs::remove_file(&path).expect("remove");
        let mapping = running.mapping("deleted-later");
        match open_mapped(running.pid(), &mapping) {
            Ok(opened) => {
                let mut read = vec![0; content.len()];
                opened.file.read_exact_at(&mut read, 0).expect("read");
                assert!(read == content);
            }
            Err(error) => assert!(matches!(error, OpenMappedError::Deleted { .. }), "{error}"),
        }
    }

    #[test]
    fn refuses_another_file_that_took_the_path() {
        let (_dir, path) = copied_sleep("replaced");
        let running = Running::start(&path);
        // Bounds that no mapping has: map_files cannot be used.
        let mut mapping = running.mapping("replaced");
        mapping.end.0 += 0x1000;
        assert!(open_mapped(running.pid(), &mapping).is_ok());
        mapping.inode += 1;
        let error = open_mapped(running.pid(), &mapping).expect_err("another inode");
        assert!(matches!(error, OpenMappedError::Replaced { .. }), "{error}");
    }

    #[test]
    fn refuses_links_and_things_that_are_no_files() {
        let (dir, path) = copied_sleep("real");
        let running = Running::start(&path);
        let mut mapping = running.mapping("real");
        mapping.end.0 += 0x1000;
        let link = dir.path().join("link");
        symlink(&path, &link).expect("link");
        mapping.kind = MappingKind::File {
            path: link.into(),
            deleted: false,
        };
        assert!(matches!(
            open_mapped(running.pid(), &mapping),
            Err(OpenMappedError::Io { .. })
        ));

        mapping.inode = fs::metadata("/dev/null").expect("null device").ino();
        mapping.kind = MappingKind::File {
            path: Path::new("/dev/null").into(),
            deleted: false,
        };
        assert!(matches!(
            open_mapped(running.pid(), &mapping),
            Err(OpenMappedError::NotRegular { .. })
        ));

        mapping.kind = MappingKind::Anonymous;
        assert!(matches!(
            open_mapped(running.pid(), &mapping),
            Err(OpenMappedError::NotAFile { .. })
        ));
    }

    #[test]
    fn the_vdso_is_an_elf_file() {
        let vdso = vdso_file().expect("a vDSO");
        let mut magic = [0; 4];
        vdso.file.read_exact_at(&mut magic, 0).expect("read");
        assert_eq!(&magic, b"\x7fELF");
    }
}
