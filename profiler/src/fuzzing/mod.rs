//! What fuzzers feed: one function for each kind of bytes that come from a target. A function returns when all is well,
//! and panics when a promise is broken.
//!
//! `fuzz/` runs them on bytes that libFuzzer makes up (`cargo xtask fuzz`); the tests here run them on the bytes kept
//! in `fuzz/corpus/`, on the stable compiler and without a fuzzer. Not part of the program: compiled for tests and with
//! the feature `fuzzing`.

mod code_objects;
mod elf;
mod elf_names;
mod input;
mod output;
mod perf_map;
mod procfs;
mod sample;
mod symbol_process;
mod symbols;
#[cfg(test)]
mod tests;

pub use code_objects::code_objects;
pub use elf::elf;
pub use elf_names::elf_names;
pub use output::output;
pub use perf_map::perf_map;
pub use procfs::procfs;
pub use sample::sample;
pub use symbol_process::symbol_process;
pub use symbols::{be_symbol_process, symbols};
