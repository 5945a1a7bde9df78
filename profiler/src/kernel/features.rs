//! What this kernel offers, found out before loading.

use std::{env, fs, io, os::unix::fs::MetadataExt as _};

use profiler_common::config::TaskOffsets;

use super::btf::Btf;

/// Inode of the initial pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// `THREAD_SIZE` on x86-64 without KASAN (arch/x86/include/asm/page_64_types.h).
const KERNEL_STACK_BYTES: u32 = 16384;
/// `sizeof(struct pt_regs)` on x86-64.
const PT_REGS_BYTES: u32 = 168;
/// For tests: `task-stack` has this program do as on kernels without the helper.
const USER_REGS_VARIABLE: &str = "PYPROF_BPF_USER_REGS";

/// How the user registers of a sample that hit the kernel are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistersFrom {
    /// `bpf_task_pt_regs`, Linux 5.15+.
    Helper,
    /// `task->stack`, whose offset comes from the kernel's BTF.
    TaskStack {
        /// Offset of `stack` in `task_struct`.
        stack_offset: u32,
        /// Bytes from there to the saved registers.
        regs_offset: u32,
    },
}

/// What this kernel offers.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Where user registers come from.
    pub registers: RegistersFrom,
    /// Device and inode of our pid namespace, when it is not the initial one.
    pub pid_namespace: Option<(u64, u64)>,
    /// Where the kernel keeps what is needed to follow processes, and to find a thread's interpreter; `None`: it does not
    /// say (no BTF).
    pub task_offsets: Option<TaskOffsets>,
}

impl Features {
    /// Looks at the kernel's version, its BTF where that is needed, and our pid namespace.
    ///
    /// The environment variable `PYPROF_BPF_USER_REGS=task-stack` takes [`Self::task_stack`] on any kernel: it is how the
    /// tests reach it.
    pub fn detect() -> io::Result<Self> {
        let fall_back = env::var_os(USER_REGS_VARIABLE).is_some_and(|way| way == "task-stack");
        let registers = if kernel_version() >= (5, 15) && !fall_back {
            RegistersFrom::Helper
        } else {
            Self::task_stack()?
        };
        let namespace = fs::metadata("/proc/self/ns/pid")?;
        let pid_namespace =
            (namespace.ino() != INITIAL_PID_NAMESPACE).then(|| (namespace.dev(), namespace.ino()));
        Ok(Self {
            registers,
            pid_namespace,
            task_offsets: Self::task_offsets(),
        })
    }

    /// From the kernel's BTF (some ten milliseconds).
    fn task_offsets() -> Option<TaskOffsets> {
        let btf = Btf::of_kernel()
            .inspect_err(|error| tracing::debug!("processes cannot be followed: {error}"))
            .ok()?;
        let [tgid, thread_pid, signal, entity] =
            btf.member_offsets("task_struct", ["tgid", "thread_pid", "signal", "se"])?;
        let [runtime] = btf.member_offsets("sched_entity", ["sum_exec_runtime"])?;
        let [live, reaped] = btf.member_offsets("signal_struct", ["live", "sum_sched_runtime"])?;
        let [level, numbers] = btf.member_offsets("pid", ["level", "numbers"])?;
        let [binprm_p] = btf.member_offsets("linux_binprm", ["p"])?;
        let [namespace] = btf.member_offsets("pid_namespace", ["ns"])?;
        let [inum] = btf.member_offsets("ns_common", ["inum"])?;
        let [thread] = btf.member_offsets("task_struct", ["thread"])?;
        let [thread_pointer] = btf.member_offsets("thread_struct", ["fsbase"])?;
        Some(TaskOffsets {
            task_tgid: tgid,
            task_thread_pid: thread_pid,
            task_signal: signal,
            task_runtime: entity + runtime,
            signal_live: live,
            signal_runtime: reaped,
            pid_level: level,
            pid_numbers: numbers,
            binprm_p,
            namespace_inum: namespace + inum,
            task_thread_pointer: thread + thread_pointer,
        })
    }

    /// The way for kernels without `bpf_task_pt_regs`; works on newer ones too.
    pub fn task_stack() -> io::Result<RegistersFrom> {
        let btf = Btf::of_kernel()?;
        let missing = || {
            io::Error::new(
                io::ErrorKind::NotFound,
                "the kernel's BTF has no task_struct.stack",
            )
        };
        let stack_offset = btf
            .member_offset("task_struct", "stack")
            .ok_or_else(missing)?;
        let regs_offset = KERNEL_STACK_BYTES - PT_REGS_BYTES;
        Ok(RegistersFrom::TaskStack {
            stack_offset,
            regs_offset,
        })
    }
}

/// Major and minor version of the running kernel.
fn kernel_version() -> (u32, u32) {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
