//! What the resolver remembers of one process: its perf map, where its files are mapped, and what was seen of it.

use std::time::Instant;

use rustc_hash::FxHashMap;

use super::{
    MapState, NameDiagnosis, NameFacts,
    contest::Contest,
    diagnose,
    perf_map::{PerfMapEvent, PerfMapFile, PerfMapLimits, PerfMapLocation, PerfMapState, Refusal},
    recent::{Recent, Seen},
};
use crate::{
    model::{Avma, Frame, LocationId, Pid},
    process::{Pace, ProcessMap, PythonInfo, Target},
};

/// Addresses remembered of one process; past it they are looked up again.
const CACHED_ADDRESSES_MAX: usize = 1 << 20;

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
    inherited: Vec<(PerfMapFile, Contest)>,
    contest: Contest,
    map_replacements: u64,
    map_generation: u64,
    map_pace: Pace,
    pub(super) map_is_open: bool,
    pub(super) mappings: ProcessMap,
    pub(super) modules: FxHashMap<Avma, ModuleIndex>,
    pub(super) python: PythonInfo,
    cache: FxHashMap<Avma, LocationId>,
    missed: Vec<Avma>,
    pub(super) recent: Recent,
    pub(super) counts: Counts,
}

/// What a process has written until now.
fn perf_map_of(target: &Target) -> PerfMapFile {
    let location = PerfMapLocation {
        directory: target.perf_map_directory(),
        ns_pid: target.ns_pid,
        owner_uid: target.uid,
    };
    let mut map = PerfMapFile::new(location, PerfMapLimits::default());
    map.refresh();
    map
}

impl Process {
    /// Nothing is known of its mappings. The perf map is read at once.
    pub(super) fn new(target: &Target, python: PythonInfo) -> Self {
        let map = perf_map_of(target);
        let ancestors = target.forked_from();
        Self {
            inherited: ancestors
                .iter()
                .map(|ancestor| (perf_map_of(ancestor), Contest::new(ancestor.pid)))
                .collect(),
            contest: Contest::new(target.pid),
            map_replacements: map.map().replacements(),
            map_generation: map.map().generation(),
            map_pace: Pace::default(),
            map,
            map_is_open: false,
            mappings: ProcessMap::default(),
            modules: FxHashMap::default(),
            python,
            cache: FxHashMap::default(),
            missed: Vec::new(),
            recent: Recent::default(),
            counts: Counts::default(),
        }
    }

    /// The perf map's name for an address; reads what was added to the map before giving up, since CPython writes the
    /// line before the first execution (`compile_trampoline`, Python/perf_trampoline.c).
    pub(super) fn name_of(&mut self, at: Avma) -> Option<Frame> {
        self.own_name_of(at).or_else(|| {
            self.refresh_map();
            // What the process made itself counts first: the parent may have gone on at the same addresses.
            self.own_name_of(at).or_else(|| {
                let inherited = &mut self.inherited;
                inherited
                    .iter_mut()
                    .find_map(|(map, contest)| contest.name(map, at, true))
            })
        })
    }

    fn own_name_of(&mut self, at: Avma) -> Option<Frame> {
        let rival = self.contest.rival();
        // What the process ran, it has mapped; and what it has named itself, it has written there.
        let is_its_own = self.map_is_open && self.mappings.find(at).is_some();
        let frame = self.contest.name(&self.map, at, is_its_own);
        if self.contest.rival() != rival {
            // Names that were believed before may be the other's.
            self.forget_addresses();
            self.map_generation = 0;
        }
        frame
    }

    /// Another process that writes its perf map, or one of those it inherited.
    pub(super) fn rival(&self) -> Option<Pid> {
        let contests = self.inherited.iter().map(|(_, contest)| contest);
        std::iter::once(&self.contest)
            .chain(contests)
            .find_map(Contest::rival)
    }

    /// Reads what was added to the perf map. One that is replaced all the time is read anew only so often.
    pub(super) fn refresh_map(&mut self) {
        if self.map_pace.is_resting() {
            return;
        }
        let began = Instant::now();
        let refresh = self.map.refresh();
        // What is only added is bounded by the file's size.
        if !matches!(refresh.event, None | Some(PerfMapEvent::Appeared)) {
            self.map_pace.spent(began.elapsed());
        }
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
