//! Does the kernel side work here? Found out by setting it up for a moment: what forbids a system call cannot be
//! foreseen in every case.

use super::{Features, Following, KernelError, KernelSide, MapSizes};
use crate::model::Hz;

/// Rate of the events, which last for an instant.
const RATE: Hz = Hz(1);

/// What drives the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The CPU's cycle counter.
    Cycles,
    /// The kernel's `cpu-clock` event.
    CpuClock,
}

/// What works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// What drives the samples.
    pub clock: Clock,
    /// The kernel tells what becomes of processes: children can be followed.
    pub follows: bool,
}

/// Loads the maps and the programs, opens an event on each CPU, and takes everything away again. No process is sampled.
///
/// Needs what a recording needs, and fails as that would.
pub fn probe() -> Result<Probed, KernelError> {
    let features = Features::detect().map_err(|source| KernelError::System {
        call: "looking at the kernel",
        source,
    })?;
    let following = Following {
        forks: true,
        all_execs: false,
    };
    let sizes = MapSizes::for_targets(0, 0, Following::default());
    let mut kernel = KernelSide::load(&features, sizes, false, following)?;
    let events = kernel.attach(RATE)?;
    Ok(Probed {
        clock: if events.is_hardware() {
            Clock::Cycles
        } else {
            Clock::CpuClock
        },
        follows: kernel.follows(),
    })
}
