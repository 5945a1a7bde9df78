//! Development commands: `cargo xtask <command>`.
//!
//! ```text
//! setup         what compiling BPF needs                 ─► rustup toolchain, bpf-linker
//! bpf           profiler-ebpf                            ─► profiler/bpf/pyprof-bpf.bpf.o
//! header        profiler-trampoline/src/ffi/c_api.rs     ─► include/pyprof_trampoline.h
//! test          setup, interpreters, browser, build      ─► one line of totals
//! test-pythons  Pythons of other systems                 ─► trials under them, perf beside
//! test-kernels  other kernels, in an emulator            ─► table of stacks and names
//! fuzz          fuzz/, profiler/src/fuzzing/            ─► one line for each target
//! demo          release build, a bundled workload        ─► flame graph, hottest functions
//! bench         release build, bundled workloads         ─► table of ratios
//! package       the program, the Python package          ─► a wheel
//! ```
//!
//! Each command can be run again: what is already there is found, not made anew.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "these are command line tools"
)]

use std::{env, process::ExitCode};

use anyhow::{Result, bail};

mod bench;
mod bpf;
#[path = "../../profiler/build_support/bpf_sources.rs"]
mod bpf_sources;
#[path = "../../profiler/build_support/bpf_toolchain.rs"]
mod bpf_toolchain;
mod browser;
mod command;
mod demo;
mod folded;
mod fuzz;
mod header;
mod host;
mod llvm;
mod package;
mod pythons;
mod setup;
mod test;
mod test_kernels;
mod test_pythons;
mod test_report;
mod workload;

/// What `cargo xtask help` prints.
const USAGE: &str = "\
Usage: cargo xtask <command>

  setup             install what compiling the BPF object needs
  bpf [--check]     refresh the bundled BPF object, or only check that it is fresh
  test [FILTER]     set up, build everything from source, run every test, or those
                    whose names have FILTER in them
  fuzz [TARGET] [--seconds N]
                    build the fuzz targets, run each for ten seconds
  header            refresh the C header of profiler-trampoline
  test-pythons [DEBIAN-RELEASE...]
                    run the kernel trials under the Pythons of other systems
  test-kernels [VERSION...|all|list]
                    boot Debian's kernels in an emulator, and record on each; without
                    words, the one that each release installs
  demo              profile a bundled program and show where its time went
  bench [PIECE...]  measure the cost of profiling (`bench list` names the pieces)
  package [--test]  build the wheel for pip; with --test, try it in every Python here, too
  help              this text";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command that `arguments` start with.
fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        [] | ["help", ..] | [.., "-h" | "--help"] => {
            println!("{USAGE}");
            Ok(())
        }
        ["setup"] => setup::run(),
        ["bpf"] => bpf::refresh(),
        ["bpf", "--check"] => bpf::check(),
        ["test"] => test::run(None),
        ["test", filter] => test::run(Some(filter)),
        ["test", ..] => bail!("`test` takes one part of a test's name; run it once for each"),
        ["test-pythons", names @ ..] => test_pythons::run(names),
        [test_pythons::INSIDE, name, programs @ .., profiler] => {
            test_pythons::inside(name, programs, profiler)
        }
        ["test-kernels", words @ ..] => test_kernels::run(words),
        ["fuzz", words @ ..] => fuzz::run(words),
        ["header"] => header::refresh(),
        ["demo"] => demo::run(),
        ["bench", pieces @ ..] => bench::run(pieces),
        ["package", words @ ..] => package::run(words),
        _ => bail!("no command `{}`\n{USAGE}", arguments.join(" ")),
    }
}
