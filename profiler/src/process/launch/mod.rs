//! Starting a command that waits to be sampled before its first instruction.
//!
//! A process is wanted that has a pid, so that sampling can be attached to it, but has not begun. It is this program
//! once more, called as [`HELPER`]: it waits for a word on a socket, becomes the user who called sudo, and then turns
//! into the command by `exec`, which keeps the pid. Nothing is stopped by a signal, and dropping [`Launched`] before
//! [`Launched::release`] leaves no process behind: the socket closes, and the helper goes.
//!
//! The socket is the helper's standard input, because that is a descriptor which a child can be given without
//! `unsafe`; the real standard input follows over the socket with the word to begin.
//!
//! Before that, `program` finds out which CPython the command is, and `trampolines` gives it what it lacks.

mod caller;
mod error;
mod helper;
mod program;
mod trampolines;

use std::{
    env,
    ffi::{CStr, OsString},
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::{
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::{PidfdFlags, Signal, kill_process, pidfd_open},
};
use tokio::io::{AsyncReadExt as _, Interest, unix::AsyncFd};

pub use caller::{Caller, sudo_caller};
pub use error::LaunchError;
pub use helper::exec_when_ready;
pub use trampolines::{NoPlace, TrampolineFolder};

use crate::model::Pid;
use trampolines::PYTHON_PATH;

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
    /// Known once it has been waited for: its pid may be another process's then.
    status: Option<ExitStatus>,
    /// Taken when the command is released.
    control: Option<UnixStream>,
    pid: Pid,
    program: String,
}

/// With which trampolines a command starts.
#[derive(Clone, Copy, Debug)]
pub enum Trampolines<'f> {
    /// As the user's environment says.
    Off,
    /// Those of CPython 3.12 and later.
    Own,
    /// Those, and for older CPythons the ones in this folder.
    Given(&'f TrampolineFolder),
}

impl Launched {
    /// Makes the waiting process. `command` is the program and its arguments; `trampolines` are for the Pythons that it
    /// may run, and must stay for as long as they start.
    ///
    /// The process has the rights that the calling thread has now, and keeps them whatever that gives up later. So this
    /// needs no tokio runtime, whose threads come after the rights have gone.
    pub fn spawn(command: &[OsString], trampolines: Trampolines<'_>) -> Result<Self, LaunchError> {
        let program = command
            .first()
            .map(|program| program.to_string_lossy().into_owned())
            .unwrap_or_default();
        Self::spawn_helper(command, &program, trampolines)
            .map_err(|source| LaunchError::Spawn { program, source })
    }

    fn spawn_helper(
        command: &[OsString],
        program: &str,
        trampolines: Trampolines<'_>,
    ) -> io::Result<Self> {
        let (control, theirs) = UnixStream::pair()?;
        let mut helper = Command::new("/proc/self/exe");
        helper
            .arg(HELPER)
            .args(command)
            .stdin(Stdio::from(OwnedFd::from(theirs)));
        if !matches!(trampolines, Trampolines::Off) {
            helper.env(PERF_SUPPORT.0, PERF_SUPPORT.1);
        }
        if let Trampolines::Given(folder) = trampolines {
            let users = env::var_os(PYTHON_PATH);
            helper.env(PYTHON_PATH, folder.python_path(users.as_deref()));
        }
        let child = helper.spawn()?;
        Ok(Self {
            pid: Pid(child.id()),
            child,
            status: None,
            control: Some(control),
            program: program.to_owned(),
        })
    }

    /// Its pid, the same before and after it begins.
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets the command begin, and returns when it has, or with the reason why it could not. Needs a tokio runtime, as
    /// all that waits does.
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
                let _ = self.wait().await;
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
        self.ended().await?;
        // It has exited: this does not block.
        let status = self.child.wait()?;
        self.status = Some(status);
        Ok(status)
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
        if self.status.is_some() {
            return None;
        }
        rustix::process::Pid::from_raw(self.pid.0.cast_signed())
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
