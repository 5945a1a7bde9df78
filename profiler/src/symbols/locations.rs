//! Locations and what is known of them before they have names.

use std::hash::{BuildHasher as _, RandomState};

use rustc_hash::FxHashMap;

use crate::model::{
    Avma, FileOffset, Frame, FrameKind, Location, LocationId, LocationTable, Pid, Quota,
    ResolveMiss, Usage,
};

/// Functions that CPython enters without a Python caller: below them nothing is missing.
const ROOTS: [&str; 5] = [
    "<module>",
    "Thread._bootstrap",
    "_bootstrap",
    "_run_module_as_main",
    "_find_and_load",
];

/// Most locations, of some 150 bytes each. A large program has some ten thousand; a process that makes up code addresses
/// has no end of them.
const LOCATIONS_MAX: usize = 500_000;
/// Those that a process gets although others have taken all, and how many of these there are.
const LOCATIONS_OF_EACH_MAX: usize = 10_000;
const LOCATIONS_RESERVED_MAX: usize = 100_000;

/// Most bytes of names. A process may rename its functions all the time.
const NAME_BYTES_MAX: usize = 48 << 20;
/// The same for names.
const NAME_BYTES_OF_EACH_MAX: usize = 1 << 20;
const NAME_BYTES_RESERVED_MAX: usize = 16 << 20;

const LOCATIONS: Quota = Quota {
    shared: LOCATIONS_MAX,
    of_each: LOCATIONS_OF_EACH_MAX,
    reserve: LOCATIONS_RESERVED_MAX,
};
const NAME_BYTES: Quota = Quota {
    shared: NAME_BYTES_MAX,
    of_each: NAME_BYTES_OF_EACH_MAX,
    reserve: NAME_BYTES_RESERVED_MAX,
};

/// Shown for what is past one of these limits.
const LEFT_OUT: &str = "[too many different functions]";

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
#[expect(clippy::struct_excessive_bools, reason = "five independent facts")]
pub(super) struct Traits {
    /// A Python function.
    pub(super) is_python: bool,
    /// A Python function that has no Python caller.
    pub(super) is_root: bool,
    /// Code of no file that the perf map does not name.
    pub(super) is_unnamed_jit: bool,
    /// The interpreter's compiled code.
    pub(super) is_interpreter: bool,
    /// What the interpreter puts on the Python stack for itself: never shown.
    pub(super) is_hidden: bool,
}

/// All locations, each once.
#[derive(Debug, Default)]
pub(super) struct Locations {
    table: LocationTable,
    traits: Vec<Traits>,
    keys: FxHashMap<LocationKey, LocationId>,
    /// Those of frames that had their names, by the hash of the frame; in the place of one that is taken by another frame
    /// with the same hash, by the next number.
    frames: FxHashMap<u64, LocationId>,
    /// Random, so that a target that chooses names cannot predict it.
    hasher: RandomState,
    /// The process whose stacks are being resolved.
    owner: Pid,
    /// Which process each location was made for: its names are of that one's share.
    owners: Vec<Pid>,
    count: Usage<Pid>,
    name_bytes: Usage<Pid>,
}

impl Locations {
    /// Whatever is interned from now on is of this process.
    pub(super) const fn set_owner(&mut self, pid: Pid) {
        self.owner = pid;
    }

    /// The location of a place, and whether it is new: then somebody must be asked for its name.
    pub(super) fn intern(&mut self, key: LocationKey, kind: FrameKind) -> (LocationId, bool) {
        if let Some(&id) = self.keys.get(&key) {
            return (id, false);
        }
        if self.is_full() {
            return (self.left_out(kind), false);
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
        let mut hash = self.hasher.hash_one(&frame);
        while let Some(&id) = self.frames.get(&hash) {
            if self.table.frames(id) == std::slice::from_ref(&frame) {
                return id;
            }
            hash = hash.wrapping_add(1);
        }
        if self.is_full() && &*frame.name != LEFT_OUT {
            return self.left_out(frame.kind);
        }
        self.name_bytes
            .take(&NAME_BYTES, self.owner, name_bytes(&frame));
        let is_python = frame.kind == FrameKind::Python;
        let traits = Traits {
            is_python,
            is_root: is_python && ROOTS.contains(&&*frame.name),
            is_unnamed_jit: matches!(
                frame.miss,
                Some(ResolveMiss::NotInPerfMap | ResolveMiss::Contested)
            ),
            is_interpreter: false,
            // Only what is Python code has a first line.
            is_hidden: frame.kind == FrameKind::Interpreter && frame.first_line.is_some(),
        };
        let frames = vec![frame];
        let id = self.push(Location { frames }, traits);
        self.frames.insert(hash, id);
        id
    }

    /// A location of its own for a Python frame whose name comes later.
    pub(super) fn unnamed_python(&mut self) -> LocationId {
        if self.is_full() {
            return self.left_out(FrameKind::Python);
        }
        let traits = Traits {
            is_python: true,
            ..Traits::default()
        };
        self.push(Location::default(), traits)
    }

    /// A limit is reached, and the share of its own that the process has.
    fn is_full(&self) -> bool {
        !self.count.has_room(&LOCATIONS, self.owner)
            || !self.name_bytes.has_room(&NAME_BYTES, self.owner)
    }

    /// What stands for all that finds no room: one location for each kind.
    fn left_out(&mut self, kind: FrameKind) -> LocationId {
        self.intern_frame(Frame {
            kind,
            name: LEFT_OUT.into(),
            file: None,
            line: None,
            first_line: None,
            module: None,
            miss: Some(ResolveMiss::TooManyNames),
        })
    }

    fn push(&mut self, location: Location, traits: Traits) -> LocationId {
        let id = LocationId(self.traits.len() as u32);
        self.table.locations.push(location);
        self.traits.push(traits);
        self.owners.push(self.owner);
        self.count.take(&LOCATIONS, self.owner, 1);
        id
    }

    /// Gives a location its frames; those past the limit share a name.
    pub(super) fn name(&mut self, id: LocationId, mut location: Location) {
        let owner = self.owners.get(id.0 as usize).copied().unwrap_or_default();
        for frame in &mut location.frames {
            if !self.name_bytes.has_room(&NAME_BYTES, owner) {
                frame.name = LEFT_OUT.into();
                frame.file = None;
                frame.miss = Some(ResolveMiss::TooManyNames);
            }
            self.name_bytes.take(&NAME_BYTES, owner, name_bytes(frame));
        }
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

    /// Those of these that have no name yet.
    pub(super) fn unnamed_of(&self, ids: &[LocationId]) -> impl Iterator<Item = LocationId> {
        let is_unnamed = |id: &LocationId| self.table.frames(*id).is_empty();
        ids.iter().copied().filter(is_unnamed)
    }

    /// A table of these locations alone, in this order. `unnamed` says what is shown for a place that has no name yet; it
    /// may still get one. `last`: names are not wanted any more, and need not be copied.
    pub(super) fn table_of(
        &mut self,
        ids: &[LocationId],
        last: bool,
        unnamed: impl Fn(LocationKey) -> Frame,
    ) -> LocationTable {
        let mut missing: FxHashMap<LocationId, Frame> = FxHashMap::default();
        for id in self.unnamed_of(ids) {
            // A Python function, unless it is a place.
            missing.insert(id, unknown_frame(ResolveMiss::UnreadCode));
        }
        if !missing.is_empty() {
            for (&key, id) in &self.keys {
                if let Some(frame) = missing.get_mut(id) {
                    *frame = unnamed(key);
                }
            }
        }
        let locations = ids.iter().map(|id| {
            if let Some(frame) = missing.remove(id) {
                return Location {
                    frames: vec![frame],
                };
            }
            match self.table.locations.get_mut(id.0 as usize) {
                Some(location) if last => std::mem::take(location),
                Some(location) => location.clone(),
                None => Location::default(),
            }
        });
        LocationTable {
            locations: locations.collect(),
        }
    }
}

/// What is shown for code that nothing names.
pub(super) fn unknown_frame(miss: ResolveMiss) -> Frame {
    let (kind, name) = match miss {
        ResolveMiss::FreedCode => (FrameKind::Python, "<freed code>"),
        ResolveMiss::UnreadCode | ResolveMiss::EndedCode => (FrameKind::Python, "<unread code>"),
        ResolveMiss::NotInPerfMap | ResolveMiss::ForeignJit => {
            (FrameKind::Jit, "[code without a name]")
        }
        ResolveMiss::Contested => (FrameKind::Jit, "[code with two names]"),
        _ => (FrameKind::Native, "[unknown]"),
    };
    Frame {
        kind,
        name: name.into(),
        file: None,
        line: None,
        first_line: None,
        module: None,
        miss: Some(miss),
    }
}

/// What is shown for code of a file that nothing names: `module+0xoffset`.
pub(super) fn offset_frame(kind: FrameKind, module: &str, at: u64, miss: ResolveMiss) -> Frame {
    Frame {
        kind,
        name: format!("{module}+{at:#x}").into(),
        file: None,
        line: None,
        first_line: None,
        module: Some(module.into()),
        miss: Some(miss),
    }
}

/// What is shown for code of the kernel whose name was not found in time.
pub(super) fn late_kernel_frame(at: Avma) -> Frame {
    Frame {
        kind: FrameKind::Kernel,
        name: format!("{at:#x}").into(),
        file: None,
        line: None,
        first_line: None,
        module: None,
        miss: Some(ResolveMiss::NotInTime),
    }
}

fn name_bytes(frame: &Frame) -> usize {
    frame.name.len() + frame.file.as_deref().map_or(0, str::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str) -> Frame {
        Frame {
            kind: FrameKind::Python,
            name: name.into(),
            file: None,
            line: None,
            first_line: None,
            module: None,
            miss: None,
        }
    }

    #[test]
    fn names_without_end_share_one_location() {
        let mut locations = Locations::default();
        let first = locations.intern_frame(frame("first"));
        let long = "x".repeat(NAME_BYTES_MAX + NAME_BYTES_OF_EACH_MAX);
        locations.intern_frame(frame(&long));
        let (one, other) = (
            locations.intern_frame(frame("one")),
            locations.intern_frame(frame("other")),
        );
        assert_eq!(one, other);
        assert_eq!(
            locations.intern_frame(frame("first")),
            first,
            "known ones stay"
        );
        let key = LocationKey::Module(0, FileOffset(1));
        let (place, is_new) = locations.intern(key, FrameKind::Native);
        assert!(!is_new && place != one, "another kind, another location");
        let shown = &locations.table().locations[one.0 as usize].frames[0];
        assert_eq!(&*shown.name, LEFT_OUT);
        assert_eq!(
            shown.miss,
            Some(ResolveMiss::TooManyNames),
            "that is no name"
        );
    }

    #[test]
    fn a_process_whose_names_have_no_end_leaves_the_others_theirs() {
        let mut locations = Locations::default();
        let name_of = |locations: &Locations, id: LocationId| {
            locations.table().frames(id)[0].name.to_string()
        };
        locations.set_owner(Pid(1));
        let mut taken = 0;
        while !locations.is_full() {
            locations.intern_frame(frame(&format!("{taken}{}", "x".repeat(1 << 16))));
            taken += 1;
        }
        let late = locations.intern_frame(frame("late"));
        assert_eq!(name_of(&locations, late), LEFT_OUT);
        locations.set_owner(Pid(2));
        for number in 0..1000 {
            let name = format!("honest{number}");
            let id = locations.intern_frame(frame(&name));
            assert_eq!(name_of(&locations, id), name);
        }
        // A name that comes later is of the share of the process that it was asked for.
        let waiting = locations.unnamed_python();
        locations.set_owner(Pid(1));
        let frames = vec![frame("later")];
        locations.name(waiting, Location { frames });
        assert_eq!(name_of(&locations, waiting), "later");
    }
}
