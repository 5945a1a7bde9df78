//! Kinds of addresses that must not be mixed up.

use std::fmt;

/// Actual virtual memory address: where code lies in the *target's* memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Avma(pub u64);

/// Stated virtual memory address: what an ELF file says of itself, before it is loaded anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Svma(pub u64);

/// Bytes from the start of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileOffset(pub u64);

impl fmt::LowerHex for Avma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// Where a frame was executing, as an address in the *target's* memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeAddress {
    /// The interrupted instruction: look it up as it is.
    Leaf(Avma),
    /// The instruction after a call: look up one byte earlier, or a call that ends its function is charged to the
    /// next one.
    Caller(Avma),
}

impl CodeAddress {
    /// The address to look up: inside the instruction that was executing.
    pub const fn lookup(self) -> Avma {
        match self {
            Self::Leaf(at) => at,
            Self::Caller(Avma(at)) => Avma(at.wrapping_sub(1)),
        }
    }
}
