//! What the profiler and its symbol process read of each other, and what the process reads without its libraries for
//! debug information, whose stack it may use up.
//!
//! Input: bytes as an answer, as requests, and as an ELF file.

/// Whatever one side sends, the other takes a bounded amount of it or refuses.
pub fn symbol_process(data: &[u8]) {
    crate::symbols::worker::fuzzing::symbol_process(data);
}
