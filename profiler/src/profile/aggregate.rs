//! From single stacks to counts.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::{IndexMap, IndexSet};
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::{
    EndClass, Granularity, Profile, Quality, Thread, hottest, quality,
    stack_table::{StackId, StackTable},
};
use crate::model::{ImageId, LocationId, LocationTable, Pid, Quota, ResolvedStack, Usage};

/// What must be equal for two samples to be counted as one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CountKey {
    pub(super) pid: Pid,
    /// Index in the profile's threads, where threads are kept apart.
    pub(super) thread: Option<u32>,
    pub(super) stack: StackId,
    pub(super) end: EndClass,
    pub(super) guessed: bool,
    pub(super) in_kernel: bool,
}

/// Distinct lines of a profile. Each takes about 100 bytes, and the stack's frames.
const LINES_MAX: usize = 1_000_000;
/// Past that, those of each process, and of all processes together.
const LINES_OF_EACH_MAX: usize = 2_000;
const LINES_RESERVED_MAX: usize = 100_000;

/// Frames of all distinct stacks, four bytes each.
const FRAMES_MAX: usize = 24 << 20;
/// Past that, those of each process, and of all processes together.
const FRAMES_OF_EACH_MAX: usize = 128 << 10;
const FRAMES_RESERVED_MAX: usize = 4 << 20;

/// How much an [`Aggregator`] may hold. What does not fit is counted in [`Quality::too_many_stacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Distinct lines: stack, process and thread. Default 1,000,000; past these 2,000 for each process, 100,000 for all
    /// processes together.
    pub lines: Quota,
    /// Frames of all distinct stacks. Default 24 Mi, that is 96 MiB; past these 128 Ki for each process, 4 Mi for all
    /// processes together.
    pub frames: Quota,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lines: Quota {
                shared: LINES_MAX,
                of_each: LINES_OF_EACH_MAX,
                reserve: LINES_RESERVED_MAX,
            },
            frames: Quota {
                shared: FRAMES_MAX,
                of_each: FRAMES_OF_EACH_MAX,
                reserve: FRAMES_RESERVED_MAX,
            },
        }
    }
}

/// Counts stacks. A stack that was seen before costs two hash lookups and no allocation.
#[derive(Debug, Default)]
pub struct Aggregator {
    keep_threads: bool,
    limits: Limits,
    stacks: StackTable,
    threads: IndexSet<Thread, FxBuildHasher>,
    counts: IndexMap<CountKey, u64, FxBuildHasher>,
    samples: u64,
    lines_used: Usage<Pid>,
    frames_used: Usage<Pid>,
    not_kept: BTreeMap<Pid, u64>,
    /// Samples of each program, also those that were refused.
    programs: FxHashMap<ImageId, u64>,
}

impl Aggregator {
    /// An empty one. `keep_threads`: count each thread apart, under its name and id.
    pub fn new(keep_threads: bool) -> Self {
        Self::with_limits(keep_threads, Limits::default())
    }

    /// The same with other limits.
    pub fn with_limits(keep_threads: bool, limits: Limits) -> Self {
        Self {
            keep_threads,
            limits,
            ..Self::default()
        }
    }

    /// Counts one sample.
    pub fn add(&mut self, sample: &ResolvedStack) {
        *self.programs.entry(sample.image).or_insert(0) += 1;
        match self.key(sample) {
            Some(key) => {
                *self.counts.entry(key).or_insert(0) += 1;
                self.samples += 1;
            }
            None => *self.not_kept.entry(sample.pid).or_insert(0) += 1,
        }
    }

    /// Samples counted so far, without those of [`not_kept`](Self::not_kept).
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Samples refused so far because the limits were reached.
    pub fn not_kept(&self) -> u64 {
        self.not_kept.values().sum()
    }

    /// Samples of each program so far, also those that were refused.
    pub const fn programs(&self) -> &FxHashMap<ImageId, u64> {
        &self.programs
    }

    /// As [`Profile::hottest_python`], while the recording goes on. Looks at every distinct stack: for a status line
    /// that is renewed about once a second.
    pub fn hottest_python(
        &self,
        locations: &LocationTable,
        granularity: Granularity,
    ) -> Option<(String, f64)> {
        let stacks = self
            .counts
            .iter()
            .map(|(key, count)| (self.stacks.get(key.stack), *count));
        hottest::hottest_python(stacks, locations, granularity)
    }

    /// Gives the locations that were counted new ids, from 0 on, and returns the old id of each: a table that names only
    /// these is as large as the profile needs it.
    pub fn renumber(&mut self) -> Vec<LocationId> {
        self.stacks.renumber()
    }

    /// The profile. `locations` gives names to the locations that were counted.
    ///
    /// What only the kernel side knows ([`Quality::ring_full`], [`Quality::finished_in_user_space`]) is zero: the
    /// caller sets it.
    pub fn finish(self, locations: LocationTable) -> Profile {
        let counts: Vec<(CountKey, u64)> = self.counts.into_iter().collect();
        let mut totals = Quality {
            too_many_stacks: self.not_kept,
            ..Quality::default()
        };
        let frames = quality::frame_counts(&locations);
        let mut with_python = BTreeSet::new();
        for (key, count) in &counts {
            let before = totals.with_python;
            totals.count(&frames, self.stacks.get(key.stack), key, *count);
            if totals.with_python > before {
                with_python.insert(key.pid);
            }
        }
        Profile {
            quality: totals,
            locations,
            process_names: BTreeMap::new(),
            merge_processes: false,
            with_python,
            stacks: self.stacks,
            threads: self.threads,
            counts,
        }
    }

    /// The line a sample belongs to; `None` when it would be a new one and its process may have no more.
    fn key(&mut self, sample: &ResolvedStack) -> Option<CountKey> {
        let pid = sample.pid;
        let has_room = self.lines_used.has_room(&self.limits.lines, pid);
        let thread = if self.keep_threads {
            Some(self.thread(sample, has_room)?)
        } else {
            None
        };
        let stack = if let Some(stack) = self.stacks.find(&sample.locations) {
            stack
        } else {
            if !has_room || !self.frames_used.has_room(&self.limits.frames, pid) {
                return None;
            }
            let frames = sample.locations.len();
            self.frames_used.take(&self.limits.frames, pid, frames);
            self.stacks.insert(&sample.locations)
        };
        let key = CountKey {
            pid,
            thread,
            stack,
            end: sample.end.into(),
            guessed: sample.guessed,
            in_kernel: sample.in_kernel,
        };
        if !self.counts.contains_key(&key) {
            if !has_room {
                return None;
            }
            self.lines_used.take(&self.limits.lines, pid, 1);
        }
        Some(key)
    }

    fn thread(&mut self, sample: &ResolvedStack, has_room: bool) -> Option<u32> {
        let thread = Thread {
            pid: sample.pid,
            tid: sample.tid,
            name: sample.thread_name,
        };
        let index = match self.threads.get_index_of(&thread) {
            Some(index) => index,
            None if !has_room => return None,
            None => self.threads.insert_full(thread).0,
        };
        Some(index as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Avma, StackEnd, Tid},
        profile::testing::sample,
    };

    fn profile(samples: &[ResolvedStack], keep_threads: bool) -> Profile {
        let mut aggregator = Aggregator::new(keep_threads);
        for sample in samples {
            aggregator.add(sample);
        }
        aggregator.finish(LocationTable::default())
    }

    fn shared(amount: usize) -> Quota {
        Quota {
            shared: amount,
            of_each: 0,
            reserve: 0,
        }
    }

    fn counts(profile: &Profile) -> Vec<u64> {
        profile.counts.iter().map(|(_, count)| *count).collect()
    }

    #[test]
    fn equal_stacks_are_counted_as_one() {
        let profile = profile(&[sample(&[1, 2]), sample(&[1]), sample(&[1, 2])], false);
        assert_eq!(counts(&profile), [2, 1]);
        assert_eq!(profile.quality.samples, 3);
    }

    #[test]
    fn threads_are_kept_apart_only_when_asked() {
        let other = ResolvedStack {
            tid: Tid(2),
            ..sample(&[1])
        };
        let samples = [sample(&[1]), other];
        assert_eq!(counts(&profile(&samples, false)), [2]);
        assert_eq!(counts(&profile(&samples, true)), [1, 1]);
    }

    #[test]
    fn the_address_where_a_stack_broke_off_does_not_split_it() {
        let broken = |at| ResolvedStack {
            end: StackEnd::NoRule(Avma(at)),
            ..sample(&[1])
        };
        let profile = profile(&[broken(16), broken(32), sample(&[1])], false);
        assert_eq!(counts(&profile), [2, 1]);
        assert_eq!(profile.quality.incomplete[&EndClass::NoRule], 2);
    }

    #[test]
    fn past_the_limit_known_stacks_still_count_and_new_ones_are_reported() {
        let mut aggregator = Aggregator::with_limits(
            true,
            Limits {
                lines: shared(2),
                frames: shared(100),
            },
        );
        for locations in [&[1][..], &[2], &[3], &[1], &[4]] {
            aggregator.add(&sample(locations));
        }
        let new_thread = ResolvedStack {
            tid: Tid(2),
            ..sample(&[1])
        };
        aggregator.add(&new_thread);
        assert_eq!((aggregator.samples(), aggregator.not_kept()), (3, 3));
        let profile = aggregator.finish(LocationTable::default());
        assert_eq!(counts(&profile), [2, 1]);
        assert_eq!(profile.quality.lost(), 3);
    }

    #[test]
    fn deep_stacks_are_bounded_by_their_frames() {
        let mut aggregator = Aggregator::with_limits(
            false,
            Limits {
                lines: shared(100),
                frames: shared(5),
            },
        );
        aggregator.add(&sample(&[1, 2, 3]));
        aggregator.add(&sample(&[1, 2, 4]));
        aggregator.add(&sample(&[1, 2]));
        assert_eq!((aggregator.samples(), aggregator.not_kept()), (2, 1));
    }

    #[test]
    fn a_process_with_stacks_without_end_leaves_room_for_those_of_others() {
        let quota = Quota {
            shared: 10,
            of_each: 4,
            reserve: 6,
        };
        for (lines, frames) in [(quota, shared(1000)), (shared(1000), quota)] {
            let mut aggregator = Aggregator::with_limits(false, Limits { lines, frames });
            for location in 0..100 {
                aggregator.add(&sample(&[location]));
            }
            let honest = |location| ResolvedStack {
                pid: Pid(77),
                ..sample(&[location])
            };
            for location in 200..203 {
                aggregator.add(&honest(location));
            }
            assert_eq!((aggregator.samples(), aggregator.not_kept()), (13, 90));
            let quality = aggregator.finish(LocationTable::default()).quality;
            let hostile = sample(&[]).pid;
            assert_eq!(quality.too_many_stacks, BTreeMap::from([(hostile, 90)]));
            assert_eq!(quality.lost(), 90);
        }
    }

    #[test]
    fn a_table_of_the_locations_that_were_counted_is_enough() {
        let mut aggregator = Aggregator::new(false);
        for locations in [&[70, 3][..], &[70], &[500, 3, 3]] {
            aggregator.add(&sample(locations));
        }
        let ids = aggregator.renumber();
        assert_eq!(ids, [LocationId(3), LocationId(70), LocationId(500)]);
        let profile = aggregator.finish(LocationTable::default());
        let stacks: Vec<_> = profile
            .counts
            .iter()
            .map(|(key, _)| profile.stacks.get(key.stack))
            .map(|stack| {
                stack
                    .iter()
                    .map(|id| ids[id.0 as usize].0)
                    .collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(stacks, [vec![70, 3], vec![70], vec![500, 3, 3]]);
    }

    #[test]
    fn an_id_without_a_location_is_a_stack_without_frames() {
        let profile = profile(&[sample(&[77])], false);
        assert_eq!(
            profile.stacks.get(profile.counts[0].0.stack),
            [LocationId(77)]
        );
        assert_eq!(profile.quality.samples, 1);
    }
}
