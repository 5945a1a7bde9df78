//! The file of a perf map: opened as what it is, or not at all, and copied by whole lines.

use std::ffi::CStr;
use std::fmt;

use rustix::{
    fd::{AsRawFd as _, BorrowedFd, OwnedFd},
    fs::{FileType, Mode, OFlags, Stat, fchmod, fstat, ftruncate, open},
    io::{Errno, fcntl_dupfd_cloexec, pread, retry_on_intr, write},
    process::geteuid,
};

use super::PerfMapError;

/// Entries are copied in pieces of this size, on the stack: that of a thread may have no more than 32 KiB.
const PIECE: usize = 4 * 1024;
/// Lower ones are standard input, output and error, whatever was opened there: others write to them unasked.
const FIRST_DESCRIPTOR: i32 = 3;
/// Read and written by its owner.
const OWNERS: Mode = Mode::RUSR.union(Mode::WUSR);
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
    let file = open_aside(path.as_c_str(), flags, OWNERS).map_err(|errno| match errno {
        Errno::NXIO => PerfMapError::NotRegular, // a socket, or a device without a driver
        other => PerfMapError::Open(other),
    })?;
    let stat = fstat(&file).map_err(PerfMapError::Open)?;
    check(&stat)?;
    if !Mode::from_raw_mode(stat.st_mode).contains(OWNERS) {
        // The umask took them away. That a file of ours keeps its mode is nothing to give up for.
        let _ = fchmod(&file, OWNERS);
    }
    Ok(file)
}

/// Opens another map, to copy from it.
pub(super) fn open_source(path: &CStr) -> Result<OwnedFd, PerfMapError> {
    let file =
        open_aside(path, CAREFUL | OFlags::RDONLY, Mode::empty()).map_err(PerfMapError::Copy)?;
    check(&fstat(&file).map_err(PerfMapError::Copy)?)?;
    Ok(file)
}

/// Not as a standard stream, where the program was started with one of them closed.
fn open_aside(path: &CStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let file = retry_on_intr(|| open(path, flags, mode))?;
    if file.as_raw_fd() >= FIRST_DESCRIPTOR {
        return Ok(file);
    }
    fcntl_dupfd_cloexec(&file, FIRST_DESCRIPTOR)
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

/// What tells a file from every other: its device and inode.
pub(super) fn identity(file: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    fstat(file).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Ends a last line that has no end: an earlier program of this pid was stopped by a full disk. What is there may be a
/// whole entry, so nothing is taken away.
pub(super) fn end_last_line(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let length = length(file);
    let mut last = [b'\n'];
    if length > 0 {
        retry_on_intr(|| pread(file, &mut last, length - 1))?;
    }
    if last != *b"\n" {
        retry_on_intr(|| write(file, b"\n"))?;
    }
    Ok(())
}

/// Takes off what stands behind the last line end: half a line of ours. Nobody else may be writing.
pub(super) fn cut_last_line(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let end = end_of_lines(file, u64::MAX)?;
    ftruncate(file, end)
}

/// Takes off what was added last, if it still is the end of the file.
pub(super) fn take_back(file: BorrowedFd<'_>, before: u64, added: u64) {
    if length(file) == before + added {
        // If it fails, whole lines stay, and `cut_last_line` sees to the rest.
        let _ = ftruncate(file, before);
    }
}

/// Adds the whole lines among the first `limit` bytes of `source` to the end of `target`, each of them by a single
/// `write(2)`, as others may be writing there. Counts in `added` what was written, also when it fails.
pub(super) fn append_entries(
    source: BorrowedFd<'_>,
    limit: u64,
    target: BorrowedFd<'_>,
    added: &mut u64,
) -> Result<(), Errno> {
    let end = end_of_lines(source, limit)?;
    let mut piece = [0; PIECE];
    let mut offset = 0;
    while offset < end {
        let wanted = PIECE.min((end - offset) as usize);
        let read = retry_on_intr(|| pread(source, &mut piece[..wanted], offset))?;
        let long;
        let lines = match whole_lines(&piece[..read]) {
            [] if read == wanted => {
                long = read_line(source, offset, end)?;
                &long[..]
            }
            lines => lines,
        };
        if lines.is_empty() {
            break; // It was cut short meanwhile.
        }
        let written = retry_on_intr(|| write(target, lines))?;
        *added += written as u64;
        if written < lines.len() {
            return Err(Errno::NOSPC);
        }
        offset += lines.len() as u64;
    }
    Ok(())
}

/// The bytes up to the last line end.
fn whole_lines(bytes: &[u8]) -> &[u8] {
    let last = bytes.iter().rposition(|byte| *byte == b'\n');
    &bytes[..last.map_or(0, |last| last + 1)]
}

/// A line that is longer than [`PIECE`]; empty if it has no end before `end`.
fn read_line(source: BorrowedFd<'_>, start: u64, end: u64) -> Result<Vec<u8>, Errno> {
    let mut line = Vec::new();
    let mut piece = [0; PIECE];
    loop {
        let offset = start + line.len() as u64;
        let wanted = PIECE.min(end.saturating_sub(offset) as usize);
        let read = retry_on_intr(|| pread(source, &mut piece[..wanted], offset))?;
        if read == 0 {
            return Ok(Vec::new());
        }
        line.try_reserve(read).map_err(|_| Errno::NOMEM)?;
        if let Some(last) = piece[..read].iter().position(|byte| *byte == b'\n') {
            line.extend_from_slice(&piece[..=last]);
            return Ok(line);
        }
        line.extend_from_slice(&piece[..read]);
    }
}

/// Where the last whole line within the first `limit` bytes ends.
fn end_of_lines(file: BorrowedFd<'_>, limit: u64) -> Result<u64, Errno> {
    let mut end = length(file).min(limit);
    let mut piece = [0; 512];
    while end > 0 {
        let start = end.saturating_sub(piece.len() as u64);
        let wanted = &mut piece[..(end - start) as usize];
        let read = retry_on_intr(|| pread(file, &mut *wanted, start))?;
        let lines = whole_lines(&wanted[..read]).len();
        if lines > 0 {
            return Ok(start + lines as u64);
        }
        end = start;
    }
    Ok(0)
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
