//! What all processes of a recording share, so that whatever is bounded for one of them is bounded for a thousand.

use std::time::Instant;

use super::{allowance::SharedAllowance, perf_map::PerfMapMemory, shared_memory::SharedMemory};

/// Memory for the code objects of all Python processes, and for frames that wait for their names. Large programs have
/// some ten thousand code objects, of 200 to 300 bytes with names and lines.
const CODE_BYTES_MAX: usize = 64 << 20;
/// What a process may have of it although the others have taken everything: a hundred code objects.
const CODE_BYTES_OF_EACH: usize = 16 << 10;
/// Memory for addresses that were looked up before, of all processes: half a million of them, at least.
const ADDRESS_BYTES_MAX: usize = 24 << 20;
/// What a process may have of it although the others have taken everything.
const ADDRESS_BYTES_OF_EACH: usize = 4 << 10;

/// Memory for the mappings of all processes: of some hundred thousand.
const MAPPING_BYTES_MAX: usize = 40 << 20;
/// What a process may have of it although the others have taken everything: some five hundred mappings with code, more than
/// a Python with every extension module loaded has.
pub(super) const MAPPING_BYTES_OF_EACH: usize = 200 << 10;
/// What a mapping takes, here and where rows are made.
pub(super) const MAPPING_BYTES: usize = 400;

/// A clone is the same.
#[derive(Clone, Debug)]
pub(super) struct Budgets {
    pub(super) perf_maps: PerfMapMemory,
    pub(super) codes: SharedMemory,
    pub(super) addresses: SharedMemory,
    pub(super) mappings: SharedMemory,
    /// Reading perf maps, while samples wait.
    pub(super) map_work: SharedAllowance,
    /// Reading code objects, on threads beside.
    pub(super) code_work: SharedAllowance,
}

impl Budgets {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            perf_maps: PerfMapMemory::default(),
            codes: SharedMemory::new(CODE_BYTES_MAX, CODE_BYTES_OF_EACH),
            addresses: SharedMemory::new(ADDRESS_BYTES_MAX, ADDRESS_BYTES_OF_EACH),
            mappings: SharedMemory::new(MAPPING_BYTES_MAX, MAPPING_BYTES_OF_EACH),
            map_work: SharedAllowance::new(now),
            code_work: SharedAllowance::new(now),
        }
    }
}
