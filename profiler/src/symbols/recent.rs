//! What one stack has in common with the one before.

use super::locations::Traits;
use crate::model::{LocationId, UserFrame};

/// The stack resolved last. The next one has most of its outer frames in common, which need no look-up.
/// Held outermost first, so that only what changes is written.
#[derive(Default)]
pub(super) struct Recent {
    frames: Vec<UserFrame>,
    ids: Vec<LocationId>,
    /// Of each frame and those outside it.
    seen: Vec<Seen>,
}

/// What a stack, or the outer part of one, says about names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) named_frames: u32,
    pub(super) trampoline_frames: u32,
    pub(super) interpreter: bool,
    /// `None`: there is no Python frame.
    pub(super) outermost_is_root: Option<bool>,
}

impl Recent {
    /// How many of the outermost frames a stack has in common with this one.
    pub(super) fn in_common(&self, user: &[UserFrame]) -> usize {
        let pairs = user.iter().rev().zip(&self.frames);
        pairs.take_while(|(new, old)| new == old).count()
    }

    /// Appends the locations of so many of the outermost frames, outermost last. False: it has been emptied since.
    pub(super) fn append_outermost(&self, count: usize, locations: &mut Vec<LocationId>) -> bool {
        let Some(known) = self.ids.get(..count) else {
            return false;
        };
        locations.extend(known.iter().rev());
        true
    }

    /// Becomes this stack, whose outermost `common` frames it has already.
    pub(super) fn replace(
        &mut self,
        common: usize,
        user: &[UserFrame],
        ids: &[LocationId],
        traits: impl Fn(LocationId) -> Traits,
    ) {
        let common = common.min(self.ids.len());
        self.frames.truncate(common);
        self.ids.truncate(common);
        self.seen.truncate(common);
        let mut seen = self.seen();
        for (&frame, &id) in user.iter().zip(ids).rev().skip(common) {
            seen.add(traits(id));
            self.frames.push(frame);
            self.ids.push(id);
            self.seen.push(seen);
        }
    }

    /// What the whole stack says about names.
    pub(super) fn seen(&self) -> Seen {
        self.seen.last().copied().unwrap_or_default()
    }

    /// Forgets it: addresses may mean something else now.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.ids.clear();
        self.seen.clear();
    }
}

impl Seen {
    /// One frame further in.
    fn add(&mut self, traits: Traits) {
        let is_trampoline = traits.is_python || traits.is_unnamed_jit;
        self.named_frames += u32::from(traits.is_python);
        self.trampoline_frames += u32::from(is_trampoline);
        self.interpreter |= traits.is_interpreter;
        if is_trampoline && self.outermost_is_root.is_none() {
            self.outermost_is_root = Some(traits.is_root || traits.is_unnamed_jit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Avma, CodeAddress};

    fn stack(addresses: &[u64]) -> (Vec<UserFrame>, Vec<LocationId>) {
        let caller = |&at| UserFrame::Native(CodeAddress::Caller(Avma(at)));
        let id = |&at| LocationId(at as u32);
        (
            addresses.iter().map(caller).collect(),
            addresses.iter().map(id).collect(),
        )
    }

    /// Odd ones are Python functions, the first one without a caller.
    fn python(id: LocationId) -> Traits {
        Traits {
            is_python: id.0 % 2 == 1,
            is_root: id.0 == 1,
            ..Traits::default()
        }
    }

    #[test]
    fn outer_frames_of_the_stack_before_are_known() {
        let mut recent = Recent::default();
        let (user, ids) = stack(&[5, 3, 2, 1]);
        recent.replace(recent.in_common(&user), &user, &ids, python);
        // Deeper, shallower, and another one altogether.
        for (addresses, common) in [(&[9, 8, 3, 2, 1][..], 3), (&[2, 1], 2), (&[7], 0)] {
            let (user, ids) = stack(addresses);
            assert_eq!(recent.in_common(&user), common);
            let mut known = Vec::new();
            assert!(recent.append_outermost(common, &mut known));
            assert_eq!(known, ids[ids.len() - common..]);
            recent.replace(common, &user, &ids, python);
            assert_eq!(recent.in_common(&user), user.len());
            let mut whole = Recent::default();
            whole.replace(0, &user, &ids, python);
            assert_eq!(recent.seen(), whole.seen());
        }
    }

    #[test]
    fn the_same_address_as_leaf_and_as_caller_is_not_in_common() {
        let mut recent = Recent::default();
        let (user, ids) = stack(&[2, 1]);
        recent.replace(0, &user, &ids, python);
        let leaf = [UserFrame::Native(CodeAddress::Leaf(Avma(2))), user[1]];
        assert_eq!(recent.in_common(&leaf), 1);
    }

    #[test]
    fn the_outermost_python_frame_tells_whether_callers_are_missing() {
        let mut recent = Recent::default();
        for (addresses, frames, is_root) in [
            (&[5, 4, 1, 2][..], 2, Some(true)),
            (&[1, 3, 2], 2, Some(false)),
            (&[4, 2], 0, None),
        ] {
            let (user, ids) = stack(addresses);
            recent.replace(recent.in_common(&user), &user, &ids, python);
            let seen = recent.seen();
            assert_eq!(
                (seen.named_frames, seen.outermost_is_root),
                (frames, is_root)
            );
        }
    }

    #[test]
    fn an_emptied_one_knows_nothing() {
        let mut recent = Recent::default();
        let (user, ids) = stack(&[2, 1]);
        recent.replace(0, &user, &ids, python);
        recent.clear();
        assert!(!recent.append_outermost(2, &mut Vec::new()));
        assert_eq!(recent.in_common(&user), 0);
    }
}
