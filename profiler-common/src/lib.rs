//! The wire between the kernel and the user side of pyprof-bpf.
//!
//! Both sides are compiled from these files, so a layout cannot drift apart. Everything here is `#[repr(C)]`, has no
//! padding that carries data, and holds plain integers: the kernel side must be able to zero it and the user side to
//! read it from bytes.
//!
//! | file | what |
//! |---|---|
//! | [`sample`] | one sample as it lies in the ring buffer |
//! | [`process_event`] | what became of a process, in the same ring |
//! | [`python`] | where a process keeps its interpreter's frames, and how they lie in a sample |
//! | [`target`] | which of the tables a process uses |
//! | [`unwind_row`] | rows, rules and pages: how to step from a frame to its caller |
//! | [`trampoline`], [`frame_code`] | the same for code that no file describes, by its bytes |
//! | [`config`] | what is fixed when the program is loaded |
//! | [`counters`] | per-CPU counters, one name for each |
#![cfg_attr(not(test), no_std)]
#![expect(
    clippy::inline_always,
    reason = "on the kernel side a call is one more program for the verifier"
)]

pub mod config;
pub mod counters;
pub mod frame_code;
pub mod process_event;
pub mod python;
pub mod record;
pub mod sample;
pub mod target;
pub mod trampoline;
pub mod unwind_row;
