//! Every distinct stack once.

use std::hash::{Hash, Hasher};

use indexmap::{Equivalent, IndexSet};
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use crate::model::LocationId;

/// Index of a stack in a [`StackTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StackId(u32);

/// Distinct stacks. Finding one that is there allocates nothing: the set is asked with the caller's slice.
#[derive(Clone, Debug, Default)]
pub(super) struct StackTable {
    stacks: IndexSet<Stack, FxBuildHasher>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stack(Box<[LocationId]>);

/// A stack that need not be in a table. It is hashed two locations at a time: stacks are long, and each step of the
/// hash function waits for the one before.
#[derive(Clone, Copy)]
struct Borrowed<'a>(&'a [LocationId]);

impl Hash for Borrowed<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (pairs, rest) = self.0.as_chunks::<2>();
        for [a, b] in pairs {
            state.write_u64(u64::from(a.0) << 32 | u64::from(b.0));
        }
        for id in rest {
            state.write_u64(u64::from(id.0));
        }
        state.write_usize(self.0.len());
    }
}

impl Hash for Stack {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Borrowed(&self.0).hash(state);
    }
}

impl Equivalent<Stack> for Borrowed<'_> {
    fn equivalent(&self, stack: &Stack) -> bool {
        *self.0 == *stack.0
    }
}

impl StackTable {
    /// The id of a stack that is there.
    pub(super) fn find(&self, stack: &[LocationId]) -> Option<StackId> {
        self.stacks
            .get_index_of(&Borrowed(stack))
            .map(|index| StackId(index as u32))
    }

    /// Adds a stack that [`find`](Self::find) did not find.
    pub(super) fn insert(&mut self, stack: &[LocationId]) -> StackId {
        StackId(self.stacks.insert_full(Stack(stack.into())).0 as u32)
    }

    /// Gives all locations new ids, from 0 on in their order, and returns the old id of each.
    pub(super) fn renumber(&mut self) -> Vec<LocationId> {
        let all = self.stacks.iter().flat_map(|stack| &stack.0);
        let mut old: Vec<LocationId> = all.copied().collect::<FxHashSet<_>>().into_iter().collect();
        old.sort_unstable();
        let new: FxHashMap<LocationId, u32> = old.iter().copied().zip(0..).collect();
        let stacks = std::mem::take(&mut self.stacks);
        // Stacks that were different stay so: each is where it was.
        self.stacks = stacks
            .into_iter()
            .map(|mut stack| {
                for id in &mut stack.0 {
                    *id = LocationId(new[id]);
                }
                stack
            })
            .collect();
        old
    }

    /// The locations of a stack, innermost first.
    pub(super) fn get(&self, id: StackId) -> &[LocationId] {
        self.stacks
            .get_index(id.0 as usize)
            .map_or(&[], |stack| &stack.0)
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
    }

    #[test]
    fn an_empty_stack_is_a_stack() {
        let mut table = StackTable::default();
        assert_eq!(table.find(&[]), None);
        let empty = table.insert(&[]);
        assert_eq!(table.find(&[]), Some(empty));
    }
}
