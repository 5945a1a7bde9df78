//! Stage 3: from addresses to names.
//!
//! * **Job:** gives every address of a stack a location, and every location its frames.
//! * **Gets** [`UnwoundStack`](crate::model::UnwoundStack)s, mappings, and perf maps as they grow.
//! * **Gives** [`ResolvedStack`](crate::model::ResolvedStack)s, and at the end their
//!   [`LocationTable`](crate::model::LocationTable).
//! * **Must not know** how a stack was found, nor how it is counted and shown.

mod allowance;
mod budgets;
mod contest;
mod counts;
mod cross_check;
mod diagnosis;
mod elf_names;
mod kernel;
mod locations;
mod module;
mod native;
mod native_thread;
pub mod perf_map;
mod process;
mod python_codes;
pub mod python_name;
mod recent;
mod resolver;
mod shared_memory;
mod symbol_file;
pub mod worker;

pub use cross_check::CrossCheck;
pub use diagnosis::{MapState, NameFacts, diagnose};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use elf_names::ElfNames;
pub use kernel::KernelSymbols;
pub use module::{Module, ModuleKind};
pub use native_thread::{NativeOptions, NativeSymbolizer, Place, Request};
pub use resolver::{ProgramFacts, Resolver};
pub use worker::SymbolProcess;

/// Why Python functions have, or do not have, names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameDiagnosis {
    /// Names are there.
    Named,
    /// The process is not a CPython.
    NotPython,
    /// CPython before 3.9 cannot have trampolines.
    TooOld {
        /// Its version.
        version: (u8, u8),
    },
    /// CPython started without trampolines: its own, or before 3.12 those of `profiler-trampoline`.
    NotActivated,
    /// Trampolines were switched on while functions were already running: those cannot be shown.
    ActivatedLate,
    /// `-X perf_jit` writes a jitdump, which cannot be read while the process lives.
    JitDump,
    /// Trampolines run, but there is no perf map.
    MapMissing,
    /// The perf map is there but was refused (owner, symlink, not a regular file, too large).
    MapRefused,
    /// The perf map could not be read.
    MapUnreadable,
}
