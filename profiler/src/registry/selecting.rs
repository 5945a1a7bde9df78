//! Which processes are selected: from the start, and since.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Emit, Host, PythonFrom, Registry,
    children::UnsampledChildren,
    ended::EndedPrograms,
    expel,
    interpreter::{TIMEOUT, TIMEOUT_AT_START},
    tracked::{Means, Tracked},
};
use crate::{
    model::{ImageId, Pid},
    process::{
        Pace, Search, SelectError, Selector, Target, TargetError, interpreter::PatientReader,
    },
};

/// CPU time for examining processes before sampling begins: once for what they are, and once for what is mapped in them.
/// The others are examined while sampling goes on, those that are sampled first. Processes that were named one by one are
/// fewer, and all wanted.
const EXAMINING_TIME: Duration = Duration::from_millis(500);
const EXAMINING_TIME_OF_NAMED: Duration = Duration::from_secs(10);

/// Why there is nothing to record.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// No process is selected.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A process that was asked for cannot be profiled.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The interpreter's frames were asked for, and cannot be read.
    #[error("cannot read Python frames of pid {pid}: {reason}")]
    Interpreter {
        /// The process.
        pid: Pid,
        /// Why not.
        reason: String,
    },
}

impl Registry {
    /// The processes that are selected now, and what is mapped in them. All that were given by pid must be fit; of the
    /// others, those that have exited are left out, and those that we may not look into are counted. `trees`: with all
    /// that descend from them.
    pub fn select(
        host: Arc<dyn Host>,
        selector: &Selector,
        trees: bool,
        python_from: PythonFrom,
    ) -> Result<Self, RegistryError> {
        let now = host.now();
        let mut registry = Self {
            selector: selector.clone(),
            python_from,
            trees,
            refused: 0,
            tracked: FxHashMap::default(),
            children: UnsampledChildren::default(),
            ended: EndedPrograms::default(),
            roots: BTreeMap::new(),
            stale: BTreeSet::new(),
            urgent: BTreeSet::new(),
            undecided: 0,
            kernel_follows: false,
            pace: Pace::default(),
            reader: PatientReader::default(),
            next_image: 1,
            began: None,
            titles_read: now,
            selected: now,
            host,
        };
        let until = registry.host.work_time() + examining_time(selector);
        let (found, undecided) = registry.host.scan(selector, Search::Little)?;
        registry.undecided = undecided;
        let mut refusal = None;
        for pid in found {
            match registry.host.check(pid) {
                Ok(target) => {
                    if !selector.is_open() {
                        registry.roots.insert(pid, handle_of(&target)?);
                    }
                    registry.attach(target, registry.search_until(until));
                }
                Err(error) if selector.is_open() => {
                    let is_refusal = matches!(error, TargetError::NotPermitted { .. });
                    registry.refused += u64::from(is_refusal);
                    refusal = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(error) = refusal
            && registry.tracked.is_empty()
        {
            return Err(error.into());
        }
        if trees {
            registry.attach_descendants(until, |_, _| {});
        }
        Ok(registry)
    }

    /// Fails if the interpreter's frames of a root cannot be read. A command that waits for its beginning is no Python
    /// yet.
    pub fn demand_interpreters(&self) -> Result<(), RegistryError> {
        let roots = self.roots.keys();
        for (&pid, entry) in roots.filter_map(|pid| self.tracked.get_key_value(pid)) {
            if entry.target.as_ref().is_some_and(Target::is_own_image) {
                continue;
            }
            if let Some(reason) = entry.info.obstacle() {
                return Err(RegistryError::Interpreter { pid, reason });
            }
        }
        Ok(())
    }

    /// Tracks a process that runs already. The other stages do not know about it yet.
    pub(super) fn attach(&mut self, target: Target, search: Search) -> ImageId {
        let image = self.new_image();
        let pid = target.pid;
        let entry = Tracked::running(target, image, self.python_from, search, &*self.host);
        self.tracked.insert(pid, entry);
        image
    }

    /// Tracks the processes that descend from those that are tracked; each is handed to `each`.
    fn attach_descendants(&mut self, until: Duration, mut each: impl FnMut(&mut Self, Pid)) {
        for pid in self.host.descendants_of(&self.pids()) {
            if self.contains(pid) {
                continue;
            }
            // It may have exited since.
            if let Ok(target) = self.host.check(pid) {
                self.attach(target, self.search_until(until));
                each(self, pid);
            }
        }
    }

    /// Makes all processes known to the other stages. From here on the BPF program follows them; those that came until
    /// now are looked for once more.
    ///
    /// `kernel_follows`: the kernel sends events of exits, and the BPF program removes processes that have exited. Stops
    /// when `may_go_on` says so: the recording is to end then.
    pub fn introduce(
        &mut self,
        kernel_follows: bool,
        may_go_on: &dyn Fn() -> bool,
        emit: &mut dyn Emit,
    ) {
        self.kernel_follows = kernel_follows;
        let pids = self.pids();
        // All of them are targets before the first is examined, which may take long.
        for &pid in &pids {
            self.start(pid, false, emit);
        }
        // A program that was replaced before the BPF program knew its process has no event of that.
        emit.wait_until_taken();
        self.find_changes(emit);
        self.catch_up(emit);
        let until = self.host.work_time() + examining_time(&self.selector);
        for pid in pids.into_iter().take_while(|_| may_go_on()) {
            self.examine(pid, self.search_until(until), emit);
        }
        if !may_go_on() {
            return;
        }
        if self.trees {
            // The BPF program must know the parents first.
            emit.wait_until_taken();
            self.attach_descendants(until, |registry, pid| {
                registry.start(pid, false, emit);
                registry.examine(pid, registry.search_until(until), emit);
            });
        }
        self.select_newcomers(emit);
    }

    /// Tracks processes that are selected and not known yet: those that came while this was set up, were moved to the
    /// control group, or have loaded their libpython since.
    pub(super) fn select_newcomers(&mut self, emit: &mut dyn Emit) {
        if !self.selector.is_open() || self.is_resting() {
            return;
        }
        let began = self.host.now();
        let found = self.host.scan(&self.selector, Search::Little);
        let (found, undecided) = found.unwrap_or_default();
        self.undecided = undecided;
        self.worked_since(began);
        for &pid in &found {
            if !self.contains(pid) {
                let began = self.host.now();
                self.admit(pid, emit);
                self.worked_since(began);
            }
        }
        let began = self.host.now();
        if !self.trees {
            // Moved to another control group, or started by a process that is selected.
            let found: FxHashSet<Pid> = found.into_iter().collect();
            let mut others = self.pids();
            others.retain(|pid| !found.contains(pid));
            for pid in others {
                if !self.host.admits(&self.selector, pid) {
                    self.exited(pid, None, emit);
                    expel(pid, emit);
                }
            }
        }
        self.selected = self.host.now();
        self.worked_since(began);
    }

    /// Makes a process that is selected a target.
    pub(super) fn admit(&mut self, pid: Pid, emit: &mut dyn Emit) {
        if let Ok(target) = self.host.check(pid) {
            // Many may come at once, and more than this can be read while samples are not waiting.
            let search = if self.is_resting() {
                Search::Nothing
            } else {
                Search::Little
            };
            self.attach(target, search);
            self.start(pid, false, emit);
            self.examine(pid, search, emit);
        }
    }

    /// How much of a process's files may be read now, if there is time until then.
    fn search_until(&self, until: Duration) -> Search {
        // Where frames must be read from the interpreter, whether they can be decides whether there is a recording.
        if self.python_from == PythonFrom::Interpreter || self.host.work_time() < until {
            Search::All
        } else {
            Search::Nothing
        }
    }

    /// Finds out what is mapped in a process, and where its interpreter keeps its frames; what `search` does not allow for
    /// is postponed.
    fn examine(&mut self, pid: Pid, search: Search, emit: &mut dyn Emit) {
        let Some(entry) = self.tracked.get_mut(&pid) else {
            return;
        };
        // What we launch will be something else before its first instruction of interest: no tables for ourselves.
        if entry.target.as_ref().is_none_or(Target::is_own_image) {
            return;
        }
        if search == Search::Nothing {
            entry.postpone();
        } else {
            let is_sampling = self.began.is_some();
            entry.examination_timeout = if is_sampling {
                TIMEOUT
            } else {
                TIMEOUT_AT_START
            };
            let mut means = Means {
                host: &self.host,
                reader: &mut self.reader,
                emit,
            };
            entry.read_mappings(pid, search, &mut means);
            entry.examination_timeout = TIMEOUT;
        }
        self.mark_if_stale(pid);
    }

    /// Sampling begins: the CPU time of the targets counts from now on.
    pub fn begin_counting(&mut self) {
        self.began = Some(self.host.since_boot());
        for entry in self.tracked.values_mut() {
            entry.cpu_at_start = entry
                .target
                .as_ref()
                .map_or(Duration::ZERO, Target::cpu_time);
        }
    }

    /// Sampling has stopped: CPU time of the targets does not count any more.
    pub fn sampling_stopped(&mut self) {
        self.tracked
            .values_mut()
            .for_each(Tracked::sampling_stopped);
    }
}

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
