//! What the BPF program counted, summed over CPUs.

use aya::maps::{MapData, PerCpuArray};
use profiler_common::{counters, python::PYTHON_ENDS, sample::STACK_ENDS};

use super::error::KernelError;

/// Samples by how their walk ended, in the order of `profiler_common::sample::StackEnd::ALL`.
pub type EndCounts = [u64; STACK_ENDS];

/// All counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Every run of the program, of any process.
    pub ticks: u64,
    /// Samples of targets, lost ones included.
    pub samples: u64,
    /// Samples for which the ring buffer had no room.
    pub ring_full: u64,
    /// Samples with a guessed caller.
    pub guessed: u64,
    /// Samples taken in the kernel.
    pub kernel_mode: u64,
    /// Samples sent with a piece of their stack, to be finished in user space.
    pub stack_copies: u64,
    /// Frames walked.
    pub frames: u64,
    /// Kernel stacks asked for that could not be read.
    pub kernel_stack_failed: u64,
    /// Children of targets that could not become targets, because there were too many.
    pub processes_full: u64,
    /// Events of processes for which the ring buffer had no room.
    pub events_lost: u64,
    /// Interpreter frames read.
    pub python_frames: u64,
    /// Threads whose state could not be remembered.
    pub threads_full: u64,
    /// How the walks ended in the kernel.
    pub ends: EndCounts,
    /// How reading the interpreter's frames ended, in the order of `profiler_common::python::PythonEnd::ALL`.
    pub python_ends: [u64; PYTHON_ENDS],
}

impl Counters {
    /// Reads them: one system call for each.
    pub(super) fn read(map: &PerCpuArray<MapData, u64>) -> Result<Self, KernelError> {
        let sum = |index: u32| -> Result<u64, KernelError> {
            let values = map.get(&index, 0).map_err(KernelError::map("COUNTERS"))?;
            Ok(values.iter().sum())
        };
        let mut ends = [0; STACK_ENDS];
        for (count, index) in ends.iter_mut().zip(counters::STACK_END_FIRST..) {
            *count = sum(index)?;
        }
        let mut python_ends = [0; PYTHON_ENDS];
        for (count, index) in python_ends.iter_mut().zip(counters::PYTHON_END_FIRST..) {
            *count = sum(index)?;
        }
        Ok(Self {
            ticks: sum(counters::TICKS)?,
            samples: sum(counters::SAMPLES)?,
            ring_full: sum(counters::RING_FULL)?,
            guessed: sum(counters::GUESSED)?,
            kernel_mode: sum(counters::KERNEL_MODE)?,
            stack_copies: sum(counters::STACK_COPIES)?,
            frames: sum(counters::FRAMES)?,
            kernel_stack_failed: sum(counters::KERNEL_STACK_FAILED)?,
            processes_full: sum(counters::PROCESSES_FULL)?,
            events_lost: sum(counters::EVENTS_LOST)?,
            python_frames: sum(counters::PYTHON_FRAMES)?,
            threads_full: sum(counters::THREADS_FULL)?,
            ends,
            python_ends,
        })
    }
}
