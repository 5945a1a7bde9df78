//! Reads and writes the memory of another process: the only place where the program writes to one.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
};

use crate::{
    model::Pid,
    process::interpreter::{ADDRESS_END, ReadMemory},
};

/// Something whose bytes can be changed: a process, or what a test makes up.
pub(super) trait WriteMemory: ReadMemory + Sync + fmt::Debug {
    /// Puts `bytes` at `at`. False: not all of them are there now.
    fn write(&self, at: u64, bytes: &[u8]) -> bool;

    /// An aligned `int`.
    fn write_u32(&self, at: u64, value: u32) -> bool {
        self.write(at, &value.to_le_bytes())
    }
}

/// The memory of a process, `/proc/PID/mem`: that of the program which ran when it was opened, and of no later one
/// (`mem_open` in fs/proc/base.c, Linux 6.12).
#[derive(Debug)]
pub(super) struct ProcessMemory(File);

impl ProcessMemory {
    /// Needs the right to trace the process (`PTRACE_MODE_ATTACH`): see [`crate::process::interpreter::Memory`].
    pub(super) fn open(pid: Pid) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.open(format!("/proc/{pid}/mem")).map(Self)
    }
}

impl ReadMemory for ProcessMemory {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        is_users(at, into.len()) && self.0.read_exact_at(into, at).is_ok()
    }
}

impl WriteMemory for ProcessMemory {
    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        is_users(at, bytes.len()) && self.0.write_all_at(bytes, at).is_ok()
    }
}

fn is_users(at: u64, bytes: usize) -> bool {
    at.checked_add(bytes as u64)
        .is_some_and(|end| end <= ADDRESS_END)
}

#[cfg(test)]
pub(super) mod testing {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Bytes from an address on.
    #[derive(Debug)]
    pub(in crate::activate) struct MadeUp {
        begin: u64,
        bytes: Mutex<Vec<u8>>,
    }

    impl MadeUp {
        pub(in crate::activate) fn new(begin: u64, bytes: usize) -> Self {
            let bytes = Mutex::new(vec![0; bytes]);
            Self { begin, bytes }
        }

        pub(in crate::activate) fn put(&self, at: u64, bytes: &[u8]) {
            assert!(self.write(at, bytes), "{at:#x} is not in it");
        }

        pub(in crate::activate) fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
            self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn range(&self, at: u64, length: usize) -> Option<std::ops::Range<usize>> {
            let from = usize::try_from(at.checked_sub(self.begin)?).ok()?;
            let to = from.checked_add(length)?;
            (to <= self.bytes().len()).then_some(from..to)
        }
    }

    impl ReadMemory for MadeUp {
        fn read(&self, at: u64, into: &mut [u8]) -> bool {
            let Some(range) = self.range(at, into.len()) else {
                return false;
            };
            into.copy_from_slice(&self.bytes()[range]);
            true
        }
    }

    impl WriteMemory for MadeUp {
        fn write(&self, at: u64, bytes: &[u8]) -> bool {
            let Some(range) = self.range(at, bytes.len()) else {
                return false;
            };
            self.bytes()[range].copy_from_slice(bytes);
            true
        }
    }
}
