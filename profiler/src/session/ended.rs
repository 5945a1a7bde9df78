//! Programs that have ended: what they left is kept while walks of them may be on their way, then told in numbers.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use rustc_hash::FxHashSet;

use super::{TargetSummary, Unsampled, followed::Identity};
use crate::{
    model::{ImageId, Pid},
    symbols::{NameDiagnosis, Resolver},
};

/// Walks that are finished in user space come back within this time.
const LINGER: Duration = Duration::from_secs(2);
/// Programs of which each is told in the summary; of more, numbers only. Some 2 KiB each at most.
const TOLD_MAX: usize = 16_384;

/// A program that has ended.
pub(super) struct Ended {
    at: Instant,
    pub(super) pid: Pid,
    pub(super) image: ImageId,
    identity: Identity,
    cpu_time: Duration,
    kind: EndedKind,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedKind {
    /// Its process runs another program.
    Replaced,
    /// With its process, which was asked for.
    Root,
    /// With its process.
    Other,
}

/// What is left of all of them.
#[derive(Default)]
pub(super) struct EndedPrograms {
    /// The latest last.
    lingering: VecDeque<Ended>,
    told: Vec<TargetSummary>,
    complaints: BTreeSet<String>,
    /// Processes that live and have samples of an earlier program.
    with_samples: FxHashSet<Pid>,
    /// A process whose perf map another one writes as well, and that other one.
    contested: Option<(Pid, Pid)>,
    mappings_left_out: u64,
    unsampled: Unsampled,
}

/// What is left of all processes at the end.
pub(super) struct Finished {
    pub(super) targets: Vec<TargetSummary>,
    pub(super) complaints: Vec<String>,
    pub(super) contested: Option<(Pid, Pid)>,
    pub(super) mappings_left_out: u64,
    pub(super) unsampled: Unsampled,
}

impl EndedPrograms {
    /// One has ended just now.
    pub(super) fn push(
        &mut self,
        pid: Pid,
        image: ImageId,
        identity: Identity,
        cpu_time: Duration,
        kind: EndedKind,
    ) {
        self.lingering.push_back(Ended {
            at: Instant::now(),
            pid,
            image,
            identity,
            cpu_time,
            kind,
        });
    }

    /// A program had so many mappings more than are kept.
    pub(super) fn add_left_out(&mut self, mappings: u32) {
        self.mappings_left_out += u64::from(mappings);
    }

    /// So many processes ended without having been met.
    pub(super) fn add_unmet(&mut self, processes: u64, cpu_time: Duration) {
        self.unsampled.processes += processes;
        self.unsampled.cpu_time += cpu_time;
    }

    /// The next one that has ended a while ago; `at_once`: or just now. It is to be [told](Self::tell).
    pub(super) fn next_to_forget(&mut self, at_once: bool) -> Option<Ended> {
        let oldest = self.lingering.front()?;
        if at_once || oldest.at.elapsed() >= LINGER {
            self.lingering.pop_front()
        } else {
            None
        }
    }

    /// Keeps of it what the summary needs.
    pub(super) fn tell(&mut self, ended: Ended, resolver: &mut Resolver) {
        let retired = resolver.retire(ended.image);
        let samples = retired.as_ref().map_or(0, |retired| retired.samples);
        let mut names = NameDiagnosis::NotPython;
        if let Some(retired) = retired {
            names = retired.names;
            if let Some(rival) = retired.rival {
                self.contested.get_or_insert((ended.pid, rival));
            }
            if self.complaints.len() < TOLD_MAX {
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
            self.add_unmet(u64::from(is_new), ended.cpu_time);
            let known = self.unsampled.busiest.map(|(_, most)| most);
            if is_new && known.is_none_or(|most| most < ended.cpu_time) {
                self.unsampled.busiest = Some((ended.pid, ended.cpu_time));
            }
            return;
        }
        if self.told.len() >= TOLD_MAX && !is_root {
            self.unsampled.untold += 1;
            return;
        }
        let identity = ended.identity.shortened();
        self.told.push(TargetSummary {
            pid: ended.pid,
            command: identity.command.to_string(),
            label: identity.label.to_string(),
            python: identity.python,
            cpu_time: ended.cpu_time,
            samples,
            source: identity.interpreter.source(),
            names,
        });
    }

    /// CPU time of all of them.
    pub(super) fn cpu_time(&self) -> Duration {
        let lingering: Duration = self.lingering.iter().map(|ended| ended.cpu_time).sum();
        let told: Duration = self.told.iter().map(|it| it.cpu_time).sum();
        lingering + told + self.unsampled.cpu_time
    }

    /// All that is left: processes that were asked for first, then by how many samples there are of them.
    pub(super) fn finish(mut self, is_root: impl Fn(Pid) -> bool) -> Finished {
        self.told
            .sort_by_key(|it| (!is_root(it.pid), std::cmp::Reverse(it.samples), it.pid));
        Finished {
            targets: self.told,
            complaints: self.complaints.into_iter().collect(),
            contested: self.contested,
            mappings_left_out: self.mappings_left_out,
            unsampled: self.unsampled,
        }
    }
}
