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
}
