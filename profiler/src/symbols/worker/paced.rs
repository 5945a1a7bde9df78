//! A socket whose other end has only so much CPU time to take and to give what it must.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use crate::{model::Pid, process::cpu_time_of};

/// How often the time is looked at. The socket's own timeouts are as long.
pub(super) const CHECK_EVERY: Duration = Duration::from_millis(20);

/// On a busy machine a process waits for a CPU: it may take this many times its CPU time, and at least `WALL_TIME_MIN`.
const WALL_FACTOR: u32 = 40;
const WALL_TIME_MIN: Duration = Duration::from_secs(10);

/// A socket, as long as the budget lasts: then every call fails with `TimedOut`.
pub(super) struct Paced<'s> {
    socket: &'s UnixStream,
    pid: Pid,
    cpu: Duration,
    /// CPU time that it had used before, where that can be seen.
    used_before: Option<Duration>,
    begun: Instant,
    wall_end: Instant,
    next_check: Instant,
}

impl<'s> Paced<'s> {
    /// `pid` has so much CPU time from now on.
    pub(super) fn new(socket: &'s UnixStream, pid: Pid, cpu: Duration) -> Self {
        let now = Instant::now();
        Self {
            socket,
            pid,
            cpu,
            used_before: cpu_time_of(pid),
            begun: now,
            wall_end: now + (cpu * WALL_FACTOR).max(WALL_TIME_MIN),
            next_check: now + CHECK_EVERY,
        }
    }

    /// Also while bytes come: one at a time would be a way to stay.
    fn check(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if now < self.next_check {
            return Ok(());
        }
        self.next_check = now + CHECK_EVERY;
        let used = self.used_before.zip(cpu_time_of(self.pid));
        // `/proc` may hide processes of other users (its option `hidepid`): then all of the time counts.
        let used = used.map_or_else(
            || now.saturating_duration_since(self.begun),
            |(before, now)| now.saturating_sub(before),
        );
        if used >= self.cpu || now >= self.wall_end {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        Ok(())
    }

    /// Tries until something has happened, or time is up.
    fn until_done(
        &mut self,
        mut attempt: impl FnMut(&UnixStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            self.check()?;
            match attempt(self.socket) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                done => return done,
            }
        }
    }
}

impl Read for Paced<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.until_done(|mut socket| socket.read(buffer))
    }
}

impl Write for Paced<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.until_done(|mut socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
