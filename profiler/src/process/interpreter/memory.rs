//! Reads another process's memory, a few words at a time.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use crate::{model::Pid, process::proc_folder};

/// Where the memory of programs ends (x86-64, four levels of page tables). The kernel gives no address beyond to a program
/// that does not ask for one (Documentation/arch/x86/x86_64/5level-paging.rst, Linux 6.12).
pub const ADDRESS_END: u64 = 1 << 47;

/// Something that has bytes at addresses: a process, or what a test makes up.
pub trait ReadMemory {
    /// Fills `into` with what is at `at`. False: not all of it is there; `into` may hold anything then.
    fn read(&self, at: u64, into: &mut [u8]) -> bool;
}

/// The memory of a process: an open `/proc/PID/mem`.
///
/// It stays that of the program that ran when it was opened: the file holds on to the address space, not to the process
/// (`mem_open` in fs/proc/base.c, Linux 6.12). After an exit or an `exec` nothing can be read of it any more, and never
/// anything of what runs with that pid since.
///
/// A read costs one system call. It takes what pages it needs into memory, which may wait for a disk, or for the process
/// itself where that serves its own page faults (`userfaultfd`): not for a thread that others wait for.
#[derive(Debug)]
pub struct Memory {
    memory: File,
    /// `/proc/PID/pagemap`, where only pages that are there are to be read.
    pages: Option<File>,
}

/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;
/// Bytes of what `pagemap` says of one, and the bit of it that says that it is in memory
/// (Documentation/admin-guide/mm/pagemap.rst, Linux 6.12).
const PAGE_ENTRY_BYTES: u64 = 8;
const PAGE_PRESENT: u64 = 1 << 63;

impl Memory {
    /// Opens the memory of the program that a process runs now.
    ///
    /// Needs the right to trace it (`PTRACE_MODE_ATTACH` in `proc_mem_open`, fs/proc/base.c, Linux 6.12), which is more
    /// than to read it: CAP_SYS_PTRACE, or the same user, and then Yama may have a say too. Fails with `PermissionDenied`
    /// without it, `NotFound` if there is no such process.
    pub fn open(pid: Pid) -> io::Result<Self> {
        Ok(Self {
            memory: File::open(format!("{}/mem", proc_folder(pid)))?,
            pages: None,
        })
    }

    /// The same, of which only pages that are in memory are read: what is not would have to be fetched from wherever the
    /// process has it, be it a file system that it serves itself, and a read that waits for one of those (FUSE) cannot even
    /// be killed. A process that takes a page away between question and read can still bring that about.
    pub fn open_present(pid: Pid) -> io::Result<Self> {
        Ok(Self {
            pages: Some(File::open(format!("{}/pagemap", proc_folder(pid)))?),
            ..Self::open(pid)?
        })
    }
}

impl Memory {
    /// The program has ended: none of its memory is left. Reading the file gives nothing then, and an error for an address
    /// that is not there (`mem_rw`, fs/proc/base.c, Linux 6.12).
    pub fn has_ended(&self) -> bool {
        matches!(self.memory.read_at(&mut [0], 0), Ok(0))
    }
}

/// All pages of a range are in memory.
fn are_present(pages: &File, at: u64, end: u64) -> bool {
    let (first, last) = (at / PAGE_BYTES, end.saturating_sub(1) / PAGE_BYTES);
    let mut entries = vec![0; ((last - first + 1) * PAGE_ENTRY_BYTES) as usize];
    if pages
        .read_exact_at(&mut entries, first * PAGE_ENTRY_BYTES)
        .is_err()
    {
        return false;
    }
    let (entries, _) = entries.as_chunks();
    let mut entries = entries.iter().map(|bytes| u64::from_le_bytes(*bytes));
    entries.all(|entry| entry & PAGE_PRESENT != 0)
}

impl ReadMemory for Memory {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let end = at.checked_add(into.len() as u64);
        let is_readable = end.is_some_and(|end| {
            let pages = self.pages.as_ref();
            end <= ADDRESS_END && pages.is_none_or(|pages| are_present(pages, at, end))
        });
        is_readable && self.memory.read_exact_at(into, at).is_ok()
    }
}

impl dyn ReadMemory + '_ {
    /// `N` bytes.
    pub fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes).then_some(bytes)
    }

    /// A word, as pointers and `Py_ssize_t` are.
    pub fn u64(&self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    /// An `unsigned int`.
    pub fn u32(&self, at: u64) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    /// A byte.
    pub fn u8(&self, at: u64) -> Option<u8> {
        self.bytes(at).map(|[byte]| byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there_and_nothing_else() {
        let memory = Memory::open(Pid(std::process::id())).expect("own memory");
        let memory: &dyn ReadMemory = &memory;
        let words = [0x0102_0304_0506_0708_u64, u64::MAX];
        let at = words.as_ptr() as u64;
        assert_eq!(memory.u64(at), Some(words[0]));
        assert_eq!(memory.u32(at + 4), Some(0x0102_0304));
        assert_eq!(memory.u8(at + 7), Some(1));
        assert_eq!(memory.bytes(at + 7), Some([1, 255]));
        for nowhere in [0, 8, ADDRESS_END - 1, ADDRESS_END, 1 << 63, u64::MAX - 3] {
            assert_eq!(memory.u64(nowhere), None, "{nowhere:#x}");
        }
    }

    #[test]
    fn pages_that_are_not_in_memory_can_be_left_alone() {
        let memory = Memory::open_present(Pid(std::process::id())).expect("own memory");
        let memory: &dyn ReadMemory = &memory;
        let word = 0x0102_0304_0506_0708_u64;
        assert_eq!(memory.u64(&raw const word as u64), Some(word));
        // Memory that nothing was written to has no pages. Up to 32 MiB the allocator may give memory that it had given to
        // others before (`DEFAULT_MMAP_THRESHOLD_MAX` in malloc/malloc.c, glibc 2.36), whose pages are there.
        let untouched = vec![0_u8; 64 << 20];
        let at = (untouched.as_ptr() as u64).next_multiple_of(PAGE_BYTES) + (32 << 20);
        assert_eq!(memory.u64(at), None);
        let memory = Memory::open(Pid(std::process::id())).expect("own memory");
        let memory: &dyn ReadMemory = &memory;
        assert_eq!(memory.u64(at), Some(0));
    }

    #[test]
    fn a_process_that_is_gone_has_no_memory() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn();
        let child = child.as_mut().expect("sleep starts");
        let memory = Memory::open(Pid(child.id()));
        child
            .kill()
            .and_then(|()| child.wait().map(drop))
            .expect("ends");
        let mut byte = [0];
        assert!(
            memory.is_ok_and(|memory| memory.has_ended() && !memory.read(0x40_0000, &mut byte))
        );
        let ours = Memory::open(Pid(std::process::id())).expect("own memory");
        assert!(!ours.has_ended());
    }
}
