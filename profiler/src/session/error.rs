//! Why a recording could not be made.

use std::io;

use thiserror::Error;

use crate::{
    kernel::KernelError,
    model::Pid,
    process::{SelectError, TargetError},
    registry::RegistryError,
};

/// Why a recording could not be made.
#[derive(Debug, Error)]
pub enum SessionError {
    /// There are no processes to record.
    #[error("nothing to record")]
    Select(#[source] SelectError),
    /// The target cannot be profiled.
    #[error("cannot profile this process")]
    Target(#[source] TargetError),
    /// The kernel side could not be set up.
    #[error("cannot start sampling")]
    Kernel(#[from] KernelError),
    /// The interpreter's frames were asked for, and cannot be read.
    #[error(
        "cannot read Python frames of pid {pid}: {reason}. Without --python-from, it is recorded all the same, \
         with the names that its perf map has, if there is one"
    )]
    Interpreter {
        /// The process.
        pid: Pid,
        /// Why not.
        reason: String,
    },
    /// It was to end before it began.
    #[error("stopped before sampling began: nothing to draw")]
    StoppedEarly,
    /// A system call of our own failed.
    #[error("{doing} failed")]
    System {
        /// What was being done.
        doing: &'static str,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
}

impl SessionError {
    /// The kernel, or a sandbox, does not let anybody sample here.
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Kernel(err) if err.is_refusal())
    }

    /// It was stopped before there could be a sample.
    pub const fn is_early_stop(&self) -> bool {
        matches!(self, Self::StoppedEarly)
    }

    /// Other settings would do.
    pub const fn is_wrong_usage(&self) -> bool {
        matches!(self, Self::Kernel(KernelError::Frequency { .. }))
    }

    /// For `map_err`: what was being done.
    pub(super) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { doing, source }
    }
}

impl From<RegistryError> for SessionError {
    fn from(error: RegistryError) -> Self {
        match error {
            RegistryError::Select(error) => Self::Select(error),
            RegistryError::Target(error) => Self::Target(error),
            RegistryError::Interpreter { pid, reason } => Self::Interpreter { pid, reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Hz;

    #[test]
    fn what_the_kernel_refuses_is_told_from_failures() {
        let source = || io::Error::from(io::ErrorKind::PermissionDenied);
        let call = "bpf";
        let forbidden = KernelError::Forbidden {
            call,
            source: source(),
        };
        assert!(SessionError::from(forbidden).is_refusal());
        let frequency = KernelError::Frequency {
            asked: Hz(200_000),
            limit: 100_000,
        };
        let frequency = SessionError::from(frequency);
        assert!(frequency.is_wrong_usage() && !frequency.is_refusal());
        let source = source();
        let other = SessionError::from(KernelError::System { call, source });
        assert!(!other.is_refusal() && !other.is_wrong_usage());
    }
}
