//! The profiler's end: starts the symbol process, sends it work within a budget, and ends it when that is used up.

use std::{
    collections::HashSet,
    io::{self, IoSlice, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{
    KEEPER,
    keeper::{END, START},
    paced::{CHECK_EVERY, Paced},
    program,
    protocol::{Answer, GREETING, Part, Request},
};
use crate::{
    model::Pid,
    process::{ElfCopy, cpu_time_of},
};

/// The user who owns nothing (`nobody`), by number: its name need not be known.
const NOBODY: u32 = 65534;

/// Starting a process takes some milliseconds; this is for a machine that is busy.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The process in which symbols are parsed, started with the rights of this moment; it keeps none of them.
#[derive(Debug)]
pub struct SymbolProcess(io::Result<Keeper>);

impl SymbolProcess {
    /// Starts it, as another user where that is allowed. Where it cannot be started, there are no names of compiled
    /// functions, and the recording says so.
    pub fn start() -> Self {
        Self(Keeper::start())
    }

    /// As where it could not be started.
    #[cfg(test)]
    pub(in crate::symbols) fn none() -> Self {
        Self(Err(io::Error::from(io::ErrorKind::Unsupported)))
    }
}

/// The process that starts the symbol process, and ends it.
#[derive(Debug)]
struct Keeper {
    control: UnixStream,
    process: Child,
}

impl Keeper {
    fn start() -> io::Result<Self> {
        let (control, theirs) = UnixStream::pair()?;
        control.set_read_timeout(Some(START_TIMEOUT))?;
        let theirs = OwnedFd::from(theirs);
        let command = || -> io::Result<_> {
            let mut command = program(KEEPER);
            // A group of its own: Ctrl-C in a terminal is for the profiler, which still has names to ask for.
            command
                .process_group(0)
                .stdin(Stdio::from(theirs.try_clone()?));
            Ok(command)
        };
        let as_nobody = rustix::process::geteuid()
            .is_root()
            .then(|| command()?.uid(NOBODY).gid(NOBODY).spawn());
        let process = match as_nobody {
            Some(Ok(process)) => process,
            // No right to, or a program that only its owner may run.
            Some(Err(_)) | None => command()?.spawn()?,
        };
        Ok(Self { control, process })
    }

    /// Starts the process that is at the other end of the socket, and gives its pid.
    fn start_process(&mut self, socket: &UnixStream) -> io::Result<Pid> {
        let sockets = [socket.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
        sendmsg(
            self.control.as_fd(),
            &[IoSlice::new(&[START])],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        match self.answer()? {
            0 => Err(io::Error::other("the symbol process could not be started")),
            pid => Ok(Pid(pid)),
        }
    }

    /// Ends the process, and says by which signal it had ended; 0: by none.
    fn end_process(&mut self) -> io::Result<u32> {
        self.control.write_all(&[END])?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<u32> {
        let mut answer = [0; 4];
        self.control.read_exact(&mut answer)?;
        Ok(u32::from_le_bytes(answer))
    }
}

impl Drop for Keeper {
    /// Ends it, and with it the symbol process.
    fn drop(&mut self) {
        let _ = self.control.shutdown(std::net::Shutdown::Both);
        for _ in 0..100 {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(in crate::symbols) enum Failure {
    /// There is no symbol process, and there will be none.
    NoProcess,
    /// It ended by this signal while it worked; 0: by none.
    Ended(u32),
    /// It took more CPU time than the request has, and was ended.
    TooLong,
    /// Its answer is none, and it was ended.
    Malformed,
}

impl Failure {
    /// Memory ran out: what was parsed before may have taken it.
    pub(in crate::symbols) const fn is_of_memory(&self) -> bool {
        // The library of Rust aborts where it gets no memory.
        matches!(self, Self::Ended(signal) if *signal == libc::SIGABRT as u32)
    }
}

/// A copy that the process needs for a request.
pub(in crate::symbols) struct Image<'c, 'f> {
    /// What is in it.
    pub(in crate::symbols) part: Part,
    /// The copy.
    pub(in crate::symbols) copy: &'c ElfCopy<'f>,
}

/// A symbol process, which is started when it is first needed, and again after it was ended.
#[derive(Debug)]
pub(in crate::symbols) struct Connection {
    keeper: Option<Keeper>,
    running: Option<Running>,
    /// Processes that ended before they should, or were ended.
    stopped: u64,
    /// CPU time of those that have ended.
    cpu_before: Duration,
}

#[derive(Debug)]
struct Running {
    socket: UnixStream,
    pid: Pid,
    loaded: HashSet<(u32, u8)>,
    bytes: u64,
}

impl Connection {
    pub(in crate::symbols) fn new(process: SymbolProcess) -> Self {
        let keeper = process
            .0
            .inspect_err(|error| tracing::warn!("no process to parse symbols in: {error}"));
        Self {
            keeper: keeper.ok(),
            running: None,
            stopped: 0,
            cpu_before: Duration::ZERO,
        }
    }

    /// Processes that ended before they should, or were ended because they took too much.
    pub(in crate::symbols) const fn stopped(&self) -> u64 {
        self.stopped
    }

    /// The process that runs.
    #[cfg(test)]
    pub(in crate::symbols) fn pid(&self) -> Option<Pid> {
        self.running.as_ref().map(|running| running.pid)
    }

    /// CPU time of all symbol processes so far.
    pub(in crate::symbols) fn cpu_time(&self) -> Duration {
        let running = self.running.as_ref().and_then(|it| cpu_time_of(it.pid));
        self.cpu_before + running.unwrap_or_default()
    }

    /// Bytes that the running process was sent.
    pub(in crate::symbols) fn bytes(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.bytes)
    }

    /// The running process has this part of a file.
    pub(in crate::symbols) fn has(&self, file: u32, part: Part) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|it| it.loaded.contains(&(file, part as u8)))
    }

    /// The running process has parts of files other than this one.
    pub(in crate::symbols) fn has_others(&self, file: u32) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|it| it.loaded.iter().any(|(known, _)| *known != file))
    }

    /// Gives back the memory of all that was parsed: the next request begins with a new process.
    pub(in crate::symbols) fn start_over(&mut self) {
        self.end();
    }

    /// Looks up addresses in a file, of which `images` are sent first where the process does not have them.
    pub(in crate::symbols) fn find(
        &mut self,
        file: u32,
        images: &[Image<'_, '_>],
        with_debug_info: bool,
        places: &[u64],
        cpu: Duration,
    ) -> Result<Answer, Failure> {
        self.start()?;
        let asked = self.ask(file, images, with_debug_info, places, cpu);
        let failure = match asked {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        let signal = self.end();
        self.stopped += 1;
        let failure = match failure.kind() {
            io::ErrorKind::TimedOut => Failure::TooLong,
            io::ErrorKind::InvalidData => Failure::Malformed,
            _ => Failure::Ended(signal),
        };
        tracing::debug!("the symbol process was lost over file {file}: {failure:?}");
        Err(failure)
    }

    fn start(&mut self) -> Result<(), Failure> {
        if self.running.is_some() {
            return Ok(());
        }
        let keeper = self.keeper.as_mut().ok_or(Failure::NoProcess)?;
        let started = (|| {
            let (socket, theirs) = UnixStream::pair()?;
            let pid = keeper.start_process(&theirs)?;
            drop(theirs);
            socket.set_read_timeout(Some(START_TIMEOUT))?;
            let mut greeting = [0; GREETING.len()];
            (&socket).read_exact(&mut greeting)?;
            if greeting != GREETING {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            socket.set_read_timeout(Some(CHECK_EVERY))?;
            socket.set_write_timeout(Some(CHECK_EVERY))?;
            Ok(Running {
                socket,
                pid,
                loaded: HashSet::new(),
                bytes: 0,
            })
        })();
        match started {
            Ok(running) => {
                self.running = Some(running);
                Ok(())
            }
            Err(error) => {
                tracing::warn!("no process to parse symbols in: {error}");
                self.keeper = None;
                Err(Failure::NoProcess)
            }
        }
    }

    fn ask(
        &mut self,
        file: u32,
        images: &[Image<'_, '_>],
        with_debug_info: bool,
        places: &[u64],
        cpu: Duration,
    ) -> io::Result<Answer> {
        let Running {
            socket,
            pid,
            loaded,
            bytes: sent,
        } = self.running.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let mut paced = Paced::new(socket, *pid, cpu);
        for Image { part, copy } in images {
            if loaded.insert((file, *part as u8)) {
                let (part, bytes) = (*part, copy.bytes());
                Request::Load { file, part, bytes }.write_to(&mut paced)?;
                copy.write_to(&mut paced)?;
                *sent += bytes;
            }
        }
        Request::Find {
            file,
            with_debug_info,
            places: places.to_vec(),
        }
        .write_to(&mut paced)?;
        let mut length = [0; 4];
        paced.read_exact(&mut length)?;
        let mut answer = vec![0; Answer::length_of(length)?];
        paced.read_exact(&mut answer)?;
        Answer::parse(&answer, places.len())
    }

    /// Ends the process, and says by which signal it had ended before; 0: by none.
    fn end(&mut self) -> u32 {
        self.cpu_before = self.cpu_time();
        if self.running.take().is_none() {
            return 0;
        }
        let Some(keeper) = &mut self.keeper else {
            return 0;
        };
        keeper.end_process().unwrap_or_else(|error| {
            tracing::warn!("no process to parse symbols in: {error}");
            self.keeper = None;
            0
        })
    }
}
