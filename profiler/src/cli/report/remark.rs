//! Remarks of the session as sentences.

use super::super::{
    file_remark::file_remark,
    text::{clip, counted, cpu_seconds, grouped, visible},
};
use crate::{process::NamedGroup, session::Remark};

/// Room for the path of a control group: names of containers are 64 digits long.
const GROUP_COLUMNS: usize = 120;

/// It is about which processes were sampled.
pub(super) const fn is_about_targets(remark: &Remark) -> bool {
    matches!(
        remark,
        Remark::Undersampled { .. }
            | Remark::Halted { .. }
            | Remark::GroupsIgnored(_)
            | Remark::Rootless(_)
    )
}

pub(super) fn remark(remark: &Remark) -> String {
    match remark {
        Remark::MappingsLeftOut(count) => format!(
            "{} not followed: too many in one process; stacks through them break off",
            counted(*count, "mapping")
        ),
        Remark::KernelNamesHidden => {
            "kernel functions have no names: that takes CAP_SYSLOG, or kernel.kptr_restrict = 0 and \
             kernel.perf_event_paranoid = 1"
                .to_owned()
        }
        Remark::SharedPerfMap { pid, rival, frames } => format!(
            "{} have two names each: pid {rival} writes the same /tmp/perf-PID.map as pid {pid}, whose pid it has in its \
             own container; give each a /tmp of its own",
            counted(*frames, "frame")
        ),
        Remark::NotPermitted(count) => format!(
            "{} could not be looked into, and {} not recorded: that takes sudo or CAP_SYS_PTRACE",
            if *count == 1 { "1 process".to_owned() } else { format!("{} processes", grouped(*count)) },
            if *count == 1 { "was" } else { "were" }
        ),
        Remark::KernelStacksFailed(count) => {
            format!("the kernel's part of {} could not be read", counted(*count, "stack"))
        }
        Remark::Limit(limit) => super::limits::sentence(limit),
        Remark::Files(limit, names) => file_remark(*limit, names),
        Remark::CannotFollow => {
            "child processes were not followed: this kernel has no BTF (CONFIG_DEBUG_INFO_BTF), or \
             forbids tracepoints"
                .to_owned()
        }
        Remark::EventsLost(count) => {
            format!(
                "{} of processes were lost, the sample buffer being full: some may lack names",
                counted(*count, "event")
            )
        }
        Remark::ChildrenNotRecorded(pids) => {
            let shown: Vec<String> = pids.iter().take(3).map(ToString::to_string).collect();
            let more = if pids.len() > 3 { ", …" } else { "" };
            let what = if pids.len() == 1 {
                "a child process that ran Python was"
            } else {
                "child processes that ran Python were"
            };
            format!("{what} not recorded (pid {}{more}): -s records them too", shown.join(", "))
        }
        Remark::Undersampled {
            pid,
            cpu_time,
            samples,
            others,
        } => format!(
            "pid {pid} used {} of CPU and has {}{}: fewer than its share of them",
            cpu_seconds(*cpu_time),
            counted(*samples, "sample"),
            match others {
                0 => String::new(),
                1 => " (so it is with 1 more)".to_owned(),
                others => format!(" (so it is with {} more)", grouped(*others)),
            }
        ),
        Remark::Halted { pid, halt, others } => format!(
            "pid {pid} is {}{}, and was not sampled meanwhile: {}",
            visible(&halt.to_string()),
            match others {
                0 => String::new(),
                1 => " (so is 1 more)".to_owned(),
                others => format!(" (so are {} more)", grouped(*others)),
            },
            visible(&halt.remedy(*pid))
        ),
        Remark::GroupsIgnored(groups) => {
            let more = groups.len().saturating_sub(1) as u64;
            format!(
                "not recorded: {}, whose id begins alike{}; --cgroup PATH records it",
                groups.first().map(group).unwrap_or_default(),
                if more > 0 {
                    format!(", and {} more", counted(more, "such group"))
                } else {
                    String::new()
                }
            )
        }
        Remark::Rootless(rootless) => format!(
            "recorded: {}; no group that only the administrator can make has that id",
            group(rootless)
        ),
    }
}

/// `control group PATH of user 1000`.
fn group(NamedGroup { path, owner }: &NamedGroup) -> String {
    let path = clip(&visible(&path.to_string_lossy()), GROUP_COLUMNS);
    match owner {
        Some(uid) => format!("control group {path} of user {uid}"),
        None => format!("control group {path}"),
    }
}

#[cfg(test)]
#[path = "remark_tests.rs"]
mod tests;
