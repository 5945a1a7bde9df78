//! Whose file gets its rows next, so that no process keeps the others waiting.
//!
//! Each process has an account of the time that its files took. Of the processes that have files to be compiled, the one
//! that has used least comes first. Files run side by side: one thread is for small files alone, so that a process of
//! ordinary size does not wait for large ones at all.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use rustc_hash::FxHashMap;

use crate::model::Pid;

/// Threads that compile.
pub(super) const THREADS: usize = 2;
/// Larger files leave one thread to others. A file of this size takes some 0.2 s at most.
const SMALL_BYTES: u64 = 16 << 20;
/// Bytes of the large files that are compiled at a time, unless it is only one. Compiling takes up to five times the size.
const BYTES_AT_ONCE: u64 = 96 << 20;
/// Time that making rows may take, and a quarter of the time since the beginning on top of it. The largest processes
/// known (CUDA back ends) take about 5 s; one that maps ever new files would otherwise keep a CPU busy.
const BUILD_TIME: Duration = Duration::from_secs(10);
/// What part of that one process may use.
const OWN_PART: u32 = 2;
/// With less time than this no file is begun.
const LEAST_TIME: Duration = Duration::from_millis(50);

/// A file to be compiled.
#[derive(Debug)]
pub(super) struct Job<T> {
    /// Whose account it is for.
    pub(super) pid: Pid,
    /// Size of the file.
    pub(super) bytes: u64,
    /// The rest.
    pub(super) what: T,
}

/// Files that wait, and those that run.
#[derive(Debug)]
pub(super) struct Schedule<T> {
    waiting: BTreeMap<Pid, VecDeque<Job<T>>>,
    /// Processes and sizes of those that run.
    running: Vec<(Pid, u64)>,
    spent: FxHashMap<Pid, Duration>,
    spent_in_all: Duration,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            running: Vec::new(),
            spent: FxHashMap::default(),
            spent_in_all: Duration::ZERO,
        }
    }
}

impl<T> Schedule<T> {
    /// A file waits from now on.
    pub(super) fn add(&mut self, job: Job<T>) {
        self.waiting.entry(job.pid).or_default().push_back(job);
    }

    /// The next file, which runs from now on, and how long it may take. `None`: there is none, no thread is free for it, or no
    /// time is left. `elapsed`: since the beginning.
    pub(super) fn next(&mut self, elapsed: Duration) -> Option<(Job<T>, Duration)> {
        if self.running.len() >= THREADS {
            return None;
        }
        let fits = |pid: Pid, job: &Job<T>| {
            if job.bytes <= SMALL_BYTES {
                return true;
            }
            let mut large = self
                .running
                .iter()
                .filter(|(_, bytes)| *bytes > SMALL_BYTES);
            let is_own = large.clone().any(|(running, _)| *running == pid);
            let bytes: u64 = large.by_ref().map(|(_, bytes)| bytes).sum();
            !is_own && (bytes == 0 || bytes + job.bytes <= BYTES_AT_ONCE)
        };
        let large = self
            .running
            .iter()
            .filter(|(_, bytes)| *bytes > SMALL_BYTES);
        let is_last_thread = large.count() + 1 >= THREADS;
        let mut best = None;
        for (&pid, jobs) in &self.waiting {
            let running = self.running.iter().filter(|(running, _)| *running == pid);
            let rank = (running.count(), self.spent_by(pid), pid);
            if best.as_ref().is_some_and(|(best, _)| *best <= rank)
                || self.left(pid, elapsed).is_zero()
            {
                continue;
            }
            // The order of a process's own files is given; a small one passes a large one for which there is no thread.
            let index = jobs
                .iter()
                .position(|job| fits(pid, job) && (job.bytes <= SMALL_BYTES || !is_last_thread));
            if let Some(index) = index {
                best = Some((rank, index));
            }
        }
        let ((_, _, pid), index) = best?;
        let jobs = self.waiting.get_mut(&pid)?;
        let job = jobs.remove(index)?;
        if jobs.is_empty() {
            self.waiting.remove(&pid);
        }
        self.running.push((pid, job.bytes));
        let left = self.left(pid, elapsed);
        Some((job, left))
    }

    /// A file that ran has taken so long.
    pub(super) fn done(&mut self, pid: Pid, bytes: u64, took: Duration) {
        if let Some(index) = self.running.iter().position(|it| *it == (pid, bytes)) {
            self.running.swap_remove(index);
        }
        *self.spent.entry(pid).or_default() += took;
        self.spent_in_all += took;
    }

    /// Files wait or run that are done before long: not those for which no time is left.
    pub(super) fn is_busy(&self, elapsed: Duration) -> bool {
        !self.running.is_empty()
            || self
                .waiting
                .keys()
                .any(|&pid| !self.left(pid, elapsed).is_zero())
    }

    /// Some files wait, be it for time.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Time is left for another file of the process.
    pub(super) fn has_time(&self, pid: Pid, elapsed: Duration) -> bool {
        !self.left(pid, elapsed).is_zero()
    }

    fn spent_by(&self, pid: Pid) -> Duration {
        self.spent.get(&pid).copied().unwrap_or_default()
    }

    /// What is left of a process's own time, and of everybody's.
    fn left(&self, pid: Pid, elapsed: Duration) -> Duration {
        let all = BUILD_TIME + elapsed / 4;
        let own = (all / OWN_PART).saturating_sub(self.spent_by(pid));
        let left = own.min(all.saturating_sub(self.spent_in_all));
        if left < LEAST_TIME {
            Duration::ZERO
        } else {
            left
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = 64 << 20;
    const SMALL: u64 = 1 << 20;
    const START: Duration = Duration::ZERO;

    fn schedule(jobs: &[(u32, u64, u32)]) -> Schedule<u32> {
        let mut schedule = Schedule::default();
        for &(pid, bytes, what) in jobs {
            let pid = Pid(pid);
            schedule.add(Job { pid, bytes, what });
        }
        schedule
    }

    fn next(schedule: &mut Schedule<u32>) -> Option<u32> {
        schedule.next(START).map(|(job, _)| job.what)
    }

    #[test]
    fn small_files_of_others_do_not_wait_for_a_large_one() {
        let jobs = [
            (1, LARGE, 10),
            (1, LARGE, 11),
            (2, SMALL, 20),
            (2, SMALL, 21),
        ];
        let mut schedule = schedule(&jobs);
        assert_eq!(next(&mut schedule), Some(10));
        assert_eq!(next(&mut schedule), Some(20));
        assert_eq!(next(&mut schedule), None, "no thread is free");
        schedule.done(Pid(2), SMALL, Duration::from_millis(5));
        assert_eq!(
            next(&mut schedule),
            Some(21),
            "not the second large one of the same"
        );
        assert_eq!(next(&mut schedule), None);
        schedule.done(Pid(1), LARGE, Duration::from_secs(2));
        assert_eq!(next(&mut schedule), Some(11));
    }

    #[test]
    fn who_has_used_least_comes_first() {
        let mut schedule = schedule(&[(1, SMALL, 10), (1, SMALL, 11), (2, SMALL, 20)]);
        assert_eq!(next(&mut schedule), Some(10));
        schedule.done(Pid(1), SMALL, Duration::from_secs(1));
        assert_eq!(next(&mut schedule), Some(20));
        assert_eq!(next(&mut schedule), Some(11));
    }

    #[test]
    fn large_files_leave_a_thread_and_share_the_memory() {
        let third = 30 << 20;
        let jobs = [
            (1, third, 10),
            (2, third, 20),
            (3, third, 30),
            (4, SMALL, 40),
        ];
        let mut schedule = schedule(&jobs);
        let started: Vec<_> = std::iter::from_fn(|| next(&mut schedule)).collect();
        assert_eq!(started, [10, 40]);
        let mut two = self::schedule(&[(1, LARGE, 10), (2, LARGE, 20)]);
        assert_eq!((next(&mut two), next(&mut two)), (Some(10), None));
    }

    #[test]
    fn one_process_does_not_use_up_the_time_of_all() {
        let mut schedule = schedule(&[(1, SMALL, 10), (1, SMALL, 11), (2, SMALL, 20)]);
        assert_eq!(next(&mut schedule), Some(10));
        schedule.done(Pid(1), SMALL, BUILD_TIME / OWN_PART);
        assert_eq!(next(&mut schedule), Some(20));
        assert_eq!(next(&mut schedule), None, "its part is used up");
        assert!(!schedule.has_time(Pid(1), START) && schedule.has_time(Pid(3), START));
        // There is more as time goes on.
        let later = schedule.next(Duration::from_secs(8));
        assert_eq!(
            later.map(|(job, left)| (job.what, left)),
            Some((11, Duration::from_secs(1)))
        );
    }

    #[test]
    fn it_is_busy_until_all_is_done_that_there_is_time_for() {
        let mut schedule = schedule(&[(1, SMALL, 10), (1, SMALL, 11)]);
        assert!(schedule.is_busy(START) && !schedule.is_empty());
        assert_eq!(next(&mut schedule), Some(10));
        schedule.done(Pid(1), SMALL, BUILD_TIME / OWN_PART);
        assert!(!schedule.is_busy(START) && !schedule.is_empty());
        assert!(schedule.is_busy(BUILD_TIME));
    }
}
