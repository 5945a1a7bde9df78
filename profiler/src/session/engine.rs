//! The stages of a recording, put together: what comes from the kernel goes through them, tick by tick.
//!
//! Whoever uses the engine calls [`Engine::tick`] at intervals, and ends a window by [`Engine::cut`] as often as it likes;
//! sampling goes on. Only three things run beside it: the thread that makes unwind tables, the symbolizer's thread, and the
//! kernel.

use std::{
    io,
    os::fd::OwnedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    RecordSettings, SessionError,
    stages::Stages,
    window::{OpenWindow, Totals},
};
use crate::{
    kernel::{
        Features, Following, KernelEvent, KernelSide, MapSizes, RingRecord, SampleRing,
        SamplingEvents,
    },
    model::{KtimeNs, Pid, ResolvedStack, UnwoundStack},
    process::{Children, launch::HELPER_NAME, now_monotonic, thread_time},
    profile::Granularity,
    registry::{PythonFrom, Registry, ThisHost},
    symbols::{
        Resolver, SymbolProcess,
        perf_map::{ChangedMaps, PerfMapWatch},
    },
    unwind::{TableBuilder, UnfinishedWalk, UnwindTables, merge},
};

/// Records drained in one go, before anything else is done.
const DRAIN_MAX: usize = 16_384;
/// The same in time: how long a record takes is up to the target.
const DRAIN_TIME: Duration = Duration::from_millis(50);
/// Records that are drained between two looks at the clock.
const DRAIN_STEP: usize = 8;
/// Unfinished walks that wait for the next tick, up to 40 KiB each: no more records are drained before they were sent on.
const UNFINISHED_MAX: usize = 256;
/// Longest time for reading large perf maps before sampling begins.
const MAPS_TIMEOUT: Duration = Duration::from_secs(2);
/// Sampling begins when the targets' unwind tables are made, or after this: then the first stacks are finished later,
/// from a copy of 16 KiB, and those that are deeper are cut short. Tables of Python alone take some 20 ms, with numpy
/// 150 ms; longer on a busy machine.
const TABLES_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest wait, before sampling begins, for interpreters whose frames could not be read yet: in programs that do little
/// but call, up to 5 % of all examinations meet them in the middle of a call.
const INTERPRETERS_TIMEOUT: Duration = Duration::from_millis(50);
/// The same where such an interpreter means that there is no recording.
const INTERPRETERS_TIMEOUT_IF_DEMANDED: Duration = Duration::from_secs(1);
/// Time between two examinations of such an interpreter.
const EXAMINE_AGAIN: Duration = Duration::from_millis(2);

/// Samples the targets, from [`start`](Self::start) to [`stop`](Self::stop).
#[expect(
    clippy::struct_excessive_bools,
    reason = "they do not depend on one another"
)]
pub struct Engine {
    pub(super) settings: RecordSettings,
    pub(super) registry: Registry,
    pub(super) kernel: KernelSide,
    pub(super) events: SamplingEvents,
    pub(super) ring: SampleRing,
    pub(super) builder: TableBuilder,
    pub(super) resolver: Resolver,
    /// What samples are counted in.
    pub(super) window: OpenWindow,
    /// The window before it, while it is being ended.
    pub(super) ending: Option<OpenWindow>,
    /// Changes of perf maps are reported ([`perf_maps_changed`](Self::perf_maps_changed)).
    is_watched: bool,
    /// Pids of perf maps that changed and were not read to their ends yet, as the processes see them.
    changed_maps: Vec<u32>,
    /// Any perf map may have changed.
    any_map_changed: bool,
    /// A process is in its first moments.
    has_young: bool,
    /// It is a Python whose frames are not read yet.
    is_python_starting: bool,
    /// The last tick has left records in the ring.
    has_more: bool,
    /// The last tick has got walks that were finished in user space: more of them may follow.
    has_finished: bool,
    /// Events of processes that were lost so far.
    events_lost: u64,
    /// Threads whose state the BPF program could not remember so far.
    threads_refused: u64,
    /// Children of targets are targets.
    pub(super) following: Following,
    /// A target is a command of ours that waits for its beginning.
    launched: bool,
    pub(super) children: Children,
    buffers: Buffers,
}

/// One of each, used for all samples.
struct Buffers {
    unwound: UnwoundStack,
    resolved: ResolvedStack,
    unfinished: Vec<UnfinishedWalk>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// Sets up all stages, from the last to the first, so that each finds the next one ready, and begins to sample.
    ///
    /// `symbols` is where symbols are parsed. Takes some 100 ms, where the targets have large perf maps or many libraries up
    /// to 4 s; once `may_go_on` says no, the rest of that is left out. Needs the privileges that
    /// [`crate::privilege`] checks for.
    pub fn start(
        settings: RecordSettings,
        symbols: SymbolProcess,
        may_go_on: &dyn Fn() -> bool,
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
        registry.introduce(kernel.follows(), may_go_on, &mut stages);
        let are_demanded = settings.python_from == PythonFrom::Interpreter;
        let timeout = if are_demanded {
            INTERPRETERS_TIMEOUT_IF_DEMANDED
        } else {
            INTERPRETERS_TIMEOUT
        };
        let begun = Instant::now();
        while registry.has_unread_interpreter() && begun.elapsed() < timeout && may_go_on() {
            thread::sleep(EXAMINE_AGAIN);
            registry.catch_up(&mut stages);
        }
        if are_demanded {
            registry.demand_interpreters()?;
        }
        let begun = Instant::now();
        resolver.read_perf_maps(|| may_go_on() && begun.elapsed() < MAPS_TIMEOUT);
        builder.settle(TABLES_TIMEOUT, may_go_on);
        let ring = kernel.take_ring()?;
        let launched = registry.has_own_image();
        let (begin, totals) = (now_monotonic(), Totals::at_start());
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
        let window = OpenWindow::new(begin, settings.threads, &totals);
        Ok(Self {
            settings,
            registry,
            kernel,
            events,
            ring,
            builder,
            resolver,
            window,
            ending: None,
            is_watched: false,
            changed_maps: Vec::new(),
            any_map_changed: false,
            has_young: false,
            is_python_starting: false,
            has_more: false,
            has_finished: false,
            events_lost: 0,
            threads_refused: 0,
            following,
            launched,
            children: Children::default(),
            buffers: Buffers::new(),
        })
    }

    /// Nothing but samples is waiting: the next tick has time.
    pub fn is_quiet(&self) -> bool {
        self.is_watched
            && !self.any_map_changed
            && self.changed_maps.is_empty()
            && !self.has_finished
            && self.buffers.unfinished.is_empty()
            && !self.registry.is_any_stale()
    }

    /// A descriptor that becomes readable when many samples are waiting, or some that should not wait: then
    /// [`take_samples`](Self::take_samples) is to be called.
    pub fn filled(&self) -> Result<OwnedFd, SessionError> {
        self.ring
            .descriptor()
            .map_err(SessionError::system("watching the sample buffer"))
    }

    /// Descriptors that become readable when the processes that were asked for exit.
    pub fn exits(&self) -> Result<Vec<OwnedFd>, SessionError> {
        self.registry
            .exits()
            .collect::<io::Result<_>>()
            .map_err(SessionError::system("waiting for the target's exit"))
    }

    /// All processes that were asked for have exited.
    pub fn all_exited(&self) -> bool {
        self.registry.all_exited()
    }

    /// Watches the directories of the perf maps of all processes, for [`perf_maps_changed`](Self::perf_maps_changed);
    /// `None`: the maps are looked at in each tick.
    pub(super) fn watch_perf_maps(&mut self) -> Option<PerfMapWatch> {
        let mut watch = PerfMapWatch::new();
        for directory in self.registry.perf_map_directories() {
            watch = watch.and_then(|mut watch| watch.add(&directory).map(|()| watch));
        }
        let watch = watch
            .inspect_err(|error| tracing::debug!("perf maps are looked at on a timer: {error}"))
            .ok();
        self.is_watched = watch.is_some();
        watch
    }

    /// No more changes of perf maps will be reported.
    pub(super) fn perf_maps_are_not_watched(&mut self) {
        self.is_watched = false;
    }

    /// The next tick should follow at once: records are left in the ring.
    pub const fn has_more(&self) -> bool {
        self.has_more
    }

    /// A process is in its first moments: ticks should follow one another at a few milliseconds, as what is mapped in it
    /// can only be read as long as it lives.
    pub const fn has_young(&self) -> bool {
        self.has_young
    }

    /// A Python is starting: ticks should follow one another as closely as possible, as its first frames are read as soon as
    /// there are some.
    pub const fn is_python_starting(&self) -> bool {
        self.is_python_starting
    }

    /// Samples counted in this window so far, and samples lost in it.
    pub fn samples(&self) -> (u64, u64) {
        let counters = self.kernel.counters().unwrap_or_default();
        let counters = counters.since(&self.window.before.counters);
        let aggregator = &self.window.aggregator;
        let lost = counters.ring_full + aggregator.not_kept();
        (aggregator.samples(), lost)
    }

    /// As [`Profile::hottest_python`](crate::profile::Profile::hottest_python), of this window so far. Looks at every
    /// distinct stack.
    pub fn hottest_python(&self, granularity: Granularity) -> Option<(String, f64)> {
        self.window
            .aggregator
            .hottest_python(self.resolver.locations(), granularity)
    }

    /// Perf maps were written to.
    pub(super) fn perf_maps_changed(&mut self, changed: ChangedMaps) {
        match changed {
            ChangedMaps::These(pids) => self.changed_maps.extend(pids),
            ChangedMaps::Any => self.any_map_changed = true,
        }
    }

    /// Takes in what happened and the samples in between, then what is new of processes, then names. To be called about ten
    /// times a second, and four times while the engine is [quiet](Self::is_quiet). Returns true when records are left for another tick.
    pub fn tick(&mut self) -> bool {
        let (began, begun) = (Instant::now(), thread_time());
        let more = self.drain();
        self.follow();
        if !self.buffers.unfinished.is_empty() {
            self.send_unfinished();
        }
        let finished: Vec<_> = self.builder.finished().collect();
        for stack in &finished {
            self.add_finished(stack);
        }
        self.has_finished = !finished.is_empty();
        let (registry, mut stages) = self.registry_and_stages();
        registry.catch_up(&mut stages);
        let changed = std::mem::take(&mut self.changed_maps);
        if !self.is_watched || std::mem::take(&mut self.any_map_changed) {
            self.any_map_changed = self.resolver.refresh_perf_maps(None);
        } else if !changed.is_empty() && self.resolver.refresh_perf_maps(Some(&changed)) {
            self.changed_maps = changed;
        }
        self.has_young = self.has_young && self.registry.is_any_young();
        self.is_python_starting = self.has_young && self.registry.is_python_starting();
        self.resolver.pump();
        self.kernel.flush_log();
        let cpu_time = thread_time().saturating_sub(begun);
        self.window.ticked(began.elapsed(), cpu_time);
        self.has_more = more;
        more
    }

    /// The ring is filling up, or has samples of code that must be read before it is gone. What else there is to do waits for
    /// the next tick, unless there are more samples than can be drained at once.
    pub fn take_samples(&mut self) {
        if self.drain() {
            self.tick();
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

    /// Takes in the kernel's records of mappings.
    fn follow(&mut self) {
        let follows = self.kernel.follows();
        let (registry, throttled) = (&self.registry, &mut self.window.throttle_records);
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
    }

    /// Moves what is waiting in the ring through the stages, but not more than a tick may take. Returns true when some
    /// is left.
    fn drain(&mut self) -> bool {
        let Self {
            registry,
            builder,
            ring,
            resolver,
            window,
            ending,
            buffers,
            launched,
            has_young,
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
            let window = window_at(sample.ktime, window, ending);
            window.first_sample.get_or_insert(sample.ktime);
            let Some(image) = registry.program_of_sample(sample.pid, &mut stages) else {
                // It runs something else by now than what was asked for.
                return;
            };
            window.unexamined_samples += u64::from(registry.is_unexamined(sample.pid));
            let depends_on_greenlets = sample.python_is_counted || sample.python_is_unconfirmed;
            let has_greenlets = depends_on_greenlets && registry.has_greenlets(sample.pid);
            if let Some(walk) = UnfinishedWalk::of(&sample, image, has_greenlets) {
                stages.resolver.meet(image, walk.python_frames());
                unfinished.push(walk);
                return;
            }
            merge(&sample, image, has_greenlets, unwound);
            stages.resolver.resolve(unwound, resolved);
            window.aggregator.add(resolved);
        };
        let mut drained = 0;
        ring.drain(|record| {
            take(record, unfinished);
            drained += 1;
            let may_go_on = drained % DRAIN_STEP != 0 || began.elapsed() < DRAIN_TIME;
            may_go_on && drained < DRAIN_MAX && unfinished.len() < UNFINISHED_MAX
        })
    }

    /// Counts the samples that are left in the ring, for which there is no time any more.
    pub(super) fn discard(&mut self) -> u64 {
        let mut discarded = 0;
        self.ring.drain(|record| {
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
            window_at(walk.stack.ktime, &mut self.window, &mut self.ending).walks += 1;
            if let Err(walk) = self.builder.finish_walk(Box::new(walk)) {
                // The queue is full: the stack counts as it is, and its end says why it is short.
                self.add_finished(&walk.into_stack());
            }
        }
    }

    pub(super) fn add_finished(&mut self, stack: &UnwoundStack) {
        self.resolver.resolve(stack, &mut self.buffers.resolved);
        let window = window_at(stack.ktime, &mut self.window, &mut self.ending);
        window.add_finished(stack, &self.buffers.resolved);
    }

    /// Looks at what no event reports: CPUs that come and go, and processes that are still starting. To be called about twice
    /// a second.
    pub fn slow_tick(&mut self) {
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
        registry.note_cpu_time();
        if lost > lost_before {
            registry.find_changes(&mut stages);
        }
        registry.revisit(&mut stages);
        registry.read_titles(false);
        self.look_for_children();
    }
}

/// The window that a sample of that time is counted in: what comes after its own window has ended is counted in the one
/// that is open.
fn window_at<'w>(
    ktime: KtimeNs,
    open: &'w mut OpenWindow,
    ending: &'w mut Option<OpenWindow>,
) -> &'w mut OpenWindow {
    match ending {
        Some(ending) if ending.is_its_time(ktime) => ending,
        _ => open,
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
