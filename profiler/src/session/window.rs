//! The end of a recording: what is waiting is worked off, and everything is added up.

use std::time::{Duration, Instant};

use super::{
    BpfStats, Limit, RecordSettings, Recording, Remark, SampledEvent, StopReason, Summary,
    ending::{CODE_WAITS, MAPS_WORK, RING_WORK},
    limits,
    rate::{RateFacts, remark_on, spread, undersampled},
    record::Session,
    stages::Stages,
};
use crate::{
    kernel::Counters,
    model::{Pid, ResolveMiss},
    process::thread_time,
    profile::{ProcessName, Profile},
    registry::{Summaries, TargetSummary},
    unwind::BuilderStats,
};

/// How long names may take to arrive after the recording.
const NAMES_PATIENCE: Duration = Duration::from_secs(10);

impl Session {
    /// Stops sampling, works off what is waiting, and adds up.
    pub(super) fn finish(
        mut self,
        settings: &RecordSettings,
        stop: StopReason,
        elapsed: Duration,
    ) -> Recording {
        let ended = Instant::now();
        self.stop_sampling();
        let longest_turn = self.longest_turn;
        tracing::debug!("the longest turn took {longest_turn:?}");
        let began = thread_time();
        let worked = || thread_time().saturating_sub(began);
        self.resolver.read_perf_maps(|| worked() < MAPS_WORK);
        // The ring buffer may hold more than one turn takes.
        while self.turn() && worked() < MAPS_WORK + RING_WORK {}
        let discarded = self.discard();
        let counters = self.kernel.counters().unwrap_or_default();
        let bpf = settings.bpf_stats.then(|| self.bpf_stats(&counters));
        tracing::debug!("all samples are taken in after {:?}", ended.elapsed());
        let mut late = Vec::new();
        let built = self.builder.end(|stack| late.push(stack));
        tracing::debug!("{built:?}");
        let malformed = self.ring.get_ref().malformed();
        for stack in &late {
            self.add_finished(stack);
        }
        let mut remarks = self.remarks(&counters, &built);
        let refused = self.registry.refused();
        let roots = self.registry.roots().count();
        self.registry.read_titles(true);
        let cpu_time = self.registry.cpu_time();
        let mut stages = Stages {
            builder: &self.builder,
            resolver: &mut self.resolver,
        };
        let Summaries {
            targets,
            complaints: refusals,
            contested,
            mappings_left_out,
            unsampled,
        } = self.registry.finish(&mut stages);
        let undersampled = undersampled(&targets, &unsampled, settings.frequency);
        let rate = RateFacts {
            before: self.limits_before,
            throttle_records: self.throttle_records,
            samples: counters.samples,
            // Of processes that were not sampled, the rate says nothing.
            cpu_time: cpu_time.saturating_sub(undersampled.iter().map(|it| it.cpu_time).sum()),
            processes: targets.len() as u64 + unsampled.processes,
            spread: spread(&targets, &undersampled),
        };
        let throttling = rate.throttling(settings.frequency);
        remarks.extend(remark_on(&undersampled));
        let file_limits = self.resolver.file_limits().clone();
        let cross_check = self.resolver.cross_check().cloned();
        let named = self.resolver.finish(NAMES_PATIENCE);
        tracing::debug!("all names are there after {:?}", ended.elapsed());
        let mut profile = self.aggregator.finish(named.locations);
        profile.quality.symbol_processes_lost = named.losses;
        profile.quality.ring_full = counters.ring_full;
        profile.quality.not_kept += malformed + built.walks_abandoned + discarded;
        profile.quality.finished_in_user_space = self.finished_in_user_space;
        name_processes(&mut profile, &targets);
        if has_hidden_kernel_names(&profile) {
            remarks.push(Remark::KernelNamesHidden);
        }
        if refused > 0 {
            remarks.push(Remark::NotPermitted(refused));
        }
        if let Some((pid, rival)) = contested
            && profile.quality.contested > 0
        {
            remarks.push(Remark::SharedPerfMap {
                pid,
                rival,
                frames: profile.quality.contested,
            });
        }
        let of_files = file_limits.iter();
        remarks.extend(of_files.map(|(limit, names)| Remark::Files(limit, names)));
        if mappings_left_out > 0 {
            remarks.push(Remark::MappingsLeftOut(mappings_left_out));
        }
        let event = if self.events.is_hardware() {
            SampledEvent::Cycles
        } else {
            SampledEvent::CpuClock
        };
        let summary = Summary {
            targets,
            roots,
            follows: self.following.forks,
            unsampled,
            stop,
            elapsed,
            frequency: settings.frequency,
            event,
            throttling,
            refusals,
            remarks,
            longest_turn,
            cross_check,
            longest_turn_cpu: self.longest_turn_cpu,
            bpf,
        };
        Recording { profile, summary }
    }

    fn stop_sampling(&mut self) {
        self.events.stop();
        self.registry.sampling_stopped();
        // From here on, the user waits.
        self.resolver.limit_waits(CODE_WAITS);
        self.registry.limit_waits(CODE_WAITS);
    }

    /// What the user should know of how it went.
    fn remarks(&self, counters: &Counters, built: &BuilderStats) -> Vec<Remark> {
        let mut remarks = Vec::new();
        if counters.kernel_stack_failed > 0 {
            remarks.push(Remark::KernelStacksFailed(counters.kernel_stack_failed));
        }
        let limits = limits::reached(counters, built, self.kernel.sizes());
        remarks.extend(limits.into_iter().map(Remark::Limit));
        for limit in [
            Limit::NotExamined(self.registry.unexamined()),
            Limit::SamplesBefore(self.unexamined_samples),
        ] {
            if limit.count() > 0 {
                remarks.push(Remark::Limit(limit));
            }
        }
        if self.following.forks && !self.kernel.follows() {
            remarks.push(Remark::CannotFollow);
        }
        if counters.events_lost > 0 {
            remarks.push(Remark::EventsLost(counters.events_lost));
        }
        if let Some((pid, halt, others)) = self.registry.halted() {
            remarks.push(Remark::Halted { pid, halt, others });
        }
        if let Some(container) = self.registry.container() {
            let ignored = container.ignored();
            if !ignored.is_empty() {
                remarks.push(Remark::GroupsIgnored(ignored.to_vec()));
            }
            remarks.extend(container.rootless().cloned().map(Remark::Rootless));
        }
        let mut children: Vec<Pid> = self.children.pythons().collect();
        children.retain(|pid| !self.registry.contains(*pid));
        if !children.is_empty() {
            remarks.push(Remark::ChildrenNotRecorded(children));
        }
        remarks
    }

    fn bpf_stats(&self, counters: &Counters) -> BpfStats {
        let stats = self.kernel.program_stats().unwrap_or_default();
        BpfStats {
            runs: stats.runs,
            run_time_ns: stats.run_time_ns,
            frames: counters.frames,
            python_frames: counters.python_frames,
            samples: counters.samples,
            stack_copies: counters.stack_copies,
            verified_instructions: stats.verified_instructions,
            first_sample: self.first_sample,
        }
    }
}

/// Of a process that ran several programs, the one with the most samples comes first.
fn name_processes(profile: &mut Profile, targets: &[TargetSummary]) {
    for target in targets {
        profile
            .process_names
            .entry(target.pid)
            .or_insert_with(|| ProcessName {
                label: target.label.clone(),
                command: target.command.clone(),
            });
    }
}

/// Kernel functions were seen, but the kernel hides where they are.
fn has_hidden_kernel_names(profile: &Profile) -> bool {
    let frames = profile.locations.locations.iter().flat_map(|it| &it.frames);
    frames
        .into_iter()
        .any(|frame| frame.miss == Some(ResolveMiss::KernelSymbols))
}
