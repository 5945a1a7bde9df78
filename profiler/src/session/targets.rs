//! The processes of a recording: who they are, how they begin and end.
//!
//! Some were asked for, others are their children. The kernel side makes a child a target before it runs, and says so;
//! here nothing is known of it but that, until it is met: with its first sample, its first own mapping, or when its
//! parent is forgotten. So a process that ends without a sample costs next to nothing.

mod selecting;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;

use super::{
    PythonFrom,
    ended::{EndedKind, EndedPrograms, Finished},
    followed::{Followed, News, mappings_of},
    unmet::{Child, UnmetChildren},
};
use crate::{
    model::{ImageId, Pid, ProcessChange, ProcessEvent},
    process::{
        Container, Halt, Pace, Search, Selector, Target, halt_of, has_exited, now_since_boot,
        stack_of,
    },
    symbols::{ForkedChild, Resolver, perf_map::PerfMapWatch},
    unwind::TableBuilder,
};

/// What processes call themselves is read this often: some twenty microseconds for each.
const TITLES_AGAIN: Duration = Duration::from_secs(2);
/// A program cannot have written to its perf map so soon after it was loaded: an interpreter takes longer to start.
const FRESH_FOR: Duration = Duration::from_millis(10);
/// Processes that belong without having run a program since the recording began are looked for this often.
const SELECT_AGAIN: Duration = Duration::from_secs(2);

/// Processes that are asked whether anything holds them.
const HALTED_LOOKS_MAX: usize = 256;

/// The stages that must know of processes.
pub(super) struct Stages<'s> {
    pub(super) builder: &'s TableBuilder,
    pub(super) resolver: &'s mut Resolver,
}

/// All processes of a recording.
pub(super) struct Targets {
    selector: Selector,
    python_from: PythonFrom,
    trees: bool,
    /// Processes that belong, and that we may not look into.
    pub(super) refused: u64,
    followed: FxHashMap<Pid, Followed>,
    children: UnmetChildren,
    ended: EndedPrograms,
    /// Those that were asked for, and the handle by which their end is known.
    roots: BTreeMap<Pid, OwnedFd>,
    /// There is something to look at in these.
    dirty: BTreeSet<Pid>,
    /// These were sampled before they were examined: they come first.
    urgent: BTreeSet<Pid>,
    /// Processes of which it is not known whether they belong.
    undecided: u64,
    /// The kernel side tells of ends, and takes out who has ended.
    told: bool,
    /// Looking at all of them.
    pace: Pace,
    next_image: u32,
    /// When sampling began, since boot.
    began: Option<Duration>,
    titles_read: Instant,
    selected: Instant,
}

impl Targets {
    fn new_image(&mut self) -> ImageId {
        self.next_image += 1;
        ImageId(self.next_image)
    }

    /// Bytes of executable memory of all processes, from files; what several of them map counts once.
    pub(super) fn text_bytes(&self) -> u64 {
        let mappings = self
            .followed
            .keys()
            .flat_map(|&pid| mappings_of(pid).unwrap_or_default());
        let files: BTreeMap<_, u64> = mappings
            .filter(|mapping| mapping.inode != 0)
            .map(|mapping| {
                let bytes = mapping.end.0 - mapping.begin.0;
                ((mapping.device, mapping.inode, mapping.file_offset), bytes)
            })
            .collect();
        files.values().sum()
    }

    /// How many processes are known.
    pub(super) fn count(&self) -> usize {
        self.followed.len()
    }

    /// The program that a process runs, for a sample of it. One that nothing was known of is met now. `None`: it does not
    /// belong any more.
    pub(super) fn image_of(&mut self, pid: Pid, stages: &mut Stages<'_>) -> Option<ImageId> {
        if let Some(entry) = self.followed.get(&pid) {
            if entry.is_unexamined {
                self.urgent.insert(pid);
            }
            return Some(entry.image);
        }
        if self.children.contains(pid) {
            return Some(self.meet(pid, stages));
        }
        if self.selector.is_open() && !self.trees && !self.selector.admits(pid) {
            stages.builder.expel(pid);
            return None;
        }
        if self.pace.is_resting() {
            // Later samples of it say what it is.
            return Some(ImageId::default());
        }
        // Its fork was not told: the event found no room in the ring.
        let began = Instant::now();
        let image = match Target::check(pid) {
            Ok(target) => {
                let image = self.attach(target, Search::Little);
                if let Some(entry) = self.followed.get(&pid) {
                    entry.introduce(stages.resolver);
                }
                stages.builder.runs(pid, image);
                self.note(pid, News::Mappings);
                image
            }
            Err(_) => ImageId::default(),
        };
        self.pace.spent(began.elapsed());
        Some(image)
    }

    /// Begins with a child that has been waiting: with all that its parent had.
    fn meet(&mut self, pid: Pid, stages: &mut Stages<'_>) -> ImageId {
        let Some(child) = self.children.take(pid) else {
            return ImageId::default();
        };
        let image = self.new_image();
        let forked = ForkedChild {
            pid,
            ns_pid: child.ns_pid,
            between: &child.between,
            since_boot: child.since_boot,
        };
        stages.resolver.fork(child.from, image, forked);
        stages.builder.fork(child.from, pid, image);
        stages.builder.runs(pid, image);
        let target = (!self.pace.is_resting())
            .then(|| Target::check_child(pid, child.since_boot))
            .flatten();
        self.followed.insert(
            pid,
            Followed::forked(target, image, child.identity, child.stack),
        );
        image
    }

    /// Takes in what has become of a process. True: another look should follow soon.
    pub(super) fn happened(&mut self, event: &ProcessEvent, stages: &mut Stages<'_>) -> bool {
        match event.change {
            ProcessChange::Forked { parent, ns_pid } => {
                // It has the pid of one whose end was not told.
                self.exited(event.pid, None, stages);
                self.forked(event.pid, parent, ns_pid, event.boottime, stages);
                false
            }
            ProcessChange::Executed { stack } => {
                self.executed(event.pid, event.boottime, stack, stages);
                true
            }
            ProcessChange::Exited { cpu_time } => {
                // Of what came and went while this was being set up, nothing counts.
                let is_before = self.began.is_none_or(|began| event.boottime < began);
                let cpu_time = if is_before { Duration::ZERO } else { cpu_time };
                self.exited(event.pid, Some(cpu_time), stages);
                false
            }
        }
    }

    fn forked(
        &mut self,
        pid: Pid,
        parent: Pid,
        ns_pid: u32,
        since_boot: Duration,
        stages: &mut Stages<'_>,
    ) {
        let child = match self.followed.get(&parent) {
            Some(entry) => Some(Child {
                from: entry.image,
                between: Vec::new(),
                ns_pid,
                since_boot,
                stack: entry.stack,
                identity: entry.identity.clone(),
            }),
            None => self.children.forked(parent, ns_pid, since_boot),
        };
        match child {
            Some(child) => self.children.add(pid, child),
            // Its parent does not belong any more.
            None if self.selector.is_open() && !self.trees => stages.builder.expel(pid),
            None => {}
        }
    }

    fn executed(
        &mut self,
        pid: Pid,
        since_boot: Duration,
        stack: Option<u64>,
        stages: &mut Stages<'_>,
    ) {
        if self.children.contains(pid) {
            self.meet(pid, stages);
        }
        let image = self.new_image();
        let Some(entry) = self.followed.get_mut(&pid) else {
            if self.selector.is_open() && !self.pace.is_resting() {
                let began = Instant::now();
                if self.selector.admits(pid) {
                    self.take_in(pid, stages);
                    if let Some(entry) = self.followed.get_mut(&pid) {
                        entry.begins();
                    }
                }
                self.pace.spent(began.elapsed());
            }
            return;
        };
        let (before, identity) = entry.replaced(image, stack);
        let is_fresh = now_since_boot().saturating_sub(since_boot) < FRESH_FOR;
        stages.resolver.exec(before, image, since_boot, is_fresh);
        stages.builder.runs(pid, image);
        let kind = EndedKind::Replaced;
        self.ended.push(pid, before, identity, Duration::ZERO, kind);
        if self.selector.is_open() && !self.trees && !self.selector.admits(pid) {
            // A Python has started something that is none.
            stages.builder.forget(pid, image);
            self.followed.remove(&pid);
            stages.builder.expel(pid);
            return;
        }
        self.mark(pid);
        self.look(pid, stages);
    }

    /// A process has ended; `cpu_time` in all, where that is known.
    fn exited(&mut self, pid: Pid, cpu_time: Option<Duration>, stages: &mut Stages<'_>) {
        if self.children.take(pid).is_some() {
            self.ended.add_unmet(1, cpu_time.unwrap_or_default());
            return;
        }
        let Some(mut entry) = self.followed.remove(&pid) else {
            return;
        };
        self.dirty.remove(&pid);
        entry.cpu_at_end = cpu_time.filter(|time| !time.is_zero());
        // It is no target for the kernel side any more, where that has told of the end.
        stages.builder.gone(pid, entry.image);
        let kind = if self.roots.contains_key(&pid) {
            EndedKind::Root
        } else {
            EndedKind::Other
        };
        self.ended.add_left_out(entry.left_out);
        let cpu_time = entry.cpu_time();
        self.ended
            .push(pid, entry.image, entry.identity, cpu_time, kind);
    }

    /// A process's mappings have changed.
    pub(super) fn mapped(&mut self, pid: Pid, stages: &mut Stages<'_>) {
        if self.children.contains(pid) {
            self.meet(pid, stages);
        }
        self.note(pid, News::Mappings);
        self.look(pid, stages);
    }

    /// The mappings of any process may have changed.
    pub(super) fn all_mapped(&mut self, stages: &mut Stages<'_>) {
        let pids: Vec<Pid> = self.followed.keys().copied().collect();
        for pid in pids {
            self.note(pid, News::Mappings);
        }
        self.catch_up(stages);
    }

    /// For kernels that do not tell: a process that was asked for runs another program.
    pub(super) fn executed_untold(&mut self, pid: Pid, stages: &mut Stages<'_>) {
        self.executed(pid, now_since_boot(), None, stages);
    }

    fn note(&mut self, pid: Pid, news: News) {
        if let Some(entry) = self.followed.get_mut(&pid) {
            entry.note(news);
            self.dirty.insert(pid);
        }
    }

    /// Has it looked at if there is something.
    fn mark(&mut self, pid: Pid) {
        if self.followed.get(&pid).is_some_and(Followed::has_news) {
            self.dirty.insert(pid);
        }
    }

    fn look(&mut self, pid: Pid, stages: &mut Stages<'_>) {
        if self.pace.is_resting() {
            return;
        }
        let Some(entry) = self.followed.get_mut(&pid) else {
            self.dirty.remove(&pid);
            return;
        };
        let took = entry.look(pid, stages.builder, stages.resolver);
        if !entry.has_news() {
            self.dirty.remove(&pid);
        }
        self.pace.spent(took);
    }

    /// Looks at the processes of which there is news, and forgets those that have ended a while ago.
    pub(super) fn catch_up(&mut self, stages: &mut Stages<'_>) {
        for pid in std::mem::take(&mut self.urgent) {
            self.look(pid, stages);
        }
        for pid in self.dirty.clone() {
            if self.pace.is_resting() {
                break;
            }
            self.look(pid, stages);
        }
        self.forget(stages, false);
    }

    /// What must be looked at from time to time.
    pub(super) fn revisit(&mut self, stages: &mut Stages<'_>) {
        let mut due = Vec::new();
        let mut gone = Vec::new();
        for (&pid, entry) in &self.followed {
            match &entry.target {
                Some(target) if target.is_alive() => {
                    if entry.is_due() {
                        due.push(pid);
                    }
                }
                // Its end was not told, or is still in the ring.
                _ => gone.push(pid),
            }
        }
        for pid in due {
            self.note(pid, News::Mappings);
            self.look(pid, stages);
        }
        for pid in gone {
            self.lost_sight_of(pid, stages);
        }
        self.read_first_titles();
        if self.selected.elapsed() >= SELECT_AGAIN {
            self.select_newcomers(stages);
        }
    }

    /// Events were lost: who has ended, or runs another program, is found by looking.
    pub(super) fn look_for_changes(&mut self, stages: &mut Stages<'_>) {
        let pids: Vec<Pid> = self.followed.keys().copied().collect();
        for pid in pids {
            let Some(entry) = self.followed.get(&pid) else {
                continue;
            };
            let has_ended = entry.target.as_ref().is_some_and(|it| !it.is_alive());
            if has_ended {
                self.exited(pid, None, stages);
            } else if !entry.is_still_it(pid) {
                self.executed(pid, now_since_boot(), stack_of(pid), stages);
            }
        }
    }

    /// A process has no handle, or one that says that it has ended.
    fn lost_sight_of(&mut self, pid: Pid, stages: &mut Stages<'_>) {
        let Some(entry) = self.followed.get_mut(&pid) else {
            return;
        };
        if entry.target.is_none()
            && let Ok(target) = Target::check(pid)
        {
            // It was met when there was no time for it.
            entry.target = Some(target);
            self.note(pid, News::Mappings);
            return;
        }
        if entry.was_gone_before() {
            self.exited(pid, None, stages);
            if !self.told {
                stages.builder.expel(pid);
            }
        }
    }

    /// Those that have just been met are about to give themselves one.
    fn read_first_titles(&mut self) {
        if self.pace.is_resting() {
            return;
        }
        let began = Instant::now();
        for entry in self.followed.values_mut().filter(|entry| entry.is_new()) {
            entry.read_title();
        }
        self.pace.spent(began.elapsed());
    }

    /// Processes change their titles: they are read from time to time; `at_once`: now.
    pub(super) fn read_titles(&mut self, at_once: bool) {
        if !at_once && (self.titles_read.elapsed() < TITLES_AGAIN || self.pace.is_resting()) {
            return;
        }
        let began = Instant::now();
        for entry in self.followed.values_mut() {
            entry.read_title();
        }
        self.pace.spent(began.elapsed());
        self.titles_read = Instant::now();
    }

    /// Notes the CPU time of those that were asked for, which cannot be read any more once they are gone.
    pub(super) fn note_cpu_time(&self) {
        for pid in self.roots.keys() {
            if let Some(target) = self.followed.get(pid).and_then(|it| it.target.as_ref()) {
                target.cpu_time();
            }
        }
    }

    /// Forgets programs that have ended a while ago; `all`: or just now.
    fn forget(&mut self, stages: &mut Stages<'_>, all: bool) {
        while let Some(ended) = self.ended.next_to_forget(all) {
            // Its children have a claim on what it leaves.
            let heirs = self.children.heirs_of(ended.image);
            for pid in heirs {
                self.meet(pid, stages);
            }
            stages.builder.forget(ended.pid, ended.image);
            self.ended.tell(ended, stages.resolver);
        }
    }

    /// One is in its first moments, in which it should be looked at more often.
    pub(super) fn is_any_young(&self) -> bool {
        let now = Instant::now();
        self.followed.values().any(|entry| entry.is_young(now))
    }

    /// One of these is a Python whose frames are not read yet.
    pub(super) fn is_python_starting(&self) -> bool {
        let now = Instant::now();
        let mut followed = self.followed.values();
        followed.any(|entry| entry.is_young(now) && entry.is_python_starting())
    }

    /// The process has the library of that name loaded.
    pub(super) fn has_greenlets(&self, pid: Pid) -> bool {
        let entry = self.followed.get(&pid);
        entry.is_some_and(|entry| entry.identity.has_greenlets)
    }

    /// It has not been examined yet.
    pub(super) fn is_unexamined(&self, pid: Pid) -> bool {
        self.followed.get(&pid).is_some_and(|it| it.is_unexamined)
    }

    /// How many have not.
    pub(super) fn unexamined(&self) -> u64 {
        let unexamined = self.followed.values().filter(|it| it.is_unexamined);
        unexamined.count() as u64 + self.undecided
    }

    /// Is one of ours.
    pub(super) fn contains(&self, pid: Pid) -> bool {
        self.followed.contains_key(&pid) || self.children.contains(pid)
    }

    /// A living process that cannot run, what holds it, and how many others there are. Of very many, the first ones are
    /// looked at.
    pub(super) fn halted(&self) -> Option<(Pid, Halt, u64)> {
        let mut pids: Vec<Pid> = self.roots.keys().copied().collect();
        let others = self.followed.keys();
        pids.extend(others.filter(|pid| !self.roots.contains_key(pid)));
        pids.truncate(HALTED_LOOKS_MAX);
        let mut halted = pids.into_iter().filter_map(|pid| {
            let target = self.followed.get(&pid)?.target.as_ref()?;
            let halt = halt_of(pid)?;
            target.is_alive().then_some((pid, halt))
        });
        let (pid, halt) = halted.next()?;
        Some((pid, halt, halted.count() as u64))
    }

    /// The container that was asked for.
    pub(super) const fn container(&self) -> Option<&Container> {
        match &self.selector {
            Selector::Container(container) => Some(container),
            _ => None,
        }
    }

    /// All those that were asked for have exited.
    pub(super) fn all_exited(&self) -> bool {
        !self.roots.is_empty() && self.roots.values().all(has_exited)
    }

    /// Those that were asked for: handles that become readable when they exit.
    pub(super) fn exits(&self) -> impl Iterator<Item = std::io::Result<OwnedFd>> + '_ {
        self.roots.values().map(OwnedFd::try_clone)
    }

    /// One of them is a command of ours that waits for its beginning.
    pub(super) fn has_own_image(&self) -> bool {
        let mut targets = self.followed.values().filter_map(|it| it.target.as_ref());
        targets.any(Target::is_own_image)
    }

    /// Watches the directories of all their perf maps; `None`: they are looked at on a timer.
    pub(super) fn watch_perf_maps(&self) -> Option<PerfMapWatch> {
        let mut watch = PerfMapWatch::new()
            .inspect_err(|error| tracing::debug!("perf maps are looked at on a timer: {error}"))
            .ok()?;
        for target in self.followed.values().filter_map(|it| it.target.as_ref()) {
            if let Err(error) = watch.add(&target.perf_map_directory()) {
                tracing::debug!("perf maps are looked at on a timer: {error}");
                return None;
            }
        }
        Some(watch)
    }

    /// Those that were asked for.
    pub(super) fn roots(&self) -> impl Iterator<Item = Pid> + '_ {
        self.roots.keys().copied()
    }

    /// Sampling has stopped.
    pub(super) fn stopped(&mut self) {
        self.followed.values_mut().for_each(Followed::stopped);
    }

    /// CPU time of all so far.
    pub(super) fn cpu_time(&self) -> Duration {
        let living: Duration = self.followed.values().map(Followed::cpu_time).sum();
        living + self.ended.cpu_time()
    }

    /// The end: what is left to say of each.
    pub(super) fn finish(mut self, stages: &mut Stages<'_>) -> Finished {
        let pids: Vec<Pid> = self.followed.keys().copied().collect();
        for pid in pids {
            self.exited(pid, None, stages);
        }
        let unmet = self.children.clear();
        self.ended.add_unmet(unmet, Duration::ZERO);
        self.forget(stages, true);
        let roots = self.roots;
        self.ended.finish(|pid| roots.contains_key(&pid))
    }
}
