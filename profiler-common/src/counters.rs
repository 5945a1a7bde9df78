//! Per-CPU counters of what the samples themselves do not say: one index and one name for each.

/// Samples of target processes: submitted plus lost.
pub const SAMPLES: u32 = 0;
/// Samples lost because the ring buffer was full.
pub const RING_FULL: u32 = 1;
/// Samples that carried their stack because rows were not there yet.
pub const STACK_COPIES: u32 = 2;
/// Frames walked in all samples.
pub const FRAMES: u32 = 3;
/// Samples whose kernel stack was asked for and could not be read.
pub const KERNEL_STACK_FAILED: u32 = 4;
/// Child processes of targets that could not become targets: `PROCESSES` was full.
pub const PROCESSES_FULL: u32 = 5;
/// Events of processes for which the ring buffer had no room.
pub const EVENTS_LOST: u32 = 6;
/// Interpreter frames read in all samples.
pub const PYTHON_FRAMES: u32 = 7;
/// Threads whose state could not be remembered: `THREADS` was full.
pub const THREADS_FULL: u32 = 8;
/// Number of counters.
pub const COUNT: u32 = 9;
