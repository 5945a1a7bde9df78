//! A window: what was sampled from its begin to its end, and what is to be said about it.
//!
//! All counters go on for as long as the engine runs. A window has the differences between two moments.

use std::time::{Duration, Instant};

use super::{
    BpfStats, Limit, Remark, SampledEvent, StopReason, Summary, Window,
    ending::{CODE_WAITS, CUT_NAMES, CUT_WALKS, LAST_NAMES, MAPS_WORK, RING_WORK},
    engine::Engine,
    limits,
    rate::{RateFacts, remark_on, spread, undersampled},
    stages::Stages,
};
use crate::{
    kernel::{Counters, KernelSide, ProgramStats, RateLimits, SampleRing},
    model::{KtimeNs, LocationId, Pid, ResolveMiss, ResolvedStack, UnwoundStack},
    process::{now_monotonic, thread_time},
    profile::{Aggregator, ProcessName, Profile},
    registry::{Summaries, TargetSummary},
    symbols::Resolver,
    unwind::{BuilderStats, TableBuilder},
};

/// A sample is in the ring buffer this long after the time that it bears, at most: the BPF program runs for some
/// microseconds in between, with interrupts off.
const SUBMITTED_AFTER: Duration = Duration::from_millis(2);
/// While a window is being ended, ticks follow one another at this interval.
const CUT_STEP: Duration = Duration::from_millis(1);

/// All counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) counters: Counters,
    pub(super) built: BuilderStats,
    /// Records of the ring that were not well formed.
    malformed: u64,
    symbol_processes_lost: u64,
    limits: Option<RateLimits>,
    program: ProgramStats,
}

impl Totals {
    /// Before sampling begins. What was found out until then, such as a table that is full, counts for the first window.
    pub(super) fn at_start() -> Self {
        Self {
            limits: RateLimits::read().ok(),
            ..Self::default()
        }
    }

    pub(super) fn read(
        kernel: &KernelSide,
        builder: &TableBuilder,
        resolver: &Resolver,
        ring: &SampleRing,
    ) -> Self {
        Self {
            counters: kernel.counters().unwrap_or_default(),
            built: builder.stats(),
            malformed: ring.malformed(),
            symbol_processes_lost: resolver.symbol_processes_lost(),
            limits: RateLimits::read().ok(),
            program: kernel.program_stats().unwrap_or_default(),
        }
    }
}

/// A window that is not finished.
#[derive(Debug)]
pub(super) struct OpenWindow {
    begin: KtimeNs,
    began: Instant,
    /// Once it is being ended.
    end: Option<(KtimeNs, Duration)>,
    pub(super) aggregator: Aggregator,
    /// All counters when it began.
    pub(super) before: Totals,
    /// Stacks of it that are being finished in user space.
    pub(super) walks: u64,
    /// Samples that were left in the ring.
    discarded: u64,
    finished_in_user_space: u64,
    /// Samples of processes that were not examined yet.
    pub(super) unexamined_samples: u64,
    pub(super) throttle_records: u64,
    pub(super) first_sample: Option<KtimeNs>,
    /// How long samples had to wait for a tick to end, at most.
    longest_tick: Duration,
    /// The same in CPU time.
    longest_tick_cpu: Duration,
}

impl OpenWindow {
    /// Begins a window. `before` are all counters at that moment.
    pub(super) fn new(begin: KtimeNs, threads: bool, before: &Totals) -> Self {
        Self {
            begin,
            began: Instant::now(),
            end: None,
            aggregator: Aggregator::new(threads),
            before: *before,
            walks: 0,
            discarded: 0,
            finished_in_user_space: 0,
            unexamined_samples: 0,
            throttle_records: 0,
            first_sample: None,
            longest_tick: Duration::ZERO,
            longest_tick_cpu: Duration::ZERO,
        }
    }

    /// Later samples are not its own.
    pub(super) fn end(&mut self, end: KtimeNs) {
        self.end = Some((end, self.began.elapsed()));
    }

    /// A sample that was taken then is one of this window, or of one before it that has ended.
    pub(super) fn is_its_time(&self, ktime: KtimeNs) -> bool {
        self.end.is_none_or(|(end, _)| ktime < end)
    }

    /// A stack was finished in user space, or was given up there.
    pub(super) fn add_finished(&mut self, stack: &UnwoundStack, resolved: &ResolvedStack) {
        if stack.ktime >= self.begin {
            self.walks = self.walks.saturating_sub(1);
        }
        self.finished_in_user_space += u64::from(stack.end.is_complete());
        self.aggregator.add(resolved);
    }

    /// A tick took that long.
    pub(super) fn ticked(&mut self, took: Duration, cpu_time: Duration) {
        self.longest_tick = self.longest_tick.max(took);
        self.longest_tick_cpu = self.longest_tick_cpu.max(cpu_time);
    }
}

impl Engine {
    /// Ends the window at this moment, by the clock of samples, and begins the next one. Sampling goes on.
    ///
    /// The window has all samples that were taken from its begin to its end, and no other. What is still missing of them is
    /// waited for, while ticks go on: stacks that are finished in user space for 1 s at most, names for 1 s at most. Stacks that
    /// come later are counted in the next window; names that come later are missing in this one.
    pub fn cut(&mut self) -> Window {
        let (now, at) = (now_monotonic(), Instant::now());
        let totals = Totals::read(&self.kernel, &self.builder, &self.resolver, &self.ring);
        let next = OpenWindow::new(now, self.settings.threads, &totals);
        let mut ending = std::mem::replace(&mut self.window, next);
        ending.end(now);
        self.ending = Some(ending);
        loop {
            let is_submitted = at.elapsed() >= SUBMITTED_AFTER;
            let more = self.tick();
            let walks = self.ending.as_ref().map_or(0, |ending| ending.walks);
            let is_settled = is_submitted && !more && walks == 0;
            if is_settled || at.elapsed() >= CUT_WALKS {
                break;
            }
            if !more {
                std::thread::sleep(CUT_STEP);
            }
        }
        let Some(mut ending) = self.ending.take() else {
            unreachable!("it was put there above, and ticks leave it there");
        };
        let ids = ending.aggregator.renumber();
        let until = Instant::now() + CUT_NAMES;
        let mut missing = self.resolver.ask_for(&ids);
        while !missing.is_empty() && Instant::now() < until {
            std::thread::sleep(CUT_STEP);
            self.tick();
            missing = self.resolver.ask_for(&missing);
        }
        self.finish(ending, &totals, StopReason::Duration, &ids, false)
    }

    /// Stops sampling, and ends the last window. Each part of that has a limit, in CPU time or by the clock, so that it takes some
    /// 2 s at most, whatever the targets do; longer where other programs keep the CPUs busy.
    pub fn stop(mut self, reason: StopReason) -> Window {
        let now = now_monotonic();
        let ended = Instant::now();
        self.window.end(now);
        self.stop_sampling();
        let began = thread_time();
        let worked = || thread_time().saturating_sub(began);
        self.resolver.read_perf_maps(|| worked() < MAPS_WORK);
        // The ring buffer may hold more than one tick takes.
        while self.tick() && worked() < MAPS_WORK + RING_WORK {}
        self.window.discarded = self.discard();
        tracing::debug!("all samples are taken in after {:?}", ended.elapsed());
        let mut late = Vec::new();
        let built = self.builder.end(|stack| late.push(stack));
        tracing::debug!("{built:?}");
        for stack in &late {
            self.add_finished(stack);
        }
        let mut totals = Totals::read(&self.kernel, &self.builder, &self.resolver, &self.ring);
        totals.built = built;
        let next = OpenWindow::new(now, self.settings.threads, &totals);
        let mut ending = std::mem::replace(&mut self.window, next);
        let ids = ending.aggregator.renumber();
        self.finish(ending, &totals, reason, &ids, true)
    }

    fn stop_sampling(&mut self) {
        self.events.stop();
        self.registry.sampling_stopped();
        // From here on, the user waits.
        self.resolver.limit_waits(CODE_WAITS);
        self.registry.limit_waits(CODE_WAITS);
    }

    /// Adds up what a window has. `now` are all counters at its end, `ids` are the locations of its stacks. `last`: no other
    /// window follows.
    fn finish(
        &mut self,
        open: OpenWindow,
        now: &Totals,
        stop: StopReason,
        ids: &[LocationId],
        last: bool,
    ) -> Window {
        let counters = now.counters.since(&open.before.counters);
        let built = now.built.since(&open.before.built);
        let mut remarks = self.remarks(&counters, &built, open.unexamined_samples);
        let refused = self.registry.refused();
        let roots = self.registry.roots().count();
        self.registry.read_titles(true);
        let cpu_time = self.registry.cpu_time();
        let mut stages = Stages {
            builder: &self.builder,
            resolver: &mut self.resolver,
        };
        let programs = open.aggregator.programs();
        let Summaries {
            targets,
            complaints: refusals,
            contested,
            mappings_left_out,
            unsampled,
        } = if last {
            self.registry.finish(programs, &mut stages)
        } else {
            self.registry.cut(programs, &mut stages)
        };
        let undersampled = undersampled(&targets, &unsampled, self.settings.frequency);
        let rate = RateFacts {
            before: open.before.limits,
            after: now.limits,
            throttle_records: open.throttle_records,
            samples: counters.samples,
            // Of processes that were not sampled, the rate says nothing.
            cpu_time: cpu_time.saturating_sub(undersampled.iter().map(|it| it.cpu_time).sum()),
            processes: targets.len() as u64 + unsampled.processes,
            spread: spread(&targets, &undersampled),
        };
        let throttling = rate.throttling(self.settings.frequency);
        remarks.extend(remark_on(&undersampled));
        let bpf = self.bpf_stats(&open, now, &counters);
        let locations = if last {
            self.resolver.last_names_of(ids, LAST_NAMES)
        } else {
            self.resolver.names_of(ids)
        };
        tracing::debug!("all names are there");
        let mut profile = open.aggregator.finish(locations);
        let lost = self.resolver.symbol_processes_lost();
        profile.quality.symbol_processes_lost = lost - open.before.symbol_processes_lost;
        profile.quality.ring_full = counters.ring_full;
        profile.quality.not_kept += now.malformed - open.before.malformed;
        profile.quality.not_kept += built.walks_abandoned + open.discarded;
        profile.quality.finished_in_user_space = open.finished_in_user_space;
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
        let of_files = self.resolver.file_limits().clone();
        remarks.extend(
            of_files
                .iter()
                .map(|(limit, names)| Remark::Files(limit, names)),
        );
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
            elapsed: open
                .end
                .map_or_else(|| open.began.elapsed(), |(_, length)| length),
            frequency: self.settings.frequency,
            event,
            throttling,
            refusals,
            remarks,
            longest_tick: open.longest_tick,
            longest_tick_cpu: open.longest_tick_cpu,
            cross_check: self.resolver.take_cross_check(),
            bpf,
        };
        Window { profile, summary }
    }

    /// What the user should know of how it went.
    fn remarks(
        &self,
        counters: &Counters,
        built: &BuilderStats,
        unexamined_samples: u64,
    ) -> Vec<Remark> {
        let mut remarks = Vec::new();
        if counters.kernel_stack_failed > 0 {
            remarks.push(Remark::KernelStacksFailed(counters.kernel_stack_failed));
        }
        let limits = limits::reached(counters, built, self.kernel.sizes());
        remarks.extend(limits.into_iter().map(Remark::Limit));
        for limit in [
            Limit::NotExamined(self.registry.unexamined()),
            Limit::SamplesBefore(unexamined_samples),
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

    fn bpf_stats(&self, open: &OpenWindow, now: &Totals, counters: &Counters) -> Option<BpfStats> {
        let (program, before) = (now.program, open.before.program);
        self.settings.bpf_stats.then(|| BpfStats {
            runs: program.runs - before.runs,
            run_time_ns: program.run_time_ns - before.run_time_ns,
            frames: counters.frames,
            python_frames: counters.python_frames,
            samples: counters.samples,
            stack_copies: counters.stack_copies,
            verified_instructions: program.verified_instructions,
            first_sample: open.first_sample,
        })
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
