//! What the records of the ring buffer have in common: each begins with a number that says what it is.

/// Bytes of that number, a `u32`.
pub const KIND_BYTES: usize = 4;

/// The values of that number.
pub mod kind {
    /// A [`SampleHeader`](crate::sample::SampleHeader), and what follows it.
    pub const SAMPLE: u32 = 1;
    /// A [`ProcessEvent`](crate::process_event::ProcessEvent): a target has a new child process. Not sent for threads.
    pub const FORK: u32 = 2;
    /// The same: a process runs another program now.
    pub const EXEC: u32 = 3;
    /// The same: the last thread of a target has ended.
    pub const EXIT: u32 = 4;
}
