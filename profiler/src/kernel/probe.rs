//! Does the kernel side work here? Found out by setting it up for a moment: what forbids a system call cannot be
//! foreseen in every case.

use super::{Features, KernelError, KernelSide, MapSizes};
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

/// Loads the maps and the program, opens an event on each CPU, and takes everything away again. No process is sampled.
///
/// Needs what a recording needs, and fails as that would.
pub fn probe() -> Result<Clock, KernelError> {
    let features = Features::detect().map_err(|source| KernelError::System {
        call: "looking at the kernel",
        source,
    })?;
    let mut kernel = KernelSide::load(&features, MapSizes::for_text(0), false)?;
    let events = kernel.attach(RATE)?;
    Ok(if events.is_hardware() {
        Clock::Cycles
    } else {
        Clock::CpuClock
    })
}
