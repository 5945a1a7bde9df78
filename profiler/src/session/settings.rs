//! What a recording is asked to do, checked.

use std::time::Duration;

use crate::{model::Hz, process::Selector, profile::Granularity, registry::PythonFrom};

/// A recording, as `cli` asks for it.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub struct RecordSettings {
    /// The processes to sample.
    pub selector: Selector,
    /// Their child processes too, with all descendants.
    pub subprocesses: bool,
    /// Samples per second and CPU.
    pub frequency: Hz,
    /// Stop after this; `None`: until asked to, or until every target has exited.
    pub duration: Option<Duration>,
    /// Record kernel stacks too (needs `CAP_PERFMON`; names need readable `/proc/kallsyms`).
    pub kernel_stacks: bool,
    /// Keep threads apart.
    pub threads: bool,
    /// Where Python functions come from.
    pub python_from: PythonFrom,
    /// Compare both ways in samples that have both.
    pub cross_check: bool,
    /// Whether [`Progress::hottest`](super::Progress::hottest) is a function or a line. What is recorded is the same.
    pub granularity: Granularity,
    /// Have the kernel measure the BPF program's running time (adds some 20 ns to each run).
    pub bpf_stats: bool,
    /// Bytes of the ring buffer between the kernel and us, a power of two; `None`: 8 MiB.
    pub ring_bytes: Option<u32>,
}
