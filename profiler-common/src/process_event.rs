//! What the kernel side tells of processes, as it lies in the ring buffer between the samples.
//!
//! Samples and these events are in one ring, so that their order is that in which things happened: the samples of a
//! process stand behind its `fork` and before its exit, those of a program behind its `exec`. A record of exactly
//! [`PROCESS_EVENT_BYTES`] is one of these; a sample is longer.

use crate::sample::HEADER_BYTES;

/// One event.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessEvent {
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub ktime_ns: u64,
    /// `CLOCK_BOOTTIME`, in nanoseconds: the clock of `starttime` in `/proc/PID/stat`.
    pub boottime_ns: u64,
    /// For [`kind::EXIT`]: nanoseconds of CPU time that all its threads used; 0 where this kernel does not tell.
    pub cpu_ns: u64,
    /// For [`kind::EXEC`]: where the program's stack begins, as field 28 of `/proc/PID/stat` has it; 0 where it is not known.
    pub stack: u64,
    /// One of [`kind`].
    pub kind: u32,
    /// The process (thread group), as seen from pyprof-bpf's own pid namespace.
    pub pid: u32,
    /// For [`kind::FORK`]: its parent, in the same namespace.
    pub parent: u32,
    /// For [`kind::FORK`]: its pid in its own, innermost namespace.
    pub ns_pid: u32,
}

/// What happened.
pub mod kind {
    /// A target has a new child process. Not sent for threads.
    pub const FORK: u32 = 1;
    /// A process runs another program now.
    pub const EXEC: u32 = 2;
    /// The last thread of a target has ended.
    pub const EXIT: u32 = 3;
}

/// Size of [`ProcessEvent`] in bytes.
pub const PROCESS_EVENT_BYTES: usize = size_of::<ProcessEvent>();

const _: () = assert!(PROCESS_EVENT_BYTES == 48 && PROCESS_EVENT_BYTES < HEADER_BYTES);
