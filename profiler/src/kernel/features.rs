//! What this kernel offers, found out before loading.

use std::{env, fs, io, os::unix::fs::MetadataExt as _};

use super::btf::Btf;

/// Inode of the initial pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// `THREAD_SIZE` on x86-64 without KASAN (arch/x86/include/asm/page_64_types.h).
const KERNEL_STACK_BYTES: u32 = 16384;
/// `sizeof(struct pt_regs)` on x86-64.
const PT_REGS_BYTES: u32 = 168;
/// `TOP_OF_KERNEL_STACK_PADDING` with `CONFIG_X86_FRED` (arch/x86/include/asm/thread_info.h, Linux 6.9+).
const FRED_PADDING: u32 = 16;

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
        // FRED kernels keep a `fred_cs` in their pt_regs and a padding above them.
        let padding = if btf.has_struct("fred_cs") {
            fred_padding()
        } else {
            0
        };
        let regs_offset = KERNEL_STACK_BYTES - PT_REGS_BYTES - padding;
        Ok(RegistersFrom::TaskStack {
            stack_offset,
            regs_offset,
        })
    }
}

/// The padding depends on the kernel's configuration, which few systems show; without it, what 6.9+ does by default.
fn fred_padding() -> u32 {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let boot = fs::read_to_string(format!("/boot/config-{release}"));
    match boot {
        Ok(text) if text.lines().any(|line| line == "CONFIG_X86_FRED=y") => FRED_PADDING,
        Ok(_) => 0,
        Err(_) if kernel_config_says_no_fred() => 0,
        Err(_) => FRED_PADDING,
    }
}

/// `/proc/config.gz` is compressed; the flag's absence is visible without it, as CPUs' "fred" feature is masked out.
fn kernel_config_says_no_fred() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| !text.contains(" fred"))
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
