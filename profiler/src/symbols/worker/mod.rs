//! Symbols and debug information are parsed in a process of its own: files are the target's, and the libraries that parse
//! them can crash, loop, or take any amount of memory.
//!
//! ```text
//! profiler ──control──► keeper ──starts, ends──► symbol process
//!     └──────────── copies of sections, addresses ──►│
//!     ◄──────────── names, files, lines ─────────────┘
//! ```
//!
//! * **Job:** gives frames for addresses in a copy of a file's sections, or a reason why there are none.
//! * The symbol process (`child`, `lookup`, `demangle`) has no rights, no file system, and limits (`sandbox`).
//! * `parent` gives it a budget for each request, ends it when that is used up, and starts it again.
//! * `keeper` does the starting: with the rights that the profiler has at its beginning only.
//! * **Must not know** whose files these are, nor what is tried again.

mod child;
mod demangle;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod keeper;
mod lookup;
mod paced;
mod parent;
mod protocol;
mod sandbox;

use std::{ffi::CStr, process::ExitCode};

use crate::process::PARTS;

pub use parent::SymbolProcess;
pub(super) use parent::{Connection, Failure, Image};
pub(super) use protocol::{Answer, Found, FoundPlace, PLACES_MAX, Part};

/// First words of the command lines of the keeper and of the symbol process. Not for people.
const KEEPER: &str = PARTS[0];
const WORKER: &str = PARTS[1];

/// Names of the processes, at most 15 bytes.
const KEEPER_NAME: &CStr = c"pyprof:keeper";
const PROCESS_NAME: &CStr = c"pyprof:symbols";

/// This program as the keeper or the symbol process, if its first word says so.
///
/// A program that uses [`SymbolProcess`] calls this first in `main`: the symbol process runs the same program.
pub fn run_if_called(word: &std::ffi::OsStr) -> Option<ExitCode> {
    let ended = if word == KEEPER {
        keeper::run()
    } else if word == WORKER {
        child::run()
    } else {
        return None;
    };
    Some(ended.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

/// This program once more, by the name of one of its parts, with nothing of its environment.
fn program(word: &str) -> std::process::Command {
    let mut program = std::process::Command::new("/proc/self/exe");
    program
        .env_clear()
        .current_dir("/")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    if cfg!(test) {
        // The test program has a `main` of its own, and a test that acts as the process.
        program
            .args([
                "--exact",
                "symbols::worker::tests::acts_as_what_it_is_called",
            ])
            .args(["--nocapture", "--test-threads=1"])
            .env(tests_role(), word);
    } else {
        program.arg(word);
    }
    program
}

const fn tests_role() -> &'static str {
    "PYPROF_TEST_ROLE"
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
