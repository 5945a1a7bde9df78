//! The symbols of a module, copied to where the module's owner cannot change them.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::{
        fd::AsRawFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{MemfdFlags, Mode, OFlags};

use crate::{
    model::{FileOffset, Svma},
    process::{ElfFile, Segments},
};

use super::Module;

/// Where distributions put debug information that was split off their files.
const DEBUG_DIRECTORY: &str = "/usr/lib/debug";

/// A small ELF file in memory with a module's symbol tables, and its debug information if there was room for it.
#[derive(Debug)]
pub(super) struct SymbolFile {
    copy: File,
    segments: Segments,
    /// Bytes of the copy. They are memory of the system; of the process only where they are looked at.
    pub(super) bytes: u64,
    /// Bytes of debug information in it, decompressed; 0: names only.
    pub(super) debug_bytes: u64,
}

impl SymbolFile {
    /// Copies what names addresses in a module. Symbols of a stripped file come from the file in `/usr/lib/debug` that
    /// has the same build id. Debug information is taken if it has at most `debug_bytes_max` bytes.
    ///
    /// Fails if the module is no ELF file, or is larger than is copied.
    pub(super) fn of(module: &Module, debug_bytes_max: u64) -> io::Result<Self> {
        let elf = ElfFile::parse(&module.file)?;
        let separate = if elf.has_full_symbols() {
            None
        } else {
            separate_file(&elf, &module.path)
        };
        let separate = separate.as_ref().and_then(|file| ElfFile::parse(file).ok());
        let source = separate.as_ref().unwrap_or(&elf);

        let debug_bytes = Some(source.debug_info_bytes())
            .filter(|&bytes| bytes <= debug_bytes_max)
            .unwrap_or(0);
        let copy = File::from(rustix::fs::memfd_create("symbols", MemfdFlags::CLOEXEC)?);
        let bytes = source.extract_symbols(debug_bytes > 0, &copy)?;
        // Its owner may have changed the file meanwhile, and what was counted is what the parser will have room for.
        if ElfFile::parse(&copy)?.debug_info_bytes() > debug_bytes {
            return Err(io::Error::other("the file has changed while it was read"));
        }
        Ok(Self {
            copy,
            segments: elf.segments().clone(),
            bytes,
            debug_bytes,
        })
    }

    /// A path that leads to it for as long as it is kept.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.copy.as_raw_fd()))
    }

    /// The stated address of an offset in the module's file.
    pub(super) fn svma_of(&self, at: FileOffset) -> Option<Svma> {
        self.segments.svma_of(at)
    }
}

/// Finds separate debug information by build id, then by the name that the file gives. Only in the system's directory:
/// a name that the file chooses must not lead anywhere else. The build id must be the same.
fn separate_file(elf: &ElfFile<'_>, path: &Path) -> Option<File> {
    let id = elf.build_id()?;
    let hex: String = id
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|d| char::from_digit(d.into(), 16))
        .collect();
    let (directory, file) = hex.split_at(2);
    let by_id = PathBuf::from(format!(
        "{DEBUG_DIRECTORY}/.build-id/{directory}/{file}.debug"
    ));
    let candidates = [Some(by_id), by_link(elf, path)];
    candidates
        .into_iter()
        .flatten()
        .filter_map(|candidate| open_regular(&candidate).ok())
        .find(|file| ElfFile::parse(file).is_ok_and(|found| found.build_id().as_ref() == Some(&id)))
}

/// `.gnu_debuglink`: a file name, zero, and a checksum that the build id makes unnecessary.
fn by_link(elf: &ElfFile<'_>, path: &Path) -> Option<PathBuf> {
    let link = elf.section_bytes(".gnu_debuglink", 4096)?;
    let name = link.split(|&byte| byte == 0).next()?;
    if name.is_empty() || name.contains(&b'/') || name == b".." {
        return None;
    }
    let directory = path.parent()?.as_os_str().as_bytes();
    if directory
        .split(|&byte| byte == b'/')
        .any(|part| part == b"..")
    {
        return None;
    }
    let below = OsStr::from_bytes(DEBUG_DIRECTORY.as_bytes())
        .to_owned()
        .into_vec();
    let directory = std::ffi::OsString::from_vec([below.as_slice(), directory].concat());
    Some(PathBuf::from(directory).join(OsStr::from_bytes(name)))
}

fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::from(io::ErrorKind::InvalidInput))
    }
}
