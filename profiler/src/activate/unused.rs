//! Finds some bytes in a process that nobody uses, for a few words that it is to read.
//!
//! Not below the stack, where whatever it does next may write, nor in the heap, where nothing says what is free. The
//! kernel maps whole pages, and so behind the variables of a shared library there are some bytes up to the end of their
//! page that belong to no variable and to no allocator: zeros, or what the file happens to have there. glibc uses such a rest in one library only, its loader
//! (`_dl_early_allocate`, `__minimal_malloc`, elf/dl-minimal-malloc.c), and programs themselves may have the heap right
//! behind them: these two are left alone. musl gives all of them to `malloc` (`reclaim_gaps`, ldso/dynlink.c): there is
//! no such place then.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::FileExt as _,
    path::Path,
};

use super::memory::WriteMemory;
use crate::{
    model::Pid,
    process::{ElfFile, Mapping, Target, file_name, open_mapped},
};

/// The kernel maps whole pages of this size.
const PAGE: u64 = 4096;
/// Libraries that are looked at.
const FILES_MAX: usize = 64;
/// Bytes of `/proc/PID/maps` that are read.
const MAPS_BYTES_MAX: u64 = 16 << 20;

/// Bytes that nobody uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unused {
    /// Where they are.
    pub(super) at: u64,
    /// What is there, and has been since the library was loaded.
    pub(super) content: Vec<u8>,
}

/// So many of them.
pub(super) fn unused_memory(
    target: &Target,
    mappings: &[Mapping],
    memory: &dyn WriteMemory,
    bytes: u64,
) -> Option<Unused> {
    let files = || mappings.iter().filter_map(|mapping| mapping.path());
    if files().any(is_musl) {
        return None;
    }
    let program = target.exe.as_deref();
    let mut seen = Vec::new();
    let libraries = mappings.iter().filter(|mapping| mapping.executable);
    let libraries = libraries.filter_map(|mapping| Some((mapping.path()?, mapping)));
    libraries
        .filter(|(path, _)| Some(*path) != program && !is_loader(path))
        .filter(|(path, _)| {
            let is_new = !seen.contains(path);
            seen.push(*path);
            is_new
        })
        .take(FILES_MAX)
        .find_map(|(_, mapping)| rest_behind(target.pid, mapping, memory, bytes))
}

fn is_loader(path: &Path) -> bool {
    let name = file_name(path);
    name.starts_with("ld-") || name.starts_with("ld.so")
}

fn is_musl(path: &Path) -> bool {
    let name = file_name(path);
    name.starts_with("ld-musl") || name.starts_with("libc.musl")
}

/// The end of the last page of a library's variables, if there is enough of it.
fn rest_behind(
    pid: Pid,
    mapping: &Mapping,
    memory: &dyn WriteMemory,
    wanted: u64,
) -> Option<Unused> {
    let opened = open_mapped(pid, mapping).ok()?;
    let elf = ElfFile::parse(&opened.file).ok()?;
    let bias = elf.segments().bias(mapping.begin, mapping.file_offset)?;
    let (end, in_file) = elf.segments().end_of_variables()?;
    let end = bias.wrapping_add(end.0);
    let rest = Rest::behind(end).filter(|rest| rest.bytes >= wanted && is_writable(pid, rest))?;
    // At its very end: as far away as can be from what is in use.
    let at = (rest.begin + rest.bytes - wanted) & !7;
    let mut content = vec![0; usize::try_from(wanted).ok()?];
    let is_read = memory.read(at, &mut content);
    let in_file = in_file.0.checked_add(at - end)?;
    let is_untouched = content.iter().all(|&byte| byte == 0) || {
        let mut original = vec![0; content.len()];
        let length = opened.file.read_at(&mut original, in_file).unwrap_or(0);
        length > 0 && original == content
    };
    (is_read && is_untouched).then_some(Unused { at, content })
}

/// What is left of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    begin: u64,
    bytes: u64,
}

impl Rest {
    /// From the first aligned word on that nothing of what ends at `end` lies in.
    fn behind(end: u64) -> Option<Self> {
        let begin = end.checked_next_multiple_of(8)?;
        let page_end = end.checked_next_multiple_of(PAGE)?;
        let bytes = page_end.checked_sub(begin)?;
        (bytes > 0).then_some(Self { begin, bytes })
    }
}

/// It lies in one private mapping that the process may write to.
fn is_writable(pid: Pid, rest: &Rest) -> bool {
    let Ok(file) = File::open(format!("/proc/{pid}/maps")) else {
        return false;
    };
    let lines = BufReader::new(file.take(MAPS_BYTES_MAX)).split(b'\n');
    lines
        .map_while(Result::ok)
        .any(|line| covers(&line, rest) == Some(true))
}

/// `begin-end rw-p …` (proc(5)).
fn covers(line: &[u8], rest: &Rest) -> Option<bool> {
    let line = String::from_utf8_lossy(line.get(..64.min(line.len()))?).into_owned();
    let (range, others) = line.split_once(' ')?;
    let (begin, end) = range.split_once('-')?;
    let begin = u64::from_str_radix(begin, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let inside = begin <= rest.begin && rest.begin.checked_add(rest.bytes)? <= end;
    Some(inside && others.starts_with("rw-p "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_page_begins_behind_the_last_variable() {
        let rest = |end| Rest::behind(end).map(|rest| (rest.begin, rest.bytes));
        assert_eq!(rest(0x7000), None);
        assert_eq!(rest(0x7001), Some((0x7008, 0xff8)));
        assert_eq!(rest(0x7ff8), Some((0x7ff8, 8)));
        assert_eq!(rest(0x7ff9), None);
        assert_eq!(rest(u64::MAX), None);
    }

    #[test]
    fn only_private_memory_that_can_be_written_will_do() {
        let rest = Rest {
            begin: 0x7008,
            bytes: 0xff8,
        };
        for (line, fits) in [
            ("6000-8000 rw-p 00000000 00:00 0 ", Some(true)),
            ("7000-8000 rw-p 00000000 00:00 0 ", Some(true)),
            ("6000-8000 r--p 00000000 00:00 0 ", Some(false)),
            ("6000-8000 rw-s 00000000 00:00 0 ", Some(false)),
            ("6000-7800 rw-p 00000000 00:00 0 ", Some(false)),
            ("nonsense", None),
            ("7000 rw-p", None),
        ] {
            assert_eq!(covers(line.as_bytes(), &rest), fits, "{line}");
        }
    }
}
