//! Every distinct stack once.

use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

use crate::model::LocationId;

/// Index of a stack in a [`StackTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StackId(u32);

/// Distinct stacks. Finding one that is there allocates nothing: the set is asked with the caller's slice.
#[derive(Clone, Debug, Default)]
pub(super) struct StackTable {
    stacks: IndexSet<Box<[LocationId]>, FxBuildHasher>,
    locations: usize,
}

impl StackTable {
    /// The id of a stack that is there.
    pub(super) fn find(&self, stack: &[LocationId]) -> Option<StackId> {
        self.stacks
            .get_index_of(stack)
            .map(|index| StackId(index as u32))
    }

    /// Adds a stack that [`find`](Self::find) did not find.
    pub(super) fn insert(&mut self, stack: &[LocationId]) -> StackId {
        let (index, new) = self.stacks.insert_full(stack.into());
        if new {
            self.locations += stack.len();
        }
        StackId(index as u32)
    }

    /// The locations of a stack, innermost first.
    pub(super) fn get(&self, id: StackId) -> &[LocationId] {
        self.stacks
            .get_index(id.0 as usize)
            .map_or(&[], |stack| stack)
    }

    /// Locations in all stacks together: what they cost, four bytes each.
    pub(super) fn locations(&self) -> usize {
        self.locations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_locations_are_the_same_stack() {
        let mut table = StackTable::default();
        let first = table.insert(&[LocationId(1), LocationId(2)]);
        let other = table.insert(&[LocationId(1)]);
        assert_ne!(first, other);
        assert_eq!(table.find(&[LocationId(1), LocationId(2)]), Some(first));
        assert_eq!(table.insert(&[LocationId(1), LocationId(2)]), first);
        assert_eq!(table.get(first), [LocationId(1), LocationId(2)]);
        assert_eq!(table.locations(), 3);
    }

    #[test]
    fn an_empty_stack_is_a_stack() {
        let mut table = StackTable::default();
        assert_eq!(table.find(&[]), None);
        let empty = table.insert(&[]);
        assert_eq!(table.find(&[]), Some(empty));
    }
}
