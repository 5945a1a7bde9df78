//! Stops every thread of a process for a moment, so that its memory holds still.
//!
//! A signal would not do: SIGSTOP is seen by its parent, and a process can tell. Threads are traced instead (ptrace(2),
//! `PTRACE_SEIZE` and `PTRACE_INTERRUPT`), by a thread of ours that waits for none of them: it looks at what state they
//! are in. When that thread ends, however it ends, the kernel lets all of them go on, and delivers what signals they were
//! about to get: `exit_ptrace` and `ptrace_signal` (kernel/ptrace.c, kernel/signal.c, Linux 6.12) use the number that
//! `ptrace_stop` left, which only a wait would have taken away.

use std::{
    collections::BTreeSet,
    fs,
    thread::{self, sleep},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::ptrace::{self, Options},
    unistd::Pid as RawPid,
};

use crate::model::Pid;

/// How long all threads together may take to stop.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two looks at them.
const LOOK_EVERY: Duration = Duration::from_micros(200);
/// Threads that are stopped at most.
const THREADS_MAX: usize = 16_384;

/// Why a process was not stopped. Nothing was done then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotStopped {
    /// There is no such process any more.
    #[error("it has ended")]
    Gone,
    /// We may not trace it: a debugger does, or the kernel forbids it.
    #[error(
        "its threads cannot be stopped: {}",
        match tracer {
            0 => "the kernel refuses (see kernel.yama.ptrace_scope)".to_owned(),
            tracer => format!("process {tracer} is tracing it, a debugger or strace: end that first"),
        }
    )]
    Refused {
        /// Who traces it; 0: nobody.
        tracer: u32,
    },
    /// A thread did not stop in good time.
    #[error(
        "thread {thread} does not stop: it is in state {state}, waiting for a device or a file system"
    )]
    Busy {
        /// The thread.
        thread: u32,
        /// What `/proc/PID/task/TID/stat` shows.
        state: char,
    },
    /// More threads than are stopped.
    #[error("it has more than {THREADS_MAX} threads")]
    TooMany,
}

/// A signal has stopped the process (SIGSTOP, Ctrl-Z).
pub(super) fn is_halted(pid: Pid) -> bool {
    state(pid, pid.0) == Some('T')
}

/// Does `work` while no thread of the process runs.
///
/// They stand still for some hundred microseconds. System calls in which they wait are begun again by the kernel, or fail
/// with `EINTR` where they cannot be (signal(7)), as after any signal.
pub(super) fn while_stopped<T: Send>(
    pid: Pid,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NotStopped> {
    thread::scope(|scope| {
        let tracer = scope.spawn(move || {
            stop_all(pid)?;
            Ok(work())
        });
        tracer.join().unwrap_or(Err(NotStopped::Gone))
    })
}

fn stop_all(pid: Pid) -> Result<(), NotStopped> {
    let begun = Instant::now();
    let mut seized = BTreeSet::new();
    // A thread that was not stopped yet may have made another one.
    loop {
        let threads = threads(pid)?;
        let new: Vec<u32> = threads.difference(&seized).copied().collect();
        if new.is_empty() {
            return Ok(());
        }
        for &thread in &new {
            if seize(pid, thread)? {
                seized.insert(thread);
            }
        }
        for &thread in &new {
            wait_until_stopped(pid, thread, begun)?;
        }
    }
}

/// False: the thread has ended.
fn seize(pid: Pid, thread: u32) -> Result<bool, NotStopped> {
    let raw = RawPid::from_raw(i32::try_from(thread).map_err(|_| NotStopped::Gone)?);
    let done = ptrace::seize(raw, Options::empty()).and_then(|()| ptrace::interrupt(raw));
    match done {
        Ok(()) => Ok(true),
        Err(Errno::ESRCH) => Ok(false),
        // A thread that is about to end cannot be traced either.
        Err(_) if matches!(state(pid, thread), None | Some('X' | 'x')) => Ok(false),
        Err(_) => Err(NotStopped::Refused {
            tracer: tracer(pid, thread),
        }),
    }
}

fn wait_until_stopped(pid: Pid, thread: u32, begun: Instant) -> Result<(), NotStopped> {
    loop {
        match state(pid, thread) {
            // Stopped by a tracer; gone, or on its way.
            Some('t' | 'Z' | 'X' | 'x') | None => return Ok(()),
            Some(state) if begun.elapsed() > PATIENCE => {
                return Err(NotStopped::Busy { thread, state });
            }
            Some(_) => sleep(LOOK_EVERY),
        }
    }
}

fn threads(pid: Pid) -> Result<BTreeSet<u32>, NotStopped> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| NotStopped::Gone)?;
    let ids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let ids: BTreeSet<u32> = ids
        .filter(|&thread| !matches!(state(pid, thread), None | Some('Z' | 'X' | 'x')))
        .take(THREADS_MAX + 1)
        .collect();
    match ids.len() {
        0 => Err(NotStopped::Gone),
        number if number > THREADS_MAX => Err(NotStopped::TooMany),
        _ => Ok(ids),
    }
}

/// The letter behind the name, which is in parentheses and may hold some itself.
fn state(pid: Pid, thread: u32) -> Option<char> {
    let stat = fs::read(format!("/proc/{pid}/task/{thread}/stat")).ok()?;
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(close + 2).copied().map(char::from)
}

fn tracer(pid: Pid, thread: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status"));
    let status = status.unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    line.and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// A process that never rests, and ends with the test.
    struct Busy(Child);

    impl Busy {
        fn start() -> Self {
            let child = Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .spawn();
            Self(child.expect("sh starts"))
        }

        fn pid(&self) -> Pid {
            Pid(self.0.id())
        }

        fn cpu_ticks(&self) -> u64 {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it lives");
            let fields: Vec<&str> = stat
                .rsplit_once(')')
                .expect("a name")
                .1
                .split(' ')
                .collect();
            fields[12].parse::<u64>().expect("utime") + fields[13].parse::<u64>().expect("stime")
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn nothing_runs_meanwhile_and_everything_afterwards() {
        let busy = Busy::start();
        let stood = while_stopped(busy.pid(), || {
            let before = busy.cpu_ticks();
            sleep(Duration::from_millis(60));
            let again = while_stopped(busy.pid(), || ());
            assert!(matches!(again, Err(NotStopped::Refused { tracer: 1.. })));
            busy.cpu_ticks() - before
        });
        assert_eq!(stood, Ok(0));
        let before = busy.cpu_ticks();
        let begun = Instant::now();
        while busy.cpu_ticks() == before && begun.elapsed() < Duration::from_secs(10) {
            sleep(Duration::from_millis(20));
        }
        assert!(busy.cpu_ticks() > before, "it runs again");
    }

    #[test]
    fn a_process_that_is_gone_cannot_be_stopped() {
        let mut busy = Busy::start();
        let _ = busy.0.kill();
        assert!(busy.0.wait().is_ok());
        assert_eq!(while_stopped(busy.pid(), || ()), Err(NotStopped::Gone));
    }
}
