//! Switches the trampolines of a running CPython on or off, for those who want perf maps of it.
//!
//! * **Job:** has a process run a few lines of Python, and finds out what came of it.
//! * **Gets** a pid, and leave to do so: nothing else in the program writes to a process that it did not start.
//! * **Gives** [`Ready`], which says beforehand what is going to be done, and then an [`Outcome`].
//! * **Must not know** how that is told.
//!
//! ```text
//!  request_file   a file in the process's /tmp with what it is to do; the answer comes back in it
//!  remote         the interpreter is told of that file by the means that it has for that (PEP 768, CPython 3.14)
//! ```
//!
//! Whatever goes wrong, the file decides: either the process has taken it away, then it does what it says and answers, or
//! we have, then it never will. So no request is left behind, and none is reported wrongly.

#![forbid(unsafe_code)]

mod as_user;
mod error;
mod faults;
mod interpreter;
mod memory;
mod remote;
mod request_file;
mod script;

use std::{
    fmt, io,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

pub use error::ActivateError;

use self::{
    interpreter::Found,
    memory::ProcessMemory,
    remote::{NotAsked, Remote},
    request_file::{Directory, Holder, RequestFile},
    script::Answer,
};
use crate::{
    model::Pid,
    process::{Halt, Mapping, Target, halt_of, inspect, read_executable_mappings},
};

/// How long a process that has taken a request out of its memory may take to take the file, too. Most do within a
/// millisecond; with many threads that want the GIL, and many signals, it was more than a second.
const UNREAD_PATIENCE: Duration = Duration::from_secs(5);
/// After a request was withdrawn: a thread that is just taking it finds its file still there.
const WITHDRAW_GRACE: Duration = Duration::from_millis(20);
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long a process without memory may take to exit.
const EXIT_TIME: Duration = Duration::from_secs(5);
/// Time between two reminders.
const REMIND_EVERY: Duration = Duration::from_millis(100);

/// The first CPython that takes requests.
const REQUESTS_SINCE: (u8, u8) = (3, 14);
/// The first that can have trampolines at all.
const SINCE: (u8, u8) = (3, 9);

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Functions that are called from now on get trampolines.
    On,
    /// They do not.
    Off,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The process.
    pub pid: Pid,
    /// On or off.
    pub switch: Switch,
    /// How long the process may take to come back to Python code.
    pub timeout: Duration,
}

/// Major, minor and, where a process tells it, micro version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub u8, pub u8, pub Option<u8>);

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// It was so already: nothing was changed.
    pub was_so: bool,
    /// The perf map, as we find it. Of a process that shares our `/tmp` and pids, `/tmp/perf-PID.map`.
    pub map: PathBuf,
    /// The perf map, as the process calls it.
    pub map_there: String,
    /// They cannot be switched on again in this process once they are off.
    pub only_once: bool,
}

/// A process that can be asked.
#[derive(Debug)]
pub struct Ready {
    order: Order,
    target: Target,
    mappings: Vec<Mapping>,
    memory: ProcessMemory,
    found: Found,
}

impl Ready {
    /// Looks at the process, and changes nothing.
    ///
    /// Needs the right to trace it (CAP_SYS_PTRACE, or the same user), and CAP_SETUID and CAP_SETGID where it is another
    /// user's.
    pub fn check(order: Order) -> Result<Self, ActivateError> {
        let target = Target::check(order.pid)?;
        let checked = Self::check_running(order, &target);
        let (mappings, memory, found) = checked.map_err(|error| {
            if has_ended(&target) {
                ActivateError::Gone { pid: order.pid }
            } else {
                error
            }
        })?;
        Ok(Self {
            order,
            target,
            mappings,
            memory,
            found,
        })
    }

    fn check_running(
        order: Order,
        target: &Target,
    ) -> Result<(Vec<Mapping>, ProcessMemory, Found), ActivateError> {
        let pid = order.pid;
        let gone = |_| ActivateError::Gone { pid };
        let mappings = read_executable_mappings(pid).map_err(gone)?.mappings;
        let python = inspect(target, &mappings);
        let version = python.version.ok_or(ActivateError::NotPython { pid })?;
        if version < SINCE {
            return Err(ActivateError::TooOld { pid, version });
        }
        if version < REQUESTS_SINCE {
            return Err(ActivateError::TakesNoRequests { pid, version });
        }
        if target.first_thread_has_ended {
            return Err(ActivateError::NoFirstThread { pid });
        }
        if let Some(Halt::Stopped | Halt::FrozenAndStopped(_)) = halt_of(pid) {
            return Err(ActivateError::Halted { pid });
        }
        let memory = ProcessMemory::open(pid)
            .map_err(|source| ActivateError::NotPermitted { pid, source })?;
        let found = Found::look_for(pid, &mappings, &python, &memory)?;
        let version = found.version;
        let switch = order.switch;
        if faults::is_fatal(version, switch, || false) {
            return Err(ActivateError::Faulty {
                pid,
                version,
                switch,
            });
        }
        Ok((mappings, memory, found))
    }

    /// Its CPython.
    pub fn version(&self) -> Version {
        self.found.version
    }

    /// It has no GIL.
    pub fn is_free_threaded(&self) -> bool {
        self.found.free_threaded
    }

    /// The process.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Has the process do it, and waits for its answer. `gives_up` is asked every few milliseconds.
    pub fn carry_out(&self, gives_up: &dyn Fn() -> bool) -> Result<Outcome, ActivateError> {
        let outcome = self.carry_out_while_alive(gives_up);
        outcome.map_err(|error| match error {
            // What the process itself answered.
            ActivateError::Failed { .. } | ActivateError::Faulty { .. } => error,
            // Whatever could not be done, it is because the process has ended.
            _ if has_ended(&self.target) => ActivateError::Gone {
                pid: self.order.pid,
            },
            _ => error,
        })
    }

    fn carry_out_while_alive(&self, gives_up: &dyn Fn() -> bool) -> Result<Outcome, ActivateError> {
        let Order { pid, switch, .. } = self.order;
        let would_crash = faults::is_fatal(self.version(), switch, || {
            faults::has_trampolines(&self.memory, &self.mappings)
        });
        let request = script::Request {
            switch,
            would_crash,
        };
        let file = RequestFile::write(Directory::of(&self.target)?, request)
            .map_err(|source| self.no_place(source))?;
        let was_so = match self.request(&file, gives_up)? {
            Answer::Done => false,
            Answer::Already => true,
            Answer::Failed(reason) => {
                return Err(ActivateError::Failed {
                    pid,
                    switch,
                    reason,
                });
            }
            Answer::Refused => {
                return Err(ActivateError::Faulty {
                    pid,
                    version: self.version(),
                    switch,
                });
            }
        };
        let map_there = format!("/tmp/perf-{}.map", self.target.ns_pid);
        Ok(Outcome {
            was_so,
            map: self.here(&map_there),
            map_there,
            only_once: faults::is_fatal(self.version(), Switch::On, || true),
        })
    }

    /// What the process calls so, as we find it.
    fn here(&self, path: &str) -> PathBuf {
        let shares = |space: &str| {
            let of = |process: &str| std::fs::read_link(format!("/proc/{process}/{space}")).ok();
            let (own, other) = (of("self"), of(&self.order.pid.to_string()));
            own.is_some() && own == other
        };
        if ["root", "ns/mnt"].into_iter().all(shares) {
            PathBuf::from(path)
        } else {
            PathBuf::from(format!("/proc/{}/root{path}", self.order.pid))
        }
    }

    fn no_place(&self, source: io::Error) -> ActivateError {
        let path = self.target.perf_map_directory();
        ActivateError::NoPlace { path, source }
    }

    fn request(
        &self,
        file: &RequestFile,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<Answer, ActivateError> {
        let pid = self.order.pid;
        let refused = |reason| match reason {
            NotAsked::Disabled => ActivateError::RemoteDebuggingOff { pid },
            NotAsked::Occupied => ActivateError::Occupied { pid },
            NotAsked::Implausible => ActivateError::unknown(
                pid,
                "its support for requests (PEP 768) is not where it says",
            ),
        };
        let Some((thread, support)) = self.found.requests else {
            return Err(refused(NotAsked::Implausible));
        };
        let remote =
            Remote::of(&self.memory, self.found.state, thread, support).map_err(refused)?;
        remote.ask(&file.path()).map_err(refused)?;
        self.wait(file, &remote, gives_up)
    }

    /// Waits until the process has taken the file, and for its answer.
    fn wait(
        &self,
        file: &RequestFile,
        remote: &Remote<'_>,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<Answer, ActivateError> {
        let Order {
            pid,
            switch,
            timeout,
            ..
        } = self.order;
        let alive = || self.target.is_alive();
        let Err(no_answer) = self.wait_until_taken(file, remote, gives_up) else {
            return file.wait_for_answer(alive).ok_or_else(|| self.silent());
        };
        if !alive() {
            return Err(ActivateError::Gone { pid });
        }
        remote.withdraw();
        sleep(WITHDRAW_GRACE);
        match file.take_back() {
            Ok(Holder::Process) => file.wait_for_answer(alive).ok_or_else(|| self.silent()),
            Err(source) => Err(self.no_place(source)),
            Ok(Holder::Nobody) => Err(match no_answer {
                NoAnswer::GaveUp => ActivateError::Interrupted { pid },
                NoAnswer::Unread => ActivateError::NotRead { pid },
                NoAnswer::Late => ActivateError::NotRun {
                    pid,
                    switch,
                    waited_s: timeout.as_secs().max(1),
                },
            }),
        }
    }

    fn wait_until_taken(
        &self,
        file: &RequestFile,
        remote: &Remote<'_>,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<(), NoAnswer> {
        let begun = Instant::now();
        let mut reminded = begun;
        let mut unread_since = None;
        while file.holder() == Holder::Nobody {
            let now = Instant::now();
            if gives_up() {
                return Err(NoAnswer::GaveUp);
            }
            if now - begun > self.order.timeout || !self.target.is_alive() {
                return Err(NoAnswer::Late);
            }
            if remote.is_waiting() {
                unread_since = None;
            } else if now - *unread_since.get_or_insert(now) > UNREAD_PATIENCE {
                return Err(NoAnswer::Unread);
            }
            if now - reminded > REMIND_EVERY && remote.is_waiting() {
                remote.remind();
                reminded = now;
            }
            sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn silent(&self) -> ActivateError {
        let Order { pid, switch, .. } = self.order;
        if self.target.is_alive() {
            ActivateError::NoAnswer { pid, switch }
        } else {
            ActivateError::Gone { pid }
        }
    }
}

/// The process has exited, or is exiting: a process gives up its memory before its exit can be seen (`exit_mm` and
/// `exit_notify` in `do_exit`, kernel/exit.c, Linux 6.18).
fn has_ended(target: &Target) -> bool {
    let begun = Instant::now();
    while target.is_alive() {
        let has_memory = match read_executable_mappings(target.pid) {
            Ok(parsed) => !parsed.mappings.is_empty(),
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        };
        if has_memory || begun.elapsed() > EXIT_TIME {
            return false;
        }
        sleep(LOOK_EVERY);
    }
    true
}

/// Why there is no answer.
enum NoAnswer {
    GaveUp,
    Late,
    Unread,
}

impl Version {
    /// Major and minor.
    pub const fn minor(self) -> (u8, u8) {
        (self.0, self.1)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, micro) = self;
        write!(f, "{major}.{minor}")?;
        micro.map_or(Ok(()), |micro| write!(f, ".{micro}"))
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
        })
    }
}
