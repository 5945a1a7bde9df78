//! What can be asked about the processes of a recording.

use std::{collections::BTreeMap, os::fd::OwnedFd, path::PathBuf, time::Duration};

use super::{
    Registry,
    tracked::{Tracked, mappings_of},
};
use crate::{
    model::Pid,
    process::{Container, Halt, Selector, Target, halt_of, has_exited},
};

/// Processes that are asked whether anything keeps them from running.
const HALTED_MAX: usize = 256;

impl Registry {
    /// Bytes of executable memory of all processes, from files; what several of them map counts once.
    pub fn text_bytes(&self) -> u64 {
        let mappings = self
            .tracked
            .keys()
            .flat_map(|&pid| mappings_of(&*self.host, pid));
        let files: BTreeMap<_, u64> = mappings
            .filter(|mapping| mapping.inode != 0)
            .map(|mapping| {
                let bytes = mapping.end.0 - mapping.begin.0;
                ((mapping.device, mapping.inode, mapping.file_offset), bytes)
            })
            .collect();
        files.values().sum()
    }

    /// How many processes are tracked.
    pub fn count(&self) -> usize {
        self.tracked.len()
    }

    /// A program has just begun, so that its process should be read more often.
    pub fn is_any_young(&self) -> bool {
        let now = self.host.now();
        self.tracked.values().any(|entry| entry.is_young(now))
    }

    /// One of the programs that have just begun is a Python whose frames are not read yet.
    pub fn is_python_starting(&self) -> bool {
        let now = self.host.now();
        let mut tracked = self.tracked.values();
        tracked.any(|entry| entry.is_young(now) && entry.is_python_starting())
    }

    /// Something about a process must be read.
    pub fn is_any_stale(&self) -> bool {
        !self.stale.is_empty() || !self.urgent.is_empty()
    }

    /// The frames of an interpreter could not be read yet, and are to be looked for again.
    pub fn has_unread_interpreter(&self) -> bool {
        let mut tracked = self.tracked.values();
        tracked.any(|entry| entry.info.interpreter.is_waiting())
    }

    /// The process has the extension module of `greenlet` loaded.
    pub fn has_greenlets(&self, pid: Pid) -> bool {
        let entry = self.tracked.get(&pid);
        entry.is_some_and(|entry| entry.info.has_greenlets)
    }

    /// The process has not been examined yet.
    pub fn is_unexamined(&self, pid: Pid) -> bool {
        self.tracked.get(&pid).is_some_and(|it| it.is_unexamined)
    }

    /// How many processes have not been examined yet.
    pub fn unexamined(&self) -> u64 {
        let unexamined = self.tracked.values().filter(|it| it.is_unexamined);
        unexamined.count() as u64 + self.undecided
    }

    /// The process is recorded.
    pub fn contains(&self, pid: Pid) -> bool {
        self.tracked.contains_key(&pid) || self.children.contains(pid)
    }

    /// Processes that are selected, and that we may not look into.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// A living process that cannot run, what holds it, and how many others there are. Of very many, only the first are
    /// asked.
    pub fn halted(&self) -> Option<(Pid, Halt, u64)> {
        let mut pids: Vec<Pid> = self.roots.keys().copied().collect();
        let others = self.tracked.keys();
        pids.extend(others.filter(|pid| !self.roots.contains_key(pid)));
        pids.truncate(HALTED_MAX);
        let mut halted = pids.into_iter().filter_map(|pid| {
            let target = self.tracked.get(&pid)?.target.as_ref()?;
            let halt = halt_of(pid)?;
            target.is_alive().then_some((pid, halt))
        });
        let (pid, halt) = halted.next()?;
        Some((pid, halt, halted.count() as u64))
    }

    /// The container that was asked for.
    pub const fn container(&self) -> Option<&Container> {
        match &self.selector {
            Selector::Container(container) => Some(container),
            _ => None,
        }
    }

    /// All roots have exited.
    pub fn all_exited(&self) -> bool {
        !self.roots.is_empty() && self.roots.values().all(has_exited)
    }

    /// Handles of the roots, which become readable when they exit.
    pub fn exits(&self) -> impl Iterator<Item = std::io::Result<OwnedFd>> + '_ {
        self.roots.values().map(OwnedFd::try_clone)
    }

    /// A process is a command of ours that waits for its beginning.
    pub fn has_own_image(&self) -> bool {
        let mut targets = self.tracked.values().filter_map(|it| it.target.as_ref());
        targets.any(Target::is_own_image)
    }

    /// The directories of the perf maps of all processes.
    pub fn perf_map_directories(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let targets = self.tracked.values().filter_map(|it| it.target.as_ref());
        targets.map(Target::perf_map_directory)
    }

    /// Processes that were asked for.
    pub fn roots(&self) -> impl Iterator<Item = Pid> + '_ {
        self.roots.keys().copied()
    }

    /// CPU time that all processes have used since sampling began.
    pub fn cpu_time(&self) -> Duration {
        let living: Duration = self.tracked.values().map(Tracked::cpu_time).sum();
        living + self.ended.cpu_time()
    }
}
