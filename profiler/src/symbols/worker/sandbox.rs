//! What the symbol process gives up before it reads the first byte of a target's file.
//!
//! | means | from then on |
//! |---|---|
//! | no capability, `no_new_privs` | no right, and none to be had by running a program |
//! | another user (`nobody`, where the profiler may choose one) | nothing belongs to it |
//! | Landlock, where the kernel has it (Linux 5.13) | no file can be opened or run |
//! | seccomp | no system call but those for memory, for its two open descriptors, and to end |
//! | limits | at most so much memory and CPU time, no files, no processes, no core dump |
//! | `SIGKILL` when its parent ends | it does not stay behind |

use std::{collections::BTreeMap, fs, io, os::fd::RawFd};

use landlock::{ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _};
use rustix::{
    process::{
        DumpableBehavior, Resource, Rlimit, Signal, set_dumpable_behavior,
        set_parent_process_death_signal, setrlimit,
    },
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities,
        set_no_new_privs,
    },
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Memory of its own that it may have.
pub(super) const MEMORY_BYTES_MAX: u64 = 256 << 20;

/// The same with the program, its libraries and its stack: addresses, not memory.
const ADDRESSES_MAX: u64 = 1 << 30;

/// CPU time that one process may use, in seconds. The profiler ends it far earlier, for each file.
const CPU_SECONDS_MAX: u64 = 600;

/// Why it cannot be locked in; then nothing is parsed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SandboxError {
    /// A system call that gives up rights failed.
    #[error("giving up rights: {0}")]
    Rights(#[from] rustix::io::Errno),
    /// The kernel takes no filter of system calls.
    #[error("filtering system calls: {0}")]
    Seccomp(#[from] seccompiler::Error),
    /// The filter cannot be made for this CPU.
    #[error("filtering system calls: {0}")]
    Filter(#[from] seccompiler::BackendError),
    /// Landlock is there and refused.
    #[error("closing the file system: {0}")]
    Landlock(#[from] landlock::RulesetError),
}

/// Closes descriptors that were inherited from the program that started the profiler.
pub(super) fn close_inherited() -> io::Result<()> {
    let open = fs::read_dir("/proc/self/fd")?.filter_map(|entry| {
        let number: RawFd = entry.ok()?.file_name().to_str()?.parse().ok()?;
        Some(number)
    });
    let open: Vec<_> = open.collect();
    for descriptor in open.into_iter().filter(|&number| number > 2) {
        // That of the directory is among them, and closed already.
        let _ = nix::unistd::close(descriptor);
    }
    Ok(())
}

/// Gives up all capabilities of the calling thread, for good.
pub(super) fn give_up_rights() -> Result<(), SandboxError> {
    // Others of the same user cannot look into it, and nothing of it is written to disk when it crashes.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    Ok(())
}

/// Locks the calling process in. What it can do afterwards is compute, and talk over descriptors that are open.
pub(super) fn lock_in() -> Result<(), SandboxError> {
    give_up_rights()?;
    // Cleared by `exec` of a program that changes rights (`begin_new_exec`, fs/exec.c): set here, not before. The keeper
    // has another user than the profiler, which could not signal it: it waits for the end of its socket.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The address sanitizer of fuzzers takes terabytes of addresses.
    let is_limited = !cfg!(feature = "fuzzing");
    for (resource, most) in [
        (Resource::Data, MEMORY_BYTES_MAX),
        (Resource::As, ADDRESSES_MAX),
        (Resource::Cpu, CPU_SECONDS_MAX),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nproc, 0),
    ]
    .into_iter()
    .filter(|_| is_limited)
    {
        let most = Some(most);
        setrlimit(
            resource,
            Rlimit {
                current: most,
                maximum: most,
            },
        )?;
    }
    // As far as this kernel can: without it, the filter below closes the file system alone.
    let abi = ABI::V5;
    Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .create()?
        .restrict_self()?;
    seccompiler::apply_filter_all_threads(&filter()?)?;
    Ok(())
}

/// A filter that refuses with `EPERM` whatever is not needed to compute and to talk.
fn filter() -> Result<BpfProgram, SandboxError> {
    let always = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_recvfrom,
        libc::SYS_sendto,
        libc::SYS_close,
        libc::SYS_brk,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_futex,
        libc::SYS_sched_yield,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_getrandom,
        libc::SYS_clock_gettime,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        always.into_iter().map(|call| (call, Vec::new())).collect();
    // Memory that can be run as code is not to be had.
    let no_code = condition(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0)?;
    let anonymous = libc::MAP_ANONYMOUS as u64;
    let of_no_file = condition(3, SeccompCmpOp::MaskedEq(anonymous), anonymous)?;
    rules.insert(
        libc::SYS_mmap,
        vec![SeccompRule::new(vec![no_code.clone(), of_no_file])?],
    );
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![no_code])?]);
    // `abort` signals the process itself, nobody else.
    let own = u64::from(std::process::id());
    let to_itself = condition(0, SeccompCmpOp::Eq, own)?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![to_itself])?]);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    Ok(filter.try_into()?)
}

fn condition(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, SandboxError> {
    Ok(SeccompCondition::new(
        argument,
        SeccompCmpArgLen::Dword,
        op,
        value,
    )?)
}

#[cfg(test)]
#[path = "sandbox_tests.rs"]
mod tests;
