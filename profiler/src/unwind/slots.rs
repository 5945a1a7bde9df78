//! Which places of a table in the kernel are free: of the lists of mappings, and of the interpreters' layouts.
//!
//! The kernel side hands a slot on without asking: a forked child has its parent's, an `exec` and an exit give one up. So
//! nobody counts users; who has which slot stands in one map, and is read when free ones run short. A slot that nobody
//! has rests for a while: a walk that began with it, or a fork that has just read it, may not be finished.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use rustc_hash::{FxHashMap, FxHashSet};

/// Far longer than a walk (1,024 frames take 0.1 ms) or a `fork` takes to be done with a slot.
const REST: Duration = Duration::from_millis(100);

/// Places that are left free before the kernel is asked which of the others are in use.
const SPARE_MAX: usize = 256;
/// It is asked once in this time at most, and in twenty times as long as that took: two system calls for each target.
const ASK_AGAIN: Duration = Duration::from_millis(20);
const ASK_REST: u32 = 20;

/// The places of one table, such as the slots of `PROCESS_MAPPINGS`, but for the first one, which is always empty.
#[derive(Debug)]
pub(super) struct Slots {
    free: VecDeque<u32>,
    /// Slots that were handed out, and what they hold. Since when nobody was found to have one, if so.
    taken: FxHashMap<u32, (u64, Option<Instant>)>,
    /// By a hash of what they hold.
    by_content: FxHashMap<u64, u32>,
    count: usize,
    /// It may be asked again from then on.
    ask_from: Option<Instant>,
}

impl Slots {
    /// `count` slots, of which the first is left out.
    pub(super) fn new(count: u32) -> Self {
        Self {
            free: (1..count).collect(),
            taken: FxHashMap::default(),
            by_content: FxHashMap::default(),
            count: count as usize,
            ask_from: None,
        }
    }

    /// The slot that may hold this content already: to be compared.
    pub(super) fn with_content(&self, hash: u64) -> Option<u32> {
        self.by_content.get(&hash).copied()
    }

    /// A slot was found to hold what was wanted: it does not rest any more.
    pub(super) fn share(&mut self, slot: u32) {
        if let Some((_, unused_since)) = self.taken.get_mut(&slot) {
            *unused_since = None;
        }
    }

    /// How many are in use.
    pub(super) fn taken(&self) -> usize {
        self.taken.len()
    }

    /// Few are left, and nobody has said lately which are in use: [`reclaim`](Self::reclaim) should follow.
    pub(super) fn run_short(&self, now: Instant) -> bool {
        self.free.len() <= (self.count / 4).min(SPARE_MAX) && self.may_ask(now)
    }

    /// Nobody has said lately which are in use.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        self.ask_from.is_none_or(|from| now >= from)
    }

    /// A free one, for content with this hash.
    pub(super) fn take(&mut self, hash: u64) -> Option<u32> {
        let slot = self.free.pop_front()?;
        self.taken.insert(slot, (hash, None));
        self.by_content.insert(hash, slot);
        Some(slot)
    }

    /// These are in use now, which took so long to find out. The others are free once that was so twice, a while apart.
    pub(super) fn reclaim(&mut self, used: &FxHashSet<u32>, now: Instant, took: Duration) {
        self.ask_from = Some(now + ASK_AGAIN.max(took.saturating_mul(ASK_REST)));
        let (free, by_content) = (&mut self.free, &mut self.by_content);
        self.taken.retain(|&slot, (hash, unused_since)| {
            if used.contains(&slot) {
                *unused_since = None;
                return true;
            }
            let since = *unused_since.get_or_insert(now);
            if now.saturating_duration_since(since) < REST {
                return true;
            }
            free.push_back(slot);
            if by_content.get(hash) == Some(&slot) {
                by_content.remove(hash);
            }
            false
        });
    }

    /// One of those that nobody had last time will be free after so long.
    pub(super) fn next_free_in(&self, now: Instant) -> Option<Duration> {
        let since = self.taken.values().filter_map(|(_, since)| *since).min()?;
        Some(REST.saturating_sub(now.saturating_duration_since(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_again_when_nobody_had_it_twice() {
        let mut slots = Slots::new(3);
        let (first, second) = (slots.take(10).unwrap(), slots.take(20).unwrap());
        assert_eq!((first, second, slots.take(30)), (1, 2, None));
        let begin = Instant::now();
        assert!(slots.run_short(begin));
        let used = FxHashSet::from_iter([second]);
        slots.reclaim(&used, begin, Duration::ZERO);
        assert!(!slots.run_short(begin), "just asked");
        assert!(slots.run_short(begin + ASK_AGAIN));
        assert_eq!(
            (slots.take(30), slots.next_free_in(begin)),
            (None, Some(REST))
        );
        slots.reclaim(&used, begin + REST, Duration::ZERO);
        assert_eq!(slots.with_content(10), None);
        assert_eq!(slots.take(30), Some(first));
    }

    #[test]
    fn one_that_is_shared_meanwhile_is_kept() {
        let mut slots = Slots::new(2);
        let slot = slots.take(10).unwrap();
        let begin = Instant::now();
        slots.reclaim(&FxHashSet::default(), begin, Duration::ZERO);
        assert_eq!(slots.with_content(10), Some(slot));
        slots.share(slot);
        slots.reclaim(&FxHashSet::default(), begin + REST, Duration::ZERO);
        assert_eq!(slots.take(20), None);
    }
}
