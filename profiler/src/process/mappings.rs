//! What is mapped in a process: parses `/proc/PID/maps` and keeps only what code can run from.
//!
//! Gets bytes of a maps file (hostile: the target chooses names and numbers of its mappings), gives [`Mapping`]s. It
//! opens none of the files named: that is [`super::open_mapped`]'s job.

use std::{
    cmp::Reverse,
    ffi::OsStr,
    fs::File,
    io::{self, BufRead, BufReader},
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::Arc,
};

use super::{copied_code::CopyCandidates, running_thread};
use crate::model::{Avma, FileOffset, Pid};

/// Executable mappings kept of one process. A Python process has some hundreds with every extension module loaded;
/// the kernel allows 65,530 mappings of any kind by default (`vm.max_map_count`).
pub const MAPPINGS_MAX: usize = 4096;

/// Bytes of path names kept of one process. A name is at most a page long, and mappings of one file share it.
pub const PATH_BYTES_MAX: usize = 4 << 20;

/// Lines longer than this are skipped: the name is at most a page (`seq_path` in fs/seq_file.c, Linux 6.12), each
/// newline in it four characters long.
const LINE_BYTES_MAX: usize = 32 << 10;

/// What lies behind a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappingKind {
    /// A file, also one without a name any more (`memfd`, deleted).
    File {
        /// Its path when it was mapped, in the mount namespace of whoever asked. Any bytes but zero.
        path: Arc<Path>,
        /// It was unlinked, or never had a name.
        deleted: bool,
    },
    /// Memory of no file, named or not (`[heap]`, `[anon:…]`): where JIT compilers put code.
    Anonymous,
    /// The kernel's shared object for fast system calls.
    Vdso,
    /// Anything else the kernel shows in brackets: `[vsyscall]`, `[uprobes]`, …
    Special,
}

/// A part of a process's address space: `begin..end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First byte.
    pub begin: Avma,
    /// One past the last byte; greater than `begin`.
    pub end: Avma,
    /// Where in the file `begin` lies.
    pub file_offset: FileOffset,
    /// Code can run from it.
    pub executable: bool,
    /// What it is a mapping of.
    pub kind: MappingKind,
    /// Major and minor number of the file's device; zeros without a file. Differs from `stat`'s on btrfs and on some
    /// overlay file systems.
    pub device: (u32, u32),
    /// The file's inode number; 0 without a file.
    pub inode: u64,
    /// Where the process has the beginning of the same file mapped: the nearest mapping of it at or below this one.
    pub head: Option<Avma>,
    /// Whether this memory is the file's, or a copy of it.
    pub copy: CodeCopy,
}

/// How memory that stands for a part of a file came to hold it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CodeCopy {
    /// It is a mapping of the file, or of no file at all.
    #[default]
    None,
    /// Other memory that holds what the file has there, with the bounds of a mapping that does show the file.
    Same(Avma, Avma),
    /// Other memory in the file's place whose content is not the file's; the bounds are those of a mapping of the file.
    Changed(Avma, Avma),
}

/// What part of which file a process has at an address. Where a mapping ends is no part of that: anonymous memory
/// grows, files are unmapped in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MappingKey {
    begin: Avma,
    file_offset: FileOffset,
    device: (u32, u32),
    inode: u64,
    is_changed: bool,
}

impl Mapping {
    /// Equal for two mappings that show the same file in the same place.
    pub fn key(&self) -> MappingKey {
        MappingKey {
            begin: self.begin,
            file_offset: self.file_offset,
            device: self.device,
            inode: self.inode,
            is_changed: self.is_changed_code(),
        }
    }

    /// The address lies in it.
    pub fn contains(&self, at: Avma) -> bool {
        self.begin <= at && at < self.end
    }

    /// Where in the mapped file an address of this mapping lies; `None` if it is not in it or there is no file.
    pub fn file_offset_of(&self, at: Avma) -> Option<FileOffset> {
        if !self.contains(at) || !matches!(self.kind, MappingKind::File { .. } | MappingKind::Vdso)
        {
            return None;
        }
        Some(FileOffset(
            self.file_offset.0.wrapping_add(at.0 - self.begin.0),
        ))
    }

    /// It shows a file, with a name or without.
    pub const fn is_of_file(&self) -> bool {
        matches!(self.kind, MappingKind::File { .. })
    }

    /// The path as mapped, for mappings of a file.
    pub fn path(&self) -> Option<&Path> {
        match &self.kind {
            MappingKind::File { path, .. } => Some(path),
            MappingKind::Anonymous | MappingKind::Vdso | MappingKind::Special => None,
        }
    }

    /// It has the place of a file's code, but not its content: unwind information and symbols of the file do not
    /// describe it.
    pub const fn is_changed_code(&self) -> bool {
        matches!(self.copy, CodeCopy::Changed(..))
    }

    /// It shows the same file as another one.
    pub fn has_file_of(&self, other: &Self) -> bool {
        self.is_of_file() && other.is_of_file() && self.file_id() == other.file_id()
    }

    /// Device and inode number of its file.
    pub(super) const fn file_id(&self) -> ((u32, u32), u64) {
        (self.device, self.inode)
    }

    /// Code here may have been written at run time, so that only a perf map can name it: anonymous memory, and the
    /// files without a name that JIT compilers map twice to keep memory from being writable and executable at once.
    pub fn may_hold_jit_code(&self) -> bool {
        match &self.kind {
            _ if self.is_changed_code() => true,
            MappingKind::Anonymous => true,
            MappingKind::File { path, deleted } => {
                let path = path.as_os_str().as_bytes();
                *deleted
                    && (path.starts_with(b"/memfd:")
                        || path == b"/dev/zero"
                        || path.starts_with(b"/dev/shm/"))
            }
            MappingKind::Vdso | MappingKind::Special => false,
        }
    }
}

impl MappingKind {
    /// From a name as the kernel gives it in `PERF_RECORD_MMAP2`, not escaped: `//anon` and an empty name are anonymous
    /// memory (`perf_event_mmap_event` in kernel/events/core.c, Linux 6.12).
    pub fn from_kernel_name(name: &[u8]) -> Self {
        match name {
            b"" | b"//anon" | b"[heap]" | b"[stack]" => Self::Anonymous,
            b"[vdso]" => Self::Vdso,
            _ if name.starts_with(b"[anon:") || name.starts_with(b"[anon_shmem:") => {
                Self::Anonymous
            }
            _ if name.starts_with(b"/") && !name.starts_with(b"//") => {
                let (path, deleted) = match name.strip_suffix(b" (deleted)") {
                    Some(path) => (path, true),
                    None => (name, false),
                };
                Self::File {
                    path: Path::new(OsStr::from_bytes(path)).into(),
                    deleted,
                }
            }
            _ => Self::Special,
        }
    }
}

/// The mappings that were asked for, and what was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedMappings {
    /// In the order of the file: by address, unless the process changed its mappings while they were read. At most
    /// [`MAPPINGS_MAX`], the largest.
    pub mappings: Vec<Mapping>,
    /// Mappings dropped for [`MAPPINGS_MAX`] or [`PATH_BYTES_MAX`].
    pub left_out: u32,
    /// Lines that are not in the format of proc(5).
    pub malformed: u32,
}

impl ParsedMappings {
    /// Of more mappings than that the largest are kept, those of files before others: an interpreter and its libraries have
    /// large ones, and generated code often has thousands of small ones.
    pub fn keep_largest(&mut self, count: usize) {
        let Some(more) = self.mappings.len().checked_sub(count).filter(|&it| it > 0) else {
            return;
        };
        self.left_out = self
            .left_out
            .saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        if count > 0 {
            let size = |mapping: &Mapping| mapping.end.0.saturating_sub(mapping.begin.0);
            let rank = |mapping: &Mapping| (Reverse(size(mapping)), !mapping.is_of_file());
            self.mappings.select_nth_unstable_by_key(count - 1, rank);
        }
        self.mappings.truncate(count);
        self.mappings.sort_unstable_by_key(|mapping| mapping.begin);
    }
}

/// Reads the executable mappings of a process.
///
/// Code that the process has copied from a file to other memory counts as a mapping of that file: see [`CodeCopy`].
///
/// Needs the right to read the process: the same user and a process that may dump core, or CAP_SYS_PTRACE
/// (`PTRACE_MODE_READ` in `proc_maps_open`, fs/proc/task_mmu.c, Linux 6.12). Costs about 1 µs a line. Fails with
/// `NotFound` if there is no such process, `PermissionDenied` without that right. A process that has exited but was
/// not waited for has no mappings.
pub fn read_executable_mappings(pid: Pid) -> io::Result<ParsedMappings> {
    let parsed = read_executable(pid, &format!("/proc/{pid}/maps"))?;
    if !parsed.mappings.is_empty() {
        return Ok(parsed);
    }
    // A first thread that has ended shows none.
    match running_thread(pid) {
        Some(thread) => read_executable(pid, &format!("/proc/{pid}/task/{thread}/maps")),
        None => Ok(parsed),
    }
}

fn read_executable(pid: Pid, path: &str) -> io::Result<ParsedMappings> {
    let file = BufReader::with_capacity(64 << 10, File::open(path)?);
    let mut candidates = CopyCandidates::default();
    let mut parsed = parse_mappings(file, |mapping| {
        candidates.observe(mapping);
        mapping.executable
    })?;
    candidates.restore(pid, &mut parsed.mappings);
    Ok(parsed)
}

/// Parses the text of a maps file; `keep` picks from what it says.
///
/// Never fails on content. Bounded by [`MAPPINGS_MAX`] and [`PATH_BYTES_MAX`], whatever the length of the text.
pub fn parse_mappings(
    mut text: impl BufRead,
    mut keep: impl FnMut(&Mapping) -> bool,
) -> io::Result<ParsedMappings> {
    let mut parsed = ParsedMappings::default();
    let mut path_bytes = 0;
    // The file that was begun last, and where.
    let mut head = None;
    let mut line = Vec::with_capacity(256);
    loop {
        line.clear();
        let complete = read_line(&mut text, &mut line)?;
        if line.is_empty() && complete == Line::End {
            parsed.keep_largest(MAPPINGS_MAX);
            return Ok(parsed);
        }
        let Some(mut mapping) = (complete != Line::TooLong)
            .then(|| parse_line(&line))
            .flatten()
        else {
            parsed.malformed = parsed.malformed.saturating_add(1);
            continue;
        };
        if mapping.is_of_file() {
            let id = mapping.file_id();
            if mapping.file_offset.0 == 0 {
                head = Some((id, mapping.begin));
            }
            mapping.head = head.filter(|(of, _)| *of == id).map(|(_, begin)| begin);
        }
        if !keep(&mapping) {
            continue;
        }
        share_path(&mut mapping, parsed.mappings.last(), &mut path_bytes);
        if path_bytes > PATH_BYTES_MAX {
            parsed.left_out = parsed.left_out.saturating_add(1);
            continue;
        }
        parsed.mappings.push(mapping);
        if parsed.mappings.len() >= 2 * MAPPINGS_MAX {
            parsed.keep_largest(MAPPINGS_MAX);
        }
    }
}

/// Lets neighbours with one path share it, and counts the bytes of new ones.
fn share_path(mapping: &mut Mapping, previous: Option<&Mapping>, path_bytes: &mut usize) {
    let MappingKind::File { path, .. } = &mut mapping.kind else {
        return;
    };
    match previous.map(|previous| &previous.kind) {
        Some(MappingKind::File { path: shared, .. }) if shared == path => {
            *path = Arc::clone(shared);
        }
        _ => *path_bytes = path_bytes.saturating_add(path.as_os_str().len()),
    }
}

#[derive(PartialEq, Eq)]
enum Line {
    Whole,
    TooLong,
    End,
}

/// Reads up to a newline, which is dropped, without ever holding more than [`LINE_BYTES_MAX`].
fn read_line(text: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Line> {
    let mut too_long = false;
    loop {
        let available = match text.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let newline = available.iter().position(|&byte| byte == b'\n');
        let piece = &available[..newline.unwrap_or(available.len())];
        if line.len() + piece.len() > LINE_BYTES_MAX {
            too_long = true;
        } else {
            line.extend_from_slice(piece);
        }
        let ended = available.is_empty();
        let used = piece.len() + usize::from(newline.is_some());
        text.consume(used);
        match (newline, ended) {
            _ if (newline.is_some() || ended) && too_long => return Ok(Line::TooLong),
            (Some(_), _) => return Ok(Line::Whole),
            (None, true) => return Ok(Line::End),
            (None, false) => {}
        }
    }
}

/// `begin-end perms offset major:minor inode      name` (proc(5); `show_map_vma` in fs/proc/task_mmu.c, Linux 6.12).
fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let (begin, end) = split_at(fields.next()?, b'-')?;
    let permissions = fields.next()?;
    let file_offset = hex(fields.next()?)?;
    let (major, minor) = split_at(fields.next()?, b':')?;
    let inode = decimal(fields.next()?)?;
    let name = fields.next().unwrap_or_default();
    let name = &name[name
        .iter()
        .position(|&byte| byte != b' ')
        .unwrap_or(name.len())..];

    let (begin, end) = (Avma(hex(begin)?), Avma(hex(end)?));
    if begin >= end || permissions.len() != 4 {
        return None;
    }
    Some(Mapping {
        begin,
        end,
        file_offset: FileOffset(file_offset),
        executable: permissions[2] == b'x',
        kind: MappingKind::from_kernel_name(&unescape(name)),
        device: (
            u32::try_from(hex(major)?).ok()?,
            u32::try_from(hex(minor)?).ok()?,
        ),
        inode,
        head: None,
        copy: CodeCopy::None,
    })
}

/// The kernel writes a newline in a name as `\012` and nothing else so: a backslash stands for itself.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(br"\012") {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(first);
            rest = tail;
        }
    }
    plain
}

fn split_at(field: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = field.iter().position(|&byte| byte == separator)?;
    Some((&field[..at], &field[at + 1..]))
}

fn hex(digits: &[u8]) -> Option<u64> {
    number(digits, 16)
}

fn decimal(digits: &[u8]) -> Option<u64> {
    number(digits, 10)
}

fn number(digits: &[u8], base: u32) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, &digit| {
        value
            .checked_mul(u64::from(base))?
            .checked_add(u64::from(char::from(digit).to_digit(base)?))
    })
}

#[cfg(test)]
#[path = "mappings_tests.rs"]
mod tests;
