//! What the kernel side tells of processes, as it lies in the ring buffer between the samples.
//!
//! Samples and these events are in one ring, so that their order is that in which things happened: the samples of a
//! process stand behind its `fork` and before its exit, those of a program behind its `exec`.

/// One event.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessEvent {
    /// One of [`kind`](crate::record::kind), first in every record.
    pub kind: u32,
    /// The process (thread group), as seen from pyprof-bpf's own pid namespace.
    pub pid: u32,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub ktime_ns: u64,
    /// `CLOCK_BOOTTIME`, in nanoseconds: the clock of `starttime` in `/proc/PID/stat`.
    pub boottime_ns: u64,
    /// Of [`EXIT`](crate::record::kind::EXIT): nanoseconds of CPU time that all its threads used; 0 where this kernel does not tell.
    pub cpu_ns: u64,
    /// Of [`EXEC`](crate::record::kind::EXEC): where the program's stack begins, as field 28 of `/proc/PID/stat` has it; 0 where it is not known.
    pub stack: u64,
    /// Of [`FORK`](crate::record::kind::FORK): its parent, in the same namespace.
    pub parent: u32,
    /// Of [`FORK`](crate::record::kind::FORK): its pid in its own, innermost namespace.
    pub ns_pid: u32,
}

/// Size of [`ProcessEvent`] in bytes.
pub const PROCESS_EVENT_BYTES: usize = size_of::<ProcessEvent>();

const _: () = assert!(PROCESS_EVENT_BYTES == 48);
