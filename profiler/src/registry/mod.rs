//! Which processes are recorded, and what is known about each.
//!
//! * **Job:** follows processes from their beginning to their end, and finds out what they run.
//! * **Gets** a [`Selector`], events of processes from the kernel, and the facts that a [`Host`] reads.
//! * **Gives** [`ProgramEvent`]s, in order, to whatever implements [`Emit`]; at the end, a summary of each program.
//! * **Must not know** how stacks are unwound and named.
//!
//! Some processes were asked for (*roots*), others are their children. The BPF program makes a child a target before it
//! runs, and sends an event; the registry only remembers that event until there is a sample of the child, it maps a file,
//! or its parent is retired. So a process that exits without a sample costs next to nothing.
//!
//! A *program* is what a process runs between two calls of `exec`. It is *tracked* while its process runs it, *ended*
//! while samples of it may be on their way, and then *retired*.

mod children;
mod cut;
mod ended;
mod host;
mod interpreter;
mod queries;
mod selecting;
mod summary;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tracked;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;

pub use host::{Host, ThisHost};
pub use interpreter::Examination;
pub use selecting::RegistryError;
pub use summary::{PythonFrom, PythonSource, Summaries, TargetSummary, Unsampled};

use self::{
    children::{Child, UnsampledChildren},
    ended::{Ended, EndedKind, EndedPrograms},
    tracked::{Means, Stale, Tracked},
};
use crate::{
    model::{ImageId, Pid, ProcessChange, ProcessEvent},
    process::{
        ForkedChild, Pace, ProgramChange, ProgramEvent, Search, Selector,
        interpreter::PatientReader,
    },
    symbols::ProgramFacts,
};

/// Titles of processes are read at this interval: some twenty microseconds for each.
const TITLES_AGAIN: Duration = Duration::from_secs(2);
/// A program cannot have written to its perf map so soon after it was loaded: an interpreter takes longer to start.
const FRESH_FOR: Duration = Duration::from_millis(10);
/// Processes that are selected without having run a program since the recording began are looked for at this interval.
const SELECT_AGAIN: Duration = Duration::from_secs(2);

/// Takes the events of the registry.
pub trait Emit {
    /// Takes an event. False: not all of the mappings in it could be taken; they are to be sent again.
    fn emit(&mut self, event: &ProgramEvent<'_>) -> bool;

    /// How many of the `wanted` mappings of a program there is room for.
    fn room_for_mappings(&mut self, image: ImageId, wanted: usize) -> usize;

    /// What was found out so far about a program that goes on.
    fn facts(&self, image: ImageId) -> Option<ProgramFacts>;

    /// What was found out about a program, after it was retired.
    fn take_retired(&mut self, image: ImageId) -> Option<ProgramFacts>;

    /// Waits until the BPF program knows all events so far, for a second at most.
    fn wait_until_taken(&mut self);
}

/// All processes of a recording.
#[derive(Debug)]
pub struct Registry {
    host: Arc<dyn Host>,
    selector: Selector,
    python_from: PythonFrom,
    trees: bool,
    /// Processes that are selected, and that we may not look into.
    refused: u64,
    tracked: FxHashMap<Pid, Tracked>,
    children: UnsampledChildren,
    ended: EndedPrograms,
    /// Processes that were asked for, and the handle by which their exit is known.
    roots: BTreeMap<Pid, OwnedFd>,
    /// Something about these must be read again.
    stale: BTreeSet<Pid>,
    /// These were sampled before they were examined: they come first.
    urgent: BTreeSet<Pid>,
    /// Processes of which it is not known whether they are selected.
    undecided: u64,
    /// The kernel sends events of exits, and the BPF program removes processes that have exited.
    kernel_follows: bool,
    /// Time spent on reading processes, of all together.
    pace: Pace,
    reader: PatientReader,
    next_image: u32,
    /// When sampling began, since boot.
    began: Option<Duration>,
    titles_read: Instant,
    selected: Instant,
}

impl Registry {
    fn new_image(&mut self) -> ImageId {
        self.next_image += 1;
        ImageId(self.next_image)
    }

    fn is_resting(&self) -> bool {
        self.pace.is_resting(self.host.now())
    }

    /// Work that began then has been done.
    fn worked_since(&mut self, began: Instant) {
        let now = self.host.now();
        self.pace.spent(now, now.saturating_duration_since(began));
    }

    /// The program that a process runs, for a sample of it. `None`: the process is not selected any more.
    pub fn program_of_sample(&mut self, pid: Pid, emit: &mut dyn Emit) -> Option<ImageId> {
        if let Some(entry) = self.tracked.get(&pid) {
            if entry.is_unexamined {
                self.urgent.insert(pid);
            }
            return Some(entry.image);
        }
        if self.children.contains(pid) {
            return Some(self.track_child(pid, emit));
        }
        if self.selector.is_open() && !self.trees && !self.host.admits(&self.selector, pid) {
            expel(pid, emit);
            return None;
        }
        if self.is_resting() {
            // Later samples of it say what it is.
            return Some(ImageId::default());
        }
        // The event of its fork was lost: the ring was full.
        let began = self.host.now();
        let image = match self.host.check(pid) {
            Ok(target) => {
                let image = self.attach(target, Search::Little);
                self.start(pid, true, emit);
                self.mark(pid, Stale::Mappings);
                image
            }
            Err(_) => ImageId::default(),
        };
        self.worked_since(began);
        Some(image)
    }

    /// Makes a program known to the other stages.
    fn start(&self, pid: Pid, is_sampled: bool, emit: &mut dyn Emit) {
        if let Some(entry) = self.tracked.get(&pid)
            && let Some(target) = &entry.target
        {
            let started = ProgramChange::Started {
                target,
                python: &entry.info.python,
                is_sampled,
            };
            send(pid, entry.image, started, emit);
        }
    }

    /// Tracks a child of which nothing but the event of its fork is known: with all that its parent had.
    fn track_child(&mut self, pid: Pid, emit: &mut dyn Emit) -> ImageId {
        let Some(child) = self.children.take(pid) else {
            return ImageId::default();
        };
        let image = self.new_image();
        let forked = ProgramChange::Forked {
            from: child.from,
            child: ForkedChild {
                ns_pid: child.ns_pid,
                between: &child.between,
                since_boot: child.since_boot,
            },
        };
        send(pid, image, forked, emit);
        let target = if self.is_resting() {
            None
        } else {
            // Not a later process with its pid, which does not come round within the 10 ms in which starts are told.
            let target = self.host.check(pid).ok();
            target.filter(|target| target.started() <= child.since_boot)
        };
        let now = self.host.now();
        self.tracked.insert(
            pid,
            Tracked::forked(target, image, child.info, child.stack, now),
        );
        image
    }

    /// Takes in an event of the kernel. True: the process should be read again soon.
    pub fn process_event(&mut self, event: &ProcessEvent, emit: &mut dyn Emit) -> bool {
        match event.change {
            ProcessChange::Forked { parent, ns_pid } => {
                // A process with this pid is another one, whose exit event was lost.
                self.exited(event.pid, None, emit);
                self.forked(event, parent, ns_pid, emit);
                false
            }
            ProcessChange::Executed { stack } => {
                self.executed(event.pid, event.boottime, stack, emit);
                true
            }
            ProcessChange::Exited { cpu_time } => {
                // Of what came and went while this was being set up, nothing counts.
                let is_before = self.began.is_none_or(|began| event.boottime < began);
                let cpu_time = if is_before { Duration::ZERO } else { cpu_time };
                self.exited(event.pid, Some(cpu_time), emit);
                false
            }
        }
    }

    fn forked(&mut self, event: &ProcessEvent, parent: Pid, ns_pid: u32, emit: &mut dyn Emit) {
        let since_boot = event.boottime;
        let child = match self.tracked.get(&parent) {
            Some(entry) => Some(Child {
                from: entry.image,
                between: Vec::new(),
                ns_pid,
                since_boot,
                stack: entry.stack,
                info: entry.info.clone(),
            }),
            None => self.children.forked(parent, ns_pid, since_boot),
        };
        match child {
            Some(child) => self.children.add(event.pid, child),
            // Its parent is not selected any more.
            None if self.selector.is_open() && !self.trees => expel(event.pid, emit),
            None => {}
        }
    }

    fn executed(
        &mut self,
        pid: Pid,
        since_boot: Duration,
        stack: Option<u64>,
        emit: &mut dyn Emit,
    ) {
        if self.children.contains(pid) {
            self.track_child(pid, emit);
        }
        let image = self.new_image();
        let now = self.host.now();
        let Some(entry) = self.tracked.get_mut(&pid) else {
            if self.selector.is_open() && !self.is_resting() {
                if self.host.admits(&self.selector, pid) {
                    self.admit(pid, emit);
                    if let Some(entry) = self.tracked.get_mut(&pid) {
                        entry.begins(now);
                    }
                }
                self.worked_since(now);
            }
            return;
        };
        let counted = std::mem::take(&mut entry.counted);
        let (before, info) = entry.replaced(image, stack, now);
        let age = self.host.since_boot().saturating_sub(since_boot);
        let replaced = ProgramChange::Replaced {
            before,
            since_boot,
            is_fresh: age < FRESH_FOR,
        };
        send(pid, image, replaced, emit);
        self.ended.push(Ended {
            at: now,
            pid,
            image: before,
            info,
            cpu_time: Duration::ZERO,
            kind: EndedKind::Replaced,
            counted,
        });
        if self.selector.is_open() && !self.trees && !self.host.admits(&self.selector, pid) {
            // A Python has started something that is none.
            send(pid, image, ProgramChange::Retired, emit);
            emit.take_retired(image);
            self.tracked.remove(&pid);
            expel(pid, emit);
            return;
        }
        self.mark_if_stale(pid);
        self.refresh(pid, emit);
    }

    /// A process has exited; `cpu_time` in all, where that is known.
    fn exited(&mut self, pid: Pid, cpu_time: Option<Duration>, emit: &mut dyn Emit) {
        if self.children.take(pid).is_some() {
            self.ended.add_unsampled(1, cpu_time.unwrap_or_default());
            return;
        }
        let Some(mut entry) = self.tracked.remove(&pid) else {
            return;
        };
        self.stale.remove(&pid);
        entry.cpu_at_end = cpu_time.filter(|time| !time.is_zero());
        send(pid, entry.image, ProgramChange::Exited, emit);
        let kind = if self.roots.contains_key(&pid) {
            EndedKind::Root
        } else {
            EndedKind::Other
        };
        self.ended.add_left_out(entry.left_out);
        self.ended.push(Ended {
            at: self.host.now(),
            pid,
            image: entry.image,
            cpu_time: entry.cpu_time(),
            info: entry.info,
            kind,
            counted: entry.counted,
        });
    }

    /// The mappings of a process have changed.
    pub fn mapped(&mut self, pid: Pid, emit: &mut dyn Emit) {
        if self.children.contains(pid) {
            self.track_child(pid, emit);
        }
        self.mark(pid, Stale::Mappings);
        self.refresh(pid, emit);
    }

    /// The mappings of any process may have changed.
    pub fn all_mapped(&mut self, emit: &mut dyn Emit) {
        for pid in self.pids() {
            self.mark(pid, Stale::Mappings);
        }
        self.catch_up(emit);
    }

    /// For kernels that send no events of processes: a process that was asked for runs another program.
    pub fn executed_without_event(&mut self, pid: Pid, emit: &mut dyn Emit) {
        self.executed(pid, self.host.since_boot(), None, emit);
    }

    fn pids(&self) -> Vec<Pid> {
        self.tracked.keys().copied().collect()
    }

    fn mark(&mut self, pid: Pid, stale: Stale) {
        if let Some(entry) = self.tracked.get_mut(&pid) {
            entry.mark(stale);
            self.stale.insert(pid);
        }
    }

    fn mark_if_stale(&mut self, pid: Pid) {
        if self.tracked.get(&pid).is_some_and(Tracked::is_stale) {
            self.stale.insert(pid);
        }
    }

    /// Reads what is stale about a process, unless much of that was done of late.
    fn refresh(&mut self, pid: Pid, emit: &mut dyn Emit) {
        if self.is_resting() {
            return;
        }
        let Some(entry) = self.tracked.get_mut(&pid) else {
            self.stale.remove(&pid);
            return;
        };
        let mut means = Means {
            host: &self.host,
            reader: &mut self.reader,
            emit,
        };
        let took = entry.refresh(pid, &mut means);
        if !entry.is_stale() {
            self.stale.remove(&pid);
        }
        self.pace.spent(self.host.now(), took);
    }

    /// Reads what is stale about all processes, and retires programs that ended a while ago.
    pub fn catch_up(&mut self, emit: &mut dyn Emit) {
        for pid in std::mem::take(&mut self.urgent) {
            self.refresh(pid, emit);
        }
        for pid in self.stale.clone() {
            if self.is_resting() {
                break;
            }
            self.refresh(pid, emit);
        }
        self.retire(false, emit);
    }

    /// Checks what no event tells. To be called about twice a second.
    pub fn revisit(&mut self, emit: &mut dyn Emit) {
        let mut due = Vec::new();
        let mut gone = Vec::new();
        let mut others = Vec::new();
        let now = self.host.now();
        for (&pid, entry) in &self.tracked {
            match &entry.target {
                Some(target) if target.is_alive() => {
                    if entry.differs_for_long(now) {
                        others.push(pid);
                    } else if entry.is_due(now) {
                        due.push(pid);
                    }
                }
                // Its exit event was lost, or is still in the ring.
                _ => gone.push(pid),
            }
        }
        for pid in due {
            self.mark(pid, Stale::Mappings);
            self.refresh(pid, emit);
        }
        for pid in gone {
            self.check_if_gone(pid, emit);
        }
        for pid in others {
            self.find_change(pid, emit);
        }
        self.read_new_titles();
        if now.saturating_duration_since(self.selected) >= SELECT_AGAIN {
            self.select_newcomers(emit);
        }
    }

    /// Events were lost: finds out which processes have exited, or run another program.
    pub fn find_changes(&mut self, emit: &mut dyn Emit) {
        for pid in self.pids() {
            self.find_change(pid, emit);
        }
    }

    fn find_change(&mut self, pid: Pid, emit: &mut dyn Emit) {
        let Some(entry) = self.tracked.get(&pid) else {
            return;
        };
        if entry.target.as_ref().is_some_and(|it| !it.is_alive()) {
            self.exited(pid, None, emit);
        } else if !entry.runs_same_program(pid, &*self.host) {
            let (now, stack) = (self.host.since_boot(), self.host.stack_of(pid));
            self.executed(pid, now, stack, emit);
        }
    }

    /// A process has no handle, or a handle that says that it has exited.
    fn check_if_gone(&mut self, pid: Pid, emit: &mut dyn Emit) {
        let Some(entry) = self.tracked.get_mut(&pid) else {
            return;
        };
        if entry.target.is_none()
            && let Ok(target) = self.host.check(pid)
        {
            // There was no time to check it when it was seen first.
            entry.target = Some(target);
            self.mark(pid, Stale::Mappings);
            return;
        }
        if entry.was_gone_before() {
            self.exited(pid, None, emit);
            if !self.kernel_follows {
                expel(pid, emit);
            }
        }
    }

    /// Processes that were seen first a moment ago are about to give themselves a title.
    fn read_new_titles(&mut self) {
        let began = self.host.now();
        if self.pace.is_resting(began) {
            return;
        }
        for entry in self.tracked.values_mut().filter(|it| it.is_new(began)) {
            entry.read_title();
        }
        self.worked_since(began);
    }

    /// Reads the titles of processes, which they change: at intervals, or `at_once`.
    pub fn read_titles(&mut self, at_once: bool) {
        let began = self.host.now();
        let is_due = began.saturating_duration_since(self.titles_read) >= TITLES_AGAIN;
        if !at_once && (!is_due || self.pace.is_resting(began)) {
            return;
        }
        for entry in self.tracked.values_mut() {
            entry.read_title();
        }
        self.worked_since(began);
        self.titles_read = self.host.now();
    }

    /// Notes the CPU time of the roots, which cannot be read any more once they are gone.
    pub fn note_cpu_time(&self) {
        for pid in self.roots.keys() {
            if let Some(target) = self.tracked.get(pid).and_then(|it| it.target.as_ref()) {
                target.cpu_time();
            }
        }
    }

    /// Retires programs that ended a while ago; `all`: also those that ended just now.
    fn retire(&mut self, all: bool, emit: &mut dyn Emit) {
        let now = (!all).then(|| self.host.now());
        while let Some(ended) = self.ended.next_over(now) {
            // Its children begin with what is known about it.
            for pid in self.children.of(ended.image) {
                self.track_child(pid, emit);
            }
            send(ended.pid, ended.image, ProgramChange::Retired, emit);
            let facts = emit.take_retired(ended.image);
            let samples = facts.as_ref().map_or(0, |facts| facts.samples);
            let samples = samples.saturating_sub(ended.counted);
            if samples == 0 && ended.counted > 0 && ended.kind != EndedKind::Root {
                // It is in the summaries of an earlier window.
                self.ended.add_unsampled(0, ended.cpu_time);
            } else {
                self.ended.summarise(ended, facts, samples);
            }
        }
    }

    /// From now on, all waits for memory of processes together take no longer than `total`: the recording is to end.
    pub const fn limit_waits(&mut self, total: Duration) {
        self.reader.limit_waits(total);
    }
}

fn send(pid: Pid, image: ImageId, change: ProgramChange<'_>, emit: &mut dyn Emit) {
    // Only mappings may have to be sent again, and those are sent elsewhere.
    let _ = emit.emit(&ProgramEvent { pid, image, change });
}

/// No more samples of a process are wanted, of whatever program.
fn expel(pid: Pid, emit: &mut dyn Emit) {
    send(pid, ImageId::default(), ProgramChange::Expelled, emit);
}
