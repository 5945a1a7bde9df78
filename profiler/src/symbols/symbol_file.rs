//! Where the symbols of a module are, and how much of them there is: enough to decide what is sent to be parsed.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};

use crate::{
    model::{FileOffset, Svma},
    process::{CopyOf, ElfFile, Segments},
};

use super::Module;

/// Where distributions put debug information that was split off their files, by build id.
const DEBUG_DIRECTORY: &str = "/usr/lib/debug/.build-id";

/// What is known of a module's symbols. The files are opened again when they are sent: few are, and more than once is
/// rare.
#[derive(Debug)]
pub(super) struct SymbolFile {
    segments: Segments,
    /// Bytes of symbols that are sent.
    pub(super) symbol_bytes: u64,
    /// Bytes of debug information, decompressed; 0: names only.
    pub(super) debug_bytes: u64,
}

impl SymbolFile {
    /// Looks at the headers of a module, and of the file in `/usr/lib/debug` that has the same build id if the module is
    /// stripped. Debug information is taken if it has at most `debug_bytes_max` bytes.
    ///
    /// Fails if the module is no ELF file, or has more symbols than are sent.
    pub(super) fn of(module: &Module, debug_bytes_max: u64) -> io::Result<Self> {
        let elf = ElfFile::parse(&module.file)?;
        let separate = separate_file(&elf);
        let separate = separate.as_ref().and_then(|file| ElfFile::parse(file).ok());
        let mut symbol_bytes = elf.copy_of(CopyOf::Symbols)?.bytes();
        if let Some(separate) = &separate {
            symbol_bytes += separate.copy_of(CopyOf::Symbols)?.bytes();
        }
        let debug = separate.as_ref().unwrap_or(&elf);
        let debug_bytes = Some(debug.debug_info_bytes())
            .filter(|&bytes| bytes <= debug_bytes_max && debug.copy_of(CopyOf::DebugInfo).is_ok());
        Ok(Self {
            segments: elf.segments().clone(),
            symbol_bytes,
            debug_bytes: debug_bytes.unwrap_or(0),
        })
    }

    /// The stated address of an offset in the module's file.
    pub(super) fn svma_of(&self, at: FileOffset) -> Option<Svma> {
        self.segments.svma_of(at)
    }
}

/// The file with the symbols of one that is stripped, by its build id, which must be the same in both. Only in the
/// system's directory: a build id is a number, and no part of the path comes from the file as text.
pub(super) fn separate_file(elf: &ElfFile<'_>) -> Option<File> {
    if elf.has_full_symbols() {
        return None;
    }
    let id = elf.build_id()?;
    let hex: String = id
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect();
    let (directory, file) = hex.split_at(2);
    let path = PathBuf::from(format!("{DEBUG_DIRECTORY}/{directory}/{file}.debug"));
    let file = open_regular(&path).ok()?;
    let is_of_module =
        ElfFile::parse(&file).is_ok_and(|found| found.build_id().as_ref() == Some(&id));
    is_of_module.then_some(file)
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
