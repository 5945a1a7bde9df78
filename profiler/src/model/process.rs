//! What becomes of processes.

use std::time::Duration;

use super::{KtimeNs, Pid};

/// Something happened to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessEvent {
    /// When.
    pub ktime: KtimeNs,
    /// The same by the clock of `starttime` in `/proc/PID/stat`: since boot, sleep included.
    pub boottime: Duration,
    /// The process.
    pub pid: Pid,
    /// What.
    pub change: ProcessChange,
}

/// What can happen to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessChange {
    /// It was made by a target.
    Forked {
        /// By which.
        parent: Pid,
        /// Its pid in its own, innermost pid namespace.
        ns_pid: u32,
    },
    /// It runs another program now.
    Executed {
        /// Where the program's stack begins; `None` where it is not known. Another place after each `exec`.
        stack: Option<u64>,
    },
    /// Its last thread has ended. Its pid can soon be another's.
    Exited {
        /// CPU time that its threads used, from its beginning on; zero where it is not known.
        cpu_time: Duration,
    },
}
