//! Memory that all perf maps of a recording take together. One map is bounded by its own limits; a hostile process could
//! have thousands of children with one each.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes that all maps may take together: one of the largest, or some dozens of those that large programs write.
pub const MEMORY_BYTES_MAX: usize = 320 << 20;

/// What a map may take although the others have taken everything: some hundred entries.
const EACH_BYTES: usize = 32 << 10;

/// The memory of some maps. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct PerfMapMemory {
    taken: Arc<AtomicUsize>,
    bytes_max: usize,
}

impl Default for PerfMapMemory {
    fn default() -> Self {
        Self::of(MEMORY_BYTES_MAX)
    }
}

impl PerfMapMemory {
    /// So many bytes.
    pub fn of(bytes_max: usize) -> Self {
        Self {
            taken: Arc::default(),
            bytes_max,
        }
    }
}

/// What one map has taken of it, which it gives back when it is gone.
#[derive(Debug)]
pub(super) struct Share {
    memory: PerfMapMemory,
    bytes: usize,
}

impl Share {
    /// Nothing yet.
    pub(super) const fn new(memory: PerfMapMemory) -> Self {
        Self { memory, bytes: 0 }
    }

    /// The map has so many bytes now. False: it is not to get more.
    pub(super) fn set(&mut self, bytes: usize) -> bool {
        let taken = &self.memory.taken;
        taken.fetch_add(bytes, Ordering::Relaxed);
        taken.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
        bytes < EACH_BYTES || taken.load(Ordering::Relaxed) < self.memory.bytes_max
    }

    /// The bound, for messages.
    pub(super) const fn bytes_max(&self) -> usize {
        self.memory.bytes_max
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
    fn what_one_map_has_the_others_cannot_have_but_a_little_they_get() {
        let memory = PerfMapMemory::of(1 << 20);
        let (mut large, mut small) = (Share::new(memory.clone()), Share::new(memory.clone()));
        assert!(large.set((1 << 20) - 1));
        assert!(small.set(EACH_BYTES - 1) && !small.set(EACH_BYTES));
        assert!(!large.set(1 << 20));
        drop(large);
        assert!(small.set(EACH_BYTES));
        drop(small);
        assert_eq!(memory.taken.load(Ordering::Relaxed), 0);
    }
}
