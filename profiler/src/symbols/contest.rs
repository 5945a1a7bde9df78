//! Two processes that write one perf map.
//!
//! Containers that share a `/tmp` and have the same pid inside, which is 1 as a rule, append to the same file. An entry
//! in it may be of either, and the newest one for an address need not be that of the process that ran there. But code
//! that ran has an entry of its own process: so where all entries for an address say the same, that is right, and where
//! they differ, nobody knows, and no name is shown.
//!
//! Entries of one process differ for an address too, when code memory is used again. So it is asked whether there is
//! another process, which takes a look at all of them: only where it matters, and not often.

use std::time::{Duration, Instant};

use super::{
    locations::unknown_frame,
    perf_map::{PerfMapFile, PerfMapLocation},
    python_name::frame_from_perf_map_name,
};
use crate::{
    model::{Avma, Frame, Pid, ResolveMiss},
    process::{has_open, namesakes, perf_map_directory},
};

/// Not looked for more often, nor more than a fiftieth of the time.
const REST: Duration = Duration::from_millis(500);
const REST_FACTOR: u32 = 50;

/// What is known of others that write a process's perf map.
#[derive(Debug)]
pub(super) struct Contest {
    /// The process whose map it is.
    owner: Pid,
    rival: Option<Pid>,
    rest_until: Option<Instant>,
}

impl Contest {
    pub(super) const fn new(owner: Pid) -> Self {
        Self {
            owner,
            rival: None,
            rest_until: None,
        }
    }

    /// Another process that writes the map, if one was found.
    pub(super) const fn rival(&self) -> Option<Pid> {
        self.rival
    }

    /// The name for an address; [`ResolveMiss::Contested`] instead of one that may be another process's. `is_its_own`:
    /// the owner writes this map and has code there, so that code has an entry in it.
    pub(super) fn name(&mut self, map: &PerfMapFile, at: Avma, is_its_own: bool) -> Option<Frame> {
        let name = map.map().name_at(at)?;
        if (name.is_renamed || !is_its_own) && self.is_contested(map) {
            return Some(unknown_frame(ResolveMiss::Contested));
        }
        Some(frame_from_perf_map_name(name.bytes))
    }

    fn is_contested(&mut self, map: &PerfMapFile) -> bool {
        let began = Instant::now();
        if self.rival.is_none() && self.rest_until.is_none_or(|until| until <= began) {
            self.rival = rival(map, self.owner);
            self.rest_until = Some(began + REST.max(began.elapsed() * REST_FACTOR));
        }
        self.rival.is_some()
    }
}

/// A live process that has the same pid in another namespace, and the same map under that name, or open.
fn rival(map: &PerfMapFile, owner: Pid) -> Option<Pid> {
    let identity = map.identity()?;
    let ns_pid = map.location().ns_pid;
    namesakes(ns_pid, owner).into_iter().find(|&pid| {
        let theirs = PerfMapLocation {
            directory: perf_map_directory(pid),
            ns_pid,
            owner_uid: 0,
        };
        theirs.identity() == Some(identity) || has_open(pid, identity)
    })
}
