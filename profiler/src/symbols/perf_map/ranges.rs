//! Address ranges with names, sorted by start, cheap to add to in any order.
//!
//! Two levels: pages of at most [`PAGE`] ranges, and the start of each page's first range. A range that belongs behind
//! all others is appended; any other one moves at most a page, 4 KiB. So a map of a million entries that gains ten more
//! pays for ten.

use super::names::{NameId, Names};

/// Ranges in one page.
const PAGE: usize = 256;

/// Bytes behind the start of a range of absurd size that may well be its own.
const OWN_BYTES: u64 = 256;

/// Bit of `NamedRange::len` for [`NamedRange::is_renamed`]: no believed length comes near it.
const RENAMED: u32 = 1 << 31;

/// Code from `start` on, 16 bytes in memory. It ends at `start + len`, or where the next range starts if that is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamedRange {
    /// First address.
    pub(super) start: u64,
    /// Bytes, at least 1; and one bit.
    len: u32,
    /// What it is.
    pub(super) name: NameId,
}

impl NamedRange {
    /// `len` bytes of code, at least 1.
    pub(super) const fn new(start: u64, len: u32, name: NameId) -> Self {
        let len = len & !RENAMED;
        Self { start, len, name }
    }

    /// Some of its addresses had another name before.
    pub(super) const fn is_renamed(&self) -> bool {
        self.len & RENAMED != 0
    }

    const fn len(&self) -> u32 {
        self.len & !RENAMED
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.len()))
    }

    /// Stands for something else than `other`, or for something that is in doubt.
    fn differs(&self, other: &Self, names: &Names) -> bool {
        other.is_renamed()
            || self.name != other.name && names.get(self.name) != names.get(other.name)
    }
}

/// What adding a range did to those that were there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// Only addresses without a name got one.
    New,
    /// It was there already, exactly like this.
    Same,
    /// Addresses that had a name lost it or got another one.
    Replaced,
}

/// What was removed.
struct Removed {
    any: bool,
    /// Some of it stood for something else.
    any_other: bool,
}

/// The ranges of a map.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// Start of the first range of each page.
    firsts: Vec<u64>,
    /// Never empty ones.
    pages: Vec<Vec<NamedRange>>,
    /// The page that was added to last: writers fill one piece of memory after the other.
    recent: usize,
    /// The start that was added last.
    last_added: u64,
    len: usize,
}

impl Ranges {
    /// How many ranges there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many there is memory for, at the least.
    pub(super) fn capacity(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// The range that covers an address.
    pub(super) fn covering(&self, at: u64) -> Option<&NamedRange> {
        let page = &self.pages[self
            .firsts
            .partition_point(|&first| first <= at)
            .checked_sub(1)?];
        let below = page
            .partition_point(|range| range.start <= at)
            .checked_sub(1)?;
        Some(&page[below]).filter(|range| at < range.end())
    }

    /// Adds a range over whatever is there. With `overrides`, ranges that start inside it are gone for good; without,
    /// they stay and cut it short.
    pub(super) fn add(&mut self, mut range: NamedRange, overrides: bool, names: &Names) -> Added {
        let Some(page_at) = self.page_for(range.start) else {
            self.push_first(range);
            return Added::New;
        };
        self.recent = page_at;
        let page = &mut self.pages[page_at];
        let at = page.partition_point(|other| other.start < range.start);
        let before = at.checked_sub(1).map(|before| page[before]);
        let before = before.filter(|before| before.end() > range.start);
        let mut replaced = before.is_some();
        let mut renamed = before.is_some_and(|before| range.differs(&before, names));
        let occupied = page
            .get(at)
            .filter(|other| other.start == range.start)
            .copied();
        if let Some(old) = occupied {
            replaced |= old.name != range.name || old.len() > range.len();
            renamed |= range.differs(&old, names);
        }
        let behind = at + usize::from(occupied.is_some());
        if overrides {
            let is_other = |old: &NamedRange| range.differs(old, names);
            let removed = self.remove_inside(page_at, behind, range.end(), is_other);
            replaced |= removed.any;
            renamed |= removed.any_other;
        } else {
            self.mark_inside(page_at, behind, &range, names);
        }
        if renamed {
            range.len |= RENAMED;
        }
        match occupied {
            Some(_) => self.pages[page_at][at] = range,
            None => self.insert(page_at, at, range),
        }
        match (replaced, occupied) {
            (true, _) => Added::Replaced,
            (false, Some(old)) if old == range => Added::Same,
            _ => Added::New,
        }
    }

    /// Memory it holds.
    pub(super) fn heap_bytes(&self) -> usize {
        let ranges: usize = self.pages.iter().map(Vec::capacity).sum();
        ranges * size_of::<NamedRange>()
            + self.pages.capacity() * size_of::<Vec<NamedRange>>()
            + self.firsts.capacity() * size_of::<u64>()
    }

    /// The page a start belongs to: the last one that begins at or below it, else the first. `None` without pages.
    fn page_for(&self, start: u64) -> Option<usize> {
        let begins_by = |page: usize| self.firsts.get(page).is_some_and(|&first| first <= start);
        if begins_by(self.recent) && !begins_by(self.recent + 1) {
            return Some(self.recent);
        }
        let pages_below = self.firsts.partition_point(|&first| first <= start);
        (!self.firsts.is_empty()).then(|| pages_below.saturating_sub(1))
    }

    fn push_first(&mut self, range: NamedRange) {
        self.firsts.push(range.start);
        self.pages.push(vec![range]);
        self.last_added = range.start;
        self.len = 1;
    }

    /// Removes the ranges from position `at` of a page on, over later pages too, that start below `end`. May leave
    /// the page empty: the caller is about to insert into it.
    fn remove_inside(
        &mut self,
        page_at: usize,
        at: usize,
        end: u64,
        is_other: impl Fn(&NamedRange) -> bool,
    ) -> Removed {
        let before = self.len;
        let page = &mut self.pages[page_at];
        let stay = at + page[at..].partition_point(|range| range.start < end);
        let reached_page_end = stay == page.len();
        let mut any_other = page[at..stay].iter().any(&is_other);
        self.len -= page.drain(at..stay).len();
        let next = page_at + 1;
        if reached_page_end && self.firsts.get(next).is_some_and(|&first| first < end) {
            // All pages that begin below the end lose ranges; only the last of them can keep some.
            let last = self.firsts.partition_point(|&first| first < end) - 1;
            let lost = self.pages[last].partition_point(|range| range.start < end);
            any_other = any_other
                || self.pages[next..last].iter().flatten().any(&is_other)
                || self.pages[last][..lost].iter().any(&is_other);
            let last_is_empty = lost == self.pages[last].len();
            self.len -= self.pages[last].drain(..lost).len();
            let gone = next..last + usize::from(last_is_empty);
            self.len -= self.pages[next..last].iter().map(Vec::len).sum::<usize>();
            self.firsts.drain(gone.clone());
            self.pages.drain(gone);
            if !last_is_empty {
                self.firsts[next] = self.pages[next][0].start;
            }
        }
        Removed {
            any: before != self.len,
            any_other,
        }
    }

    /// Ranges from position `at` of a page on that start inside one of absurd size stay, but who wrote that one may mean
    /// the same addresses by it: no more of them than its own code can reach.
    fn mark_inside(&mut self, page_at: usize, at: usize, range: &NamedRange, names: &Names) {
        let end = range.start.saturating_add(OWN_BYTES);
        let pages = self.pages[page_at..].iter_mut();
        let behind = pages.enumerate().flat_map(|(page, ranges)| {
            let skipped = if page == 0 { at } else { 0 };
            ranges[skipped..].iter_mut()
        });
        for other in behind.take_while(|other| other.start < end) {
            if range.differs(other, names) {
                other.len |= RENAMED;
            }
        }
    }

    fn insert(&mut self, page_at: usize, at: usize, range: NamedRange) {
        self.len += 1;
        let follows_last_added = at > 0 && self.pages[page_at][at - 1].start == self.last_added;
        self.last_added = range.start;
        let page = &mut self.pages[page_at];
        if page.len() < PAGE {
            page.insert(at, range);
            self.firsts[page_at] = page[0].start;
            return;
        }
        if at == page.len() {
            let next = page_at + 1;
            if self.pages.get(next).is_some_and(|page| page.len() < PAGE) {
                self.pages[next].insert(0, range);
                self.firsts[next] = range.start;
            } else {
                let mut fresh = Vec::with_capacity(PAGE);
                fresh.push(range);
                self.insert_page(next, fresh);
            }
            self.recent = next;
            return;
        }
        // In the middle of an ascending row the page is cut at the row's end, so that the row goes on filling it.
        let cut = if follows_last_added { at } else { PAGE / 2 };
        let mut upper = Vec::with_capacity(PAGE);
        upper.extend(page.drain(cut..));
        if at <= cut {
            page.insert(at, range);
        } else {
            upper.insert(at - cut, range);
        }
        self.firsts[page_at] = page[0].start;
        self.insert_page(page_at + 1, upper);
    }

    fn insert_page(&mut self, at: usize, page: Vec<NamedRange>) {
        self.firsts.insert(at, page[0].start);
        self.pages.insert(at, page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::perf_map::names::Names;

    fn ranges(starts: impl Iterator<Item = u64>) -> Ranges {
        let mut names = Names::default();
        let name = names.add(b"x", usize::MAX).expect("room");
        let mut ranges = Ranges::default();
        for start in starts {
            let range = NamedRange::new(start, 8, name);
            assert_eq!(ranges.add(range, true, &names), Added::New);
        }
        ranges
    }

    fn assert_sorted_and_dense(ranges: &Ranges, expected: usize) {
        let all: Vec<u64> = ranges
            .pages
            .iter()
            .flatten()
            .map(|range| range.start)
            .collect();
        assert!(all.is_sorted());
        assert_eq!((all.len(), ranges.len()), (expected, expected));
        assert!(
            ranges
                .pages
                .iter()
                .all(|page| !page.is_empty() && page.capacity() <= PAGE)
        );
        assert!(
            ranges
                .firsts
                .iter()
                .eq(ranges.pages.iter().map(|page| &page[0].start))
        );
    }

    #[test]
    fn ascending_starts_leave_full_pages() {
        let ranges = ranges((1..=100 * PAGE as u64).map(|i| i * 16));
        assert_sorted_and_dense(&ranges, 100 * PAGE);
        assert_eq!(ranges.pages.len(), 100);
    }

    #[test]
    fn arenas_one_below_the_other_leave_nearly_full_pages() {
        let arenas = (1..=50_u64).rev();
        let ranges =
            ranges(arenas.flat_map(|arena| (0..2048).map(move |i| (arena << 16) | (i * 32))));
        assert_sorted_and_dense(&ranges, 50 * 2048);
        assert!(
            ranges.pages.len() < 50 * 2048 / PAGE * 5 / 4,
            "{} pages",
            ranges.pages.len()
        );
    }

    #[test]
    fn no_order_of_starts_leaves_pages_less_than_half_full() {
        let count = 40 * PAGE as u64;
        let descending = ranges((1..=count).rev().map(|i| i * 16));
        let scattered = ranges((1..=count).map(|i| (i * 7919 % count + 1) * 16));
        for ranges in [descending, scattered] {
            assert_sorted_and_dense(&ranges, count as usize);
            assert!(
                ranges.pages.len() <= 2 * 40 + 1,
                "{} pages",
                ranges.pages.len()
            );
        }
    }

    #[test]
    fn a_wide_range_removes_whole_pages_of_older_ones() {
        let mut ranges = ranges((1..=10 * PAGE as u64).map(|i| i * 16));
        let mut names = Names::default();
        let name = names.add(b"x", usize::MAX).expect("room");
        let wide = NamedRange::new(100, 9 * 16 * PAGE as u32, name);
        assert_eq!(ranges.add(wide, true, &names), Added::Replaced);
        // Starts 16 to 96 lie before it, those from 100 + 36,864 on behind it.
        assert_sorted_and_dense(&ranges, 6 + 1 + (10 * PAGE - 2310));
        assert_eq!(ranges.covering(20_000), Some(&wide));
    }

    /// Ranges added one after the other, and which of the addresses are covered by one that is renamed.
    fn renamed(entries: &[(u64, u32, &str, bool)], addresses: &[u64]) -> Vec<bool> {
        let mut names = Names::default();
        let mut ranges = Ranges::default();
        for &(start, len, name, overrides) in entries {
            let name = names.add(name.as_bytes(), usize::MAX).expect("room");
            ranges.add(NamedRange::new(start, len, name), overrides, &names);
        }
        let is_renamed = |&at: &u64| ranges.covering(at).is_some_and(NamedRange::is_renamed);
        addresses.iter().map(is_renamed).collect()
    }

    #[test]
    fn a_range_over_another_name_is_renamed() {
        let over = |entries: &[_]| renamed(entries, &[100, 120, 140]);
        // At the same start, over the end, over the whole of it.
        assert_eq!(
            over(&[(100, 20, "a", true), (100, 20, "b", true)]),
            [true, false, false]
        );
        assert_eq!(
            over(&[(100, 30, "a", true), (120, 40, "b", true)]),
            [false, true, true]
        );
        assert_eq!(
            over(&[(120, 10, "a", true), (100, 50, "b", true)]),
            [true, true, true]
        );
        // The same name, or beside it.
        assert_eq!(
            over(&[(100, 30, "a", true), (120, 40, "a", true)]),
            [false; 3]
        );
        assert_eq!(
            over(&[(100, 20, "a", true), (120, 20, "b", true)]),
            [false; 3]
        );
        // Once in doubt, always in doubt.
        assert_eq!(
            over(&[
                (100, 20, "a", true),
                (100, 20, "b", true),
                (100, 20, "b", true)
            ]),
            [true, false, false]
        );
    }

    #[test]
    fn a_range_of_absurd_size_puts_what_is_near_its_start_in_doubt() {
        let entries = [
            (120, 8, "a", true),
            (500, 8, "a", true),
            (100, 256, "b", false),
        ];
        assert_eq!(
            renamed(&entries, &[100, 120, 130, 500]),
            [false, true, false, false]
        );
    }

    #[test]
    fn a_renamed_range_is_found_over_many_pages() {
        let mut names = Names::default();
        let [a, b] = ["a", "b"].map(|name| names.add(name.as_bytes(), usize::MAX).expect("room"));
        for odd in [1, 300, 700, 1000] {
            let mut ranges = Ranges::default();
            for number in 1..=1000_u64 {
                let name = if number == odd { b } else { a };
                ranges.add(NamedRange::new(number * 16, 16, name), true, &names);
            }
            ranges.add(NamedRange::new(8, 1000 * 16, a), true, &names);
            assert!(ranges.covering(9).expect("wide").is_renamed(), "{odd}");
        }
    }
}
