//! The recording itself: waits for what happens, and moves values from stage to stage.
//!
//! Samples are drained on a timer and when the ring buffer fills up; everything else is done in the same turn, in the
//! order in which the stages stand. Only three things run beside it: the thread that makes unwind tables, the
//! symbolizer's thread, and the kernel.

use std::{
    future::{Future, pending},
    io,
    os::fd::{AsRawFd, OwnedFd},
    pin::pin,
    time::{Duration, Instant},
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    time::{MissedTickBehavior, interval, sleep_until},
};

use super::{
    BpfStats, Progress, RecordSettings, Recording, SampledEvent, SessionError, StopReason, Summary,
    TargetSummary, Throttling, targets::Targets,
};
use crate::{
    kernel::{
        Counters, Features, KernelEvent, KernelSide, MapSizes, RateLimits, SampleRing,
        SamplingEvents,
    },
    model::{KtimeNs, Pid, ResolvedStack, StackEnd, ThreadName, Tid, UnwoundStack},
    profile::Aggregator,
    symbols::{Resolver, perf_map::PerfMapWatch},
    unwind::{TableBuilder, UnfinishedWalk, UnwindTables, merge},
};

/// Samples are drained at least this often.
const TURN: Duration = Duration::from_millis(100);
/// Samples drained in one go, before anything else gets its turn.
const DRAIN_MAX: usize = 16_384;
/// The status line, CPUs that come and go, and processes that are still starting are looked at every so many turns.
const SLOW_TURNS: u32 = 5;
/// After telling how far it is, the session rests from that for so many times as long as it took.
const TELL_REST: u32 = 200;
/// How long names may take to arrive after the recording.
const NAMES_PATIENCE: Duration = Duration::from_secs(10);
/// A deviation of the real sampling rate from the one asked for that is not told: CPU times are known to some percent.
const RATE_TOLERANCE: f64 = 0.1;
/// The same when the kernel says that it paused sampling.
const RATE_TOLERANCE_PAUSED: f64 = 0.03;
/// CPU time of the targets from which on the real rate can be told: it is counted in steps of 10 ms.
const RATE_KNOWN_AFTER: Duration = Duration::from_secs(1);

/// Samples the targets until `stop`, the end of the duration, or the exit of the last of them.
///
/// The first message to `progress` says that sampling has begun. Needs the privileges that [`crate::privilege`] checks
/// for. Dropping the future stops sampling and removes everything from the kernel.
pub async fn record(
    settings: RecordSettings,
    stop: impl Future<Output = StopReason>,
    progress: watch::Sender<Progress>,
) -> Result<Recording, SessionError> {
    let mut session = Session::begin(&settings)?;
    let began = Instant::now();
    progress.send_replace(Progress::default());
    let end = settings
        .duration
        .map(|duration| tokio::time::Instant::from_std(began + duration));
    let mut stop = pin!(stop);
    let mut exits = session.exits()?;
    let mut turns = interval(TURN);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turn = 0;
    let reason = loop {
        tokio::select! {
            reason = &mut stop => break reason,
            () = until(end) => break StopReason::Duration,
            () = any_exit(&mut exits) => {
                if session.targets.all_exited() {
                    break StopReason::TargetExited;
                }
            }
            () = changed(&mut session.watch), if !session.maps_changed => session.maps_changed = true,
            () = filled(&session.ring) => session.turn(),
            _ = turns.tick() => {
                session.turn();
                turn += 1;
                if turn % SLOW_TURNS == 0 {
                    session.slow_turn();
                    session.tell(&progress, began.elapsed());
                }
            }
        }
    };
    let elapsed = began.elapsed();
    Ok(session.finish(&settings, reason, elapsed))
}

async fn until(end: Option<tokio::time::Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => pending().await,
    }
}

/// Waits until a process exits, once for each.
async fn any_exit(exits: &mut Vec<AsyncFd<OwnedFd>>) {
    let Some(first) = exits.first() else {
        return pending().await;
    };
    // The others are found by asking all of them then.
    let _ = first.readable().await;
    exits.remove(0);
}

/// Waits until a perf map has changed; for ever where that cannot be known, and turns find out by themselves.
async fn changed(watch: &mut Option<PerfMapWatch>) {
    let failed = match watch {
        Some(watch) => watch.next().await.err(),
        None => return pending().await,
    };
    if let Some(error) = failed {
        tracing::debug!("perf maps are looked at on a timer: {error}");
        *watch = None;
    }
}

/// Waits until the ring buffer holds much.
async fn filled(ring: &AsyncFd<SampleRing>) {
    if let Ok(mut guard) = ring.readable().await {
        guard.clear_ready();
    }
}

/// A descriptor that can be waited for.
#[expect(
    deprecated,
    reason = "the unsafe successor wants a promise that both types passed here keep: they own it"
)]
fn readable<T: AsRawFd>(descriptor: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

/// Everything that a recording holds.
struct Session {
    targets: Targets,
    kernel: KernelSide,
    events: SamplingEvents,
    ring: AsyncFd<SampleRing>,
    builder: TableBuilder,
    resolver: Resolver,
    aggregator: Aggregator,
    watch: Option<PerfMapWatch>,
    maps_changed: bool,
    limits_before: Option<RateLimits>,
    throttle_records: u64,
    finished_in_user_space: u64,
    first_sample: Option<KtimeNs>,
    tell_from: Duration,
    buffers: Buffers,
}

/// One of each, used for all samples.
struct Buffers {
    unwound: UnwoundStack,
    resolved: ResolvedStack,
    unfinished: Vec<Box<UnfinishedWalk>>,
}

impl Session {
    /// Sets up all stages, from the last to the first, so that each finds the next one ready.
    fn begin(settings: &RecordSettings) -> Result<Self, SessionError> {
        let mut targets = Targets::check(&settings.pids)?;
        let features = Features::detect().map_err(SessionError::system("looking at the kernel"))?;
        let sizes = MapSizes::for_text(targets.text_bytes());
        let mut kernel = KernelSide::load(&features, sizes, settings.kernel_stacks)?;
        if settings.bpf_stats {
            kernel.enable_stats()?;
        }
        let tables = UnwindTables::new(kernel.take_unwind_maps()?);
        let builder =
            TableBuilder::start(tables).map_err(SessionError::system("starting a thread"))?;
        let mut resolver = Resolver::start().map_err(SessionError::system("starting a thread"))?;
        targets.introduce(&builder, &mut resolver);
        let ring = readable(kernel.take_ring()?)
            .map_err(SessionError::system("watching the sample buffer"))?;
        let limits_before = RateLimits::read().ok();
        let events = kernel.attach(settings.frequency)?;
        let watch = watch_maps(&targets);
        Ok(Self {
            targets,
            kernel,
            events,
            ring,
            builder,
            resolver,
            aggregator: Aggregator::new(settings.threads),
            watch,
            maps_changed: false,
            limits_before,
            throttle_records: 0,
            finished_in_user_space: 0,
            first_sample: None,
            tell_from: Duration::ZERO,
            buffers: Buffers::new(),
        })
    }

    fn exits(&self) -> Result<Vec<AsyncFd<OwnedFd>>, SessionError> {
        self.targets
            .iter()
            .map(|target| readable(target.exited()?))
            .collect::<Result<_, _>>()
            .map_err(SessionError::system("waiting for the target's exit"))
    }

    /// One turn: what happened, then the samples, then their names.
    fn turn(&mut self) {
        self.follow();
        if std::mem::take(&mut self.maps_changed) || self.watch.is_none() {
            self.resolver.refresh_perf_maps();
        }
        self.drain();
        self.resolver.pump();
        self.kernel.flush_log();
    }

    /// Takes in what the kernel tells of processes. Returns true when mappings have changed.
    fn follow(&mut self) -> bool {
        let (targets, throttled) = (&self.targets, &mut self.throttle_records);
        let (mut mapped, mut executed, mut lost) = (Vec::new(), Vec::new(), false);
        self.events.drain(|event| match event {
            KernelEvent::Mapped(pid) if targets.contains(pid) && !mapped.contains(&pid) => {
                mapped.push(pid)
            }
            KernelEvent::Executed(pid) if targets.contains(pid) => executed.push(pid),
            KernelEvent::Mapped(_) | KernelEvent::Executed(_) => {}
            KernelEvent::RecordsLost(count) => {
                tracing::debug!("{count} mapping records lost: reading all mappings again");
                lost = true;
            }
            KernelEvent::Throttled => *throttled += 1,
        });
        if lost {
            mapped = self.targets.iter().map(|target| target.pid).collect();
        }
        for &pid in &executed {
            self.targets
                .executed(pid, &self.builder, &mut self.resolver);
        }
        for &pid in mapped.iter().filter(|pid| !executed.contains(pid)) {
            self.targets.remap(pid, &self.builder, &mut self.resolver);
        }
        !(mapped.is_empty() && executed.is_empty())
    }

    /// Moves the waiting samples through the stages.
    fn drain(&mut self) {
        let Self {
            ring,
            resolver,
            aggregator,
            first_sample,
            buffers,
            ..
        } = self;
        let Buffers {
            unwound,
            resolved,
            unfinished,
        } = buffers;
        ring.get_mut().drain(DRAIN_MAX, |sample| {
            first_sample.get_or_insert(sample.ktime);
            if let Some(walk) = UnfinishedWalk::of(sample) {
                unfinished.push(Box::new(walk));
                return;
            }
            merge(sample, unwound);
            resolver.resolve(unwound, resolved);
            aggregator.add(resolved);
        });
        if !self.buffers.unfinished.is_empty() {
            self.send_unfinished();
        }
        let finished: Vec<_> = self.builder.finished().collect();
        for stack in &finished {
            self.add_finished(stack);
        }
    }

    /// Hands walks that met new code to the table builder, after the mappings of that code.
    fn send_unfinished(&mut self) {
        if !self.follow() {
            // No record tells of it, or it came before the sample and has been dealt with: look once more.
            let mut pids: Vec<Pid> = self
                .buffers
                .unfinished
                .iter()
                .map(|walk| walk.stack.pid)
                .collect();
            pids.sort_unstable();
            pids.dedup();
            for pid in pids {
                self.targets.remap(pid, &self.builder, &mut self.resolver);
            }
        }
        for walk in std::mem::take(&mut self.buffers.unfinished) {
            if let Err(walk) = self.builder.finish_walk(walk) {
                // The queue is full: the stack counts as it is, and its end says why it is short.
                self.add_finished(&walk.stack);
            }
        }
    }

    fn add_finished(&mut self, stack: &UnwoundStack) {
        self.finished_in_user_space += u64::from(stack.end.is_complete());
        self.resolver.resolve(stack, &mut self.buffers.resolved);
        self.aggregator.add(&self.buffers.resolved);
    }

    fn slow_turn(&mut self) {
        if let Err(error) = self.events.follow_cpus() {
            tracing::warn!("cannot follow CPUs that go on- or offline: {error}");
        }
        self.targets.revisit(&self.builder, &mut self.resolver);
    }

    fn tell(&mut self, progress: &watch::Sender<Progress>, elapsed: Duration) {
        // The hottest function is looked for in all stacks: the more of them there are, the less often.
        if progress.receiver_count() == 0 || elapsed < self.tell_from {
            return;
        }
        let began = Instant::now();
        let lost = self
            .kernel
            .counters()
            .map_or(0, |counters| counters.ring_full)
            + self.aggregator.not_kept();
        progress.send_replace(Progress {
            elapsed,
            samples: self.aggregator.samples(),
            lost,
            hottest: self.aggregator.hottest_python(self.resolver.locations()),
        });
        self.tell_from = elapsed + TELL_REST * began.elapsed();
    }

    /// Stops sampling, works off what is waiting, and adds up.
    fn finish(
        mut self,
        settings: &RecordSettings,
        stop: StopReason,
        elapsed: Duration,
    ) -> Recording {
        self.events.stop();
        self.resolver.refresh_perf_maps();
        self.turn();
        let counters = self.kernel.counters().unwrap_or_default();
        let bpf = settings.bpf_stats.then(|| self.bpf_stats(&counters));
        let throttling = self.throttling(settings, &counters);
        let mut late = Vec::new();
        let built = self.builder.end(|stack| late.push(stack));
        tracing::debug!("{built:?}");
        for stack in &late {
            self.finished_in_user_space += u64::from(stack.end.is_complete());
            self.resolver.resolve(stack, &mut self.buffers.resolved);
            self.aggregator.add(&self.buffers.resolved);
        }
        let targets = self.targets.facts();
        let targets: Vec<_> = targets
            .into_iter()
            .map(|facts| TargetSummary {
                pid: facts.pid,
                command: facts.command,
                python: facts.python,
                cpu_time: facts.cpu_time,
                names: self.resolver.diagnosis(facts.pid),
            })
            .collect();
        let refusals = self.resolver.complaints();
        let mut profile = self.aggregator.finish(self.resolver.finish(NAMES_PATIENCE));
        profile.quality.ring_full = counters.ring_full;
        profile.quality.finished_in_user_space = self.finished_in_user_space;
        profile.process_names = targets
            .iter()
            .map(|target: &TargetSummary| (target.pid, target.command.clone()))
            .collect();
        let event = if self.events.is_hardware() {
            SampledEvent::Cycles
        } else {
            SampledEvent::CpuClock
        };
        let summary = Summary {
            targets,
            stop,
            elapsed,
            frequency: settings.frequency,
            event,
            throttling,
            refusals,
            bpf,
        };
        Recording { profile, summary }
    }

    fn bpf_stats(&self, counters: &Counters) -> BpfStats {
        let stats = self.kernel.program_stats().unwrap_or_default();
        BpfStats {
            runs: stats.runs,
            run_time_ns: stats.run_time_ns,
            frames: counters.frames,
            samples: counters.samples,
            stack_copies: counters.stack_copies,
            verified_instructions: stats.verified_instructions,
            first_sample: self.first_sample,
        }
    }

    /// Whether the kernel took fewer samples than it was asked for, judged by the CPU time that the targets used.
    fn throttling(&self, settings: &RecordSettings, counters: &Counters) -> Option<Throttling> {
        let cpu_time: Duration = self
            .targets
            .facts()
            .iter()
            .map(|facts| facts.cpu_time)
            .sum();
        let before = self.limits_before?;
        let after = RateLimits::read().ok()?;
        let effective_hz = (cpu_time >= RATE_KNOWN_AFTER)
            .then(|| counters.samples as f64 / cpu_time.as_secs_f64());
        let tolerance = if self.throttle_records > 0 {
            RATE_TOLERANCE_PAUSED
        } else {
            RATE_TOLERANCE
        };
        let slower =
            effective_hz.is_some_and(|hz| hz < f64::from(settings.frequency.0) * (1.0 - tolerance));
        let lowered = after.max_sample_rate < before.max_sample_rate;
        (slower || lowered).then_some(Throttling {
            throttle_records: self.throttle_records,
            max_sample_rate_before: before.max_sample_rate,
            max_sample_rate_after: after.max_sample_rate,
            effective_hz,
        })
    }
}

impl Buffers {
    const fn new() -> Self {
        Self {
            unwound: UnwoundStack::empty(),
            resolved: ResolvedStack {
                ktime: KtimeNs(0),
                pid: Pid(0),
                tid: Tid(0),
                thread_name: ThreadName([0; 16]),
                in_kernel: false,
                guessed: false,
                end: StackEnd::NoUserRegisters,
                locations: Vec::new(),
            },
            unfinished: Vec::new(),
        }
    }
}

/// Watches the directories of all targets' perf maps; `None`: they are looked at on a timer.
fn watch_maps(targets: &Targets) -> Option<PerfMapWatch> {
    let mut watch = PerfMapWatch::new()
        .inspect_err(|error| tracing::debug!("perf maps are looked at on a timer: {error}"))
        .ok()?;
    for directory in targets.perf_map_directories() {
        if let Err(error) = watch.add(&directory) {
            tracing::debug!("perf maps are looked at on a timer: {error}");
            return None;
        }
    }
    Some(watch)
}
