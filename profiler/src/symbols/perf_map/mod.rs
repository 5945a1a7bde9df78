//! Perf maps: `/tmp/perf-PID.map`, where a program that makes code at run time says what it made.
//!
//! One line an entry: `START SIZE NAME`, both numbers hexadecimal, the name running to the end of the line. CPython
//! 3.12 and later write one for each trampoline (`Python/perf_trampoline.c`), before its first use; node, the JVM and others
//! write theirs in the same form.
//!
//! ```text
//!  watch ("it changed") ─► tail ─► parse ─► index ─► "what is at this address?"
//!                           │ asks
//!                           ▼
//!                         trust (may this file be read at all?)
//! ```
//!
//! * [`parse_line`] turns one line into a [`MapLine`], or says why it is [skipped](SkipReason).
//! * [`PerfMap`] keeps the entries: it grows at the cost of what is added, and the newest entry for an address wins.
//! * [`PerfMapFile`] follows one file as it grows, is rewritten or replaced.
//! * [`PerfMapWatch`] wakes up the caller of [`PerfMapFile::refresh`].
//!
//! Everything here comes from the target, and is taken as hostile: kind, owner, size, line length, number of entries
//! and memory are all bounded, and what goes over a bound is counted. Nothing here knows whose samples are being named,
//! nor what a Python name looks like beyond its `py::` prefix.

#![forbid(unsafe_code)]

mod index;
mod limits;
mod memory;
mod names;
mod parse;
mod ranges;
mod tail;
#[cfg(test)]
mod tests;
mod trust;
mod watch;

pub use index::{PerfMap, PerfMapCounters, PerfMapName};
pub use limits::PerfMapLimits;
pub use memory::{MEMORY_BYTES_MAX, PerfMapMemory};
pub use parse::{MapLine, SkipReason, parse_line};
pub use tail::{
    PerfMapBeginning, PerfMapEvent, PerfMapFile, PerfMapLocation, PerfMapPosition, PerfMapState,
    Refresh,
};
pub use trust::{FileKind, Refusal};
pub use watch::{ChangedMaps, PerfMapWatch, WatchError};
