//! Bounds on memory that many holders share: what one process may take is bounded, and so is what a thousand may take
//! together.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Memory that some holders share. A clone is the same memory.
#[derive(Clone, Debug)]
pub(super) struct SharedMemory {
    taken: Arc<AtomicUsize>,
    bytes_max: usize,
    /// What a holder may take although the others have taken everything.
    bytes_of_each: usize,
}

impl SharedMemory {
    /// `bytes_max` for all holders together, and `bytes_of_each` for each of them in any case.
    pub(super) fn new(bytes_max: usize, bytes_of_each: usize) -> Self {
        Self {
            taken: Arc::default(),
            bytes_max,
            bytes_of_each,
        }
    }

    /// The bound, for messages.
    pub(super) const fn bytes_max(&self) -> usize {
        self.bytes_max
    }
}

/// What one holder has taken, which is given back when the share is dropped.
#[derive(Debug)]
pub(super) struct Share {
    memory: SharedMemory,
    bytes: usize,
}

impl Share {
    /// Nothing yet.
    pub(super) const fn new(memory: SharedMemory) -> Self {
        Self { memory, bytes: 0 }
    }

    /// Another holder's share of the same memory, of which it has taken nothing.
    pub(super) fn another(&self) -> Self {
        Self::new(self.memory.clone())
    }

    /// Sets the number of bytes that the holder has. False: it is not to get more.
    pub(super) fn set(&mut self, bytes: usize) -> bool {
        let taken = &self.memory.taken;
        taken.fetch_add(bytes, Ordering::Relaxed);
        taken.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
        self.has_room(0)
    }

    /// It may take `more` bytes.
    pub(super) fn has_room(&self, more: usize) -> bool {
        let bytes = self.bytes.saturating_add(more);
        let all = self.memory.taken.load(Ordering::Relaxed);
        bytes < self.memory.bytes_of_each || all.saturating_add(more) < self.memory.bytes_max
    }

    /// What the holder has.
    #[cfg(test)]
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bound for all, for messages.
    pub(super) const fn bytes_max(&self) -> usize {
        self.memory.bytes_max()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_holder_has_the_others_cannot_have_but_a_little_they_get() {
        const EACH: usize = 32 << 10;
        let memory = SharedMemory::new(1 << 20, EACH);
        let mut large = Share::new(memory.clone());
        let mut small = large.another();
        assert!(large.set((1 << 20) - 1));
        assert!(small.set(EACH - 1) && !small.has_room(1) && !small.set(EACH));
        assert!(!large.set(1 << 20));
        drop(large);
        assert!(small.set(EACH) && small.has_room(EACH));
        assert_eq!(small.bytes(), EACH);
        drop(small);
        assert_eq!(memory.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_thousand_holders_get_what_one_gets_and_a_little_each() {
        let memory = SharedMemory::new(1 << 20, 100);
        let mut shares: Vec<Share> = (0..1000).map(|_| Share::new(memory.clone())).collect();
        for share in &mut shares {
            while share.set(share.bytes() + 10) {}
        }
        let all: usize = shares.iter().map(Share::bytes).sum();
        assert!(all <= (1 << 20) + 1000 * 110, "{all}");
    }
}
