//! Walks that wait for the rows of a file.
//!
//! Their number is bounded for all programs together. When it is reached, the program with the most of them gives one up, so
//! that one with a large file does not take the room of the others.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::builder::UnfinishedWalk;
use crate::model::ImageId;

/// Walks that wait for rows, up to 24 KiB each.
const PARKED_MAX: usize = 1024;

/// All of them, by program.
#[derive(Debug, Default)]
pub(super) struct Parked {
    walks: FxHashMap<ImageId, VecDeque<Box<UnfinishedWalk>>>,
    count: usize,
}

impl Parked {
    /// One waits from now on. Gives one that does not wait any longer, where there are too many.
    pub(super) fn add(&mut self, walk: Box<UnfinishedWalk>) -> Option<Box<UnfinishedWalk>> {
        let is_full = self.count >= PARKED_MAX;
        self.walks
            .entry(walk.stack.image)
            .or_default()
            .push_back(walk);
        self.count += 1;
        if !is_full {
            return None;
        }
        let most = self.walks.iter().max_by_key(|(_, walks)| walks.len());
        let image = most.map(|(&image, _)| image)?;
        let walks = self.walks.get_mut(&image)?;
        let given_up = walks.pop_front();
        self.count -= usize::from(given_up.is_some());
        given_up
    }

    /// Takes out those of one program, in order.
    pub(super) fn take(&mut self, image: ImageId) -> VecDeque<Box<UnfinishedWalk>> {
        let walks = self.walks.remove(&image).unwrap_or_default();
        self.count -= walks.len();
        walks
    }

    /// The programs of which there are any.
    pub(super) fn images(&self) -> Vec<ImageId> {
        self.walks.keys().copied().collect()
    }

    /// There is none.
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(image: u32) -> Box<UnfinishedWalk> {
        UnfinishedWalk::for_tests(ImageId(image))
    }

    #[test]
    fn the_program_with_the_most_walks_makes_room_for_others() {
        let mut parked = Parked::default();
        for _ in 0..PARKED_MAX - 1 {
            assert!(parked.add(walk(1)).is_none());
        }
        assert!(parked.add(walk(2)).is_none());
        let given_up = parked.add(walk(2)).expect("there are too many");
        assert_eq!(given_up.stack.image, ImageId(1));
        assert_eq!(parked.take(ImageId(2)).len(), 2);
        assert_eq!(parked.take(ImageId(1)).len(), PARKED_MAX - 2);
        assert!(parked.is_empty() && parked.images().is_empty());
    }
}
