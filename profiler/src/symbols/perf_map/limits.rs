//! How much of a perf map is kept, and how far one of its entries is believed.

/// Bounds on what one perf map may cost, whatever its writer puts into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfMapLimits {
    /// Entries kept at a time; 16 bytes each while they come in ascending order, up to twice that in any other.
    pub entries: usize,
    /// Bytes of names kept. Names of replaced entries count until the file is read anew.
    pub name_bytes: usize,
    /// Size of the file, in bytes, above which it is not read (on).
    pub file_bytes: u64,
}

impl Default for PerfMapLimits {
    /// 4 million entries, 80 MiB of names, files up to 256 MiB; and no more memory than there is for all maps together
    /// ([`MEMORY_BYTES_MAX`](super::MEMORY_BYTES_MAX)). Programs with many functions have some hundred thousand entries.
    fn default() -> Self {
        Self {
            entries: 4_000_000,
            name_bytes: 80 << 20,
            file_bytes: 256 << 20,
        }
    }
}

/// Longest line that is read; a longer one is skipped whole.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// Longest name that is kept, in bytes; the rest of a longer one is cut off. Wide enough for a function and a file of
/// Python code, each as long as they are kept when they are read from the process, and small enough for the two bytes in
/// which a name's length is stored.
pub(super) const NAME_BYTES_MAX: usize = 8 << 10;

/// Longest range believed of a `py::` entry. CPython's trampolines are 8 to 28 bytes long, at most 32 apart
/// (`Python/asm_trampoline*.S`, 3.12 to 3.15); an interpreter rearranged by BOLT may write millions instead, because
/// the symbols whose distance is the size were moved apart.
pub(super) const PYTHON_RANGE_MAX: u32 = 256;

/// Longest range believed of any other entry.
pub(super) const JIT_RANGE_MAX: u32 = 1 << 20;
