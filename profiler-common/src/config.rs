//! What is fixed when the BPF program is loaded: globals in `.rodata` that the kernel treats as constants.
//!
//! The verifier removes branches that a constant rules out, so one object serves kernels with and without a helper.

/// How the user registers of a sample that hit the kernel are found.
pub mod user_regs {
    /// `bpf_task_pt_regs(bpf_get_current_task_btf())` (helpers 175 and 158, Linux 5.15+).
    pub const HELPER: u8 = 0;
    /// `task->stack` at a BTF offset, plus the stack size, minus `pt_regs` and its padding (before 5.15).
    pub const TASK_STACK: u8 = 1;
}

/// Names of the globals, for [`aya::EbpfLoader::override_global`](https://docs.rs/aya).
pub mod global {
    /// `u8`: one of [`super::user_regs`].
    pub const USER_REGS: &str = "USER_REGS";
    /// `u32`: offset of `stack` in `task_struct`, for [`super::user_regs::TASK_STACK`].
    pub const TASK_STACK_OFFSET: &str = "TASK_STACK_OFFSET";
    /// `u32`: bytes between `task->stack` and the saved user registers.
    pub const TASK_REGS_OFFSET: &str = "TASK_REGS_OFFSET";
    /// `u8`: 1 to record kernel stacks.
    pub const KERNEL_STACKS: &str = "KERNEL_STACKS";
    /// `u64`: device of pyprof-bpf's own pid namespace; 0 when it is the initial one.
    pub const PID_NS_DEV: &str = "PID_NS_DEV";
    /// `u64`: inode of the same; 0 when it is the initial one.
    pub const PID_NS_INO: &str = "PID_NS_INO";
    /// [`super::TaskOffsets`]: where the kernel keeps what the tracepoints need.
    pub const TASK_OFFSETS: &str = "TASK_OFFSETS";
    /// `u8`: 1 to make children of targets targets, and to tell of them.
    pub const FOLLOW_FORKS: &str = "FOLLOW_FORKS";
    /// `u8`: 1 to tell of every `exec` on the machine, 0 of those of targets.
    pub const TELL_ALL_EXECS: &str = "TELL_ALL_EXECS";
}

/// Offsets in kernel structures, in bytes, from the kernel's BTF. Where these are not known, processes are not followed
/// and interpreter frames not read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskOffsets {
    /// `task_struct.tgid`.
    pub task_tgid: u32,
    /// `task_struct.thread_pid`, a `struct pid *`.
    pub task_thread_pid: u32,
    /// `task_struct.signal`, a `struct signal_struct *`.
    pub task_signal: u32,
    /// `task_struct.se.sum_exec_runtime`: CPU time of the thread, in nanoseconds.
    pub task_runtime: u32,
    /// `signal_struct.live`: threads that have not ended.
    pub signal_live: u32,
    /// `signal_struct.sum_sched_runtime`: CPU time of threads that have been reaped.
    pub signal_runtime: u32,
    /// `pid.level`: how deep the innermost pid namespace lies.
    pub pid_level: u32,
    /// `pid.numbers`: one `struct upid`, of 16 bytes, for each namespace, the initial one first.
    pub pid_numbers: u32,
    /// `linux_binprm.p`: where the stack of a new program begins.
    pub binprm_p: u32,
    /// `pid_namespace.ns.inum`: its inode number.
    pub namespace_inum: u32,
    /// `task_struct.thread.fsbase`: the thread pointer of a thread of 64-bit code (x86-64).
    pub task_thread_pointer: u32,
}

// SAFETY: `repr(C)`, integers of one size only: any bytes are a value, and its bytes are all initialised.
#[cfg(feature = "user")]
unsafe impl aya::Pod for TaskOffsets {}
