//! Who belongs to a recording: from the start, and since.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Stages, Targets};
use crate::{
    model::{ImageId, Pid},
    process::{
        Pace, Search, Selector, Target, TargetError, descendants_of, now_since_boot, thread_time,
    },
    session::{
        PythonFrom, SessionError,
        ended::EndedPrograms,
        followed::Followed,
        python_frames::{PATIENCE, PATIENCE_AT_START},
        unmet::UnmetChildren,
    },
};

impl Targets {
    /// The processes that are selected now, and what is mapped in them. All that were given by pid must be fit; of the
    /// others, those that have exited are left out, and those that we may not look into are counted. `trees`: with all
    /// that descend from them.
    pub(in crate::session) fn select(
        selector: &Selector,
        trees: bool,
        python_from: PythonFrom,
    ) -> Result<Self, SessionError> {
        let mut targets = Self {
            selector: selector.clone(),
            python_from,
            trees,
            refused: 0,
            followed: FxHashMap::default(),
            children: UnmetChildren::default(),
            ended: EndedPrograms::default(),
            roots: BTreeMap::new(),
            dirty: BTreeSet::new(),
            urgent: BTreeSet::new(),
            undecided: 0,
            told: false,
            pace: Pace::default(),
            next_image: 1,
            began: None,
            titles_read: Instant::now(),
            selected: Instant::now(),
        };
        let mut refusal = None;
        let until = thread_time() + examining_time(selector);
        let (found, undecided) = targets.selector.scan_within(Search::Little)?;
        targets.undecided = undecided;
        for pid in found {
            match Target::check(pid) {
                Ok(target) => {
                    if !selector.is_open() {
                        targets.roots.insert(pid, handle_of(&target)?);
                    }
                    targets.attach(target, targets.search_until(until));
                }
                Err(error) if selector.is_open() => {
                    targets.refused += u64::from(matches!(error, TargetError::NotPermitted { .. }));
                    refusal = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(error) = refusal
            && targets.followed.is_empty()
        {
            return Err(error.into());
        }
        if trees {
            targets.attach_descendants(until, |_, _| {});
        }
        Ok(targets)
    }

    /// Fails if the interpreter's frames of a process that was asked for by pid cannot be read. A command that waits for
    /// its beginning is none yet.
    pub(in crate::session) fn demand_interpreters(&self) -> Result<(), SessionError> {
        let asked_for = self
            .roots
            .keys()
            .filter_map(|pid| self.followed.get_key_value(pid));
        for (&pid, entry) in asked_for {
            if entry.target.as_ref().is_some_and(Target::is_own_image) {
                continue;
            }
            if let Some(reason) = entry.identity.obstacle() {
                return Err(SessionError::Interpreter { pid, reason });
            }
        }
        Ok(())
    }

    /// Follows one that runs already. The other stages do not know of it yet.
    pub(super) fn attach(&mut self, target: Target, search: Search) -> ImageId {
        let image = self.new_image();
        self.followed.insert(
            target.pid,
            Followed::attached(target, image, self.python_from, search),
        );
        image
    }

    /// Takes in the processes that descend from these and are not known yet; each is handed to `each`.
    fn attach_descendants(&mut self, until: Duration, mut each: impl FnMut(&mut Self, Pid)) {
        let roots: Vec<Pid> = self.followed.keys().copied().collect();
        for pid in descendants_of(&roots) {
            if self.contains(pid) {
                continue;
            }
            // It may have ended since.
            if let Ok(target) = Target::check(pid) {
                self.attach(target, self.search_until(until));
                each(self, pid);
            }
        }
    }

    /// Makes all of them known to the other stages. From here on the kernel side follows them; those that came until now
    /// are looked for once more.
    ///
    /// `told`: the kernel side takes out those that end. Stops when `may_go_on` says so: the recording is to end then.
    pub(in crate::session) fn introduce(
        &mut self,
        stages: &mut Stages<'_>,
        told: bool,
        may_go_on: &dyn Fn() -> bool,
    ) {
        self.told = told;
        let pids: Vec<Pid> = self.followed.keys().copied().collect();
        // All of them are targets before the first is examined, which may take long.
        for &pid in &pids {
            self.admit(pid, stages);
        }
        let until = thread_time() + examining_time(&self.selector);
        for pid in pids.into_iter().take_while(|_| may_go_on()) {
            self.examine(pid, self.search_until(until), stages);
        }
        if !may_go_on() {
            return;
        }
        if self.trees {
            // The kernel side must know the parents first.
            stages.builder.wait_until_taken(Duration::from_secs(1));
            self.attach_descendants(until, |targets, pid| {
                targets.admit(pid, stages);
                targets.examine(pid, targets.search_until(until), stages);
            });
        }
        self.select_newcomers(stages);
    }

    /// Takes in processes that belong and are not known yet: those that came while this was set up, were moved to the
    /// control group, or have loaded their libpython since.
    pub(super) fn select_newcomers(&mut self, stages: &mut Stages<'_>) {
        if !self.selector.is_open() || self.pace.is_resting() {
            return;
        }
        let began = Instant::now();
        let found = self.selector.scan_within(Search::Little);
        let (found, undecided) = found.unwrap_or_default();
        self.undecided = undecided;
        self.pace.spent(began.elapsed());
        for &pid in &found {
            if !self.contains(pid) {
                let began = Instant::now();
                self.take_in(pid, stages);
                self.pace.spent(began.elapsed());
            }
        }
        let began = Instant::now();
        if !self.trees {
            // Moved to another control group, or started by one that belongs.
            let found: FxHashSet<Pid> = found.into_iter().collect();
            let known = self.followed.keys().copied();
            let strangers: Vec<Pid> = known.filter(|pid| !found.contains(pid)).collect();
            for pid in strangers {
                if !self.selector.admits(pid) {
                    self.exited(pid, None, stages);
                    stages.builder.expel(pid);
                }
            }
        }
        self.selected = Instant::now();
        self.pace.spent(began.elapsed());
    }

    /// Makes a process that belongs a target.
    pub(super) fn take_in(&mut self, pid: Pid, stages: &mut Stages<'_>) {
        if let Ok(target) = Target::check(pid) {
            // Many may come at once, and more than this can be read while samples are not waiting.
            let search = if self.pace.is_resting() {
                Search::Nothing
            } else {
                Search::Little
            };
            self.attach(target, search);
            self.admit(pid, stages);
            self.examine(pid, search, stages);
        }
    }

    /// How much of a process's files may be read now, if there is time until then.
    fn search_until(&self, until: Duration) -> Search {
        // Where frames must be read from the interpreter, whether they can be decides whether there is a recording.
        if self.python_from == PythonFrom::Interpreter || thread_time() < until {
            Search::All
        } else {
            Search::Nothing
        }
    }

    /// Makes one a target, of which nothing is known yet.
    fn admit(&self, pid: Pid, stages: &mut Stages<'_>) {
        if let Some(entry) = self.followed.get(&pid)
            && entry.target.is_some()
        {
            entry.introduce(stages.resolver);
            stages.builder.admit(pid, entry.image);
        }
    }

    /// Finds out what is mapped in one, and where its interpreter keeps its frames; what `search` does not allow for is put
    /// off.
    fn examine(&mut self, pid: Pid, search: Search, stages: &mut Stages<'_>) {
        let Some(entry) = self.followed.get_mut(&pid) else {
            return;
        };
        // What we launch will be something else before its first instruction of interest: no tables for ourselves.
        if entry.target.as_ref().is_none_or(Target::is_own_image) {
            return;
        }
        if search == Search::Nothing {
            entry.put_off();
        } else {
            entry.waits_for_interpreter = if self.began.is_none() {
                PATIENCE_AT_START
            } else {
                PATIENCE
            };
            entry.read_mappings(pid, search, stages.builder, stages.resolver);
            entry.waits_for_interpreter = PATIENCE;
        }
        self.mark(pid);
    }

    /// Sampling begins: the CPU time of the targets counts from now on.
    pub(in crate::session) fn begin_counting(&mut self) {
        self.began = Some(now_since_boot());
        for entry in self.followed.values_mut() {
            entry.cpu_at_start = entry
                .target
                .as_ref()
                .map_or(Duration::ZERO, Target::cpu_time);
        }
    }
}

/// CPU time for examining processes before sampling begins, once for what they are and once for what is mapped in them; the others are examined while it goes on, those that are sampled
/// first. Those that were named one by one are fewer, and all meant.
const EXAMINING_TIME: Duration = Duration::from_millis(500);
const EXAMINING_TIME_OF_NAMED: Duration = Duration::from_secs(10);

const fn examining_time(selector: &Selector) -> Duration {
    if selector.is_open() {
        EXAMINING_TIME
    } else {
        EXAMINING_TIME_OF_NAMED
    }
}

/// A handle that becomes readable when the process exits.
fn handle_of(target: &Target) -> Result<OwnedFd, TargetError> {
    target.exited().map_err(|source| TargetError::Proc {
        path: format!("the handle of process {}", target.pid),
        source,
    })
}
