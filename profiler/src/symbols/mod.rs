//! From addresses to names.

pub mod perf_map;
pub mod python_name;

/// Why Python functions have, or do not have, names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameDiagnosis {
    /// Names are there.
    Named,
    /// The process is not a CPython.
    NotPython,
    /// CPython before 3.12 has no trampolines.
    TooOld {
        /// Its version.
        version: (u8, u8),
    },
    /// CPython 3.12+ started without trampolines.
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
