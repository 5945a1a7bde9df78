//! Facts about targets: what they are, what is mapped in them, what Python they run.

mod bytes;
mod cgroup;
mod children;
mod clock;
mod command_line;
mod container;
mod copied_code;
mod elf;
mod elf_extract;
mod elf_memory;
mod elf_segments;
#[cfg(test)]
pub(crate) mod elf_testing;
mod file;
mod file_limits;
mod first_thread;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod halt;
pub mod interpreter;
mod label;
pub mod launch;
mod loaded_files;
mod mappings;
mod namesakes;
mod pace;
mod process_map;
mod program_event;
mod program_name;
mod python;
mod select;
mod status;
mod target;
mod tree;
mod vdso;

pub(crate) use bytes::{u16_at, u32_at, u64_at};
use std::path::Path;

pub use children::Children;
pub use clock::{file_time_at, now_monotonic, now_since_boot};
pub use container::{Container, ContainerIdError, NamedGroup};
pub use elf::{ElfFile, Segments, Stated, SymbolTable};
pub use elf_extract::{COPY_BYTES_MAX, CopyOf, ElfCopy};
pub use file::{
    FILE_BYTES_MAX, FileIdentity, MappedFile, OpenMappedError, file_name, open_mapped,
    takes_map_files,
};
pub use file_limits::{FileLimit, FileLimits};
pub use first_thread::{proc_folder, running_thread};
pub use halt::{Halt, halt_of};
pub use mappings::{
    CodeCopy, MAPPINGS_MAX, Mapping, MappingKey, MappingKind, PATH_BYTES_MAX, ParsedMappings,
    parse_mappings, read_executable_mappings,
};
pub use namesakes::{has_open, namesakes};
pub use pace::{Pace, thread_time};
pub use process_map::ProcessMap;
pub use program_event::{ForkedChild, ProgramChange, ProgramEvent};
pub use python::{Search, inspect, inspect_within, perf_map_handle, runs_python};
pub use select::{Cgroup, PARTS, SelectError, Selector};
pub use status::cpu_time_of;
pub use target::{Target, TargetError, has_exited, perf_map_directory, stack_of};
pub use tree::descendants_of;
#[cfg(test)]
use vdso::damaged_vdso;
pub use vdso::{vdso_file, vdso_image};

/// What Python, if any, a process runs, and whether its trampolines are on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonInfo {
    /// Version of the interpreter mapped in the process (`3.12`); `None`: no CPython was found in it.
    pub version: Option<(u8, u8)>,
    /// ELF files that are the interpreter itself (libpython, or the `python` program), by path as mapped.
    pub interpreter_files: Vec<String>,
    /// `-X perf` or `PYTHONPERFSUPPORT`: trampolines were asked for at start. CPython before 3.12 does not listen.
    pub trampolines_asked: bool,
    /// The jitdump marker mapping of `-X perf_jit` is there.
    pub jitdump: bool,
}

impl PythonInfo {
    /// Of a process that was not looked at yet, or runs no Python.
    pub const fn unknown() -> Self {
        Self {
            version: None,
            interpreter_files: Vec::new(),
            trampolines_asked: false,
            jitdump: false,
        }
    }

    /// The interpreter is in a libpython, not in the program itself.
    pub fn has_library(&self) -> bool {
        let mut files = self.interpreter_files.iter();
        files.any(|file| python::is_library_name(&file_name(Path::new(file))))
    }
}
