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
