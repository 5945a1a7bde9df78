//! Perf maps for anything that generates code, and trampolines for the CPythons that have none.
//!
//! A *perf map* is the file `/tmp/perf-PID.map`, in which a process names the machine code that it made while it ran:
//! a line `START SIZE name` for each piece, the numbers in hexadecimal. Linux perf, samply and pyprof-bpf read it.
//!
//! ```text
//! Rust: PerfMap ────────┐
//! C:    pyprof_perf_… ──┼─► perf_map/ ─► /tmp/perf-PID.map
//! Python: _native ──────┤      ▲
//!                       └─► trampolines (3.9 to 3.11) ─► code_memory
//! ```
//!
//! * [`PerfMap`] is the writer: one for each process, without a lock once its file is open, safe to call from any
//!   thread. [`ffi::c_api`] is the same for C; `include/pyprof_trampoline.h` declares it.
//! * `ffi/evaluator.rs` puts a few instructions of its own before each Python function, as CPython 3.12 and later do
//!   by themselves, so that a native stack has one frame for each Python function. The Python package
//!   `pyprof_trampoline` in `python/` is how that is used.
//!
//! Compiled as a shared object this is all of it in one file: it needs neither a Python nor its headers to be built,
//! and finds what it needs of the interpreter at run time.
//!
//! ```
//! use pyprof_trampoline::PerfMap;
//!
//! let code = [0xc3_u8]; // `ret`; a real generator has executable memory here
//! PerfMap::of_this_process().write_entry(code.as_ptr() as usize, code.len(), b"jit::nothing")?;
//! # std::fs::remove_file(PerfMap::path())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod code_memory;
pub mod ffi;
mod machine_code;
mod perf_map;

pub use perf_map::{PerfMap, PerfMapError};
