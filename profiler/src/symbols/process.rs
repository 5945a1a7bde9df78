//! What is known of one process while its addresses are turned into locations.

use rustc_hash::FxHashMap;

use super::{
    MapState, NameDiagnosis, NameFacts, diagnose,
    locations::Traits,
    perf_map::{PerfMapFile, PerfMapLimits, PerfMapLocation, PerfMapState, Refusal},
    python_name::frame_from_perf_map_name,
};
use crate::{
    model::{Avma, CodeAddress, Frame, LocationId},
    process::{ProcessMap, PythonInfo, Target},
};

/// Index in the resolver's list of modules.
pub(super) type ModuleIndex = u32;

/// What is known of one process.
pub(super) struct Process {
    pub(super) map: PerfMapFile,
    map_replacements: u64,
    map_generation: u64,
    pub(super) map_is_open: bool,
    pub(super) mappings: ProcessMap,
    pub(super) modules: FxHashMap<Avma, ModuleIndex>,
    pub(super) python: PythonInfo,
    pub(super) cache: FxHashMap<Avma, LocationId>,
    pub(super) missed: Vec<Avma>,
    pub(super) recent: Recent,
    pub(super) counts: Counts,
}

/// Counts of one process's samples, for [`diagnose`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    trampoline_frames: u64,
    named_frames: u64,
    interpreter_samples: u64,
    without_outer_trampoline: u64,
}

/// The stack resolved last. The next one has most of its outer frames in common, which need no look-up.
/// Held outermost first, so that only what changes is written.
#[derive(Default)]
pub(super) struct Recent {
    addresses: Vec<CodeAddress>,
    ids: Vec<LocationId>,
}

impl Process {
    /// Reads the perf map of a process that nothing is known of yet.
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
        if let Some(name) = self.map.map().name_at(at) {
            return Some(frame_from_perf_map_name(name.bytes));
        }
        self.refresh_map();
        self.map
            .map()
            .name_at(at)
            .map(|name| frame_from_perf_map_name(name.bytes))
    }

    pub(super) fn refresh_map(&mut self) {
        self.map.refresh();
        let map = self.map.map();
        let (replacements, generation) = (map.replacements(), map.generation());
        if replacements != self.map_replacements {
            self.forget_addresses();
        } else if generation != self.map_generation && !self.missed.is_empty() {
            for at in self.missed.drain(..) {
                self.cache.remove(&at);
            }
            self.recent.clear();
        }
        self.map_replacements = replacements;
        self.map_generation = generation;
    }

    /// Addresses may mean something else from now on.
    pub(super) fn forget_addresses(&mut self) {
        self.cache.clear();
        self.missed.clear();
        self.recent.clear();
    }

    /// Has changed whenever addresses that were looked up before may mean something else.
    pub(super) const fn map_version(&self) -> (u64, u64) {
        (self.map_replacements, self.map_generation)
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
                "{}: {junk} lines are not perf-map entries and were skipped",
                path.display()
            ));
        }
        if refused > 0 {
            complaints.push(format!(
                "{}: {refused} entries are past the limits and were left out",
                path.display()
            ));
        }
        complaints
    }
}

impl Recent {
    /// How many of the outermost frames a stack has in common with this one.
    pub(super) fn in_common(&self, user: &[CodeAddress]) -> usize {
        let pairs = user.iter().rev().zip(&self.addresses);
        pairs.take_while(|(new, old)| new == old).count()
    }

    /// Appends the locations of so many of the outermost frames, outermost last. False: it has been emptied since.
    pub(super) fn append_outermost(&self, count: usize, locations: &mut Vec<LocationId>) -> bool {
        let known = self.ids.get(..count);
        locations.extend(known.into_iter().flatten().rev());
        known.is_some()
    }

    /// Becomes this stack, whose outermost `common` frames it has already.
    pub(super) fn replace(&mut self, common: usize, user: &[CodeAddress], ids: &[LocationId]) {
        let common = common.min(self.ids.len());
        self.addresses.truncate(common);
        self.addresses.extend(user.iter().rev().skip(common));
        self.ids.truncate(common);
        self.ids.extend(ids.iter().rev().skip(common));
    }

    pub(super) fn clear(&mut self) {
        self.addresses.clear();
        self.ids.clear();
    }
}

/// What one sample's frames say about names, outermost last.
#[derive(Default)]
pub(super) struct SampleTraits {
    interpreter: bool,
    outermost_python_is_root: Option<bool>,
}

impl SampleTraits {
    pub(super) fn add(&mut self, traits: Traits, counts: &mut Counts) {
        counts.named_frames += u64::from(traits.is_python);
        counts.trampoline_frames += u64::from(traits.is_python || traits.is_unnamed_jit);
        self.interpreter |= traits.is_interpreter;
        if traits.is_python || traits.is_unnamed_jit {
            self.outermost_python_is_root = Some(traits.is_root || traits.is_unnamed_jit);
        }
    }

    pub(super) fn finish(&self, counts: &mut Counts) {
        if self.interpreter {
            counts.interpreter_samples += 1;
            counts.without_outer_trampoline +=
                u64::from(self.outermost_python_is_root != Some(true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(addresses: &[u64]) -> (Vec<CodeAddress>, Vec<LocationId>) {
        let caller = |&at| CodeAddress::Caller(Avma(at));
        let id = |&at| LocationId(at as u32);
        (
            addresses.iter().map(caller).collect(),
            addresses.iter().map(id).collect(),
        )
    }

    #[test]
    fn outer_frames_of_the_stack_before_are_known() {
        let mut recent = Recent::default();
        let (user, ids) = stack(&[5, 3, 2, 1]);
        recent.replace(recent.in_common(&user), &user, &ids);
        // Deeper, shallower, and another one altogether.
        for (addresses, common) in [(&[9, 8, 3, 2, 1][..], 3), (&[2, 1], 2), (&[7], 0)] {
            let (user, ids) = stack(addresses);
            assert_eq!(recent.in_common(&user), common);
            let mut known = Vec::new();
            assert!(recent.append_outermost(common, &mut known));
            assert_eq!(known, ids[ids.len() - common..]);
            recent.replace(common, &user, &ids);
            assert_eq!(recent.in_common(&user), user.len());
        }
    }

    #[test]
    fn the_same_address_as_leaf_and_as_caller_is_not_in_common() {
        let mut recent = Recent::default();
        let (user, ids) = stack(&[2, 1]);
        recent.replace(0, &user, &ids);
        let leaf = [CodeAddress::Leaf(Avma(2)), user[1]];
        assert_eq!(recent.in_common(&leaf), 1);
    }

    #[test]
    fn an_emptied_one_knows_nothing() {
        let mut recent = Recent::default();
        let (user, ids) = stack(&[2, 1]);
        recent.replace(0, &user, &ids);
        recent.clear();
        assert!(!recent.append_outermost(2, &mut Vec::new()));
        assert_eq!(recent.in_common(&user), 0);
    }
}
