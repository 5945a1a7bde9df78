//! Frames with names. A frame keeps name, file and line as fields, never as one text: each output joins them its way.

use std::fmt;

/// What kind of code a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrameKind {
    /// A Python function.
    Python,
    /// Compiled code of a library or program: an extension module, and the libraries that it uses.
    Native,
    /// The C library, the dynamic loader and the vDSO: used by all other compiled code.
    CLibrary,
    /// The interpreter's own compiled code (libpython, or a static `python`).
    Interpreter,
    /// The kernel.
    Kernel,
    /// Code of a JIT compiler that is not CPython's trampolines (node, numba, …), named by a perf map or not at all.
    Jit,
}

/// Why a frame has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResolveMiss {
    /// Its file has no symbol there: shown as `module+0xoffset`.
    NoSymbol,
    /// Its file could not be read.
    FileUnreadable,
    /// Its file has more symbols than are read, or they could not be parsed with the time and memory that one file has.
    SymbolsTooCostly,
    /// The recording had ended, and there was no more time.
    NotInTime,
    /// The process in which symbols are parsed could not be started.
    NoSymbolProcess,
    /// A Python function whose code was freed before it was read.
    FreedCode,
    /// A Python function whose code could not be read in time: too much of it was new at once.
    UnreadCode,
    /// A Python function whose code was not read before its process had ended.
    EndedCode,
    /// Anonymous executable memory, and no line in the perf map covers it: a trampoline, where there are any.
    NotInPerfMap,
    /// The same in a process whose Python functions are known otherwise: code of another compiler.
    ForeignJit,
    /// Lines of different names in the perf map cover it, and two processes write that map.
    Contested,
    /// No mapping of the process covers it.
    NoMapping,
    /// The kernel's symbols cannot be read (`kernel.kptr_restrict`).
    KernelSymbols,
    /// Names, or functions, are more than are kept, and this process's share of them is used up.
    TooManyNames,
}

/// One function on a stack, as it will be shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// What kind of code it is.
    pub kind: FrameKind,
    /// The function: a Python qualified name, a demangled symbol, or `module+0xoffset`. Raw: may hold any character.
    pub name: Box<str>,
    /// Source file, where known.
    pub file: Option<Box<str>>,
    /// The line in that file that was executing, where known.
    pub line: Option<u32>,
    /// The line that the function begins in, where known: of Python functions.
    pub first_line: Option<u32>,
    /// The ELF file's name (`libc.so.6`), for compiled code.
    pub module: Option<Box<str>>,
    /// Why the name is not a name.
    pub miss: Option<ResolveMiss>,
}

/// A place in code: one frame, or several where the compiler inlined calls.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Location {
    /// Innermost (inlined callee) first, like stacks. Never empty once resolved.
    pub frames: Vec<Frame>,
}

/// Index of a [`Location`] in a [`LocationTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocationId(pub u32);

/// All locations of a recording. An id, once given, keeps its meaning.
#[derive(Clone, Debug, Default)]
pub struct LocationTable {
    /// Indexed by [`LocationId`].
    pub locations: Vec<Location>,
}

impl LocationTable {
    /// The frames of a location, innermost first; empty for an id that is not in the table.
    pub fn frames(&self, id: LocationId) -> &[Frame] {
        self.locations
            .get(id.0 as usize)
            .map_or(&[], |location| &location.frames)
    }
}

impl fmt::Display for ResolveMiss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSymbol => "no symbol",
            Self::FileUnreadable => "file unreadable",
            Self::SymbolsTooCostly => "symbols too costly to read",
            Self::NotInTime => "not found in time",
            Self::NoSymbolProcess => "no process to read symbols in",
            Self::FreedCode => "freed before it was read",
            Self::UnreadCode => "not read in time",
            Self::EndedCode => "not read before its process ended",
            Self::NotInPerfMap => "not in the perf map",
            Self::ForeignJit => "code of another compiler, not in the perf map",
            Self::Contested => "named twice in a perf map that two processes write",
            Self::NoMapping => "not in any mapping",
            Self::KernelSymbols => "kernel symbols not readable",
            Self::TooManyNames => "more names than are kept",
        })
    }
}
