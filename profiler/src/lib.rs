//! pyprof-bpf: where does a running Python program spend its time?
//!
//! ```text
//!  kernel                                   user space (tokio at the edges, plain functions inside)
//!  ──────                                   ──────────────────────────────────────────────────────
//!  perf event ─► who? ─► walk ─► ring ───►  RawSample ─► UnwoundStack ─► ResolvedStack ─► Profile ─► bytes
//!  (fixed Hz)   target   rows    buffer     kernel/       unwind/         symbols/         profile/    output/
//!                 ▲        ▲
//!                 │        └── unwind/table.rs writes rows (compiled from .eh_frame) into BPF maps
//!                 └─────────── registry/ says which processes are targets and what is mapped in them
//! ```
//!
//! A value enters as raw kernel bytes and leaves as a picture; it is renamed each time it changes kind, and it never
//! goes back. `session` is the only module that knows all stages. `ARCHITECTURE.md` has the rest.

pub mod activate;
pub mod cli;
pub mod doctor;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod kernel;
pub mod model;
pub mod output;
pub mod privilege;
pub mod process;
pub mod profile;
pub mod registry;
pub mod session;
pub mod symbols;
pub mod unwind;
