//! Per-CPU counters: one index and one name for each way a sample can go.

use crate::{python::PYTHON_ENDS, sample::STACK_ENDS};

/// Every run of the program, of any process: how often the event really fired.
pub const TICKS: u32 = 0;
/// Samples of target processes: submitted plus lost.
pub const SAMPLES: u32 = 1;
/// Samples lost because the ring buffer was full.
pub const RING_FULL: u32 = 2;
/// Samples whose innermost caller was guessed.
pub const GUESSED: u32 = 3;
/// Samples taken in the kernel.
pub const KERNEL_MODE: u32 = 4;
/// Samples that carried their stack because rows were not there yet.
pub const STACK_COPIES: u32 = 5;
/// Frames walked in all samples.
pub const FRAMES: u32 = 6;
/// Samples whose kernel stack was asked for and could not be read.
pub const KERNEL_STACK_FAILED: u32 = 7;
/// Child processes of targets that could not become targets: `PROCESSES` was full.
pub const PROCESSES_FULL: u32 = 8;
/// Events of processes for which the ring buffer had no room.
pub const EVENTS_LOST: u32 = 9;
/// Interpreter frames read in all samples.
pub const PYTHON_FRAMES: u32 = 10;
/// Threads whose state could not be remembered: `THREADS` was full.
pub const THREADS_FULL: u32 = 11;
/// First of the [`STACK_ENDS`] counters, in the order of [`crate::sample::StackEnd::ALL`].
pub const STACK_END_FIRST: u32 = 12;
/// First of the [`PYTHON_ENDS`] counters, in the order of [`crate::python::PythonEnd::ALL`].
pub const PYTHON_END_FIRST: u32 = STACK_END_FIRST + STACK_ENDS as u32;
/// Number of counters.
pub const COUNT: u32 = PYTHON_END_FIRST + PYTHON_ENDS as u32;
