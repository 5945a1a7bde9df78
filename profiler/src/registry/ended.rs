//! Programs that have ended: each is kept while samples of it may be on their way, then summarised in numbers.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use rustc_hash::FxHashSet;

use super::{Summaries, TargetSummary, Unsampled, tracked::ProgramInfo};
use crate::{
    model::{ImageId, Pid},
    symbols::{NameDiagnosis, Retired},
};

/// Stacks that are finished in user space come back within this time.
const LINGER: Duration = Duration::from_secs(2);
/// Programs that have an entry of their own in the summary; the others are counted. Some 2 KiB each at most.
const LISTED_MAX: usize = 16_384;

/// A program that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) at: Instant,
    pub(super) pid: Pid,
    pub(super) image: ImageId,
    pub(super) info: ProgramInfo,
    pub(super) cpu_time: Duration,
    pub(super) kind: EndedKind,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedKind {
    /// Its process runs another program now.
    Replaced,
    /// With its process, which was asked for.
    Root,
    /// With its process.
    Other,
}

/// What is left of all of them.
#[derive(Debug, Default)]
pub(super) struct EndedPrograms {
    /// The latest last.
    lingering: VecDeque<Ended>,
    listed: Vec<TargetSummary>,
    complaints: BTreeSet<String>,
    /// Processes that live and have samples of an earlier program.
    with_samples: FxHashSet<Pid>,
    /// A process whose perf map another one writes as well, and that other one.
    contested: Option<(Pid, Pid)>,
    mappings_left_out: u64,
    unsampled: Unsampled,
}

impl EndedPrograms {
    /// Adds a program that has ended.
    pub(super) fn push(&mut self, ended: Ended) {
        self.lingering.push_back(ended);
    }

    /// Adds the mappings of a program past those that are kept.
    pub(super) fn add_left_out(&mut self, mappings: u32) {
        self.mappings_left_out += u64::from(mappings);
    }

    /// Processes have exited without a sample.
    pub(super) fn add_unsampled(&mut self, processes: u64, cpu_time: Duration) {
        self.unsampled.processes += processes;
        self.unsampled.cpu_time += cpu_time;
    }

    /// The next one that ended so long ago, by the time `now`, that no sample of it will come; the next one in any case
    /// where that is `None`. It is to be [summarised](Self::summarise).
    pub(super) fn next_over(&mut self, now: Option<Instant>) -> Option<Ended> {
        let oldest = self.lingering.front()?;
        let is_over = |now: Instant| now.saturating_duration_since(oldest.at) >= LINGER;
        if now.is_none_or(is_over) {
            self.lingering.pop_front()
        } else {
            None
        }
    }

    /// Keeps of it what the summary needs. `retired`: what symbols found out about it.
    pub(super) fn summarise(&mut self, ended: Ended, retired: Option<Retired>) {
        let samples = retired.as_ref().map_or(0, |retired| retired.samples);
        let mut names = NameDiagnosis::NotPython;
        if let Some(retired) = retired {
            names = retired.names;
            if let Some(rival) = retired.rival {
                self.contested.get_or_insert((ended.pid, rival));
            }
            if self.complaints.len() < LISTED_MAX {
                self.complaints.extend(retired.complaints);
            }
        }
        let is_root = ended.kind == EndedKind::Root;
        let had_samples = match ended.kind {
            EndedKind::Replaced if samples > 0 => self.with_samples.insert(ended.pid),
            EndedKind::Replaced => false,
            EndedKind::Root | EndedKind::Other => self.with_samples.remove(&ended.pid),
        };
        if samples == 0 && !is_root {
            // Where it had samples as another program, it is counted already, but for its CPU time.
            let is_new = ended.kind == EndedKind::Other && !had_samples;
            self.add_unsampled(u64::from(is_new), ended.cpu_time);
            let known = self.unsampled.busiest.map(|(_, most)| most);
            if is_new && known.is_none_or(|most| most < ended.cpu_time) {
                self.unsampled.busiest = Some((ended.pid, ended.cpu_time));
            }
            return;
        }
        if self.listed.len() >= LISTED_MAX && !is_root {
            self.unsampled.unlisted += 1;
            return;
        }
        let info = ended.info.shortened();
        self.listed.push(TargetSummary {
            pid: ended.pid,
            command: info.command.to_string(),
            label: info.label.to_string(),
            python: info.python,
            cpu_time: ended.cpu_time,
            samples,
            source: info.interpreter.source(),
            names,
        });
    }

    /// CPU time of all of them.
    pub(super) fn cpu_time(&self) -> Duration {
        let lingering: Duration = self.lingering.iter().map(|ended| ended.cpu_time).sum();
        let listed: Duration = self.listed.iter().map(|it| it.cpu_time).sum();
        lingering + listed + self.unsampled.cpu_time
    }

    /// All that is left: processes that were asked for first, then by how many samples there are of them.
    pub(super) fn finish(mut self, is_root: impl Fn(Pid) -> bool) -> Summaries {
        self.listed
            .sort_by_key(|it| (!is_root(it.pid), std::cmp::Reverse(it.samples), it.pid));
        Summaries {
            targets: self.listed,
            complaints: self.complaints.into_iter().collect(),
            contested: self.contested,
            mappings_left_out: self.mappings_left_out,
            unsampled: self.unsampled,
        }
    }
}
