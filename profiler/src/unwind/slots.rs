//! Which places for lists of mappings are free.
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

/// The slots of `PROCESS_MAPPINGS` but for the empty one.
#[derive(Debug)]
pub(super) struct Slots {
    free: VecDeque<u32>,
    /// Slots that were handed out, and what they hold. Since when nobody was found to have one, if so.
    taken: FxHashMap<u32, (u64, Option<Instant>)>,
    /// By a hash of what they hold.
    by_content: FxHashMap<u64, u32>,
    count: usize,
}

impl Slots {
    /// `count` slots, of which the first is left out.
    pub(super) fn new(count: u32) -> Self {
        Self {
            free: (1..count).collect(),
            taken: FxHashMap::default(),
            by_content: FxHashMap::default(),
            count: count as usize,
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

    /// Few are left: whoever can find out should say which are in use.
    pub(super) fn run_short(&self) -> bool {
        self.free.len() <= self.count / 4
    }

    /// A free one, for content with this hash.
    pub(super) fn take(&mut self, hash: u64) -> Option<u32> {
        let slot = self.free.pop_front()?;
        self.taken.insert(slot, (hash, None));
        self.by_content.insert(hash, slot);
        Some(slot)
    }

    /// These are in use now. The others are free once that was so twice, a while apart.
    pub(super) fn reclaim(&mut self, used: &FxHashSet<u32>, now: Instant) {
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
        assert!(slots.run_short());
        let begin = Instant::now();
        let used = FxHashSet::from_iter([second]);
        slots.reclaim(&used, begin);
        assert_eq!(
            (slots.take(30), slots.next_free_in(begin)),
            (None, Some(REST))
        );
        slots.reclaim(&used, begin + REST);
        assert_eq!(slots.with_content(10), None);
        assert_eq!(slots.take(30), Some(first));
    }

    #[test]
    fn one_that_is_shared_meanwhile_is_kept() {
        let mut slots = Slots::new(2);
        let slot = slots.take(10).unwrap();
        let begin = Instant::now();
        slots.reclaim(&FxHashSet::default(), begin);
        assert_eq!(slots.with_content(10), Some(slot));
        slots.share(slot);
        slots.reclaim(&FxHashSet::default(), begin + REST);
        assert_eq!(slots.take(20), None);
    }
}
