//! The processes of a recording: what is mapped in them, whether they live, what they used.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{
    model::Pid,
    process::{
        Mapping, PythonInfo, Target, TargetError, inspect, perf_map_is_open,
        read_executable_mappings,
    },
    symbols::Resolver,
    unwind::TableBuilder,
};

/// A process without a Python is looked at again this often: it may still be starting.
const INSPECT_AGAIN: Duration = Duration::from_secs(2);

/// One process.
struct Followed {
    target: Target,
    python: PythonInfo,
    inspected: Instant,
    cpu_at_start: Duration,
    /// The queue of the table builder was full: its mappings must be sent again.
    unsent: bool,
}

/// All processes of a recording.
pub(super) struct Targets {
    followed: BTreeMap<Pid, Followed>,
}

/// What is left of a process at the end.
pub(super) struct TargetFacts {
    pub(super) pid: Pid,
    pub(super) command: String,
    pub(super) python: PythonInfo,
    pub(super) cpu_time: Duration,
}

impl Targets {
    /// Checks the processes, and reads what is mapped in them.
    pub(super) fn check(pids: &[Pid]) -> Result<Self, TargetError> {
        let mut followed = BTreeMap::new();
        for &pid in pids {
            let target = Target::check(pid)?;
            let python = inspect(&target, &mappings_of(pid).unwrap_or_default());
            let cpu_at_start = target.cpu_time();
            let entry = Followed {
                target,
                python,
                inspected: Instant::now(),
                cpu_at_start,
                unsent: false,
            };
            followed.insert(pid, entry);
        }
        Ok(Self { followed })
    }

    /// Bytes of executable memory of all processes, from files.
    pub(super) fn text_bytes(&self) -> u64 {
        let mappings = self
            .followed
            .keys()
            .flat_map(|&pid| mappings_of(pid).unwrap_or_default());
        mappings
            .filter(|mapping| mapping.inode != 0)
            .map(|mapping| mapping.end.0 - mapping.begin.0)
            .sum()
    }

    /// Makes all of them known to the stages that need them, for the first time.
    pub(super) fn introduce(&mut self, builder: &TableBuilder, resolver: &mut Resolver) {
        let pids: Vec<_> = self.followed.keys().copied().collect();
        for pid in pids {
            if let Some(entry) = self.followed.get(&pid) {
                resolver.add_process(&entry.target, entry.python.clone());
            }
            self.remap(pid, builder, resolver);
        }
    }

    /// Sampling begins: CPU time counts from here on.
    pub(super) fn begin(&mut self) {
        for entry in self.followed.values_mut() {
            entry.cpu_at_start = entry.target.cpu_time();
        }
    }

    /// Is one of ours.
    pub(super) fn contains(&self, pid: Pid) -> bool {
        self.followed.contains_key(&pid)
    }

    /// A process's mappings have changed.
    pub(super) fn remap(&mut self, pid: Pid, builder: &TableBuilder, resolver: &mut Resolver) {
        let Some(entry) = self.followed.get_mut(&pid) else {
            return;
        };
        // A process that is gone has no mappings, but samples of it are still being resolved.
        let Some(mappings) = mappings_of(pid).filter(|mappings| !mappings.is_empty()) else {
            return;
        };
        if entry.python.version.is_none() {
            entry.python = inspect(&entry.target, &mappings);
            entry.inspected = Instant::now();
        }
        resolver.update(
            pid,
            &mappings,
            entry.python.clone(),
            perf_map_is_open(&entry.target),
        );
        entry.unsent = !builder.update(pid, mappings);
    }

    /// A process runs another program now, maybe as another user.
    pub(super) fn executed(&mut self, pid: Pid, builder: &TableBuilder, resolver: &mut Resolver) {
        let Some(entry) = self.followed.get_mut(&pid) else {
            return;
        };
        if let Ok(target) = Target::check(pid) {
            entry.target = target;
        }
        entry.python = inspect(&entry.target, &mappings_of(pid).unwrap_or_default());
        entry.inspected = Instant::now();
        resolver.add_process(&entry.target, entry.python.clone());
        self.remap(pid, builder, resolver);
    }

    /// What must be looked at again from time to time.
    pub(super) fn revisit(&mut self, builder: &TableBuilder, resolver: &mut Resolver) {
        let due: Vec<_> = self
            .followed
            .iter()
            .filter(|(_, entry)| {
                entry.unsent
                    || entry.python.version.is_none() && entry.inspected.elapsed() >= INSPECT_AGAIN
            })
            .map(|(&pid, _)| pid)
            .collect();
        for pid in due {
            self.remap(pid, builder, resolver);
        }
    }

    /// Reads the CPU time of all processes, since there is nothing to read of one that has exited and been waited for.
    pub(super) fn note_cpu_time(&self) {
        for entry in self.followed.values() {
            // It keeps what it reads.
            entry.target.cpu_time();
        }
    }

    /// All of them have exited.
    pub(super) fn all_exited(&self) -> bool {
        self.followed.values().all(|entry| !entry.target.is_alive())
    }

    /// Directories in which perf maps of these processes may appear.
    pub(super) fn perf_map_directories(&self) -> impl Iterator<Item = std::path::PathBuf> + '_ {
        self.followed
            .values()
            .map(|entry| entry.target.perf_map_directory())
    }

    /// The processes themselves, whose descriptors become readable when they exit.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Target> {
        self.followed.values().map(|entry| &entry.target)
    }

    /// What is left to say of each.
    pub(super) fn facts(&self) -> Vec<TargetFacts> {
        self.followed
            .iter()
            .map(|(&pid, entry)| TargetFacts {
                pid,
                command: entry.target.command(),
                python: entry.python.clone(),
                cpu_time: entry.target.cpu_time().saturating_sub(entry.cpu_at_start),
            })
            .collect()
    }
}

fn mappings_of(pid: Pid) -> Option<Vec<Mapping>> {
    read_executable_mappings(pid)
        .ok()
        .map(|parsed| parsed.mappings)
}
