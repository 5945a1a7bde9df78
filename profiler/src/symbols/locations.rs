//! Locations and what is known of them before they have names.

use rustc_hash::FxHashMap;

use crate::model::{
    Avma, FileOffset, Frame, FrameKind, Location, LocationId, LocationTable, ResolveMiss,
};

/// Functions that CPython enters without a Python caller: below them nothing is missing.
const ROOTS: [&str; 5] = [
    "<module>",
    "Thread._bootstrap",
    "_bootstrap",
    "_run_module_as_main",
    "_find_and_load",
];

/// A place that gets its name later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LocationKey {
    /// An offset in a file.
    Module(u32, FileOffset),
    /// A kernel address.
    Kernel(Avma),
}

/// What a location is, name or not.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "four independent facts")]
pub(super) struct Traits {
    /// A Python function.
    pub(super) is_python: bool,
    /// A Python function that has no Python caller.
    pub(super) is_root: bool,
    /// Code of no file that the perf map does not name.
    pub(super) is_unnamed_jit: bool,
    /// The interpreter's compiled code.
    pub(super) is_interpreter: bool,
}

/// All locations, each once.
#[derive(Debug, Default)]
pub(super) struct Locations {
    table: LocationTable,
    traits: Vec<Traits>,
    keys: FxHashMap<LocationKey, LocationId>,
    frames: FxHashMap<Frame, LocationId>,
}

impl Locations {
    /// The location of a place, and whether it is new: then somebody must be asked for its name.
    pub(super) fn intern(&mut self, key: LocationKey, kind: FrameKind) -> (LocationId, bool) {
        if let Some(&id) = self.keys.get(&key) {
            return (id, false);
        }
        let traits = Traits {
            is_interpreter: kind == FrameKind::Interpreter,
            ..Traits::default()
        };
        let id = self.push(Location::default(), traits);
        self.keys.insert(key, id);
        (id, true)
    }

    /// The location of a frame that has its name.
    pub(super) fn intern_frame(&mut self, frame: Frame) -> LocationId {
        if let Some(&id) = self.frames.get(&frame) {
            return id;
        }
        let is_python = frame.kind == FrameKind::Python;
        let traits = Traits {
            is_python,
            is_root: is_python && ROOTS.contains(&&*frame.name),
            is_unnamed_jit: frame.miss == Some(ResolveMiss::NotInPerfMap),
            is_interpreter: false,
        };
        let id = self.push(
            Location {
                frames: vec![frame.clone()],
            },
            traits,
        );
        self.frames.insert(frame, id);
        id
    }

    fn push(&mut self, location: Location, traits: Traits) -> LocationId {
        let id = LocationId(self.traits.len() as u32);
        self.table.locations.push(location);
        self.traits.push(traits);
        id
    }

    /// Gives a location its frames.
    pub(super) fn name(&mut self, id: LocationId, location: Location) {
        if let Some(place) = self.table.locations.get_mut(id.0 as usize) {
            *place = location;
        }
    }

    pub(super) fn traits(&self, id: LocationId) -> Traits {
        self.traits.get(id.0 as usize).copied().unwrap_or_default()
    }

    pub(super) const fn table(&self) -> &LocationTable {
        &self.table
    }

    /// The table; `unnamed` says what is shown for a place whose name never came.
    pub(super) fn into_table(mut self, unnamed: impl Fn(LocationKey) -> Frame) -> LocationTable {
        for (key, id) in self.keys {
            let Some(location) = self.table.locations.get_mut(id.0 as usize) else {
                continue;
            };
            if location.frames.is_empty() {
                location.frames.push(unnamed(key));
            }
        }
        self.table
    }
}
