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
    /// Of each frame and those outside it.
    seen: Vec<Seen>,
}

/// What a stack, or the outer part of one, says about names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    named_frames: u32,
    trampoline_frames: u32,
    interpreter: bool,
    /// `None`: there is no Python frame.
    outermost_is_root: Option<bool>,
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
        let Some(known) = self.ids.get(..count) else {
            return false;
        };
        locations.extend(known.iter().rev());
        true
    }

    /// Becomes this stack, whose outermost `common` frames it has already.
    pub(super) fn replace(
        &mut self,
        common: usize,
        user: &[CodeAddress],
        ids: &[LocationId],
        traits: impl Fn(LocationId) -> Traits,
    ) {
        let common = common.min(self.ids.len());
        self.addresses.truncate(common);
        self.ids.truncate(common);
        self.seen.truncate(common);
        let mut seen = self.seen();
        for (&address, &id) in user.iter().zip(ids).rev().skip(common) {
            seen.add(traits(id));
            self.addresses.push(address);
            self.ids.push(id);
            self.seen.push(seen);
        }
    }

    /// What the whole stack says about names.
    pub(super) fn seen(&self) -> Seen {
        self.seen.last().copied().unwrap_or_default()
    }

    pub(super) fn clear(&mut self) {
        self.addresses.clear();
        self.ids.clear();
        self.seen.clear();
    }
}

impl Seen {
    /// One frame further in.
    fn add(&mut self, traits: Traits) {
        let is_trampoline = traits.is_python || traits.is_unnamed_jit;
        self.named_frames += u32::from(traits.is_python);
        self.trampoline_frames += u32::from(is_trampoline);
        self.interpreter |= traits.is_interpreter;
        if is_trampoline && self.outermost_is_root.is_none() {
            self.outermost_is_root = Some(traits.is_root || traits.is_unnamed_jit);
        }
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

    fn stack(addresses: &[u64]) -> (Vec<CodeAddress>, Vec<LocationId>) {
        let caller = |&at| CodeAddress::Caller(Avma(at));
        let id = |&at| LocationId(at as u32);
        (
            addresses.iter().map(caller).collect(),
            addresses.iter().map(id).collect(),
        )
    }

    /// Odd ones are Python functions, the first one without a caller.
    fn python(id: LocationId) -> Traits {
        Traits {
            is_python: id.0 % 2 == 1,
            is_root: id.0 == 1,
            ..Traits::default()
        }
    }

    #[test]
    fn outer_frames_of_the_stack_before_are_known() {
        let mut recent = Recent::default();
        let (user, ids) = stack(&[5, 3, 2, 1]);
        recent.replace(recent.in_common(&user), &user, &ids, python);
        // Deeper, shallower, and another one altogether.
        for (addresses, common) in [(&[9, 8, 3, 2, 1][..], 3), (&[2, 1], 2), (&[7], 0)] {
            let (user, ids) = stack(addresses);
            assert_eq!(recent.in_common(&user), common);
            let mut known = Vec::new();
            assert!(recent.append_outermost(common, &mut known));
            assert_eq!(known, ids[ids.len() - common..]);
            recent.replace(common, &user, &ids, python);
            assert_eq!(recent.in_common(&user), user.len());
            let mut whole = Recent::default();
            whole.replace(0, &user, &ids, python);
            assert_eq!(recent.seen(), whole.seen());
        }
    }

    #[test]
    fn the_same_address_as_leaf_and_as_caller_is_not_in_common() {
        let mut recent = Recent::default();
        let (user, ids) = stack(&[2, 1]);
        recent.replace(0, &user, &ids, python);
        let leaf = [CodeAddress::Leaf(Avma(2)), user[1]];
        assert_eq!(recent.in_common(&leaf), 1);
    }

    #[test]
    fn the_outermost_python_frame_tells_whether_callers_are_missing() {
        let mut recent = Recent::default();
        for (addresses, frames, is_root) in [
            (&[5, 4, 1, 2][..], 2, Some(true)),
            (&[1, 3, 2], 2, Some(false)),
            (&[4, 2], 0, None),
        ] {
            let (user, ids) = stack(addresses);
            recent.replace(recent.in_common(&user), &user, &ids, python);
            let seen = recent.seen();
            assert_eq!(
                (seen.named_frames, seen.outermost_is_root),
                (frames, is_root)
            );
        }
    }

    #[test]
    fn an_emptied_one_knows_nothing() {
        let mut recent = Recent::default();
        let (user, ids) = stack(&[2, 1]);
        recent.replace(0, &user, &ids, python);
        recent.clear();
        assert!(!recent.append_outermost(2, &mut Vec::new()));
        assert_eq!(recent.in_common(&user), 0);
    }
}
