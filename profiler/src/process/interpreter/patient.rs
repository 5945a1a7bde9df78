//! Reads of a target's memory that nobody waits for longer than he wants.
//!
//! A page of another process may come from anywhere: a slow disk, a file system that the process itself serves (FUSE), a
//! page fault that it handles itself (`userfaultfd`). Whoever reads it then waits until that process lets him go on. So
//! such reads are made on threads of their own, one at first. While one does not come back, the next read gets another
//! thread; it ends with the target or with us.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::wait_budget::WaitBudget;

/// The threads' name, at most 15 bytes. They catch their own panics.
pub(crate) const THREAD_NAME: &str = "python-reader";

/// Threads there may be. When none of them comes back, nothing more is read.
const THREADS_MAX: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// Runs reads on other threads.
#[derive(Debug)]
pub struct PatientReader {
    threads: Vec<Worker>,
    /// Time for waiting, of all reads together.
    budget: WaitBudget,
}

/// One thread.
#[derive(Debug)]
struct Worker {
    jobs: SyncSender<Job>,
    is_busy: Arc<AtomicBool>,
}

/// A read that was begun.
#[derive(Debug)]
pub struct Reading<R>(Receiver<R>);

/// What became of a read so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<R> {
    /// It is done.
    Done(R),
    /// It has not come back.
    Waiting,
    /// It panicked.
    Failed,
}

impl Default for PatientReader {
    fn default() -> Self {
        Self {
            threads: Vec::new(),
            budget: WaitBudget::new(Instant::now()),
        }
    }
}

impl<R> Reading<R> {
    /// Waits for its result, at most for the given time. While samples wait, [`PatientReader::wait`] is the way to wait.
    pub fn wait(&self, timeout: Duration) -> Progress<R> {
        match self.0.recv_timeout(timeout) {
            Ok(result) => Progress::Done(result),
            Err(RecvTimeoutError::Timeout) => Progress::Waiting,
            Err(RecvTimeoutError::Disconnected) => Progress::Failed,
        }
    }
}

impl PatientReader {
    /// Begins a read. `None`: too many before it have not come back.
    ///
    /// Costs two switches between threads, some 20 µs: rather one call with much to read than many.
    pub fn begin<R: Send + 'static>(
        &mut self,
        read: impl FnOnce() -> R + Send + 'static,
    ) -> Option<Reading<R>> {
        let (answer, result) = sync_channel(1);
        let job: Job = Box::new(move || {
            // Whoever asked may be gone.
            let _ = answer.try_send(read());
        });
        let is_free = |worker: &Worker| !worker.is_busy.load(Ordering::Acquire);
        let worker = match self.threads.iter().position(is_free) {
            Some(index) => &self.threads[index],
            None => self.start()?,
        };
        worker.is_busy.store(true, Ordering::Release);
        worker.jobs.try_send(job).ok()?;
        Some(Reading(result))
    }

    /// Waits for the result of a read: for `timeout` at most, and no longer than is left of the time for waiting, which all
    /// reads share.
    pub fn wait<R>(&mut self, reading: &Reading<R>, timeout: Duration) -> Progress<R> {
        let began = Instant::now();
        let timeout = timeout.min(self.budget.left(began));
        let progress = reading.wait(timeout);
        if !timeout.is_zero() {
            let now = Instant::now();
            self.budget.spend(now, now.saturating_duration_since(began));
        }
        progress
    }

    /// From now on, all waits together take no longer than `total`: the recording is to end.
    pub const fn limit_waits(&mut self, total: Duration) {
        self.budget.set_final(total);
    }

    fn start(&mut self) -> Option<&Worker> {
        if self.threads.len() >= THREADS_MAX {
            return None;
        }
        let (jobs, waiting) = sync_channel::<Job>(1);
        let is_busy = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_busy);
        thread::Builder::new()
            .name(THREAD_NAME.into())
            .spawn(move || {
                for job in waiting {
                    // What it was given is dropped with it.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                    flag.store(false, Ordering::Release);
                }
            })
            .inspect_err(|error| tracing::debug!("no thread to read Python with: {error}"))
            .ok()?;
        self.threads.push(Worker { jobs, is_busy });
        self.threads.last()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc::channel};

    use super::*;

    const LONG: Duration = Duration::from_mins(1);
    const SHORT: Duration = Duration::from_millis(1);

    fn read<R: Send + 'static>(
        reader: &mut PatientReader,
        read: impl FnOnce() -> R + Send + 'static,
    ) -> Progress<R> {
        reader.begin(read).expect("a thread is free").wait(LONG)
    }

    #[test]
    fn a_read_gives_its_result() {
        let mut reader = PatientReader::default();
        assert_eq!(read(&mut reader, || 6 * 7), Progress::Done(42));
        assert_eq!(read(&mut reader, || "again"), Progress::Done("again"));
    }

    #[test]
    fn a_read_that_does_not_come_back_keeps_nobody_waiting_and_may_come_later() {
        let mut reader = PatientReader::default();
        let (go, stuck) = channel::<()>();
        let stuck = Mutex::new(stuck);
        let blocked = move || stuck.lock().is_ok_and(|it| it.recv().is_ok());
        let late = reader.begin(blocked).expect("a thread");
        assert_eq!(late.wait(SHORT), Progress::Waiting);
        assert_eq!(
            read(&mut reader, || 1),
            Progress::Done(1),
            "others are read"
        );
        go.send(()).expect("it waits");
        assert_eq!(late.wait(LONG), Progress::Done(true));
    }

    #[test]
    fn there_are_not_more_threads_than_so_many() {
        let mut reader = PatientReader::default();
        let (go, stuck) = channel::<()>();
        let stuck = Arc::new(Mutex::new(stuck));
        let blocked: Vec<_> = (0..THREADS_MAX)
            .map(|_| {
                let stuck = Arc::clone(&stuck);
                reader.begin(move || stuck.lock().is_ok_and(|it| it.recv().is_ok()))
            })
            .collect();
        assert!(blocked.iter().all(Option::is_some));
        assert!(reader.begin(|| 1).is_none());
        drop(go);
    }

    #[test]
    fn a_thousand_reads_that_do_not_come_back_share_one_limit() {
        let mut reader = PatientReader::default();
        let (go, stuck) = channel::<()>();
        let stuck = Mutex::new(stuck);
        let late = reader
            .begin(move || stuck.lock().is_ok_and(|it| it.recv().is_ok()))
            .expect("a thread");
        reader.limit_waits(SHORT);
        for _ in 0..1000 {
            // Each of them would wait for a minute.
            assert_eq!(reader.wait(&late, LONG), Progress::Waiting);
        }
        drop(go);
    }

    #[test]
    fn a_panic_is_a_read_that_failed() {
        let mut reader = PatientReader::default();
        let panics = || -> u32 { std::panic::panic_any(()) };
        assert_eq!(read(&mut reader, panics), Progress::Failed);
        assert_eq!(read(&mut reader, || 1), Progress::Done(1));
    }
}
