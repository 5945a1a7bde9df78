//! What the BPF program counted, summed over CPUs.

use aya::maps::{MapData, PerCpuArray};
use profiler_common::counters;

use super::error::KernelError;

/// All counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Samples of targets, lost ones included.
    pub samples: u64,
    /// Samples for which the ring buffer had no room.
    pub ring_full: u64,
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
}

impl Counters {
    /// What was counted since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let difference = u64::saturating_sub;
        Self {
            samples: difference(self.samples, before.samples),
            ring_full: difference(self.ring_full, before.ring_full),
            stack_copies: difference(self.stack_copies, before.stack_copies),
            frames: difference(self.frames, before.frames),
            kernel_stack_failed: difference(self.kernel_stack_failed, before.kernel_stack_failed),
            processes_full: difference(self.processes_full, before.processes_full),
            events_lost: difference(self.events_lost, before.events_lost),
            python_frames: difference(self.python_frames, before.python_frames),
            threads_full: difference(self.threads_full, before.threads_full),
        }
    }

    /// Reads them: one system call for each.
    pub(super) fn read(map: &PerCpuArray<MapData, u64>) -> Result<Self, KernelError> {
        let sum = |index: u32| -> Result<u64, KernelError> {
            let values = map.get(&index, 0).map_err(KernelError::map("COUNTERS"))?;
            Ok(values.iter().sum())
        };
        Ok(Self {
            samples: sum(counters::SAMPLES)?,
            ring_full: sum(counters::RING_FULL)?,
            stack_copies: sum(counters::STACK_COPIES)?,
            frames: sum(counters::FRAMES)?,
            kernel_stack_failed: sum(counters::KERNEL_STACK_FAILED)?,
            processes_full: sum(counters::PROCESSES_FULL)?,
            events_lost: sum(counters::EVENTS_LOST)?,
            python_frames: sum(counters::PYTHON_FRAMES)?,
            threads_full: sum(counters::THREADS_FULL)?,
        })
    }
}
