//! What a window has to say besides its profile.

use std::time::Duration;

use super::Limit;
use crate::{
    model::{Hz, KtimeNs, Pid},
    process::{FileLimit, Halt, NamedGroup},
    profile::Profile,
    registry::{TargetSummary, Unsampled},
    symbols::CrossCheck,
};

/// The state of a running recording, for a status line.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Time since sampling began.
    pub elapsed: Duration,
    /// Samples taken of the targets so far.
    pub samples: u64,
    /// Samples lost so far.
    pub lost: u64,
    /// The Python function, or line, most often seen innermost, and its share of the samples (0 to 1).
    pub hottest: Option<(String, f64)>,
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Ctrl-C or SIGTERM.
    Interrupted,
    /// The duration asked for is over.
    Duration,
    /// Every target has exited.
    TargetExited,
}

/// What the samples were driven by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampledEvent {
    /// The CPU's cycle counter (hardware).
    Cycles,
    /// The kernel's `cpu-clock` software event: machines without a PMU.
    CpuClock,
}

/// The kernel took fewer samples than it was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttling {
    /// How often the kernel stopped an event until the next tick (`PERF_RECORD_THROTTLE`).
    pub throttle_records: u64,
    /// `kernel.perf_event_max_sample_rate` before the recording.
    pub max_sample_rate_before: u64,
    /// The same afterwards: the kernel lowers it when samples take more than `kernel.perf_cpu_time_max_percent`.
    pub max_sample_rate_after: u64,
    /// Samples per second and CPU that were asked for.
    pub asked: Hz,
    /// Samples per second and CPU that really happened, where that can be known (`cpu-clock`).
    pub effective_hz: Option<f64>,
    /// Which processes lack samples.
    pub spread: Spread,
}

impl Throttling {
    /// The rate that was asked for may be more than the machine can do: each sample takes a few µs, deep stacks more, and
    /// ticks that come meanwhile are left out.
    pub fn is_rate_high(&self) -> bool {
        let limit = self.max_sample_rate_before.min(self.max_sample_rate_after);
        self.asked.0 > HIGH_RATE || u64::from(self.asked.0) * 2 > limit
    }
}

/// Samples per second above which the rate itself may be why there are fewer.
const HIGH_RATE: u32 = 10_000;

/// How samples that are missing are distributed over the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// There is only one process with enough samples to be compared.
    OneProcess,
    /// All processes lack them, in proportion.
    Even,
    /// Some processes lack more than others.
    Uneven,
}

/// Something about a recording that the user should know, though it is no failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// So many mappings with code are not known: their process has more than are kept.
    MappingsLeftOut(u64),
    /// Kernel frames have no names: the kernel shows its symbols to `CAP_SYSLOG` only.
    KernelNamesHidden,
    /// The kernel part of so many stacks could not be read.
    KernelStacksFailed(u64),
    /// A table was full, or time was used up.
    Limit(Limit),
    /// A process that has the same pid in another container writes the same perf map: so many frames have no name,
    /// because either may be meant.
    SharedPerfMap {
        /// The target.
        pid: Pid,
        /// The other process.
        rival: Pid,
        /// Frames without a name, of all targets.
        frames: u64,
    },
    /// So many processes that were selected may not be looked into, and were not recorded.
    NotPermitted(u64),
    /// These files of the targets could not be used as they are.
    Files(FileLimit, Vec<String>),
    /// These processes, started by a target, ran Python and were not recorded.
    ChildrenNotRecorded(Vec<Pid>),
    /// Children were to be recorded, but this kernel does not tell of them.
    CannotFollow,
    /// So many events of processes were lost.
    EventsLost(u64),
    /// This process used CPU time and has too few samples for it, and so have this number of others.
    Undersampled {
        /// The process.
        pid: Pid,
        /// The CPU time it used.
        cpu_time: Duration,
        /// Samples of it.
        samples: u64,
        /// Other such processes.
        others: u64,
    },
    /// No thread of this process can run, nor of this number of others.
    Halted {
        /// The process.
        pid: Pid,
        /// What holds it.
        halt: Halt,
        /// Other targets that cannot run.
        others: u64,
    },
    /// These control groups have the container's id in their names, but any user can have made them: not recorded.
    GroupsIgnored(Vec<NamedGroup>),
    /// The container's group is below one that was delegated to a user: that of a rootless container.
    Rootless(NamedGroup),
}

/// What a recording has to say besides its profile. Numbers about samples are in [`Profile::quality`].
#[derive(Clone, Debug)]
pub struct Summary {
    /// The processes: those that were asked for first.
    pub targets: Vec<TargetSummary>,
    /// How many processes were asked for by pid.
    pub roots: usize,
    /// Child processes were recorded too.
    pub follows: bool,
    /// Those of which there is no sample.
    pub unsampled: Unsampled,
    /// Why it ended.
    pub stop: StopReason,
    /// Time during which samples were taken.
    pub elapsed: Duration,
    /// Samples per second and CPU asked for.
    pub frequency: Hz,
    /// What drove the samples.
    pub event: SampledEvent,
    /// Set when the kernel took fewer samples than asked.
    pub throttling: Option<Throttling>,
    /// Perf maps that were refused or could not be read, with the reason, ready to be shown.
    pub refusals: Vec<String>,
    /// What else the user should know.
    pub remarks: Vec<Remark>,
    /// How long samples had to wait in the ring buffer for other work, at most.
    pub longest_tick: Duration,
    /// The same in CPU time: what of it was work, and not waiting for a CPU.
    pub longest_tick_cpu: Duration,
    /// How both ways to Python functions compared, when that was asked for.
    pub cross_check: Option<CrossCheck>,
    /// The BPF program's running time, when it was asked for.
    pub bpf: Option<BpfStats>,
}

/// What the BPF program cost, as the kernel measured it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BpfStats {
    /// How often it ran, for any process.
    pub runs: u64,
    /// Nanoseconds in it, in all.
    pub run_time_ns: u64,
    /// Native frames walked.
    pub frames: u64,
    /// Interpreter frames read.
    pub python_frames: u64,
    /// Samples of the targets.
    pub samples: u64,
    /// Samples sent with a piece of their stack.
    pub stack_copies: u64,
    /// Instructions the verifier looked at (Linux 5.16+).
    pub verified_instructions: Option<u32>,
    /// When the first sample was taken.
    pub first_sample: Option<KtimeNs>,
}

/// What was sampled from one moment to another.
#[derive(Clone, Debug)]
pub struct Window {
    /// Stacks with names and counts.
    pub profile: Profile,
    /// Everything else.
    pub summary: Summary,
}
