//! Is the task under this tick to be sampled?

use aya_ebpf::{
    bindings::bpf_pidns_info,
    helpers::{bpf_get_current_pid_tgid, generated::bpf_get_ns_current_pid_tgid},
};
use profiler_common::target::TargetTables;

use crate::maps::{PROCESSES, global};

/// The current task, when it belongs to a target.
pub(crate) struct Target {
    pub(crate) tgid: u32,
    pub(crate) tid: u32,
    /// Its places in `PROCESS_MAPPINGS` and `PYTHON_LAYOUTS`.
    pub(crate) tables: TargetTables,
}

/// The target under this tick.
#[inline(always)]
pub(crate) fn current() -> Option<Target> {
    let (tgid, tid) = current_ids()?;
    // SAFETY: the value is copied at once; whoever replaces it does so as a whole.
    let tables = unsafe { PROCESSES.get(tgid) }.copied()?;
    Some(Target { tgid, tid, tables })
}

/// Process and thread id of the current task in pyprof-bpf's own pid namespace, as user space knows them; `None`: it is
/// not visible there.
#[inline(always)]
pub(crate) fn current_ids() -> Option<(u32, u32)> {
    let inode = global!(PID_NS_INO);
    if inode == 0 {
        let both = bpf_get_current_pid_tgid();
        return Some(((both >> 32) as u32, both as u32));
    }
    let device = global!(PID_NS_DEV);
    let mut info = bpf_pidns_info { pid: 0, tgid: 0 };
    // SAFETY: `info` is a live stack variable of the size given.
    let failed = unsafe {
        bpf_get_ns_current_pid_tgid(
            device,
            inode,
            &raw mut info,
            size_of::<bpf_pidns_info>() as u32,
        )
    };
    (failed == 0).then_some((info.tgid, info.pid))
}
