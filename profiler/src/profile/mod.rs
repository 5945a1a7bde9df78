//! Counts of stacks: what a recording has seen, how often, and how good it is.
//!
//! Gets resolved stacks one by one ([`Aggregator::add`]) and gives a [`Profile`]. The profile holds every frame that
//! was recorded; which of them are shown is a [`View`], chosen when writing. Knows nothing of files, formats and live
//! processes.

mod aggregate;
mod end;
mod granularity;
mod hottest;
mod quality;
mod stack_table;
#[cfg(test)]
pub(crate) mod testing;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

use crate::model::{LocationTable, Pid, ThreadName, Tid};
use aggregate::CountKey;
use stack_table::StackTable;

pub use aggregate::{Aggregator, Limits};
pub use end::EndClass;
pub(crate) use granularity::FirstLines;
pub use granularity::Granularity;
pub use quality::Quality;
pub use view::{View, ViewFrame, ViewStack};

/// A finished profile: stacks with names and counts.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// How good the samples are.
    pub quality: Quality,
    /// The names of all frames.
    pub locations: LocationTable,
    /// What to call each process where several are shown. Optional: a process that is not in it is shown by its pid.
    pub process_names: BTreeMap<Pid, ProcessName>,
    /// Show the stacks of all processes as those of one. Nothing is forgotten by it.
    pub merge_processes: bool,
    /// Processes with Python frames.
    with_python: BTreeSet<Pid>,
    stacks: StackTable,
    threads: IndexSet<Thread, FxBuildHasher>,
    counts: Vec<(CountKey, u64)>,
}

/// What to call a process. Raw: may hold any character.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessName {
    /// A few words, to which its pid is added.
    pub label: String,
    /// Its command line, arguments joined by spaces.
    pub command: String,
}

/// A thread, under the name it had when it was sampled: one that renames itself is two of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    /// Its process.
    pub pid: Pid,
    /// Its id.
    pub tid: Tid,
    /// Its name.
    pub name: ThreadName,
}

impl Profile {
    /// There is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The processes that have samples, in ascending order.
    pub fn pids(&self) -> Vec<Pid> {
        let mut pids: Vec<Pid> = self.counts.iter().map(|(key, _)| key.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The processes that have samples, with their number, the most first.
    pub fn samples_by_process(&self) -> Vec<(Pid, u64)> {
        let mut samples = BTreeMap::new();
        for (key, count) in &self.counts {
            *samples.entry(key.pid).or_insert(0) += count;
        }
        let mut samples: Vec<(Pid, u64)> = samples.into_iter().collect();
        samples.sort_by_key(|(pid, count)| (std::cmp::Reverse(*count), *pid));
        samples
    }

    /// The Python function most often seen innermost, as `name (file.py:FIRST LINE)`, and its share of the samples (0 to
    /// 1). With [`Granularity::Lines`] the line, as `name (file.py:LINE)`.
    pub fn hottest_python(&self, granularity: Granularity) -> Option<(String, f64)> {
        let stacks = self
            .counts
            .iter()
            .map(|(key, count)| (self.stacks.get(key.stack), *count));
        hottest::hottest_python(stacks, &self.locations, granularity)
    }

    /// All samples as one view of them: outermost frame first, in the order in which the stacks were first seen.
    ///
    /// Two of the stacks may be equal (a view hides the frames in which they differ): their counts are to be added.
    pub fn folded_view(&self, view: View) -> impl Iterator<Item = ViewStack<'_>> {
        let show_process = !self.merge_processes && self.pids().len() > 1;
        self.counts
            .iter()
            .map(move |(key, count)| view::show(self, view, show_process, key, *count))
    }
}
