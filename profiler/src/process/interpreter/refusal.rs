//! Why the interpreter of a process is not believed, in words for people.

use std::{fmt, io};

use super::{NotLocated, debug_offsets::ImpossibleOffset};

/// Why the frames of a process's interpreter are not read. It will not change while the process runs that program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is PyPy.
    #[error("it is PyPy, which keeps its frames in another way than CPython")]
    PyPy,
    /// It is older than all that are known.
    #[error("{0} is too old: frames are read of 3.8 to 3.15")]
    TooOld(Version),
    /// Its file does not tell what is needed.
    #[error("{0}")]
    NotLocated(#[from] NotLocated),
    /// Its memory may not be read.
    #[error("its memory cannot be read ({reason}): that takes CAP_SYS_PTRACE")]
    Memory {
        /// What the operating system said.
        reason: String,
    },
    /// It has no list of its own offsets, as every one since 3.13 has.
    #[error("{0} does not describe itself as it should: it is a changed build")]
    NoDescription(Version),
    /// That list cannot be true.
    #[error("{version} describes itself wrongly ({fault}): it is damaged, or a changed build")]
    Damaged {
        /// What it is.
        version: Version,
        /// The first thing that is wrong.
        fault: ImpossibleOffset,
    },
    /// It was looked at, and is not as its version is.
    #[error(
        "{version} is not built as usual ({misfit}): it is a changed one, or has --with-trace-refs"
    )]
    Foreign {
        /// What it is.
        version: Version,
        /// The first thing that does not fit.
        misfit: Misfit,
    },
    /// It is newer than all that are known, or no release, and like none of them.
    #[error("{version} is not known, and unlike all versions that are ({reason})")]
    Unknown {
        /// What it is.
        version: Version,
        /// What does not fit the newest of them.
        reason: String,
    },
}

/// What gives names to functions of an interpreter whose frames are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Trampolines and a perf map.
    PerfMap,
    /// The right to read its memory.
    Rights,
    /// Its file, once it can be read: stacks are followed by what that says.
    File,
    /// Nothing but another interpreter: neither the stacks nor the trampolines of this one can be followed.
    OtherPython,
}

/// Why the frames of an interpreter are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The reason, a clause. Raw.
    pub reason: String,
    /// What gives names all the same.
    pub remedy: Remedy,
}

impl From<Refusal> for Obstacle {
    fn from(refusal: Refusal) -> Self {
        Self {
            remedy: refusal.remedy(),
            reason: refusal.to_string(),
        }
    }
}

impl Refusal {
    /// What would give names all the same.
    pub const fn remedy(&self) -> Remedy {
        match self {
            Self::Memory { .. } => Remedy::Rights,
            Self::NotLocated(NotLocated::File { .. }) => Remedy::File,
            Self::PyPy | Self::NotLocated(NotLocated::OtherMachine { .. }) => Remedy::OtherPython,
            Self::TooOld(_)
            | Self::NotLocated(_)
            | Self::NoDescription(_)
            | Self::Damaged { .. }
            | Self::Foreign { .. }
            | Self::Unknown { .. } => Remedy::PerfMap,
        }
    }

    /// It follows from what frames there were at that moment, and may be wrong where a thread was caught entering a function.
    pub const fn is_of_frames(&self) -> bool {
        matches!(self, Self::Foreign { .. } | Self::Unknown { .. })
    }

    /// Of a process whose memory could not be opened.
    pub fn memory(error: &io::Error) -> Self {
        Self::Memory {
            reason: error.to_string(),
        }
    }
}

/// A version of CPython as `PY_VERSION_HEX` states it. Shown as `CPython 3.12.1`, or `CPython 3.10` if only that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub u32);

impl Version {
    /// Of which the patch level is not known.
    pub const fn of_minor((major, minor): (u8, u8)) -> Self {
        Self(u32::from_be_bytes([major, minor, 0, 0]))
    }

    /// Major and minor version.
    pub const fn minor(self) -> (u8, u8) {
        let [major, minor, ..] = self.0.to_be_bytes();
        (major, minor)
    }

    /// It is an alpha, beta or release candidate, whose structures may still change.
    pub const fn is_prerelease(self) -> bool {
        matches!(self.level(), 0xa..=0xc)
    }

    const fn level(self) -> u32 {
        self.0 >> 4 & 0xf
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch, level] = self.0.to_be_bytes();
        write!(f, "CPython {major}.{minor}")?;
        let serial = level & 0xf;
        match level >> 4 {
            0 => Ok(()),
            0xa => write!(f, ".{patch}a{serial}"),
            0xb => write!(f, ".{patch}b{serial}"),
            0xc => write!(f, ".{patch}rc{serial}"),
            _ => write!(f, ".{patch}"),
        }
    }
}

/// What of a running interpreter is not where it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// `PyCode_Type` is no type of that name.
    #[error("PyCode_Type is not the type of code objects")]
    CodeType,
    /// A field of a code object is elsewhere.
    #[error("code objects have {name} at {found}, not at {expected}")]
    Member {
        /// Its name.
        name: &'static str,
        /// Where it is.
        found: u64,
        /// Where it should be.
        expected: u16,
    },
    /// A field of a code object is missing.
    #[error("code objects have no {0}")]
    NoMember(&'static str),
    /// Code objects are of another size.
    #[error("code objects have their instructions at {found}, not at {expected}")]
    Instructions {
        /// Where they are.
        found: u64,
        /// Where they should be.
        expected: u16,
    },
    /// The list of interpreters leads to something else.
    #[error("its list of interpreters is none")]
    Interpreters,
    /// The list of an interpreter's threads leads to something else.
    #[error("its list of threads is none")]
    Threads,
    /// What should be the id of a thread does not lead to one.
    #[error("its threads have no id")]
    ThreadId,
    /// A frame cannot be read.
    #[error("a frame is not in its memory")]
    NoFrame,
    /// A frame is not what frames are.
    #[error("a frame has {0} as its owner")]
    Owner(u8),
    /// A frame is among its own callers.
    #[error("its frames go round in a circle")]
    Circle,
    /// What a frame points at is no code object.
    #[error("what a frame runs is no code object")]
    NotCode,
    /// A code object is not what code objects are.
    #[error("{0} of a code object is none")]
    Part(&'static str),
    /// A frame's instruction is not in its code.
    #[error("a frame's instruction is not in its code")]
    Instruction,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_shown_as_people_write_them() {
        for (hex, text) in [
            (0x030c_01f0, "CPython 3.12.1"),
            (0x0310_00a1, "CPython 3.16.0a1"),
            (0x030f_00b4, "CPython 3.15.0b4"),
            (0x030e_00c2, "CPython 3.14.0rc2"),
            (0x030a_0000, "CPython 3.10"),
        ] {
            let version = Version(hex);
            assert_eq!(version.to_string(), text);
            assert_eq!(
                version.is_prerelease(),
                text[8..].contains(char::is_alphabetic),
                "{text}"
            );
        }
        assert_eq!(Version::of_minor((3, 10)), Version(0x030a_0000));
        assert_eq!(Version(0x030c_01f0).minor(), (3, 12));
    }
}
