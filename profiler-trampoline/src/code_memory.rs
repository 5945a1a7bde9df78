//! Executable memory, full of trampolines.
//!
//! All trampolines are alike, so an arena is filled once, while it can be written, and made executable afterwards: it
//! is never both. Arenas are never unmapped: a frame of the program may be in one at any time, and readers of perf
//! maps could not know that an address means something else now.

use std::{io, ptr};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::machine_code::{SPACING, TRAMPOLINE};

/// Bytes of one arena: what CPython takes (Python/perf_trampoline.c, `new_code_arena`), and a whole page everywhere.
const ARENA: usize = 64 * 1024;

/// Trampolines that nobody has yet.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Address of the next one.
    next: usize,
    /// How many are left.
    left: usize,
}

impl Arena {
    /// None at all.
    pub(crate) const EMPTY: Self = Self { next: 0, left: 0 };

    /// Sees to it that there is at least one, in another arena if need be. Fails when there is no memory, or when the
    /// system allows no code made at run time (SELinux `execmem`, systemd's `MemoryDenyWriteExecute`), or on a
    /// processor that [`TRAMPOLINE`] is not for.
    pub(crate) fn prepare(&mut self) -> io::Result<()> {
        if self.left == 0 {
            self.next = map_arena()?;
            self.left = ARENA / SPACING;
        }
        Ok(())
    }

    /// The address of a trampoline of one's own. Fails as [`prepare`](Self::prepare) does.
    pub(crate) fn take(&mut self) -> io::Result<usize> {
        self.prepare()?;
        let address = self.next;
        self.next += SPACING;
        self.left -= 1;
        Ok(address)
    }
}

/// Maps, fills and seals an arena; gives its address.
fn map_arena() -> io::Result<usize> {
    if TRAMPOLINE.is_empty() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: an address that the kernel chooses overlaps nothing.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), ARENA, writable, MapFlags::PRIVATE) }?;
    let start = start.cast::<u8>();
    for offset in (0..ARENA).step_by(SPACING) {
        let target = start.wrapping_byte_add(offset);
        // SAFETY: the trampoline is no longer than the spacing, which divides the arena, and the arena is ours alone.
        unsafe { ptr::copy_nonoverlapping(TRAMPOLINE.as_ptr(), target, TRAMPOLINE.len()) };
    }
    synchronise_instructions(start);
    let executable = MprotectFlags::READ | MprotectFlags::EXEC;
    // SAFETY: the arena was mapped above, and nobody holds a reference into it.
    if let Err(err) = unsafe { mprotect(start.cast(), ARENA, executable) } {
        // SAFETY: as above. That it may fail changes nothing: it stays mapped, and unused.
        let _ = unsafe { munmap(start.cast(), ARENA) };
        return Err(err.into());
    }
    Ok(start.expose_provenance())
}

/// Makes the instructions that were written visible to instruction fetch, which x86-64 does by itself.
fn synchronise_instructions(start: *mut u8) {
    #[cfg(target_arch = "aarch64")]
    {
        unsafe extern "C" {
            /// The compiler's run-time library has it.
            fn __clear_cache(start: *mut u8, end: *mut u8);
        }
        // SAFETY: the range is the arena that was just mapped.
        unsafe { __clear_cache(start, start.wrapping_byte_add(ARENA)) };
    }
    #[cfg(not(target_arch = "aarch64"))]
    let _ = start;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trampolines_are_apart_and_arenas_follow_each_other() {
        let mut arena = Arena::EMPTY;
        let taken: Vec<usize> = (0..=ARENA / SPACING)
            .map(|_| arena.take().unwrap())
            .collect();
        let mut sorted = taken.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), taken.len());
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= SPACING));
    }

    #[test]
    fn an_arena_can_be_run_and_not_written() {
        let mut arena = Arena::EMPTY;
        let address = arena.take().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(start)..number(end)).contains(&address)
        });
        assert_eq!(line.unwrap().split(' ').nth(1), Some("r-xp"));
    }

    /// The trampoline passes its first three arguments on, and what it calls gives back.
    #[test]
    fn a_trampoline_calls_its_fourth_argument() {
        type Callee = extern "C" fn(usize, usize, usize) -> usize;
        type Trampoline = extern "C" fn(usize, usize, usize, Callee) -> usize;
        extern "C" fn callee(a: usize, b: usize, c: usize) -> usize {
            a * 100 + b * 10 + c
        }
        let mut arena = Arena::EMPTY;
        for _ in 0..3 {
            let address = arena.take().unwrap();
            // SAFETY: a trampoline lies there, and this is how it is called.
            let trampoline = unsafe {
                std::mem::transmute::<*const (), Trampoline>(ptr::with_exposed_provenance(address))
            };
            assert_eq!(trampoline(1, 2, 3, callee), 123);
        }
    }
}
