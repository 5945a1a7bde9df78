//! Threads that compile files, while the thread of the table builder does everything else.

use std::{
    fs::File,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    time::Duration,
};

use super::{CompiledElf, UnwindError, compile_file_until, schedule::THREADS};
use crate::{
    model::Pid,
    process::{FileIdentity, thread_time},
};

/// The threads' name, at most 15 bytes. They catch their own panics.
pub(crate) const MAKER_NAME: &str = "unwind-rows";

/// What file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FileKey {
    File(FileIdentity),
    /// The kernel's own, the same in all processes.
    Vdso,
}

/// A file to be compiled.
pub(super) struct Task {
    pub(super) key: FileKey,
    pub(super) pid: Pid,
    pub(super) file: File,
    pub(super) bytes: u64,
    /// For the log, and harmless.
    pub(super) name: String,
    /// CPU time that it may take.
    pub(super) limit: Duration,
}

/// What became of it.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) key: FileKey,
    pub(super) pid: Pid,
    pub(super) bytes: u64,
    pub(super) name: String,
    pub(super) compiled: Result<Box<CompiledElf>, UnwindError>,
    pub(super) took: Duration,
}

/// The threads.
pub(super) struct Makers {
    tasks: Vec<(SyncSender<Task>, Arc<AtomicBool>)>,
}

impl Makers {
    /// Starts them; `done` gets what they made. `is_ending`: nothing is wanted any more.
    pub(super) fn start(
        is_ending: &Arc<AtomicBool>,
        done: impl Fn(Made) + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let mut tasks = Vec::new();
        for _ in 0..THREADS {
            let (sender, receiver) = sync_channel::<Task>(1);
            let is_busy = Arc::new(AtomicBool::new(false));
            let (is_ending, done, flag) =
                (Arc::clone(is_ending), done.clone(), Arc::clone(&is_busy));
            std::thread::Builder::new()
                .name(MAKER_NAME.into())
                .spawn(move || {
                    for task in receiver {
                        let made = make(task, &is_ending);
                        flag.store(false, Ordering::Release);
                        done(made);
                    }
                })?;
            tasks.push((sender, is_busy));
        }
        Ok(Self { tasks })
    }

    /// Has a thread that is free make the rows of a file. Given back if there is none.
    pub(super) fn begin(&self, task: Task) -> Result<(), Box<Task>> {
        let free = self
            .tasks
            .iter()
            .find(|(_, is_busy)| !is_busy.load(Ordering::Acquire));
        let Some((sender, is_busy)) = free else {
            return Err(Box::new(task));
        };
        is_busy.store(true, Ordering::Release);
        sender.try_send(task).map_err(|error| {
            use std::sync::mpsc::TrySendError::{Disconnected, Full};
            let (Full(task) | Disconnected(task)) = error;
            Box::new(task)
        })
    }
}

fn make(task: Task, is_ending: &AtomicBool) -> Made {
    let began = thread_time();
    let is_over =
        || is_ending.load(Ordering::Relaxed) || thread_time().saturating_sub(began) > task.limit;
    // The file is hostile, and nothing of what the compiler uses outlives the call.
    let compiled = catch_unwind(AssertUnwindSafe(|| {
        compile_file_until(&task.file, &is_over)
    }))
    .unwrap_or_else(|_| {
        tracing::warn!("cannot compile {}", task.name);
        Err(UnwindError::NoUnwindInformation)
    });
    Made {
        key: task.key,
        pid: task.pid,
        bytes: task.bytes,
        name: task.name,
        compiled: compiled.map(Box::new),
        took: thread_time().saturating_sub(began),
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, sync::mpsc::channel};

    use super::*;
    use crate::unwind::testing::TinyElf;

    /// A file with the given number of functions.
    fn task(functions: u64, limit: Duration) -> Task {
        let elf = (0..functions).fold(TinyElf::new(), |elf, at| elf.function(at % 64 * 8, 8, &[]));
        let bytes = elf.build();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let identity = FileIdentity::of(&file).unwrap();
        Task {
            key: FileKey::File(identity),
            pid: Pid(1),
            file,
            bytes: bytes.len() as u64,
            name: "a file".to_owned(),
            limit,
        }
    }

    #[test]
    fn a_file_that_takes_too_long_is_given_up_and_small_ones_go_on() {
        let (done, made) = channel();
        let is_ending = Arc::new(AtomicBool::new(false));
        let makers = Makers::start(&is_ending, move |made| _ = done.send(made)).unwrap();
        let large = || task(50_000, Duration::ZERO);
        makers.begin(large()).map_err(drop).unwrap();
        makers
            .begin(task(10, Duration::from_mins(1)))
            .map_err(drop)
            .unwrap();
        let mut results: Vec<Made> = made.iter().take(2).collect();
        results.sort_by_key(|made| made.bytes);
        assert!(results[0].compiled.is_ok());
        assert_eq!(
            results[1].compiled.as_ref().err(),
            Some(&UnwindError::Interrupted)
        );
        // Without a limit, it ends with the recording.
        is_ending.store(true, Ordering::Relaxed);
        makers
            .begin(task(50_000, Duration::from_mins(1)))
            .map_err(drop)
            .unwrap();
        let last = made.recv().unwrap();
        assert_eq!(last.compiled.err(), Some(UnwindError::Interrupted));
    }
}
