//! Children that the BPF program has made targets, and of which there is no sample yet: a process that exits without a
//! sample costs next to nothing.

use std::time::Duration;

use rustc_hash::FxHashMap;

use super::tracked::ProgramInfo;
use crate::model::{ImageId, Pid};

/// The BPF program has room for no more live processes, but events of exits may be lost.
const CHILDREN_MAX: usize = 65_536;
/// Longest chain of forks without a sampled process that is remembered.
const BETWEEN_MAX: usize = 16;

/// A child without a sample.
#[derive(Debug, Clone)]
pub(super) struct Child {
    /// The nearest program before it that is tracked.
    pub(super) from: ImageId,
    /// Processes between that program's and this one, the nearest first: pids in their own namespaces, and when they were
    /// made, since boot.
    pub(super) between: Vec<(u32, Duration)>,
    pub(super) ns_pid: u32,
    pub(super) since_boot: Duration,
    /// Where its stack begins: at the same place as its parent's.
    pub(super) stack: Option<u64>,
    /// What its parent was called.
    pub(super) info: ProgramInfo,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct UnsampledChildren {
    children: FxHashMap<Pid, Child>,
    /// How many each program has: most programs that end have none.
    counts: FxHashMap<ImageId, u32>,
}

impl UnsampledChildren {
    /// Adds a child. Past the limit, it is found by its first sample, as if its event had been lost.
    pub(super) fn add(&mut self, pid: Pid, child: Child) {
        if self.children.len() < CHILDREN_MAX {
            *self.counts.entry(child.from).or_default() += 1;
            if let Some(before) = self.children.insert(pid, child) {
                self.uncount(before.from);
            }
        }
    }

    /// The child of a process that is one of these itself.
    pub(super) fn forked(&self, parent: Pid, ns_pid: u32, since_boot: Duration) -> Option<Child> {
        let parent = self.children.get(&parent)?;
        let mut between = vec![(parent.ns_pid, parent.since_boot)];
        between.extend(parent.between.iter().take(BETWEEN_MAX - 1));
        Some(Child {
            between,
            ns_pid,
            since_boot,
            ..parent.clone()
        })
    }

    /// The process is one of them.
    pub(super) fn contains(&self, pid: Pid) -> bool {
        self.children.contains_key(&pid)
    }

    /// Removes a child: there is a sample of it, or it has exited.
    pub(super) fn take(&mut self, pid: Pid) -> Option<Child> {
        let child = self.children.remove(&pid)?;
        self.uncount(child.from);
        Some(child)
    }

    fn uncount(&mut self, from: ImageId) {
        if let Some(count) = self.counts.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&from);
            }
        }
    }

    /// Those that were forked from this program.
    pub(super) fn of(&self, image: ImageId) -> Vec<Pid> {
        if !self.counts.contains_key(&image) {
            return Vec::new();
        }
        let children = self.children.iter();
        children
            .filter(|(_, child)| child.from == image)
            .map(|(&pid, _)| pid)
            .collect()
    }

    /// How many they are.
    pub(super) fn count(&self) -> u64 {
        self.children.len() as u64
    }

    /// Removes all of them, and says how many they were.
    pub(super) fn clear(&mut self) -> u64 {
        self.counts.clear();
        std::mem::take(&mut self.children).len() as u64
    }
}
