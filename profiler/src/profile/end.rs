//! How stacks ended, without the address: what is counted and shown.

use std::fmt;

use crate::model::StackEnd;

/// How a stack ended: a [`StackEnd`] without its address, so that equal stacks count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndClass {
    /// Nothing is missing.
    Complete,
    /// No unwind information for an address.
    NoRule,
    /// Another JIT compiler's code.
    UnknownJit,
    /// Memory that was not known yet.
    NoMapping,
    /// A word of the stack could not be read.
    ReadFault,
    /// The stack pointer did not move towards the stack's base.
    NotUp,
    /// More frames than one sample can hold.
    DepthLimit,
    /// Unwind information that needs a register which cannot be known.
    Unsupported,
    /// No user registers.
    NoUserRegisters,
    /// Python frames are whole, native ones are not.
    NativePart,
    /// Native frames are whole, Python ones are not.
    PythonPart,
    /// Python and native frames are whole, but not in one order: the Python frames stand in one block.
    NoFit,
}

impl EndClass {
    /// Nothing is missing towards the root of what is shown.
    pub const fn has_root(self) -> bool {
        matches!(self, Self::Complete | Self::NativePart | Self::NoFit)
    }
}

impl From<StackEnd> for EndClass {
    fn from(end: StackEnd) -> Self {
        match end {
            StackEnd::Root | StackEnd::ZeroReturnAddress => Self::Complete,
            StackEnd::NoRule(_) => Self::NoRule,
            StackEnd::UnknownJit(_) => Self::UnknownJit,
            StackEnd::NoMapping(_) => Self::NoMapping,
            StackEnd::ReadFault(_) => Self::ReadFault,
            StackEnd::NotUp(_) => Self::NotUp,
            StackEnd::DepthLimit => Self::DepthLimit,
            StackEnd::Unsupported(_) => Self::Unsupported,
            StackEnd::NoUserRegisters => Self::NoUserRegisters,
            StackEnd::NativePart => Self::NativePart,
            StackEnd::PythonPart(_) => Self::PythonPart,
            StackEnd::NoFit => Self::NoFit,
        }
    }
}

impl fmt::Display for EndClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Complete => "complete",
            Self::NoRule => "code without unwind information",
            Self::UnknownJit => "code of an unknown JIT compiler",
            Self::NoMapping => "code in memory that was not known yet",
            Self::ReadFault => "stack memory that could not be read",
            Self::NotUp => "a stack that did not lead upwards",
            Self::DepthLimit => "more frames than a sample can hold",
            Self::Unsupported => "unwind information that needs an unknown register",
            Self::NoUserRegisters => "no user registers",
            Self::NativePart => "whole Python stacks without some of their native frames",
            Self::PythonPart => "interpreter frames that could not be read",
            Self::NoFit => "whole stacks whose Python and native frames could not be merged",
        })
    }
}
