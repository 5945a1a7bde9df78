//! What the resolver remembers of one process: its perf map, where its files are mapped, and what was seen of it.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;

use super::{
    MapState, NameDiagnosis, NameFacts,
    allowance::Allowance,
    budgets::{Budgets, MAPPING_BYTES, MAPPING_BYTES_OF_EACH},
    contest::Contest,
    counts::Counts,
    diagnose,
    locations::Locations,
    perf_map::{
        PerfMapBeginning, PerfMapEvent, PerfMapFile, PerfMapLimits, PerfMapLocation,
        PerfMapPosition, PerfMapState, Refusal,
    },
    python_codes::PythonCodes,
    recent::Recent,
    shared_memory::Share,
};
use crate::{
    model::{Avma, Frame, KtimeNs, Location, LocationId, Pid},
    process::{
        ForkedChild, Pace, ProcessMap, PythonInfo, Target, file_time_at,
        interpreter::PatientReader, now_monotonic, perf_map_directory, perf_map_handle,
        thread_time,
    },
};

/// What an address takes that is remembered, in a hash table that is half full.
const CACHED_ADDRESS_BYTES: usize = 40;

/// Perf maps of ancestors that are looked into.
const ANCESTORS_MAX: usize = 16;

/// Index in `Resolver::modules`.
pub(super) type ModuleIndex = u32;

/// A perf map that several processes have names in: its own one, and forked children.
type SharedMap = Arc<Mutex<OwnedMap>>;

/// A perf map, and who else writes it.
pub(super) struct OwnedMap {
    file: PerfMapFile,
    contest: Contest,
    /// There is more in the file than was read.
    is_behind: bool,
    /// Its process runs another program now: what is added is not this one's.
    is_frozen: bool,
}

/// What is known of one program in one process.
pub(super) struct Process {
    pub(super) pid: Pid,
    map: SharedMap,
    /// The perf maps of the processes that this one was forked from since its last `exec`, the nearest first.
    inherited: Vec<SharedMap>,
    map_replacements: u64,
    map_generation: u64,
    map_pace: Pace,
    map_allowance: Allowance,
    pub(super) map_is_open: bool,
    // These two are its parent's, too, until one of them maps something.
    pub(super) mappings: Arc<ProcessMap>,
    pub(super) modules: Arc<FxHashMap<Avma, ModuleIndex>>,
    pub(super) python: PythonInfo,
    /// Its interpreter, where its frames are read.
    pub(super) codes: Option<PythonCodes>,
    cache: FxHashMap<Avma, LocationId>,
    cache_share: Share,
    mapping_share: Share,
    budgets: Budgets,
    /// Until when the perf map was read to its end, by the clock of samples.
    map_read_until: Option<KtimeNs>,
    /// All that was in it when the sample was taken was read.
    is_map_current: bool,
    missed: Vec<Avma>,
    pub(super) recent: Recent,
    pub(super) counts: Counts,
}

/// The map of a process, as far as there is time to read it.
fn perf_map_of(target: &Target, budgets: &Budgets) -> SharedMap {
    let location = PerfMapLocation {
        directory: target.perf_map_directory(),
        ns_pid: target.ns_pid,
        owner_uid: target.uid,
    };
    let began = file_time_at(target.started());
    let beginning = PerfMapBeginning {
        // Writers keep their map open. One that is not, and is older than the process, was left by another process.
        not_before: perf_map_handle(target).is_none().then_some(began),
        read_before: None,
        began: Some(began),
    };
    let map = unread_map(location, budgets).beginning_at(beginning);
    let map = share(map, target.pid);
    let begun = thread_time();
    lock(&map).read_on(budgets.map_work.left(Instant::now()));
    budgets.map_work.spend(thread_time().saturating_sub(begun));
    map
}

fn unread_map(location: PerfMapLocation, budgets: &Budgets) -> PerfMapFile {
    let memory = budgets.perf_maps.clone();
    PerfMapFile::sharing(location, PerfMapLimits::default(), memory)
}

/// The map of a process. It is read when a name is looked for.
fn share(file: PerfMapFile, owner: Pid) -> SharedMap {
    Arc::new(Mutex::new(OwnedMap {
        file,
        contest: Contest::new(owner),
        is_behind: true,
        is_frozen: false,
    }))
}

/// The value is whole whenever the lock is free, also after a panic.
fn lock(map: &SharedMap) -> MutexGuard<'_, OwnedMap> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Nothing is known of its mappings. The beginning of the perf map is read at once, and of those of its ancestors, of
    /// which `known` are followed already.
    pub(super) fn new(
        target: &Target,
        python: PythonInfo,
        known: impl Fn(Pid) -> Option<SharedMap>,
        budgets: &Budgets,
    ) -> Self {
        let ancestors = target.forked_from();
        let inherited = ancestors
            .iter()
            .map(|ancestor| known(ancestor.pid).unwrap_or_else(|| perf_map_of(ancestor, budgets)))
            .collect();
        let map = perf_map_of(target, budgets);
        Self::with_maps(target.pid, map, inherited, python, budgets)
    }

    fn with_maps(
        pid: Pid,
        map: SharedMap,
        inherited: Vec<SharedMap>,
        python: PythonInfo,
        budgets: &Budgets,
    ) -> Self {
        let (map_replacements, map_generation) = version(&lock(&map).file);
        Self {
            pid,
            inherited,
            map_replacements,
            map_generation,
            map_pace: Pace::default(),
            map_allowance: Allowance::new(Instant::now(), &budgets.map_work),
            map,
            map_is_open: false,
            mappings: Arc::default(),
            modules: Arc::default(),
            python,
            codes: None,
            cache: FxHashMap::default(),
            cache_share: Share::new(budgets.addresses.clone()),
            mapping_share: Share::new(budgets.mappings.clone()),
            budgets: budgets.clone(),
            map_read_until: None,
            is_map_current: false,
            missed: Vec::new(),
            recent: Recent::default(),
            counts: Counts::default(),
        }
    }

    /// A child process, with all that its parent has. Costs no more than its own perf map.
    pub(super) fn forked(&self, pid: Pid, child: ForkedChild<'_>) -> Self {
        let mut parents = lock(&self.map);
        // What the parent wrote before the child was made, should a name be missing.
        parents.is_behind = true;
        let own = &parents.file;
        let map_of = |ns_pid, since_boot, owner| {
            let began = file_time_at(since_boot);
            let beginning = PerfMapBeginning {
                not_before: Some(began),
                read_before: None,
                began: Some(began),
            };
            let location = PerfMapLocation {
                directory: perf_map_directory(pid),
                ns_pid,
                owner_uid: own.location().owner_uid,
            };
            let map = unread_map(location, &self.budgets).with_directory_of(own);
            share(map.beginning_at(beginning), owner)
        };
        let map = map_of(child.ns_pid, child.since_boot, pid);
        let between: Vec<_> = child
            .between
            .iter()
            .map(|&(ns_pid, since_boot)| map_of(ns_pid, since_boot, Pid(0)))
            .collect();
        drop(parents);
        let ancestors = between.into_iter().chain([Arc::clone(&self.map)]);
        let ancestors = ancestors.chain(self.inherited.iter().cloned());
        let inherited = ancestors.take(ANCESTORS_MAX).collect();
        Self {
            mappings: Arc::clone(&self.mappings),
            modules: Arc::clone(&self.modules),
            codes: self.codes.as_ref().map(|codes| codes.forked(pid)),
            ..Self::with_maps(pid, map, inherited, self.python.clone(), &self.budgets)
        }
    }

    /// The program that has replaced this one in its process. Nothing is known of it, and nothing is left of the old one
    /// but where the perf map is, and what in it is not the new one's.
    ///
    /// `is_fresh`: it has only just begun, so that all that is in the map by now is the old one's.
    pub(super) fn replaced(&self, since_boot: Duration, is_fresh: bool) -> Self {
        let mut map = lock(&self.map);
        map.is_frozen = true;
        let own = &map.file;
        let began = file_time_at(since_boot);
        let position = if is_fresh {
            own.position_now().map(PerfMapPosition::as_end)
        } else {
            own.position()
        };
        let beginning = PerfMapBeginning {
            not_before: Some(began),
            read_before: position,
            began: Some(began),
        };
        let location = own.location().clone();
        let map = unread_map(location, &self.budgets)
            .with_directory_of(own)
            .beginning_at(beginning);
        let map = share(map, self.pid);
        let python = PythonInfo::unknown();
        Self::with_maps(self.pid, map, Vec::new(), python, &self.budgets)
    }

    /// Gives names to Python frames whose code objects could not be read at once; `last_wait`: for the last time, with a
    /// wait of so long for each request.
    pub(super) fn name_late_code(
        &mut self,
        locations: &mut Locations,
        reader: &mut PatientReader,
        last_wait: Option<Duration>,
    ) {
        let waiting = self.codes.as_mut().filter(|codes| codes.is_waiting());
        let Some(codes) = waiting else {
            return;
        };
        let named = match last_wait {
            Some(timeout) => codes.finish(reader, timeout),
            None => codes.catch_up(reader),
        };
        for (id, frame) in named {
            let frames = vec![frame];
            locations.name(id, Location { frames });
        }
    }

    /// The user that it runs as, and so writes its map as.
    pub(super) fn set_owner(&mut self, uid: u32) {
        lock(&self.map).file.set_owner(uid);
    }

    /// The pid that its perf map has in its name.
    pub(super) fn map_ns_pid(&self) -> u32 {
        lock(&self.map).file.location().ns_pid
    }

    /// Its perf map, to be shared with a forked child.
    pub(super) fn shared_map(&self) -> SharedMap {
        Arc::clone(&self.map)
    }

    /// Follows the map through this descriptor of the process, if it has lost its name.
    pub(super) fn follow_handle(&mut self, handle: &Path) {
        self.map_is_open = true;
        let mut map = lock(&self.map);
        map.file.follow_handle(handle);
        let is_followed = matches!(map.file.state(), PerfMapState::Following);
        drop(map);
        if is_followed {
            self.refresh_map();
        }
    }

    /// The perf map's name for an address; reads what was added to the map before giving up, since CPython writes the
    /// line before the first execution (`compile_trampoline`, Python/perf_trampoline.c).
    pub(super) fn name_of(&mut self, at: Avma) -> Option<Frame> {
        let mut own = self.own_name_of(at);
        if own.is_none() && !self.is_map_current {
            self.refresh_map();
            own = self.own_name_of(at);
        }
        let has_foreign_lines = lock(&self.map).file.has_foreign_lines();
        if own.is_some() && !has_foreign_lines {
            return own;
        }
        let mut inherited = self.inherited.iter();
        let inherited = inherited.find_map(|map| lock(map).name_before_fork(at));
        match (own, inherited) {
            // One of them is another program's.
            (Some(own), Some(inherited)) if own != inherited => None,
            (own, inherited) => own.or(inherited),
        }
    }

    fn own_name_of(&mut self, at: Avma) -> Option<Frame> {
        // What the process ran, it has mapped; and what it has named itself, it has written there.
        let is_its_own = self.map_is_open && self.mappings.find(at).is_some();
        let mut map = lock(&self.map);
        let rival = map.contest.rival();
        let frame = map.name_at(at, is_its_own);
        let is_news = map.contest.rival() != rival;
        // Code that ran has an entry of its own process: where that is the only one, it is right.
        let is_doubtful = map.file.has_foreign_lines() && (!is_its_own || map.is_renamed(at));
        let frame = frame.filter(|_| !is_doubtful);
        drop(map);
        if is_news {
            // Names that were believed before may be the other's.
            self.forget_addresses();
            self.map_generation = 0;
        }
        frame
    }

    /// Code without a name may be a trampoline, and so a Python function that is missing. Where the interpreter's frames
    /// are read, or trampolines are not on, it is another compiler's.
    pub(super) fn may_have_trampolines(&self) -> bool {
        let is_on = self.map_is_open || self.python.trampolines_asked || self.python.jitdump;
        let is_refused = || matches!(lock(&self.map).file.state(), PerfMapState::Refused(_));
        // A forked child goes on with its parent's, whose map it does not have open under its own name.
        let is_followed =
            |map: &SharedMap| matches!(lock(map).file.state(), PerfMapState::Following);
        self.codes.is_none() && (is_on || is_refused() || self.inherited.iter().any(is_followed))
    }

    /// Another process that writes its perf map, or one of those it inherited.
    pub(super) fn rival(&self) -> Option<Pid> {
        std::iter::once(&self.map)
            .chain(&self.inherited)
            .find_map(|map| lock(map).contest.rival())
    }

    /// Reads what was added to the perf map. One that is replaced all the time is read anew only so often, and of one that
    /// grows without end only so much. Returns true when there may be more to read.
    pub(super) fn refresh_map(&mut self) -> bool {
        // Not again for each frame of the sample, whatever comes of it.
        self.is_map_current = true;
        if self.map_pace.is_resting(Instant::now()) {
            return true;
        }
        let (began, begun, until) = (Instant::now(), thread_time(), now_monotonic());
        let left = self.map_allowance.left(began);
        let mut map = lock(&self.map);
        let event = map.read_on(left);
        let is_behind = map.is_behind;
        drop(map);
        let worked = thread_time().saturating_sub(begun);
        self.map_allowance.spend(worked);
        // What is only added is bounded by the file's size.
        if !matches!(event, None | Some(PerfMapEvent::Appeared)) {
            self.map_pace.spent(Instant::now(), began.elapsed());
        }
        self.note_map_changes();
        let is_behind = is_behind | self.read_on_inherited();
        if !is_behind {
            self.map_read_until = Some(until);
        }
        is_behind
    }

    /// A sample is to be resolved. Code has its line in the perf map before it runs: what was read after the sample was
    /// taken need not be read again for it.
    pub(super) fn begin_sample(&mut self, taken: KtimeNs) {
        self.is_map_current = self.map_read_until.is_some_and(|until| taken < until);
    }

    /// Those of ancestors are read on when a child was made of them, to where they end now. What was added in between is
    /// not the child's: an address that it gives another name to is in doubt (`name_before_fork`).
    fn read_on_inherited(&mut self) -> bool {
        let (mut was_read, mut is_behind) = (false, false);
        for map in &self.inherited {
            let mut map = lock(map);
            if map.is_behind {
                let begun = thread_time();
                map.read_on(self.map_allowance.left(Instant::now()));
                self.map_allowance
                    .spend(thread_time().saturating_sub(begun));
                was_read = true;
                is_behind |= map.is_behind;
            }
        }
        if was_read {
            self.missed_may_have_names();
        }
        is_behind
    }

    /// Reads the perf map as long as `may_go_on` says so.
    pub(super) fn read_map_while(&mut self, may_go_on: impl FnMut() -> bool) {
        lock(&self.map).read_on_while(may_go_on);
        self.missed_may_have_names();
        self.note_map_changes();
    }

    /// Names that are not right any more are forgotten.
    fn note_map_changes(&mut self) {
        let (replacements, generation) = version(&lock(&self.map).file);
        if replacements != self.map_replacements {
            self.forget_addresses();
        } else if generation != self.map_generation {
            self.missed_may_have_names();
        }
        self.map_replacements = replacements;
        self.map_generation = generation;
    }

    fn missed_may_have_names(&mut self) {
        for at in self.missed.drain(..) {
            self.cache.remove(&at);
        }
        self.recent.clear();
    }

    /// The location of an address, if it is remembered.
    pub(super) fn remembered(&self, at: Avma) -> Option<LocationId> {
        self.cache.get(&at).copied()
    }

    /// Remembers the location of an address; `named`: more of the perf map will not change it.
    pub(super) fn remember(&mut self, at: Avma, id: LocationId, named: bool) {
        if !self.cache_share.has_room(CACHED_ADDRESS_BYTES) {
            return;
        }
        self.cache.insert(at, id);
        self.cache_share
            .set(self.cache.len() * CACHED_ADDRESS_BYTES);
        if !named {
            self.missed.push(at);
        }
    }

    /// How many of its mappings there is memory for.
    pub(super) fn room_for_mappings(&mut self, wanted: usize) -> usize {
        if self.mapping_share.set(wanted * MAPPING_BYTES) {
            return wanted;
        }
        let kept = wanted.min(MAPPING_BYTES_OF_EACH / MAPPING_BYTES);
        self.mapping_share.set(kept * MAPPING_BYTES);
        kept
    }

    /// Mappings or names are others now.
    pub(super) fn forget_addresses(&mut self) {
        self.cache = FxHashMap::default();
        self.cache_share.set(0);
        self.missed.clear();
        self.recent.clear();
    }

    /// Why its Python functions have, or do not have, names.
    pub(super) fn diagnosis(&self) -> NameDiagnosis {
        let Counts {
            trampoline_frames,
            named_frames,
            interpreter_samples,
            without_outer_trampoline,
            ..
        } = self.counts;
        let map = &lock(&self.map).file;
        diagnose(&NameFacts {
            python: &self.python,
            frames_are_read: self.codes.is_some(),
            map: match map.state() {
                PerfMapState::Missing => MapState::Missing,
                PerfMapState::Refused(Refusal::Io { .. }) => MapState::Unreadable,
                PerfMapState::Refused(_) => MapState::Refused,
                PerfMapState::Following => MapState::Ok,
            },
            map_is_open: self.map_is_open,
            trampoline_frames,
            named_frames,
            interpreter_samples,
            samples_without_outer_trampoline: without_outer_trampoline,
        })
    }

    /// What was wrong with its perf map, ready to be shown.
    pub(super) fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        let map = &lock(&self.map).file;
        let path = map.location().path();
        if let PerfMapState::Refused(refusal) = map.state() {
            complaints.push(format!("{} was not read: {refusal}", path.display()));
        }
        let counters = map.map().counters();
        let (junk, refused) = (counters.junk(), counters.refused);
        if junk > 0 {
            complaints.push(format!(
                "{}: lines that are not perf-map entries were skipped ({junk})",
                path.display()
            ));
        }
        if refused > 0 {
            complaints.push(format!(
                "{}: entries past the limits were left out ({refused})",
                path.display()
            ));
        }
        complaints
    }

    /// Changes whenever addresses that were looked up before may mean something else.
    pub(super) const fn map_version(&self) -> (u64, u64) {
        (self.map_replacements, self.map_generation)
    }
}

impl OwnedMap {
    /// Reads what was added, for so long at most.
    fn read_on(&mut self, limit: Duration) -> Option<PerfMapEvent> {
        let begun = thread_time();
        self.read_on_while(|| thread_time().saturating_sub(begun) < limit)
    }

    /// The same as long as `may_go_on` says so, which is asked before each piece of at most 128 KiB.
    fn read_on_while(&mut self, may_go_on: impl FnMut() -> bool) -> Option<PerfMapEvent> {
        if self.is_frozen {
            self.is_behind = false;
            return None;
        }
        let refresh = self.file.refresh_while(may_go_on);
        self.is_behind = refresh.is_behind;
        refresh.event
    }

    fn name_at(&mut self, at: Avma, is_writer: bool) -> Option<Frame> {
        self.contest.name(&self.file, at, is_writer)
    }

    /// For a forked child, whose parent may have gone on since: an address that got another name is in doubt.
    fn name_before_fork(&mut self, at: Avma) -> Option<Frame> {
        if self.is_renamed(at) {
            return None;
        }
        self.name_at(at, true)
    }

    /// Entries of several names have covered the address.
    fn is_renamed(&self, at: Avma) -> bool {
        self.file.map().name_at(at).is_some_and(|it| it.is_renamed)
    }
}

/// Changes of either mean that addresses have other names, or more of them have one.
fn version(map: &PerfMapFile) -> (u64, u64) {
    (map.map().replacements(), map.map().generation())
}
