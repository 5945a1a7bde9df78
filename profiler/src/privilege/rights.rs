//! What this process keeps of its rights once it is set up, and what it keeps them for.
//!
//! Capabilities belong to threads: `capset` and `prctl` change the one that calls, and a new thread begins with those of
//! the thread that makes it (`copy_creds`, kernel/cred.c). So rights are given up before there is a second thread.

use rustix::{
    io,
    thread::{
        CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
        clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
        set_no_new_privs,
    },
};

use super::Facts;

/// What is going to be done, as far as it takes rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Kernel functions are to be named.
    pub kernel_names: bool,
    /// The kernel is to measure its side of the profiler.
    pub bpf_stats: bool,
    /// Signals are passed on to a process of another user.
    pub signals_others: bool,
}

/// The capabilities that `work` takes, of those that are held.
///
/// Which is for what, by the kernel's function that asks for it (Linux 6.12):
///
/// * `CAP_BPF`: maps and programs (`__sys_bpf`, `bpf_prog_load`, kernel/bpf/syscall.c). In Linux 5.10 every command
///   asks, also one on a map that is open.
/// * `CAP_PERFMON`: the program may read memory (`bpf_check`, kernel/bpf/verifier.c), and events see all processes of a
///   CPU (`perf_event_open`, kernel/events/core.c), also of one that comes online later.
/// * `CAP_SYS_PTRACE`: mappings, environment, root directory and descriptors of a process of another user, or of one
///   that may not dump core (`ptrace_may_access`, kernel/ptrace.c).
/// * `CAP_DAC_READ_SEARCH`: perf maps and ELF files that only their owner may read (`generic_permission`, fs/namei.c).
/// * `CAP_CHECKPOINT_RESTORE`: `/proc/PID/map_files`, which leads to files that are deleted or out of reach
///   (`proc_map_files_get_link`, fs/proc/base.c).
/// * `CAP_SYSLOG`: addresses in `/proc/kallsyms` (`kallsyms_show_value`, kernel/ksyms_common.c).
/// * `CAP_KILL`: SIGTERM for a command that runs as the user who called sudo (`check_kill_permission`,
///   kernel/signal.c).
/// * `CAP_SYS_ADMIN`: `BPF_ENABLE_STATS` (`bpf_enable_stats`, kernel/bpf/syscall.c), levels of
///   `kernel.perf_event_paranoid` above 2, which distributions have added, and all of the above where it stands in for a
///   capability that is not there, as `CAP_CHECKPOINT_RESTORE` before Linux 5.9.
/// * `CAP_IPC_LOCK`: more memory for events than `kernel.perf_event_mlock_kb` (`perf_mmap`, kernel/events/core.c), where
///   [`raise_limits`](super::raise_limits) could not raise the limit.
///
/// Without `CAP_SYS_PTRACE` they are all kept: who asks about a process must then have every capability that it has
/// (`cap_ptrace_access_check`, security/commoncap.c), and giving one up would close the processes of one's own user.
pub fn needed(facts: &Facts, held: CapabilitySet, work: Work) -> CapabilitySet {
    if !held.contains(CapabilitySet::SYS_PTRACE) {
        return held;
    }
    let always = CapabilitySet::BPF
        | CapabilitySet::PERFMON
        | CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::CHECKPOINT_RESTORE;
    let takes_place =
        CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::CHECKPOINT_RESTORE;
    let mut needed = always;
    let as_administrator = work.bpf_stats
        || facts.perf_event_paranoid.is_some_and(|level| level > 2)
        || !held.contains(takes_place);
    for (capability, is_needed) in [
        (CapabilitySet::SYSLOG, work.kernel_names),
        (CapabilitySet::KILL, work.signals_others),
        (CapabilitySet::SYS_ADMIN, as_administrator),
        (
            CapabilitySet::IPC_LOCK,
            !held.contains(CapabilitySet::SYS_RESOURCE),
        ),
    ] {
        needed.set(capability, is_needed);
    }
    needed & held
}

/// The capabilities that switching trampolines in another process takes, of those that are held.
///
/// * `CAP_SYS_PTRACE`: to trace a process of another user, and to write to its memory (`ptrace_may_access`,
///   kernel/ptrace.c); `CAP_DAC_OVERRIDE`: to open `/proc/PID/mem`, which is its user's, for that.
/// * `CAP_SETUID`, `CAP_SETGID`: to put a file into its `/tmp` as its user would (`__sys_setresuid`, kernel/sys.c).
/// * `CAP_DAC_READ_SEARCH`, `CAP_CHECKPOINT_RESTORE`, `CAP_SYS_ADMIN`: as for recording, where it is read.
///
/// Without `CAP_SYS_PTRACE` they are all kept, as for recording.
pub fn needed_to_activate(held: CapabilitySet) -> CapabilitySet {
    if !held.contains(CapabilitySet::SYS_PTRACE) {
        return held;
    }
    let mut needed = CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::CHECKPOINT_RESTORE;
    let stands_in = !held.contains(CapabilitySet::CHECKPOINT_RESTORE);
    needed.set(CapabilitySet::SYS_ADMIN, stands_in);
    needed & held
}

/// The capabilities that the calling thread may have.
pub fn held() -> io::Result<CapabilitySet> {
    Ok(capabilities(None)?.permitted)
}

/// Has the calling thread use these capabilities and no others; the rest it may take up again.
pub fn use_only(used: CapabilitySet) -> io::Result<()> {
    let sets = capabilities(None)?;
    let effective = sets.permitted & used;
    set_capabilities(None, CapabilitySets { effective, ..sets })
}

/// Gives up all capabilities of the calling thread but these, for good, also for programs that it might start: none of
/// them gets any right by its file (`no_new_privs`), nor from the thread.
pub fn keep_only(kept: CapabilitySet) -> io::Result<()> {
    // A thread that acts as another user has CAP_SETPCAP switched off, which is needed below.
    let permitted = held()?;
    use_only(permitted)?;
    clear_ambient_capability_set()?;
    // The bounding set is what `exec` may give at most. To lower it takes CAP_SETPCAP (`cap_prctl_drop`,
    // security/commoncap.c); without that, `no_new_privs` alone has to do, and does.
    if permitted.contains(CapabilitySet::SETPCAP) {
        // The kernel knows those up to the first that it has never heard of.
        let known = (0..u64::BITS)
            .map(|bit| CapabilitySet::from_bits_retain(1 << bit))
            .map_while(|one| Some((one, capability_is_in_bounding_set(one).ok()?)));
        for (capability, is_in) in known {
            if is_in && !kept.contains(capability) {
                remove_capability_from_bounding_set(capability)?;
            }
        }
    }
    set_no_new_privs(true)?;
    let left = permitted & kept;
    set_capabilities(
        None,
        CapabilitySets {
            effective: left,
            permitted: left,
            inheritable: CapabilitySet::empty(),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privilege::facts::FULL;

    const USUAL: CapabilitySet = CapabilitySet::BPF
        .union(CapabilitySet::PERFMON)
        .union(CapabilitySet::SYS_PTRACE)
        .union(CapabilitySet::DAC_READ_SEARCH)
        .union(CapabilitySet::CHECKPOINT_RESTORE);

    fn facts(perf_event_paranoid: i32) -> Facts {
        Facts {
            perf_event_paranoid: Some(perf_event_paranoid),
            ..Facts::of_root()
        }
    }

    #[test]
    fn each_kind_of_work_keeps_its_own_capability() {
        let (facts, none) = (facts(2), Work::default());
        assert_eq!(needed(&facts, FULL, none), USUAL);
        for (work, more) in [
            (
                Work {
                    kernel_names: true,
                    ..none
                },
                CapabilitySet::SYSLOG,
            ),
            (
                Work {
                    bpf_stats: true,
                    ..none
                },
                CapabilitySet::SYS_ADMIN,
            ),
            (
                Work {
                    signals_others: true,
                    ..none
                },
                CapabilitySet::KILL,
            ),
        ] {
            assert_eq!(needed(&facts, FULL, work), USUAL | more, "{work:?}");
        }
    }

    #[test]
    fn the_old_capability_stays_where_it_stands_in_for_a_new_one() {
        let old = FULL - CapabilitySet::CHECKPOINT_RESTORE;
        let kept = needed(&facts(2), old, Work::default());
        assert!(kept.contains(CapabilitySet::SYS_ADMIN));
        assert!(
            needed(&facts(3), FULL, Work::default()).contains(CapabilitySet::SYS_ADMIN),
            "Debian's level 3 asks for it"
        );
    }

    #[test]
    fn what_is_not_held_is_not_asked_for() {
        let few = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYS_PTRACE;
        let work = Work {
            kernel_names: true,
            bpf_stats: true,
            signals_others: true,
        };
        assert_eq!(needed(&facts(4), few, work), few);
    }

    #[test]
    fn locked_memory_is_asked_for_where_its_limit_could_not_be_raised() {
        let limited = FULL - CapabilitySet::SYS_RESOURCE;
        assert!(needed(&facts(2), limited, Work::default()).contains(CapabilitySet::IPC_LOCK));
    }

    #[test]
    fn without_ptrace_everything_is_kept() {
        let docker = FULL - CapabilitySet::SYS_PTRACE;
        assert_eq!(needed(&facts(2), docker, Work::default()), docker);
    }

    /// On a thread of its own, as the others go on.
    #[test]
    fn a_thread_that_gives_up_its_rights_has_none_and_gets_none() {
        let status = std::thread::spawn(|| {
            keep_only(CapabilitySet::BPF).expect("every thread may");
            std::fs::read_to_string("/proc/thread-self/status").expect("readable")
        });
        let status = status.join().expect("no panic");
        let set = |name: &str| {
            let hex = status.lines().find_map(|line| line.strip_prefix(name));
            let bits = u64::from_str_radix(hex.expect("a line").trim(), 16);
            CapabilitySet::from_bits_retain(bits.expect("hexadecimal"))
        };
        for name in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            assert!(CapabilitySet::BPF.contains(set(name)), "{status}");
        }
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
        let before = std::fs::read_to_string("/proc/self/status").expect("readable");
        assert!(before.contains("NoNewPrivs:\t0"), "of this thread alone");
    }
}
