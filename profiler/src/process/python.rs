//! Which Python a process runs, and whether it was started so that its functions can be named.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
    sync::{LazyLock, Mutex, PoisonError},
};

use memchr::memmem;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::Pid;

use super::{
    PythonInfo, Target,
    command_line::{self, PerfSupport},
    elf::{ElfFile, SymbolTable},
    file::{FileIdentity, file_name, open_mapped},
    first_thread::proc_folder,
    mappings::{Mapping, parse_mappings},
    program_name::{is_loader, is_python_program},
};

/// Files looked into for an interpreter, when neither libpython nor the program itself is one.
const FILES_MAX: usize = 64;

/// Files whose names are looked at.
const DISTINCT_FILES_MAX: usize = 4096;

/// Texts of more bytes say nothing of a version.
const TEXT_BYTES_MAX: usize = 24;

/// Bytes of a file's constants that are searched for a version.
const CONSTANTS_BYTES_MAX: u64 = 32 << 20;

/// Bytes of symbols and constants that are read of all files of a process together, while its samples wait. A static
/// `python` with all its symbols has some 3 MiB.
const SEARCHED_BYTES_MAX: u64 = 64 << 20;

/// The same while other processes wait to be examined: enough for every `python` in use.
const LITTLE_BYTES_MAX: u64 = 8 << 20;

/// Bytes of the environment that are read; `execve` allows 6 MiB by default.
const ENVIRONMENT_BYTES_MAX: u64 = 8 << 20;

/// What is read of a process's mappings where only that is asked: some 20,000 of them. A process can have any number.
const MAPS_BYTES_MAX: u64 = 2 << 20;

/// Files of which it is remembered whether they hold an interpreter.
const KNOWN_FILES_MAX: usize = 16_384;
type KnownFiles = FxHashMap<FileIdentity, Option<(u8, u8)>>;
static KNOWN_FILES: LazyLock<Mutex<KnownFiles>> = LazyLock::new(Mutex::default);

/// How much of a process's files may be read in search of its interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// None that has not been examined before.
    Nothing,
    /// A few MiB.
    Little,
    /// All that may be read of one process.
    All,
}

/// Finds the interpreter in a process and how it was started.
///
/// Reads the names of what is mapped, else the symbols of the mapped files; costs some milliseconds at most. Needs the
/// right to read the process (see [`Target::check`]); what cannot be read counts as not there. Looks at the process as
/// it is now: a program that is just being started may not have loaded its libpython yet.
pub fn inspect(target: &Target, mappings: &[Mapping]) -> PythonInfo {
    inspect_within(target, mappings, Search::All).unwrap_or_else(PythonInfo::unknown)
}

/// [`inspect`] that reads no more than this. `None`: that was not enough to know.
pub fn inspect_within(target: &Target, mappings: &[Mapping], search: Search) -> Option<PythonInfo> {
    let found = find_interpreter(target.pid, target.exe.as_deref(), mappings, search);
    if found.is_incomplete && search != Search::All {
        return None;
    }
    let marker = format!("jit-{}.dump", target.ns_pid);
    let jitdump = mappings
        .iter()
        .any(|m| m.executable && m.path().is_some_and(|path| file_name(path) == marker));
    Some(PythonInfo {
        version: found.version,
        trampolines_asked: found.version.is_some() && asked_at_start(target) != PerfSupport::Off,
        jitdump,
        interpreter_files: found.files,
    })
}

/// The descriptor with which a process writes its perf map, `/proc/PID/fd/N`, whoever asked for the map:
/// `sys.activate_stack_trampoline` too, and also if the map's name was removed.
///
/// `perf_map_state.perf_map` in Python/sysmodule.c (CPython 3.12 to 3.15) stays open until the interpreter ends. Needs
/// the right to read the process; without it, `None`. One system call for each descriptor.
pub fn perf_map_handle(target: &Target) -> Option<PathBuf> {
    let name = format!("/perf-{}.map", target.ns_pid);
    let handles = fs::read_dir(format!("{}/fd", proc_folder(target.pid))).ok()?;
    let mut handles = handles.flatten().map(|handle| handle.path());
    handles.find(|handle| {
        let Ok(path) = fs::read_link(handle) else {
            return false;
        };
        let path = path.to_string_lossy();
        path.strip_suffix(" (deleted)")
            .unwrap_or(&path)
            .ends_with(&name)
    })
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Interpreter {
    version: Option<(u8, u8)>,
    files: Vec<String>,
    /// Not all files were looked into: they have too many symbols.
    is_incomplete: bool,
}

/// The process runs a Python: it has a libpython mapped, or a file with an interpreter in it, whatever that is called; or
/// its program is called `python` and may only just be about to load one.
///
/// The one answer to that question: who is selected, who is missed by `-s`, and what [`inspect`] finds agree. Costs some
/// system calls, and what [`inspect`] costs for files that no process had mapped before. Fails with `PermissionDenied`
/// without the right to read the process.
pub fn runs_python(pid: Pid) -> io::Result<bool> {
    runs_python_within(pid, Search::All).map(|belongs| belongs.unwrap_or(false))
}

/// [`runs_python`] that reads no more than this. `None`: that was not enough to know.
pub(super) fn runs_python_within(pid: Pid, search: Search) -> io::Result<Option<bool>> {
    let folder = proc_folder(pid);
    let program = fs::read_link(format!("{folder}/exe"))?;
    if is_python_program(file_name(&program).as_bytes()) {
        return Ok(Some(true));
    }
    let maps = File::open(format!("{folder}/maps"))?.take(MAPS_BYTES_MAX);
    let mappings = parse_mappings(BufReader::new(maps), |mapping| mapping.executable)?.mappings;
    // Of the same files the answer is the same: most processes of a machine have few others.
    let mut new = Vec::new();
    {
        let known = WITHOUT_PYTHON
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (path, mapping) in distinct_files(&mappings) {
            let is_known = known.contains(&MappedAs::of(path, mapping));
            if !is_known {
                new.push(mapping.clone());
            }
        }
    }
    if new.is_empty() {
        return Ok(Some(false));
    }
    let found = find_interpreter(pid, Some(&program), &new, search);
    if found.version.is_some() {
        return Ok(Some(true));
    }
    if found.is_incomplete {
        return Ok((search == Search::All).then_some(false));
    }
    let mut known = WITHOUT_PYTHON
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    // Past the limit, files were not looked into.
    for (path, mapping) in distinct_files(&new).into_iter().take(FILES_MAX) {
        if known.len() < KNOWN_FILES_MAX {
            known.insert(MappedAs::of(path, mapping));
        }
    }
    Ok(Some(false))
}

/// A file as `/proc/PID/maps` shows it. A file whose content changes under the same number, while it is mapped, is not
/// noticed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MappedAs {
    device: (u32, u32),
    inode: u64,
    path: Box<Path>,
}

impl MappedAs {
    fn of(path: &Path, mapping: &Mapping) -> Self {
        Self {
            device: mapping.device,
            inode: mapping.inode,
            path: path.into(),
        }
    }
}

/// Files that hold no interpreter, as far as [`runs_python`] has met them.
static WITHOUT_PYTHON: LazyLock<Mutex<FxHashSet<MappedAs>>> = LazyLock::new(Mutex::default);

fn find_interpreter(
    pid: Pid,
    program: Option<&Path>,
    mappings: &[Mapping],
    search: Search,
) -> Interpreter {
    let mut found = Interpreter::default();
    let files = distinct_files(mappings);
    let program = program.map(without_deleted_mark);
    let is_program = |path: &Path| Some(path) == program.as_deref();

    for (path, _) in &files {
        if let Some(version) = version_in_library_name(&file_name(path)) {
            found.version.get_or_insert(version);
            found.files.push(path.to_string_lossy().into_owned());
        }
    }
    let mut budget = Budget::new(match search {
        Search::Nothing => 0,
        Search::Little => LITTLE_BYTES_MAX,
        Search::All => SEARCHED_BYTES_MAX,
    });
    if found.version.is_some() {
        // With a libpython, `python` is a stub that calls it: plumbing as well. A program that has an interpreter built in
        // may have loaded a library that brings the libpython, which then stays unused.
        let programs = files.iter().filter(|(path, _)| is_program(path));
        for (path, mapping) in programs {
            let file = path.to_string_lossy().into_owned();
            let built_in = version_in_content(pid, mapping, path, &mut budget);
            if built_in.is_some() {
                found.version = built_in;
                found.files.insert(0, file);
            } else if is_python_program(file_name(path).as_bytes()) {
                found.files.push(file);
            }
        }
        found.is_incomplete = budget.is_exceeded;
        return found;
    }
    // The program first: all others come into question only for interpreters built into something larger.
    let (first, others): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|(path, _)| is_program(path));
    for (path, mapping) in first.into_iter().chain(others).take(FILES_MAX) {
        if let Some(version) = version_of_file(pid, mapping, path, &mut budget) {
            found.version = Some(version);
            found.files.push(path.to_string_lossy().into_owned());
            return found;
        }
    }
    found.is_incomplete = budget.is_exceeded;
    found
}

/// Executable mappings of files, the first of each.
fn distinct_files(mappings: &[Mapping]) -> Vec<(&Path, &Mapping)> {
    let mut seen = FxHashSet::default();
    mappings
        .iter()
        .filter(|mapping| mapping.executable)
        .filter_map(|mapping| Some((mapping.path()?, mapping)))
        .filter(|(path, _)| seen.insert(path.as_os_str()))
        .take(DISTINCT_FILES_MAX)
        .collect()
}

/// Bytes that may still be read.
struct Budget {
    left: u64,
    /// Something was not read.
    is_exceeded: bool,
}

impl Budget {
    const fn new(bytes: u64) -> Self {
        Self {
            left: bytes,
            is_exceeded: false,
        }
    }

    /// False: so much is not left, and none of it is taken.
    fn take(&mut self, bytes: u64) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(self.left);
        self.is_exceeded |= left.is_none();
        left.is_some()
    }
}

fn version_of_file(
    pid: Pid,
    mapping: &Mapping,
    path: &Path,
    budget: &mut Budget,
) -> Option<(u8, u8)> {
    let was_exceeded = budget.is_exceeded;
    let version = version_in_content(pid, mapping, path, budget)
        .or_else(|| version_in_program_name(&file_name(path)));
    if version.is_some() {
        budget.is_exceeded = was_exceeded;
    }
    version
}

/// The version of the interpreter in a file; `None` also where the file cannot be read.
fn version_in_content(
    pid: Pid,
    mapping: &Mapping,
    path: &Path,
    budget: &mut Budget,
) -> Option<(u8, u8)> {
    let opened = open_mapped(pid, mapping).ok()?;
    // The same files are mapped by process after process, and nothing in them changes.
    let mut known = KNOWN_FILES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&version) = known.get(&opened.identity) {
        return version;
    }
    let named_python = is_python_program(file_name(path).as_bytes());
    let was_exceeded = std::mem::replace(&mut budget.is_exceeded, false);
    let version = version_in_file(&opened.file, named_python, budget);
    if !budget.is_exceeded && known.len() < KNOWN_FILES_MAX {
        known.insert(opened.identity, version);
    }
    if version.is_some() {
        budget.is_exceeded = false;
    }
    budget.is_exceeded |= was_exceeded;
    version
}

/// The CPython that a program is or is linked with, from its file; `None` if that cannot be told. Reads some MiB at
/// most.
pub(super) fn version_of_program(file: &File, name: &str) -> Option<(u8, u8)> {
    let strings = ElfFile::parse(file)
        .ok()?
        .section_bytes(".dynstr", CONSTANTS_BYTES_MAX)
        .unwrap_or_default();
    let library = strings
        .split(|&byte| byte == 0)
        .find_map(|text| version_in_library_name(std::str::from_utf8(text).ok()?));
    let mut budget = Budget::new(SEARCHED_BYTES_MAX);
    library.or_else(|| version_in_file(file, is_python_program(name.as_bytes()), &mut budget))
}

/// The version that the content of an ELF file speaks of; `None` if it is no CPython. `named_python`: its name says so.
fn version_in_file(file: &File, named_python: bool, budget: &mut Budget) -> Option<(u8, u8)> {
    let elf = ElfFile::parse(file).ok()?;
    let mut is_python = named_python;
    for table in [SymbolTable::Dynamic, SymbolTable::Full] {
        if !budget.take(elf.symbol_bytes(table)) {
            continue;
        }
        let [version, get_version, run] =
            elf.symbols(table, ["Py_Version", "Py_GetVersion", "PyEval_EvalCode"]);
        // `const unsigned long Py_Version = PY_VERSION_HEX` (Python/getversion.c, CPython 3.11 to 3.15).
        if let Some(bytes) = version.and_then(|at| elf.read_at(at, 4))
            && let [.., minor, major] = bytes[..]
            && is_plausible((major, minor))
        {
            return Some((major, minor));
        }
        is_python |= get_version.is_some() && run.is_some();
    }
    // Of a stripped one that exports nothing, since 3.10 (Python/pylifecycle.c).
    is_python |= elf.section_place(".PyRuntime").is_some();
    if !is_python {
        return None;
    }
    let bytes = elf.section_place(".rodata")?.bytes;
    if bytes > CONSTANTS_BYTES_MAX || !budget.take(bytes) {
        return None;
    }
    version_in_constants(&elf.section_bytes(".rodata", bytes)?)
}

/// Before 3.11: the name of the library directory (Modules/getpath.c). Since: no symbols are left, so that only the
/// full version (`3.12.1`, Python/getversion.c) speaks; it counts if there is no other text like it.
fn version_in_constants(constants: &[u8]) -> Option<(u8, u8)> {
    // What ends at the next zero byte, if it begins behind one.
    let text_at = |begin: usize| {
        let is_begin = begin == 0 || constants[begin - 1] == 0;
        let rest = constants.get(begin..begin + TEXT_BYTES_MAX + 1);
        let rest = rest.unwrap_or(&constants[begin..]);
        let text = rest.split(|&byte| byte == 0).next()?;
        let is_short = (4..=TEXT_BYTES_MAX).contains(&text.len());
        (is_begin && is_short).then(|| std::str::from_utf8(text).ok())?
    };
    let directory = |at: usize| {
        let begin = if constants[..at].ends_with(b"lib/") {
            at - 4
        } else {
            at
        };
        let text = text_at(begin)?;
        let version = text
            .strip_prefix("lib/")
            .unwrap_or(text)
            .strip_prefix("python")?;
        parse_version(version)
            .filter(|(_, rest)| rest.is_empty())
            .map(|(version, _)| version)
    };
    // Most of what is searched holds nothing of this kind: it is passed over at once.
    if let Some(version) = memmem::find_iter(constants, "python").find_map(directory) {
        return Some(version);
    }
    let behind_zero = ["\x002.", "\x003.", "\x004."]
        .into_iter()
        .flat_map(|text| memmem::find_iter(constants, text).map(|at| at + 1));
    let mut full = std::iter::once(0).chain(behind_zero).filter_map(|at| {
        let (version, rest) = parse_version(text_at(at)?)?;
        let patch = rest.strip_prefix('.')?;
        (patch.starts_with(|c: char| c.is_ascii_digit()) && (11..=30).contains(&version.1))
            .then_some(version)
    });
    let first = full.next()?;
    full.all(|other| other == first).then_some(first)
}

/// `libpython3.12.so.1.0`, `libpython3.13t.so`, `libpython2.7.so.1.0`; not the stable `libpython3.so`.
/// A file of this name is a libpython with an interpreter.
pub(super) fn is_library_name(name: &str) -> bool {
    version_in_library_name(name).is_some()
}

/// The version that the name of a libpython states.
pub(super) fn version_in_library_name(name: &str) -> Option<(u8, u8)> {
    let (version, rest) = parse_version(name.strip_prefix("libpython")?)?;
    let rest = rest.trim_start_matches(['d', 'm', 't', 'u']);
    (rest == ".so" || rest.starts_with(".so.") || rest.starts_with('-')).then_some(version)
}

/// `python3.12`, `python3.13t`, `python3.11-dbg`.
fn version_in_program_name(name: &str) -> Option<(u8, u8)> {
    let (version, rest) = parse_version(name.strip_prefix("python")?)?;
    (!rest.starts_with('.')).then_some(version)
}

/// `3.12` at the beginning, and the rest.
fn parse_version(text: &str) -> Option<((u8, u8), &str)> {
    let (major, rest) = text.split_once('.')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let version = (major.parse().ok()?, rest[..digits].parse().ok()?);
    is_plausible(version).then_some((version, &rest[digits..]))
}

fn is_plausible((major, minor): (u8, u8)) -> bool {
    matches!(major, 2..=4) && minor <= 99
}

fn without_deleted_mark(path: &Path) -> PathBuf {
    let text = path.as_os_str().as_encoded_bytes();
    match text.strip_suffix(b" (deleted)").map(std::str::from_utf8) {
        Some(Ok(path)) => PathBuf::from(path),
        _ => path.to_path_buf(),
    }
}

/// What the process was started with. An embedding program has a command line of its own, but heeds the variables.
fn asked_at_start(target: &Target) -> PerfSupport {
    let named = |test: fn(&[u8]) -> bool| {
        let program = target.exe.as_deref();
        program.is_some_and(|program| test(file_name(program).as_bytes()))
    };
    let arguments = command_line::without_loader(&target.arguments);
    let starts_python = || {
        let program = arguments.first().map(|program| file_name(program.as_ref()));
        program.is_some_and(|program| is_python_program(program.as_bytes()))
    };
    let options = if named(is_python_program) || named(is_loader) && starts_python() {
        command_line::options(arguments)
    } else {
        command_line::Options::default()
    };
    if options.perf != PerfSupport::Off || options.ignores_environment {
        return options.perf;
    }
    let mut environment = Vec::new();
    let read = File::open(format!("{}/environ", proc_folder(target.pid))).and_then(|file| {
        file.take(ENVIRONMENT_BYTES_MAX)
            .read_to_end(&mut environment)
    });
    if read.is_ok() {
        command_line::from_environment(&environment)
    } else {
        PerfSupport::Off
    }
}

#[cfg(test)]
#[path = "python_tests.rs"]
pub(super) mod tests;
