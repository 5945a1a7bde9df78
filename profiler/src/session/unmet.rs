//! Children that the kernel side has made targets, and of which there is no sample yet: a process that ends without one
//! has cost next to nothing.

use std::time::Duration;

use rustc_hash::FxHashMap;

use super::followed::Identity;
use crate::model::{ImageId, Pid};

/// Live processes are not more than the kernel side has room for, but events may be lost.
const CHILDREN_MAX: usize = 65_536;
/// Forks without a met process between two that are met.
const BETWEEN_MAX: usize = 16;

/// A child that has not been met.
#[derive(Clone)]
pub(super) struct Child {
    /// The program that it was forked from, as far as that was met.
    pub(super) from: ImageId,
    /// Pids, in their own namespaces, of those between, the nearest first, and when they were made.
    pub(super) between: Vec<(u32, Duration)>,
    pub(super) ns_pid: u32,
    pub(super) since_boot: Duration,
    /// Where its stack begins, as its parent's does.
    pub(super) stack: Option<u64>,
    /// What its parent was called.
    pub(super) identity: Identity,
}

/// All of them.
#[derive(Default)]
pub(super) struct UnmetChildren {
    children: FxHashMap<Pid, Child>,
    /// How many each program has: most that end have none.
    counts: FxHashMap<ImageId, u32>,
}

impl UnmetChildren {
    /// One was made. Past the limit, it is met like a process of which nothing was told.
    pub(super) fn add(&mut self, pid: Pid, child: Child) {
        if self.children.len() < CHILDREN_MAX {
            *self.counts.entry(child.from).or_default() += 1;
            if let Some(before) = self.children.insert(pid, child) {
                self.uncount(before.from);
            }
        }
    }

    /// One of them has a child.
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

    /// Is one of them.
    pub(super) fn contains(&self, pid: Pid) -> bool {
        self.children.contains_key(&pid)
    }

    /// It is met, or has ended.
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
    pub(super) fn heirs_of(&self, image: ImageId) -> Vec<Pid> {
        if !self.counts.contains_key(&image) {
            return Vec::new();
        }
        let children = self.children.iter();
        children
            .filter(|(_, child)| child.from == image)
            .map(|(&pid, _)| pid)
            .collect()
    }

    /// Forgets all of them, and says how many they were.
    pub(super) fn clear(&mut self) -> u64 {
        self.counts.clear();
        std::mem::take(&mut self.children).len() as u64
    }
}
