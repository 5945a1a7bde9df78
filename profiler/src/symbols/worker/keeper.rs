//! The process that starts the symbol process, ends it when told to, and starts it again.
//!
//! The profiler gives up the rights to become another user, and to signal one, before it reads anything. So this process
//! is started before, by that other user; it has no rights, parses nothing, and ends with the socket to the profiler.

use std::{
    io::{self, IoSliceMut, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::ExitStatusExt as _},
    },
    process::{Child, ExitStatus, Stdio},
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::{KEEPER_NAME, WORKER, program, sandbox};

/// Start a process that speaks over the socket which comes along; the answer is its pid, 0 if there is none.
pub(super) const START: u8 = b'S';

/// End it; the answer is the signal that it ended by, 0 if by none.
pub(super) const END: u8 = b'E';

/// Runs until the profiler closes the socket, which is its standard input.
pub(super) fn run() -> io::Result<()> {
    let _ = rustix::thread::set_name(KEEPER_NAME);
    sandbox::close_inherited()?;
    sandbox::give_up_rights().map_err(io::Error::other)?;
    let mut control = UnixStream::from(rustix::io::dup(rustix::stdio::stdin())?);
    let mut running: Option<Child> = None;
    loop {
        let Some((word, socket)) = receive(&control)? else {
            end(running.take());
            return Ok(());
        };
        let answer = match (word, socket) {
            (START, Some(socket)) => {
                end(running.take());
                let started = program(WORKER).stdin(Stdio::from(socket)).spawn();
                running = started.ok();
                running.as_ref().map_or(0, Child::id)
            }
            (END, _) => {
                let status = end(running.take());
                status.and_then(|status| status.signal()).unwrap_or(0) as u32
            }
            _ => return Err(io::Error::from(io::ErrorKind::InvalidData)),
        };
        control.write_all(&answer.to_le_bytes())?;
    }
}

/// Ends a process and says how it had ended.
fn end(process: Option<Child>) -> Option<ExitStatus> {
    let mut process = process?;
    if let Ok(Some(status)) = process.try_wait() {
        return Some(status);
    }
    // It may end at this moment: the status says how.
    let _ = process.kill();
    process.wait().ok()
}

/// The next word, and the descriptor that came with it; `None`: the profiler has ended.
fn receive(control: &UnixStream) -> io::Result<Option<(u8, Option<OwnedFd>)>> {
    let mut word = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        control.as_fd(),
        &mut [IoSliceMut::new(&mut word)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let socket = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    Ok(Some((word[0], socket)))
}
