//! Why a recording could not be made.

use std::io;

use thiserror::Error;

use crate::{kernel::KernelError, process::TargetError};

/// Why a recording could not be made.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The target cannot be profiled.
    #[error("cannot profile this process")]
    Target(#[from] TargetError),
    /// The kernel side could not be set up.
    #[error("cannot start sampling")]
    Kernel(#[from] KernelError),
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
    /// For `map_err`: what was being done.
    pub(super) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { doing, source }
    }
}
