//! Bounds on what all processes may take together, with a share that the others leave to each.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// What may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// By whoever comes first.
    pub shared: usize,
    /// By each in any case.
    pub of_each: usize,
    /// By all of those who come later together: there may be any number of processes.
    pub reserve: usize,
}

/// What was taken, and by whom.
#[derive(Debug)]
pub(crate) struct Usage<O> {
    shared: usize,
    reserve: usize,
    /// Of both.
    of_each: FxHashMap<O, usize>,
}

impl<O> Default for Usage<O> {
    fn default() -> Self {
        Self {
            shared: 0,
            reserve: 0,
            of_each: FxHashMap::default(),
        }
    }
}

impl<O: Copy + Eq + Hash> Usage<O> {
    /// `owner` may take something.
    pub(crate) fn has_room(&self, quota: &Quota, owner: O) -> bool {
        let own = || self.of_each.get(&owner).copied().unwrap_or_default();
        self.shared < quota.shared || (self.reserve < quota.reserve && own() < quota.of_each)
    }

    /// It takes so much.
    pub(crate) fn take(&mut self, quota: &Quota, owner: O, amount: usize) {
        let from = if self.shared < quota.shared {
            &mut self.shared
        } else {
            &mut self.reserve
        };
        *from = from.saturating_add(amount);
        let own = self.of_each.entry(owner).or_default();
        *own = own.saturating_add(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota {
        shared: 1000,
        of_each: 10,
        reserve: 100,
    };

    #[test]
    fn who_comes_late_gets_a_share_of_its_own() {
        let mut usage = Usage::default();
        while usage.has_room(&QUOTA, "hostile") {
            usage.take(&QUOTA, "hostile", 1);
        }
        let mut taken = 0;
        while usage.has_room(&QUOTA, "honest") {
            usage.take(&QUOTA, "honest", 1);
            taken += 1;
        }
        assert_eq!((usage.shared, taken), (1000, 10));
    }

    #[test]
    fn any_number_of_processes_takes_a_bounded_amount() {
        let mut usage = Usage::default();
        for owner in 0..10_000 {
            while usage.has_room(&QUOTA, owner) {
                usage.take(&QUOTA, owner, 1);
            }
        }
        assert_eq!((usage.shared, usage.reserve), (1000, 100));
    }
}
