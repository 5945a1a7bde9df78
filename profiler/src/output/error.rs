//! What can go wrong when writing.

use std::{io, path::PathBuf};

use super::Format;

/// Why a profile was not written. Each message names the thing, the cause and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// A file name that does not tell the format.
    #[error("the name of {} does not say which format to write; end it in {}, or name the format", path.display(), Format::extensions())]
    UnknownExtension {
        /// The file.
        path: PathBuf,
    },
    /// A profile without stacks.
    #[error(
        "the profile is empty: no samples were taken, so there is nothing to write; record for longer, or while the program uses the CPU"
    )]
    NoSamples,
    /// The destination is there already.
    #[error("{} exists and is not overwritten; move it away, or choose another name", path.display())]
    Exists {
        /// The destination.
        path: PathBuf,
    },
    /// The destination is a directory, or has no name.
    #[error("{} is not the name of a file; add one, for example profile.svg", path.display())]
    NotAFile {
        /// The destination.
        path: PathBuf,
    },
    /// The destination's directory cannot be written to.
    #[error("cannot create a file in {}: {source}; choose a directory that exists and can be written to", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A device or pipe that cannot be opened.
    #[error("cannot write to {}: {source}; choose another file", path.display())]
    Open {
        /// The device or pipe.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// One of the first three descriptors is closed.
    #[error("{} is closed, or /dev/null: nothing written to it would arrive; redirect it to a file, or name one with --output", standard(*number))]
    Closed {
        /// Its number.
        number: u32,
    },
    /// The place lets others decide what is written to.
    #[error("{} {why}, and is not written to; choose another name", path.display())]
    Distrusted {
        /// The place.
        path: PathBuf,
        /// What is wrong with it, as a clause: "is a link of user 1000".
        why: String,
    },
    /// The thread that writes could not be given its rights.
    #[error("cannot take the rights to write files with: {source}; run as root, or without sudo")]
    Rights {
        /// Why.
        source: io::Error,
    },
    /// The bytes could not be written; nothing of them remains in a file.
    #[error("cannot write the profile: {source}; check that there is room")]
    Write {
        /// Why.
        source: io::Error,
    },
    /// The file was written and could not be given its name; it was removed.
    #[error("cannot put the finished file at {}: {source}; choose a directory that can be written to", path.display())]
    Publish {
        /// The destination.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl OutputError {
    /// Another place may do. Not so where the reader of a pipe has had enough.
    pub fn is_about_the_place(&self) -> bool {
        match self {
            Self::Directory { source, .. }
            | Self::Open { source, .. }
            | Self::Write { source }
            | Self::Publish { source, .. } => source.kind() != io::ErrorKind::BrokenPipe,
            Self::Distrusted { .. } => true,
            Self::UnknownExtension { .. }
            | Self::NoSamples
            | Self::Closed { .. }
            | Self::Exists { .. }
            | Self::NotAFile { .. }
            | Self::Rights { .. } => false,
        }
    }

    /// The rights of whoever asked do not suffice: with others it may go.
    pub fn is_denial(&self) -> bool {
        match self {
            Self::Directory { source, .. }
            | Self::Open { source, .. }
            | Self::Rights { source } => source.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }
}

fn standard(number: u32) -> &'static str {
    match number {
        0 => "standard input",
        1 => "standard output",
        _ => "standard error",
    }
}
