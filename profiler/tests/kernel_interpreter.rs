//! Frames that the interpreter itself keeps, held against what programs say of their own stacks.
//!
//! The programs are in `kernel_interpreter/scripts/`; their functions are called what must be true of the frames around
//! them, so that one rule judges them all (`kernel_interpreter/judge.rs`). They run under each CPython from 3.8 on that is
//! found, without any option: those that `PYPROF_TEST_INTERPRETERS` names (a list like PATH), else those of pyenv and PATH.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::ExitCode;

#[expect(
    clippy::unnecessary_wraps,
    reason = "all trials are of one type, and some of them can be skipped"
)]
#[path = "kernel_interpreter/mod.rs"]
mod suite;

fn main() -> ExitCode {
    suite::run()
}
