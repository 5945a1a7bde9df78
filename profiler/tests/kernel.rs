//! The whole program on this machine's kernel, with real Pythons, against what is known of them beforehand.
//!
//! Every trial runs the program as people do and reads what it wrote. Trials that cannot run here (not root, no CPython
//! of the versions they are for, no C compiler) say so and count as skipped. They run one after the other: what is
//! measured must not be disturbed. No trial looks at the clock: a slow machine gives fewer samples, not other ones.
//!
//! Interpreters come from `PYPROF_TEST_PYTHONS` (a list like PATH) and, for CPython 3.9 to 3.11, which get their
//! trampolines from `profiler-trampoline`, from `PYPROF_TEST_OLD_PYTHONS`; else from pyenv and PATH.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::ExitCode;

#[expect(
    clippy::unnecessary_wraps,
    reason = "all trials are of one type, and some of them can be skipped"
)]
#[path = "kernel/mod.rs"]
mod suite;

fn main() -> ExitCode {
    // Trials that record within this process have it parse symbols in this very program.
    let word = std::env::args_os().nth(1).unwrap_or_default();
    if let Some(code) = pyprof_bpf::session::run_symbol_process(&word) {
        return code;
    }
    suite::run()
}
