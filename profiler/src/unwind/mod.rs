//! Stage 2: how to get from a frame to its caller without frame pointers.
//!
//! * **Job:** compiles the call frame information of ELF files into small tables that the kernel side can search while
//!   it takes a sample, and finishes walks that met a file whose table was not there yet.
//! * **Gets** the bytes of ELF files, and [`RawSample`](crate::model::RawSample)s.
//! * **Gives** [`CompiledElf`]s, and the missing frames as [`CodeAddress`](crate::model::CodeAddress)es.
//! * **Must not know** names, but those of a few functions that unwinding depends on: symbols, perf maps and Python are
//!   the business of `symbols`.
//!
//! ```text
//! ELF bytes ─► elf ─► entries ─► rule (one row at a time) ─► compact ─► CompactTable
//!              where   which       expression says what        rows by
//!              is it?  functions?  DWARF programs mean         page
//! ```
#![forbid(unsafe_code)]

mod builder;
mod builder_process;
mod builder_thread;
mod c_library;
mod compact;
mod eh_frame;
mod elf;
mod entries;
mod error;
mod eval_loop;
mod expression;
mod finish;
mod finish_guess;
mod interrupt;
mod makers;
mod merge;
mod parked;
mod plt;
mod queue;
mod read_code;
mod rule;
mod schedule;
mod slots;
mod stats;
mod symbol_table;
mod table;
#[cfg(test)]
mod testing;

pub(crate) use builder::THREAD_NAME;
pub use builder::{BuilderStats, FullTables, TableBuilder, UnfinishedWalk};
pub(crate) use compact::compile_file_until;
pub use compact::{CompactPage, CompactRow, CompactTable, CompiledElf, compile, compile_file};
pub use elf::Segment;
pub(crate) use elf::bias as segments_bias;
pub use error::UnwindError;
pub use eval_loop::{LoopEvidence, LoopPart};
pub use finish::{
    CODE_BEFORE, CodeBytes, FinishedWalk, Registers, RuleLookup, finish, trampoline_rule,
};
pub(crate) use makers::MAKER_NAME;
pub use merge::merge;
pub use stats::CompileStats;
pub use table::{FullTable, LoadedTable, Published, UnwindTables};
