//! The entries of one perf map, ready to be asked. Gets bytes in the order in which they were written, cut anywhere.

use std::borrow::Cow;

use super::PerfMapLimits;
use super::limits::{JIT_RANGE_MAX, LINE_BYTES_MAX, NAME_BYTES_MAX, PYTHON_RANGE_MAX};
use super::names::Names;
use super::parse::{MapLine, SkipReason, parse_line};
use super::ranges::{Added, NamedRange, Ranges};
use crate::model::{Avma, FrameKind};
use crate::symbols::python_name;

/// What a process says its code is.
///
/// What covers an address:
///
/// * **The newest entry wins.** Code memory is reused: an entry replaces those that start inside it, for good.
/// * **A range ends where the next one starts**, however long its writer says it is.
/// * **Absurd sizes are not believed.** A range of more than 256 bytes in a `py::` entry, or 1 MiB in any other, is cut
///   to that length, and does not replace entries that start inside it, but for the one at its own start.
/// * **Size 0 covers one byte**: the entry is there to be found, and takes next to nothing from others.
///
/// A Python name with a newline in it is put together again from the lines that it was written on.
///
/// Appending costs time in proportion to what is appended, not to what is there; an entry is found by the next look-up.
/// About 16 bytes and the name itself are kept of an entry. The bounds are in [`PerfMapLimits`].
#[derive(Debug, Default)]
pub struct PerfMap {
    ranges: Ranges,
    names: Names,
    /// The beginning of a line whose end has not been written yet, at most [`LINE_BYTES_MAX`].
    unfinished: Vec<u8>,
    /// The unfinished line is too long already: its rest is dropped as it comes.
    skipping: bool,
    /// The last line, if its name seems to go on in the next one.
    broken: Option<BrokenName>,
    limits: PerfMapLimits,
    counters: PerfMapCounters,
}

/// A Python name that ends before its file: it has a newline in it, which its writer does not escape.
#[derive(Debug)]
struct BrokenName {
    start: u64,
    size: u64,
    name: Vec<u8>,
    /// How many more lines are taken for part of it.
    lines_left: u32,
}

/// What happened to the lines of a map since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfMapCounters {
    /// Lines that became entries, replaced since or not.
    pub entries: u64,
    /// Lines that are no entries, by [`SkipReason`] in the order of [`SkipReason::ALL`]. See [`Self::skipped`].
    pub skipped_by_reason: [u64; SkipReason::ALL.len()],
    /// Lines that are entries but found no room any more.
    pub refused: u64,
    /// Entries whose size was not believed.
    pub oversized: u64,
    /// Entries whose name was cut.
    pub cut_names: u64,
    /// Entries that changed the name of an address that had one, or took it away; and how often all of them were
    /// dropped at once.
    pub replacements: u64,
}

impl PerfMapCounters {
    /// Lines that were skipped for this reason.
    pub fn skipped(&self, reason: SkipReason) -> u64 {
        self.skipped_by_reason[reason as usize]
    }

    /// Lines that were skipped for any reason other than being blank.
    pub fn junk(&self) -> u64 {
        self.skipped_by_reason.iter().sum::<u64>() - self.skipped(SkipReason::Blank)
    }
}

/// The entry that covers an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfMapName<'a> {
    /// Where its code starts.
    pub start: Avma,
    /// Its name as it was written: not always UTF-8.
    pub bytes: &'a [u8],
    /// Some of its addresses had another name before. That is usual where code memory is used again, and says that
    /// either may be meant where two processes write one map.
    pub is_renamed: bool,
}

impl<'a> PerfMapName<'a> {
    /// [`FrameKind::Python`] for what CPython's trampolines are called, else [`FrameKind::Jit`].
    pub fn kind(self) -> FrameKind {
        if python_name::is_python(self.bytes) {
            FrameKind::Python
        } else {
            FrameKind::Jit
        }
    }

    /// The name as text; what is not UTF-8 in it becomes U+FFFD.
    pub fn to_text(self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.bytes)
    }
}

impl BrokenName {
    /// More lines than this are not one name.
    const LINES_MAX: u32 = 8;

    /// The entry's name, if it is broken.
    fn of(MapLine { start, size, name }: MapLine<'_>) -> Option<Self> {
        python_name::is_broken(name).then(|| Self {
            start,
            size,
            name: name.into(),
            lines_left: Self::LINES_MAX,
        })
    }

    fn as_line(&self) -> MapLine<'_> {
        MapLine {
            start: self.start,
            size: self.size,
            name: &self.name,
        }
    }
}

impl PerfMap {
    /// An empty map with bounds of its own; [`PerfMap::default`] has the default ones.
    pub fn with_limits(limits: PerfMapLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Takes the next bytes of the file. A line without its newline waits for the rest. Returns how many lines became
    /// entries.
    pub fn append(&mut self, bytes: &[u8]) -> u64 {
        let before = self.counters.entries;
        let mut rest = bytes;
        if self.skipping || !self.unfinished.is_empty() {
            let Some(end) = find_newline(rest) else {
                self.keep_unfinished(rest);
                return 0;
            };
            self.keep_unfinished(&rest[..end]);
            self.finish_line();
            rest = &rest[end + 1..];
        }
        while let Some(end) = find_newline(rest) {
            self.take_line(&rest[..end]);
            rest = &rest[end + 1..];
        }
        self.keep_unfinished(rest);
        self.counters.entries - before
    }

    /// The newest entry that covers an address.
    pub fn name_at(&self, Avma(at): Avma) -> Option<PerfMapName<'_>> {
        let range = self.ranges.covering(at)?;
        Some(PerfMapName {
            start: Avma(range.start),
            bytes: self.names.get(range.name),
            is_renamed: range.is_renamed(),
        })
    }

    /// Drops all entries and the unfinished line, as when the file was written anew. The counters go on.
    pub fn clear(&mut self) {
        let counters = PerfMapCounters {
            replacements: self.counters.replacements + 1,
            ..self.counters
        };
        *self = Self {
            counters,
            ..Self::with_limits(self.limits)
        };
    }

    /// Entries that can be found now.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Nothing can be found.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What happened so far.
    pub fn counters(&self) -> &PerfMapCounters {
        &self.counters
    }

    /// Changes whenever a look-up that found nothing could find something, or the other way round.
    pub fn generation(&self) -> u64 {
        self.counters.entries + self.counters.replacements
    }

    /// Changes only when an address that had a name got another one or lost it: names found before are to be dropped.
    pub fn replacements(&self) -> u64 {
        self.counters.replacements
    }

    /// Memory it holds, in bytes.
    pub fn heap_bytes(&self) -> usize {
        let broken = self
            .broken
            .as_ref()
            .map_or(0, |broken| broken.name.capacity());
        self.ranges.heap_bytes() + self.names.heap_bytes() + self.unfinished.capacity() + broken
    }

    /// Keeps more of the unfinished line, or gives it up when it gets too long.
    fn keep_unfinished(&mut self, bytes: &[u8]) {
        if self.skipping {
            return;
        }
        if self.unfinished.len() + bytes.len() > LINE_BYTES_MAX {
            self.skip(SkipReason::TooLong);
            self.skipping = true;
            self.unfinished = Vec::new();
        } else {
            self.unfinished.extend_from_slice(bytes);
        }
    }

    fn finish_line(&mut self) {
        if self.skipping {
            self.skipping = false;
            return;
        }
        let line = std::mem::take(&mut self.unfinished);
        self.take_line(&line);
    }

    fn take_line(&mut self, line: &[u8]) {
        if line.len() > LINE_BYTES_MAX {
            return self.skip(SkipReason::TooLong);
        }
        match parse_line(line) {
            Ok(entry) => {
                self.counters.entries += u64::from(self.add(entry));
                self.broken = BrokenName::of(entry);
            }
            Err(reason) => {
                if !self.join_to_broken_name(line) {
                    self.skip(reason);
                }
            }
        }
    }

    /// Takes a line that is no entry as the next part of the name before it, if that is broken.
    fn join_to_broken_name(&mut self, line: &[u8]) -> bool {
        let Some(mut broken) = self.broken.take() else {
            return false;
        };
        broken.name.push(b'\n');
        broken.name.extend_from_slice(line);
        broken.lines_left -= 1;
        self.add(broken.as_line());
        if broken.lines_left > 0 && python_name::is_broken(&broken.name) {
            self.broken = Some(broken);
        }
        true
    }

    fn skip(&mut self, reason: SkipReason) {
        self.counters.skipped_by_reason[reason as usize] += 1;
    }

    /// Adds an entry, unless there is no room for it.
    fn add(&mut self, MapLine { start, size, name }: MapLine<'_>) -> bool {
        let longest = if python_name::is_python(name) {
            PYTHON_RANGE_MAX
        } else {
            JIT_RANGE_MAX
        };
        let believed = u32::try_from(size).ok().filter(|&size| size <= longest);
        let kept = cut_name(name);
        // Half-empty pages are possible when entries are replaced in the right order; a hostile writer finds it.
        let is_full = self.ranges.len() >= self.limits.entries
            || self.ranges.capacity() > 2 * self.limits.entries.max(1024);
        let name_id = if is_full {
            None
        } else {
            self.names.add(kept, self.limits.name_bytes)
        };
        let Some(name_id) = name_id else {
            self.counters.refused += 1;
            return false;
        };
        let range = NamedRange::new(start, believed.unwrap_or(longest).max(1), name_id);
        let added = self.ranges.add(range, believed.is_some(), &self.names);
        self.counters.oversized += u64::from(believed.is_none());
        self.counters.cut_names += u64::from(kept.len() < name.len());
        self.counters.replacements += u64::from(added == Added::Replaced);
        true
    }
}

/// The name as far as it is kept, cut between two characters if it is UTF-8.
fn cut_name(name: &[u8]) -> &[u8] {
    if name.len() <= NAME_BYTES_MAX {
        return name;
    }
    let is_continuation = |byte: u8| byte & 0xc0 == 0x80;
    let mut end = NAME_BYTES_MAX;
    while end > NAME_BYTES_MAX - 4 && is_continuation(name[end]) {
        end -= 1;
    }
    &name[..end]
}

/// Where the first newline is. Eight bytes at a time: in a large map this is most of the work.
fn find_newline(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let (words, rest) = bytes.as_chunks::<8>();
    for (place, word) in words.iter().enumerate() {
        // Zero bytes where there is a newline; then the high bit of the lowest such byte is set, and none below it.
        let differences = u64::from_le_bytes(*word) ^ (ONES * u64::from(b'\n'));
        let zeros = differences.wrapping_sub(ONES) & !differences & (ONES << 7);
        if zeros != 0 {
            return Some(place * 8 + zeros.trailing_zeros() as usize / 8);
        }
    }
    let in_rest = rest.iter().position(|&byte| byte == b'\n')?;
    Some(words.len() * 8 + in_rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_newline_is_found(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 8..13_u8], 0..40)) {
            prop_assert_eq!(find_newline(&bytes), bytes.iter().position(|&byte| byte == b'\n'));
        }
    }
}
