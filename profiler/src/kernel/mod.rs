//! The kernel side as seen from user space: load the BPF program, attach it, read what it sends.
//!
//! Gets: which processes and how often. Gives: [`RingRecord`]s (samples, and what became of processes), [`KernelEvent`]s
//! and counters. Must not know: names, unwind rows (`unwind/table.rs` fills its maps), output.
//!
//! | file | what |
//! |---|---|
//! | `loader` | the object, its constants and sizes, into the kernel |
//! | `features` | what this kernel offers |
//! | `btf` | offsets in kernel structures |
//! | `error` | why it could not be set up |
//! | `events` | one sampling event per online CPU, and the records that come with it |
//! | `ring` | bytes of the ring buffer → `RingRecord` |
//! | `counters` | what the BPF program counted |
//! | `memory` | maps written by plain stores |
//! | `probe` | all of it for a moment, to see whether it works here |

mod btf;
mod counters;
mod error;
mod events;
mod features;
mod loader;
mod memory;
mod probe;
mod ring;

pub use counters::Counters;
pub use error::KernelError;
pub use events::{KernelEvent, RateLimits, SamplingEvents};
pub use features::{Features, RegistersFrom};
pub use loader::{Following, KernelSide, MapSizes, ProgramStats, UnwindMaps};
pub use probe::{Clock, Probed, probe};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use ring::parse as parse_record;
pub use ring::{RingRecord, SampleRing};
