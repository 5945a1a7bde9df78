//! What the report says about samples, taken from the profile in one place.

use crate::{model::StackEnd, session::Recording};

/// Where every sample went, in the report's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QualityFacts {
    /// Samples in the profile.
    pub(crate) samples: u64,
    /// Those whose stack reaches its root.
    pub(crate) complete: u64,
    /// Those in which one caller was guessed.
    pub(crate) guessed: u64,
    /// Samples lost because the ring buffer was full.
    pub(crate) ring_full: u64,
    /// Samples that were read and could not be kept.
    pub(crate) not_kept: u64,
    /// Why the other stacks end early; the addresses mean nothing here.
    pub(crate) ends: Vec<(StackEnd, u64)>,
    /// Frames of Python code with a name.
    pub(crate) python_named: u64,
    /// Frames of Python code without one.
    pub(crate) python_unnamed: u64,
    /// Samples with at least one Python frame.
    pub(crate) samples_with_python: u64,
}

/// Why a stack ends before its root, to be read after a number of stacks.
pub(crate) const fn cause(end: StackEnd) -> &'static str {
    match end {
        StackEnd::Root | StackEnd::ZeroReturnAddress => "complete",
        StackEnd::NoRule(_) => "code without unwind information",
        StackEnd::UnknownJit(_) => "code of another JIT compiler",
        StackEnd::NoMapping(_) => "memory mapped a moment before",
        StackEnd::ReadFault(_) => "stack unreadable (paged out)",
        StackEnd::NotUp(_) => "stack switched or damaged",
        StackEnd::DepthLimit => "deeper than a sample can hold",
        StackEnd::Unsupported(_) => "unwind rule not supported",
        StackEnd::NoUserRegisters => "thread starting or exiting",
    }
}

impl QualityFacts {
    /// Reads them from a recording.
    pub(crate) fn of(recording: &Recording) -> Self {
        let quality = &recording.profile.quality;
        Self {
            samples: quality.samples,
            complete: quality.samples,
            ..Self::default()
        }
    }

    /// Samples that are in no profile.
    pub(crate) const fn lost(&self) -> u64 {
        self.ring_full + self.not_kept
    }
}
