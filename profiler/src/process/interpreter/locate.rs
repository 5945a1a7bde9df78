//! Where the CPython in a process has its global state: `_PyRuntime`, which everything else is reached from.
//!
//! Gets the mappings of a process and what [`inspect`](crate::process::inspect) said of it, gives addresses in it. Reads
//! files only, never memory.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    model::{Pid, Svma},
    process::{
        FileIdentity, Mapping, OpenMappedError, PythonInfo, Segments, SymbolTable,
        elf::{ElfFile, Stated},
        file_name, open_mapped,
        python::version_in_library_name,
    },
};

/// Interpreters looked for in one process: the program may have one built in, and a library that was linked with
/// libpython brings another, which then stays unused.
const RUNTIMES_MAX: usize = 4;

/// Bytes of symbols that are read of the files of a process together. A static `python` with all its symbols has some
/// 3 MiB.
const SYMBOL_BYTES_MAX: u64 = 64 << 20;

/// Files that are remembered: several hundred bytes each, and few files are interpreters.
const KNOWN_FILES_MAX: usize = 4096;
static KNOWN_FILES: LazyLock<Mutex<FxHashMap<FileIdentity, FileFacts>>> =
    LazyLock::new(Mutex::default);

/// An interpreter mapped in a process: addresses in that process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// `_PyRuntime`.
    pub runtime: u64,
    /// `PyCode_Type`; `None`: the file has no symbols.
    pub code_type: Option<u64>,
    /// `PY_VERSION_HEX` as the file states it, since 3.11.
    pub version_hex: Option<u32>,
    /// Major and minor version.
    pub version: (u8, u8),
    /// The file it is in.
    pub file: FileIdentity,
    /// That file's path as mapped.
    pub path: PathBuf,
    /// What is added to the addresses that the file states.
    pub bias: u64,
}

/// Why no interpreter was located where one should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLocated {
    /// No executable mapping is of the files that were said to be it: the process may have become another program.
    #[error("its interpreter is not mapped any more")]
    NotMapped,
    /// The file could not be opened.
    #[error("its interpreter cannot be read: {reason}")]
    File {
        /// What [`open_mapped`] said.
        reason: String,
    },
    /// It is for another machine.
    #[error("{} is no program for x86-64, the only machine whose interpreters are read", path.display())]
    OtherMachine {
        /// The file as mapped.
        path: PathBuf,
    },
    /// It is linked with a libpython, which is not there yet.
    #[error("{} has not loaded its libpython yet", path.display())]
    NotLoaded {
        /// The file as mapped.
        path: PathBuf,
    },
    /// It has no `_PyRuntime`: every build of 3.7 to 3.15 exports it, unless it was stripped with force.
    #[error(
        "{} does not say where its _PyRuntime is: it was built or stripped so that no symbol is left",
        path.display()
    )]
    NoRuntime {
        /// The file as mapped.
        path: PathBuf,
    },
}

/// Finds the interpreters in a process; at least one, at most four. All but one of them are unused: the word at
/// `interpreters.head` in their `_PyRuntime` is zero.
///
/// Costs some system calls, for a file that was not seen before a millisecond. Needs the right to read the process.
pub fn locate(
    pid: Pid,
    mappings: &[Mapping],
    python: &PythonInfo,
) -> Result<Vec<Runtime>, NotLocated> {
    let mut found = Vec::new();
    let mut refused = NotLocated::NotMapped;
    let mut budget = SYMBOL_BYTES_MAX;
    for (path, mapping) in interpreter_mappings(mappings, python) {
        match locate_in_file(pid, path, mapping, &mut budget) {
            Ok(facts) if found.len() < RUNTIMES_MAX => {
                found.extend(facts.runtime_at(path, mapping, python));
            }
            Ok(_) => break,
            // A stub that only calls libpython says nothing: what hinders is said of the library.
            Err(reason) if says_nothing(&refused) => refused = reason,
            Err(_) => {}
        }
    }
    if found.is_empty() {
        return Err(refused);
    }
    Ok(found)
}

const fn says_nothing(reason: &NotLocated) -> bool {
    matches!(reason, NotLocated::NotMapped | NotLocated::NotLoaded { .. })
}

/// The first executable mapping of each file that is the interpreter.
fn interpreter_mappings<'m>(
    mappings: &'m [Mapping],
    python: &PythonInfo,
) -> Vec<(&'m Path, &'m Mapping)> {
    let mut seen = FxHashSet::default();
    let named = mappings
        .iter()
        .filter(|mapping| mapping.executable)
        .filter_map(|mapping| Some((mapping.path()?, mapping)));
    named
        .filter(|(path, _)| {
            let path = path.to_string_lossy();
            python.interpreter_files.iter().any(|file| *file == path)
        })
        .filter(|(path, _)| seen.insert(*path))
        .take(2 * RUNTIMES_MAX)
        .collect()
}

fn locate_in_file(
    pid: Pid,
    path: &Path,
    mapping: &Mapping,
    budget: &mut u64,
) -> Result<Arc<InterpreterFile>, NotLocated> {
    let opened = open_mapped(pid, mapping).map_err(|error| unreadable(&error))?;
    let known = |facts: FileFacts| match facts {
        FileFacts::Interpreter(file) => Ok(file),
        FileFacts::OtherMachine => Err(NotLocated::OtherMachine { path: path.into() }),
        FileFacts::Stub if !file_name(path).starts_with("libpython") => {
            Err(NotLocated::NotLoaded { path: path.into() })
        }
        FileFacts::Stub | FileFacts::NoRuntime => Err(NotLocated::NoRuntime { path: path.into() }),
    };
    let files = || KNOWN_FILES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(facts) = files().get(&opened.identity) {
        return known(facts.clone());
    }
    let before = *budget;
    let facts = read_facts(&opened.file, opened.identity, budget);
    let mut files = files();
    // Where the budget is spent, it may not have been looked at.
    if (*budget > 0 || before == 0) && files.len() < KNOWN_FILES_MAX {
        files.insert(opened.identity, facts.clone());
    }
    known(facts)
}

fn unreadable(error: &OpenMappedError) -> NotLocated {
    NotLocated::File {
        reason: error.to_string(),
    }
}

/// What is remembered of a file.
#[derive(Clone, Debug)]
enum FileFacts {
    Interpreter(Arc<InterpreterFile>),
    OtherMachine,
    /// It has none, but is linked with a libpython, or is one.
    Stub,
    NoRuntime,
}

/// A file with an interpreter: addresses as the file states them.
#[derive(Debug)]
struct InterpreterFile {
    identity: FileIdentity,
    runtime: Stated,
    code_type: Option<Svma>,
    version_hex: Option<u32>,
    segments: Segments,
}

impl InterpreterFile {
    fn runtime_at(&self, path: &Path, mapping: &Mapping, python: &PythonInfo) -> Option<Runtime> {
        let bias = self.segments.bias(mapping.begin, mapping.file_offset)?;
        let stated_version = self.version_hex.map(|hex| {
            let [_, _, minor, major] = hex.to_le_bytes();
            (major, minor)
        });
        Some(Runtime {
            runtime: bias.wrapping_add(self.runtime.at.0),
            code_type: self.code_type.map(|at| bias.wrapping_add(at.0)),
            version_hex: self.version_hex,
            version: stated_version
                .or_else(|| version_in_library_name(&file_name(path)))
                .or(python.version)?,
            file: self.identity,
            path: path.into(),
            bias,
        })
    }
}

fn read_facts(file: &File, identity: FileIdentity, budget: &mut u64) -> FileFacts {
    let elf = match ElfFile::parse(file) {
        Ok(elf) if elf.is_x86_64() => elf,
        _ => return FileFacts::OtherMachine,
    };
    let wanted = ["_PyRuntime", "PyCode_Type", "Py_Version"];
    let mut found = [None; 3];
    for table in [SymbolTable::Dynamic, SymbolTable::Full] {
        let bytes = elf.symbol_bytes(table);
        if found[0].is_some() || bytes > *budget {
            continue;
        }
        *budget -= bytes;
        for (symbol, new) in found.iter_mut().zip(elf.sized_symbols(table, wanted)) {
            *symbol = symbol.or(new);
        }
    }
    let [runtime, code_type, version] = found;
    // Since 3.10 it has a section of its own, for those who look for it without symbols (Python/pylifecycle.c).
    let section = || elf.section_place(".PyRuntime");
    let Some(runtime) = runtime.or_else(section) else {
        let libraries = elf.section_bytes(".dynstr", SYMBOL_BYTES_MAX.min(*budget));
        let libraries = libraries.unwrap_or_default();
        let mut names = libraries.split(|&byte| byte == 0);
        return if names.any(|name| name.starts_with(b"libpython")) {
            FileFacts::Stub
        } else {
            FileFacts::NoRuntime
        };
    };
    // `const unsigned long Py_Version = PY_VERSION_HEX` (Python/getversion.c, CPython 3.11 to 3.15).
    let version = version.and_then(|symbol| elf.read_at(symbol.at, 4));
    let version = version.and_then(|bytes| Some(u32::from_le_bytes(*bytes.first_chunk()?)));
    FileFacts::Interpreter(Arc::new(InterpreterFile {
        identity,
        runtime,
        code_type: code_type.map(|symbol| symbol.at),
        version_hex: version.filter(|hex| matches!(hex >> 24, 3..=4)),
        segments: elf.segments().clone(),
    }))
}

#[cfg(test)]
#[path = "locate_tests.rs"]
mod tests;
