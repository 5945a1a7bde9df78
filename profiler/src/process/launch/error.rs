//! Why a command did not start, in words for its user.

use std::io;

use super::caller::sudo_caller;

/// Why a command did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No process could be made.
    #[error("cannot start a process for {program:?}")]
    Spawn {
        /// The command's first word.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no such program.
    #[error("command not found: {program:?}{}", sudo_hint(program))]
    NotFound {
        /// The command's first word.
        program: String,
    },
    /// It is there, but cannot be run.
    #[error("cannot run {program:?}: {source}{}", sudo_hint(program))]
    NotExecutable {
        /// The command's first word.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// It was to run as the user who called sudo.
    #[error("cannot run {program:?} as the user who called sudo")]
    BecomeCaller {
        /// The command's first word.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl LaunchError {
    /// What a shell would exit with.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            Self::Spawn { .. } | Self::BecomeCaller { .. } => 1,
        }
    }
}

/// What helps under sudo, which replaces `PATH` and so hides virtual environments.
fn sudo_hint(program: &str) -> String {
    hint_for(program, sudo_caller().is_some())
}

/// A program that was named with its directory is not searched for, and a shell must be able to take the name as it is.
fn hint_for(program: &str, under_sudo: bool) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    if under_sudo && !program.is_empty() && program.chars().all(plain) {
        format!(
            "\n  sudo searches a PATH of its own: give the full path, `-- \"$(which {program})\"`"
        )
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::hint_for;

    #[test]
    fn a_program_that_sudo_does_not_find_is_to_be_given_with_its_path() {
        let hint = hint_for("python", true);
        assert!(hint.ends_with("`-- \"$(which python)\"`"), "{hint}");
        for (program, under_sudo) in [("python", false), ("./python", true), ("a b", true)] {
            assert_eq!(hint_for(program, under_sudo), "", "{program}");
        }
    }
}
