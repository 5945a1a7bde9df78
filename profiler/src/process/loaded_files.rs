//! Files that cannot be opened, as processes have them loaded: read once, and kept for the next caller.

use std::{
    io,
    sync::{LazyLock, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;

use super::{
    elf_memory::copy_from_memory,
    file::MappedFile,
    interpreter::{Memory, PatientReader, Progress, Reading},
    mappings::Mapping,
};
use crate::model::{Avma, Pid};

/// Bytes of all copies together. They are memory of the system for as long as we run. A usual Python has some 20 MiB.
const COPIES_BYTES_MAX: u64 = 128 << 20;

/// Files that are remembered; beyond this number, all are read anew.
const FILES_MAX: usize = 4096;

/// A process's memory is waited for so long, once for each file: it may be on a slow file system. What takes longer is
/// there when it is asked for again.
const TIMEOUT: Duration = Duration::from_millis(200);

/// What could not be read is tried again after so long. Where one read took too long, no other is waited for in this
/// time.
const AGAIN: Duration = Duration::from_secs(2);

static FILES: LazyLock<Mutex<LoadedFiles>> = LazyLock::new(Mutex::default);

/// What was read.
#[derive(Default)]
struct LoadedFiles {
    files: FxHashMap<Key, State>,
    reader: PatientReader,
    copied_bytes: u64,
    /// When a read last took too long.
    timed_out: Option<Instant>,
}

/// A file of a process, and where its first byte is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    pid: Pid,
    head: Avma,
    device: (u32, u32),
    inode: u64,
}

type Copied = io::Result<MappedFile>;

enum State {
    Reading(Reading<Copied>),
    Copied(MappedFile),
    Failed(Instant, io::ErrorKind),
}

/// Gives what a process has loaded of the file behind a mapping.
///
/// Costs a millisecond for each MiB, once. Needs the right to read the process's memory
/// ([`Memory::open`]). Fails with `NotFound` if the beginning of the file is not mapped, with `WouldBlock` if the process's
/// memory has not answered yet, with `InvalidData` if it is no ELF file.
pub(super) fn open_loaded(pid: Pid, mapping: &Mapping) -> io::Result<MappedFile> {
    let head = mapping.head.ok_or(io::ErrorKind::NotFound)?;
    let (device, inode) = mapping.file_id();
    let key = Key {
        pid,
        head,
        device,
        inode,
    };
    let path = mapping.path().ok_or(io::ErrorKind::NotFound)?.to_path_buf();
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    files.open(key, move |left| {
        let memory = Memory::open(pid)?;
        copy_from_memory(&memory, head.0, &path, left)
    })
}

impl LoadedFiles {
    fn open(
        &mut self,
        key: Key,
        copy: impl FnOnce(u64) -> Copied + Send + 'static,
    ) -> io::Result<MappedFile> {
        if self.files.len() >= FILES_MAX {
            self.files.clear();
        }
        let (reading, timeout) = match self.files.remove(&key) {
            Some(State::Copied(file)) => {
                let again = clone(&file);
                self.files.insert(key, State::Copied(file));
                return again;
            }
            Some(State::Failed(when, kind)) if when.elapsed() < AGAIN => {
                self.files.insert(key, State::Failed(when, kind));
                return Err(kind.into());
            }
            Some(State::Reading(reading)) => (reading, Duration::ZERO),
            Some(State::Failed(..)) | None => {
                let left = COPIES_BYTES_MAX.saturating_sub(self.copied_bytes);
                let reading = self.reader.begin(move || copy(left));
                let was_slow = self.timed_out.is_some_and(|when| when.elapsed() < AGAIN);
                let timeout = if was_slow { Duration::ZERO } else { TIMEOUT };
                (reading.ok_or(io::ErrorKind::ResourceBusy)?, timeout)
            }
        };
        let copied = match reading.wait(timeout) {
            Progress::Done(copied) => copied,
            Progress::Waiting => {
                self.files.insert(key, State::Reading(reading));
                if !timeout.is_zero() {
                    self.timed_out = Some(Instant::now());
                }
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Progress::Failed => Err(io::ErrorKind::InvalidData.into()),
        };
        match copied {
            Ok(file) => {
                self.copied_bytes += file.identity.size;
                let again = clone(&file);
                self.files.insert(key, State::Copied(file));
                again
            }
            Err(error) => {
                let failed = State::Failed(Instant::now(), error.kind());
                self.files.insert(key, failed);
                Err(error)
            }
        }
    }
}

fn clone(file: &MappedFile) -> io::Result<MappedFile> {
    Ok(MappedFile {
        file: file.file.try_clone()?,
        identity: file.identity,
        display_path: file.display_path.clone(),
        is_from_memory: file.is_from_memory,
    })
}

#[cfg(test)]
#[path = "loaded_files_tests.rs"]
mod tests;
