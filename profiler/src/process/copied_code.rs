//! Code that a process runs from a copy of a file's text: finds out which file it stands for.
//!
//! Programs copy their text to huge pages, at the same addresses, to spare the processor address translations: Intel's
//! iodlr, BOLT's `-hugify`, and a few cloud builds of interpreters. `/proc/PID/maps` then shows anonymous memory, a
//! memfd or a hugetlbfs file between two mappings of the file that the code came from. Each executable mapping that is
//! not of its neighbour's file is a candidate; it counts as the file's if
//!
//! * it lies inside an executable segment, by the file's program headers and the bias of the neighbour's mapping, and
//! * its content is the file's, wherever it is compared ([`PLACES`]).
//!
//! What has the place of a segment and another content is reported as changed ([`CodeCopy::Changed`]).

use std::{
    os::unix::fs::FileExt as _,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use rustc_hash::FxHashMap;

use super::{
    elf::{ElfFile, Segments},
    file::{MappedFile, open_mapped},
    interpreter::{Memory, PatientReader, Progress, ReadMemory},
    mappings::{CodeCopy, Mapping, MappingKind},
};
use crate::model::{Avma, FileOffset, Pid};

/// Candidates of one process. JIT compilers make some hundreds of executable mappings.
const CANDIDATES_MAX: usize = 1024;

/// Files of one process that are opened to look for candidates in their place.
const FILES_MAX: usize = 64;

/// Places at which a copy is compared with its file, spread evenly over it, and bytes at each.
const PLACES: u64 = 32;
const PLACE_BYTES: u64 = 64;

/// The kernel maps whole pages of this size.
const PAGE_BYTES: u64 = 4096;

/// The process's memory is waited for so long: its pages may be on a slow disk, or be served by the process itself.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Threads that read memory, of which a few may not come back.
static READER: LazyLock<Mutex<PatientReader>> = LazyLock::new(Mutex::default);

/// Executable mappings that may be copies, collected while a maps file is read.
#[derive(Debug, Default)]
pub(super) struct CopyCandidates {
    /// The last mapping of a file.
    previous: Option<Mapping>,
    candidates: Vec<Candidate>,
    /// The first candidate behind which no mapping of a file was seen yet.
    first_open: usize,
}

/// An executable mapping, and the nearest mappings of files on both sides of it.
#[derive(Debug)]
struct Candidate {
    code: Mapping,
    before: Option<Mapping>,
    after: Option<Mapping>,
}

/// A candidate that has the place of a file's code.
struct Claim {
    code: Mapping,
    /// The file is on both sides of it.
    is_enclosed: bool,
    /// The parts of files that it may be. Segments can share a page of the file, which leaves a choice.
    places: Vec<Place>,
}

/// A part of a file.
struct Place {
    file: Arc<NeighbourFile>,
    /// The mapping of the file beside the candidate.
    neighbour: Mapping,
    /// Where in the file the part begins.
    offset: FileOffset,
    /// Where in the file the segment ends that it is of.
    segment_end: u64,
}

/// What a comparison with files showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It has the content of the place with this number.
    Same(usize),
    /// It has that of none.
    Changed,
    /// The memory or the file cannot be read.
    Unknown,
}

/// A file beside a candidate.
struct NeighbourFile {
    opened: MappedFile,
    segments: Segments,
}

impl CopyCandidates {
    /// Takes the next mapping, in the order of addresses.
    pub(super) fn observe(&mut self, mapping: &Mapping) {
        if is_memory(mapping) {
            if mapping.executable {
                self.add(mapping);
            }
            return;
        }
        if !mapping.is_of_file() {
            return;
        }
        for candidate in &mut self.candidates[self.first_open..] {
            candidate.after = Some(mapping.clone());
        }
        self.first_open = self.candidates.len();
        let is_other_file = |previous: &Mapping| !previous.has_file_of(mapping);
        if mapping.executable && self.previous.as_ref().is_some_and(is_other_file) {
            // A file with a name of its own, as those of hugetlbfs are.
            self.add(mapping);
        }
        self.previous = Some(mapping.clone());
    }

    fn add(&mut self, code: &Mapping) {
        if self.candidates.len() < CANDIDATES_MAX {
            self.candidates.push(Candidate {
                code: code.clone(),
                before: self.previous.clone(),
                after: None,
            });
        }
    }

    /// Makes mappings of their files of those that are copies of their code. `mappings` has all executable ones.
    ///
    /// Costs some 30 µs for each file beside a candidate, and 200 µs for each copy.
    pub(super) fn restore(self, pid: Pid, mappings: &mut [Mapping]) {
        let mut files = FxHashMap::default();
        let claims: Vec<Claim> = self
            .candidates
            .into_iter()
            .filter_map(|candidate| candidate.claim(pid, &mut files))
            .collect();
        if claims.is_empty() {
            return;
        }
        let claims = Arc::new(claims);
        for (claim, verdict) in claims.iter().zip(compare(pid, &claims)) {
            let index = mappings.partition_point(|mapping| mapping.begin < claim.code.begin);
            if let Some(mapping) = mappings.get_mut(index)
                && *mapping == claim.code
                && let Some(restored) = claim.restored(verdict)
            {
                *mapping = restored;
            }
        }
    }
}

/// Memory that no file on a disk is behind.
fn is_memory(mapping: &Mapping) -> bool {
    match &mapping.kind {
        MappingKind::Anonymous => true,
        MappingKind::File { path, deleted } => {
            // `MAP_HUGETLB` and `shmget` (fs/hugetlbfs/inode.c, ipc/shm.c, Linux 6.12).
            let is_nameless = path.to_str() == Some("/anon_hugepage")
                || path.to_str().is_some_and(|path| path.starts_with("/SYSV"));
            mapping.may_hold_jit_code() || (*deleted && is_nameless)
        }
        MappingKind::Vdso | MappingKind::Special => false,
    }
}

type Files = FxHashMap<((u32, u32), u64), Option<Arc<NeighbourFile>>>;

impl Candidate {
    /// The file whose code it has the place of, if any.
    fn claim(self, pid: Pid, files: &mut Files) -> Option<Claim> {
        let Self {
            code,
            before,
            after,
        } = self;
        let is_enclosed =
            matches!((&before, &after), (Some(before), Some(after)) if before.has_file_of(after));
        // A file with a name has to be between two parts of another one.
        if !is_memory(&code) && !is_enclosed {
            return None;
        }
        let mut places = Vec::new();
        for neighbour in [before, after].into_iter().flatten() {
            let Some(file) = neighbour_file(pid, &neighbour, files) else {
                continue;
            };
            for (offset, segment_end) in file.segments.places_of_code(&neighbour, &code) {
                places.push(Place {
                    file: Arc::clone(&file),
                    neighbour: neighbour.clone(),
                    offset,
                    segment_end,
                });
            }
        }
        (!places.is_empty()).then_some(Claim {
            code,
            is_enclosed,
            places,
        })
    }
}

fn neighbour_file(pid: Pid, mapping: &Mapping, files: &mut Files) -> Option<Arc<NeighbourFile>> {
    if let Some(known) = files.get(&mapping.file_id()) {
        return known.clone();
    }
    if files.len() >= FILES_MAX {
        return None;
    }
    let opened = open_mapped(pid, mapping).ok();
    let file = opened.and_then(|opened| {
        let segments = ElfFile::parse(&opened.file).ok()?.segments().clone();
        Some(Arc::new(NeighbourFile { opened, segments }))
    });
    files.insert(mapping.file_id(), file.clone());
    file
}

impl Segments {
    /// Where in the file the code is that belongs at the addresses of `code`, and where its segment ends there, if the
    /// process has the file at `neighbour`. Empty: no executable segment covers all of these addresses.
    fn places_of_code(&self, neighbour: &Mapping, code: &Mapping) -> Vec<(FileOffset, u64)> {
        const PLACES_MAX: usize = 4;
        let offset = neighbour.file_offset.0;
        let mut biases: Vec<u64> = self
            .0
            .iter()
            .filter(|it| {
                let begin = it.offset & !(PAGE_BYTES - 1);
                (begin..it.offset.saturating_add(it.file_size)).contains(&offset)
            })
            .map(|it| {
                let stated = it.address.wrapping_sub(it.offset).wrapping_add(offset);
                neighbour.begin.0.wrapping_sub(stated)
            })
            .collect();
        biases.sort_unstable();
        biases.dedup();
        let places = biases.into_iter().flat_map(|bias| {
            let (from, to) = (
                code.begin.0.wrapping_sub(bias),
                code.end.0.wrapping_sub(bias),
            );
            let executable = self.0.iter().filter(|segment| segment.executable);
            executable.filter_map(move |segment| {
                let begin = segment.address & !(PAGE_BYTES - 1);
                let end = segment.address.checked_add(segment.file_size)?;
                let end = end.checked_next_multiple_of(PAGE_BYTES)?;
                let offset = segment
                    .offset
                    .wrapping_add(from.wrapping_sub(segment.address));
                let segment_end = segment.offset.checked_add(segment.file_size)?;
                (begin <= from && from < to && to <= end)
                    .then_some((FileOffset(offset), segment_end))
            })
        });
        places.take(PLACES_MAX).collect()
    }
}

/// A verdict for each claim.
fn compare(pid: Pid, claims: &Arc<Vec<Claim>>) -> Vec<Verdict> {
    let all = Arc::clone(claims);
    let reading = READER
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .begin(move || match Memory::open(pid) {
            Ok(memory) => all.iter().map(|claim| claim.compare(&memory)).collect(),
            Err(_) => Vec::new(),
        });
    let verdicts: Vec<Verdict> = match reading.map(|reading| reading.wait(TIMEOUT)) {
        Some(Progress::Done(verdicts)) => verdicts,
        _ => Vec::new(),
    };
    let unknown = std::iter::repeat(Verdict::Unknown);
    verdicts
        .into_iter()
        .chain(unknown)
        .take(claims.len())
        .collect()
}

impl Claim {
    fn compare(&self, memory: &dyn ReadMemory) -> Verdict {
        let mut is_known = true;
        for (index, place) in self.places.iter().enumerate() {
            match place.has_content_of(&self.code, memory) {
                Some(true) => return Verdict::Same(index),
                Some(false) => {}
                None => is_known = false,
            }
        }
        if is_known {
            Verdict::Changed
        } else {
            Verdict::Unknown
        }
    }

    /// The mapping as one of its file. `None`: it is not believed to be.
    fn restored(&self, verdict: Verdict) -> Option<Mapping> {
        let (index, copy): (usize, fn(Avma, Avma) -> CodeCopy) = match verdict {
            Verdict::Same(index) => (index, CodeCopy::Same),
            // What cannot be compared has the file on both sides at least.
            Verdict::Unknown if self.is_enclosed => (0, CodeCopy::Same),
            Verdict::Changed if self.is_enclosed => (0, CodeCopy::Changed),
            Verdict::Unknown | Verdict::Changed => return None,
        };
        let place = self.places.get(index)?;
        let neighbour = &place.neighbour;
        Some(Mapping {
            file_offset: place.offset,
            kind: neighbour.kind.clone(),
            device: neighbour.device,
            inode: neighbour.inode,
            head: neighbour.head,
            copy: copy(neighbour.begin, neighbour.end),
            ..self.code.clone()
        })
    }
}

impl Place {
    /// Memory has what the file has here. `None`: one of both cannot be read.
    fn has_content_of(&self, code: &Mapping, memory: &dyn ReadMemory) -> Option<bool> {
        if self.file.opened.is_from_memory {
            return None;
        }
        // The segment may end within a page.
        let bytes = (code.end.0 - code.begin.0).min(self.segment_end.checked_sub(self.offset.0)?);
        let step = (bytes / PLACES).max(PLACE_BYTES);
        for at in (0..bytes).step_by(usize::try_from(step).ok()?) {
            let length = PLACE_BYTES.min(bytes - at) as usize;
            let (mut here, mut there) = ([0; PLACE_BYTES as usize], [0; PLACE_BYTES as usize]);
            let (here, there) = (&mut here[..length], &mut there[..length]);
            if !memory.read(code.begin.0 + at, here) {
                return None;
            }
            let file = &self.file.opened.file;
            file.read_exact_at(there, self.offset.0 + at).ok()?;
            if here != there {
                return Some(false);
            }
        }
        Some(bytes > 0)
    }
}

#[cfg(test)]
#[path = "copied_code_tests.rs"]
mod tests;
