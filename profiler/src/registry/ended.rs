//! Programs that have ended: each is kept while samples of it may be on their way, then summarised in numbers.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Summaries, TargetSummary, Unsampled, tracked::ProgramInfo};
use crate::{
    model::{ImageId, Pid},
    symbols::{NameDiagnosis, ProgramFacts},
};

/// Stacks that are finished in user space come back within this time.
const LINGER: Duration = Duration::from_secs(2);
/// Programs that have an entry of their own in the summary; the others are counted. Some 2 KiB each at most.
const LISTED_MAX: usize = 16_384;

/// A program that has ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) at: Instant,
    pub(super) pid: Pid,
    pub(super) image: ImageId,
    pub(super) info: ProgramInfo,
    pub(super) cpu_time: Duration,
    pub(super) kind: EndedKind,
    /// Samples of it in windows that have ended.
    pub(super) counted: u64,
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
    listed: Vec<(ImageId, TargetSummary)>,
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

    /// Programs of which samples may be on their way.
    pub(super) fn lingering(&mut self) -> impl Iterator<Item = &mut Ended> {
        self.lingering.iter_mut()
    }

    /// Keeps of a program what the summary needs. `facts`: what symbols found out about it; `samples`: those of it since
    /// the last window has ended.
    pub(super) fn summarise(&mut self, ended: Ended, facts: Option<ProgramFacts>, samples: u64) {
        let mut names = NameDiagnosis::NotPython;
        if let Some(facts) = facts {
            names = facts.names;
            if let Some(rival) = facts.rival {
                self.contested.get_or_insert((ended.pid, rival));
            }
            if self.complaints.len() < LISTED_MAX {
                self.complaints.extend(facts.complaints);
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
        let summary = TargetSummary {
            pid: ended.pid,
            command: info.command.to_string(),
            label: info.label.to_string(),
            python: info.python,
            cpu_time: ended.cpu_time,
            samples,
            source: info.interpreter.source(),
            names,
        };
        self.listed.push((ended.image, summary));
    }

    /// CPU time of all of them.
    pub(super) fn cpu_time(&self) -> Duration {
        let lingering: Duration = self.lingering.iter().map(|ended| ended.cpu_time).sum();
        let listed: Duration = self.listed.iter().map(|(_, it)| it.cpu_time).sum();
        lingering + listed + self.unsampled.cpu_time
    }

    /// All that was summarised since the last call: processes that were asked for first, then by how many samples there
    /// are of them. `samples` are those of the window that ends; what a program has of later ones is left for the next.
    pub(super) fn take(
        &mut self,
        samples: &FxHashMap<ImageId, u64>,
        is_root: impl Fn(Pid) -> bool,
    ) -> Summaries {
        let mut targets = Vec::new();
        let mut later = Vec::new();
        for (image, mut summary) in std::mem::take(&mut self.listed) {
            let counted = samples.get(&image).copied().unwrap_or_default();
            let more = summary.samples.saturating_sub(counted);
            if more > 0 {
                let cpu_time = if counted > 0 {
                    Duration::ZERO
                } else {
                    summary.cpu_time
                };
                let rest = TargetSummary {
                    samples: more,
                    cpu_time,
                    ..summary.clone()
                };
                later.push((image, rest));
            }
            if counted > 0 || more == 0 {
                summary.samples = counted;
                targets.push(summary);
            }
        }
        targets.sort_by_key(|it| (!is_root(it.pid), std::cmp::Reverse(it.samples), it.pid));
        self.listed = later;
        self.with_samples.clear();
        Summaries {
            targets,
            complaints: std::mem::take(&mut self.complaints).into_iter().collect(),
            contested: self.contested.take(),
            mappings_left_out: std::mem::take(&mut self.mappings_left_out),
            unsampled: std::mem::take(&mut self.unsampled),
        }
    }
}
