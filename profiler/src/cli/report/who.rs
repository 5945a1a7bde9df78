//! Which processes were recorded, for how long and at which rate.

use std::{collections::BTreeSet, time::Duration};

use super::super::{
    names::short_command,
    text::{grouped, seconds, visible},
};
use crate::{
    model::Pid,
    session::{SampledEvent, StopReason, Summary},
};

/// `app.py [4242]`.
pub(super) fn named(summary: &Summary, pid: Pid) -> String {
    let target = summary.targets.iter().find(|target| target.pid == pid);
    let label = target.map_or_else(|| "process".to_owned(), |target| visible(&target.label));
    format!("{label} [{pid}]")
}

/// The targets in a few words.
pub(super) fn who(summary: &Summary) -> String {
    let sampled = summary.targets.iter().find(|target| target.samples > 0);
    let others = summary.unsampled.processes + idle(summary);
    let without = match others {
        0 => String::new(),
        more => format!(" and {} without samples", grouped(more)),
    };
    match (sampled.or(summary.targets.first()), processes(summary)) {
        (Some(target), 0) if others == 1 => {
            format!("pid {} ({})", target.pid, short_command(target))
        }
        (_, 0) => match others {
            0 => "no process".to_owned(),
            others => counted_processes(others),
        },
        (Some(target), 1) => {
            format!("pid {} ({}){without}", target.pid, short_command(target))
        }
        (_, several) => format!("{}{without}", counted_processes(several)),
    }
}

pub(super) fn counted_processes(number: u64) -> String {
    match number {
        1 => "1 process".to_owned(),
        more => format!("{} processes", grouped(more)),
    }
}

/// Processes with samples: one that ran several programs counts once.
pub(super) fn processes(summary: &Summary) -> u64 {
    let sampled = summary.targets.iter().filter(|target| target.samples > 0);
    let pids: BTreeSet<Pid> = sampled.map(|target| target.pid).collect();
    pids.len() as u64 + summary.unsampled.unlisted
}

/// All processes that were recorded, with samples or without.
pub(super) fn watched_processes(summary: &Summary) -> u64 {
    processes(summary) + summary.unsampled.processes + idle(summary)
}

/// Processes that were asked for and have no samples.
fn idle(summary: &Summary) -> u64 {
    let pids: BTreeSet<Pid> = summary.targets.iter().map(|target| target.pid).collect();
    let sampled = summary.targets.iter().filter(|target| target.samples > 0);
    let sampled: BTreeSet<Pid> = sampled.map(|target| target.pid).collect();
    pids.difference(&sampled).count() as u64
}

pub(super) fn how_long(summary: &Summary) -> String {
    let time = seconds(summary.elapsed);
    match summary.stop {
        StopReason::TargetExited if summary.roots > 1 => {
            format!("until all of them had exited after {time}")
        }
        StopReason::TargetExited => format!("until the target exited after {time}"),
        StopReason::Interrupted | StopReason::Duration => format!("in {time}"),
    }
}

pub(super) fn rate(summary: &Summary) -> String {
    let event = match summary.event {
        SampledEvent::Cycles => "cycles",
        SampledEvent::CpuClock => "cpu-clock",
    };
    format!("{} ({event})", summary.frequency)
}

pub(super) fn cpu_time(summary: &Summary) -> Duration {
    let told: Duration = summary.targets.iter().map(|target| target.cpu_time).sum();
    told + summary.unsampled.cpu_time
}
