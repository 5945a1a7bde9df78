//! What the resolver remembers of one process: its perf map, where its files are mapped, and what was seen of it.

use std::time::Instant;

use rustc_hash::FxHashMap;

use super::{
    locations::Traits,
    perf_map::{PerfMapEvent, PerfMapFile, PerfMapLimits, PerfMapLocation},
    python_name::frame_from_perf_map_name,
};
use crate::{
    model::{Avma, Frame, LocationId},
    process::{Pace, ProcessMap, PythonInfo, Target},
};

/// Addresses remembered of one process; past it they are looked up again.
const CACHED_ADDRESSES_MAX: usize = 1 << 20;

/// Index in `Resolver::modules`.
pub(super) type ModuleIndex = u32;

/// Counts of one process's samples, for [`diagnose`](super::diagnose).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) trampoline_frames: u64,
    pub(super) named_frames: u64,
    pub(super) interpreter_samples: u64,
    pub(super) without_outer_trampoline: u64,
}

/// What is known of one process.
pub(super) struct Process {
    pub(super) map: PerfMapFile,
    map_replacements: u64,
    map_generation: u64,
    map_pace: Pace,
    pub(super) map_is_open: bool,
    pub(super) mappings: ProcessMap,
    pub(super) modules: FxHashMap<Avma, ModuleIndex>,
    pub(super) python: PythonInfo,
    cache: FxHashMap<Avma, LocationId>,
    missed: Vec<Avma>,
    pub(super) counts: Counts,
}

impl Process {
    /// Nothing is known of its mappings. The perf map is read at once.
    pub(super) fn new(target: &Target, python: PythonInfo) -> Self {
        let location = PerfMapLocation {
            directory: target.perf_map_directory(),
            ns_pid: target.ns_pid,
            owner_uid: target.uid,
        };
        let mut map = PerfMapFile::new(location, PerfMapLimits::default());
        map.refresh();
        Self {
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
            counts: Counts::default(),
        }
    }

    /// The perf map's name for an address; reads what was added to the map before giving up, since CPython writes the
    /// line before the first execution (`compile_trampoline`, Python/perf_trampoline.c).
    pub(super) fn name_of(&mut self, at: Avma) -> Option<Frame> {
        if let Some(name) = self.map.map().name_at(at) {
            return Some(frame_from_perf_map_name(name.bytes));
        }
        self.refresh_map();
        self.map
            .map()
            .name_at(at)
            .map(|name| frame_from_perf_map_name(name.bytes))
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
    }
}

/// What one sample's frames say about names, outermost last.
#[derive(Default)]
pub(super) struct SampleTraits {
    interpreter: bool,
    outermost_python_is_root: Option<bool>,
}

impl SampleTraits {
    /// Takes in a frame.
    pub(super) fn add(&mut self, traits: Traits, counts: &mut Counts) {
        counts.named_frames += u64::from(traits.is_python);
        counts.trampoline_frames += u64::from(traits.is_python || traits.is_unnamed_jit);
        self.interpreter |= traits.is_interpreter;
        if traits.is_python || traits.is_unnamed_jit {
            self.outermost_python_is_root = Some(traits.is_root || traits.is_unnamed_jit);
        }
    }

    /// Takes in the sample's end.
    pub(super) fn finish(&self, counts: &mut Counts) {
        if self.interpreter {
            counts.interpreter_samples += 1;
            counts.without_outer_trampoline +=
                u64::from(self.outermost_python_is_root != Some(true));
        }
    }
}
