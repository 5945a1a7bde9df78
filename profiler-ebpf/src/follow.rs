//! Keeps up with processes: children of targets become targets before they run, a new program begins without its
//! predecessor's mappings, and whoever ends is taken out before its pid can be another's.
//!
//! User space is told in the ring of the samples, so that it hears of everything in the order in which it happened.

use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid, bpf_ktime_get_boot_ns, bpf_ktime_get_ns, bpf_probe_read_kernel,
    generated::bpf_ringbuf_output,
};
use profiler_common::{
    counters,
    process_event::{PROCESS_EVENT_BYTES, ProcessEvent},
    record::kind,
    target::TargetTables,
};

use crate::{
    emit::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    maps::{self, PROCESSES, SAMPLES, global},
    python, target,
};

/// Bytes of a `struct upid` (include/linux/pid.h): the number, and its namespace.
const UPID_BYTES: u64 = 16;
/// Where the namespace stands in it.
const UPID_NAMESPACE: u32 = 8;
/// Pid namespaces inside each other (`MAX_PID_NS_LEVEL`, include/linux/pid_namespace.h).
const LEVELS_MAX: u32 = 32;

/// The current task has made `child`.
#[inline(always)]
pub(crate) fn forked(child: u64) {
    if global!(FOLLOW_FORKS) == 0 {
        return;
    }
    let Some(parent) = target::current() else {
        return;
    };
    let offsets = global!(TASK_OFFSETS);
    let Some(child_tgid) = read::<u32>(child, offsets.task_tgid) else {
        return;
    };
    if child_tgid == (bpf_get_current_pid_tgid() >> 32) as u32 {
        // A thread.
        return;
    }
    let Some((pid, ns_pid)) = pids_of(child) else {
        return;
    };
    if PROCESSES.insert(pid, parent.tables, 0).is_err() {
        maps::count(counters::PROCESSES_FULL);
        return;
    }
    tell(
        &ProcessEvent {
            pid,
            ns_pid,
            parent: parent.tgid,
            ..now(kind::FORK)
        },
        BPF_RB_NO_WAKEUP,
    );
}

/// The current process runs another program, which was loaded with `binprm`.
#[inline(always)]
pub(crate) fn executed(binprm: u64) {
    let Some((pid, _)) = target::current_ids() else {
        return;
    };
    // SAFETY: only whether there is one matters.
    let is_target = unsafe { PROCESSES.get(pid) }.is_some();
    if is_target {
        // Nothing of the old program's is true of the new one. It cannot fail: the entry is there.
        let _ = PROCESSES.insert(pid, TargetTables::UNKNOWN, 0);
    } else if global!(TELL_ALL_EXECS) == 0 {
        return;
    }
    // At once: it may be a matter of milliseconds until the process ends and takes its mappings with it.
    tell(
        &ProcessEvent {
            pid,
            // `load_elf_binary` (fs/binfmt_elf.c) makes it the start of the stack.
            stack: read::<u64>(binprm, global!(TASK_OFFSETS).binprm_p).unwrap_or(0),
            ..now(kind::EXEC)
        },
        BPF_RB_FORCE_WAKEUP,
    );
}

/// The current task, `task`, ends.
#[inline(always)]
pub(crate) fn exited(task: u64) {
    let Some(target) = target::current() else {
        return;
    };
    python::forget_thread(target.tgid);
    let offsets = global!(TASK_OFFSETS);
    let Some(signal) = read::<u64>(task, offsets.task_signal) else {
        return;
    };
    // Counted down by `do_exit` before this tracepoint.
    if read::<u32>(signal, offsets.signal_live) != Some(0) {
        return;
    }
    if PROCESSES.remove(target.tgid).is_err() {
        // Two threads ended at once, and the other one was here before.
        return;
    }
    let reaped = read::<u64>(signal, offsets.signal_runtime).unwrap_or(0);
    let own = read::<u64>(task, offsets.task_runtime).unwrap_or(0);
    tell(
        &ProcessEvent {
            pid: target.tgid,
            cpu_ns: reaped + own,
            ..now(kind::EXIT)
        },
        BPF_RB_NO_WAKEUP,
    );
}

/// A task's pid in pyprof-bpf's namespace, and in its own.
#[inline(always)]
fn pids_of(task: u64) -> Option<(u32, u32)> {
    let offsets = global!(TASK_OFFSETS);
    let pid = read::<u64>(task, offsets.task_thread_pid)?;
    let level = read::<u32>(pid, offsets.pid_level)?;
    if level > LEVELS_MAX {
        return None;
    }
    let numbers = pid + u64::from(offsets.pid_numbers);
    let upid = |level: u32| numbers + u64::from(level) * UPID_BYTES;
    let innermost = read::<u32>(upid(level), 0)?;
    let ours = global!(PID_NS_INO);
    if ours == 0 {
        return Some((read::<u32>(numbers, 0)?, innermost));
    }
    for outwards in 0..=LEVELS_MAX {
        if outwards > level {
            break;
        }
        let here = upid(level - outwards);
        let namespace = read::<u64>(here, UPID_NAMESPACE)?;
        if u64::from(read::<u32>(namespace, offsets.namespace_inum)?) == ours {
            return Some((read::<u32>(here, 0)?, innermost));
        }
    }
    None
}

/// An event of the current moment.
#[inline(always)]
fn now(kind: u32) -> ProcessEvent {
    ProcessEvent {
        // SAFETY: these helpers only return a number.
        ktime_ns: unsafe { bpf_ktime_get_ns() },
        // SAFETY: as above.
        boottime_ns: unsafe { bpf_ktime_get_boot_ns() },
        cpu_ns: 0,
        stack: 0,
        kind,
        pid: 0,
        parent: 0,
        ns_pid: 0,
    }
}

#[inline(always)]
fn tell(event: &ProcessEvent, wake: u64) {
    let ring = (&raw const SAMPLES).cast_mut().cast();
    let event = core::ptr::from_ref(event).cast_mut().cast();
    // SAFETY: `SAMPLES` is a ring buffer map, and the event a live value of the size given, without padding.
    if unsafe { bpf_ringbuf_output(ring, event, PROCESS_EVENT_BYTES as u64, wake) } != 0 {
        maps::count(counters::EVENTS_LOST);
    }
}

/// Reads a value of the kernel's at `base + offset`.
#[inline(always)]
fn read<T>(base: u64, offset: u32) -> Option<T> {
    let place = (base + u64::from(offset)) as *const T;
    // SAFETY: a checked read: an address that is none gives an error.
    unsafe { bpf_probe_read_kernel(place) }.ok()
}
