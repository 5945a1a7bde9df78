//! What the resolver remembers of one process: its perf map, where its files are mapped, and what was seen of it.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::{
    MapState, NameDiagnosis, NameFacts, diagnose,
    perf_map::{
        PerfMapEvent, PerfMapFile, PerfMapLimits, PerfMapLocation, PerfMapMemory, PerfMapState,
        Refusal,
    },
    python_name::frame_from_perf_map_name,
    recent::{Recent, Seen},
};
use crate::{
    model::{Avma, Frame, LocationId},
    process::{Pace, ProcessMap, PythonInfo, Target, thread_time},
};

/// Addresses remembered of one process; past it they are looked up again.
const CACHED_ADDRESSES_MAX: usize = 1 << 20;

/// Work on one perf map while samples wait: so much at a stretch, and that part of the time. A process that writes more
/// is read with a delay, and has names only later. It is enough for some hundred thousand ordinary entries a second.
const MAP_WORK_AT_ONCE: Duration = Duration::from_millis(20);
const MAP_WORK_SHARE: u32 = 3;

/// Index in `Resolver::modules`.
pub(super) type ModuleIndex = u32;

/// Counts of one process's samples, for [`diagnose`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    trampoline_frames: u64,
    named_frames: u64,
    interpreter_samples: u64,
    without_outer_trampoline: u64,
}

/// What is known of one process.
pub(super) struct Process {
    pub(super) map: PerfMapFile,
    /// The perf maps of the processes that this one was forked from, as they were at first.
    inherited: Vec<PerfMapFile>,
    map_replacements: u64,
    map_generation: u64,
    map_pace: Pace,
    map_allowance: Allowance,
    pub(super) map_is_open: bool,
    pub(super) mappings: ProcessMap,
    pub(super) modules: FxHashMap<Avma, ModuleIndex>,
    pub(super) python: PythonInfo,
    cache: FxHashMap<Avma, LocationId>,
    missed: Vec<Avma>,
    pub(super) recent: Recent,
    pub(super) counts: Counts,
}

/// Work that may be done now. It is measured in CPU time: on a busy machine no less of it is done.
struct Allowance {
    left: Duration,
    since: Instant,
}

impl Allowance {
    fn new() -> Self {
        Self {
            left: MAP_WORK_AT_ONCE,
            since: Instant::now(),
        }
    }

    /// What there is, with what was earned since the last time.
    fn left(&mut self) -> Duration {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.since);
        self.left = (self.left + passed / MAP_WORK_SHARE).min(MAP_WORK_AT_ONCE);
        self.since = now;
        self.left
    }

    const fn spend(&mut self, work: Duration) {
        self.left = self.left.saturating_sub(work);
    }
}

/// The map of a process, of which nothing has been read.
fn unread_map_of(target: &Target, memory: &PerfMapMemory) -> PerfMapFile {
    let location = PerfMapLocation {
        directory: target.perf_map_directory(),
        ns_pid: target.ns_pid,
        owner_uid: target.uid,
    };
    PerfMapFile::sharing(location, PerfMapLimits::default(), memory.clone())
}

/// What a process has written until now.
fn perf_map_of(target: &Target, memory: &PerfMapMemory) -> PerfMapFile {
    let mut map = unread_map_of(target, memory);
    map.refresh();
    map
}

impl Process {
    /// Nothing is known of its mappings. The beginning of the perf map is read at once.
    pub(super) fn new(target: &Target, python: PythonInfo, memory: &PerfMapMemory) -> Self {
        let map = unread_map_of(target, memory);
        let ancestors = target.forked_from();
        let mut process = Self {
            inherited: ancestors
                .iter()
                .map(|ancestor| perf_map_of(ancestor, memory))
                .collect(),
            map_replacements: map.map().replacements(),
            map_generation: map.map().generation(),
            map_pace: Pace::default(),
            map_allowance: Allowance::new(),
            map,
            map_is_open: false,
            mappings: ProcessMap::default(),
            modules: FxHashMap::default(),
            python,
            cache: FxHashMap::default(),
            missed: Vec::new(),
            recent: Recent::default(),
            counts: Counts::default(),
        };
        process.refresh_map();
        process
    }

    /// The perf map's name for an address; reads what was added to the map before giving up, since CPython writes the
    /// line before the first execution (`compile_trampoline`, Python/perf_trampoline.c).
    pub(super) fn name_of(&mut self, at: Avma) -> Option<Frame> {
        if let Some(name) = self.map.map().name_at(at) {
            return Some(frame_from_perf_map_name(name.bytes));
        }
        self.refresh_map();
        // What the process made itself counts first: the parent may have gone on at the same addresses.
        let maps = std::iter::once(&self.map).chain(&self.inherited);
        maps.filter_map(|map| map.map().name_at(at))
            .map(|name| frame_from_perf_map_name(name.bytes))
            .next()
    }

    /// Reads what was added to the perf map. One that is replaced all the time is read anew only so often, and of one that
    /// grows without end only so much. Returns true when there may be more to read.
    pub(super) fn refresh_map(&mut self) -> bool {
        if self.map_pace.is_resting() {
            return true;
        }
        let (left, begun) = (self.map_allowance.left(), thread_time());
        let began = Instant::now();
        let worked = || thread_time().saturating_sub(begun);
        let refresh = self.map.refresh_while(|| worked() < left);
        self.map_allowance.spend(worked());
        // What is only added is bounded by the file's size.
        if !matches!(refresh.event, None | Some(PerfMapEvent::Appeared)) {
            self.map_pace.spent(began.elapsed());
        }
        self.note_map_changes();
        refresh.is_behind
    }

    /// Reads the whole perf map, however long that takes: nothing else waits for it.
    pub(super) fn read_whole_map(&mut self) {
        self.map.refresh();
        self.note_map_changes();
    }

    /// Names that are not right any more are forgotten.
    fn note_map_changes(&mut self) {
        let map = self.map.map();
        let (replacements, generation) = (map.replacements(), map.generation());
        if replacements != self.map_replacements {
            self.forget_addresses();
        } else if generation != self.map_generation {
            for at in self.missed.drain(..) {
                self.cache.remove(&at);
            }
            self.recent.clear();
        }
        self.map_replacements = replacements;
        self.map_generation = generation;
    }

    /// The location of an address, if it is remembered.
    pub(super) fn remembered(&self, at: Avma) -> Option<LocationId> {
        self.cache.get(&at).copied()
    }

    /// Remembers the location of an address; `named`: more of the perf map will not change it.
    pub(super) fn remember(&mut self, at: Avma, id: LocationId, named: bool) {
        if self.cache.len() >= CACHED_ADDRESSES_MAX {
            return;
        }
        self.cache.insert(at, id);
        if !named {
            self.missed.push(at);
        }
    }

    /// Mappings or names are others now.
    pub(super) fn forget_addresses(&mut self) {
        self.cache.clear();
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
        } = self.counts;
        diagnose(&NameFacts {
            python: &self.python,
            map: match self.map.state() {
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
        let path = self.map.location().path();
        if let PerfMapState::Refused(refusal) = self.map.state() {
            complaints.push(format!("{} was not read: {refusal}", path.display()));
        }
        let counters = self.map.map().counters();
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

impl Counts {
    /// Counts a sample.
    pub(super) fn add(&mut self, seen: Seen) {
        let Seen {
            named_frames,
            trampoline_frames,
            interpreter,
            outermost_is_root,
        } = seen;
        self.named_frames += u64::from(named_frames);
        self.trampoline_frames += u64::from(trampoline_frames);
        if interpreter {
            self.interpreter_samples += 1;
            self.without_outer_trampoline += u64::from(outermost_is_root != Some(true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_allowed_at_a_stretch_and_a_third_of_the_time() {
        let mut allowance = Allowance::new();
        assert_eq!(allowance.left(), MAP_WORK_AT_ONCE);
        allowance.spend(2 * MAP_WORK_AT_ONCE);
        assert!(allowance.left() < MAP_WORK_AT_ONCE);
        allowance.left = Duration::ZERO;
        allowance.since -= Duration::from_millis(30);
        assert!(allowance.left() >= Duration::from_millis(10));
        allowance.since -= Duration::from_secs(50);
        assert_eq!(allowance.left(), MAP_WORK_AT_ONCE);
    }
}
