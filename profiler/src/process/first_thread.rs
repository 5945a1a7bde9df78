//! Where `/proc` shows a process whose first thread has ended while others run.
//!
//! A thread that ends gives up its memory, its files and its namespaces (`do_exit`, kernel/exit.c, Linux 6.12); the
//! first thread then stays as a zombie until the others have ended as well. `/proc/PID` is about that thread: its `maps`
//! are empty, `exe`, `root` and `fd` lead nowhere. `/proc/PID/task/TID` of a thread that runs has them all.

use std::fs;

use super::status::Stat;
use crate::model::Pid;

/// Threads that are looked at for one that runs.
const THREADS_MAX: usize = 4096;

/// The folder that has the memory, files and program of a process: `/proc/PID`, or that of another thread where the first
/// one has ended. Costs one file read.
pub fn proc_folder(pid: Pid) -> String {
    match running_thread(pid) {
        Some(thread) => format!("/proc/{pid}/task/{thread}"),
        None => format!("/proc/{pid}"),
    }
}

/// A thread that runs, of a process whose first thread has ended; `None` for all other processes.
pub fn running_thread(pid: Pid) -> Option<u32> {
    let has_ended = |stat: String| Some(Stat::parse(&fs::read(stat).ok()?)?.is_dead());
    if !has_ended(format!("/proc/{pid}/stat"))? {
        return None;
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads
        .flatten()
        .take(THREADS_MAX)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|thread| has_ended(format!("/proc/{pid}/task/{thread}/stat")) == Some(false))
}

/// It has exited: all its threads have ended. `stat` is that of its first thread.
pub(super) fn has_exited(pid: Pid, stat: &Stat) -> bool {
    stat.is_dead() && running_thread(pid).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_first_thread_runs_is_looked_at_as_a_whole() {
        let me = Pid(std::process::id());
        assert_eq!(running_thread(me), None);
        assert_eq!(proc_folder(me), format!("/proc/{me}"));
        assert_eq!(proc_folder(Pid(u32::MAX)), format!("/proc/{}", u32::MAX));
    }
}
