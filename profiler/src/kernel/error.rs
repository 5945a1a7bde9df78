//! Why the kernel side could not be set up.

use std::{error::Error, io};

use aya::{EbpfError, maps::MapError, programs::ProgramError};
use rustix::io::Errno;
use thiserror::Error;

use crate::model::Hz;

/// Why the kernel side could not be set up.
#[derive(Debug, Error)]
pub enum KernelError {
    /// The object is not what this program expects.
    #[error(
        "the embedded BPF object does not fit this program: {0}\nbuild both again: cargo xtask bpf && cargo build"
    )]
    Object(String),
    /// A system call is forbidden, although [`crate::privilege::check`] found the capabilities for it.
    #[error(
        "{call} is forbidden: {source}\n  \
        The capabilities are there, so something else stands against it: a container's seccomp profile,\n  \
        a security module (SELinux, AppArmor), or kernel lockdown. `dmesg` or the audit log may name it.\n  \
        Docker or Podman:  --security-opt seccomp=unconfined, or a profile that allows {call}"
    )]
    Forbidden {
        /// The system call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// There is no such system call.
    #[error(
        "{call} does not exist here: {source}\n  \
        This kernel was built without {option}, or a sandbox (gVisor, a seccomp profile) hides the call.\n  \
        Run pyprof-bpf outside of it, or boot a distribution's kernel: all of them have it."
    )]
    Unavailable {
        /// The system call.
        call: &'static str,
        /// What switches it on when a kernel is built.
        option: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused the object or one of its maps.
    #[error("the kernel refused the BPF object: {0}")]
    Load(#[source] Box<EbpfError>),
    /// The kernel refused the program.
    #[error("the kernel refused the BPF program: {0}")]
    Program(#[source] Box<ProgramError>),
    /// A map could not be used.
    #[error("cannot use the BPF map {name}: {source}")]
    Map {
        /// The map's name.
        name: &'static str,
        /// What aya says.
        #[source]
        source: MapError,
    },
    /// A distribution's setting that `CAP_PERFMON` does not lift.
    #[error(
        "cannot open a sampling event: kernel.perf_event_paranoid is above 2, which only root may pass\n  \
        Run it as root: sudo pyprof-bpf …\n  \
        or lower the setting: sudo sysctl kernel.perf_event_paranoid=2"
    )]
    Paranoid,
    /// The sampling event could not be opened.
    #[error("cannot open a sampling event: {source}")]
    Event {
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The frequency is above the kernel's limit.
    #[error(
        "{asked} is more than this kernel allows ({limit} Hz)\n  \
        Sample less often: -F {limit}\n  \
        or raise the limit: sudo sysctl kernel.perf_event_max_sample_rate={}", asked.0
    )]
    Frequency {
        /// What was asked for.
        asked: Hz,
        /// `kernel.perf_event_max_sample_rate`.
        limit: u64,
    },
    /// A system call failed.
    #[error("{call} failed: {source}")]
    System {
        /// Which one.
        call: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl KernelError {
    /// It is a matter of rights or of the kernel's features, not of this recording.
    pub const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Forbidden { .. } | Self::Unavailable { .. } | Self::Paranoid
        )
    }

    /// For `map_err`: an error of this map.
    pub(super) fn map(name: &'static str) -> impl FnOnce(MapError) -> Self {
        move |source| Self::Map { name, source }
    }

    /// Loading the object or creating its maps failed.
    pub(super) fn load(error: EbpfError) -> Self {
        Self::refusal("bpf", &error).unwrap_or_else(|| Self::Load(Box::new(error)))
    }

    /// Something about the program failed.
    pub(super) fn program(error: ProgramError) -> Self {
        // EACCES is the verifier's word for "this program does something that is not allowed".
        let verifier = matches!(
            &error,
            ProgramError::LoadError { io_error, .. } if Errno::from_io_error(io_error) == Some(Errno::ACCESS)
        );
        Some(&error)
            .filter(|_| !verifier)
            .and_then(|error| Self::refusal("bpf", error))
            .unwrap_or_else(|| Self::Program(Box::new(error)))
    }

    /// Opening an event failed.
    pub(super) fn event(source: io::Error) -> Self {
        Self::refusal("perf_event_open", &source).unwrap_or(Self::Event { source })
    }

    /// What the first error of the operating system in a chain means, if it speaks of rights or missing features.
    fn refusal(call: &'static str, error: &(dyn Error + 'static)) -> Option<Self> {
        let mut causes = std::iter::successors(Some(error), |&error| error.source());
        let errno =
            causes.find_map(|cause| Errno::from_io_error(cause.downcast_ref::<io::Error>()?))?;
        let source = io::Error::from(errno);
        match errno {
            Errno::PERM | Errno::ACCESS => Some(Self::Forbidden { call, source }),
            Errno::NOSYS => Some(Self::Unavailable {
                call,
                option: if call == "bpf" {
                    "CONFIG_BPF_SYSCALL"
                } else {
                    "CONFIG_PERF_EVENTS"
                },
                source,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map_refused(errno: Errno) -> KernelError {
        KernelError::load(EbpfError::MapError(MapError::CreateError {
            name: "ROWS".to_owned(),
            io_error: errno.into(),
        }))
    }

    #[test]
    fn missing_rights_are_told_from_other_failures() {
        assert!(map_refused(Errno::PERM).is_refusal());
        assert!(map_refused(Errno::NOSYS).is_refusal());
        assert!(!map_refused(Errno::NOMEM).is_refusal());
        assert!(KernelError::event(Errno::ACCESS.into()).is_refusal());
        assert!(!KernelError::event(Errno::MFILE.into()).is_refusal());
    }

    #[test]
    fn refusals_have_five_lines_at_most() {
        let asked = Hz(200_000);
        let limit = 100_000;
        for error in [
            map_refused(Errno::PERM),
            map_refused(Errno::NOSYS),
            KernelError::event(Errno::PERM.into()),
            KernelError::Frequency { asked, limit },
        ] {
            let text = error.to_string();
            assert!((3..=5).contains(&text.lines().count()), "{text}");
        }
    }
}
