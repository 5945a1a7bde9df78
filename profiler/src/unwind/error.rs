//! Why a file gives no unwind table.

use thiserror::Error;

/// Why a file gives no unwind table. A file that has one, however damaged, is never an error: what cannot be used is
/// left out and counted in [`CompileStats`](super::CompileStats).
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum UnwindError {
    /// The bytes do not begin with the ELF magic number.
    #[error("not an ELF file")]
    NotElf,
    /// An ELF file of 32 bits, or with big-endian integers.
    #[error("only little-endian 64-bit ELF files can be unwound (class {class}, data {data})")]
    Layout {
        /// `e_ident[EI_CLASS]`; 2 is 64 bits.
        class: u8,
        /// `e_ident[EI_DATA]`; 1 is little-endian.
        data: u8,
    },
    /// Code for another CPU than x86-64.
    #[error("only x86-64 code can be unwound (ELF machine {machine})")]
    Machine {
        /// `e_machine`.
        machine: u16,
    },
    /// A header points outside the file or contradicts itself.
    #[error("damaged ELF file: {what}")]
    Malformed {
        /// Which header, and what is wrong with it.
        what: &'static str,
    },
    /// No segment of the file is loaded as code: an object file, or separate debug information.
    #[error("the ELF file has no executable segment")]
    NoCode,
    /// Neither `.eh_frame` nor `.debug_frame` describes any code.
    #[error("the ELF file has no unwind information")]
    NoUnwindInformation,
    /// There was no time to read all of it.
    #[error("the ELF file takes too long to read")]
    Interrupted,
}
