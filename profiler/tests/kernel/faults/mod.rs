//! What can go wrong around a recording, made to go wrong. No finished sample is lost without being counted.

mod buffer;
mod kills;
mod output;
mod targets;

use super::{
    Python, Skip, Test, Verdict, eventually, let_work, note, recording, running, scratch, skip,
    stops, workload,
};

/// All of them. They are about the program, not about Pythons: one is enough.
pub(super) fn tests() -> Vec<Test> {
    [buffer::TESTS, output::TESTS, kills::TESTS, targets::TESTS].concat()
}

/// A Python that works and nothing else.
fn busy(python: &Python) -> running::Running {
    running::Running::start(python.perf().arg(workload("chain")))
}
