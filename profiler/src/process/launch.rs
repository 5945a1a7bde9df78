//! Starting a command that waits to be sampled before its first instruction.
//!
//! A process is wanted that has a pid, so that sampling can be attached to it, but has not begun. It is this program
//! once more, called as [`HELPER`]: it waits for a word on a socket, becomes the user who called sudo, and then turns
//! into the command by `exec`, which keeps the pid. Nothing is stopped by a signal, and dropping [`Launched`] before
//! [`Launched::release`] leaves no process behind: the socket closes, and the helper goes.
//!
//! The socket is the helper's standard input, because that is a descriptor which a child can be given without
//! `unsafe`; the real standard input follows over the socket with the word to begin.

mod caller;
mod helper;

use std::{
    ffi::{CStr, OsString},
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    process::{ExitStatus, Stdio},
};

use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::{PidfdFlags, Signal, kill_process, pidfd_open},
};
use tokio::{
    io::{AsyncReadExt as _, Interest, unix::AsyncFd},
    process::{Child, Command},
};

pub use caller::sudo_caller;
pub use helper::exec_when_ready;

use crate::model::Pid;

/// First word of the helper's command line. Not for people.
pub const HELPER: &str = "__exec-when-ready";

/// Name of the helper's thread, until it becomes the command. At most 15 bytes.
pub const HELPER_NAME: &CStr = c"pyprof:waiting";

/// Makes CPython 3.12 and later write perf maps (`PyUnstable_PerfTrampoline…`, Python/perf_trampoline.c).
const PERF_SUPPORT: (&str, &str) = ("PYTHONPERFSUPPORT", "1");

/// A command that has a pid, and begins when it is told to.
#[derive(Debug)]
pub struct Launched {
    child: Child,
    /// Taken when the command is released.
    control: Option<UnixStream>,
    pid: Pid,
    program: String,
}

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

impl Launched {
    /// Makes the waiting process. Needs a tokio runtime. `command` is the program and its arguments.
    pub fn spawn(command: &[OsString]) -> Result<Self, LaunchError> {
        let program = command
            .first()
            .map(|program| program.to_string_lossy().into_owned())
            .unwrap_or_default();
        Self::spawn_helper(command, &program)
            .map_err(|source| LaunchError::Spawn { program, source })
    }

    fn spawn_helper(command: &[OsString], program: &str) -> io::Result<Self> {
        let (control, theirs) = UnixStream::pair()?;
        let child = Command::new("/proc/self/exe")
            .arg(HELPER)
            .args(command)
            .env(PERF_SUPPORT.0, PERF_SUPPORT.1)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        let pid = child.id().ok_or(io::ErrorKind::NotFound)?;
        Ok(Self {
            child,
            control: Some(control),
            pid: Pid(pid),
            program: program.to_owned(),
        })
    }

    /// Its pid, the same before and after it begins.
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets the command begin, and returns when it has, or with the reason why it could not.
    pub async fn release(&mut self) -> Result<(), LaunchError> {
        let Some(control) = self.control.take() else {
            return Ok(());
        };
        let answer = begin(control).await.map_err(|source| LaunchError::Spawn {
            program: self.program.clone(),
            source,
        })?;
        match helper::Failure::decode(&answer) {
            // The socket closed without a word: `exec` closed it.
            None => Ok(()),
            Some(failure) => {
                // The helper is at its end: leave no zombie.
                let _ = self.child.wait().await;
                Err(failure.into_error(self.program.clone()))
            }
        }
    }

    /// Waits for its end without taking note of it: it stays a zombie, whose CPU time can be read, until
    /// [`wait`](Self::wait).
    #[expect(
        deprecated,
        reason = "the unsafe successor wants a promise that an OwnedFd keeps"
    )]
    pub async fn ended(&self) -> io::Result<()> {
        let Some(pid) = self.raw_pid() else {
            return Ok(());
        };
        let handle = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        // Readable, and so it stays, once the last thread has exited.
        AsyncFd::with_interest(handle, Interest::READABLE)?
            .readable()
            .await
            .map(drop)
    }

    /// Waits for its end.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Sends it a signal; nothing happens once it has been waited for.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.raw_pid() {
            // It may have exited a moment ago, and be a zombie: that is no failure.
            let _ = kill_process(pid, signal);
        }
    }

    /// `None` once it has been waited for.
    fn raw_pid(&self) -> Option<rustix::process::Pid> {
        let pid = self.child.id()?;
        rustix::process::Pid::from_raw(pid.cast_signed())
    }
}

/// Hands over the standard input as the word to begin, and gives what comes back until the socket closes.
async fn begin(control: UnixStream) -> io::Result<Vec<u8>> {
    let stdin = io::stdin();
    let descriptors = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    match sendmsg(
        &control,
        &[IoSlice::new(b"x")],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    ) {
        // Killed while it waited: `wait` tells how.
        Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Ok(Vec::new()),
        sent => sent?,
    };
    control.set_nonblocking(true)?;
    let mut control = tokio::net::UnixStream::from_std(control)?;
    let mut answer = Vec::new();
    match control.read_to_end(&mut answer).await {
        Err(err) if err.kind() == io::ErrorKind::ConnectionReset => Ok(Vec::new()),
        read => read.map(|_| answer),
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
