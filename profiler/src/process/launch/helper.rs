//! The process that waits and then becomes the command. It has one thread, and runs none of the profiler.

use std::{
    ffi::OsString,
    io::{self, IoSliceMut, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::Command,
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::{HELPER_NAME, LaunchError, caller::Caller};

/// What went wrong, as it crosses the socket: a letter and an `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// `exec` failed.
    Exec(i32),
    /// Becoming another user failed.
    Become(i32),
}

impl Failure {
    fn encode(self) -> [u8; 5] {
        let (kind, errno) = match self {
            Self::Exec(errno) => (b'e', errno),
            Self::Become(errno) => (b'u', errno),
        };
        let [a, b, c, d] = errno.to_ne_bytes();
        [kind, a, b, c, d]
    }

    /// `None` where nothing was said.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let [kind, a, b, c, d] = *bytes else {
            return None;
        };
        let errno = i32::from_ne_bytes([a, b, c, d]);
        match kind {
            b'e' => Some(Self::Exec(errno)),
            b'u' => Some(Self::Become(errno)),
            _ => None,
        }
    }

    pub(super) fn into_error(self, program: String) -> LaunchError {
        match self {
            Self::Exec(errno) => {
                let source = io::Error::from_raw_os_error(errno);
                if source.kind() == io::ErrorKind::NotFound {
                    LaunchError::NotFound { program }
                } else {
                    LaunchError::NotExecutable { program, source }
                }
            }
            Self::Become(errno) => LaunchError::BecomeCaller {
                program,
                source: io::Error::from_raw_os_error(errno),
            },
        }
    }
}

/// Waits for the word, then becomes `command`. Returns, with an exit code, only where that fails; the process that
/// waits for us is told why and does the talking.
pub fn exec_when_ready(command: &[OsString]) -> u8 {
    let Some((program, arguments)) = command.split_first() else {
        return 2;
    };
    // `exec` gives the thread another name: samples with this one are ours, not the command's.
    let _ = rustix::thread::set_name(HELPER_NAME);
    // The copy is closed by `exec`, which is how the other side learns of its success.
    let Ok(control) = io::stdin().as_fd().try_clone_to_owned() else {
        return 1;
    };
    let mut control = UnixStream::from(control);
    let Ok(Some(stdin)) = wait_for_word(&control) else {
        // The profiler is gone, or could not attach: so nothing is to be started.
        return 1;
    };
    let failure = become_command(&stdin, program, arguments);
    // If nobody listens any more, nobody needs to know.
    let _ = control.write_all(&failure.encode());
    1
}

fn become_command(stdin: &OwnedFd, program: &OsString, arguments: &[OsString]) -> Failure {
    if let Err(err) = rustix::stdio::dup2_stdin(stdin) {
        return Failure::Exec(err.raw_os_error());
    }
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(caller) = Caller::of_sudo() {
        caller.describe_in(&mut command);
        if let Err(err) = caller.become_it() {
            return Failure::Become(err.raw_os_error());
        }
    }
    let err = command.exec();
    Failure::Exec(err.raw_os_error().unwrap_or(0))
}

/// Blocks until the word comes, and gives the standard input that comes with it; `None` when the socket closes first.
fn wait_for_word(control: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut word = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        recvmsg(
            control,
            &mut [IoSliceMut::new(&mut word)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let stdin = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(stdin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_survive_the_socket() {
        for failure in [Failure::Exec(2), Failure::Become(1)] {
            assert_eq!(Failure::decode(&failure.encode()), Some(failure));
        }
        assert_eq!(Failure::decode(b""), None);
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let code = |errno| Failure::Exec(errno).into_error("x".to_owned()).exit_code();
        assert_eq!(code(rustix::io::Errno::NOENT.raw_os_error()), 127);
        assert_eq!(code(rustix::io::Errno::ACCESS.raw_os_error()), 126);
        assert_eq!(code(rustix::io::Errno::NOEXEC.raw_os_error()), 126);
    }
}
