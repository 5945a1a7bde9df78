//! What compiling a file met.

/// What was read to make a table, and what could not be used. Nothing is left out silently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompileStats {
    /// Functions that have an entry (FDE) of their own and any code.
    pub functions: u32,
    /// Rows of their instructions.
    pub rows_read: u32,
    /// Entries that were damaged, or described addresses at which the file has no code. Those whose instructions
    /// broke off count, too: the rest of their function is unsupported.
    pub malformed_entries: u32,
    /// Functions that were cut short, or left out, because another one begins in them.
    pub overlapping_functions: u32,
    /// Rows behind the largest table that is made (1 GiB of text, 16 million rows): nothing is known there.
    pub dropped_rows: u32,
    /// Rows whose rule became "unsupported" because the file has too many different ones (65,536).
    pub dropped_rules: u32,
}
