//! Real-time scheduling of this process, so that a machine with more work than CPUs does not keep it from running.

use std::io;

/// The kernel does not schedule this process in real time.
#[derive(Debug, thiserror::Error)]
#[error(
    "the profiler cannot run at real-time priority {priority}: {source}\n  \
    That takes CAP_SYS_NICE (root has it, containers often take it away), and a control group that may run real-time \
    work.\n  \
    Leave out --realtime, or add the capability, in Docker by --cap-add=SYS_NICE"
)]
pub struct RealtimeError {
    priority: u32,
    source: io::Error,
}

/// The least and the greatest priority (sched(7)).
pub const PRIORITIES: std::ops::RangeInclusive<u32> = 1..=99;

/// Gives the calling thread the policy `SCHED_RR` with this priority. Threads and processes that it starts from then on
/// have it too.
///
/// Fails with `PermissionDenied` without `CAP_SYS_NICE` where `RLIMIT_RTPRIO` is lower (`user_check_sched_setscheduler` in
/// kernel/sched/syscalls.c, Linux 6.12), and in a control group that has no share of real-time work
/// (`CONFIG_RT_GROUP_SCHED`).
pub fn run_in_real_time(priority: u32) -> Result<(), RealtimeError> {
    let parameters = libc::sched_param {
        sched_priority: i32::try_from(priority).unwrap_or(i32::MAX),
    };
    // SAFETY: the parameters are valid for the call, which only reads them; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(RealtimeError {
            priority,
            source: io::Error::last_os_error(),
        }),
    }
}
