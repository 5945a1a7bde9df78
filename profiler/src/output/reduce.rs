//! Too many frames: the widest are kept, the others become one beside them.
//!
//! Stacks that are sorted are a tree of frames, written down line by line: a frame is as wide as it has samples, and as
//! wide as those above it together with the samples that end in it. Of this tree as many frames are kept as there is
//! room for, the widest first, so that none is left out that is wider than one that is shown. What is left out above a
//! frame is added up there: no sample is lost, and every frame that is kept is as wide as before.
//!
//! The tree is never built, as there may be 64 million frames of it. Each question is one pass over the stacks.

use std::ops::ControlFlow;

use rustc_hash::FxHashMap;

/// A stack, outermost frame first, and its samples.
pub(super) type Stack = (Box<[u32]>, u64);

/// What there is room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Frames, with those that stand for others.
    pub(super) frames: u64,
    /// Bytes of all frames.
    pub(super) frame_bytes: u64,
    /// Bytes of all lines: each has all frames of its stack.
    pub(super) line_bytes: u64,
}

/// Bytes that each function takes, by its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes<'s> {
    /// For each frame of it.
    pub(super) frame: &'s [u32],
    /// In each line.
    pub(super) line: &'s [u32],
}

/// Frames that became one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Merged {
    /// How many. One alone is shown as it is.
    pub(super) frames: u64,
    /// Samples in them.
    pub(super) samples: u64,
    /// The function of the first of them.
    pub(super) first: u32,
}

impl Merged {
    /// It stands for several frames.
    pub(super) fn is_several(self) -> bool {
        self.frames > 1
    }
}

/// A frame that is kept, and what of the samples in it ends there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Samples that end in the frame itself.
    pub(super) own: u64,
    /// What the frame above it that stands for others stands for.
    pub(super) merged: Option<Merged>,
}

/// Bytes of a frame that stands for others, by itself and in a line, and of a count: no less than they take.
const MERGED_FRAME_BYTES: u64 = 512;
const MERGED_LINE_BYTES: u64 = 40;
const COUNT_BYTES: u64 = 22;

/// Past this number of frames, reading all of them once takes more than some 20 ms.
const MANY_FRAMES: u64 = 2 << 20;

/// Which frames are kept: the widest; of one width, those nearest to the root; of these, the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Wider frames are kept, and of this width those below `depth`.
    width: u64,
    depth: usize,
    /// Number of frames that are kept of exactly that width and depth.
    ties: u64,
}

/// What a cut leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// Frames that are shown, with those that stand for others.
    pub(super) frames: u64,
    /// Frames for which others stand.
    pub(super) merged: u64,
    /// Samples in them.
    pub(super) merged_samples: u64,
}

/// A frame whose stacks are being read.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    width: u64,
    /// Samples that end here.
    own: u64,
    merged: Merged,
}

impl Cut {
    /// The most that there is room for. `stacks` are sorted, each once.
    pub(super) fn new(stacks: &[Stack], room: &Room, sizes: Sizes<'_>) -> Self {
        let mut widths: FxHashMap<u64, u64> = FxHashMap::default();
        let _ = walk(stacks, |path, node, _| {
            if !path.is_empty() {
                *widths.entry(node.width).or_insert(0) += 1;
            }
            ControlFlow::Continue(())
        });
        let mut widths: Vec<(u64, u64)> = widths.into_iter().collect();
        widths.sort_unstable_by(|a, b| b.cmp(a));
        let all: u64 = widths.iter().map(|(_, frames)| frames).sum();
        let mut depths = FxHashMap::default();
        let mut cut_of = |kept: u64| Self::of_widest(stacks, &widths, &mut depths, kept);
        let fits = |cut: &Self| cut.fits(stacks, room, sizes);
        let mut too_many = all.min(room.frames);
        let mut cut = cut_of(too_many);
        if fits(&cut) {
            return cut;
        }
        // Frames that stand for others take room, too: how many there are depends on where they are. Less than 1 % of the
        // room stays empty; of very many frames, which take long to read, 7 %.
        let precision = if all > MANY_FRAMES { 16 } else { 128 };
        let mut kept = 0;
        cut = cut_of(kept);
        while too_many - kept > 1 + kept / precision {
            let between = u64::midpoint(kept, too_many);
            let candidate = cut_of(between);
            if fits(&candidate) {
                (kept, cut) = (between, candidate);
            } else {
                too_many = between;
            }
        }
        cut
    }

    /// Keeps the given number of frames, of those counted by their width, the widest first. `depths` has what was counted
    /// by depth so far, by the width.
    fn of_widest(
        stacks: &[Stack],
        widths: &[(u64, u64)],
        depths: &mut FxHashMap<u64, Vec<u64>>,
        kept: u64,
    ) -> Self {
        let mut room = kept;
        for &(width, frames) in widths {
            if frames > room {
                let depths = depths
                    .entry(width)
                    .or_insert_with(|| by_depth(stacks, width));
                return Self::within(depths, width, room);
            }
            room -= frames;
        }
        Self {
            width: 1,
            depth: usize::MAX,
            ties: 0,
        }
    }

    /// Keeps the given number of frames of this width, of which there are so many at each depth, and all wider ones.
    fn within(depths: &[u64], width: u64, mut room: u64) -> Self {
        let mut depth = 0;
        while let Some(&frames) = depths.get(depth).filter(|frames| **frames <= room) {
            room -= frames;
            depth += 1;
        }
        Self {
            width,
            depth,
            ties: room,
        }
    }

    /// There is room for what is kept, and for the frames that stand for others.
    fn fits(&self, stacks: &[Stack], room: &Room, sizes: Sizes<'_>) -> bool {
        let (mut frame_bytes, mut line_bytes, mut frames) = (0, 0, 0);
        // The rest is not looked at once there is too much.
        let exceeded = self.try_for_each(stacks, |path, kept| {
            let size_of = |function: &u32| u64::from(sizes.line[*function as usize]) + 1;
            let line = || path.iter().map(size_of).sum::<u64>() + COUNT_BYTES;
            if let Some(function) = path.last() {
                frame_bytes += u64::from(sizes.frame[*function as usize]);
            }
            if kept.own > 0 {
                line_bytes += line();
            }
            if let Some(merged) = kept.merged {
                let (frame, more) = if merged.is_several() {
                    (MERGED_FRAME_BYTES, MERGED_LINE_BYTES)
                } else {
                    let only = merged.first as usize;
                    (u64::from(sizes.frame[only]), u64::from(sizes.line[only]))
                };
                frame_bytes += frame;
                line_bytes += line() + more;
            }
            frames += u64::from(!path.is_empty()) + u64::from(kept.merged.is_some());
            let fits = frames <= room.frames
                && frame_bytes <= room.frame_bytes
                && line_bytes <= room.line_bytes;
            if fits {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        exceeded.is_continue()
    }

    /// Visits the frames that are kept, those above a frame before it, and nothing at all, which all stacks begin with.
    pub(super) fn for_each(&self, stacks: &[Stack], mut visit: impl FnMut(&[u32], Kept)) -> Extent {
        let mut extent = Extent::default();
        let _ = self.try_for_each(stacks, |path, kept| {
            extent.frames += u64::from(!path.is_empty());
            if let Some(merged) = kept.merged {
                extent.frames += 1;
                if merged.is_several() {
                    extent.merged += merged.frames;
                    extent.merged_samples += merged.samples;
                }
            }
            visit(path, kept);
            ControlFlow::Continue(())
        });
        extent
    }

    /// The same, until `visit` breaks off.
    fn try_for_each(
        &self,
        stacks: &[Stack],
        mut visit: impl FnMut(&[u32], Kept) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut tied = 0;
        walk(stacks, |path, node, below| {
            if let Some(below) = below
                && !self.keeps(path.len(), node.width, &mut tied)
            {
                if below.merged.frames == 0 {
                    below.merged.first = path.last().copied().unwrap_or_default();
                }
                below.merged.frames += 1 + node.merged.frames;
                below.merged.samples += node.width;
                return ControlFlow::Continue(());
            }
            let merged = (node.merged.frames > 0).then_some(node.merged);
            let own = node.own;
            visit(path, Kept { own, merged })
        })
    }

    fn keeps(&self, depth: usize, width: u64, tied: &mut u64) -> bool {
        if width != self.width || depth != self.depth {
            return width > self.width || (width == self.width && depth < self.depth);
        }
        *tied += 1;
        *tied <= self.ties
    }
}

/// How many frames of this width there are at each depth.
fn by_depth(stacks: &[Stack], width: u64) -> Vec<u64> {
    let mut depths: Vec<u64> = Vec::new();
    let _ = walk(stacks, |path, node, _| {
        if node.width == width && !path.is_empty() {
            if depths.len() <= path.len() {
                depths.resize(path.len() + 1, 0);
            }
            depths[path.len()] += 1;
        }
        ControlFlow::Continue(())
    });
    depths
}

/// Calls `close` with each frame once all above it were closed, with its path from the root (the last of which it is)
/// and what it is in, until it breaks off. Last comes nothing at all, which all stacks begin with.
fn walk(
    stacks: &[Stack],
    mut close: impl FnMut(&[u32], &Node, Option<&mut Node>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut path: Vec<u32> = Vec::new();
    let mut open = vec![Node::default()];
    let mut close_to = |depth: usize, path: &mut Vec<u32>, open: &mut Vec<Node>| {
        while path.len() > depth
            && let Some(node) = open.pop()
        {
            if let Some(below) = open.last_mut() {
                below.width += node.width;
            }
            close(path, &node, open.last_mut())?;
            path.pop();
        }
        ControlFlow::Continue(())
    };
    for (stack, samples) in stacks {
        let shared = path.iter().zip(stack).take_while(|(a, b)| a == b).count();
        close_to(shared, &mut path, &mut open)?;
        for function in &stack[shared..] {
            path.push(*function);
            open.push(Node::default());
        }
        if let Some(leaf) = open.last_mut() {
            leaf.width += samples;
            leaf.own += samples;
        }
    }
    close_to(0, &mut path, &mut open)?;
    match open.pop() {
        Some(root) => close(&[], &root, None),
        None => ControlFlow::Continue(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const ROOM: Room = Room {
        frames: u64::MAX,
        frame_bytes: u64::MAX,
        line_bytes: u64::MAX,
    };
    /// No function takes any room.
    static NO_BYTES: [u32; 1000] = [0; 1000];
    const SIZES: Sizes<'_> = Sizes {
        frame: &NO_BYTES,
        line: &NO_BYTES,
    };

    fn sorted(stacks: &[(&[u32], u64)]) -> Vec<Stack> {
        let mut counts: BTreeMap<Box<[u32]>, u64> = BTreeMap::new();
        for (stack, samples) in stacks {
            *counts.entry((*stack).into()).or_default() += samples;
        }
        counts.into_iter().collect()
    }

    /// What is left, as lines: `1 2 = 7` or, with the number of frames that one frame stands for, `1 2 …3 = 7`.
    fn left(stacks: &[Stack], room: &Room) -> (Vec<String>, Extent) {
        let cut = Cut::new(stacks, room, SIZES);
        let mut lines = Vec::new();
        let extent = cut.for_each(stacks, |path, kept| {
            let path: Vec<String> = path.iter().map(ToString::to_string).collect();
            if kept.own > 0 {
                lines.push(format!("{} = {}", path.join(" "), kept.own));
            }
            if let Some(Merged {
                frames, samples, ..
            }) = kept.merged
            {
                lines.push(format!("{} …{frames} = {samples}", path.join(" ")));
            }
        });
        lines.sort();
        (lines, extent)
    }

    fn samples(lines: &[String]) -> u64 {
        let counts = lines
            .iter()
            .map(|line| line.rsplit_once(' ').expect("a count").1);
        counts
            .map(|count| count.parse::<u64>().expect("a number"))
            .sum()
    }

    #[test]
    fn what_has_room_stays_as_it_is() {
        let stacks = sorted(&[(&[1, 2], 3), (&[1, 2, 3], 4), (&[1, 4], 1), (&[5], 2)]);
        let (lines, extent) = left(&stacks, &ROOM);
        assert_eq!(lines, ["1 2 3 = 4", "1 2 = 3", "1 4 = 1", "5 = 2"]);
        assert_eq!(
            extent,
            Extent {
                frames: 5,
                ..Extent::default()
            }
        );
    }

    #[test]
    fn the_narrowest_become_one_beside_the_others() {
        let stacks = sorted(&[
            (&[1, 2, 3], 5),
            (&[1, 2, 4], 2),
            (&[1, 5, 6], 1),
            (&[1, 7, 6], 1),
            (&[1], 3),
        ]);
        let (lines, extent) = left(&stacks, &Room { frames: 5, ..ROOM });
        // One frame alone is shown as itself.
        assert_eq!(lines, ["1 2 3 = 5", "1 2 4 = 2", "1 = 3", "1 …4 = 2"]);
        assert_eq!(
            (extent.frames, extent.merged, extent.merged_samples),
            (5, 4, 2)
        );
    }

    #[test]
    fn equally_narrow_frames_are_kept_as_far_as_there_is_room() {
        let flat: Vec<Stack> = (0..100).map(|n| (Box::from([500, n]), 1)).collect();
        let mut flat = flat;
        flat.sort();
        let (lines, extent) = left(&flat, &Room { frames: 12, ..ROOM });
        assert_eq!((lines.len(), samples(&lines)), (11, 100));
        assert!(lines.contains(&"500 …90 = 90".to_owned()), "{lines:?}");
        assert_eq!((extent.frames, extent.merged), (12, 90));
    }

    #[test]
    fn even_of_roots_alone_nothing_is_lost() {
        let mut stacks: Vec<Stack> = (0..900).map(|n| (Box::from([n]), 1)).collect();
        stacks.sort();
        let (lines, extent) = left(&stacks, &Room { frames: 0, ..ROOM });
        assert_eq!(lines, [" …900 = 900"]);
        assert_eq!((extent.frames, extent.merged), (1, 900));
    }

    /// A walk that takes another way each time: no stack is like another.
    fn random_walks(stacks: u32, depth: u32) -> Vec<Stack> {
        let mut state = 1_u32;
        let mut all: BTreeMap<Box<[u32]>, u64> = BTreeMap::new();
        for _ in 0..stacks {
            let stack = (0..depth).map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state >> 16 & 31
            });
            *all.entry(stack.collect()).or_default() += 1;
        }
        all.into_iter().collect()
    }

    #[test]
    fn no_room_is_exceeded_and_no_frame_left_out_is_wider_than_one_kept() {
        for (stacks, depth) in [(3000, 150), (200, 1000), (5000, 3)] {
            let stacks = random_walks(stacks, depth);
            let all: u64 = stacks.iter().map(|(_, samples)| samples).sum();
            for frames in [1, 2, 10, 100, 1000, 10_000] {
                let room = Room { frames, ..ROOM };
                let cut = Cut::new(&stacks, &room, SIZES);
                let (lines, extent) = left(&stacks, &room);
                assert_eq!(samples(&lines), all);
                assert!(extent.frames <= frames, "{extent:?} of {frames}");
                let (mut narrowest_kept, mut widest_left, mut total) = (u64::MAX, 0, 0);
                let mut tied = 0;
                let _ = walk(&stacks, |path, node, _| {
                    if path.is_empty() {
                        return ControlFlow::Continue(());
                    }
                    total += 1;
                    if cut.keeps(path.len(), node.width, &mut tied) {
                        narrowest_kept = narrowest_kept.min(node.width);
                    } else {
                        widest_left = widest_left.max(node.width);
                    }
                    ControlFlow::Continue(())
                });
                assert!(widest_left <= narrowest_kept, "{cut:?}");
                // Hardly any room is left: less than 1 %, and one more frame and its neighbour.
                let filled = frames.min(total);
                assert!(
                    extent.frames + 2 + filled / 100 >= filled,
                    "{extent:?} of {frames}"
                );
            }
        }
    }

    #[test]
    fn bytes_are_bounded_too() {
        let stacks = random_walks(2000, 100);
        let sizes = [100; 32];
        let sizes = Sizes {
            frame: &sizes,
            line: &sizes,
        };
        for room in [
            Room {
                frame_bytes: 100_000,
                ..ROOM
            },
            Room {
                line_bytes: 100_000,
                ..ROOM
            },
        ] {
            let cut = Cut::new(&stacks, &room, sizes);
            assert!(cut.fits(&stacks, &room, sizes), "{cut:?}");
            let frames = cut.for_each(&stacks, |_, _| {}).frames;
            assert!(frames > 100, "{frames}");
        }
    }
}
