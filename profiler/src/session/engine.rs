//! The recording itself: waits for what happens, and moves values from stage to stage.
//!
//! Samples are drained on a timer and when the ring buffer fills up; everything else is done in the same turn, in the
//! order in which the stages stand. Only three things run beside it: the thread that makes unwind tables, the
//! symbolizer's thread, and the kernel.

use std::{
    future::pending,
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    task::yield_now,
    time::{MissedTickBehavior, interval},
};

use super::{
    Progress, RecordSettings, Recording, SessionError, StopReason, stages::Stages, stop::Stop,
};
use crate::{
    kernel::{
        Features, Following, KernelEvent, KernelSide, MapSizes, RateLimits, RingRecord, SampleRing,
        SamplingEvents,
    },
    model::{KtimeNs, Pid, ResolvedStack, UnwoundStack},
    process::{Children, launch::HELPER_NAME, thread_time},
    profile::{Aggregator, Granularity},
    registry::{PythonFrom, Registry, ThisHost},
    symbols::{
        Resolver, SymbolProcess,
        perf_map::{ChangedMaps, PerfMapWatch},
    },
    unwind::{TableBuilder, UnfinishedWalk, UnwindTables, merge},
};

/// Samples are drained at least this often.
const TURN: Duration = Duration::from_millis(100);
/// The same while a process is in its first moments: what is mapped in it can be read as long as it lives.
const TURN_OF_YOUNG: Duration = Duration::from_millis(10);
/// The same while a Python is starting: its first frames are read as soon as there are some.
const TURN_OF_STARTING: Duration = Duration::from_millis(2);
/// Records drained in one go, before anything else gets its turn.
const DRAIN_MAX: usize = 16_384;
/// The same in time: how long a record takes is up to the target.
const DRAIN_TIME: Duration = Duration::from_millis(50);
/// Records that are drained between two looks at the clock.
const DRAIN_STEP: usize = 8;
/// Unfinished walks that wait for a turn, up to 40 KiB each: no more records are drained before they were sent on.
const UNFINISHED_MAX: usize = 256;
/// The status line, CPUs that come and go, and processes that are still starting are looked at every so many turns.
const SLOW_TURNS: u32 = 5;
/// Longest time for reading large perf maps before sampling begins.
const MAPS_PATIENCE: Duration = Duration::from_secs(2);
/// After telling how far it is, the session rests from that for so many times as long as it took.
const TELL_REST: u32 = 200;
/// Sampling begins when the targets' unwind tables are made, or after this: then the first stacks are finished later,
/// from a copy of 16 KiB, and those that are deeper are cut short. Tables of Python alone take some 20 ms, with numpy
/// 150 ms; longer on a busy machine.
const TABLES_PATIENCE: Duration = Duration::from_secs(1);

/// Samples the targets until `stop` is asked for, the end of the duration, or the exit of the last of them.
pub(super) async fn record_until(
    settings: &RecordSettings,
    symbols: SymbolProcess,
    stop: &Stop,
    progress: &watch::Sender<Progress>,
) -> Result<Recording, SessionError> {
    let mut session = Session::begin(settings, symbols, stop)?;
    let began = Instant::now();
    stop.sampling_began(began, settings.duration);
    progress.send_replace(Progress::default());
    let mut exits = session.exits()?;
    let mut turns = interval(TURN);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turns_of_young = interval(TURN_OF_YOUNG);
    turns_of_young.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turns_of_starting = interval(TURN_OF_STARTING);
    turns_of_starting.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turn = 0;
    let reason = loop {
        // Looked at in each round, whatever else there is to do.
        if let Some(reason) = stop.due(Instant::now()) {
            break reason;
        }
        tokio::select! {
            () = stop.wait() => {}
            () = any_exit(&mut exits) => {
                if session.registry.all_exited() {
                    break StopReason::TargetExited;
                }
            }
            changed = changed(&mut session.watch) => session.perf_maps_changed(changed),
            () = filled(&session.ring) => session.take_samples(),
            () = yield_now(), if session.has_more => { session.turn(); }
            _ = turns_of_young.tick(), if session.has_young => { session.turn(); }
            _ = turns_of_starting.tick(), if session.is_python_starting => { session.turn(); }
            _ = turns.tick() => {
                session.turn();
                turn += 1;
                if turn % SLOW_TURNS == 0 {
                    session.slow_turn();
                    session.tell(progress, began.elapsed(), settings.granularity);
                }
            }
        }
    };
    let elapsed = began.elapsed();
    Ok(session.finish(settings, reason, elapsed))
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

/// Waits until perf maps have changed; for ever where that cannot be known. A missed notification is harmless: a failed
/// lookup re-reads the map. Watching only bounds how much it must read.
async fn changed(watch: &mut Option<PerfMapWatch>) -> ChangedMaps {
    let changed = match watch {
        Some(watch) => watch.next().await,
        None => return pending().await,
    };
    changed.unwrap_or_else(|error| {
        tracing::debug!("perf maps are looked at on a timer: {error}");
        *watch = None;
        ChangedMaps::Any
    })
}

/// Watches the directories of the perf maps of all processes; `None`: the maps are looked at on a timer.
fn watch_perf_maps(registry: &Registry) -> Option<PerfMapWatch> {
    let mut watch = PerfMapWatch::new();
    for directory in registry.perf_map_directories() {
        watch = watch.and_then(|mut watch| watch.add(&directory).map(|()| watch));
    }
    watch
        .inspect_err(|error| tracing::debug!("perf maps are looked at on a timer: {error}"))
        .ok()
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
#[expect(
    clippy::struct_excessive_bools,
    reason = "they do not depend on one another"
)]
pub(super) struct Session {
    pub(super) registry: Registry,
    pub(super) kernel: KernelSide,
    pub(super) events: SamplingEvents,
    pub(super) ring: AsyncFd<SampleRing>,
    pub(super) builder: TableBuilder,
    pub(super) resolver: Resolver,
    pub(super) aggregator: Aggregator,
    pub(super) watch: Option<PerfMapWatch>,
    /// Pids of perf maps that changed and were not read to their ends yet, as the processes see them.
    changed_maps: Vec<u32>,
    /// Any perf map may have changed.
    any_map_changed: bool,
    /// A process is in its first moments.
    has_young: bool,
    /// It is a Python whose frames are not read yet.
    is_python_starting: bool,
    /// The last turn has left records in the ring.
    has_more: bool,
    /// Events of processes that were lost so far.
    events_lost: u64,
    /// Threads whose state the kernel side could not remember so far.
    threads_refused: u64,
    /// Samples of processes that were not examined yet.
    pub(super) unexamined_samples: u64,
    /// Children of targets are targets.
    pub(super) following: Following,
    pub(super) limits_before: Option<RateLimits>,
    pub(super) throttle_records: u64,
    pub(super) finished_in_user_space: u64,
    pub(super) first_sample: Option<KtimeNs>,
    tell_from: Duration,
    /// A target is a command of ours that waits for its beginning.
    pub(super) launched: bool,
    pub(super) children: Children,
    /// How long samples had to wait for a turn to end, at most.
    pub(super) longest_turn: Duration,
    /// The same in CPU time.
    pub(super) longest_turn_cpu: Duration,
    pub(super) buffers: Buffers,
}

/// One of each, used for all samples.
pub(super) struct Buffers {
    pub(super) unwound: UnwoundStack,
    pub(super) resolved: ResolvedStack,
    pub(super) unfinished: Vec<UnfinishedWalk>,
}

impl Session {
    /// Sets up all stages, from the last to the first, so that each finds the next one ready.
    /// Where `stop` is asked for meanwhile, sampling begins and ends at once.
    fn begin(
        settings: &RecordSettings,
        symbols: SymbolProcess,
        stop: &Stop,
    ) -> Result<Self, SessionError> {
        let following = Following {
            // Children of those that are selected by what they are belong as well, or are left out when they run
            // something else.
            forks: settings.subprocesses || settings.selector.is_open(),
            all_execs: settings.selector.is_open(),
        };
        let mut registry = Registry::select(
            Arc::new(ThisHost),
            &settings.selector,
            settings.subprocesses,
            settings.python_from,
        )?;
        let features = Features::detect().map_err(SessionError::system("looking at the kernel"))?;
        let sizes = MapSizes {
            ring_bytes: settings.ring_bytes,
            ..MapSizes::for_targets(registry.count(), registry.text_bytes(), following)
        };
        let mut kernel = KernelSide::load(&features, sizes, settings.kernel_stacks, following)?;
        if settings.bpf_stats {
            kernel.enable_stats()?;
        }
        let tables = UnwindTables::new(kernel.take_unwind_maps()?);
        let builder =
            TableBuilder::start(tables).map_err(SessionError::system("starting a thread"))?;
        let mut resolver =
            Resolver::start(symbols).map_err(SessionError::system("starting a thread"))?;
        if settings.cross_check {
            resolver.check_against_perf_maps();
        }
        let mut stages = Stages {
            builder: &builder,
            resolver: &mut resolver,
        };
        let may_go_on = || !stop.is_due();
        registry.introduce(kernel.follows(), &may_go_on, &mut stages);
        if settings.python_from == PythonFrom::Interpreter {
            registry.demand_interpreters()?;
        }
        let begun = Instant::now();
        resolver.read_perf_maps(|| may_go_on() && begun.elapsed() < MAPS_PATIENCE);
        builder.settle(TABLES_PATIENCE, may_go_on);
        let ring = readable(kernel.take_ring()?)
            .map_err(SessionError::system("watching the sample buffer"))?;
        let limits_before = RateLimits::read().ok();
        let launched = registry.has_own_image();
        let events = kernel.attach(settings.frequency)?;
        registry.begin_counting();
        if let Some((pid, halt, others)) = registry.halted() {
            let more = if others > 0 {
                format!(" ({others} more)")
            } else {
                String::new()
            };
            tracing::warn!(
                "pid {pid} is {halt}{more}; what does not run is not sampled: {}",
                halt.remedy(pid)
            );
        }
        let watch = watch_perf_maps(&registry);
        Ok(Self {
            registry,
            kernel,
            events,
            ring,
            builder,
            resolver,
            aggregator: Aggregator::new(settings.threads),
            watch,
            changed_maps: Vec::new(),
            any_map_changed: false,
            has_young: false,
            is_python_starting: false,
            has_more: false,
            events_lost: 0,
            threads_refused: 0,
            unexamined_samples: 0,
            following,
            limits_before,
            throttle_records: 0,
            finished_in_user_space: 0,
            first_sample: None,
            tell_from: Duration::ZERO,
            launched,
            children: Children::default(),
            longest_turn: Duration::ZERO,
            longest_turn_cpu: Duration::ZERO,
            buffers: Buffers::new(),
        })
    }

    fn exits(&self) -> Result<Vec<AsyncFd<OwnedFd>>, SessionError> {
        self.registry
            .exits()
            .map(|exited| readable(exited?))
            .collect::<Result<_, _>>()
            .map_err(SessionError::system("waiting for the target's exit"))
    }

    fn perf_maps_changed(&mut self, changed: ChangedMaps) {
        match changed {
            ChangedMaps::These(pids) => self.changed_maps.extend(pids),
            ChangedMaps::Any => self.any_map_changed = true,
        }
    }

    /// One turn: what happened and the samples in between, what is new of processes, then names. Returns true when
    /// records are left for another one.
    pub(super) fn turn(&mut self) -> bool {
        let (began, begun) = (Instant::now(), thread_time());
        self.registry.note_cpu_time();
        let more = self.drain();
        self.follow();
        if !self.buffers.unfinished.is_empty() {
            self.send_unfinished();
        }
        let finished: Vec<_> = self.builder.finished().collect();
        for stack in &finished {
            self.add_finished(stack);
        }
        let (registry, mut stages) = self.registry_and_stages();
        registry.catch_up(&mut stages);
        let changed = std::mem::take(&mut self.changed_maps);
        if self.watch.is_none() || std::mem::take(&mut self.any_map_changed) {
            self.any_map_changed = self.resolver.refresh_perf_maps(None);
        } else if !changed.is_empty() && self.resolver.refresh_perf_maps(Some(&changed)) {
            self.changed_maps = changed;
        }
        self.has_young = self.has_young && self.registry.is_any_young();
        self.is_python_starting = self.has_young && self.registry.is_python_starting();
        self.resolver.pump();
        self.kernel.flush_log();
        self.longest_turn = self.longest_turn.max(began.elapsed());
        self.longest_turn_cpu = self
            .longest_turn_cpu
            .max(thread_time().saturating_sub(begun));
        self.has_more = more;
        more
    }

    /// The ring is filling up, or has samples of code that must be read before it is gone. What else there is to do can
    /// wait for its turn, unless there is much of it.
    fn take_samples(&mut self) {
        if self.drain() {
            self.turn();
        }
    }

    fn registry_and_stages(&mut self) -> (&mut Registry, Stages<'_>) {
        let stages = Stages {
            builder: &self.builder,
            resolver: &mut self.resolver,
        };
        (&mut self.registry, stages)
    }

    /// Looks which Pythons the targets have started that are not recorded, which the report must say.
    fn look_for_children(&mut self) {
        if self.following.forks {
            return;
        }
        for pid in self.registry.roots() {
            self.children.look(pid);
        }
    }

    /// Takes in the kernel's records of mappings. Returns true when there were any of targets.
    fn follow(&mut self) -> bool {
        let follows = self.kernel.follows();
        let (registry, throttled) = (&self.registry, &mut self.throttle_records);
        let (mut mapped, mut executed) = (Vec::new(), Vec::new());
        let (mut started, mut lost) = (false, false);
        let is_wanted = |pid| registry.contains(pid);
        self.events.drain(is_wanted, |event| match event {
            KernelEvent::Mapped(pid) if !mapped.contains(&pid) => {
                mapped.push(pid);
            }
            // Where the ring has an event of it, that came in the right order.
            KernelEvent::Executed(pid) if registry.contains(pid) && !follows => {
                if !executed.contains(&pid) {
                    executed.push(pid);
                }
            }
            KernelEvent::Executed(_) => started = true,
            KernelEvent::Mapped(_) => {}
            KernelEvent::RecordsLost(count) => {
                tracing::debug!("{count} mapping records lost: reading all mappings again");
                lost = true;
            }
            KernelEvent::Throttled => *throttled += 1,
        });
        let (registry, mut stages) = self.registry_and_stages();
        for &pid in &executed {
            registry.executed_without_event(pid, &mut stages);
        }
        for &pid in mapped.iter().filter(|pid| !executed.contains(pid)) {
            registry.mapped(pid, &mut stages);
        }
        if lost {
            registry.all_mapped(&mut stages);
        }
        if started {
            self.look_for_children();
        }
        lost || !(mapped.is_empty() && executed.is_empty())
    }

    /// Moves what is waiting in the ring through the stages, but not more than a turn may take. Returns true when some
    /// is left.
    fn drain(&mut self) -> bool {
        let Self {
            registry,
            builder,
            ring,
            resolver,
            aggregator,
            first_sample,
            buffers,
            launched,
            has_young,
            unexamined_samples,
            ..
        } = self;
        let Buffers {
            unwound,
            resolved,
            unfinished,
        } = buffers;
        let mut stages = Stages { builder, resolver };
        let began = Instant::now();
        let mut take = |record: RingRecord<'_>, unfinished: &mut Vec<UnfinishedWalk>| {
            let sample = match record {
                RingRecord::Sample(sample) => sample,
                RingRecord::Process(event) => {
                    *has_young |= registry.process_event(&event, &mut stages);
                    return;
                }
            };
            if *launched && sample.thread_name.as_bytes() == HELPER_NAME.to_bytes() {
                // The command has not begun yet.
                return;
            }
            first_sample.get_or_insert(sample.ktime);
            let Some(image) = registry.program_of_sample(sample.pid, &mut stages) else {
                // It runs something else by now than what was asked for.
                return;
            };
            *unexamined_samples += u64::from(registry.is_unexamined(sample.pid));
            let depends_on_greenlets = sample.python_is_counted || sample.python_is_unconfirmed;
            let has_greenlets = depends_on_greenlets && registry.has_greenlets(sample.pid);
            if let Some(walk) = UnfinishedWalk::of(&sample, image, has_greenlets) {
                stages.resolver.meet(image, walk.python_frames());
                unfinished.push(walk);
                return;
            }
            merge(&sample, image, has_greenlets, unwound);
            stages.resolver.resolve(unwound, resolved);
            aggregator.add(resolved);
        };
        let mut drained = 0;
        ring.get_mut().drain(|record| {
            take(record, unfinished);
            drained += 1;
            let may_go_on = drained % DRAIN_STEP != 0 || began.elapsed() < DRAIN_TIME;
            may_go_on && drained < DRAIN_MAX && unfinished.len() < UNFINISHED_MAX
        })
    }

    /// Counts the samples that are left in the ring, for which there is no time any more.
    pub(super) fn discard(&mut self) -> u64 {
        let mut discarded = 0;
        self.ring.get_mut().drain(|record| {
            discarded += u64::from(matches!(record, RingRecord::Sample(_)));
            true
        });
        discarded
    }

    /// Hands walks that met new code to the table builder, after the mappings of that code.
    fn send_unfinished(&mut self) {
        // Whether records told of it or not, and even if they came before the sample: what is there now is looked at.
        let walks = self.buffers.unfinished.iter();
        let mut pids: Vec<Pid> = walks.map(|walk| walk.stack.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let (registry, mut stages) = self.registry_and_stages();
        for pid in pids {
            registry.mapped(pid, &mut stages);
        }
        for walk in std::mem::take(&mut self.buffers.unfinished) {
            if let Err(walk) = self.builder.finish_walk(Box::new(walk)) {
                // The queue is full: the stack counts as it is, and its end says why it is short.
                self.add_finished(&walk.into_stack());
            }
        }
    }

    pub(super) fn add_finished(&mut self, stack: &UnwoundStack) {
        self.finished_in_user_space += u64::from(stack.end.is_complete());
        self.resolver.resolve(stack, &mut self.buffers.resolved);
        self.aggregator.add(&self.buffers.resolved);
    }

    fn slow_turn(&mut self) {
        if let Err(error) = self.events.follow_cpus() {
            tracing::warn!("cannot follow CPUs that go on- or offline: {error}");
        }
        let counters = self.kernel.counters().unwrap_or_default();
        let lost = counters.events_lost;
        let lost_before = std::mem::replace(&mut self.events_lost, lost);
        let refused = std::mem::replace(&mut self.threads_refused, counters.threads_full);
        if counters.threads_full > refused {
            self.builder.forget_threads();
        }
        let (registry, mut stages) = self.registry_and_stages();
        if lost > lost_before {
            registry.find_changes(&mut stages);
        }
        registry.revisit(&mut stages);
        registry.read_titles(false);
        self.look_for_children();
    }

    fn tell(
        &mut self,
        progress: &watch::Sender<Progress>,
        elapsed: Duration,
        granularity: Granularity,
    ) {
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
            hottest: self
                .aggregator
                .hottest_python(self.resolver.locations(), granularity),
        });
        self.tell_from = elapsed + TELL_REST * began.elapsed();
    }
}

impl Buffers {
    const fn new() -> Self {
        Self {
            unwound: UnwoundStack::empty(),
            resolved: ResolvedStack::empty(),
            unfinished: Vec::new(),
        }
    }
}
