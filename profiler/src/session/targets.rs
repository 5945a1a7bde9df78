//! The processes of a recording: what is mapped in them, whether they live, what they used.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{
    model::Pid,
    process::{
        Mapping, Pace, PythonInfo, Target, TargetError, inspect, perf_map_handle,
        read_executable_mappings,
    },
    symbols::{Resolver, perf_map::PerfMapWatch},
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
    /// What has happened to it and was not looked at yet.
    news: News,
    /// Looking at it.
    pace: Pace,
    /// Mappings past the limits, at most.
    left_out: u32,
}

/// What has happened to a process since it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum News {
    None,
    /// Its mappings may have changed, or could not be handed on.
    Mappings,
    /// It runs another program.
    Program,
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
                news: News::None,
                pace: Pace::default(),
                left_out: 0,
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

    /// Sampling begins: the CPU time of the targets counts from now on.
    pub(super) fn begin_counting(&mut self) {
        for entry in self.followed.values_mut() {
            entry.cpu_at_start = entry.target.cpu_time();
        }
    }

    /// Notes the CPU time of all, which cannot be read any more once they are gone.
    pub(super) fn note_cpu_time(&self) {
        for entry in self.followed.values() {
            entry.target.cpu_time();
        }
    }

    /// Makes all of them known to the stages that need them, for the first time.
    pub(super) fn introduce(&mut self, builder: &TableBuilder, resolver: &mut Resolver) {
        for (&pid, entry) in &mut self.followed {
            resolver.add_process(&entry.target, entry.python.clone());
            if entry.target.is_own_image() {
                // It will be something else before its first instruction of interest: no tables for ourselves.
                builder.update(pid, Vec::new());
            } else {
                entry.read_mappings(pid, builder, resolver);
            }
        }
    }

    /// Is one of ours.
    pub(super) fn contains(&self, pid: Pid) -> bool {
        self.followed.contains_key(&pid)
    }

    /// A process's mappings have changed. They are read at once, or in a later [`catch_up`](Self::catch_up) where the
    /// process changes them all the time.
    pub(super) fn remap(&mut self, pid: Pid, builder: &TableBuilder, resolver: &mut Resolver) {
        self.note(pid, News::Mappings, builder, resolver);
    }

    /// A process runs another program now, maybe as another user. Looked at like new mappings.
    pub(super) fn executed(&mut self, pid: Pid, builder: &TableBuilder, resolver: &mut Resolver) {
        self.note(pid, News::Program, builder, resolver);
    }

    fn note(&mut self, pid: Pid, news: News, builder: &TableBuilder, resolver: &mut Resolver) {
        if let Some(entry) = self.followed.get_mut(&pid) {
            entry.news = entry.news.max(news);
            entry.look(pid, builder, resolver);
        }
    }

    /// Looks at the processes of which there is news.
    pub(super) fn catch_up(&mut self, builder: &TableBuilder, resolver: &mut Resolver) {
        for (&pid, entry) in &mut self.followed {
            entry.look(pid, builder, resolver);
        }
    }

    /// What must be looked at again from time to time.
    pub(super) fn revisit(&mut self, builder: &TableBuilder, resolver: &mut Resolver) {
        for (&pid, entry) in &mut self.followed {
            if entry.python.version.is_none() && entry.inspected.elapsed() >= INSPECT_AGAIN {
                entry.news = entry.news.max(News::Mappings);
                entry.look(pid, builder, resolver);
            }
        }
    }

    /// All of them have exited.
    pub(super) fn all_exited(&self) -> bool {
        self.followed.values().all(|entry| !entry.target.is_alive())
    }

    /// Watches the directories of all their perf maps; `None`: they are looked at on a timer.
    pub(super) fn watch_perf_maps(&self) -> Option<PerfMapWatch> {
        let mut watch = PerfMapWatch::new()
            .inspect_err(|error| tracing::debug!("perf maps are looked at on a timer: {error}"))
            .ok()?;
        for directory in self.perf_map_directories() {
            if let Err(error) = watch.add(&directory) {
                tracing::debug!("perf maps are looked at on a timer: {error}");
                return None;
            }
        }
        Some(watch)
    }

    /// Directories in which perf maps of these processes may appear.
    fn perf_map_directories(&self) -> impl Iterator<Item = std::path::PathBuf> + '_ {
        self.followed
            .values()
            .map(|entry| entry.target.perf_map_directory())
    }

    /// Mappings that were left out, for there are limits.
    pub(super) fn mappings_left_out(&self) -> u64 {
        let left_out = self.followed.values().map(|entry| entry.left_out);
        left_out.map(u64::from).sum()
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

impl Followed {
    /// Finds out what is new, unless that was done a moment ago.
    fn look(&mut self, pid: Pid, builder: &TableBuilder, resolver: &mut Resolver) {
        if self.news == News::None || self.pace.is_resting() {
            return;
        }
        let began = Instant::now();
        match std::mem::replace(&mut self.news, News::None) {
            News::None => {}
            News::Mappings => self.read_mappings(pid, builder, resolver),
            News::Program => {
                if let Ok(target) = Target::check(pid) {
                    self.target = target;
                }
                self.python = inspect(&self.target, &mappings_of(pid).unwrap_or_default());
                self.inspected = Instant::now();
                resolver.add_process(&self.target, self.python.clone());
                self.read_mappings(pid, builder, resolver);
            }
        }
        self.pace.spent(began.elapsed());
    }

    fn read_mappings(&mut self, pid: Pid, builder: &TableBuilder, resolver: &mut Resolver) {
        // A process that is gone has no mappings, but samples of it are still being resolved.
        let Ok(parsed) = read_executable_mappings(pid) else {
            return;
        };
        self.left_out = self.left_out.max(parsed.left_out);
        let mappings = parsed.mappings;
        if mappings.is_empty() {
            return;
        }
        if self.python.version.is_none() {
            self.python = inspect(&self.target, &mappings);
            self.inspected = Instant::now();
        }
        let handle = perf_map_handle(&self.target);
        let all_opened = resolver.update(pid, &mappings, self.python.clone(), handle.as_deref());
        if !builder.update(pid, mappings) || !all_opened {
            self.news = News::Mappings;
        }
    }
}

fn mappings_of(pid: Pid) -> Option<Vec<Mapping>> {
    read_executable_mappings(pid)
        .ok()
        .map(|parsed| parsed.mappings)
}
