//! Memory that all perf maps of a recording take together. One map is bounded by its own limits; a hostile process could
//! have thousands of children with one each.

use crate::symbols::shared_memory::{Share, SharedMemory};

/// Bytes that all maps may take together: a million entries with names of 80 bytes, or some dozens of maps of large
/// programs.
pub const MEMORY_BYTES_MAX: usize = 96 << 20;

/// What a map may take although the others have taken everything: some hundred entries.
const EACH_BYTES: usize = 16 << 10;

/// The memory of some maps. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct PerfMapMemory(SharedMemory);

impl Default for PerfMapMemory {
    fn default() -> Self {
        Self::of(MEMORY_BYTES_MAX)
    }
}

impl PerfMapMemory {
    /// So many bytes.
    pub fn of(bytes_max: usize) -> Self {
        Self(SharedMemory::new(bytes_max, EACH_BYTES))
    }

    /// The share of one map, which has nothing yet.
    pub(super) fn share(self) -> Share {
        Share::new(self.0)
    }
}
