//! The file of a perf map: opened as what it is, or not at all, and copied by whole lines.

use std::ffi::CStr;
use std::fmt;

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{FileType, Mode, OFlags, Stat, fstat, ftruncate, open},
    io::{Errno, pread, retry_on_intr, write},
    process::geteuid,
};

use super::PerfMapError;

/// Entries are copied in pieces of this size, on the stack.
const PIECE: usize = 16 * 1024;
/// Keeps a FIFO from holding us up, a link from leading elsewhere, and a terminal from becoming ours.
const CAREFUL: OFlags = OFlags::CLOEXEC
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// `/tmp/perf-PID.map` without an allocation.
pub(super) struct MapPath {
    bytes: [u8; 32],
}

/// The path for a pid.
pub(super) fn path_of(pid: u32) -> MapPath {
    let mut bytes = [0; 32];
    let mut length = 0;
    let mut digits = [0; 10];
    let mut first = digits.len();
    let mut rest = pid;
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    for part in [&b"/tmp/perf-"[..], &digits[first..], b".map"] {
        bytes[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    MapPath { bytes }
}

impl MapPath {
    pub(super) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl fmt::Display for MapPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_c_str().to_str().unwrap_or_default())
    }
}

/// Opens this process's map for adding to it, or makes it.
///
/// `/tmp` belongs to everybody: whatever lies there under our name and is not a plain file of ours is refused.
pub(super) fn open_own() -> Result<OwnedFd, PerfMapError> {
    let path = path_of(std::process::id());
    // Readable, so that a forked child can copy it from the descriptor, wherever the file has gone.
    let flags = CAREFUL | OFlags::RDWR | OFlags::CREATE | OFlags::APPEND;
    let file = retry_on_intr(|| open(path.as_c_str(), flags, Mode::RUSR | Mode::WUSR))
        .map_err(PerfMapError::Open)?;
    check(&fstat(&file).map_err(PerfMapError::Open)?)?;
    Ok(file)
}

/// Opens another map, to copy from it.
pub(super) fn open_source(path: &CStr) -> Result<OwnedFd, PerfMapError> {
    let file = retry_on_intr(|| open(path, CAREFUL | OFlags::RDONLY, Mode::empty()))
        .map_err(PerfMapError::Copy)?;
    check(&fstat(&file).map_err(PerfMapError::Copy)?)?;
    Ok(file)
}

fn check(stat: &Stat) -> Result<(), PerfMapError> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        Err(PerfMapError::NotRegular)
    } else if stat.st_uid != geteuid().as_raw() {
        Err(PerfMapError::ForeignOwner)
    } else if stat.st_nlink > 1 {
        Err(PerfMapError::HardLink)
    } else {
        Ok(())
    }
}

/// In bytes; 0 if that is not to be known.
pub(super) fn length(file: BorrowedFd<'_>) -> u64 {
    fstat(file).map_or(0, |stat| stat.st_size.cast_unsigned())
}

/// Adds the whole lines among the first `limit` bytes of `source` to the end of `target`; all of them or none.
pub(super) fn append_entries(
    source: &impl AsFd,
    limit: u64,
    target: BorrowedFd<'_>,
) -> Result<(), Errno> {
    let before = length(target);
    copy_lines(source.as_fd(), limit, target).inspect_err(|_| {
        // This is an attempt to leave nothing behind; what matters is the error that is on its way.
        let _ = ftruncate(target, before);
    })
}

fn copy_lines(source: BorrowedFd<'_>, limit: u64, target: BorrowedFd<'_>) -> Result<(), Errno> {
    let end = end_of_lines(source, limit)?;
    let mut piece = [0; PIECE];
    let mut offset = 0;
    while offset < end {
        let wanted = PIECE.min((end - offset) as usize);
        let read = retry_on_intr(|| pread(source, &mut piece[..wanted], offset))?;
        if read == 0 {
            break; // It was cut short meanwhile.
        }
        let mut rest = &piece[..read];
        while !rest.is_empty() {
            let written = retry_on_intr(|| write(target, rest))?;
            rest = &rest[written..];
        }
        offset += read as u64;
    }
    Ok(())
}

/// Where the last whole line within the first `limit` bytes ends.
fn end_of_lines(file: BorrowedFd<'_>, limit: u64) -> Result<u64, Errno> {
    let mut end = length(file).min(limit);
    let mut piece = [0; 512];
    while end > 0 {
        let start = end.saturating_sub(piece.len() as u64);
        let wanted = &mut piece[..(end - start) as usize];
        let read = retry_on_intr(|| pread(file, &mut *wanted, start))?;
        if let Some(last) = wanted[..read].iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Takes the last `length` bytes off again: the part of a line that found room. True when that worked.
pub(super) fn cut_end(file: BorrowedFd<'_>, length: usize) -> bool {
    self::length(file)
        .checked_sub(length as u64)
        .is_some_and(|before| ftruncate(file, before).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_the_pid_in_decimal() {
        for (pid, path) in [
            (0, "/tmp/perf-0.map"),
            (7, "/tmp/perf-7.map"),
            (4_194_304, "/tmp/perf-4194304.map"),
            (u32::MAX, "/tmp/perf-4294967295.map"),
        ] {
            assert_eq!(path_of(pid).to_string(), path);
        }
    }
}
