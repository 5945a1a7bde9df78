//! What can go wrong around a recording, made to go wrong. No finished sample is lost without being counted.

mod buffer;
mod kills;
mod output;
mod targets;

use std::{fs, time::Duration};

use super::{
    Python, Skip, Test, Verdict, eventually, note, recording, running, scratch, skip, stops,
    workload,
};

/// All of them. They are about the program, not about Pythons: one is enough.
pub(super) fn tests() -> Vec<Test> {
    [buffer::TESTS, output::TESTS, kills::TESTS, targets::TESTS].concat()
}

/// Waits until a process has used so much CPU time from now on. Samples go by that, and on a busy machine it takes long.
fn let_work(pid: u32, time: Duration) {
    let until = cpu_time(pid) + time;
    eventually("the target's work", || cpu_time(pid) >= until);
}

/// User and system time (proc_pid_stat(5)), which is counted in hundredths of a second.
fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

/// A Python that works and nothing else.
fn busy(python: &Python) -> running::Running {
    running::Running::start(python.perf().arg(workload("chain")))
}
